//! Access to the registers of an interrupted thread, on aarch64.

use super::super::sections::{Code, Register};
use nix::libc;

/// The register contents, in the format of a signal handler's context.
#[derive(Clone, Copy)]
pub(super) struct Registers {
    general: [libc::c_ulonglong; 31],
    pc: libc::c_ulonglong,
    flags: libc::c_ulonglong,
}

/// Executes a trap instruction, and changes no register before it. When `trap` returns, the registers have the values
/// that the signal handler set.
///
/// # Safety
/// The caller must have installed a signal handler for this trap.
pub(super) unsafe fn trap() {
    // SAFETY: the installed handler handles this trap, by this function's contract.
    unsafe { core::arch::asm!("brk #0") };
}

impl Registers {
    pub(super) fn read(context: *mut libc::c_void) -> Self {
        // SAFETY: the kernel passed `context` to the handler.
        let all = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
        Self { general: all.regs, pc: all.pc, flags: all.pstate }
    }
    pub(super) fn write(self, context: *mut libc::c_void) {
        // SAFETY: the kernel passed `context` to the handler, and restores the registers from it.
        let all = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
        (all.regs, all.pc, all.pstate) = (self.general, self.pc, self.flags);
    }
    pub(super) fn get(&self, register: Register) -> u64 {
        self.general[register as usize]
    }
    pub(super) fn set(&mut self, register: Register, value: u64) {
        self.general[register as usize] = value;
    }
    pub(super) fn jump_to(&mut self, to: usize) {
        self.pc = to as u64;
    }
    /// Returns the address of the trap instruction, which is the program counter.
    pub(super) fn trap_address(&self) -> usize {
        self.pc as usize
    }
    /// Returns the registers with the program counter advanced past the trap instruction.
    pub(super) fn after_trap(mut self) -> Self {
        self.pc += size_of::<Code>() as u64;
        self
    }
}
