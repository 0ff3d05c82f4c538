//! The cheat sheet, which describes when to use each allocator. The experiments contain the measurements that support
//! the cheat sheet.

use super::registry::Name;

/// A page of the cheat sheet. The page describes an allocator, or a layer that programs add on top of an allocator.
#[derive(Debug)]
pub struct CheatSheet {
    /// The page's name on the command line.
    pub name: &'static str,
    /// The lab's allocator that the page describes; `None` if a workload cannot drive it.
    pub in_lab: Option<Name>,
    /// The sizes of the requests that the allocator serves.
    pub sizes: &'static str,
    /// The block lifetimes that suit the allocator.
    pub lifetimes: &'static str,
    /// The cost of an allocation in the worst case.
    pub worst: &'static str,
    /// The kinds of waste that the allocator has.
    pub waste: &'static str,
    /// Programs that contain this kind of allocator.
    pub ships: &'static str,
    /// A description of how the allocator works.
    pub idea: &'static str,
    /// The allocator's operations, each with its cost.
    pub costs: &'static [(&'static str, &'static str)],
    /// Advice on when to choose the allocator.
    pub take: &'static str,
    /// Advice on when to choose a different allocator.
    pub leave: &'static str,
    /// The publication from which the description is taken.
    pub source: &'static str,
    /// The experiment that shows the allocator's behaviour.
    pub more: &'static str,
}

