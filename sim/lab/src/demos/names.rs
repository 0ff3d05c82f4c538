//! The demos by name; each has a description and a script.

use super::blocks::Blocks;
use super::demo::Demo;
use super::handles::Handles;
use super::lazy::Lazy;
use super::walk::Walk;
use crate::allocators::heap::{Fit, Order};
use crate::allocators::memory::ConfigError;
use crate::allocators::tlsf::Search;
use crate::allocators::{Buddy, Heap, Linear, Pool, Stack, Tlsf};
use core::alloc::Layout;
use serde::Serialize;
use uslab::handle::WrapPolicy;

/// A demo of one allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "experiments", derive(clap::ValueEnum))]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// An offset that only moves forward; everything is freed together.
    Linear,
    /// A linear allocator with markers to which it can be rewound.
    Stack,
    /// Slots of one size; the free slots are in a list.
    Pool,
    /// A pool in which a block joins the free list when the block is first needed.
    LazyPool,
    /// A list of free blocks in the order of addresses; the first block that is large enough serves.
    FirstFit,
    /// A list of free blocks; the smallest block that is large enough serves.
    BestFit,
    /// Blocks whose sizes are powers of two, which are halved and merged.
    Buddy,
    /// Lists for two levels of size classes; two bit scans find a list.
    Tlsf,
    /// Handles that detect that their object was freed; after its last generation, a slot is retired.
    Handles,
    /// Handles whose generations wrap.
    HandlesWrap,
    /// The cache lines that a walk over structs loads, for an array of structs and for one array per field.
    Layout,
}

/// A description of a demo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct About {
    /// The demo's name.
    pub name: Name,
    /// The demo's title on a page.
    pub title: &'static str,
    /// What to look at in the demo, in a few sentences.
    pub what: &'static str,
    /// The commands that the demo accepts.
    pub takes: &'static [&'static str],
    /// Commands that show how the allocator works.
    pub script: &'static [&'static str],
    /// `true` if the allocator serves any size, so that it can serve the requests of a race.
    pub races: bool,
}

impl Name {
    /// All demos.
    pub const ALL: [Self; 11] = [
        Self::Linear,
        Self::Stack,
        Self::Pool,
        Self::LazyPool,
        Self::FirstFit,
        Self::BestFit,
        Self::Buddy,
        Self::Tlsf,
        Self::Handles,
        Self::HandlesWrap,
        Self::Layout,
    ];

