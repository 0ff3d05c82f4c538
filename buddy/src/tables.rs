//! The [tables](uslab_magazine::table) of an allocator, which hold the per-CPU stacks of pages and of all object caches
//! on these pages.
//!
//! An allocator starts with one table. When all tables have run out of class numbers or addresses, the allocator adds a
//! table. A class stays in the table in which it was created.

use crate::PAGE_SIZE;
use crate::faults::{Faults, MAGAZINE};
use crate::region::{
    Backend, HAS_OS_MAPPINGS, Region, Reservation, Uncommitted, address_limit, commits_are_counted,
};
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_magazine::memory::ALIGN;
use uslab_magazine::sync::fork::{ForkLock, ForkMutex};
use uslab_magazine::sync::{Counter, Rank, tell};
use uslab_magazine::tracepoints::{Step, Tracepoints};
use uslab_magazine::{
    Config, Cpus, DepotBudget, DrainScope, Drains, Fork, Layer, Memory, Operation, Round, SweepGroup, Table,
};

/// The memory of a table. A table's memory reads as zero until it is committed, which happens when a CPU uses it.
#[derive(Debug)]
pub struct StackMemory {
    region: Region,
    faults: Faults,
    /// Number of bytes, from the start, that were committed when the memory was created.
    whole: usize,
}

impl StackMemory {
    /// Takes `bytes` bytes from `addresses`, and immediately commits the first `at_once` bytes.
    fn new(addresses: &mut Reservation, bytes: usize, at_once: usize) -> Option<Self> {
        const { assert!(ALIGN <= PAGE_SIZE) };
        let region = addresses.reserve(bytes, Uncommitted::ReadsZero)?;
        let whole = if at_once > 0 && region.commit(0..at_once) { at_once } else { 0 };
        Some(Self { region, faults: addresses.faults.clone(), whole })
    }
}

// SAFETY: a region is page-aligned, reads as zero, belongs to this value until it is dropped, and is never moved or
// decommitted.
unsafe impl Memory for StackMemory {
    fn base(&self) -> NonNull<u8> {
        self.region.base()
    }
    fn bytes(&self) -> usize {
        self.region.bytes()
    }
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool {
        if self.faults.fires(crate::faults::Call::of(MAGAZINE, range.len())) {
            return false;
        }
        tell!(op: Step::TablesCommitted { bytes: range.len() as u32 });
        let range = range.start / ALIGN * ALIGN..range.end.next_multiple_of(ALIGN);
        if range.end <= self.whole {
            return true;
        }
        self.region.commit(range)
    }
    unsafe fn decommit(&self, range: Range<usize>) -> bool {
        // SAFETY: no thread relies on the contents, by this function's contract.
        unsafe { self.region.discard(range) }
    }
}

/// Maximum number of tables that an allocator creates.
const MAX_TABLES: usize = 148;
/// Size in bytes of the smallest table region that is tried if the OS refuses larger ones.
const MIN_REGION_BYTES: usize = 128 << 10;
/// The tables with the per-CPU stacks of an allocator. See the [module](self).
#[derive(Debug)]
pub struct Tables {
    cpus: Cpus,
    backend: Backend,
    faults: Faults,
    tracepoints: Arc<Tracepoints>,
    /// The memory budget that the depots of all tables share.
    depots: Arc<DepotBudget>,
    /// All tables, oldest first. The vector has capacity for `MAX_TABLES` tables, so it never reallocates.
    tables: ForkMutex<Vec<Arc<Table<StackMemory>>>>,
    /// Two flags: the first is 1 if all inlined paths are closed, the second if inlined frees by address are closed.
    /// The two flags are protected by the lock of `tables`.
    closed: [Counter; 2],
}

impl Tables {
    /// If the address space is limited, a table takes at most 1/`SHARE` of the remaining addresses.
    pub(crate) const SHARE: usize = 8;

