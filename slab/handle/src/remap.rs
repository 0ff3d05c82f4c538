//! Saves and loads data with handles, which are valid only as long as their table exists.
//!
//! A loaded object may get any free slot and any generation. A handle that was saved as a number is stale after the
//! data is loaded. A saved handle may even be valid and name another object: the first object of every table has index
//! 0 and generation 1. A handle from the network may also be stale, or name another object by chance. A program should
//! save *stable ids* instead of handles, such as a name, a serial number or a UUID. [`StableIds`] translates between
//! ids and handles. To reject old handles that are used by mistake, the new table begins at a
//! [generation](super::Generations) that the old table never reached
//! ([`fresh_generation`](super::HandleTable::fresh_generation)).
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use uslab_handle::{Generations, Handle, HandleError, SlotMap, StableIds};
//!
//! struct Monster { name: String, target: Option<Handle> }
//! #[derive(Serialize, Deserialize)]
//! struct Saved { fresh: u32, monsters: Vec<(String, Option<String>)> } // names, not handles
//!
//! /// `None`: a slot is in its last generation, so handles of this table could be mistaken for handles of a later table.
//! fn save(world: &SlotMap<Monster>, ids: &StableIds<String>) -> Option<Saved> {
//!     // A target that has died has no name any more.
//!     let target = |monster: &Monster| ids.id(monster.target?).cloned();
//!     let monsters = world.as_slice().iter().map(|monster| (monster.name.clone(), target(monster))).collect();
//!     Some(Saved { fresh: world.fresh_generation()?, monsters })
//! }
//! fn load(saved: Saved) -> Result<(SlotMap<Monster>, StableIds<String>), Box<dyn std::error::Error>> {
//!     let mut world = SlotMap::with(Generations { first: saved.fresh, ..Generations::default() });
//!     let mut ids = StableIds::new();
//!     for (name, _) in &saved.monsters {
//!         ids.insert(name.clone(), world.alloc(Monster { name: name.clone(), target: None })?)?;
//!     }
//!     // All objects exist: now they can refer to each other, even in a cycle.
//!     for (name, target) in &saved.monsters {
//!         let target = target.as_ref().and_then(|target| ids.handle(target));
//!         if let Some(monster) = ids.handle(name).and_then(|handle| world.get_mut(handle)) {
//!             monster.target = target;
//!         }
//!     }
//!     Ok((world, ids))
//! }
//!
//! let (mut world, mut ids) = (SlotMap::new(), StableIds::new());
//! let imp = world.alloc(Monster { name: "imp".into(), target: None })?;
//! let baron = world.alloc(Monster { name: "baron".into(), target: Some(imp) })?;
//! ids.insert("imp".to_owned(), imp)?;
//! ids.insert("baron".to_owned(), baron)?;
//!
//! let saved = save(&world, &ids).ok_or("the handles need more generation bits")?;
//! let text = serde_json::to_string(&saved)?;
//! let (loaded, new) = load(serde_json::from_str(&text)?)?;
//! let target = loaded.get(new.handle("baron").unwrap()).unwrap().target.unwrap();
//! assert_eq!(loaded.get(target).unwrap().name, "imp"); // remapped
//! assert!(loaded.get(imp).is_none() && loaded.get(baron).is_none()); // old ones are rejected
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::bits::{Handle, Word};
use core::borrow::Borrow;
use core::fmt;
use core::hash::Hash;
use std::collections::HashMap;

/// A mapping between stable ids and current objects, in both directions.
///
/// Invariant: an id has one handle, and a handle has one id. Handles of freed objects stay until
/// [`remove_handle`](Self::remove_handle) or [`remove_id`](Self::remove_id).
///
/// ```
/// use uslab_handle::{HandleTable, StableIds};
///
/// let (mut world, mut ids) = (HandleTable::<u32>::new(), StableIds::new());
/// let imp = world.alloc(60)?;
/// ids.insert("imp", imp)?;
/// assert_eq!((ids.handle("imp"), ids.id(imp)), (Some(imp), Some(&"imp")));
/// world.free(imp);
/// assert_eq!(ids.remove_handle(imp), Some("imp"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StableIds<Id, W: Word = u64, const GENERATION_BITS: u32 = 32> {
    handles: HashMap<Id, Handle<W, GENERATION_BITS>>,
    ids: HashMap<Handle<W, GENERATION_BITS>, Id>,
}

/// The reason why an id could not be assigned to an object.
///
/// ```
/// use uslab_handle::{HandleTable, StableIds, IdConflict};
///
/// let (mut world, mut ids) = (HandleTable::<u32>::new(), StableIds::new());
/// let (imp, baron) = (world.alloc(60)?, world.alloc(1000)?);
/// ids.insert("imp", imp)?;
/// assert_eq!(ids.insert("imp", baron), Err(IdConflict::Id));
/// assert_eq!(ids.insert("baron", imp), Err(IdConflict::Handle));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdConflict {
    /// The id already belongs to another object.
    Id,
    /// The object already has another id.
    Handle,
}

impl fmt::Display for IdConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Id => "the stable id already belongs to another object",
            Self::Handle => "the object already has another stable id; remove it first",
        })
    }
}
impl core::error::Error for IdConflict {}

