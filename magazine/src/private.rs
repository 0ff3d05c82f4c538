//! A private magazine: rounds that belong to one owner.
//!
//! Linux calls it a *prefilled sheaf*: before somebody takes a lock under which an allocation must not fail, it fills a
//! magazine of its own with as many rounds as it will need. The next allocations then touch nothing that others touch:
//! no slot, no CPU number, no locked instruction. It takes frees as well.
//!
//! The rounds lie in ordinary magazines of the layer, one loaded and the others chained behind it, so they are counted
//! as the layer's (they are neither free nor handed out), and go back the usual way. It keeps so many magazines as hold
//! what it was asked for, full or empty: a batch of that size, allocated and freed, touches nothing shared at all. Beyond,
//! whole magazines are exchanged with the layer.

use crate::depot::Chain;
use crate::layer::{Layer, Round, Supplier};
use crate::memory::{Heap, Memory};
use crate::paths::Operation;
use crate::slot::{Fill, Num};
use crate::store::Magazine;
use crate::sync::planted;
use core::marker::PhantomData;

/// Rounds of one owner. See the [module](self).
///
/// Dropping it forgets the rounds: give them back with [`close`](Private::close).
#[derive(Debug)]
#[must_use = "its rounds go back by `close`"]
pub struct Private<'l, R, M = Heap> {
    /// The sentinel once it is closed.
    loaded: Magazine<'l>,
    num: Num,
    layer: &'l Layer<R, M>,
    /// Full and empty magazines behind the loaded one,
    full: Chain,
    empty: Chain,
    /// with so many rounds in the full ones,
    behind: usize,
    /// and the most of either.
    most: u32,
    /// Where magazines and rounds come from and go to.
    node: u32,
    /// Not `Sync`: `&mut` is what protects the magazines.
    owner: PhantomData<core::cell::Cell<R>>,
}

// SAFETY: the magazines belong to the value alone, so whoever has it may use them; rounds are the layer's, whose rounds
// travel between threads anyway.
unsafe impl<R: Round, M: Memory> Send for Private<'_, R, M> {}

