//! The aarch64 instructions that a section may contain ([`INSTRUCTION_FORMS`]), with the properties that the checks
//! need. If a section contains any other instruction, the check fails.

use super::{ControlFlowTarget, Effect, Kind, Operand, Section, SectionOperands};
use serde_json::{Value, json};
use std::fmt;
use std::fmt::Write as _;

/// The word before the abort address, which is a `brk` instruction; the kernel compares it with the word that the C
/// library registered.
pub(crate) const SIGNATURE: u32 = 0xd428_bc00;

/// The unit of code that a breakpoint replaces; the breakpoint instruction on aarch64 is `brk #0`.
pub(crate) type Code = u32;
pub(crate) const TRAP_CODE: Code = 0xd420_0000;

/// Makes the processor fetch the code at `at` again after the code was changed.
pub(crate) fn synchronize_code(at: *mut Code) {
    unsafe extern "C" {
        fn __clear_cache(start: *mut Code, end: *mut Code);
    }
    // SAFETY: the call invalidates the instruction cache for the instruction at `at`.
    unsafe { __clear_cache(at, at.add(1)) };
}

pub(crate) type Register = u32;

/// A memory operand: base register, index register (32 if absent), offset in bytes, and size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Memory(Register, Register, i32, u32);

impl Memory {
    /// Returns `true` if this operand is the `cap` of a stack: the word after the `head` that a section commits.
    pub(super) fn is_cap_after(&self, head: &Self) -> bool {
        let (Self(stack, index, at, bytes), Self(base, no, word, _)) = (self, head);
        (stack, index) == (base, no) && *index == 32 && *bytes == 4 && at + 8 == *word
    }
}

pub(super) fn is_general_purpose(register: Register) -> bool {
    register < NONE
}
/// Returns the name of a register for a proof.
pub(super) fn name(register: Register) -> Value {
    format!("X{register}").into()
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    ip: usize,
    word: u32,
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.word)
    }
}

/// The position of an operand in an instruction word, or the effect of the instruction.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// The register in the lowest five bits of the instruction; `D` is written, `T` is read.
    D,
    T,
    /// The registers at bit 5 and at bit 16 of the instruction; both are read.
    N,
    M,
    /// The instruction either writes the flags or reads them.
    SetFlags,
    GetFlags,
    /// Memory at register N plus an offset: an offset of 12 bits in units of the access size, of 9 bits in bytes, in a
    /// register, or no offset.
    Scaled,
    Unscaled,
    Indexed,
    At,
    /// The instruction writes to memory.
    Store,
}

/// All instructions of sections and of their abort paths; each has a mask, bits and operands.
const INSTRUCTION_FORMS: [(u32, u32, &[Part]); 28] = {
    use Part::{At, D, GetFlags, Indexed, M, N, Scaled, SetFlags, Store, T, Unscaled};
    [
        (0xffff_ffe0, 0xd53b_d040, &[D]),                       // mrs x, tpidr_el0
        (0x9f00_0000, 0x9000_0000, &[D]),                       // adrp
        (0x7f80_0000, 0x1100_0000, &[D, N]),                    // add, immediate
        (0x7f80_0000, 0x5100_0000, &[D, N]),                    // sub
        (0x7f80_0000, 0x3100_0000, &[D, N, SetFlags]),          // adds
        (0x7f80_0000, 0x7100_0000, &[D, N, SetFlags]),          // subs, cmp
        (0x7f20_0000, 0x0b00_0000, &[D, N, M]),                 // add, shifted register
        (0x7f20_0000, 0x4b00_0000, &[D, N, M]),                 // sub
        (0x7f20_0000, 0x6b00_0000, &[D, N, M, SetFlags]),       // subs, cmp
        (0x7fe0_0000, 0x0b20_0000, &[D, N, M]),                 // add, extended register
        (0x7fe0_0000, 0x6b20_0000, &[D, N, M, SetFlags]),       // subs, cmp
        (0x7f80_0000, 0x1200_0000, &[D, N]),                    // and, immediate
        (0x7f80_0000, 0x5300_0000, &[D, N]),                    // lsl, lsr
        (0x7f20_0000, 0x2a00_0000, &[D, N, M]),                 // orr, mov of a register
        (0x7f80_0000, 0x5280_0000, &[D]),                       // movz
        (0x7fe0_0c00, 0x1a80_0000, &[D, N, M, GetFlags]),       // csel
        (0xbfc0_0000, 0xb940_0000, &[D, N, Scaled]),            // ldr
        (0xbfc0_0000, 0xb900_0000, &[T, N, Scaled, Store]),     // str
        (0xbfe0_0c00, 0xb840_0000, &[D, N, Unscaled]),          // ldur
        (0xbfe0_0c00, 0xb800_0000, &[T, N, Unscaled, Store]),   // stur
        (0xbfe0_0c00, 0xb860_0800, &[D, N, M, Indexed]),        // ldr, register
        (0xbfe0_0c00, 0xb820_0800, &[T, N, M, Indexed, Store]), // str, register
        (0xbfff_fc00, 0x88df_fc00, &[D, N, At]),                // ldar
        (0xff00_0010, 0x5400_0000, &[GetFlags]),                // b on a condition
        (0x7e00_0000, 0x3400_0000, &[T]),                       // cbz, cbnz
        (0xfc00_0000, 0x1400_0000, &[]),                        // b
        (0xffff_fc00, 0xc85f_7c00, &[D, N, At]),                // ldxr
        (0xffff_ffff, 0xd503_203f, &[]),                        // yield
    ]
};
/// The instruction `stxr`, which has an additional register for the result of the store.
const STORE_EXCLUSIVE: (u32, u32) = (0xffe0_fc00, 0xc800_7c00);
/// Register 31, which is either the stack pointer or zero; sections never write it.
const NONE: Register = 31;

