//! What tests let a layer hold: a number in place of a pointer. Whoever includes this has `Round`; tests of other crates do so, too
//! (`tests/kit/rounds.rs`).

use super::Round;
use core::ptr::NonNull;

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
