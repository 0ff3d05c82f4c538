//! Faults that a stress run causes on purpose: refused allocations, and corrupted objects that the checks must find.

use std::fmt;
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::Arc;
use uslab::KmemCache;
use uslab::faults::{self, BadRule, Rule};

/// A function that can corrupt a freed object, to test the checks of the stress run. The stress test calls this
/// function for every object freed to a cache. If this function returns `true`, the round ends, so that the census runs
/// before the threads' logs lose their last operations.
pub type FreedObjectHook = Arc<dyn Fn(&KmemCache, NonNull<u8>) -> bool + Send + Sync>;

/// Fault rules, and the text from which they were parsed.
#[derive(Clone, Debug)]
pub struct FaultSpec {
    text: String,
    pub(super) rules: Vec<Rule>,
}

impl FromStr for FaultSpec {
    type Err = BadRule;
    fn from_str(text: &str) -> Result<Self, BadRule> {
        Ok(Self { text: text.to_owned(), rules: faults::parse(text)? })
    }
}
impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
