//! The demos by name; each has a description and a script.

use super::blocks::Blocks;
use super::demo::Demo;
use super::handles::Handles;
use super::lazy::Lazy;
use super::packed::Packed;
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
    /// An offset that only moves forward; all blocks are freed together.
    Linear,
    /// A linear allocator with markers to which it can be rewound.
    Stack,
    /// Slots of one size; the free slots are in a list.
    Pool,
    /// A pool in which a block joins the free list when the block is first needed.
    LazyPool,
    /// A list of free blocks in address order; the first block that is large enough serves a request.
    FirstFit,
    /// A list of free blocks; the smallest block that is large enough serves a request.
    BestFit,
    /// Blocks whose sizes are powers of two; the allocator halves and merges blocks.
    Buddy,
    /// Lists for two levels of size classes; two bit scans find a list.
    Tlsf,
    /// Handles that detect that their object was freed; after its last generation, a slot is retired.
    Handles,
    /// Handles whose generations wrap.
    HandlesWrap,
    /// A slot map, whose values have no gaps, compared with an array that has holes.
    Packed,
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
    /// The points of interest in the demo, in a few sentences.
    pub what: &'static str,
    /// The commands that the demo accepts.
    pub takes: &'static [&'static str],
    /// Commands that show how the allocator works.
    pub script: &'static [&'static str],
    /// The number of script commands that a page has run when it opens. The last of these commands shows the most.
    pub telling: usize,
    /// `true` if the allocator serves any size, so that it can serve the requests of a race.
    pub races: bool,
}

impl Name {
    /// All demos.
    pub const ALL: [Self; 12] = [
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
        Self::Packed,
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
            Self::Packed => "packed",
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
            Self::Packed => Box::new(Packed::new()?),
            Self::Layout => Box::new(Walk::default()),
        })
    }

    /// Returns the demo's description.
    pub fn about(self) -> About {
        let (title, what, takes, script, telling): (_, _, &'static [_], &'static [_], _) = match self {
            Self::Linear => (
                "Linear",
                "One head moves forward through 256 bytes. Eight blocks of 32 fill them, the ninth is refused, and a reset frees all \
                 blocks. A block that is aligned to 16 leaves padding in front.",
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
                12,
            ),
            Self::Stack => (
                "Stack with markers",
                "A marker saves the position of the head. A pop moves the head back to the marker, which frees everything above it. A \
                 marker above the head is stale.",
                &["alloc BYTES [ALIGN]", "mark", "pop MARKER", "free BLOCK"],
                &[
                    "alloc 32", "alloc 48", "mark", "alloc 64", "mark", "alloc 16", "pop m1", "pop m2",
                    "alloc 8",
                ],
                7,
            ),
            Self::Pool => (
                "Pool and free list",
                "Slots of 96 bytes. The free list runs through the free slots: each one stores the number of the next. A request takes \
                 the head without a search. 80 bytes waste 16, and 97 do not fit.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                &[
                    "alloc 96", "alloc 96", "alloc 80", "alloc 96", "alloc 96", "free b", "free d", "free a",
                    "alloc 96", "alloc 97",
                ],
                8,
            ),
            Self::LazyPool => (
                "Kenwright's lazy pool",
                "16 blocks of 16 bytes. Creating the pool writes nothing. Each allocation adds one more block to the chain of free \
                 blocks, until all blocks are in it. The pool stores three numbers.",
                &["alloc", "free BLOCK"],
                &["alloc", "alloc", "alloc", "free b", "free a", "alloc", "alloc"],
                5,
            ),
            Self::FirstFit => (
                "First fit with boundary tags",
                "Each block has its size in a tag of 4 bytes at both ends. A request walks along the list of free blocks and takes the \
                 first that is large enough. A freed block reads its neighbours' tags and merges with free neighbours.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                HOLES,
                10,
            ),
            Self::BestFit => (
                "Best fit",
                "A request walks along the whole list of free blocks and takes the smallest that is large enough. Large blocks stay \
                 whole, and small remainders stay behind.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                HOLES,
                10,
            ),
            Self::Buddy => (
                "Buddy",
                "1,024 bytes. A request halves a free block until it fits, and each upper half goes to its free list. A freed block \
                 merges with its buddy, whose address differs in one bit, as long as the buddy is free.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                &["alloc 65", "alloc 60", "alloc 200", "free a", "free b", "free c"],
                1,
            ),
            Self::Tlsf => (
                "TLSF",
                "4,096 bytes. One row of lists for each power of two, four lists in a row, and a bit for each list. Two bit scans find a \
                 list in which each block is large enough, so no list is searched.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                &[
                    "alloc 1000",
                    "alloc 100",
                    "alloc 40",
                    "alloc 500",
                    "alloc 40",
                    "free b",
                    "free d",
                    "alloc 200",
                    "alloc 90",
                    "free a",
                    "free c",
                    "free e",
                    "free f",
                    "free g",
                ],
                8,
            ),
            Self::Handles => (
                "Handles with generations",
                "A handle names a slot and a generation. A free increments the slot's generation, so old handles are stale. Here, \
                 a generation has two bits and is never 0, so that no handle is the word 0: a slot has the generations 1, 2 and 3. \
                 After the third it retires, because with generation 1 again, old handles would be valid.",
                &["alloc", "get HANDLE", "free HANDLE"],
                &[
                    "alloc", "alloc", "get a", "free a", "get a", "alloc", "get a", "free c", "alloc",
                    "free d", "alloc", "get a",
                ],
                7,
            ),
            Self::HandlesWrap => (
                "Handles that wrap",
                "The first generation follows the last: 1, 2, 3, 1. A handle from three lives ago finds another object, and no check detects it: the \
                 ABA problem.",
                &["alloc", "get HANDLE", "free HANDLE"],
                &[
                    "alloc", "free a", "alloc", "free b", "alloc", "free c", "alloc", "get a", "free a",
                    "get d",
                ],
                8,
            ),
            Self::Packed => (
                "Slot map: packed or with holes",
                "A free moves the last value into the gap, so the values stay packed. Handles find a moved value through its slot. An \
                 array with holes moves nothing, and a walk over it checks each hole.",
                &["alloc", "get HANDLE", "free HANDLE"],
                &[
                    "alloc", "alloc", "alloc", "alloc", "alloc", "alloc", "alloc", "alloc", "free b",
                    "free c", "free e", "get h", "alloc", "get b",
                ],
                11,
            ),
            Self::Layout => (
                "Structs or arrays",
                "16 entities of 32 bytes: position and velocity of three numbers each, health, team. The CPU loads memory in lines of \
                 64 bytes. A walk loads other lines in each memory layout.",
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
                1,
            ),
        };
        let races = matches!(self, Self::FirstFit | Self::BestFit | Self::Buddy | Self::Tlsf);
        About { name: self, title, what, takes, script, telling, races }
    }
}

/// After the first three frees, the list has blocks of 32, 208 and 112 bytes and the rest. For 60 bytes, first fit takes
/// the second block, and best fit the third.
const HOLES: &[&str] = &[
    "alloc 24",
    "alloc 40",
    "alloc 200",
    "alloc 40",
    "alloc 90",
    "alloc 40",
    "free a",
    "free c",
    "free e",
    "alloc 60",
    "free b",
    "free d",
    "free f",
];
