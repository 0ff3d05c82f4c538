//! Objects that are moving between users, magazines and slabs.

use std::ptr::NonNull;
use uslab_magazine::Round;

/// An object that is moving between a user, the magazines and a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(pub(super) NonNull<u8>);

// SAFETY: an object in transit has no user, and may be handed to any thread. Typed caches require that their values
// are `Send`.
unsafe impl Send for Object {}

// Models have no malloc, whose code uses this `impl`.
impl Object {
    /// # Safety
    /// No user may own the object at `memory`.
    #[inline(always)]
    pub(crate) unsafe fn new(memory: NonNull<u8>) -> Self {
        Self(memory)
    }
    #[inline(always)]
    pub(crate) fn memory(self) -> NonNull<u8> {
        self.0
    }
}

impl Round for Object {
    #[inline(always)]
    fn into_raw(self) -> NonNull<u8> {
        self.0
    }
    #[inline(always)]
    unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Self(raw)
    }
}
