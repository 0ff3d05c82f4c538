//! Draws throughput over CPUs as an SVG picture: a curve for each design, with both axes logarithmic.

use super::{Curve, ScaleReport};
use std::fmt::Write as _;

/// Colours that can be distinguished with any colour vision, on light and dark backgrounds (Okabe and Ito, "Color
/// Universal Design", 2008).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
/// The margins around the curves, and the height of a line of text, in pixels.
const PLOT_LEFT: f64 = 70.0;
const PLOT_RIGHT: f64 = 640.0;
const PLOT_TOP: f64 = 50.0;
const PLOT_BOTTOM: f64 = 390.0;
const LINE: f64 = 20.0;

/// The legend of the dotted line for throughput that grows linearly with the number of CPUs.
const LINEAR: [&str; 2] = [
    "Dotted: “linear scaling to any number of CPUs”, which the abstract of Bonwick and Adams, “Magazines and Vmem”",
    "(USENIX, 2001), says of the magazine layer; drawn from the first point of magazines01.",
];

/// A logarithmic axis.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Creates a logarithmic axis for the given values, drawn between two pixel positions.
    fn of(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let (low, high) = (values.clone().fold(f64::MAX, f64::min), values.fold(0.0, f64::max));
        Self { low, high: if high > low { high } else { low * 2.0 }, from, to }
    }
    fn at(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * (value / self.low).ln() / (self.high / self.low).ln()
    }
    /// Returns the values to mark on the axis: either all of them, or every n-th value, so that at most eleven are
    /// marked.
    fn marks(&self, values: &[f64]) -> Vec<f64> {
        let on = |value: &&f64| (self.low * 0.999..=self.high * 1.001).contains(*value);
        let all: Vec<f64> = values.iter().filter(on).copied().collect();
        let step = all.len().div_ceil(11).max(1);
        all.into_iter().step_by(step).collect()
    }
}

impl Curve {
    fn throughput(&self) -> impl Iterator<Item = (f64, f64)> + Clone {
        self.points.iter().map(|at| (f64::from(at.cpus), at.operations_per_us))
    }
}

