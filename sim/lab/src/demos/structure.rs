//! Describes the data structure of a demo's allocator, and how the last command changed it.

use super::scene::{Part, Scene};
use serde::Serialize;

/// The data structure of a demo's allocator, read from the allocator after a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Structure {
    /// The data structure.
    pub shape: Shape,
    /// The steps of the last command, in the order in which they were made.
    pub steps: Vec<Step>,
    /// The data structure, formatted as lines of text.
    pub text: Vec<String>,
}

/// A data structure. Positions and sizes are in bytes; the sizes of blocks include their headers and tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Shape {
    /// Free lists for blocks whose sizes are powers of two, one list for each size.
    Tree {
        /// The size of the smallest block.
        unit: usize,
        /// For each list, the positions of its free blocks. The blocks of each list are twice as large as the blocks of
        /// the list before it.
        lists: Vec<Vec<usize>>,
    },
    /// Free lists for two levels of size classes, with one bit for each list.
    Grid {
        /// The first level, with one row for each power of two.
        rows: Vec<Row>,
    },
    /// One list of all free blocks.
    List {
        /// The free blocks in the order of the list.
        blocks: Vec<FreeBlock>,
    },
    /// A pool whose slots have one size. The list of the free slots runs through the slots themselves.
    Chain {
        /// The size of a slot.
        slot: usize,
        /// The numbers of the free slots in the order of the list.
        list: Vec<usize>,
        /// The number of slots that have ever been in the list; all later slots were never written.
        opened: usize,
        /// The slot to which the last link of the list leads; `None` if the last link is null.
        end: Option<usize>,
    },
    /// A pool of chunks, whose slots have one size. The list of a chunk's free slots runs through the slots themselves.
    Chunks {
        /// The size of a slot.
        slot: usize,
        /// The size of a chunk, whose last bytes are its slots.
        bytes: usize,
        /// The chunks, in the order of the list of chunks.
        chunks: Vec<Chunk>,
    },
    /// A linear allocator's head: a position that moves through the memory.
    Head {
        /// The position.
        head: usize,
        /// The saved positions.
        marks: Vec<Mark>,
    },
    /// Slots with generations.
    Slots {
        /// The handles, in the order in which they were returned.
        handles: Vec<Named>,
        /// The slots of the table, by index.
        slots: Vec<Slot>,
        /// The largest generation that a slot can have.
        last: u32,
    },
    /// Values without gaps, which handles find through slots, compared with the same values in an array with holes.
    Packed {
        /// The handles, in the order in which they were returned.
        handles: Vec<Named>,
        /// For each slot, the index of its value in `values`.
        places: Vec<Option<usize>>,
        /// The values that are stored without gaps.
        values: Vec<String>,
        /// The array with holes, which contains the same values.
        holes: Vec<Option<String>>,
        /// The number of entries that a walk over `values` reads.
        reads: usize,
        /// The number of entries that a walk over `holes` reads.
        checks: usize,
    },
    /// The memories of several allocators that serve the same program.
    Lanes {
        /// The length of the longest memory, in bytes.
        bytes: usize,
        /// The kinds of blocks; each used range has one of these kinds.
        kinds: Vec<String>,
        /// The marks whose location is the same in all memories.
        marks: Vec<Line>,
        /// The memories of the allocators after the command.
        lanes: Vec<Lane>,
        /// The memories of the allocators after each step of the command, except the last step.
        frames: Vec<Vec<Lane>>,
    },
    /// Arrays in cache lines, one for each memory layout.
    Lines {
        /// The names of the fields.
        names: Vec<String>,
        /// For each memory layout, its arrays.
        arrays: Vec<Lines>,
        /// The size of a cache line in bytes.
        line: usize,
    },
}

/// The memory of one of the compared allocators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Lane {
    /// The allocator's name.
    pub name: String,
    /// The state of the memory in a few words.
    pub says: String,
    /// The ranges that the memory consists of, from its start to its end, without gaps.
    pub parts: Vec<Part>,
    /// The number of holes before the first turnover and after each turnover; empty if the demo counts no holes.
    pub curve: Vec<usize>,
}

/// A marked location that is the same in all memories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Line {
    /// The position.
    pub at: usize,
    /// The label of the marked line.
    pub name: String,
}

/// A power of two, and the size classes that begin between it and the next power of two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Row {
    /// The smallest size.
    pub from: usize,
    /// The row's bit in the bitmap of the first level.
    pub bit: bool,
    /// The size classes.
    pub cells: Vec<Cell>,
}

