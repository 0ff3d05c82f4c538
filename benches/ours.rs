//! Subjects of this project: its object caches, its malloc, its kmalloc, and the magazine layer of the 2001 paper.
//!
//! Only this module uses the project's API, so a build of an older commit replaces only this file and the folder
//! `ours`.

mod classic;

use crate::mallocs::{Malloc, OneSizeObjects, layout};
use crate::rounds::Contender;
use crate::subject::{Bytes, Kind, RawObject, Subject, ThreadAccess, Work, opaque_pointer};
pub use classic::ClassicCache;
use std::alloc::GlobalAlloc;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use uslab::{CacheBox, Gfp, KmemCache, KmemCacheBuilder, ObjectCache, Subsystem, Uslab};
pub use uslab_magazine::sync;

/// Returns all contenders of this project, for objects of `WORDS` words.
pub(crate) fn contenders<const WORDS: usize>(work: &impl Work) -> impl Iterator<Item = Contender> {
    let all = [
        Contender::from_subject::<Kmem<WORDS>>(work),
        Contender::from_subject::<TypedSubject<WORDS>>(work),
        Contender::from_subject::<OneSizeObjects<GlobalSubject, WORDS>>(work),
        Contender::from_subject::<OneSizeObjects<Kmalloc, WORDS>>(work),
        Contender::from_subject::<ClassicCache<WORDS>>(work),
    ];
    all.into_iter().flatten()
}

/// Name of the mechanism by which each CPU reaches its slots.
pub(crate) fn mechanism() -> String {
    format!("{:?}", uslab_magazine::Cpus::os().mechanism()).to_lowercase()
}

/// Returns all unused memory to the system: flushes objects to slabs, frees empty slabs to the page allocator, and
/// returns the pages to the system.
pub(crate) fn return_unused_memory() {
    if let Ok(subsystem) = Subsystem::global() {
        subsystem.shrink();
        subsystem.pages().decommit();
    }
}

/// Ends a reaping interval of the global allocator.
fn reap_all() {
    Subsystem::global().expect("the global subsystem must start").end_interval();
}

/// Creates a cache in the global subsystem and returns it.
fn cache(words: usize) -> KmemCache {
    builder(words).build().expect("a cache")
}
fn builder(words: usize) -> KmemCacheBuilder {
    KmemCache::builder(format!("bench-{}", words * 8), words * 8)
}

/// A subject that allocates untyped objects of a [`KmemCache`].
#[derive(Debug)]
pub struct Kmem<const WORDS: usize>(pub KmemCache);

impl<const WORDS: usize> Subject for Kmem<WORDS> {
    const NAME: &'static str = "kmem_cache";
    const KIND: Kind = Kind::Ours;
    type ThreadAccess<'s> = KmemAccess<'s>;

    fn new(_: usize) -> Self {
        Self(cache(WORDS))
    }
    fn local(&self) -> KmemAccess<'_> {
        KmemAccess(&self.0)
    }
}

/// A thread's access to a [`KmemCache`].
#[derive(Debug)]
pub struct KmemAccess<'s>(pub &'s KmemCache);

impl ThreadAccess for KmemAccess<'_> {
    type Object = RawObject;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> RawObject {
        let object = self.0.alloc(Gfp::KERNEL).expect("an allocation must succeed");
        // SAFETY: the object was just allocated, and no bench has objects smaller than 8 bytes.
        unsafe { RawObject::stamped(object, stamp) }
    }
    fn stamp(&self, object: &RawObject) -> u64 {
        object.stamp()
    }
    fn address(&self, object: &RawObject) -> Option<NonNull<u64>> {
        Some(object.0)
    }
    #[inline(always)]
    fn free(&mut self, object: RawObject) {
        // SAFETY: the object was allocated from this cache; the `RawObject` is consumed.
        unsafe { self.0.free(object.0.cast()) };
    }
    fn give_back(&mut self) {
        return_unused_memory();
    }
    fn reap(&mut self) {
        reap_all();
    }
}

/// A subject that allocates typed objects of an [`ObjectCache`]; dropping an object's box frees the object.
pub struct TypedSubject<const WORDS: usize>(ObjectCache<Bytes<WORDS>>);

impl<const WORDS: usize> fmt::Debug for TypedSubject<WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<const WORDS: usize> Subject for TypedSubject<WORDS> {
    const NAME: &'static str = "object_cache";
    const KIND: Kind = Kind::Ours;
    type ThreadAccess<'s> = TypedAccess<'s, WORDS>;

