//! The per-CPU pointers and regions of a table for loom and shuttle, as separate cells and atomics. Inlined paths have
//! per-CPU pointers only in models that request them. In all other models, every operation takes the slow path, which
//! reduces the number of executions.

use super::{Number, Table};
use crate::cpu::Cpus;
use crate::cpu::regions::{Regions, Words};
use crate::cpu::rseq::StaticWords;
use crate::depot::{Block, Blocks};
use crate::memory::Memory;
use crate::region::{Cells, Class, PAGE, ROUND, Region};
use crate::sync::AtomicUsize;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::tracepoints::Operation;
use core::ops::Range;

/// A pointer and a region for each CPU, and the empty region.
#[derive(Debug)]
pub(super) struct Layout {
    /// For each set, one pointer per CPU. The vector is empty if the model does not use the set.
    words: [Vec<AtomicUsize>; 3],
    regions: Vec<Cells>,
}

impl Layout {
    pub(super) fn new(cpus: &Cpus, region: usize) -> Self {
        let cells = |cpu| {
            let cap = 0;
            Cells::new(cpu, region / ROUND, cap)
        };
        Self {
            words: [(0..cpus.count() as usize).map(AtomicUsize::new).collect(), vec![], vec![]],
            regions: (0..=cpus.count()).map(cells).collect(),
        }
    }
}

impl<M: Memory> Regions for Table<M> {
    fn this_cpu(&self) -> u32 {
        self.cpus.current()
    }
    fn region(&self, cpu: u32) -> Option<Region<'_>> {
        self.region(cpu)
    }
    fn current(&self, words: Words, cpu: u32) -> Option<Region<'_>> {
        let word = self.layout.words[words as usize].get(cpu as usize)?;
        // Acquire: pairs with the Release in `reattach_cpu`. On real hardware an address dependency suffices.
        Some(Region(&self.layout.regions[word.load(Acquire)]))
    }
}

impl<M: Memory> Table<M> {
    pub(super) fn fits(_: &Cpus, _region: usize, _: &M) -> bool {
        true
    }
    pub(super) fn write_words(&self) {}
    pub(super) fn region_at(&self, cpu: u32) -> Region<'_> {
        Region(&self.layout.regions[cpu as usize])
    }
    pub(crate) fn take_static_words(&self, _: &'static StaticWords) -> bool {
        false
    }
    pub(crate) fn homes(&self) -> [usize; 3] {
        [0; 3]
    }

    #[allow(dead_code, reason = "for models")]
    pub(crate) fn with_inlined_words(mut self) -> Self {
        for words in Words::INLINED_WORDS {
            self.layout.words[words as usize] =
                (0..self.cpus.count() as usize).map(AtomicUsize::new).collect();
        }
        self
    }
    fn word(&self, words: Words, cpu: u32) -> Option<&AtomicUsize> {
        self.layout.words[words as usize].get(cpu as usize)
    }
    pub(super) fn detach_cpu(&self, words: Words, cpu: u32) {
        // Relaxed: the fence publishes the store. Until the fence, both the empty region and the CPU's region are
        // correct.
        self.word(words, cpu).into_iter().for_each(|word| word.store(self.cpus.count() as usize, Relaxed));
    }
    pub(super) fn reattach_cpu(&self, words: Words, cpu: u32) {
        // Release: pairs with the Acquire in `current`.
        self.word(words, cpu).into_iter().for_each(|word| word.store(cpu as usize, Release));
    }
    pub(crate) fn is_away(&self, cpu: u32) -> bool {
        // Relaxed: only drains write the word, and this thread holds the lock of drains.
        self.word(Words::Always, cpu).is_some_and(|word| word.load(Relaxed) != cpu as usize)
    }

    pub(super) fn grant(&self, _: &Operation, _cpu: u32, _part: Range<usize>) -> bool {
        true
    }
    pub(super) fn decommit_pages(&self, cpu: u32, pages: Range<usize>) -> usize {
        let begin = |at: &Number| pages.contains(&at.pages().start);
        let classes = self.all().filter(|(_, at)| begin(at)).map(|(class, _)| class);
        self.region_at(cpu).zero(pages.clone(), classes);
        pages.len() * PAGE
    }
    pub(crate) fn block(&self, _: &Operation) -> Option<Block> {
        Some(Block::on_heap())
    }
    pub(crate) fn take_blocks(&self, blocks: Blocks) {
        blocks.free();
    }

    /// Returns the CPUs whose pointers are not redirected, to print in a counterexample trace.
    #[cfg(loom)]
    pub(super) fn watched(&self) -> crate::sync::story::Watched {
        let part = |(cpu, word): (usize, &AtomicUsize)| {
            let there = word.peek() as usize == cpu;
            (format!("CPU {cpu} region"), if there { "there" } else { "away" }.to_owned())
        };
        let parts = self.layout.words[0].iter().enumerate().map(part).collect();
        crate::sync::story::Watched { id: core::ptr::from_ref(self).addr(), parts }
    }

    /// Asserts that no drain of any class is running.
    pub fn assert_all_classes_quiescent(&self) {
        self.all().for_each(|(class, _)| self.assert_at_rest(class));
    }
    /// Asserts that no drain of the class is running, and that the empty region was never written.
    pub(crate) fn assert_at_rest(&self, class: Class) {
        for cpu in 0..self.cpus.count() {
            assert!(!self.is_away(cpu), "the word of CPU {cpu} is not restored");
            let region = self.region_at(cpu);
            assert_eq!(region.claim().load(Relaxed), 0, "the region of CPU {cpu} is still claimed");
            assert_eq!(region.taken_rounds(class), 0, "the rounds that a drain took are flushed");
        }
        let number = &self.numbers[class.index as usize];
        assert_eq!(
            u64::from(number.limit.load(Relaxed)),
            number.open.get(),
            "the class is open if no drain runs"
        );
        let empty = self.region_at(self.cpus.count());
        assert_eq!(empty.committed(), 0, "the empty region stays empty");
    }
}
