//! Subjects in other processes. A process that is kept over the rounds answers one question after the other, so its rounds
//! are interleaved with everybody's: this program under a preloaded malloc, or one that was built from an older commit. A
//! process of its own for a single round starts from memory that nobody has used.

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

/// One round of a subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) row: String,
    pub(crate) case: String,
    pub(crate) subject: String,
}

/// How to start a process that answers questions.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// This or another build of the same bench.
    pub(crate) path: PathBuf,
    /// What is preloaded.
    pub(crate) library: Option<PathBuf>,
    pub(crate) quick: bool,
}

impl Program {
    fn start(&self) -> anyhow::Result<Answering> {
        let mut command = Command::new(&self.path);
        command.args(["--bench", "--serve"]).args(self.quick.then_some("--quick"));
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = child.stdin.take().context("no standard input")?;
        let answers = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Answering { child, questions: Some(questions), answers })
    }
}

/// A process that answers.
#[derive(Debug)]
struct Answering {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Answering {
    fn ask(&mut self, question: &Question) -> anyhow::Result<Vec<f64>> {
        let questions = self.questions.as_mut().context("it has ended")?;
        writeln!(questions, "{}", serde_json::to_string(question)?)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        serde_json::from_str(&answer).with_context(|| format!("it answered {answer:?}"))
    }

    /// As `ask`, but kills a process that takes longer.
    fn ask_within(&mut self, limit: Duration, question: &Question) -> anyhow::Result<Vec<f64>> {
        let process = Pid::from_raw(self.child.id().try_into()?);
        let (answered, waiting) = mpsc::channel::<()>();
        let killer = std::thread::spawn(move || {
            let late = waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            // It is not waited for yet, so the number is still its own.
            late && kill(process, Signal::SIGKILL).is_ok()
        });
        let answer = self.ask(question);
        drop(answered);
        anyhow::ensure!(!killer.join().unwrap_or_default(), "it took more than {limit:?}");
        answer
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        // It ends when there are no more questions.
        self.questions = None;
        _ = self.child.wait();
    }
}

/// A process that is started with the first question, and not again when it failed.
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
    /// The contender that has its rounds there: all in the same process, or (`isolated`) each in a new one.
    pub(crate) fn contender(
        &self,
        name: String,
        kind: Kind,
        isolated: bool,
        question: Question,
    ) -> Contender {
        let this = self.clone();
        let mut failed = false;
        let round = move || {
            if !isolated {
                return this.round(&question);
            }
            let answer = if failed { Vec::new() } else { this.alone(&question) };
            failed |= answer.is_empty();
            answer
        };
        Contender::new(name, kind, round)
    }
    /// Nothing, and once a word on standard error, if the process fails; nothing if it does not know the subject.
    fn round(&self, question: &Question) -> Vec<f64> {
        let mut process = self.process.borrow_mut();
        let started = process.get_or_insert_with(|| {
            let started = self.program.start();
            started.inspect_err(|error| eprintln!("{}: {error:#}", self.name)).ok()
        });
        let Some(answering) = started else {
            return Vec::new();
        };
        answering.ask(question).unwrap_or_else(|error| {
            eprintln!("{}: {}/{}: {error:#}", self.name, question.row, question.case);
            *started = None;
            Vec::new()
        })
    }

    /// One round in a separate process. Nothing, and a message on standard error, if it fails or exceeds the limit.
    fn alone(&self, question: &Question) -> Vec<f64> {
        let answer = self.program.start().and_then(|mut process| process.ask_within(LIMIT, question));
        answer.unwrap_or_else(|error| {
            eprintln!("{}: {}/{}/{}: {error:#}", self.name, question.row, question.case, question.subject);
            Vec::new()
        })
    }
}

/// How long a process with one question may take. Allocators that spin on a lock may take longer with 4,096 threads.
const LIMIT: Duration = Duration::from_secs(30);

/// Answers the questions on standard input until there are no more.
///
/// # Errors
/// A question that is none, or nobody to read the answers.
pub(crate) fn serve(mut round: impl FnMut(&Question) -> Vec<f64>) -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        let question = serde_json::from_str(&line?)?;
        println!("{}", serde_json::to_string(&round(&question))?);
    }
    Ok(())
}
