//! Property tests of random operations on all handle containers, compared with shadow models.

use crate::shadow::handles::{self, Setup, Step};
use proptest::prelude::*;

fn steps() -> impl Strategy<Value = Step> {
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

fn setups() -> impl Strategy<Value = Setup> {
    any::<[bool; 3]>().prop_map(|[few_slots, wrap, near_last_generation]| Setup {
        few_slots,
        wrap,
        near_last_generation,
    })
}

proptest! {
    #[test]
    fn random_handle_operations_agree_with_the_reference_model(setup in setups(), steps in prop::collection::vec(steps(), 1..80)) {
        handles::run_with(setup, &steps);
    }
}

#[test]
fn handle_operations_of_the_fuzzing_corpus_agree_with_the_reference_model() {
    crate::properties::corpus("handles", handles::fuzz);
}
