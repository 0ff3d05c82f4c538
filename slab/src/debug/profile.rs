//! Heap profile: which call stacks allocate how much, and which hold it, from a sample of all allocations.
//!
//! ```
//! use uslab::{Config, Gfp, KmemCache, Subsystem};
//!
//! let subsystem = Subsystem::new(Config::default())?;
//! let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
//! subsystem.start_profile(1)?; // one sample a byte: everything; programs take DEFAULT_RATE
//! let blocks = (0..100).map(|_| inodes.alloc_block(Gfp::KERNEL)).collect::<Result<Vec<_>, _>>()?;
//! let profile = subsystem.profile();
//! assert_eq!((profile.total().live.objects, profile.total().live.bytes), (100, 60_000));
//! drop(blocks);
//! let total = subsystem.profile().total();
//! assert_eq!((total.allocated.objects, total.live.objects), (100, 0));
//! subsystem.stop_profile();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it samples
//!
//! Each CPU counts down the bytes of the objects that it allocates. The object at which the count ends is a *sample*: its call
//! stack is recorded, and a new count is drawn, exponentially distributed with the rate as its mean. So an object of `s` bytes
//! is a sample with probability `p = 1 - exp(-s / rate)`, independent of all earlier allocations. A sample stands for `1 / p`
//! objects and `s / p` bytes.
//!
//! # Bias
//!
//! * The estimates are unbiased. The draws are independent of the program: the expected value of each number, for each stack
//!   and each cache, is the true number. The exception is memory above 4 MiB that is moved because it cannot be resized:
//!   `allocated` counts it twice. In particular it does not matter where magazines are filled, because bytes are sampled and
//!   not misses.
//! * The relative error with `n` samples is about one in the square root of `n`. Each number comes with its `n`
//!   ([`Amount::samples`]). A site with few samples says little.
//! * Bytes are the object's, which is the size class, not the request's.
//! * Only allocations while the profile runs are seen. Objects that a [`Mempool`](crate::Mempool) or
//!   [`Prefilled`](crate::Prefilled) stock keeps count as allocated by the call that made the stock keep them, until the stock
//!   frees them.
//! * A thread that is interrupted within a count may undo a count of the interrupting thread. The next sample comes some bytes
//!   late then; which object it is stays as random as before.
//! * There is room for some 65,000 live samples and 16,000 stacks. Samples beyond that are [counted](Profile::lost), and
//!   missing.
//!
//! # What it costs
//!
//! Without a running profile: a load and a branch for each operation after a miss. The inlined paths have no instruction for it.
//!
//! A running profile closes the inlined paths of allocations ([`close_inlined`](uslab_magazine::Table::close_inlined)): they
//! miss, and the slow path counts bytes and uses the same stack of the same CPU. For [`Malloc`](crate::Malloc) with a rate of
//! 64 KiB and more, that is all: 55 instructions, 2 ns, per allocation under the preload library (x86-64), and none per free.
//! The samples have separate memory there, outside the pages for which frees find classes: so the inlined path of a free misses
//! for a sample, and serves all other objects. Such a sample takes a page or more, and counts as no object of its class in any
//! other report.
//!
//! Frees of object caches name the cache and do not check the address. So for them, for lower rates, with limited addresses
//! (`RLIMIT_AS`) and with checked frees, the inlined frees are closed, too: some 30 ns for an allocation and its free. A free
//! then reads a byte that says if the object's page has a sample.
//!
//! A [written](Profile::pprof) profile has addresses. Symbols are looked up outside the program, because debug information
//! takes tens of megabytes.
//!
//! A sample takes some microseconds, most of it for the call stack, which is negligible at [`DEFAULT_RATE`]. Starting and
//! stopping take one fence each.
//!
//! # Frees
//!
//! An object that was taken from one of a malloc's [caches](crate::Malloc::caches) directly must be freed to that cache to be
//! seen. A sample is recorded before its user gets the object, and forgotten before another user can get it. Both operations
//! see the running profile, which started before the sample was taken, and at its start no inlined operation was still running.
//! So after everything is freed, exactly nothing is live.

mod mappings;
mod noted;
mod own;
#[cfg(feature = "profile")]
mod pprof;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::debug::corruption::CorruptionKind;
use crate::debug::stacks::CallStack;
use core::fmt;
use core::ptr::NonNull;
#[cfg(feature = "stacks")]
use libm::{expm1, log};
use noted::{Live, Noted, Site};
use own::LIVE;
pub(crate) use own::{Own, PLACE};
use std::io::{self, Write};
use std::time::SystemTime;
use uslab_magazine::sync::fork::{ForkLock, ForkMutex};
use uslab_magazine::sync::unseen::AtomicU8;
use uslab_magazine::sync::{AtomicU32, Counter, MODEL, Ordering::Relaxed, Rank, planted};

