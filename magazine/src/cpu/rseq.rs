//! Region operations as restartable sequences, on x86-64 and aarch64 Linux with glibc or musl.
//!
//! This module has the code that all processors share. `rseq/x86_64.rs` and `rseq/aarch64.rs` have the sequences
//! (*sections*) of [`PcpuPtr`]'s four operations, and the processor-specific access to symbols and thread-locals.
//! [`registration`] registers threads with the kernel.
//!
//! # The problem
//!
//! Per-CPU data needs no lock if the accessing thread cannot be pre-empted. A kernel can disable pre-emption, but a
//! process cannot. A locked instruction (the [claimed slot](super::claimed)) costs three times as much as the rest of
//! an allocation.
//!
//! # The mechanism
//!
//! Linux lets a thread detect that it was pre-empted. Each thread shares a `struct rseq` with the kernel. In
//! `struct rseq`, the kernel stores the thread's CPU number (`cpu_id`), and the thread stores a pointer to
//! the section that it runs (`rseq_cs`). When the kernel pre-empts or migrates a thread, or delivers a
//! signal, the kernel checks whether the thread is inside its announced section. A thread that was inside its
//! section continues at the section's abort address, which restarts the section. A section that reaches its
//! end has run on a single CPU, and no other section ran on that CPU in between.
//!
//! A section therefore uses plain loads and stores. The **last instruction of a section is one store**; this store
//! makes the section's effect visible. Before its last store, a section has had no effect; after the store, its
//! operation is complete. Region operations are four sections of one shape: [`PcpuPtr::pop`], [`PcpuPtr::push`],
//! [`PcpuPtr::push_batch`] and [`PcpuPtr::pop_batch`].
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
//! A section need not clear `rseq_cs` at its end: the kernel clears the field when it finds the thread outside the
//! section. Code that contains section descriptors must not be unloaded while threads run. Never call `dlclose` on a
//! library that contains this crate.
//!
//! # Why it is sound
//!
//! * *Two operations of one CPU* never overlap. Consecutive operations of a CPU are ordered by program order or by the
//!   context switch between them.
//! * *A restart* begins at label 5 with the registers that the aborted attempt left. Before its commit, a
//!   section never writes a register, a flag or memory that a restart reads. A section changes only copies of
//!   its inputs. A test decodes every section of the program and checks that inputs stay unchanged
//!   (`tests/sections`). Another test interrupts every section at each instruction and runs other operations
//!   there (`rseq_stepper.rs`). Only one store survives an abort: a batch that grows its stack writes the new
//!   `cap` before the commit. The new `cap` is within limits that hold on every CPU, so it is valid for any
//!   later operation.
//! * *A drain from another CPU* points the CPU's word to the empty region and calls
//!   `membarrier(PRIVATE_EXPEDITED_RSEQ)`. When `membarrier` returns, every section that was running has
//!   committed or will restart. A restarted section finds the empty region, to which the drain has pointed
//!   the CPU's word. After `membarrier`, the drain owns the CPU's region.
//! * *A wrong CPU number*: an unregistered thread reads -1, or -2 if the registration failed. On a CPU
//!   without a region, a thread reads a number that is too large. A table has two spare words in front of CPU
//!   0's word, and one word for every possible CPU number of the kernel (see [`word_count`]). Every word that
//!   belongs to no CPU points to the empty region. A thread with a wrong CPU number therefore misses without
//!   any comparison of CPU numbers. The slow path of a thread with a wrong CPU number bypasses the stacks.
//!   The slow path does **not** use the claimed slot: claims and sections do not exclude each other, so a
//!   table uses only one mechanism.
//! * *A signal handler may allocate*: the signal aborts the section that it interrupts, and the section
//!   restarts after the handler.
//!
//! # When it is used
//!
//! [`mechanism`] decides once per process. Restartable sequences need the kernel's rseq membarrier, and
//! threads registered by the libc (`__rseq_size` is not 0) or by this module ([registration](registration)).
//! Without restartable sequences, or with **`USLAB_RSEQ=off`** in the environment, the claimed slot serves
//! all operations. A debugger that single-steps needs `USLAB_RSEQ=off`: every step aborts the section, which
//! never completes. Breakpoints outside a section are harmless.
//!
//! # One path for both
//!
//! The code of an allocation does not test which mechanism is in use. A layer that must not use sections has
//! a [`PcpuPtr`] path like every other layer. The path of a layer without sections points to the table's
//! empty region, so every section misses. A thread announces the sections of a disabled path in a
//! thread-local scratch area, which the kernel ignores. A slow path tests for the mechanism after the miss.
//!
//! # Measured choices
//!
//! A section loads and stores the head of a stack as one whole word. `add [word], imm` saves one instruction
//! but costs 2 ns more per allocation and free, because store forwarding works best for whole words. A bounds
//! check of the CPU number, compiled to a conditional move, cost 0.5 ns of the 2.9 ns for an allocation and
//! free. Spare words make a bounds check of the CPU number unnecessary.
//!
//! Source: Linux, Documentation/userspace-api/rseq.rst and membarrier(2); glibc manual, "Restartable Sequences".

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
use sections::{cpu_id_at, scratch_offset, symbols, thread_pointer};
pub use static_words::StaticWords;

