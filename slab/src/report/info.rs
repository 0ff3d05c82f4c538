//! Statistics of each cache, and `/proc/slabinfo` in the kernel's format.
//!
//! The snapshot [`Info`] contains all statistics of a subsystem. A snapshot can be printed as the kernel's table or in
//! the formats of `serde`. With the feature `prometheus`, a snapshot can also be printed as Prometheus text.
//!
//! ```
//! use uslab::Subsystem;
//!
//! let info = Subsystem::global()?.info();
//! print!("{}", info.slabinfo()); // as /proc/slabinfo
//! println!("{}", serde_json::to_string(&info)?); // all of it, as JSON
//! println!("{}", serde_json::to_string(&uslab::slabinfo()?)?); // the kernel's table, as JSON
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The kernel's table counts both objects in use and free objects in magazines as `active`. In a snapshot, the
//! following five numbers add up to the number of objects:
//!
//! ```text
//! objects = used + in_magazines + in_depot + quarantined + free_in_slabs
//! ```
//!
//! [`SlabInfo`] is the kernel's table (format 2.1). [`SlabInfo`] prints byte for byte what the kernel prints, and
//! parses the kernel's text. [`CacheInfo`] has all statistics of a cache, and can be serialised.
//!
//! [`Paths`] counts operations by the level that served them. Each allocation and each free counts at the slowest level
//! that it reached. The sum over all levels is the number of operations.
//!
//! ```text
//! allocs + frees = cpu + depot + slab + pages + commit
//! ```

use crate::cache::AccountInfo;
use crate::cache::core::Core;
pub use crate::cache::info::CacheInfo;
use crate::memory::huge::HugeInfo;
use crate::memory::large_blocks::LargeInfo;
use crate::reclaim::reaper::ReaperInfo;
use core::fmt;
use core::str::FromStr;
use uslab_buddy::{BuddyInfo, PAGE_SIZE};
use uslab_magazine::Drains;
pub use uslab_magazine::{Path, Paths};

const PAGE: u64 = PAGE_SIZE as u64;

/// Snapshot of the memory that a malloc has obtained from the system, and of how much is in use.
///
/// ```
/// use uslab::Uslab;
///
/// #[global_allocator]
/// static ALLOCATOR: Uslab = Uslab;
///
/// let buffer = vec![1_u8; 1000];
/// let usage = Uslab.usage();
/// assert!(buffer.len() <= usage.used && usage.used <= usage.committed);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapUsage {
    /// Bytes of committed pages, which serve objects and blocks up to 4 MiB.
    pub committed: usize,
    /// Bytes of objects and blocks in use, which are part of `committed`.
    pub used: usize,
    /// Number of free objects, in slabs and in magazines.
    pub free_objects: usize,
    /// Number of allocations above 4 MiB, each of which is a separate mapping.
    pub huge_pieces: usize,
    /// Bytes of allocations above 4 MiB.
    pub huge: usize,
    /// Bytes of freed mappings that are kept for reuse.
    pub huge_cached: usize,
}

/// Serialisable snapshot of all statistics of a subsystem.
///
/// ```
/// use uslab::{Config, Gfp, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let name = subsystem.kmalloc().alloc_block(100, Gfp::KERNEL)?;
/// let info = subsystem.info();
/// let used = info.caches.iter().filter(|cache| cache.used > 0).map(|cache| &*cache.name);
/// assert_eq!(used.collect::<Vec<_>>(), ["kmalloc-128"]);
/// assert_eq!(info.paths().operations(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Info {
    /// Statistics of each cache, oldest cache first.
    pub caches: Vec<CacheInfo>,
    /// Statistics of each account that has caches.
    pub accounts: Vec<AccountInfo>,
    /// Statistics of kmalloc's blocks above the size classes.
    pub kmalloc_large: LargeInfo,
    /// Statistics of memory above the largest block.
    pub huge: HugeInfo,
    /// Statistics of drains of CPUs' stacks, which contain objects and pages.
    pub drains: DrainInfo,
    /// Statistics of the page allocator.
    pub pages: BuddyInfo,
    /// Statistics of the subsystem's reaper thread.
    pub reaper: ReaperInfo,
}

