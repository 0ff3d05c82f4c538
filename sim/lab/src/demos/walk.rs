//! The cache lines that a loop over structs loads, for three layouts: an array of structs, an array per field, and an
//! array per number.

use super::command::Command;
use super::demo::Demo;
use super::scene::{Is, Part, Scene};
use super::structure::{Lines, On, Shape, Step, Structure};

/// The fields of a game entity of 32 bytes, each with its size, in the order of the struct.
pub(crate) const ENTITY_FIELDS: [(&str, u64); 4] =
    [("position", 12), ("velocity", 12), ("health", 4), ("team", 4)];
pub(crate) const STRUCT_BYTES: u64 = 32;

/// The fields of each struct that a walk uses.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) name: &'static str,
    /// The four-byte numbers that the walk uses; each is given as the index of a field and an offset in the field.
    pub(crate) numbers: &'static [(usize, u64)],
}

pub(crate) const ACCESSES: [Access; 3] = [
    Access { name: "position.x", numbers: &[(0, 0)] },
    Access { name: "position", numbers: &[(0, 0), (0, 4), (0, 8)] },
    Access { name: "all", numbers: &[(0, 0), (0, 4), (0, 8), (1, 0), (1, 4), (1, 8), (2, 0), (3, 0)] },
];

/// The memory layout of an array of structs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Structs that follow one another in memory.
    Structs,
    /// A separate array for each field.
    Fields,
    /// A separate array for each four-byte number of a field.
    Numbers,
}

impl Layout {
    pub(crate) const ALL: [Self; 3] = [Self::Structs, Self::Fields, Self::Numbers];

    fn name(self) -> &'static str {
        match self {
            Self::Structs => "structs",
            Self::Fields => "fields",
            Self::Numbers => "numbers",
        }
    }

    /// Returns the address of a number: of struct `i` of `n` structs, at `field_offset` bytes from the start of its
    /// field. Each array begins at the start of a cache line.
    fn place(self, n: u64, line: u64, i: u64, field: usize, field_offset: u64) -> u64 {
        let array = |bytes: u64| (n * bytes).next_multiple_of(line);
        let before = &ENTITY_FIELDS[..field];
        match self {
            Self::Structs => i * STRUCT_BYTES + before.iter().map(|f| f.1).sum::<u64>() + field_offset,
            Self::Fields => {
                before.iter().map(|f| array(f.1)).sum::<u64>() + i * ENTITY_FIELDS[field].1 + field_offset
            }
            Self::Numbers => {
                before.iter().map(|f| f.1 / 4 * array(4)).sum::<u64>() + field_offset / 4 * array(4) + i * 4
            }
        }
    }
}

impl Access {
    /// Returns the number of bytes that a walk over `n` structs uses.
    pub(crate) fn used(&self, n: u64) -> u64 {
        4 * n * self.numbers.len() as u64
    }
    /// Returns the addresses of the four-byte numbers that a walk uses.
    fn places(&self, layout: Layout, n: u64, line: u64) -> impl Iterator<Item = u64> {
        (0..n).flat_map(move |i| {
            self.numbers
                .iter()
                .map(move |(field, field_offset)| layout.place(n, line, i, *field, *field_offset))
        })
    }
    /// Returns, for each cache line, `true` if the walk loads the line.
    pub(crate) fn loaded_lines(&self, layout: Layout, n: u64, line: u64) -> Vec<bool> {
        // Each of eight arrays may leave part of a line unused.
        let mut loaded = vec![false; (n * STRUCT_BYTES / line + 8) as usize];
        for place in self.places(layout, n, line) {
            loaded[(place / line) as usize] = true;
        }
        loaded
    }
}

/// The number of structs in the demo; in each layout, sixteen structs fill eight lines of 64 bytes.
const STRUCT_COUNT: u64 = 16;
const LINE: u64 = 64;

