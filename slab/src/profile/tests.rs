//! Tests that compare a profile's estimates with the true amounts. On one simulated CPU, the seed determines every
//! result, so no test depends on chance.

use super::*;
use crate::{Config, Gfp, KmemCache, Malloc, ObjectCache, Subsystem};
use core::alloc::Layout;
use core::hint::black_box;
use std::collections::BTreeMap;
use uslab_buddy::{PAGE_SIZE, PageConfig};
use uslab_magazine::{Cpus, on_cpu};

fn subsystem(cpus: Cpus) -> Subsystem {
    let pages = PageConfig::default_for(cpus).limit(256 << 20);
    Subsystem::new(Config { check_frees: false, ..Config::new(pages) }).unwrap()
}
/// True if this build supports separate memory for samples.
const SEPARATE_MEMORY: bool = cfg!(all(target_os = "linux", not(uslab_heap)));

fn one_cpu() -> Subsystem {
    on_cpu(0);
    subsystem(Cpus::simulated(1, 1).unwrap())
}

/// Tests the lowest rate at which samples get separate memory.
#[test]
fn profile_with_rare_samples_uses_separate_memory() {
    for (rate, own) in [(SEPARATE_MEMORY_MIN_RATE - 1, false), (SEPARATE_MEMORY_MIN_RATE, SEPARATE_MEMORY)] {
        let subsystem = one_cpu();
        subsystem.core().start_profile(rate, Some(7)).unwrap();
        assert_eq!(subsystem.core().profiler.profiles_malloc_only(), own, "{rate}");
        let profiler = &subsystem.core().profiler;
        let base = profiler.base.get() as usize;
        let ends = [
            base,
            base + MAX_LIVE_SAMPLES * MAX_SAMPLE_BYTES - 1,
            base + MAX_LIVE_SAMPLES * MAX_SAMPLE_BYTES,
        ]
        .map(|at| profiler.is_in_sample_memory(at));
        assert_eq!(ends, [own, own, false]);
        // This CPU's number is beyond the configured CPUs.
        _ = profiler.countdown(u32::MAX);
    }
}

#[test]
fn stopped_profile_does_not_record_allocations() {
    let subsystem = one_cpu();
    subsystem.core().start_profile_with(1 << 20, Some(7), true).unwrap();
    let profiler = &subsystem.core().profiler;
    let run = profiler.run.load(Relaxed);
    let sample = |run| profiler.sample_in_separate_memory(run, profiler.countdown(0), 64, "late").is_some();
    assert_eq!([sample(run), sample(0), sample(run + 1)], [SEPARATE_MEMORY, false, false]);
    subsystem.core().stop_profile();
    assert!(!profiler.profiles_malloc_only());
    assert!(!sample(run) && !sample(0));
    assert_eq!(profiler.profile().samples.len(), usize::from(SEPARATE_MEMORY));
    // A sample of one profile must not count as a sample of the next profile.
    subsystem.core().start_profile_with(1 << 20, Some(7), true).unwrap();
    assert!(!sample(run));
    profiler.sample(run, profiler.countdown(0), NonNull::dangling(), 64, "late");
    assert_eq!((profiler.profile().samples.len(), profiler.profile().lost), (0, 0));
}

#[test]
fn failed_profile_start_changes_nothing() {
    let subsystem = one_cpu();
    let profiler = &subsystem.core().profiler;
    let fresh = || SampleMemory::new(uslab_buddy::Backend::Os, &crate::debug::faults::Faults::default());
    let mut requests = vec![];
    for _ in 0..2 {
        let refused = |with_frees| {
            requests.push(with_frees);
            false
        };
        assert_eq!(profiler.start(1 << 20, Some(7), Some(fresh), refused), Err(NotStarted::Fence));
        assert!(!profiler.runs() && !profiler.profiles_malloc_only() && !profiler.stop(|| ()));
    }
    assert_eq!(requests, [!SEPARATE_MEMORY; 2]);
    subsystem.core().start_profile_with(1 << 20, Some(7), true).unwrap();
    let run = profiler.run.load(Relaxed);
    let memory = profiler.sample_in_separate_memory(run, profiler.countdown(0), 64, "held");
    assert_eq!(memory.is_some(), SEPARATE_MEMORY);
    subsystem.core().stop_profile();
    let before = profiler.profile();
    assert_eq!(profiler.start(1 << 20, Some(7), Some(fresh), |_| false), Err(NotStarted::Fence));
    assert!(!profiler.runs() && !profiler.profiles_malloc_only());
    assert_eq!(profiler.profile(), before, "the last profile still exists");
    if let Some(memory) = memory {
        assert_eq!((profiler.holds(memory), profiler.size_of(memory)), (true, Ok(64)));
        assert_eq!(profiler.free(memory), Ok(()));
    }
}

