//! Resident memory of a service after it has dropped its data: a table, of the program `returns` with each malloc preloaded.
//!
//! `cargo bench -p uslab-benches --bench returns`, some 20 minutes; `-- --quick` shows that it works.

use clap::Parser;
use std::process::Command;
use uslab_benches::Kind;
use uslab_benches::preload::{Preload, peers};

#[derive(Parser)]
struct Options {
    /// Small and short: numbers mean little, but everything runs
    #[arg(long)]
    quick: bool,
    /// Only the mallocs whose name contains this
    malloc: Option<String>,
    /// Cargo says this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

const KEPT: [&str; 3] = ["all dropped", "nine tenths", "all but one a page"];
const THEN: [&str; 2] = ["idle", "busy"];
const ON: [&str; 2] = ["threads", "tokio tasks"];

/// MiB that are resident when loaded, at the drop, soon and later.
fn measured(malloc: &Preload, options: &str, quick: bool, [keep, then, on]: [usize; 3]) -> Option<[f64; 4]> {
    let programs = env!("CARGO_BIN_EXE_programs");
    let mut command = Command::new(programs);
    command.arg("returns").args(quick.then_some("--quick"));
    for (name, number) in [("--keep", keep), ("--then", then), ("--on", on)] {
        command.args([name, &(number + 1).to_string()]);
    }
    command.env("LD_PRELOAD", malloc.library.as_deref().unwrap_or("".as_ref())).env("USLAB_OPTIONS", options);
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mib = |when: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(when))?;
        line.trim().strip_suffix(" MiB")?.parse().ok()
    };
    Some([mib("loaded")?, mib("dropped")?, mib("soon")?, mib("later")?])
}

fn main() {
    let options = Options::parse();
    let ours =
        |name: &str| Preload { name: name.into(), kind: Kind::Ours, library: Some(uslab_tests::libuslab()) };
    let ours = [(ours("uslab"), ""), (ours("uslab, reap=500"), "reap=500")];
    let all = ours.into_iter().chain(peers().into_iter().map(|peer| (peer, "")));
    let all: Vec<_> = all
        .filter(|(malloc, _)| options.malloc.as_ref().is_none_or(|name| malloc.name.contains(name.as_str())))
        .collect();
    println!(
        "MiB that are resident: when all is loaded; then a second and ten seconds after most was dropped."
    );
    for (on, of) in ON.iter().enumerate() {
        println!(
            "\n| {of} | loaded | {} |",
            KEPT.map(|kept| THEN.map(|then| format!("{kept}, {then}")).join(" | ")).join(" | ")
        );
        println!("|---|---|{}", "---|".repeat(KEPT.len() * THEN.len()));
        for (malloc, text) in &all {
            let mut row = format!("| `{}` |", malloc.name);
            let mut loaded = None;
            let mut cells = String::new();
            for keep in 0..KEPT.len() {
                for then in 0..THEN.len() {
                    match measured(malloc, text, options.quick, [keep, then, on]) {
                        Some([full, _, soon, later]) => {
                            loaded.get_or_insert(full);
                            cells += &format!(" {soon:.0}, {later:.0} |");
                        }
                        None => cells += " failed |",
                    }
                }
            }
            row += &loaded.map_or(" |".into(), |full| format!(" {full:.0} |"));
            println!("{row}{cells}");
        }
    }
}
