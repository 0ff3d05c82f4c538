//! The heap profile: who allocates how much, and who holds it, from a sample of all allocations.
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
//! Each CPU counts down the bytes of the objects that it hands out. Where the count ends, the object is a *sample*, its call stack is
//! taken, and a new count is drawn: exponentially distributed, with the rate as its mean. So an object of `s` bytes is a sample with
//! probability `p = 1 - exp(-s / rate)`, whatever was allocated before it and by whom. A sample stands for `1 / p` objects and `s / p` bytes.
//!
//! # Bias
//!
//! * The estimates have none. The draws depend on nothing that the program does: the expected value of each number, for each stack and
//!   each cache, is the number itself, but for memory above 4 MiB that cannot be resized and is moved: what was allocated counts it once
//!   more. In particular it is of no importance where magazines are filled: not misses are sampled, but
//!   bytes.
//! * What an estimate is off by is chance: with `n` samples behind it about one part in the root of `n`. Each number has its `n` beside it
//!   ([`Amount::samples`]). A site with few samples says little.
//! * Bytes are those of the object, which is what the size class has, not what was asked for.
//! * Only what is allocated while the profile runs is seen. Objects that a [`Mempool`](crate::Mempool) or
//!   [`Prefilled`](crate::Prefilled) stock keeps back count as allocated by whoever made it keep them, until the stock itself gives
//!   them up.
//! * A thread that is interrupted between the two halves of a count may undo a count of the thread that interrupts it. The next sample
//!   comes some bytes late then; whose it is stays as random as before.
//! * There is room for some 65,000 samples that are live and 16,000 stacks. What has no room is [counted](Profile::lost), and missing.
//!
//! # What it costs
//!
//! While no profile runs: a load and a branch for each operation behind a miss. Inlined paths are what they are without a profile; the
//! same instructions.
//!
//! While one runs the inlined paths of allocations are closed ([`close_inlined`](uslab_magazine::Table::close_inlined)): they miss, and the
//! path behind them counts bytes and uses the same stack of the same CPU. For [`Malloc`](crate::Malloc), at 64 KiB and more between samples, that is
//! all: 55 instructions, 2 ns, an allocation under the preload library (x86-64), and none a free. A program that takes 10 % longer with 30
//! ns for each pair, as it once was, so takes 0.7 % longer. Samples have memory of their own there, outside of the pages that frees
//! find classes for: so the inlined path of a free misses for them, and serves all others. Such a sample is a page and more, and counts as no
//! object of its class in any other report.
//!
//! Frees of object caches name the cache and look at no address, so for them, and with fewer bytes between samples, and where addresses
//! are limited (`RLIMIT_AS`) or frees are checked, frees are closed, too: some 30 ns for an allocation and its free. A free looks at a byte for
//! the page of its object then, which says whether the page has a sample.
//!
//! A [written](Profile::pprof) profile has addresses: names are looked up outside of the program, because debug information takes tens of
//! megabytes.
//!
//! A sample is some microseconds more, most of it for the call stack, which is nothing at [`DEFAULT_RATE`]. A start and an end are one
//! fence each.
//!
//! # Frees
//!
//! An object that was taken from one of a malloc's [caches](crate::Malloc::caches), and not from the malloc, must go back to that cache to be
//! seen. A sample is noted before its user has it, and forgotten before anybody else can have it. Both see that the profile runs: it
//! began before the sample was taken, and when it began no inlined operation was on its way any more. So when all is freed, exactly
//! nothing is live.

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

/// Bytes between two samples, on average, where nobody says otherwise: 512 KiB, as gperftools and jemalloc have it.
pub const DEFAULT_RATE: usize = 512 << 10;

/// Stacks that there is room for.
const SITES: usize = if cfg!(shuttle) { 1 << 4 } else { 1 << 14 };
/// The most CPUs with a count of their own.
const COUNTS: usize = 64;
/// Where samples are so far apart, those of a malloc have memory of their own, a page at least: so that is a sixteenth more at most.
pub(crate) const OWN_MEMORY: usize = 64 << 10;
/// Bytes of a cache's name that are kept.
const NAME: usize = 39;
/// Objects are counted in parts of one.
const PARTS: f64 = 65_536.0;

