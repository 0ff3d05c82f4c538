//! A private magazine: rounds that belong to one owner.
//!
//! Linux calls it a *prefilled sheaf*: before somebody takes a lock under which an allocation must not fail, it fills a
//! magazine of its own with as many rounds as it will need. The next allocations then touch nothing that others touch:
//! no slot, no CPU number, no locked instruction. It takes frees as well.
//!
//! The rounds lie in ordinary magazines of the layer, one loaded and a chain of full ones behind it, so they are counted
//! as the layer's (they are neither free nor handed out), and go back the usual way.

use crate::depot::Chain;
use crate::layer::{Layer, Round, Supplier};
use crate::memory::{Heap, Memory};
use crate::slot::{Fill, Num};
use core::marker::PhantomData;

/// Rounds of one owner. See the [module](self).
///
/// Dropping it forgets the rounds: give them back with [`close`](Private::close).
#[derive(Debug)]
#[must_use = "its rounds go back by `close`"]
pub struct Private<'l, R, M = Heap> {
    layer: &'l Layer<R, M>,
    loaded: Num,
    /// Full magazines behind the loaded one.
    full: Chain,
    /// Where magazines and rounds come from and go to.
    node: u32,
    /// Not `Sync`: `&mut` is what protects the magazines.
    owner: PhantomData<core::cell::Cell<R>>,
}

// SAFETY: the magazines belong to the value alone, so whoever has it may use them; rounds are the layer's, whose rounds
// travel between threads anyway.
unsafe impl<R: Round + Send, M: Memory> Send for Private<'_, R, M> {}

impl<R: Round, M: Memory> Layer<R, M> {
    /// A private magazine that holds at least `n` rounds of this CPU's node, straight from the supplier; `None`, and
    /// everything given back, if the supplier has not so many or no magazine is to be had.
    ///
    /// Cost: one lock hold of the supplier for each magazine, and a visit to the stock for it.
    pub fn private(&self, supplier: &impl Supplier<R>, n: usize) -> Option<Private<'_, R, M>> {
        let node = self.cpus.node_of(self.cpus.current());
        let mut private = Private {
            layer: self,
            loaded: self.take_empty(node)?,
            full: Chain::new(),
            node,
            owner: PhantomData,
        };
        if private.refill(supplier, n) {
            return Some(private);
        }
        private.close(supplier);
        None
    }
}

impl<R: Round, M: Memory> Private<'_, R, M> {
    /// Takes a round out; `None` if it holds none.
    ///
    /// Cost: a few plain instructions; once a magazine another one of its own is loaded.
    #[inline]
    pub fn pop(&mut self) -> Option<R> {
        loop {
            if let Some(raw) = self.layer.store.get(self.loaded).private_pop() {
                // SAFETY: rounds get into magazines through `R::into_raw` only.
                return Some(unsafe { R::from_raw(raw) });
            }
            let next = self.full.pop(&self.layer.store)?;
            self.layer.put_empty(self.node, Chain::of(&self.layer.store, self.loaded));
            self.loaded = next;
        }
    }

    /// Puts a round in. When its magazine is full, another one is loaded and the full one joins the layer's.
    ///
    /// Cost: as [`pop`](Self::pop); once a magazine an exchange.
    #[inline]
    pub fn push(&mut self, supplier: &impl Supplier<R>, round: R) {
        if !self.layer.store.get(self.loaded).private_push(round.into_raw()) {
            self.exchange(supplier, round);
        }
    }

    #[cold]
    fn exchange(&mut self, supplier: &impl Supplier<R>, round: R) {
        let layer = self.layer;
        match layer.take_empty(self.node).or_else(|| layer.flush_one(supplier, self.node)) {
            Some(empty) => {
                layer.put_full(supplier, self.node, Chain::of(&layer.store, self.loaded));
                self.loaded = empty;
                layer.store.get(empty).private_push(round.into_raw());
            }
            None => layer.free(supplier, round),
        }
    }

    /// Rounds that it holds.
    pub fn len(&self) -> usize {
        let behind = self.full.len() as usize * usize::from(self.layer.config.capacity);
        self.layer.store.get(self.loaded).len() as usize + behind
    }
    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills it up to at least `n` rounds; `false` if there are not so many (it keeps what it has got).
    pub fn refill(&mut self, supplier: &impl Supplier<R>, n: usize) -> bool {
        while self.len() < n {
            let magazine = self.layer.store.get(self.loaded);
            if magazine.is(Fill::Full) {
                let Some(empty) = self.layer.take_empty(self.node) else { return false };
                self.full.push(&self.layer.store, self.loaded);
                self.loaded = empty;
                continue;
            }
            let room = (magazine.capacity() - magazine.len()) as usize;
            crate::sync::assert_unlocked();
            let got = supplier.fill(self.node, room.min(n - self.len()), |round| {
                let fits = magazine.owner_push(round.into_raw());
                debug_assert!(fits, "a supplier hands out at most what was asked for");
            });
            if got == 0 {
                return false;
            }
        }
        true
    }

    /// Gives everything back: full magazines to the layer, other rounds to the supplier.
    pub fn close(mut self, supplier: &impl Supplier<R>) {
        let (layer, node) = (self.layer, self.node);
        layer.put_away(supplier, node, self.loaded);
        let full = core::mem::replace(&mut self.full, Chain::new());
        layer.put_full(supplier, node, full);
    }
}
