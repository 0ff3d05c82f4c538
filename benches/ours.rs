//! This project's object caches. Its malloc level is in [`mallocs`](crate::mallocs), beside the others'.

use crate::subject::{Bytes, Kind, Local, Raw, Subject, hide};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use uslab::{CacheBox, Gfp, KmemCache, ObjectCache, Prefilled, Subsystem};

/// What no cache uses goes back to the system: objects to their slabs, empty slabs to the pages, pages to the system.
pub(crate) fn give_back_all() {
    if let Ok(subsystem) = Subsystem::global() {
        subsystem.shrink();
        subsystem.pages().release();
    }
}

/// [`KmemCache`]: untyped objects.
#[derive(Debug)]
pub struct Kmem<const WORDS: usize>(pub KmemCache);

impl<const WORDS: usize> Subject for Kmem<WORDS> {
    const NAME: &'static str = "kmem_cache";
    const KIND: Kind = Kind::Ours;
    type Local<'s> = KmemLocal<'s>;

    fn new(_: usize) -> Self {
        let mut b = KmemCache::builder(format!("bench-{}", WORDS * 8), WORDS * 8);
        if let Ok(v) = std::env::var("TRY") {
            let v: Vec<u16> = v.split(',').map(|x| x.parse().unwrap()).collect();
            b = b.magazines(uslab::Magazines::Sized {
                capacity: v[0],
                stock: v[1],
                depot_limit: v[2].into(),
            });
        }
        Self(b.build().expect("a cache"))
    }
    fn local(&self) -> KmemLocal<'_> {
        KmemLocal(&self.0)
    }
}

/// The cache, from any thread.
#[derive(Debug)]
pub struct KmemLocal<'s>(pub &'s KmemCache);

impl Local for KmemLocal<'_> {
    type Object = Raw;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> Raw {
        let object = self.0.alloc(Gfp::KERNEL).expect("an object");
        // SAFETY: just allocated; no bench has objects below 8 bytes.
        unsafe { Raw::stamped(object, stamp) }
    }
    fn stamp(&self, object: &Raw) -> u64 {
        object.stamp()
    }
    fn address(&self, object: &Raw) -> Option<NonNull<u64>> {
        Some(object.0)
    }
    #[inline(always)]
    fn free(&mut self, object: Raw) {
        // SAFETY: allocated from this cache; the `Raw` is gone with it.
        unsafe { self.0.free(object.0.cast()) };
    }
    fn give_back(&mut self) {
        give_back_all();
    }
}

/// A private magazine of a [`KmemCache`] for each thread.
#[derive(Debug)]
pub struct Private<const WORDS: usize>(KmemCache, usize);

impl<const WORDS: usize> Subject for Private<WORDS> {
    const NAME: &'static str = "private";
    const KIND: Kind = Kind::Ours;
    type Local<'s> = Prefilled<'s>;

    fn new(live: usize) -> Self {
        let name = format!("bench-private-{}", WORDS * 8);
        Self(KmemCache::builder(name, WORDS * 8).build().expect("a cache"), live.clamp(1, MOST))
    }
    fn local(&self) -> Prefilled<'_> {
        self.0.prefill(Gfp::KERNEL, self.1).expect("objects")
    }
}

impl Local for Prefilled<'_> {
    type Object = Raw;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> Raw {
        let object = Prefilled::alloc(self).unwrap_or_else(|| refilled(self));
        // SAFETY: just allocated; no bench has objects below 8 bytes.
        unsafe { Raw::stamped(object, stamp) }
    }
    fn stamp(&self, object: &Raw) -> u64 {
        object.stamp()
    }
    fn address(&self, object: &Raw) -> Option<NonNull<u64>> {
        Some(object.0)
    }
    #[inline(always)]
    fn free(&mut self, object: Raw) {
        // SAFETY: allocated from this cache; the `Raw` is gone with it.
        unsafe { Prefilled::free(self, object.0.cast()) };
    }
    fn give_back(&mut self) {
        give_back_all();
    }
}

/// Objects that a private magazine asks for at first, if so many will live at once.
const MOST: usize = 1024;
/// And those that it asks for when it is empty.
const REFILL: usize = 64;

#[cold]
fn refilled(private: &mut Prefilled<'_>) -> NonNull<u8> {
    private.refill(REFILL).expect("objects");
    Prefilled::alloc(private).expect("the objects just got")
}

/// [`ObjectCache`]: typed objects that are freed when their box is dropped.
pub struct Typed<const WORDS: usize>(ObjectCache<Bytes<WORDS>>);

impl<const WORDS: usize> fmt::Debug for Typed<WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<const WORDS: usize> Subject for Typed<WORDS> {
    const NAME: &'static str = "object_cache";
    const KIND: Kind = Kind::Ours;
    type Local<'s> = TypedLocal<'s, WORDS>;

    fn new(_: usize) -> Self {
        let builder = ObjectCache::builder(format!("bench-typed-{}", WORDS * 8));
        Self(builder.ctor(|| [MaybeUninit::uninit(); WORDS]).build().expect("a cache"))
    }
    fn local(&self) -> TypedLocal<'_, WORDS> {
        TypedLocal(&self.0)
    }
}

/// The cache, from any thread.
#[derive(Debug)]
pub struct TypedLocal<'s, const WORDS: usize>(&'s ObjectCache<Bytes<WORDS>>);

impl<'s, const WORDS: usize> Local for TypedLocal<'s, WORDS> {
    type Object = CacheBox<'s, Bytes<WORDS>>;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> Self::Object {
        let mut object = self.0.alloc().expect("an object");
        object[0].write(stamp);
        hide(NonNull::from_mut(&mut *object));
        object
    }
    fn stamp(&self, object: &Self::Object) -> u64 {
        // SAFETY: `alloc` wrote it.
        unsafe { object[0].assume_init() }
    }
    #[inline(always)]
    fn free(&mut self, object: Self::Object) {
        drop(object);
    }
    fn give_back(&mut self) {
        give_back_all();
    }
}
