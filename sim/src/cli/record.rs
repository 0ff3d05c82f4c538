//! The options of `uslab record`.

use crate::output::command::Outcome;
use crate::output::{Place, bytes, tell};
use crate::record;
use anyhow::bail;
use std::path::PathBuf;
use std::time::Duration;

/// Record what `uslab replay` needs: a trace of the kernel's memory events, and the kernel's own tables before and
/// after.
///
/// The new folder holds the trace (trace.txt.zst), with marks at the moments of the tables; slabinfo, buddyinfo,
/// zoneinfo, pagetypeinfo, vmstat and meminfo of each moment; the counters and attributes of all caches in
/// /sys/kernel/slab; the losses of each CPU's buffer; the formats of the events; the kernel's release and command line.
///
/// Recording the running kernel needs root and a mounted tracefs. `uslab record` uses a separate tracing instance,
/// which is removed afterwards; other tracing is not disturbed. Events are written to the folder as they happen, so the
/// disk limits the length; events that the kernel lost are counted. The moments are `before` and `after`, and with
/// --shrink `end`. Ctrl-C ends the recording and discards it.
///
/// With --qemu, a distribution's kernel is booted for the recording, which does not need root but qemu-system-x86_64
/// and a static busybox (Debian: qemu-system-x86, busybox-static). A booted kernel's events are enabled from early
/// boot. Caches are shrunk before `before` and before `end`, so that these two tables are exact. KVM is used if it
/// works. Without KVM the CPUs are emulated: times then mean little, but everything else is as on a real CPU. The
/// workload may add moments: it writes the mark `SNAP NAME begin` to /sys/kernel/tracing/trace_marker and a table to
/// /out/NAME.slabinfo, and before a shrink of one cache the mark `SHRINK cache NAME`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sudo uslab record --seconds 30
  sudo uslab record --out build -- make -j8
  apt-get download $(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: //p') && dpkg-deb -x linux-image-*.deb linux
  uslab record --out a --qemu linux --workload load.sh
  uslab record --out b --qemu linux --workload load.sh --append slub_max_order=0 --set cpu_partial=0
  uslab record --out c --qemu linux --workload load --workload load.sh --cpus 8 -- load.sh 5000
  uslab replay a/trace.txt.zst --design slub,slub:slab_max_order=0:cpu_partial=0 --predict --beside b")]
pub(super) struct Args {
    /// The new folder.
    #[arg(long, value_name = "FOLDER", default_value = "recording")]
    out: PathBuf,
    /// Seconds to record without a COMMAND. Default: 10.
    #[arg(long, value_name = "N", conflicts_with_all = ["command", "qemu"], value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Memory of each CPU's trace buffer: bytes, or with K, M, G. An event takes about 50 bytes. The running kernel's
    /// buffers are drained continuously; a booted kernel's buffers hold the whole trace.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = bytes)]
    buffer: u64,
    /// Shrink all caches before the table `before`, and again after `after`, before a last table `end`. A shrink
    /// briefly slows the running kernel, and makes the numbers exact: without it, objects that CPUs hold back count as
    /// in use.
    #[arg(long, conflicts_with = "qemu")]
    shrink: bool,
    /// The mount point of tracefs. Default: /sys/kernel/tracing or /sys/kernel/debug/tracing.
    #[arg(long, value_name = "DIR", conflicts_with = "qemu")]
    tracefs: Option<PathBuf>,
    /// Boot this kernel: the folder of unpacked packages (linux-image of Debian, linux-binary and linux-modules from 7.x on, kernel-core
    /// of Fedora), or a file: vmlinuz-RELEASE with lib/modules/RELEASE next to its folder, or a bzImage.
    #[arg(long, value_name = "KERNEL")]
    qemu: Option<PathBuf>,
    /// With --qemu, more of the kernel's command line, e.g. `slab_max_order=0 slab_nomerge` (before 6.6 `slub_max_order=0`).
    #[arg(long, value_name = "TEXT", requires = "qemu", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// With --qemu, set /sys/kernel/slab/*/KEY before the workload: cpu_partial and min_partial, for example.
    #[arg(long, value_name = "KEY=NUMBER", requires = "qemu", value_parser = setting)]
    set: Vec<String>,
    /// With --qemu, the number of CPUs of the booted machine.
    #[arg(long, value_name = "N", requires = "qemu", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=255))]
    cpus: u32,
    /// With --qemu, the memory of the booted machine: bytes, or with K, M, G.
    #[arg(long, value_name = "BYTES", requires = "qemu", default_value = "1G", value_parser = bytes)]
    memory: u64,
    /// With --qemu, a static program or a shell script to put into the guest's /bin. The first one runs, unless COMMAND
    /// is given.
    #[arg(long, value_name = "FILE", requires = "qemu")]
    workload: Vec<PathBuf>,
    /// With --qemu, the time limit of the whole recording, in seconds.
    #[arg(long, value_name = "N", requires = "qemu", default_value_t = 1800)]
    timeout: u64,
    /// With --qemu, emulate the CPUs even if KVM is available.
    #[arg(long, requires = "qemu")]
    emulate: bool,
    /// The workload: a program and its arguments. The workload's standard output is redirected to standard error.
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,
}

/// Parses a cache attribute such as `cpu_partial=0`.
fn setting(text: &str) -> Result<String, String> {
    let known = |(key, value): &(&str, &str)| {
        !key.is_empty()
            && key.bytes().all(|c| c == b'_' || c.is_ascii_lowercase())
            && value.parse::<u64>().is_ok()
    };
    text.split_once('=')
        .filter(known)
        .map(|_| text.to_owned())
        .ok_or_else(|| "expected KEY=NUMBER, e.g. cpu_partial=0".to_owned())
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let recorded = match args.qemu.clone() {
        Some(kernel) => {
            if args.workload.is_empty() && args.command.is_empty() {
                bail!("--qemu: expected --workload FILE, or -- COMMAND of busybox");
            }
            let guest = record::qemu::Guest {
                kernel,
                append: args.append.clone(),
                set: args.set.clone(),
                cpus: args.cpus,
                memory: args.memory,
                buffer: args.buffer,
                workload: args.workload.clone(),
                command: args.command.clone(),
                limit: Duration::from_secs(args.timeout),
                emulate: args.emulate,
            };
            record::qemu::record(&args.out, &guest)?
        }
        None => {
            let options = record::Options {
                tracefs: args.tracefs.clone(),
                buffer: args.buffer,
                shrink: args.shrink,
                seconds: args.seconds.unwrap_or(10),
                command: args.command.clone(),
            };
            record::record(&args.out, &options)?
        }
    };
    tell(&recorded, &recorded.to_string(), json)?;
    Ok(Outcome::Done)
}
