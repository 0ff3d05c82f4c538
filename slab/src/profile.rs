//! A heap profile estimates, from a sample of all allocations, the memory that each call stack allocates and still
//! holds.
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
//! # Sampling
//!
//! Each CPU counts down by the bytes of each object that it allocates. The object at which the countdown reaches zero
//! is a *sample*: its call stack is recorded, and a new countdown is drawn. Countdowns are exponentially distributed,
//! with the sampling rate as their mean. An object of `s` bytes is therefore a sample with probability `p = 1 - exp(-s
//! / rate)`, independent of all earlier allocations. A sample represents `1 / p` objects and `s / p` bytes.
//!
//! # Bias
//!
//! * The estimates are unbiased. The draws are independent of the program. The expected value of each number is
//!   therefore the true number, for each stack and each cache. One exception is memory above 4 MiB that moves because
//!   it cannot be resized in place: `allocated` counts it twice. Magazine fills do not bias the estimates, because the
//!   profile samples bytes instead of misses.
//! * The relative error of an estimate from `n` samples is about one divided by the square root of `n`. Each estimate
//!   has its number of samples ([`Amount::samples`]). An estimate from few samples is unreliable.
//! * The profile counts the size of an object's class instead of the requested size.
//! * The profile counts only allocations that happen while it runs. An object in the stock of a
//!   [`Mempool`](crate::Mempool) or [`Prefilled`](crate::Prefilled) counts as allocated until the stock frees it. The
//!   call that added the object to the stock counts as the allocating call.
//! * If a thread is interrupted between reading and writing a countdown, it may undo the update of another thread. A
//!   sample may therefore come some bytes late, but it is no less random.
//! * A profile has room for some 65,000 live samples and 16,000 call stacks. If a profile is full, further samples are
//!   dropped and [counted](Profile::lost).
//!
//! # Cost
//!
//! While no profile runs, each operation that misses the inlined path costs one additional load and branch. The inlined
//! paths contain no instruction for profiles.
//!
//! A running profile closes the inlined paths of allocations ([`close_inlined`](uslab_magazine::Table::close_inlined)).
//! Every allocation then misses. The slow path counts the bytes, and allocates from the CPU's stack. For
//! [`Malloc`](crate::Malloc) with a rate of at least 64 KiB, an allocation under the preload library costs 55 more
//! instructions, or 2 ns (x86-64). A free has no extra cost. At rates of at least 64 KiB, a sampled object gets
//! separate memory, outside the pages whose classes frees can look up. The inlined path of a free therefore misses for
//! samples only, and still frees all other objects. A sample in separate memory takes at least a page. Other reports do
//! not count a sample in separate memory as an object of its class.
//!
//! A free to an object cache names the cache, so the free does not check the address. A profile therefore also closes
//! the inlined frees in four cases: object caches, lower rates, limited addresses (`RLIMIT_AS`) and checked frees. If
//! inlined frees are closed, an allocation together with its free costs some 30 ns more. A free that is not inlined
//! reads a byte that shows whether the object's page has a sample.
//!
//! A [written](Profile::pprof) profile contains addresses instead of symbols. Symbols are looked up outside the
//! program, because debug information takes tens of megabytes.
//!
//! A sample takes some microseconds, mostly for the call stack, which is negligible at [`DEFAULT_RATE`]. Starting or
//! stopping a profile takes one fence.
//!
//! # Frees
//!
//! If an object was allocated directly from one of a malloc's [caches](crate::Malloc::caches), the profile notices its
//! free only if it is freed to that cache. A sample is recorded before its user gets the object, and removed before
//! another user can get the object. The code that records or removes a sample sees that the profile is running, because
//! the profile started before the sample was taken. No operation on an inlined path is still running when the profile
//! has started. After all objects are freed, the profile therefore has no live sample.

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
use noted::{LiveObjects, Records, Site};
use own::MAX_LIVE_SAMPLES;
pub(crate) use own::{MAX_SAMPLE_BYTES, SampleMemory};
use std::io::{self, Write};
use std::time::SystemTime;
use uslab_magazine::sync::fork::{ForkLock, ForkMutex};
use uslab_magazine::sync::unseen::AtomicU8;
use uslab_magazine::sync::{AtomicU32, Counter, MODEL, Ordering::Relaxed, Rank};

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

