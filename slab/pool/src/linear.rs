//! The linear (bump) allocator: a position that moves forward through memory. A linear allocator frees only whole
//! scopes.
//!
//! ```text
//!  chunk 0                    chunk 1 (when chunk 0 was full)
//!  |AAAA|BB|..pad..|CCC|lost| |DDDDDD|            free            |
//!                                    ^ head
//! ```
//!
//! - An allocation loads the head position, rounds it up, compares it with the end, and stores it. An allocation takes
//!   O(1), unless it adds a chunk.
//! - The end of a [scope](Arena::scope) or a [reset](Arena::reset) stores the head position. The end of a scope takes
//!   O(1), unless it frees chunks.
//! - Waste: padding for alignments, and the unused rest of each full chunk. The allocator stores no metadata in the
//!   memory.
//!
//! **Destructors do not run.** An arena does not drop its objects, so memory and other resources that they own are
//! leaked. Collections with an allocator parameter ([`allocator-api2`]) drop their elements, and may be stored in an
//! arena or a scope.
//!
//! Sources: Hanson, "Fast allocation and deallocation of memory based on object lifetimes" (1990), for the chain of
//! chunks; Fredriksson, "Scope Stack Allocation" (DICE), for scopes.
//!
//! [`allocator-api2`]: https://docs.rs/allocator-api2

use crate::area::Area;
use crate::error::{PoolError, Refused};
use crate::words::{RawWords, Span};
use alloc::vec::Vec;
use core::alloc::Layout;
use core::cell::RefCell;
use core::ptr::NonNull;

/// Returns the start and the end of an allocation of `layout` at or after `head`, in memory of `bytes` bytes at
/// `address`.
#[inline]
pub fn place(address: usize, bytes: usize, head: usize, layout: Layout) -> Option<(usize, usize)> {
    // Alignments are powers of two, so no division is needed.
    let mask = layout.align() - 1;
    let position = (address.checked_add(head)?.checked_add(mask)? & !mask) - address;
    position.checked_add(layout.size()).filter(|end| *end <= bytes).map(|end| (position, end))
}

/// A chain of memory chunks, with a head position in the last chunk.
#[derive(Debug)]
pub struct Chain<C> {
    full: Vec<C>,
    last: C,
    /// Position of the first free byte in the last chunk.
    head: usize,
}

/// A position in a [`Chain`]: the index of a chunk, and a byte in the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head {
    /// Index of the chunk, from 0.
    pub chunk: usize,
    /// Position of the first free byte in the chunk.
    pub at: usize,
}

impl<C: Span> Chain<C> {
    /// Makes a chain of one chunk.
    pub const fn new(first: C) -> Self {
        Self { full: Vec::new(), last: first, head: 0 }
    }
    /// Allocates `layout` at the head of the last chunk, and returns the start of the allocation.
    #[inline]
    pub fn place(&mut self, layout: Layout) -> Option<usize> {
        let (at, end) = place(self.last.address(), self.last.size(), self.head, layout)?;
        self.head = end;
        Some(at)
    }
    /// Appends a chunk, which serves the later allocations. The rest of the previous chunk stays unused.
    ///
    /// # Errors
    /// If memory for the list of chunks is short, returns the chunk as the error value.
    pub fn push(&mut self, chunk: C) -> Result<(), C> {
        if self.full.try_reserve(1).is_err() {
            return Err(chunk);
        }
        self.full.push(core::mem::replace(&mut self.last, chunk));
        self.head = 0;
        Ok(())
    }
    /// Returns the current head position.
    pub fn head(&self) -> Head {
        Head { chunk: self.full.len(), at: self.head }
    }
    /// Moves the head position back to `to`. Chunks after the new head are dropped.
    pub fn rewind(&mut self, head: Head) {
        debug_assert!(head <= self.head());
        if head.chunk < self.full.len() {
            self.full.truncate(head.chunk + 1);
            if let Some(last) = self.full.pop() {
                self.last = last;
            }
        }
        self.head = head.at;
    }
    #[inline]
    fn top(&self, address: usize, size: usize) -> Option<usize> {
        let at = address.checked_sub(self.last.address())?;
        (at + size == self.head).then_some(at)
    }
    /// Returns the number of bytes from the start to a position, including padding and unused ends of chunks.
    pub fn bytes_to(&self, head: Head) -> usize {
        self.full[..head.chunk].iter().map(Span::size).sum::<usize>() + head.at
    }
    /// The first chunk.
    pub fn first(&self) -> &C {
        self.full.first().unwrap_or(&self.last)
    }
    /// Returns a mutable reference to the first chunk.
    pub fn first_mut(&mut self) -> &mut C {
        self.full.first_mut().unwrap_or(&mut self.last)
    }
    /// The last chunk.
    pub fn last(&self) -> &C {
        &self.last
    }
    /// Returns a mutable reference to the last chunk.
    pub fn last_mut(&mut self) -> &mut C {
        &mut self.last
    }
    /// Returns the chunk with index `chunk`.
    pub fn get(&self, chunk: usize) -> Option<&C> {
        if chunk == self.full.len() { Some(&self.last) } else { self.full.get(chunk) }
    }
    /// Returns a mutable reference to the chunk with index `chunk`.
    pub fn get_mut(&mut self, chunk: usize) -> Option<&mut C> {
        if chunk == self.full.len() { Some(&mut self.last) } else { self.full.get_mut(chunk) }
    }
    /// Iterates over all chunks, in the order of their allocation.
    pub fn chunks(&self) -> impl Iterator<Item = &C> {
        self.full.iter().chain([&self.last])
    }
}

