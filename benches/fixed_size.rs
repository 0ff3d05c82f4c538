//! Costs of pools whose objects have one size. The rows cover single objects, batches, checks, pool creation, a walk
//! over objects in use, and the first access to a page.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Duration;
use uslab::pool::{
    Area, ChunkedPool, ClassPools, FixedPool, FreeList, GuardedPool, HeapArea, Hybrid, IndexPool, Initialise,
    MappedArea, MarkedPool, PoolError, ReservedPool, SizeClasses, SlotLayout,
};
use uslab_benches::{Bench, Column, Contender, Kind, clock};

const OBJECT: Layout = Layout::new::<[u64; 8]>();
const BATCH: usize = 1000;
/// Size of the pools in bytes.
const BYTES: usize = 1 << 20;

/// An allocator of objects of one size.
trait Objects: 'static {
    fn alloc(&mut self) -> NonNull<u8>;
    /// # Safety
    /// The object was allocated by this allocator and has not been freed.
    unsafe fn free(&mut self, object: NonNull<u8>);
}

/// Implements [`Objects`] for a pool by the expressions `$alloc` and `$free`.
macro_rules! objects {
    ($($pool:ty: |$p:ident| $alloc:expr, |$o:ident| $free:expr;)+) => {$(
        impl Objects for $pool {
            #[inline(always)]
            fn alloc(&mut self) -> NonNull<u8> {
                let $p = self;
                $alloc
            }
            #[inline(always)]
            unsafe fn free(&mut self, $o: NonNull<u8>) {
                let $p = self;
                // SAFETY: by contract, the object was allocated from this pool and is not freed yet.
                let _ = unsafe { $free };
            }
        }
    )+};
}

/// An [`IndexPool`] that does not check the addresses of frees.
struct UncheckedPool(IndexPool<HeapArea>);
/// A [`FreeList`] and the memory that it manages.
struct FreeListWithMemory(FreeList, #[allow(dead_code, reason = "owns the memory")] HeapArea);
/// The system's allocator.
struct Malloc;

objects! {
    FreeListWithMemory: |p| p.0.obtain().expect("room"), |o| p.0.give(o);
    FixedPool<HeapArea>: |p| p.alloc(OBJECT).expect("room"), |o| p.free(o);
    IndexPool<HeapArea>: |p| p.alloc().expect("room"), |o| p.free(o);
    UncheckedPool: |p| p.0.alloc().expect("room"), |o| p.0.free_unchecked(o);
    GuardedPool<HeapArea>: |p| p.alloc().expect("room"), |o| p.free(o);
    MarkedPool<HeapArea>: |p| p.alloc(OBJECT).expect("room"), |o| p.free(o);
    ChunkedPool: |p| p.alloc(OBJECT).expect("room"), |o| p.free(o);
    ReservedPool: |p| p.alloc(OBJECT).expect("room"), |o| p.free(o);
    Hybrid: |p| Hybrid::alloc(p, OBJECT).expect("room"), |o| Hybrid::free(p, o, OBJECT);
}

impl Objects for Malloc {
    #[inline(always)]
    fn alloc(&mut self) -> NonNull<u8> {
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { System.alloc(OBJECT) }).expect("room")
    }
    #[inline(always)]
    unsafe fn free(&mut self, object: NonNull<u8>) {
        // SAFETY: by contract, the object was allocated here with this layout, and is not freed yet.
        unsafe { System.dealloc(object.as_ptr(), OBJECT) };
    }
}

/// Measures the nanoseconds of an allocation and free, for one hot object and for a batch.
fn rounds_of(mut pool: impl Objects, budget: Duration) -> impl FnMut() -> Vec<f64> + 'static {
    let mut batch = Vec::with_capacity(BATCH);
    move || {
        let pair = clock::measure_per_operation(
            budget,
            || false,
            || {
                for stamp in 0..20_000_u64 {
                    let object = black_box(pool.alloc());
                    // SAFETY: the object has 64 bytes and belongs to this function.
                    unsafe {
                        object.cast().write(stamp);
                        pool.free(object);
                    }
                }
                20_000
            },
        );
        let batches = clock::measure_per_operation(
            budget,
            || false,
            || {
                for stamp in 0..BATCH as u64 {
                    let object = pool.alloc();
                    // SAFETY: the object has 64 bytes and belongs to this function.
                    unsafe { object.cast().write(stamp) };
                    batch.push(object);
                }
                for (stamp, object) in batch.drain(..).enumerate() {
                    // SAFETY: the object was allocated and stamped above, and is freed once.
                    unsafe {
                        assert_eq!(
                            object.cast::<u64>().read(),
                            stamp as u64,
                            "two objects have the same address"
                        );
                        pool.free(object);
                    }
                }
                BATCH as u64
            },
        );
        vec![pair, batches]
    }
}

