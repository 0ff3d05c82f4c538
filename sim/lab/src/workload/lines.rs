//! Reads the lines of a plain or compressed file, with their numbers for error messages.

use super::error::OpsError;
use std::path::{Path, PathBuf};
use uslab_trace::{BINARY_FILE_HINT, Source, TraceError};

/// The largest number of characters that an error message shows of a line.
const MAX_SHOWN_CHARACTERS: usize = 80;

/// The non-blank lines of a file.
#[derive(Debug)]
pub(super) struct Lines {
    source: Source,
    path: PathBuf,
    chunk: String,
    /// The offset of the next line in the chunk, and the number of the next line.
    position: usize,
    number: u64,
    /// `true` if a line has already been returned.
    has_begun: bool,
}

/// A non-blank line of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'l> {
    path: &'l Path,
    /// The number of the line in the file, counted from 1.
    pub(super) number: u64,
    /// `true` if the line is the first non-blank line.
    pub(super) first: bool,
    /// The text of the line, without blanks at its ends.
    pub(super) text: &'l str,
}

impl Lines {
    /// Opens the file at `path`; `expected` describes the lines that the file should have. The path `-` means standard
    /// input.
    pub(super) fn open(path: &Path, expected: &'static str) -> Result<Self, OpsError> {
        let no_text = |path, reason| OpsError::NoText { path, reason, expected };
        Source::open(path).map(Self::of).map_err(|error| match error {
            TraceError::Directory { path } => no_text(path, "a directory"),
            // Other hints tell the user what to do with a recording, so the error stays unchanged.
            TraceError::Binary { path, hint } if hint == BINARY_FILE_HINT => no_text(path, "not text"),
            error => error.into(),
        })
    }
    pub(super) fn of(source: Source) -> Self {
        Self {
            path: source.path().to_owned(),
            source,
            chunk: String::new(),
            position: 0,
            number: 0,
            has_begun: false,
        }
    }
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
    /// Returns the number of lines read so far.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn next_line(&mut self) -> Result<Option<Line<'_>>, OpsError> {
        loop {
            if self.position == self.chunk.len() {
                let Some(chunk) = self.source.next_chunk()? else { return Ok(None) };
                // A line that is not UTF-8 is invalid anyway, and will be reported.
                self.chunk = String::from_utf8_lossy(chunk.text).into_owned();
                self.position = 0;
            }
            let remaining = &self.chunk[self.position..];
            let length = remaining.find('\n').map_or(remaining.len(), |end| end + 1);
            let range = self.position..self.position + length;
            self.position = range.end;
            self.number += 1;
            if !self.chunk[range.clone()].trim().is_empty() {
                let text = self.chunk[range].trim();
                let first = !std::mem::replace(&mut self.has_begun, true);
                return Ok(Some(Line { path: &self.path, number: self.number, first, text }));
            }
        }
    }
}

impl Line<'_> {
    /// Returns `true` if the line contains the given column names in upper or lower case, as the first line of a file
    /// may.
    pub(super) fn names(&self, columns: &[&str]) -> bool {
        let mut fields = self.text.split(',').map(str::trim);
        self.first
            && columns
                .iter()
                .all(|column| fields.next().is_some_and(|field| field.eq_ignore_ascii_case(column)))
    }
    /// Creates an error that names the file and this line.
    pub(super) fn error(&self, reason: impl Into<String>, expected: &'static str) -> OpsError {
        OpsError::Line {
            path: self.path.to_owned(),
            line: self.number,
            text: self.text.chars().take(MAX_SHOWN_CHARACTERS).collect(),
            reason: reason.into(),
            expected,
        }
    }
}
