//! What is done to a run on purpose: refusals, and what nobody may do.

use std::fmt;
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::Arc;
use uslab::KmemCache;
use uslab::faults::{self, BadRule, Rule};

/// Is told of every object that was freed to a cache, and may do to it what nobody may: the tests of the tests. `true`
/// ends the round, so that its census comes while the deeds of the threads are remembered.
pub type Saboteur = Arc<dyn Fn(&KmemCache, NonNull<u8>) -> bool + Send + Sync>;

/// Rules of faults, and the text that they were read from.
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