/// A second thread starts a profile while the first thread executes the fence of its start.
#[test]
fn starting_a_profile_during_a_concurrent_start_is_refused() {
    let subsystem = one_cpu();
    let profiler = &subsystem.core().profiler;
    let memory = || SampleMemory::new(uslab_buddy::Backend::Os, &crate::debug::faults::Faults::default());
    std::thread::scope(|scope| {
        let mut other = None;
        let close = |_| {
            other = Some(scope.spawn(|| profiler.start(1 << 20, Some(7), Some(memory), |_| true)));
            std::thread::sleep(std::time::Duration::from_millis(100));
            true
        };
        assert_eq!(profiler.start(1 << 20, Some(7), Some(memory), close), Ok(()));
        assert_eq!(other.unwrap().join().unwrap(), Err(NotStarted::Runs));
    });
    assert!(profiler.stop(|| ()) && !profiler.stop(|| ()));
}

#[test]
fn only_one_of_two_concurrent_profile_starts_succeeds() {
    let (subsystem, rounds) = (one_cpu(), 300);
    let profiler = &subsystem.core().profiler;
    let memory = || SampleMemory::new(uslab_buddy::Backend::Os, &crate::debug::faults::Faults::default());
    let barrier = std::sync::Barrier::new(2);
    let starts = || {
        let start_profile = |_: &u32| {
            barrier.wait();
            let started = profiler.start(1 << 20, Some(7), Some(memory), |_| true).is_ok();
            barrier.wait();
            if started {
                profiler.stop(|| ());
            }
            barrier.wait();
            started
        };
        (0..rounds).filter(start_profile).count()
    };
    let started = std::thread::scope(|scope| {
        [(); 2].map(|()| scope.spawn(starts)).map(|thread| thread.join().unwrap()).iter().sum::<usize>()
    });
    assert_eq!(started, rounds as usize);
}

#[test]
fn profile_samples_the_object_that_ends_the_sampling_distance() {
    let countdown = SampleCountdown { left: Counter::new(10), random: Counter::new(0) };
    assert_eq!(countdown.spend(9, || None::<()>), None);
    assert_eq!(countdown.spend(9, || Some(7)), Some(7), "an empty sample subtracts nothing");
    assert_eq!((countdown.left.get(), countdown.spend(1, || Some(7))), (1, None));
    countdown.left.set(10);
    assert_eq!((countdown.spend(10, || Some(7)), countdown.left.get()), (None, 10));
}

#[test]
fn samples_in_separate_memory_do_not_overlap() {
    let memory =
        SampleMemory::new(uslab_buddy::region::Backend::Os, &crate::debug::faults::Faults::default());
    assert_eq!(memory.is_some(), SEPARATE_MEMORY);
    let Some(mut memory) = memory else { return };
    let bytes = MAX_SAMPLE_BYTES;
    let all: Vec<_> = (0..4).map(|_| memory.alloc(bytes).unwrap()).collect();
    // SAFETY: each piece has `bytes` bytes, which the test owns.
    all.iter().for_each(|memory| unsafe { memory.write_bytes(1, bytes) });
    memory.free(all[3].addr().get()).unwrap();
    memory.free(all[1].addr().get()).unwrap();
    for memory in [all[0], all[2]] {
        // SAFETY: the piece is still allocated.
        assert!(unsafe { core::slice::from_raw_parts(memory.as_ptr(), bytes) }.iter().all(|byte| *byte == 1));
    }
    // SAFETY: the test owns the new piece.
    let reused = unsafe { core::slice::from_raw_parts(memory.alloc(bytes).unwrap().as_ptr(), bytes) };
    assert!(reused.as_ptr() == all[1].as_ptr() && reused[PAGE_SIZE..].iter().all(|byte| *byte == 0));
}

