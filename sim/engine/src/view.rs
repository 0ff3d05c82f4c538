//! Everything that a picture of one moment needs, as JSON.

use crate::design::{CacheCounts, Design};
use crate::engine::Engine;
pub use crate::levels::CpuLevels;
use crate::model::Holder;
use crate::slabs::{Object, Slabs};
use crate::step::Step;
use serde::Serialize;
use std::collections::BTreeMap;
use uslab::{CacheView, SlabList};
use uslab_buddy::{Kind, Order};
use uslab_magazine::{DepotView, MagazineView};

/// The most slabs of a cache that are shown one by one; the counts say how many there are.
const MOST_SLABS: usize = 8192;

/// One moment.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// Operations that ran.
    pub operation: u64,
    /// Nanoseconds of the trace since its first operation.
    pub time_ns: u64,
    /// What the last operation did.
    pub steps: Vec<Step>,
    /// Allocations that the machine could not serve, so far.
    pub failed: u64,
    /// The caches that are known by now, by number in the stream.
    pub caches: Vec<SeenCache>,
    /// Those that were asked for, slab by slab.
    pub shown: Vec<ShownCache>,
    /// The pages.
    pub pages: Pages,
}

/// A cache of the stream.
#[derive(Clone, Debug, Serialize)]
pub struct SeenCache {
    /// Its name.
    pub name: String,
    /// Allocations and frees that the stream asked for so far.
    pub served: u64,
    /// Its numbers.
    #[serde(flatten)]
    pub counts: CacheCounts,
}

/// What a depot holds of a cache.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DepotLevels {
    /// Full magazines, by their objects.
    pub full: Vec<u32>,
}

/// A cache, slab by slab.
#[derive(Clone, Debug, Serialize)]
pub struct ShownCache {
    /// Its number in the stream.
    pub cache: u32,
    /// By CPU.
    pub cpus: Vec<CpuLevels>,
    /// The depots of all nodes.
    pub depots: Vec<DepotLevels>,
    /// Slabs: empty, full, partial by fullness, each list in its order.
    pub slabs: Vec<ShownSlab>,
}

/// A slab.
#[derive(Clone, Debug, Serialize)]
pub struct ShownSlab {
    /// Its first page.
    pub page: u32,
    /// The list that it is on: `full`, `partial` or `empty` in the shipping allocator.
    pub list: &'static str,
    /// A character an object: `u` in use, `.` free in the slab, `d` in a depot, and `a` to `z` and `A` to `Z` in a magazine of
    /// CPU 0 to 51, `+` of a later one. `a` to `z` leave out `d` and `u`.
    pub objects: String,
}

/// The pages.
#[derive(Clone, Debug, Serialize)]
pub struct Pages {
    /// In all.
    pub managed: u64,
    /// In slabs.
    pub slab: u64,
    /// In large objects of kmalloc.
    pub large: u64,
    /// In blocks that the stream holds.
    pub blocks: u64,
    /// In per-CPU magazines.
    pub per_cpu: u64,
    /// Free and committed.
    pub free: u64,
    /// Free and not committed.
    pub uncommitted: u64,
    /// Free blocks by order, of each migrate type.
    pub orders: Vec<[u32; 3]>,
    /// Blocks in the per-CPU magazines of each CPU, by order.
    pub cpus: Vec<Vec<u32>>,
    /// Blocks in the magazines that all CPUs share, by order.
    pub depot: Vec<u32>,
}

/// What stands for an object in a magazine of `cpu`.
fn letter(cpu: usize) -> u8 {
    const LETTERS: &[u8] = b"abcefghijklmnopqrstvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    LETTERS.get(cpu).copied().unwrap_or(b'+')
}

