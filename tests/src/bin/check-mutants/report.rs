//! The results of a run: verdicts on mutants, their counts and confidence intervals, and shards.

use crate::Args;
use crate::plan::Config;
use crate::programs::bound;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::process::Command;
use uslab_sync::shard::{Shard, Share};
use uslab_tests::claims::{MutantRun, MutantRuns};
use uslab_tests::mutate::Mutant;
use uslab_tests::workspace;

/// The name under which the shards of this command are stored.
pub(crate) const RUNNER_NAME: &str = "check-mutants";

/// The verdict on one mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// A model failed.
    Model { name: String, message: String },
    /// A test failed.
    Test { name: String, message: String },
    /// Models explored fewer executions than their floor, but nothing else failed.
    Floor { name: String },
    /// A test exceeded its time limit in two runs, and no test failed.
    Time { name: String },
    /// All tests passed.
    Lives,
    /// No test reaches the mutant.
    Unreached,
    /// The run ended before the mutant was judged.
    Waits,
}

/// The names of the counts, in the order of the verdicts.
pub(crate) const KINDS: [&str; 7] =
    ["by models' assertions", "by tests", "by floors only", "out of time", "live", "unreached", "wait"];

impl Verdict {
    pub(crate) fn kind(&self) -> usize {
        match self {
            Self::Model { .. } => 0,
            Self::Test { .. } => 1,
            Self::Floor { .. } => 2,
            Self::Time { .. } => 3,
            Self::Lives => 4,
            Self::Unreached => 5,
            Self::Waits => 6,
        }
    }
    pub(crate) fn is_detected(&self) -> bool {
        self.kind() < 4
    }
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct JudgedMutant {
    #[serde(flatten)]
    pub(crate) mutant: Mutant,
    pub(crate) verdict: Verdict,
    /// The known reason why nothing can detect the mutant, if any.
    pub(crate) equivalent: Option<String>,
}

/// The result of a whole run, or of one shard. A shard contains only its own mutants; all other fields are the same in
/// all shards.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Report {
    /// The number of selected mutants.
    pub(crate) of: usize,
    /// The number of mutants from which the sample was selected.
    pub(crate) from: usize,
    pub(crate) mutants: Vec<JudgedMutant>,
    /// `true` if the mutants are a sample, or if some of them were not judged.
    pub(crate) sampled: bool,
    /// The number of mutants that did not compile.
    pub(crate) left_out: usize,
    /// Error messages that are not verdicts on mutants.
    pub(crate) wrong: Vec<String>,
    pub(crate) seconds: f64,
}

impl Report {
    /// Returns the judged mutants, except undetected mutants with a known reason.
    pub(crate) fn judged(&self) -> impl Iterator<Item = &JudgedMutant> {
        self.mutants.iter().filter(|of| {
            of.verdict != Verdict::Waits && (of.verdict.is_detected() || of.equivalent.is_none())
        })
    }
    /// Returns the rate of verdicts that satisfy a condition among the judged mutants; for a sample, also the
    /// confidence interval of the rate among all mutants.
    pub(crate) fn share(&self, which: impl Fn(&Verdict) -> bool) -> Rate {
        let all = self.judged().count();
        Rate { of: self.judged().filter(|of| which(&of.verdict)).count(), all, sampled: self.sampled }
    }
    pub(crate) fn undetected_rate(&self) -> Rate {
        self.share(|verdict| !verdict.is_detected())
    }
    pub(crate) fn floor_detection_rate(&self) -> Rate {
        self.share(|verdict| matches!(verdict, Verdict::Floor { .. }))
    }
    pub(crate) fn time_detection_rate(&self) -> Rate {
        self.share(|verdict| matches!(verdict, Verdict::Time { .. }))
    }
    pub(crate) fn counts<'m>(mutants: impl Iterator<Item = &'m JudgedMutant>) -> String {
        let mut counts = [0; KINDS.len()];
        mutants.for_each(|of| counts[of.verdict.kind()] += 1);
        let counts: Vec<String> =
            counts.iter().zip(KINDS).map(|(count, kind)| format!("{count} {kind}")).collect();
        counts.join(", ")
    }
}

/// A rate among the mutants of a sample, or among all mutants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) of: usize,
    pub(crate) all: usize,
    pub(crate) sampled: bool,
}

