//! The second pass over a trace, which turns records into operations.
//!
//! A trace of a real kernel is not a clean list of allocations and frees. Objects exist before the trace
//! begins, bulk functions allocate and free without events, and events of two CPUs can be in the wrong order.
//! The state of each pointer and each page shows which of these cases applies.
//!
//! | event | pointer is live | pointer is not live |
//! |---|---|---|
//! | allocation | *hidden free*, then the allocation | the allocation |
//! | free | the free, matched | *hidden allocation* if the pointer or its page was seen before, else *pre-trace* |
//! | page freed | *hidden free* of each live object on it | |
//!
//! Two events in the wrong order look like one hidden allocation and one hidden free, whose effects cancel
//! out. If both events concern one pointer, they also count as a swapped pair: the free comes after the next allocation
//! (`alloc, alloc, free, free`), or before its own allocation (`free, alloc, ..., alloc`).
//!
//! The pass keeps state for pages, and for pointers on allocated pages. The memory of the second pass therefore depends
//! on the memory of the traced machine, not on the length of the trace.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::direct_map::Mapping;
use super::error::TraceError;
use super::event::{EventSource, Pfn, Ptr};
use super::names::{NameSources, Names};
use super::op::{
    CacheId, CacheInfo, CacheKind, FreeOrigin, HiddenFreeEvidence, MarkId, Op, OpKind, PageFreeOrigin,
    PageUse, SiteId, TaskId,
};
use super::page_size::{PageSize, PageSizeSource};
use super::page_table::{PageTable, frames};
use super::recording::{Counts, Recording, increment_at};
use super::shapes::Shape;
use super::spool::{Reader, Record, Tag};
use super::symbols::Symbol;
use uslab::SlabInfo;

/// The largest number of marks at which the state of the caches is kept.
const MAX_KEPT_MARK_STATES: usize = 256;

/// The second pass over a [`Recording`]: returns its operations one by one, and counts them.
#[derive(Debug)]
pub struct Resolver {
    pub(super) recording: RecordingMetadata,
    pub(super) names: Names,
    pub(super) mapping: Mapping,
    pub(super) page_size_source: PageSizeSource,
    records: Reader,
    objects: FxHashMap<u64, Object>,
    histories: FxHashMap<u64, History>,
    pages: PageTable<Page>,
    /// The known objects on each page, as byte offsets from the start of the page.
    on_page: FxHashMap<u64, Vec<u16>>,
    /// The number of pages in blocks that the trace has allocated.
    pages_out: u64,
    pub(super) tally: Tally,
    /// For each set of flags, `true` if an allocation with these flags may block.
    may_block: Vec<Option<bool>>,
    /// The operations of the current record; the operations from index `next` on have not been returned yet.
    pending: Vec<Op>,
    next: usize,
}

/// Everything in a recording except its records.
#[derive(Debug)]
pub(super) struct RecordingMetadata {
    pub(super) counts: Counts,
    pub(super) ambiguous_sites: u64,
    pub(super) events_by_name: Vec<(String, u64)>,
    pub(super) by_gfp: Vec<(String, u64)>,
    pub(super) call_sites: usize,
}

/// The state of a pointer that occurred in the trace.
#[derive(Debug, Clone, Copy)]
struct Object {
    cache: CacheId,
    /// The shape of the pointer's last allocation, or [`UNKNOWN_SHAPE`].
    shape: u32,
    /// The CPU of the pointer's last allocation.
    cpu: u16,
    live: bool,
    /// `true` if `histories` has an entry for the pointer.
    has_history: bool,
}

const UNKNOWN_SHAPE: u32 = u32::MAX;

/// Hidden events of a pointer, which a later event may turn into a swapped pair.
#[derive(Debug, Clone, Copy, Default)]
struct History {
    /// The time of a hidden allocation, which is kept until a matched free of the pointer follows.
    hidden_alloc: Option<u64>,
    /// The time of an allocation at a live object's address, which is kept until the next allocation there.
    over_live: Option<u64>,
}

