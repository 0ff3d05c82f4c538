//! Runs subjects in other processes: either this program under a preloaded malloc, or a build of an older commit.
//!
//! One process can serve all rounds of a subject: it answers one question per round, so its rounds alternate with the
//! rounds of other subjects. If each round runs in a new process, every round begins with unused memory.

use crate::rounds::Contender;
use crate::subject::Kind;
use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// A request to run one round of a subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) row: String,
    pub(crate) case: String,
    pub(crate) subject: String,
}

/// Command that starts a child process, which answers questions.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Path of the bench program: this build or another build.
    pub(crate) path: PathBuf,
    /// Library for `LD_PRELOAD`; `None` to preload nothing.
    pub(crate) library: Option<PathBuf>,
    pub(crate) quick: bool,
}

impl Program {
    fn spawn(&self) -> anyhow::Result<AnsweringProcess> {
        let mut command = Command::new(&self.path);
        command.args(["--bench", "--serve"]).args(self.quick.then_some("--quick"));
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = child.stdin.take().context("the child process has no standard input")?;
        let answers =
            BufReader::new(child.stdout.take().context("the child process has no standard output")?);
        Ok(AnsweringProcess { child, questions: Some(questions), answers })
    }
}

/// A running child process that answers questions.
#[derive(Debug)]
struct AnsweringProcess {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl AnsweringProcess {
    fn request(&mut self, question: &Question) -> anyhow::Result<Vec<f64>> {
        let questions = self.questions.as_mut().context("the child process ended before it answered")?;
        writeln!(questions, "{}", serde_json::to_string(question)?)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        serde_json::from_str(&answer)
            .with_context(|| format!("unexpected answer of the child process: {answer:?}"))
    }

    /// Sends a question, as `request` does, but kills the process if its answer takes longer than `limit`.
    fn request_with_timeout(&mut self, limit: Duration, question: &Question) -> anyhow::Result<Vec<f64>> {
        let process = Pid::from_raw(self.child.id().try_into()?);
        let (answered, waiting) = mpsc::channel::<()>();
        let killer = std::thread::spawn(move || {
            let is_late = waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            // The process was not waited for yet, so its process id is still in use.
            is_late && kill(process, Signal::SIGKILL).is_ok()
        });
        let answer = self.request(question);
        drop(answered);
        anyhow::ensure!(!killer.join().unwrap_or_default(), "the child process took more than {limit:?}");
        answer
    }
}

impl Drop for AnsweringProcess {
    fn drop(&mut self) {
        // The process exits when there are no more questions.
        self.questions = None;
        _ = self.child.wait();
    }
}

/// A child process that starts at the first question; after a failure it is not restarted.
#[derive(Clone, Debug)]
pub(crate) struct LazyProcess {
    name: String,
    program: Program,
    process: Rc<RefCell<Option<Option<AnsweringProcess>>>>,
}

impl LazyProcess {
    pub(crate) fn new(name: &str, program: Program) -> Self {
        Self { name: name.into(), program, process: Rc::default() }
    }
    /// Makes a contender whose rounds run in the child process, or, if `isolated` is set, in a new process for each
    /// round.
    pub(crate) fn contender(
        &self,
        name: String,
        kind: Kind,
        isolated: bool,
        question: Question,
    ) -> Contender {
        let companion = self.clone();
        let mut has_failed = false;
        let round = move || {
            if !isolated {
                return companion.round(&question);
            }
            let answer = if has_failed { Vec::new() } else { companion.run_in_child(&question) };
            has_failed |= answer.is_empty();
            answer
        };
        Contender::new(name, kind, round)
    }
    /// Runs one round. Returns no values if the process fails or does not have the subject; only the first failure is
    /// reported on standard error.
    fn round(&self, question: &Question) -> Vec<f64> {
        let mut process = self.process.borrow_mut();
        let child = process.get_or_insert_with(|| {
            let child = self.program.spawn();
            child.inspect_err(|error| eprintln!("{}: {error:#}", self.name)).ok()
        });
        let Some(running) = child else {
            return Vec::new();
        };
        running.request(question).unwrap_or_else(|error| {
            eprintln!("{}: {}/{}: {error:#}", self.name, question.row, question.case);
            *child = None;
            Vec::new()
        })
    }

    /// Runs one round in a separate process. If the process fails or exceeds the time limit, reports the failure on
    /// standard error and returns no values.
    fn run_in_child(&self, question: &Question) -> Vec<f64> {
        let answer =
            self.program.spawn().and_then(|mut process| process.request_with_timeout(LIMIT, question));
        answer.unwrap_or_else(|error| {
            eprintln!("{}: {}/{}/{}: {error:#}", self.name, question.row, question.case, question.subject);
            Vec::new()
        })
    }
}

/// Time limit of a child process that answers one question. Allocators that spin on a lock can be slow with 4,096
/// threads.
const LIMIT: Duration = Duration::from_secs(30);

/// Answers questions from standard input until the input ends.
///
/// # Errors
/// Fails if a question cannot be parsed, or an answer cannot be written.
pub(crate) fn answer_requests(mut round: impl FnMut(&Question) -> Vec<f64>) -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        let question = serde_json::from_str(&line?)?;
        println!("{}", serde_json::to_string(&round(&question))?);
    }
    Ok(())
}
