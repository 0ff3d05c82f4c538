//! Finds all restartable sequences in the memory of the running program, including inlined copies, and checks them. A
//! separate file describes the instructions of each processor architecture.
//!
//! The function [`check`] verifies the properties that make it safe to restart a section. The kernel may abort a
//! restartable section before any of its instructions. An aborted section runs again from its *restart label*;
//! registers and memory have the values that the aborted attempt left. A register, a flag or a memory operand is *live*
//! at the restart label if the code after the label may read it before writing it. Before its commit, a section must
//! not write to anything live, because a second attempt would read the changed value.
//!
//! A batch that widens its stack is an exception: it writes the new `cap` to the word next to the head, and then
//! commits the head. The exception is safe because a reader accepts any `cap` that a section has computed from the
//! values that it has read. A section that uses the exception must store a new value to `cap`; adding to the old value
//! is not allowed.
//!
//! Liveness is computed on the machine code, from the restart label through the section and beyond it, along all direct
//! jumps. The liveness analysis of a path ends at a call, a return, an indirect jump or an unknown instruction. The
//! analysis tracks registers and flags exactly. A memory operand is identified by its text, so two different texts for
//! the same address count as two operands.

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
pub(crate) use processor::{Code, Instruction, Register, SIGNATURE, TRAP_CODE, synchronize_code};

/// The kernel's `struct rseq_cs`, which describes a section.
#[repr(C, align(32))]
struct Descriptor {
    version: u32,
    flags: u32,
    start: usize,
    len: usize,
    abort: usize,
}

/// A restartable sequence: its addresses and its instructions. The last instruction is the commit of the sequence.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) code: Range<usize>,
    pub(crate) instructions: Vec<Instruction>,
    abort: usize,
    descriptor: usize,
}

/// The operation that a section does; see `PcpuPtr` in the magazine crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pop,
    Push,
    PushBatch,
    PopBatch,
}

/// The registers of a section's operands, which are all different; the fields have the names of the operands in the
/// source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SectionOperands {
    pub(crate) kind: Kind,
    pub(crate) area: Register,
    pub(crate) words: Register,
    pub(crate) stack: Register,
    /// The register `round` that a pop writes; in a batch operation, the register `rounds` or `into`.
    pub(crate) rounds: Register,
    /// The register `count` of a batch operation.
    pub(crate) count: Option<Register>,
}

/// Where execution continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlFlowTarget {
    Next,
    /// The instruction is a conditional branch, or an unconditional jump, to an address.
    Branch(usize),
    Jump(usize),
    /// The instruction is a call, a return, or an indirect jump.
    Away,
}

/// A register, flag or memory operand that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operand {
    Register(Register),
    Flag(u32),
    Memory(Memory),
}

/// The effects of one instruction. Each operand that the instruction always writes is also in `may_write`.
#[derive(Clone, Debug, Default)]
struct Effect {
    reads: HashSet<Operand>,
    may_write: HashSet<Operand>,
    writes: HashSet<Operand>,
}

/// Returns all sections of this program, in the order of their start addresses.
///
/// # Panics
/// Panics if a descriptor is invalid, or if the end of a section is not the end of an instruction.
pub(crate) fn all() -> Vec<Section> {
    let mut sections: Vec<Section> = descriptors().iter().map(|descriptor| Section::of(descriptor)).collect();
    sections.sort_by_key(|section| section.code.start);
    sections
}

/// Returns the array `__rseq_cs_ptr_array`, in which the linker collects the descriptors of all sections.
fn descriptors() -> &'static [&'static Descriptor] {
    unsafe extern "C" {
        #[link_name = "__start___rseq_cs_ptr_array"]
        static FIRST: &'static Descriptor;
        #[link_name = "__stop___rseq_cs_ptr_array"]
        static END: &'static Descriptor;
    }
    let (first, end) = (&raw const FIRST, &raw const END);
    // SAFETY: the linker defines both symbols as the bounds of one array of addresses of descriptors, which is never
    // written.
    unsafe { core::slice::from_raw_parts(first, end.offset_from(first) as usize) }
}

