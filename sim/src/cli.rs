//! The command line: verbs and options. How it ends is [`output::command`](crate::output::command).

use crate::calibrate;
use crate::course;
use crate::diff;
use crate::geometry;
use crate::output::command::{self, Outcome};
use crate::output::{Form, Place, Progress, bytes, grouped, json_text, table, text, write_all};
use crate::pages;
use crate::record;
use crate::replay;
use crate::scale;
use crate::story::{self, verb::StoryArgs};
use crate::stress::{self, FaultSpec, Workload};
use crate::sweep::{self, SweepArgs, TuneArgs};
use crate::top::{self, TopArgs};
use crate::trace::PageSize;
use crate::validate;
use crate::watch::{self, WatchArgs};
use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::num::NonZeroU64;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uslab::Magazines;
use uslab_engine::Policy;
use uslab_engine::clock::{self, Profile};
use uslab_engine::designs::{NoPolicy, Spec};
use uslab_magazine::sync::{AtomicBool, Ordering::Relaxed};
use uslab_sync::shard::Shard;

/// The program that `uslab lab` becomes.
const LAB: &str = "uslab-lab";

/// Replay kernel memory traces through a Linux-style slab allocator, and study it.
///
/// Without a verb, the bundled trace (a real kernel under a file workload) is replayed and explained.
#[derive(Debug, Parser)]
#[command(name = "uslab", version, max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Write the result as JSON: to FILE, or to standard output where FILE is `-` or left out.
    #[arg(long, global = true, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Replay(ReplayArgs),
    Watch(WatchArgs),
    Top(TopArgs),
    Record(RecordArgs),
    Convert(ConvertArgs),
    Scale(ScaleArgs),
    Sweep(SweepArgs),
    Tune(TuneArgs),
    Calibrate(CalibrateArgs),
    Validate(ValidateArgs),
    Diff(DiffArgs),
    Geometry(GeometryArgs),
    Stress(StressArgs),
    Page(pages::Args),
    Course(course::Args),
    Story(StoryArgs),
    Lab(LabArgs),
}

/// Replay a kernel memory trace: every traced allocation and free, on the CPU that the trace names.
///
/// The shipping allocator does the work, on simulated CPUs: object events go through caches of the traced names and
/// sizes, page events through the buddy allocator. At the end the kernel's columns are shown with what slabinfo cannot
/// tell (used, in magazines, in the depot, free in slabs), and beside the kernel's own numbers where its tables lie
/// beside the trace.
///
/// Record a trace with ftrace (`trace-cmd record -e kmem`, or /sys/kernel/tracing with events kmem:*) or with perf
/// (`perf record -a -e 'kmem:*'`); the texts of trace, trace_pipe, `perf script` and `trace-cmd report` are read, and
/// wee_alloc's traces of a program's malloc (`Alloc(552),` and `Free(0),`), which go to kmalloc on one CPU. Of Fleetbench's
/// distributions (lines of `SIZE, RATE, LIVE`) a trace is made. What libuslab.so recorded of a program
/// (`LD_PRELOAD=libuslab.so USLAB_OPTIONS=record=FILE program`) is replayed call by call, on the CPUs that it ran on. All may be plain or compressed with gzip, xz or zstd. The first lines of the report say what is wrong with a trace: events that are missing, a
/// cut last line, addresses that do not tell their pages. (Kernels print hashed addresses unless they are booted with
/// no_hash_pointers; randomised ones are no obstacle.)
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uslab replay trace.txt.zst
  uslab replay trace.gz
  ssh host cat /sys/kernel/tracing/trace | uslab replay -
  uslab replay trace.txt --cpus 16 --magazine 60 --json report.json
  uslab replay trace.txt --callers=50
  uslab replay trace.txt --html page.html
  uslab replay trace.txt --at 5000,5001 --design slub --json moments.json")]
