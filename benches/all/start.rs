//! Cost of starting a process, including the start of its malloc.

use std::process::{Command, Stdio};
use std::time::Instant;
use uslab_benches::{Bench, Column, Contender, Kind};

/// The row has one subject: it starts processes with the malloc of this process, so the row compares only preloaded
/// mallocs.
pub(crate) fn row(bench: &mut Bench) {
    bench.row("start", "wall us for the program `true`, from its start to its end");
    let times = bench.scale(200);
    let round = move || {
        let start = Instant::now();
        for _ in 0..times {
            let end = Command::new("true").stdin(Stdio::null()).status().expect("the program `true`");
            assert!(end.success(), "true: {end}");
        }
        vec![start.elapsed().as_secs_f64() * 1e6 / times as f64]
    };
    bench.group("", [Column::lower("", "us")], vec![Contender::new("system", Kind::General, round)]);
}
