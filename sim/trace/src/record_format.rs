//! The file format of a recording; the reader (`uslab-trace`) and the writer (`libuslab.so`) both compile this source
//! file.
//!
//! The file has a header of eight words, followed by records of three words; each record is one call of
//! malloc or free. All words are little-endian.
//!
//! | header | |
//! |---|---|
//! | 0, 1 | `uslabrec`, and the format's version |
//! | 2, 3 | the process id; the id of the process from which it was forked, if that was recorded, otherwise 0 |
//! | 4, 5 | the program's name, cut to 15 bytes |
//! | 6 | the number of calls |
//! | 7 | the number of calls for which there is room: the first ones are recorded. The file is at least that long |
//!
//! | record | |
//! |---|---|
//! | 0 | the address (48 bits), the CPU (16) |
//! | 1 | nanoseconds of the system's monotonic clock |
//! | 2 | requested bytes (48), the alignment's logarithm (8), the kind of call (8) |
//!
//! If the last word of a record is 0, the call was in progress when the recording ended.

/// The first bytes of a recording.
pub(crate) const MAGIC: [u8; 8] = *b"uslabrec";
const VERSION: u64 = 1;

/// The number of words in the header; the next constants are the indices of header words that change.
pub(crate) const HEADER: usize = 8;
pub(crate) const CALLS: usize = 6;
pub(crate) const CAPACITY_WORD_INDEX: usize = 7;
pub(crate) const RECORD: usize = 3;
pub(crate) const WORD: usize = size_of::<u64>();

const LOW_48_BITS: u64 = (1 << 48) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) process: u32,
    pub(crate) parent: Option<u32>,
    /// The name of the program, padded with zeros.
    pub(crate) program: [u8; 16],
    pub(crate) calls: u64,
    pub(crate) room: u64,
}

impl Header {
    pub(crate) fn words(self) -> [u64; HEADER] {
        let Self { process, parent, program, calls, room } = self;
        let [first, second] = [0, 1].map(|half| u64::from_le_bytes(program.as_chunks().0[half]));
        let parent = parent.unwrap_or(0).into();
        [u64::from_le_bytes(MAGIC), VERSION, process.into(), parent, first, second, calls, room]
    }

    /// Decodes the header.
    ///
    /// # Errors
    /// Returns the header's version if this code does not support it.
    pub(crate) fn of(words: [u64; HEADER]) -> Result<Self, u64> {
        let [_, version, process, parent, first, second, calls, room] = words;
        if version != VERSION {
            return Err(version);
        }
        let mut program = [0; 16];
        program[..8].copy_from_slice(&first.to_le_bytes());
        program[8..].copy_from_slice(&second.to_le_bytes());
        let parent = Some(parent as u32).filter(|parent| *parent > 0);
        Ok(Self { process: process as u32, parent, program, calls, room })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory was allocated; the address is 0 if the allocation failed.
    Alloc = 1,
    Free,
    /// Memory was resized in place.
    Resize,
}

/// A recorded call of malloc or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) address: u64,
    pub(crate) cpu: u16,
    pub(crate) time_ns: u64,
    pub(crate) size: u64,
    pub(crate) align: u64,
}

impl Record {
    /// Encodes the record. The last word of an encoded record is never 0. Addresses and sizes have at most 48 bits; the
    /// alignment is a power of two.
    pub(crate) fn words(self) -> [u64; RECORD] {
        let Self { kind, address, cpu, time_ns, size, align } = self;
        let shift = u64::from(align.trailing_zeros());
        [
            address & LOW_48_BITS | u64::from(cpu) << 48,
            time_ns,
            size.min(LOW_48_BITS) | shift << 48 | (kind as u64) << 56,
        ]
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// Returns the record's last word if it is invalid; 0 means that the call was in progress.
    pub(crate) fn of([first, time_ns, last]: [u64; RECORD]) -> Result<Self, u64> {
        let kind = match last >> 56 {
            1 => Kind::Alloc,
            2 => Kind::Free,
            3 => Kind::Resize,
            _ => return Err(last),
        };
        let align = 1_u64.checked_shl((last >> 48 & 0xff) as u32).ok_or(last)?;
        Ok(Self {
            kind,
            address: first & LOW_48_BITS,
            cpu: (first >> 48) as u16,
            time_ns,
            size: last & LOW_48_BITS,
            align,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_record_is_read_back(
            kind in prop::sample::select(vec![Kind::Alloc, Kind::Free, Kind::Resize]),
            (address, size) in (0..=LOW_48_BITS, 0..=LOW_48_BITS),
            (cpu, time_ns, shift) in (any::<u16>(), any::<u64>(), 0..64_u32),
        ) {
            let record = Record { kind, address, cpu, time_ns, size, align: 1 << shift };
            prop_assert_eq!(Record::of(record.words()), Ok(record));
            prop_assert_ne!(record.words()[RECORD - 1], 0);
        }

        #[test]
        fn written_header_is_read_back(
            (process, parent) in (any::<u32>(), prop::option::of(1..=u32::MAX)),
            (program, calls, room) in (any::<[u8; 16]>(), any::<u64>(), any::<u64>()),
        ) {
            let header = Header { process, parent, program, calls, room };
            prop_assert_eq!(Header::of(header.words()), Ok(header));
            prop_assert_eq!(header.words()[0].to_le_bytes(), MAGIC);
        }
    }

    #[test]
    fn invalid_record_is_refused() {
        for last in [0, 4 << 56, 255 << 56, 1 << 56 | 64 << 48] {
            assert_eq!(Record::of([1, 2, last]), Err(last));
        }
    }
}
