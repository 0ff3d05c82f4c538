//! What keys mean.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Play,
    /// So many operations on, or back.
    By(i64),
    Home,
    End,
    /// To the next operation that leaves what its CPU holds.
    Slow,
    /// Run until what is chosen happens.
    Until,
    /// Choose another thing to happen.
    Condition,
    Follow,
    /// What happened to the followed object, from the first operation to the last.
    Life,
    /// Whose each page of memory is.
    Map,
    /// So many caches down the list, or up.
    Cache(i64),
    Design,
    /// Look closer at the time line.
    Closer,
    /// See more of it.
    Farther,
    Whole,
    /// Play ten times as fast, or slow.
    Faster,
    Slower,
    Help,
    Quit,
}

/// `None`: nothing that concerns anybody.
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