/// The state of a page frame.
#[derive(Debug, Clone)]
struct Page {
    /// The cache of the objects on the page, if known.
    name: Option<CacheId>,
    /// The cache of the slab, if a live block begins at this page.
    slab_of: Option<CacheId>,
    /// The index of the page in the block with which it was allocated. The value is `NO_BLOCK` if the trace has no
    /// allocation of the page, or the page was freed.
    from_head: u16,
    /// The index of the page in the block that owns it. If the pages of a block are freed one by one, the
    /// block owns them until its first page is freed.
    from_owner: u16,
    /// The CPU that allocated the block, if a live block begins at this page.
    cpu: u16,
    /// The order of the block; `NO_ORDER` if no live block begins at this page.
    order: u8,
    usage: PageUse,
    /// `true` if the page was allocated in the trace, or has known objects.
    known: bool,
    /// `true` if `on_page` has an entry for this page.
    has_objects: bool,
}

const NO_BLOCK: u16 = u16::MAX;
const NO_ORDER: u8 = u8::MAX;

/// An allocated block of pages.
struct Block {
    order: u8,
    cpu: u16,
    usage: PageUse,
}

impl Default for Page {
    fn default() -> Self {
        Self {
            name: None,
            slab_of: None,
            from_head: NO_BLOCK,
            from_owner: NO_BLOCK,
            cpu: 0,
            order: NO_ORDER,
            usage: PageUse::Other,
            known: false,
            has_objects: false,
        }
    }
}

/// The totals over all operations.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) caches: Vec<CacheTally>,
    pub(super) all: CacheTally,
    pub(super) overwritten: u64,
    pub(super) live_when_page_freed: u64,
    pub(super) swapped_late_free: u64,
    pub(super) swapped_early_free: u64,
    /// The number of matched frees for each pair of allocating CPU and freeing CPU.
    pub(super) cpu_pairs: Vec<Vec<u64>>,
    /// The number of hidden frees for each pair of cache and allocating call site.
    pub(super) hidden_free_sites: FxHashMap<(CacheId, Symbol), u64>,
    pub(super) kfree_of_cache_object: FxHashMap<CacheId, u64>,
    /// The number of frees that name another cache than their allocation, for each pair of caches.
    pub(super) name_differs: FxHashMap<(CacheId, CacheId), u64>,
    pub(super) page_allocs: Vec<u64>,
    pub(super) page_frees: Vec<u64>,
    pub(super) by_migratetype: Vec<u64>,
    pub(super) pages_peak: u64,
    pub(super) page_free_unseen: u64,
    pub(super) page_free_matched: u64,
    pub(super) page_free_remote: u64,
    pub(super) page_alloc_over_live: u64,
    /// The number of pages allocated minus the number of pages freed, over all events.
    pub(super) pages_net: i64,
    pub(super) marks: Vec<MarkState>,
    marks_seen: u64,
    /// `true` if the first mark was lost with the oldest events and the parser inserted it.
    pub(super) mark_was_lost: bool,
}

/// The counters of one cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheTally {
    /// The number of allocations.
    pub allocs: u64,
    /// The number of frees, including frees without a known allocation.
    pub frees: u64,
    /// The number of objects that the trace allocated and did not free, counting hidden frees.
    pub live: u64,
    /// The largest number of live objects at any time.
    pub peak_live: u64,
    /// The number of matched frees on another CPU than the one that allocated.
    pub remote_frees: u64,
    /// The number of frees whose allocation is in the trace.
    pub matched_frees: u64,
    /// The number of frees without an event.
    pub hidden_frees: u64,
    /// The number of allocations without an event.
    pub hidden_allocs: u64,
    /// The number of frees of objects from before the trace.
    pub pre_trace_frees: u64,
    /// The current number of known slabs.
    pub slabs: i64,
    /// The number of slabs allocated in the trace.
    pub slabs_new: u64,
    /// The number of slabs that were both allocated and freed in the trace.
    pub slabs_gone: u64,
    /// The largest number of known slabs at any time.
    pub slabs_peak: i64,
    /// The value of `bytes_alloc` in the last allocation from the cache.
    pub size: u32,
}

