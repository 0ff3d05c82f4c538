//! The state of a machine that a web page draws, as JSON.

use crate::design::{CacheCounts, Design};
use crate::engine::Engine;
pub use crate::levels::Level;
pub use crate::shown::{ShownCache, ShownSlab};
use crate::step::Step;
use crate::stream::{Mark, Stream};
use serde::Serialize;
use uslab_buddy::{Kind, Order};

/// The state of the simulated machine after an operation.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct View {
    /// The number of operations so far.
    pub operation: u64,
    /// The time in the trace, in nanoseconds since its first operation.
    pub time_ns: u64,
    /// The steps of the last operation.
    pub steps: Vec<Step>,
    /// The number of allocations that have failed so far.
    pub failed: u64,
    /// The caches that the stream has used so far, indexed by number.
    pub caches: Vec<SeenCache>,
    /// The caches that the web page requested, slab by slab.
    pub shown: Vec<ShownCache>,
    /// The state of the machine's pages.
    pub pages: Pages,
}

/// A description of a stream before it runs.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct About<'s> {
    /// The stream's title.
    pub title: &'s str,
    /// The number of CPUs.
    pub cpus: u32,
    /// The number of operations.
    pub operations: u64,
    /// The names of the stream's caches, indexed by number.
    pub caches: Vec<&'s str>,
    /// Texts that user space wrote into the trace.
    pub marks: &'s [Mark],
}

impl<'s> From<&'s Stream> for About<'s> {
    fn from(Stream { title, cpus, operations, caches, marks, .. }: &'s Stream) -> Self {
        let caches = caches.iter().map(|cache| cache.name.as_str()).collect();
        Self { title, cpus: *cpus, operations: *operations, caches, marks }
    }
}

/// A cache of the stream, with its counts.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SeenCache {
    /// The cache's name.
    pub name: String,
    /// The number of allocations and frees that the stream has requested so far.
    pub served: u64,
    /// The counts that the design reports for the cache.
    #[serde(flatten)]
    pub counts: CacheCounts,
}

/// Counts of pages.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Pages {
    /// The number of pages that the page allocator manages.
    pub managed: u64,
    /// The number of pages in slabs.
    pub slab: u64,
    /// The number of pages in large kmalloc objects.
    pub large: u64,
    /// The number of pages in blocks that the stream has in use.
    pub blocks: u64,
    /// The number of pages in per-CPU magazines.
    pub per_cpu: u64,
    /// The number of free pages that are committed.
    pub free: u64,
    /// The number of free pages that are not committed.
    pub uncommitted: u64,
    /// The number of free blocks for each migrate type, by order.
    pub orders: Vec<[u32; 3]>,
    /// The number of uncommitted free blocks, by order.
    pub uncommitted_orders: Vec<u32>,
    /// The number of blocks in the per-CPU magazines of each CPU, by order.
    pub cpus: Vec<Vec<u32>>,
    /// The number of blocks in the magazines that all CPUs share, by order.
    pub depot: Vec<u32>,
}

/// The kind of a page of memory, which [`Engine::map`] writes as one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// The page is free, or not committed.
    Free = 0,
    /// The page is in a CPU's magazine of pages.
    PerCpu = 1,
    /// The page is in a slab, or in a large object.
    Slab = 2,
    /// The page is in a block that the stream has in use.
    Block = 3,
}

/// The number of values in [`Engine::sample`] that are sums over all caches.
pub const SUMS: usize = 8;

impl<D: Design> Engine<'_, D> {
    /// Returns the state after the last operation; `steps` are the steps of this operation. The view describes the
    /// caches whose numbers are in `shown` slab by slab.
    pub fn view(&self, steps: Vec<Step>, shown: &[u32]) -> View {
        let cache_view = |cache: u32| SeenCache {
            name: self.stream.caches[cache as usize].name.clone(),
            served: self.served[cache as usize],
            counts: self.design.counts(cache),
        };
        View {
            operation: self.operations(),
            time_ns: self.time_ns(),
            steps,
            failed: self.failed,
            caches: (0..self.caches() as u32).map(cache_view).collect(),
            shown: shown.iter().filter_map(|cache| self.design.show(*cache)).collect(),
            pages: pages_of(&self.design, self.pages_held),
        }
    }

    /// Writes the kind of each page to `buffer`, as one [`PageKind`] per page, up to the last page that was ever used.
    pub fn map(&self, buffer: &mut Vec<u8>) {
        let frames = self.design.pages().frames();
        buffer.clear();
        buffer.resize(frames.len() as usize, PageKind::Free as u8);
        let (mut page, mut end) = (0, 0);
        while page < frames.len() {
            let frame = frames.frame(uslab_buddy::Pfn::new(page));
            let state = frame.state();
            // A page inside no block is in memory that was never committed.
            let pages = if state.kind() == Kind::Inside { 1 } else { state.order().pages() };
            let state_byte = match state.kind() {
                Kind::Inside | Kind::Free => PageKind::Free,
                Kind::PerCpu => PageKind::PerCpu,
                Kind::Allocated if self.design.is_slab(page) => PageKind::Slab,
                Kind::Allocated => PageKind::Block,
            };
            if state_byte != PageKind::Free {
                buffer[page as usize..(page + pages) as usize].fill(state_byte as u8);
                end = page + pages;
            }
            page += pages;
        }
        buffer.truncate(end.next_multiple_of(1 << uslab_buddy::MAX_ORDER) as usize);
    }

    /// Writes the current values of a time line to `buffer`. The first [`SUMS`] values are sums: objects in use,
    /// objects in magazines and depots, free objects in slabs, slabs, and operations served by a depot, a slab, the
    /// pages and the system. After the sums, each cache of the stream has three values, even if it is not used yet:
    /// objects in use, objects in magazines and depots, and operations.
    pub fn sample(&self, buffer: &mut Vec<f64>) {
        buffer.clear();
        buffer.resize(SUMS + 3 * self.stream.caches.len(), 0.0);
        let paths = self.design.paths();
        for (place, n) in buffer[4..].iter_mut().zip([paths.depot, paths.slab, paths.pages, paths.commit]) {
            *place = n as f64;
        }
        for position in 0..self.caches() {
            let first_sum = SUMS + 3 * position;
            buffer[first_sum + 2] = self.served[position] as f64;
            let counts = self.design.counts(position as u32);
            let cached = counts.in_magazines + counts.in_depot;
            for (place, n) in [
                (0, counts.used),
                (1, cached),
                (2, counts.free_in_slabs),
                (3, counts.slabs()),
                (first_sum, counts.used),
                (first_sum + 1, cached),
            ] {
                buffer[place] += n as f64;
            }
        }
    }
}

