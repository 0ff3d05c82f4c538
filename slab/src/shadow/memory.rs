//! Compares kmalloc and malloc with a shadow map of the allocated memory. Memory must be aligned, large enough,
//! disjoint, and zeroed on request. Memory must keep every byte that its owner wrote.

use super::{Refusals, Refuse, SMALL, catch_injected_panic, pages};
use crate::{AllocError, Config, Gfp, Malloc, SlabDebug, Subsystem, ZERO_SIZE};
use arbitrary::{Arbitrary, Result, Unstructured};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use uslab_buddy::{Backend, PageConfig};
use uslab_magazine::on_cpu;

const CPUS: u32 = 2;
/// Number of bytes of memory in a test case: at most four of the largest blocks.
const TEST_MEMORY_BYTES: usize = 16 << 20;
const MAX_KMALLOC: usize = 4 << 20;
/// Number of bytes at each end of an allocation that the test case writes and compares.
const COMPARED_BYTES: usize = 256;

/// Function with which the test case allocates memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Arbitrary)]
pub(crate) enum AllocApi {
    /// Allocates from kmalloc by size, with the alignment of the size class.
    Kmalloc,
    /// Allocates an array of this number of elements from kmalloc.
    Array(u8),
    KmallocLayout,
    Malloc,
}

/// The steps of which a test case consists. A number outside its range is reduced to that range.
#[derive(Clone, Debug, Arbitrary)]
pub(crate) enum Step {
    Alloc {
        cpu: u8,
        api: AllocApi,
        #[arbitrary(with = layout)]
        layout: Layout,
        #[arbitrary(with = gfp)]
        gfp: Gfp,
    },
    Free {
        cpu: u8,
        pick: u16,
        /// True if the free passes the layout, provided that its function supports a layout.
        sized: bool,
    },
    /// Reallocates memory with the function that allocated it, keeping its alignment.
    Resize {
        cpu: u8,
        pick: u16,
        #[arbitrary(with = layout)]
        layout: Layout,
    },
    /// Copies the bytes that fit to newly allocated memory of another layout.
    Move {
        cpu: u8,
        pick: u16,
        api: AllocApi,
        #[arbitrary(with = layout)]
        layout: Layout,
    },
    Shrink,
    Reap,
    /// Ends a reaping interval.
    Interval,
    Drain {
        cpu: u8,
    },
    Refuse(Refuse),
    Grant,
}

/// Draws a random size and alignment. Most sizes are small, and some exceed the largest block.
fn layout(u: &mut Unstructured<'_>) -> Result<Layout> {
    let max_size = [64, 1 << 10, 10 << 10, 100 << 10, 5 << 20, 16 << 20][u.choose_index(6)?];
    let align = 1 << [0, 3, 4, 6, 12, 16, 22, 23][u.choose_index(8)?];
    Ok(Layout::from_size_align(u.int_in_range(0..=max_size)?, align).unwrap_or(Layout::new::<()>()))
}
fn gfp(u: &mut Unstructured<'_>) -> Result<Gfp> {
    let flags = Gfp::ZERO | Gfp::RECLAIMABLE | Gfp::NOWAIT | Gfp::NORETRY | Gfp::HIGH | Gfp::MEMALLOC;
    Ok(Gfp::from_bits_truncate(u16::arbitrary(u)?.into()) & flags)
}

/// Allocated memory with its expected contents, as the shadow model records it.
#[derive(Clone, Copy, Debug)]
struct HeldMemory {
    api: AllocApi,
    layout: Layout,
    /// Size in bytes that the allocation guarantees.
    size: usize,
    align: usize,
    /// Byte that the owner wrote to the memory.
    written: u8,
}

