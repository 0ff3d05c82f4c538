//! Estimates, from the kernel's tables, how many slabs are empty and how many free objects CPUs hold.
//!
//! A shrink moves free objects from CPUs back to slabs, and frees the slabs that are then empty. The kernel's tables
//! count neither empty slabs nor free objects that CPUs hold, so the estimate consists of bounds:
//!
//! - *Empty slabs of a node*: a node keeps an empty slab only while it has fewer than `min_partial` slabs
//!   with free objects. Upper bounds for the number of empty slabs are `min_partial`, the number of partial slabs, and
//!   the number of free objects divided by the objects per slab. If a node has more partial slabs than these slabs have
//!   objects in use, at least the surplus slabs are empty.
//! - *Slabs of CPUs* (up to 6.19): each slab of a CPU may be empty.
//! - *Sheaves* (since 6.18 for two caches, since 7.0 for all): the tables count objects in sheaves as in use.
//!   A shrink empties a slab only if each of its objects is free or in a sheaf, and at least one is in a sheaf.

use super::source::{Cache, Snapshot};
use crate::trace::MAX_SCANNED_PARTIAL_SLABS;
use serde::Serialize;
use uslab::{Geometry, OrderRule};

/// The largest number of full sheaves that a node keeps.
const BARN: u64 = 10;

/// Lower and upper bounds of a number that is not known exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bounds {
    /// The lower bound of the number.
    pub least: u64,
    /// The upper bound of the number.
    pub most: u64,
}

impl std::ops::AddAssign for Bounds {
    fn add_assign(&mut self, other: Self) {
        self.least += other.least;
        self.most += other.most;
    }
}

/// The facts about the kernel's machine on which estimates depend.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The largest number of CPUs that the machine can have.
    pub cpus: u64,
    /// `true` if no table contains the number of CPUs, so that it is a guess.
    pub cpus_guessed: bool,
    /// The number of nodes.
    pub nodes: u64,
    /// The page size in bytes.
    pub page_size: u64,
    /// The version of the kernel, as major and minor number.
    pub version: Option<(u32, u32)>,
    /// `true` if the kernel uses the old allocator SLAB.
    pub is_slab: bool,
}

impl Machine {
    /// Returns the facts about the machine from a snapshot; `cpus` is the number of CPUs that the user gave,
    /// if any.
    pub fn of(snapshot: &Snapshot, cpus: Option<u32>) -> Self {
        let known = cpus.or(snapshot.cpus);
        let version = snapshot.kernel.as_deref().and_then(|release| {
            let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        });
        Self {
            cpus: known.unwrap_or_else(|| cpus_from_slab_orders(snapshot)).into(),
            cpus_guessed: known.is_none(),
            nodes: snapshot.nodes.max(1),
            page_size: snapshot.page_size,
            version,
            is_slab: snapshot.is_slab,
        }
    }

    /// Returns the largest number of sheaves with objects that a cache can have. Each CPU has three sheaves: the main
    /// sheaf, the spare sheaf, and a sheaf for objects that wait for a grace period. Each node has full sheaves in its
    /// barn.
    pub(super) fn sheaves(&self) -> u64 {
        3 * self.cpus + BARN * self.nodes
    }

    /// Returns Linux's rule for the order of slabs, if the kernel uses this rule.
    pub fn rule(&self) -> Option<OrderRule> {
        let known = !self.is_slab && self.page_size == uslab_buddy::PAGE_SIZE as u64;
        known.then(|| OrderRule::for_cpus(self.cpus as u32))
    }
}

