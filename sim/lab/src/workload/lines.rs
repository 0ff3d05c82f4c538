//! A file of lines, plain or compressed, with the place of each for errors.

use super::error::OpsError;
use std::path::{Path, PathBuf};
use uslab_trace::{NO_TRACE, Source, TraceError};

/// How much of a line an error shows, in characters.
const SHOWN: usize = 80;

/// The lines of a file that are not blank.
#[derive(Debug)]
pub(super) struct Lines {
    source: Source,
    path: PathBuf,
    chunk: String,
    /// Where the next line begins, and its number.
    at: usize,
    number: u64,
    /// Whether a line was handed out.
    begun: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'l> {
    path: &'l Path,
    /// From 1.
    pub(super) number: u64,
    /// Whether it is the first that is not blank.
    pub(super) first: bool,
    /// Without blanks at its ends.
    pub(super) text: &'l str,
}

impl Lines {
    /// Opens `path`, which has lines of `expected`; `-` is standard input.
    pub(super) fn open(path: &Path, expected: &'static str) -> Result<Self, OpsError> {
        let no_text = |path, why| OpsError::NoText { path, why, expected };
        Source::open(path).map(Self::of).map_err(|error| match error {
            TraceError::Directory { path } => no_text(path, "a directory"),
            // Other hints say what to do with the file, whatever is wanted of it.
            TraceError::Binary { path, hint } if hint == NO_TRACE => no_text(path, "not text"),
            error => error.into(),
        })
    }
    pub(super) fn of(source: Source) -> Self {
        Self { path: source.path().to_owned(), source, chunk: String::new(), at: 0, number: 0, begun: false }
    }
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
    /// Lines read so far.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn next_line(&mut self) -> Result<Option<Line<'_>>, OpsError> {
        loop {
            if self.at == self.chunk.len() {
                let Some(chunk) = self.source.next_chunk()? else { return Ok(None) };
                // What is no UTF-8 is no number either: the line will be told.
                self.chunk = String::from_utf8_lossy(chunk.text).into_owned();
                self.at = 0;
            }
            let rest = &self.chunk[self.at..];
            let length = rest.find('\n').map_or(rest.len(), |end| end + 1);
            let range = self.at..self.at + length;
            self.at = range.end;
            self.number += 1;
            if !self.chunk[range.clone()].trim().is_empty() {
                let text = self.chunk[range].trim();
                let first = !std::mem::replace(&mut self.begun, true);
                return Ok(Some(Line { path: &self.path, number: self.number, first, text }));
            }
        }
    }
}

impl Line<'_> {
    /// Whether it names the columns, as the first line may: in letters of either case.
    pub(super) fn names(&self, columns: &[&str]) -> bool {
        let mut fields = self.text.split(',').map(str::trim);
        self.first
            && columns
                .iter()
                .all(|column| fields.next().is_some_and(|field| field.eq_ignore_ascii_case(column)))
    }
    /// An error about this line.
    pub(super) fn wrong(&self, why: impl Into<String>, expected: &'static str) -> OpsError {
        OpsError::Line {
            path: self.path.to_owned(),
            line: self.number,
            text: self.text.chars().take(SHOWN).collect(),
            why: why.into(),
            expected,
        }
    }
}
