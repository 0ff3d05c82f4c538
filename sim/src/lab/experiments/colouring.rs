//! What slab colour was for: the hot first words of objects, all in the same few sets of the cache (Bonwick, "The Slab
//! Allocator", 1994, section 4).

use super::{Context, bounded};
use crate::lab::clock;
use crate::lab::findings::{Axis, Bars, Claim, Findings, Holds, Table, Value};
use anyhow::Context as _;
use clap::Args;
use rand::seq::SliceRandom;
use std::hint::black_box;
use uslab::{Geometry, OrderRule};

/// Does it help to begin each slab's objects at another offset?
///
/// A cache of objects is walked, the first word of each, as programs do that keep their hot fields in front. Which sets of
/// a processor's first cache they fall in is computed; a walk that fills some sets and leaves others empty misses. With
/// colour, a slab's objects begin a line later than those of the slab before, as far as the slab's slack allows.
#[derive(Debug, Args)]
pub struct Colouring {
    /// Bytes of an object, separated by commas.
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
          default_value = "192,320,512,704,1000,1344,2048,2560", value_parser = clap::value_parser!(u32).range(64..=8192))]
    sizes: Vec<u32>,
    /// Ways of the cache: lines that a set holds.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    ways: u32,
    /// Sets of the cache, a power of two.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = sets)]
    sets: u32,
}

fn sets(text: &str) -> Result<u32, String> {
    let sets = text.parse().ok().filter(|n: &u32| n.is_power_of_two() && *n <= 1 << 16);
    sets.ok_or_else(|| "expected a power of two up to 65536".to_owned())
}

const LINE: usize = 64;
/// Bytes of all objects, at most.
const MOST: u64 = 1 << 30;

/// A cache of lines with sets and ways that forgets the line used longest ago.
struct Lines {
    sets: Vec<Vec<usize>>,
    ways: usize,
    misses: u64,
}

impl Lines {
    fn new(sets: u32, ways: u32) -> Self {
        Self { sets: vec![Vec::new(); sets as usize], ways: ways as usize, misses: 0 }
    }
    fn touch(&mut self, address: usize) {
        let line = address / LINE;
        let count = self.sets.len();
        let set = &mut self.sets[line % count];
        match set.iter().position(|l| *l == line) {
            Some(at) => {
                set.remove(at);
            }
            None => {
                self.misses += 1;
                if set.len() == self.ways {
                    set.remove(0);
                }
            }
        }
        set.push(line);
    }
    fn used(&self) -> usize {
        self.sets.iter().filter(|set| !set.is_empty()).count()
    }
}

/// How a cache's slabs lie: Linux's geometry, without colour or with all that its slack allows.
struct Slabs {
    bytes: usize,
    object: usize,
    objects: usize,
    colours: usize,
}

impl Slabs {
    fn new(size: usize, coloured: bool) -> anyhow::Result<Self> {
        let geometry = Geometry::new(size, 8, &OrderRule::for_cpus(4)).context("--sizes")?;
        let (object, objects, slack) = (geometry.stride(), geometry.objects(), geometry.waste());
        let colours = if coloured { slack / LINE + 1 } else { 1 };
        Ok(Self { bytes: objects * object + slack, object, objects, colours })
    }
    /// Where the first `n` objects begin.
    fn addresses(&self, n: usize) -> Vec<usize> {
        let slab = |i: usize| i * self.bytes + i % self.colours * LINE;
        (0..n).map(|i| slab(i / self.objects) + i % self.objects * self.object).collect()
    }
}

/// Misses a thousand touches, in a walk that repeats; and sets used.
fn missed(addresses: &[usize], sets: u32, ways: u32) -> (f64, usize) {
    let mut cache = Lines::new(sets, ways);
    addresses.iter().for_each(|a| cache.touch(*a));
    let cold = cache.misses;
    for _ in 0..4 {
        addresses.iter().for_each(|a| cache.touch(*a));
    }
    ((cache.misses - cold) as f64 * 1000.0 / (4 * addresses.len()) as f64, cache.used())
}

