//! All demos by name; each demo has a description and a script.

use super::blocks::Blocks;
use super::demo::Demo;
use super::fifty_percent::FiftyPercent;
use super::growing::GrowingPool;
use super::handles::Handles;
use super::lanes::Lanes;
use super::lazy::LazyPoolDemo;
use super::packed::Packed;
use super::pinning::Pinning;
use super::robson::Robson;
use super::slabs_over_buddy::SlabsOverBuddy;
use super::walk::Walk;
use crate::allocators::heap::{Fit, Order};
use crate::allocators::memory::ConfigError;
use crate::allocators::tlsf::Search;
use crate::allocators::{Buddy, Heap, Linear, Pool, Stack, Tlsf};
use core::alloc::Layout;
use serde::Serialize;
use uslab::handle::WrapPolicy;

/// A demo of one allocator, or of one program on several allocators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "experiments", derive(clap::ValueEnum))]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// A linear allocator, which moves an offset forward; all blocks are freed together.
    Linear,
    /// A linear allocator that grows by chunks.
    Arena,
    /// A linear allocator that can be rewound to markers.
    Stack,
    /// A pool of slots of one size; the free slots are in a list.
    Pool,
    /// Kenwright's pool, in which a block joins the free list only when it is first needed.
    LazyPool,
    /// A pool that grows by chunks, each of which has a free list.
    ChunkedPool,
    /// A pool that reserves addresses, and commits memory step by step.
    ReservedPool,
    /// A list of free blocks in address order; the first block that is large enough serves a request.
    FirstFit,
    /// A list of free blocks; the smallest block that is large enough serves a request.
    BestFit,
    /// A list of free blocks; the largest block serves a request.
    WorstFit,
    /// A buddy allocator, which halves and merges blocks whose sizes are powers of two.
    Buddy,
    /// TLSF: free lists for two levels of size classes, which it searches with bit scans.
    Tlsf,
    /// A handle table whose handles detect that their object was freed; after its last generation, a slot is retired.
    Handles,
    /// A handle table whose generations restart after the last one.
    HandlesWrap,
    /// A slot map, whose values have no gaps, compared with an array that has holes.
    Packed,
    /// The cache lines that a walk over structs loads, for an array of structs and for one array per field.
    Layout,
    /// Four heaps in equilibrium, and the number of holes per block.
    FiftyPercent,
    /// Several allocators under the attack of a program that forces them to take more memory.
    Robson,
    /// Long-lived blocks, first mixed with short-lived blocks, and then in a separate heap.
    Pinning,
    /// A buddy allocator that serves objects, first directly and then through slabs.
    SlabsOverBuddy,
}

/// A description of a demo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct About {
    /// The demo's name.
    pub name: Name,
    /// The demo's title on a page.
    pub title: &'static str,
    /// A few sentences about what to observe in the demo.
    pub what: &'static str,
    /// The commands that the demo accepts.
    pub takes: &'static [&'static str],
    /// A list of commands that shows how the allocator works.
    pub script: &'static [&'static str],
    /// The number of the script's commands that a web page has already run when it opens the demo. The script's first
    /// commands bring the demo to the state that the picture should show first.
    pub telling: usize,
    /// `true` if the allocator serves requests of any size and can therefore run in a race.
    pub races: bool,
    /// The claim about allocators that the demo tests.
    pub claim: Claim,
}

/// A claim in a published text, with the study's answer (`STUDY.md`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Claim {
    /// The claim's number.
    pub number: &'static str,
    /// The claim.
    pub says: &'static str,
    /// The answer to the claim: `holds`, `depends` or `does not hold`.
    pub answer: &'static str,
}

impl Name {
    /// All demos.
    pub const ALL: [Self; 20] = [
        Self::Linear,
        Self::Arena,
        Self::Stack,
        Self::Pool,
        Self::LazyPool,
        Self::ChunkedPool,
        Self::ReservedPool,
        Self::FirstFit,
        Self::BestFit,
        Self::WorstFit,
        Self::Buddy,
        Self::Tlsf,
        Self::Handles,
        Self::HandlesWrap,
        Self::Packed,
        Self::Layout,
        Self::FiftyPercent,
        Self::Robson,
        Self::Pinning,
        Self::SlabsOverBuddy,
    ];

