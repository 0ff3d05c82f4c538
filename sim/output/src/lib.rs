//! Writes results as files (complete or absent), tables, a progress bar on a terminal, and exit codes.

#![forbid(unsafe_code)]

pub mod command;
mod place;

pub use place::{Form, Place, json_text, say, tell, write_all};

use comfy_table::{CellAlignment, Table, TableStyle};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Creates a table with the given header row; the first column is left-aligned text, and all other columns
/// are right-aligned numbers.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_header(header);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Formats a table as text, without trailing blanks.
pub fn text(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Formats a number with commas, such as `1234567` as `1,234,567`.
pub fn grouped(n: u64) -> String {
    HumanCount(n).to_string()
}

/// Formats a signed difference, for example as `+3` or `-3`.
pub fn signed(n: i64) -> String {
    format!("{n:+}")
}

/// Formats a number of bytes with a unit, to about three digits.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=10_239_999 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Parses a number of bytes in an option: a number that may end with K, M or G.
///
/// # Errors
/// Fails if the text is not a number, is 0, or is too large.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" | "KB" => 10,
        "M" | "MIB" | "MB" => 20,
        "G" | "GIB" | "GB" => 30,
        _ => return Err("expected bytes, or a number with K, M or G".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "expected bytes, or a number with K, M or G".to_owned())?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err("expected more than 0 bytes".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err("expected less than 2^64 bytes".to_owned()),
    }
}

/// Returns a word for use in a shell command, quoted if the shell requires quotes.
pub fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:,%+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A progress bar on standard error, which is visible only on a terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Creates a hidden bar, which [`stage`](Self::stage) shows; if standard error is not a terminal, the bar
    /// stays hidden.
    pub fn new() -> Self {
        Self { bar: ProgressBar::hidden() }
    }
    /// Begins a stage of `length` steps; `length` is 0 if the number of steps is unknown.
    pub fn stage(&self, name: &'static str, length: u64) -> Stage {
        if !std::io::stderr().is_terminal() {
            return Stage(self.bar.clone());
        }
        let bar = if length == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(length) };
        // The template is a constant; an invalid template would fall back to the default style.
        if let Ok(style) = ProgressStyle::with_template("{msg:12} {wide_bar} {percent:>3} %  {eta:>4} left") {
            bar.set_style(style);
        }
        bar.set_message(name);
        Stage(bar)
    }

    /// Shows a line of text instead of a bar.
    pub fn line(&mut self, text: String) {
        if self.bar.is_hidden() && std::io::stderr().is_terminal() {
            self.bar = ProgressBar::new_spinner();
            // The template is a constant; an invalid template would fall back to the default style.
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                self.bar.set_style(style);
            }
        }
        self.bar.set_message(text);
        self.bar.tick();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A stage of a [`Progress`]; dropping it removes the stage's bar.
#[derive(Debug)]
pub struct Stage(ProgressBar);

impl Stage {
    /// Sets the position of the bar.
    pub fn at(&self, position: u64) {
        self.0.set_position(position);
    }
    /// Sets the text before the bar.
    pub fn say(&self, text: String) {
        self.0.set_message(text);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words_are_quoted_when_needed() {
        assert_eq!(shell_quoted("/a/b-1.toml"), "/a/b-1.toml");
        assert_eq!(shell_quoted("a b"), "'a b'");
        assert_eq!(shell_quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(shell_quoted(""), "''");
    }
    #[test]
    fn digits_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1, -1, 0].map(signed), ["+1", "-1", "+0"]);
    }
}
