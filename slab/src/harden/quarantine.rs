//! The quarantine delays the reuse of freed objects.
//!
//! ```text
//! a free ──> a random place ──> its previous object: the next place of a ring ──> its previous object: free
//! ```
//!
//! With `n` places, the ring delays each object by `n` later frees. The random places delay an object by an
//! unpredictable number of frees. Each step of a push is one atomic exchange without a lock. A fork therefore finds
//! every object either in one place, or in transit in one thread.
//!
//! # Closing
//!
//! No object may stay in quarantine when its cache loses its owner or gets a waiter. A close first sets the flag, and
//! then exchanges each place. A free first exchanges a place, and then reads the flag. If a close and a free exchange
//! the same place, the later exchange reads what the earlier one wrote. Therefore the close finds the object, or the
//! free sees the flag and removes the object again.

use super::mix;
use core::ptr::{NonNull, null_mut};
use uslab_magazine::sync::Ordering::{AcqRel, Relaxed};
use uslab_magazine::sync::{AtomicBool, AtomicPtr, AtomicUsize, Counter};

#[derive(Debug)]
pub(crate) struct Quarantine {
    /// Slots of quarantined objects: the random places first, then the places of the ring.
    places: Box<[AtomicPtr<u8>]>,
    drawn: usize,
    /// Number of objects pushed so far.
    came: AtomicUsize,
    closed: AtomicBool,
    reaped: Counter,
    /// Number of objects that reaps and closes have removed.
    taken: Counter,
    key: u64,
}

impl Quarantine {
    /// Makes a quarantine for `objects` objects, or for one object if `objects` is 0.
    pub(crate) fn new(objects: usize, key: u64) -> Self {
        Self {
            places: (0..objects).map(|_| AtomicPtr::new(null_mut())).collect(),
            drawn: objects.div_ceil(2),
            came: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            reaped: Counter::new(0),
            taken: Counter::new(0),
            key,
        }
    }
    /// For debuggers: address and number of the quarantine's places.
    pub(crate) fn describe_for_debuggers(&self) -> [usize; 2] {
        [self.places.as_ptr().addr(), self.places.len()]
    }
    fn exchange(&self, place: usize, object: *mut u8) -> Option<NonNull<u8>> {
        // AcqRel: pairs with other exchanges of the place. The thread that takes an object sees the writes of the
        // object's last user; if a close exchanged the place earlier, the thread also sees `closed`.
        NonNull::new(self.places[place].swap(object, AcqRel))
    }
    fn is_closed(&self) -> bool {
        // Relaxed: the exchanges of the places order this flag.
        self.closed.load(Relaxed)
    }

    /// Puts a freed object into quarantine, and passes objects that may be reused to `out`. If the quarantine is
    /// closed, `out` also gets the freed object itself.
    pub(crate) fn push(&self, object: NonNull<u8>, out: impl Fn(NonNull<u8>)) {
        // Relaxed: the counter only spreads the pushes over the ring.
        let turn = self.came.fetch_add(1, Relaxed);
        let drawn = mix(turn as u64 ^ self.key) as usize % self.drawn;
        let ring = self.drawn + turn % (self.places.len() - self.drawn).max(1);
        let mut used = [Some(drawn), None];
        let mut leaves = self.exchange(drawn, object.as_ptr());
        if let Some(object) = leaves
            && ring < self.places.len()
        {
            used[1] = Some(ring);
            leaves = self.exchange(ring, object.as_ptr());
        }
        let closed = self.is_closed();
        if closed {
            used.into_iter().flatten().filter_map(|place| self.exchange(place, null_mut())).for_each(&out);
        }
        leaves.into_iter().for_each(out);
    }
    /// Takes all objects out of the quarantine. A closed quarantine stays empty afterwards.
    pub(crate) fn take(&self) -> impl Iterator<Item = NonNull<u8>> + '_ {
        let objects = (0..self.places.len()).filter_map(|place| self.exchange(place, null_mut()));
        objects.inspect(|_| self.taken.add(1))
    }
    /// Takes all objects if no object was pushed since the last reap.
    pub(crate) fn reap(&self) -> impl Iterator<Item = NonNull<u8>> + '_ {
        let came = self.came.load(Relaxed) as u64;
        let idle = self.reaped.get() == came;
        self.reaped.set(came);
        idle.then(|| self.take()).into_iter().flatten()
    }
    /// Opens or closes the quarantine; a closed quarantine keeps no objects. After a close, the caller must call
    /// [`take`](Self::take).
    pub(crate) fn close(&self, closed: bool) {
        // Relaxed: the exchanges order the flag, see `is_closed`.
        self.closed.store(closed, Relaxed);
    }
    /// Number of freed objects that are in quarantine, or that a reap or a close [removed](Self::take) from it.
    pub(crate) fn frees(&self) -> u64 {
        self.len() + self.taken.get()
    }
    pub(crate) fn len(&self) -> u64 {
        self.places.iter().filter(|place| !place.load(Relaxed).is_null()).count() as u64
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn quarantine_releases_objects_in_random_order() {
        let quarantine = Quarantine::new(64, 7);
        let mut memory = [0_u8; 4096];
        let base = NonNull::from(&mut memory).cast::<u8>();
        let released = RefCell::new(vec![]);
        for at in 0..4096 {
            // SAFETY: the offset is within the array.
            let object = unsafe { base.add(at) };
            let released_before = released.borrow().len();
            quarantine.push(object, |object| released.borrow_mut().push(object));
            let released = released.borrow();
            assert!(released.len() - released_before <= 1);
            assert!(!released.contains(&object), "32 later frees release the object");
        }
        assert_eq!(quarantine.len() as usize + released.borrow().len(), 4096);
        assert_eq!(quarantine.len(), 64);
        assert!(!released.borrow().is_sorted());
        released.borrow_mut().extend(quarantine.take());
        let mut all = released.into_inner();
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), quarantine.len()), (4096, 0));
    }

    #[test]
    fn reaping_empties_an_idle_quarantine() {
        let quarantine = Quarantine::new(4, 7);
        let mut memory = [0_u8; 3];
        let object =
            |at| NonNull::from(&mut memory).cast::<u8>().map_addr(|addr| addr.checked_add(at).unwrap());
        let mut object = object;
        let expect_no_release = |_| panic!("the quarantine has room");
        quarantine.push(object(0), expect_no_release);
        assert_eq!(quarantine.reap().count(), 0);
        assert_eq!(quarantine.reap().count(), 1);
        quarantine.close(true);
        let released_count = RefCell::new(0);
        quarantine.push(object(1), |_| *released_count.borrow_mut() += 1);
        assert_eq!((released_count.into_inner(), quarantine.len()), (1, 0));
        quarantine.close(false);
        quarantine.push(object(2), expect_no_release);
        assert_eq!(quarantine.len(), 1);
    }

    #[test]
    fn free_into_a_closed_quarantine_releases_all_quarantined_objects() {
        let mut memory = [0_u8; 2];
        let base = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: the offset is within the array.
        let [first, second] = [0, 1].map(|at| unsafe { base.add(at) });
        let released = RefCell::new(vec![]);
        let push = |quarantine: &Quarantine, object| {
            quarantine.push(object, |object| released.borrow_mut().push(object));
        };
        let two = Quarantine::new(2, 7);
        push(&two, first);
        two.close(true);
        // The second object pushes the first object into the ring.
        push(&two, second);
        assert_eq!((released.take(), two.len()), (vec![second, first], 0));
        let single = Quarantine::new(1, 7);
        push(&single, first);
        push(&single, second);
        assert_eq!((released.take(), single.len()), (vec![first], 1));
    }
}
