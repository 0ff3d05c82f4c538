//! Runs simulations from seeds, and shrinks the failing scripts.

use super::*;

/// Runs a script under the script's schedule. The error is a description of the failure.
fn outcome(script: &Script) -> Result<(), String> {
    let (schedule, script) = (script.schedule, script.clone());
    once(schedule, STEPS, move || run(&script))
}
/// Kind of a failure: the text of the failure without the parts that vary between runs.
fn failure_kind(failure: &str) -> String {
    failure.split(|c: char| c.is_ascii_digit() || c == '{').next().unwrap_or("").to_owned()
}

pub(in crate::scenarios) struct Seeds(pub(in crate::scenarios) u64);

impl Seeds {
    /// Number of schedules that are tried for each smaller script.
    const TRIES: u64 = 30;
    /// Maximum time spent on shrinking one failure.
    const SHRINKING_TIMEOUT: Duration = Duration::from_secs(120);

    fn number(name: &str) -> Option<u64> {
        let text = std::env::var(name).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
    }
    /// Iterates over the requested seeds until the time is used up.
    fn seeds_until_timeout(&self) -> impl Iterator<Item = u64> {
        let (begun, seconds) = (Instant::now(), Self::number("WORLD_SECONDS"));
        let shard = shard().unwrap_or(Shard::WHOLE_SHARD);
        let seeds = match Self::number("WORLD_SEED") {
            Some(seed) => seed..seed + 1,
            None => {
                let first_seed = Self::number("WORLD_FROM").unwrap_or(1);
                let Range { start, end } = shard.items(seconds.map_or(self.0, |_| u64::MAX >> 1));
                first_seed + start..first_seed + end
            }
        };
        seeds.take_while(move |_| seconds.is_none_or(|seconds| begun.elapsed().as_secs() < seconds))
    }

    /// Runs the simulations of all seeds, and reports the first failure as a script.
    pub(in crate::scenarios) fn run(self, name: &str, _: fn()) {
        if let Ok(path) = std::env::var("WORLD_SCRIPT") {
            let text =
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("WORLD_SCRIPT={path}: {error}"));
            let script = Script::read(&text).unwrap_or_else(|error| panic!("WORLD_SCRIPT={path}: {error}"));
            return outcome(&script).unwrap_or_else(|failure| panic!("{path}: {failure}"));
        }
        let (begun, mut count, mut ran) = (Instant::now(), 0, 0..0);
        reset_thread_counts();
        for seed in self.seeds_until_timeout() {
            let script = Script::draw(seed);
            if let Err(failure) = outcome(&script) {
                println!(
                    "seed {seed} fails: {failure}\nWORLD_SEED={seed} repeats the failure, whose script is now shrunk."
                );
                let (script, failure) = shrink_script(script, &failure);
                let path = std::env::temp_dir().join(format!("uslab-world-{seed}.txt"));
                let text = format!("# {}\n{script}", failure.replace('\n', " "));
                let written = std::fs::write(&path, &text);
                println!("{text}");
                panic!(
                    "seed {seed}: {failure}; WORLD_SCRIPT={} repeats the script above (result of writing the file: {written:?})",
                    path.display()
                );
            }
            (count, ran) = (count + 1, if count == 0 { seed } else { ran.start }..seed);
        }
        let share = shard().map_or(String::new(), |shard| format!(" | share {shard}"));
        println!(
            "SCHEDULES {name} | threads {} | random {count} | pct 0 | depth 0{share} | seeds {} to {} | {:.2?}",
            threads(),
            ran.start,
            ran.end,
            begun.elapsed()
        );
    }

    /// Checks that the simulations detect a planted bug within the first `seeds` seeds.
    pub(in crate::scenarios) fn bug(
        self,
        bug: &'static str,
        property: &str,
        expected: &'static str,
        _: fn(),
    ) {
        if !has_bug(bug, property) {
            return;
        }
        catch(bug, property, "schedule", expected, move || {
            let (mut count, mut other) = (0, None);
            for seed in 1..=self.0 {
                count += 1;
                match outcome(&Script::draw(seed)) {
                    Err(failure) if failure.contains(expected) => return Err((count, failure)),
                    Err(failure) => other = other.or(Some(failure)),
                    Ok(()) => {}
                }
            }
            other.map_or(Ok(count), |failure| Err((count, failure)))
        });
    }
}

