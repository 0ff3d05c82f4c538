//! The lab on the size that a depot needs.

use super::ask::{PreparedQuestion, QuestionLab, Random, ScriptResult, number_question};
use crate::Path;
use crate::course::lab::Answer;

pub(super) const LAB: QuestionLab = QuestionLab {
    name: "depot",
    title: "Size a depot",
    minutes: 20,
    about: "CPU 0 allocates in bursts, and CPU 1 frees the objects. The depot carries the free objects back, as long as it has \
            room for them.",
    shows: "A depot has to hold the burst. A smaller depot sends magazines to slabs and back in every burst; a larger depot holds memory that is never used.",
    pitfall: "To count the burst in objects, although the depot counts in magazines; to subtract the objects on the freeing CPU's stack, which is still full from the previous burst.",
    ask,
};

/// The size in bytes of the objects in this lab.
const SIZE: u64 = 256;

fn ask(random: &mut Random) -> Vec<PreparedQuestion> {
    let m = 8;
    let burst = m * random.of(8, 20);
    let depot_room = random.of(2, 4);
    let text = format!(
        "cpus 2\ncache dentry {SIZE}\n{}# The burst\n0 alloc {burst}\n1 free {burst} oldest",
        format!("0 alloc {burst}\n1 free {burst} oldest\n").repeat(3)
    );
    let design = move |limit: u64| format!("uslab:capacity={m}:stock=0:depot_limit={limit}");
    let sizes = format!(
        "Magazines have {m} objects, a CPU's stack has room for two, and an object has {SIZE} bytes."
    );
    let smallest_limit = {
        let text = text.clone();
        move || {
            (0..=burst / m).find(|limit| {
                ScriptResult::of(&design(*limit), &text).operations_at_or_above_level(Path::Slab).is_empty()
            })
        }
    };
    let depot_bytes = {
        let (text, smallest_limit) = (text.clone(), smallest_limit.clone());
        move || {
            let limit = smallest_limit().unwrap_or(burst / m);
            let result = ScriptResult::of(&design(limit), &text);
            (limit, result.end.caches[0].counts.in_depot * SIZE)
        }
    };
    vec![
        PreparedQuestion::run(
            format!(
                "In each burst, CPU 0 allocates {burst} objects, and then CPU 1 frees them. {sizes} The depot has room for {depot_room} full \
                 magazines. How many of the fourth burst's {} allocations and frees reach the slabs?",
                2 * burst
            ),
            number_question("operations"),
            design(depot_room),
            text.clone(),
            move |result| {
                let slabs = result.operations_at_or_above_level(Path::Slab);
                let burst_ends = result.mark + burst;
                let refills = slabs.iter().filter(|operation| **operation <= burst_ends).count();
                let explanation = format!(
                    "The burst fills {} magazines, and the depot holds {depot_room} of them. CPU 1's stack is still full from the previous burst, so CPU 1 flushes the other magazines to slabs: {} operations, each with one magazine. CPU 0 refills from these slabs: {refills} operations.",
                    burst / m,
                    slabs.len() - refills
                );
                result.count(&slabs, explanation)
            },
        ),
        PreparedQuestion::plain(
            format!(
                "For how many full magazines must the depot have room, so that no operation of the fourth burst reaches the slabs? {sizes}"
            ),
            number_question("magazines"),
            {
                let smallest_limit = smallest_limit.clone();
                move || {
                    let answer = smallest_limit().unwrap_or(0);
                    let explanation = format!(
                        "The engine ran the burst with room for 0, 1, 2, … magazines, until no operation reached the slabs: the depot needs room for {answer}. The burst fills {} magazines. CPU 1's stack is still full from the previous burst, so it accepts none of them.",
                        burst / m
                    );
                    Answer::new(answer, explanation, 0)
                }
            },
        ),
        PreparedQuestion::plain(
            "How many bytes of free objects does a depot with room for that number of magazines contain after the fourth burst?",
            number_question("bytes"),
            move || {
                let (limit, answer) = depot_bytes();
                let explanation = format!(
                    "{answer} bytes are in the depot. The depot has room for {limit} magazines of {m} objects of {SIZE} bytes."
                );
                Answer::new(answer, explanation, 0)
            },
        ),
    ]
}
