//! What a demo is.

use super::command::Command;
use super::scene::Scene;
use crate::allocators::Holes;

/// An allocator that is driven by hand.
pub trait Demo {
    /// Does what it is told, and says what that did.
    ///
    /// # Errors
    /// It is refused, for a reason in words; nothing changed then.
    fn tell(&mut self, command: &Command) -> Result<String, String>;
    /// Shows what is, and says nothing.
    fn scene(&self) -> Scene;

    /// Does what it is told, and shows what is then.
    fn act(&mut self, command: &Command) -> Scene {
        let said = self.tell(command);
        let refused = said.is_err();
        Scene { said: said.unwrap_or_else(|refusal| refusal), refused, ..self.scene() }
    }
}

/// Free memory, in words.
pub(super) fn free(holes: Holes) -> String {
    match holes.count {
        0 => "nothing".to_owned(),
        1 => format!("{} bytes in one piece", holes.total),
        pieces => format!("{} bytes in {pieces} pieces, the largest {}", holes.total, holes.largest),
    }
}

pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
