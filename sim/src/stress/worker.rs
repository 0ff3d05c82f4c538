//! A stress thread at its seat: it allocates, stamps, verifies and frees objects, and logs each operation in the log of
//! the seat.
//!
//! A *seat* exists during the whole run; it consists of a number, the objects it holds, and a log. One thread after
//! another uses a seat.

use super::log::{Entry, OperationLog, StressOperation};
use super::stamp::{Pattern, Token};
use super::workload::Workload;
use super::world::{Memory, Source, Violation, World};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::panic::resume_unwind;
use std::ptr::NonNull;
use uslab::AllocError;
use uslab::faults::CONSTRUCTOR_PANIC;
use uslab_magazine::sync::catch_panic;

/// An object that a seat or a bin holds.
#[derive(Debug)]
pub(super) struct HeldObject<'w> {
    pub(super) memory: Memory<'w>,
    pub(super) source: Source,
    token: Token,
    /// The number of stamped bytes, counted from the start of the object.
    stamped: usize,
}

/// A bin of objects: some threads leave objects in it, and other threads take them out.
pub(super) type ObjectBin<'w> = Mutex<Vec<HeldObject<'w>>>;

/// The operation counts of one workload.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// The number of objects allocated.
    pub(super) allocs: u64,
    pub(super) frees: u64,
    /// The number of allocations that were refused.
    pub(super) refused: u64,
    /// The number of calls that are neither allocations nor frees.
    pub(super) other_calls: u64,
}

impl Tally {
    /// Returns the total number of operations.
    pub(super) fn operations(self) -> u64 {
        self.allocs + self.frees + self.refused + self.other_calls
    }
    /// Returns the sums of the counts of two tallies.
    #[must_use]
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            allocs: self.allocs + other.allocs,
            frees: self.frees + other.frees,
            refused: self.refused + other.refused,
            other_calls: self.other_calls + other.other_calls,
        }
    }
}

/// The seat of a stress thread, which outlives the thread; see the [module](self).
#[derive(Debug)]
pub(super) struct ThreadSeat<'w> {
    /// The number of the seat, from 1.
    pub(super) number: u16,
    /// The number of allocations at this seat so far.
    serial: u64,
    pub(super) held: Vec<HeldObject<'w>>,
    bytes: usize,
    pub(super) log: OperationLog,
    pub(super) tallies: [Tally; Workload::ALL.len()],
    /// The number of threads that have used the seat so far.
    pub(super) threads: u64,
}

impl ThreadSeat<'_> {
    /// Creates an empty seat, whose log keeps `entries` entries.
    pub(super) fn new(number: u16, entries: usize) -> Self {
        Self {
            number,
            serial: 0,
            held: Vec::new(),
            bytes: 0,
            log: OperationLog::new(entries),
            tallies: [Tally::default(); Workload::ALL.len()],
            threads: 0,
        }
    }
}

/// The largest number of objects that a seat holds between two turns; the next constant limits their bytes.
const MAX_HELD_OBJECTS: usize = 1024;
const MAX_HELD_BYTES: usize = 2 << 20;
/// The object size in bytes up to which each object is stamped completely. Larger objects are stamped completely only
/// once in [`FULL_CHECK_INTERVAL`] times.
const MAX_FULLY_STAMPED_BYTES: usize = 8192;
const FULL_CHECK_INTERVAL: u32 = 16;

/// A stress thread at its seat.
#[derive(Debug)]
pub(super) struct Worker<'w, 'e> {
    pub(super) world: &'w World,
    pub(super) bins: &'e [ObjectBin<'w>],
    pub(super) seat: ThreadSeat<'w>,
    pub(super) rng: SmallRng,
    pub(super) workload: Workload,
}

