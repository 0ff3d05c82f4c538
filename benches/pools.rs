//! Pools of objects of one kind, as Rust programs use them, and the floor, which is the harness without an allocator.

use crate::subject::RawObject;
#[cfg(feature = "peers")]
use crate::subject::{Bytes, opaque_pointer, stamped_bytes};
use crate::subject::{Kind, Subject, ThreadAccess, hide_index};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
#[cfg(feature = "peers")]
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The floor subject, which has no allocator: its objects are consecutive slots of a ring. The floor's cost is the cost
/// of the harness.
#[derive(Debug)]
pub struct Null {
    live: usize,
}

impl Subject for Null {
    const NAME: &'static str = "null";
    const KIND: Kind = Kind::Floor;
    const SHARED: bool = false;
    const HAS_DISJOINT_OBJECTS: bool = false;
    type ThreadAccess<'s> = NullAccess;

    fn new(live: usize) -> Self {
        Self { live }
    }
    fn local(&self) -> NullAccess {
        NullAccess { places: vec![0; self.live.next_power_of_two()].into(), next: 0 }
    }
}

/// The ring of slots that the floor hands out.
#[derive(Debug)]
pub struct NullAccess {
    places: Box<[u64]>,
    next: usize,
}

impl ThreadAccess for NullAccess {
    type Object = usize;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> usize {
        self.next = (self.next + 1) & (self.places.len() - 1);
        self.places[self.next] = stamp;
        hide_index(self.next)
    }
    fn stamp(&self, object: &usize) -> u64 {
        self.places[*object]
    }
    #[inline(always)]
    fn free(&mut self, object: usize) {
        hide_index(object);
    }
}

/// A subject that keeps free objects in a thread-local `Vec`, with the C library behind it; a program can write this in
/// ten lines. The thread-local list does not exchange objects between threads, and frees memory only when its thread
/// exits.
#[derive(Debug)]
pub struct TlsVec<const WORDS: usize>;

/// Number of object sizes that a bench can have; the sizes are powers of two up to `2^(SIZES - 1)` words.
const SIZES: usize = 8;

fn layout(words: usize) -> Layout {
    Layout::array::<u64>(words).expect("the size must not overflow")
}

/// Free lists of a thread, one list for each size.
#[derive(Debug)]
struct FreeLists([Vec<NonNull<u8>>; SIZES]);

impl FreeLists {
    fn clear(&mut self) {
        for (size, list) in self.0.iter_mut().enumerate() {
            for object in std::mem::take(list) {
                // SAFETY: each list holds objects of its size that `alloc` allocated here, each object once.
                unsafe { System.dealloc(object.as_ptr(), layout(1 << size)) };
            }
        }
    }
}
impl Drop for FreeLists {
    fn drop(&mut self) {
        self.clear();
    }
}

thread_local! {
    static FREE: RefCell<FreeLists> = const { RefCell::new(FreeLists([const { Vec::new() }; SIZES])) };
}

impl<const WORDS: usize> Subject for TlsVec<WORDS> {
    const NAME: &'static str = "tls-vec";
    const KIND: Kind = Kind::Pool;
    type ThreadAccess<'s> = TlsVecAccess<WORDS>;

    fn new(_: usize) -> Self {
        const { assert!(WORDS.is_power_of_two() && WORDS.ilog2() < SIZES as u32) };
        Self
    }
    fn local(&self) -> TlsVecAccess<WORDS> {
        TlsVecAccess
    }
}

/// The calling thread's list of free objects.
#[derive(Debug)]
pub struct TlsVecAccess<const WORDS: usize>;

impl<const WORDS: usize> ThreadAccess for TlsVecAccess<WORDS> {
    type Object = RawObject;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> RawObject {
        let object = FREE.with_borrow_mut(|free| free.0[WORDS.ilog2() as usize].pop());
        let object = object.unwrap_or_else(|| {
            // SAFETY: the layout is not empty.
            NonNull::new(unsafe { System.alloc(layout(WORDS)) }).expect("memory")
        });
        // SAFETY: the object was just popped or allocated, so this thread owns it.
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
        FREE.with_borrow_mut(|free| free.0[WORDS.ilog2() as usize].push(object.0.cast()));
    }
    fn give_back(&mut self) {
        FREE.with_borrow_mut(FreeLists::clear);
    }
}

/// The crate `slab`, for one thread: values are moved into and out of the slab, and a number identifies each value.
#[cfg(feature = "peers")]
#[derive(Debug)]
pub struct Slab<const WORDS: usize>;

#[cfg(feature = "peers")]
impl<const WORDS: usize> Subject for Slab<WORDS> {
    const NAME: &'static str = "slab";
    const KIND: Kind = Kind::Pool;
    const SHARED: bool = false;
    type ThreadAccess<'s> = slab::Slab<Bytes<WORDS>>;

    fn new(_: usize) -> Self {
        Self
    }
    fn local(&self) -> slab::Slab<Bytes<WORDS>> {
        slab::Slab::new()
    }
}

#[cfg(feature = "peers")]
impl<const WORDS: usize> ThreadAccess for slab::Slab<Bytes<WORDS>> {
    type Object = usize;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> usize {
        hide_index(self.insert(stamped_bytes(stamp)))
    }
    fn stamp(&self, object: &usize) -> u64 {
        // SAFETY: `alloc` wrote the object's first word.
        unsafe { self[*object][0].assume_init() }
    }
    #[inline(always)]
    fn free(&mut self, object: usize) {
        self.remove(object);
    }
    fn give_back(&mut self) {
        self.shrink_to_fit();
    }
}

