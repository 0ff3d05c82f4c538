//! The options of `uslab record`.

use crate::output::command::Outcome;
use crate::output::{Place, bytes, tell};
use crate::record;
use anyhow::bail;
use std::path::PathBuf;
use std::time::Duration;

/// Record the files that `uslab replay` needs: a trace of the kernel's memory events, and the kernel's tables
/// before and after the trace.
///
/// The new folder holds the trace (trace.txt.zst), with a mark wherever the kernel's tables were copied. Each
/// copy of the tables has slabinfo, buddyinfo, zoneinfo, pagetypeinfo, vmstat and meminfo. The folder also
/// holds the counters and attributes of all caches in /sys/kernel/slab, the number of events that each CPU's
/// buffer lost, the formats of the events, and the kernel's release and command line.
///
/// Recording the running kernel needs root and a mounted tracefs. `uslab record` uses a separate tracing
/// instance, removes the instance afterwards, and does not disturb other tracing. Events are written to the
/// folder as they happen, so only disk space limits the length of a recording; events that the kernel lost
/// are counted. The tables are copied as `before` and `after` the workload, and with --shrink again at the
/// `end`. Ctrl-C or SIGTERM ends the recording and discards it.
///
/// With --qemu, a distribution's kernel is booted for the recording. Booting needs qemu-system-x86_64 and a
/// static busybox (Debian: qemu-system-x86, busybox-static), but no root rights. A booted kernel's events are
/// enabled from early boot. The recorder shrinks all caches before it copies the tables `before` and `end`,
/// so that these two copies are exact. KVM is used if it works. Without KVM, qemu emulates the CPUs: the
/// times then mean little, but the events are the same. The workload can add copies: it writes the mark `SNAP
/// NAME begin` to /sys/kernel/tracing/trace_marker, and a table to /out/NAME.slabinfo. Before the workload
/// shrinks one cache, it writes the mark `SHRINK cache NAME`.
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
    /// Number of seconds to record if no COMMAND is given. Default: 10.
    #[arg(long, value_name = "N", conflicts_with_all = ["command", "qemu"], value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Size of each CPU's trace buffer, in bytes or with K, M, G. A traced event takes about 50 bytes. The
    /// running kernel's buffers are drained continuously; a booted kernel's buffers hold the whole trace.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = bytes)]
    buffer: u64,
    /// Shrink all caches before the table `before`, and again between the tables `after` and `end`. A shrink
    /// briefly slows the running kernel, but it makes the numbers exact: otherwise, free objects that CPUs
    /// hold count as in use.
    #[arg(long, conflicts_with = "qemu")]
    shrink: bool,
    /// The mount point of tracefs. Default: /sys/kernel/tracing or /sys/kernel/debug/tracing.
    #[arg(long, value_name = "DIR", conflicts_with = "qemu")]
    tracefs: Option<PathBuf>,
    /// Boot this kernel. The argument is a folder of unpacked packages (linux-image of Debian, linux-binary
    /// and linux-modules from 7.x on, kernel-core of Fedora), or a kernel file: a bzImage, or a
    /// vmlinuz-RELEASE with lib/modules/RELEASE next to its folder.
    #[arg(long, value_name = "KERNEL")]
    qemu: Option<PathBuf>,
    /// With --qemu, append this text to the kernel's command line. Example: `slab_max_order=0 slab_nomerge`
    /// (before 6.6, `slub_max_order=0`).
    #[arg(long, value_name = "TEXT", requires = "qemu", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// With --qemu, set the attribute /sys/kernel/slab/*/KEY of every cache before the workload, for example
    /// cpu_partial or min_partial.
    #[arg(long, value_name = "KEY=NUMBER", requires = "qemu", value_parser = setting)]
    set: Vec<String>,
    /// With --qemu, the number of CPUs of the booted machine.
    #[arg(long, value_name = "N", requires = "qemu", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=255))]
    cpus: u32,
    /// With --qemu, the memory of the booted machine: bytes, or with K, M, G.
    #[arg(long, value_name = "BYTES", requires = "qemu", default_value = "1G", value_parser = bytes)]
    memory: u64,
    /// With --qemu, a static program or a shell script to copy into the guest's /bin. The guest runs the
    /// first program or script, unless COMMAND is given.
    #[arg(long, value_name = "FILE", requires = "qemu")]
    workload: Vec<PathBuf>,
    /// With --qemu, the time limit of the whole recording, in seconds.
    #[arg(long, value_name = "N", requires = "qemu", default_value_t = 1800)]
    timeout: u64,
    /// With --qemu, emulate the CPUs even if KVM is available.
    #[arg(long, requires = "qemu")]
    emulate: bool,
    /// The workload of the recording: a program and its arguments. The workload's standard output is
    /// redirected to standard error.
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
                bail!("--qemu: no workload; expected --workload FILE, or a busybox command after `--`");
            }
            let guest = record::qemu::GuestMachine {
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
