//! Textbook allocators, driven by hand: what the memory looks like after each command.
//!
//! A demo is the lab's own allocator in a small memory, with a script that shows what it is about. [`Demo::act`] takes one
//! [`Command`] and gives the [`Scene`] after it; `uslab-lab demo` prints them.
//!
//! ```
//! use uslab_lab::demos::Name;
//!
//! let mut buddy = Name::Buddy.make()?;
//! let scene = buddy.act(&"alloc 65".parse()?);
//! assert_eq!(scene.said, "a is at byte 0 and has 128, 63 more than asked for. It took 4 looks, 3 splits.");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod args;
mod blocks;
mod command;
mod kinds;
mod scene;

use crate::allocators::heap::{Fit, Order};
use crate::allocators::memory::ConfigError;
use crate::allocators::tlsf::Search;
use crate::allocators::{Buddy, Heap, Holes, Linear, Pool, Stack, Tlsf};
pub use args::Args;
use blocks::Blocks;
use clap::ValueEnum;
pub use command::{Command, NoCommand};
use core::alloc::Layout;
pub use scene::{Is, Part, Scene};
use serde::Serialize;

/// An allocator that is driven by hand.
pub trait Demo {
    /// Does what it is told, and shows what is then.
    fn act(&mut self, command: &Command) -> Scene;
}

/// The demos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// One position that moves forward; all is freed at once.
    Linear,
    /// The same with markers to go back to.
    Stack,
    /// Slots of one size, the free ones in a list.
    Pool,
    /// A list of free blocks by address: the first that is large enough.
    FirstFit,
    /// The smallest that is large enough.
    BestFit,
    /// Powers of two that are halved and made one again.
    Buddy,
    /// Lists by two levels of sizes, found by two bit scans.
    Tlsf,
}

impl Name {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Linear, Self::Stack, Self::Pool, Self::FirstFit, Self::BestFit, Self::Buddy, Self::Tlsf];

    /// A fresh memory.
    ///
    /// # Errors
    /// Memory is short.
    pub fn make(self) -> Result<Box<dyn Demo>, ConfigError> {
        let heap = |fit| Heap::new(1024, fit, Order::Address).map(Blocks::new);
        Ok(match self {
            Self::Linear => Box::new(Blocks::new(Linear::fixed(256)?)),
            Self::Stack => Box::new(Blocks::new(Stack::new(256)?)),
            Self::Pool => {
                Box::new(Blocks::new(Pool::new(Linear::fixed(24 * 96)?, Layout::new::<[u8; 96]>())?))
            }
            Self::FirstFit => Box::new(heap(Fit::First)?),
            Self::BestFit => Box::new(heap(Fit::Best)?),
            Self::Buddy => Box::new(Blocks::new(Buddy::new(1024)?)),
            Self::Tlsf => Box::new(Blocks::new(Tlsf::new(4096, 2, Search::Bitmaps)?)),
        })
    }

    /// Commands that show what it is about.
    pub fn script(self) -> &'static [&'static str] {
        match self {
            // Eight blocks of 32 fill 256 bytes; the ninth is refused.
            Self::Linear => &[
                "alloc 32",
                "alloc 32",
                "alloc 32",
                "alloc 32",
                "alloc 32",
                "alloc 32",
                "alloc 32",
                "alloc 32",
                "alloc 32",
                "reset",
                "alloc 5",
                "alloc 16 16",
            ],
            Self::Stack => {
                &["alloc 32", "alloc 48", "mark", "alloc 64", "alloc 16", "pop m1", "pop m1", "alloc 8"]
            }
            // The hole serves the next request, without a search.
            Self::Pool => &["alloc 96", "alloc 96", "alloc 80", "free b", "alloc 96", "alloc 97"],
            // After the two frees the first hole serves 60 bytes here, the smaller second one there.
            Self::FirstFit | Self::BestFit => &[
                "alloc 200",
                "alloc 40",
                "alloc 72",
                "alloc 40",
                "free a",
                "free c",
                "alloc 60",
                "free b",
                "free d",
            ],
            Self::Buddy => &["alloc 65", "alloc 60", "alloc 200", "free a", "free b", "free c"],
            Self::Tlsf => {
                &["alloc 1000", "alloc 100", "alloc 40", "free b", "alloc 90", "free a", "free c", "free d"]
            }
        }
    }
}

/// Free memory, in words.
fn free(holes: Holes) -> String {
    match holes.count {
        0 => "nothing".to_owned(),
        1 => format!("{} bytes in one piece", holes.total),
        pieces => format!("{} bytes in {pieces} pieces, the largest {}", holes.total, holes.largest),
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests;
