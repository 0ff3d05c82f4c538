//! Parses pages of the kernel's ring buffer, in the format of `trace_pipe_raw`. Each event stores only the
//! time since the previous event.
//!
//! ```text
//! time of the page (8 bytes)  length and flags (8, or 4)  event event event ... [number of lost events]
//! event: 5 bits of length or type, 27 bits of time since the event before, then the record
//! ```

use std::ops::Range;

/// The page flag that means that the kernel lost events before this page.
const MISSED_EVENTS_FLAG: u64 = 1 << 31;
/// The page flag that means that a count of lost events follows the last event of the page.
const LOST_COUNT_FLAG: u64 = 1 << 30;
/// The mask of the bits that hold a page's length.
const LENGTH: u64 = (1 << 27) - 1;

const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// The number of bits that the time difference has in an event's header.
const TIME_BITS: u32 = 27;
/// The number of bits that an absolute time stamp has.
const STAMP_BITS: u32 = 59;

/// The layout of a ring buffer page, as `events/header_page` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The size of a page in bytes.
    pub(super) page: usize,
    /// The size of the page's length field in bytes.
    commit: usize,
    /// The offset of the first event in a page.
    data: usize,
}

impl Layout {
    /// Parses `events/header_page`.
    pub(super) fn of(text: &str) -> Option<Self> {
        let number = |line: &str, key: &str| -> Option<usize> {
            let (_, rest) = line.split_once(key)?;
            rest.split(';').next()?.trim().parse().ok()
        };
        let line = |name: &str| text.lines().find(|line| line.contains(name));
        let (commit, data) = (line(" commit;")?, line(" data;")?);
        let begin = number(data, "offset:")?;
        let layout =
            Self { page: begin + number(data, "size:")?, commit: number(commit, "size:")?, data: begin };
        (number(commit, "offset:")? == 8 && matches!(layout.commit, 4 | 8) && begin == 8 + layout.commit)
            .then_some(layout)
    }

    /// Returns the bytes of a page that the kernel has filled.
    pub(super) fn used<'p>(&self, page: &'p [u8]) -> Option<&'p [u8]> {
        let head = page.get(..self.data)?;
        page.get(..self.data + self.used_bytes(head))
    }

    /// Returns the number of bytes in front of a page's first event.
    pub(super) fn head(&self) -> usize {
        self.data
    }

    pub(super) fn used_bytes(&self, head: &[u8]) -> usize {
        let flags = self.flags(head);
        let stored = flags & (MISSED_EVENTS_FLAG | LOST_COUNT_FLAG) == MISSED_EVENTS_FLAG | LOST_COUNT_FLAG;
        (flags & LENGTH) as usize + if stored { 8 } else { 0 }
    }

    /// Returns a cursor at the first event of a page.
    pub(super) fn begin(&self, used: &[u8]) -> Cursor {
        let flags = self.flags(used);
        let end = self.data + (flags & LENGTH) as usize;
        let stored = flags & LOST_COUNT_FLAG != 0;
        let lost = (flags & MISSED_EVENTS_FLAG != 0).then(|| if stored { long(used, end) } else { 0 });
        Cursor { at: self.data, end, time: long(used, 0), lost }
    }

    fn flags(&self, head: &[u8]) -> u64 {
        if self.commit == 8 { long(head, 8) } else { word(head, 8).map_or(0, u64::from) }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads an integer at offset `at`; returns 0 if the bytes do not contain it completely.
fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// A cursor that iterates over the records of a ring buffer page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    at: usize,
    end: usize,
    /// The time of the last event that the cursor has passed, in nanoseconds.
    pub(super) time: u64,
    /// The number of events lost before this page; 0 if the kernel reports a loss without a number.
    pub(super) lost: Option<u64>,
}

