//! The slabs of a cache in a model: the state of each object, and the list of each slab.

use crate::design::NoMemory;
use crate::pages::PageSource;
use core::cell::Cell;
use uslab::Geometry;
use uslab_buddy::{Order, PAGE_SIZE};

/// An object in a slab of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// The first page of the object's slab.
    pub page: u32,
    /// The number of the object's slab in the cache.
    pub slab: u32,
    /// The object's index in the slab.
    pub index: u16,
}

/// The slabs of a cache, in lists. A slab is on exactly one list, identified by its index in the policy's
/// [`LISTS`](crate::Policy::LISTS).
///
/// Every function takes constant time, except a walk or a count over all slabs.
#[derive(Debug)]
pub struct Slabs {
    geometry: Geometry,
    objects: u16,
    /// The order of a slab that is created when no block of the preferred order is free. If `None`, creating a slab
    /// fails if no block of the preferred order is free.
    fallback: Option<Order>,
    slabs: Vec<Slab>,
    /// The numbers of freed slabs, which new slabs reuse.
    freed_numbers: Vec<u32>,
    lists: Box<[List]>,
    /// The number of allocated objects.
    used: u64,
    made_slabs: u64,
    /// The pages whose frames the current operation has accessed.
    touched: Vec<u32>,
    /// The number of times that a slab was inspected or moved.
    inspections: Cell<u64>,
}

#[derive(Debug)]
struct Slab {
    page: u32,
    /// The number of slabs that the cache had created before this slab.
    born: u64,
    list: u8,
    order: u8,
    objects: u16,
    free: u16,
    /// A bit for each object that has left the slab.
    outside: Box<[u64]>,
    /// A bit for each allocated object.
    used: Box<[u64]>,
    next: u32,
    previous: u32,
}

#[derive(Clone, Debug)]
struct List {
    first: u32,
    last: u32,
    len: usize,
    /// The number of free objects in the list's slabs.
    free: u64,
}

/// A value that is never the number of a slab.
const NONE: u32 = u32::MAX;
/// The list index that marks a freed slab.
const FREED_LIST: u8 = u8::MAX;

impl core::fmt::Display for Object {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "object {} of the slab at page {}", self.index, self.page)
    }
}

/// One of the two ends of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The front of the list, where its first slab is.
    Front,
    /// The back of the list, where its last slab is.
    Back,
}

impl Slabs {
    pub(crate) fn new(geometry: Geometry, lists: usize, falls_back: bool) -> Self {
        let min_order = Order::for_bytes(geometry.stride());
        let list = List { first: NONE, last: NONE, len: 0, free: 0 };
        let objects = geometry.objects() as u16;
        Self {
            geometry,
            objects,
            fallback: min_order.filter(|min_order| falls_back && *min_order < geometry.order()),
            slabs: vec![],
            freed_numbers: vec![],
            lists: vec![list; lists].into(),
            used: 0,
            made_slabs: 0,
            touched: vec![],
            inspections: Cell::new(0),
        }
    }