const MAX_PROFILE_SITES: usize = if cfg!(shuttle) { 1 << 4 } else { 1 << 14 };
const COUNT_STRIPES: usize = 64;
/// Lowest rate at which samples of malloc have separate memory; each sample then takes at least a page. At this rate,
/// separate memory for the samples adds at most a sixteenth to the program's memory.
pub(crate) const SEPARATE_MEMORY_MIN_RATE: usize = 64 << 10;
/// Maximum number of bytes of a cache's name that the profile keeps.
const MAX_CACHE_NAME_BYTES: usize = 39;
/// Number of equal fractions into which the estimates divide an object.
const FIXED_POINT_PARTS_PER_OBJECT: f64 = 65_536.0;

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
    /// Another profile is already running.
    Runs,
    /// The kernel refused the `membarrier` fence that closes the inlined paths.
    Fence,
    /// The system refused memory for the profile's records.
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

/// An estimate of allocated memory, with the number of samples behind it.
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
    /// Estimated number of bytes of the objects.
    pub bytes: u64,
}

/// Estimates of what one call stack allocated from one cache.
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
    /// First 39 bytes of the cache's name. Blocks of pages have the name `large`, and mappings `huge`.
    pub cache: String,
    /// Call stack of the allocation; empty without the cargo feature `stacks`.
    pub stack: CallStack,
    /// Memory allocated since the profile started.
    pub allocated: Amount,
    /// Memory allocated since the profile started and still in use.
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
    /// Mean number of bytes between two samples; 0 if no profile has ever started.
    pub rate: usize,
    /// Samples by cache and call stack, sorted by live bytes in descending order.
    pub samples: Vec<Sample>,
    /// Number of samples that were dropped because the profile was full.
    pub lost: u64,
}

/// Sums of the estimates over all call stacks.
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
    /// Memory allocated since the profile started.
    pub allocated: Amount,
    /// Memory allocated since the profile started and still in use.
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
    /// Returns the sums of the estimates over all call stacks.
    pub fn total(&self) -> Total {
        Total {
            allocated: self.samples.iter().map(|sample| sample.allocated).sum(),
            live: self.samples.iter().map(|sample| sample.live).sum(),
        }
    }

    /// Writes a line for each call stack, in the format of flame graph tools: `cache;outermost;...;innermost bytes`.
    /// Call stacks for which `bytes` returns 0 are omitted.
    ///
    /// Frames are code addresses such as `/usr/bin/app+0x52a0`, relative to the file's first segment. The command
    /// `uslab flame` replaces the addresses by symbols.
    ///
    /// # Errors
    /// Returns the write errors of `into`.
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

/// Number of samples in each page. All subsystems share the counters of samples. A counter saturates at 255. Pages that
/// are 256 MiB apart share a counter.
static PAGE_SAMPLE_COUNTS: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

fn sample_mark_for(address: usize) -> &'static AtomicU8 {
    &PAGE_SAMPLE_COUNTS[address / uslab_buddy::PAGE_SIZE % PAGE_SAMPLE_COUNTS.len()]
}
/// Returns `true` if the page of `address` may have a sample.
#[inline(always)]
fn is_marked(address: usize) -> bool {
    // Relaxed: the page was marked before the object was handed out, and the freeing thread has synchronised with the
    // allocating thread.
    MODEL || sample_mark_for(address).load(Relaxed) > 0
}
/// Increments the number of samples in the page of `address` if `more` is true, and decrements it otherwise.
fn mark(address: usize, more: bool) {
    let mark = sample_mark_for(address);
    // Relaxed: the counter does not order other memory accesses.
    let mut now = mark.load(Relaxed);
    while now != u8::MAX
        && let Err(other) =
            mark.compare_exchange_weak(now, if more { now + 1 } else { now - 1 }, Relaxed, Relaxed)
    {
        now = other;
    }
}

/// Number of bytes that a CPU may allocate until its next sample. The number is a hint, because a lost update only
/// delays a sample.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct SampleCountdown {
    left: Counter,
    random: Counter,
}

