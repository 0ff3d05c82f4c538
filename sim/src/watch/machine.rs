//! Draws the objects of each CPU, the shared objects, and the slabs: a row for each busy cache, and one cache in
//! detail.

use super::app::{App, Place};
use crate::output::grouped;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use uslab_engine::view::{Level, SeenCache, ShownCache, ShownSlab};

/// The largest number of bars in a row.
const MAX_BARS_PER_ROW: usize = 12;
/// The characters for bars. A bar shows the objects of a CPU, in eighths of the objects of the CPU with the most
/// objects.
const FULL: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The largest number of CPUs that the detailed view shows.
const MAX_CPUS: usize = 64;

fn shown<'a>(app: &'a App<'_>, cache: u32) -> Option<&'a ShownCache> {
    app.view.shown.iter().find(|shown| shown.cache == cache)
}
fn cache_view<'a>(app: &'a App<'_>, cache: u32) -> Option<&'a SeenCache> {
    app.view.caches.get(cache as usize)
}
/// Returns the number of objects in some levels, and the number that would fit into them.
fn sum<'a>(levels: impl IntoIterator<Item = &'a Level>) -> (u64, u64) {
    levels.into_iter().fold((0, 0), |(objects, room), level| {
        (objects + u64::from(level.objects), room + u64::from(level.room))
    })
}

