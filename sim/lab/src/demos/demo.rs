//! The interface that all demos implement.

use super::command::Command;
use super::scene::Scene;
use crate::allocators::Holes;

/// A demo of an allocator, which runs a user's commands.
pub trait Demo {
    /// Runs a command, and returns a sentence about the command's effect.
    ///
    /// # Errors
    /// Fails with a sentence that gives the reason for a refusal; a refused command changes nothing.
    fn run(&mut self, command: &Command) -> Result<String, String>;
    /// Returns the current state of the memory without a sentence about a command.
    fn scene(&self) -> Scene;

    /// Runs a command, and returns the state after the command.
    fn act(&mut self, command: &Command) -> Scene {
        let result = self.run(command);
        let refused = result.is_err();
        Scene { said: result.unwrap_or_else(|refusal| refusal), refused, ..self.scene() }
    }
}

/// Describes the free memory in words.
pub(super) fn free(holes: Holes) -> String {
    match holes.count {
        0 => "nothing".to_owned(),
        1 => format!("{} bytes in one piece", holes.total),
        pieces => format!("{} bytes in {pieces} pieces, the largest {}", holes.total, holes.largest),
    }
}

pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
