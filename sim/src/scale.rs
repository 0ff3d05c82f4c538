//! The command `uslab scale`: simulates designs on 1 to 1,024 CPUs in virtual time.

mod picture;

use crate::output::{Progress, table, text};
use crate::web;
use serde::Serialize;
use std::fmt::{self, Write as _};
use std::path::Path;
use uslab_engine::clock::{ClockError, Outcome, Profile, Workload, run, run_stream};
use uslab_engine::designs::{PolicyVisitor, Spec};
use uslab_engine::{Pages, Policy, Stream};

/// The template of the web page with curves, built from `sim/web` by `.ci/web --write`.
const TEMPLATE: &str = include_str!("../web/built/scale.html");
/// The largest number of simulated CPUs.
pub const MAX_CPUS: u32 = 1024;

/// The operations of the simulated CPUs: generated workloads, or a recorded trace.
#[derive(Debug)]
pub enum Work {
    /// Generated workloads.
    Made {
        /// The numbers of CPUs for which to run the simulation.
        cpus: Vec<u32>,
        /// The workloads to generate, each of which gives one curve per design.
        workloads: Vec<Workload>,
        /// The size of an object in bytes.
        size: u32,
        /// The number of operations that each CPU runs.
        operations: u64,
        /// The seed of random decisions.
        seed: u64,
    },
    /// A recorded trace without its idle times, as one stream for each number of CPUs; see
    /// [`Stream::with_cpus`].
    Trace(Vec<Stream>),
}

/// The options of a `scale` experiment.
#[derive(Debug)]
pub struct Options<P: Policy> {
    /// The operations that the CPUs run.
    pub work: Work,
    /// The designs that serve the operations.
    pub designs: Vec<Spec<P>>,
    /// The prices of the simulated machine.
    pub profile: Profile,
    /// `true` to run each point twice more: with all prices at the upper and at the lower end of their
    /// spreads.
    pub bounds: bool,
}

/// The report of a `scale` experiment.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ScaleReport {
    /// The prices of the simulated machine.
    #[cfg_attr(test, ts(type = "Profile"))]
    pub profile: Profile,
    /// The size of an object in bytes; absent for a trace, whose objects have recorded sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub size: Option<u32>,
    /// The number of operations of each CPU; absent for a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub operations_per_cpu: Option<u64>,
    /// The seed of random decisions; absent for a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub seed: Option<u64>,
    /// One curve for each pair of workload and design.
    pub curves: Vec<Curve>,
}

/// The results of a design under a workload, for each number of CPUs.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Curve {
    /// The workload, or the trace.
    pub workload: String,
    /// The design, with its options.
    pub design: String,
    /// The outcome of the run on each number of CPUs.
    #[cfg_attr(test, ts(type = "Array<Outcome>"))]
    pub points: Vec<Outcome>,
    /// The operations per microsecond at each point, with all prices at the upper or at the lower end of their spread;
    /// empty if these runs were not requested.
    pub bounds: Vec<[f64; 2]>,
}

/// The reason why a `scale` experiment failed.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    /// Two designs had the same results at every point.
    #[error(
        "{0} and {1} have equal results at every point; expected designs that differ for these workloads"
    )]
    Equal(String, String),
    /// A number of CPUs cannot be simulated.
    #[error("{0} CPUs cannot be simulated")]
    Machine(u32, #[source] uslab_engine::MachineError),
    /// The simulation of a design failed.
    #[error("{design} on {cpus} CPUs")]
    Run {
        /// The name of the failed design.
        design: String,
        /// The number of CPUs of the failed run.
        cpus: u32,
        /// The error of the simulated clock.
        #[source]
        error: ClockError,
    },
}

