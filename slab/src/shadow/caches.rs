//! Compares caches with a shadow map of their objects in use. No object may be allocated twice, overlap another object,
//! or be lost. The bytes that an owner wrote must be unchanged when the object is freed.

use super::{Refusals, Refuse, catch_injected_panic, pages};
use crate::Config;
use crate::cache::core::Core;
use crate::{AllocError, Gfp, KmemCache, Limit, Magazines, SlabDebug};
use arbitrary::{Arbitrary, Result, Unstructured};
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::Arc;
use uslab_magazine::{Path, on_cpu};

pub(crate) const CPUS: u32 = 4;
pub(crate) const CACHES: usize = 3;
/// Value of every byte of a constructed object, which users do not change.
const CONSTRUCTED_BYTE: u8 = 0xc5;

#[derive(Clone, Debug, Arbitrary)]
pub(crate) struct Setup {
    #[arbitrary(with = |u: &mut Unstructured<'_>| u.int_in_range(1..=2))]
    pub(crate) nodes: u32,
    /// Size in bytes of the objects of the first cache. Two further caches have objects of 1000 bytes; one of them has
    /// a constructor.
    #[arbitrary(with = |u: &mut Unstructured<'_>| u.int_in_range(1..=5000))]
    pub(crate) size: usize,
    #[arbitrary(with = magazines)]
    pub(crate) magazines: Magazines,
    #[arbitrary(with = |u: &mut Unstructured<'_>| u.int_in_range(1..=6))]
    pub(crate) limit: u32,
    /// Debug flags of all caches; the fuzzer sets no flags.
    #[arbitrary(default)]
    pub(crate) debug: SlabDebug,
}

fn magazines(u: &mut Unstructured<'_>) -> Result<Magazines> {
    Ok(match u.int_in_range(0..=3)? {
        0 => Magazines::BySize,
        1 => Magazines::Off,
        _ => Magazines::Sized {
            capacity: u.int_in_range(1..=6)?,
            stock: u.int_in_range(0..=2)?,
            depot_limit: u.int_in_range(0..=2)?,
        },
    })
}

/// The steps of which a test case consists. A number outside its range is reduced to that range.
#[derive(Clone, Debug, Arbitrary)]
pub(crate) enum Step {
    Alloc {
        cpu: u8,
        cache: u8,
        zeroed: bool,
    },
    Free {
        cpu: u8,
        pick: u16,
    },
    Bulk {
        cpu: u8,
        cache: u8,
        n: u8,
    },
    FreeMany {
        cpu: u8,
        n: u8,
    },
    Node {
        cpu: u8,
        cache: u8,
        node: u8,
        strict: bool,
    },
    /// Prefills a stock of `n` objects, takes some objects out of the stock, and returns other objects to it.
    Prefill {
        cpu: u8,
        cache: u8,
        n: u8,
        takes: u8,
        gives: u8,
    },
    Shrink {
        cache: u8,
    },
    /// Destroys a cache. If the destruction succeeds, makes the cache again.
    Destroy {
        cache: u8,
    },
    Reap,
    Drain {
        cpu: u8,
    },
    Refuse(Refuse),
    Grant,
}

struct World {
    setup: Setup,
    caches: [KmemCache; CACHES],
    /// Objects in use, each with its cache and the byte that its owner wrote.
    live: BTreeMap<NonNull<u8>, (usize, u8)>,
    refusals: Refusals,
    serial: u8,
    core: Arc<Core>,
}

fn build(core: &Arc<Core>, setup: &Setup, cache: usize) -> KmemCache {
    let builder = match cache {
        0 => KmemCache::builder("a", setup.size),
        1 => KmemCache::builder("b", 1000),
        _ => KmemCache::builder("c", 1000).ctor(|bytes| bytes.fill(CONSTRUCTED_BYTE)),
    };
    builder.limit(Limit::Slabs(setup.limit)).build_on(core).unwrap()
}

impl World {
    fn new(setup: Setup) -> Self {
        let mut pages = pages(CPUS, setup.nodes, 1 << 20);
        let refusals = Refusals::new(&mut pages);
        let slab_debug = setup.debug.into();
        let config =
            Config { check_frees: true, slab_debug, magazines: setup.magazines, ..Config::new(pages) };
        let core = Core::new(config).unwrap();
        let caches = core::array::from_fn(|cache| build(&core, &setup, cache));
        Self { setup, caches, live: BTreeMap::new(), refusals, serial: 0, core }
    }

