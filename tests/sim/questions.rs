//! Runs each command in the book's chapter "Questions", and compares its output with the output in the chapter.

use crate::cli::exit_and_output;
use std::process::Command;
use uslab_tests::workspace;

const PAGE: &str = include_str!("../../slab/book/src/questions.md");

/// Splits a command line without quotes into words.
fn words(command: &str) -> Vec<&str> {
    let command = command.split("  #").next().unwrap_or_default();
    command.split_whitespace().collect()
}

/// Returns the commands of the chapter, each with the output that the chapter shows.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let mut fences = PAGE.split("```");
    fences.next();
    let (mut blocks, mut command) = (vec![], None);
    // Every second part is a block.
    for block in fences.step_by(2) {
        let (kind, text) = block.split_once('\n').unwrap_or((block, ""));
        match kind {
            "console" => command = text.lines().find_map(|line| line.strip_prefix("$ cargo uslab ")),
            "text" => blocks.push((command.take().expect("each text must follow a command"), text)),
            _ => panic!("unexpected block of {kind:?}"),
        }
    }
    blocks
}

#[test]
fn questions_chapter_shows_the_output_of_each_command() {
    let blocks = blocks();
    assert!(blocks.len() >= 12, "{} answers", blocks.len());
    for (command, shown) in blocks {
        let mut uslab = Command::new(uslab_tests::uslab());
        let output =
            uslab.args(words(command)).current_dir(workspace()).output().expect("the program must start");
        let (code, out, err) = exit_and_output(&output);
        assert_eq!(code, Some(0), "{command}: {err}");
        let mut printed = out.lines().map(str::trim_end);
        for line in shown.lines().map(str::trim_end).filter(|line| !line.is_empty() && *line != "...") {
            assert!(
                printed.any(|printed| printed == line),
                "{command}: {line:?} is not in this place of\n{out}"
            );
        }
    }
}

/// The chapter must be short enough for a reader to find an answer in five minutes.
#[test]
fn questions_chapter_stays_below_its_length_limit() {
    let words = PAGE.split_whitespace().count();
    assert!(words <= 1_800, "{words} words");
}
