//! Sampled guard: one allocation in many gets a separate page between two inaccessible pages, as in Linux's KFENCE and
//! GWP-ASan.
//!
//! ```text
//! pool   [ guard ][ slot 0 ][ guard ][ slot 1 ][ guard ] ...
//!                  ^ object at either end, chosen at random; the rest of the page is filled, and checked at the free
//! ```
//!
//! A program that accesses a sampled object after its free, or memory outside the object, faults. [`faults`] reports
//! the kind of the error. The free of a sampled object detects writes that stayed within the page. The guard also
//! detects double frees and frees of interior addresses. With the feature `stacks`, reports include the call stacks of
//! the allocation and of the free.
//!
//! # Sampled allocations
//!
//! The guard samples allocations of [`Malloc`](crate::Malloc), of kmalloc and of object caches, up to a page. Sampling
//! does not change the inlined paths. A miss of the inlined path decides whether an allocation is sampled, and counts
//! as a whole magazine of allocations. A program that allocates and frees alternately never misses the inlined path. At
//! the end of an interval with fewer than half of the expected samples, the [reaper](crate::reaper) therefore drains
//! the CPUs' stacks of one class. The class is drawn at random, weighted by its number of allocations, and the next
//! allocation of that class is sampled.
//!
//! The guard's pool is outside the subsystem's pages. A free that finds its class by address therefore misses the
//! inlined path for a sample. A free that names its cache does not check the address, so frees to sampled caches do not
//! use the inlined path. Caches are sampled if their subsystem sets
//! [`Config::guard_every`](crate::Config::guard_every). The option of `Uslab` does not affect the global subsystem.
//!
//! Caches with a constructor, destructor or reset are not sampled, because their objects stay constructed. Type-stable
//! caches are not sampled, because readers may see their free objects. Caches with a limit or an account are not
//! sampled, because each of their objects counts towards the limit. Bulk allocations and prefilled stocks are not
//! sampled either.
//!
//! # Invariants
//!
//! * A slot is [`SLOT_BUSY`] while one thread works on it. Only the thread that works on a slot changes the slot's page and
//!   records.
//! * The guard has no lock, because a thread may fault while other threads are at any point of their work. In the child
//!   of a fork, each slot has a definite state, and the child takes over slots on which other threads were working.
//! * The guard tries slots in order, so a freed slot stays unused while allocations use the other slots. If all slots
//!   are in use, no allocation is sampled.

pub(crate) mod faults;

use crate::debug::corruption::CorruptionKind;
use crate::debug::stacks::CallStack;
use crate::harden::{Draws, Key};
use core::fmt;
use core::ptr::NonNull;
use uslab_buddy::region::{Region, Uncommitted};
use uslab_buddy::{Backend, Faults, PAGE_SIZE};
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::{AtomicU32, AtomicUsize, Counter, MODEL, UnsafeCell};

/// State of a slot that was never used.
const SLOT_FREE: u32 = 0;
/// State of a slot on which a thread is working.
const SLOT_BUSY: u32 = 1;
/// State of a slot whose page has an object in use.
const SLOT_USED: u32 = 2;
/// State of a slot whose object was freed.
const SLOT_FREED: u32 = 3;

/// Maximum number of slots that one sample tries.
const MAX_TRIED_SLOTS: usize = 8;
/// Byte that fills a sample's page outside of the object.
const FILL_BYTE: u8 = 0xA7;

/// Thread and call stack of an allocation or free.
#[derive(Debug, Default)]
struct Trace {
    thread: Counter,
    stack: Counter,
}

impl Trace {
    fn take(&self) {
        if !MODEL {
            self.thread.set(thread_id());
            self.stack.set(CallStack::save().number().into());
        }
    }
}

/// Returns the kernel's id of the current thread.
fn thread_id() -> u64 {
    #[cfg(target_os = "linux")]
    // SAFETY: the system call has no arguments.
    return unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    #[cfg(not(target_os = "linux"))]
    return 0;
}

#[derive(Debug)]
struct Slot {
    state: AtomicU32,
    /// Offset of the slot's object in the pool, in bytes.
    at: Counter,
    size: Counter,
    allocated: Trace,
    freed: Trace,
    /// A cell that lets a model checker detect two threads working on one slot at the same time.
    hands: UnsafeCell<()>,
}

// SAFETY: all fields except the cell are atomic. The cell has no data, and only model checkers
// access it.
unsafe impl Sync for Slot {}

