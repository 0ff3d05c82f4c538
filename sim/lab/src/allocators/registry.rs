//! The registry of the lab's allocators by name. The registry creates an allocator with a given memory size, and passes
//! it to an [`AllocatorVisitor`].

use super::heap::{Fit, Order};
use super::tlsf::Search;
use super::{Allocator, Buddy, Heap, Linear, Pool, Segregated, Shipping, Stack, System, Tlsf};
use anyhow::Context;
use clap::ValueEnum;
use core::alloc::Layout;

/// The name of an allocator in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// A linear allocator, which allocates by moving an offset forward.
    Linear,
    /// A linear allocator that can be rewound to a marker.
    Stack,
    /// A pool whose slots have the size of the largest request.
    Pool,
    /// One pool for each size class.
    Segregated,
    /// A list of free blocks in address order; the first block that is large enough serves a request.
    FirstFit,
    /// A list of free blocks; the smallest block that is large enough serves a request.
    BestFit,
    /// A list of free blocks; each search begins at the end of the last search.
    NextFit,
    /// A buddy allocator: blocks whose sizes are powers of two, halved and merged.
    Buddy,
    /// TLSF: two levels of size classes, searched by bitmaps.
    Tlsf,
    /// The slab subsystem as malloc.
    Slab,
    /// The program's own malloc.
    System,
}

impl Name {
    /// All allocators.
    pub const ALL: [Self; 11] = [
        Self::Linear,
        Self::Stack,
        Self::Pool,
        Self::Segregated,
        Self::FirstFit,
        Self::BestFit,
        Self::NextFit,
        Self::Buddy,
        Self::Tlsf,
        Self::Slab,
        Self::System,
    ];

    /// Returns the name for the command line and tables.
    pub fn display_name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Code that can run with an allocator of any kind.
pub trait AllocatorVisitor {
    /// The type of the trial's result.
    type Outcome;

    /// Runs the code with the given allocator.
    ///
    /// # Errors
    /// Returns the error of the trial.
    fn with<A: Allocator>(&mut self, allocator: &mut A) -> anyhow::Result<Self::Outcome>;
}

/// Creates an allocator with `bytes` bytes, and passes it to the trial; `largest` is the size of the trial's largest
/// request.
///
/// # Errors
/// Fails if the allocator cannot be created with this memory size and largest request
/// ([`ConfigError`](super::memory::ConfigError)), or if the trial fails. The error names the allocator.
pub fn run<T: AllocatorVisitor>(
    name: Name,
    bytes: usize,
    largest: Layout,
    trial: &mut T,
) -> anyhow::Result<T::Outcome> {
    run_trial(name, bytes, largest, trial).with_context(|| name.display_name())
}

fn run_trial<T: AllocatorVisitor>(
    name: Name,
    bytes: usize,
    largest: Layout,
    trial: &mut T,
) -> anyhow::Result<T::Outcome> {
    let list = |fit| Heap::new(bytes, fit, Order::Address);
    match name {
        Name::Linear => trial.with(&mut Linear::fixed(bytes)?),
        Name::Stack => trial.with(&mut Stack::new(bytes)?),
        Name::Pool => {
            // A block that is smaller than the slot also takes a whole slot.
            let slot = Layout::from_size_align(largest.size().max(Pool::MIN_SLOT_BYTES), largest.align())?;
            trial.with(&mut Pool::new(Linear::fixed(bytes)?, slot)?)
        }
        Name::Segregated => trial.with(&mut Segregated::new(bytes)?),
        Name::FirstFit => trial.with(&mut list(Fit::First)?),
        Name::BestFit => trial.with(&mut list(Fit::Best)?),
        Name::NextFit => trial.with(&mut list(Fit::Next)?),
        Name::Buddy => trial.with(&mut Buddy::new(bytes)?),
        Name::Tlsf => trial.with(&mut Tlsf::new(bytes, 4, Search::Bitmaps)?),
        Name::Slab => {
            let shipping = Shipping::new(bytes)?;
            trial.with(&mut shipping.malloc())
        }
        Name::System => trial.with(&mut System::default()),
    }
}
