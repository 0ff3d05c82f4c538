//! The x86-64 instructions, decoded by `iced-x86`, with the properties that the checks need.

use super::{ControlFlowTarget, Effect, Kind, Operand, Section, SectionOperands};
pub(crate) use iced_x86::Register;
use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess, OpKind, UsedMemory};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt;

/// The bytes before the abort address, which the kernel compares with the bytes that the C library registered.
pub(crate) const SIGNATURE: u32 = 0x5305_3053;

/// The unit of code that a breakpoint replaces; the breakpoint instruction on x86-64 is `int3`.
pub(crate) type Code = u8;
pub(crate) const TRAP_CODE: Code = 0xcc;

/// Does nothing after code at `_at` was changed, because x86-64 processors notice writes to code.
pub(crate) fn synchronize_code(_at: *mut Code) {}

/// A memory operand: segment, base, index, scale, displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Memory(Register, Register, Register, u32, u64);

impl Memory {
    fn of(memory: &UsedMemory) -> Self {
        Self(memory.segment(), memory.base(), memory.index(), memory.scale(), memory.displacement())
    }
    /// Returns `true` if this operand is the `cap` of a stack: the word after the `head` that a section commits.
    pub(super) fn is_cap_after(&self, head: &Self) -> bool {
        let (Self(segment, stack, index, _, at), Self(of, base, no, _, word)) = (self, head);
        (segment, stack, index) == (of, base, no)
            && *index == Register::None
            && at.wrapping_add(size_of::<u64>() as u64) == *word
    }
}

pub(super) fn is_general_purpose(register: Register) -> bool {
    register.is_gpr64()
}
/// Returns the name of a register for a proof.
pub(super) fn name(register: Register) -> Value {
    if register == Register::None { Value::Null } else { format!("{register:?}").into() }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction(iced_x86::Instruction);

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Instruction {
    pub(super) fn at(ip: usize) -> Self {
        const MAX_INSTRUCTION_BYTES: usize = 15;
        // SAFETY: `ip` is the address of an instruction of this program. The linker puts `.fini` after all other code,
        // so `MAX_INSTRUCTION_BYTES` bytes can be read.
        let bytes = unsafe { core::slice::from_raw_parts(ip as *const u8, MAX_INSTRUCTION_BYTES) };
        let instruction = Decoder::with_ip(64, bytes, ip as u64, DecoderOptions::NONE).decode();
        assert!(!instruction.is_invalid(), "{ip:#x} is not the start of an instruction");
        Self(instruction)
    }
    pub(crate) fn ip(&self) -> usize {
        self.0.ip() as usize
    }
    pub(super) fn next(&self) -> usize {
        self.0.next_ip() as usize
    }
    pub(super) fn flow(&self) -> ControlFlowTarget {
        let target = self.0.near_branch_target() as usize;
        match self.0.flow_control() {
            FlowControl::Next => ControlFlowTarget::Next,
            FlowControl::UnconditionalBranch => ControlFlowTarget::Jump(target),
            FlowControl::ConditionalBranch => ControlFlowTarget::Branch(target),
            _ => ControlFlowTarget::Away,
        }
    }
    /// Returns `true` if the instruction compares two registers.
    pub(super) fn compares(&self) -> bool {
        self.0.op1_register() != Register::None
    }
    /// Returns `false`: on x86-64, the abort counter's address does not look like an operand of a section.
    pub(super) fn is_abort_counter_instruction(&self) -> bool {
        false
    }

    pub(super) fn effect(&self) -> Option<Effect> {
        let (instruction, mut effect) = (&self.0, Effect::default());
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(instruction);
        for used in info.used_registers() {
            let register = used.register();
            // A write to a part of a register keeps the rest, except that a 32-bit write clears it.
            let whole = register.is_gpr32() || register.is_gpr64() || !register.is_gpr();
            add(&mut effect, Operand::Register(register.full_register()), used.access(), whole);
        }
        for used in info.used_memory() {
            add(&mut effect, Operand::Memory(Memory::of(used)), used.access(), true);
        }
        let bits = |flags: u32| (0..u32::BITS).map(|bit| 1 << bit).filter(move |bit| flags & bit != 0);
        for bit in bits(instruction.rflags_read()) {
            add(&mut effect, Operand::Flag(bit), OpAccess::Read, true);
        }
        for bit in bits(instruction.rflags_modified()) {
            add(&mut effect, Operand::Flag(bit), OpAccess::Write, true);
        }
        Some(effect)
    }

    /// Returns the instruction's address, the next instruction's address, the mnemonic, and the operands in
    /// the order of the processor's manual.
    pub(super) fn json(&self) -> Value {
        json!({
            "ip": self.ip(),
            "next": self.next(),
            "text": self.to_string(),
            "mnemonic": format!("{:?}", self.0.mnemonic()),
            "operands": (0..self.0.op_count()).map(|i| operand(&self.0, i)).collect::<Vec<_>>(),
        })
    }
}

fn add(effect: &mut Effect, place: Operand, access: OpAccess, whole: bool) {
    use OpAccess::{CondRead, CondWrite, Read, ReadCondWrite, ReadWrite, Write};
    if matches!(access, Read | CondRead | ReadWrite | ReadCondWrite) {
        effect.reads.insert(place);
    }
    if matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite) {
        effect.may_write.insert(place);
    }
    if whole && matches!(access, Write | ReadWrite) {
        effect.writes.insert(place);
    }
}

