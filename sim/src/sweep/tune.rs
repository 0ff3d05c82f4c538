//! The command `uslab tune`: runs a series of sweeps; each sweep is made from the results of the previous one.

use super::analysis::{SettingLead, SettingScore, scores, setting_leads};
use super::args::program;
use super::halving;
use super::merge::{CollectedResults, collect, percent, tie_mark};
use super::plan::Plan;
use super::record::Metric;
use super::run::{self, EarlyEnd, RunOptions, RunProgress};
use super::spec::{self, SweepFile};
use super::store::Store;
use crate::output::{Progress, grouped, shell_quoted, table, text};
use anyhow::{Context, bail};
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use uslab_engine::Policy;

/// The largest number of settings that the report shows in addition to the best setting.
const MAX_SHOWN_SETTINGS: usize = 10;

/// The options of `uslab tune`.
#[derive(Debug)]
pub(super) struct Options<'a> {
    pub(super) metric: Metric,
    /// One in this number of settings is kept after each round.
    pub(super) factor: u64,
    pub(super) steps: Steps,
    pub(super) run_options: RunOptions,
    pub(super) inputs: Option<&'a Path>,
    pub(super) results: Option<&'a Path>,
}

/// The rounds that the command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steps {
    All,
    /// Runs one round, and stops.
    One,
    /// Evaluates only the rounds that have results, and leaves running the rounds to another program.
    None,
}

/// A finished round of the tuning.
#[derive(Debug, Serialize)]
pub(super) struct Round {
    pub(super) file: PathBuf,
    pub(super) settings: u64,
    pub(super) traces: usize,
    pub(super) seeds: usize,
    pub(super) items: u64,
    pub(super) failed: u64,
    /// The number of items that already had a result.
    pub(super) there: u64,
    /// The best settings of the round, at most three.
    pub(super) best: Vec<SettingScore>,
}

/// The result of the tuning.
#[derive(Debug, Serialize)]
pub(super) struct TuningWinner {
    /// The best setting, scored on all its runs. The winner is compared with all settings that ran on the same
    /// workloads, CPUs and seeds; runs of earlier tunings are included.
    pub(super) score: SettingScore,
    /// The number of settings that ran on the same workloads, CPUs and seeds as the winner.
    pub(super) beside: usize,
    /// How far the winner leads each other setting, on common workloads, CPUs and seeds; the smallest lead comes first.
    pub(super) nearest: Vec<SettingLead>,
    /// The number of other settings that may differ from the winner only by chance.
    pub(super) ties: usize,
    /// Two command lines: the first shows the results of the last round, the second shows all results.
    pub(super) commands: Vec<String>,
}

/// The next round of a tuning.
#[derive(Debug, Serialize)]
pub(super) struct Next {
    pub(super) file: PathBuf,
    /// The command line that runs the next round.
    pub(super) command: String,
}

/// The state of the tuning after a run of the command.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) metric: &'static str,
    pub(super) rounds: Vec<Round>,
    /// The number of all rounds of the tuning.
    pub(super) of: usize,
    /// The next round, if the tuning is not finished.
    pub(super) next: Option<Next>,
    pub(super) winner: Option<TuningWinner>,
}

