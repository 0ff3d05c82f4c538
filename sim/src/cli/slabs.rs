//! The options of `uslab slabs`.

use crate::output::command::Outcome;
use crate::output::{Form, Place, Progress, json_text, say, write_all};
use crate::replay::returned_by_shrink;
use crate::slabs::{Change, Report, Request, Snapshot, Sort};
use anyhow::bail;
use serde::Serialize;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Show what a kernel's caches hold, how much of that memory is holes, and which action would return the
/// memory. The command `uslab slabs` needs no trace.
///
/// Without PLACE, `uslab slabs` reads this machine's tables as root: /proc/slabinfo, /sys/kernel/slab,
/// meminfo and buddyinfo. PLACE is a folder of copies (an unpacked sosreport; `slabinfo` next to `slab` or
/// `sys/kernel/slab`; a recording of `uslab record`), one moment in a recording (FOLDER/before), or a single
/// slabinfo file. For a vmcore, use the output of `kmem -s` in crash or of `corelens -M slabinfo` in
/// drgn-tools.
///
/// Holes are free objects in slabs that have other objects in use. A shrink of a kernel's cache frees only
/// completely empty slabs, which the kernel's tables do not count. The report gives bounds for the number of
/// empty slabs, which follow from the kernel's rules (a node keeps at most `min_partial` empty slabs; CPUs
/// hold a few more; free objects in sheaves count as in use). Without the counters in sysfs the bounds are
/// wider. Writing to drop_caches frees unused objects of reclaimable caches; it does not shrink slab caches.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sudo uslab slabs
  sudo uslab slabs --sort holes --all
  sudo uslab slabs --watch=1
  uslab slabs sosreport-host-2026-11-28/
  uslab slabs recording/before --against recording/after
  uslab slabs recording/after --trace recording/trace.txt.zst
  uslab slabs slabinfo.txt --cpus 64 --json slabs.json
  uslab slabs --setting sheaf_capacity=50%
  uslab slabs sosreport-host/ --setting slab_debug=FZPU --setting slab_debug=U,dentry,kmalloc-*
  uslab slabs sosreport-host/ --all --html slabs.html
  ssh host sudo cat /proc/slabinfo | uslab slabs - --kernel 6.12 --cpus 64

Copies to look at elsewhere:
  sudo cat /proc/slabinfo > slabinfo; cat /proc/meminfo > meminfo; cat /proc/buddyinfo > buddyinfo
  sudo cp -r --no-dereference /sys/kernel/slab slab 2>/dev/null")]
pub(super) struct Args {
    /// A folder of tables, one moment in a recording (FOLDER/before), or a slabinfo file (`-` reads a
    /// slabinfo from standard input). Default: this machine's tables.
    #[arg(value_name = "PLACE")]
    place: Option<PathBuf>,
    /// Show the differences between PLACE and later tables, given as a second place; `live` is the current
    /// state of this machine.
    #[arg(long, value_name = "PLACE", conflicts_with = "watch")]
    against: Option<PathBuf>,
    /// The column by which rows are sorted.
    #[arg(long, value_enum, default_value = "bytes")]
    sort: Sort,
    /// The number of rows of each table.
    #[arg(long, value_name = "N", default_value_t = 15)]
    rows: usize,
    /// Show every cache.
    #[arg(long, conflicts_with = "rows")]
    all: bool,
    /// Present CPUs of the machine. Default: the number in the tables.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Release of the kernel, as `uname -r` prints it. Default: the release in the tables. Kernels differ in
    /// the number of objects and slabs that a CPU holds.
    #[arg(long, value_name = "RELEASE", value_parser = kernel)]
    kernel: Option<String>,
    /// Trace of the recording to which PLACE belongs. A model of the traced kernel replays the trace up to
    /// the time at which the tables of PLACE were copied. The replay shows which slabs are empty, so the
    /// report gives the exact result of a shrink instead of bounds.
    #[arg(long, value_name = "FILE", requires = "place", conflicts_with_all = ["watch", "against"])]
    trace: Option<PathBuf>,
    /// Estimate a change of a kernel option: slab_min_order=N, slab_max_order=N, slab_min_objects=N,
    /// cpu_partial=N, sheaf_capacity=N (or P%, a percentage of each cache's capacity), slab_nomerge,
    /// or slab_debug=LETTERS,CACHES. The LETTERS are F, Z, P and U; without CACHES, the option affects all
    /// caches. The option may be given several times. The report lists what the option reduces and what
    /// it increases, with the change for each cache.
    #[arg(long, value_name = "SETTING", conflicts_with = "watch", value_parser = request)]
    setting: Vec<Request>,
    /// Estimate the effects of a built-in selection of kernel options.
    #[arg(long, conflicts_with_all = ["watch", "setting"])]
    settings: bool,
    /// Write the report as a web page: FILE, or `-` for standard output. The page is one file for any browser and needs
    /// no network.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["watch", "against"])]
    html: Option<PathBuf>,
    /// Read the tables again every SECONDS (0.1 to 3600; default 2), and show the changes until you interrupt
    /// the command.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2", value_parser = seconds)]
    watch: Option<Duration>,
    /// With --watch: end after N readings.
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
}