/// A size class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Cell {
    /// The smallest size.
    pub from: usize,
    /// The class's bit in a bitmap of the second level.
    pub bit: bool,
    /// The free blocks in the order of the list.
    pub list: Vec<FreeBlock>,
}

/// A chunk that consists of slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Chunk {
    /// The position.
    pub at: usize,
    /// The numbers of the chunk's free slots in the order of its list.
    pub list: Vec<usize>,
}

/// A block on a free list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct FreeBlock {
    /// The position.
    pub at: usize,
    /// The size.
    pub bytes: usize,
}

/// A saved position of an allocator's head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Mark {
    /// The marker's name.
    pub name: String,
    /// The position.
    pub at: usize,
    /// `true` if the allocator refuses the marker, because the head moved below it after it was saved.
    pub stale: bool,
}

/// A handle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Named {
    /// The name of the handle, which is also the name of its object.
    pub name: String,
    /// The slot's number.
    pub slot: u32,
    /// The generation that the handle carries, which must equal the generation of its slot.
    pub generation: u32,
    /// The object that the table returns for the handle, if any.
    pub finds: Option<String>,
}

/// A slot of a handle table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Slot {
    /// The current generation; for a free slot, the next generation; `None` if the slot was never in use.
    pub generation: Option<u32>,
    /// The name of the object in the slot, if any.
    pub object: Option<String>,
    /// `true` if the slot has used up its generations.
    pub retired: bool,
}

/// The cache lines of one memory layout: an array of structs, or one array per field or number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Lines {
    /// The name of the memory layout.
    pub layout: String,
    /// For each number in address order, its field, as an index into the field names.
    pub fields: Vec<usize>,
    /// For each number, `true` if the walk uses it.
    pub used: Vec<bool>,
    /// For each cache line, `true` if the walk loads it.
    pub loaded: Vec<bool>,
}

/// A step that the allocator made during a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Step {
    /// A sentence about the step.
    pub said: String,
    /// The element of the data structure that the step concerns.
    pub on: On,
}

/// The element of the data structure that a step concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum On {
    /// The allocator read the free list of blocks of `bytes` bytes.
    List {
        /// The size of the list's blocks.
        bytes: usize,
        /// `true` if the list contains a block.
        found: bool,
    },
    /// The search began at this size class.
    Class {
        /// The index of the first-level row.
        row: usize,
        /// The index of the class in the row.
        cell: usize,
    },
    /// The search scanned a word of a bitmap.
    Word {
        /// The index of the row, or `None` for the bitmap of the first level.
        row: Option<usize>,
        /// The number of the bit at which the scan began.
        from: usize,
        /// The set bit that the scan found, if any.
        found: Option<usize>,
    },
    /// A search read the size of a free block.
    Inspect {
        /// The position.
        at: usize,
        /// The size.
        bytes: usize,
        /// `true` if the search keeps the block as its result.
        kept: bool,
    },
    /// The allocator split a block; the bytes at `at` are now free.
    Split {
        /// The position.
        at: usize,
        /// The size.
        bytes: usize,
    },
    /// A free read the neighbour of the freed block.
    Neighbour {
        /// The position.
        at: usize,
        /// The size.
        bytes: usize,
        /// `true` if the neighbour was free, so that the two blocks became one.
        merged: bool,
    },
    /// A block or slot left its list.
    Take {
        /// The position.
        at: usize,
        /// The size.
        bytes: usize,
    },
    /// A block or slot joined its list.
    Put {
        /// The position.
        at: usize,
        /// The size.
        bytes: usize,
    },
    /// The head moved.
    Head {
        /// The head's position before the step.
        from: usize,
        /// The head's position after the step.
        to: usize,
    },
    /// The table compared a handle with its slot.
    Handle {
        /// The handle's name.
        name: String,
    },
    /// All memories changed.
    Lanes,
    /// The walk loaded a cache line.
    Line {
        /// The index of the memory layout that the walk uses.
        array: usize,
        /// The line's number.
        line: usize,
    },
    /// The last value was moved into the gap that a free left.
    Value {
        /// The index of the value before the step.
        from: usize,
        /// The index of the value after the step.
        to: usize,
    },
}

impl Structure {
    pub(super) fn new(shape: Shape, steps: Vec<Step>) -> Self {
        Self { text: shape.lines(), shape, steps }
    }
}

