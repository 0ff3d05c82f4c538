//! The lab on the cost of a remote free, in which one CPU frees an object that another CPU allocated.

use super::ask::{PreparedQuestion, QuestionLab, Random, choice_question, number_question};
use crate::Path;
use crate::course::lab::Answer;

pub(super) const LAB: QuestionLab = QuestionLab {
    name: "remote-frees",
    title: "Remote frees",
    minutes: 20,
    about: "One CPU allocates and another one frees, as between a network card's interrupt and a program. Which shared memory does the free write to?",
    shows: "SLUB returns each such object to its slab, and changes a word of the slab that other CPUs write, too. A magazine layer keeps the object on the freeing CPU, which moves whole magazines to the depot: one visit for each magazine.",
    pitfall: "To think that an object returns to the CPU that allocated it. In both designs it does not.",
    ask,
};

fn ask(random: &mut Random) -> Vec<PreparedQuestion> {
    let m = 8;
    let n = m * random.of(5, 12);
    // Each CPU has run before, so its tables exist.
    let begin = "cpus 2\ncache dentry 256\n0 alloc\n0 free\n1 alloc\n1 free\n0 shrink\n";
    let script = format!("{begin}0 alloc {n}\n# Remote frees\n1 free {n} oldest");
    let script_with_reuse = format!("{begin}0 alloc {n}\n1 free {n} oldest\n# Once more\n0 alloc {}", n - 15);
    let magazines = format!("uslab:capacity={m}:stock=0");
    vec![
        PreparedQuestion::run(
            format!(
                "CPU 0 allocates {n} objects, CPU 1 frees them. In SLUB of Linux 6.1, how many of these {n} frees change data that CPUs share: a slab's own word, or the node's list?"
            ),
            number_question("frees"),
            "slub",
            script.clone(),
            move |result| {
                let shared = result.operations_at_or_above_level(Path::Slab);
                let explanation = format!(
                    "CPU 1's current slab contains none of these objects, so each free changes the slab of its object: {} of the {n} frees.",
                    shared.len()
                );
                result.count(&shared, explanation)
            },
        ),
        PreparedQuestion::run(
            format!(
                "Now magazines of {m} objects are in front of the slabs: a CPU's stack has room for two magazines, and the depot for ten. How many of the {n} frees take the depot's lock or another lock?"
            ),
            number_question("frees"),
            magazines.clone(),
            script,
            move |result| {
                let shared = result.operations_at_or_above_level(Path::Depot);
                let explanation = format!(
                    "CPU 1's stack has room for the first {} objects. After that, every {m} frees put one full magazine into the depot, under its lock: {} visits.",
                    2 * m,
                    shared.len()
                );
                result.count(&shared, explanation)
            },
        ),
        PreparedQuestion::run(
            format!("Then CPU 0 allocates {} more objects. Which level serves the last allocation?", n - 15),
            choice_question(&[
                "from a magazine of the depot",
                "from CPU 1's stack, which still has objects",
                "from a slab, which has a free object",
                "from a new slab",
            ]),
            magazines,
            script_with_reuse,
            |result| {
                let (operation, step) = result.last();
                let answer = match step.and_then(|step| step.path) {
                    Some(Path::Cpu | Path::Depot) => 0,
                    Some(Path::Slab) => 2,
                    _ => 3,
                };
                let explanation = step.map(|step| step.sentence.clone()).unwrap_or_default();
                let explanation = format!(
                    "CPU 0 cannot use the {} objects on CPU 1's stack. The engine describes the last allocation: {explanation}",
                    result.marked.caches[0].counts.in_magazines
                );
                Answer::new(answer, explanation, operation)
            },
        ),
    ]
}
