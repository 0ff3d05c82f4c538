//! Demos of textbook allocators, which run a user's commands, and the state of the memory after each command.
//!
//! A demo is an allocator of the lab in a small memory, with a script that shows how the allocator works. [`Demo::act`]
//! runs one [`Command`] and returns the [`Scene`] after the command. `uslab lab demo` prints the scenes.
//!
//! ```
//! use uslab_lab::demos::Name;
//!
//! let mut buddy = Name::Buddy.make()?;
//! let scene = buddy.act(&"alloc 65".parse()?);
//! assert_eq!(scene.said, "a is at byte 0 and has 128, 63 more than requested. It examined 4 free lists and made 3 splits.");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "experiments")]
mod args;
mod blocks;
mod command;
mod demo;
mod driven;
pub(crate) mod fifty_percent;
mod growing;
mod handles;
mod kinds;
mod lanes;
mod lazy;
mod names;
mod packed;
pub(crate) mod pinning;
mod race;
mod random;
pub(crate) mod robson;
mod scene;
mod slabs_over_buddy;
mod steps;
mod structure;
pub(crate) mod walk;

#[cfg(feature = "experiments")]
pub use args::Args;
pub use command::{Command, UnknownCommand};
pub use demo::Demo;
pub use names::{About, Claim, Name};
pub use race::{Race, race, random};
pub use scene::{Is, Part, Scene};
pub use structure::{
    Cell, Chunk, FreeBlock, Lane, Line, Lines, Mark, Named, On, Row, Shape, Slot, Step, Structure,
};

/// Runs a demo from its first command. The first line of `text` is the demo's name, and each further line is a command.
/// Returns the scene after each command; an invalid line has a scene that reports a refusal. Returns `None` if the demo
/// is unknown or memory is exhausted.
pub fn play(text: &str) -> Option<Vec<Scene>> {
    let mut lines = text.lines();
    let name = lines.next()?;
    let name = Name::ALL.into_iter().find(|demo_name| demo_name.name() == name)?;
    let mut demo = name.make().ok()?;
    let mut scenes = vec![demo.scene()];
    scenes.extend(lines.map(|line| match line.parse::<Command>() {
        Ok(command) => demo.act(&command),
        Err(error) => Scene { said: error.to_string(), refused: true, ..demo.scene() },
    }));
    Some(scenes)
}

#[cfg(test)]
mod tests;
