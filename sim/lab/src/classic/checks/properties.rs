//! Tests of the magazine layer on simulated CPUs and on threads, including property tests against a shadow that follows
//! Figure 3.1b.

use crate::classic::magazine::{CpuCache, Magazine};
use crate::classic::{Cache, MagazineStats, PerCpu, Sizes, Slab, Stats};
use proptest::prelude::*;
use uslab_magazine::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering::Relaxed, thread};
use uslab_magazine::{Cpus, on_cpu};

/// A slab layer whose objects are numbers; at most `limit` numbers are in use at a time.
#[derive(Debug)]
struct NumberSupplier {
    state: Mutex<(Vec<u64>, u64)>,
    limit: u64,
    /// `true` while memory for magazines is available.
    magazines: AtomicBool,
}

impl NumberSupplier {
    fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((vec![], 0)), limit, magazines: AtomicBool::new(true) })
    }
    /// Returns how many numbers are allocated.
    fn allocated(&self) -> u64 {
        let (free, made_objects) = &*self.state.lock();
        made_objects - free.len() as u64
    }
}

#[derive(Debug)]
struct SharedNumbers(Arc<NumberSupplier>);

impl Slab<u64> for SharedNumbers {
    fn alloc(&self) -> Option<u64> {
        let (free, next_number) = &mut *self.0.state.lock();
        free.pop().or_else(|| {
            (*next_number < self.0.limit).then(|| {
                *next_number += 1;
                *next_number
            })
        })
    }
    fn free(&self, number: u64) {
        let (free, made_objects) = &mut *self.0.state.lock();
        assert!((1..=*made_objects).contains(&number) && !free.contains(&number), "{number} is freed twice");
        free.push(number);
    }
    fn magazine(&self, size: usize) -> Option<Vec<u64>> {
        self.0.magazines.load(Relaxed).then(|| Vec::with_capacity(size))
    }
}

fn cache(cpus: u32, sizes: Sizes, numbers: &Arc<NumberSupplier>) -> Cache<u64, SharedNumbers> {
    Cache::new(Cpus::simulated(cpus, 1).unwrap(), sizes, SharedNumbers(numbers.clone()))
}
fn fixed(size: usize) -> Sizes {
    Sizes { first: size, largest: size, contention: 0 }
}

// ---------------------------------------------------------------- the shadow

/// A magazine of the shadow: its size, and its number of rounds.
#[derive(Clone, Copy, Debug)]
struct ShadowMagazine {
    size: usize,
    rounds: usize,
}

/// A model of the paper's rules; it counts the rounds in each magazine and list but does not identify them.
#[derive(Debug)]
struct Shadow {
    /// The loaded and the previous magazine of each CPU; a CPU may have no, one or two magazines.
    cpus: Vec<[Option<ShadowMagazine>; 2]>,
    full: Vec<ShadowMagazine>,
    empty: Vec<ShadowMagazine>,
    /// For each list (full magazines, empty magazines), its smallest length in the current interval and in the previous
    /// one.
    min_lengths: [usize; 2],
    previous_min_lengths: [usize; 2],
    size: usize,
    sizes: Sizes,
    contended: u64,
    stats: Stats,
    in_slab_layer: u64,
}

