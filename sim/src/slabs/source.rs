//! Finds the tables of a kernel's caches: on this machine, in a folder of copies, or in one file.

use super::attributes::{AttributeCatalog, Attributes};
use super::dump;
use crate::trace::{
    FreeBlocks, KernelSlabInfo, MAX_SCANNED_PARTIAL_SLABS, PageSize, SNAPSHOT_NAMES, Tunables,
};
use anyhow::{Context, bail};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use uslab::info::Row;

/// The limit for the length of a table in bytes. Real tables are far shorter, but a device file may never
/// end.
const MAX_TABLE_BYTES: u64 = 16 << 20;

/// A snapshot of a kernel's tables.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The folder or file as the user named it; reports show this name.
    pub place: String,
    /// The paths of the tables that were read.
    pub read: Vec<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The number of CPUs, if a table contains it.
    pub cpus: Option<u32>,
    /// The number of memory nodes.
    pub nodes: u64,
    /// The page size in bytes.
    pub page_size: u64,
    /// The caches of the snapshot.
    pub caches: Vec<Cache>,
    /// Messages about rows that could not be parsed.
    pub faults: Vec<String>,
    /// `true` if a table counts slabs and objects. A table of attributes may have only the geometry.
    pub is_counted: bool,
    /// The name of the snapshot, if the tables belong to a recording.
    pub moment: Option<String>,
    /// `true` if the table is from the old allocator SLAB.
    pub is_slab: bool,
    /// The amount of memory of the machine.
    pub memory: Option<Memory>,
    /// The free blocks by zone.
    pub free_blocks: Option<Vec<FreeBlocks>>,
    /// The recording's other snapshots, which the user did not request.
    pub other_moments: Vec<String>,
}

/// A cache, as far as the tables describe it.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The cache's row of slabinfo, or a row computed from its attributes.
    pub row: Row,
    /// Tunables of the allocator SLAB, which limit the number of objects in its arrays.
    pub tunables: Tunables,
    /// The cache's attributes in sysfs.
    pub attributes: Option<Attributes>,
    /// The other names of the cache: the names of caches that the kernel merged with it.
    pub aliases: Vec<String>,
}

/// Amounts of memory, from meminfo, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Memory {
    /// The size of all memory in bytes.
    pub total: u64,
    /// The size of free memory in bytes.
    pub free: u64,
    /// The size of the slabs of reclaimable caches in bytes.
    pub reclaimable: u64,
    /// The size of the slabs of all other caches in bytes.
    pub unreclaimable: u64,
}

impl Snapshot {
    /// Reads the tables of this machine.
    ///
    /// # Errors
    /// Fails if neither slabinfo nor sysfs can be read.
    pub fn live() -> anyhow::Result<Self> {
        let root = Path::new("/");
        let tables = Tables { folder: root, moment: None };
        let mut snapshot = tables.read("this machine".to_owned()).map_err(|error| {
            error.context("only root can read this machine's tables: `sudo uslab slabs`, or `sudo cat /proc/slabinfo > slabinfo` and `uslab slabs slabinfo`")
        })?;
        snapshot.cpus = Some(uslab_magazine::Cpus::os().count());
        Ok(snapshot)
    }