impl Cursor {
    /// Returns the byte range of the next record on the page.
    pub(super) fn next(&mut self, used: &[u8]) -> Option<Range<usize>> {
        while self.at + 4 <= self.end {
            let head = word(used, self.at)?;
            let (kind, time) = if cfg!(target_endian = "big") {
                (head >> TIME_BITS, head & ((1 << TIME_BITS) - 1))
            } else {
                (head & 31, head >> 5)
            };
            let body = self.at + 4;
            let long = || Some(u64::from(word(used, body)?) << TIME_BITS | u64::from(time));
            match kind {
                // The rest of the page is empty.
                PADDING if time == 0 => return None,
                PADDING => {
                    self.time += u64::from(time);
                    self.at = body.checked_add(word(used, body)? as usize)?;
                }
                TIME_EXTEND => {
                    self.time = self.time.wrapping_add(long()?);
                    self.at = body + 4;
                }
                TIME_STAMP => {
                    let high = self.time >> STAMP_BITS << STAMP_BITS;
                    self.time = high | long()?;
                    self.at = body + 4;
                }
                _ => {
                    let (from, length) = match kind {
                        0 => (body + 4, (word(used, body)? as usize).checked_sub(4)?),
                        words => (body, words as usize * 4),
                    };
                    self.time = self.time.wrapping_add(u64::from(time));
                    self.at = from.checked_add(length)?.next_multiple_of(4);
                    return Some(from..from + length).filter(|record| record.end <= used.len());
                }
            }
        }
        None
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The text `events/header_page` of a 64-bit kernel.
    pub(in super::super) const HEADER_PAGE: &str = "\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;
";

    /// Builds a page from records. Each record is a pair: nanoseconds since the previous record, and bytes.
    pub(in super::super) fn page(time: u64, lost: Option<u64>, records: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut data = vec![];
        for (delta, record) in records {
            let words = record.len().div_ceil(4) as u32;
            let short = words <= 28;
            data.extend((delta << 5 | if short { words } else { 0 }).to_ne_bytes());
            if !short {
                data.extend((words * 4 + 4).to_ne_bytes());
            }
            data.extend(record);
            data.resize(data.len().next_multiple_of(4), 0);
        }
        let flags = lost.map_or(0, |lost| MISSED_EVENTS_FLAG | if lost > 0 { LOST_COUNT_FLAG } else { 0 });
        let mut page = [time.to_ne_bytes(), (data.len() as u64 | flags).to_ne_bytes()].concat();
        page.extend(data);
        page.extend(lost.filter(|lost| *lost > 0).into_iter().flat_map(u64::to_ne_bytes));
        page.resize(4096, 0);
        page
    }

    #[test]
    fn record_times_are_sums_of_deltas() {
        let layout = Layout::of(HEADER_PAGE).expect("a layout");
        assert_eq!(layout, Layout { page: 4096, commit: 8, data: 16 });
        let page = page(1000, Some(7), &[(0, vec![1; 8]), (5, vec![2; 200]), (3, vec![3; 4])]);
        let used = layout.used(&page).expect("a page");
        assert_eq!(used.len(), layout.head() + layout.used_bytes(&used[..16]));
        let mut cursor = layout.begin(used);
        assert_eq!(cursor.lost, Some(7));
        let read: Vec<_> =
            std::iter::from_fn(|| cursor.next(used).map(|record| (record.len(), used[record.start])))
                .collect();
        assert_eq!(read, [(8, 1), (200, 2), (4, 3)]);
        assert_eq!(cursor.time, 1008);
        assert!(layout.used(&page[..8]).is_none(), "the page is truncated");
    }

    #[test]
    fn ring_buffer_time_extends_and_padding_are_parsed() {
        let layout = Layout::of(HEADER_PAGE).expect("a layout");
        let mut data = vec![];
        let mut event = |kind: u32, time: u32, words: &[u32]| {
            data.extend((time << 5 | kind).to_ne_bytes());
            words.iter().for_each(|word| data.extend(word.to_ne_bytes()));
        };
        event(TIME_EXTEND, 1, &[2]);
        event(1, 0, &[11]);
        event(PADDING, 1, &[8, 0]);
        event(1, 4, &[22]);
        event(TIME_STAMP, 9, &[1]);
        event(1, 1, &[33]);
        event(PADDING, 0, &[]);
        let mut page = [(1_u64 << 60).to_ne_bytes(), (data.len() as u64).to_ne_bytes()].concat();
        page.extend(data);
        let used = layout.used(&page).expect("a page");
        let mut cursor = layout.begin(used);
        let mut times = vec![];
        while let Some(record) = cursor.next(used) {
            times.push((used[record.start], cursor.time - (1 << 60)));
        }
        let second = (2 << 27) + 1;
        assert_eq!(times, [(11, second), (22, second + 5), (33, (1 << 27) + 10)]);
    }

    #[test]
    fn oversized_record_length_ends_the_ring_buffer_page() {
        let layout = Layout::of(HEADER_PAGE).expect("a layout");
        let mut bad = [0_u64.to_ne_bytes(), 12_u64.to_ne_bytes()].concat();
        bad.extend(28_u32.to_ne_bytes());
        bad.extend([0; 8]);
        let used = layout.used(&bad).expect("a page");
        assert_eq!(layout.begin(used).next(used), None);
        assert_eq!(Layout::of(""), None);
    }
}