/// Parses a list of CPU counts and ranges; the range `1..8` means 1, 2, 4 and 8.
///
/// # Errors
/// Fails if a part is invalid; the error names the part and the accepted values.
pub fn parse_cpu_counts(text: &str) -> Result<Vec<u32>, String> {
    let wrong = || {
        format!(
            "`{text}`: expected numbers from 1 to {MAX_CPUS}, or ranges FIRST..LAST that double, separated by commas"
        )
    };
    let number = |text: &str| text.parse().ok().filter(|n| (1..=MAX_CPUS).contains(n)).ok_or_else(wrong);
    let mut counts: Vec<u32> = vec![];
    for part in text.split(',') {
        match part.split_once("..") {
            None => counts.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(wrong());
                }
                counts.extend(std::iter::successors(Some(first), |n| Some(n * 2)).take_while(|n| *n < last));
                counts.push(last);
            }
        }
    }
    counts.sort_unstable();
    counts.dedup();
    Ok(counts)
}

/// Finds a profile of prices by name, or reads it from a file.
///
/// # Errors
/// Fails if there is no such profile or file; the error names the accepted values.
pub fn profile(name: &str) -> anyhow::Result<Profile> {
    if let Some(profile) = Profile::built_in().find(|profile| profile.name == name) {
        return Ok(profile);
    }
    let path = Path::new(name);
    if !path.exists() {
        let known: Vec<_> = Profile::built_in().map(|profile| profile.name).collect();
        anyhow::bail!(
            "--profile {name}: expected {} or a file that `uslab calibrate` or `uslab validate` wrote",
            known.join(", ")
        );
    }
    let parse = || {
        let text = std::fs::read_to_string(path)?;
        // A report of `uslab validate` contains a profile.
        let report = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
        Ok::<_, anyhow::Error>(Profile::parse(&report.get("profile").map_or(text, ToString::to_string))?)
    };
    parse().map_err(|error| error.context(format!("--profile {name}")))
}

/// The workload of one simulated run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Point<'a> {
    /// A generated workload.
    Made { workload: &'a Workload, cpus: u32, size: u32, operations: u64, seed: u64 },
    /// A recorded trace.
    Trace(&'a Stream),
}

/// A run of one design on a number of CPUs.
struct Run<'a> {
    point: Point<'a>,
    profile: &'a Profile,
    pages: &'a Pages,
}

impl PolicyVisitor for Run<'_> {
    type Out = Result<Outcome, ClockError>;

    fn visit<P: Policy>(self, knobs: P::Knobs) -> Self::Out {
        let Self { point, profile, pages } = self;
        match point {
            Point::Made { workload, size, operations, seed, .. } => {
                run::<P>(pages, knobs, workload, profile, size, operations, seed)
            }
            Point::Trace(stream) => run_stream::<P>(pages, knobs, stream, profile),
        }
    }
}

/// Runs one design once. Repeated runs with the same options give bit-identical outcomes.
///
/// # Errors
/// Returns a [`ScaleError`].
pub(crate) fn point<P: Policy>(
    design: &Spec<P>,
    point: Point<'_>,
    profile: &Profile,
) -> Result<Outcome, ScaleError> {
    let cpus = match point {
        Point::Made { cpus, .. } => cpus,
        Point::Trace(stream) => stream.cpus,
    };
    let wrong = |error| ScaleError::Run { design: design.to_string(), cpus, error };
    let pages = Pages::new(cpus).map_err(|error| ScaleError::Machine(cpus, error))?;
    let design = match point {
        Point::Trace(stream) => &design.as_traced(stream).map_err(|error| wrong(error.into()))?,
        Point::Made { .. } => design,
    };
    let outcome =
        design.policy(Run { point, profile, pages: &pages }).map_err(|error| wrong(error.into()))?;
    outcome.map_err(wrong)
}