impl Info {
    /// Returns the `/proc/slabinfo` table, with the newest cache first, as in the kernel. The table omits caches that
    /// never had a slab, because most programs never use most of kmalloc's sizes.
    pub fn slabinfo(&self) -> SlabInfo {
        self.had_slabs().collect()
    }
    /// Returns the `/proc/slabinfo` table with all caches, including caches that never had a slab.
    pub fn slabinfo_all(&self) -> SlabInfo {
        self.caches.iter().rev().collect()
    }
    /// Returns the `/proc/slabinfo` table with statistics.
    pub fn statistics(&self) -> Statistics<'_> {
        Statistics(self)
    }
    pub(crate) fn had_slabs(&self) -> impl Iterator<Item = &CacheInfo> {
        self.caches.iter().rev().filter(|cache| cache.had_slabs())
    }
    /// Returns the numbers of operations on caches, large blocks and huge memory, by the level that served them.
    /// [`per_cpu_events`](uslab_buddy::ZoneInfo::per_cpu_events) counts page allocations by users and for slabs.
    pub fn paths(&self) -> Paths {
        let caches = self.caches.iter().map(|cache| cache.paths).sum::<Paths>();
        caches + self.kmalloc_large.paths + self.huge.paths
    }
}

impl Core {
    pub(crate) fn info(&self) -> Info {
        Info {
            caches: self.caches.iter().map(|cache| cache.info()).collect(),
            accounts: self.account_infos(),
            kmalloc_large: self.large.info(),
            huge: self.huge.info(),
            drains: self.memory.pages.tables().drains().collect(),
            pages: self.memory.pages.info(),
            reaper: self.background.info(),
        }
    }
    /// Returns sums of the numbers of [`info`](Self::info), for C programs.
    pub(crate) fn usage(&self) -> HeapUsage {
        let (large_info, huge) = (self.large.info(), self.huge.info());
        let mut usage = HeapUsage {
            committed: self.memory.pages.committed_bytes(),
            used: large_info.pages as usize * PAGE_SIZE,
            free_objects: 0,
            huge_pieces: (huge.allocs - huge.frees) as usize,
            huge: huge.pages as usize * PAGE_SIZE,
            huge_cached: huge.cached_pages as usize * PAGE_SIZE,
        };
        for cache in self.caches.iter() {
            let (objects, used) = cache.objects();
            usage.used += used as usize * cache.geometry().stride();
            usage.free_objects += (objects - used) as usize;
        }
        usage
    }
    pub(crate) fn slabinfo(&self) -> SlabInfo {
        let caches: Vec<_> = self.caches.iter().map(|cache| cache.info()).collect();
        caches.iter().rev().filter(|cache| cache.had_slabs()).collect()
    }
}

/// Statistics of the drains of CPUs' stacks. Reaps, shrinks, and allocations that find no other free object cause
/// drains.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// drop(inodes.alloc_block(Gfp::KERNEL)?);
/// let before = subsystem.info().drains;
/// inodes.shrink(); // takes it from its CPU's stack
/// assert!(subsystem.info().drains.passes > before.passes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DrainInfo {
    /// Number of drains. Each drain costs one fence, regardless of the number of CPUs and caches.
    pub passes: u64,
    /// Number of drains that failed because the system refused the fence (`membarrier`), although it had permitted the
    /// fence at the start. After a failed drain, the objects stay on the CPUs' stacks, from which they can still be
    /// allocated. A cache cannot be destroyed while its objects stay on the stack of a CPU.
    pub refused: u64,
    /// Longest time, in nanoseconds, during which a CPU had no stacks, so that all operations on this CPU missed.
    pub longest_away_ns: u64,
}

impl FromIterator<Drains> for DrainInfo {
    fn from_iter<I: IntoIterator<Item = Drains>>(tables: I) -> Self {
        tables.into_iter().fold(Self::default(), |sum, drains| Self {
            passes: sum.passes + drains.passes,
            refused: sum.refused + drains.refused,
            longest_away_ns: sum.longest_away_ns.max(drains.longest_away.as_nanos() as u64),
        })
    }
}

