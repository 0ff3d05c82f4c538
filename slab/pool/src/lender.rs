//! Blocks without `unsafe`: a pool lends them, and each comes back once, when its owner is done with it.
//!
//! A raw block can be freed twice, to another pool, or after its pool. A [`Lent`] one cannot: it is a value that is given
//! back by being dropped, to the pool that it borrows. So a pool below need not look at the addresses of frees, and where the
//! type says it all, it does not: [`give_back`](Lent::give_back) looks all the same, for who wants to know what that costs or does not
//! trust the rest of the program.
//!
//! ```text
//!   Lender ──lend──> Lent<'p>      the borrow keeps the pool where it is
//!     ^                │
//!     └──drop, once────┘           or forgotten: the block stays out for good
//! ```
//!
//! Blocks are bytes; pools that hold objects of a type are [`Pool`](super::Pool) and [`LivePool`](super::LivePool).

use super::area::Area;
use super::error::{BadFree, Overrun, Refused};
use super::guarded::{GuardedPool, Leak};
use super::index_pool::{IndexPool, State};
use core::cell::RefCell;
use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr::NonNull;

/// Who has blocks to lend.
///
/// # Safety
/// A block that [`lend`](Self::lend) returned is valid for reads and writes, and the caller's alone, until it was taken back, or the
/// pool is dropped or was told to have all its blocks again ([`IndexPool::reset`]), wherever the pool is moved.
pub unsafe trait Lend {
    /// A block.
    ///
    /// # Errors
    /// There is none, or the next one is not as it was left.
    #[track_caller]
    fn lend(&mut self) -> Result<NonNull<[u8]>, Refused>;
    /// Takes a block back, and looks whether it is one.
    ///
    /// # Errors
    /// It is none, or is not as it should be; it stays out then.
    ///
    /// # Safety
    /// This one lent it and did not take it back since, and nobody uses it.
    unsafe fn take_back(&mut self, block: NonNull<u8>) -> Result<(), BadFree>;
    /// The same for a block that is known to be one. What is found wrong all the same stays out.
    ///
    /// # Safety
    /// As [`take_back`](Self::take_back).
    unsafe fn take_own_back(&mut self, block: NonNull<u8>) {
        // SAFETY: by contract.
        let _ = unsafe { self.take_back(block) };
    }
}

// SAFETY: blocks lie in the area, apart, and `size` bytes long; what is out is not handed out again.
unsafe impl<A: Area> Lend for IndexPool<A> {
    #[inline]
    fn lend(&mut self) -> Result<NonNull<[u8]>, Refused> {
        let block = self.alloc().ok_or(Refused::Full)?;
        Ok(NonNull::slice_from_raw_parts(block, self.size()))
    }
    #[inline]
    unsafe fn take_back(&mut self, block: NonNull<u8>) -> Result<(), BadFree> {
        // SAFETY: by contract.
        unsafe { self.free(block) }
    }
    #[inline]
    unsafe fn take_own_back(&mut self, block: NonNull<u8>) {
        // SAFETY: by contract.
        unsafe { self.free_unchecked(block) };
    }
}

// SAFETY: as the pool below, without the guards.
unsafe impl<A: Area> Lend for GuardedPool<A> {
    #[inline]
    fn lend(&mut self) -> Result<NonNull<[u8]>, Refused> {
        let object = self.alloc()?;
        Ok(NonNull::slice_from_raw_parts(object, self.object().size()))
    }
    #[inline]
    unsafe fn take_back(&mut self, object: NonNull<u8>) -> Result<(), BadFree> {
        // SAFETY: by contract.
        unsafe { self.free(object) }
    }
}

/// A pool whose blocks come back by themselves. See the [module](self).
///
/// ```
/// use uslab_pool::{HeapArea, IndexPool, Lender, Refused};
///
/// let packets = Lender::new(IndexPool::new(HeapArea::new(4096, 64)?, 1024)?);
/// let mut four: Vec<_> = (0..4).map(|_| packets.lend()).collect::<Result<_, _>>()?;
/// four[0].bytes()[0].write(7);
/// assert_eq!(packets.lend().err(), Some(Refused::Full));
/// drop(four);
/// assert_eq!(packets.state().free, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A block cannot outlive its pool:
///
/// ```compile_fail,E0505
/// use uslab_pool::{HeapArea, IndexPool, Lender};
///
/// let pool = Lender::new(IndexPool::new(HeapArea::new(4096, 64).unwrap(), 1024).unwrap());
/// let block = pool.lend().unwrap();
/// drop(pool);
/// drop(block);
/// ```
#[derive(Debug)]
pub struct Lender<P>(RefCell<P>);

impl<P: Lend> Lender<P> {
    /// Lends the blocks of `pool`. What is out already is not its business.
    pub const fn new(pool: P) -> Self {
        Self(RefCell::new(pool))
    }
    /// A block, which comes back when it is dropped. Cost: the pool's.
    ///
    /// # Errors
    /// As [`Lend::lend`].
    #[inline]
    #[track_caller]
    pub fn lend(&self) -> Result<Lent<'_, P>, Refused> {
        let block = self.0.borrow_mut().lend()?;
        Ok(Lent { block, pool: &self.0 })
    }
    /// The pool itself, while nothing is lent, so that it may have all its blocks again. (Else a block that was forgotten stays
    /// out.)
    pub fn pool(&mut self) -> &mut P {
        self.0.get_mut()
    }
    /// The pool for good.
    pub fn into_pool(self) -> P {
        self.0.into_inner()
    }
}

impl<A: Area> Lender<IndexPool<A>> {
    /// [`IndexPool::state`], also while blocks are lent.
    pub fn state(&self) -> State {
        self.0.borrow().state()
    }
}

