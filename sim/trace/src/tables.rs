//! The kernel's own tables beside a trace: what it said of its caches and pages at moments that the trace marks.
//!
//! A folder holds `{boot,before,after,end}.{slabinfo,buddyinfo,zoneinfo}`; a mark `SNAP before begin` in the trace tells
//! when each was read. All are optional.

use std::fs;
use std::io;
use std::path::Path;

use super::error::TraceError;
use super::page_size::PageSize;
use uslab::SlabInfo;
use uslab::info::ParseError;

/// The moments, in their order.
pub const MOMENTS: [&str; 4] = ["boot", "before", "after", "end"];

/// Pages that a table may speak of: physical addresses have 52 bits.
const MOST_PAGES: u64 = 1 << 40;

/// The tables of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// One of [`MOMENTS`].
    pub moment: &'static str,
    /// Caches.
    pub slabinfo: Option<SlabInfo>,
    /// Pages in the buddy allocator's lists.
    pub buddy_free: Option<u64>,
    /// Pages in per-CPU lists.
    pub percpu: Option<u64>,
}

/// The tables of all moments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// The moments that have tables, in time order.
    pub snapshots: Vec<Snapshot>,
}

impl Tables {
    /// Reads what lies in the folder of `trace`. A trace from standard input or without tables has none.
    ///
    /// # Errors
    ///
    /// A table that is there cannot be read or understood; the error names file and line.
    pub fn beside(trace: &Path) -> Result<Self, TraceError> {
        match trace.parent() {
            Some(folder) if trace.as_os_str() != "-" => Self::read(folder),
            _ => Ok(Self::default()),
        }
    }

    /// Reads what lies in a folder.
    ///
    /// # Errors
    ///
    /// As [`beside`](Self::beside).
    pub fn read(folder: &Path) -> Result<Self, TraceError> {
        Self::of(folder, |path| match fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(TraceError::Read { path: path.to_owned(), source }),
        })
    }

    /// The tables whose texts `text` has, by the paths that they would have in `folder`.
    ///
    /// # Errors
    ///
    /// As [`beside`](Self::beside).
    pub fn of<T: AsRef<str>>(
        folder: &Path,
        text: impl Fn(&Path) -> Result<Option<T>, TraceError>,
    ) -> Result<Self, TraceError> {
        let mut snapshots = Vec::new();
        for moment in MOMENTS {
            let slabinfo = table(&folder.join(format!("{moment}.slabinfo")), &text, slabinfo)?;
            let buddy_free = table(&folder.join(format!("{moment}.buddyinfo")), &text, buddy_free)?;
            let percpu = table(&folder.join(format!("{moment}.zoneinfo")), &text, percpu_pages)?;
            if slabinfo.is_some() || buddy_free.is_some() || percpu.is_some() {
                snapshots.push(Snapshot { moment, slabinfo, buddy_free, percpu });
            }
        }
        Ok(Self { snapshots })
    }

    /// The tables of a moment.
    #[must_use]
    pub fn at(&self, moment: &str) -> Option<&Snapshot> {
        self.snapshots.iter().find(|s| s.moment == moment)
    }

    /// The latest slabinfo: the one that has seen the most caches made.
    #[must_use]
    pub fn latest_slabinfo(&self) -> Option<&SlabInfo> {
        self.snapshots.iter().rev().find_map(|s| s.slabinfo.as_ref())
    }

    /// How large the pages of the kernel are, by the slabs of its caches.
    #[must_use]
    pub fn page_size(&self) -> Option<PageSize> {
        self.latest_slabinfo().and_then(PageSize::of_slabs)
    }
}

fn table<T, S: AsRef<str>>(
    path: &Path,
    text: impl Fn(&Path) -> Result<Option<S>, TraceError>,
    parse: impl Fn(&str) -> Result<T, (u64, &'static str)>,
) -> Result<Option<T>, TraceError> {
    let parsed = text(path)?.map(|text| parse(text.as_ref()));
    parsed.transpose().map_err(|(line, what)| TraceError::Table { path: path.to_owned(), line, what })
}

fn slabinfo(text: &str) -> Result<SlabInfo, (u64, &'static str)> {
    text.parse().map_err(|fault: ParseError| (fault.line as u64, fault.expected))
}

/// Sums `Node 0, zone DMA32  2  1  2 ...`: the n-th number counts blocks of `2^n` pages.
fn buddy_free(text: &str) -> Result<u64, (u64, &'static str)> {
    let mut pages: u64 = 0;
    for (line, number) in text.lines().zip(1..) {
        let (_, blocks) = line.split_once("zone").ok_or((number, "a node, `zone` and counts"))?;
        for (order, count) in blocks.split_whitespace().skip(1).enumerate() {
            let count: u64 = count.parse().map_err(|_| (number, "a number of blocks"))?;
            let sum = u32::try_from(order)
                .ok()
                .filter(|&order| order < 32)
                .and_then(|order| count.checked_shl(order))
                .and_then(|here| pages.checked_add(here))
                .filter(|sum| *sum <= MOST_PAGES);
            pages = sum.ok_or((number, "fewer blocks"))?;
        }
    }
    Ok(pages)
}

/// Sums `count:` of all `cpu:` entries in zoneinfo's `pagesets`.
fn percpu_pages(text: &str) -> Result<u64, (u64, &'static str)> {
    let mut pages: u64 = 0;
    let mut in_cpu = false;
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.starts_with("cpu:") {
            in_cpu = true;
        } else if let Some(count) = line.strip_prefix("count:").filter(|_| in_cpu) {
            let count: u64 = count.trim().parse().map_err(|_| (number, "a number of pages"))?;
            let sum = pages.checked_add(count).filter(|sum| *sum <= MOST_PAGES);
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
    fn pages_are_summed() {
        let text = "Node 0, zone      DMA      0      1      3\nNode 0, zone    DMA32      2      1      2\n";
        assert_eq!(buddy_free(text), Ok(2 + 12 + 2 + 2 + 8));
        assert_eq!(buddy_free("nonsense\n"), Err((1, "a node, `zone` and counts")));
        let text = "  pagesets\n    cpu: 0\n              count: 7\n              high:  55\n    cpu: 1\n count: 5\n";
        assert_eq!(percpu_pages(text), Ok(12));
        // Once only what a word cannot hold was refused, and sums of two tables did not fit one.
        let text = format!("Node 0, zone DMA 1\nNode 0, zone Normal {}\n", u64::MAX / 2);
        assert_eq!(buddy_free(&text), Err((2, "fewer blocks")));
        assert_eq!(percpu_pages(&format!("cpu: 0\ncount: {}\n", u64::MAX)), Err((2, "fewer pages")));
    }
}
