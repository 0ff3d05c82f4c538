//! The parameters that determine an item's result, and their hash, which is the name of the result's file.
//!
//! An item's result does not depend on the sweep that contains the item. A sweep with more seeds, or with other
//! designs, reuses the results of all items that it shares with another sweep. The rounds of `uslab tune` rely on this
//! reuse of results.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// All parameters that determine the result of an item. Two items with the same identity have the same
/// result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    /// The version of the simulator.
    pub(super) simulator: String,
    /// The SHA-256 of the profile of prices.
    pub(super) profile: String,
    pub(super) of: WorkloadIdentity,
    /// The design with its options, as one text.
    pub(super) setting: String,
    /// The number of simulated CPUs; `None` means the number of CPUs in the trace.
    pub(super) cpus: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum WorkloadIdentity {
    /// A trace, identified by a hash of its bytes and of the tables in its folder that are read with it.
    Trace {
        sha256: String,
    },
    Made {
        workload: String,
        seed: u64,
        size: u32,
        ops: u64,
        think: u32,
    },
}

/// The first 128 bits of an identity's SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u128);

impl Identity {
    pub(super) fn key(&self) -> Key {
        // JSON has the fields in the order of their declaration, so the text is the same everywhere.
        let text = serde_json::to_vec(self).unwrap_or_default();
        Key(Sha256::digest(text).iter().take(16).fold(0, |n, byte| n << 8 | u128::from(*byte)))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.of {
            WorkloadIdentity::Trace { sha256 } => {
                write!(f, "{} under trace {}", self.setting, sha256.get(..16).unwrap_or(sha256))?
            }
            WorkloadIdentity::Made { workload, seed, size, ops, think } => {
                write!(
                    f,
                    "{} under {workload}, seed {seed}, size {size}, ops {ops}, think {think}",
                    self.setting
                )?;
            }
        }
        match self.cpus {
            Some(cpus) => write!(
                f,
                " on {cpus} CPUs (version {}, profile {})",
                self.simulator,
                self.profile.get(..8).unwrap_or("")
            ),
            None => {
                write!(f, " (version {}, profile {})", self.simulator, self.profile.get(..8).unwrap_or(""))
            }
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for Key {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}
