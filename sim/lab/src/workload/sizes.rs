//! The sizes of generated requests.

use super::error::SpecError;
use super::lines::Lines;
use super::rng::{Rng, WeightedValues};
use super::spec::Spec;
use core::fmt;
use core::str::FromStr;
use std::path::Path;

/// The size of the largest request, in bytes.
pub const MAX_BYTES: u64 = 1 << 30;
/// The default upper bound of a log-normal distribution, in bytes.
const DEFAULT_UPPER_BOUND: u64 = 1 << 20;
/// The largest number of sizes in a Zipf distribution.
const MAX_ZIPF_SIZES: u64 = 1 << 20;

const EXPECTED: &str = "fixed:BYTES, uniform:MIN..MAX, lognormal:MEDIAN,SIGMA[,MAX], zipf:EXPONENT,MIN..MAX[,STEP] or \
     histogram:FILE (lines of size,count)";

/// A distribution of request sizes. The distribution is parsed from text, and printed as the user spelled it.
///
/// | text | bytes |
/// |---|---|
/// | `fixed:64` | 64 |
/// | `uniform:16..4096` | each from 16 to 4096 as likely as any other |
/// | `lognormal:100,1.2` | half of the sizes above 100; the deviation of the logarithm is 1.2; cut off at 1 MiB, or at the third number |
/// | `zipf:1.1,16..4096` | 16, 32, 48 ...: the k-th in proportion to `1 / k^1.1`; the step is 16, or the third argument |
/// | `histogram:FILE` | by the file's lines of `size,count` |
///
/// ```
/// use uslab_lab::workload::{Rng, Sizes};
///
/// let sizes: Sizes = "uniform:16..4096".parse()?;
/// let mut rng = Rng::new(42);
/// assert!((16..=4096).contains(&sizes.sample(&mut rng)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Fixed(u64),
    Uniform(u64, u64),
    LogNormal { median: f64, sigma: f64, most: u64 },
    WeightedValues(WeightedValues),
}

impl Sizes {
    /// Draws a size in bytes, which is at least 1.
    pub fn sample(&self, rng: &mut Rng) -> usize {
        match &self.kind {
            Kind::Fixed(bytes) => *bytes as usize,
            Kind::Uniform(min, max) => rng.in_range(*min, *max) as usize,
            Kind::LogNormal { median, sigma, most: max } => {
                // The conversion saturates, and larger values are cut off below.
                let bytes = (median * libm::exp(sigma * rng.normal())) as u64;
                bytes.clamp(1, *max) as usize
            }
            Kind::WeightedValues(weighted) => weighted.pick(rng),
        }
    }
}

impl FromStr for Sizes {
    type Err = SpecError;

