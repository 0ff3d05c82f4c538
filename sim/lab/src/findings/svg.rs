//! Draws pictures as SVG. The pictures use the colour of the surrounding text and no background, because a page may be
//! light or dark.

use super::picture::{Axis, Bars, Chart, Scale, number, span};
use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::element::{DashedPathElement, DynElement, IntoDynElement};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours that people with any colour vision can distinguish (Okabe and Ito, "Color Universal Design", 2008). Grey
/// replaces two colours of the palette: yellow is invisible on white web pages, and black on dark pages.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(128, 128, 128),
];
/// The width of a picture, the size of its lettering, and the approximate width of a letter, all in pixels.
const WIDTH: i32 = 900;
const HEIGHT: i32 = 400;
const LETTERS: i32 = 16;
const LETTER_WIDTH: i32 = 8;
/// The height of a line of the legend; a bar with its gap has the same height.
const LINE: i32 = 22;

type DrawResult = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Chart {
    /// Draws the curves as an SVG picture, with a legend next to them.
    pub(super) fn svg(&self) -> anyhow::Result<String> {
        let points = || self.series.iter().flat_map(|s| &s.points);
        let (Some(x), Some(y)) = (span(points().map(|p| p.0)), span(points().map(|p| p.1))) else {
            return Ok(String::new());
        };
        draw_svg(&self.title, HEIGHT, |area| {
            let base = if self.y.logarithmic { y.0 } else { y.0.min(0.0) };
            self.draw(area, Scale::of(&self.x, x), Scale::of(&self.y, (base, y.1)))
        })
    }

    fn draw(&self, area: &Area<'_>, x: Scale, y: Scale) -> DrawResult {
        // A single curve needs no legend, because the title names the curve.
        let names =
            if self.series.len() > 1 { longest(self.series.iter().map(|s| s.name.as_str())) } else { 0 };
        let (plot, legend) = area.split_horizontally(WIDTH - names - 40);
        let label = || ("sans-serif", LETTERS).into_font();
        let mut chart = ChartBuilder::on(&plot)
            // Half of an axis's last label extends beyond the axis.
            .margin_right(10)
            .margin_top(12)
            .margin_left(8)
            .x_label_area_size(48)
            .y_label_area_size(84)
            .build_cartesian_2d(AxisWithMarks(x, &self.x), AxisWithMarks(y, &self.y))?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .label_style(label())
            .axis_desc_style(label())
            .x_desc(&self.x.name)
            .y_desc(&self.y.name)
            .draw()?;
        for (i, series) in self.series.iter().enumerate() {
            chart.draw_series([path(i, series.points.clone())])?;
            if names > 0 {
                let y = 20 + LINE * i as i32;
                legend.draw(&path(i, vec![(4, y), (32, y)]))?;
                legend.draw(&text(&series.name, (40, y), HPos::Left))?;
            }
        }
        Ok(())
    }
}

impl Bars {
    /// Draws the bars as an SVG picture; each bar is labelled with its number.
    pub(super) fn svg(&self) -> anyhow::Result<String> {
        let height = LINE * (self.bars.len() as i32 + 1) + 12;
        draw_svg(&self.title, height, |area| self.draw(area))
    }

    fn draw(&self, area: &Area<'_>) -> DrawResult {
        let scale = self.scale();
        let left_edge = longest(self.bars.iter().map(|bar| bar.name.as_str())) + 12;
        let numbers: Vec<_> = self.bars.iter().map(|bar| number(bar.length)).collect();
        let room = WIDTH - left_edge - longest(numbers.iter().map(String::as_str)) - 12;
        for (i, (bar, number)) in self.bars.iter().zip(&numbers).enumerate() {
            let (top, row_middle) = (LINE * i as i32 + 4, LINE * i as i32 + LINE / 2 + 2);
            let right_edge = left_edge + (scale.part(bar.length) * f64::from(room)).round() as i32;
            area.draw(&text(&bar.name, (left_edge - 8, row_middle), HPos::Right))?;
            area.draw(&Rectangle::new(
                [(left_edge, top), (right_edge, top + LINE - 4)],
                COLOURS[0].filled(),
            ))?;
            area.draw(&text(number, (right_edge + 6, row_middle), HPos::Left))?;
        }
        let bottom = LINE * self.bars.len() as i32 + 4;
        area.draw(&PathElement::new([(left_edge, 0), (left_edge, bottom)], BLACK.mix(0.5)))?;
        let axis = format!("{}, {}", self.axis.name, scale.shown());
        area.draw(&text(&axis, (left_edge, bottom + LINE / 2 + 2), HPos::Left))?;
        Ok(())
    }
}

/// Draws a picture that is `height` pixels high.
fn draw_svg(title: &str, height: i32, draw: impl FnOnce(&Area<'_>) -> DrawResult) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        draw(&area).map_err(|error| anyhow!("{title}: {error}"))?;
        area.present().map_err(|error| anyhow!("{title}: {error}"))?;
    }
    // Black is replaced by the colour of the surrounding text.
    Ok(svg.replace("\"#000000\"", "\"currentColor\""))
}

