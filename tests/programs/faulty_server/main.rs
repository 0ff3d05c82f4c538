//! The example server with one more command, `MISTAKE NAME`, which misuses memory.
//!
//! ```console
//! $ faulty_server FZPU 4096     # rules of `slab_debug`, and bytes of the quarantine
//! $ faulty_server heap          # no object caches: the heap, which is `Uslab`
//! ```
//!
//! All modules except `command` come from the source of the example server.

#[path = "../../../slab/examples/server/buffer.rs"]
mod buffer;
mod command;
#[path = "../../../slab/examples/server/connection.rs"]
mod connection;
#[path = "../../../slab/examples/server/memory.rs"]
#[allow(dead_code, reason = "there is no page of metrics here")]
mod memory;
mod mistakes;
#[path = "../../../slab/examples/server/protocol.rs"]
mod protocol;
#[path = "../../../slab/examples/server/store.rs"]
mod store;

use memory::{Caches, Heap, Memory};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use std::error::Error;
use store::Store;
use tokio::net::TcpListener;
use uslab::{Config, Harden, Uslab};

#[global_allocator]
static ALLOCATOR: Uslab = Uslab;

/// Restricts this thread, and all threads that it starts, to the given CPUs.
fn restrict_to_cpus(cpus: impl IntoIterator<Item = usize>) -> nix::Result<()> {
    let mut set = CpuSet::new();
    cpus.into_iter().try_for_each(|cpu| set.set(cpu))?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

fn main() -> Result<(), Box<dyn Error>> {
    // On one CPU, the next request gets the memory that a request freed.
    restrict_to_cpus([sched_getcpu()?])?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["heap"] => run_server(Heap),
        [rules, quarantine] => {
            let slab_debug = rules.parse()?;
            let harden = Harden { quarantine: quarantine.parse()?, seed: Some(1), ..Harden::OFF };
            let debug_config = Config { slab_debug, harden, ..Config::default() };
            // A core dump contains zeros for reserved memory, so the limit is small.
            let with_limit =
                |config: Config| Config { pages: config.pages.limit(32 << 20), ..debug_config.clone() };
            run_server(Caches::new(None, None, with_limit)?)
        }
        _ => Err("expected rules and bytes, or `heap`".into()),
    }
}

fn run_server<M: Memory>(memory: M) -> Result<(), Box<dyn Error>> {
    let store: &'static Store<_> = Box::leak(Box::new(Store::new(memory)));
    // One thread serves, because the process has one CPU.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("listening on {}", listener.local_addr()?);
        Ok(tokio::spawn(connection::accept(store, listener)).await?)
    })
}
