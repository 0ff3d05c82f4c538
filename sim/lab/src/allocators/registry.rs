//! Everybody: the allocators of the lab by name, made to size, and handed to whoever wants to try them all.

use super::heap::{Fit, Order};
use super::tlsf::Search;
use super::{Allocator, Buddy, Heap, Linear, Pool, Segregated, Shipping, Stack, System, Tlsf};
use anyhow::Context;
use clap::ValueEnum;
use core::alloc::Layout;

/// An allocator of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// One position that moves forward.
    Linear,
    /// The same with markers.
    Stack,
    /// Slots of the largest size.
    Pool,
    /// A pool for each size class.
    Segregated,
    /// A list of free blocks, by address: the first that is large enough.
    FirstFit,
    /// The smallest that is large enough.
    BestFit,
    /// The first from where the last search ended.
    NextFit,
    /// Powers of two.
    Buddy,
    /// Two levels of size classes.
    Tlsf,
    /// The slab subsystem as malloc.
    Slab,
    /// The program's own malloc.
    System,
}

impl Name {
    /// All of them.
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

    /// As on the command line, and in tables.
    pub fn shown(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What is done with an allocator of whichever kind.
pub trait Trial {
    /// What comes of it.
    type Outcome;

    /// Does it.
    ///
    /// # Errors
    /// The trial's own.
    fn with<A: Allocator>(&mut self, allocator: &mut A) -> anyhow::Result<Self::Outcome>;
}

/// Makes an allocator of `bytes` bytes, whose largest request will be `largest`, and tries it.
///
/// # Errors
/// It cannot be made to that size or for that request ([`ConfigError`](super::memory::ConfigError)), or the trial's own; with its name.
pub fn run<T: Trial>(name: Name, bytes: usize, largest: Layout, trial: &mut T) -> anyhow::Result<T::Outcome> {
    made(name, bytes, largest, trial).with_context(|| name.shown())
}

fn made<T: Trial>(name: Name, bytes: usize, largest: Layout, trial: &mut T) -> anyhow::Result<T::Outcome> {
    let list = |fit| Heap::new(bytes, fit, Order::Address);
    match name {
        Name::Linear => trial.with(&mut Linear::fixed(bytes)?),
        Name::Stack => trial.with(&mut Stack::new(bytes)?),
        Name::Pool => {
            // A smaller block has a slot to itself all the same.
            let slot = Layout::from_size_align(largest.size().max(Pool::LEAST), largest.align())?;
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
