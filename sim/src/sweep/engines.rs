//! Writes files for the batch systems that run a sweep's shards: a script for Slurm, a Job for Kubernetes, a file for a
//! container.

use super::plan::Plan;
use crate::output::shell_quoted;
use serde_json::{Value, json};
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The largest number of tasks in an array under Slurm's default (`MaxArraySize` of slurm.conf is one more).
pub(super) const SLURM_TASKS: u64 = 1000;

/// Returns a warning for an array that has more tasks than Slurm's default allows.
pub(super) fn many_tasks_warning(shards: u64) -> String {
    format!("an array of more than {SLURM_TASKS} tasks needs a cluster whose MaxArraySize is above {shards}")
}

/// A time limit in the form of `sbatch`: the number of seconds `3600` is written as `01:00:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeLimit(u32);

impl FromStr for TimeLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = || {
            let (days, clock) = text.split_once('-').unwrap_or(("0", text));
            let parts: Vec<u32> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
            let of_clock = match parts[..] {
                [seconds] if !text.contains('-') => seconds,
                [hours, minutes @ 0..60, seconds @ 0..60] => {
                    hours.checked_mul(3600)?.checked_add(minutes * 60 + seconds)?
                }
                _ => return None,
            };
            days.parse::<u32>()
                .ok()?
                .checked_mul(86_400)?
                .checked_add(of_clock)
                .filter(|seconds| *seconds > 0)
        };
        seconds().map(Self).ok_or_else(|| {
            "expected seconds, as 3600, or [DAYS-]HOURS:MINUTES:SECONDS, as 01:00:00".to_owned()
        })
    }
}

impl fmt::Display for TimeLimit {
    /// Formats the time limit for `sbatch`, which would read a number without colons as minutes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(seconds) = self;
        write!(f, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

/// The options of a script for `sbatch`.
#[derive(Debug)]
pub(super) struct Slurm<'a> {
    pub(super) shards: u64,
    pub(super) cpus: u32,
    pub(super) time: Option<TimeLimit>,
    pub(super) memory: Option<&'a str>,
    pub(super) partition: Option<&'a str>,
    pub(super) inputs: Option<&'a Path>,
    pub(super) results: &'a Path,
    /// The path of the command `uslab` on the nodes.
    pub(super) program: &'a Path,
}

fn path(path: &Path) -> String {
    shell_quoted(&path.to_string_lossy())
}

/// Returns the absolute form of a path, because a job starts in another folder.
fn to_absolute_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns a name for a job that Kubernetes accepts: at most 63 small letters, digits and hyphens. The name ends with
/// the sweep's hash, so that a changed sweep gets another job name.
fn job_name(plan: &Plan) -> String {
    let stem = plan.path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let label_char = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = format!("uslab-{stem}").chars().map(label_char).take(40).collect();
    format!("{}-{}", name.trim_matches('-'), &plan.hash[..10])
}

/// Returns the `sbatch` script for an array of the sweep's shards.
pub(super) fn slurm(plan: &Plan, options: &Slurm<'_>) -> String {
    let Slurm { shards, cpus, time, memory, partition, inputs, results, program } = options;
    let name = job_name(plan);
    let mut script = format!(
        "\
#!/bin/bash
# Written by `uslab sweep slurm`: {} items in {shards} shares. Submit it with `sbatch`; items with a result are not run again.
#SBATCH --job-name={name}
#SBATCH --array=0-{}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={cpus}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%A_%a.log
",
        plan.len(),
        shards - 1
    );
    let time = time.map(|time| time.to_string());
    for (option, value) in [("time", time.as_deref()), ("mem", *memory), ("partition", *partition)] {
        if let Some(value) = value {
            let _ = writeln!(script, "#SBATCH --{option}={value}");
        }
    }
    let inputs =
        inputs.map_or_else(String::new, |inputs| format!(" --inputs {}", path(&to_absolute_path(inputs))));
    let _ = write!(
        script,
        r#"set -euo pipefail
# All of this has to be on folders that nodes share.
program={program}
sweep={file}
results={results}
not_here() {{ echo "$(hostname): $1: $2 on this node; expected a folder that all nodes share" >&2; exit 2; }}
[ -x "$program" ] || not_here "$program" "no such program"
[ -r "$sweep" ] || not_here "$sweep" "no such file"
[ -w "$results" ] || not_here "$results" "the folder does not exist or is not writable"
# The share is said in full: `sbatch --array={last} THIS` runs share {last} of {shards} again, and not all of it.
exec "$program" sweep run "$sweep"{inputs} --results "$results" \
    --hash {hash} --shard "$SLURM_ARRAY_TASK_ID/{shards}" --threads "${{SLURM_CPUS_PER_TASK:-{cpus}}}"
"#,
        program = path(&to_absolute_path(program)),
        file = path(&to_absolute_path(&plan.path)),
        results = path(&to_absolute_path(results)),
        hash = plan.hash,
        last = shards - 1,
    );
    script
}

/// The options of a Job for Kubernetes.
#[derive(Debug)]
pub(super) struct Kubernetes<'a> {
    pub(super) shards: u64,
    pub(super) parallelism: u64,
    pub(super) image: &'a str,
    /// The PersistentVolumeClaim of the volume that has the sweep's file and results.
    pub(super) claim: &'a str,
    /// The PersistentVolumeClaim of the volume with the traces, if the traces are on a separate volume.
    pub(super) inputs_claim: Option<&'a str>,
    pub(super) cpus: u32,
    pub(super) memory: &'a str,
    /// The time limit of a pod; the next field limits the whole Job.
    pub(super) time: Option<TimeLimit>,
    pub(super) deadline: Option<TimeLimit>,
    /// `true` for the Job that merges the results, which has only one pod.
    pub(super) merge: bool,
}