struct ReplayArgs {
    /// The trace: a file, or `-` for standard input. Left out: the bundled trace.
    trace: Option<PathBuf>,
    /// Simulated CPUs, 1 to 1024. Default: as many as the traced machine had. What happened on CPU n of the trace
    /// happens on CPU n modulo N; more CPUs than the trace names stay idle, but make slabs larger.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Memory nodes, 1 to 16; CPUs are spread over them in contiguous ranges.
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: u32,
    /// Objects in a magazine: `auto` (by object size), `off`, or a number from 1 to 64.
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    magazine: Magazines,
    /// Memory of the simulated machine: bytes, or with K, M, G. Only what is used is committed.
    #[arg(long, value_name = "BYTES", default_value = "16G", value_parser = bytes)]
    limit_memory: u64,
    /// Pages of the traced machine: 4k, 16k or 64k. Default: as the slabinfo beside the trace tells, or the trace's addresses; else
    /// 4k. The simulated machine's have 4 KiB: a larger page is a block of them.
    #[arg(long, value_name = "SIZE")]
    page_size: Option<PageSize>,
    /// Check the conservation laws after every N operations, and at each mark and at the end.
    #[arg(long, value_name = "N")]
    snapshot_every: Option<u64>,
    /// Make the first free of an object that was never seen allocated an error, with its line.
    #[arg(long)]
    strict: bool,
    /// Show every cache, not only the busiest.
    #[arg(long)]
    all: bool,
    /// Show who allocates and how long objects live: N call sites with the numbers of `perf kmem stat --caller`, and lifetimes in
    /// N caches. JSON has all of them. Default: 20.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "20", value_parser = rows)]
    callers: Option<usize>,
    /// Who answers, e.g. `slub,slub:cpu_partial=0,uslab`. With it the report shows how each design's slabs compare with the
    /// kernel's own tables beside the trace; and the kernel's free pages, rebuilt from the trace's events, beside its
    /// buddyinfo.
    ///
    /// Designs, and what can be set with `:KEY=NUMBER`:
    ///
    ///   uslab        the shipping allocator: capacity (0: no magazines), stock, depot_limit
    ///   uslab-model  a model of it, for virtual time: capacity, first_fill, stock, depot_limit
    ///   slub         a model of SLUB in Linux 6.1 to 6.17: cpu_partial, min_partial, slab_min_objects, slab_min_order,
    ///                slab_max_order, cpus
    ///   sheaves      a model of SLUB in Linux 6.18: sheaf_capacity, cpu_partial, min_partial
    ///   slab         a model of SLAB in Linux until 6.7: limit, batchcount, shared
    ///   bonwick94    a model of the slab allocator of 1994
    ///   magazines01  the magazine layer of 2001 over a model of the slabs of 1994: magsize
    #[arg(long, value_name = "NAME", verbatim_doc_comment, value_delimiter = ',', conflicts_with_all = ["nodes", "magazine", "limit_memory", "snapshot_every", "strict", "all", "callers", "html"])]
    design: Vec<String>,
    /// Of two designs: say what the change from the first one's settings to the second one's would have done to the kernel's slabs.
    #[arg(long, requires = "design")]
    predict: bool,
    /// Of designs: write how the run went, as CSV: every cache, CPU and order of free blocks at a hundred points. FILE, or `-` for
    /// standard output.
    #[arg(long, value_name = "FILE", requires = "design")]
    series: Option<PathBuf>,
    /// With `--predict`: FOLDER is a recording of a boot with the second one's settings (another number of CPUs, another kernel,
    /// `slab_nomerge`), without the workload. Of it are taken: before.slabinfo (which caches there are, how large their objects, how
    /// many slabs they have before the workload), the aliases in slab-attributes.tsv, and from its trace, if there is one, which call
    /// site allocates from which cache. No count from after its moment `before` is. Without it the prediction knows the traced kernel
    /// only.
    #[arg(long, value_name = "FOLDER", requires = "predict")]
    start: Option<PathBuf>,
    /// With `--predict`: FOLDER has the tables of a boot that really had the second one's settings, to compare with. Nothing of it goes
    /// into the prediction.
    #[arg(long, value_name = "FOLDER", requires = "predict")]
    beside: Option<PathBuf>,
    /// With `--beside`: FOLDER has the tables of another boot with the first one's settings and the same workload. A cache's change
    /// counts if it is larger than these boots differ. May be given several times.
    #[arg(long, value_name = "FOLDER", requires = "beside")]
    again: Vec<PathBuf>,
    /// With --json: write, in place of the report, the moment after N operations, or several of them, as the page of --html shows it:
    /// what the last operation did, and where every object and page is. With --design NAME of that design.
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with_all = ["nodes", "magazine", "limit_memory", "snapshot_every", "strict", "all", "callers", "predict", "series", "html"])]
    at: Vec<u64>,
    /// Write a page to see it move: FILE, or `-` for standard output. One file for any browser, without a network. The
    /// allocator itself runs in it as WebAssembly, operation by operation, forward and back, on a machine of 1 GiB with one
    /// node.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "magazine", "limit_memory"])]
    html: Option<PathBuf>,
}

/// Convert a trace to columns of operations, some three bytes each, which `replay --design` and `scale --trace` read without parsing.
///
/// Names of caches, sizes, CPUs, times and marks are kept, and what was found out on the way: which cache an event belongs to, where a
/// hidden allocation was. Addresses, call sites and the kernel's page moves are not. Its tables are still looked for beside OUT.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uslab convert trace.txt.zst trace.ops
  uslab replay --design slub trace.ops
  uslab convert - trace.ops < trace.txt")]
struct ConvertArgs {
    /// The trace, as `uslab replay` reads it; `-` is standard input.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Where the operations go. A file that is there and holds something else is not overwritten.
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Simulated CPUs. Default: as many as the trace names.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
}

/// What a conversion wrote.
#[derive(Serialize)]
struct Converted {
    trace: String,
    operations: u64,
    cpus: u32,
    caches: usize,
    bytes: usize,
}

/// Record what `uslab replay` needs: a trace of the kernel's memory events, and its own tables before and after.
///
/// Into a new folder go the trace (trace.txt.zst), with marks at the moments of the tables; slabinfo, buddyinfo, zoneinfo,
/// pagetypeinfo, vmstat and meminfo of each moment; the counters and the attributes of all caches in /sys/kernel/slab; what each CPU's
/// buffer lost; the formats of the events; the kernel's release and command line.
///
/// The running kernel is recorded as root, with tracefs mounted, in a tracing instance of our own, which is gone afterwards; other
/// tracing is not disturbed. Moments: `before` and `after`, and with --shrink `end`. Ctrl-C ends it, and nothing is kept.
///
/// With --qemu a kernel of a distribution is booted for it, and needs no root: qemu-system-x86_64 and a static busybox do (Debian:
/// qemu-system-x86, busybox-static). Events are on from early boot; caches are shrunk before `before` and before `end`, so that these
/// two tables are exact. KVM is used where it works, else the CPUs are emulated: then times mean little, and everything else is as the
/// kernel does it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo uslab record --seconds 30
  sudo uslab record --out build --buffer 256M -- make -j8
  apt-get download linux-image-6.1.0-56-amd64 && dpkg-deb -x linux-image-6.1.0-56-amd64_*.deb linux
  uslab record --out a --qemu linux --workload load.sh
  uslab record --out b --qemu linux --workload load.sh --append slub_max_order=0 --set cpu_partial=0
  uslab record --out c --qemu linux --workload load --workload load.sh --cpus 8 -- load.sh 5000
  uslab replay a/trace.txt.zst --design slub,slub:slab_max_order=0:cpu_partial=0 --predict --beside b")]
