//! Finds the reason why a cache's number of objects changed differently in the replay and in the kernel.

use super::KernelRow;
use crate::output::{grouped, signed};
use serde::Serialize;

/// The reason why the change of a cache's active objects differs between the kernel and the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The kernel freed objects without an event (`kfree_rcu`, bulk frees). The trace reveals a free without an event
    /// only when the address is allocated again, or when its page is freed. Until then, an object freed without an
    /// event counts as in use in the replay.
    FreedWithoutEvent,
    /// The kernel allocated objects without an event (`kmem_cache_alloc_bulk`). The trace reveals an allocation without
    /// an event only when the object is freed; until then, the replay does not know the object.
    AllocatedWithoutEvent,
    /// The kernel counts every object of a slab that a CPU holds as active, including free objects. The kernel's count
    /// exceeds the replay's by at most one slab's objects for each CPU.
    CpuSlabs,
    /// The cause of the difference is not known.
    Unknown,
}

impl Cause {
    /// Returns the reason why the two changes in `row` differ, or `None` if they are equal. The parameter
    /// `per_slab` is the number of objects in a slab of the cache, and `cpus` is the number of CPUs of the
    /// traced machine.
    pub(crate) fn of(row: &KernelRow, per_slab: u64, cpus: u64) -> Option<Self> {
        let difference = row.objects[1] - row.objects[0];
        match difference {
            0 => None,
            1.. if row.hidden_frees > 0 => Some(Self::FreedWithoutEvent),
            ..0 if row.hidden_allocs > 0 => Some(Self::AllocatedWithoutEvent),
            _ if difference.unsigned_abs() < (per_slab * cpus).max(1) => Some(Self::CpuSlabs),
            _ => Some(Self::Unknown),
        }
    }
}

/// Returns a sentence that explains a row in which the kernel and the replay differ.
pub(super) fn explained(row: &KernelRow, cause: Cause) -> String {
    let name = format!("{} {}", row.cache, signed(row.objects[1] - row.objects[0]));
    match cause {
        Cause::FreedWithoutEvent => {
            let by = match row.hidden_free_site.as_deref() {
                Some(site) => format!(" (allocated by {site})"),
                None => String::new(),
            };
            format!(
                "{name}: the kernel freed objects{by} without an event (kfree_rcu or bulk frees). {} such frees are visible, because an address was reused or a page was freed; the replay still counts the other objects as in use.",
                grouped(row.hidden_frees)
            )
        }
        Cause::AllocatedWithoutEvent => format!(
            "{name}: the kernel allocated objects without an event (kmem_cache_alloc_bulk). {} such allocations are visible, \
             because their objects were freed; the replay does not know the objects that are still in use.",
            grouped(row.hidden_allocs)
        ),
        Cause::CpuSlabs => {
            format!("{name}: the kernel counts every object of a CPU's slab as active, even if it is free.")
        }
        Cause::Unknown => format!("{name}: no cause is known."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(objects: [i64; 2], hidden: [u64; 2]) -> KernelRow {
        KernelRow {
            cache: "c".to_owned(),
            objects,
            slabs: [0, 0],
            hidden_allocs: hidden[0],
            hidden_frees: hidden[1],
            hidden_free_site: None,
            cause: None,
        }
    }

    #[test]
    fn mismatch_cause_follows_from_the_trace() {
        let of = |objects, hidden| Cause::of(&row(objects, hidden), 21, 4);
        assert_eq!(of([7, 7], [3, 3]), None);
        assert_eq!(of([540, 581], [0, 2120]), Some(Cause::FreedWithoutEvent));
        assert_eq!(of([1297, 123], [5600, 180]), Some(Cause::AllocatedWithoutEvent));
        assert_eq!(of([4, 0], [0, 0]), Some(Cause::CpuSlabs));
        assert_eq!(of([0, 83], [0, 0]), Some(Cause::CpuSlabs), "less than a slab for each of four CPUs");
        assert_eq!(of([0, 84], [0, 0]), Some(Cause::Unknown));
        // Hidden frees make the replay's count larger than the kernel's, never smaller.
        assert_eq!(of([100, 0], [0, 5]), Some(Cause::Unknown));
    }
}
