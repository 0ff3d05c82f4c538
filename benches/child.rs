//! Subjects in other processes: this program under a preloaded malloc, or a build of an older commit.
//!
//! A process that lives through all rounds answers one question after the other, so that its rounds alternate with the
//! rounds of all other subjects. If each round has a separate process, each round starts with unused memory.

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

/// A request for one round of a subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) row: String,
    pub(crate) case: String,
    pub(crate) subject: String,
}

/// Command that starts a process which answers questions.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Path of this or another build of the same bench.
    pub(crate) path: PathBuf,
    /// Library to preload, if any.
    pub(crate) library: Option<PathBuf>,
    pub(crate) quick: bool,
}

impl Program {
    fn spawn(&self) -> anyhow::Result<Answering> {
        let mut command = Command::new(&self.path);
        command.args(["--bench", "--serve"]).args(self.quick.then_some("--quick"));
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = child.stdin.take().context("the child process has no standard input")?;
        let answers =
            BufReader::new(child.stdout.take().context("the child process has no standard output")?);
        Ok(Answering { child, questions: Some(questions), answers })
    }
}

/// A running process that answers questions.
#[derive(Debug)]
struct Answering {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Answering {
    fn request(&mut self, question: &Question) -> anyhow::Result<Vec<f64>> {
        let questions = self.questions.as_mut().context("the child process ended before it answered")?;
        writeln!(questions, "{}", serde_json::to_string(question)?)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        serde_json::from_str(&answer)
            .with_context(|| format!("unexpected answer of the child process: {answer:?}"))
    }

    /// Sends a question like `request`, but kills the process if it takes longer than `limit`.
    fn ask_within(&mut self, limit: Duration, question: &Question) -> anyhow::Result<Vec<f64>> {
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

impl Drop for Answering {
    fn drop(&mut self) {
        // The process exits when there are no more questions.
        self.questions = None;
        _ = self.child.wait();
    }
}

/// A process that is started for the first question; if the process fails, it is not started again.
#[derive(Clone, Debug)]
pub(crate) struct Companion {
    name: String,
    program: Program,
    process: Rc<RefCell<Option<Option<Answering>>>>,
}

impl Companion {
    pub(crate) fn new(name: &str, program: Program) -> Self {
        Self { name: name.into(), program, process: Rc::default() }
    }
    /// Makes a contender whose rounds run in the other process, or, if `isolated` is set, each in a new process.
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
    /// Runs one round. Returns no values if the process has no such subject, or fails; the first failure is reported on
    /// standard error.
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

    /// Runs one round in a separate process. If the process fails or exceeds the limit, reports that on standard error and
    /// returns no values.
    fn run_in_child(&self, question: &Question) -> Vec<f64> {
        let answer = self.program.spawn().and_then(|mut process| process.ask_within(LIMIT, question));
        answer.unwrap_or_else(|error| {
            eprintln!("{}: {}/{}/{}: {error:#}", self.name, question.row, question.case, question.subject);
            Vec::new()
        })
    }
}

/// Time limit of a process with one question. Allocators that spin on a lock may take longer with 4,096 threads.
const LIMIT: Duration = Duration::from_secs(30);

/// Answers the questions on standard input until the input ends.
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
