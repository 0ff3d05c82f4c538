//! Reads the attributes of caches in `/sys/kernel/slab`: from the folder itself, from a copy, or from a table
//! of its files.

use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The attributes of a cache; a kernel may lack some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The size of an object in bytes.
    pub object_size: Option<u64>,
    /// The distance from one object to the next, in bytes.
    pub slab_size: Option<u64>,
    /// The number of objects in a slab of the usual order.
    pub objs_per_slab: Option<u64>,
    /// The usual order of a slab.
    pub order: Option<u64>,
    /// The alignment of an object in bytes.
    pub align: Option<u64>,
    /// A node keeps an empty slab only while it has fewer partial slabs than this number.
    pub min_partial: Option<u64>,
    /// The largest number of free objects in the partial slabs of a CPU; 0 since 7.0.
    pub cpu_partial: Option<u64>,
    /// The number of objects in a full sheaf; 0 if the cache has no sheaves.
    pub sheaf_capacity: Option<u64>,
    /// The number of slabs.
    pub slabs: Option<u64>,
    /// The number of objects, in use or free, in all slabs.
    pub total_objects: Option<u64>,
    /// The number of objects, excluding free objects in partial slabs of nodes but including free objects in slabs of
    /// CPUs.
    pub objects: Option<u64>,
    /// The number of slabs on the partial lists of nodes.
    pub partial: Option<u64>,
    /// The number of objects in use in the slabs on the partial lists of nodes.
    pub objects_partial: Option<u64>,
    /// The number of current and partial slabs, counted only for CPUs that have a current slab.
    pub cpu_slabs: Option<u64>,
    /// The number of partial slabs that all CPUs hold.
    pub slabs_cpu_partial: Option<u64>,
    /// The number of nodes that have slabs of the cache.
    pub nodes: u64,
    /// The value 1 if the memory of the cache is reclaimable.
    pub reclaim_account: Option<u64>,
    /// The value 1 if objects in freed slabs stay readable until a grace period ends.
    pub destroy_by_rcu: Option<u64>,
    /// `true` if the cache has a constructor.
    pub ctor: bool,
}

/// The names of the attribute files, in the order of [`Attributes::set`].
const NAMES: [&str; 18] = [
    "object_size",
    "slab_size",
    "objs_per_slab",
    "order",
    "align",
    "min_partial",
    "cpu_partial",
    "sheaf_capacity",
    "slabs",
    "total_objects",
    "objects",
    "partial",
    "objects_partial",
    "cpu_slabs",
    "slabs_cpu_partial",
    "reclaim_account",
    "destroy_by_rcu",
    "ctor",
];

/// An upper limit for plausible counts.
const MAX_PLAUSIBLE_COUNT: u64 = 1 << 40;
/// An upper limit for plausible sizes and capacities of a cache.
const MAX_CACHE_ATTRIBUTE: u64 = 1 << 26;

