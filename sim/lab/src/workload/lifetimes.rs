//! The lifetimes of generated blocks.

use super::error::SpecError;
use super::rng::Rng;
use super::spec::Spec;
use core::fmt;
use core::str::FromStr;

/// The longest lifetime that a user can choose, in ticks.
const MAX_LIFETIME: u64 = 1 << 40;

const LIFETIMES: &str = "fixed:TICKS, uniform:MIN..MAX, exponential:MEAN, bimodal:SHORT,LONG,SHARE (means, LONG may be \
     `forever`; the share of long ones, 0 to 1) or forever";

/// A distribution of lifetimes, in ticks. The distribution is parsed from text, and printed as the user spelled it.
///
/// | text | ticks |
/// |---|---|
/// | `fixed:100` | 100 |
/// | `uniform:1..1000` | each as likely as any other |
/// | `exponential:100` | each block dies with a probability of 1/100 per tick |
/// | `bimodal:20,5000,0.05` | exponential with mean 20; for 5 % of the blocks, exponential with mean 5000 (or `forever`) |
/// | `forever` | no block is freed |
#[derive(Clone, Debug, PartialEq)]
pub struct Lifetimes {
    text: String,
    kind: Lifetime,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lifetime {
    Uniform(u64, u64),
    Exponential(f64),
    Bimodal { short: f64, long: Option<f64>, share: f64 },
    Forever,
}

impl Lifetimes {
    /// Draws a lifetime of at least 1 tick, or `None` if the block lives until the end of the workload.
    pub fn sample(&self, rng: &mut Rng) -> Option<u64> {
        let mean = match self.kind {
            Lifetime::Uniform(min, max) => return Some(rng.in_range(min, max)),
            Lifetime::Exponential(mean) => mean,
            Lifetime::Bimodal { short, long, share } => {
                if rng.unit() < share {
                    long?
                } else {
                    short
                }
            }
            Lifetime::Forever => return None,
        };
        Some((libm::ceil(rng.exponential(mean)) as u64).clamp(1, MAX_LIFETIME))
    }
}

impl FromStr for Lifetimes {
    type Err = SpecError;

    /// # Errors
    /// Fails if the distribution is unknown, or a number is out of its range.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec = Spec::new("lifetimes", LIFETIMES, text);
        let (name, argument_text) = spec.parts();
        let mean = |name: &str, text: &str| spec.number(name, text, 1.0, MAX_LIFETIME as f64);
        let kind = match name {
            "fixed" => {
                let ticks = spec.number("the lifetime", argument_text, 1, MAX_LIFETIME)?;
                Lifetime::Uniform(ticks, ticks)
            }
            "uniform" => {
                let (min, max) = spec.range(argument_text, 1, MAX_LIFETIME)?;
                Lifetime::Uniform(min, max)
            }
            "exponential" => Lifetime::Exponential(mean("the mean", argument_text)?),
            "bimodal" => {
                let arguments = spec.arguments(argument_text, 3, 3)?;
                Lifetime::Bimodal {
                    short: mean("the short mean", arguments[0])?,
                    long: if arguments[1] == "forever" {
                        None
                    } else {
                        Some(mean("the long mean", arguments[1])?)
                    },
                    share: spec.number("the share", arguments[2], 0.0, 1.0)?,
                }
            }
            "forever" if argument_text.is_empty() => Lifetime::Forever,
            _ => return spec.unknown_name_error(name),
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

impl fmt::Display for Lifetimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetimes(text: &str) -> Vec<Option<u64>> {
        let lifetimes: Lifetimes = text.parse().unwrap();
        assert_eq!(lifetimes.to_string(), text);
        let mut rng = Rng::new(1);
        (0..10_000).map(|_| lifetimes.sample(&mut rng)).collect()
    }
    fn mean(ticks: &[Option<u64>]) -> f64 {
        ticks.iter().flatten().sum::<u64>() as f64 / ticks.len() as f64
    }

    #[test]
    fn drawn_lifetimes_match_each_distribution() {
        assert!(lifetimes("fixed:7").iter().all(|ticks| *ticks == Some(7)));
        assert!(lifetimes("forever").iter().all(Option::is_none));
        let uniform = lifetimes("uniform:1..999");
        assert!((mean(&uniform) - 500.0).abs() < 10.0 && uniform.iter().flatten().max() <= Some(&999));
        let exponential = lifetimes("exponential:100");
        assert!((mean(&exponential) - 100.5).abs() < 3.0, "{}", mean(&exponential));
        assert_eq!(exponential.iter().flatten().min(), Some(&1));
        // The mean is 0.95 * 20 + 0.05 * 5000, plus half a tick for rounding up.
        let bimodal = lifetimes("bimodal:20,5000,0.05");
        assert!((mean(&bimodal) - 269.5).abs() < 25.0, "{}", mean(&bimodal));
        let immortal_count =
            lifetimes("bimodal:20,forever,0.25").iter().filter(|ticks| ticks.is_none()).count();
        assert!((2400..2600).contains(&immortal_count), "{immortal_count}");
    }

    #[test]
    fn invalid_distribution_error_names_the_accepted_forms() {
        let error_of = |text: &str| text.parse::<Lifetimes>().unwrap_err().to_string();
        assert_eq!(
            error_of("bimodal:20,5000"),
            format!("lifetimes \"bimodal:20,5000\": 2 arguments instead of 3; expected {LIFETIMES}")
        );
        for (text, reason) in [
            ("exponential:0", "the mean \"0\" is not a number from 1 to"),
            ("bimodal:1,2,1.5", "the share \"1.5\" is not a number from 0 to 1"),
            ("forever:3", "unknown distribution"),
            ("uniform:0..3", "the lower end \"0\""),
        ] {
            assert!(error_of(text).contains(reason), "{text}: {}", error_of(text));
        }
    }
}