fn shrink_script(script: Script, failure: &str) -> (Script, String) {
    let (begun, way_of_it) = (Instant::now(), failure_kind(failure));
    let fails = |script: &Script| {
        let schedules = (0..Seeds::TRIES).map(|n| script.schedule.wrapping_add(n));
        let mut attempts = schedules.take_while(|_| begun.elapsed() < Seeds::SHRINKING_TIMEOUT);
        attempts.find(|schedule| {
            let rescheduled = Script { schedule: *schedule, ..script.clone() };
            outcome(&rescheduled).is_err_and(|failure| failure_kind(&failure) == way_of_it)
        })
    };
    let script = script.shrink(fails);
    let failure = outcome(&script).err().unwrap_or_else(|| failure.to_owned());
    (script, failure)
}

/// Prints, for each planted bug, the number of seeds until it is detected, and the failure. `WORLD_BUGS=file` names a
/// file with the bugs' names, one per line. No seed can detect a planted bug in a build without planted bugs.
#[test]
fn number_of_seeds_to_detect_each_planted_bug_is_printed() {
    let Ok(path) = std::env::var("WORLD_BUGS") else { return };
    let bugs = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("WORLD_BUGS={path}: {error}"));
    for bug in bugs.leak().lines() {
        let begun = Instant::now();
        plant(bug);
        let failure = Seeds(u64::MAX)
            .seeds_until_timeout()
            .find_map(|seed| Some((seed, outcome(&Script::draw(seed)).err()?)));
        plant("");
        let outcome_text = failure.map_or("unnoticed".to_owned(), |(seed, failure)| {
            format!("seed {seed} | {}", failure.replace('\n', " "))
        });
        println!("NOTICED {bug} | {:.1?} | {outcome_text}", begun.elapsed());
    }
}

/// Runs the stored scripts, each of which reproduces the fixed bug that its first line describes.
#[test]
fn stored_simulation_scripts_pass() {
    let scripts = [
        include_str!("kept/a_block_that_is_split_at_a_fork.txt"),
        include_str!("kept/a_grace_period_that_ends_at_a_fork.txt"),
        include_str!("kept/a_slab_that_waited_and_ends_at_a_fork.txt"),
        include_str!("kept/a_wait_that_ends_without_memory.txt"),
        include_str!("kept/an_allocation_while_the_first_calls_in.txt"),
    ];
    for script in scripts {
        outcome(&Script::read(script).unwrap()).unwrap();
    }
}

#[test]
fn simulation_scripts_round_trip_through_text() {
    for seed in 1..50 {
        let script = Script::draw(seed);
        assert_eq!(Script::read(&script.to_string()).as_ref(), Ok(&script));
    }
    let parse_error = |text: &str| Script::read(text).unwrap_err();
    assert_eq!(parse_error("thread\nalloc a"), "line 2: `a`: expected name=number");
    assert_eq!(parse_error("setup cpu=1").split(',').next(), Some("line 1: `cpu=1`: expected one of cpus"));
    assert_eq!(parse_error("thread\n\nfrees"), "line 3: `frees`: unknown operation");
    assert_eq!(parse_error("alloc"), "line 1: expected `thread` before");
}

/// The shrunk script must have one of each part, and only the operations needed to free a slab.
#[cfg_attr(not(uslab_planted), ignore = "needs planted bugs: cargo planted")]
#[test]
fn failing_seed_shrinks_to_a_shorter_failing_script() {
    plant("a freed slab stays charged");
    let found = (1..).find_map(|seed| {
        let script = Script::draw(seed);
        let failure = outcome(&script).err()?;
        Some((script, failure))
    });
    let (script, failure) = found.unwrap();
    let (small, again) = shrink_script(script, &failure);
    assert_eq!(failure_kind(&again), failure_kind(&failure));
    assert!(small.ops().count() <= 6, "the script must be minimal:\n{small}");
    assert_eq!(outcome(&Script::read(&small.to_string()).unwrap()), Err(again));
    plant("");
    assert_eq!(outcome(&small), Ok(()), "without the bug it passes:\n{small}");
}