fn operations(bench: &mut Bench) -> Result<(), PoolError> {
    let budget = bench.budget();
    let slots = SlotLayout::new(OBJECT.size(), OBJECT.align())?;
    let area = || HeapArea::new(BYTES, 64);
    let own_contender = |name, round: Box<dyn FnMut() -> Vec<f64>>| Contender::new(name, Kind::Ours, round);
    let size = OBJECT.size();
    let blocks = BYTES / size;
    let list = area()?;
    // SAFETY: the memory lives as long as the list, and has no other user.
    let list = FreeListWithMemory(unsafe { FreeList::new(list.memory(), size, OBJECT.align(), 0) }?, list);
    let each_allocation = IndexPool::with_blocks(area()?, size, blocks, Initialise::EachAllocation)?;
    let classes = ClassPools::new(&SizeClasses::micro(), BYTES)?;
    let contenders = vec![
        own_contender("free list", Box::new(rounds_of(list, budget))),
        own_contender("fixed", Box::new(rounds_of(FixedPool::new(area()?, slots)?, budget))),
        own_contender("fixed, checked", Box::new(rounds_of(FixedPool::checked(area()?, slots)?, budget))),
        own_contender("lazy", Box::new(rounds_of(IndexPool::new(area()?, size)?, budget))),
        own_contender("lazy, as the paper", Box::new(rounds_of(each_allocation, budget))),
        own_contender(
            "lazy, unchecked",
            Box::new(rounds_of(UncheckedPool(IndexPool::new(area()?, size)?), budget)),
        ),
        own_contender("guarded", Box::new(rounds_of(GuardedPool::new(area()?, OBJECT)?, budget))),
        own_contender("marked", Box::new(rounds_of(MarkedPool::new(area()?, size, OBJECT.align())?, budget))),
        own_contender("chunked", Box::new(rounds_of(ChunkedPool::new(slots, 32 << 10)?, budget))),
        own_contender("reserved", Box::new(rounds_of(ReservedPool::new(slots, BYTES)?, budget))),
        own_contender("hybrid", Box::new(rounds_of(Hybrid::new(classes, 0), budget))),
        Contender::new("system", Kind::General, rounds_of(Malloc, budget)),
    ];
    bench.group("", [Column::lower("pair", "ns"), Column::lower("batch of 1,000", "ns")], contenders);
    Ok(())
}

/// Measures the time to create a pool and allocate once, on newly mapped memory.
fn bench_pool_creation(bench: &mut Bench) {
    let budget = bench.budget();
    let lazy = |blocks: usize| {
        move || {
            let area = MappedArea::new(blocks * 16, 4096).expect("memory");
            let _ = black_box(IndexPool::new(area, 16).expect("room").alloc());
        }
    };
    let threaded = |blocks: usize| {
        move || {
            let area = MappedArea::new(blocks * 16, 4096).expect("memory");
            let slots = SlotLayout::new(16, 8).expect("slots");
            let _ = black_box(FixedPool::new(area, slots).expect("room").alloc(Layout::new::<u64>()));
        }
    };
    let creation = |name, mut create: Box<dyn FnMut()>| {
        let round = move || {
            let create = || {
                create();
                1
            };
            vec![clock::measure_per_operation(budget, || false, create)]
        };
        Contender::new(name, Kind::Ours, round)
    };
    let contenders = vec![
        creation("lazy, 1,000 blocks", Box::new(lazy(1000))),
        creation("lazy, 100,000,000 blocks", Box::new(lazy(100_000_000))),
        creation("fixed, 1,000 blocks", Box::new(threaded(1000))),
        creation("fixed, 1,000,000 blocks", Box::new(threaded(1_000_000))),
    ];
    bench.group("make and take one", [Column::lower("", "ns")], contenders);
}

