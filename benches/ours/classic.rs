//! The magazine layer of the 2001 paper ([`uslab_lab::classic`]) on this project's slabs. Shows the cost of a CPU layer
//! in which each operation takes the lock of its CPU, as in the paper.

use super::return_unused_memory;
use crate::subject::{Kind, RawObject, Subject, ThreadAccess};
use std::ptr::NonNull;
use uslab::{Gfp, KmemCache, Magazines};
use uslab_lab::classic::{Cache, Sizes, Slab};
use uslab_magazine::Cpus;

/// The slab layer below the magazines: an object cache without magazines.
#[derive(Debug)]
pub(super) struct Slabs(KmemCache);

impl Slab<RawObject> for Slabs {
    fn alloc(&self) -> Option<RawObject> {
        Some(RawObject(self.0.alloc(Gfp::KERNEL).ok()?.cast()))
    }
    fn free(&self, object: RawObject) {
        // SAFETY: the object was allocated from this cache; the `RawObject` is consumed.
        unsafe { self.0.free(object.0.cast()) };
    }
}

/// A [`Cache`] whose objects have `WORDS` times 8 bytes.
#[derive(Debug)]
pub struct ClassicCache<const WORDS: usize>(Cache<RawObject, Slabs>);

impl<const WORDS: usize> Subject for ClassicCache<WORDS> {
    const NAME: &'static str = "magazines01";
    const KIND: Kind = Kind::Pool;
    type ThreadAccess<'s> = ClassicAccess<'s>;

    fn new(_: usize) -> Self {
        let slabs =
            KmemCache::builder(format!("bench-classic-{}", WORDS * 8), WORDS * 8).magazines(Magazines::Off);
        Self(Cache::new(Cpus::os(), Sizes::default(), Slabs(slabs.build().expect("a cache"))))
    }
    /// Ends a reaping interval before a thread's round, so that magazines can grow if CPUs contend.
    fn local(&self) -> ClassicAccess<'_> {
        self.0.end_interval();
        ClassicAccess(&self.0)
    }
}

/// A thread's access to a [`ClassicCache`] cache.
#[derive(Debug)]
pub struct ClassicAccess<'s>(&'s Cache<RawObject, Slabs>);

impl ThreadAccess for ClassicAccess<'_> {
    type Object = RawObject;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> RawObject {
        let object = self.0.alloc().expect("an allocation must succeed");
        // SAFETY: the object was just allocated, and no bench has objects smaller than 8 bytes.
        unsafe { RawObject::stamped(object.0.cast(), stamp) }
    }
    fn stamp(&self, object: &RawObject) -> u64 {
        object.stamp()
    }
    fn address(&self, object: &RawObject) -> Option<NonNull<u64>> {
        Some(object.0)
    }
    #[inline(always)]
    fn free(&mut self, object: RawObject) {
        self.0.free(object);
    }
    fn give_back(&mut self) {
        self.0.drain();
        return_unused_memory();
    }
}