/// The demo that shows which cache lines a walk over structs loads.
#[derive(Debug, Default)]
pub(super) struct Walk {
    last: Option<(&'static Access, Layout)>,
}

/// Returns the number of cache lines that the walk loads, and the number of bytes that it uses.
fn counts(access: &Access, layout: Layout) -> (u64, u64) {
    let lines =
        access.loaded_lines(layout, STRUCT_COUNT, LINE).into_iter().filter(|loaded| *loaded).count() as u64;
    (lines, access.used(STRUCT_COUNT))
}

impl Demo for Walk {
    fn run(&mut self, command: &Command) -> Result<String, String> {
        let wanted_fields = match command {
            Command::Walk { access, layout } => {
                let access = ACCESSES.iter().find(|known| known.name == access);
                access.zip(Layout::ALL.into_iter().find(|known| known.name() == layout))
            }
            _ => None,
        };
        let (access, layout) = wanted_fields.ok_or(
            "Expected `walk position.x`, `walk position` or `walk all`, and then `structs`, `fields` or `numbers`.",
        )?;
        self.last = Some((access, layout));
        let (lines, used) = counts(access, layout);
        Ok(format!(
            "{STRUCT_COUNT} structs as {}, {}: {lines} line{} of {LINE} bytes {} loaded, and {} % of the bytes are used.",
            layout.name(),
            access.name,
            if lines == 1 { "" } else { "s" },
            if lines == 1 { "is" } else { "are" },
            used * 100 / (lines * LINE)
        ))
    }

    fn scene(&self) -> Scene {
        let Some((access, layout)) = self.last else {
            let whole_memory = Part::of(0..(STRUCT_COUNT * STRUCT_BYTES) as usize, Is::Free);
            return Scene { parts: vec![whole_memory], ..Scene::default() };
        };
        let loaded = access.loaded_lines(layout, STRUCT_COUNT, LINE);
        let mut used = vec![false; (STRUCT_COUNT * STRUCT_BYTES / 4) as usize];
        access.places(layout, STRUCT_COUNT, LINE).for_each(|place| used[(place / 4) as usize] = true);
        let mut parts: Vec<Part> = vec![];
        for (i, used) in used.into_iter().enumerate() {
            let line_state = match used {
                true => Is::Used(access.name.to_owned()),
                false if loaded[i / 16] => Is::Loaded,
                false => Is::Free,
            };
            match parts.last_mut() {
                Some(last) if last.is == line_state => last.bytes += 4,
                _ => parts.push(Part::of(i * 4..i * 4 + 4, line_state)),
            }
        }
        let (lines, used) = counts(access, layout);
        let structure = Some(structure(access, layout));
        let facts = vec![
            ("lines loaded".to_owned(), format!("{lines} of {}", STRUCT_COUNT * STRUCT_BYTES / LINE)),
            ("bytes used".to_owned(), format!("{used} of {} that are loaded", lines * LINE)),
        ];
        Scene { parts, structure, facts, ..Scene::default() }
    }
}

/// Returns the arrays of all memory layouts; the steps are the cache lines that a walk over `layout` loads.
fn structure(access: &Access, layout: Layout) -> Structure {
    let numbers = (STRUCT_COUNT * STRUCT_BYTES / 4) as usize;
    let arrays = Layout::ALL.map(|layout| {
        let (mut fields, mut used) = (vec![0; numbers], vec![false; numbers]);
        for (field, (_, bytes)) in ENTITY_FIELDS.iter().enumerate() {
            for (i, field_offset) in (0..STRUCT_COUNT)
                .flat_map(|i| (0..*bytes).step_by(4).map(move |field_offset| (i, field_offset)))
            {
                fields[(layout.place(STRUCT_COUNT, LINE, i, field, field_offset) / 4) as usize] = field;
            }
        }
        access.places(layout, STRUCT_COUNT, LINE).for_each(|place| used[(place / 4) as usize] = true);
        let mut loaded = access.loaded_lines(layout, STRUCT_COUNT, LINE);
        loaded.truncate((STRUCT_COUNT * STRUCT_BYTES / LINE) as usize);
        Lines { layout: layout.name().to_owned(), fields, used, loaded }
    });
    let array = Layout::ALL.iter().position(|known| *known == layout).unwrap_or(0);
    let Lines { used, loaded, .. } = &arrays[array];
    let steps = loaded.iter().zip(used.chunks(LINE as usize / 4)).enumerate();
    let steps = steps.filter(|(_, (loaded, _))| **loaded).map(|(line, (_, used))| {
        let numbers = used.iter().filter(|used| **used).count();
        let text = format!("Line {line} is loaded: {} of its {LINE} bytes are used.", numbers * 4);
        Step::new(text, On::Line { array, line })
    });
    let steps = steps.collect();
    let names = ENTITY_FIELDS.map(|(name, _)| name.to_owned()).into();
    Structure::new(Shape::Lines { names, arrays: arrays.into(), line: LINE as usize }, steps)
}