/// Regression test: each sample was aligned to a page, regardless of the requested alignment. Between two samples, the
/// test maps other memory at the addresses that the system would otherwise return next.
#[test]
fn profile_samples_have_the_alignment_of_the_largest_class() {
    let (os, faults) = (uslab_buddy::Backend::Os, uslab_buddy::Faults::default());
    let point = crate::debug::faults::RESERVE;
    let pages = |n| uslab_buddy::Reserved::readable(n * PAGE_SIZE, PAGE_SIZE, os, &faults, point).unwrap();
    let all = [1, 2, 4].map(|n| (pages(n), SampleMemory::new(os, &faults)));
    for own in all.iter().filter_map(|(_, own)| own.as_ref()) {
        assert!(own.base().is_multiple_of(MAX_SAMPLE_BYTES), "{:#x}", own.base());
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct ExactAmounts {
    bytes: u64,
    allocated: u64,
    live: u64,
}

/// A simulated program whose call sites allocate known sizes at known rates. Each call site is a function, whose name
/// is on the site's call stack.
struct Program<'a> {
    malloc: &'a Malloc,
    held: Vec<NonNull<u8>>,
    truth: BTreeMap<&'static str, ExactAmounts>,
}

macro_rules! sites { ($($site:ident)*) => { $(
    #[inline(never)]
    fn $site(&mut self, bytes: usize) -> NonNull<u8> {
        let memory = self.malloc.alloc(Layout::from_size_align(bytes, 8).unwrap(), Gfp::KERNEL).unwrap();
        let truth = self.truth.entry(stringify!($site)).or_default();
        truth.bytes = bytes as u64;
        truth.allocated += 1;
        black_box(memory)
    }
)* } }

impl Program<'_> {
    sites! { hot_pair fills_the_magazine hits_the_magazine small_and_kept large_and_kept block_of_pages half_freed }

    fn keep(&mut self, site: &'static str, memory: NonNull<u8>) {
        self.truth.get_mut(site).unwrap().live += 1;
        self.held.push(memory);
    }
    fn free(&self, memory: NonNull<u8>) {
        // SAFETY: the memory was allocated here, and is freed once.
        unsafe { self.malloc.free(memory) };
    }
    fn run(&mut self) {
        for round in 0..400 {
            // This CPU's stack always contains an object of this size.
            for _ in 0..200 {
                let memory = self.hot_pair(64);
                self.free(memory);
            }
            // Magazines of this size have 64 objects, so exactly one of 64 allocations misses.
            for i in 0..64 {
                let (site, memory) = match i {
                    0 => ("fills_the_magazine", self.fills_the_magazine(256)),
                    _ => ("hits_the_magazine", self.hits_the_magazine(256)),
                };
                self.keep(site, memory);
            }
            for _ in 0..10 {
                let memory = self.small_and_kept(32);
                self.keep("small_and_kept", memory);
            }
            let memory = self.large_and_kept(6144);
            self.keep("large_and_kept", memory);
            if round % 10 == 0 {
                let memory = self.block_of_pages(65_536);
                self.keep("block_of_pages", memory);
            }
            for i in 0..8 {
                let memory = self.half_freed(1024);
                if i % 2 == 0 { self.keep("half_freed", memory) } else { self.free(memory) }
            }
        }
    }
}

/// Returns the amounts of a site, identified by the first function on its call stack.
fn site_amounts(profile: &Profile, site: &str) -> (Amount, Amount) {
    let is_of_it = |sample: &&Sample| {
        let mut first = None;
        sample.stack.each_function(|function| {
            first.get_or_insert_with(|| function.name.unwrap_or_default().to_owned());
        });
        first.is_some_and(|name| name.contains(site))
    };
    let found: Vec<_> = profile.samples.iter().filter(is_of_it).collect();
    (found.iter().map(|sample| sample.allocated).sum(), found.iter().map(|sample| sample.live).sum())
}

/// Compares the profile's estimates with their distribution. An object is sampled with probability `p` and then counts
/// `1 / p`, so the variance of the estimate for `n` objects is `n (1 - p) / p`. The test runs with the seeds 1 to 20.
/// Each estimate must be within four standard deviations, and nineteen of twenty must be within two. The mean of all
/// estimates must be within four times its standard deviation.
#[cfg(feature = "stacks")]
#[test]
fn profile_estimates_of_call_sites_are_unbiased() {
    const RATE: usize = 8192;
    const SEEDS: u64 = 20;
    let mut errors: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    // Every second run has separate memory for samples, as programs have at larger rates.
    for seed in 1..=SEEDS {
        let subsystem = one_cpu();
        let malloc = Malloc::new(&subsystem).unwrap();
        let mut program = Program { malloc: &malloc, held: vec![], truth: BTreeMap::new() };
        subsystem.core().start_profile_with(RATE, Some(seed), seed % 2 == 0).unwrap();
        assert_eq!(subsystem.core().profiler.profiles_malloc_only(), SEPARATE_MEMORY && seed % 2 == 0);
        program.run();
        let is_in_separate_memory = |memory: &NonNull<u8>| subsystem.core().profiler.holds(*memory);
        assert_eq!(program.held.iter().any(is_in_separate_memory), SEPARATE_MEMORY && seed % 2 == 0);
        let profile = subsystem.profile();
        assert_eq!((profile.rate, profile.lost), (RATE, 0));
        for (site, truth) in &program.truth {
            let (allocated, live) = site_amounts(&profile, site);
            let p = -(-(truth.bytes as f64) / RATE as f64).exp_m1();
            for (what, amount, n) in [("allocated", allocated, truth.allocated), ("live", live, truth.live)] {
                if n == 0 {
                    assert_eq!(amount.objects, 0, "{site}: {what}, seed {seed}");
                    continue;
                }
                let deviation = (n as f64 * (1.0 - p) / p).sqrt();
                let error = (amount.objects as f64 - n as f64) / deviation.max(1.0);
                assert!(
                    error.abs() < 4.0,
                    "{site}: {what} {amount:?} of {n}, seed {seed}: {error:.2} deviations"
                );
                let bytes = amount.bytes as f64 / truth.bytes as f64;
                assert!((bytes - amount.objects as f64).abs() < 1.0 + bytes / 1000.0, "{site}: {amount:?}");
                errors.entry((site, what)).or_default().push(error);
            }
        }
        // After all objects are freed, no sample is live.
        for memory in core::mem::take(&mut program.held) {
            program.free(memory);
        }
        assert_eq!(subsystem.profile().total().live, Amount::default());
    }
    let all: Vec<f64> = errors.values().flatten().copied().collect();
    let fraction = all.iter().filter(|error| error.abs() < 1.96).count() as f64 / all.len() as f64;
    println!("{} estimates, {:.1} % of them within 1.96 standard deviations", all.len(), 100.0 * fraction);
    for ((site, what), errors) in &errors {
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        println!("{site:20} {what:9} mean error {mean:+.3} deviations of {} runs", errors.len());
        assert!(mean.abs() < 4.0 / (SEEDS as f64).sqrt(), "{site}: {what}: {errors:?}");
    }
    assert!((0.92..0.98).contains(&fraction), "{fraction}");
}

