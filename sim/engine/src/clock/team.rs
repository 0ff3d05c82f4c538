//! Runs CPUs under a generated workload, in virtual time.

use super::source::{Next, Source};
use super::work::{Ask, Others, Script, Workload};
use std::collections::VecDeque;

/// All CPUs, and the objects that each CPU holds.
pub(super) struct Team<O> {
    scripts: Vec<Script<O>>,
    between: SharedState<O>,
}

/// The state that CPUs share.
struct SharedState<O> {
    /// The current virtual time of the running CPU.
    now: f64,
    /// The objects that were sent to each CPU, each with its arrival time, earliest first.
    sent: Vec<VecDeque<(f64, O)>>,
    finished: Vec<bool>,
}

/// The time in nanoseconds between two checks of an idle CPU for work.
const IDLE_NS: f64 = 50.0;

impl<O> Team<O> {
    pub(super) fn new(workload: &Workload, cpus: u32, operations: u64, seed: u64) -> Self {
        let script = |cpu| Script::new(workload, cpu, cpus, operations, seed);
        let sent = (0..cpus).map(|_| VecDeque::new()).collect();
        let between = SharedState { now: 0.0, sent, finished: vec![false; cpus as usize] };
        Self { scripts: (0..cpus).map(script).collect(), between }
    }
}

impl<O> Source<O> for Team<O> {
    fn next(&mut self, cpu: u32, now: f64) -> Next<O> {
        self.between.now = now;
        match self.scripts[cpu as usize].ask(&mut self.between) {
            Ask::Alloc => Next::Alloc { cache: 0, bytes: 0 },
            Ask::Free(object) => Next::Free { cache: 0, object },
            Ask::Wait => {
                let first = self.between.sent[cpu as usize].front().map(|(then, _)| *then);
                Next::Until(first.filter(|then| *then > now).unwrap_or(now + IDLE_NS))
            }
            Ask::Done => Next::Done,
        }
    }
    fn got(&mut self, cpu: u32, then: f64, object: O) -> Option<u32> {
        self.between.now = then;
        self.scripts[cpu as usize].got(object, &mut self.between);
        None
    }
    fn held(&self) -> u64 {
        let sent = self.between.sent.iter().map(VecDeque::len);
        sent.chain(self.scripts.iter().map(Script::held)).sum::<usize>() as u64
    }
}

impl<O> Others<O> for SharedState<O> {
    fn take(&mut self, own: u32) -> Option<O> {
        let now = self.now;
        self.sent[own as usize].pop_front_if(|(then, _)| *then <= now).map(|(_, object)| object)
    }
    fn send(&mut self, to: u32, object: O) {
        let (now, sent) = (self.now, &mut self.sent[to as usize]);
        let at = sent.partition_point(|(then, _)| *then <= now);
        sent.insert(at, (now, object));
    }
    fn waiting(&self, cpu: u32) -> u64 {
        self.sent[cpu as usize].len() as u64
    }
    fn is_finished(&self, cpu: u32) -> bool {
        self.finished[cpu as usize]
    }
    fn finish(&mut self, own: u32) {
        self.finished[own as usize] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_objects_arrive_in_time_order() {
        let mut between = SharedState { now: 0.0, sent: vec![VecDeque::new()], finished: vec![false] };
        for (then, object) in [(5.0, 'c'), (3.0, 'a'), (3.0, 'b')] {
            between.now = then;
            between.send(0, object);
        }
        let mut at = |now| {
            between.now = now;
            between.take(0)
        };
        assert_eq!(
            [2.0, 3.0, 4.0, 4.0, 5.0, 6.0].map(&mut at),
            [None, Some('a'), Some('b'), None, Some('c'), None]
        );
    }
}
