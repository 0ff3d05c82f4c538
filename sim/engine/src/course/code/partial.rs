//! The lab `partial`, in which a student chooses the slab that serves an allocation.

use super::reference::partial::Exercise;
use super::run::{PolicyFailure, run};
use super::streams::grows_and_falls;
use super::verdict::{Check, Verdict};
use crate::{Policy, Stream};

const LAB: &str = "partial";

/// Running costs of a policy after each operation.
struct Costs {
    /// The number of slabs after each operation.
    slabs: Vec<u64>,
    /// The total number of times that the policy inspected a slab.
    inspections: u64,
}

impl Costs {
    fn of<P: Policy>(stream: &Stream) -> Result<Self, PolicyFailure> {
        let mut costs = Self { slabs: vec![], inspections: 0 };
        run::<P>(stream, |_, model| {
            let (slabs, _) = model.cache(0).expect("the stream has a cache");
            costs.slabs.push(slabs.count());
            costs.inspections = slabs.inspections();
        })?;
        Ok(costs)
    }
    fn sum(&self) -> u64 {
        self.slabs.iter().sum()
    }
}

/// Judges a student's policy, which chooses the partial slab from which to allocate.
pub fn partial<P: Policy>(seed: u32) -> Verdict {
    let stream = grows_and_falls(LAB, seed);
    let Ok(reference) = Costs::of::<Exercise>(&stream) else {
        unreachable!("the reference solution is complete")
    };
    let student = match Costs::of::<P>(&stream) {
        Ok(student) => student,
        Err(broken) => return Verdict::with_broken_invariant::<P>(LAB, seed, &stream, broken),
    };
    let n = stream.operations as f64;
    let (mean_slabs, bound) = (student.sum() as f64 / n, reference.sum() as f64 / n * 1.03);
    let inspections_per_operation = student.inspections as f64 / n;
    let remaining_slabs = student.slabs.last().copied().unwrap_or(0);
    let checks = vec![
        Check::new(
            format!("mean number of slabs: at most {bound:.1}"),
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
    Verdict::with_costs::<P>(LAB, seed, &stream, checks, worst_operation)
}
