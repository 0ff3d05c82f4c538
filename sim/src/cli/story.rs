//! `uslab story`.

use crate::output::command::Outcome;
use crate::output::{Form, Place, json_text, quoted, say, write_all};
use crate::story::Story;
use std::path::PathBuf;

/// Step through an execution that failed: a counter-example that loom found in a model.
///
/// A model that fails writes the story if STORY_JSON=FILE is in the environment; a model with a planted bug writes it if STORY=1
/// is set, too. Without an option the story is printed as the model printed it. The page that --html writes steps through it
/// forward and back, and shows what each thread did and what that changed. `uslab stress --html` writes such a page, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  STORY_JSON=story.json RUSTFLAGS='--cfg loom' cargo test --profile loom
  uslab story story.json
  uslab story story.json --html story.html
  uslab story story.json --step 7")]
pub(super) struct Args {
    /// The story as JSON.
    #[arg(value_name = "FILE")]
    story: PathBuf,
    /// Show one step, and the state after it. Steps count from 1.
    #[arg(long, value_name = "N", conflicts_with = "html")]
    step: Option<usize>,
    /// Write a page that steps through it: FILE, or `-` for standard output. The page is one file for any browser and needs no
    /// network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// The file is not a story, there is no such step, or an output cannot be written.
pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let html = args.html.as_deref().map(|path| Place::open(Form::Html, path)).transpose()?;
    Place::apart([&json, &html])?;
    let story = Story::read(&args.story)?;
    let (text, data) = match args.step {
        Some(number) => {
            let moment = story.moment(number)?;
            (story.moment_text(&moment), json_text(&moment)?)
        }
        None => (story.to_string(), json_text(&story)?),
    };
    let to_stdout = [&json, &html].into_iter().flatten().any(Place::is_stdout);
    let json = json.map(|place| (place, data));
    let command = format!("uslab story {}", quoted(&args.story.to_string_lossy()));
    let html = html.map(|place| story.page(Some(&command)).map(|page| (place, page))).transpose()?;
    write_all(json.into_iter().chain(html))?;
    if !to_stdout {
        say(&text)?;
    }
    Ok(Outcome::Done)
}