fn request(text: &str) -> Result<Request, String> {
    text.parse().map_err(|error: anyhow::Error| error.to_string())
}

fn kernel(text: &str) -> Result<String, String> {
    let mut numbers = text.splitn(3, '.').take(2).map(|part| part.starts_with(|c: char| c.is_ascii_digit()));
    match (numbers.next(), numbers.next()) {
        (Some(true), Some(true)) => Ok(text.to_owned()),
        _ => Err("expected a release, such as 6.12 or 7.2.13-amd64".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, 0.1 to 3600".to_owned())
}

/// The JSON report of `uslab slabs`.
#[derive(Serialize)]
struct SlabsJson {
    #[serde(flatten)]
    report: Report,
    /// The differences between two sets of tables, if `--against` is given.
    change: Option<Change>,
}

impl Args {
    fn read(&self, place: Option<&Path>) -> anyhow::Result<Report> {
        let mut snapshot = match place {
            Some(path) if path != Path::new("live") => Snapshot::open(path)?,
            _ => Snapshot::live()?,
        };
        if self.kernel.is_some() {
            snapshot.kernel.clone_from(&self.kernel);
        }
        Report::new(&snapshot, self.cpus, self.sort, &self.setting)
    }

    fn rows(&self) -> usize {
        if self.all { usize::MAX } else { self.rows }
    }
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    match args.cpus {
        Some(0) => bail!("--cpus 0: expected at least 1"),
        Some(n) if n > 8192 => bail!("--cpus {n}: expected at most 8192, the most that Linux supports"),
        _ => {}
    }
    if let Some(interval) = args.watch {
        if json.is_some() {
            bail!(
                "--watch: expected no --json, because the report does not end; for a single reading, omit --watch"
            );
        }
        return watch(args, interval);
    }
    let html = args.html.as_deref().map(|path| Place::open(Form::Html, path)).transpose()?;
    Place::check_distinct([&json, &html])?;
    let to_stdout = [&json, &html].into_iter().flatten().any(Place::is_stdout);
    let mut report = args.read(args.place.as_deref())?;
    if let Some(trace) = &args.trace {
        let Some(moment) = report.moment.clone() else {
            bail!("--trace: expected a snapshot of the trace's recording as PLACE, such as recording/after");
        };
        let progress = Progress::new();
        let returned = returned_by_shrink(trace, &moment, &progress)?;
        let later = returned.recorded.as_ref().zip(args.place.as_deref()).and_then(|(recorded, place)| {
            let folder = if place.is_dir() { Some(place) } else { place.parent() };
            args.read(Some(&folder?.join(&recorded.until))).ok()
        });
        report.add_trace_shrink(trace, &returned, later.as_ref());
    }
    let page = html.map(|place| (place, report.page(args.rows())));
    let (told, text) = match &args.against {
        None => {
            let text = report.text(args.rows(), args.settings);
            (SlabsJson { report, change: None }, text)
        }
        Some(later) => {
            let later = args.read(Some(later))?;
            let change = Change::new(&report, &later);
            let text = format!("{}\n{}", change.text(args.rows()), later.text(args.rows(), args.settings));
            (SlabsJson { report: later, change: Some(change) }, text)
        }
    };
    let json = json.map(|place| json_text(&told).map(|text| (place, text))).transpose()?;
    write_all(json.into_iter().chain(page))?;
    if !to_stdout {
        say(&text)?;
    }
    Ok(Outcome::Done)
}

/// Prints the tables of `uslab slabs` again after each interval. On a terminal each table replaces the
/// previous one.
fn watch(args: &Args, interval: Duration) -> anyhow::Result<Outcome> {
    let terminal = std::io::stdout().is_terminal();
    // The number of rows fits on most terminals.
    let rows = if args.all { usize::MAX } else { args.rows };
    let (mut first, mut last) = (None::<(Report, Instant)>, None::<(Report, Instant)>);
    for reading in 1.. {
        let now = Instant::now();
        let report = args.read(args.place.as_deref())?;
        let mut text = if terminal { "\x1b[H\x1b[2J".to_owned() } else { String::new() };
        text += &report.summary();
        if let Some(((first, begun), (before, then))) = first.as_ref().zip(last.as_ref()) {
            let [time, total] = [then, begun].map(|at| now.duration_since(*at));
            text += &report.rates((before, time), (first, total), rows);
        }
        text += &format!("\n{}\n", report.table(rows));
        say(&text)?;
        if args.count.is_some_and(|count| reading >= count) {
            break;
        }
        first.get_or_insert_with(|| (report.clone(), now));
        last = Some((report, now));
        std::thread::sleep(interval);
    }
    Ok(Outcome::Done)
}
