//! Generates the operations of a workload from distributions.

use super::WorkloadOps;
use super::arrivals::{ArrivalState, Arrivals};
use super::error::SpecError;
use super::lifetimes::Lifetimes;
use super::op::Op;
use super::recorded::MAX_ALIGN;
use super::rng::Rng;
use super::sizes::Sizes;
use core::alloc::Layout;
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// A workload that distributions and a seed define.
///
/// In each tick, the blocks whose lifetime ends are freed, oldest first; then the new blocks are allocated. The
/// workload ends after `operations` operations; the driver must free the blocks that are still live.
///
/// ```
/// use uslab_lab::workload::{Op, Workload};
///
/// let workload = Workload { operations: 1000, ..Workload::default() };
/// let ops: Vec<Op> = workload.generate()?.collect();
/// assert_eq!(ops.len(), 1000);
/// assert!(matches!(ops[0], Op::Alloc { id: 0, .. }));
/// assert_eq!(ops, workload.generate()?.collect::<Vec<_>>());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The distribution of block sizes.
    pub sizes: Sizes,
    /// The distribution of block lifetimes.
    pub lifetimes: Lifetimes,
    /// The arrival pattern.
    pub arrivals: Arrivals,
    /// The alignment of all blocks, in bytes.
    pub align: usize,
    /// The number of operations, which are allocations and frees together.
    pub operations: u64,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Default for Workload {
    /// Returns the fragmentation demo of the tutorial "Memory Allocators from Scratch": 10,000 operations, sizes of 16
    /// to 1024 bytes, mostly short-lived blocks, and one arrival per tick.
    fn default() -> Self {
        let message = "the defaults are right";
        Self {
            sizes: "uniform:16..1024".parse().expect(message),
            lifetimes: "bimodal:20,2000,0.1".parse().expect(message),
            arrivals: "steady".parse().expect(message),
            align: 16,
            operations: 10_000,
            seed: 0,
        }
    }
}

impl Workload {
    /// Returns the operations that this workload generates.
    ///
    /// # Errors
    /// Fails if the alignment is invalid.
    pub fn generate(&self) -> Result<GeneratedOperations, SpecError> {
        if !self.align.is_power_of_two() || self.align > MAX_ALIGN {
            return Err(SpecError {
                kind: "alignment",
                text: self.align.to_string(),
                reason: "not an alignment".to_owned(),
                expected: "a power of two up to 2^30",
            });
        }
        Ok(GeneratedOperations {
            rng: Rng::new(self.seed),
            sizes: self.sizes.clone(),
            lifetimes: self.lifetimes.clone(),
            arrival_state: self.arrivals.begin(),
            align: self.align,
            remaining: self.operations,
            next_id: 0,
            current_tick: 0,
            pending_arrivals: None,
            deaths: BinaryHeap::new(),
        })
    }
    /// Returns the operations of this workload in the general type [`WorkloadOps`].
    ///
    /// # Errors
    /// Fails in the cases that [`generate`](Self::generate) documents.
    pub fn ops(&self) -> Result<WorkloadOps, SpecError> {
        Ok(WorkloadOps::GeneratedOperations(Box::new(self.generate()?)))
    }
}

/// The operations that a [`Workload`] generates.
#[derive(Clone, Debug)]
pub struct GeneratedOperations {
    rng: Rng,
    sizes: Sizes,
    lifetimes: Lifetimes,
    arrival_state: ArrivalState,
    align: usize,
    remaining: u64,
    /// The number that the next block gets.
    next_id: u64,
    current_tick: u64,
    /// The number of blocks that are still to arrive in the current tick; `None` before the first operation.
    pending_arrivals: Option<u64>,
    /// The live blocks ordered by the time of their free, soonest first; blocks with the same time are ordered by age.
    deaths: BinaryHeap<Reverse<(u64, u64)>>,
}

impl GeneratedOperations {
    fn pop_expired_object(&mut self) -> Option<u64> {
        let Reverse((tick, id)) = *self.deaths.peek()?;
        if tick > self.current_tick {
            return None;
        }
        self.deaths.pop();
        Some(id)
    }
}

