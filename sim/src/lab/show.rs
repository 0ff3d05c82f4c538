//! Findings as text for a terminal, and as CSV.

use super::findings::{Axis, Chart, Claim, Findings, Holds, Part, Series, Table};
use crate::output;
use comfy_table::CellAlignment;
use std::fmt::Write;

/// Columns of a curve drawn as text.
const WIDTH: usize = 60;
/// A column's height in eighths of a line.
const EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

impl Findings {
    /// All of it as text.
    pub fn text(&self) -> String {
        let mut out = format!("{}: {}\nseed {}", self.experiment, self.question, self.seed);
        if let Some(machine) = &self.machine {
            let _ = write!(out, ", on {machine}");
        }
        out.push('\n');
        let mut claims_follow = false;
        for part in &self.parts {
            // Claims stand together.
            if !(claims_follow && matches!(part, Part::Claim(_))) {
                out.push('\n');
            }
            claims_follow = matches!(part, Part::Claim(_));
            let _ = match part {
                Part::Table(table) => write!(out, "{}\n{}", table.title, table.text()),
                Part::Chart(chart) => chart.write_text(&mut out),
                Part::Claim(claim) => writeln!(out, "{claim}"),
                Part::Note(note) => writeln!(out, "{note}"),
            };
        }
        out
    }

    /// Its tables and charts as CSV, a value a line, so that one file holds them all: which part, the row or curve, the
    /// column or place on the axis, and the value.
    ///
    /// # Errors
    /// None that depends on the findings.
    pub fn csv(&self) -> anyhow::Result<String> {
        let mut out = csv::Writer::from_writer(Vec::new());
        out.write_record(["part", "row", "column", "value"])?;
        for part in &self.parts {
            match part {
                Part::Table(table) => {
                    for row in &table.rows {
                        let name = row.first().map(|v| v.shown(false)).unwrap_or_default();
                        for (column, value) in table.columns.iter().zip(row).skip(1) {
                            out.write_record([&table.title, &name, &column.name, &value.shown(false)])?;
                        }
                    }
                }
                Part::Chart(chart) => {
                    for series in &chart.series {
                        for (x, y) in &series.points {
                            let (x, y) = (x.to_string(), y.to_string());
                            out.write_record([&chart.title, &series.name, &x, &y])?;
                        }
                    }
                }
                Part::Claim(_) | Part::Note(_) => (),
            }
        }
        Ok(String::from_utf8(out.into_inner()?)?)
    }
}

impl Holds {
    /// In two words.
    pub fn shown(self) -> &'static str {
        match self {
            Self::Yes => "holds",
            Self::Partly => "holds in part",
            Self::No => "does not hold",
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
        let mut table = output::table(&header);
        for (i, column) in table.column_iter_mut().enumerate() {
            if !self.is_numeric(i) {
                column.set_cell_alignment(CellAlignment::Left);
            }
        }
        for row in &self.rows {
            table.add_row(row.iter().map(|value| value.shown(true)));
        }
        output::text(&table)
    }
}

impl Chart {
    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{}", self.title)?;
        let all = || self.series.iter().flat_map(|s| &s.points);
        let Some((left, right)) = span(all().map(|p| p.0)) else { return writeln!(out, "  (nothing)") };
        let Some((low, high)) = span(all().map(|p| p.1)) else { return Ok(()) };
        let (x, y) = (&self.x, &self.y);
        let names = self.series.iter().map(|s| s.name.chars().count()).max().unwrap_or(0);
        for series in &self.series {
            let last = series.points.last().map_or(0.0, |p| p.1);
            let curve = series.curve(&Scale::of(x, left, right), &Scale::of(y, low, high));
            writeln!(out, "  {:names$}  {curve}  {}", series.name, number(last))?;
        }
        writeln!(
            out,
            "  {:names$}  {} from {} to {}; height: {} from {} to {}{}",
            "",
            x.name,
            number(left),
            number(right),
            y.name,
            number(low),
            number(high),
            if y.logarithmic { ", logarithmic" } else { "" }
        )
    }
}