    /// Returns the geometry of a slab.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    /// Returns the number of objects in a slab of the preferred order; smaller slabs have fewer.
    pub fn objects(&self) -> u16 {
        self.objects
    }
    /// Returns the number of objects, free and in use, in the slab `slab`.
    pub fn objects_of(&self, slab: u32) -> u16 {
        self.slabs[slab as usize].objects
    }
    /// Returns the number of pages in all slabs. A call counts as one inspection of each slab.
    pub(crate) fn pages(&self) -> u64 {
        self.slabs.iter().filter(|slab| slab.list != FREED_LIST).map(|slab| 1_u64 << slab.order).sum()
    }
    /// Returns the number of slabs.
    pub fn count(&self) -> u64 {
        (self.slabs.len() - self.freed_numbers.len()) as u64
    }
    /// Returns the number of slabs that were ever created.
    pub fn created(&self) -> u64 {
        self.made_slabs
    }
    /// Returns the number of allocated objects.
    pub fn used(&self) -> u64 {
        self.used
    }
    /// Returns the number of slabs that the cache had created before the given slab.
    pub fn born(&self, slab: u32) -> u64 {
        self.slabs[slab as usize].born
    }
    /// Returns the first page of a slab.
    pub fn page(&self, slab: u32) -> u32 {
        self.slabs[slab as usize].page
    }
    /// Returns `true` if an object has left its slab.
    pub fn is_allocated(&self, slab: u32, index: u16) -> bool {
        self.slabs[slab as usize].outside[usize::from(index) / 64] >> (index % 64) & 1 == 1
    }
    /// Returns the number of free objects in a slab. A call counts as an inspection of the slab.
    pub fn free(&self, slab: u32) -> u16 {
        self.look();
        self.slabs[slab as usize].free
    }
    /// Returns the number of free objects in a slab; unlike other queries, a call does not count as an inspection.
    pub(crate) fn free_without_inspection(&self, slab: u32) -> u16 {
        self.slabs[slab as usize].free
    }
    /// Returns `true` if all objects of a slab are free. A call counts as an inspection of the slab.
    pub fn is_empty(&self, slab: u32) -> bool {
        self.free(slab) == self.objects_of(slab)
    }
    /// Returns the list that a slab is on.
    pub fn list(&self, slab: u32) -> u8 {
        self.slabs[slab as usize].list
    }
    /// Returns the number of slabs on a list.
    pub fn len(&self, list: u8) -> usize {
        self.lists[usize::from(list)].len
    }
    /// Returns the number of free objects in the slabs of a list.
    pub fn free_objects_on_list(&self, list: u8) -> u64 {
        self.lists[usize::from(list)].free
    }
    /// Returns how many slabs are full, how many are partial, and how many are empty. A call counts as one inspection
    /// of each slab.
    pub fn slabs_by_fullness(&self) -> [u64; 3] {
        let live = self.slabs.iter().filter(|slab| slab.list != FREED_LIST);
        live.fold([0; 3], |mut counts, slab| {
            let kind = if slab.free == 0 { 0 } else { 1 + usize::from(slab.free == slab.objects) };
            counts[kind] += 1;
            counts
        })
    }
    /// Returns the number of free objects in all slabs.
    pub fn free_objects_in_all_slabs(&self) -> u64 {
        self.lists.iter().map(|list| list.free).sum()
    }
    /// Returns the number of moves and inspections of slabs; an inspection reads a slab's number of free objects, or
    /// visits the slab during an [iteration](Self::walk).
    pub fn inspections(&self) -> u64 {
        self.inspections.get()
    }
    fn look(&self) {
        self.inspections.set(self.inspections.get() + 1);
    }
    /// Returns the first slab of a list.
    pub fn first(&self, list: u8) -> Option<u32> {
        Some(self.lists[usize::from(list)].first).filter(|slab| *slab != NONE)
    }
    /// Returns the last slab of a list.
    pub fn last(&self, list: u8) -> Option<u32> {
        Some(self.lists[usize::from(list)].last).filter(|slab| *slab != NONE)
    }
    /// Iterates over the slabs of a list, from the first to the last. Each visited slab counts as one inspection.
    pub fn walk(&self, list: u8) -> impl Iterator<Item = u32> {
        self.linked(list).inspect(|_| self.look())
    }
    fn linked(&self, list: u8) -> impl Iterator<Item = u32> {
        core::iter::successors(self.first(list), |slab| {
            Some(self.slabs[*slab as usize].next).filter(|slab| *slab != NONE)
        })
    }

    /// Moves a slab to an end of a list; the list may already contain the slab.
    pub fn relist(&mut self, slab: u32, list: u8, end: End) {
        self.look();
        self.unlink(slab);
        self.link(slab, list, end);
    }
    fn slab(&mut self, slab: u32) -> &mut Slab {
        &mut self.slabs[slab as usize]
    }
    fn link(&mut self, slab: u32, list: u8, end: End) {
        let slab_entry = &mut self.slabs[slab as usize];
        let list_entry = &mut self.lists[usize::from(list)];
        slab_entry.list = list;
        (slab_entry.previous, slab_entry.next) = match end {
            End::Front => (NONE, core::mem::replace(&mut list_entry.first, slab)),
            End::Back => (core::mem::replace(&mut list_entry.last, slab), NONE),
        };
        list_entry.len += 1;
        list_entry.free += u64::from(slab_entry.free);
        let adjacent = slab_entry.previous.min(slab_entry.next);
        match (adjacent, end) {
            (NONE, _) => (list_entry.first, list_entry.last) = (slab, slab),
            (_, End::Front) => self.slab(adjacent).previous = slab,
            (_, End::Back) => self.slab(adjacent).next = slab,
        }
        self.touch(self.page(slab));
        if adjacent != NONE {
            self.touch(self.page(adjacent));
        }
    }
    fn unlink(&mut self, slab: u32) {
        let Slab { list, free, next, previous, .. } = self.slabs[slab as usize];
        match previous {
            NONE => self.lists[usize::from(list)].first = next,
            previous => self.slab(previous).next = next,
        }
        match next {
            NONE => self.lists[usize::from(list)].last = previous,
            next => self.slab(next).previous = previous,
        }
        let old_list = &mut self.lists[usize::from(list)];
        old_list.len -= 1;
        old_list.free -= u64::from(free);
        for neighbour in [previous, next] {
            if neighbour != NONE {
                self.touch(self.page(neighbour));
            }
        }
    }

