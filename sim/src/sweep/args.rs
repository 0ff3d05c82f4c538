//! The arguments of `uslab sweep` and `uslab tune`.

use super::engines::TimeLimit;
use super::plan::Plan;
use super::record::Metric;
use super::spec;
use super::store::Store;
use crate::output::shell_quoted;
use clap::{Args, Subcommand};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;
use uslab_engine::Policy;
use uslab_sync::shard::Shard;

/// Run many points of `uslab scale`: traces or workloads, with designs, options, CPU counts and seeds, on one
/// machine or on many.
///
/// FILE describes the sweep. Without a subcommand, the command shows the number of items in the sweep. An
/// item's result depends only on its parameters, on the prices and on the simulator's version. The file of an
/// item's result is named by a hash of the item's parameters, the prices and the simulator's version. Shards
/// can therefore run anywhere, at any time and repeatedly, and a sweep reuses results that another sweep has
/// computed. The hash of the whole sweep shows whether two machines run the same sweep.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, arg_required_else_help = true, after_help = FILE_HELP)]
pub(crate) struct SweepArgs {
    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
    #[command(flatten)]
    pub(super) of: Option<SweepFiles>,
}

const FILE_HELP: &str = "\
A sweep's file is TOML. Its keys are the options of `uslab scale`:

  trace = [\"a.txt.zst\", \"b.ops\"]     # and, or in their place, workloads; one name needs no list
  workload = [\"bursts\", \"server=1000\"]
  design = [\"slub\", \"uslab-model\"]
  cpus = { from = 1, to = 64, factor = 2 }   # needed for workloads; left out, each trace has its own
  seed = { from = 1, to = 20 }  # where chance begins (1); of workloads: a trace has no chance
  size = 64                   # bytes of an object (64), of workloads
  ops = 20000                 # operations of each CPU (20000), of workloads
  think = 0                   # ns that a CPU spends on something else after each operation (0), of workloads
  profile = \"vm2\"             # prices: a name, or a file in the folder of traces (vm2)
  inputs = \"traces\"           # the folder of traces, from the file's own (the file's own)
  results = \"depot.results\"   # the folder of results, from the file's own (FILE with the ending .results)
  [knobs.uslab-model]
  capacity = [8, 16, 32, 64]
  depot_limit = { from = 10, to = 1000, factor = 3.1623 }   # 10, 32, 100, 316, 1000
  [sample]        # a Latin hypercube of each design's knobs, in the place of all their combinations
  points = 32
  seed = 0        # another sample (0)

A number is an axis of one value; a list, { from, to, step } and { from, to, factor } have several, none above `to`. The kernel's
tables beside a trace (before.slabinfo, end.zoneinfo, ...) are read as `uslab replay` reads them. `uslab scale --help` lists workloads
and profiles, `uslab replay --help` designs and their knobs, with what each takes and is by default. An item whose trace cannot be
read fails, and the others go on.

Examples:
  uslab sweep depot.toml
  uslab sweep run depot.toml
  uslab sweep run depot.toml --shard 3/200
  uslab sweep run depot.toml --item 17
  uslab sweep status depot.toml
  uslab sweep merge depot.toml --csv depot.csv --html depot.html
  uslab sweep slurm depot.toml --shards 200 > depot.sbatch
  uslab sweep k8s depot.toml --shards 200 --image registry/uslab-sweep --claim shared > job.json
  uslab sweep k8s depot.toml --image registry/uslab-sweep --claim shared --merge > merge.json
  uslab sweep container > Containerfile";

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    Run(RunArgs),
    Status(StatusArgs),
    Merge(MergeArgs),
    Slurm(SlurmArgs),
    K8s(KubernetesArgs),
    /// Write a container file, which builds the command as one static program, to the repository's root.
    Container,
}

/// The file of a sweep, and the folders of its traces and results.
#[derive(Debug, Args)]
pub(super) struct SweepFiles {
    /// The file that describes the sweep: see `uslab sweep --help`.
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Folder of the traces. Default: the folder that FILE names, or FILE's folder
    #[arg(long, value_name = "FOLDER")]
    pub(super) inputs: Option<PathBuf>,
    /// Folder of the results. Default: the folder that FILE names, or FILE with the suffix `.results`
    #[arg(long, value_name = "FOLDER")]
    pub(super) results: Option<PathBuf>,
}

impl SweepFiles {
    pub(super) fn plan<P: Policy>(&self) -> anyhow::Result<(Plan, Store)> {
        let plan = spec::read::<P>(&self.file, self.inputs.as_deref())?;
        let store = Store::new(&plan, self.results.as_deref());
        Ok((plan, store))
    }
    /// Returns the command line that runs another subcommand on the same files.
    pub(super) fn command(&self, verb: &str) -> String {
        let mut command =
            format!("{} sweep {verb} {}", program(), shell_quoted(&self.file.to_string_lossy()));
        for (option, path) in [("--inputs", &self.inputs), ("--results", &self.results)] {
            if let Some(path) = path {
                command += &format!(" {option} {}", shell_quoted(&path.to_string_lossy()));
            }
        }
        command
    }
}

/// Returns the name of the running program, as the user called it.
pub(super) fn program() -> String {
    // `cargo run` sets the package's name for a program. The workspace's alias is shorter than the full command.
    if std::env::var("CARGO_PKG_NAME").is_ok_and(|name| name == env!("CARGO_PKG_NAME")) {
        return "cargo uslab".to_owned();
    }
    std::env::args_os()
        .next()
        .map_or_else(|| "uslab".to_owned(), |name| shell_quoted(&name.to_string_lossy()))
}

/// The options for progress reports.
#[derive(Debug, Args)]
pub(super) struct ProgressArgs {
    /// Seconds between lines of progress, if standard error is not a terminal. On a terminal, progress is a bar.
    #[arg(long = "progress", value_name = "SECONDS", default_value_t = 30)]
    seconds: u32,
}

impl ProgressArgs {
    pub(super) fn retry_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(self.seconds.into()))
    }
}

