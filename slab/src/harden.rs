//! Hardening options make memory errors harder to exploit, at the cost of speed or memory.
//!
//! | option | what it does | attack that it hinders |
//! |---|---|---|
//! | [`random_order`](Harden::random_order) | a slab hands out its free objects in random order, and is put at a random end of its list | predicting an object's neighbour |
//! | [`quarantine`](Harden::quarantine) | a freed object is reused late, at a random time | reallocating an object that is still used |
//! | [`zero_on_free`](Harden::zero_on_free) | a freed object is zeroed; with checked frees, the zeros are verified at the next allocation | reading old data, writes after the free |
//! | [`zero_on_alloc`](Harden::zero_on_alloc) | an allocated object is zeroed | reading old data |
//! | [`canaries`](Harden::canaries) | a secret word follows each object, and the bytes beyond the requested size are filled; the free checks both, and the word of the preceding object | overflow and underflow |
//! | [`zero_size`](Harden::zero_size) | an allocation of no bytes is a unique inaccessible address | accessing it |
//! | [`guard_pages`](Harden::guard_pages) | memory above 32 KiB is a separate mapping followed by an inaccessible page, and its addresses rest after the free | overflow, use after free |
//! | [`slab_guards`](Harden::slab_guards) | an inaccessible page follows the objects of each slab | overflow or over-read into the next slab |
//!
//! [`Harden::ALL`] sets all options except `zero_on_alloc`, which adds nothing to `zero_on_free`. All hardening options
//! enable [checked frees](crate::Config::check_frees). With checked frees, double frees, frees of interior or foreign
//! addresses, and frees with a wrong size are detected immediately. If two threads free one object concurrently,
//! exactly one of them detects the double free.
//!
//! Random choices derive from a secret of the process. A [seed](Harden::seed) replaces the secret, so that each run
//! makes the same choices. The keyed hash of `std` derives the random numbers from the secret. An attacker that knows
//! many addresses of one magazine fill may compute the remaining addresses of that fill, but no address of the next
//! fill.

pub(crate) mod quarantine;

use self::quarantine::Quarantine;
use crate::debug::corruption::CorruptionKind;
use crate::debug::lines::Lines;
use core::fmt::Write;
use core::hash::{BuildHasher, Hasher};
use core::ptr::NonNull;
use std::hash::{DefaultHasher, RandomState};
use uslab_magazine::sync::AtomicU64;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{AtomicBool, Counter, MODEL};

/// Hardening options. See the [module](self).
///
/// ```
/// use uslab::{Config, Gfp, Harden, KmemCache, Subsystem};
///
/// let harden = Harden { quarantine: 64 << 10, ..Harden::OFF };
/// let subsystem = Subsystem::new(Config { harden, ..Config::default() })?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// let first = inodes.alloc(Gfp::KERNEL)?;
/// // SAFETY: allocated above from this cache, freed once.
/// unsafe { inodes.free(first) };
/// assert_ne!(inodes.alloc(Gfp::KERNEL)?, first); // which is used again late
/// assert_eq!(inodes.info().quarantined, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Harden {
    /// If true, a slab's objects are allocated in random order. Cost: some nanoseconds per object that leaves a slab.
    /// Objects that are allocated together are no longer adjacent.
    pub random_order: bool,
    /// Bytes of freed objects that each cache keeps in quarantine: one half in FIFO order, the other half in random
    /// places. 0 disables the quarantine. The quarantine holds at most [1,024 objects](MOST_QUARANTINED). Cost: two
    /// atomic exchanges per free, and the memory of the objects in quarantine.
    pub quarantine: usize,
    /// Applies [`KmemCacheBuilder::zero_on_free`](crate::KmemCacheBuilder::zero_on_free) to all caches without
    /// constructor, destructor or grace periods. The option also zeroes freed blocks of pages.
    pub zero_on_free: bool,
    /// Zeroes all allocations, as with [`Gfp::ZERO`](crate::Gfp::ZERO).
    pub zero_on_alloc: bool,
    /// If true, each object has a canary of eight bytes after it; malloc takes these bytes from the size class. An
    /// object that would grow by more than a quarter gets no canary. Small objects, and objects whose size is a large
    /// alignment, therefore have no canary.
    pub canaries: bool,
    /// If true, malloc returns a unique inaccessible address for each zero-size allocation with an alignment of at most
    /// 16.
    pub zero_size: bool,
    /// Puts guard pages around malloc allocations above 32 KiB.
    ///
    /// Cost: two system calls per allocation above 32 KiB, and two of the mappings that the process may have
    /// (`vm.max_map_count`). Guard pages use at most a quarter of the process's mappings. After the system has refused
    /// a guard page, allocations up to 4 MiB use pages as without hardening. Larger allocations then have no guard
    /// page.
    pub guard_pages: bool,
    /// Puts guard pages after the slabs in the subsystem's first pages. The number of these pages is half of the
    /// process's maximum number of mappings (`vm.max_map_count`): 128 MiB by default.
    ///
    /// Cost: two system calls and two mappings when a slab is made, and one system call when it is freed. Slabs have at
    /// least four pages, one of which is the guard page.
    pub slab_guards: bool,
    /// Seed of the random choices, for tests. By default the choices derive from a secret.
    pub seed: Option<u64>,
}

