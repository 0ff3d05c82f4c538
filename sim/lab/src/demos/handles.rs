//! The demo of a handle table: handles detect that their object was freed.

use super::blocks::{first_names, name};
use super::command::Command;
use super::demo::{Demo, capital};
use super::scene::{Is, Part, Scene};
use uslab::handle::{Handle, HandleTable, WrapPolicy};

/// The number of bits in a generation. These bits give only three generations, so that a demo soon shows what happens
/// when generations run out.
const BITS: u32 = 2;
/// The number of bytes that one slot takes in the picture.
const SLOT: usize = 16;
const SLOTS: usize = 8;

/// A handle table, and every handle that it returned, by name.
#[derive(Debug)]
pub(super) struct Handles {
    table: HandleTable<String, u32, BITS>,
    given: Vec<Handle<u32, BITS>>,
}

impl Handles {
    pub(super) fn new(policy: WrapPolicy) -> Self {
        Self { table: HandleTable::with(policy), given: vec![] }
    }

    fn handle(&self, wanted: &str) -> Result<Handle<u32, BITS>, String> {
        let all: Vec<_> = (0..self.given.len()).map(name).collect();
        let at = all.iter().position(|own| own == wanted);
        at.map(|at| self.given[at])
            .ok_or_else(|| format!("Unknown handle {wanted}; expected one of: {}.", first_names(&all)))
    }
}

fn bits(handle: Handle<u32, BITS>) -> String {
    format!("{:#010x}", handle.to_bits())
}

impl Demo for Handles {
    fn tell(&mut self, command: &Command) -> Result<String, String> {
        match command {
            Command::Alloc { bytes: None, .. } => {
                let full = self.given.iter().map(|handle| handle.index() as usize + 1).max() == Some(SLOTS);
                if full && self.table.len() + self.table.retired() as usize == SLOTS {
                    return Err(format!("All {SLOTS} slots of the picture are in use or retired."));
                }
                let new = name(self.given.len());
                let handle = self.table.alloc(new.clone()).map_err(|error| capital(&error.to_string()))?;
                self.given.push(handle);
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
                match self.table.free(handle) {
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
        let touched = self.given.iter().map(|handle| handle.index() as usize + 1).max().unwrap_or(0);
        let retired = |slot: usize| {
            let last = self.given.iter().rfind(|handle| handle.index() as usize == slot);
            self.table.retired() > 0
                && of_slot(slot).is_none()
                && last.is_some_and(|last| last.generation() == Handle::<u32, BITS>::LAST_GENERATION)
        };
        let is = |slot: usize| match of_slot(slot) {
            Some((_, object)) => Is::Used(object.clone()),
            None if retired(slot) => Is::Retired,
            None if slot < touched => Is::Free,
            None => Is::Untouched,
        };
        let parts = (0..SLOTS).map(|slot| Part::of(slot * SLOT..(slot + 1) * SLOT, is(slot))).collect();
        let mut facts: Vec<_> = self
            .given
            .iter()
            .enumerate()
            .map(|(n, handle)| {
                let finds =
                    self.table.get(*handle).map_or("stale".to_owned(), |object| format!("finds {object}"));
                (
                    format!("handle {}", name(n)),
                    format!(
                        "slot {}, generation {}, {}: {finds}",
                        handle.index(),
                        handle.generation(),
                        bits(*handle)
                    ),
                )
            })
            .collect();
        facts.push(("retired slots".to_owned(), self.table.retired().to_string()));
        Scene { parts, facts, ..Scene::default() }
    }
}
