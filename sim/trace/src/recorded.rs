//! Reads recordings of `libuslab.so`: the calls of malloc and free in a program, with addresses, CPUs and times.
//!
//! A block is identified by its address, as in the recording. A `realloc` that moves memory is recorded as a
//! free and an allocation.

use rustc_hash::FxHashSet;
use serde::Serialize;

use super::error::{Impossible, TraceError};
use super::event::MAX_CPU_NUMBER;
use super::program::Call;
use super::record_format::{Header, Kind, MAGIC, RECORD, Record, WORD};
use super::source::{Progress, Source};

/// The facts in the header of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// The name of the program, truncated to 15 bytes.
    pub program: String,
    /// The program's process id.
    pub process: u32,
    /// The id of the parent process, if a recorded parent forked this process. A forked process may free memory that
    /// its parent allocated before the fork.
    pub parent: Option<u32>,
    /// The number of calls that were lost because the recording reached its limit or filled the device.
    pub lost: u64,
    /// The number of calls that were in progress when the program was killed.
    pub unwritten: u64,
}

/// Returns `true` if `bytes` is the start of a recording.
pub(super) fn is_recorded(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The calls of a recording, in order.
#[derive(Debug)]
pub(super) struct Calls {
    source: Source,
    header: Header,
    read: u64,
    unwritten: u64,
    /// The live blocks that are too large for kmalloc.
    too_large: FxHashSet<u64>,
}

impl Calls {
    /// Opens a recording and reads the header.
    pub(super) fn open(mut source: Source) -> Result<Self, TraceError> {
        let Some(words) = words(&mut source)? else {
            return Err(wrong(&source, "truncated within its header"));
        };
        let header = Header::of(words).map_err(|version| {
            wrong(&source, format!("has format version {version}; expected 1; record it again"))
        })?;
        Ok(Self { source, header, read: 0, unwritten: 0, too_large: FxHashSet::default() })
    }

    fn record_count_of_file(&self) -> u64 {
        self.header.calls.min(self.header.room)
    }

    /// Returns the next call with its number, CPU and time; `None` at the end.
    pub(super) fn next_call(&mut self) -> Result<Option<(u64, Call, u16, u64)>, TraceError> {
        while self.read < self.record_count_of_file() {
            let Some(words) = words::<RECORD>(&mut self.source)? else {
                let (read, there) = (self.read, self.record_count_of_file());
                return Err(wrong(&self.source, format!("truncated: {read} of {there} records are present")));
            };
            self.read += 1;
            match Record::of(words) {
                Ok(record) if record.cpu > MAX_CPU_NUMBER => {
                    let (field, value, most) = ("cpu", record.cpu.into(), MAX_CPU_NUMBER.into());
                    let what = Impossible { field, value, most, least: 0, page_size: None };
                    return Err(TraceError::Impossible {
                        path: self.source.path().to_owned(),
                        line: self.read,
                        what,
                    });
                }
                Ok(record) => {
                    return Ok(Some((self.read, self.call(&record), record.cpu, record.time_ns)));
                }
                Err(0) => self.unwritten += 1,
                Err(_) => {
                    let what = format!("damaged: record {} has an unknown kind", self.read);
                    return Err(wrong(&self.source, what));
                }
            }
        }
        Ok(None)
    }

    fn call(&mut self, record: &Record) -> Call {
        let Record { kind, address: block, size, align, .. } = *record;
        match kind {
            Kind::Alloc if block == 0 => Call::Failed,
            Kind::Alloc => {
                let call = Call::alloc(block, size, align);
                if call == Call::TooLarge {
                    self.too_large.insert(block);
                }
                call
            }
            Kind::Free if block == 0 => Call::FreeOfNothing,
            Kind::Free if self.too_large.remove(&block) => Call::FreeOfTooLarge,
            Kind::Free => Call::Free { block },
            Kind::Resize => Call::Resized,
        }
    }

    pub(super) fn progress(&self) -> Progress {
        self.source.progress()
    }

    /// Returns the facts from the header; the caller must first have read all calls.
    pub(super) fn finish(self) -> Recorded {
        let Header { process, parent, program, calls, .. } = self.header;
        let program = program.split(|byte| *byte == 0).next().unwrap_or_default();
        Recorded {
            program: String::from_utf8_lossy(program).into_owned(),
            process,
            parent,
            lost: calls - self.record_count_of_file(),
            unwritten: self.unwritten,
        }
    }
}

/// Returns the next `N` words, or `None` if fewer words are left.
fn words<const N: usize>(source: &mut Source) -> Result<Option<[u64; N]>, TraceError> {
    let bytes = source.next_bytes(N * WORD)?;
    let mut words = [0; N];
    let there = bytes.as_chunks().0;
    words.iter_mut().zip(there).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    Ok((there.len() == N).then_some(words))
}

fn wrong(source: &Source, what: impl Into<String>) -> TraceError {
    TraceError::Recording { path: source.path().to_owned(), what: what.into() }
}
