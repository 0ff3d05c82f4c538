//! Shards, which divide work among several machines, and files that contain the results of shards.
//!
//! The notation `3/200` means shard 3 of 200, counted from 0. A cluster's job engine may assign the shard: see
//! [`Shard::from_job_engine`]. Each shard writes its result rows to a file whose name contains the shard ([`Share`]).
//! [`Share::join`] then reads the files of all shards. The join reports an error if a shard is missing or belongs to
//! another build.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// One of `count` shards of some work. The shards are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u64,
    count: u64,
}

impl Shard {
    /// The only shard of work that is not divided.
    pub const WHOLE_SHARD: Self = Self { index: 0, count: 1 };

    fn new(index: u64, count: u64) -> Result<Self, String> {
        match index < count {
            true => Ok(Self { index, count }),
            false if count == 0 => Err(format!("{index}/{count}: expected at least one shard")),
            false => Err(format!("{index}/{count}: expected a shard number from 0 to {}", count - 1)),
        }
    }

    /// Index of this shard, counted from 0.
    pub fn index(self) -> u64 {
        self.index
    }
    /// Number of shards.
    pub fn count(self) -> u64 {
        self.count
    }

    /// Returns the range of the items `0..total` that belongs to this shard. The items of a shard are adjacent, because
    /// adjacent items often need the same setup. The sizes of the shards differ by at most one item.
    pub fn items(self, total: u64) -> Range<u64> {
        let at = |index: u64| (u128::from(total) * u128::from(index) / u128::from(self.count)) as u64;
        at(self.index)..at(self.index + 1)
    }
    /// Returns `true` if the item with number `item` belongs to this shard. Every `count`-th item belongs to the same
    /// shard. Use `has` if the number of items is unknown.
    pub fn has(self, item: u64) -> bool {
        item % self.count == self.index
    }
    /// Returns `true` if the item with the name `name` belongs to this shard. Use `contains_item` if the items are not
    /// numbered.
    pub fn contains_item(self, name: &str) -> bool {
        self.has(Self::name_hash(name))
    }
    /// Returns a hash of `name`, which is the same in all shards.
    pub fn name_hash(name: &str) -> u64 {
        // FNV-1a returns equal hashes on every machine.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        name.bytes().fold(0xcbf2_9ce4_8422_2325, hash) >> 8
    }

    /// Returns the explicitly requested shard, or else the shard that the job engine assigns (see
    /// [`from_job_engine`](Self::from_job_engine)). Returns `None` if no shard is requested or assigned, so that all
    /// work is done.
    ///
    /// # Errors
    /// Returns an error if the environment variables of the job engine are invalid.
    pub fn requested(told: Option<Self>) -> Result<Option<Self>, String> {
        match told {
            Some(shard) => Ok(Some(shard)),
            None => Self::from_job_engine(|name| std::env::var(name).ok(), None),
        }
    }