impl ShownCache {
    /// Of the shipping allocator.
    pub(crate) fn shipping(cache: u32, view: &CacheView) -> Self {
        let mut slabs: Vec<_> = view.slabs.iter().take(MOST_SLABS).collect();
        // Full ones are the most and the least telling: where there are too many, the others go first.
        if view.slabs.len() > MOST_SLABS {
            slabs = view.slabs.iter().filter(|slab| slab.list != SlabList::Full).take(MOST_SLABS).collect();
        }
        let mut bits: Vec<Vec<u8>> = Vec::with_capacity(slabs.len());
        for slab in &slabs {
            let object = |i: usize| if slab.out[i / 64] >> (i % 64) & 1 == 1 { b'u' } else { b'.' };
            bits.push((0..usize::from(slab.objects)).map(object).collect());
        }
        let at: BTreeMap<u32, usize> =
            slabs.iter().enumerate().map(|(i, slab)| (slab.page.get(), i)).collect();
        let mut hold = |magazine: &MagazineView<uslab::ObjectPlace>, letter: u8| {
            for place in &magazine.rounds {
                let slab = at.get(&place.slab.get()).and_then(|i| bits.get_mut(*i));
                if let Some(object) = slab.and_then(|slab| slab.get_mut(usize::from(place.index))) {
                    *object = letter;
                }
            }
        };
        let (mut cpus, mut depots) = (Vec::new(), Vec::new());
        if let Some(layer) = &view.magazines {
            for (number, cpu) in layer.cpus.iter().enumerate() {
                cpu.magazines.iter().for_each(|magazine| hold(magazine, letter(number)));
                cpus.push(CpuLevels::of(cpu));
            }
            for depot in &layer.depots {
                depot.full.iter().for_each(|magazine| hold(magazine, b'd'));
                let levels =
                    |depot: &DepotView<_>| depot.full.iter().map(|m| m.rounds.len() as u32).collect();
                depots.push(DepotLevels { full: levels(depot) });
            }
        }
        let slabs = slabs.into_iter().zip(bits).map(|(slab, bits)| ShownSlab {
            page: slab.page.get(),
            list: match slab.list {
                SlabList::Full => "full",
                SlabList::Partial => "partial",
                SlabList::Empty => "empty",
            },
            objects: bits.into_iter().map(char::from).collect(),
        });
        Self { cache, cpus, depots, slabs: slabs.collect() }
    }
    /// Of a model, with the objects that its layers hold.
    pub(crate) fn model(
        cache: u32,
        own: &Slabs,
        lists: &[&'static str],
        held: &[(Holder, Object)],
        cpus: u32,
        container: u32,
    ) -> Self {
        let (mut slabs, mut at) = (Vec::new(), BTreeMap::new());
        for (list, name) in lists.iter().copied().enumerate() {
            for slab in own.walk(list as u8).take(MOST_SLABS - slabs.len()) {
                at.insert(slab, slabs.len());
                let objects =
                    (0..own.objects()).map(|index| if own.is_out(slab, index) { b'u' } else { b'.' });
                slabs.push((own.page(slab), name, objects.collect::<Vec<u8>>()));
            }
        }
        let (mut of_cpu, mut shared) = (vec![0; cpus as usize], 0);
        for (holder, object) in held {
            let letter = match *holder {
                Holder::Cpu(cpu) => {
                    of_cpu[cpu as usize] += 1;
                    letter(cpu as usize)
                }
                Holder::Shared => {
                    shared += 1;
                    b'd'
                }
            };
            if let Some(slab) = at.get(&object.slab) {
                slabs[*slab].2[usize::from(object.index)] = letter;
            }
        }
        let level = |n| CpuLevels { loaded: (n, container.max(n)), ..CpuLevels::default() };
        let slabs = slabs.into_iter().map(|(page, list, objects)| ShownSlab {
            page,
            list,
            objects: objects.into_iter().map(char::from).collect(),
        });
        Self {
            cache,
            cpus: of_cpu.into_iter().map(level).collect(),
            depots: vec![DepotLevels { full: if shared > 0 { vec![shared] } else { vec![] } }],
            slabs: slabs.collect(),
        }
    }
}

/// What a page of memory is, as a byte of [`Engine::map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageIs {
    /// Not committed, or free.
    Free = 0,
    /// In a magazine of a CPU's pages.
    PerCpu = 1,
    /// In a slab, or in a large object.
    Slab = 2,
    /// In a block that the stream holds.
    Block = 3,
}

