//! A model of SLUB's policy in Linux 6.1 to 6.17: where an object comes from, where it goes, and when a slab is made or given
//! back.
//!
//! It is a model. There is no memory behind it and no lock in it, and pages are only counted. What it shares with the shipping
//! allocator is the rule for the order of a slab ([`Geometry`]), which is Linux's. It is judged by the tables of real kernels.
//!
//! ```text
//!   CPU 0                    CPU 1                     each CPU
//!   current slab ─ its free objects, the CPU's own     takes from here, and frees to here if the object is of that slab
//!   partial slabs: 3 2 1     partial slabs             at most `cpu_partial_slabs`; the newest serves next
//!        │  ▲                                          too many: all of them go
//!        ▼  │
//!   the node's partial slabs: a b c d ...              served from the front, filled at the back
//!   full slabs: on no list
//! ```
//!
//! - **Allocate**: from the current slab; then what others have freed to that slab; then the newest partial slab of the CPU;
//!   then slabs of the node, the first as current, more for the CPU's list until that holds half of what it may; then a new
//!   slab.
//! - **Free**: to the current slab, if it is of that. Else to the object's slab. One that was full goes to this CPU's partial
//!   slabs. If these are too many already, they all go to the node first, and of those the empty ones to the system, as far
//!   as the node has [`min_partial`](Settings::min_partial) slabs without them. A slab of the node that falls empty goes by
//!   the same rule.
//! - **Shrink**: each CPU gives up all that it has. Empty slabs go to the system, and the node's list is sorted, fullest first.
//!
//! An object that a CPU holds back counts as active in `/proc/slabinfo`: only what is free on the node's list does not.
//!
//! Source: Linux, `mm/slub.c` of 6.1 as described in the kernel's documentation and the notes of its authors; the rules above
//! are what the model has of it.

use crate::design::{At, CacheCounts, Design, NoMemory, Unable};
use crate::stream::{CacheInfo, Kind};
use uslab::{Geometry, OrderRule};

/// What a kernel's boot parameters and `sysfs` files can change.
#[derive(Clone, Debug)]
pub struct Settings {
    /// CPUs that are present.
    pub cpus: u32,
    /// What decides the order of slabs.
    pub rule: OrderRule,
    /// Objects that a CPU's partial slabs are to have room for; `None` is by the size of the object.
    pub cpu_partial: Option<u32>,
    /// Slabs that stay on the node's list though they are empty; `None` is by the size of the object.
    pub min_partial: Option<usize>,
}

impl Settings {
    /// Those of a kernel that was told nothing.
    pub fn new(cpus: u32) -> Self {
        Self { cpus, rule: OrderRule::for_cpus(cpus), cpu_partial: None, min_partial: None }
    }
    fn cpu_partial(&self, size: usize) -> u32 {
        self.cpu_partial.unwrap_or(match size {
            4096.. => 6,
            1024.. => 24,
            256.. => 52,
            _ => 120,
        })
    }
}

/// The model.
#[derive(Debug)]
pub struct Slub {
    settings: Settings,
    /// By number in the stream; `None` is large kmalloc.
    caches: Vec<Option<Cache>>,
    /// Objects of large kmalloc.
    large: u64,
    /// Pages of blocks.
    pages: u64,
    /// The page that the next slab or block begins at. Pages are never used again: they tell slabs apart.
    next_page: u32,
}

/// An object of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// Of a slab.
    Slab {
        /// The slab's number in its cache.
        slab: u32,
        /// Which of its objects it is.
        index: u16,
    },
    /// Of large kmalloc.
    Large,
}

/// A block of pages of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    page: u32,
    order: u8,
}

impl Slub {
    /// A machine without caches.
    pub fn new(settings: Settings) -> Self {
        Self { settings, caches: Vec::new(), large: 0, pages: 0, next_page: 0 }
    }
}

fn take_pages(next: &mut u32, order: u8) -> u32 {
    let page = *next;
    *next = page.wrapping_add(1 << order);
    page
}

impl Design for Slub {
    type Object = Object;
    type Block = Block;

    fn learn(&mut self, info: &CacheInfo) -> Result<(), Unable> {
        self.caches.push(match info.kind {
            Kind::Large => None,
            _ => Some(Cache::new(info, &self.settings)?),
        });
        Ok(())
    }

