//! Operations on regions by restartable sequences: x86-64 and aarch64 Linux, with glibc or musl.
//!
//! Here is what all processors have in common; `rseq/x86_64.rs` and `rseq/aarch64.rs` have the sections, and nothing else:
//! [`PcpuPtr`]'s four operations, and how a processor comes to a symbol and to what belongs to a thread. Who tells the kernel of
//! a thread stands in [`registration`].
//!
//! # The problem
//!
//! What belongs to a CPU needs no lock if whoever uses it cannot be pre-empted meanwhile. A kernel turns pre-emption off; a
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
//! store**. Up to there nothing happened; behind it, everything. The operations on a region are four such sections
//! ([`PcpuPtr::pop`], [`PcpuPtr::push`], [`PcpuPtr::push_batch`], [`PcpuPtr::pop_batch`]), of one shape:
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
//! `rseq_cs` need not be cleared at the end: the kernel clears it when it finds the thread outside the range. (Code
//! that holds descriptors must therefore not be unloaded while threads run: never `dlclose` a library made of this.)
//!
//! # Why it is sound
//!
//! * *Two operations of one CPU*: they never overlap, as above; and as one ends before the next begins on the same
//!   CPU, program order and the context switch order their memory accesses.
//! * *A restart* begins at 5 with the registers that the aborted attempt left. So a section never writes, before its
//!   commit, a register, a flag or memory that is read from there on: its inputs stay as they are, and what changes is a
//!   copy. A test decodes every section of the program and looks at just that (`tests/sections`); another one interrupts
//!   every section at each instruction and lets other operations run meanwhile (`rseq_stepper.rs`). One store does survive
//!   an abort: a batch that widens its stack writes the new `cap` first. It is worked out from what the section has read,
//!   and within limits that hold on every CPU, so it is a legal `cap` whoever goes on.
//! * *A drain from another CPU* leads the CPU's word to the empty region and then calls
//!   `membarrier(PRIVATE_EXPEDITED_RSEQ)`: when that returns, every section of this process that was running anywhere has
//!   committed or will restart, and what it committed is visible. A restarted section finds the empty region. So what the
//!   word led to is the drain's.
//! * *A wrong CPU number*: an unregistered thread reads -1 (or -2, where the registration failed), and on a CPU that
//!   the table has no region for a number that is too large. There are two spare words in front, and words for every
//!   number that the kernel may ever give (see [`slots`]): what is no CPU's word leads to the empty region, so such a thread
//!   misses, with no comparison at all. The slow path sends such threads round the stacks. It does **not** send them to
//!   the claimed slot: claims and sections do not exclude each other, so all operations on a table are of one mechanism.
//! * *A signal handler that allocates* is a thread that interrupts a section: the section restarts.
//!
//! # When it serves
//!
//! [`mechanism`] decides once per process: the kernel accepts the registration for the rseq membarrier, *and* the libc registered
//! its threads (`__rseq_size` is not 0) or this thread can be [registered](registration) by us. Else, and where the environment
//! says **`USLAB_RSEQ=off`**, the claimed slot serves everything. A debugger that single-steps needs that: every step inside a section aborts it,
//! so stepping through one never ends. (Breakpoints behind it are fine.)
//!
//! # One path for both
//!
//! An allocation does not ask which mechanism serves. A layer that sections may not touch has the same [`PcpuPtr`] path
//! as any other; it leads to the table's empty region, where every section misses, and announces its sections in a
//! thread-local scratch area instead of the kernel's. The question is asked after a miss.
//!
//! # Measured choices
//!
//! A head is loaded and stored whole: `add [word], imm` is an instruction less and costs 2 ns more a
//! pair (load and store of one whole word forward best). Every instruction counts: a bound on the CPU's number by a
//! comparison and a conditional move, off every chain of dependences, cost 0.5 of 2.9 ns a pair; hence the spare words.
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

/// Sections that the kernel sent to their abort address, in this process.
static ABORTS: Counter = Counter::new(0);

/// How often a section of this process was restarted.
pub(crate) fn aborts() -> u64 {
    ABORTS.get()
}

/// `struct rseq`: where its fields lie.
const CPU_ID: usize = registration::CPU_ID;
const RSEQ_CS: usize = 8;
/// Of a region, where what is committed stands.
const COMMITTED: usize = offset_of!(Header, committed);

/// Where the libc keeps the `struct rseq` of each thread, relative to the thread pointer; `None` if the kernel does not serve
/// it up to what sections use.
fn libc_area() -> Option<isize> {
    let (offset, size, _) = symbols();
    // SAFETY: where defined, they are the libc's constants: `const ptrdiff_t` and `const unsigned int`.
    let (offset, size) = unsafe { (offset.as_ref()?, size.as_ref()?) };
    (*size as usize >= RSEQ_CS + size_of::<u64>()).then_some(*offset)
}
/// The same, or where ours lies, which the kernel serves in registered threads.
fn area() -> isize {
    libc_area().unwrap_or_else(|| scratch() + SIZE as isize)
}

