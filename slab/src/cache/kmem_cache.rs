//! The untyped cache and its builder. The cache hands out objects as raw pointers, or as safe [`Block`](crate::Block)s.

use super::alloc::BULK_BATCH;
use super::core::Core;
use super::hooks::{HeldBytes, Hook, Hooks};
use super::info::CacheInfo;
use super::per_cpu::PerCpu;
use super::{Account, Acquiring, Cache, CacheConfig, Owner};
use crate::cache::live::Live;
use crate::cache::per_cpu::Magazines;
use crate::debug::flags::SlabDebug;
use crate::error::{AllocError, Busy, CacheError};
use crate::geometry::{Geometry, OrderRule, SPACING, WORD};
use crate::harden::{CANARY_BYTES, Harden, quarantine};
use crate::memory::slab::{Constructed, MAX_INDIVIDUALLY_CONSTRUCTED};
use crate::reclaim::shrinker::{Registration, Shrinker};
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use uslab_buddy::Gfp;
use uslab_buddy::PAGE_SIZE;
use uslab_magazine::sync::MODEL;
use uslab_magazine::tracepoints::OperationKind;

/// A cache of objects of one size and alignment.
///
/// Dropping the handle frees all memory of the cache. If objects are still in use, the cache continues to exist without
/// a handle, and reports show it. A cache without a handle works without magazines: each later free returns its object
/// directly to the slab. The free of the last object destroys the cache.
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
    /// Owner of the cache. Dropping the last handle drops the owner, which destroys the cache.
    _owner: Arc<Owner>,
    /// The name that the builder requested, if the cache is shared under another name.
    alias: Option<Box<str>>,
}

/// Limit of a cache's memory. A limit is charged by slab, which costs nothing on the fast paths. A limit is rounded up
/// to whole slabs of the cache's order, because whole slabs are charged.
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
    /// Maximum number of slabs.
    Slabs(u32),
    /// Maximum number of objects, which the cache spreads evenly over as few slabs as possible. The limit is exact if
    /// one slab holds all objects; otherwise the cache may have up to one extra object per slab. A slab may hold fewer
    /// objects when memory is short.
    Objects(u64),
    /// Maximum number of bytes of slabs, plus known memory that objects [own](KmemCacheBuilder::holds) outside their
    /// slots.
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

