//! Findings as a page: one HTML file with its pictures inside, which needs nothing beside it and no network.

use super::findings::{Axis, Chart, Findings, Part, Table, Value};
use super::show::{number, span};
use anyhow::anyhow;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

/// Colours that people tell apart, whatever they see (Okabe and Ito, "Color Universal Design", 2008).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(240, 228, 66),
];

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ddd; text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } .timed::after { content: ' ⏱'; color: #777 }
svg { max-width: 100%; height: auto } figure { margin: 1rem 0 } .claim { margin: .3rem 0 } .claim b { margin-right: .5rem }
.meta { color: #555 }";

impl Findings {
    /// All of it as a page.
    ///
    /// # Errors
    /// A picture cannot be drawn.
    pub fn page(&self) -> anyhow::Result<String> {
        let parts = self.parts.iter().map(Part::markup).collect::<anyhow::Result<Vec<_>>>()?;
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { "uslab lab " (self.experiment) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (self.experiment) ": " (self.question) }
                    p.meta {
                        "uslab " (env!("CARGO_PKG_VERSION")) ", seed " (self.seed)
                        @if let Some(machine) = &self.machine { ", on " (machine.to_string()) ". ⏱ marks what was measured in time." }
                    }
                    @for part in &parts { (part) }
                }
            }
        };
        Ok(page.into_string())
    }
}

impl Part {
    fn markup(&self) -> anyhow::Result<Markup> {
        Ok(match self {
            Self::Table(table) => table.markup(),
            Self::Chart(chart) => html! {
                figure {
                    (PreEscaped(chart.svg()?))
                }
            },
            Self::Claim(claim) => html! {
                p.claim { b { (claim.holds.shown()) } (claim.says) " (" (claim.source) "); found: " (claim.found) }
            },
            Self::Note(note) => html! { p { (note) } },
        })
    }
}

impl Table {
    fn markup(&self) -> Markup {
        let number = |value: &Value| matches!(value, Value::Count(_) | Value::Number(..));
        html! {
            table {
                caption { (self.title) }
                thead { tr {
                    @for (i, column) in self.columns.iter().enumerate() {
                        th.n[self.is_numeric(i)].timed[column.timed] { (column.name) }
                    }
                } }
                tbody {
                    @for row in &self.rows {
                        tr { @for value in row { td.n[number(value)] { (value.shown(true)) } } }
                    }
                }
            }
        }
    }
}

impl Chart {
    /// The curves as an SVG picture.
    fn svg(&self) -> anyhow::Result<String> {
        let mut svg = String::new();
        let points = || self.series.iter().flat_map(|s| &s.points);
        let (Some(x), Some(y)) = (span(points().map(|p| p.0)), span(points().map(|p| p.1))) else {
            return Ok(svg);
        };
        self.draw(&mut svg, x, y).map_err(|error| anyhow!("{}: {error}", self.title))?;
        Ok(svg)
    }

    fn draw(
        &self,
        svg: &mut String,
        x: (f64, f64),
        y: (f64, f64),
    ) -> Result<(), Box<dyn std::error::Error + '_>> {
        let area = SVGBackend::with_string(svg, (900, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let base = if self.y.logarithmic { y.0 } else { y.0.min(0.0) };
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(84)
            .build_cartesian_2d(Scale::of(&self.x, x.0, x.1), Scale::of(&self.y, base, y.1))?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(&self.x.name)
            .y_desc(&self.y.name)
            .draw()?;
        for (i, series) in self.series.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let line = LineSeries::new(series.points.iter().copied(), colour.stroke_width(2));
            let key = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
            chart.draw_series(line)?.label(&series.name).legend(key);
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

/// An axis that is linear or logarithmic, as data says.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(axis: &Axis, low: f64, high: f64) -> Self {
        // An axis of no length cannot be drawn.
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, logarithmic: axis.logarithmic && low > 0.0 }
    }
    fn place(&self, x: f64) -> f64 {
        if self.logarithmic { x.ln() } else { x }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (low, high) = (self.place(self.low), self.place(self.high));
        let part = (self.place(value.max(self.low)) - low) / (high - low);
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let most = hint.max_num_points();
        if self.logarithmic {
            // Powers of two: sizes are.
            let (low, high) = (self.low.log2().ceil() as i32, self.high.log2().floor() as i32);
            let step = ((high - low) as usize / most.max(1) + 1).max(1);
            return (low..=high).step_by(step).map(|k| 2f64.powi(k)).collect();
        }
        plotters::coord::types::RangedCoordf64::from(self.low..self.high).key_points(most)
    }
    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        number(*value)
    }
}

#[cfg(test)]
mod tests {
    use crate::lab::show::tests::example;

    #[test]
    fn a_page_needs_nothing_beside_it_and_escapes_what_it_shows() {
        let page = example().page().unwrap();
        assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
        assert!(page.contains("first, &quot;best&quot; fit") && page.contains("&lt;first fit&gt;"), "{page}");
        assert!(!page.contains("<first fit>"));
        assert_eq!(page.matches("<svg").count(), 1);
        for outside in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page, example().page().unwrap(), "the same findings, the same bytes");
    }
}
