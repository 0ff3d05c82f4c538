//! Measures how fast three sampling tools detect a mutant: the stress test on threads, random operations against shadow
//! models (also run by the fuzz targets), and the simulation under random schedules. The measurement excludes tests of
//! single special cases.

use crate::Args;
use crate::build::Tree;
use crate::plan::{Config, select_mutants};
use crate::programs::{Program, programs};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use uslab_tests::jobs::{CommandResult, run_with_time_limit};
use uslab_tests::mutate::Mutant;

/// The CPU time limit for each tool and mutant; including builds, 20 mutants take less than an hour.
const CPU_TIME_LIMIT: Duration = Duration::from_secs(30);

/// A tool that should detect a mutant.
enum Tool {
    /// The command `uslab stress`.
    Stress(PathBuf),
    /// Random operations against shadow models: the named tests, with more cases in each run.
    Random(Vec<(Program, Vec<String>)>),
    /// Simulated whole subsystems, which are generated from seeds.
    Simulation(Program),
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Stress(_) => "stress",
            Self::Random(_) => "random operations",
            Self::Simulation(_) => "simulation",
        })
    }
}

/// The time at which a tool detected a mutant, and the tool's message.
struct MutantDetection {
    after: Duration,
    said: String,
}

impl Tool {
    /// Runs the tool on a mutant until the tool detects it, or has used `limit` of CPU time.
    fn run(&self, mutant: Option<u32>, limit: Duration) -> anyhow::Result<Option<MutantDetection>> {
        let number = mutant.map(|number| number.to_string());
        let mutant: Vec<(&str, &str)> = number.iter().map(|number| ("MUTANT", number.as_str())).collect();
        match self {
            Self::Stress(path) => {
                let mut command = Command::new(path);
                // Several CPUs use up the CPU time faster, so the wall time is divided among them. A run that neither
                // ends nor uses CPU time is also noticed.
                let seconds = limit.as_secs_f64()
                    / std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
                command.args(["stress", "--seconds", &format!("{seconds:.1}")]).envs(mutant);
                let ended = run_with_time_limit(&mut command, 2 * limit)?;
                let passed = ended.status.is_some_and(|status| status.success());
                Ok((!passed).then(|| MutantDetection::of(&ended)))
            }
            Self::Random(programs) => {
                let mut used = Duration::ZERO;
                for cases in (6..).step_by(2).map(|power| (1_u32 << power).to_string()) {
                    for (program, names) in programs {
                        let names: Vec<&str> = names.iter().map(String::as_str).collect();
                        let variables: Vec<(&str, &str)> =
                            mutant.iter().copied().chain([("PROPTEST_CASES", cases.as_str())]).collect();
                        let left = limit.saturating_sub(used).max(Duration::from_secs(1));
                        let ran = program.run(&names, &variables, left)?.1;
                        used += ran.used;
                        // Many cases take long without a mutant, but the first ones do not.
                        let passed = ran.status.map_or(used >= limit, |status| status.success());
                        if !passed {
                            return Ok(Some(MutantDetection { after: used, ..MutantDetection::of(&ran) }));
                        }
                        if used >= limit {
                            return Ok(None);
                        }
                    }
                }
                Ok(None)
            }
            Self::Simulation(program) => {
                let bugs = tempfile::NamedTempFile::new().context("cannot create a temporary file")?;
                // No bug has this name, so no bug is planted.
                std::fs::write(bugs.path(), "none\n")?;
                let (seconds, path) = (limit.as_secs().to_string(), bugs.path().display().to_string());
                let variables: Vec<(&str, &str)> = mutant
                    .into_iter()
                    .chain([("WORLD_BUGS", path.as_str()), ("WORLD_SECONDS", &seconds)])
                    .collect();
                let ran = program.run(&["scenarios::simulation::seeds::number_of_seeds_to_detect_each_planted_bug_is_printed"], &variables, 2 * limit)?.1;
                let passed = ran.status.is_some_and(|status| status.success());
                let row = ran.said.lines().find_map(|line| line.split_once("NOTICED none | "));
                Ok(match row {
                    Some((_, row)) if row.contains("unnoticed") => None,
                    Some((_, row)) => Some(MutantDetection { after: ran.used, said: row.to_owned() }),
                    None => (!passed).then(|| MutantDetection::of(&ran)),
                })
            }
        }
    }
}

