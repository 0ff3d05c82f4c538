//! The slot contract by restartable sequences: x86-64 Linux with glibc 2.35 or newer.
//!
//! # The problem
//!
//! A per-CPU slot needs no lock if whoever uses it cannot be pre-empted meanwhile. A kernel turns pre-emption off; a
//! process cannot. One locked instruction instead (the [claimed slot](super::claimed)) costs three times as much as
//! everything else that an allocation does.
//!
//! # The mechanism
//!
//! Linux lets a thread do the next best thing: be *told* that it was pre-empted. Each thread shares a `struct rseq`
//! with the kernel, in which the kernel keeps the number of the CPU that the thread runs on (`cpu_id`) and the thread
//! announces the section of code that it is in (`rseq_cs`). Whenever the kernel pre-empts the thread, moves it, or
//! delivers a signal to it, it looks: is the thread inside the announced section? Then it does not return to where it
//! was but to the section's abort address, from where the section is run again. So a section that reaches its end
//! ran on one CPU, and no other section of that CPU ran in between.
//!
//! A section therefore works with plain loads and stores, and makes everything visible by its **last instruction, one
//! store**. Up to there nothing happened; behind it, everything. The three operations of the contract are three such
//! sections ([`Fast::pop`], [`Fast::push`], [`Fast::replace`]), of one shape:
//!
//! ```text
//!   4: (abort address, out of line, behind the signature 0x53053053)  count the abort
//!   5: rseq_cs = address of the descriptor (start 2, end 3, abort 4)
//!   2: cpu = cpu_id                               start of the section
//!      pair = slot of cpu; magazine; word; round
//!      the committing store
//!   3:                                            end: the first address behind the commit
//! ```
//!
//! `rseq_cs` need not be cleared at the end: the kernel clears it when it finds the thread outside the range. (Code
//! that holds descriptors must therefore not be unloaded while threads run: never `dlclose` a library made of this.)
//!
//! # Why it is sound
//!
//! * *Two operations of one CPU*: they never overlap, as above; and as one ends before the next begins on the same
//!   CPU, program order and the context switch order their memory accesses.
//! * *A restart* begins at 5 with the registers that the aborted attempt left. So a section never writes, before its
//!   commit, a register, a flag or memory that is read from there on: its inputs stay as they are, and what changes is a
//!   copy. (A `replace` that once changed an input let a partly filled magazine leave as a full one.) A test decodes
//!   every section of the program and looks at just that (`tests/sections`); another one interrupts every section at each
//!   instruction and lets other operations run meanwhile (`rseq_stepper.rs`).
//! * *A drain from another CPU* swaps the slot for sentinels and then calls `membarrier(PRIVATE_EXPEDITED_RSEQ)`:
//!   when that returns, every section of this process that was running anywhere has committed or will restart, and
//!   what it committed is visible. A restarted section finds the sentinel. So what the drain took is the drain's.
//! * *`replace` against a drain*: both write the slot, so the commit is a compare-and-exchange. It fails if the drain
//!   was first; if it was first, the drain takes what it installed. The magazine that leaves is the caller's only then.
//! * *A wrong CPU number*: an unregistered thread reads -1 (or -2, where the registration failed), and on a CPU that
//!   the layer has no slot for a number that is too large. The table of slots therefore has two spare slots in front and
//!   spans every number that the kernel may ever give (see [`slots`]): what is no CPU's slot always holds sentinels,
//!   so such a thread misses, with no comparison at all. `replace` refuses it. The slow path sends such threads round the magazines. It does **not** send them to the claimed slot: claims and
//!   sections do not exclude each other, so all operations on a layer are of one mechanism.
//! * *A signal handler that allocates* is a thread that interrupts a section: the section restarts.
//!
//! # When it serves
//!
//! [`mechanism`] decides once per process: the libc registered its threads (`__rseq_size` is not 0) *and* the kernel
//! accepts the registration for the rseq membarrier. Else, and where the environment says **`USLAB_RSEQ=off`**, the
//! claimed slot serves everything. A debugger that single-steps needs that: every step inside a section aborts it,
//! so stepping through one never ends. (Breakpoints behind it are fine.)
//!
//! # One path for both
//!
//! An allocation does not ask which mechanism serves. A layer that sections may not touch has the same [`Fast`] pointer
//! as any other; it points to [`NOWHERE`], a table of no CPUs, where every section misses, and announces its sections
//! in a thread-local scratch area instead of the kernel's. The question is asked on the slow path, which a miss takes
//! anyway.
//!
//! # Measured choices
//!
//! The word of a magazine is loaded and stored whole: `add [word], imm` is an instruction less and costs 2 ns more a
//! pair (load and store of one whole word forward best). Every instruction counts: a bound on the CPU's number by a
//! comparison and a conditional move, off every chain of dependences, cost 0.5 of 2.9 ns a pair; hence the spare slots.
//!
//! Source: Linux, Documentation/userspace-api/rseq.rst and membarrier(2); glibc manual, "Restartable Sequences".

