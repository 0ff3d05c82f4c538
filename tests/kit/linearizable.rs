//! Checks that a history of concurrent operations is linearizable. For each operation, there must be a point in time
//! between its call and its return; in the order of these points, the operations must follow a sequential
//! specification.
//!
//! The search of Wing and Gong (1993), with Lowe's cache of visited states (2017): a state after the same set of
//! operations is searched only once. If the objects of a history are independent, each object can be checked alone,
//! because linearizability is local (Herlihy and Wing 1990): see [`check_each_object_history`].
//!
//! The crates `uslab-magazine` and `uslab` also include this file to check the histories of their schedules; the
//! including module provides the imports.

use super::sync::{AtomicU64, Mutex, Ordering::SeqCst, thread::yield_now};
use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;

/// A recorded operation with its result, and the values of a clock before the call and after the return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<O> {
    pub(crate) called: u64,
    pub(crate) returned: u64,
    pub(crate) op: O,
}

/// The sequential specification of an object.
pub(crate) trait Spec: Clone + Eq + Hash {
    type Op;
    /// Applies the operation `op`, and returns `true` if its result is allowed in this state.
    fn allows(&mut self, op: &Self::Op) -> bool;
}

/// Checks a history against a specification.
///
/// # Errors
/// If no order of the calls is valid, fails with the index of the first call that the longest valid order lacks.
pub(crate) fn check<S: Spec>(start: &S, history: &[Call<S::Op>]) -> Result<(), usize> {
    let mut order: Vec<usize> = (0..history.len()).collect();
    order.sort_by_key(|i| history[*i].called);
    let mut done = vec![0_u64; history.len().div_ceil(64)];
    let is_done = |done: &[u64], at: usize| done[at / 64] >> (at % 64) & 1 == 1;
    // The path to the current search node: for each depth the call tried last, and the state before it.
    let mut way: Vec<(usize, S)> = vec![];
    let (mut state, mut next, mut tried) = (start.clone(), 0, HashSet::new());
    let (mut deepest, mut culprit) = (0, 0);
    loop {
        // The calls that may come first among the remaining calls: each began before any remaining call returned.
        let mut first_return = u64::MAX;
        let mut found = None;
        for at in 0..order.len() {
            if is_done(&done, at) {
                continue;
            }
            let call = &history[order[at]];
            if call.called > first_return {
                break;
            }
            first_return = first_return.min(call.returned);
            let mut after = state.clone();
            if at >= next && after.allows(&call.op) {
                done[at / 64] |= 1 << (at % 64);
                if tried.insert((done.clone(), after.clone())) {
                    found = Some((at, after));
                    break;
                }
                done[at / 64] &= !(1 << (at % 64));
            }
        }
        if let Some((at, after)) = found {
            way.push((at, std::mem::replace(&mut state, after)));
            next = 0;
            if way.len() == order.len() {
                return Ok(());
            }
            continue;
        }
        if way.len() >= deepest {
            deepest = way.len();
            culprit = (0..order.len()).find(|at| !is_done(&done, *at)).map_or(0, |at| order[at]);
        }
        let Some((at, before)) = way.pop() else {
            return if order.is_empty() { Ok(()) } else { Err(culprit) };
        };
        done[at / 64] &= !(1 << (at % 64));
        (state, next) = (before, at + 1);
    }
}

/// Checks a history separately for each object.
///
/// # Errors
/// If the history of an object has no valid order, fails with the object and the call that [`check`] reports.
pub(crate) fn check_each_object_history<S: Spec, K: Ord>(
    start: &S,
    history: &[Call<S::Op>],
    of: impl Fn(&S::Op) -> K,
) -> Result<(), (K, usize)>
where
    S::Op: Clone,
{
    let mut parts: BTreeMap<K, Vec<usize>> = BTreeMap::new();
    history.iter().enumerate().for_each(|(i, call)| parts.entry(of(&call.op)).or_default().push(i));
    for (key, calls) in parts {
        let part: Vec<_> = calls.iter().map(|i| history[*i].clone()).collect();
        check(start, &part).map_err(|at| (key, calls[at]))?;
    }
    Ok(())
}

