//! Hardening: what makes a mistake of a program hard to build on for who means harm, at a price that is paid on purpose.
//!
//! | part | what it does | what it is against |
//! |---|---|---|
//! | [`random_order`](Harden::random_order) | a slab gives a random one of its free objects, and takes a random end of its list | to know what lies beside what |
//! | [`quarantine`](Harden::quarantine) | a freed object is used again late, and nobody knows when | to be given what somebody else still uses |
//! | [`zero_on_free`](Harden::zero_on_free) | a freed object is zero; where frees are checked, that is looked at when it is handed out | to read what was, and writes after the free |
//! | [`zero_on_alloc`](Harden::zero_on_alloc) | what is handed out is zero | to read what was |
//! | [`canaries`](Harden::canaries) | a secret word is behind each object, and what was not asked for is filled; both are checked when it is freed, and so is the word of the object in front of it | to write behind an object, or in front of it |
//! | [`zero_size`](Harden::zero_size) | memory of no bytes is an address of its own that nobody can touch | to use it |
//! | [`guard_pages`](Harden::guard_pages) | memory above 32 KiB is a mapping of its own in front of a page that nobody can touch, and its addresses rest when it is freed | to write behind it, to use it after its free |
//! | [`slab_guards`](Harden::slab_guards) | a page that nobody can touch lies behind the objects of each slab | to write or read on from one slab into the next one |
//!
//! [`Harden::ALL`] has all of them but `zero_on_alloc`, which is of no use beside `zero_on_free`. Whatever is hardened has
//! [checked frees](crate::Config::check_frees): a double free, one of an interior or foreign address, one of a wrong size are
//! noticed at once, by exactly one of two threads that free at the same moment.
//!
//! What is random follows from a secret of the process. A [seed](Harden::seed) in its place makes the order the same in each run. The
//! secret is stretched by `std`'s keyed hash: who knows many addresses of one fill may compute the others of this fill, and
//! nothing about the next one.

use super::lines::Lines;
use super::quarantine::Quarantine;
use crate::debug::corruption::CorruptionKind;
use core::fmt::Write;
use core::hash::{BuildHasher, Hasher};
use core::ptr::NonNull;
use std::hash::{DefaultHasher, RandomState};
use uslab_magazine::sync::AtomicU64;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{AtomicBool, Counter, MODEL};

/// What is hardened. See the [module](self).
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
    /// Objects come in a random order. Costs some nanoseconds for each object that a slab gives, and the neighbourhood of objects
    /// that are allocated together.
    pub random_order: bool,
    /// Bytes of freed objects of each cache that are kept from use: half of them in the order of their frees, half in places that
    /// are drawn. 0 is none; [1,024 objects](MOST_QUARANTINED) at most. Costs two exchanges for each free, and the memory.
    pub quarantine: usize,
    /// See [`KmemCacheBuilder::zero_on_free`](crate::KmemCacheBuilder::zero_on_free), for all caches without a constructor,
    /// destructor or grace periods; and blocks of pages are zero.
    pub zero_on_free: bool,
    /// All memory is as with [`Gfp::ZERO`](crate::Gfp::ZERO).
    pub zero_on_alloc: bool,
    /// Eight bytes more an object, for malloc out of the bytes of its class. Objects are left without where that would make
    /// them more than a quarter larger: small ones, and those of a size that is a large alignment.
    pub canaries: bool,
    /// For malloc, up to an alignment of 16.
    pub zero_size: bool,
    /// For malloc. Costs two system calls an allocation above 32 KiB, and two mappings of those that a process may have
    /// (`vm.max_map_count`). Guards are given to a quarter of these at most, and as long as the system grants them; then memory up to 4 MiB
    /// is pages as without hardening, and larger memory has no guard.
    pub guard_pages: bool,
    /// Of slabs in the first pages, half as many as the process may have mappings (`vm.max_map_count`): 128 MiB by default. Costs two system
    /// calls, and two mappings, for each slab that is made, and one system call when it ends; slabs have four pages at least, of which objects have three.
    pub slab_guards: bool,
    /// What the order follows from, for tests; else nobody knows.
    pub seed: Option<u64>,
}