/// The counters of all caches at a mark.
#[derive(Debug, Clone)]
pub(super) struct MarkState {
    pub(super) text: String,
    pub(super) at: u64,
    pub(super) time_ns: u64,
    pub(super) caches: Vec<CacheTally>,
    pub(super) pages_net: i64,
}

impl Recording {
    /// Starts the second pass, which interprets the records. The parameter `slabinfo` is the traced kernel's table, if
    /// available; it identifies caches by object size.
    ///
    /// # Errors
    ///
    /// Fails if the temporary file fails.
    pub fn resolve(self, slabinfo: Option<&SlabInfo>) -> Result<Resolver, TraceError> {
        let recording = RecordingMetadata {
            ambiguous_sites: self.ambiguous_sites(),
            events_by_name: self.events_by_name(),
            by_gfp: self.allocations_by_gfp(),
            call_sites: self.call_sites(),
            counts: self.counts,
        };
        let lost_mark = self.lost_mark.map(|mark| Record {
            at: 0,
            time_ns: recording.counts.time_ns.map_or(0, |(first, _)| first),
            line: 0,
            cpu: 0,
            key: mark.0,
            tag: Tag::Mark,
            order: 0,
            migratetype: 0,
            usage: 0,
        });
        let mut resolver = Resolver {
            recording,
            mapping: self.mapping,
            page_size_source: self.page_size_source,
            names: Names::new(self.strings, self.shapes, slabinfo, self.mapping.page_size),
            records: self.spool.into_reader().map_err(|source| TraceError::Spool { source })?,
            objects: FxHashMap::default(),
            histories: FxHashMap::default(),
            pages: PageTable::new(),
            on_page: FxHashMap::default(),
            pages_out: 0,
            tally: Tally::default(),
            may_block: Vec::new(),
            pending: Vec::new(),
            next: 0,
        };
        if let Some(mark) = lost_mark {
            resolver.record_mark(&mark);
            // An inserted mark is not a record.
            resolver.tally.marks_seen = 0;
            resolver.tally.mark_was_lost = true;
        }
        Ok(resolver)
    }
}

/// Returns `true` if an allocation with these flags, in the kernel's notation, may reclaim memory directly.
fn may_block(flags: &str) -> bool {
    const BLOCKING_FLAGS: [&str; 6] =
        ["GFP_KERNEL", "GFP_NOFS", "GFP_NOIO", "GFP_USER", "GFP_HIGHUSER", "GFP_TRANSHUGE"];
    flags.split('|').any(|flag| match flag {
        "__GFP_DIRECT_RECLAIM" | "__GFP_RECLAIM" => true,
        "GFP_TRANSHUGE_LIGHT" => false,
        _ => BLOCKING_FLAGS.iter().any(|name| flag.starts_with(name)),
    })
}

impl Resolver {
    /// Returns the next operation, or `None` at the end of the trace.
    ///
    /// # Errors
    ///
    /// Fails if the temporary file fails.
    pub fn next_op(&mut self) -> Result<Option<Op>, TraceError> {
        loop {
            if let Some(&op) = self.pending.get(self.next) {
                self.next += 1;
                return Ok(Some(op));
            }
            self.pending.clear();
            self.next = 0;
            match self.records.next().map_err(|source| TraceError::Spool { source })? {
                Some(record) => self.record(&record),
                None => return Ok(None),
            }
        }
    }

