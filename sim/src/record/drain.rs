//! Takes events from the kernel's ring buffers while a recording runs, so that only the disk limits its length.
//!
//! ```text
//! trace_pipe_raw of a CPU ──> a thread ──> zstd ──> cpuN.raw.zst ──(afterwards, by time)──> trace.txt.zst
//! ```
//!
//! Pages are copied with `read`, because the kernel allocates nothing for a `read`. The system call `splice` would
//! avoid the copy, but the kernel then allocates memory for each page, which adds events to the trace.

use super::format::{Format, Printer};
use super::ring::{Cursor, Layout};
use super::{TRACE, refused};
use anyhow::{Context, anyhow};
use nix::libc::O_NONBLOCK;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use uslab_magazine::sync::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// The number of CPUs whose ring buffers one thread drains.
const CPUS: usize = 8;
/// The number of pages that a drain thread takes from one CPU before it continues with the next CPU.
const DRAINED_PAGES_PER_CPU: usize = 256;
/// The pause of a drain thread that has found few pages; at 10 million events a second, a CPU fills 10 MB in this time.
const PAUSE: Duration = Duration::from_millis(20);
/// The compression level of the temporary page files and of the final text.
const PAGE_COMPRESSION_LEVEL: i32 = 1;
const TEXT_COMPRESSION_LEVEL: i32 = 3;

/// The state that the drain threads share with the progress display.
#[derive(Debug, Default)]
struct DrainState {
    /// `true` once the kernel writes no more events.
    stopped: AtomicBool,
    /// `true` if the recorder discards the recording.
    abandoned: AtomicBool,
    events: AtomicU64,
    bytes: AtomicU64,
}

/// The threads that drain the ring buffers.
#[derive(Debug)]
pub(super) struct Drain {
    layout: Layout,
    cpus: Vec<usize>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
    shared: Arc<DrainState>,
}

/// The number of events and bytes taken from the ring buffers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DrainProgress {
    pub(super) events: u64,
    pub(super) bytes: u64,
}

impl Drain {
    /// Starts threads that copy the pages of a tracing instance's CPUs to files in `folder`.
    pub(super) fn start(tracefs: &Path, instance: &Path, folder: &Path) -> anyhow::Result<Self> {
        let header = tracefs.join("events/header_page");
        // The kernel returns the text only to the first read.
        let mut text = [0; 4096];
        let read = File::open(&header).and_then(|mut file| file.read(&mut text));
        let text = &text[..read.map_err(|error| refused(&header, &error))?];
        let layout = Layout::of(&String::from_utf8_lossy(text)).with_context(|| {
            format!("{}: expected the fields timestamp, commit and data, in this order", header.display())
        })?;
        let per_cpu = instance.join("per_cpu");
        let names = fs::read_dir(&per_cpu).map_err(|error| refused(&per_cpu, &error))?;
        let cpu = |entry: io::Result<fs::DirEntry>| -> Option<usize> {
            entry.ok()?.file_name().to_str()?.strip_prefix("cpu")?.parse().ok()
        };
        let mut cpus: Vec<usize> = names.filter_map(cpu).collect();
        cpus.sort_unstable();
        let shared = Arc::new(DrainState::default());
        let mut drain = Self { layout, cpus: cpus.clone(), threads: vec![], shared };
        for cpus in cpus.chunks(CPUS) {
            let mut taken = vec![];
            for cpu in cpus {
                let from = per_cpu.join(format!("cpu{cpu}/trace_pipe_raw"));
                let opened = File::options().read(true).custom_flags(O_NONBLOCK).open(&from);
                let pipe = opened.map_err(|error| refused(&from, &error))?;
                let path = raw(folder, *cpu);
                let file = File::create(&path).with_context(|| path.display().to_string())?;
                let file = zstd::Encoder::new(file, PAGE_COMPRESSION_LEVEL)?;
                taken.push(Cpu { pipe, from, file, path, page: vec![0; layout.page] });
            }
            let shared = drain.shared.clone();
            let thread = std::thread::Builder::new().name("uslab-drain".to_owned());
            drain.threads.push(thread.spawn(move || take(taken, layout, &shared))?);
        }
        Ok(drain)
    }

    pub(super) fn progress(&self) -> DrainProgress {
        DrainProgress { events: self.shared.events.load(Relaxed), bytes: self.shared.bytes.load(Relaxed) }
    }

