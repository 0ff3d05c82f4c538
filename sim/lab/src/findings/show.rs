//! Writes findings as text for a terminal.

use super::picture::{Scale, number, span};
use super::{Bars, Chart, Claim, Findings, Holds, Part, QUICK_RUN_NOTE, Series, Table};
use comfy_table::CellAlignment;
use std::fmt::Write;

/// The width of a terminal in characters, for which pictures are drawn.
const LINE: usize = 80;
/// The characters that show the height of a column, in eighths of a line.
const COLUMN_CHARACTERS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The characters that show a column filled from the left, in steps of an eighth of a character's width.
const LEFT_FILLED_EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

impl Findings {
    /// Returns a text that shows all findings.
    pub fn text(&self) -> String {
        let mut out = format!("{}: {}\nseed {}", self.experiment, self.question, self.seed);
        if let Some(machine) = &self.machine {
            let _ = write!(out, ", on {machine}");
        }
        out.push('\n');
        if self.quick {
            let _ = writeln!(out, "{QUICK_RUN_NOTE}");
        }
        let mut claims_follow = false;
        for part in &self.parts {
            // Consecutive claims have no blank lines between them.
            if !(claims_follow && matches!(part, Part::Claim(_))) {
                out.push('\n');
            }
            claims_follow = matches!(part, Part::Claim(_));
            let _ = match part {
                Part::Table(table) => write!(out, "{}\n{}", table.title, table.text()),
                Part::Chart(chart) => chart.write_text(&mut out),
                Part::Bars(bars) => bars.write_text(&mut out),
                Part::Claim(claim) if self.quick => writeln!(out, "quick: {claim}"),
                Part::Claim(claim) => writeln!(out, "{claim}"),
                Part::Note(note) => writeln!(out, "{note}"),
            };
        }
        out
    }
}

impl Holds {
    /// Returns the verdict in one or two words.
    pub fn shown(self) -> &'static str {
        match self {
            Self::Yes => "holds",
            Self::Partly => "holds in part",
            Self::No => "does not hold",
            Self::Undecided => "undecided",
        }
    }
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:13}  {} ({}); found: {}", self.holds.shown(), self.says, self.source, self.found)
    }
}

impl Table {
    fn text(&self) -> String {
        let header: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
        let mut table = uslab_output::table(&header);
        for (i, column) in table.column_iter_mut().enumerate() {
            if !self.is_numeric(i) {
                column.set_cell_alignment(CellAlignment::Left);
            }
        }
        for row in &self.rows {
            table.add_row(row.iter().map(|value| value.shown(true)));
        }
        uslab_output::text(&table)
    }
}

impl Chart {
    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{}", self.title)?;
        let points = || self.series.iter().flat_map(|s| &s.points);
        let (Some(x), Some(y)) = (span(points().map(|p| p.0)), span(points().map(|p| p.1))) else {
            return writeln!(out, "  (nothing)");
        };
        let (x, y) = (Scale::of(&self.x, x), Scale::of(&self.y, y));
        let last_values = self.series.iter().map(|s| number(s.points.last().map_or(0.0, |p| p.1)));
        let lines: Vec<_> =
            self.series.iter().zip(last_values).map(|(s, last)| (s.name.as_str(), last)).collect();
        let (names, width) = widths(&lines, 60);
        for (series, (name, last)) in self.series.iter().zip(&lines) {
            writeln!(out, "  {name:names$}  {}  {last}", series.curve(&x, &y, width))?;
        }
        writeln!(out, "  across: {}, {}", self.x.name, x.shown())?;
        writeln!(out, "  height: {}, {}", self.y.name, y.shown())
    }
}

impl Bars {
    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{}", self.title)?;
        let scale = self.scale();
        let lines: Vec<_> = self.bars.iter().map(|bar| (bar.name.as_str(), number(bar.length))).collect();
        let (names, width) = widths(&lines, 40);
        for (bar, (name, length)) in self.bars.iter().zip(&lines) {
            let eighths = (scale.part(bar.length) * (8 * width) as f64).round() as usize;
            let full_blocks = "█".repeat(eighths / 8);
            let partial_block =
                (eighths % 8).checked_sub(1).map(|part| LEFT_FILLED_EIGHTHS[part]).into_iter();
            let bar_text: String = full_blocks.chars().chain(partial_block).collect();
            let gap = if bar_text.is_empty() { "" } else { " " };
            writeln!(out, "  {name:names$}  {bar_text}{gap}{length}")?;
        }
        writeln!(out, "  lengths: {}, {}", self.axis.name, scale.shown())
    }
}