/// Tunes a sweep.
///
/// # Errors
/// Fails if a run fails, see [`run::run`]; also fails if a round's file belongs to another sweep.
pub(super) fn tune<P: Policy>(
    plan: &Plan,
    options: &Options<'_>,
    progress: &Progress,
    progress_state: &RunProgress,
) -> Result<Report, EarlyEnd> {
    let folder = plan.path.with_extension("tune");
    let mut settings: Vec<String> =
        (0..plan.settings.count()).map(|number| plan.settings.text(number)).collect();
    let is_generated = !plan.workloads.is_empty();
    let lists = [plan.traces.len(), if is_generated { plan.seeds.len() } else { 0 }];
    let sizes = halving::rounds(settings.len() as u64, options.factor, lists);
    let mut report =
        Report { metric: options.metric.name(), rounds: vec![], of: sizes.len(), next: None, winner: None };
    let mut has_run = false;
    let store = Store::new(plan, options.results);
    let folder_of_results = path_relative_to_rounds(plan, store.folder()).map_err(EarlyEnd::Input)?;
    for round in 0..sizes.len() {
        let file = folder.join(format!("round-{}.toml", round + 1));
        let part = |leads_of_round: usize| halving::part(leads_of_round, round, sizes.len(), options.factor);
        let [traces, seeds] = lists.map(part);
        let results = &folder_of_results;
        let text = format_round_file(plan, options, &settings, traces, seeds, (round, sizes.len()), results)
            .map_err(EarlyEnd::Input)?;
        write_round_file(&folder, &file, &text)?;
        let round_plan = spec::read::<P>(&file, options.inputs).map_err(EarlyEnd::Input)?;
        let mut leads_of_round = collect(&round_plan, &store, progress).map_err(EarlyEnd::Input)?;
        let there = leads_of_round.rows.len() as u64;
        if !(leads_of_round.missing.is_empty() && leads_of_round.damaged.is_empty()) {
            if options.steps == Steps::None || (options.steps == Steps::One && has_run) {
                let command = command("run", &file, options, None);
                report.next = Some(Next { file, command });
                return Ok(report);
            }
            run::run::<P>(
                &round_plan,
                &store,
                0..round_plan.len(),
                options.run_options,
                progress,
                progress_state,
            )?;
            leads_of_round = collect(&round_plan, &store, progress).map_err(EarlyEnd::Input)?;
            has_run = true;
        }
        let ranked = ranked(&leads_of_round, options.metric);
        if ranked.is_empty() {
            let (item, reason) = leads_of_round.failed.first().cloned().unwrap_or_default();
            return Err(EarlyEnd::Write(anyhow::anyhow!(
                "{}: every setting has a failed item; item {item}: {reason}",
                file.display()
            )));
        }
        report.rounds.push(Round {
            file: file.clone(),
            settings: round_plan.settings.count(),
            traces,
            seeds,
            items: round_plan.len(),
            failed: leads_of_round.failed.len() as u64,
            there,
            best: ranked.iter().take(3).cloned().collect(),
        });
        if let Some(kept_settings) = sizes.get(round + 1) {
            settings = ranked.into_iter().take(*kept_settings as usize).map(|score| score.setting).collect();
        } else {
            let rows = collect(plan, &store, progress).map_err(EarlyEnd::Input)?.rows;
            report.winner = ranked.first().and_then(|first| {
                let score =
                    scores(&rows, options.metric).into_iter().find(|score| score.setting == first.setting)?;
                let leads_of_round = setting_leads(&rows, options.metric, &first.setting);
                let rerun_folder = Some(folder.join("again"));
                let rerun_commands =
                    ["run", "merge"].map(|verb| command(verb, &file, options, rerun_folder.as_deref()));
                Some(TuningWinner {
                    score,
                    beside: leads_of_round.len() + 1,
                    ties: leads_of_round.iter().filter(|lead| lead.is_tie()).count(),
                    nearest: leads_of_round.into_iter().take(MAX_SHOWN_SETTINGS).collect(),
                    commands: vec![
                        rerun_commands.join(" && "),
                        command("merge", &plan.path, options, options.results) + " --partial",
                    ],
                })
            });
        }
    }
    Ok(report)
}

/// Returns the settings without failed runs, best setting first.
fn ranked(all: &CollectedResults, metric: Metric) -> Vec<SettingScore> {
    let mut ranked = scores(&all.rows, metric);
    let max_runs = ranked.iter().map(|score| score.runs).max().unwrap_or(0);
    // A setting with a failed run has fewer runs than others.
    ranked.retain(|score| score.runs == max_runs);
    ranked
}

/// Returns the text of the file for one round.
fn format_round_file(
    plan: &Plan,
    options: &Options<'_>,
    settings: &[String],
    traces: usize,
    seeds: usize,
    (round, rounds): (usize, usize),
    results: &str,
) -> anyhow::Result<String> {
    let traces: Vec<_> = plan.traces[..traces].iter().map(|trace| trace.name.clone()).collect();
    let of_made = |axis: &[u64]| if plan.workloads.is_empty() { vec![] } else { axis.to_vec() };
    let file = Path::new(&plan.profile_name);
    let profile =
        if file.is_file() { file.canonicalize()?.display().to_string() } else { plan.profile_name.clone() };
    let file = toml::to_string(&SweepFile {
        trace: &traces,
        workload: &plan.workloads,
        design: settings,
        cpus: &plan.cpus,
        seed: &of_made(&plan.seeds[..seeds]),
        size: &of_made(&plan.sizes),
        ops: &of_made(&plan.operations),
        think: &of_made(&plan.thinks),
        profile: &profile,
        inputs: &path_relative_to_rounds(plan, &plan.inputs)?,
        results,
    })?;
    Ok(format!(
        "# Round {} of {rounds} of `uslab tune`, judged by {}; one setting in {} advances.\n# Of sweep {}.\n{file}",
        round + 1,
        options.metric.name(),
        options.factor,
        plan.hash,
    ))
}

/// Converts a folder of the sweep to a path relative to the file of a round, which is in a folder next to the sweep's
/// file.
fn path_relative_to_rounds(plan: &Plan, folder: &Path) -> anyhow::Result<String> {
    let folder = match folder.strip_prefix(plan.path.parent().unwrap_or(Path::new(""))) {
        Ok(inside) if inside.is_relative() => Path::new("..").join(inside),
        _ => std::path::absolute(folder).with_context(|| folder.display().to_string())?,
    };
    Ok(folder.to_string_lossy().into_owned())
}

