//! A magazine: a batch of objects that moves between a CPU's stack, the depot and the supplier.

use core::ptr::NonNull;

/// Maximum number of objects in a magazine.
///
/// A depot access moves at most one magazine. Measured cost of an allocation and a free, if one CPU frees what another
/// CPU allocates: 7 ns with magazines of 32 objects, 5 ns with 64, and 86 ns with 256. With magazines of 256 objects,
/// the objects in circulation no longer fit into the hardware caches of the two CPUs.
pub const MAX_CAPACITY: u16 = 64;

/// A list of objects in the order in which they were added. The owner of a magazine owns the objects in it.
#[derive(Clone, Debug)]
pub(crate) struct Magazine {
    len: u32,
    rounds: [NonNull<u8>; MAX_CAPACITY as usize],
}

// SAFETY: all objects are `Send` (`Round`).
unsafe impl Send for Magazine {}

impl Magazine {
    /// For debuggers: the byte offsets in a magazine of its length and of its objects.
    pub(crate) const LAYOUT: [usize; 2] =
        [core::mem::offset_of!(Self, len), core::mem::offset_of!(Self, rounds)];

    #[inline]
    pub(crate) fn new() -> Self {
        Self { len: 0, rounds: [NonNull::dangling(); MAX_CAPACITY as usize] }
    }
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
    pub(crate) fn rounds(&self) -> &[NonNull<u8>] {
        &self.rounds[..self.len()]
    }
    /// Adds an object. Returns `false` if the magazine is full.
    pub(crate) fn push(&mut self, round: NonNull<u8>) -> bool {
        let Some(place) = self.rounds.get_mut(self.len as usize) else { return false };
        *place = round;
        self.len += 1;
        true
    }
    pub(crate) fn pop(&mut self) -> Option<NonNull<u8>> {
        self.len = self.len.checked_sub(1)?;
        Some(self.rounds[self.len()])
    }
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.rounds[..other.len()].copy_from_slice(other.rounds());
        self.len = other.len;
    }
    /// Calls `fill` to write `len` objects into the empty magazine. If `fill` returns `true`, the magazine contains the
    /// `len` objects. If `fill` returns `false`, the magazine stays empty.
    #[allow(dead_code, reason = "only builds with restartable sequences use it")]
    #[inline]
    pub(crate) fn fill_with(&mut self, len: u32, fill: impl FnOnce(*mut NonNull<u8>) -> bool) -> bool {
        debug_assert!(self.is_empty() && len <= u32::from(MAX_CAPACITY));
        let filled = fill(self.rounds.as_mut_ptr());
        if filled {
            self.len = len;
        }
        filled
    }
}
