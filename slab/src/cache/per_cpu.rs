//! What stands in front of a cache's slabs: magazines, or nothing.
//!
//! The one seam between the two. A cache allocates, frees, gives back and counts through it, and nowhere else asks whether it
//! has magazines; `bypass` is what it does with its slabs itself where it has none.

use super::magazines::Magazines;
use super::object::Object;
use std::ops::Range;
use uslab_buddy::{StackMemory, Tables};
use uslab_magazine::sync::Rank;
use uslab_magazine::sync::fork::ForkLock;
use uslab_magazine::{FastPath, Fork, Layer, LayerView, Operation, Stats, Supplier};

#[derive(Debug)]
pub(crate) enum PerCpu {
    Magazines(Layer<Object, StackMemory>),
    Nothing,
    /// Nothing, where there should be magazines: there was no number left for the class, or no memory.
    Refused,
}

impl PerCpu {
    /// What is `wanted`, for objects that lie `stride` bytes apart.
    pub(super) fn new(tables: &Tables, wanted: Magazines, stride: usize) -> Self {
        match wanted.config(stride).map(|config| tables.layer(config, false)) {
            Some(Some(layer)) => Self::Magazines(layer),
            Some(None) => Self::Refused,
            None => Self::Nothing,
        }
    }
    fn layer(&self) -> Option<&Layer<Object, StackMemory>> {
        if let Self::Magazines(layer) = self { Some(layer) } else { None }
    }
    /// Whether it may hold objects.
    pub(super) fn holds(&self) -> bool {
        self.layer().is_some()
    }
    /// See [`Refused`](Self::Refused).
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused)
    }

    /// The inlined path; it always misses where there is none.
    pub(super) fn fast_path(&self) -> FastPath<Object, StackMemory> {
        self.layer().map_or_else(FastPath::disabled, Layer::fast_path)
    }

    /// An object, after the fast path has missed.
    pub(super) fn alloc_missed(
        &self,
        op: &Operation,
        slabs: &impl Supplier<Object>,
        bypass: impl FnOnce() -> Option<Object>,
    ) -> Option<Object> {
        match self.layer() {
            // Its fast path is its whole first step; with several nodes it depends on the CPU's.
            Some(layer) if layer.has_one_node() => layer.alloc_slow(op, slabs),
            Some(layer) => layer.alloc_in(op, slabs),
            None => bypass(),
        }
    }
    /// An object that the current CPU or the depot holds: the slabs are not asked.
    pub(super) fn alloc_held(&self, slabs: &impl Supplier<Object>) -> Option<Object> {
        self.layer()?.alloc(slabs)
    }

    /// Takes an object back.
    pub(super) fn free(&self, slabs: &impl Supplier<Object>, object: Object, bypass: impl FnOnce()) {
        match self.layer() {
            Some(layer) => layer.free(slabs, object),
            None => bypass(),
        }
    }
    /// The same, after the fast path has missed.
    pub(super) fn free_missed(&self, slabs: &impl Supplier<Object>, object: Object, bypass: impl FnOnce()) {
        match self.layer() {
            Some(layer) if layer.has_one_node() => {
                layer.free_slow(&Operation::new(), slabs, object);
            }
            _ => self.free(slabs, object, bypass),
        }
    }

    /// Gives what `cpus` hold to the slabs.
    pub(super) fn drain(&self, slabs: &impl Supplier<Object>, cpus: Range<u32>) {
        self.each(|layer| layer.drain(slabs, cpus));
    }
    /// The same with all that is held, depots included.
    pub(super) fn purge(&self, op: &Operation, slabs: &impl Supplier<Object>) {
        self.each(|layer| layer.purge_in(op, slabs));
    }
    /// Ends an interval of the working set. Objects given to the slabs.
    pub(super) fn reap(&self, slabs: &impl Supplier<Object>) -> u64 {
        self.layer().map_or(0, |layer| layer.reap(slabs))
    }

    /// Wants its part of the next sweep of the table's stacks.
    pub(crate) fn ask(&self) {
        self.each(Layer::ask);
    }
    /// What [`drain`](Self::drain) does, after a sweep.
    pub(super) fn drain_swept(&self, slabs: &impl Supplier<Object>) {
        self.each(|layer| _ = layer.drain_swept(&Operation::new(), slabs));
    }
    /// What [`purge`](Self::purge) does, after a sweep.
    pub(super) fn purge_swept(&self, op: &Operation, slabs: &impl Supplier<Object>) {
        self.each(|layer| layer.purge_swept(op, slabs));
    }
    /// What [`reap`](Self::reap) does, after a sweep.
    pub(super) fn reap_swept(&self, slabs: &impl Supplier<Object>) -> u64 {
        self.layer().map_or(0, |layer| layer.reap_swept(slabs))
    }

    /// Memory is short: less is held from now on.
    pub(super) fn shrink(&self) {
        self.each(Layer::shrink);
    }
    /// What is freed from now on goes to its slab.
    pub(super) fn close(&self) {
        self.each(Layer::close);
    }
    /// Takes [`close`](Self::close) back.
    pub(super) fn reopen(&self) {
        self.each(Layer::reopen);
    }

    /// What it counted; zeros without magazines.
    pub(super) fn stats(&self) -> Stats {
        self.layer().map(Layer::stats).unwrap_or_default()
    }
    /// What lies where; `None` without magazines.
    ///
    /// # Safety
    /// As [`Layer::view`].
    pub(crate) unsafe fn view<T>(&self, name: impl Fn(Object) -> T) -> Option<LayerView<T>> {
        // SAFETY: passed on.
        self.layer().map(|layer| unsafe { layer.view(name) })
    }
    fn each(&self, f: impl FnOnce(&Layer<Object, StackMemory>)) {
        self.layer().map(f).unwrap_or_default();
    }
}

impl Fork for PerCpu {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        // SAFETY: passed on.
        self.each(|layer| unsafe { layer.locks(rank, visit) });
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: passed on.
        self.each(|layer| unsafe { layer.forget_other_threads() });
    }
}
