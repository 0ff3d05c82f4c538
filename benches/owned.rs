//! Cost of an object that is `Send` and `'static`, so that an async task can own it. Compares `alloc_owned` with three
//! alternatives: a box that borrows its cache, C library memory, and a pool that each object keeps alive through an
//! `Arc`. Each object has 64 bytes.

use parking_lot::Mutex;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use uslab::ObjectCache;
use uslab_benches::subject::{Checked, ThreadAccess, opaque_pointer};
use uslab_benches::{Bench, Column, Contender, Kind, clock, work};

type Object = [u64; 8];

/// A subject whose objects are freed when their owner is dropped.
struct FreedOnOwnerDrop<A, O>(A, PhantomData<fn() -> O>);

impl<A: Fn() -> O, O: DerefMut<Target = Object> + Send> ThreadAccess for FreedOnOwnerDrop<A, O> {
    type Object = O;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> O {
        let mut object = (self.0)();
        object[0] = stamp;
        opaque_pointer(NonNull::from_mut(&mut *object));
        object
    }
    fn stamp(&self, object: &O) -> u64 {
        object[0]
    }
    #[inline(always)]
    fn free(&mut self, object: O) {
        drop(object);
    }
}

/// A pool as a program might write it by hand: free objects in a locked `Vec`.
#[derive(Default)]
#[allow(clippy::vec_box, reason = "allocations return a box, which stays a box")]
struct Pool(Mutex<Vec<Box<Object>>>);

/// An object of a [`Pool`], which keeps the pool alive.
struct Pooled {
    object: Option<Box<Object>>,
    pool: Arc<Pool>,
}

impl Pooled {
    #[inline(always)]
    fn new(pool: &Arc<Pool>) -> Self {
        let free = pool.0.lock().pop();
        Self { object: Some(free.unwrap_or_default()), pool: pool.clone() }
    }
}
impl Deref for Pooled {
    type Target = Object;
    fn deref(&self) -> &Object {
        self.object.as_ref().expect("the object exists until its owner is dropped")
    }
}
impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Object {
        self.object.as_mut().expect("the object exists until its owner is dropped")
    }
}
impl Drop for Pooled {
    #[inline(always)]
    fn drop(&mut self) {
        self.pool.0.lock().extend(self.object.take());
    }
}

/// Returns CPU nanoseconds per allocation and free of a hot object, in one thread and in each of two
/// concurrent threads.
fn measure<O: DerefMut<Target = Object> + Send>(
    alloc: impl Fn() -> O + Clone + Send + 'static,
    budget: Duration,
) -> impl FnMut() -> Vec<f64> + 'static {
    let pairs = move |start: Option<&Barrier>, alloc| {
        let mut local = FreedOnOwnerDrop(alloc, PhantomData);
        let mut checked = Checked::new(&mut local);
        work::pairs(&mut checked, 10_000);
        assert_eq!(checked.written_sum, checked.read_sum, "the objects must keep their stamps");
        start.into_iter().for_each(|start| _ = start.wait());
        clock::measure_per_operation(budget, || false, || work::pairs(&mut local, 20_000))
    };
    move || {
        let alone_ns = pairs(None, alloc.clone());
        let start = &Barrier::new(2);
        let both_ns: f64 = std::thread::scope(|scope| {
            let threads =
                [alloc.clone(), alloc.clone()].map(|alloc| scope.spawn(move || pairs(Some(start), alloc)));
            threads.into_iter().map(|thread| thread.join().expect("the thread must not panic")).sum()
        });
        vec![alone_ns, both_ns / 2.0]
    }
}

fn main() -> anyhow::Result<()> {
    let mut bench =
        Bench::start("owned", "CPU ns to allocate and drop an object of 64 B, repeated with the same object");
    let budget = bench.budget();
    let cache: &'static ObjectCache<Object> =
        Box::leak(Box::new(ObjectCache::builder("bench-owned").ctor(Object::default).build()?));
    let pool = Arc::new(Pool::default());
    let contenders = vec![
        Contender::new(
            "alloc",
            Kind::Ours,
            measure(|| cache.alloc().expect("an allocation must succeed"), budget),
        ),
        Contender::new(
            "alloc_owned",
            Kind::Ours,
            measure(|| cache.alloc_owned().expect("an allocation must succeed"), budget),
        ),
        Contender::new("Box", Kind::General, measure(Box::<Object>::default, budget)),
        Contender::new("Arc pool", Kind::Pool, measure(move || Pooled::new(&pool), budget)),
    ];
    bench.group("", [Column::lower("one thread", "ns"), Column::lower("two threads", "ns")], contenders);
    bench.run()
}
