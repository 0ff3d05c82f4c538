//! Maps the keys of the terminal to commands.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A command that the user gives with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Play,
    /// Move forward by this number of operations, or back if the number is negative.
    By(i64),
    Home,
    End,
    /// Run to the next operation that its CPU alone does not serve.
    Slow,
    /// Run to the next event of the chosen kind.
    Until,
    /// Choose another kind of event to run to.
    Condition,
    Follow,
    /// Show all events of the followed object in the whole run.
    Life,
    /// Show the owner of each page of memory.
    Map,
    /// Move down the list by this number of caches, or up if the number is negative.
    Cache(i64),
    Design,
    /// Show fewer operations in the time line.
    Closer,
    /// Show more operations in the time line.
    Farther,
    Whole,
    /// Play ten times as fast.
    Faster,
    Slower,
    Help,
    Quit,
}

/// Returns the command of a key; `None` if the key has no command.
pub(crate) fn key(event: KeyEvent) -> Option<Key> {
    let KeyEvent { code, modifiers, .. } = event;
    let far = if modifiers.contains(KeyModifiers::SHIFT) { 1000 } else { 1 };
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char(' ') => Key::Play,
        KeyCode::Right => Key::By(far),
        KeyCode::Left => Key::By(-far),
        KeyCode::PageDown => Key::By(1000),
        KeyCode::PageUp => Key::By(-1000),
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Up => Key::Cache(-1),
        KeyCode::Down => Key::Cache(1),
        KeyCode::Char('n') => Key::Slow,
        KeyCode::Char('u') => Key::Until,
        KeyCode::Char('U') => Key::Condition,
        KeyCode::Char('f') => Key::Follow,
        KeyCode::Char('l') => Key::Life,
        KeyCode::Char('m') => Key::Map,
        KeyCode::Char('d') => Key::Design,
        KeyCode::Char('+') => Key::Closer,
        KeyCode::Char('-') => Key::Farther,
        KeyCode::Char('0') => Key::Whole,
        KeyCode::Char('>') => Key::Faster,
        KeyCode::Char('<') => Key::Slower,
        KeyCode::Char('?') => Key::Help,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        _ => return None,
    })
}
