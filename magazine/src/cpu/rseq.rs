//! Stack operations as restartable sequences, on x86-64 and aarch64 Linux with glibc or musl.
//!
//! This module contains the code that is the same on all processors. `rseq/x86_64.rs` and `rseq/aarch64.rs` contain the
//! sequences (*sections*) of the four operations of [`PcpuPtr`]. The processor-specific files also access symbols and
//! thread-locals. [`registration`] registers threads with the kernel.
//!
//! # The problem
//!
//! Per-CPU data needs no lock if the thread that accesses it cannot be pre-empted. A kernel can disable pre-emption,
//! but a process cannot. A locked instruction, as in the [claimed mechanism](super::claimed), costs three times as much
//! as the rest of an allocation.
//!
//! # The mechanism
//!
//! Linux helps a thread to detect that it was pre-empted. Each thread shares a `struct rseq` with the kernel. In
//! `struct rseq`, the kernel stores the thread's CPU number (`cpu_id`), and the thread announces the section that it
//! runs (`rseq_cs`). When the kernel pre-empts a thread, migrates it or delivers a signal, the kernel checks if the
//! thread is inside the announced section. If the thread was inside the section, the kernel makes it continue at the
//! section's abort address, which restarts the section. If a section reaches its end, it has run on a single CPU, and
//! no other section ran on this CPU in between.
//!
//! A section therefore needs only plain loads and stores. The **last instruction of a section is one store**, which
//! makes the section's effect visible. A section that is aborted before its last store has no effect. After the store,
//! the operation is complete. The four sections have the same structure: [`PcpuPtr::pop`], [`PcpuPtr::push`],
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
//! A section need not clear `rseq_cs` at its end, because the kernel clears the field when it finds the thread outside
//! the section. A library that contains section descriptors must not be unloaded while threads run. A program must
//! therefore never call `dlclose` on a library that contains this crate.
//!
//! # Why it is sound
//!
//! * *Two operations on the same CPU* never overlap. Consecutive operations on a CPU are ordered by program order or by
//!   the context switch between them.
//! * *A restart* begins at label 5, with the register contents that the aborted attempt left. Before its commit, a
//!   section therefore never writes a register, a flag or memory that a restart reads. A section changes only copies of
//!   its inputs, never the inputs. A test decodes every section of the program and checks that inputs stay unchanged
//!   (`tests/sections`). Another test interrupts every section at each of its instructions, and runs other operations
//!   during the interruption (`rseq_stepper.rs`). Only one store has an effect after an abort: a batch that grows its
//!   stack writes the new `cap` before its commit. The new `cap` respects limits that are the same on every CPU, so any
//!   later operation may use it.
//! * *A drain from another CPU* points the drained CPU's pointers to the empty region and calls
//!   `membarrier(PRIVATE_EXPEDITED_RSEQ)`. When `membarrier` returns, every section that was running has committed or
//!   will restart. A section that restarts after the drain's store uses the empty region, and misses. After
//!   `membarrier` returns, the drain owns the CPU's region.
//! * *A wrong CPU number*: a thread without rseq registration reads -1 as its CPU number, or -2 if the registration
//!   failed. On a CPU without a region, a thread reads a CPU number that is too large. A table has two spare pointers
//!   in front of CPU 0's pointer, and a pointer for every CPU number that the kernel may use (see [`word_count`]).
//!   Every pointer that belongs to no CPU points to the empty region. A thread that reads a wrong CPU number therefore
//!   misses, although no code compares CPU numbers. The slow path of a thread with a wrong CPU number bypasses the
//!   stacks. The slow path does **not** use the claimed mechanism, because claims and sections do not exclude each
//!   other.
//! * *A signal handler may allocate*: the signal aborts the section that it interrupts, and the section
//!   restarts after the handler.
//!
//! # When it is used
//!
//! [`mechanism`] chooses the mechanism once per process. Restartable sequences need the kernel's rseq membarrier.
//! Threads must also be registered, by the libc (`__rseq_size` is not 0) or by the module [registration](registration).
//! Without restartable sequences, or with **`USLAB_RSEQ=off`** in the environment, all operations use the claimed
//! mechanism. Single-stepping in a debugger needs `USLAB_RSEQ=off`: every step aborts the section, which therefore
//! never completes. A breakpoint outside a section is harmless.
//!
//! # One path for both
//!
//! The inlined code of an allocation does not test which mechanism is in use. Even a layer that does not use sections
//! has a [`PcpuPtr`]. The `PcpuPtr` of a layer without sections leads to the table's empty region, so every section
//! misses. A thread announces the sections of a layer without sections in a thread-local scratch area, which the kernel
//! ignores. Only the slow path, after the miss, tests which mechanism is in use.
//!
//! # Measured choices
//!
//! A section loads and stores the head of a stack as one machine word. The instruction `add [word], imm` would save one
//! instruction, but cost 2 ns more per allocation and free, because store forwarding works best for whole words. A
//! bounds check of the CPU number, compiled to a conditional move, cost 0.5 of the 2.9 ns that an allocation and a free
//! take together. The spare pointers make the bounds check unnecessary.
//!
//! Sources: Linux, `Documentation/userspace-api/rseq.rst` and membarrier(2); the glibc manual, "Restartable Sequences".

