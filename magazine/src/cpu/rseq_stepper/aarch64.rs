//! A section as a function: aarch64. Nothing reads the operands of one yet, so those are run that a test calls, on the word of the CPU
//! that runs it.

use super::*;

/// Whether sections are run where they stand, whatever function they were inlined into.
pub(super) const EVERYWHERE: bool = false;

/// All code that is written to.
pub(super) fn code(section: &Section) -> impl Iterator<Item = Range<usize>> + use<> {
    core::iter::once(section.code.clone())
}

/// Whether a trap was one of a call, and not a breakpoint inside.
pub(super) fn trap(_: *mut libc::c_void) -> bool {
    false
}

/// A section of the program.
pub(super) struct Copied<'s> {
    pub(super) section: &'s Section,
}

impl<'s> Copied<'s> {
    pub(super) fn new(section: &'s Section) -> Self {
        Self { section }
    }
    /// Each is another one.
    pub(super) fn form(&self) -> String {
        format!("{:#x}", self.section.code.start)
    }
    pub(super) fn words(_: &World) -> [Vec<Word>; 2] {
        let cpu = cpu_id();
        [vec![Word { number: cpu.into(), cpu: Some(cpu) }], vec![]]
    }
    /// What any may do to a class.
    pub(super) fn operations(&self, class: usize) -> Vec<Operation> {
        vec![
            Operation::Pop(class),
            Operation::Push(class, round(77)),
            Operation::PushBatch(class, 1),
            Operation::PushBatch(class, 3),
            Operation::PopBatch(class, 1),
            Operation::PopBatch(class, 3),
        ]
    }
    pub(super) fn run(&self, world: &World, _: i64, operation: Operation) -> Outcome {
        operation.in_assembly(world)
    }
}