/// All pages of the cheat sheet.
pub static CHEAT_SHEETS: [CheatSheet; 15] = [
    CheatSheet {
        name: "linear",
        in_lab: Some(Name::Linear),
        sizes: "any",
        lifetimes: "all end together",
        worst: "O(1)",
        waste: "padding; all, until the reset",
        ships: "Unreal FMemStack, apr_pool, obstacks",
        idea: "One position moves forward. Nothing is freed but everything.",
        costs: &[
            ("allocate", "round up, compare, store"),
            ("free one", "not there"),
            ("reset", "one store, whatever was allocated"),
        ],
        take: "Objects of a frame, a request or a parse, which end together.",
        leave: "One block outlives the others: all blocks stay until it is freed.",
        source: "Hanson, Fast allocation and deallocation of memory based on object lifetimes, 1990",
        more: "latency",
    },
    CheatSheet {
        name: "stack",
        in_lab: Some(Name::Stack),
        sizes: "any",
        lifetimes: "nested",
        worst: "O(1)",
        waste: "padding; freed blocks below the top",
        ships: "Frostbite scope stack, Unreal FMemMark",
        idea: "The linear allocator with markers: popping a marker frees all later blocks, newest first.",
        costs: &[
            ("allocate", "as linear"),
            ("mark", "one load"),
            ("pop", "one store, and a call for each destructor"),
        ],
        take: "Scopes within scopes: a level, its loading, a function's scratch memory.",
        leave: "Lifetimes cross: the oldest block is freed first.",
        source: "Fredriksson, Scope Stack Allocation, DICE",
        more: "race",
    },
    CheatSheet {
        name: "pool",
        in_lab: Some(Name::Pool),
        sizes: "one",
        lifetimes: "any",
        worst: "O(1)",
        waste: "the rest of a slot",
        ships: "Boost.Pool, Zephyr k_mem_slab; uslab::pool",
        idea: "Slots of one size. Free slots are in a list whose links are stored in the slots.",
        costs: &[
            ("allocate", "pop the head of a list"),
            ("free", "become the head of a list"),
            ("create", "no loop if slots are opened when first needed"),
        ],
        take: "One thread, one size, any order: the cheapest allocator that frees single blocks.",
        leave: "Sizes differ much, several threads free, or memory is to go back.",
        source: "Kenwright, Fast Efficient Fixed-Size Memory Pool, 2012; Reinalter, a pool allocator, 2012",
        more: "kenwright",
    },
    CheatSheet {
        name: "segregated",
        in_lab: Some(Name::Segregated),
        sizes: "small, by class",
        lifetimes: "any",
        worst: "O(1), but for cutting a page",
        waste: "to the next class; pages of idle classes",
        ships: "Loki, std::pmr pool resources, Unreal's small bins",
        idea: "A pool for each size class, on pages that belong to one class each.",
        costs: &[
            ("allocate", "the class by the size, the head of its list; a step a slot when a page is cut"),
            ("free", "the class by the page"),
        ],
        take: "Many small blocks of some sizes, one thread.",
        leave: "The mix of sizes changes: pages stay with a class that is no longer requested.",
        source: "Wilson and others, Dynamic Storage Allocation, 1995; Alexandrescu, Modern C++ Design, 2001",
        more: "fragmentation",
    },
    CheatSheet {
        name: "first-fit",
        in_lab: Some(Name::FirstFit),
        sizes: "any",
        lifetimes: "any",
        worst: "O(free blocks)",
        waste: "tags; holes between blocks",
        ships: "FreeRTOS heap_4",
        idea: "One list of free blocks by address; the first one that is large enough is cut. Tags at both ends of a block find its \
               neighbours, and free ones become one.",
        costs: &[
            ("allocate", "a search of the list"),
            ("free", "O(1) next to a free block, else a search for the place"),
        ],
        take: "Memory is scarce and the heap small: it packs well.",
        leave: "Anything must happen in time: the search is as long as the list.",
        source: "Knuth, The Art of Computer Programming 1, section 2.5, 1968",
        more: "fifty-percent",
    },
    CheatSheet {
        name: "best-fit",
        in_lab: Some(Name::BestFit),
        sizes: "any",
        lifetimes: "any",
        worst: "O(free blocks)",
        waste: "tags; slivers between blocks",
        ships: "dlmalloc, by size classes",
        idea: "As first fit, but the smallest block that is large enough: the whole list is searched unless one fits exactly.",
        costs: &[
            ("allocate", "a search of the whole list"),
            ("free", "O(1) next to a free block, else a search for the place"),
        ],
        take: "Large blocks are to stay whole. With lists by size the search is short: that is dlmalloc.",
        leave: "As first fit, and more so.",
        source: "Knuth, The Art of Computer Programming 1, section 2.5, 1968; Lea, A Memory Allocator, 1996",
        more: "fifty-percent",
    },
    CheatSheet {
        name: "next-fit",
        in_lab: Some(Name::NextFit),
        sizes: "any",
        lifetimes: "any",
        worst: "O(free blocks)",
        waste: "tags; holes everywhere",
        ships: "the malloc of K&R",
        idea: "As first fit, but each search begins where the last one ended.",
        costs: &[
            ("allocate", "a search of the list, short on average"),
            ("free", "O(1) next to a free block, else a search for the place"),
        ],
        take: "Hardly: it spreads blocks of all ages over the whole heap.",
        leave: "Memory matters.",
        source: "Knuth, The Art of Computer Programming 1, section 2.5, 1968; Wilson and others, 1995",
        more: "fifty-percent",
    },
    CheatSheet {
        name: "buddy",
        in_lab: Some(Name::Buddy),
        sizes: "powers of two",
        lifetimes: "any",
        worst: "O(log heap)",
        waste: "up to half a block, a quarter on average",
        ships: "Linux's page allocator, GPU memory",
        idea: "Blocks are halved until one fits. Flipping a bit of a block's address gives its buddy; two free buddies are merged.",
        costs: &[("allocate", "a split for each halving"), ("free", "a merge for each doubling")],
        take: "Pages, and other sizes that are powers of two; below slabs.",
        leave: "Sizes just above a power of two: 65 bytes take 128.",
        source: "Knowlton, A Fast Storage Allocator, 1965",
        more: "buddy",
    },
    CheatSheet {
        name: "tlsf",
        in_lab: Some(Name::Tlsf),
        sizes: "any",
        lifetimes: "any",
        worst: "O(1)",
        waste: "a header; blocks passed over; holes",
        ships: "Unity's heap, Vulkan Memory Allocator",
        idea: "Free blocks in lists by size, in two levels: a doubling, and steps in it. Two bit scans find the first list in which every block fits.",
        costs: &[("allocate", "two bit scans, a split"), ("free", "a merge with either neighbour")],
        take: "Any size, and every single operation must be short: sound, control, frames.",
        leave: "Several threads, or millions of small blocks: it has one heap and a header a block.",
        source: "Masmano, Ripoll, Crespo and Real, TLSF, 2004",
        more: "tlsf",
    },
    CheatSheet {
        name: "slab",
        in_lab: Some(Name::Slab),
        sizes: "one a cache; any, by class",
        lifetimes: "any",
        worst: "O(1) from a magazine, else a slab's or a page's",
        waste: "to the next class; empty places in slabs",
        ships: "Linux, illumos, FreeBSD; uslab",
        idea: "Slabs of equal objects on pages of a buddy allocator; which objects are out stands beside them. Empty slabs give their pages back. \
               Magazines of objects serve each CPU.",
        costs: &[
            ("allocate", "a pop from this CPU's magazine; one in many visits the depot or a slab"),
            ("free", "a push; the same from any CPU"),
            ("shrink", "a step an empty slab"),
        ],
        take: "Many threads; objects that cost something to construct; memory that must go back.",
        leave: "One thread that frees all at once: linear is simpler.",
        source: "Bonwick, The Slab Allocator, 1994; Bonwick and Adams, Magazines and Vmem, 2001",
        more: "why-magazines",
    },
    CheatSheet {
        name: "system",
        in_lab: Some(Name::System),
        sizes: "any",
        lifetimes: "any",
        worst: "a search, a lock, a system call",
        waste: "8 to 16 bytes a block; holes",
        ships: "the C library",
        idea: "Whatever the program has as malloc. It is not looked into here: its calls are counted and timed.",
        costs: &[
            ("allocate", "a thread's own list at best; else bins, a lock, the system"),
            ("free", "the same"),
        ],
        take: "Until a measurement says that it is the problem.",
        leave: "One slow allocation in a thousand is one too many, or one size makes up most of all.",
        source: "Gloger and Lea, ptmalloc; the GNU C library's manual",
        more: "latency",
    },
    CheatSheet {
        name: "magazines",
        in_lab: None,
        sizes: "those of the underlying allocator",
        lifetimes: "any",
        worst: "the cost of the underlying allocator, once per magazine",
        waste: "the objects that wait in them",
        ships: "illumos, Linux 6.18 (sheaves); under every cache of uslab",
        idea: "Each CPU has two magazines, small stacks of objects. Full and empty ones are exchanged with a depot; so most operations touch \
               nothing that another CPU touches.",
        costs: &[
            ("allocate", "a pop; at most one exchange with the depot in a magazine's worth"),
            ("free", "a push; the same"),
        ],
        take: "Before any allocator that several CPUs share.",
        leave: "One CPU, or objects so large that a magazine of them is too much memory.",
        source: "Bonwick and Adams, Magazines and Vmem, 2001",
        more: "why-magazines",
    },
    CheatSheet {
        name: "handle-table",
        in_lab: None,
        sizes: "one a table",
        lifetimes: "any; names outlive objects",
        worst: "O(1), but for growth",
        waste: "4 or 8 bytes a slot; free slots",
        ships: "EnTT, Bevy, sokol; uslab::handle",
        idea: "A handle is an index and a generation that counts the lives of the slot. A comparison distinguishes a stale handle from a new one.",
        costs: &[
            ("allocate", "pop the head of a list"),
            ("free", "count the generation up"),
            ("look up", "a load and a compare more than an index"),
        ],
        take: "Many references point to an object, and another part of the program decides when it is freed.",
        leave: "The owner is known and outlives all references: a borrow costs nothing.",
        source: "Frykholm, Managing Decoupling Part 4: The ID Lookup Table, 2011; Weissflog, Handles are the better pointers, 2018",
        more: "handles",
    },
    CheatSheet {
        name: "slot-map",
        in_lab: None,
        sizes: "one a map",
        lifetimes: "any; names outlive objects",
        worst: "O(1), but for growth",
        waste: "12 or 20 bytes a slot; no free slots between values",
        ships: "the slotmap crate (dense); uslab::handle",
        idea: "Values without gaps, and two tables between them and their handles. A free moves the last value into the gap.",
        costs: &[
            ("allocate", "append"),
            ("free", "a copy of a value"),
            ("look up", "two loads more than an index"),
            ("visit all", "a slice"),
        ],
        take: "All are visited each frame, and some are named.",
        leave: "Values are large and are freed often: each free copies a value.",
        source: "Deutsch, P0661: slot_map, 2017; the pool article",
        more: "handles",
    },
    CheatSheet {
        name: "packed-array",
        in_lab: None,
        sizes: "one an array",
        lifetimes: "any; no names",
        worst: "O(1), but for growth",
        waste: "none between values",
        ships: "Vec::swap_remove; uslab::handle",
        idea: "Values without gaps, at 0 to their number. A free moves the last one into the gap: an index is good until the next free.",
        costs: &[("allocate", "append"), ("free", "a copy of a value"), ("visit all", "a slice")],
        take: "No references are kept: particles, sparks, events.",
        leave: "Anything names a value for longer than until the next free.",
        source: "the pool article (Arena pools: from naive pool to slot map)",
        more: "handles",
    },
];

