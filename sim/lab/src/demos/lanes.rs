//! Demos of one program that runs on several allocators, each of which is a lane of the picture.

use super::command::Command;
use super::demo::Demo;
use super::scene::{Is, Part, Scene};
use super::structure::{Lane, Line, On, Shape, Step, Structure};
use core::ops::Range;

/// A program that allocates from several allocators.
pub(super) trait Program {
    /// The kinds of blocks that the picture distinguishes.
    const KINDS: &'static [&'static str];

    /// Runs a command, and adds the command's steps to `steps`. Returns a sentence that describes the effect of the
    /// command.
    ///
    /// # Errors
    /// Fails with a sentence that gives the reason for a refusal; a refused command changes nothing.
    fn run(&mut self, command: &Command, steps: &mut Steps) -> Result<String, String>;
    /// Returns the memory of each allocator as a lane of the picture.
    fn lanes(&self) -> Vec<Lane>;
    /// Returns the marks that are at the same location in all memories.
    fn marks(&self) -> Vec<Line> {
        vec![]
    }
    /// Returns the program's figures, by name.
    fn facts(&self) -> Vec<(String, String)>;
}

/// The steps of a command, each with the state of all memories after it.
pub(super) type Steps = Vec<(String, Vec<Lane>)>;

/// The demo of a program that runs on several allocators.
#[derive(Debug)]
pub(super) struct Lanes<P> {
    program: P,
    steps: Steps,
}

impl<P: Program> Lanes<P> {
    pub(super) fn new(program: P) -> Self {
        Self { program, steps: vec![] }
    }
}

impl<P: Program> Demo for Lanes<P> {
    fn run(&mut self, command: &Command) -> Result<String, String> {
        self.steps.clear();
        self.program.run(command, &mut self.steps)
    }

    fn scene(&self) -> Scene {
        let (steps, mut frames): (Vec<_>, Vec<_>) = self.steps.iter().cloned().unzip();
        // The last step leads to the scene itself.
        frames.pop();
        let lanes = self.program.lanes();
        let end = |lane: &Lane| lane.parts.last().map_or(0, |part| part.at + part.bytes);
        let shape = Shape::Lanes {
            bytes: lanes.iter().map(end).max().unwrap_or(0),
            kinds: P::KINDS.iter().map(|kind| (*kind).to_owned()).collect(),
            marks: self.program.marks(),
            lanes,
            frames,
        };
        let steps = steps.into_iter().map(|said| Step::new(said, On::Lanes)).collect();
        let structure = Some(Structure::new(shape, steps));
        Scene { structure, facts: self.program.facts(), ..Scene::default() }
    }
}

/// Returns the ranges of a memory by kind; `blocks` are the blocks in use. The memory from the offset `top` on was
/// never used. A gap of less than `smallest_gap` bytes is headers and rounding, and counts as part of the preceding
/// block.
pub(super) fn parts_of(
    mut blocks: Vec<(Range<usize>, &str)>,
    smallest_gap: usize,
    top: usize,
    memory: Range<usize>,
) -> Vec<Part> {
    blocks.sort_by_key(|(range, _)| range.start);
    let mut parts: Vec<Part> = vec![];
    let mut end = memory.start;
    let gap = |parts: &mut Vec<Part>, range: Range<usize>, is: Is| match parts.last_mut() {
        Some(before) if range.len() < smallest_gap => before.bytes += range.len(),
        _ if range.is_empty() => {}
        _ => parts.push(Part::of(range, is)),
    };
    for (range, kind) in blocks {
        gap(&mut parts, end..range.start, Is::Free);
        parts.push(Part::of(range.clone(), Is::Used(kind.to_owned())));
        end = range.end;
    }
    let top = top.clamp(end, memory.end);
    gap(&mut parts, end..top, Is::Free);
    gap(&mut parts, top..memory.end, Is::Untouched);
    parts
}

/// Formats a number with commas between groups of three digits.
pub(super) fn grouped(n: usize) -> String {
    if n < 1000 { n.to_string() } else { format!("{},{:03}", grouped(n / 1000), n % 1000) }
}