impl<'w, 'e> Worker<'w, 'e> {
    /// Creates the next thread that uses `seat`. A thread's decisions follow from the world's seed, the
    /// seat's number, and the number of threads that have used the seat.
    pub(super) fn new(world: &'w World, bins: &'e [ObjectBin<'w>], mut seat: ThreadSeat<'w>) -> Self {
        seat.threads += 1;
        let own = u64::from(seat.number) << 40 | seat.threads;
        let rng = SmallRng::seed_from_u64(world.seed ^ own.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { world, bins, seat, rng, workload: Workload::Churn }
    }

    /// Returns a random number below `n`, which must not be 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n)
    }
    /// Returns `true` with a probability of 1 in `n`.
    pub(super) fn chance_one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }
    /// Returns a random element of `options`, which must not be empty.
    pub(super) fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())]
    }
    /// Returns `true` if the thread should end its turn.
    pub(super) fn is_paused(&self) -> bool {
        self.world.is_paused()
    }
    fn tally(&mut self) -> &mut Tally {
        &mut self.seat.tallies[self.workload as usize]
    }

    // ---- objects ----

    /// Allocates an object from `source` and stamps it; returns `None` if the allocator refused and a refusal is
    /// permitted.
    pub(super) fn alloc(&mut self, source: Source) -> Option<HeldObject<'w>> {
        let world = self.world;
        let memory = self.granted(source, || world.alloc(source))?;
        self.adopt(memory, source)
    }

    /// Unwraps the result of an allocation. A permitted refusal is counted; any other refusal is a violation.
    pub(super) fn granted<R>(
        &mut self,
        source: Source,
        alloc: impl FnOnce() -> Result<R, AllocError>,
    ) -> Option<R> {
        let error = match catch_panic(alloc) {
            Ok(Ok(done)) => return Some(done),
            Ok(Err(error)) => error,
            Err(panic) if self.world.faulty && panic.downcast_ref() == Some(&CONSTRUCTOR_PANIC) => {
                AllocError::Injected
            }
            Err(panic) => resume_unwind(panic),
        };
        self.tally().refused += 1;
        let expected = self.world.faulty
            || matches!(error, AllocError::CacheLimit { .. }) && source.may_refuse_allocation()
            || matches!(error, AllocError::Destroyed) && source == Source::Temporary;
        if !expected {
            self.violated(format!("{source}: an allocation failed: {error}"), None, &[]);
        }
        None
    }

    /// Makes newly allocated memory an object of this seat. If the cache has a constructor, the memory must
    /// still contain the free pattern.
    pub(super) fn adopt<'m>(&mut self, mut memory: Memory<'m>, source: Source) -> Option<HeldObject<'m>> {
        self.tally().allocs += 1;
        self.seat.serial += 1;
        let token = Token::new(self.seat.number, self.seat.serial);
        self.log(StressOperation::Alloc, source, memory.address(), token);
        let size = memory.size();
        if source.is_constructed()
            && let Some(at) = Pattern::free(self.world.seed).differs(memory.front(size))
        {
            let what = format!("{source}: byte {at} of a free object was written to");
            self.report_wrong_contents(&memory, what, token);
            std::mem::forget(memory);
            return None;
        }
        let stamped = if size <= MAX_FULLY_STAMPED_BYTES || self.chance_one_in(FULL_CHECK_INTERVAL) {
            size
        } else {
            MAX_FULLY_STAMPED_BYTES / 2
        };
        Pattern::held(self.world.seed, token).write(memory.front_mut(stamped));
        Some(HeldObject { memory, source, token, stamped })
    }

    /// Returns `true` if the object still has its stamp; otherwise, reports a violation.
    pub(super) fn verify(&mut self, held: &HeldObject<'_>) -> bool {
        let pattern = Pattern::held(self.world.seed, held.token);
        let Some(at) = pattern.differs(held.memory.front(held.stamped)) else { return true };
        let what = format!("{}: byte {at} of an object in use was overwritten", held.source);
        self.report_wrong_contents(&held.memory, what, held.token);
        false
    }

    /// Verifies an object and prepares it for its free; if the stamp was overwritten, returns `None`, and the object is
    /// not freed.
    pub(super) fn part<'m>(&mut self, mut held: HeldObject<'m>) -> Option<Memory<'m>> {
        if !self.verify(&held) {
            std::mem::forget(held);
            return None;
        }
        if held.source.is_constructed() {
            let size = held.memory.size();
            Pattern::free(self.world.seed).write(held.memory.front_mut(size));
        }
        self.tally().frees += 1;
        self.log(StressOperation::Free, held.source, held.memory.address(), held.token);
        Some(held.memory)
    }

    /// Verifies an object and frees it.
    pub(super) fn free(&mut self, held: HeldObject<'_>) {
        let source = held.source;
        let Some(memory) = self.part(held) else { return };
        let address = match &memory {
            Memory::Block(block) => block.address(),
            Memory::Pages(_) => NonNull::dangling(),
        };
        drop(memory);
        self.world.freed(source, address);
    }

    // ---- objects that the seat keeps ----

    /// Keeps an object at the seat, or frees the object if the seat is full.
    pub(super) fn keep(&mut self, held: HeldObject<'w>) {
        if self.seat.held.len() >= MAX_HELD_OBJECTS || self.seat.bytes + held.memory.size() > MAX_HELD_BYTES {
            return self.free(held);
        }
        self.seat.bytes += held.memory.size();
        self.seat.held.push(held);
    }
    /// Removes a random object from the seat, and returns it.
    pub(super) fn random_held_object(&mut self) -> Option<HeldObject<'w>> {
        if self.seat.held.is_empty() {
            return None;
        }
        let at = self.below(self.seat.held.len());
        let held = self.seat.held.swap_remove(at);
        self.seat.bytes -= held.memory.size();
        Some(held)
    }
    /// Verifies `some` randomly chosen objects of the seat.
    pub(super) fn look(&mut self, some: usize) {
        for _ in 0..some {
            if let Some(held) = self.random_held_object() {
                if self.verify(&held) {
                    self.keep(held);
                } else {
                    std::mem::forget(held);
                }
            }
        }
    }
    /// Frees all objects that the seat keeps.
    pub(super) fn free_all(&mut self) {
        self.seat.bytes = 0;
        for held in std::mem::take(&mut self.seat.held) {
            self.free(held);
        }
    }
    /// Leaves objects in a bin for other threads.
    pub(super) fn leave(&mut self, bin: usize, objects: Vec<HeldObject<'w>>) {
        for held in &objects {
            self.log(StressOperation::Leave, held.source, held.memory.address(), held.token);
        }
        self.bins[bin].lock().extend(objects);
    }
    /// Takes up to `most` objects from a bin.
    pub(super) fn take(&mut self, bin: usize, most: usize) -> Vec<HeldObject<'w>> {
        let objects = {
            let mut bin = self.bins[bin].lock();
            let rest = bin.len().saturating_sub(most);
            bin.split_off(rest)
        };
        for held in &objects {
            self.log(StressOperation::Take, held.source, held.memory.address(), held.token);
        }
        objects
    }

    // ---- the log ----

    fn log(&mut self, operation_kind: StressOperation, source: Source, address: usize, token: Token) {
        self.seat.log.push(Entry {
            at: self.world.now(),
            operation_kind,
            source: Some(source),
            address,
            token,
        });
    }
    /// Runs an operation that is neither an allocation nor a free.
    pub(super) fn other<R>(&mut self, what: &'static str, act: impl FnOnce(&World) -> R) -> R {
        self.run_and_log(StressOperation::Other(what), act)
    }

    /// Runs and logs an operation that does not concern an object.
    pub(super) fn run_and_log<R>(
        &mut self,
        operation_kind: StressOperation,
        act: impl FnOnce(&World) -> R,
    ) -> R {
        self.tally().other_calls += 1;
        let (at, token) = (self.world.now(), Token::new(self.seat.number, self.seat.serial));
        self.seat.log.push(Entry { at, operation_kind, source: None, address: 0, token });
        act(self.world)
    }

    /// Reports an object whose contents are wrong. If the object contains the stamp of another owner, the report also
    /// names that owner.
    fn report_wrong_contents(&mut self, memory: &Memory<'_>, what: String, token: Token) {
        let found =
            Token::read_from_object(memory.front(8), self.bins.len() as u16).filter(|found| *found != token);
        let what = match found {
            Some(other) => format!("{what} ({token}), and now has the stamp of {other}"),
            None => format!("{what} ({token})"),
        };
        let seats = [Some(token.seat()), found.map(Token::seat)];
        self.violated(what, Some(memory.address()), &seats.into_iter().flatten().collect::<Vec<_>>());
    }
    /// Reports a violation that concerns this seat and the given other seats.
    pub(super) fn violated(&mut self, what: String, address: Option<usize>, other_calls: &[u16]) {
        let mut seats = vec![self.seat.number];
        for seat in other_calls {
            if !seats.contains(seat) {
                seats.push(*seat);
            }
        }
        self.world.violated(Violation { at: self.world.now(), what, address, seats });
    }
}