    /// Reads tables from a folder, a snapshot of a recording (`FOLDER/before`), or a file.
    ///
    /// # Errors
    /// Fails if `path` has no table of caches, or has a damaged one; the error names the expected tables.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display().to_string();
        if path.is_dir() {
            let mut moments = moments(path);
            let moment = moments.pop();
            let mut snapshot = Tables { folder: path, moment }.read(shown)?;
            snapshot.other_moments = moments;
            return Ok(snapshot);
        }
        if let (Some(name), Some(folder)) = (path.file_name().and_then(|name| name.to_str()), path.parent())
            && !path.exists()
        {
            let moments = moments(folder);
            if SNAPSHOT_NAMES.contains(&name) || moments.iter().any(|moment| moment == name) {
                return Tables { folder, moment: Some(name.to_owned()) }.read(shown);
            }
            if !moments.is_empty() {
                bail!(
                    "{shown}: no such file or snapshot; expected a file, or a snapshot in {}: {}",
                    folder.display(),
                    moments.join(", ")
                );
            }
        }
        let text = read_table(path).with_context(|| shown.clone())?;
        let mut snapshot = Self::empty(shown.clone());
        snapshot.read.push(shown.clone());
        if text.starts_with("slabinfo") {
            snapshot.slabinfo(path, &text)?;
        } else if text.starts_with("name\t") {
            snapshot.add_catalog(&AttributeCatalog::from_table(&text).with_context(|| shown.clone())?);
        } else if text.lines().take(100).any(dump::is_table_header) {
            let (rows, faults) = dump::rows(&text, snapshot.page_size).with_context(|| shown.clone())?;
            snapshot.faults.extend(faults.iter().map(|fault| format!("{shown}: {fault}")));
            let cache = |row| Cache { row, tunables: Tunables::default(), attributes: None, aliases: vec![] };
            snapshot.caches = rows.into_iter().map(cache).collect();
        } else {
            bail!(
                "{shown}: line 1: expected `slabinfo - version: 2.1`, a tab-separated table of the attributes in /sys/kernel/slab, or the output of crash's `kmem -s`; `uslab what {shown}` names the kind of a file"
            );
        }
        snapshot.checked(&[shown])
    }

    fn empty(place: String) -> Self {
        Self {
            place,
            read: vec![],
            kernel: None,
            cpus: None,
            nodes: 1,
            page_size: PageSize::Kib4.bytes(),
            caches: vec![],
            faults: vec![],
            is_counted: true,
            moment: None,
            is_slab: false,
            memory: None,
            free_blocks: None,
            other_moments: vec![],
        }
    }

    fn slabinfo(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        let shown = path.display();
        let read = KernelSlabInfo::read(text).map_err(|fault| anyhow::anyhow!("{shown}: {fault}"))?;
        if let Some(second) = read.faults.iter().find(|fault| fault.found.starts_with("slabinfo - version")) {
            bail!(
                "{shown}: line {}: a second slabinfo begins here; split the file, and compare the parts with --against",
                second.line
            );
        }
        self.is_slab = read.is_slab();
        self.faults.extend(read.faults.iter().map(|fault| format!("{shown}: {fault}")));
        if read.table.rows.is_empty() {
            match self.faults.first() {
                Some(fault) => bail!("{fault}"),
                None => bail!("{shown}: the tables contain no cache"),
            }
        }
        self.page_size = PageSize::from_slabinfo(&read.table).unwrap_or(PageSize::Kib4).bytes();
        let caches = read.table.rows.into_iter().zip(read.tunables);
        self.caches = caches
            .map(|(row, tunables)| Cache { row, tunables, attributes: None, aliases: vec![] })
            .collect();
        Ok(())
    }

    /// Adds the attributes from sysfs to the rows; if slabinfo is missing, the rows are computed from the attributes.
    fn add_catalog(&mut self, catalog: &AttributeCatalog) {
        if self.caches.is_empty() {
            let rows = catalog.caches.iter().filter_map(|(name, a)| {
                let (objects, slabs) = (a.total_objects.unwrap_or(0), a.slabs.unwrap_or(0));
                let row = Row {
                    name: catalog.cache_aliases(name).next().unwrap_or(name).to_owned(),
                    active_objects: a.objects.unwrap_or(0),
                    objects,
                    object_size: a.slab_size?,
                    objects_per_slab: a.objs_per_slab?,
                    pages_per_slab: 1 << a.order?,
                    active_slabs: slabs,
                    slabs,
                };
                Some(Cache { row, tunables: Tunables::default(), attributes: None, aliases: vec![] })
            });
            // Values that no machine can have are refused.
            let mut sum = (0_u64, 0_u64);
            for cache in rows {
                let row = &cache.row;
                let objects =
                    row.objects.checked_mul(row.object_size).and_then(|bytes| sum.0.checked_add(bytes));
                let pages =
                    row.slabs.checked_mul(row.pages_per_slab).and_then(|pages| sum.1.checked_add(pages));
                match objects.zip(pages).filter(|(bytes, pages)| *bytes <= 1 << 52 && *pages <= 1 << 40) {
                    Some(all) => {
                        sum = all;
                        self.caches.push(cache);
                    }
                    None => self.faults.push(format!(
                        "{}: too many objects or slabs; expected at most 2^52 bytes in all, because physical addresses have 52 bits",
                        row.name
                    )),
                }
            }
            self.is_counted = catalog.caches.values().any(|attributes| attributes.slabs.is_some());
        }
        for cache in &mut self.caches {
            let Some((folder, attributes)) = catalog.get(&cache.row.name) else { continue };
            let names = catalog.cache_aliases(folder).filter(|name| *name != cache.row.name);
            cache.aliases = names.map(str::to_owned).collect();
            if let Some(objects) =
                attributes.objects.filter(|_| attributes.partial > Some(MAX_SCANNED_PARTIAL_SLABS))
            {
                cache.row.active_objects = objects.min(cache.row.objects);
            }
            cache.attributes = Some(attributes.clone());
            self.nodes = self.nodes.max(attributes.nodes);
        }
    }

    fn checked(self, looked_for: &[String]) -> anyhow::Result<Self> {
        if self.caches.is_empty() {
            bail!("{}: expected a table of a kernel's caches: {}", self.place, looked_for.join(", "));
        }
        Ok(self)
    }
}

