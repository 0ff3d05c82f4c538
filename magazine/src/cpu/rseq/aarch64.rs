//! The restartable sequences (sections) for aarch64, and the location of each thread's `struct rseq`.
//!
//! # Order
//!
//! On x86-64, every store has Release ordering and every load has Acquire ordering, at no cost. On aarch64, plain loads
//! and stores have no ordering. The portable code in [`region`](crate::region) requests memory orderings. The orderings
//! listed here are the ones that a concurrent drain needs.
//!
//! * The portable code loads *the per-CPU pointer* with Acquire, which pairs with the Release store in
//!   `Table::restore_region`. An operation that uses its region after a drain therefore sees the drain's writes to the
//!   region. A section computes the addresses of all its accesses to the region from the per-CPU pointer. The address
//!   dependency orders a section's accesses after its load of the per-CPU pointer. A section therefore loads the
//!   pointer with a plain load.
//! * The Acquire load of *a stack's limit* pairs with the Release store in `Region::open`. A drain removes objects from
//!   a closed stack while operations run on the CPU. After the removal, the drain opens the stack again. Pushes after
//!   the drain overwrite stack entries that the drain has read. A section therefore loads the limit with `ldar`.
//! * The Acquire load of *a region's committed size* pairs with the Release store in `Region::set_committed`, which
//!   runs after the memory is committed. A section loads the committed size with `ldar`, too. A branch after the load
//!   of the limit or the committed size would order all later stores as well. Only a batch that grows its stack reads
//!   the limit and the committed size.
//! * *The commit* is a plain (Relaxed) store, which may become visible before the objects that it publishes. Later
//!   operations on the same CPU are not affected: they follow in program order, or after a context switch, which is a
//!   full barrier. A drain reads the objects on a stack only after its `membarrier`. The `membarrier` is a full barrier
//!   on each CPU that runs a thread of the process. A thread on another CPU reads nothing from a head except the number
//!   of objects.
//! * *A drain's first store* can be Relaxed, because the `membarrier` makes the redirected pointer visible to every
//!   section that begins later.
//! * The kernel reads *the announcement of a section* (`rseq_cs`) on the thread's CPU, in program order.
//!
//! Code outside sections uses Rust's atomics, which compile to LSE instructions for processors that have them. The
//! abort path counts aborts with a loop of `ldxr` and `stxr`, which every aarch64 processor has.
//!
//! # Registers
//!
//! In a program of more than 128 MiB, the linker may insert a veneer on the branch from the abort address to the
//! section. A veneer may change `x16` and `x17`, so a section does not read these registers after a restart.

use super::{ABORTS, COMMITTED, CPU_ID, PcpuPtr, RSEQ_CS, descriptor};
use crate::region::{CAP, Class, LEN_MASK, LIMIT, NULL, OP_STEP, ROUND};
use core::arch::asm;
use core::ptr::NonNull;