/// A rate of one byte excludes chance: an object of 40 bytes is missed in 1 of 10^17 cases. The profile must count each
/// object once, whichever path serves it. At the end, no sample may be live.
#[test]
fn profile_counts_each_object_once_on_every_path() {
    for cpus in
        [Cpus::os(), Cpus::simulated(1, 1).unwrap(), Cpus::simulated(2, 2).unwrap(), Cpus::os().claimed()]
    {
        for (check, own) in [(false, false), (true, false), (false, true), (true, true)] {
            on_cpu(0);
            let pages = PageConfig::default_for(cpus).limit(256 << 20);
            let subsystem = Subsystem::new(Config { check_frees: check, ..Config::new(pages) }).unwrap();
            let malloc = Malloc::new(&subsystem).unwrap();
            let cache = KmemCache::builder("raw", 96).build_in(&subsystem).unwrap();
            let typed = ObjectCache::builder("typed")
                .ctor(|| [0_u64; 8])
                .reset(|n| n[0] = 0)
                .build_in(&subsystem)
                .unwrap();
            // Objects that were allocated before the profile's start belong to no profile, whether they are on stacks
            // or in use.
            let before: Vec<_> = (0..100).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
            subsystem.core().start_profile_with(1, None, own).unwrap();
            let seen = |objects: u64, live: u64| {
                let total = subsystem.profile().total();
                assert_eq!(
                    (total.allocated.objects, total.live.objects),
                    (objects, live),
                    "{cpus:?}, checked: {check}, own memory: {own}"
                );
            };
            drop(before);
            seen(0, 0);
            let layout = |size| Layout::from_size_align(size, 8).unwrap();
            let sizes = [40, 100, 4096, 32 << 10, 100_000, 5 << 20];
            let memory = sizes.map(|size| malloc.alloc(layout(size), Gfp::KERNEL).unwrap());
            seen(6, 6);
            for (memory, size) in memory.into_iter().zip(sizes) {
                // SAFETY: the memory was allocated with this layout, and is freed once.
                unsafe { malloc.free_sized(memory, layout(size)) };
            }
            seen(6, 0);
            let (small, large) = (layout(100), layout(3000));
            // SAFETY: the memory was allocated above and is freed once; the resized memory has its old size.
            unsafe {
                let memory = malloc.alloc(small, Gfp::ZERO).unwrap();
                assert_eq!(malloc.usable_size(memory), 112);
                memory.write(7);
                let moved = malloc.realloc_sized(memory, small, 3000, Gfp::ZERO).unwrap();
                assert_eq!((moved.read(), moved.add(2999).read()), (7, 0));
                seen(8, 1);
                malloc.free_sized(moved, large);
                let zeroed = malloc.alloc(large, Gfp::ZERO).unwrap();
                assert!(core::slice::from_raw_parts(zeroed.as_ptr(), 3000).iter().all(|byte| *byte == 0));
                let resized_memory = malloc.realloc(zeroed, 2900).unwrap();
                malloc.free(malloc.realloc(resized_memory, 10_000).unwrap());
            }
            seen(10, 0);
            let memory = malloc.alloc(layout(5 << 20), Gfp::KERNEL).unwrap();
            // SAFETY: the memory was allocated above, and is freed once.
            unsafe {
                let memory = malloc.realloc(memory, 64 << 20).unwrap();
                assert_eq!(subsystem.profile().total().live.bytes, 64 << 20);
                malloc.free(memory);
            }
            seen(12, 0);
            let objects: Vec<_> = (0..1000).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
            seen(1012, 1000);
            assert_eq!(subsystem.profile().total().live.bytes, 96_000);
            drop(objects);
            let bulk = cache.alloc_blocks(Gfp::KERNEL, 300).unwrap();
            seen(1312, 300);
            drop(bulk);
            let boxes: Vec<_> = (0..10).map(|_| typed.alloc().unwrap()).collect();
            seen(1322, 10);
            drop(boxes);
            seen(1322, 0);
            subsystem.stop_profile();
            subsystem.shrink();
            subsystem.check().unwrap();
        }
    }
}