    fn alloc(&mut self, at: At, cache: u32, _: u64) -> Result<Object, NoMemory> {
        let Some(cache) = &mut self.caches[cache as usize] else {
            self.large += 1;
            return Ok(Object::Large);
        };
        Ok(cache.alloc(at.cpu as usize, |order| take_pages(&mut self.next_page, order)))
    }
    fn free(&mut self, at: At, cache: u32, object: Object) {
        match (&mut self.caches[cache as usize], object) {
            (Some(cache), Object::Slab { slab, index }) => cache.free(at.cpu as usize, slab, index),
            _ => self.large -= 1,
        }
    }
    fn place(&self, cache: u32, object: &Object) -> Option<(u32, u16)> {
        match (self.caches.get(cache as usize)?, object) {
            (Some(cache), Object::Slab { slab, index }) => Some((cache.slabs[*slab as usize].page, *index)),
            _ => None,
        }
    }

    fn alloc_pages(&mut self, _: At, order: u8, _: u8) -> Result<Block, NoMemory> {
        self.pages += 1 << order;
        Ok(Block { page: take_pages(&mut self.next_page, order), order })
    }
    fn free_pages(&mut self, _: At, block: Block) {
        self.pages -= 1 << block.order;
    }
    fn split_pages(&mut self, block: Block, order: u8) -> Vec<Block> {
        (0..1 << (block.order - order)).map(|i| Block { page: block.page + (i << order), order }).collect()
    }
    fn block(&self, block: &Block) -> (u32, u8) {
        (block.page, block.order)
    }

    fn shrink(&mut self, _: At) -> (u64, u64) {
        (0, self.caches.iter_mut().flatten().map(Cache::shrink).sum())
    }

    fn counts(&self, cache: u32) -> CacheCounts {
        self.caches
            .get(cache as usize)
            .and_then(Option::as_ref)
            .map_or_else(CacheCounts::default, Cache::counts)
    }
    fn check(&self, objects: u64, pages: u64) -> Result<(), String> {
        let mut used = self.large;
        for cache in self.caches.iter().flatten() {
            used += cache.check()?;
        }
        for (what, found, expected) in [("objects in use", used, objects), ("pages", self.pages, pages)] {
            if found != expected {
                return Err(format!("{what}: {found}, not {expected}"));
            }
        }
        Ok(())
    }
}

/// No slab.
const NONE: u32 = u32::MAX;

/// Where a slab is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A CPU's current slab.
    Current,
    /// On a CPU's list.
    CpuPartial,
    /// On the node's list.
    Node,
    /// On no list: all of its objects are out.
    Full,
    /// Given back; its number is free.
    Gone,
}

#[derive(Clone, Debug)]
struct Slab {
    page: u32,
    place: Place,
    /// Free objects that any CPU may have.
    free: u16,
    /// Free objects that the CPU has whose current slab it is.
    cpu_free: u16,
    /// A bit for each object that is out.
    out: Box<[u64]>,
    /// Neighbours on the node's list.
    next: u32,
    previous: u32,
}

impl Slab {
    /// Its first object that is not out leaves.
    fn take(&mut self) -> u16 {
        let (word, bits) = self
            .out
            .iter_mut()
            .enumerate()
            .find(|(_, bits)| **bits != u64::MAX)
            .unwrap_or_else(|| unreachable!("a slab with a free object has a clear bit"));
        let bit = bits.trailing_ones();
        *bits |= 1 << bit;
        (word * 64) as u16 + bit as u16
    }
    fn put(&mut self, index: u16) {
        self.out[usize::from(index) / 64] &= !(1 << (index % 64));
    }
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    current: Option<u32>,
    /// The newest last.
    partial: Vec<u32>,
}

/// A cache: see the [module](self).
#[derive(Debug)]
struct Cache {
    name: String,
    geometry: Geometry,
    objects: u16,
    /// Slabs that a CPU's list may have; 0: there are no such lists.
    cpu_partial_slabs: usize,
    min_partial: usize,
    cpus: Vec<Cpu>,
    slabs: Vec<Slab>,
    /// Numbers of slabs that are gone.
    gone: Vec<u32>,
    /// The node's list: its first and last slab, and how many.
    first: u32,
    last: u32,
    listed: usize,
}

impl Cache {
    fn new(info: &CacheInfo, settings: &Settings) -> Result<Self, Unable> {
        // A name that only hidden events have may come without a size: the smallest there is.
        let size = info.size.max(8) as usize;
        let geometry = Geometry::new(size, 0, &settings.rule)
            .map_err(|error| Unable(format!("cache {}: {error}", info.name)))?;
        let objects = geometry.objects() as u16;
        // Half of the objects of a partial slab are free, as a rule.
        let slabs = (settings.cpu_partial(geometry.stride()) * 2).div_ceil(objects.into());
        Ok(Self {
            name: info.name.clone(),
            objects,
            cpu_partial_slabs: slabs as usize,
            min_partial: settings.min_partial.unwrap_or_else(|| geometry.min_partial()),
            geometry,
            cpus: vec![Cpu::default(); settings.cpus as usize],
            slabs: Vec::new(),
            gone: Vec::new(),
            first: NONE,
            last: NONE,
            listed: 0,
        })
    }
    fn slab(&mut self, slab: u32) -> &mut Slab {
        &mut self.slabs[slab as usize]
    }

