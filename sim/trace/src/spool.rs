//! Stores the events of a trace between the first pass, which parses text, and the second pass, which
//! interprets events.
//!
//! A record has 32 bytes. The newest records are in memory; if the limit is exceeded, older records are in an unnamed
//! temporary file. A stored record can still be changed, because a later event may reveal more about its allocation.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// The size of a record in bytes.
const RECORD: usize = 32;

/// The number of records to read from the file at a time: one mebibyte.
const BLOCK: u64 = 1 << 15;

/// The kind of a spool's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    /// An allocation; the field `key` contains the number of its shape.
    Alloc,
    /// A free; the field `key` contains the number of the cache name plus 1, or 0 if the free names no cache.
    FreeKmalloc,
    FreeCache,
    PageAlloc,
    PageFree,
    /// A mark; the field `key` contains the number of its text.
    Mark,
    /// Pages left a free list. The field `key` is 1 if the pages are for a per-CPU list. Records of this kind, drains
    /// and fallbacks are stored in a separate spool.
    PageTaken,
    PageDrained,
    PageFallback,
}

/// A stored event of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// The address of the event's object, or the page frame number of its pages.
    pub(super) at: u64,
    pub(super) time_ns: u64,
    /// The line number, which must be less than 2^48.
    pub(super) line: u64,
    pub(super) cpu: u16,
    pub(super) key: u32,
    pub(super) tag: Tag,
    pub(super) order: u8,
    pub(super) migratetype: u8,
    /// The use of the pages ([`PageUse`](super::op::PageUse) as a number).
    pub(super) usage: u8,
}

impl Record {
    /// If the command's number fits into 24 bits, stores it in fields that otherwise only page records use.
    pub(super) fn with_allocating_task(self, task: Option<u32>) -> Self {
        let number = task.map_or(0, |task| task.saturating_add(1));
        match number.to_le_bytes() {
            [order, migratetype, usage, 0] => Self { order, migratetype, usage, ..self },
            _ => self,
        }
    }

    /// Returns the command of an allocation.
    pub(super) fn task(&self) -> Option<u32> {
        let number = u32::from_le_bytes([self.order, self.migratetype, self.usage, 0]);
        number.checked_sub(1).filter(|_| self.tag == Tag::Alloc)
    }

    fn to_bytes(self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.line << 16 | u64::from(self.cpu)).to_le_bytes());
        bytes[24..28].copy_from_slice(&self.key.to_le_bytes());
        bytes[28..].copy_from_slice(&[self.tag as u8, self.order, self.migratetype, self.usage]);
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (place, rest) = (word(16), word(24));
        Self {
            at: word(0),
            time_ns: word(8),
            line: place >> 16,
            cpu: place as u16,
            key: rest as u32,
            tag: match bytes[28] {
                0 => Tag::Alloc,
                1 => Tag::FreeKmalloc,
                2 => Tag::FreeCache,
                3 => Tag::PageAlloc,
                4 => Tag::PageFree,
                5 => Tag::Mark,
                6 => Tag::PageTaken,
                7 => Tag::PageDrained,
                _ => Tag::PageFallback,
            },
            order: bytes[29],
            migratetype: bytes[30],
            usage: bytes[31],
        }
    }
}

/// A list of records in the order of the trace.
#[derive(Debug)]
pub(super) struct Spool {
    /// The records in memory, which follow the records in the file.
    held: Vec<[u8; RECORD]>,
    file: Option<File>,
    in_file: u64,
    limit: usize,
}

impl Spool {
    /// Creates a spool that keeps at most `limit` bytes in memory.
    pub(super) fn new(limit: usize) -> Self {
        Self { held: Vec::new(), file: None, in_file: 0, limit: (limit / RECORD).max(1) }
    }

    /// Returns the number of records; the next record gets this number as its index.
    pub(super) fn len(&self) -> u64 {
        self.in_file + self.held.len() as u64
    }

    /// Sorts the records by time; records with equal times keep their order. The callback `time` returns the time of a
    /// record; it is called once per record, in the order of the pushes. All records are in memory during the sort.
    pub(super) fn sort_by_time(self, mut time: impl FnMut(&Record) -> u64) -> io::Result<Self> {
        let mut sorted = Self::new(self.limit * RECORD);
        let mut all = Vec::with_capacity(self.len() as usize);
        let mut reader = self.into_reader()?;
        while let Some(record) = reader.next()? {
            all.push((time(&record), record));
        }
        all.sort_by_key(|(time, _)| *time);
        all.into_iter().try_for_each(|(_, record)| sorted.push(record))?;
        Ok(sorted)
    }

    pub(super) fn push(&mut self, record: Record) -> io::Result<()> {
        if self.held.len() == self.limit {
            self.flush()?;
        }
        self.held.push(record.to_bytes());
        Ok(())
    }

    /// Changes the record with index `at`.
    pub(super) fn update(&mut self, at: u64, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let changed = |bytes: &[u8; RECORD]| {
            let mut record = Record::from_bytes(bytes);
            change(&mut record);
            record.to_bytes()
        };
        if let Some(index) = at.checked_sub(self.in_file) {
            if let Some(bytes) = self.held.get_mut(index as usize) {
                *bytes = changed(bytes);
            }
        } else if let Some(file) = &self.file {
            let mut bytes = [0; RECORD];
            file.read_exact_at(&mut bytes, at * RECORD as u64)?;
            file.write_all_at(&changed(&bytes), at * RECORD as u64)?;
        }
        Ok(())
    }