/// Why a profile did not start.
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
    /// One runs.
    Runs,
    /// The kernel refused the fence that closes inlined paths (`membarrier`).
    Fence,
    /// There is no memory for what it notes.
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

/// An estimate, and how many samples stand behind it.
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
    /// Objects that were looked at.
    pub samples: u64,
    /// Objects that there were, by the estimate.
    pub objects: u64,
    /// Bytes that they have, by the estimate.
    pub bytes: u64,
}

/// What was allocated from one cache by one call stack.
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
    /// Who allocated; none without the cargo feature `stacks`.
    pub stack: CallStack,
    /// Since the profile began.
    pub allocated: Amount,
    /// Of these, what was not freed yet.
    pub live: Amount,
}

/// A profile of one moment.
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
    /// Bytes between two samples, on average; 0 if no profile was ever started.
    pub rate: usize,
    /// By cache and call stack, the most live bytes first.
    pub samples: Vec<Sample>,
    /// Samples for which there was no room.
    pub lost: u64,
}

/// The sums over all stacks.
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
    /// Since the profile began.
    pub allocated: Amount,
    /// Of these, what was not freed yet.
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
    /// The sums over all stacks.
    pub fn total(&self) -> Total {
        Total {
            allocated: self.samples.iter().map(|sample| sample.allocated).sum(),
            live: self.samples.iter().map(|sample| sample.live).sum(),
        }
    }

    /// Writes a line for each stack, as tools that draw flame graphs read them: `cache;outermost;...;innermost bytes`. A stack whose
    /// `bytes` are 0 is left out. Frames are places of code, `/usr/bin/app+0x52a0`: bytes behind the file's first segment. The command
    /// `uslab flame` looks their names up.
    ///
    /// # Errors
    /// Those of `into`.
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

/// How many samples a page has, for each page of 256 MiB: pages that lie so far apart share a number. 255 stays. All subsystems' together.
static MARKED: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

fn mark_of(address: usize) -> &'static AtomicU8 {
    &MARKED[address / uslab_buddy::PAGE_SIZE % MARKED.len()]
}
/// Whether there may be a sample.
#[inline(always)]
fn is_marked(address: usize) -> bool {
    // Relaxed: the mark was made before the object was handed out, and so before whoever frees it has got it.
    MODEL || mark_of(address).load(Relaxed) > 0
}
/// There is one sample more, or one less.
fn mark(address: usize, more: bool) {
    let mark = mark_of(address);
    // Relaxed: as above; a number by itself.
    let mut now = mark.load(Relaxed);
    while now != u8::MAX
        && let Err(other) =
            mark.compare_exchange_weak(now, if more { now + 1 } else { now - 1 }, Relaxed, Relaxed)
    {
        now = other;
    }
}

/// What a CPU has left until its next sample. Only hints: a lost update is a late sample.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Countdown {
    left: Counter,
    random: Counter,
}