mod registration;
#[cfg(target_arch = "aarch64")]
#[path = "rseq/aarch64.rs"]
mod sections;
#[cfg(target_arch = "x86_64")]
#[path = "rseq/x86_64.rs"]
mod sections;
mod static_words;

/// Number of sections in this process that the kernel aborted.
static ABORTS: Counter = Counter::new(0);

/// Number of section restarts in this process.
pub(crate) fn aborts() -> u64 {
    ABORTS.get()
}

/// Byte offsets of fields in `struct rseq`.
const CPU_ID: usize = registration::CPU_ID;
const RSEQ_CS: usize = 8;
/// Byte offset of the committed size in a region.
const COMMITTED: usize = offset_of!(Header, committed);

/// Returns the offset of the libc's `struct rseq` from the thread pointer. Returns `None` if the kernel does not
/// maintain the fields that sections use.
fn libc_area() -> Option<isize> {
    let (offset, size, _) = symbols();
    // SAFETY: if the symbols are defined, they are the libc's `const ptrdiff_t` and `const unsigned int`.
    let (offset, size) = unsafe { (offset.as_ref()?, size.as_ref()?) };
    (*size as usize >= RSEQ_CS + size_of::<u64>()).then_some(*offset)
}
/// Returns the offset of the libc's `struct rseq`, or of this module's area if the libc has no `struct rseq`.
fn area_offset() -> isize {
    libc_area().unwrap_or_else(|| scratch_offset() + SIZE as isize)
}

// Thread-local memory for two areas: a scratch area for layers without sections, and a `struct rseq` for
// threads that the libc does not register. The `struct rseq` for unregistered threads starts in the state
// "unregistered". Both areas are in the static TLS block, so each area has the same offset in every thread,
// as [`scratch_offset`] requires. The areas have a weak symbol, so that two copies of this crate in one program
// share the memory.
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

/// Returns the CPU on which this thread runs, as a hint. Returns `u32::MAX` or slightly less in an unregistered thread.
/// Registers the thread if the libc has not registered it.
#[inline]
pub(crate) fn cpu_id() -> u32 {
    match cpu_id_at(area_offset()) {
        UNREGISTERED => register_on_first_use(),
        cpu => cpu,
    }
}
/// Returns `true` if this call registered the thread. The caller may then retry an operation that missed.
pub(crate) fn register_if_unregistered() -> bool {
    cpu_id_at(area_offset()) == UNREGISTERED && register_on_first_use() < registration::REFUSED
}
#[cold]
fn register_on_first_use() -> u32 {
    if chosen() != CLAIMED && libc_area().is_none() {
        register_thread();
    }
    cpu_id_at(area_offset())
}
fn register_thread() -> bool {
    // SAFETY: the address is this thread's `struct rseq` in its TLS block.
    unsafe { register(thread_pointer().offset(area_offset()).cast()) }
}

/// Defines the descriptor (label `66`) of a section that starts at label `2`, ends at label `3` and aborts to
/// label `4`. The macro also defines the section's entry for tools.
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

/// The chosen mechanism: 0 before the choice, then [`CLAIMED`] or the number of words in a table's set.
static CHOSEN: Fixed = Fixed::new(0);
const CLAIMED: u32 = 1;

/// Returns the mechanism for all layers of this process on real CPUs. The first call of `mechanism` decides for the
/// process. `mechanism` never allocates.
pub(crate) fn mechanism() -> Mechanism {
    if chosen() == CLAIMED { Mechanism::Claimed } else { Mechanism::Rseq }
}

/// Returns the number of words in each set of a table, on a machine with `cpus` CPUs. With restartable
/// sequences, the table has a word for every CPU number that the kernel may use.
pub(crate) fn word_count(cpus: u32, mechanism: Mechanism) -> u32 {
    match mechanism {
        Mechanism::Rseq => cpus.max(chosen()),
        Mechanism::Claimed => cpus,
    }
}

fn chosen() -> u32 {
    match CHOSEN.get() {
        0 => {
            // Two concurrent first calls reach the same decision.
            let serve =
                !is_disabled() && membarrier(REGISTER, None) && (libc_area().is_some() || register_thread());
            let chosen = if serve { max_cpus().unwrap_or(CLAIMED) } else { CLAIMED };
            CHOSEN.set(chosen);
            chosen
        }
        chosen => chosen,
    }
}

/// Upper bound of the kernel's CPU numbers: the size of its CPU masks, and at least [`MAX_CPUS`]. A
/// checkpointed process may move to a machine with more CPUs. Returns `None` if the bound of CPU numbers is
/// unknown, or exceeds what Linux supports.
fn max_cpus() -> Option<u32> {
    const BYTES: usize = 8192 / 8;
    let mut mask = [0_u64; BYTES / size_of::<u64>()];
    // SAFETY: the kernel writes at most `BYTES` bytes to the mask. The direct system call returns the number of bytes
    // in a mask. The libc's wrapper does not return the number of bytes in a mask.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, BYTES, mask.as_mut_ptr()) };
    let cpus = u32::try_from(bytes).ok()?.checked_mul(8)?;
    (cpus > 0).then_some(cpus.max(MAX_CPUS))
}

