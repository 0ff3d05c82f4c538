//! Facts about the other kernel of a prediction; they come from a boot of that kernel without the workload.
//!
//! The facts have three sources: the table `before.slabinfo` (caches, object sizes, initial slabs), the links in
//! `slab-attributes.tsv` (caches that share slabs), and the trace (call sites and their caches). The counts of
//! snapshots after `before` are not used.

use super::ReplayError;
use super::stream::kind;
use super::traced::function;
use crate::output::Progress;
use crate::trace::{Attributes, CacheId, CacheKind, Kernel, Op, OpKind, Recording, Resolver, Source, Tables};
use rustc_hash::FxHashMap;
use std::path::Path;
use uslab::SlabInfo;
use uslab_engine::stream::Kind;

/// The facts from a boot of the other kernel.
#[derive(Debug)]
pub(super) struct Start {
    before: SlabInfo,
    kernel: Kernel,
    /// The cache name for each alias.
    aliases: FxHashMap<String, String>,
    /// The cache from which a call site allocates, indexed by the site's full text. The value is `None` if the site
    /// allocates from several caches.
    sites: CallSiteNames,
    /// The cache from which a function allocates; used instead of the call sites if the two kernels are
    /// different builds.
    functions: CallSiteNames,
}

type CallSiteNames = FxHashMap<String, Option<String>>;

/// A cache of the trace, with the name and object size that the other kernel uses.
#[derive(Debug)]
pub(super) struct RenamedCache {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) size: u32,
}

/// The possible file names of a trace in a folder.
const TRACES: [&str; 4] = ["trace.txt.zst", "trace.txt.xz", "trace.txt.gz", "trace.txt"];

impl Start {
    pub(super) fn read(folder: &Path, progress: &Progress) -> Result<Self, ReplayError> {
        let tables = Tables::read(folder)?;
        let Some(before) = tables.at("before").and_then(|before| before.slabinfo.clone()) else {
            let shown = folder.display();
            return Err(ReplayError::Option(format!(
                "--start {shown}: the folder has no before.slabinfo; expected the folder of a recording"
            )));
        };
        let mut start = Self {
            aliases: aliases(&tables.kernel.attributes, &before),
            before,
            kernel: tables.kernel.clone(),
            sites: FxHashMap::default(),
            functions: FxHashMap::default(),
        };
        if let Some(trace) = TRACES.into_iter().map(|name| folder.join(name)).find(|path| path.is_file()) {
            let source = Source::open(&trace)?;
            let stage = progress.stage("call sites", source.progress().total.unwrap_or(0));
            let recording = Recording::read(source, |p| stage.at(p.bytes))?;
            let mut resolver = recording.resolve(tables.latest_slabinfo())?;
            while let Some(op) = resolver.next_op()? {
                if let OpKind::Alloc { cache, site, .. } = op.kind
                    && resolver.cache(cache).kind == CacheKind::Named
                {
                    start.learn(&resolver.call_site(site), &resolver.cache(cache).name);
                }
            }
        }
        Ok(start)
    }

    fn learn(&mut self, site: &str, cache: &str) {
        for (sites, name) in [(&mut self.sites, site), (&mut self.functions, function(site))] {
            match sites.get_mut(name) {
                None => _ = sites.insert(name.to_owned(), Some(cache.to_owned())),
                Some(known) if known.as_deref() == Some(cache) => {}
                Some(known) => *known = None,
            }
        }
    }

    /// Returns the other kernel's name for a cache, and the object size of that cache.
    fn cache(&self, name: &str) -> Option<(&str, u32)> {
        let row = self.before.get(name).or_else(|| self.before.get(self.aliases.get(name)?))?;
        Some((&row.name, row.object_size as u32))
    }

    /// Returns the cache from which a call site of the trace would allocate in the other kernel.
    fn cache_of_site(&self, site: &str) -> Option<&str> {
        let known = self.sites.get(site).or_else(|| self.functions.get(function(site)));
        known?.as_deref()
    }

