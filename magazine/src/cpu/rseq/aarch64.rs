//! The sections for aarch64, and the location of each thread's `struct rseq`.
//!
//! # Order
//!
//! On x86-64 every store is a Release and every load an Acquire, at no cost; on aarch64 neither is. Of the
//! orderings that the portable bodies request ([`region`](crate::region)), and that a concurrent drain needs,
//! these matter here:
//!
//! * *The word*, Acquire there: pairs with the Release in `Table::put_back`, by which an operation that finds
//!   its region again sees what the drain did to it. A section reaches all that it reads or writes of a region
//!   by an address computed from the word, and an address dependency orders these accesses behind the load. So
//!   a plain load suffices.
//! * *The limit*, Acquire: pairs with the Release in `Region::open`. A drain gives rounds away in place, while
//!   operations of the CPU run, and then allows the stack to be opened; the rounds that are pushed next
//!   overwrite places that it has read. `ldar`.
//! * *Committed*, Acquire: pairs with the Release in `Region::set_committed`, before which the memory was made
//!   writable. `ldar`. (For both, the branch after the load would suffice, because it orders the stores after
//!   it. Only a batch that widens reads them.)
//! * *The commit*, Relaxed: it is plain, and may become visible before the rounds that it publishes. For
//!   operations of this CPU that does not matter: they follow in program order, and a context switch between
//!   threads is a full barrier. A drain reads rounds after its `membarrier`, which is a full barrier on each
//!   CPU that runs a thread of this process: after the sections that have committed there, and before the
//!   drain continues. All other readers of a head use only the number.
//! * *A drain's first step*, Relaxed: the same barrier shows the empty region to every section that begins
//!   after it.
//! * *The descriptor's address* is read by the kernel on this CPU, in this thread: program order.
//!
//! Atomics are outside of sections, and are Rust's: with LSE instructions on processors that have them,
//! detected at program start. The count of aborts, out of line, is a loop of `ldxr` and `stxr`, which every
//! processor has.
//!
//! # Registers
//!
//! In a program of more than 128 MiB the linker may insert a veneer on the branch back from the abort address.
//! It writes `x16` and `x17`, so these two hold nothing that a restart reads.

use super::{ABORTS, COMMITTED, CPU_ID, PcpuPtr, RSEQ_CS, descriptor};
use crate::region::{CAP, Class, LEN, LIMIT, NULL, OP, ROUND};
use core::arch::asm;
use core::ptr::NonNull;

/// `__rseq_offset`, `__rseq_size` and `__libc_single_threaded` of the libc; null for those that it lacks.
///
/// The symbols are referenced weakly and through the GOT, so that the program also starts on a libc without
/// them.
pub(super) fn symbols() -> (*const isize, *const u32, *const u8) {
    let (offset, size, alone);
    // SAFETY: loads three addresses from the GOT; an undefined weak symbol's is null.
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

/// The offset of `uslab_rseq_scratch` from the thread pointer.
pub(super) fn scratch() -> isize {
    let offset;
    // SAFETY: loads a link-time constant from the GOT.
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

/// The address that areas are relative to.
pub(super) fn thread_pointer() -> *mut u8 {
    let here;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) here, options(nostack, pure, nomem, preserves_flags)) };
    here
}

/// The CPU that this thread runs on, according to its `struct rseq` at `area`.
#[inline]
pub(super) fn cpu_id_at(area: isize) -> u32 {
    let cpu: u32;
    // SAFETY: `area` is the `struct rseq` of every thread, the libc's or this module's, registered or not.
    unsafe {
        asm!("mrs {at}, tpidr_el0", "add {at}, {at}, {area}", "ldr {cpu:w}, [{at}, {cpu_id}]",
            at = out(reg) _, cpu = out(reg) cpu, area = in(reg) area,
            cpu_id = const CPU_ID, options(nostack, readonly, preserves_flags));
    }
    cpu
}