/// Run the items that have no result: all such items, the items of a shard, or one item.
///
/// The shard is given by --shard, or by the batch system that starts the command: SLURM_ARRAY_TASK_ID with
/// _COUNT, _MIN and _STEP, or JOB_COMPLETION_INDEX with JOB_COMPLETIONS or --shards. Without --shard and
/// these variables, all items are run. A result file receives its name only when it is complete. After an
/// interruption, run the command again: it skips items that already have a result.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) of: SweepFiles,
    /// Shard I of N; I counts from 0.
    #[arg(long, value_name = "I/N", conflicts_with_all = ["item", "shards"])]
    pub(super) shard: Option<Shard>,
    /// Number of shards, if the batch system only sets the shard's index.
    #[arg(long, value_name = "N", conflicts_with = "item")]
    pub(super) shards: Option<NonZeroU64>,
    /// Run item N, even if the item already has a result.
    #[arg(long, value_name = "N")]
    pub(super) item: Option<u64>,
    /// The sweep's hash, or its first 16 digits. If the sweep's hash differs, nothing runs, because FILE or a
    /// trace has been changed.
    #[arg(long, value_name = "HEX")]
    pub(super) hash: Option<String>,
    /// Number of threads. Default: one thread for each CPU.
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(super) progress: ProgressArgs,
}

/// Show which items are done, missing, failed or damaged, and how long the items took.
///
/// The exit code is 1 unless every item has a result.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    pub(super) of: SweepFiles,
}

/// Merge all results into a report, a CSV file and a page; the report has the best settings and the effect of
/// each option.
///
/// If items have no result, the command shows the failed items, and the command line that runs the rest.
/// Nothing is written, and the exit code is 1, unless every item has a result.
#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    #[command(flatten)]
    pub(super) of: SweepFiles,
    /// Metric by which settings are judged: operations_per_us, ns, waiting, lines_per_operation or slabs.
    #[arg(long, value_name = "METRIC", default_value = "operations_per_us")]
    pub(super) by: Metric,
    /// Merge the existing results even if some are missing; the exit code is 0 if at least one result exists.
    #[arg(long)]
    pub(super) partial: bool,
    /// Write one row for each item as CSV: FILE, or `-` for standard output. The units of the CSV columns are
    /// in the book, "A sweep in ten minutes".
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Write a page with tables and pictures: one file, which needs no network.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// Write a script for `sbatch` that runs an array of shards; Slurm can requeue each of them.
///
/// The program, FILE, its traces and the results must be in folders that all nodes share. The command creates
/// the folder of the results. If a node lacks one of the folders, its tasks end with exit code 2.
#[derive(Debug, Args)]
pub(super) struct SlurmArgs {
    #[command(flatten)]
    pub(super) of: SweepFiles,
    /// Number of the array's tasks; at most the number of items.
    #[arg(long, value_name = "N", default_value = "100")]
    pub(super) shards: NonZeroU64,
    /// Number of CPUs of each task.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) cpus: NonZeroU32,
    /// Time limit of a task: seconds, or [DAYS-]HOURS:MINUTES:SECONDS.
    #[arg(long, value_name = "TIME")]
    pub(super) time: Option<TimeLimit>,
    /// Memory of a task, in sbatch's form: 2G.
    #[arg(long, value_name = "SIZE", value_parser = word)]
    pub(super) memory: Option<String>,
    /// Partition of the cluster.
    #[arg(long, value_name = "NAME", value_parser = word)]
    pub(super) partition: Option<String>,
    /// Path of the program on the nodes: a file in a shared folder. Default: the path of this program.
    #[arg(long, value_name = "FILE")]
    pub(super) program: Option<PathBuf>,
}

