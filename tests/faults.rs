//! Tests that every public operation works or returns an error when a resource is refused. For each number `n`, the
//! test runs each operation under three fault rules. The first rule refuses only the `n`-th call of any fault point;
//! the second rule also refuses all later calls; the third rule also refuses all later calls of the same fault point.
//! Under each rule, an operation must return an error, or succeed without the refused resource. After a refusal, no
//! object may be lost, all counts must agree, and the operation must succeed without faults.
//!
//! The fault test needs a separate process. Some operations wait until the process has no RCU reader, so several tests
//! in one process would wait for each other's readers.
#![cfg(not(any(loom, shuttle)))]

#[allow(dead_code)]
#[path = "slab/common.rs"]
mod common;

use common::{assert_all_memory_returned, config};
use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::Write;
use std::ptr::NonNull;
use std::sync::Arc;
use uslab::faults::{self, CONSTRUCTOR_PANIC, Faults, POINTS, Rule};
use uslab::{AllocError, Census, Gfp, KmemCache, KmemCacheBuilder, Limit, Malloc, ObjectCache, Subsystem};
use uslab_buddy::Order;
use uslab_magazine::on_cpu;
use uslab_magazine::sync::catch_panic;

/// A trial that runs one operation under one fault rule.
struct FaultTrial {
    subsystem: Subsystem,
    faults: Faults,
    rule: Rule,
    /// The errors that operations returned during the trial.
    messages: std::cell::RefCell<BTreeSet<String>>,
}

impl FaultTrial {
    /// Runs `operation` under the fault rule of the trial. A failed operation must change nothing, and must succeed
    /// when it is repeated without faults.
    fn run_expecting_possible_error<R, E: Display>(&self, operation: impl FnMut() -> Result<R, E>) -> R {
        let mut operation = operation;
        let before = self.subsystem.check().unwrap();
        self.faults.arm(vec![self.rule.clone()]);
        let result = catch_panic(&mut operation);
        self.faults.disarm();
        let census = self.subsystem.check().unwrap();
        let messages = match result {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => {
                panic.downcast_ref::<&str>().expect("the panic must be an injected one").to_string()
            }
        };
        assert!(
            self.faults.tally().iter().any(|fault_point| fault_point.fired > 0),
            "the operation failed without a fault: {messages}"
        );
        let used_counts = |c: &Census| (c.caches, c.used, c.large_pages, c.block_pages, c.huge_pages);
        assert_eq!(
            used_counts(&census),
            used_counts(&before),
            "the operation failed ({messages}) but kept memory"
        );
        self.messages.borrow_mut().insert(messages);
        operation().unwrap_or_else(|error| panic!("the operation must succeed without faults: {error}"))
    }
    /// Runs an operation under the fault rule; in contrast to `run_expecting_possible_error`, the operation must not
    /// return an error.
    fn expect_success<R>(&self, operation: impl FnOnce() -> R) -> R {
        self.faults.arm(vec![self.rule.clone()]);
        let outcome = operation();
        self.faults.disarm();
        self.subsystem.check().unwrap();
        outcome
    }
    fn cache(&self, builder: KmemCacheBuilder) -> KmemCache {
        builder.build_in(&self.subsystem).unwrap()
    }
    fn objects(&self, cache: &KmemCache, n: usize) -> Vec<NonNull<u8>> {
        (0..n).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect()
    }
}

fn free(cache: &KmemCache, objects: impl IntoIterator<Item = NonNull<u8>>) {
    // SAFETY: each operation passes objects that it allocated from this cache, once each.
    unsafe { cache.free_bulk(objects) };
}

fn plain() -> KmemCacheBuilder {
    KmemCache::builder("plain", 256)
}
fn constructed() -> KmemCacheBuilder {
    KmemCache::builder("constructed", 1000).ctor(|bytes| bytes.fill(1))
}
/// Returns a cache whose objects are so small that the bitmap of a slab does not fit into its frame.
fn new_tiny_object_cache() -> KmemCacheBuilder {
    KmemCache::builder("tiny", 8)
}
/// Returns a cache whose slabs normally have a high order, and a smaller order if memory is short.
fn wide_cache() -> KmemCacheBuilder {
    KmemCache::builder("wide", 2500)
}

