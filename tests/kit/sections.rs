//! Finds and checks the restartable sequences of the running program in its memory: all of them, from every crate, with
//! the inlined copies. The instructions of each processor are described in a separate file.
//!
//! [`check`] verifies the properties on which the kernel and a restart rely. A section may be aborted before any of its
//! instructions. An aborted section runs again from its *restart label*, with the registers and memory of the aborted
//! attempt. A place is *live* at the restart label if it is read from there on before it is written. A section must not
//! write a live place before its commit, because the second attempt would read the changed value.
//!
//! One store is an exception: a batch that widens its stack writes the new `cap` in the word next to the head that it
//! commits. Every reader accepts any `cap` computed from what the section has read. The section must store `cap` and
//! not add to it.
//!
//! Liveness is computed on the machine code, from the restart label through the section and beyond, along all direct
//! jumps. The analysis ends at calls, returns, indirect jumps and unknown instructions. Registers and flags are tracked
//! exactly. A place in memory is identified by the operand that names it, so two operands for one address count as
//! different places.

use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

#[cfg(target_arch = "aarch64")]
#[path = "sections/aarch64.rs"]
mod processor;
#[cfg(target_arch = "x86_64")]
#[path = "sections/x86_64.rs"]
mod processor;
use processor::Memory;
pub(crate) use processor::{Code, Instruction, Register, SIGNATURE, TRAP, written};

/// The kernel's `struct rseq_cs`.
#[repr(C, align(32))]
struct Descriptor {
    version: u32,
    flags: u32,
    start: usize,
    len: usize,
    abort: usize,
}

/// A section: its addresses and its instructions. The last instruction is the commit.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) code: Range<usize>,
    pub(crate) instructions: Vec<Instruction>,
    abort: usize,
    descriptor: usize,
}

/// The operation of a section; see `PcpuPtr` of the magazines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pop,
    Push,
    PushBatch,
    PopBatch,
}

/// The registers that hold a section's operands, by their names in the source. The registers are all different.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub(crate) kind: Kind,
    pub(crate) area: Register,
    pub(crate) words: Register,
    pub(crate) stack: Register,
    /// The register `round` that a pop writes, or `rounds` or `into` of a batch.
    pub(crate) rounds: Register,
    /// The register `count` of a batch.
    pub(crate) count: Option<Register>,
}

/// The place where execution continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    /// A conditional branch, and an unconditional jump, to an address.
    Branch(usize),
    Jump(usize),
    /// A call, a return, or a jump to an address that the instruction does not contain.
    Away,
}

/// A place that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// A whole register.
    Register(Register),
    Flag(u32),
    Memory(Memory),
}

/// The effects of one instruction. The places that the instruction always writes are also in `may_write`.
#[derive(Clone, Debug, Default)]
struct Effect {
    reads: HashSet<Place>,
    may_write: HashSet<Place>,
    writes: HashSet<Place>,
}

/// Returns all sections of this program, in the order of their addresses.
///
/// # Panics
/// Panics if a descriptor is invalid or a section does not end at the end of an instruction.
pub(crate) fn all() -> Vec<Section> {
    let mut sections: Vec<Section> = descriptors().iter().map(|descriptor| Section::of(descriptor)).collect();
    sections.sort_by_key(|section| section.code.start);
    sections
}

/// Returns the array `__rseq_cs_ptr_array`, which the linker gathers, and in which every section announces its
/// descriptor.
fn descriptors() -> &'static [&'static Descriptor] {
    unsafe extern "C" {
        #[link_name = "__start___rseq_cs_ptr_array"]
        static FIRST: &'static Descriptor;
        #[link_name = "__stop___rseq_cs_ptr_array"]
        static END: &'static Descriptor;
    }
    let (first, end) = (&raw const FIRST, &raw const END);
    // SAFETY: the linker defines both symbols as the bounds of one array of addresses of descriptors, which is never written.
    unsafe { core::slice::from_raw_parts(first, end.offset_from(first) as usize) }
}

impl Section {
    fn of(descriptor: &Descriptor) -> Self {
        let Descriptor { version, flags, start, len, abort } = *descriptor;
        let descriptor = core::ptr::from_ref(descriptor).addr();
        assert_eq!(
            (version, flags),
            (0, 0),
            "the section at {start:#x}: the kernel knows version 0 without flags"
        );
        let code = start..start + len;
        let mut instructions = vec![];
        let mut ip = start;
        while ip < code.end {
            let instruction = Instruction::at(ip);
            ip = instruction.next();
            instructions.push(instruction);
        }
        assert_eq!(ip, code.end, "the section at {start:#x} ends inside an instruction");
        Self { code, instructions, abort, descriptor }
    }

