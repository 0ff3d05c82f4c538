//! A stream is a resolved trace: operations that are stored in columns. The engine reads a stream, and a web
//! page contains a stream.
//!
//! A stream does not keep the trace's addresses. A stream identifies an object by its *age*: the number of allocations
//! since the object was allocated. Blocks of pages are also identified by their age. The writer resolves caches, hidden
//! allocations, and frees of blocks in several pieces. A stream can therefore be read in a loop that needs no table of
//! addresses.
//!
//! Numbers are LEB128 varints, unless stated otherwise. A text is stored as its length, followed by its bytes in UTF-8.
//!
//! ```text
//! "uslabops" | version | title | linux | cpus | operations | nanoseconds a tick
//! zones:   count, then each: kind (byte), pages
//! caches:  count, then each: name, kind (byte), size, objects of a sheaf + 1 (0: not recorded),
//!          the operation that it is first needed at (less the one before)
//! marks:   count, then each: operation (less the one before), text
//! columns: each: length in bytes, bytes
//!   What    a byte an action: bits 0..4 the action, bit 4: the CPU changes, bit 5: part of the operation before,
//!           bits 6, 7: what its caller allows
//!   Cpu     at each change
//!   Cache   of each allocation and pass; of each shrink + 1, or 0 for all
//!   Age     of each freed object
//!   Shape   a byte an allocation of pages: order, migrate type << 4; a split: order of the parts, halvings << 4
//!   Block   age of each freed or split block
//!   Bytes   of each large object; of each slab from before the stream its objects in use, and its free ones
//!   Time    ticks since the operation before, one an operation
//! ```

use crate::design::CallMode;
use rustc_hash::FxHashMap;
use uslab_buddy::ZoneKind;

/// The first bytes of an encoded stream.
pub const MAGIC: &[u8; 8] = b"uslabops";
const VERSION: u64 = 4;
const COLUMNS: usize = 8;
const NEW_CPU: u8 = 1 << 4;
const CONTINUES_FLAG: u8 = 1 << 5;
const MODE_SHIFT: u8 = 6;

/// A column of a stream, which stores one kind of value for all actions.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
enum Column {
    What,
    Cpu,
    Cache,
    Age,
    Shape,
    Block,
    Bytes,
    Time,
}

/// The number that encodes the kind of an action in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Code {
    Alloc,
    Free,
    Pass,
    AllocPages,
    FreePages,
    SplitPages,
    Shrink,
    Nothing,
    Start,
    StartOwned,
}

impl Code {
    fn of(byte: u8) -> Self {
        match byte & 15 {
            0 => Self::Alloc,
            1 => Self::Free,
            2 => Self::Pass,
            3 => Self::AllocPages,
            4 => Self::FreePages,
            5 => Self::SplitPages,
            6 => Self::Shrink,
            8 => Self::Start,
            9 => Self::StartOwned,
            _ => Self::Nothing,
        }
    }
}

/// An action that an operation requests from the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allocates an object of a cache; the cache is given by its number in the stream. The field `bytes` is used only
    /// for [`Kind::Large`].
    Alloc {
        /// The cache's number.
        cache: u32,
        /// The requested size in bytes.
        bytes: u64,
    },
    /// Frees an object.
    Free {
        /// The number of allocations since the object was allocated.
        age: u64,
    },
    /// Allocates an object and frees it immediately, because the trace shows only the free.
    Pass {
        /// The cache's number.
        cache: u32,
        /// The requested size in bytes.
        bytes: u64,
    },
    /// Allocates a block of pages.
    AllocPages {
        /// The block's order.
        order: u8,
        /// The migrate type: 0 for unmovable, 1 for movable, 2 for reclaimable pages.
        migratetype: u8,
    },
    /// Frees a block of pages.
    FreePages {
        /// The number of blocks that were allocated since this block was allocated.
        age: u64,
    },
    /// Splits a block into blocks of a smaller order; the block with the lowest address counts as allocated first.
    SplitPages {
        /// The number of blocks that were allocated since this block was allocated.
        age: u64,
        /// The order of the resulting blocks.
        order: u8,
        /// The number of halvings; halving a block `halvings` times gives `2^halvings` blocks.
        halvings: u8,
    },
    /// Shrinks caches.
    Shrink {
        /// The cache's number; `None` means all caches.
        cache: Option<u32>,
    },
    /// An operation of the trace that does not concern the allocator.
    Nothing,
    /// Adds a slab that existed before the stream. The slab's objects in use count as allocated at this action.
    Start {
        /// The cache's number.
        cache: u32,
        /// The number of objects in use.
        used: u32,
        /// The number of free objects.
        free: u32,
        /// `true` if the CPU owns the slab.
        owned: bool,
    },
}

