//! Writes the last operations of all threads before a violation, as a [counterexample](crate::story).

use super::log::{Entry, StressOperation};
use super::worker::ThreadSeat;
use super::world::Violation;
use crate::story::{Change, Step, Story, VERSION};
use std::collections::BTreeMap;

/// The largest number of steps in a counterexample; the next constant is the smallest number of steps of each thread in
/// it. All logged steps on the violation's object are included.
const MAX_TRACE_STEPS: usize = 400;
const LAST_EVENTS_PER_WORKER: usize = 8;
/// The number of the violation's object in a counterexample; other objects have larger numbers.
const OBJECT: usize = 1;

pub(super) fn story(violation: &Violation, seats: &[ThreadSeat<'_>], seed: u64) -> Story {
    let own = |entry: &Entry| violation.address == Some(entry.address);
    let mut cost_events: Vec<(u16, bool, &Entry)> = vec![];
    for seat in seats {
        // A log is sorted by time.
        let count = seat.log.iter().filter(|entry| entry.at <= violation.at).count();
        let entries = seat.log.iter().take(count).enumerate();
        cost_events.extend(
            entries.map(|(i, entry)| (seat.number, i + LAST_EVENTS_PER_WORKER >= count || own(entry), entry)),
        );
    }
    cost_events.sort_by_key(|(_, _, entry)| entry.at);
    let early = cost_events.len().saturating_sub(MAX_TRACE_STEPS);
    let mut things: BTreeMap<usize, (usize, Option<String>)> =
        violation.address.map(|at| (at, (OBJECT, None))).into_iter().collect();
    let told = cost_events.iter().enumerate().filter(|(i, (_, always, _))| *i >= early || *always);
    let steps = told.map(|(_, (seat, _, entry))| step(*seat, entry, &mut things)).collect();
    Story {
        version: VERSION,
        title: format!("uslab stress, seed {seed}: the threads' last operations before a violation"),
        steps,
        waiting: Vec::new(),
        end: format!("at {:.6} s: {}", violation.at.as_secs_f64(), violation.what),
        about: violation.address.map(|_| OBJECT),
    }
}

fn step(seat: u16, entry: &Entry, things: &mut BTreeMap<usize, (usize, Option<String>)>) -> Step {
    let (did, after) = match entry.operation_kind {
        StressOperation::Alloc => ("allocates", format!("held by thread {seat}")),
        StressOperation::Free => ("frees", "free".to_owned()),
        StressOperation::Leave => ("leaves for others", "left for others".to_owned()),
        StressOperation::Take => ("takes leftover objects,", format!("held by thread {seat}")),
        StressOperation::Move(_) => ("moves to CPU", String::new()),
        StressOperation::Other(what) => (what, String::new()),
    };
    let part = format!("{:#x}", entry.address);
    let sentence = match (entry.source, entry.operation_kind) {
        (Some(source), _) => format!("{did} {part} of {source}: {}", entry.token),
        (None, StressOperation::Move(cpu)) => format!("{did} {cpu}"),
        (None, _) => did.to_owned(),
    };
    let changes = entry.source.map(|_| {
        let next = things.len() + OBJECT;
        let (thing, known) = things.entry(entry.address).or_insert((next, None));
        Change { thing: *thing, part, before: known.replace(after.clone()), after }
    });
    Step {
        thread: seat.to_string(),
        role: None,
        did: sentence,
        changes: changes.into_iter().collect(),
        at: Some(entry.at.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamp::Token;
    use super::super::world::Source;
    use super::*;
    use std::time::Duration;

    #[test]
    fn violation_report_contains_the_object_history() {
        let mut seats = [1, 2, 3].map(|number| ThreadSeat::new(number, 2 * MAX_TRACE_STEPS));
        let mut log = |seat: usize, at: usize, operation_kind, address| {
            let (at, token) = (Duration::from_millis(at as u64), Token::new(1, 1));
            let source = (address > 0).then_some(Source::Kmalloc(8));
            seats[seat].log.push(Entry { at, operation_kind, source, address, token });
        };
        log(0, 0, StressOperation::Alloc, 64);
        (1..=20).for_each(|at| log(2, at, StressOperation::Other("reaps"), 0));
        (21..=20 + MAX_TRACE_STEPS).for_each(|at| log(1, at, StressOperation::Alloc, 64 + 64 * at));
        log(0, 21 + MAX_TRACE_STEPS, StressOperation::Leave, 64);
        log(1, 22 + MAX_TRACE_STEPS, StressOperation::Take, 64);
        log(1, 24 + MAX_TRACE_STEPS, StressOperation::Free, 64);
        let violation = Violation {
            at: Duration::from_millis(23 + MAX_TRACE_STEPS as u64),
            what: "torn".to_owned(),
            address: Some(64),
            seats: vec![],
        };
        let story = story(&violation, &seats, 7);
        let of = |thread: &str| story.steps.iter().filter(|step| step.thread == thread).count();
        // Operations after the violation are omitted.
        assert_eq!((of("1"), of("2"), of("3")), (2, MAX_TRACE_STEPS - 1, 8));
        assert!(story.steps.is_sorted_by_key(|step| step.at));
        let own = story.steps.iter().flat_map(|step| &step.changes).filter(|c| Some(c.thing) == story.about);
        let life: Vec<_> = own.map(|change| change.after.as_str()).collect();
        assert_eq!(life, ["held by thread 1", "left for others", "held by thread 2"]);
        assert_eq!(story.steps[0].did, "allocates 0x40 of kmalloc of 8 bytes: thread 1's allocation 1");
        assert_eq!(story.end, "at 0.423000 s: torn");
    }
}
