//! The untyped cache as users hold it: made by a builder, freed through raw pointers or safe [`Block`](crate::Block)s.

use super::alloc::BULK;
use super::core::Core;
use super::hooks::{Holds, Hook, Hooks};
use super::info::CacheInfo;
use super::per_cpu::PerCpu;
use super::{Account, Acquiring, Cache, CacheConfig, Owner};
use crate::cache::live::Live;
use crate::cache::per_cpu::Magazines;
use crate::debug::flags::SlabDebug;
use crate::debug::harden::{CANARY, Harden, quarantine};
use crate::error::{AllocError, Busy, CacheError};
use crate::geometry::{Geometry, OrderRule, SPACING, WORD};
use crate::memory::slab::{Constructed, ONE_BY_ONE};
use crate::reclaim::shrinker::{Registration, Shrinker};
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use uslab_buddy::Gfp;
use uslab_buddy::PAGE_SIZE;
use uslab_magazine::sync::MODEL;
use uslab_magazine::tracepoints::What;

/// A cache of objects of one size and alignment.
///
/// Dropping it gives all its memory back. If objects are still in use, the cache stays in the reports without a handle, its
/// magazines give back what they hold, and from then on each free goes straight to its slab; the free of the last object gives
/// back the rest.
///
/// ```
/// use uslab::{Gfp, KmemCache};
///
/// let cache = KmemCache::builder("inode", 192).align(64).build()?;
/// let object = cache.alloc(Gfp::KERNEL)?;
/// // SAFETY: allocated above from this cache, freed once.
/// unsafe { cache.free(object) };
/// assert_eq!(cache.info().used, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[doc(alias = "kmem_cache")]
pub struct KmemCache {
    cache: Arc<Cache>,
    /// The last handle takes the cache along.
    _owner: Arc<Owner>,
    /// Its own name, if the cache was made for another one.
    alias: Option<Box<str>>,
}

/// How much memory a cache may have. Charged by slab, where it costs nothing: rounded up to slabs of the cache's order.
///
/// ```
/// use uslab::{AllocError, Gfp, KmemCache, Limit};
///
/// let inodes = KmemCache::builder("inode", 600).limit(Limit::Slabs(1)).build()?;
/// let slab = inodes.alloc_blocks(Gfp::KERNEL, inodes.geometry().objects())?;
/// assert_eq!(inodes.alloc(Gfp::KERNEL), Err(AllocError::CacheLimit { slabs: 1 }));
/// drop(slab);
/// assert!(inodes.alloc_block(Gfp::KERNEL).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// So many slabs.
    Slabs(u32),
    /// So many objects. They are spread evenly over as few slabs as hold them: so it is exact where one slab does, and may be one more for
    /// each slab where more are needed. With memory short a slab may hold fewer.
    Objects(u64),
    /// The slabs that so many bytes make. What objects [hold](KmemCacheBuilder::holds) beside is counted, too, where it is known.
    Bytes(u64),
}

impl Limit {
    fn slabs(self, geometry: &Geometry) -> u32 {
        let slabs = match self {
            Self::Slabs(slabs) => return slabs,
            Self::Objects(objects) => objects.div_ceil(geometry.objects() as u64),
            Self::Bytes(bytes) => bytes.div_ceil(geometry.order().bytes() as u64),
        };
        u32::try_from(slabs).unwrap_or(u32::MAX)
    }
}

/// Makes a [`KmemCache`].
///
/// ```
/// use uslab::{Gfp, KmemCache, Limit};
///
/// let inodes = KmemCache::builder("inode", 600)
///     .hardware_align()
///     .limit(Limit::Bytes(1 << 20))
///     .ctor(|inode| inode[0] = 1) // for each new object
///     .build()?;
/// assert_eq!(inodes.geometry().align(), 64);
/// assert_eq!(inodes.alloc_block(Gfp::KERNEL)?.bytes()[0], 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder makes nothing until it builds"]
pub struct KmemCacheBuilder {
    name: String,
    size: usize,
    align: usize,
    hooks: Option<Hooks>,
    whole_slabs: bool,
    holds: Holds,
    page_flags: Gfp,
    limit: Option<Limit>,
    type_stable: bool,
    magazines: Option<Magazines>,
    check_frees: Option<bool>,
    debug: SlabDebug,
    merge: bool,
    page_class: Option<u16>,
    max_order: Option<u8>,
    account: Option<Account>,
    zero_on_free: bool,
    harden: Option<Harden>,
    no_access: bool,
    unsampled: bool,
}

