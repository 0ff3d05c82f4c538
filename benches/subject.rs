//! Subjects of comparisons. A [`Subject`] allocates objects of one size for any number of threads. Each thread uses the
//! subject through its own [`ThreadAccess`], which for most subjects is only a reference.
//!
//! All subjects do the same work for an object: they allocate it, write its first word, and free it. The first word of
//! an object is its *stamp*. Before the timing starts, [`Checked`] compares the sum of the stamps written with the sum
//! of the stamps read back. A subject that allocates one object twice therefore fails, and the optimiser cannot remove
//! the work.

use std::cell::OnceCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// A test object of `WORDS` words. Moving the object (into slabs that store values) copies only the stamp.
pub type Bytes<const WORDS: usize> = [MaybeUninit<u64>; WORDS];

/// Makes an object whose first word is `stamp`.
#[inline(always)]
pub fn stamped_bytes<const WORDS: usize>(stamp: u64) -> Bytes<WORDS> {
    let mut bytes = [MaybeUninit::uninit(); WORDS];
    bytes[0] = MaybeUninit::new(stamp);
    bytes
}

/// The kind of a subject; determines the subjects with which it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The harness without an allocator.
    Floor,
    /// A subject of this project.
    Ours,
    /// A subject of this project at an older commit.
    Before,
    /// A general allocator; tables show ratios to the best general allocator.
    General,
    /// A pool of objects of one kind.
    Pool,
}

/// An allocator of objects of one size. The benchmark creates one subject for each question and object size, and uses
/// it in all rounds.
pub trait Subject: Sync + Sized + 'static {
    /// Name of the subject in tables and for `--subjects`.
    const NAME: &'static str;
    /// Kind of the subject, for comparisons.
    const KIND: Kind;
    /// `true` if an object may be freed by another thread than the one that allocated it.
    const SHARED: bool = true;
    /// `true` if the time of an allocation is proportional to the number of objects in use.
    const LINEAR: bool = false;
    /// `true` if live objects do not overlap. Only the floor sets `false`, because its objects overlap.
    const HAS_DISJOINT_OBJECTS: bool = true;
    /// The value through which one thread uses the subject.
    type ThreadAccess<'s>: ThreadAccess;

    /// Returns `true` if this machine has the subject.
    fn available() -> bool {
        true
    }
    /// Creates the subject; at most `live` objects will be in use at a time.
    fn new(live: usize) -> Self;
    /// Returns the value through which the calling thread uses the subject.
    fn local(&self) -> Self::ThreadAccess<'_>;
}

/// The value through which one thread uses a [`Subject`].
pub trait ThreadAccess {
    /// An object in use; dropping the value need not free the object.
    type Object: Send;

    /// Allocates an object whose first word is `stamp`.
    ///
    /// # Panics
    /// Panics if memory for the object is short.
    fn alloc(&mut self, stamp: u64) -> Self::Object;
    /// Reads the first word of an object.
    fn stamp(&self, object: &Self::Object) -> u64;
    /// Returns the address of the object's first word; `None` if other code must not access the object.
    fn address(&self, _object: &Self::Object) -> Option<NonNull<u64>> {
        None
    }
    /// Frees an object.
    fn free(&mut self, object: Self::Object);
    /// Returns as much memory to the system as the subject's interface allows.
    fn give_back(&mut self) {}
    /// Ends a reaping interval; does nothing if the subject has no reaping intervals.
    fn reap(&mut self) {}
}

/// The address of an object that the caller must free explicitly.
#[derive(Debug)]
pub struct RawObject(pub NonNull<u64>);

// SAFETY: the owner of the `RawObject` owns the object at the address.
unsafe impl Send for RawObject {}

impl RawObject {
    /// Writes the stamp to a new object.
    ///
    /// # Safety
    /// `object` has at least 8 bytes, is aligned to 8, and belongs to the caller.
    #[inline(always)]
    pub unsafe fn stamped(object: NonNull<u8>, stamp: u64) -> Self {
        let object = object.cast::<u64>();
        // SAFETY: by contract, the caller owns 8 aligned bytes.
        unsafe { object.write(stamp) };
        Self(opaque_pointer(object))
    }
    /// Returns the first word of the object.
    #[inline(always)]
    pub fn stamp(&self) -> u64 {
        // SAFETY: the object was stamped when the `RawObject` was created, and is not freed while it exists.
        unsafe { self.0.read() }
    }
}

