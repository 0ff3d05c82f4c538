//! The kernel's tables in the folder of a trace: snapshots of its caches and pages, whose times are marked in the
//! trace.
//!
//! A trace's folder may contain the files `{boot,before,after,end}.{slabinfo,buddyinfo,zoneinfo}`. A mark in
//! the trace, such as `SNAP before begin`, shows when the tables were read.

use std::fs;
use std::io;
use std::path::Path;

use super::error::TraceError;
use super::event::Pfn;
use super::kernel::{Attributes, Kernel, attributes};
use super::page_size::PageSize;
use super::slabinfo::{KernelSlabInfo, MAX_SCANNED_PARTIAL_SLABS};
use uslab::SlabInfo;

/// The names of the snapshots, in the order of time.
pub const SNAPSHOT_NAMES: [&str; 4] = ["boot", "before", "after", "end"];

/// An upper limit for numbers of pages in a table, because physical addresses have 52 bits.
const MAX_PAGES: u64 = 1 << 40;

/// One snapshot of the kernel's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The name of the snapshot, one of [`SNAPSHOT_NAMES`].
    pub moment: &'static str,
    /// The table of caches.
    pub slabinfo: Option<SlabInfo>,
    /// The free lists of the buddy allocator, for each zone.
    pub free_blocks: Option<Vec<FreeBlocks>>,
    /// The zones that have memory.
    pub zones: Option<Vec<ZoneSpan>>,
    /// The number of pages in per-CPU lists.
    pub percpu: Option<u64>,
    /// The folders in `/sys/kernel/slab`, in order and without links; empty if they were not recorded.
    pub folders: Vec<String>,
    /// The contents of the files in each folder.
    pub counters: Attributes,
}

impl Snapshot {
    /// Returns the number of pages on the buddy allocator's free lists.
    #[must_use]
    pub fn buddy_free(&self) -> Option<u64> {
        Some(self.free_blocks.as_ref()?.iter().map(FreeBlocks::pages).sum())
    }
}

/// The row of a zone in buddyinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeBlocks {
    /// The node and the zone in the kernel's format: `Node 0, zone DMA32`.
    pub zone: String,
    /// The number of free blocks of each order.
    pub by_order: Vec<u64>,
}

impl FreeBlocks {
    /// Parses the text of buddyinfo; errors use `path` as the file name.
    ///
    /// # Errors
    ///
    /// Fails if a line is not a row of buddyinfo.
    pub fn read(path: &Path, text: &str) -> Result<Vec<Self>, TraceError> {
        free_blocks(text).map_err(|(line, what)| TraceError::Table { path: path.to_owned(), line, what })
    }

    /// Returns the number of pages in all free blocks.
    #[must_use]
    pub fn pages(&self) -> u64 {
        (0..).zip(&self.by_order).map(|(order, count)| count << order).sum()
    }
}

/// The page range of one zone, from zoneinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneSpan {
    /// The node and the zone in the format of [`FreeBlocks`].
    pub zone: String,
    /// The zone's first page.
    pub start: Pfn,
    /// The number of pages from the first to the last page of the zone, including holes.
    pub spanned: u64,
    /// The number of pages that the page allocator manages.
    pub managed: u64,
}

/// All snapshots of the kernel's tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// The existing snapshots, in the order of time.
    pub snapshots: Vec<Snapshot>,
    /// The kernel that wrote the tables.
    pub kernel: Kernel,
}

impl Tables {
    /// Reads the tables in the folder that contains the trace `trace`. The result is empty if the trace's
    /// folder has no tables, or if the trace is standard input.
    ///
    /// # Errors
    ///
    /// Fails if a table exists but cannot be read or parsed; the error names the file and the line.
    pub fn from_trace_folder(trace: &Path) -> Result<Self, TraceError> {
        match trace.parent() {
            Some(folder) if trace.as_os_str() != "-" => Self::read(folder),
            _ => Ok(Self::default()),
        }
    }