/// Bytes of freed objects of a cache that [`Harden::ALL`] keeps.
const QUARANTINE: usize = 128 << 10;
/// The most objects of a cache that are kept from use.
pub const MOST_QUARANTINED: usize = 1024;

impl Harden {
    /// Nothing.
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
    /// All that is of use beside the others: `USLAB_OPTIONS=harden=1`.
    pub const ALL: Self = Self {
        random_order: true,
        quarantine: QUARANTINE,
        zero_on_free: true,
        canaries: true,
        zero_size: true,
        guard_pages: true,
        slab_guards: true,
        ..Self::OFF
    };

    /// Whether anything is.
    pub fn is_on(&self) -> bool {
        Self { seed: None, ..*self } != Self::OFF
    }
}

/// Mappings that guards may add to the process, which may have so many in all (`vm.max_map_count`). With more of them it could map nothing.
#[derive(Debug)]
pub(crate) struct Mappings {
    most: usize,
    refused: AtomicBool,
}

impl Mappings {
    /// Of a process that may have `most`; unknown, as many as Linux gives by default.
    pub(crate) fn of(most: Option<u64>) -> Self {
        let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(65_530);
        Self { most, refused: AtomicBool::new(false) }
    }
    /// So many pages, the first ones, may have guards between their slabs: a quarter of the mappings, with two for a slab of four pages.
    pub(crate) fn guarded_pages(&self) -> u32 {
        u32::try_from(self.most / 2).unwrap_or(u32::MAX)
    }
    /// So many pieces above 32 KiB may be mappings with a guard: two each, another quarter.
    pub(crate) fn guarded_pieces(&self) -> usize {
        self.most / 8
    }
    /// True until the system refuses a guard. Later mappings have none, so that the process's other mappings are not refused.
    pub(crate) fn are_there(&self) -> bool {
        // Relaxed: a hint.
        !self.refused.load(Relaxed)
    }
    /// The system refused one. Says so, once.
    #[cold]
    pub(crate) fn refuse(&self) {
        // Relaxed: the first thread says it.
        if !self.refused.swap(true, Relaxed) {
            let why = "the system refuses mappings (vm.max_map_count)";
            let _ = writeln!(Lines::new(), "uslab: harden: {why}: new memory has no guard pages");
        }
    }
}

/// What nobody outside of the process knows.
#[derive(Debug)]
pub(crate) struct Secret {
    key: [u64; 2],
    drawn: Counter,
}

impl Secret {
    pub(crate) fn new(harden: &Harden) -> Self {
        let key = match harden.seed {
            Some(seed) => [seed, 0],
            None => [0_u8, 1].map(|word| RandomState::new().hash_one(word)),
        };
        Self { key, drawn: Counter::new(0) }
    }
    /// A key of its own for whoever is made.
    pub(crate) fn next(&self) -> Key {
        self.drawn.add(1);
        let [first, second] = self.key;
        Key([first, second.wrapping_add(self.drawn.get())])
    }
}

/// What somebody's random numbers follow from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key([u64; 2]);

impl Key {
    pub(crate) fn hash(self, of: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.into_iter().chain([of]).for_each(|word| hasher.write_u64(word));
        hasher.finish()
    }
}

/// Random numbers of one lock hold: Steele, Lea and Flood's SplitMix64 (2014) from a secret beginning.
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
    /// One of `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// What a cache does to its objects on their way.
#[derive(Debug)]
pub(crate) struct Hardened {
    canary: Option<Canary>,
    /// Bytes of each object that are zero while it is free.
    zeroed: usize,
}

