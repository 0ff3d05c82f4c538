//! Answer sheets.

use crate::output::{table, text};
use anyhow::Context;
use std::path::Path;
use uslab_engine::course::{Graded, Sheet};

/// Marks a sheet; in words, too.
pub(super) fn grade(file: &Path, sheet: &str) -> anyhow::Result<(Graded, String)> {
    let sheet = Sheet::read(sheet).with_context(|| file.display().to_string())?;
    let graded = sheet.grade();
    let mut rows = table(&["lab", "question", "answered", "right", ""]);
    for mark in &graded.marks {
        let answered = mark.answered.map_or("-".to_owned(), |answered| answered.to_string());
        let is = if mark.is_right() { "" } else { "wrong" };
        rows.add_row([mark.lab, &mark.question.to_string(), &answered, &mark.right.to_string(), is]);
    }
    let who = if graded.name.is_empty() { "nobody's name" } else { &graded.name };
    let said = format!("{who}, seed {}: {} of {} right\n", graded.seed, graded.right, graded.of);
    Ok((graded, text(&rows) + &said))
}