    fn new(_: usize) -> Self {
        let builder = ObjectCache::builder(format!("bench-typed-{}", WORDS * 8));
        Self(builder.ctor(|| [MaybeUninit::uninit(); WORDS]).build().expect("a cache"))
    }
    fn local(&self) -> TypedAccess<'_, WORDS> {
        TypedAccess(&self.0)
    }
}

/// A thread's access to an [`ObjectCache`].
#[derive(Debug)]
pub struct TypedAccess<'s, const WORDS: usize>(&'s ObjectCache<Bytes<WORDS>>);

impl<'s, const WORDS: usize> ThreadAccess for TypedAccess<'s, WORDS> {
    type Object = CacheBox<'s, Bytes<WORDS>>;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> Self::Object {
        let mut object = self.0.alloc().expect("an allocation must succeed");
        object[0].write(stamp);
        opaque_pointer(NonNull::from_mut(&mut *object));
        object
    }
    fn stamp(&self, object: &Self::Object) -> u64 {
        // SAFETY: `alloc` wrote the object's first word.
        unsafe { object[0].assume_init() }
    }
    #[inline(always)]
    fn free(&mut self, object: Self::Object) {
        drop(object);
    }
    fn give_back(&mut self) {
        return_unused_memory();
    }
    fn reap(&mut self) {
        reap_all();
    }
}

/// A subject that calls a static [`Uslab`] through `GlobalAlloc`, as programs do.
#[derive(Debug)]
pub struct GlobalSubject;

static USLAB: Uslab = Uslab;

impl Malloc for GlobalSubject {
    const NAME: &'static str = "uslab";
    const KIND: Kind = Kind::Ours;

    fn new() -> Self {
        Self
    }
    #[inline(always)]
    fn alloc(&self, size: usize) -> NonNull<u8> {
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { USLAB.alloc(layout(size)) }).expect("memory")
    }
    #[inline(always)]
    unsafe fn free(&self, memory: NonNull<u8>, size: usize) {
        // SAFETY: the caller passes a block from `alloc` with this size, once; the layout is the same.
        unsafe { USLAB.dealloc(memory.as_ptr(), layout(size)) };
    }
    fn give_back(&self) {
        USLAB.release();
    }
    fn reap(&self) {
        USLAB.reap();
    }
}

/// A subject at the kmalloc level: it has 13 size classes, and a free finds the cache by the object's address.
#[derive(Debug)]
pub struct Kmalloc(&'static uslab::Kmalloc);

impl Malloc for Kmalloc {
    const NAME: &'static str = "kmalloc";
    const KIND: Kind = Kind::Ours;

    fn new() -> Self {
        Self(Subsystem::global().expect("the global subsystem must start").kmalloc())
    }
    #[inline(always)]
    fn alloc(&self, size: usize) -> NonNull<u8> {
        self.0.alloc(size, Gfp::KERNEL).expect("memory")
    }
    #[inline(always)]
    unsafe fn free(&self, memory: NonNull<u8>, _: usize) {
        // SAFETY: the caller passes a block from `alloc`, once.
        unsafe { self.0.free(memory) };
    }
    fn give_back(&self) {
        return_unused_memory();
    }
    fn reap(&self) {
        reap_all();
    }
}

/// A subject of this project that a bench can disturb by using other caches.
pub trait DisturbedSubject: Subject {
    /// Ends a reaping interval, as the reaper thread does.
    fn reap();
    /// Creates another cache that shares the page allocator of the measured cache.
    fn other() -> OtherCache;
}

impl<const WORDS: usize> DisturbedSubject for Kmem<WORDS> {
    fn reap() {
        reap_all();
    }
    fn other() -> OtherCache {
        OtherCache(cache(WORDS))
    }
}

impl<const WORDS: usize> DisturbedSubject for TypedSubject<WORDS> {
    fn reap() {
        reap_all();
    }
    fn other() -> OtherCache {
        Kmem::<WORDS>::other()
    }
}

impl<const WORDS: usize> DisturbedSubject for OneSizeObjects<GlobalSubject, WORDS> {
    fn reap() {
        USLAB.reap();
    }
    fn other() -> OtherCache {
        OtherCache(USLAB.build(builder(WORDS)).expect("a cache"))
    }
}

/// A cache that exists in addition to the measured cache.
#[derive(Debug)]
pub struct OtherCache(KmemCache);

impl OtherCache {
    /// Allocates and frees one object.
    pub fn pair(&self) {
        let mut local = KmemAccess(&self.0);
        let object = local.alloc(1);
        local.free(object);
    }
    /// Drains the magazines of all CPUs.
    pub fn drain(&self) {
        self.0.drain(0..u32::try_from(crate::team::cpus()).unwrap_or(u32::MAX));
    }
}
