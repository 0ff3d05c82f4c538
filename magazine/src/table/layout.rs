//! The layout of a table's memory: per-CPU pointers, regions, and depot magazines.

use super::{COMMIT_STEP, Table, WORD, header_bytes, word_bytes};
use crate::cpu::regions::{Regions, SPARE_POINTERS, Words};
use crate::cpu::rseq::StaticWords;
use crate::cpu::{Cpus, Mechanism};
use crate::depot::{Block, Blocks, Slot};
use crate::memory::{ALIGN, Memory};
use crate::region::{PAGE, REGION, Region, STACKS};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicPtr, UnsafeCell, contain_panic};
use crate::tracepoints::Operation;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::NonNull;

/// The fields of a table that differ between normal builds and models.
#[derive(Debug)]
pub(super) struct Layout {
    /// Static copies of the sets of per-CPU pointers that inlined paths read. The table's drain lock protects this
    /// cell.
    static_words: UnsafeCell<Option<&'static StaticWords>>,
    /// Number of bytes in the table's memory before the first region.
    front: usize,
}

impl Layout {
    pub(super) fn new(cpus: &Cpus, _region: usize) -> Self {
        Self { static_words: UnsafeCell::new(None), front: header_bytes(cpus) }
    }
}
impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: the table is being dropped, so this is the only reference.
        if let Some(words) = self.static_words.with(|p| unsafe { *p }) {
            words.give_back();
        }
    }
}

impl<M: Memory> Regions for Table<M> {
    #[inline(always)]
    fn this_cpu(&self) -> u32 {
        self.cpus.current()
    }
    #[inline(always)]
    fn region(&self, cpu: u32) -> Option<Region<'_>> {
        self.region(cpu)
    }
    fn words(&self, words: Words) -> Option<NonNull<u8>> {
        (self.cpus.mechanism() == Mechanism::Rseq).then(|| self.words_of(words))
    }
    fn spare_words(&self) -> NonNull<u8> {
        self.memory.base()
    }
}

impl<M: Memory> Table<M> {
    /// Returns `true` if the memory is large enough for the table, and if the part for the per-CPU pointers could be
    /// committed.
    pub(super) fn fits(cpus: &Cpus, region: usize, memory: &M) -> bool {
        memory.base().addr().get().is_multiple_of(ALIGN)
            && memory.bytes() >= Self::footprint(cpus, region)
            && (STACKS + 1..=REGION).contains(&region)
            && memory.commit(&Operation::new(), 0..header_bytes(cpus))
    }
    pub(super) fn write_words(&self) {
        let empty = self.home(self.cpus.count()).as_ptr();
        let set = SPARE_POINTERS + self.cpus.word_count() as usize;
        let words = self.memory.base().cast::<MaybeUninit<*mut u8>>().as_ptr();
        // SAFETY: the words were committed, and no other thread knows them yet. An `AtomicPtr` has the layout of a
        // pointer.
        let words = unsafe { core::slice::from_raw_parts_mut(words, 3 * set) };
        // One fill of all words is faster than separate stores. Most words belong to no CPU, and each start
        // of a process runs this code.
        words.fill(MaybeUninit::new(empty));
        for set in words.chunks_mut(set) {
            let homes = (0..self.cpus.count()).map(|cpu| self.home(cpu).as_ptr());
            set[SPARE_POINTERS..].iter_mut().zip(homes).for_each(|(word, home)| _ = word.write(home));
        }
    }