    /// Returns the name of a section's instruction for messages.
    pub(crate) fn name(&self, instruction: &Instruction) -> String {
        let at = instruction.ip() - self.code.start;
        format!("section at {:#x}, +{at:#x} `{instruction}`", self.code.start)
    }

    fn effect(&self, instruction: &Instruction) -> Effect {
        instruction.effect().unwrap_or_else(|| panic!("{}: not known here", self.name(instruction)))
    }

    /// Returns the instructions from the abort address to the start of the section, in the order in which they run, and
    /// the restart label's address: the target of the first jump. The instructions before that jump run only after an
    /// abort; the instructions from the restart label on also run without one.
    fn abort_path(&self) -> (Vec<Instruction>, usize) {
        let (mut way, mut restart, mut ip) = (vec![], None, self.abort);
        while ip != self.code.start {
            let instruction = Instruction::at(ip);
            ip = match instruction.flow() {
                Flow::Next => instruction.next(),
                Flow::Jump(target) => {
                    restart.get_or_insert(target);
                    target
                }
                // The retry loop of the abort counter.
                Flow::Branch(target) if (self.abort..ip).contains(&target) => instruction.next(),
                _ => panic!("{}: an abort goes straight back to the start", self.name(&instruction)),
            };
            way.push(instruction);
            assert!(way.len() < 32, "the section at {:#x}: an abort does not come back", self.code.start);
        }
        (way, restart.unwrap_or(self.code.start))
    }

    /// Returns the label where the section starts, and where it runs again after an abort.
    pub(crate) fn restart(&self) -> usize {
        self.abort_path().1
    }

    /// Returns all instructions from the restart label on.
    fn whole(&self) -> Vec<Instruction> {
        let (way, restart) = self.abort_path();
        let ahead = way.into_iter().filter(|one| (restart..self.code.start).contains(&one.ip()));
        ahead.chain(self.instructions.iter().copied()).collect()
    }

    /// Returns the address to which the section jumps without a commit, other than its end.
    pub(crate) fn miss(&self) -> Option<usize> {
        let mut out = self.instructions.iter().filter_map(|instruction| match instruction.flow() {
            Flow::Branch(target) if target != self.code.end && !self.code.contains(&target) => Some(target),
            _ => None,
        });
        let miss = out.next();
        assert!(
            out.all(|other| Some(other) == miss),
            "the section at {:#x} misses to two places",
            self.code.start
        );
        miss
    }

    /// Reads the section's operation and operand registers from its instructions. The result is heuristic: callers must
    /// verify that the section does this with these registers.
    pub(crate) fn operands(&self) -> Operands {
        let operands = self.read_operands().unwrap_or_else(|what| {
            panic!("the section at {:#x} has no {what}", self.code.start);
        });
        let Operands { area, words, stack, rounds, count, .. } = operands;
        let all: Vec<Register> = [area, words, stack, rounds].into_iter().chain(count).collect();
        let distinct: HashSet<_> = all.iter().filter(|one| processor::is_general(**one)).collect();
        assert_eq!(distinct.len(), all.len(), "the section at {:#x}: operands {all:?}", self.code.start);
        operands
    }

    /// Returns the compare before a backward jump, which ends the loop of a batch.
    fn loop_end(&self) -> Option<&Instruction> {
        let back = |one: &&[Instruction]| {
            matches!(one[1].flow(), Flow::Branch(target)
                if self.code.contains(&target) && target < one[1].ip() && one[0].compares())
        };
        self.instructions.windows(2).find(back).map(|one| &one[0])
    }

    /// Returns the description that a proof needs.
    fn json(&self) -> Value {
        let (abort_path, restart) = self.abort_path();
        let Operands { kind, area, words, stack, rounds, count } = self.operands();
        let name = processor::name;
        let mut operands = json!({
            "area": name(area), "words": name(words), "stack": name(stack), "rounds": name(rounds),
        });
        if let Some(count) = count {
            operands["count"] = name(count);
        }
        json!({
            "start": self.code.start,
            "end": self.code.end,
            "abort": self.abort,
            "restart": restart,
            "miss": self.miss(),
            "descriptor": self.descriptor,
            "kind": format!("{kind:?}"),
            "operands": operands,
            "form": self.form(),
            "way_back": abort_path.iter().map(Instruction::json).collect::<Vec<_>>(),
            "code": self.instructions.iter().map(Instruction::json).collect::<Vec<_>>(),
        })
    }