    /// Creates a slab of free objects at the front of a list.
    pub(crate) fn make(&mut self, pages: &mut dyn PageSource, cpu: u32, list: u8) -> Result<u32, NoMemory> {
        let mut order = self.geometry.order();
        let mut page = pages.alloc(cpu, order.get());
        if let (Err(NoMemory), Some(fallback)) = (page, self.fallback) {
            order = fallback;
            page = pages.alloc(cpu, order.get());
        }
        let page = page?;
        let objects = match order == self.geometry.order() {
            true => self.objects,
            false => (order.bytes() / self.geometry.stride()) as u16,
        };
        let words = usize::from(self.objects).div_ceil(64);
        let bits = || vec![0; words].into_boxed_slice();
        let slab = Slab {
            page,
            born: self.made_slabs,
            list,
            order: order.get(),
            objects,
            free: objects,
            outside: bits(),
            used: bits(),
            next: NONE,
            previous: NONE,
        };
        let number = match self.freed_numbers.pop() {
            Some(number) => {
                *self.slab(number) = slab;
                number
            }
            None => {
                self.slabs.push(slab);
                self.slabs.len() as u32 - 1
            }
        };
        self.made_slabs += 1;
        self.link(number, list, End::Front);
        (page..page + order.pages()).for_each(|page| self.touch(page));
        Ok(number)
    }
    /// Frees an empty slab.
    ///
    /// # Panics
    /// Panics if objects have left the slab.
    pub(crate) fn release(&mut self, pages: &mut dyn PageSource, cpu: u32, slab: u32) {
        assert!(self.is_empty(slab), "a slab with allocated objects cannot be freed");
        self.unlink(slab);
        self.slab(slab).list = FREED_LIST;
        pages.free(cpu, self.slab(slab).page);
        self.freed_numbers.push(slab);
    }

    /// Takes the first free object out of a slab, or returns `None` if the slab is full.
    pub fn take(&mut self, slab: u32) -> Option<Object> {
        let slab_entry = self.slab(slab);
        let objects = slab_entry.objects;
        if slab_entry.free == 0 {
            return None;
        }
        let (word, bits) = slab_entry.outside.iter_mut().enumerate().find(|(_, bits)| **bits != u64::MAX)?;
        let index = (word * 64) as u16 + bits.trailing_ones() as u16;
        debug_assert!(index < objects);
        *bits |= 1 << (index % 64);
        slab_entry.free -= 1;
        let (page, list) = (slab_entry.page, slab_entry.list);
        self.lists[usize::from(list)].free -= 1;
        self.touch(page);
        Some(Object { page, slab, index })
    }
    /// Returns an object to its slab.
    ///
    /// # Panics
    /// Panics if the object is already in its slab, or is allocated.
    pub fn put(&mut self, object: Object) {
        let (word, bit) = (usize::from(object.index) / 64, 1 << (object.index % 64));
        let slab_entry = self.slab(object.slab);
        assert!(
            slab_entry.list != FREED_LIST && slab_entry.outside[word] & bit != 0,
            "{object:?} is not allocated"
        );
        assert!(slab_entry.used[word] & bit == 0, "{object:?} is allocated");
        slab_entry.outside[word] &= !bit;
        slab_entry.free += 1;
        let list = slab_entry.list;
        self.lists[usize::from(list)].free += 1;
        self.touch(object.page);
        self.touch(object.page + (self.geometry.offset(object.index.into()) / PAGE_SIZE) as u32);
    }
    fn touch(&mut self, page: u32) {
        if !self.touched.contains(&page) {
            self.touched.push(page);
        }
    }
    /// Returns the pages whose frame metadata was accessed since the operation began. The frames belong to slabs that
    /// gained or lost objects, to slabs that moved on a list and their list neighbours, to a created slab, and to the
    /// pages of freed objects.
    pub(crate) fn touched_pages(&self) -> &[u32] {
        &self.touched
    }
    pub(crate) fn begin(&mut self) {
        self.touched.clear();
    }

    /// Marks an object as allocated.
    pub(crate) fn hand_out(&mut self, object: Object) -> Result<(), String> {
        let (word, bit) = (usize::from(object.index) / 64, 1 << (object.index % 64));
        let slab_entry = self.slab(object.slab);
        if slab_entry.list == FREED_LIST || slab_entry.outside[word] & bit == 0 {
            return Err(format!("{object} is both allocated and free"));
        }
        if slab_entry.used[word] & bit != 0 {
            return Err(format!("{object} is allocated twice"));
        }
        slab_entry.used[word] |= bit;
        self.used += 1;
        Ok(())
    }
    /// Marks an object as free.
    pub(crate) fn free_remote(&mut self, object: Object) {
        let (word, bit) = (usize::from(object.index) / 64, 1 << (object.index % 64));
        self.slab(object.slab).used[word] &= !bit;
        self.used -= 1;
    }

