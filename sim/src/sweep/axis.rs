//! The values of one axis of a sweep: a number, a list, or a range by steps or by a factor.

use serde::Deserialize;

/// The largest number of values on an axis.
const MAX_VALUES: usize = 100_000;

/// The values of an axis, expanded to a list.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub(super) struct Axis(Vec<u64>);

/// A range such as `{ from = 1, to = 9, step = 2 }`, or with `factor = 2` instead of `step`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: u64,
    to: u64,
    step: Option<u64>,
    factor: Option<f64>,
}

impl Axis {
    /// Creates an axis with one value.
    pub(super) fn single_value(value: u64) -> Self {
        Self(vec![value])
    }
    /// Returns each value once, in the order of the list or range.
    pub(super) fn values(&self) -> &[u64] {
        &self.0
    }
}

impl Range {
    /// Returns the values up to `to`; `to` itself is included only if a step or factor reaches it. With a factor,
    /// values are rounded products; no library function computes them, so every machine gets the same values.
    fn values(&self) -> Result<Vec<u64>, String> {
        let &Self { from, to, step, factor } = self;
        if from > to {
            return Err(format!("from {from} to {to}: expected `from` to be at most `to`"));
        }
        let too_many = || format!("from {from} to {to}: more than {MAX_VALUES} values");
        let mut values = vec![];
        match (step, factor) {
            (Some(_), Some(_)) => return Err("expected `step` or `factor`, not both".to_owned()),
            (Some(0), None) => return Err("step 0: expected at least 1".to_owned()),
            (step, None) => {
                let step = step.unwrap_or(1);
                if (to - from) / step >= MAX_VALUES as u64 {
                    return Err(too_many());
                }
                let mut next_value = Some(from);
                while let Some(value) = next_value.filter(|value| *value <= to) {
                    values.push(value);
                    next_value = value.checked_add(step);
                }
            }
            (None, Some(factor)) => {
                if !(factor > 1.0 && factor.is_finite()) {
                    return Err(format!("factor {factor}: expected more than 1"));
                }
                if from == 0 {
                    return Err("from 0: expected at least 1, because the range has a factor".to_owned());
                }
                let mut next_value = from as f64;
                while next_value.round() <= to as f64 {
                    values.push(next_value.round() as u64);
                    next_value *= factor;
                    if values.len() > MAX_VALUES * 10 {
                        return Err(too_many());
                    }
                }
                values.dedup();
                if values.len() > MAX_VALUES {
                    return Err(too_many());
                }
            }
        }
        Ok(values)
    }
}

impl TryFrom<toml::Value> for Axis {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let number = |value: &toml::Value| {
            value
                .as_integer()
                .and_then(|n| u64::try_from(n).ok())
                .ok_or_else(|| format!("{value}: expected a number from 0"))
        };
        let values = match &value {
            toml::Value::Array(list) => list.iter().map(number).collect::<Result<Vec<_>, _>>()?,
            toml::Value::Table(_) => {
                let range: Range =
                    value.try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
                range.values()?
            }
            toml::Value::Integer(_) => vec![number(&value)?],
            other => {
                return Err(format!(
                    "{other}: expected a number, a list of numbers, or a range such as {{ from = 1, to = 9, step = 2 }} or {{ from = 1, \
                     to = 64, factor = 2 }}"
                ));
            }
        };
        if values.is_empty() {
            return Err("expected at least one value".to_owned());
        }
        if values.len() > MAX_VALUES {
            return Err(format!("more than {MAX_VALUES} values"));
        }
        let mut sorted_values = values.clone();
        sorted_values.sort_unstable();
        match sorted_values.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("{} is given twice", pair[0])),
            None => Ok(Self(values)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct AxisOption {
        a: Axis,
    }

    fn parse(text: &str) -> Result<Vec<u64>, String> {
        toml::from_str::<AxisOption>(&format!("a = {text}"))
            .map(|with_axis| with_axis.a.0)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn sweep_axis_is_a_number_list_or_range() {
        for (text, values) in [
            ("7", vec![7]),
            ("[3, 1, 2]", vec![3, 1, 2]),
            ("{ from = 1, to = 8 }", (1..=8).collect()),
            ("{ from = 1, to = 8, step = 3 }", vec![1, 4, 7]),
            ("{ from = 1, to = 64, factor = 2 }", vec![1, 2, 4, 8, 16, 32, 64]),
            ("{ from = 1, to = 100, factor = 10.0 }", vec![1, 10, 100]),
            ("{ from = 1, to = 6, factor = 2 }", vec![1, 2, 4]),
            ("{ from = 10, to = 1000, factor = 3.16 }", vec![10, 32, 100, 316, 997]),
            ("{ from = 5, to = 5, factor = 2 }", vec![5]),
            ("{ from = 1, to = 4, factor = 1.1 }", vec![1, 2, 3, 4]),
        ] {
            assert_eq!(parse(text).unwrap(), values, "{text}");
        }
    }

    #[test]
    fn invalid_sweep_axis_is_reported_on_one_line() {
        for (text, part) in [
            ("[]", "at least one value"),
            ("[1, 1]", "1 is given twice"),
            ("-1", "expected a number from 0"),
            ("\"all\"", "expected a number, a list of numbers, or a range"),
            ("{ from = 2, to = 1 }", "expected `from` to be at most `to`"),
            ("{ from = 1, to = 2, step = 0 }", "expected at least 1"),
            ("{ from = 1, to = 2, step = 1, factor = 2 }", "not both"),
            ("{ from = 1, to = 2, factor = 1 }", "more than 1"),
            ("{ from = 0, to = 2, factor = 2 }", "from 0: expected at least 1"),
            ("{ from = 0, to = 100000 }", "more than 100000 values"),
            ("{ from = 0, to = 3, by = 1 }", "unknown field `by`"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(part) && !message.contains('\n'), "{text}: {message}");
        }
    }
}