/// Returns the width of the longest name, and the width of a bar: the rest of the line, but at least 10 and at most
/// `max_width` characters.
fn widths(lines: &[(&str, String)], max_width: usize) -> (usize, usize) {
    let max_of = |widths: &mut dyn Iterator<Item = usize>| widths.max().unwrap_or(0);
    let names = max_of(&mut lines.iter().map(|(name, _)| name.chars().count()));
    let numbers = max_of(&mut lines.iter().map(|(_, number)| number.chars().count()));
    (names, LINE.saturating_sub(names + numbers + 6).clamp(10, max_width))
}

impl Series {
    /// Draws a curve as a row of columns; heights between two points are interpolated linearly.
    fn curve(&self, x: &Scale, y: &Scale, width: usize) -> String {
        let column = |column: usize| {
            let x_value = x.value_at((column as f64 + 0.5) / width as f64);
            let after = self.points.partition_point(|p| p.0 < x_value);
            let (Some(left_point), Some(right_point)) = (self.points[..after].last(), self.points.get(after))
            else {
                // A column before the first point or after the last point shows the nearest point, if that point is in
                // the column.
                let nearest_point = self.points.get(after).or(self.points.last())?;
                return (x.step(nearest_point.0, width) == column).then_some(nearest_point.1);
            };
            let part = (x_value - left_point.0) / (right_point.0 - left_point.0);
            Some(left_point.1 + part * (right_point.1 - left_point.1))
        };
        let height = |height: f64| COLUMN_CHARACTERS[y.step(height, COLUMN_CHARACTERS.len())];
        (0..width).map(|k| column(k).map_or(' ', height)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::findings::{Axis, Value};

    pub(crate) fn example() -> Findings {
        let mut findings = Findings::new("example", "what is left?", 7);
        let mut table = Table::new("Left at the end", &["allocator", "holes", "largest, bytes"]);
        table.row(vec!["buddy".into(), 3u64.into(), 65_536u64.into()]);
        table.row(vec!["first, \"best\" fit".into(), 120u64.into(), Value::Nothing]);
        findings.table(table);
        findings.chart(Chart {
            title: "Largest free block".into(),
            x: Axis::linear("operations"),
            y: Axis::logarithmic("bytes"),
            series: vec![
                Series { name: "buddy".into(), points: vec![(0.0, 65536.0), (100.0, 16384.0)] },
                Series { name: "<first fit>".into(), points: vec![(0.0, 65536.0), (50.0, 512.0)] },
            ],
            measured: false,
        });
        let bars = [("buddy", 12.0), ("<first fit>", 2000.0)];
        findings.bars(Bars::exact("Steps of a search", Axis::logarithmic("steps"), bars));
        findings.claim(Claim {
            says: "first fit loses its largest block first".into(),
            source: "a tutorial".into(),
            found: "512 of 65,536 bytes".into(),
            holds: Holds::Yes,
            measured: false,
        });
        findings
    }

    /// Regression test: the verdicts of a quick run looked like the verdicts of a full run.
    #[test]
    fn quick_run_verdict_is_marked_in_the_text() {
        let mut findings = example();
        findings.quick = true;
        let text = findings.text();
        assert!(text.contains(&format!("seed 7\n{QUICK_RUN_NOTE}\n")), "{text}");
        assert!(text.contains("\nquick: holds          first fit"), "{text}");
        assert!(serde_json::to_string(&findings).unwrap().contains(r#""quick":true"#));
    }

    #[test]
    fn findings_are_written_as_text() {
        let expected = "\
example: what is left?
seed 7

Left at the end
 allocator          holes  largest, bytes
 buddy                  3          65,536
 first, \"best\" fit    120

Largest free block
  buddy        ███████████████████████████████████▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▆▆▆▆  16,384
  <first fit>  █████████████▇▇▇▇▇▇▇▆▆▆▆▅▅▄▃▁                              512
  across: operations, from 0 to 100
  height: bytes, from 512 to 65,536, logarithmic

Steps of a search
  buddy        █▍ 12
  <first fit>  ████████████████████████████████████████ 2,000
  lengths: steps, from 10 to 2,000, logarithmic

holds          first fit loses its largest block first (a tutorial); found: 512 of 65,536 bytes
";
        let text = example().text();
        let without_indent = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        assert_eq!(without_indent(&text), without_indent(expected), "{text}");
    }
}
