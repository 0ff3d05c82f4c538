//! Accounts, which limit the memory of several caches together (see [`Account`]).

use super::Charges;
use crate::cache::Cache;
use crate::cache::core::Core;
use std::collections::BTreeMap;
use std::sync::Arc;
use uslab_buddy::Gfp;
use uslab_magazine::Operation;
use uslab_magazine::sync::Ordering::{Acquire, Relaxed};
use uslab_magazine::tracepoints::OperationKind;

/// An account limits and counts the memory of several caches, for example the caches of a tenant or of a program
/// component. An account corresponds to a memory control group of Linux, but it charges caches instead of processes.
///
/// The account is charged for a slab's pages when the slab is made, and uncharged when the slab is freed. Because slabs
/// are charged whole, an account is exact about memory, and the fast paths have no extra cost. A free object counts
/// towards the charge until its slab is empty and freed. Since 5.9, Linux charges control groups for each object, from
/// a stock on each CPU, because several tenants share a cache. In uslab, each tenant has separate caches, as in Linux
/// before 5.9.
///
/// At the limit, an allocation first flushes the free objects of the account's other caches, then calls the
/// [shrinkers](crate::shrinker) of each cache. If no memory becomes free, the allocation fails with
/// [`AccountLimit`](crate::AllocError::AccountLimit), and [`acquire`](crate::KmemCache::acquire) waits until pages are
/// freed. While the account has waiters, all its caches work without magazines, and free each slab that becomes empty.
/// The waiters of one cache are served in order. Waiters of different caches have no fixed order.
///
/// ```
/// use uslab::cache::Account;
/// use uslab::{AllocError, Gfp, KmemCache};
///
/// let tenant = Account::new(64 << 10)?;
/// let requests = KmemCache::builder("request", 4096).account(&tenant).build()?;
/// let replies = KmemCache::builder("reply", 1024).account(&tenant).build()?;
/// let mut held = Vec::new();
/// let refused = loop {
///     match requests.alloc_block(Gfp::KERNEL) {
///         Ok(request) => held.push(request),
///         Err(error) => break error,
///     }
/// };
/// assert_eq!((refused, tenant.charged()), (AllocError::AccountLimit { bytes: 64 << 10 }, 64 << 10));
/// drop(held);
/// assert!(replies.alloc_block(Gfp::KERNEL).is_ok()); // the empty slabs of `requests` make room
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "memcg")]
pub struct Account {
    pub(crate) charges: Arc<Charges>,
    core: Arc<Core>,
}

impl Account {
    pub(crate) fn is_of(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }
    pub(crate) fn on(core: &Arc<Core>, limit: usize) -> Self {
        Self { charges: Arc::new(Charges::new(limit)), core: core.clone() }
    }
    /// Sets the account's name in reports, `account` by default. `named` takes effect only on an account that has no
    /// cache and was not cloned; other accounts keep their name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        if let Some(charges) = Arc::get_mut(&mut self.charges) {
            charges.name = name.into();
        }
        self
    }
    /// Maximum bytes that the account's caches may use together.
    pub fn limit(&self) -> usize {
        self.charges.limit()
    }
    /// Changes the account's limit, and lets its waiters retry.
    ///
    /// If the charge exceeds the new limit, the call immediately frees free objects and empty slabs of the caches, and
    /// then calls each cache's [shrinkers](crate::shrinker). Slabs with objects in use stay usable, but the caches make
    /// no new slab.
    ///
    /// Cost: the lock of each cache's wait queue. If the new limit is below the charge, the call also costs as much as
    /// an allocation at the limit. The caller must not hold a lock that a shrinker takes.
    ///
    /// ```
    /// use uslab::cache::Account;
    /// use uslab::{Gfp, KmemCache};
    ///
    /// let tenant = Account::new(0)?;
    /// let requests = KmemCache::builder("request", 4096).account(&tenant).build()?;
    /// assert!(requests.alloc_block(Gfp::KERNEL).is_err());
    /// tenant.set_limit(1 << 20);
    /// assert!(requests.alloc_block(Gfp::KERNEL).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_limit(&self, bytes: usize) {
        self.charges.set_limit(bytes);
        if self.charged() > bytes {
            let notify_waiters = || {
                self.shrink();
                (self.charged() <= bytes).then_some(()).ok_or(())
            };
            // The caches keep slabs with objects in use.
            _ = self.core.caches_of_account(&self.charges).fold(notify_waiters(), |result, cache| {
                self.core.shrink_until_success(Gfp::KERNEL, Some(&cache), notify_waiters, result)
            });
        }
        // This call takes each queue's lock, so that a waiter that was just refused reads the new limit afterwards, and
        // tries again.
        self.core.caches_of_account(&self.charges).for_each(|cache| cache.handle_limit_change());
    }
    /// Bytes of all charged slabs now, including slabs that threads are still allocating.
    pub fn charged(&self) -> usize {
        self.charges.bytes.load(Relaxed)
    }
    /// Highest charge so far, including charges for slabs that could not be allocated.
    pub fn peak(&self) -> usize {
        self.charges.peak.get() as usize
    }
    /// Shrinks all caches of the account, as [`KmemCache::shrink`](crate::KmemCache::shrink) does. Returns the number
    /// of slabs freed.
    pub fn shrink(&self) -> usize {
        self.core.shrink_account(&self.core.operation(OperationKind::Reclaim), &self.charges)
    }
}