#[cfg(not(feature = "stacks"))]
fn log(of: f64) -> f64 {
    of.ln()
}
#[cfg(not(feature = "stacks"))]
fn expm1(of: f64) -> f64 {
    of.exp_m1()
}

/// Default mean number of bytes between two samples: 512 KiB, as in gperftools and jemalloc.
pub const DEFAULT_RATE: usize = 512 << 10;

/// Most stacks of a profile.
const SITES: usize = if cfg!(shuttle) { 1 << 4 } else { 1 << 14 };
/// Most CPUs with a separate count.
const COUNTS: usize = 64;
/// Lowest rate at which the samples of a malloc have separate memory, at least a page each: at most a sixteenth more memory.
pub(crate) const OWN_MEMORY: usize = 64 << 10;
/// Bytes of a cache's name that are kept.
const NAME: usize = 39;
/// Fractions of an object in which objects are counted.
const PARTS: f64 = 65_536.0;

/// Reason why a profile did not start.
///
/// ```
/// use uslab::profile::NotStarted;
/// use uslab::{Config, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// subsystem.start_profile(4096)?;
/// assert_eq!(subsystem.start_profile(4096), Err(NotStarted::Runs));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotStarted {
    /// Another profile is running.
    Runs,
    /// The kernel refused the fence that closes inlined paths (`membarrier`).
    Fence,
    /// There is no memory for the records.
    Memory,
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runs => "a profile runs already",
            Self::Fence => "the kernel refused a membarrier: inlined paths cannot be closed",
            Self::Memory => "no memory for the samples of a profile",
        })
    }
}
impl core::error::Error for NotStarted {}

/// An estimate, with the number of samples that it is based on.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// subsystem.start_profile(1)?; // each byte is drawn, so the estimate is exact
/// let _block = inodes.alloc_block(Gfp::KERNEL)?;
/// let profile = subsystem.profile();
/// let amount = profile.total().live;
/// assert_eq!((amount.samples, amount.objects, amount.bytes), (1, 1, 600));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Amount {
    /// Number of sampled objects.
    pub samples: u64,
    /// Estimated number of objects.
    pub objects: u64,
    /// Estimated bytes of the objects.
    pub bytes: u64,
}

/// Allocations from one cache by one call stack.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// subsystem.start_profile(1)?; // each byte is drawn, so the estimate is exact
/// let _block = inodes.alloc_block(Gfp::KERNEL)?;
/// let profile = subsystem.profile();
/// let sample = &profile.samples[0];
/// assert_eq!((&*sample.cache, sample.live.bytes, sample.allocated.bytes), ("inode", 600, 600));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// The cache's name, its first 39 bytes; `large` for blocks of pages and `huge` for mappings.
    pub cache: String,
    /// Call stack of the allocation; empty without the cargo feature `stacks`.
    pub stack: CallStack,
    /// Allocated since the profile started.
    pub allocated: Amount,
    /// Allocated since then and still in use.
    pub live: Amount,
}

/// A snapshot of the heap profile.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// subsystem.start_profile(1)?; // each byte is drawn, so the estimate is exact
/// let _block = inodes.alloc_block(Gfp::KERNEL)?;
/// let profile = subsystem.profile();
/// assert_eq!((profile.rate, profile.samples.len(), profile.lost), (1, 1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// Mean number of bytes between two samples; 0 if no profile was ever started.
    pub rate: usize,
    /// Samples by cache and call stack, the most live bytes first.
    pub samples: Vec<Sample>,
    /// Samples that were dropped for lack of room.
    pub lost: u64,
}

/// Sums over all stacks.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// subsystem.start_profile(1)?; // each byte is drawn, so the estimate is exact
/// let _block = inodes.alloc_block(Gfp::KERNEL)?;
/// let profile = subsystem.profile();
/// drop(_block);
/// let total = subsystem.profile().total();
/// assert_eq!((total.allocated.objects, total.live.objects), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Total {
    /// Allocated since the profile started.
    pub allocated: Amount,
    /// Allocated since then and still in use.
    pub live: Amount,
}

impl core::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), |sum, amount| Self {
            samples: sum.samples + amount.samples,
            objects: sum.objects + amount.objects,
            bytes: sum.bytes + amount.bytes,
        })
    }
}

