//! The commands of a demo.

use core::fmt;
use core::str::FromStr;

/// A command of a demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Allocates a block. The new block gets the next letter as its name; a refused request also uses up a letter.
    Alloc {
        /// The size in bytes; `None` if the allocator has blocks of only one size.
        bytes: Option<usize>,
        /// The alignment, a power of two.
        align: usize,
    },
    /// Frees a block.
    Free {
        /// The block's name.
        block: String,
    },
    /// Looks up an object by its handle.
    Get {
        /// The handle's name.
        block: String,
    },
    /// Saves the head's position. Markers are named m1, m2 and so on.
    Mark,
    /// Frees everything that was allocated after a marker.
    Pop {
        /// The marker's name.
        marker: String,
    },
    /// Frees all blocks.
    Reset,
    /// Returns chunks without a block in use to the system.
    Purge,
    /// Restarts the program of the demo, with blocks in use.
    Fill {
        /// A parameter of the demo's program: block sizes, bytes in use, or the spacing of long-lived blocks.
        what: String,
    },
    /// Runs one round of the demo's program.
    Round,
    /// Reads a field of each struct.
    Walk {
        /// The field's name, or `all`.
        access: String,
        /// The memory layout: `structs`, `fields` or `numbers`.
        layout: String,
    },
}

/// The error for a text that is not a command of a demo.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown command `{0}`; expected `alloc BYTES [ALIGN]`, `alloc`, `free BLOCK`, `get HANDLE`, `mark`, `pop MARKER`, `reset`, `purge`, `walk FIELD LAYOUT`, `fill WHAT` or `round`"
)]
pub struct UnknownCommand(String);

impl FromStr for Command {
    type Err = UnknownCommand;

    fn from_str(text: &str) -> Result<Self, UnknownCommand> {
        let error = || UnknownCommand(text.to_owned());
        let number = |word: &str| word.parse::<usize>().map_err(|_| error());
        let words: Vec<&str> = text.split_whitespace().collect();
        match *words.as_slice() {
            ["alloc"] => Ok(Self::Alloc { bytes: None, align: 1 }),
            ["alloc", bytes] => Ok(Self::Alloc { bytes: Some(number(bytes)?), align: 1 }),
            ["alloc", bytes, align] => Ok(Self::Alloc { bytes: Some(number(bytes)?), align: number(align)? }),
            ["free", block] => Ok(Self::Free { block: block.to_owned() }),
            ["get", handle] => Ok(Self::Get { block: handle.to_owned() }),
            ["walk", access, layout] => {
                Ok(Self::Walk { access: access.to_owned(), layout: layout.to_owned() })
            }
            ["fill", what] => Ok(Self::Fill { what: what.to_owned() }),
            ["round"] => Ok(Self::Round),
            ["mark"] => Ok(Self::Mark),
            ["pop", marker] => Ok(Self::Pop { marker: marker.to_owned() }),
            ["reset"] => Ok(Self::Reset),
            ["purge"] => Ok(Self::Purge),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alloc { bytes: None, .. } => f.write_str("alloc"),
            Self::Alloc { bytes: Some(bytes), align: 1 } => write!(f, "alloc {bytes}"),
            Self::Alloc { bytes: Some(bytes), align } => write!(f, "alloc {bytes} {align}"),
            Self::Free { block } => write!(f, "free {block}"),
            Self::Get { block } => write!(f, "get {block}"),
            Self::Walk { access, layout } => write!(f, "walk {access} {layout}"),
            Self::Fill { what } => write!(f, "fill {what}"),
            Self::Round => f.write_str("round"),
            Self::Mark => f.write_str("mark"),
            Self::Pop { marker } => write!(f, "pop {marker}"),
            Self::Reset => f.write_str("reset"),
            Self::Purge => f.write_str("purge"),
        }
    }
}
