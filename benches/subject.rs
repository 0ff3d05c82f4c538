//! What is compared. A [`Subject`] hands out objects of one size to any number of threads; each thread talks to it through
//! a [`Local`] of its own, which for most subjects is a mere reference.
//!
//! All subjects do the same work for an object: hand it out, write its first word, take it back. The word is a *stamp*;
//! before anything is timed, [`Checked`] compares what was stamped with what is read back, so that a subject that hands
//! one object out twice, or an optimiser that removed the work, cannot win.

use std::cell::OnceCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// An object of `WORDS` times 8 bytes. Whoever moves one in (slabs that store values) moves no byte but the stamp's.
pub type Bytes<const WORDS: usize> = [MaybeUninit<u64>; WORDS];

/// An object whose first word is `stamp`.
#[inline(always)]
pub fn stamped<const WORDS: usize>(stamp: u64) -> Bytes<WORDS> {
    let mut bytes = [MaybeUninit::uninit(); WORDS];
    bytes[0] = MaybeUninit::new(stamp);
    bytes
}

/// What a subject is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The harness alone: it allocates nothing.
    Floor,
    /// This project.
    Ours,
    /// This project, of an older commit.
    Before,
    /// A general allocator: the best of these is what ratios refer to.
    General,
    /// A pool of objects of one kind.
    Pool,
}

/// Something that hands out objects of one size. Made anew for each question and size, kept over the rounds.
pub trait Subject: Sync + Sized + 'static {
    /// As shown, and as `--subjects` takes it.
    const NAME: &'static str;
    /// What it is to the others.
    const KIND: Kind;
    /// Whether an object may be freed by another thread than the one that allocated it.
    const SHARED: bool = true;
    /// Whether an allocation costs time in proportion to the objects that are out.
    const LINEAR: bool = false;
    /// Whether objects are objects: false for the floor only, whose objects overlap.
    const CHECKED: bool = true;
    /// What a thread uses.
    type Local<'s>: Local;

    /// Whether this machine has it.
    fn available() -> bool {
        true
    }
    /// For at most `live` objects at a time.
    fn new(live: usize) -> Self;
    /// For the calling thread.
    fn local(&self) -> Self::Local<'_>;
}

/// A thread's use of a [`Subject`].
pub trait Local {
    /// An object in use.
    type Object: Send;

    /// An object whose first word is `stamp`.
    ///
    /// # Panics
    /// Out of memory.
    fn alloc(&mut self, stamp: u64) -> Self::Object;
    /// The first word.
    fn stamp(&self, object: &Self::Object) -> u64;
    /// Where the first word is, if others may write to it while the object is in use.
    fn address(&self, _object: &Self::Object) -> Option<NonNull<u64>> {
        None
    }
    /// Takes an object back.
    fn free(&mut self, object: Self::Object);
    /// Gives as much memory back to the system as the subject has a request for.
    fn give_back(&mut self) {}
    /// Ends a reaping interval, if the subject has them.
    fn reap(&mut self) {}
}

/// A raw object, freed by hand.
#[derive(Debug)]
pub struct Raw(pub NonNull<u64>);

// SAFETY: an owned address; whoever has the `Raw` has the object.
unsafe impl Send for Raw {}

impl Raw {
    /// Stamps a new object.
    ///
    /// # Safety
    /// At least 8 aligned bytes, the caller's alone.
    #[inline(always)]
    pub unsafe fn stamped(object: NonNull<u8>, stamp: u64) -> Self {
        let object = object.cast::<u64>();
        // SAFETY: the caller's promise.
        unsafe { object.write(stamp) };
        Self(hide(object))
    }
    /// The first word.
    #[inline(always)]
    pub fn stamp(&self) -> u64 {
        // SAFETY: stamped when it was made, and not freed while there is a `Raw`.
        unsafe { self.0.read() }
    }
}

/// The same address, but the compiler can no longer tell: it must assume that the object was looked at, and so neither
/// leaves the stamp out nor an allocation whose free it sees. Costs no instruction (`black_box` goes through memory).
#[inline(always)]
pub fn hide<T>(address: NonNull<T>) -> NonNull<T> {
    #[cfg(target_arch = "x86_64")]
    {
        let mut address = address.as_ptr();
        // SAFETY: no instruction; the register comes out as it went in, so it is not null.
        unsafe {
            std::arch::asm!("/* {} */", inout(reg) address, options(nostack, preserves_flags));
            NonNull::new_unchecked(address)
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(address)
}

/// As [`hide`], for subjects whose objects are numbers.
#[inline(always)]
pub fn hide_index(index: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let mut index = index;
        // SAFETY: no instruction.
        unsafe { std::arch::asm!("/* {} */", inout(reg) index, options(nostack, preserves_flags)) };
        index
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(index)
}

/// A [`Local`] that stamps every object differently and sums what it stamped and what it reads back before each free.
#[derive(Debug)]
pub struct Checked<'l, L> {
    local: &'l mut L,
    next: u64,
    /// Of the stamps written and read, wrapping.
    pub written: u64,
    /// See `written`.
    pub read: u64,
}

impl<'l, L: Local> Checked<'l, L> {
    /// Checks what goes through it from now on.
    pub fn new(local: &'l mut L) -> Self {
        Self { local, next: 0, written: 0, read: 0 }
    }
    /// Everything was freed: what was read must be what was written.
    ///
    /// # Panics
    /// It is not.
    pub fn finish<S: Subject>(self) {
        assert!(!S::CHECKED || self.written == self.read, "{}: objects did not keep their stamps", S::NAME);
    }
}

impl<L: Local> Local for Checked<'_, L> {
    type Object = L::Object;
    fn alloc(&mut self, _: u64) -> L::Object {
        // An odd multiplier: sums of few stamps are not equal by accident.
        self.next = self.next.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let stamp = self.next.wrapping_mul(self.next | 1);
        self.written = self.written.wrapping_add(stamp);
        self.local.alloc(stamp)
    }
    fn stamp(&self, object: &L::Object) -> u64 {
        self.local.stamp(object)
    }
    fn free(&mut self, object: L::Object) {
        self.read = self.read.wrapping_add(self.local.stamp(&object));
        self.local.free(object);
    }
}

/// A subject that is made when it is first needed, so that a baseline can be taken before.
#[derive(Debug)]
pub struct Made<S> {
    subject: OnceCell<S>,
    live: usize,
}

impl<S: Subject> Made<S> {
    /// Not made yet; for at most `live` objects at a time.
    pub fn later(live: usize) -> Self {
        Self { subject: OnceCell::new(), live }
    }
    /// The subject.
    pub fn get(&self) -> &S {
        self.subject.get_or_init(|| S::new(self.live))
    }
}

/// A question: work that any subject can be put to.
pub trait Work: Clone + 'static {
    /// The most objects that are out at a time.
    fn live(&self) -> usize;
    /// Whether the question can be put to `S`.
    fn suits<S: Subject>(&self) -> bool {
        !S::LINEAR || self.live() <= 10_000
    }
    /// One round: a value for each column of the group.
    fn run<S: Subject>(&self, made: &Made<S>) -> Vec<f64>;
}
