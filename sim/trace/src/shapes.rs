//! The shapes of allocations; a shape is a call site with a size and flags. A trace has only a few thousand shapes, so
//! the cache is looked up once per shape instead of once per allocation.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHashMap;

use super::event::EventSource;
use super::symbols::Symbol;

/// All fields of an allocation event, except the pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) site: Symbol,
    pub(super) bytes_req: u32,
    pub(super) bytes_alloc: u32,
    pub(super) gfp: Symbol,
    pub(super) via: EventSource,
    /// The cache that the event or the object's free named, if this cache differs from the cache of the shape's other
    /// objects.
    pub(super) named: Option<Symbol>,
}

impl Hash for Shape {
    /// Hashes three words instead of six separate fields, because the hash is computed for every allocation.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { site, bytes_req, bytes_alloc, gfp, via, named } = *self;
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        pair(site.0, gfp.0).hash(state);
        pair(bytes_req, bytes_alloc).hash(state);
        pair(named.map_or(0, |name| name.0 + 1), via as u32).hash(state);
    }
}

/// The origin of an allocation: its call site and its sizes. Allocations with equal origins are assumed to be
/// from one cache.
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
    learned: Vec<LearnedCacheNames>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    shape: Shape,
    /// The number of the shape's origin.
    origin: u32,
    /// `true` if a free, and not the event, gave the shape its separate name.
    own_name_taught: bool,
}

/// The cache names that frees have shown for one origin.
#[derive(Debug, Default, Clone, Copy)]
struct LearnedCacheNames {
    /// The first name that a free has shown.
    name: Option<Symbol>,
    /// `true` if a free has shown a second name.
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
            learned.push(LearnedCacheNames::default());
            learned.len() as u32 - 1
        });
        let number = self.shapes.len() as u32;
        self.shapes.push(Entry { shape, origin, own_name_taught: false });
        self.numbers.insert(shape, number);
        number
    }

    /// Records that a free named the cache of an allocation with this shape. If the named cache differs from the cache
    /// of the shape's other allocations, returns a new shape for this allocation.
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

    /// Drops the names that frees have shown. If a free has changed an allocation's shape, the allocation must
    /// afterwards return to its [`printed_shape`](Self::printed_shape).
    pub(super) fn forget(&mut self) {
        self.learned.fill(LearnedCacheNames::default());
    }

    /// Returns the shape of an allocation's event, ignoring what the object's free has shown.
    pub(super) fn printed_shape(&self, number: u32) -> u32 {
        let entry = &self.shapes[number as usize];
        if !entry.own_name_taught {
            return number;
        }
        self.numbers.get(&Shape { named: None, ..entry.shape }).copied().unwrap_or(number)
    }

    pub(super) fn get(&self, number: u32) -> &Shape {
        &self.shapes[number as usize].shape
    }

    /// Returns the name that frees have shown for a shape.
    pub(super) fn learned(&self, number: u32) -> Option<Symbol> {
        self.learned[self.shapes[number as usize].origin as usize].name
    }

    /// Returns `true` if a name of the shape came from frees.
    pub(super) fn is_name_learned(&self, number: u32) -> bool {
        let entry = &self.shapes[number as usize];
        entry.shape.named.is_none() || entry.own_name_taught
    }

    /// Returns the number of origins that allocate from more than one cache.
    pub(super) fn ambiguous_origin_count(&self) -> u64 {
        self.learned.iter().filter(|l| l.several).count() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.shapes.len()
    }
}