/// Returns the snapshots in a recording's folder, in order of time; each file `NAME.slabinfo` is the snapshot `NAME`.
/// Snapshots that a workload added are between `before` and `after`, in the order of their names.
fn moments(folder: &Path) -> Vec<String> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.strip_suffix(".slabinfo")?.to_owned();
        Some(name).filter(|name| !name.is_empty() && entry.path().is_file())
    };
    let mut moments: Vec<String> = entries.filter_map(name).collect();
    let added = SNAPSHOT_NAMES.len() / 2;
    let place = |moment: &str| match SNAPSHOT_NAMES.iter().position(|known| *known == moment) {
        Some(at) => at + usize::from(at >= added),
        None => added,
    };
    moments.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.cmp(b)));
    moments
}

/// A folder of tables; the tables belong to one snapshot of a recording, or to none.
struct Tables<'p> {
    folder: &'p Path,
    moment: Option<String>,
}

impl Tables<'_> {
    /// Returns the possible paths of a table of `/proc` in the folder.
    fn places(&self, name: &str) -> Vec<PathBuf> {
        match &self.moment {
            Some(moment) => vec![self.folder.join(format!("{moment}.{name}"))],
            None => vec![self.folder.join("proc").join(name), self.folder.join(name)],
        }
    }

    /// Reads the first existing file in a list of paths.
    fn first(&self, places: &[PathBuf], read: &mut Vec<String>) -> anyhow::Result<Option<(PathBuf, String)>> {
        let Some(path) = places.iter().find(|path| path.is_file()) else { return Ok(None) };
        let text = read_table(path).with_context(|| path.display().to_string())?;
        read.push(path.display().to_string());
        Ok(Some((path.clone(), text)))
    }

    fn read(&self, place: String) -> anyhow::Result<Snapshot> {
        let mut snapshot = Snapshot::empty(place);
        snapshot.moment.clone_from(&self.moment);
        let mut read = vec![];
        // Without the right to read slabinfo, sysfs may be readable.
        let slabinfo = self.first(&self.places("slabinfo"), &mut read);
        let failed = match slabinfo {
            Ok(Some((path, text))) => {
                snapshot.slabinfo(&path, &text)?;
                None
            }
            Ok(None) => None,
            Err(error) => Some(error),
        };
        let catalog = match self.catalog(&mut read) {
            Ok(catalog) => catalog,
            // Slabinfo alone is sufficient.
            Err(error) if !snapshot.caches.is_empty() => {
                snapshot.faults.push(format!("{error:#}"));
                None
            }
            Err(error) => return Err(failed.unwrap_or(error)),
        };
        if let Some(catalog) = catalog {
            snapshot.add_catalog(&catalog);
        }
        if let Some(error) = failed.filter(|_| snapshot.caches.is_empty()) {
            return Err(error);
        }
        if let Some((path, text)) = self.first(&self.places("meminfo"), &mut read)? {
            snapshot.memory = Some(memory(&text).with_context(|| path.display().to_string())?);
        }
        if let Some((path, text)) = self.first(&self.places("buddyinfo"), &mut read)? {
            let blocks = FreeBlocks::read(&path, &text)?;
            snapshot.nodes = snapshot.nodes.max(nodes(&blocks));
            snapshot.free_blocks = Some(blocks);
        }
        let releases = [
            "proc/sys/kernel/osrelease",
            "kernel.txt",
            "uname",
            "sos_commands/kernel/uname_-a",
            "proc/version",
        ];
        let releases: Vec<PathBuf> = releases.iter().map(|name| self.folder.join(name)).collect();
        if let Some((_, text)) = self.first(&releases, &mut read)? {
            snapshot.kernel = release(&text);
        }
        let present = self.folder.join("sys/devices/system/cpu/present");
        // The CPUs are the same at all moments.
        let mut zoneinfo = self.places("zoneinfo");
        if self.moment.is_some() {
            zoneinfo.extend(SNAPSHOT_NAMES.map(|moment| self.folder.join(format!("{moment}.zoneinfo"))));
        }
        snapshot.cpus = match self.first(&[present], &mut read)? {
            Some((_, text)) => count_cpus_in_ranges(&text),
            None => match self.first(&zoneinfo, &mut read)? {
                Some((_, text)) => listed_cpus(&text, "cpu:"),
                None => self
                    .first(&[self.folder.join("proc/cpuinfo")], &mut read)?
                    .and_then(|(_, text)| listed_cpus(&text, "processor")),
            },
        };
        snapshot.read = read;
        // The names are relative to the place, except for a moment, which is no folder.
        let looked_for = match &self.moment {
            Some(moment) => vec![self.folder.join(format!("{moment}.slabinfo")).display().to_string()],
            None => {
                let moments = SNAPSHOT_NAMES.iter().rev().map(|moment| format!("{moment}.slabinfo"));
                let first = ["proc/slabinfo", "slabinfo"].map(str::to_owned).into_iter();
                first
                    .chain(moments)
                    .chain(SYSFS_COPY_PATHS.map(str::to_owned))
                    .chain(["slab-attributes.tsv".to_owned()])
                    .collect()
            }
        };
        snapshot.checked(&looked_for)
    }

    /// Returns the attributes from sysfs, read from a copy of its folder or from the tables of a recording.
    fn catalog(&self, read: &mut Vec<String>) -> anyhow::Result<Option<AttributeCatalog>> {
        let table = |path: &Path, read: &mut Vec<String>| -> anyhow::Result<Option<AttributeCatalog>> {
            let found = self.first(&[path.to_owned()], read)?;
            found
                .map(|(path, text)| {
                    AttributeCatalog::from_table(&text).with_context(|| path.display().to_string())
                })
                .transpose()
        };
        let constant = table(&self.folder.join("slab-attributes.tsv"), read)?;
        if let Some(moment) = &self.moment {
            let counts = table(&self.folder.join(format!("{moment}.sysfs-slab.tsv")), read)?;
            return Ok(match (constant.map(AttributeCatalog::without_counts), counts) {
                (Some(constant), Some(counts)) => Some(constant.with_counts_from(counts)),
                (constant, counts) => constant.or(counts),
            });
        }
        let has_caches = |folder: &PathBuf| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.take(4096).any(|entry| entry.path().join("slab_size").exists())
        };
        let folders =
            SYSFS_COPY_PATHS.map(|name| self.folder.join(name)).into_iter().chain([self.folder.to_owned()]);
        match folders.into_iter().find(|folder| folder != Path::new("/") && has_caches(folder)) {
            Some(folder) => {
                read.push(folder.display().to_string());
                AttributeCatalog::read_folder(&folder).map(Some)
            }
            None => Ok(constant),
        }
    }
}

