//! The [tables](uslab_magazine::table) of an allocator: where the CPUs' stacks of pages lie, and of whatever else is cached by
//! CPU on its pages.
//!
//! There is one at first. Where its numbers or its addresses run out, another one is made beside it; classes never move.

use crate::faults::{Faults, MAGAZINE};
use crate::region::{Door, HugePages, MAPPED, Region, Uncommitted};
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_magazine::memory::ALIGN;
use uslab_magazine::sync::fork::{ForkLock, ForkMutex};
use uslab_magazine::sync::{Rank, tell};
use uslab_magazine::{Config, Cpus, Fork, Layer, Memory, Operation, Round, Table};

/// The memory of a table: addresses that read as zero, and are memory where a CPU has used them.
#[derive(Debug)]
pub struct StackMemory {
    region: Region,
    faults: Faults,
}

impl StackMemory {
    fn new(bytes: usize, door: Door, faults: &Faults) -> Option<Self> {
        let region = Region::reserve(bytes, ALIGN, Uncommitted::ReadsZero, door.of_tables(), faults)?;
        // Of each class hardly more than its first page is ever used.
        region.advise(HugePages::Never);
        Some(Self { region, faults: faults.clone() })
    }
}

// SAFETY: a region is aligned to pages; it reads as zero, is ours until drop, and is never moved or decommitted.
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
        tell!(op: Commit, "commits {} bytes of stacks", range.len());
        let range = range.start / ALIGN * ALIGN..range.end.next_multiple_of(ALIGN);
        self.region.commit(range)
    }
}

/// The most tables that an allocator has.
const MOST: usize = 148;
/// The least addresses that a region has where the system grants no more.
const LEAST: usize = 128 << 10;

/// See the [module](self).
#[derive(Debug)]
pub struct Tables {
    cpus: Cpus,
    door: Door,
    faults: Faults,
    /// With room for all that there may be.
    tables: ForkMutex<Vec<Arc<Table<StackMemory>>>>,
}

impl Tables {
    pub(crate) fn new(cpus: Cpus, door: Door, faults: &Faults) -> Option<Self> {
        let mut tables = Vec::with_capacity(MOST);
        tables.push(Self::make(cpus, door, faults)?);
        Some(Self { cpus, door, faults: faults.clone(), tables: ForkMutex::new(Rank::Tables, tables) })
    }
    fn make(cpus: Cpus, door: Door, faults: &Faults) -> Option<Arc<Table<StackMemory>>> {
        let on_heap = !MAPPED || door.of_tables() == Door::Heap;
        let mut region = Table::<StackMemory>::region_bytes(&cpus, on_heap);
        loop {
            let memory = StackMemory::new(Table::<StackMemory>::footprint(&cpus, region), door, faults);
            if let Some(memory) = memory {
                return Table::new(cpus, region, memory).ok().map(Arc::new);
            }
            if region <= LEAST {
                return None;
            }
            region = (region / 2).max(LEAST);
        }
    }

    /// A layer with a class for each node, or if `one_node` with one for all; `None` if there is no memory for it, or more
    /// classes were asked for than there are numbers.
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
        // Numbers that were given back.
        let older = (0..count).find_map(|i| {
            let table = self.tables.lock().get(i)?.clone();
            layer(&table)
        });
        if older.is_some() || count == MOST {
            return older;
        }
        let table = Self::make(self.cpus, self.door, &self.faults)?;
        let made = layer(&table)?;
        let mut tables = self.tables.lock();
        if tables.len() < MOST {
            tables.push(table);
        }
        Some(made)
    }
}

impl Fork for Tables {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        if rank == Rank::Tables {
            visit(&self.tables);
        } else if rank > Rank::Tables {
            // SAFETY: by contract the lock of the list is held.
            for table in unsafe { self.tables.held() }.into_iter().flatten() {
                // SAFETY: passed on.
                unsafe { table.locks(rank, visit) };
            }
        }
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: by contract the lock of the list is held.
        for table in unsafe { self.tables.held() }.into_iter().flatten() {
            // SAFETY: passed on.
            unsafe { table.forget_other_threads() };
        }
    }
}
