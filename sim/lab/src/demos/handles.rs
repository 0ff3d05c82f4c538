//! The demo of a handle table: handles detect that their object was freed.

use super::blocks::{join_names, name};
use super::command::Command;
use super::demo::{Demo, capitalized};
use super::scene::{Is, Part, Scene};
use super::structure::{Named, On, Shape, Slot, Step, Structure};
use uslab::handle::{Handle, HandleTable, WrapPolicy};

/// The number of bits in a generation. Generation 0 is not used, so two bits give three generations, and a slot runs
/// out of generations soon.
const BITS: u32 = 2;
/// The number of bytes that one slot occupies in the picture.
const SLOT: usize = 16;
const SLOTS: usize = 8;

/// A handle table, and every handle that it returned, each with its name.
#[derive(Debug)]
pub(super) struct Handles {
    table: HandleTable<String, u32, BITS>,
    handles: Vec<Handle<u32, BITS>>,
    /// The steps of the last command.
    steps: Vec<Step>,
}

impl Handles {
    pub(super) fn new(policy: WrapPolicy) -> Self {
        Self { table: HandleTable::with(policy), handles: vec![], steps: vec![] }
    }

    fn handle(&self, wanted_name: &str) -> Result<Handle<u32, BITS>, String> {
        let all: Vec<_> = (0..self.handles.len()).map(name).collect();
        let index = all.iter().position(|known_name| known_name == wanted_name);
        index
            .map(|index| self.handles[index])
            .ok_or_else(|| format!("Unknown handle {wanted_name}; expected one of: {}.", join_names(&all)))
    }

    fn generation(&self, handle: Handle<u32, BITS>) -> u32 {
        self.table.generation_at(handle.index() as usize).unwrap_or(0)
    }
    fn note(&mut self, name: &str, text: String) {
        self.steps.push(Step::new(text, On::Handle { name: name.to_owned() }));
    }
    /// Records that the table compared the handle with its slot.
    fn record_comparison(&mut self, name: &str, handle: Handle<u32, BITS>) {
        let (slot, handle_generation, slot_generation) =
            (handle.index(), handle.generation(), self.generation(handle));
        let result = match self.table.is_valid(handle) {
            true => "equal",
            false if handle_generation == slot_generation => "equal, but the slot is not in use",
            false => "not equal",
        };
        self.note(name, format!("{name} names slot {slot} in generation {handle_generation}."));
        self.note(name, format!("Slot {slot} is in generation {slot_generation}: {result}."));
    }
}

fn bits(handle: Handle<u32, BITS>) -> String {
    format!("{:#010x}", handle.to_bits())
}

impl Demo for Handles {
    fn run(&mut self, command: &Command) -> Result<String, String> {
        self.steps.clear();
        match command {
            Command::Alloc { bytes: None, .. } => {
                let is_full =
                    self.handles.iter().map(|handle| handle.index() as usize + 1).max() == Some(SLOTS);
                if is_full && self.table.len() + self.table.retired() as usize == SLOTS {
                    return Err(format!("All {SLOTS} slots of the picture are in use or retired."));
                }
                let new = name(self.handles.len());
                let handle =
                    self.table.alloc(new.clone()).map_err(|error| capitalized(&error.to_string()))?;
                self.handles.push(handle);
                let (slot, generation) = (handle.index(), handle.generation());
                self.note(
                    &new,
                    format!("Slot {slot} is free. The handle {new} gets the slot's generation {generation}."),
                );
                Ok(format!(
                    "The handle {new} is slot {}, generation {}: {}.",
                    handle.index(),
                    handle.generation(),
                    bits(handle)
                ))
            }
            Command::Alloc { .. } => {
                Err("Expected `alloc` without a size: all objects in this table have the same size."
                    .to_owned())
            }
            Command::Free { block } => {
                let handle = self.handle(block)?;
                let retired = self.table.retired();
                self.record_comparison(block, handle);
                let freed = self.table.free(handle);
                if freed.is_some() {
                    let (slot, slot_generation) = (handle.index(), self.generation(handle));
                    let next_generation_text = match self.table.retired() > retired {
                        true => format!("Slot {slot} has no next generation: it is retired."),
                        false => {
                            format!(
                                "Slot {slot} changes from generation {} to {slot_generation}.",
                                handle.generation()
                            )
                        }
                    };
                    self.note(block, next_generation_text);
                }
                match freed {
                    Some(object) if self.table.retired() > retired => Ok(format!(
                        "{object} is freed. Its slot has no unused generation and is retired: it is never used again."
                    )),
                    Some(object) if object != *block => Ok(format!(
                        "{block} freed {object}: the generation had wrapped, so the stale handle matched another object."
                    )),
                    Some(object) => Ok(format!(
                        "{object} is freed, and its slot has the next generation: {block} is stale from now on."
                    )),
                    None => Err(format!("{block} is stale: nothing is freed.")),
                }
            }
            Command::Get { block } => {
                let handle = self.handle(block)?;
                self.record_comparison(block, handle);
                match self.table.get(handle) {
                    Some(object) if object == block => Ok(format!("{block} finds its object.")),
                    Some(object) => Ok(format!(
                        "{block} finds {object}, which is not its object: the generation has wrapped, and the check cannot detect it."
                    )),
                    None => Ok(format!("{block} is stale: its generation differs from the slot's.")),
                }
            }
            _ => Err("Expected `alloc`, `free HANDLE` or `get HANDLE`.".to_owned()),
        }
    }

    fn scene(&self) -> Scene {
        let of_slot = |slot: usize| self.table.iter().find(|(handle, _)| handle.index() as usize == slot);
        let used_slots = self.handles.iter().map(|handle| handle.index() as usize + 1).max().unwrap_or(0);
        let retired = |slot: usize| {
            let last = self.handles.iter().rfind(|handle| handle.index() as usize == slot);
            self.table.retired() > 0
                && of_slot(slot).is_none()
                && last.is_some_and(|last| last.generation() == Handle::<u32, BITS>::LAST_GENERATION)
        };
        let slot_state = |slot: usize| match of_slot(slot) {
            Some((_, object)) => Is::Used(object.clone()),
            None if retired(slot) => Is::Retired,
            None if slot < used_slots => Is::Free,
            None => Is::Untouched,
        };
        let parts =
            (0..SLOTS).map(|slot| Part::of(slot * SLOT..(slot + 1) * SLOT, slot_state(slot))).collect();
        let named_handle = |(n, handle): (usize, &Handle<u32, BITS>)| Named {
            name: name(n),
            slot: handle.index(),
            generation: handle.generation(),
            finds: self.table.get(*handle).cloned(),
        };
        let slot = |slot: usize| Slot {
            generation: self.table.generation_at(slot),
            object: of_slot(slot).map(|(_, object)| object.clone()),
            retired: retired(slot),
        };
        let shape = Shape::Slots {
            handles: self.handles.iter().enumerate().map(named_handle).collect(),
            slots: (0..SLOTS).map(slot).collect(),
            last: Handle::<u32, BITS>::LAST_GENERATION,
        };
        let facts = vec![("retired slots".to_owned(), self.table.retired().to_string())];
        let structure = Some(Structure::new(shape, self.steps.clone()));
        Scene { parts, structure, facts, ..Scene::default() }
    }
}
