//! What is done to each object of a checked cache: when it leaves for a caller, and when it comes back.
//!
//! The one seam for debugging. The cache's fast paths are disabled, so every object passes here: [`Checked::on_alloc`] before
//! the caller sees it, [`Checked::on_free`] before anybody else can have it. Today an object's [tag](crate::debug::tags) is all
//! that is looked at.

use super::object::Object;
use crate::debug::tags::Tags;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_buddy::StackMemory;
use uslab_magazine::FastPath;

#[derive(Debug)]
pub(crate) struct Checked {
    pub(super) tags: Arc<Tags>,
    /// The cache's.
    pub(super) tag: u8,
    /// The layer's, behind the checks.
    pub(super) fast_path: FastPath<Object, StackMemory>,
}

impl Checked {
    /// An object leaves for a caller.
    #[inline(always)]
    pub(super) fn on_alloc(&self, Object(object): Object) {
        // SAFETY: `grow` covers each slab before anybody knows it.
        unsafe { self.tags.set(object, self.tag) };
    }
    /// Whether an object is out.
    pub(super) fn is_out(&self, object: NonNull<u8>) -> bool {
        self.tags.is(object, self.tag)
    }
    /// An object comes back; `false` if it is not out, or not the cache's.
    #[inline(always)]
    #[must_use]
    pub(super) fn on_free(&self, object: NonNull<u8>) -> bool {
        self.tags.clear(object, self.tag)
    }
}
