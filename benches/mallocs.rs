//! Memory of any size: general allocators, and this project's malloc level.
//!
//! All are called through `GlobalAlloc` with the size at both ends, as Rust programs call them; so those that can free
//! faster when they are told the size are told.

use crate::rounds::Contender;
use crate::subject::{Kind, Local, Raw, Subject};
use std::alloc::{GlobalAlloc, Layout};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ptr::NonNull;
use uslab::{Gfp, Kmalloc, Subsystem};

/// What hands out memory of any size, to any thread, aligned to 8 bytes.
pub trait Malloc: Sync + Sized + Debug + 'static {
    /// As shown.
    const NAME: &'static str;
    /// What it is to the others.
    const KIND: Kind;

    /// Ready for use.
    fn new() -> Self;
    /// `size` bytes, at least 8.
    fn alloc(&self, size: usize) -> NonNull<u8>;
    /// Takes memory back.
    ///
    /// # Safety
    /// From `alloc` with this size, and nobody uses it any more.
    unsafe fn free(&self, memory: NonNull<u8>, size: usize);
    /// Gives as much memory back to the system as it has a request for.
    fn give_back(&self) {}
}

/// This project's malloc level: four size classes a doubling, frees told the size.
#[derive(Debug)]
pub struct Ours(uslab::Malloc);

impl Malloc for Ours {
    const NAME: &'static str = "malloc";
    const KIND: Kind = Kind::Ours;

    fn new() -> Self {
        let subsystem = Subsystem::global().expect("the global subsystem");
        Self(uslab::Malloc::new(subsystem).expect("size classes"))
    }
    #[inline(always)]
    fn alloc(&self, size: usize) -> NonNull<u8> {
        self.0.alloc(layout(size), Gfp::KERNEL).expect("memory")
    }
    #[inline(always)]
    unsafe fn free(&self, memory: NonNull<u8>, size: usize) {
        // SAFETY: passed on; the layout is as in `alloc`.
        unsafe { self.0.free_sized(memory, layout(size)) };
    }
    fn give_back(&self) {
        crate::ours::give_back_all();
    }
}