struct RecordArgs {
    /// The new folder.
    #[arg(long, value_name = "FOLDER", default_value = "recording")]
    out: PathBuf,
    /// How long, where there is no COMMAND. Default: 10.
    #[arg(long, value_name = "N", conflicts_with_all = ["command", "qemu"], value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Memory of each CPU's trace buffer: bytes, or with K, M, G. An event takes some 50.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = bytes)]
    buffer: u64,
    /// Shrink all caches before the table `before`, and again after `after`, before a last table `end`. It costs the running kernel a
    /// moment, and makes the numbers exact: otherwise objects that CPUs hold back count as in use.
    #[arg(long, conflicts_with = "qemu")]
    shrink: bool,
    /// Where tracefs is mounted. Default: /sys/kernel/tracing or /sys/kernel/debug/tracing.
    #[arg(long, value_name = "DIR", conflicts_with = "qemu")]
    tracefs: Option<PathBuf>,
    /// Boot this kernel: a file vmlinuz-RELEASE with lib/modules/RELEASE beside its folder, or the folder of an unpacked linux-image
    /// package.
    #[arg(long, value_name = "KERNEL")]
    qemu: Option<PathBuf>,
    /// With --qemu, more of the kernel's command line, e.g. `slab_max_order=0 slab_nomerge` (before 6.6 `slub_max_order=0`).
    #[arg(long, value_name = "TEXT", requires = "qemu", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// With --qemu, written to /sys/kernel/slab/*/KEY before the workload: cpu_partial and min_partial, say.
    #[arg(long, value_name = "KEY=NUMBER", requires = "qemu", value_parser = setting)]
    set: Vec<String>,
    /// With --qemu, its CPUs.
    #[arg(long, value_name = "N", requires = "qemu", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=255))]
    cpus: u32,
    /// With --qemu, its memory: bytes, or with K, M, G.
    #[arg(long, value_name = "BYTES", requires = "qemu", default_value = "1G", value_parser = bytes)]
    memory: u64,
    /// With --qemu, a static program or a shell script to put into its /bin. The first one runs, unless there is a COMMAND.
    #[arg(long, value_name = "FILE", requires = "qemu")]
    workload: Vec<PathBuf>,
    /// With --qemu, how many seconds all of it may take.
    #[arg(long, value_name = "N", requires = "qemu", default_value_t = 1800)]
    timeout: u64,
    /// With --qemu, emulate its CPUs even where there is KVM.
    #[arg(long, requires = "qemu")]
    emulate: bool,
    /// What runs meanwhile, and its arguments. What it writes to standard output goes to standard error.
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,
}

/// `cpu_partial=0`.
fn setting(text: &str) -> Result<String, String> {
    let known = |(key, value): &(&str, &str)| {
        !key.is_empty()
            && key.bytes().all(|c| c == b'_' || c.is_ascii_lowercase())
            && value.parse::<u64>().is_ok()
    };
    text.split_once('=')
        .filter(known)
        .map(|_| text.to_owned())
        .ok_or_else(|| "expected KEY=NUMBER, e.g. cpu_partial=0".to_owned())
}

/// Simulate a design on 1 to 1,024 CPUs, in virtual time: throughput, waits for locks, cache lines that travel.
///
/// Every CPU has its own clock. The CPU that is furthest behind goes next, does one operation, and is later by what that
/// cost on the machine of the profile. The same seed gives the same numbers.
///
/// Cache lines that travel were compared for design `uslab-model`, on 2, 4 and 8 CPUs: they are within 10 % of what a MESI protocol
/// counts under the loads and stores of the shipping code. Of other designs and on more CPUs lines are simulated only.
#[derive(Debug, Args)]
#[command(after_help = scale_help())]
struct ScaleArgs {
    /// A recorded trace in the place of made workloads, as `uslab replay` reads it; `-` is standard input, and without FILE it is the
    /// bundled trace. Each CPU of it does its own operations on objects as fast as it can. What another CPU frees was allocated before.
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["workload", "size", "ops", "think", "seed", "svg", "html"])]
    trace: Option<Option<PathBuf>>,
    /// CPU counts: numbers, and FIRST..LAST by doublings, with commas between. Default: 1..64; of a trace, as many as it names. Of a
    /// trace, what happened on CPU n happens on CPU n modulo the count.
    #[arg(long, value_name = "COUNTS", value_parser = Counts::parse)]
    cpus: Option<Counts>,
    /// What each CPU does.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "bursts")]
    workload: Vec<clock::Workload>,
    /// Who answers, with knobs as `uslab replay --help` lists them.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "bonwick94,magazines01")]
    design: Vec<String>,
    /// What things cost: a name, or a file that `uslab calibrate` or `uslab validate` wrote.
    #[arg(long, value_name = "PROFILE", default_value = "vm2")]
    profile: String,
    /// Bytes of an object.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=8192))]
    size: u32,
    /// Operations of each CPU.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    ops: u64,
    /// Nanoseconds that a CPU spends on something else after each operation.
    #[arg(long, value_name = "NS", default_value_t = 0)]
    think: u32,
    /// Where chance begins.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the points as CSV: to FILE, or to standard output where FILE is `-`.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the curves as an SVG picture: to FILE, or to standard output where FILE is `-`.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with the curves of each number of the report: FILE, or `-` for standard output. One file for any browser, without a
    /// network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Measure what things cost on this machine: a profile for `uslab scale`, with spreads, as JSON.
