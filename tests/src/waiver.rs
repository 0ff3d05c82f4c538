//! Waivers: each names an ordering that is kept for a stated reason, although no model fails without the ordering.
//!
//! The file `tests/orderings.toml` lists the waivers. A waiver identifies an ordering site by file, function and a part
//! of the line, so it stays valid when the rest of the file changes. A run fails if a waiver does not match exactly one
//! site, or if models detect all mutants of that site.

use crate::source::{Ordering, Site};
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::path::Path;

/// One entry of a waiver file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiver {
    /// The file of the ordering site, relative to the root of the workspace.
    pub file: String,
    /// The function that contains the ordering site.
    pub function: String,
    /// A part of the source line of the ordering site.
    pub text: String,
    /// The ordering that is kept although no model needs it.
    pub ordering: String,
    /// The reason for the waiver.
    pub reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    waiver: Vec<Waiver>,
}

impl Waiver {
    /// Reads the waivers in the file at `path`.
    ///
    /// # Errors
    /// Fails if the file cannot be read, if it is not a list of waivers, or if a reason is missing.
    pub fn read(path: &Path) -> anyhow::Result<Vec<Self>> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Vec<Self>> {
        let waivers = toml::from_str::<File>(text)?.waiver;
        for waiver in &waivers {
            ensure!(!waiver.reason.trim().is_empty(), "the waiver for {} gives no reason", waiver.place());
            let named = Ordering::from_name(&waiver.ordering);
            ensure!(
                named.is_some_and(|ordering| ordering != Ordering::Relaxed),
                "the waiver for {} keeps {:?}; expected Acquire, Release, AcqRel or SeqCst",
                waiver.place(),
                waiver.ordering
            );
        }
        Ok(waivers)
    }

    /// Returns `true` if the waiver applies to `site`.
    pub fn fits(&self, site: &Site) -> bool {
        let Self { file, function, text, ordering, .. } = self;
        *file == site.file
            && *function == site.function
            && site.text.contains(text)
            && *ordering == site.ordering.to_string()
    }

    /// Returns the name of the waiver's site in messages.
    pub fn place(&self) -> String {
        format!("{} {}: {:?}", self.file, self.function, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutant_waiver_without_a_reason_is_an_error() {
        let text = |ordering: &str, reason: &str| {
            format!(
                "[[waiver]]\nfile = 'a.rs'\nfunction = 'f'\ntext = 'x.load'\nordering = '{ordering}'\nreason = '{reason}'"
            )
        };
        assert_eq!(Waiver::parse(&text("Acquire", "why")).unwrap()[0].place(), "a.rs f: \"x.load\"");
        let error = |text: &str| Waiver::parse(text).unwrap_err().to_string();
        assert!(error(&text("Acquire", " ")).contains("gives no reason"));
        assert!(error(&text("Relaxed", "why")).contains("expected Acquire, Release, AcqRel or SeqCst"));
        assert!(error("[[waiver]]\nfile = 'a.rs'").contains("missing field"));
        assert!(error("[[wavier]]").contains("unknown field"));
        assert!(Waiver::parse("# none").unwrap().is_empty());
    }
}
