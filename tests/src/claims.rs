//! The table of claims joins the claims in `tests/claims.toml` with the tests that ran for them.
//!
//! Several commands write rows to files in `target/loom`: `check-all` for models, planted bugs and schedules;
//! `check-orderings` for mutants of orderings. `check-mutants` takes hours, so its results are stored in the repository
//! (`tests/mutants_ran.json`). Only the words of the claims are written by hand, and they must match the rows. Every
//! claim needs a model, and a mutant or planted bug that makes the model fail; every model must belong to a claim.

use crate::workspace;
use anyhow::{Context, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A claim in words, read from `tests/claims.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The directory of the crate that the claim is about.
    pub floor: String,
    /// A short name of the claim; the names of its models begin with it.
    pub property: String,
    /// The property that the claim states.
    pub holds: String,
    /// The part of the property that the models do not check.
    pub beyond: String,
}

/// Files that no concurrent checker reaches, each with the reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnreachedFiles {
    /// The paths of the files, relative to the workspace.
    pub files: Vec<String>,
    /// The reason why no checker needs to reach the files; it can name tests that cover the files instead.
    pub reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    claim: Vec<Claim>,
    #[serde(default)]
    unreached: Vec<UnreachedFiles>,
}

fn words() -> anyhow::Result<String> {
    let path = workspace().join("tests/claims.toml");
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Reads the entries of `tests/claims.toml` about files that no concurrent checker reaches.
///
/// Fails if the file cannot be read.
pub fn unreached() -> anyhow::Result<Vec<UnreachedFiles>> {
    Ok(toml::from_str::<File>(&words()?).context("tests/claims.toml")?.unreached)
}

/// The command that wrote a file of rows.
#[derive(Clone, Copy, Debug)]
pub enum Runner {
    /// The runner `check-all`.
    All,
    /// The runner `check-orderings`.
    Orderings,
}

impl Runner {
    /// Returns the path of the file to which the command writes its rows.
    pub fn file(self) -> PathBuf {
        workspace().join(match self {
            Self::All => "target/loom/rows.txt",
            Self::Orderings => "target/loom/mutants.txt",
        })
    }
}

/// The recorded result of one run of `cargo check-mutants --record`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MutantRun {
    /// The kind of tests that judged the mutants, for example `tests and models`.
    pub by: String,
    /// The commit whose sources were mutated, with its date.
    pub commit: String,
    /// The number of selected mutants.
    pub mutants: usize,
    /// The number of mutants that were judged; they were drawn at random.
    pub judged: usize,
    /// The number of mutants with each verdict, and the number that did not compile.
    pub verdicts: String,
    /// The number of live mutants that change nothing, for a stated reason.
    pub equivalent: usize,
    /// The rate of live mutants without such a reason.
    pub live: String,
    /// The rate of mutants that only a floor detected, because a model explored too few executions.
    pub by_floors: String,
}

/// The contents of the file `tests/mutants_ran.json`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MutantRuns {
    run: Vec<MutantRun>,
}

impl MutantRuns {
    fn path() -> PathBuf {
        workspace().join("tests/mutants_ran.json")
    }
    /// Reads the records of all mutant runs.
    ///
    /// # Errors
    /// Fails if the file cannot be read or parsed.
    pub fn read() -> anyhow::Result<Self> {
        let path = Self::path();
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }
    /// Replaces the record with the same kind of tests; if there is no such record, adds one.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written.
    pub fn record(run: MutantRun) -> anyhow::Result<()> {
        let mut all = Self::read()?;
        all.run.retain(|old| old.by != run.by);
        all.run.push(run);
        all.run.sort_by(|a, b| a.by.cmp(&b.by));
        let text = serde_json::to_string_pretty(&all)? + "\n";
        let path = Self::path();
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    }
    /// Returns the section about mutants in the table of claims.
    fn table(&self) -> String {
        let mut out = String::from(MUTANTS_SECTION);
        for run in &self.run {
            let MutantRun { by, commit, mutants, judged, verdicts, equivalent, live, by_floors } = run;
            _ = write!(
                out,
                "\n**By {by}**, at {commit}: {judged} of {mutants} mutants judged, {verdicts}.\n\n"
            );
            _ = writeln!(out, "- neither noticed nor argued to change nothing: {live}");
            _ = writeln!(out, "- argued to change nothing: {equivalent}");
            _ = writeln!(out, "- noticed by a model's floor only: {by_floors}");
        }
        out
    }
}

const MUTANTS_SECTION: &str = "
## Mutants of meaning

`cargo check-mutants` changes the core files (`tests/mutants.toml`) in one place at a time, by rule; some test or model must fail. A mutant
runs through the tests and models that reach it, cheapest first, up to the first that fails, so a run of both does not tell which models
would have noticed it; a run of the models alone does, and what they leave is for tests. Tests that take more than 10 s of CPU time are left
out. *Live* and *unreached* count those, too, that are argued to change nothing. What recorded runs came to:
";

/// Returns the directory of a package's crate. The package `litmus`, which contains litmus tests, belongs to
/// `uslab-sync`.
pub fn floor(package: &str) -> Option<&'static str> {
    match package {
        "litmus" => Some("magazine/sync"),
        "uslab-magazine" => Some("magazine"),
        "uslab-buddy" => Some("buddy"),
        "uslab" => Some("slab"),
        "uslab-lab" => Some("sim/lab"),
        _ => None,
    }
}

#[derive(Clone, Debug)]
struct Model {
    threads: u32,
    bound: String,
    executions: u64,
}

/// The tests that ran for one property of a crate.
#[derive(Clone, Debug, Default)]
struct PropertyTests {
    models: Vec<Model>,
    planted: BTreeSet<String>,
    orderings: BTreeSet<String>,
    /// The number of threads and the number of schedules of each scenario.
    schedules: Vec<(u32, u64)>,
}

/// Returns the names of the properties at the start of a model's name. For example, `M1 M2: rounds travel` has two
/// properties.
pub fn properties(name: &str) -> impl Iterator<Item = &str> {
    let property = |word: &&str| {
        let mut chars = word.chars();
        chars.next().is_some_and(|c| c.is_ascii_uppercase())
            && chars.next().is_some_and(|c| c.is_ascii_digit())
            && chars.next().is_none()
    };
    name.split([' ', ':']).take_while(property)
}

/// All claims, with the evidence for each.
#[derive(Clone, Debug)]
pub struct Claims {
    list: Vec<(Claim, PropertyTests)>,
    unreached: Vec<UnreachedFiles>,
    mutants: MutantRuns,
}

impl Claims {
    /// Reads the claims and all rows; if `orderings` is `false`, rows about weaker orderings are left out.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or if the rows do not match the claims.
    pub fn read(orderings: bool) -> anyhow::Result<Self> {
        let rows = |runner: Runner, command: &str| {
            let path = runner.file();
            std::fs::read_to_string(&path).with_context(|| {
                format!("{}: the file has no rows; `cargo {command}` writes them", shown(&path))
            })
        };
        let mut all = rows(Runner::All, "check-all")?;
        if orderings {
            all += &rows(Runner::Orderings, "check-orderings")?;
        }
        let mut claims = Self::join(&words()?, &all)?;
        if orderings {
            claims.check_each_claim_has_a_killer()?;
        }
        claims.mutants = MutantRuns::read()?;
        Ok(claims)
    }

    fn check_each_claim_has_a_killer(&self) -> anyhow::Result<()> {
        for (Claim { floor, property, .. }, found) in &self.list {
            ensure!(
                !found.planted.is_empty() || !found.orderings.is_empty(),
                "tests/claims.toml: {floor} {property}: no planted bug and no weaker ordering kills its models"
            );
        }
        Ok(())
    }

    fn join(words: &str, rows: &str) -> anyhow::Result<Self> {
        let File { claim, unreached } = toml::from_str(words).context("tests/claims.toml")?;
        let list = claim.into_iter().map(|claim| (claim, PropertyTests::default())).collect();
        let mut claims = Self { list, unreached, mutants: MutantRuns::default() };
        for row in rows.lines() {
            claims.take(row).with_context(|| format!("the row {row:?}"))?;
        }
        for (Claim { floor, property, .. }, found) in &claims.list {
            ensure!(
                !found.models.is_empty() || !found.schedules.is_empty(),
                "tests/claims.toml: {floor} {property}: no model ran for it"
            );
        }
        Ok(claims)
    }

    /// Adds a row such as `package | MODEL name | ...`.
    fn take(&mut self, row: &str) -> anyhow::Result<()> {
        let mut parts = row.split(" | ");
        let (Some(package), Some(head)) = (parts.next(), parts.next()) else { bail!("expected a package") };
        // Models of an example belong to no claim.
        let Some(floor) = floor(package) else { return Ok(()) };
        let (kind, name) = head.split_once(' ').context("expected a name")?;
        let parts: Vec<&str> = parts.collect();
        let field = |name: &str| {
            parts.iter().find_map(|part| part.strip_prefix(name)?.strip_prefix(' ')).context(name.to_owned())
        };
        let number = |name: &str| -> anyhow::Result<u64> { Ok(field(name)?.parse()?) };
        let of = match kind {
            "CAUGHT" => field("property")?,
            "MUTANT" => field("models")?,
            _ => name,
        };
        ensure!(properties(of).next().is_some(), "the row names no property");
        for property in properties(of) {
            let mut same = self.list.iter_mut().filter(|(c, _)| c.floor == floor && c.property == property);
            let (_, found) =
                same.next().ok_or_else(|| anyhow!("tests/claims.toml has no {floor} {property}"))?;
            match kind {
                "MODEL" => found.models.push(Model {
                    threads: number("threads")? as u32,
                    bound: field("bound")?.to_owned(),
                    executions: number("executions")?,
                }),
                "CAUGHT" => _ = found.planted.insert(name.to_owned()),
                "MUTANT" => _ = found.orderings.insert(name.to_owned()),
                "SCHEDULES" => {
                    found.schedules.push((number("threads")? as u32, number("random")? + number("pct")?))
                }
                _ => bail!("the row has an unknown kind"),
            }
        }
        Ok(())
    }

    /// Returns the number of claims.
    pub fn len(&self) -> usize {
        self.list.len()
    }
    /// Returns `true` if there are no claims.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the table of claims as Markdown.
    pub fn table(&self) -> String {
        let mut out = String::from(HEAD);
        let mut floor = "";
        for (claim, found) in &self.list {
            if claim.floor != floor {
                floor = &claim.floor;
                _ = write!(out, "\n## {floor}\n");
            }
            _ = write!(out, "\n**{}** {}\n\n", claim.property, claim.holds);
            let executions: u64 = found.models.iter().map(|model| model.executions).sum();
            let (count, threads) = (found.models.len(), found.models.iter().map(|model| model.threads));
            let bounds: BTreeSet<&str> = found.models.iter().map(|model| &*model.bound).collect();
            let bounds: Vec<&str> = bounds.into_iter().collect();
            if count > 0 {
                _ = writeln!(
                    out,
                    "- {count} {}, {} threads, bound {}, {executions} executions",
                    if count == 1 { "model" } else { "models" },
                    range(threads),
                    bounds.join(" and "),
                );
            }
            if !found.schedules.is_empty() {
                let schedules: u64 = found.schedules.iter().map(|(_, schedules)| schedules).sum();
                let threads = range(found.schedules.iter().map(|(threads, _)| *threads));
                _ = writeln!(out, "- {schedules} schedules, random and PCT, {threads} threads");
            }
            if !found.planted.is_empty() {
                let bugs = found.planted.len();
                _ = writeln!(out, "- killed by {bugs} planted bug{}", if bugs == 1 { "" } else { "s" });
            }
            if !found.orderings.is_empty() {
                let orderings: Vec<&str> = found.orderings.iter().map(String::as_str).collect();
                _ = writeln!(out, "{WEAKER_PREFIX}{}", orderings.join("; "));
            }
            _ = writeln!(out, "- not shown: {}", claim.beyond);
        }
        if !self.unreached.is_empty() {
            out += UNREACHED_HEADER;
        }
        for UnreachedFiles { files, reason } in &self.unreached {
            _ = writeln!(out, "\n{reason}\n");
            for file in files {
                _ = writeln!(out, "- `{file}`");
            }
        }
        if !self.mutants.run.is_empty() {
            out.push_str(&self.mutants.table());
        }
        out
    }
}

/// The start of the line with a claim's weaker orderings.
pub const WEAKER_PREFIX: &str = "- killed by the weaker orderings: ";

const HEAD: &str = "\
# Claims

What is claimed of concurrent use, which models check it, what kills those models, and what they do not show. Made by
`cargo check-claims --write` from the rows that `cargo check-all` and `cargo check-orderings` left; the words are those of
`tests/claims.toml`.

A *model* runs the shipping source under loom, in every interleaving with at most so many pre-emptions (*bound*) and with
every result that the memory orderings allow. A *planted bug* is a wrong statement that only a copy of the source contains
(`planted.toml`); a *weaker ordering* is one of the source's memory orderings weakened. Each makes a model fail. *Schedules*
run larger scenarios under shuttle, sequentially consistent, and sample. They are all there is for what loom does not compile.

None of it is a proof. Models are small: two or three threads, two CPUs, magazines of one or two; a bug that needs a fourth
thread or one more pre-emption than the bound is not found by them. `.ci/full models` runs six of the largest with one more, and ten
times as many schedules.
";

const UNREACHED_HEADER: &str = "
## Files that no concurrent checker reaches

Neither the models, nor schedules, nor the simulation, nor the stepper, nor the protocol in step run a line of these.
`cargo check-reach` prints what else does.
";

/// Formats a range of numbers as `2` or as `2 to 3`.
fn range(numbers: impl Iterator<Item = u32> + Clone) -> String {
    let (least, most) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// Returns a path relative to the workspace, for messages.
fn shown(path: &Path) -> std::path::Display<'_> {
    path.strip_prefix(workspace()).unwrap_or(path).display()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_list_the_litmus_tests_that_loom_misses() {
        let read = |file: &str| std::fs::read_to_string(workspace().join(file)).unwrap();
        let [claims, limits, outcomes] = [
            "tests/claims.toml",
            "magazine/sync/tests/litmus/limits.txt",
            "magazine/sync/tests/litmus/outcomes.txt",
        ]
        .map(read);
        let of_loom =
            claims.lines().find(|line| line.starts_with("beyond = \"What loom cannot see")).unwrap();
        let limits = limits.lines().filter(|line| !line.is_empty() && !line.starts_with([' ', '#']));
        let shapes = outcomes.split("\n\n").filter(|shape| shape.contains("facade misses"));
        let names: Vec<&str> = limits.chain(shapes.filter_map(|shape| shape.lines().next())).collect();
        assert!(names.len() > 15, "{names:?}");
        for name in names {
            assert!(of_loom.contains(name), "tests/claims.toml: K1 does not name {name}");
        }
    }

    const WORDS: &str =
        "[[claim]]\nfloor = 'magazine'\nproperty = 'D1'\nholds = 'It holds.'\nbeyond = 'The rest.'\n";
    const MODEL: &str =
        "uslab-magazine | MODEL D1: two of them | threads 2 | bound 3 | scripts 1 | executions 70 | floor 6";
    const CAUGHT_BUG_LINE: &str = "uslab-magazine | CAUGHT it forgets | property D1 | execution 1 | lost";

    #[test]
    fn claims_table_shows_the_models_of_each_claim() {
        let rows = [
            MODEL,
            "uslab-magazine | MODEL D1 R2: more | threads 3 | bound none | scripts 1 | executions 7 | floor 6",
            CAUGHT_BUG_LINE,
            "uslab-magazine | MUTANT depot.rs take: Acquire -> Relaxed | models D1",
            "uslab-magazine | SCHEDULES D1: much | threads 4 | random 10 | pct 20",
            "check_your_code | MODEL mine | threads 9",
        ];
        let two = format!("{WORDS}{}", WORDS.replace("D1", "R2"));
        let joined = Claims::join(&two, &rows.join("\n")).unwrap();
        let error = joined.check_each_claim_has_a_killer().unwrap_err().to_string();
        assert!(error.contains("magazine R2: no planted bug"), "{error}");
        let rows = rows.join("\n") + "\nuslab-magazine | CAUGHT other | property R2 | execution 1 | lost";
        let table = Claims::join(&two, &rows).unwrap().table();
        for line in [
            "**D1** It holds.",
            "- 2 models, 2 to 3 threads, bound 3 and none, 77 executions",
            "- 30 schedules, random and PCT, 4 threads",
            "- killed by 1 planted bug",
            "- killed by the weaker orderings: depot.rs take: Acquire -> Relaxed",
            "- not shown: The rest.",
            "- 1 model, 3 threads, bound none, 7 executions",
        ] {
            assert!(table.contains(line), "{line}: {table}");
        }
    }

    #[test]
    fn claims_table_ends_with_the_mutation_results() {
        let run = MutantRun {
            by: "models alone".to_owned(),
            commit: "0123456 of 2026-01-02".to_owned(),
            mutants: 10,
            judged: 4,
            verdicts: "3 by models' assertions, 1 live".to_owned(),
            equivalent: 0,
            live: "1 of 4, 25.0 %".to_owned(),
            by_floors: "0 of 4, 0.0 %".to_owned(),
        };
        let runs = MutantRuns { run: vec![run] };
        let kept: MutantRuns = serde_json::from_str(&serde_json::to_string(&runs).unwrap()).unwrap();
        let rows = format!("{MODEL}\n{CAUGHT_BUG_LINE}");
        let table = Claims { mutants: kept, ..Claims::join(WORDS, &rows).unwrap() }.table();
        let told = "**By models alone**, at 0123456 of 2026-01-02: 4 of 10 mutants judged, 3 by models' assertions, 1 live.";
        assert!(table.contains(told) && table.contains("nothing: 1 of 4, 25.0 %"), "{table}");
        assert!(!Claims::join(WORDS, &rows).unwrap().table().contains("Mutants of meaning"));
    }

    #[test]
    fn claims_cover_code_excluded_from_loom_with_shuttle() {
        let rows = format!(
            "uslab-magazine | SCHEDULES D1: much | threads 4 | random 10 | pct 20\n{CAUGHT_BUG_LINE}"
        );
        let table = Claims::join(WORDS, &rows).unwrap().table();
        assert!(
            table.contains("- 30 schedules, random and PCT, 4 threads")
                && !table.contains("executions\n- 30")
        );
    }

    #[test]
    fn claims_table_lists_unreached_files_with_reasons() {
        let words = format!("{WORDS}[[unreached]]\nfiles = ['a.rs', 'b.rs']\nreason = 'They wait.'\n");
        let table = Claims::join(&words, &[MODEL, CAUGHT_BUG_LINE].join("\n")).unwrap().table();
        assert!(table.ends_with("\n\nThey wait.\n\n- `a.rs`\n- `b.rs`\n"), "{table}");
    }

    #[test]
    fn claim_without_a_model_run_is_an_error() {
        let wrong = |rows: &str| format!("{:#}", Claims::join(WORDS, rows).unwrap_err());
        assert!(wrong("").contains("magazine D1: no model ran"));
        let killers = Claims::join(WORDS, MODEL).unwrap().check_each_claim_has_a_killer();
        assert!(killers.unwrap_err().to_string().contains("no planted bug and no weaker ordering"));
        assert!(wrong(&MODEL.replace("D1", "D9")).contains("has no magazine D9"));
        assert!(wrong(&MODEL.replace("D1: ", "")).contains("names no property"));
        assert!(wrong(&MODEL.replace("| threads 2 ", "")).contains("threads"));
        assert!(wrong("uslab-magazine | GUESS D1: x").contains("an unknown kind"));
    }
}