/// Returns the pointer unchanged, but hides from the compiler that the result equals the argument.
///
/// The compiler must assume that other code reads the object; it therefore keeps the write of the stamp, and every
/// allocation. Hiding an address this way costs no instruction, whereas `black_box` stores it in memory and loads it
/// again.
#[inline(always)]
pub fn opaque_pointer<T>(address: NonNull<T>) -> NonNull<T> {
    #[cfg(target_arch = "x86_64")]
    {
        let mut address = address.as_ptr();
        // SAFETY: the assembly has no instruction; the register is unchanged, so it is not null.
        unsafe {
            std::arch::asm!("/* {} */", inout(reg) address, options(nostack, preserves_flags));
            NonNull::new_unchecked(address)
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(address)
}

/// Hides an index from the compiler as [`opaque_pointer`] hides an address, for subjects whose objects are numbers.
#[inline(always)]
pub fn hide_index(index: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let mut index = index;
        // SAFETY: the assembly has no instruction.
        unsafe { std::arch::asm!("/* {} */", inout(reg) index, options(nostack, preserves_flags)) };
        index
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(index)
}

/// A [`ThreadAccess`] that stamps every object differently; it sums the stamps that it writes, and the stamps that it
/// reads before each free.
#[derive(Debug)]
pub struct Checked<'l, L> {
    local: &'l mut L,
    next: u64,
    /// Wrapping sum of the stamps that were written.
    pub written_sum: u64,
    /// Wrapping sum of the stamps that were read.
    pub read_sum: u64,
}

impl<'l, L: ThreadAccess> Checked<'l, L> {
    /// Wraps `local`, and sums the stamps of all later operations.
    pub fn new(local: &'l mut L) -> Self {
        Self { local, next: 0, written_sum: 0, read_sum: 0 }
    }
    /// Checks that the sums of written and read stamps are equal after all objects were freed.
    ///
    /// # Panics
    /// Panics if the sums differ.
    pub fn finish<S: Subject>(self) {
        assert!(
            !S::HAS_DISJOINT_OBJECTS || self.written_sum == self.read_sum,
            "{}: the objects must keep their stamps",
            S::NAME
        );
    }
}

impl<L: ThreadAccess> ThreadAccess for Checked<'_, L> {
    type Object = L::Object;
    fn alloc(&mut self, _: u64) -> L::Object {
        // The odd multiplier makes it unlikely that sums of few stamps are equal by accident.
        self.next = self.next.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let stamp = self.next.wrapping_mul(self.next | 1);
        self.written_sum = self.written_sum.wrapping_add(stamp);
        self.local.alloc(stamp)
    }
    fn stamp(&self, object: &L::Object) -> u64 {
        self.local.stamp(object)
    }
    fn free(&mut self, object: L::Object) {
        self.read_sum = self.read_sum.wrapping_add(self.local.stamp(&object));
        self.local.free(object);
    }
}

/// A subject that is created at its first use, so that a caller can measure a baseline before it exists.
#[derive(Debug)]
pub struct LazySubject<S> {
    subject: OnceCell<S>,
    live: usize,
}

impl<S: Subject> LazySubject<S> {
    /// Makes a lazy subject for at most `live` objects at a time, without creating the subject yet.
    pub fn lazy(live: usize) -> Self {
        Self { subject: OnceCell::new(), live }
    }
    /// Returns the subject, and creates it at the first call.
    pub fn get(&self) -> &S {
        self.subject.get_or_init(|| S::new(self.live))
    }
}

/// Benchmark work that is generic over the subject.
pub trait Work: Clone + 'static {
    /// Maximum number of objects that are in use at a time.
    fn live(&self) -> usize;
    /// Returns `true` if `S` can do this work.
    fn suits<S: Subject>(&self) -> bool {
        !S::LINEAR || self.live() <= 10_000
    }
    /// Runs one round. Does the work with the subject `S`, and returns a value for each column of the group.
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64>;
}
