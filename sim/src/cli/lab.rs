//! `uslab lab`.

use crate::output::command::Outcome;
use anyhow::{Context, bail};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The program that replaces this one.
const LAB: &str = "uslab-lab";

/// Measure and check allocators: runs the lab, a separate program (uslab-lab) with the same options.
///
/// uslab-lab must be in the folder of this program, or on PATH; in the sources of uslab, `cargo lab` builds
/// and runs it.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    /// Arguments for uslab-lab; its `--help` lists them.
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by the lab, as git and cargo do with commands that are separate programs; returns
/// only if that fails.
pub(super) fn run(args: &Args, json: Option<&Path>) -> anyhow::Result<Outcome> {
    let beside = std::env::current_exe().ok().map(|uslab| uslab.with_file_name(LAB));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| LAB.into());
    let mut lab = Command::new(&program);
    if let Some(path) = json {
        let mut option = OsString::from("--json=");
        option.push(path);
        lab.arg(option);
    }
    let error = lab.args(&args.arguments).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            "the lab is a program of its own, {LAB}, and is neither beside this one nor on PATH; `cargo lab` builds and runs it"
        );
    }
    Err(error).with_context(|| program.display().to_string())
}
