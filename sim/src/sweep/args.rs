//! What the verbs take.

use super::engines::quoted;
use super::plan::Plan;
use super::record::Metric;
use super::spec;
use super::store::Store;
use clap::{Args, Subcommand};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use uslab_engine::Policy;
use uslab_sync::shard::Shard;

/// Run many points of `uslab scale`: traces or workloads, designs, knobs, CPUs and seeds, on one machine or on many.
///
/// FILE says what the sweep is of. Alone, the verb says how many items that is. Each item is a number. Its result is a function of the
/// number and of the sweep's hash, which covers the file, the traces and the simulator's version. So shares can run anywhere, at any time
/// and again: `sweep run` in an array of Slurm or an Indexed Job of Kubernetes takes its share from the engine's variables.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, arg_required_else_help = true, after_help = FILE_HELP)]
pub(crate) struct SweepArgs {
    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
    #[command(flatten)]
    pub(super) of: Option<Of>,
}

const FILE_HELP: &str = "\
A sweep's file is TOML. Its keys are the options of `uslab scale`:

  trace = [\"a.txt.zst\", \"b.ops\"]     # and, or in their place, workloads
  workload = [\"bursts\", \"server=1000\"]
  design = [\"slub\", \"uslab-model\"]
  cpus = { from = 1, to = 64, factor = 2 }   # left out: each trace has its own
  seed = { from = 1, to = 20 }             # of workloads; a trace has no chance
  size = 64
  ops = 20000
  think = 0
  profile = \"vm2\"
  [knobs.uslab-model]
  capacity = [8, 16, 32, 64]
  depot_limit = { from = 10, to = 1000, factor = 3.16 }
  [sample]        # a Latin hypercube of each design's knobs, in the place of all their combinations
  points = 32

A number is an axis of one value; a list, { from, to, step } and { from, to, factor } have several. Traces lie in the file's folder.

Examples:
  uslab sweep depot.toml
  uslab sweep run depot.toml
  uslab sweep run depot.toml --shard 3/200
  uslab sweep run depot.toml --item 17
  uslab sweep status depot.toml
  uslab sweep merge depot.toml --csv depot.csv --parquet depot.parquet --html depot.html
  uslab sweep slurm depot.toml --shards 200 > depot.sbatch
  uslab sweep k8s depot.toml --shards 200 --image registry/uslab-sweep --claim shared > job.json
  uslab sweep container > Containerfile";

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    Run(RunArgs),
    Status(StatusArgs),
    Merge(MergeArgs),
    Slurm(SlurmArgs),
    K8s(KubernetesArgs),
    /// Write a container's file: the command as one static program, built in the repository's root.
    Container,
}

/// The sweep, and where its files are.
#[derive(Debug, Args)]
pub(super) struct Of {
    /// What the sweep is of: see `uslab sweep --help`.
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// The folder of the traces. Default: the file's.
    #[arg(long, value_name = "FOLDER")]
    pub(super) inputs: Option<PathBuf>,
    /// The folder of the results. Default: FILE with the ending `.results`.
    #[arg(long, value_name = "FOLDER")]
    pub(super) results: Option<PathBuf>,
}

impl Of {
    pub(super) fn plan<P: Policy>(&self) -> anyhow::Result<(Plan, Store)> {
        let plan = spec::read::<P>(&self.file, self.inputs.as_deref())?;
        let store = Store::new(&plan, self.results.as_deref());
        Ok((plan, store))
    }
    /// A verb on the same files, as a user types it.
    pub(super) fn command(&self, verb: &str) -> String {
        let mut command = format!("uslab sweep {verb} {}", quoted(&self.file.to_string_lossy()));
        for (option, path) in [("--inputs", &self.inputs), ("--results", &self.results)] {
            if let Some(path) = path {
                command += &format!(" {option} {}", quoted(&path.to_string_lossy()));
            }
        }
        command
    }
}

/// Run the items that have no result: all, a share, or one.
///
/// The share is what --shard says; left out, what the engine says that runs this: SLURM_ARRAY_TASK_ID with _COUNT, _MIN and _STEP, or
/// JOB_COMPLETION_INDEX with JOB_COMPLETIONS or --shards; else it is all. Results appear under their names when they are whole. Run it
/// again after whatever stopped it: what is there is not run again.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) of: Of,
    /// Share I of N, counted from 0.
    #[arg(long, value_name = "I/N", conflicts_with_all = ["item", "shards"])]
    pub(super) shard: Option<Shard>,
    /// How many shares there are, where an engine says which one this is.
    #[arg(long, value_name = "N", conflicts_with = "item")]
    pub(super) shards: Option<NonZeroU64>,
    /// One item, whether it has a result or not.
    #[arg(long, value_name = "N")]
    pub(super) item: Option<u64>,
    /// The sweep's hash. With another one nothing runs: a file or a trace has been changed.
    #[arg(long, value_name = "HEX")]
    pub(super) hash: Option<String>,
    /// Threads. Default: one a CPU.
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<NonZeroUsize>,
}

/// Say what is done, missing, failed or damaged, and what items took.
///
/// Exit code 1 unless every item has a result.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    pub(super) of: Of,
}