/// Bytes of freed objects that [`Harden::ALL`] keeps in quarantine for each cache.
const DEFAULT_QUARANTINE_BYTES: usize = 128 << 10;
/// Maximum number of objects in a cache's quarantine.
pub const MOST_QUARANTINED: usize = 1024;

impl Harden {
    /// The configuration without any hardening.
    pub const OFF: Self = Self {
        random_order: false,
        quarantine: 0,
        zero_on_free: false,
        zero_on_alloc: false,
        canaries: false,
        zero_size: false,
        guard_pages: false,
        slab_guards: false,
        seed: None,
    };
    /// All options that are useful together, as set by `USLAB_OPTIONS=harden=1`.
    pub const ALL: Self = Self {
        random_order: true,
        quarantine: DEFAULT_QUARANTINE_BYTES,
        zero_on_free: true,
        canaries: true,
        zero_size: true,
        guard_pages: true,
        slab_guards: true,
        ..Self::OFF
    };

    /// Returns `true` if any option is on.
    pub fn is_on(&self) -> bool {
        Self { seed: None, ..*self } != Self::OFF
    }
}

/// Budget of the memory mappings that guard pages use. A process may have only a limited number of mappings
/// (`vm.max_map_count`).
#[derive(Debug)]
pub(crate) struct Mappings {
    most: usize,
    refused: AtomicBool,
}

impl Mappings {
    /// Makes the budget of a process that may have `most` mappings. With `None`, the budget assumes Linux's default
    /// limit.
    pub(crate) fn of(most: Option<u64>) -> Self {
        let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(65_530);
        Self { most, refused: AtomicBool::new(false) }
    }
    /// Number of pages, counted from the first page, in which slabs may get guard pages. Guard pages of slabs use a
    /// quarter of the process's mappings: two mappings per slab of four pages.
    pub(crate) fn guarded_page_count(&self) -> u32 {
        u32::try_from(self.most / 2).unwrap_or(u32::MAX)
    }
    /// Maximum number of allocations above 32 KiB that are separate mappings with a guard page. Guard pages of large
    /// allocations use a quarter of the process's mappings: two mappings each.
    pub(crate) fn max_guarded_mappings(&self) -> usize {
        self.most / 8
    }
    /// Returns `true` until the system has refused a guard page. After a refusal, mappings get no guard pages, so that
    /// the system does not refuse the program's own mappings.
    pub(crate) fn can_map_guard_pages(&self) -> bool {
        // Relaxed: the flag is a hint.
        !self.refused.load(Relaxed)
    }
    /// Records that the system refused a guard page, and reports the first refusal.
    #[cold]
    pub(crate) fn refuse(&self) {
        // Relaxed: the flag only selects the thread that reports the refusal.
        if !self.refused.swap(true, Relaxed) {
            let why = "the system refuses mappings (vm.max_map_count)";
            let _ = writeln!(Lines::new(), "uslab: harden: {why}: new memory has no guard pages");
        }
    }
}

