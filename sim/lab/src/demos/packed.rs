//! The demo of a slot map, whose values have no gaps, compared with an array that has holes.

use super::blocks::{join_names, name};
use super::command::Command;
use super::demo::{Demo, capitalized};
use super::scene::{Is, Part, Scene};
use super::structure::{Named, On, Shape, Step, Structure};
use crate::allocators::memory::{ConfigError, MemoryPiece};
use crate::allocators::{Allocator, Linear, ScanningPool};
use core::alloc::Layout;
use uslab::handle::{Handle, SlotMap};

/// The size of a value in bytes; in the array with holes, the size includes a flag.
const VALUE: usize = 15;
const PLACE_BYTES: usize = 16;
const PLACES: usize = 12;

type Map = SlotMap<String, u32, 8>;

/// A slot map, and an array with holes that holds the same values.
#[derive(Debug)]
pub(super) struct Packed {
    map: Map,
    handles: Vec<Handle<u32, 8>>,
    holes: ScanningPool,
    /// The values of the array with holes, by name.
    pieces: Vec<(String, MemoryPiece)>,
    /// The largest number of values that have been live at the same time.
    peak: usize,
    /// The steps of the last command.
    steps: Vec<Step>,
}

impl Packed {
    pub(super) fn new() -> Result<Self, ConfigError> {
        let holes = ScanningPool::new(Linear::fixed(PLACE_BYTES * PLACES)?, Layout::new::<[u8; VALUE]>())?;
        Ok(Self { map: Map::new(), handles: vec![], holes, pieces: vec![], peak: 0, steps: vec![] })
    }

    fn handle(&self, wanted_name: &str) -> Result<Handle<u32, 8>, String> {
        let all: Vec<_> = (0..self.handles.len()).map(name).collect();
        let index = all.iter().position(|known_name| known_name == wanted_name);
        index
            .map(|index| self.handles[index])
            .ok_or_else(|| format!("Unknown handle {wanted_name}; expected one of: {}.", join_names(&all)))
    }
    fn note(&mut self, text: String, highlight: On) {
        self.steps.push(Step::new(text, highlight));
    }
    fn note_slot_lookup(&mut self, name: &str, handle: Handle<u32, 8>) {
        let slot = handle.index();
        let text = match self.map.place(handle) {
            Some(place) => format!("{name} names slot {slot}, which leads to place {place}."),
            None => format!("{name} names slot {slot} in an older generation: it is stale."),
        };
        self.note(text, On::Handle { name: name.to_owned() });
    }

    fn alloc(&mut self) -> Result<String, String> {
        let layout = Layout::new::<[u8; VALUE]>();
        let piece = self.holes.alloc(layout).ok_or_else(|| format!("All {PLACES} places are in use."))?;
        let new = name(self.handles.len());
        let handle = self.map.alloc(new.clone()).map_err(|error| capitalized(&error.to_string()))?;
        let hole = piece.at() / PLACE_BYTES;
        self.pieces.push((new.clone(), piece));
        self.handles.push(handle);
        self.peak = self.peak.max(self.map.len());
        self.note_slot_lookup(&new, handle);
        Ok(format!(
            "{new} is the last packed value, at index {}. In the array with holes it is at index {hole}.",
            self.map.len() - 1
        ))
    }
    fn free(&mut self, wanted_name: &str) -> Result<String, String> {
        let handle = self.handle(wanted_name)?;
        self.note_slot_lookup(wanted_name, handle);
        let Some(place) = self.map.place(handle) else {
            return Err(format!("{wanted_name} is stale: nothing is freed."));
        };
        let (last_index, last) = (self.map.len() - 1, self.map.as_slice().last().cloned());
        self.map.free(handle);
        if let Some(index) = self.pieces.iter().position(|(name, _)| name == wanted_name) {
            self.holes.free(self.pieces.swap_remove(index).1);
        }
        let Some(last) = last.filter(|_| last_index != place) else {
            return Ok(format!("{wanted_name} was the last value: nothing moves."));
        };
        self.note(
            format!("The last value, {last}, moves from place {last_index} to place {place}."),
            On::Value { from: last_index, to: place },
        );
        let slot = self.handle(&last)?.index();
        let text = format!("{last}'s slot {slot} leads to place {place} from now on.");
        self.note(text, On::Handle { name: last.clone() });
        Ok(format!("{wanted_name} is freed, and {last} fills its place. The other array has a hole."))
    }
}

impl Demo for Packed {
    fn run(&mut self, command: &Command) -> Result<String, String> {
        self.steps.clear();
        match command {
            Command::Alloc { bytes: None, .. } => self.alloc(),
            Command::Alloc { .. } => {
                Err("Expected `alloc` without a size: all values have the same size.".to_owned())
            }
            Command::Free { block } => self.free(block),
            Command::Get { block } => {
                let handle = self.handle(block)?;
                self.note_slot_lookup(block, handle);
                match self.map.get(handle) {
                    Some(_) => Ok(format!("{block} finds its value.")),
                    None => Ok(format!("{block} is stale.")),
                }
            }
            _ => Err("Expected `alloc`, `free HANDLE` or `get HANDLE`.".to_owned()),
        }
    }

    fn scene(&self) -> Scene {
        let values = self.map.as_slice();
        let value_state = |place: usize| match values.get(place) {
            Some(value) => Is::Used(value.clone()),
            None if place < self.peak => Is::Free,
            None => Is::Untouched,
        };
        let parts = (0..PLACES)
            .map(|place| Part::of(place * PLACE_BYTES..(place + 1) * PLACE_BYTES, value_state(place)))
            .collect();
        let named_handle = |(n, handle): (usize, &Handle<u32, 8>)| Named {
            name: name(n),
            slot: handle.index(),
            generation: handle.generation(),
            finds: self.map.get(*handle).cloned(),
        };
        let walk = self.holes.walk();
        let mut holes = vec![None; walk.checked];
        for (name, piece) in &self.pieces {
            holes[piece.at() / PLACE_BYTES] = Some(name.clone());
        }
        let slots = self.handles.iter().map(|handle| handle.index() as usize + 1).max().unwrap_or(0);
        let mut places = vec![None; slots];
        for handle in self.map.handles() {
            places[handle.index() as usize] = self.map.place(*handle);
        }
        let shape = Shape::Packed {
            handles: self.handles.iter().enumerate().map(named_handle).collect(),
            places,
            values: values.to_vec(),
            holes,
            reads: values.len(),
            checks: walk.checked,
        };
        let facts = vec![
            ("a walk over the packed values reads".to_owned(), format!("{} places", values.len())),
            ("a walk over the array with holes reads".to_owned(), format!("{} places", walk.checked)),
        ];
        let structure = Some(Structure::new(shape, self.steps.clone()));
        Scene { parts, structure, facts, ..Scene::default() }
    }
}
