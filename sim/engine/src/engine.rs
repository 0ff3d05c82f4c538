//! Runs a stream, operation by operation.

use crate::machine::{Machine, MachineError};
use crate::observer::Observer;
use crate::step::{Step, What};
use crate::stream::{Action, Reader, Stream};
use uslab::{AllocError, Block, Gfp, KmemCache};
use uslab_buddy::{Order, PageBlock};
use uslab_magazine::on_cpu;

/// A stream that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A cache of it cannot be made.
    #[error("operation {at}: {error}")]
    Machine {
        /// The operation, from 1.
        at: u64,
        /// What failed.
        error: MachineError,
    },
    /// Its columns end before its operations do, or name what there is not.
    #[error("operation {at}: the stream is damaged")]
    Damaged {
        /// The operation, from 1.
        at: u64,
    },
}

/// A stream on its way through a [`Machine`].
#[derive(Debug)]
pub struct Engine<'m> {
    pub(crate) machine: &'m Machine,
    pub(crate) stream: &'m Stream,
    reader: Reader,
    pub(crate) operations: u64,
    /// By number in the stream; `None` is large kmalloc.
    pub(crate) caches: Vec<Option<&'m KmemCache>>,
    /// Allocations and frees of each cache.
    pub(crate) served: Vec<u64>,
    objects: Slots<Object<'m>>,
    blocks: Slots<PageBlock<'m>>,
    /// Pages of the blocks.
    pub(crate) pages_held: u64,
    /// Allocations that the machine could not serve.
    pub(crate) failed: u64,
}

#[derive(Debug)]
struct Object<'m> {
    block: Block<'m>,
    cache: u32,
    /// The CPU that allocated it.
    cpu: u32,
}

/// Live things under the number of their birth.
#[derive(Debug)]
struct Slots<T> {
    /// The slot of each thing that was ever born. Grows only; 4 bytes a birth.
    born: Vec<u32>,
    live: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    const NONE: u32 = u32::MAX;

    fn new() -> Self {
        Self { born: Vec::new(), live: Vec::new(), free: Vec::new() }
    }
    fn insert(&mut self, thing: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.live.push(None);
            self.live.len() as u32 - 1
        });
        self.live[slot as usize] = Some(thing);
        self.born.push(slot);
    }
    /// Births that did not happen; ages count them all the same.
    fn insert_none(&mut self, births: u32) {
        self.born.extend((0..births).map(|_| Self::NONE));
    }
    /// By age: 0 is the youngest.
    fn remove(&mut self, age: u64) -> Option<T> {
        let number = (self.born.len() as u64).checked_sub(age.checked_add(1)?)?;
        let slot = self.born[number as usize];
        let thing = self.live.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(thing)
    }
    fn len(&self) -> usize {
        self.live.len() - self.free.len()
    }
}

impl<'m> Engine<'m> {
    /// At the beginning.
    pub fn new(machine: &'m Machine, stream: &'m Stream) -> Self {
        Self {
            machine,
            stream,
            reader: Reader::default(),
            operations: 0,
            caches: Vec::new(),
            served: Vec::new(),
            objects: Slots::new(),
            blocks: Slots::new(),
            pages_held: 0,
            failed: 0,
        }
    }