    /// Calls `each` with every record and its index, from the first record on. The callback may
    /// [`update`](Self::update) records that it has already received.
    pub(super) fn scan(
        &mut self,
        mut each: impl FnMut(&mut Self, u64, &Record) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut place, mut bytes) = (0, Vec::new());
        while place < self.in_file {
            bytes.resize((self.in_file - place).min(BLOCK) as usize * RECORD, 0);
            if let Some(file) = &self.file {
                file.read_exact_at(&mut bytes, place * RECORD as u64)?;
            }
            for record in bytes.as_chunks().0 {
                each(self, place, &Record::from_bytes(record))?;
                place += 1;
            }
        }
        while let Some(bytes) = self.held.get((place - self.in_file) as usize) {
            each(self, place, &Record::from_bytes(bytes))?;
            place += 1;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile()?),
        };
        file.write_all(self.held.as_flattened())?;
        self.in_file += self.held.len() as u64;
        self.held.clear();
        Ok(())
    }

    /// Returns a reader that starts at the first record.
    pub(super) fn into_reader(mut self) -> io::Result<Reader> {
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::Start(0))?;
        }
        Ok(Reader { spool: self, read: 0, block: Vec::new(), at: 0 })
    }
}

/// A reader of a spool's records, from the first one on.
#[derive(Debug)]
pub(super) struct Reader {
    spool: Spool,
    /// The number of records already read from the file.
    read: u64,
    /// A block of records from the file; the records from `at` on have not been returned yet.
    block: Vec<u8>,
    at: usize,
}

impl Reader {
    pub(super) fn next(&mut self) -> io::Result<Option<Record>> {
        if self.read < self.spool.in_file {
            if self.at == self.block.len() {
                self.refill()?;
            }
            if let Some((bytes, _)) = self.block[self.at..].split_first_chunk() {
                self.at += RECORD;
                self.read += 1;
                if self.read == self.spool.in_file {
                    self.at = 0;
                }
                return Ok(Some(Record::from_bytes(bytes)));
            }
        }
        let record = self.spool.held.get(self.at).map(Record::from_bytes);
        self.at += usize::from(record.is_some());
        Ok(record)
    }

    /// Returns the number of records in the spool.
    pub(super) fn total(&self) -> u64 {
        self.spool.len()
    }

    /// Returns the number of records returned so far.
    pub(super) fn position(&self) -> u64 {
        if self.read < self.spool.in_file { self.read } else { self.spool.in_file + self.at as u64 }
    }

    fn refill(&mut self) -> io::Result<()> {
        let left = (self.spool.in_file - self.read).min(BLOCK) as usize;
        self.block.resize(left * RECORD, 0);
        self.at = 0;
        match &mut self.spool.file {
            Some(file) => file.read_exact(&mut self.block),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGS: [Tag; 9] = [
        Tag::Alloc,
        Tag::FreeKmalloc,
        Tag::FreeCache,
        Tag::PageAlloc,
        Tag::PageFree,
        Tag::Mark,
        Tag::PageTaken,
        Tag::PageDrained,
        Tag::PageFallback,
    ];

    fn record(n: u64) -> Record {
        Record {
            at: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            time_ns: n << 20,
            line: n + 1,
            cpu: n as u16,
            key: n as u32,
            tag: TAGS[n as usize % TAGS.len()],
            order: (n % 11) as u8,
            migratetype: (n % 3) as u8,
            usage: (n % 4) as u8,
        }
    }

    #[test]
    fn spooled_records_are_read_back_from_memory_and_file() {
        for (count, limit) in
            [(0, 1), (1, 32), (1000, 1 << 20), (1000, 64), (100_000, 320_000), (96, 32 * 32)]
        {
            let mut spool = Spool::new(limit);
            for n in 0..count {
                assert_eq!(spool.len(), n);
                spool.push(record(n)).unwrap();
            }
            for n in (0..count).step_by(7) {
                spool.update(n, |r| r.key ^= 0xffff).unwrap();
            }
            let mut seen = 0;
            let scanned = spool.scan(|spool, place, record| {
                assert_eq!((place, record.at), (seen, self::record(place).at), "of {count}, limit {limit}");
                seen += 1;
                spool.update(place / 2, |record| record.usage = 9)
            });
            assert_eq!((scanned.unwrap(), seen), ((), count));
            let mut reader = spool.into_reader().unwrap();
            for n in 0..count {
                let mut expected = record(n);
                if n % 7 == 0 {
                    expected.key ^= 0xffff;
                }
                if n <= (count - 1) / 2 {
                    expected.usage = 9;
                }
                assert_eq!(reader.next().unwrap(), Some(expected), "record {n} of {count}, limit {limit}");
            }
            assert_eq!(reader.next().unwrap(), None);
            assert_eq!(reader.next().unwrap(), None);
        }
    }
}