/// Returns the Indexed Job that runs a sweep. A shard that ends with exit code 2 (invalid input) ends the
/// whole Job. After any other failure the shard runs again, at most three times.
pub(super) fn kubernetes(plan: &Plan, options: &Kubernetes<'_>) -> Value {
    let Kubernetes { parallelism, image, claim, inputs_claim, cpus, memory, time, deadline, merge, .. } =
        options;
    let (shards, verb) = if *merge { (1, "merge") } else { (options.shards, "run") };
    let file = plan.path.file_name().unwrap_or_default().to_string_lossy();
    let mut args = vec!["sweep".to_owned(), verb.to_owned(), format!("/sweep/{file}")];
    let mut mounts = vec![json!({ "name": "sweep", "mountPath": "/sweep" })];
    let mut volumes = vec![json!({ "name": "sweep", "persistentVolumeClaim": { "claimName": claim } })];
    if let Some(claim) = inputs_claim {
        args.extend(["--inputs".to_owned(), "/inputs".to_owned()]);
        mounts.push(json!({ "name": "inputs", "mountPath": "/inputs", "readOnly": true }));
        volumes.push(
            json!({ "name": "inputs", "persistentVolumeClaim": { "claimName": claim, "readOnly": true } }),
        );
    }
    args.extend(["--results".to_owned(), "/sweep/results".to_owned()]);
    let mut name = job_name(plan);
    if *merge {
        name += "-merge";
        let stem = plan.path.file_stem().unwrap_or_default().to_string_lossy();
        let output_option = |form: &str| [format!("--{form}"), format!("/sweep/{stem}.{form}")];
        args.extend(["csv", "html"].into_iter().flat_map(output_option));
    } else {
        args.extend(["--hash".to_owned(), plan.hash.clone(), "--threads".to_owned(), cpus.to_string()]);
    }
    let mut job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": name, "labels": { "app": "uslab", "sweep": plan.short_hash() } },
        "spec": {
            "completionMode": "Indexed",
            "completions": shards,
            "parallelism": u64::min(*parallelism, shards),
            "backoffLimitPerIndex": 3,
            "maxFailedIndexes": shards,
            "podFailurePolicy": { "rules": [
                { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
                { "action": "FailJob", "onExitCodes": { "containerName": "uslab", "operator": "In", "values": [2] } }
            ] },
            "template": {
                "metadata": { "labels": { "app": "uslab", "sweep": plan.short_hash() } },
                "spec": {
                    "restartPolicy": "Never",
                    // The container's user may write to files that its group may write to.
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": CONTAINER_USER_ID, "runAsGroup": CONTAINER_USER_ID, "fsGroup": CONTAINER_USER_ID,
                        "fsGroupChangePolicy": "OnRootMismatch"
                    },
                    "containers": [{
                        "name": "uslab",
                        "image": image,
                        "args": args,
                        // The shard's number is already in JOB_COMPLETION_INDEX.
                        "env": [{ "name": "JOB_COMPLETIONS", "value": shards.to_string() }],
                        "resources": { "requests": { "cpu": cpus.to_string(), "memory": memory }, "limits": { "memory": memory } },
                        "volumeMounts": mounts
                    }],
                    "volumes": volumes
                }
            }
        }
    });
    if let Some(TimeLimit(seconds)) = deadline {
        job["spec"]["activeDeadlineSeconds"] = json!(seconds);
    }
    if let Some(TimeLimit(seconds)) = time {
        job["spec"]["template"]["spec"]["activeDeadlineSeconds"] = json!(seconds);
    }
    job
}

/// The user id in the container: the user `nobody`.
const CONTAINER_USER_ID: u32 = 65534;

/// A container file that builds the command as one static program, in an otherwise empty image.
pub(super) const CONTAINER_FILE: &str = concat!(
    "\
# Written by `uslab sweep container`. In the repository's root:
#
#     podman build --file Containerfile --tag uslab-sweep .
#
# What .containerignore names is no part of it.
# On Alpine the C library is musl, and programs are static.
FROM docker.io/library/rust:",
    env!("CARGO_PKG_RUST_VERSION"),
    "-alpine AS build
RUN apk add --no-cache gcc make musl-dev
WORKDIR /uslab
COPY . .
RUN cargo build --locked --release --package uslab-sim --bin uslab

FROM scratch
COPY --from=build /uslab/target/release/uslab /uslab
CONTAINER_USER_ID 65534:65534
ENTRYPOINT [\"/uslab\"]
"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limit_is_seconds_or_a_clock_time() {
        for (text, seconds, text_shown) in [
            ("3600", 3600, "01:00:00"),
            ("01:00:00", 3600, "01:00:00"),
            ("1-00:00:01", 86_401, "24:00:01"),
            ("90", 90, "00:01:30"),
        ] {
            let limit: TimeLimit = text.parse().unwrap();
            assert_eq!((limit, &*limit.to_string()), (TimeLimit(seconds), text_shown));
        }
        for text in ["", "0", "banana", "01:00", "01:60:00", "1-", "1-5", "-1", "99999999999"] {
            assert!(text.parse::<TimeLimit>().unwrap_err().contains("01:00:00"), "{text}");
        }
    }
}