    /// Returns `true` if a drain thread has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Takes the pages that remain in the ring buffers after the kernel has stopped writing. The kernel must
    /// already have stopped writing events.
    pub(super) fn stop(&mut self) -> anyhow::Result<DrainProgress> {
        // Release: pairs with the Acquire in `take`.
        self.shared.stopped.store(true, Release);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a thread that reads events panicked"))??;
        }
        Ok(self.progress())
    }

    /// Writes the text of all taken events, sorted by time, and removes the files of the individual CPUs.
    pub(super) fn print(
        &self,
        folder: &Path,
        online: usize,
        mut printer: Printer,
        mut at: impl FnMut(u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let DrainProgress { events, .. } = self.progress();
        let path = folder.join(TRACE);
        let mut write = || -> anyhow::Result<()> {
            let mut out = zstd::Encoder::new(BufWriter::new(File::create(&path)?), TEXT_COMPRESSION_LEVEL)?;
            let head = format!(
                "# tracer: nop\n#\n# entries-in-buffer/entries-written: {events}/{events}   #P:{online}\n#\n"
            );
            let mut text = head.into_bytes();
            let mut streams = vec![];
            let mut next = BinaryHeap::new();
            for cpu in &self.cpus {
                let mut stream = Stream::open(folder, *cpu, self.layout)?;
                if stream.advance()? {
                    next.push(Reverse((stream.cursor.time, streams.len())));
                    streams.push(stream);
                }
            }
            let mut printed = 0;
            while let Some(Reverse((time, index))) = next.pop() {
                let stream = &mut streams[index];
                stream.report_lost_events(&mut text);
                printer.line(stream.cpu, time, stream.record(), &mut text);
                if stream.advance()? {
                    next.push(Reverse((stream.cursor.time, index)));
                }
                printed += 1;
                if text.len() >= 1 << 20 {
                    out.write_all(&text)?;
                    text.clear();
                    at(printed)?;
                }
            }
            out.write_all(&text)?;
            out.finish()?.flush()?;
            Ok(())
        };
        write().with_context(|| path.display().to_string())?;
        for cpu in &self.cpus {
            let path = raw(folder, *cpu);
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Relaxed);
        // Another error is already being returned, which is the error to report.
        let _ = self.stop();
    }
}

fn raw(folder: &Path, cpu: usize) -> PathBuf {
    folder.join(format!("cpu{cpu}.raw.zst"))
}

/// The ring buffer of one CPU, and the file to which its pages are copied.
struct Cpu {
    pipe: File,
    from: PathBuf,
    file: zstd::Encoder<'static, File>,
    path: PathBuf,
    page: Vec<u8>,
}

impl Cpu {
    /// Copies the available pages in groups, and returns the number of copied pages. If `all` is `true`, the page that
    /// the CPU is still writing is also copied.
    fn take(&mut self, layout: Layout, all: bool, shared: &DrainState) -> anyhow::Result<usize> {
        for pages in 0..DRAINED_PAGES_PER_CPU {
            let read = match self.pipe.read(&mut self.page) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(refused(&self.from, &error)),
            };
            if read == 0 {
                return Ok(pages);
            }
            let used = layout.used(&self.page[..read]).with_context(|| {
                format!("{}: incomplete page; expected pages of {} bytes", self.from.display(), layout.page)
            })?;
            self.file.write_all(used).with_context(|| self.path.display().to_string())?;
            let mut cursor = layout.begin(used);
            let mut events = 0;
            while cursor.next(used).is_some() {
                events += 1;
            }
            shared.events.fetch_add(events, Relaxed);
            shared.bytes.fetch_add(used.len() as u64, Relaxed);
            // The CPU is still writing this page, which will have more events later.
            if !all && used.len() < layout.page / 2 {
                return Ok(pages);
            }
        }
        Ok(DRAINED_PAGES_PER_CPU)
    }
}