/// Memory for objects of any type that are freed together. See the [module](self).
///
/// ```
/// use uslab_pool::{Arena, HeapArea, StackArea};
///
/// // In an array, which does not grow.
/// let mut array = StackArea::<256>::new();
/// let frame = Arena::new(array.lend());
/// let name = frame.alloc_slice_copy(b"frame")?;
/// let mut lengths = frame.alloc_slice_fill_with(4, |i| i * i)?;
/// lengths[0] = name.len();
/// assert_eq!((&*name, &*lengths), (&b"frame"[..], &[5, 1, 4, 9][..]));
/// assert!(frame.alloc([0_u8; 256]).is_err(), "a full arena returns an error with the object");
///
/// // Chunk by chunk: 4,096 bytes each, or more for a larger object.
/// let level = Arena::growing(4096, |bytes| HeapArea::new(bytes, 16))?;
/// for n in 0..1000_u64 {
///     level.alloc([n; 8]).map_err(|_| "no memory")?;
/// }
/// assert_eq!(level.chunks(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Objects of an arena cannot outlive the arena or its reset:
///
/// ```compile_fail,E0502
/// # use uslab_pool::{Arena, StackArea};
/// let mut array = StackArea::<64>::new();
/// let mut arena = Arena::new(array.lend());
/// let object = arena.alloc(7).unwrap();
/// arena.reset();
/// *object = 8;
/// ```
#[derive(Debug)]
pub struct Arena<A, G = fn(usize) -> Result<A, PoolError>>(RefCell<Inner<A, G>>);

#[derive(Debug)]
struct Inner<A, G> {
    chain: Chain<RawWords<A>>,
    /// Minimum size of a new chunk in bytes.
    chunk: usize,
    grow: Option<G>,
}

// An arena made by `Arena::new` does not grow, so its type needs no growth function.
impl<A: Area> Arena<A> {
    /// Makes an arena in `area`; the arena does not grow. `area` may be any kind of area. An arena in an empty area has
    /// no room for objects.
    pub const fn new(area: A) -> Self {
        Self(RefCell::new(Inner { chain: Chain::new(RawWords(area)), chunk: 0, grow: None }))
    }
}

impl<A: Area, G: FnMut(usize) -> Result<A, PoolError>> Arena<A, G> {
    /// Makes an arena that gets chunks from `grow`, each with `chunk` bytes or, for a larger object, with more bytes.
    /// The call of `growing` makes the first chunk immediately.
    ///
    /// The closure `grow` may use any source of memory, and may enforce a limit. The closure must not use the arena for
    /// which it makes a chunk.
    ///
    /// # Errors
    /// Returns the errors of `grow`.
    pub fn growing(chunk: usize, mut grow: G) -> Result<Self, PoolError> {
        let chain = Chain::new(RawWords(grow(chunk)?));
        Ok(Self(RefCell::new(Inner { chain, chunk, grow: Some(grow) })))
    }

    fn place(&self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        let inner = &mut *self.0.borrow_mut();
        if let Some(at) = inner.chain.place(layout) {
            return Ok(inner.chain.last().at(at));
        }
        let error = Refused::NoRoom { bytes: layout.size(), align: layout.align() };
        let Some(grow) = &mut inner.grow else { return Err(error) };
        // The number of bytes suffices for any start of the chunk.
        let bytes = layout.size().saturating_add(layout.align() - 1).max(inner.chunk);
        let chunk = RawWords(grow(bytes).map_err(|_| Refused::Memory { bytes })?);
        // `grow` may have returned a smaller chunk than requested, which is then dropped.
        place(chunk.address(), chunk.size(), 0, layout).ok_or(error)?;
        inner.chain.push(chunk).map_err(|_| Refused::Memory { bytes })?;
        let at = inner.chain.place(layout).ok_or(error)?;
        Ok(inner.chain.last().at(at))
    }