    /// Number of bytes of address space that the first table needs.
    pub(crate) fn footprint(cpus: &Cpus) -> usize {
        Table::<StackMemory>::footprint(cpus, Table::<StackMemory>::region_bytes(cpus, false))
    }
    pub(crate) fn new(cpus: Cpus, addresses: &mut Reservation) -> Option<Self> {
        let tables = ForkMutex::new(Rank::Tables, Vec::with_capacity(MAX_TABLES));
        let tracepoints = Arc::new(Tracepoints::new(cpus));
        let depots = Arc::new(DepotBudget::of(&cpus));
        let made = Self {
            cpus,
            backend: addresses.backend,
            faults: addresses.faults.clone(),
            tracepoints,
            depots,
            tables,
            closed: [const { Counter::new(0) }; 2],
        };
        let first = made.create_layer_table(Some(addresses))?;
        made.tables.lock().push(first);
        Some(made)
    }
    /// Creates a table of per-CPU stacks. The first table is committed step by step as it is used, so each of its
    /// regions is split into two mappings. Further tables are committed as a whole, unless the OS would count such a
    /// commit as used memory. The number of mappings therefore stays small even with many caches and CPUs.
    fn create_layer_table(&self, addresses: Option<&mut Reservation>) -> Option<Arc<Table<StackMemory>>> {
        let (cpus, backend) = (self.cpus, self.backend);
        let on_heap = !HAS_OS_MAPPINGS || backend.table_backend() == Backend::Heap;
        let mut region = Table::<StackMemory>::region_bytes(&cpus, on_heap);
        let footprint = |region| Table::<StackMemory>::footprint(&cpus, region);
        let (more, mut none) = (addresses.is_none(), Reservation::none(backend, &self.faults));
        let addresses = addresses.unwrap_or(&mut none);
        // Addresses left in the reservation suffice for one table.
        if let Some((limit, has)) = addresses.is_empty().then(address_limit).flatten() {
            while region > MIN_REGION_BYTES && footprint(region) > limit.saturating_sub(has) / Self::SHARE {
                region = (region / 2).max(MIN_REGION_BYTES);
            }
        }
        let at_once = more && !on_heap && !commits_are_counted();
        loop {
            let writable = if at_once { Table::<StackMemory>::writable(&cpus, region) } else { 0 };
            let memory = StackMemory::new(addresses, footprint(region), writable);
            if let Some(memory) = memory {
                let (tracepoints, depots) = (self.tracepoints.clone(), self.depots.clone());
                return Table::observed(cpus, region, memory, tracepoints, depots).ok().map(Arc::new);
            }
            if region <= MIN_REGION_BYTES {
                return None;
            }
            region = (region / 2).max(MIN_REGION_BYTES);
        }
    }

    /// Creates a magazine layer. The layer has one class for all nodes if `one_node` is set, and one class per node
    /// otherwise. Returns `None` if no memory or no class number is left.
    pub fn layer<R: Round>(&self, config: Config, one_node: bool) -> Option<Layer<R, StackMemory>> {
        let layer = |table: &Arc<Table<StackMemory>>| match one_node {
            true => Layer::on_one_node(table, config),
            false => Layer::new(table, config),
        };
        let (newest, count) = {
            let tables = self.tables.lock();
            (tables.last()?.clone(), tables.len())
        };
        if let Some(made) = layer(&newest) {
            return Some(made);
        }
        // Reuses returned class numbers.
        let older_layer = (0..count).find_map(|i| {
            let table = self.tables.lock().get(i)?.clone();
            layer(&table)
        });
        if older_layer.is_some() || count == MAX_TABLES {
            return older_layer;
        }
        let table = self.create_layer_table(None)?;
        let made = layer(&table)?;
        let mut tables = self.tables.lock();
        if self.closed[0].get() > 0 && !table.close_inlined(self.closed[1].get() > 0) {
            return None;
        }
        // Sweeps and forks visit at most `MAX_TABLES` tables.
        if tables.len() == MAX_TABLES {
            return None;
        }
        tables.push(table);
        Some(made)
    }
}

