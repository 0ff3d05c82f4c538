//! Parses the file that describes a sweep.

use super::axis::Axis;
use super::plan::{Knob, Plan, SIMULATOR_VERSION, Sample, Settings, Trace};
use crate::replay::is_converted;
use crate::scale::{self, MAX_CPUS};
use crate::trace::{Tables, TraceError};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use toml::de::{DeTable, DeValue};
use uslab_engine::Policy;
use uslab_engine::clock::Workload;
use uslab_engine::designs::{self, PolicyVisitor, Spec as Design};

/// The largest number of settings of all designs together; limited because each setting is checked before any item
/// runs.
const MAX_SWEEP_SETTINGS: u64 = 1_000_000;
const MAX_SWEEP_ITEMS: u64 = 1_000_000_000;

/// The content of the file that describes a sweep. The keys of the file are the options of `uslab scale`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    trace: Names,
    #[serde(default)]
    workload: Names,
    design: Names,
    #[serde(default)]
    knobs: BTreeMap<String, BTreeMap<String, Axis>>,
    sample: Option<Sample>,
    cpus: Option<Axis>,
    seed: Option<Axis>,
    size: Option<Axis>,
    ops: Option<Axis>,
    think: Option<Axis>,
    profile: Option<String>,
    inputs: Option<String>,
    results: Option<String>,
}

/// A single name, or a list of names.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "toml::Value")]
struct Names(Vec<String>);

impl TryFrom<toml::Value> for Names {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let list = if let toml::Value::Array(list) = value { list } else { vec![value] };
        let name = |value| match value {
            toml::Value::String(name) => Ok(name),
            other => Err(format!("{other}: expected a name, or a list of names")),
        };
        list.into_iter().map(name).collect::<Result<_, _>>().map(Self)
    }
}

/// An error about a value in the sweep's file, with the value's key and its index in a list.
#[derive(Debug)]
struct ValueError {
    keys: Vec<String>,
    place: Option<usize>,
    why: String,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.keys.join("."), self.why)
    }
}

impl std::error::Error for ValueError {}

impl ValueError {
    fn error(key: &str, place: impl Into<Option<usize>>, reason: impl fmt::Display) -> anyhow::Error {
        let keys = key.split('.').map(str::to_owned).collect();
        anyhow::Error::new(Self { keys, place: place.into(), why: format!("{reason:#}") })
    }
    /// Returns the line of the invalid value in the sweep's file.
    fn line(&self, text: &str) -> Option<usize> {
        let file = DeTable::parse(text).ok()?;
        let (mut table, mut position) = (file.get_ref(), None);
        for name in &self.keys {
            let (key, value) = table.iter().find(|(key, _)| key.get_ref() == name)?;
            position = Some(key.span().start);
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                DeValue::Array(list) => {
                    let value = self.place.and_then(|place| list.get(place));
                    position = value.map(|value| value.span().start).or(position);
                }
                _ => {}
            }
        }
        position.map(|position| line_number_of(text, position))
    }
}

/// Returns the key of the value at a text position, because deserialising errors name only the position.
fn key_at_position(table: &DeTable<'_>, position: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let inner =
            if let DeValue::Table(inner) = value.get_ref() { key_at_position(inner, position) } else { None };
        let name = key.get_ref();
        inner
            .map(|inner| format!("{name}.{inner}"))
            .or(value.span().contains(&position).then(|| name.to_string()))
    })
}

fn line_number_of(text: &str, position: usize) -> usize {
    text[..position.min(text.len())].matches('\n').count() + 1
}

/// The file of one round of `uslab tune`, in the format of a sweep's file.
#[derive(Debug, Serialize)]
pub(super) struct SweepFile<'a> {
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
    pub(super) inputs: &'a str,
    pub(super) results: &'a str,
}

/// The content of a sweep that its hash covers. The content does not depend on the paths of any files.
#[derive(Serialize)]
struct Normal<'a> {
    version: &'static str,
    plan: &'a Plan,
}

/// A visitor that returns `true` if a policy supports virtual time.
struct VirtualTimeSupport;

impl PolicyVisitor for VirtualTimeSupport {
    type Out = ();
    fn visit<P: Policy>(self, _: P::Knobs) {}
}

/// Reads and checks a sweep's file, and hashes the file together with the traces that it names.
///
/// The parameter `inputs` is the folder of the traces. If `inputs` is `None`, the sweep's file names the
/// folder, or the traces are in the folder of the sweep's file.
///
/// # Errors
/// Fails if a value is invalid; the error names the sweep's file, the key and the accepted values. A value is
/// rejected before any item runs.
pub(super) fn read<P: Policy>(path: &Path, inputs: Option<&Path>) -> anyhow::Result<Plan> {
    let path_text = path.display();
    let text = std::fs::read_to_string(path).with_context(|| path_text.to_string())?;
    let file: File = toml::from_str(&text).map_err(|error| {
        let position = error.span().map_or(0, |span| span.start);
        let key = DeTable::parse(&text).ok().and_then(|file| key_at_position(file.get_ref(), position));
        let key = key.map_or_else(String::new, |key| format!("{key}: "));
        anyhow::anyhow!(
            "{path_text}:{}: {key}{}",
            line_number_of(&text, position),
            error.message().replace('\n', " ")
        )
    })?;
    let mut plan = plan::<P>(file, path, inputs).map_err(|error| {
        let line = error.downcast_ref::<ValueError>().and_then(|value_error| value_error.line(&text));
        error.context(line.map_or_else(|| path_text.to_string(), |line| format!("{path_text}:{line}")))
    })?;
    for (position, trace) in plan.traces.iter_mut().enumerate() {
        let value_error =
            ValueError { keys: vec!["trace".to_owned()], place: Some(position), why: String::new() };
        trace.line = value_error.line(&text).unwrap_or(1);
    }
    Ok(plan)
}

