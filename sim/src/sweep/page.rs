//! Writes the report of a sweep as a static web page with tables and a picture for each option; the page loads nothing.

use super::merge::{
    Report, SENSITIVITY_HELP, describe_accuracy, index, percent, ranges, short_number, tie_mark, unit,
};
use super::sensitivity::{Effect, Sensitivity};
use crate::output::grouped;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use std::io::Error;

/// The size of a picture in pixels.
const WIDTH: u32 = 420;
const HEIGHT: u32 = 240;
const BAR_COLOUR: RGBColor = RGBColor(0, 114, 178);
/// The largest number of lines in a picture. Each line in a picture belongs to one workload and one number of CPUs;
/// only the lines on which the option matters most are drawn.
const LINES: usize = 24;
/// The largest number of settings in the table.
const MAX_SHOWN_SETTINGS: usize = 50;

const STYLE: &str = "\
:root { color-scheme: light dark } body { font: 15px/1.5 sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .2em .6em; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left } figure { display: inline-block; margin: .5em } figcaption { text-align: center }
figure svg { background: #fff; max-width: 100% } .share { background: #0072b2; display: inline-block; height: .8em }
.scroll { overflow-x: auto } code { overflow-wrap: anywhere }";

/// Returns the report as an HTML page.
///
/// # Errors
/// Fails if a picture cannot be drawn.
pub(super) fn page(report: &Report, title: &str) -> anyhow::Result<String> {
    let metric = report.metric;
    let designs = report.sensitivity.iter().map(|design| sensitivity_markup(design, metric));
    let designs = designs.collect::<Result<Vec<_>, _>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { "Sweep " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Sweep " (title) }
                p { (grouped(report.done)) " of " (grouped(report.items)) " items, judged by " code { (metric) } ": " (unit(metric)) ". Hash " code { (report.sweep) } "." }
                p { (report.describe_validation()) }
                @if report.done < report.items {
                    p { strong { (grouped(report.missing)) " items are missing, " (grouped(report.failed)) " failed, " (grouped(report.damaged)) " are damaged." } }
                }
                h2 { "Settings" }
                p { "The fraction of the best setting's " code { (metric) } ", as a geometric mean over workloads, CPUs and seeds. The mark = means that the result is not distinguishable from the first setting's." }
                div.scroll { table {
                    tr { th { "setting" } th { "of the best" } th {} th { "at worst" } th { "where" } th { "runs" } }
                    @for score in report.settings.iter().take(MAX_SHOWN_SETTINGS) {
                        tr { td { (breakable_setting(&score.text())) } td { (percent(score.of_best)) } td { (tie_mark(score.ties)) } td { (percent(score.worst)) } td { (score.worst_at) } td { (grouped(score.runs)) } }
                    }
                } }
                h2 { "The best setting for each workload" }
                div.scroll { table {
                    tr { th { "work" } th { "CPUs" } th { "setting" } th { (metric) } th { "from" } th { "to" } th { "the next one" } th { "reaches" } }
                    @for best in &report.best {
                        tr {
                            td { (best.work) } td { (best.cpus) @if best.validated { "*" } } td { (breakable_setting(&best.setting)) }
                            td { (short_number(best.mean)) } td { (short_number(best.spread[0])) } td { (short_number(best.spread[1])) }
                            @match &best.second {
                                Some((name, part)) => { td { (breakable_setting(name)) } td { (percent(*part)) } }
                                None => { td {} td {} }
                            }
                        }
                    }
                } }
                h2 { "Sensitivity" }
                p { (SENSITIVITY_HELP) " A grey line is a workload on a number of CPUs; the blue line is their mean. Values have equal distances; many values are grouped with their neighbours." }
                @for design in designs { (design) }
            }
        }
    };
    Ok(page.into_string() + "\n")
}

/// Formats a setting so that a browser may break the line before each option.
fn breakable_setting(setting: &str) -> Markup {
    let parts = setting.split_inclusive(':');
    html! { @for part in parts { (part) wbr; } }
}

fn sensitivity_markup(design: &Sensitivity, metric: &str) -> anyhow::Result<Markup> {
    let pictures = design.knobs.iter().map(picture);
    let pictures =
        pictures.collect::<Result<Vec<_>, _>>().map_err(|error| anyhow::anyhow!("a picture: {error}"))?;
    let bar = |part: f64| format!("width: {:.0}px", part * 100.0);
    Ok(html! {
        h3 { (design.design) }
        p { (describe_accuracy(design)) "." }
        div.scroll { table {
            tr { th { "knob" } th { "alone" } th {} th { "with others" } th {} th { "% of the best" } th { "most of all" } th { "there" } }
            @for effect in &design.knobs {
                @let [of_best, work, there, _] = ranges(effect);
                tr {
                    td { (effect.knob) }
                    @for part in [effect.index.first, effect.index.total] {
                        td { (index(part, design.method)) } td style="text-align: left" { span.share style=(bar(part)) {} }
                    }
                    td { (of_best) } td { (work) } td { (there) }
                }
            }
        } }
        @for (effect, picture) in design.knobs.iter().zip(&pictures) {
            figure { (PreEscaped(picture)) figcaption { "% of the best " (metric) " by " (effect.knob) } }
        }
    })
}

/// Draws the mean results as a line over the values of an option, or over groups of neighbouring values.
fn picture(effect: &Effect) -> Result<String, DrawingAreaErrorKind<Error>> {
    let last = effect.means.len() as f64;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..last, 0.0..105.0)?;
        // The axis has a label at each half of a place: a value's name at the middle, nothing at whole numbers.
        let name = |x_value: &f64| {
            let place = x_value.floor();
            let is_middle = (x_value - place - 0.5).abs() < 0.01;
            let name = effect.means.get(place as usize).filter(|_| is_middle || last > 12.0);
            name.map(|(name, _)| name.clone()).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(effect.means.len().min(12) * 2 + 1)
            .x_label_formatter(&name)
            .y_label_formatter(&|value| format!("{value:.0}"))
            .x_desc(&effect.knob)
            .y_desc("% of the best")
            .draw()?;
        let place = |(x_value, mean): (usize, f64)| (x_value as f64 + 0.5, 100.0 * mean);
        for places_of_work in effect.places.iter().take(LINES) {
            let points = places_of_work.means.iter().copied().enumerate().map(place);
            chart.draw_series(LineSeries::new(points, BLACK.mix(0.25).stroke_width(1)))?;
        }
        let points = || effect.means.iter().map(|(_, mean)| *mean).enumerate().map(place);
        chart.draw_series(LineSeries::new(points(), BAR_COLOUR.stroke_width(2)))?;
        chart.draw_series(points().map(|point| Circle::new(point, 4, BAR_COLOUR.filled())))?;
        area.present()?;
    }
    Ok(svg)
}