    /// Returns the demo's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Stack => "stack",
            Self::Pool => "pool",
            Self::LazyPool => "lazy-pool",
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::Buddy => "buddy",
            Self::Tlsf => "tlsf",
            Self::Handles => "handles",
            Self::HandlesWrap => "handles-wrap",
            Self::Layout => "layout",
        }
    }

    /// Creates the demo with 1,024 bytes of memory, which all demos in a race have.
    ///
    /// # Errors
    /// Fails if memory is short.
    pub fn allocator_for_race(self) -> Result<Box<dyn Demo>, ConfigError> {
        match self {
            Self::Tlsf => Ok(Box::new(Blocks::new(Tlsf::new(1024, 2, Search::Bitmaps)?))),
            other => other.make(),
        }
    }
    /// Creates the demo.
    ///
    /// # Errors
    /// Fails if memory is short.
    pub fn make(self) -> Result<Box<dyn Demo>, ConfigError> {
        let heap = |fit| Heap::new(1024, fit, Order::Address).map(Blocks::new);
        Ok(match self {
            Self::Linear => Box::new(Blocks::new(Linear::fixed(256)?)),
            Self::Stack => Box::new(Blocks::new(Stack::new(256)?)),
            Self::Pool => {
                Box::new(Blocks::new(Pool::new(Linear::fixed(24 * 96)?, Layout::new::<[u8; 96]>())?))
            }
            Self::LazyPool => Box::new(Lazy::new()?),
            Self::FirstFit => Box::new(heap(Fit::First)?),
            Self::BestFit => Box::new(heap(Fit::Best)?),
            Self::Buddy => Box::new(Blocks::new(Buddy::new(1024)?)),
            Self::Tlsf => Box::new(Blocks::new(Tlsf::new(4096, 2, Search::Bitmaps)?)),
            Self::Handles => Box::new(Handles::new(WrapPolicy::Retire)),
            Self::HandlesWrap => Box::new(Handles::new(WrapPolicy::Wrap)),
            Self::Layout => Box::new(Walk::default()),
        })
    }

    /// Returns the demo's description.
    pub fn about(self) -> About {
        let (title, what, takes, script): (_, _, &'static [_], &'static [_]) = match self {
            Self::Linear => (
                "Linear",
                "One head moves forward through 256 bytes. Eight blocks of 32 fill it, the ninth is refused, and a reset frees all of \
                 them at once. A block that must lie at a multiple of 16 leaves padding in front.",
                &["alloc BYTES [ALIGN]", "free BLOCK", "reset"],
                &[
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
            ),
            Self::Stack => (
                "Stack with markers",
                "A marker remembers the head. Popping to the marker frees the blocks that were allocated after it, and no others. A popped marker is stale.",
                &["alloc BYTES [ALIGN]", "mark", "pop MARKER", "free BLOCK"],
                &["alloc 32", "alloc 48", "mark", "alloc 64", "alloc 16", "pop m1", "pop m1", "alloc 8"],
            ),
            Self::Pool => (
                "Pool and free list",
                "Slots of 96 bytes. A freed slot is the head of a list that runs through the free slots themselves; the next request \
                 gets it without a search. 80 bytes lose 16 to rounding, and 97 do not fit.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                &["alloc 96", "alloc 96", "alloc 80", "free b", "alloc 96", "alloc 97"],
            ),
            Self::LazyPool => (
                "Kenwright's lazy pool",
                "16 blocks of 16 bytes. Creating the pool writes nothing; each allocation adds one more block to the chain of free blocks, until all are in it. The pool's state is three numbers.",
                &["alloc", "free BLOCK"],
                &["alloc", "alloc", "alloc", "free b", "free a", "alloc", "alloc"],
            ),
            Self::FirstFit => (
                "First fit with boundary tags",
                "Each block is between two tags of 4 bytes with its size. Two frees leave two holes; the first hole that is large enough is used. A freed block is merged with free neighbours, which the tags tell.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                HOLES,
            ),
            Self::BestFit => (
                "Best fit",
                "Of two holes, the smallest that is large enough is used: the large hole stays unchanged, and a small rest of the other remains.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                HOLES,
            ),
            Self::Buddy => (
                "Buddy",
                "1,024 bytes. For 65 bytes the memory is halved three times; the block has 128, and 63 are lost. Two free buddies merge into one block, repeatedly up to the largest.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                &["alloc 65", "alloc 60", "alloc 200", "free a", "free b", "free c"],
            ),
            Self::Tlsf => (
                "TLSF",
                "4,096 bytes. The size's highest bit is the first level, the next two bits the second; two bit scans find a list all \
                 of whose blocks are large enough. Type any size, and see the class that is searched from.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                &["alloc 1000", "alloc 100", "alloc 40", "free b", "alloc 90", "free a", "free c", "free d"],
            ),
            Self::Handles => (
                "Handles with generations",
                "A handle is a slot and a generation. When an object is freed, its slot's generation increases, and old handles are stale. Two bits allow three generations: after the third the slot is retired, so that a stale handle never becomes valid.",
                &["alloc", "get HANDLE", "free HANDLE"],
                &[
                    "alloc", "alloc", "get a", "free a", "get a", "alloc", "get a", "free c", "alloc",
                    "free d", "alloc", "get a",
                ],
            ),
            Self::HandlesWrap => (
                "Handles that wrap",
                "A slot's last generation is followed by the first. A handle that is three generations old finds another object, and the check cannot detect it: the ABA problem.",
                &["alloc", "get HANDLE", "free HANDLE"],
                &[
                    "alloc", "free a", "alloc", "free b", "alloc", "free c", "alloc", "get a", "free a",
                    "get d",
                ],
            ),
            Self::Layout => (
                "Structs or arrays",
                "16 entities of 32 bytes: position and velocity of three numbers each, health, team. Memory comes in lines of 64 \
                 bytes. Which lines does a walk load, and how much of them does it use?",
                &["walk position.x|position|all structs|fields|numbers"],
                &[
                    "walk position.x structs",
                    "walk position.x fields",
                    "walk position.x numbers",
                    "walk position structs",
                    "walk position fields",
                    "walk all structs",
                    "walk all numbers",
                ],
            ),
        };
        let races = matches!(self, Self::FirstFit | Self::BestFit | Self::Buddy | Self::Tlsf);
        About { name: self, title, what, takes, script, races }
    }
}

/// After the first two frees, first fit serves 60 bytes from the first hole; best fit serves them from the second hole,
/// which is smaller.
const HOLES: &[&str] =
    &["alloc 200", "alloc 40", "alloc 72", "alloc 40", "free a", "free c", "alloc 60", "free b", "free d"];
