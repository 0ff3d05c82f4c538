//! The state of a demo's memory after a command.

use super::structure::Structure;
use crate::allocators::Holes;
use core::ops::Range;
use serde::Serialize;

/// The state of a demo after a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Scene {
    /// A sentence about the command's effect.
    pub said: String,
    /// `true` if the command was refused. A refused command changes nothing.
    pub refused: bool,
    /// The ranges that the memory consists of, from its start to its end, without gaps.
    pub parts: Vec<Part>,
    /// The free pieces without headers and tags: their number, the largest size, and the sum of their sizes.
    pub holes: Holes,
    /// The allocator's data structure; `None` if the demo shows only the memory.
    pub structure: Option<Structure>,
    /// Further figures that the demo shows, each with its name.
    pub facts: Vec<(String, String)>,
}

/// A range of bytes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Part {
    /// The offset of the range from the start of the memory, in bytes.
    pub at: usize,
    /// The length of the range in bytes.
    pub bytes: usize,
    /// The kind of the bytes.
    #[serde(flatten)]
    pub is: Is,
}

/// The kind of a range of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(tag = "is", content = "block", rename_all = "kebab-case")]
pub enum Is {
    /// The requested bytes of a block in use.
    Used(String),
    /// Bytes that rounding adds to the requested bytes of a block.
    Rounding(String),
    /// Headers and tags.
    Tag,
    /// Bytes that were skipped for alignment, or that were freed below the head.
    Padding,
    /// One free piece.
    Free,
    /// Free bytes that were never used, or that are not mapped.
    Untouched,
    /// Bytes that no block will ever use again.
    Retired,
    /// Bytes that were loaded with their cache line but not used.
    Loaded,
}

/// The number of columns of [`Scene::strip`].
const COLUMNS: usize = 64;

impl Part {
    /// Creates a range of the scene from the bytes in `range` and their kind.
    pub fn of(range: Range<usize>, is: Is) -> Self {
        Self { at: range.start, bytes: range.len(), is }
    }
}

impl Scene {
    /// Returns the size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.parts.last().map_or(0, |part| part.at + part.bytes)
    }

    /// Draws the memory as a line of 64 characters. Each character shows a 64th of the memory: the first letter of the
    /// block that uses most of these bytes, `+` for rounding, `=` for headers and tags, `-` for padding, `.` for free
    /// bytes, `|` for the start of another free piece, `_` for bytes never used or not mapped, `#` for retired bytes,
    /// `~` for bytes loaded but not used.
    pub fn strip(&self) -> String {
        let column = |n: usize| {
            let range = n * self.bytes() / COLUMNS..(n + 1) * self.bytes() / COLUMNS;
            let shared = |part: &Part| {
                let end = (part.at + part.bytes).min(range.end);
                end.saturating_sub(part.at.max(range.start))
            };
            let largest = self.parts.iter().enumerate().rev().max_by_key(|(_, part)| shared(part));
            let Some((place, part)) = largest else { return ' ' };
            let before = place.checked_sub(1).map(|before| &self.parts[before].is);
            match &part.is {
                Is::Used(block) => block.chars().next().unwrap_or('?'),
                Is::Rounding(_) => '+',
                Is::Tag => '=',
                Is::Padding => '-',
                Is::Free if range.contains(&part.at) && before == Some(&Is::Free) => '|',
                Is::Free => '.',
                Is::Untouched => '_',
                Is::Retired => '#',
                Is::Loaded => '~',
            }
        };
        (0..COLUMNS).map(column).collect()
    }
}