/// Returns `true` if the environment has `USLAB_RSEQ=off`. Writes a warning to stderr if the value of `USLAB_RSEQ` is
/// not `on` or `off`.
fn is_disabled() -> bool {
    // Uses `getenv`, because a global allocator calls this function and `std::env` allocates. SAFETY: the name ends in
    // a NUL. As with any C library, no thread may change the environment concurrently.
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
    /// The value of `MEMBARRIER_CMD_FLAG_CPU`, for a barrier on one CPU.
    const ONE_CPU_FLAG: libc::c_int = 1;
    let flags = if cpu.is_some() { ONE_CPU_FLAG } else { 0 };
    // SAFETY: `membarrier` takes three numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu.unwrap_or(0)) == 0 }
}

/// Returns `true` if the process has never had another thread, according to glibc 2.32 or later. In a single-threaded
/// process, only the caller's sections have run, and all have ended. A signal handler aborts the section that it
/// interrupts. Returns `false` if the libc does not report the number of threads.
fn is_single_threaded() -> bool {
    // SAFETY: the pointer is null, or points to the libc's `char`. While the `char` is not 0, this thread is
    // the only thread. Only a thread that starts another thread writes the `char`.
    unsafe { symbols().2.as_ref().is_some_and(|alone| core::ptr::read_volatile(alone) != 0) }
}

/// Waits until every section of `cpus` that began before the call has committed or will restart. Returns `false` if the
/// kernel refuses `membarrier`, for example in a sandbox. After a refused `membarrier`, the call guarantees nothing.
///
/// Cost: nothing in a single-threaded process; otherwise 0.15 us if none of the process's threads is running, and 16 us
/// if one is. The number of CPUs does not change the cost.
pub(crate) fn fence(_: &impl Regions, cpus: impl Iterator<Item = u32>) -> bool {
    let mut cpus = cpus.peekable();
    let Some(first) = cpus.next() else { return true };
    let one = cpus.peek().is_none().then_some(first);
    #[cfg(test)]
    tests::FENCES.add(1);
    if is_single_threaded() {
        return true;
    }
    // The kernel does not pass the `membarrier` registration to a child process, unless the child inherits
    // all memory. A second request to register for `membarrier` is cheap.
    membarrier(FENCE, one) || membarrier(REGISTER, None) && membarrier(FENCE, one)
}

// ---------------------------------------------------------------- the sections

/// A one-stack region that is never written, so every section misses. The scratch area contains CPU number 0 for all
/// threads.
#[repr(C)]
struct EmptyRegion {
    word: *const u8,
    cap: usize,
    head: usize,
    null: usize,
}
// SAFETY: no thread writes to the region, because every section misses and no table owns the region.
unsafe impl Sync for EmptyRegion {}
/// A class with which every operation of a fast path misses.
pub(crate) const NO_CLASS: Class = Class { index: 0, stack: offset_of!(EmptyRegion, head) as u32 };
static EMPTY_REGION: EmptyRegion =
    EmptyRegion { word: (&raw const EMPTY_REGION).cast(), cap: 0, head: 0, null: 0 };
const _: () = assert!(offset_of!(EmptyRegion, head) - offset_of!(EmptyRegion, cap) == CAP);
const _: () = assert!(offset_of!(EmptyRegion, null) - offset_of!(EmptyRegion, head) == NULL);

/// The inputs of a section except its class: the address of the table's words, and the `struct rseq` of the thread.
///
/// The holder of a `PcpuPtr` must keep the table alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PcpuPtr {
    words: NonNull<u8>,
    area: isize,
}

// SAFETY: the fields are numbers, and any thread may use the table to which they point.
unsafe impl Send for PcpuPtr {}
// SAFETY: the fields are numbers, and any thread may use the table to which they point.
unsafe impl Sync for PcpuPtr {}

impl PcpuPtr {
    /// Creates a pointer to the given words of `table` if sections serve the table. If no sections serve `table`, `new`
    /// creates a pointer to the table's empty region.
    pub(crate) fn new(table: &impl Regions, words: Words) -> Self {
        match table.words(words) {
            Some(words) => Self { words, area: area_offset() },
            None => Self { words: table.spare_words(), area: scratch_offset() },
        }
    }
    /// Returns the CPU on which this thread runs, as sections read it.
    #[inline(always)]
    pub(crate) fn cpu(&self) -> u32 {
        cpu_id_at(self.area)
    }
    /// Creates a pointer with which every section of [`NO_CLASS`] misses.
    pub(crate) fn disabled() -> Self {
        Self { words: NonNull::from(&EMPTY_REGION.word).cast(), area: scratch_offset() }
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
