//! The command `uslab-lab`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    uslab_lab::cli::main()
}