/// The kind of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A size class of kmalloc.
    Kmalloc = 0,
    /// Large kmalloc: requests above the largest size class, which get blocks of pages.
    Large = 1,
    /// A cache that does not belong to kmalloc.
    Named = 2,
}

/// A cache of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheInfo {
    /// The cache's name.
    pub name: String,
    /// The cache's kind.
    pub kind: Kind,
    /// The size of an object in bytes.
    pub size: u32,
    /// The number of objects in a sheaf of the traced kernel (0 for a cache without sheaves). The value is `None` if
    /// the trace does not record the number.
    pub sheaf_capacity: Option<u32>,
    /// The first operation, counted from 0, that uses the cache.
    pub from: u64,
}

impl CacheInfo {
    /// Creates a cache that exists from the first operation of the stream.
    pub fn new(name: impl Into<String>, kind: Kind, size: u32) -> Self {
        Self { name: name.into(), kind, size, sheaf_capacity: None, from: 0 }
    }
}

/// A text that user space wrote into the trace.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Mark {
    /// The number of the operation to which the mark belongs.
    pub operation: u64,
    /// The mark's text.
    pub text: String,
}

/// A stream of operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// The title of the recording.
    pub title: String,
    /// The design of the traced kernel, in the form of `--design`; empty if the kernel is unknown.
    pub linux: String,
    /// The number of CPUs of the traced machine.
    pub cpus: u32,
    /// The number of operations.
    pub operations: u64,
    /// The unit of recorded times, in nanoseconds.
    pub tick_ns: u64,
    /// The zones of the traced machine, each with its number of pages. If the list of zones is empty, the simulated
    /// machine has one zone with all of its memory.
    pub zones: Vec<(ZoneKind, u32)>,
    /// The caches of the stream, by number.
    pub caches: Vec<CacheInfo>,
    /// The marks of the stream, in the order of their operations.
    pub marks: Vec<Mark>,
    columns: [Vec<u8>; COLUMNS],
}

/// The error of bytes that are not a valid stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The bytes do not begin with [`MAGIC`].
    #[error("not a stream of operations")]
    Other,
    /// The stream has another version.
    #[error("the stream has version {0}; expected version {VERSION}")]
    Version(u64),
    /// The stream ends too early, or contains an invalid number or text.
    #[error("the stream is damaged: it was truncated or changed")]
    Damaged,
    /// The caller requested a stream for a machine with 0 CPUs.
    #[error("the stream has 0 CPUs; expected at least 1")]
    NoCpu,
}

fn put(bytes: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
}

#[inline]
fn get(bytes: &[u8], position: &mut usize) -> Option<u64> {
    let (mut n, mut shift) = (0_u64, 0);
    loop {
        let byte = *bytes.get(*position)?;
        *position += 1;
        n |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(n);
        }
        shift += 7;
    }
}

fn append_text(bytes: &mut Vec<u8>, text: &str) {
    put(bytes, text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
}

fn get_bytes<'b>(source: &'b [u8], position: &mut usize) -> Option<&'b [u8]> {
    let len = usize::try_from(get(source, position)?).ok()?;
    let bytes = source.get(*position..position.checked_add(len)?)?;
    *position += len;
    Some(bytes)
}

fn read_text(bytes: &[u8], position: &mut usize) -> Option<String> {
    core::str::from_utf8(get_bytes(bytes, position)?).ok().map(str::to_owned)
}