impl<A: Area> Lender<GuardedPool<A>> {
    /// [`GuardedPool::check_all`], also while blocks are lent.
    pub fn check_all(&self) -> Vec<Overrun> {
        self.0.borrow().check_all().collect()
    }
    /// [`GuardedPool::leaks`], also while blocks are lent.
    pub fn leaks(&self) -> Vec<Leak> {
        self.0.borrow().leaks().collect()
    }
}

/// A block of a [`Lender`]: given back with this.
pub struct Lent<'p, P: Lend> {
    block: NonNull<[u8]>,
    pool: &'p RefCell<P>,
}

impl<P: Lend> Lent<'_, P> {
    /// Its bytes, as somebody left them.
    #[inline]
    pub fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: lent, so valid and nobody else's, and borrowed exclusively; nothing is said of what the bytes are.
        unsafe { core::slice::from_raw_parts_mut(self.block.cast().as_ptr(), self.block.len()) }
    }
    /// Where it is, until it is given back.
    pub fn address(&self) -> *const u8 {
        self.block.cast().as_ptr()
    }
    /// Gives it back, with the checks that the pool has.
    ///
    /// # Errors
    /// As [`Lend::take_back`]: somebody else wrote where only the pool may. The block stays out.
    #[inline]
    pub fn give_back(self) -> Result<(), BadFree> {
        let this = ManuallyDrop::new(self);
        // SAFETY: lent by this pool; it goes back once, here, because the value is not dropped.
        unsafe { this.pool.borrow_mut().take_back(this.block.cast()) }
    }
}

impl<P: Lend> Drop for Lent<'_, P> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: lent by this pool; it goes back once, here.
        unsafe { self.pool.borrow_mut().take_own_back(self.block.cast()) };
    }
}

impl<P: Lend> fmt::Debug for Lent<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("address", &self.address()).field("bytes", &self.block.len()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::area::HeapArea;
    use super::super::error::Side;
    use super::super::index_pool::Initialise;
    use super::*;
    use core::alloc::Layout;

    fn lazy(blocks: usize) -> Lender<IndexPool<HeapArea>> {
        let area = HeapArea::new(blocks * 16, 16).unwrap();
        Lender::new(IndexPool::with_blocks(area, 16, blocks, Initialise::WhenEmpty).unwrap())
    }

    #[test]
    fn what_is_lent_comes_back_once_however_it_goes() {
        let pool = lazy(3);
        let [a, b, c] = [0; 3].map(|_| pool.lend().unwrap());
        let (first, second) = (a.address(), b.address());
        assert_eq!((pool.lend().err(), pool.state().free), (Some(Refused::Full), 0));
        drop(b);
        assert_eq!(a.give_back(), Ok(()));
        assert_eq!(pool.state().free, 2);
        let again = [pool.lend().unwrap(), pool.lend().unwrap()];
        assert_eq!(
            again.each_ref().map(Lent::address),
            [first, second],
            "the one given back last comes first"
        );
        drop((again, c));
        assert_eq!(pool.state().free, 3);
        assert!(pool.into_pool().destroy().is_ok());
    }

    #[test]
    fn blocks_are_apart_and_keep_their_bytes_while_others_come_and_go() {
        let pool = lazy(8);
        let mut kept: Vec<_> = (0..4_u8)
            .map(|stamp| {
                let mut block = pool.lend().unwrap();
                block.bytes().iter_mut().for_each(|byte| _ = byte.write(stamp));
                (stamp, block)
            })
            .collect();
        for _ in 0..10 {
            let mut others: Vec<_> = (0..4).map(|_| pool.lend().unwrap()).collect();
            for block in &mut others {
                block.bytes().iter_mut().for_each(|byte| _ = byte.write(0xff));
            }
        }
        for (stamp, block) in &mut kept {
            // SAFETY: written above.
            assert!(block.bytes().iter().all(|byte| unsafe { byte.assume_init() } == *stamp));
        }
    }

    #[test]
    fn a_forgotten_block_stays_out_and_the_pool_goes_on() {
        let mut pool = lazy(2);
        core::mem::forget(pool.lend().unwrap());
        assert_eq!(pool.pool().live(), 1);
        let other = pool.lend().unwrap();
        assert!(pool.lend().is_err());
        drop(other);
        assert!(pool.lend().is_ok());
    }

    #[test]
    fn guards_are_looked_at_when_a_block_comes_back_and_the_callers_are_known() {
        let area = HeapArea::new(4096, 16).unwrap();
        let pool = Lender::new(GuardedPool::new(area, Layout::new::<[u8; 30]>()).unwrap());
        let mut good = pool.lend().unwrap();
        assert_eq!(good.bytes().len(), 30);
        good.bytes().iter_mut().for_each(|byte| _ = byte.write(1));
        let line = line!() + 1;
        let bad = pool.lend().unwrap();
        let lines: Vec<_> = pool.leaks().iter().map(|leak| leak.site.unwrap().line()).collect();
        assert_eq!((lines.len(), lines[1]), (2, line));
        // SAFETY: the byte behind the object is in the pool's memory, which nobody looks at meanwhile.
        unsafe { bad.block.cast::<u8>().add(30).write(b'!') };
        assert!(matches!(pool.check_all()[..], [Overrun { side: Side::After, .. }]));
        assert!(matches!(bad.give_back(), Err(BadFree::Overrun(Overrun { side: Side::After, .. }))));
        assert_eq!(good.give_back(), Ok(()));
        assert_eq!(pool.leaks().len(), 1, "the broken one stays out");
    }
}