impl KmemCacheBuilder {
    /// Another size than it began with.
    pub(crate) fn size(self, size: usize) -> Self {
        Self { size, ..self }
    }
    /// Alignment of the objects, in bytes, a power of two; 8 at least.
    pub fn align(mut self, align: usize) -> Self {
        self.align = self.align.max(align);
        self
    }
    /// Aligns objects to the cache line, or to the part of it that they fill.
    #[doc(alias = "SLAB_HWCACHE_ALIGN")]
    pub fn hardware_align(self) -> Self {
        let align = Geometry::hardware_align(self.size);
        self.align(align)
    }
    /// Constructs an object when it leaves its slab for the first time, with its bytes, zeroed; not on later allocations. A free
    /// object is kept as its last user left it. It runs in the thread that allocates, without any lock held, and may panic.
    pub fn ctor(self, construct: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        self.try_ctor(move |object| {
            construct(object);
            true
        })
    }
    /// The same of one that may refuse, for want of memory: it returns whether the object is constructed. If not, the allocation fails
    /// with [`AllocError::Constructor`]; the next one tries again.
    pub fn try_ctor(mut self, construct: impl Fn(&mut [u8]) -> bool + Send + Sync + 'static) -> Self {
        let hook = self.hook(construct);
        self.hooks_mut().construct = hook;
        self
    }
    /// Destructs a free object, with its bytes as its last user left them: what the constructor made beside the object goes here. That is
    /// when the cache shrinks or is reaped, is destroyed or is dropped, and in any thread whose allocation, free or
    /// [reaper](crate::reaper) gives slabs back. It runs without any lock held. A panic ends that run and nothing else.
    ///
    /// An object with a destructor and no constructor begins as zeros.
    pub fn dtor(mut self, destruct: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        let hook = self.hook(destruct);
        self.hooks_mut().destruct = Some(hook);
        self
    }
    /// Constructs all objects of a slab when it is made, and destructs them when it goes back, as Linux does. Else an object is
    /// constructed when it leaves its slab for the first time, and a shrink or a reap destructs those that lie free.
    ///
    /// Cost: the allocation that makes a slab runs the constructor for each of its objects, and what they hold stays as long as the
    /// slab. Allocations find a whole magazine of constructed objects then. Slabs of more than 256 objects are always constructed so.
    pub fn construct_slabs(mut self) -> Self {
        self.whole_slabs = true;
        self
    }
    /// Each constructed object holds so many bytes beside its own, such as a buffer that its constructor makes. They are charged to a
    /// [limit](Limit::Bytes) in bytes and to the [account](Self::account), and [reported](crate::CacheInfo::held_bytes). CPUs and
    /// depots keep fewer of such objects, and frees destruct what lies free in slabs and holds more than
    /// [2 MiB](crate::cache::HELD_SURPLUS).
    ///
    /// ```
    /// use uslab::{AllocError, Limit, ObjectCache};
    ///
    /// let frames = ObjectCache::builder("frame")
    ///     .ctor(|| vec![0_u8; 64 << 10])
    ///     .holds(64 << 10)
    ///     .limit(Limit::Bytes(1 << 20))
    ///     .build()?;
    /// let most: Vec<_> = std::iter::from_fn(|| frames.alloc().ok()).collect();
    /// assert_eq!(most.len(), 15); // and a page of slab
    /// assert_eq!(frames.info().held_bytes, 15 * (64 << 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holds(mut self, bytes: usize) -> Self {
        self.holds = Holds::Declared(bytes);
        self
    }
    /// What it holds is weighed.
    pub(crate) fn weigh(mut self, weigh: Hook<usize>) -> Self {
        self.holds = Holds::Weighed(weigh);
        self
    }
    fn hook<R>(&self, run: impl Fn(&mut [u8]) -> R + Send + Sync + 'static) -> Hook<R> {
        let size = self.size;
        Hook::new(Box::new(move |object| {
            // SAFETY: the object is the caller's alone and `size` bytes long; its pages were zeroed.
            run(unsafe { core::slice::from_raw_parts_mut(object.as_ptr(), size) })
        }))
    }
    fn hooks_mut(&mut self) -> &mut Hooks {
        let nothing = || Hooks { construct: Hook::new(Box::new(|_| true)), destruct: None, reset: None };
        self.hooks.get_or_insert_with(nothing)
    }
    /// What runs on the objects of typed caches.
    pub(crate) fn hooks(mut self, hooks: Hooks) -> Self {
        self.hooks = Some(hooks);
        self
    }
    /// How much memory the cache may have. Objects that CPUs merely keep are called in before an allocation fails.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }
    /// Its slabs are charged to this account, too.
    pub fn account(mut self, account: &Account) -> Self {
        self.account = Some(account.clone());
        self
    }
    /// Its objects can be dropped under pressure: its pages are grouped with others of that kind.
    #[doc(alias = "SLAB_RECLAIM_ACCOUNT")]
    pub fn reclaimable(self) -> Self {
        self.page_flags(Gfp::RECLAIMABLE)
    }
    /// Its pages come from zone DMA.
    #[doc(alias = "SLAB_CACHE_DMA")]
    pub fn dma(self) -> Self {
        self.page_flags(Gfp::DMA)
    }
    fn page_flags(mut self, flags: Gfp) -> Self {
        self.page_flags |= flags;
        self
    }
    /// Pages outlive a grace period: see [`rcu`](crate::rcu).
    #[doc(alias = "SLAB_TYPESAFE_BY_RCU")]
    #[cfg(any(not(loom), crossbeam_loom))]
    pub fn type_stable(mut self) -> Self {
        self.type_stable = true;
        self
    }
    /// Whether a free checks at once that the object is the cache's and in use, and reports what is not, double frees
    /// included: see [`corruption`](crate::corruption). Otherwise as the subsystem does.
    ///
    /// Cost: a call and a byte beside the slab for each allocation and free; an eighth of the slabs' memory.
    #[doc(alias = "SLAB_CONSISTENCY_CHECKS")]
    pub fn check_frees(mut self, check: bool) -> Self {
        self.check_frees = Some(check);
        self
    }
    /// What is done about its objects to find mistakes, beside what the subsystem [says](crate::Config::slab_debug) of its name: see
    /// [`flags`](crate::debug::flags). With more than `F` it does not [share](Self::merge) slabs.
    ///
    /// Cost, of an object of 64 bytes: red zones make it take up 80 bytes, and each allocation and free writes to them and reads them;
    /// poison the same of the object; users a call stack each time, some microseconds, and 64 bytes beside.
    #[doc(alias = "SLAB_RED_ZONE")]
    #[doc(alias = "SLAB_POISON")]
    #[doc(alias = "SLAB_STORE_USER")]
    #[doc(alias = "SLAB_TRACE")]
    #[doc(alias = "SLAB_FAILSLAB")]
    pub fn slab_debug(mut self, flags: SlabDebug) -> Self {
        self.debug |= flags;
        self
    }
    /// Fills each object with zeros when it is freed, so that no memory of the cache has what a user left: Linux's `init_on_free`, for one
    /// cache. With a constructor or a destructor it is an error, [`CacheError::ZeroOnFree`]: such objects stay constructed, and have a
    /// [reset](crate::ObjectCacheBuilder::reset).
    ///
    /// Cost: frees leave the inlined path, some nanoseconds each, and write the object.
    #[doc(alias = "init_on_free")]
    pub fn zero_on_free(mut self) -> Self {
        self.zero_on_free = true;
        self
    }
    /// What is hardened of this cache; otherwise what the subsystem hardens.
    pub fn harden(mut self, harden: Harden) -> Self {
        self.harden = Some(harden);
        self
    }
    /// Shares a cache with others that ask for the same and whose objects are of this size, or less than a word larger:
    /// fewer slabs that are partly used, and fewer magazines. The price is that nobody's objects can be told from the
    /// others' any more: numbers, reports, and [`destroy`](KmemCache::destroy) are those of all. So it is for who asks.
    ///
    /// Not shared are caches with a constructor, a destructor, a limit, an account, or a grace period, those that zero on free, and those that are [debugged](Self::slab_debug) beyond `F`.
    #[doc(alias = "slab_merge")]
    pub fn merge(mut self) -> Self {
        self.merge = true;
        self
    }
    fn may_merge(&self) -> bool {
        let is_plain = self.hooks.is_none() && self.limit.is_none() && self.account.is_none();
        self.merge && is_plain && !self.type_stable && !self.zero_on_free
    }
    /// Its pages are told by this class: see [`page_classes`](crate::memory::page_classes).
    pub(crate) fn page_class(mut self, class: usize) -> Self {
        self.page_class = u16::try_from(class).ok();
        self
    }
    /// Slabs may be of this order though the subsystem's rule has a smaller one.
    pub(crate) fn max_order(mut self, order: u8) -> Self {
        self.max_order = Some(order);
        self
    }
    /// Its objects are addresses that nobody can touch, of no bytes.
    pub(crate) fn no_access(mut self) -> Self {
        self.no_access = true;
        self
    }
    /// Each object lies in a slab, none with the sampled guard.
    pub(crate) fn unsampled(self) -> Self {
        Self { unsampled: true, ..self }
    }
    /// Other magazines than the subsystem's.
    pub fn magazines(mut self, magazines: Magazines) -> Self {
        self.magazines = Some(magazines);
        self
    }

    pub(crate) fn is_type_stable(&self) -> bool {
        self.type_stable
    }

    pub(crate) fn build_on(self, core: &Arc<Core>) -> Result<KmemCache, CacheError> {
        let planned = self.plan(core)?;
        if let Some(magazines) = planned.merges
            && let Some(owner) = core.mergeable(|cache| {
                let config = cache.config();
                config.merges == Some(magazines)
                    && (config.page_flags, config.debug, config.harden)
                        == (self.page_flags, planned.debug, planned.harden)
                    && config.geometry.serves(&planned.geometry)
                    && cache.refs().share()
            })
        {
            return Ok(KmemCache {
                cache: owner.shared().clone(),
                _owner: owner,
                alias: Some(self.name.into()),
            });
        }
        planned.build(self, core)
    }

    /// Finds what no cache can be made of.
    fn plan(&self, core: &Arc<Core>) -> Result<Planned, CacheError> {
        if self.name.is_empty() || self.name.contains(char::is_whitespace) {
            return Err(CacheError::Name);
        }
        if self.zero_on_free && self.hooks.is_some() {
            return Err(CacheError::ZeroOnFree);
        }
        if self.account.as_ref().is_some_and(|account| !account.is_of(core)) {
            return Err(CacheError::Account);
        }
        let mut harden = self.harden.unwrap_or(core.harden);
        let mut asked = self.debug | core.slab_debug.of(&self.name);
        if self.no_access {
            // Of addresses without memory there is nothing to watch.
            asked -= SlabDebug::RED_ZONE | SlabDebug::POISON;
        }
        let checks = harden.is_on() || self.check_frees.unwrap_or(core.check_frees);
        let debug = (asked | if checks { SlabDebug::CHECKS } else { SlabDebug::empty() }).complete();
        let align = if MODEL { self.align.max(SPACING) } else { self.align };
        let max_order = core.rule.max_order.max(self.max_order.unwrap_or(0));
        let rule = OrderRule { max_order, ..core.rule };
        let zone = if debug.contains(SlabDebug::RED_ZONE) { WORD } else { 0 };
        let mut geometry = Geometry::with_zones(self.size, align, zone, &rule)?;
        core.zones_are(zone > 0);
        let magazines = self.magazines.unwrap_or(core.magazines);
        // Red zones see more than canaries.
        harden.canaries &= zone == 0;
        if harden.canaries
            && let Ok(with_tail) = Geometry::with_tail(self.size, CANARY, align, &rule)
            && (self.page_class.is_some() || with_tail.stride() <= geometry.stride() * 5 / 4)
        {
            geometry = with_tail;
        }
        if harden.slab_guards {
            geometry = geometry.with_guard();
        }
        if let Some(Limit::Objects(objects @ 1..)) = self.limit {
            let slabs = objects.div_ceil(geometry.objects() as u64);
            geometry = geometry.at_most(objects.div_ceil(slabs) as usize);
        }
        Ok(Planned {
            magazines,
            debug,
            harden,
            zero_on_free: self.zero_on_free
                || harden.zero_on_free && self.hooks.is_none() && !self.type_stable,
            merges: (self.may_merge() && SlabDebug::CHECKS.contains(debug)).then_some(magazines),
            geometry,
        })
    }
}