/// Returns the largest number of CPUs for which the rule gives the orders in the table. The rule uses only the bit
/// length of the number of CPUs.
fn cpus_from_slab_orders(snapshot: &Snapshot) -> u32 {
    let matched = |cpus: u32| {
        let rule = OrderRule::for_cpus(cpus);
        let fits = |cache: &&Cache| {
            let row = &cache.row;
            Geometry::new(row.object_size as usize, 0, &rule)
                .is_ok_and(|geometry| (1_u64 << geometry.order().get()) == row.pages_per_slab)
        };
        snapshot.caches.iter().filter(fits).count()
    };
    let most = (1..=13).map(|bits| (1_u32 << bits) - 1).max_by_key(|cpus| (matched(*cpus), u32::MAX - cpus));
    most.unwrap_or(1)
}

/// The slabs and objects of a cache that CPUs and nodes hold outside of the partial lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Layers {
    /// The largest possible number of slabs that CPUs hold as current or partial slabs.
    pub cpu_slabs: u64,
    /// `true` if the kernel counted the CPUs' slabs.
    pub cpu_slabs_counted: bool,
    /// The number of objects in a full sheaf; 0 if the cache has no sheaves.
    pub sheaf_capacity: u64,
    /// The largest number of objects in the sheaves of CPUs and nodes, or in the arrays of SLAB.
    pub parked: u64,
}

impl Cache {
    /// Returns the size in bytes of a slab of the cache's usual order.
    pub fn slab_bytes(&self, page_size: u64) -> u64 {
        self.row.pages_per_slab * page_size
    }

    /// Returns the number of free objects in partial slabs.
    pub fn holes(&self) -> u64 {
        self.row.objects.saturating_sub(self.row.active_objects)
    }

    /// Returns `true` if the kernel may have estimated the number of objects in use ([`MAX_SCANNED_PARTIAL_SLABS`]).
    pub fn is_estimated(&self, machine: &Machine) -> bool {
        let estimates = !machine.is_slab && machine.version.is_none_or(|version| version >= (6, 10));
        let is_counted = self.attributes.as_ref().is_some_and(|a| a.objects.and(a.partial).is_some());
        // Each partial slab has a free object.
        estimates && !is_counted && self.row.slabs.min(self.holes()) > MAX_SCANNED_PARTIAL_SLABS
    }

    /// Returns the object size in bytes that the cache's user requested.
    pub fn object_size(&self) -> u64 {
        let size = self.attributes.as_ref().and_then(|attributes| attributes.object_size);
        size.filter(|size| *size > 0).unwrap_or(self.row.object_size)
    }

    /// Returns the capacity of a sheaf by the rule of Linux 7.0, which depends on the distance between
    /// objects.
    fn usual_sheaf_capacity(&self) -> u64 {
        match self.row.object_size {
            4096.. => 4,
            1024.. => 12,
            256.. => 28,
            _ => 60,
        }
    }

    /// Returns the largest number of partial slabs of one CPU, by the rules of Linux 5.16 to 6.17 or by the
    /// earlier rules.
    pub(super) fn usual_cpu_partial(&self, version: Option<(u32, u32)>) -> u64 {
        let size = self.row.object_size;
        let by_size = |classes: [u64; 4]| match size {
            4096.. => classes[0],
            1024.. => classes[1],
            256.. => classes[2],
            _ => classes[3],
        };
        match version {
            // The earlier rules limit the number of free objects; each partial slab has at least one.
            Some(version) if version < (5, 16) => by_size([2, 6, 13, 30]),
            _ => (2 * by_size([6, 24, 52, 120])).div_ceil(self.row.objects_per_slab.max(1)),
        }
    }