impl HeldMemory {
    fn new(api: AllocApi, layout: Layout, written: u8) -> Self {
        let size = match api {
            AllocApi::Array(n) => layout.size().saturating_mul(n.into()),
            _ => layout.size(),
        };
        let align = match api {
            AllocApi::Kmalloc | AllocApi::Array(_) if size.is_power_of_two() => size.clamp(8, MAX_KMALLOC),
            AllocApi::Kmalloc | AllocApi::Array(_) => 8,
            AllocApi::KmallocLayout | AllocApi::Malloc => layout.align(),
        };
        Self { api, layout, size, align, written }
    }
    fn is_allowed(&self) -> bool {
        self.api == AllocApi::Malloc || self.size <= MAX_KMALLOC && self.align <= MAX_KMALLOC
    }
}

struct World {
    subsystem: Subsystem,
    malloc: Malloc,
    live: BTreeMap<NonNull<u8>, HeldMemory>,
    /// Allocations of no bytes, which all have the same address.
    empty: Vec<HeldMemory>,
    refusals: Refusals,
    serial: u8,
}

impl World {
    /// Checks the subsystem, and checks that the charge contains only mappings.
    fn census(&self) -> crate::Census {
        let census = self.subsystem.check().unwrap();
        let (pages, huge) = (self.subsystem.pages().info(), self.subsystem.info().huge);
        let charged: u64 = pages.zones.iter().map(|zone| u64::from(zone.charged)).sum();
        assert_eq!(
            charged,
            huge.pages + huge.cached_pages,
            "the charge equals the pages in use and in mappings"
        );
        census
    }

    fn new(backend: Backend, debug: SlabDebug) -> Self {
        let mut pages = PageConfig { backend, ..pages(CPUS, 1, TEST_MEMORY_BYTES) };
        let refusals = Refusals::new(&mut pages);
        // This limit allows three or four of the allocations that exceed a block.
        let huge_cache = 40 << 20;
        let slab_debug = debug.into();
        let config =
            Config { check_frees: true, slab_debug, magazines: SMALL, huge_cache, ..Config::new(pages) };
        let subsystem = Subsystem::new(config).unwrap();
        let malloc = Malloc::new(&subsystem).unwrap();
        Self { subsystem, malloc, live: BTreeMap::new(), empty: vec![], refusals, serial: 0 }
    }

    /// Returns the first and the last bytes of memory that the test case has allocated.
    fn ends(at: NonNull<u8>, bytes: usize) -> [&'static mut [u8]; 2] {
        let first = bytes.min(COMPARED_BYTES);
        let last = (bytes - first).min(COMPARED_BYTES);
        // SAFETY: the caller has this memory, the two ends do not overlap, and the slices are not
        // kept.
        unsafe {
            [
                core::slice::from_raw_parts_mut(at.as_ptr(), first),
                core::slice::from_raw_parts_mut(at.as_ptr().add(bytes - last), last),
            ]
        }
    }

    fn try_alloc(
        &self,
        api: AllocApi,
        layout: Layout,
        gfp: Gfp,
    ) -> Option<core::result::Result<NonNull<u8>, AllocError>> {
        let kmalloc = self.subsystem.kmalloc();
        catch_injected_panic(|| match api {
            AllocApi::Kmalloc => kmalloc.alloc(layout.size(), gfp),
            AllocApi::Array(n) => kmalloc.alloc_array(n.into(), layout.size(), gfp),
            AllocApi::KmallocLayout => kmalloc.alloc_layout(layout, gfp),
            AllocApi::Malloc => self.malloc.alloc(layout, gfp),
        })
    }