    /// Returns the places that are read before they are written, from the restart label on. The result is the least
    /// solution of `live = reads + (live after it - writes)` over all reachable instructions.
    fn live(&self) -> HashSet<Place> {
        let restart = self.restart();
        let (mut code, mut todo) = (BTreeMap::new(), vec![restart]);
        while let Some(ip) = todo.pop() {
            if code.contains_key(&ip) {
                continue;
            }
            let (instruction, own) =
                (Instruction::at(ip), ip >= restart && ip < self.code.start || self.code.contains(&ip));
            let mut effect = match instruction.effect() {
                Some(effect) => effect,
                None if own => self.effect(&instruction),
                None => continue,
            };
            if !own {
                // After a register is written, an operand with that register names another place.
                effect.reads.retain(|place| !matches!(place, Place::Memory(_)));
            }
            let behind = match instruction.flow() {
                Flow::Next => vec![instruction.next()],
                Flow::Jump(target) => vec![target],
                Flow::Branch(target) => vec![instruction.next(), target],
                Flow::Away => vec![],
            };
            todo.extend(&behind);
            code.insert(ip, (effect, behind));
        }
        let mut live: BTreeMap<usize, HashSet<Place>> = BTreeMap::new();
        loop {
            let mut changed = false;
            for (ip, (effect, behind)) in code.iter().rev() {
                let mut now = effect.reads.clone();
                for place in behind.iter().filter_map(|next| live.get(next)).flatten() {
                    if !effect.writes.contains(place) {
                        now.insert(*place);
                    }
                }
                changed |= live.get(ip) != Some(&now);
                live.insert(*ip, now);
            }
            if !changed {
                return live.remove(&restart).unwrap_or_default();
            }
        }
    }

    /// Panics unless the section can be restarted at any of its instructions. Returns the number of places that the
    /// section writes and that survive an abort.
    fn check(&self) -> usize {
        let start = self.code.start;
        assert!(!self.code.contains(&self.abort), "the section at {start:#x}: its abort address lies in it");
        // SAFETY: the bytes before an abort address are code of this program.
        let signature = unsafe { ((self.abort - 4) as *const u32).read_unaligned() };
        assert_eq!(signature, SIGNATURE, "the section at {start:#x}: in front of the abort address");
        let (commit, before) = self.instructions.split_last().expect("a section has instructions");
        let committed = self.effect(commit).may_write;
        assert!(
            committed.iter().any(|place| matches!(place, Place::Memory(_))),
            "{}: the last instruction is the commit, which stores",
            self.name(commit)
        );
        for instruction in &self.instructions {
            let inside = instruction.flow() != Flow::Away;
            assert!(inside, "{}: a section calls nothing, the kernel neither", self.name(instruction));
        }
        let live = self.live();
        let is_cap = |place: &Place| match place {
            Place::Memory(cap) => {
                committed.iter().any(|head| matches!(head, Place::Memory(head) if cap.is_cap_beside(head)))
            }
            _ => false,
        };
        let (mut survive, (abort_path, _)) = (0, self.abort_path());
        for (i, instruction) in abort_path.iter().chain(before).enumerate() {
            let mut effect = self.effect(instruction);
            if i < abort_path.len() && instruction.is_of_a_counter() {
                effect.may_write.retain(|place| !matches!(place, Place::Memory(_)));
            }
            for place in effect.may_write.iter().filter(|place| live.contains(place)) {
                assert!(
                    is_cap(place) && !effect.reads.contains(place),
                    "{}: writes {place:?} before the commit, which a restart reads again",
                    self.name(instruction)
                );
                survive += 1;
            }
        }
        survive
    }
}

/// Writes all sections of this program to the file that `USLAB_SECTIONS` names, for their proof
/// (`tests/sections/prove.py`). `beside` holds the other fields that the proof needs.
pub(crate) fn write_down(mut beside: Value) {
    beside["architecture"] = std::env::consts::ARCH.into();
    beside["sections"] = all().iter().map(Section::json).collect();
    let file = std::env::var_os("USLAB_SECTIONS").expect("USLAB_SECTIONS: expected the name of a file");
    std::fs::write(file, beside.to_string()).expect("the file of USLAB_SECTIONS");
}

/// Totals of [`check`].
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) sections: usize,
    pub(crate) instructions: usize,
    /// The number of stores before a commit that survive an abort.
    pub(crate) survive: usize,
}

/// Checks that every section of this program can be restarted at any of its instructions. Prints and returns the totals.
///
/// # Panics
/// Panics if a section cannot be restarted.
pub(crate) fn check() -> Checked {
    let sections = all();
    let survive = sections.iter().map(Section::check).sum();
    let instructions = sections.iter().map(|section| section.instructions.len()).sum();
    println!(
        "{} sections, {instructions} instructions: none writes what its restart reads, but for {survive} widenings",
        sections.len()
    );
    Checked { sections: sections.len(), instructions, survive }
}

/// Returns the check's message about a sample section that never runs; empty if it passes.
fn verdict(sample: &'static Descriptor) -> String {
    let checked = uslab_sync::catch_panic(|| Section::of(sample).check());
    checked.err().map_or(String::new(), |said| *said.downcast::<String>().expect("a message"))
}
