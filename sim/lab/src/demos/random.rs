//! Generates random scripts: lists of commands for one demo.

use super::command::Command;
use super::names::Name;
use super::scene::Is;
use super::structure::Shape;
use crate::allocators::memory::ConfigError;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng as _;

/// A generator of random numbers below a given bound; it yields the same numbers on every machine.
pub(super) struct Numbers(Pcg32);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(Pcg32::new(seed, 0x6465_6d6f))
    }
    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u64::from(self.0.next_u32()) * bound as u64) >> 32) as usize
    }
    fn choice<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }
}

impl Name {
    /// Generates `n` commands for this demo from `seed`. The generated commands are the same on every machine.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    pub fn script(self, seed: u64, n: usize) -> Result<Vec<Command>, ConfigError> {
        let (mut demo, mut numbers) = (self.make()?, Numbers::new(seed));
        let largest = match self {
            Self::Linear | Self::Stack => 48,
            Self::Pool => 96,
            Self::Tlsf => 600,
            Self::Pinning => 12_000,
            Self::Arena => 3000,
            _ => 200,
        };
        let pick = |numbers: &mut Numbers, choices: &str| {
            let options: Vec<_> = choices.split('|').map(str::to_owned).collect();
            numbers.choice(&options).cloned().unwrap_or_default()
        };
        let commands = self.about().takes;
        let mut script = vec![];
        while script.len() < n {
            let scene = demo.scene();
            let block_name =
                |piece: &Is| if let Is::Used(block) = piece { Some(block.clone()) } else { None };
            let mut live_blocks: Vec<_> =
                scene.parts.iter().filter_map(|part| block_name(&part.is)).collect();
            let (mut handles, mut marks) = (vec![], vec![]);
            match scene.structure.map(|structure| structure.shape) {
                Some(Shape::Slots { handles: options, .. } | Shape::Packed { handles: options, .. }) => {
                    handles = options.into_iter().map(|handle| handle.name).collect();
                }
                Some(Shape::Head { marks: mut options, .. }) => {
                    options.retain(|mark| !mark.name.starts_with("chunk"));
                    marks = options.into_iter().filter(|mark| !mark.stale).map(|mark| mark.name).collect();
                }
                _ => {}
            }
            let Some(command_form) = numbers.choice(commands) else { break };
            let words: Vec<_> = command_form.split(' ').collect();
            // Half of the commands allocate, and about six blocks are in use at a time.
            let allocates = numbers.below(12) >= live_blocks.len();
            let is_filled = script.iter().any(|command| matches!(command, Command::Fill { .. }));
            let command = match (words[0], words.get(1).copied()) {
                ("walk", _) => {
                    let access = pick(&mut numbers, words[1]);
                    Command::Walk { access, layout: pick(&mut numbers, words[2]) }
                }
                // A program begins with one fill, and seldom anew.
                ("fill", Some(choices)) if !is_filled || numbers.below(8) == 0 => {
                    Command::Fill { what: pick(&mut numbers, choices) }
                }
                ("round", _) if is_filled => Command::Round,
                ("free", Some("short-lived")) if is_filled => {
                    Command::Free { block: "short-lived".to_owned() }
                }
                ("free" | "alloc", _) if self == Self::Pinning && !is_filled => continue,
                ("get", _) if !handles.is_empty() => {
                    Command::Get { block: numbers.choice(&handles).cloned().unwrap_or_default() }
                }
                ("mark", _) if !live_blocks.is_empty() => Command::Mark,
                ("pop", _) if !marks.is_empty() && !allocates => {
                    Command::Pop { marker: numbers.choice(&marks).cloned().unwrap_or_default() }
                }
                ("reset", _) if scene.holes.total < 48 || self == Self::Arena && live_blocks.len() > 6 => {
                    Command::Reset
                }
                ("purge", _) if scene.holes.count > 3 => Command::Purge,
                ("free", _) if !live_blocks.is_empty() && !allocates => {
                    Command::Free { block: live_blocks.swap_remove(numbers.below(live_blocks.len())) }
                }
                ("alloc", Some(_)) if allocates => {
                    Command::Alloc { bytes: Some(1 + numbers.below(largest)), align: 1 }
                }
                ("alloc", None) if allocates => Command::Alloc { bytes: None, align: 1 },
                _ => continue,
            };
            demo.act(&command);
            script.push(command);
        }
        Ok(script)
    }
}