impl<R: Round, M: Memory> Layer<R, M> {
    /// A private magazine that holds at least `n` rounds of this CPU's node; `None`, and everything given back, if there
    /// are not so many or no magazine is to be had.
    ///
    /// Cost: as [`refill`](Private::refill).
    pub fn private(&self, supplier: &impl Supplier<R>, n: usize) -> Option<Private<'_, R, M>> {
        let node = self.cpus.node_of(self.cpus.current());
        let num = self.take_empty(&Operation::new(), node)?;
        let mut private = Private {
            loaded: self.store.get(num),
            num,
            layer: self,
            full: Chain::new(),
            empty: Chain::new(),
            behind: 0,
            most: 0,
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

impl<'l, R: Round, M: Memory> Private<'l, R, M> {
    /// Takes a round out; `None` if it holds none.
    ///
    /// Cost: a few plain instructions; once a magazine another one of its own is loaded.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<R> {
        match self.loaded.private_pop() {
            // SAFETY: rounds get into magazines through `R::into_raw` only.
            Some(raw) => Some(unsafe { R::from_raw(raw) }),
            None => self.pop_next(),
        }
    }

    #[cold]
    #[inline(never)]
    fn pop_next(&mut self) -> Option<R> {
        let full = self.full.pop(&self.layer.store)?;
        let op = Operation::new();
        self.load(&op, full);
        self.layer.counts.paths.count(&op);
        self.behind -= self.loaded.len() as usize;
        // SAFETY: as in `pop`.
        self.loaded.private_pop().map(|raw| unsafe { R::from_raw(raw) })
    }

    /// Puts a round in. When all its magazines are full, one of them joins the layer's.
    ///
    /// Cost: as [`pop`](Self::pop); beyond what it keeps, an exchange once a magazine.
    #[inline(always)]
    pub fn push(&mut self, supplier: &impl Supplier<R>, round: R) {
        if !self.loaded.private_push(round.into_raw()) {
            self.push_next(supplier, round);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_next(&mut self, supplier: &impl Supplier<R>, round: R) {
        let (layer, op) = (self.layer, &Operation::new());
        let empty = self.empty.pop(&layer.store).or_else(|| layer.take_empty(op, self.node));
        let Some(empty) = empty.or_else(|| layer.flush_one(op, supplier, self.node)) else {
            return layer.free_in(op, supplier, round);
        };
        if let Some(full) = self.load(op, empty) {
            layer.put_full(op, supplier, self.node, full);
        }
        layer.counts.paths.count(op);
        self.loaded.private_push(round.into_raw());
    }

    /// Loads a magazine that it owns; the other one stays behind it, or is the answer if it keeps so many full ones.
    fn load(&mut self, op: &Operation, num: Num) -> Option<Num> {
        let store = &self.layer.store;
        let before = core::mem::replace(&mut self.num, num);
        let left = core::mem::replace(&mut self.loaded, store.get(num));
        if before.is_sentinel() {
            return None;
        }
        if left.len() > 0 {
            if self.full.len() == self.most {
                return Some(before);
            }
            self.keep(before);
        } else if self.empty.len() < self.most {
            self.empty.push(store, before);
        } else {
            self.layer.put_empty(op, self.node, before);
        }
        None
    }

    /// A full magazine stays behind the loaded one.
    fn keep(&mut self, num: Num) {
        self.behind += self.layer.store.get(num).len() as usize;
        self.full.push(&self.layer.store, num);
    }

    /// Rounds that it holds.
    pub fn len(&self) -> usize {
        self.loaded.len() as usize + self.behind
    }
    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills it up to at least `n` rounds, and lets it keep so many from now on; `false` if there are not so many (it
    /// keeps what it has got).
    ///
    /// Cost: full magazines of the stock or the depot as they are; else one lock hold of the supplier for each.
    pub fn refill(&mut self, supplier: &impl Supplier<R>, n: usize) -> bool {
        let (layer, node, op) = (self.layer, self.node, &Operation::new());
        // More than all magazines hold.
        if n as u64 > u64::from(layer.config.magazines) * u64::from(layer.config.largest) {
            return false;
        }
        let most = n.div_ceil(usize::from(layer.config.capacity));
        self.most = self.most.max(u32::try_from(most).unwrap_or(u32::MAX));
        while self.len() < n {
            let magazine = self.loaded;
            // The sentinel is both.
            let (empty, full) = (magazine.is(Fill::Empty), magazine.is(Fill::Full));
            if (empty || full)
                && let Some(num) = layer.take_full(op, node)
            {
                self.keep(num);
                continue;
            }
            if full {
                let next = self.empty.pop(&layer.store).or_else(|| layer.take_empty(op, node));
                let Some(next) = next else { return false };
                if let Some(full) = self.load(op, next) {
                    self.keep(full);
                }
                continue;
            }
            let room = (magazine.capacity() - magazine.len()) as usize;
            crate::sync::assert_unlocked();
            let got = supplier.fill(op, node, room.min(n - self.len()), |round| {
                let fits = magazine.owner_push(round.into_raw());
                debug_assert!(fits, "a supplier hands out at most what was asked for");
            });
            if got == 0 {
                return false;
            }
        }
        true
    }

    /// Gives everything back: full magazines to the layer, other rounds to the supplier. It is empty then, and has no
    /// magazine until it is refilled.
    pub fn close(&mut self, supplier: &impl Supplier<R>) {
        let (layer, node, op) = (self.layer, self.node, &Operation::new());
        self.loaded = layer.store.get(Num::SENTINEL);
        let loaded = core::mem::replace(&mut self.num, Num::SENTINEL);
        if !loaded.is_sentinel() {
            layer.put_away(op, supplier, node, loaded);
        }
        while let Some(num) = self.full.pop(&layer.store) {
            if !planted("a closed private magazine keeps what lay behind") {
                layer.put_full(op, supplier, node, num);
            }
        }
        while let Some(num) = self.empty.pop(&layer.store) {
            layer.put_empty(op, node, num);
        }
        self.behind = 0;
    }
}