impl Shadow {
    fn new(cpus: usize, sizes: Sizes, limit: u64) -> Self {
        Self {
            cpus: vec![[None; 2]; cpus],
            full: vec![],
            empty: vec![],
            min_lengths: [0; 2],
            previous_min_lengths: [0; 2],
            size: sizes.first,
            sizes,
            contended: 0,
            stats: Stats::default(),
            in_slab_layer: limit,
        }
    }
    fn lengths(&mut self) {
        self.min_lengths =
            [self.min_lengths[0].min(self.full.len()), self.min_lengths[1].min(self.empty.len())];
    }
    fn put_in_depot(&mut self, magazine: Option<ShadowMagazine>) {
        match magazine {
            Some(magazine) if magazine.rounds > 0 => self.full.push(magazine),
            Some(magazine) if magazine.size == self.size => self.empty.push(magazine),
            _ => {}
        }
    }
    fn exchange(&mut self, cpu: usize, new_loaded: ShadowMagazine) {
        let [loaded, previous] = self.cpus[cpu];
        self.lengths();
        self.put_in_depot(previous);
        self.cpus[cpu] = [Some(new_loaded), loaded];
        self.stats.exchanges += 1;
    }
    /// Allocates a round in the shadow; returns `true` if a round was available.
    fn alloc(&mut self, cpu: usize) -> bool {
        if let [Some(loaded), _] = &mut self.cpus[cpu]
            && loaded.rounds > 0
        {
            loaded.rounds -= 1;
            self.stats.cpu_allocs += 1;
            return true;
        }
        if self.cpus[cpu][1].is_some_and(|previous| previous.rounds == previous.size) {
            self.cpus[cpu].swap(0, 1);
            return self.alloc(cpu);
        }
        if let Some(full) = self.full.pop() {
            self.exchange(cpu, full);
            return self.alloc(cpu);
        }
        let has_round = self.in_slab_layer > 0;
        self.in_slab_layer -= u64::from(has_round);
        self.stats.slab_allocs += u64::from(has_round);
        has_round
    }
    fn free(&mut self, cpu: usize, magazines: bool) {
        if let [Some(loaded), _] = &mut self.cpus[cpu]
            && loaded.rounds < loaded.size
        {
            loaded.rounds += 1;
            self.stats.cpu_frees += 1;
        } else if self.cpus[cpu][1].is_some_and(|previous| previous.rounds == 0) {
            self.cpus[cpu].swap(0, 1);
            self.free(cpu, magazines);
        } else if let Some(empty) = self.empty.pop() {
            self.exchange(cpu, empty);
            self.free(cpu, magazines);
        } else if magazines {
            self.empty.push(ShadowMagazine { size: self.size, rounds: 0 });
            self.free(cpu, magazines);
        } else {
            self.in_slab_layer += 1;
            self.stats.slab_frees += 1;
        }
    }
    fn flush(&mut self, magazines: impl IntoIterator<Item = ShadowMagazine>) {
        for magazine in magazines {
            self.in_slab_layer += magazine.rounds as u64;
            self.stats.flushed += magazine.rounds as u64;
        }
    }
    fn end_interval(&mut self) {
        self.previous_min_lengths = self.min_lengths;
        self.min_lengths = [self.full.len(), self.empty.len()];
        if std::mem::take(&mut self.contended) > self.sizes.contention && self.size < self.sizes.largest {
            let next_size = [1, 3, 7, 15, 31, 47, 63, 95, 143].into_iter().find(|size| *size > self.size);
            self.size = next_size.unwrap_or(2 * self.size + 1).min(self.sizes.largest);
            self.empty.clear();
            (self.min_lengths[1], self.previous_min_lengths[1]) = (0, 0);
        }
    }
    fn reap(&mut self) -> usize {
        let [full, empty] = [0, 1].map(|list| {
            let surplus = self.min_lengths[list].min(self.previous_min_lengths[list]);
            self.min_lengths[list] -= surplus;
            self.previous_min_lengths[list] -= surplus;
            surplus
        });
        self.empty.drain(..empty);
        let full: Vec<ShadowMagazine> = self.full.drain(..full).collect();
        let reaped = full.len() + empty;
        self.flush(full);
        reaped
    }
    fn drain(&mut self) {
        let cpus: Vec<ShadowMagazine> = self.cpus.iter_mut().flat_map(std::mem::take).flatten().collect();
        self.flush(cpus);
        let full = std::mem::take(&mut self.full);
        self.flush(full);
        self.empty.clear();
        (self.min_lengths, self.previous_min_lengths) = ([0; 2], [0; 2]);
    }
    /// Returns the shadow's counts in the format of the cache's statistics.
    fn stats(&self) -> Stats {
        let show = |magazine: &Option<ShadowMagazine>| {
            let ShadowMagazine { size, rounds } = magazine.unwrap_or(ShadowMagazine { size: 0, rounds: 0 });
            MagazineStats { rounds, size }
        };
        let list = |list: &[ShadowMagazine]| list.iter().map(|magazine| show(&Some(*magazine))).collect();
        Stats {
            cpus: self.cpus.iter().map(|[loaded, previous]| [show(loaded), show(previous)]).collect(),
            full: list(&self.full),
            empty: list(&self.empty),
            size: self.size,
            ..self.stats.clone()
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc {
        cpu: u32,
        n: u8,
    },
    Free {
        cpu: u32,
        n: u8,
        pick: usize,
    },
    EndInterval,
    Reap,
    Drain,
    /// Counts the given number of visits that found the depot locked.
    Contended(u64),
    /// Sets whether memory for magazines is available.
    Memory(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cpu = 0..3_u32;
    let step = prop_oneof![
        8 => (cpu.clone(), 1..8_u8).prop_map(|(cpu, n)| Step::Alloc { cpu, n }),
        8 => (cpu, 1..8_u8, any::<usize>()).prop_map(|(cpu, n, pick)| Step::Free { cpu, n, pick }),
        2 => Just(Step::EndInterval),
        1 => Just(Step::Reap),
        1 => Just(Step::Drain),
        1 => (0..6_u64).prop_map(Step::Contended),
        1 => any::<bool>().prop_map(Step::Memory),
    ];
    prop::collection::vec(step, 1..100)
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(1000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// After every operation, the cache and the shadow must have equal statistics, and no number may have two owners.
    #[test]
    fn magazine_layer_follows_figure_3_1b(first in 1..5_usize, growth in 0..9_usize, limit in 1..60_u64, steps in steps()) {
        let sizes = Sizes { first, largest: first + growth, contention: 3 };
        let numbers = NumberSupplier::new(limit);
        let cache = cache(3, sizes, &numbers);
        let mut shadow = Shadow::new(3, sizes, limit);
        let mut held: Vec<u64> = vec![];
        let mut magazines = true;
        for step in steps {
            match step {
                Step::Alloc { cpu, n } => for _ in 0..n {
                    on_cpu(cpu);
                    let number = cache.alloc();
                    prop_assert_eq!(number.is_some(), shadow.alloc(cpu as usize));
                    prop_assert!(number.is_none_or(|number| !held.contains(&number)), "the object must have one owner");
                    held.extend(number);
                },
                Step::Free { cpu, n, pick } => for _ in 0..n.min(held.len() as u8) {
                    on_cpu(cpu);
                    cache.free(held.swap_remove(pick % held.len()));
                    shadow.free(cpu as usize, magazines);
                },
                Step::EndInterval => {
                    cache.end_interval();
                    shadow.end_interval();
                }
                Step::Reap => prop_assert_eq!(cache.reap(), shadow.reap()),
                Step::Drain => {
                    cache.drain();
                    shadow.drain();
                }
                Step::Contended(visits) => {
                    cache.depot.0.lock().contended += visits;
                    shadow.contended += visits;
                    shadow.stats.contended += visits;
                }
                Step::Memory(there_is_some) => {
                    numbers.magazines.store(there_is_some, Relaxed);
                    magazines = there_is_some;
                }
            }
            prop_assert_eq!(cache.stats(), shadow.stats());
            prop_assert_eq!(numbers.allocated(), limit - shadow.in_slab_layer);
        }
        drop(cache);
        prop_assert_eq!(numbers.allocated(), held.len() as u64, "the end must free all objects");
        on_cpu(0);
    }

    /// Section 3.1: a CPU with two magazines serves at least M operations between two visits to the depot.
    #[test]
    fn depot_visits_are_at_least_m_operations_apart(
        size in 1..9_usize, operations in prop::collection::vec(any::<bool>(), 50..500),
    ) {
        let numbers = NumberSupplier::new(1000);
        let cache = cache(1, fixed(size), &numbers);
        let mut held: Vec<u64> = (0..500).filter_map(|_| cache.alloc()).collect();
        // Both magazines are full, and the depot has enough full and empty magazines.
        (0..250).for_each(|_| cache.free(held.pop().unwrap()));
        (0..200).for_each(|_| held.extend(cache.alloc()));
        let mut last = None;
        for (step_number, alloc) in operations.into_iter().enumerate() {
            let before = cache.stats().exchanges;
            if alloc {
                held.extend(cache.alloc());
            } else {
                cache.free(held.pop().unwrap());
            }
            match cache.stats().exchanges - before {
                0 => {}
                1 => {
                    prop_assert!(last.is_none_or(|last| step_number - last >= size), "{last:?} and {step_number}");
                    last = Some(step_number);
                }
                more => prop_assert!(false, "{more} exchanges in one operation"),
            }
        }
    }
}

// ---------------------------------------------------------------- the paper's own examples

/// Figure 3.1a: two allocations and two frees in a loop, beginning at any fill of the magazines.
#[test]
fn alternating_operations_at_a_magazine_boundary_do_not_thrash() {
    for fill in 0..12 {
        let numbers = NumberSupplier::new(100);
        let cache = cache(1, fixed(3), &numbers);
        let mut held: Vec<u64> = (0..30).filter_map(|_| cache.alloc()).collect();
        (0..fill + 6).for_each(|_| cache.free(held.pop().unwrap()));
        let a_loop = || {
            let pair = [cache.alloc(), cache.alloc()];
            pair.into_iter().flatten().for_each(|number| cache.free(number));
        };
        a_loop();
        let before = cache.stats().exchanges;
        (0..100).for_each(|_| a_loop());
        assert_eq!(cache.stats().exchanges, before, "{fill}");
    }
}

/// Section 3.7: if the length of a list varies between 37 and 47, the working set is 10 magazines, and a reap may take
/// the other 37.
#[test]
fn reap_takes_magazines_outside_the_working_set() {
    let numbers = NumberSupplier::new(1000);
    let cache = cache(1, fixed(1), &numbers);
    let mut held: Vec<u64> = (0..100).filter_map(|_| cache.alloc()).collect();
    let full = |wanted_rounds: usize, held: &mut Vec<u64>| {
        while cache.stats().full.len() < wanted_rounds {
            cache.free(held.pop().unwrap());
        }
        while cache.stats().full.len() > wanted_rounds {
            held.extend(cache.alloc());
        }
    };
    full(47, &mut held);
    assert_eq!(cache.reap(), 0, "a reap keeps magazines that were just put");
    cache.end_interval();
    for _ in 0..2 {
        full(37, &mut held);
        full(47, &mut held);
        cache.end_interval();
    }
    let top = || cache.depot.0.lock().full.magazines.last().unwrap().rounds.clone();
    let top_magazine = top();
    cache.reap();
    assert_eq!(
        (cache.stats().full.len(), top()),
        (10, top_magazine),
        "a reap must take the magazines that were unused longest"
    );
    assert_eq!(cache.reap(), 0, "once");
}

/// Section 3.4: contention above the limit makes magazines larger, up to a maximum; nothing makes them smaller.
#[test]
fn magazines_grow_with_contention_up_to_the_largest_size() {
    let cache = cache(1, Sizes { first: 1, largest: 10, contention: 3 }, &NumberSupplier::new(100));
    let after = |contended: u64| {
        cache.depot.0.lock().contended += contended;
        cache.end_interval();
        cache.stats().size
    };
    assert_eq!([3, 4, 0, 4, 3, 100, 4].map(after), [1, 3, 3, 7, 7, 10, 10]);
    let sizes = Sizes { first: 0, largest: 0, contention: 0 };
    assert_eq!(self::cache(1, sizes, &NumberSupplier::new(1)).stats().size, 1, "at least one round");
}

/// Section 3.3: an allocation that no magazine can serve takes one object from the slab layer, even if the layer has
/// many.
#[test]
fn magazines_are_filled_only_by_frees() {
    let numbers = NumberSupplier::new(100);
    let cache = cache(1, fixed(15), &numbers);
    let held: Vec<u64> = (0..10).filter_map(|_| cache.alloc()).collect();
    assert_eq!((numbers.allocated(), cache.stats().slab_allocs), (10, 10));
    held.into_iter().for_each(|number| cache.free(number));
    let stats = cache.stats();
    assert_eq!((stats.cpu_frees, stats.slab_frees), (10, 0));
    assert_eq!(stats.cpus, [[MagazineStats { rounds: 10, size: 15 }, MagazineStats { rounds: 0, size: 0 }]]);
}

/// Section 3.6: Two CPUs must not share a cache line.
#[test]
fn each_cpu_has_separate_cache_lines() {
    assert_eq!(align_of::<PerCpu<u64>>(), 64);
    assert_eq!(size_of::<PerCpu<u64>>() % 64, 0);
}

// ---------------------------------------------------------------- the rest

#[test]
fn missing_magazine_counts_as_full_and_empty() {
    let mut cpu: CpuCache<u64> = CpuCache::new();
    assert_eq!((cpu.loaded.pop(), cpu.loaded.push(7)), (None, Err(7)));
    cpu.load(Magazine { rounds: vec![1], size: 1 });
    assert_eq!(cpu.unload().map(|magazine| magazine.rounds.len()), [1, 0]);
    assert!(cpu.loaded.is_full() && cpu.loaded.is_empty());
}

#[test]
fn cpu_number_out_of_range_maps_to_a_cpu() {
    let numbers = NumberSupplier::new(10);
    let cache = cache(2, fixed(1), &numbers);
    on_cpu(u32::MAX);
    let number = cache.alloc().unwrap();
    cache.free(number);
    assert_eq!(cache.alloc(), Some(number));
    on_cpu(0);
}

/// A single thread acts as one CPU after another, as a simulator does. A CPU allocates objects that another CPU freed.
#[test]
fn one_thread_simulates_a_thousand_cpus() {
    let numbers = NumberSupplier::new(20_000);
    let cache = cache(1024, fixed(3), &numbers);
    let allocate = |cpu| {
        on_cpu(cpu);
        (0..10).filter_map(|_| cache.alloc()).collect::<Vec<u64>>()
    };
    let held: Vec<u64> = (0..1024).flat_map(allocate).collect();
    for (cpu, numbers) in (0..1024).rev().zip(held.chunks(10)) {
        on_cpu(cpu);
        numbers.iter().for_each(|number| cache.free(*number));
    }
    let (first, second) = (cache.stats(), (0..1024).flat_map(allocate).count());
    assert_eq!((first.slab_allocs, first.cpu_frees, second), (10_240, 10_240, 10_240));
    assert_eq!(cache.stats().slab_allocs, 10_240, "magazines must serve all allocations of the second pass");
    on_cpu(0);
}

#[test]
fn threads_on_real_cpus_lose_no_magazine_round() {
    const THREADS: u64 = 4;
    let numbers = NumberSupplier::new(10_000);
    let sizes = Sizes { first: 3, largest: 31, contention: 0 };
    let cache = Arc::new(Cache::new(Cpus::os(), sizes, SharedNumbers(numbers.clone())));
    let owners: Arc<Vec<AtomicU64>> = Arc::new((0..=10_000).map(|_| AtomicU64::new(0)).collect());
    let work = |thread_number: u64| {
        let (cache, owners) = (cache.clone(), owners.clone());
        move || {
            let mut held = vec![];
            for step in 0..20_000_u64 {
                if step.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(thread_number) >> 63 == 0
                    && held.len() < 200
                {
                    let number: u64 = cache.alloc().expect("the limit must not be reached");
                    assert_eq!(
                        owners[number as usize].swap(thread_number, Relaxed),
                        0,
                        "the object must have one owner"
                    );
                    held.push(number);
                } else if let Some(number) = held.pop() {
                    assert_eq!(
                        owners[number as usize].swap(0, Relaxed),
                        thread_number,
                        "the object must have one owner"
                    );
                    cache.free(number);
                }
                match step % 1000 {
                    0 => cache.end_interval(),
                    500 => _ = cache.reap(),
                    900 if thread_number == 1 => cache.drain(),
                    _ => {}
                }
            }
            held.len() as u64
        }
    };
    let threads: Vec<_> = (1..=THREADS).map(|thread_number| thread::spawn(work(thread_number))).collect();
    let held: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let stats = cache.stats();
    assert_eq!(stats.cpu_allocs + stats.slab_allocs - stats.cpu_frees - stats.slab_frees, held);
    assert_eq!(stats.slab_allocs - stats.slab_frees - stats.flushed, numbers.allocated());
    drop(cache);
    assert_eq!(numbers.allocated(), held);
}

/// The source code of the layer must be short enough to read in one sitting. Blank lines and comments do not count.
#[test]
fn classic_magazine_layer_is_at_most_400_lines() {
    let files = [
        include_str!("../mod.rs"),
        include_str!("../magazine.rs"),
        include_str!("../depot.rs"),
        include_str!("../stats.rs"),
    ];
    let code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let lines: usize = files.iter().map(|file| file.lines().filter(code).count()).sum();
    assert!((200..=400).contains(&lines), "{lines}");
}

/// Regression test: above 31 rounds, magazines had sizes that illumos does not have.
#[test]
fn magazines_grow_to_the_sizes_of_illumos() {
    let depot = super::super::depot::Depot::<usize>::new(15);
    let mut stock = depot.lock();
    let sizes: Vec<_> = (0..6)
        .map(|_| {
            stock.contended += 4;
            stock.resize(&Sizes::default());
            stock.size
        })
        .collect();
    assert_eq!(sizes, [31, 47, 63, 95, 143, 143]);
}
