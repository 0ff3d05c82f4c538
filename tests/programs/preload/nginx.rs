//! Tests nginx: its first process allocates memory and then forks workers, and each worker has threads that read files.

use super::server::Server;
use super::{command, preloaded, print_line, program, run_long_tests, text};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const WORKERS: usize = 3;

/// The requested paths: plain files, compressed files, web pages that are assembled from parts, and the same files
/// through a proxy.
const NGINX_PATHS: &[&str] =
    &["/small", "/middle", "/large", "/parts.shtml", "/again/middle", "/again/large", "/again/parts.shtml"];

fn configuration(port: u16, dir: &Path) -> String {
    // As root, workers also run as root, because they could not read a directory with access for its owner only.
    let user = if dir.metadata().unwrap().uid() == 0 { "user root;" } else { "" };
    // A request that wrk abandons would otherwise keep its worker for a minute.
    format!(
        "{user} daemon off; pid pid; error_log error.log notice; worker_processes {WORKERS}; thread_pool default threads=4; worker_shutdown_timeout 2s;
        events {{ worker_connections 512; }}
        http {{
            access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4;
            scgi_temp_path t5; default_type text/html; aio threads; directio 64k; ssi on;
            gzip on; gzip_types *; gzip_proxied any; gzip_http_version 1.0;
            server {{
                listen 127.0.0.1:{port}; listen unix:{0}/socket; root {0}/files;
                location /again/ {{ proxy_pass http://unix:{0}/socket:/; proxy_buffers 4 4k; }}
            }}
        }}",
        dir.display()
    )
}

/// Returns the status line and the body of a response; other header lines contain dates and are omitted.
fn get(port: u16, path: &str, options: &str) -> Vec<u8> {
    let mut answer = vec![];
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n{options}\r\n").as_bytes()).unwrap();
    stream.read_to_end(&mut answer).unwrap();
    let line = answer.iter().position(|byte| *byte == b'\r').unwrap();
    let body = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    answer.drain(line..body);
    answer
}

fn answers(nginx: &Path, wrk: &Path, preloads: bool) -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::create_dir(dir.join("files")).unwrap();
    for (name, lines) in [("small", 5), ("middle", 900), ("large", 40_000)] {
        let text: String = (0..lines).map(|n| format!("{} {name}\n", n * 7919 % 10_007)).collect();
        std::fs::write(dir.join("files").join(name), text).unwrap();
    }
    let parts = "<!--#include virtual=\"/small\" --> <!--#include virtual=\"/middle\" -->".repeat(5);
    std::fs::write(dir.join("files/parts.shtml"), parts).unwrap();
    // The port was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::write(dir.join("conf"), configuration(port, dir)).unwrap();
    let nginx = |options: &[&str]| {
        let mut nginx = command(nginx, &["-p"]);
        nginx.arg(dir).args(["-e", "error.log", "-c"]).arg(dir.join("conf")).args(options);
        nginx
    };
    let mut server = Server::start(nginx(&[]), nginx(&["-s", "quit"]), dir, preloads);
    server.wait_until("nginx answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());

    let all = || -> Vec<_> {
        let pairs = NGINX_PATHS
            .iter()
            .flat_map(|path| ["", "Accept-Encoding: gzip\r\n"].map(|options| get(port, path, options)));
        pairs.collect()
    };
    let bodies = all();
    let large_file = std::fs::read(dir.join("files/large")).unwrap();
    assert!(bodies.iter().all(|answer| answer.starts_with(b"HTTP/1.1 200 OK\r\n\r\n")));
    assert!(bodies[4].ends_with(&large_file) && bodies[4].len() == large_file.len() + 19);
    assert!(bodies[5].len() * 2 < bodies[4].len(), "the body must be compressed");

    let script = format!(
        "local paths, i = {{'{}'}}, 0
        request = function()
            i = i + 1
            local packed = i % 2 == 0 and {{['Accept-Encoding'] = 'gzip'}} or nil
            return wrk.format('GET', paths[i % #paths + 1], packed)
        end",
        NGINX_PATHS.join("', '")
    );
    std::fs::write(dir.join("paths.lua"), script).unwrap();
    if preloads {
        let duration = if run_long_tests() { "20s" } else { "2s" };
        let mut wrk = command(wrk, &["-t2", "-c24", "-d", duration, "-s"]);
        wrk.arg(dir.join("paths.lua")).arg(format!("http://127.0.0.1:{port}/"));
        let output = preloaded(&mut wrk, "check=1");
        let report = text(&output.stdout);
        assert!(
            output.status.success() && !report.contains("Non-2xx") && !report.contains("Socket errors"),
            "{report}"
        );
        let requests: u64 =
            report.split_once(" requests in").unwrap().0.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(requests > 100, "{report}");
        print_line(&format!("preload: nginx: {requests} requests of wrk succeeded"));
    }
    assert!(all() == bodies, "the answers must not change after the load");
    // New workers are forked from a process that has freed a whole configuration.
    assert!(nginx(&["-s", "reload"]).status().unwrap().success());
    let log = || std::fs::read_to_string(dir.join("error.log")).unwrap();
    server.wait_until("workers are replaced", || {
        let has_ended = log()
            .lines()
            .filter(|line| line.contains(" worker process ") && line.ends_with(" exited with code 0"))
            .count();
        has_ended == WORKERS && log().matches("start worker process ").count() == 2 * WORKERS
    });
    assert!(all() == bodies, "the answers must not change after a reload");
    let tables = server.end();
    assert!(!preloads || tables > 2 * WORKERS, "too few processes used the library: {tables}");
    bodies
}

#[test]
fn nginx_output_is_unchanged_by_the_preloaded_library() {
    let (Some(nginx), Some(wrk)) = (program("nginx"), program("wrk")) else { return };
    let [without_library, with] = [false, true].map(|with| answers(&nginx, &wrk, with));
    assert!(with == without_library, "the bodies must be equal");
    let bytes: usize = with.iter().map(Vec::len).sum();
    print_line(&format!("preload: nginx: the same {bytes} bytes with and without the library"));
}
