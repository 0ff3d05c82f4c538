//! The command `cargo planted` runs a command in a copy of the workspace that contains wrong code.

use anyhow::Context;
use clap::Parser;
use std::process::{Command, ExitCode};
use uslab_tests::models::checked_test;
use uslab_tests::planted::WorkspaceCopy;

/// Run a command in a copy of the workspace that contains wrong code, which its tests must detect.
///
/// The copies are stored in target/planted. Builds of a copy use the workspace's target directory. The exit code is the
/// exit code of the command, or 2 if the copy cannot be written.
#[derive(Debug, Parser)]
#[command(name = "planted", max_term_width = 100)]
enum Args {
    /// Run the tests of a package under loom. The copy contains the planted bugs of all files with the name
    /// planted.toml.
    Loom(TestArgs),
    /// Run the tests of a package under shuttle. The copy contains the planted bugs of all files with the name
    /// planted.toml.
    Shuttle(TestArgs),
    /// Run any command, such as `cargo test`. The copy contains the given controls from tests/controls.toml.
    Control {
        /// Names of the controls, joined with `+`.
        names: String,
        /// Command to run, and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

#[derive(Debug, clap::Args)]
struct TestArgs {
    /// Package whose tests run.
    package: String,
    /// Arguments of the test program, such as a part of a test name. The option `--nocapture` is added automatically.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("planted: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    let test = |checker, TestArgs { package, arguments }| {
        let mut command = checked_test(Some(&WorkspaceCopy::planted()?), checker, package.as_str());
        let shows = arguments.iter().any(|argument| argument == "--nocapture");
        command.arg("--").args(arguments).args((!shows).then_some("--nocapture"));
        anyhow::Ok(command)
    };
    let mut command = match args {
        Args::Loom(of) => test("loom", of)?,
        Args::Shuttle(of) => test("shuttle", of)?,
        Args::Control { names, command } => {
            let mut program = Command::new(&command[0]);
            program.args(&command[1..]);
            WorkspaceCopy::broken(&names)?.command(program)
        }
    };
    let status = command.status().with_context(|| command.get_program().display().to_string())?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
