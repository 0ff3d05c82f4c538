//! Parses `/proc/slabinfo` in the formats 2.0 and 2.1, both SLUB's tables and SLAB's tables with statistics.
//!
//! A valid row becomes a [`Row`]. An invalid row is kept as a [`SlabinfoRowError`]. An invalid row does not end the
//! parsing; the caller decides how to treat it.

use std::fmt;

use uslab::SlabInfo;
use uslab::info::{ParseError, Row};

/// An upper limit for numbers of pages: more pages than 52-bit physical addresses can have.
const MAX_PAGES: u64 = 1 << 40;

/// An upper limit for the objects and the pages of a slab, and for the bytes of an object.
const MAX_SLAB_OBJECTS: u64 = 1 << 16;
const MAX_OBJECT_BYTES: u64 = 1 << 26;

/// Since 6.10, slabinfo samples a node with more partial slabs than this number, and estimates its free objects (the
/// kernel's `MAX_PARTIAL_TO_SCAN`). The attribute `objects` in sysfs is exact even then.
pub const MAX_SCANNED_PARTIAL_SLABS: u64 = 10_000;

/// The required text of the first line.
const ACCEPTED_VERSION_LINES: &str = "`slabinfo - version: 2.1` (or 2.0)";

const TOO_MANY_OBJECTS_HINT: &str = "fewer objects and slabs: physical addresses have 52 bits";

/// The contents of a kernel's slabinfo.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelSlabInfo {
    /// The valid rows.
    pub table: SlabInfo,
    /// For each row, the number of objects that SLAB keeps outside slabs; zeros in SLUB's tables.
    pub tunables: Vec<Tunables>,
    /// The invalid rows.
    pub faults: Vec<SlabinfoRowError>,
}

/// The tunables of SLAB, which limit the number of objects in its arrays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tunables {
    /// The largest number of objects in the array of each CPU.
    pub limit: u64,
    /// The number of objects that are moved together between an array and the slabs.
    pub batch: u64,
    /// The number of batches that the node's shared array holds.
    pub shared: u64,
}

/// An invalid row of slabinfo.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SlabinfoRowError {
    /// The line number of the row, from 1.
    pub line: u64,
    /// The text of the row, shortened.
    pub found: String,
    /// The accepted form of a row.
    pub expected: &'static str,
}

impl fmt::Display for SlabinfoRowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}, found {:?}", self.line, self.expected, self.found)
    }
}

impl KernelSlabInfo {
    /// Parses a table.
    ///
    /// # Errors
    ///
    /// Fails if the first line is not a known version.
    pub fn read(text: &str) -> Result<Self, SlabinfoRowError> {
        let mut lines = (1..).zip(text.lines());
        let fault = |line, text: &str, expected| SlabinfoRowError { line, found: shorten(text), expected };
        let first = lines.next().map_or("", |(_, first)| first);
        let version = first.trim_end().strip_prefix("slabinfo - version: ");
        let version = version.map(|version| version.strip_suffix(" (statistics)").unwrap_or(version));
        if !version.is_some_and(|version| matches!(version, "2.0" | "2.1")) {
            return Err(fault(1, first, ACCEPTED_VERSION_LINES));
        }
        let mut read = Self::default();
        let mut sum = (0_u64, 0_u64);
        for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
            match row(text) {
                Ok((row, tunables)) => {
                    let all = (sum.0 + row.objects * row.object_size, sum.1 + row.slabs * row.pages_per_slab);
                    if all.0 > MAX_PAGES << 12 || all.1 > MAX_PAGES {
                        read.faults.push(fault(line, text, TOO_MANY_OBJECTS_HINT));
                        continue;
                    }
                    sum = all;
                    read.table.rows.push(row);
                    read.tunables.push(tunables);
                }
                // The line is a comment; a cache's name may begin with the same sign.
                Err(_) if text.starts_with('#') => {}
                Err(expected) => read.faults.push(fault(line, text, expected)),
            }
        }
        Ok(read)
    }

    /// Returns `true` if the table is from SLAB, whose slabs have a different geometry from SLUB's.
    #[must_use]
    pub fn is_slab(&self) -> bool {
        self.tunables.iter().any(|tunables| tunables.limit > 0)
    }
}

fn shorten(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    if short.len() < text.len() { short + " ..." } else { short }
}

