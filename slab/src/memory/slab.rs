//! A slab: a block of pages that is divided into equal objects. The metadata of a slab is outside its pages.
//!
//! The type [`Slab`] is a *view* of the frame of the slab's first page. The owner words of that frame contain a bitmap
//! and a head (the number of objects taken, and the number of all objects). **A set bit means that the object is taken
//! from the slab**, by a user or by a magazine. A clear bit means that the object is free in the slab. The frame has
//! room for four words of a bitmap. If a slab has more than 256 objects, its bitmap is in the side table. The side
//! table's 64 bytes per page suffice, because no object is smaller than a word.
//!
//! If objects are constructed one by one, the slab has a second bitmap. **A set bit of the second bitmap means that the
//! object is constructed**, or is being constructed by the thread that took it.
//!
//! ```text
//! frame.data  [ head ][ bits 0..64 ][ 64..128 ][ 128..192 ][ 192..256 ]
//!               |  inuse:16, objects:16, second bitmap:1, discarded:16 (from bit 48)
//! side table  [ 512 bits of page 0 ][ 512 bits of page 1 ] ...           more than 256 bits
//! ```
//!
//! A partial slab may have pages on which no object is in use. [`Slab::discard_unused`] returns the memory of unused
//! pages to the system. A `discarded` bit marks a sixteenth of the slab, but at least one page, as returned to the
//! system. The first allocation from the slab clears all `discarded` bits.
//!
//! # Invariants
//!
//! * `inuse` is the number of set bits among the first `objects` bits. Bits from `objects` to the end of the last word
//!   are always set, so a search never finds an object that does not exist.
//! * If a slab has a second bitmap, each bit that is set in the first bitmap is also set in the second.
//! * A slab's operations never read or write objects. A write to a free object therefore cannot damage the state of a
//!   slab. Filling a magazine touches only one or two cache lines, even if the objects are not in the CPU's cache.
//! * The node's lock protects the slab's state. An unlisted slab belongs to the thread that made or unlisted it.
//!
//! If the bit of a freed object is already clear, the free is a double free. Detecting a double free costs nothing.

use crate::debug::faults::BITMAP;
use crate::geometry::Geometry;
use crate::harden::Draws;
use uslab_buddy::PageAllocator;
use uslab_buddy::frame::{Frame, FrameTable};
use uslab_buddy::region::{Reservation, Reserved};
use uslab_buddy::{PAGE_SIZE, Pfn};
use uslab_magazine::Operation;

/// Number of bits of a bitmap that fit into a frame.
pub(crate) const FRAME_BITMAP_BITS: usize = 256;
/// Maximum number of objects in a slab whose objects are constructed one by one. For each page, the side table has room
/// for two bitmaps of `MAX_INDIVIDUALLY_CONSTRUCTED` bits each.
pub(crate) const MAX_INDIVIDUALLY_CONSTRUCTED: usize = SIDE_TABLE_PAGE_BYTES * 8 / 2;
const FRAME_BITMAP_WORDS: usize = FRAME_BITMAP_BITS / 64;
/// Number of bytes of the side table per page: one bit for each of the smallest possible objects.
pub(crate) const SIDE_TABLE_PAGE_BYTES: usize = uslab_buddy::PAGE_SIZE / crate::geometry::WORD / 8;

/// Policy that decides when the objects of a slab are constructed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Constructed {
    /// All objects are constructed when the slab is made, or no object is ever constructed.
    Together,
    /// Each object is constructed when it leaves the slab for the first time. A slab of this kind has at most
    /// [`MAX_INDIVIDUALLY_CONSTRUCTED`] objects.
    OneByOne,
}

/// Number of objects that are taken from a slab, and number of all its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) inuse: u16,
    pub(crate) objects: u16,
}

/// First owner word of a slab's frame: the slab's fill, and which parts are discarded.
#[derive(Clone, Copy)]
struct Head {
    fill: Fill,
    constructed: Constructed,
    /// Bitmap of the slab's parts whose memory was returned to the system (see [`part`]).
    discarded: u16,
}

/// Number of pages that one bit of [`Head::discarded`] covers, in a slab of `pages` pages.
fn part(pages: u32) -> u32 {
    pages.div_ceil(u16::BITS)
}