    fn is_empty(&self, slab: u32) -> bool {
        let slab = &self.slabs[slab as usize];
        slab.free + slab.cpu_free == self.objects
    }

    // ---- the node's list ----

    /// On the list, in front of the first slab or behind the last.
    fn list(&mut self, slab: u32, in_front: bool) {
        let (first, last) = (self.first, self.last);
        let own = self.slab(slab);
        own.place = Place::Node;
        (own.previous, own.next) = if in_front { (NONE, first) } else { (last, NONE) };
        match own.previous {
            NONE => self.first = slab,
            previous => self.slab(previous).next = slab,
        }
        match self.slab(slab).next {
            NONE => self.last = slab,
            next => self.slab(next).previous = slab,
        }
        self.listed += 1;
    }
    /// Off the list.
    fn unlist(&mut self, slab: u32, place: Place) {
        let own = self.slab(slab);
        own.place = place;
        let (previous, next) = (own.previous, own.next);
        match previous {
            NONE => self.first = next,
            previous => self.slab(previous).next = next,
        }
        match next {
            NONE => self.last = previous,
            next => self.slab(next).previous = previous,
        }
        self.listed -= 1;
    }
    /// The slab is given back.
    fn discard(&mut self, slab: u32) {
        self.slab(slab).place = Place::Gone;
        self.gone.push(slab);
    }
    /// A slab that no CPU has any more: to the node, or to the system.
    fn leave(&mut self, slab: u32, in_front: bool) -> u64 {
        if self.is_empty(slab) && self.listed >= self.min_partial {
            self.discard(slab);
            return 1;
        }
        self.list(slab, in_front);
        0
    }

    // ---- a CPU ----

    fn alloc(&mut self, cpu: usize, pages: impl FnOnce(u8) -> u32) -> Object {
        let slab = self.current(cpu, pages);
        let own = self.slab(slab);
        own.cpu_free -= 1;
        Object::Slab { slab, index: own.take() }
    }
    /// The CPU's current slab, which has a free object.
    fn current(&mut self, cpu: usize, pages: impl FnOnce(u8) -> u32) -> u32 {
        if let Some(slab) = self.cpus[cpu].current {
            let own = self.slab(slab);
            if own.cpu_free > 0 {
                return slab;
            }
            if own.free > 0 {
                own.cpu_free = core::mem::take(&mut own.free);
                return slab;
            }
            own.place = Place::Full;
        }
        let slab = self.cpus[cpu]
            .partial
            .pop()
            .or_else(|| self.take_from_node(cpu))
            .unwrap_or_else(|| self.make(pages));
        let own = self.slab(slab);
        own.place = Place::Current;
        own.cpu_free += core::mem::take(&mut own.free);
        self.cpus[cpu].current = Some(slab);
        slab
    }
    /// The node's first slab, and more for the CPU's list.
    fn take_from_node(&mut self, cpu: usize) -> Option<u32> {
        let first = (self.listed > 0).then_some(self.first)?;
        self.unlist(first, Place::Current);
        if self.cpu_partial_slabs > 0 {
            let mut more = 0;
            while self.listed > 0 && more <= self.cpu_partial_slabs / 2 {
                let slab = self.first;
                self.unlist(slab, Place::CpuPartial);
                self.cpus[cpu].partial.push(slab);
                more += 1;
            }
        }
        Some(first)
    }
    fn make(&mut self, pages: impl FnOnce(u8) -> u32) -> u32 {
        let slab = Slab {
            page: pages(self.geometry.order().get()),
            place: Place::Current,
            free: self.objects,
            cpu_free: 0,
            out: empty(self.objects),
            next: NONE,
            previous: NONE,
        };
        match self.gone.pop() {
            Some(number) => {
                *self.slab(number) = slab;
                number
            }
            None => {
                self.slabs.push(slab);
                self.slabs.len() as u32 - 1
            }
        }
    }

    fn free(&mut self, cpu: usize, slab: u32, index: u16) {
        let mine = self.cpus[cpu].current == Some(slab);
        let own = self.slab(slab);
        own.put(index);
        if mine {
            own.cpu_free += 1;
            return;
        }
        own.free += 1;
        let (place, empty) = (own.place, self.is_empty(slab));
        match place {
            Place::Full if self.cpu_partial_slabs > 0 => self.keep(cpu, slab),
            Place::Full => _ = self.leave(slab, false),
            Place::Node if empty && self.listed >= self.min_partial => {
                self.unlist(slab, Place::Gone);
                self.discard(slab);
            }
            _ => {}
        }
    }
    /// A slab that was full, to the CPU's list.
    fn keep(&mut self, cpu: usize, slab: u32) {
        self.slab(slab).place = Place::CpuPartial;
        let partial = &mut self.cpus[cpu].partial;
        let older =
            if partial.len() >= self.cpu_partial_slabs { core::mem::take(partial) } else { Vec::new() };
        partial.push(slab);
        self.leave_all(older);
    }
    fn leave_all(&mut self, slabs: Vec<u32>) -> u64 {
        slabs.into_iter().rev().map(|slab| self.leave(slab, false)).sum()
    }

