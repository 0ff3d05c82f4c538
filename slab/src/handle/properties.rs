//! Random operations on everything that hands out handles, against shadows and against the `slotmap` crate.

use super::{HandleTable, SlotMap};
use crate::shadow::handles::{self, Setup, Step};
use proptest::prelude::*;

fn step() -> impl Strategy<Value = Step> {
    let cpu = 0..2_u8;
    prop_oneof![
        10 => cpu.clone().prop_map(|cpu| Step::Alloc { cpu }),
        8 => (cpu.clone(), any::<u16>()).prop_map(|(cpu, pick)| Step::Free { cpu, pick }),
        2 => any::<u16>().prop_map(|pick| Step::Stale { pick }),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(index, generation)| Step::Forged { index, generation }),
        3 => any::<u16>().prop_map(|pick| Step::Hold { pick }),
        3 => (cpu, any::<u16>()).prop_map(|(cpu, pick)| Step::LetGo { cpu, pick }),
        1 => (0..4_u8).prop_map(|divisor| Step::Retain { divisor }),
        1 => Just(Step::Shrink),
        1 => Just(Step::Panic),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    any::<[bool; 3]>().prop_map(|[few, wrap, worn]| Setup { few, wrap, worn })
}

proptest! {
    #[test]
    fn handles_against_a_shadow(setup in setup(), steps in prop::collection::vec(step(), 1..80)) {
        handles::run_with(setup, &steps);
    }

    /// Whatever a key of theirs says, a handle of ours says; and iteration shows the same, in the same order where both are
    /// dense.
    #[test]
    fn slot_maps_and_tables_say_what_the_slotmap_crate_says(
        steps in prop::collection::vec((any::<bool>(), any::<u16>(), any::<u32>()), 1..200)
    ) {
        let (mut map, mut table) = (SlotMap::<u32>::new(), HandleTable::<u32>::new());
        let mut dense = slotmap::DenseSlotMap::new();
        let mut sparse = slotmap::SlotMap::new();
        let mut names = vec![];
        for (alloc, pick, value) in steps {
            if alloc || names.is_empty() {
                let ours = (map.alloc(value).unwrap(), table.alloc(value).unwrap());
                names.push((ours, dense.insert(value), sparse.insert(value)));
            } else {
                // Also what was freed before.
                let ((a, b), c, d) = names[usize::from(pick) % names.len()];
                let freed = dense.remove(c);
                prop_assert_eq!((map.free(a), table.free(b), sparse.remove(d)), (freed, freed, freed));
            }
            for ((a, b), c, d) in &names {
                let found = dense.get(*c);
                prop_assert_eq!((map.get(*a), table.get(*b), sparse.get(*d)), (found, found, found));
                let valid = dense.contains_key(*c);
                prop_assert_eq!((map.is_valid(*a), table.is_valid(*b)), (valid, valid));
            }
            prop_assert_eq!(map.as_slice(), &*dense.values().copied().collect::<Vec<_>>());
            prop_assert_eq!((map.len(), table.len()), (dense.len(), sparse.len()));
        }
    }
}

#[test]
fn the_fuzzers_corpus_of_handles_agrees_with_the_shadow() {
    crate::properties::corpus("handles", handles::fuzz);
}
