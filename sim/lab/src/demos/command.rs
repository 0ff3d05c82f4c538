//! What can be asked of a demo.

use core::fmt;
use core::str::FromStr;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Memory of so many bytes, at a multiple of so many. The block is called by the next letter.
    Alloc {
        /// Bytes.
        bytes: usize,
        /// A power of two.
        align: usize,
    },
    /// Gives a block back.
    Free {
        /// Its name.
        block: String,
    },
    /// Saves the head. The marker is called m1, m2 and so on.
    Mark,
    /// Frees all that came after a marker.
    Pop {
        /// Its name.
        marker: String,
    },
    /// Frees all.
    Reset,
}

/// What is no command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no command: expected `alloc BYTES [ALIGN]`, `free BLOCK`, `mark`, `pop MARKER` or `reset`")]
pub struct NoCommand(String);

impl FromStr for Command {
    type Err = NoCommand;

    fn from_str(text: &str) -> Result<Self, NoCommand> {
        let wrong = || NoCommand(text.to_owned());
        let number = |word: &str| word.parse::<usize>().map_err(|_| wrong());
        let words: Vec<&str> = text.split_whitespace().collect();
        match *words.as_slice() {
            ["alloc", bytes] => Ok(Self::Alloc { bytes: number(bytes)?, align: 1 }),
            ["alloc", bytes, align] => Ok(Self::Alloc { bytes: number(bytes)?, align: number(align)? }),
            ["free", block] => Ok(Self::Free { block: block.to_owned() }),
            ["mark"] => Ok(Self::Mark),
            ["pop", marker] => Ok(Self::Pop { marker: marker.to_owned() }),
            ["reset"] => Ok(Self::Reset),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alloc { bytes, align: 1 } => write!(f, "alloc {bytes}"),
            Self::Alloc { bytes, align } => write!(f, "alloc {bytes} {align}"),
            Self::Free { block } => write!(f, "free {block}"),
            Self::Mark => f.write_str("mark"),
            Self::Pop { marker } => write!(f, "pop {marker}"),
            Self::Reset => f.write_str("reset"),
        }
    }
}
