//! The one lock order of these crates.

uslab_sync::ranks! {
    /// The place of a lock in the lock order, outermost first: whoever holds one asks only for later ones.
    ///
    /// ARCHITECTURE.md, "Locks", says for each what it protects and what is taken under it.
    pub enum Rank {
        /// The list of caches that others may share.
        Mergeable,
        /// The list of shrinkers.
        Shrinkers,
        /// The list of caches.
        Caches,
        /// Who waits for an object of a cache.
        Waiters,
        /// The samples of a heap profile, and whether one runs.
        Profile,
        /// The list of tables.
        Tables,
        /// What serialises the drains of a table.
        Drains,
        /// The magazines of a CPU, where a lock protects them.
        Cpu,
        /// The magazines of a depot.
        Depot,
        /// The numbers of a table's classes, and what of it is committed.
        Making,
        /// The slabs of a cache on one node.
        Node,
        /// Who is inside of a cache that may go.
        CacheRefs,
        /// The free lists of a zone.
        Zone,
        /// The table of memory above the largest block.
        Huge,
        /// The tags of checked frees.
        Tags,
        /// A CPU's batch of objects that wait for readers.
        Deferred,
        /// The numbers of handles that nobody uses.
        Numbers,
        /// The objects of a mempool that are kept back.
        Reserve,
        /// The thread that runs on a CPU, in models.
        Token,
        /// Which calls are to be refused, in tests.
        Faults,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::Rank;

    /// The table of ARCHITECTURE.md is the one statement of the order: it has each rank, in its place.
    #[test]
    fn the_published_lock_order_is_the_asserted_one() {
        let text = include_str!("../../ARCHITECTURE.md");
        let section = text.split("\n## ").find(|section| section.starts_with("Locks")).unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let order: Vec<String> = Rank::ALL.iter().map(|rank| format!("{rank:?}")).collect();
        assert_eq!(rows.collect::<Vec<_>>(), order);
    }

    /// `Mutex::new` makes a lock of no place in the order: it is for users, tests and models.
    #[test]
    #[cfg_attr(miri, ignore = "reads all sources: minutes, of nothing that is unsafe")]
    fn no_lock_of_the_crates_is_without_a_rank() {
        let mut folders: Vec<_> =
            ["magazine", "buddy", "slab"].map(|krate| format!("../{krate}/src").into()).into();
        let (mut found, mut files): (Vec<String>, _) = (vec![], 0);
        while let Some(folder) = folders.pop() {
            let _: &std::path::PathBuf = &folder;
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                let name = path.file_stem().unwrap().to_str().unwrap();
                let checks = ["in_step", "models", "properties", "scenarios", "tests"];
                if checks.contains(&name) || name.ends_with("_tests") || name.ends_with("_stepper") {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                files += 1;
                let text = std::fs::read_to_string(&path).unwrap();
                let shipped = text.split("\nmod tests {").next().unwrap();
                let unranked =
                    |line: &&str| line.contains("Mutex::new(") && !line.contains("ForkMutex::new(");
                found.extend(
                    shipped.lines().filter(unranked).map(|line| format!("{}: {line}", path.display())),
                );
            }
        }
        assert!(files > 50 && found.is_empty(), "{files} files: {found:#?}");
    }
}
