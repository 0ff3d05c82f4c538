//! The state of a demo's memory after a command.

use crate::allocators::Holes;
use core::ops::Range;
use serde::Serialize;

/// The state of a demo after a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Scene {
    /// The effect of the command, in a sentence.
    pub said: String,
    /// `true` if the command was refused. Nothing changed then.
    pub refused: bool,
    /// The memory from its start to its end, without gaps.
    pub parts: Vec<Part>,
    /// The free pieces: their number, the largest, and the sum, without headers and tags.
    pub holes: Holes,
    /// Other figures, by name.
    pub facts: Vec<(String, String)>,
}

/// A range of bytes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Part {
    /// The offset from the start of the memory, in bytes.
    pub at: usize,
    /// The length in bytes.
    pub bytes: usize,
    /// The kind.
    #[serde(flatten)]
    pub is: Is,
}

/// The kind of a range of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(tag = "is", content = "block", rename_all = "kebab-case")]
pub enum Is {
    /// In use: the requested bytes of a block.
    Used(String),
    /// Rounding: bytes of a block beyond the request.
    Rounding(String),
    /// Headers and tags.
    Tag,
    /// Skipped for an alignment, or freed below a head.
    Padding,
    /// One free piece.
    Free,
    /// Free, and never used.
    Untouched,
    /// Never to be used again.
    Retired,
    /// Loaded with a neighbour, and not used.
    Loaded,
}

/// Columns of [`Scene::strip`].
const COLUMNS: usize = 64;

impl Part {
    /// A part with the bytes of `range`.
    pub fn of(range: Range<usize>, is: Is) -> Self {
        Self { at: range.start, bytes: range.len(), is }
    }
}

impl Scene {
    /// The size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.parts.last().map_or(0, |part| part.at + part.bytes)
    }

    /// The memory as a line of 64 characters, each for a 64th of it: a block's first letter if most of it is in use, `+`
    /// rounding, `=` headers and tags, `-` padding, `.` free, `|` the start of another free piece, `_` never used, `#` retired,
    /// `~` loaded but not used.
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
