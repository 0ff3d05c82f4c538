//! Runs, for each mutant, the tests and models that reach it, and stores the verdicts.

use crate::Args;
use crate::assembly;
use crate::build::Tree;
use crate::plan::{Config, select_mutants, shard_of_mutants};
use crate::programs::{
    INTEGRATION_TESTS, Program, STATED_BOUNDS_VARIABLE, Test, TestRunEnd, bound, programs, tests,
};
use crate::report::{JudgedMutant, Report, Verdict};
use anyhow::{Context, ensure};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};
use uslab_sync::shard::Shard;
use uslab_tests::jobs::side_by_side;
use uslab_tests::models::loom_flags;
use uslab_tests::mutate::Mutant;
use uslab_tests::workspace;

pub(crate) fn check(
    args: &Args,
    config: &Config,
    tree: &mut Tree,
    shard: Option<Shard>,
) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let sources = tree.write(None)?;
    let libraries: Vec<String> = tree.libraries().into_iter().map(str::to_owned).collect();
    let libraries: Vec<&str> = libraries.iter().map(String::as_str).collect();
    let loom = loom_flags();
    if !args.models {
        tree.settle(&["check", "--profile", "dev"], &libraries, "")?;
    }
    tree.settle(&["check", "--profile", "loom"], &libraries, &loom)?;
    let models = tree.settle(&["test", "--no-run", "--profile", "loom"], &libraries, &loom)?;
    let mut built = vec![(models, true)];
    if !args.models {
        built.push((tree.settle(&["test", "--no-run", "--profile", "dev"], &libraries, "")?, false));
        if tree.of.own {
            built.push((
                tree.settle(&["test", "--no-run", "--profile", "dev"], &INTEGRATION_TESTS, "")?,
                false,
            ));
        }
        // The cheaper programs come first.
        built.rotate_left(1);
    }
    let chosen = select_mutants(args, config, tree.mutants());
    let ours = shard_of_mutants(&chosen, shard);
    eprintln!(
        "check-mutants: {} mutants, {} do not compile, {:.0} s",
        ours.len(),
        tree.left_out.len(),
        begun.elapsed().as_secs_f64()
    );

    let programs: Vec<Program> = built.iter().flat_map(|(said, models)| programs(said, *models)).collect();
    let whole = INTEGRATION_TESTS.iter().filter(|word| **word == "--test" && tree.of.own).count();
    let packages = tree.of.packages.len();
    let expected = if args.models { packages } else { 2 * packages + whole };
    ensure!(programs.len() == expected, "cargo names {} test programs; expected {expected}", programs.len());
    let mut wrong = vec![];
    let tests = tests(&programs, &mut wrong)?;
    eprintln!("check-mutants: reached mutants found, {:.0} s", begun.elapsed().as_secs_f64());

    let packages = tree.of.packages.iter().map(|package| &*package.name);
    let kept = StoredVerdicts::open(sources, &judges(args.models.then_some(packages)))?;
    let end = args.minutes.map(|minutes| begun + Duration::from_secs(60 * u64::from(minutes)));
    let verdicts = side_by_side("mutants", ours, |mutant, bar| {
        bar.set_message(mutant.to_string());
        match kept.verdict(mutant) {
            Some(verdict) => Ok(verdict),
            None if end.is_some_and(|end| Instant::now() >= end) => Ok(Verdict::Waits),
            None => {
                let argued = config.equivalent.iter().any(|of| of.fits(mutant));
                kept.keep(mutant, judge(mutant, argued, &programs, &tests)?)
            }
        }
    })?;
    let sampled = args.sample.is_some() || verdicts.contains(&Verdict::Waits);
    let from = tree.mutants().count();
    let (of, left_out, seconds) = (chosen.len(), tree.left_out.len(), begun.elapsed().as_secs_f64());
    Ok(Report { of, from, sampled, mutants: judged(ours, verdicts), left_out, wrong, seconds })
}

fn judged(mutants: &[Mutant], verdicts: Vec<Verdict>) -> Vec<JudgedMutant> {
    let judged = mutants.iter().zip(verdicts);
    judged
        .map(|(mutant, verdict)| JudgedMutant { mutant: mutant.clone(), verdict, equivalent: None })
        .collect()
}