/// Make one of all results: the best settings, what each axis explains, CSV, Parquet, a page.
///
/// Items without a result are named with the command that runs them. Then nothing is written, and the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    #[command(flatten)]
    pub(super) of: Of,
    /// What settings are judged by: operations_per_us, ns, waiting, lines_per_operation or slabs.
    #[arg(long, value_name = "METRIC", default_value = "operations_per_us")]
    pub(super) by: Metric,
    /// Merge what is there, though it is not all.
    #[arg(long)]
    pub(super) partial: bool,
    /// Write a row an item as CSV: FILE, or `-` for standard output.
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Write the same as Parquet.
    #[arg(long, value_name = "FILE")]
    pub(super) parquet: Option<PathBuf>,
    /// Write a page with tables and pictures: one file, which fetches nothing.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// Write a script for `sbatch`: an array of shares, each of which can be requeued.
#[derive(Debug, Args)]
pub(super) struct SlurmArgs {
    #[command(flatten)]
    pub(super) of: Of,
    /// Tasks of the array.
    #[arg(long, value_name = "N", default_value = "100")]
    pub(super) shards: NonZeroU64,
    /// CPUs of a task.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) cpus: NonZeroU32,
    /// The longest a task may take, as sbatch has it: 01:00:00.
    #[arg(long, value_name = "TIME", value_parser = word)]
    pub(super) time: Option<String>,
    /// Memory of a task, as sbatch has it: 2G.
    #[arg(long, value_name = "SIZE", value_parser = word)]
    pub(super) memory: Option<String>,
    /// The partition.
    #[arg(long, value_name = "NAME", value_parser = word)]
    pub(super) partition: Option<String>,
    /// The command on the nodes. Default: this one.
    #[arg(long, value_name = "FILE")]
    pub(super) program: Option<PathBuf>,
}

/// Write an Indexed Job for `kubectl apply --filename`, as JSON.
///
/// The claim's volume is mounted at /sweep. FILE is expected at its top, and results go into its folder `results`. Traces lie there as they
/// lie beside FILE; or, as an object store's folder would, on a volume of their own that is mounted read-only. Results need a volume
/// that can rename files, which most mounts of object stores cannot.
#[derive(Debug, Args)]
pub(super) struct KubernetesArgs {
    #[command(flatten)]
    pub(super) of: Of,
    /// Completions of the Job.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) shards: u64,
    /// Pods at once.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) parallelism: u64,
    /// The container's image, built from what `uslab sweep container` writes.
    #[arg(long, value_name = "IMAGE")]
    pub(super) image: String,
    /// The PersistentVolumeClaim of the volume with FILE, to which results are written.
    #[arg(long, value_name = "NAME")]
    pub(super) claim: String,
    /// That of the volume with the traces.
    #[arg(long, value_name = "NAME")]
    pub(super) inputs_claim: Option<String>,
    /// CPUs of a pod.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) cpus: NonZeroU32,
    /// Memory of a pod.
    #[arg(long, value_name = "SIZE", default_value = "1Gi")]
    pub(super) memory: String,
}

/// Find the best setting of a sweep's file with fewer runs: by rounds, of which each drops settings and adds seeds and traces.
///
/// Successive halving. The first round has all settings on few traces and seeds, the last one the best few on all of them. Each
/// round is a sweep's file of its own in the folder FILE with the ending `.tune`, so an engine can run it as an array. What an engine has
/// run is not run again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uslab tune depot.toml
  uslab tune depot.toml --by slabs --step
  while uslab tune depot.toml --no-run --json tune.json; [ \"$(jq .winner tune.json)\" = null ]; do
      uslab sweep slurm \"$(jq -r '.next[0]' tune.json)\" > round.sbatch && sbatch --wait round.sbatch
  done")]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(super) of: Of,
    /// What settings are judged by: operations_per_us, ns, waiting, lines_per_operation or slabs.
    #[arg(long, value_name = "METRIC", default_value = "operations_per_us")]
    pub(super) by: Metric,
    /// One setting in so many goes on to the next round.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=100))]
    pub(super) factor: u64,
    /// Run one round, write the next one's file, and stop.
    #[arg(long)]
    pub(super) step: bool,
    /// Run nothing: judge what is there, write the next round's file, and stop.
    #[arg(long, conflicts_with = "step")]
    pub(super) no_run: bool,
    /// Threads. Default: one a CPU.
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<NonZeroUsize>,
}

/// A word of a script's line.
fn word(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits and . _ - : ,".to_owned()),
    }
}
