//! Runs CPUs under a generated workload, in virtual time.

use super::source::{Next, Source};
use super::work::{Exchange, Script, ScriptAction, Workload};
use std::collections::VecDeque;

/// All CPUs, and the objects that each CPU holds.
pub(super) struct Team<O> {
    scripts: Vec<Script<O>>,
    shared: SharedState<O>,
}

/// The state that all simulated CPUs share.
struct SharedState<O> {
    /// The current virtual time of the running CPU.
    now: f64,
    /// For each CPU, the objects that other CPUs sent to it, each with its arrival time, earliest first.
    sent_objects: Vec<VecDeque<(f64, O)>>,
    finished: Vec<bool>,
}

/// The time in nanoseconds between two checks of an idle CPU for work.
const IDLE_POLL_NS: f64 = 50.0;

impl<O> Team<O> {
    pub(super) fn new(workload: &Workload, cpus: u32, operations: u64, seed: u64) -> Self {
        let script = |cpu| Script::new(workload, cpu, cpus, operations, seed);
        let sent_objects = (0..cpus).map(|_| VecDeque::new()).collect();
        let shared = SharedState { now: 0.0, sent_objects, finished: vec![false; cpus as usize] };
        Self { scripts: (0..cpus).map(script).collect(), shared }
    }
}

impl<O> Source<O> for Team<O> {
    fn next(&mut self, cpu: u32, now: f64) -> Next<O> {
        self.shared.now = now;
        match self.scripts[cpu as usize].next_action(&mut self.shared) {
            ScriptAction::Alloc => Next::Alloc { cache: 0, bytes: 0 },
            ScriptAction::Free(object) => Next::Free { cache: 0, object },
            ScriptAction::Wait => {
                let first = self.shared.sent_objects[cpu as usize].front().map(|(arrival, _)| *arrival);
                Next::IdleUntil(first.filter(|arrival| *arrival > now).unwrap_or(now + IDLE_POLL_NS))
            }
            ScriptAction::Done => Next::Done,
        }
    }
    fn allocated(&mut self, cpu: u32, arrival: f64, object: O) -> Option<u32> {
        self.shared.now = arrival;
        self.scripts[cpu as usize].allocated(object, &mut self.shared);
        None
    }
    fn objects_in_use(&self) -> u64 {
        let sent_objects = self.shared.sent_objects.iter().map(VecDeque::len);
        sent_objects.chain(self.scripts.iter().map(Script::held)).sum::<usize>() as u64
    }
}

impl<O> Exchange<O> for SharedState<O> {
    fn take(&mut self, cpu: u32) -> Option<O> {
        let now = self.now;
        self.sent_objects[cpu as usize].pop_front_if(|(arrival, _)| *arrival <= now).map(|(_, object)| object)
    }
    fn send(&mut self, cpu: u32, object: O) {
        let (now, sent_objects) = (self.now, &mut self.sent_objects[cpu as usize]);
        let position = sent_objects.partition_point(|(arrival, _)| *arrival <= now);
        sent_objects.insert(position, (now, object));
    }
    fn waiting(&self, cpu: u32) -> u64 {
        self.sent_objects[cpu as usize].len() as u64
    }
    fn is_finished(&self, cpu: u32) -> bool {
        self.finished[cpu as usize]
    }
    fn finish(&mut self, cpu: u32) {
        self.finished[cpu as usize] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_objects_arrive_in_time_order() {
        let mut shared = SharedState { now: 0.0, sent_objects: vec![VecDeque::new()], finished: vec![false] };
        for (arrival, object) in [(5.0, 'c'), (3.0, 'a'), (3.0, 'b')] {
            shared.now = arrival;
            shared.send(0, object);
        }
        let mut receive_at = |now| {
            shared.now = now;
            shared.take(0)
        };
        assert_eq!(
            [2.0, 3.0, 4.0, 4.0, 5.0, 6.0].map(&mut receive_at),
            [None, Some('a'), Some('b'), None, Some('c'), None]
        );
    }
}