/// Judges mutants of restartable sequences like `check`, but one after the other, because each needs a build.
pub(crate) fn judge_assembly_mutants(
    args: &Args,
    config: &Config,
    tree: Tree,
    shard: Option<Shard>,
) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let tree = Tree {
        copy: workspace().join("target/mutants/assembly/tree"),
        files: BTreeMap::new(),
        left_out: HashSet::new(),
        ..tree
    };
    let (all, sources) = (assembly::assembly_mutants()?, tree.write(None)?);
    let chosen = select_mutants(args, config, all.iter().map(|of| &of.mutant));
    let (kept, tests) = (StoredVerdicts::open(sources, "assembly")?, assembly::tests(&tree)?);
    let end = args.minutes.map(|minutes| begun + Duration::from_secs(60 * u64::from(minutes)));
    let (ours, mut verdicts) = (shard_of_mutants(&chosen, shard), vec![]);
    for mutant in ours {
        verdicts.push(match kept.verdict(mutant) {
            Some(verdict) => verdict,
            None if end.is_some_and(|end| Instant::now() >= end) => Verdict::Waits,
            None => kept.keep(mutant, assembly::judge(&tree, &all[mutant.number as usize], &tests)?)?,
        });
    }
    let sampled = args.sample.is_some() || verdicts.contains(&Verdict::Waits);
    let (of, from, seconds) = (chosen.len(), all.len(), begun.elapsed().as_secs_f64());
    Ok(Report { of, from, sampled, mutants: judged(ours, verdicts), left_out: 0, wrong: vec![], seconds })
}

/// The largest total time in seconds of the tests that run together in one process, for each round.
pub(crate) const ROUNDS: [f64; 4] = [0.3, 1.0, 4.0, 1e9];

/// The time limit for a model that runs with its own bound.
const LIMIT: Duration = Duration::from_secs(120);

/// The number of timed-out tests after which the mutant counts as timed out; otherwise, hundreds of tests might reach
/// an endless loop.
const MAX_TIMED_OUT_TESTS: usize = 3;

/// Runs all tests that reach a mutant, until the verdict is known. If one program exceeds its time limit, another
/// program may still fail. If no program fails, the timed-out tests run again, each alone with four times its usual
/// time, until [`MAX_TIMED_OUT_TESTS`] of them time out again. Finally, models run with their own bounds, if they end
/// in time. Models run with their own bounds only for mutants that no test detected and no reason explains, unless the
/// environment sets a bound.
pub(crate) fn judge(
    mutant: &Mutant,
    argued: bool,
    programs: &[Program],
    tests: &[Test],
) -> anyhow::Result<Verdict> {
    let mut queues: Vec<Vec<&Test>> = programs.iter().map(|_| vec![]).collect();
    for test in tests.iter().filter(|test| test.reached.contains(&mutant.number)) {
        queues[test.program].push(test);
    }
    if queues.iter().all(Vec::is_empty) {
        return Ok(Verdict::Unreached);
    }
    let number = mutant.number.to_string();
    let (mut floor, mut late) = (None, vec![]);
    for most in ROUNDS {
        for (program, queue) in programs.iter().zip(&mut queues) {
            let mut seconds = 0.0;
            let enough = |test: &&Test| {
                seconds += test.seconds;
                seconds > most
            };
            let mut at = queue.iter().position(enough).unwrap_or(queue.len());
            if at == 0 && most >= 1.0 {
                at = 1.min(queue.len());
            }
            let rest = queue.split_off(at);
            let batch = std::mem::replace(queue, rest);
            let Some(_) = batch.first() else { continue };
            let expected: f64 = batch.iter().map(|test| test.seconds).sum();
            let names: Vec<&str> = batch.iter().map(|test| test.name.as_str()).collect();
            match program.run(&names, &[("MUTANT", &number)], limit(1.0, expected))?.0 {
                TestRunEnd::Passed => {}
                TestRunEnd::Failed { name, message } => match failed(program, name, message) {
                    verdict @ Verdict::Floor { .. } => floor = Some(verdict),
                    verdict => return Ok(verdict),
                },
                TestRunEnd::OutOfTime { name } => {
                    let mut rest = [batch, std::mem::take(queue)].concat();
                    // The test that did not end comes first.
                    rest.sort_by_key(|test| test.name != name);
                    late.extend(rest.into_iter().map(|test| (program, test)));
                }
            }
        }
    }
    let mut out_of_time = vec![];
    for (program, test) in late {
        if out_of_time.len() == MAX_TIMED_OUT_TESTS {
            break;
        }
        match program.run(&[&test.name], &[("MUTANT", &number)], limit(4.0, test.seconds))?.0 {
            TestRunEnd::Passed => {}
            TestRunEnd::Failed { name, message } => match failed(program, name, message) {
                verdict @ Verdict::Floor { .. } => floor = Some(verdict),
                verdict => return Ok(verdict),
            },
            TestRunEnd::OutOfTime { name } => out_of_time.push(name),
        }
    }
    let time = out_of_time.into_iter().next().map(|name| Verdict::Time { name });
    let weak = floor.or(time);
    if argued || weak.is_some() || bound().is_some() {
        return Ok(weak.unwrap_or(Verdict::Lives));
    }
    let models = tests.iter().filter(|test| programs[test.program].models);
    for test in models.filter(|test| test.reached.contains(&mutant.number)) {
        let (program, variables) =
            (&programs[test.program], [("MUTANT", number.as_str()), STATED_BOUNDS_VARIABLE]);
        if let TestRunEnd::Failed { name, message } = program.run(&[&test.name], &variables, LIMIT)?.0 {
            return Ok(failed(program, name, message));
        }
    }
    Ok(Verdict::Lives)
}

