//! The loops that are timed. Every subject runs the same source.

use crate::subject::Local;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::mem::MaybeUninit;

/// Random numbers, the same in every run.
pub fn random() -> SmallRng {
    SmallRng::seed_from_u64(0x5eed)
}

/// Below `bound`, by a multiplication.
#[inline(always)]
pub fn below(rng: &mut SmallRng, bound: usize) -> usize {
    ((u64::from(rng.next_u32()) * bound as u64) >> 32) as usize
}

/// The same, but the compiler must assume that others have its address. Otherwise it keeps the fields of what only this
/// function knows in registers through the whole loop, which no program's pool enjoys.
#[inline(always)]
fn known_elsewhere<L>(local: &mut L) -> &mut L {
    std::hint::black_box(local)
}

/// Hot pairs: the same object over and over.
#[inline(always)]
pub fn pairs<L: Local>(local: &mut L, count: u64) -> u64 {
    let local = known_elsewhere(local);
    for stamp in 0..count {
        let object = local.alloc(stamp);
        local.free(object);
    }
    count
}

/// The order in which a batch is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Last in, first out.
    Lifo,
    /// First in, first out.
    Fifo,
    /// Shuffled, the same in every batch.
    Random,
}

/// Batches: so many allocations, then so many frees.
#[derive(Clone, Debug)]
pub struct Batch {
    order: Box<[u32]>,
}

impl Batch {
    /// Batches of `size`.
    pub fn new(size: u32, order: Order) -> Self {
        let mut places: Box<[u32]> = (0..size).collect();
        match order {
            Order::Fifo => {}
            Order::Lifo => places.reverse(),
            Order::Random => places.shuffle(&mut random()),
        }
        Self { order: places }
    }
    /// Objects in a batch.
    pub fn size(&self) -> usize {
        self.order.len()
    }
    /// A place for each object, touched: pages and lines are there before the clock starts.
    pub fn places<L: Local>(&self, _of: &L) -> Places<L::Object> {
        Places::new(self.size())
    }
    /// One batch. Returns its pairs.
    #[inline(always)]
    pub fn run<L: Local>(&self, local: &mut L, places: &mut Places<L::Object>) -> u64 {
        let local = known_elsewhere(local);
        for place in 0..self.order.len() {
            places.put(place, local.alloc(place as u64));
        }
        for &place in &self.order {
            // SAFETY: every place was filled above, and an order names each place once.
            local.free(unsafe { places.take(place as usize) });
        }
        self.order.len() as u64
    }
}

/// Room for objects of any kind in any order. What is left in it is forgotten.
#[derive(Debug)]
pub struct Places<O>(Box<[MaybeUninit<O>]>);

impl<O> Places<O> {
    /// So many places, each touched.
    pub fn new(places: usize) -> Self {
        let mut room = Box::new_uninit_slice(places);
        for place in &mut room {
            // SAFETY: bytes of room for an object, which is not one yet.
            unsafe { std::ptr::from_mut(place).cast::<u8>().write_bytes(0xa5, size_of::<O>()) };
        }
        Self(room)
    }
    /// Fills a place.
    #[inline(always)]
    pub fn put(&mut self, place: usize, object: O) {
        self.0[place].write(object);
    }
    /// Empties a place.
    ///
    /// # Safety
    /// It was filled since it was last emptied.
    #[inline(always)]
    pub unsafe fn take(&mut self, place: usize) -> O {
        // SAFETY: the caller's promise.
        unsafe { self.0[place].assume_init_read() }
    }
}

/// Many live objects, some of which are replaced: bursts of frees of random objects, and as many allocations.
#[derive(Debug)]
pub struct Churn<O> {
    objects: Vec<O>,
    rng: SmallRng,
}

/// The largest burst.
const BURST: usize = 256;

impl<O> Churn<O> {
    /// Allocates `live` objects.
    pub fn fill<L: Local<Object = O>>(local: &mut L, live: usize) -> Self {
        let mut churn = Self { objects: Vec::with_capacity(live), rng: random() };
        churn.objects.extend((0..live as u64).map(|stamp| local.alloc(stamp)));
        // As after a long run: what lies together was not allocated together.
        churn.objects.shuffle(&mut churn.rng);
        churn
    }
    /// One burst of 1 to 256 frees and as many allocations. Returns its pairs.
    #[inline(always)]
    pub fn burst<L: Local<Object = O>>(&mut self, local: &mut L) -> u64 {
        let size = 1 + below(&mut self.rng, BURST.min(self.objects.len()));
        for _ in 0..size {
            let victim = below(&mut self.rng, self.objects.len());
            local.free(self.objects.swap_remove(victim));
        }
        for stamp in 0..size as u64 {
            self.objects.push(local.alloc(stamp));
        }
        size as u64
    }
    /// At least `pairs` of them.
    #[inline(always)]
    pub fn bursts<L: Local<Object = O>>(&mut self, local: &mut L, pairs: u64) -> u64 {
        let local = known_elsewhere(local);
        let mut done = 0;
        while done < pairs {
            done += self.burst(local);
        }
        done
    }
    /// Frees everything.
    pub fn empty<L: Local<Object = O>>(self, local: &mut L) {
        for object in self.objects {
            local.free(object);
        }
    }
}
