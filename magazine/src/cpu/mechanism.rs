//! The mechanisms that give an operation exclusive access to a CPU's region.

/// Maximum number of CPUs for which a table has regions.
pub const MAX_CPUS: u32 = 1024;

/// The mechanism that gives an operation exclusive access to a CPU's region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mechanism {
    /// The claimed mechanism: an operation claims its CPU's region with a compare-and-exchange. The claimed mechanism
    /// works on every system and costs one locked instruction.
    #[default]
    Claimed,
    /// The rseq mechanism: restartable sequences, on Linux for x86-64 and aarch64. The rseq mechanism needs no locked
    /// instruction.
    Rseq,
}

impl core::fmt::Display for Mechanism {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Claimed => "claimed slot",
            Self::Rseq => "rseq",
        })
    }
}