impl Section {
    fn of(descriptor: &Descriptor) -> Self {
        let Descriptor { version, flags, start, len, abort } = *descriptor;
        let descriptor = core::ptr::from_ref(descriptor).addr();
        assert_eq!((version, flags), (0, 0), "the section at {start:#x} must have version 0 and no flags");
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

    /// Returns a name for an instruction of a section, for messages.
    pub(crate) fn name(&self, instruction: &Instruction) -> String {
        let at = instruction.ip() - self.code.start;
        format!("section at {:#x}, +{at:#x} `{instruction}`", self.code.start)
    }

    fn effect(&self, instruction: &Instruction) -> Effect {
        instruction.effect().unwrap_or_else(|| panic!("{}: unknown instruction", self.name(instruction)))
    }

    /// Returns the instructions from the abort address to the section's start in execution order, and the restart
    /// label, which is the target of the first jump. The instructions before the first jump run only after an abort;
    /// the instructions from the restart label on also run when the section is entered.
    fn abort_path(&self) -> (Vec<Instruction>, usize) {
        let (mut way, mut restart, mut ip) = (vec![], None, self.abort);
        while ip != self.code.start {
            let instruction = Instruction::at(ip);
            ip = match instruction.flow() {
                ControlFlowTarget::Next => instruction.next(),
                ControlFlowTarget::Jump(target) => {
                    restart.get_or_insert(target);
                    target
                }
                // The retry loop of the abort counter.
                ControlFlowTarget::Branch(target) if (self.abort..ip).contains(&target) => instruction.next(),
                _ => panic!("{}: the abort handler must jump to the start", self.name(&instruction)),
            };
            way.push(instruction);
            assert!(
                way.len() < 32,
                "the section at {:#x}: the abort handler does not return to the start",
                self.code.start
            );
        }
        (way, restart.unwrap_or(self.code.start))
    }

    /// Returns the restart label: the section runs from here when it is entered, and again after an abort.
    pub(crate) fn restart(&self) -> usize {
        self.abort_path().1
    }

    /// Returns all instructions of the section after the restart label.
    fn instructions(&self) -> Vec<Instruction> {
        let (way, restart) = self.abort_path();
        let ahead = way.into_iter().filter(|one| (restart..self.code.start).contains(&one.ip()));
        ahead.chain(self.instructions.iter().copied()).collect()
    }

    /// Returns the address outside the section, other than its end, to which the section jumps without a commit.
    pub(crate) fn miss_target(&self) -> Option<usize> {
        let mut out = self.instructions.iter().filter_map(|instruction| match instruction.flow() {
            ControlFlowTarget::Branch(target) if target != self.code.end && !self.code.contains(&target) => {
                Some(target)
            }
            _ => None,
        });
        let miss = out.next();
        assert!(
            out.all(|other| Some(other) == miss),
            "the section at {:#x} has two addresses for a miss",
            self.code.start
        );
        miss
    }

    /// Finds the operation and the operand registers of the section from its instructions. The result is a guess, so
    /// the callers must verify it.
    pub(crate) fn operands(&self) -> SectionOperands {
        let operands = self.read_operands().unwrap_or_else(|what| {
            panic!("the section at {:#x} has no {what}", self.code.start);
        });
        let SectionOperands { area, words, stack, rounds, count, .. } = operands;
        let all: Vec<Register> = [area, words, stack, rounds].into_iter().chain(count).collect();
        let distinct: HashSet<_> = all.iter().filter(|one| processor::is_general_purpose(**one)).collect();
        assert_eq!(distinct.len(), all.len(), "the section at {:#x}: operands {all:?}", self.code.start);
        operands
    }

    /// Returns the comparison before the backward jump at the end of a batch's loop.
    fn batch_loop_comparison(&self) -> Option<&Instruction> {
        let back = |one: &&[Instruction]| {
            matches!(one[1].flow(), ControlFlowTarget::Branch(target)
                if self.code.contains(&target) && target < one[1].ip() && one[0].compares())
        };
        self.instructions.windows(2).find(back).map(|one| &one[0])
    }

    /// Returns the JSON description of a section, from which a proof is made.
    fn json(&self) -> Value {
        let (abort_path, restart) = self.abort_path();
        let SectionOperands { kind, area, words, stack, rounds, count } = self.operands();
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
            "miss": self.miss_target(),
            "descriptor": self.descriptor,
            "kind": format!("{kind:?}"),
            "operands": operands,
            "form": self.form(),
            "way_back": abort_path.iter().map(Instruction::json).collect::<Vec<_>>(),
            "code": self.instructions.iter().map(Instruction::json).collect::<Vec<_>>(),
        })
    }

    /// Returns the registers, flags and memory operands that are read before they are written, on some path from the
    /// restart label. The result is the least solution of `live = reads + (live after - writes)` over all reachable
    /// instructions; `live after` is what is live in the following instructions.
    fn live(&self) -> HashSet<Operand> {
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
                effect.reads.retain(|place| !matches!(place, Operand::Memory(_)));
            }
            let behind = match instruction.flow() {
                ControlFlowTarget::Next => vec![instruction.next()],
                ControlFlowTarget::Jump(target) => vec![target],
                ControlFlowTarget::Branch(target) => vec![instruction.next(), target],
                ControlFlowTarget::Away => vec![],
            };
            todo.extend(&behind);
            code.insert(ip, (effect, behind));
        }
        let mut live: BTreeMap<usize, HashSet<Operand>> = BTreeMap::new();
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

    /// Panics if the section cannot be restarted after an abort at some instruction. Returns the number of stores
    /// before the commit, whose values survive an abort.
    fn check(&self) -> usize {
        let start = self.code.start;
        assert!(!self.code.contains(&self.abort), "the section at {start:#x} contains its abort address");
        // SAFETY: the bytes before an abort address are code of this program.
        let signature = unsafe { ((self.abort - 4) as *const u32).read_unaligned() };
        assert_eq!(signature, SIGNATURE, "the section at {start:#x}: the signature before the abort address");
        let (commit, before) = self.instructions.split_last().expect("a section must have instructions");
        let committed = self.effect(commit).may_write;
        assert!(
            committed.iter().any(|place| matches!(place, Operand::Memory(_))),
            "{}: the last instruction must be the committing store",
            self.name(commit)
        );
        for instruction in &self.instructions {
            let inside = instruction.flow() != ControlFlowTarget::Away;
            assert!(inside, "{}: a section must not contain a call or a system call", self.name(instruction));
        }
        let live = self.live();
        let is_cap = |place: &Operand| match place {
            Operand::Memory(cap) => {
                committed.iter().any(|head| matches!(head, Operand::Memory(head) if cap.is_cap_after(head)))
            }
            _ => false,
        };
        let (mut survive, (abort_path, _)) = (0, self.abort_path());
        for (i, instruction) in abort_path.iter().chain(before).enumerate() {
            let mut effect = self.effect(instruction);
            if i < abort_path.len() && instruction.is_abort_counter_instruction() {
                effect.may_write.retain(|place| !matches!(place, Operand::Memory(_)));
            }
            for place in effect.may_write.iter().filter(|place| live.contains(place)) {
                assert!(
                    is_cap(place) && !effect.reads.contains(place),
                    "{}: writes {place:?} before the commit, but a restart reads it again",
                    self.name(instruction)
                );
                survive += 1;
            }
        }
        survive
    }
}

