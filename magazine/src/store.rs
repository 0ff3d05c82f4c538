//! Where slots and magazines lie, and what a magazine is.
//!
//! ```text
//!  base
//!  | sentinel, CPU count | 2 spare slots | slot of CPU 0 | slot 1 | ... | spare slots | magazine | magazine | ...
//!   <------ 128 B ----->                 <--- 128 B ---->                number 16 * (slots + 3) + 4, ...
//! ```
//!
//! One pointer serves the CPU count, slots and magazines. Spare slots always hold sentinels: they are where a thread is
//! led whose CPU has no number yet, or a number beyond the count. They are never written, so they cost address space.
//!
//! A magazine's number counts 8-byte words from `base`, so number -> address is one addition. Magazines are
//! **type-stable**: once made, a magazine keeps its address and number while the layer lives. Nothing is ever unmade, so a
//! stale number is always safe to look at.
//!
//! Under a checker the same numbers index vectors of constructed objects: zeroed memory is none of its atomics.

use crate::memory::Memory;
use crate::paths::Operation;
#[cfg(loom)]
use crate::slot::Pair;
use crate::slot::{Fill, Num, Slot};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::fork::ForkMutex;
use crate::sync::{AtomicU32, AtomicU64, Counter, Fixed, Rank, UnsafeCell, planted, tell};
use core::ptr::NonNull;

/// A magazine's word: the length in the low 16 bits,
pub(crate) const MAG_LEN: u64 = 0xffff;
/// and above it the count of operations (fast allocations and frees) it has served.
pub(crate) const MAG_OP: u64 = 1 << 16;

/// A magazine's fixed part; its rounds follow.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    /// `len:16 | ops:48`. Stored only by operations of the CPU whose slot holds the magazine, else by its owner:
    /// whoever took it out of a slot, a stock or the depot.
    pub(crate) word: AtomicU64,
    /// The capacity in rounds in the low half; [`STOCK`] is set on a magazine of magazine numbers. Changes only while the
    /// magazine is empty and its owner's.
    pub(crate) capacity: Fixed,
    /// The next magazine on the depot's list or on a drain's chain; belongs to the owner.
    link: UnsafeCell<u32>,
    /// Rounds that owners put in, less those they took out, outside operations. With it the operations split into
    /// allocations and frees: allocations = (ops - (len - net)) / 2.
    net: Counter,
    /// Stands for the capacity, which loom does not watch: written when the magazine is made, read by walks.
    #[cfg(any(loom, shuttle))]
    made: UnsafeCell<()>,
}

const STOCK: u32 = 1 << 16;
const WORD: usize = 8;
#[cfg(not(any(loom, shuttle)))]
const HEADER_WORDS: usize = size_of::<Header>() / WORD;
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Header>() == 24);
/// Magazines lie whole lines apart,
#[cfg(not(any(loom, shuttle)))]
const LINE_WORDS: usize = 8;
/// and start in the middle of one. A load that follows a store to the same place *of another page* waits for it (processors
/// compare 12 bits of an address first). Callers write the beginnings of lines; so no word that the fast paths use lies
/// at the beginning of one, and a magazine's word never where a slot's pair does: pairs are at 8, 16 and 24 bytes.
#[cfg(not(any(loom, shuttle)))]
const OFF_LINE: usize = 4;

/// What lies at `base`: the sentinel, which is magazine 0, the count, and the spare slots of "CPU" -2 and -1, as threads
/// without a registration read.
#[cfg(not(any(loom, shuttle)))]
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Front {
    sentinel: Header,
    /// CPUs that have a slot.
    pub(crate) cpus: Fixed,
    spare: [Slot; 2],
}
/// The slots of CPU 0, 1, ... follow.
#[cfg(not(any(loom, shuttle)))]
pub(crate) const FIRST_SLOT: usize = size_of::<Front>();

/// A cell for one round. Null is never stored by an operation.
type Cell = UnsafeCell<*mut u8>;

/// One magazine, looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Magazine<'s> {
    header: &'s Header,
    #[cfg(not(any(loom, shuttle)))]
    rounds: NonNull<Cell>,
    #[cfg(any(loom, shuttle))]
    rounds: &'s [Cell],
}

impl core::ops::Deref for Magazine<'_> {
    type Target = Header;
    fn deref(&self) -> &Header {
        self.header
    }
}