/// Writes the file of a round, unless it already exists.
fn write_round_file(folder: &Path, file: &Path, text: &str) -> Result<(), EarlyEnd> {
    match std::fs::read_to_string(file) {
        Ok(there) if there == text => return Ok(()),
        Ok(_) => {
            return Err(EarlyEnd::Input(anyhow::anyhow!(
                "{}: the file belongs to another sweep, or to a `tune` with other options; remove {} to start again",
                file.display(),
                folder.display()
            )));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(EarlyEnd::Input(anyhow::anyhow!("{}: {error}", file.display()))),
    }
    let write = || -> anyhow::Result<()> {
        std::fs::create_dir_all(folder)?;
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        new.write_all(text.as_bytes())?;
        new.persist(file)?;
        Ok(())
    };
    write().with_context(|| file.display().to_string()).map_err(EarlyEnd::Write)
}

/// Returns the command line that runs a subcommand on a round's file.
fn command(verb: &str, file: &Path, options: &Options<'_>, results: Option<&Path>) -> String {
    let mut command = format!("{} sweep {verb} {}", program(), shell_quoted(&file.to_string_lossy()));
    for (option, path) in [("--inputs", options.inputs), ("--results", results)] {
        if let Some(path) = path {
            command += &format!(" {option} {}", shell_quoted(&path.to_string_lossy()));
        }
    }
    command
}

/// Checks that a sweep can be tuned.
///
/// # Errors
/// Fails if the sweep has only one setting.
pub(super) fn check(plan: &Plan) -> anyhow::Result<()> {
    if plan.settings.count() < 2 {
        bail!(
            "{}: the sweep has only one setting; expected several designs, or `knobs` with several values",
            plan.path.display()
        );
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        type Length = fn(&Round) -> usize;
        // A sweep of workloads has no traces, and a sweep of traces has no seeds.
        let has_rounds_with = |of: Length| self.rounds.iter().any(|round| of(round) > 0);
        let lists: [(&str, Length); 2] = [("traces", |round| round.traces), ("seeds", |round| round.seeds)];
        let lists: Vec<_> = lists.into_iter().filter(|(_, of)| has_rounds_with(*of)).collect();
        let mut header = vec!["round", "settings"];
        header.extend(lists.iter().map(|(name, _)| *name));
        header.extend(["items", "there", "failed", "its best setting", "reaches"]);
        let mut rows = table(&header);
        for (index, round) in self.rounds.iter().enumerate() {
            let (name, of_best) = round
                .best
                .first()
                .map_or_else(<_>::default, |score| (score.setting.clone(), percent(score.of_best)));
            let Round { settings, items, failed, there, .. } = round;
            let mut row = vec![format!("{} of {}", index + 1, self.of), grouped(*settings)];
            row.extend(lists.iter().map(|(_, of)| grouped(of(round) as u64)));
            row.extend([*items, *there, *failed].map(grouped));
            row.extend([name, of_best]);
            rows.add_row(row);
        }
        if !self.rounds.is_empty() {
            writeln!(
                f,
                "{}reaches: the setting's fraction of the best {}, as a geometric mean over the round's workloads, numbers of CPUs and seeds.",
                text(&rows),
                self.metric
            )?;
            let is_complete = self.rounds.iter().all(|round| round.there == round.items);
            writeln!(f, "{}", if is_complete { "All items had a result: nothing was run.\n" } else { "" })?;
        }
        if let Some(Next { file, command }) = &self.next {
            writeln!(f, "Round {} of {} is next: {}", self.rounds.len() + 1, self.of, file.display())?;
            writeln!(
                f,
                "`{command}` runs the round, as do the scripts that `sweep slurm` or `sweep k8s` write for this file. Afterwards, repeat this `tune` command."
            )?;
        }
        let Some(TuningWinner { score, beside, nearest, ties, commands }) = &self.winner else {
            return Ok(());
        };
        let SettingScore { setting, of_best, worst, worst_at, runs, .. } = score;
        writeln!(f, "Best setting: {setting}")?;
        writeln!(
            f,
            "It reaches {} of the best {} among {} settings. This is the mean of {} runs; the worst run reaches {} ({worst_at}). Dropped settings may have run on fewer seeds and workloads.",
            percent(*of_best),
            self.metric,
            grouped(*beside as u64),
            grouped(*runs),
            percent(*worst)
        )?;
        if !nearest.is_empty() {
            writeln!(
                f,
                "\nThe fraction of the best setting's result that other settings reach, on common runs{}. The mark = means that the difference is within chance; {} settings have this mark.",
                if beside - 1 > nearest.len() {
                    format!(" (shown: the nearest {} of {} settings)", nearest.len(), beside - 1)
                } else {
                    String::new()
                },
                grouped(*ties as u64)
            )?;
            let mut rows = table(&["setting", "reaches", "", "chance", "runs"]);
            for lead in nearest {
                rows.add_row([
                    lead.setting.clone(),
                    percent(lead.reaches),
                    tie_mark(lead.is_tie()).to_owned(),
                    lead.chance
                        .map_or_else(|| "unknown".to_owned(), |chance| format!("+-{}", percent(chance))),
                    grouped(lead.runs),
                ]);
            }
            write!(f, "{}", text(&rows))?;
        }
        writeln!(f, "\nTo repeat the last round on all traces and seeds:\n  {}", commands[0])?;
        writeln!(f, "To show all results:\n  {}", commands[1])?;
        Ok(())
    }
}