    /// # Errors
    /// Fails if the distribution is unknown, a number is out of its range, or a file is not a histogram.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec = Spec::new("sizes", EXPECTED, text);
        let (name, argument_text) = spec.parts();
        let kind = match name {
            "fixed" => Kind::Fixed(spec.number("the size", argument_text, 1, MAX_BYTES)?),
            "uniform" => {
                let (min, max) = spec.range(argument_text, 1, MAX_BYTES)?;
                Kind::Uniform(min, max)
            }
            "lognormal" => {
                let arguments = spec.arguments(argument_text, 2, 3)?;
                let median = spec.number("the median", arguments[0], 1.0, MAX_BYTES as f64)?;
                let sigma = spec.number("sigma", arguments[1], 0.0, 10.0)?;
                let max = arguments.get(2).map_or(Ok(DEFAULT_UPPER_BOUND), |max| {
                    spec.number("the largest size", max, 1, MAX_BYTES)
                })?;
                Kind::LogNormal { median, sigma, most: max }
            }
            "zipf" => Kind::WeightedValues(zipf(&spec, argument_text)?),
            "histogram" => Kind::WeightedValues(histogram(&spec, Path::new(argument_text))?),
            _ => return spec.unknown_name_error(name),
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

fn zipf(spec: &Spec<'_>, argument_text: &str) -> Result<WeightedValues, SpecError> {
    let arguments = spec.arguments(argument_text, 2, 3)?;
    let exponent = spec.number("the exponent", arguments[0], 0.0, 10.0)?;
    let (min, max) = spec.range(arguments[1], 1, MAX_BYTES)?;
    let step = arguments.get(2).map_or(Ok(16), |step| spec.number("the step", step, 1, MAX_BYTES))?;
    let ranks = (max - min) / step + 1;
    if ranks > MAX_ZIPF_SIZES {
        return spec.error(format!("{ranks} sizes; expected at most {MAX_ZIPF_SIZES}"));
    }
    // Weights are integers, so that no sum depends on its order. The first weight is 2^40, and no weight is 0.
    let weight = |rank: u64| (libm::pow(rank as f64, -exponent) * (1_u64 << 40) as f64) as u64;
    let weighted = WeightedValues::new((0..ranks).map(|i| ((min + i * step) as usize, weight(i + 1).max(1))));
    weighted.map_or_else(|| spec.error("no sizes"), Ok)
}

const PAIR_FORMAT: &str = "SIZE,COUNT, a size of 1 to 2^30 bytes; the first line may be `size,count`";

fn histogram(spec: &Spec<'_>, path: &Path) -> Result<WeightedValues, SpecError> {
    if path.as_os_str().is_empty() {
        return spec.error("no file is named");
    }
    let read_histogram = || {
        let mut pairs = vec![];
        let mut lines = Lines::open(path, PAIR_FORMAT)?;
        while let Some(line) = lines.next_line()? {
            let pair = line.text.split_once(',').map(|(size, count)| (size.trim(), count.trim()));
            if line.names(&["size", "count"]) {
                continue;
            }
            let pair = pair.and_then(|(size, count)| Some((size.parse().ok()?, count.parse().ok()?)));
            match pair.filter(|(size, _)| (1..=MAX_BYTES as usize).contains(size)) {
                Some(pair) => pairs.push(pair),
                None => return Err(line.error("no size and count", PAIR_FORMAT)),
            }
        }
        Ok(pairs)
    };
    match read_histogram() {
        Ok(pairs) => WeightedValues::new(pairs)
            .map_or_else(|| spec.error("the sum of its counts is zero or too large"), Ok),
        Err(error) => spec.error(error.to_string()),
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str, n: usize) -> Vec<usize> {
        let sizes: Sizes = text.parse().unwrap();
        assert_eq!(sizes.to_string(), text);
        let mut rng = Rng::new(1);
        (0..n).map(|_| sizes.sample(&mut rng)).collect()
    }
    fn error_of(text: &str) -> String {
        text.parse::<Sizes>().unwrap_err().to_string()
    }

    #[test]
    fn drawn_sizes_match_each_distribution() {
        assert_eq!(sizes("fixed:64", 3), [64; 3]);
        assert!(sizes("uniform:16..4096", 1000).iter().all(|size| (16..=4096).contains(size)));
        let mut log_normal = sizes("lognormal:100,1.2", 10_001);
        log_normal.sort_unstable();
        assert!((95..105).contains(&log_normal[5000]), "the median is {}", log_normal[5000]);
        // The 84.1 % quantile is one standard deviation above the median: 100 * e^1.2 = 332.
        assert!((320..345).contains(&log_normal[8413]), "{}", log_normal[8413]);
        assert_eq!(sizes("lognormal:1000,3,2000", 1000).into_iter().max(), Some(2000));
        assert_eq!(sizes("lognormal:1,10", 1000).into_iter().min(), Some(1));
        let zipf = sizes("zipf:1,16..64", 10_000);
        let share = |size| zipf.iter().filter(|s| **s == size).count() as f64 / 10_000.0;
        // The probabilities are 1, 1/2, 1/3 and 1/4, each divided by their sum, 25/12.
        for (size, expected) in [(16, 0.48), (32, 0.24), (48, 0.16), (64, 0.12)] {
            assert!((share(size) - expected).abs() < 0.015, "{size}: {}", share(size));
        }
        assert!(sizes("zipf:0,1..10,3", 100).iter().all(|size| [1, 4, 7, 10].contains(size)));
    }

    #[test]
    fn size_histogram_is_read_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sizes.csv");
        let text = format!("histogram:{}", path.display());
        std::fs::write(&path, "size,count\n24,3\n100, 1\n").unwrap();
        let drawn_sizes = sizes(&text, 4000);
        let small = drawn_sizes.iter().filter(|size| **size == 24).count();
        assert!((2900..3100).contains(&small) && drawn_sizes.iter().all(|size| [24, 100].contains(size)));
        std::fs::write(&path, "\nSize, Count\n24,3\n").unwrap();
        assert_eq!(sizes(&text, 2), [24; 2], "the first line with text may name the columns, in either case");
        std::fs::write(&path, b"24,3\n\0").unwrap();
        assert!(
            error_of(&text).contains(&format!("not text; expected {PAIR_FORMAT}")),
            "{}",
            error_of(&text)
        );
        std::fs::write(&path, "24,3\n0,1\n").unwrap();
        let path_text = path.display();
        assert!(
            error_of(&text)
                .contains(&format!("{path_text}:2: no size and count: \"0,1\"; expected {PAIR_FORMAT}")),
            "{}",
            error_of(&text)
        );
        std::fs::write(&path, "24,0\n").unwrap();
        assert!(error_of(&text).contains("the sum of its counts is zero"));
        std::fs::remove_file(&path).unwrap();
        assert!(error_of(&text).contains("cannot open"));
    }

    #[test]
    fn invalid_distribution_error_names_the_accepted_forms() {
        assert_eq!(
            error_of("unifrm:1..2"),
            format!("sizes \"unifrm:1..2\": unknown distribution \"unifrm\"; expected {EXPECTED}")
        );
        for (text, reason) in [
            ("fixed:0", "the size \"0\" is not a number from 1 to 1073741824"),
            ("fixed:", "the size \"\" is not a number"),
            ("uniform:64", "\"64\" is not a range"),
            ("uniform:64..16", "the upper end \"16\" is not a number from 64 to"),
            ("lognormal:100", "1 arguments instead of 2 to 3"),
            ("lognormal:100,nan", "sigma \"nan\" is not a number from 0 to 10"),
            ("zipf:1,1..1073741824,1", "1073741824 sizes; expected at most 1048576"),
            ("zipf:-1,16..32", "the exponent \"-1\" is not a number"),
            ("", "unknown distribution \"\""),
            ("histogram:", "no file is named"),
        ] {
            assert!(error_of(text).contains(reason), "{text}: {}", error_of(text));
        }
    }
}