/// The instruction `cmp` of two registers, which is a `subs` with register 31 as its result.
const COMPARE_REGISTERS: (u32, u32) = (0x7fe0_001f, 0x6b00_001f);
/// All flags as a single operand, because an instruction writes either all flags or none.
const FLAGS: Operand = Operand::Flag(0);

impl Instruction {
    pub(super) fn at(ip: usize) -> Self {
        // SAFETY: `ip` is the address of an instruction of this program.
        Self { ip, word: unsafe { (ip as *const u32).read() } }
    }
    pub(crate) fn ip(&self) -> usize {
        self.ip
    }
    pub(super) fn next(&self) -> usize {
        self.ip + 4
    }
    fn field(self, from: u32, bits: u32) -> u32 {
        self.word >> from & ((1 << bits) - 1)
    }
    fn matches_bits(self, (mask, bits): (u32, u32)) -> bool {
        self.word & mask == bits
    }
    /// Returns the target of a jump, from a signed field of `bits` bits at bit `from`, times four, relative to the
    /// instruction.
    fn target(self, from: u32, bits: u32) -> usize {
        let words = (self.field(from, bits) << (32 - bits)) as i32 >> (32 - bits);
        self.ip.wrapping_add_signed(4 * words as isize)
    }
    pub(super) fn flow(self) -> ControlFlowTarget {
        if self.matches_bits((0xfc00_0000, 0x1400_0000)) {
            ControlFlowTarget::Jump(self.target(0, 26))
        } else if self.matches_bits((0xff00_0010, 0x5400_0000))
            || self.matches_bits((0x7e00_0000, 0x3400_0000))
        {
            ControlFlowTarget::Branch(self.target(5, 19))
        } else {
            ControlFlowTarget::Next
        }
    }
    /// Returns `true` if the instruction compares two registers.
    pub(super) fn compares(self) -> bool {
        self.matches_bits(COMPARE_REGISTERS)
    }
    /// Returns `true` if the instruction counts aborts; the address of the counter would look like an operand of the
    /// section.
    pub(super) fn is_abort_counter_instruction(self) -> bool {
        self.matches_bits(STORE_EXCLUSIVE)
    }