#[derive(Debug)]
pub(crate) struct RandomKeys {
    key: [u64; 2],
    drawn: Counter,
}

impl RandomKeys {
    pub(crate) fn new(harden: &Harden) -> Self {
        let key = match harden.seed {
            Some(seed) => [seed, 0],
            None => [0_u8, 1].map(|word| RandomState::new().hash_one(word)),
        };
        Self { key, drawn: Counter::new(0) }
    }
    pub(crate) fn next(&self) -> Key {
        self.drawn.add(1);
        let [first, second] = self.key;
        Key([first, second.wrapping_add(self.drawn.get())])
    }
}

/// Secret key of the random numbers of one cache or pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key([u64; 2]);

impl Key {
    pub(crate) fn hash(self, of: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.into_iter().chain([of]).for_each(|word| hasher.write_u64(word));
        hasher.finish()
    }
}

/// Generator of the random numbers of one lock hold: SplitMix64 (Steele, Lea and Flood, 2014) with a secret start
/// value.
#[derive(Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn of(key: Key, hold: u64) -> Self {
        Self(key.hash(hold))
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
    /// Returns a random number in `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Hardens a cache's objects at each allocation and free.
#[derive(Debug)]
pub(crate) struct Hardened {
    canary: Option<Canary>,
    /// Number of leading bytes of each object that are zero while the object is free.
    zeroed: usize,
}