/// A cache that can be made, and is not yet.
struct Planned {
    geometry: Geometry,
    magazines: Magazines,
    debug: SlabDebug,
    harden: Harden,
    zero_on_free: bool,
    merges: Option<Magazines>,
}

impl Planned {
    fn build(self, builder: KmemCacheBuilder, core: &Arc<Core>) -> Result<KmemCache, CacheError> {
        let Self { geometry, magazines, debug, harden, zero_on_free, merges } = self;
        let (key, stride) = (core.secret.next(), geometry.stride());
        // Not what is to stay constructed, or readable when it is free, nor what is counted to a limit. A malloc samples by itself.
        let guarded = core.guard.is_on()
            && stride <= PAGE_SIZE
            && builder.hooks.is_none()
            && !(builder.type_stable || builder.no_access || builder.unsampled)
            && builder.page_class.is_none()
            && builder.limit.is_none()
            && builder.account.is_none();
        let config = CacheConfig {
            per_cpu: PerCpu::new(
                core.memory.pages.tables(),
                magazines,
                stride,
                builder.holds.declared(),
                &builder.name,
                quarantine(&harden, key, stride),
            ),
            name: builder.name.into(),
            limit: builder.limit.map(|limit| limit.slabs(&geometry)),
            constructed: if builder.hooks.is_none() || builder.whole_slabs || geometry.objects() > ONE_BY_ONE
            {
                Constructed::Together
            } else {
                Constructed::OneByOne
            },
            held_limit: match builder.limit {
                Some(Limit::Bytes(bytes)) if !matches!(builder.holds, Holds::Unknown) => Some(bytes as usize),
                _ => None,
            },
            holds: builder.holds,
            hooks: builder.hooks,
            page_flags: builder.page_flags,
            // Where objects lie among red zones no class is told: the frame knows.
            page_class: builder.page_class.filter(|_| geometry.lead() == 0),
            type_stable: builder.type_stable,
            account: builder.account.map(|account| account.charges),
            zero_on_free,
            no_access: builder.no_access,
            check_frees: !debug.is_empty(),
            debug,
            harden,
            guarded,
            key,
            geometry,
            merges,
        };
        let cache = Cache::new(core.clone(), config).ok_or(CacheError::Memory)?;
        core.caches.push(&cache);
        // Not before: a sweep that finds it has its caches collect afterwards, those on the list.
        cache.config.per_cpu.join_sweeps();
        // Somebody may wait for the account.
        cache.follow_account();
        let owner = Owner::new(cache.clone());
        if merges.is_some() {
            core.mergeable.push(&owner);
        }
        Ok(KmemCache { cache, _owner: owner, alias: None })
    }
}