    /// Returns the number of interpreted records, and the number of all records. Each record gives at least
    /// one operation.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.records.position(), self.records.total())
    }

    /// Returns the description of a cache. A cache is known after its first operation has been returned.
    #[must_use]
    pub fn cache(&self, id: CacheId) -> &CacheInfo {
        &self.names.caches()[id.0 as usize]
    }

    /// Returns all caches that exist so far, in the order of their ids.
    #[must_use]
    pub fn caches(&self) -> &[CacheInfo] {
        self.names.caches()
    }

    /// Returns the counters of a cache so far.
    #[must_use]
    pub fn cache_tally(&self, id: CacheId) -> CacheTally {
        self.tally.caches.get(id.0 as usize).copied().unwrap_or_default()
    }

    /// Returns the counters of all caches at the last mark with the given text, indexed by cache number; caches that
    /// appeared later are missing.
    #[must_use]
    pub fn tallies_at_mark(&self, mark: &str) -> &[CacheTally] {
        self.tally.marks.iter().rfind(|at| at.text == mark).map_or(&[], |at| &at.caches)
    }

    /// Returns the sums of the counters of all caches so far, except peaks and slabs.
    #[must_use]
    pub fn total_tally(&self) -> CacheTally {
        self.tally.all
    }

    /// Returns the page size of the traced machine.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.mapping.page_size
    }

    /// Returns the first page of an object, or `None` if addresses do not reveal pages.
    #[must_use]
    pub fn page_of(&self, ptr: Ptr) -> Option<Pfn> {
        self.mapping.pfn(ptr)
    }

    /// Returns the name of a command, as the trace prints it.
    #[must_use]
    pub fn task(&self, id: TaskId) -> String {
        self.names.strings().tasks.text(Symbol(id.0)).into_owned()
    }

    /// Returns a call site in the form `function+0x1b/0x40`.
    #[must_use]
    pub fn call_site(&self, id: SiteId) -> String {
        self.names.strings().sites.text(Symbol(id.0)).into_owned()
    }

    /// Returns the text of a mark.
    #[must_use]
    pub fn mark(&self, id: MarkId) -> String {
        self.names.strings().marks.text(id.0).into_owned()
    }

    /// Returns the counts over all lines, from the first pass.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.recording.counts
    }

    /// Returns the number of cache names that each source has given so far.
    #[must_use]
    pub fn name_sources(&self) -> NameSources {
        self.names.sources(self.recording.counts.named_by_free)
    }

    fn record(&mut self, record: &Record) {
        match record.tag {
            Tag::Alloc => self.alloc(record),
            Tag::FreeKmalloc => self.free(record, EventSource::Kmalloc),
            Tag::FreeCache => self.free(record, EventSource::Cache),
            Tag::PageAlloc => self.page_alloc(record),
            Tag::PageFree => self.page_free(record),
            Tag::Mark => self.record_mark(record),
            // Records of page lists are in another spool.
            Tag::PageTaken | Tag::PageDrained | Tag::PageFallback => {}
        }
    }

    fn push(&mut self, record: &Record, kind: OpKind) {
        let task = record.task().filter(|_| matches!(kind, OpKind::Alloc { .. })).map(TaskId);
        self.pending.push(Op { line: record.line, time_ns: record.time_ns, cpu: record.cpu, task, kind });
    }

    fn alloc(&mut self, record: &Record) {
        let ptr = Ptr(record.at);
        let pfn = self.mapping.pfn(ptr);
        let cache = match pfn {
            Some(pfn) => self.names.cache_of_alloc(record.key, Some(&mut self.pages.entry(pfn).name)),
            None => self.names.cache_of_alloc(record.key, None),
        };
        let shape = *self.names.shape(record.key);
        self.cache_tally_mut(cache).size = shape.bytes_alloc;
        let fresh = Object { cache, shape: record.key, cpu: record.cpu, live: true, has_history: false };
        match self.objects.entry(ptr.0) {
            Entry::Vacant(vacant) => {
                vacant.insert(fresh);
                self.add_object_to_page(ptr);
            }
            Entry::Occupied(mut occupied) => {
                let last = *occupied.get();
                occupied.insert(Object { has_history: last.has_history, ..fresh });
                if last.live {
                    self.alloc_over_live(record, ptr, last);
                } else if last.has_history
                    && let Some(history) = self.histories.get_mut(&ptr.0)
                    && history.over_live.is_some_and(|then| record.time_ns > then)
                {
                    history.over_live = None;
                }
            }
        }
        for tally in self.tallies_of_cache(cache) {
            tally.allocs += 1;
            tally.live += 1;
            tally.peak_live = tally.peak_live.max(tally.live);
        }
        if let Some(pfn) = pfn {
            self.mark_block_as_slab(pfn, cache);
        }
        let Shape { site, bytes_req, bytes_alloc, gfp, .. } = shape;
        let may_block = self.may_block(gfp);
        let kind = OpKind::Alloc { cache, ptr, site: SiteId(site.0), bytes_req, bytes_alloc, may_block };
        self.push(record, kind);
    }

    fn may_block(&mut self, gfp: Symbol) -> bool {
        let at = gfp.0 as usize;
        if at >= self.may_block.len() {
            self.may_block.resize(at + 1, None);
        }
        let flags = &self.names.strings().gfp;
        *self.may_block[at].get_or_insert_with(|| may_block(&flags.text(gfp)))
    }

    fn alloc_over_live(&mut self, record: &Record, ptr: Ptr, last: Object) {
        self.tally.overwritten += 1;
        self.record_hidden_free(record, ptr, &last, HiddenFreeEvidence::Reused);
        let history = self.histories.entry(ptr.0).or_default();
        if history.hidden_alloc.take().is_some() {
            self.tally.swapped_early_free += 1;
        }
        history.over_live = Some(record.time_ns);
        if let Some(object) = self.objects.get_mut(&ptr.0) {
            object.has_history = true;
        }
    }

    fn record_hidden_free(&mut self, record: &Record, ptr: Ptr, object: &Object, sign: HiddenFreeEvidence) {
        for tally in self.tallies_of_cache(object.cache) {
            tally.hidden_frees += 1;
            tally.live -= 1;
        }
        let site = self.names.shape(object.shape).site;
        *self.tally.hidden_free_sites.entry((object.cache, site)).or_default() += 1;
        self.push(record, OpKind::HiddenFree { cache: object.cache, ptr, alloc_cpu: object.cpu, sign });
    }

    /// Records a new pointer on its page.
    fn add_object_to_page(&mut self, ptr: Ptr) {
        if let Some(pfn) = self.mapping.pfn(ptr) {
            self.pages.entry(pfn).has_objects = true;
            self.on_page.entry(pfn.0).or_default().push(self.mapping.offset(ptr));
        }
    }

    /// Makes a block of pages a slab, whose cache is the cache of the first object on it.
    fn mark_block_as_slab(&mut self, pfn: Pfn, cache: CacheId) {
        if self.names.caches()[cache.0 as usize].kind == CacheKind::KmallocLarge {
            return;
        }
        if let Some(head) = self.head_page_of(pfn)
            && let Some(page) = self.pages.get(head)
            && page.order != NO_ORDER
            && page.slab_of.is_none()
        {
            page.slab_of = Some(cache);
            let tally = self.cache_tally_mut(cache);
            tally.slabs_new += 1;
            tally.slabs += 1;
            tally.slabs_peak = tally.slabs_peak.max(tally.slabs);
        }
    }

    fn head_page_of(&mut self, pfn: Pfn) -> Option<Pfn> {
        let from_head = self.pages.get(pfn)?.from_head;
        (from_head != NO_BLOCK).then(|| Pfn(pfn.0 - u64::from(from_head)))
    }

    fn free(&mut self, record: &Record, via: EventSource) {
        let ptr = Ptr(record.at);
        let named = record.key.checked_sub(1).map(|name| self.names.cache_of_symbol(Symbol(name)));
        match self.objects.get_mut(&ptr.0) {
            Some(object) if object.live => {
                object.live = false;
                let object = *object;
                self.record_matched_free(record, ptr, object, via, named);
            }
            known => {
                let known = known.copied();
                self.record_unmatched_free(record, ptr, known, named);
            }
        }
    }

    fn record_matched_free(
        &mut self,
        record: &Record,
        ptr: Ptr,
        object: Object,
        via: EventSource,
        named: Option<CacheId>,
    ) {
        let Object { cache, cpu: alloc_cpu, .. } = object;
        for tally in self.tallies_of_cache(cache) {
            tally.frees += 1;
            tally.matched_frees += 1;
            tally.live -= 1;
            tally.remote_frees += u64::from(alloc_cpu != record.cpu);
        }
        let pairs = &mut self.tally.cpu_pairs;
        if usize::from(alloc_cpu) >= pairs.len() {
            pairs.resize_with(usize::from(alloc_cpu) + 1, Vec::new);
        }
        increment_at(&mut pairs[usize::from(alloc_cpu)], usize::from(record.cpu));
        if via == EventSource::Kmalloc && self.names.shape(object.shape).via == EventSource::Cache {
            *self.tally.kfree_of_cache_object.entry(cache).or_default() += 1;
        }
        if let Some(name) = named
            && name != cache
        {
            *self.tally.name_differs.entry((cache, name)).or_default() += 1;
        }
        if object.has_history
            && let Some(history) = self.histories.get_mut(&ptr.0)
            && history.hidden_alloc.is_some_and(|then| record.time_ns > then)
        {
            history.hidden_alloc = None;
        }
        self.push(record, OpKind::Free { cache, ptr, origin: FreeOrigin::Matched { alloc_cpu } });
    }

    fn record_unmatched_free(
        &mut self,
        record: &Record,
        ptr: Ptr,
        known: Option<Object>,
        named: Option<CacheId>,
    ) {
        let page_known = match self.mapping.pfn(ptr) {
            Some(pfn) => self.pages.get(pfn).is_some_and(|page| page.known),
            None => false,
        };
        let hidden = known.is_some() || page_known;
        let cache = named
            .or(known.map(|object| object.cache))
            .or_else(|| {
                let head = self.head_page_of(self.mapping.pfn(ptr)?)?;
                self.pages.get(head)?.slab_of
            })
            .unwrap_or_else(|| self.names.unknown_kfree_cache());
        for tally in self.tallies_of_cache(cache) {
            tally.frees += 1;
            tally.hidden_allocs += u64::from(hidden);
            tally.pre_trace_frees += u64::from(!hidden);
        }
        if hidden {
            let history = self.histories.entry(ptr.0).or_default();
            if history.over_live.take().is_some() {
                self.tally.swapped_late_free += 1;
            }
            history.hidden_alloc = Some(record.time_ns);
        }
        let object =
            Object { cache, shape: UNKNOWN_SHAPE, cpu: record.cpu, live: false, has_history: hidden };
        if self.objects.insert(ptr.0, object).is_none() {
            self.add_object_to_page(ptr);
        }
        let origin = if hidden { FreeOrigin::HiddenAlloc } else { FreeOrigin::PreTrace };
        self.push(record, OpKind::Free { cache, ptr, origin });
    }

    fn page_alloc(&mut self, record: &Record) {
        let (pfn, order) = (Pfn(record.at), record.order);
        let usage = PageUse::from_u8(record.usage);
        increment_at(&mut self.tally.page_allocs, usize::from(order));
        increment_at(&mut self.tally.by_migratetype, usize::from(record.migratetype));
        let over_live = frames(pfn, order)
            .any(|frame| self.pages.get(frame).is_some_and(|page| page.from_owner != NO_BLOCK));
        self.tally.page_alloc_over_live += u64::from(over_live);
        // The previous block was freed without an event, except for parts that have become separate blocks.
        if let Some(Block { order, cpu: alloc_cpu, usage }) = self.allocated_block_at(pfn) {
            for (from_head, frame) in (0..).zip(frames(pfn, order)) {
                if self.pages.get(frame).is_some_and(|page| page.from_owner == from_head) {
                    self.forget_page(record, frame);
                }
            }
            // Events count the pages in use, so `pages_out` stays.
            self.block_ends(pfn);
            self.push(
                record,
                OpKind::PageFree { pfn, order, origin: PageFreeOrigin::Hidden { alloc_cpu }, usage },
            );
        }
        for (from_head, frame) in (0..).zip(frames(pfn, order)) {
            let page = self.pages.entry(frame);
            (page.known, page.from_head, page.from_owner) = (true, from_head, from_head);
        }
        let head = self.pages.entry(pfn);
        (head.slab_of, head.cpu, head.order, head.usage) = (None, record.cpu, order, usage);
        self.pages_out += 1 << order;
        self.tally.pages_net += 1 << order;
        self.tally.pages_peak = self.tally.pages_peak.max(self.pages_out);
        self.push(record, OpKind::PageAlloc { pfn, order, migratetype: record.migratetype, usage });
    }

    fn page_free(&mut self, record: &Record) {
        let (pfn, order) = (Pfn(record.at), record.order);
        increment_at(&mut self.tally.page_frees, usize::from(order));
        self.tally.pages_net -= 1 << order;
        let mut origin = PageFreeOrigin::Unseen;
        let mut usage = PageUse::Other;
        if let Some(ended) = self.block_ends(pfn) {
            usage = ended.usage;
            origin = PageFreeOrigin::Matched { alloc_cpu: ended.cpu, order: ended.order };
            self.tally.page_free_matched += 1;
            self.tally.page_free_remote += u64::from(ended.cpu != record.cpu);
            self.pages_out = self.pages_out.saturating_sub(1 << ended.order);
        } else {
            self.tally.page_free_unseen += 1;
        }
        for frame in frames(pfn, order) {
            self.forget_page(record, frame);
        }
        self.push(record, OpKind::PageFree { pfn, order, origin, usage });
    }

    /// Returns the block that was allocated at `pfn`, if the allocation is in the trace.
    fn allocated_block_at(&mut self, pfn: Pfn) -> Option<Block> {
        let page = self.pages.get(pfn).filter(|page| page.order != NO_ORDER)?;
        Some(Block { order: page.order, cpu: page.cpu, usage: page.usage })
    }
    fn block_ends(&mut self, pfn: Pfn) -> Option<Block> {
        let block = self.allocated_block_at(pfn)?;
        let page = self.pages.entry(pfn);
        let slab_of = page.slab_of.take();
        page.order = NO_ORDER;
        for (from_head, frame) in (0..).zip(frames(pfn, block.order)) {
            if let Some(page) = self.pages.get(frame)
                && page.from_owner == from_head
            {
                page.from_owner = NO_BLOCK;
            }
        }
        if let Some(cache) = slab_of {
            let tally = self.cache_tally_mut(cache);
            tally.slabs_gone += 1;
            tally.slabs -= 1;
        }
        Some(block)
    }

    /// Frees the live objects on a page that is being freed, and forgets all facts about the page.
    fn forget_page(&mut self, record: &Record, pfn: Pfn) {
        let Some(page) = self.pages.get(pfn) else { return };
        page.name = None;
        page.from_head = NO_BLOCK;
        if !page.has_objects {
            return;
        }
        page.has_objects = false;
        page.known = true;
        for offset in self.on_page.remove(&pfn.0).unwrap_or_default() {
            let ptr = self.mapping.object(pfn, offset);
            let Some(object) = self.objects.remove(&ptr.0) else { continue };
            if object.has_history {
                self.histories.remove(&ptr.0);
            }
            if object.live {
                self.tally.live_when_page_freed += 1;
                self.record_hidden_free(record, ptr, &object, HiddenFreeEvidence::PageFreed);
            }
        }
    }

    fn record_mark(&mut self, record: &Record) {
        let symbol = Symbol(record.key);
        let text = self.names.strings().marks.text(symbol);
        if self.tally.marks.len() < MAX_KEPT_MARK_STATES {
            let caches = if text.starts_with("SNAP ") || text.starts_with("WORKLOAD ") {
                self.tally.caches.clone()
            } else {
                Vec::new()
            };
            self.tally.marks.push(MarkState {
                text: text.into_owned(),
                at: self.records.position().saturating_sub(1 + self.tally.marks_seen),
                time_ns: record.time_ns,
                caches,
                pages_net: self.tally.pages_net,
            });
        }
        self.tally.marks_seen += 1;
        self.push(record, OpKind::Mark { text: MarkId(symbol) });
    }

    /// Returns the counters of a cache, and the totals.
    fn tallies_of_cache(&mut self, cache: CacheId) -> [&mut CacheTally; 2] {
        self.cache_tally_mut(cache);
        let Tally { caches, all, .. } = &mut self.tally;
        [&mut caches[cache.0 as usize], all]
    }

    fn cache_tally_mut(&mut self, cache: CacheId) -> &mut CacheTally {
        let at = cache.0 as usize;
        if at >= self.tally.caches.len() {
            self.tally.caches.resize_with(at + 1, CacheTally::default);
        }
        &mut self.tally.caches[at]
    }
}