impl Profile {
    /// Sums over all stacks.
    pub fn total(&self) -> Total {
        Total {
            allocated: self.samples.iter().map(|sample| sample.allocated).sum(),
            live: self.samples.iter().map(|sample| sample.live).sum(),
        }
    }

    /// Writes a line for each stack, in the format of flame graph tools: `cache;outermost;...;innermost bytes`. Stacks with 0
    /// `bytes` are omitted. Frames are code addresses, `/usr/bin/app+0x52a0`: bytes behind the file's first segment. The
    /// command `uslab flame` symbolises them.
    ///
    /// # Errors
    /// Errors of `into`.
    ///
    /// ```
    /// use uslab::{Config, Gfp, KmemCache, Subsystem};
    ///
    /// let subsystem = Subsystem::new(Config::default())?;
    /// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
    /// subsystem.start_profile(1)?;
    /// let _block = inodes.alloc_block(Gfp::KERNEL)?;
    /// let mut file = vec![];
    /// subsystem.profile().folded(|sample| sample.live.bytes, &mut file)?;
    /// assert!(file.starts_with(b"inode;") && file.ends_with(b" 600\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn folded(&self, bytes: impl Fn(&Sample) -> u64, mut into: impl Write) -> io::Result<()> {
        let mappings = mappings::mappings();
        for sample in self.samples.iter().filter(|sample| bytes(sample) > 0) {
            write!(into, "{}", sample.cache)?;
            for call in sample.stack.frames().iter().rev().map(|at| at - 1) {
                match mappings::position(&mappings, call).map(|at| &mappings[at]) {
                    Some(of) => write!(into, ";{}+{:#x}", of.file.replace([';', '\n'], ":"), call - of.base)?,
                    None => write!(into, ";{call:#x}")?,
                }
            }
            writeln!(into, " {}", bytes(sample))?;
        }
        Ok(())
    }
}

/// Number of samples in each page, modulo 256 MiB: pages that far apart share a counter. It saturates at 255. Shared by all
/// subsystems.
static MARKED: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

fn mark_of(address: usize) -> &'static AtomicU8 {
    &MARKED[address / uslab_buddy::PAGE_SIZE % MARKED.len()]
}
/// Returns `true` if the page may have a sample.
#[inline(always)]
fn is_marked(address: usize) -> bool {
    // Relaxed: the mark was made before the object was handed out, and the freeing thread has synchronised with that.
    MODEL || mark_of(address).load(Relaxed) > 0
}
/// Changes the page's number of samples by one.
fn mark(address: usize, more: bool) {
    let mark = mark_of(address);
    // Relaxed: a counter; it orders nothing.
    let mut now = mark.load(Relaxed);
    while now != u8::MAX
        && let Err(other) =
            mark.compare_exchange_weak(now, if more { now + 1 } else { now - 1 }, Relaxed, Relaxed)
    {
        now = other;
    }
}

/// Bytes left until a CPU's next sample. A hint: a lost update delays a sample.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Countdown {
    left: Counter,
    random: Counter,
}