/// A row of the slabinfo table, which describes one cache.
///
/// ```
/// use uslab::SlabInfo;
///
/// let text = "slabinfo - version: 2.1\n\
///             inode_cache 20 54 600 27 4 : tunables 0 0 0 : slabdata 2 2 0\n";
/// let table: SlabInfo = text.parse()?;
/// let inodes = table.get("inode_cache").ok_or("no such cache")?;
/// assert_eq!((inodes.active_objects, inodes.objects), (20, 54));
/// assert_eq!(inodes.slabs * inodes.pages_per_slab, 8); // pages in all
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Row {
    /// Name of the cache.
    pub name: String,
    /// Number of objects that are not free in a slab. Objects in magazines count as active, as in the kernel.
    pub active_objects: u64,
    /// Number of objects in all slabs.
    pub objects: u64,
    /// Distance between two adjacent objects in bytes.
    pub object_size: u64,
    /// Number of objects in a slab of the usual order.
    pub objects_per_slab: u64,
    /// Number of pages of a slab of the usual order.
    pub pages_per_slab: u64,
    /// Number of active slabs, which equals `slabs`, as in the kernel.
    pub active_slabs: u64,
    /// Number of slabs.
    pub slabs: u64,
}

impl From<&CacheInfo> for Row {
    fn from(cache: &CacheInfo) -> Self {
        Self {
            name: cache.name.clone(),
            active_objects: cache.objects - cache.free_in_slabs,
            objects: cache.objects,
            object_size: cache.slab_size,
            objects_per_slab: cache.objs_per_slab,
            pages_per_slab: 1 << cache.order,
            active_slabs: cache.slabs,
            slabs: cache.slabs,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<17} {:>6} {:>6} {:>6} {:>4} {:>4} : tunables {:>4} {:>4} {:>4} : slabdata {:>6} {:>6} {:>6}",
            self.name,
            self.active_objects,
            self.objects,
            self.object_size,
            self.objects_per_slab,
            self.pages_per_slab,
            0,
            0,
            0,
            self.active_slabs,
            self.slabs,
            0
        )
    }
}

/// A table in the format of `/proc/slabinfo`, version 2.1. `Display` writes the kernel's text, and `FromStr` parses it.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, SlabInfo, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// let root = inodes.alloc_block(Gfp::KERNEL)?;
/// let table = subsystem.slabinfo();
/// let text = table.to_string(); // as `cat /proc/slabinfo`
/// assert_eq!(text.lines().count(), 3); // a version, the columns, and inodes
/// assert_eq!(text.parse::<SlabInfo>()?, table);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SlabInfo {
    /// Rows of the table, one per cache.
    pub rows: Vec<Row>,
}

impl<'c> FromIterator<&'c CacheInfo> for SlabInfo {
    fn from_iter<I: IntoIterator<Item = &'c CacheInfo>>(caches: I) -> Self {
        Self { rows: caches.into_iter().map(Row::from).collect() }
    }
}

impl SlabInfo {
    /// Returns the row of the cache named `name`. The search takes time linear in the number of rows.
    pub fn get(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }
}

const HEADER: &str = "slabinfo - version: 2.1";
/// Text at the end of a table's first line if the table has statistics.
const STATISTICS_SUFFIX: &str = " (statistics)";
const COLUMNS: &str = "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables \
                       <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>";

impl fmt::Display for SlabInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}\n{COLUMNS}")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

/// Table in the format of a kernel built with statistics. Each row of [`Info::slabinfo`] is followed by the cache's
/// numbers of operations by level.
///
/// Comments at the end report memory above 4 MiB, refused drains, and the operations on all memory by level.
/// [`Info::statistics`] makes this table, and [`SlabInfo`] can parse it.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, SlabInfo, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// let root = inodes.alloc_block(Gfp::KERNEL)?;
/// let info = subsystem.info();
/// let text = info.statistics().to_string();
/// assert!(text.lines().last().is_some_and(|last| last.starts_with("# 1 allocations and frees: ")));
/// assert_eq!(text.parse::<SlabInfo>()?, info.slabinfo());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Statistics<'i>(pub(crate) &'i Info);

