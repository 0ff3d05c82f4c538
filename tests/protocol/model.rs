//! The protocol of one size class as a transition system: threads operate on stacks, a depot and a supplier, one atomic
//! action at a time.
//!
//! An atomic action is a load or store inside a section, a lock acquisition together with all work under the lock, or a
//! system call. At any time, any thread may take the next action. The number of interruptions and the number of
//! operations of a thread are unbounded. A thread may run on any CPU, and may move to another CPU between sections.
//!
//! The model covers two mechanisms: restartable sequences and claimed slots. A *restartable sequence* may be aborted
//! after each of its steps, if another thread runs on its CPU, or if a drain fences its CPU. A *claimed slot* belongs
//! to one thread during a section; the section must find the slot free.
//!
//! The model is sequentially consistent; it omits statistics, pages that return to the system, failed allocations, and
//! NUMA nodes. Models under loom cover the parts that this model omits.
//!
//! The specification `uslab_magazine_spec` contains the rules for the depot, for idle stacks and for the growth of
//! stacks.
//!
//! Two programs compile this file: the test program `protocol` explores the model, and the unit test `in_step` of
//! `uslab-magazine` compares the model with the code.

use uslab_magazine_spec::{self as spec, List as _, SmallList, Usage, widened_capacity};

pub(crate) const CPUS: usize = 3;
/// The largest number of rounds that fit into a stack.
pub(crate) const PLACES: usize = 4;
/// The largest number of rounds that fit into a magazine.
pub(crate) const BATCH: usize = 2;
/// The largest number of magazines that fit into a depot.
pub(crate) const DEPOT: usize = 2;
pub(crate) const THREADS: usize = 4;
/// The largest number of rounds that one thread holds.
pub(crate) const MAX_HELD_ROUNDS: usize = 3;
/// The value that a CPU's word (its pointer to a region) has while a drain uses the CPU's region.
const EMPTY: u8 = CPUS as u8;

/// The number of a round (a cached object); 0 means no round.
pub(crate) type Round = u8;

/// The mechanism by which a thread gets exclusive access to a CPU's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mechanism {
    /// Restartable sequences.
    Rseq,
    /// A claim word next to each CPU's region, which a thread sets during a section.
    Claimed,
}
use Mechanism::{Claimed, Rseq};

/// The operations that a thread repeats in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ThreadRole {
    /// The thread repeatedly allocates and frees objects.
    User,
    /// The thread repeatedly drains all CPUs.
    Drainer,
    /// The thread sweeps idle stacks, collects their rounds, and frees magazines that the depot does not
    /// need.
    Reaper,
    /// The thread closes the class and flushes it once.
    Closer,
    /// When the class has no user left, the thread returns the class's number once; then another owner gets the number.
    Successor,
    /// The thread forks once; the child of the fork allocates and frees.
    Forker,
    /// The thread shrinks the stacks, then grows them.
    Resizer,
}

/// A planted bug, which changes one line of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bug {
    /// A drain does not wait for threads that are inside a section.
    NoFence,
    /// A drain of several CPUs fences only one of the CPUs.
    FencesOne,
    /// A drain takes the rounds before it fences the CPU.
    TakesBeforeFence,
    /// A drain restores a CPU's word before it has finished its work on that CPU's region.
    PutBackEarly,
    /// The empty region has room for a round, although no round may be stored there.
    EmptyHasPlaces,
    /// A section uses a region that it loaded before the section began.
    StaleRegion,
    /// A batch is committed before its rounds are stored.
    BatchCommittedEarly,
    /// A batch operation writes rounds beyond the stack's limit.
    WidensBeyondLimit,
    /// Drains do not take the lock that excludes other drains.
    DrainsWithoutLock,
    /// When the first of two concurrent drains ends, it reopens the class although the other drain is still active.
    FirstDrainOpens,
    /// A drain flushes rounds that another drain has taken from a stack.
    GivesAwayOthers,
    /// A drain takes rounds from stacks without closing these stacks.
    StaysOpen,
    /// A cache miss reopens a class that a drain has closed.
    OpensBesideDrain,
    /// A drain does not take over rounds that an earlier sweep has taken.
    SweepForgotten,
    /// A drain ends without reopening the class.
    NeverReopens,
    /// A drain that closes a class skips empty stacks, so these stacks stay open.
    ClosedStaysOpen,
    /// A closed depot still accepts magazines.
    ClosedDepotTakes,
    /// The class's number is returned although only one CPU was checked for rounds.
    RetiresOneCpu,
    /// The depot still counts a magazine that it has handed out.
    DepotKeeps,
    /// A fork does not wait until the depot's lock is free.
    ForkSkipsDepot,
    /// A fork does not wait until the drain lock is free.
    ForkSkipsDrains,
    /// A forked child keeps the claims of threads that do not exist in it.
    ClaimsOutlive,
    /// A forked child waits for drains by threads that do not exist in it.
    DrainsOutlive,
    /// A forked child loses the rounds that drains in the parent had taken.
    ChildLosesTaken,
    /// An allocation that finds no open stack retries without end.
    TriesAgain,
    /// A cache miss waits for the drain lock while it holds the depot's lock.
    LocksOutOfOrder,
}

/// A violation that the exploration of the model can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// A thread wrote to a region while a drain owned the region.
    WrittenBehindFence,
    /// A thread wrote to the empty region.
    EmptyWritten,
    /// A thread wrote to a region without having claimed it.
    WrittenUnclaimed,
    /// A stack got a larger capacity than its maximum.
    BeyondReach,
    /// A stack entry below the stack's length contains no round.
    NoRound,
    /// A drain found rounds on a stack from which another drain had already taken them.
    TakenTwice,
    /// A round was returned to the supplier a second time.
    BackTwice,
    /// A round that belongs to the class number's previous owner appeared.
    OldRound,
    /// A drain ended twice.
    EndedTwice,
    /// In the child of a fork, a CPU has no region.
    AwayInChild,
    /// A closed and flushed class still contains rounds although no thread is active.
    ClosedKeeps,
}

impl Fault {
    /// Returns the description of the violation that messages show.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::WrittenBehindFence => "an operation wrote to a region that a drain owns",
            Self::EmptyWritten => "the empty region was written",
            Self::WrittenUnclaimed => "a region was written without its claim",
            Self::BeyondReach => "a place beyond the stack's maximum was used",
            Self::NoRound => "a place below the stack's length holds no round",
            Self::TakenTwice => "a drain found a stack that another drain had taken",
            Self::BackTwice => "a round was flushed to the supplier twice",
            Self::OldRound => "a round of the class number's previous owner was allocated",
            Self::EndedTwice => "a drain ended that was not running",
            Self::AwayInChild => "a child has no region of a CPU",
            Self::ClosedKeeps => "a closed and flushed class holds rounds",
        }
    }
}

/// A region, which is one CPU's stack of the class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Region {
    /// `true` if the region's memory is committed and may therefore be written to.
    pub(crate) committed: bool,
    pub(crate) len: u8,
    pub(crate) cap: u8,
    /// The capacity of the stack in rounds; 0 if the stack is closed.
    pub(crate) limit: u8,
    usage: Usage,
    /// The number of rounds that a drain has taken from this stack and has not begun to flush.
    pub(crate) taken_count: u8,
    /// The drain that has taken these rounds from the stack.
    taking_drain: u8,
    /// The thread that has claimed the region, counted from 1; 0 if the region is unclaimed.
    claim: u8,
    pub(crate) places: [Round; PLACES],
}

