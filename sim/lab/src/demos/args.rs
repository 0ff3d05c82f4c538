//! The lab's subcommand `demo`.

use super::command::Command;
use super::demo::free;
use super::{Name, Scene, random};
use anyhow::Context;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::BufRead;
use uslab_output::command::Outcome;
use uslab_output::{Place, tell};

/// Drive a textbook allocator by hand, and see its memory after each command.
///
/// The memory is shown as a line of 64 characters: letters are blocks in use, `+` is rounding, `=` headers and tags,
/// `-` padding and freed bytes below a head, `.` free, `|` the start of another free piece, `_` never used or not
/// mapped, `#` retired, `~` loaded but not used. Blocks are named a, b, c in the order of their allocation.
/// `uslab page` has the same demos as an interactive page.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The allocator
    name: Name,
    /// Commands: `alloc BYTES [ALIGN]`, `alloc` if there is one size, `free BLOCK`, `get HANDLE`, `mark`, `pop MARKER`,
    /// `reset`, `purge`, `walk FIELD LAYOUT`, `fill WHAT`, `round`; `-` reads commands from standard input, one per
    /// line. Default: a script that shows how the allocator works
    #[arg(value_name = "COMMAND")]
    commands: Vec<String>,
    /// Run this many random requests instead of commands; they are the same for every allocator, and an allocator that
    /// serves any size gets 1,024 bytes
    #[arg(long, value_name = "N", conflicts_with = "commands", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    random: Option<u16>,
}

/// A command, and the scene after the command.
#[derive(Debug, Serialize)]
struct CommandResult {
    command: String,
    #[serde(flatten)]
    scene: Scene,
}

impl Args {
    pub(crate) fn run(&self, seed: u64, json: Option<Place>) -> anyhow::Result<Outcome> {
        let mut demo =
            if self.random.is_some() { self.name.allocator_for_race()? } else { self.name.make()? };
        let mut scenes = vec![];
        for command in self.commands(seed)? {
            let scene = demo.act(&command);
            scenes.push(CommandResult { command: command.to_string(), scene });
        }
        tell(&scenes, &scenes.iter().map(text).collect::<String>(), json)?;
        Ok(Outcome::Done)
    }

    /// Parses all commands before any command runs.
    fn commands(&self, seed: u64) -> anyhow::Result<Vec<Command>> {
        if let Some(n) = self.random {
            return Ok(random(seed, n.into()));
        }
        let script = || self.name.about().script.iter().map(ToString::to_string).collect();
        let lines: Vec<String> = match self.commands.as_slice() {
            [] => script(),
            [one] if one == "-" => {
                let lines = std::io::stdin().lock().lines();
                let lines = lines.collect::<Result<Vec<_>, _>>().context("standard input")?;
                lines.into_iter().filter(|line| !line.trim().is_empty()).collect()
            }
            commands => commands.to_vec(),
        };
        let name = self.name.name();
        lines.iter().map(|line| line.parse().with_context(|| format!("demo {name}"))).collect()
    }
}

fn text(CommandResult { command, scene }: &CommandResult) -> String {
    let mut text = format!("> {command}\n{}\n", scene.said);
    let structure = scene.structure.as_ref();
    for (n, step) in (1..).zip(structure.iter().flat_map(|structure| &structure.steps)) {
        let _ = writeln!(text, "  {n}. {}", step.said);
    }
    if !scene.parts.is_empty() {
        let _ = writeln!(text, "{}", scene.strip());
    }
    for line in structure.iter().flat_map(|structure| &structure.text) {
        let _ = writeln!(text, "{line}");
    }
    // A demo of several allocators has no memory that is its only one.
    let free = (!scene.parts.is_empty()).then(|| ("free".to_owned(), free(scene.holes)));
    let facts = free.iter().chain(&scene.facts).map(|(name, value)| format!("{name}: {value}"));
    text + &facts.collect::<Vec<_>>().join("; ") + "\n\n"
}