/// Measures a walk over the objects in use (one in ten of 100,000 slots) that sums a word of each object.
fn walks(bench: &mut Bench) -> Result<(), PoolError> {
    const SLOTS: usize = 100_000;
    let budget = bench.budget();
    let area = || HeapArea::new(SLOTS * (OBJECT.size() + 9), 64);
    let mut bits = FixedPool::checked(area()?, SlotLayout::new(OBJECT.size(), OBJECT.align())?)?;
    let mut marks = MarkedPool::new(area()?, OBJECT.size(), OBJECT.align())?;
    let by_bits: Vec<_> = (0..SLOTS).map(|_| bits.alloc(OBJECT).expect("room")).collect();
    let by_marks: Vec<_> = (0..SLOTS).map(|_| marks.alloc(OBJECT).expect("room")).collect();
    // Every tenth object stays, in an order different from the slots' order, which matters if a walk follows links.
    let mut kept_objects = Vec::new();
    for index in (0..SLOTS).map(|index| index * 7919 % SLOTS) {
        // SAFETY: the object was allocated above, and is freed at most once. Objects that are not freed are in use.
        unsafe {
            if index % 10 == 0 {
                by_bits[index].cast::<u64>().write(1);
                by_marks[index].cast::<u64>().write(1);
                kept_objects.push(by_bits[index]);
            } else {
                let _ = (bits.free(by_bits[index]), marks.free(by_marks[index]));
            }
        }
    }
    let links = kept_objects
        .windows(2)
        .map(|pair| (pair[0], Some(pair[1])))
        .chain([(kept_objects[kept_objects.len() - 1], None)]);
    for (object, next) in links {
        // SAFETY: this is the second word of an object in use.
        unsafe { object.add(8).cast::<Option<NonNull<u8>>>().write(next) };
    }
    // SAFETY: an object in use has a word.
    let word = |object: NonNull<u8>| unsafe { object.cast::<u64>().read() };
    // The linked list goes through objects of the checked pool, which the closures share.
    let (bits, first) = (std::rc::Rc::new(bits), kept_objects[0]);
    let memory = bits.clone();
    let walk = |name, mut sum: Box<dyn FnMut() -> u64>| {
        let round = move || {
            let walk = || {
                assert_eq!(black_box(sum()), SLOTS as u64 / 10);
                SLOTS as u64 / 10
            };
            vec![clock::measure_per_operation(budget, || false, walk)]
        };
        Contender::new(name, Kind::Ours, round)
    };
    let linked = move || {
        let _ = &memory;
        // SAFETY: the chain links objects in use.
        let next_of = |object: &NonNull<u8>| unsafe { object.add(8).cast::<Option<NonNull<u8>>>().read() };
        std::iter::successors(Some(first), next_of).map(word).sum()
    };
    let contenders = vec![
        walk("bitmap", Box::new(move || bits.live().into_iter().flatten().map(word).sum())),
        walk("marks", Box::new(move || marks.live().map(word).sum())),
        walk("linked list", Box::new(linked)),
    ];
    bench.group("walk, an object", [Column::lower("", "ns")], contenders);
    Ok(())
}

/// Measures stores to each page of 64 MiB: the first store to a page, and the second store to it.
fn pages(bench: &mut Bench) {
    const PAGES: usize = (64 << 20) / 4096;
    let touch = |area: &MappedArea| {
        // SAFETY: the page is within the area, which this function owns.
        (0..PAGES).for_each(|page| unsafe { area.memory().cast::<u8>().add(page * 4096).write_volatile(1) });
    };
    let round = move |warm: bool| {
        move || {
            let area = MappedArea::new(PAGES * 4096, 4096).expect("memory");
            if warm {
                touch(&area);
            }
            let start = clock::cpu();
            touch(&area);
            vec![(clock::cpu() - start).as_nanos() as f64 / PAGES as f64]
        }
    };
    let contenders = vec![
        Contender::new("first touch", Kind::Ours, round(false)),
        Contender::new("again", Kind::Ours, round(true)),
    ];
    bench.group("a page", [Column::lower("", "ns")], contenders);
}

fn main() -> anyhow::Result<()> {
    let mut bench =
        Bench::start("fixed_size", "CPU ns of pools of 64 B objects, and of the claims about their designs");
    operations(&mut bench)?;
    bench_pool_creation(&mut bench);
    walks(&mut bench)?;
    pages(&mut bench);
    bench.run()
}
