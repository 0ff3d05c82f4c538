//! The verb `page`: the pages that need no trace of one's own.

use crate::output::command::Outcome;
use crate::output::{Form, Place, Progress, write_all};
use crate::replay;
use crate::story::Story;
use anyhow::Context;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Write pages to see allocators move, and to drive them: for any browser, from disk, without a network.
///
/// Open index.html: the slab allocator on four CPUs, by hand and object by object; the allocators of the textbooks, each with a
/// script and any size you type; a race of four of them; a course of labs that ask what will happen, and show it; the designs that
/// can answer, and the words. Beside it, replay.html is the bundled kernel trace, forward and back, and story.html a race that the
/// model checker loom found. The allocators themselves run in the pages, as WebAssembly.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  uslab page
  uslab page /srv/course/allocators
  uslab page && xdg-open uslab-page/index.html")]
pub(crate) struct Args {
    /// The folder; it is made if it is not there. Pages in it that have these names are written anew.
    #[arg(value_name = "DIR", default_value = "uslab-page")]
    dir: PathBuf,
}

/// What loom found in the lab's magazine layer with a bug planted.
const STORY: &str = include_str!("../data/story.json");
/// Where a page that stands beside index.html leads back to it; one that is written alone leads nowhere.
const BACK: &str = "<p id=\"back\">";

/// A page that was written.
#[derive(Serialize)]
struct Written {
    file: String,
    bytes: usize,
}

impl Args {
    pub(crate) fn run(&self, json: Option<Place>) -> anyhow::Result<Outcome> {
        let progress = Progress::new();
        let (_, stream) = replay::run_to_stream(None, &replay::Options::default(), &progress)?;
        let story: Story = serde_json::from_str(STORY)?;
        let beside =
            |page: String| page.replacen(BACK, &format!("{BACK}<a href=\"index.html\">all pages</a>"), 1);
        let pages = [
            ("index.html", replay::front()?),
            ("replay.html", beside(replay::page(&stream, "uslab replay")?)),
            ("story.html", beside(story.page()?)),
        ];
        drop(progress);
        fs::create_dir_all(&self.dir)
            .with_context(|| format!("{}: expected a folder, or a place for one", self.dir.display()))?;
        let written = pages.each_ref().map(|(name, page)| Written {
            file: self.dir.join(name).display().to_string(),
            bytes: page.len(),
        });
        let places = pages.map(|(name, page)| Ok((Place::open(Form::Html, &self.dir.join(name))?, page)));
        write_all(places.into_iter().collect::<anyhow::Result<Vec<_>>>()?)?;
        match json {
            Some(place) => place.json(&written)?,
            None => {
                let text: String = written.iter().map(|page| format!("{}\n", page.file)).collect();
                std::io::stdout().lock().write_all(text.as_bytes()).context("standard output")?;
            }
        }
        Ok(Outcome::Done)
    }
}
