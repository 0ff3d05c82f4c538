//! The inlined path of one class. A caller can store the path of a class in its own structure, to save instructions.

use crate::cpu::regions::Words;
use crate::cpu::rseq::{NO_CLASS, PcpuPtr};
use crate::cpu::{Mechanism, claimed};
use crate::memory::{Heap, Memory};
use crate::region::Class;
use crate::round::Round;
use crate::sync::MODEL;
use crate::table::Table;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// The inlined path of a class, created by [`Layer::fast_path`](crate::Layer::fast_path). An operation executes a few
/// instructions on the current CPU's stack, and may miss.
#[derive(Debug)]
pub struct FastPath<R, M = Heap> {
    pcpu: PcpuPtr,
    /// `Some` if the table does not use restartable sequences; `pcpu` then leads to the empty region.
    table: Option<NonNull<Table<M>>>,
    class: Class,
    rounds: PhantomData<fn(R) -> R>,
}

// SAFETY: any thread may use the table.
unsafe impl<R, M: Memory> Send for FastPath<R, M> {}
// SAFETY: any thread may use the table.
unsafe impl<R, M: Memory> Sync for FastPath<R, M> {}

impl<R, M> Clone for FastPath<R, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R, M> Copy for FastPath<R, M> {}

impl<R: Round, M: Memory> FastPath<R, M> {
    /// Creates a fast path that belongs to no layer and always misses. A caller uses a disabled path if its slow path
    /// must handle every object.
    pub fn disabled() -> Self {
        Self { pcpu: PcpuPtr::disabled(), table: None, class: NO_CLASS, rounds: PhantomData }
    }
    /// The caller must keep `table` alive while the fast path is used.
    pub(crate) fn new(table: &Table<M>, class: Class, words: Words) -> Self {
        let sections = !MODEL && table.cpus().mechanism() == Mechanism::Rseq;
        Self {
            pcpu: PcpuPtr::new(table, words),
            table: (!sections).then(|| NonNull::from(table)),
            class,
            rounds: PhantomData,
        }
    }

    /// Returns `true` if the fast path always misses.
    pub fn is_disabled(&self) -> bool {
        self.class == NO_CLASS
    }
    /// Returns `true` if both fast paths are enabled and belong to the same table.
    fn shares_table_with(&self, other: &Self) -> bool {
        !self.is_disabled() && self.pcpu == other.pcpu && self.table == other.table
    }
    pub(crate) fn pcpu(&self) -> PcpuPtr {
        self.pcpu
    }
    pub(crate) fn class(&self) -> Class {
        self.class
    }
    /// Returns the byte offset of the class's stack head in a region, for static paths. The result is 0 if the fast
    /// path always misses.
    #[inline(always)]
    pub fn stack(&self) -> u32 {
        if self.is_disabled() { 0 } else { self.class.stack }
    }
    /// For debuggers: the address of the field that holds the stack's offset in a region.
    pub(crate) fn stack_field_address(&self) -> usize {
        (&raw const self.class.stack).addr()
    }

    /// Returns the number of the CPU on which this thread runs, as a hint. The CPU number is valid only if the table
    /// uses restartable sequences. A thread that is not registered for rseq gets an invalid number until its first miss
    /// registers it.
    #[inline(always)]
    pub fn cpu(&self) -> u32 {
        self.pcpu.cpu()
    }
    /// Pops the newest object from the current CPU's stack. Returns `None` if the stack is empty or the fast path is
    /// disabled. If the result is `None`, the caller should call [`Layer::alloc_slow`](crate::Layer::alloc_slow).
    ///
    /// Cost: one operation on the current CPU's region, which no other CPU accesses.
    ///
    /// # Safety
    /// The layer that created this fast path must be alive.
    #[inline(always)]
    pub unsafe fn alloc(&self) -> Option<R> {
        // SAFETY: the layer is alive, by this function's contract.
        unsafe { self.alloc_fast().or_else(|| self.alloc_claimed()) }
    }
    /// Pops an object with a restartable sequence only, as the first half of [`alloc`](Self::alloc). Use `alloc_fast`
    /// if other code handles a miss.
    ///
    /// # Safety
    /// The layer that created this fast path must be alive, as for [`alloc`](Self::alloc).
    #[inline(always)]
    pub unsafe fn alloc_fast(&self) -> Option<R> {
        // SAFETY: only `R::into_raw` produces the pointers on stacks.
        self.pcpu.pop(self.class).map(|raw| unsafe { R::from_raw(raw) })
    }
    /// Pops an object if the table does not use restartable sequences, as the second half of [`alloc`](Self::alloc).
    /// The pop is not inlined, because its code is larger than the rest of an allocation.
    ///
    /// # Safety
    /// The layer that created this fast path must be alive, as for [`alloc`](Self::alloc).
    #[inline]
    pub unsafe fn alloc_claimed(&self) -> Option<R> {
        // SAFETY: the layer is alive, by contract, and keeps its table alive.
        let round = pop(unsafe { self.table?.as_ref() }, self.class)?;
        // SAFETY: only `R::into_raw` produces the pointers on stacks.
        Some(unsafe { R::from_raw(round) })
    }