impl Head {
    fn unpack(head: u64) -> Self {
        let fill = Fill { inuse: head as u16, objects: (head >> 16) as u16 };
        let constructed = if head >> 32 & 1 == 0 { Constructed::Together } else { Constructed::OneByOne };
        Self { fill, constructed, discarded: (head >> 48) as u16 }
    }
    fn pack(self) -> u64 {
        let Fill { inuse, objects } = self.fill;
        u64::from(inuse)
            + (u64::from(objects) << 16)
            + ((self.constructed as u64) << 32)
            + (u64::from(self.discarded) << 48)
    }
}

impl Constructed {
    fn words(self, objects: usize) -> usize {
        words(objects) * (1 + self as usize)
    }
}

/// Error: the freed object was already free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlreadyFreeError;

fn words(objects: usize) -> usize {
    objects.div_ceil(64)
}

/// Marks all objects as free, and sets the bits after the last object.
fn clear(bits: &mut [u64], objects: usize) {
    bits.fill(0);
    if !objects.is_multiple_of(64) {
        bits[objects / 64] = !0 << (objects % 64);
    }
}

/// Sets up to `max` clear bits, lowest first, and reports the index of each. Skips bits that are set in `skipped_bits`.
fn alloc_bits(
    bits: &mut [u64],
    skipped_bits: impl Fn(usize) -> u64,
    max: usize,
    mut add: impl FnMut(usize),
) -> usize {
    let mut remaining = max;
    for (i, word) in bits.iter_mut().enumerate() {
        let skipped_word = skipped_bits(i);
        while remaining > 0 && *word | skipped_word != !0 {
            let bit = (*word | skipped_word).trailing_ones();
            *word |= 1 << bit;
            add(i * 64 + bit as usize);
            remaining -= 1;
        }
        if remaining == 0 {
            break;
        }
    }
    max - remaining
}

/// Sets up to `max` clear bits; each is the first clear bit from a random position on.
fn set_random_clear_bits(
    bits: &mut [u64],
    skipped_bits: impl Fn(usize) -> u64,
    max: usize,
    draws: &mut Draws,
    mut add: impl FnMut(usize),
) -> usize {
    for taken_count in 0..max {
        let start = draws.below(bits.len() * 64);
        // The search returns to the first word at the end, and then inspects the whole word.
        let words = (0..=bits.len()).map(|word| (start / 64 + word) % bits.len());
        let before = (1 << (start % 64)) - 1;
        let mut masks = core::iter::once(before).chain(core::iter::repeat(0));
        let Some((word, free)) = words
            .map(|word| (word, !(bits[word] | skipped_bits(word) | masks.next().unwrap_or(0))))
            .find(|(_, free)| *free != 0)
        else {
            return taken_count;
        };
        bits[word] |= 1 << free.trailing_zeros();
        add(word * 64 + free.trailing_zeros() as usize);
    }
    max
}

/// Clears bit `index`; fails if the bit is already clear.
fn clear_allocated_bit(bits: &mut [u64], index: usize) -> Result<(), AlreadyFreeError> {
    let (word, bit) = (&mut bits[index / 64], 1 << (index % 64));
    if *word & bit == 0 {
        return Err(AlreadyFreeError);
    }
    *word &= !bit;
    Ok(())
}

/// Table of bitmaps that do not fit into a frame. The table has 64 bytes for each page, and only used parts are
/// committed.
#[derive(Debug)]
pub(crate) struct BitmapTable {
    memory: Reserved,
}