fn plan<P: Policy>(file: File, path: &Path, folder: Option<&Path>) -> anyhow::Result<Plan> {
    let File { knobs, sample, cpus, seed, size, ops, think, profile, inputs, results, .. } = file;
    let (Names(trace), Names(workload), Names(design)) = (file.trace, file.workload, file.design);
    let in_sweep_folder =
        |name: String| resolve_parent_components(&path.parent().unwrap_or(Path::new("")).join(name));
    let inputs = folder.map_or_else(|| in_sweep_folder(inputs.unwrap_or_default()), Path::to_owned);
    if trace.is_empty() && workload.is_empty() {
        bail!("neither `trace` nor `workload` is given; expected a list in one of them");
    }
    if design.is_empty() {
        return Err(ValueError::error("design", None, "expected at least one"));
    }
    for (key, names) in [("trace", &trace), ("workload", &workload), ("design", &design)] {
        let duplicate = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        if let Some((at, name)) = duplicate {
            return Err(ValueError::error(key, at, format_args!("{name} is given twice")));
        }
    }
    if workload.is_empty() {
        let generated_axes = [("seed", &seed), ("size", &size), ("ops", &ops), ("think", &think)];
        if let Some((key, _)) = generated_axes.into_iter().find(|(_, axis)| axis.is_some()) {
            return Err(ValueError::error(
                key,
                None,
                "a trace fixes this value; expected a `workload`, to which the key applies",
            ));
        }
    } else if cpus.is_none() {
        bail!("cpus: expected numbers of CPUs, because workloads have no default number");
    }
    for (at, name) in workload.iter().enumerate() {
        name.parse::<Workload>().map_err(|error| ValueError::error("workload", at, error))?;
    }
    let settings = expand_settings::<P>(&design, knobs, sample.as_ref())?;
    let within = |key: &str, axis: Option<Axis>, default: u64, min: u64, max: u64| {
        let axis = axis.unwrap_or_else(|| Axis::single_value(default));
        let values = axis.values();
        match values.iter().enumerate().find(|(_, value)| !(min..=max).contains(value)) {
            Some((at, value)) => {
                Err(ValueError::error(key, at, format_args!("{value}: expected {min} to {max}")))
            }
            None => Ok(values.to_vec()),
        }
    };
    let profile = profile.as_deref().unwrap_or("vm2");
    let profile_file = inputs.join(profile);
    let profile_name =
        if profile_file.is_file() { profile_file.display().to_string() } else { profile.to_owned() };
    let profile_name = profile_name.as_str();
    let profile = scale::profile(profile_name).map_err(|error| {
        // The error names the option; here the key has its place.
        ValueError::error("profile", None, format!("{error:#}").replacen("--profile ", "", 1))
    })?;
    let has_cpus = cpus.is_some();
    let cpus = within("cpus", cpus, 1, 1, MAX_CPUS.into())?;
    let mut plan = Plan {
        traces: trace
            .into_iter()
            .enumerate()
            .map(|(at, name)| {
                read_trace(name, &inputs).map_err(|error| ValueError::error("trace", at, error))
            })
            .collect::<Result<_, _>>()?,
        workloads: workload,
        settings,
        sample,
        knobs: designs::knobs::<P>,
        cpus: if has_cpus { cpus } else { vec![] },
        seeds: within("seed", seed, 1, 0, u64::MAX)?,
        sizes: within("size", size, 64, 1, 8192)?,
        operations: within("ops", ops, 20_000, 1, u64::MAX)?,
        thinks: within("think", think, 0, 0, u32::MAX.into())?,
        profile_name: profile_name.to_owned(),
        profile_sha256: hex(&Sha256::digest(serde_json::to_vec(&profile)?)),
        profile,
        hash: String::new(),
        results: results.map(in_sweep_folder),
        inputs,
        path: path.to_owned(),
    };
    match plan.count() {
        None => bail!("more than {MAX_SWEEP_ITEMS} items"),
        Some(items) if items > MAX_SWEEP_ITEMS => bail!("{items} items; expected at most {MAX_SWEEP_ITEMS}"),
        Some(_) => {}
    }
    let normalized = serde_json::to_vec(&Normal { version: SIMULATOR_VERSION, plan: &plan })?;
    plan.hash = hex(&Sha256::digest(&normalized));
    Ok(plan)
}