impl Stream {
    /// Encodes the stream.
    pub fn write(&self) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        put(&mut file, VERSION);
        append_text(&mut file, &self.title);
        append_text(&mut file, &self.linux);
        for n in [self.cpus.into(), self.operations, self.tick_ns, self.zones.len() as u64] {
            put(&mut file, n);
        }
        for (kind, pages) in &self.zones {
            file.push(*kind as u8);
            put(&mut file, (*pages).into());
        }
        put(&mut file, self.caches.len() as u64);
        let mut before = 0;
        for cache in &self.caches {
            append_text(&mut file, &cache.name);
            file.push(cache.kind as u8);
            put(&mut file, cache.size.into());
            put(&mut file, cache.sheaf_capacity.map_or(0, |capacity| u64::from(capacity) + 1));
            put(&mut file, cache.from - before);
            before = cache.from;
        }
        put(&mut file, self.marks.len() as u64);
        let mut before = 0;
        for mark in &self.marks {
            put(&mut file, mark.operation - before);
            append_text(&mut file, &mark.text);
            before = mark.operation;
        }
        for column in &self.columns {
            put(&mut file, column.len() as u64);
            file.extend_from_slice(column);
        }
        file
    }

    /// Decodes a stream.
    ///
    /// # Errors
    /// Returns a [`StreamError`].
    pub fn read(file: &[u8]) -> Result<Self, StreamError> {
        let body = file.strip_prefix(MAGIC).ok_or(StreamError::Other)?;
        let mut position = 0;
        match get(body, &mut position) {
            Some(VERSION) => Self::parse(body, &mut position).ok_or(StreamError::Damaged),
            Some(version) => Err(StreamError::Version(version)),
            None => Err(StreamError::Damaged),
        }
    }

    fn parse(body: &[u8], position: &mut usize) -> Option<Self> {
        let mut parsed =
            Self { title: read_text(body, position)?, linux: read_text(body, position)?, ..Self::default() };
        parsed.cpus = u32::try_from(get(body, position)?).ok()?;
        parsed.operations = get(body, position)?;
        parsed.tick_ns = get(body, position)?;
        for _ in 0..get(body, position)? {
            let kind = *ZoneKind::ALL.get(usize::from(*body.get(*position)?))?;
            *position += 1;
            parsed.zones.push((kind, u32::try_from(get(body, position)?).ok()?));
        }
        let mut before = 0_u64;
        for _ in 0..get(body, position)? {
            let name = read_text(body, position)?;
            let kind = match *body.get(*position)? {
                0 => Kind::Kmalloc,
                1 => Kind::Large,
                2 => Kind::Named,
                _ => return None,
            };
            *position += 1;
            let size = u32::try_from(get(body, position)?).ok()?;
            let capacity = u32::try_from(get(body, position)?).ok()?;
            before = before.checked_add(get(body, position)?)?;
            parsed.caches.push(CacheInfo {
                name,
                kind,
                size,
                sheaf_capacity: capacity.checked_sub(1),
                from: before,
            });
        }
        let mut before = 0_u64;
        for _ in 0..get(body, position)? {
            before = before.checked_add(get(body, position)?)?;
            parsed.marks.push(Mark { operation: before, text: read_text(body, position)? });
        }
        for column in &mut parsed.columns {
            *column = get_bytes(body, position)?.to_vec();
        }
        Some(parsed)
    }

    /// Returns this stream, changed for a machine with another number of CPUs. The operations of CPU `n` move to CPU
    /// `n` modulo `cpus`; additional CPUs stay idle.
    ///
    /// # Errors
    /// Fails if `cpus` is 0, or if the stream is damaged.
    pub fn with_cpus(mut self, cpus: u32) -> Result<Self, StreamError> {
        if cpus == 0 {
            return Err(StreamError::NoCpu);
        }
        let cpu_column = core::mem::take(&mut self.columns[Column::Cpu as usize]);
        let mut position = 0;
        while position < cpu_column.len() {
            let cpu = get(&cpu_column, &mut position)
                .filter(|cpu| *cpu < self.cpus.into())
                .ok_or(StreamError::Damaged)?;
            put(&mut self.columns[Column::Cpu as usize], cpu % u64::from(cpus));
        }
        self.cpus = cpus;
        Ok(self)
    }
}

/// A position in a [`Stream`], with the state that is needed to decode the next action.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    at: [usize; COLUMNS],
    cpu: u32,
    time: u64,
    manner: CallMode,
}

