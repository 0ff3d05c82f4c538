//! The options of `uslab scale`.

use crate::output::command::Outcome;
use crate::output::{Form, Place, Progress, json_text, say, write_all};
use crate::{replay, scale};
use anyhow::Context;
use std::path::PathBuf;
use uslab_engine::Policy;
use uslab_engine::clock::{self, Profile};

/// Simulate a design on 1 to 1,024 CPUs, in virtual time: throughput, waits for locks, transfers of cache lines.
///
/// Every CPU has a clock. The simulation always runs the next operation on the CPU whose clock is furthest
/// behind. This CPU's clock advances by the operation's price on the profile's machine. Equal seeds give
/// equal numbers.
///
/// For design `uslab-model` on 2, 4 and 8 CPUs, the number of cache line transfers agrees within 10 % with a
/// MESI simulation of the shipping code's loads and stores. For other designs and more CPUs, the number of
/// transfers is only simulated and was not checked.
#[derive(Debug, clap::Args)]
#[command(after_help = scale_help())]
pub(super) struct Args {
    /// Use a recorded trace instead of generated workloads; `-` is standard input. The accepted formats are
    /// the formats of `uslab replay`. Without FILE, the bundled trace is used. Each CPU runs its object
    /// operations of the trace without pauses. A CPU that frees another CPU's object first waits for that
    /// object's allocation.
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["workload", "size", "ops", "think", "seed", "svg", "html"])]
    trace: Option<Option<PathBuf>>,
    /// CPU counts: numbers, or ranges FIRST..LAST in which each count is twice the previous one, separated by
    /// commas. Default: 1..64; for a trace, the number of CPUs in the trace. Events of the trace's CPU n run
    /// on CPU n modulo the simulated number of CPUs.
    #[arg(long, value_name = "COUNTS", value_parser = Counts::parse)]
    cpus: Option<Counts>,
    /// Workload of each CPU.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "bursts")]
    workload: Vec<clock::Workload>,
    /// Designs to simulate, with options as `uslab replay --help` lists them.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "bonwick94,magazines01")]
    design: Vec<String>,
    /// Prices: the name of a profile, or a file that `uslab calibrate` or `uslab validate` wrote.
    #[arg(long, value_name = "PROFILE", default_value = "vm2")]
    profile: String,
    /// Object size in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=8192))]
    size: u32,
    /// Operations of each CPU.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    ops: u64,
    /// Nanoseconds of work outside the allocator that a CPU does after each operation.
    #[arg(long, value_name = "NS", default_value_t = 0)]
    think: u32,
    /// Seed of the random decisions.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the points as CSV to FILE, or to standard output if FILE is `-`.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the curves as an SVG picture to FILE, or to standard output if FILE is `-`.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a web page with the curves of every number in the report: FILE, or `-` for standard output. The page is
    /// one file for any browser and needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The CPU counts of the option `--cpus`.
#[derive(Clone, Debug)]
struct Counts(Vec<u32>);

impl Counts {
    fn parse(text: &str) -> Result<Self, String> {
        scale::parse_cpu_counts(text).map(Self)
    }
}

fn scale_help() -> String {
    let workloads = clock::Workload::ALL.map(|(name, what)| format!("  {name:12} {what}")).join("\n");
    let profiles = Profile::built_in().map(|profile| profile.name).collect::<Vec<_>>().join(", ");
    format!(
        "\
Workloads:
{workloads}

Profiles: {profiles}

Examples:
  uslab scale
  uslab scale --cpus 1..1024 --workload bursts,remote=20 --design slub,slab,magazines01
  uslab scale --workload pairs --svg curves.svg
  uslab scale --cpus 1..1024 --workload pairs,remote=20 --design slub,sheaves,uslab-model --html curves.html
  uslab scale --trace trace.txt.zst --design bonwick94,slub,uslab-model
  uslab scale --design slub,slub:cpu_partial=0 --profile milan2s --csv curves.csv"
    )
}

pub(super) fn run<P: Policy>(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let thinking = |workload: &clock::Workload| workload.clone().thinking(args.think.into());
    let designs =
        args.design.iter().map(|text| text.parse()).collect::<Result<_, _>>().context("--design")?;
    let profile = scale::profile(&args.profile)?;
    let open = |form, path: &Option<PathBuf>| path.as_deref().map(|path| Place::open(form, path)).transpose();
    let (csv, svg, html) =
        (open(Form::Curves, &args.csv)?, open(Form::Svg, &args.svg)?, open(Form::Html, &args.html)?);
    Place::check_distinct([&json, &csv, &svg, &html])?;
    let to_stdout = [&json, &csv, &svg, &html].into_iter().flatten().any(Place::is_stdout);
    let progress = Progress::new();
    let counts = args.cpus.as_ref().map(|Counts(counts)| counts.clone());
    let work = match &args.trace {
        Some(path) => {
            let stream = replay::read_stream(path.as_deref(), &replay::Options::default(), &progress)?;
            let on = counts
                .unwrap_or_else(|| vec![stream.cpus])
                .into_iter()
                .map(|cpus| stream.clone().with_cpus(cpus));
            scale::Work::Trace(on.collect::<Result<_, _>>()?)
        }
        None => scale::Work::Made {
            cpus: counts.unwrap_or_else(|| vec![1, 2, 4, 8, 16, 32, 64]),
            workloads: args.workload.iter().map(thinking).collect(),
            size: args.size,
            operations: args.ops,
            seed: args.seed,
        },
    };
    let report = scale::scale(&scale::Options::<P> { work, designs, profile, bounds: true }, &progress)?;
    let json = json.map(|place| json_text(&report).map(|text| (place, text))).transpose()?;
    let csv = csv.map(|place| (place, report.csv()));
    let svg = svg.map(|place| (place, report.svg()));
    let html = html.map(|place| report.page().map(|page| (place, page))).transpose()?;
    write_all(json.into_iter().chain(csv).chain(svg).chain(html))?;
    if !to_stdout {
        say(&report.to_string())?;
    }
    Ok(Outcome::Done)
}