    /// Allocates memory for `layout`, which is valid until the arena is reset or dropped. The bytes of the memory are
    /// unspecified.
    ///
    /// Cost: a few instructions, and one call of `grow` if another chunk is needed.
    ///
    /// # Errors
    /// Returns [`Refused::NoRoom`] if the arena does not grow, or if `grow` made the next chunk too small. Returns
    /// [`Refused::Memory`] if `grow` fails.
    pub fn alloc_layout(&self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        self.place(layout)
    }
    /// Allocates an object. The arena never drops the object (see the [module](self)).
    ///
    /// # Errors
    /// If the arena has no room, returns the object as the error value.
    pub fn alloc<T>(&self, object: T) -> Result<&mut T, T> {
        Scope { arena: self }.alloc(object)
    }
    /// Allocates memory for a slice, and copies the slice into it.
    ///
    /// # Errors
    /// Returns the errors of [`alloc_layout`](Self::alloc_layout).
    pub fn alloc_slice_copy<T: Copy>(&self, slice: &[T]) -> Result<&mut [T], Refused> {
        Scope { arena: self }.alloc_slice_copy(slice)
    }
    /// Allocates `len` objects; `make` makes each object from its index. The arena never drops the objects.
    ///
    /// # Errors
    /// Returns the errors of [`alloc_layout`](Self::alloc_layout).
    pub fn alloc_slice_fill_with<T>(
        &self,
        len: usize,
        make: impl FnMut(usize) -> T,
    ) -> Result<&mut [T], Refused> {
        Scope { arena: self }.alloc_slice_fill_with(len, make)
    }

    /// Calls `with` with a new scope. When `with` returns or panics, all allocations of the scope are freed. Chunks
    /// that were added during the scope are dropped, too.
    ///
    /// ```
    /// use uslab_pool::{Arena, StackArea};
    ///
    /// let mut array = StackArea::<256>::new();
    /// let mut frame = Arena::new(array.lend());
    /// frame.scope(|level| {
    ///     let name = level.alloc_slice_copy(b"level").unwrap();
    ///     let longest = level.scope(|loading| {
    ///         let scratch = loading.alloc_slice_fill_with(100, |i| i as u8).unwrap(); // freed at the end of this scope
    ///         name[0] = b'L'; // memory of the outer scope is still allocated
    ///         scratch.len()
    ///     });
    ///     assert_eq!((&*name, longest, level.used()), (&b"Level"[..], 100, 5));
    /// });
    /// assert_eq!(frame.used(), 0);
    /// ```
    ///
    /// A reference cannot leave its scope:
    ///
    /// ```compile_fail
    /// # use uslab_pool::{Arena, StackArea};
    /// let mut array = StackArea::<64>::new();
    /// let mut arena = Arena::new(array.lend());
    /// let object = arena.scope(|scope| scope.alloc(7).unwrap());
    /// ```
    ///
    /// While a scope is open, the arena allocates nothing outside the scope, because the end of the scope would free
    /// that memory, too:
    ///
    /// ```compile_fail,E0502
    /// # use uslab_pool::{Arena, StackArea};
    /// # let mut array = StackArea::<64>::new();
    /// # let mut arena = Arena::new(array.lend());
    /// arena.scope(|outer| outer.scope(|_inner| outer.alloc(7).is_ok()));
    /// ```
    pub fn scope<R>(&mut self, with: impl for<'s> FnOnce(&mut Scope<'s, A, G>) -> R) -> R {
        Scope { arena: self }.scope(with)
    }
    /// Frees all allocations of the arena. All chunks except the first are dropped.
    pub fn reset(&mut self) {
        self.0.get_mut().chain.rewind(Head { chunk: 0, at: 0 });
    }
    /// Returns the number of bytes from the start to the head position, including padding and unused ends of chunks.
    /// Cost: O(chunks).
    pub fn used(&self) -> usize {
        let inner = self.0.borrow();
        inner.chain.bytes_to(inner.chain.head())
    }
    /// Returns the total size of all chunks in bytes. Cost: O(chunks).
    pub fn capacity(&self) -> usize {
        self.0.borrow().chain.chunks().map(Span::size).sum()
    }
    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.0.borrow().chain.head().chunk + 1
    }

    pub(crate) fn obtain(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.place(layout).ok()
    }
    /// Frees the memory if it is the last allocation. Other memory stays allocated until the end of the scope.
    ///
    /// # Safety
    /// This arena must have allocated the memory in the open scope, with `layout`. The caller must no longer use the
    /// memory.
    pub(crate) unsafe fn give(&self, memory: NonNull<u8>, layout: Layout) {
        let chain = &mut self.0.borrow_mut().chain;
        if let Some(at) = chain.top(memory.addr().get(), layout.size()) {
            chain.head = at;
        }
    }
    /// Resizes the last allocation in place; any other allocation can only shrink. Returns `false` if the memory cannot
    /// be resized in place.
    ///
    /// # Safety
    /// The conditions of [`give`](Self::give) must hold, except that the memory is still used. If the call succeeds,
    /// the memory has the new layout.
    pub(crate) unsafe fn fit(&self, memory: NonNull<u8>, old: Layout, new: Layout) -> bool {
        let chain = &mut self.0.borrow_mut().chain;
        let Some(at) = chain.top(memory.addr().get(), old.size()) else { return new.size() <= old.size() };
        let end = at.checked_add(new.size()).filter(|end| *end <= chain.last.size());
        chain.head = end.unwrap_or(chain.head);
        end.is_some()
    }
}

