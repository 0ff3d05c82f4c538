//! Access to the registers of an interrupted thread, on x86-64.

use super::super::sections::Register;
use nix::libc;

/// The register contents, in the format of a signal handler's context.
#[derive(Clone, Copy)]
pub(super) struct Registers([libc::greg_t; 23]);

const RIP: usize = libc::REG_RIP as usize;

/// Executes a trap instruction, and changes no register before it. When `trap` returns, the registers have the values
/// that the signal handler set.
///
/// # Safety
/// The caller must have installed a signal handler for this trap.
pub(super) unsafe fn trap() {
    // SAFETY: the installed handler handles this trap, by this function's contract.
    unsafe { core::arch::asm!("int3") };
}

impl Registers {
    pub(super) fn read(context: *mut libc::c_void) -> Self {
        // SAFETY: the kernel passed `context` to the handler.
        Self(unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs })
    }
    pub(super) fn write(self, context: *mut libc::c_void) {
        // SAFETY: the kernel passed `context` to the handler, and restores the registers from it.
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs = self.0 };
    }
    pub(super) fn get(&self, register: Register) -> u64 {
        self.0[context_register_index(register)] as u64
    }
    pub(super) fn set(&mut self, register: Register, value: u64) {
        self.0[context_register_index(register)] = value as libc::greg_t;
    }
    pub(super) fn jump_to(&mut self, to: usize) {
        self.0[RIP] = to as libc::greg_t;
    }
    /// Returns the address of the one-byte trap instruction, which is one below the program counter.
    pub(super) fn trap_address(&self) -> usize {
        self.0[RIP] as usize - 1
    }
    /// Returns the registers unchanged, because the program counter already points behind the trap instruction.
    pub(super) fn after_trap(self) -> Self {
        self
    }
}

/// Returns the index of a register in the context of a signal handler.
fn context_register_index(register: Register) -> usize {
    use Register::{R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI};
    let known = [
        (RAX, libc::REG_RAX),
        (RBX, libc::REG_RBX),
        (RCX, libc::REG_RCX),
        (RDX, libc::REG_RDX),
        (RSI, libc::REG_RSI),
        (RDI, libc::REG_RDI),
        (RBP, libc::REG_RBP),
        (R8, libc::REG_R8),
        (R9, libc::REG_R9),
        (R10, libc::REG_R10),
        (R11, libc::REG_R11),
        (R12, libc::REG_R12),
        (R13, libc::REG_R13),
        (R14, libc::REG_R14),
        (R15, libc::REG_R15),
    ];
    let found = known.iter().find(|(known, _)| *known == register);
    found.unwrap_or_else(|| panic!("{register:?} must hold no operand")).1 as usize
}
