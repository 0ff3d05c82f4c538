//! The lock order of all uslab crates.

uslab_sync::ranks! {
    /// The rank of a lock in the lock order, outermost lock first. A thread that holds a lock may wait only for locks
    /// of later ranks.
    ///
    /// The section "Locks" of ARCHITECTURE.md lists, for each lock, the protected data and the locks taken under it.
    pub enum Rank {
        /// Protects the list of mergeable caches.
        Mergeable,
        /// Protects the list of shrinkers.
        Shrinkers,
        /// Protects the list of all caches.
        Caches,
        /// Protects the queue of threads that wait for an object of a cache.
        Waiters,
        /// Protects the samples of a heap profile, and the flag that a profile is running.
        Profile,
        /// Protects an allocator's list of tables.
        Tables,
        /// Serialises all drains of a table.
        Drains,
        /// Protects the magazines of a CPU, in designs that use such a lock.
        Cpu,
        /// Protects the magazines of a depot.
        Depot,
        /// Protects the class numbers and the committed parts of a table.
        NumbersAndRooms,
        /// Protects the slab lists of a cache on one node.
        Node,
        /// Protects the record of threads that are using a cache, so that the cache is not destroyed.
        CacheRefs,
        /// Protects the free lists of a zone.
        Zone,
        /// Protects the table of allocations above the largest block size.
        Huge,
        /// Protects the tags of checked frees.
        Tags,
        /// Protects a CPU's batch of deferred frees, which wait for readers.
        Deferred,
        /// Protects the free numbers of a handle table.
        Numbers,
        /// Protects the reserved objects of a mempool.
        Reserve,
        /// In models, represents the right to run on a CPU.
        Token,
        /// Protects the rules of fault injection.
        Faults,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::Rank;

    /// The table in ARCHITECTURE.md must list all ranks, in the order in which they are declared.
    #[test]
    fn documented_lock_order_equals_the_asserted_order() {
        let text = include_str!("../../ARCHITECTURE.md");
        let section = text.split("\n## ").find(|section| section.starts_with("Locks")).unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let order: Vec<String> = Rank::ALL.iter().map(|rank| format!("{rank:?}")).collect();
        assert_eq!(rows.collect::<Vec<_>>(), order);
    }

    /// Only users, tests and models may create a lock without a rank (`Mutex::new`).
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