/// Builder of a [`KmemCache`].
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
#[must_use = "a builder creates no cache until it is built"]
pub struct KmemCacheBuilder {
    name: String,
    size: usize,
    align: usize,
    hooks: Option<Hooks>,
    whole_slabs: bool,
    holds: HeldBytes,
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
    pub(crate) fn size(self, size: usize) -> Self {
        Self { size, ..self }
    }
    /// Sets the objects' alignment in bytes, a power of two; at least 8.
    pub fn align(mut self, align: usize) -> Self {
        self.align = self.align.max(align);
        self
    }
    /// Aligns objects to a cache line; smaller objects are aligned to the fraction of a line that they fit.
    #[doc(alias = "SLAB_HWCACHE_ALIGN")]
    pub fn hardware_align(self) -> Self {
        let align = Geometry::hardware_align(self.size);
        self.align(align)
    }
    /// Sets the constructor, which gets the object's zeroed bytes when the object first leaves its slab. Later
    /// allocations do not run the constructor, because a free object keeps the contents that its last user left.
    ///
    /// The constructor runs in the allocating thread, with no lock held, and may panic.
    pub fn ctor(self, construct: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        self.try_ctor(move |object| {
            construct(object);
            true
        })
    }
    /// Sets a constructor that may fail, for instance if memory is short. The constructor returns `true` if it has
    /// constructed the object. If the constructor returns `false`, the allocation fails with
    /// [`AllocError::Constructor`], and the next allocation tries again.
    pub fn try_ctor(mut self, construct: impl Fn(&mut [u8]) -> bool + Send + Sync + 'static) -> Self {
        let hook = self.hook(construct);
        self.hooks_mut().construct = hook;
        self
    }
    /// Sets the destructor, which gets the bytes of a free object as its last user left them. The destructor must free
    /// any memory that the constructor allocated.
    ///
    /// The destructor runs when the cache is shrunk, reaped, destroyed or dropped. The destructor also runs in any
    /// thread whose allocation, free or [reaper](crate::reaper) frees slabs. No lock is held while the destructor runs.
    /// A panic ends only the current run of the destructor.
    ///
    /// An object with a destructor but no constructor starts zeroed.
    pub fn dtor(mut self, destruct: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        let hook = self.hook(destruct);
        self.hooks_mut().destruct = Some(hook);
        self
    }
    /// Constructs all objects of a slab when the slab is made, and destructs them when the slab is freed, as Linux
    /// does. By default an object is constructed when it leaves its slab for the first time, and a shrink or a reap
    /// destructs free objects.
    ///
    /// Cost: the allocation that makes a slab constructs all of its objects, and the memory that they own stays as long
    /// as the slab. In return, allocations find a whole magazine of constructed objects. Slabs of more than 256 objects
    /// are always constructed as a whole.
    pub fn construct_slabs(mut self) -> Self {
        self.whole_slabs = true;
        self
    }
    /// Declares that each constructed object owns `bytes` bytes in addition to its slot, such as a buffer that its
    /// constructor allocates.
    ///
    /// Owned bytes count towards a [limit](Limit::Bytes) in bytes and the [account](Self::account), and
    /// [reports](crate::CacheInfo::held_bytes) show them. CPUs and depots keep fewer objects if each object owns
    /// memory. If the free objects in slabs together own more than [2 MiB](crate::cache::MAX_SURPLUS_BYTES), a free
    /// destructs them.
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
        self.holds = HeldBytes::Declared(bytes);
        self
    }
    /// Sets a function that measures the bytes that an object owns in addition to its slot.
    pub(crate) fn weigh(mut self, weigh: Hook<usize>) -> Self {
        self.holds = HeldBytes::Weighed(weigh);
        self
    }
    fn hook<R>(&self, run: impl Fn(&mut [u8]) -> R + Send + Sync + 'static) -> Hook<R> {
        let size = self.size;
        Hook::new(Box::new(move |object| {
            // SAFETY: only the caller has the object, which has `size` bytes; its pages were zeroed.
            run(unsafe { core::slice::from_raw_parts_mut(object.as_ptr(), size) })
        }))
    }
    fn hooks_mut(&mut self) -> &mut Hooks {
        let no_hooks = || Hooks { construct: Hook::new(Box::new(|_| true)), destruct: None, reset: None };
        self.hooks.get_or_insert_with(no_hooks)
    }
    pub(crate) fn hooks(mut self, hooks: Hooks) -> Self {
        self.hooks = Some(hooks);
        self
    }
    /// Limits the cache's memory. At the limit, an allocation flushes free objects from CPUs before it fails.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }
    /// Charges the cache's slabs to `account`, in addition to the cache's own limit.
    pub fn account(mut self, account: &Account) -> Self {
        self.account = Some(account.clone());
        self
    }
    /// Declares that the objects can be freed when memory is short. The page allocator groups the cache's pages with
    /// other reclaimable pages.
    #[doc(alias = "SLAB_RECLAIM_ACCOUNT")]
    pub fn reclaimable(self) -> Self {
        self.page_flags(Gfp::RECLAIMABLE)
    }
    /// Allocates pages from zone DMA.
    #[doc(alias = "SLAB_CACHE_DMA")]
    pub fn dma(self) -> Self {
        self.page_flags(Gfp::DMA)
    }
    fn page_flags(mut self, flags: Gfp) -> Self {
        self.page_flags |= flags;
        self
    }
    /// Keeps freed pages until a grace period has passed (see [`rcu`](crate::rcu)).
    #[doc(alias = "SLAB_TYPESAFE_BY_RCU")]
    #[cfg(any(not(loom), crossbeam_loom))]
    pub fn type_stable(mut self) -> Self {
        self.type_stable = true;
        self
    }
    /// If `check` is true, each free immediately checks that the object belongs to the cache and is in use, and reports
    /// invalid and double frees (see [`corruption`](crate::corruption)). Unless set here, the subsystem's configuration
    /// applies.
    ///
    /// Cost: a call and a write to a byte outside the slab for each allocation and free, and an eighth of the slabs'
    /// memory.
    #[doc(alias = "SLAB_CONSISTENCY_CHECKS")]
    pub fn check_frees(mut self, check: bool) -> Self {
        self.check_frees = Some(check);
        self
    }
    /// Turns on debug checks of the objects, in addition to the subsystem's [option](crate::Config::slab_debug) for the
    /// cache's name: see [`flags`](crate::debug::flags). A cache with any flag other than `F` does not
    /// [share](Self::merge) slabs.
    ///
    /// Cost, for an object of 64 bytes: with red zones the object takes 80 bytes, and each allocation and free writes
    /// and checks the zones. With poison each allocation and free writes and checks the object. With the flag `U`, each
    /// allocation and free spends some microseconds on recording a call stack, and the object takes 64 more bytes.
    #[doc(alias = "SLAB_RED_ZONE")]
    #[doc(alias = "SLAB_POISON")]
    #[doc(alias = "SLAB_STORE_USER")]
    #[doc(alias = "SLAB_TRACE")]
    #[doc(alias = "SLAB_FAILSLAB")]
    pub fn slab_debug(mut self, flags: SlabDebug) -> Self {
        self.debug |= flags;
        self
    }
    /// Fills each object with zeros when it is freed, so that free memory of the cache contains no user's data. The
    /// option is Linux's `init_on_free`, applied to a single cache.
    ///
    /// A cache with a constructor or a destructor fails to build with [`CacheError::ZeroOnFree`], because its objects
    /// stay constructed. Use a [reset](crate::ObjectCacheBuilder::reset) for constructed objects.
    ///
    /// Cost: each free writes the whole object, and cannot use the inlined path, which costs some nanoseconds.
    #[doc(alias = "init_on_free")]
    pub fn zero_on_free(mut self) -> Self {
        self.zero_on_free = true;
        self
    }
    /// Sets the hardening of this cache. Unless set here, the subsystem's configuration applies.
    pub fn harden(mut self, harden: Harden) -> Self {
        self.harden = Some(harden);
        self
    }
    /// Shares one cache among users that request the same configuration and nearly the same object size. Sizes may
    /// differ by less than a word. Sharing saves partly used slabs and magazines.
    ///
    /// Statistics, reports, and [`destroy`](KmemCache::destroy) then concern all users of the shared cache. Because
    /// statistics and `destroy` concern all users, sharing is off by default.
    ///
    /// A cache with a constructor, a destructor, a limit, an account or a grace period is not shared. A cache that
    /// zeroes on free, or whose [debug flags](Self::slab_debug) exceed `F`, is not shared either.
    #[doc(alias = "slab_merge")]
    pub fn merge(mut self) -> Self {
        self.merge = true;
        self
    }
    fn may_merge(&self) -> bool {
        let is_plain = self.hooks.is_none() && self.limit.is_none() && self.account.is_none();
        self.merge && is_plain && !self.type_stable && !self.zero_on_free
    }
    /// Marks the cache's pages with page class `class` (see [`page_classes`](crate::memory::page_classes)).
    pub(crate) fn page_class(mut self, class: usize) -> Self {
        self.page_class = u16::try_from(class).ok();
        self
    }
    /// Allows slabs of order `order`, even if the subsystem's rule has a smaller maximum.
    pub(crate) fn max_order(mut self, order: u8) -> Self {
        self.max_order = Some(order);
        self
    }
    /// Makes the objects inaccessible, so that only their addresses are useful.
    pub(crate) fn no_access(mut self) -> Self {
        self.no_access = true;
        self
    }
    /// Excludes the cache's objects from guard sampling.
    pub(crate) fn unsampled(self) -> Self {
        Self { unsampled: true, ..self }
    }
    /// Sets the magazine sizes. Unless set here, the subsystem's configuration applies.
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

    /// Returns `true` if guard pages may sample the cache's objects. The guard does not sample objects that stay
    /// constructed, are readable when free, or count towards a limit. A malloc samples its allocations before it calls
    /// the cache.
    fn may_be_sampled(&self, stride: usize) -> bool {
        stride <= PAGE_SIZE
            && self.hooks.is_none()
            && !(self.type_stable || self.no_access || self.unsampled)
            && self.page_class.is_none()
            && self.limit.is_none()
            && self.account.is_none()
    }

    /// Checks the builder's configuration and computes the cache's layout.
    fn plan(&self, core: &Arc<Core>) -> Result<CheckedConfig, CacheError> {
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
        let mut flags = self.debug | core.slab_debug.of(&self.name);
        if self.no_access {
            // Objects without memory cannot be checked.
            flags -= SlabDebug::RED_ZONE | SlabDebug::POISON;
        }
        let checks = harden.is_on() || self.check_frees.unwrap_or(core.check_frees);
        let debug = (flags | if checks { SlabDebug::CHECKS } else { SlabDebug::empty() }).completed();
        let align = if MODEL { self.align.max(SPACING) } else { self.align };
        let max_order = core.rule.max_order.max(self.max_order.unwrap_or(0));
        let rule = OrderRule { max_order, ..core.rule };
        let zone = if debug.contains(SlabDebug::RED_ZONE) { WORD } else { 0 };
        let mut geometry = Geometry::with_red_zones(self.size, align, zone, &rule)?;
        core.note_red_zones(zone > 0);
        let magazines = self.magazines.unwrap_or(core.magazines);
        // Red zones detect more than canaries do.
        harden.canaries &= zone == 0;
        if harden.canaries
            && let Ok(with_tail) = Geometry::with_tail(self.size, CANARY_BYTES, align, &rule)
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
        Ok(CheckedConfig {
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

/// A valid configuration, from which a cache is made.
struct CheckedConfig {
    geometry: Geometry,
    magazines: Magazines,
    debug: SlabDebug,
    harden: Harden,
    zero_on_free: bool,
    merges: Option<Magazines>,
}

impl CheckedConfig {
    fn build(self, builder: KmemCacheBuilder, core: &Arc<Core>) -> Result<KmemCache, CacheError> {
        let Self { geometry, magazines, debug, harden, zero_on_free, merges } = self;
        let (key, stride) = (core.secret.next(), geometry.stride());
        let guarded = core.guard.is_on() && builder.may_be_sampled(stride);
        let config = CacheConfig {
            per_cpu: PerCpu::new(
                core.memory.pages.tables(),
                magazines,
                stride,
                builder.holds.declared_bytes(),
                &builder.name,
                quarantine(&harden, key, stride),
            ),
            name: builder.name.into(),
            limit: builder.limit.map(|limit| limit.slabs(&geometry)),
            constructed: if builder.hooks.is_none()
                || builder.whole_slabs
                || geometry.objects() > MAX_INDIVIDUALLY_CONSTRUCTED
            {
                Constructed::Together
            } else {
                Constructed::OneByOne
            },
            held_limit: match builder.limit {
                Some(Limit::Bytes(bytes)) if !matches!(builder.holds, HeldBytes::Unknown) => {
                    Some(bytes as usize)
                }
                _ => None,
            },
            holds: builder.holds,
            hooks: builder.hooks,
            page_flags: builder.page_flags,
            // Objects between red zones have no page class, because their page's frame identifies
            // them.
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
        // The cache joins sweeps only after it is listed, because only listed caches collect their objects after a
        // sweep.
        cache.config.per_cpu.join_sweeps();
        // The account may already have waiters.
        cache.sync_magazines_with_account();
        let owner = Owner::new(cache.clone());
        if merges.is_some() {
            core.mergeable.push(&owner);
        }
        Ok(KmemCache { cache, _owner: owner, alias: None })
    }
}

impl KmemCache {
    /// Starts a builder of a cache whose objects have `size` bytes.
    #[doc(alias = "kmem_cache_create")]
    pub fn builder(name: impl Into<String>, size: usize) -> KmemCacheBuilder {
        KmemCacheBuilder {
            name: name.into(),
            size,
            align: 0,
            hooks: None,
            whole_slabs: false,
            holds: HeldBytes::Unknown,
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

    /// Requested name of the cache. Reports show a [shared](KmemCacheBuilder::merge) cache under the name that its
    /// first user requested.
    pub fn name(&self) -> &str {
        self.alias.as_deref().unwrap_or(self.cache.name())
    }
    /// Layout of the objects in slabs.
    pub fn geometry(&self) -> &Geometry {
        self.cache.geometry()
    }

    /// Allocates an object of [`object_size`](Geometry::object_size) bytes, which the caller owns until it is freed.
    ///
    /// The object's bytes are unspecified, or zero with [`Gfp::ZERO`]. If the cache has a constructor or a destructor,
    /// the object is in the state that its constructor or its last user left.
    ///
    /// Cost: one operation on this CPU's magazine. Once per magazine, an allocation also takes the lock of the depot or
    /// the node, and occasionally it allocates pages.
    ///
    /// # Errors
    /// Fails if no object is available even after other CPUs' objects were flushed and other caches' empty slabs were
    /// freed. The error names the limit that was reached.
    ///
    /// # Panics
    /// Panics if a constructor panics; the cache loses no object.
    #[inline(always)]
    #[doc(alias = "kmem_cache_alloc")]
    pub fn alloc(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.cache.alloc(gfp)
    }

    /// Allocates an object; if the cache is at its limit, waits until an object is free. Waiters are served in order,
    /// and other allocations do not overtake them: while the cache has waiters, [`alloc`](Self::alloc) and its variants
    /// fail.
    ///
    /// A waiter may get an object of any node, even with [`Gfp::THIS_NODE`]. A dropped future leaves the queue, and an
    /// object that was assigned to it passes to the next waiter. In the child of a fork, a future must be polled again,
    /// because the fork loses its waker.
    ///
    /// Cost: one [`alloc`](Self::alloc) while the cache is below its limit. A cache with waiters works without its
    /// magazines, and takes two locks for each allocation and free.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does, except that it waits at [`AllocError::CacheLimit`] and
    /// [`AllocError::AccountLimit`]. If the limit is below one slab, the call fails without
    /// waiting.
    ///
    /// # Panics
    /// Panics as [`alloc`](Self::alloc) does. A panic of a waker is contained, because the waker runs within another
    /// user's call.
    pub fn acquire(&self, gfp: Gfp) -> Acquiring<'_> {
        self.cache.acquire(gfp)
    }
    /// Allocates an object; if the cache is at its limit, blocks the thread for at most `timeout`. Threads and futures
    /// wait in one queue (see [`acquire`](Self::acquire)).
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does; if `timeout` passes, fails with [`AllocError::CacheLimit`] or
    /// [`AllocError::AccountLimit`].
    ///
    /// # Panics
    /// Panics as [`alloc`](Self::alloc) does.
    pub fn acquire_timeout(&self, gfp: Gfp, timeout: Duration) -> Result<NonNull<u8>, AllocError> {
        self.cache.acquire_timeout(gfp, timeout)
    }

    /// Allocates an object from memory node `node`. If `node` has no memory, another node supplies the object, unless
    /// `gfp` has [`Gfp::THIS_NODE`]. The cache [counts](CacheInfo::other_node_allocs) allocations that another node
    /// supplies.
    ///
    /// Cost: one [`alloc`](Self::alloc) for the node of this CPU. Other nodes, or [`Gfp::THIS_NODE`], cost the node's
    /// lock.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does.
    #[doc(alias = "kmem_cache_alloc_node")]
    pub fn alloc_node(&self, gfp: Gfp, node: u32) -> Result<NonNull<u8>, AllocError> {
        self.cache.alloc_node(gfp, node)
    }

    /// Fills all slots of `out` with objects, or none. The call takes objects of this CPU and the depot first, then
    /// objects of the slabs, many per lock hold.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does, and leaves all slots of `out` at `None`. A request for more objects than
    /// the cache or its pages can ever hold fails immediately ([`AllocError::CacheLimit`], [`AllocError::TooLarge`]).
    ///
    /// # Panics
    /// Panics as [`alloc`](Self::alloc) does, and leaves all slots of `out` at `None`.
    #[doc(alias = "kmem_cache_alloc_bulk")]
    pub fn alloc_bulk(&self, gfp: Gfp, out: &mut [Option<NonNull<u8>>]) -> Result<(), AllocError> {
        self.cache.alloc_bulk(gfp, out)
    }

    /// Frees an object without touching its bytes, which keep what the last user wrote.
    ///
    /// A free costs the same as [`alloc`](Self::alloc).
    ///
    /// # Safety
    /// `object` must have been allocated from this cache, and must not be used after this call. If the cache has a
    /// constructor, the caller must leave the object in the state that its next user expects.
    #[inline(always)]
    #[doc(alias = "kmem_cache_free")]
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: by contract, the object belongs to this cache and is no longer used.
        unsafe { self.cache.free(object) };
    }

    /// Reports the use of an object to models, which check that its page is allocated. In other builds, the call does
    /// nothing.
    #[inline(always)]
    pub(crate) fn touch(&self, object: NonNull<u8>) {
        let pages = &self.cache.core().memory.pages;
        if MODEL && let Some(pfn) = pages.pfn_of(object.as_ptr()) {
            pages.frame(pfn).touch();
        }
    }

    /// Frees many objects.
    ///
    /// # Safety
    /// Each object must fulfil the safety conditions of [`free`](Self::free).
    #[doc(alias = "kmem_cache_free_bulk")]
    pub unsafe fn free_bulk(&self, objects: impl IntoIterator<Item = NonNull<u8>>) {
        for object in objects {
            // SAFETY: by contract, each object belongs to this cache and is no longer used.
            unsafe { self.cache.free(object) };
        }
    }

    /// Allocates `n` objects, each wrapped in an owner that frees the object on drop. If fewer than `n` objects are
    /// available, allocates none.
    pub(crate) fn alloc_owned_objects<T>(
        &self,
        gfp: Gfp,
        n: usize,
        owner: impl Fn(NonNull<u8>) -> T,
    ) -> Result<Vec<T>, AllocError> {
        self.cache.check_object_limit(n)?;
        let mut owners = Vec::new();
        let refused = |_| AllocError::Refused { bytes: n.saturating_mul(size_of::<T>()) };
        owners.try_reserve_exact(n).map_err(refused)?;
        let mut batch = [None; BULK_BATCH];
        while owners.len() < n {
            let batch = &mut batch[..BULK_BATCH.min(n - owners.len())];
            self.alloc_bulk(gfp, batch)?;
            owners.extend(batch.iter().flatten().map(|object| owner(*object)));
        }
        Ok(owners)
    }

    /// Frees an object after a grace period. A reader that was [pinned](crate::rcu::pin) before the call and has found
    /// the object may read the object until the reader unpins.
    ///
    /// Objects wait in batches; the whole subsystem has one batch per CPU. [`reap`](Self::reap),
    /// [`shrink`](Self::shrink) and [`destroy`](Self::destroy) of any cache flush the batches that are not full. Until
    /// the object is freed, it counts as used.
    ///
    /// Cost: the lock of this CPU's batch; once in 64 objects also a call of the collector, which allocates from the
    /// global allocator. If the cache has waiters at a limit, the call also takes the locks of all CPUs' batches, and
    /// wakes the sleeping threads.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`free`](Self::free), but a reader pinned before the object was
    /// unpublished may still read it.
    #[doc(alias = "kfree_rcu")]
    #[doc(alias = "call_rcu")]
    #[cfg(any(not(loom), crossbeam_loom))]
    pub unsafe fn free_deferred(&self, object: NonNull<u8>) {
        self.cache.core().defer(object);
    }

    /// Flushes the objects on CPUs and in depots to their slabs, and frees all empty slabs. Sorts the partial slabs so
    /// that the fullest slabs are used first. Returns the number of slabs freed.
    #[doc(alias = "kmem_cache_shrink")]
    pub fn shrink(&self) -> usize {
        self.cache.shrink(&self.cache.operation(OperationKind::Reclaim))
    }

    /// Ends a working-set interval, and flushes objects that the magazines kept beyond their working set. Returns the
    /// number of objects flushed.
    pub fn reap(&self) -> u64 {
        self.cache.reap()
    }

    /// Drains the magazines of the CPUs in `cpus` to the slabs, for instance after these CPUs were taken offline.
    pub fn drain(&self, cpus: Range<u32>) {
        self.cache.drain(cpus);
    }

    /// Destroys the cache if no object is in use, and frees all its memory. Later allocations fail with
    /// [`AllocError::Destroyed`].
    ///
    /// The call waits while other threads [destruct](KmemCacheBuilder::dtor) free objects. If a destructor calls
    /// `destroy`, the call does not wait: it returns [`Busy`] while any thread destructs free objects of the cache.
    ///
    /// # Errors
    /// Fails if objects are in use, or wait for a grace period; the cache then remains usable. [`live`](Self::live)
    /// lists the objects in use. A [shared](KmemCacheBuilder::merge) cache is in use as long as it has other users.
    #[doc(alias = "kmem_cache_destroy")]
    pub fn destroy(&self) -> Result<(), Busy> {
        // From here on no other thread takes a reference, unless the destruction fails.
        let closed = self.cache.refs().close();
        let first = closed.map_err(|aliases| Busy { live: self.cache.info().used, aliases })?;
        let outcome = self.cache.destroy();
        if first || outcome.is_ok() {
            self.cache.refs().closed(outcome.is_ok());
        }
        outcome
    }

    /// Registers a [shrinker](crate::shrinker), which is called before an allocation fails at the cache's limit, and
    /// when memory is short. Dropping the registration removes the shrinker.
    pub fn register_shrinker(&self, shrinker: impl Shrinker + 'static) -> Registration {
        self.cache.core().add_shrinker(Box::new(shrinker), Some(&self.cache))
    }

    /// Snapshot of the objects in use, for instance after [`destroy`](Self::destroy) failed. The snapshot may include
    /// freed objects that have not reached their slabs, if other threads use the cache or the reaper runs.
    ///
    /// Cost: the magazines are drained, and the bitmap of every slab is copied under its node's lock.
    pub fn live(&self) -> Live {
        let mut live = Live::new(self.geometry().lead(), self.geometry().stride());
        self.snapshot_live_objects(&mut live);
        live
    }
    /// Replaces the contents of `live` by a snapshot of the objects in use.
    pub(crate) fn snapshot_live_objects(&self, live: &mut Live) {
        self.cache.live(live);
    }

    /// Snapshot of the cache's numbers.
    pub fn info(&self) -> CacheInfo {
        self.cache.info()
    }
}

/// Functions for the C libraries, which may change in any version.
#[doc(hidden)]
impl KmemCache {
    /// Fast half of [`alloc`](Self::alloc), for callers that tail-call the slow half, `alloc_missed`. `None`
    /// means that the fast path missed, which is not an error.
    #[inline(always)]
    pub fn alloc_inlined(&self, gfp: Gfp) -> Option<NonNull<u8>> {
        self.cache.alloc_inlined(gfp)
    }

    /// Slow half of [`alloc`](Self::alloc), which a caller runs after the fast half missed.
    pub fn alloc_missed(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.cache.alloc_missed(gfp, self.cache.geometry().object_size())
    }

    /// Fast half of [`free`](Self::free); returns `false` on a miss.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free`](Self::free).
    #[inline(always)]
    #[must_use]
    pub unsafe fn free_inlined(&self, object: NonNull<u8>) -> bool {
        // SAFETY: by contract, the object belongs to this cache and is no longer used.
        unsafe { self.cache.free_inlined(object) }
    }

    /// Slow half of [`free`](Self::free), which a caller runs after the fast half missed.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free`](Self::free).
    pub unsafe fn free_missed(&self, object: NonNull<u8>) {
        self.cache.free_missed(object);
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

    /// A process-wide malloc refuses type-stable caches, whose pages wait for readers (`Uslab::build`).
    #[test]
    fn builder_reports_if_its_cache_is_type_stable() {
        let builder = || KmemCache::builder("node", 64);
        assert!(builder().type_stable().is_type_stable() && !builder().is_type_stable());
    }

    #[test]
    fn max_order_enlarges_slabs_of_large_objects() {
        let subsystem = crate::Subsystem::new(crate::Config::default()).unwrap();
        let objects = |builder: KmemCacheBuilder| builder.build_in(&subsystem).unwrap().geometry().objects();
        let builder = || KmemCache::builder("object", 20 << 10);
        assert_eq!((objects(builder()), objects(builder().max_order(5))), (1, 6));
    }

    #[test]
    fn only_caches_with_guard_samples_bypass_the_inlined_free_path() {
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