/// This project's kernel-like level: 13 classes, frees find the cache by the address.
#[derive(Debug)]
pub struct OursUnsized(&'static Kmalloc);

impl Malloc for OursUnsized {
    const NAME: &'static str = "kmalloc";
    const KIND: Kind = Kind::Ours;

    fn new() -> Self {
        Self(Subsystem::global().expect("the global subsystem").kmalloc())
    }
    #[inline(always)]
    fn alloc(&self, size: usize) -> NonNull<u8> {
        self.0.alloc(size, Gfp::KERNEL).expect("memory")
    }
    #[inline(always)]
    unsafe fn free(&self, memory: NonNull<u8>, _: usize) {
        // SAFETY: passed on.
        unsafe { self.0.free(memory) };
    }
    fn give_back(&self) {
        crate::ours::give_back_all();
    }
}

/// What all are asked for.
#[inline(always)]
fn layout(size: usize) -> Layout {
    // SAFETY: a power of two; no bench has sizes near the largest.
    unsafe { Layout::from_size_align_unchecked(size, 8) }
}

macro_rules! general {
    ($($(#[$meta:meta])* $name:ident = $shown:literal, $kind:ident, $allocator:expr, $give_back:expr;)*) => { $(
        $(#[$meta])*
        #[derive(Debug)]
        pub struct $name;
        $(#[$meta])*
        impl Malloc for $name {
            const NAME: &'static str = $shown;
            const KIND: Kind = Kind::$kind;
            fn new() -> Self {
                Self
            }
            #[inline(always)]
            fn alloc(&self, size: usize) -> NonNull<u8> {
                // SAFETY: not empty.
                let memory = unsafe { $allocator.alloc(layout(size)) };
                NonNull::new(memory).expect("memory")
            }
            #[inline(always)]
            unsafe fn free(&self, memory: NonNull<u8>, size: usize) {
                // SAFETY: the caller's promise; the layout is as in `alloc`.
                unsafe { $allocator.dealloc(memory.as_ptr(), layout(size)) };
            }
            fn give_back(&self) {
                $give_back
            }
        }
    )* };
}
general! {
    /// The C library's.
    System = "system", General, std::alloc::System, {
        // SAFETY: no precondition.
        unsafe { libc::malloc_trim(0) };
    };
    /// mimalloc, version 3.
    #[cfg(feature = "peers")]
    MiMalloc = "mimalloc", General, mimalloc::MiMalloc, {
        // SAFETY: no precondition.
        unsafe { libmimalloc_sys::mi_collect(true) };
    };
    /// jemalloc, as tikv builds it.
    #[cfg(feature = "peers")]
    Jemalloc = "jemalloc", General, tikv_jemallocator::Jemalloc, {
        // 4096 is `MALLCTL_ARENAS_ALL`. What the thread itself keeps is flushed first.
        // SAFETY: both are commands without a value.
        unsafe {
            for command in [c"thread.tcache.flush", c"arena.4096.purge"] {
                tikv_jemalloc_sys::mallctl(
                    command.as_ptr(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    0,
                );
            }
        }
    };
    /// snmalloc. Its Rust crate offers no way to ask for memory back.
    #[cfg(feature = "peers")]
    SnMalloc = "snmalloc", General, snmalloc_rs::SnMalloc, {};
    /// Google's TCMalloc. With a C library that registers restartable sequences itself (glibc 2.35 or later) it runs in
    /// its slow mode, so it is no yardstick.
    #[cfg(feature = "peers")]
    TcMalloc = "tcmalloc", Beside, tcmalloc_better::TCMalloc, {};
}

/// Objects of one size from a [`Malloc`].
#[derive(Debug)]
pub struct OneSize<M, const WORDS: usize>(M);

impl<M: Malloc, const WORDS: usize> Subject for OneSize<M, WORDS> {
    const NAME: &'static str = M::NAME;
    const KIND: Kind = M::KIND;
    type Local<'s> = OneSizeLocal<'s, M, WORDS>;

    fn new(_: usize) -> Self {
        Self(M::new())
    }
    fn local(&self) -> OneSizeLocal<'_, M, WORDS> {
        OneSizeLocal(&self.0, PhantomData)
    }
}

/// The allocator, from any thread.
#[derive(Debug)]
pub struct OneSizeLocal<'s, M, const WORDS: usize>(&'s M, PhantomData<[u64; WORDS]>);

impl<M: Malloc, const WORDS: usize> Local for OneSizeLocal<'_, M, WORDS> {
    type Object = Raw;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> Raw {
        // SAFETY: just allocated, at least a word.
        unsafe { Raw::stamped(self.0.alloc(WORDS * 8), stamp) }
    }
    fn stamp(&self, object: &Raw) -> u64 {
        object.stamp()
    }
    fn address(&self, object: &Raw) -> Option<NonNull<u64>> {
        Some(object.0)
    }
    #[inline(always)]
    fn free(&mut self, object: Raw) {
        // SAFETY: from `alloc` above with this size; the `Raw` is gone with it.
        unsafe { self.0.free(object.0.cast(), WORDS * 8) };
    }
    fn give_back(&mut self) {
        self.0.give_back();
    }
}

/// A question for the malloc level: work that needs several sizes.
pub trait MallocWork: Clone + 'static {
    /// One round: a value for each column of the group.
    fn run<M: Malloc>(&self, malloc: &M) -> Vec<f64>;
}

/// This project's malloc level and the general allocators.
pub fn contenders(work: &impl MallocWork) -> Vec<Contender> {
    fn contender<M: Malloc>(work: &impl MallocWork) -> Contender {
        let (work, malloc) = (work.clone(), M::new());
        Contender::new(M::NAME, M::KIND, move || work.run(&malloc))
    }
    vec![
        contender::<Ours>(work),
        contender::<OursUnsized>(work),
        contender::<System>(work),
        #[cfg(feature = "peers")]
        contender::<MiMalloc>(work),
        #[cfg(feature = "peers")]
        contender::<Jemalloc>(work),
        #[cfg(feature = "peers")]
        contender::<SnMalloc>(work),
        #[cfg(feature = "peers")]
        contender::<TcMalloc>(work),
    ]
}