impl Colouring {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "does it help to begin each slab's objects at another offset?";
        let mut findings = Findings::new("colouring", question, context.seed);
        // As many lines as three quarters of the cache hold: with even use of the sets none would miss.
        let objects = (self.sets * self.ways * 3 / 4).max(1) as usize;
        let largest = self.sizes.iter().copied().max().unwrap_or_default();
        let options = format!("--sets {} --ways {} --sizes {largest}", self.sets, self.ways);
        bounded(
            &options,
            objects as u64 * u64::from(largest),
            MOST,
            "bytes of objects, three quarters of the lines",
        )?;
        let mut table = Table::new(
            format!(
                "First words of {objects} objects, walked again and again; {} sets of {} lines of {LINE} bytes",
                self.sets, self.ways
            ),
            &[
                "object, bytes",
                "slab, bytes",
                "colours",
                "sets used",
                "sets, coloured",
                "misses in 1000",
                "misses, coloured",
                "~ns a touch",
                "~ns, coloured",
            ],
        );
        let (mut better, mut worse, mut slackless) = (0, 0, 0);
        let mut bars = Vec::new();
        let stage = context.progress.stage("colouring", self.sizes.len() as u64);
        for (i, size) in self.sizes.iter().enumerate() {
            let sides = [Slabs::new(*size as usize, false)?, Slabs::new(*size as usize, true)?];
            let (bytes, colours) = (sides[0].bytes, sides[1].colours);
            // Not one after the other: processors foresee equal steps.
            let mut order: Vec<usize> = (0..objects).collect();
            order.shuffle(&mut context.rng());
            let addresses = sides.map(|side| {
                let addresses = side.addresses(objects);
                order.iter().map(|i| addresses[*i]).collect::<Vec<_>>()
            });
            let counts = [0, 1].map(|side| missed(&addresses[side], self.sets, self.ways));
            let times =
                if context.exact { [0.0; 2] } else { times(context, &addresses).context(options.clone())? };
            slackless += usize::from(colours == 1);
            better += usize::from(counts[1].0 < counts[0].0);
            worse += usize::from(counts[1].0 > counts[0].0);
            bars.push((format!("{size} bytes"), counts[0].0));
            bars.push((format!("{size} bytes, coloured"), counts[1].0));
            table.row(vec![
                u64::from(*size).into(),
                bytes.into(),
                colours.into(),
                counts[0].1.into(),
                counts[1].1.into(),
                Value::Number(counts[0].0, 0),
                Value::Number(counts[1].0, 0),
                times[0].into(),
                times[1].into(),
            ]);
            stage.at(i as u64 + 1);
        }
        drop(stage);
        findings.table(table);
        findings.bars(Bars::exact(
            "Misses by the size of objects",
            Axis::linear("misses in 1000 touches"),
            bars,
        ));
        let all = self.sizes.len();
        findings.claim(Claim {
            says: "colour spreads the first words of objects over the cache's sets".into(),
            source: "Bonwick 1994".into(),
            found: format!(
                "fewer misses for {better} of {all} sizes, more for {worse}; {slackless} have no slack to colour with"
            ),
            holds: match (better, worse) {
                (0, _) => Holds::No,
                (_, 0) if better == all => Holds::Yes,
                _ => Holds::Partly,
            },
            measured: false,
        });
        findings.note(
            "Linux left colour behind with SLAB (removed in 6.8), and the slabs here have none. Powers of two, which fall into \
             the fewest sets, have no slack to colour with.",
        );
        Ok(findings)
    }
}

/// Nanoseconds a touch, in memory of the same layouts. The next place depends on what was read, so that no touch overlaps
/// another.
fn times(context: &Context<'_>, addresses: &[Vec<usize>; 2]) -> anyhow::Result<[f64; 2]> {
    let memory = |addresses: &Vec<usize>| -> anyhow::Result<_> {
        let bytes = addresses.iter().max().map_or(0, |last| last + LINE) + 4096;
        let mut words = Vec::new();
        words
            .try_reserve_exact(bytes / 8)
            .with_context(|| format!("no memory for {bytes} bytes of objects"))?;
        words.resize(bytes / 8, 0_u64);
        // Where the first page begins.
        let first = words.as_ptr().addr().next_multiple_of(4096) - words.as_ptr().addr();
        let word = |i: usize| (first + addresses[i % addresses.len()]) / 8;
        for i in 0..addresses.len() {
            words[word(i)] = word(i + 1) as u64;
        }
        let start = word(0);
        Ok((words, start))
    };
    let mut sides = [memory(&addresses[0])?, memory(&addresses[1])?];
    let touches = context.scale(2_000_000);
    let medians = clock::medians(context.rounds(), 2, |side| {
        let (words, start) = &mut sides[side];
        let mut at = *start;
        let time = clock::nanoseconds(|| {
            for _ in 0..touches {
                at = words[at] as usize;
            }
        });
        black_box(at);
        [time / touches as f64]
    });
    Ok([medians[0][0], medians[1][0]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_forgets_the_line_used_longest_ago() {
        let mut lines = Lines::new(2, 2);
        for address in [0, 128, 0, 256, 0, 128, 64] {
            lines.touch(address);
        }
        // 0, 128 and 256 share a set of two: 256 drives 128 out, which then drives 256 out.
        assert_eq!((lines.misses, lines.used()), (5, 2));
    }

    #[test]
    fn objects_of_a_page_without_slack_have_no_colour() {
        let slabs = Slabs::new(2048, true).unwrap();
        assert_eq!((slabs.colours, slabs.bytes % 4096), (1, 0));
        let coloured = Slabs::new(1344, true).unwrap();
        assert!(coloured.colours > 1);
        let addresses = coloured.addresses(2 * coloured.objects);
        assert_eq!(addresses[coloured.objects] - coloured.bytes, LINE);
        let last = coloured.colours * coloured.objects;
        let all = coloured.addresses(last);
        assert!(
            all[last - 1] % coloured.bytes + coloured.object <= coloured.bytes,
            "the last colour still fits"
        );
    }
}