/// Write an Indexed Job for `kubectl apply --filename`, as JSON.
///
/// The volume of the PersistentVolumeClaim is mounted at /sweep. FILE must be in the top folder of this
/// volume; results are written to the folder `results` next to FILE. The traces must have the same paths
/// relative to FILE as on this machine, or be on a second volume, which is mounted read-only (a folder of an
/// object store, for example). Several nodes must be able to write to the volume for the results
/// (ReadWriteMany), and the volume must be able to rename files, which most mounts of object stores cannot.
/// Pods run with user id and group id 65534. If the volume's driver supports it, the volume is made writable
/// for group 65534.
#[derive(Debug, Args)]
pub(super) struct KubernetesArgs {
    #[command(flatten)]
    pub(super) of: SweepFiles,
    /// Number of completions of the Job; at most the number of items.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) shards: u64,
    /// Number of pods that run at the same time.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) parallelism: u64,
    /// Container image, built from the file that `uslab sweep container` writes.
    #[arg(long, value_name = "IMAGE")]
    pub(super) image: String,
    /// PersistentVolumeClaim of the volume that has FILE and receives the results.
    #[arg(long, value_name = "NAME")]
    pub(super) claim: String,
    /// PersistentVolumeClaim of the volume with the traces.
    #[arg(long, value_name = "NAME")]
    pub(super) inputs_claim: Option<String>,
    /// Number of CPUs of each pod.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) cpus: NonZeroU32,
    /// Memory of each pod.
    #[arg(long, value_name = "SIZE", default_value = "1Gi")]
    pub(super) memory: String,
    /// Time limit of a pod: seconds, or [DAYS-]HOURS:MINUTES:SECONDS. A pod that exceeds the limit is
    /// terminated, and its shard continues in another pod, at most three times.
    #[arg(long, value_name = "TIME")]
    pub(super) time: Option<TimeLimit>,
    /// Time limit of the whole Job.
    #[arg(long, value_name = "TIME")]
    pub(super) deadline: Option<TimeLimit>,
    /// Write the Job that merges the results: a single pod; apply it after the Job of the shards is done. The
    /// CSV file and the page are written to /sweep, the report to the pod's log.
    #[arg(long, conflicts_with_all = ["shards", "parallelism"])]
    pub(super) merge: bool,
}

/// Find the best setting of a sweep with fewer runs: each round drops settings, and adds seeds and traces.
///
/// The method of `uslab tune` is successive halving. The last round has all traces and seeds. Each earlier
/// round has a third of the next round's traces and seeds, rounded up (--factor). The first round has all
/// settings, and each later round has the best third of the previous round. The rounds continue until three
/// settings are left, but each round must have more traces or seeds than the previous one. A setting is
/// therefore dropped only on the evidence of new runs. Each round is written as a sweep file to the folder
/// FILE with the suffix `.tune`, so that a batch system can run the round as an array. Results of all rounds
/// are stored with FILE's results, and items that already have a result are not run again. At the end the
/// best setting is compared with all other settings on their common runs, and settings whose difference may
/// be due to chance are marked.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uslab tune depot.toml
  uslab tune depot.toml --by slabs --step
  while uslab tune depot.toml --no-run --json tune.json; [ \"$(jq .winner tune.json)\" = null ]; do
      uslab sweep slurm \"$(jq -r .next.file tune.json)\" > round.sbatch && sbatch --wait round.sbatch
  done")]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(super) of: SweepFiles,
    /// Metric by which settings are judged: operations_per_us, ns, waiting, lines_per_operation or slabs.
    #[arg(long, value_name = "METRIC", default_value = "operations_per_us")]
    pub(super) by: Metric,
    /// Keep one in N settings for the next round.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=100))]
    pub(super) factor: u64,
    /// Run one round, write the file of the next round, and stop.
    #[arg(long)]
    pub(super) step: bool,
    /// Judge the existing results without running anything, write the file of the next round, and stop.
    #[arg(long, conflicts_with = "step")]
    pub(super) no_run: bool,
    /// Number of threads. Default: one thread for each CPU.
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(super) progress: ProgressArgs,
}

/// Returns the text if it can be written to a script line without quotes.
fn word(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits and . _ - : ,".to_owned()),
    }
}