/// On real CPUs, objects that threads hold must be live, and objects that another thread freed must not be live.
#[test]
fn profile_counts_objects_exchanged_between_threads_once() {
    let subsystem = subsystem(Cpus::os());
    let cache = KmemCache::builder("exchanged", 128).build_in(&subsystem).unwrap();
    subsystem.start_profile(1).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (send, receive) = std::sync::mpsc::sync_channel(64);
            let cache = &cache;
            scope.spawn(move || {
                (0..2000).for_each(|_| send.send(cache.alloc_block(Gfp::KERNEL).unwrap()).unwrap())
            });
            scope.spawn(move || receive.into_iter().for_each(drop));
        }
    });
    let total = subsystem.profile().total();
    assert_eq!((total.allocated.objects, total.live), (8000, Amount::default()));
}

/// A free after the end of a profile changes nothing, and the next profile starts without samples.
#[test]
fn frees_do_not_change_a_stopped_profile() {
    let subsystem = one_cpu();
    let cache = KmemCache::builder("twice", 64).build_in(&subsystem).unwrap();
    assert_eq!((subsystem.profile(), subsystem.stop_profile()), (Profile::default(), false));
    subsystem.start_profile(1).unwrap();
    assert_eq!(subsystem.start_profile(1), Err(NotStarted::Runs));
    let held: Vec<_> = (0..10).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    assert!(subsystem.stop_profile() && !subsystem.stop_profile());
    let (before, more) = (subsystem.profile(), cache.alloc_block(Gfp::KERNEL).unwrap());
    drop((held, more));
    assert_eq!((before.total().live.objects, subsystem.profile()), (10, before.clone()));
    subsystem.start_profile(1).unwrap();
    assert_eq!(subsystem.profile().total(), Total::default());
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    assert_eq!(subsystem.profile().total().allocated.objects, 1);
}

#[test]
fn profile_counts_prefilled_objects_until_they_are_freed() {
    let subsystem = one_cpu();
    let cache = KmemCache::builder("stock", 64).build_in(&subsystem).unwrap();
    subsystem.start_profile(1).unwrap();
    let live = || subsystem.profile().total().live.objects;
    let mut stock = cache.prefill(Gfp::KERNEL, 10).unwrap();
    assert_eq!(live(), 10);
    let object = stock.alloc().unwrap();
    assert_eq!(live(), 10);
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(object) };
    assert_eq!(live(), 9);
    drop(stock);
    assert_eq!((live(), subsystem.profile().total().allocated.objects), (0, 10));
    // The magazines also contain objects that the CPU had before.
    assert!(cache.info().in_magazines >= 4);
    let stock = cache.prefill(Gfp::KERNEL, 4).unwrap();
    assert_eq!(live(), 4);
    drop(stock);
    assert_eq!(live(), 0);
}

#[test]
fn profile_lists_the_cache_with_most_bytes_first() {
    let subsystem = one_cpu();
    let [small, large] =
        [64, 1024].map(|size| KmemCache::builder(format!("of-{size}"), size).build_in(&subsystem).unwrap());
    subsystem.start_profile(1).unwrap();
    let _held = (small.alloc_block(Gfp::KERNEL).unwrap(), large.alloc_block(Gfp::KERNEL).unwrap());
    let names: Vec<_> = subsystem.profile().samples.into_iter().map(|sample| sample.cache).collect();
    assert_eq!(names, ["of-1024", "of-64"]);
    assert!(SampleMemory::new(uslab_buddy::Backend::Heap, &uslab_buddy::Faults::default()).is_none());
}

#[test]
fn failed_bulk_allocation_leaves_no_live_profile_sample() {
    let subsystem = one_cpu();
    let cache = KmemCache::builder("bulk", 64).limit(crate::Limit::Slabs(1)).build_in(&subsystem).unwrap();
    subsystem.start_profile(1).unwrap();
    let held = cache.alloc_block(Gfp::KERNEL).unwrap();
    let mut objects = vec![None; cache.geometry().objects()];
    assert!(cache.alloc_bulk(Gfp::KERNEL, &mut objects).is_err());
    assert_eq!(subsystem.profile().total().live.objects, 1);
    drop(held);
}

