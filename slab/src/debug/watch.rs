//! Red zones and poison: bytes that a program must not write, with their expected values.
//!
//! ```text
//! in use:  | cc cc .. | the user's bytes             | cc .. cc .. cc |
//! free:    | bb bb .. | 6b 6b 6b .. (poison) .. 6b a5 | bb .. bb .. bb |
//!            left zone  object                          right zone
//! ```
//!
//! The byte values are Linux's, so that dumps look like Linux's dumps. If poison is on, new objects and the padding of
//! slabs are filled with the byte 5a. If a user requests fewer bytes than the object has, the remaining bytes belong to
//! the right zone while the object is in use.

use core::ops::Range;
use core::ptr::NonNull;

const POISON_FREE: u8 = 0x6b;
const POISON_END: u8 = 0xa5;
/// Poison byte for padding, and for objects that were never used.
const POISON_UNUSED: u8 = 0x5a;
/// Byte that fills the red zones of free objects.
const RED_ZONE_FREE: u8 = 0xbb;
const RED_ZONE_IN_USE: u8 = 0xcc;

/// Part of a slab that an invalid write overwrote.
///
/// ```
/// use uslab::debug::watch::Part;
///
/// assert_eq!(Part::RightRedZone.to_string(), "Right Redzone");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// The red zone before the object.
    LeftRedZone,
    /// The red zone after the object.
    RightRedZone,
    /// A free object.
    Poison,
    /// The padding of a slab, which is outside all objects.
    Padding,
}

impl core::fmt::Display for Part {
    /// Writes the part's name as SLUB does.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::LeftRedZone => "Left Redzone",
            Self::RightRedZone => "Right Redzone",
            Self::Poison => "Poison",
            Self::Padding => "Padding",
        })
    }
}

/// Range of bytes that an invalid write overwrote.
///
/// ```
/// use uslab::debug::watch::{Damage, Part};
///
/// // A handler may tell an overflow of one byte from others.
/// let by_one = |damage: &Damage| damage.part == Part::RightRedZone && damage.bytes == 1;
/// # let _ = by_one;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// Part of the slab that was overwritten.
    pub part: Part,
    /// Address of the first overwritten byte.
    pub at: usize,
    /// Number of bytes from the first to the last overwritten byte, inclusive.
    pub bytes: usize,
    /// Value that the first overwritten byte should have.
    pub expected: u8,
    /// Value found in the first overwritten byte.
    pub found: u8,
}

/// State of an object, which determines the expected values of its watched bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    /// The object is in use, with the size that its user requested.
    InUse(usize),
}

/// Configuration of the watched bytes in and around a cache's objects. Red zones of 0 bytes are not checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) size: usize,
    pub(crate) left: usize,
    pub(crate) right: usize,
    pub(crate) poison: bool,
}

impl Watch {
    /// Returns `true` if the cache has red zones or poison.
    pub(crate) fn is_on(&self) -> bool {
        self.poison || self.right > 0
    }
    /// Returns the watched parts of an object at address `at` in state `state`, each with its expected byte.
    fn parts(&self, at: usize, state: State) -> [(Part, Range<usize>, u8); 3] {
        let (byte, used, poison) = match state {
            State::Free => (RED_ZONE_FREE, self.size, if self.poison { at..at + self.size } else { at..at }),
            State::InUse(size) => (RED_ZONE_IN_USE, if self.right > 0 { size } else { self.size }, at..at),
        };
        [
            (Part::LeftRedZone, at - self.left..at, byte),
            (Part::RightRedZone, at + used..at + self.size + self.right, byte),
            (Part::Poison, poison, POISON_FREE),
        ]
    }

    /// Checks the watched bytes of an object that should be in state `state`. Repairs each damaged part after passing
    /// its damage to `see`. Returns the number of damaged parts.
    ///
    /// # Safety
    /// The object must belong to a slab of the cache. Only the object's user may write to the object; a free object has
    /// no user.
    pub(crate) unsafe fn inspect(
        &self,
        object: NonNull<u8>,
        state: State,
        mut see: impl FnMut(Damage),
    ) -> u64 {
        let mut found = 0;
        for (part, range, byte) in self.parts(object.addr().get(), state) {
            // SAFETY: the parts belong to the object. By contract, only the object's user writes to
            // the object.
            found += u64::from(unsafe { inspect(object, part, range, byte, &mut see) });
        }
        found
    }