impl Reader {
    fn next(&mut self, stream: &Stream, column: Column) -> Option<u64> {
        get(&stream.columns[column as usize], &mut self.at[column as usize])
    }
    fn byte(&mut self, stream: &Stream, column: Column) -> Option<u8> {
        let byte = *stream.columns[column as usize].get(self.at[column as usize])?;
        self.at[column as usize] += 1;
        Some(byte)
    }
    /// Returns the CPU of the last action.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }
    /// Returns the constraints that the caller set on the last action.
    pub fn call_mode(&self) -> CallMode {
        self.manner
    }
    /// Returns the time in nanoseconds from the first operation to the last operation that was read.
    pub fn time_ns(&self, stream: &Stream) -> u64 {
        self.time.saturating_mul(stream.tick_ns)
    }
    /// Begins to read the next operation; returns `None` at the end of the stream, or if the stream is damaged.
    pub fn begin(&mut self, stream: &Stream) -> Option<()> {
        let ticks = self.next(stream, Column::Time)?;
        self.time = self.time.saturating_add(ticks);
        Some(())
    }
    /// Reads the next action of the operation.
    pub fn action(&mut self, stream: &Stream) -> Option<Action> {
        let byte = self.byte(stream, Column::What)?;
        if byte & NEW_CPU != 0 {
            self.cpu =
                u32::try_from(self.next(stream, Column::Cpu)?).ok().filter(|cpu| *cpu < stream.cpus)?;
        }
        self.manner = match byte >> MODE_SHIFT & 3 {
            0 => CallMode::Plain,
            1 => CallMode::NonBlocking,
            2 => CallMode::AfterGrace,
            _ => return None,
        };
        Some(match Code::of(byte) {
            code @ (Code::Alloc | Code::Pass) => {
                let cache = u32::try_from(self.next(stream, Column::Cache)?).ok()?;
                let large = stream.caches.get(cache as usize)?.kind == Kind::Large;
                let bytes = if large { self.next(stream, Column::Bytes)? } else { 0 };
                match code {
                    Code::Alloc => Action::Alloc { cache, bytes },
                    _ => Action::Pass { cache, bytes },
                }
            }
            Code::Free => Action::Free { age: self.next(stream, Column::Age)? },
            Code::AllocPages => {
                let shape = self.byte(stream, Column::Shape)?;
                Action::AllocPages { order: shape & 15, migratetype: shape >> 4 }
            }
            Code::FreePages => Action::FreePages { age: self.next(stream, Column::Block)? },
            Code::SplitPages => {
                let age = self.next(stream, Column::Block)?;
                let shape = self.byte(stream, Column::Shape)?;
                Action::SplitPages { age, order: shape & 15, halvings: shape >> 4 }
            }
            Code::Shrink => {
                let cache = u32::try_from(self.next(stream, Column::Cache)?).ok()?;
                Action::Shrink { cache: cache.checked_sub(1) }
            }
            Code::Nothing => Action::Nothing,
            code @ (Code::Start | Code::StartOwned) => Action::Start {
                owned: code == Code::StartOwned,
                cache: u32::try_from(self.next(stream, Column::Cache)?).ok()?,
                used: u16::try_from(self.next(stream, Column::Bytes)?).ok()?.into(),
                free: u16::try_from(self.next(stream, Column::Bytes)?).ok()?.into(),
            },
        })
    }
    /// Returns `true` if the operation has another action.
    pub fn has_more_actions(&self, stream: &Stream) -> bool {
        let next = stream.columns[Column::What as usize].get(self.at[Column::What as usize]);
        next.is_some_and(|byte| byte & CONTINUES_FLAG != 0)
    }
}

/// Builds a stream from operations on addresses.
///
/// All calls between two calls of [`begin`](Writer::begin) belong to one operation.
#[derive(Debug, Default)]
pub struct Writer {
    stream: Stream,
    cpu: Option<u32>,
    /// `true` if the current operation already has an action.
    is_operation_open: bool,
    /// The constraints that the caller sets on the next action.
    manner: CallMode,
    /// The birth number of each object, by the object's address.
    objects: FxHashMap<u64, u64>,
    born: u64,
    /// The birth number and order of each block, by the block's page.
    blocks: FxHashMap<u64, (u64, u8)>,
    blocks_born: u64,
    times: Vec<u64>,
}