#[test]
fn profile_distinguishes_call_sites_with_equal_hashes() {
    let mut records = Records::with_room(1).unwrap();
    let names: Vec<_> = (0..1000).map(|n| format!("cache-{n}")).collect();
    let sites = |records: &mut Records| -> Vec<_> {
        names.iter().map(|name| records.site(name, CallStack::NONE).unwrap()).collect()
    };
    let first = sites(&mut records);
    let used = records.site_lists.iter().filter(|list| **list > 0).count();
    assert!((900..names.len()).contains(&used), "some samples share a list: {used}");
    assert_eq!(first, (0..1000).collect::<Vec<_>>());
    assert_eq!(sites(&mut records), first);
}

#[test]
fn folded_stacks_list_the_outermost_function_first() {
    let subsystem = one_cpu();
    let cache = KmemCache::builder("inode", 600).build_in(&subsystem).unwrap();
    subsystem.start_profile(1).unwrap();
    #[inline(never)]
    fn holder(cache: &KmemCache) -> crate::Block<'_> {
        black_box(cache.alloc_block(Gfp::KERNEL).unwrap())
    }
    let _block = holder(&cache);
    let folded = |bytes: fn(&Sample) -> u64| {
        let mut text = vec![];
        subsystem.profile().folded(bytes, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let text = folded(|sample| sample.live.bytes);
    assert!(text.starts_with("inode;") && text.ends_with(" 600\n"), "{text}");
    #[cfg(all(feature = "stacks", target_os = "linux"))]
    {
        let program = std::env::current_exe().unwrap();
        let place = format!("{}+0x", program.to_string_lossy());
        let frames: Vec<_> = text.trim_end_matches(" 600\n").split(';').skip(1).collect();
        let innermost = frames.last().and_then(|frame| frame.strip_prefix(&place)).unwrap();
        assert!(usize::from_str_radix(innermost, 16).is_ok(), "{text}");
        assert_eq!(frames.len(), subsystem.profile().samples[0].stack.frames().len());
    }
    assert_eq!(folded(|_| 0), "");
}

#[test]
fn samples_of_a_full_profile_are_counted_as_lost() {
    let subsystem = one_cpu();
    let cache =
        KmemCache::builder("a name of more than thirty-nine bytes, in which case".replace(' ', "-"), 64);
    let cache = cache.build_in(&subsystem).unwrap();
    subsystem.start_profile(1).unwrap();
    let held = cache.alloc_blocks(Gfp::KERNEL, MAX_LIVE_SAMPLES + 5).unwrap();
    let profile = subsystem.profile();
    assert_eq!((profile.lost, profile.total().live.samples), (5, MAX_LIVE_SAMPLES as u64));
    assert_eq!(profile.samples[0].cache, "a-name-of-more-than-thirty-nine-bytes,-");
    drop(held);
    assert_eq!(subsystem.profile().total().live, Amount::default());
}

/// A profile passes its records of samples in separate memory to the next profile.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn samples_in_separate_memory_outlive_their_profile() {
    use crate::debug::corruption::CorruptionKind::{DoubleFree, Foreign, Interior};
    let subsystem = one_cpu();
    let (malloc, profiler) = (Malloc::new(&subsystem).unwrap(), &subsystem.core().profiler);
    let alloc = |size| malloc.alloc(Layout::from_size_align(size, 8).unwrap(), Gfp::KERNEL).unwrap();
    // SAFETY: the offset is within the allocation.
    let interior_of = |memory: NonNull<u8>| unsafe { memory.add(8) };
    subsystem.core().start_profile_with(1, None, true).unwrap();
    let held = [40, 100, 32 << 10].map(alloc);
    assert!(held.iter().all(|memory| profiler.holds(*memory)));
    assert_eq!(profiler.size_of(interior_of(held[0])), Err(Interior));
    assert_eq!(profiler.free(interior_of(held[1])), Err(Interior));
    // SAFETY: the address is within the separate memory, but no sample starts there yet.
    assert_eq!(profiler.size_of(unsafe { held[2].add(MAX_SAMPLE_BYTES) }), Err(Foreign));
    subsystem.stop_profile();
    let before = subsystem.profile();
    assert_eq!(before.total().live.objects, 3);
    // SAFETY: the memory was allocated above, and is freed once.
    unsafe { malloc.free(held[0]) };
    assert_eq!((profiler.free(held[0]), subsystem.profile()), (Err(DoubleFree), before));
    assert!(!profiler.holds(alloc(40)));
    subsystem.core().start_profile_with(1, None, false).unwrap();
    // SAFETY: the memory was allocated above, and is freed once.
    unsafe { malloc.free(held[1]) };
    let other = alloc(40);
    assert!(!profiler.holds(other));
    // SAFETY: the memory was allocated above, and is freed once.
    unsafe { malloc.free(other) };
    subsystem.stop_profile();
    subsystem.core().start_profile_with(1, None, true).unwrap();
    // Freed places are reused, in the opposite order of their frees.
    assert_eq!([40, 40].map(alloc), [held[1], held[0]]);
    // SAFETY: the offset is within the object.
    let interior_address = unsafe { held[2].add(20_000) };
    // SAFETY: the address stays mapped, although the memory behind the first page is decommitted.
    unsafe {
        interior_address.write(7);
        [held[2], held[1], held[0]].into_iter().for_each(|memory| malloc.free(memory));
        assert_eq!(interior_address.read(), 0);
    }
    let total = subsystem.profile().total();
    assert_eq!((total.allocated.objects, total.live), (2, Amount::default()));
}

