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
        shows: "A block has one buddy, whose address differs in one bit. So a merge costs one list access for each order, and no search.",
        pitfall: "To merge once and not again with the larger block; to take the upper block's address for the merged one; to merge with a \
                  buddy that is free, but smaller.",
        starter: include_str!("starters/merge.rs"),
        judged_by: &[
            "No block is allocated twice or lost, and no request is refused while a large enough block is free.",
            "After each free no two buddies are free.",
            "Frees access the lists at most twice as often as necessary.",
        ],
    },
    CodeLab {
        name: "partial",
        title: "Write which partial slab serves",
        minutes: 60,
        about: "A slab goes back when all of its objects are free at once. Which slab an allocation takes from decides how often that \
                happens.",
        shows: "The fullest slab should serve: the emptiest ones then run dry of objects in use, and go. Sorting slabs into a few lists is \
                nearly as good as sorting them all.",
        pitfall: "To search for the fullest slab at each allocation, which costs a walk; to relist a slab at each free.",
        starter: include_str!("starters/partial.rs"),
        judged_by: &[
            "No object is allocated twice or lost.",
            "The mean number of slabs is at most 3 % above the mean of a good policy with few list accesses.",
            "An operation inspects slabs and moves them between lists at most 6 times on average; both count equally.",
            "When all objects are free, no slab is left.",
        ],
    },
    CodeLab {
        name: "exchange",
        title: "Write the exchange of magazines",
        minutes: 90,
        about: "A CPU allocates from its own magazines. What it does when these are empty, or full, decides how often it needs the depot's \
                lock, and whether two threads on one CPU get the same object.",
        shows: "With a loaded and a previous magazine, visits are at least M operations apart. The lock of a CPU is needed although nobody \
                else uses its magazines: threads can be moved.",
        pitfall: "To exchange the loaded magazine while the previous one would do; to give up a CPU's lock for the depot's and to go on as if \
                  nothing had changed; to take the locks in two orders.",
        starter: include_str!("starters/exchange.rs"),
        judged_by: &[
            "No object is allocated twice or lost.",
            "Visits to the depot are at most 2 % more than those of the paper's rules.",
            "Objects taken from slabs, while the depot or the CPU has objects, are at most 2 % more.",
            "Under loom each round has one owner in every order of the threads' steps, and no lock is waited for for ever.",
        ],
    },
    CodeLab {
        name: "reaping",
        title: "Write reaping",
        minutes: 45,
        about: "A depot's load changes over the day. How many of its full magazines are flushed, and when?",
        shows: "The minimum number of magazines in an interval is the number that was not needed. It follows a rising load immediately, and a falling load after an interval.",
        pitfall: "To reap a fraction of the magazines, whatever the load is; to reap magazines that were just freed.",
        starter: include_str!("starters/reaping.rs"),
        judged_by: &[
            "No object is allocated twice or lost.",
            "The costs are at most 5 % above those of the paper's working set: 2 for a full magazine that is kept for an interval, 1 for an \
             object that comes from a slab.",
        ],
    },
];
