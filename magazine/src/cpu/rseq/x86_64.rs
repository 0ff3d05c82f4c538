//! The restartable sequences (sections) for x86-64, and the location of each thread's `struct rseq`. The module
//! [`rseq`](super) describes the rules for sections.

use super::{ABORTS, COMMITTED, CPU_ID, PcpuPtr, RSEQ_CS, descriptor};
use crate::region::{CAP, Class, LIMIT, NULL, OP_STEP, ROUND};
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
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
            "mov {alone}, qword ptr [rip + __libc_single_threaded@GOTPCREL]",
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
        asm!("mov {offset}, qword ptr [rip + uslab_rseq_scratch@GOTTPOFF]", offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    offset
}

/// Returns the thread pointer, from which the offset of a `struct rseq` is measured.
pub(super) fn thread_pointer() -> *mut u8 {
    let here;
    // SAFETY: the first word of the thread control block is its own address.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) here, options(nostack, pure, readonly, preserves_flags))
    };
    here
}

/// Returns the CPU number of this thread, read from the `struct rseq` at offset `area`.
#[inline]
pub(super) fn cpu_id_at(area: isize) -> u32 {
    let cpu: u32;
    // SAFETY: `area` is the offset of a `struct rseq` in every thread, whether the libc or this module registers it.
    unsafe {
        asm!("mov {cpu:e}, dword ptr fs:[{area} + {at}]", cpu = out(reg) cpu, area = in(reg) area,
            at = const CPU_ID, options(nostack, readonly, preserves_flags));
    }
    cpu
}