/// An object that is either owned or free; operations change its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Object {
    pub(crate) owned: bool,
}
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnedOp {
    Alloc(usize),
    Free(usize),
}
impl OwnedOp {
    pub(crate) fn object(&self) -> usize {
        match self {
            Self::Alloc(object) | Self::Free(object) => *object,
        }
    }
}
impl Spec for Object {
    type Op = OwnedOp;
    fn allows(&mut self, op: &OwnedOp) -> bool {
        let now = matches!(op, OwnedOp::Alloc(_));
        std::mem::replace(&mut self.owned, now) != now
    }
}

/// Records the calls that several threads make.
pub(crate) struct Recorder<O> {
    clock: AtomicU64,
    calls: Mutex<Vec<Call<O>>>,
}

impl<O> Recorder<O> {
    pub(crate) fn new() -> Self {
        Self { clock: AtomicU64::new(0), calls: Mutex::new(vec![]) }
    }
    /// Runs `call`, and records an operation that `op` makes from its result; if `op` returns `None`, records nothing.
    /// Every fifth call yields the CPU, so that calls of different threads overlap.
    pub(crate) fn call<R, N: Into<Option<O>>>(
        &self,
        call: impl FnOnce() -> R,
        op: impl FnOnce(&R) -> N,
    ) -> R {
        // SeqCst: all threads agree on one clock, and no part of the operation moves out of the recorded interval.
        let called = self.clock.fetch_add(1, SeqCst);
        let between = called.is_multiple_of(5);
        if between {
            yield_now();
        }
        let result = call();
        if between {
            yield_now();
        }
        let returned = self.clock.fetch_add(1, SeqCst);
        let noted = op(&result).into().map(|op| Call { called, returned, op });
        self.calls.lock().extend(noted);
        result
    }
    pub(crate) fn history(&self) -> Vec<Call<O>> {
        std::mem::take(&mut *self.calls.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register that threads write and read.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Register(u32);
    #[derive(Clone, Copy, Debug)]
    enum Op {
        Write(u32),
        Read(u32),
    }
    use Op::{Read, Write};
    impl Spec for Register {
        type Op = Op;
        fn allows(&mut self, op: &Op) -> bool {
            match op {
                Write(value) => self.0 = *value,
                Read(value) => return self.0 == *value,
            }
            true
        }
    }
    fn history(calls: &[(u64, u64, Op)]) -> Vec<Call<Op>> {
        calls
            .iter()
            .map(|(called, returned, op)| Call { called: *called, returned: *returned, op: *op })
            .collect()
    }

    #[test]
    fn linearizability_checker_rejects_non_linearizable_histories() {
        let good: [&[_]; 4] = [
            &[],
            &[(0, 1, Write(1)), (2, 3, Read(1))],
            // A read concurrent with the write may return either value; a later read returns the new value.
            &[(0, 9, Write(1)), (1, 2, Read(0)), (3, 4, Read(1)), (5, 6, Read(1))],
            &[(0, 5, Write(1)), (1, 6, Write(2)), (7, 8, Read(1)), (9, 10, Read(1))],
        ];
        for calls in good {
            assert_eq!(check(&Register(0), &history(calls)), Ok(()), "{calls:?}");
        }
        let bad: [(&[_], usize); 4] = [
            (&[(0, 1, Read(1))], 0),
            (&[(0, 1, Write(1)), (2, 3, Read(0))], 1),
            // One thread reads the new value and then the old one.
            (&[(0, 9, Write(1)), (1, 2, Read(1)), (3, 4, Read(0))], 2),
            (&[(0, 5, Write(1)), (1, 6, Write(2)), (7, 8, Read(1)), (9, 10, Read(2))], 3),
        ];
        for (calls, culprit) in bad {
            assert_eq!(check(&Register(0), &history(calls)), Err(culprit), "{calls:?}");
        }
    }

    /// Without the cache of visited states, this search would take practically forever.
    #[test]
    fn linearizability_checker_handles_hundreds_of_overlapping_calls() {
        let calls = |last: u32| {
            let reads = (0..200_u64).map(|i| (i, i + 4, if i % 4 == 0 { Write(0) } else { Read(0) }));
            let mut calls = history(&reads.collect::<Vec<_>>());
            calls.push(Call { called: 300, returned: 301, op: Read(last) });
            calls
        };
        assert_eq!(check(&Register(0), &calls(0)), Ok(()));
        assert_eq!(check(&Register(0), &calls(1)), Err(200));
    }
}
