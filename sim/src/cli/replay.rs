//! The options of `uslab replay`.

use crate::output::command::Outcome;
use crate::output::{Form, Place, Progress, bytes, json_text, say, shell_quoted, write_all};
use crate::replay;
use crate::report::{CacheSort, LiveObjects};
use crate::trace::PageSize;
use anyhow::{Context, bail};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use uslab::Magazines;
use uslab_engine::Policy;
use uslab_engine::designs::{self, NoPolicy, Spec};

/// Replay a kernel memory trace: every traced allocation and free runs on the CPU that the trace names.
///
/// The shipping allocator serves the trace on simulated CPUs: object events use caches with the traced names
/// and sizes, page events use the buddy allocator. The final report has the kernel's columns, and numbers
/// that slabinfo lacks (objects used, in magazines, in the depot, free in slabs). The report compares its
/// numbers with the kernel's tables, if the trace's folder has such tables.
///
/// Record a trace with ftrace (`trace-cmd record -e kmem`, or /sys/kernel/tracing with events kmem:*) or with
/// perf (`perf record -a -e 'kmem:*'`). `uslab replay` reads the text output of trace, trace_pipe, `perf
/// script` and `trace-cmd report`. The command accepts ftrace's options record-tgid, irq-info,
/// latency-format, verbose and fields, the output of `perf script -F`, and the output of `trace-cmd report -R
/// -l -t`. If the input concatenates the texts of several CPUs, the events are sorted by time. The command
/// also replays wee_alloc's traces of a program's malloc calls (`Alloc(552),` and `Free(0),`), as kmalloc
/// calls on one CPU. From a Fleetbench distribution (lines of `SIZE, RATE, LIVE`), the command generates a
/// trace. A recording that libuslab.so made of a program (`LD_PRELOAD=libuslab.so USLAB_OPTIONS=record=FILE
/// program`) is replayed call by call, on the CPUs on which the program ran. All inputs may be plain or
/// compressed with gzip, xz or zstd. The first lines of the report name the defects of a trace: missing
/// events, a truncated last line, addresses that do not show their pages. (Kernels hash the addresses that
/// they print, unless they are booted with no_hash_pointers; KASLR alone is no obstacle.)
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub(super) struct Args {
    /// The trace: a file, or `-` for standard input. Default: the bundled trace.
    trace: Option<PathBuf>,
    /// Simulated CPUs, 1 to 1024. Default: the number of CPUs in the trace. Events of the trace's CPU n are
    /// replayed on CPU n modulo N. CPUs beyond the traced machine's CPUs stay idle, but a larger number of
    /// CPUs makes slabs larger.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Memory nodes, 1 to 16; each node has a contiguous range of CPUs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: u32,
    /// Objects in a magazine: `auto` (by object size), `off`, or a number from 1 to 64.
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    magazine: Magazines,
    /// Memory of the simulated machine: bytes, or with K, M, G. The simulator commits only the memory that is
    /// used.
    #[arg(long, value_name = "BYTES", default_value = "16G", value_parser = bytes)]
    limit_memory: u64,
    /// Page size of the traced machine: 4k, 16k or 64k. Default: inferred from the slabinfo in the trace's
    /// folder or from the trace's addresses, or else 4k. The simulated machine has pages of 4 KiB: a larger
    /// traced page is represented by a block of 4 KiB pages.
    #[arg(long, value_name = "SIZE")]
    page_size: Option<PageSize>,
    /// Check the conservation invariants after every N operations, at each mark and at the end.
    #[arg(long, value_name = "N")]
    snapshot_every: Option<u64>,
    /// Stop at the first free of an object whose allocation is not in the trace; the error names the line.
    #[arg(long)]
    strict: bool,
    /// Continue even if more than 5 % of the kmem event lines cannot be parsed; such lines are skipped.
    #[arg(long)]
    partial: bool,
    /// Show all caches, not only the busiest.
    #[arg(long, conflicts_with = "callers")]
    all: bool,
    /// Order of the caches.
    #[arg(long, value_name = "ORDER", default_value = "busy", conflicts_with = "callers")]
    sort: CacheSort,
    /// Show what leaks, which code allocates, and how long objects live. Four tables replace the table of
    /// caches: N call sites with the most live bytes at the end, the objects that keep slabs of N caches
    /// partial, N call sites as in `perf kmem stat --caller`, and object lifetimes in N caches. The JSON
    /// report has all rows. Default: 20.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "20", value_parser = rows)]
    callers: Option<usize>,
    /// With `--callers`: which live objects to show.
    #[arg(long, value_name = "WHICH", requires = "callers", default_value = "workload")]
    live: LiveObjects,
    /// Designs that replay the trace, such as `linux,linux:slab_max_order=0,uslab`. The design `linux` is the
    /// policy of the traced kernel. The kernel's release is read from kernel.txt in the trace's folder, or
    /// else derived from slab-attributes.tsv; boot parameters are read from cmdline.txt, and sheaf sizes from
    /// slab-attributes.tsv. The report compares the slabs of each design with the kernel's tables in the
    /// trace's folder. The report also compares the kernel's free pages, rebuilt from the trace's events,
    /// with its buddyinfo. All designs and their options are listed at the end of this help.
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with_all = ["nodes", "magazine", "limit_memory", "snapshot_every", "strict", "all", "callers", "html"])]
    design: Vec<String>,
    /// With two designs: predict how many slabs the kernel would have had with the second design's options
    /// instead of the first design's.
    #[arg(long, requires = "design")]
    predict: bool,
    /// With designs: write a time series of the run as CSV: every cache, every CPU and the free blocks of
    /// every order, at a hundred points. FILE, or `-` for standard output.
    #[arg(long, value_name = "FILE", requires = "design")]
    series: Option<PathBuf>,
    /// With `--predict`: FOLDER is a recording of a boot that had the second design's options (another number
    /// of CPUs, another kernel, `slab_nomerge`), but did not run the workload. The prediction uses
    /// before.slabinfo (the caches, their object sizes, and their slabs before the workload), the aliases in
    /// slab-attributes.tsv, and the cache of each call site if the recording has a trace. The prediction
    /// ignores the counts that FOLDER has after its table `before`. Without `--start` the prediction knows
    /// only the traced kernel.
    #[arg(long, value_name = "FOLDER", requires = "predict")]
    start: Option<PathBuf>,
    /// With `--predict`: FOLDER has the tables of a boot that really had the second design's options, for
    /// comparison with the prediction. The prediction does not use the tables in FOLDER.
    #[arg(long, value_name = "FOLDER", requires = "predict")]
    beside: Option<PathBuf>,
    /// With `--beside`: FOLDER has the tables of another boot with the first design's options and the same
    /// workload. A predicted change counts only if it is larger than the difference between the boots with
    /// the first design's options. The option may be given several times.
    #[arg(long, value_name = "FOLDER", requires = "beside")]
    again: Vec<PathBuf>,
    /// With --json: write the state after N operations (or several such states) instead of the report. A state has the
    /// form that the page of --html shows: the last operation's effect, and the location of every object and page. With
    /// --design NAME, the states are of a machine with that design.
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with_all = ["nodes", "magazine", "limit_memory", "snapshot_every", "strict", "all", "callers", "predict", "series", "html"])]
    at: Vec<u64>,
    /// Write a web page that animates the replay: FILE, or `-` for standard output. The page is one file for any
    /// browser and needs no network. The page runs the allocator itself, compiled to WebAssembly, operation by
    /// operation, forward and back, on a machine of 1 GiB with one node.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "magazine", "limit_memory"])]
    html: Option<PathBuf>,
}

