//! Scripts: the operations of a simulation as numbers. A script is drawn from a seed, written as lines of text, and
//! shrunk if it fails.
//!
//! ```text
//! schedule 77                                    which thread runs when: `schedule::once`
//! setup nodes=1 pages=6 rseq=1                   unnamed numbers are 0, the simplest value
//! fault point=4 percent=10
//! cache size=700 capacity=2 depot=1 limit=3
//! thread                                         each executes its operations in order
//! alloc a=1 cpu=1
//! free cpu=1 at=2 abort=1                        on CPU 1; aborted and moved to CPU 0 at the second read of its number
//! thread
//! shrink
//! rest                                           all threads have arrived, and the census is taken
//! ```

use super::ops::WEIGHTED_OPERATIONS;
use std::collections::BTreeMap;
use std::fmt;
use uslab_magazine::sync::schedule::Rng;

/// Defines a line of a script: named numbers, each 0 by default.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident { $($(#[$what:meta])* $field:ident),+ })+) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name { $($(#[$what])* pub(crate) $field: u64),+ }
        impl $name {
            pub(super) fn numbers(&mut self) -> Vec<(&'static str, &mut u64)> {
                vec![$((stringify!($field), &mut self.$field)),+]
            }
            fn read(words: &str) -> Result<Self, String> {
                let mut read = Self::default();
                for word in words.split_whitespace() {
                    let (name, value) = word.split_once('=').ok_or(format!("`{word}`: expected name=number"))?;
                    let mut numbers = read.numbers();
                    let names: Vec<_> = numbers.iter().map(|(name, _)| *name).collect();
                    let number = numbers.iter_mut().find(|(known, _)| *known == name);
                    let (_, number) = number.ok_or(format!("`{word}`: expected one of {}", names.join(", ")))?;
                    **number = value.parse().map_err(|_| format!("`{word}`: expected a number"))?;
                }
                Ok(read)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut numbers = self.clone();
                let nonzero_numbers = numbers.numbers().into_iter().filter(|(_, number)| **number > 0);
                nonzero_numbers.map(|(name, number)| write!(f, " {name}={number}")).collect()
            }
        }
    )+ };
}
numbers! {
    /// Configuration of the simulated subsystem. Numbers outside the possible range are clamped.
    Setup {
        /// Number of CPUs in addition to the first.
        cpus,
        /// Number of nodes in addition to the first.
        nodes,
        /// 1 to use restartable sequences, or 0 to use the claimed slot.
        rseq,
        /// Number of pages of each node in addition to the first page.
        pages,
        /// Order of the largest block of pages.
        order,
        /// Largest order of slabs.
        slab_order,
        /// 1 if each CPU keeps pages, 0 otherwise.
        per_cpu,
        /// Number of free pages to keep, plus one; 0 keeps all free pages.
        keep,
        /// Number of objects in the reserve of a mempool; 0 for no mempool.
        pool,
        /// 1 to create kmalloc's caches, 0 otherwise.
        kmalloc,
        /// 1 if the pages are mapped from the system, 0 if they come from the heap.
        mapped,
        /// 1 if the shrinker is for the limit of the first cache, 0 if it is for all memory.
        hoard_limit
    }
    /// A fault rule, which refuses some calls.
    Fault {
        /// Index of the rule's fault point in `POINTS`.
        point, percent
    }
    CacheSetup {
        /// Number of bytes by which an object exceeds the minimum size.
        size,
        /// Capacity of the cache's magazines; 0 disables magazines.
        capacity, stock, depot,
        /// Maximum number of slabs; 0 for no limit.
        limit, ctor, reset, checked, stable, merge
    }
    /// Arguments of an operation, and the CPU and moves of its thread, as in `Script`.
    ScriptedOp { a, b, cpu, at, then, abort }
}

/// An operation: its index in [`WEIGHTED_OPERATIONS`], and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) arguments: ScriptedOp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) schedule: u64,
    pub(crate) setup: Setup,
    pub(crate) faults: Vec<Fault>,
    pub(crate) caches: Vec<CacheSetup>,
    /// Operations of each thread, in rounds; all threads are idle between two rounds.
    pub(crate) rounds: Vec<Vec<Vec<Op>>>,
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedule {}\nsetup{}", self.schedule, self.setup)?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "fault{fault}"))?;
        self.caches.iter().try_for_each(|cache| writeln!(f, "cache{cache}"))?;
        for threads in &self.rounds {
            for ops in threads {
                writeln!(f, "thread")?;
                ops.iter().try_for_each(|op| writeln!(f, "{}{}", op.name, op.arguments))?;
            }
            writeln!(f, "rest")?;
        }
        Ok(())
    }
}

