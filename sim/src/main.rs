//! The command `uslab`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    uslab_sim::cli::main()
}