/// Statistics of an [`Account`] with caches; each number is read at a slightly different time.
///
/// ```
/// use uslab::cache::Account;
/// use uslab::{Config, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let tenant = Account::new_in(&subsystem, 64 << 10).named("tenant-7");
/// let requests = KmemCache::builder("request", 4096).account(&tenant).build_in(&subsystem)?;
/// let info = subsystem.info();
/// assert_eq!((&*info.accounts[0].name, info.accounts[0].limit), ("tenant-7", 64 << 10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AccountInfo {
    /// [Name](Account::named) of the account.
    pub name: String,
    /// Maximum bytes that the account's caches may use together.
    pub limit: u64,
    /// Bytes of all charged slabs now (see [`Account::charged`]).
    pub charged: u64,
    /// Highest charge so far (see [`Account::peak`]).
    pub peak: u64,
    /// Number of slabs that the account refused. An allocation may be refused several times before it succeeds.
    pub refusals: u64,
    /// Number of waiters in the queues of the account's caches.
    pub waiting: u64,
}

impl Cache {
    fn is_charged_to(&self, charges: &Charges) -> bool {
        self.config.account.as_ref().is_some_and(|own| core::ptr::eq(&**own, charges))
    }
    /// Reduces the account's charge by `bytes`, and notifies waiters.
    pub(crate) fn uncharge_account(&self, bytes: usize) {
        let Some(charges) = &self.config.account else { return };
        // Acquire: pairs with the Release of `begin_charge_wait`.
        charges.bytes.fetch_sub(bytes, Acquire);
        if charges.has_charge_waiters() {
            self.core.caches_of_account(charges).for_each(|cache| cache.let_first_waiter_grow());
        }
    }
}

impl Core {
    pub(crate) fn account_infos(&self) -> Vec<AccountInfo> {
        let mut found = BTreeMap::new();
        for cache in self.caches.iter() {
            let Some(charges) = &cache.config.account else { continue };
            let info = found.entry(Arc::as_ptr(charges)).or_insert_with(|| AccountInfo {
                name: charges.name.clone(),
                limit: charges.limit() as u64,
                charged: charges.bytes.load(Relaxed) as u64,
                peak: charges.peak.get(),
                refusals: charges.refusals.get(),
                waiting: 0,
            });
            info.waiting += cache.waiting() as u64;
        }
        found.into_values().collect()
    }
    pub(crate) fn caches_of_account(&self, charges: &Charges) -> impl Iterator<Item = Arc<Cache>> {
        self.caches.iter().filter(|cache| cache.is_charged_to(charges))
    }
    /// Closes and flushes the magazines of all caches of the account, so that its waiters get the free objects.
    pub(crate) fn close_account(&self, op: &Operation, charges: &Charges) {
        self.caches_of_account(charges).for_each(|cache| cache.sync_magazines_with_account());
        self.shrink_account(op, charges);
    }
    /// Frees the unused memory of the account's caches. Returns the number of slabs freed.
    pub(crate) fn shrink_account(&self, op: &Operation, charges: &Charges) -> usize {
        self.refs().filter(|cache| cache.is_charged_to(charges)).map(|cache| cache.shrink(op)).sum()
    }
}