#[derive(Debug, Args)]
struct CalibrateArgs {
    /// What the profile is called.
    #[arg(long, value_name = "NAME", default_value = "here")]
    name: String,
    /// How often everything is measured.
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
}

/// Hold the clock of `uslab scale` against this machine: threads on its CPUs do what simulated CPUs do, on the shipping allocator.
///
/// Each workload runs on one CPU and on all, and each thread stays on a CPU of its own. Predictions are those of design
/// uslab-model. What was measured is the median of the rounds, with what the middle eight tenths of them lie between. With
/// `--json FILE`, `uslab scale --profile FILE` knows which CPU counts the profile was validated for: those up to which at most
/// one workload is off by more than 30 %. Times need a release build.
#[derive(Debug, Args)]
struct ValidateArgs {
    /// What things cost: a name, or a file that `uslab calibrate` wrote. Default: measured in the same rounds.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// How often everything is measured.
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Where chance begins.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Compare two reports that `--json` wrote: which numbers differ, the largest relative change first.
///
/// Rows of lists are matched by their names (of a cache, a design, a moment, a number of CPUs), not by their places.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uslab replay --design slub --json a.json
  uslab replay --design slub:cpu_partial=0 --json b.json
  uslab diff a.json b.json")]
struct DiffArgs {
    /// The first report.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The second one.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Numbers that differ by at most so many per cent are left out.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    above: f64,
    /// Show every number that differs, not only forty.
    #[arg(long)]
    all: bool,
}

/// CPU counts, as an option has them.
#[derive(Clone, Debug)]
struct Counts(Vec<u32>);

impl Counts {
    fn parse(text: &str) -> Result<Self, String> {
        scale::cpu_counts(text).map(Self)
    }
}

fn scale_help() -> String {
    let workloads = clock::Workload::ALL.map(|(name, what)| format!("  {name:12} {what}")).join("\n");
    let profiles = Profile::own().map(|profile| profile.name).collect::<Vec<_>>().join(", ");
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

/// Show how objects are laid out in slabs: order, objects per slab, waste, by Linux's own rule.
///
/// The CPU count is an input of the rule: on a machine with more CPUs the same size gets larger slabs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uslab geometry 192 320 700
  uslab geometry --cpus 64
  uslab geometry --against live
  uslab geometry --against before.slabinfo --cpus 4")]
struct GeometryArgs {
    /// Object sizes in bytes. Left out: kmalloc's 13 size classes.
    #[arg(value_name = "SIZE", conflicts_with = "against")]
    sizes: Vec<usize>,
    /// Alignment of the objects in bytes, a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 8)]
    align: usize,
    /// Present CPUs. Default: this machine's.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Compare row by row with a kernel's: a /proc/slabinfo, a copy of /sys/kernel/slab, a table of its attributes
    /// (tab-separated, with columns slab_size, objs_per_slab and order), or `live` for this machine.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
}

/// Load the allocator with threads on this machine's CPUs and verify every object.
///
/// Each object bears a stamp of its owner, checked when it is allocated, held and freed; what the threads hold is compared
/// eight times with what the caches say and with a walk of all slabs and pages; at the end everything is freed, and nothing
/// may be left. A violation is told with the cache and the object, the object's history as far as threads remember it, and
/// the last operations of the threads involved; it is exit code 1. Ctrl-C ends the run early, with its census.
/// USLAB_RSEQ=off in the environment stresses the claimed slot in place of restartable sequences.
#[derive(Debug, Args)]
#[command(after_help = stress_help())]
struct StressArgs {
    /// How long, in seconds. Default: 10, unless --ops is given; with both, whichever ends first.
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// How many operations in all: allocations, frees, refusals, other calls.
    #[arg(long, value_name = "N")]
    ops: Option<u64>,
    /// Threads at a time. Default: four a CPU.
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// What the threads decide follows from it; printed in the report. Default: another one each time.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// What to refuse, see below.
    #[arg(long, value_name = "RULES")]
    faults: Option<FaultSpec>,
    /// What the threads do, separated by commas. Default: everything.
    #[arg(long, value_name = "NAME", value_enum, value_delimiter = ',')]
    workload: Vec<Workload>,
    /// Leak an object on purpose, to see that it is missed: the first one that is freed to this cache (raw-64, say) is
    /// allocated again by nobody, and a census comes at once.
    #[arg(long, value_name = "CACHE")]
    leak: Option<String>,
    /// After a violation, write a page that steps through the last deeds of all threads before it, the object's own ones marked: FILE, or
    /// `-` for standard output. One file for any browser, without a network. Without a violation none is written.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// So many runs, one after the other, of seeds that follow --seed; --seconds and --ops are of each. A line of each is shown.
    #[arg(long, value_name = "N", requires = "seed", conflicts_with_all = ["html", "leak"])]
    runs: Option<NonZeroU64>,
    /// Only share I of N of the runs, I from 0, whose rows go to a file. Left out: what the engine says that runs this, by
    /// SLURM_ARRAY_TASK_ID with _COUNT, _MIN and _STEP, or by JOB_COMPLETION_INDEX with JOB_COMPLETIONS; else it is all.
    #[arg(long, value_name = "I/N", requires = "runs")]
    shard: Option<Shard>,
    /// The file that the share's rows go to, whole or not at all. Default: stress.I-of-N.rows.
    #[arg(long, value_name = "FILE", requires = "runs")]
    rows: Option<PathBuf>,
    /// Run nothing, and put together what all shares left in these files.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["runs", "shard", "rows", "seed", "ops", "seconds", "workload", "html"])]
    merge: Vec<PathBuf>,
}

/// Ask allocators questions: the lab, a program of its own (uslab-lab), with the same options.
///
/// It lies beside this program, or on PATH; in the sources of uslab, `cargo lab` builds and runs it.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
struct LabArgs {
    /// What uslab-lab is told; `--help` says what that may be.
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Leaks an object of the cache of that name, once, and says whether it did.
fn leaker(name: String, leaked: Arc<AtomicBool>) -> stress::Saboteur {
    Arc::new(move |cache, freed| {
        if cache.name() != name || leaked.swap(true, Relaxed) {
            return false;
        }
        // The object that was just freed, which somebody remembers; else another try at the next free.
        let block = cache.alloc_block(uslab::Gfp::KERNEL).ok().filter(|block| block.address() == freed);
        leaked.store(block.is_some(), Relaxed);
        block.map(std::mem::forget).is_some()
    })
}

/// How many rows of a table to show.
fn rows(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|rows| *rows > 0)
        .ok_or_else(|| "expected a number of rows, at least 1".to_owned())
}

fn stress_help() -> String {
    let points = uslab::faults::POINTS.map(|point| format!("  {:12} {}", point.name, point.what)).join("\n");
    format!(
        "\
Faults: rules POINT:attribute=value,... separated by semicolons; POINT is `any` or one of
{points}
with Linux's fault attributes, all optional:
  probability=N  so many calls in 100 are refused (100)
  interval=N     only each N-th call is looked at (1)
  times=N        at most N calls are refused, -1: without end (-1; with nth: 1)
  space=BYTES    calls for so many bytes in all are granted first (0)
  nth=N          only the N-th call and later ones are refused (1)
  order=N..M     only blocks of pages of these orders; also N, N.. and ..M
  cache=NAME     only at this cache: bitmap and points above it
What magazines serve comes to no point.

Examples:
  uslab stress --seconds 60 --workload churn,exchange,reap
  uslab stress --ops 10000000 --threads 64 --seed 7
  uslab stress --leak raw-64 --html violation.html
  uslab stress --seed 1 --runs 1000 --ops 10000000 --shard 3/200
  uslab stress --merge stress.*-of-200.rows
  uslab stress --faults 'slab:probability=5,cache=raw-64;page:order=1..,probability=10;commit:nth=7'"
    )
}

/// Runs the command line and returns its exit code.
pub fn main() -> ExitCode {
    main_with::<NoPolicy>()
}

/// The same, with a policy that the calling program brings: `--design` knows it by its name.
///
/// `examples/uma/main.rs` beside this crate is such a program.
pub fn main_with<P: Policy>() -> ExitCode {
    command::run(run::<P>)
}

fn run<P: Policy>(cli: &Cli) -> anyhow::Result<Outcome> {
    let json = || cli.json.as_deref().map(|path| Place::open(Form::Json, path)).transpose();
    match &cli.verb {
        None => run_replay::<P>(&ReplayArgs::bundled(), json()?),
        Some(Verb::Replay(args)) => run_replay::<P>(args, json()?),
        Some(Verb::Watch(args)) => watch::run::<P>(args, cli.json.as_deref()),
        Some(Verb::Top(args)) => top::run(args, json()?),
        Some(Verb::Record(args)) => run_record(args, json()?),
        Some(Verb::Convert(args)) => run_convert(args, json()?),
        Some(Verb::Diff(args)) => run_diff(args, json()?),
        Some(Verb::Calibrate(args)) => run_calibrate(args, json()?),
        Some(Verb::Validate(args)) => run_validate(args, json()?),
        Some(Verb::Sweep(args)) => sweep::sweep::<P>(args, json()?),
        Some(Verb::Tune(args)) => sweep::tune::<P>(args, json()?),
        Some(Verb::Scale(args)) => run_scale::<P>(args, json()?),
        Some(Verb::Geometry(args)) => run_geometry(args, json()?),
        Some(Verb::Stress(args)) => run_stress(args, json()?),
        Some(Verb::Page(args)) => args.run(json()?),
        Some(Verb::Course(args)) => args.run(json()?),
        Some(Verb::Story(args)) => story::verb::run(args, json()?),
        Some(Verb::Lab(args)) => run_lab(args, cli.json.as_deref()),
    }
}

impl ReplayArgs {
    fn bundled() -> Self {
        Self {
            trace: None,
            cpus: None,
            nodes: 1,
            magazine: Magazines::BySize,
            limit_memory: replay::DEFAULT_MEMORY,
            snapshot_every: None,
            strict: false,
            page_size: None,
            all: false,
            callers: None,
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

    /// The command line that reads the same operations.
    fn command(&self) -> String {
        let mut command = "uslab replay".to_owned();
        if let Some(path) = &self.trace {
            command += &format!(" {}", quoted(&path.to_string_lossy()));
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

/// A word of a shell's command line.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn run_replay<P: Policy>(args: &ReplayArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let options = replay::Options {
        cpus: args.cpus,
        nodes: args.nodes,
        magazines: args.magazine,
        memory: args.limit_memory,
        snapshot_every: args.snapshot_every,
        strict: args.strict,
        page_size: args.page_size,
        callers: args.callers.is_some(),
    };
    options.check()?;
    let html = args.html.as_deref().map(|path| Place::open(Form::Html, path)).transpose()?;
    Place::apart([&json, &html])?;
    let to_stdout = [&json, &html].into_iter().flatten().any(Place::is_stdout);
    let progress = Progress::new();
    if !args.design.is_empty() {
        let specs = args.design.iter().map(|text| text.parse::<Spec<P>>());
        let specs = specs.collect::<Result<Vec<_>, _>>().context("--design")?;
        if !args.at.is_empty() {
            return run_at(args, &options, &specs, json, &progress);
        }
        if args.predict && specs.len() != 2 {
            bail!("--predict: expected two designs, got {}", specs.len());
        }
        let csv = args.series.as_deref().map(|path| Place::open(Form::Csv, path)).transpose()?;
        Place::apart([&json, &csv])?;
        let to_stdout = to_stdout || csv.as_ref().is_some_and(Place::is_stdout);
        let series = csv.is_some().then(|| RefCell::new(replay::Series::default()));
        let beside = replay::Beside {
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
            std::io::stdout().lock().write_all(report.to_string().as_bytes()).context("standard output")?;
        }
        return Ok(if report.holds() { Outcome::Done } else { Outcome::Violated });
    }
    if !args.at.is_empty() {
        return run_at(args, &options, &[Spec::<P>::default()], json, &progress);
    }
    // A converted trace has no events to report on.
    let only_page = |path: &&Path| html.is_some() && json.is_none() && replay::is_converted(path);
    if let Some(path) = args.trace.as_deref().filter(only_page) {
        let stream = replay::page_stream(Some(path), &options, &progress)?;
        let page = replay::page(&stream, &args.command())?;
        drop(progress);
        write_all(html.map(|place| (place, page)))?;
        return Ok(Outcome::Done);
    }
    let (report, page) = match &html {
        Some(_) => {
            let (report, stream) = replay::run_to_stream(args.trace.as_deref(), &options, &progress)?;
            (report, Some(replay::page(&stream, &args.command())?))
        }
        None => (replay::run(args.trace.as_deref(), &options, &progress)?, None),
    };
    drop(progress);
    // All forms are made before the first one is written.
    let json = json.map(|place| json_text(&report).map(|text| (place, text))).transpose()?;
    write_all(json.into_iter().chain(html.zip(page)))?;
    if !to_stdout {
        let introduce = args.trace.is_none() && !args.all && args.callers.is_none();
        let mut text = if introduce { report.introduction() } else { report.page(args.all) };
        if let Some((callers, rows)) = report.callers.as_ref().zip(args.callers) {
            text += &callers.page(rows);
        }
        std::io::stdout().lock().write_all(text.as_bytes()).context("standard output")?;
    }
    Ok(if report.conservation.violated == 0 { Outcome::Done } else { Outcome::Violated })
}

fn run_at<P: Policy>(
    args: &ReplayArgs,
    options: &replay::Options,
    designs: &[Spec<P>],
    json: Option<Place>,
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let [design] = designs else { bail!("--at: expected one design, got {}", designs.len()) };
    let Some(json) = json else { bail!("--at: expected --json, for a moment has no other form") };
    json.json(&replay::Moments::new(args.trace.as_deref(), options, design, &args.at, progress)?)?;
    Ok(Outcome::Done)
}

fn run_record(args: &RecordArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let recorded = match args.qemu.clone() {
        Some(kernel) => {
            if args.workload.is_empty() && args.command.is_empty() {
                bail!("--qemu: expected something to do: --workload FILE, or -- COMMAND of busybox");
            }
            let guest = record::qemu::Guest {
                kernel,
                append: args.append.clone(),
                set: args.set.clone(),
                cpus: args.cpus,
                memory: args.memory,
                buffer: args.buffer,
                workload: args.workload.clone(),
                command: args.command.clone(),
                limit: Duration::from_secs(args.timeout),
                emulate: args.emulate,
            };
            record::qemu::record(&args.out, &guest)?
        }
        None => {
            let options = record::Options {
                tracefs: args.tracefs.clone(),
                buffer: args.buffer,
                shrink: args.shrink,
                seconds: args.seconds.unwrap_or(10),
                command: args.command.clone(),
            };
            record::record(&args.out, &options)?
        }
    };
    let to_stdout = json.as_ref().is_some_and(Place::is_stdout);
    if let Some(json) = json {
        json.json(&recorded)?;
    }
    if !to_stdout {
        std::io::stdout().lock().write_all(recorded.to_string().as_bytes()).context("standard output")?;
    }
    Ok(Outcome::Done)
}

fn run_scale<P: Policy>(args: &ScaleArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let thinking = |workload: &clock::Workload| workload.clone().thinking(args.think.into());
    let designs =
        args.design.iter().map(|text| text.parse()).collect::<Result<_, _>>().context("--design")?;
    let profile = scale::profile(&args.profile)?;
    let open = |form, path: &Option<PathBuf>| path.as_deref().map(|path| Place::open(form, path)).transpose();
    let (csv, svg, html) =
        (open(Form::Csv, &args.csv)?, open(Form::Svg, &args.svg)?, open(Form::Html, &args.html)?);
    Place::apart([&json, &csv, &svg, &html])?;
    let to_stdout = [&json, &csv, &svg, &html].into_iter().flatten().any(Place::is_stdout);
    let progress = Progress::new();
    let counts = args.cpus.as_ref().map(|Counts(counts)| counts.clone());
    let work = match &args.trace {
        Some(path) => {
            let stream = replay::read_stream(path.as_deref(), &replay::Options::default(), &progress)?;
            let on =
                counts.unwrap_or_else(|| vec![stream.cpus]).into_iter().map(|cpus| stream.clone().on(cpus));
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
    let report = scale::scale(&scale::Options::<P> { work, designs, profile }, &progress)?;
    let json = json.map(|place| json_text(&report).map(|text| (place, text))).transpose()?;
    let csv = csv.map(|place| (place, report.csv()));
    let svg = svg.map(|place| (place, report.svg()));
    let html = html.map(|place| report.page().map(|page| (place, page))).transpose()?;
    write_all(json.into_iter().chain(csv).chain(svg).chain(html))?;
    if !to_stdout {
        std::io::stdout().lock().write_all(report.to_string().as_bytes()).context("standard output")?;
    }
    Ok(Outcome::Done)
}

fn run_calibrate(args: &CalibrateArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let profile = calibrate::calibrate(&args.name, args.rounds, &Progress::new())?;
    let to_stdout = json.as_ref().is_some_and(Place::is_stdout);
    if let Some(json) = json {
        json.json(&profile)?;
    }
    if !to_stdout {
        let mut rows = table(&["price", "ns", "from", "to"]);
        for (name, price) in profile.prices() {
            let [least, most] = price.spread;
            rows.add_row([name, price.ns.to_string(), least.to_string(), most.to_string()]);
        }
        let said =
            format!("{}\n`--json FILE` writes the profile for `uslab scale --profile FILE`.\n", text(&rows));
        std::io::stdout().lock().write_all(said.as_bytes()).context("standard output")?;
    }
    Ok(Outcome::Done)
}

fn run_validate(args: &ValidateArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let profile = args.profile.as_deref().map(scale::profile).transpose()?;
    let options = validate::Options { profile, rounds: args.rounds, seed: args.seed };
    let report = validate::validate(&options, &Progress::new())?;
    let to_stdout = json.as_ref().is_some_and(Place::is_stdout);
    if let Some(json) = json {
        json.json(&report)?;
    }
    if !to_stdout {
        std::io::stdout().lock().write_all(report.to_string().as_bytes()).context("standard output")?;
    }
    Ok(Outcome::Done)
}

fn run_diff(args: &DiffArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let read = |path: &Path| {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("{shown}"))?;
        serde_json::from_str(&text).with_context(|| format!("{shown}: expected a report that `--json` wrote"))
    };
    let diff = diff::Diff::new(&read(&args.a)?, &read(&args.b)?, args.above);
    let to_stdout = json.as_ref().is_some_and(Place::is_stdout);
    if let Some(json) = json {
        json.json(&diff)?;
    }
    if !to_stdout {
        let text = diff.text(if args.all { usize::MAX } else { 40 });
        std::io::stdout().lock().write_all(text.as_bytes()).context("standard output")?;
    }
    Ok(Outcome::Done)
}

fn run_convert(args: &ConvertArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let out = Place::open(Form::Operations, &args.out)?;
    let out = Some(out);
    Place::apart([&json, &out])?;
    let options = replay::Options { cpus: args.cpus, ..replay::Options::default() };
    let progress = Progress::new();
    let stream = replay::read_stream(Some(&args.trace), &options, &progress)?;
    drop(progress);
    let bytes = stream.write();
    let (operations, cpus, caches) = (stream.operations, stream.cpus, stream.caches.len());
    let report = Converted { trace: stream.title, operations, cpus, caches, bytes: bytes.len() };
    let to_stdout = [&json, &out].into_iter().flatten().any(Place::is_stdout);
    let text = json.map(|place| json_text(&report).map(|text| (place, text.into_bytes()))).transpose()?;
    write_all(text.into_iter().chain(out.map(|place| (place, bytes))))?;
    if !to_stdout {
        let Converted { trace, bytes, .. } = report;
        let each = bytes as f64 / operations.max(1) as f64;
        let (operations, bytes) = (grouped(operations), grouped(bytes as u64));
        let text = format!(
            "{trace}: {operations} operations on {cpus} CPUs, {caches} caches: {bytes} bytes, {each:.2} an operation\n"
        );
        std::io::stdout().lock().write_all(text.as_bytes()).context("standard output")?;
    }
    Ok(Outcome::Done)
}

fn run_geometry(args: &GeometryArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let cpus = match args.cpus {
        Some(0) => bail!("--cpus 0: expected at least 1"),
        Some(n) if n > 8192 => bail!("--cpus {n}: expected at most 8192, the most that Linux supports"),
        Some(n) => n,
        None => uslab_magazine::Cpus::os().count(),
    };
    let to_stdout = json.as_ref().is_some_and(Place::is_stdout);
    let (text, outcome) = match &args.against {
        None => {
            let table = geometry::table(&args.sizes, args.align, cpus)?;
            if let Some(json) = json {
                json.json(&table)?;
            }
            (table.to_string(), Outcome::Done)
        }
        Some(path) => {
            let live = path == Path::new("live");
            let comparison =
                if live { geometry::against_live(cpus)? } else { geometry::against(path, cpus)? };
            if let Some(json) = json {
                json.json(&comparison)?;
            }
            let outcome = if comparison.mismatches.is_empty() { Outcome::Done } else { Outcome::Violated };
            (comparison.to_string(), outcome)
        }
    };
    if !to_stdout {
        std::io::stdout().lock().write_all(text.as_bytes()).context("standard output")?;
    }
    Ok(outcome)
}

/// Another one each time.
fn any_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos().into())
}

/// Many runs, or a share of them.
fn run_stresses(
    args: &StressArgs,
    of: NonZeroU64,
    options: &stress::Options,
    json: Option<Place>,
) -> anyhow::Result<Outcome> {
    let shard = Shard::asked(args.shard).map_err(anyhow::Error::msg)?;
    let runs = stress::Runs::run(options, of.get(), shard.unwrap_or(Shard::WHOLE), &Progress::new())?;
    let rows = shard.map(|shard| runs.leave(options, shard, args.rows.as_deref())).transpose()?;
    let outcome = told_of_runs(&runs, json)?;
    if let Some(rows) = rows {
        eprintln!("uslab: {}", rows.display());
    }
    Ok(outcome)
}

fn told_of_runs(runs: &stress::Runs, json: Option<Place>) -> anyhow::Result<Outcome> {
    if !json.as_ref().is_some_and(Place::is_stdout) {
        std::io::stdout().lock().write_all(runs.page().as_bytes()).context("standard output")?;
    }
    json.map(|json| json.json(runs)).transpose()?;
    Ok(if runs.violated() { Outcome::Violated } else { Outcome::Done })
}

fn run_stress(args: &StressArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    if !args.merge.is_empty() {
        return told_of_runs(&stress::Runs::merge(&args.merge)?, json);
    }
    let html = args.html.as_deref().map(|path| Place::open(Form::Html, path)).transpose()?;
    Place::apart([&json, &html])?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    let interrupt = move || {
        // Who does not want to wait for the census asks twice.
        if flag.swap(true, Relaxed) {
            std::process::exit(130);
        }
    };
    if let Some(name) = &args.leak
        && !stress::caches().any(|cache| cache == name)
    {
        let caches: Vec<_> = stress::caches().collect();
        bail!("--leak {name}: no such cache; expected one of {}", caches.join(", "));
    }
    let leaked = Arc::new(AtomicBool::new(false));
    ctrlc::set_handler(interrupt).context("the handler of Ctrl-C")?;
    let options = stress::Options {
        seconds: args.seconds,
        operations: args.ops,
        threads: args.threads,
        seed: args.seed.unwrap_or_else(any_seed),
        faults: args.faults.clone(),
        workloads: args.workload.clone(),
        interrupted,
        saboteur: args.leak.clone().map(|name| leaker(name, leaked.clone())),
    };
    if let Some(runs) = args.runs {
        return run_stresses(args, runs, &options, json);
    }
    let progress = Progress::new();
    let report = stress::run(&options, &progress)?;
    drop(progress);
    if let Some(name) = &args.leak
        && !leaked.load(Relaxed)
    {
        bail!(
            "--leak {name}: nothing was leaked: no object was freed to this cache; run longer, or more workloads"
        );
    }
    let to_stdout = [&json, &html].into_iter().flatten().any(Place::is_stdout);
    let mut text = report.page();
    let html = match (html, &report.story) {
        (Some(place), Some(story)) => Some((place, story.page(None)?)),
        (Some(place), None) => {
            text += &format!("{}: not written: it would show the deeds before a violation\n", place.shown());
            None
        }
        (None, _) => None,
    };
    let json = json.map(|place| json_text(&report).map(|text| (place, text))).transpose()?;
    write_all(json.into_iter().chain(html))?;
    if !to_stdout {
        std::io::stdout().lock().write_all(text.as_bytes()).context("standard output")?;
    }
    Ok(if report.violated() { Outcome::Violated } else { Outcome::Done })
}

/// Becomes the lab, as git and cargo become their verbs that are programs; returns if that fails.
fn run_lab(args: &LabArgs, json: Option<&Path>) -> anyhow::Result<Outcome> {
    let beside = std::env::current_exe().ok().map(|uslab| uslab.with_file_name(LAB));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| LAB.into());
    let mut lab = Command::new(&program);
    if let Some(path) = json {
        let mut option = OsString::from("--json=");
        option.push(path);
        lab.arg(option);
    }
    let error = lab.args(&args.arguments).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            "the lab is a program of its own, {LAB}, and is neither beside this one nor on PATH; `cargo lab` builds and runs it"
        );
    }
    Err(error).with_context(|| program.display().to_string())
}
