//! Parses distributions: `name:argument,argument`.

use super::error::SpecError;
use core::fmt::Display;
use core::str::FromStr;

/// The text of a distribution that is being parsed.
#[derive(Clone, Copy)]
pub(super) struct Spec<'t> {
    what: &'static str,
    expected: &'static str,
    text: &'t str,
}

impl<'t> Spec<'t> {
    pub(super) fn new(what: &'static str, expected: &'static str, text: &'t str) -> Self {
        Self { what, expected, text }
    }
    pub(super) fn wrong<T>(&self, why: impl Into<String>) -> Result<T, SpecError> {
        Err(SpecError {
            what: self.what,
            text: self.text.to_owned(),
            why: why.into(),
            expected: self.expected,
        })
    }

    /// Returns the name, and the text after the colon.
    pub(super) fn parts(&self) -> (&'t str, &'t str) {
        self.text.split_once(':').unwrap_or((self.text, ""))
    }
    pub(super) fn unknown<T>(&self, name: &str) -> Result<T, SpecError> {
        self.wrong(format!("unknown distribution {name:?}"))
    }

    /// Splits the text into arguments; their number must be between `least` and `most`.
    pub(super) fn arguments(
        &self,
        of: &'t str,
        least: usize,
        most: usize,
    ) -> Result<Vec<&'t str>, SpecError> {
        let arguments: Vec<_> = if of.is_empty() { vec![] } else { of.split(',').map(str::trim).collect() };
        if (least..=most).contains(&arguments.len()) {
            return Ok(arguments);
        }
        let wanted = if least == most { least.to_string() } else { format!("{least} to {most}") };
        self.wrong(format!("{} arguments, not {wanted}", arguments.len()))
    }
    /// Parses a number, which must be between `least` and `most`.
    pub(super) fn number<N>(&self, name: &str, text: &str, least: N, most: N) -> Result<N, SpecError>
    where
        N: FromStr + PartialOrd + Display + Copy,
    {
        match text.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => self.wrong(format!("{name} {text:?} is not a number from {least} to {most}")),
        }
    }
    /// Parses `least..most`, both included.
    pub(super) fn range(&self, text: &str, least: u64, most: u64) -> Result<(u64, u64), SpecError> {
        let Some((from, to)) = text.split_once("..") else {
            return self.wrong(format!("{text:?} is not a range"));
        };
        let from = self.number("the lower end", from, least, most)?;
        Ok((from, self.number("the upper end", to, from, most)?))
    }
}
