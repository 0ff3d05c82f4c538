//! `uslab tune`: sweeps of which each follows from the last one.

use super::analysis::{Score, scores};
use super::engines::quoted;
use super::halving;
use super::merge::{Collected, collect, percent};
use super::plan::Plan;
use super::record::Metric;
use super::run::{self, Ended};
use super::spec::{self, Written};
use super::store::Store;
use crate::output::{Progress, grouped, table, text};
use anyhow::{Context, bail};
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use uslab_engine::Policy;

/// How it is done.
#[derive(Debug)]
pub(super) struct Options<'a> {
    pub(super) metric: Metric,
    /// What part of the settings goes on: one in so many.
    pub(super) factor: u64,
    pub(super) steps: Steps,
    pub(super) threads: Option<usize>,
    pub(super) inputs: Option<&'a Path>,
    pub(super) results: Option<&'a Path>,
}

/// How far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steps {
    All,
    /// One round.
    One,
    /// As far as results are there: somebody else runs the rounds.
    None,
}

/// A round that is done.
#[derive(Debug, Serialize)]
pub(super) struct Round {
    pub(super) file: PathBuf,
    pub(super) settings: u64,
    pub(super) traces: usize,
    pub(super) seeds: usize,
    pub(super) items: u64,
    pub(super) failed: u64,
    /// The best settings, at most three.
    pub(super) best: Vec<Score>,
}

/// The end.
#[derive(Debug, Serialize)]
pub(super) struct Winner {
    pub(super) setting: String,
    pub(super) of_best: f64,
    pub(super) worst: f64,
    pub(super) worst_at: String,
    pub(super) runs: u64,
    /// What came after it.
    pub(super) second: Option<Score>,
    /// Commands that run it again: the setting alone, and the last round.
    pub(super) commands: Vec<String>,
}

/// How far it came.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) metric: &'static str,
    pub(super) rounds: Vec<Round>,
    /// How many rounds there are.
    pub(super) of: usize,
    /// The round that is to be run, if it is not the end, and the command that runs it.
    pub(super) next: Option<(PathBuf, String)>,
    pub(super) winner: Option<Winner>,
}

/// Tunes a sweep.
///
/// # Errors
/// As [`run::run`]; or a round's file is of another sweep.
pub(super) fn tune<P: Policy>(
    plan: &Plan,
    options: &Options<'_>,
    progress: &Progress,
) -> Result<Report, Ended> {
    let folder = plan.path.with_extension("tune");
    let mut settings: Vec<String> =
        (0..plan.settings.count()).map(|number| plan.settings.text(number)).collect();
    let sizes = halving::rounds(settings.len() as u64, options.factor);
    let mut report =
        Report { metric: options.metric.name(), rounds: vec![], of: sizes.len(), next: None, winner: None };
    let mut has_run = false;
    for round in 0..sizes.len() {
        let file = folder.join(format!("round-{}.toml", round + 1));
        let part = |all: usize| halving::part(all, round, sizes.len(), options.factor);
        let (traces, seeds) = (part(plan.traces.len()), part(plan.seeds.len()));
        let text =
            written(plan, options, &settings, traces, seeds, (round, sizes.len())).map_err(Ended::Input)?;
        write_round(&folder, &file, &text)?;
        let own = spec::read::<P>(&file, options.inputs).map_err(Ended::Input)?;
        let store = Store::new(&own, options.results);
        let command = command(&file, options);
        let mut all = collect(&own, &store, progress).map_err(Ended::Input)?;
        if !(all.missing.is_empty() && all.damaged.is_empty()) {
            if options.steps == Steps::None || (options.steps == Steps::One && has_run) {
                report.next = Some((file, command));
                return Ok(report);
            }
            run::run::<P>(&own, &store, 0..own.len(), false, options.threads, progress)?;
            all = collect(&own, &store, progress).map_err(Ended::Input)?;
            has_run = true;
        }
        let ranked = ranked(&all, options.metric);
        if ranked.is_empty() {
            let (item, why) = all.failed.first().cloned().unwrap_or_default();
            return Err(Ended::Write(anyhow::anyhow!(
                "{}: no setting is without a failure; item {item}: {why}",
                file.display()
            )));
        }
        report.rounds.push(Round {
            file: file.clone(),
            settings: own.settings.count(),
            traces,
            seeds: if plan.workloads.is_empty() { 0 } else { seeds },
            items: own.len(),
            failed: all.failed.len() as u64,
            best: ranked.iter().take(3).cloned().collect(),
        });
        if let Some(keep) = sizes.get(round + 1) {
            settings = ranked.into_iter().take(*keep as usize).map(|score| score.setting).collect();
        } else {
            report.winner = ranked.first().map(|first| winner(plan, first, ranked.get(1), &command));
        }
    }
    Ok(report)
}

/// Settings without a failure, the best one first.
fn ranked(all: &Collected, metric: Metric) -> Vec<Score> {
    let mut ranked = scores(&all.records, metric);
    let most = ranked.iter().map(|score| score.runs).max().unwrap_or(0);
    // One whose run failed has fewer runs than others.
    ranked.retain(|score| score.runs == most);
    ranked
}

