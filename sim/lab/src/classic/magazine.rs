//! A magazine, and the two magazines of a CPU.

/// A stack of rounds (section 3.1). A push allocates no memory, because the vector has room for `size` rounds from the
/// start.
#[derive(Debug)]
pub(super) struct Magazine<T> {
    pub(super) rounds: Vec<T>,
    pub(super) size: usize,
}

impl<T> Default for Magazine<T> {
    /// Returns the placeholder for a missing magazine. A placeholder has room for no round, so it counts as both full
    /// and empty, and serves no request.
    fn default() -> Self {
        Self { rounds: Vec::new(), size: 0 }
    }
}

impl<T> Magazine<T> {
    pub(super) fn pop(&mut self) -> Option<T> {
        self.rounds.pop()
    }
    /// If the magazine is full, the push fails and returns the round.
    pub(super) fn push(&mut self, round: T) -> Result<(), T> {
        if self.is_full() {
            return Err(round);
        }
        self.rounds.push(round);
        Ok(())
    }
    pub(super) fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }
    pub(super) fn is_full(&self) -> bool {
        self.rounds.len() == self.size
    }
}

/// The two magazines of a CPU (Figure 3).
///
/// Invariant: `previous` is full, empty or missing. A magazine becomes `previous` only when it cannot serve an
/// operation.
#[derive(Debug)]
pub(super) struct CpuCache<T> {
    pub(super) loaded: Magazine<T>,
    pub(super) previous: Magazine<T>,
    /// The number of allocations that the two magazines have served, and the number of frees.
    pub(super) allocs: u64,
    pub(super) frees: u64,
}

impl<T> CpuCache<T> {
    pub(super) fn new() -> Self {
        Self { loaded: Magazine::default(), previous: Magazine::default(), allocs: 0, frees: 0 }
    }
    pub(super) fn swap(&mut self) {
        core::mem::swap(&mut self.loaded, &mut self.previous);
    }
    /// Loads the magazine `fresh`, and makes the loaded magazine the previous one. Returns the magazine that was the
    /// previous one before the call.
    pub(super) fn load(&mut self, fresh: Magazine<T>) -> Magazine<T> {
        let loaded = core::mem::replace(&mut self.loaded, fresh);
        core::mem::replace(&mut self.previous, loaded)
    }
    /// Removes and returns both magazines of the CPU.
    pub(super) fn unload(&mut self) -> [Magazine<T>; 2] {
        [core::mem::take(&mut self.loaded), core::mem::take(&mut self.previous)]
    }
}
