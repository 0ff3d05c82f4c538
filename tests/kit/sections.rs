//! The restartable sequences of the running program, as its own memory has them: all that are compiled into it, the inlined
//! copies included, whichever crate they come from.
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
//! jumps, up to calls, returns and indirect jumps. Registers and flags are exact. A place in memory is the operand that names it
//! (registers, scale and displacement): two names of one place are not recognised.

pub(crate) use iced_x86::Instruction;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess, OpKind, Register, UsedMemory,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

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

/// Bytes in front of the abort address, which the kernel compares with what the C library registered.
pub(crate) const SIGNATURE: u32 = 0x5305_3053;

/// What a breakpoint is written over, and what with: `int3`.
pub(crate) type Code = u8;
pub(crate) const TRAP: Code = 0xcc;

/// Code was written at `_at`, which this processor sees.
pub(crate) fn written(_at: *mut Code) {}

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

/// The instruction at `ip`.
fn decode(ip: usize) -> Instruction {
    /// The most bytes of an instruction.
    const MOST: usize = 15;
    // SAFETY: `ip` is that of an instruction of this program. The linker puts `.fini` behind all other code, so so many bytes
    // are there.
    let bytes = unsafe { core::slice::from_raw_parts(ip as *const u8, MOST) };
    Decoder::with_ip(64, bytes, ip as u64, DecoderOptions::NONE).decode()
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
            let instruction = decode(ip);
            assert!(!instruction.is_invalid(), "the section at {start:#x}: no instruction at {ip:#x}");
            ip += instruction.len();
            instructions.push(instruction);
        }
        assert_eq!(ip, code.end, "the section at {start:#x} ends inside an instruction");
        Self { code, instructions, abort, descriptor }
    }

    /// What a message calls an instruction of it.
    pub(crate) fn name(&self, instruction: &Instruction) -> String {
        let at = instruction.ip() as usize - self.code.start;
        format!("section at {:#x}, +{at:#x} `{instruction}`", self.code.start)
    }

    /// All instructions but the commit.
    fn before_commit(&self) -> &[Instruction] {
        self.instructions.split_last().map_or(&[], |(_, before)| before)
    }

    /// From the abort address to the start of the section, in the order in which they run, and where the restart label is:
    /// the target of the first jump. Up to there it is the abort's own code, behind it what an undisturbed run passes, too.
    fn way_back(&self) -> (Vec<Instruction>, usize) {
        let (mut way, mut restart, mut ip) = (vec![], None, self.abort);
        while ip != self.code.start {
            let instruction = decode(ip);
            way.push(instruction);
            ip = match instruction.flow_control() {
                FlowControl::Next => instruction.next_ip() as usize,
                FlowControl::UnconditionalBranch => {
                    let target = instruction.near_branch_target() as usize;
                    restart.get_or_insert(target);
                    target
                }
                _ => panic!("{}: an abort goes straight back to the start", self.name(&instruction)),
            };
            assert!(way.len() < 32, "the section at {:#x}: an abort does not come back", self.code.start);
        }
        (way, restart.unwrap_or(self.code.start))
    }

    /// The label at which it is run again after an abort, and first.
    pub(crate) fn restart(&self) -> usize {
        self.way_back().1
    }

    /// Where it jumps to without a commit, but to its end.
    pub(crate) fn miss(&self) -> Option<usize> {
        let mut out = self.instructions.iter().filter_map(|instruction| {
            let jumps = instruction.flow_control() == FlowControl::ConditionalBranch;
            let target = instruction.near_branch_target() as usize;
            (jumps && target != self.code.end && !self.code.contains(&target)).then_some(target)
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
        let find = |what: &str, fits: &dyn Fn(&Instruction) -> bool| {
            let found = self.instructions.iter().position(fits);
            found.unwrap_or_else(|| panic!("the section at {:#x} has no {what}", self.code.start))
        };
        let code = |at: usize| &self.instructions[at];
        let at = find("load of the CPU's number", &|one| one.memory_segment() == Register::FS);
        let (area, cpu) = (code(at).memory_base(), code(at).op0_register());
        let at = find("load of the CPU's word", &|one| one.memory_index() == cpu && cpu != Register::None);
        let (words, region) = (code(at).memory_base(), code(at).op0_register());
        let is_add = |one: &Instruction| one.op0_register() == region && one.op1_register() != Register::None;
        let stack = code(find("address of the stack", &is_add)).op1_register();
        // Behind what all sections have in common.
        let body = 1 + find("length", &|one| one.op1_register().size() == 2);
        let body = &self.instructions[body..];
        let indexed = |store: bool| {
            body.iter().find(|one| {
                one.memory_index() != Register::None
                    && one.op_kind(usize::from(!store) as u32) == OpKind::Memory
                    && one.memory_size().size() == size_of::<u64>()
            })
        };
        let written: HashSet<Register> =
            self.instructions.iter().map(|one| one.op0_register().full_register()).collect();
        // A loop ends in a jump back; in front of it the count is compared with.
        let back = |one: &&[Instruction]| {
            let target = one[1].near_branch_target() as usize;
            one[1].flow_control() == FlowControl::ConditionalBranch
                && self.code.contains(&target)
                && target < one[1].ip() as usize
        };
        let count = body.windows(2).find(back).map(|one| one[0].op1_register());
        let (kind, rounds) = match (count, indexed(false), indexed(true)) {
            (None, Some(load), None) => (Kind::Pop, load.op0_register()),
            (None, None, Some(store)) => (Kind::Push, store.op1_register()),
            (Some(_), Some(load), Some(_)) if !written.contains(&load.memory_base()) => {
                (Kind::PushBatch, load.memory_base())
            }
            (Some(_), Some(_), Some(store)) => (Kind::PopBatch, store.memory_base()),
            _ => panic!("the section at {:#x} is none of the four", self.code.start),
        };
        let all: Vec<Register> = [area, words, stack, rounds].into_iter().chain(count).collect();
        let distinct: HashSet<_> = all.iter().filter(|one| one.is_gpr64()).collect();
        assert_eq!(distinct.len(), all.len(), "the section at {:#x}: operands {all:?}", self.code.start);
        Operands { kind, area, words, stack, rounds, count }
    }

    /// Its instructions without addresses and names of registers: what sections that do the same with other registers have in
    /// common.
    pub(crate) fn form(&self) -> String {
        let (way, restart) = self.way_back();
        let own = way.iter().filter(|one| (restart..self.code.start).contains(&(one.ip() as usize)));
        let mut names: Vec<String> = vec![];
        let mut text = String::new();
        for one in own.chain(&self.instructions) {
            for i in 0..one.op_count() {
                text += &match operand(one, i) {
                    Value::Object(mut parts) => {
                        if parts.get("base") == Some(&Value::from("RIP")) {
                            parts.remove("base");
                            parts.remove("displacement");
                        }
                        for part in ["register", "base", "index"] {
                            let Some(Value::String(name)) = parts.get_mut(part) else { continue };
                            let known = names.iter().position(|other| other == name).unwrap_or_else(|| {
                                names.push(name.clone());
                                names.len() - 1
                            });
                            *name = format!("r{known}");
                        }
                        if let Some(target) = parts.get("target").and_then(Value::as_u64) {
                            let target = target as usize;
                            let inside = (self.code.start..=self.code.end).contains(&target);
                            parts["target"] =
                                if inside { json!(target - self.code.start) } else { json!("out") };
                        }
                        format!("{}", Value::Object(parts))
                    }
                    other => other.to_string(),
                };
            }
            text += &format!("{:?}\n", one.mnemonic());
        }
        text
    }

    /// What a proof needs to know of it.
    pub(crate) fn json(&self) -> Value {
        let (way_back, restart) = self.way_back();
        let Operands { kind, area, words, stack, rounds, count } = self.operands();
        let mut operands = json!({
            "area": format!("{area:?}"),
            "words": format!("{words:?}"),
            "stack": format!("{stack:?}"),
            "rounds": format!("{rounds:?}"),
        });
        if let Some(count) = count {
            operands["count"] = format!("{count:?}").into();
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
            "way_back": way_back.iter().map(instruction).collect::<Vec<_>>(),
            "code": self.instructions.iter().map(instruction).collect::<Vec<_>>(),
        })
    }

    /// Panics unless it can be restarted at any of its instructions. How many places it writes that survive an abort.
    fn check(&self, effects: &mut Effects) -> usize {
        assert!(
            !self.code.contains(&self.abort),
            "the section at {:#x}: its abort address lies in it",
            self.code.start
        );
        // SAFETY: what lies in front of an abort address is code of this program.
        let signature = unsafe { ((self.abort - 4) as *const u32).read_unaligned() };
        assert_eq!(
            signature, SIGNATURE,
            "the section at {:#x}: in front of the abort address",
            self.code.start
        );
        let commit = self.instructions.last().expect("a section has instructions");
        assert!(
            effects.of(commit).may_write.iter().any(|place| matches!(place, Place::Memory(_))),
            "{}: the last instruction is the commit, which stores",
            self.name(commit)
        );
        for instruction in &self.instructions {
            let inside = matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            );
            assert!(inside, "{}: a section calls nothing, the kernel neither", self.name(instruction));
        }
        let (way_back, restart) = self.way_back();
        let live = effects.live_at(restart, &self.code);
        let committed = effects.of(commit).clone();
        let mut survive = 0;
        for instruction in way_back.iter().chain(self.before_commit()) {
            let effect = effects.of(instruction);
            for place in effect.may_write.iter().filter(|place| live.contains(place)) {
                let absolute = !effect.reads.contains(place);
                assert!(
                    absolute && committed.may_write.iter().any(|head| place.is_cap_beside(head)),
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

/// An instruction: its address and the next one's, what it is called, its operands in the order of the manual.
fn instruction(one: &Instruction) -> Value {
    json!({
        "ip": one.ip(),
        "next": one.next_ip(),
        "text": one.to_string(),
        "mnemonic": format!("{:?}", one.mnemonic()),
        "operands": (0..one.op_count()).map(|i| operand(one, i)).collect::<Vec<_>>(),
    })
}

fn operand(one: &Instruction, i: u32) -> Value {
    let name = |register: Register| match register {
        Register::None => Value::Null,
        register => format!("{register:?}").into(),
    };
    match one.op_kind(i) {
        OpKind::Register => {
            let register = one.op_register(i);
            let high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
            assert!(!high, "{one}: the second byte of a register");
            json!({ "register": name(register.full_register()), "bits": 8 * register.size() })
        }
        OpKind::Memory => json!({
            "segment": (one.memory_segment() == Register::FS).then_some("FS"),
            "base": name(one.memory_base()),
            "index": name(one.memory_index()),
            "scale": one.memory_index_scale(),
            "displacement": one.memory_displacement64(),
            "bits": 8 * one.memory_size().size(),
        }),
        OpKind::NearBranch64 => json!({ "target": one.near_branch_target() }),
        _ => json!({ "immediate": one.immediate(i) }),
    }
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
    let mut effects = Effects::new();
    let survive = sections.iter().map(|section| section.check(&mut effects)).sum();
    let instructions = sections.iter().map(|section| section.instructions.len()).sum();
    println!(
        "{} sections, {instructions} instructions: none writes what its restart reads, but for {survive} widenings",
        sections.len()
    );
    Checked { sections: sections.len(), instructions, survive }
}

/// What an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// A whole register.
    Register(Register),
    /// One bit of `iced_x86::RflagsBits`.
    Flag(u32),
    Memory(Operand),
}

impl Place {
    /// Whether this is how many places a stack may use, and `head` the word that a section commits: the word in front of it.
    fn is_cap_beside(&self, head: &Self) -> bool {
        let (Self::Memory(cap), Self::Memory(head)) = (self, head) else { return false };
        let (Operand(segment, stack, index, _, at), Operand(of, base, no, _, word)) = (cap, head);
        (segment, stack, index) == (of, base, no)
            && *index == Register::None
            && at.wrapping_add(size_of::<u64>() as u64) == *word
    }
}

/// Memory by what names it: segment, base, index, scale, displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Operand(Register, Register, Register, u32, u64);

impl Operand {
    fn of(memory: &UsedMemory) -> Self {
        Self(memory.segment(), memory.base(), memory.index(), memory.scale(), memory.displacement())
    }
}

/// The effects of one instruction. What it surely writes, it also may write.
#[derive(Clone, Debug, Default)]
struct Effect {
    reads: HashSet<Place>,
    may_write: HashSet<Place>,
    writes: HashSet<Place>,
}

/// Effects by address, each worked out once.
struct Effects {
    factory: InstructionInfoFactory,
    known: BTreeMap<u64, Effect>,
}

impl Effects {
    fn new() -> Self {
        Self { factory: InstructionInfoFactory::new(), known: BTreeMap::new() }
    }

    fn of(&mut self, instruction: &Instruction) -> &Effect {
        let Self { factory, known } = self;
        known.entry(instruction.ip()).or_insert_with(|| Effect::of(instruction, factory))
    }

    /// The places that are read before they are written, from `restart` on: the least solution of
    /// `live = reads + (what is live behind it - writes)` over all instructions that can be reached.
    fn live_at(&mut self, restart: usize, section: &Range<usize>) -> HashSet<Place> {
        let (mut code, mut todo) = (BTreeMap::new(), vec![restart]);
        while let Some(ip) = todo.pop() {
            if code.contains_key(&ip) {
                continue;
            }
            let instruction = decode(ip);
            let (next, jump) = (instruction.next_ip() as usize, || instruction.near_branch_target() as usize);
            let behind = match instruction.flow_control() {
                FlowControl::Next => vec![next],
                FlowControl::UnconditionalBranch => vec![jump()],
                FlowControl::ConditionalBranch => vec![next, jump()],
                _ => vec![],
            };
            todo.extend(&behind);
            let mut effect = self.of(&instruction).clone();
            if !section.contains(&ip) {
                // Another use of the same registers names another place.
                effect.reads.retain(|place| !matches!(place, Place::Memory(_)));
            }
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
}

impl Effect {
    fn of(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Self {
        let mut effect = Self::default();
        let info = factory.info(instruction);
        for used in info.used_registers() {
            let register = used.register();
            // A part of a register that is written leaves the rest; 32 bits clear it.
            let whole = register.is_gpr32() || register.is_gpr64() || !register.is_gpr();
            effect.add(Place::Register(register.full_register()), used.access(), whole);
        }
        for used in info.used_memory() {
            effect.add(Place::Memory(Operand::of(used)), used.access(), true);
        }
        let bits = |flags: u32| (0..u32::BITS).map(|bit| 1 << bit).filter(move |bit| flags & bit != 0);
        for bit in bits(instruction.rflags_read()) {
            effect.add(Place::Flag(bit), OpAccess::Read, true);
        }
        for bit in bits(instruction.rflags_modified()) {
            effect.add(Place::Flag(bit), OpAccess::Write, true);
        }
        effect
    }

    fn add(&mut self, place: Place, access: OpAccess, whole: bool) {
        use OpAccess::{CondRead, CondWrite, Read, ReadCondWrite, ReadWrite, Write};
        if matches!(access, Read | CondRead | ReadWrite | ReadCondWrite) {
            self.reads.insert(place);
        }
        if matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite) {
            self.may_write.insert(place);
        }
        if whole && matches!(access, Write | ReadWrite) {
            self.writes.insert(place);
        }
    }
}

/// The check itself, on sections that are never run.
mod samples {
    use super::{Descriptor, Effects, Section};
    use std::arch::global_asm;

    macro_rules! samples { ($($name:ident: [$($body:literal),*] [$($behind:literal),*])*) => {
        $(global_asm!(
            ".pushsection .rodata.uslab_samples, \"a\"",
            ".long 0x53053053",
            "4: lock inc qword ptr [rip + 2f]",
            "jmp 2f",
            "2:", $($body,)* "3:", $($behind,)* "ret",
            ".zero 16",
            ".popsection",
            ".pushsection .data.rel.ro.uslab_samples, \"aw\"",
            ".balign 32",
            concat!("uslab_sample_", stringify!($name), ": .long 0, 0"),
            ".quad 2b, 3b - 2b, 4b",
            ".popsection",
        );)*
        unsafe extern "C" {
            $(#[link_name = concat!("uslab_sample_", stringify!($name))] safe static $name: Descriptor;)*
        }
    } }
    samples! {
        sound: ["mov eax, [rdi]", "lea r8, [rax + rsi]", "mov [rdi], r8"] []
        register: ["add esi, 1", "mov [rdi], rsi"] []
        half_a_register: ["mov edx, esi", "mov sil, 1", "mov [rdi], rdx"] []
        register_on_one_way: ["test edx, edx", "jz 3f", "mov esi, 1", "mov [rdi], rdx"] ["mov rax, rsi"]
        flag: ["jc 3f", "cmp edx, 1", "mov [rdi], rdx"] []
        memory: ["inc qword ptr [rdi + 8]", "mov [rdi], rdx"] []
        widening: ["mov ecx, [rdi - 8]", "mov [rdi - 8], edx", "mov [rdi], rcx"] []
        widening_by: ["add dword ptr [rdi - 8], edx", "mov [rdi], rcx"] []
        widening_another: ["mov ecx, [rdi - 16]", "mov [rdi - 16], edx", "mov [rdi], rcx"] []
        no_commit: ["mov [rdi], rdx", "mov eax, edx"] []
        a_call: ["call rax", "mov [rdi], rdx"] []
    }

    /// What is said of a section; empty if it is sound.
    fn verdict(sample: &'static Descriptor) -> String {
        let checked = std::panic::catch_unwind(|| Section::of(sample).check(&mut Effects::new()));
        checked.err().map_or(String::new(), |said| *said.downcast::<String>().expect("a message"))
    }

    #[test]
    fn what_a_restart_reads_is_found_in_registers_flags_and_memory() {
        assert_eq!((verdict(&sound), verdict(&widening)), (String::new(), String::new()));
        for (sample, expected) in [
            (&register, "`add esi,1`: writes Register(RSI)"),
            (&half_a_register, "`mov sil,1`: writes Register(RSI)"),
            (&register_on_one_way, "`mov esi,1`: writes Register(RSI)"),
            (&flag, "`cmp edx,1`: writes Flag("),
            (&memory, "`inc qword ptr [rdi+8]`: writes Memory("),
            (&widening_by, "`add [rdi-8],edx`: writes Memory("),
            (&widening_another, "`mov [rdi-10h],edx`: writes Memory("),
            (&no_commit, "the last instruction is the commit"),
            (&a_call, "a section calls nothing"),
        ] {
            let said = verdict(sample);
            assert!(said.contains(expected), "{said:?}, expected {expected:?}");
        }
    }
}