/// The loop of a drain thread.
fn take(mut cpus: Vec<Cpu>, layout: Layout, shared: &DrainState) -> anyhow::Result<()> {
    loop {
        // Acquire: pairs with the Release in `stop`. Pages that were written before the stop are read below.
        let is_last = shared.stopped.load(Acquire);
        let mut most = 0;
        for cpu in &mut cpus {
            most = most.max(cpu.take(layout, is_last, shared)?);
        }
        if is_last && most == 0 {
            break;
        }
        if shared.abandoned.load(Relaxed) {
            return Ok(());
        }
        if !is_last && most < DRAINED_PAGES_PER_CPU / 4 {
            std::thread::sleep(PAUSE);
        }
    }
    for Cpu { file, path, .. } in cpus {
        file.finish().with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The pages of one CPU, read one at a time.
struct Stream {
    cpu: usize,
    layout: Layout,
    file: zstd::Decoder<'static, BufReader<File>>,
    page: Vec<u8>,
    cursor: Cursor,
    /// The byte range of the current record.
    record: Range<usize>,
}

impl Stream {
    fn open(folder: &Path, cpu: usize, layout: Layout) -> io::Result<Self> {
        let file = zstd::Decoder::new(File::open(raw(folder, cpu))?)?;
        Ok(Self { cpu, layout, file, page: vec![], cursor: Cursor::default(), record: 0..0 })
    }

    fn record(&self) -> &[u8] {
        &self.page[self.record.clone()]
    }

    /// Advances to the next record. Returns `false` at the end of the pages.
    fn advance(&mut self) -> io::Result<bool> {
        loop {
            if let Some(record) = self.cursor.next(&self.page) {
                self.record = record;
                return Ok(true);
            }
            let lost = self.cursor.lost;
            let head = self.layout.head();
            self.page.resize(head, 0);
            match self.file.read_exact(&mut self.page) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                read => read?,
            }
            let rest = self.layout.used_bytes(&self.page);
            self.page.resize(head + rest, 0);
            self.file.read_exact(&mut self.page[head..])?;
            self.cursor = self.layout.begin(&self.page);
            // The count of lost events is kept across a page without events.
            if let Some(before) = lost {
                self.cursor.lost = Some(before + self.cursor.lost.unwrap_or(0));
            }
        }
    }

    /// Reports events that were lost before the last record; each loss is reported only once, as in ftrace.
    fn report_lost_events(&mut self, text: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        let _ = match self.cursor.lost.take() {
            Some(0) => writeln!(text, "CPU:{} [LOST EVENTS]", self.cpu),
            Some(lost) => writeln!(text, "CPU:{} [LOST {lost} EVENTS]", self.cpu),
            None => Ok(()),
        };
    }
}

/// Reads the formats of the recorded events and of marks, from tracefs.
pub(super) fn formats(tracefs: &Path, events: &[&str]) -> anyhow::Result<Vec<Format>> {
    let kmem = events.iter().map(|event| format!("kmem/{event}"));
    kmem.chain(["ftrace/print".to_owned()])
        .map(|event| {
            let path = tracefs.join("events").join(event).join("format");
            let text = fs::read_to_string(&path).map_err(|error| refused(&path, &error))?;
            Format::of(&text).with_context(|| format!("{}: expected a tracefs event format", path.display()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::format::tests::{kfree, record};
    use super::super::ring::tests::{HEADER_PAGE, page};
    use super::*;
    use rustc_hash::FxHashMap;

    #[test]
    fn ring_buffers_of_all_cpus_merge_by_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let layout = Layout::of(HEADER_PAGE).expect("a layout");
        let free = |ptr: u64| record(657, 7, &[&0x10_u64.to_ne_bytes(), &ptr.to_ne_bytes()]);
        let pages = [
            vec![page(10, None, &[(0, free(1)), (20, free(3))]), page(60, Some(5), &[(0, free(5))])],
            vec![page(20, None, &[(0, free(2)), (20, free(4))])],
            vec![],
        ];
        for (cpu, pages) in pages.iter().enumerate() {
            let mut file =
                zstd::Encoder::new(File::create(raw(folder.path(), cpu)).expect("a file"), 1).expect("zstd");
            pages
                .iter()
                .for_each(|page| file.write_all(layout.used(page).expect("a page")).expect("written"));
            file.finish().expect("written");
        }
        let shared = Arc::new(DrainState::default());
        shared.events.store(5, Relaxed);
        let drain = Drain { layout, cpus: vec![0, 1, 2], threads: vec![], shared };
        let printer = Printer::new(vec![kfree()], "", FxHashMap::default());
        drain.print(folder.path(), 3, printer, |_| Ok(())).expect("printed");
        let text = zstd::decode_all(File::open(folder.path().join(TRACE)).expect("a trace")).expect("zstd");
        let text = String::from_utf8(text).expect("text");
        let order: Vec<_> =
            text.lines().filter_map(|line| line.split_once("ptr=")).map(|(_, ptr)| &ptr[15..]).collect();
        assert_eq!(order, ["1", "2", "3", "4", "5"], "{text}");
        assert!(text.contains("entries-written: 5/5   #P:3\n"), "{text}");
        let lost = text.find("CPU:0 [LOST 5 EVENTS]\n").expect("the lost events must be reported");
        assert!(
            text.find("0000004\n").expect("the fourth event must exist") < lost
                && lost < text.find("0000005\n").expect("the fifth event must exist")
        );
        assert_eq!(
            fs::read_dir(folder.path()).expect("a folder").count(),
            1,
            "only the trace file remains in the folder"
        );
    }
}