impl Tables {
    /// Returns the observers of operations on the layers.
    pub fn tracepoints(&self) -> &Arc<Tracepoints> {
        &self.tracepoints
    }

    /// Limits the total number of bytes that all depots keep: see [`DepotBudget::keep_at_most`].
    pub(crate) fn keep_at_most(&self, bytes: u64) {
        self.depots.keep_at_most(bytes);
    }

    /// Iterates over all tables, oldest first. The lock is not held between two tables.
    fn tables(&self) -> impl Iterator<Item = Arc<Table<StackMemory>>> + '_ {
        (0..MAX_TABLES).map_while(|i| self.tables.lock().get(i).cloned())
    }

    /// Asserts that no operation or drain is running on any table.
    #[cfg(shuttle)]
    pub fn assert_at_rest(&self) {
        self.tables().for_each(|table| table.assert_all_classes_quiescent());
    }

    /// Removes the objects from the stacks of `cpus` in all layers whose sweep group `groups` selects: see
    /// [`Table::sweep`].
    ///
    /// The sweep costs one fence per table.
    pub fn sweep(&self, cpus: Range<u32>, which: DrainScope, groups: impl Fn(SweepGroup) -> bool) {
        self.tables().for_each(|table| table.sweep(cpus.clone(), which, &groups));
    }

    /// Closes the inlined paths, so that they miss from now on: see [`Table::close_inlined`]. Inlined frees by address
    /// are closed only if `with_frees` is set. Returns `false` if the paths could not be closed. If the call fails, all
    /// inlined paths are open.
    pub fn close_inlined(&self, with_frees: bool) -> bool {
        // The lock is held throughout, so that a concurrently created table is closed, too.
        let tables = self.tables.lock();
        let closed = tables.iter().all(|table| table.close_inlined(with_frees));
        if !closed {
            tables.iter().for_each(|table| table.open_inlined());
        }
        self.closed[0].set(closed.into());
        self.closed[1].set((closed && with_frees).into());
        closed
    }
    /// Reopens the inlined paths that [`close_inlined`](Self::close_inlined) closed.
    pub fn open_inlined(&self) {
        let tables = self.tables.lock();
        tables.iter().for_each(|table| table.open_inlined());
        self.closed.iter().for_each(|closed| closed.set(0));
    }

    /// Returns the drain counts of each table.
    pub fn drains(&self) -> impl Iterator<Item = Drains> + '_ {
        self.tables().map(|table| table.drains())
    }

    /// Decommits the memory of stacks that no class uses: see [`Table::decommit_idle`]. Returns the number of
    /// decommitted bytes.
    pub fn decommit_idle(&self) -> usize {
        self.tables().map(|table| table.decommit_idle()).sum()
    }
}

impl Fork for Tables {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        if rank == Rank::Tables {
            visit(&self.tables);
        } else if rank > Rank::Tables {
            // SAFETY: this thread holds the list's lock, by this function's contract.
            for table in unsafe { self.tables.held() }.into_iter().flatten() {
                // SAFETY: the thread holds the locks of all earlier ranks that `rank` requires, by contract.
                unsafe { table.locks(rank, visit) };
            }
        }
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: this thread holds the list's lock, by this function's contract.
        for table in unsafe { self.tables.held() }.into_iter().flatten() {
            // SAFETY: the process is a child with a single thread, by this function's contract.
            unsafe { table.forget_other_threads() };
        }
        // SAFETY: the process is a child with a single thread, by this function's contract.
        unsafe { self.tracepoints.forget_other_threads() };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::per_cpu::PageRound;
    use crate::pfn::Pfn;
    use uslab_magazine::{Mechanism, Supplier, Words};

    /// A supplier that invents page numbers and discards flushed pages.
    struct Pages;
    impl Supplier<PageRound> for Pages {
        fn fill(&self, _: &Operation, _: u32, max: usize, put: impl FnMut(PageRound)) -> usize {
            (0..max as u32).map(|page| PageRound(Pfn::new(page))).for_each(put);
            max
        }
        fn flush(&self, _: &Operation, rounds: impl Iterator<Item = PageRound>) {
            rounds.for_each(drop);
        }
    }
    type PageLayer = Layer<PageRound, StackMemory>;