impl Series {
    /// The curve as a line of columns; between its points it goes straight.
    fn curve(&self, x: &Scale, y: &Scale) -> String {
        let column = |column: usize| {
            let at = x.at((column as f64 + 0.5) / WIDTH as f64);
            let after = self.points.partition_point(|p| p.0 < at);
            let (Some(left), Some(right)) = (self.points[..after].last(), self.points.get(after)) else {
                // Before the first point and after the last one the nearest counts, if it lies in this column.
                let near = self.points.get(after).or(self.points.last())?;
                return (x.step(near.0, WIDTH) == column).then_some(near.1);
            };
            let part = (at - left.0) / (right.0 - left.0);
            Some(left.1 + part * (right.1 - left.1))
        };
        let height = |y: &Scale, height: f64| EIGHTHS[y.step(height, EIGHTHS.len())];
        (0..WIDTH).map(|k| column(k).map_or(' ', |value| height(y, value))).collect()
    }
}

/// From where to where an axis goes.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(axis: &Axis, low: f64, high: f64) -> Self {
        Self { low, high, logarithmic: axis.logarithmic && low > 0.0 }
    }
    /// What lies at that part of the way, 0 to 1.
    fn at(&self, part: f64) -> f64 {
        match self.logarithmic {
            true => self.low * (self.high / self.low).powf(part),
            false => self.low + (self.high - self.low) * part,
        }
    }
    /// In which of `steps` equal steps a value lies.
    fn step(&self, value: f64, steps: usize) -> usize {
        let place = |x: f64| if self.logarithmic { x.ln() } else { x };
        let (low, high) = (place(self.low), place(self.high));
        if high <= low {
            return 0;
        }
        (((place(value) - low) / (high - low) * steps as f64) as usize).min(steps - 1)
    }
}

/// The least and the largest of them.
pub(super) fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |span, x| {
        let (low, high) = span.unwrap_or((x, x));
        Some((low.min(x), high.max(x)))
    })
}

/// Whole numbers grouped, small ones with up to three decimals.
pub(super) fn number(x: f64) -> String {
    if x.fract() == 0.0 && (0.0..1e15).contains(&x) {
        output::grouped(x as u64)
    } else if x.abs() >= 100.0 {
        format!("{x:.0}")
    } else {
        format!("{x:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::lab::findings::Value;

    pub(in crate::lab) fn example() -> Findings {
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
            timed: false,
        });
        findings.claim(Claim {
            says: "first fit loses its largest block first".into(),
            source: "a tutorial".into(),
            found: "512 of 65,536 bytes".into(),
            holds: Holds::Yes,
            timed: false,
        });
        findings
    }

    #[test]
    fn findings_as_text() {
        let expected = "\
example: what is left?
seed 7

Left at the end
 allocator          holes  largest, bytes
 buddy                  3          65,536
 first, \"best\" fit    120

Largest free block
  buddy        ████████████████████████████████████▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▆▆▆▆  16,384
  <first fit>  ██████████████▇▇▇▇▇▇▇▆▆▆▆▅▅▅▄▂▁                               512
               operations from 0 to 100; height: bytes from 512 to 65,536, logarithmic

holds          first fit loses its largest block first (a tutorial); found: 512 of 65,536 bytes
";
        let text = example().text();
        let squeezed = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        assert_eq!(squeezed(&text), squeezed(expected), "{text}");
    }

    #[test]
    fn findings_as_csv() {
        let expected = "\
part,row,column,value
Left at the end,buddy,holes,3
Left at the end,buddy,\"largest, bytes\",65536
Left at the end,\"first, \"\"best\"\" fit\",holes,120
Left at the end,\"first, \"\"best\"\" fit\",\"largest, bytes\",
Largest free block,buddy,0,65536
Largest free block,buddy,100,16384
Largest free block,<first fit>,0,65536
Largest free block,<first fit>,50,512
";
        assert_eq!(example().csv().unwrap(), expected);
    }
}
