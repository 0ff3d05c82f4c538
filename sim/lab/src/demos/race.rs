//! Runs the same random requests on several allocators.

use super::blocks::name;
use super::command::Command;
use super::names::Name;
use super::random::Numbers;
use super::scene::Scene;
use crate::allocators::memory::ConfigError;
use serde::Serialize;

/// Generates `n` commands from `seed`: they allocate and free blocks of 8 to 127 bytes in random order, and keep about
/// eight blocks in use. The generated commands are the same on every machine. If an allocator refused to allocate a
/// block, it also refuses the block's free.
pub fn random(seed: u64, n: usize) -> Vec<Command> {
    let mut numbers = Numbers::new(seed);
    let mut live_blocks: Vec<String> = vec![];
    let mut births = 0;
    (0..n)
        .map(|_| {
            // The more blocks are in use, the more likely is a free.
            if numbers.below(16) >= live_blocks.len() {
                live_blocks.push(name(births));
                births += 1;
                Command::Alloc { bytes: Some(8 + numbers.below(120)), align: 1 }
            } else {
                let index = numbers.below(live_blocks.len());
                Command::Free { block: live_blocks.swap_remove(index) }
            }
        })
        .collect()
}

/// Several allocators that serve the same requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Race {
    /// The requests.
    pub commands: Vec<String>,
    /// For each allocator, the state of its memory before the first request and after each request.
    pub scenes: Vec<(Name, Vec<Scene>)>,
}

/// Runs [random requests](random) on all demos that can [race](super::About::races).
///
/// # Errors
/// Fails if memory is exhausted.
pub fn race(seed: u64, requests: usize) -> Result<Race, ConfigError> {
    let commands = random(seed, requests);
    let racers = Name::ALL.into_iter().filter(|name| name.about().races);
    let scenes = racers.map(|name| {
        let mut demo = name.allocator_for_race()?;
        let begin = demo.scene();
        let scenes = commands.iter().map(|command| demo.act(command));
        Ok::<_, ConfigError>((name, core::iter::once(begin).chain(scenes).collect()))
    });
    Ok(Race {
        scenes: scenes.collect::<Result<_, _>>()?,
        commands: commands.iter().map(ToString::to_string).collect(),
    })
}