impl<D: Design> Engine<'_, D> {
    /// The moment after the last operation, which did `steps`; the caches of `shown` (numbers in the stream) slab by slab.
    pub fn view(&self, steps: Vec<Step>, shown: &[u32]) -> View {
        let seen = |cache: u32| SeenCache {
            name: self.stream.caches[cache as usize].name.clone(),
            served: self.served[cache as usize],
            counts: self.design.counts(cache),
        };
        View {
            operation: self.operations(),
            time_ns: self.time_ns(),
            steps,
            failed: self.failed,
            caches: (0..self.caches() as u32).map(seen).collect(),
            shown: shown.iter().filter_map(|cache| self.design.show(*cache)).collect(),
            pages: self.pages(),
        }
    }

    fn pages(&self) -> Pages {
        let info = self.design.pages().info();
        let large = self.design.large_pages();
        // SAFETY: the engine is the design's only user, and this thread has it.
        let per_cpu = unsafe { self.design.pages().per_cpu_view() };
        let uncommitted = info.zones.iter().map(|zone| u64::from(zone.uncommitted)).sum();
        let orders = (0..=usize::from(Order::MAX.get())).map(|order| {
            let mut sum = [0; 3];
            for zone in &info.zones {
                sum.iter_mut().zip(zone.blocks[order]).for_each(|(sum, blocks)| *sum += blocks);
            }
            sum
        });
        Pages {
            managed: info.managed(),
            slab: info.allocated() - self.pages_held - large,
            large,
            blocks: self.pages_held,
            per_cpu: info.per_cpu(),
            free: info.free() - uncommitted,
            uncommitted,
            orders: orders.collect(),
            cpus: per_cpu.cpus,
            depot: per_cpu.depot,
        }
    }

    /// What each page is, a [`PageIs`] a page, up to the last page that was ever used; written to `to`.
    pub fn map(&self, to: &mut Vec<u8>) {
        let frames = self.design.pages().frames();
        to.clear();
        to.resize(frames.len() as usize, PageIs::Free as u8);
        let (mut page, mut end) = (0, 0);
        while page < frames.len() {
            let frame = frames.frame(uslab_buddy::Pfn::new(page));
            let state = frame.state();
            // A page inside no block lies in memory that was never committed.
            let pages = if state.kind() == Kind::Inside { 1 } else { state.order().pages() };
            let is = match state.kind() {
                Kind::Inside | Kind::Free => PageIs::Free,
                Kind::PerCpu => PageIs::PerCpu,
                Kind::Allocated if self.design.is_slab(page) => PageIs::Slab,
                Kind::Allocated => PageIs::Block,
            };
            if is != PageIs::Free {
                to[page as usize..(page + pages) as usize].fill(is as u8);
                end = page + pages;
            }
            page += pages;
        }
        to.truncate(end.next_multiple_of(1 << uslab_buddy::MAX_ORDER) as usize);
    }

    /// Sums for a time line, in objects: in use, cached (in magazines and depots), free in slabs, and slabs; then the first two
    /// and the allocations and frees of each cache of the stream, known by now or not.
    pub fn sample(&self, to: &mut Vec<f64>) {
        to.clear();
        to.resize(4 + 3 * self.stream.caches.len(), 0.0);
        for at in 0..self.caches() {
            let own = 4 + 3 * at;
            to[own + 2] = self.served[at] as f64;
            let counts = self.design.counts(at as u32);
            let cached = counts.in_magazines + counts.in_depot;
            for (place, n) in [
                (0, counts.used),
                (1, cached),
                (2, counts.free_in_slabs),
                (3, counts.slabs()),
                (own, counts.used),
                (own + 1, cached),
            ] {
                to[place] += n as f64;
            }
        }
    }
}