impl Header {
    /// In rounds; 0 for the sentinel.
    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.get() & 0xffff
    }
    /// Whether its rounds are magazine numbers.
    pub(crate) fn is_stock(&self) -> bool {
        self.capacity.get() & STOCK != 0
    }
    /// Exact inside an operation of its CPU and for its owner; a hint for anybody else.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        (self.word.load(Relaxed) & MAG_LEN) as u32
    }
    /// Operations served so far.
    pub(crate) fn operations(&self) -> u64 {
        self.word.load(Relaxed) / MAG_OP
    }
    pub(crate) fn is(&self, fill: Fill) -> bool {
        match fill {
            Fill::Any => true,
            Fill::Empty => self.len() == 0,
            Fill::Full => self.len() == self.capacity(),
        }
    }
    /// (allocations, frees) that operations have served so far. Exact at quiescence; while the magazine is in use a
    /// snapshot.
    pub(crate) fn served(&self) -> (u64, u64) {
        let word = self.word.load(Relaxed);
        let (ops, len) = ((word / MAG_OP) as i64, (word & MAG_LEN) as i64);
        let allocs = (ops - (len - self.net.get() as i64)) / 2;
        (allocs.clamp(0, ops) as u64, (ops - allocs).clamp(0, ops) as u64)
    }
}

impl<'s> Magazine<'s> {
    fn cell(&self, i: usize) -> &'s Cell {
        debug_assert!(i < self.header.capacity() as usize);
        #[cfg(any(loom, shuttle))]
        return &self.rounds[i];
        // SAFETY: `i` is below the capacity, and `Store::create` committed that many cells behind the header; they
        // stay while the store, and so `'s`, lives.
        #[cfg(not(any(loom, shuttle)))]
        return unsafe { self.rounds.add(i).as_ref() };
    }
    /// Round `i`; for operations of its CPU and its owner. `None` only for a cell that was never written.
    pub(crate) fn round(&self, i: usize) -> Option<NonNull<u8>> {
        // SAFETY: the caller is inside an operation of the CPU that holds the magazine, or owns it: nobody writes.
        NonNull::new(self.cell(i).with(|p| unsafe { *p }))
    }
    /// Writes round `i`; for operations of its CPU and its owner.
    pub(crate) fn set_round(&self, i: usize, round: NonNull<u8>) {
        // SAFETY: as in `round`: nobody else reads or writes the magazine.
        self.cell(i).with_mut(|p| unsafe { *p = round.as_ptr() });
    }
    /// The owner puts a round in; `false` if the magazine is full. Not an operation: `net` moves along.
    pub(crate) fn owner_push(&self, round: NonNull<u8>) -> bool {
        let len = self.len();
        if len == self.capacity() {
            return false;
        }
        self.set_round(len as usize, round);
        self.header.word.store(self.header.word.load(Relaxed) + 1, Relaxed);
        self.header.net.set(self.header.net.get().wrapping_add(1));
        true
    }
    /// The owner takes the newest round out.
    pub(crate) fn owner_pop(&self) -> Option<NonNull<u8>> {
        let last = self.len().checked_sub(1)?;
        let round = self.round(last as usize)?;
        self.header.word.store(self.header.word.load(Relaxed) - 1, Relaxed);
        self.header.net.set(self.header.net.get().wrapping_sub(1));
        Some(round)
    }
    /// The owner of a private magazine takes the newest round out, for a caller: an operation, counted as such.
    #[inline(always)]
    pub(crate) fn private_pop(&self) -> Option<NonNull<u8>> {
        let word = self.header.word.load(Relaxed);
        let last = (word & MAG_LEN).checked_sub(1)?;
        let round = self.round(last as usize)?;
        self.header.word.store(word - 1 + MAG_OP, Relaxed);
        Some(round)
    }
    /// The owner of a private magazine puts a caller's round in; `false` if there is no room.
    #[inline(always)]
    pub(crate) fn private_push(&self, round: NonNull<u8>) -> bool {
        let word = self.header.word.load(Relaxed);
        let len = word & MAG_LEN;
        if len >= u64::from(self.capacity()) {
            return false;
        }
        self.set_round(len as usize, round);
        self.header.word.store(word + 1 + MAG_OP, Relaxed);
        true
    }
    /// Makes an empty magazine larger or smaller, within the room that it was made with; for its owner.
    pub(crate) fn resize(&self, capacity: u32) {
        debug_assert!(self.len() == 0, "only an empty magazine is filled or resized");
        if self.header.capacity() != capacity {
            self.header.capacity.set(capacity);
        }
    }
    /// The number behind this magazine on the chain; for its owner.
    pub(crate) fn link(&self) -> Num {
        // SAFETY: the caller owns the magazine.
        Num(self.header.link.with(|p| unsafe { *p }))
    }
    /// For its owner.
    pub(crate) fn set_link(&self, next: Num) {
        // SAFETY: the caller owns the magazine.
        self.header.link.with_mut(|p| unsafe { *p = next.0 });
    }
}