    /// Reads the tables in a folder.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`from_trace_folder`](Self::from_trace_folder).
    pub fn read(folder: &Path) -> Result<Self, TraceError> {
        Self::of(folder, |path| match fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(TraceError::Read { path: path.to_owned(), source }),
        })
    }

    /// Parses tables; the callback `text` gets the path that a table would have in `folder`, and returns the table's
    /// text.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`from_trace_folder`](Self::from_trace_folder).
    pub fn of<T: AsRef<str>>(
        folder: &Path,
        text: impl Fn(&Path) -> Result<Option<T>, TraceError>,
    ) -> Result<Self, TraceError> {
        let mut snapshots = Vec::new();
        let kernel = Kernel::of(folder, &text)?;
        for moment in SNAPSHOT_NAMES {
            let mut slabinfo = table(&folder.join(format!("{moment}.slabinfo")), &text, slabinfo)?;
            let free_blocks = table(&folder.join(format!("{moment}.buddyinfo")), &text, free_blocks)?;
            let zoneinfo = folder.join(format!("{moment}.zoneinfo"));
            let percpu = table(&zoneinfo, &text, percpu_pages)?;
            let zones = table(&zoneinfo, &text, zone_spans)?;
            let sysfs = folder.join(format!("{moment}.sysfs-slab.tsv"));
            let folders = table(&sysfs, &text, folders)?.unwrap_or_default();
            let counters = table(&sysfs, &text, attributes)?.unwrap_or_default();
            for row in slabinfo.iter_mut().flat_map(|table| &mut table.rows) {
                let count = |counter| counters.count(kernel.attributes.folder(&row.name), counter);
                if let Some(objects) =
                    count("objects").filter(|_| count("partial") > Some(MAX_SCANNED_PARTIAL_SLABS))
                {
                    row.active_objects = objects;
                }
            }
            if slabinfo.is_some() || free_blocks.is_some() || percpu.is_some() {
                snapshots.push(Snapshot { moment, slabinfo, free_blocks, zones, percpu, folders, counters });
            }
        }
        Ok(Self { snapshots, kernel })
    }

    /// Returns the tables of the named snapshot.
    #[must_use]
    pub fn at(&self, moment: &str) -> Option<&Snapshot> {
        self.snapshots.iter().find(|s| s.moment == moment)
    }

    /// Returns the latest slabinfo, because it contains the most caches.
    #[must_use]
    pub fn latest_slabinfo(&self) -> Option<&SlabInfo> {
        self.snapshots.iter().rev().find_map(|s| s.slabinfo.as_ref())
    }

    /// Returns the kernel's page size, inferred from the slabs of its caches.
    #[must_use]
    pub fn page_size(&self) -> Option<PageSize> {
        self.latest_slabinfo().and_then(PageSize::from_slabinfo)
    }
}