    /// Moves each operation to the cache that the other kernel would use.
    pub(super) fn rename(&self, ops: &mut [Op], resolver: &Resolver) -> Vec<RenamedCache> {
        let mut caches = Vec::new();
        let (mut numbers, mut defaults) = (FxHashMap::default(), Vec::new());
        for (info, number) in resolver.caches().iter().zip(0..) {
            let (name, size) = self.cache(&info.name).unwrap_or((&info.name, info.size));
            let first = *numbers.entry(name.to_owned()).or_insert(number);
            defaults.push(CacheId(first));
            // A cache that the other kernel merges into an earlier one keeps its name, and gets no operations.
            let name = if first == number { name } else { &info.name };
            caches.push(RenamedCache { name: name.to_owned(), kind: kind(info.kind), size });
        }
        let mut sites = FxHashMap::default();
        for op in ops {
            match &mut op.kind {
                OpKind::Alloc { cache, site, .. } if resolver.cache(*cache).kind == CacheKind::Named => {
                    *cache = *sites.entry((*cache, *site)).or_insert_with(|| {
                        let site = resolver.call_site(*site);
                        let Some((name, size)) = self.cache_of_site(&site).and_then(|name| self.cache(name))
                        else {
                            return defaults[cache.0 as usize];
                        };
                        CacheId(*numbers.entry(name.to_owned()).or_insert_with(|| {
                            caches.push(RenamedCache { name: name.to_owned(), kind: Kind::Named, size });
                            caches.len() as u32 - 1
                        }))
                    });
                }
                OpKind::Alloc { cache, .. }
                | OpKind::Free { cache, .. }
                | OpKind::HiddenFree { cache, .. } => {
                    *cache = defaults[cache.0 as usize];
                }
                _ => {}
            }
        }
        caches
    }

    /// Returns the facts about the other kernel.
    pub(super) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Returns the other kernel's slabinfo in the `before` snapshot.
    pub(super) fn other_kernel_slabinfo(&self) -> &SlabInfo {
        &self.before
    }

    /// Returns the other kernel's table for each snapshot of the traced kernel, as if the other kernel's
    /// caches never changed.
    pub(super) fn tables(&self, traced: &Tables) -> Tables {
        let mut tables = traced.clone();
        for snapshot in &mut tables.snapshots {
            snapshot.slabinfo = Some(self.before.clone());
        }
        tables
    }
}

/// Returns the cache name for each alias. The link of an alias leads to an identifier (`:A-0000128`). In
/// slabinfo, a merged cache has the name of its first user.
fn aliases(attributes: &Attributes, before: &SlabInfo) -> FxHashMap<String, String> {
    let links: Vec<_> = attributes.links().collect();
    let shown = links.iter().filter(|(name, _)| before.get(name).is_some());
    let names: FxHashMap<&str, &str> = shown.map(|(name, link)| (*link, *name)).collect();
    links
        .iter()
        .filter_map(|(name, link)| Some(((*name).to_owned(), (*names.get(link)?).to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_sites_match_by_function_across_builds() {
        assert_eq!(function("__d_alloc+0x2b/0x1d0"), "__d_alloc");
        assert_eq!(function("dup_fd+0x1/0x2"), function("dup_fd.isra.0+0x8/0x20"));
        assert_eq!(function("kmem_cache_alloc_noprof+0x1/0x2"), "kmem_cache_alloc");
        let before = "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab>\n";
        let mut start = Start {
            before: before.parse().expect("a table"),
            kernel: Kernel::default(),
            aliases: FxHashMap::default(),
            sites: FxHashMap::default(),
            functions: FxHashMap::default(),
        };
        start.learn("f+0x1/0x9", "one");
        start.learn("f+0x1/0x9", "one");
        assert_eq!(
            (start.cache_of_site("f+0x1/0x9"), start.cache_of_site("f+0x2/0x8")),
            (Some("one"), Some("one"))
        );
        start.learn("f+0x5/0x9", "other");
        assert_eq!(
            (start.cache_of_site("f+0x5/0x9"), start.cache_of_site("f+0x2/0x8")),
            (Some("other"), None)
        );
        assert_eq!(start.cache_of_site("g+0x1/0x9"), None);
        start.learn("f+0x5/0x9", "one");
        assert_eq!(start.cache_of_site("f+0x5/0x9"), None, "the cache depends on the caller");
    }

    #[test]
    fn alias_resolves_to_the_cache_in_slabinfo() {
        let row = |name: &str| format!("{name} 5 32 128 32 1 : tunables 0 0 0 : slabdata 1 1 0\n");
        let table: SlabInfo = format!("slabinfo - version: 2.1\n# name\n{}{}", row("pid"), row("dentry"))
            .parse()
            .expect("a table");
        let texts = "name\tlink\tobject_size\npid\t:A-0000128\t128\nrequest_sock\t:A-0000128\t120\ndentry\t-\t192\nlost\t:64\t64\n";
        let text = |path: &Path| Ok(path.ends_with("slab-attributes.tsv").then_some(texts));
        let tables = Tables::of(Path::new(""), text).expect("tables");
        let found = aliases(&tables.kernel.attributes, &table);
        assert_eq!((found.get("request_sock").map(String::as_str), found.get("lost")), (Some("pid"), None));
    }
}
