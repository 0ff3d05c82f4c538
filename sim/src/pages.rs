//! The command `uslab page`: writes the web pages that need no trace from the user.

use crate::output::command::Outcome;
use crate::output::{Form, Place, Progress, say, write_all};
use crate::replay;
use crate::scale::{self, ScaleReport};
use crate::story::Story;
use anyhow::Context;
use clap::Args as ClapArgs;
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use uslab_engine::designs::NoPolicy;

/// Write web pages that show allocators at work, step by step. The pages open from disk in any browser and
/// need no network.
///
/// Open index.html first. The page index.html has the slab allocator on four CPUs, which you drive object by
/// object; two or three designs side by side in virtual time; textbook allocators that run scripts and
/// requests of any size; a race of four allocators; a course of labs; the designs; and a glossary. The other
/// pages are replay.html (the bundled kernel trace, which you step forward and back), scale.html (designs on
/// 1 to 64 CPUs) and story.html (a race that the model checker loom found). The allocators themselves run in
/// the pages, as WebAssembly.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  uslab page
  uslab page /srv/course/allocators
  uslab lab latency --json=latency.json && uslab page --latency latency.json
  uslab page && xdg-open uslab-page/index.html")]
pub(crate) struct Args {
    /// Folder for the pages, created if it does not exist. The command overwrites existing pages with the
    /// same names.
    #[arg(value_name = "DIR", default_value = "uslab-page")]
    dir: PathBuf,
    /// Show how long allocations took in a measurement: FILE is the output of `uslab lab latency
    /// --json=FILE`. Default: a measurement of a machine with two CPUs, stored in the program.
    #[arg(long, value_name = "FILE")]
    latency: Option<PathBuf>,
}

/// A counterexample that loom found in the lab's magazine layer with a planted bug.
const STORY: &str = include_str!("../data/story.json");
/// Stored output of `uslab lab latency --json`, because a web page cannot measure the time of allocations.
const STORED_LATENCY_JSON: &str = include_str!("../data/latency.json");
/// The navigation bar that links the pages of one folder; a web page that is written alone hides it.
const HIDDEN_NAV: &str = "<nav id=\"nav\" aria-label=\"Pages\" hidden>";
const VISIBLE_NAV: &str = "<nav id=\"nav\" aria-label=\"Pages\">";
/// The workloads of the web page with curves, as `uslab scale` runs them.
const WORKLOADS: [&str; 3] = ["pairs", "bursts", "remote"];
const DESIGNS: [&str; 5] = ["uslab-model", "slub", "sheaves", "magazines01", "bonwick94"];
const PAGE_PROFILE: &str = "milan2s";
const CPUS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const OPERATIONS: u64 = 20_000;

/// A page file that the command has written.
#[derive(Serialize)]
struct PageFile {
    file: String,
    bytes: usize,
}

impl Args {
    pub(crate) fn run(&self, json: Option<Place>) -> anyhow::Result<Outcome> {
        let latency = self.latency()?;
        // The folder is created first, so that an error does not come only after the demos, which take half a minute.
        fs::create_dir_all(&self.dir).with_context(|| {
            format!("{}: expected a folder, or a path at which to create one", self.dir.display())
        })?;
        let progress = Progress::new();
        let (_, stream) = replay::run_to_stream(None, &replay::Options::default(), &progress)?;
        let story: Story = serde_json::from_str(STORY)?;
        let beside = |page: String| page.replacen(HIDDEN_NAV, VISIBLE_NAV, 1);
        let pages = [
            ("index.html", replay::front(&latency)?),
            ("replay.html", beside(replay::page(&stream, "uslab replay")?)),
            ("scale.html", beside(curves(&progress)?.page()?)),
            ("story.html", beside(story.page(None)?)),
        ];
        drop(progress);
        let written = pages.each_ref().map(|(name, page)| PageFile {
            file: self.dir.join(name).display().to_string(),
            bytes: page.len(),
        });
        let places = pages.map(|(name, page)| Ok((Place::open(Form::Html, &self.dir.join(name))?, page)));
        write_all(places.into_iter().collect::<anyhow::Result<Vec<_>>>()?)?;
        match json {
            Some(place) => place.json(&written)?,
            None => {
                let text: String = written.iter().map(|page| format!("{}\n", page.file)).collect();
                say(&text)?;
            }
        }
        Ok(Outcome::Done)
    }

    fn latency(&self) -> anyhow::Result<Value> {
        let Some(file) = &self.latency else { return Ok(serde_json::from_str(STORED_LATENCY_JSON)?) };
        let text = fs::read_to_string(file).with_context(|| format!("--latency {}", file.display()))?;
        let findings: Option<Value> = serde_json::from_str(&text).ok();
        let is_one = |findings: &Value| {
            let machine =
                ["processor", "system", "libc", "compiler"].map(|key| findings["machine"][key].is_string());
            findings["experiment"] == "latency" && !machine.contains(&false) && histogram(findings).is_some()
        };
        findings.filter(is_one).with_context(|| {
            format!("--latency {}: expected a file of `uslab lab latency --json=FILE`", file.display())
        })
    }
}

/// Returns the report of `uslab scale` for the web page with curves.
fn curves(progress: &Progress) -> anyhow::Result<ScaleReport> {
    let workloads = WORKLOADS.map(|name| name.parse().map_err(anyhow::Error::from));
    let designs = DESIGNS.map(|name| name.parse().map_err(anyhow::Error::from));
    let options = scale::Options::<NoPolicy> {
        work: scale::Work::Made {
            cpus: CPUS.to_vec(),
            workloads: workloads.into_iter().collect::<anyhow::Result<_>>()?,
            size: 64,
            operations: OPERATIONS,
            seed: 1,
        },
        designs: designs.into_iter().collect::<anyhow::Result<_>>()?,
        profile: scale::profile(PAGE_PROFILE)?,
        bounds: false,
    };
    Ok(scale::scale(&options, progress)?)
}

/// Returns one histogram for each allocator: the number of allocations in each range of nanoseconds.
fn histogram(findings: &Value) -> Option<&Vec<Value>> {
    let title = |part: &&Value| {
        part["chart"]["title"]
            .as_str()
            .is_some_and(|title| title.starts_with("Allocations that took so long"))
    };
    findings["parts"].as_array()?.iter().find(title)?["chart"]["series"]
        .as_array()
        .filter(|series| !series.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_latency_recording_is_valid() {
        let findings: Value = serde_json::from_str(STORED_LATENCY_JSON).unwrap();
        let series = histogram(&findings).unwrap();
        assert_eq!(series.len(), 4);
        for allocator in series {
            let points = allocator["points"].as_array().unwrap();
            let all: f64 = points.iter().map(|point| point[1].as_f64().unwrap()).sum();
            assert!(all > 890_000.0, "{allocator}");
        }
        assert_eq!(findings["machine"]["optimised"], true);
    }
}