impl Iterator for GeneratedOperations {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        self.remaining = self.remaining.checked_sub(1)?;
        loop {
            if let Some(id) = self.pop_expired_object() {
                return Some(Op::Free { id });
            }
            let coming = match self.pending_arrivals {
                Some(coming) => coming,
                None => self.arrival_state.arrivals_at(self.current_tick, &mut self.rng),
            };
            if coming > 0 {
                self.pending_arrivals = Some(coming - 1);
                let id = self.next_id;
                self.next_id += 1;
                let size = self.sizes.sample(&mut self.rng);
                if let Some(ticks) = self.lifetimes.sample(&mut self.rng) {
                    self.deaths.push(Reverse((self.current_tick + ticks, id)));
                }
                // Sizes and alignments were already checked, so each layout is valid.
                return Some(Op::Alloc { id, layout: Layout::from_size_align(size, self.align).ok()? });
            }
            self.pending_arrivals = None;
            // The generator skips to the next arrival or death, which may be far off.
            let arrival = self.arrival_state.next_arrival(self.current_tick);
            self.current_tick = self.deaths.peek().map_or(arrival, |Reverse((death, _))| arrival.min(*death));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn generate(workload: &Workload) -> Vec<Op> {
        workload.generate().unwrap().collect()
    }

    #[test]
    fn each_generated_free_names_a_live_block() {
        for (lifetimes, arrivals) in [
            ("bimodal:20,forever,0.1", "steady"),
            ("exponential:50", "burst:30,100"),
            ("fixed:1", "poisson:0.3"),
        ] {
            let workload = Workload {
                lifetimes: lifetimes.parse().unwrap(),
                arrivals: arrivals.parse().unwrap(),
                ..Workload::default()
            };
            let mut live_ids = BTreeSet::new();
            for op in generate(&workload) {
                match op {
                    Op::Alloc { id, layout } => {
                        assert!(live_ids.insert(id) && layout.align() == 16 && layout.size() >= 16);
                    }
                    Op::Free { id } => assert!(live_ids.remove(&id)),
                    Op::Resize { .. } => unreachable!("no operation is generated"),
                }
            }
            assert!(live_ids.len() < 10_000);
        }
    }

    #[test]
    fn blocks_are_created_and_freed_at_their_ticks() {
        let workload = Workload {
            sizes: "fixed:8".parse().unwrap(),
            lifetimes: "fixed:2".parse().unwrap(),
            operations: 7,
            ..Workload::default()
        };
        let ids: Vec<_> = generate(&workload)
            .into_iter()
            .map(|op| match op {
                Op::Alloc { id, .. } => ('a', id),
                Op::Free { id } | Op::Resize { id, .. } => ('f', id),
            })
            .collect();
        assert_eq!(ids, [('a', 0), ('a', 1), ('f', 0), ('a', 2), ('f', 1), ('a', 3), ('f', 2)]);
    }

    /// Regression test: the generator processed every single tick, so 2^32 ticks between two blocks took too long.
    #[test]
    fn empty_ticks_are_skipped() {
        let workload = Workload {
            lifetimes: "fixed:3".parse().unwrap(),
            arrivals: "burst:1,4294967296".parse().unwrap(),
            ..Workload::default()
        };
        let ops = generate(&workload);
        let alternates = |(i, op): (usize, &Op)| matches!(op, Op::Alloc { .. }) == i.is_multiple_of(2);
        assert!(ops.len() == 10_000 && ops.iter().enumerate().all(alternates));
    }

    #[test]
    fn workload_of_a_seed_never_changes() {
        let print = |seed| {
            let workload = Workload {
                sizes: "lognormal:100,1.2".parse().unwrap(),
                arrivals: "poisson:2".parse().unwrap(),
                seed,
                ..Workload::default()
            };
            // The test hashes the text of all operations with FNV-1a.
            generate(&workload)
                .iter()
                .flat_map(|op| format!("{op:?}").into_bytes())
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
                })
        };
        // The recorded hashes must never change, on any machine.
        assert_eq!((print(1), print(2)), GOLDEN_HASHES);
    }
    const GOLDEN_HASHES: (u64, u64) = (716_922_117_284_149_679, 5_789_594_536_433_968_848);

    #[test]
    fn invalid_alignment_is_refused() {
        let error = Workload { align: 24, ..Workload::default() }.generate().unwrap_err();
        assert_eq!(
            error.to_string(),
            "alignment \"24\": not an alignment; expected a power of two up to 2^30"
        );
        assert!(Workload { operations: 0, ..Workload::default() }.generate().unwrap().next().is_none());
    }
}
