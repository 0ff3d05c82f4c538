//! The course's programming labs, and their judges.

use crate::course::lab::{Code, Lab, Work};

/// A lab in which the student completes a source file.
pub(in crate::course) struct CodeLab {
    name: &'static str,
    title: &'static str,
    minutes: u32,
    about: &'static str,
    shows: &'static str,
    pitfall: &'static str,
    starter: &'static str,
    judged_by: &'static [&'static str],
}

impl CodeLab {
    pub(in crate::course) fn lab(&self) -> Lab {
        let Self { name, title, minutes, about, shows, pitfall, starter, judged_by } = *self;
        Lab { name, title, minutes, about, shows, pitfall, work: Work::Code(Code { starter, judged_by }) }
    }
}

pub(in crate::course) const LABS: [CodeLab; 4] = [
    CodeLab {
        name: "merge",
        title: "Write buddy merging",
        minutes: 45,
        about: "A page allocator splits blocks to serve requests. Freed blocks must be merged into large blocks again, or soon no large block is left.",
        shows: "A block has one buddy, whose address differs in one bit. A merge therefore costs one list access for each order, and no search.",
        pitfall: "To merge once, and not to merge the larger block again; to use the upper block's address for the merged block; to merge with a buddy that is free but was split into smaller blocks.",
        starter: include_str!("starters/merge.rs"),
        judged_by: &[
            "No block is allocated twice or lost, and no request is refused while a large enough block is free.",
            "After each free no two buddies are free.",
            "Frees access the lists at most twice as often as necessary.",
        ],
    },
    CodeLab {
        name: "partial",
        title: "Choose the partial slab that serves",
        minutes: 60,
        about: "A slab is returned to the page allocator when all of its objects are free. How often that happens depends on the slab that each allocation chooses.",
        shows: "The fullest slab should serve: the emptiest slabs then lose their last objects in use, and are freed. Sorting slabs into a few lists by fill is nearly as good as sorting them completely.",
        pitfall: "To search all slabs for the fullest one at each allocation; to move a slab to another list at each free.",
        starter: include_str!("starters/partial.rs"),
        judged_by: &[
            "No object is allocated twice or lost.",
            "The mean number of slabs is at most 3 % above the mean of a good policy with few list accesses.",
            "On average, an operation makes at most 6 inspections and moves of slabs; an inspection and a move between lists count equally.",
            "When all objects are free, no slab is left.",
        ],
    },
    CodeLab {
        name: "exchange",
        title: "Write the exchange of magazines",
        minutes: 90,
        about: "A CPU allocates from its own magazines. Its action when they are empty or full determines how often it needs the depot's lock, and if two threads on one CPU can get the same object.",
        shows: "With a loaded and a previous magazine of M objects, visits to the depot are at least M operations apart. Each CPU needs a lock although no other CPU uses its magazines, because a thread can be moved to another CPU during an operation.",
        pitfall: "To exchange the loaded magazine when the previous one could serve; to release a CPU's lock, take the depot's lock, and continue as if nothing had changed; to take the two locks in different orders.",
        starter: include_str!("starters/exchange.rs"),
        judged_by: &[
            "No object is allocated twice or lost.",
            "The depot is visited at most 2 % more often than by the paper's rules.",
            "At most 2 % more objects are taken from slabs than by the paper's rules.",
            "Under loom, in every order of the threads' steps, each round has one owner, and no thread waits for a lock forever.",
        ],
    },
    CodeLab {
        name: "reaping",
        title: "Write reaping",
        minutes: 45,
        about: "A depot's load changes over the day. How many of its full magazines are flushed, and when?",
        shows: "The smallest number of magazines that the depot had during an interval is the number that was not needed. This number follows a rising load immediately, and a falling load after one interval.",
        pitfall: "To reap a fraction of the magazines, whatever the load is; to reap magazines that were just freed.",
        starter: include_str!("starters/reaping.rs"),
        judged_by: &[
            "No object is allocated twice or lost.",
            "The cost is at most 5 % above the cost of the paper's working set. A full magazine that is kept for an interval costs 2, and an object that comes from a slab costs 1.",
        ],
    },
];