    /// Pushes an object on the current CPU's stack. Returns `false` if the stack is full or the fast path is disabled.
    /// If the result is `false`, the caller should call [`Layer::free_slow`](crate::Layer::free_slow).
    ///
    /// Cost: one operation on the current CPU's region, as for [`alloc`](Self::alloc).
    ///
    /// # Safety
    /// The layer that created this fast path must be alive, as for [`alloc`](Self::alloc).
    #[inline(always)]
    #[must_use = "the caller still owns a round that was not taken"]
    pub unsafe fn free(&self, round: R) -> bool {
        // SAFETY: the layer is alive, by this function's contract.
        unsafe { self.free_fast(round) || self.free_claimed(round) }
    }
    /// Pushes an object with a restartable sequence only, as the first half of [`free`](Self::free).
    ///
    /// # Safety
    /// The layer that created this fast path must be alive, as for [`alloc`](Self::alloc).
    #[inline(always)]
    #[must_use = "the caller still owns a round that was not taken"]
    pub unsafe fn free_fast(&self, round: R) -> bool {
        self.pcpu.push(self.class, round.into_raw())
    }
    /// Pushes an object if the table does not use restartable sequences, as the second half of [`free`](Self::free).
    ///
    /// # Safety
    /// The layer that created this fast path must be alive, as for [`alloc`](Self::alloc).
    #[inline]
    #[must_use = "the caller still owns a round that was not taken"]
    pub unsafe fn free_claimed(&self, round: R) -> bool {
        // SAFETY: the layer is alive, by contract, and keeps its table alive.
        self.table.is_some_and(|table| push(unsafe { table.as_ref() }, self.class, round.into_raw()))
    }
}

pub use statics::StaticPath;
mod statics {
    use super::*;
    use crate::cpu::rseq::StaticWords;

    /// The inlined path of a layer whose table has [static per-CPU pointers](crate::Layer::take_static_words). The
    /// path's code contains the address of the static pointers as a constant.
    #[derive(Debug)]
    pub struct StaticPath<R> {
        words: &'static StaticWords,
        stack: u32,
        rounds: PhantomData<fn(R) -> R>,
    }

    impl<R> Clone for StaticPath<R> {
        fn clone(&self) -> Self {
            *self
        }
    }
    impl<R> Copy for StaticPath<R> {}

    impl<R: Round> StaticPath<R> {
        /// Creates the static path of the layer whose [`FastPath::stack`] returns `stack`.
        ///
        /// # Safety
        /// The offset `stack` must not be 0. The layer's table must have reserved `words`. The layer and its table must
        /// stay alive while the static path is used.
        #[inline(always)]
        pub unsafe fn new(words: &'static StaticWords, stack: u32) -> Self {
            Self { words, stack, rounds: PhantomData }
        }
        #[inline(always)]
        fn class(&self) -> Class {
            Class { index: NO_CLASS.index, stack: self.stack }
        }
        /// Pops an object from the current CPU's stack, like [`FastPath::alloc_fast`].
        #[inline(always)]
        pub fn alloc(self) -> Option<R> {
            let pcpu = PcpuPtr::of_static(self.words, Words::Inlined);
            // SAFETY: only `R::into_raw` produces the pointers on stacks, and the layer is alive, by `new`'s contract.
            pcpu.pop(self.class()).map(|raw| unsafe { R::from_raw(raw) })
        }
        /// Pushes an object like [`FastPath::free_fast`], but reads the per-CPU pointers of
        /// [inlined frees](Words::InlinedFrees).
        #[inline(always)]
        #[must_use = "the caller still owns a round that was not taken"]
        pub fn free(self, round: R) -> bool {
            PcpuPtr::of_static(self.words, Words::InlinedFrees).push(self.class(), round.into_raw())
        }
    }
}