impl Hardened {
    /// Creates the hardening of objects of `size` bytes that are followed by `tail` bytes. `zeroed` is true if free
    /// objects are zero.
    pub(crate) fn new(key: Key, harden: &Harden, size: usize, tail: usize, zeroed: bool) -> Option<Self> {
        let canary = (harden.canaries && tail >= CANARY_BYTES)
            .then(|| Canary { keys: [key.hash(0), key.hash(1) | 1], size });
        let zeroed = if zeroed { size } else { 0 };
        (canary.is_some() || zeroed > 0).then_some(Self { canary, zeroed })
    }
    /// Prepares an object for a caller, who may use all bytes of the object.
    ///
    /// # Errors
    /// Fails if the object was written to while it was free.
    ///
    /// # Safety
    /// `object` must belong to the cache, and only the caller may access it.
    pub(crate) unsafe fn check_and_prepare_alloc(&self, object: NonNull<u8>) -> Result<(), CorruptionKind> {
        // SAFETY: by contract, the caller owns the first `zeroed` bytes of the object.
        let bytes = unsafe { core::slice::from_raw_parts(object.as_ptr(), self.zeroed) };
        let clean = bytes.iter().fold(0, |all, byte| all | byte) == 0;
        // SAFETY: by contract, only the caller uses the object.
        unsafe { self.resize(object, usize::MAX) };
        if clean { Ok(()) } else { Err(CorruptionKind::WriteAfterFree) }
    }
    /// Checks an object that is being freed.
    ///
    /// # Errors
    /// Fails if the bytes after the requested size were overwritten.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`check_and_prepare_alloc`](Self::check_and_prepare_alloc), which must
    /// have been called for the object.
    pub(crate) unsafe fn on_free(&self, object: NonNull<u8>) -> Result<(), CorruptionKind> {
        // SAFETY: by contract, only the caller uses the object.
        match self.canary.as_ref().map(|canary| unsafe { canary.size(object) }) {
            Some(None) => Err(CorruptionKind::Overflow),
            _ => Ok(()),
        }
    }
    /// Writes a valid canary for an object of a new slab, or for an object whose damage was reported. The canary stays
    /// valid both while the object is in use and while it is free.
    ///
    /// # Safety
    /// `object` must belong to the cache. No other thread may use the object, unless the object's canary was
    /// overwritten.
    pub(crate) unsafe fn prepare(&self, object: NonNull<u8>) {
        // SAFETY: by contract, only this thread uses the object, or its canary was damaged.
        self.canary.as_ref().inspect(|canary| unsafe { canary.put(object, 0) });
    }
    /// Returns `true` if a thread may check an object's canary while another thread uses the object.
    pub(crate) fn can_check_used_objects(&self) -> bool {
        self.canary.as_ref().is_some_and(Canary::is_aligned)
    }
    /// Returns `true` if the canary of an object is valid.
    ///
    /// # Safety
    /// The object must belong to the cache and must have been [prepared](Self::prepare). No other thread may use the
    /// object, unless [`can_check_used_objects`](Self::can_check_used_objects) returns `true`.
    pub(crate) unsafe fn is_intact(&self, object: NonNull<u8>) -> bool {
        // SAFETY: by contract, the object was prepared and its canary may be read.
        self.canary.as_ref().is_none_or(|canary| unsafe { canary.slack(object) }.is_some())
    }
    /// Records that the caller requested `size` bytes, which must be at most the object's size. Without canaries,
    /// records nothing and returns `false`.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`check_and_prepare_alloc`](Self::check_and_prepare_alloc), and no
    /// thread may use the object during the call.
    pub(crate) unsafe fn resize(&self, object: NonNull<u8>, size: usize) -> bool {
        // SAFETY: by contract, only the caller uses the object.
        self.canary.as_ref().map(|canary| unsafe { canary.set(object, size.min(canary.size)) }).is_some()
    }
    /// Returns the number of bytes that the caller requested, if it was recorded and the record is intact.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`on_free`](Self::on_free).
    pub(crate) unsafe fn size(&self, object: NonNull<u8>) -> Option<usize> {
        // SAFETY: by contract, `check_and_prepare_alloc` prepared the object, and only the caller uses it.
        self.canary.as_ref().and_then(|canary| unsafe { canary.size(object) })
    }
}

pub(crate) const CANARY_BYTES: usize = 8;
/// Difference between the first fill byte after the requested size and the remaining fill bytes.
const FIRST: u8 = 0x80;

/// The bytes after an object's requested size: fill bytes, and then a check word. The fill bytes extend to the end of
/// the object, and derive from the address and the secret. The check word contains the number of fill bytes in 16 bits,
/// and a checksum of this number and the address in 48 bits. All fill bytes except the first are equal, and the first
/// fill byte differs from the others. A write of two or more equal bytes after the requested size is therefore always
/// detected. A write of a single byte is missed if it equals the fill byte, which has a chance of one in 128.
#[derive(Debug)]
struct Canary {
    keys: [u64; 2],
    size: usize,
}

