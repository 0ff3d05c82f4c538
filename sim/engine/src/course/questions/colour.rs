//! The lab on the effect of slab colour on a processor's cache.

use super::ask::{PreparedQuestion, QuestionLab, Random, number_question};
use crate::course::lab::{Answer, Strip};
use uslab::{Geometry, OrderRule};
use uslab_buddy::{Order, PAGE_SIZE};

pub(super) const LAB: QuestionLab = QuestionLab {
    name: "colour",
    title: "Colour",
    minutes: 15,
    about: "Bytes are left over at a slab's end. Part of them can be moved to the slab's beginning, one cache line more in each next slab. The paper of 1994 calls that colouring.",
    shows: "Slabs are aligned to their own size, so the first objects of all slabs share few sets of a cache. Colours spread them over as many more sets as the wasted bytes allow.",
    pitfall: "To divide the waste by the size of an object: a colour is one cache line, and the first colour is 0.",
    ask,
};

/// The bytes of a cache line. The modelled first-level cache has 32 KiB and 8 ways.
const LINE: usize = 64;
const CACHE_SETS: usize = 64;

/// Returns the geometry of a slab of one page.
fn geometry(size: usize) -> Geometry {
    let rule = OrderRule { min_order: 0, max_order: 0, min_objects: 1, ..OrderRule::for_cpus(1) };
    Geometry::new(size, LINE, &rule).expect("the object must be smaller than a page")
}

/// Counts, for each set of the processor's cache, the slabs whose first object maps to the set.
fn set_counts(size: usize, slabs: usize, colours: usize) -> [usize; CACHE_SETS] {
    let set = |slab: usize| (slab * PAGE_SIZE + slab % colours * LINE) / LINE % CACHE_SETS;
    let mut counts = [0; CACHE_SETS];
    (0..slabs).for_each(|slab| counts[set(slab)] += 1);
    debug_assert!(colours <= geometry(size).waste() / LINE + 1);
    counts
}

/// Returns the number of sets of the processor's cache to which a slab's first object maps.
fn used_cache_sets(set_counts: &[usize]) -> usize {
    set_counts.iter().filter(|slabs| **slabs > 0).count()
}

/// Draws a slab with a colour; the colour splits the unused space into a part before the objects and a part after them.
fn slab(size: usize, colour: usize) -> Strip {
    let (objects, front) = (geometry(size).objects(), colour * LINE);
    let tail_bytes = PAGE_SIZE - front - objects * size;
    let objects = (0..objects).map(|n| (size as u32, Some(n.to_string())));
    let pieces = [(front as u32, None)].into_iter().chain(objects).chain([(tail_bytes as u32, None)]);
    Strip {
        said: format!("A slab of colour {colour}: its objects by number."),
        pieces: pieces.filter(|(bytes, _)| *bytes > 0).collect(),
    }
}

/// Draws the sets of the processor's cache; each set is as wide as a cache line.
fn cache(set_counts: &[usize]) -> Strip {
    let set = |slabs: &usize| (LINE as u32, (*slabs > 0).then(|| slabs.to_string()));
    let text = format!(
        "The {CACHE_SETS} sets of the cache. Each number counts the slabs whose first object is in the set."
    );
    Strip { said: text, pieces: set_counts.iter().map(set).collect() }
}

fn ask(random: &mut Random) -> Vec<PreparedQuestion> {
    // All sizes of the question leave at least two lines unused.
    let size = [640, 704, 768, 832, 960, 1088][random.of(0, 5) as usize];
    let slabs = random.of(24, 60) as usize;
    let (objects, waste) = (geometry(size).objects(), geometry(size).waste());
    let colours = waste / LINE + 1;
    let capacity_text =
        format!("A slab of one page ({} bytes) holds {objects} objects of {size} bytes", Order::ZERO.bytes());
    let question = |text: String, unit: &str, answer: usize, explanation: String, strips: Vec<Strip>| {
        PreparedQuestion::plain(text, number_question(unit), move || Answer {
            strips: strips.clone(),
            ..Answer::new(answer as u64, explanation.clone(), 0)
        })
    };
    let (without_colours, with_colours) = (set_counts(size, slabs, 1), set_counts(size, slabs, colours));
    vec![
        question(
            format!(
                "{capacity_text}. The first object may begin after 0 or more unused lines of {LINE} bytes: this number of \
                 lines is the slab's colour. How many colours are possible?"
            ),
            "colours",
            colours,
            format!(
                "{waste} bytes remain unused: {} lines. From 0 to all of these lines can be before the first object.",
                waste / LINE
            ),
            (0..colours).map(|colour| slab(size, colour)).collect(),
        ),
        question(
            format!(
                "{slabs} such slabs have colour 0. A first-level cache has {CACHE_SETS} sets of lines. In how many sets do the first objects of these slabs begin?"
            ),
            "sets",
            used_cache_sets(&without_colours),
            format!(
                "A page has as many lines as the cache has sets, so every page begins in the same set: {}.",
                used_cache_sets(&without_colours)
            ),
            vec![cache(&without_colours)],
        ),
        question(
            "Now each slab takes the next colour, and the slab after the last colour takes colour 0 again. In how many sets do the first objects begin?".to_owned(),
            "sets",
            used_cache_sets(&with_colours),
            format!("The first objects begin in one set for each colour in use: {}.", used_cache_sets(&with_colours)),
            vec![cache(&with_colours)],
        ),
    ]
}
