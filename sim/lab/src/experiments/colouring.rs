//! The experiment on slab colour, which varies the offset of a slab's first object. Without colour, the hot first words
//! of objects share a few sets of the cache (Bonwick, "The Slab Allocator", 1994, section 4).

use super::{Context, check_bound};
use crate::findings::clock::{self, Spread};
use crate::findings::machine::Cache;
use crate::findings::{Axis, Bars, Claim, Findings, Holds, Table, Value};
use anyhow::Context as _;
use clap::Args;
use rand::seq::SliceRandom;
use std::hint::black_box;
use uslab::{Geometry, OrderRule};

/// Does it help to begin the objects of each slab at a different offset?
///
/// The experiment's loop reads the first word of each object in a cache, like programs whose hot fields are at the
/// front. The experiment computes to which sets of the first-level cache these first words belong. If the loop
/// overfills some sets and leaves others empty, it has cache misses. With colour, the objects of each slab begin one
/// line later than in the previous slab, until the slab's unused space is used up. The model uses the geometry of this
/// machine's cache. The walk is also timed, and the table shows if its times agree with the modelled misses.
#[derive(Debug, Args)]
pub struct Colouring {
    /// Sizes of objects in bytes, separated by commas.
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
          default_value = "192,320,512,704,1000,1344,2048,2560", value_parser = clap::value_parser!(u32).range(64..=8192))]
    sizes: Vec<u32>,
    /// Ways of the cache: lines in a set. Default: the number that this machine reports; 8 with --exact or --sets, or
    /// if the machine reports no number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    ways: Option<u32>,
    /// Sets of the cache, a power of two. Default: the number that this machine reports; 64 with --exact or --ways.
    #[arg(long, value_name = "N", value_parser = sets)]
    sets: Option<u32>,
}

fn sets(text: &str) -> Result<u32, String> {
    let sets = text.parse().ok().filter(|n: &u32| n.is_power_of_two() && *n <= 1 << 16);
    sets.ok_or_else(|| "expected a power of two up to 65536".to_owned())
}

/// A common cache geometry, which is used for counts that are equal on any machine.
const COMMON_CACHE: Cache = Cache { sets: 64, ways: 8, line: 64 };
/// The smallest difference in misses per thousand accesses that counts as an effect.
const MISSES: f64 = 50.0;
/// The smallest difference in time that counts as an effect, as a fraction.
const MIN_TIME_EFFECT: f64 = 0.1;
/// The largest number of bytes that all objects together may have.
const MAX_BYTES: u64 = 1 << 30;

/// A set-associative cache that evicts the least recently used line.
struct Lines {
    sets: Vec<Vec<usize>>,
    ways: usize,
    line: usize,
    misses: u64,
}

