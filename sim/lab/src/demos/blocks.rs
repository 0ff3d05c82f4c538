//! The demo of an allocator whose blocks the user can name.

use super::command::Command;
use super::demo::{Demo, capitalized, free};
use super::driven::{AllocatorWithBlocks, DrivenAllocator, Places};
use super::kinds::DemoAllocator;
use super::scene::{Is, Part, Scene};
use super::steps::Operation;
use super::structure::{Mark, On, Shape, Step, Structure};
use crate::allocators::Work;
use core::alloc::Layout;

/// An allocator, with its live blocks and its markers by name.
#[derive(Debug)]
pub(super) struct Blocks {
    allocator: Box<dyn DrivenAllocator>,
    /// The live blocks, oldest first; each has its number and its requested bytes.
    live: Vec<(usize, usize)>,
    /// For each marker, the number of blocks that are older than the marker.
    markers: Vec<usize>,
    births: usize,
    /// The steps of the last command.
    steps: Vec<Step>,
}

impl Blocks {
    pub(super) fn new<A: DemoAllocator<Block: 'static, Marker: 'static> + 'static>(allocator: A) -> Self {
        let allocator = Box::new(AllocatorWithBlocks::new(allocator));
        Self { allocator, live: vec![], markers: vec![], births: 0, steps: vec![] }
    }

    /// Records two moves of the head from its position `from`: past any padding to the start of `block`, and then to
    /// its present position.
    fn record_head_moves(&mut self, from: Option<usize>, block: Option<usize>) {
        let Some((from, to)) = from.zip(self.allocator.head()) else { return };
        let begin = block.unwrap_or(from);
        if begin > from {
            let text = self.allocator.skipped(from, begin);
            self.steps.push(Step::new(text, On::Head { from, to: begin }));
        }
        if to != begin {
            let text = format!("The head moves from {begin} to {to}.");
            self.steps.push(Step::new(text, On::Head { from: begin, to }));
        }
    }

    fn alloc(&mut self, bytes: usize, align: usize) -> Result<String, String> {
        let layout = Layout::from_size_align(bytes, align)
            .map_err(|_| format!("{align} is not an alignment: expected a power of two"))?;
        let birth = self.births;
        self.births += 1;
        let name = name(birth);
        let (before, head) = (self.allocator.work(), self.allocator.head());
        let range = self.allocator.alloc(layout);
        self.steps = self.allocator.steps(&Operation::Alloc { layout, name: &name, block: range.clone() });
        self.record_head_moves(head, range.as_ref().map(|range| range.start));
        let Some(range) = range else {
            return Err(format!("No room for {bytes} bytes. Free: {}.", free(self.allocator.holes())));
        };
        let surplus = match range.len() - bytes {
            0 => String::new(),
            surplus => format!(", {surplus} more than requested"),
        };
        let sentence = format!("{name} is at byte {} and has {}{surplus}.", range.start, range.len());
        self.live.push((birth, bytes));
        Ok(sentence + &describe_work(before, self.allocator.work(), self.allocator.examined_by_alloc()))
    }

    fn free(&mut self, wanted_name: &str) -> Result<String, String> {
        let Some(position) = self.live.iter().position(|(birth, ..)| name(*birth) == wanted_name) else {
            let live: Vec<_> = self.live.iter().map(|(birth, ..)| name(*birth)).collect();
            return Err(format!("Unknown block {wanted_name}; in use: {}.", join_names(&live)));
        };
        let (before, head) = (self.allocator.work(), self.allocator.head());
        let (birth, _) = self.live.remove(position);
        let name = name(birth);
        let block = self.allocator.range(position);
        self.allocator.free(position);
        self.steps = self.allocator.steps(&Operation::Free { name: &name, block });
        self.record_head_moves(head, None);
        let work_text = describe_work(before, self.allocator.work(), self.allocator.examined_by_free());
        Ok(match (head, self.allocator.head()) {
            (Some(head), Some(now)) if now < head => {
                format!("{name} is free, and the head moves back to byte {now}.{work_text}")
            }
            (Some(head), _) => {
                format!(
                    "{name} is free, but the head stays at byte {head}: later blocks are in use.{work_text}"
                )
            }
            _ => format!("{name} is free.{work_text}"),
        })
    }

    /// Forgets the first block whose number satisfies `freed`, and all later blocks; returns the number of forgotten
    /// blocks.
    fn forget(&mut self, freed: impl Fn(usize) -> bool) -> usize {
        let (before, blocks) = (self.live.len(), self.live.partition_point(|(birth, _)| !freed(*birth)));
        self.live.truncate(blocks);
        self.allocator.forget(blocks);
        before - blocks
    }

    fn parts(&self) -> Vec<Part> {
        let (front_tag, back_tag) = self.allocator.tags();
        let mut live: Vec<_> = self
            .live
            .iter()
            .enumerate()
            .map(|(block, (birth, bytes))| (self.allocator.range(block), name(*birth), *bytes))
            .collect();
        live.sort_by_key(|(range, ..)| (range.start, range.end));
        let (mut parts, mut index) = (vec![], 0);
        for (range, name, bytes) in live {
            self.allocator.free_parts(index..range.start - front_tag, &mut parts);
            parts.push(Part::of(range.start - front_tag..range.start, Is::Tag));
            parts.push(Part::of(range.start..range.start + bytes, Is::Used(name.clone())));
            parts.push(Part::of(range.start + bytes..range.end, Is::Rounding(name.clone())));
            parts.push(Part::of(range.end..range.end + back_tag, Is::Tag));
            index = range.end + back_tag;
        }
        self.allocator.free_parts(index..self.allocator.end(), &mut parts);
        parts.retain(|part| part.bytes > 0);
        parts
    }
}

