//! Which share of the items is ours.

use anyhow::{Context, bail};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Share `index` of `count`, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    index: u64,
    count: u64,
}

impl Shard {
    /// All of it.
    pub(super) const WHOLE: Self = Self { index: 0, count: 1 };

    fn new(index: u64, count: u64) -> Result<Self, String> {
        match index < count {
            true => Ok(Self { index, count }),
            false if count == 0 => Err(format!("{index}/{count}: expected at least one share")),
            false => Err(format!("{index}/{count}: expected a share from 0 to {}", count - 1)),
        }
    }

    /// The items of the share: a run of neighbours, because these have the same trace. Shares differ by one item at most.
    pub(super) fn items(self, total: u64) -> Range<u64> {
        let at = |index: u64| (u128::from(total) * u128::from(index) / u128::from(self.count)) as u64;
        at(self.index)..at(self.index + 1)
    }

    /// What the engine that runs this process says: Slurm (`SLURM_ARRAY_TASK_ID`, `_COUNT`, `_MIN`, `_STEP`) or a Kubernetes Indexed Job
    /// (`JOB_COMPLETION_INDEX`, and `JOB_COMPLETIONS` or `shards`). `None`: there is none.
    ///
    /// # Errors
    /// A variable is no number, one is missing, or the array has gaps.
    pub(super) fn of_engine(
        variable: impl Fn(&str) -> Option<String>,
        shards: Option<u64>,
    ) -> anyhow::Result<Option<Self>> {
        let number = |name: &str| {
            variable(name)
                .map(|text| {
                    text.parse::<u64>().with_context(|| format!("{name}={text}: expected a number from 0"))
                })
                .transpose()
        };
        if let Some(id) = number("SLURM_ARRAY_TASK_ID")? {
            let (min, step) =
                (number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0), number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1));
            let tasks = number("SLURM_ARRAY_TASK_COUNT")?;
            let Some(count) = shards.or(tasks) else {
                bail!(
                    "SLURM_ARRAY_TASK_ID={id} without SLURM_ARRAY_TASK_COUNT: expected both, or --shard I/N"
                );
            };
            if step == 0 || id < min || !(id - min).is_multiple_of(step) {
                bail!("SLURM_ARRAY_TASK_ID={id}: expected a task from {min} by steps of {step}");
            }
            if let (Some(max), Some(tasks)) = (number("SLURM_ARRAY_TASK_MAX")?, tasks)
                && max.saturating_sub(min) / step + 1 != tasks
            {
                bail!("SLURM_ARRAY_TASK_COUNT={tasks}: tasks {min} to {max} have gaps; expected --shard I/N");
            }
            let shard = Self::new((id - min) / step, count);
            return shard
                .map(Some)
                .map_err(|error| anyhow::anyhow!("SLURM_ARRAY_TASK_ID={id}: share {error}"));
        }
        if let Some(index) = number("JOB_COMPLETION_INDEX")? {
            let Some(count) = shards.map_or_else(|| number("JOB_COMPLETIONS"), |count| Ok(Some(count)))?
            else {
                bail!("JOB_COMPLETION_INDEX={index} without a count: expected JOB_COMPLETIONS or --shards N");
            };
            let shard = Self::new(index, count);
            return shard
                .map(Some)
                .map_err(|error| anyhow::anyhow!("JOB_COMPLETION_INDEX={index}: share {error}"));
        }
        match shards {
            Some(shards) => bail!(
                "--shards {shards}: neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX says which one; expected --shard I/{shards}"
            ),
            None => Ok(None),
        }
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        let (index, count) = numbers.ok_or("expected I/N, such as 0/200")?;
        Self::new(index, count)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn engine(variables: &[(&str, &str)], shards: Option<u64>) -> Result<Option<Shard>, String> {
        let variable =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Shard::of_engine(variable, shards).map_err(|error| format!("{error:#}"))
    }

    proptest! {
        #[test]
        fn shares_are_the_whole_without_overlap_and_differ_by_one(total in 0..100_000_u64, count in 1..700_u64) {
            let shares: Vec<_> = (0..count).map(|index| Shard { index, count }.items(total)).collect();
            prop_assert_eq!((shares[0].start, shares[shares.len() - 1].end), (0, total));
            prop_assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            let sizes = || shares.iter().map(|share| share.end - share.start);
            prop_assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
    }

    #[test]
    fn engines_say_which_share() {
        let slurm = |id, count, min, step| {
            let variables = [
                ("SLURM_ARRAY_TASK_ID", id),
                ("SLURM_ARRAY_TASK_COUNT", count),
                ("SLURM_ARRAY_TASK_MIN", min),
                ("SLURM_ARRAY_TASK_STEP", step),
            ];
            engine(&variables, None)
        };
        assert_eq!(slurm("3", "10", "0", "1"), Ok(Some(Shard { index: 3, count: 10 })));
        assert_eq!(slurm("10", "10", "1", "1"), Ok(Some(Shard { index: 9, count: 10 })));
        assert_eq!(slurm("9", "4", "3", "2"), Ok(Some(Shard { index: 3, count: 4 })));
        let kubernetes = [("JOB_COMPLETION_INDEX", "2"), ("JOB_COMPLETIONS", "5")];
        assert_eq!(engine(&kubernetes, None), Ok(Some(Shard { index: 2, count: 5 })));
        assert_eq!(engine(&kubernetes[..1], Some(7)), Ok(Some(Shard { index: 2, count: 7 })));
        assert_eq!(engine(&[], None), Ok(None));
    }

    #[test]
    fn a_share_that_cannot_be_is_named() {
        for (variables, shards, part) in [
            (&[("SLURM_ARRAY_TASK_ID", "x")][..], None, "SLURM_ARRAY_TASK_ID=x: expected a number"),
            (&[("SLURM_ARRAY_TASK_ID", "1")], None, "without SLURM_ARRAY_TASK_COUNT"),
            (&[("SLURM_ARRAY_TASK_ID", "9"), ("SLURM_ARRAY_TASK_COUNT", "5")], None, "from 0 to 4"),
            (
                &[
                    ("SLURM_ARRAY_TASK_ID", "2"),
                    ("SLURM_ARRAY_TASK_COUNT", "5"),
                    ("SLURM_ARRAY_TASK_MIN", "1"),
                    ("SLURM_ARRAY_TASK_STEP", "2"),
                ],
                None,
                "from 1 by steps of 2",
            ),
            (
                &[
                    ("SLURM_ARRAY_TASK_ID", "7"),
                    ("SLURM_ARRAY_TASK_COUNT", "2"),
                    ("SLURM_ARRAY_TASK_MIN", "7"),
                    ("SLURM_ARRAY_TASK_MAX", "9"),
                ],
                None,
                "have gaps",
            ),
            (&[("JOB_COMPLETION_INDEX", "1")], None, "expected JOB_COMPLETIONS or --shards N"),
            (&[("JOB_COMPLETION_INDEX", "5")], Some(5), "from 0 to 4"),
            (&[], Some(5), "expected --shard I/5"),
        ] {
            let said = engine(variables, shards).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
        for (text, part) in
            [("1", "expected I/N"), ("2/2", "from 0 to 1"), ("0/0", "at least one"), ("-1/2", "expected I/N")]
        {
            assert!(text.parse::<Shard>().unwrap_err().contains(part), "{text}");
        }
        assert_eq!("3/4".parse::<Shard>().unwrap().to_string(), "3/4");
    }
}
