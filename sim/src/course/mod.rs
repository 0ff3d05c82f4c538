//! The command `uslab course`: the course's labs, starting files for exercises, and marks for answers.

mod exercise;
mod sheet;

use crate::output::command::Outcome;
use crate::output::{Form, Place, table, tell, text, write_all};
use anyhow::{Context, bail};
use clap::{Args as ClapArgs, Subcommand};
use exercise::JudgeOptions;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uslab_engine::course::{Code, Lab, Work, labs};

/// Take a course of labs about this allocator. The engine computes the answers to the questions, and judges
/// the exercises.
///
/// The web page (written by `uslab page`; open Course in index.html) asks the questions and writes an answer
/// sheet. An exercise begins with a file that `start` writes. `uslab course grade` judges an exercise by its
/// behaviour on unseen operation streams, by its cost, and under loom if it has a lock. Without a subcommand,
/// `uslab course` lists the labs.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  uslab course
  uslab course start merge
  uslab course grade merge.rs
  uslab course grade ann-merge.rs --seed 4711 --html failure.html
  uslab course grade answers-ann.json
  uslab course answers --seed 4711")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Start(Start),
    Grade(Grade),
    Answers(Answers),
}

/// Write the starting file of an exercise.
#[derive(Debug, ClapArgs)]
struct Start {
    /// Name of the lab.
    #[arg(value_name = "LAB")]
    lab: String,
    /// Path of the new file. Default: LAB.rs in the current folder. The command does not overwrite an
    /// existing file.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Mark an answer sheet, or judge an exercise.
///
/// Exit code 0: all answers are right. Exit code 1: an answer is wrong. Exit code 2: the file contains
/// nothing to mark.
///
/// An exercise is compiled (cargo and uslab's sources are needed) and runs with your permissions: judge files
/// of strangers only in a container or on a disposable machine.
#[derive(Debug, ClapArgs)]
struct Grade {
    /// An answer sheet (FILE.json), or an exercise (LAB.rs, or ANYTHING-LAB.rs).
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the lab, if the file's name does not contain it.
    #[arg(long, value_name = "LAB")]
    lab: Option<String>,
    /// Seed of the operation streams for an exercise: choose a seed that the students do not know.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,
    /// Write a web page that shows the step at which an exercise fails, and the preceding steps. FILE, or `-` for
    /// standard output.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Time limit of an exercise in seconds; its models under loom get the same time again.
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// The sources of uslab. Default: the sources from which this program was built.
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
}

/// Print the answers to all questions, for teachers: the numbers in the questions depend on the seed.
#[derive(Debug, ClapArgs)]
struct Answers {
    /// Seed of the numbers in the questions.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,
}

impl Args {
    pub(crate) fn run(&self, json: Option<Place>) -> anyhow::Result<Outcome> {
        match &self.verb {
            None => list(json),
            Some(Verb::Start(start)) => start.run(json),
            Some(Verb::Grade(grade)) => grade.run(json),
            Some(Verb::Answers(Answers { seed })) => {
                let (answers, answer_text) = sheet::answers(*seed);
                tell(&answers, &answer_text, json)?;
                Ok(Outcome::Done)
            }
        }
    }
}

fn list(json: Option<Place>) -> anyhow::Result<Outcome> {
    let labs = labs(1);
    let mut rows = table(&["lab", "minutes", "", "title"]);
    for lab in &labs {
        let what = match &lab.work {
            Work::Questions(questions) => format!("{} questions", questions.len()),
            Work::Code(_) => "an exercise".to_owned(),
        };
        rows.add_row([lab.name, &lab.minutes.to_string(), &what, lab.title]);
    }
    let how = "\nThe pages of `uslab page` have the questions: open Course in index.html. `uslab course start LAB` begins an exercise.\n";
    tell(&labs, &(text(&rows) + how), json)?;
    Ok(Outcome::Done)
}

fn exercise(name: &str) -> anyhow::Result<(Lab, Code)> {
    let mut exercises = labs(1).into_iter().filter_map(|lab| match lab.work.clone() {
        Work::Code(code) => Some((lab, code)),
        Work::Questions(_) => None,
    });
    let names: Vec<_> = exercises.clone().map(|(lab, _)| lab.name).collect();
    exercises
        .find(|(lab, _)| lab.name == name)
        .with_context(|| format!("unknown exercise `{name}`; expected one of {}", names.join(", ")))
}

impl Start {
    fn run(&self, json: Option<Place>) -> anyhow::Result<Outcome> {
        let (lab, code) = exercise(&self.lab)?;
        let file = self.file.clone().unwrap_or_else(|| format!("{}.rs", lab.name).into());
        let made = fs::OpenOptions::new().write(true).create_new(true).open(&file);
        let mut made = made.with_context(|| match file.exists() {
            true => format!("{}: the file already exists", file.display()),
            false => format!("{}: expected the path of a new file", file.display()),
        })?;
        made.write_all(code.starter.as_bytes()).with_context(|| file.display().to_string())?;
        let shown = file.display();
        let judged: String = code.judged_by.iter().map(|by| format!("  {by}\n")).collect();
        let text = format!("{shown}: {}. `uslab course grade {shown}` checks this:\n{judged}", lab.title);
        tell(&lab, &text, json)?;
        Ok(Outcome::Done)
    }
}

impl Grade {
    fn run(&self, json: Option<Place>) -> anyhow::Result<Outcome> {
        let html = self.html.as_deref().map(|path| Place::open(Form::Html, path)).transpose()?;
        Place::check_distinct([&json, &html])?;
        let extension = self.file.extension().and_then(|extension| extension.to_str());
        let text = fs::read_to_string(&self.file).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                anyhow::anyhow!("{}: expected an answer sheet or an exercise", self.file.display())
            }
            _ => anyhow::Error::new(error).context(self.file.display().to_string()),
        })?;
        match extension {
            Some("json") => {
                if html.is_some() {
                    bail!("--html: expected a failing exercise, not an answer sheet");
                }
                let (graded, answer_text) = sheet::grade(&self.file, &text)?;
                tell(&graded, &answer_text, json)?;
                Ok(if graded.right == graded.of { Outcome::Done } else { Outcome::Violated })
            }
            Some("rs") => {
                let name = match &self.lab {
                    Some(lab) => lab.clone(),
                    None => lab_of_file(&self.file)?,
                };
                let (lab, _) = exercise(&name)?;
                let judged = exercise::judge(lab.name, &text, &self.file, &self.judge_options()?)?;
                let page = html.and_then(|place| Some((place, judged.page.as_ref()?)));
                let mut answer_text = judged.text();
                if let Some((place, page)) = page {
                    let shown = place.shown();
                    write_all([(place, page)])?;
                    answer_text += &format!("{shown}: the step at which the exercise fails\n");
                } else if judged.page.is_some() {
                    answer_text += "--html FILE writes a page that shows the step at which it fails.\n";
                }
                tell(&judged, &answer_text, json)?;
                Ok(if judged.verdict.holds() { Outcome::Done } else { Outcome::Violated })
            }
            _ => {
                bail!("{}: expected an answer sheet, FILE.json, or an exercise, FILE.rs", self.file.display())
            }
        }
    }
    fn judge_options(&self) -> anyhow::Result<JudgeOptions> {
        let built_from =
            || Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned();
        let source = self.source.clone().unwrap_or_else(built_from);
        if !source.join("sim/engine/Cargo.toml").is_file() {
            bail!(
                "{}: this folder lacks uslab's sources (sim/engine); expected --source DIR with the sources",
                source.display()
            );
        }
        let source = fs::canonicalize(&source).with_context(|| source.display().to_string())?;
        Ok(JudgeOptions { source, seed: self.seed, limit: Duration::from_secs(self.limit) })
    }
}

/// Returns the lab whose name is the last part of a file's name. For example, `ann-merge.rs` is an exercise of the lab
/// `merge`.
fn lab_of_file(file: &Path) -> anyhow::Result<String> {
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let last = stem.rsplit(['-', '_']).next().unwrap_or_default().to_owned();
    exercise(&last).with_context(|| {
        format!("{}: the file name does not end in a lab's name; expected --lab LAB", file.display())
    })?;
    Ok(last)
}