    /// Returns the shard that a cluster's job engine assigns. Supported engines are Slurm (`SLURM_ARRAY_TASK_ID`,
    /// `_COUNT`, `_MIN`, `_STEP`) and Kubernetes Indexed Jobs (`JOB_COMPLETION_INDEX`, and `JOB_COMPLETIONS` or the
    /// argument `shards`). Returns `None` if no job engine is detected.
    ///
    /// # Errors
    /// Returns an error if a variable is missing or is not a number, or if the task numbers of the job array have gaps.
    pub fn from_job_engine(
        variable: impl Fn(&str) -> Option<String>,
        shards: Option<u64>,
    ) -> Result<Option<Self>, String> {
        let number = |name: &str| {
            let parse = |text: String| {
                text.parse::<u64>().map_err(|_| format!("{name}={text}: expected a number from 0"))
            };
            variable(name).map(parse).transpose()
        };
        if let Some(id) = number("SLURM_ARRAY_TASK_ID")? {
            let (min, step) =
                (number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0), number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1));
            let tasks = number("SLURM_ARRAY_TASK_COUNT")?;
            let Some(count) = shards.or(tasks) else {
                return Err(format!(
                    "SLURM_ARRAY_TASK_ID={id} without SLURM_ARRAY_TASK_COUNT: expected both, or --shard I/N"
                ));
            };
            if step == 0 || id < min || !(id - min).is_multiple_of(step) {
                return Err(format!("SLURM_ARRAY_TASK_ID={id}: expected {min} plus a multiple of {step}"));
            }
            if let (Some(max), Some(tasks)) = (number("SLURM_ARRAY_TASK_MAX")?, tasks)
                && max.saturating_sub(min) / step + 1 != tasks
            {
                return Err(format!(
                    "SLURM_ARRAY_TASK_COUNT={tasks}: tasks {min} to {max} have gaps; expected --shard I/N"
                ));
            }
            let shard = Self::new((id - min) / step, count);
            return shard.map(Some).map_err(|error| format!("SLURM_ARRAY_TASK_ID={id}: share {error}"));
        }
        if let Some(index) = number("JOB_COMPLETION_INDEX")? {
            let Some(count) = shards.map_or_else(|| number("JOB_COMPLETIONS"), |count| Ok(Some(count)))?
            else {
                return Err(format!(
                    "JOB_COMPLETION_INDEX={index} without a count: expected JOB_COMPLETIONS or --shards N"
                ));
            };
            let shard = Self::new(index, count);
            return shard.map(Some).map_err(|error| format!("JOB_COMPLETION_INDEX={index}: share {error}"));
        }
        match shards {
            Some(shards) => Err(format!(
                "--shards {shards}: neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX selects a shard; expected --shard I/{shards}"
            )),
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

/// The results of one shard: a line that identifies the work and the shard, and rows of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The name of the command whose work is divided, as one word.
    pub what: String,
    /// The shard that produced these rows.
    pub shard: Shard,
    /// A line that describes the build and its options. The line must be the same for all shards.
    pub of: String,
    /// The result rows, each of which is one line.
    pub rows: Vec<String>,
}

impl Share {
    /// Returns the default file name for the results of a shard of `what`, in the directory `folder`.
    pub fn file(folder: &Path, what: &str, shard: Shard) -> PathBuf {
        folder.join(format!("{what}.{}-of-{}.rows", shard.index, shard.count))
    }

    /// Writes the result file. If writing fails, no incomplete file is left.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let Self { what, shard, of, rows } = self;
        let mut text = format!("SHARE {what} {shard} of {of}\n");
        rows.iter().for_each(|row| text.extend([row, "\n"]));
        text += &format!("END {}\n", rows.len());
        let error = |error: std::io::Error| format!("{}: cannot write: {error}", path.display());
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
            std::fs::create_dir_all(folder).map_err(error)?;
        }
        let mut partly = path.as_os_str().to_owned();
        partly.push(format!(".{}", std::process::id()));
        std::fs::write(&partly, text).and_then(|()| std::fs::rename(&partly, path)).map_err(|failed| {
            _ = std::fs::remove_file(&partly);
            error(failed)
        })
    }

    /// Reads a result file that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, belongs to another command, or is truncated.
    pub fn read(what: &str, path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
        let mut lines = text.lines();
        let head =
            lines.next().and_then(|line| line.strip_prefix("SHARE ")?.strip_prefix(what)?.strip_prefix(' '));
        let head = head.and_then(|head| head.split_once(" of "));
        let head = head.and_then(|(shard, of)| Some((shard.parse().ok()?, of.to_owned())));
        let (shard, of) = head.ok_or_else(|| {
            format!("{shown}: not a share of {what}; expected a first line `SHARE {what} I/N of ...`")
        })?;
        let mut rows: Vec<String> = lines.map(str::to_owned).collect();
        let end = rows.pop();
        if end != Some(format!("END {}", rows.len())) {
            return Err(format!(
                "{shown}: the result of share {shard} is incomplete; expected a last line `END {}`",
                rows.len()
            ));
        }
        Ok(Self { what: what.to_owned(), shard, of, rows })
    }

    /// Reads the result files of all shards of `what`, and returns the results in the order of the shards.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if a shard is missing, occurs twice, or belongs to another build.
    pub fn join(what: &str, files: &[PathBuf]) -> Result<Vec<Self>, String> {
        let mut shares: Vec<(Self, &PathBuf)> = vec![];
        for file in files {
            let share = Self::read(what, file)?;
            let shard = share.shard;
            if let Some((first, other)) = shares.first()
                && (first.of != share.of || first.shard.count != shard.count)
            {
                let [mine, others] = [&share, first].map(|share| format!("{} of {}", share.shard, share.of));
                return Err(format!(
                    "{}: this file has share {mine}, but {} has share {others}; expected files of one run and one build",
                    file.display(),
                    other.display()
                ));
            }
            if let Some((_, other)) = shares.iter().find(|(other, _)| other.shard == shard) {
                return Err(format!("share {shard} is given twice: {}, {}", other.display(), file.display()));
            }
            shares.push((share, file));
        }
        let Some((first, _)) = shares.first() else {
            return Err(format!("no result file of {what}: expected one file for each share"));
        };
        let count = first.shard.count;
        for index in 0..count {
            if !shares.iter().any(|(share, _)| share.shard.index == index) {
                return Err(format!(
                    "share {index}/{count} of {what} is missing: expected the result files of all {count} shares"
                ));
            }
        }
        shares.sort_by_key(|(share, _)| share.shard.index);
        Ok(shares.into_iter().map(|(share, _)| share).collect())
    }
}

