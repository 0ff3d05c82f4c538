//! The lab's cheat sheet on allocators, with measurements of each allocator.

use super::Context;
use super::load::Load;
use super::race::{Run, measure};
use crate::allocators::cheat_sheet::{self, ALLOCATOR_ADVICE, CHEAT_SHEETS, CheatSheet};
use crate::allocators::registry::Name;
use crate::findings::{Axis, Bars, Findings, Table, Value};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Show which allocator suits which program: the cheat sheet, or one allocator's page.
///
/// A page describes sizes, lifetimes, the worst case, waste, and programs that ship the allocator. A page also shows
/// the results of one workload: the longest operation in steps, bytes taken per byte requested, bytes outside the
/// memory, and time.
#[derive(Debug, Args)]
pub struct Explain {
    /// The allocator whose page is shown. Default: one line for each allocator.
    #[arg(value_parser = pages())]
    name: Option<&'static CheatSheet>,
}

fn pages() -> impl TypedValueParser<Value = &'static CheatSheet> {
    let names = PossibleValuesParser::new(CHEAT_SHEETS.iter().map(|sheet| sheet.name));
    names.try_map(|name| cheat_sheet::of(&name).ok_or("expected a name of the sheet"))
}

/// The columns of the table that contain measurements.
const MEASURED_COLUMNS: [&str; 5] =
    ["refused", "longest, steps", "taken of asked", "bytes beside", "~ns an operation"];

fn measured_values(run: &Run) -> Vec<Value> {
    let if_counted = |value| if run.known { value } else { Value::Nothing };
    vec![
        run.outcome.refused.into(),
        if_counted(run.outcome.work.longest.into()),
        if_counted(run.peak_ratio().into()),
        Some(run.outcome.beside).filter(|bytes| *bytes > 0).into(),
        Value::Spread(run.nanoseconds, 1),
    ]
}

impl Explain {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let (question, sheets) = match self.name {
            Some(sheet) => (format!("what is {}, and what is it for?", sheet.name), vec![sheet]),
            None => ("which allocator for what?".to_owned(), CHEAT_SHEETS.iter().collect()),
        };
        let mut findings = Findings::new("explain", &question, context.seed);
        match self.name {
            Some(sheet) => page(sheet, &mut findings),
            None => show_overview(&mut findings),
        }
        let names: Vec<Name> = sheets.iter().filter_map(|sheet| sheet.in_lab).collect();
        if !names.is_empty() {
            show_measurements(context, &names, &mut findings)?;
        }
        if let Some(sheet) = self.name {
            findings.note(format!("`uslab lab {}` shows more.", sheet.more));
        }
        Ok(findings)
    }
}

/// Shows the overview of all pages of the cheat sheet, and the advice.
fn show_overview(findings: &mut Findings) {
    let columns = ["name", "sizes", "lifetimes", "worst case of an allocation", "waste", "who ships it"];
    let mut table = Table::new("The cheat sheet; `uslab lab explain NAME` has a page of each", &columns);
    for sheet in &CHEAT_SHEETS {
        let words = [sheet.name, sheet.sizes, sheet.lifetimes, sheet.worst, sheet.waste, sheet.ships];
        table.row(words.map(Value::from).into());
    }
    findings.table(table);
    let mut table = Table::new(
        "Choosing an allocator: consider lifetimes first, then sizes",
        &["sizes", "lifetimes", "take"],
    )
    .named_by(2);
    for words in ALLOCATOR_ADVICE {
        table.row(words.map(Value::from).into());
    }
    findings.table(table);
    findings.note(
        "No allocator is best for all. At 60 Hz a frame has 16.6 ms, whatever is in it: there the worst case counts, not the median \
         (`uslab lab latency`). Programs that mix lifetimes keep one allocator for each.",
    );
}

/// Shows one page.
fn page(sheet: &CheatSheet, findings: &mut Findings) {
    findings.note(sheet.idea);
    let mut table = Table::new("What it is", &["what", "here"]);
    for (use_case, recommendation) in [
        ("sizes", sheet.sizes),
        ("lifetimes", sheet.lifetimes),
        ("worst case of an allocation", sheet.worst),
        ("waste", sheet.waste),
        ("who ships it", sheet.ships),
        ("take it for", sheet.take),
        ("leave it where", sheet.leave),
        ("source", sheet.source),
    ] {
        table.row(vec![use_case.into(), recommendation.into()]);
    }
    findings.table(table);
    let mut table = Table::new("What its operations cost", &["operation", "cost"]);
    for (operation, cost) in sheet.costs {
        table.row(vec![(*operation).into(), (*cost).into()]);
    }
    findings.table(table);
}

/// Shows measurements of the allocators called `names`.
fn show_measurements(context: &Context<'_>, names: &[Name], findings: &mut Findings) -> anyhow::Result<()> {
    let workload = Load::of(context, "uniform:16..1024", "bimodal:20,2000,0.1", 10_000)?;
    let bytes = workload.memory(None)?;
    let runs = measure(context, "explain", &workload, bytes, names)?;
    let runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut table = Table::new(
        format!("{} operations, {}; {bytes} bytes of memory", workload.ops.len(), workload.name),
        &[&["allocator"], &MEASURED_COLUMNS[..]].concat(),
    );
    for (name, run) in names.iter().zip(&runs) {
        table.row([vec![name.display_name().into()], measured_values(run)].concat());
    }
    findings.table(table);
    let counted_runs = names.iter().zip(&runs).filter(|(_, run)| run.known);
    let bars = counted_runs.map(|(name, run)| (name.display_name(), run.peak_ratio()));
    findings.bars(Bars::exact(
        "Bytes taken, each at the peak",
        Axis::linear("times the requested bytes"),
        bars,
    ));
    findings
        .note("A step is one inspection of a possible place; an empty cell was not counted. `uslab lab race` takes other workloads.");
    Ok(())
}