/// Writes all sections of this program to the file that `USLAB_SECTIONS` names; the script `tests/sections/prove.py`
/// proves them correct. The parameter `beside` contains all other fields that the proof needs.
pub(crate) fn write_sections_file(mut beside: Value) {
    beside["architecture"] = std::env::consts::ARCH.into();
    beside["sections"] = all().iter().map(Section::json).collect();
    let file = std::env::var_os("USLAB_SECTIONS").expect("USLAB_SECTIONS: expected the name of a file");
    std::fs::write(file, beside.to_string()).expect("the file of USLAB_SECTIONS must be writable");
}

/// The totals of [`check`] over all sections.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) sections: usize,
    pub(crate) instructions: usize,
    /// The number of stores before a commit; their values survive an abort.
    pub(crate) survive: usize,
}

/// Checks that every section of this program can be restarted after an abort at any of its instructions. Prints the
/// totals over all sections, and returns them.
///
/// # Panics
/// Panics if a section cannot be restarted.
pub(crate) fn check() -> Checked {
    let sections = all();
    let survive = sections.iter().map(Section::check).sum();
    let instructions = sections.iter().map(|section| section.instructions.len()).sum();
    println!(
        "{} sections, {instructions} instructions: no section writes data that its restart reads, except {survive} widenings",
        sections.len()
    );
    Checked { sections: sections.len(), instructions, survive }
}

/// Runs the check on a sample section that is never executed; returns the check's message, which is empty if the check
/// passes.
fn verdict(sample: &'static Descriptor) -> String {
    let checked = uslab_sync::catch_panic(|| Section::of(sample).check());
    checked.err().map_or(String::new(), |said| *said.downcast::<String>().expect("a message"))
}
