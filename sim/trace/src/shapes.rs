//! What allocations have in common: who asks, how much, with which flags. A trace has a few thousand of these shapes,
//! and a cache name is found once for a shape, not for each allocation.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHashMap;

use super::event::Via;
use super::symbols::Symbol;

/// Everything that an allocation event says, but the pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) site: Symbol,
    pub(super) bytes_req: u32,
    pub(super) bytes_alloc: u32,
    pub(super) gfp: Symbol,
    pub(super) via: Via,
    /// The cache that the event itself names, or that a free of this very object named against its shape's custom.
    pub(super) named: Option<Symbol>,
}

impl Hash for Shape {
    /// Three words instead of seven fields: this is on the way of every allocation.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { site, bytes_req, bytes_alloc, gfp, via, named } = *self;
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        pair(site.0, gfp.0).hash(state);
        pair(bytes_req, bytes_alloc).hash(state);
        pair(named.map_or(0, |name| name.0 + 1), via as u32).hash(state);
    }
}

/// Which allocations share a cache, as far as anyone can tell: call site and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Origin {
    site: Symbol,
    bytes_req: u32,
    bytes_alloc: u32,
}

#[derive(Debug, Default)]
pub(super) struct Shapes {
    numbers: FxHashMap<Shape, u32>,
    shapes: Vec<Entry>,
    origins: FxHashMap<Origin, u32>,
    learned: Vec<Learned>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    shape: Shape,
    /// The number of its origin.
    origin: u32,
    /// Its own name comes from a free, not from the event.
    own_name_taught: bool,
}

/// What frees told about an origin.
#[derive(Debug, Default, Clone, Copy)]
struct Learned {
    /// The first name.
    name: Option<Symbol>,
    /// There was a second one.
    several: bool,
}

impl Shapes {
    pub(super) fn number(&mut self, shape: Shape) -> u32 {
        if let Some(&number) = self.numbers.get(&shape) {
            return number;
        }
        let Shape { site, bytes_req, bytes_alloc, .. } = shape;
        let learned = &mut self.learned;
        let origin = *self.origins.entry(Origin { site, bytes_req, bytes_alloc }).or_insert_with(|| {
            learned.push(Learned::default());
            learned.len() as u32 - 1
        });
        let number = self.shapes.len() as u32;
        self.shapes.push(Entry { shape, origin, own_name_taught: false });
        self.numbers.insert(shape, number);
        number
    }

    /// A free named the cache of an allocation of this shape. Returns the shape that the allocation has if it is not
    /// what the shape's other allocations are.
    pub(super) fn learn(&mut self, shape: u32, name: Symbol) -> Option<u32> {
        let entry = self.shapes[shape as usize];
        let learned = &mut self.learned[entry.origin as usize];
        match learned.name {
            None => learned.name = Some(name),
            Some(first) if first == name => {}
            Some(_) => {
                learned.several = true;
                let own = self.number(Shape { named: Some(name), ..entry.shape });
                self.shapes[own as usize].own_name_taught = true;
                return Some(own);
            }
        }
        None
    }

    /// Forgets what frees told. Allocations that have a shape of their own for it must get that of [`as_printed`](Self::as_printed).
    pub(super) fn forget(&mut self) {
        self.learned.fill(Learned::default());
    }

    /// The shape that the event itself gives an allocation.
    pub(super) fn as_printed(&self, number: u32) -> u32 {
        let entry = &self.shapes[number as usize];
        if !entry.own_name_taught {
            return number;
        }
        self.numbers.get(&Shape { named: None, ..entry.shape }).copied().unwrap_or(number)
    }

    pub(super) fn get(&self, number: u32) -> &Shape {
        &self.shapes[number as usize].shape
    }

    /// The name that frees taught for this shape.
    pub(super) fn learned(&self, number: u32) -> Option<Symbol> {
        self.learned[self.shapes[number as usize].origin as usize].name
    }

    /// Whether the name of this shape, if it has one, comes from frees.
    pub(super) fn is_taught(&self, number: u32) -> bool {
        let entry = &self.shapes[number as usize];
        entry.shape.named.is_none() || entry.own_name_taught
    }

    /// Origins that serve more than one cache.
    pub(super) fn ambiguous(&self) -> u64 {
        self.learned.iter().filter(|l| l.several).count() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.shapes.len()
    }
}