/// Returns the addresses of the libc's symbols `__rseq_offset`, `__rseq_size` and `__libc_single_threaded`. An address
/// is null if the libc lacks the symbol.
///
/// The symbols are weak references through the GOT, so that the program starts even if the libc lacks them.
pub(super) fn symbols() -> (*const isize, *const u32, *const u8) {
    let (offset, size, alone);
    // SAFETY: the assembly only loads three addresses from the GOT. The address of an undefined weak symbol
    // is null.
    unsafe {
        asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            ".weak __libc_single_threaded",
            "adrp {offset}, :got:__rseq_offset",
            "ldr {offset}, [{offset}, :got_lo12:__rseq_offset]",
            "adrp {size}, :got:__rseq_size",
            "ldr {size}, [{size}, :got_lo12:__rseq_size]",
            "adrp {alone}, :got:__libc_single_threaded",
            "ldr {alone}, [{alone}, :got_lo12:__libc_single_threaded]",
            offset = out(reg) offset,
            size = out(reg) size,
            alone = out(reg) alone,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    (offset, size, alone)
}

/// Returns the byte offset of `uslab_rseq_scratch` from the thread pointer.
pub(super) fn scratch_offset() -> isize {
    let offset;
    // SAFETY: the assembly only loads a link-time constant from the GOT.
    unsafe {
        asm!(
            "adrp {offset}, :gottprel:uslab_rseq_scratch",
            "ldr {offset}, [{offset}, :gottprel_lo12:uslab_rseq_scratch]",
            offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    offset
}

/// Returns the thread pointer, from which the offset of a `struct rseq` is measured.
pub(super) fn thread_pointer() -> *mut u8 {
    let here;
    // SAFETY: the assembly only reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) here, options(nostack, pure, nomem, preserves_flags)) };
    here
}

/// Returns the CPU number of this thread, read from the `struct rseq` at offset `area`.
#[inline]
pub(super) fn cpu_id_at(area: isize) -> u32 {
    let cpu: u32;
    // SAFETY: `area` is the offset of a `struct rseq` in every thread, whether the libc or this module registers it.
    unsafe {
        asm!("mrs {at}, tpidr_el0", "add {at}, {at}, {area}", "ldr {cpu:w}, [{at}, {cpu_id}]",
            at = out(reg) _, cpu = out(reg) cpu, area = in(reg) area,
            cpu_id = const CPU_ID, options(nostack, readonly, preserves_flags));
    }
    cpu
}

/// The instructions with which every section begins. Label `66` is the descriptor, label `4` the abort address, label
/// `5` the restart address, and label `2` the start of the section. The body of a section ends with the committing
/// store and the label `3:`. When the body starts, `x16` is the address of the head of the class's stack on this CPU,
/// and `w` is the head's value. The body of a section may overwrite `x17`.
macro_rules! section { ([$($body:tt)*] [$($operands:tt)*]) => {
    asm!(
        descriptor!(),
        ".pushsection .text.uslab_rseq_abort, \"ax\"",
        ".inst 0xd428bc00",                                // `brk`, which is the signature
        "4: adrp x16, {aborts}",
        "add x16, x16, :lo12:{aborts}",
        "6: ldxr x17, [x16]",
        "add x17, x17, 1",
        "stxr {w:w}, x17, [x16]",
        "cbnz {w:w}, 6b",
        "b 5f",
        ".popsection",
        "5: mrs x17, tpidr_el0",
        "add x17, x17, {area}",
        "adrp x16, 66b",
        "add x16, x16, :lo12:66b",
        "str x16, [x17, {rseq_cs}]",
        "2: ldr w16, [x17, {cpu_id}]",
        "ldr x16, [{words}, w16, sxtw 3]",
        "add x16, x16, {stack}",
        "ldr {w}, [x16]",                                  // len:16 | ops:48
        $($body)*
        aborts = sym ABORTS,
        rseq_cs = const RSEQ_CS,
        cpu_id = const CPU_ID,
        out("x16") _,
        out("x17") _,
        w = out(reg) _,
        $($operands)*
    )
} }

impl PcpuPtr {
    /// Pops the newest object from the class's stack on this CPU. Returns `None` if the stack is empty, or if the
    /// thread's CPU has no region.
    #[inline(always)]
    pub(crate) fn pop(&self, class: Class) -> Option<NonNull<u8>> {
        let round: *mut u8;
        // SAFETY: for each CPU number, the word leads to a region with a stack of the class. A null word is
        // below the stack, and unwritten words are 0. Only sections of this CPU store to the stack, and a pop
        // from an empty stack stores nothing. `area` is the offset of this thread's `struct rseq`, or of its
        // scratch area.
        unsafe {
            section!([
                "add x17, x16, {w:w}, uxth 3",
                "ldr {round}, [x17, {null}]",
                "cbz {round}, 3f",                                // the null word below the stack
                "add {w}, {w}, {op}",                             // ops + 1, len - 1
                "sub {w}, {w}, 1",
                "str {w}, [x16]", // commit
                "3:",
            ] [
                round = out(reg) round,
                words = in(reg) self.words.as_ptr(), area = in(reg) self.area,
                null = const NULL, op = const OP_STEP,
                stack = in(reg) u64::from(class.stack),
                options(nostack)
            ]);
        }
        NonNull::new(round)
    }

    /// Pushes an object on the class's stack on this CPU. Returns `false` if the stack is full, if the object is
    /// already on top of it, or if the thread's CPU has no region. After the section, `push` prefetches a cache line
    /// for writing. The prefetched line is the object's line if the stack has fewer than `quiet` objects, and the
    /// head's line otherwise.
    #[inline(always)]
    pub(crate) fn push(&self, class: Class, round: NonNull<u8>) -> bool {
        // SAFETY: each word leads to a region with a stack of the class, to which only sections of its CPU
        // store. The object is stored above the length, in a place that `cap` allows. No operation reads a
        // place before the stack's length covers it. The caps of the empty region are 0.
        unsafe {
            section!([
                "ldur {c}, [x16, -{cap}]",                        // cap:32 | limit:16 | quiet:16
                "cmp {c:w}, {w:w}, uxth",
                "b.ls {miss}",
                "add x17, x16, {w:w}, uxth 3",
                "ldr {top}, [x17, {null}]",
                "cmp {top}, {round}",
                "b.eq {miss}",
                "str {round}, [x17, {place}]",
                "add {w}, {w}, {op}",                             // ops + 1, len + 1
                "add {w}, {w}, 1",
                "str {w}, [x16]", // commit
                "3: lsr {c}, {c}, 48",
                "cmp {c:w}, {w:w}, uxth",
                "csel x17, {round}, x16, hs",
                "prfm pstl1keep, [x17]",
            ] [
                c = out(reg) _, top = out(reg) _,
                round = in(reg) round.as_ptr(),
                words = in(reg) self.words.as_ptr(), area = in(reg) self.area,
                stack = in(reg) u64::from(class.stack),
                cap = const CAP, null = const NULL, place = const NULL + ROUND, op = const OP_STEP,
                miss = label { return false },
                options(nostack)
            ]);
        }
        true
    }

    /// Pushes a batch of objects on the class's stack on this CPU, like
    /// [`Region::push_batch`](crate::region::Region::push_batch). The batch must contain at least one object.
    #[inline(never)]
    pub(super) fn push_batch(&self, class: Class, rounds: &[NonNull<u8>]) -> bool {
        // SAFETY: each word leads to a region with a stack of the class. The pushed objects are stored above
        // the stack's length, up to the new `cap`. The new `cap` is within the class's limit and the
        // committed part of the region; the empty region has no committed part.
        unsafe {
            section!([
                "and x17, {w}, {len}",
                "add {x}, x17, {count}",                          // the places that it takes
                "ldur {cap:w}, [x16, -{at}]",
                "cmp {x}, {cap}",
                "b.ls 8f",
                "lsl {cap}, {cap}, 1",
                "cmp {cap}, {x}",
                "csel {cap}, {x}, {cap}, lo",
                "sub {end}, x16, {limit}",
                "ldar {end:w}, [{end}]",                          // pairs with the Release in `open`
                "and {end}, {end}, {len}",
                "cmp {cap}, {end}",
                "csel {cap}, {end}, {cap}, hi",
                "cmp {x}, {cap}",
                "b.hi {miss}",
                "sub {end}, x16, {stack}",
                "add {end}, {end}, {committed}",
                "ldar {end}, [{end}]",                            // pairs with the Release in `set_committed`
                "add {x}, {stack}, {cap}, lsl 3",
                "add {x}, {x}, {place}",
                "cmp {x}, {end}",
                "b.hi {miss}",
                "stur {cap:w}, [x16, -{at}]",                     // survives an abort
                "8: add x17, x16, x17, lsl 3",
                "add x17, x17, {place}",
                "mov {x}, 0",
                "9: ldr {end}, [{rounds}, {x}, lsl 3]",
                "str {end}, [x17, {x}, lsl 3]",
                "add {x}, {x}, 1",
                "cmp {x}, {count}",
                "b.lo 9b",
                "add {w}, {w}, {count}",
                "str {w}, [x16]", // commit
                "3:",
            ] [
                x = out(reg) _, cap = out(reg) _, end = out(reg) _,
                rounds = in(reg) rounds.as_ptr(), count = in(reg) rounds.len(),
                words = in(reg) self.words.as_ptr(), area = in(reg) self.area,
                stack = in(reg) u64::from(class.stack),
                len = const LEN_MASK,
                at = const CAP, limit = const LIMIT, committed = const COMMITTED, place = const NULL + ROUND,
                miss = label { return false },
                options(nostack)
            ]);
        }
        true
    }

    /// Pops a batch of `count` objects from the class's stack on this CPU, like
    /// [`Region::pop_batch`](crate::region::Region::pop_batch). The number `count` must be at least 1.
    #[inline(never)]
    pub(super) fn pop_batch(&self, class: Class, count: u32, into: *mut NonNull<u8>) -> bool {
        // SAFETY: each word leads to a region with a stack of the class. The section pops only if the stack
        // has `count` objects. `into` has room for `count` objects, and no other thread uses `into`.
        unsafe {
            section!([
                "and x17, {w}, {len}",
                "subs x17, x17, {count}",
                "b.lo {miss}",
                "add x17, x16, x17, lsl 3",
                "add x17, x17, {place}",
                "mov {i}, 0",
                "9: ldr {round}, [x17, {i}, lsl 3]",
                "str {round}, [{into}, {i}, lsl 3]",
                "add {i}, {i}, 1",
                "cmp {i}, {count}",
                "b.lo 9b",
                "sub {w}, {w}, {count}",
                "str {w}, [x16]", // commit
                "3:",
            ] [
                i = out(reg) _, round = out(reg) _,
                into = in(reg) into, count = in(reg) u64::from(count),
                words = in(reg) self.words.as_ptr(), area = in(reg) self.area,
                stack = in(reg) u64::from(class.stack),
                len = const LEN_MASK, place = const NULL + ROUND,
                miss = label { return false },
                options(nostack)
            ]);
        }
        true
    }
}
