//! Makes mutants of restartable sequences, whose code is assembly. A build has at most one of these mutants, because it
//! cannot be selected at run time; the number of mutants is therefore small.
//!
//! | rule | its mutants |
//! |---|---|
//! | `store` | a store is left out |
//! | `late` | a store happens after the next one |
//! | `jump` | a jump has another condition |
//! | `head` | the new head is not computed: a length or a count stays as it was |
//! | `bound` | the descriptor has another start, end or abort address |
//!
//! The tests in [`KILLING_TESTS`] must detect the mutants of restartable sequences.

use crate::build::Tree;
use crate::programs::{Program, TestRunEnd, programs};
use crate::report::Verdict;
use anyhow::{Context, bail, ensure};
use std::fs;
use std::time::Duration;
use uslab_tests::jobs::errors;
use uslab_tests::mutate::Mutant;
use uslab_tests::workspace;

/// The names of all mutation rules; the module documentation describes the rules.
pub(crate) const RULES: [&str; 5] = ["store", "late", "jump", "head", "bound"];

/// For each processor architecture, the file that contains the assembly of the sections.
const SECTIONS: [(&str, &str); 2] =
    [("x86_64", "magazine/src/cpu/rseq/x86_64.rs"), ("aarch64", "magazine/src/cpu/rseq/aarch64.rs")];
/// The file that contains the descriptors of the sections.
const DESCRIPTOR_FILE: &str = "magazine/src/cpu/rseq.rs";

/// The tests that must detect the mutants: the machine code check, the comparison with the portable bodies, and the
/// interruption at each instruction.
const KILLING_TESTS: [&str; 3] = [
    "cpu::rseq::tests::restartable_sections_do_not_modify",
    "cpu::rseq::tests::restartable_sections_agree",
    "cpu::rseq::tests::stepper::",
];

/// The largest number of assembly mutants, because each build is slow.
const MAX_MUTANTS: usize = 32;

/// Returns all files that this module can mutate.
pub(crate) fn files() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().map(|(_, file)| *file).chain([DESCRIPTOR_FILE])
}

/// A mutant of an assembly file, with the mutated text of the file.
pub(crate) struct MutatedFile {
    pub(crate) mutant: Mutant,
    text: String,
}

/// An instruction of a section: one line of the source.
struct Instruction<'t> {
    /// The index of the line; the first line has index 0.
    line: usize,
    function: &'t str,
    /// The text of the instruction, without the quotes.
    template: &'t str,
    /// The label of the instruction, such as `8: `, if it has one.
    label: &'t str,
    text: &'t str,
}

impl Instruction<'_> {
    fn name(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }
    fn stores(&self) -> bool {
        let operands = self.text.split_once(' ').map_or("", |(_, operands)| operands);
        match self.name() {
            "mov" => ["qword ptr ", "dword ptr "].iter().any(|start| operands.starts_with(start)),
            name => ["str", "stur", "stlr"].contains(&name),
        }
    }
    /// If the instruction is a conditional jump, returns the jump with the opposite condition.
    fn inverted_jump(&self) -> Option<String> {
        const OTHER_INSTRUCTIONS: [(&str, &str); 13] = [
            ("jae", "ja"),
            ("ja", "jae"),
            ("jbe", "jb"),
            ("jb", "jbe"),
            ("jz", "jnz"),
            ("je", "jne"),
            ("cmovb", "cmovae"),
            ("cmova", "cmovbe"),
            ("b.ls", "b.lo"),
            ("b.lo", "b.ls"),
            ("b.hi", "b.hs"),
            ("b.eq", "b.ne"),
            ("cbz", "cbnz"),
        ];
        let name = self.name();
        if name == "csel" {
            let (operands, condition) = self.text.rsplit_once(' ')?;
            return Some(format!("{operands} {}", if condition == "lo" { "hs" } else { "ls" }));
        }
        let (_, other) = OTHER_INSTRUCTIONS.iter().find(|(of, _)| *of == name)?;
        Some(self.text.replacen(name, other, 1))
    }
    /// Returns `true` if the instruction computes the new head of the stack from the old head.
    fn computes_new_head(&self) -> bool {
        ["add {w}", "sub {w}"].iter().any(|start| self.text.starts_with(start))
    }
}

