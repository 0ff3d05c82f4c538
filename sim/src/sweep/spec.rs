//! The file that says what a sweep is of.

use super::axis::Axis;
use super::plan::{Knob, Plan, Sample, Settings, Trace};
use crate::scale::{self, MOST_CPUS};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use uslab_engine::Policy;
use uslab_engine::clock::Workload;
use uslab_engine::designs::{PolicyVisitor, Spec as Design};

/// The most settings of all designs: each one is checked before anything runs.
const MOST_SETTINGS: u64 = 1_000_000;
/// The most items.
const MOST_ITEMS: u64 = 1_000_000_000;
/// What lies beside a trace and is read with it.
const TABLES: [&str; 3] = ["slabinfo", "buddyinfo", "zoneinfo"];

/// As it is written. Keys are the options of `uslab scale`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    trace: Vec<String>,
    #[serde(default)]
    workload: Vec<String>,
    design: Vec<String>,
    #[serde(default)]
    knobs: BTreeMap<String, BTreeMap<String, Axis>>,
    sample: Option<Sample>,
    cpus: Option<Axis>,
    seed: Option<Axis>,
    size: Option<Axis>,
    ops: Option<Axis>,
    think: Option<Axis>,
    profile: Option<String>,
}

/// What a round of `uslab tune` is written as: an ordinary file of a sweep.
#[derive(Debug, Serialize)]
pub(super) struct Written<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) trace: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) workload: &'a [String],
    pub(super) design: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) cpus: &'a [u64],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) seed: &'a [u64],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) size: &'a [u64],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) ops: &'a [u64],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) think: &'a [u64],
    pub(super) profile: &'a str,
}

/// What the hash is of, beside the simulator's version: nothing in it depends on where files lie.
#[derive(Serialize)]
struct Normal<'a> {
    version: &'static str,
    plan: &'a Plan,
}

/// Whether a policy can run in virtual time.
struct HasClock;

impl PolicyVisitor for HasClock {
    type Out = ();
    fn visit<P: Policy>(self, _: P::Knobs) {}
}

/// Reads a sweep's file, checks all of it, and hashes it with the traces that it names.
///
/// `inputs` is the folder of traces; left out, that of the file.
///
/// # Errors
/// What is wrong, with the file, the key and what would be accepted. Nothing has been run.
pub(super) fn read<P: Policy>(path: &Path, inputs: Option<&Path>) -> anyhow::Result<Plan> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| shown.to_string())?;
    let file: File = toml::from_str(&text).map_err(|error| {
        let line =
            error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        anyhow::anyhow!("{shown}:{line}: {}", error.message().replace('\n', " "))
    })?;
    let here = path.parent().unwrap_or(Path::new("."));
    plan::<P>(file, path, inputs.unwrap_or(here)).with_context(|| shown.to_string())
}

fn plan<P: Policy>(file: File, path: &Path, inputs: &Path) -> anyhow::Result<Plan> {
    let File { trace, workload, design, knobs, sample, cpus, seed, size, ops, think, profile } = file;
    if trace.is_empty() && workload.is_empty() {
        bail!("neither `trace` nor `workload`: expected a list in one of them");
    }
    if design.is_empty() {
        bail!("design: expected at least one");
    }
    for (key, names) in [("trace", &trace), ("workload", &workload), ("design", &design)] {
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        if let Some((_, name)) = twice {
            bail!("{key}: {name} is there twice");
        }
    }
    if workload.is_empty() {
        let made = [("seed", &seed), ("size", &size), ("ops", &ops), ("think", &think)];
        if let Some((key, _)) = made.into_iter().find(|(_, axis)| axis.is_some()) {
            bail!("{key}: a trace has its own; expected a `workload` that it is for");
        }
    } else if cpus.is_none() {
        bail!("cpus: expected numbers of CPUs, because workloads have none of their own");
    }
    for name in &workload {
        name.parse::<Workload>().map_err(|error| anyhow::anyhow!("workload: {error}"))?;
    }
    let settings = settings::<P>(&design, knobs, sample.as_ref())?;
    let within = |key: &str, axis: Option<Axis>, default: u64, least: u64, most: u64| {
        let axis = axis.unwrap_or_else(|| Axis::one(default));
        match axis.values().iter().find(|value| !(least..=most).contains(value)) {
            Some(value) => bail!("{key}: {value}: expected {least} to {most}"),
            None => Ok(axis.values().to_vec()),
        }
    };
    let profile = profile.as_deref().unwrap_or("vm2");
    let beside = inputs.join(profile);
    let profile_name = if beside.is_file() { beside.display().to_string() } else { profile.to_owned() };
    let profile_name = profile_name.as_str();
    let profile = scale::profile(profile_name).map_err(|error| {
        // It names the option; this is the key.
        anyhow::anyhow!("{}", format!("{error:#}").replacen("--profile", "profile:", 1))
    })?;
    let has_cpus = cpus.is_some();
    let cpus = within("cpus", cpus, 1, 1, MOST_CPUS.into())?;
    let mut plan = Plan {
        traces: trace.into_iter().map(|name| read_trace(name, inputs)).collect::<Result<_, _>>()?,
        workloads: workload,
        settings,
        cpus: if has_cpus { cpus } else { vec![] },
        seeds: within("seed", seed, 1, 0, u64::MAX)?,
        sizes: within("size", size, 64, 1, 8192)?,
        operations: within("ops", ops, 20_000, 1, u64::MAX)?,
        thinks: within("think", think, 0, 0, u32::MAX.into())?,
        profile_name: profile_name.to_owned(),
        profile,
        hash: String::new(),
        path: path.to_owned(),
    };
    match plan.count() {
        None => bail!("more than {MOST_ITEMS} items"),
        Some(items) if items > MOST_ITEMS => bail!("{items} items; expected at most {MOST_ITEMS}"),
        Some(_) => {}
    }
    let normal = serde_json::to_vec(&Normal { version: env!("CARGO_PKG_VERSION"), plan: &plan })?;
    plan.hash = hex(&Sha256::digest(&normal));
    Ok(plan)
}