    /// Returns the bytes of an object that the test case has in use.
    fn bytes(&self, cache: usize, object: NonNull<u8>) -> &'static mut [u8] {
        let size = self.caches[cache].geometry().object_size();
        // SAFETY: the caller has the object, and does not keep the slice.
        unsafe { core::slice::from_raw_parts_mut(object.as_ptr(), size) }
    }
    fn check_new_object(&mut self, cache: usize, object: NonNull<u8>, zeroed: bool) {
        let size = self.caches[cache].geometry().stride();
        let start = object.addr().get();
        assert!(start.is_multiple_of(8));
        if let Some((below, (other, _))) = self.live.range(..=object).next_back() {
            let end = below.addr().get() + self.caches[*other].geometry().stride();
            assert!(end <= start, "{object:?} overlaps another object");
        }
        if let Some((above, _)) = self.live.range(object..).next() {
            assert!(start + size <= above.addr().get(), "{object:?} overlaps another object");
        }
        self.serial = self.serial.wrapping_add(1);
        let bytes = self.bytes(cache, object);
        let written = if cache == CACHES - 1 {
            assert!(
                bytes.iter().all(|byte| *byte == CONSTRUCTED_BYTE),
                "{object:?} is not in its constructed state"
            );
            CONSTRUCTED_BYTE
        } else {
            assert!(!zeroed || bytes.iter().all(|byte| *byte == 0), "{object:?} is not zeroed");
            bytes.fill(self.serial);
            self.serial
        };
        assert!(self.live.insert(object, (cache, written)).is_none(), "{object:?} was allocated twice");
    }
    fn check_failure(&self, cache: usize, error: AllocError, wanted: usize) {
        match error {
            _ if self.refusals.any => {}
            // On one node, the limit may be reached only if no object is free, because the allocation flushes other
            // CPUs' objects. On two nodes, bulk requests and requests for one node may leave free objects on the other
            // node.
            AllocError::CacheLimit { slabs } => {
                let info = self.caches[cache].info();
                // A failed bulk request may have freed whole slabs.
                assert!(info.slabs <= u64::from(slabs), "the cache exceeds its limit");
                assert!(wanted > 1 || info.slabs == u64::from(slabs), "the cache is at its limit");
                if wanted == 1 && self.core.cpus.nodes() == 1 {
                    assert_eq!(info.used, info.objects, "no free object was available");
                }
            }
            AllocError::Memory(_) => {}
            error => panic!("{error}"),
        }
    }
    /// Takes an object away from its owner. With `of`, takes an object of that cache.
    fn pick(&mut self, pick: usize, of: Option<usize>) -> Option<(NonNull<u8>, usize)> {
        let matching = |(_, (cache, _)): &(&NonNull<u8>, &(usize, u8))| of.is_none_or(|of| of == *cache);
        let n = self.live.iter().filter(matching).count();
        let (&object, &(cache, written)) = self.live.iter().filter(matching).nth(pick % n.max(1))?;
        let bytes = self.bytes(cache, object);
        assert!(bytes.iter().all(|byte| *byte == written), "{object:?} was overwritten");
        self.live.remove(&object);
        Some((object, cache))
    }
    fn free(&mut self, pick: usize) {
        if let Some((object, cache)) = self.pick(pick, None) {
            // SAFETY: the object is in use, belongs to this cache, and was removed from `live`.
            self.run_and_check_counts(cache, || unsafe { self.caches[cache].free(object) });
        }
    }

    /// Runs at most one operation, and checks that it was counted at a level that explains all changes of the counters.
    /// The shadow model of the layer checks a cache's magazines alone, and requires equal numbers.
    fn run_and_check_counts<T>(&self, cache: usize, operation: impl FnOnce() -> T) -> T {
        let look = || {
            let (info, pages) = (self.caches[cache].info(), self.core.memory.pages.info());
            let system = pages.zones.iter().map(|zone| {
                let events = &zone.events;
                events.commits + events.commits_refused + events.decommits
            });
            let requested = pages.zones.iter().map(|zone| {
                let (blocks, events) = (&zone.per_cpu_events, &zone.events);
                blocks.allocs + blocks.frees + events.pages_taken + events.pages_freed
            });
            let requested = requested.sum::<u64>() + pages.failures + pages.below_low;
            (info, requested, system.sum::<u64>())
        };
        let (before, asked_before, system_before) = look();
        let done = operation();
        let (after, requested, system) = look();
        let operations_on = |path: &Path| after.paths.of(*path) - before.paths.of(*path);
        let path = Path::ALL.into_iter().find(|path| operations_on(path) > 0);
        assert_eq!(
            Path::ALL.iter().map(operations_on).sum::<u64>(),
            u64::from(path.is_some()),
            "the operation is counted at one level"
        );
        let Some(path) = path else { return done };
        let slowest = if system != system_before {
            Path::Commit
        } else if requested != asked_before {
            Path::Pages
        } else if after.free_in_slabs != before.free_in_slabs || after.objects != before.objects {
            Path::Slab
        } else if after.depot_exchanges != before.depot_exchanges {
            Path::Depot
        } else {
            Path::Cpu
        };
        assert!(path >= slowest, "counted as {path:?}, but served by {slowest:?}: {before:?} {after:?}");
        assert!(path != Path::Pages || slowest == path, "no page was requested: {before:?} {after:?}");
        done
    }

    fn step(&mut self, step: &Step) {
        let set_cpu = |cpu: u8| on_cpu(u32::from(cpu) % CPUS);
        let cache_index = |cache: u8| usize::from(cache) % CACHES;
        match *step {
            Step::Alloc { cpu, cache, zeroed } => {
                set_cpu(cpu);
                let (cache, gfp) = (cache_index(cache), if zeroed { Gfp::ZERO } else { Gfp::KERNEL });
                match self
                    .run_and_check_counts(cache, || catch_injected_panic(|| self.caches[cache].alloc(gfp)))
                {
                    Some(Ok(object)) => self.check_new_object(cache, object, zeroed),
                    Some(Err(error)) => self.check_failure(cache, error, 1),
                    None => {}
                }
            }
            Step::Free { cpu, pick } => {
                set_cpu(cpu);
                self.free(pick.into());
            }
            Step::Bulk { cpu, cache, n } => {
                set_cpu(cpu);
                let (cache, n) = (cache_index(cache), usize::from(n % 32));
                let mut bulk = vec![None; n];
                match catch_injected_panic(|| self.caches[cache].alloc_bulk(Gfp::KERNEL, &mut bulk)) {
                    Some(Ok(())) => bulk.into_iter().for_each(|object| {
                        self.check_new_object(
                            cache,
                            object.expect("a bulk allocation must fill every slot"),
                            false,
                        )
                    }),
                    refused => {
                        assert!(bulk.iter().all(Option::is_none), "a failed bulk allocation keeps nothing");
                        if let Some(Err(error)) = refused {
                            self.check_failure(cache, error, n);
                        }
                    }
                }
            }
            Step::FreeMany { cpu, n } => {
                set_cpu(cpu);
                (0..usize::from(n % 32)).for_each(|i| self.free(i * 7));
            }
            Step::Node { cpu, cache, node, strict } => {
                set_cpu(cpu);
                let (cache, node) = (cache_index(cache), u32::from(node) % self.setup.nodes);
                let gfp = if strict { Gfp::THIS_NODE } else { Gfp::KERNEL };
                match catch_injected_panic(|| self.caches[cache].alloc_node(gfp, node)) {
                    Some(Ok(object)) => {
                        let pages = &self.core.memory.pages;
                        let set_cpu = pages.node_of(pages.pfn_of(object.as_ptr()).unwrap());
                        assert!(!strict || set_cpu == node);
                        self.check_new_object(cache, object, false);
                    }
                    Some(Err(error)) => self.check_failure(cache, error, 2),
                    None => {}
                }
            }
            Step::Prefill { cpu, cache, n, takes, gives } => {
                set_cpu(cpu);
                self.prefill(cache_index(cache), (n % 32).into(), (takes % 32).into(), (gives % 32).into());
            }
            Step::Shrink { cache } => {
                let cache = &self.caches[cache_index(cache)];
                let (before, gone) = (cache.info().slabs, cache.shrink());
                let info = cache.info();
                assert_eq!(before - info.slabs, gone as u64, "all freed slabs are reported");
                assert_eq!((info.empty, info.in_magazines, info.in_depot), (0, 0, 0));
            }
            Step::Destroy { cache } => self.destroy(cache_index(cache)),
            Step::Reap => _ = self.caches.each_ref().map(KmemCache::reap),
            Step::Drain { cpu } => {
                let cpu = u32::from(cpu) % CPUS;
                self.caches.iter().for_each(|cache| cache.drain(cpu..cpu + 1));
            }
            Step::Refuse(ref refuse) => self.refusals.begin(refuse),
            Step::Grant => self.refusals.end(),
        }
    }

    /// Checks that the promised objects are available, even if other requests are refused in the meantime.
    fn prefill(&mut self, cache: usize, n: usize, takes: usize, gives: usize) {
        let foreign_objects: Vec<_> = (0..gives).map_while(|pick| self.pick(pick, Some(cache))).collect();
        let mut foreign_objects = foreign_objects.into_iter().map(|(object, _)| object);
        let objects = catch_injected_panic(|| {
            let mut stock = self.caches[cache].prefill(Gfp::KERNEL, n)?;
            assert!(stock.len() >= n);
            let objects: Vec<_> = (0..takes).map_while(|_| stock.alloc()).collect();
            assert!(objects.len() >= n.min(takes), "{} of {n}", objects.len());
            // SAFETY: the object was in use, belongs to this cache, and was picked, so it no longer has a user.
            foreign_objects.by_ref().for_each(|object| unsafe { stock.free(object) });
            Ok(objects)
        });
        match objects {
            Some(Ok(objects)) => {
                objects.into_iter().for_each(|object| self.check_new_object(cache, object, false))
            }
            // The limit may be reached, because the objects to be freed are still in use.
            Some(Err(AllocError::CacheLimit { .. })) | None => {}
            Some(Err(error)) => self.check_failure(cache, error, n),
        }
        // SAFETY: the object was in use, belongs to this cache, and was picked, so it no longer has a user.
        foreign_objects.for_each(|object| unsafe { self.caches[cache].free(object) });
    }

    fn destroy(&mut self, cache: usize) {
        let live = self.live.values().filter(|(of, _)| *of == cache).count() as u64;
        let destroyed = self.caches[cache].destroy();
        assert_eq!(destroyed.map_err(|busy| busy.live), if live == 0 { Ok(()) } else { Err(live) });
        if live == 0 {
            self.refusals.end();
            assert_eq!(self.caches[cache].alloc(Gfp::KERNEL), Err(AllocError::Destroyed));
            assert_eq!(self.caches[cache].info().slabs, 0);
            self.caches[cache] = build(&self.core, &self.setup, cache);
        }
    }

    fn check(&self) {
        for cache in &self.caches {
            let (found, info) = (cache.validate(), cache.info());
            assert_eq!((found.errors(), info.corruptions), (0, 0), "{info:?}");
        }
        let census = self.core.check().unwrap();
        assert_eq!(census.used, self.live.len() as u64);
        for info in self.caches.iter().map(KmemCache::info) {
            assert_eq!(
                info.paths.operations(),
                info.allocs + info.frees,
                "each operation is counted at one level: {info:?}"
            );
        }
        let held = census.used + census.in_magazines + census.in_depot + census.free_in_slabs;
        assert_eq!(census.objects, held);
    }
}

/// Runs all steps, checks the caches after each step, and frees all objects at the end.
///
/// # Panics
/// Panics if the caches and their shadow model disagree.
pub(crate) fn run(setup: Setup, steps: &[Step]) {
    let mut world = World::new(setup);
    for step in steps {
        world.step(step);
        world.check();
    }
    world.refusals.end();
    (0..world.live.len()).for_each(|_| world.free(0));
    world.caches.iter().for_each(|cache| _ = cache.shrink());
    world.core.memory.pages.decommit();
    world.check();
    let pages = world.core.memory.pages.info();
    assert_eq!(pages.pages_not_in_maximal_blocks(), 0);
    assert_eq!(world.core.check().unwrap().slabs, 0);
}

#[derive(Debug, Arbitrary)]
struct Case {
    setup: Setup,
    steps: Vec<Step>,
}

/// Runs the steps that `data` encodes, on the caches that it encodes.
///
/// # Panics
/// Panics if the caches and their shadow model disagree.
pub fn fuzz(data: &[u8]) {
    if let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(data)) {
        run(case.setup, &case.steps);
    }
}
