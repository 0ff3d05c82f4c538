//! Operations on regions by restartable sequences: x86-64 and aarch64 Linux, with glibc or musl.
//!
//! This module has the code common to all processors. `rseq/x86_64.rs` and `rseq/aarch64.rs` have only the
//! sections, [`PcpuPtr`]'s four operations, and the processor's access to symbols and thread-local memory.
//! [`registration`] registers threads with the kernel.
//!
//! # The problem
//!
//! Per-CPU data needs no lock if its user cannot be pre-empted during the access. A kernel disables
//! pre-emption; a process cannot. One locked instruction instead (the [claimed slot](super::claimed)) costs
//! three times as much as the rest of an allocation.
//!
//! # The mechanism
//!
//! Linux offers the next best thing: a thread learns that it was pre-empted. Each thread shares a `struct
//! rseq` with the kernel. In it the kernel keeps the number of the thread's CPU (`cpu_id`), and the thread
//! announces the section of code that it is in (`rseq_cs`). Whenever the kernel pre-empts the thread,
//! migrates it, or delivers a signal to it, it checks whether the thread is inside the announced section. If
//! so, the thread does not resume where it was, but at the section's abort address, which runs the section
//! again. So a section that reaches its end ran on one CPU, and no other section of that CPU ran in between.
//!
//! A section therefore uses plain loads and stores, and makes its effect visible by its **last instruction,
//! one store**. Before it nothing has happened; after it, everything. The operations on a region are four
//! such sections ([`PcpuPtr::pop`], [`PcpuPtr::push`], [`PcpuPtr::push_batch`], [`PcpuPtr::pop_batch`]) of
//! one shape:
//!
//! ```text
//!   4: (abort address, out of line, behind the processor's signature) count the abort
//!   5: rseq_cs = address of the descriptor (start 2, end 3, abort 4)
//!   2: region = words[cpu_id]                     start of the section
//!      head = head of the class's stack in that region; its rounds
//!      head = the new one                         the committing store
//!   3:                                            end: the first address behind the commit
//! ```
//!
//! `rseq_cs` need not be cleared at the end: the kernel clears it when it finds the thread outside the range.
//! (Code that contains descriptors must therefore not be unloaded while threads run: never `dlclose` a
//! library built from this.)
//!
//! # Why it is sound
//!
//! * *Two operations of one CPU* never overlap, as shown above. One ends before the next begins on the same
//!   CPU, so program order and the context switch order their memory accesses.
//! * *A restart* begins at 5 with the registers that the aborted attempt left. So before its commit a section
//!   never writes a register, a flag or memory that is read from there on: its inputs stay intact, and only
//!   copies change. A test decodes every section of the program and checks exactly that (`tests/sections`).
//!   Another test interrupts every section at each instruction and runs other operations there
//!   (`rseq_stepper.rs`). One store does survive an abort: a batch that widens its stack writes the new `cap`
//!   first. That value is computed from what the section has read, within limits that hold on every CPU, so
//!   it is a legal `cap` for any later operation.
//! * *A drain from another CPU* points the CPU's word to the empty region and calls
//!   `membarrier(PRIVATE_EXPEDITED_RSEQ)`. When that returns, every section of this process that was running
//!   has committed visibly or will restart, and a restarted section finds the empty region. So the drain owns
//!   the region that the word pointed to.
//! * *A wrong CPU number*: an unregistered thread reads -1 (or -2 if the registration failed); on a CPU
//!   without a region in the table, it reads a number that is too large. There are two spare words in front,
//!   and a word for every number that the kernel may ever use (see [`slots`]). The words that belong to no
//!   CPU point to the empty region, so such a thread misses, without any comparison. The slow path makes it
//!   bypass the stacks. It does **not** use the claimed slot: claims and sections do not exclude each other,
//!   so all operations on a table use one mechanism.
//! * *A signal handler that allocates* is a thread that interrupts a section: the section restarts.
//!
//! # When it is used
//!
//! [`mechanism`] decides once per process: the kernel accepts the registration for the rseq membarrier, *and*
//! the libc registered its threads (`__rseq_size` is not 0) or this module can [register](registration) the
//! current thread. Otherwise, and with **`USLAB_RSEQ=off`** in the environment, the claimed slot serves
//! everything. A debugger that single-steps needs the latter: every step inside a section aborts it, so the
//! section never completes. (Breakpoints behind it are fine.)
//!
//! # One path for both
//!
//! An allocation does not test for the mechanism. A layer that must not use sections has the same [`PcpuPtr`]
//! path as any other. The path points to the table's empty region, where every section misses, and announces
//! its sections in a thread-local scratch area instead of the kernel's. The test comes after a miss.
//!
//! # Measured choices
//!
//! A head is loaded and stored as a whole: `add [word], imm` is one instruction fewer and costs 2 ns more per
//! pair (store forwarding works best for a whole word). Every instruction counts: bounding the CPU's number
//! by a comparison and a conditional move, outside every dependency chain, cost 0.5 of 2.9 ns per pair; hence
//! the spare words.
//!
//! Source: Linux, Documentation/userspace-api/rseq.rst and membarrier(2); glibc manual, "Restartable
//! Sequences".

