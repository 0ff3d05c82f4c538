//! RESP2, the protocol of Redis: requests are arrays of byte strings, or lines of words; replies have types.
//!
//! Source: "Redis serialization protocol specification", redis.io.

use super::buffer::Buffer;
use super::store::OutOfMemory;
use allocator_api2_02::alloc::Allocator;
use allocator_api2_02::vec::Vec;
use std::fmt;
use std::io::Write;
use std::ops::{Index, Range};

/// Maximum size in bytes of one argument: the size of the largest block of pages.
const MAX_ARGUMENT_BYTES: usize = 4 << 20;
const MAX_ARGUMENT_COUNT: usize = 1 << 20;
const MAX_REQUEST: usize = 64 << 20;
const MAX_LINE_BYTES: usize = 64 << 10;
/// Number of arguments whose memory the parser keeps for the next request.
const KEPT_ARGUMENT_CAPACITY: usize = 64;

/// Reason why a request violates the protocol. A request that violates the protocol ends the connection, because the
/// server cannot know where the next request starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    ArgumentCount,
    ArgumentLength,
    NoArgument(u8),
    NoLineEnd,
    LongLine,
    LongRequest,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ArgumentCount => write!(f, "invalid multibulk length, expected 0 to {MAX_ARGUMENT_COUNT}"),
            Self::ArgumentLength => {
                write!(f, "invalid bulk length, expected 0 to {MAX_ARGUMENT_BYTES} bytes")
            }
            Self::NoArgument(byte) => write!(f, "expected '$', got '{}'", byte.escape_ascii()),
            Self::NoLineEnd => f.write_str("expected a line end after the argument"),
            Self::LongLine => write!(f, "too big inline request, expected at most {MAX_LINE_BYTES} bytes"),
            Self::LongRequest => write!(f, "too big request, expected at most {MAX_REQUEST} bytes"),
        }
    }
}

/// The reason why the parser returned no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Malformed(Malformed),
    OutOfMemory,
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// A request parser, which accepts a request in several pieces. For each new piece, the parser continues after the
/// bytes that it has parsed.
pub(crate) struct Parser<A: Allocator> {
    /// Byte ranges of the arguments, relative to the start of the request.
    arguments: Vec<Range<usize>, A>,
    /// Number of bytes of the request that were parsed so far.
    at: usize,
    /// Number of arguments still to be parsed; `None` before the first line.
    missing: Option<usize>,
    /// Length in bytes of the next argument; `None` until it is parsed.
    length: Option<usize>,
}

impl<A: Allocator> Parser<A> {
    pub(crate) fn new_in(memory: A) -> Self {
        Self { arguments: Vec::new_in(memory), at: 0, missing: None, length: None }
    }

    pub(crate) fn reset(&mut self) {
        self.arguments.clear();
        if self.arguments.capacity() > KEPT_ARGUMENT_CAPACITY {
            self.arguments.shrink_to(0);
        }
        (self.at, self.missing, self.length) = (0, None, None);
    }

    /// Number of bytes of the request that [`next`](Self::next) has parsed.
    pub(crate) fn len(&self) -> usize {
        self.at
    }

    /// Parses the request at the start of `bytes`. Returns `None` as long as the request is incomplete. After the
    /// server has answered the request, it must call [`reset`](Self::reset). Before the reset, each call must pass the
    /// bytes of the previous calls again.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a request, or if memory is short.
    pub(crate) fn next<'b>(&'b mut self, bytes: &'b [u8]) -> Result<Option<Request<'b>>, Failure> {
        let complete = match self.missing {
            None if bytes.first().is_some_and(|first| *first != b'*') => self.parse_inline_words(bytes)?,
            None => match self.number(bytes, b'*')? {
                // By the specification, a negative number means no arguments.
                Some(number) => {
                    let number = number.max(0) as usize;
                    if number > MAX_ARGUMENT_COUNT {
                        return Err(Malformed::ArgumentCount.into());
                    }
                    self.missing = Some(number);
                    self.parse_byte_strings(bytes)?
                }
                None => false,
            },
            Some(_) => self.parse_byte_strings(bytes)?,
        };
        Ok(complete.then_some(Request { bytes, arguments: &self.arguments }))
    }

    /// Parses the byte strings that are still missing from the request. Returns `true` if all arguments are complete.
    fn parse_byte_strings(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        while let Some(missing @ 1..) = self.missing {
            let length = match self.length {
                Some(length) => length,
                None => match self.number(bytes, b'$')? {
                    Some(length) => usize::try_from(length)
                        .ok()
                        .filter(|length| *length <= MAX_ARGUMENT_BYTES)
                        .ok_or(Malformed::ArgumentLength)?,
                    None => return Ok(false),
                },
            };
            self.length = Some(length);
            if self.at + length > MAX_REQUEST {
                return Err(Malformed::LongRequest.into());
            }
            let Some(end) = bytes.get(self.at + length..).and_then(|rest| rest.first_chunk()) else {
                return Ok(false);
            };
            if end != b"\r\n" {
                return Err(Malformed::NoLineEnd.into());
            }
            self.push(self.at..self.at + length)?;
            (self.at, self.missing, self.length) = (self.at + length + 2, Some(missing - 1), None);
        }
        Ok(true)
    }

