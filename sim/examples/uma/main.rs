//! FreeBSD's allocator UMA as a user-defined design. Try `cargo run --release -p uslab-sim --example uma -- replay
//! --design uma,slub`.
//!
//! A zone gives each CPU two buckets: the CPU allocates from one bucket and frees to the other. A CPU exchanges buckets
//! with the zone; if the zone has no full bucket, the CPU fills one from slabs. The design follows uma(9) and the
//! published description of the zone allocator. The design has one domain and no reserve, and contention does not make
//! its buckets larger.

use serde::Deserialize;
use std::mem::{swap, take};
use uslab_engine::policy::*;

const PARTIAL: u8 = 0;
const FREE: u8 = 1;
const FULL: u8 = 2;

/// The options under FreeBSD's `vm.uma`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Knobs {
    bucket_size: Option<usize>,
}

#[derive(Debug)]
struct UmaModel {
    entries: usize,
    /// For each CPU, the bucket from which it allocates, and the bucket to which it frees.
    cpus: Vec<[Vec<Object>; 2]>,
    zone: Vec<Vec<Object>>,
}

impl Policy for UmaModel {
    const NAME: &'static str = "uma";
    const DESCRIPTION: &'static str = "a model of FreeBSD's UMA: two buckets a CPU, full ones in the zone";
    type Knobs = Knobs;
    const LISTS: &'static [&'static str] = &["partial", "free", "full"];

    fn new(_: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        let by_size = [(64, 256), (128, 128), (256, 64), (512, 32), (1024, 16), (2048, 8), (3072, 4)];
        let entries = by_size.iter().find(|(size, _)| geometry.stride() <= *size).map_or(2, |(_, n)| *n);
        let cpus = vec![<_>::default(); cpus.count() as usize];
        Self { entries: knobs.bucket_size.unwrap_or(entries).max(1), cpus, zone: vec![] }
    }
    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let [from, to] = &mut self.cpus[op.cpu as usize];
        if from.is_empty() && !to.is_empty() {
            swap(from, to);
            op.did(CostEvent::Swap);
        } else if from.is_empty() {
            *from = self.zone.pop().inspect(|_| op.did(CostEvent::Exchange)).unwrap_or_default();
            while from.len() < self.entries
                && let Some(slab) =
                    op.slabs.first(PARTIAL).or(op.slabs.first(FREE)).or_else(|| op.make(FREE).ok())
            {
                from.extend(op.slabs.take(slab));
                let list = if op.slabs.free(slab) == 0 { FULL } else { PARTIAL };
                op.slabs.relist(slab, list, End::Front);
                op.did(CostEvent::Refill(1));
            }
        }
        from.pop().ok_or(NoMemory)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        let [from, to] = &mut self.cpus[op.cpu as usize];
        if from.len() < self.entries {
            return from.push(object);
        }
        if to.len() == self.entries {
            self.zone.push(take(to));
            op.did(CostEvent::Exchange);
        }
        to.push(object);
    }
    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        let cpus = self.cpus.iter_mut().flat_map(take);
        let objects: Vec<_> = cpus.chain(self.zone.drain(..)).flatten().collect();
        for object in &objects {
            op.slabs.put(*object);
            let list = if op.slabs.is_empty(object.slab) { FREE } else { PARTIAL };
            op.slabs.relist(object.slab, list, End::Back);
        }
        while let Some(slab) = op.slabs.first(FREE) {
            op.release(slab);
        }
        objects.len() as u64
    }
    fn held(&self) -> Vec<Held> {
        let cpus = self.cpus.iter().flatten().zip(0..).map(|(bucket, at)| (Holder::Cpu(at / 2), bucket));
        let all = cpus.chain(self.zone.iter().map(|bucket| (Holder::Shared, bucket)));
        all.map(|(holder, bucket)| Held::new(holder, "bucket", self.entries, bucket)).collect()
    }
}

#[cfg(test)]
mod tests;

fn main() -> std::process::ExitCode {
    uslab_sim::cli::main_with_policy::<UmaModel>()
}