    /// Returns the largest numbers of slabs and objects of a cache that CPUs and nodes can hold.
    pub fn layers(&self, machine: &Machine) -> Layers {
        let attributes = self.attributes.clone().unwrap_or_default();
        let Machine { cpus, nodes, version, .. } = *machine;
        let mut layers = Layers::default();
        if machine.is_slab {
            let arrays = cpus * self.tunables.limit + nodes * self.tunables.batch * self.tunables.shared;
            layers.parked = arrays.min(self.row.active_objects);
            return layers;
        }
        let is_new = version.is_some_and(|version| version >= (7, 0));
        layers.sheaf_capacity = match attributes.sheaf_capacity {
            Some(capacity) => capacity,
            None if is_new || version.is_none() && self.attributes.is_none() => self.usual_sheaf_capacity(),
            None => 0,
        };
        layers.parked = (layers.sheaf_capacity * machine.sheaves()).min(self.row.active_objects);
        // The count `cpu_slabs` omits the partial slabs of a CPU without a current slab.
        let counted = attributes.cpu_slabs.zip(attributes.slabs_cpu_partial);
        layers.cpu_slabs_counted = counted.is_some();
        layers.cpu_slabs = match counted {
            Some((slabs, partial)) => slabs.min(cpus) + partial,
            None if is_new => 0,
            None => cpus * (1 + self.usual_cpu_partial(version)),
        };
        layers.cpu_slabs = layers.cpu_slabs.min(self.row.slabs);
        layers
    }

    /// Returns the number of slabs that a shrink frees if no other thread uses the cache at that time.
    pub fn shrink(&self, machine: &Machine) -> Bounds {
        let row = &self.row;
        let layers = self.layers(machine);
        let per_slab = self.smallest_slab_objects(machine);
        // The objects that are certainly in use, and those that may be free.
        let (in_use, holes) = match self.is_estimated(machine) {
            true => (row.slabs, row.objects),
            false => (row.active_objects, self.holes()),
        };
        let attributes = self.attributes.as_ref();
        let counts = attributes.and_then(|a| a.partial.zip(a.objects_partial));
        let partial = counts.map_or(row.slabs, |(partial, _)| partial);
        let (mut empty, mut freed) = (holes / per_slab, 0);
        if !machine.is_slab {
            let min_partial = attributes.and_then(|a| a.min_partial);
            let min_partial =
                min_partial.unwrap_or_else(|| u64::from(row.object_size.max(1).ilog2() / 2).clamp(5, 10));
            empty = empty.min(min_partial * machine.nodes).min(partial);
            freed = layers.cpu_slabs;
        }
        let parked = ((holes - empty * per_slab + layers.parked) / per_slab).min(layers.parked);
        let most = (empty + freed + parked).min(row.slabs);
        let certain = counts.map_or(0, |(partial, objects)| partial.saturating_sub(objects));
        let certain = certain.max(row.slabs.saturating_sub(row.active_slabs));
        let least = certain.max(row.slabs.saturating_sub(in_use)).min(most);
        Bounds { least, most }
    }

    /// Returns `true` if some slabs have a lower order than usual, which happens when memory is fragmented.
    pub fn has_small_slabs(&self) -> bool {
        self.row.objects < self.row.slabs * self.row.objects_per_slab
    }

    /// Returns the number of objects in the smallest slab that a cache may have.
    fn smallest_slab_objects(&self, machine: &Machine) -> u64 {
        let size = self.row.object_size.max(1);
        if !self.has_small_slabs() {
            return self.row.objects_per_slab.max(1);
        }
        let least = size.div_ceil(machine.page_size).next_power_of_two() * machine.page_size;
        (least / size).max(1)
    }