/// A part of an [`Arena`]'s memory that is freed earlier than the arena (see [`Arena::scope`]). A value of type `Scope`
/// takes 8 bytes.
#[derive(Debug)]
pub struct Scope<'s, A, G = fn(usize) -> Result<A, PoolError>> {
    arena: &'s Arena<A, G>,
}

impl<'s, A: Area, G: FnMut(usize) -> Result<A, PoolError>> Scope<'s, A, G> {
    /// Allocates memory for `layout`, which is valid until the scope ends.
    ///
    /// # Errors
    /// Returns the errors of [`Arena::alloc_layout`].
    pub fn alloc_layout(&self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        self.arena.place(layout)
    }
    /// Allocates an object. The scope never drops the object.
    ///
    /// # Errors
    /// If the arena has no room, returns the object as the error value.
    pub fn alloc<T>(&self, object: T) -> Result<&'s mut T, T> {
        let Ok(memory) = self.arena.place(Layout::new::<T>()) else { return Err(object) };
        let mut memory = memory.cast();
        // SAFETY: the memory has the size and alignment of the type, and no other code uses it until the scope ends,
        // which outlives `'s`.
        unsafe {
            memory.write(object);
            Ok(memory.as_mut())
        }
    }
    /// Allocates memory for a slice, and copies the slice into it.
    ///
    /// # Errors
    /// Returns the errors of [`Arena::alloc_layout`].
    pub fn alloc_slice_copy<T: Copy>(&self, slice: &[T]) -> Result<&'s mut [T], Refused> {
        let memory = self.arena.place(Layout::for_value(slice))?.cast();
        // SAFETY: the memory has room for the slice, and does not overlap the slice. No other code uses the memory
        // until the scope ends, which outlives `'s`.
        unsafe {
            memory.copy_from_nonoverlapping(NonNull::from(slice).cast(), slice.len());
            Ok(NonNull::slice_from_raw_parts(memory, slice.len()).as_mut())
        }
    }
    /// Allocates `len` objects; `make` makes each object from its index. The scope never drops the objects.
    ///
    /// # Errors
    /// Returns the errors of [`Arena::alloc_layout`].
    pub fn alloc_slice_fill_with<T>(
        &self,
        len: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> Result<&'s mut [T], Refused> {
        let error = Refused::Size { requested: len.saturating_mul(size_of::<T>()), max: isize::MAX as usize };
        let layout = Layout::array::<T>(len).map_err(|_| error)?;
        let memory = self.arena.place(layout)?.cast::<T>();
        for i in 0..len {
            // SAFETY: the memory has room for `len` objects. No other code uses the memory until the scope ends, which
            // outlives `'s`.
            unsafe { memory.add(i).write(make(i)) };
        }
        // SAFETY: all `len` objects were written.
        Ok(unsafe { NonNull::slice_from_raw_parts(memory, len).as_mut() })
    }
    /// Calls `with` with a nested scope (see [`Arena::scope`]).
    pub fn scope<R>(&mut self, with: impl for<'i> FnOnce(&mut Scope<'i, A, G>) -> R) -> R {
        struct HeadRestorer<'a, A: Area, G>(&'a Arena<A, G>, Head);
        impl<A: Area, G> Drop for HeadRestorer<'_, A, G> {
            fn drop(&mut self) {
                self.0.0.borrow_mut().chain.rewind(self.1);
            }
        }
        let head = self.arena.0.borrow().chain.head();
        let end = HeadRestorer(self.arena, head);
        with(&mut Scope { arena: end.0 })
    }
    /// Returns the number of used bytes of the whole arena, like [`Arena::used`].
    pub fn used(&self) -> usize {
        self.arena.used()
    }
    pub(crate) fn arena(&self) -> &'s Arena<A, G> {
        self.arena
    }
}
