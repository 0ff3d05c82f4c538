//! Answer sheets.

use crate::output::{table, text};
use anyhow::Context;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use uslab_engine::course::{Expects, MarkedSheet, Sheet, Work, answer, labs};

/// Marks an answer sheet; returns the marks as data and as text.
pub(super) fn grade(file: &Path, sheet: &str) -> anyhow::Result<(MarkedSheet, String)> {
    let sheet = Sheet::read(sheet).with_context(|| file.display().to_string())?;
    let graded = sheet.grade();
    let mut rows = table(&["lab", "question", "answered", "right", ""]);
    for mark in &graded.marks {
        let answered = mark.answered.map_or("-".to_owned(), |answered| answered.to_string());
        let is = if mark.is_right() { "" } else { "wrong" };
        rows.add_row([mark.lab, &mark.question.to_string(), &answered, &mark.right.to_string(), is]);
    }
    let who = if graded.name.is_empty() { "unnamed student" } else { &graded.name };
    let said = format!("{who}, seed {}: {} of {} answers are right\n", graded.seed, graded.right, graded.of);
    Ok((graded, text(&rows) + &said))
}

/// A question with its right answer.
#[derive(Debug, Serialize)]
pub(super) struct AnsweredQuestion {
    lab: &'static str,
    /// Number of the question, from 1.
    question: usize,
    text: String,
    /// The right answer: a number, or the position of the right choice, from 0.
    right: u64,
    /// The right answer in words.
    said: String,
    why: String,
}

/// Returns the questions that a seed gives, with the right answers, as data and as text.
pub(super) fn answers(seed: u32) -> (Vec<AnsweredQuestion>, String) {
    let (mut all, mut words) = (Vec::new(), format!("answers for seed {seed}\n"));
    for lab in labs(seed) {
        let Work::Questions(questions) = lab.work else { continue };
        // Writing to a `String` does not fail.
        let _ = writeln!(words, "\n{}: {}", lab.name, lab.title);
        for (at, question) in questions.into_iter().enumerate() {
            let Some(answer) = answer(seed, lab.name, at) else { continue };
            let said = match question.expects {
                Expects::Number(of) => format!("{}: {of}", answer.right),
                Expects::Choice(choices) => choices[answer.right as usize].clone(),
            };
            let _ = writeln!(words, "  {}. {}\n     = {said}. {}", at + 1, question.text, answer.why);
            let (text, right, why) = (question.text, answer.right, answer.why);
            all.push(AnsweredQuestion { lab: lab.name, question: at + 1, text, right, said, why });
        }
    }
    (all, words)
}
