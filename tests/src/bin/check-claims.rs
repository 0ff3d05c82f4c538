//! The command `cargo check-claims` writes tests/CLAIMS.md from the rows of the tests that ran, or compares the file
//! with these rows.

use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use uslab_tests::claims::{Claims, WEAKER_PREFIX, floor};
use uslab_tests::models::Subject;
use uslab_tests::source::{Build, Ordering, Site, Sources};
use uslab_tests::waiver::Waiver;
use uslab_tests::workspace;

/// Compare tests/CLAIMS.md, the table of claims, with the tests that the last `cargo check-all` and `cargo
/// check-orderings` ran.
///
/// Exit codes: 0 if the table agrees with what ran; 1 if it does not, or if what ran does not fit tests/claims.toml; 2
/// for wrong usage.
#[derive(Debug, Parser)]
#[command(name = "check-claims", max_term_width = 100)]
struct Args {
    /// Write the table instead of comparing it.
    #[arg(long, conflicts_with = "quick")]
    write: bool,
    /// Use after `cargo check-all` alone: only check that the table has each ordering in the sources.
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("check-claims: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<String> {
    let claims = Claims::read(!args.quick)?;
    let (table, path) = (claims.table(), workspace().join("tests/CLAIMS.md"));
    if args.write {
        std::fs::write(&path, table)?;
        return Ok(format!("claims: {} written to tests/CLAIMS.md", claims.len()));
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let shown = |text: &str| -> Vec<(usize, String)> {
        let lines = (1..).zip(text.lines().map(str::to_owned));
        lines.filter(|(_, line)| !args.quick || !line.starts_with(WEAKER_PREFIX)).collect()
    };
    let (says, ran) = (shown(&kept), shown(&table));
    let end = (kept.lines().count() + 1, String::new());
    for at in 0..says.len().max(ran.len()) {
        let (line, says) = says.get(at).unwrap_or(&end);
        let ran = ran.get(at).map_or("", |(_, ran)| ran);
        anyhow::ensure!(
            says == ran,
            "tests/CLAIMS.md:{line}: the file has {says:?}, but the runs have {ran:?}; `cargo check-claims --write` updates the file"
        );
    }
    let but = if args.quick { known_orderings(&kept)? } else { String::new() };
    Ok(format!("claims: {}, as tests/CLAIMS.md says{but}", claims.len()))
}

/// Checks that each ordering that a model can cover is in the table or has a waiver. Returns a summary in words; this
/// check weakens no ordering.
fn known_orderings(table: &str) -> anyhow::Result<String> {
    // Models of the checkers themselves are not claims.
    let mut subjects = Subject::all_modelled_crates();
    subjects.retain(|subject| floor(&subject.package).is_some());
    let libs: Vec<_> = subjects.iter().map(|subject| subject.lib.as_path()).collect();
    let waivers = Waiver::read(&workspace().join("tests/orderings.toml"))?;
    let of_models = |site: &Site| {
        matches!(site.build, Build::Loom)
            && !matches!(site.ordering, Ordering::Relaxed)
            && subjects.iter().any(|subject| Path::new(&site.file).starts_with(subject.sources()))
    };
    let mut count = 0;
    for site in Sources::scan(workspace(), &libs)?.sites.iter().filter(|site| of_models(site)) {
        // A row's parts are separated by ` | `, which may also occur in Rust's patterns.
        let row = match site.text.split_once(" | ") {
            Some((text, _)) => format!("{} `{text}", site.file),
            None => format!("{} `{}`: {} -> ", site.file, site.text, site.ordering),
        };
        anyhow::ensure!(
            table.contains(&row) || waivers.iter().any(|waiver| waiver.fits(site)),
            "{site}: missing in tests/CLAIMS.md; run `cargo check-orderings`, then `cargo check-claims --write`"
        );
        count += 1;
    }
    Ok(format!("; the {count} orderings stronger than Relaxed are listed or waived"))
}
