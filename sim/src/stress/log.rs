//! A log of the last operations at a seat, kept in a ring buffer to explain a violation.

use super::stamp::Token;
use super::world::Source;
use std::fmt;
use std::time::Duration;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StressOperation {
    /// The thread allocated the object.
    Alloc,
    /// The thread frees the object; it writes this entry before the free.
    Free,
    /// The thread leaves the object for other threads; it writes this entry before the object is visible to them.
    Leave,
    /// The thread took an object that another thread left.
    Take,
    /// The thread moves to this CPU.
    Move(usize),
    /// The thread runs an operation on a cache, or on all caches.
    Other(&'static str),
}

/// A logged operation of a stress thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The time since the start of the run.
    pub(super) at: Duration,
    pub(super) operation_kind: StressOperation,
    pub(super) source: Option<Source>,
    pub(super) address: usize,
    /// The owner of the object when the operation ran.
    pub(super) token: Token,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, address, token) = (self.at.as_secs_f64(), self.address, self.token);
        write!(f, "{at:12.6} s  ")?;
        match (self.operation_kind, self.source) {
            (StressOperation::Alloc, Some(source)) => write!(f, "alloc  {address:#x}  {source}: {token}"),
            (StressOperation::Free, Some(source)) => write!(f, "free   {address:#x}  {source}: {token}"),
            (StressOperation::Leave, Some(source)) => write!(f, "leave  {address:#x}  {source}: {token}"),
            (StressOperation::Take, Some(source)) => write!(f, "take   {address:#x}  {source}: {token}"),
            (StressOperation::Move(cpu), _) => write!(f, "moves to CPU {cpu}"),
            (StressOperation::Other(what), _) => f.write_str(what),
            (operation_kind, None) => write!(f, "{operation_kind:?}"),
        }
    }
}

/// A ring buffer of the last operations.
#[derive(Debug)]
pub(super) struct OperationLog {
    entries: Vec<Entry>,
    /// The index of the oldest entry; if the ring is full, the next push overwrites this entry.
    next: usize,
    most: usize,
}

impl OperationLog {
    /// Creates a log that keeps the last `most` entries.
    pub(super) fn new(most: usize) -> Self {
        Self { entries: Vec::new(), next: 0, most }
    }
    /// Returns the largest number of entries that the log keeps.
    pub(super) fn max_entries(&self) -> usize {
        self.most
    }
    /// Adds an entry, replacing the oldest if the log is full.
    pub(super) fn push(&mut self, entry: Entry) {
        if self.entries.len() < self.most {
            self.entries.push(entry);
        } else {
            self.entries[self.next] = entry;
            self.next = (self.next + 1) % self.most;
        }
    }
    /// Iterates over all entries, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        let (newer, older) = self.entries.split_at(self.next);
        older.iter().chain(newer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_log_keeps_its_last_entries_in_order() {
        let mut log = OperationLog::new(3);
        for serial in 1..=5 {
            let token = Token::new(1, serial);
            log.push(Entry {
                at: Duration::from_secs(serial),
                operation_kind: StressOperation::Alloc,
                source: None,
                address: 0,
                token,
            });
            assert!(log.iter().is_sorted_by_key(|entry| entry.at));
        }
        assert_eq!(log.iter().map(|entry| entry.at.as_secs()).collect::<Vec<_>>(), [3, 4, 5]);
    }
}
