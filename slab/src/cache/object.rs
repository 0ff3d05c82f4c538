//! An object on its way.

use std::ptr::NonNull;
use uslab_magazine::Round;

/// An object on its way: what magazines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(pub(super) NonNull<u8>);

// SAFETY: it is nobody's on its way, and may be handed to any thread. Typed caches ask `Send` of what lies in it.
unsafe impl Send for Object {}

// Models have no malloc.
impl Object {
    /// # Safety
    /// What lies at `memory` is an object that is nobody's.
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