impl Writer {
    /// Begins a stream for a machine with `cpus` CPUs.
    pub fn new(title: String, cpus: u32) -> Self {
        Self { stream: Stream { title, cpus, ..Stream::default() }, ..Self::default() }
    }
    /// Adds a memory zone to the stream's machine.
    pub fn zone(&mut self, kind: ZoneKind, pages: u32) {
        self.stream.zones.push((kind, pages));
    }
    /// Returns the number of operations written.
    pub fn operations(&self) -> u64 {
        self.stream.operations
    }
    /// Returns the number of caches written.
    pub fn caches(&self) -> usize {
        self.stream.caches.len()
    }
    /// Adds a cache that the current operation needs.
    pub fn cache(&mut self, name: String, kind: Kind, size: u32) {
        let from = self.stream.operations.saturating_sub(1);
        self.stream.caches.push(CacheInfo { from, ..CacheInfo::new(name, kind, size) });
    }
    /// Sets the design of the traced kernel, and the sheaf capacity of each cache, by the cache's name.
    pub fn kernel(&mut self, linux: String, capacity: impl Fn(&str) -> Option<u32>) {
        self.stream.linux = linux;
        for cache in &mut self.stream.caches {
            cache.sheaf_capacity = capacity(&cache.name);
        }
    }
    /// Adds a slab that existed before the stream; the slab has `free` free objects. The objects in use are at the
    /// addresses in `used`; `others` more objects in use have no known address. If `owned` is true, the CPU owns the
    /// slab.
    ///
    /// # Panics
    /// Panics if the stream does not have the cache.
    pub fn start(&mut self, cpu: u32, cache: u32, used: &[u64], others: u32, free: u32, owned: bool) {
        self.code(if owned { Code::StartOwned } else { Code::Start }, cpu);
        self.put(Column::Cache, cache.into());
        self.put(Column::Bytes, used.len() as u64 + u64::from(others));
        self.put(Column::Bytes, free.into());
        self.objects.extend(used.iter().copied().zip(self.born..));
        self.born += used.len() as u64 + u64::from(others);
    }
    /// Sets the caller's constraints on the next action, which must be an allocation or a free.
    pub fn allow(&mut self, manner: CallMode) {
        self.manner = manner;
    }
    /// Begins the next operation, at the time `time_ns` of the trace's clock.
    pub fn begin(&mut self, time_ns: u64) {
        self.end();
        self.times.push(time_ns);
        self.stream.operations += 1;
    }
    fn end(&mut self) {
        if !self.is_operation_open && self.stream.operations > 0 {
            self.code(Code::Nothing, self.cpu.unwrap_or(0));
        }
        self.is_operation_open = false;
    }

    fn put(&mut self, column: Column, n: u64) {
        put(&mut self.stream.columns[column as usize], n);
    }
    fn code(&mut self, code: Code, cpu: u32) {
        let mut byte = code as u8 | (core::mem::take(&mut self.manner) as u8) << MODE_SHIFT;
        if self.cpu != Some(cpu) {
            byte |= NEW_CPU;
            self.put(Column::Cpu, cpu.into());
            self.cpu = Some(cpu);
        }
        if self.is_operation_open {
            byte |= CONTINUES_FLAG;
        }
        self.is_operation_open = true;
        self.stream.columns[Column::What as usize].push(byte);
    }
    fn of_cache(&mut self, code: Code, cpu: u32, cache: u32, bytes: u64) {
        self.code(code, cpu);
        self.put(Column::Cache, cache.into());
        if self.stream.caches[cache as usize].kind == Kind::Large {
            self.put(Column::Bytes, bytes);
        }
    }