/// On real CPUs, another thread frees samples with and without separate memory.
#[test]
fn profile_counts_cross_thread_frees_by_address_once() {
    let subsystem = subsystem(Cpus::os());
    let malloc = Malloc::new(&subsystem).unwrap();
    subsystem.core().start_profile_with(1000, None, true).unwrap();
    let layout = Layout::from_size_align(128, 8).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (send, receive) = std::sync::mpsc::sync_channel::<usize>(64);
            let malloc = &malloc;
            scope.spawn(move || {
                for _ in 0..20_000 {
                    send.send(malloc.alloc(layout, Gfp::KERNEL).unwrap().expose_provenance().get()).unwrap();
                }
            });
            scope.spawn(move || {
                for (i, address) in receive.into_iter().enumerate() {
                    let memory = NonNull::new(core::ptr::with_exposed_provenance_mut(address)).unwrap();
                    // SAFETY: another thread allocated the memory, which is freed once.
                    unsafe {
                        if i % 2 == 0 { malloc.free(memory) } else { malloc.free_sized(memory, layout) }
                    };
                }
            });
        }
    });
    let total = subsystem.profile().total();
    assert!(total.allocated.samples > 1000, "{total:?}");
    assert_eq!((total.live, subsystem.profile().lost), (Amount::default(), 0));
    subsystem.stop_profile();
    subsystem.shrink();
    subsystem.check().unwrap();
}

#[test]
fn profile_reserves_record_memory_before_locking() {
    let records = Records::with_room(1).unwrap();
    assert!(records.sites.capacity() >= MAX_PROFILE_SITES && records.live.capacity() >= MAX_LIVE_SAMPLES);
    assert_eq!((records.site_lists.len(), records.live_lists.len()), (MAX_PROFILE_SITES, MAX_LIVE_SAMPLES));
}

