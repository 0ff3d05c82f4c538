//! The arrival pattern of a workload: how many new blocks each tick requests.

use super::error::SpecError;
use super::rng::Rng;
use super::spec::Spec;
use core::fmt;
use core::str::FromStr;

const EXPECTED: &str = "steady, burst:COUNT,EVERY or poisson:PER_TICK";

/// The pattern that determines how many blocks a workload requests in each tick. The pattern is parsed from text, and
/// printed as the user spelled it.
///
/// | text | |
/// |---|---|
/// | `steady` | one per tick, so that lifetimes are numbers of allocations |
/// | `burst:30,100` | 30 in one tick, every 100 ticks |
/// | `poisson:1.5` | at random, 1.5 per tick on average |
#[derive(Clone, Debug, PartialEq)]
pub struct Arrivals {
    text: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Burst { count: u64, every: u64 },
    Poisson { per_tick: f64 },
}

/// The state of an [`Arrivals`] pattern during a run.
#[derive(Clone, Debug)]
pub(super) struct ArrivalState {
    kind: Kind,
    /// The time of the next arrival of a Poisson process; the first arrival is at 0.
    next_tick: f64,
}

impl Arrivals {
    pub(super) fn begin(&self) -> ArrivalState {
        ArrivalState { kind: self.kind, next_tick: 0.0 }
    }
}

impl ArrivalState {
    /// Returns the number of blocks that arrive in the tick `tick`. Each call must pass a larger tick than the call
    /// before.
    pub(super) fn arrivals_at(&mut self, tick: u64, rng: &mut Rng) -> u64 {
        match self.kind {
            Kind::Burst { count, every } => {
                if tick.is_multiple_of(every) {
                    count
                } else {
                    0
                }
            }
            Kind::Poisson { per_tick } => {
                let mut count = 0;
                while self.next_tick < (tick + 1) as f64 {
                    count += 1;
                    self.next_tick += rng.exponential(1.0 / per_tick);
                }
                count
            }
        }
    }
    /// Returns the earliest tick after `tick` that can have arrivals; `tick` must be the last argument that
    /// `arrivals_at` received.
    pub(super) fn next_arrival(&self, tick: u64) -> u64 {
        match self.kind {
            Kind::Burst { every, .. } => (tick / every + 1) * every,
            Kind::Poisson { .. } => (self.next_tick as u64).max(tick + 1),
        }
    }
}

impl FromStr for Arrivals {
    type Err = SpecError;

    /// # Errors
    /// Fails if the pattern is unknown, or a number is out of its range.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec = Spec::new("arrivals", EXPECTED, text);
        let (name, argument_text) = spec.parts();
        let kind = match name {
            "steady" if argument_text.is_empty() => Kind::Burst { count: 1, every: 1 },
            "burst" => {
                let arguments = spec.arguments(argument_text, 2, 2)?;
                Kind::Burst {
                    count: spec.number("the count", arguments[0], 1, 1 << 32)?,
                    every: spec.number("the ticks between", arguments[1], 1, 1 << 32)?,
                }
            }
            "poisson" => Kind::Poisson { per_tick: spec.number("the rate", argument_text, 0.001, 1e6)? },
            _ => return spec.unknown_name_error(name),
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str, ticks: u64) -> Vec<u64> {
        let arrivals: Arrivals = text.parse().unwrap();
        assert_eq!(arrivals.to_string(), text);
        let (mut arrival_state, mut rng) = (arrivals.begin(), Rng::new(1));
        (0..ticks).map(|tick| arrival_state.arrivals_at(tick, &mut rng)).collect()
    }

    #[test]
    fn arrival_patterns_create_blocks_at_their_ticks() {
        assert_eq!(counts("steady", 4), [1; 4]);
        assert_eq!(counts("burst:30,3", 7), [30, 0, 0, 30, 0, 0, 30]);
        let poisson = counts("poisson:1.5", 10_000);
        let mean_arrivals = poisson.iter().sum::<u64>() as f64 / 1e4;
        let variance = poisson.iter().map(|n| (*n as f64 - mean_arrivals).powi(2)).sum::<f64>() / 1e4;
        assert!(
            (mean_arrivals - 1.5).abs() < 0.05 && (variance - 1.5).abs() < 0.1,
            "{mean_arrivals} {variance}"
        );
    }

    #[test]
    fn next_arrival_tick_is_exact() {
        for text in ["steady", "burst:30,7", "poisson:0.01", "poisson:3"] {
            let all = counts(text, 2000);
            let (mut arrival_state, mut rng) = (text.parse::<Arrivals>().unwrap().begin(), Rng::new(1));
            let (mut tick, mut jumped_counts) = (0, vec![0; 2000]);
            while tick < 2000 {
                jumped_counts[tick as usize] = arrival_state.arrivals_at(tick, &mut rng);
                tick = arrival_state.next_arrival(tick);
            }
            assert_eq!(jumped_counts, all, "{text}");
        }
    }

    #[test]
    fn invalid_arrival_pattern_error_names_the_accepted_forms() {
        let error_of = |text: &str| text.parse::<Arrivals>().unwrap_err().to_string();
        assert_eq!(
            error_of("often"),
            "arrivals \"often\": unknown distribution \"often\"; expected steady, burst:COUNT,EVERY or poisson:PER_TICK"
        );
        assert!(error_of("burst:0,1").contains("the count \"0\" is not a number from 1 to 4294967296"));
        assert!(error_of("poisson:0").contains("the rate \"0\""));
    }
}
