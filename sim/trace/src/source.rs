//! The source of a trace: a file, which may be compressed (gzip, xz, zstd), or standard input.
//!
//! Lines are slices of one large buffer, so reading a line allocates no memory. Compression is detected by
//! the first bytes, never by the file's name.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use memchr::{memchr, memrchr};

use super::error::TraceError;
use super::recorded;

/// The number of bytes to read at a time; it is small, so that the bytes fit in a CPU's cache. The read buffer must
/// also hold a whole line; the longest line of a kernel has about 400 bytes.
const CHUNK: usize = 1 << 17;

/// The hint about a binary file of an unknown kind.
pub const BINARY_FILE_HINT: &str = "it holds NUL bytes; a trace is the text of ftrace (with its option bin off), `perf script` or `trace-cmd report`";

/// The kinds of compression, each with the first bytes of its files.
const COMPRESSIONS: [(Compression, &[u8]); 3] = [
    (Compression::Gzip, &[0x1f, 0x8b]),
    (Compression::Xz, b"\xfd7zXZ\0"),
    (Compression::Zstd, &[0x28, 0xb5, 0x2f, 0xfd]),
];

/// The length of the longest magic number.
const HEAD: usize = 6;

/// The largest accepted window of a compressed file, in KiB. zstd's decoder refuses larger windows by
/// default, and xz -9 needs half of this size.
const MAX_XZ_WINDOW_KIB: u32 = 128 << 10;

/// The memory in KiB that an xz decoder needs in addition to the window.
const XZ_OVERHEAD_KIB: u32 = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    /// Determines the compression of a file by its first bytes.
    fn of(head: &[u8]) -> Option<Self> {
        COMPRESSIONS.iter().find(|(_, magic)| head.starts_with(magic)).map(|(compression, _)| *compression)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }
}

/// The progress of reading a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The number of bytes read from the file; a compressed file counts compressed bytes.
    pub bytes: u64,
    /// The length of the file in bytes; `None` for standard input and other streams.
    pub total: Option<u64>,
    /// The number of lines read so far.
    pub lines: u64,
}

/// The text of a trace, line by line.
pub struct Source {
    path: PathBuf,
    reader: Decoder,
    total: Option<u64>,
    buffer: Vec<u8>,
    /// The text in `buffer[start..end]`, which was read but has not been returned to the caller.
    start: usize,
    end: usize,
    eof: bool,
    line: u64,
    recorded: bool,
    partial: bool,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("path", &self.path).field("line", &self.line).finish_non_exhaustive()
    }
}

/// Whole lines of text, returned by [`Source::next_chunk`].
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// Whole lines, each with its line feed; only the last line of a file may lack it.
    pub text: &'a [u8],
    /// The number of the chunk's first line, from 1.
    pub first_line: u64,
}