/// Draws a header, and one row for each of the busiest caches.
pub(super) fn lanes(app: &App<'_>, rows: usize) -> Vec<Line<'static>> {
    let caches = app.lanes();
    let chosen = caches.iter().position(|cache| Some(*cache) == app.chosen).unwrap_or(0);
    let from = (chosen + 1).saturating_sub(rows);
    let head = format!(
        "  {:16} {:>8} {:>7}  {:MAX_BARS_PER_ROW$}  {:>7}  {}",
        "cache", "in use", "cached", "CPUs", "shared", "full/partial/empty"
    );
    let lane = |cache: &u32| lane(app, *cache);
    [Line::from(head).style(app.faint_style())]
        .into_iter()
        .chain(caches.iter().skip(from).take(rows).map(lane))
        .collect()
}

fn lane(app: &App<'_>, cache: u32) -> Line<'static> {
    let chosen = if Some(cache) == app.chosen { ">" } else { " " };
    let name = format!("{chosen} {:16.16}", app.name(cache));
    let name = if Some(cache) == app.chosen { Span::from(name).bold() } else { Span::from(name) };
    let Some(seen) = cache_view(app, cache) else {
        return Line::from(vec![name, Span::styled(" not used yet", app.faint_style())]);
    };
    let counts = &seen.counts;
    let Some(shown) = shown(app, cache) else {
        return Line::from(vec![
            name,
            Span::styled(" no slabs: each object is a block of pages", app.faint_style()),
        ]);
    };
    let numbers =
        format!(" {:>8} {:>7}  ", grouped(counts.used), grouped(counts.in_magazines + counts.in_depot));
    // With many CPUs, several share a bar.
    let each = shown.cpus.len().div_ceil(MAX_BARS_PER_ROW).max(1);
    let acting = app
        .view
        .steps
        .iter()
        .rev()
        .find(|step| step.cache == Some(cache))
        .map(|step| step.cpu as usize / each);
    let groups = shown.cpus.chunks(each);
    let apart = if groups.len() * 2 <= MAX_BARS_PER_ROW { " " } else { "" };
    let width = groups.len() * (1 + apart.len());
    let held: Vec<u64> = groups.map(|cpus| sum(cpus.iter().flatten()).0).collect();
    let most = held.iter().copied().max().unwrap_or(0).max(1);
    let bars = held.into_iter().enumerate().map(|(group, objects)| {
        let eighths = (objects * 8).div_ceil(most) as usize;
        let style = app.colour_style(Color::Yellow);
        let style = if acting == Some(group) { style.reversed() } else { style };
        [Span::styled(FULL[eighths].to_string(), style), Span::from(apart)]
    });
    let (shared, _) = sum(shown.shared.iter().flatten());
    let rest = format!(
        "{:width$}  {:>7}  {}/{}/{}",
        "",
        grouped(shared),
        grouped(counts.full),
        grouped(counts.partial),
        grouped(counts.empty),
        width = MAX_BARS_PER_ROW.saturating_sub(width),
    );
    let spans = [name, Span::from(numbers)].into_iter().chain(bars.flatten()).chain([Span::from(rest)]);
    Line::from_iter(spans)
}

/// Formats the numbers of the chosen cache.
pub(super) fn head(app: &App<'_>) -> Line<'static> {
    let Some(cache) = app.chosen else { return Line::from("no cache is used") };
    let text = match cache_view(app, cache).map(|seen| &seen.counts) {
        None => " not used yet".to_owned(),
        Some(counts) if counts.size == 0 => " no slabs: each object is a block of pages".to_owned(),
        Some(counts) => format!(
            " {} B, {} a slab of order {}: {} used, {} CPUs', {} shared, {} free",
            grouped(counts.size),
            counts.per_slab,
            counts.order,
            grouped(counts.used),
            grouped(counts.in_magazines),
            grouped(counts.in_depot),
            grouped(counts.free_in_slabs)
        ),
    };
    Line::from(vec![Span::from(app.name(cache).to_owned()).bold().underlined(), Span::from(text)])
}

/// Draws the chosen cache: the objects that each CPU holds, by level, and the shared objects.
pub(super) fn cpus(app: &App<'_>, width: u16) -> Vec<Line<'static>> {
    let Some(shown) = app.chosen.and_then(|cache| shown(app, cache)) else { return vec![Line::default()] };
    let acting =
        app.view.steps.iter().rev().find(|step| step.cache == app.chosen).map(|step| step.cpu as usize);
    let said = |levels: &[Level]| -> String {
        let level = |level: &Level| format!(" {} {}/{}", level.name, level.objects, level.room);
        if levels.is_empty() { " nothing".to_owned() } else { levels.iter().map(level).collect() }
    };
    let cpu = |(cpu, levels): (usize, &Vec<Level>)| {
        let style = if acting == Some(cpu) { Style::new().reversed() } else { Style::new() };
        (format!("CPU {cpu}{}", said(levels)), style)
    };
    let places: usize = shown.shared.iter().map(Vec::len).sum();
    let (objects, room) = sum(shown.shared.iter().flatten());
    let shared = match places {
        0 => "shared nothing".to_owned(),
        _ => format!("shared {objects}/{room} in {places}"),
    };
    let shared = (shared, Style::new());
    let items: Vec<_> = shown.cpus.iter().enumerate().take(MAX_CPUS).map(cpu).chain([shared]).collect();
    let longest = items.iter().map(|(text, _)| text.len()).max().unwrap_or(0) + 2;
    let line = |items: &[(String, Style)]| {
        let cell = |(text, style): &(String, Style)| {
            [Span::styled(text.clone(), *style), Span::from(" ".repeat(longest - text.len()))]
        };
        Line::from_iter(items.iter().flat_map(cell))
    };
    items.chunks((usize::from(width) / longest).max(1)).map(line).collect()
}

/// Returns the holder of an object, given the character for the object on the screen.
pub(super) fn holder(object: char) -> String {
    match object {
        'u' => "in use".to_owned(),
        '.' => "free in its slab".to_owned(),
        'd' => "shared by CPUs".to_owned(),
        cpu => format!("held by CPU `{cpu}`"),
    }
}

/// Draws slabs with one character for each object. The slabs of the touched and of the followed object come first; all
/// other slabs follow, list by list.
pub(super) fn slabs(app: &App<'_>, width: u16, rows: usize) -> Vec<Line<'static>> {
    let Some((cache, shown)) = app.chosen.and_then(|cache| Some((cache, shown(app, cache)?))) else {
        return Vec::new();
    };
    let touched =
        app.view.steps.iter().rev().find(|step| step.cache == Some(cache)).and_then(|step| step.object);
    let touched = touched.map(|(page, index)| Place { cache, page, index });
    let mut lines = Vec::new();
    for (what, place) in [("touched", touched), ("followed", app.followed)] {
        let Some(place) = place else { continue };
        let slab = shown.slabs.iter().find(|slab| slab.page == place.page);
        let object = slab.and_then(|slab| slab.objects.chars().nth(place.index.into()));
        let now = object.map_or_else(|| "destroyed with its slab".to_owned(), holder);
        let mut spans =
            vec![Span::from(format!("{what} {} of page {}, {now} ", place.index, place.page)).bold()];
        let from = usize::from(place.index).saturating_sub(usize::from(width) / 4);
        spans.extend(
            slab.into_iter().flat_map(|slab| objects(app, slab, Some(place.index)).into_iter().skip(from)),
        );
        lines.push(Line::from(spans));
    }
    let lists: Vec<&str> = shown.slabs.iter().fold(Vec::new(), |mut lists, slab| {
        if !lists.contains(&slab.list) {
            lists.push(slab.list);
        }
        lists
    });
    // Full slabs come last: they are the most frequent and the least interesting.
    let (full, others): (Vec<_>, Vec<_>) = lists.into_iter().partition(|list| *list == "full");
    for list in others.into_iter().chain(full) {
        let slabs: Vec<_> = shown.slabs.iter().filter(|slab| slab.list == list).collect();
        let mut line =
            Line::from(Span::styled(format!("{list} {} ", grouped(slabs.len() as u64)), app.faint_style()));
        for slab in slabs {
            let room = usize::from(width).saturating_sub(line.width());
            if slab.objects.len() > room && line.spans.len() > 1 {
                lines.push(std::mem::take(&mut line));
            }
            line.spans.extend(objects(app, slab, None));
            line.push_span(" ");
            if lines.len() >= rows {
                return lines;
            }
        }
        lines.push(line);
    }
    lines
}

/// Draws the objects of a slab, one text span for each object.
fn objects(app: &App<'_>, slab: &ShownSlab, now: Option<u16>) -> Vec<Span<'static>> {
    let object = |(index, object): (usize, char)| {
        let colour = match object {
            'u' => Color::Blue,
            '.' => Color::DarkGray,
            'd' => Color::Magenta,
            _ => Color::Yellow,
        };
        let style = app.colour_style(colour);
        let style = if now == Some(index as u16) { style.reversed() } else { style };
        Span::styled(object.to_string(), style)
    };
    slab.objects.chars().enumerate().map(object).collect()
}