    /// Fills the watched parts of an object whose state becomes `state`. The user's bytes stay unchanged, except that
    /// poison fills a new object.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`inspect`](Self::inspect), and no thread may use the object.
    pub(crate) unsafe fn fill(&self, object: NonNull<u8>, state: State) {
        for (part, range, byte) in self.parts(object.addr().get(), state) {
            // SAFETY: the parts belong to the object. By contract, the object has no user.
            unsafe { fill(object, part, range, byte) };
        }
        if let State::InUse(size) = state
            && self.poison
        {
            // SAFETY: the object has `size` bytes and no user.
            unsafe { object.write_bytes(POISON_UNUSED, size) };
        }
    }

    /// Changes the requested size of an object in use from `old` to `size`. Added bytes are zeroed if `zero` is true;
    /// otherwise they keep the fill byte of the red zone.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`inspect`](Self::inspect). The caller must own the object,
    /// which must have at least `size` bytes.
    pub(crate) unsafe fn resize(&self, object: NonNull<u8>, old: usize, size: usize, zero: bool) {
        // SAFETY: the bytes belong to the object, which the caller owns by contract.
        unsafe {
            if zero && size > old {
                object.add(old).write_bytes(0, size - old);
            }
            let (part, range, byte) = self.parts(object.addr().get(), State::InUse(size))[1].clone();
            fill(object, part, range, byte);
        }
    }
}

/// Returns the padding of a slab of `bytes` bytes: the ranges before and after `objects`, which are the objects with
/// their red zones.
fn padding_ranges(base: NonNull<u8>, objects: Range<usize>, bytes: usize) -> [Range<usize>; 2] {
    let base = base.addr().get();
    [base..base + objects.start, base + objects.end..base + bytes]
}

/// Fills the padding of a slab.
///
/// # Safety
/// The slab must have `bytes` bytes, and no other thread may write to its padding.
pub(crate) unsafe fn fill_padding(base: NonNull<u8>, objects: Range<usize>, bytes: usize) {
    for range in padding_ranges(base, objects, bytes) {
        // SAFETY: the padding is inside the slab. By contract, no other thread writes the padding.
        unsafe { fill(base, Part::Padding, range, POISON_UNUSED) };
    }
}
/// Checks the padding of a slab, as [`Watch::inspect`] does for objects.
///
/// # Safety
/// The caller must fulfil the safety conditions of [`fill_padding`].
pub(crate) unsafe fn inspect_padding(
    base: NonNull<u8>,
    objects: Range<usize>,
    bytes: usize,
    mut see: impl FnMut(Damage),
) -> u64 {
    let look = |range| {
        // SAFETY: the padding is inside the slab. By contract, no other thread writes the padding.
        u64::from(unsafe { inspect(base, Part::Padding, range, POISON_UNUSED, &mut see) })
    };
    padding_ranges(base, objects, bytes).map(look).iter().sum()
}

/// # Safety
/// The range must be in the same slab as `within`, and only the caller may access the range.
unsafe fn fill(within: NonNull<u8>, part: Part, range: Range<usize>, byte: u8) {
    if range.is_empty() {
        return;
    }
    let first = within.as_ptr().with_addr(range.start);
    // SAFETY: by contract, only the caller accesses the range.
    unsafe {
        first.write_bytes(byte, range.len());
        if part == Part::Poison {
            first.add(range.len() - 1).write(POISON_END);
        }
    }
}