    /// Returns the instruction's operands, or `None` if sections never contain this instruction.
    fn parts(self) -> Option<&'static [Part]> {
        INSTRUCTION_FORMS
            .iter()
            .find(|(mask, bits, _)| self.matches_bits((*mask, *bits)))
            .map(|(_, _, parts)| *parts)
    }
    /// Returns the instruction's effect, or `None` if sections never contain this instruction.
    pub(super) fn effect(self) -> Option<Effect> {
        let mut effect = Effect::default();
        let [low, base, index] = [0, 5, 16].map(|from| self.field(from, 5));
        if self.matches_bits(STORE_EXCLUSIVE) {
            effect.reads.extend([Operand::Register(low), Operand::Register(base)]);
            effect.writes.extend([Operand::Register(index), Operand::Memory(Memory(base, 32, 0, 8))]);
            effect.may_write.clone_from(&effect.writes);
            return Some(effect);
        }
        let (parts, size) = (self.parts()?, 4 << self.field(30, 1));
        for part in parts {
            let memory = match part {
                Part::D => {
                    effect.writes.insert(Operand::Register(low));
                    continue;
                }
                Part::T | Part::N | Part::M => {
                    let register = match part {
                        Part::T => low,
                        Part::N => base,
                        _ => index,
                    };
                    effect.reads.insert(Operand::Register(register));
                    continue;
                }
                Part::SetFlags => {
                    effect.writes.insert(FLAGS);
                    continue;
                }
                Part::GetFlags => {
                    effect.reads.insert(FLAGS);
                    continue;
                }
                Part::Store => continue,
                Part::Scaled => Memory(base, 32, (self.field(10, 12) * size) as i32, size),
                Part::Unscaled => Memory(base, 32, (self.field(12, 9) << 23) as i32 >> 23, size),
                Part::Indexed => Memory(base, index, 0, size),
                Part::At => Memory(base, 32, 0, size),
            };
            let stores = parts.contains(&Part::Store);
            if stores { &mut effect.writes } else { &mut effect.reads }.insert(Operand::Memory(memory));
        }
        effect.reads.remove(&Operand::Register(NONE));
        effect.writes.remove(&Operand::Register(NONE));
        effect.may_write.clone_from(&effect.writes);
        Some(effect)
    }

    /// Returns the instruction's address, the next instruction's address, and the instruction word, which
    /// `prove.py` decodes.
    pub(super) fn json(&self) -> Value {
        json!({ "ip": self.ip(), "next": self.next(), "text": self.to_string(), "word": self.word })
    }
}

impl Section {
    /// Reads the operands of the section from its instructions. The error names the missing operand or
    /// instruction.
    pub(super) fn read_operands(&self) -> Result<SectionOperands, &'static str> {
        let ([low, base, index], whole) = ([0, 5, 16], self.instructions());
        // Finds the first such instruction from `at` on, and moves `at` behind it.
        let find = |at: &mut usize, what, form: (u32, u32)| -> Result<Instruction, &'static str> {
            *at += whole[*at..].iter().position(|one| one.matches_bits(form)).ok_or(what)? + 1;
            Ok(whole[*at - 1])
        };
        const ADD_ENCODING: (u32, u32) = (0xffe0_fc00, 0x8b00_0000);
        const LOAD: (u32, u32) = (0xffc0_0000, 0xf940_0000);
        const LOAD_INDEXED_ENCODING: (u32, u32) = (0xffe0_0c00, 0xf860_0800);
        const STORE_INDEXED_ENCODING: (u32, u32) = (0xffe0_0c00, 0xf820_0800);
        const STORE_ENCODING: (u32, u32) = (0xffc0_0000, 0xf900_0000);
        let mut at = 0;
        let area = find(&mut at, "address of the thread's area", ADD_ENCODING)?.field(index, 5);
        let words = find(&mut at, "load of the CPU's word", LOAD_INDEXED_ENCODING)?.field(base, 5);
        let stack = find(&mut at, "address of the stack", ADD_ENCODING)?.field(index, 5);
        find(&mut at, "load of the head", LOAD)?;
        let body = &whole[at..];
        let first = |form| body.iter().find(|one| one.matches_bits(form));
        let stores = body.iter().filter(|one| one.matches_bits(STORE_ENCODING)).count();
        let count = self.batch_loop_comparison().map(|one| one.field(index, 5));
        let (kind, rounds) = match (count, first(LOAD_INDEXED_ENCODING), first(STORE_INDEXED_ENCODING)) {
            (None, None, None) if stores == 1 => {
                (Kind::Pop, first(LOAD).ok_or("expected the load of the round")?.field(low, 5))
            }
            (None, None, None) => {
                (Kind::Push, first(STORE_ENCODING).ok_or("expected the store of the round")?.field(low, 5))
            }
            // One address of the pair is the stack's; its register x17 is written.
            (Some(_), Some(load), Some(store)) if store.field(base, 5) == 17 => {
                (Kind::PushBatch, load.field(base, 5))
            }
            (Some(_), Some(_), Some(store)) => (Kind::PopBatch, store.field(base, 5)),
            _ => return Err("expected a move of one of the four registers"),
        };
        Ok(SectionOperands { kind, area, words, stack, rounds, count })
    }

    /// Returns the instructions of the section without addresses and register names; two sections have the same form if
    /// they differ only in registers.
    pub(crate) fn form(&self) -> String {
        let (mut names, mut text) = (vec![], String::new());
        for one in self.instructions() {
            let mut rest = one.word;
            for part in one.parts().unwrap_or_default() {
                let from = match part {
                    Part::D | Part::T => 0,
                    Part::N => 5,
                    Part::M => 16,
                    _ => continue,
                };
                let register = one.field(from, 5);
                rest &= !(31 << from);
                let known = names.iter().position(|other| *other == register).unwrap_or_else(|| {
                    names.push(register);
                    names.len() - 1
                });
                _ = write!(text, "r{known} ");
            }
            // A relative target outside the section and the address of the descriptor are not part of a form.
            let outside = |target: usize| !(self.code.start..=self.code.end).contains(&target);
            _ = match one.flow() {
                ControlFlowTarget::Branch(target) if outside(target) => {
                    writeln!(text, "{:08x} out", rest & 0xff00_001f)
                }
                _ if one.matches_bits((0x9f00_0000, 0x9000_0000)) => writeln!(text, "adrp"),
                _ if one.ip < self.code.start && one.matches_bits((0x7f80_0000, 0x1100_0000)) => {
                    writeln!(text, "lo12")
                }
                _ => writeln!(text, "{rest:08x}"),
            };
        }
        text
    }
}

