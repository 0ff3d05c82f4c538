//! Models the reaper that a subsystem starts automatically: how the reaper sleeps, is woken, exits, and restarts in the
//! child of a fork (`slab/src/reclaim/reaper/background.rs`). This file does not model the work of an interval: a reap
//! is an operation of `model.rs`.
//!
//! Pages are freed and counted under the lock of a zone. Of this count, the model keeps only what the reaper reads. The
//! value is `true` if pages were freed since the reaper last read the count. In the model, a time-out may end each
//! sleep at any moment, so an invariant of the model is valid for every interval.

use crate::graph::{Fair, ThreadMove};

/// The number of threads that free.
const FREERS: usize = 2;
/// The number of successive intervals without work after which the reaper sleeps.
const QUIET: u8 = 2;
const REAPER: usize = 0;
/// The thread that allocates, so that the subsystem grows, and that drops the subsystem.
const GROWER: usize = 1;
/// A pseudo-thread, which represents the obligation that a reaper exits when its subsystem is dropped.
const END: usize = 2 + FREERS;

/// A planted bug: one wrong line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The reaper announces that it sleeps, and then does not check again.
    LooksOnce,
    /// A free checks the state of the reaper before the free counts its pages.
    WakesBeforeItCounts,
    /// A free wakes the reaper but leaves the state `Asleep`.
    StaysAsleep,
    /// The child of a fork assumes that the reaper's thread exists in the child.
    ChildBelieves,
    /// After the system has refused to start the thread, the start is never tried again.
    RefusedForGood,
    /// The reaper keeps a reference to the subsystem while it sleeps.
    KeepsSubsystem,
}

/// The state of the reaper, which all threads read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Word {
    Wanted,
    Running,
    Asleep,
}

/// Where the reaper's thread is in its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ReaperState {
    None,
    /// The reaper requests the subsystem, and holds a reference to it during an interval.
    Ask,
    Interval,
    Count,
    Nap,
    SayAsleep,
    LookAgain,
    SayRunning,
    /// The reaper checks if it should still sleep.
    Check,
    Sleep,
    Ended,
}

/// Where a free is in its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Free {
    Idle,
    Count,
    Look,
    Swap,
    Unpark,
    Gone,
}

/// The whole state of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    word: Word,
    at: ReaperState,
    quiet: u8,
    /// `true` if pages were freed since the reaper last read the count.
    changed: bool,
    /// `true` if pages were freed since the last interval that looked for free pages.
    unreaped: bool,
    /// `true` if the reaper's thread was unparked.
    token: bool,
    freers: [Free; FREERS],
    starting: bool,
    refused: bool,
    /// `true` while the subsystem has users.
    used: bool,
    child: bool,
}

/// The model; it may have a planted bug.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reaper(pub Option<Bug>);