use super::regions::{Regions, Words};
use super::{MAX_CPUS, Mechanism};
use crate::magazine::Magazine;
use crate::region::{CAP, Class, Header, NULL};
use crate::sync::{Counter, Fixed};
use core::arch::global_asm;
use core::mem::offset_of;
use core::ptr::NonNull;
use nix::libc;
use registration::{SIZE, UNREGISTERED, register};
use sections::{cpu_id_at, scratch, symbols, thread_pointer};
pub use static_words::StaticWords;

mod registration;
#[cfg(target_arch = "aarch64")]
#[path = "rseq/aarch64.rs"]
mod sections;
#[cfg(target_arch = "x86_64")]
#[path = "rseq/x86_64.rs"]
mod sections;
mod static_words;

/// Sections of this process that the kernel sent to their abort address.
static ABORTS: Counter = Counter::new(0);

/// Number of section restarts in this process.
pub(crate) fn aborts() -> u64 {
    ABORTS.get()
}

/// Offsets in `struct rseq`.
const CPU_ID: usize = registration::CPU_ID;
const RSEQ_CS: usize = 8;
/// Offset of the committed size in a region.
const COMMITTED: usize = offset_of!(Header, committed);

/// Offset of the libc's `struct rseq` from the thread pointer; `None` if the kernel does not maintain the
/// fields that sections use.
fn libc_area() -> Option<isize> {
    let (offset, size, _) = symbols();
    // SAFETY: if defined, they are the libc's constants: `const ptrdiff_t` and `const unsigned int`.
    let (offset, size) = unsafe { (offset.as_ref()?, size.as_ref()?) };
    (*size as usize >= RSEQ_CS + size_of::<u64>()).then_some(*offset)
}
/// Offset of the libc's area, or else of this module's area, which the kernel maintains in registered
/// threads.
fn area() -> isize {
    libc_area().unwrap_or_else(|| scratch() + SIZE as isize)
}

// Thread-local memory of twice the size of `struct rseq`: a scratch area for layers without sections, and an
// area for threads that the libc does not register, which starts as unregistered. It is in the static TLS
// block, as [`scratch`] requires, so its offset is the same in every thread. Weak: two copies of this crate
// in one program share it.
global_asm!(
    ".pushsection .tdata.uslab_rseq_scratch, \"awT\", @progbits",
    ".balign 32",
    ".weak uslab_rseq_scratch",
    ".hidden uslab_rseq_scratch",
    ".type uslab_rseq_scratch, @object",
    "uslab_rseq_scratch: .zero 32",
    ".long 0, -1",
    ".zero 24",
    ".size uslab_rseq_scratch, 64",
    ".popsection",
);

