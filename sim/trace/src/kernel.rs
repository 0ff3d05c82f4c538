//! The traced kernel: its release, its boot parameters, and the attributes of its caches in sysfs.
//!
//! The folder of a trace may contain facts about the kernel in the files `kernel.txt`, `cmdline.txt` and
//! `slab-attributes.tsv`.

use std::path::Path;

use super::error::TraceError;
use super::tables::table;
use rustc_hash::FxHashMap;

/// A kernel's release, boot parameters and cache attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// The major and minor number of the kernel's release, for example `(6, 18)`.
    pub release: Option<(u32, u32)>,
    /// The boot parameters, in their order on the command line. A parameter is `NAME=VALUE`, or a `NAME`
    /// whose value is empty.
    pub parameters: Vec<(String, String)>,
    /// The attribute files of the caches in `/sys/kernel/slab`; empty if they were not recorded.
    pub attributes: Attributes,
}

impl Kernel {
    pub(super) fn of<T: AsRef<str>>(
        folder: &Path,
        text: &impl Fn(&Path) -> Result<Option<T>, TraceError>,
    ) -> Result<Self, TraceError> {
        let cmdline = text(&folder.join("cmdline.txt"))?;
        let parameters = cmdline.iter().flat_map(|text| text.as_ref().split_whitespace()).map(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            (name.to_owned(), value.to_owned())
        });
        Ok(Self {
            release: table(&folder.join("kernel.txt"), text, release)?,
            parameters: parameters.collect(),
            attributes: table(&folder.join("slab-attributes.tsv"), text, attributes)?.unwrap_or_default(),
        })
    }
}

/// Parses the start of a release such as `7.2.13+deb14-amd64`.
fn release(text: &str) -> Result<(u32, u32), (u64, &'static str)> {
    let wrong = (1, "a kernel's release, such as 7.2.13-amd64");
    let mut numbers = text.trim().split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse().ok()).ok_or(wrong);
    Ok((number()?, number()?))
}

/// The attributes of all caches, indexed by cache name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    columns: Vec<String>,
    rows: FxHashMap<String, Vec<String>>,
}

impl Attributes {
    /// Returns `true` if the kernel's caches have the given attribute.
    #[must_use]
    pub fn has_attribute(&self, attribute: &str) -> bool {
        self.columns.iter().any(|column| column == attribute)
    }
    /// Returns the text of one attribute of a cache.
    #[must_use]
    pub fn text(&self, cache: &str, attribute: &str) -> Option<&str> {
        let column = self.columns.iter().position(|column| column == attribute)?;
        self.rows.get(cache)?.get(column).map(String::as_str)
    }
    /// Returns a cache's attribute as a number; `None` if the kernel does not have the attribute.
    #[must_use]
    pub fn number(&self, cache: &str, attribute: &str) -> Option<u32> {
        self.text(cache, attribute)?.parse().ok()
    }
    /// Returns the total of a counter, for example 421 for the text `421 N0=421`.
    #[must_use]
    pub fn count(&self, cache: &str, counter: &str) -> Option<u64> {
        let text = self.text(cache, counter)?;
        text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }
    /// Returns the number of slabs on the partial list of a CPU, for example 1 for CPU 0 and the text `10(1)
    /// C0=10(1)`.
    #[must_use]
    pub fn cpu_partial_slabs(&self, cache: &str, cpu: u32) -> u64 {
        let text = self.text(cache, "slabs_cpu_partial").unwrap_or_default();
        let of_cpu = text.split_whitespace().find_map(|part| part.strip_prefix(&format!("C{cpu}=")));
        let slabs = of_cpu.and_then(|part| part.split_once('(')?.1.strip_suffix(')')?.parse().ok());
        slabs.unwrap_or(0)
    }
    /// Returns the value of one attribute for every cache that has it.
    pub fn numbers(&self, attribute: &str) -> impl Iterator<Item = u32> {
        self.rows.keys().filter_map(move |cache| self.number(cache, attribute))
    }
    /// Returns the folder with a cache's files: its own folder, or the folder to which its link leads.
    #[must_use]
    pub fn folder<'c>(&'c self, cache: &'c str) -> &'c str {
        self.text(cache, "link").filter(|link| link.starts_with(':')).unwrap_or(cache)
    }
    /// Returns the other names that lead to a cache's folder, sorted; they are the caches that the kernel merged with
    /// it.
    #[must_use]
    pub fn aliases(&self, cache: &str) -> Vec<String> {
        let folder = self.folder(cache);
        let others = self.links().filter(|(name, link)| *name != cache && *link == folder);
        let mut names: Vec<_> = others.map(|(name, _)| name.to_owned()).collect();
        names.sort_unstable();
        names
    }
    /// Returns the alias names (for example `pid`), each with the identifier to which its link leads
    /// (`:A-0000128`).
    pub fn links(&self) -> impl Iterator<Item = (&str, &str)> {
        let link = |name| self.text(name, "link").filter(|link| link.starts_with(':'));
        self.rows.keys().filter_map(move |name| Some((name.as_str(), link(name)?)))
    }
}

