//! What can be wrong with a workload, each told with the place and with what would be accepted.

use std::path::PathBuf;
use uslab_trace::TraceError;

/// A distribution that cannot be, as it is written on the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?}: {why}; expected {expected}")]
pub struct SpecError {
    /// Of what: `sizes`, `lifetimes`, `arrivals`.
    pub what: &'static str,
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
    /// What would be accepted.
    pub expected: &'static str,
}

/// A file of operations that cannot be driven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The file cannot be read, or a kernel's trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A line that is no operation, or one that cannot be.
    #[error("{}:{line}: {why}: {text:?}; expected {expected}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The line's text, shortened.
        text: String,
        /// What is wrong with it.
        why: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// The file holds no lines.
    #[error("{}: {why}; expected {expected}", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        why: &'static str,
        /// What would be accepted.
        expected: &'static str,
    },
    /// The file ends before its header says.
    #[error("{}: ends after line {line}, with {found} of {said} {what}", path.display())]
    Early {
        /// The file.
        path: PathBuf,
        /// Its last line.
        line: u64,
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many the header says.
        said: u64,
    },
    /// There are more than the header says.
    #[error("{}:{line}: more {what} than the {said} that the header says", path.display())]
    Late {
        /// The file.
        path: PathBuf,
        /// The first line too many.
        line: u64,
        /// Of what.
        what: &'static str,
        /// How many the header says.
        said: u64,
    },
}
