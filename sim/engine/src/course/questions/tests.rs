//! Compares the engine's answers with answers that were worked out by hand from the text of each question.

use crate::course::{Expects, Sheet, SheetError, Work, answer, labs};
use std::collections::BTreeMap;

const SEEDS: std::ops::Range<u32> = 0..12;

/// Returns the right answers of a lab.
fn right_lab_answers(seed: u32, name: &str) -> Vec<u64> {
    (0..).map_while(|n| answer(seed, name, n)).map(|answer| answer.right).collect()
}
/// Returns the right answers of all labs.
fn right_answers(seed: u32) -> BTreeMap<String, Vec<u64>> {
    let question_labs = labs(seed).into_iter().filter(|lab| matches!(lab.work, Work::Questions(_)));
    question_labs.map(|lab| (lab.name.to_owned(), right_lab_answers(seed, lab.name))).collect()
}
/// Returns the numbers in a question's text, in order.
fn numbers(seed: u32, name: &str, question: usize) -> Vec<u64> {
    let lab = labs(seed).into_iter().find(|lab| lab.name == name).unwrap();
    let Work::Questions(questions) = lab.work else { panic!("{name} asks") };
    let text = questions[question].text.replace(',', "");
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn two_magazines_absorb_alternating_operations() {
    for seed in SEEDS {
        let [_, m, .., rounds, operations] = numbers(seed, "two-magazines", 0)[..] else { panic!() };
        assert_eq!(
            (operations, right_lab_answers(seed, "two-magazines")[0]),
            (4 * rounds, 2 * rounds),
            "seed {seed}, M = {m}"
        );
        assert_eq!(right_lab_answers(seed, "two-magazines")[1], 1);
        // Each round has at most two depot accesses, and up to two more accesses occur until both sides are
        // in a steady state.
        let visits = right_lab_answers(seed, "two-magazines")[2];
        assert!((2 * rounds..=2 * rounds + 2).contains(&visits), "seed {seed}: {visits} in {rounds} rounds");
    }
}

#[test]
fn magazines_beyond_the_depot_limit_are_flushed() {
    for seed in SEEDS {
        let [_, burst, _, 8, 256, depot_room, operations] = numbers(seed, "depot", 0)[..] else {
            panic!("{:?}", numbers(seed, "depot", 0))
        };
        assert_eq!(operations, 2 * burst);
        // Each magazine beyond the depot's limit is flushed in one operation and refilled in another.
        assert_eq!(
            right_lab_answers(seed, "depot"),
            [2 * (burst / 8 - depot_room), burst / 8, burst * 256],
            "seed {seed}"
        );
    }
}

#[test]
fn remote_frees_cost_less_with_magazines_than_with_slub() {
    for seed in SEEDS {
        let [_, n, ..] = numbers(seed, "remote-frees", 0)[..] else { panic!() };
        assert_eq!(right_lab_answers(seed, "remote-frees")[..2], [n, n / 8 - 2], "seed {seed}");
        // All objects of the slabs are in use or on CPU 1, except the rest of the last slab.
        let expected_slabs = if n.is_multiple_of(16) { 3 } else { 2 };
        assert_eq!(right_lab_answers(seed, "remote-frees")[2], expected_slabs, "seed {seed}, {n} objects");
    }
}

#[test]
fn per_cpu_page_batches_have_63_pages() {
    for seed in SEEDS {
        let [_, n] = numbers(seed, "pages", 1)[..] else { panic!() };
        assert_eq!(right_lab_answers(seed, "pages"), [63, n.div_ceil(63), 1], "seed {seed}");
    }
}

#[test]
fn slab_colours_use_the_leftover_cache_lines() {
    for seed in SEEDS {
        let [page, objects, size, 0, line] = numbers(seed, "colour", 0)[..] else { panic!() };
        let [slabs, ..] = numbers(seed, "colour", 1)[..] else { panic!() };
        let colours = (page - objects * size) / line + 1;
        assert_eq!(right_lab_answers(seed, "colour"), [colours, 1, colours.min(slabs)], "seed {seed}");
    }
}

#[test]
fn course_counterexample_fails_when_the_new_magazine_is_loaded() {
    assert_eq!(right_lab_answers(3, "race"), [10, 7, 2]);
}

#[test]
fn students_with_adjacent_seeds_get_different_numbers() {
    assert_ne!(right_answers(1), right_answers(2));
    for lab in labs(5) {
        let Work::Questions(questions) = &lab.work else { continue };
        for (index, question) in questions.iter().enumerate() {
            let answer = answer(5, lab.name, index).unwrap();
            if let Expects::Choice(choices) = &question.expects {
                assert!((answer.right as usize) < choices.len(), "{}", question.text);
            }
            assert!(answer.why.ends_with('.') && question.text.ends_with(['?', '.']), "{}", question.text);
        }
        assert_eq!(answer(5, lab.name, questions.len()), None);
    }
    assert_eq!(answer(5, "depth", 0), None);
}

#[test]
fn answer_sheet_is_graded_by_the_engine() {
    let mut sheet = Sheet { course: 1, name: "Ada".to_owned(), seed: 11, answers: BTreeMap::new() };
    let empty_sheet_marks = sheet.grade();
    assert_eq!((empty_sheet_marks.right, empty_sheet_marks.of), (0, 18));
    sheet.answers = right_answers(11)
        .into_iter()
        .map(|(lab, right_answers)| (lab, right_answers.into_iter().map(Some).collect()))
        .collect();
    assert_eq!(sheet.grade().right, 18);
    sheet.answers.get_mut("depot").unwrap()[1] = Some(0);
    sheet.answers.get_mut("race").unwrap().pop();
    let graded = sheet.grade();
    let wrong_marks: Vec<_> = graded.marks.iter().filter(|mark| !mark.is_right()).collect();
    assert_eq!((graded.right, wrong_marks.len()), (16, 2));
    assert_eq!((wrong_marks[0].lab, wrong_marks[0].question, wrong_marks[0].answered), ("depot", 2, Some(0)));
    assert_eq!((wrong_marks[1].lab, wrong_marks[1].answered), ("race", None));
    let text = serde_json::to_string(&sheet).unwrap();
    assert_eq!(Sheet::read(&text).unwrap(), sheet);
}

#[test]
fn invalid_answer_sheet_error_names_the_accepted_values() {
    let error_of = |text: &str| Sheet::read(text).unwrap_err();
    assert!(matches!(error_of("{"), SheetError::Json(_)));
    let sheet = |course, answers| format!(r#"{{"course":{course},"name":"","seed":1,"answers":{answers}}}"#);
    for (text, expected) in [
        (sheet(2, "{}"), "a sheet of version 2 of the course; expected 1"),
        (
            sheet(1, r#"{"depth":[]}"#),
            "unknown lab `depth`; expected one of the labs with questions: two-magazines, depot, remote-frees",
        ),
        (sheet(1, r#"{"depot":[1,2,3,4]}"#), "lab depot: 4 answers; expected at most 3"),
        (sheet(1, r#"{"depot":["many"]}"#), "not an answer sheet: invalid type"),
        (r#"{"course":1}"#.to_owned(), "missing field `name`"),
    ] {
        let error = error_of(&text).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
