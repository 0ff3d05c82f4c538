//! What an operation did, found by looking at the allocator before and after it.

use crate::design::Design;
use crate::engine::{Engine, EngineError};
use crate::levels::CpuLevels;
use crate::shipping::Shipping;
use crate::step::{Step, What};
use uslab::{CacheInfo, ObjectPlace};
use uslab_buddy::BuddyInfo;
use uslab_magazine::{LayerView, Path};

impl<D: Design> Engine<'_, D> {
    /// Runs until `until` operations have run, or all, and says what the last one did, if it was one of this call.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn run_and_tell(&mut self, until: u64) -> Result<Vec<Step>, EngineError> {
        let until = until.min(self.stream.operations);
        self.run(until.saturating_sub(1))?;
        let mut steps = Vec::new();
        if self.operations < until {
            self.operation(|engine, action| {
                let (cache, freed) = engine.subject(action).unzip();
                let observer = Observer::new(engine, engine.cpu(), cache);
                let what = engine.act(action)?;
                let object = if what == What::Alloc { engine.youngest() } else { freed.flatten() };
                steps.push(observer.told(engine, what, object));
                Some(())
            })?;
        }
        Ok(steps)
    }
}

/// The design as an operation found it.
struct Observer<D: Design> {
    cpu: u32,
    cache: Option<u32>,
    own: Option<D::Seen>,
    before: BuddyInfo,
}

impl<D: Design> Observer<D> {
    fn new(engine: &Engine<'_, D>, cpu: u32, cache: Option<u32>) -> Self {
        let own = cache.map(|cache| engine.design.see(cpu, cache));
        Self { cpu, cache, own, before: engine.design.pages().info() }
    }

    /// What happened since.
    fn told(mut self, engine: &Engine<'_, D>, what: What, object: Option<(u32, u16)>) -> Step {
        let (cpu, cache) = (self.cpu, self.cache);
        let after = engine.design.pages().info();
        let committed = uncommitted(&self.before).abs_diff(uncommitted(&after));
        let freeing = matches!(what, What::Free { .. });
        let of_slabs = self
            .own
            .take()
            .zip(cache)
            .and_then(|(seen, cache)| engine.design.how(seen, cpu, cache, freeing, committed));
        let (path, how) = match of_slabs {
            _ if what == What::Nothing => (None, String::new()),
            Some((path, how)) => (Some(if committed > 0 { Path::Commit } else { path }), how),
            // Pages, or large objects, which are pages.
            None => {
                let moved =
                    zone_visits(&self.before) != zone_visits(&after) || self.before.free() != after.free();
                let path = match (committed > 0, moved) {
                    (true, _) => Path::Commit,
                    (false, true) => Path::Pages,
                    (false, false) => Path::Cpu,
                };
                let how = self.how_pages(path, &after);
                let large = matches!(what, What::Alloc | What::Free { .. });
                let whole = format!("too large for a cache, so it is a block of pages. {}", capital(&how));
                (Some(path), if large { whole } else { how })
            }
        };
        let name =
            cache.and_then(|cache| engine.stream.caches.get(cache as usize)).map_or("", |info| &info.name);
        let sentence = sentence(what, cpu, name, &how);
        Step { what, cpu, cache, object, path, sentence }
    }

    fn how_pages(&self, path: Path, after: &BuddyInfo) -> String {
        let moved = self.before.free().abs_diff(after.free());
        match path {
            Path::Commit => {
                let pages = uncommitted(&self.before).abs_diff(uncommitted(after));
                format!("the zone has {} of memory committed or given back.", kib(pages * 4))
            }
            Path::Cpu => "this CPU's pages serve it, no lock is taken.".to_owned(),
            _ if zone_visits(&self.before) == zone_visits(after) => {
                "the zone's free lists serve it, under the zone's lock.".to_owned()
            }
            _ => format!(
                "a magazine of this CPU's pages is exchanged with the zone: {moved} pages in one lock hold."
            ),
        }
    }
}

fn uncommitted(pages: &BuddyInfo) -> u64 {
    pages.zones.iter().map(|zone| u64::from(zone.uncommitted)).sum()
}
/// Visits of per-CPU magazines to the zones.
fn zone_visits(pages: &BuddyInfo) -> u64 {
    pages.zones.iter().map(|zone| zone.per_cpu_events.fills + zone.per_cpu_events.flushes).sum()
}

fn sentence(what: What, cpu: u32, name: &str, how: &str) -> String {
    match what {
        What::Alloc => format!("CPU {cpu} allocates from {name}: {how}"),
        What::Free { allocated_on, .. } if allocated_on != cpu => {
            format!("CPU {cpu} frees an object of {name} that CPU {allocated_on} allocated: {how}")
        }
        What::Free { .. } => format!("CPU {cpu} frees an object of {name}: {how}"),
        What::Pass => {
            format!(
                "CPU {cpu} frees an object of {name} whose allocation the trace hides: it is allocated and freed here."
            )
        }
        What::AllocPages { page, order } => {
            format!("CPU {cpu} allocates {}, page {page}: {how}", pages(order))
        }
        What::FreePages { page, order } => {
            format!("CPU {cpu} frees {}, page {page}: {how}", pages(order))
        }
        What::SplitPages { page, order } => {
            format!(
                "CPU {cpu} frees a block in parts: the block at page {page} is split into blocks of order {order}."
            )
        }
        What::Shrink { objects, slabs } => format!(
            "The traced system shrank its caches, so all that CPUs hold goes back: {objects} objects, and {slabs} empty slabs \
             go to the page allocator."
        ),
        What::Failed if name.is_empty() => format!("CPU {cpu} asks for pages, and the machine has none."),
        What::Failed => {
            format!("CPU {cpu} asks for an object of {name}, and the machine has no memory for it.")
        }
        What::Nothing => {
            "Nothing that concerns the allocator: a mark, pages of the traced kernel's own slabs, or a free \
                          of something from before the trace."
                .to_owned()
        }
    }
}