impl Countdown {
    /// Takes `bytes` off, unless that is its end or `alloc` has nothing.
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
    /// Bytes up to the next sample and with its own.
    fn draw(&self, rate: u64) -> u64 {
        // Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
        self.random.set(self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut word = self.random.get();
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        // Above 0, and up to 1.
        let unit = ((word >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        ((-log(unit) * rate as f64).ceil() as u64).max(1)
    }
}

/// What takes the profile of a subsystem. See the [module](self).
#[derive(Debug)]
pub(crate) struct Profiler {
    /// Which profile runs, counted from 1; 0 if none does.
    run: AtomicU32,
    /// Whether one runs whose samples of a malloc have memory of their own, as 1; and where that begins, 0 if there never was any.
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

    /// Begins a profile. If samples of a malloc are to have memory of their own, `own` makes it, unless there is some from before; `close`
    /// closes the inlined paths, those of frees, too, where they have none, and says whether they are.
    pub(crate) fn start(
        &self,
        rate: usize,
        seed: Option<u64>,
        own: Option<impl FnOnce() -> Option<Own>>,
        close: impl FnOnce(bool) -> bool,
    ) -> Result<(), NotStarted> {
        let rate = rate.max(1) as u64;
        // The one before goes, behind the lock.
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
        // Before the fence: whoever finds that it runs finds these.
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
        // Relaxed: who has a sample has seen this, and who frees it has the sample from there.
        self.run.store(noted.run, Relaxed);
        Ok(())
    }
    /// Ends it, if one runs; `open` opens the inlined paths.
    pub(crate) fn stop(&self, open: impl FnOnce()) -> bool {
        let _one_at_a_time = self.noted.lock();
        // Relaxed: as in `start`. Before the paths are open: what they free is not noticed.
        if self.run.load(Relaxed) == 0 {
            return false;
        }
        self.run.store(0, Relaxed);
        self.own.set(0);
        open();
        true
    }
    /// What is noted; of the last profile, if none runs.
    pub(crate) fn profile(&self) -> Profile {
        // Nothing is allocated under the lock; what comes meanwhile comes later.
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

    /// Whether a profile runs: then every operation has to come by.
    #[inline(always)]
    pub(crate) fn runs(&self) -> bool {
        // Relaxed: see `start`.
        !cfg!(loom) && self.run.load(Relaxed) > 0
    }
    /// Whether one runs that needs to see allocations of a malloc only.
    #[inline(always)]
    pub(crate) fn counts_only(&self) -> bool {
        self.own.get() > 0
    }
    #[inline(always)]
    pub(crate) fn countdown(&self, cpu: u32) -> &Countdown {
        &self.countdowns[(cpu as usize).min(self.countdowns.len() - 1)]
    }
    /// An object of a malloc is about to be allocated, by a thread on `cpu`: memory of its own if it is a sample.
    #[inline(always)]
    pub(crate) fn count<'a>(
        &self,
        cpu: impl FnOnce() -> u32,
        bytes: usize,
        cache: impl FnOnce() -> &'a str,
    ) -> Option<NonNull<u8>> {
        // Relaxed: as above.
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
        // Relaxed: under the lock it does not change.
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
    /// Whether it lies in memory of samples' own.
    pub(crate) fn holds(&self, memory: NonNull<u8>) -> bool {
        self.is_own(memory.addr().get())
    }
    fn is_own(&self, address: usize) -> bool {
        let base = self.base.get() as usize;
        base > 0 && address.wrapping_sub(base) < LIVE * PLACE
    }
    /// Bytes of such a sample; what is wrong with an address that is none.
    pub(crate) fn size_of(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let noted = self.noted.lock();
        noted.own.as_ref().map_or(Err(CorruptionKind::Foreign), |own| own.size_of(memory.addr().get()))
    }
    /// Takes one back.
    pub(crate) fn free(&self, memory: NonNull<u8>) -> Result<(), CorruptionKind> {
        let (mut noted, address) = (self.noted.lock(), memory.addr().get());
        noted.own.as_mut().map_or(Err(CorruptionKind::Foreign), |own| own.free(address))?;
        // Relaxed: as above. Behind the end of a profile it stays as it was.
        if self.run.load(Relaxed) > 0 {
            noted.forget(address);
        }
        Ok(())
    }
    /// Memory is about to be handed out, by a thread on `cpu`.
    #[inline(always)]
    pub(crate) fn allocated(
        &self,
        cpu: impl FnOnce() -> u32,
        memory: NonNull<u8>,
        bytes: usize,
        cache: &str,
    ) {
        if self.runs() {
            // Relaxed: as above.
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
        // Relaxed: under the lock it does not change.
        let is_of_it = self.run.load(Relaxed) == run;
        planted!("a sample is noted in the profile behind its own" => let is_of_it = true);
        if !is_of_it {
            return;
        }
        countdown.left.set(countdown.draw(noted.rate));
        let address = memory.addr().get();
        // An object that went with its cache was not freed.
        if noted.forget(address) {
            mark(address, false);
        }
        match noted.note(address, bytes as u64, cache, stack) {
            Some(()) => mark(address, true),
            None => noted.lost += 1,
        }
    }

    /// Memory is given back, and nobody else can have it yet.
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
