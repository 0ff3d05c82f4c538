//! The command `uslab story`: shows a failed execution of several threads step by step, as text and as a web page.
//!
//! A model that fails under loom writes its execution in the story format (`STORY_JSON=FILE`, see `uslab-sync`). `uslab
//! stress --html` also writes a counterexample: the last operations before a violation.

use crate::web;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The template of the story page, built from `sim/web` by `.ci/web --write`.
const TEMPLATE: &str = include_str!("../../web/built/story.html");
/// The version of the format that this program reads and writes.
pub const VERSION: u32 = 1;

/// A failed execution.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Story {
    /// The version of the format.
    pub version: u32,
    /// The name of the model or command.
    pub title: String,
    /// The steps of all threads, in order of time.
    pub steps: Vec<Step>,
    /// The threads that wait for a lock at the end.
    pub waiting: Vec<Waiting>,
    /// The error that ended the execution.
    pub end: String,
    /// The number of the object, lock or other item that the error concerns, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub about: Option<usize>,
}

/// One step of one thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The thread's number.
    pub thread: String,
    /// The thread's role, for example a CPU.
    pub role: Option<String>,
    /// A sentence that describes the thread's action in this step.
    pub did: String,
    /// The values that the step changed.
    pub changes: Vec<Change>,
    /// The time of the step in seconds, counted from the start of the execution, if the execution has times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub at: Option<f64>,
}

/// A value of an item (an object, a lock or an atomic variable) that a step changed, or that it is the first to
/// mention.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The number of the item to which the value belongs; 0 for an atomic variable.
    pub thing: usize,
    /// The name of the changed value.
    pub part: String,
    /// The value before the step, if it was known.
    pub before: Option<String>,
    /// The value after the step.
    pub after: String,
}

/// A thread that waits for a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// The number of the waiting thread.
    pub thread: String,
    /// The name of the lock.
    pub lock: String,
    /// The position in the source at which the thread waits.
    pub at: String,
}

/// A step of an execution, together with the state after the step.
#[derive(Debug, Serialize)]
pub struct Moment<'s> {
    /// The number of the step, from 1.
    pub number: usize,
    /// The number of steps in the execution.
    pub of: usize,
    /// The operation of one thread that led to the state.
    pub step: &'s Step,
    /// All values after the step, sorted by item and name; `before` is `None` for values that the step did
    /// not change.
    pub state: Vec<Change>,
}

impl Story {
    /// Reads a counterexample from a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is not a counterexample.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Parses the text of a counterexample file.
    fn parse(text: &str) -> anyhow::Result<Self> {
        const EXPECTED: &str = "expected a story that a failing model wrote with STORY_JSON=FILE";
        ensure!(!text.trim().is_empty(), "the file is empty; {EXPECTED}");
        let json: serde_json::Value = serde_json::from_str(text).context(EXPECTED)?;
        ensure!(
            json.get("steps").is_some() && json.get("end").is_some(),
            "the file is not a counterexample trace; {EXPECTED}"
        );
        let version = json.get("version").map_or("none".to_owned(), ToString::to_string);
        ensure!(
            version == VERSION.to_string(),
            "the counterexample trace has version {version}; expected version {VERSION}"
        );
        serde_json::from_value(json).context(EXPECTED)
    }

    /// Returns a page with the counterexample.
    ///
    /// # Errors
    /// Never fails in practice.
    pub fn page(&self, command: Option<&str>) -> anyhow::Result<String> {
        let command = web::attribute(command.unwrap_or_default());
        Ok(web::page(TEMPLATE, &[("{story}", &web::json(self)?), ("{command}", &command)]))
    }