impl Slot {
    fn new() -> Self {
        Self {
            state: AtomicU32::new(SLOT_FREE),
            at: Counter::new(0),
            size: Counter::new(0),
            allocated: Trace::default(),
            freed: Trace::default(),
            hands: UnsafeCell::new(()),
        }
    }
    /// Changes the slot's state from `from` to `SLOT_BUSY` for this thread. Returns `false` if the slot is in another
    /// state.
    fn take(&self, from: u32) -> bool {
        // Acquire: pairs with the Release of `give`. Relaxed: after a failed exchange, the thread
        // reads nothing else of the slot.
        let is_taken = self.state.compare_exchange(from, SLOT_BUSY, Acquire, Relaxed).is_ok();
        if is_taken {
            self.hands.with_mut(|_| ());
        }
        is_taken
    }
    fn give(&self, to: u32) {
        self.hands.with_mut(|_| ());
        // Release: pairs with the Acquire of `take`.
        self.state.store(to, Release);
    }
}

/// The slots' records, in separate memory. In the malloc's own memory, an overflow of the program could overwrite the
/// records.
#[cfg(not(any(loom, shuttle)))]
#[derive(Debug)]
struct Slots {
    memory: Region,
    len: usize,
}
#[cfg(not(any(loom, shuttle)))]
impl Slots {
    fn new(len: usize) -> Option<Self> {
        let (bytes, none) = (len * size_of::<Slot>(), &Faults::default());
        let memory = Region::committed(bytes, PAGE_SIZE, Backend::default(), none)?;
        // SAFETY: the memory has room for `len` slots, and is not shared yet.
        (0..len).for_each(|i| unsafe { memory.base().cast::<Slot>().add(i).write(Slot::new()) });
        Some(Self { memory, len })
    }
}
#[cfg(not(any(loom, shuttle)))]
impl core::ops::Deref for Slots {
    type Target = [Slot];
    fn deref(&self) -> &[Slot] {
        // SAFETY: `new` wrote the slots, and the memory stays mapped as long as `self` lives.
        unsafe { core::slice::from_raw_parts(self.memory.base().cast().as_ptr(), self.len) }
    }
}
#[cfg(any(loom, shuttle))]
type Slots = Box<[Slot]>;

#[derive(Debug)]
pub(crate) struct Pool {
    region: Region,
    slots: Slots,
    next_slot: AtomicUsize,
    key: Key,
}

/// Description of an invalid use of an address in the guard's pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InvalidAccess {
    what: &'static str,
    address: usize,
    object: Option<SlotRecord>,
}

/// Copy of a slot's record of its object. A copy is needed because a report may allocate, and thereby reuse the slot.
#[derive(Clone, Copy, Debug)]
struct SlotRecord {
    begin: usize,
    size: usize,
    /// Threads and call stacks of the object's allocation and of its free.
    traces: [Option<(u64, u64)>; 2],
}