impl Canary {
    fn word(&self, object: NonNull<u8>, slack: u16) -> u64 {
        let [first, second] = self.keys;
        let place = mix(object.addr().get() as u64 ^ first);
        mix(place ^ u64::from(slack).wrapping_add(1).wrapping_mul(second)) << 16
            | u64::from(slack ^ place as u16)
    }
    /// Returns the fill byte of an object. The fill byte is never 0, because programs write 0 at the end of their
    /// strings.
    fn fill(&self, object: NonNull<u8>) -> u8 {
        (mix(object.addr().get() as u64 ^ self.keys[1]) as u8) | 1
    }
    /// # Safety
    /// The caller must own the object and the check word after it.
    unsafe fn set(&self, object: NonNull<u8>, size: usize) {
        let slack = (self.size - size) as u16;
        // SAFETY: by contract, the caller owns the object and its check word.
        unsafe {
            object.add(size).write_bytes(self.fill(object), usize::from(slack));
            if slack > 0 {
                object.add(size).write(self.fill(object) ^ FIRST);
            }
            self.put(object, slack);
        }
    }
    /// Returns `true` if other threads may read a canary's check word while it is written.
    fn is_aligned(&self) -> bool {
        self.size.is_multiple_of(CANARY_BYTES)
    }
    /// Writes the canary's check word.
    ///
    /// # Safety
    /// This thread must own the object; or the check word must be aligned, and other threads may only read it or write
    /// another valid word.
    unsafe fn put(&self, object: NonNull<u8>, slack: u16) {
        let word = self.word(object, slack);
        // SAFETY: by contract, the word may be written; objects are aligned to at least a word. A checker's atomics
        // have another layout.
        unsafe {
            let at = object.add(self.size).cast::<u64>();
            if self.is_aligned() && !MODEL {
                // Relaxed: readers accept any valid word.
                return at.cast::<AtomicU64>().as_ref().store(word, Relaxed);
            }
            at.write_unaligned(word);
        }
    }
    /// Returns the number of fill bytes in the check word, or `None` if the check word is invalid.
    ///
    /// # Safety
    /// The check word must be readable. If the word is not aligned, no other thread may access it.
    unsafe fn slack(&self, object: NonNull<u8>) -> Option<u16> {
        // SAFETY: by contract, the word is readable.
        let found = unsafe {
            let at = object.add(self.size).cast::<u64>();
            // Relaxed: any valid word is accepted.
            if self.is_aligned() && !MODEL {
                at.cast::<AtomicU64>().as_ref().load(Relaxed)
            } else {
                at.read_unaligned()
            }
        };
        let slack = found as u16 ^ mix(object.addr().get() as u64 ^ self.keys[0]) as u16;
        (usize::from(slack) <= self.size && found == self.word(object, slack)).then_some(slack)
    }
    /// Returns the requested number of bytes, or `None` if any later byte was overwritten.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`set`](Self::set).
    unsafe fn size(&self, object: NonNull<u8>) -> Option<usize> {
        // SAFETY: by contract, the caller owns the object and its check word.
        let slack = unsafe { self.slack(object)? };
        let size = self.size - usize::from(slack);
        // SAFETY: the fill bytes are inside the object, which the caller owns.
        let fill = unsafe { core::slice::from_raw_parts(object.add(size).as_ptr(), usize::from(slack)) };
        let byte = self.fill(object);
        let whole = |(first, others): (&u8, &[u8])| {
            *first == byte ^ FIRST && others.iter().all(|other| *other == byte)
        };
        fill.split_first().is_none_or(whole).then_some(size)
    }
}