fn help() -> String {
    let mut designs = String::new();
    for (name, about) in designs::all::<NoPolicy>() {
        designs += &format!("  {name:12} {about}\n");
        let knobs = designs::knobs::<NoPolicy>(name).iter();
        designs.extend(knobs.map(|knob| format!("    {}: {knob}\n", knob.name)));
    }
    designs += &format!(
        "  {:12} the traced kernel's design (slub, sheaves-6.18 or sheaves), with its boot parameters and attributes\n",
        designs::LINUX_DESIGN
    );
    format!(
        "\
Designs, and what is set on each with `:KEY=NUMBER`:
{designs}
Examples:
  uslab replay trace.txt.zst
  uslab replay trace.gz
  ssh host cat /sys/kernel/tracing/trace | uslab replay -
  uslab replay trace.txt --cpus 16 --magazine 60 --json report.json
  uslab replay trace.txt --callers=50
  cat per_cpu/cpu*/trace | uslab replay - --json report.json
  uslab replay trace.txt --html page.html
  uslab replay trace.txt --at 5000,5001 --design slub --json moments.json"
    )
}

/// Parses an option's number of table rows.
fn rows(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|rows| *rows > 0)
        .ok_or_else(|| "expected a number of rows, at least 1".to_owned())
}

impl Args {
    pub(super) fn bundled() -> Self {
        Self {
            trace: None,
            cpus: None,
            nodes: 1,
            magazine: Magazines::BySize,
            limit_memory: replay::DEFAULT_MEMORY,
            snapshot_every: None,
            strict: false,
            partial: false,
            page_size: None,
            all: false,
            sort: CacheSort::Busy,
            callers: None,
            live: LiveObjects::Workload,
            design: Vec::new(),
            predict: false,
            start: None,
            beside: None,
            again: Vec::new(),
            series: None,
            at: Vec::new(),
            html: None,
        }
    }