    fn alloc(&mut self, api: AllocApi, layout: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        self.serial = self.serial.wrapping_add(1);
        let held = HeldMemory::new(api, layout, self.serial);
        let at = match self.try_alloc(api, layout, gfp)? {
            Ok(at) => at,
            Err(error) => {
                match error {
                    AllocError::TooLarge => assert!(!held.is_allowed(), "{held:?}"),
                    AllocError::Memory(_) | AllocError::Refused { .. } => {}
                    error => assert!(self.refusals.any, "{error}"),
                }
                return None;
            }
        };
        assert!(held.is_allowed(), "{held:?}");
        if at == ZERO_SIZE {
            assert_eq!(held.size, 0);
            self.empty.push(held);
            return Some(at);
        }
        let start = at.addr().get();
        assert!(start.is_multiple_of(held.align), "{held:?} at {at:?}");
        // SAFETY: the memory was just allocated.
        let usable = unsafe { self.malloc.usable_size(at) };
        assert!(usable >= held.size.max(1), "{usable} bytes for {held:?}");
        if let Some((below, other)) = self.live.range(..=at).next_back() {
            assert!(below.addr().get() + other.size.max(1) <= start, "{at:?} overlaps other memory");
        }
        if let Some((above, _)) = self.live.range(at..).next() {
            assert!(start + usable <= above.addr().get(), "{at:?} overlaps other memory");
        }
        for end in Self::ends(at, held.size) {
            assert!(!gfp.contains(Gfp::ZERO) || end.iter().all(|byte| *byte == 0), "{at:?} is not zeroed");
            end.fill(held.written);
        }
        self.live.insert(at, held);
        Some(at)
    }

    /// Takes memory away from its owner.
    fn pick(&mut self, pick: u16) -> Option<(NonNull<u8>, HeldMemory)> {
        let n = self.live.len() + self.empty.len();
        let pick = usize::from(pick) % n.max(1);
        let Some((&at, &held)) = self.live.iter().nth(pick) else {
            return self.empty.pop().map(|held| (ZERO_SIZE, held));
        };
        for end in Self::ends(at, held.size) {
            assert!(end.iter().all(|byte| *byte == held.written), "{at:?} was overwritten");
        }
        self.live.remove(&at);
        Some((at, held))
    }

    fn free(&self, at: NonNull<u8>, held: HeldMemory, sized: bool) {
        // SAFETY: the memory was allocated with this layout and picked, so it no longer has a user.
        unsafe {
            match held.api {
                AllocApi::Malloc if sized => self.malloc.free_sized(at, held.layout),
                AllocApi::Malloc => self.malloc.free(at),
                _ => self.subsystem.kmalloc().free(at),
            }
        }
    }

    fn relocate(&mut self, from: NonNull<u8>, held: HeldMemory, api: AllocApi, layout: Layout) {
        if from == ZERO_SIZE {
            return self.free(from, held, true);
        }
        // The memory stays allocated until its bytes are copied.
        self.live.insert(from, held);
        let Some(to) = self.alloc(api, layout, Gfp::KERNEL) else { return };
        let new = HeldMemory::new(api, layout, self.serial);
        // SAFETY: `from` and `to` are both allocated, so they do not overlap, and have at least that many bytes.
        unsafe { to.copy_from_nonoverlapping(from, held.size.min(new.size)) };
        let [first, _] = Self::ends(to, held.size.min(new.size));
        assert!(first.iter().all(|byte| *byte == held.written), "{to:?} is not a copy of {from:?}");
        Self::ends(to, new.size).into_iter().for_each(|end| end.fill(new.written));
        self.live.remove(&from);
        self.free(from, held, true);
    }

