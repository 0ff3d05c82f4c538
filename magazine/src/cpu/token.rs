//! A model of restartable sequences for loom and shuttle, in which each CPU has a **token**.
//!
//! A thread runs on a CPU while it holds the CPU's token. The token models the kernel's guarantees. Sections on one CPU
//! never overlap, and a context switch between two sections orders them. The rseq membarrier takes and drops the token
//! of each CPU. After the membarrier, each section on the CPU has committed or will restart.
//!
//! Pre-emption, a signal and a migration inside a section have the same effect: the section is aborted. An aborted
//! section may have executed any of its steps before the commit. The aborted section restarts, possibly on another CPU.
//! The thread's [`Script`](super::Script) determines when the thread migrates. If the script sets `aborted`, the
//! section first runs on the old CPU, up to its commit.
//!
//! The token model leaves out the assembly code, the registration and the kernel, which tests cover.

#[allow(unreachable_pub, reason = "another mechanism has its own `StaticWords`")]
pub use super::no_static_words::StaticWords;
use super::regions::{Regions, Words};
use super::{Mechanism, current_cpu, read_scripted_cpu};
use crate::magazine::Magazine;
use crate::region::{Class, Commit, Region};
use crate::sync::{MutexGuard, thread_local};
use core::cell::Cell;
use core::ptr::NonNull;

thread_local! {
    /// The model of `__libc_single_threaded`: true while the calling thread is the only thread of its process.
    static SINGLE_THREADED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` as if the process had never had another thread.
#[allow(dead_code, reason = "only models have a single-threaded process")]
pub(crate) fn run_single_threaded(f: impl FnOnce()) {
    SINGLE_THREADED.with(|alone| alone.set(true));
    f();
    SINGLE_THREADED.with(|alone| alone.set(false));
}

pub(crate) fn aborts() -> u64 {
    0
}
pub(crate) fn cpu_id() -> u32 {
    u32::MAX
}
pub(crate) fn register_if_unregistered() -> bool {
    false
}
pub(crate) fn mechanism() -> Mechanism {
    Mechanism::Claimed
}
pub(crate) fn word_count(cpus: u32, _: Mechanism) -> u32 {
    cpus
}

/// A CPU's token, held by the thread that runs on this CPU.
struct TokenGuard<'t>(#[allow(dead_code, reason = "held")] Option<MutexGuard<'t, ()>>);

/// Waits for the token of `cpu` and takes it. The token is stored in the CPU's region, even while a drain has
/// redirected the CPU's pointer.
fn token(table: &impl Regions, cpu: u32) -> Option<TokenGuard<'_>> {
    let token = &table.region(cpu)?.0.token;
    // Threads that held a token at a `fork` do not exist in the child.
    #[cfg(shuttle)]
    if crate::sync::schedule::is_alone() {
        return Some(TokenGuard(None));
    }
    Some(TokenGuard(Some(token.lock())))
}

pub(crate) fn fence(table: &impl Regions, cpus: impl Iterator<Item = u32>) -> bool {
    if !SINGLE_THREADED.with(Cell::get) {
        cpus.for_each(|cpu| drop(token(table, cpu)));
    }
    true
}

/// Runs the section `body` on the region of the CPU that the thread's script selects. If the script aborts the section,
/// an aborted attempt runs first. Returns `None` if the CPU has no region.
fn section<R>(table: &impl Regions, words: Words, body: impl Fn(Region<'_>, Commit) -> R) -> Option<R> {
    let (cpu, aborted_on) = read_scripted_cpu();
    if let Some(old) = aborted_on
        && let Some(_running) = token(table, old)
        && let Some(region) = table.current(words, old)
    {
        body(region, Commit::Aborted);
    }
    let running = token(table, cpu)?;
    let region = table.current(words, cpu)?;
    Some(body(region, Commit::Done))
}

/// The class of a disabled fast path, with which every operation misses.
pub(crate) const NO_CLASS: Class = Class { index: 0, stack: 0 };

/// The inlined path under loom and shuttle. Under loom and shuttle, the inlined path always misses, and the slow path
/// runs the operation instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PcpuPtr;

impl PcpuPtr {
    pub(crate) fn new(_: &impl Regions, _: Words) -> Self {
        Self
    }
    pub(crate) fn cpu(&self) -> u32 {
        u32::MAX
    }
    pub(crate) fn of_static(_: &'static StaticWords, _: Words) -> Self {
        Self
    }
    pub(crate) fn disabled() -> Self {
        Self
    }
    pub(crate) fn pop(&self, _: Class) -> Option<NonNull<u8>> {
        None
    }
    pub(crate) fn push(&self, _: Class, _: NonNull<u8>) -> bool {
        false
    }
}

pub(crate) fn pop(table: &impl Regions, class: Class) -> Option<NonNull<u8>> {
    section(table, Words::Always, |region, commit| region.pop(class, commit)).flatten()
}
pub(crate) fn push(table: &impl Regions, class: Class, round: NonNull<u8>) -> bool {
    section(table, Words::Always, |region, commit| region.push(class, round, commit)) == Some(true)
}
#[allow(dead_code, reason = "for models")]
pub(crate) fn push_inlined(table: &impl Regions, words: Words, class: Class, round: NonNull<u8>) -> bool {
    section(table, words, |region, commit| region.push(class, round, commit)) == Some(true)
}
pub(crate) fn push_batch(table: &impl Regions, _: PcpuPtr, class: Class, rounds: &[NonNull<u8>]) -> bool {
    section(table, Words::Always, |region, commit| region.push_batch(class, rounds, commit)) == Some(true)
}
pub(crate) fn pop_batch(table: &impl Regions, _: PcpuPtr, class: Class, n: u32, into: &mut Magazine) -> bool {
    let pop = |region: Region<'_>, commit: Commit| {
        let mut batch = Magazine::new();
        region.pop_batch(class, n, &mut batch, commit).then_some(batch)
    };
    section(table, Words::Always, pop).flatten().inspect(|batch| into.copy_from(batch)).is_some()
}