impl Rate {
    /// Returns the 95 % confidence interval, in percent, for the rate among all mutants, from the rate in the sample
    /// (Wilson 1927).
    pub(crate) fn interval(self) -> [f64; 2] {
        let (n, p) = (self.all as f64, self.of as f64 / self.all.max(1) as f64);
        if !self.sampled || self.all == 0 {
            return [100.0 * p; 2];
        }
        let z2 = 1.96_f64 * 1.96;
        let (middle, half) = (p + z2 / (2.0 * n), 1.96 * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt());
        [middle - half, middle + half].map(|bound| (100.0 * bound / (1.0 + z2 / n)).clamp(0.0, 100.0))
    }
    /// Returns `true` if the rate exceeds `most` percent with a confidence of 95 %.
    pub(crate) fn exceeds(self, most: f64) -> bool {
        // A rate of 0 never exceeds a bound, although the interval of 0 of 135 begins at slightly more than 0 by
        // rounding.
        self.of > 0 && self.interval()[0] > most
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, all, sampled } = self;
        write!(f, "{of} of {all}, {:.1} %", 100.0 * *of as f64 / (*all).max(1) as f64)?;
        let [low, high] = self.interval();
        if *sampled {
            write!(f, " (of all {low:.1} to {high:.1} % with a confidence of 95 %)")
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for JudgedMutant { mutant, verdict, equivalent } in &self.mutants {
            match (verdict, equivalent) {
                (verdict, Some(reason)) if !verdict.is_detected() && *verdict != Verdict::Waits => {
                    writeln!(f, "equivalent {mutant} | {reason}")?
                }
                (Verdict::Lives, _) => writeln!(f, "LIVES      {mutant}")?,
                (Verdict::Unreached, _) => writeln!(f, "UNREACHED  {mutant}")?,
                (Verdict::Waits, _) => {}
                (Verdict::Floor { name }, _) => writeln!(f, "floor only {mutant} | {name}")?,
                (Verdict::Time { name }, _) => writeln!(f, "time       {mutant} | {name}")?,
                _ => {}
            }
        }
        let files: BTreeSet<&String> = self.mutants.iter().map(|of| &of.mutant.file).collect();
        for file in files {
            writeln!(
                f,
                "{file}: {}",
                Self::counts(self.mutants.iter().filter(|of| of.mutant.file == *file))
            )?;
        }
        for wrong in &self.wrong {
            writeln!(f, "FAILED: {wrong}")?;
        }
        writeln!(
            f,
            "neither detected nor explained: {}; detected only by a floor: {}; timed out: {}",
            self.undetected_rate(),
            self.floor_detection_rate(),
            self.time_detection_rate()
        )?;
        let equivalent =
            self.mutants.iter().filter(|of| !of.verdict.is_detected() && of.equivalent.is_some()).count();
        write!(
            f,
            "mutants: {} ({} did not compile): {}; {equivalent} of the undetected mutants are explained; {:.0} s",
            self.mutants.len(),
            self.left_out,
            Self::counts(self.mutants.iter()),
            self.seconds
        )
    }
}

/// Adds the known reasons for mutants that were not detected to the report. If the report covers all shards (`all`),
/// also reports each reason that matches no mutant.
pub(crate) fn explain(args: &Args, config: &Config, mut report: Report, all: bool) -> Report {
    report.mutants.sort_by_key(|of| of.mutant.number);
    let mut used = vec![false; config.equivalent.len()];
    for JudgedMutant { mutant, verdict, equivalent } in &mut report.mutants {
        let reason = config.equivalent.iter().zip(&mut used).find(|(of, _)| of.fits(mutant));
        *equivalent = reason.map(|(of, used)| {
            *used |= !verdict.is_detected() && *verdict != Verdict::Waits;
            of.reason.clone()
        });
    }
    let judged = report.mutants.iter().filter(|of| of.verdict != Verdict::Waits);
    if judged.clone().count() >= 10 && !judged.clone().any(|of| of.verdict.is_detected()) {
        report.wrong.push("nothing notices any of them: are they switched on?".to_owned());
    }
    // A shard may be empty, and all mutants that lived may have been removed.
    if all && judged.count() == 0 && !(args.again && report.mutants.is_empty()) {
        report.wrong.push("nothing was judged".to_owned());
    }
    let waits = report.mutants.iter().any(|of| of.verdict == Verdict::Waits);
    let whole = all
        && !waits
        && !args.models
        && !args.assembly
        && args.files.is_empty()
        && args.sample.is_none()
        && args.rule.is_empty();
    for of in config.equivalent.iter().zip(used).filter(|(_, used)| whole && !used).map(|(of, _)| of) {
        report.wrong.push(format!(
            "tests/mutants.toml: {} {} {:?}: all its mutants are detected",
            of.file, of.function, of.change
        ));
    }
    report
}