    fn shrink(&mut self) -> u64 {
        let mut gone = 0;
        for cpu in 0..self.cpus.len() {
            if let Some(slab) = self.cpus[cpu].current.take() {
                let own = self.slab(slab);
                let (others, mine) = (own.free, core::mem::take(&mut own.cpu_free));
                own.free += mine;
                if own.free == 0 {
                    own.place = Place::Full;
                } else {
                    gone += self.leave(slab, others == 0);
                }
            }
            let partial = core::mem::take(&mut self.cpus[cpu].partial);
            gone += self.leave_all(partial);
        }
        let mut listed = Vec::with_capacity(self.listed);
        while self.listed > 0 {
            let slab = self.first;
            self.unlist(slab, Place::Gone);
            listed.push(slab);
        }
        let (empty, mut rest): (Vec<_>, Vec<_>) = listed.into_iter().partition(|slab| self.is_empty(*slab));
        gone += empty.len() as u64;
        empty.into_iter().for_each(|slab| self.discard(slab));
        // Up to so many free objects: beyond it is not worth the sorting.
        const SORTED: u16 = 32;
        rest.sort_by_key(|slab| self.slabs[*slab as usize].free.min(SORTED + 1));
        rest.into_iter().for_each(|slab| self.list(slab, false));
        gone
    }

    // ---- numbers ----

    fn live(&self) -> impl Iterator<Item = &Slab> {
        self.slabs.iter().filter(|slab| slab.place != Place::Gone)
    }
    fn counts(&self) -> CacheCounts {
        let (mut used, mut inactive) = (0, 0);
        for slab in self.live() {
            used += u64::from(self.objects - slab.free - slab.cpu_free);
            inactive += if slab.place == Place::Node { u64::from(slab.free) } else { 0 };
        }
        let slabs = (self.slabs.len() - self.gone.len()) as u64;
        let objects_per_slab = self.objects.into();
        CacheCounts { slabs, objects_per_slab, used, active_objs: slabs * objects_per_slab - inactive }
    }
    /// Each object is in one place, and each slab where it says: objects in use.
    fn check(&self) -> Result<u64, String> {
        let wrong = |what: &str, found: usize, expected: usize| {
            if found == expected {
                Ok(())
            } else {
                Err(format!("cache {}: {what}: {found}, not {expected}", self.name))
            }
        };
        let mut used = 0;
        let mut places = [0; 4];
        for slab in self.live() {
            let out =
                slab.out.iter().map(|bits| bits.count_ones()).sum::<u32>() as usize - padding(self.objects);
            wrong("objects of a slab", out + usize::from(slab.free + slab.cpu_free), self.objects.into())?;
            if slab.place != Place::Current {
                wrong(
                    "objects that a CPU has of a slab that is not its current one",
                    slab.cpu_free.into(),
                    0,
                )?;
            }
            if slab.place == Place::Full {
                wrong("free objects of a full slab", slab.free.into(), 0)?;
            }
            used += out as u64;
            places[slab.place as usize] += 1;
        }
        let current = self.cpus.iter().filter(|cpu| cpu.current.is_some()).count();
        wrong("current slabs", places[Place::Current as usize], current)?;
        let partial = self.cpus.iter().map(|cpu| cpu.partial.len()).sum();
        wrong("slabs of the CPUs' lists", places[Place::CpuPartial as usize], partial)?;
        let mut listed = 0;
        let mut next = self.first;
        while next != NONE {
            listed += 1;
            next = self.slabs[next as usize].next;
        }
        wrong("slabs of the node's list", places[Place::Node as usize], listed)?;
        wrong("the length of the node's list", self.listed, listed)?;
        Ok(used)
    }
}

/// Bits behind a slab's last object: set for good, so that nobody takes them.
fn padding(objects: u16) -> usize {
    usize::from(objects).next_multiple_of(64) - usize::from(objects)
}
fn empty(objects: u16) -> Box<[u64]> {
    let mut bits = vec![0; usize::from(objects).div_ceil(64)];
    if let Some(last) = bits.last_mut()
        && !objects.is_multiple_of(64)
    {
        *last = u64::MAX << (objects % 64);
    }
    bits.into_boxed_slice()
}

#[cfg(test)]
mod tests;