/// Returns the instructions of all sections in a source file.
fn instructions(text: &str) -> Vec<Instruction<'_>> {
    let (mut found, mut function, mut inside) = (vec![], "", false);
    for (line, source) in text.lines().enumerate() {
        let of = source.trim();
        if let Some((_, name)) = of.split_once("fn ").filter(|_| of.ends_with('{')) {
            function = name.split('(').next().unwrap_or_default();
        } else if of.starts_with("macro_rules! section") {
            function = "section";
        }
        // The common part begins at the label where a section starts and restarts.
        inside |= of.starts_with("section!([") || of.starts_with("\"5: ");
        inside &= !of.starts_with("] [") && !of.starts_with("$($body)*");
        // After the commit the section has ended.
        inside &= !of.starts_with("\"3:");
        let template = of.strip_prefix('"').and_then(|rest| Some(rest.split_once('"')?.0));
        let Some(template) = template.filter(|_| inside) else { continue };
        let label = template.find(": ").map_or(0, |at| at + 2);
        let (label, text) = template.split_at(label);
        found.push(Instruction { line, function, template, label, text });
    }
    found
}

/// Returns all mutants of a file with sections, numbered from 0.
fn section_mutants(file: &str, text: &str) -> Vec<MutatedFile> {
    let all = instructions(text);
    // The omitted instruction becomes a comment that still names the operands, because the assembler requires each to
    // be used.
    let comment = if file.ends_with("x86_64.rs") { "#" } else { "//" };
    let mut made = vec![];
    // Each named line gets another template.
    let mut add = |of: &Instruction<'_>, rule: &str, change: String, lines: &[(&Instruction<'_>, String)]| {
        let replaced = text.lines().enumerate().map(|(line, source)| {
            let instead = lines.iter().find(|(of, _)| of.line == line);
            let quoted = |text: &str| format!("\"{text}\"");
            instead.map_or(source.to_owned(), |(of, text)| {
                source.replacen(&quoted(of.template), &quoted(text), 1)
            }) + "\n"
        });
        let mutant = mutant(made.len(), file, of.line, of.function, rule, change);
        made.push(MutatedFile { mutant, text: replaced.collect() });
    };
    for (i, of) in all.iter().enumerate() {
        let without = || (of, format!("{}{comment} {}", of.label, of.text));
        if of.stores() {
            add(of, "store", format!("{} -> nothing", of.text), &[without()]);
        }
        let rest = all[i + 1..].iter().take_while(|next| {
            next.function == of.function && next.label.is_empty() && next.inverted_jump().is_none()
        });
        if let Some(next) = rest.into_iter().find(|next| of.stores() && next.stores()) {
            let both = format!("{}\", \"{}", next.template, of.text);
            add(of, "late", format!("{} behind {}", of.text, next.text), &[without(), (next, both)]);
        }
        if let Some(other) = of.inverted_jump() {
            add(of, "jump", format!("{} -> {other}", of.text), &[(of, format!("{}{other}", of.label))]);
        }
        if of.computes_new_head() {
            add(of, "head", format!("{} -> nothing", of.text), &[without()]);
        }
    }
    made
}

/// Returns all mutants of the file with the descriptor, numbered from `first`.
fn descriptor_mutants(file: &str, text: &str, first: usize) -> anyhow::Result<Vec<MutatedFile>> {
    const SECTION_BOUNDS_LINE: &str = ".quad 2f, 3f - 2f, 4f";
    let line = text.lines().position(|line| line.contains(SECTION_BOUNDS_LINE));
    let line = line.with_context(|| format!("{file}: the descriptor `{SECTION_BOUNDS_LINE}` is missing"))?;
    let others =
        ["2f + 12, 3f - 2f - 12, 4f", "2f, 3f - 2f - 4, 4f", "2f, 3f - 2f + 1, 4f", "2f, 3f - 2f, 5f"];
    let changed = others.iter().enumerate().map(|(i, other)| {
        let other = format!(".quad {other}");
        let mutant =
            mutant(first + i, file, line, "descriptor", "bound", format!("{SECTION_BOUNDS_LINE} -> {other}"));
        MutatedFile { mutant, text: text.replacen(SECTION_BOUNDS_LINE, &other, 1) }
    });
    Ok(changed.collect())
}

fn mutant(number: usize, file: &str, line: usize, function: &str, rule: &str, change: String) -> Mutant {
    Mutant {
        number: number as u32,
        file: file.to_owned(),
        line: line + 1,
        column: 1,
        function: function.to_owned(),
        rule: rule.to_owned(),
        change,
    }
}

/// Returns the mutants for the processor architecture that this program runs on.
pub(crate) fn assembly_mutants() -> anyhow::Result<Vec<MutatedFile>> {
    mutants_for_processor(std::env::consts::ARCH)
}