/// All slots and magazines of one layer.
#[derive(Debug)]
pub(crate) struct Store<M> {
    cpus: u32,
    /// The number of the first magazine.
    first: u32,
    /// The room of a magazine of rounds.
    room: u32,
    /// Magazine numbers below this are made. Grows only.
    top: AtomicU32,
    /// Serialises making.
    pub(crate) making: ForkMutex<()>,
    #[cfg_attr(any(loom, shuttle), allow(dead_code))]
    memory: M,
    #[cfg(any(loom, shuttle))]
    slots: Vec<Slot>,
    #[cfg(any(loom, shuttle))]
    magazines: Vec<(Header, Vec<Cell>)>,
}

// SAFETY: what the store points to is its memory's, whose owner may be any thread; slots and magazines are atomics, and
// cells whose access the slot contract, the drain lock and ownership of a magazine serialise.
unsafe impl<M: Memory> Send for Store<M> {}
// SAFETY: as above.
unsafe impl<M: Memory> Sync for Store<M> {}

/// The number distance from one magazine of `capacity` to the next.
#[cfg(not(any(loom, shuttle)))]
const fn stride(capacity: u32) -> u32 {
    (HEADER_WORDS + capacity as usize).next_multiple_of(LINE_WORDS) as u32
}
#[cfg(any(loom, shuttle))]
const fn stride(_: u32) -> u32 {
    1
}
/// The number of the first magazine, which is also the distance in words from `base` to it.
#[cfg(not(any(loom, shuttle)))]
const fn first(slots: u32) -> u32 {
    ((FIRST_SLOT + slots as usize * size_of::<Slot>()) / WORD + OFF_LINE) as u32
}
#[cfg(any(loom, shuttle))]
const fn first(_: u32) -> u32 {
    1
}

impl<M: Memory> Store<M> {
    /// Bytes that hold so many slots and, by capacity, so many magazines.
    pub(crate) fn footprint(slots: u32, magazines: impl Iterator<Item = (u32, u32)>) -> usize {
        let words: usize =
            magazines.map(|(capacity, count)| stride(capacity) as usize * count as usize).sum();
        (first(slots) as usize + words) * WORD
    }

