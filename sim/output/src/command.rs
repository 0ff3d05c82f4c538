//! The end of a command: its exit code, and its messages on standard error.
//!
//! The exit code is 0 for success, 1 if a check failed (a conservation invariant, or a requested comparison),
//! and 2 for wrong usage or input. Data is written to standard output; progress and messages are written to
//! standard error.

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};
use std::io::Write;
use std::process::ExitCode;

/// The result of a command, which determines its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command succeeded.
    Done,
    /// A check failed.
    Violated,
}

/// Parses the command line, runs it and returns its exit code.
pub fn run<C: Parser>(run: impl FnOnce(&C) -> anyhow::Result<Outcome>) -> ExitCode {
    let cli = match C::try_parse() {
        Ok(cli) => cli,
        Err(error) => return print_clap_error::<C>(&error),
    };
    match run(&cli) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Violated) => ExitCode::FAILURE,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}: {error:#}", C::command().get_name());
            ExitCode::from(2)
        }
    }
}

/// Prints help or an error message from clap. If a subcommand is unknown, the function also prints the known
/// subcommands.
fn print_clap_error<C: Parser>(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.kind() == ErrorKind::InvalidSubcommand {
        let unknown = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
        let mut command = &C::command();
        let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
        for argument in arguments.take_while(|argument| Some(argument) != unknown.as_ref()) {
            command = command.find_subcommand(argument).unwrap_or(command);
        }
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(clap::Command::get_name);
        let _ = writeln!(std::io::stderr(), "expected one of {}", verbs.collect::<Vec<_>>().join(", "));
    }
    ExitCode::from(error.exit_code() as u8)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