fn mutants_for_processor(processor: &str) -> anyhow::Result<Vec<MutatedFile>> {
    let sections = SECTIONS.iter().find(|(name, _)| *name == processor);
    let (_, file) = sections
        .with_context(|| format!("unsupported processor {processor}: it has no restartable sequences"))?;
    let read = |file: &str| fs::read_to_string(workspace().join(file)).with_context(|| file.to_owned());
    let mut made = section_mutants(file, &read(file)?);
    made.extend(descriptor_mutants(DESCRIPTOR_FILE, &read(DESCRIPTOR_FILE)?, made.len())?);
    ensure!(
        made.len() <= MAX_MUTANTS,
        "{} mutants of sections, each a build: expected at most {MAX_MUTANTS}",
        made.len()
    );
    Ok(made)
}

/// Builds the tests of the sections; a mutant that does not compile is an error, because no test can judge it.
fn build(tree: &Tree, change: Option<&MutatedFile>) -> anyhow::Result<Program> {
    tree.write(change.map(|of| (of.mutant.file.as_str(), of.text.as_str())))?;
    let output =
        tree.cargo(&["test", "--no-run", "--profile", "dev"], &["-p", "uslab-magazine", "--lib"], "")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors: Vec<_> =
            errors(&said).filter_map(|of| Some(of["rendered"].as_str()?.to_owned())).collect();
        let of = change.map_or("no mutant".to_owned(), |of| of.mutant.to_string());
        let cargo = String::from_utf8_lossy(&output.stderr);
        bail!("{of}: does not build: {}\n{}{}", output.status, errors.join("\n"), cargo.trim_end());
    }
    programs(&said, false).into_iter().next().context("cargo names no test program")
}

/// Returns the names of the section tests that pass without a mutant.
pub(crate) fn tests(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let program = build(tree, None)?;
    let names: Vec<String> = program
        .tests()?
        .into_iter()
        .filter(|name| KILLING_TESTS.iter().any(|start| name.starts_with(start)))
        .collect();
    ensure!(!names.is_empty(), "the sections have no tests");
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let (ended, ran) = program.run(&all, &[], LIMIT)?;
    ensure!(
        matches!(ended, TestRunEnd::Passed),
        "a test of the sections fails without a mutant:\n{}",
        ran.said
    );
    Ok(names)
}

/// The time limit for all section tests together.
const LIMIT: Duration = Duration::from_secs(120);

/// Builds a mutant, and runs all `tests` with it. If the tests exceed the time limit without a failure, they run again
/// with a limit four times as long.
pub(crate) fn judge(tree: &Tree, of: &MutatedFile, tests: &[String]) -> anyhow::Result<Verdict> {
    let program = build(tree, Some(of))?;
    let mut late = vec![];
    for name in tests {
        match program.run(&[name], &[], LIMIT)?.0 {
            TestRunEnd::Passed => {}
            TestRunEnd::Failed { name, message } => return Ok(Verdict::Test { name, message }),
            TestRunEnd::OutOfTime { .. } => late.push(name),
        }
    }
    for name in late {
        match program.run(&[name], &[], 4 * LIMIT)?.0 {
            TestRunEnd::Passed => {}
            TestRunEnd::Failed { name, message } => return Ok(Verdict::Test { name, message }),
            TestRunEnd::OutOfTime { name } => return Ok(Verdict::Time { name }),
        }
    }
    Ok(Verdict::Lives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_assembly_mutation_rule_applies_to_some_code() {
        for (processor, file) in SECTIONS {
            let made = mutants_for_processor(processor).unwrap();
            for rule in RULES {
                let of: Vec<&MutatedFile> = made.iter().filter(|of| of.mutant.rule == rule).collect();
                let functions = |name: &str| of.iter().any(|of| of.mutant.function == name);
                match rule {
                    "store" => assert!(
                        ["section", "pop", "push", "push_batch", "pop_batch"].into_iter().all(functions),
                        "{file}: each section must have a store"
                    ),
                    "jump" | "head" => {
                        assert!(
                            ["pop", "push", "push_batch", "pop_batch"].into_iter().all(functions),
                            "{file} {rule}"
                        );
                    }
                    "late" => assert!(functions("push"), "{file}: the round must be used after the commit"),
                    _ => assert_eq!(of.len(), 4),
                }
            }
            for of in &made {
                let text = fs::read_to_string(workspace().join(&of.mutant.file)).unwrap();
                assert_ne!(of.text, text, "{}", of.mutant);
                assert_eq!(of.text.lines().count(), text.lines().count(), "{}", of.mutant);
            }
        }
    }
}
