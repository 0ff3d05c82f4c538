//! Simulates a day of a published server: copies of `mini-redis` run on object caches and on other mallocs, at the same
//! time and under the same load. `.ci/adopt servers` builds the servers; `slab/examples/adopt/README.md` describes the
//! changes.
//!
//! Clients connect in the morning and leave in the evening. Each client sends requests at random times, half of them
//! `SET` with a time to live, half `GET`. Latency counts from a request's scheduled time, so a request that a slow
//! request delays also counts as slow.

mod load;
mod picture;

use anyhow::Context;
use clap::Parser;
use hdrhistogram::Histogram;
use load::{Curve, ServerMeasurements};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uslab_benches::resident::{cpu_seconds_of_process, resident_bytes_of_process};

/// Simulates a day's load on servers
#[derive(Debug, Parser)]
struct Options {
    /// Length of the simulated day in minutes
    #[arg(long, default_value_t = 20.0)]
    minutes: f64,
    /// Requests per second that each server gets at the peak
    #[arg(long, default_value_t = 600.0)]
    rate: f64,
    /// Server programs to compare; each listens at `--port PORT`
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/adopt/servers"))]
    servers: PathBuf,
    /// Folder to which the rows, the table and the picture are written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/day"))]
    out: PathBuf,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// Order of the servers in the table: this project's servers, then the other servers. Unknown servers follow.
const ORDER: [&str; 5] = ["object-caches", "uslab", "jemalloc", "mimalloc", "system"];
/// Number of servers that belong to this project; the order begins with these servers. For each of this project's
/// servers, the table shows the ratio to the best other server.
const PROJECT_SERVER_COUNT: usize = 2;
/// Number of intervals into which the day is divided; each has separate quantiles.
const INTERVALS: usize = 40;
/// Names of the parts of the day, with the end of each part as a fraction of the day.
const PARTS: [(&str, f64); 3] = [("rise", 0.3), ("peak", 0.6), ("night", 1.0)];

/// A running server process, which is killed on drop.
struct Server {
    name: String,
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(program: &std::path::Path) -> anyhow::Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Chooses a free port, because the server would not report a port that it chose itself.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(program);
        command.args(["--port", &address.port().to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
        // `USLAB_OPTIONS` affects only servers on uslab's malloc. Other mallocs return memory automatically, or not at
        // all.
        command.env("USLAB_OPTIONS", "reap=500");
        let process = command.spawn().with_context(|| program.display().to_string())?;
        let server = Self { name, process, address };
        let start_time = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            anyhow::ensure!(
                start_time.elapsed() < Duration::from_secs(30),
                "{} does not listen",
                server.name
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have exited.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// One row of the output file.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Row<'a> {
    /// Memory of a server over the day, measured once per second.
    Memory { server: &'a str, second: f64, resident: u64, live: u64 },
    /// Latencies in microseconds of all requests that were scheduled in one interval.
    Times { server: &'a str, from: f64, requests: u64, p50: u64, p99: u64, max: u64 },
}

/// Results of one server over the simulated day.
struct DayResults {
    name: String,
    /// One entry per second: the time, the server's resident bytes, and the bytes of unexpired values.
    memory: Vec<(f64, f64, f64)>,
    intervals: Vec<Histogram<u64>>,
    /// CPU time that the server used, in seconds.
    cpu: f64,
    errors: u64,
}

impl DayResults {
    /// Returns the peak resident memory in MiB.
    fn peak(&self) -> f64 {
        self.memory.iter().map(|(_, resident, _)| resident / MIB).fold(0.0, f64::max)
    }
    fn mean(&self) -> f64 {
        self.memory.iter().map(|(_, resident, _)| resident / MIB).sum::<f64>() / self.memory.len() as f64
    }
    /// Returns the median resident memory over the last tenth of the day, in MiB.
    fn end(&self) -> f64 {
        let mut last: Vec<_> = self.memory.iter().rev().take(self.memory.len().div_ceil(10)).collect();
        last.sort_by(|a, b| a.1.total_cmp(&b.1));
        last.get(last.len() / 2).map_or(0.0, |(_, resident, _)| resident / MIB)
    }
    /// Returns the 99th percentile of request latencies between two times of the day, in milliseconds.
    fn p99(&self, from: f64, to: f64) -> f64 {
        let interval_of = |part: f64| (part * INTERVALS as f64).round() as usize;
        let mut histogram = Histogram::<u64>::new(3).expect("a precision of three digits must be valid");
        for interval in &self.intervals[interval_of(from)..interval_of(to)] {
            histogram.add(interval).expect("the histograms must have the same range");
        }
        histogram.value_at_quantile(0.99) as f64 / 1000.0
    }
    fn requests(&self) -> u64 {
        self.intervals.iter().map(Histogram::len).sum()
    }
}

const MIB: f64 = (1 << 20) as f64;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let curve = Curve::new(Duration::from_secs_f64(options.minutes * 60.0), options.rate);
    let server_files = std::fs::read_dir(&options.servers).with_context(|| {
        format!("{}: not found; `.ci/adopt servers` builds the servers", options.servers.display())
    })?;
    let mut programs = server_files.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    let place = |path: &PathBuf| ORDER.iter().position(|name| path.ends_with(name)).unwrap_or(ORDER.len());
    programs.sort_by_key(|path| (place(path), path.clone()));
    std::fs::create_dir_all(&options.out)?;
    let servers = programs.iter().map(|path| Server::start(path)).collect::<anyhow::Result<Vec<_>>>()?;

    let days = run(&servers, curve)?;
    drop(servers);

    let mut rows = BufWriter::new(File::create(options.out.join("rows.json"))?);
    let length = curve.day().as_secs_f64();
    for day in &days {
        let server = day.name.as_str();
        for (second, resident, live) in &day.memory {
            let row = Row::Memory { server, second: *second, resident: *resident as u64, live: *live as u64 };
            writeln!(rows, "{}", serde_json::to_string(&row)?)?;
        }
        for (i, times) in day.intervals.iter().enumerate() {
            let (p50, p99) = (times.value_at_quantile(0.5), times.value_at_quantile(0.99));
            let from = length * i as f64 / INTERVALS as f64;
            let row = Row::Times { server, from, requests: times.len(), p50, p99, max: times.max() };
            writeln!(rows, "{}", serde_json::to_string(&row)?)?;
        }
    }
    rows.flush()?;
    let table = table(&days);
    print!("{table}");
    std::fs::write(options.out.join("table.md"), &table)?;
    let picture =
        picture::draw(&days, length).map_err(|error| anyhow::anyhow!("cannot draw the picture: {error}"))?;
    std::fs::write(options.out.join("day.svg"), picture)?;
    println!("rows, table and picture: {}", options.out.display());
    let errors: u64 = days.iter().map(|day| day.errors).sum();
    anyhow::ensure!(errors == 0, "{errors} connections failed");
    anyhow::ensure!(days.iter().all(|day| day.requests() > 0), "a server served no request");
    Ok(())
}

fn run(servers: &[Server], curve: Curve) -> anyhow::Result<Vec<DayResults>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let measurements: Vec<_> = servers.iter().map(|_| Arc::new(ServerMeasurements::new(INTERVALS))).collect();
    let mut memory: BTreeMap<usize, Vec<(f64, f64, f64)>> = BTreeMap::new();
    let start = Instant::now() + Duration::from_millis(200);
    for (i, (server, measurements)) in servers.iter().zip(&measurements).enumerate() {
        load::start(&runtime, server.address, i as u64, curve, start.into(), measurements);
    }
    for second in 0..curve.day().as_secs() {
        let elapsed = Duration::from_secs(second);
        std::thread::sleep((start + elapsed).saturating_duration_since(Instant::now()));
        for (i, (server, measurements)) in servers.iter().zip(&measurements).enumerate() {
            let totals = memory.entry(i).or_default();
            totals.push((
                second as f64,
                resident_bytes_of_process(server.process.id()),
                measurements.live(elapsed) as f64,
            ));
        }
    }
    std::thread::sleep((start + curve.day()).saturating_duration_since(Instant::now()));
    let cpu = servers
        .iter()
        .map(|server| cpu_seconds_of_process(server.process.id()))
        .collect::<Result<Vec<_>, _>>()?;
    runtime.shutdown_timeout(Duration::from_secs(10));
    let days =
        servers.iter().zip(&measurements).zip(cpu).enumerate().map(|(i, ((server, measurements), cpu))| {
            DayResults {
                name: server.name.clone(),
                memory: memory.remove(&i).unwrap_or_default(),
                intervals: measurements.intervals(),
                cpu: cpu.iter().sum(),
                errors: measurements.errors(),
            }
        });
    Ok(days.collect())
}

/// The columns of the table: a name, and a function that computes the value from a day's results.
type Columns = [(&'static str, fn(&DayResults) -> f64); 7];
const COLUMNS: Columns = [
    ("RSS, peak, MiB", DayResults::peak),
    ("mean of the day", DayResults::mean),
    ("end of the night", DayResults::end),
    ("p99, rise, ms", |day| day.p99(0.0, PARTS[0].1)),
    ("peak", |day| day.p99(PARTS[0].1, PARTS[1].1)),
    ("evening and night", |day| day.p99(PARTS[1].1, PARTS[2].1)),
    ("CPU, s", |day| day.cpu),
];

/// Makes a table with one row per server. The rows of this project's servers show the ratio to the best other server in
/// brackets.
fn table(days: &[DayResults]) -> String {
    let is_own_server = |day: &DayResults| ORDER[..PROJECT_SERVER_COUNT].contains(&day.name.as_str());
    let mut text = format!("| server | {} | requests |\n|---|", COLUMNS.map(|(name, _)| name).join(" | "));
    text += &"---|".repeat(COLUMNS.len() + 1);
    text += "\n";
    for day in days {
        text += &format!("| {} |", day.name);
        for (_, column) in COLUMNS {
            let best =
                days.iter().filter(|day| !is_own_server(day)).map(column).fold(f64::INFINITY, f64::min);
            let value = column(day);
            let number_text = if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
            text += &match is_own_server(day) && best.is_finite() {
                true => format!(" {number_text} ({:.2}) |", value / best),
                false => format!(" {number_text} |"),
            };
        }
        text += &format!(" {} |\n", day.requests());
    }
    let live =
        days.first().map_or(0.0, |day| day.memory.iter().map(|sample| sample.2 / MIB).fold(0.0, f64::max));
    text + &format!("\nValues that are live at the peak: {live:.1} MiB.\n")
}
