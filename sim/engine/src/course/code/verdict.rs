//! The verdict on a student's policy.

use serde::{Deserialize, Serialize};

/// The verdict on a student's policy, on the streams of a seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The lab's name.
    pub lab: String,
    /// The seed of the streams.
    pub seed: u32,
    /// The checks, in order. If a failed check makes all later checks meaningless, the failed check is the last one.
    pub checks: Vec<Check>,
    /// The states before the failed operation, as JSON for the failures page.
    pub failure: Option<serde_json::Value>,
}

/// One requirement of a verdict, with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The required result.
    pub wanted: String,
    /// The result that was found.
    pub found: String,
    /// `true` if the requirement holds.
    pub holds: bool,
}

impl Check {
    /// Creates a check from the text of the requirement, the result, and `true` if the requirement holds.
    pub fn new(wanted: impl Into<String>, found: impl Into<String>, holds: bool) -> Self {
        Self { wanted: wanted.into(), found: found.into(), holds }
    }
    /// Checks that `found` is at most `bound`.
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
    /// Returns `true` if the verdict has checks and all of them hold.
    pub fn holds(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.holds)
    }
}