    fn tables() -> Tables {
        Tables::new(Cpus::os(), &mut Reservation::none(Backend::default(), &Faults::default())).unwrap()
    }
    fn layer(tables: &Tables) -> PageLayer {
        tables.layer(Config::new(4, 2, 2), true).unwrap()
    }
    /// Creates layers until the allocator has to add a table. The last of the returned layers belongs to the new table.
    fn create_layers_until_new_table(tables: &Tables) -> Vec<PageLayer> {
        let before = tables.tables().count();
        let mut layers = vec![];
        while tables.tables().count() == before {
            layers.push(layer(tables));
        }
        layers
    }

    #[test]
    fn closed_inlined_paths_stay_closed_in_a_new_per_cpu_table() {
        let tables = tables();
        for closed in [None, Some(false), None, Some(true)] {
            if let Some(with_frees) = closed {
                assert!(tables.close_inlined(with_frees));
            }
            let layers = create_layers_until_new_table(&tables);
            let layer = layers.last().unwrap();
            let (mut had, mut freed) = (0, 0);
            for _ in 0..1000 {
                let used: Vec<_> = (0..3).map(|_| layer.alloc(&Pages).unwrap()).collect();
                used.into_iter().for_each(|page| layer.free(&Pages, page));
                // SAFETY: the layer is alive.
                unsafe {
                    had += u32::from(layer.fast_path(Words::Inlined).alloc_fast().is_some());
                    freed +=
                        u32::from(layer.fast_path(Words::InlinedFrees).free_fast(PageRound(Pfn::new(1))));
                }
            }
            let sections = layer.mechanism() == Mechanism::Rseq;
            assert_eq!(
                [had > 0, freed > 0],
                [sections && closed.is_none(), sections && closed != Some(true)]
            );
            tables.open_inlined();
            // The thread may be on another CPU at each operation.
            let opened = (0..1000).any(|_| {
                layer.free(&Pages, PageRound(Pfn::new(2)));
                // SAFETY: the layer is alive.
                unsafe { layer.fast_path(Words::Inlined).alloc_fast() }.is_some()
            });
            assert_eq!(opened, sections);
        }
    }

    /// Committing only a part of a region adds a mapping.
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn second_per_cpu_table_is_committed_completely() {
        use crate::faults::COMMIT;
        let faults = Faults::new(1);
        let tables =
            Tables::new(Cpus::simulated(2, 1).unwrap(), &mut Reservation::none(Backend::default(), &faults))
                .unwrap();
        let commits = |layer: &PageLayer| {
            faults.arm(vec![]);
            let pages: Vec<_> = (0..100).map(|_| layer.alloc(&Pages).unwrap()).collect();
            pages.into_iter().for_each(|page| layer.free(&Pages, page));
            let calls = |point: crate::faults::Point| {
                faults
                    .tally()
                    .iter()
                    .filter(|tally| tally.point == point.name)
                    .map(|tally| tally.calls)
                    .sum::<u64>()
            };
            [calls(MAGAZINE), calls(COMMIT)]
        };
        let [asked, commits_of_first] = commits(&layer(&tables));
        assert!(asked > 0 && commits_of_first == asked);
        faults.arm(vec![]);
        let layers = create_layers_until_new_table(&tables);
        let [asked, commits_of_another] = commits(layers.last().unwrap());
        // The number of all commits except the commit of the part after the empty region.
        let at_once = u64::from(!commits_are_counted());
        assert_eq!(commits_of_another, asked - at_once);
    }

    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn heap_backed_table_has_smaller_regions() {
        let region = |backend| {
            let cpus = Cpus::simulated(64, 1).unwrap();
            let tables = Tables::new(cpus, &mut Reservation::none(backend, &Faults::default())).unwrap();
            layer(&tables).homes()[1]
        };
        assert!(region(Backend::Heap) < region(Backend::Os));
    }