impl BitmapTable {
    /// Makes a table for `pages` pages, of uncommitted address space. With `spacing`, most of the table has no address
    /// space until the table [grows](Reserved::grow).
    pub(crate) fn new(pages: usize, spacing: Option<usize>, addresses: &mut Reservation) -> Option<Self> {
        let bytes = pages.checked_mul(SIDE_TABLE_PAGE_BYTES)?;
        Some(Self { memory: Reserved::growing(bytes, spacing, addresses, BITMAP)? })
    }
    /// Reserves address space for the bitmaps of the first `pages` pages.
    pub(crate) fn grow(&self, allocator: &PageAllocator, pages: usize) -> bool {
        allocator.grow_table(&self.memory, pages * SIDE_TABLE_PAGE_BYTES)
    }
    /// Commits `words` bitmap words of the slab at `pfn`; returns `false` if memory is short.
    fn commit_bitmap_words(&self, op: &Operation, pfn: Pfn, words: usize) -> bool {
        self.memory.commit(op, pfn.get() as usize * SIDE_TABLE_PAGE_BYTES + words * 8)
    }
    /// Unmaps the bitmaps of all pages with the number `pages` or above.
    ///
    /// # Safety
    /// No slab may be on these pages, and no slab may be made there before the table [grows](Self::grow).
    pub(crate) unsafe fn trim(&self, allocator: &PageAllocator, pages: usize) {
        // SAFETY: the region has no other user. By contract, no slab needs the unmapped bitmaps.
        unsafe { allocator.truncate_table(&self.memory, pages * SIDE_TABLE_PAGE_BYTES) };
    }
    pub(crate) fn bits(&self, pfn: Pfn) -> *mut u64 {
        self.memory.base().as_ptr().wrapping_add(pfn.get() as usize * SIDE_TABLE_PAGE_BYTES).cast()
    }
}

/// Iterator over the runs of unused pages in a slab. Each item is a first page and a number of pages.
#[derive(Debug)]
pub(crate) struct UnusedPageRuns {
    slab: Pfn,
    part: u32,
    found: u16,
}

impl UnusedPageRuns {
    pub(crate) fn pages(&self) -> u32 {
        self.found.count_ones() * self.part
    }
}

impl Iterator for UnusedPageRuns {
    type Item = (Pfn, u32);
    fn next(&mut self) -> Option<(Pfn, u32)> {
        let first = self.found.trailing_zeros();
        let parts = self.found.checked_shr(first)?.trailing_ones();
        self.found &= self.found.wrapping_add(1 << first);
        Some((Pfn::new(self.slab.get() + first * self.part), parts * self.part))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slab<'a> {
    pub(crate) pfn: Pfn,
    frame: &'a Frame,
    table: &'a BitmapTable,
}

impl<'a> Slab<'a> {
    pub(crate) fn at(frames: &'a FrameTable, table: &'a BitmapTable, pfn: Pfn) -> Self {
        Self { pfn, frame: frames.frame(pfn), table }
    }

    /// Calls `f` with the slab's fill, its bitmap of taken objects, and its bitmap of constructed objects. If the slab
    /// has no second bitmap, the last argument is empty.
    ///
    /// # Safety
    /// The slab must have been set up. The caller must hold the lock of the slab's node, or be the only thread that has
    /// the slab.
    unsafe fn with_slab_fields<R>(&self, f: impl FnOnce(&mut Fill, &mut [u64], &mut [u64]) -> R) -> R {
        self.frame.data().with_mut(|data| {
            // SAFETY: by contract, no other thread accesses the words now.
            let (word, slot_bits) =
                unsafe { &mut *data }.split_first_mut().expect("the bitmap must have five words");
            let mut head = Head::unpack(*word);
            let objects = usize::from(head.fill.objects);
            let bitmap_words = head.constructed.words(objects);
            let bits = if bitmap_words <= FRAME_BITMAP_WORDS {
                &mut slot_bits[..bitmap_words]
            } else {
                // SAFETY: `set_up` committed `bitmap_words` words at this slab's place in the table, which belongs to
                // no other slab. By contract, no other thread accesses these words now.
                unsafe { core::slice::from_raw_parts_mut(self.table.bits(self.pfn), bitmap_words) }
            };
            let (allocated_bits, constructed) = bits.split_at_mut(words(objects));
            let result = f(&mut head.fill, allocated_bits, constructed);
            *word = head.pack();
            result
        })
    }