pub(super) fn table<T, S: AsRef<str>>(
    path: &Path,
    text: impl Fn(&Path) -> Result<Option<S>, TraceError>,
    parse: impl Fn(&str) -> Result<T, (u64, &'static str)>,
) -> Result<Option<T>, TraceError> {
    let parsed = text(path)?.map(|text| parse(text.as_ref()));
    parsed.transpose().map_err(|(line, what)| TraceError::Table { path: path.to_owned(), line, what })
}

fn slabinfo(text: &str) -> Result<SlabInfo, (u64, &'static str)> {
    let read = KernelSlabInfo::read(text).map_err(|fault| (fault.line, fault.expected))?;
    match read.faults.first() {
        Some(fault) => Err((fault.line, fault.expected)),
        None => Ok(read.table),
    }
}

/// Parses the first column of a table of attributes.
fn folders(text: &str) -> Result<Vec<String>, (u64, &'static str)> {
    if !text.starts_with("name\t") {
        return Err((1, "a row of attributes' names, the first one `name`"));
    }
    Ok(text.lines().skip(1).filter_map(|line| line.split('\t').next()).map(str::to_owned).collect())
}

/// Parses rows such as `Node 0, zone DMA32  2  1  2 ...`, whose n-th number counts blocks of `2^n` pages.
fn free_blocks(text: &str) -> Result<Vec<FreeBlocks>, (u64, &'static str)> {
    let mut pages: u64 = 0;
    let row = |(line, number): (&str, u64)| {
        let (_, blocks) = line.split_once("zone").ok_or((number, "a node, `zone` and counts"))?;
        let mut by_order = Vec::new();
        for (order, count) in (0_u32..).zip(blocks.split_whitespace().skip(1)) {
            let count: u64 = count.parse().map_err(|_| (number, "a number of blocks"))?;
            let here = Some(count).filter(|_| order < 32).and_then(|count| count.checked_mul(1 << order));
            let sum = here.and_then(|here| pages.checked_add(here)).filter(|sum| *sum <= MAX_PAGES);
            pages = sum.ok_or((number, "fewer blocks"))?;
            by_order.push(count);
        }
        Ok(FreeBlocks { zone: zone_name(line), by_order })
    };
    text.lines().zip(1..).map(row).collect()
}

/// Returns the part `Node 0, zone DMA32` of a row, without padding.
fn zone_name(line: &str) -> String {
    line.split_whitespace().take(4).collect::<Vec<_>>().join(" ")
}

/// Parses the page range of each zone in zoneinfo; a zone without memory has no `start_pfn:` and is omitted.
fn zone_spans(text: &str) -> Result<Vec<ZoneSpan>, (u64, &'static str)> {
    let mut zones = Vec::new();
    let (mut zone, mut spanned, mut managed) = (String::new(), 0, 0);
    for (line, number) in text.lines().zip(1..) {
        let value = |digits: &str| {
            let value = digits.trim().parse().ok().filter(|value| *value <= MAX_PAGES);
            value.ok_or((number, "a number of pages"))
        };
        if line.starts_with("Node") {
            (zone, spanned, managed) = (zone_name(line), 0, 0);
        } else if let Some(pages) = line.trim().strip_prefix("spanned ") {
            spanned = value(pages)?;
        } else if let Some(pages) = line.trim().strip_prefix("managed ") {
            managed = value(pages)?;
        } else if let Some(start) = line.trim().strip_prefix("start_pfn:") {
            zones.push(ZoneSpan { zone: zone.clone(), start: Pfn(value(start)?), spanned, managed });
        }
    }
    Ok(zones)
}

/// Sums the `count:` of all `cpu:` entries in the `pagesets` of zoneinfo.
fn percpu_pages(text: &str) -> Result<u64, (u64, &'static str)> {
    let mut pages: u64 = 0;
    let mut in_cpu = false;
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.starts_with("cpu:") {
            in_cpu = true;
        } else if let Some(count) = line.strip_prefix("count:").filter(|_| in_cpu) {
            let count: u64 = count.trim().parse().map_err(|_| (number, "a number of pages"))?;
            let sum = pages.checked_add(count).filter(|sum| *sum <= MAX_PAGES);
            pages = sum.ok_or((number, "fewer pages"))?;
            in_cpu = false;
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_page_counts_are_summed() {
        let text = "Node 0, zone      DMA      0      1      3\nNode 0, zone    DMA32      2      1      2\n";
        let rows = free_blocks(text).unwrap();
        assert_eq!(rows[1], FreeBlocks { zone: "Node 0, zone DMA32".to_owned(), by_order: vec![2, 1, 2] });
        assert_eq!(rows.iter().map(FreeBlocks::pages).sum::<u64>(), 2 + 12 + 2 + 2 + 8);
        assert_eq!(free_blocks("nonsense\n"), Err((1, "a node, `zone` and counts")));
        let text = "  pagesets\n    cpu: 0\n              count: 7\n              high:  55\n    cpu: 1\n count: 5\n";
        assert_eq!(percpu_pages(text), Ok(12));
        // Regression test: only numbers above a word were refused, so the sum of two tables overflowed.
        let text = format!("Node 0, zone DMA 1\nNode 0, zone Normal {}\n", u64::MAX / 2);
        assert_eq!(free_blocks(&text), Err((2, "fewer blocks")));
        assert_eq!(percpu_pages(&format!("cpu: 0\ncount: {}\n", u64::MAX)), Err((2, "fewer pages")));
    }

    /// Regression test: a call site was no longer reported as a leak, because slabinfo's estimate fell.
    #[test]
    fn objects_are_counted_by_sysfs_if_slabinfo_estimates_them() {
        let active = |partial: u64| {
            let texts = [
                (
                    "after.slabinfo",
                    "slabinfo - version: 2.1\nbuffer_head 90 390000 104 39 1 : tunables 0 0 0 : slabdata 20000 20000 0\n".to_owned(),
                ),
                (
                    "after.sysfs-slab.tsv",
                    format!("name\tobjects\tpartial\n:a-0000104\t250000 N0=250000\t{partial} N0={partial}\n"),
                ),
                ("slab-attributes.tsv", "name\tlink\nbuffer_head\t:a-0000104\n".to_owned()),
            ];
            let text =
                |path: &Path| Ok(texts.iter().find(|(name, _)| path.ends_with(name)).map(|(_, text)| text));
            let tables = Tables::of(Path::new("folder"), text).unwrap();
            tables.latest_slabinfo().unwrap().rows[0].active_objects
        };
        assert_eq!((active(10_000), active(10_001)), (90, 250_000));
    }

    #[test]
    fn zone_ranges_are_read_from_zoneinfo() {
        let text = "Node 0, zone    DMA32\n  pages free     7\n        spanned  258016\n        present  9\n        managed  8\n\
                    \x20 node_unreclaimable:  0\n  start_pfn:           4096\nNode 0, zone   Normal\n        spanned  0\n";
        let zone = "Node 0, zone DMA32".to_owned();
        assert_eq!(
            zone_spans(text),
            Ok(vec![ZoneSpan { zone, start: Pfn(4096), spanned: 258_016, managed: 8 }])
        );
        assert_eq!(zone_spans("Node 0, zone DMA\n spanned x\n"), Err((2, "a number of pages")));
        let most = format!("Node 0, zone DMA\n start_pfn: {}\n", u64::MAX);
        assert_eq!(zone_spans(&most), Err((2, "a number of pages")));
    }
}