    /// Slots for `cpus` CPUs in a table of `slots`. `None` if not even the slots fit or can be committed.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn new(
        cpus: u32,
        slots: u32,
        memory: M,
        _magazines: u32,
        room: u32,
        _stock: u32,
    ) -> Option<Self> {
        debug_assert!(cpus <= slots);
        let bytes = Self::footprint(slots, core::iter::empty());
        if !memory.base().addr().get().is_multiple_of(align_of::<Slot>())
            || !memory.commit(&Operation::new(), bytes)
        {
            return None;
        }
        let first = first(slots);
        Some(Self {
            cpus,
            first,
            room,
            top: AtomicU32::new(first),
            making: ForkMutex::new(Rank::Making, ()),
            memory,
        })
    }
    #[cfg(any(loom, shuttle))]
    pub(crate) fn new(
        cpus: u32,
        slots: u32,
        memory: M,
        magazines: u32,
        room: u32,
        stock: u32,
    ) -> Option<Self> {
        let made = |_| {
            let header = Header {
                word: AtomicU64::new(0),
                capacity: Fixed::new(0),
                link: UnsafeCell::new(0),
                net: Counter::new(0),
                made: UnsafeCell::new(()),
            };
            (header, (0..room.max(stock)).map(|_| Cell::new(core::ptr::null_mut())).collect())
        };
        Some(Self {
            cpus,
            first: first(slots),
            room,
            top: AtomicU32::new(first(slots)),
            making: ForkMutex::new(Rank::Making, ()),
            memory,
            slots: (0..cpus).map(|_| Slot::new()).collect(),
            magazines: (0..=magazines).map(made).collect(),
        })
    }

    /// Where the sentinel lies, and all else behind it.
    #[cfg(not(any(loom, shuttle)))]
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// The slots of `cpu`, if it has any.
    #[inline]
    pub(crate) fn slot(&self, cpu: u32) -> Option<&Slot> {
        if cpu >= self.cpus && !planted("a CPU beyond the table has a slot") {
            return None;
        }
        #[cfg(any(loom, shuttle))]
        return Some(&self.slots[cpu as usize]);
        #[cfg(not(any(loom, shuttle)))]
        {
            // SAFETY: `new` checked the alignment and committed the slots of all CPUs below `cpus`; zeroed memory is
            // a valid `Slot`, and nobody makes an exclusive reference to it.
            Some(unsafe { self.base().add(FIRST_SLOT).cast::<Slot>().add(cpu as usize).as_ref() })
        }
    }

    /// The magazine of that number, which some slot, stock, list or `create` named.
    #[inline]
    pub(crate) fn get(&self, num: Num) -> Magazine<'_> {
        #[cfg(any(loom, shuttle))]
        {
            let (header, rounds) = &self.magazines[num.0 as usize];
            Magazine { header, rounds }
        }
        #[cfg(not(any(loom, shuttle)))]
        {
            // SAFETY: numbers come from `create`, which committed the header and the cells of this magazine at this
            // place; magazines are never unmade. Zeroed memory is a valid header, and all its fields are atomics or
            // cells, so shared references are all that is ever made.
            unsafe {
                let header = self.base().add(num.0 as usize * WORD).cast::<Header>();
                Magazine { header: header.as_ref(), rounds: header.add(1).cast() }
            }
        }
    }

    /// Makes a magazine, empty and owned by the caller; `None` when the memory is used up or refused. One of rounds has
    /// room for what the store was made with.
    pub(crate) fn create(&self, op: &Operation, capacity: u32, stock: bool) -> Option<Num> {
        tell!(op: Depot, "makes a magazine");
        let _making = self.making.lock();
        let num = Num(self.top.load(Relaxed));
        let room = if stock { capacity } else { self.room };
        let top = num.0.checked_add(stride(room))?;
        #[cfg(any(loom, shuttle))]
        if num.0 as usize >= self.magazines.len() {
            return None;
        }
        #[cfg(not(any(loom, shuttle)))]
        if !self.memory.commit(op, top as usize * WORD) {
            return None;
        }
        // Not before: a store that was never used has touched no page. Without a magazine nothing can be put into a slot.
        #[cfg(not(any(loom, shuttle)))]
        // SAFETY: `new` committed the front, aligned; zeroed memory is a valid one.
        unsafe { self.base().cast::<Front>().as_ref() }.cpus.set(self.cpus);
        // Release: pairs with the Acquire in `iter`, which must see the capacity.
        let announce = || self.top.store(top, Release);
        if planted("magazine announced before it is made") {
            announce();
        }
        let header = self.get(num).header;
        header.capacity.set(capacity | if stock { STOCK } else { 0 });
        #[cfg(any(loom, shuttle))]
        header.made.with_mut(|_| ());
        announce();
        Some(num)
    }

    /// All magazines made so far.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Magazine<'_>> {
        let top = self.top.load(Acquire);
        let mut next = self.first;
        core::iter::from_fn(move || {
            let magazine = (next < top).then(|| self.get(Num(next)))?;
            #[cfg(any(loom, shuttle))]
            magazine.made.with(|_| ());
            next += stride(if magazine.is_stock() { magazine.capacity() } else { self.room });
            Some(magazine)
        })
    }

    /// The slots as a story shows them: for each CPU its loaded and previous magazine as number:length, and its stocks.
    #[cfg(loom)]
    pub(crate) fn watched(&self) -> crate::sync::story::Watched {
        let magazine = |num: Num| match num.is_sentinel() {
            true => "-".to_owned(),
            false => format!("{}:{}", num.0, self.get(num).word.peek() & MAG_LEN),
        };
        let slot = |(cpu, slot): (usize, &Slot)| {
            let [rounds, full, empty] = [0, 1, 2].map(|which| Pair::of(slot.pairs[which].peek()));
            [
                (
                    format!("CPU {cpu}"),
                    format!("({}, {})", magazine(rounds.loaded), magazine(rounds.previous)),
                ),
                (format!("CPU {cpu} full stock"), magazine(full.loaded)),
                (format!("CPU {cpu} empty stock"), magazine(empty.loaded)),
            ]
        };
        let mut parts: Vec<_> = self.slots.iter().enumerate().flat_map(slot).collect();
        // Stocks that were never used are no news.
        parts.retain(|(_, value)| value != "-");
        crate::sync::story::Watched { id: core::ptr::from_ref(self).addr(), parts }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::memory::Heap;

    #[test]
    fn magazines_lie_whole_lines_apart_until_the_memory_ends() {
        let bytes = Store::<Heap>::footprint(2, [(13, 1), (14, 2)].into_iter());
        let store = Store::new(2, 2, Heap::new(bytes).unwrap(), 3, 1, 14).unwrap();
        // A header is three words; numbers count words, and the first one is 16 * (slots + 3) + 4.
        let made =
            [13, 14, 14, 14].map(|capacity| store.create(&Operation::new(), capacity, true).map(|num| num.0));
        assert_eq!(made, [Some(84), Some(100), Some(124), None]);
        assert_eq!(store.iter().map(|magazine| magazine.capacity()).collect::<Vec<_>>(), [13, 14, 14]);
    }
}
