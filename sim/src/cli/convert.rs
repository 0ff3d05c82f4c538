//! The options of `uslab convert`.

use crate::output::command::Outcome;
use crate::output::{Form, Place, Progress, grouped, json_text, say, write_all};
use crate::replay;
use serde::Serialize;
use std::path::PathBuf;

/// Convert a trace to a compact file of operations in columns, about three bytes for each operation. `replay
/// --design` and `scale --trace` read the converted file without parsing text.
///
/// The columns keep cache names, sizes, CPUs, times and marks. The columns also keep inferred facts: the
/// cache of each event, and the position of each hidden allocation in the trace. Addresses, call sites and
/// the kernel's page moves are lost. A replay of OUT looks for the kernel's tables in the folder of OUT.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  uslab convert trace.txt.zst trace.ops
  uslab replay --design slub trace.ops
  uslab convert - trace.ops < trace.txt")]
pub(super) struct Args {
    /// The trace, as `uslab replay` reads it; `-` is standard input.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// File for the operations. An existing file is overwritten only if it is a converted trace.
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Simulated CPUs. Default: the number of CPUs in the trace.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Continue even if more than 5 % of the kmem event lines cannot be parsed; such lines are skipped.
    #[arg(long)]
    partial: bool,
}

/// What a conversion wrote to its file.
#[derive(Serialize)]
struct ConversionResult {
    trace: String,
    operations: u64,
    cpus: u32,
    caches: usize,
    bytes: usize,
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let out = Place::open(Form::Operations, &args.out)?;
    let out = Some(out);
    Place::check_distinct([&json, &out])?;
    let options = replay::Options { cpus: args.cpus, partial: args.partial, ..replay::Options::default() };
    let progress = Progress::new();
    let stream = replay::read_stream(Some(&args.trace), &options, &progress)?;
    drop(progress);
    let bytes = stream.write();
    let (operations, cpus, caches) = (stream.operations, stream.cpus, stream.caches.len());
    let report = ConversionResult { trace: stream.title, operations, cpus, caches, bytes: bytes.len() };
    let to_stdout = [&json, &out].into_iter().flatten().any(Place::is_stdout);
    let text = json.map(|place| json_text(&report).map(|text| (place, text.into_bytes()))).transpose()?;
    write_all(text.into_iter().chain(out.map(|place| (place, bytes))))?;
    if !to_stdout {
        let ConversionResult { trace, bytes, .. } = report;
        let each = bytes as f64 / operations.max(1) as f64;
        let (operations, bytes) = (grouped(operations), grouped(bytes as u64));
        let text = format!(
            "{trace}: {operations} operations on {cpus} CPUs, {caches} caches: {bytes} bytes, {each:.2} an operation\n"
        );
        say(&text)?;
    }
    Ok(Outcome::Done)
}