    /// Operations that ran.
    pub fn operations(&self) -> u64 {
        self.operations
    }
    /// Allocations that the machine could not serve.
    pub fn failed(&self) -> u64 {
        self.failed
    }
    /// Nanoseconds of the trace since its first operation.
    pub fn time_ns(&self) -> u64 {
        self.reader.time_ns(self.stream)
    }
    /// Objects that the stream holds.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// Runs until `until` operations have run, or all.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn run(&mut self, until: u64) -> Result<(), EngineError> {
        while self.operations < until.min(self.stream.operations) {
            self.operation(&mut None)?;
        }
        Ok(())
    }

    /// The same, and says what the last operation did, if it was one of this call.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn run_and_tell(&mut self, until: u64) -> Result<Vec<Step>, EngineError> {
        let until = until.min(self.stream.operations);
        self.run(until.saturating_sub(1))?;
        let mut told = Some(Vec::new());
        if self.operations < until {
            self.operation(&mut told)?;
        }
        Ok(told.unwrap_or_default())
    }

    fn operation(&mut self, told: &mut Option<Vec<Step>>) -> Result<(), EngineError> {
        let at = self.operations + 1;
        while let Some(info) = self.stream.caches.get(self.caches.len())
            && info.from < at
        {
            let cache = self.machine.cache(info).map_err(|error| EngineError::Machine { at, error })?;
            self.caches.push(cache);
            self.served.push(0);
        }
        self.actions(told).ok_or(EngineError::Damaged { at })?;
        self.operations = at;
        Ok(())
    }

    fn actions(&mut self, told: &mut Option<Vec<Step>>) -> Option<()> {
        self.reader.begin(self.stream)?;
        loop {
            let action = self.reader.action(self.stream)?;
            let cpu = self.reader.cpu();
            on_cpu(cpu);
            match told {
                None => drop(self.act(action)?),
                Some(steps) => {
                    let observer = Observer::new(self, cpu, self.cache_of(action));
                    let what = self.act(action)?;
                    steps.push(observer.told(self, what));
                }
            }
            if !self.reader.goes_on(self.stream) {
                return Some(());
            }
        }
    }

    /// The cache that an action is about, and who allocated what it frees.
    fn cache_of(&self, action: Action) -> Option<u32> {
        match action {
            Action::Alloc { cache, .. } | Action::Pass { cache, .. } => Some(cache),
            Action::Free { age } => {
                let number = (self.objects.born.len() as u64).checked_sub(age + 1)?;
                let slot = self.objects.born[number as usize];
                Some(self.objects.live.get(slot as usize)?.as_ref()?.cache)
            }
            _ => None,
        }
    }

    fn alloc(&mut self, cache: u32, bytes: u64) -> Option<Result<Block<'m>, AllocError>> {
        *self.served.get_mut(cache as usize)? += 1;
        Some(match self.caches.get(cache as usize)? {
            Some(cache) => cache.alloc_block(Gfp::KERNEL),
            None => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                self.machine.subsystem.kmalloc().alloc_block(bytes, Gfp::KERNEL)
            }
        })
    }

    fn act(&mut self, action: Action) -> Option<What> {
        let cpu = self.reader.cpu();
        Some(match action {
            Action::Alloc { cache, bytes } => match self.alloc(cache, bytes)? {
                Ok(block) => {
                    let at = block.address();
                    self.objects.insert(Object { block, cache, cpu });
                    What::Alloc { at: at.into() }
                }
                Err(_) => {
                    self.objects.insert_none(1);
                    self.failed += 1;
                    What::Failed
                }
            },
            Action::Pass { cache, bytes } => match self.alloc(cache, bytes)? {
                Ok(block) => {
                    *self.served.get_mut(cache as usize)? += 1;
                    What::Pass { at: block.address().into() }
                }
                Err(_) => {
                    self.failed += 1;
                    What::Failed
                }
            },
            // An allocation that failed is not there to be freed.
            Action::Free { age } => match self.objects.remove(age) {
                Some(object) => {
                    *self.served.get_mut(object.cache as usize)? += 1;
                    let at = object.block.address();
                    drop(object.block);
                    What::Free { at: at.into(), allocated_on: object.cpu }
                }
                None => What::Nothing,
            },
            Action::AllocPages { order, migratetype } => {
                let order = Order::new(order)?;
                let gfp = match migratetype {
                    1 => Gfp::KERNEL | Gfp::MOVABLE,
                    2 => Gfp::KERNEL | Gfp::RECLAIMABLE,
                    _ => Gfp::KERNEL,
                };
                match self.machine.subsystem.pages().alloc_block(order, gfp, None) {
                    Ok(block) => {
                        let page = block.pfn().get();
                        self.pages_held += u64::from(order.pages());
                        self.blocks.insert(block);
                        What::AllocPages { page, order: order.get() }
                    }
                    Err(_) => {
                        self.blocks.insert_none(1);
                        self.failed += 1;
                        What::Failed
                    }
                }
            }
            Action::FreePages { age } => match self.blocks.remove(age) {
                Some(block) => {
                    let (page, order) = (block.pfn().get(), block.order());
                    self.pages_held -= u64::from(order.pages());
                    drop(block);
                    What::FreePages { page, order: order.get() }
                }
                None => What::Nothing,
            },
            Action::SplitPages { age, order, halvings } => match self.blocks.remove(age) {
                Some(block) => {
                    let (page, into) = (block.pfn().get(), Order::new(order)?);
                    if block.order() < into || block.order().get() - order != halvings {
                        return None;
                    }
                    block.split(into).into_iter().for_each(|part| self.blocks.insert(part));
                    What::SplitPages { page, order }
                }
                None => {
                    self.blocks.insert_none(1_u32.checked_shl(halvings.into())?);
                    What::Nothing
                }
            },
            Action::Shrink => {
                let reaped = self.machine.subsystem.reap();
                let slabs = self.machine.subsystem.shrink();
                What::Shrink { objects: reaped, slabs: slabs as u64 }
            }
            Action::Nothing => What::Nothing,
        })
    }

    /// The conservation laws: of the allocator itself, and of what the stream holds.
    ///
    /// # Errors
    /// The first that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let c = self.machine.subsystem.check().map_err(|violation| violation.to_string())?;
        let large = self.machine.subsystem.info().kmalloc_large;
        let pages =
            c.slab_pages + c.grace_pages + c.large_pages + self.pages_held + c.per_cpu_pages + c.free_pages;
        for (what, found, expected) in [
            ("objects", c.used + c.in_magazines + c.in_depot + c.free_in_slabs, c.objects),
            ("pages", pages, c.pages),
            ("objects in use", c.used + (large.allocs - large.frees), self.objects.len() as u64),
        ] {
            if found != expected {
                return Err(format!("operation {}: {what}: {found}, not {expected}", self.operations));
            }
        }
        Ok(())
    }
}