/// Joins the result rows of all shards of models and schedules into the rows that a run without shards would print. The
/// numbers of executions of each model are added up, and so are the numbers of schedules of each scenario.
///
/// Some models run completely in every shard, because their caller needs the total number of executions. Every shard
/// prints the row of a model that it ran completely. The joined rows contain a repeated row only once. A row may begin
/// with the name of its crate, as in `uslab-buddy | MODEL B1: ...`.
///
/// # Errors
/// Returns an error if no shard ran some part, if two shards report different results for a part, or if a model has
/// fewer executions than its minimum.
pub fn join_rows(shares: &[Vec<String>]) -> Result<Vec<String>, String> {
    let (mut models, mut schedules) =
        (BTreeMap::<&str, ModelParts>::new(), BTreeMap::<&str, [u64; 3]>::new());
    let mut whole = BTreeMap::<String, usize>::new();
    for rows in shares {
        let mut here = BTreeMap::<String, usize>::new();
        for row in rows {
            let error = |what: &str| format!("the row {row:?}: {what}");
            let number = |name: &str| {
                let number = field(row, name).and_then(|text| text.parse::<u64>().ok());
                number.ok_or_else(|| error(&format!("expected a number for {name}")))
            };
            let (head, _) = row.split_once(" | threads ").unwrap_or((row, ""));
            if head.starts_with("PART ") || head.contains(" | PART ") {
                let part = field(row, "part").and_then(|part| part.split_once(' '));
                let (place, name) = part.ok_or_else(|| error("expected a part"))?;
                let model = models.entry(head).or_default();
                model.threads = model.threads.max(number("threads")?);
                (model.scripts, model.floor) = (number("scripts")?, number("floor")?);
                field(row, "bound").unwrap_or_default().clone_into(&mut model.bound);
                let (script, executions) = (number("script")?, number("executions")?);
                if let Some(other) =
                    model.parts.insert((script, name), executions).filter(|other| *other != executions)
                {
                    return Err(error(&format!("another share reports {other} executions of this part")));
                }
                if let Some((place, all)) = place.split_once('/') {
                    let (Ok(place), Ok(all)) = (place.parse(), all.parse()) else {
                        return Err(error("expected a part"));
                    };
                    let numbers = model.numbers.entry(script).or_insert((all, BTreeSet::new()));
                    numbers.1.insert(place);
                    if numbers.0 != all {
                        return Err(error("another share has a different number of parts"));
                    }
                }
            } else if field(row, "share").is_some() {
                let of = schedules.entry(head).or_default();
                *of = [of[0].max(number("threads")?), of[1] + number("random")?, of[2] + number("pct")?];
            } else {
                // The time column differs between runs, so rows are compared without it.
                let timed = ["MODEL", "SCHEDULES"]
                    .iter()
                    .any(|kind| head.split(" | ").any(|part| part.starts_with(kind)));
                let row = if timed { row.rsplit_once(" | ").map_or(&**row, |(row, _)| row) } else { row };
                *here.entry(row.to_owned()).or_default() += 1;
            }
        }
        for (row, count) in here {
            let most = whole.entry(row).or_default();
            *most = count.max(*most);
        }
    }
    let mut joined: Vec<String> =
        whole.into_iter().flat_map(|(row, count)| std::iter::repeat_n(row, count)).collect();
    for (head, ModelParts { threads, bound, scripts, floor, parts, numbers }) in models {
        for script in 0..scripts {
            let (all, there) =
                numbers.get(&script).ok_or_else(|| format!("{head}: script {script} is missing"))?;
            if let Some(part) = (0..*all).find(|part| !there.contains(part)) {
                return Err(format!("{head}: script {script}: part {part} of {all} is missing"));
            }
        }
        let executions: u64 = parts.values().sum();
        if executions < floor {
            return Err(format!(
                "{head}: {executions} executions, but the floor is {floor}: the model collapsed to too few executions"
            ));
        }
        joined.push(format!(
            "{} | threads {threads} | bound {bound} | scripts {scripts} | executions {executions} | floor {floor}",
            match head.split_once(" | PART ") {
                Some((whose, name)) => format!("{whose} | MODEL {name}"),
                None => head.replacen("PART", "MODEL", 1),
            }
        ));
    }
    joined.extend(schedules.into_iter().map(|(head, [threads, random, pct])| {
        format!("{head} | threads {threads} | random {random} | pct {pct}")
    }));
    Ok(joined)
}