/// Pops an object with the table's mechanism. The function runs only if `PcpuPtr` cannot be used with the table.
#[inline(never)]
fn pop<M: Memory>(table: &Table<M>, class: Class) -> Option<NonNull<u8>> {
    #[cfg(any(loom, shuttle))]
    if table.cpus().mechanism() == Mechanism::Rseq {
        return crate::cpu::rseq::pop(table, class);
    }
    claimed::pop(table, class)
}
#[inline(never)]
fn push<M: Memory>(table: &Table<M>, class: Class, round: NonNull<u8>) -> bool {
    #[cfg(any(loom, shuttle))]
    if table.cpus().mechanism() == Mechanism::Rseq {
        return crate::cpu::rseq::push(table, class, round);
    }
    claimed::push(table, class, round)
}

/// The offset of a class's stack in a region. A fast path needs no other information about the class. Under loom and
/// shuttle, a `Stack` also has the class number, which identifies the class's cells.
#[derive(Clone, Copy, Debug)]
struct Stack {
    #[cfg(any(loom, shuttle))]
    index: u32,
    stack: u32,
}

impl Stack {
    fn of(class: Class) -> Self {
        Self {
            #[cfg(any(loom, shuttle))]
            index: class.index,
            stack: class.stack,
        }
    }
    #[inline(always)]
    fn class(self) -> Class {
        Class {
            #[cfg(any(loom, shuttle))]
            index: self.index,
            #[cfg(not(any(loom, shuttle)))]
            index: NO_CLASS.index,
            stack: self.stack,
        }
    }
}

/// The inlined paths of several layers that share one table. The parts that all paths have in common are stored once,
/// so each path adds only four bytes.
#[derive(Debug)]
#[repr(C)]
pub struct FastPathTable<R, M, const N: usize> {
    pcpu: PcpuPtr,
    table: Option<NonNull<Table<M>>>,
    stacks: [Stack; N],
    rounds: PhantomData<fn(R) -> R>,
}

// SAFETY: any thread may use the table.
unsafe impl<R, M: Memory, const N: usize> Send for FastPathTable<R, M, N> {}
// SAFETY: any thread may use the table.
unsafe impl<R, M: Memory, const N: usize> Sync for FastPathTable<R, M, N> {}

impl<R: Round, M: Memory, const N: usize> FastPathTable<R, M, N> {
    /// Combines the fast paths of several layers that share one table. If the fast paths belong to different tables,
    /// the result contains only disabled paths.
    pub fn of(fast_paths: [FastPath<R, M>; N]) -> Self {
        let Some(first) = fast_paths
            .first()
            .filter(|first| fast_paths.iter().all(|fast_path| fast_path.shares_table_with(first)))
        else {
            let FastPath { pcpu, table, class, .. } = FastPath::<R, M>::disabled();
            return Self { pcpu, table, stacks: [Stack::of(class); N], rounds: PhantomData };
        };
        let (pcpu, table) = (first.pcpu, first.table);
        Self {
            pcpu,
            table,
            stacks: fast_paths.map(|fast_path| Stack::of(fast_path.class)),
            rounds: PhantomData,
        }
    }
    /// Returns the stack offset ([`FastPath::stack`]) of fast path `i`.
    ///
    /// # Panics
    /// Panics if `i` is `N` or higher.
    pub fn stack(&self, i: usize) -> u32 {
        let class = self.stacks[i].class();
        if class == NO_CLASS { 0 } else { class.stack }
    }
    /// Returns `true` if all of these fast paths always miss.
    pub fn is_disabled(&self) -> bool {
        self.stacks.first().is_none_or(|stack| stack.class() == NO_CLASS)
    }
    /// Writes to `place` a lookup table with `K` entries, in which one load finds a fast path. The first path fills the
    /// entries below `end(0)`, the second path fills the entries from `end(0)` up to `end(1)`, and so on.
    ///
    /// # Panics
    /// Panics unless the values of `end` increase and the last value is `K`.
    pub fn build_expanded_table<const K: usize>(
        &self,
        end: impl Fn(usize) -> usize,
        place: &mut MaybeUninit<FastPathTable<R, M, K>>,
    ) {
        assert_eq!(end(N - 1), K);
        let place = place.as_mut_ptr();
        // SAFETY: the place is borrowed exclusively, and no field is read or dropped. An array of `MaybeUninit` needs
        // no initial values.
        let stacks = unsafe {
            (&raw mut (*place).pcpu).write(self.pcpu);
            (&raw mut (*place).table).write(self.table);
            &mut *(&raw mut (*place).stacks).cast::<[MaybeUninit<Stack>; K]>()
        };
        let mut start = 0;
        for (i, stack) in self.stacks.iter().enumerate() {
            stacks[start..end(i)].fill(MaybeUninit::new(*stack));
            start = end(i);
        }
    }

