//! Draws the screen: title, time line, the last operation, machine, pages, keys.

use super::app::{App, Overlay, Place, Sample, VISIBLE_LANES};
use super::machine;
use crate::output::grouped;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};
use uslab_engine::Path;
use uslab_engine::until::Found;
use uslab_engine::view::{PageKind, Pages};

/// The characters for bars, indexed by height in eighths.
const BAR_CHARACTERS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The width of the label in front of a row of the time line.
const LABEL_WIDTH: u16 = 17;

const HELP_TEXT: &str = "\
space         play, pause         < >  slower, faster
left, right   an operation back, forward
PageUp/Down   1,000 of them; also Shift with an arrow
Home, End     to the ends
n             next slow path: an operation that leaves its CPU
u             run until it happens        U  until what
f             follow the object that this operation touched
l             its life: all that happened to it  m  whose each page is
up, down      another cache up close
d             next design
+ - 0         closer to the time line, farther, all of it
q, Escape     quit

u in use   . free in its slab   d shared by CPUs
a, b, c, e... held by CPU 0, 1, 2, 3... (no d, no u)
bars: CPUs beside the one that holds the most of the cache
cpu depot slab pages commit: where an operation was served

A CPU allocates from what it holds, without a lock. After that
come what CPUs share, slabs, pages and the system.
Any key goes back.";

/// Distributes the rows of the screen from the top, until no rows are left.
struct RowLayout(Rect);

impl RowLayout {
    fn next(&mut self, rows: u16) -> Rect {
        let rows = rows.min(self.0.height);
        let next = Rect { height: rows, ..self.0 };
        self.0 = Rect { y: self.0.y + rows, height: self.0.height - rows, ..self.0 };
        next
    }
}

impl App<'_> {
    /// Returns a style with the given colour, or a plain style if the terminal has no colours.
    pub(super) fn colour_style(&self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
    pub(super) fn faint_style(&self) -> Style {
        self.colour_style(Color::DarkGray)
    }
}

pub(super) fn draw(app: &App<'_>, frame: &mut Frame<'_>) {
    let (area, pages) = (frame.area(), pages(&app.view.pages));
    let mut rows = RowLayout(area);
    let cpus = machine::cpus(app, area.width);
    // The fixed rows are title, time line, sentence, two headers, pages and keys; the rest is for the machine.
    let rest = area.height.saturating_sub(1 + 3 + 3 + 2 + pages.len() as u16 + 1);
    let near = (cpus.len() as u16).min(1 + rest / 3);
    let lanes = (VISIBLE_LANES as u16).min((rest - near.min(rest)) / 2);
    frame.render_widget(title(app, area.width), rows.next(1));
    for line in draw_time_line(app, area.width) {
        frame.render_widget(line, rows.next(1));
    }
    frame.render_widget(Paragraph::new(format_operation_line(app)).wrap(Wrap { trim: true }), rows.next(3));
    frame.render_widget(Text::from(machine::lanes(app, lanes.into())), rows.next(1 + lanes));
    frame.render_widget(machine::head(app), rows.next(1));
    frame.render_widget(Text::from(cpus), rows.next(near));
    let slabs = rows.0.height.saturating_sub(pages.len() as u16 + 1);
    frame.render_widget(Text::from(machine::slabs(app, area.width, slabs.into())), rows.next(slabs));
    frame.render_widget(Text::from(pages), rows.next(rows.0.height.saturating_sub(1)));
    frame.render_widget(footer_line(app), rows.next(1));
    // The panel covers only the machine, so that the last operation stays visible.
    let below = Rect { y: area.y + 7.min(area.height), height: area.height.saturating_sub(8), ..area };
    match app.over {
        Overlay::Life => draw_overlay(frame, below, format_history_title(app), history_lines(app, below)),
        Overlay::Map => draw_overlay(frame, below, page_map_title(app, below), map(app, below)),
        Overlay::Help | Overlay::Nothing => {}
    }
    if app.over == Overlay::Help {
        let height = HELP_TEXT.lines().count() as u16 + 2;
        let middle = area
            .centered(ratatui::layout::Constraint::Length(68), ratatui::layout::Constraint::Length(height));
        frame.render_widget(Clear, middle);
        frame.render_widget(Paragraph::new(HELP_TEXT).block(Block::bordered().title(" Keys ")), middle);
    }
}

fn draw_overlay(frame: &mut Frame<'_>, area: Rect, title: String, lines: Vec<Line<'static>>) {
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), area);
}