    /// Turns the block into a slab of `objects` objects, all of them free and unconstructed. Returns `false` if memory
    /// for the bitmaps is short.
    ///
    /// # Safety
    /// No thread except the caller may have the block. If objects are constructed one by one, the slab may have at most
    /// [`MAX_INDIVIDUALLY_CONSTRUCTED`] objects.
    pub(crate) unsafe fn set_up(&self, op: &Operation, objects: usize, constructed: Constructed) -> bool {
        let words = constructed.words(objects);
        if words > FRAME_BITMAP_WORDS && !self.table.commit_bitmap_words(op, self.pfn, words) {
            return false;
        }
        let head = Head { fill: Fill { inuse: 0, objects: objects as u16 }, constructed, discarded: 0 };
        // SAFETY: by contract, only the caller has the slab.
        self.frame.data().with_mut(|data| unsafe { (*data)[0] = head.pack() });
        // SAFETY: by contract, only the caller has the slab, whose head is written.
        unsafe {
            self.with_slab_fields(|_, allocated_bits, constructed| {
                clear(allocated_bits, objects);
                if !constructed.is_empty() {
                    clear(constructed, objects);
                }
            });
        }
        true
    }

    /// Returns the number of objects taken from the slab, and the number of all its objects.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Slab::alloc_bits`].
    pub(crate) unsafe fn fill(&self) -> Fill {
        // SAFETY: by contract, the caller has the node's lock or the slab alone.
        unsafe { self.with_slab_fields(|fill, _, _| *fill) }
    }

    /// Takes up to `max` free objects, lowest first or in the order of `draws`, and reports each object's index. If
    /// objects are constructed one by one, the call takes only constructed objects. If no constructed object is left
    /// and `new` allows it, the call takes one unconstructed object and returns `true`. The caller must then construct
    /// this object. Cost: one pass over the bitmap; with `draws`, one pass per object.
    ///
    /// # Safety
    /// The slab must have been set up. The caller must hold the lock of the slab's node, or be the only thread that has
    /// the slab.
    pub(crate) unsafe fn alloc_bits(
        &self,
        max: usize,
        new: bool,
        mut draws: Option<&mut Draws>,
        mut add: impl FnMut(usize),
    ) -> (Fill, bool) {
        // SAFETY: by contract, the caller has the node's lock or the slab alone.
        unsafe {
            self.with_slab_fields(|fill, allocated_bits, constructed| {
                let mut take =
                    |allocated_bits: &mut [u64], skipped_bits: &dyn Fn(usize) -> u64, max| match &mut draws {
                        None => alloc_bits(allocated_bits, skipped_bits, max, &mut add),
                        Some(draws) => {
                            set_random_clear_bits(allocated_bits, skipped_bits, max, draws, &mut add)
                        }
                    };
                let mut taken_count =
                    take(allocated_bits, &|word| constructed.get(word).map_or(0, |bits| !bits), max);
                let is_new = new && taken_count == 0 && !constructed.is_empty();
                if is_new {
                    taken_count = take(allocated_bits, &|_| 0, 1);
                    // Mark the taken object as constructed, because the caller constructs it.
                    constructed
                        .iter_mut()
                        .zip(allocated_bits)
                        .for_each(|(constructed, allocated_bits)| *constructed |= *allocated_bits);
                }
                fill.inuse += taken_count as u16;
                (*fill, is_new && taken_count > 0)
            })
        }
    }

    /// Takes all constructed free objects so that the caller can destruct them, and reports each object's index.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Slab::alloc_bits`].
    pub(crate) unsafe fn take_constructed(&self, add: impl FnMut(usize)) -> Fill {
        // SAFETY: by contract, the caller has the node's lock or the slab alone.
        unsafe {
            self.with_slab_fields(|fill, allocated_bits, constructed| {
                let skipped_bits = |word: usize| constructed.get(word).map_or(!0, |bits| !bits);
                fill.inuse += alloc_bits(allocated_bits, skipped_bits, usize::MAX, add) as u16;
                *fill
            })
        }
    }

    /// Frees objects, and returns their number. Objects that were already free are skipped, and their indices are
    /// passed to `on_refused`. If `stays_listed` is true, freed objects remain constructed.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`Slab::alloc_bits`], and each index must be below the slab's number of
    /// objects.
    pub(crate) unsafe fn free_objects_in_bitmap(
        &self,
        indices: impl Iterator<Item = usize>,
        stays_listed: bool,
        mut on_refused: impl FnMut(usize),
    ) -> (u16, Fill) {
        // SAFETY: by contract, the caller has the node's lock or the slab alone.
        unsafe {
            self.with_slab_fields(|fill, allocated_bits, constructed| {
                let mut freed_count = 0;
                for index in indices {
                    match clear_allocated_bit(allocated_bits, index) {
                        Ok(()) => freed_count += 1,
                        Err(AlreadyFreeError) => on_refused(index),
                    }
                    if !stays_listed && let Some(word) = constructed.get_mut(index / 64) {
                        *word &= !(1 << (index % 64));
                    }
                }
                fill.inuse -= freed_count;
                (freed_count, *fill)
            })
        }
    }