impl Pool {
    /// Makes a pool of `slots` slots, or returns `None` if the system refuses address space.
    pub(crate) fn new(slots: usize, backend: Backend, key: Key) -> Option<Self> {
        let pages = 2 * slots + 1;
        let none = &Faults::default();
        let region = Region::reserve(pages * PAGE_SIZE, PAGE_SIZE, Uncommitted::NoAccess, backend, none)?;
        #[cfg(not(any(loom, shuttle)))]
        let slots = Slots::new(slots)?;
        #[cfg(any(loom, shuttle))]
        let slots = (0..slots).map(|_| Slot::new()).collect();
        Some(Self { region, slots, next_slot: AtomicUsize::new(0), key })
    }
    fn base(&self) -> usize {
        self.region.base().addr().get()
    }
    pub(crate) fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.base()) < self.region.bytes()
    }
    /// Returns the slot whose page contains `address`, or `None` if `address` is in a guard page.
    fn slot_containing_address(&self, address: usize) -> Option<usize> {
        let page = (address - self.base()) / PAGE_SIZE;
        (page % 2 == 1).then_some(page / 2)
    }
    fn page(slot: usize) -> core::ops::Range<usize> {
        let start = (2 * slot + 1) * PAGE_SIZE;
        start..start + PAGE_SIZE
    }

    /// Allocates a zeroed object in a separate page; returns `None` if no slot is free or the object is too
    /// large.
    pub(crate) fn alloc(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        if size == 0 || size > PAGE_SIZE || align > PAGE_SIZE {
            return None;
        }
        let taken_slot = (0..MAX_TRIED_SLOTS.min(self.slots.len())).find_map(|_| {
            // Relaxed: the counter only spreads the attempts over the slots.
            let next_slot = self.next_slot.fetch_add(1, Relaxed);
            let slot = next_slot % self.slots.len();
            let state_before =
                [SLOT_FREED, SLOT_FREE].into_iter().find(|state| self.slots[slot].take(*state));
            state_before.map(|state_before| (next_slot, slot, state_before))
        });
        let (next_slot, at, state_before) = taken_slot?;
        let (slot, page) = (&self.slots[at], Self::page(at));
        if !self.region.commit(page.clone()) {
            slot.give(state_before);
            return None;
        }
        let last = (PAGE_SIZE - size) & !(align - 1);
        let offset = if Draws::of(self.key, next_slot as u64).below(2) == 0 { last } else { 0 };
        // SAFETY: this thread has taken the slot, whose page is accessible.
        unsafe {
            let start = self.region.base().add(page.start);
            start.write_bytes(FILL_BYTE, offset);
            start.add(offset).write_bytes(0, size);
            start.add(offset + size).write_bytes(FILL_BYTE, PAGE_SIZE - offset - size);
        }
        slot.at.set((page.start + offset) as u64);
        slot.size.set(size as u64);
        slot.allocated.take();
        slot.give(SLOT_USED);
        // SAFETY: the offset is within the region.
        Some(unsafe { self.region.base().add(page.start + offset) })
    }

    /// Returns the size in bytes of the object at an address of the pool.
    ///
    /// # Errors
    /// Fails if the address has no object in use.
    pub(crate) fn size_of(&self, address: usize) -> Result<usize, CorruptionKind> {
        let slot = &self.slots[self.slot_containing_address(address).ok_or(CorruptionKind::Foreign)?];
        // Relaxed: the owner of an object has synchronised with its `alloc`. For an address that is not an object in
        // use, the result is a guess.
        match slot.state.load(Relaxed) {
            SLOT_USED if self.base() as u64 + slot.at.get() == address as u64 => Ok(slot.size.get() as usize),
            SLOT_USED => Err(CorruptionKind::Interior),
            _ => Err(CorruptionKind::DoubleFree),
        }
    }

    /// Frees an object, whose page becomes inaccessible.
    ///
    /// # Errors
    /// An error has the kind of the corruption, and a description of the invalid access. The object is freed even if
    /// the error is [`CorruptionKind::Overflow`].
    pub(crate) fn free(&self, address: usize) -> Result<(), (CorruptionKind, InvalidAccess)> {
        let at = self.slot_containing_address(address);
        let mistake = |what| InvalidAccess { what, address, object: at.map(|slot| self.slot_record(slot)) };
        let wrong = |kind: CorruptionKind| {
            (
                kind,
                mistake(if kind == CorruptionKind::DoubleFree {
                    "double free"
                } else {
                    "free of an address inside an object"
                }),
            )
        };
        let found = self.size_of(address);
        let (Ok(size), Some(at)) = (found, at) else {
            return Err(wrong(found.err().unwrap_or(CorruptionKind::Foreign)));
        };
        let (slot, page) = (&self.slots[at], Self::page(at));
        if !slot.take(SLOT_USED) {
            return Err(wrong(CorruptionKind::DoubleFree));
        }
        // SAFETY: this thread has taken the slot, whose page is accessible.
        let bytes =
            unsafe { core::slice::from_raw_parts(self.region.base().as_ptr().add(page.start), PAGE_SIZE) };
        let offset = address - self.base() - page.start;
        let is_fill = |bytes: &[u8]| bytes.iter().all(|byte| *byte == FILL_BYTE);
        let what = match (is_fill(&bytes[..offset]), is_fill(&bytes[offset + size..])) {
            (true, true) => None,
            (true, false) => Some("write past the end"),
            (false, _) => Some("write before the start"),
        };
        slot.freed.take();
        // SAFETY: by contract, the caller no longer uses the object. If the page cannot be made inaccessible, it is at
        // least zeroed.
        unsafe { self.region.decommit(page) };
        // The record is copied before another thread can take the slot.
        let object = what.map(|_| self.record_of_slot(slot, true));
        slot.give(SLOT_FREED);
        what.map_or(Ok(()), |what| Err((CorruptionKind::Overflow, InvalidAccess { what, address, object })))
    }

    fn slot_record(&self, slot: usize) -> SlotRecord {
        let slot = &self.slots[slot];
        // Relaxed: a report may describe an object on which another thread works.
        self.record_of_slot(slot, slot.state.load(Relaxed) == SLOT_FREED)
    }
    fn record_of_slot(&self, slot: &Slot, freed: bool) -> SlotRecord {
        let read_trace = |trace: &Trace| (trace.thread.get(), trace.stack.get());
        SlotRecord {
            begin: self.base() + slot.at.get() as usize,
            size: slot.size.get() as usize,
            traces: [Some(read_trace(&slot.allocated)), freed.then(|| read_trace(&slot.freed))],
        }
    }
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "no faults are told there"))]
    pub(crate) fn fault(&self, address: usize) -> InvalidAccess {
        // Relaxed: a report may describe an object on which another thread works.
        let state = |slot: usize| self.slots[slot].state.load(Relaxed);
        if let Some(slot) = self.slot_containing_address(address) {
            let what = if state(slot) == SLOT_FREED {
                "use after free"
            } else {
                "access to memory that was never allocated"
            };
            return InvalidAccess { what, address, object: Some(self.slot_record(slot)) };
        }
        // A guard page is between two objects' pages, and the report names the nearer object.
        let page = (address - self.base()) / PAGE_SIZE / 2;
        let lower = page.checked_sub(1);
        let distance = |slot: &usize| {
            let object = &self.slots[*slot];
            let begin = self.base() + object.at.get() as usize;
            address.abs_diff(begin).min(address.abs_diff(begin + object.size.get() as usize))
        };
        let adjacent = [lower, Some(page)].into_iter().flatten().filter(|slot| *slot < self.slots.len());
        let slot = adjacent.filter(|slot| state(*slot) != SLOT_FREE).min_by_key(distance);
        let what = match slot {
            None => "access to memory that was never allocated",
            Some(_) if slot == lower => "overflow",
            Some(_) => "underflow",
        };
        InvalidAccess { what, address, object: slot.map(|slot| self.slot_record(slot)) }
    }

    /// Frees the slots on which other threads were working when the process forked.
    ///
    /// # Safety
    /// The process must be the child of a fork, and must have no other thread.
    pub(crate) unsafe fn forget_other_threads(&self) {
        for slot in self.slots.iter() {
            // Relaxed: the child has one thread.
            if slot.state.load(Relaxed) == SLOT_BUSY {
                slot.give(SLOT_FREE);
            }
        }
    }
    pub(crate) fn used(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state.load(Relaxed) == SLOT_USED).count()
    }
}