impl MutantDetection {
    fn of(ran: &CommandResult) -> Self {
        let lines = || ran.said.lines().map(str::trim);
        let mut panics = lines().skip_while(|line| !line.contains("panicked at "));
        let said = match (ran.status, panics.nth(1).or_else(|| lines().rfind(|line| !line.is_empty()))) {
            (None, _) => "it does not end",
            (Some(_), said) => said.unwrap_or_default(),
        };
        Self { after: ran.used, said: said.to_owned() }
    }
}

/// Builds all tools with the mutants compiled in.
fn tools(tree: &mut Tree) -> anyhow::Result<Vec<Tool>> {
    tree.write(None)?;
    let libraries: Vec<String> = tree.libraries().into_iter().map(str::to_owned).collect();
    let libraries: Vec<&str> = libraries.iter().map(String::as_str).collect();
    tree.settle(&["check", "--profile", "dev"], &libraries, "")?;
    let schedules = tree.settle(
        &["test", "--no-run", "--profile", "loom"],
        &["-p", "uslab", "--lib"],
        "--cap-lints allow --cfg shuttle",
    )?;
    // Tests of this kind print what they found.
    let simulation = programs(&schedules, true).into_iter().next().context("cargo names no schedules")?;
    let random = tree.settle(&["test", "--no-run", "--profile", "dev"], &libraries, "")?;
    let random = programs(&random, false).into_iter().map(|program| {
        let names = program.tests()?.into_iter().filter(|name| name.contains("properties::"));
        let names = names.collect();
        Ok((program, names))
    });
    let random = random.collect::<anyhow::Result<Vec<_>>>()?;
    let stress = tree.settle(&["build", "--profile", "cli"], &["-p", "uslab-sim", "--bin", "uslab"], "")?;
    let executable =
        |line: &str| Some(PathBuf::from(serde_json::from_str::<Value>(line).ok()?["executable"].as_str()?));
    let stress = stress.lines().find_map(executable).context("cargo names no command `uslab`")?;
    Ok(vec![Tool::Stress(stress), Tool::Random(random), Tool::Simulation(simulation)])
}

/// Draws mutants that may have an effect, and reports for each of them which tools detect it, and when.
pub(crate) fn detect(args: &Args, config: &Config, tree: &mut Tree, count: usize) -> anyhow::Result<bool> {
    let tools = tools(tree)?;
    for tool in &tools {
        let failed = tool.run(None, Duration::from_secs(5))?;
        ensure!(
            failed.is_none(),
            "{tool} fails without a mutant: {}",
            failed.map_or(String::new(), |of| of.said)
        );
    }
    let mut drawn: Vec<Mutant> = select_mutants(args, config, tree.mutants());
    drawn.retain(|mutant| !config.equivalent.iter().any(|of| of.fits(mutant)));
    drawn.truncate(count);
    let mut times: Vec<Vec<f64>> = tools.iter().map(|_| vec![]).collect();
    for mutant in &drawn {
        println!("{mutant}");
        for (tool, times) in tools.iter().zip(&mut times) {
            match tool.run(Some(mutant.number), CPU_TIME_LIMIT)? {
                None => println!("DETECT {tool:<17} | unnoticed in {} s", CPU_TIME_LIMIT.as_secs()),
                Some(MutantDetection { after, said }) => {
                    times.push(after.as_secs_f64());
                    println!("DETECT {tool:<17} | {:.1} s | {said}", after.as_secs_f64());
                }
            }
        }
    }
    for (tool, times) in tools.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let median = times
            .get(times.len() / 2)
            .map_or(String::new(), |time| format!(", half of these within {time:.1} s"));
        println!("detect: {tool} notices {} of {} mutants{median}", times.len(), drawn.len());
    }
    Ok(times.iter().any(|times| !times.is_empty()))
}