/// The paths in a folder at which a copy of `/sys/kernel/slab` may be.
const SYSFS_COPY_PATHS: [&str; 2] = ["sys/kernel/slab", "slab"];

/// Reads a table, and rejects files that never end; `-` is standard input.
///
/// # Errors
/// Fails if the table cannot be read, or is too long.
pub fn read_table(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let from: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    from.take(MAX_TABLE_BYTES).read_to_string(&mut text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => {
            anyhow::anyhow!(
                "not text: expected an unpacked slabinfo; `uslab what {}` names the kind of a file",
                path.display()
            )
        }
        _ => error.into(),
    })?;
    if text.len() as u64 == MAX_TABLE_BYTES {
        bail!("the file is longer than {} MiB; expected a table of caches", MAX_TABLE_BYTES >> 20);
    }
    Ok(text)
}

fn memory(text: &str) -> anyhow::Result<Memory> {
    let kib = |name: &str| -> anyhow::Result<Option<u64>> {
        let found = (1..)
            .zip(text.lines())
            .find_map(|(number, line)| Some((number, line.strip_prefix(name)?.strip_prefix(':')?)));
        let Some((number, value)) = found else { return Ok(None) };
        let value: Option<u64> =
            value.trim().trim_end_matches(" kB").parse().ok().filter(|kib| *kib < 1 << 42);
        let value = value.with_context(|| format!("line {number}: expected {name} in kB"))?;
        Ok(Some(value << 10))
    };
    let total = kib("MemTotal")?.context("expected a line `MemTotal:`")?;
    Ok(Memory {
        total,
        free: kib("MemFree")?.unwrap_or(0),
        reclaimable: kib("SReclaimable")?.unwrap_or(0),
        unreclaimable: kib("SUnreclaim")?.unwrap_or(0),
    })
}