impl fmt::Display for InvalidAccess {
    /// Writes a line with error, object and threads, then the stacks with one function per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, address, object } = *self;
        let Some(SlotRecord { begin, size, traces }) = object else {
            return writeln!(f, "{what}: {address:#x}");
        };
        let (distance, side) = match address {
            at if at < begin => (begin - at, "before the start"),
            at if at >= begin + size => (at - begin - size, "past the end"),
            at => (at - begin, "after the start"),
        };
        writeln!(
            f,
            "{what}: {address:#x}, {distance} bytes {side} of an object of {size} bytes at {begin:#x}"
        )?;
        for (what, trace) in ["allocated", "freed"].into_iter().zip(traces) {
            let Some((thread, stack)) = trace else { continue };
            writeln!(f, "{what} by thread {thread}:")?;
            write!(f, "{}", CallStack::from_number(stack as u32))?;
        }
        Ok(())
    }
}

pub(crate) use sampled::Guard;

mod sampled {
    use super::{Backend, Key, Pool, faults};
    use crate::harden::Draws;
    use crate::published::Published;
    use core::ptr::NonNull;
    use uslab_magazine::sync::Ordering::Relaxed;
    use uslab_magazine::sync::{AtomicU32, Counter};

    const POOL_NOT_STARTED: u32 = 0;
    const POOL_STARTED: u32 = 1;
    const POOL_FORBIDDEN: u32 = 2;

    /// Decides which allocations are sampled, and owns the pool, which the first sample creates.
    #[derive(Debug)]
    pub(crate) struct Guard {
        /// Mean number of allocations per sample; 0 disables sampling.
        every: Counter,
        slots: Counter,
        /// Number of allocations until the next sample; a sample is due if this signed number is at most 0.
        left: Counter,
        samples: Counter,
        /// Total numbers of allocations and of samples at the end of the last interval.
        last_counts: [Counter; 2],
        key: Key,
        backend: Backend,
        /// State of the pool: not made yet, made or being made, or never to be made.
        pool_state: AtomicU32,
        pool: Published<Pool>,
    }

    impl Guard {
        pub(crate) fn new(every: u32, slots: u32, backend: Backend, key: Key) -> Self {
            let guard = Self {
                every: Counter::new(0),
                slots: Counter::new(0),
                left: Counter::new(0),
                samples: Counter::new(0),
                last_counts: [const { Counter::new(0) }; 2],
                key,
                backend,
                pool_state: AtomicU32::new(POOL_NOT_STARTED),
                pool: Published::new(),
            };
            guard.set(every, slots);
            guard
        }
        pub(crate) fn set(&self, every: u32, slots: u32) {
            self.slots.set(slots.max(1).into());
            self.left.set(self.distance(every.into()));
            self.every.set(every.into());
        }
        /// Draws a random number of allocations until the next sample; the mean is `every`.
        fn distance(&self, every: u64) -> u64 {
            1 + Draws::of(self.key, self.samples.get()).below((2 * every as usize).saturating_sub(1)) as u64
        }