/// Parses a table with columns separated by tabs: a header row, then one row for each cache.
pub(super) fn attributes(text: &str) -> Result<Attributes, (u64, &'static str)> {
    let mut lines = text.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
    let columns = lines.next().unwrap_or_default();
    if columns.first().is_none_or(|first| first != "name") {
        return Err((1, "a row of attributes' names, the first one `name`"));
    }
    Ok(Attributes { columns, rows: lines.map(|row| (row[0].clone(), row)).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(texts: &[(&str, &str)]) -> Result<Kernel, String> {
        let text =
            |path: &Path| Ok(texts.iter().find(|(name, _)| path.ends_with(name)).map(|(_, text)| *text));
        Kernel::of(Path::new("folder"), &text).map_err(|error| error.to_string())
    }

    #[test]
    fn kernel_description_has_release_parameters_and_attributes() {
        let read = kernel(&[
            ("kernel.txt", "7.2.13+deb14-amd64\n"),
            ("cmdline.txt", "quiet slab_max_order=0 slab_nomerge\n"),
            ("slab-attributes.tsv", "name\tlink\tsheaf_capacity\npid\t:A-0000128\t60\ntrace\t-\tNA\n"),
        ]);
        let read = read.unwrap();
        assert_eq!(read.release, Some((7, 2)));
        let has = |name: &str, value: &str| read.parameters.contains(&(name.to_owned(), value.to_owned()));
        assert!(has("slab_max_order", "0") && has("slab_nomerge", ""));
        let number = |cache| read.attributes.number(cache, "sheaf_capacity");
        assert_eq!(read.attributes.aliases("trace"), [""; 0]);
        assert_eq!(["pid", "trace", "none"].map(number), [Some(60), None, None]);
        assert_eq!(read.attributes.links().collect::<Vec<_>>(), [("pid", ":A-0000128")]);
        assert!(
            read.attributes.has_attribute("sheaf_capacity") && !read.attributes.has_attribute("cpu_partial")
        );
        assert_eq!(kernel(&[]), Ok(Kernel::default()));
    }

    #[test]
    fn kernel_counter_total_and_per_cpu_values_are_parsed() {
        let text = "name\tslabs\tslabs_cpu_partial\ndentry\t421 N0=400 N1=21\t90(3) C0=10(1) C11=80(2)\n";
        let read = attributes(text).unwrap();
        assert_eq!((read.count("dentry", "slabs"), read.count("dentry", "partial")), (Some(421), None));
        assert_eq!([0, 1, 11].map(|cpu| read.cpu_partial_slabs("dentry", cpu)), [1, 0, 2]);
    }

    #[test]
    fn invalid_kernel_file_is_refused_by_file_and_line() {
        for release in ["", "linux", "7", "7."] {
            let error = kernel(&[("kernel.txt", release)]).unwrap_err();
            assert_eq!(error, "folder/kernel.txt:1: expected a kernel's release, such as 7.2.13-amd64");
        }
        let error = kernel(&[("slab-attributes.tsv", "cache 1\n")]).unwrap_err();
        assert!(error.starts_with("folder/slab-attributes.tsv:1: expected a row of"), "{error}");
    }
}
