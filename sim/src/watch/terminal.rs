//! The terminal, and who stands in for it in tests.

use anyhow::{Context, bail};
use ratatui::crossterm::event::{Event, KeyEvent, KeyEventKind, poll, read};
use ratatui::{DefaultTerminal, Frame};
use std::io::{IsTerminal, stdout};
use std::time::Duration;

/// Where there is something to see, and somebody who presses keys.
pub(crate) trait Screen {
    /// Draws anew.
    fn draw(&mut self, picture: &dyn Fn(&mut Frame<'_>)) -> anyhow::Result<()>;
    /// The next key, if there is one within that time; `None` waits for ever.
    fn key(&mut self, within: Option<Duration>) -> anyhow::Result<Option<KeyEvent>>;
}

/// An error unless standard output is a terminal. `else_` says what does without.
pub(crate) fn needed(else_: &str) -> anyhow::Result<()> {
    if !stdout().is_terminal() {
        bail!("standard output is no terminal; {else_}");
    }
    Ok(())
}

/// The real one: as it was when this is dropped, or at a panic.
#[derive(Debug)]
pub(crate) struct Terminal(DefaultTerminal);

impl Terminal {
    /// Takes the terminal, with a picture in the place of what is on it.
    pub(crate) fn start() -> anyhow::Result<Self> {
        // It may fail halfway.
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore()).context("the terminal")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl Screen for Terminal {
    fn draw(&mut self, picture: &dyn Fn(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.0.draw(|frame| picture(frame)).context("the terminal")?;
        Ok(())
    }
    fn key(&mut self, within: Option<Duration>) -> anyhow::Result<Option<KeyEvent>> {
        if let Some(time) = within
            && !poll(time).context("the terminal")?
        {
            return Ok(None);
        }
        match read().context("the terminal")? {
            Event::Key(event) if event.kind != KeyEventKind::Release => Ok(Some(event)),
            _ => Ok(None),
        }
    }
}