impl Region {
    pub(crate) fn is_idle(&self) -> bool {
        self.usage.is_idle(self.len.into())
    }
    /// Returns the thread that has claimed the region, counted from 1; 0 if the region is unclaimed.
    pub(crate) fn claiming_thread(&self) -> u8 {
        self.claim
    }
    fn update_region_usage(&mut self) {
        self.usage.record_sweep(self.len.into());
    }
}

/// The data of the class in the table, which the drain lock protects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Number {
    /// The limit of the class's stacks while no drain is active; 0 if the class is closed permanently.
    pub(crate) open: u8,
    /// The current limit of the class's stacks.
    pub(crate) limit: u8,
    pub(crate) drains: u8,
    /// The drain whose rounds are still to be flushed; 0 if there is no such drain.
    pub(crate) waiting: u8,
}

/// The depot of magazines, which all CPUs share.
pub(crate) type Depot = spec::Depot<SmallList<[Round; BATCH], DEPOT>>;

/// A section of the code, named after its role in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The section is the fast path of an allocation.
    Pop,
    /// The section pushes the remaining rounds of the thread's magazine onto the stack.
    Rest,
    /// The section pushes the remaining rounds of the thread's magazine again, after the stack was opened.
    RestAgain,
    /// The section is the fast path of a free.
    Push,
    /// The section increases the capacity of the stack.
    Widen,
    /// The section increases the capacity of the stack again, after the stack was opened.
    WidenAgain,
    /// The section takes enough rounds for a magazine off the stack.
    Overflow,
    /// The section pushes the round again, after `Overflow` has made room for it.
    PushAgain,
}

/// The next step of a thread in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Pc {
    /// The thread is not in any operation.
    Idle,
    /// The thread does not exist in the child of the fork.
    Gone,
    /// The thread begins a section on some CPU.
    Enter(Stage),
    Read(Stage),
    Store(Stage),
    Write(Stage),
    Commit(Stage),
    /// The thread ends a section and releases its claim.
    Leave(Stage, bool),
    // An allocation after its miss.
    Look,
    Fill,
    Flush,
    // Opening a stack.
    IsOpen(Stage),
    TryDrains(Stage),
    Open(Stage),
    // A visit to the depot; `Then` determines the step after it.
    Hint,
    LockDepot,
    Take,
    LockDepotToPut,
    Put,
    Bypass,
    // A drain.
    LockDrains,
    Close,
    Want,
    Own,
    Fence,
    TakeStack,
    PutBack,
    Claim,
    LockToClaim,
    GiveStack,
    ForgetTaken,
    GiveRound,
    LockToReopen,
    Reopen,
    LockForSurplus,
    Surplus,
    // A class is closed for good, or gets another owner.
    LockToLimit,
    Limit,
    LockToCloseDepot,
    CloseDepot,
    Retire,
    Forget,
    // A fork.
    LockDepotToFork,
    Fork,
}

/// A thread's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Op {
    Alloc,
    Free,
    Drain,
    Reap,
    Close,
    Retire,
    Fork,
    Resize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Thread {
    pub(crate) pc: Pc,
    pub(crate) op: Op,
    /// `true` if the thread has already done the operation that its role does only once.
    pub(crate) done: bool,
    /// The CPU of the thread's section, or of the current step of its drain.
    at: u8,
    /// The region that the section has loaded.
    region: u8,
    /// The stack length that the section has read; the next field is the `cap` that the section stores.
    len: u8,
    cap: u8,
    /// The rounds that the section has read from the stack.
    read_rounds: [Round; BATCH],
    remaining: u8,
    /// `true` if the thread has found the class open.
    open: bool,
    /// The round that the thread is allocating or freeing now.
    pub(crate) own_round: Round,
    /// The magazine that the thread moves between the stack, the depot and the supplier.
    pub(crate) carried: [Round; BATCH],
    pub(crate) carried_count: u8,
    /// The rounds that the thread holds as a user of the class.
    pub(crate) held_rounds: [Round; MAX_HELD_ROUNDS],
    pub(crate) held_count: u8,
    /// The CPUs that the thread's drain must still visit, as a bit set; the next bit set has the CPUs whose regions the
    /// drain has detached.
    todo: u8,
    detached: u8,
    /// The drain whose rounds this thread flushes.
    number: u8,
    /// The number of magazines that the thread's reap still has to take from the depot.
    surplus: u8,
}

impl Thread {
    /// Returns how many rounds remain in the stack that the thread flushes.
    fn rounds_to_flush(&self) -> u8 {
        if self.pc == Pc::GiveRound { self.remaining } else { 0 }
    }
    /// Returns the CPU of the thread's current step.
    pub(crate) fn cpu(&self) -> u8 {
        self.at
    }
}

const IDLE_THREAD: Thread = Thread {
    pc: Pc::Idle,
    op: Op::Alloc,
    done: false,
    at: 0,
    region: 0,
    len: 0,
    cap: 0,
    read_rounds: [0; BATCH],
    remaining: 0,
    open: false,
    own_round: 0,
    carried: [0; BATCH],
    carried_count: 0,
    held_rounds: [0; MAX_HELD_ROUNDS],
    held_count: 0,
    todo: 0,
    detached: 0,
    number: 0,
    surplus: 0,
};

/// The complete state of the model at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) regions: [Region; CPUS],
    /// The CPUs without their region, as a bit set; the next bit set has the CPUs whose region a drain owns.
    pub(crate) detached: u8,
    owned: u8,
    pub(crate) number: Number,
    pub(crate) depot: Depot,
    /// The thread that holds the drain lock, counted from 1, or 0; the next field is the holder of the depot's lock.
    pub(crate) drains: u8,
    pub(crate) depot_lock: u8,
    /// The rounds that the supplier holds, as a bit set. The next two bit sets are the rounds lost with the parent's
    /// other threads, and the rounds of the class number's previous owner.
    pub(crate) supplier: u16,
    pub(crate) lost_rounds: u16,
    pub(crate) dead_rounds: u16,
    pub(crate) child: bool,
    pub(crate) closed: bool,
    pub(crate) threads: [Thread; THREADS],
    pub(crate) fault: Option<Fault>,
}

/// The kind of an action in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ActionKind {
    /// The thread begins an operation.
    Begin(Op),
    /// The thread does the next step of its operation.
    Step,
    /// The thread does the next step on this CPU: it begins a section, reads the CPU's number, or continues its drain
    /// of the CPU.
    On(u8),
    /// Another thread or a drain interrupts the thread's section, which will restart.
    Abort,
    /// The thread continues as the child of a fork that it has made.
    Child,
}

/// An action that one thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Action {
    pub(crate) thread: u8,
    pub(crate) act: ActionKind,
}

/// The parameters of the protocol model.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) mechanism: Mechanism,
    /// The number of CPUs in use, up to [`CPUS`].
    pub(crate) cpus: u8,
    /// The number of rounds in a magazine.
    pub(crate) capacity: u8,
    /// The maximum number of rounds in a stack.
    pub(crate) reach: u8,
    pub(crate) depot_limit: u8,
    /// The number of rounds that each owner of the class number has.
    pub(crate) rounds: u8,
    /// The largest number of rounds that a user of the class holds.
    pub(crate) max_held: u8,
    pub(crate) roles: Vec<ThreadRole>,
    pub(crate) bug: Option<Bug>,
    /// `true` if the model includes aborts of sections.
    pub(crate) aborts: bool,
}

fn bit(i: impl Into<usize>) -> u16 {
    1 << i.into()
}
fn single_bit_mask(i: u8) -> u8 {
    1 << i
}
fn set_bit_indices(mask: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |i| mask & single_bit_mask(*i) != 0)
}

