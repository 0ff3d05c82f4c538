//! Parses distributions: `name:argument,argument`.

use super::error::SpecError;
use core::fmt::Display;
use core::str::FromStr;

/// A parser for the text of a distribution.
#[derive(Clone, Copy)]
pub(super) struct Spec<'t> {
    kind: &'static str,
    expected: &'static str,
    text: &'t str,
}

impl<'t> Spec<'t> {
    pub(super) fn new(kind: &'static str, expected: &'static str, text: &'t str) -> Self {
        Self { kind, expected, text }
    }
    pub(super) fn error<T>(&self, reason: impl Into<String>) -> Result<T, SpecError> {
        Err(SpecError {
            kind: self.kind,
            text: self.text.to_owned(),
            reason: reason.into(),
            expected: self.expected,
        })
    }

    /// Returns the distribution's name, and the text after the colon.
    pub(super) fn parts(&self) -> (&'t str, &'t str) {
        self.text.split_once(':').unwrap_or((self.text, ""))
    }
    pub(super) fn unknown_name_error<T>(&self, name: &str) -> Result<T, SpecError> {
        self.error(format!("unknown distribution {name:?}"))
    }

    /// Splits the text after the colon into arguments; their number must be between `min` and `max`.
    pub(super) fn arguments(
        &self,
        argument_text: &'t str,
        min: usize,
        max: usize,
    ) -> Result<Vec<&'t str>, SpecError> {
        let arguments: Vec<_> =
            if argument_text.is_empty() { vec![] } else { argument_text.split(',').map(str::trim).collect() };
        if (min..=max).contains(&arguments.len()) {
            return Ok(arguments);
        }
        let expected_count = if min == max { min.to_string() } else { format!("{min} to {max}") };
        self.error(format!("{} arguments instead of {expected_count}", arguments.len()))
    }
    /// Parses a number, which must be between `min` and `max`.
    pub(super) fn number<N>(&self, name: &str, text: &str, min: N, max: N) -> Result<N, SpecError>
    where
        N: FromStr + PartialOrd + Display + Copy,
    {
        match text.parse() {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => self.error(format!("{name} {text:?} is not a number from {min} to {max}")),
        }
    }
    /// Parses a range `min..max`, which includes both bounds.
    pub(super) fn range(&self, text: &str, min: u64, max: u64) -> Result<(u64, u64), SpecError> {
        let Some((lower, upper)) = text.split_once("..") else {
            return self.error(format!("{text:?} is not a range"));
        };
        let lower = self.number("the lower end", lower, min, max)?;
        Ok((lower, self.number("the upper end", upper, lower, max)?))
    }
}
