//! Objects for tests, which are numbers instead of pointers, and a function that creates a table for tests. Tests of
//! other crates include this file (`tests/kit/rounds.rs`). The file therefore imports names from its parent module.

use super::Round;
use super::{Cpus, Heap, Table, sync::Arc};
use core::ptr::NonNull;

/// A test object, which is identified by its number. The numbers start from 1, because 0 would be a null pointer.
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

/// Creates a table with regions of 128 KiB, in which hundreds of small stacks fit.
pub(crate) fn table(cpus: Cpus) -> Arc<Table<Heap>> {
    let region = 128 << 10;
    let memory = Heap::new(Table::<Heap>::footprint(&cpus, region)).expect("the heap must have a few KiB");
    Arc::new(Table::new(cpus, region, memory).expect("the memory must have the size of the footprint"))
}
