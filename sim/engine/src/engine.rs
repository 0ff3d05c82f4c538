//! Runs a stream through an allocator design, operation by operation.

use crate::design::{At, Design, Unsupported};
use crate::step::What;
use crate::stream::{Action, Reader, Stream};

/// The reason why a run of a stream cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The design cannot create a cache of the stream.
    #[error("operation {at}: {error}")]
    Cache {
        /// The operation's number, counted from 1.
        at: u64,
        /// The error that the design returned for the cache.
        error: Unsupported,
    },
    /// The stream's columns end before the last operation, or refer to an object or cache that does not exist.
    #[error("operation {at}: the stream is damaged")]
    Damaged {
        /// The operation's number, counted from 1.
        at: u64,
    },
}

/// The state of a [`Stream`](crate::Stream) that runs through a [`Design`].
#[derive(Debug)]
pub struct Engine<'s, D: Design> {
    pub(crate) design: D,
    pub(crate) stream: &'s Stream,
    reader: Reader,
    pub(crate) operations: u64,
    /// The number of allocations and frees of each known cache.
    pub(crate) served: Vec<u64>,
    objects: Slots<Object<D::Object>>,
    blocks: Slots<D::Block>,
    /// The number of pages in allocated blocks.
    pub(crate) pages_held: u64,
    /// The number of allocations that the design could not serve.
    pub(crate) failed: u64,
}

#[derive(Debug)]
struct Object<O> {
    object: O,
    cache: u32,
    /// The CPU that allocated the object.
    cpu: u32,
}

/// Live values, each of which can be found by its birth number.
#[derive(Debug)]
struct Slots<T> {
    /// The slot of each value that was ever inserted. The list only grows, by 4 bytes per inserted value.
    slots_by_birth: Vec<u32>,
    live: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    const NONE: u32 = u32::MAX;

    fn new() -> Self {
        Self { slots_by_birth: Vec::new(), live: Vec::new(), free: Vec::new() }
    }
    fn insert(&mut self, value: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.live.push(None);
            self.live.len() as u32 - 1
        });
        self.live[slot as usize] = Some(value);
        self.slots_by_birth.push(slot);
    }
    /// A failed allocation counts as a birth without a value, because ages in the stream include failed allocations.
    fn insert_failed_births(&mut self, births: u32) {
        self.slots_by_birth.extend((0..births).map(|_| Self::NONE));
    }
    /// Returns the slot of the value with the given age; age 0 is the youngest value.
    fn slot(&self, age: u64) -> Option<u32> {
        let number = (self.slots_by_birth.len() as u64).checked_sub(age.checked_add(1)?)?;
        self.slots_by_birth.get(number as usize).copied()
    }
    fn get(&self, age: u64) -> Option<&T> {
        self.live.get(self.slot(age)? as usize)?.as_ref()
    }
    fn remove(&mut self, age: u64) -> Option<T> {
        let slot = self.slot(age)?;
        let value = self.live.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }
    fn len(&self) -> usize {
        self.live.len() - self.free.len()
    }
}

impl<'s, D: Design> Engine<'s, D> {
    /// Creates an engine that has not run any operation.
    pub fn new(design: D, stream: &'s Stream) -> Self {
        Self {
            design,
            stream,
            reader: Reader::default(),
            operations: 0,
            served: Vec::new(),
            objects: Slots::new(),
            blocks: Slots::new(),
            pages_held: 0,
            failed: 0,
        }
    }