    #[test]
    fn per_cpu_table_creation_retries_with_smaller_regions() {
        use crate::faults::{POINTS, Rule};
        for (refusals, made) in [(1, true), (100, false)] {
            let faults = Faults::new(1);
            faults.arm(Rule::parse_all(&format!("reserve:times={refusals}"), &POINTS).unwrap());
            let tables = Tables::new(
                Cpus::simulated(2, 1).unwrap(),
                &mut Reservation::none(Backend::default(), &faults),
            );
            assert_eq!(tables.is_some(), made, "{refusals}");
        }
    }

    /// With an address limit of 1 GiB, a table takes 1/8 of the remaining addresses, but at least the minimum size of a
    /// table.
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn per_cpu_table_reserves_its_share_of_limited_addresses() {
        crate::tests::run_with_limit("-v 1048576", "tables::tests::child_runs_with_a_limited_address_space");
    }
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    #[ignore = "run under `ulimit -v` by per_cpu_table_reserves_its_share_of_limited_addresses"]
    fn child_runs_with_a_limited_address_space() {
        // Without the address limit, a region for 32 CPUs would be larger.
        let cpus = Cpus::simulated(32, 1).unwrap();
        let footprint = |region| Table::<StackMemory>::footprint(&cpus, region);
        let (limit, has) = address_limit().unwrap();
        let most = (limit - has) / Tables::SHARE;
        assert!(
            footprint(Table::<StackMemory>::region_bytes(&cpus, false)) > most
                && footprint(MIN_REGION_BYTES) < most
        );
        let tables =
            Tables::new(cpus, &mut Reservation::none(Backend::default(), &Faults::default())).unwrap();
        let used = limit - has - address_limit().map(|(limit, has)| limit - has).unwrap();
        assert!(used <= most + (1 << 20) && used > most / 2, "{used} of {most}");
        drop(tables);
    }

    /// Concurrent creation must not exceed the maximum number of tables, because sweeps would skip the extra tables.
    #[test]
    fn number_of_per_cpu_tables_is_limited() {
        let tables = tables();
        drop(create_layers_until_new_table(&tables).pop());
        tables.tables.lock().truncate(1);
        let _full: Vec<_> = core::iter::from_fn(|| {
            let table = tables.tables().next()?;
            Layer::<PageRound, _>::on_one_node(&table, Config::new(4, 2, 2))
        })
        .collect();
        let first = tables.tables().next().unwrap();
        tables.tables.lock().extend((2..MAX_TABLES).map(|_| first.clone()));
        // Both threads check that one more table may be created before either thread continues. SAFETY: this thread
        // does not fork.
        unsafe { first.before_fork() };
        let made: Vec<_> = std::thread::scope(|threads| {
            let one = || tables.layer::<PageRound>(Config::new(4, 2, 2), true).is_some();
            let both = [(); 2].map(|()| threads.spawn(one));
            std::thread::sleep(core::time::Duration::from_millis(100));
            // SAFETY: this thread does not fork.
            unsafe { first.after_fork_in_parent() };
            both.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.contains(&true) && made.contains(&false));
        assert_eq!(tables.tables.lock().len(), MAX_TABLES);
    }

    #[test]
    fn freed_class_number_is_reused_before_adding_a_table() {
        let tables = tables();
        let mut first = create_layers_until_new_table(&tables);
        let newest = first.pop();
        let mut second = create_layers_until_new_table(&tables);
        let third = second.pop();
        assert_eq!((first.len(), tables.tables().count()), (second.len() + 1, 3));
        drop((newest, third));
        // Creates layers of the last table, whose numbers are all free again, and of the second table.
        let last: Vec<_> = first.iter().map(|_| layer(&tables)).collect();
        drop(first.pop());
        let new_layers = [layer(&tables), layer(&tables)];
        assert_eq!(tables.tables().count(), 3, "one round of each table");
        let more = create_layers_until_new_table(&tables);
        assert_eq!((more.len(), tables.tables().count()), (1, 4));
        drop((last, new_layers));
    }
}
