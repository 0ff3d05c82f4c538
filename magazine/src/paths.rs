//! Operation counts, by the level that served the operation. Each allocation or free is counted once, at the highest
//! level that it reached.
//!
//! | level | highest level reached |
//! |---|---|
//! | [`cpu`](Path::Cpu) | moved a round on or off its CPU's own stack: no lock |
//! | [`depot`](Path::Depot) | locked state shared by the CPUs of a node: the depot, or the committed size of their regions |
//! | [`slab`](Path::Slab) | locked a node's lists of slabs |
//! | [`pages`](Path::Pages) | called the page allocator: its per-CPU pages, or a zone |
//! | [`commit`](Path::Commit) | requested memory from the system, or returned memory to it |
//!
//! The counts of all levels add up to the total number of operations. An unsuccessful attempt also reaches a level. For
//! example, a free that finds the depot full has reached the level of the depot.
//!
//! An allocation or free of several objects counts as one operation per object. A bulk request for ten objects counts
//! as ten operations, at the level that the request reached. Failed allocations, reaps and drains are not counted. An
//! object in a user's reserve is counted when it leaves the cache and when it returns to the cache. A deferred free is
//! counted when it is executed.
//!
//! Fast paths do not update these counts. A slow path passes its [`Operation`] through all levels, down to the page
//! allocator. Each [`Step`](crate::tracepoints::Step) raises the operation to the step's level. The count of the level
//! `cpu` is the number of all operations, from the stack heads, minus the operations of all higher levels.

use crate::sync::Counter;
use crate::tracepoints::Operation;
use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign};

/// The levels at which an operation can be served, lowest first. See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// The current CPU's stack, which needs no lock.
    #[default]
    Cpu,
    /// State that CPUs share: a depot, or the committed part of a region.
    Depot,
    /// The slab lists of a node.
    Slab,
    /// The page allocator.
    Pages,
    /// The operating system.
    Commit,
}

impl Path {
    /// All levels, from the lowest to the highest.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Depot, Self::Slab, Self::Pages, Self::Commit];

    /// Returns the level's name in reports and in [`Paths`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Depot => "depot",
            Self::Slab => "slab",
            Self::Pages => "pages",
            Self::Commit => "commit",
        }
    }
}

/// The numbers of operations, by the level that served them. The numbers are exact while no operation runs. While
/// operations run, the numbers are read at slightly different times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Paths {
    /// Number of operations served at level [`Path::Cpu`].
    pub cpu: u64,
    /// Number of operations served at level [`Path::Depot`].
    pub depot: u64,
    /// Number of operations served at level [`Path::Slab`].
    pub slab: u64,
    /// Number of operations served at level [`Path::Pages`].
    pub pages: u64,
    /// Number of operations served at level [`Path::Commit`].
    pub commit: u64,
}

impl Paths {
    /// Returns the number of operations that were served at `path`.
    pub const fn of(&self, path: Path) -> u64 {
        match path {
            Path::Cpu => self.cpu,
            Path::Depot => self.depot,
            Path::Slab => self.slab,
            Path::Pages => self.pages,
            Path::Commit => self.commit,
        }
    }
    /// Returns the total number of operations at all levels.
    pub const fn operations(&self) -> u64 {
        self.cpu + self.depot + self.slab + self.pages + self.commit
    }
    /// Returns the fraction of all operations that were served at `path`, from 0 to 1. Returns `None` if no operation
    /// was counted yet.
    pub fn share(&self, path: Path) -> Option<f64> {
        let all = self.operations();
        (all > 0).then(|| self.of(path) as f64 / all as f64)
    }
}

impl Add for Paths {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            depot: self.depot + other.depot,
            slab: self.slab + other.slab,
            pages: self.pages + other.pages,
            commit: self.commit + other.commit,
        }
    }
}
impl AddAssign for Paths {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
impl Sum for Paths {
    fn sum<I: Iterator<Item = Self>>(paths: I) -> Self {
        paths.fold(Self::default(), Add::add)
    }
}

/// Prints the percentage of each level, for example
/// `cpu 97.20 %, depot 1.53 %, slab 0.90 %, pages 0.36 %, commit 0.01 %`.
impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in Path::ALL {
            let comma = if path == Path::Cpu { "" } else { ", " };
            write!(f, "{comma}{} {:.2} %", path.name(), 100.0 * self.share(path).unwrap_or(0.0))?;
        }
        Ok(())
    }
}

/// Counters of the operations above level [`Path::Cpu`], by level.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct PathCounts([Counter; Path::ALL.len() - 1]);

impl PathCounts {
    /// Counts a finished operation at the highest level that it reached.
    pub fn count(&self, op: &Operation) {
        self.add(op.path(), 1);
    }
    /// Counts `n` finished operations at one level.
    pub fn add(&self, path: Path, n: u64) {
        // The count of [`Path::Cpu`] is the remainder.
        if let Some(at) = (path as usize).checked_sub(1) {
            self.0[at].add(n);
        }
    }
    /// Returns the current counts of all levels above [`Path::Cpu`]. Call `now` *before* reading the total number of
    /// operations. If the total were read first, the counts of the higher levels could exceed it.
    pub fn now(&self) -> Paths {
        let [depot, slab, pages, commit] = self.0.each_ref().map(Counter::get);
        Paths { cpu: 0, depot, slab, pages, commit }
    }
}

impl Paths {
    /// Sets the count of [`Path::Cpu`] to `operations` minus the counts of all higher levels.
    #[must_use]
    pub const fn of_operations(self, operations: u64) -> Self {
        let dear = self.depot + self.slab + self.pages + self.commit;
        Self { cpu: operations.saturating_sub(dear), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_is_counted_once_at_the_highest_level_reached() {
        let counts = PathCounts::default();
        for (did, is) in [
            (&[][..], Path::Cpu),
            (&[Path::Depot], Path::Depot),
            (&[Path::Slab, Path::Depot], Path::Slab),
            (&[Path::Commit, Path::Pages, Path::Cpu], Path::Commit),
        ] {
            let op = Operation::new();
            did.iter().for_each(|path| op.did(*path));
            assert_eq!(op.path(), is);
            counts.count(&op);
        }
        counts.add(Path::Pages, 3);
        counts.add(Path::Cpu, 9);
        let paths = counts.now().of_operations(20);
        assert_eq!(paths, Paths { cpu: 14, depot: 1, slab: 1, pages: 3, commit: 1 });
        assert_eq!(paths.operations(), 20);
        assert_eq!(paths.to_string(), "cpu 70.00 %, depot 5.00 %, slab 5.00 %, pages 15.00 %, commit 5.00 %");
        assert_eq!((Paths::default().share(Path::Cpu), paths.share(Path::Pages)), (None, Some(0.15)));
        assert_eq!([paths, paths].into_iter().sum::<Paths>().operations(), 40);
    }
}