/// A round as a sweep's file.
fn written(
    plan: &Plan,
    options: &Options<'_>,
    settings: &[String],
    traces: usize,
    seeds: usize,
    (round, rounds): (usize, usize),
) -> anyhow::Result<String> {
    // The file lies in a folder beside the sweep's.
    let traces: Vec<_> = plan.traces[..traces]
        .iter()
        .map(|trace| match options.inputs {
            None if !Path::new(&trace.name).is_absolute() => format!("../{}", trace.name),
            _ => trace.name.clone(),
        })
        .collect();
    let made = !plan.workloads.is_empty();
    let of_made = |axis: &[u64]| if made { axis.to_vec() } else { vec![] };
    let file = Path::new(&plan.profile_name);
    let profile =
        if file.is_file() { file.canonicalize()?.display().to_string() } else { plan.profile_name.clone() };
    let file = toml::to_string(&Written {
        trace: &traces,
        workload: &plan.workloads,
        design: settings,
        cpus: &plan.cpus,
        seed: &of_made(&plan.seeds[..seeds]),
        size: &of_made(&plan.sizes),
        ops: &of_made(&plan.operations),
        think: &of_made(&plan.thinks),
        profile: &profile,
    })?;
    Ok(format!(
        "# Round {} of {rounds} of `uslab tune`, judged by {}, one in {} goes on.\n# Of sweep {}.\n{file}",
        round + 1,
        options.metric.name(),
        options.factor,
        plan.hash,
    ))
}

/// Writes a round's file, if it is not there.
fn write_round(folder: &Path, file: &Path, text: &str) -> Result<(), Ended> {
    match std::fs::read_to_string(file) {
        Ok(there) if there == text => return Ok(()),
        Ok(_) => {
            return Err(Ended::Input(anyhow::anyhow!(
                "{}: a round of another sweep or with other options; expected none: remove {}",
                file.display(),
                folder.display()
            )));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(Ended::Input(anyhow::anyhow!("{}: {error}", file.display()))),
    }
    let write = || -> anyhow::Result<()> {
        std::fs::create_dir_all(folder)?;
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        new.write_all(text.as_bytes())?;
        new.persist(file)?;
        Ok(())
    };
    write().with_context(|| file.display().to_string()).map_err(Ended::Write)
}

/// The command that runs a round.
fn command(file: &Path, options: &Options<'_>) -> String {
    let mut command = format!("uslab sweep run {}", quoted(&file.to_string_lossy()));
    for (option, path) in [("--inputs", options.inputs), ("--results", options.results)] {
        if let Some(path) = path {
            command += &format!(" {option} {}", quoted(&path.to_string_lossy()));
        }
    }
    command
}

fn winner(plan: &Plan, first: &Score, second: Option<&Score>, last: &str) -> Winner {
    let design = quoted(&first.setting);
    let profile = quoted(&plan.profile_name);
    let list = |values: &[u64]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut commands = vec![];
    if plan.cpus.is_empty() {
        for trace in &plan.traces {
            let path = quoted(&trace.path.to_string_lossy());
            commands.push(format!("uslab scale --trace {path} --design {design} --profile {profile}"));
        }
    }
    if let ([_, ..], [size, ..], [ops, ..], [think, ..], [seed, ..]) =
        (&plan.workloads[..], &plan.sizes[..], &plan.operations[..], &plan.thinks[..], &plan.seeds[..])
    {
        commands.push(format!(
            "uslab scale --workload {} --design {design} --cpus {} --size {size} --ops {ops} --think {think} --seed {seed} --profile {profile}",
            quoted(&plan.workloads.join(",")),
            list(&plan.cpus),
        ));
    }
    commands.push(format!("{last} && {}", last.replacen("sweep run", "sweep merge", 1)));
    let Score { setting, of_best, worst, worst_at, runs } = first.clone();
    Winner { setting, of_best, worst, worst_at, runs, second: second.cloned(), commands }
}

/// The file's sweep can be tuned.
///
/// # Errors
/// There is one setting only.
pub(super) fn check(plan: &Plan) -> anyhow::Result<()> {
    if plan.settings.count() < 2 {
        bail!(
            "{}: one setting only; expected several designs, or `knobs` with several values",
            plan.path.display()
        );
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = table(&[
            "round",
            "settings",
            "traces",
            "seeds",
            "items",
            "failed",
            "the best setting",
            "of the best",
        ]);
        for (at, round) in self.rounds.iter().enumerate() {
            let (name, of_best) = round
                .best
                .first()
                .map_or_else(<_>::default, |score| (score.setting.clone(), percent(score.of_best)));
            let Round { settings, traces, seeds, items, failed, .. } = round;
            let numbers = [*settings, *traces as u64, *seeds as u64, *items, *failed].map(grouped);
            let [settings, traces, seeds, items, failed] = numbers;
            rows.add_row([
                format!("{} of {}", at + 1, self.of),
                settings,
                traces,
                seeds,
                items,
                failed,
                name,
                of_best,
            ]);
        }
        if !self.rounds.is_empty() {
            writeln!(f, "{}", text(&rows))?;
        }
        if let Some((file, command)) = &self.next {
            writeln!(f, "Round {} of {} is next: {}", self.rounds.len() + 1, self.of, file.display())?;
            writeln!(
                f,
                "`{command}` runs it, and so does `uslab sweep slurm` or `k8s` of this file. Then the same `uslab tune` goes on."
            )?;
        }
        if let Some(Winner { setting, of_best, worst, worst_at, runs, second, commands }) = &self.winner {
            writeln!(f, "The setting: {setting}")?;
            writeln!(
                f,
                "It reaches {} of the best setting's {} over {} runs, and {} at worst ({worst_at}).",
                percent(*of_best),
                self.metric,
                grouped(*runs),
                percent(*worst)
            )?;
            if let Some(second) = second {
                writeln!(f, "After it comes {}, with {}.", second.setting, percent(second.of_best))?;
            }
            writeln!(f, "These run it again:")?;
            for command in commands {
                writeln!(f, "  {command}")?;
            }
        }
        Ok(())
    }
}
