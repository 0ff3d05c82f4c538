//! What a memory looks like after a command.

use crate::allocators::Holes;
use core::ops::Range;
use serde::Serialize;

/// A moment of a demo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Scene {
    /// What the command did, in a sentence.
    pub said: String,
    /// Whether it was refused. Nothing changed then.
    pub refused: bool,
    /// The memory from its start to its end, without gaps.
    pub parts: Vec<Part>,
    /// The free pieces: how many, the largest, all together. Their headers and tags are not counted.
    pub holes: Holes,
    /// What else matters here, by name.
    pub facts: Vec<(String, String)>,
}

/// Bytes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Part {
    /// Where they begin, in bytes from the start of the memory.
    pub at: usize,
    /// How many.
    pub bytes: usize,
    /// What they are.
    #[serde(flatten)]
    pub is: Is,
}

/// What bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(tag = "is", content = "block", rename_all = "kebab-case")]
pub enum Is {
    /// In use: what was asked for.
    Used(String),
    /// Rounding: they belong to a block, and nobody asked for them.
    Rounding(String),
    /// Headers and tags.
    Tag,
    /// Skipped for an alignment, or dead below a head.
    Padding,
    /// Free, one piece.
    Free,
    /// Free, and never used.
    Untouched,
    /// Never to be used again.
    Retired,
    /// Loaded with what lies beside it, and not used.
    Loaded,
}

/// Columns of [`Scene::strip`].
const COLUMNS: usize = 64;

impl Part {
    /// The bytes of `range`.
    pub fn of(range: Range<usize>, is: Is) -> Self {
        Self { at: range.start, bytes: range.len(), is }
    }
}

impl Scene {
    /// Bytes of the memory.
    pub fn bytes(&self) -> usize {
        self.parts.last().map_or(0, |part| part.at + part.bytes)
    }

    /// The memory as a line of 64 characters, each a 64th of it: a block's first letter where most of it is in use, `+` rounding,
    /// `=` headers and tags, `-` padding, `.` free, `|` the beginning of another free piece, `_` never used, `#` retired, `~` loaded and not
    /// used.
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
