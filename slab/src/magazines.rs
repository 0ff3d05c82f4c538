//! How large a cache's magazines are to begin with.
//!
//! The capacities are those of Linux 7's sheaves (`calculate_sheaf_capacity`): what fills an allocation of 64 to 512
//! bytes with a header of 32. They come from the number of objects that older kernels kept per CPU, halved; nobody
//! measured them to be best. The stocks (a sheaf has none) let a CPU cycle through a batch of `stock * capacity`
//! objects without touching what other CPUs touch; what a CPU may park is bounded: about 128 KiB a cache.

use uslab_magazine::{Config, Cpus};

/// The magazines of a cache, or of all caches of a subsystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Magazines {
    /// By the size of the object: [`TABLE`].
    #[default]
    BySize,
    /// None: every allocation and free takes the lock of its node. For study and comparison.
    Off,
    /// As said.
    Sized {
        /// Objects in a magazine, at least 1.
        capacity: u16,
        /// Full and empty magazines in each CPU's stock.
        stock: u16,
        /// Full magazines in each node's depot.
        depot_limit: u32,
    },
}

/// One row: objects from `stride` bytes up to the row before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Smallest distance of objects, in bytes.
    pub stride: usize,
    /// Objects in a magazine.
    pub capacity: u16,
    /// Magazines in each stock.
    pub stock: u16,
}

/// Full magazines that a node's depot keeps: as many as a barn's soft limit.
pub const DEPOT_LIMIT: u32 = 10;

/// The sizes, largest objects first.
pub const TABLE: [Row; 4] = [
    Row { stride: 4096, capacity: 4, stock: 2 },
    Row { stride: 1024, capacity: 12, stock: 4 },
    Row { stride: 256, capacity: 28, stock: 8 },
    Row { stride: 0, capacity: 126, stock: 8 },
];

impl Magazines {
    /// The layer's sizes for objects that lie `stride` bytes apart; `None` without magazines.
    pub(crate) fn config(self, cpus: &Cpus, stride: usize) -> Option<Config> {
        match self {
            Self::Off => None,
            Self::Sized { capacity, stock, depot_limit } => {
                Some(Config::new(cpus, capacity, stock, depot_limit))
            }
            Self::BySize => {
                let row = TABLE.iter().find(|row| stride >= row.stride)?;
                Some(Config::new(cpus, row.capacity, row.stock, DEPOT_LIMIT))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_row() {
        let cpus = Cpus::simulated(2, 1).unwrap();
        let capacity = |stride| Magazines::BySize.config(&cpus, stride).map(|config| config.capacity);
        let rows =
            [(8, 60), (255, 60), (256, 28), (1023, 28), (1024, 12), (4095, 12), (4096, 4), (1 << 22, 4)];
        for (stride, expected) in rows {
            assert_eq!(capacity(stride), Some(expected), "stride {stride}");
        }
        assert_eq!(Magazines::Off.config(&cpus, 8), None);
    }
}
