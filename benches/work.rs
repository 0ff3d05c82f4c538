//! The timed loops. Benchmark loops whose source code is the same for every subject.

use crate::subject::ThreadAccess;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::mem::MaybeUninit;

/// Returns a random number generator that yields the same numbers in every run.
pub fn random() -> SmallRng {
    SmallRng::seed_from_u64(0x5eed)
}

/// Returns a random number below `bound`, computed by a multiplication.
#[inline(always)]
pub fn below(rng: &mut SmallRng, bound: usize) -> usize {
    ((u64::from(rng.next_u32()) * bound as u64) >> 32) as usize
}

/// Returns the given reference, and makes the compiler assume that other code holds its address. Without this function,
/// the compiler could keep fields in registers during the whole loop; real programs do not allow this.
#[inline(always)]
fn escape<L>(local: &mut L) -> &mut L {
    std::hint::black_box(local)
}

/// Allocates and frees one object over and over, `count` times.
#[inline(always)]
pub fn pairs<L: ThreadAccess>(local: &mut L, count: u64) -> u64 {
    let local = escape(local);
    for stamp in 0..count {
        let object = local.alloc(stamp);
        local.free(object);
    }
    count
}

/// The order in which the objects of a batch are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Frees the newest object first.
    Lifo,
    /// Frees the oldest object first.
    Fifo,
    /// Frees the objects in a shuffled order, which is the same in every batch.
    Random,
}

/// A batch: a number of allocations, followed by the same number of frees.
#[derive(Clone, Debug)]
pub struct Batch {
    order: Box<[u32]>,
}

impl Batch {
    /// Creates batches of `size` objects.
    pub fn new(size: u32, order: Order) -> Self {
        let mut places: Box<[u32]> = (0..size).collect();
        match order {
            Order::Fifo => {}
            Order::Lifo => places.reverse(),
            Order::Random => places.shuffle(&mut random()),
        }
        Self { order: places }
    }
    /// Number of objects in a batch.
    pub fn size(&self) -> usize {
        self.order.len()
    }
    /// Creates a slot for each object and writes to it, so that its page and cache line are present before the clock
    /// starts.
    pub fn places<L: ThreadAccess>(&self, _of: &L) -> Places<L::Object> {
        Places::new(self.size())
    }
    /// Runs one batch. Returns the number of allocation and free pairs.
    #[inline(always)]
    pub fn run<L: ThreadAccess>(&self, local: &mut L, places: &mut Places<L::Object>) -> u64 {
        let local = escape(local);
        for place in 0..self.order.len() {
            places.put(place, local.alloc(place as u64));
        }
        for &place in &self.order {
            // SAFETY: every place was filled above, and an order contains each place once.
            local.free(unsafe { places.take(place as usize) });
        }
        self.order.len() as u64
    }
}

/// Slots for objects of any kind, which can be filled and emptied in any order. Dropping the slots leaks the objects
/// that are still in them.
#[derive(Debug)]
pub struct Places<O>(Box<[MaybeUninit<O>]>);

impl<O> Places<O> {
    /// Creates the given number of slots, and writes to each slot.
    pub fn new(places: usize) -> Self {
        let mut room = Box::new_uninit_slice(places);
        for place in &mut room {
            // SAFETY: the place has room for an object, and holds no object yet.
            unsafe { std::ptr::from_mut(place).cast::<u8>().write_bytes(0xa5, size_of::<O>()) };
        }
        Self(room)
    }
    /// Fills a place.
    #[inline(always)]
    pub fn put(&mut self, place: usize, object: O) {
        self.0[place].write(object);
    }
    /// Empties a slot, and returns the object that was in it.
    ///
    /// # Safety
    /// The slot must hold an object.
    #[inline(always)]
    pub unsafe fn take(&mut self, place: usize) -> O {
        // SAFETY: by contract, the place is filled.
        unsafe { self.0[place].assume_init_read() }
    }
}

/// Many live objects, some of which are replaced in bursts: each burst frees random objects, and then allocates the
/// same number.
#[derive(Debug)]
pub struct Churn<O> {
    objects: Vec<O>,
    rng: SmallRng,
}

/// Maximum number of objects in a burst.
const MAX_BURST_OBJECTS: usize = 256;

impl<O> Churn<O> {
    /// Allocates `live` objects.
    pub fn fill<L: ThreadAccess<Object = O>>(local: &mut L, live: usize) -> Self {
        let mut churn = Self { objects: Vec::with_capacity(live), rng: random() };
        churn.objects.extend((0..live as u64).map(|stamp| local.alloc(stamp)));
        // Shuffles the objects, so that neighbours were not allocated one after the other, as after a long run.
        churn.objects.shuffle(&mut churn.rng);
        churn
    }
    /// Runs one burst of 1 to 256 frees, followed by the same number of allocations. Returns the number of allocation
    /// and free pairs.
    #[inline(always)]
    pub fn burst<L: ThreadAccess<Object = O>>(&mut self, local: &mut L) -> u64 {
        let size = 1 + below(&mut self.rng, MAX_BURST_OBJECTS.min(self.objects.len()));
        for _ in 0..size {
            let victim = below(&mut self.rng, self.objects.len());
            local.free(self.objects.swap_remove(victim));
        }
        for stamp in 0..size as u64 {
            self.objects.push(local.alloc(stamp));
        }
        size as u64
    }
    /// Runs bursts until at least `pairs` objects have been freed and allocated.
    #[inline(always)]
    pub fn bursts<L: ThreadAccess<Object = O>>(&mut self, local: &mut L, pairs: u64) -> u64 {
        let local = escape(local);
        let mut operations_done = 0;
        while operations_done < pairs {
            operations_done += self.burst(local);
        }
        operations_done
    }
    /// Frees all objects.
    pub fn empty<L: ThreadAccess<Object = O>>(self, local: &mut L) {
        for object in self.objects {
            local.free(object);
        }
    }
}