impl fmt::Display for Statistics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}{STATISTICS_SUFFIX}\n{COLUMNS} : paths <cpu> <depot> <slab> <pages> <commit>")?;
        for cache in self.0.had_slabs() {
            let Paths { cpu, depot, slab, pages, commit } = cache.paths;
            writeln!(f, "{} : paths {cpu:>6} {depot:>6} {slab:>6} {pages:>6} {commit:>6}", Row::from(cache))?;
        }
        let HugeInfo { allocs, frees, pages, cached_pages, reused, .. } = self.0.huge;
        if allocs > 0 {
            let (in_use, bytes) = (allocs - frees, pages * PAGE);
            writeln!(
                f,
                "# huge: {in_use} mappings of {bytes} bytes in use, {} bytes kept; {reused} of {allocs} allocations reused a kept mapping",
                cached_pages * PAGE
            )?;
        }
        let DrainInfo { passes, refused, .. } = self.0.drains;
        if refused > 0 {
            writeln!(
                f,
                "# drains: membarrier was refused in {refused} of {passes} drains, so these drains left their objects on the CPUs' stacks"
            )?;
        }
        let paths = self.0.paths();
        writeln!(f, "# {} allocations and frees: {paths}", paths.operations())
    }
}

/// Error of parsing a text in the format of slabinfo 2.1; the error names the line that could not be parsed.
///
/// ```
/// use uslab::SlabInfo;
///
/// let error = "slabinfo - version: 2.1\ninode_cache 20 54\n".parse::<SlabInfo>().err();
/// assert_eq!(error.map(|error| error.line), Some(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Number of the rejected line, counted from 1.
    pub line: usize,
    /// Description of what the line should contain.
    pub expected: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}", self.line, self.expected)
    }
}
impl std::error::Error for ParseError {}

impl FromStr for SlabInfo {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
        match lines.next() {
            Some((_, line)) if line.trim_end().trim_end_matches(STATISTICS_SUFFIX) == HEADER => {}
            _ => return Err(ParseError { line: 1, expected: HEADER }),
        }
        let lines = lines.filter(|(_, text)| !text.trim().is_empty());
        let rows = lines.filter_map(|(line, text)| match text.parse::<Row>() {
            // This line is a comment, unless it is the row of a cache whose name begins with `#`.
            Err(_) if text.starts_with('#') => None,
            row => Some(row.map_err(|error| ParseError { line, ..error })),
        });
        Ok(Self { rows: rows.collect::<Result<_, _>>()? })
    }
}

/// Upper bound of the numbers in a row; the bound prevents overflows of sums over all rows. For comparison, physical
/// addresses have 52 bits.
const MAX_ROW_VALUE: u64 = 1 << 40;