impl KmemCache {
    /// Begins a cache of objects of `size` bytes.
    #[doc(alias = "kmem_cache_create")]
    pub fn builder(name: impl Into<String>, size: usize) -> KmemCacheBuilder {
        KmemCacheBuilder {
            name: name.into(),
            size,
            align: 0,
            hooks: None,
            whole_slabs: false,
            holds: Holds::Unknown,
            page_flags: Gfp::empty(),
            limit: None,
            type_stable: false,
            magazines: None,
            check_frees: None,
            debug: SlabDebug::empty(),
            merge: false,
            page_class: None,
            max_order: None,
            account: None,
            zero_on_free: false,
            harden: None,
            no_access: false,
            unsampled: false,
        }
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The name that it was asked for by. The reports of a [shared](KmemCacheBuilder::merge) cache have the name of the first.
    pub fn name(&self) -> &str {
        self.alias.as_deref().unwrap_or(self.cache.name())
    }
    /// Where its objects lie.
    pub fn geometry(&self) -> &Geometry {
        self.cache.geometry()
    }

    /// An object of [`object_size`](Geometry::object_size) bytes, the caller's alone until it is freed. Its bytes are
    /// unspecified, or zero with [`Gfp::ZERO`]; with a constructor or a destructor, as constructed or as the last user left them.
    ///
    /// Cost: one operation on this CPU's magazine; once a magazine the depot's or the node's lock; rarely pages.
    ///
    /// # Errors
    /// Nothing is to be had even after other CPUs' objects were called in and other caches' empty slabs given back; the
    /// error says which limit was reached.
    ///
    /// # Panics
    /// When a constructor panics; nothing is lost then.
    #[inline(always)]
    #[doc(alias = "kmem_cache_alloc")]
    pub fn alloc(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.cache.alloc(gfp)
    }
    /// The two halves of [`alloc`](Self::alloc), for whoever makes the second one a tail call: `None` is a miss, and no lack of memory.
    #[inline(always)]
    #[doc(hidden)]
    pub fn alloc_inlined(&self, gfp: Gfp) -> Option<NonNull<u8>> {
        self.cache.alloc_inlined(gfp)
    }
    /// What follows a miss.
    #[doc(hidden)]
    pub fn alloc_missed(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.cache.alloc_missed(gfp, self.cache.geometry().object_size())
    }

    /// As [`alloc`](Self::alloc); at the cache's limit it waits until an object is free. Those who wait are served in their order, and
    /// nobody passes them: [`alloc`](Self::alloc) and its kin fail as long as somebody waits. A future that is dropped gives up its
    /// place; an object that it was given goes to the next one. In the child of a fork it has to be polled once more, as its waker is
    /// forgotten. Who waits is given an object of whichever node, with
    /// [`Gfp::THIS_NODE`], too.
    ///
    /// Cost: as [`alloc`](Self::alloc) while the cache is below its limit. While somebody waits the cache works without its magazines:
    /// two locks for each allocation and free.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), but for [`AllocError::CacheLimit`] and [`AllocError::AccountLimit`], which it waits at. It does not
    /// wait where not even one slab is allowed.
    ///
    /// # Panics
    /// As [`alloc`](Self::alloc). What a waker panics with is forgotten: it runs in the midst of somebody else's call.
    pub fn acquire(&self, gfp: Gfp) -> Acquiring<'_> {
        self.cache.acquire(gfp)
    }
    /// The same for a thread, which sleeps for `timeout` at most. It waits in one queue with the futures of [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc): [`AllocError::CacheLimit`] or [`AllocError::AccountLimit`] when the time is over.
    ///
    /// # Panics
    /// As [`alloc`](Self::alloc).
    pub fn acquire_timeout(&self, gfp: Gfp, timeout: Duration) -> Result<NonNull<u8>, AllocError> {
        self.cache.acquire_timeout(gfp, timeout)
    }