/// The instructions with which every section begins. Label `66` is the descriptor, label `4` the abort address, label
/// `5` the restart address, and label `2` the start of the section. The body of a section ends with the committing
/// store and the label `3:`. When the body starts, `t` is the address of the head of the class's stack on this CPU, `w`
/// is the head's value, and `n` is the stack's length.
macro_rules! section { ([$($body:tt)*] [$($operands:tt)*]) => {
    asm!(
        descriptor!(),
        ".pushsection .text.uslab_rseq_abort, \"ax\"",
        ".byte 0x0f, 0xb9, 0x3d",                          // an undefined instruction: the signature is never run
        ".long 0x53053053",
        "4: lock inc qword ptr [rip + {aborts}]",
        "jmp 5f",
        ".popsection",
        "5: lea {t}, [rip + 66b]",
        "mov qword ptr fs:[{area} + {rseq_cs}], {t}",
        "2: movsxd {t}, dword ptr fs:[{area} + {cpu_id}]",
        "mov {t}, qword ptr [{words} + {t}*8]",
        "add {t}, {stack}",
        "mov {w}, qword ptr [{t}]",                        // len:16 | ops:48
        "movzx {n:e}, {w:x}",
        $($body)*
        aborts = sym ABORTS,
        rseq_cs = const RSEQ_CS,
        cpu_id = const CPU_ID,
        t = out(reg) _,
        w = out(reg) _,
        n = out(reg) _,
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
                "mov {round}, qword ptr [{t} + {n}*8 + {null}]",
                "test {round}, {round}",
                "jz 3f",                                          // the null word below the stack
                "add {w}, {one}",                                 // ops + 1, len - 1
                "mov qword ptr [{t}], {w}", // commit
                "3:",
            ] [
                round = out(reg) round,
                words = in(reg) self.words.as_ptr(), area = in(reg) self.area,
                null = const NULL,
                stack = in(reg) u64::from(class.stack),
                one = const OP_STEP - 1,
                options(nostack)
            ]);
        }
        NonNull::new(round)
    }

    /// Pushes an object on the class's stack on this CPU. Returns `false` if the stack is full, if the object is
    /// already on top of it, or if the thread's CPU has no region. After the section, `push` prefetches a cache line
    /// for writing. The prefetched line is the object's line if the stack has fewer than `quiet` objects, and the
    /// head's line otherwise. A conditional move selects the cache line to prefetch, because a branch would often be
    /// mispredicted.
    #[inline(always)]
    pub(crate) fn push(&self, class: Class, round: NonNull<u8>) -> bool {
        // SAFETY: each word leads to a region with a stack of the class, to which only sections of its CPU
        // store. The object is stored above the length, in a place that `cap` allows. No operation reads a
        // place before the stack's length covers it. The caps of the empty region are 0. A prefetch is valid
        // for any address.
        unsafe {
            section!([
                "mov {c}, qword ptr [{t} - {cap}]",               // cap:32 | limit:16 | quiet:16
                "cmp {n:e}, {c:e}",
                "jae {miss}",
                "cmp {round}, qword ptr [{t} + {n}*8 + {null}]",
                "je {miss}",
                "mov qword ptr [{t} + {n}*8 + {place}], {round}",
                "add {w}, {one}",                                 // ops + 1, len + 1
                "mov qword ptr [{t}], {w}", // commit
                "3: shr {c}, 48",
                "cmp {n:e}, {c:e}",
                "cmovb {t}, {round}",
                "prefetchw [{t}]",
            ] [
                c = out(reg) _,
                round = in(reg) round.as_ptr(),
                words = in(reg) self.words.as_ptr(), area = in(reg) self.area,
                stack = in(reg) u64::from(class.stack),
                cap = const CAP, null = const NULL, place = const NULL + ROUND, one = const OP_STEP + 1,
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
                "lea {x}, [{n} + {count}]",                       // the places that it takes
                "mov {cap:e}, dword ptr [{t} - {at}]",
                "cmp {x}, {cap}",
                "jbe 8f",
                "add {cap}, {cap}",
                "cmp {cap}, {x}",
                "cmovb {cap}, {x}",
                "mov {end:e}, dword ptr [{t} - {limit}]",
                "movzx {end:e}, {end:x}",
                "cmp {cap}, {end}",
                "cmova {cap}, {end}",
                "cmp {x}, {cap}",
                "ja {miss}",
                "mov {region}, {t}",
                "sub {region}, {stack}",
                "lea {end}, [{stack} + {cap}*8 + {place}]",
                "cmp {end}, qword ptr [{region} + {committed}]",
                "ja {miss}",
                "mov dword ptr [{t} - {at}], {cap:e}",            // survives an abort
                "8: lea {n}, [{t} + {n}*8 + {place}]",
                "xor {x:e}, {x:e}",
                "9: mov {end}, qword ptr [{rounds} + {x}*8]",
                "mov qword ptr [{n} + {x}*8], {end}",
                "inc {x}",
                "cmp {x}, {count}",
                "jb 9b",
                "add {w}, {count}",
                "mov qword ptr [{t}], {w}", // commit
                "3:",
            ] [
                x = out(reg) _, cap = out(reg) _, end = out(reg) _, region = out(reg) _,
                rounds = in(reg) rounds.as_ptr(), count = in(reg) rounds.len(),
                words = in(reg) self.words.as_ptr(), area = in(reg) self.area,
                stack = in(reg) u64::from(class.stack),
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
                "sub {n}, {count}",
                "jb {miss}",
                "lea {n}, [{t} + {n}*8 + {place}]",
                "xor {i:e}, {i:e}",
                "9: mov {round}, qword ptr [{n} + {i}*8]",
                "mov qword ptr [{into} + {i}*8], {round}",
                "inc {i}",
                "cmp {i}, {count}",
                "jb 9b",
                "sub {w}, {count}",
                "mov qword ptr [{t}], {w}", // commit
                "3:",
            ] [
                i = out(reg) _, round = out(reg) _,
                into = in(reg) into, count = in(reg) u64::from(count),
                words = in(reg) self.words.as_ptr(), area = in(reg) self.area,
                stack = in(reg) u64::from(class.stack),
                place = const NULL + ROUND,
                miss = label { return false },
                options(nostack)
            ]);
        }
        true
    }
}