impl Source {
    /// Opens `path`; `-` is standard input.
    ///
    /// # Errors
    ///
    /// Fails if the file is missing, unreadable, a directory, empty, or neither text nor a recording.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        if path.as_os_str() == "-" {
            return Self::from_reader("<stdin>", Box::new(io::stdin()), None);
        }
        let open_error = |source| TraceError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(open_error)?;
        let meta = file.metadata().map_err(open_error)?;
        if meta.is_dir() {
            return Err(TraceError::Directory { path: path.to_owned() });
        }
        let total = meta.is_file().then_some(meta.len());
        Self::from_reader(path, Box::new(file), total)
    }

    /// Creates a source that reads any stream. The parameter `name` is the name that errors use. The
    /// parameter `total` is the length of the stream in bytes, if known.
    ///
    /// # Errors
    ///
    /// Fails if the stream is empty or damaged, cannot be read, or is not text.
    pub fn from_reader(
        name: impl Into<PathBuf>,
        stream: Box<dyn Read + Send>,
        total: Option<u64>,
    ) -> Result<Self, TraceError> {
        let path = name.into();
        let mut counted =
            CountedStream { inner: stream, head: [0; HEAD], head_len: 0, head_read: 0, bytes: 0 };
        counted.fill_head_buffer().map_err(|source| TraceError::Read { path: path.clone(), source })?;
        let reader =
            Decoder::new(counted).map_err(|source| TraceError::Read { path: path.clone(), source })?;
        let (buffer, eof, recorded) = (vec![0; CHUNK], false, false);
        let mut source =
            Self { path, reader, total, buffer, start: 0, end: 0, eof, line: 0, recorded, partial: false };
        source.fill()?;
        source.recorded = recorded::is_recorded(&source.buffer[..source.end]);
        if !source.recorded {
            source.check_is_text()?;
        }
        Ok(source)
    }

    /// If `true`, accepts a trace in which the parser does not understand many lines of kmem events; by default, such a
    /// trace is an error.
    #[must_use]
    pub fn partial(self, partial: bool) -> Self {
        Self { partial, ..self }
    }

    pub(super) fn is_partial(&self) -> bool {
        self.partial
    }

    /// Returns the path that errors name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the progress so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress { bytes: self.reader.bytes_consumed(), total: self.total, lines: self.line }
    }

    /// Returns the next lines, at most 128 KiB; `None` at the end.
    ///
    /// # Errors
    ///
    /// Fails if reading fails, the compressed file is truncated or damaged, or a line does not fit into the
    /// buffer.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk<'_>>, TraceError> {
        if self.recorded {
            return Err(TraceError::Binary { path: self.path.clone(), hint: BINARY_FILE_HINT });
        }
        let (from, to) = loop {
            let held = &self.buffer[self.start..self.end];
            if let Some(last) = memrchr(b'\n', held) {
                break (self.start, self.start + last + 1);
            }
            if self.eof {
                if held.is_empty() {
                    return Ok(None);
                }
                break (self.start, self.end);
            }
            if held.len() == self.buffer.len() {
                return Err(TraceError::LongLine { path: self.path.clone(), line: self.line + 1 });
            }
            self.fill()?;
        };
        self.start = to;
        let text = &self.buffer[from..to];
        let first_line = self.line + 1;
        self.line += memchr::memchr_iter(b'\n', text).count() as u64;
        if text.last() != Some(&b'\n') {
            self.line += 1;
        }
        Ok(Some(Chunk { text, first_line }))
    }

    /// Returns `true` if the source is a recording of `libuslab.so`, and not text.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// Returns the next `bytes` bytes, a number that must be less than a chunk; at the end, fewer bytes are returned.
    pub(super) fn next_bytes(&mut self, bytes: usize) -> Result<&[u8], TraceError> {
        if self.end - self.start < bytes {
            self.fill()?;
        }
        let from = self.start;
        self.start = self.end.min(from + bytes);
        Ok(&self.buffer[from..self.start])
    }

    /// Moves the unread text to the front of the buffer, and reads until the buffer is full or the stream ends.
    fn fill(&mut self) -> Result<(), TraceError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < self.buffer.len() && !self.eof {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.eof = true,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.failed(source)),
            }
        }
        Ok(())
    }

    /// Converts an I/O error to a trace error: a decoder's error concerns the file's contents, and a system error
    /// concerns the reading.
    fn failed(&self, source: io::Error) -> TraceError {
        let path = self.path.clone();
        match self.reader.compression() {
            Some(_) if source.kind() == io::ErrorKind::UnexpectedEof => TraceError::Truncated { path },
            Some(compression) if source.raw_os_error().is_none() => {
                TraceError::Damaged { path, compression: compression.name(), source }
            }
            _ => TraceError::Read { path, source },
        }
    }

    /// Checks that the first chunk contains no NUL byte, because text never contains one. For well-known
    /// binary files, the error has a specific hint.
    fn check_is_text(&self) -> Result<(), TraceError> {
        let text = &self.buffer[..self.end];
        if text.is_empty() {
            return Err(TraceError::Empty { path: self.path.clone() });
        }
        let hint = if text.starts_with(b"PERFILE2") {
            "a perf.data file; give the text of `perf script`"
        } else if text.starts_with(b"\x17\x08Dtracing") {
            "a trace.dat file; give the text of `trace-cmd report`"
        } else if Compression::of(text).is_some() {
            "compressed twice; unpack it once"
        } else if memchr(0, text).is_some() {
            BINARY_FILE_HINT
        } else {
            return Ok(());
        };
        Err(TraceError::Binary { path: self.path.clone(), hint })
    }
}

