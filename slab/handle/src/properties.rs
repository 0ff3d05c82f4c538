//! Random operations on slot maps and tables, compared with the `slotmap` crate.

use super::{HandleTable, SlotMap};
use proptest::prelude::*;

proptest! {
    /// Each handle must give the same results as the matching key of the `slotmap` crate. Iterations must yield equal
    /// values, in the same order if both maps are dense.
    #[test]
    fn slot_maps_and_tables_agree_with_the_slotmap_crate(
        steps in prop::collection::vec((any::<bool>(), any::<u16>(), any::<u32>()), 1..200)
    ) {
        let (mut map, mut table) = (SlotMap::<u32>::new(), HandleTable::<u32>::new());
        let mut dense_map = slotmap::DenseSlotMap::new();
        let mut sparse = slotmap::SlotMap::new();
        let mut names = vec![];
        for (alloc, pick, value) in steps {
            if alloc || names.is_empty() {
                let ours = (map.alloc(value).unwrap(), table.alloc(value).unwrap());
                names.push((ours, dense_map.insert(value), sparse.insert(value)));
            } else {
                // The names include freed values.
                let ((a, b), c, d) = names[usize::from(pick) % names.len()];
                let freed = dense_map.remove(c);
                prop_assert_eq!((map.free(a), table.free(b), sparse.remove(d)), (freed, freed, freed));
            }
            for ((a, b), c, d) in &names {
                let found = dense_map.get(*c);
                prop_assert_eq!((map.get(*a), table.get(*b), sparse.get(*d)), (found, found, found));
                let valid = dense_map.contains_key(*c);
                prop_assert_eq!((map.is_valid(*a), table.is_valid(*b)), (valid, valid));
            }
            prop_assert_eq!(map.as_slice(), &*dense_map.values().copied().collect::<Vec<_>>());
            prop_assert_eq!((map.len(), table.len()), (dense_map.len(), sparse.len()));
        }
    }
}