    /// Returns the `uslab replay` command line that replays the same operations.
    fn command(&self) -> String {
        let mut command = "uslab replay".to_owned();
        if let Some(path) = &self.trace {
            command += &format!(" {}", shell_quoted(&path.to_string_lossy()));
        }
        if let Some(cpus) = self.cpus {
            command += &format!(" --cpus {cpus}");
        }
        if let Some(size) = self.page_size {
            command += &format!(" --page-size {}k", size.bytes() >> 10);
        }
        command
    }
}

pub(super) fn run<P: Policy>(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let options = replay::Options {
        cpus: args.cpus,
        nodes: args.nodes,
        magazines: args.magazine,
        memory: args.limit_memory,
        snapshot_every: args.snapshot_every,
        strict: args.strict,
        page_size: args.page_size,
        callers: args.callers.is_some(),
        live: args.live,
        partial: args.partial,
    };
    options.check()?;
    let html = args.html.as_deref().map(|path| Place::open(Form::Html, path)).transpose()?;
    Place::check_distinct([&json, &html])?;
    let to_stdout = [&json, &html].into_iter().flatten().any(Place::is_stdout);
    let progress = Progress::new();
    if !args.design.is_empty() {
        let specs = args.design.iter().map(|text| text.parse::<Spec<P>>());
        let specs = specs.collect::<Result<Vec<_>, _>>().context("--design")?;
        if !args.at.is_empty() {
            return write_snapshots(args, &options, &specs, json, &progress);
        }
        if args.predict && specs.len() != 2 {
            bail!("--predict: expected two designs, got {}", specs.len());
        }
        let csv = args.series.as_deref().map(|path| Place::open(Form::Series, path)).transpose()?;
        Place::check_distinct([&json, &csv])?;
        let to_stdout = to_stdout || csv.as_ref().is_some_and(Place::is_stdout);
        let series = csv.is_some().then(|| RefCell::new(replay::Series::default()));
        let beside = replay::OtherBootFolders {
            start: args.start.clone(),
            real: args.beside.clone(),
            again: args.again.clone(),
        };
        let predict = args.predict.then_some(&beside);
        let report =
            replay::designs(args.trace.as_deref(), &options, &specs, predict, series.as_ref(), &progress)?;
        drop(progress);
        let json = json.map(|place| json_text(&report).map(|text| (place, text))).transpose()?;
        let rows = series.map(|series| series.into_inner().into_csv());
        write_all(json.into_iter().chain(csv.zip(rows)))?;
        if !to_stdout {
            say(&report.to_string())?;
        }
        return Ok(if report.holds() { Outcome::Done } else { Outcome::Violated });
    }
    if !args.at.is_empty() {
        return write_snapshots(args, &options, &[Spec::<P>::default()], json, &progress);
    }
    // A converted trace has no events, so it has no report.
    let only_page = |path: &&Path| html.is_some() && json.is_none() && replay::is_converted(path);
    if let Some(path) = args.trace.as_deref().filter(only_page) {
        let given = [
            ("--snapshot-every", args.snapshot_every.is_some()),
            ("--strict", args.strict),
            ("--partial", args.partial),
            ("--callers", args.callers.is_some()),
            ("--all", args.all),
            ("--page-size", args.page_size.is_some()),
        ];
        if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
            bail!(
                "{option}: {} is a converted trace, which lacks the kernel's events; expected the original trace",
                path.display()
            );
        }
        let stream = replay::page_stream(Some(path), &options, &progress)?;
        let page = replay::page(&stream, &args.command())?;
        drop(progress);
        write_all(html.map(|place| (place, page)))?;
        return Ok(Outcome::Done);
    }
    let (mut report, page) = match &html {
        Some(_) => {
            let (report, stream) = replay::run_to_stream(args.trace.as_deref(), &options, &progress)?;
            (report, Some(replay::page(&stream, &args.command())?))
        }
        None => (replay::run(args.trace.as_deref(), &options, &progress)?, None),
    };
    drop(progress);
    report.sort_caches(args.sort);
    // All outputs are generated before the first file is written.
    let json = json.map(|place| json_text(&report).map(|text| (place, text))).transpose()?;
    write_all(json.into_iter().chain(html.zip(page)))?;
    if !to_stdout {
        let is_plain = !args.all && args.sort == CacheSort::Busy;
        say(&match report.callers.as_ref().zip(args.callers) {
            Some((callers, rows)) => report.head() + &callers.page(rows),
            None if args.trace.is_none() && is_plain => report.introduction(),
            None => report.page(args.all),
        })?;
    }
    Ok(if report.conservation.violated == 0 { Outcome::Done } else { Outcome::Violated })
}

fn write_snapshots<P: Policy>(
    args: &Args,
    options: &replay::Options,
    designs: &[Spec<P>],
    json: Option<Place>,
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let [design] = designs else { bail!("--at: expected one design, got {}", designs.len()) };
    let Some(json) = json else { bail!("--at: expected --json, the only output format of a state") };
    json.json(&replay::Moments::new(args.trace.as_deref(), options, design, &args.at, progress)?)?;
    Ok(Outcome::Done)
}