impl Protocol {
    fn has_bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns the initial state, in which the supplier has all rounds.
    pub(crate) fn start(&self) -> State {
        assert!(
            self.roles.len() <= THREADS
                && self.reach as usize <= PLACES
                && self.max_held as usize <= MAX_HELD_ROUNDS
        );
        assert!(self.capacity as usize <= BATCH && self.depot_limit as usize <= DEPOT);
        let limit = self.reach;
        let mut threads = [Thread { pc: Pc::Gone, ..IDLE_THREAD }; THREADS];
        threads[..self.roles.len()].fill(IDLE_THREAD);
        State {
            regions: [Region::default(); CPUS],
            detached: 0,
            owned: 0,
            number: Number { open: limit, limit, drains: 0, waiting: 0 },
            depot: Depot::default(),
            drains: 0,
            depot_lock: 0,
            supplier: self.fresh(0),
            lost_rounds: 0,
            dead_rounds: 0,
            child: false,
            closed: false,
            threads,
            fault: None,
        }
    }
    /// Returns the rounds of the first or second owner of the class number, as a bit set.
    fn fresh(&self, owner: u8) -> u16 {
        (1..=self.rounds).map(|round| bit(round + owner * self.rounds)).sum()
    }
    fn role_of_thread(&self, s: &State, thread: usize) -> ThreadRole {
        if s.child { ThreadRole::User } else { self.roles[thread] }
    }