/// Records the result of the run for the table of claims.
///
/// The result of a run with an error is not recorded.
pub(crate) fn record(args: &Args, report: Report) -> anyhow::Result<Report> {
    if !report.wrong.is_empty() {
        return Ok(report);
    }
    let git =
        Command::new("git").args(["show", "-s", "--format=%h of %cs"]).current_dir(workspace()).output();
    let git = git.context("git")?;
    let judged = report.mutants.iter().filter(|of| of.verdict != Verdict::Waits);
    let explained = report
        .mutants
        .iter()
        .filter(|of| !of.verdict.is_detected() && of.verdict != Verdict::Waits && of.equivalent.is_some());
    MutantRuns::record(MutantRun {
        by: match () {
            () if args.assembly => {
                format!("tests of the restartable sequences of {}", std::env::consts::ARCH)
            }
            () if args.models => "models alone".to_owned(),
            () => "tests and models".to_owned(),
        },
        commit: String::from_utf8_lossy(&git.stdout).trim().to_owned(),
        mutants: report.from,
        judged: judged.clone().count(),
        verdicts: format!("{}, {} did not compile", Report::counts(judged), report.left_out),
        equivalent: explained.count(),
        live: report.undetected_rate().to_string(),
        by_floors: report.floor_detection_rate().to_string(),
    })?;
    Ok(report)
}

/// Writes the file of a shard: one row with the fields that all shards share, and one row for each mutant.
pub(crate) fn leave(args: &Args, shard: Shard, report: Report) -> anyhow::Result<Report> {
    let mutants = report.mutants.iter().map(serde_json::to_string);
    let mutants = mutants.collect::<Result<Vec<_>, _>>()?;
    let common = Report { mutants: vec![], seconds: 0.0, wrong: report.wrong.clone(), ..report };
    let rows = [serde_json::to_string(&common)?].into_iter().chain(mutants).collect();
    let flags = [("models", args.models), ("assembly", args.assembly), ("again", args.again)];
    let flags = flags.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned());
    let sample = args.sample.map(|sample| format!("sample {sample}"));
    let bound = bound().map(|bound| format!("BOUND={bound}"));
    let manifest = args.manifest_path.iter().map(|path| path.display().to_string());
    let words =
        args.files.iter().chain(&args.rule).cloned().chain(flags).chain(sample).chain(bound).chain(manifest);
    let words: Vec<String> = words.chain([format!("seed {}", args.seed)]).collect();
    let path = args.share.leave(RUNNER_NAME, shard, &words.join(" "), rows)?;
    eprintln!("check-mutants: share {shard}: {}", path.display());
    Ok(report)
}

