//! Finds when each step of a recording's script ran; between two marks, one step can take many operations.

use super::traced::TracedInput;
use crate::trace::{Op, OpKind, SiteId};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Finds when caches were shrunk. Returns the operation before each shrink, with the cache's folder in
/// `/sys/kernel/slab`, or `None` if all caches were shrunk.
///
/// Between two marks, a recording's script writes to the file `shrink` in each cache's folder, twice per
/// folder. Opening a file `shrink` first allocates in `kernfs_fop_open`, and ends with the free of the path. If
/// `kernfs_fop_open` has as many allocations as the script has files, the n-th allocation belongs to the n-th folder.
/// If these two numbers differ, all caches are assumed to be shrunk at the second mark.
///
/// The mark `SHRINK cache NAME` precedes a write to the file `shrink` of one cache.
pub(super) fn shrinks(
    TracedInput { resolver, ops, tables }: TracedInput<'_>,
) -> FxHashMap<usize, Option<String>> {
    let mut moments = tables.snapshots.iter().filter(|moment| ["before", "end"].contains(&moment.moment));
    let (mut found, mut opens) = (FxHashMap::default(), None::<BTreeMap<SiteId, Vec<usize>>>);
    let mut names = FxHashMap::default();
    for (at, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::Alloc { site, .. } => {
                let Some(opens) = &mut opens else { continue };
                let opened = names
                    .entry(site)
                    .or_insert_with(|| resolver.call_site(site).starts_with("kernfs_fop_open+"));
                if *opened {
                    opens.entry(site).or_default().push(at);
                }
            }
            OpKind::Mark { text } => match &*resolver.mark(text) {
                "SHRINK begin" => opens = Some(BTreeMap::new()),
                "SHRINK end" => {
                    let sites = opens.take().unwrap_or_default();
                    let folders = moments.next().map_or(&[][..], |moment| &moment.folders);
                    // Opening one file allocates at two call sites. The later site is used, because both objects then
                    // exist when the script writes.
                    let of_all = sites.into_values().filter(|opens| opens.len() == 2 * folders.len());
                    match of_all.max_by_key(|opens| opens.first().copied()).filter(|opens| !opens.is_empty())
                    {
                        Some(opens) => {
                            let ends = opens.into_iter().map(|open| next_free(ops, open));
                            found.extend(ends.zip(folders.iter().cycle().cloned().map(Some)));
                        }
                        None => _ = found.insert(at, None),
                    }
                }
                text => {
                    let folder = shrink_target(text).map(|cache| tables.kernel.attributes.folder(cache));
                    found.extend(folder.map(|folder| (at, Some(folder.to_owned()))));
                }
            },
            _ => {}
        }
    }
    found
}

/// Returns the cache that a mark names for the next shrink: `dentry` for `SHRINK cache dentry`.
pub(super) fn shrink_target(mark: &str) -> Option<&str> {
    mark.strip_prefix("SHRINK cache ").map(str::trim)
}

/// Returns the next free on the operation's CPU, or the operation itself if no free follows.
fn next_free(ops: &[Op], from: usize) -> usize {
    let mut after = ops[from..].iter().zip(from..);
    let found = after.find(|(op, _)| op.cpu == ops[from].cpu && matches!(op.kind, OpKind::Free { .. }));
    found.map_or(from, |(_, at)| at)
}

/// Finds when the recorder read slabinfo: for each mark `SNAP MOMENT begin`, returns the operation before the
/// reading. Between the mark and the reading, the script opens files. The reading of slabinfo begins when
/// `seq_read_iter` allocates a buffer. If no allocation of a `seq_read_iter` buffer precedes the next mark,
/// the mark itself is used.
pub(super) fn find_slabinfo_readings(
    TracedInput { resolver, ops, .. }: TracedInput<'_>,
) -> FxHashMap<usize, usize> {
    let mut found = FxHashMap::default();
    let (mut begun, mut names) = (None, FxHashMap::default());
    for (at, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::Mark { text } => {
                let text = resolver.mark(text);
                begun = (text.starts_with("SNAP ") && text.ends_with(" begin")).then_some(at);
            }
            OpKind::Alloc { site, .. } if begun.is_some() => {
                let reads = names
                    .entry(site)
                    .or_insert_with(|| resolver.call_site(site).starts_with("seq_read_iter+"));
                if *reads {
                    found.extend(begun.take().map(|mark| (mark, at)));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::testing::{SLABINFO, Trace};

    #[test]
    fn opening_the_shrink_file_shrinks_the_cache() {
        let open = ["0 alloc kernfs_fop_open+0x1 node ffff888001000000", "0 free node ffff888001000000"];
        let lines = |opens: usize| {
            let mut lines = vec!["0 mark SHRINK begin"];
            (0..opens).for_each(|_| lines.extend(open));
            lines.push("0 mark SHRINK end");
            lines
        };
        let of = |opens, folders| {
            let trace = Trace::new(
                &lines(opens),
                &[("before.slabinfo", SLABINFO), ("before.sysfs-slab.tsv", folders)],
            );
            let mut found: Vec<_> = shrinks(trace.traced()).into_iter().collect();
            found.sort_unstable();
            found
        };
        let name = |name: &str| Some(name.to_owned());
        // The script shrinks two folders twice: each shrink is at the free that ends the opening.
        let both = "name\tslabs\nnode\t1\n:A-0000512\t0\n";
        let expected =
            [(2, name("node")), (4, name(":A-0000512")), (6, name("node")), (8, name(":A-0000512"))];
        assert_eq!(of(4, both), expected);
        // The number of files is unexpected, so all caches are shrunk at the second mark.
        assert_eq!(of(3, both), [(7, None)]);
        assert_eq!(of(0, "name\tslabs\n"), [(1, None)]);
    }

    #[test]
    fn shrink_mark_of_one_cache_shrinks_only_that_cache() {
        let marks = ["0 mark SHRINK cache node", "0 mark SHRINK cache other"];
        let attributes = [("slab-attributes.tsv", "name\tlink\nnode\t-\nother\t:A-0000512\n")];
        let mut found: Vec<_> = shrinks(Trace::new(&marks, &attributes).traced()).into_iter().collect();
        found.sort_unstable();
        assert_eq!(found, [(0, Some("node".to_owned())), (1, Some(":A-0000512".to_owned()))]);
    }

    #[test]
    fn read_time_of_a_kernel_table_is_the_allocation_of_its_buffer() {
        let of = |lines: &[&str]| {
            find_slabinfo_readings(Trace::new(lines, &[]).traced()).into_iter().collect::<Vec<_>>()
        };
        let (begin, done) = ("0 mark SNAP before begin", "0 mark SNAP before slabinfo done");
        let other = "0 alloc seq_open+0x1 node ffff888001000000";
        let buffer = "0 alloc seq_read_iter+0x1 node ffff888001001000";
        assert_eq!(of(&[buffer, begin, other, buffer, buffer, done, buffer]), [(1, 4)]);
        assert_eq!(of(&[begin, other, done, buffer]), [], "the slab was open before the mark");
    }
}
