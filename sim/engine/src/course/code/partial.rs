//! The lab `partial`, in which a student chooses the slab that serves an allocation.

use super::reference::partial::Exercise;
use super::run::{PolicyFailure, run};
use super::streams::growing_and_shrinking_cache;
use super::verdict::{Check, Verdict};
use crate::{Policy, Stream};

const LAB: &str = "partial";

/// The cost of a policy so far, with one value after each operation.
struct Costs {
    /// The number of slabs that the policy had after each operation.
    slabs: Vec<u64>,
    /// The number of times that the policy inspected a slab.
    inspections: u64,
}

impl Costs {
    fn of<P: Policy>(stream: &Stream) -> Result<Self, PolicyFailure> {
        let mut costs = Self { slabs: vec![], inspections: 0 };
        run::<P>(stream, |_, model| {
            let (slabs, _) = model.cache(0).expect("the stream must have a cache");
            costs.slabs.push(slabs.count());
            costs.inspections = slabs.inspections();
        })?;
        Ok(costs)
    }
    fn sum(&self) -> u64 {
        self.slabs.iter().sum()
    }
}

/// Runs a student's policy, which chooses a partial slab for each allocation, and returns a verdict on it.
pub fn partial<P: Policy>(seed: u32) -> Verdict {
    let stream = growing_and_shrinking_cache(LAB, seed);
    let Ok(reference) = Costs::of::<Exercise>(&stream) else {
        unreachable!("the reference solution must serve every request")
    };
    let student = match Costs::of::<P>(&stream) {
        Ok(student) => student,
        Err(broken) => return Verdict::verdict_on_broken_invariant::<P>(LAB, seed, &stream, broken),
    };
    let n = stream.operations as f64;
    let (mean_slabs, bound) = (student.sum() as f64 / n, reference.sum() as f64 / n * 1.03);
    let inspections_per_operation = student.inspections as f64 / n;
    let remaining_slabs = student.slabs.last().copied().unwrap_or(0);
    let checks = vec![
        Check::new(
            format!("the mean number of slabs is at most {bound:.1}"),
            format!("{mean_slabs:.1}"),
            mean_slabs <= bound,
        ),
        Check::new(
            "slabs inspected and moved per operation: at most 6 on average",
            format!("{inspections_per_operation:.1}"),
            inspections_per_operation <= 6.0,
        ),
        Check::new(
            "the policy frees all slabs when all objects are free",
            format!("{remaining_slabs} slabs"),
            remaining_slabs == 0,
        ),
    ];
    // The operation after which the policy's number of slabs exceeds the reference's number by the most.
    let excess =
        student.slabs.iter().zip(&reference.slabs).map(|(student, other)| student.saturating_sub(*other));
    let worst_operation = excess
        .zip(1..)
        .max_by_key(|(excess, operation)| (*excess, u64::MAX - operation))
        .map(|(_, operation)| operation);
    Verdict::judge_costs::<P>(LAB, seed, &stream, checks, worst_operation)
}