/// Merges the results of all shards, and returns them.
pub(crate) fn merge(args: &Args) -> anyhow::Result<Report> {
    let (mut whole, mut first) = (Report::default(), None);
    for Share { shard, rows, .. } in args.share.joined(RUNNER_NAME)? {
        let (common, mutants) = rows.split_first().with_context(|| format!("share {shard} has no rows"))?;
        if *first.get_or_insert_with(|| common.clone()) != *common {
            bail!("the mutants of share {shard} differ from the first share's");
        }
        let mutants = mutants.iter().map(|row| serde_json::from_str(row)).collect::<Result<Vec<_>, _>>()?;
        whole.mutants.extend::<Vec<JudgedMutant>>(mutants);
    }
    let common: Report = serde_json::from_str(&first.unwrap_or_default())?;
    let different: BTreeSet<u32> = whole.mutants.iter().map(|of| of.mutant.number).collect();
    if [whole.mutants.len(), different.len()] != [common.of; 2] {
        let all = whole.mutants.len();
        bail!("the shares have {all} mutants, {} of them different; expected {}", different.len(), common.of);
    }
    Ok(Report { mutants: whole.mutants, ..common })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::fs;
    use std::path::PathBuf;

    fn judged(verdict: Verdict, equivalent: bool) -> JudgedMutant {
        let mutant = Mutant {
            number: 0,
            file: "a.rs".to_owned(),
            line: 1,
            column: 1,
            function: "f".to_owned(),
            rule: "compare".to_owned(),
            change: "a < b -> a <= b".to_owned(),
        };
        JudgedMutant { mutant, verdict, equivalent: equivalent.then(|| "it is".to_owned()) }
    }

    #[test]
    fn mutants_waiting_for_judgement_are_not_counted() {
        let floor = || Verdict::Floor { name: "m".to_owned() };
        let mutants = vec![
            judged(Verdict::Lives, false),
            judged(Verdict::Lives, true),
            judged(Verdict::Waits, false),
            judged(Verdict::Unreached, false),
            judged(floor(), false),
            judged(Verdict::Time { name: "m".to_owned() }, true),
        ];
        let report = Report { mutants, ..Report::default() };
        let living = report.undetected_rate();
        assert_eq!((living.of, living.all), (2, 4));
        assert_eq!(
            (report.floor_detection_rate().of, report.time_detection_rate().of, living.interval()),
            (1, 1, [50.0; 2])
        );
    }

    #[test]
    fn mutation_run_without_judged_mutants_is_an_error() {
        let config: Config = toml::from_str(
            "files = []\nrules = []\nmost_live = 3.0\nmost_by_floors = 0.0\nmost_by_time = 5.0",
        )
        .unwrap();
        let wrong = |words: &[&str], mutants: Vec<JudgedMutant>, all| {
            let args = Args::parse_from(["check-mutants"].iter().chain(words));
            explain(&args, &config, Report { mutants, ..Report::default() }, all).wrong
        };
        let waits = || vec![judged(Verdict::Waits, false)];
        assert_eq!(wrong(&[], waits(), true), ["nothing was judged"]);
        assert_eq!(wrong(&[], vec![], true), ["nothing was judged"]);
        assert!(wrong(&[], vec![judged(Verdict::Lives, false)], true).is_empty());
        assert!(wrong(&["--again"], vec![], true).is_empty() && wrong(&[], vec![], false).is_empty());
        assert_eq!(wrong(&["--again"], waits(), true), ["nothing was judged"]);
    }

    #[test]
    fn failed_mutation_run_is_not_recorded() {
        let args = Args::parse_from(["check-mutants", "--record"]);
        let recorded = || fs::read_to_string(workspace().join("tests/mutants_ran.json")).unwrap();
        let before = recorded();
        let wrong = Report { wrong: vec!["nothing was judged".to_owned()], ..Report::default() };
        assert_eq!(record(&args, wrong).unwrap().wrong.len(), 1);
        assert_eq!(recorded(), before);
    }

    #[test]
    fn confidence_interval_narrows_with_sample_size() {
        let rate = |of, all, sampled| Rate { of, all, sampled };
        // The values are from tables of Wilson's interval.
        assert_eq!(
            rate(1, 10, true).to_string(),
            "1 of 10, 10.0 % (of all 1.8 to 40.4 % with a confidence of 95 %)"
        );
        assert_eq!(
            rate(0, 100, true).to_string(),
            "0 of 100, 0.0 % (of all 0.0 to 3.7 % with a confidence of 95 %)"
        );
        assert!(!rate(1, 20, true).exceeds(3.0) && rate(30, 200, true).exceeds(3.0));
        assert!(rate(4, 100, false).exceeds(3.0) && !rate(3, 100, false).exceeds(3.0));
        assert!((0..200).all(|all| !rate(0, all, true).exceeds(0.0)) && rate(1, 135, true).exceeds(0.0));
    }

    #[test]
    fn merged_mutant_shards_equal_the_whole_run() {
        let folder = tempfile::tempdir().unwrap();
        let whole: Vec<JudgedMutant> = (0..7)
            .map(|number| {
                let mut of =
                    judged(Verdict::Model { name: "m".to_owned(), message: "it fails".to_owned() }, false);
                of.mutant.number = number;
                of
            })
            .collect();
        let left = |index: u64, more: &[&str]| {
            let file = folder.path().join(format!("{index}{}", more.concat()));
            let args = ["check-mutants", "--shard", &format!("{index}/3"), "--rows", file.to_str().unwrap()];
            let args = Args::parse_from(args.iter().chain(more));
            let shard = args.share.requested().unwrap().unwrap();
            let items = shard.items(7);
            let mutants = whole[items.start as usize..items.end as usize].iter();
            let mutants = mutants.map(|of| JudgedMutant {
                mutant: of.mutant.clone(),
                verdict: of.verdict.clone(),
                equivalent: None,
            });
            let report = Report { of: 7, left_out: 5, mutants: mutants.collect(), ..Report::default() };
            leave(&args, shard, report).unwrap();
            file
        };
        let files: Vec<PathBuf> = (0..3).map(|index| left(index, &[])).collect();
        let merged = |files: &[PathBuf]| {
            let files = files.iter().map(|file| file.to_str().unwrap());
            merge(&Args::parse_from(["check-mutants", "--merge"].into_iter().chain(files)))
        };
        let report = merged(&files).unwrap();
        assert_eq!(
            report.mutants.iter().map(|of| of.mutant.number).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5, 6]
        );
        assert_eq!((report.of, report.left_out), (7, 5));
        let error = merged(&files[..2]).unwrap_err().to_string();
        assert!(error.contains("share 2/3 of check-mutants is missing"), "{error}");
        for other in [&["--seed", "2"][..], &["--again"], &["--assembly"]] {
            let error =
                merged(&[files[0].clone(), files[1].clone(), left(2, other)]).unwrap_err().to_string();
            assert!(error.contains("expected files of one run and one build"), "{other:?}: {error}");
        }
        let twice = fs::read_to_string(&files[2]).unwrap().replace("\"number\":6", "\"number\":5");
        fs::write(&files[2], twice).unwrap();
        let error = merged(&files).unwrap_err().to_string();
        assert_eq!(error, "the shares have 7 mutants, 6 of them different; expected 7");
    }
}