    /// As [`alloc`](Self::alloc), of memory node `node`; if that has none, of another one, unless with [`Gfp::THIS_NODE`]. Which
    /// it was is counted: [`CacheInfo::other_node_allocs`].
    ///
    /// Cost: as [`alloc`](Self::alloc) for the node of this CPU; for others, and with the flag, the lock of that node.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[doc(alias = "kmem_cache_alloc_node")]
    pub fn alloc_node(&self, gfp: Gfp, node: u32) -> Result<NonNull<u8>, AllocError> {
        self.cache.alloc_node(gfp, node)
    }

    /// Fills every place of `out` with an object, or none: what this CPU and the depot hold, then straight from the
    /// slabs, many objects in one lock hold.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); every place is `None` then. More than the cache or its pages can ever hold is refused at
    /// once ([`AllocError::CacheLimit`], [`AllocError::TooLarge`]).
    ///
    /// # Panics
    /// As [`alloc`](Self::alloc); every place is `None` then, too.
    #[doc(alias = "kmem_cache_alloc_bulk")]
    pub fn alloc_bulk(&self, gfp: Gfp, out: &mut [Option<NonNull<u8>>]) -> Result<(), AllocError> {
        self.cache.alloc_bulk(gfp, out)
    }

    /// Takes an object back. What its last user wrote to it stays; nothing here touches it.
    ///
    /// Cost: as [`alloc`](Self::alloc).
    ///
    /// # Safety
    /// `object` came from this cache and nobody uses it any more. If the cache has a constructor, the object is as a
    /// next user may find it.
    #[inline(always)]
    #[doc(alias = "kmem_cache_free")]
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: passed on.
        unsafe { self.cache.free(object) };
    }
    /// The two halves of [`free`](Self::free), as of [`alloc`](Self::alloc): `false` is a miss.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline(always)]
    #[doc(hidden)]
    #[must_use]
    pub unsafe fn free_inlined(&self, object: NonNull<u8>) -> bool {
        // SAFETY: passed on.
        unsafe { self.cache.free_inlined(object) }
    }
    /// What follows a miss.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[doc(hidden)]
    pub unsafe fn free_missed(&self, object: NonNull<u8>) {
        self.cache.free_missed(object);
    }

    /// Tells the models that an object is used, whose page must be out; nothing in other builds.
    #[inline(always)]
    pub(crate) fn touch(&self, object: NonNull<u8>) {
        let pages = &self.cache.core().memory.pages;
        if MODEL && let Some(pfn) = pages.pfn_of(object.as_ptr()) {
            pages.frame(pfn).touch();
        }
    }

    /// Takes many objects back.
    ///
    /// # Safety
    /// As [`free`](Self::free), for each of them.
    #[doc(alias = "kmem_cache_free_bulk")]
    pub unsafe fn free_bulk(&self, objects: impl IntoIterator<Item = NonNull<u8>>) {
        for object in objects {
            // SAFETY: passed on.
            unsafe { self.cache.free(object) };
        }
    }

    /// `n` objects, each as what owns it and gives it back when dropped; none if there are not so many.
    pub(crate) fn alloc_owners<T>(
        &self,
        gfp: Gfp,
        n: usize,
        owner: impl Fn(NonNull<u8>) -> T,
    ) -> Result<Vec<T>, AllocError> {
        self.cache.admits(n)?;
        let mut owners = Vec::new();
        let refused = |_| AllocError::Refused { bytes: n.saturating_mul(size_of::<T>()) };
        owners.try_reserve_exact(n).map_err(refused)?;
        let mut batch = [None; BULK];
        while owners.len() < n {
            let batch = &mut batch[..BULK.min(n - owners.len())];
            self.alloc_bulk(gfp, batch)?;
            owners.extend(batch.iter().flatten().map(|object| owner(*object)));
        }
        Ok(owners)
    }

    /// Takes an object back when all readers of now have gone, and not before: a reader who is [pinned](crate::rcu::pin) and
    /// has found the object may look at it until then. Objects wait in batches, one a CPU for the whole subsystem; those
    /// of a batch that is not full wait for [`reap`](Self::reap), [`shrink`](Self::shrink) or
    /// [`destroy`](Self::destroy) of any cache, too. Until it is taken back an object counts as used.
    ///
    /// Cost: the lock of this CPU's batch; once in 64 objects a visit to the collector, which allocates from the global
    /// allocator. While somebody waits at a limit: all CPUs' batches, and those who sleep are woken.
    ///
    /// # Safety
    /// As [`free`](Self::free); but whoever was pinned before the object was unpublished may still read it.
    #[doc(alias = "kfree_rcu")]
    #[doc(alias = "call_rcu")]
    #[cfg(any(not(loom), crossbeam_loom))]
    pub unsafe fn free_deferred(&self, object: NonNull<u8>) {
        self.cache.core().defer(object);
    }

    /// Gives the objects that CPUs and depots keep to their slabs, and all empty slabs back; sorts the partial slabs so
    /// that the fullest are used first. Returns the slabs given back.
    #[doc(alias = "kmem_cache_shrink")]
    pub fn shrink(&self) -> usize {
        self.cache.shrink(&self.cache.operation(What::Reclaim))
    }

    /// Ends an interval: gives back what the magazines kept beyond their working set. Returns the objects given back.
    pub fn reap(&self) -> u64 {
        self.cache.reap()
    }

    /// Gives the objects that the magazines of `cpus` hold to their slabs: those CPUs have gone.
    pub fn drain(&self, cpus: Range<u32>) {
        self.cache.drain(cpus);
    }

    /// Gives everything back, for good, if no object is in use: later allocations fail with
    /// [`AllocError::Destroyed`].
    ///
    /// # Errors
    /// Objects are in use, or wait for a grace period; the cache goes on as before. [`live`](Self::live) says which. A
    /// [shared](KmemCacheBuilder::merge) one is in use by the others.
    ///
    /// While other threads [destruct](KmemCacheBuilder::dtor) free objects, it waits for them. A destructor that calls it does not wait:
    /// it gets [`Busy`] while any thread destructs free objects of the cache.
    #[doc(alias = "kmem_cache_destroy")]
    pub fn destroy(&self) -> Result<(), Busy> {
        // No other one comes from here on, unless it goes on as before.
        let closed = self.cache.refs().close();
        let first = closed.map_err(|aliases| Busy { live: self.cache.info().used, aliases })?;
        let outcome = self.cache.destroy();
        if first || outcome.is_ok() {
            self.cache.refs().closed(outcome.is_ok());
        }
        outcome
    }

    /// Asks `shrinker` when an allocation would fail at the cache's limit, or for want of memory, for as long as the
    /// registration lives: see [`shrinker`](crate::shrinker).
    pub fn register_shrinker(&self, shrinker: impl Shrinker + 'static) -> Registration {
        self.cache.core().add_shrinker(Box::new(shrinker), Some(&self.cache))
    }

    /// The objects in use: who is alive, when [`destroy`](Self::destroy) says that somebody is. Beside other users of the
    /// cache, and beside a reaper, it may hold objects that were free already and are on their way to their slabs.
    ///
    /// Cost: the magazines are emptied, and the bitmap of every slab is copied under its node's lock.
    pub fn live(&self) -> Live {
        let mut live = Live::new(self.geometry().lead(), self.geometry().stride());
        self.live_into(&mut live);
        live
    }
    /// The same, in place of what was there.
    pub(crate) fn live_into(&self, live: &mut Live) {
        self.cache.live(live);
    }

    /// The numbers now.
    pub fn info(&self) -> CacheInfo {
        self.cache.info()
    }
}