/// The crate `sharded-slab`, which works like the crate `slab` and supports several threads.
#[cfg(feature = "peers")]
#[derive(Debug)]
pub struct ShardedSlab<const WORDS: usize>(sharded_slab::Slab<Bytes<WORDS>>);

#[cfg(feature = "peers")]
impl<const WORDS: usize> Subject for ShardedSlab<WORDS> {
    const NAME: &'static str = "sharded-slab";
    const KIND: Kind = Kind::Pool;
    type ThreadAccess<'s> = &'s sharded_slab::Slab<Bytes<WORDS>>;

    fn new(_: usize) -> Self {
        Self(sharded_slab::Slab::new())
    }
    fn local(&self) -> Self::ThreadAccess<'_> {
        &self.0
    }
}

#[cfg(feature = "peers")]
impl<const WORDS: usize> ThreadAccess for &sharded_slab::Slab<Bytes<WORDS>> {
    type Object = usize;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> usize {
        hide_index(self.insert(stamped_bytes(stamp)).expect("the shard must have room"))
    }
    fn stamp(&self, object: &usize) -> u64 {
        let entry = self.get(*object).expect("the object must be in use");
        // SAFETY: `alloc` wrote the object's first word.
        unsafe { entry[0].assume_init() }
    }
    #[inline(always)]
    fn free(&mut self, object: usize) {
        self.remove(object);
    }
}

/// The crate `object-pool`: boxes in a locked `Vec`.
#[cfg(feature = "peers")]
pub struct ObjectPool<const WORDS: usize>(object_pool::Pool<Box<Bytes<WORDS>>>);

#[cfg(feature = "peers")]
impl<const WORDS: usize> std::fmt::Debug for ObjectPool<WORDS> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Self::NAME)
    }
}

#[cfg(feature = "peers")]
impl<const WORDS: usize> Subject for ObjectPool<WORDS> {
    const NAME: &'static str = "object-pool";
    const KIND: Kind = Kind::Pool;
    type ThreadAccess<'s> = &'s object_pool::Pool<Box<Bytes<WORDS>>>;

    fn new(_: usize) -> Self {
        Self(object_pool::Pool::from_vec(Vec::new()))
    }
    fn local(&self) -> Self::ThreadAccess<'_> {
        &self.0
    }
}

#[cfg(feature = "peers")]
impl<'s, const WORDS: usize> ThreadAccess for &'s object_pool::Pool<Box<Bytes<WORDS>>> {
    type Object = object_pool::Reusable<'s, Box<Bytes<WORDS>>>;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> Self::Object {
        let mut object = self.pull(|| Box::new([MaybeUninit::uninit(); WORDS]));
        object[0].write(stamp);
        opaque_pointer(NonNull::from_mut(&mut **object));
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
}

/// The linear pool of the crate `lockfree-object-pool`: objects are not moved, and each page has one bit per object.
#[cfg(feature = "peers")]
pub struct LinearPool<const WORDS: usize>(lockfree_object_pool::LinearObjectPool<Bytes<WORDS>>);

#[cfg(feature = "peers")]
impl<const WORDS: usize> std::fmt::Debug for LinearPool<WORDS> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Self::NAME)
    }
}

#[cfg(feature = "peers")]
impl<const WORDS: usize> Subject for LinearPool<WORDS> {
    const NAME: &'static str = "lockfree-object-pool";
    const KIND: Kind = Kind::Pool;
    const LINEAR: bool = true;
    type ThreadAccess<'s> = &'s lockfree_object_pool::LinearObjectPool<Bytes<WORDS>>;

    fn new(_: usize) -> Self {
        Self(lockfree_object_pool::LinearObjectPool::new(|| [MaybeUninit::uninit(); WORDS], |_| ()))
    }
    fn local(&self) -> Self::ThreadAccess<'_> {
        &self.0
    }
}

#[cfg(feature = "peers")]
impl<'s, const WORDS: usize> ThreadAccess for &'s lockfree_object_pool::LinearObjectPool<Bytes<WORDS>> {
    type Object = lockfree_object_pool::LinearReusable<'s, Bytes<WORDS>>;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> Self::Object {
        let mut object = self.pull();
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
}

/// The `ArrayQueue` of the crate `crossbeam-queue`, used as a pool of boxes, with room for all objects in use.
#[cfg(feature = "peers")]
#[derive(Debug)]
pub struct ArrayQueue<const WORDS: usize>(crossbeam_queue::ArrayQueue<Box<Bytes<WORDS>>>);

#[cfg(feature = "peers")]
impl<const WORDS: usize> Subject for ArrayQueue<WORDS> {
    const NAME: &'static str = "array-queue";
    const KIND: Kind = Kind::Pool;
    type ThreadAccess<'s> = &'s crossbeam_queue::ArrayQueue<Box<Bytes<WORDS>>>;

    fn new(live: usize) -> Self {
        Self(crossbeam_queue::ArrayQueue::new(live.max(1)))
    }
    fn local(&self) -> Self::ThreadAccess<'_> {
        &self.0
    }
}

#[cfg(feature = "peers")]
impl<const WORDS: usize> ThreadAccess for &crossbeam_queue::ArrayQueue<Box<Bytes<WORDS>>> {
    type Object = Box<Bytes<WORDS>>;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> Self::Object {
        let mut object = self.pop().unwrap_or_else(|| Box::new([MaybeUninit::uninit(); WORDS]));
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
        // If the queue is full, the object is freed to the C library.
        drop(self.push(object));
    }
}