    /// Number of the slab's pages whose memory was returned to the system and not used since.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Slab::alloc_bits`].
    pub(crate) unsafe fn discarded(&self) -> u32 {
        // SAFETY: by contract, no other thread writes the word now, and the slab was set up.
        let head = self.frame.data().with(|data| Head::unpack(unsafe { (*data)[0] }));
        head.discarded.count_ones() * part(self.frame.state().order().pages())
    }
    /// Clears the slab's discarded marks before an allocation, after which any page may be in use. Returns the number
    /// of pages that had been marked as discarded.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Slab::alloc_bits`].
    pub(crate) unsafe fn clear_discarded_marks(&self) -> u32 {
        // SAFETY: by contract, the caller has the node's lock or the slab alone.
        let pages = unsafe { self.discarded() };
        if pages > 0 {
            // SAFETY: by contract, no other thread accesses the word now.
            self.frame.data().with_mut(|data| unsafe { (*data)[0] &= !(u64::from(u16::MAX) << 48) });
        }
        pages
    }
    /// Finds pages without objects in use that are not yet discarded, marks them as discarded, and returns them. Cost:
    /// one pass over the bitmap.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`Slab::alloc_bits`], and `geometry` must belong to the slab. The
    /// caller must discard the pages before any object on them is allocated.
    pub(crate) unsafe fn discard_unused(&self, geometry: &Geometry) -> UnusedPageRuns {
        let pages = self.frame.state().order().pages();
        let part = part(pages);
        let mut found = 0_u16;
        // SAFETY: by contract, the caller has the node's lock or the slab alone.
        unsafe {
            self.with_slab_fields(|fill, allocated_bits, _| {
                for bit in 0..pages / part {
                    let bytes = |page: u32| page as usize * PAGE_SIZE;
                    let mut objects = geometry
                        .object_indices_in_range(bytes(bit * part)..bytes((bit + 1) * part), fill.objects);
                    if objects.all(|index| allocated_bits[index / 64] & 1 << (index % 64) == 0) {
                        found |= 1 << bit;
                    }
                }
            });
        }
        self.frame.data().with_mut(|data| {
            // SAFETY: by contract, no other thread accesses the word now.
            let word = unsafe { &mut (*data)[0] };
            let mut head = Head::unpack(*word);
            found &= !head.discarded;
            head.discarded |= found;
            *word = head.pack();
        });
        UnusedPageRuns { slab: self.pfn, part, found }
    }

    /// Iterates over the indices of the constructed free objects. If the slab has no second bitmap, iterates over all
    /// free objects.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`Slab::alloc_bits`], and must be the only user of the slab while it
    /// uses the iterator.
    pub(crate) unsafe fn constructed(self) -> impl Iterator<Item = usize> + 'a {
        // SAFETY: by contract, only the caller has the slab.
        let objects = usize::from(unsafe { self.fill() }.objects);
        (0..objects).filter(move |index| {
            // SAFETY: by contract, only the caller has the slab.
            unsafe {
                self.with_slab_fields(|_, allocated_bits, constructed| {
                    let (word, bit) = (index / 64, 1 << (index % 64));
                    allocated_bits[word] & bit == 0
                        && constructed.get(word).is_none_or(|word| word & bit != 0)
                })
            }
        })
    }

    /// Passes each word of the first bitmap to `visit`: bits of taken objects, and zeros after the last object.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Slab::alloc_bits`].
    pub(crate) unsafe fn allocated(&self, mut visit: impl FnMut(u64)) {
        // SAFETY: by contract, the caller has the node's lock or the slab alone.
        unsafe {
            self.with_slab_fields(|fill, bits, _| {
                let (objects, mut bits) = (usize::from(fill.objects), bits.iter().copied());
                bits.by_ref().take(objects / 64).for_each(&mut visit);
                bits.for_each(|last| visit(last & ((1 << (objects % 64)) - 1)));
            });
        }
    }