    /// Allocates an object of the cache `cache` at the address `ptr`. If an object is already at the address `ptr`, it
    /// is freed first.
    ///
    /// # Panics
    /// Panics if the stream does not have the cache.
    pub fn alloc(&mut self, cpu: u32, cache: u32, ptr: u64, bytes: u64) {
        let manner = core::mem::take(&mut self.manner);
        self.free(cpu, ptr);
        self.manner = manner;
        self.of_cache(Code::Alloc, cpu, cache, bytes);
        self.objects.insert(ptr, self.born);
        self.born += 1;
    }
    /// Frees the object at the address `ptr`; returns `false` if no object is at this address.
    pub fn free(&mut self, cpu: u32, ptr: u64) -> bool {
        let Some(number) = self.objects.remove(&ptr) else {
            self.manner = CallMode::Plain;
            return false;
        };
        self.code(Code::Free, cpu);
        self.put(Column::Age, self.born - 1 - number);
        true
    }
    /// Allocates an object of the cache `cache` and frees it immediately.
    ///
    /// # Panics
    /// Panics if the stream does not have the cache.
    pub fn pass(&mut self, cpu: u32, cache: u32, bytes: u64) {
        self.of_cache(Code::Pass, cpu, cache, bytes);
    }
    /// Allocates a block of `2^order` pages at the page number `pfn`. Known blocks that overlap this range of pages are
    /// freed first.
    pub fn alloc_pages(&mut self, cpu: u32, pfn: u64, order: u8, migratetype: u8) {
        self.code(Code::AllocPages, cpu);
        self.stream.columns[Column::Shape as usize].push(order | migratetype.min(3) << 4);
        let number = self.blocks_born;
        self.blocks_born += 1;
        self.free_pages(cpu, pfn, order);
        self.blocks.insert(pfn, (number, order));
    }
    /// Frees the known blocks in the `2^order` pages that begin at the page number `pfn`. A larger block that contains
    /// the freed pages is split first; smaller blocks are freed one by one.
    pub fn free_pages(&mut self, cpu: u32, pfn: u64, order: u8) {
        if self.blocks.get(&pfn).is_some_and(|(_, block_order)| *block_order == order) {
            self.free_block(cpu, pfn);
            return;
        }
        for larger_order in order + 1..=uslab_buddy::MAX_ORDER {
            let head = pfn & !((1 << larger_order) - 1);
            if self.blocks.get(&head).is_some_and(|(_, block_order)| *block_order >= larger_order)
                && let Some((number, block_order)) = self.blocks.remove(&head)
            {
                self.code(Code::SplitPages, cpu);
                self.put(Column::Block, self.blocks_born - 1 - number);
                self.stream.columns[Column::Shape as usize].push(order | (block_order - order) << 4);
                for i in 0..1_u64 << (block_order - order) {
                    self.blocks.insert(head + (i << order), (self.blocks_born, order));
                    self.blocks_born += 1;
                }
                break;
            }
        }
        let mut next = pfn;
        while next < pfn + (1 << order) {
            next += self.free_block(cpu, next).map_or(1, |order| 1 << order);
        }
    }
    fn free_block(&mut self, cpu: u32, pfn: u64) -> Option<u8> {
        let (number, order) = self.blocks.remove(&pfn)?;
        self.code(Code::FreePages, cpu);
        self.put(Column::Block, self.blocks_born - 1 - number);
        Some(order)
    }
    /// Shrinks a cache, or shrinks all caches for `None`.
    pub fn shrink(&mut self, cpu: u32, cache: Option<u32>) {
        self.code(Code::Shrink, cpu);
        self.put(Column::Cache, cache.map_or(0, |cache| u64::from(cache) + 1));
    }
    /// Adds a mark with a text from user space to the current operation.
    pub fn mark(&mut self, text: String) {
        self.stream.marks.push(Mark { operation: self.stream.operations, text });
    }

