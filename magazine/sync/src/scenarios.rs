//! What the checkers are tried on: one scenario for loom and for shuttle.

use crate::{Arc, AtomicUsize, Ordering::Relaxed, planted, thread};

/// A number that nobody else has.
fn ticket(next: &AtomicUsize) -> usize {
    if planted("a ticket is taken in two steps") {
        let number = next.load(Relaxed);
        next.store(number + 1, Relaxed);
        number
    } else {
        next.fetch_add(1, Relaxed)
    }
}

fn tickets() {
    let next = Arc::new(AtomicUsize::new(0));
    let other = next.clone();
    let theirs = thread::spawn(move || ticket(&other));
    let ours = ticket(&next);
    assert_ne!(ours, theirs.join().unwrap(), "two have the same ticket");
}

#[cfg(loom)]
mod models {
    use super::*;
    use crate::check::{Bound, caught, model};

    #[test]
    fn tickets_differ() {
        model("tickets differ", Bound::None, 13, tickets);
    }
    #[test]
    fn planted_two_steps() {
        let bug = "a ticket is taken in two steps";
        caught(bug, "tickets", Bound::None, "two have the same ticket", [()], |()| tickets());
    }
}

#[cfg(shuttle)]
mod schedules {
    use super::*;
    use crate::schedule::{caught, schedules};

    #[test]
    fn tickets_differ() {
        schedules("tickets differ", 100, tickets);
    }
    #[test]
    fn planted_two_steps() {
        caught("a ticket is taken in two steps", "tickets", 100, "two have the same ticket", tickets);
    }
}