use super::{MAX_CPUS, Mechanism};
use crate::memory::Memory;
use crate::slot::{Fill, Pair, Pop, Push, Replace, Slot, Which};
use crate::store::{FIRST_SLOT, Front, Header, MAG_OP, Store};
use crate::sync::{Counter, Fixed};
use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::ptr::NonNull;
use nix::libc;

/// Sections that the kernel sent to their abort address, in this process.
static ABORTS: Counter = Counter::new(0);

/// How often a section of this process was restarted.
pub(crate) fn aborts() -> u64 {
    ABORTS.get()
}

// ---------------------------------------------------------------- the registration

/// `struct rseq`: where its fields lie.
const CPU_ID: usize = 4;
const RSEQ_CS: usize = 8;

/// Where the libc keeps the `struct rseq` of each thread, relative to the thread pointer, and how many bytes of it the
/// kernel serves (0: there is no registration).
///
/// The symbols are referenced weakly and through the GOT, so that the program also starts on a libc without them.
fn registration() -> Option<isize> {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: loads two addresses from the GOT; an undefined weak symbol's is null.
    unsafe {
        asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
            offset = out(reg) offset,
            size = out(reg) size,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    // SAFETY: where defined, they are the libc's constants: `const ptrdiff_t` and `const unsigned int`.
    let (offset, size) = unsafe { (offset.as_ref()?, size.as_ref()?) };
    (*size as usize >= RSEQ_CS + size_of::<u64>()).then_some(*offset)
}

// Thread-local memory of the size of `struct rseq`, for layers and threads that the kernel does not serve. In the static
// TLS block, as `gottpoff` below demands: so its offset is the same in every thread. Weak: two copies of this crate in
// one program share it.
global_asm!(
    ".pushsection .tbss.uslab_rseq_scratch, \"awT\", @nobits",
    ".balign 32",
    ".weak uslab_rseq_scratch",
    ".hidden uslab_rseq_scratch",
    ".type uslab_rseq_scratch, @object",
    "uslab_rseq_scratch: .zero 32",
    ".size uslab_rseq_scratch, 32",
    ".popsection",
);

/// The offset of that memory from the thread pointer.
fn scratch() -> isize {
    let offset;
    // SAFETY: loads a link-time constant from the GOT.
    unsafe {
        asm!("mov {offset}, qword ptr [rip + uslab_rseq_scratch@GOTTPOFF]", offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    offset
}

/// The CPU that this thread runs on, as a hint; `u32::MAX` or near it in a thread without a registration.
#[inline]
pub(crate) fn cpu_id() -> u32 {
    let Some(area) = registration() else { return u32::MAX };
    let cpu: u32;
    // SAFETY: `area` is the libc's `struct rseq` of every thread, registered or not.
    unsafe {
        asm!("mov {cpu:e}, dword ptr fs:[{area} + {at}]", cpu = out(reg) cpu, area = in(reg) area,
            at = const CPU_ID, options(nostack, readonly, preserves_flags));
    }
    cpu
}

// ---------------------------------------------------------------- the choice of the mechanism

/// 0 until decided; [`CLAIMED`], or how many slots a table spans.
static CHOSEN: Fixed = Fixed::new(0);
const CLAIMED: u32 = 1;

/// Which mechanism serves this process's layers on real CPUs. Decided at the first call; allocates nothing.
pub(crate) fn mechanism() -> Mechanism {
    if chosen() == CLAIMED { Mechanism::Claimed } else { Mechanism::Rseq }
}

/// How many slots the table of a layer on `cpus` CPUs spans: for sections, a slot for every number that the kernel may
/// give, so that none leads out of the table. Slots beyond `cpus` are address space, never written.
pub(crate) fn slots(cpus: u32, mechanism: Mechanism) -> u32 {
    match mechanism {
        Mechanism::Rseq => cpus.max(chosen()),
        Mechanism::Claimed => cpus,
    }
}

fn chosen() -> u32 {
    match CHOSEN.get() {
        0 => {
            // Two threads that come first at the same time decide alike.
            let serve = !switched_off() && registration().is_some() && membarrier(REGISTER, None);
            let chosen = if serve { most_cpus().unwrap_or(CLAIMED) } else { CLAIMED };
            CHOSEN.set(chosen);
            chosen
        }
        chosen => chosen,
    }
}

/// A bound on the numbers that the kernel gives to CPUs: the size of its own CPU masks, [`MAX_CPUS`] at least (a process
/// may be carried to a larger machine). `None` if it is beyond what Linux can be built for, or not to be had.
fn most_cpus() -> Option<u32> {
    const BYTES: usize = 8192 / 8;
    let mut mask = [0_u64; BYTES / size_of::<u64>()];
    // SAFETY: the kernel writes at most `BYTES` bytes to the mask. The call itself and not the libc's: its answer is the
    // number of bytes in a mask.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, BYTES, mask.as_mut_ptr()) };
    let cpus = u32::try_from(bytes).ok()?.checked_mul(8)?;
    (cpus > 0).then_some(cpus.max(MAX_CPUS))
}

/// Whether the environment says `USLAB_RSEQ=off`. A value that is neither `on` nor `off` is named on stderr.
fn switched_off() -> bool {
    // Not `std::env`, which allocates: this is reached from inside a global allocator.
    // SAFETY: the name ends in a NUL. As anywhere in a C library, nobody may change the environment at the same time.
    let value = unsafe { libc::getenv(c"USLAB_RSEQ".as_ptr()) };
    if value.is_null() {
        return false;
    }
    // SAFETY: the libc's strings end in a NUL.
    let value = unsafe { core::ffi::CStr::from_ptr(value) }.to_bytes();
    if !matches!(value, b"" | b"on" | b"off") {
        use std::io::Write;
        // There is nobody to tell that stderr is closed.
        let _ = writeln!(
            std::io::stderr(),
            "uslab: USLAB_RSEQ={}: expected on or off; ignored",
            value.escape_ascii()
        );
    }
    value == b"off"
}

// ---------------------------------------------------------------- the fence

const REGISTER: libc::c_int = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ as libc::c_int;
const FENCE: libc::c_int = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ as libc::c_int;

fn membarrier(command: libc::c_int, cpu: Option<u32>) -> bool {
    /// `MEMBARRIER_CMD_FLAG_CPU`.
    const ONE_CPU: libc::c_int = 1;
    let flags = if cpu.is_some() { ONE_CPU } else { 0 };
    // SAFETY: `membarrier` takes three numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu.unwrap_or(0)) == 0 }
}

/// Returns when every section of `cpus` that began before has committed or will restart; `false` if the kernel
/// refuses (a sandbox that was closed after the start): then nothing is known.
///
/// Cost: 0.15 us where none of our threads runs, 16 us where one does, whether one CPU or all.
pub(crate) fn fence<M: Memory>(_: &Store<M>, cpus: impl Iterator<Item = u32>) -> bool {
    if cfg!(uslab_control = "nobarrier") {
        return true;
    }
    let mut cpus = cpus.peekable();
    let Some(first) = cpus.next() else { return true };
    let one = cpus.peek().is_none().then_some(first);
    // The kernel forgets the registration where memory is not inherited as a whole; asking twice is cheap.
    membarrier(FENCE, one) || membarrier(REGISTER, None) && membarrier(FENCE, one)
}

// ---------------------------------------------------------------- the sections

/// A table of no CPUs: every section misses in it. The scratch area says CPU 0 to all threads.
#[repr(C)]
struct Nowhere {
    front: Front,
    slot: Slot,
}
// SAFETY: nobody writes to it: every section misses, and no store has it.
unsafe impl Sync for Nowhere {}
// SAFETY: zeroed memory is a front of no CPUs, and an empty slot.
static NOWHERE: Nowhere = unsafe { core::mem::zeroed() };

/// All that a section needs: the store's first byte, and where sections are announced.
///
/// Valid while the store lives; the layer that holds both sees to that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fast {
    base: NonNull<u8>,
    area: isize,
}

// SAFETY: two numbers; what they lead to is the store, which any thread may use.
unsafe impl Send for Fast {}
// SAFETY: as above.
unsafe impl Sync for Fast {}

/// A round's distance from the start of its magazine.
const ROUNDS: usize = size_of::<Header>();
const WORD: usize = offset_of!(Header, word);
const CAPACITY: usize = offset_of!(Header, capacity);
const COUNT: usize = offset_of!(Front, cpus);
const _: () = assert!(WORD == 0 && size_of::<Slot>() == 1 << 7);

/// Where the pair of a slot lies, seen from `base + (cpu << 7)`.
const fn pair_at(which: usize) -> usize {
    FIRST_SLOT + offset_of!(Slot, pairs) + which * size_of::<u64>()
}

/// The common part of the sections. `66` the descriptor, `4` the abort address, `5` (re)start, `2` start of the
/// section; the body ends with the commit and `3:`. On entry to the body `t` is the distance of this CPU's slot from
/// the first one, a spare slot's if this CPU has none.
macro_rules! section { ([$($body:tt)*] [$($operands:tt)*]) => {
    asm!(
        ".pushsection __rseq_cs, \"aw\"",
        ".balign 32",
        "66: .long 0, 0",                                  // version, flags
        ".quad 2f, 3f - 2f, 4f",
        ".popsection",
        ".pushsection __rseq_cs_ptr_array, \"awR\"",       // where tools look for descriptors; kept unreferenced
        ".quad 66b",
        ".popsection",
        ".pushsection .text.uslab_rseq_abort, \"ax\"",
        ".byte 0x0f, 0xb9, 0x3d",                          // an undefined instruction: the signature is never run
        ".long 0x53053053",
        "4: lock inc qword ptr [rip + {aborts}]",
        "jmp 5f",
        ".popsection",
        "5: lea {t}, [rip + 66b]",
        #[cfg(not(uslab_control = "unarmed"))]
        "mov qword ptr fs:[{area} + {rseq_cs}], {t}",
        "2: movsxd {t}, dword ptr fs:[{area} + {cpu_id}]",
        "shl {t}, 7",
        $($body)*
        // Names what a control leaves unused.
        "# {rseq_cs}",
        aborts = sym ABORTS,
        rseq_cs = const RSEQ_CS,
        cpu_id = const CPU_ID,
        $($operands)*
    )
} }

impl Fast {
    /// For the layer of `store`: to its slots if sections serve it, else to nowhere.
    pub(crate) fn new<M: Memory>(store: &Store<M>, mechanism: Mechanism) -> Self {
        match (mechanism, registration()) {
            (Mechanism::Rseq, Some(area)) => Self { base: store.base(), area },
            _ => Self::nowhere(),
        }
    }
    /// Every section misses.
    pub(crate) fn nowhere() -> Self {
        Self { base: NonNull::from(&NOWHERE).cast(), area: scratch() }
    }

    /// A round of this CPU's loaded magazine; `None` if it is empty, or this thread has no slot.
    #[inline(always)]
    pub(crate) fn pop<const WHICH: usize>(&self) -> Option<NonNull<u8>> {
        let round: *mut u8;
        // SAFETY:
        // * `base` leads to a table of slots and their magazines, and every number that the kernel may give to a slot in
        //   it; a slot holds numbers of magazines that exist, and a round below `len` is initialised.
        // * Only sections of this CPU store to what this one stores to; see the module. Nothing is stored in a
        //   magazine of length 0, so neither in the sentinel.
        // * `area` is this thread's `struct rseq`, or scratch.
        unsafe {
            section!([
                "mov {m:e}, dword ptr [{base} + {t} + {pair}]",   // loaded
                "lea {m}, [{base} + {m}*8]",
                "mov {t}, qword ptr [{m}]",                       // len:16 | ops:48
                "movzx {n:e}, {t:x}",
                "test {n:e}, {n:e}",
                "jz 7f",
                "mov {round}, qword ptr [{m} + {n}*8 + {rounds} - 8]",
                #[cfg(any(uslab_control = "wide", uslab_control = "nobarrier"))]
                "pause",
                "add {t}, {one}",                                 // ops + 1, len - 1
                "mov qword ptr [{m}], {t}",                       // commit
                "3:",
                ".pushsection .text.uslab_rseq_miss, \"ax\"",
                "7: xor {round:e}, {round:e}",
                "jmp 3b",
                ".popsection",
            ] [
                t = out(reg) _, m = out(reg) _, n = out(reg) _, round = out(reg) round,
                base = in(reg) self.base.as_ptr(), area = in(reg) self.area,
                pair = const pair_at(WHICH), rounds = const ROUNDS, one = const MAG_OP - 1,
                options(nostack)
            ]);
        }
        NonNull::new(round)
    }

    /// Puts a round on this CPU's loaded magazine; `false` if it is full, or this thread has no slot.
    #[inline(always)]
    pub(crate) fn push<const WHICH: usize>(&self, round: NonNull<u8>) -> bool {
        // SAFETY: as in `pop`. The round is stored at `len`, below the capacity, where nobody reads before `len` moves;
        // the sentinel's capacity is 0.
        unsafe {
            section!([
                "mov {m:e}, dword ptr [{base} + {t} + {pair}]",
                "lea {m}, [{base} + {m}*8]",
                "mov {t}, qword ptr [{m}]",
                "movzx {n:e}, {t:x}",
                "cmp {n:x}, word ptr [{m} + {capacity}]",
                "jae {miss}",
                "mov qword ptr [{m} + {n}*8 + {rounds}], {round}",
                #[cfg(any(uslab_control = "wide", uslab_control = "nobarrier"))]
                "pause",
                "add {t}, {one}",                                 // ops + 1, len + 1
                "mov qword ptr [{m}], {t}",                       // commit
                "3:",
            ] [
                t = out(reg) _, m = out(reg) _, n = out(reg) _, round = in(reg) round.as_ptr(),
                base = in(reg) self.base.as_ptr(), area = in(reg) self.area,
                pair = const pair_at(WHICH), rounds = const ROUNDS, one = const MAG_OP + 1,
                capacity = const CAPACITY,
                miss = label { return false },
                options(nostack)
            ]);
        }
        true
    }

    /// Replaces this CPU's pair `old` by `new` if, in the same section, the magazine `previous` of `old` has
    /// `len & mask == want`; a `want` of [`ITS_CAPACITY`] is the magazine's capacity.
    fn replace<const WHICH: usize>(&self, old: Pair, new: Pair, mask: u32, want: u32) -> bool {
        let done: u32;
        // SAFETY: as in `pop`; a number in `old` that the slot holds is that of a magazine. Spare slots (before the first
        // one, or beyond the count) are refused: they stay empty. The commit is atomic towards drains.
        unsafe {
            section!([
                "xor {done:e}, {done:e}",
                "mov {m:e}, dword ptr [{base} + {count}]",
                "shl {m}, 7",
                "cmp {t}, {m}",
                "jae 6f",
                "cmp rax, qword ptr [{base} + {t} + {pair}]",
                "jne 6f",
                "mov {m}, rax",
                "shr {m}, 32",                                    // previous
                "lea {m}, [{base} + {m}*8]",
                "mov {w:e}, {want:e}",                            // a copy: what restarts needs `want` again
                "cmp {w:e}, -1",
                "cmove {w:x}, word ptr [{m} + {capacity}]",
                #[cfg(uslab_control = "clobber")]
                "mov {want:e}, {w:e}",
                "mov {m:e}, dword ptr [{m}]",                     // its len, and low bits of its ops
                "and {m:e}, {mask:e}",
                "cmp {m:x}, {w:x}",
                #[cfg(not(uslab_control = "nofill"))]
                "jne 6f",
                #[cfg(not(uslab_control = "plainstore"))]
                "lock cmpxchg qword ptr [{base} + {t} + {pair}], {new}", // commit
                #[cfg(uslab_control = "plainstore")]
                "mov qword ptr [{base} + {t} + {pair}], {new}",
                #[cfg(uslab_control = "plainstore")]
                "cmp eax, eax",
                "3: sete {done:l}",                               // behind the section
                "6:",
            ] [
                t = out(reg) _, m = out(reg) _, w = out(reg) _, done = out(reg) done,
                inout("rax") old.word() => _, new = in(reg) new.word(),
                mask = in(reg) mask, capacity = const CAPACITY,
                #[cfg(not(uslab_control = "clobber"))]
                want = in(reg) want,
                #[cfg(uslab_control = "clobber")]
                want = inout(reg) want => _,
                base = in(reg) self.base.as_ptr(), area = in(reg) self.area,
                pair = const pair_at(WHICH), count = const COUNT,
                options(nostack)
            ]);
        }
        done != 0
    }
}

// ---------------------------------------------------------------- the contract

const ROUND: usize = Which::Rounds as usize;
const FULL: usize = Which::Full as usize;
const EMPTY: usize = Which::Empty as usize;

/// What [`Fast::replace`] takes for the capacity of the magazine that leaves.
const ITS_CAPACITY: u32 = u32::MAX;

/// What a section that did nothing means.
fn has_slot<M: Memory>(store: &Store<M>) -> bool {
    store.slot(cpu_id()).is_some()
}

pub(crate) fn pop<M: Memory>(store: &Store<M>, fast: Fast, which: Which) -> Pop {
    let round = match which {
        Which::Rounds => fast.pop::<ROUND>(),
        Which::Full => fast.pop::<FULL>(),
        Which::Empty => fast.pop::<EMPTY>(),
    };
    match round {
        Some(round) => Pop::Round(round),
        None if has_slot(store) => Pop::Miss,
        None => Pop::Busy,
    }
}

pub(crate) fn push<M: Memory>(store: &Store<M>, fast: Fast, which: Which, round: NonNull<u8>) -> Push {
    let done = match which {
        Which::Rounds => fast.push::<ROUND>(round),
        Which::Full => fast.push::<FULL>(round),
        Which::Empty => fast.push::<EMPTY>(round),
    };
    match done {
        true => Push::Done,
        false if has_slot(store) => Push::Miss,
        false => Push::Busy,
    }
}

pub(crate) fn replace<M: Memory>(
    _: &Store<M>,
    fast: Fast,
    which: Which,
    old: Pair,
    new: Pair,
    leaving: Fill,
) -> Replace {
    let (mask, want) = match leaving {
        Fill::Any => (0, 0),
        Fill::Empty => (0xffff, 0),
        Fill::Full => (0xffff, ITS_CAPACITY),
    };
    let done = match which {
        Which::Rounds => fast.replace::<ROUND>(old, new, mask, want),
        Which::Full => fast.replace::<FULL>(old, new, mask, want),
        Which::Empty => fast.replace::<EMPTY>(old, new, mask, want),
    };
    if done { Replace::Done } else { Replace::Changed }
}

#[cfg(test)]
#[path = "rseq_tests.rs"]
mod tests;
