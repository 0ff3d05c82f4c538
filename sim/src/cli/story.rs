//! The options of `uslab story`.

use crate::output::command::Outcome;
use crate::output::{Form, Place, json_text, say, shell_quoted, write_all};
use crate::story::Story;
use std::path::PathBuf;

/// Step through a failed execution: a counter-example that the model checker loom found.
///
/// A failed model writes its counter-example to FILE if the environment has STORY_JSON=FILE; a model with a
/// planted bug also needs STORY=1. Without an option, the command prints the counter-example in the form in
/// which the failed model printed it. The page that --html writes steps through the execution forward and
/// back. Each step shows what each thread did and what changed. The page shows, for each step, what each
/// thread did and what changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  STORY_JSON=story.json RUSTFLAGS='--cfg loom' cargo test --profile loom
  uslab story story.json
  uslab story story.json --html story.html
  uslab story story.json --step 7")]
pub(super) struct Args {
    /// The counter-example as a JSON file.
    #[arg(value_name = "FILE")]
    story: PathBuf,
    /// Show one step of the execution, and the state after the step. Steps count from 1.
    #[arg(long, value_name = "N", conflicts_with = "html")]
    step: Option<usize>,
    /// Write a web page that steps through the failed execution: FILE, or `-` for standard output. The page is one file
    /// for any browser and needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Fails if the file is not a counterexample, the requested step does not exist, or an output cannot be
/// written.
pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let html = args.html.as_deref().map(|path| Place::open(Form::Html, path)).transpose()?;
    Place::check_distinct([&json, &html])?;
    let story = Story::read(&args.story)?;
    let (text, data) = match args.step {
        Some(number) => {
            let moment = story.moment(number)?;
            (story.format_moment(&moment), json_text(&moment)?)
        }
        None => (story.to_string(), json_text(&story)?),
    };
    let to_stdout = [&json, &html].into_iter().flatten().any(Place::is_stdout);
    let json = json.map(|place| (place, data));
    let command = format!("uslab story {}", shell_quoted(&args.story.to_string_lossy()));
    let html = html.map(|place| story.page(Some(&command)).map(|page| (place, page))).transpose()?;
    write_all(json.into_iter().chain(html))?;
    if !to_stdout {
        say(&text)?;
    }
    Ok(Outcome::Done)
}
