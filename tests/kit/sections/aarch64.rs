//! As `sections.rs`, for aarch64: all sections of the running program, and what the kernel and the restart rely on.
//!
//! What an instruction reads and writes stands in a table of those that sections are made of ([`FORMS`]); any other one in a section
//! is an error. So nothing is followed behind a section: a register that it only writes, and that code behind it reads, is not
//! looked at. (It would have to be an operand that is an input and an output at once; no section has one.)

use std::collections::HashSet;
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
}

/// In front of the abort address, which the kernel compares with what the C library registered: a `brk`.
pub(crate) const SIGNATURE: u32 = 0xd428_bc00;

/// What a breakpoint is written over, and what with: `brk #0`.
pub(crate) type Code = u32;
pub(crate) const TRAP: Code = 0xd420_0000;

/// Code was written at `at`.
pub(crate) fn written(at: *mut Code) {
    unsafe extern "C" {
        fn __clear_cache(start: *mut Code, end: *mut Code);
    }
    // SAFETY: the processor forgets what it knows of one instruction.
    unsafe { __clear_cache(at, at.add(1)) };
}

/// An instruction, by its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    ip: usize,
    word: u32,
}

/// What an instruction does, but to registers and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    /// To an address, on a condition or not.
    Branch(usize),
    Jump(usize),
}

/// What an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Register(u32),
    Flags,
    /// By what names it: base, index (32 if none) and offset in bytes, and how many bytes.
    Memory(u32, u32, i32, u32),
}

#[derive(Debug, Default)]
struct Effect {
    reads: HashSet<Place>,
    writes: HashSet<Place>,
}

/// Where an instruction has an operand.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// Its lowest five bits, as a register that is written, or read;
    D,
    T,
    /// from bit 5 on, and from bit 16 on.
    N,
    M,
    /// The flags, written and read.
    SetFlags,
    GetFlags,
    /// Memory at N and an offset: of 12 bits in units of its size, of 9 bits in bytes, of a register, of none.
    Scaled,
    Unscaled,
    Indexed,
    At,
    /// That memory is written.
    Store,
}

