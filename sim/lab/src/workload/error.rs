//! Errors in workloads; each error names its location and the accepted input.

use std::path::PathBuf;
use uslab_trace::TraceError;

/// The error for an invalid distribution in a user's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {text:?}: {reason}; expected {expected}")]
pub struct SpecError {
    /// The kind of distribution: `sizes`, `lifetimes`, `arrivals`.
    pub kind: &'static str,
    /// The invalid text.
    pub text: String,
    /// The reason why the text is invalid.
    pub reason: String,
    /// The accepted forms.
    pub expected: &'static str,
}

/// The error for a file whose operations cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The file cannot be read, or it is an invalid kernel trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A line contains no operation, or an operation that is impossible at this point.
    #[error("{}:{line}: {reason}: {text:?}; expected {expected}", path.display())]
    Line {
        /// The path of the invalid file.
        path: PathBuf,
        /// The line number, counted from 1.
        line: u64,
        /// The line's text, shortened.
        text: String,
        /// The reason why the line is invalid.
        reason: String,
        /// The accepted lines.
        expected: &'static str,
    },
    /// The file has no lines of text.
    #[error("{}: {reason}; expected {expected}", path.display())]
    NoText {
        /// The path of the invalid file.
        path: PathBuf,
        /// A description of what the file contains.
        reason: &'static str,
        /// The accepted lines.
        expected: &'static str,
    },
    /// The file ends before it has the number of items that its header states.
    #[error("{}: the file ends after line {line}, with {found} of {declared} {kind}", path.display())]
    Early {
        /// The path of the invalid file.
        path: PathBuf,
        /// The number of the file's last line.
        line: u64,
        /// The kind of items that the file's header counts.
        kind: &'static str,
        /// The number of items found.
        found: u64,
        /// The number of items that the header states.
        declared: u64,
    },
    /// The file has more items than its header states.
    #[error("{}:{line}: more {kind} than the header's {declared}", path.display())]
    Late {
        /// The path of the invalid file.
        path: PathBuf,
        /// The number of the first line after the items that the header states.
        line: u64,
        /// The kind of items that the file's header counts.
        kind: &'static str,
        /// The number of items that the header states.
        declared: u64,
    },
}
