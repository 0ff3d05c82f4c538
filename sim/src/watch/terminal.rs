//! The terminal, and a trait that tests implement to replace it.

use anyhow::{Context, bail};
use ratatui::crossterm::event::{Event, KeyEvent, KeyEventKind, poll, read};
use ratatui::{DefaultTerminal, Frame};
use std::io::{IsTerminal, stdout};
use std::time::Duration;

/// A display together with a source of keys.
pub(crate) trait Screen {
    /// Draws a new picture on the display.
    fn draw(&mut self, picture: &dyn Fn(&mut Frame<'_>)) -> anyhow::Result<()>;
    /// Returns the next key if the user presses one within the time `within`. With `None`, the call waits without a
    /// time limit.
    fn key(&mut self, within: Option<Duration>) -> anyhow::Result<Option<KeyEvent>>;
}

/// Returns an error if standard output is not a terminal. The parameter `else_` is an alternative that the error
/// message suggests.
pub(crate) fn require_terminal(else_: &str) -> anyhow::Result<()> {
    if !stdout().is_terminal() {
        bail!("standard output is not a terminal; {else_}");
    }
    Ok(())
}

/// The real terminal; its state is restored when this value is dropped or the program panics.
#[derive(Debug)]
pub(crate) struct Terminal(DefaultTerminal);

impl Terminal {
    /// Takes over the terminal; pictures replace its content.
    pub(crate) fn start() -> anyhow::Result<Self> {
        // Taking over the terminal may fail halfway.
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore()).context("cannot use the terminal")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl Screen for Terminal {
    fn draw(&mut self, picture: &dyn Fn(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.0.draw(|frame| picture(frame)).context("cannot use the terminal")?;
        Ok(())
    }
    fn key(&mut self, within: Option<Duration>) -> anyhow::Result<Option<KeyEvent>> {
        if let Some(time) = within
            && !poll(time).context("cannot use the terminal")?
        {
            return Ok(None);
        }
        match read().context("cannot use the terminal")? {
            Event::Key(event) if event.kind != KeyEventKind::Release => Ok(Some(event)),
            _ => Ok(None),
        }
    }
}
