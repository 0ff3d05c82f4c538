//! Draws the table of caches on a terminal, and redraws it for each reading.

use super::reading::{Cache, Rates, Reading, Sort};
use super::source::{Source, SourceUpdate};
use crate::watch::terminal::Screen;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use std::time::{Duration, Instant};

/// The interval at which the screen checks for a requested reading.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_KEY_WAIT: Duration = Duration::from_secs(1);

/// The data that the screen of `uslab top` shows.
#[derive(Debug)]
pub(super) struct Top {
    of: String,
    pub(super) reading: Reading,
    /// The previous reading, from which rates are computed.
    before: Option<Reading>,
    every: Duration,
    pub(super) sort: Sort,
    pub(super) colour: bool,
}

/// A column: its name, its width, and the text of a cell.
type Column = (&'static str, usize, fn(&Cache, &Rates) -> String);

const NAME: usize = 14;
/// The columns of the table, most important first, because a narrow terminal shows only the first columns.
const COLUMNS: [Column; 14] = [
    ("IN USE", 7, |cache, _| short_number(cache.used)),
    ("%", 4, |cache, _| cache.in_use().to_string()),
    ("CPUS'", 6, |cache, _| short_number(cache.in_magazines)),
    ("SHARED", 7, |cache, _| short_number(cache.in_depot)),
    ("SIZE", 6, |cache, _| short_number(cache.object_size)),
    ("SLABS", 6, |cache, _| short_number(cache.slabs)),
    ("BYTES", 7, |cache, _| bytes(cache.bytes())),
    ("ALLOC/S", 8, |_, rates| short_number(rates.allocs.round() as u64)),
    ("FREE/S", 7, |_, rates| short_number(rates.frees.round() as u64)),
    ("DEPOT/S", 8, |_, rates| short_number(rates.depot.round() as u64)),
    ("SLAB+/S", 8, |_, rates| short_number(rates.slabs_made.round() as u64)),
    ("SLAB-/S", 8, |_, rates| short_number(rates.slabs_released.round() as u64)),
    ("OBJECTS", 9, |cache, _| short_number(cache.objects)),
    ("PER SLAB", 9, |cache, _| cache.objs_per_slab.to_string()),
];

/// Formats a number in at most five characters.
fn short_number(n: u64) -> String {
    match n {
        0..=99_999 => n.to_string(),
        100_000..=9_999_999 => format!("{}k", n / 1000),
        10_000_000..=9_999_999_999 => format!("{}M", n / 1_000_000),
        _ => format!("{}G", n / 1_000_000_000),
    }
}
/// Formats a number of bytes in at most six characters.
fn bytes(n: u64) -> String {
    match n >> 10 {
        kib @ 0..=9_999 => format!("{kib}K"),
        kib @ 10_000..=10_239_999 => format!("{}M", kib >> 10),
        kib => format!("{}G", kib >> 20),
    }
}

impl Top {
    pub(super) fn new(of: String, reading: Reading, every: Duration) -> Self {
        Self { of, reading, before: None, every, sort: Sort::Bytes, colour: true }
    }
    /// Stores the next reading, to be shown.
    pub(super) fn take(&mut self, reading: Reading) {
        self.before = Some(std::mem::replace(&mut self.reading, reading));
    }
    /// Handles a key that the user pressed. Returns `false` if the user has quit.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char(letter) => {
                if let Some((_, sort, _)) = Sort::ALL.iter().find(|(own, ..)| *own == letter) {
                    self.sort = *sort;
                }
            }
            _ => {}
        }
        true
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let (width, height) = (usize::from(area.width), usize::from(area.height));
        let rows = self.sort.rows(&self.reading.caches, self.before.as_ref(), self.reading.at);
        let by = Sort::ALL.iter().find(|(_, sort, _)| *sort == self.sort).map_or("", |(.., name)| name);
        let sum = |of: fn(&Rates) -> f64| {
            short_number(rows.iter().map(|(_, rates)| of(rates)).sum::<f64>().round() as u64)
        };
        let every = self.every.as_secs_f64();
        let mut lines = vec![Line::from(format!("uslab top  {}  every {every} s, by {by}", self.of)).bold()];
        lines.extend(self.reading.header_lines().into_iter().map(Line::from));
        lines.push(Line::from(format!(
            "per second: {} allocations, {} frees, {} depot exchanges, slabs +{} -{}",
            sum(|rates| rates.allocs),
            sum(|rates| rates.frees),
            sum(|rates| rates.depot),
            sum(|rates| rates.slabs_made),
            sum(|rates| rates.slabs_released)
        )));
        let mut room = width.saturating_sub(NAME);
        let columns = COLUMNS.iter().take_while(|(_, wide, _)| {
            let fits = room >= *wide;
            room = room.saturating_sub(*wide);
            fits
        });
        let columns: Vec<_> = columns.collect();
        let head = columns.iter().map(|(head, wide, _)| format!("{head:>wide$}")).collect::<String>();
        lines.push(Line::from(format!("{:NAME$}{head}", "CACHE")).reversed());
        for (cache, rates) in rows.iter().take(height.saturating_sub(lines.len() + 1)) {
            let cells = columns.iter().map(|(_, wide, of)| format!("{:>wide$}", of(cache, rates)));
            let busy = rates.allocs + rates.frees > 0.0 && self.colour;
            let style = if busy { Style::new().fg(Color::Green) } else { Style::new() };
            let name = Span::styled(format!("{:NAME$.NAME$}", cache.name), style);
            lines.push(Line::from(vec![name, Span::from(cells.collect::<String>())]));
        }
        lines.resize(height.saturating_sub(1), Line::default());
        lines.truncate(height.saturating_sub(1));
        let letters: String = Sort::ALL.iter().map(|(letter, ..)| format!(" {letter}")).collect();
        let age = self.reading.at.elapsed().unwrap_or_default().as_secs();

        lines.push(Line::from(format!("q quit  sort by:{letters}   reading: {age} s old")));
        frame.render_widget(Text::from(lines), area);
    }
}

/// Shows readings until the user quits (returns `false`) or the observed program ends (returns `true`).
pub(super) fn follow(top: &mut Top, source: &mut Source, screen: &mut dyn Screen) -> anyhow::Result<bool> {
    let (mut requested_at, mut waiting) = (Instant::now(), false);
    loop {
        screen.draw(&|frame| top.draw(frame))?;
        let left = top.every.saturating_sub(requested_at.elapsed());
        // The loop wakes up at least each second, because the screen shows the age of the reading.
        if let Some(key) = screen.key(Some(if waiting { POLL_INTERVAL } else { left.min(MAX_KEY_WAIT) }))?
            && !top.handle_key(key)
        {
            return Ok(false);
        }
        if requested_at.elapsed() >= top.every && !waiting {
            requested_at = Instant::now();
            waiting = true;
            if !source.ask()? {
                return Ok(true);
            }
        }
        if waiting {
            match source.look()? {
                SourceUpdate::New(reading) => {
                    top.take(reading);
                    waiting = false;
                }
                SourceUpdate::Nothing => {}
                SourceUpdate::Ended => return Ok(true),
            }
        }
    }
}
