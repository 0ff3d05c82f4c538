//! Measures servers, each with a client that sends a fixed number of requests. Wall-clock time is measured in the
//! client; CPU time and peak memory are measured in the server.

use crate::{Cost, Failure, Work};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use wait4::Wait4 as _;

/// How long to wait for a server's first answer.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts `server`, waits until `answers` returns `true`, times `load`, and stops the server with the signal `end`.
fn measure_server(
    mut server: Command,
    end: Signal,
    answers: impl Fn() -> bool,
    load: impl FnOnce() -> Result<Vec<u8>, Failure>,
) -> Result<Cost, Failure> {
    let name = format!("{server:?}");
    let mut process =
        server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the server must start");
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("a process"));
    let start = Instant::now();
    while !answers() {
        if let Some(status) = process.try_wait().expect("the server's state must be readable") {
            return Err(Failure(format!("{name} ended before it answered: {status}")));
        }
        if start.elapsed() > FIRST_ANSWER_TIMEOUT {
            _ = kill(pid, Signal::SIGKILL);
            return Err(Failure(format!("{name} did not answer for {} s", FIRST_ANSWER_TIMEOUT.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let start = Instant::now();
    let load_result = load();
    let time = start.elapsed();
    _ = kill(pid, end);
    let exit_status = process.wait4().expect("the server must be waited for");
    let answer = load_result?;
    // Some servers end by the signal itself, or with the exit code that a shell uses for that signal.
    let of_signal = exit_status.status.signal() == Some(end as i32)
        || exit_status.status.code() == Some(128 + end as i32);
    if !exit_status.status.success() && !of_signal {
        return Err(Failure(format!("{name}: {:?}", exit_status.status)));
    }
    Ok(Cost { answer, ..Cost::new(time, &exit_status.rusage) })
}

/// Returns the standard output of a client, which must succeed.
fn output(mut client: Command) -> Result<String, Failure> {
    let client_output = client.output().expect("the server must start");
    if !client_output.status.success() {
        return Err(Failure(format!("{client:?}: {}", String::from_utf8_lossy(&client_output.stderr))));
    }
    Ok(String::from_utf8_lossy(&client_output.stdout).into_owned())
}

/// Returns a local TCP port on which no process listens.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// Loads a Redis server with redis-benchmark's requests for strings, lists, sets, hashes and sorted sets.
pub(crate) fn redis(work: &Work<'_>) -> Result<Cost, Failure> {
    let socket = work.dir.join("socket");
    let mut server = work.command("redis-server");
    server.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
    let client = |program: &str| {
        let mut client = Command::new(program);
        client.arg("-s").arg(&socket);
        client
    };
    let answers = || {
        client("redis-cli").arg("ping").output().expect("the server must start").stdout.starts_with(b"PONG")
    };
    let load = || {
        let requests = work.scale(100_000).to_string();
        let commands = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset";
        let mut bench = client("redis-benchmark");
        bench.args(["-q", "-n", &requests, "-r", "100000", "-d", "128", "-P", "16", "-t", commands]);
        output(bench)?;
        Ok(Vec::new())
    };
    measure_server(server, Signal::SIGTERM, answers, load)
}

/// Loads a memcached server on eight connections: sets, replaces and reads back values of 10 to 4,000 bytes.
pub(crate) fn memcached(work: &Work<'_>) -> Result<Cost, Failure> {
    let socket = work.dir.join("socket");
    let mut server = work.command("memcached");
    server.args(["-u", "root", "-m", "256", "-t", "2", "-s"]).arg(&socket);
    let rounds = work.scale(20_000);
    let load = || {
        let connections: Vec<_> = (0..8)
            .map(|connection| {
                let socket = socket.clone();
                std::thread::spawn(move || query_memcached(&socket, connection, rounds))
            })
            .collect();
        let sums = connections.into_iter().map(|connection| connection.join().expect("the client must end"));
        let sum: usize = sums.collect::<Result<Vec<_>, _>>()?.into_iter().sum();
        Ok(sum.to_string().into_bytes())
    };
    measure_server(server, Signal::SIGTERM, || UnixStream::connect(&socket).is_ok(), load)
}

/// Sends the memcached requests of one connection, and returns the number of bytes that it read back. Each value that
/// is read back must equal the value that was set.
fn query_memcached(socket: &Path, connection: u32, rounds: u32) -> Result<usize, Failure> {
    let exchange = || -> std::io::Result<Option<usize>> {
        let mut stream = UnixStream::connect(socket)?;
        let (mut sum, mut report) = (0, Vec::new());
        for n in 0..rounds {
            let key = format!("{connection}-{}", n % 2_000);
            let value = vec![b'a' + (n % 26) as u8; (10 + n * 7919 % 3_990) as usize];
            let set = format!("set {key} 0 0 {}\r\n", value.len());
            stream.write_all(&[set.as_bytes(), &value, b"\r\n"].concat())?;
            report.resize("STORED\r\n".len(), 0);
            stream.read_exact(&mut report)?;
            if report != b"STORED\r\n" {
                return Ok(None);
            }
            stream.write_all(format!("get {key}\r\n").as_bytes())?;
            let head = format!("VALUE {key} 0 {}\r\n", value.len());
            let expected = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
            report.resize(expected.len(), 0);
            stream.read_exact(&mut report)?;
            if report != expected {
                return Ok(None);
            }
            sum += value.len();
        }
        Ok(Some(sum))
    };
    match exchange() {
        Ok(Some(sum)) => Ok(sum),
        Ok(None) => Err(Failure("memcached: another answer than expected".into())),
        Err(error) => Err(Failure(format!("memcached: {error}"))),
    }
}

/// Sends HTTP requests on 16 persistent connections.
fn http(work: &Work<'_>, server: Command, port: u16) -> Result<Cost, Failure> {
    let address = format!("http://127.0.0.1:{port}/index.html");
    let ab = |requests: u32| {
        let mut client = Command::new("ab");
        client.args(["-q", "-k", "-c", "16", "-H", "Accept-Encoding: gzip", "-n", &requests.to_string()]);
        client.arg(&address);
        output(client)
    };
    let answers = || ab(16).is_ok_and(|report| report.contains("Complete requests:      16"));
    let load = || {
        let report = ab(work.scale(60_000))?;
        let counts = report
            .lines()
            .filter(|line| ["Complete", "Failed", "Non-2xx"].iter().any(|prefix| line.starts_with(prefix)));
        Ok(counts.collect::<Vec<_>>().join("\n").into_bytes())
    };
    measure_server(server, Signal::SIGTERM, answers, load)
}

/// Loads an nginx server with requests for a web page of 20 KiB, which nginx compresses again for each request.
pub(crate) fn nginx(work: &Work<'_>) -> Result<Cost, Failure> {
    let port = port();
    let page: String = (0..2_500).map(|n| format!("{} ", n * 7919 % 10_007)).collect();
    work.file("index.html", page);
    let dir = work.dir.display();
    let conf = work.file(
        "nginx.conf",
        format!(
            "user root; daemon off; worker_processes 2; pid {dir}/pid; error_log {dir}/errors;
             events {{ worker_connections 256; }}
             http {{
                 access_log off; gzip on; gzip_types text/plain; keepalive_requests 1000000;
                 client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
                 uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
                 server {{ listen 127.0.0.1:{port}; root {dir}; }}
             }}"
        ),
    );
    let mut server = work.command("nginx");
    server.arg("-p").arg(work.dir).arg("-e").arg(work.dir.join("errors")).arg("-c").arg(conf);
    http(work, server, port)
}

/// Loads HAProxy with requests whose headers it changes, and which it answers without a backend server.
pub(crate) fn haproxy(work: &Work<'_>) -> Result<Cost, Failure> {
    let port = port();
    let conf = work.file(
        "haproxy.cfg",
        format!(
            "global
    nbthread 2
defaults
    mode http
    timeout client 10s
    timeout server 10s
    timeout connect 10s
frontend all
    bind 127.0.0.1:{port}
    http-request set-var(txn.path) path,url_dec
    http-request set-header X-Path %[var(txn.path)]
    http-request return status 200 content-type text/plain lf-string \"%[var(txn.path)] %[req.hdr(X-Path)]\\n\"
"
        ),
    );
    let mut server = work.command("haproxy");
    server.arg("-f").arg(conf);
    http(work, server, port)
}

/// Loads a PostgreSQL server with pgbench, on a database that does not wait for writes to disk.
pub(crate) fn postgres(work: &Work<'_>) -> Result<Cost, Failure> {
    // PostgreSQL's tools are in the folder of its server, which need not be in the path.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let postgres = std::env::split_paths(&path).map(|dir| dir.join("postgres")).find(|file| file.is_file());
    let program = std::fs::canonicalize(postgres.expect("postgres must be in the path")).expect("a path");
    let data = work.dir.join("data");
    let is_root = nix::unistd::geteuid().is_root();
    // The PostgreSQL server refuses to run as root.
    let command = |program: PathBuf| {
        let mut command = if is_root { Command::new("setpriv") } else { Command::new(&program) };
        if is_root {
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]).arg(&program);
        }
        command.current_dir(work.dir).stdin(Stdio::null());
        command
    };
    if is_root {
        let mut chown = Command::new("chown");
        chown.arg("postgres").arg(work.dir);
        output(chown)?;
    }
    let mut initdb = command(program.with_file_name("initdb"));
    initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "-D"]).arg(&data);
    output(initdb)?;
    let mut server = command(program.clone());
    server.arg("-D").arg(&data).arg("-k").arg(work.dir).args(["-c", "listen_addresses=", "-c", "fsync=off"]);
    if let Some(library) = work.library {
        server.env("LD_PRELOAD", library);
    }
    let client = |name: &str| {
        let mut client = Command::new(program.with_file_name(name));
        client.arg("-h").arg(work.dir).args(["-U", "postgres"]);
        client
    };
    let answers = || client("pg_isready").output().expect("the server must start").status.success();
    let load = || {
        let mut fill = client("pgbench");
        fill.args(["-i", "-q", "-s", "2", "postgres"]);
        output(fill)?;
        let mut bench = client("pgbench");
        bench.args(["-c", "4", "-j", "2", "-t", &work.scale(2_000).to_string(), "postgres"]);
        let report = output(bench)?;
        let counts =
            report.lines().filter(|line| line.contains("actually processed") || line.contains("failed"));
        Ok(counts.collect::<Vec<_>>().join("\n").into_bytes())
    };
    measure_server(server, Signal::SIGINT, answers, load)
}