/// All settings of all designs, each one checked.
fn settings<P: Policy>(
    designs: &[String],
    knobs: BTreeMap<String, BTreeMap<String, Axis>>,
    sample: Option<&Sample>,
) -> anyhow::Result<Settings> {
    let name_of = |design: &str| design.split(':').next().unwrap_or_default().to_owned();
    if let Some(name) = knobs.keys().find(|name| !designs.iter().any(|design| name_of(design) == **name)) {
        bail!("knobs.{name}: no design of that name is in `design`");
    }
    if let Some(Sample { points: 0, .. }) = sample {
        bail!("sample: points 0: expected at least 1");
    }
    let mut settings = Settings::default();
    for design in designs {
        let parsed: Design<P> = design.parse().map_err(|error| anyhow::anyhow!("design: {error}"))?;
        parsed.policy(HasClock).map_err(|error| anyhow::anyhow!("design: {error}"))?;
        let axes = knobs.get(&name_of(design)).into_iter().flatten();
        let axes: Vec<_> =
            axes.map(|(key, axis)| Knob { key: key.clone(), values: axis.values().to_vec() }).collect();
        let first = settings.count();
        settings.add(design.clone(), axes, sample);
        if settings.count() > MOST_SETTINGS {
            bail!("design: more than {MOST_SETTINGS} settings; expected fewer knobs, or a `sample`");
        }
        for number in first..settings.count() {
            let text = settings.text(number);
            text.parse::<Design<P>>()
                .map_err(|error| anyhow::anyhow!("knobs.{}: {error} (in {text})", name_of(design)))?;
        }
    }
    Ok(settings)
}

/// A trace, and what its file and the tables beside it hash to.
fn read_trace(name: String, inputs: &Path) -> anyhow::Result<Trace> {
    let path = inputs.join(&name);
    let wrong = |path: &Path, error: std::io::Error| anyhow::anyhow!("trace: {}: {error}", path.display());
    if !path.is_file() {
        // What opening says of it: there is none, or it is a folder.
        let error = path.metadata().err().unwrap_or_else(|| std::io::ErrorKind::IsADirectory.into());
        return Err(wrong(&path, error));
    }
    let mut hash = Sha256::new();
    add(&mut hash, &path).map_err(|error| wrong(&path, error))?;
    for table in tables_beside(&path).map_err(|error| wrong(&path, error))? {
        let name = table.file_name().unwrap_or_default();
        hash.update(name.as_encoded_bytes());
        add(&mut hash, &table).map_err(|error| wrong(&table, error))?;
    }
    Ok(Trace { name, sha256: hex(&hash.finalize()), path })
}

/// The kernel's tables in the folder of a trace, in the order of their names.
fn tables_beside(trace: &Path) -> std::io::Result<Vec<PathBuf>> {
    let folder = trace.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // `before.slabinfo` is a moment's; a name with a further dot belongs to something else.
    let is_table = |path: &PathBuf| {
        path.extension().is_some_and(|end| TABLES.iter().any(|table| end == *table))
            && path.file_stem().is_some_and(|stem| Path::new(stem).extension().is_none())
    };
    let paths = folder.read_dir()?.map(|entry| entry.map(|entry| entry.path()));
    let mut tables: Vec<_> =
        paths.filter(|path| path.as_ref().map_or(true, is_table)).collect::<Result<_, _>>()?;
    tables.sort();
    Ok(tables)
}

/// The bytes of a file, with their number.
fn add(hash: &mut Sha256, path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::open(path)?;
    let (mut buffer, mut bytes) = (vec![0; 1 << 16], 0_u64);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => {
                hash.update(&buffer[..n]);
                bytes += n as u64;
            }
        }
    }
    hash.update(bytes.to_le_bytes());
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