impl Hardened {
    /// For objects of `size` bytes with so many behind them; `zeroed` if they are zero while they are free.
    pub(crate) fn new(key: Key, harden: &Harden, size: usize, tail: usize, zeroed: bool) -> Option<Self> {
        let canary = (harden.canaries && tail >= CANARY)
            .then(|| Canary { keys: [key.hash(0), key.hash(1) | 1], size });
        let zeroed = if zeroed { size } else { 0 };
        (canary.is_some() || zeroed > 0).then_some(Self { canary, zeroed })
    }
    /// An object leaves for a caller, who has all of its bytes.
    ///
    /// # Errors
    /// It was written to while it was free.
    ///
    /// # Safety
    /// It is an object of the cache and the caller's alone.
    pub(crate) unsafe fn on_alloc(&self, object: NonNull<u8>) -> Result<(), CorruptionKind> {
        // SAFETY: so many bytes of it are the caller's.
        let bytes = unsafe { core::slice::from_raw_parts(object.as_ptr(), self.zeroed) };
        let clean = bytes.iter().fold(0, |all, byte| all | byte) == 0;
        // SAFETY: passed on.
        unsafe { self.resize(object, usize::MAX) };
        if clean { Ok(()) } else { Err(CorruptionKind::WriteAfterFree) }
    }
    /// It comes back.
    ///
    /// # Errors
    /// It was written to behind its end.
    ///
    /// # Safety
    /// As [`on_alloc`](Self::on_alloc), which was called for it.
    pub(crate) unsafe fn on_free(&self, object: NonNull<u8>) -> Result<(), CorruptionKind> {
        // SAFETY: passed on.
        match self.canary.as_ref().map(|canary| unsafe { canary.size(object) }) {
            Some(None) => Err(CorruptionKind::Overflow),
            _ => Ok(()),
        }
    }
    /// The object is of a new slab that no other thread knows; or it is damaged, and was reported. From now on its canary is right, whether it is in use or free.
    ///
    /// # Safety
    /// It is an object of the cache, and this thread's alone; or what is behind it was written to.
    pub(crate) unsafe fn prepare(&self, object: NonNull<u8>) {
        // SAFETY: passed on.
        self.canary.as_ref().inspect(|canary| unsafe { canary.put(object, 0) });
    }
    /// True if the words behind objects can be checked while others use these.
    pub(crate) fn checks_others(&self) -> bool {
        self.canary.as_ref().is_some_and(Canary::is_aligned)
    }
    /// True if the word behind an object is right.
    ///
    /// # Safety
    /// It is an object of the cache that was [prepared](Self::prepare), and this thread's alone if the cache
    /// [checks no others](Self::checks_others).
    pub(crate) unsafe fn is_whole(&self, object: NonNull<u8>) -> bool {
        // SAFETY: passed on.
        self.canary.as_ref().is_none_or(|canary| unsafe { canary.slack(object) }.is_some())
    }
    /// Its caller asked for `size` bytes, no more than it has. `false` if nobody takes notice.
    ///
    /// # Safety
    /// As [`on_alloc`](Self::on_alloc); it is not used meanwhile.
    pub(crate) unsafe fn resize(&self, object: NonNull<u8>, size: usize) -> bool {
        // SAFETY: passed on.
        self.canary.as_ref().map(|canary| unsafe { canary.set(object, size.min(canary.size)) }).is_some()
    }
    /// Bytes that its caller asked for, if that is known, and nobody wrote over it.
    ///
    /// # Safety
    /// As [`on_free`](Self::on_free).
    pub(crate) unsafe fn size(&self, object: NonNull<u8>) -> Option<usize> {
        // SAFETY: passed on.
        self.canary.as_ref().and_then(|canary| unsafe { canary.size(object) })
    }
}

/// Bytes of a canary.
pub(crate) const CANARY: usize = 8;
/// How the first byte behind what was asked for differs from those that follow.
const FIRST: u8 = 0x80;

/// What lies behind an object: up to its end bytes that follow from its address and the secret; then a word of the length of these in
/// 16 bits, and a check of it and the address in 48. The first of the bytes differs from the others, which are alike. So a write behind what
/// was asked for is noticed: of a single byte but for one in 128 that writes what is there, of the same byte twice and more in any case.
#[derive(Debug)]
struct Canary {
    keys: [u64; 2],
    /// Bytes of the object.
    size: usize,
}

