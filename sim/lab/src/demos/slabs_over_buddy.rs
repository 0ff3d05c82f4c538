//! The demo of a buddy allocator that serves objects of one size, first directly and then through slabs.

use super::command::Command;
use super::lanes::{Program, Steps, grouped};
use super::pinning::fill;
use super::scene::{Is, Part};
use super::structure::Lane;
use crate::allocators::memory::MemoryPiece;
use crate::allocators::{Allocator, Buddy};
use core::alloc::Layout;
use uslab::{Geometry, OrderRule};

/// The memory of each buddy allocator in bytes.
const MEMORY: usize = 1 << 16;
/// The sizes of objects that a user can choose.
const SIZES: [usize; 4] = [1100, 600, 2048, 2700];
const OBJECT: &str = "object";

/// A buddy allocator that is full of blocks, each of which holds objects.
#[derive(Debug)]
struct FilledSlabs {
    buddy: Buddy,
    blocks: Vec<MemoryPiece>,
    /// The number of objects in a block, and the distance in bytes from one object to the next.
    objects: usize,
    stride: usize,
}

impl FilledSlabs {
    /// Fills a buddy allocator with blocks of `bytes` bytes.
    fn new(bytes: usize, objects: usize, stride: usize) -> Option<Self> {
        let mut buddy = Buddy::new(MEMORY).ok()?;
        let blocks = fill(&mut buddy, Layout::from_size_align(bytes, 1).ok()?);
        Some(Self { buddy, blocks, objects, stride })
    }
    fn count(&self) -> usize {
        self.blocks.len() * self.objects
    }
    fn lane(&self, name: &str, size: usize) -> Lane {
        let mut parts = vec![];
        for block in &self.blocks {
            let range = self.buddy.range(block);
            let mut at = range.start;
            for _ in 0..self.objects {
                parts.push(Part::of(at..at + size, Is::Used(OBJECT.to_owned())));
                parts.push(Part::of(at + size..at + self.stride, Is::Rounding(OBJECT.to_owned())));
                at += self.stride;
            }
            parts.push(Part::of(at..range.end, Is::Rounding(OBJECT.to_owned())));
        }
        parts.retain(|part| part.bytes > 0);
        let requested = self.count() * size;
        let says = format!(
            "{} objects; {} of {} bytes requested; {:.2} times the requested bytes",
            self.count(),
            grouped(requested),
            grouped(MEMORY),
            MEMORY as f64 / requested as f64
        );
        Lane { name: name.to_owned(), says, parts, curve: vec![] }
    }
}

/// The state of the demo: the object size, and the two buddy allocators.
#[derive(Debug, Default)]
pub(super) struct SlabsOverBuddy(Option<(usize, FilledSlabs, FilledSlabs)>);

impl SlabsOverBuddy {
    fn fill(&mut self, size: &str, steps: &mut Steps) -> Result<String, String> {
        let size = size.parse().ok().filter(|size| SIZES.contains(size));
        let size: usize = size.ok_or("Expected `fill 1100`, `fill 600`, `fill 2048` or `fill 2700`.")?;
        let geometry = Geometry::new(size, 0, &OrderRule::for_cpus(4)).map_err(|error| error.to_string())?;
        let (objects, stride) = (geometry.objects(), geometry.stride());
        let slab = objects * stride + geometry.waste();
        let block = size.next_power_of_two();
        let filled = FilledSlabs::new(size, 1, block).zip(FilledSlabs::new(slab, objects, stride));
        let (alone, slabs) = filled.ok_or("Memory is short.")?;
        let counts = [alone.count(), slabs.count()];
        let empty = Lane {
            name: NAMES[1].to_owned(),
            says: "no slab yet".to_owned(),
            parts: vec![Part::of(0..MEMORY, Is::Free)],
            curve: vec![],
        };
        steps.push((
            format!(
                "Without slabs: each object of {} bytes gets a block of {} bytes, of which {} bytes are not used.",
                grouped(size),
                grouped(block),
                grouped(block - size)
            ),
            vec![alone.lane(NAMES[0], size), empty],
        ));
        steps.push((
            format!(
                "With slabs: the buddy allocator hands out blocks of {} bytes. A slab cuts its block into {objects} objects of {} bytes.",
                grouped(slab),
                grouped(stride)
            ),
            vec![],
        ));
        self.0 = Some((size, alone, slabs));
        let [alone, slabs] = counts;
        Ok(format!(
            "{} bytes hold {alone} objects of {} bytes without slabs, and {slabs} objects in slabs{}",
            grouped(MEMORY),
            grouped(size),
            if size.is_power_of_two() { ": a power of two wastes nothing." } else { "." }
        ))
    }
}

const NAMES: [&str; 2] = ["buddy alone", "slabs over a buddy"];

impl Program for SlabsOverBuddy {
    const KINDS: &'static [&'static str] = &[OBJECT];

    fn run(&mut self, command: &Command, steps: &mut Steps) -> Result<String, String> {
        match command {
            Command::Fill { what } => self.fill(what, steps),
            _ => Err("Expected `fill SIZE`.".to_owned()),
        }
    }
    fn lanes(&self) -> Vec<Lane> {
        let lanes = |(size, alone, slabs): &(usize, FilledSlabs, FilledSlabs)| {
            vec![alone.lane(NAMES[0], *size), slabs.lane(NAMES[1], *size)]
        };
        self.0.as_ref().map(lanes).unwrap_or_default()
    }
    fn facts(&self) -> Vec<(String, String)> {
        vec![]
    }
}