pub(crate) fn quarantine(harden: &Harden, key: Key, stride: usize) -> Option<Quarantine> {
    let objects = (harden.quarantine / stride).min(MOST_QUARANTINED);
    (objects > 0).then(|| Quarantine::new(objects, key.hash(2)))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn setting_only_a_seed_does_not_enable_hardening() {
        let parts = [
            Harden { random_order: true, ..Harden::OFF },
            Harden { quarantine: 1, ..Harden::OFF },
            Harden { slab_guards: true, seed: Some(7), ..Harden::OFF },
            Harden::ALL,
        ];
        assert!(parts.iter().all(Harden::is_on));
        assert!(!Harden::OFF.is_on() && !Harden { seed: Some(7), ..Harden::OFF }.is_on());
    }

    /// The expected numbers are from Vigna's `splitmix64.c` (2015), with start 0.
    #[test]
    fn random_draws_equal_published_splitmix64_numbers() {
        let mut draws = Draws(0);
        let published = [0xe220_a839_7b1d_cdaf_u64, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        assert_eq!([(); 3].map(|()| draws.next()), published);
    }

    #[test]
    fn canary_multiplier_differs_between_caches() {
        let secret = RandomKeys::new(&Harden { seed: Some(7), ..Harden::ALL });
        let second = |_| {
            let hardened = Hardened::new(secret.next(), &Harden::ALL, 64, CANARY_BYTES, false).unwrap();
            hardened.canary.unwrap().keys[1]
        };
        let keys: std::collections::BTreeSet<u64> = (0..50).map(second).collect();
        assert!(keys.len() == 50 && keys.iter().all(|key| key % 2 == 1), "{keys:x?}");
    }

    #[test]
    fn canary_depends_on_each_address_bit() {
        let canary = Canary { keys: [0x1234_5678, 0], size: 64 };
        let at = |bit: u32| NonNull::new(core::ptr::without_provenance_mut(1 << bit)).unwrap();
        let fills: std::collections::BTreeSet<_> = (4..47).map(|bit| canary.fill(at(bit))).collect();
        assert!(fills.len() > 20, "{fills:?}");
        let words: std::collections::BTreeSet<_> = (4..47).map(|bit| canary.word(at(bit), 0)).collect();
        assert_eq!(words.len(), 43);
        // Each bit of the object's address must affect the canary, whatever the second key is.
        let canary = Canary { keys: [5, 1], size: 64 };
        let words: std::collections::BTreeSet<_> = (4..47).map(|bit| canary.word(at(bit), 0) >> 16).collect();
        assert_eq!(words.len(), 43);
        let secret = RandomKeys::new(&Harden { seed: Some(7), ..Harden::ALL });
        assert_ne!(secret.next().hash(0), secret.next().hash(0), "each cache has a separate key");
        let key = secret.next();
        assert!(Hardened::new(key, &Harden::OFF, 64, 8, false).is_none(), "no hardening is enabled");
    }

    #[test]
    fn canary_detects_each_changed_byte_past_an_object() {
        let secret = RandomKeys::new(&Harden { seed: Some(7), ..Harden::ALL });
        let hardened = Hardened::new(secret.next(), &Harden::ALL, 104, 8, false).unwrap();
        let mut memory = [0_u8; 112];
        let object = NonNull::from(&mut memory).cast::<u8>();
        for size in 0..=104 {
            // SAFETY: the test owns the bytes.
            unsafe {
                assert!(hardened.resize(object, size));
                assert_eq!(hardened.size(object), Some(size));
                for at in size..112 {
                    let byte = object.add(at);
                    byte.write(byte.read() ^ 0x40);
                    assert_eq!(
                        hardened.on_free(object),
                        Err(CorruptionKind::Overflow),
                        "{size} bytes, +{at}"
                    );
                    byte.write(byte.read() ^ 0x40);
                }
                assert_eq!(hardened.on_free(object), Ok(()));
            }
        }
    }

    /// Regression test: a write of two equal bytes was missed one time in 128, when they equalled the canary's fill
    /// byte.
    #[test]
    fn canary_detects_two_equal_bytes_written_past_an_object() {
        let secret = RandomKeys::new(&Harden { seed: Some(7), ..Harden::ALL });
        let hardened = Hardened::new(secret.next(), &Harden::ALL, 104, 8, false).unwrap();
        let mut memory = [0_u8; 112];
        let object = NonNull::from(&mut memory).cast::<u8>();
        for (byte, size) in (0..=u8::MAX).flat_map(|byte| [(byte, 96), (byte, 102)]) {
            // SAFETY: the test owns the bytes.
            unsafe {
                assert!(hardened.resize(object, size));
                object.add(size).write_bytes(byte, 2);
                assert_eq!(hardened.size(object), None, "{byte:#x} behind {size}");
            }
        }
    }

    #[test]
    fn equal_seeds_give_equal_random_draws() {
        let draws = |seed| {
            let mut draws = Draws::of(RandomKeys::new(&Harden { seed: Some(seed), ..Harden::ALL }).next(), 0);
            (0..200).map(|_| draws.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        assert!((0..10).all(|n| draws(3).contains(&n)));
        let unknown = || RandomKeys::new(&Harden::ALL).next().hash(0);
        assert_ne!(unknown(), unknown());
    }
}