    /// Appends all actions that are possible in this state to `actions`. A step that must wait is not appended.
    pub(crate) fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.fault.is_some() {
            return;
        }
        for thread in 0..self.roles.len() as u8 {
            let t = &s.threads[usize::from(thread)];
            let mut add = |act| actions.push(Action { thread, act });
            match t.pc {
                Pc::Gone => {}
                Pc::Idle => self
                    .begins(s, usize::from(thread))
                    .into_iter()
                    .flatten()
                    .for_each(|op| add(ActionKind::Begin(op))),
                Pc::Enter(_) | Pc::IsOpen(_) => (0..self.cpus).for_each(|cpu| add(ActionKind::On(cpu))),
                Pc::Want | Pc::Fence | Pc::TakeStack => {
                    set_bit_indices(t.todo).for_each(|cpu| add(ActionKind::On(cpu)))
                }
                Pc::GiveStack => {
                    set_bit_indices(self.regions_to_return(s, t)).for_each(|cpu| add(ActionKind::On(cpu)))
                }
                pc => {
                    if self.is_lock_available(s, t) {
                        add(ActionKind::Step);
                    }
                    if pc == Pc::Fork && !s.child {
                        add(ActionKind::Child);
                    }
                }
            }
            if self.mechanism == Rseq && self.aborts && inside(t.pc).is_some() {
                add(ActionKind::Abort);
            }
        }
    }
    fn begins(&self, s: &State, thread: usize) -> [Option<Op>; 2] {
        let t = &s.threads[thread];
        let ready_or_none = |op, ready: bool| [ready.then_some(op), None];
        let is_quiet = |at: usize| {
            let u = &s.threads[at];
            let sweeps = u.op == Op::Reap
                && matches!(
                    u.pc,
                    Pc::LockDrains
                        | Pc::Close
                        | Pc::Want
                        | Pc::Own
                        | Pc::Fence
                        | Pc::TakeStack
                        | Pc::PutBack
                        | Pc::Claim
                        | Pc::LockToClaim
                );
            at == thread || matches!(u.pc, Pc::Idle | Pc::Gone) && u.held_count == 0 || sweeps
        };
        match self.role_of_thread(s, thread) {
            // The owner's last user returns the number, so no user begins another operation.
            ThreadRole::User if s.threads.iter().any(|t| t.op == Op::Retire) => [None; 2],
            ThreadRole::User => {
                let frees = (t.held_count > 0).then_some(Op::Free);
                // A closed class only takes late frees.
                let allocates = t.held_count < self.max_held && s.number.open > 0;
                [allocates.then_some(Op::Alloc), frees]
            }
            ThreadRole::Drainer => ready_or_none(Op::Drain, true),
            ThreadRole::Reaper => ready_or_none(Op::Reap, true),
            ThreadRole::Closer => ready_or_none(Op::Close, !t.done),
            ThreadRole::Successor => {
                ready_or_none(Op::Retire, !t.done && (0..self.roles.len()).all(is_quiet))
            }
            ThreadRole::Forker => ready_or_none(Op::Fork, !t.done),
            ThreadRole::Resizer => ready_or_none(Op::Resize, s.number.open > 0),
        }
    }
    /// Returns `true` if the thread waits for a lock or claim that is free.
    fn is_lock_available(&self, s: &State, t: &Thread) -> bool {
        match t.pc {
            Pc::LockDepot | Pc::LockDepotToPut | Pc::LockToCloseDepot | Pc::LockForSurplus => {
                s.depot_lock == 0
            }
            Pc::LockDepotToFork => s.depot_lock == 0 || self.has_bug(Bug::ForkSkipsDepot),
            Pc::LockDrains if t.op == Op::Fork && self.has_bug(Bug::ForkSkipsDrains) => true,
            Pc::LockDrains | Pc::LockToClaim | Pc::LockToReopen | Pc::LockToLimit => {
                s.drains == 0 || self.has_bug(Bug::DrainsWithoutLock)
            }
            Pc::Own if self.mechanism == Claimed => {
                s.regions[usize::from(t.at)].claim == 0 || self.has_bug(Bug::NoFence)
            }
            Pc::Put if self.has_bug(Bug::LocksOutOfOrder) => s.drains == 0,
            Pc::Limit if self.has_bug(Bug::LocksOutOfOrder) => s.depot_lock == 0,
            _ => true,
        }
    }
    /// Returns `true` if the thread waits for a lock or a claim. A thread that waits for a lock or claim gets it
    /// eventually if it is free infinitely often.
    pub(crate) fn waits(pc: Pc) -> bool {
        matches!(
            pc,
            Pc::LockDepot
                | Pc::LockDepotToPut
                | Pc::LockToCloseDepot
                | Pc::LockForSurplus
                | Pc::LockDepotToFork
                | Pc::LockDrains
                | Pc::LockToClaim
                | Pc::LockToReopen
                | Pc::LockToLimit
                | Pc::Own
        )
    }
    fn regions_to_return(&self, s: &State, t: &Thread) -> u8 {
        let is_taken = |cpu: &u8| {
            let region = &s.regions[usize::from(*cpu)];
            region.taken_count > 0 && (region.taking_drain == t.number || self.has_bug(Bug::GivesAwayOthers))
        };
        (0..self.cpus).filter(is_taken).map(single_bit_mask).sum()
    }

    pub(crate) fn next(&self, before: &State, action: Action) -> State {
        let mut s = *before;
        let this_thread = usize::from(action.thread);
        match action.act {
            ActionKind::Begin(op) => self.begin(&mut s, this_thread, op),
            ActionKind::Abort => abort(&mut s.threads[this_thread]),
            ActionKind::Child => self.child(&mut s, this_thread),
            ActionKind::On(cpu) => self.step(&mut s, this_thread, cpu),
            ActionKind::Step => self.step(&mut s, this_thread, before.threads[this_thread].at),
        }
        // No other thread can see that a drain has visited all CPUs, so that step needs no separate action.
        while s.fault.is_none() && self.has_visited_all_regions(&s, &s.threads[this_thread]) {
            self.step(&mut s, this_thread, 0);
        }
        if s.fault.is_none() && s.closed && !s.child {
            let is_working = s.threads.iter().any(|t| !matches!(t.pc, Pc::Idle | Pc::Gone));
            let has_rounds = !s.depot.magazines().is_empty() || s.regions.iter().any(|region| region.len > 0);
            s.fault = (has_rounds && !is_working).then_some(Fault::ClosedKeeps);
        }
        s
    }

    fn has_visited_all_regions(&self, s: &State, t: &Thread) -> bool {
        match t.pc {
            Pc::Want | Pc::Fence | Pc::TakeStack => t.todo == 0,
            Pc::GiveStack => self.regions_to_return(s, t) == 0,
            _ => false,
        }
    }

    fn begin(&self, s: &mut State, this_thread: usize, op: Op) {
        let all_cpus = (1 << self.cpus) - 1;
        let t = &mut s.threads[this_thread];
        *t = Thread { op, done: t.done, held_rounds: t.held_rounds, held_count: t.held_count, ..IDLE_THREAD };
        if !matches!(op, Op::Alloc | Op::Free) {
            (t.number, t.todo) = (this_thread as u8 + 1, all_cpus);
        }
        t.pc = match op {
            Op::Alloc => Pc::Enter(Stage::Pop),
            Op::Free => {
                t.held_count -= 1;
                t.own_round = core::mem::take(&mut t.held_rounds[usize::from(t.held_count)]);
                Pc::Enter(Stage::Push)
            }
            Op::Drain | Op::Reap | Op::Fork => Pc::LockDrains,
            Op::Close | Op::Retire | Op::Resize => Pc::LockToLimit,
        };
    }
    fn end(s: &mut State, this_thread: usize) {
        let t = &mut s.threads[this_thread];
        let mut idle_thread =
            Thread { done: true, held_rounds: t.held_rounds, held_count: t.held_count, ..IDLE_THREAD };
        if t.op == Op::Alloc && t.own_round > 0 {
            if s.dead_rounds & bit(t.own_round) != 0 {
                s.fault = Some(Fault::OldRound);
            }
            idle_thread.held_rounds[usize::from(idle_thread.held_count)] = t.own_round;
            idle_thread.held_count += 1;
        }
        if t.op == Op::Close {
            s.closed = true;
        }
        *t = idle_thread;
    }

    // ---- sections ----

    /// Interrupts the section on this CPU and makes it restart, because another thread runs on the CPU or a fence
    /// arrives.
    fn interrupt(s: &mut State, cpu: u8, other_than: usize) {
        for (i, t) in s.threads.iter_mut().enumerate() {
            if i != other_than && inside(t.pc).is_some() && t.at == cpu {
                abort(t);
            }
        }
    }
    /// Returns `true` if the thread may write to the region now; otherwise records a violation.
    fn writes(&self, s: &mut State, this_thread: usize, region: u8) -> bool {
        let fault = if region == EMPTY {
            Some(Fault::EmptyWritten)
        } else if s.owned & single_bit_mask(region) != 0 {
            Some(Fault::WrittenBehindFence)
        } else if self.mechanism == Claimed
            && usize::from(s.regions[usize::from(region)].claim) != this_thread + 1
        {
            Some(Fault::WrittenUnclaimed)
        } else {
            None
        };
        s.fault = s.fault.or(fault);
        fault.is_none()
    }
    /// Returns the rounds that a section pushes on the stack.
    fn pushed_rounds(t: &Thread, stage: Stage) -> ([Round; BATCH], u8) {
        match stage {
            Stage::Rest | Stage::RestAgain => (t.carried, t.carried_count),
            _ => ([t.own_round, 0], 1),
        }
    }
    fn continue_after_miss(&self, s: &mut State, this_thread: usize, stage: Stage) {
        match self.mechanism {
            Rseq => self.choose_step_after_section(s, this_thread, stage, false),
            Claimed => s.threads[this_thread].pc = Pc::Leave(stage, false),
        }
    }

    fn section(&self, s: &mut State, this_thread: usize, cpu: u8) {
        let t = s.threads[this_thread];
        let empty = Region { cap: self.has_bug(Bug::EmptyHasPlaces).into(), ..Region::default() };
        let region = s.regions.get(usize::from(t.region)).copied().unwrap_or(empty);
        match t.pc {
            Pc::Enter(stage) => {
                let cpu_region = s.regions[usize::from(cpu)];
                if self.mechanism == Claimed {
                    if !cpu_region.committed || cpu_region.claim != 0 {
                        return self.choose_step_after_section(s, this_thread, stage, false);
                    }
                    s.regions[usize::from(cpu)].claim = this_thread as u8 + 1;
                } else {
                    Self::interrupt(s, cpu, this_thread);
                }
                let rounds_elsewhere = self.mechanism == Rseq
                    && s.detached & single_bit_mask(cpu) != 0
                    && !self.has_bug(Bug::StaleRegion);
                let t = &mut s.threads[this_thread];
                (t.at, t.region) = (cpu, if rounds_elsewhere { EMPTY } else { cpu });
                t.pc = Pc::Read(stage);
            }
            Pc::Read(stage) => self.read(s, this_thread, stage, &region),
            // The step stores the new `cap`, which stays if the section is aborted later.
            Pc::Store(stage) => {
                if self.writes(s, this_thread, t.region) {
                    s.regions[usize::from(t.region)].cap = t.cap;
                    s.threads[this_thread].pc = Pc::Write(stage);
                }
            }
            Pc::Write(stage) => {
                if self.writes(s, this_thread, t.region) {
                    let (rounds, n) = Self::pushed_rounds(&t, stage);
                    let region = &mut s.regions[usize::from(t.region)];
                    if usize::from(t.len + n) > PLACES || t.len + n > self.reach {
                        s.fault = Some(Fault::BeyondReach);
                        return;
                    }
                    if self.has_bug(Bug::BatchCommittedEarly)
                        && matches!(stage, Stage::Rest | Stage::RestAgain)
                    {
                        region.len = t.len + n;
                    }
                    for i in 0..n {
                        region.places[usize::from(t.len + i)] = rounds[usize::from(i)];
                    }
                    s.threads[this_thread].pc = Pc::Commit(stage);
                }
            }
            Pc::Commit(stage) => {
                if !self.writes(s, this_thread, t.region) {
                    return;
                }
                let (_, n) = Self::pushed_rounds(&t, stage);
                let region = &mut s.regions[usize::from(t.region)];
                let thread = &mut s.threads[this_thread];
                match stage {
                    Stage::Pop => {
                        region.len = t.len - 1;
                        region.usage.record_use();
                        thread.own_round = t.read_rounds[0];
                    }
                    Stage::Overflow => {
                        region.len = t.len - self.capacity;
                        (thread.carried, thread.carried_count) = (t.read_rounds, self.capacity);
                    }
                    _ => {
                        region.len = t.len + n;
                        if matches!(stage, Stage::Push | Stage::PushAgain) {
                            region.usage.record_use();
                        }
                        match stage {
                            Stage::Rest | Stage::RestAgain => {
                                (thread.carried, thread.carried_count) = ([0; BATCH], 0)
                            }
                            _ => thread.own_round = 0,
                        }
                    }
                }
                thread.read_rounds = [0; BATCH];
                match self.mechanism {
                    Rseq => self.choose_step_after_section(s, this_thread, stage, true),
                    Claimed => thread.pc = Pc::Leave(stage, true),
                }
            }
            Pc::Leave(stage, done) => {
                s.regions[usize::from(t.region)].claim = 0;
                self.choose_step_after_section(s, this_thread, stage, done);
            }
            _ => unreachable!("{:?} is not a step of a section", t.pc),
        }
    }
    /// Does all reads of a section before its first store.
    fn read(&self, s: &mut State, this_thread: usize, stage: Stage, region: &Region) {
        let (_, n) = Self::pushed_rounds(&s.threads[this_thread], stage);
        let t = &mut s.threads[this_thread];
        t.len = region.len;
        match stage {
            Stage::Pop | Stage::Overflow => {
                let n = if stage == Stage::Pop { 1 } else { self.capacity };
                if region.len < n {
                    return self.continue_after_miss(s, this_thread, stage);
                }
                for i in 0..n {
                    t.read_rounds[usize::from(i)] = region.places[usize::from(region.len - n + i)];
                }
                if t.read_rounds[..usize::from(n)].contains(&0) {
                    s.fault = Some(Fault::NoRound);
                }
                t.pc = Pc::Commit(stage);
            }
            Stage::Push | Stage::PushAgain => {
                if region.len >= region.cap {
                    return self.continue_after_miss(s, this_thread, stage);
                }
                t.pc = Pc::Write(stage);
            }
            Stage::Rest | Stage::RestAgain | Stage::Widen | Stage::WidenAgain => {
                let needed_places = region.len + n;
                t.pc = Pc::Write(stage);
                if needed_places > region.cap {
                    let limit = if self.has_bug(Bug::WidensBeyondLimit) { self.reach } else { region.limit };
                    let cap = widened_capacity(region.cap.into(), needed_places.into(), limit.into());
                    let Some(cap) = cap.filter(|_| region.committed) else {
                        return self.continue_after_miss(s, this_thread, stage);
                    };
                    t.cap = cap as u8;
                    t.pc = Pc::Store(stage);
                }
            }
        }
    }
    /// Chooses a thread's next step after the end of a section.
    fn choose_step_after_section(&self, s: &mut State, this_thread: usize, stage: Stage, done: bool) {
        let t = &mut s.threads[this_thread];
        (t.at, t.region, t.len, t.cap, t.read_rounds) = (0, 0, 0, 0, [0; BATCH]);
        t.pc = match (stage, done) {
            (Stage::Pop, false) => Pc::Look,
            (Stage::Rest, false) => Pc::IsOpen(Stage::RestAgain),
            (Stage::RestAgain, false) => {
                if self.has_bug(Bug::TriesAgain) {
                    Pc::Enter(Stage::Rest)
                } else {
                    Pc::Flush
                }
            }
            (Stage::Push, false) => Pc::Enter(Stage::Widen),
            (Stage::Widen, false) => Pc::IsOpen(Stage::WidenAgain),
            (Stage::WidenAgain, false) => Pc::Enter(Stage::Overflow),
            (Stage::Overflow, true) => {
                if self.depot_limit > 0 {
                    Pc::LockDepotToPut
                } else {
                    Pc::Flush
                }
            }
            (Stage::Overflow, false) | (Stage::PushAgain, false) => Pc::Bypass,
            (_, true) => return Self::end(s, this_thread),
        };
    }

    // ---- other steps ----

    fn return_round_to_supplier(s: &mut State, round: Round) {
        if round == 0 {
            s.fault = Some(Fault::NoRound);
        } else if s.supplier & bit(round) != 0 {
            s.fault = Some(Fault::BackTwice);
        }
        s.supplier |= bit(round);
    }
    fn set_limit(s: &mut State, limit: u8) {
        s.number.open = limit;
        if s.number.drains == 0 {
            s.number.limit = limit;
        }
        if limit > 0 {
            s.regions.iter_mut().filter(|region| region.limit > 0).for_each(|region| region.limit = limit);
        }
    }
    fn reopen(&self, s: &mut State) {
        match s.number.drains.checked_sub(1) {
            None => s.fault = Some(Fault::EndedTwice),
            Some(left) => {
                s.number.drains = left;
                if (left == 0 || self.has_bug(Bug::FirstDrainOpens)) && !self.has_bug(Bug::NeverReopens) {
                    s.number.limit = s.number.open;
                }
            }
        }
    }
    /// Continues an operation after the thread has tried to take a magazine from the depot.
    fn continue_after_depot_take(&self, s: &mut State, this_thread: usize, has_magazine: bool) {
        let t = &mut s.threads[this_thread];
        match (t.op, has_magazine) {
            (Op::Alloc, false) if t.open => t.pc = Pc::Fill,
            (Op::Alloc, false) => Self::end(s, this_thread),
            (Op::Alloc, true) => self.keep_one(s, this_thread),
            (_, true) => t.pc = Pc::Flush,
            (_, false) => Self::end(s, this_thread),
        }
    }
    /// Keeps one round of the magazine for the caller, and pushes the other rounds onto the stack.
    fn keep_one(&self, s: &mut State, this_thread: usize) {
        let t = &mut s.threads[this_thread];
        t.open = false;
        t.carried_count -= 1;
        t.own_round = core::mem::take(&mut t.carried[usize::from(t.carried_count)]);
        if t.carried_count == 0 {
            return Self::end(s, this_thread);
        }
        t.pc = Pc::Enter(Stage::Rest);
    }
    /// Continues a drain that has no more rounds to flush.
    fn end_drain(&self, s: &mut State, this_thread: usize) {
        let t = &mut s.threads[this_thread];
        match t.op {
            Op::Drain => Self::end(s, this_thread),
            Op::Reap => t.pc = Pc::LockForSurplus,
            _ => t.pc = Pc::Hint,
        }
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each action")]
    fn step(&self, s: &mut State, this_thread: usize, cpu: u8) {
        let thread_number = this_thread as u8 + 1;
        let t = s.threads[this_thread];
        if inside(t.pc).is_some() || matches!(t.pc, Pc::Enter(_)) {
            return self.section(s, this_thread, cpu);
        }
        let at = usize::from(cpu);
        let mut next_pc = t.pc;
        match t.pc {
            Pc::Look => {
                s.threads[this_thread].open = s.number.limit > 0;
                next_pc = if s.number.limit > 0 { Pc::Hint } else { Pc::Fill };
            }
            Pc::Fill => {
                let requested = if t.open { self.capacity } else { 1 };
                let thread = &mut s.threads[this_thread];
                for _ in 0..requested {
                    if s.supplier != 0 {
                        let round = s.supplier.trailing_zeros() as u8;
                        s.supplier &= !bit(round);
                        thread.carried[usize::from(thread.carried_count)] = round;
                        thread.carried_count += 1;
                    }
                }
                match (thread.carried_count, t.open) {
                    (0, true) => return Self::end(s, this_thread),
                    (0, false) => next_pc = Pc::Hint,
                    _ => return self.keep_one(s, this_thread),
                }
            }
            Pc::Flush => {
                let thread = &mut s.threads[this_thread];
                let (hand, n) = (thread.carried, thread.carried_count);
                (thread.carried, thread.carried_count) = ([0; BATCH], 0);
                hand[..usize::from(n)].iter().for_each(|round| Self::return_round_to_supplier(s, *round));
                match t.op {
                    Op::Free => next_pc = Pc::Enter(Stage::PushAgain),
                    Op::Close => next_pc = Pc::Hint,
                    Op::Reap => {
                        s.threads[this_thread].surplus -= 1;
                        if t.surplus == 1 {
                            return Self::end(s, this_thread);
                        }
                        next_pc = Pc::Hint;
                    }
                    _ => return Self::end(s, this_thread),
                }
            }
            Pc::Bypass => {
                Self::return_round_to_supplier(s, t.own_round);
                s.threads[this_thread].own_round = 0;
                return Self::end(s, this_thread);
            }

            // ---- opening a stack ----
            Pc::IsOpen(stage) => {
                s.threads[this_thread].at = cpu;
                if s.regions[at].limit > 0 {
                    return self.choose_step_after_section(s, this_thread, stage, false);
                }
                next_pc = Pc::TryDrains(stage);
            }
            Pc::TryDrains(stage) => {
                if s.drains != 0 && !self.has_bug(Bug::OpensBesideDrain) {
                    return self.choose_step_after_section(s, this_thread, stage, false);
                }
                if s.drains == 0 {
                    s.drains = thread_number;
                }
                next_pc = Pc::Open(stage);
            }
            Pc::Open(stage) => {
                let limit = if self.has_bug(Bug::OpensBesideDrain) { s.number.open } else { s.number.limit };
                let region = &mut s.regions[at];
                let is_uncommitted = !region.committed;
                region.committed = true;
                let is_opened = limit > 0 && region.limit == 0;
                if is_opened {
                    region.limit = limit;
                }
                if s.drains == thread_number {
                    s.drains = 0;
                }
                s.threads[this_thread].at = 0;
                if !(is_uncommitted || is_opened) {
                    return self.choose_step_after_section(s, this_thread, stage, false);
                }
                next_pc = Pc::Enter(stage);
            }

            // ---- the depot ----
            Pc::Hint => {
                if s.depot.magazines().is_empty() {
                    return self.continue_after_depot_take(s, this_thread, false);
                }
                next_pc = Pc::LockDepot;
            }
            Pc::LockDepot => {
                s.depot_lock = thread_number;
                next_pc = Pc::Take;
            }
            Pc::Take => {
                s.depot_lock = 0;
                let before = s.depot;
                let magazine = s.depot.take();
                if let Some(magazine) = magazine {
                    let thread = &mut s.threads[this_thread];
                    (thread.carried, thread.carried_count) = (magazine, self.capacity);
                    if self.has_bug(Bug::DepotKeeps) {
                        s.depot = before;
                    }
                }
                return self.continue_after_depot_take(s, this_thread, magazine.is_some());
            }
            Pc::LockDepotToPut => {
                s.depot_lock = thread_number;
                next_pc = Pc::Put;
            }
            Pc::Put => {
                s.depot_lock = 0;
                s.depot.open |= self.has_bug(Bug::ClosedDepotTakes);
                if s.depot.accepts(self.depot_limit.into()) {
                    let thread = &mut s.threads[this_thread];
                    s.depot.put(thread.carried);
                    (thread.carried, thread.carried_count) = ([0; BATCH], 0);
                    next_pc = Pc::Enter(Stage::PushAgain);
                } else {
                    next_pc = Pc::Flush;
                }
            }
            Pc::LockForSurplus => {
                s.depot_lock = thread_number;
                next_pc = Pc::Surplus;
            }
            Pc::Surplus => {
                s.depot_lock = 0;
                let surplus = s.depot.surplus() as u8;
                s.threads[this_thread].surplus = surplus;
                if surplus == 0 {
                    return Self::end(s, this_thread);
                }
                next_pc = Pc::Hint;
            }

            // ---- a drain ----
            Pc::LockDrains => {
                if s.drains == 0 {
                    s.drains = thread_number;
                }
                next_pc = if t.op == Op::Fork { Pc::LockDepotToFork } else { Pc::Close };
            }
            Pc::Close => {
                let idle = s.regions.iter().any(Region::is_idle);
                if t.op == Op::Reap && !idle {
                    s.regions.iter_mut().for_each(Region::update_region_usage);
                    s.threads[this_thread].todo = 0;
                } else {
                    let before = core::mem::replace(&mut s.number.waiting, thread_number);
                    if before == 0 {
                        s.number.drains += 1;
                        s.number.limit = 0;
                    } else if !self.has_bug(Bug::SweepForgotten) {
                        let taken_regions =
                            s.regions.iter_mut().filter(|region| region.taking_drain == before);
                        taken_regions.for_each(|region| region.taking_drain = thread_number);
                    }
                }
                next_pc = Pc::Want;
            }
            Pc::Want if t.todo == 0 => {
                s.threads[this_thread].todo = t.detached;
                next_pc = match (t.detached, self.mechanism) {
                    (0, _) | (_, Claimed) => self.continue_owned_drain(s, this_thread),
                    (_, Rseq) if self.has_bug(Bug::TakesBeforeFence) => Pc::TakeStack,
                    (_, Rseq) => Pc::Fence,
                };
            }
            Pc::Want => {
                let thread = &mut s.threads[this_thread];
                thread.todo &= !single_bit_mask(cpu);
                let region = &mut s.regions[at];
                let for_good = s.number.open == 0 && !self.has_bug(Bug::ClosedStaysOpen);
                let is_wanted = match t.op {
                    Op::Retire => region.limit > 0 || region.len > 0,
                    Op::Reap => region.is_idle(),
                    _ => for_good && region.limit > 0 || region.len > 0,
                };
                // The planted bug checks only the first CPU, whichever it is, because a model's CPUs are alike.
                let first = t.todo == (1 << self.cpus) - 1;
                let is_skipped = self.has_bug(Bug::RetiresOneCpu) && t.op == Op::Retire && !first;
                if is_wanted && region.committed && !is_skipped {
                    thread.at = cpu;
                    next_pc = Pc::Own;
                } else if t.op == Op::Reap {
                    region.update_region_usage();
                }
            }
            Pc::Own => {
                let thread = &mut s.threads[this_thread];
                thread.detached |= single_bit_mask(cpu);
                match self.mechanism {
                    Rseq => {
                        s.detached |= single_bit_mask(cpu);
                        thread.at = 0;
                        next_pc = Pc::Want;
                    }
                    Claimed => {
                        s.owned |= single_bit_mask(cpu);
                        if !self.has_bug(Bug::NoFence) {
                            s.regions[at].claim = thread_number;
                        }
                        thread.at = cpu;
                        self.take_stack(s, this_thread, at);
                        next_pc = Pc::PutBack;
                    }
                }
            }
            Pc::Fence if t.todo == 0 => {
                s.threads[this_thread].todo = t.detached;
                next_pc = Pc::TakeStack;
            }
            Pc::Fence => {
                let first = t.todo == t.detached;
                if !self.has_bug(Bug::NoFence) && (first || !self.has_bug(Bug::FencesOne)) {
                    Self::interrupt(s, cpu, this_thread);
                }
                s.owned |= single_bit_mask(cpu);
                s.threads[this_thread].todo &= !single_bit_mask(cpu);
            }
            Pc::TakeStack if t.todo == 0 => next_pc = self.continue_owned_drain(s, this_thread),
            Pc::TakeStack => {
                s.owned |= single_bit_mask(cpu);
                s.threads[this_thread].todo &= !single_bit_mask(cpu);
                s.threads[this_thread].at = cpu;
                if self.has_bug(Bug::PutBackEarly) {
                    s.detached &= !single_bit_mask(cpu);
                } else {
                    self.take_stack(s, this_thread, at);
                }
                next_pc = Pc::PutBack;
            }
            Pc::PutBack => {
                if self.has_bug(Bug::TakesBeforeFence) {
                    Self::interrupt(s, cpu, this_thread);
                }
                if self.has_bug(Bug::PutBackEarly) && self.mechanism == Rseq {
                    self.take_stack(s, this_thread, at);
                }
                s.detached &= !single_bit_mask(cpu);
                s.owned &= !single_bit_mask(cpu);
                if self.mechanism == Claimed && !self.has_bug(Bug::NoFence) {
                    s.regions[at].claim = 0;
                }
                s.threads[this_thread].at = 0;
                next_pc = if self.mechanism == Rseq { Pc::TakeStack } else { Pc::Want };
            }
            Pc::Claim => {
                if t.op != Op::Reap {
                    s.number.waiting = 0;
                }
                if s.drains == thread_number {
                    s.drains = 0;
                }
                s.threads[this_thread].detached = 0;
                next_pc = if t.op == Op::Reap { Pc::LockToClaim } else { Pc::GiveStack };
            }
            // The step collects the rounds that a sweep took, unless a drain took them over. After the number was
            // returned, no thread collects.
            Pc::LockToClaim if s.threads.iter().any(|t| t.op == Op::Retire) => {
                return Self::end(s, this_thread);
            }
            Pc::LockToClaim => {
                let number = core::mem::take(&mut s.number.waiting);
                s.threads[this_thread].number = number;
                if number == 0 {
                    self.end_drain(s, this_thread);
                    return;
                }
                next_pc = Pc::GiveStack;
            }
            Pc::GiveStack if self.regions_to_return(s, &t) == 0 => next_pc = Pc::LockToReopen,
            Pc::GiveStack => {
                let thread = &mut s.threads[this_thread];
                (thread.remaining, thread.at) = (s.regions[at].taken_count, cpu);
                next_pc = Pc::ForgetTaken;
            }
            Pc::ForgetTaken => {
                (s.regions[at].taken_count, s.regions[at].taking_drain) = (0, 0);
                next_pc = Pc::GiveRound;
            }
            Pc::GiveRound => {
                let round = s.regions[at].places[usize::from(t.remaining - 1)];
                let thread = &mut s.threads[this_thread];
                thread.remaining -= 1;
                if thread.remaining == 0 {
                    thread.at = 0;
                    next_pc = Pc::GiveStack;
                }
                Self::return_round_to_supplier(s, round);
            }
            Pc::LockToReopen => {
                if s.drains == 0 {
                    s.drains = thread_number;
                }
                next_pc = Pc::Reopen;
            }
            Pc::Reopen => {
                self.reopen(s);
                if s.drains == thread_number {
                    s.drains = 0;
                }
                return self.end_drain(s, this_thread);
            }

            // ---- closed for good; another owner ----
            Pc::LockToLimit => {
                s.drains = thread_number;
                next_pc = if t.op == Op::Retire { Pc::Retire } else { Pc::Limit };
            }
            Pc::Limit => {
                let smaller = if s.number.open == self.reach { self.capacity } else { self.reach };
                // A closed class stays closed.
                let resized = if s.number.open == 0 { 0 } else { smaller };
                Self::set_limit(s, if t.op == Op::Resize { resized } else { 0 });
                s.drains = 0;
                if t.op == Op::Resize {
                    return Self::end(s, this_thread);
                }
                next_pc = Pc::LockToCloseDepot;
            }
            Pc::LockToCloseDepot => {
                s.depot_lock = thread_number;
                next_pc = Pc::CloseDepot;
            }
            Pc::CloseDepot => {
                s.depot.open = false;
                s.depot_lock = 0;
                next_pc = Pc::LockDrains;
            }
            Pc::Retire => {
                Self::set_limit(s, 0);
                if core::mem::take(&mut s.number.waiting) > 0 {
                    self.reopen(s);
                }
                next_pc = Pc::Want;
            }
            // Another owner gets the number, with other rounds.
            Pc::Forget => {
                for region in &mut s.regions {
                    (region.taken_count, region.taking_drain, region.usage) = (0, 0, Usage::default());
                }
                s.dead_rounds = self.fresh(0);
                s.supplier = self.fresh(1);
                s.depot = Depot::default();
                Self::set_limit(s, self.reach);
                s.drains = 0;
                return Self::end(s, this_thread);
            }

            // ---- a fork ----
            Pc::LockDepotToFork => {
                if s.depot_lock == 0 {
                    s.depot_lock = thread_number;
                }
                next_pc = Pc::Fork;
            }
            Pc::Fork => {
                if s.drains == thread_number {
                    s.drains = 0;
                }
                if s.depot_lock == thread_number {
                    s.depot_lock = 0;
                }
                return Self::end(s, this_thread);
            }
            pc => unreachable!("{pc:?} is not a step"),
        }
        s.threads[this_thread].pc = next_pc;
    }
    /// Continues a drain that has detached all the regions that it drains.
    fn continue_owned_drain(&self, s: &mut State, this_thread: usize) -> Pc {
        (s.threads[this_thread].todo, s.threads[this_thread].detached) = (0, 0);
        if s.threads[this_thread].op == Op::Retire { Pc::Forget } else { Pc::Claim }
    }
    fn take_stack(&self, s: &mut State, this_thread: usize, at: usize) {
        let (op, number) = (s.threads[this_thread].op, this_thread as u8 + 1);
        let region = &mut s.regions[at];
        if op != Op::Reap || region.is_idle() {
            if region.len > 0 {
                if region.taken_count > 0 {
                    s.fault = Some(Fault::TakenTwice);
                }
                let number = if op == Op::Retire { 0 } else { number };
                (region.taken_count, region.taking_drain, region.len) = (region.len, number, 0);
            }
            if region.limit > 0 && !self.has_bug(Bug::StaysOpen) {
                (region.cap, region.limit) = (0, 0);
            }
        }
        region.update_region_usage();
    }

    /// Forks the process: this thread continues as the child, and rounds held by other threads are lost.
    fn child(&self, s: &mut State, this_thread: usize) {
        if s.detached != 0 {
            s.fault = Some(Fault::AwayInChild);
            return;
        }
        let thread_number = this_thread as u8 + 1;
        for other in 0..THREADS {
            let t = core::mem::replace(&mut s.threads[other], Thread { pc: Pc::Gone, ..IDLE_THREAD });
            let remaining_places =
                &s.regions[usize::from(t.at) % CPUS].places[..usize::from(t.rounds_to_flush())];
            let owned_rounds =
                t.carried.iter().chain(&t.held_rounds).chain([&t.own_round]).chain(remaining_places);
            s.lost_rounds |=
                owned_rounds.filter(|round| **round > 0).map(|round| bit(*round)).fold(0, |a, b| a | b);
        }
        s.threads[this_thread].pc = Pc::Idle;
        s.owned = 0;
        for region in s.regions.iter_mut().filter(|region| region.committed) {
            if !self.has_bug(Bug::ClaimsOutlive) {
                region.claim = 0;
            }
        }
        let drains = s.number.drains;
        if !self.has_bug(Bug::DrainsOutlive) {
            (s.number.drains, s.number.waiting) = (0, 0);
            if drains > 0 {
                for region in &mut s.regions {
                    if region.taken_count > 0 && !self.has_bug(Bug::ChildLosesTaken) {
                        region.len = region.taken_count;
                    }
                    (region.taken_count, region.taking_drain) = (0, 0);
                }
                s.number.limit = s.number.open;
            }
        }
        if s.drains == thread_number {
            s.drains = 0;
        }
        if s.depot_lock == thread_number {
            s.depot_lock = 0;
        }
        s.child = true;
    }

    // ---- invariants ----

    /// Returns, for each round, how often it occurs in the state.
    fn places(&self, s: &State) -> [u8; 16] {
        let mut times = [0; 16];
        let mut count = |rounds: &[Round]| rounds.iter().for_each(|round| times[usize::from(*round)] += 1);
        for region in &s.regions {
            count(&region.places[..usize::from(region.len.max(region.taken_count))]);
        }
        let full_magazines = s.depot.magazines().items();
        full_magazines.iter().for_each(|magazine| count(&magazine[..usize::from(self.capacity)]));
        for t in &s.threads {
            count(&t.carried[..usize::from(t.carried_count)]);
            count(&t.held_rounds[..usize::from(t.held_count)]);
            if t.own_round > 0 {
                count(&[t.own_round]);
            }
            count(&s.regions[usize::from(t.at) % CPUS].places[..usize::from(t.rounds_to_flush())]);
        }
        for (round, times) in times.iter_mut().enumerate() {
            *times += u8::from((s.supplier | s.lost_rounds) & bit(round) != 0);
        }
        times
    }
    /// Returns `true` if each round occurs exactly once in the state.
    pub(crate) fn each_round_occurs_once(&self, s: &State) -> bool {
        let times = self.places(s);
        let living_rounds =
            (self.fresh(0) | self.fresh(1) & if s.dead_rounds == 0 { 0 } else { !0 }) & !s.dead_rounds;
        (1..16).all(|round: usize| living_rounds & bit(round) == 0 || times[round] == 1) && times[0] == 0
    }
    /// Returns `true` if no stack exceeds its capacity, and no capacity exceeds its maximum.
    pub(crate) fn stacks_in_limit(&self, s: &State) -> bool {
        // In a child, rounds that a drain had taken are on their stack again, which has no places until the next push.
        let max_places = |region: &Region| if s.child { self.reach } else { region.cap };
        let is_valid =
            |region: &Region| region.len <= max_places(region) && region.cap.max(region.limit) <= self.reach;
        s.regions.iter().all(is_valid)
    }
    /// Returns `false` if all threads are idle although a region is claimed, locked, detached or taken, or the class is
    /// closed by mistake.
    pub(crate) fn is_idle_state_clean(&self, s: &State) -> bool {
        let is_working = s.threads.iter().any(|t| !matches!(t.pc, Pc::Idle | Pc::Gone));
        let number = &s.number;
        is_working
            || (s.detached | s.owned | s.drains | s.depot_lock | number.drains | number.waiting) == 0
                && number.limit == number.open
                && s.regions.iter().all(|region| (region.claim | region.taken_count) == 0)
    }

    // ---- equivalent states ----

    /// Returns the canonical form of the state; states that differ only in the names of CPUs and rounds have the same
    /// canonical form. CPUs are sorted by their contents, and rounds are numbered in the order in which they appear.
    pub(crate) fn canonical(&self, before: &State) -> State {
        let mut s = self.without_unread_values(before);
        self.sort_cpus_canonically(&mut s);
        self.rename_rounds_canonically(&mut s);
        s
    }
    /// Returns `true` if a state equals its canonical form except for names. CPUs with the same contents may have any
    /// order in a canonical state.
    pub(crate) fn is_symmetric_to(&self, state: &State, canonical: &State) -> bool {
        let state = self.without_unread_values(state);
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        orders.iter().any(|order| {
            let mut renamed = state;
            self.permute_cpus(&mut renamed, *order);
            self.rename_rounds_canonically(&mut renamed);
            renamed == *canonical
        })
    }
    /// Returns the state without the values that are never read by a later step.
    pub(crate) fn without_unread_values(&self, state: &State) -> State {
        let mut s = *state;
        self.clear_unread_values(&mut s);
        s
    }
    fn clear_unread_values(&self, s: &mut State) {
        for cpu in 0..CPUS {
            let mut used_rounds = s.regions[cpu].len.max(s.regions[cpu].taken_count);
            for t in s.threads.iter().filter(|t| usize::from(t.at) == cpu) {
                used_rounds = used_rounds.max(t.remaining);
                if let Pc::Commit(stage) = t.pc {
                    used_rounds = used_rounds.max(t.len + Self::pushed_rounds(t, stage).1);
                }
            }
            s.regions[cpu].places[PLACES.min(usize::from(used_rounds))..].fill(0);
        }
        if !self.roles.contains(&ThreadRole::Reaper) {
            s.regions.iter_mut().for_each(|region| region.usage = Usage::default());
            s.depot.reset_interval_statistics();
        }
        for (t, role) in s.threads.iter_mut().zip(&self.roles) {
            t.done &= matches!(role, ThreadRole::Closer | ThreadRole::Successor | ThreadRole::Forker);
        }
    }
    fn sort_cpus_canonically(&self, s: &mut State) {
        let key = |cpu: usize| {
            let region = Region { places: [0; PLACES], ..s.regions[cpu] };
            let mut cpu_region = 0_u64;
            for t in &s.threads {
                let at = usize::from(t.at) == cpu && (inside(t.pc).is_some() || reads_field_at(t.pc));
                let bits =
                    u64::from(at) | u64::from(t.todo >> cpu & 1) << 1 | u64::from(t.detached >> cpu & 1) << 2;
                cpu_region = cpu_region << 3 | bits;
            }
            (region, s.detached >> cpu & 1, s.owned >> cpu & 1, cpu_region)
        };
        let used_rounds = usize::from(self.cpus);
        let mut order: [usize; CPUS] = core::array::from_fn(|i| i);
        order[..used_rounds].sort_by_cached_key(|cpu| key(*cpu));
        if !order.is_sorted() {
            self.permute_cpus(s, order);
        }
    }
    fn permute_cpus(&self, s: &mut State, order: [usize; CPUS]) {
        let mut names = [0, 0, 0, EMPTY];
        for (new_index, old_index) in order.iter().enumerate() {
            names[*old_index] = new_index as u8;
        }
        let mask = |mask: &mut u8| *mask = (0..CPUS).map(|cpu| (*mask >> cpu & 1) << names[cpu]).sum();
        let regions = s.regions;
        order
            .iter()
            .enumerate()
            .for_each(|(new_index, old_index)| s.regions[new_index] = regions[*old_index]);
        mask(&mut s.detached);
        mask(&mut s.owned);
        for t in &mut s.threads {
            if inside(t.pc).is_some() || reads_field_at(t.pc) {
                t.at = names[usize::from(t.at)];
            }
            if inside(t.pc).is_some() {
                t.region = names[usize::from(t.region)];
            }
            mask(&mut t.todo);
            mask(&mut t.detached);
        }
    }
    fn rename_rounds_canonically(&self, s: &mut State) {
        let mut names = [0_u8; 16];
        // Rounds of the second owner keep other numbers than the first owner's.
        let (dead_set, mut next) = (s.dead_rounds, [1, 1 + if s.dead_rounds == 0 { 0 } else { self.rounds }]);
        let mut name = |round: &mut Round| {
            if *round > 0 {
                let new_name = &mut names[usize::from(*round)];
                if *new_name == 0 {
                    let next = &mut next[usize::from(dead_set & bit(*round) == 0)];
                    *new_name = *next;
                    *next += 1;
                }
                *round = *new_name;
            }
        };
        s.regions.iter_mut().flat_map(|region| &mut region.places).for_each(&mut name);
        s.depot.magazines_mut().items_mut().iter_mut().flatten().for_each(&mut name);
        for t in &mut s.threads {
            t.read_rounds.iter_mut().chain(&mut t.carried).chain(&mut t.held_rounds).for_each(&mut name);
            name(&mut t.own_round);
        }
        for set in [&mut s.supplier, &mut s.lost_rounds] {
            let mut renamed_set = 0;
            for i in (0..16_u8).filter(|i| *set & bit(*i) != 0) {
                let mut round = i;
                name(&mut round);
                renamed_set |= bit(round);
            }
            *set = renamed_set;
        }
    }
}

/// Returns the section in which a thread is, if any.
pub(crate) fn inside(pc: Pc) -> Option<Stage> {
    match pc {
        Pc::Read(stage) | Pc::Store(stage) | Pc::Write(stage) | Pc::Commit(stage) | Pc::Leave(stage, _) => {
            Some(stage)
        }
        _ => None,
    }
}
/// Returns `true` if the next step reads the field `at`.
fn reads_field_at(pc: Pc) -> bool {
    matches!(pc, Pc::TryDrains(_) | Pc::Open(_) | Pc::Own | Pc::PutBack | Pc::ForgetTaken | Pc::GiveRound)
}
fn abort(t: &mut Thread) {
    if let Some(stage) = inside(t.pc) {
        t.pc = Pc::Enter(stage);
        (t.at, t.region, t.len, t.cap, t.read_rounds) = (0, 0, 0, 0, [0; BATCH]);
    }
}
