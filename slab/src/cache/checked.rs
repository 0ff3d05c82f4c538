//! What is done to each object of a checked cache: when it leaves for a caller, and when it comes back.
//!
//! The one seam for debugging. The cache's fast paths are disabled, so every object passes here: `on_alloc` before
//! the caller sees it, [`Cache::on_checked_free`] before anybody else can have it. Each has its [tag](crate::debug::tags); what more is looked
//! at, the cache's [flags](crate::debug::flags) say, and [`debugged`](super::debugged) does it.

#[cfg(not(any(loom, shuttle)))]
use super::debugged::Debugged;
use super::{Cache, Object};
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
    /// What is done beside.
    #[cfg(not(any(loom, shuttle)))]
    pub(super) debugged: Option<Debugged>,
}

impl Checked {
    /// An object leaves for a caller.
    #[inline(always)]
    pub(super) fn on_alloc(&self, _cache: &Cache, object: Object) {
        #[cfg(not(any(loom, shuttle)))]
        if let Some(debugged) = &self.debugged {
            _cache.debug_alloc(self, debugged, object);
        }
        // SAFETY: `grow` covers each slab before anybody knows it.
        unsafe { self.tags.set(object.0, self.tag) };
    }
}

impl Cache {
    /// An object comes back; `false` if it is not out, or not the cache's.
    #[inline(always)]
    #[must_use]
    pub(super) fn on_checked_free(&self, checked: &Checked, object: NonNull<u8>) -> bool {
        let was_out = checked.tags.clear(object, checked.tag);
        #[cfg(not(any(loom, shuttle)))]
        if was_out && let Some(debugged) = &checked.debugged {
            self.debug_free(checked, debugged, Object(object));
        }
        was_out
    }
}