/// The expected numbers are the first numbers of SplitMix64 with start value 0, from Vigna's `splitmix64.c` (2015).
#[test]
fn sampling_distances_equal_published_splitmix64_numbers() {
    let countdown = SampleCountdown { left: Counter::new(0), random: Counter::new(0) };
    for published in [0xe220_a839_7b1d_cdaf_u64, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f] {
        let unit = ((published >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        // The rate is so large that the last bit matters.
        let rate = 1 << 60;
        assert_eq!(countdown.draw(rate), (-unit.ln() * rate as f64).ceil() as u64);
    }
}

#[test]
fn stopping_a_profile_twice_reopens_the_inlined_paths_only_once() {
    let profiler = Profiler::new(1);
    let mut opened = 0;
    assert!(!profiler.stop(|| opened += 1));
    profiler.start(1, Some(1), None::<fn() -> Option<SampleMemory>>, |_| true).unwrap();
    assert!(profiler.stop(|| opened += 1) && !profiler.stop(|| opened += 1));
    assert_eq!(opened, 1);
}

#[test]
fn freeing_a_sample_unmarks_its_page() {
    // No process can have memory at this address in its lowest pages, whose counters few other
    // pages share.
    let address = 7 * uslab_buddy::PAGE_SIZE;
    let is_one = |other: usize| core::ptr::eq(sample_mark_for(address), sample_mark_for(other));
    assert!(is_one(address + PAGE_SIZE - 1) && !is_one(address + PAGE_SIZE));
    assert!(is_one(address + PAGE_SAMPLE_COUNTS.len() * PAGE_SIZE), "samples 256 MiB apart share a list");
    let before = sample_mark_for(address).load(Relaxed);
    mark(address, true);
    assert!(is_marked(address));
    mark(address, false);
    assert_eq!(sample_mark_for(address).load(Relaxed), before);
    // A saturated counter never decreases.
    let many = address + 2 * uslab_buddy::PAGE_SIZE;
    (0..300).for_each(|_| mark(many, true));
    (0..300).for_each(|_| mark(many, false));
    assert!(is_marked(many));
}

#[test]
fn page_mark_counts_the_live_samples_of_its_page() {
    // No process can have memory at this address in its lowest pages.
    let page = 1019 * PAGE_SIZE;
    let at = |offset: usize| NonNull::<u8>::new(core::ptr::without_provenance_mut(page + offset)).unwrap();
    let before = sample_mark_for(page).load(Relaxed);
    let profiler = Profiler::new(1);
    let start = || profiler.start(1, Some(1), None::<fn() -> Option<SampleMemory>>, |_| true).unwrap();
    let seen = |marks: u8, allocated: u64, live: u64| {
        assert_eq!(sample_mark_for(page).load(Relaxed), before + marks);
        let total = profiler.profile().total();
        assert_eq!((total.allocated.samples, total.live.samples), (allocated, live));
    };
    start();
    // The first object at the third object's address was destroyed with its cache, and never freed.
    for offset in [0, 64, 0] {
        profiler.allocated(|| 0, at(offset), 64, "marked");
    }
    seen(2, 3, 2);
    // The address is not a sample.
    profiler.freed(at(128));
    seen(2, 3, 2);
    profiler.freed(at(64));
    seen(1, 3, 1);
    assert!(profiler.stop(|| ()));
    // The stopped profile must not change.
    profiler.allocated(|| 0, at(192), 64, "late");
    profiler.freed(at(0));
    seen(1, 3, 1);
    start();
    seen(0, 0, 0);
    assert_eq!(is_marked(page), before > 0);
}

#[test]
fn seed_determines_the_first_sampling_distance_of_each_cpu() {
    let (profiler, seed) = (Profiler::new(3), 9);
    profiler.start(1 << 30, Some(seed), None::<fn() -> Option<SampleMemory>>, |_| true).unwrap();
    let distances: Vec<_> = profiler.countdowns.iter().map(|countdown| countdown.left.get()).collect();
    let expected_distance = |cpu: u64| {
        let random = Counter::new(seed + (cpu << 32));
        SampleCountdown { left: Counter::new(0), random }.draw(1 << 30)
    };
    assert_eq!(distances, [0, 1, 2].map(expected_distance));
}

/// The test uses samples that have separate memory.
#[test]
fn malloc_samples_without_a_record_are_counted_as_lost() {
    let subsystem = one_cpu();
    subsystem.core().start_profile_with(1 << 20, Some(7), true).unwrap();
    let profiler = &subsystem.core().profiler;
    let (run, countdown) = (profiler.run.load(Relaxed), profiler.countdown(0));
    let sample = || profiler.sample_in_separate_memory(run, countdown, 64, "one-more");
    let lost = || profiler.noted.lock().lost;
    let names: Vec<_> = (0..MAX_PROFILE_SITES).map(|n| format!("cache-{n}")).collect();
    {
        let mut records = profiler.noted.lock();
        let sites = names.iter().map_while(|name| records.site(name, CallStack::NONE)).count();
        let found = records.site(&names[5], CallStack::NONE);
        assert_eq!(
            (sites, found, records.site("one-more", CallStack::NONE)),
            (MAX_PROFILE_SITES, Some(5), None)
        );
    }
    // The allocation succeeds although the sample is lost.
    let memory = sample();
    assert_eq!((memory.is_some(), lost()), (SEPARATE_MEMORY, 1));
    if let Some(memory) = memory {
        assert_eq!((profiler.size_of(memory), profiler.free(memory)), (Ok(64), Ok(())));
    }
    let separate_memory = profiler.noted.lock().own.take();
    assert_eq!((separate_memory.is_some(), sample(), lost()), (SEPARATE_MEMORY, None, 2));
}

#[test]
fn profile_reuses_the_records_of_freed_samples() {
    let mut records = Records::with_room(1).unwrap();
    let addresses: Vec<_> = (1..=1000).map(|n| 64 * n).collect();
    for _ in 0..3 {
        for address in &addresses {
            records.note(*address, 64, "again", CallStack::NONE).unwrap();
        }
        for address in &addresses {
            assert!(records.forget(*address) && !records.forget(*address), "{address:#x}");
        }
    }
    let site = &records.sites[0];
    assert_eq!((records.live.len(), site.live.samples, site.allocated.samples), (1000, 0, 3000));
    // The addresses are spread over many lists, so that a search takes few steps.
    let lists: std::collections::BTreeSet<_> =
        addresses.iter().map(|at| Records::address_hash_bucket(*at)).collect();
    assert!(lists.len() > 900, "{} lists", lists.len());
}
