//! A key-value server with the Redis protocol. The server's connections, buffers and entries are objects of caches or,
//! for comparison, of `Box`.
//!
//! ```console
//! $ cargo run --release -p uslab --example server -- --max-memory 64
//! $ redis-benchmark -t set,get -P 16 -q
//! $ redis-cli info
//! ```
//!
//! | module | |
//! |---|---|
//! | `memory` | allocation of objects |
//! | `store` | keys and values |
//! | `alloc_buffer`, `protocol` | bytes of a client, and their parser |
//! | `command` | execution of requests |
//! | `alloc_connection` | a client |
//! | `metrics` | statistics for Prometheus |

mod buffer;
mod command;
mod connection;
mod memory;
mod metrics;
mod protocol;
mod store;

use clap::{CommandFactory, Parser, ValueEnum, error::ErrorKind};
use memory::{Caches, Heap, Memory};
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use store::Store;
use tokio::net::TcpListener;
use uslab::Config;
use uslab::debug::flags::DebugRules;

/// A key-value server on object caches. The server speaks the protocol of Redis, has no passwords, and saves
/// nothing.
#[derive(Debug, Parser)]
struct Options {
    /// Address and port to listen at; port 0 selects any free port
    #[arg(long, default_value = "127.0.0.1:6379")]
    listen: SocketAddr,
    /// Allocator of connections, buffers and entries
    #[arg(long, value_enum, default_value = "uslab")]
    memory: Source,
    /// Limit in MiB for keys and values, at least 16; a larger value is refused with an error
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..))]
    max_memory: Option<u32>,
    /// Number of clients that are served at a time, rounded up to whole slabs of connections; more clients wait until
    /// one disconnects
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    max_clients: Option<u32>,
    /// Debug rules that select the caches whose objects are checked, such as FZPU, or FZ,entry;U,malloc-*
    #[arg(long, value_name = "RULES")]
    slab_debug: Option<DebugRules>,
    /// Address at which the server provides Prometheus metrics of its caches and of tokio's runtime
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Number of worker threads [default: one per CPU]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Source {
    /// Object caches
    Uslab,
    /// `Box`, which uses the program's allocator
    Box,
}

pub(crate) fn main() -> ExitCode {
    let options = Options::parse();
    let result = match options.memory {
        Source::Uslab => {
            let limit = options.max_memory.map(|mib| mib as usize * (1 << 20));
            let with_options =
                |config| Config { slab_debug: options.slab_debug.clone().unwrap_or_default(), ..config };
            Caches::new(limit, options.max_clients, with_options).and_then(|caches| run(caches, &options))
        }
        Source::Box
            if options.max_memory.is_some()
                || options.max_clients.is_some()
                || options.slab_debug.is_some() =>
        {
            let why = "--max-memory, --max-clients and --slab-debug: expected --memory caches, not box";
            Options::command().error(ErrorKind::ArgumentConflict, why).exit()
        }
        Source::Box => run(Heap, &options),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    // An error of the write to standard error cannot be reported.
    _ = writeln!(std::io::stderr(), "server: {error}");
    ExitCode::from(2)
}

fn run<M: Memory>(memory: M, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = options.threads {
        runtime.worker_threads(threads.into());
    }
    // The store lives as long as the process, so it outlives every task.
    let store: &'static Store<M> = Box::leak(Box::new(Store::new(memory)));
    runtime.enable_all().build()?.block_on(async {
        if let Some(address) = options.metrics {
            let bound = TcpListener::bind(address).await;
            let listener = bound.map_err(|error| format!("--metrics {address}: {error}"))?;
            writeln!(std::io::stdout(), "metrics on http://{}/metrics", listener.local_addr()?)?;
            tokio::spawn(metrics::serve(listener, metrics::registry(memory)));
        }
        let bound = TcpListener::bind(options.listen).await;
        let listener = bound.map_err(|error| format!("--listen {}: {error}", options.listen))?;
        writeln!(std::io::stdout(), "listening on {}", listener.local_addr()?)?;
        // A worker thread accepts clients. The main thread only waits.
        Ok(tokio::spawn(connection::accept(store, listener)).await?)
    })
}