    /// Checks that each object has exactly one owner, and that each slab is on exactly one list. The argument `held`
    /// contains the objects in layers above the slabs.
    pub(crate) fn check(&self, held: impl IntoIterator<Item = Object>) -> Result<(), String> {
        let error = |quantity: &str, value: u64, expected: u64| {
            if value == expected { Ok(()) } else { Err(format!("{quantity}: {value}; expected {expected}")) }
        };
        // Collects, by slab, the objects that are neither in their slab nor allocated: a layer must hold each.
        let mut outside_bits: Vec<Vec<u64>> = Vec::with_capacity(self.slabs.len());
        let mut used = 0;
        for slab in &self.slabs {
            let count = |bits: &[u64]| bits.iter().map(|bits| u64::from(bits.count_ones())).sum::<u64>();
            if slab.list == FREED_LIST {
                outside_bits.push(vec![]);
                continue;
            }
            error("objects of a slab", count(&slab.outside) + u64::from(slab.free), slab.objects.into())?;
            if slab.outside.iter().zip(&slab.used).any(|(outside_word, used)| used & !outside_word != 0) {
                return Err("an allocated object is also free in its slab".to_owned());
            }
            used += count(&slab.used);
            outside_bits.push(
                slab.outside
                    .iter()
                    .zip(&slab.used)
                    .map(|(outside_word, used)| outside_word & !used)
                    .collect(),
            );
        }
        error("objects in use", used, self.used)?;
        for object in held {
            let (word, bit) = (usize::from(object.index) / 64, 1 << (object.index % 64));
            match outside_bits.get_mut(object.slab as usize).and_then(|bits| bits.get_mut(word)) {
                Some(bits) if *bits & bit != 0 => *bits &= !bit,
                _ => {
                    return Err(format!(
                        "{object} is cached by a CPU, but is also in its slab, allocated or cached twice"
                    ));
                }
            }
        }
        let lost_objects: u64 = outside_bits.iter().flatten().map(|bits| u64::from(bits.count_ones())).sum();
        error("objects that are neither in a slab, in use nor cached", lost_objects, 0)?;
        let mut listed_objects = 0;
        for (number, list) in self.lists.iter().enumerate() {
            let (mut len, mut free) = (0, 0);
            for slab in self.linked(number as u8) {
                let slab_entry = &self.slabs[slab as usize];
                error("number of the list that a slab names", slab_entry.list.into(), number as u64)?;
                len += 1;
                free += u64::from(slab_entry.free);
            }
            error("number of slabs in a list", len, list.len as u64)?;
            error("number of free objects in a list's slabs", free, list.free)?;
            listed_objects += len;
        }
        error("number of slabs in all lists", listed_objects, self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uslab::OrderRule;

    /// A source of pages that has no blocks above a given order.
    struct LimitedOrderSource {
        max_order: u8,
        next: u32,
    }

    impl PageSource for LimitedOrderSource {
        fn alloc(&mut self, _: u32, order: u8) -> Result<u32, NoMemory> {
            self.next += 8;
            if order > self.max_order { Err(NoMemory) } else { Ok(self.next) }
        }
        fn free(&mut self, _: u32, _: u32) {}
    }

    #[test]
    fn slab_falls_back_to_the_smallest_sufficient_order() {
        // Four pages hold 23 objects of 704 bytes, and one page holds five.
        let geometry = || Geometry::new(704, 0, &OrderRule::for_cpus(4)).unwrap();
        assert_eq!((geometry().order().get(), geometry().objects()), (2, 23));
        let mut slabs = Slabs::new(geometry(), 1, true);
        let large_slab = slabs.make(&mut LimitedOrderSource { max_order: 2, next: 0 }, 0, 0).unwrap();
        let small = slabs.make(&mut LimitedOrderSource { max_order: 1, next: 100 }, 0, 0).unwrap();
        assert_eq!([large_slab, small].map(|slab| slabs.objects_of(slab)), [23, 5]);
        assert_eq!((slabs.pages(), slabs.free_objects_in_all_slabs()), (4 + 1, 23 + 5));
        let taken_objects: Vec<_> = std::iter::from_fn(|| slabs.take(small)).collect();
        assert_eq!(
            (taken_objects.len(), slabs.is_empty(small), slabs.slabs_by_fullness()),
            (5, false, [1, 0, 1])
        );
        taken_objects.into_iter().for_each(|object| slabs.put(object));
        assert!(slabs.is_empty(small) && slabs.slabs_by_fullness() == [0, 0, 2]);
        assert_eq!(slabs.check([]), Ok(()));
        let mut other_slabs = Slabs::new(geometry(), 1, false);
        assert_eq!(other_slabs.make(&mut LimitedOrderSource { max_order: 1, next: 0 }, 0, 0), Err(NoMemory));
    }
}