impl<Id: Hash + Eq + Clone, W: Word, const GENERATION_BITS: u32> StableIds<Id, W, GENERATION_BITS> {
    /// Makes an empty mapping between ids and handles.
    pub fn new() -> Self {
        Self { handles: HashMap::new(), ids: HashMap::new() }
    }
    /// Assigns `id` to the object of `handle`.
    ///
    /// # Errors
    /// Returns an error and changes nothing if the id or the handle is already assigned.
    pub fn insert(&mut self, id: Id, handle: Handle<W, GENERATION_BITS>) -> Result<(), IdConflict> {
        if self.handles.get(&id).is_some_and(|other| *other != handle) {
            return Err(IdConflict::Id);
        }
        if self.ids.get(&handle).is_some_and(|other| *other != id) {
            return Err(IdConflict::Handle);
        }
        self.ids.insert(handle, id.clone());
        self.handles.insert(id, handle);
        Ok(())
    }
    /// Returns the handle of the object with this id.
    pub fn handle<Q: Hash + Eq + ?Sized>(&self, id: &Q) -> Option<Handle<W, GENERATION_BITS>>
    where
        Id: Borrow<Q>,
    {
        self.handles.get(id).copied()
    }
    /// Returns the id of an object, to be saved in place of the handle.
    pub fn id(&self, handle: Handle<W, GENERATION_BITS>) -> Option<&Id> {
        self.ids.get(&handle)
    }
    /// Removes the id of a handle, for an object that was freed or renamed. Returns the removed id; the id can be
    /// assigned again.
    pub fn remove_handle(&mut self, handle: Handle<W, GENERATION_BITS>) -> Option<Id> {
        let id = self.ids.remove(&handle)?;
        self.handles.remove(&id);
        Some(id)
    }
    /// Removes an id. Removes an id, and returns its handle; the handle can then get another id.
    pub fn remove_id<Q: Hash + Eq + ?Sized>(&mut self, id: &Q) -> Option<Handle<W, GENERATION_BITS>>
    where
        Id: Borrow<Q>,
    {
        let handle = self.handles.remove(id)?;
        self.ids.remove(&handle);
        Some(handle)
    }
    /// Number of ids.
    pub fn len(&self) -> usize {
        self.handles.len()
    }
    /// Returns `true` if the mapping is empty.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }
}

impl<Id: Hash + Eq + Clone, W: Word, const GENERATION_BITS: u32> Default
    for StableIds<Id, W, GENERATION_BITS>
{
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Generations, Handle24x8, HandleTable};

    type Table = HandleTable<&'static str, u32, 8>;

    /// Without stable ids, the old table's first handle names the first object of the loaded table.
    #[test]
    fn raw_handle_refers_to_the_wrong_object_after_loading() {
        let mut old = Table::new();
        let player = old.alloc("player").unwrap();
        let text = serde_json::to_string(&player).unwrap();
        let mut new = Table::new();
        new.alloc("door").unwrap();
        new.alloc("player").unwrap();
        let saved: Handle24x8 = serde_json::from_str(&text).unwrap();
        assert_eq!(new.get(saved), Some(&"door"));
    }

    #[test]
    fn old_handles_are_rejected_after_loading() {
        let mut old = Table::new();
        let mut ids = StableIds::new();
        let mut handles = vec![];
        for (uuid, name) in [(11, "door"), (12, "player"), (13, "key")] {
            // Each object is in its second life or later.
            let dead = old.alloc("dead").unwrap();
            old.free(dead);
            let handle = old.alloc(name).unwrap();
            ids.insert(uuid, handle).unwrap();
            handles.extend([dead, handle]);
        }
        // The objects are loaded in another order, into another table.
        let saved: Vec<_> = old.iter().map(|(handle, name)| (*ids.id(handle).unwrap(), *name)).collect();
        let first = old.fresh_generation().unwrap();
        let mut new = Table::with(Generations { first, ..Generations::default() });
        let mut loaded = StableIds::new();
        for (uuid, name) in saved.into_iter().rev() {
            loaded.insert(uuid, new.alloc(name).unwrap()).unwrap();
        }
        assert!(handles.iter().all(|old| !new.is_valid(*old) && loaded.id(*old).is_none()));
        for (uuid, name) in [(11, "door"), (12, "player"), (13, "key")] {
            let handle = loaded.handle(&uuid).unwrap();
            assert_ne!(Some(handle), ids.handle(&uuid));
            assert_eq!(new.get(handle), Some(&name));
        }
    }

    #[test]
    fn each_stable_id_maps_to_a_single_handle() {
        let [a, b] = [1, 2].map(|index| Handle24x8::new(index, 1).unwrap());
        let mut ids = StableIds::new();
        assert!(ids.is_empty());
        assert_eq!((ids.insert("a", a), ids.insert("a", a), ids.len()), (Ok(()), Ok(()), 1));
        assert_eq!((ids.insert("a", b), ids.insert("b", a)), (Err(IdConflict::Id), Err(IdConflict::Handle)));
        assert_eq!((ids.len(), ids.handle("a"), ids.id(b)), (1, Some(a), None));
        assert_eq!((ids.remove_handle(a), ids.remove_handle(a)), (Some("a"), None));
        assert_eq!((ids.insert("a", b), ids.handle("a"), ids.id(a)), (Ok(()), Some(b), None));
        assert_eq!((ids.remove_id("a"), ids.remove_id("a"), ids.id(b)), (Some(b), None, None));
        assert_eq!((ids.insert("b", b), ids.len()), (Ok(()), 1));
        assert!(
            IdConflict::Id.to_string().contains("another object")
                && IdConflict::Handle.to_string().contains("remove")
        );
    }
}