fn run_trial(trial: &FaultTrial, builder: KmemCacheBuilder) {
    let cache = trial.cache(builder);
    let object = trial.run_expecting_possible_error(|| cache.alloc(Gfp::KERNEL));
    free(&cache, [object]);
}
fn bulk(trial: &FaultTrial, builder: KmemCacheBuilder, n: usize) {
    let cache = trial.cache(builder);
    let mut objects = vec![None; n];
    trial.run_expecting_possible_error(|| {
        cache
            .alloc_bulk(Gfp::KERNEL, &mut objects)
            .inspect_err(|_| assert!(objects.iter().all(Option::is_none)))
    });
    free(&cache, objects.into_iter().flatten());
}
fn memory(trial: &FaultTrial, size: usize) {
    let kmalloc = trial.subsystem.kmalloc();
    let memory = trial.run_expecting_possible_error(|| kmalloc.alloc(size, Gfp::KERNEL));
    // SAFETY: the memory was allocated just now.
    unsafe { kmalloc.free(memory) };
}

type Operation = (&'static str, fn(&FaultTrial));

const OPERATIONS: &[Operation] = &[
    ("build a cache", |t| drop(t.run_expecting_possible_error(|| plain().build_in(&t.subsystem)))),
    ("build a typed cache", |t| {
        drop(t.run_expecting_possible_error(|| {
            ObjectCache::builder("typed").ctor(|| 7_u64).build_in(&t.subsystem)
        }))
    }),
    ("build a malloc", |t| drop(t.run_expecting_possible_error(|| Malloc::new(&t.subsystem)))),
    ("alloc", |t| run_trial(t, plain())),
    ("alloc, constructed", |t| run_trial(t, constructed())),
    ("alloc, long bitmap", |t| run_trial(t, new_tiny_object_cache())),
    ("alloc, high order", |t| run_trial(t, wide_cache())),
    ("alloc, limited", |t| run_trial(t, plain().limit(Limit::Slabs(1)))),
    ("alloc, type-stable", |t| run_trial(t, plain().type_stable())),
    ("alloc, no magazines", |t| run_trial(t, plain().magazines(uslab::Magazines::Off))),
    ("alloc, typed", |t| {
        let liveness = Arc::new(());
        let object = liveness.clone();
        let cache = ObjectCache::builder("typed").ctor(move || object.clone());
        let cache = cache.build_in(&t.subsystem).unwrap();
        assert!(Arc::ptr_eq(&liveness, &t.run_expecting_possible_error(|| cache.alloc())));
        drop(cache);
        assert_eq!(Arc::strong_count(&liveness), 1, "every constructed object must be destructed");
    }),
    ("alloc a block", |t| {
        let cache = t.cache(plain());
        drop(t.run_expecting_possible_error(|| cache.alloc_block(Gfp::ZERO)));
    }),
    ("alloc on a node", |t| {
        let cache = t.cache(plain());
        let object = t.run_expecting_possible_error(|| cache.alloc_node(Gfp::THIS_NODE, 0));
        free(&cache, [object]);
    }),
    ("alloc, the second slab", |t| {
        let cache = t.cache(plain());
        let first = t.objects(&cache, 40);
        let more_objects = t.run_expecting_possible_error(|| {
            let mut more_objects: Vec<NonNull<u8>> = vec![];
            for _ in 0..100 {
                let object =
                    cache.alloc(Gfp::KERNEL).inspect_err(|_| free(&cache, more_objects.drain(..)))?;
                more_objects.push(object);
            }
            Ok::<_, AllocError>(more_objects)
        });
        free(&cache, first.into_iter().chain(more_objects));
    }),
    ("alloc_bulk", |t| bulk(t, plain(), 300)),
    ("alloc_bulk, constructed", |t| bulk(t, constructed(), 50)),
    ("alloc_bulk, long bitmap", |t| bulk(t, new_tiny_object_cache(), 1500)),
    ("prefill", |t| {
        let cache = t.cache(plain());
        drop(t.run_expecting_possible_error(|| cache.prefill(Gfp::KERNEL, 150)));
    }),
    ("prefill, constructed", |t| {
        let cache = t.cache(constructed());
        drop(t.run_expecting_possible_error(|| cache.prefill(Gfp::KERNEL, 30)));
    }),
    ("refill", |t| {
        let cache = t.cache(plain());
        let mut private = cache.prefill(Gfp::KERNEL, 10).unwrap();
        t.run_expecting_possible_error(|| private.refill(150));
        assert!(private.len() >= 150);
    }),
    ("private frees", |t| {
        let cache = t.cache(plain());
        let objects = t.objects(&cache, 300);
        let mut private = cache.prefill(Gfp::KERNEL, 1).unwrap();
        // SAFETY: the objects were allocated from this cache above, and are freed once.
        t.expect_success(|| objects.into_iter().for_each(|object| unsafe { private.free(object) }));
        t.expect_success(|| drop(private));
    }),
    ("free", |t| {
        let cache = t.cache(plain());
        let objects = t.objects(&cache, 1000);
        t.expect_success(|| free(&cache, objects));
    }),
    ("free on another CPU", |t| {
        let cache = t.cache(plain());
        let objects = t.objects(&cache, 1000);
        on_cpu(1);
        t.expect_success(|| free(&cache, objects));
        on_cpu(0);
    }),
    ("shrink", |t| {
        let cache = t.cache(plain());
        free(&cache, t.objects(&cache, 1000));
        t.expect_success(|| cache.shrink());
    }),
    ("reap", |t| {
        let cache = t.cache(plain());
        free(&cache, t.objects(&cache, 1000));
        t.expect_success(|| (0..4).map(|_| t.subsystem.reap()).sum::<u64>());
    }),
    ("drain", |t| {
        let cache = t.cache(plain());
        free(&cache, t.objects(&cache, 1000));
        t.expect_success(|| t.subsystem.drain_cpus(0..2));
    }),
    ("destroy", |t| {
        let cache = t.cache(constructed());
        free(&cache, t.objects(&cache, 200));
        assert_eq!(t.expect_success(|| cache.destroy()), Ok(()));
    }),
    ("release pages", |t| {
        drop(t.subsystem.pages().alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap());
        t.expect_success(|| t.subsystem.pages().decommit());
    }),
    ("kmalloc", |t| memory(t, 100)),
    ("kmalloc, smallest", |t| memory(t, 8)),
    ("kmalloc, largest class", |t| memory(t, 8192)),
    ("kmalloc, large", |t| memory(t, 100_000)),
    ("kmalloc, largest", |t| memory(t, 4 << 20)),
    ("kmalloc a block", |t| {
        drop(t.run_expecting_possible_error(|| t.subsystem.kmalloc().alloc_block(700, Gfp::KERNEL)))
    }),
    ("malloc", |t| {
        let malloc = Malloc::new(&t.subsystem).unwrap();
        for size in [100, 5000, 50_000, 5 << 20] {
            let layout = Layout::from_size_align(size, 64).unwrap();
            let memory = t.run_expecting_possible_error(|| malloc.alloc(layout, Gfp::ZERO));
            // SAFETY: the memory was allocated just now with this layout.
            unsafe { malloc.free_sized(memory, layout) };
        }
    }),
    ("realloc", |t| {
        let malloc = Malloc::new(&t.subsystem).unwrap();
        let layout = |size| Layout::from_size_align(size, 16).unwrap();
        let mut memory = malloc.alloc(layout(40), Gfp::KERNEL).unwrap();
        let mut size = 40;
        // SAFETY: the memory was allocated with the layout of the last size, and 40 bytes of it are written.
        unsafe {
            memory.write_bytes(7, 40);
            for new_size in [300, 70_000, 5 << 20, 9 << 20, 6 << 20, 100] {
                memory = t.run_expecting_possible_error(|| {
                    malloc.realloc_sized(memory, layout(size), new_size, Gfp::KERNEL)
                });
                size = new_size;
                assert!(core::slice::from_raw_parts(memory.as_ptr(), 40).iter().all(|byte| *byte == 7));
            }
            malloc.free(memory);
        }
    }),
    ("krealloc", |t| {
        let kmalloc = t.subsystem.kmalloc();
        let mut memory = kmalloc.alloc(40, Gfp::KERNEL).unwrap();
        for size in [3000, 2000, 70_000, 100] {
            // SAFETY: the memory was allocated above.
            memory = t.run_expecting_possible_error(|| unsafe { kmalloc.realloc(memory, size, Gfp::KERNEL) });
        }
        // SAFETY: the memory was allocated above, and is freed once.
        unsafe { kmalloc.free(memory) };
    }),
    ("pages", |t| {
        for order in [0, 3, 10].map(|order| Order::new(order).unwrap()) {
            drop(
                t.run_expecting_possible_error(|| t.subsystem.pages().alloc_block(order, Gfp::KERNEL, None)),
            );
        }
    }),
];

#[derive(Default)]
struct TrialTotals {
    /// The number of trials in which at least one call was refused.
    points: u64,
    /// The number of all refused calls.
    injections: u64,
    by_point: BTreeMap<&'static str, u64>,
    messages: BTreeSet<String>,
}

impl TrialTotals {
    /// Adds the refused calls to the totals. Returns `false` if no call was refused, because the operation
    /// made fewer than `n` calls.
    fn add(&mut self, faults: &Faults) -> bool {
        let fired: Vec<_> = faults.tally().into_iter().filter(|fault_point| fault_point.fired > 0).collect();
        for fault_point in &fired {
            *self.by_point.entry(fault_point.point).or_default() += fault_point.fired;
            self.injections += fault_point.fired;
        }
        self.points += u64::from(!fired.is_empty());
        !fired.is_empty()
    }
}

/// Returns the rules to try: for each `n`, the rules that refuse calls from the `n`-th call on.
fn fault_rules() -> impl Iterator<Item = Rule> {
    let fire_once = Rule { times: Some(1), ..Rule::every(None) };
    [fire_once, Rule::every(None)].into_iter().chain(POINTS.map(|point| Rule::every(Some(point))))
}

fn sweep((name, operation): Operation, nodes: u32, mode: &Rule, sum: &mut TrialTotals) {
    on_cpu(0);
    for n in 1.. {
        let rule = Rule { nth: n, ..mode.clone() };
        let mut config = config(2, nodes, 64 << 20);
        let faults = Faults::new(n);
        config.pages.faults = faults.clone();
        let subsystem = Subsystem::new(config).unwrap();
        let trial = FaultTrial { subsystem, faults: faults.clone(), rule, messages: Default::default() };
        let outcome = catch_panic(|| {
            operation(&trial);
            for _ in 0..8 {
                uslab::rcu::advance();
            }
            assert_all_memory_returned(&trial.subsystem);
        });
        assert!(outcome.is_ok(), "{name}, {nodes} nodes: refused by {:?}", trial.rule);
        sum.messages.append(&mut trial.messages.borrow_mut());
        if !sum.add(&faults) {
            return;
        }
    }
}

/// If a resource is refused while a subsystem starts, the subsystem starts with fewer features, or the error names the
/// resource.
fn start(mode: &Rule, sum: &mut TrialTotals) {
    for n in 1.. {
        let faults = Faults::new(n);
        let mut config = config(2, 1, 64 << 20);
        config.pages.faults = faults.clone();
        faults.arm(vec![Rule { nth: n, ..mode.clone() }]);
        let start_result = Subsystem::new(config);
        faults.disarm();
        match start_result {
            Ok(subsystem) => assert_all_memory_returned(&subsystem),
            Err(error) => _ = sum.messages.insert(error.to_string()),
        }
        if !sum.add(&faults) {
            return;
        }
    }
}

#[test]
fn each_operation_survives_each_refused_system_call() {
    let mut sum = TrialTotals::default();
    for mode in fault_rules() {
        start(&mode, &mut sum);
        for operation in OPERATIONS {
            [1, 2].into_iter().for_each(|nodes| sweep(*operation, nodes, &mode, &mut sum));
        }
    }
    // The line bypasses libtest's capture, because the runner of all tests reads it.
    let line = format!("faults: {} points, {} injections\n", sum.points, sum.injections);
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    println!("{:#?}\n{:#?}", sum.by_point, sum.messages);
    let unreached: Vec<_> = POINTS.iter().filter(|point| !sum.by_point.contains_key(point.name)).collect();
    assert!(unreached.is_empty(), "no call was refused at {unreached:?}");
    for limit in ["fault injection", "refused to commit", "bitmap", "limit of 0 slabs", CONSTRUCTOR_PANIC] {
        assert!(
            sum.messages.iter().any(|messages| messages.contains(limit)),
            "no error mentions {limit}: {:#?}",
            sum.messages
        );
    }
}

#[test]
fn injected_faults_affect_only_their_subsystem() {
    let [first_faults, second] = [Faults::new(1), Faults::new(1)].map(|faults| {
        let mut config = config(1, 1, 16 << 20);
        config.pages.faults = faults.clone();
        (Subsystem::new(config).unwrap(), faults)
    });
    first_faults.1.arm(faults::parse("slab:cache=kmalloc-64").unwrap());
    let kmalloc = first_faults.0.kmalloc();
    assert_eq!(kmalloc.alloc_block(64, Gfp::KERNEL).unwrap_err(), AllocError::Injected);
    assert!(kmalloc.alloc_block(65, Gfp::KERNEL).is_ok(), "another cache must not be refused");
    assert!(second.0.kmalloc().alloc_block(64, Gfp::KERNEL).is_ok(), "another subsystem must not be refused");
    assert_eq!(
        first_faults.1.tally().iter().map(|fault_point| fault_point.fired).max(),
        Some(2),
        "the second call after the drain must be refused"
    );
}

#[test]
fn injected_faults_can_be_limited_to_large_orders() {
    let mut config = config(1, 1, 16 << 20);
    let faults = Faults::new(1);
    config.pages.faults = faults.clone();
    let subsystem = Subsystem::new(config).unwrap();
    let cache = wide_cache().build_in(&subsystem).unwrap();
    faults.arm(faults::parse("page:order=1..").unwrap());
    let objects: Vec<_> = (0..100).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
    assert_eq!(cache.info().order_fallbacks, 100, "each page must have one object");
    faults.disarm();
    free(&cache, objects);
    drop(cache);
    assert_all_memory_returned(&subsystem);
}

/// A slab of boxed objects needs a side table with one word for each page.
#[test]
fn fault_size_limit_counts_the_side_table() {
    let mut config = config(1, 1, 16 << 20);
    let faults = Faults::new(1);
    config.pages.faults = faults.clone();
    let subsystem = Subsystem::new(config).unwrap();
    let cache = ObjectCache::builder("boxed").ctor(|| [0_u8; 1000]).build_in(&subsystem).unwrap();
    let (objects, pages) = (cache.info().objs_per_slab as usize, 1 << cache.info().order);
    assert!(pages > 1);
    faults.arm(faults::parse(&format!("bitmap:cache=boxed,space={}", pages * size_of::<usize>())).unwrap());
    let (mut allocated, mut error) = (vec![], None);
    while error.is_none() && allocated.len() <= objects {
        match cache.alloc() {
            Ok(first_faults) => allocated.push(first_faults),
            Err(refused) => error = Some(refused),
        }
    }
    assert_eq!((allocated.len(), error), (objects, Some(AllocError::SideTable)));
    faults.disarm();
    drop(allocated);
    drop(cache);
    assert_all_memory_returned(&subsystem);
}
