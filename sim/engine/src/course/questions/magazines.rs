//! The lab on the reason why a CPU keeps two magazines.

use super::ask::{PreparedQuestion, QuestionLab, Random, number_question};
use crate::Path;

pub(super) const LAB: QuestionLab = QuestionLab {
    name: "two-magazines",
    title: "Why two magazines",
    minutes: 20,
    about: "A CPU that frees two objects and allocates two, again and again, should not need a lock for these operations. The need for a lock depends on how the CPU keeps its free objects: in one array, or in two magazines.",
    shows: "One array of M objects that is nearly full is flushed and refilled in every round, for any M. With two magazines, a CPU has a full and an empty magazine after each exchange, so at least M operations pass before the next exchange.",
    pitfall: "To make M larger: each flush then costs more, and the array is still nearly full in every round.",
    ask,
};

fn ask(random: &mut Random) -> Vec<PreparedQuestion> {
    let m = random.of(4, 12);
    let rounds = random.of(10, 24);
    let script = |before: &str| {
        format!(
            "cpus 1\ncache fs_cache 64\n{before}# The loop begins\n{}",
            "0 free 2\n0 alloc 2\n".repeat(rounds as usize)
        )
    };
    // The CPU's array is one object short of full. The loaded and the previous magazine are full.
    let array = script(&format!("0 alloc {}\n", m + 1));
    let magazines = script(&format!("0 alloc {}\n0 free {}\n", 3 * m, 2 * m));
    let burst = 2 * m + m / 2;
    let steady = format!("0 alloc {}\n0 free {}\n", 6 * m, 2 * m);
    let bursts = format!(
        "cpus 1\ncache fs_cache 64\n{steady}# The loop begins\n{}",
        format!("0 free {burst}\n0 alloc {burst}\n").repeat(rounds as usize)
    );
    vec![
        PreparedQuestion::run(
            format!(
                "CPU 0 has one array with room for {m} free objects, and {} in it. It moves {m} objects from or to the slabs, under their lock, when it allocates and the array is empty, and when it frees and the array is full. Now it frees \
                 two objects and allocates two, {rounds} times: how many of these {} operations take the lock?",
                m - 1,
                4 * rounds
            ),
            number_question("operations"),
            format!("slab:limit={m}:batchcount={m}:shared=0"),
            array,
            move |result| {
                let slab_operations = result.operations_at_or_above_level(Path::Slab);
                let explanation = format!(
                    "Each round reaches both limits of the array. The second free finds the array full and flushes {m} objects; the second allocation finds the array empty and fetches {m} objects. The lock is taken {} times in {rounds} rounds, for any size of the array.",
                    slab_operations.len()
                );
                result.count(&slab_operations, explanation)
            },
        ),
        PreparedQuestion::run(
            format!(
                "Now CPU 0 has two magazines of {m} objects, loaded and previous, both full. The CPU exchanges a full magazine for an empty one at the depot, under the depot's lock. The same loop runs {rounds} times: how many operations visit the depot?"
            ),
            number_question("operations"),
            format!("magazines01:magsize={m}"),
            magazines,
            move |result| {
                let visits = result.operations_at_or_above_level(Path::Depot);
                let explanation = format!(
                    "The first free finds both magazines full, and exchanges one at the depot. Then the CPU has a full and an empty magazine, which serve the rest of the loop. Visits to the depot: {}.",
                    visits.len()
                );
                result.count(&visits, explanation)
            },
        ),
        PreparedQuestion::run(
            format!(
                "Now the loop needs more than two magazines: {burst} frees and {burst} allocations, {rounds} times. CPU 0's two magazines have {m} objects each, and are full at first. How many of the {} operations visit the depot?",
                2 * burst * rounds
            ),
            number_question("operations"),
            format!("magazines01:magsize={m}"),
            bursts,
            move |result| {
                let visits = result.operations_at_or_above_level(Path::Depot);
                let explanation = format!(
                    "Two magazines hold {} objects, and each half of the loop frees or allocates {burst} objects. The first half finds both magazines full, and exchanges {} magazines. Each of the {} later halves exchanges one magazine. In total: {} visits. At least {m} operations are between two visits, for any length of the loop.",
                    2 * m,
                    (visits.len() as u64 + 1).saturating_sub(2 * rounds),
                    2 * rounds - 1,
                    visits.len(),
                );
                result.count(&visits, explanation)
            },
        ),
    ]
}