/// The common part of the sections. `66` is the descriptor, `4` the abort address, `5` the (re)start, `2` the
/// start of the section; the body ends with the commit and `3:`. On entry to the body `x16` is the address of
/// the class's head on this CPU, and `w` that head. `x17` is free.
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
        #[cfg(not(uslab_control = "unarmed"))]
        "str x16, [x17, {rseq_cs}]",
        "2: ldr w16, [x17, {cpu_id}]",
        "ldr x16, [{words}, w16, sxtw 3]",
        "add x16, x16, {stack}",
        "ldr {w}, [x16]",                                  // len:16 | ops:48
        // Controls of the fence: a delay, so that a drain runs between the load and the commit.
        #[cfg(any(uslab_control = "wide", uslab_control = "nobarrier", uslab_control = "onefence"))]
        "mov w17, 10000",
        #[cfg(any(uslab_control = "wide", uslab_control = "nobarrier", uslab_control = "onefence"))]
        "7: yield",
        #[cfg(any(uslab_control = "wide", uslab_control = "nobarrier", uslab_control = "onefence"))]
        "subs w17, w17, 1",
        #[cfg(any(uslab_control = "wide", uslab_control = "nobarrier", uslab_control = "onefence"))]
        "b.ne 7b",
        $($body)*
        // Names the operands that a control leaves unused.
        "// {rseq_cs}",
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
    /// Pops the newest round of the class on this CPU; `None` if there is none, or this thread has no CPU.
    #[inline(always)]
    pub(crate) fn pop(&self, class: Class) -> Option<NonNull<u8>> {
        let round: *mut u8;
        // SAFETY: each CPU number's word leads to a region in which the class has a stack, above a null word, and unwritten words are 0.
        // Only sections of this CPU store there, and none to a stack of length 0 (see the module). `area` is this thread's `struct rseq`, or
        // scratch.
        unsafe {
            section!([
                #[cfg(uslab_control = "clobber")]
                "mov {stack}, {w}",
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
                null = const NULL, op = const OP,
                #[cfg(not(uslab_control = "clobber"))]
                stack = in(reg) u64::from(class.stack),
                #[cfg(uslab_control = "clobber")]
                stack = inout(reg) u64::from(class.stack) => _,
                options(nostack)
            ]);
        }
        NonNull::new(round)
    }

    /// Pushes a round on the class's stack on this CPU; `false` if no place is usable, the round is already on
    /// top, or this thread has no CPU. After the section it prefetches the round's line to write, or the
    /// head's line if the stack is quiet.
    #[inline(always)]
    pub(crate) fn push(&self, class: Class, round: NonNull<u8>) -> bool {
        // SAFETY: each word leads to a region with a stack of the class, where only sections of its CPU
        // store. The round is stored above the length, in a place that `cap` allows: no operation reads there
        // before the length moves. The empty region's caps are 0.
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
                cap = const CAP, null = const NULL, place = const NULL + ROUND, op = const OP,
                miss = label { return false },
                options(nostack)
            ]);
        }
        true
    }

    /// As [`Region::push_batch`](crate::region::Region::push_batch) on this CPU's region. At least one round.
    #[inline(never)]
    pub(super) fn push_batch(&self, class: Class, rounds: &[NonNull<u8>]) -> bool {
        // SAFETY: each word leads to a region with a stack of the class. Rounds are stored above its length,
        // up to the new `cap`, which is within the class's limit, hence its room, and the committed part of
        // the region, of which the empty region has no byte.
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
                #[cfg(uslab_control = "earlycommit")]
                "add {w}, {w}, {count}",
                #[cfg(uslab_control = "earlycommit")]
                "str {w}, [x16]",
                "9: ldr {end}, [{rounds}, {x}, lsl 3]",
                "str {end}, [x17, {x}, lsl 3]",
                "add {x}, {x}, 1",
                "cmp {x}, {count}",
                "b.lo 9b",
                #[cfg(not(uslab_control = "earlycommit"))]
                "add {w}, {w}, {count}",
                #[cfg(not(uslab_control = "earlycommit"))]
                "str {w}, [x16]", // commit
                "3:",
            ] [
                x = out(reg) _, cap = out(reg) _, end = out(reg) _,
                rounds = in(reg) rounds.as_ptr(), count = in(reg) rounds.len(),
                words = in(reg) self.words.as_ptr(), area = in(reg) self.area,
                stack = in(reg) u64::from(class.stack),
                len = const LEN,
                at = const CAP, limit = const LIMIT, committed = const COMMITTED, place = const NULL + ROUND,
                miss = label { return false },
                options(nostack)
            ]);
        }
        true
    }

    /// As [`Region::pop_batch`](crate::region::Region::pop_batch) on this CPU's region. At least one round.
    #[inline(never)]
    pub(super) fn pop_batch(&self, class: Class, count: u32, into: *mut NonNull<u8>) -> bool {
        // SAFETY: each word leads to a region with a stack of the class, which pops if it has `count` rounds;
        // `into` has room for them, and no other thread uses it.
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
                len = const LEN, place = const NULL + ROUND,
                miss = label { return false },
                options(nostack)
            ]);
        }
        true
    }
}
