//! Draws the day's results: memory above, latencies below, and the load as a shaded area behind both charts.

use super::{DayResults, INTERVALS, MIB, load::Curve};
use plotters::coord::ranged1d::ValueFormatter;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use std::io::Error;

/// Size of the picture in pixels.
const SIZE: (u32, u32) = (900, 720);
/// Colours that people with any colour vision can distinguish (Okabe and Ito, "Color Universal Design", 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const SHADE_COLOUR: RGBAColor = RGBAColor(128, 128, 128, 0.12);

type DrawResult<T = ()> = Result<T, DrawingAreaErrorKind<Error>>;

pub(super) fn draw(days: &[DayResults], length: f64) -> DrawResult<String> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        canvas.fill(&WHITE)?;
        let (upper_area, lower_area) = canvas.split_vertically(SIZE.1 / 2);
        let minutes = length / 60.0;
        let max_memory = days.iter().map(DayResults::peak).fold(1.0, f64::max) * 1.05;
        let mut chart = ChartBuilder::on(&upper_area)
            .caption("Resident memory, MiB; dashed: bytes of live values", ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(24)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..minutes, 0.0..max_memory)?;
        shade_load_area(&mut chart, minutes, 0.0, |load| max_memory * load)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        for (day, colour) in days.iter().zip(COLOURS) {
            let line = day.memory.iter().map(|(second, resident, _)| (second / 60.0, resident / MIB));
            chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
        }
        if let Some(day) = days.first() {
            let live = day.memory.iter().map(|(second, _, live)| (second / 60.0, live / MIB));
            chart.draw_series(DashedLineSeries::new(live, 6, 4, BLACK.stroke_width(1)))?;
        }

        let p99 = |day: &DayResults| -> Vec<(f64, f64)> {
            let boxplot_of = |(i, times): (usize, &hdrhistogram::Histogram<u64>)| {
                let middle_minute = (i as f64 + 0.5) * minutes / INTERVALS as f64;
                (middle_minute, times.value_at_quantile(0.99) as f64 / 1000.0)
            };
            day.intervals.iter().enumerate().filter(|(_, times)| !times.is_empty()).map(boxplot_of).collect()
        };
        let values = || days.iter().flat_map(|day| p99(day).into_iter().map(|(_, ms)| ms));
        let (axis_min, axis_max) =
            (values().fold(f64::MAX, f64::min) / 1.2, values().fold(0.0, f64::max) * 1.2);
        let mut chart = ChartBuilder::on(&lower_area)
            .caption("99th percentile by interval, ms", ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..minutes, (axis_min..axis_max).log_scale())?;
        shade_load_area(&mut chart, minutes, axis_min, |load| axis_min * (axis_max / axis_min).powf(load))?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("minutes of the day; shaded: the load")
            .y_label_formatter(&|y| if *y < 1.0 { format!("{y:.1}") } else { format!("{y:.0}") })
            .draw()?;
        for (day, colour) in days.iter().zip(COLOURS) {
            chart
                .draw_series(LineSeries::new(p99(day), colour.stroke_width(2)))?
                .label(&day.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        canvas.present()?;
    }
    Ok(svg)
}

/// Shades the area under the load curve behind a chart, starting at the axis value `axis_min`.
fn shade_load_area<Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>,
    minutes: f64,
    axis_min: f64,
    height: impl Fn(f64) -> f64,
) -> DrawResult {
    let top = (0..=200).map(|i| f64::from(i) / 200.0).map(|part| (part * minutes, height(Curve::load(part))));
    let corners: Vec<_> = [(0.0, axis_min)].into_iter().chain(top).chain([(minutes, axis_min)]).collect();
    chart.draw_series([Polygon::new(corners, SHADE_COLOUR)])?;
    Ok(())
}