impl Script {
    /// Parses a script in its text form, in which `#` begins a comment.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut read = Self::default();
        let mut threads: Vec<Vec<Op>> = vec![];
        for (number, line) in (1..).zip(text.lines()) {
            let bad = |error: String| format!("line {number}: {error}");
            let line = line.split('#').next().unwrap_or("").trim();
            let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
            match name {
                "" => {}
                "schedule" => {
                    read.schedule = rest.trim().parse().map_err(|_| bad("expected a number".into()))?
                }
                "setup" => read.setup = Setup::read(rest).map_err(bad)?,
                "fault" => read.faults.push(Fault::read(rest).map_err(bad)?),
                "cache" => read.caches.push(CacheSetup::read(rest).map_err(bad)?),
                "thread" => threads.push(vec![]),
                "rest" => read.rounds.push(std::mem::take(&mut threads)),
                name => {
                    let op = WEIGHTED_OPERATIONS
                        .iter()
                        .find(|op| op.0 == name)
                        .ok_or(bad(format!("`{name}`: unknown operation")))?;
                    let thread = threads.last_mut().ok_or(bad("expected `thread` before".into()))?;
                    thread.push(Op { name: op.0, arguments: ScriptedOp::read(rest).map_err(bad)? });
                }
            }
        }
        Ok(read)
    }

    /// Draws the script that belongs to a seed. A script uses only a few kinds of operations, some of them much more
    /// frequently than others. Mixes of all operations would all be similar (Groce et al., "Swarm Testing", ISSTA
    /// 2012).
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let chance = |rng: &mut Rng, percent| u64::from(rng.below(100) < percent);
        // Some simulated subsystems are for lock-free readers.
        let readers = chance(rng, 20);
        let cpus = rng.below(3);
        let setup = Setup {
            cpus,
            nodes: if cpus > 0 { chance(rng, 40) } else { 0 },
            rseq: chance(rng, 50),
            pages: [3, 5, 7, 11, 15][rng.below(5) as usize],
            order: 1 + rng.below(3),
            slab_order: [0, 0, 1, 2][rng.below(4) as usize],
            per_cpu: chance(rng, 50),
            keep: if chance(rng, 30) > 0 { 1 + rng.below(5) } else { 0 },
            pool: if chance(rng, 60) > 0 { 1 + rng.below(3) } else { 0 },
            kmalloc: chance(rng, 2),
            mapped: chance(rng, 10),
            hoard_limit: chance(rng, 30),
        };
        let faults = match rng.below(3) {
            0 => (0..1 + rng.below(2))
                .map(|_| {
                    // The fault point of constructors is excluded, because it panics, and the checker does not
                    // allow panics.
                    let point = [1, 2, 3, 4, 4, 5, 6, 6, 8][rng.below(9) as usize];
                    Fault { point, percent: [3, 10, 30][rng.below(3) as usize] }
                })
                .collect(),
            _ => vec![],
        };
        let caches = (0..1 + rng.below(3))
            .map(|_| {
                let ctor = readers.max(chance(rng, 40));
                CacheSetup {
                    size: [0, 100, 2000, 3000, 6000][rng.below(5) as usize],
                    capacity: [0, 1, 1, 2, 3][rng.below(5) as usize],
                    stock: rng.below(2),
                    depot: rng.below(3),
                    limit: if chance(rng, 40) > 0 { 1 + rng.below(3) } else { 0 },
                    ctor,
                    reset: ctor * chance(rng, 40),
                    checked: chance(rng, 30),
                    stable: readers.max(chance(rng, 20)),
                    merge: chance(rng, 20),
                }
            })
            .collect();
        // A script uses a few groups of operations, several groups, or half of all groups. Related operations happen
        // together often enough only if there are few groups.
        let one_of = [2, 4, 8][rng.below(3) as usize];
        let groups: BTreeMap<char, u64> = WEIGHTED_OPERATIONS
            .iter()
            .map(|(_, group, ..)| {
                let always = *group == 'o' || readers > 0 && "rgp".contains(*group);
                (*group, u64::from(always || rng.below(one_of) == 0) * (1 + rng.below(3)))
            })
            .collect();
        let weights: Vec<u64> =
            WEIGHTED_OPERATIONS.iter().map(|(_, group, weight, _)| groups[group] * weight).collect();
        let all: u64 = weights.iter().sum();
        let draw = |rng: &mut Rng| {
            let mut at = rng.below(all);
            let picked = weights.iter().position(|weight| match at.checked_sub(*weight) {
                Some(left) => {
                    at = left;
                    false
                }
                None => true,
            });
            let cpu = |rng: &mut Rng| rng.below(2 * (cpus + 1) + 1) / 2;
            let moves = chance(rng, 50);
            let arguments = ScriptedOp {
                a: rng.below(16),
                b: rng.below(16),
                cpu: cpu(rng),
                at: moves * [1, 1, 2, 3, 4, 6][rng.below(6) as usize],
                then: moves * cpu(rng),
                abort: moves * chance(rng, 50),
            };
            Op { name: WEIGHTED_OPERATIONS[picked.unwrap_or(0)].0, arguments }
        };
        let threads = 2 + rng.below(3);
        let max = [6, 12, 25][rng.below(3) as usize];
        let mut rounds: Vec<Vec<Vec<Op>>> = (0..1 + rng.below(2))
            .map(|_| (0..threads).map(|_| (0..1 + rng.below(max)).map(|_| draw(rng)).collect()).collect())
            .collect();
        if chance(rng, 10) > 0 {
            // The fork of a child is the last operation.
            let ops = rounds.last_mut().and_then(|threads| threads.last_mut());
            ops.into_iter().for_each(|ops| ops.push(Op { name: "child", arguments: draw(rng).arguments }));
        }
        Self { schedule: rng.next() >> 1, setup, faults, caches, rounds }
    }

    /// Finds a small script that fails in the same way as this script. Shrinking removes rounds, threads, operations
    /// and faults, and lowers numbers, as long as `fails` returns a schedule under which the smaller script fails.
    pub(crate) fn shrink(self, fails: impl Fn(&Self) -> Option<u64>) -> Self {
        let mut best = self;
        loop {
            let before = best.clone();
            for rounds in 0..best.rounds.len() {
                best.try_script_reduction(&fails, |script| {
                    _ = (rounds < script.rounds.len()).then(|| script.rounds.remove(rounds))
                });
            }
            // Removes chunks of operations from all threads' list: first half of the list, then a quarter, and so on
            // down to one operation.
            let mut chunk = best.ops().count().next_power_of_two();
            while chunk > 0 {
                let mut at = 0;
                while at < best.ops().count() {
                    let smaller = best.try_script_reduction(&fails, |script| {
                        let mut number = 0;
                        let gone = |_: &Op| {
                            number += 1;
                            !(at..at + chunk).contains(&(number - 1))
                        };
                        script.retain(gone);
                    });
                    at += if smaller { 0 } else { chunk };
                }
                chunk /= 2;
            }
            best.try_script_reduction(&fails, |script| {
                script.rounds.iter_mut().for_each(|round| round.retain(|ops| !ops.is_empty()))
            });
            best.try_script_reduction(&fails, |script| script.rounds.retain(|round| !round.is_empty()));
            best.try_script_reduction(&fails, |script| script.faults.clear());
            for faults in 0..best.faults.len() {
                best.try_script_reduction(&fails, |script| {
                    _ = (faults < script.faults.len()).then(|| script.faults.remove(faults))
                });
            }
            best.try_script_reduction(&fails, |script| _ = script.caches.pop());
            for number in 0..best.numbers().len() {
                for smaller in [0, 1] {
                    if *best.numbers()[number] > smaller {
                        best.try_script_reduction(&fails, |script| *script.numbers()[number] = smaller);
                    }
                }
            }
            if best == before {
                return best;
            }
        }
    }
    fn try_script_reduction(
        &mut self,
        fails: &impl Fn(&Self) -> Option<u64>,
        change: impl FnOnce(&mut Self),
    ) -> bool {
        let mut changed = self.clone();
        change(&mut changed);
        if changed == *self {
            return false;
        }
        let Some(schedule) = fails(&changed) else { return false };
        *self = Self { schedule, ..changed };
        true
    }
    pub(crate) fn ops(&self) -> impl Iterator<Item = &Op> {
        self.rounds.iter().flatten().flatten()
    }
    fn retain(&mut self, mut stays: impl FnMut(&Op) -> bool) {
        self.rounds.iter_mut().flatten().for_each(|ops| ops.retain(&mut stays));
    }
    fn numbers(&mut self) -> Vec<&mut u64> {
        let numbers =
            self.setup.numbers().into_iter().chain(self.caches.iter_mut().flat_map(CacheSetup::numbers));
        let arguments = self.rounds.iter_mut().flatten().flatten().flat_map(|op| op.arguments.numbers());
        numbers.chain(arguments).map(|(_, number)| number).collect()
    }
}
