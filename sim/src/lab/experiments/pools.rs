//! The article on pools, from a naive one to a slot map, measured anew, with slabs beside them.
//!
//! Each design is written as a Rust program would write it, keeps the article's particle, and is put through its three phases:
//! allocation and freeing, churn, iteration. Every value that is read flows into a sum that is shown to the compiler, so that
//! nothing is left out; the article's own 0.88 ns for a free and an allocation let one doubt.

use super::{Context, counted};
use crate::lab::clock;
use crate::lab::findings::{Claim, Findings, Holds, Table, Value};
use anyhow::Context as _;
use clap::Args;
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use std::hint::black_box;
use uslab::handle::{Handle, PackedArray, SlotMap};
use uslab::hive::{Hive, Key};
use uslab::pool::{HeapArea, LivePool};
use uslab::{CacheBox, Config, Magazines, ObjectCache, Subsystem};

/// Which pool allocates, churns and iterates fastest: naive, free list, packed, slot map, or slabs?
///
/// The four sets of the article: so many allocations, of which so many are freed at random, then 1,000 frames in each of which
/// 500 objects are replaced, then so many walks over the objects that are left. Beside the article's numbers, and with slabs:
/// without magazines, and with a magazine for each CPU.
#[derive(Debug, Args)]
pub struct Pools {
    /// Only these of the article's sets, 1 to 4, separated by commas.
    #[arg(long, value_name = "SET", value_delimiter = ',', default_values_t = [1, 2, 3, 4], value_parser = clap::value_parser!(u8).range(1..=4))]
    sets: Vec<u8>,
}

/// The article's particle, of 24 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Particle {
    active: bool,
    position: [f32; 2],
    velocity: [f32; 2],
    lifetime: f32,
}

impl Particle {
    fn new(i: usize) -> Self {
        Self { active: true, position: [i as f32, 0.0], velocity: [1.0, 0.5], lifetime: 1.0 }
    }
    #[inline(always)]
    fn update(&mut self) {
        self.position[0] += self.velocity[0] * 0.016;
        self.position[1] += self.velocity[1] * 0.016;
        self.lifetime -= 0.016;
    }
}

/// A design of the article.
trait Design {
    /// Names an object. The packed array has none that lasts: its objects are told apart by where they lie just now.
    type Key;

    fn alloc(&mut self, particle: Particle) -> anyhow::Result<Self::Key>;
    fn free(&mut self, key: Self::Key);
    /// Updates all objects; how many there were.
    fn walk(&mut self) -> usize;
    /// How many places a walk looks at: flags, words of 64 places, or the objects themselves.
    fn looked(&mut self) -> usize;
}

/// Slots in a row, with a flag. If it scans, a new object takes the first that is free, found by looking; else a freed one is
/// never taken again.
#[derive(Default)]
struct Flags<const SCANS: bool>(Vec<Particle>);

/// Slots in a row, the free ones in a list that lies in them, in place of the position.
struct FreeList {
    slots: Vec<Particle>,
    head: u32,
}

const END: u32 = u32::MAX;

fn walk_flags(slots: &mut [Particle]) -> usize {
    let mut active = 0;
    for particle in slots.iter_mut() {
        if particle.active {
            particle.update();
            active += 1;
        }
    }
    active
}

impl<const SCANS: bool> Design for Flags<SCANS> {
    type Key = usize;
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<usize> {
        if SCANS && let Some(free) = self.0.iter().position(|slot| !slot.active) {
            self.0[free] = particle;
            return Ok(free);
        }
        self.0.push(particle);
        Ok(self.0.len() - 1)
    }
    #[inline(always)]
    fn free(&mut self, key: usize) {
        self.0[key].active = false;
    }
    fn walk(&mut self) -> usize {
        walk_flags(&mut self.0)
    }
    fn looked(&mut self) -> usize {
        self.0.len()
    }
}

impl Design for FreeList {
    type Key = usize;
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<usize> {
        let slot = self.head as usize;
        if let Some(free) = self.slots.get_mut(slot) {
            self.head = free.position[0].to_bits();
            *free = particle;
            return Ok(slot);
        }
        self.slots.push(particle);
        Ok(self.slots.len() - 1)
    }
    #[inline(always)]
    fn free(&mut self, key: usize) {
        let slot = &mut self.slots[key];
        slot.active = false;
        slot.position[0] = f32::from_bits(self.head);
        self.head = key as u32;
    }
    fn walk(&mut self) -> usize {
        walk_flags(&mut self.slots)
    }
    fn looked(&mut self) -> usize {
        self.slots.len()
    }
}

fn walk_slice(particles: &mut [Particle]) -> usize {
    particles.iter_mut().for_each(Particle::update);
    particles.len()
}

