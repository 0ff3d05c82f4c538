//! The command line: the options of each command are in a module of this folder, or in the module that runs
//! the command. [`output::command`](crate::output::command) converts a command's result to an exit code.

mod calibrate;
mod convert;
mod diff;
mod flame;
mod geometry;
mod record;
mod replay;
mod scale;
mod slabs;
mod story;
mod stress;
mod validate;
mod what;

use crate::output::command::{self, Outcome};
use crate::output::{Form, Place};
use crate::sweep::{self, SweepArgs, TuneArgs};
use crate::top::{self, TopArgs};
use crate::watch::{self, WatchArgs};
use crate::{course, pages};
use anyhow::bail;
use clap::{CommandFactory, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use uslab_engine::Policy;
use uslab_engine::designs::NoPolicy;
use uslab_lab::cli as lab;

/// Replay kernel memory traces through a Linux-style slab allocator, and study the allocator.
///
/// Without a command, the program replays and explains the bundled trace, which a real kernel recorded under
/// a file workload.
#[derive(Debug, Parser)]
#[command(name = "uslab", version, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Write the result as JSON to FILE, or to standard output if FILE is `-` or omitted.
    #[arg(long, global = true, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Replay(replay::Args),
    Watch(WatchArgs),
    Top(TopArgs),
    Record(record::Args),
    Convert(convert::Args),
    Scale(scale::Args),
    Sweep(SweepArgs),
    Tune(TuneArgs),
    Calibrate(calibrate::Args),
    Validate(validate::Args),
    Diff(diff::Args),
    Geometry(geometry::Args),
    Slabs(slabs::Args),
    What(what::Args),
    Stress(stress::Args),
    Page(pages::Args),
    Course(course::Args),
    Story(story::Args),
    Flame(flame::Args),
    Lab(Box<lab::Args>),
}

/// Runs the command line and returns its exit code.
pub fn main() -> ExitCode {
    main_with_policy::<NoPolicy>()
}

/// Runs the command line with an additional policy that the calling program defines. The option `--design`
/// then also accepts the name of the additional policy.
///
/// `examples/uma/main.rs` in this crate is an example of a program that calls this function.
pub fn main_with_policy<P: Policy>() -> ExitCode {
    command::run(run::<P>)
}

/// Returns `true` if a command, or a subcommand, has this name.
fn is_command_name(command: &clap::Command, name: &Path) -> bool {
    command.get_subcommands().any(|verb| name == Path::new(verb.get_name()) || is_command_name(verb, name))
}

fn run<P: Policy>(cli: &CommandLine) -> anyhow::Result<Outcome> {
    if let Some(name) = cli.json.as_deref().filter(|name| is_command_name(&CommandLine::command(), name)) {
        let name = name.display();
        bail!(
            "--json {name}: expected a file name, but `{name}` is a command; write `--json` after the command, or ./{name} for a file"
        );
    }
    let json = || cli.json.as_deref().map(|path| Place::open(Form::Json, path)).transpose();
    match &cli.verb {
        None => replay::run::<P>(&replay::Args::bundled(), json()?),
        Some(Verb::Replay(args)) => replay::run::<P>(args, json()?),
        Some(Verb::Watch(args)) => watch::run::<P>(args, cli.json.as_deref()),
        Some(Verb::Top(args)) => top::run(args, json()?),
        Some(Verb::Record(args)) => record::run(args, json()?),
        Some(Verb::Convert(args)) => convert::run(args, json()?),
        Some(Verb::Diff(args)) => diff::run(args, json()?),
        Some(Verb::Calibrate(args)) => calibrate::run(args, json()?),
        Some(Verb::Validate(args)) => validate::run(args, json()?),
        Some(Verb::Sweep(args)) => sweep::sweep::<P>(args, json()?),
        Some(Verb::Tune(args)) => sweep::tune::<P>(args, json()?),
        Some(Verb::Scale(args)) => scale::run::<P>(args, json()?),
        Some(Verb::Geometry(args)) => geometry::run(args, json()?),
        Some(Verb::Slabs(args)) => slabs::run(args, json()?),
        Some(Verb::What(args)) => what::run(args, json()?),
        Some(Verb::Stress(args)) => stress::run(args, json()?),
        Some(Verb::Page(args)) => args.run(json()?),
        Some(Verb::Course(args)) => args.run(json()?),
        Some(Verb::Story(args)) => story::run(args, json()?),
        Some(Verb::Flame(args)) => flame::run(args, json()?),
        Some(Verb::Lab(args)) => lab::run(args, json()?),
    }
}