/// The CPU that this thread runs on, as a hint; `u32::MAX` or slightly less in a thread without a
/// registration. Registers the thread if the libc does not.
#[inline]
pub(crate) fn cpu_id() -> u32 {
    match cpu_id_at(area()) {
        UNREGISTERED => first_use(),
        cpu => cpu,
    }
}
/// Returns `true` if this call registered the thread: an operation that missed may then hit.
pub(crate) fn joins() -> bool {
    cpu_id_at(area()) == UNREGISTERED && first_use() < registration::REFUSED
}
#[cold]
fn first_use() -> u32 {
    if chosen() != CLAIMED && libc_area().is_none() {
        register_thread();
    }
    cpu_id_at(area())
}
fn register_thread() -> bool {
    // SAFETY: the address is this thread's area in its TLS block.
    unsafe { register(thread_pointer().offset(area()).cast()) }
}

/// Defines the descriptor `66` of a section from `2` to `3` that aborts to `4`, and the section's entry for
/// tools.
macro_rules! descriptor {
    () => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "66: .long 0, 0\n", // version, flags
            ".quad 2f, 3f - 2f, 4f\n",
            ".popsection\n",
            ".pushsection __rseq_cs_ptr_array, \"awR\"\n", // kept though nothing refers to it
            ".quad 66b\n",
            ".popsection",
        )
    };
}
use descriptor;

// ---------------------------------------------------------------- the choice of the mechanism

/// 0 until decided; then [`CLAIMED`], or the number of words of a table.
static CHOSEN: Fixed = Fixed::new(0);
const CLAIMED: u32 = 1;

/// The mechanism of this process's layers on real CPUs. Decided at the first call; allocates nothing.
pub(crate) fn mechanism() -> Mechanism {
    if chosen() == CLAIMED { Mechanism::Claimed } else { Mechanism::Rseq }
}

/// Number of words of a table for `cpus` CPUs. For sections it is one for every number that the kernel may
/// use, so that none points outside the table.
pub(crate) fn slots(cpus: u32, mechanism: Mechanism) -> u32 {
    match mechanism {
        Mechanism::Rseq => cpus.max(chosen()),
        Mechanism::Claimed => cpus,
    }
}

fn chosen() -> u32 {
    match CHOSEN.get() {
        0 => {
            // Two concurrent first calls decide alike.
            let serve =
                !switched_off() && membarrier(REGISTER, None) && (libc_area().is_some() || register_thread());
            let chosen = if serve { most_cpus().unwrap_or(CLAIMED) } else { CLAIMED };
            CHOSEN.set(chosen);
            chosen
        }
        chosen => chosen,
    }
}

/// A bound on the kernel's CPU numbers: the size of its CPU masks, at least [`MAX_CPUS`] (a process may
/// migrate to a larger machine). `None` if it exceeds what Linux supports, or is unknown.
fn most_cpus() -> Option<u32> {
    const BYTES: usize = 8192 / 8;
    let mut mask = [0_u64; BYTES / size_of::<u64>()];
    // SAFETY: the kernel writes at most `BYTES` bytes to the mask. A direct system call, because it returns
    // the number of bytes in a mask; the libc's wrapper does not.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, BYTES, mask.as_mut_ptr()) };
    let cpus = u32::try_from(bytes).ok()?.checked_mul(8)?;
    (cpus > 0).then_some(cpus.max(MAX_CPUS))
}

