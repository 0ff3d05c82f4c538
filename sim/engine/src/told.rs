//! Describes the steps of the shipping code in phrases that can end a sentence.

use crate::levels::Level;
use uslab_magazine::Path;
use uslab_magazine::tracepoints::Step;

/// Returns the slowest level that served one of the steps.
pub(crate) fn slowest_level(steps: &[Step]) -> Path {
    steps.iter().map(|step| step.path()).max().unwrap_or_default()
}
/// Returns the number of pages that were committed.
fn committed(steps: &[Step]) -> u64 {
    steps.iter().map(|step| if let Step::Committed { pages } = step { u64::from(*pages) } else { 0 }).sum()
}
/// Returns the number of pages that were decommitted.
fn decommitted(steps: &[Step]) -> u64 {
    steps.iter().map(|step| if let Step::Decommitted { pages } = step { u64::from(*pages) } else { 0 }).sum()
}

/// Describes how a block of pages was allocated or freed.
pub(crate) fn describe_page_steps(steps: &[Step]) -> String {
    use Step::{BlocksGiven, BlocksTaken, Filled, Flushed};
    let (committed, decommitted) = (committed(steps), decommitted(steps));
    let by_magazine = steps.iter().any(|step| matches!(step, Filled { .. } | Flushed { .. }));
    let moved_pages = |step: &_| match step {
        BlocksTaken { blocks, order, .. } | BlocksGiven { blocks, order, .. } => u64::from(*blocks) << order,
        _ => 0,
    };
    match slowest_level(steps) {
        _ if committed > 0 => format!("the zone commits {} of memory.", kib(committed * 4)),
        _ if decommitted > 0 => {
            format!("the zone returns {} of memory to the system.", kib(decommitted * 4))
        }
        Path::Cpu => "this CPU's free pages serve it, and no lock is taken.".to_owned(),
        Path::Depot => {
            "a magazine of this CPU's pages is exchanged with the depot, under the depot's lock.".to_owned()
        }
        _ if !by_magazine => "the zone's free lists serve it, under the zone's lock.".to_owned(),
        _ => format!(
            "this CPU exchanges a magazine of pages with the zone: {} pages move while the zone's lock is held once.",
            steps.iter().map(moved_pages).sum::<u64>()
        ),
    }
}

/// Describes how an object of the shipping design was allocated or freed; returns the level that served the operation,
/// and the reason. The argument `order` is the order of the cache's slabs.
pub(crate) fn describe(steps: &[Step], order: u8, freeing: bool, stack: Option<Level>) -> (Path, String) {
    use Step::{
        DepotGiven, DepotTaken, ObjectsGiven, ObjectsTaken, SlabAdded, SlabReleased, TablesCommitted,
    };
    let count = |count_in: fn(&Step) -> u64| steps.iter().map(count_in).sum::<u64>();
    let added_slabs = count(|step| matches!(step, SlabAdded { .. }).into());
    let released_slabs = count(|step| matches!(step, SlabReleased { .. }).into());
    let flushed_objects =
        count(|step| if let ObjectsGiven { objects, .. } = step { (*objects).into() } else { 0 });
    let taken_objects =
        count(|step| if let ObjectsTaken { objects, .. } = step { (*objects).into() } else { 0 });
    let slabs = |n: u64| if n == 1 { "a slab".to_owned() } else { format!("{n} slabs") };
    let block = format!("of {}", pages(order).trim_start_matches("a block of "));
    let path = slowest_level(steps);
    let description = if added_slabs > 0 {
        format!(
            "neither the stack, the depot nor a slab has a free object, so the page allocator provides {} {block}.",
            slabs(added_slabs)
        )
    } else if released_slabs > 0 {
        format!(
            "the depot is full, so {flushed_objects} objects are flushed to their slabs, and {} that became empty are returned to the page allocator.",
            slabs(released_slabs)
        )
    } else if flushed_objects > 0 {
        format!(
            "the depot is full, so {flushed_objects} objects are flushed to their slabs, under the node's lock."
        )
    } else if taken_objects == 1 {
        "the stack and the depot are empty, so it comes from a slab, under the node's lock.".to_owned()
    } else if taken_objects > 0 {
        format!(
            "the stack and the depot are empty, so {taken_objects} objects come from slabs, under the node's lock: one is allocated, and the stack keeps the rest."
        )
    } else if steps.contains(&DepotGiven) || path == Path::Depot && freeing {
        "its stack is full, so a magazine moves to the depot, under the depot's lock.".to_owned()
    } else if steps.contains(&DepotTaken) || path == Path::Depot {
        "its stack is empty, so a magazine moves from the depot, under the depot's lock.".to_owned()
    } else {
        describe_cpu_path(freeing, stack, path)
    };
    let tables = count(|step| if let TablesCommitted { bytes } = step { (*bytes).into() } else { 0 });
    let commit = match committed(steps) {
        0 if tables > 0 => format!(" The magazine layer commits {} for its tables.", kib(tables / 1024)),
        0 => String::new(),
        pages => format!(" The page allocator commits {} for it.", kib(pages * 4)),
    };
    (path, description + &commit)
}

fn describe_cpu_path(freeing: bool, stack: Option<Level>, path: Path) -> String {
    let no_lock = if path == Path::Cpu { "; no lock is taken" } else { "" };
    let Some(Level { objects, room, .. }) = stack else { return "no lock is taken.".to_owned() };
    match (freeing, objects) {
        (false, 0) => format!("its stack allocates its last object{no_lock}."),
        (false, _) => format!(
            "its stack allocates one object, and keeps {} of at most {} objects{no_lock}.",
            grouped(objects),
            grouped(room)
        ),
        (true, _) => {
            format!(
                "its stack keeps the object, and now has {} of at most {} objects{no_lock}.",
                grouped(objects),
                grouped(room)
            )
        }
    }
}

pub(crate) fn pages(order: u8) -> String {
    match 1_u32 << order {
        1 => "a block of order 0 (1 page)".to_owned(),
        pages => format!("a block of order {order} ({pages} pages)"),
    }
}

/// Formats a number with commas, such as `1234567` as `1,234,567`.
pub(crate) fn grouped(n: impl Into<u64>) -> String {
    let n: u64 = n.into();
    match n / 1000 {
        0 => n.to_string(),
        thousands => format!("{},{:03}", grouped(thousands), n % 1000),
    }
}

fn kib(kib: u64) -> String {
    if kib >= 1024 && kib.is_multiple_of(1024) { format!("{} MiB", kib / 1024) } else { format!("{kib} KiB") }
}

pub(crate) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