/// Parses one line of the slabinfo table, which may end with statistics. The name of a cache may contain blanks.
impl FromStr for Row {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const NUMBERS: &str = "five numbers after the name, up to 2^40";
        let expected = |expected| ParseError { line: 1, expected };
        let number = |digits: &str| digits.parse().ok().filter(|n| *n <= MAX_ROW_VALUE);
        let (name_and_counts, tunables) = text
            .rsplit_once(": tunables")
            .ok_or_else(|| expected("` : tunables` after a name and five numbers"))?;
        // The line is parsed from its right end, where the numbers are.
        let mut name = name_and_counts.trim_end();
        let mut numbers = [0; 5];
        for place in numbers.iter_mut().rev() {
            let (before, digits) = name.rsplit_once(char::is_whitespace).ok_or_else(|| expected(NUMBERS))?;
            *place = number(digits).ok_or_else(|| expected(NUMBERS))?;
            name = before.trim_end();
        }
        let name = Some(name.trim_start()).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| expected("a cache name"))?.to_owned();
        let slabs =
            tunables.split_once(':').and_then(|(_, slabs)| slabs.trim_start().strip_prefix("slabdata"));
        let slabs = slabs.ok_or_else(|| expected("` : slabdata` after the tunables"))?;
        let mut slabs = slabs.split_whitespace().map(number);
        let mut next_count =
            || slabs.next().flatten().ok_or_else(|| expected("two numbers of slabs, up to 2^40"));
        let [active_objects, objects, object_size, objects_per_slab, pages_per_slab] = numbers;
        let [active_slabs, slabs] = [next_count()?, next_count()?];
        Ok(Self {
            name,
            active_objects,
            objects,
            object_size,
            objects_per_slab,
            pages_per_slab,
            active_slabs,
            slabs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshots() -> [&'static str; 2] {
        [
            include_str!("../../../tests/slab/data/linux-6.12-4cpu.slabinfo"),
            include_str!("../../../tests/slab/data/linux-6.18-2cpu.slabinfo"),
        ]
    }

    #[test]
    fn kernel_slabinfo_round_trips_byte_for_byte() {
        for text in snapshots() {
            let info: SlabInfo = text.parse().unwrap();
            assert!(!info.rows.is_empty());
            assert_eq!(info.to_string(), text);
        }
    }

    #[test]
    fn damaged_slabinfo_error_names_the_line() {
        let parse = |text: &str| text.parse::<SlabInfo>().unwrap_err().to_string();
        assert_eq!(parse(""), "line 1: expected slabinfo - version: 2.1");
        assert_eq!(parse("slabinfo - version: 1.1\n"), "line 1: expected slabinfo - version: 2.1");
        let head = format!("{HEADER}\n{COLUMNS}\n");
        assert!(parse(&format!("{head}dentry 1 2 3\n")).starts_with("line 3: "));
        assert!(
            parse(&format!("{head}dentry 1 2 3 4 : tunables 0 0 0 : slabdata 1 1 0\n"))
                .starts_with("line 3: ")
        );
        assert!(
            parse(&format!("{head}dentry 1 2 3 4 5 : tunables 0 0 0 : slabs 1 1 0\n"))
                .starts_with("line 3: ")
        );
        assert!(
            parse(&format!("{head}dentry 1 2 3 4 5 : tunables 0 0 0 : slabdata x\n")).starts_with("line 3: ")
        );
    }

    /// Regression test: a cache name with blanks was refused.
    #[test]
    fn slabinfo_name_with_spaces_is_parsed() {
        let text = "dm raid1 read record 0 1 1064 30 8 : tunables 0 0 0 : slabdata 2 3 0";
        let row: Row = text.parse().unwrap();
        assert_eq!((&*row.name, row.objects, row.slabs), ("dm raid1 read record", 1, 3));
        assert_eq!(row.to_string().parse(), Ok(row));
        assert_eq!(" 0 1 2 3 4 : tunables".parse::<Row>().unwrap_err().expected, "a cache name");
    }

    /// Regression test: sums over the rows of a table with huge numbers overflowed.
    #[test]
    fn slabinfo_with_numbers_above_the_maximum_is_refused() {
        let parse = |objects: u64, slabs: u64| {
            format!("{HEADER}\ninode {objects} 2 3 4 5 : tunables 0 0 0 : slabdata 1 {slabs} 0\n")
                .parse::<SlabInfo>()
        };
        assert!(parse(MAX_ROW_VALUE, MAX_ROW_VALUE).is_ok());
        for text in [parse(MAX_ROW_VALUE + 1, 0), parse(0, MAX_ROW_VALUE + 1), parse(u64::MAX, 0)] {
            assert_eq!(text.unwrap_err().line, 2);
        }
    }

    #[test]
    fn slabinfo_counts_objects_in_magazines_as_active() {
        let cache = CacheInfo {
            name: "inode".into(),
            slab_size: 192,
            objs_per_slab: 21,
            slabs: 2,
            objects: 42,
            used: 3,
            in_magazines: 7,
            in_depot: 10,
            free_in_slabs: 22,
            ..CacheInfo::default()
        };
        let text = Row::from(&cache).to_string();
        let expected = "inode                 20     42    192   21    1 : tunables    0    0    0 : slabdata      2      2      0";
        assert_eq!(text, expected);
    }
}