// Thread-local memory of twice the size of `struct rseq`: for layers that the kernel does not serve, and for threads that the
// libc does not register; the latter's says that nobody has. In the static TLS block, as [`scratch`] demands: so its offset is the
// same in every thread. Weak: two copies of this crate in one program share it.
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

/// The CPU that this thread runs on, as a hint; `u32::MAX` or near it in a thread without a registration. Registers the thread if
/// that is for us to do.
#[inline]
pub(crate) fn cpu_id() -> u32 {
    match cpu_id_at(area()) {
        UNREGISTERED => first_use(),
        cpu => cpu,
    }
}
/// Whether the thread was registered just now: then what has missed may hit.
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
    // SAFETY: our area of this thread, in its TLS block.
    unsafe { register(thread_pointer().offset(area()).cast()) }
}

/// The descriptor `66` of a section from `2` to `3` that aborts to `4`, and its entry where tools look for them.
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

/// 0 until decided; [`CLAIMED`], or how many words a table has.
static CHOSEN: Fixed = Fixed::new(0);
const CLAIMED: u32 = 1;

/// Which mechanism serves this process's layers on real CPUs. Decided at the first call; allocates nothing.
pub(crate) fn mechanism() -> Mechanism {
    if chosen() == CLAIMED { Mechanism::Claimed } else { Mechanism::Rseq }
}

/// How many words a table of `cpus` CPUs has: for sections, one for every number that the kernel may give, so that none leads
/// out of the table.
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
            let serve =
                !switched_off() && membarrier(REGISTER, None) && (libc_area().is_some() || register_thread());
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

/// True if the process has never had another thread, as glibc 2.32 and later tell. Then no section but the caller's own could have begun,
/// and that has ended: a signal's handler aborts the one that it interrupts. False if the libc does not tell.
fn is_single_threaded() -> bool {
    // SAFETY: null, or the libc's `char`, which only a thread that starts another one writes to: if it is not 0, that is this thread.
    unsafe { symbols().2.as_ref().is_some_and(|alone| core::ptr::read_volatile(alone) != 0) }
}

/// Returns when every section of `cpus` that began before has committed or will restart; `false` if the kernel
/// refuses (a sandbox that was closed after the start): then nothing is known.
///
/// Cost: none while the process has one thread; then 0.15 us where none of our threads runs, 16 us where one does, whether one CPU or all.
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
    // The kernel forgets the registration where memory is not inherited as a whole; asking twice is cheap.
    membarrier(FENCE, one) || membarrier(REGISTER, None) && membarrier(FENCE, one)
}

// ---------------------------------------------------------------- the sections

/// A region of one stack that is never written: every section misses in it. The scratch area says CPU 0 to all threads.
#[repr(C)]
struct Nowhere {
    word: *const u8,
    cap: usize,
    head: usize,
    null: usize,
}
// SAFETY: nobody writes to it: every section misses, and no table has it.
unsafe impl Sync for Nowhere {}
/// The class of a fast path that is disabled.
pub(crate) const NO_CLASS: Class = Class { index: 0, stack: offset_of!(Nowhere, head) as u32 };
static NOWHERE: Nowhere = Nowhere { word: (&raw const NOWHERE).cast(), cap: 0, head: 0, null: 0 };
const _: () = assert!(offset_of!(Nowhere, head) - offset_of!(Nowhere, cap) == CAP);
const _: () = assert!(offset_of!(Nowhere, null) - offset_of!(Nowhere, head) == NULL);

/// All that a section needs, besides its class: the table's words, and where sections are announced.
///
/// Valid while the table lives; whoever holds both sees to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PcpuPtr {
    words: NonNull<u8>,
    area: isize,
}

// SAFETY: numbers; what they lead to is the table, which any thread may use.
unsafe impl Send for PcpuPtr {}
// SAFETY: as above.
unsafe impl Sync for PcpuPtr {}

impl PcpuPtr {
    /// To these words of `table` if sections serve it, else to its empty region.
    pub(crate) fn new(table: &impl Regions, words: Words) -> Self {
        match table.words(words) {
            Some(words) => Self { words, area: area() },
            None => Self { words: table.spare_words(), area: scratch() },
        }
    }
    /// The CPU that this thread runs on, as sections find it.
    #[inline(always)]
    pub(crate) fn cpu(&self) -> u32 {
        cpu_id_at(self.area)
    }
    /// Every section of [`NO_CLASS`] misses.
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