/// Parses a row `NAME active objects size per-slab pages : tunables limit batch shared : slabdata active slabs shared
/// [: statistics]`.
fn row(text: &str) -> Result<(Row, Tunables), &'static str> {
    let row: Row = text.parse().map_err(|error: ParseError| error.expected)?;
    // The arrays of objects occupy a few pages.
    let (_, tunables) = text.rsplit_once(": tunables").unwrap_or_default();
    let mut tunables = tunables.split_whitespace().map(|digits| digits.parse().ok());
    let mut tunable = || {
        let number = tunables.next().flatten().filter(|n| *n <= MAX_SLAB_OBJECTS);
        number.ok_or("three numbers after `tunables`")
    };
    let tunables = Tunables { limit: tunable()?, batch: tunable()?, shared: tunable()? };
    let Row { objects, object_size, objects_per_slab, pages_per_slab, slabs, .. } = row;
    if objects_per_slab > MAX_SLAB_OBJECTS
        || pages_per_slab > MAX_SLAB_OBJECTS
        || object_size > MAX_OBJECT_BYTES
    {
        return Err("up to 65,536 objects and pages in a slab, and 64 MiB in an object");
    }
    // A product of two numbers of a row is a number of bytes or pages, which no machine exceeds.
    if objects * object_size > MAX_PAGES << 12 || slabs * pages_per_slab > MAX_PAGES {
        return Err(TOO_MANY_OBJECTS_HINT);
    }
    Ok((row, tunables))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "slabinfo - version: 2.1\n# name <active_objs> ... : tunables ...\n";

    fn read(rows: &str) -> KernelSlabInfo {
        KernelSlabInfo::read(&format!("{HEAD}{rows}")).unwrap()
    }

    #[test]
    fn cache_name_with_spaces_is_parsed() {
        let table = read(
            "dm raid1 read record 0 0 1064 30 8 : tunables 0 0 0 : slabdata 0 0 0\n\
             kmalloc-64 640 641 64 64 1 : tunables 0 0 0 : slabdata 10 10 0\n",
        );
        assert_eq!(table.faults, []);
        let names: Vec<_> = table.table.rows.iter().map(|row| &*row.name).collect();
        assert_eq!(names, ["dm raid1 read record", "kmalloc-64"]);
        assert_eq!((table.table.rows[0].object_size, table.table.rows[1].objects), (1064, 641));
    }

    #[test]
    fn slab_statistics_columns_are_parsed() {
        let text = "slabinfo - version: 2.1 (statistics)\n# name ... : globalstat <a> : cpustat <b>\n\
                    inode 10 20 600 6 1 : tunables 54 27 8 : slabdata 3 4 2 : globalstat 1 2 3 4 5 6 7 8 9 : cpustat 5 6 7 8\n";
        let table = KernelSlabInfo::read(text).unwrap();
        assert_eq!(table.tunables, [Tunables { limit: 54, batch: 27, shared: 8 }]);
        assert_eq!((table.table.rows[0].active_slabs, table.table.rows[0].slabs), (3, 4));
        assert!(table.is_slab() && table.faults.is_empty());
    }

    #[test]
    fn invalid_slabinfo_row_does_not_hide_valid_rows() {
        let good = "a 1 2 8 512 1 : tunables 0 0 0 : slabdata 1 1 0\n";
        for (bad, expected) in [
            ("b 1 2 8 512 : tunables 0 0 0 : slabdata 1 1 0", "five numbers"),
            ("b 1 2 8 x 1 : tunables 0 0 0 : slabdata 1 1 0", "five numbers"),
            ("b 1 2 8 512 1 : tunables 0 0 : slabdata 1 1 0", "three numbers"),
            ("b 1 2 8 512 1 : tunables 0 0 0", "slabdata"),
            ("b 1 2 8 512 1 : tunables 0 0 0 : slabdata 1", "two numbers"),
            ("1 2 8 512 1 : tunables 0 0 0 : slabdata 1 1 0", "five numbers"),
            (" 1 2 8 512 1 : tunables 0 0 0 : slabdata 1 1 0", "a cache name"),
            ("b 1 1099511627776 8192 512 1 : tunables 0 0 0 : slabdata 1 1 0", "52 bits"),
            ("b 1 2 8 512 1 slabdata 1 1 0", "tunables"),
        ] {
            let table = read(&format!("{good}{bad}\n{good}"));
            assert_eq!(table.table.rows.len(), 2, "{bad}");
            assert_eq!(table.faults.len(), 1, "{bad}");
            assert_eq!(table.faults[0].line, 4, "{bad}");
            assert!(table.faults[0].expected.contains(expected), "{bad}: {}", table.faults[0]);
        }
        let error = KernelSlabInfo::read("slabinfo - version: 1.1\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 1: expected `slabinfo - version: 2.1` (or 2.0), found \"slabinfo - version: 1.1\""
        );
    }
}
