//! The kernel's `/proc/slabinfo`, format 2.1.
//!
//! ```text
//! slabinfo - version: 2.1
//! # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables ... : slabdata <active_slabs> <num_slabs> <sharedavail>
//! dentry             17371  28581    192   21    1 : tunables    0    0    0 : slabdata   1361   1361      0
//! ```

use std::fs;
use std::path::Path;

use super::error::TraceError;

/// One snapshot of all caches.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Slabinfo {
    /// The caches, in the order of the file.
    pub rows: Vec<SlabinfoRow>,
}

/// One cache.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SlabinfoRow {
    /// Its name; the first name of caches that are merged.
    pub name: String,
    /// Objects in use. SLUB counts all objects of per-CPU slabs as in use.
    pub active_objs: u64,
    /// Objects, used and free.
    pub num_objs: u64,
    /// Bytes an object takes, alignment included.
    pub objsize: u32,
    /// Objects in a slab.
    pub objperslab: u32,
    /// Pages in a slab.
    pub pagesperslab: u32,
    /// Slabs with objects in use.
    pub active_slabs: u64,
    /// Slabs.
    pub num_slabs: u64,
}

/// What is wrong with a line: its number from 1, and a description.
pub type LineFault = (u64, &'static str);

impl Slabinfo {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no slabinfo 2.x; the error names the line.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let text =
            fs::read_to_string(path).map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|(line, what)| TraceError::Table { path: path.to_owned(), line, what })
    }

    /// Reads text.
    ///
    /// # Errors
    ///
    /// The number of the line that is not as it should be, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, LineFault> {
        let mut lines = text.lines().zip(1..);
        match lines.next() {
            Some((first, _)) if first.starts_with("slabinfo - version: 2.") => {}
            _ => return Err((1, "not a slabinfo file: the first line should be `slabinfo - version: 2.1`")),
        }
        let rows = lines
            .filter(|(line, _)| !line.starts_with('#') && !line.trim().is_empty())
            .map(|(line, number)| row(line).map_err(|what| (number, what)))
            .collect::<Result<_, _>>()?;
        Ok(Self { rows })
    }

    /// The row of a cache. Takes time linear in the number of rows.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&SlabinfoRow> {
        self.rows.iter().find(|row| row.name == name)
    }
}

fn row(line: &str) -> Result<SlabinfoRow, &'static str> {
    let mut parts = line.split(':').map(str::trim);
    // A cache's own name may hold colons (`:0000128`, `nf_conntrack:1`), so count the parts from the end.
    let slabdata =
        parts.next_back().and_then(|p| p.strip_prefix("slabdata")).ok_or("no `: slabdata` part")?;
    parts.next_back().and_then(|p| p.strip_prefix("tunables")).ok_or("no `: tunables` part")?;
    let head_len = line.rfind(": tunables").ok_or("no `: tunables` part")?;
    let mut head = line[..head_len].split_whitespace();
    let name = head.next().ok_or("no name")?.to_owned();
    let mut number =
        |what| head.next().ok_or("too few columns").and_then(|n| n.parse::<u64>().map_err(|_| what));
    let active_objs = number("active_objs is not a number")?;
    let num_objs = number("num_objs is not a number")?;
    let mut small = |what| number(what).and_then(|n| u32::try_from(n).map_err(|_| what));
    let objsize = small("objsize is not a number below 2^32")?;
    let objperslab = small("objperslab is not a number below 2^32")?;
    let pagesperslab = small("pagesperslab is not a number below 2^32")?;
    if head.next().is_some() {
        return Err("too many columns");
    }
    let mut slabs = slabdata.split_whitespace().map(str::parse::<u64>);
    let mut next = |what| slabs.next().ok_or("too few slabdata columns")?.map_err(|_| what);
    Ok(SlabinfoRow {
        name,
        active_objs,
        num_objs,
        objsize,
        objperslab,
        pagesperslab,
        active_slabs: next("active_slabs is not a number")?,
        num_slabs: next("num_slabs is not a number")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "slabinfo - version: 2.1\n# name <active_objs> ...\n";

    #[test]
    fn a_row() {
        let text = format!(
            "{HEAD}dentry 17371 28581 192 21 1 : tunables 0 0 0 : slabdata 1361 1362 0\n\
             :A-0000128 1 2 128 32 1 : tunables 0 0 0 : slabdata 3 4 0\n"
        );
        let info = Slabinfo::parse(&text).unwrap();
        assert_eq!(info.rows.len(), 2);
        assert_eq!(
            info.get("dentry").unwrap(),
            &SlabinfoRow {
                name: "dentry".into(),
                active_objs: 17371,
                num_objs: 28581,
                objsize: 192,
                objperslab: 21,
                pagesperslab: 1,
                active_slabs: 1361,
                num_slabs: 1362,
            }
        );
        assert_eq!(info.get(":A-0000128").unwrap().num_slabs, 4);
    }

    #[test]
    fn faults_name_their_line() {
        assert_eq!(Slabinfo::parse("").unwrap_err().0, 1);
        assert_eq!(Slabinfo::parse("hello\n").unwrap_err().0, 1);
        for (row, what) in [
            ("dentry 1 2 3 4", "no `: slabdata` part"),
            ("dentry 1 2 3 4 : tunables 0 0 0 : slabdata 1 1 0", "too few columns"),
            ("dentry 1 2 3 4 5 6 : tunables 0 0 0 : slabdata 1 1 0", "too many columns"),
            ("dentry x 2 3 4 5 : tunables 0 0 0 : slabdata 1 1 0", "active_objs is not a number"),
            ("dentry 1 2 3 4 5 : tunables 0 0 0 : slabdata 1", "too few slabdata columns"),
        ] {
            assert_eq!(Slabinfo::parse(&format!("{HEAD}{row}\n")).unwrap_err(), (3, what), "{row}");
        }
    }
}