    /// Returns the state after a given step; steps count from 1.
    ///
    /// # Errors
    /// Fails if the execution has no step with this number.
    pub fn moment(&self, number: usize) -> anyhow::Result<Moment<'_>> {
        let of = self.steps.len();
        let step = number.checked_sub(1).and_then(|at| self.steps.get(at));
        let step = step.with_context(|| format!("--step {number}: expected 1 to {of}"))?;
        let mut state = BTreeMap::new();
        for (at, step) in (1..=number).zip(&self.steps) {
            for change in &step.changes {
                let before = change.before.clone().filter(|_| at == number);
                state.insert((change.thing, &change.part), Change { before, ..change.clone() });
            }
        }
        Ok(Moment { number, of, step, state: state.into_values().collect() })
    }

    /// Returns the name of a changed value; includes the item's number if several items have values of this name.
    fn name(&self, change: &Change) -> String {
        let changes = self.steps.iter().flat_map(|step| &step.changes);
        let several = changes.into_iter().any(|c| c.part == change.part && c.thing != change.thing);
        if several { format!("@{} {}", change.thing, change.part) } else { change.part.clone() }
    }

    fn write_change(&self, f: &mut impl fmt::Write, change: &Change) -> fmt::Result {
        match &change.before {
            Some(before) => write!(f, "{}: {before} -> {}", self.name(change), change.after),
            None => write!(f, "{}: {}", self.name(change), change.after),
        }
    }

    /// Formats a step and its state as text.
    pub fn format_moment(&self, moment: &Moment<'_>) -> String {
        let mut text = format!("step {} of {}\n{}\n", moment.number, moment.of, moment.step);
        for change in &moment.state {
            text.push_str("  ");
            // Writing to a `String` does not fail.
            let _ = self.write_change(&mut text, change);
            text.push('\n');
        }
        text
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(f, "{at:.6} s  ")?;
        }
        write!(f, "thread {}  ", self.thread)?;
        if let Some(role) = &self.role {
            write!(f, "{role}  ")?;
        }
        f.write_str(&self.did)
    }
}

/// Formats the execution as the text that a run under loom prints.
impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "STORY {}", self.title)?;
        for (i, step) in (1..).zip(&self.steps) {
            write!(f, "{i:>5}  {step}")?;
            // Changes of an atomic are omitted, because the step's sentence has the values.
            for (i, change) in step.changes.iter().filter(|change| change.thing > 0).enumerate() {
                f.write_str(if i == 0 { "   | " } else { "; " })?;
                self.write_change(f, change)?;
            }
            writeln!(f)?;
        }
        for Waiting { thread, lock, at } in &self.waiting {
            writeln!(f, "       thread {thread}  waits for {lock} at {at}")?;
        }
        writeln!(f, "       fails: {}", self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story() -> Story {
        let change = |thing, part: &str, before: Option<&str>, after: &str| Change {
            thing,
            part: part.to_owned(),
            before: before.map(str::to_owned),
            after: after.to_owned(),
        };
        let step = |thread: &str, did: &str, changes| Step {
            thread: thread.to_owned(),
            role: None,
            did: did.to_owned(),
            changes,
            at: None,
        };
        Story {
            version: VERSION,
            title: "a </script><b> & a {story}".to_owned(),
            steps: vec![
                step("0", "pushes", vec![change(1, "top", None, "1"), change(2, "top", None, "5")]),
                step("1", "pops", vec![change(1, "top", Some("1"), "2"), change(0, "atomic 1", None, "7")]),
            ],
            waiting: vec![Waiting {
                thread: "0".to_owned(),
                lock: "lock 1 (Depot)".to_owned(),
                at: "lib.rs:7".to_owned(),
            }],
            end: "lost".to_owned(),
            about: Some(1),
        }
    }

    #[test]
    fn counterexample_web_page_is_self_contained() {
        let page = story().page(Some("uslab story \"a\".json")).unwrap();
        web::check(&page);
        assert!(page.contains(r#"data-command="uslab story &quot;a&quot;.json""#));
        assert!(page.contains(r#""title":"a \u003c/script>\u003cb> & a {story}""#));
        let (_, rest) = page.split_once("<script type=\"application/json\" id=\"story\">").unwrap();
        let (json, _) = rest.split_once("</script>").unwrap();
        assert_eq!(Story::parse(json).unwrap().to_string(), story().to_string());
    }

    #[test]
    fn counterexample_snapshot_marks_the_changes_of_its_step() {
        let story = story();
        let text = story.format_moment(&story.moment(2).unwrap());
        assert_eq!(text, "step 2 of 2\nthread 1  pops\n  atomic 1: 7\n  @1 top: 1 -> 2\n  @2 top: 5\n");
        let mut idle = story.clone();
        idle.steps.push(Step { changes: vec![], ..story.steps[0].clone() });
        let state = idle.moment(3).unwrap().state;
        assert!(state.iter().all(|part| part.before.is_none()), "the step changed no object: {state:?}");
        for number in [0, 3] {
            let error = story.moment(number).unwrap_err().to_string();
            assert_eq!(error, format!("--step {number}: expected 1 to 2"));
        }
        assert_eq!(
            story.to_string(),
            "STORY a </script><b> & a {story}\n    1  thread 0  pushes   | @1 top: 1; @2 top: 5\n    \
             2  thread 1  pops   | @1 top: 1 -> 2\n       thread 0  waits for lock 1 (Depot) at lib.rs:7\n       fails: lost\n"
        );
    }
}
