//! The single lock order of the uslab crates.

uslab_sync::ranks! {
    /// The position of a lock in the lock order, outermost first. A thread that holds a lock may only wait
    /// for locks later in the order.
    ///
    /// The section "Locks" of ARCHITECTURE.md lists, for each lock, the protected data and the locks taken under it.
    pub enum Rank {
        /// The list of mergeable caches.
        Mergeable,
        /// The list of shrinkers.
        Shrinkers,
        /// The list of all caches.
        Caches,
        /// The threads that wait for an object of a cache.
        Waiters,
        /// The samples of a heap profile, and whether a profile is running.
        Profile,
        /// The list of tables.
        Tables,
        /// Serialises the drains of a table.
        Drains,
        /// The magazines of a CPU, for designs in which a lock protects them.
        Cpu,
        /// The magazines of a depot.
        Depot,
        /// The class numbers and committed parts of a table.
        NumbersAndRooms,
        /// The slabs of a cache on one node.
        Node,
        /// The threads that are inside a cache that may be destroyed.
        CacheRefs,
        /// The free lists of a zone.
        Zone,
        /// The table of allocations above the largest block size.
        Huge,
        /// The tags of checked frees.
        Tags,
        /// A CPU's batch of objects that wait for readers before their free.
        Deferred,
        /// The free numbers of a handle table.
        Numbers,
        /// The reserved objects of a mempool.
        Reserve,
        /// In models, the right to run on a CPU.
        Token,
        /// The faults that tests inject.
        Faults,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::Rank;

    /// The table in ARCHITECTURE.md is the only description of the lock order, and must list each rank in its position.
    #[test]
    fn documented_lock_order_equals_the_asserted_order() {
        let text = include_str!("../../ARCHITECTURE.md");
        let section = text.split("\n## ").find(|section| section.starts_with("Locks")).unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let order: Vec<String> = Rank::ALL.iter().map(|rank| format!("{rank:?}")).collect();
        assert_eq!(rows.collect::<Vec<_>>(), order);
    }

    /// `Mutex::new` creates a lock without a rank, for users, tests and models only.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes to read all sources, and runs no unsafe code")]
    fn each_lock_has_a_rank() {
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
                let unranked_locks =
                    |line: &&str| line.contains("Mutex::new(") && !line.contains("ForkMutex::new(");
                found.extend(
                    shipped.lines().filter(unranked_locks).map(|line| format!("{}: {line}", path.display())),
                );
            }
        }
        assert!(files > 50 && found.is_empty(), "{files} files: {found:#?}");
    }
}