    /// Returns the allocator that the engine drives.
    pub fn design(&self) -> &D {
        &self.design
    }
    /// Returns the operations that the engine replays.
    pub fn stream(&self) -> &'s Stream {
        self.stream
    }
    /// Returns the number of operations that have run.
    pub fn operations(&self) -> u64 {
        self.operations
    }
    /// Returns the number of allocations that the design could not serve.
    pub fn failed(&self) -> u64 {
        self.failed
    }
    /// Returns the time in the trace, in nanoseconds since its first operation.
    pub fn time_ns(&self) -> u64 {
        self.reader.time_ns(self.stream)
    }
    /// Returns the number of stream objects that are in use.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }
    /// Returns the number of caches that the stream has announced to the design so far.
    pub fn caches(&self) -> usize {
        self.served.len()
    }

    /// Runs until `target` operations have run, or until the stream ends.
    ///
    /// # Errors
    /// Returns an [`EngineError`].
    pub fn run(&mut self, target: u64) -> Result<(), EngineError> {
        while self.operations < target.min(self.stream.operations) {
            self.operation(|engine, action| engine.act(action).map(drop))?;
        }
        Ok(())
    }

    /// Runs one operation. Calls `run` for each action of the next operation.
    pub(crate) fn operation(
        &mut self,
        mut run: impl FnMut(&mut Self, Action) -> Option<()>,
    ) -> Result<(), EngineError> {
        let at = self.operations + 1;
        while let Some(info) = self.stream.caches.get(self.served.len())
            && info.from < at
        {
            self.design.learn(info).map_err(|error| EngineError::Cache { at, error })?;
            self.served.push(0);
        }
        let mut actions = || {
            self.reader.begin(self.stream)?;
            loop {
                let action = self.reader.action(self.stream)?;
                run(self, action)?;
                if !self.reader.has_more_actions(self.stream) {
                    return Some(());
                }
            }
        };
        actions().ok_or(EngineError::Damaged { at })?;
        self.operations = at;
        Ok(())
    }

    /// Returns the CPU that made the last action.
    pub(crate) fn cpu(&self) -> u32 {
        self.reader.cpu()
    }
    fn at(&self) -> At {
        At { cpu: self.reader.cpu(), ns: self.reader.time_ns(self.stream), manner: self.reader.call_mode() }
    }

    /// Returns the cache that an action uses, and the location of the object that the action frees.
    pub(crate) fn subject(&self, action: Action) -> Option<(u32, Option<(u32, u16)>)> {
        match action {
            Action::Alloc { cache, .. } | Action::Pass { cache, .. } => Some((cache, None)),
            Action::Free { age } => {
                let object = self.objects.get(age)?;
                Some((object.cache, self.design.place(object.cache, &object.object)))
            }
            _ => None,
        }
    }
    /// Returns the location of the most recently allocated object.
    pub(crate) fn youngest(&self) -> Option<(u32, u16)> {
        let object = self.objects.get(0)?;
        self.design.place(object.cache, &object.object)
    }

    /// Executes an action; returns `None` if the stream is damaged.
    pub(crate) fn act(&mut self, action: Action) -> Option<What> {
        let at = self.at();
        Some(match action {
            Action::Alloc { cache, bytes } => {
                *self.served.get_mut(cache as usize)? += 1;
                match self.design.alloc(at, cache, bytes) {
                    Ok(object) => {
                        self.objects.insert(Object { object, cache, cpu: at.cpu });
                        What::Alloc
                    }
                    Err(_) => {
                        self.objects.insert_failed_births(1);
                        self.fail()
                    }
                }
            }
            Action::Pass { cache, bytes } => {
                *self.served.get_mut(cache as usize)? += 1;
                match self.design.alloc(at, cache, bytes) {
                    Ok(object) => {
                        self.served[cache as usize] += 1;
                        self.design.free(at, cache, object);
                        What::Pass
                    }
                    Err(_) => self.fail(),
                }
            }
            // A failed allocation leaves nothing to free.
            Action::Free { age } => match self.objects.remove(age) {
                Some(Object { object, cache, cpu }) => {
                    *self.served.get_mut(cache as usize)? += 1;
                    self.design.free(at, cache, object);
                    What::Free { allocated_on: cpu }
                }
                None => What::Nothing,
            },
            Action::AllocPages { order, migratetype } => {
                match self.design.alloc_pages(at, order, migratetype) {
                    Ok(block) => {
                        let (page, order) = self.design.block(&block);
                        self.pages_held += 1 << order;
                        self.blocks.insert(block);
                        What::AllocPages { page, order }
                    }
                    Err(_) => {
                        self.blocks.insert_failed_births(1);
                        self.fail()
                    }
                }
            }
            Action::FreePages { age } => match self.blocks.remove(age) {
                Some(block) => {
                    let (page, order) = self.design.block(&block);
                    self.pages_held -= 1 << order;
                    self.design.free_pages(at, block);
                    What::FreePages { page, order }
                }
                None => What::Nothing,
            },
            Action::SplitPages { age, order, halvings } => match self.blocks.remove(age) {
                Some(block) => {
                    let (page, pages) = self.design.block(&block);
                    if pages.checked_sub(order)? != halvings {
                        return None;
                    }
                    self.design
                        .split_pages(block, order)
                        .into_iter()
                        .for_each(|part| self.blocks.insert(part));
                    What::SplitPages { page, order }
                }
                None => {
                    self.blocks.insert_failed_births(1_u32.checked_shl(halvings.into())?);
                    What::Nothing
                }
            },
            Action::Shrink { cache } => {
                if cache.is_some_and(|cache| cache as usize >= self.served.len()) {
                    return None;
                }
                let (objects, slabs) = self.design.shrink(at, cache);
                What::Shrink { objects, slabs }
            }
            Action::Nothing => What::Nothing,
            Action::Start { cache, used, free, owned } => {
                if cache as usize >= self.served.len() {
                    return None;
                }
                let objects = self.design.start(at, cache, used, free, owned);
                self.objects.insert_failed_births(used.checked_sub(objects.len() as u32)?);
                objects
                    .into_iter()
                    .for_each(|object| self.objects.insert(Object { object, cache, cpu: at.cpu }));
                What::Nothing
            }
        })
    }
    fn fail(&mut self) -> What {
        self.failed += 1;
        What::Failed
    }

    /// Shrinks all caches; the shrink does not count as an operation of the stream.
    pub fn shrink(&mut self) {
        let at = self.at();
        self.design.shrink(at, None);
    }

    /// Checks the design's invariants.
    ///
    /// # Errors
    /// Fails with a description of the first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let check_result = self.design.check(self.objects.len() as u64, self.pages_held);
        check_result.map_err(|violation| format!("operation {}: {violation}", self.operations))
    }
}