impl Drop for KmemCache {
    fn drop(&mut self) {
        self.cache.refs().leave();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Those that do are refused on the process's malloc (`Uslab::build`).
    #[test]
    fn a_builder_says_whether_pages_outlive_readers() {
        let builder = || KmemCache::builder("node", 64);
        assert!(builder().type_stable().is_type_stable() && !builder().is_type_stable());
    }

    #[test]
    fn slabs_of_large_objects_may_be_larger() {
        let subsystem = crate::Subsystem::new(crate::Config::default()).unwrap();
        let objects = |builder: KmemCacheBuilder| builder.build_in(&subsystem).unwrap().geometry().objects();
        let builder = || KmemCache::builder("object", 20 << 10);
        assert_eq!((objects(builder()), objects(builder().max_order(5))), (1, 6));
    }

    /// What is sampled leaves the inlined path.
    #[test]
    fn only_caches_that_may_be_sampled_look_at_each_free() {
        for (guard_every, size, expected) in
            [(0, 64, false), (1, 64, true), (1, 4096, true), (1, 8192, false)]
        {
            let config = crate::Config { guard_every, ..crate::Config::default() };
            let subsystem = crate::Subsystem::new(config).unwrap();
            let cache = KmemCache::builder("object", size).build_in(&subsystem).unwrap();
            assert_eq!(cache.cache().config().guarded, expected, "{guard_every}, {size}");
        }
    }
}
