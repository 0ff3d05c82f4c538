//! Reads the JSON of runs and prints them as Markdown, one table a question: the README's. `matrix FILE...`

use std::fs::File;
use uslab_benches::report::{Report, short};

fn main() -> anyhow::Result<()> {
    for file in std::env::args_os().skip(1) {
        let report: Report = serde_json::from_reader(std::io::BufReader::new(File::open(file)?))?;
        print!("{}", markdown(&report));
    }
    Ok(())
}

/// Subjects down, cases across; in a cell the median and the ratio.
fn markdown(report: &Report) -> String {
    let (mut cases, mut subjects) = (Vec::new(), Vec::new());
    for row in &report.rows {
        if !cases.contains(&(&row.case, &row.unit)) {
            cases.push((&row.case, &row.unit));
        }
        if !subjects.contains(&&row.subject) {
            subjects.push(&row.subject);
        }
    }
    let [before, after] = report.load;
    let mut text = format!(
        "**{}**: {} ({} rounds, load average {before} to {after})\n\n| subject |",
        report.question, report.what, report.rounds
    );
    for (case, unit) in &cases {
        text += format!(" {case} {unit}").trim_end();
        text += " |";
    }
    text += &format!("\n|---|{}\n", "---|".repeat(cases.len()));
    for subject in subjects {
        text += &format!("| {subject} |");
        for (case, _) in &cases {
            let row = report.rows.iter().find(|row| row.subject == *subject && row.case == **case);
            text += &row.map_or_else(
                || " - |".into(),
                |row| {
                    let ratio = row.ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
                    format!(" {}{ratio} |", short(row.median))
                },
            );
        }
        text += "\n";
    }
    // The rows of a question spread alike; the widest says how far to trust all of them.
    let spread = |row: &uslab_benches::report::Row| (row.quartiles[1] - row.quartiles[0]) / row.median;
    let mut spreads: Vec<_> = report.rows.iter().filter(|row| row.median > 0.0).map(spread).collect();
    spreads.sort_by(f64::total_cmp);
    if let (Some(widest), middle) = (spreads.last(), spreads.get(spreads.len() / 2)) {
        let middle = middle.unwrap_or(widest);
        text += &format!(
            "\nDistance of the quartiles: {:.0} % of the median in the middle row, {:.0} % in the widest.\n\n",
            middle * 100.0,
            widest * 100.0
        );
    }
    text
}