        /// Counts `allocations` allocations, and returns `true` if one of them should be sampled.
        #[inline]
        pub(crate) fn is_due(&self, allocations: u64) -> bool {
            let every = self.every.get();
            if every == 0 {
                return false;
            }
            self.left.sub(allocations);
            // If two threads find at the same time that a sample is due, both take a sample, or one thread also resets
            // the other thread's count.
            let due = self.left.get().cast_signed() <= 0;
            if due {
                self.left.set(self.distance(every));
            }
            due
        }
        #[cold]
        pub(crate) fn alloc(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
            let pool = match self.pool.get() {
                Some(pool) => pool,
                // Making the pool allocates memory. While one thread makes the pool, no thread's allocations are
                // sampled. If the system has refused a pool, the guard does not try again. Relaxed: the state only
                // selects the thread that makes the pool.
                None if self
                    .pool_state
                    .compare_exchange(POOL_NOT_STARTED, POOL_STARTED, Relaxed, Relaxed)
                    .is_err() =>
                {
                    return None;
                }
                None => {
                    let slots = self.slots.get() as usize;
                    let pool = try_new_box(Pool::new(slots, self.backend, self.key)?)?;
                    // The pool's addresses may be in a range that was unmapped earlier. Relaxed: `pool_state` was set
                    // before the system could map the range for the pool.
                    if self.pool_state.load(Relaxed) == POOL_FORBIDDEN {
                        return None;
                    }
                    self.pool.publish(pool)
                }
            };
            faults::register_pool_for_faults(pool);
            let memory = pool.alloc(size, align)?;
            self.samples.add(1);
            Some(memory)
        }
        /// Prevents the creation of a pool; an existing pool stays in use.
        pub(crate) fn forbid_pool_creation(&self) {
            self.pool_state.store(POOL_FORBIDDEN, Relaxed);
        }
        pub(crate) fn pool(&self) -> Option<&Pool> {
            self.pool.get()
        }
        /// Returns the guard's pool if the address belongs to it.
        pub(crate) fn pool_of(&self, address: NonNull<u8>) -> Option<&Pool> {
            self.pool.get().filter(|pool| pool.holds(address.addr().get()))
        }
        pub(crate) fn samples(&self) -> u64 {
            self.samples.get()
        }
        pub(crate) fn is_on(&self) -> bool {
            self.every.get() > 0
        }
        /// Ends an interval, given the total number of allocations so far. If the interval had fewer than half of the
        /// expected samples, returns `true`, and makes the next miss a sample.
        pub(crate) fn end_interval(&self, allocations: u64) -> bool {
            let ([allocated, sampled], samples) = (&self.last_counts, self.samples.get());
            // The sum no longer includes the counts of destroyed caches.
            allocated.set(allocated.get().min(allocations));
            let requested = match self.every.get() {
                0 => 0,
                every => allocations.saturating_sub(allocated.get()) / every,
            };
            // The remainder is carried over to the next interval.
            if requested == 0 {
                return false;
            }
            let has_too_few_samples = samples.wrapping_sub(sampled.get()) * 2 < requested;
            allocated.set(allocations);
            sampled.set(samples);
            if has_too_few_samples {
                self.left.set(0);
            }
            has_too_few_samples
        }
        /// Returns a random number in `0..n`.
        pub(crate) fn draw(&self, n: usize) -> usize {
            Draws::of(self.key, self.last_counts[0].get()).below(n)
        }
    }

    fn try_new_box<T>(value: T) -> Option<Box<T>> {
        let mut storage = Vec::new();
        storage.try_reserve_exact(1).ok()?;
        storage.push(value);
        // SAFETY: the memory contains one `T`, and has the layout of a box.
        Some(unsafe { Box::from_raw(Box::into_raw(storage.into_boxed_slice()).cast()) })
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            if let Some(pool) = self.pool.get() {
                faults::unregister_pool(pool);
                // SAFETY: the pool was published from a box. The subsystem's last user drops the guard; only a fault
                // handler might still use the pool.
                drop(unsafe { Box::from_raw(core::ptr::from_ref(pool).cast_mut()) });
            }
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, uslab_heap))))]
mod tests {
    use super::*;
    use crate::harden::{Harden, RandomKeys};
    use uslab_buddy::faults::{COMMIT, DECOMMIT, Rule};