    fn resize(&mut self, from: NonNull<u8>, held: HeldMemory, size: usize) {
        let Ok(layout) = Layout::from_size_align(size, held.layout.align()) else {
            return self.relocate(from, held, held.api, held.layout);
        };
        let api = if held.api == AllocApi::Malloc { AllocApi::Malloc } else { AllocApi::Kmalloc };
        // SAFETY: the memory was allocated with this layout and picked, so after a success it no longer has a user.
        let copy = catch_injected_panic(|| unsafe {
            match api {
                AllocApi::Malloc => self.malloc.realloc_sized(from, held.layout, size, Gfp::ZERO),
                _ => self.subsystem.kmalloc().realloc(from, size, Gfp::KERNEL),
            }
        });
        let Some(Ok(copy)) = copy else {
            // The memory is unchanged, which the next step that picks it checks.
            if from == ZERO_SIZE {
                self.empty.push(held)
            } else {
                _ = self.live.insert(from, held)
            }
            return;
        };
        self.serial = self.serial.wrapping_add(1);
        let new = HeldMemory::new(api, layout, self.serial);
        if copy == ZERO_SIZE {
            assert_eq!(size, 0);
            return self.empty.push(new);
        }
        let kept_bytes = held.size.min(new.size);
        let [first, last] = Self::ends(copy, kept_bytes);
        // If all of the old memory was copied, its last byte must also be unchanged.
        let written = first.iter().chain(last.iter().filter(|_| kept_bytes == held.size));
        assert!(written.into_iter().all(|byte| *byte == held.written), "{copy:?} is not a copy of {from:?}");
        // SAFETY: the test case owns `new.size` bytes at `copy`.
        let [first, last] = Self::ends(unsafe { copy.add(kept_bytes) }, new.size - kept_bytes);
        let zero = first.iter().chain(&*last).all(|byte| *byte == 0);
        assert!(zero || api != AllocApi::Malloc, "{copy:?} is not zero after byte {kept_bytes}");
        Self::ends(copy, new.size).into_iter().for_each(|end| end.fill(new.written));
        self.live.insert(copy, new);
    }

    fn step(&mut self, step: &Step) {
        let set_cpu = |cpu: u8| on_cpu(u32::from(cpu) % CPUS);
        match *step {
            Step::Alloc { cpu, api, layout, gfp } => {
                set_cpu(cpu);
                self.alloc(api, layout, gfp);
            }
            Step::Free { cpu, pick, sized } => {
                set_cpu(cpu);
                if let Some((at, held)) = self.pick(pick) {
                    self.free(at, held, sized);
                }
            }
            Step::Move { cpu, pick, api, layout } => {
                set_cpu(cpu);
                if let Some((from, held)) = self.pick(pick) {
                    self.relocate(from, held, api, layout);
                }
            }
            Step::Resize { cpu, pick, layout } => {
                set_cpu(cpu);
                if let Some((at, held)) = self.pick(pick) {
                    self.resize(at, held, layout.size());
                }
            }
            Step::Shrink => {
                let slabs = |world: &Self| world.census().slabs;
                let (before, gone) = (slabs(self), self.subsystem.shrink());
                assert_eq!(before - slabs(self), gone as u64, "all freed slabs are reported");
            }
            Step::Reap => _ = self.subsystem.reap(),
            Step::Interval => {
                self.subsystem.end_interval();
                self.census();
            }
            Step::Drain { cpu } => {
                let cpu = u32::from(cpu) % CPUS;
                self.subsystem.drain_cpus(cpu..cpu + 1);
            }
            Step::Refuse(ref refuse) => self.refusals.begin(refuse),
            Step::Grant => self.refusals.end(),
        }
    }
}

/// Runs all steps on memory from `backend`, frees all memory, and checks the subsystem.
///
/// # Panics
/// Panics if the memory and its shadow model disagree.
pub(crate) fn run(backend: Backend, debug: SlabDebug, steps: &[Step]) {
    let mut world = World::new(backend, debug);
    for step in steps {
        world.step(step);
    }
    for cache in world.malloc.caches() {
        assert_eq!(cache.validate().errors(), 0, "{}", cache.name());
    }
    world.census();
    world.refusals.end();
    while let Some((at, held)) = world.pick(0) {
        world.free(at, held, false);
    }
    world.subsystem.shrink();
    assert_eq!(world.subsystem.info().huge.cached_pages, 0);
    world.subsystem.pages().decommit();
    let census = world.census();
    assert_eq!((census.objects, census.slabs, census.large_pages, census.huge_pages), (0, 0, 0, 0));
    assert_eq!(world.subsystem.pages().info().pages_not_in_maximal_blocks(), 0);
}

/// Runs the allocations and frees of memory that `data` encodes.
///
/// # Panics
/// Panics if the memory and its shadow model disagree.
pub fn fuzz(data: &[u8]) {
    if let Ok(steps) = Vec::arbitrary_take_rest(Unstructured::new(data)) {
        run(Backend::Heap, SlabDebug::empty(), &steps);
    }
}