impl Canary {
    fn word(&self, object: NonNull<u8>, slack: u16) -> u64 {
        let [first, second] = self.keys;
        let place = mix(object.addr().get() as u64 ^ first);
        mix(place ^ u64::from(slack).wrapping_add(1).wrapping_mul(second)) << 16
            | u64::from(slack ^ place as u16)
    }
    /// The byte that what was not asked for is filled with. Not 0, which programs write behind their texts.
    fn fill(&self, object: NonNull<u8>) -> u8 {
        (mix(object.addr().get() as u64 ^ self.keys[1]) as u8) | 1
    }
    /// # Safety
    /// The object and the word behind it are the caller's.
    unsafe fn set(&self, object: NonNull<u8>, size: usize) {
        let slack = (self.size - size) as u16;
        // SAFETY: by contract.
        unsafe {
            object.add(size).write_bytes(self.fill(object), usize::from(slack));
            if slack > 0 {
                object.add(size).write(self.fill(object) ^ FIRST);
            }
            self.put(object, slack);
        }
    }
    /// True if other threads may read words while they are written.
    fn is_aligned(&self) -> bool {
        self.size.is_multiple_of(CANARY)
    }
    /// Writes the word.
    ///
    /// # Safety
    /// The object is this thread's; or its word is aligned, and others read it or write another one that is right.
    unsafe fn put(&self, object: NonNull<u8>, slack: u16) {
        let word = self.word(object, slack);
        // SAFETY: by contract; objects are aligned to words at least. A word of a checker is none of these.
        unsafe {
            let at = object.add(self.size).cast::<u64>();
            if self.is_aligned() && !MODEL {
                // Relaxed: readers take any word that is right.
                return at.cast::<AtomicU64>().as_ref().store(word, Relaxed);
            }
            at.write_unaligned(word);
        }
    }
    /// The slack that the word has; `None` if it is not right.
    ///
    /// # Safety
    /// The word is there; if it is not aligned, it is this thread's.
    unsafe fn slack(&self, object: NonNull<u8>) -> Option<u16> {
        // SAFETY: by contract.
        let found = unsafe {
            let at = object.add(self.size).cast::<u64>();
            // Relaxed: as in `put`.
            if self.is_aligned() && !MODEL {
                at.cast::<AtomicU64>().as_ref().load(Relaxed)
            } else {
                at.read_unaligned()
            }
        };
        let slack = found as u16 ^ mix(object.addr().get() as u64 ^ self.keys[0]) as u16;
        (usize::from(slack) <= self.size && found == self.word(object, slack)).then_some(slack)
    }
    /// Bytes that were asked for; `None` if anything behind them was written to.
    ///
    /// # Safety
    /// As [`set`](Self::set).
    unsafe fn size(&self, object: NonNull<u8>) -> Option<usize> {
        // SAFETY: by contract.
        let slack = unsafe { self.slack(object)? };
        let size = self.size - usize::from(slack);
        // SAFETY: by contract.
        let fill = unsafe { core::slice::from_raw_parts(object.add(size).as_ptr(), usize::from(slack)) };
        let byte = self.fill(object);
        let whole = |(first, others): (&u8, &[u8])| {
            *first == byte ^ FIRST && others.iter().all(|other| *other == byte)
        };
        fill.split_first().is_none_or(whole).then_some(size)
    }
}