/// Draws the curve with the index `i`. When all colours are used up, they repeat with dashed lines, and each repetition
/// has longer dashes.
fn path<'d, C: Clone + 'static>(i: usize, points: Vec<C>) -> DynElement<'static, SVGBackend<'d>, C>
where
    PathElement<C>: IntoDynElement<'static, SVGBackend<'d>, C>,
    DashedPathElement<std::vec::IntoIter<C>, i32>: IntoDynElement<'static, SVGBackend<'d>, C>,
{
    let style = COLOURS[i % COLOURS.len()].stroke_width(2);
    match (i / COLOURS.len()) as i32 {
        0 => PathElement::new(points, style).into_dyn(),
        round => DashedPathElement::new(points, 4 * round, 4, style).into_dyn(),
    }
}

fn text(words: &str, position: (i32, i32), alignment: HPos) -> Text<'static, (i32, i32), String> {
    let font = ("sans-serif", LETTERS).into_font().color(&BLACK);
    Text::new(words.to_owned(), position, font.pos(Pos::new(alignment, VPos::Center)))
}

/// Returns the width in pixels of the longest of some words.
fn longest<'w>(words: impl Iterator<Item = &'w str>) -> i32 {
    words.map(|word| word.chars().count() as i32 * LETTER_WIDTH).max().unwrap_or(0)
}

/// Draws an axis with marks at round values.
struct AxisWithMarks<'a>(Scale, &'a Axis);

impl AxisWithMarks<'_> {
    /// Returns the marks for an axis: powers of two for sizes, otherwise powers of ten, and 2 and 5 times these powers
    /// if they fit.
    fn ratios(&self, max_count: usize) -> Vec<f64> {
        let max_count = max_count.clamp(2, 12);
        let powers = |base: f64, steps: &[f64], power_step: i32| -> Vec<f64> {
            let (first_power, last_power) =
                (self.0.low.log(base).floor() as i32, self.0.high.log(base).ceil() as i32);
            let powers =
                (first_power..=last_power).filter(|k| k.rem_euclid(power_step) == 0).map(|k| base.powi(k));
            let candidates = powers.flat_map(|power| steps.iter().map(move |step| power * step));
            // The ends of the axis are data values, whose last digits may be inexact.
            let (low, high) = (self.0.low * (1.0 - 1e-9), self.0.high * (1.0 + 1e-9));
            candidates.filter(|x| (low..=high).contains(x)).collect()
        };
        let of_two = self.1.name.starts_with("bytes");
        let fine_ratios = (!of_two).then(|| powers(10.0, &[1.0, 2.0, 5.0], 1));
        let coarse_ratios =
            (1..).map(|power_step| powers(if of_two { 2.0 } else { 10.0 }, &[1.0], power_step));
        fine_ratios
            .into_iter()
            .chain(coarse_ratios)
            .find(|marks| marks.len() <= max_count)
            .unwrap_or_default()
    }
}

impl Ranged for AxisWithMarks<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (self.0.part(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self.0.logarithmic {
            true => self.ratios(hint.max_num_points()),
            false => plotters::coord::types::RangedCoordf64::from(self.0.low..self.0.high)
                .key_points(hint.max_num_points()),
        }
    }
    fn range(&self) -> std::ops::Range<f64> {
        self.0.low..self.0.high
    }
}

impl ValueFormatter<f64> for AxisWithMarks<'_> {
    fn format_ext(&self, value: &f64) -> String {
        number(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Series;

    fn chart(curves: usize) -> Chart {
        let series = |i: usize| Series {
            name: format!("curve {i}"),
            points: vec![(1.0, 0.0005), (1000.0, i as f64 + 1.0)],
        };
        Chart {
            title: "t".into(),
            x: Axis::linear("blocks"),
            y: Axis::logarithmic("ms"),
            series: (0..curves).map(series).collect(),
            measured: false,
        }
    }

    /// The legend shows each curve's colour, as a dashed line if the curve is dashed.
    #[test]
    fn curves_beyond_the_palette_are_dashed() {
        let svg = chart(10).svg().unwrap();
        let keys: std::collections::BTreeSet<_> = svg
            .lines()
            .filter(|line| line.starts_with("<polyline") && line.contains("stroke-width=\"2\""))
            .collect();
        let solid = |colour: &str| keys.iter().filter(|line| line.contains(colour)).count();
        // Each colour occurs in a curve and in its key; the first three colours repeat, with dashes.
        assert_eq!(solid("#E69F00"), 2, "{svg}");
        assert!(solid("#0072B2") > 4, "{svg}");
        assert!(svg.contains("curve 9") && !svg.contains("#000000"));
    }

    #[test]
    fn small_axis_labels_are_not_rounded_to_zero() {
        let axis = Axis::logarithmic("ms");
        let marks = |scale: (f64, f64), axis: &Axis, max_count| {
            let marks = AxisWithMarks(Scale::of(axis, scale), axis).ratios(max_count);
            marks.into_iter().map(number).collect::<Vec<_>>()
        };
        assert_eq!(
            marks((0.0005, 0.06), &axis, 10),
            ["0.0005", "0.001", "0.002", "0.005", "0.01", "0.02", "0.05"]
        );
        assert_eq!(marks((0.0005, 20.0), &axis, 10), ["0.001", "0.01", "0.1", "1", "10"]);
        assert_eq!(marks((16.0, 1000.0), &Axis::logarithmic("bytes"), 3), ["16", "64", "256"]);
    }
}
