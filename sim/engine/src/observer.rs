//! What an operation did, as the allocator's own tracepoints say.

use crate::design::Design;
use crate::engine::{Engine, EngineError};
use crate::levels::CpuLevels;
use crate::step::{Step, What};
use std::sync::Arc;
use uslab_magazine::sync::{Mutex, Rank};
use uslab_magazine::{Observer, Path};

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
                let watch = Watch::new(engine, engine.cpu(), cache);
                let what = engine.act(action)?;
                let object = if what == What::Alloc { engine.youngest() } else { freed.flatten() };
                steps.push(watch.told(engine, what, object));
                Some(())
            })?;
        }
        Ok(steps)
    }
}

type Did = Vec<uslab_magazine::Step>;

/// An operation on its way.
struct Watch<D: Design> {
    cpu: u32,
    cache: Option<u32>,
    own: Option<D::Seen>,
    /// What shipping code did for it: all of the shipping design, the pages of a model.
    did: Arc<Mutex<Did>>,
    observer: Option<Observer>,
}

impl<D: Design> Watch<D> {
    fn new(engine: &Engine<'_, D>, cpu: u32, cache: Option<u32>) -> Self {
        let own = cache.map(|cache| engine.design.see(cpu, cache));
        let did = Arc::new(Mutex::ranked(Rank::Faults, Did::new()));
        let noted = did.clone();
        // Nobody else observes a machine.
        let observer =
            engine.design.pages().tracepoints().observe(move |op| noted.lock().extend_from_slice(op.steps));
        Self { cpu, cache, own, did, observer: observer.ok() }
    }

    /// What happened since.
    fn told(mut self, engine: &Engine<'_, D>, what: What, object: Option<(u32, u16)>) -> Step {
        drop(self.observer.take());
        let (cpu, cache, did) = (self.cpu, self.cache, core::mem::take(&mut *self.did.lock()));
        let freeing = matches!(what, What::Free { .. });
        let of_slabs = self
            .own
            .take()
            .zip(cache)
            .and_then(|(seen, cache)| engine.design.how(seen, cpu, cache, freeing, &did));
        let (path, how) = match of_slabs {
            _ if what == What::Nothing => (None, String::new()),
            Some((path, how)) => (Some(path.max(dearest(&did))), how),
            // Pages, or large objects, which are pages.
            None => {
                let how = how_pages(&did);
                let large = matches!(what, What::Alloc | What::Free { .. });
                let whole = format!("too large for a cache, so it is a block of pages. {}", capital(&how));
                (Some(dearest(&did)), if large { whole } else { how })
            }
        };
        let name =
            cache.and_then(|cache| engine.stream.caches.get(cache as usize)).map_or("", |info| &info.name);
        let sentence = sentence(what, cpu, name, &how);
        let did = did.iter().map(ToString::to_string).collect();
        Step { what, cpu, cache, object, path, sentence, did }
    }
}

fn dearest(did: &[uslab_magazine::Step]) -> Path {
    did.iter().map(|step| step.path()).max().unwrap_or_default()
}
/// Pages that the system gave or took back.
fn committed(did: &[uslab_magazine::Step]) -> u64 {
    use uslab_magazine::Step::{Committed, Decommitted};
    let pages =
        |step: &_| if let Committed { pages } | Decommitted { pages } = step { u64::from(*pages) } else { 0 };
    did.iter().map(pages).sum()
}

fn how_pages(did: &[uslab_magazine::Step]) -> String {
    use uslab_magazine::Step::{BlocksGiven, BlocksTaken, Filled, Flushed};
    let pages = committed(did);
    let by_magazine = did.iter().any(|step| matches!(step, Filled { .. } | Flushed { .. }));
    let moved = |step: &_| match step {
        BlocksTaken { blocks, order, .. } | BlocksGiven { blocks, order, .. } => u64::from(*blocks) << order,
        _ => 0,
    };
    match dearest(did) {
        _ if pages > 0 => format!("the zone has {} of memory committed or given back.", kib(pages * 4)),
        Path::Cpu => "this CPU's pages serve it, no lock is taken.".to_owned(),
        Path::Depot => {
            "a magazine of this CPU's pages is exchanged with the depot, under the depot's lock.".to_owned()
        }
        _ if !by_magazine => "the zone's free lists serve it, under the zone's lock.".to_owned(),
        _ => format!(
            "a magazine of this CPU's pages is exchanged with the zone: {} pages in one lock hold.",
            did.iter().map(moved).sum::<u64>()
        ),
    }
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

/// How an object of the shipping design's came or went, whose slabs are of `order`: the dearest thing, and why.
pub(crate) fn how(
    did: &[uslab_magazine::Step],
    order: u8,
    freeing: bool,
    levels: Option<(CpuLevels, CpuLevels)>,
) -> (Path, String) {
    use uslab_magazine::Step::{ObjectsGiven, ObjectsTaken, SlabAdded, SlabReleased};
    let count = |which: fn(&uslab_magazine::Step) -> u64| did.iter().map(which).sum::<u64>();
    let made = count(|step| matches!(step, SlabAdded { .. }).into());
    let released = count(|step| matches!(step, SlabReleased { .. }).into());
    let back = count(|step| if let ObjectsGiven { objects, .. } = step { (*objects).into() } else { 0 });
    let taken = count(|step| if let ObjectsTaken { objects, .. } = step { (*objects).into() } else { 0 });
    let slabs = |n: u64| if n == 1 { "a slab".to_owned() } else { format!("{n} slabs") };
    let block = format!("of {}", pages(order).trim_start_matches("a block of "));
    let path = dearest(did);
    let how = if made > 0 {
        let commit = match committed(did) {
            0 => String::new(),
            pages => format!(" The page allocator commits {} for it.", kib(pages * 4)),
        };
        format!(
            "no magazine and no slab has a free object, so the page allocator makes {} {block}.{commit}",
            slabs(made)
        )
    } else if released > 0 {
        format!(
            "the depot is full, so {back} objects go back to their slabs, and {} that became empty to the page allocator.",
            slabs(released)
        )
    } else if back > 0 {
        format!("no magazine has room, so {back} objects go back to their slabs, under the node's lock.")
    } else if taken == 1 {
        "no magazine has one, so it comes from a slab, under the node's lock.".to_owned()
    } else if taken > 0 {
        format!(
            "no magazine has one, so {taken} come from slabs, under the node's lock: one is handed out, the rest fill a magazine."
        )
    } else if path == Path::Depot && freeing {
        "its magazines are full, so one goes to the depot, under the depot's lock.".to_owned()
    } else if path == Path::Depot {
        "its magazines are empty, so a full one comes from the depot, under the depot's lock.".to_owned()
    } else {
        how_cpu(freeing, levels)
    };
    (path, how)
}

fn how_cpu(freeing: bool, levels: Option<(CpuLevels, CpuLevels)>) -> String {
    let Some((b, a)) = levels else { return "no lock is taken.".to_owned() };
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