impl Design for PackedArray<Particle> {
    type Key = ();
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<()> {
        PackedArray::alloc(self, particle)?;
        Ok(())
    }
    fn free(&mut self, (): ()) {
        unreachable!("the packed array's are freed by place")
    }
    fn walk(&mut self) -> usize {
        walk_slice(self.as_mut_slice())
    }
    fn looked(&mut self) -> usize {
        self.len()
    }
}

impl Design for SlotMap<Particle> {
    type Key = Handle<u64, 32>;
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<Self::Key> {
        Ok(SlotMap::alloc(self, particle)?)
    }
    #[inline(always)]
    fn free(&mut self, key: Self::Key) {
        SlotMap::free(self, key);
    }
    fn walk(&mut self) -> usize {
        walk_slice(self.as_mut_slice())
    }
    fn looked(&mut self) -> usize {
        self.len()
    }
}

impl Design for LivePool<Particle, HeapArea> {
    type Key = usize;
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<usize> {
        self.insert(particle).ok().context("room in the pool")
    }
    #[inline(always)]
    fn free(&mut self, key: usize) {
        self.remove(key);
    }
    fn walk(&mut self) -> usize {
        self.iter_mut().for_each(|(_, particle)| particle.update());
        self.len()
    }
    fn looked(&mut self) -> usize {
        self.capacity().div_ceil(64)
    }
}

impl Design for Hive<Particle> {
    type Key = Key<Particle>;
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<Self::Key> {
        self.insert(particle).map_err(|refused| refused.error.into())
    }
    #[inline(always)]
    fn free(&mut self, key: Self::Key) {
        self.remove(key);
    }
    fn walk(&mut self) -> usize {
        self.iter_mut().for_each(Particle::update);
        self.len()
    }
    fn looked(&mut self) -> usize {
        // In each slab.
        let info = self.info();
        ((info.full + info.partial) * info.objs_per_slab.div_ceil(64)) as usize
    }
}

/// A set of the article: allocations, how many of them are freed, walks; and the article's milliseconds, by design, for
/// allocating and freeing, churn and walks.
struct Set {
    allocs: usize,
    frees: usize,
    walks: usize,
    article: [[f64; 3]; 4],
}

