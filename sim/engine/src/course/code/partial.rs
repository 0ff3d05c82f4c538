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
    looks: u64,
}

impl Costs {
    fn of<P: Policy>(stream: &Stream) -> Result<Self, PolicyFailure> {
        let mut costs = Self { slabs: vec![], looks: 0 };
        run::<P>(stream, |_, model| {
            let (slabs, _) = model.cache(0).expect("the stream has a cache");
            costs.slabs.push(slabs.count());
            costs.looks = slabs.looks();
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
    let own = match Costs::of::<P>(&stream) {
        Ok(own) => own,
        Err(broken) => return Verdict::broken::<P>(LAB, seed, &stream, broken),
    };
    let n = stream.operations as f64;
    let (mean, bound) = (own.sum() as f64 / n, reference.sum() as f64 / n * 1.03);
    let looks = own.looks as f64 / n;
    let left = own.slabs.last().copied().unwrap_or(0);
    let costs = vec![
        Check::new(format!("mean number of slabs: at most {bound:.1}"), format!("{mean:.1}"), mean <= bound),
        Check::new(
            "slabs inspected and moved per operation: at most 6 on average",
            format!("{looks:.1}"),
            looks <= 6.0,
        ),
        Check::new(
            "the policy frees all slabs when all objects are free",
            format!("{left} slabs"),
            left == 0,
        ),
    ];
    // The operation after which the policy has the most slabs beyond the reference's.
    let more = own.slabs.iter().zip(&reference.slabs).map(|(own, other)| own.saturating_sub(*other));
    let worst = more.zip(1..).max_by_key(|(more, at)| (*more, u64::MAX - at)).map(|(_, at)| at);
    Verdict::costed::<P>(LAB, seed, &stream, costs, worst)
}
