//! Models the reaper that a subsystem starts automatically: how it sleeps, wakes up, exits, and restarts in a forked
//! child (`slab/src/reclaim/reaper/background.rs`). The work of a reap is not modelled here, because it is an operation
//! in `model.rs`.
//!
//! Threads free pages, and count them, under the lock of a zone. The model represents this count by one bit, which the
//! reaper reads. The bit is `true` if pages were freed since the reaper last read the count. In the model, a sleep may
//! time out at any time, so the invariants hold for every reap interval.

use crate::graph::{FairModel, ThreadMove};

/// The number of threads that free pages.
const FREEING_THREADS: usize = 2;
/// The number of consecutive reap intervals without work after which the reaper sleeps.
const MAX_QUIET_INTERVALS: u8 = 2;
const REAPER_THREAD: usize = 0;
/// The number of the thread that allocates and makes the subsystem grow; at the end, it drops the subsystem.
const GROWING_THREAD: usize = 1;
/// A pseudo-thread that is busy from the drop of the subsystem until the exit of the reaper.
const END: usize = 2 + FREEING_THREADS;

/// A planted bug, which changes one line of the reaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The reaper announces that it will sleep, but does not check for work again before it sleeps.
    LooksOnce,
    /// A free checks the reaper's state before it counts the pages that it frees.
    WakesBeforeItCounts,
    /// A free wakes the reaper, but does not change its state `Asleep`.
    StaysAsleep,
    /// The child of a fork assumes that the reaper's thread exists in it.
    ChildBelieves,
    /// After the system has refused to start the thread once, no further start is tried.
    RefusedForGood,
    /// The reaper keeps a reference to the subsystem while it sleeps.
    KeepsSubsystem,
}

/// The reaper's state, which all threads can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Word {
    Wanted,
    Running,
    Asleep,
}

/// The position of the reaper's thread in its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ReaperState {
    None,
    /// The reaper gets a reference to the subsystem, and holds it during a reap.
    Ask,
    Interval,
    Count,
    Nap,
    SayAsleep,
    LookAgain,
    SayRunning,
    /// The reaper checks if it should sleep longer.
    Check,
    Sleep,
    Ended,
}

/// The position of a free in its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Free {
    Idle,
    Count,
    Look,
    Swap,
    Unpark,
    Gone,
}

/// The complete state of the model at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    word: Word,
    reaper_state: ReaperState,
    quiet_intervals: u8,
    /// `true` if pages were freed since the reaper last read the count of freed pages.
    changed: bool,
    /// `true` if pages were freed since the last interval in which the reaper searched for free pages.
    has_unreaped_pages: bool,
    /// `true` if another thread has unparked the reaper's thread.
    token: bool,
    freers: [Free; FREEING_THREADS],
    is_starting: bool,
    is_refused: bool,
    /// `true` while the subsystem has users.
    has_users: bool,
    child: bool,
}

/// The model of the reaper, with or without a planted bug.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reaper(pub Option<Bug>);

