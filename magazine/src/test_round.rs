//! Test objects, which are numbers instead of pointers, and a test table. Tests of other crates include this
//! file (`tests/kit/rounds.rs`), so the file uses names from its parent module.

use super::Round;
use super::{Cpus, Heap, Table, sync::Arc};
use core::ptr::NonNull;

/// An object, identified by its number. Objects are numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestRound(pub(crate) usize);
impl Round for TestRound {
    fn into_raw(self) -> NonNull<u8> {
        NonNull::new(core::ptr::without_provenance_mut(self.0)).unwrap()
    }
    unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Self(raw.addr().get())
    }
}

/// Creates a table with regions of 128 KiB, which have room for hundreds of small stacks.
pub(crate) fn table(cpus: Cpus) -> Arc<Table<Heap>> {
    let region = 128 << 10;
    let memory = Heap::new(Table::<Heap>::footprint(&cpus, region)).expect("the footprint must be a few KiB");
    Arc::new(Table::new(cpus, region, memory).expect("the memory must have the size of the footprint"))
}