fn format_history_title(app: &App<'_>) -> String {
    let Some(Place { cache, page, index }) = app.followed else { return String::new() };
    format!(
        " {} {index} of page {page}: {} events in the whole run ",
        app.name(cache),
        grouped(app.life.len() as u64)
    )
}
/// Lists the events of the followed object; the middle line is the last event before the shown state.
fn history_lines(app: &App<'_>, area: Rect) -> Vec<Line<'static>> {
    let rows = usize::from(area.height.saturating_sub(2));
    let past = app.life.partition_point(|event| event.operation <= app.view.operation);
    let first = past.saturating_sub(1).saturating_sub(rows / 2).min(app.life.len().saturating_sub(rows));
    let line = |(at, event): (usize, &Found)| {
        let Found { operation, cpu, touched, holder } = *event;
        let is = holder.map_or_else(|| "destroyed with its slab".to_owned(), machine::holder);
        let did = match (touched, holder) {
            (true, Some('u')) => "allocates it".to_owned(),
            (true, _) => format!("frees it: it is {is}"),
            (false, _) => format!("moves it: it is {is}"),
        };
        let here = if at + 1 == past { '>' } else { ' ' };
        let line = Line::from(format!("{here} operation {:>11}  CPU {cpu} {did}", grouped(operation)));
        if here == '>' { line.bold() } else { line }
    };
    app.life.iter().enumerate().skip(first).take(rows).map(line).collect()
}

/// Returns the number of pages that one character of the map represents.
fn pages_per_character(app: &App<'_>, area: Rect) -> usize {
    let places = usize::from(area.width.saturating_sub(2)) * usize::from(area.height.saturating_sub(2));
    app.map.len().div_ceil(places.max(1)).max(1)
}
fn page_map_title(app: &App<'_>, area: Rect) -> String {
    let each = pages_per_character(app, area);
    let pages = if each == 1 { "a page each".to_owned() } else { format!("{each} pages each") };
    format!(" pages, {pages}: s slabs, o other, c CPUs', . free ")
}
/// Draws the map of pages. Each character shows the kind that most of its pages have; it shows free only if all its
/// pages are free.
fn map(app: &App<'_>, area: Rect) -> Vec<Line<'static>> {
    let kinds = [
        ('.', PageKind::Free, Color::DarkGray),
        ('c', PageKind::PerCpu, Color::Yellow),
        ('s', PageKind::Slab, Color::Blue),
        ('o', PageKind::Block, Color::Magenta),
    ];
    let place = |pages: &[u8]| {
        let count = |is: PageKind| pages.iter().filter(|page| **page == is as u8).count();
        let (letter, _, colour) = *kinds[1..].iter().max_by_key(|(_, is, _)| count(*is)).unwrap_or(&kinds[0]);
        let (letter, colour) =
            if count(PageKind::Free) == pages.len() { ('.', Color::DarkGray) } else { (letter, colour) };
        Span::styled(letter.to_string(), app.colour_style(colour))
    };
    let places: Vec<_> = app.map.chunks(pages_per_character(app, area)).map(place).collect();
    places
        .chunks(usize::from(area.width.saturating_sub(2)).max(1))
        .map(|row| Line::from(row.to_vec()))
        .collect()
}

fn title(app: &App<'_>, width: u16) -> Line<'static> {
    let (about, view) = (&app.about, &app.view);
    let left = format!("uslab watch  design {}  {}", app.designs[app.design], about.title);
    let right = format!(
        "{} of {}  {:.6} s",
        grouped(view.operation),
        grouped(about.operations),
        view.time_ns as f64 / 1e9
    );
    // If the row is too short, the trace's name is cut, not the position.
    let room = usize::from(width).saturating_sub(right.len() + 2);
    let left: String = left.chars().take(room).collect();
    Line::from(vec![Span::from(format!("{left:room$}  ")).bold(), Span::from(right).bold()])
}

/// Draws the time line: objects in use, cached objects, and the current position.
fn draw_time_line(app: &App<'_>, width: u16) -> [Line<'static>; 3] {
    let columns = usize::from(width.saturating_sub(LABEL_WIDTH)).max(1);
    let length = (app.range.end - app.range.start).max(1);
    let operation =
        |column: usize| app.range.start + (length as u128 * column as u128 / columns as u128) as u64;
    let column = |at: u64| {
        let inside = at.checked_sub(app.range.start).filter(|at| *at <= length)?;
        Some(((u128::from(inside) * columns as u128 / u128::from(length)) as usize).min(columns - 1))
    };
    let here = column(app.view.operation);
    let row = |label: &str, place: usize, colour: Color| {
        let value = |column| {
            // The last point of the column, which is the first point of the next column.
            let until = operation(column + 1);
            let points = app.samples.partition_point(|sample| sample.at <= until);
            app.samples.get(points.saturating_sub(1)).map_or(0.0, |sample: &Sample| sample.values[place])
        };
        let values: Vec<f64> = (0..columns).map(value).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let bars = values.into_iter().enumerate().map(|(column, value)| {
            let eighths = if most > 0.0 { (value / most * 8.0).round() as usize } else { 0 };
            let style = app.colour_style(colour);
            let style = if Some(column) == here { style.reversed() } else { style };
            Span::styled(BAR_CHARACTERS[eighths].to_string(), style)
        });
        let label = format!("{label} <= {}", grouped(most as u64));
        let room = usize::from(LABEL_WIDTH);
        Line::from_iter(
            [Span::styled(format!("{label:room$.room$}"), app.faint_style())].into_iter().chain(bars),
        )
    };
    let mut marks = vec![' '; columns];
    let mut free = 0;
    for mark in app.about.marks {
        let Some(at) = column(mark.operation).filter(|at| *at >= free && !mark.text.ends_with(" end")) else {
            continue;
        };
        let short = mark.text.strip_prefix("SNAP ").unwrap_or(&mark.text).trim_end_matches(" begin");
        let text = format!("|{}", short.to_lowercase());
        free = at + text.chars().count() + 1;
        marks.iter_mut().skip(at).zip(text.chars()).for_each(|(to, from)| *to = from);
    }
    if let Some(here) = here {
        marks[here] = '▲';
    }
    let marks: String = marks.into_iter().collect();
    let play = match app.playing {
        true => format!("> {} a second", grouped(app.speed())),
        false => String::new(),
    };
    let room = usize::from(LABEL_WIDTH);
    [
        row("in use", 0, Color::Blue),
        row("cached", 1, Color::Yellow),
        Line::from(vec![Span::from(format!("{play:room$.room$}")), Span::from(marks)]),
    ]
}

/// Formats the line with sentences about the last operation.
fn format_operation_line(app: &App<'_>) -> Line<'static> {
    let view = &app.view;
    let path = view.steps.iter().filter_map(|step| step.path).max();
    let mark = app.about.marks.iter().find(|mark| mark.operation == view.operation);
    let (chip, colour) = match path {
        Some(path @ Path::Cpu) => (path.name(), Color::Green),
        Some(path) => (path.name(), Color::Red),
        None if mark.is_some() => ("mark", Color::Cyan),
        None if view.operation == 0 => ("begin", Color::Cyan),
        None => ("nothing", Color::DarkGray),
    };
    let text = match mark {
        Some(mark) if path.is_none() => format!("The trace is marked here: {}.", mark.text),
        _ if view.operation == 0 => {
            "No operation has run yet: every cache is empty, and no memory is committed.".to_owned()
        }
        _ => view.steps.iter().map(|step| &*step.sentence).collect::<Vec<_>>().join(" "),
    };
    Line::from(vec![
        Span::styled(format!("[{chip}]"), app.colour_style(colour)).bold(),
        Span::from(format!(" {text}")),
    ])
}

fn pages(pages: &Pages) -> Vec<Line<'static>> {
    let Pages { managed, slab, large, blocks, per_cpu, free, uncommitted, orders, cpus, depot, .. } = pages;
    let [managed, slab, large, blocks, per_cpu, free, uncommitted] =
        [managed, slab, large, blocks, per_cpu, free, uncommitted].map(|pages| grouped(*pages));
    let orders =
        orders.iter().enumerate().map(|(order, types)| format!(" {order}:{}", types.iter().sum::<u32>()));
    let kept = |blocks: &[u32]| -> u64 {
        blocks.iter().enumerate().map(|(order, blocks)| u64::from(*blocks) << order).sum()
    };
    let each = cpus.iter().take(64).map(|cpu| format!(" {}", grouped(kept(cpu)))).collect::<String>();
    let head = |text: &'static str| Span::from(text).bold();
    let line = |name, text: String| Line::from(vec![head(name), Span::from(text)]);
    let kept = format!("{each}  shared {}", grouped(kept(depot)));
    vec![
        line("pages", format!(" {slab} slabs, {large} large, {blocks} other, {per_cpu} CPUs', {free} free")),
        line("free blocks by order", orders.collect()),
        line("no memory yet", format!(" {uncommitted} of {managed}  CPUs keep{kept}")),
    ]
}

fn footer_line(app: &App<'_>) -> Line<'static> {
    if !app.problem.is_empty() {
        return Line::from(Span::styled(app.problem.clone(), app.colour_style(Color::Red)).reversed());
    }
    let keys = format!("? keys  q quit  space play  n slow  u until {} (U)", app.condition());
    Line::from(Span::styled(keys, app.faint_style()))
}
