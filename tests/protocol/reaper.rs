//! How the reaper that a subsystem starts by itself sleeps, is woken, ends and comes back in the child of a fork
//! (`slab/src/reclaim/reaper/background.rs`). What it does in an interval is not here: a reap is one of the operations of `model.rs`.
//!
//! Pages come back under a zone's lock, which counts them. That count is here as what the reaper asks of it: whether pages came
//! since it last looked. A time-out may end each sleep at any moment, as it does in the end: so whatever holds here holds for
//! every interval.

use crate::graph::{Fair, Move};

/// Threads that free.
const FREERS: usize = 2;
/// Intervals in a row that find nothing before it sleeps.
const QUIET: u8 = 2;
const REAPER: usize = 0;
/// The thread whose allocations make the subsystem grow, and which drops it.
const GROWER: usize = 1;
/// Not a thread: that a reaper without a subsystem ends.
const END: usize = 2 + FREERS;

/// A line that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The reaper does not look again behind saying that it sleeps.
    LooksOnce,
    /// A free looks whether it sleeps, and counts its pages then.
    WakesBeforeItCounts,
    /// A free wakes it and leaves word that it sleeps.
    StaysAsleep,
    /// The child of a fork believes that it has the thread.
    ChildBelieves,
    /// A start that is refused is not tried again.
    RefusedForGood,
    /// It keeps the subsystem while it sleeps.
    KeepsSubsystem,
}

/// The word that all look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Word {
    Wanted,
    Running,
    Asleep,
}

/// Where the reaper's thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    None,
    /// Asks for the subsystem, which it has during an interval.
    Ask,
    Interval,
    Count,
    Nap,
    SayAsleep,
    LookAgain,
    SayRunning,
    /// Whether it still sleeps.
    Check,
    Sleep,
    Ended,
}

/// Where a free is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Free {
    Idle,
    Count,
    Look,
    Swap,
    Unpark,
    Gone,
}

/// All of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    word: Word,
    at: At,
    quiet: u8,
    /// Pages came since the reaper last asked for the count,
    changed: bool,
    /// and since an interval last looked for them.
    unreaped: bool,
    /// It was unparked.
    token: bool,
    freers: [Free; FREERS],
    starting: bool,
    refused: bool,
    /// Users have the subsystem.
    used: bool,
    child: bool,
}

/// The reaper, with a bug or without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reaper(pub Option<Bug>);

impl Reaper {
    fn has(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }
    fn reaper(self, s: State, push: &mut impl FnMut(State)) {
        let mut next = s;
        next.at = match s.at {
            At::None | At::Ended => return,
            At::Ask if s.used => At::Interval,
            At::Ask => At::Ended,
            At::Interval => {
                next.unreaped = false;
                At::Count
            }
            At::Count => {
                next.quiet = if s.changed { 0 } else { s.quiet + 1 };
                next.changed = false;
                if next.quiet < QUIET { At::Nap } else { At::SayAsleep }
            }
            // Unparked, or the interval is over.
            At::Nap => {
                next.token = false;
                At::Ask
            }
            At::SayAsleep => {
                next.quiet = 0;
                next.word = Word::Asleep;
                if self.has(Bug::LooksOnce) { At::Check } else { At::LookAgain }
            }
            At::LookAgain if s.changed => At::SayRunning,
            At::LookAgain => At::Check,
            At::SayRunning => {
                next.word = Word::Running;
                At::Check
            }
            At::Check if s.word == Word::Asleep && (s.used || self.has(Bug::KeepsSubsystem)) => At::Sleep,
            At::Check => At::Ask,
            At::Sleep => {
                next.token = false;
                At::Check
            }
        };
        push(next);
    }
    fn free(self, s: State, i: usize) -> Option<State> {
        let mut next = s;
        let early = self.has(Bug::WakesBeforeItCounts);
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
                if !self.has(Bug::StaysAsleep) {
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
            at: At::None,
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
    fn moves(&self, s: &State, into: &mut Vec<Move<State>>) {
        let s = *s;
        let mut add = |thread, begins, to| into.push(Move { thread, begins, interrupts: 0, to });
        self.reaper(s, &mut |to| add(REAPER, false, to));
        for i in 0..FREERS {
            let begins = s.freers[i] == Free::Idle;
            self.free(s, i).into_iter().for_each(|to| add(2 + i, begins, to));
        }
        // It grows as long as it is used: so it starts one that is wanted. The system may refuse it once.
        if s.starting {
            add(GROWER, false, State { starting: false, at: At::Ask, quiet: 0, ..s });
            if !s.refused {
                let word = if self.has(Bug::RefusedForGood) { s.word } else { Word::Wanted };
                add(GROWER, false, State { starting: false, refused: true, word, ..s });
            }
        } else if s.used && s.word == Word::Wanted {
            add(GROWER, false, State { starting: true, word: Word::Running, ..s });
        }
        let idle = s.freers.iter().all(|free| matches!(free, Free::Idle | Free::Gone));
        if s.used && !s.starting && idle {
            // The last user's drop unparks it.
            add(GROWER, true, State { used: false, token: true, ..s });
        }
        if s.used && !s.starting && !s.child {
            let word = if self.has(Bug::ChildBelieves) { s.word } else { Word::Wanted };
            let (at, freers) = (At::None, [Free::Idle, Free::Gone]);
            // What other threads had counted is not lost: it was under a lock.
            add(GROWER, true, State { word, at, freers, token: false, child: true, ..s });
        }
    }
    fn threads(&self) -> usize {
        END + 1
    }
    fn busy(&self, s: &State, thread: usize) -> bool {
        match thread {
            // Pages came back: an interval has to come.
            REAPER => s.unreaped && s.used,
            GROWER => s.starting,
            END => !s.used && !matches!(s.at, At::None | At::Ended),
            free => !matches!(s.freers[free - 2], Free::Idle | Free::Gone),
        }
    }
    fn waits(&self, _: &State, _: usize) -> bool {
        false
    }
}