    /// Parses words up to the end of the line. Returns `true` if the line has its end.
    fn parse_inline_words(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        let Some(line) = self.next_line(bytes)? else { return Ok(false) };
        for word in line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
            let start = word.as_ptr().addr() - bytes.as_ptr().addr();
            self.push(start..start + word.len())?;
        }
        Ok(true)
    }

    /// Parses `kind`, a number and a line end.
    fn number(&mut self, bytes: &[u8], kind: u8) -> Result<Option<i64>, Malformed> {
        let bad = if kind == b'*' { Malformed::ArgumentCount } else { Malformed::ArgumentLength };
        match bytes.get(self.at) {
            Some(first) if *first != kind => return Err(Malformed::NoArgument(*first)),
            Some(_) => {}
            None => return Ok(None),
        }
        let Some(line) = self.next_line(bytes)? else { return Ok(None) };
        let number = std::str::from_utf8(&line[1..]).ok().and_then(|digits| digits.parse().ok());
        number.ok_or(bad).map(Some)
    }

    /// Returns the next line without its line end.
    fn next_line<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<&'b [u8]>, Malformed> {
        let remaining = &bytes[self.at..];
        match remaining.iter().take(MAX_LINE_BYTES).position(|byte| *byte == b'\n') {
            Some(end) => {
                self.at += end + 1;
                Ok(Some(remaining[..end].strip_suffix(b"\r").unwrap_or(&remaining[..end])))
            }
            None if remaining.len() < MAX_LINE_BYTES => Ok(None),
            None => Err(Malformed::LongLine),
        }
    }

    fn push(&mut self, argument: Range<usize>) -> Result<(), Failure> {
        self.arguments.try_reserve(1).map_err(|_| Failure::OutOfMemory)?;
        self.arguments.push(argument);
        Ok(())
    }
}

/// A parsed request: the command's name, followed by its arguments. A request from an empty line has no name and no
/// arguments.
#[derive(Clone, Copy)]
pub(crate) struct Request<'b> {
    bytes: &'b [u8],
    arguments: &'b [Range<usize>],
}

impl<'b> Request<'b> {
    pub(crate) fn len(&self) -> usize {
        self.arguments.len()
    }
    /// Returns the arguments from index `first` on.
    pub(crate) fn from(self, first: usize) -> impl Iterator<Item = &'b [u8]> {
        self.arguments[first..].iter().map(move |argument| &self.bytes[argument.clone()])
    }
}

impl Index<usize> for Request<'_> {
    type Output = [u8];
    fn index(&self, argument: usize) -> &[u8] {
        &self.bytes[self.arguments[argument].clone()]
    }
}

/// Result of writing a reply. If memory is short, the reply is lost and the connection ends.
pub(crate) type ReplyResult = Result<(), OutOfMemory>;

pub(crate) struct Replies<'o, A: Allocator>(pub(crate) &'o mut Buffer<A>);

impl<A: Allocator> Replies<'_, A> {
    fn push(&mut self, bytes: &[u8]) -> ReplyResult {
        self.0.push(bytes).map_err(|_| OutOfMemory)
    }
    fn number(&mut self, kind: char, number: impl fmt::Display) -> ReplyResult {
        let mut line = [0; 24];
        let mut rest = &mut line[..];
        // The line has a kind, at most 20 digits, and the line end.
        let written = write!(rest, "{kind}{number}\r\n");
        debug_assert!(written.is_ok());
        let length = 24 - rest.len();
        self.push(&line[..length])
    }
    pub(crate) fn push_status(&mut self, word: &str) -> ReplyResult {
        self.push(b"+")?;
        self.push(word.as_bytes())?;
        self.push(b"\r\n")
    }
    /// Writes an error reply: an error kind in capitals, and a sentence. Control characters are omitted, because they
    /// could end the line of the reply.
    pub(crate) fn error(&mut self, text: impl fmt::Display) -> ReplyResult {
        let mut line = format!("-{text}");
        line.retain(|c| !c.is_control());
        self.push(line.as_bytes())?;
        self.push(b"\r\n")
    }
    pub(crate) fn push_int(&mut self, number: i64) -> ReplyResult {
        self.number(':', number)
    }
    /// Writes a byte string; `None` is written as nil.
    pub(crate) fn string(&mut self, bytes: Option<&[u8]>) -> ReplyResult {
        let Some(bytes) = bytes else { return self.push(b"$-1\r\n") };
        self.number('$', bytes.len())?;
        self.push(bytes)?;
        self.push(b"\r\n")
    }
    /// Begins an array, whose elements are the next `length` replies.
    pub(crate) fn push_array(&mut self, length: usize) -> ReplyResult {
        self.number('*', length)
    }
}