/// The instructions that sections and their way back are made of: mask, bits, operands.
const FORMS: [(u32, u32, &[Part]); 28] = {
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
/// `stxr` has a register more, in which it says whether it stored.
const STXR: (u32, u32) = (0xffe0_fc00, 0xc800_7c00);
/// No register: the stack pointer or zero, which no section writes.
const NONE: u32 = 31;

impl Instruction {
    fn at(ip: usize) -> Self {
        // SAFETY: `ip` is that of an instruction of this program.
        Self { ip, word: unsafe { (ip as *const u32).read() } }
    }
    pub(crate) fn ip(&self) -> u64 {
        self.ip as u64
    }
    fn field(self, from: u32, bits: u32) -> u32 {
        self.word >> from & ((1 << bits) - 1)
    }
    /// The signed number of so many bits, from there on, times four, as an address.
    fn target(self, from: u32, bits: u32) -> usize {
        let words = (self.field(from, bits) << (32 - bits)) as i32 >> (32 - bits);
        self.ip.wrapping_add_signed(4 * words as isize)
    }
    fn flow(self) -> Flow {
        let is = |mask, bits| self.word & mask == bits;
        if is(0xfc00_0000, 0x1400_0000) {
            Flow::Jump(self.target(0, 26))
        } else if is(0xff00_0010, 0x5400_0000) || is(0x7e00_0000, 0x3400_0000) {
            Flow::Branch(self.target(5, 19))
        } else {
            Flow::Next
        }
    }
    /// `None` for an instruction that sections are not made of.
    fn effect(self) -> Option<Effect> {
        let mut effect = Effect::default();
        if self.word & STXR.0 == STXR.1 {
            effect.reads.extend([Place::Register(self.field(0, 5)), Place::Register(self.field(5, 5))]);
            let counter = Place::Memory(self.field(5, 5), 32, 0, 8);
            effect.writes.extend([Place::Register(self.field(16, 5)), counter]);
            return Some(effect);
        }
        let (_, _, parts) = FORMS.iter().find(|(mask, bits, _)| self.word & mask == *bits)?;
        let [low, base, index] = [0, 5, 16].map(|from| self.field(from, 5));
        let size = 4 << self.field(30, 1);
        for part in *parts {
            let memory = match part {
                Part::D => {
                    effect.writes.insert(Place::Register(low));
                    continue;
                }
                Part::T | Part::N | Part::M => {
                    let register =
                        [low, base, index][[Part::T, Part::N, Part::M].iter().position(|p| p == part)?];
                    effect.reads.insert(Place::Register(register));
                    continue;
                }
                Part::SetFlags => {
                    effect.writes.insert(Place::Flags);
                    continue;
                }
                Part::GetFlags => {
                    effect.reads.insert(Place::Flags);
                    continue;
                }
                Part::Store => continue,
                Part::Scaled => Place::Memory(base, 32, (self.field(10, 12) * size) as i32, size),
                Part::Unscaled => Place::Memory(base, 32, (self.field(12, 9) << 23) as i32 >> 23, size),
                Part::Indexed => Place::Memory(base, index, 0, size),
                Part::At => Place::Memory(base, 32, 0, size),
            };
            if parts.contains(&Part::Store) { &mut effect.writes } else { &mut effect.reads }.insert(memory);
        }
        effect.reads.remove(&Place::Register(NONE));
        effect.writes.remove(&Place::Register(NONE));
        Some(effect)
    }
    fn stores(self) -> Option<Place> {
        self.effect()?.writes.into_iter().find(|place| matches!(place, Place::Memory(..)))
    }
}

/// All sections of this program, in the order of their addresses.
///
/// # Panics
/// When a descriptor is none.
pub(crate) fn all() -> Vec<Section> {
    unsafe extern "C" {
        #[link_name = "__start___rseq_cs_ptr_array"]
        static FIRST: &'static Descriptor;
        #[link_name = "__stop___rseq_cs_ptr_array"]
        static END: &'static Descriptor;
    }
    let (first, end) = (&raw const FIRST, &raw const END);
    // SAFETY: the linker defines both symbols as the bounds of one array of addresses of descriptors, which nobody writes.
    let descriptors = unsafe { core::slice::from_raw_parts(first, end.offset_from(first) as usize) };
    let mut sections: Vec<Section> = descriptors.iter().map(|descriptor| Section::of(descriptor)).collect();
    sections.sort_by_key(|section| section.code.start);
    sections
}

impl Section {
    fn of(descriptor: &Descriptor) -> Self {
        let Descriptor { version, flags, start, len, abort } = *descriptor;
        assert_eq!(
            (version, flags),
            (0, 0),
            "the section at {start:#x}: the kernel knows version 0 without flags"
        );
        let code = start..start + len;
        Self { instructions: code.clone().step_by(4).map(Instruction::at).collect(), code, abort }
    }

    /// What a message calls an instruction of it.
    pub(crate) fn name(&self, instruction: &Instruction) -> String {
        let at = instruction.ip - self.code.start;
        format!("section at {:#x}, +{at:#x} `{:08x}`", self.code.start, instruction.word)
    }
    fn effect(&self, instruction: Instruction) -> Effect {
        instruction.effect().unwrap_or_else(|| panic!("{}: not known here", self.name(&instruction)))
    }

    /// From the abort address to the start of the section, in the order in which they run, and where the restart label is: the
    /// target of the first jump.
    fn way_back(&self) -> (Vec<Instruction>, usize) {
        let (mut way, mut restart, mut ip) = (vec![], None, self.abort);
        while ip != self.code.start {
            let instruction = Instruction::at(ip);
            self.effect(instruction);
            way.push(instruction);
            ip = match instruction.flow() {
                Flow::Next => ip + 4,
                Flow::Jump(target) => {
                    restart.get_or_insert(target);
                    target
                }
                // The counter's own loop.
                Flow::Branch(target) => {
                    assert!((self.abort..ip).contains(&target), "{}: leaves", self.name(&instruction));
                    ip + 4
                }
            };
            assert!(way.len() < 32, "the section at {:#x}: an abort does not come back", self.code.start);
        }
        (way, restart.unwrap_or(self.code.start))
    }

    /// The places that are read before they are written, from `restart` on and up to the section's end: the least solution of
    /// `live = reads + (what is live behind it - writes)`.
    fn live_at(&self, restart: usize) -> HashSet<Place> {
        let code: Vec<Instruction> = (restart..self.code.end).step_by(4).map(Instruction::at).collect();
        let mut live: Vec<HashSet<Place>> = code.iter().map(|_| HashSet::new()).collect();
        loop {
            let mut changed = false;
            for (i, instruction) in code.iter().enumerate().rev() {
                let behind = match instruction.flow() {
                    Flow::Next => vec![instruction.ip + 4],
                    Flow::Jump(target) => vec![target],
                    Flow::Branch(target) => vec![instruction.ip + 4, target],
                };
                let effect = self.effect(*instruction);
                let mut now = effect.reads;
                for ip in behind.into_iter().filter(|ip| (restart..self.code.end).contains(ip)) {
                    now.extend(live[(ip - restart) / 4].difference(&effect.writes));
                }
                changed |= live[i] != now;
                live[i] = now;
            }
            if !changed {
                return live.swap_remove(0);
            }
        }
    }

    /// Panics unless it can be restarted at any of its instructions. How many places it writes that survive an abort.
    fn check(&self) -> usize {
        let start = self.code.start;
        assert!(!self.code.contains(&self.abort), "the section at {start:#x}: its abort address lies in it");
        assert_eq!(
            Instruction::at(self.abort - 4).word,
            SIGNATURE,
            "the section at {start:#x}: in front of the abort address"
        );
        let (commit, before) = self.instructions.split_last().expect("a section has instructions");
        let Some(head) = commit.stores() else {
            panic!("{}: the last instruction is the commit, which stores", self.name(commit));
        };
        let (way_back, restart) = self.way_back();
        let live = self.live_at(restart);
        let mut survive = 0;
        for instruction in way_back.iter().chain(before) {
            let mut effect = self.effect(*instruction);
            if instruction.word & STXR.0 == STXR.1 {
                // The count of aborts: here another name than in the section.
                effect.writes.retain(|place| matches!(place, Place::Register(_)));
            }
            for place in effect.writes.iter().filter(|place| live.contains(place)) {
                let cap = match (place, head) {
                    (Place::Memory(base, 32, at, 4), Place::Memory(stack, 32, 0, 8)) => {
                        *base == stack && at + 8 == 0 && !effect.reads.contains(place)
                    }
                    _ => false,
                };
                assert!(
                    cap,
                    "{}: writes {place:?} before the commit, which a restart reads again",
                    self.name(instruction)
                );
                survive += 1;
            }
        }
        survive
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
    let survive = sections.iter().map(Section::check).sum();
    let instructions = sections.iter().map(|section| section.instructions.len()).sum();
    println!(
        "{} sections, {instructions} instructions: none writes what its restart reads, but for {survive} widenings",
        sections.len()
    );
    Checked { sections: sections.len(), instructions, survive }
}

/// The check itself, on sections that are never run.
mod samples {
    use super::{Descriptor, Section};
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

    /// What is said of a section; empty if it is sound.
    fn verdict(sample: &'static Descriptor) -> String {
        let checked = std::panic::catch_unwind(|| Section::of(sample).check());
        checked.err().map_or(String::new(), |said| *said.downcast::<String>().expect("a message"))
    }

    #[test]
    fn what_a_restart_reads_is_found_in_registers_flags_and_memory() {
        assert_eq!((verdict(&sound), verdict(&widening)), (String::new(), String::new()));
        for (sample, expected) in [
            (&register, "+0x0 `91000421`: writes Register(1)"),
            (&half_a_register, "+0x4 `52800021`: writes Register(1)"),
            (&register_on_one_way, "+0xc `d2800021`: writes Register(1)"),
            (&flag, "+0x4 `f100045f`: writes Flags"),
            (&memory, "+0x8 `f9000409`: writes Memory(0, 32, 8, 8)"),
            (&widening_another, "+0x4 `f81f0002`: writes Memory(0, 32, -16, 8)"),
            (&no_commit, "the last instruction is the commit"),
            (&a_call, "+0x0 `d63f0120`: not known here"),
            (&the_kernel, "+0x0 `d4000001`: not known here"),
        ] {
            let said = verdict(sample);
            assert!(said.contains(expected), "{said:?}, expected {expected:?}");
        }
    }
}