    /// Returns the finished stream.
    pub fn finish(mut self) -> Stream {
        self.end();
        let tick =
            [1000, 100, 10].into_iter().find(|tick| self.times.iter().all(|t| t % tick == 0)).unwrap_or(1);
        self.stream.tick_ns = tick;
        let mut last = self.times.first().copied().unwrap_or(0);
        for time in core::mem::take(&mut self.times) {
            self.put(Column::Time, time.saturating_sub(last) / tick);
            last = last.max(time);
        }
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actions(stream: &Stream) -> Vec<Vec<(u32, Action)>> {
        let mut reader = Reader::default();
        let mut all = Vec::new();
        while reader.begin(stream).is_some() {
            let mut block_order = Vec::new();
            loop {
                let action = reader.action(stream).unwrap();
                block_order.push((reader.cpu(), action));
                if !reader.has_more_actions(stream) {
                    break;
                }
            }
            all.push(block_order);
        }
        all
    }

    fn sample() -> Stream {
        let mut writer = Writer::new("a sample".to_owned(), 2);
        writer.zone(ZoneKind::Dma, 1000);
        writer.zone(ZoneKind::Normal, 40_000);
        writer.begin(1_000_000);
        writer.cache("dentry".to_owned(), Kind::Named, 192);
        writer.alloc(0, 0, 0x1000, 192);
        writer.begin(1_002_000);
        writer.alloc(1, 0, 0x2000, 192);
        writer.begin(1_002_500);
        writer.free(1, 0x1000);
        writer.begin(1_003_000);
        writer.mark("SNAP middle begin".to_owned());
        writer.begin(1_003_000);
        writer.cache("kmalloc-large".to_owned(), Kind::Large, 0);
        writer.alloc(1, 1, 0x9000, 20_000);
        writer.begin(1_004_000);
        writer.alloc_pages(0, 64, 2, 1);
        writer.begin(1_005_000);
        writer.free_pages(0, 65, 0);
        writer.begin(1_005_000);
        writer.alloc(0, 0, 0x2000, 192);
        writer.start(0, 0, &[0x3000], 2, 7, true);
        writer.allow(CallMode::AfterGrace);
        writer.free(0, 0x3000);
        writer.shrink(0, Some(0));
        writer.shrink(0, None);
        writer.kernel("sheaves:min_partial=1".to_owned(), |cache| (cache == "dentry").then_some(60));
        writer.finish()
    }

    #[test]
    fn stream_cpus_map_to_simulated_cpus_by_modulo() {
        let stream = sample();
        for cpus in [1, 2, 64] {
            let mapped_stream = stream.clone().with_cpus(cpus).unwrap();
            let expected: Vec<Vec<_>> = actions(&stream)
                .into_iter()
                .map(|operation| operation.into_iter().map(|(cpu, action)| (cpu % cpus, action)).collect())
                .collect();
            assert_eq!((mapped_stream.cpus, actions(&mapped_stream)), (cpus, expected));
        }
        assert_eq!(stream.clone().with_cpus(2), Ok(stream.clone()));
        assert_eq!(stream.clone().with_cpus(0), Err(StreamError::NoCpu));
        let mut damaged_stream = stream;
        damaged_stream.columns[Column::Cpu as usize].push(2);
        assert_eq!(damaged_stream.with_cpus(1), Err(StreamError::Damaged), "the stream has CPUs 0 and 1");
    }

    #[test]
    fn written_stream_reads_back_unchanged() {
        let stream = sample();
        let second_copy = Stream::read(&stream.write()).unwrap();
        assert_eq!(second_copy, stream);
        assert_eq!((stream.operations, stream.tick_ns, stream.caches[1].from), (8, 100, 4));
        assert_eq!(
            (&*second_copy.linux, second_copy.caches[0].sheaf_capacity),
            ("sheaves:min_partial=1", Some(60))
        );
        assert_eq!(second_copy.caches[1].sheaf_capacity, None);
        assert_eq!(stream.marks, [Mark { operation: 4, text: "SNAP middle begin".to_owned() }]);
        let alloc = |cache, bytes| Action::Alloc { cache, bytes };
        assert_eq!(
            actions(&second_copy),
            [
                vec![(0, alloc(0, 0))],
                vec![(1, alloc(0, 0))],
                vec![(1, Action::Free { age: 1 })],
                vec![(1, Action::Nothing)],
                vec![(1, alloc(1, 20_000))],
                vec![(0, Action::AllocPages { order: 2, migratetype: 1 })],
                vec![
                    (0, Action::SplitPages { age: 0, order: 0, halvings: 2 }),
                    (0, Action::FreePages { age: 2 })
                ],
                vec![
                    (0, Action::Free { age: 1 }),
                    (0, alloc(0, 0)),
                    (0, Action::Start { cache: 0, used: 3, free: 7, owned: true }),
                    (0, Action::Free { age: 2 }),
                    (0, Action::Shrink { cache: Some(0) }),
                    (0, Action::Shrink { cache: None })
                ],
            ]
        );
    }

    #[test]
    fn damaged_stream_bytes_are_errors() {
        let bytes = sample().write();
        assert_eq!(Stream::read(b"# tracer: nop"), Err(StreamError::Other));
        let mut newer = bytes.clone();
        newer[MAGIC.len()] = 5;
        assert_eq!(
            Stream::read(&newer).unwrap_err().to_string(),
            "the stream has version 5; expected version 4"
        );
        for len in MAGIC.len()..bytes.len() {
            assert_eq!(Stream::read(&bytes[..len]), Err(StreamError::Damaged), "the first {len} bytes");
        }
    }
}