/// Checks and repairs a watched range. If the range was damaged, passes the damage to `see` and returns
/// `true`.
///
/// # Safety
/// The caller must fulfil the safety conditions of [`fill`].
unsafe fn inspect(
    within: NonNull<u8>,
    part: Part,
    range: Range<usize>,
    byte: u8,
    see: &mut impl FnMut(Damage),
) -> bool {
    if range.is_empty() {
        return false;
    }
    // SAFETY: by contract, only the caller accesses the range.
    let bytes = unsafe { core::slice::from_raw_parts(within.as_ptr().with_addr(range.start), range.len()) };
    let last = bytes.len() - 1;
    let expected = |i| if part == Part::Poison && i == last { POISON_END } else { byte };
    let wrong = |i: &usize| bytes[*i] != expected(*i);
    let Some(first) = (0..=last).find(wrong) else { return false };
    let end = (first..=last).rfind(wrong).unwrap_or(first);
    let damage = Damage {
        part,
        at: range.start + first,
        bytes: end - first + 1,
        expected: expected(first),
        found: bytes[first],
    };
    see(damage);
    // SAFETY: by contract, only the caller accesses the range.
    unsafe { fill(within, part, range, byte) };
    true
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A changed byte must count as damage if and only if writes to it are invalid. Damage must be reported and
        /// repaired.
        #[test]
        fn changed_byte_is_damage_only_where_writes_are_invalid(
            size in 1_usize..80, left in 0_usize..32, right in 0_usize..32, poison: bool, used in 0_usize..80, free: bool,
            at in 0_usize..192, change in 1_u8..,
        ) {
            let used = used.min(size);
            let (left, right) = if right == 0 { (0, 0) } else { (left, right) };
            let watch = Watch { size, left, right, poison };
            let mut memory = [0x11_u8; 192];
            // SAFETY: the address is inside the array.
            let object = unsafe { NonNull::from(&mut memory).cast::<u8>().add(40) };
            let state = if free { State::Free } else { State::InUse(used) };
            // SAFETY: the test owns the array, which is large enough, and uses no reference to the array while it uses
            // pointers to it.
            unsafe {
                watch.fill(object, state);
                let mut seen = vec![];
                prop_assert_eq!(watch.inspect(object, state, |damage| seen.push(damage)), 0);
                let byte = object.sub(40).add(at);
                let before = byte.read();
                byte.write(before ^ change);
                let used = if right > 0 { used } else { size };
                let part = match at.wrapping_sub(40).cast_signed() {
                    i if i < 0 => (at + left >= 40).then_some(Part::LeftRedZone),
                    i if i.cast_unsigned() < size && free => poison.then_some(Part::Poison),
                    i if i.cast_unsigned() < used => None,
                    i => (i.cast_unsigned() < size + right && right > 0).then_some(Part::RightRedZone),
                };
                prop_assert_eq!(watch.inspect(object, state, |damage| seen.push(damage)), u64::from(part.is_some()));
                if let Some(part) = part {
                    let at = byte.addr().get();
                    let damage = Damage { part, at, bytes: 1, expected: before, found: before ^ change };
                    prop_assert_eq!(seen, vec![damage]);
                    prop_assert_eq!(byte.read(), before);
                }
                prop_assert_eq!(watch.inspect(object, state, |_| ()), 0);
            }
        }
    }

    #[test]
    fn cache_without_poison_or_red_zones_watches_no_bytes() {
        let is_on = |right, poison| Watch { size: 64, left: right, right, poison }.is_on();
        assert!(!is_on(0, false) && is_on(0, true) && is_on(8, false) && is_on(8, true));
    }

    #[test]
    fn damage_range_ends_at_the_last_wrong_byte() {
        let mut memory = [0x11_u8; 192];
        let mut seen = vec![];
        // SAFETY: the test owns the array, whose middle is the slab.
        let base = unsafe { NonNull::from(&mut memory).cast::<u8>().add(64) };
        // SAFETY: the test owns the array, whose middle is the slab.
        unsafe {
            fill_padding(base, 8..32, 64);
            let all = core::slice::from_raw_parts(base.as_ptr().sub(64), 192);
            let filled: Vec<_> = (0..192).filter(|at| all[*at] != 0x11).collect();
            assert_eq!(filled, (64..72).chain(96..128).collect::<Vec<_>>());
            base.add(40).write(1);
            base.add(50).write(2);
            base.add(3).write(3);
            assert_eq!(inspect_padding(base, 8..32, 64, |damage| seen.push((damage.at, damage.bytes))), 2);
            assert_eq!(inspect_padding(base, 8..32, 64, |_| ()), 0);
        }
        assert_eq!(seen, [(base.addr().get() + 3, 1), (base.addr().get() + 40, 11)]);
    }

    #[test]
    fn red_zone_moves_when_objects_are_resized_in_place() {
        let watch = Watch { size: 64, left: 8, right: 8, poison: true };
        let mut memory = [0x33_u8; 256];
        // SAFETY: the test owns the array, which contains the object.
        unsafe {
            let object = NonNull::from(&mut memory).cast::<u8>().add(16);
            watch.fill(object, State::InUse(48));
            object.write_bytes(7, 48);
            for (old, size) in [(48, 40), (40, 56), (56, 64), (64, 1)] {
                watch.resize(object, old, size, true);
                assert_eq!(watch.inspect(object, State::InUse(size), |_| ()), 0);
                let bytes = core::slice::from_raw_parts(object.as_ptr(), size);
                assert!(bytes[..old.min(size).min(40)].iter().all(|byte| *byte == 7));
                assert!(bytes[old.min(size)..].iter().all(|byte| *byte == 0), "{old} to {size}");
            }
        }
        let mut others = memory[..8].iter().chain(&memory[88..]);
        assert!(others.all(|byte| *byte == 0x33), "only the red zones up to byte 8 and from byte 88 change");
    }
}