use super::regions::{Regions, Words};
use super::{MAX_CPUS, Mechanism};
use crate::magazine::Magazine;
use crate::region::{CAP, Class, Header, NULL};
use crate::sync::{Counter, Fixed};
use core::arch::global_asm;
use core::mem::offset_of;
use core::ptr::NonNull;
use nix::libc;
use registration::{SIZE, UNREGISTERED_CPU_ID, register};
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

/// Number of times that a section was restarted in this process.
pub(crate) fn aborts() -> u64 {
    ABORTS.get()
}

/// Byte offsets of the fields `cpu_id` and `rseq_cs` in `struct rseq`.
const CPU_ID: usize = registration::CPU_ID;
const RSEQ_CS: usize = 8;
/// Byte offset of the committed size in the header of a region.
const COMMITTED: usize = offset_of!(Header, committed);

/// Returns the byte offset of the libc's `struct rseq` from the thread pointer. Returns `None` if the libc has no
/// `struct rseq`, or one without the fields that sections use.
fn libc_rseq_offset() -> Option<isize> {
    let (offset, size, _) = symbols();
    // SAFETY: if the symbols are defined, they are the libc's `const ptrdiff_t` and `const unsigned int`.
    let (offset, size) = unsafe { (offset.as_ref()?, size.as_ref()?) };
    (*size as usize >= RSEQ_CS + size_of::<u64>()).then_some(*offset)
}
/// Returns the byte offset of this thread's `struct rseq` from the thread pointer. The `struct rseq` is the libc's
/// structure, or else this module's thread-local area.
fn rseq_area_offset() -> isize {
    libc_rseq_offset().unwrap_or_else(|| scratch_offset() + SIZE as isize)
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

/// Returns the number of the CPU on which this thread runs, as a hint. If the thread cannot be registered for rseq, the
/// result is `u32::MAX` or `u32::MAX - 1`. The call registers the thread if the libc has not registered it.
#[inline]
pub(crate) fn cpu_id() -> u32 {
    match cpu_id_at(rseq_area_offset()) {
        UNREGISTERED_CPU_ID => register_on_first_use(),
        cpu => cpu,
    }
}
/// Registers the thread for rseq if it is unregistered. Returns `true` if this call registered the thread. After
/// `true`, the caller should retry the operation that missed.
pub(crate) fn register_if_unregistered() -> bool {
    cpu_id_at(rseq_area_offset()) == UNREGISTERED_CPU_ID && register_on_first_use() < registration::REFUSED
}
#[cold]
fn register_on_first_use() -> u32 {
    if chosen_mechanism() != CLAIMED_MECHANISM && libc_rseq_offset().is_none() {
        register_thread();
    }
    cpu_id_at(rseq_area_offset())
}
fn register_thread() -> bool {
    // SAFETY: the address is this thread's `struct rseq` in its TLS block.
    unsafe { register(thread_pointer().offset(rseq_area_offset()).cast()) }
}

/// Defines the descriptor (label `66`) of a section that starts at label `2`, ends at label `3` and aborts to label
/// `4`. The macro also adds the section to the list of sections that debuggers and tests read.
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

/// The chosen mechanism: 0 before the choice, [`CLAIMED_MECHANISM`] for the claimed mechanism, or for rseq the number
/// of per-CPU pointers in each set of a table.
static CHOSEN_MECHANISM: Fixed = Fixed::new(0);
const CLAIMED_MECHANISM: u32 = 1;

/// Returns the mechanism that all layers on real CPUs use in this process. The first call chooses the mechanism.
/// `mechanism` never allocates.
pub(crate) fn mechanism() -> Mechanism {
    if chosen_mechanism() == CLAIMED_MECHANISM { Mechanism::Claimed } else { Mechanism::Rseq }
}

/// Returns the number of per-CPU pointers in each set of a table, on a machine with `cpus` CPUs. With restartable
/// sequences, a set has a pointer for every CPU number that the kernel may use.
pub(crate) fn word_count(cpus: u32, mechanism: Mechanism) -> u32 {
    match mechanism {
        Mechanism::Rseq => cpus.max(chosen_mechanism()),
        Mechanism::Claimed => cpus,
    }
}

fn chosen_mechanism() -> u32 {
    match CHOSEN_MECHANISM.get() {
        0 => {
            // Two concurrent first calls reach the same decision.
            let serve = !is_disabled()
                && membarrier(REGISTER_COMMAND, None)
                && (libc_rseq_offset().is_some() || register_thread());
            let chosen = if serve { max_cpus().unwrap_or(CLAIMED_MECHANISM) } else { CLAIMED_MECHANISM };
            CHOSEN_MECHANISM.set(chosen);
            chosen
        }
        chosen => chosen,
    }
}

/// Upper bound of the kernel's CPU numbers: the number of bits in its CPU masks, and at least [`MAX_CPUS`]. The number
/// of CPUs is too low as a bound: a checkpointed process may be restored on a machine with more CPUs. Returns `None` if
/// the kernel does not report the size of its masks.
fn max_cpus() -> Option<u32> {
    const BYTES: usize = 8192 / 8;
    let mut mask = [0_u64; BYTES / size_of::<u64>()];
    // SAFETY: the kernel writes at most `BYTES` bytes to the mask. The direct system call returns the number of bytes
    // in a mask. The libc's wrapper does not return the number of bytes in a mask.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, BYTES, mask.as_mut_ptr()) };
    let cpus = u32::try_from(bytes).ok()?.checked_mul(8)?;
    (cpus > 0).then_some(cpus.max(MAX_CPUS))
}

/// Returns `true` if the environment variable `USLAB_RSEQ` is `off`. Writes a warning to standard error if the value of
/// `USLAB_RSEQ` is invalid.
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

const REGISTER_COMMAND: libc::c_int = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ as libc::c_int;
const FENCE_COMMAND: libc::c_int = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ as libc::c_int;

fn membarrier(command: libc::c_int, cpu: Option<u32>) -> bool {
    /// The value of `MEMBARRIER_CMD_FLAG_CPU`, which restricts the barrier to one CPU.
    const ONE_CPU_FLAG: libc::c_int = 1;
    let flags = if cpu.is_some() { ONE_CPU_FLAG } else { 0 };
    // SAFETY: `membarrier` takes three numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu.unwrap_or(0)) == 0 }
}

/// Returns `true` if the process has never had a second thread, which glibc 2.32 or later reports. In a single-threaded
/// process, no other thread can be inside a section, and the caller is not inside one. A signal handler is not inside a
/// section either, because the signal aborts the section that it interrupts. Returns `false` if the libc does not
/// report the number of threads.
fn is_single_threaded() -> bool {
    // SAFETY: the pointer is null, or points to the libc's `char`. While the `char` is not 0, this thread is
    // the only thread. Only a thread that starts another thread writes the `char`.
    unsafe { symbols().2.as_ref().is_some_and(|alone| core::ptr::read_volatile(alone) != 0) }
}

/// Waits until every section that began on `cpus` before the call has committed or will restart. Returns `false` if the
/// kernel refuses `membarrier`, for example in a sandbox. If the result is `false`, earlier sections may still commit.
///
/// Cost: nothing in a single-threaded process. In a multi-threaded process, the cost is 0.15 us if no other thread of
/// the process is running, and 16 us if one is. The cost does not depend on the number of CPUs.
pub(crate) fn fence(_: &impl Regions, cpus: impl Iterator<Item = u32>) -> bool {
    let mut cpus = cpus.peekable();
    let Some(first) = cpus.next() else { return true };
    let one = cpus.peek().is_none().then_some(first);
    #[cfg(test)]
    tests::FENCE_COUNT.add(1);
    if is_single_threaded() {
        return true;
    }
    // The kernel does not pass the `membarrier` registration to a child process, unless the child inherits
    // all memory. A second request to register for `membarrier` is cheap.
    membarrier(FENCE_COMMAND, one) || membarrier(REGISTER_COMMAND, None) && membarrier(FENCE_COMMAND, one)
}

// ---------------------------------------------------------------- the sections

/// A region with one empty stack that is never written, so every section misses in it. Sections reach this region with
/// CPU number 0, which the scratch area of every thread contains.
#[repr(C)]
struct EmptyRegion {
    word: *const u8,
    cap: usize,
    head: usize,
    null: usize,
}
// SAFETY: no thread writes to the region, because every section misses and no table owns the region.
unsafe impl Sync for EmptyRegion {}
/// The class of a disabled fast path, with which every operation misses.
pub(crate) const NO_CLASS: Class = Class { index: 0, stack: offset_of!(EmptyRegion, head) as u32 };
static EMPTY_REGION: EmptyRegion =
    EmptyRegion { word: (&raw const EMPTY_REGION).cast(), cap: 0, head: 0, null: 0 };
const _: () = assert!(offset_of!(EmptyRegion, head) - offset_of!(EmptyRegion, cap) == CAP);
const _: () = assert!(offset_of!(EmptyRegion, null) - offset_of!(EmptyRegion, head) == NULL);

/// The inputs of a section except its class: the address of a table's per-CPU pointers, and the offset of the thread's
/// `struct rseq`.
///
/// The table must stay alive as long as the `PcpuPtr` is used.
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
    /// Creates a `PcpuPtr` to a set of per-CPU pointers of `table`. If the table does not use sections, the `PcpuPtr`
    /// leads to the table's empty region.
    pub(crate) fn new(table: &impl Regions, words: Words) -> Self {
        match table.words(words) {
            Some(words) => Self { words, area: rseq_area_offset() },
            None => Self { words: table.spare_words(), area: scratch_offset() },
        }
    }
    /// Returns the number of the CPU on which this thread runs, from the same field that sections read.
    #[inline(always)]
    pub(crate) fn cpu(&self) -> u32 {
        cpu_id_at(self.area)
    }
    /// Creates a `PcpuPtr` with which every section for the class [`NO_CLASS`] misses.
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