impl Reaper {
    fn has_bug(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }
    fn reaper(self, s: State, push: &mut impl FnMut(State)) {
        let mut next = s;
        next.at = match s.at {
            ReaperState::None | ReaperState::Ended => return,
            ReaperState::Ask if s.used => ReaperState::Interval,
            ReaperState::Ask => ReaperState::Ended,
            ReaperState::Interval => {
                next.unreaped = false;
                ReaperState::Count
            }
            ReaperState::Count => {
                next.quiet = if s.changed { 0 } else { s.quiet + 1 };
                next.changed = false;
                if next.quiet < QUIET { ReaperState::Nap } else { ReaperState::SayAsleep }
            }
            // The thread was unparked, or the interval has passed.
            ReaperState::Nap => {
                next.token = false;
                ReaperState::Ask
            }
            ReaperState::SayAsleep => {
                next.quiet = 0;
                next.word = Word::Asleep;
                if self.has_bug(Bug::LooksOnce) { ReaperState::Check } else { ReaperState::LookAgain }
            }
            ReaperState::LookAgain if s.changed => ReaperState::SayRunning,
            ReaperState::LookAgain => ReaperState::Check,
            ReaperState::SayRunning => {
                next.word = Word::Running;
                ReaperState::Check
            }
            ReaperState::Check if s.word == Word::Asleep && (s.used || self.has_bug(Bug::KeepsSubsystem)) => {
                ReaperState::Sleep
            }
            ReaperState::Check => ReaperState::Ask,
            ReaperState::Sleep => {
                next.token = false;
                ReaperState::Check
            }
        };
        push(next);
    }
    fn free(self, s: State, i: usize) -> Option<State> {
        let mut next = s;
        let early = self.has_bug(Bug::WakesBeforeItCounts);
        next.freers[i] = match s.freers[i] {
            Free::Idle if s.used => {
                if early {
                    Free::Look
                } else {
                    Free::Count
                }
            }
            Free::Idle | Free::Gone => return None,
            Free::Count => {
                (next.changed, next.unreaped) = (true, true);
                if early { Free::Idle } else { Free::Look }
            }
            Free::Look if s.word == Word::Asleep => Free::Swap,
            Free::Look if early => Free::Count,
            Free::Look => Free::Idle,
            Free::Swap if s.word == Word::Asleep => {
                if !self.has_bug(Bug::StaysAsleep) {
                    next.word = Word::Running;
                }
                Free::Unpark
            }
            Free::Swap if early => Free::Count,
            Free::Swap => Free::Idle,
            Free::Unpark => {
                next.token = true;
                if early { Free::Count } else { Free::Idle }
            }
        };
        Some(next)
    }
}

impl Fair for Reaper {
    type State = State;
    fn starts(&self) -> Vec<State> {
        vec![State {
            word: Word::Wanted,
            at: ReaperState::None,
            quiet: 0,
            changed: false,
            unreaped: false,
            token: false,
            freers: [Free::Idle; FREERS],
            starting: false,
            refused: false,
            used: true,
            child: false,
        }]
    }
    fn moves(&self, s: &State, into: &mut Vec<ThreadMove<State>>) {
        let s = *s;
        let mut add = |thread, begins, to| into.push(ThreadMove { thread, begins, interrupts: 0, to });
        self.reaper(s, &mut |to| add(REAPER, false, to));
        for i in 0..FREERS {
            let begins = s.freers[i] == Free::Idle;
            self.free(s, i).into_iter().for_each(|to| add(2 + i, begins, to));
        }
        // The subsystem grows as long as it is used, so it starts a wanted reaper. The system may refuse the start
        // once.
        if s.starting {
            add(GROWER, false, State { starting: false, at: ReaperState::Ask, quiet: 0, ..s });
            if !s.refused {
                let word = if self.has_bug(Bug::RefusedForGood) { s.word } else { Word::Wanted };
                add(GROWER, false, State { starting: false, refused: true, word, ..s });
            }
        } else if s.used && s.word == Word::Wanted {
            add(GROWER, false, State { starting: true, word: Word::Running, ..s });
        }
        let idle = s.freers.iter().all(|free| matches!(free, Free::Idle | Free::Gone));
        if s.used && !s.starting && idle {
            // The drop of the last user unparks the reaper.
            add(GROWER, true, State { used: false, token: true, ..s });
        }
        if s.used && !s.starting && !s.child {
            let word = if self.has_bug(Bug::ChildBelieves) { s.word } else { Word::Wanted };
            let (at, freers) = (ReaperState::None, [Free::Idle, Free::Gone]);
            // Counts of other threads are not lost, because they changed under a lock.
            add(GROWER, true, State { word, at, freers, token: false, child: true, ..s });
        }
    }
    fn threads(&self) -> usize {
        END + 1
    }
    fn busy(&self, s: &State, thread: usize) -> bool {
        match thread {
            // Pages were freed, so an interval has to follow.
            REAPER => s.unreaped && s.used,
            GROWER => s.starting,
            END => !s.used && !matches!(s.at, ReaperState::None | ReaperState::Ended),
            free => !matches!(s.freers[free - 2], Free::Idle | Free::Gone),
        }
    }
    fn waits(&self, _: &State, _: usize) -> bool {
        false
    }
}