/// The parts of one model, collected from all shards.
#[derive(Debug, Default)]
struct ModelParts<'r> {
    threads: u64,
    bound: String,
    scripts: u64,
    floor: u64,
    /// The number of executions for each script and part.
    parts: BTreeMap<(u64, &'r str), u64>,
    /// For each script, the number of its parts and the set of parts that ran.
    numbers: BTreeMap<u64, (u64, BTreeSet<u64>)>,
}

fn field<'r>(row: &'r str, name: &str) -> Option<&'r str> {
    row.split(" | ").find_map(|part| part.strip_prefix(name)?.strip_prefix(' '))
}

/// Removes from a command's environment all variables that models read. After `unset`, the models of the started
/// program run with default settings.
pub fn unset(program: &mut std::process::Command) -> &mut std::process::Command {
    let settings =
        ["BOUND", "MODEL_ROWS", "OM", "OM_LIST", "REPLAY", "SCHEDULES", "SHARD", "STORY", "STORY_JSON"];
    settings.iter().fold(program, |program, name| program.env_remove(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(variables: &[(&str, &str)], shards: Option<u64>) -> Result<Option<Shard>, String> {
        let variable =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Shard::from_job_engine(variable, shards)
    }

    #[test]
    fn shards_split_the_work_without_overlap() {
        for (total, count) in (0..300).flat_map(|total| (1..70).map(move |count| (total * total, count))) {
            let shares: Vec<_> = (0..count).map(|index| Shard { index, count }.items(total)).collect();
            assert_eq!((shares[0].start, shares[shares.len() - 1].end), (0, total));
            assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            let sizes = || shares.iter().map(|share| share.end - share.start);
            assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
    }

    #[test]
    fn each_work_item_belongs_to_a_single_shard() {
        let owners = |has: &dyn Fn(Shard) -> bool| {
            (0..7).filter(|index| has(Shard { index: *index, count: 7 })).count()
        };
        assert!((0..100).all(|item| owners(&|shard| shard.has(item)) == 1));
        let names: Vec<String> = (0..700).map(|i| format!("M{}: model {i}", i % 9)).collect();
        assert!(names.iter().all(|name| owners(&|shard| shard.contains_item(name)) == 1));
        let of = |index| names.iter().filter(|name| Shard { index, count: 7 }.contains_item(name)).count();
        assert!(
            (0..7).all(|index| (60..=140).contains(&of(index))),
            "{:?}",
            (0..7).map(of).collect::<Vec<_>>()
        );
    }

    #[test]
    fn merge_requires_all_shards_of_the_same_build() {
        let folder = std::env::temp_dir().join(format!("uslab-sync-shares-{}", std::process::id()));
        let share = |index, of: &str| Share {
            what: "work".to_owned(),
            shard: Shard { index, count: 3 },
            of: of.to_owned(),
            rows: vec![format!("row of {index}"), "another".to_owned()],
        };
        let file = |name: &str| folder.join(name);
        let write = |name: &str, share: &Share| {
            share.write(&file(name)).unwrap();
            file(name)
        };
        let [a, b, c] = [0, 1, 2].map(|index| write(&format!("{index}"), &share(index, "build 1")));
        let joined = Share::join("work", &[c.clone(), a.clone(), b.clone()]).unwrap();
        assert_eq!(joined, [0, 1, 2].map(|index| share(index, "build 1")));
        let wrong = |files: &[&PathBuf], part: &str| {
            let files: Vec<PathBuf> = files.iter().copied().cloned().collect();
            let said = Share::join("work", &files).unwrap_err();
            assert!(said.contains(part), "{said}");
        };
        wrong(&[&a, &c], "share 1/3 of work is missing");
        wrong(&[&a, &b, &c, &a], "share 0/3 is given twice");
        wrong(&[], "no result file of work");
        let other = write("other", &share(1, "build 2"));
        wrong(&[&a, &other, &c], "other: this file has share 1/3 of build 2, but ");
        std::fs::write(file("cut"), "SHARE work 1/3 of build 1\nrow of 1\n").unwrap();
        wrong(&[&a, &file("cut"), &c], "cut: the result of share 1/3 is incomplete");
        std::fs::write(file("rest"), "SHARE rest 1/3 of build 1\nEND 0\n").unwrap();
        wrong(&[&file("rest")], "rest: not a share of work");
        wrong(&[&file("none")], "none: ");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn merge_requires_all_parts_of_a_model() {
        let part = |script, number: &str, name: &str, executions| {
            format!(
                "a | PART M1: x | threads 2 | bound 2 | scripts 2 | executions {executions} | floor 9 | script {script} | part {number} {name}"
            )
        };
        let both = "a | MODEL y | threads 2 | bound 2 | scripts 1 | executions 7 | floor 2";
        let schedules = |share: &str, n| {
            format!("a | SCHEDULES z | threads 3 | random {n} | pct {n} | depth 3{share} | 1ms")
        };
        let first = vec![
            part(0, "0/2", "0.1", 4),
            part(0, "late", "1*3", 3),
            part(1, "0/1", "", 2),
            format!("{both} | 1.1ms"),
            schedules(" | share 0/2", 50),
            schedules("", 10).replace(" z ", " v "),
            "a | CAUGHT a bug | property M1".to_owned(),
        ];
        let second = vec![
            part(0, "1/2", "0.2", 5),
            part(0, "late", "1*3", 3),
            format!("{both} | 1.2ms"),
            schedules(" | share 1/2", 20),
            schedules("", 10).replace(" z ", " v "),
        ];
        assert_eq!(
            join_rows(&[first.clone(), second.clone()]).unwrap(),
            [
                "a | CAUGHT a bug | property M1",
                both,
                "a | SCHEDULES v | threads 3 | random 10 | pct 10 | depth 3",
                "a | MODEL M1: x | threads 2 | bound 2 | scripts 2 | executions 14 | floor 9",
                "a | SCHEDULES z | threads 3 | random 70 | pct 70",
            ]
        );
        let wrong = |change: &dyn Fn(&mut Vec<String>), part: &str| {
            let mut first = first.clone();
            change(&mut first);
            let said = join_rows(&[first, second.clone()]).unwrap_err();
            assert!(said.contains(part), "{said}");
        };
        wrong(&|rows| _ = rows.remove(0), "M1: x: script 0: part 0 of 2 is missing");
        wrong(&|rows| _ = rows.remove(2), "M1: x: script 1 is missing");
        wrong(&|rows| rows[1] = part(0, "late", "1*3", 4), "another share reports 4 executions of this part");
        wrong(&|rows| rows[0] = part(0, "0/3", "0.1", 4), "another share has a different number of parts");
        assert!(
            join_rows(&[first.iter().chain(&second).map(|row| row.replace("floor 9", "floor 15")).collect()])
                .unwrap_err()
                .contains("14 executions, but the floor is 15")
        );
    }

    #[test]
    fn loom_and_shuttle_select_equal_shards() {
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
    fn invalid_shard_is_named_in_the_error() {
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
                "expected 1 plus a multiple of 2",
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
