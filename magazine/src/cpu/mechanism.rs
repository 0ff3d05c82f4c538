//! The mechanisms that make operations on a region exclusive.

/// Maximum number of CPUs with regions in a table.
pub const MAX_CPUS: u32 = 1024;

/// The mechanism that makes an operation on a CPU's region exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mechanism {
    /// A compare-and-exchange claims the region for one operation: on every system, one locked instruction.
    #[default]
    Claimed,
    /// A restartable sequence: Linux on x86-64 or aarch64, no locked instruction.
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
