//! Errors in a workload, each with the place and the accepted values.

use std::path::PathBuf;
use uslab_trace::TraceError;

/// An invalid distribution, as written on the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?}: {why}; expected {expected}")]
pub struct SpecError {
    /// The kind of distribution: `sizes`, `lifetimes`, `arrivals`.
    pub what: &'static str,
    /// The text.
    pub text: String,
    /// The reason.
    pub why: String,
    /// The accepted forms.
    pub expected: &'static str,
}

/// A file of operations that cannot be driven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The file cannot be read, or a kernel's trace is invalid.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A line is not an operation, or one that is impossible.
    #[error("{}:{line}: {why}: {text:?}; expected {expected}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The line's text, shortened.
        text: String,
        /// The reason.
        why: String,
        /// The accepted lines.
        expected: &'static str,
    },
    /// The file holds no lines.
    #[error("{}: {why}; expected {expected}", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
        /// A description of what it is instead.
        why: &'static str,
        /// The accepted lines.
        expected: &'static str,
    },
    /// The file ends before the number in its header is reached.
    #[error("{}: ends after line {line}, with {found} of {said} {what}", path.display())]
    Early {
        /// The file.
        path: PathBuf,
        /// The number of its last line.
        line: u64,
        /// What is counted.
        what: &'static str,
        /// The number found.
        found: u64,
        /// The number in the header.
        said: u64,
    },
    /// There are more than the header states.
    #[error("{}:{line}: more {what} than the {said} that the header says", path.display())]
    Late {
        /// The file.
        path: PathBuf,
        /// The number of the first surplus line.
        line: u64,
        /// What is counted.
        what: &'static str,
        /// The number in the header.
        said: u64,
    },
}
