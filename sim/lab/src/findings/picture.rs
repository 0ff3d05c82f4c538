//! Pictures as data: curves over an axis, and bars. A terminal shows a picture as text, and a web page shows it as SVG.

use serde::Serialize;

/// A chart with curves over a common axis.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    /// The title of the chart, which describes its contents.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves of the chart.
    pub series: Vec<Series>,
    /// `true` if the heights of the curves were measured, and therefore differ between machines, builds or runs.
    pub measured: bool,
}

/// An axis of a picture.
#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    /// The quantity on the axis, with its unit.
    pub name: String,
    /// `true` if equal distances on the axis mean equal ratios.
    pub logarithmic: bool,
}

/// A curve.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The curve's name in the legend.
    pub name: String,
    /// The points on the curve, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Bars to compare.
#[derive(Clone, Debug, Serialize)]
pub struct Bars {
    /// The title of the picture, which describes the bars.
    pub title: String,
    /// The axis on which the lengths of bars are measured. On a linear axis, bars begin at 0.
    pub axis: Axis,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
    /// `true` if the lengths of the bars were measured, and therefore differ between machines, builds or runs.
    pub measured: bool,
}

/// A named length, drawn as a horizontal bar.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// The bar's name.
    pub name: String,
    /// The length of the bar in the unit of the axis, which is never negative.
    pub length: f64,
}

impl Axis {
    /// Creates a linear axis: equal distances on the axis mean equal differences.
    pub fn linear(name: impl Into<String>) -> Self {
        Self { name: name.into(), logarithmic: false }
    }
    /// Creates a logarithmic axis: equal distances on the axis mean equal ratios.
    pub fn logarithmic(name: impl Into<String>) -> Self {
        Self { name: name.into(), logarithmic: true }
    }
}

impl Bars {
    /// Creates bars of counts, which are equal on any machine.
    pub fn exact<N: Into<String>>(
        title: impl Into<String>,
        axis: Axis,
        bars: impl IntoIterator<Item = (N, f64)>,
    ) -> Self {
        let bar = |(name, length): (N, f64)| Bar { name: name.into(), length };
        Self { title: title.into(), axis, bars: bars.into_iter().map(bar).collect(), measured: false }
    }
    /// Creates bars of measured values.
    pub fn measured<N: Into<String>>(
        title: impl Into<String>,
        axis: Axis,
        bars: impl IntoIterator<Item = (N, f64)>,
    ) -> Self {
        Self { measured: true, ..Self::exact(title, axis, bars) }
    }
    /// Returns the range of values that the axis shows. On a logarithmic axis, bars begin at a power of ten below the
    /// shortest length, so that the shortest bar is visible. On a logarithmic axis, a length of 0 has no bar.
    pub(super) fn scale(&self) -> Scale {
        let lengths = || self.bars.iter().map(|bar| bar.length).filter(|length| *length > 0.0);
        let (min, max) = span(lengths()).unwrap_or((0.0, 0.0));
        let low = match self.axis.logarithmic && min > 0.0 {
            true => 10f64.powi(min.log10().ceil() as i32 - 1),
            false => 0.0,
        };
        Scale::of(&self.axis, (low, max))
    }
}

/// The range of values that an axis shows.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) logarithmic: bool,
}

impl Scale {
    /// A logarithmic axis that would begin at 0 or below is drawn as a linear axis. The range that is drawn always has
    /// a positive width.
    pub(super) fn of(axis: &Axis, (low, high): (f64, f64)) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, logarithmic: axis.logarithmic && low > 0.0 }
    }
    /// Returns the relative position of a value on the axis: 0 is the beginning, and 1 is the end.
    pub(super) fn part(&self, value: f64) -> f64 {
        let place = |x: f64| if self.logarithmic { x.ln() } else { x };
        let value = value.clamp(self.low, self.high);
        (place(value) - place(self.low)) / (place(self.high) - place(self.low))
    }
    /// Returns the value at a relative position on the axis.
    pub(super) fn value_at(&self, part: f64) -> f64 {
        match self.logarithmic {
            true => self.low * (self.high / self.low).powf(part),
            false => self.low + (self.high - self.low) * part,
        }
    }
    /// Divides the axis into `steps` equal intervals, and returns the index of the interval that contains a value.
    pub(super) fn step(&self, value: f64, steps: usize) -> usize {
        ((self.part(value) * steps as f64) as usize).min(steps - 1)
    }
    /// Returns a description of the axis, such as its range, to print after the axis's name.
    pub(super) fn shown(&self) -> String {
        let kind = if self.logarithmic { ", logarithmic" } else { "" };
        format!("from {} to {}{kind}", number(self.low), number(self.high))
    }
}

/// Returns the smallest and the largest of some values; `None` if the iterator is empty.
pub(super) fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |span, x| {
        let (low, high) = span.unwrap_or((x, x));
        Some((low.min(x), high.max(x)))
    })
}

/// Formats whole numbers with separators, and other numbers with three significant digits; only 0 is shown as 0.
pub(super) fn number(x: f64) -> String {
    let size = x.abs();
    let sign = if x < 0.0 { "-" } else { "" };
    if (x.fract() == 0.0 && size < 1e15) || (100.0..1e15).contains(&size) {
        return format!("{sign}{}", uslab_output::grouped(size.round() as u64));
    }
    if !(1e-6..1e15).contains(&size) {
        return format!("{x:.2e}");
    }
    let decimals = (2 - size.log10().floor() as i32) as usize;
    format!("{x:.decimals$}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_significant_digits() {
        let label =
            [0.0, 0.000512, 0.0625, 0.3000000004, 1.0, 20.328, 99.96, 1234.5, 65536.0, -0.5].map(number);
        assert_eq!(label, ["0", "0.000512", "0.0625", "0.3", "1", "20.3", "100", "1,235", "65,536", "-0.5"]);
        assert_eq!([1.5e-9, f64::INFINITY].map(number), ["1.50e-9", "inf"]);
    }

    #[test]
    fn shortest_chart_bar_stays_visible() {
        let bars = |axis| Bars::exact("t", axis, [("a", 10.0), ("b", 0.0), ("c", 4000.0)]);
        let scale = bars(Axis::logarithmic("ns")).scale();
        assert_eq!((scale.low, scale.high, scale.part(4000.0), scale.part(0.0)), (1.0, 4000.0, 1.0, 0.0));
        assert!(scale.part(10.0) > 0.1);
        let scale = bars(Axis::linear("ns")).scale();
        assert_eq!((scale.low, scale.part(1000.0)), (0.0, 0.25));
        // The bars have no lengths, and the scale must not divide by zero.
        let empty_scale = Bars::exact("t", Axis::logarithmic("ns"), [("a", 0.0)]).scale();
        assert_eq!((empty_scale.logarithmic, empty_scale.part(0.0)), (false, 0.0));
    }

    #[test]
    fn chart_axis_with_one_value_shows_it_at_the_beginning() {
        let scale = Scale::of(&Axis::logarithmic("ns"), (8.0, 8.0));
        assert_eq!((scale.part(8.0), scale.step(8.0, 8)), (0.0, 0));
    }
}
