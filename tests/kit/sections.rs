//! The restartable sequences of the running program, as its own memory has them: all that are compiled into it, the inlined
//! copies included, whichever crate they come from. What knows instructions is a file for each processor.
//!
//! [`check`] shows for each one what the kernel and the restart rely on. A section may be aborted before any of its
//! instructions and is then run again from its *restart label*, with registers and memory as the aborted attempt left them.
//! So whatever is live at the restart label, that is read from there on before it is written, must not be written before the
//! commit: it would not be what it was.
//!
//! One store is excepted: a batch that widens its stack writes the new `cap` beside the head that it commits. Any value there
//! that was worked out from what the section has read is a right one, whoever reads it; so it must be stored, not added to.
//!
//! Liveness is looked for in the machine code: from the restart label through the section and behind it, along all direct
//! jumps, up to calls, returns, indirect jumps and instructions that are not known. Registers and flags are exact. A place in
//! memory is the operand that names it: two names of one place are not recognised.

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

/// `struct rseq_cs` of the kernel.
#[repr(C, align(32))]
struct Descriptor {
    version: u32,
    flags: u32,
    start: usize,
    len: usize,
    abort: usize,
}

/// One section: where it is, and its instructions. The last one is the commit.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) code: Range<usize>,
    pub(crate) instructions: Vec<Instruction>,
    abort: usize,
    descriptor: usize,
}

/// What a section does; see `PcpuPtr` of the magazines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pop,
    Push,
    PushBatch,
    PopBatch,
}

/// The registers in which a section has its operands, by their names in the source. Each is another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub(crate) kind: Kind,
    pub(crate) area: Register,
    pub(crate) words: Register,
    pub(crate) stack: Register,
    /// `round`, which a pop writes; of a batch `rounds` or `into`.
    pub(crate) rounds: Register,
    /// Of a batch.
    pub(crate) count: Option<Register>,
}

/// Where an instruction goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    /// To an address, on a condition or not.
    Branch(usize),
    Jump(usize),
    /// A call, a return, an address that is not written there.
    Away,
}

/// What an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// A whole register.
    Register(Register),
    Flag(u32),
    Memory(Memory),
}

/// The effects of one instruction. What it surely writes, it also may write.
#[derive(Clone, Debug, Default)]
struct Effect {
    reads: HashSet<Place>,
    may_write: HashSet<Place>,
    writes: HashSet<Place>,
}

/// All sections of this program, in the order of their addresses.
///
/// # Panics
/// When a descriptor is none, or a section does not end where an instruction does.
pub(crate) fn all() -> Vec<Section> {
    let mut sections: Vec<Section> = descriptors().iter().map(|descriptor| Section::of(descriptor)).collect();
    sections.sort_by_key(|section| section.code.start);
    sections
}