/// Returns the time limit for a program that needs `seconds` seconds without a mutant.
fn limit(times: f64, seconds: f64) -> Duration {
    const MIN_TIMEOUT_SECONDS: f64 = if cfg!(test) { 0.5 } else { 3.0 };
    Duration::from_secs_f64(times * (MIN_TIMEOUT_SECONDS + 10.0 * seconds))
}

fn failed(program: &Program, name: String, message: String) -> Verdict {
    match program.models {
        _ if message.contains("the model collapsed") => Verdict::Floor { name },
        true => Verdict::Model { name, message },
        false => Verdict::Test { name, message },
    }
}

/// The stored verdicts of interrupted runs on the same sources and tests.
pub(crate) struct StoredVerdicts {
    pub(crate) known: HashMap<String, Verdict>,
    pub(crate) file: fs::File,
}

/// Returns a name for the set of tests that gave the verdicts; the models of some packages detect fewer mutants than
/// the models of all packages.
fn judges<'p>(models: Option<impl Iterator<Item = &'p str>>) -> String {
    models.map_or("all".to_owned(), |packages| packages.fold("models".to_owned(), |by, of| by + "." + of))
}

/// Returns the verdicts in a stored file; its last line may be truncated.
pub(crate) fn parse_stored_verdicts(text: &str) -> impl Iterator<Item = (String, Verdict)> + '_ {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

impl StoredVerdicts {
    pub(crate) fn open(sources: u64, tests: &str) -> anyhow::Result<Self> {
        let bound = bound().map_or("own-bounds".to_owned(), |bound| format!("bound-{bound}"));
        let path = format!("target/mutants/verdicts.{sources:016x}.{tests}.{bound}");
        let path = workspace().join(path);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let known = parse_stored_verdicts(&text).collect();
        let file = fs::OpenOptions::new().create(true).append(true).open(&path);
        Ok(Self { known, file: file.with_context(|| path.display().to_string())? })
    }
    pub(crate) fn verdict(&self, mutant: &Mutant) -> Option<Verdict> {
        self.known.get(&mutant.to_string()).cloned()
    }
    pub(crate) fn keep(&self, mutant: &Mutant, verdict: Verdict) -> anyhow::Result<Verdict> {
        let line = serde_json::to_string(&(mutant.to_string(), &verdict))?;
        // Each line is written in one call, so that lines of several threads do not mix.
        (&self.file).write_all(format!("{line}\n").as_bytes())?;
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The models of one package may detect mutants that the models of another package miss.
    #[test]
    fn mutant_verdicts_depend_on_the_selected_models() {
        let packages: [&[&str]; 3] =
            [&["uslab-buddy"], &["uslab-magazine"], &["uslab-buddy", "uslab-magazine"]];
        let mut by = packages.map(|packages| judges(Some(packages.iter().copied()))).to_vec();
        by.push(judges(None::<std::iter::Empty<&str>>));
        assert_eq!(by.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{by:?}");
    }

    /// Regression test: the first test that exceeded its time limit determined the verdict, although another test would
    /// have failed.
    #[test]
    fn mutant_times_out_after_two_hangs_without_failure() {
        let folder = tempfile::tempdir().unwrap();
        let verdict = |scripts: &[&str]| {
            let programs: Vec<Program> = scripts
                .iter()
                .enumerate()
                .map(|(i, script)| {
                    let (path, name) = (folder.path().join(i.to_string()), i.to_string());
                    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
                    Program { path, folder: folder.path().to_owned(), name, models: false }
                })
                .collect();
            let test = |program, name: &str| Test {
                program,
                name: name.to_owned(),
                seconds: 0.01,
                reached: HashSet::from([0]),
            };
            let tests: Vec<Test> =
                (0..programs.len()).flat_map(|program| [test(program, "t"), test(program, "u")]).collect();
            judge(&assembly::assembly_mutants().unwrap()[0].mutant, true, &programs, &tests).unwrap()
        };
        let (hangs, fails) = ("echo 'test t ... '; exec sleep 1000", "echo 'test t ... FAILED'; exit 101");
        let second =
            "[ $1 = t ] || { echo 'test u ... FAILED'; exit 101; }; echo 'test t ... '; exec sleep 1000";
        let once = "[ -e ran ] && exit 0; touch ran; exec sleep 1000";
        assert!(matches!(verdict(&[hangs, fails]), Verdict::Test { .. }));
        assert_eq!(
            verdict(&[second]),
            Verdict::Test { name: "u".to_owned(), message: "exit status: 101".to_owned() }
        );
        assert_eq!(verdict(&[hangs, "exit 0"]), Verdict::Time { name: "t".to_owned() });
        assert_eq!(verdict(&[once]), Verdict::Lives);
        let cut = "echo \"thread 't' panicked at a.rs:1:1:\"; echo 'M1: stopped after 600s, before all executions were explored'; exit 101";
        assert!(matches!(verdict(&[cut]), Verdict::Time { .. }));
    }
}