/// Returns `true` if the environment has `USLAB_RSEQ=off`. Warns on stderr about a value other than `on` and
/// `off`.
fn switched_off() -> bool {
    // Not `std::env`, which allocates: a global allocator calls this.
    // SAFETY: the name ends in a NUL. As with any C library, no thread may change the environment
    // concurrently.
    let value = unsafe { libc::getenv(c"USLAB_RSEQ".as_ptr()) };
    if value.is_null() {
        return false;
    }
    // SAFETY: the libc's strings end in a NUL.
    let value = unsafe { core::ffi::CStr::from_ptr(value) }.to_bytes();
    if !matches!(value, b"" | b"on" | b"off") {
        use std::io::Write;
        // If stderr is closed, the warning is lost.
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

/// Returns `true` if the process has never had another thread, as reported by glibc 2.32 and later. Then only
/// the caller's own sections have run, and they have ended: a signal handler aborts the section that it
/// interrupts. `false` if the libc does not report it.
fn is_single_threaded() -> bool {
    // SAFETY: null, or the libc's `char`, which only a thread that starts another one writes; while it is not
    // 0, that is this thread.
    unsafe { symbols().2.as_ref().is_some_and(|alone| core::ptr::read_volatile(alone) != 0) }
}

/// Waits until every section of `cpus` that began before the call has committed or will restart. Returns
/// `false` if the kernel refuses (a sandbox was closed after the start): then nothing is guaranteed.
///
/// Cost: none while the process has one thread; then 0.15 us if none of the process's threads is running, 16
/// us if one is, for one CPU or all.
pub(crate) fn fence(_: &impl Regions, cpus: impl Iterator<Item = u32>) -> bool {
    if cfg!(uslab_control = "nobarrier") {
        return true;
    }
    let mut cpus = cpus.peekable();
    let Some(first) = cpus.next() else { return true };
    let one = (cpus.peek().is_none() || cfg!(uslab_control = "onefence")).then_some(first);
    #[cfg(test)]
    tests::FENCES.add(1);
    if is_single_threaded() {
        return true;
    }
    // The kernel forgets the registration in a process that does not inherit all memory; a second request is
    // cheap.
    membarrier(FENCE, one) || membarrier(REGISTER, None) && membarrier(FENCE, one)
}

// ---------------------------------------------------------------- the sections

/// A one-stack region that is never written: every section misses in it. The scratch area has CPU 0 for all
/// threads.
#[repr(C)]
struct Nowhere {
    word: *const u8,
    cap: usize,
    head: usize,
    null: usize,
}
// SAFETY: no thread writes to it: every section misses, and it belongs to no table.
unsafe impl Sync for Nowhere {}
/// The class of a fast path that is disabled.
pub(crate) const NO_CLASS: Class = Class { index: 0, stack: offset_of!(Nowhere, head) as u32 };
static NOWHERE: Nowhere = Nowhere { word: (&raw const NOWHERE).cast(), cap: 0, head: 0, null: 0 };
const _: () = assert!(offset_of!(Nowhere, head) - offset_of!(Nowhere, cap) == CAP);
const _: () = assert!(offset_of!(Nowhere, null) - offset_of!(Nowhere, head) == NULL);

/// The inputs of a section apart from its class: the table's words, and the place to announce sections.
///
/// Valid while the table lives; the holder of both guarantees that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PcpuPtr {
    words: NonNull<u8>,
    area: isize,
}

// SAFETY: the fields are numbers, and any thread may use the table that they point to.
unsafe impl Send for PcpuPtr {}
// SAFETY: the fields are numbers, and any thread may use the table that they point to.
unsafe impl Sync for PcpuPtr {}

impl PcpuPtr {
    /// Creates a pointer to these words of `table` if sections serve the table, else to its empty region.
    pub(crate) fn new(table: &impl Regions, words: Words) -> Self {
        match table.words(words) {
            Some(words) => Self { words, area: area() },
            None => Self { words: table.spare_words(), area: scratch() },
        }
    }
    /// The CPU that this thread runs on, as sections read it.
    #[inline(always)]
    pub(crate) fn cpu(&self) -> u32 {
        cpu_id_at(self.area)
    }
    /// Creates a pointer with which every section of [`NO_CLASS`] misses.
    pub(crate) fn disabled() -> Self {
        Self { words: NonNull::from(&NOWHERE.word).cast(), area: scratch() }
    }
}

pub(crate) fn push_batch(_: &impl Regions, pcpu: PcpuPtr, class: Class, rounds: &[NonNull<u8>]) -> bool {
    rounds.is_empty() || pcpu.push_batch(class, rounds)
}
pub(crate) fn pop_batch(_: &impl Regions, pcpu: PcpuPtr, class: Class, n: u32, into: &mut Magazine) -> bool {
    n == 0 || into.fill_with(n, |rounds| pcpu.pop_batch(class, n, rounds))
}

#[cfg(test)]
#[path = "rseq_tests.rs"]
mod tests;