    /// Returns the demo's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Arena => "arena",
            Self::Stack => "stack",
            Self::Pool => "pool",
            Self::LazyPool => "lazy-pool",
            Self::ChunkedPool => "chunked-pool",
            Self::ReservedPool => "reserved-pool",
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::WorstFit => "worst-fit",
            Self::Buddy => "buddy",
            Self::Tlsf => "tlsf",
            Self::Handles => "handles",
            Self::HandlesWrap => "handles-wrap",
            Self::Packed => "packed",
            Self::Layout => "layout",
            Self::FiftyPercent => "fifty-percent",
            Self::Robson => "robson",
            Self::Pinning => "pinning",
            Self::SlabsOverBuddy => "slabs-over-buddy",
        }
    }

    /// Creates the demo with 1,024 bytes of memory, the size that all racing demos have.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    pub fn allocator_for_race(self) -> Result<Box<dyn Demo>, ConfigError> {
        match self {
            Self::Tlsf => Ok(Box::new(Blocks::new(Tlsf::new(1024, 2, Search::Bitmaps)?))),
            other => other.make(),
        }
    }
    /// Creates the demo.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    pub fn make(self) -> Result<Box<dyn Demo>, ConfigError> {
        let heap = |fit| Heap::new(1024, fit, Order::Address).map(Blocks::new);
        Ok(match self {
            Self::Linear => Box::new(Blocks::new(Linear::fixed(256)?)),
            Self::Arena => Box::new(Blocks::new(Linear::growing(4096, 5 * 4096)?)),
            Self::Stack => Box::new(Blocks::new(Stack::new(256)?)),
            Self::Pool => {
                Box::new(Blocks::new(Pool::new(Linear::fixed(24 * 96)?, Layout::new::<[u8; 96]>())?))
            }
            Self::LazyPool => Box::new(LazyPoolDemo::new()?),
            Self::ChunkedPool => Box::new(Blocks::new(GrowingPool::chunked()?)),
            Self::ReservedPool => Box::new(Blocks::new(GrowingPool::reserved()?)),
            Self::FirstFit => Box::new(heap(Fit::First)?),
            Self::BestFit => Box::new(heap(Fit::Best)?),
            Self::WorstFit => Box::new(heap(Fit::Worst)?),
            Self::Buddy => Box::new(Blocks::new(Buddy::new(1024)?)),
            Self::Tlsf => Box::new(Blocks::new(Tlsf::new(4096, 2, Search::Bitmaps)?)),
            Self::Handles => Box::new(Handles::new(WrapPolicy::Retire)),
            Self::HandlesWrap => Box::new(Handles::new(WrapPolicy::Wrap)),
            Self::Packed => Box::new(Packed::new()?),
            Self::Layout => Box::new(Walk::default()),
            Self::FiftyPercent => Box::new(Lanes::new(FiftyPercent::default())),
            Self::Robson => Box::new(Lanes::new(Robson::default())),
            Self::Pinning => Box::new(Lanes::new(Pinning::default())),
            Self::SlabsOverBuddy => Box::new(Lanes::new(SlabsOverBuddy::default())),
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
            Self::Arena => (
                "Arena that grows by chunks",
                "The head moves through a chunk of 4,096 bytes. If a block does not fit, the arena adds a chunk, and the rest of the full \
                 chunk stays unused. A larger block gets a chunk of its size. A pop or a reset drops the chunks after the head.",
                &["alloc BYTES [ALIGN]", "mark", "pop MARKER", "reset"],
                &[
                    "alloc 1500",
                    "alloc 1400",
                    "alloc 1500",
                    "mark",
                    "alloc 5000",
                    "alloc 700",
                    "pop m1",
                    "alloc 800",
                    "reset",
                ],
                3,
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
            Self::ChunkedPool => (
                "A pool that grows by chunks",
                "A chunk has a header and three slots, through which its own free list runs. If no chunk has a free slot, another chunk is \
                 mapped. Full chunks are at the back, so a request takes a slot of the first chunk. A purge unmaps empty chunks.",
                &["alloc", "free BLOCK", "purge"],
                &[
                    "alloc", "alloc", "alloc", "alloc", "alloc", "free b", "alloc", "free d", "free e",
                    "purge",
                ],
                4,
            ),
            Self::ReservedPool => (
                "A pool in reserved addresses",
                "The pool reserves addresses for 16 slots, without memory. If its list is empty, it commits 4,096 more bytes (by default \
                 32 KiB). One list runs through all slots, and no slot ever moves.",
                &["alloc", "free BLOCK"],
                &["alloc", "alloc", "alloc", "alloc", "alloc", "free b", "free e", "alloc", "alloc", "alloc"],
                5,
            ),
            Self::FirstFit => (
                "First fit with boundary tags",
                "Each block has its size in a tag of 4 bytes at both ends. A request walks along the list of free blocks and takes the \
                 first that is large enough. A freed block reads its neighbours' tags and merges with free neighbours.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                HOLE_COMMANDS,
                10,
            ),
            Self::BestFit => (
                "Best fit",
                "A request walks along the whole list of free blocks and takes the smallest that is large enough. Large blocks stay \
                 whole, and small remainders stay behind.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                HOLE_COMMANDS,
                10,
            ),
            Self::WorstFit => (
                "Worst fit",
                "A request walks along the whole list of free blocks and takes the largest. What is left over is large enough for \
                 another request, but soon no large block remains.",
                &["alloc BYTES [ALIGN]", "free BLOCK"],
                HOLE_COMMANDS,
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
                "4,096 bytes. One row of lists for each power of two, four lists in a row, and a bit for each list. A search scans the bits \
                 of its row and, if none is set, the bits of the rows and then of the next row that has one: at most three scans. A \
                 block begins with a header of 4 bytes, which ends at a multiple of 16.",
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
            Self::FiftyPercent => (
                "The fifty-percent rule",
                "A round frees a random block and allocates one of a random size, 100 times. Soon 100 blocks in use have about 50 \
                 holes between them. If blocks fit holes exactly, there are fewer.",
                &["fill 16-2048|eight-sizes|one-size", "round"],
                &[
                    "fill 16-2048",
                    "round",
                    "round",
                    "round",
                    "round",
                    "round",
                    "round",
                    "round",
                    "round",
                    "round",
                    "round",
                    "round",
                    "round",
                ],
                7,
            ),
            Self::Robson => (
                "Robson's bound",
                "A program never has more than 4,096 bytes in use. In each round it frees blocks so that few large holes appear, and then \
                 requests blocks of twice the size. Robson's bound is the memory that even the best allocator needs in the worst case, \
                 if it does not move blocks.",
                &["fill 2048|4096|8192", "round"],
                &["fill 4096", "round", "round", "round", "round", "round", "round"],
                4,
            ),
            Self::Pinning => (
                "Pinning",
                "65,536 bytes full of blocks of 256. One in 32 is long-lived, the others are freed. If all are in one heap, the \
                 long-lived blocks keep the free memory in pieces, and a large request finds no room. If they have a separate heap, it does.",
                &["fill 32|64|128", "free short-lived", "alloc BYTES"],
                &["fill 32", "free short-lived", "alloc 10000"],
                2,
            ),
            Self::SlabsOverBuddy => (
                "Slabs over a buddy",
                "A buddy allocator rounds each object up to a power of two. A slab is one block of the buddy allocator that is cut into \
                 objects of nearly the requested size, so the same 65,536 bytes hold more objects.",
                &["fill 1100|600|2048|2700"],
                &["fill 1100", "fill 600", "fill 2700", "fill 2048"],
                1,
            ),
        };
        let races = matches!(self, Self::FirstFit | Self::BestFit | Self::Buddy | Self::Tlsf);
        About { name: self, title, what, takes, script, telling, races, claim: self.claim() }
    }

    fn claim(self) -> Claim {
        let (number, says, answer) = match self {
            Self::Linear => ("E021", "256 bytes serve 32 eight times, then none; a reset frees all", "holds"),
            Self::Arena => ("E023", "A real one grows by a chain of pages", "holds"),
            Self::Stack => ("E030", "A marker, and a pop to it, in LIFO order", "holds"),
            Self::Pool => ("E044", "Three come, the middle one goes, the next takes its place", "holds"),
            Self::LazyPool => {
                ("K02", "Blocks are threaded as they are used, so the rest stays untouched", "holds")
            }
            Self::ChunkedPool => (
                "A20",
                "A pool that grows by chunks keeps the full ones at the back, and gives empty ones back on request",
                "holds",
            ),
            Self::ReservedPool => {
                ("A23", "Reserve addresses, commit 32 KiB at a time, and no chunk needs a list", "holds")
            }
            Self::FirstFit => (
                "E010",
                "Blocks with headers, a free list by size or address, tags on both sides, merging both neighbours",
                "holds",
            ),
            Self::BestFit | Self::WorstFit => {
                ("E011", "Free lists are searched by first fit, by best fit, or by size class", "holds")
            }
            Self::Buddy => ("E054", "65 bytes take 128, 49 % waste", "holds"),
            Self::Tlsf => (
                "E062",
                "From 16 bytes on, two bits choose the second level; two scans find a list, and its first block is taken",
                "holds",
            ),
            Self::Handles => ("E112", "After its object is freed, a handle is rejected", "holds"),
            Self::HandlesWrap => ("E113", "After 256 reuses a stale handle is valid", "does not hold"),
            Self::Packed => ("P09", "Swap and pop keeps the live ones in front", "holds"),
            Self::Layout => (
                "E102",
                "A walk over positions uses 25 % of what structs load; arrays of fields are 4 times as good",
                "does not hold",
            ),
            Self::FiftyPercent => {
                ("E098", "Half as many holes as blocks (Knuth), with exceptions (Shore)", "holds")
            }
            Self::Robson => ("E093", "In the worst case memory grows with M log n", "holds"),
            Self::Pinning => {
                ("E096", "One long-lived block among others pins memory; keep them apart", "holds")
            }
            Self::SlabsOverBuddy => {
                ("E136", "Put slabs over the buddy, or its rounding eats the gain", "holds")
            }
        };
        Claim { number, says, answer }
    }
}

/// After the script's first three frees, the list has blocks of 32, 208 and 112 bytes, and the rest of the memory. For
/// a request of 60 bytes, first fit takes the second block, best fit takes the third, and worst fit takes the rest of
/// the memory.
const HOLE_COMMANDS: &[&str] = &[
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