enum Decoder {
    Plain(CountedStream),
    // A gzip file may consist of several members.
    Gzip(Box<MultiGzDecoder<BufReader<CountedStream>>>),
    Xz(Box<XzDecoder<BufReader<CountedStream>>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, BufReader<CountedStream>>>),
}

impl Decoder {
    fn new(counted: CountedStream) -> io::Result<Self> {
        let compression = Compression::of(counted.head());
        Ok(match compression {
            None => Self::Plain(counted),
            Some(Compression::Gzip) => Self::Gzip(Box::new(MultiGzDecoder::new(BufReader::new(counted)))),
            Some(Compression::Xz) => {
                let buffered = BufReader::new(counted);
                let memory = u64::from(MAX_XZ_WINDOW_KIB + XZ_OVERHEAD_KIB) << 10;
                let stream = Stream::new_stream_decoder(memory, CONCATENATED)?;
                Self::Xz(Box::new(XzDecoder::new_stream(buffered, stream)))
            }
            Some(Compression::Zstd) => Self::Zstd(Box::new(zstd::stream::read::Decoder::new(counted)?)),
        })
    }

    fn compression(&self) -> Option<Compression> {
        match self {
            Self::Plain(_) => None,
            Self::Gzip(_) => Some(Compression::Gzip),
            Self::Xz(_) => Some(Compression::Xz),
            Self::Zstd(_) => Some(Compression::Zstd),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read(buffer),
            Self::Gzip(reader) => reader.read(buffer),
            Self::Xz(reader) => reader.read(buffer).map_err(xz_error),
            Self::Zstd(reader) => reader.read(buffer),
        }
    }

    fn bytes_consumed(&self) -> u64 {
        match self {
            Self::Plain(reader) => reader.bytes,
            Self::Gzip(reader) => reader.get_ref().get_ref().bytes,
            Self::Xz(reader) => reader.get_ref().get_ref().bytes,
            Self::Zstd(reader) => reader.get_ref().get_ref().bytes,
        }
    }
}

/// Gives the error of an xz decoder that needs too much memory a separate kind.
fn xz_error(error: io::Error) -> io::Error {
    let lzma = error.get_ref().and_then(|inner| inner.downcast_ref());
    match lzma {
        Some(liblzma::stream::Error::MemLimit) => io::Error::new(io::ErrorKind::OutOfMemory, error),
        _ => error,
    }
}

/// A stream that counts the bytes read from it; a caller can read its first bytes in advance.
struct CountedStream {
    inner: Box<dyn Read + Send>,
    head: [u8; HEAD],
    head_len: usize,
    head_read: usize,
    bytes: u64,
}

impl CountedStream {
    fn fill_head_buffer(&mut self) -> io::Result<()> {
        while self.head_len < self.head.len() {
            match self.inner.read(&mut self.head[self.head_len..]) {
                Ok(0) => break,
                Ok(n) => self.head_len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }
}

impl Read for CountedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let head = &self.head[self.head_read..self.head_len];
        let n = if head.is_empty() {
            self.inner.read(buffer)?
        } else {
            let n = head.len().min(buffer.len());
            buffer[..n].copy_from_slice(&head[..n]);
            self.head_read += n;
            n
        };
        self.bytes += n as u64;
        Ok(n)
    }
}
