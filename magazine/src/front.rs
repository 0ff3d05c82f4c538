//! The inlined path of a layer by itself, for an owner who keeps it where every instruction counts.
//!
//! Where restartable sequences serve there is one node, so whose a round is need not be asked on a free. Where they do not,
//! a front always misses, and the layer's slow path serves everything.

use crate::cpu::rseq::Fast;
use crate::layer::Round;
use crate::slot::Which;
use core::marker::PhantomData;

/// What [`Layer::front`](crate::Layer::front) hands out: a few plain instructions on this CPU's loaded magazine, or a
/// miss.
#[derive(Debug)]
pub struct Front<R> {
    pub(crate) fast: Fast,
    rounds: PhantomData<fn(R) -> R>,
}

impl<R> Clone for Front<R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R> Copy for Front<R> {}

impl<R: Round> Front<R> {
    /// A front that always misses, of no layer: for an owner who wants to see each round on the slow path.
    pub fn closed() -> Self {
        Self::of(Fast::nowhere())
    }
    pub(crate) fn of(fast: Fast) -> Self {
        Self { fast, rounds: PhantomData }
    }

    /// A round of this CPU's loaded magazine; `None` if it is empty or the front is closed: then
    /// [`Layer::alloc`](crate::Layer::alloc).
    ///
    /// Cost: one operation on the CPU's slot, nothing shared.
    ///
    /// # Safety
    /// The layer that it came from lives.
    #[inline(always)]
    pub unsafe fn alloc(&self) -> Option<R> {
        // SAFETY: rounds get into magazines through `R::into_raw` only.
        self.fast.pop::<{ Which::Rounds as usize }>().map(|raw| unsafe { R::from_raw(raw) })
    }

    /// Takes a round back; `false` if this CPU's loaded magazine is full or the front is closed: then
    /// [`Layer::free`](crate::Layer::free).
    ///
    /// Cost: as [`alloc`](Self::alloc).
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc).
    #[inline(always)]
    #[must_use = "a round that was not taken is still the caller's"]
    pub unsafe fn free(&self, round: R) -> bool {
        self.fast.push::<{ Which::Rounds as usize }>(round.into_raw())
    }
}
