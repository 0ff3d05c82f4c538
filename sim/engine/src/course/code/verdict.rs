//! The verdict on a policy.

use serde::{Deserialize, Serialize};

/// The verdict on a policy, on the streams of a seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The lab.
    pub lab: String,
    /// The seed of the streams.
    pub seed: u32,
    /// The checks, one by one. A failed check is the last one if later checks would mean nothing.
    pub checks: Vec<Check>,
    /// The states before a failed operation, in the format of the page of failures.
    pub failure: Option<serde_json::Value>,
}

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The requirement.
    pub wanted: String,
    /// The result.
    pub found: String,
    /// `true` if the requirement holds.
    pub holds: bool,
}

impl Check {
    /// Creates a check from the requirement, the result, and whether it holds.
    pub fn new(wanted: impl Into<String>, found: impl Into<String>, holds: bool) -> Self {
        Self { wanted: wanted.into(), found: found.into(), holds }
    }
    /// Checks that `found` is at most `bound`.
    #[cfg(feature = "course")]
    pub(super) fn at_most(what: &str, found: u64, bound: f64) -> Self {
        Self::new(format!("{what}: at most {bound:.0}"), found.to_string(), found as f64 <= bound)
    }
}

impl Verdict {
    /// Formats the verdict as JSON.
    ///
    /// # Panics
    /// Never panics: it contains only texts and numbers.
    #[cfg(feature = "course")]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers")
    }
    /// Returns `true` if there are checks, and all hold.
    pub fn holds(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.holds)
    }
}