    /// Returns the number of bytes that a shrink frees.
    pub fn shrink_bytes(&self, machine: &Machine) -> Bounds {
        let Bounds { least, most } = self.shrink(machine);
        let usual = self.slab_bytes(machine.page_size);
        let small =
            self.row.object_size.max(1).div_ceil(machine.page_size).next_power_of_two() * machine.page_size;
        let small = if self.has_small_slabs() { small.min(usual) } else { usual };
        Bounds { least: least * small, most: most * usual }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slabs::attributes::Attributes;
    use crate::trace::Tunables;
    use uslab::info::Row;

    fn machine(cpus: u64) -> Machine {
        Machine {
            cpus,
            cpus_guessed: false,
            nodes: 1,
            page_size: 4096,
            version: Some((6, 12)),
            is_slab: false,
        }
    }

    fn cache(slabs: u64, active: u64, attributes: Option<Attributes>) -> Cache {
        let row = Row {
            name: "inode".to_owned(),
            active_objects: active,
            objects: slabs * 16,
            object_size: 256,
            objects_per_slab: 16,
            pages_per_slab: 1,
            active_slabs: slabs,
            slabs,
        };
        Cache { row, tunables: Tunables::default(), attributes, aliases: vec![] }
    }

    fn attributes_from_counts(
        partial: u64,
        objects: u64,
        cpu_slabs: u64,
        of_partial: u64,
    ) -> Option<Attributes> {
        Some(Attributes {
            partial: Some(partial),
            objects_partial: Some(objects),
            cpu_slabs: Some(cpu_slabs),
            slabs_cpu_partial: Some(of_partial),
            min_partial: Some(5),
            ..Attributes::default()
        })
    }

    #[test]
    fn shrink_bounds_cover_scattered_holes_and_empty_slabs() {
        // The cache has 1,000 partial slabs with one object in use in each, so at most `min_partial` are empty.
        let spread = cache(1000, 1000, attributes_from_counts(1000, 1000, 0, 0));
        assert_eq!(spread.shrink(&machine(4)), Bounds { least: 0, most: 5 });
        // The cache has more partial slabs than objects in use in them, and the 57 free objects fill three slabs.
        let empty = cache(10, 103, attributes_from_counts(5, 3, 0, 0));
        assert_eq!(empty.shrink(&machine(4)), Bounds { least: 2, most: 3 });
        // All slabs may belong to CPUs: current slabs, and partial slabs of CPUs without a current one.
        let cpus = cache(15, 240, attributes_from_counts(0, 0, 6, 14));
        assert_eq!(cpus.shrink(&machine(4)), Bounds { least: 0, most: 15 });
        let cpus = cache(15, 240, attributes_from_counts(0, 0, 3, 1));
        assert_eq!(cpus.shrink(&machine(4)), Bounds { least: 0, most: 4 });
    }

    #[test]
    fn shrink_can_free_slabs_held_only_by_sheaves() {
        let new = Machine { version: Some((7, 2)), ..machine(2) };
        let attributes =
            Attributes { sheaf_capacity: Some(28), ..attributes_from_counts(50, 50, 0, 0).unwrap() };
        let cache = cache(50, 50, Some(attributes));
        // Each slab has one object in use, and sheaves may hold all of the objects in use.
        assert_eq!(cache.layers(&new).parked, 50);
        assert_eq!(cache.shrink(&new), Bounds { least: 0, most: 50 });
    }

    /// Regression test: the number of objects in use was treated as exact although slabinfo had only estimated it.
    #[test]
    fn estimated_holes_do_not_narrow_the_shrink_bounds() {
        let mut cache = cache(20_000, 15_000, None);
        let machine = |version| Machine { version, ..machine(4) };
        // 6.9 counts the objects of all slabs: 5,000 slabs are certainly empty. CPUs and the node hold at most 37.
        assert!(!cache.is_estimated(&machine(Some((6, 9)))));
        assert_eq!(cache.shrink(&machine(Some((6, 9)))), Bounds { least: 37, most: 37 });
        for version in [Some((6, 10)), None] {
            assert!(cache.is_estimated(&machine(version)));
            assert_eq!(cache.shrink(&machine(version)).least, 0);
        }
        // No slab is partial, or few slabs are.
        cache.row.active_objects = cache.row.objects - 10_000;
        assert!(!cache.is_estimated(&machine(None)));
    }

    #[test]
    fn slab_statistics_count_empty_slabs() {
        let mut cache = cache(10, 40, None);
        cache.row.active_slabs = 7;
        cache.tunables = Tunables { limit: 8, batch: 4, shared: 0 };
        let slab = Machine { is_slab: true, ..machine(2) };
        assert_eq!(cache.shrink(&slab), Bounds { least: 3, most: 8 });
    }
}