impl SampleCountdown {
    /// Subtracts `bytes` from the countdown and calls `alloc`. Returns `None` if the countdown ends or `alloc` fails.
    #[inline(always)]
    pub(crate) fn spend<T>(&self, bytes: u64, alloc: impl FnOnce() -> Option<T>) -> Option<T> {
        let remaining = self.left.get();
        if remaining <= bytes {
            return None;
        }
        let memory = alloc()?;
        self.left.set(remaining - bytes);
        Some(memory)
    }
    /// Draws the number of bytes until the next sample.
    fn draw(&self, rate: u64) -> u64 {
        // The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
        self.random.set(self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut word = self.random.get();
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        // This expression is a random number in (0, 1].
        let unit = ((word >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        ((-log(unit) * rate as f64).ceil() as u64).max(1)
    }
}

#[derive(Debug)]
pub(crate) struct Profiler {
    /// Number of the running profile, counted from 1; 0 if no profile is running.
    run: AtomicU32,
    /// 1 if malloc samples of the running profile have separate memory. `base` is the start of that memory, or 0.
    own: Counter,
    base: Counter,
    countdowns: Box<[SampleCountdown]>,
    noted: ForkMutex<Records>,
}

impl Profiler {
    pub(crate) fn new(cpus: usize) -> Self {
        let countdown = |_| SampleCountdown { left: Counter::new(0), random: Counter::new(0) };
        Self {
            run: AtomicU32::new(0),
            own: Counter::new(0),
            base: Counter::new(0),
            countdowns: (0..cpus.clamp(1, COUNT_STRIPES)).map(countdown).collect(),
            noted: ForkMutex::new(Rank::Profile, Records::empty()),
        }
    }
    pub(crate) fn lock(&self) -> &dyn ForkLock {
        &self.noted
    }

    /// Starts a profile. If the separate memory for malloc samples does not exist yet, `has_separate_memory` makes it.
    /// `close` closes the inlined paths of allocations, and also of frees if there is no separate memory. `close`
    /// returns `true` on success.
    pub(crate) fn start(
        &self,
        rate: usize,
        seed: Option<u64>,
        has_separate_memory: Option<impl FnOnce() -> Option<SampleMemory>>,
        close: impl FnOnce(bool) -> bool,
    ) -> Result<(), NotStarted> {
        let rate = rate.max(1) as u64;
        // The previous records are dropped after the lock is released.
        let mut fresh = Records::with_room(rate).ok_or(NotStarted::Memory)?;
        let wants_separate_memory = has_separate_memory.is_some();
        fresh.own = has_separate_memory.filter(|_| self.base.get() == 0).and_then(|make| make());
        let seed = seed.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            now.as_nanos() as u64 ^ core::ptr::from_ref(self).addr() as u64
        });
        let mut records = self.noted.lock();
        // Relaxed: `run` is written only under the lock.
        if self.run.load(Relaxed) > 0 {
            return Err(NotStarted::Runs);
        }
        // The countdowns are set before the fence, so that a thread that sees the running profile also sees the
        // countdowns.
        for (cpu, countdown) in self.countdowns.iter().enumerate() {
            countdown.random.set(seed.wrapping_add((cpu as u64) << 32));
            countdown.left.set(countdown.draw(rate));
        }
        if records.own.is_some() {
            core::mem::swap(&mut records.own, &mut fresh.own);
        }
        let has_separate_memory = wants_separate_memory && fresh.own.is_some();
        self.own.set(has_separate_memory.into());
        if !close(!has_separate_memory) {
            self.own.set(0);
            records.own = fresh.own.take();
            return Err(NotStarted::Fence);
        }
        self.base.set(fresh.own.as_ref().map_or(0, SampleMemory::base) as u64);
        fresh.run = records.run.wrapping_add(1).max(1);
        core::mem::swap(&mut *records, &mut fresh);
        let is_marked = |live: &&LiveObjects| live.address > 0 && !self.is_in_sample_memory(!live.address);
        fresh.live.iter().filter(is_marked).for_each(|live| mark(!live.address, false));
        // Relaxed: a thread that has a sample has seen the store to `run`, and a freeing thread got the sample from
        // such a thread.
        self.run.store(records.run, Relaxed);
        Ok(())
    }
    /// Stops the running profile, if there is one. `open` reopens the inlined paths.
    pub(crate) fn stop(&self, open: impl FnOnce()) -> bool {
        let _one_at_a_time = self.noted.lock();
        // Relaxed: `run` is written only under the lock. The number is cleared before the paths open, because the
        // profile does not see inlined frees.
        if self.run.load(Relaxed) == 0 {
            return false;
        }
        self.run.store(0, Relaxed);
        self.own.set(0);
        open();
        true
    }
    pub(crate) fn profile(&self) -> Profile {
        // Nothing is allocated under the lock; sites that were added after the count are left out.
        let count = self.noted.lock().sites.len();
        let mut sites = Vec::with_capacity(count);
        let (rate, lost) = {
            let records = self.noted.lock();
            sites.extend(records.sites.iter().take(count));
            (records.rate as usize, records.lost)
        };
        let sample = |site: &Site| Sample {
            cache: String::from_utf8_lossy(&site.cache[..site.len.into()]).into_owned(),
            stack: CallStack::from_number(site.stack),
            allocated: site.allocated.to_amount(),
            live: site.live.to_amount(),
        };
        let mut samples: Vec<_> = sites.iter().map(sample).collect();
        samples.sort_by_key(|sample| core::cmp::Reverse((sample.live.bytes, sample.allocated.bytes)));
        Profile { rate, samples, lost }
    }

    /// Returns `true` if a profile is running. While a profile runs, every operation must call the profiler.
    #[inline(always)]
    pub(crate) fn runs(&self) -> bool {
        // Relaxed: `start` gives the reason.
        !cfg!(loom) && self.run.load(Relaxed) > 0
    }
    /// Returns `true` if the running profile needs to see only the allocations of a malloc.
    #[inline(always)]
    pub(crate) fn profiles_malloc_only(&self) -> bool {
        self.own.get() > 0
    }
    #[inline(always)]
    pub(crate) fn countdown(&self, cpu: u32) -> &SampleCountdown {
        &self.countdowns[(cpu as usize).min(self.countdowns.len() - 1)]
    }
    /// Counts an allocation of a malloc on CPU `cpu`. If the allocation is a sample, returns separate memory for it.
    #[inline(always)]
    pub(crate) fn count<'a>(
        &self,
        cpu: impl FnOnce() -> u32,
        bytes: usize,
        cache: impl FnOnce() -> &'a str,
    ) -> Option<NonNull<u8>> {
        // Relaxed: `start` gives the reason.
        let run = self.run.load(Relaxed);
        let countdown = self.countdown(cpu());
        if countdown.spend(bytes as u64, || Some(())).is_some() {
            return None;
        }
        self.sample_in_separate_memory(run, countdown, bytes, cache())
    }
    #[cold]
    #[inline(never)]
    fn sample_in_separate_memory(
        &self,
        run: u32,
        countdown: &SampleCountdown,
        bytes: usize,
        cache: &str,
    ) -> Option<NonNull<u8>> {
        let stack = CallStack::save();
        let mut records = self.noted.lock();
        // Relaxed: `run` does not change while the lock is held.
        if self.run.load(Relaxed) != run || run == 0 {
            return None;
        }
        countdown.left.set(countdown.draw(records.rate));
        let memory = records.own.as_mut().and_then(|own| own.alloc(bytes));
        let done = memory.and_then(|memory| records.note(memory.addr().get(), bytes as u64, cache, stack));
        if done.is_none() {
            records.lost += 1;
        }
        memory
    }
    /// Returns `true` if the memory is separate memory of a sample.
    pub(crate) fn holds(&self, memory: NonNull<u8>) -> bool {
        self.is_in_sample_memory(memory.addr().get())
    }
    fn is_in_sample_memory(&self, address: usize) -> bool {
        let base = self.base.get() as usize;
        base > 0 && address.wrapping_sub(base) < MAX_LIVE_SAMPLES * MAX_SAMPLE_BYTES
    }
    /// Returns the size in bytes of a sample with separate memory, or an error for any other address.
    pub(crate) fn size_of(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let records = self.noted.lock();
        records.own.as_ref().map_or(Err(CorruptionKind::Foreign), |own| own.size_of(memory.addr().get()))
    }
    pub(crate) fn free(&self, memory: NonNull<u8>) -> Result<(), CorruptionKind> {
        let (mut noted, address) = (self.noted.lock(), memory.addr().get());
        noted.own.as_mut().map_or(Err(CorruptionKind::Foreign), |own| own.free(address))?;
        // Relaxed: `start` gives the reason. After the end of a profile, the record of a sample
        // stays.
        if self.run.load(Relaxed) > 0 {
            noted.forget(address);
        }
        Ok(())
    }
    /// Counts memory that is about to be handed out on CPU `cpu`.
    #[inline(always)]
    pub(crate) fn allocated(
        &self,
        cpu: impl FnOnce() -> u32,
        memory: NonNull<u8>,
        bytes: usize,
        cache: &str,
    ) {
        if self.runs() {
            // Relaxed: `start` gives the reason.
            let run = self.run.load(Relaxed);
            let countdown = self.countdown(cpu());
            if countdown.spend(bytes as u64, || Some(())).is_none() {
                self.sample(run, countdown, memory, bytes, cache);
            }
        }
    }
    #[cold]
    #[inline(never)]
    fn sample(&self, run: u32, countdown: &SampleCountdown, memory: NonNull<u8>, bytes: usize, cache: &str) {
        let stack = CallStack::save();
        let mut records = self.noted.lock();
        // Relaxed: `run` does not change while the lock is held.
        let is_of_it = self.run.load(Relaxed) == run;
        if !is_of_it {
            return;
        }
        countdown.left.set(countdown.draw(records.rate));
        let address = memory.addr().get();
        // The record belongs to an object that was never freed, because its cache was destroyed
        // with it.
        if records.forget(address) {
            mark(address, false);
        }
        match records.note(address, bytes as u64, cache, stack) {
            Some(()) => mark(address, true),
            None => records.lost += 1,
        }
    }

    /// Removes a sample when it is freed, before its memory can be reused.
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