/// Rows of advice: the use of objects in a program, the allocator to choose, and the page to read.
pub static ALLOCATOR_ADVICE: [[&str; 3]; 12] = [
    ["any", "end together: a frame, a request", "linear"],
    ["any", "nested: scopes within scopes", "stack"],
    ["one", "any order, one thread", "pool"],
    ["some small ones", "any order, one thread", "segregated"],
    ["one or many", "any order, many threads", "slab, with its magazines"],
    ["any", "any order, each operation must be short", "tlsf"],
    ["any", "any order, on average fast", "system, or slab as malloc"],
    ["pages and powers of two", "any order", "buddy"],
    ["one, visited each frame", "much churn, no references", "packed-array"],
    ["one, visited each frame", "some churn, named from elsewhere", "slot-map"],
    ["one, large or seldom visited", "much churn, named from elsewhere", "handle-table"],
    ["one, pointed to", "much churn, addresses must stay", "pool, or slab across threads"],
];

/// Returns the page called `name`.
pub fn of(name: &str) -> Option<&'static CheatSheet> {
    CHEAT_SHEETS.iter().find(|sheet| sheet.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lab_allocator_has_one_cheat_sheet_page() {
        for name in Name::ALL {
            let pages: Vec<_> = CHEAT_SHEETS.iter().filter(|sheet| sheet.in_lab == Some(name)).collect();
            assert!(matches!(pages[..], [page] if page.name == name.display_name()), "{name:?}: {pages:?}");
        }
        let mut names: Vec<_> = CHEAT_SHEETS.iter().map(|sheet| sheet.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHEAT_SHEETS.len(), "names differ");
    }

    #[test]
    fn cheat_sheet_advice_names_existing_pages() {
        for [.., take] in ALLOCATOR_ADVICE {
            let first = take.split([',', ' ']).next().unwrap();
            assert!(of(first).is_some(), "{take}");
        }
        assert!(of("bump").is_none());
    }
}