    /// Returns `true` if this process can read the byte at address `at`. The kernel tests the access without a fault.
    fn is_accessible(at: usize) -> bool {
        let mut byte = 0_u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(at), iov_len: 1 };
        // SAFETY: the call writes at most to the local byte.
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) == 1 }
    }
    fn pool(slots: usize) -> Pool {
        let key = RandomKeys::new(&Harden { seed: Some(7), ..Harden::OFF }).next();
        Pool::new(slots, Backend::Os, key).unwrap()
    }
    /// Makes a pool of two slots, whose page operations fail according to `faults`.
    fn pool_with_faults(faults: &Faults) -> Pool {
        let bytes = 5 * PAGE_SIZE;
        let region = Region::reserve(bytes, PAGE_SIZE, Uncommitted::NoAccess, Backend::Os, faults).unwrap();
        Pool { region, ..pool(2) }
    }

    #[test]
    fn sampled_objects_start_or_end_at_page_boundaries() {
        let pool = pool(8);
        let mut ends = [0; 2];
        for round in 0..64 {
            let object = pool.alloc(48, 16).unwrap();
            let at = object.addr().get();
            ends[usize::from(at.is_multiple_of(PAGE_SIZE))] += 1;
            assert_eq!(pool.size_of(at).ok(), Some(48));
            assert_eq!(pool.size_of(at + 1).err(), Some(CorruptionKind::Interior));
            // SAFETY: the test owns the object.
            let bytes = unsafe { core::slice::from_raw_parts(object.as_ptr(), 48) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            // SAFETY: the test owns the object.
            unsafe { object.write_bytes(round, 48) };
            assert!(is_accessible(at) && pool.free(at).is_ok());
            assert_eq!(pool.size_of(at).err(), Some(CorruptionKind::DoubleFree));
            assert!(!is_accessible(at));
            let (kind, mistake) = pool.free(at).unwrap_err();
            assert!(kind == CorruptionKind::DoubleFree && mistake.to_string().starts_with("double free: "));
            let (kind, mistake) = pool.free(at + 1).unwrap_err();
            assert!(kind == CorruptionKind::DoubleFree && mistake.to_string().starts_with("double free: "));
        }
        let at = pool.alloc(48, 16).unwrap().addr().get();
        let (kind, mistake) = pool.free(at + 1).unwrap_err();
        assert_eq!(kind, CorruptionKind::Interior);
        assert!(mistake.to_string().starts_with("free of an address inside an object: "), "{mistake}");
        assert!(ends.iter().all(|n| *n > 8), "{ends:?}");
    }

    #[test]
    fn guard_pool_refuses_objects_larger_than_a_page() {
        let pool = pool(2);
        let end = pool.base() + pool.region.bytes();
        assert_eq!(
            [pool.base() - 1, pool.base(), end - 1, end].map(|at| pool.holds(at)),
            [false, true, true, false]
        );
        for (size, align) in [(0, 8), (PAGE_SIZE + 1, 8), (8, 2 * PAGE_SIZE)] {
            assert!(pool.alloc(size, align).is_none(), "{size} {align}");
        }
        for align in (0..=12).map(|bit| 1 << bit) {
            for size in [1, 40, PAGE_SIZE - 8, PAGE_SIZE] {
                let at = pool.alloc(size, align).unwrap().addr().get();
                let behind = PAGE_SIZE - at % PAGE_SIZE - size;
                assert!(at.is_multiple_of(PAGE_SIZE) || behind < align, "{size} {align}");
                assert!(at.is_multiple_of(align), "{size} {align}");
                assert!(pool.free(at).is_ok());
            }
        }
    }

    #[test]
    fn disabled_guard_samples_no_allocation() {
        let key = RandomKeys::new(&Harden { seed: Some(7), ..Harden::OFF }).next();
        let disabled = Guard::new(0, 4, Backend::Os, key);
        assert!((0..9).all(|_| !disabled.is_due(1)));
        let rarely_sampling = Guard::new(1 << 20, 4, Backend::Os, key);
        assert!((0..9).all(|_| !rarely_sampling.is_due(1)), "the first sample must not be early");
        let guard = Guard::new(1, 4, Backend::Os, key);
        let distances = (0..200).map(|n| {
            guard.end_interval(n * 8);
            guard.draw(5)
        });
        assert_eq!(distances.collect::<std::collections::BTreeSet<_>>().len(), 5);
    }

    #[test]
    fn guard_without_a_sample_pool_samples_no_allocation() {
        let key = RandomKeys::new(&Harden { seed: Some(7), ..Harden::OFF }).next();
        let guard = Guard::new(1, 4, Backend::Os, key);
        guard.forbid_pool_creation();
        assert!((0..3).all(|_| guard.alloc(8, 8).is_none()));
        assert!(guard.pool().is_none() && guard.samples() == 0);
    }

    #[test]
    fn failed_guard_page_commit_frees_the_slot() {
        let faults = Faults::new(1);
        let pool = pool_with_faults(&faults);
        faults.arm(vec![Rule::every(Some(COMMIT))]);
        assert!((0..9).all(|_| pool.alloc(8, 8).is_none()));
        assert_eq!(pool.used(), 0);
        faults.disarm();
        assert!((0..2).all(|_| pool.alloc(8, 8).is_some()));
        assert_eq!(pool.used(), 2);
    }

    /// Regression test: if a change of page protection failed, a later report called the address never allocated.
    #[test]
    fn guard_sample_counts_as_freed_if_page_protection_fails() {
        let faults = Faults::new(1);
        let pool = pool_with_faults(&faults);
        let objects = [(); 2].map(|()| pool.alloc(8, 8).unwrap().addr().get());
        objects.into_iter().for_each(|object| assert!(pool.free(object).is_ok()));
        faults.arm(vec![Rule::every(Some(COMMIT))]);
        assert!((0..9).all(|_| pool.alloc(8, 8).is_none()));
        for object in objects {
            let mistake = pool.fault(object);
            assert_eq!(mistake.what, "use after free");
            assert!(
                mistake.object.unwrap().traces.iter().all(Option::is_some),
                "the report names the thread that freed the object"
            );
        }
    }

    /// The test uses `mlockall`, which also makes the system refuse decommits.
    #[test]
    fn guard_samples_are_zeroed_if_decommit_fails() {
        let faults = Faults::new(1);
        let pool = pool_with_faults(&faults);
        faults.arm(vec![Rule::every(Some(DECOMMIT))]);
        for _ in 0..16 {
            let object = pool.alloc(48, 16).unwrap();
            // SAFETY: the test owns the object.
            let bytes = unsafe { core::slice::from_raw_parts_mut(object.as_ptr(), 48) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(3);
            assert!(pool.free(object.addr().get()).is_ok());
        }
    }

    #[test]
    fn freeing_a_guard_sample_detects_overruns_within_its_page() {
        let pool = pool(4);
        let mut last_counts = [false; 2];
        for _ in 0..32 {
            let object = pool.alloc(40, 16).unwrap();
            let at = object.addr().get();
            let left = at.is_multiple_of(PAGE_SIZE);
            // SAFETY: the address is in the object's page.
            unsafe { if left { object.add(40).write(1) } else { object.sub(1).write(1) } };
            let (kind, mistake) = pool.free(at).unwrap_err();
            let side = if left { "write past the end" } else { "write before the start" };
            assert!(kind == CorruptionKind::Overflow && mistake.to_string().starts_with(side), "{mistake}");
            last_counts[usize::from(left)] = true;
        }
        assert_eq!(last_counts, [true; 2]);
    }

    #[test]
    fn full_guard_pool_samples_no_allocation() {
        let pool = pool(4);
        let objects: Vec<_> = (0..4).map(|_| pool.alloc(8, 8).unwrap()).collect();
        assert!(pool.alloc(8, 8).is_none());
        assert_eq!(pool.used(), 4);
        for object in &objects {
            assert!(pool.free(object.addr().get()).is_ok());
        }
        let slots = |object: &NonNull<u8>| pool.slot_containing_address(object.addr().get()).unwrap();
        let reused_slots: Vec<_> = (0..4).map(|_| slots(&pool.alloc(8, 8).unwrap())).collect();
        assert!(
            reused_slots.iter().zip(&objects).all(|(reused_slots, first)| *reused_slots == slots(first)),
            "the slots are used in order"
        );
        assert!(pool.alloc(0, 8).is_none() && pool.alloc(PAGE_SIZE + 1, 8).is_none());
    }

    #[test]
    fn invalid_access_between_guard_samples_is_attributed_to_the_nearer_object() {
        let pool = pool(2);
        let objects: Vec<_> = (0..2).map(|_| pool.alloc(PAGE_SIZE, 16).unwrap().addr().get()).collect();
        let (low, high) = (*objects.iter().min().unwrap(), *objects.iter().max().unwrap());
        let text = |at| pool.fault(at).to_string();
        assert!(text(low + PAGE_SIZE).starts_with("overflow: "), "{}", text(low + PAGE_SIZE));
        assert!(text(low + PAGE_SIZE).contains(", 0 bytes past the end of an object of 4096 bytes"));
        assert!(text(high - 1).starts_with("underflow: ") && text(high - 1).contains(", 1 bytes before"));
        assert!(text(low - 8).starts_with("underflow: "));
        assert!(text(high + PAGE_SIZE + 7).starts_with("overflow: "));
        assert!(pool.free(low).is_ok());
        assert!(
            text(low + 12).starts_with("use after free: ") && text(low + 12).contains("\nfreed by thread")
        );
        for at in [0, 12] {
            let place = format!(", {at} bytes after the start of an object of 4096 bytes");
            assert!(text(low + at).contains(&place), "{}", text(low + at));
        }
    }

    #[test]
    fn guard_report_names_the_allocating_and_freeing_threads() {
        let pool = pool(1);
        let allocate = || (pool.alloc(8, 8).unwrap().addr().get(), thread_id());
        let (at, other) = std::thread::scope(|scope| scope.spawn(allocate).join().unwrap());
        assert!(pool.free(at).is_ok());
        let (report_text, here) = (pool.fault(at).to_string(), thread_id());
        assert!(
            other != here && report_text.contains(&format!("\nallocated by thread {other}:\n")),
            "{report_text}"
        );
        assert!(report_text.contains(&format!("\nfreed by thread {here}:\n")), "{report_text}");
    }

    #[test]
    fn guard_requests_a_sample_only_after_too_few_samples() {
        let key = RandomKeys::new(&Harden { seed: Some(7), ..Harden::OFF }).next();
        assert!(!Guard::new(0, 4, Backend::Os, key).end_interval(1000), "no sample is requested");
        let guard = Guard::new(100, 4, Backend::Os, key);
        assert!(!guard.end_interval(60), "the caches request no sample");
        assert!(guard.end_interval(120), "the next interval must count the remaining misses");
        assert!(guard.is_due(0) && guard.alloc(8, 8).is_some());
        assert!(!guard.end_interval(220) && !guard.is_due(0), "one sample was taken");
        assert!(guard.alloc(8, 8).is_some() && !guard.end_interval(420), "half of the samples were taken");
        assert!(guard.end_interval(620), "no sample was taken");
        assert!(!guard.end_interval(10), "a cache was destroyed");
        assert!(guard.end_interval(120), "the other caches allocate");
        let report_text = core::ptr::from_ref(guard.pool().unwrap());
        assert!(faults::is_pool_registered(report_text));
        drop(guard);
        assert!(!faults::is_pool_registered(report_text), "the slot is free");
    }

    #[test]
    fn guard_report_distinguishes_unused_pages_from_freed_pages() {
        let pool = pool(2);
        let used = pool.alloc(8, 8).unwrap().addr().get();
        let other = if pool.slot_containing_address(used) == Some(0) {
            used + 2 * PAGE_SIZE
        } else {
            used - 2 * PAGE_SIZE
        };
        let report_text = pool.fault(other).to_string();
        assert!(report_text.starts_with("access to memory that was never allocated: "), "{report_text}");
        // An error in a guard page next to an unused slot must not name the slot.
        let ends = [pool.base(), pool.base() + pool.region.bytes() - 1];
        let far = ends[usize::from(other > used)];
        assert_eq!(
            pool.fault(far).to_string(),
            format!("access to memory that was never allocated: {far:#x}\n")
        );
        let between = pool.base() + 2 * PAGE_SIZE;
        for at in [between, between + PAGE_SIZE - 1].map(|at| pool.fault(at).to_string()) {
            assert!(
                at.ends_with(":\n") || at.contains(&format!(" of an object of 8 bytes at {used:#x}\n")),
                "{at}"
            );
        }
    }

    #[test]
    fn guard_sampling_distances_vary_around_their_mean() {
        let key = RandomKeys::new(&Harden { seed: Some(7), ..Harden::OFF }).next();
        let guard = Guard::new(100, 1, Backend::Os, key);
        assert!(guard.pool().is_none() && guard.is_on() && !Guard::new(0, 1, Backend::Os, key).is_on());
        let mut distances = vec![0];
        while distances.len() <= 1000 {
            *distances.last_mut().unwrap() += 1;
            if guard.is_due(1) {
                let object = guard.alloc(8, 8).unwrap();
                let pool = guard.pool_of(object).unwrap();
                assert!(pool.free(object.addr().get()).is_ok());
                assert_eq!(guard.samples(), distances.len() as u64);
                distances.push(0);
            }
        }
        assert_eq!(distances.pop(), Some(0));
        let sum: u64 = distances.iter().sum();
        assert!((90_000..110_000).contains(&sum), "{sum}");
        assert!(distances.iter().any(|n| *n < 20) && distances.iter().any(|n| *n > 180));
        assert!(distances.iter().all(|n| (1..=199).contains(n)));
        // The new rate takes effect immediately, even for the next sample.
        guard.set(2, 1);
        let next = |_| {
            let distance = (1..=9).find(|_| guard.is_due(1));
            let object = guard.alloc(8, 8).unwrap();
            assert!(guard.pool_of(object).unwrap().free(object.addr().get()).is_ok());
            distance
        };
        let last_counts: std::collections::BTreeSet<_> = (0..100).map(next).collect();
        assert!(last_counts.into_iter().eq([Some(1), Some(2), Some(3)]));
        guard.set(1, 1);
        assert!((0..100).map(next).all(|distance| distance == Some(1)), "each free is reported");
    }

    /// The test runs in a child process with a single thread, because another thread could map memory at the unmapped
    /// addresses.
    #[test]
    fn dropped_guard_unmaps_its_pages() {
        let key = RandomKeys::new(&Harden { seed: Some(7), ..Harden::OFF }).next();
        let guard = Guard::new(1, 4, Backend::Os, key);
        let at = guard.alloc(8, 8).unwrap().addr().get();
        assert!(is_accessible(at));
        // SAFETY: the child only drops the guard, checks, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(guard);
            let stays = is_accessible(at);
            // SAFETY: the child exits.
            unsafe { libc::_exit(stays.into()) };
        }
        let mut status = -1;
        // SAFETY: the process is the test's child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the guard's pool still exists");
    }

    #[test]
    fn forked_child_frees_guard_slots_its_parent_was_reserving() {
        let pool = pool(4);
        assert!(pool.slots[0].take(SLOT_FREE));
        let [used, freed] = [1, 2].map(|_| pool.alloc(8, 8).unwrap().addr().get());
        assert!(pool.free(freed).is_ok());
        assert!(pool.slots[3].take(SLOT_FREE));
        // SAFETY: the process has one thread.
        unsafe { pool.forget_other_threads() };
        assert_eq!([0, 3].map(|slot: usize| pool.slots[slot].state.load(Relaxed)), [SLOT_FREE; 2]);
        assert_eq!(pool.size_of(used).ok(), Some(8), "the sample is still in use");
        assert!(
            pool.fault(freed).to_string().starts_with("use after free: "),
            "the freed sample is still free"
        );
    }
}