/// A cache of the shipping allocator, as an operation found it.
#[derive(Debug)]
pub struct Seen {
    info: CacheInfo,
    levels: Option<CpuLevels>,
}

impl Seen {
    /// `None` for large kmalloc.
    pub(crate) fn new(design: &Shipping<'_>, cpu: u32, cache: u32) -> Option<Self> {
        let cache = design.cache(cache)?;
        let levels = |layer: &LayerView<ObjectPlace>| layer.cpus.get(cpu as usize).map(CpuLevels::of);
        // SAFETY: the engine is the subsystem's only user, and this thread has it.
        let view = unsafe { cache.view() };
        Some(Self { info: cache.info(), levels: view.magazines.as_ref().and_then(levels) })
    }

    /// How an object came or went.
    pub(crate) fn how(&self, after: &Self, freeing: bool, committed: u64) -> Option<(Path, String)> {
        let (b, a) = (&self.info, &after.info);
        let path = if (b.slabs_made, b.slabs_released) != (a.slabs_made, a.slabs_released) {
            Path::Pages
        } else if (b.fills, b.flushes, b.free_in_slabs) != (a.fills, a.flushes, a.free_in_slabs) {
            Path::Slab
        } else if b.depot_exchanges != a.depot_exchanges {
            Path::Depot
        } else {
            Path::Cpu
        };
        let (made, released) = (a.slabs_made - b.slabs_made, a.slabs_released - b.slabs_released);
        let slabs = |n: u64| if n == 1 { "a slab".to_owned() } else { format!("{n} slabs") };
        let block = format!("of {}", pages(a.order).trim_start_matches("a block of "));
        let how = match path {
            Path::Pages if made > 0 => {
                let commit = match committed {
                    0 => String::new(),
                    pages => format!(" The page allocator commits {} for it.", kib(pages * 4)),
                };
                format!(
                    "no magazine and no slab has a free object, so the page allocator makes {} {block}.{commit}",
                    slabs(made)
                )
            }
            Path::Pages => {
                let back = (a.free_in_slabs + released * a.objs_per_slab).saturating_sub(b.free_in_slabs);
                format!(
                    "the depot is full, so {back} objects go back to their slabs, and {} that became empty to the page allocator.",
                    slabs(released)
                )
            }
            Path::Slab if freeing => {
                let back = a.free_in_slabs.saturating_sub(b.free_in_slabs);
                format!(
                    "no magazine has room, so {back} objects go back to their slabs, under the node's lock."
                )
            }
            Path::Slab => match b.free_in_slabs.saturating_sub(a.free_in_slabs) {
                0 | 1 => "no magazine has one, so it comes from a slab, under the node's lock.".to_owned(),
                n => format!(
                    "no magazine has one, so {n} come from slabs, under the node's lock: one is handed out, the rest fill a magazine."
                ),
            },
            Path::Depot if freeing => {
                "its magazines are full, so one goes to the depot, under the depot's lock.".to_owned()
            }
            Path::Depot => {
                "its magazines are empty, so a full one comes from the depot, under the depot's lock."
                    .to_owned()
            }
            _ => self.how_cpu(freeing, after),
        };
        Some((path, how))
    }

    fn how_cpu(&self, freeing: bool, after: &Seen) -> String {
        let Some((b, a)) = self.levels.as_ref().zip(after.levels.as_ref()) else {
            return "no lock is taken.".to_owned();
        };
        let (was, is) = (b.magazines(), a.magazines());
        match freeing {
            false if is < was => "its loaded magazine hands out its last one; no lock is taken.".to_owned(),
            false => format!(
                "its loaded magazine hands one out, {} of {} are left; no lock is taken.",
                a.loaded.0, a.loaded.1
            ),
            true if is > was && was > 0 => {
                "its loaded magazine is full, so it is the first of another one; no lock is taken.".to_owned()
            }
            true => {
                format!("its loaded magazine takes it, {} of {}; no lock is taken.", a.loaded.0, a.loaded.1)
            }
        }
    }
}

fn pages(order: u8) -> String {
    match 1_u32 << order {
        1 => "a block of order 0 (1 page)".to_owned(),
        pages => format!("a block of order {order} ({pages} pages)"),
    }
}

fn kib(kib: u64) -> String {
    if kib >= 1024 && kib.is_multiple_of(1024) { format!("{} MiB", kib / 1024) } else { format!("{kib} KiB") }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
