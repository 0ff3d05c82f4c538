//! The article's sets, and its three phases: allocate and free, churn, walk.

use super::designs::{BoxedObjects, Design, Flags, FreeList, Particle};
use crate::findings::clock;
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use std::hint::black_box;
use uslab::handle::{PackedArray, SlotMap};
use uslab::objects::Hive;
use uslab::pool::{HeapArea, LivePool};
use uslab::{Magazines, ObjectCache, Subsystem};

/// A set of the article: numbers of allocations, frees and walks, and the article's milliseconds per design and phase.
pub(super) struct Set {
    pub(super) allocs: usize,
    pub(super) frees: usize,
    pub(super) walks: usize,
    pub(super) article: [[f64; 3]; 4],
}

pub(super) const SETS: [Set; 4] = [
    Set {
        allocs: 10_000,
        frees: 9_500,
        walks: 1_000,
        article: [[12.99, 35.91, 2.79], [0.17, 0.44, 5.48], [0.27, 0.39, 0.31], [0.15, 1.19, 0.31]],
    },
    Set {
        allocs: 10_000,
        frees: 500,
        walks: 1_000,
        article: [[12.94, 613.37, 6.51], [0.13, 0.51, 7.63], [0.15, 0.80, 6.92], [0.15, 1.69, 7.00]],
    },
    Set {
        allocs: 100_000,
        frees: 99_500,
        walks: 1_000,
        article: [[1244.46, 34.84, 25.13], [1.41, 0.46, 32.69], [2.73, 0.39, 0.31], [1.62, 1.19, 0.31]],
    },
    Set {
        allocs: 10_000,
        frees: 9_500,
        walks: 100_000,
        article: [[12.78, 35.44, 273.18], [0.15, 0.43, 542.18], [0.26, 0.38, 30.79], [0.15, 1.17, 30.62]],
    },
];

/// The number of objects that a frame replaces, and the number of frames.
pub(super) const REPLACED_PER_FRAME: usize = 500;
pub(super) const FRAMES: usize = 1_000;

/// The milliseconds of each phase, and the counts of a walk.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) build: f64,
    pub(super) churn: f64,
    pub(super) walks: f64,
    pub(super) inspected: usize,
    /// The kind of items that a walk inspects; empty if a walk is not possible.
    pub(super) looks_at: &'static str,
    pub(super) active: usize,
}

/// The random order in which live objects are freed, which is drawn before the timing starts.
pub(super) struct Order {
    first: Vec<usize>,
    churn: Vec<usize>,
}

impl Order {
    pub(super) fn new(set: &Set, frames: usize, rng: &mut Pcg64) -> Self {
        let mut first: Vec<usize> = (0..set.allocs).collect();
        first.shuffle(rng);
        // The order consists of indices into the list of live objects. The list's last object takes the index of a
        // freed object.
        let remaining = set.allocs - set.frees;
        let churn = (0..frames * REPLACED_PER_FRAME).map(|_| rng.random_range(0..remaining)).collect();
        Self { first, churn }
    }
}

/// Runs a design whose keys stay valid until their objects are freed.
fn run_design<D: Design>(design: &mut D, set: &Set, order: &Order, walks: usize) -> anyhow::Result<Run> {
    let mut first_error = None;
    let mut keys: Vec<Option<D::Key>> = Vec::with_capacity(set.allocs);
    let mut live: Vec<D::Key> = Vec::with_capacity(set.allocs);
    let build = clock::nanoseconds(|| {
        for i in 0..set.allocs {
            match design.alloc(Particle::new(i)) {
                Ok(key) => keys.push(Some(key)),
                Err(error) => return first_error = Some(error),
            }
        }
        for i in &order.first[..set.frees] {
            if let Some(key) = keys[*i].take() {
                design.free(key);
            }
        }
    }) / 1e6;
    live.extend(keys.into_iter().flatten());
    let churn = clock::nanoseconds(|| {
        for (i, index) in order.churn.iter().enumerate() {
            let key = live.swap_remove(*index);
            design.free(key);
            match design.alloc(Particle::new(i)) {
                Ok(key) => live.push(key),
                Err(error) => return first_error = Some(error),
            }
        }
    }) / 1e6;
    if let Some(error) = first_error {
        return Err(error);
    }
    let run = walk(design, walks);
    black_box(&live);
    Ok(Run { build, churn, ..run })
}

fn walk<D: Design>(design: &mut D, walks: usize) -> Run {
    // The first walk after a change is not timed, because this walk may have to build the design's index.
    let (active, inspected) = (design.walk(), design.inspected());
    let walks = clock::nanoseconds(|| {
        for _ in 0..walks {
            black_box(design.walk());
            black_box(&mut *design);
        }
    }) / 1e6;
    Run { inspected, looks_at: D::INSPECTED_ITEMS, active, walks, ..Run::default() }
}

/// Runs the packed array, in which only the index identifies an object.
fn packed(set: &Set, order: &Order, walks: usize) -> anyhow::Result<Run> {
    let mut array = PackedArray::default();
    let mut first_error = None;
    let build = clock::nanoseconds(|| {
        for i in 0..set.allocs {
            if let Err(error) = array.alloc(Particle::new(i)) {
                return first_error = Some(error);
            }
        }
        for (i, index) in order.first[..set.frees].iter().enumerate() {
            array.free(index % (set.allocs - i));
        }
    }) / 1e6;
    let churn = clock::nanoseconds(|| {
        for (i, index) in order.churn.iter().enumerate() {
            array.free(*index);
            if let Err(error) = array.alloc(Particle::new(i)) {
                return first_error = Some(error);
            }
        }
    }) / 1e6;
    if let Some(error) = first_error {
        return Err(error.into());
    }
    Ok(Run { build, churn, ..walk(&mut array, walks) })
}
pub(super) const NAMES: [&str; 9] = [
    "naive, scans",
    "free list",
    "packed array",
    "slot map",
    "naive, never again",
    "pool with bitmap",
    "hive without magazines",
    "hive, CPU's magazines",
    "boxes of an object cache",
];

/// Runs and times one round of one pool design.
pub(super) fn run_round(
    design: usize,
    set: &Set,
    order: &Order,
    walks: usize,
    subsystem: &Subsystem,
) -> anyhow::Result<Run> {
    let hive = |magazines| Hive::<Particle>::new_in("particle", subsystem, magazines);
    match design {
        0 => run_design(&mut Flags::<true>::default(), set, order, walks),
        1 => run_design(&mut FreeList::default(), set, order, walks),
        2 => packed(set, order, walks),
        3 => run_design(&mut SlotMap::<Particle>::new(), set, order, walks),
        4 => run_design(&mut Flags::<false>::default(), set, order, walks),
        5 => run_design(
            &mut LivePool::<Particle, HeapArea>::new(HeapArea::new(set.allocs * 25 + 4096, 64)?)?,
            set,
            order,
            walks,
        ),
        6 => run_design(&mut hive(Magazines::Off)?, set, order, walks),
        7 => run_design(&mut hive(Magazines::default())?, set, order, walks),
        _ => {
            let cache = ObjectCache::builder("particle").ctor(Particle::default).build_in(subsystem)?;
            run_design(&mut BoxedObjects(&cache), set, order, walks)
        }
    }
}