impl Lines {
    fn new(Cache { sets, ways, line }: Cache) -> Self {
        Self { sets: vec![Vec::new(); sets as usize], ways: ways as usize, line: line as usize, misses: 0 }
    }
    fn touch(&mut self, address: usize) {
        let line = address / self.line;
        let count = self.sets.len();
        let set = &mut self.sets[line % count];
        match set.iter().position(|l| *l == line) {
            Some(byte_address) => {
                set.remove(byte_address);
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

/// The layout of a cache's slabs. The slabs have Linux's geometry; they have either no colour, or all colours that fit
/// into the unused space.
struct Slabs {
    bytes: usize,
    object: usize,
    objects: usize,
    colours: usize,
    /// The distance in bytes between two colours, which is the size of a cache line.
    line: usize,
}

impl Slabs {
    fn new(size: usize, line: usize, coloured: bool) -> anyhow::Result<Self> {
        let geometry = Geometry::new(size, 8, &OrderRule::for_cpus(4)).context("--sizes")?;
        let (object, objects, slack) = (geometry.stride(), geometry.objects(), geometry.waste());
        let colours = if coloured { slack / line + 1 } else { 1 };
        Ok(Self { bytes: objects * object + slack, object, objects, colours, line })
    }
    /// Returns the addresses of the first `n` objects.
    fn addresses(&self, n: usize) -> Vec<usize> {
        let slab = |i: usize| i * self.bytes + i % self.colours * self.line;
        (0..n).map(|i| slab(i / self.objects) + i % self.objects * self.object).collect()
    }
}

/// Returns the misses per thousand accesses of a repeated loop over the objects, and the number of cache sets that the
/// loop uses.
fn simulate_misses(addresses: &[usize], cache: Cache) -> (f64, usize) {
    let mut cache = Lines::new(cache);
    addresses.iter().for_each(|a| cache.touch(*a));
    let cold_misses = cache.misses;
    for _ in 0..4 {
        addresses.iter().for_each(|a| cache.touch(*a));
    }
    ((cache.misses - cold_misses) as f64 * 1000.0 / (4 * addresses.len()) as f64, cache.used())
}

/// The effect of colour on a walk, judged by the model's misses or by the measured times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Better,
    None,
    Worse,
}

impl Effect {
    fn from_misses([plain, coloured]: [f64; 2]) -> Self {
        match coloured - plain {
            d if d <= -MISSES => Self::Better,
            d if d >= MISSES => Self::Worse,
            _ => Self::None,
        }
    }
    /// Returns the effect that corresponds to the coloured walk's time, divided by the plain walk's time. Returns
    /// `None` if the measured rounds do not decide the comparison.
    fn from_time_ratio(ratio: Spread) -> Option<Self> {
        let confirmed = |holds| holds == Holds::Yes;
        match ratio {
            r if confirmed(r.at_most(1.0 - MIN_TIME_EFFECT)) => Some(Self::Better),
            r if confirmed(r.at_least(1.0 + MIN_TIME_EFFECT)) => Some(Self::Worse),
            r if confirmed(r.is_between(1.0 - MIN_TIME_EFFECT, 1.0 + MIN_TIME_EFFECT)) => Some(Self::None),
            _ => None,
        }
    }
    /// Returns the verdict on the claim that the model and the measured times agree.
    fn agrees(self, clock: Option<Self>) -> Holds {
        clock.map_or(Holds::Undecided, |clock| Holds::from_certain_result(self == clock))
    }
}

/// The source from which the model takes its cache geometry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GeometrySource {
    Given,
    Usual,
    Machines,
}

impl Colouring {
    /// Returns the cache geometry that the model uses.
    fn cache(&self, context: &Context<'_>) -> (Cache, GeometrySource) {
        match (self.sets, self.ways, context.exact) {
            (None, None, true) => (COMMON_CACHE, GeometrySource::Usual),
            (None, None, false) => match Cache::nearest() {
                Some(cache) => (cache, GeometrySource::Machines),
                None => (COMMON_CACHE, GeometrySource::Usual),
            },
            (sets, ways, _) => {
                let (sets, ways) = (sets.unwrap_or(COMMON_CACHE.sets), ways.unwrap_or(COMMON_CACHE.ways));
                (Cache { sets, ways, ..COMMON_CACHE }, GeometrySource::Given)
            }
        }
    }

    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "does it help to begin each slab's objects at another offset?";
        let mut findings = Findings::new("colouring", question, context.seed);
        let (cache, geometry_source) = self.cache(context);
        let Cache { sets, ways, line } = cache;
        // The walk uses three quarters of the cache's lines. If the walk used all sets evenly, no access would miss.
        let objects = (u64::from(sets) * u64::from(ways) * 3 / 4).max(1) as usize;
        let largest = self.sizes.iter().copied().max().unwrap_or_default();
        let options = format!("--sets {sets} --ways {ways} --sizes {largest}");
        check_bound(
            &options,
            objects as u64 * u64::from(largest),
            MAX_BYTES,
            "bytes of objects, three quarters of the lines",
        )?;
        // Figures that depend on this machine's cache are marked.
        let mark = if geometry_source == GeometrySource::Machines { "~" } else { "" };
        let column_names = ["sets used", "sets, coloured", "misses in 1000", "misses, coloured"];
        let column_names = column_names.map(|name| format!("{mark}{name}"));
        let mut columns = vec!["object, bytes", "slab, bytes", "colours"];
        columns.extend(column_names.iter().map(String::as_str));
        columns.extend(["~ns a touch", "~ns, coloured", "~coloured of plain", "~model and clock"]);
        let title = format!(
            "Repeated walks over the first words of {objects} objects; {sets} sets of {ways} lines of {line} bytes, {}",
            match geometry_source {
                GeometrySource::Given => "as given by --sets and --ways",
                GeometrySource::Usual => "a common geometry of processors",
                GeometrySource::Machines => "this machine's first-level cache, as its system reports",
            }
        );
        let mut table = Table::new(title, &columns);
        let (mut fewer_misses, mut more_misses, mut slackless) = (0, 0, 0);
        let (mut bars, mut agreement) = (Vec::new(), Vec::new());
        let stage = context.progress.stage("colouring", self.sizes.len() as u64);
        for (i, size) in self.sizes.iter().enumerate() {
            let slabs = |coloured| Slabs::new(*size as usize, line as usize, coloured);
            let sources = [slabs(false)?, slabs(true)?];
            let (bytes, colours) = (sources[0].bytes, sources[1].colours);
            // The order is shuffled, because processors prefetch addresses at equal distances.
            let mut order: Vec<usize> = (0..objects).collect();
            order.shuffle(&mut context.rng());
            let addresses = sources.map(|source| {
                let addresses = source.addresses(objects);
                order.iter().map(|i| addresses[*i]).collect::<Vec<_>>()
            });
            let counts = [0, 1].map(|source_index| simulate_misses(&addresses[source_index], cache));
            let misses = counts.map(|(misses, _)| misses);
            slackless += usize::from(colours == 1);
            fewer_misses += usize::from(misses[1] < misses[0]);
            more_misses += usize::from(misses[1] > misses[0]);
            bars.push((format!("{size} bytes"), misses[0]));
            bars.push((format!("{size} bytes, coloured"), misses[1]));
            let mut row = vec![
                u64::from(*size).into(),
                bytes.into(),
                colours.into(),
                counts[0].1.into(),
                counts[1].1.into(),
                Value::Number(misses[0], 0),
                Value::Number(misses[1], 0),
            ];
            if context.exact {
                row.extend([const { Value::Nothing }; 4]);
            } else {
                let [plain, coloured, ratio] = times(context, cache, &addresses).context(options.clone())?;
                let agrees = Effect::from_misses(misses).agrees(Effect::from_time_ratio(ratio));
                let words = match agrees {
                    Holds::Yes => "agree",
                    Holds::No => "disagree",
                    _ => "undecided",
                };
                agreement.push((size, agrees));
                row.extend([plain.into(), coloured.into(), ratio.into(), words.into()]);
            }
            table.row(row);
            stage.at(i as u64 + 1);
        }
        drop(stage);
        findings.table(table);
        findings.bars(Bars {
            measured: geometry_source == GeometrySource::Machines,
            ..Bars::exact(
                "Misses of the model by the size of objects",
                Axis::linear("misses in 1000 touches"),
                bars,
            )
        });
        let all = self.sizes.len();
        findings.claim(Claim {
            says: "colour spreads the first words of objects over the cache's sets".into(),
            source: "Bonwick 1994".into(),
            found: format!(
                "in the model, colour gives fewer misses for {fewer_misses} of {all} sizes, and more for {more_misses}; {slackless} sizes have no slack for colours"
            ),
            holds: match (fewer_misses, more_misses) {
                (0, _) => Holds::No,
                (_, 0) if fewer_misses == all => Holds::Yes,
                _ => Holds::Partly,
            },
            measured: geometry_source == GeometrySource::Machines,
        });
        if !context.exact {
            disagreements(&mut findings, geometry_source, &agreement);
        }
        findings.note(
            "Linux left colour behind with SLAB (removed in 6.8), and the slabs here have none. Powers of two, which fall into \
             the fewest sets, have no slack to colour with.",
        );
        Ok(findings)
    }
}

/// Reports whether the model agrees with the times that this machine measured.
fn disagreements(findings: &mut Findings, geometry_source: GeometrySource, agreement: &[(&u32, Holds)]) {
    let sizes = |wanted_verdict| {
        let sizes =
            agreement.iter().filter(|(_, holds)| *holds == wanted_verdict).map(|(size, _)| size.to_string());
        sizes.collect::<Vec<_>>()
    };
    let list = |sizes: Vec<String>| if sizes.is_empty() { "none".to_owned() } else { sizes.join(", ") };
    let other_source = match geometry_source {
        GeometrySource::Machines => "",
        _ => "; the modelled cache may differ from this machine's cache",
    };
    findings.claim(Claim {
        says: "the model's misses predict which walk is faster".into(),
        source: "this experiment's model: it evicts the least recently used line, and ignores the levels behind the cache"
            .into(),
        found: format!(
            "the misses agree with the times on this machine for {} of {} sizes, disagree for {}, and are undecided for {}; {MISSES} misses in \
             1,000 and {:.0} % of the time count as a difference{other_source}",
            sizes(Holds::Yes).len(),
            agreement.len(),
            list(sizes(Holds::No)),
            list(sizes(Holds::Undecided)),
            MIN_TIME_EFFECT * 100.0
        ),
        holds: Holds::each(agreement.iter().map(|(_, holds)| *holds)),
        measured: true,
    });
}

/// Measures the nanoseconds per access with and without colour, and the ratio of the two times, for the model's
/// layouts. Each address depends on the value that the walk has just read, so that accesses do not overlap in time.
fn times(context: &Context<'_>, cache: Cache, addresses: &[Vec<usize>; 2]) -> anyhow::Result<[Spread; 3]> {
    // The memory is aligned to a page, and to the size of a way.
    let align = (cache.sets as usize * cache.line as usize).next_power_of_two().max(4096);
    let memory = |addresses: &Vec<usize>| -> anyhow::Result<_> {
        let bytes = addresses.iter().max().map_or(0, |last| last + cache.line as usize) + align;
        let mut words = Vec::new();
        words
            .try_reserve_exact(bytes / 8)
            .with_context(|| format!("no memory for {bytes} bytes of objects"))?;
        words.resize(bytes / 8, 0_u64);
        let first = words.as_ptr().addr().next_multiple_of(align) - words.as_ptr().addr();
        let word = |i: usize| (first + addresses[i % addresses.len()]) / 8;
        for i in 0..addresses.len() {
            words[word(i)] = word(i + 1) as u64;
        }
        let first_word = word(0);
        Ok((words, first_word))
    };
    let mut sources = [memory(&addresses[0])?, memory(&addresses[1])?];
    let touches = context.scale(2_000_000);
    let samples = clock::rounds(context.rounds(), 2, |source_index| {
        let (words, first_word) = &mut sources[source_index];
        let mut byte_address = *first_word;
        let time = clock::nanoseconds(|| {
            for _ in 0..touches {
                byte_address = words[byte_address] as usize;
            }
        });
        black_box(byte_address);
        [time / touches as f64]
    });
    Ok([samples[0].spread(0), samples[1].spread(0), samples[1].times(&samples[0], 0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_set_evicts_the_least_recently_used_line() {
        let mut lines = Lines::new(Cache { sets: 2, ways: 2, line: 64 });
        for address in [0, 128, 0, 256, 0, 128, 64] {
            lines.touch(address);
        }
        // Addresses 0, 128 and 256 share a set with two ways: 256 evicts 128, which then evicts 256.
        assert_eq!((lines.misses, lines.used()), (5, 2));
    }

    /// Regression test: the output reported cache misses although the measured times contradicted them.
    #[test]
    fn cache_model_that_contradicts_measured_times_is_flagged() {
        let time = |ratio: f64| {
            Effect::from_time_ratio(Spread::of(vec![ratio - 0.01, ratio, ratio, ratio, ratio + 0.01]))
        };
        assert_eq!([0.8, 1.0, 1.3].map(time), [Effect::Better, Effect::None, Effect::Worse].map(Some));
        assert_eq!(time(0.9), None, "an interval that contains the limit must give no effect");
        assert_eq!(Effect::from_time_ratio(Spread::of(vec![0.5])), None, "one round must give no interval");
        let clear_effect = Effect::from_misses([300.0, 20.0]);
        assert_eq!((clear_effect, Effect::from_misses([300.0, 290.0])), (Effect::Better, Effect::None));
        let verdicts = [time(0.8), time(1.0), time(1.3), None].map(|clock| clear_effect.agrees(clock));
        assert_eq!(verdicts, [Holds::Yes, Holds::No, Holds::No, Holds::Undecided]);
    }

    #[test]
    fn page_without_slack_has_one_colour() {
        let slabs = Slabs::new(2048, 64, true).unwrap();
        assert_eq!((slabs.colours, slabs.bytes % 4096), (1, 0));
        let coloured = Slabs::new(1344, 64, true).unwrap();
        assert!(coloured.colours > 1);
        let addresses = coloured.addresses(2 * coloured.objects);
        assert_eq!(addresses[coloured.objects] - coloured.bytes, 64);
        let last = coloured.colours * coloured.objects;
        let all = coloured.addresses(last);
        assert!(
            all[last - 1] % coloured.bytes + coloured.object <= coloured.bytes,
            "the last colour must fit"
        );
    }
}