/// Counts the pages of a design by their use; `held` pages are in blocks that the stream has in use.
pub(crate) fn pages_of(design: &impl Design, held: u64) -> Pages {
    let info = design.pages().info();
    let large = design.large_pages();
    // SAFETY: the caller is the design's only user, and it runs on this thread.
    let per_cpu = unsafe { design.pages().per_cpu_view() };
    let uncommitted = info.zones.iter().map(|zone| u64::from(zone.uncommitted)).sum();
    // Memory is committed in blocks of the largest order.
    let mut uncommitted_orders = vec![0; usize::from(Order::MAX.get()) + 1];
    for zone in &info.zones {
        let mut left = zone.uncommitted;
        for (order, blocks) in zone.blocks.iter().enumerate().rev() {
            let n = (left >> order).min(blocks.iter().sum());
            uncommitted_orders[order] += n;
            left -= n << order;
        }
    }
    let orders = (0..=usize::from(Order::MAX.get())).map(|order| {
        let mut sum = [0; 3];
        for zone in &info.zones {
            sum.iter_mut().zip(zone.blocks[order]).for_each(|(sum, blocks)| *sum += blocks);
        }
        sum
    });
    Pages {
        managed: info.managed(),
        slab: info.allocated() - held - large,
        large,
        blocks: held,
        per_cpu: info.per_cpu(),
        free: info.free() - uncommitted,
        uncommitted,
        orders: orders.collect(),
        uncommitted_orders,
        cpus: per_cpu.cpus,
        depot: per_cpu.depot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::designs::{NoPolicy, Spec, Visitor, all};
    use uslab_magazine::Path;

    struct Samples<'s>(&'s Stream, Path);

    impl Visitor for Samples<'_> {
        type Out = ();
        /// Compares the sums of each sample with sums over the views and steps of every operation.
        fn visit<D: Design>(self, design: D) {
            let mut engine = Engine::new(design, self.0);
            let (mut sample, mut expected) = (Vec::new(), vec![0.0; SUMS + 3 * self.0.caches.len()]);
            for position in 1..=self.0.operations {
                let steps = engine.run_with_steps(position).unwrap();
                for path in steps.iter().filter_map(|step| step.path).filter(|path| *path > Path::Cpu) {
                    expected[3 + path.min(self.1) as usize] += 1.0;
                }
                let view = engine.view(steps, &[]);
                expected[..4].fill(0.0);
                for (first_sum, cache_view) in (SUMS..).step_by(3).zip(&view.caches) {
                    let counts = &cache_view.counts;
                    let cached = counts.in_magazines + counts.in_depot;
                    let sums = [counts.used, cached, counts.free_in_slabs, counts.slabs()];
                    expected.iter_mut().zip(sums).for_each(|(sum, n)| *sum += n as f64);
                    for (place, n) in [counts.used, cached, cache_view.served].into_iter().enumerate() {
                        expected[first_sum + place] = n as f64;
                    }
                }
                engine.sample(&mut sample);
                assert_eq!(sample, expected, "operation {position}");
            }
            assert!(expected[4..SUMS].iter().filter(|n| **n > 0.0).count() >= 2, "{expected:?}");
        }
    }
    #[test]
    fn sampled_views_agree_with_full_views() {
        let stream = crate::until::tests::stream();
        for (design, _) in all::<NoPolicy>() {
            // A model counts the commits of its page allocator as operations on pages.
            let slowest_level = if design == "uslab" { Path::Commit } else { Path::Pages };
            design.parse::<Spec>().unwrap().on(&stream, Samples(&stream, slowest_level)).unwrap();
        }
    }
}