const SETS: [Set; 4] = [
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

/// Objects replaced in a frame, and frames.
const REPLACED: usize = 500;
const FRAMES: usize = 1_000;

/// Milliseconds of the phases, and what a walk looked at.
#[derive(Clone, Copy, Default)]
struct Run {
    build: f64,
    churn: f64,
    walks: f64,
    looked: usize,
    active: usize,
}

/// Which of the live objects goes next: made before any time is taken.
struct Order {
    first: Vec<usize>,
    churn: Vec<usize>,
}

impl Order {
    fn new(set: &Set, frames: usize, rng: &mut Pcg64) -> Self {
        let mut first: Vec<usize> = (0..set.allocs).collect();
        first.shuffle(rng);
        // As places in the list of those that live: a freed one's place is taken by the last.
        let left = set.allocs - set.frees;
        let churn = (0..frames * REPLACED).map(|_| rng.random_range(0..left)).collect();
        Self { first, churn }
    }
}

/// A design whose objects have names that last.
fn named<D: Design>(design: &mut D, set: &Set, order: &Order, walks: usize) -> anyhow::Result<Run> {
    let mut failed = None;
    let mut keys: Vec<Option<D::Key>> = Vec::with_capacity(set.allocs);
    let mut live: Vec<D::Key> = Vec::with_capacity(set.allocs);
    let build = clock::nanoseconds(|| {
        for i in 0..set.allocs {
            match design.alloc(Particle::new(i)) {
                Ok(key) => keys.push(Some(key)),
                Err(error) => return failed = Some(error),
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
        for (i, at) in order.churn.iter().enumerate() {
            let key = live.swap_remove(*at);
            design.free(key);
            match design.alloc(Particle::new(i)) {
                Ok(key) => live.push(key),
                Err(error) => return failed = Some(error),
            }
        }
    }) / 1e6;
    if let Some(error) = failed {
        return Err(error);
    }
    let run = walk(design, walks);
    black_box(&live);
    Ok(Run { build, churn, ..run })
}

fn walk<D: Design>(design: &mut D, walks: usize) -> Run {
    // The first walk after a change may have to find out what is there.
    let (active, looked) = (design.walk(), design.looked());
    let walks = clock::nanoseconds(|| {
        for _ in 0..walks {
            black_box(design.walk());
        }
    }) / 1e6;
    Run { looked, active, walks, ..Run::default() }
}

/// The packed array, whose objects are known by their place only.
fn packed(set: &Set, order: &Order, walks: usize) -> anyhow::Result<Run> {
    let mut array = PackedArray::default();
    let mut failed = None;
    let build = clock::nanoseconds(|| {
        for i in 0..set.allocs {
            if let Err(error) = array.alloc(Particle::new(i)) {
                return failed = Some(error);
            }
        }
        for (i, at) in order.first[..set.frees].iter().enumerate() {
            array.free(at % (set.allocs - i));
        }
    }) / 1e6;
    let churn = clock::nanoseconds(|| {
        for (i, at) in order.churn.iter().enumerate() {
            array.free(*at);
            if let Err(error) = array.alloc(Particle::new(i)) {
                return failed = Some(error);
            }
        }
    }) / 1e6;
    if let Some(error) = failed {
        return Err(error.into());
    }
    Ok(Run { build, churn, ..walk(&mut array, walks) })
}

/// An object cache, its objects in boxes: for all threads, and nobody walks over them.
struct Boxes<'c>(&'c ObjectCache<Particle>);

impl<'c> Design for Boxes<'c> {
    type Key = CacheBox<'c, Particle>;
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<Self::Key> {
        let mut place = self.0.alloc()?;
        *place = particle;
        Ok(place)
    }
    #[inline(always)]
    fn free(&mut self, key: Self::Key) {
        drop(key);
    }
    fn walk(&mut self) -> usize {
        0
    }
    fn looked(&mut self) -> usize {
        0
    }
}

const NAMES: [&str; 9] = [
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

/// One turn of one design.
fn turn(design: usize, set: &Set, order: &Order, walks: usize, subsystem: &Subsystem) -> anyhow::Result<Run> {
    let hive = |magazines| Hive::<Particle>::new_in("particle", subsystem, magazines);
    match design {
        0 => named(&mut Flags::<true>::default(), set, order, walks),
        1 => named(&mut FreeList { slots: Vec::new(), head: END }, set, order, walks),
        2 => packed(set, order, walks),
        3 => named(&mut SlotMap::<Particle>::new(), set, order, walks),
        4 => named(&mut Flags::<false>::default(), set, order, walks),
        5 => named(
            &mut LivePool::<Particle, HeapArea>::new(HeapArea::new(set.allocs * 25 + 4096, 64)?)?,
            set,
            order,
            walks,
        ),
        6 => named(&mut hive(Magazines::Off)?, set, order, walks),
        7 => named(&mut hive(Magazines::default())?, set, order, walks),
        _ => {
            let cache = ObjectCache::builder("particle").ctor(Particle::default).build_in(subsystem)?;
            named(&mut Boxes(&cache), set, order, walks)
        }
    }
}

impl Pools {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "which pool allocates, churns and iterates fastest: naive, free list, packed, slot map, or slabs?";
        let mut findings = Findings::new("pools", question, context.seed);
        let mut rng = context.rng();
        // Rounds: the naive pool's quadratic allocation alone takes seconds in the third set.
        let rounds = if context.quick || context.exact { 1 } else { 3 };
        let stage = context.progress.stage("pools", (self.sets.len() * NAMES.len() * rounds) as u64);
        let mut done = 0;
        let mut all = Vec::new();
        for number in &self.sets {
            let set = &SETS[usize::from(*number) - 1];
            let walks = if context.exact { 1 } else { context.scale(set.walks) };
            let frames = context.scale(FRAMES);
            let order = Order::new(set, frames, &mut rng);
            let subsystem = if context.exact {
                counted()?
            } else {
                Subsystem::new(Config { check_frees: false, ..Config::default() })?
            };
            let mut runs = [Run::default(); NAMES.len()];
            let mut failed = Ok(());
            let times = clock::medians(rounds, NAMES.len(), |design| {
                done += 1;
                stage.at(done);
                match turn(design, set, &order, walks, &subsystem) {
                    Ok(run) => {
                        runs[design] = run;
                        [run.build, run.churn, run.walks]
                    }
                    Err(error) => {
                        failed = Err(error);
                        [0.0; 3]
                    }
                }
            });
            failed?;
            findings.table(table(*number, set, frames, walks, &runs, &times));
            all.push(Measured { set: *number, times });
        }
        drop(stage);
        claims(&mut findings, &all);
        Ok(findings)
    }
}

fn table(number: u8, set: &Set, frames: usize, walks: usize, runs: &[Run], times: &[[f64; 3]]) -> Table {
    let mut table = Table::new(
        format!(
            "Set {number}: {} allocated, {} freed; {REPLACED} replaced in each of {frames} frames; {walks} walks",
            set.allocs, set.frees
        ),
        &[
            "design",
            "looked at in a walk",
            "of these objects",
            "~allocate and free, ms",
            "~churn, ms",
            "~walks, ms",
            "article: allocate and free",
            "churn",
            "walks",
        ],
    );
    for (i, name) in NAMES.into_iter().enumerate() {
        let article = set
            .article
            .get(i)
            .map_or([Value::Nothing, Value::Nothing, Value::Nothing], |ms| ms.map(Value::from));
        // Boxes are walked by nobody.
        let walked = |value: Value| if runs[i].looked > 0 { value } else { Value::Nothing };
        let counts = [walked(runs[i].looked.into()), walked(runs[i].active.into())];
        let [build, churn, walks] = times[i];
        let times = [build.into(), churn.into(), walked(walks.into())];
        table.row([vec![name.into()], counts.into(), times.into(), article.into()].concat());
    }
    table
}

/// The medians of a set: of each design's three phases.
struct Measured {
    set: u8,
    times: Vec<[f64; 3]>,
}

/// A design's time of a phase in a set, if the set ran.
fn time(all: &[Measured], set: u8, design: usize, phase: usize) -> Option<f64> {
    all.iter().find(|measured| measured.set == set).map(|measured| measured.times[design][phase])
}

fn claims(findings: &mut Findings, all: &[Measured]) {
    let source = || "the article on pools".to_owned();
    let ratio = |set, a: (usize, usize), b: (usize, usize)| {
        Some(time(all, set, a.0, a.1)? / time(all, set, b.0, b.1)?)
    };
    let (scan, list, array, map, live, slab, magazines, boxes) = (0, 1, 2, 3, 5, 6, 7, 8);
    let mut claim = |says: &str, source: String, found: String, holds: Holds| {
        findings.claim(Claim { says: says.into(), source, found, holds, timed: true });
    };
    let yes = |holds: bool| if holds { Holds::Yes } else { Holds::No };
    if let Some(naive) = ratio(3, (scan, 0), (list, 0)) {
        claim(
            "at 100,000 objects a pool that scans for a free slot takes hundreds of times as long as the others",
            source(),
            format!("{naive:.0} times the free list's"),
            yes(naive > 100.0),
        );
    }
    if let (Some(naive), Some(free)) = (ratio(4, (scan, 2), (array, 2)), ratio(4, (list, 2), (array, 2))) {
        claim(
            "a sparse pool is walked 9 to 18 times as fast if it is packed",
            source(),
            format!(
                "the scanning pool takes {naive:.1} times as long as the packed array, the free list {free:.1} times"
            ),
            match (naive, free) {
                (5.0.., 5.0..) => Holds::Yes,
                (2.0.., _) | (_, 2.0..) => Holds::Partly,
                _ => Holds::No,
            },
        );
    }
    if let Some(clustered) = ratio(1, (scan, 2), (list, 2)) {
        claim(
            "taking the first free slot keeps objects together, so that the scanning pool is walked faster than the free list",
            source(),
            format!("{clustered:.2} of the free list's time; the article has 0.51"),
            yes(clustered < 1.0),
        );
    }
    if let Some(churn) = ratio(1, (map, 1), (list, 1)) {
        claim(
            "a slot map's churn costs about three times a free list's",
            source(),
            format!("{churn:.1} times"),
            match churn {
                1.8..=4.5 => Holds::Yes,
                _ => Holds::No,
            },
        );
    }
    if let Some(churn) = ratio(1, (list, 1), (array, 1)) {
        claim(
            "the free list dominates in churn",
            format!("{}, whose own numbers for set 1 say 0.44 against 0.39 ms of the packed array", source()),
            format!("{churn:.2} times the packed array's time"),
            yes(churn < 1.0),
        );
    }
    // Each of them: that one design walks well and another one churns well meets no aim.
    let both = |a: bool, b: bool| match (a, b) {
        (true, true) => Holds::Yes,
        (false, false) => Holds::No,
        _ => Holds::Partly,
    };
    for (set, walked, most) in [(1, "5 %", 1.5), (2, "95 %", 1.0)] {
        if let (Some(bits), Some(off), Some(on)) = (
            ratio(set, (live, 2), (array, 2)),
            ratio(set, (slab, 2), (array, 2)),
            ratio(set, (magazines, 2), (array, 2)),
        ) {
            claim(
                &format!(
                    "objects that never move, {walked} of the places in use, are walked in at most {most:.1} times a packed array's time"
                ),
                "this project's aim".into(),
                format!("{off:.2} times in slabs, {on:.2} with magazines, {bits:.2} in a pool with a bitmap"),
                both(off <= most, on <= most),
            );
        }
    }
    if let (Some(off), Some(on), Some(shared)) =
        (ratio(1, (slab, 1), (list, 1)), ratio(1, (magazines, 1), (list, 1)), ratio(1, (boxes, 1), (list, 1)))
    {
        claim(
            "slabs churn within one and a half times a free list",
            "this project's aim".into(),
            format!(
                "{shared:.2} times in boxes of an object cache, {on:.2} in a hive, {off:.2} without magazines"
            ),
            both(shared <= 1.5, on <= 1.5),
        );
    }
}
