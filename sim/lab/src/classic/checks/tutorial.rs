//! Compares the tutorial, README.md, with the code: the tutorial's commands print the shown output, and its code is
//! part of the sources.

use std::process::Command;
use uslab_magazine::sync::unset;

const PAGE: &str = include_str!("../../../README.md");
/// The common beginning of all commands that run tests under loom.
const LOOM_COMMAND: &str =
    "RUSTFLAGS=\"--cfg loom\" cargo test --profile loom --target-dir target/loom -p uslab-lab --lib -- ";
/// The common beginning of all commands that run tests of planted bugs.
const PLANTED: &str = "cargo planted loom uslab-lab ";

/// Returns the README's fenced code blocks in the language `language`.
fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    let fenced = PAGE.split("```").skip(1).step_by(2);
    let fence = format!("{language}\n");
    fenced.filter_map(move |block| block.strip_prefix(fence.as_str()))
}

/// Returns the output of a run, omitting times and the lines of libtest.
fn output_without_times(output: &str) -> String {
    let mut is_counterexample = false;
    let mut text = String::new();
    for line in output.lines() {
        let row = ["MODEL ", "STORY ", "CAUGHT "].iter().find_map(|word| line.find(word));
        is_counterexample = line.starts_with("STORY ") || is_counterexample && line.starts_with("  ");
        let line = match row {
            Some(at) => &line[at..],
            None if is_counterexample => line,
            None => continue,
        };
        let time = line.starts_with("MODEL ").then(|| line.rfind(" | ")).flatten();
        text.push_str(&line[..time.unwrap_or(line.len())]);
        text.push('\n');
    }
    text
}

#[cfg_attr(not(uslab_planted), ignore = "needs planted bugs: cargo planted")]
#[test]
fn tutorial_shows_the_output_of_every_command() {
    let mut shown_rows = 0;
    for block in blocks("console") {
        let (command, expected) = block.split_once('\n').unwrap();
        let command = command.strip_prefix("$ ").unwrap();
        let of_bug = || command.split_once(PLANTED).map(|(set, test)| (set, format!("{test} --nocapture")));
        let of_model = command.split_once(LOOM_COMMAND).map(|(set, test)| (set, test.to_owned()));
        let Some((variables, arguments)) = of_model.or_else(of_bug) else {
            assert_eq!(expected, "", "{command}: no test compares its output");
            continue;
        };
        if expected.is_empty() && arguments == "scenarios" {
            // The command that runs all models is skipped, because that command would run this test.
            continue;
        }
        let mut run = Command::new(std::env::current_exe().unwrap());
        unset(&mut run)
            .args(arguments.split(' '))
            .envs(variables.split_whitespace().map(|v| v.split_once('=').unwrap()));
        let output = run.output().unwrap();
        let printed = output_without_times(&String::from_utf8(output.stdout).unwrap());
        assert!(output.status.success(), "{command}: {printed}");
        assert!(printed == expected, "`{command}` prints\n{printed}\nand the tutorial shows\n{expected}");
        shown_rows += expected.lines().count();
    }
    assert!(shown_rows > 20, "{shown_rows}");
}

/// The command `uslab story` reads traces in the format of the stored file, and the command's tests read this file.
#[cfg_attr(not(uslab_planted), ignore = "needs planted bugs: cargo planted")]
#[test]
fn stored_counterexample_is_current() {
    let program = std::env::current_exe().unwrap();
    let json = program.with_extension("story.json");
    let mut run = Command::new(&program);
    unset(&mut run).args(["--exact", "classic::checks::scenarios::a_free_makes_a_magazine::planted"]);
    let output = run.env("STORY", "1").env("STORY_JSON", &json).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let current = std::fs::read_to_string(json).unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/story.json");
    if std::env::var_os("WRITE").is_some() {
        // This test runs in the copy that contains the planted bugs.
        std::fs::write(file.replace("/target/planted/bugs/", "/"), &current).unwrap();
    }
    let stored = std::fs::read_to_string(file).unwrap();
    assert!(current == stored, "sim/data/story.json: this test with WRITE=1 writes it");
}

#[test]
fn tutorial_quotes_the_current_code() {
    let sources = [include_str!("../mod.rs"), include_str!("models.rs"), include_str!("planted.toml")];
    let is_in_sources = |block: &str| sources.iter().any(|source| source.contains(block));
    let quoted = || blocks("rust").chain(blocks("toml"));
    let (all, missing_blocks): (Vec<&str>, Vec<&str>) =
        (quoted().collect(), quoted().filter(|b| !is_in_sources(b)).collect());
    assert!(all.len() >= 5 && missing_blocks.is_empty(), "{missing_blocks:?}");
}