impl Demo for Blocks {
    fn run(&mut self, command: &Command) -> Result<String, String> {
        self.steps.clear();
        let from = self.allocator.head();
        match command {
            Command::Alloc { bytes, align } => match bytes.or(self.allocator.one_size()) {
                Some(bytes) => self.alloc(bytes, *align),
                None => Err("Expected a size: `alloc BYTES`.".to_owned()),
            },
            Command::Free { block } => self.free(block),
            Command::Mark if self.allocator.mark() => {
                self.markers.push(self.births);
                let head = self.allocator.head().unwrap_or(0);
                Ok(format!("The marker m{} saves the head at byte {head}.", self.markers.len()))
            }
            Command::Mark => Err("Only linear allocators and stacks have a head to mark.".to_owned()),
            Command::Pop { marker } => {
                let number = marker.strip_prefix('m').and_then(|number| number.parse::<usize>().ok());
                let index =
                    number.and_then(|number| number.checked_sub(1)).filter(|n| *n < self.markers.len());
                match index {
                    Some(index) => match self.allocator.pop(index) {
                        Ok(()) => {
                            let births = self.markers[index];
                            let freed_blocks = self.forget(|birth| birth >= births);
                            let head = self.allocator.head().unwrap_or(0);
                            self.record_head_moves(from, None);
                            Ok(format!("The head is back at byte {head}: {freed_blocks} blocks are freed."))
                        }
                        Err(stale) => Err(format!("{}.", capitalized(&stale.to_string()))),
                    },
                    None => Err(format!("Unknown marker {marker}; `mark` creates one.")),
                }
            }
            Command::Reset if self.allocator.reset() => {
                let freed_blocks = self.forget(|_| true);
                self.record_head_moves(from, None);
                Ok(format!("The head is back at byte 0: {freed_blocks} blocks are freed."))
            }
            Command::Purge => match self.allocator.purge() {
                Some(steps) => {
                    self.steps = steps;
                    Ok(match self.steps.len() {
                        0 => "No chunk is empty: nothing is returned to the system.".to_owned(),
                        1 => "1 empty chunk is returned to the system.".to_owned(),
                        chunks => format!("{chunks} empty chunks are returned to the system."),
                    })
                }
                None => Err("Only a pool of chunks returns memory to the system.".to_owned()),
            },
            Command::Get { .. } => Err("Only demos of handles have `get`.".to_owned()),
            Command::Walk { .. } => Err("This demo has no structs to walk over.".to_owned()),
            Command::Fill { .. } | Command::Round => {
                Err("Only demos of several allocators have rounds.".to_owned())
            }
            Command::Reset => Err("Only a linear allocator frees all at once.".to_owned()),
        }
    }

    fn scene(&self) -> Scene {
        let mark = |marker| {
            let (index, stale) = self.allocator.marked(marker);
            Mark { name: format!("m{}", marker + 1), at: index, stale }
        };
        let head = self.allocator.head().map(|head| {
            let markers = (0..self.markers.len()).map(mark);
            Shape::Head { head, marks: self.allocator.chunks().into_iter().chain(markers).collect() }
        });
        let structure = self.allocator.shape().or(head);
        Scene {
            parts: self.parts(),
            holes: self.allocator.holes(),
            structure: structure.map(|shape| Structure::new(shape, self.steps.clone())),
            ..Scene::default()
        }
    }
}

/// Returns the name of the block with a given number. The names are `a` to `z`, then `a2` to `z2`, and so on.
pub(super) fn name(number: usize) -> String {
    let letter = char::from(b'a' + (number % 26) as u8);
    if number < 26 { letter.to_string() } else { format!("{letter}{}", number / 26 + 1) }
}

pub(super) fn join_names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns a sentence about the work between two snapshots of the counts. `examined` names the kind of location that a
/// search inspects.
fn describe_work(before: Work, after: Work, examined: Places) -> String {
    let count = |verb: &str, n: u64, (singular, plural): (&str, &str)| {
        (n > 0).then(|| format!("{verb} {n} {}", if n == 1 { singular } else { plural }))
    };
    let parts = [
        examined.and_then(|place| count("examined", after.steps - before.steps, place)),
        count("made", after.splits - before.splits, ("split", "splits")),
        count("made", after.merges - before.merges, ("merge", "merges")),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(" It {}.", parts.join(" and ")) }
}