    /// Returns fast path `i`, but with the per-CPU pointers that the fast paths `others` of the same table read. The
    /// returned path misses if the per-CPU pointers of `others` are closed.
    ///
    /// # Safety
    /// The index `i` must be below `N`.
    #[inline(always)]
    pub unsafe fn fast_path_with_words_of<const K: usize>(
        &self,
        others: &FastPathTable<R, M, K>,
        i: usize,
    ) -> FastPath<R, M> {
        // SAFETY: `i` is below `N`, by this function's contract.
        FastPath { pcpu: others.pcpu, ..unsafe { self.fast_path(i) } }
    }
    /// Returns the fast path with index `i`.
    ///
    /// # Safety
    /// The index `i` must be below `N`.
    #[inline(always)]
    pub unsafe fn fast_path(&self, i: usize) -> FastPath<R, M> {
        debug_assert!(i < N);
        // SAFETY: `i` is below `N`, by this function's contract.
        let class = unsafe { self.stacks.get_unchecked(i) }.class();
        FastPath { pcpu: self.pcpu, table: self.table, class, rounds: PhantomData }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::shadow::{TestSupplier, table};
    use crate::test_round::TestRound;
    use crate::{Config, Cpus, Layer, on_cpu};

    fn layers(table: &crate::sync::Arc<Table<Heap>>) -> [Layer<TestRound>; 3] {
        [(); 3].map(|()| Layer::new(table, Config::new(4, 2, 0)).unwrap())
    }

    #[test]
    fn each_fast_path_serves_only_its_size_class() {
        on_cpu(0);
        for cpus in [Cpus::simulated(1, 1).unwrap(), Cpus::os(), Cpus::os().claimed()] {
            let (table, supplier) = (table(cpus), TestSupplier::new(0, 1));
            let layers = layers(&table);
            let order: [usize; 4] = [0, 1, 1, 2];
            let fast_paths =
                FastPathTable::of(layers.each_ref().map(|layer| layer.fast_path(Words::Inlined)));
            let mut arranged = MaybeUninit::<FastPathTable<_, _, 4>>::uninit();
            fast_paths.build_expanded_table(|i| [1, 3, 4][i], &mut arranged);
            // SAFETY: `build_expanded_table` has just initialised the value.
            let arranged = unsafe { arranged.assume_init() };
            assert!(!fast_paths.is_disabled() && !arranged.is_disabled());
            for (i, layer) in layers.iter().enumerate() {
                (1..=3).for_each(|round| layer.free(&supplier, TestRound(10 * i + round)));
            }
            for (i, layer) in layers.iter().enumerate() {
                // SAFETY: the layers are alive.
                let got: Vec<TestRound> =
                    core::iter::from_fn(|| unsafe { fast_paths.fast_path(i).alloc() }).collect();
                assert!(got.iter().all(|round| round.0 / 10 == i), "{got:?} of class {i}");
                // On real CPUs, the thread may have migrated.
                assert!(got.len() == 3 || cpus == Cpus::os() || cpus == Cpus::os().claimed(), "{got:?}");
                for round in got {
                    // SAFETY: the layers are alive.
                    if !unsafe { fast_paths.fast_path(i).free(round) } {
                        layer.free(&supplier, round);
                    }
                }
                // A thread that migrated while it opened a CPU's stack passed an object to the supplier.
                let given = supplier.free.borrow().iter().filter(|round| round.0 / 10 == i).count();
                assert!(given == 0 || cpus == Cpus::os() || cpus == Cpus::os().claimed(), "{given}");
                assert_eq!(layer.stats().in_magazines + given as u64, 3);
            }
            for (at, i) in order.into_iter().enumerate() {
                // SAFETY: the layers are alive.
                let got = unsafe { arranged.fast_path(at).alloc() };
                assert!(got.is_none_or(|round| round.0 / 10 == i), "{got:?} of class {i}");
                assert!(got.is_some() || cpus == Cpus::os() || cpus == Cpus::os().claimed());
            }
        }
    }

    #[test]
    fn debugger_can_read_the_stack_offset_of_a_fast_path() {
        let table = table(Cpus::os());
        for layer in layers(&table) {
            let front = layer.fast_path(Words::Inlined);
            assert!(!front.is_disabled() && FastPath::<TestRound>::disabled().is_disabled());
            let offset = front.stack_field_address().checked_sub((&raw const front).addr()).unwrap();
            assert!(offset + size_of::<u32>() <= size_of_val(&front));
            // SAFETY: the offset is inside `front`, which is initialised.
            let read = unsafe { (&raw const front).byte_add(offset).cast::<u32>().read() };
            assert_eq!(read, front.class().stack);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn fast_path_reports_the_current_cpu_with_rseq() {
        use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
        let table = table(Cpus::os());
        let (this, front) = (nix::unistd::Pid::from_raw(0), layers(&table)[0].fast_path(Words::Inlined));
        let allowed = sched_getaffinity(this).unwrap();
        // Registers this thread if the libc does not.
        table.cpus().current();
        for cpu in (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap()).take(4) {
            let mut only = CpuSet::new();
            only.set(cpu).unwrap();
            sched_setaffinity(this, &only).unwrap();
            assert!(table.cpus().mechanism() != Mechanism::Rseq || front.cpu() as usize == cpu);
        }
        sched_setaffinity(this, &allowed).unwrap();
    }

    /// The test pins its thread to one CPU.
    #[cfg(target_os = "linux")]
    #[test]
    fn static_fast_paths_serve_a_single_table() {
        use crate::StaticWords;
        use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
        static WORDS: StaticWords = StaticWords::new();
        for cpus in [Cpus::simulated(1, 1).unwrap(), Cpus::os().claimed()] {
            assert!(!layers(&table(cpus))[0].take_static_words(&WORDS));
        }
        if Cpus::os().mechanism() != Mechanism::Rseq {
            assert!(!layers(&table(Cpus::os()))[0].take_static_words(&WORDS));
            return;
        }
        let this = nix::unistd::Pid::from_raw(0);
        let (allowed, mut only) = (sched_getaffinity(this).unwrap(), CpuSet::new());
        only.set((0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap()).unwrap()).unwrap();
        sched_setaffinity(this, &only).unwrap();
        for _ in 0..2 {
            let (table, other, supplier) = (table(Cpus::os()), table(Cpus::os()), TestSupplier::new(0, 1));
            let [layer, beside, _] = &layers(&table);
            assert!(layer.take_static_words(&WORDS));
            assert!(
                !layers(&other)[0].take_static_words(&WORDS) && !layer.take_static_words(&WORDS),
                "the rounds are taken"
            );
            // SAFETY: the table of these layers took the words, and the layers are alive.
            let [path, other_path] = [layer, beside]
                .map(|layer| unsafe { StaticPath::new(&WORDS, layer.fast_path(Words::Inlined).stack()) });
            assert_eq!((path.alloc(), path.free(TestRound(1))), (None, false), "the stack is not open yet");
            (1..=3).for_each(|round| layer.free(&supplier, TestRound(round)));
            let got: Vec<usize> = core::iter::from_fn(|| path.alloc()).map(|round| round.0).collect();
            assert_eq!((got, other_path.alloc()), (vec![3, 2, 1], None));
            assert!(path.free(TestRound(2)) && path.free(TestRound(3)));
            // SAFETY: the layer is alive.
            let next = unsafe { layer.fast_path(Words::Inlined).alloc() };
            assert_eq!(next, Some(TestRound(3)), "the rounds are of one stack");
            assert!(table.close_inlined(false));
            assert_eq!((path.alloc(), path.free(TestRound(4))), (None, true), "frees are open");
            assert!(table.close_inlined(true));
            assert_eq!((path.alloc(), path.free(TestRound(5))), (None, false));
            table.open_inlined();
            assert_eq!(path.alloc(), Some(TestRound(4)));
            layer.flush_all(&supplier);
            assert_eq!(
                (path.alloc(), path.free(TestRound(6))),
                (None, false),
                "the drain has closed the stack"
            );
            assert_eq!(supplier.free.borrow().iter().filter(|round| round.0 == 2).count(), 1);
        }
        sched_setaffinity(this, &allowed).unwrap();
    }

    #[test]
    fn using_fast_paths_with_two_tables_disables_all_of_them() {
        on_cpu(0);
        for cpus in [Cpus::simulated(1, 1).unwrap(), Cpus::os()] {
            let (one, other, supplier) = (table(cpus), table(cpus), TestSupplier::new(0, 1));
            let ([a, ..], [b, ..]) = (&layers(&one), &layers(&other));
            [a, b].iter().for_each(|layer| layer.free(&supplier, TestRound(1)));
            for mixed in [
                [a.fast_path(Words::Inlined), b.fast_path(Words::Inlined)],
                [a.fast_path(Words::Inlined), FastPath::disabled()],
                [FastPath::disabled(), b.fast_path(Words::Inlined)],
            ] {
                let fast_paths = FastPathTable::of(mixed);
                assert!(fast_paths.is_disabled());
                for i in 0..2 {
                    // SAFETY: the layers are alive.
                    unsafe {
                        assert_eq!(fast_paths.fast_path(i).alloc(), None);
                        assert!(!fast_paths.fast_path(i).free(TestRound(2)));
                    }
                }
            }
        }
    }
}