impl Attributes {
    /// Sets one attribute from its text. An empty text, `-` or `NA` means that the kernel lacks the
    /// attribute.
    fn set(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        let text = text.trim();
        let first = text.split_whitespace().next().unwrap_or_default();
        let place = match name {
            "object_size" => &mut self.object_size,
            "slab_size" => &mut self.slab_size,
            "objs_per_slab" => &mut self.objs_per_slab,
            "order" => &mut self.order,
            "align" => &mut self.align,
            "min_partial" => &mut self.min_partial,
            "cpu_partial" => &mut self.cpu_partial,
            "sheaf_capacity" => &mut self.sheaf_capacity,
            "slabs" => {
                let on_node = |word: &&str| {
                    let count = word.strip_prefix('N').and_then(|rest| rest.split_once('='));
                    count.is_some_and(|(_, count)| count != "0")
                };
                self.nodes = text.split_whitespace().filter(on_node).count() as u64;
                &mut self.slabs
            }
            "total_objects" => &mut self.total_objects,
            "objects" => &mut self.objects,
            "partial" => &mut self.partial,
            "objects_partial" => &mut self.objects_partial,
            "cpu_slabs" => &mut self.cpu_slabs,
            "slabs_cpu_partial" => {
                // In `90(6) C0=30(2) C1=60(4)`, the kernel's estimate of free objects is followed by the number of
                // slabs in brackets.
                let slabs = first.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
                self.slabs_cpu_partial =
                    slabs.and_then(|slabs| slabs.parse().ok()).filter(|slabs| *slabs <= MAX_PLAUSIBLE_COUNT);
                return Ok(());
            }
            "reclaim_account" => &mut self.reclaim_account,
            "destroy_by_rcu" => &mut self.destroy_by_rcu,
            "ctor" => {
                self.ctor = !is_missing_attribute(text);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let is_count = matches!(
            name,
            "slabs" | "total_objects" | "objects" | "partial" | "objects_partial" | "cpu_slabs"
        );
        let most = if is_count { MAX_PLAUSIBLE_COUNT } else { MAX_CACHE_ATTRIBUTE };
        *place = match first.parse() {
            Ok(number) if number <= most => Some(number),
            _ if is_missing_attribute(first) => None,
            _ => bail!("expected a number up to {most} in {name}, found {first:?}"),
        };
        let most = u64::from(uslab_buddy::MAX_ORDER);
        if let Some(order) = self.order.filter(|order| *order > most) {
            bail!("impossible order {order} (0 to {most} are accepted)");
        }
        Ok(())
    }

    /// Replaces the counts in these attributes by the counts in `other`.
    fn replace_counts(&mut self, other: Self) {
        let Self {
            slabs,
            total_objects,
            objects,
            partial,
            objects_partial,
            cpu_slabs,
            slabs_cpu_partial,
            ..
        } = other;
        *self = Self {
            slabs,
            total_objects,
            objects,
            partial,
            objects_partial,
            cpu_slabs,
            slabs_cpu_partial,
            nodes: other.nodes,
            ..self.clone()
        };
    }
}

/// Returns `true` for a text that means a missing attribute.
fn is_missing_attribute(text: &str) -> bool {
    matches!(text, "" | "-" | "NA")
}

/// The attributes of all caches by name, and the alias names of shared caches.
#[derive(Clone, Debug, Default)]
pub struct AttributeCatalog {
    /// The attributes, indexed by the name of the cache's folder.
    pub caches: BTreeMap<String, Attributes>,
    /// The symbolic links: for each alias, the folder to which it leads.
    pub links: BTreeMap<String, String>,
}

impl AttributeCatalog {
    /// Follows the links for a cache's name, and returns the resulting folder and the attributes in it.
    pub fn get(&self, name: &str) -> Option<(&str, &Attributes)> {
        let folder = self.links.get(name).map_or(name, |folder| folder);
        self.caches.get_key_value(folder).map(|(folder, attributes)| (&**folder, attributes))
    }

    /// Returns the aliases of a cache, given the cache's folder.
    pub fn cache_aliases(&self, folder: &str) -> impl Iterator<Item = &str> {
        self.links.iter().filter(move |(_, to)| *to == folder).map(|(name, _)| &**name)
    }

    /// Reads the attributes from `/sys/kernel/slab` or a copy.
    ///
    /// # Errors
    ///
    /// Fails if the folder, or a file that exists in it, cannot be read.
    pub fn read_folder(folder: &Path) -> anyhow::Result<Self> {
        let mut catalog = Self::default();
        let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let entry = entry.with_context(|| folder.display().to_string())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().with_context(|| entry.path().display().to_string())?;
            if kind.is_symlink() {
                let to = fs::read_link(entry.path()).with_context(|| entry.path().display().to_string())?;
                if let Some(to) = to.file_name() {
                    catalog.links.insert(name, to.to_string_lossy().into_owned());
                }
            } else if kind.is_dir() {
                let mut attributes = Attributes::default();
                for attribute in NAMES {
                    let path = entry.path().join(attribute);
                    match fs::read_to_string(&path) {
                        Ok(text) => {
                            attributes.set(attribute, &text).with_context(|| path.display().to_string())?
                        }
                        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                        Err(e) => return Err(e).with_context(|| path.display().to_string()),
                    }
                }
                if attributes.slab_size.is_some() {
                    catalog.caches.insert(name, attributes);
                }
            }
        }
        Ok(catalog)
    }

    /// Parses a table of attributes: the first line has the names of the columns, and each further line has one cache;
    /// tabs separate columns.
    ///
    /// # Errors
    ///
    /// Fails if the first line has no column `name`, or if another line has a different number of columns.
    pub fn from_table(text: &str) -> anyhow::Result<Self> {
        let mut lines = (1_u64..).zip(text.lines());
        let header: Vec<&str> = lines.next().map_or("", |(_, line)| line).split('\t').collect();
        if header.first() != Some(&"name") {
            bail!(
                "line 1: expected column names separated by tabs, beginning with `name`, found {:?}",
                header[0]
            );
        }
        if !header.iter().any(|column| NAMES.contains(column)) {
            bail!("line 1: expected columns with attributes, such as slab_size, order and objs_per_slab");
        }
        let mut catalog = Self::default();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let fields: Vec<&str> = line.split('\t').collect();
            // Empty columns at the end of a line are often cut off.
            if fields.len() > header.len() || fields.len() < 2 {
                bail!("line {number}: expected {} columns, found {}", header.len(), fields.len());
            }
            let mut attributes = Attributes::default();
            let mut link = None;
            for (column, field) in header.iter().zip(&fields).skip(1) {
                if *column == "link" {
                    link = Some(*field).filter(|link| !matches!(*link, "" | "-"));
                } else {
                    attributes.set(column, field).with_context(|| format!("line {number}"))?;
                }
            }
            match link {
                Some(to) => catalog.links.insert(fields[0].to_owned(), to.to_owned()).is_some(),
                None => catalog.caches.insert(fields[0].to_owned(), attributes).is_some(),
            };
        }
        Ok(catalog)
    }