    /// Returns the address of CPU 0's pointer in the set `words`.
    pub(crate) fn words_of(&self, words: Words) -> NonNull<u8> {
        // SAFETY: `new` checked that the memory begins with three sets of words, each with the spare words in front.
        unsafe { self.memory.base().add(words as usize * word_bytes(&self.cpus) + SPARE_POINTERS * WORD) }
    }
    /// Returns the start address of the region of `cpu`. If `cpu` equals the number of CPUs, returns the start of the
    /// empty region.
    #[inline]
    pub(super) fn home(&self, cpu: u32) -> NonNull<u8> {
        // SAFETY: `new` checked that the memory holds a region for each CPU and the empty region.
        unsafe { self.memory.base().add(self.layout.front + cpu as usize * self.region) }
    }
    #[inline]
    pub(super) fn region_at(&self, cpu: u32) -> Region<'_> {
        // SAFETY: the region is in the table's memory, which lives as long as the table, reads as zero, and is aligned.
        unsafe { Region::at(self.home(cpu)) }
    }
    fn word(&self, words: Words, cpu: u32) -> &AtomicPtr<u8> {
        debug_assert!(cpu < self.cpus.count());
        // SAFETY: `new` wrote a word for each CPU below the count.
        unsafe { self.words_of(words).cast::<AtomicPtr<u8>>().add(cpu as usize).as_ref() }
    }
    /// Returns the pointer of `cpu` in the table's memory, and its static copy if one exists. The calling thread must
    /// hold the table's drain lock.
    fn copies(&self, words: Words, cpu: u32) -> impl Iterator<Item = &AtomicPtr<u8>> {
        // SAFETY: this thread holds the lock of drains.
        let statics = self.layout.static_words.with(|p| unsafe { *p }).filter(|_| words != Words::Always);
        let copy = statics.map(|statics| statics.word(words, SPARE_POINTERS + cpu as usize));
        core::iter::once(self.word(words, cpu)).chain(copy)
    }
    /// Implements [`Layer::take_static_words`](crate::Layer::take_static_words).
    pub(crate) fn take_static_words(&self, words: &'static StaticWords) -> bool {
        let _one_at_a_time = self.lock_drains();
        let slots = SPARE_POINTERS + self.cpus.word_count() as usize;
        // SAFETY: this thread holds the lock of drains.
        let has = self.layout.static_words.with(|p| unsafe { (*p).is_some() });
        if has || self.cpus.mechanism() == Mechanism::Claimed || !words.take(slots) {
            return false;
        }
        for set in Words::INLINED_WORDS {
            for slot in 0..slots {
                // SAFETY: the set begins with the spare words, and `new` wrote the whole set.
                let own = unsafe {
                    self.words_of(set).cast::<AtomicPtr<u8>>().add(slot).sub(SPARE_POINTERS).as_ref()
                };
                // Relaxed: this thread holds the lock of drains, and the table has no static path yet.
                words.word(set, slot).store(own.load(Relaxed), Relaxed);
            }
        }
        // SAFETY: this thread holds the lock of drains.
        self.layout.static_words.with_mut(|p| unsafe { *p = Some(words) });
        true
    }
    /// For debuggers: the address of CPU 0's region, the distance in bytes between two regions, and the number of
    /// regions.
    pub(crate) fn homes(&self) -> [usize; 3] {
        [self.home(0).addr().get(), self.region, self.cpus.count() as usize]
    }

    /// Points one of the pointers of `cpu` to the empty region.
    pub(super) fn detach_cpu(&self, words: Words, cpu: u32) {
        let empty = self.home(self.cpus.count()).as_ptr();
        // Relaxed: the fence publishes the store. Until the fence, an operation may use either the empty
        // region or the CPU's region.
        self.copies(words, cpu).for_each(|word| word.store(empty, Relaxed));
    }
    /// Points one of the pointers of `cpu` to the CPU's region.
    pub(super) fn reattach_cpu(&self, words: Words, cpu: u32) {
        let home = self.home(cpu).as_ptr();
        // Release: pairs with a section's load of the word; the section's other accesses depend on the loaded
        // value. An operation that finds the region again sees what a drain did to the region.
        self.copies(words, cpu).for_each(|word| word.store(home, Release));
    }
    /// Returns `true` if a drain has redirected the pointers of `cpu` to the empty region. The calling thread must hold
    /// the table's drain lock.
    pub(crate) fn is_away(&self, cpu: u32) -> bool {
        // Relaxed: only drains write the word, and this thread holds the lock of drains.
        self.word(Words::Always, cpu).load(Relaxed) != self.home(cpu).as_ptr()
    }

    /// Commits the bytes `part` of the region of `cpu`. If the memory's `commit` panics, the call returns `false`.
    pub(super) fn grant(&self, op: &Operation, cpu: u32, part: Range<usize>) -> bool {
        self.commit_region_part(op, self.home(cpu), part)
    }
    fn commit_region_part(&self, op: &Operation, place: NonNull<u8>, part: Range<usize>) -> bool {
        let start = place.addr().get() - self.memory.base().addr().get();
        contain_panic(|| self.memory.commit(op, start + part.start..start + part.end)) == Some(true)
    }
    /// Decommits all committed pages among the given pages of the region of `cpu`. Returns the number of decommitted
    /// bytes.
    pub(super) fn decommit_pages(&self, cpu: u32, pages: Range<usize>) -> usize {
        let start = self.home(cpu).addr().get() - self.memory.base().addr().get();
        // The room of a class may extend beyond the committed part.
        let granted = self.region(cpu).map_or(0, |region| region.committed());
        let range = start + pages.start * PAGE..start + granted.min(pages.end * PAGE);
        let bytes = range.len();
        // SAFETY: no operation writes to these pages while their stacks are closed, and a reader finds null words, as
        // before.
        let release = || unsafe { self.memory.decommit(range) };
        if bytes > 0 && contain_panic(release) == Some(true) { bytes } else { 0 }
    }

    /// Returns a block of memory for a depot magazine. Returns `None` if the table has no space left for blocks, or if
    /// the memory cannot be committed.
    pub(crate) fn block(&self, op: &Operation) -> Option<Block> {
        let mut making = self.making.lock();
        if let Some(block) = making.blocks.pop() {
            return Some(block);
        }
        // SAFETY: `new` checked that the memory after the empty region is as large as all regions together.
        let base = unsafe { self.home(self.cpus.count()).add(self.region) };
        let [cut, committed] = making.cut;
        let end = cut + size_of::<Slot>();
        if end > self.region {
            return None;
        }
        if end > committed {
            let goal = end.next_multiple_of(COMMIT_STEP).min(self.region);
            if !self.commit_region_part(op, base, committed..goal) {
                return None;
            }
            making.cut[1] = goal;
        }
        making.cut[0] = end;
        // SAFETY: the block is committed and aligned, and the table hands out its bytes only once.
        Some(unsafe { Block::at(base.add(cut)) })
    }
    /// Takes back blocks that a depot no longer needs.
    pub(crate) fn take_blocks(&self, blocks: Blocks) {
        self.making.lock().blocks.append(blocks);
    }
}
