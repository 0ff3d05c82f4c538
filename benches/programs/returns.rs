//! Imitates a service that loads and drops sessions, and reports how much memory stays resident.
//!
//! A session is a struct of 96 bytes, a body of 51 to 4,146 bytes and an entry in a table. While 100,000 sessions are
//! loaded, each session is replaced once on average. Two threads load and drop sessions, so a session may be allocated
//! on one CPU and freed on another CPU.

use crate::common::{Parameter, Parameters, Program, Random};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uslab_benches::resident::resident;

pub(crate) const PROGRAM: Program = Program {
    name: "returns",
    about: "loads and drops sessions; an operation is a session; the resident memory is printed to standard error",
    parameters: &[
        Parameter::new("sessions", 100_000, 5_000, "different sessions"),
        Parameter::new(
            "keep",
            1,
            1,
            "sessions that are kept: 1 none; 2 a tenth, at random; 3 one in each page of the heap",
        ),
        Parameter::new("then", 1, 1, "calls after most sessions are dropped: 1 none; 2 small requests"),
        Parameter::new(
            "on",
            1,
            1,
            "where sessions are loaded: 1 on two threads; 2 in tasks of a tokio runtime with two threads",
        ),
        Parameter::new(
            "ms",
            10_000,
            100,
            "milliseconds until the end; resident memory is also measured after a tenth of this time",
        ),
    ],
    run,
};

struct Session {
    body: Vec<u8>,
    _counts: [u64; 9],
}

impl Session {
    fn new(random: &mut Random) -> Box<Self> {
        let size = random.in_range(1, 64);
        Box::new(Self { body: vec![1; 50 + size * size], _counts: [0; 9] })
    }
    fn page(&self) -> usize {
        self.body.as_ptr().addr() / 4096
    }
}

type Shard = Mutex<HashMap<usize, Box<Session>>>;
const SHARDS: usize = 64;

/// Calls `part` with each number below `parts`: on two threads if `threads` is 1, otherwise in tokio tasks.
fn spread(threads: u64, parts: usize, part: impl Fn(usize) + Send + Sync + 'static) {
    let part = Arc::new(part);
    if threads == 1 {
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let part = &part;
                scope.spawn(move || (thread..parts).step_by(2).for_each(|n| part(n)));
            }
        });
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("the runtime must start with two threads");
    let tasks: Vec<_> = (0..parts)
        .map(|n| {
            let part = part.clone();
            runtime.spawn(async move { part(n) })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("the task must not panic");
        }
    });
}

fn run(parameters: &Parameters) -> u64 {
    let (sessions, threads) = (parameters.size("sessions"), parameters.get("on"));
    let table: Arc<[Shard]> = (0..SHARDS).map(|_| Mutex::default()).collect();
    let baseline = resident();
    let print_mib =
        |label: &str| eprintln!("{label} {:.1} MiB", (resident() - baseline) / f64::from(1 << 20));

    let table_to_load = table.clone();
    spread(threads, SHARDS, move |part| {
        let mut random = Random::new(part as u64);
        for _ in 0..2 * sessions / SHARDS {
            let session = random.below(sessions);
            let new = Session::new(&mut random);
            let old_session = table_to_load[session % SHARDS].lock().insert(session, new);
            drop(old_session);
        }
    });
    print_mib("loaded");

    let (kept_table, kept_percent) = (table.clone(), parameters.get("keep"));
    let pages: Mutex<HashMap<usize, usize>> = Mutex::default();
    if kept_percent == 3 {
        let mut pages = pages.lock();
        table.iter().for_each(|shard| {
            let shard = shard.lock();
            pages.extend(shard.iter().map(|(session, page_holder)| (page_holder.page(), *session)));
        });
    }
    spread(threads, SHARDS, move |part| {
        let mut shard = kept_table[part].lock();
        let pages = pages.lock();
        match kept_percent {
            1 => *shard = HashMap::new(),
            2 => shard.retain(|session, _| Random::new(*session as u64).below(10) == 0),
            _ => shard.retain(|session, page_holder| pages.get(&page_holder.page()) == Some(session)),
        }
    });
    print_mib("dropped");

    let (start, mut random) = (Instant::now(), Random::new(1 << 32));
    let mut small: Vec<Box<Session>> = Vec::new();
    for (label, ms) in [("soon", parameters.get("ms") / 10), ("later", parameters.get("ms"))] {
        let end = Duration::from_millis(ms);
        while let Some(remaining) = end.checked_sub(start.elapsed()) {
            if parameters.get("then") == 1 {
                std::thread::sleep(remaining);
                continue;
            }
            for _ in 0..200 {
                small.push(Session::new(&mut random));
                if small.len() > 1000 {
                    small.swap_remove(random.below(1000));
                }
            }
            std::thread::sleep(Duration::from_millis(1).min(remaining));
        }
        print_mib(label);
    }
    2 * sessions as u64
}
