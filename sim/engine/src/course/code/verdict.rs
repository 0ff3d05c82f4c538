//! The verdict on a student's policy.

use serde::{Deserialize, Serialize};

/// The verdict on a student's policy after it ran on the streams that one seed generates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The lab's name.
    pub lab: String,
    /// The seed from which the streams are generated.
    pub seed: u32,
    /// The checks in the order in which they were made. If a failed check makes all later checks meaningless, the
    /// failed check is the last one.
    pub checks: Vec<Check>,
    /// The states before the failed operation, as JSON for the web page that shows failures.
    pub failure: Option<serde_json::Value>,
}

/// One requirement of a verdict, with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The required result.
    pub wanted: String,
    /// The measured result of the run.
    pub found: String,
    /// `true` if the result meets the requirement.
    pub holds: bool,
}

impl Check {
    /// Creates a check of the result `found` against the requirement `wanted`; `holds` is `true` if the requirement is
    /// met.
    pub fn new(wanted: impl Into<String>, found: impl Into<String>, holds: bool) -> Self {
        Self { wanted: wanted.into(), found: found.into(), holds }
    }
    /// Creates a check that requires `found` to be at most `bound`.
    #[cfg(feature = "course")]
    pub(super) fn at_most(quantity: &str, found: u64, bound: f64) -> Self {
        Self::new(format!("{quantity}: at most {bound:.0}"), found.to_string(), found as f64 <= bound)
    }
}

impl Verdict {
    /// Formats the verdict as JSON.
    ///
    /// # Panics
    /// Never panics, because a verdict contains only texts and numbers.
    #[cfg(feature = "course")]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("the verdict must be serialisable")
    }
    /// Returns `true` if the verdict has at least one check and every check holds.
    pub fn holds(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.holds)
    }
}
