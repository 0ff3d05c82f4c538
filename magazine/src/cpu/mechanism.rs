//! The mechanisms that give an operation exclusive access to a CPU's region.

/// Maximum number of CPUs with regions in a table.
pub const MAX_CPUS: u32 = 1024;

/// The mechanism that gives an operation exclusive access to a CPU's region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mechanism {
    /// A compare-and-exchange claims the region for one operation. The claimed mechanism works on every system and
    /// costs one locked instruction.
    #[default]
    Claimed,
    /// A restartable sequence, on Linux for x86-64 and aarch64. A restartable sequence uses no locked instruction.
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