impl Step {
    pub(super) fn new(text: impl Into<String>, highlight: On) -> Self {
        Self { said: text.into(), on: highlight }
    }
}

fn arrows(places: impl Iterator<Item = String>) -> String {
    let places: Vec<_> = places.collect();
    if places.is_empty() { "empty".to_owned() } else { places.join(" -> ") }
}

impl Shape {
    fn lines(&self) -> Vec<String> {
        let block = |block: &FreeBlock| format!("{} ({} bytes)", block.at, block.bytes);
        match self {
            Self::Tree { unit, lists } => (0..)
                .zip(lists)
                .map(|(order, list)| {
                    format!("list of {}: {}", unit << order, arrows(list.iter().map(ToString::to_string)))
                })
                .collect(),
            Self::Grid { rows } => {
                let cell = |cell: &Cell| {
                    let bit = u8::from(cell.bit);
                    let list = arrows(cell.list.iter().map(block));
                    if cell.bit {
                        format!("{}: {bit} -> {list}", cell.from)
                    } else {
                        format!("{}: {bit}", cell.from)
                    }
                };
                let cells = |row: &Row| row.cells.iter().map(cell).collect::<Vec<_>>().join(", ");
                rows.iter()
                    .map(|row| format!("row {}: {} [{}]", row.from, u8::from(row.bit), cells(row)))
                    .collect()
            }
            Self::List { blocks } => vec![format!("list: {}", arrows(blocks.iter().map(block)))],
            Self::Chain { list, end, opened, .. } => {
                let end = end.map_or("null".to_owned(), |end| end.to_string());
                let list = arrows(list.iter().map(ToString::to_string).chain([end]));
                vec![format!("list of slots: {list}; slots written so far: {opened}")]
            }
            Self::Chunks { bytes, chunks, .. } => {
                let line = |Chunk { at, list }: &Chunk| {
                    let slots = list.iter().map(ToString::to_string);
                    format!("chunk {}, free slots: {}", at / bytes, arrows(slots.chain(["null".to_owned()])))
                };
                let front = format!("chunks from front to back: {}", chunks.len());
                core::iter::once(front).chain(chunks.iter().map(line)).collect()
            }
            Self::Head { head, marks } => {
                let stale = |mark: &Mark| if mark.stale { ", stale" } else { "" };
                let marks = marks.iter().map(|mark| format!("{}: {}{}", mark.name, mark.at, stale(mark)));
                core::iter::once(format!("head: {head}")).chain(marks).collect()
            }
            Self::Slots { handles, slots, .. } => {
                let slots = (0..).zip(slots).filter_map(|(n, slot)| {
                    let generation = slot.generation?;
                    let object =
                        slot.object.as_deref().unwrap_or(if slot.retired { "retired" } else { "free" });
                    Some(format!("slot {n}: generation {generation}, {object}"))
                });
                handles.iter().map(Named::line).chain(slots).collect()
            }
            Self::Packed { handles, values, holes, reads, checks, .. } => {
                let holes = holes.iter().map(|value| value.as_deref().unwrap_or("-"));
                let holes = holes.collect::<Vec<_>>().join(" ");
                let mut lines: Vec<_> = handles.iter().map(Named::line).collect();
                lines.push(format!("packed: {}; a walk reads {reads}", values.join(" ")));
                lines.push(format!("with holes: {holes}; a walk reads {checks}"));
                lines
            }
            Self::Lanes { lanes, marks, .. } => {
                let marks = marks.iter().map(|Line { at, name }| format!("{name}: byte {at}"));
                let lanes = lanes.iter().map(|Lane { name, says, parts, .. }| {
                    let memory = Scene { parts: parts.clone(), ..Scene::default() };
                    format!("{} {name}: {says}", memory.strip())
                });
                marks.chain(lanes).collect()
            }
            Self::Lines { arrays, line, .. } => arrays
                .iter()
                .map(|array| {
                    let loaded = array.loaded.iter().filter(|loaded| **loaded).count();
                    let used = array.used.iter().filter(|used| **used).count() * 4;
                    format!(
                        "{}: {loaded} of {} lines loaded, {used} of {} bytes used",
                        array.layout,
                        array.loaded.len(),
                        loaded * line
                    )
                })
                .collect(),
        }
    }
}

impl Named {
    fn line(&self) -> String {
        let finds = self.finds.as_ref().map_or("stale".to_owned(), |object| format!("finds {object}"));
        format!("handle {}: slot {}, generation {}, {finds}", self.name, self.slot, self.generation)
    }
}
