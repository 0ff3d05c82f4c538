//! Errors in a trace; each error names the file and the line.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::foreign::Foreign;
use super::page_size::PageSize;

/// An error in a trace, or in a table of the trace's folder.
///
/// Every variant names the file (`<stdin>` for standard input); if the error is in a line, it also names the line. If
/// the system returned an error, it is the [`source`](std::error::Error::source).
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened.
    Open {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path leads to a directory, not to a file.
    Directory {
        /// The path of the directory.
        path: PathBuf,
    },
    /// The file could be opened, but reading it failed.
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The compressed file ends before its content is complete.
    Truncated {
        /// The path of the file.
        path: PathBuf,
    },
    /// The compressed file cannot be unpacked.
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The kind of compression: `gzip`, `xz` or `zstd`.
        compression: &'static str,
        /// The decoder's error.
        source: io::Error,
    },
    /// The file contains no text.
    Empty {
        /// The path of the file.
        path: PathBuf,
    },
    /// A recording of `libuslab.so` is shorter than its header states, or has invalid contents.
    Recording {
        /// The path of the recording.
        path: PathBuf,
        /// A description of the error and of the expected content.
        what: String,
    },
    /// The file is not text.
    Binary {
        /// The path of the file.
        path: PathBuf,
        /// A hint on how to convert this file to text.
        hint: &'static str,
    },
    /// The file is text, but no line of it is an event.
    NotATrace {
        /// The path of the file.
        path: PathBuf,
        /// The number of lines read.
        lines: u64,
        /// The first line that the parser did not understand, shortened; empty if the file has only header
        /// lines.
        first: String,
        /// The known foreign format of the text, if it has one.
        foreign: Option<Foreign>,
    },
    /// The parser understood less than 95 % of the lines with kmem events.
    MostlyNotUnderstood {
        /// The path of the file.
        path: PathBuf,
        /// The number of kmem lines that the parser did not understand.
        rejected: u64,
        /// The number of all kmem lines.
        lines: u64,
        /// The first lines that the parser did not understand, shortened, each with its number.
        first: Vec<(u64, String)>,
    },
    /// The time decreases on one CPU, which shows that the text contains two traces.
    TimeGoesBack {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line on which the time decreases, from 1.
        line: u64,
        /// The CPU on which the time decreases.
        cpu: u16,
        /// The time of the CPU's previous event and the time on this line, in nanoseconds.
        times: (u64, u64),
    },
    /// A line is longer than the longest line that a trace can have.
    LongLine {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: u64,
    },
    /// A value is impossible for every kernel or for kernels with this page size, such as an order above 10, a size of
    /// 0, or a CPU above 8191.
    Impossible {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: u64,
        /// The value and the accepted range.
        what: Impossible,
    },
    /// Reading or writing the temporary file with the records of a long trace failed.
    Spool {
        /// The system's error.
        source: io::Error,
    },
    /// A table in the trace's folder is invalid.
    Table {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: u64,
        /// The expected contents of the line.
        what: &'static str,
    },
}

/// A value that no kernel prints, together with the accepted range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impossible {
    /// The name of the field, as printed in the trace.
    pub field: &'static str,
    /// The field's value.
    pub value: u64,
    /// The largest accepted value.
    pub most: u64,
    /// The smallest accepted value.
    pub least: u64,
    /// The page size for which the range is valid. `None` if the range is valid for any page size.
    pub page_size: Option<PageSize>,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, most, least, page_size } = self;
        write!(f, "impossible {field}={value} ({least} to {most} are accepted")?;
        match page_size {
            Some(size) => write!(f, " where pages have {size})"),
            None => f.write_str(")"),
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, .. } => write!(f, "{}: cannot open", path.display()),
            Self::Directory { path } => {
                write!(
                    f,
                    "{}: a directory; expected a trace file, such as trace.txt.zst in a recording's folder",
                    path.display()
                )
            }
            Self::Read { path, .. } => write!(f, "{}: cannot read", path.display()),
            Self::Truncated { path } => {
                write!(f, "{}: the compressed file is truncated or damaged", path.display())
            }
            Self::Damaged { path, compression, source } if source.kind() == io::ErrorKind::OutOfMemory => {
                write!(
                    f,
                    "{}: its {compression} data refers further back than the 128 MiB that are accepted",
                    path.display()
                )
            }
            Self::Damaged { path, compression, .. } => {
                write!(f, "{}: its {compression} data is damaged", path.display())
            }
            Self::Empty { path } => write!(f, "{}: the file is empty", path.display()),
            Self::Recording { path, what } => {
                write!(f, "{}: recorded by libuslab.so: {what}", path.display())
            }
            Self::Binary { path, hint } => write!(f, "{}: not text: {hint}", path.display()),
            Self::NotATrace { path, foreign: Some(foreign), .. } => {
                let path = path.display().to_string();
                write!(f, "{path}: this is {}: {}", foreign.is, foreign.advice(&path))
            }
            Self::NotATrace { path, lines, first, .. } if first.is_empty() => {
                write!(f, "{}: no event in {lines} lines", path.display())
            }
            Self::MostlyNotUnderstood { path, rejected, lines, first } => {
                let shown = first.iter().map(|(line, text)| format!("line {line}: {text:?}"));
                write!(
                    f,
                    "{}: {rejected} of {lines} lines of kmem events were not understood (`--partial` of `uslab replay` and `convert` skips them): {}",
                    path.display(),
                    shown.collect::<Vec<_>>().join("; ")
                )
            }
            Self::TimeGoesBack { path, line, cpu, times: (before, now) } => {
                let seconds = |ns: &u64| *ns as f64 / 1e9;
                write!(
                    f,
                    "{}:{line}: time goes back on CPU {cpu}, from {:.6} to {:.6} s: expected one trace, but a second trace begins here; split the file before this line",
                    path.display(),
                    seconds(before),
                    seconds(now)
                )
            }
            Self::NotATrace { path, lines, first, .. } => write!(
                f,
                "{}: no event in {lines} lines; ftrace, `perf script`, `trace-cmd report`, wee_alloc and Fleetbench text is understood; \
                 the first line that was not understood: {first:?}",
                path.display()
            ),
            Self::LongLine { path, line } => {
                write!(f, "{}:{line}: the line is too long for a trace", path.display())
            }
            Self::Impossible { path, line, what } => write!(f, "{}:{line}: {what}", path.display()),
            Self::Spool { .. } => f.write_str("cannot write the temporary file for a long trace"),
            Self::Table { path, line, what } => write!(f, "{}:{line}: expected {what}", path.display()),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open { source, .. }
            | Self::Read { source, .. }
            | Self::Damaged { source, .. }
            | Self::Spool { source } => Some(source),
            _ => None,
        }
    }
}