impl Countdown {
    /// Subtracts `bytes` and allocates; `None` if the count ends here or `alloc` fails.
    #[inline(always)]
    pub(crate) fn spend<T>(&self, bytes: u64, alloc: impl FnOnce() -> Option<T>) -> Option<T> {
        let left = self.left.get();
        if left <= bytes {
            return None;
        }
        let memory = alloc()?;
        self.left.set(left - bytes);
        Some(memory)
    }
    /// Draws the number of bytes until the end of the next sample.
    fn draw(&self, rate: u64) -> u64 {
        // Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
        self.random.set(self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut word = self.random.get();
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        // In (0, 1].
        let unit = ((word >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        ((-log(unit) * rate as f64).ceil() as u64).max(1)
    }
}

/// Profiler of a subsystem. See the [module](self).
#[derive(Debug)]
pub(crate) struct Profiler {
    /// Number of the running profile, from 1; 0 if none is running.
    run: AtomicU32,
    /// 1 if the running profile has separate memory for samples of a malloc; and the start of that memory, 0 if it was never
    /// made.
    own: Counter,
    base: Counter,
    countdowns: Box<[Countdown]>,
    noted: ForkMutex<Noted>,
}

impl Profiler {
    pub(crate) fn new(cpus: usize) -> Self {
        let countdown = |_| Countdown { left: Counter::new(0), random: Counter::new(0) };
        Self {
            run: AtomicU32::new(0),
            own: Counter::new(0),
            base: Counter::new(0),
            countdowns: (0..cpus.clamp(1, COUNTS)).map(countdown).collect(),
            noted: ForkMutex::new(Rank::Profile, Noted::nothing()),
        }
    }
    pub(crate) fn lock(&self) -> &dyn ForkLock {
        &self.noted
    }

    /// Starts a profile. If samples of a malloc are to have separate memory, `own` makes it, unless it exists already. `close`
    /// closes the inlined paths, including those of frees if there is no separate memory, and returns `true` on success.
    pub(crate) fn start(
        &self,
        rate: usize,
        seed: Option<u64>,
        own: Option<impl FnOnce() -> Option<Own>>,
        close: impl FnOnce(bool) -> bool,
    ) -> Result<(), NotStarted> {
        let rate = rate.max(1) as u64;
        // The previous records are dropped after the lock is released.
        let mut fresh = Noted::with_room(rate).ok_or(NotStarted::Memory)?;
        let wants = own.is_some();
        fresh.own = own.filter(|_| self.base.get() == 0).and_then(|make| make());
        let seed = seed.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            now.as_nanos() as u64 ^ core::ptr::from_ref(self).addr() as u64
        });
        let mut noted = self.noted.lock();
        // Relaxed: only written under the lock.
        if self.run.load(Relaxed) > 0 {
            return Err(NotStarted::Runs);
        }
        // Before the fence: a thread that sees the profile running sees these.
        for (cpu, countdown) in self.countdowns.iter().enumerate() {
            countdown.random.set(seed.wrapping_add((cpu as u64) << 32));
            countdown.left.set(countdown.draw(rate));
        }
        if noted.own.is_some() {
            core::mem::swap(&mut noted.own, &mut fresh.own);
        }
        let own = wants && fresh.own.is_some();
        self.own.set(own.into());
        if !close(!own) {
            self.own.set(0);
            noted.own = fresh.own.take();
            return Err(NotStarted::Fence);
        }
        self.base.set(fresh.own.as_ref().map_or(0, Own::base) as u64);
        fresh.run = noted.run.wrapping_add(1).max(1);
        core::mem::swap(&mut *noted, &mut fresh);
        let is_marked = |live: &&Live| live.address > 0 && !self.is_own(!live.address);
        fresh.live.iter().filter(is_marked).for_each(|live| mark(!live.address, false));
        // Relaxed: a thread that has a sample has seen this store, and the freeing thread gets the sample from that one.
        self.run.store(noted.run, Relaxed);
        Ok(())
    }
    /// Stops the running profile, if any; `open` opens the inlined paths.
    pub(crate) fn stop(&self, open: impl FnOnce()) -> bool {
        let _one_at_a_time = self.noted.lock();
        // Relaxed: only written under the lock. It is cleared before the paths open: their frees are not seen.
        if self.run.load(Relaxed) == 0 {
            return false;
        }
        self.run.store(0, Relaxed);
        self.own.set(0);
        open();
        true
    }
    /// Snapshot of the running profile, or of the last one.
    pub(crate) fn profile(&self) -> Profile {
        // Nothing is allocated under the lock; sites added meanwhile are left out.
        let count = self.noted.lock().sites.len();
        let mut sites = Vec::with_capacity(count);
        let (rate, lost) = {
            let noted = self.noted.lock();
            sites.extend(noted.sites.iter().take(count));
            (noted.rate as usize, noted.lost)
        };
        let sample = |site: &Site| Sample {
            cache: String::from_utf8_lossy(&site.cache[..site.len.into()]).into_owned(),
            stack: CallStack::of_number(site.stack),
            allocated: site.allocated.amount(),
            live: site.live.amount(),
        };
        let mut samples: Vec<_> = sites.iter().map(sample).collect();
        samples.sort_by_key(|sample| core::cmp::Reverse((sample.live.bytes, sample.allocated.bytes)));
        Profile { rate, samples, lost }
    }

    /// Returns `true` if a profile is running: then every operation has to call it.
    #[inline(always)]
    pub(crate) fn runs(&self) -> bool {
        // Relaxed: see `start`.
        !cfg!(loom) && self.run.load(Relaxed) > 0
    }
    /// Returns `true` if the running profile only needs to see allocations of a malloc.
    #[inline(always)]
    pub(crate) fn counts_only(&self) -> bool {
        self.own.get() > 0
    }
    #[inline(always)]
    pub(crate) fn countdown(&self, cpu: u32) -> &Countdown {
        &self.countdowns[(cpu as usize).min(self.countdowns.len() - 1)]
    }
    /// Counts an allocation of a malloc on `cpu`; returns separate memory if it is a sample.
    #[inline(always)]
    pub(crate) fn count<'a>(
        &self,
        cpu: impl FnOnce() -> u32,
        bytes: usize,
        cache: impl FnOnce() -> &'a str,
    ) -> Option<NonNull<u8>> {
        // Relaxed: see `start`.
        let run = self.run.load(Relaxed);
        let countdown = self.countdown(cpu());
        if countdown.spend(bytes as u64, || Some(())).is_some() {
            return None;
        }
        self.own_sample(run, countdown, bytes, cache())
    }
    #[cold]
    #[inline(never)]
    fn own_sample(&self, run: u32, countdown: &Countdown, bytes: usize, cache: &str) -> Option<NonNull<u8>> {
        let stack = CallStack::save();
        let mut noted = self.noted.lock();
        // Relaxed: it does not change while the lock is held.
        if self.run.load(Relaxed) != run || run == 0 {
            return None;
        }
        countdown.left.set(countdown.draw(noted.rate));
        let memory = noted.own.as_mut().and_then(|own| own.alloc(bytes));
        let done = memory.and_then(|memory| noted.note(memory.addr().get(), bytes as u64, cache, stack));
        if done.is_none() {
            noted.lost += 1;
        }
        memory
    }
    /// Returns `true` if the memory is a sample's separate memory.
    pub(crate) fn holds(&self, memory: NonNull<u8>) -> bool {
        self.is_own(memory.addr().get())
    }
    fn is_own(&self, address: usize) -> bool {
        let base = self.base.get() as usize;
        base > 0 && address.wrapping_sub(base) < LIVE * PLACE
    }
    /// Size of such a sample in bytes, or the error of an address that is none.
    pub(crate) fn size_of(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let noted = self.noted.lock();
        noted.own.as_ref().map_or(Err(CorruptionKind::Foreign), |own| own.size_of(memory.addr().get()))
    }
    /// Frees such a sample.
    pub(crate) fn free(&self, memory: NonNull<u8>) -> Result<(), CorruptionKind> {
        let (mut noted, address) = (self.noted.lock(), memory.addr().get());
        noted.own.as_mut().map_or(Err(CorruptionKind::Foreign), |own| own.free(address))?;
        // Relaxed: see `start`. After the end of a profile its record stays.
        if self.run.load(Relaxed) > 0 {
            noted.forget(address);
        }
        Ok(())
    }
    /// Counts memory that is about to be handed out on `cpu`.
    #[inline(always)]
    pub(crate) fn allocated(
        &self,
        cpu: impl FnOnce() -> u32,
        memory: NonNull<u8>,
        bytes: usize,
        cache: &str,
    ) {
        if self.runs() {
            // Relaxed: see `start`.
            let run = self.run.load(Relaxed);
            let countdown = self.countdown(cpu());
            if countdown.spend(bytes as u64, || Some(())).is_none() {
                self.sample(run, countdown, memory, bytes, cache);
            }
        }
    }
    #[cold]
    #[inline(never)]
    fn sample(&self, run: u32, countdown: &Countdown, memory: NonNull<u8>, bytes: usize, cache: &str) {
        let stack = CallStack::save();
        let mut noted = self.noted.lock();
        // Relaxed: it does not change while the lock is held.
        let is_of_it = self.run.load(Relaxed) == run;
        planted!("a sample is recorded in a later profile" => let is_of_it = true);
        if !is_of_it {
            return;
        }
        countdown.left.set(countdown.draw(noted.rate));
        let address = memory.addr().get();
        // The object was never freed: its cache was destroyed with it.
        if noted.forget(address) {
            mark(address, false);
        }
        match noted.note(address, bytes as u64, cache, stack) {
            Some(()) => mark(address, true),
            None => noted.lost += 1,
        }
    }

    /// Forgets a sample at its free, before the memory can be reused.
    #[inline(always)]
    pub(crate) fn freed(&self, memory: NonNull<u8>) {
        if self.runs() && is_marked(memory.addr().get()) {
            self.forget(memory);
        }
    }
    #[cold]
    #[inline(never)]
    fn forget(&self, memory: NonNull<u8>) {
        let address = memory.addr().get();
        if self.noted.lock().forget(address) {
            mark(address, false);
        }
    }
}