/// Runs every design under every workload, or on the trace, with every number of CPUs.
///
/// # Errors
/// Returns a [`ScaleError`].
pub fn scale<P: Policy>(options: &Options<P>, progress: &Progress) -> Result<ScaleReport, ScaleError> {
    let Options { work, designs, profile, bounds: with_bounds } = options;
    // The workloads by name, each on every number of CPUs.
    let works: Vec<(String, Vec<Point<'_>>)> = match work {
        Work::Made { cpus, workloads, size, operations, seed } => {
            let points = |workload| {
                let made =
                    |&cpus| Point::Made { workload, cpus, size: *size, operations: *operations, seed: *seed };
                cpus.iter().map(made).collect()
            };
            workloads.iter().map(|workload| (workload.to_string(), points(workload))).collect()
        }
        Work::Trace(streams) => {
            let title = streams.first().map(|stream| stream.title.clone());
            vec![(title.unwrap_or_default(), streams.iter().map(Point::Trace).collect())]
        }
    };
    let ends = [1, 0].map(|end| profile.with_prices_at_end(end));
    let ends = if *with_bounds { &ends[..] } else { &[] };
    let runs = works.iter().map(|(_, points)| points.len()).sum::<usize>() * designs.len();
    let stage = progress.stage("simulating", runs as u64);
    let mut curves = Vec::new();
    let mut done = 0;
    for (workload, on) in &works {
        for design in designs {
            let (mut points, mut bounds) = (Vec::with_capacity(on.len()), Vec::with_capacity(on.len()));
            for &at in on {
                let outcome = point(design, at, profile)?;
                if let [slow, fast] = ends {
                    let (slow, fast) = (point(design, at, slow)?, point(design, at, fast)?);
                    // The order in which CPUs wait changes with prices, so a slower machine may have a better order.
                    let own = outcome.operations_per_us;
                    bounds.push([slow.operations_per_us.min(own), fast.operations_per_us.max(own)]);
                }
                points.push(outcome);
                done += 1;
                stage.at(done);
            }
            curves.push(Curve { workload: workload.clone(), design: design.to_string(), points, bounds });
        }
    }
    refuse_equal_results(designs, &curves)?;
    let (size, operations_per_cpu, seed) = match *work {
        Work::Made { size, operations, seed, .. } => (Some(size), Some(operations), Some(seed)),
        Work::Trace(_) => (None, None, None),
    };
    Ok(ScaleReport { profile: profile.clone(), size, operations_per_cpu, seed, curves })
}

/// Returns an error if two designs had the same results at every point, because comparing them shows nothing.
fn refuse_equal_results<P: Policy>(designs: &[Spec<P>], curves: &[Curve]) -> Result<(), ScaleError> {
    let of = |number: usize| curves.iter().skip(number).step_by(designs.len()).map(|curve| &curve.points);
    for (second, design) in designs.iter().enumerate() {
        if let Some(first) = (0..second).find(|first| of(*first).eq(of(second))) {
            return Err(ScaleError::Equal(designs[first].to_string(), design.to_string()));
        }
    }
    Ok(())
}

impl ScaleReport {
    /// Returns `true` if the profile was compared with measurements on the given number of CPUs.
    fn is_validated(&self, at: &Outcome) -> bool {
        at.cpus <= self.profile.validated_cpus
    }

    /// Returns a web page with the curves.
    ///
    /// # Errors
    /// Never fails in practice, because a report is always valid JSON.
    pub fn page(&self) -> anyhow::Result<String> {
        Ok(web::page(TEMPLATE, &[("{report}", &web::json(self)?)]))
    }

    /// Returns the points as CSV, one line per point.
    pub fn csv(&self) -> String {
        let mut csv = "workload,design,cpus,validated,operations,ns,operations_per_us,least_per_us,most_per_us,waiting,lines_per_operation,depot_contended,\
                       lists_contended,zone_contended,slabs,container\n"
            .to_owned();
        // Names of workloads may be paths.
        let plain = |name: &str| name.replace([',', '"', '\n'], "_");
        for curve in &self.curves {
            for (at, [least, most]) in curve.points.iter().zip(&curve.bounds) {
                let _ = writeln!(
                    csv,
                    "{},{},{},{},{},{:.0},{:.3},{least:.3},{most:.3},{:.4},{:.4},{},{},{},{},{}",
                    plain(&curve.workload),
                    plain(&curve.design),
                    at.cpus,
                    self.is_validated(at),
                    at.operations,
                    at.ns,
                    at.operations_per_us,
                    at.waiting,
                    at.lines_per_operation,
                    at.depot.contended,
                    at.lists.contended,
                    at.zone.contended,
                    at.slabs,
                    at.container
                );
            }
        }
        csv
    }
}

