//! The registers of an interrupted thread: aarch64.

use super::super::sections::{Code, Register};
use nix::libc;

/// As a signal's handler sees them.
#[derive(Clone, Copy)]
pub(super) struct Registers {
    general: [libc::c_ulonglong; 31],
    pc: libc::c_ulonglong,
    flags: libc::c_ulonglong,
}

/// Traps, with all registers as they are. Behind it they are what the handler leaves.
///
/// # Safety
/// A handler knows of it.
pub(super) unsafe fn trap() {
    // SAFETY: as above.
    unsafe { core::arch::asm!("brk #0") };
}

impl Registers {
    pub(super) fn read(context: *mut libc::c_void) -> Self {
        // SAFETY: what the kernel hands to a handler.
        let all = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
        Self { general: all.regs, pc: all.pc, flags: all.pstate }
    }
    pub(super) fn write(self, context: *mut libc::c_void) {
        // SAFETY: what the kernel hands to a handler, and takes back from it.
        let all = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
        (all.regs, all.pc, all.pstate) = (self.general, self.pc, self.flags);
    }
    pub(super) fn get(&self, register: Register) -> u64 {
        self.general[register as usize]
    }
    pub(super) fn set(&mut self, register: Register, value: u64) {
        self.general[register as usize] = value;
    }
    pub(super) fn jump(&mut self, to: usize) {
        self.pc = to as u64;
    }
    /// Where it trapped, and stands still.
    pub(super) fn trapped(&self) -> usize {
        self.pc as usize
    }
    /// Behind its trap, to go on.
    pub(super) fn behind(mut self) -> Self {
        self.pc += size_of::<Code>() as u64;
        self
    }
}