    /// Removes the counts, because they are from another time than the table that is completed with the attributes.
    pub fn without_counts(mut self) -> Self {
        for attributes in self.caches.values_mut() {
            attributes.replace_counts(Attributes::default());
        }
        self
    }

    /// Returns the attributes with their counts replaced by the counts of another table.
    pub fn with_counts_from(mut self, other: Self) -> Self {
        for (name, counts) in other.caches {
            self.caches.entry(name).or_default().replace_counts(counts);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_table_resolves_cache_links() {
        let text = "name\tlink\tslab_size\tslabs\tslabs_cpu_partial\tctor\n\
                    :0000136\t-\t136\t582 N0=580 N1=2\t90(6) C0=30(2) C1=60(4)\t\n\
                    kernfs\t:0000136\t136\t582\t90(6)\t\n\
                    inode\t-\t600\tNA\t0(0)\tinit_once+0x0/0x10\n";
        let catalog = AttributeCatalog::from_table(text).unwrap();
        let (folder, shared) = catalog.get("kernfs").unwrap();
        assert_eq!((folder, shared.slabs, shared.nodes), (":0000136", Some(582), 2));
        assert_eq!((shared.slabs_cpu_partial, shared.ctor), (Some(6), false));
        let (_, inode) = catalog.get("inode").unwrap();
        assert_eq!((inode.slab_size, inode.slabs, inode.ctor), (Some(600), None, true));
        assert_eq!(catalog.cache_aliases(":0000136").collect::<Vec<_>>(), ["kernfs"]);
        let counts = AttributeCatalog::from_table("name\tlink\tslabs\ninode\t-\t7 N0=7\n").unwrap();
        let merged = catalog.without_counts().with_counts_from(counts);
        assert_eq!(merged.get("inode").unwrap().1.slabs, Some(7));
        assert_eq!(merged.get("kernfs").unwrap().1.slabs, None);
        assert_eq!(
            AttributeCatalog::from_table("size\n").unwrap_err().to_string(),
            "line 1: expected column names separated by tabs, beginning with `name`, found \"size\""
        );
        let error = |text: &str| format!("{:#}", AttributeCatalog::from_table(text).unwrap_err());
        assert!(error("name\tsize\n").starts_with("line 1: expected columns"));
        assert!(error("name\torder\ninode\n").starts_with("line 2: expected 2 columns"));
        assert_eq!(
            error("name\torder\ninode\tx\n"),
            "line 2: expected a number up to 67108864 in order, found \"x\""
        );
    }
}
