//! What came of a policy.

use serde::{Deserialize, Serialize};

/// What came of a policy on the streams of a seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The lab.
    pub lab: String,
    /// What made the streams.
    pub seed: u32,
    /// What was looked at, one by one. The first that does not hold ends it, if what comes after means nothing without it.
    pub checks: Vec<Check>,
    /// The moments before a step that failed, as the page of failures reads them.
    pub failure: Option<serde_json::Value>,
}

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What should be.
    pub wanted: String,
    /// What was found.
    pub found: String,
    /// Whether it is so.
    pub holds: bool,
}

impl Check {
    /// What should be, what was found, and whether that is so.
    pub fn new(wanted: impl Into<String>, found: impl Into<String>, holds: bool) -> Self {
        Self { wanted: wanted.into(), found: found.into(), holds }
    }
    /// At most so many.
    #[cfg(feature = "course")]
    pub(super) fn at_most(what: &str, found: u64, bound: f64) -> Self {
        Self::new(format!("{what}: at most {bound:.0}"), found.to_string(), found as f64 <= bound)
    }
}

impl Verdict {
    /// As JSON.
    ///
    /// # Panics
    /// Never: it has texts and numbers only.
    #[cfg(feature = "course")]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers")
    }
    /// Whether everything holds that was looked at.
    pub fn holds(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.holds)
    }
}
