//! `cargo check-claims`: tests/CLAIMS.md says what ran.

use clap::Parser;
use std::process::ExitCode;
use uslab_tests::claims::Claims;
use uslab_tests::workspace;

/// Compare tests/CLAIMS.md, the table of claims, with what the last `cargo check-all` and `cargo check-orderings` ran.
///
/// Exit codes: 0 it says what ran, 1 it does not, or what ran does not fit tests/claims.toml, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "check-claims", max_term_width = 100)]
struct Args {
    /// Write it instead.
    #[arg(long)]
    write: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(args.write) {
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

fn run(write: bool) -> anyhow::Result<String> {
    let claims = Claims::read()?;
    let (table, path) = (claims.table(), workspace().join("tests/CLAIMS.md"));
    if write {
        std::fs::write(&path, table)?;
        return Ok(format!("claims: {} written to tests/CLAIMS.md", claims.len()));
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().map(Some).chain([None]).zip(table.lines().map(Some).chain([None]));
    if let Some((number, (kept, ran))) = differs.enumerate().find(|(_, (kept, ran))| kept != ran) {
        anyhow::bail!(
            "tests/CLAIMS.md:{}: it says {:?}, what ran says {:?}; `cargo check-claims --write` writes the table anew",
            number + 1,
            kept.unwrap_or(""),
            ran.unwrap_or("")
        );
    }
    Ok(format!("claims: {}, as tests/CLAIMS.md says", claims.len()))
}