/// The quarantine that a cache is to have.
pub(crate) fn quarantine(harden: &Harden, key: Key, stride: usize) -> Option<Quarantine> {
    let objects = (harden.quarantine / stride).min(MOST_QUARANTINED);
    (objects > 0).then(|| Quarantine::new(objects, key.hash(2)))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_part_hardens_something_and_a_seed_nothing() {
        let parts = [
            Harden { random_order: true, ..Harden::OFF },
            Harden { quarantine: 1, ..Harden::OFF },
            Harden { slab_guards: true, seed: Some(7), ..Harden::OFF },
            Harden::ALL,
        ];
        assert!(parts.iter().all(Harden::is_on));
        assert!(!Harden::OFF.is_on() && !Harden { seed: Some(7), ..Harden::OFF }.is_on());
    }

    /// From 0, as Vigna's `splitmix64.c` (2015) gives them.
    #[test]
    fn draws_are_the_published_numbers() {
        let mut draws = Draws(0);
        let published = [0xe220_a839_7b1d_cdaf_u64, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        assert_eq!([(); 3].map(|()| draws.next()), published);
    }

    #[test]
    fn the_second_key_of_canaries_is_odd_and_of_each_cache_another() {
        let secret = Secret::new(&Harden { seed: Some(7), ..Harden::ALL });
        let second = |_| {
            let hardened = Hardened::new(secret.next(), &Harden::ALL, 64, CANARY, false).unwrap();
            hardened.canary.unwrap().keys[1]
        };
        let keys: std::collections::BTreeSet<u64> = (0..50).map(second).collect();
        assert!(keys.len() == 50 && keys.iter().all(|key| key % 2 == 1), "{keys:x?}");
    }

    #[test]
    fn what_canaries_write_differs_from_object_to_object_in_every_bit_of_their_addresses() {
        let canary = Canary { keys: [0x1234_5678, 0], size: 64 };
        let at = |bit: u32| NonNull::new(core::ptr::without_provenance_mut(1 << bit)).unwrap();
        let fills: std::collections::BTreeSet<_> = (4..47).map(|bit| canary.fill(at(bit))).collect();
        assert!(fills.len() > 20, "{fills:?}");
        let words: std::collections::BTreeSet<_> = (4..47).map(|bit| canary.word(at(bit), 0)).collect();
        assert_eq!(words.len(), 43);
        // Each bit of the object's place counts, whatever the second key is.
        let canary = Canary { keys: [5, 1], size: 64 };
        let words: std::collections::BTreeSet<_> = (4..47).map(|bit| canary.word(at(bit), 0) >> 16).collect();
        assert_eq!(words.len(), 43);
        let secret = Secret::new(&Harden { seed: Some(7), ..Harden::ALL });
        assert_ne!(secret.next().hash(0), secret.next().hash(0), "a key of its own for each");
        let key = secret.next();
        assert!(Hardened::new(key, &Harden::OFF, 64, 8, false).is_none(), "nothing is hardened");
    }

    #[test]
    fn a_canary_knows_what_was_asked_for_and_each_byte_behind_it() {
        let secret = Secret::new(&Harden { seed: Some(7), ..Harden::ALL });
        let hardened = Hardened::new(secret.next(), &Harden::ALL, 104, 8, false).unwrap();
        let mut memory = [0_u8; 112];
        let object = NonNull::from(&mut memory).cast::<u8>();
        for size in 0..=104 {
            // SAFETY: so many bytes are the test's.
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

    /// What wrote one byte again and again was found but for one in 128: where it was the canary's.
    #[test]
    fn the_same_byte_written_twice_behind_an_object_is_noticed_whatever_it_is() {
        let secret = Secret::new(&Harden { seed: Some(7), ..Harden::ALL });
        let hardened = Hardened::new(secret.next(), &Harden::ALL, 104, 8, false).unwrap();
        let mut memory = [0_u8; 112];
        let object = NonNull::from(&mut memory).cast::<u8>();
        for (byte, size) in (0..=u8::MAX).flat_map(|byte| [(byte, 96), (byte, 102)]) {
            // SAFETY: so many bytes are the test's.
            unsafe {
                assert!(hardened.resize(object, size));
                object.add(size).write_bytes(byte, 2);
                assert_eq!(hardened.size(object), None, "{byte:#x} behind {size}");
            }
        }
    }

    #[test]
    fn draws_follow_from_the_seed_and_reach_everything() {
        let draws = |seed| {
            let mut draws = Draws::of(Secret::new(&Harden { seed: Some(seed), ..Harden::ALL }).next(), 0);
            (0..200).map(|_| draws.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        assert!((0..10).all(|n| draws(3).contains(&n)));
        let unknown = || Secret::new(&Harden::ALL).next().hash(0);
        assert_ne!(unknown(), unknown());
    }
}