/// Tests the checks on sample sections that never run.
mod samples {
    use super::super::{Descriptor, verdict};
    use std::arch::global_asm;

    macro_rules! samples { ($($name:ident: [$($body:literal),*])*) => {
        $(global_asm!(
            ".pushsection .rodata.uslab_samples, \"a\"",
            ".balign 4",
            ".inst 0xd428bc00",
            "4: b 2f",
            "2:", $($body,)* "3: ret",
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
        sound: ["ldr w9, [x0]", "add x10, x9, x1", "str x10, [x0]"]
        register: ["add x1, x1, 1", "str x1, [x0]"]
        half_a_register: ["mov x9, x1", "mov w1, 1", "str x9, [x0]"]
        register_on_one_way: ["cbz x2, 3f", "cmp x1, x2", "b.eq 3f", "mov x1, 1", "str x2, [x0]"]
        flag: ["b.lo 3f", "cmp x2, 1", "str x2, [x0]"]
        memory: ["ldr x9, [x0, 8]", "add x9, x9, 1", "str x9, [x0, 8]", "str x2, [x0]"]
        widening: ["ldur w9, [x0, -8]", "stur w2, [x0, -8]", "str x9, [x0]"]
        widening_another: ["ldur x9, [x0, -16]", "stur x2, [x0, -16]", "str x9, [x0]"]
        no_commit: ["str x2, [x0]", "mov x9, x2"]
        a_call: ["blr x9", "str x2, [x0]"]
        the_kernel: ["svc 0", "str x2, [x0]"]
    }

    #[test]
    fn section_checker_finds_overwritten_values_that_a_restart_reads() {
        assert_eq!((verdict(&sound), verdict(&widening)), (String::new(), String::new()));
        for (sample, expected) in [
            (&register, "+0x0 `91000421`: writes Register(1)"),
            (&half_a_register, "+0x4 `52800021`: writes Register(1)"),
            (&register_on_one_way, "+0xc `d2800021`: writes Register(1)"),
            (&flag, "+0x4 `f100045f`: writes Flag("),
            (&memory, "+0x8 `f9000409`: writes Memory(Memory(0, 32, 8, 8))"),
            (&widening_another, "+0x4 `f81f0002`: writes Memory(Memory(0, 32, -16, 8))"),
            (&no_commit, "the committing store"),
            (&a_call, "+0x0 `d63f0120`: unknown instruction"),
            (&the_kernel, "+0x0 `d4000001`: unknown instruction"),
        ] {
            let said = verdict(sample);
            assert!(said.contains(expected), "{said:?}, expected {expected:?}");
        }
    }
}