/// What the linker gathered in `__rseq_cs_ptr_array`, where every section announces its descriptor.
fn descriptors() -> &'static [&'static Descriptor] {
    unsafe extern "C" {
        #[link_name = "__start___rseq_cs_ptr_array"]
        static FIRST: &'static Descriptor;
        #[link_name = "__stop___rseq_cs_ptr_array"]
        static END: &'static Descriptor;
    }
    let (first, end) = (&raw const FIRST, &raw const END);
    // SAFETY: the linker defines both symbols as the bounds of one array of addresses of descriptors, which nobody writes.
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

    /// What a message calls an instruction of it.
    pub(crate) fn name(&self, instruction: &Instruction) -> String {
        let at = instruction.ip() - self.code.start;
        format!("section at {:#x}, +{at:#x} `{instruction}`", self.code.start)
    }

    fn effect(&self, instruction: &Instruction) -> Effect {
        instruction.effect().unwrap_or_else(|| panic!("{}: not known here", self.name(instruction)))
    }

    /// From the abort address to the start of the section, in the order in which they run, and where the restart label is:
    /// the target of the first jump. Up to there it is the abort's own code, behind it what an undisturbed run passes, too.
    fn way_back(&self) -> (Vec<Instruction>, usize) {
        let (mut way, mut restart, mut ip) = (vec![], None, self.abort);
        while ip != self.code.start {
            let instruction = Instruction::at(ip);
            ip = match instruction.flow() {
                Flow::Next => instruction.next(),
                Flow::Jump(target) => {
                    restart.get_or_insert(target);
                    target
                }
                // The counter's own loop.
                Flow::Branch(target) if (self.abort..ip).contains(&target) => instruction.next(),
                _ => panic!("{}: an abort goes straight back to the start", self.name(&instruction)),
            };
            way.push(instruction);
            assert!(way.len() < 32, "the section at {:#x}: an abort does not come back", self.code.start);
        }
        (way, restart.unwrap_or(self.code.start))
    }

    /// The label at which it is run again after an abort, and first.
    pub(crate) fn restart(&self) -> usize {
        self.way_back().1
    }

    /// From the restart label on.
    fn whole(&self) -> Vec<Instruction> {
        let (way, restart) = self.way_back();
        let ahead = way.into_iter().filter(|one| (restart..self.code.start).contains(&one.ip()));
        ahead.chain(self.instructions.iter().copied()).collect()
    }

    /// Where it jumps to without a commit, but to its end.
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

    /// What it does and with which registers. Read off the operands of its instructions, so it is a guess: whoever uses it
    /// sees whether the section does that with them.
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

    /// The compare in front of a jump back: of the loop of a batch.
    fn loop_end(&self) -> Option<&Instruction> {
        let back = |one: &&[Instruction]| {
            matches!(one[1].flow(), Flow::Branch(target)
                if self.code.contains(&target) && target < one[1].ip() && one[0].compares())
        };
        self.instructions.windows(2).find(back).map(|one| &one[0])
    }

    /// What a proof needs to know of it.
    fn json(&self) -> Value {
        let (way_back, restart) = self.way_back();
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
            "way_back": way_back.iter().map(Instruction::json).collect::<Vec<_>>(),
            "code": self.instructions.iter().map(Instruction::json).collect::<Vec<_>>(),
        })
    }

    /// The places that are read before they are written, from the restart label on: the least solution of
    /// `live = reads + (what is live behind it - writes)` over all instructions that can be reached.
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
                // Another use of the same registers names another place.
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

    /// Panics unless it can be restarted at any of its instructions. How many places it writes that survive an abort.
    fn check(&self) -> usize {
        let start = self.code.start;
        assert!(!self.code.contains(&self.abort), "the section at {start:#x}: its abort address lies in it");
        // SAFETY: what lies in front of an abort address is code of this program.
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
        let (mut survive, (way_back, _)) = (0, self.way_back());
        for (i, instruction) in way_back.iter().chain(before).enumerate() {
            let mut effect = self.effect(instruction);
            if i < way_back.len() && instruction.is_of_a_counter() {
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

/// All sections of this program, for their proof (`tests/sections/prove.py`), beside what else it needs to know; to the file
/// that `USLAB_SECTIONS` names.
pub(crate) fn write_down(mut beside: Value) {
    beside["architecture"] = std::env::consts::ARCH.into();
    beside["sections"] = all().iter().map(Section::json).collect();
    let file = std::env::var_os("USLAB_SECTIONS").expect("USLAB_SECTIONS: expected the name of a file");
    std::fs::write(file, beside.to_string()).expect("the file of USLAB_SECTIONS");
}

/// What [`check`] looked at.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) sections: usize,
    pub(crate) instructions: usize,
    /// Stores before a commit that survive an abort.
    pub(crate) survive: usize,
}

/// Every section of this program can be restarted at any of its instructions. Prints and returns how much that was.
///
/// # Panics
/// When one cannot.
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

/// What is said of a sample, a section that is never run; empty if it is sound.
fn verdict(sample: &'static Descriptor) -> String {
    let checked = uslab_sync::catch_panic(|| Section::of(sample).check());
    checked.err().map_or(String::new(), |said| *said.downcast::<String>().expect("a message"))
}