fn nodes(blocks: &[FreeBlocks]) -> u64 {
    let mut nodes: Vec<&str> = blocks.iter().filter_map(|zone| zone.zone.split(',').next()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.len() as u64
}

/// Returns the first word of a text if it looks like a kernel release: `6.12.0-1-amd64`.
fn release(text: &str) -> Option<String> {
    let is_release = |word: &&str| {
        let mut parts = word.split('.');
        let mut digits = || parts.next().is_some_and(|part| part.starts_with(|c: char| c.is_ascii_digit()));
        digits() && digits()
    };
    text.split_whitespace().find(is_release).map(str::to_owned)
}

/// Returns the number of CPUs in a list such as `0-3` or `0,2-3`.
pub(crate) fn count_cpus_in_ranges(text: &str) -> Option<u32> {
    let cpus = text.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    let cpus: Option<Vec<u32>> = cpus.collect();
    cpus.map(|cpus| cpus.iter().fold(0, |sum: u32, n| sum.saturating_add(*n)))
        .filter(|cpus| (1..=8192).contains(cpus))
}

/// Returns the number of CPUs in the lines `KEY: NUMBER` of zoneinfo (which repeats them) or cpuinfo.
fn listed_cpus(text: &str, key: &str) -> Option<u32> {
    let numbers = text.lines().filter_map(|line| {
        let rest = line.trim().strip_prefix(key)?;
        rest.trim_matches(|c: char| c == ':' || c.is_whitespace()).parse::<u32>().ok()
    });
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    u32::try_from(numbers.len()).ok().filter(|cpus| *cpus > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_release_and_cpu_count_are_parsed() {
        assert_eq!(release("Linux host2 5.14.0-1.el9 #1 SMP"), Some("5.14.0-1.el9".to_owned()));
        assert_eq!(release("7.2.13+deb14-amd64\n"), Some("7.2.13+deb14-amd64".to_owned()));
        assert_eq!(release("no release"), None);
        assert_eq!(count_cpus_in_ranges("0-3\n"), Some(4));
        assert_eq!(count_cpus_in_ranges("0,2-3"), Some(3));
        assert_eq!(count_cpus_in_ranges("3-0"), None);
        assert_eq!(listed_cpus("  cpu: 0\n  cpu: 1\n cpu: 0\n", "cpu:"), Some(2));
        assert_eq!(listed_cpus("processor\t: 0\nprocessor\t: 1\n", "processor"), Some(2));
        assert_eq!(listed_cpus("", "cpu:"), None);
    }

    #[test]
    fn meminfo_is_parsed() {
        let text = "MemTotal:  1024 kB\nMemFree: 10 kB\nSReclaimable: 3 kB\nSUnreclaim: 4 kB\n";
        let read = memory(text).unwrap();
        assert_eq!(
            (read.total, read.free, read.reclaimable, read.unreclaimable),
            (1 << 20, 10 << 10, 3 << 10, 4 << 10)
        );
        assert!(memory("MemTotal: x kB\n").unwrap_err().to_string().starts_with("line 1: "));
        assert!(memory("Slab: 1 kB\n").is_err());
    }
}