fn operand(one: &iced_x86::Instruction, i: u32) -> Value {
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

impl Section {
    /// Reads the operands of the section from its instructions. The error names the missing operand or
    /// instruction.
    pub(super) fn read_operands(&self) -> Result<SectionOperands, &'static str> {
        let find = |what, fits: &dyn Fn(&iced_x86::Instruction) -> bool| {
            let found = self.instructions.iter().position(|one| fits(&one.0));
            found.ok_or(what)
        };
        let code = |at: usize| &self.instructions[at].0;
        let at = find("load of the CPU's number", &|one| one.memory_segment() == Register::FS)?;
        let (area, cpu) = (code(at).memory_base(), code(at).op0_register());
        let at = find("load of the CPU's word", &|one| one.memory_index() == cpu && cpu != Register::None)?;
        let (words, region) = (code(at).memory_base(), code(at).op0_register());
        let is_add = |one: &iced_x86::Instruction| {
            one.op0_register() == region && one.op1_register() != Register::None
        };
        let stack = code(find("address of the stack", &is_add)?).op1_register();
        // The body follows the instructions that all sections have in common.
        let body = 1 + find("length", &|one| one.op1_register().size() == 2)?;
        let body = &self.instructions[body..];
        let indexed = |store: bool| {
            body.iter().map(|one| &one.0).find(|one| {
                one.memory_index() != Register::None
                    && one.op_kind(usize::from(!store) as u32) == OpKind::Memory
                    && one.memory_size().size() == size_of::<u64>()
            })
        };
        let written: HashSet<Register> =
            self.instructions.iter().map(|one| one.0.op0_register().full_register()).collect();
        let count = self.batch_loop_comparison().map(|one| one.0.op1_register());
        let (kind, rounds) = match (count, indexed(false), indexed(true)) {
            (None, Some(load), None) => (Kind::Pop, load.op0_register()),
            // The round on top of the stack is compared with the pushed round.
            (None, Some(_), Some(store)) => (Kind::Push, store.op1_register()),
            (Some(_), Some(load), Some(_)) if !written.contains(&load.memory_base()) => {
                (Kind::PushBatch, load.memory_base())
            }
            (Some(_), Some(_), Some(store)) => (Kind::PopBatch, store.memory_base()),
            _ => return Err("expected a move of one of the four registers"),
        };
        Ok(SectionOperands { kind, area, words, stack, rounds, count })
    }

    /// Returns the instructions of the section without addresses and register names; two sections have the same form if
    /// they differ only in registers.
    pub(crate) fn form(&self) -> String {
        let mut names: Vec<String> = vec![];
        let mut text = String::new();
        for Instruction(one) in self.instructions() {
            for i in 0..one.op_count() {
                text += &match operand(&one, i) {
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
}

/// Tests the checks on sample sections that never run.
mod samples {
    use super::super::{Descriptor, verdict};
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

    #[test]
    fn section_checker_finds_overwritten_values_that_a_restart_reads() {
        assert_eq!((verdict(&sound), verdict(&widening)), (String::new(), String::new()));
        for (sample, expected) in [
            (&register, "`add esi,1`: writes Register(RSI)"),
            (&half_a_register, "`mov sil,1`: writes Register(RSI)"),
            (&register_on_one_way, "`mov esi,1`: writes Register(RSI)"),
            (&flag, "`cmp edx,1`: writes Flag("),
            (&memory, "`inc qword ptr [rdi+8]`: writes Memory("),
            (&widening_by, "`add [rdi-8],edx`: writes Memory("),
            (&widening_another, "`mov [rdi-10h],edx`: writes Memory("),
            (&no_commit, "the committing store"),
            (&a_call, "a section must not contain a call"),
        ] {
            let said = verdict(sample);
            assert!(said.contains(expected), "{said:?}, expected {expected:?}");
        }
    }
}