/// Returns the settings of all designs, and checks each setting.
fn expand_settings<P: Policy>(
    designs: &[String],
    knobs: BTreeMap<String, BTreeMap<String, Axis>>,
    sample: Option<&Sample>,
) -> anyhow::Result<Settings> {
    let name_of = |design: &str| design.split(':').next().unwrap_or_default().to_owned();
    for (place, design) in designs.iter().enumerate() {
        let value_error = |reason: &dyn fmt::Display| ValueError::error("design", place, reason);
        let has_clock =
            |name: &str| name.parse::<Design<P>>().map(|design| design.policy(VirtualTimeSupport).is_ok());
        if designs::all::<P>().all(|(known_design, _)| known_design != name_of(design)) {
            let known_designs =
                designs::all::<P>().map(|(name, _)| name).filter(|name| has_clock(name) == Ok(true));
            let known_designs = known_designs.collect::<Vec<_>>().join(", ");
            return Err(value_error(&format_args!(
                "unknown design `{}`; expected one of {known_designs}",
                name_of(design)
            )));
        }
        let parsed: Design<P> = design.parse().map_err(|error| value_error(&error))?;
        parsed.policy(VirtualTimeSupport).map_err(|error| value_error(&error))?;
    }
    if let Some(name) = knobs.keys().find(|name| !designs.iter().any(|design| name_of(design) == **name)) {
        let reason = "the list `design` has no design with this name";
        return Err(ValueError::error(&format!("knobs.{name}"), None, reason));
    }
    if let Some(Sample { points, .. }) = sample
        && !(1..=MAX_SWEEP_SETTINGS).contains(&u64::from(*points))
    {
        return Err(ValueError::error(
            "sample.points",
            None,
            format_args!("{points}: expected 1 to {MAX_SWEEP_SETTINGS}"),
        ));
    }
    let mut settings = Settings::default();
    for (place, design) in designs.iter().enumerate() {
        let name = name_of(design);
        let axes = knobs.get(&name).into_iter().flatten();
        let axes: Vec<_> =
            axes.map(|(key, axis)| Knob { key: key.clone(), values: axis.values().to_vec() }).collect();
        let first = settings.count();
        settings.add(design.clone(), axes.clone(), sample);
        if settings.count() > MAX_SWEEP_SETTINGS {
            let reason =
                format_args!("more than {MAX_SWEEP_SETTINGS} settings; expected fewer knobs, or a `sample`");
            return Err(ValueError::error("design", place, reason));
        }
        for number in first..settings.count() {
            let text = settings.text(number);
            if let Err(error) = text.parse::<Design<P>>() {
                let error = error.to_string();
                // The option that the error names, and the index of this setting's value of it.
                let knob = axes.iter().find(|knob| error.contains(&knob.key));
                let key = knob.map_or_else(String::new, |knob| format!(".{}", knob.key));
                let position = knob.and_then(|knob| {
                    knob.values
                        .iter()
                        .position(|value| text.split(':').any(|part| part == format!("{}={value}", knob.key)))
                });
                return Err(ValueError::error(
                    &format!("knobs.{name}{key}"),
                    position,
                    format_args!("{error} (in {text})"),
                ));
            }
        }
    }
    Ok(settings)
}

/// Reads a trace, and computes one hash of its file and of the kernel's tables that a replay reads with it.
fn read_trace(name: String, inputs: &Path) -> anyhow::Result<Trace> {
    let path = inputs.join(&name);
    if !path.is_file() {
        // The error is the one that opening the file would give: it does not exist, or is a folder.
        let error = path.metadata().err().unwrap_or_else(|| ErrorKind::IsADirectory.into());
        let folder = std::path::absolute(inputs.join(".")).unwrap_or_else(|_| inputs.to_owned());
        bail!("{name}: {error}, in {}; the key `inputs` or --inputs names another folder", folder.display());
    }
    let mut hash = Sha256::new();
    add(&mut hash, &path).with_context(|| path.display().to_string())?;
    let hash = RefCell::new(hash);
    if !is_converted(&path) {
        Tables::of(path.parent().unwrap_or(Path::new("")), |path| match std::fs::read_to_string(path) {
            Ok(text) => {
                let name = path.file_name().unwrap_or_default().as_encoded_bytes();
                let mut hash = hash.borrow_mut();
                for part in [name, text.as_bytes()] {
                    hash.update((part.len() as u64).to_le_bytes());
                    hash.update(part);
                }
                Ok(Some(text))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(TraceError::Read { path: path.to_owned(), source }),
        })?;
    }
    Ok(Trace { name, sha256: hex(&hash.into_inner().finalize()), path, line: 0 })
}

/// Returns the path without `..`: each `..` is removed together with the component before it.
fn resolve_parent_components(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match (part, path.components().next_back()) {
            (Component::ParentDir, Some(Component::Normal(_))) => _ = path.pop(),
            _ => path.push(part),
        }
        path
    })
}

/// Adds a file to the hash: the length of the file, and its bytes.
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