impl ScaleReport {
    /// Returns the curves as an SVG picture, with a text alternative.
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(Curve::throughput);
        let x = Axis::of(points().map(|(cpus, _)| cpus), PLOT_LEFT, PLOT_RIGHT);
        let y = Axis::of(points().map(|(_, speed)| speed), PLOT_BOTTOM, PLOT_TOP);
        let mut workloads: Vec<&str> = self.curves.iter().map(|curve| curve.workload.as_str()).collect();
        workloads.dedup();
        let name = |curve: &Curve| match workloads.len() {
            1 => curve.design.clone(),
            _ => format!("{}, {}", curve.design, curve.workload),
        };
        let (profile, shown) = (&self.profile.name, workloads.join(", "));
        let title = escaped(&format!("{shown}: operations/µs over CPUs, predicted on profile {profile}"));
        let (mut note, mut drawn) = (String::new(), String::new());
        let validated = f64::from(self.profile.validated_cpus).min(x.high);
        let mut caption = vec!["All numbers are simulated.".to_owned()];
        if validated >= x.low {
            // The validated part ends halfway (on the logarithmic axis) to the next doubling, so that the last count is
            // inside.
            let right = x.at((validated * std::f64::consts::SQRT_2).min(x.high));
            let (width, height) = (right - PLOT_LEFT, PLOT_BOTTOM - PLOT_TOP);
            let _ = writeln!(
                drawn,
                r#"<rect class="validated" x="{PLOT_LEFT}" y="{PLOT_TOP}" width="{width:.1}" height="{height}"/>"#
            );
            caption[0] = format!(
                "Shaded area: up to {validated} CPUs, the profile was compared with measurements. Beyond it, numbers are only simulated."
            );
        }
        for cpus in x.marks(&(0..=10).map(|power| f64::from(1 << power)).collect::<Vec<_>>()) {
            let at = x.at(cpus);
            let _ = writeln!(drawn, r#"<path class="grid" d="M{at:.1} {PLOT_TOP}V{PLOT_BOTTOM}"/>"#);
            write_text(&mut drawn, (at, PLOT_BOTTOM + LINE), "middle", &cpus.to_string());
        }
        let decades = (-3..=6).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)));
        for speed in y.marks(&decades.collect::<Vec<_>>()) {
            let at = y.at(speed);
            let _ = writeln!(drawn, r#"<path class="grid" d="M{PLOT_LEFT} {at:.1}H{PLOT_RIGHT}"/>"#);
            write_text(&mut drawn, (PLOT_LEFT - 8.0, at + 5.0), "end", &speed.to_string());
        }
        write_text(
            &mut drawn,
            (f64::midpoint(PLOT_LEFT, PLOT_RIGHT), PLOT_BOTTOM + 2.0 * LINE),
            "middle",
            "CPUs",
        );
        write_text(&mut drawn, (PLOT_LEFT, PLOT_TOP - 10.0), "middle", "operations/µs");
        for (i, curve) in self.curves.iter().enumerate() {
            let (colour, dashes) = (COLOURS[i % COLOURS.len()], 6 * (i / COLOURS.len()));
            let at = |(cpus, speed)| format!("{:.1},{:.1}", x.at(cpus), y.at(speed));
            let path: Vec<_> = curve.throughput().map(at).collect();
            let line = format!(r#"stroke="{colour}" stroke-dasharray="{dashes} {}""#, dashes / 2);
            let _ = writeln!(drawn, r#"<polyline class="curve" {line} points="{}"/>"#, path.join(" "));
            for point in &path {
                let (x, y) = point.split_once(',').unwrap_or_default();
                let _ = writeln!(drawn, r#"<circle fill="{colour}" cx="{x}" cy="{y}" r="3.5"/>"#);
            }
            let (from, at) = (PLOT_RIGHT + 20.0, PLOT_TOP + LINE * (i as f64 + 0.5));
            let _ = writeln!(drawn, r#"<path class="curve" {line} d="M{from} {at}h28"/>"#);
            write_text(&mut drawn, (from + 36.0, at + 5.0), "start", &name(curve));
            let points = curve.throughput().map(|(cpus, speed)| format!("{speed:.1} on {cpus}"));
            let _ = write!(note, " {}: {}.", escaped(&name(curve)), points.collect::<Vec<_>>().join(", "));
        }
        let layer =
            self.curves.iter().find(|curve| curve.workload == "pairs" && curve.design == "magazines01");
        if let Some((cpus, speed)) = layer.and_then(|curve| curve.throughput().next()) {
            let most = (y.high / speed).min(x.high / cpus);
            let (x1, y1, x2, y2) = (x.at(cpus), y.at(speed), x.at(cpus * most), y.at(speed * most));
            let _ = writeln!(drawn, r#"<path class="linear" d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}"/>"#);
            caption.extend(LINEAR.map(str::to_owned));
        }
        for (i, words) in caption.iter().enumerate() {
            write_text(&mut drawn, (PLOT_LEFT, PLOT_BOTTOM + LINE * (i as f64 + 3.5)), "start", words);
        }
        let height = (PLOT_BOTTOM + LINE * (caption.len() as f64 + 4.0))
            .max(PLOT_TOP + LINE * (self.curves.len() as f64 + 1.0));
        let note =
            format!("Operations per microsecond, by number of CPUs.{note} {}", escaped(&caption.join(" ")));
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 940 {height}" role="img" aria-labelledby="title desc">
<title id="title">{title}</title>
<desc id="desc">{note}</desc>
<style>
svg {{ color: #1b1b1b; font: 14px sans-serif }} .ground {{ fill: #ffffff }} .grid {{ stroke: currentColor; stroke-opacity: .15 }}
.curve {{ fill: none; stroke-width: 2 }} .linear {{ stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 2 5 }}
.validated {{ fill: #009e73; fill-opacity: .15 }} text {{ fill: currentColor }}
@media (prefers-color-scheme: dark) {{ svg {{ color: #e4e4e4 }} .ground {{ fill: #16181d }} }}
</style>
<rect class="ground" width="940" height="{height}"/>
<text x="{PLOT_LEFT}" y="22" font-weight="bold">{title}</text>
{drawn}</svg>
"##
        )
    }
}

fn write_text(to: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = escaped(words);
    let _ = writeln!(to, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"#);
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