impl fmt::Display for ScaleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Profile { name, validated_cpus, .. } = &self.profile;
        match (self.operations_per_cpu, self.size, self.seed) {
            (Some(operations), Some(size), Some(seed)) => writeln!(
                f,
                "Predicted from the costs of profile {name}: each CPU runs {operations} operations on objects of {size} bytes; seed {seed}."
            )?,
            _ => writeln!(
                f,
                "Predicted from the costs of profile {name}: each CPU runs its operations of the trace without pauses. Pages outside caches are omitted."
            )?,
        }
        match validated_cpus {
            0 => writeln!(f, "All numbers are simulated: no machine was measured for this profile.")?,
            n => writeln!(
                f,
                "Up to {n} CPUs, marked with *, the profile was compared with measurements; for more CPUs, all numbers are simulated."
            )?,
        }
        let mut workloads: Vec<_> = self.curves.iter().map(|curve| &curve.workload).collect();
        workloads.dedup();
        for workload in workloads {
            let curves: Vec<_> = self.curves.iter().filter(|curve| curve.workload == *workload).collect();
            let most = curves
                .iter()
                .flat_map(|curve| &curve.points)
                .map(|at| at.operations_per_us)
                .fold(0.0, f64::max);
            writeln!(f, "\n{workload}")?;
            let mut rows = table(&[
                "design",
                "CPUs",
                "operations/µs",
                "by the prices' spreads",
                "speed-up",
                "waiting",
                "lines/operation",
                "slabs",
            ]);
            let mut bars = vec![String::new()];
            for curve in curves {
                let first = curve.points.first().map_or(1.0, |at| at.operations_per_us);
                for (at, [slow, fast]) in curve.points.iter().zip(&curve.bounds) {
                    rows.add_row([
                        curve.design.clone(),
                        format!("{}{}", if self.is_validated(at) { "*" } else { "" }, at.cpus),
                        format!("{:.1}", at.operations_per_us),
                        format!("{slow:.1} to {fast:.1}"),
                        format!("{:.2}", at.operations_per_us / first),
                        format!("{:.1} %", 100.0 * at.waiting),
                        format!("{:.3}", at.lines_per_operation),
                        at.slabs.to_string(),
                        if at.container == 0 { String::new() } else { at.container.to_string() },
                    ]);
                    bars.push(bar(at.operations_per_us / most));
                }
            }
            for (row, bar) in text(&rows).lines().zip(bars) {
                writeln!(f, "{}", format!("{row}  {bar}").trim_end())?;
            }
        }
        Ok(())
    }
}

/// Draws a fraction as a horizontal bar of at most 30 characters.
fn bar(part: f64) -> String {
    "█".repeat((part * 30.0).round().max(0.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_web_page_is_self_contained() {
        let profile = profile("vm2").unwrap();
        let curve = Curve {
            workload: "</script>".to_owned(),
            design: "a {report}".to_owned(),
            points: vec![],
            bounds: vec![],
        };
        let report =
            ScaleReport { profile, size: None, operations_per_cpu: None, seed: None, curves: vec![curve] };
        let page = report.page().unwrap();
        web::check(&page);
        let (_, rest) = page.split_once("<script type=\"application/json\" id=\"report\">").unwrap();
        let (json, _) = rest.split_once("</script>").unwrap();
        let found: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(found, serde_json::to_value(&report).unwrap());
    }

    #[test]
    fn cpu_count_range_expands_to_doublings() {
        assert_eq!(parse_cpu_counts("1..8"), Ok(vec![1, 2, 4, 8]));
        assert_eq!(parse_cpu_counts("1..6,3"), Ok(vec![1, 2, 3, 4, 6]));
        assert_eq!(parse_cpu_counts("1024"), Ok(vec![1024]));
        for wrong in ["", "0", "1025", "8..1", "1..", "two"] {
            assert!(
                parse_cpu_counts(wrong).unwrap_err().starts_with(&format!("`{wrong}`: expected numbers")),
                "{wrong}"
            );
        }
    }
}
