//! The end of a command: its exit code, and its messages on standard error.
//!
//! The exit code is 0 for success, 1 if a check failed (an invariant or a requested comparison), and 2 for wrong usage
//! or input. Data is written to standard output; progress and messages are written to standard error.

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

/// Prints help, or an error of the command line as one line. If a subcommand is unknown, the line names the known
/// subcommands.
fn print_clap_error<C: Parser>(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(error.exit_code() as u8);
    }
    let mut line = join_message_lines(&error.to_string());
    if error.kind() == ErrorKind::InvalidSubcommand {
        let unknown = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
        let mut command = &C::command();
        let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
        for argument in arguments.take_while(|argument| Some(argument) != unknown.as_ref()) {
            command = command.find_subcommand(argument).unwrap_or(command);
        }
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(clap::Command::get_name);
        line += &format!("; expected one of {}", verbs.collect::<Vec<_>>().join(", "));
    }
    let _ = writeln!(std::io::stderr(), "{}: {line}", C::command().get_name());
    ExitCode::from(error.exit_code() as u8)
}

/// Returns clap's message without its usage and its reference to the help, as one line.
fn join_message_lines(message: &str) -> String {
    let is_help = |line: &&str| line.starts_with("Usage:") || line.starts_with("For more information");
    let lines = message.trim_start_matches("error: ").lines().take_while(|line| !is_help(line));
    let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ").replace("invalid digit found in string", "expected a whole number")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_line_error_is_one_line() {
        for (message, line) in [
            (
                "error: invalid value 'x' for '--rows <N>': invalid digit found in string\n\nFor more information, try '--help'.\n",
                "invalid value 'x' for '--rows <N>': expected a whole number",
            ),
            (
                "error: the following required arguments were not provided:\n  <PLACE>\n\nUsage: uslab slabs --trace <FILE> <PLACE>\n\nFor more \
                 information, try '--help'.\n",
                "the following required arguments were not provided: <PLACE>",
            ),
            (
                "error: invalid value 'size' for '--sort <SORT>'\n  [possible values: bytes, holes]\n\nFor more information, try '--help'.\n",
                "invalid value 'size' for '--sort <SORT>' [possible values: bytes, holes]",
            ),
        ] {
            assert_eq!(super::join_message_lines(message), line);
        }
    }
}