    /// Returns `true` if the slab's head agrees with its bitmap, and all taken objects are constructed.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Slab::alloc_bits`].
    pub(crate) unsafe fn agrees(&self) -> bool {
        // SAFETY: by contract, the caller has the node's lock or the slab alone.
        unsafe {
            self.with_slab_fields(|fill, bits, constructed| {
                let set: u32 = bits.iter().map(|word| word.count_ones()).sum();
                let unused_bits = bits.len() * 64 - usize::from(fill.objects);
                let is_constructed =
                    |(allocated_bits, constructed): (&u64, &u64)| allocated_bits & !constructed == 0;
                set as usize == usize::from(fill.inuse) + unused_bits
                    && bits.iter().zip(&*constructed).all(is_constructed)
            })
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::harden::{Harden, RandomKeys};
    use proptest::prelude::*;
    use uslab_buddy::{Backend, Faults};

    proptest! {
        /// Compares slab bitmaps, from one object to many words, with an array of flags.
        #[test]
        fn random_slab_bitmap_operations_agree_with_an_array_of_flags(
            objects in 1_usize..700,
            steps in prop::collection::vec((any::<bool>(), 0_usize..700), 1..200),
            seed in any::<Option<u64>>(),
        ) {
            let mut bits = vec![0x5555_5555_5555_5555; words(objects)];
            clear(&mut bits, objects);
            let mut allocated_bits = vec![false; objects];
            let secret = |seed| RandomKeys::new(&Harden { seed: Some(seed), ..Harden::ALL }).next();
            let mut draws = seed.map(|seed| Draws::of(secret(seed), 0));
            for (is_take, n) in steps {
                if is_take {
                    let max = n % 70;
                    let mut indexes = Vec::new();
                    let expected: Vec<_> = (0..objects).filter(|&i| !allocated_bits[i]).take(max).collect();
                    let taken_count = match &mut draws {
                        None => alloc_bits(&mut bits, |_| 0, max, |i| indexes.push(i)),
                        Some(draws) => set_random_clear_bits(&mut bits, |_| 0, max, draws, |i| indexes.push(i)),
                    };
                    prop_assert_eq!((taken_count, expected.len()), (indexes.len(), indexes.len()));
                    match draws {
                        None => prop_assert_eq!(&indexes, &expected, "the lowest free indexes must be allocated"),
                        Some(_) => prop_assert!(indexes.iter().all(|&i| !allocated_bits[i]) && indexes.iter().all(|i| indexes.iter().filter(|j| i == *j).count() == 1)),
                    }
                    indexes.iter().for_each(|&i| allocated_bits[i] = true);
                } else {
                    let index = n % objects;
                    prop_assert_eq!(clear_allocated_bit(&mut bits, index).is_ok(), allocated_bits[index]);
                    allocated_bits[index] = false;
                }
            }
        }
    }

    /// Makes a side table of one page, which serves 64 pages.
    fn side() -> BitmapTable {
        BitmapTable::new(64, None, &mut Reservation::none(Backend::Heap, &Faults::default())).unwrap()
    }

    #[test]
    fn side_table_refuses_bitmap_words_beyond_its_end() {
        assert_eq!(side().memory.reserved(), 64 * SIDE_TABLE_PAGE_BYTES);
        assert!(side().commit_bitmap_words(&Operation::new(), Pfn::new(63), 8));
        assert!(
            !side().commit_bitmap_words(&Operation::new(), Pfn::new(63), 9),
            "a word past the end was written"
        );
    }

    /// The test accepts commits that exceed the bitmaps in use.
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn shrunk_bitmap_table_covers_the_remaining_pages() {
        let side =
            BitmapTable::new(1 << 20, None, &mut Reservation::none(Backend::Os, &Faults::default())).unwrap();
        assert_eq!(side.memory.reserved(), SIDE_TABLE_PAGE_BYTES << 20);
        let pages = PageAllocator::new(crate::shadow::pages(1, 1, 8 << 20)).unwrap();
        // SAFETY: the table has no slabs.
        unsafe { side.trim(&pages, 1 << 19) };
        let reserved_ahead = side.memory.reserved() - (SIDE_TABLE_PAGE_BYTES << 19);
        assert!((1 << 20..1 << 21).contains(&reserved_ahead));
        assert!(!side.commit_bitmap_words(&Operation::new(), Pfn::new(1 << 20), 8));
    }

    #[test]
    fn bitmap_that_fits_its_frame_needs_no_side_table() {
        let pages = uslab_buddy::PageAllocator::new(crate::shadow::pages(1, 1, 8 << 20)).unwrap();
        let block = pages.alloc(uslab_buddy::Order::MAX, crate::Gfp::empty(), None).unwrap();
        let side = side();
        // This page is after the pages that the side table covers.
        let slab = Slab::at(pages.frames(), &side, Pfn::new(block.get() + 64));
        // SAFETY: the slab is a page of the block, which only this test has.
        unsafe {
            assert!(
                slab.set_up(&Operation::new(), FRAME_BITMAP_BITS, Constructed::Together) && slab.agrees()
            );
            assert!(!slab.set_up(&Operation::new(), FRAME_BITMAP_BITS + 1, Constructed::Together));
            pages.free(block, uslab_buddy::Order::MAX);
        }
    }

    #[test]
    fn side_table_has_a_bit_for_each_word_of_a_page() {
        assert_eq!(SIDE_TABLE_PAGE_BYTES * 8 * crate::geometry::WORD, uslab_buddy::PAGE_SIZE);
    }

    #[test]
    fn random_object_order_can_start_at_every_bitmap_index() {
        let key = RandomKeys::new(&Harden { seed: Some(7), ..Harden::ALL }).next();
        let mut draws_per_index = [0; 256];
        for draw_number in 0..16 * 256 {
            set_random_clear_bits(
                &mut [0; 4],
                |_| 0,
                1,
                &mut Draws::of(key, draw_number),
                |index| draws_per_index[index] += 1,
            );
        }
        assert!(draws_per_index.iter().all(|n| (1..64).contains(n)), "{draws_per_index:?}");
    }

    #[test]
    fn slab_consistency_check_detects_a_wrong_object_count() {
        let pages = uslab_buddy::PageAllocator::new(crate::shadow::pages(1, 1, 8 << 20)).unwrap();
        let block = pages.alloc(uslab_buddy::Order::MAX, crate::Gfp::empty(), None).unwrap();
        let side = BitmapTable::new(1 << 12, None, &mut Reservation::none(Backend::Heap, &Faults::default()))
            .unwrap();
        let slab = Slab::at(pages.frames(), &side, Pfn::new(block.get() + 64));
        for objects in [1, 63, 64, 70, 128, FRAME_BITMAP_BITS, 300, 512] {
            let (mut taken, mut allocated_words, mut expected) = (vec![], vec![], vec![0; words(objects)]);
            // SAFETY: the slab is a page of the block, which only this test has.
            unsafe {
                assert!(slab.set_up(&Operation::new(), objects, Constructed::Together));
                slab.alloc_bits(objects, false, None, |index| taken.push(index));
                let every_third = taken.iter().copied().filter(|index| index % 3 == 0);
                slab.free_objects_in_bitmap(every_third, true, |index| {
                    panic!("object {index} was already free")
                });
                slab.allocated(|word| allocated_words.push(word));
                assert!(slab.agrees(), "{objects}");
                slab.with_slab_fields(|fill, _, _| fill.inuse += 1);
                assert!(!slab.agrees(), "{objects}: no more objects are allocated");
                slab.with_slab_fields(|fill, _, _| fill.inuse -= 1);
                assert!(slab.agrees(), "{objects}");
                slab.with_slab_fields(|_, bits, _| bits[0] |= 1);
                assert!(!slab.agrees(), "{objects}: an allocated object was not counted");
            }
            for index in (0..objects).filter(|index| index % 3 != 0) {
                expected[index / 64] |= 1_u64 << (index % 64);
            }
            assert_eq!(allocated_words, expected, "{objects}");
        }
        // SAFETY: the block was allocated above, and is freed once.
        unsafe { pages.free(block, uslab_buddy::Order::MAX) };
    }
}
