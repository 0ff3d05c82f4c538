//! Measures the memory and speed of a server from the view of its clients. The example server runs on object caches or
//! on `Box`; with `Box`, its global allocator is `Uslab`, the C library's malloc, or a peer. `redis-benchmark` loads
//! each server.
//!
//! Each round starts a new server process. The server gets values of four sizes, one size after the other, under the
//! same random keys; most values therefore replace a value of another size. At the end of a round, the benchmark
//! deletes every key and disconnects all clients.

use anyhow::Context;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use uslab_benches::preload::{PreloadedMalloc, peers};
use uslab_benches::resident::{cpu_seconds_of_process, resident_bytes_of_process};
use uslab_benches::{Bench, Column, Contender, Kind};

/// Sizes of the values in bytes: three sizes are in size classes, and one size takes whole pages.
const SIZES: [u32; 4] = [16, 200, 1000, 10_000];
const CLIENTS: u32 = 50;
/// Time from the end of the load to the reading of the remaining memory: several reaper intervals of this project, and
/// the delays of other mallocs.
const IDLE_DURATION: Duration = Duration::from_secs(5);

/// A server, and the command that starts it.
#[derive(Clone)]
struct Subject {
    name: String,
    kind: Kind,
    program: &'static str,
    memory: &'static str,
    preload: Option<PathBuf>,
}

fn subjects() -> Vec<Subject> {
    let system = env!("CARGO_BIN_EXE_server-system");
    let contenders = [
        ("object-caches", Kind::Ours, system, "uslab"),
        ("box-uslab", Kind::Ours, env!("CARGO_BIN_EXE_server-uslab"), "box"),
        #[cfg(feature = "peers")]
        ("box-mimalloc", Kind::General, env!("CARGO_BIN_EXE_server-mimalloc"), "box"),
    ];
    let contenders = contenders.map(|(name, kind, program, memory)| Subject {
        name: name.into(),
        kind,
        program,
        memory,
        preload: None,
    });
    let preloaded = peers().into_iter().map(|PreloadedMalloc { name, kind, library }| Subject {
        name: format!("box-{name}"),
        kind,
        program: system,
        memory: "box",
        preload: library,
    });
    contenders.into_iter().chain(preloaded).collect()
}

/// A running server process, which is killed on drop.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(subject: &Subject) -> anyhow::Result<Self> {
        let mut command = Command::new(subject.program);
        command.envs(subject.preload.iter().map(|library| ("LD_PRELOAD", library)));
        command.args(["--listen", "127.0.0.1:0", "--memory", subject.memory]).stdout(Stdio::piped());
        let mut process = command.spawn().context(subject.program)?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("the server has no standard output")?)
            .read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on ").context("the server does not listen")?;
        Ok(Self { process, address: address.to_owned() })
    }

    /// Deletes every key.
    fn clear(&self) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.write_all(b"FLUSHALL\r\nQUIT\r\n")?;
        let mut first_line = String::new();
        stream.read_to_string(&mut first_line)?;
        anyhow::ensure!(first_line == "+OK\r\n+OK\r\n", "FLUSHALL: {first_line}");
        Ok(())
    }

    fn proc(&self, file: &str) -> anyhow::Result<String> {
        let path = format!("/proc/{}/{file}", self.process.id());
        std::fs::read_to_string(&path).context(path)
    }

    /// Returns the peak of the server's resident bytes.
    fn peak(&self) -> anyhow::Result<f64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: f64 = line.and_then(|line| line.trim().strip_suffix(" kB")).context("VmHWM")?.parse()?;
        Ok(kib * 1024.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have exited.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// The work that a server's clients do in one round.
#[derive(Clone, Copy)]
struct Load {
    requests: usize,
    keys: usize,
    pipelined: u32,
}

impl Load {
    /// Sets values of one size, and then gets the same values. Returns the requests per second and the 99th percentile
    /// of the latency in ms, for sets and for gets.
    fn run(self, server: &Server, bytes: u32) -> anyhow::Result<Vec<[f64; 2]>> {
        let (host, port) = server.address.rsplit_once(':').context("no free port")?;
        let options = [
            ("-h", host),
            ("-p", port),
            ("-t", "set,get"),
            ("-c", &CLIENTS.to_string()),
            ("-P", &self.pipelined.to_string()),
            ("-n", &self.requests.to_string()),
            ("-r", &self.keys.to_string()),
            ("-d", &bytes.to_string()),
        ];
        let mut command = Command::new("redis-benchmark");
        command.args(options.iter().flat_map(|(name, value)| [name, value])).arg("--csv");
        let output = command.output().context("redis-benchmark (Debian has it in redis-tools)")?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms", ...
        let row = |line: &str| {
            let numbers: Vec<f64> =
                line.split(',').filter_map(|n| n.trim_matches('"').parse().ok()).collect();
            Ok([*numbers.first().context("rps")?, *numbers.get(5).context("p99")?])
        };
        let text = String::from_utf8(output.stdout)?;
        let rows: Vec<_> = text.lines().skip(1).map(row).collect::<anyhow::Result<_>>()?;
        anyhow::ensure!(rows.len() == 2, "redis-benchmark: {text}");
        Ok(rows)
    }

    /// Runs one round. Returns a value for each column.
    fn round(self, subject: &Subject) -> anyhow::Result<Vec<f64>> {
        let server = Server::start(subject)?;
        let mut rows = Vec::new();
        for bytes in SIZES {
            rows.extend(self.run(&server, bytes)?);
        }
        let n = rows.len() as f64;
        let seconds: f64 = rows.iter().map(|[rate, _]| 1.0 / rate).sum();
        let p99 = rows.iter().map(|[_, p99]| p99).sum::<f64>() / n;
        let cpu = cpu_seconds_of_process(server.process.id())?
            .map(|seconds| seconds * 1e6 / (n * self.requests as f64));
        let peak = server.peak()?;
        server.clear()?;
        std::thread::sleep(IDLE_DURATION);
        let resident_bytes = resident_bytes_of_process(server.process.id());
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        Ok(vec![n / seconds / 1000.0, p99, cpu[0] + cpu[1], cpu[1], mib(peak), mib(resident_bytes)])
    }
}

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start(
        "server",
        "the example server under redis-benchmark: 50 clients set and get values of 16 to 10,000 B, a process each round",
    );
    let keys = bench.scale(20_000);
    let loads = [("16 at a time", 16, bench.scale(200_000)), ("one at a time", 1, bench.scale(20_000))];
    for (case, pipelined, requests) in loads {
        let load = Load { requests, keys, pipelined };
        let contender = |subject: &Subject| {
            let subject = subject.clone();
            let (name, kind) = (subject.name.clone(), subject.kind);
            let round = move || {
                load.round(&subject).unwrap_or_else(|error| {
                    eprintln!("{}: {error:#}", subject.name);
                    Vec::new()
                })
            };
            Contender::new(name, kind, round)
        };
        let columns = [
            Column::higher("throughput", "k/s"),
            Column::lower("p99", "ms"),
            Column::lower("server's CPU a request", "us"),
            Column::lower("its own code", "us"),
            Column::lower("peak", "MiB"),
            Column::lower("all deleted, clients gone", "MiB"),
        ];
        bench.group(case, columns, subjects().iter().map(contender).collect());
    }
    bench.run()
}