impl Reaper {
    fn has_bug(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }
    fn reaper(self, s: State, push: &mut impl FnMut(State)) {
        let mut new_state = s;
        new_state.reaper_state = match s.reaper_state {
            ReaperState::None | ReaperState::Ended => return,
            ReaperState::Ask if s.has_users => ReaperState::Interval,
            ReaperState::Ask => ReaperState::Ended,
            ReaperState::Interval => {
                new_state.has_unreaped_pages = false;
                ReaperState::Count
            }
            ReaperState::Count => {
                new_state.quiet_intervals = if s.changed { 0 } else { s.quiet_intervals + 1 };
                new_state.changed = false;
                if new_state.quiet_intervals < MAX_QUIET_INTERVALS {
                    ReaperState::Nap
                } else {
                    ReaperState::SayAsleep
                }
            }
            // The thread was unparked, or the interval has passed.
            ReaperState::Nap => {
                new_state.token = false;
                ReaperState::Ask
            }
            ReaperState::SayAsleep => {
                new_state.quiet_intervals = 0;
                new_state.word = Word::Asleep;
                if self.has_bug(Bug::LooksOnce) { ReaperState::Check } else { ReaperState::LookAgain }
            }
            ReaperState::LookAgain if s.changed => ReaperState::SayRunning,
            ReaperState::LookAgain => ReaperState::Check,
            ReaperState::SayRunning => {
                new_state.word = Word::Running;
                ReaperState::Check
            }
            ReaperState::Check
                if s.word == Word::Asleep && (s.has_users || self.has_bug(Bug::KeepsSubsystem)) =>
            {
                ReaperState::Sleep
            }
            ReaperState::Check => ReaperState::Ask,
            ReaperState::Sleep => {
                new_state.token = false;
                ReaperState::Check
            }
        };
        push(new_state);
    }
    fn free(self, s: State, i: usize) -> Option<State> {
        let mut new_state = s;
        let counts_late = self.has_bug(Bug::WakesBeforeItCounts);
        new_state.freers[i] = match s.freers[i] {
            Free::Idle if s.has_users => {
                if counts_late {
                    Free::Look
                } else {
                    Free::Count
                }
            }
            Free::Idle | Free::Gone => return None,
            Free::Count => {
                (new_state.changed, new_state.has_unreaped_pages) = (true, true);
                if counts_late { Free::Idle } else { Free::Look }
            }
            Free::Look if s.word == Word::Asleep => Free::Swap,
            Free::Look if counts_late => Free::Count,
            Free::Look => Free::Idle,
            Free::Swap if s.word == Word::Asleep => {
                if !self.has_bug(Bug::StaysAsleep) {
                    new_state.word = Word::Running;
                }
                Free::Unpark
            }
            Free::Swap if counts_late => Free::Count,
            Free::Swap => Free::Idle,
            Free::Unpark => {
                new_state.token = true;
                if counts_late { Free::Count } else { Free::Idle }
            }
        };
        Some(new_state)
    }
}

impl FairModel for Reaper {
    type State = State;
    fn starts(&self) -> Vec<State> {
        vec![State {
            word: Word::Wanted,
            reaper_state: ReaperState::None,
            quiet_intervals: 0,
            changed: false,
            has_unreaped_pages: false,
            token: false,
            freers: [Free::Idle; FREEING_THREADS],
            is_starting: false,
            is_refused: false,
            has_users: true,
            child: false,
        }]
    }
    fn moves(&self, s: &State, moves: &mut Vec<ThreadMove<State>>) {
        let s = *s;
        let mut add =
            |thread, begins, target| moves.push(ThreadMove { thread, begins, interrupts: 0, target });
        self.reaper(s, &mut |target| add(REAPER_THREAD, false, target));
        for i in 0..FREEING_THREADS {
            let begins = s.freers[i] == Free::Idle;
            self.free(s, i).into_iter().for_each(|target| add(2 + i, begins, target));
        }
        // The subsystem grows as long as it is used, so it starts a wanted reaper. The system may refuse the start
        // once.
        if s.is_starting {
            add(
                GROWING_THREAD,
                false,
                State { is_starting: false, reaper_state: ReaperState::Ask, quiet_intervals: 0, ..s },
            );
            if !s.is_refused {
                let word = if self.has_bug(Bug::RefusedForGood) { s.word } else { Word::Wanted };
                add(GROWING_THREAD, false, State { is_starting: false, is_refused: true, word, ..s });
            }
        } else if s.has_users && s.word == Word::Wanted {
            add(GROWING_THREAD, false, State { is_starting: true, word: Word::Running, ..s });
        }
        let idle = s.freers.iter().all(|free| matches!(free, Free::Idle | Free::Gone));
        if s.has_users && !s.is_starting && idle {
            // The drop of the last user unparks the reaper.
            add(GROWING_THREAD, true, State { has_users: false, token: true, ..s });
        }
        if s.has_users && !s.is_starting && !s.child {
            let word = if self.has_bug(Bug::ChildBelieves) { s.word } else { Word::Wanted };
            let (at, freers) = (ReaperState::None, [Free::Idle, Free::Gone]);
            // Counts of other threads are not lost, because they changed under a lock.
            add(
                GROWING_THREAD,
                true,
                State { word, reaper_state: at, freers, token: false, child: true, ..s },
            );
        }
    }
    fn threads(&self) -> usize {
        END + 1
    }
    fn is_busy(&self, s: &State, thread: usize) -> bool {
        match thread {
            // Pages were freed, so an interval has to follow.
            REAPER_THREAD => s.has_unreaped_pages && s.has_users,
            GROWING_THREAD => s.is_starting,
            END => !s.has_users && !matches!(s.reaper_state, ReaperState::None | ReaperState::Ended),
            free => !matches!(s.freers[free - 2], Free::Idle | Free::Gone),
        }
    }
    fn waits(&self, _: &State, _: usize) -> bool {
        false
    }
}
