//! A section as a function: x86-64.

use super::super::sections::{Kind, Operands};
use super::*;
use iced_x86::Register;

/// Whether sections are run where they stand, whatever function they were inlined into.
pub(super) const EVERYWHERE: bool = true;

/// All code that is written to: a section, and where it goes on.
pub(super) fn code(section: &Section) -> impl Iterator<Item = Range<usize>> + use<> {
    let miss = section.miss().map(|miss| miss..miss + 1);
    core::iter::once(section.code.start..section.code.end + 1).chain(miss)
}

/// Whether a trap was one of a call, and not a breakpoint inside.
pub(super) fn trap(context: *mut libc::c_void) -> bool {
    // SAFETY: what the kernel hands to a handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    // SAFETY: whoever sets it keeps it until it is null again.
    unsafe { CALL.load(Relaxed).as_mut() }.is_some_and(|call| call.trap(registers))
}

/// Registers as a signal's handler sees them.
type Registers = [libc::greg_t; 23];

/// A call of a section where it stands in the program, whatever function it was inlined into, also one that no test calls.
///
/// A trap goes to its restart label, with its operands in the registers that it has them in; one behind it comes back.
struct Call {
    entry: usize,
    operands: Vec<(usize, u64)>,
    /// Where it ends with a commit, and without.
    exits: [usize; 2],
    /// The registers in front of it, until it ends,
    caller: Option<Registers>,
    /// and at its end.
    left: Option<Registers>,
}

static CALL: AtomicPtr<Call> = AtomicPtr::new(core::ptr::null_mut());

impl Call {
    const RIP: usize = libc::REG_RIP as usize;

    /// Whether it is a trap of this call, and not a breakpoint inside.
    fn trap(&mut self, registers: &mut Registers) -> bool {
        let Some(caller) = self.caller else {
            self.caller = Some(*registers);
            self.operands.iter().for_each(|(at, value)| registers[*at] = *value as libc::greg_t);
            registers[Self::RIP] = self.entry as libc::greg_t;
            return true;
        };
        if !self.exits.contains(&(registers[Self::RIP] as usize - 1)) {
            return false;
        }
        self.left = Some(*registers);
        *registers = caller;
        true
    }
    /// The registers at its end.
    fn run(mut self) -> Registers {
        let exits = self.exits.map(Patch::new);
        exits.iter().for_each(Patch::trap);
        CALL.store(&raw mut self, Relaxed);
        // SAFETY: the handler runs the section, which uses no stack, and then sets all registers to what they are here.
        unsafe { core::arch::asm!("int3") };
        CALL.store(core::ptr::null_mut(), Relaxed);
        exits.iter().for_each(Patch::lift);
        self.left.expect("a call ends")
    }
}

/// The number that a handler knows a register by.
fn greg(register: Register) -> usize {
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
    found.unwrap_or_else(|| panic!("{register:?}: an operand lies there")).1 as usize
}

impl Word {
    /// The first and the last CPU's, each once.
    fn cpus(world: &World) -> Vec<Self> {
        let mut cpus = vec![0, world.cpus() - 1];
        cpus.dedup();
        cpus.into_iter().map(|cpu| Self { number: cpu.into(), cpu: Some(cpu) }).collect()
    }
    /// What is no CPU's: those in front, the first one behind and the last one.
    fn spare(world: &World) -> Vec<Self> {
        let (count, last) = (i64::from(world.cpus()), i64::from(world.table.cpus().slots()) - 1);
        let spare =
            [-2, -1, count, last].into_iter().filter(|number| *number < 0 || (count..=last).contains(number));
        spare.map(|number| Self { number, cpu: None }).collect()
    }
}

/// A section of the program.
pub(super) struct Copied<'s> {
    pub(super) section: &'s Section,
    operands: Operands,
}

impl<'s> Copied<'s> {
    pub(super) fn new(section: &'s Section) -> Self {
        Self { section, operands: section.operands() }
    }
    /// What sections that do the same with other registers have in common.
    pub(super) fn form(&self) -> String {
        self.section.form()
    }
    /// The words that it is run on: CPUs', and such as are no CPU's.
    pub(super) fn words(world: &World) -> [Vec<Word>; 2] {
        [Word::cpus(world), Word::spare(world)]
    }
    /// What it may do to a class.
    pub(super) fn operations(&self, class: usize) -> Vec<Operation> {
        match self.operands.kind {
            Kind::Pop => vec![Operation::Pop(class)],
            Kind::Push => vec![Operation::Push(class, round(77))],
            Kind::PushBatch => [1, 3].map(|n| Operation::PushBatch(class, n)).to_vec(),
            Kind::PopBatch => [1, 3].map(|n| Operation::PopBatch(class, n)).to_vec(),
        }
    }
    /// The operation, on what the word of that number leads to.
    pub(super) fn run(&self, world: &World, word: i64, operation: Operation) -> Outcome {
        let Operands { area, words, stack, rounds, count, .. } = self.operands;
        let (end, miss) = (self.section.code.end, self.section.miss());
        assert_ne!(Some(end), miss, "{:#x}: done or not, it goes on at one place", self.section.code.start);
        let (class, address, n) = match operation {
            Operation::Pop(class) => (class, 0, 0),
            Operation::Push(class, round) => (class, round.addr().get(), 0),
            Operation::PushBatch(class, n) | Operation::PopBatch(class, n) => (class, 0, n),
        };
        let (batch, mut into) = (Operation::batch(n), [None; 4]);
        let address = match operation {
            Operation::PushBatch(..) => batch.as_ptr().addr(),
            Operation::PopBatch(..) => (&raw mut into).expose_provenance(),
            _ => address,
        };
        // The kernel says which CPU this is; so the words are moved, and not that number.
        let zero =
            world.table.words().addr().get().wrapping_add_signed(8 * (word - i64::from(cpu_id())) as isize);
        let mut operands = vec![
            (greg(area), world.pcpu.area as u64),
            (greg(words), zero as u64),
            (greg(stack), world.classes[class].stack.into()),
            (greg(rounds), address as u64),
        ];
        operands.extend(count.map(|count| (greg(count), n as u64)));
        let entry = self.section.restart();
        let exits = [end, miss.unwrap_or(end)];
        let left = Call { entry, operands, exits, caller: None, left: None }.run();
        let done = left[Call::RIP] as usize == end + 1;
        match operation {
            Operation::Pop(_) => Outcome::Pop(NonNull::new(left[greg(rounds)] as *mut u8)),
            Operation::Push(..) | Operation::PushBatch(..) => Outcome::Push(done),
            Operation::PopBatch(..) => {
                // What was written there was written by the section.
                let into = core::hint::black_box(into);
                Outcome::PopBatch(
                    into[..if done { n } else { 0 }].iter().map(|round| round.unwrap()).collect(),
                )
            }
        }
    }
}
