//! Compares the screen of `uslab watch` with the states of engines that the tests run.

use super::app::{App, FRAMES_PER_SECOND, Overlay, Place, is_slow_step};
use super::draw::draw;
use super::session::watch;
use super::terminal::Screen;
use crate::output::{Progress, grouped};
use crate::replay;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use ratatui::{Frame, Terminal};
use std::collections::VecDeque;
use std::time::Duration;
use uslab_engine::designs::{NoPolicy, Spec, Visitor, all};
use uslab_engine::stream::Kind;
use uslab_engine::until::{Found, Until};
use uslab_engine::{Design, Engine, Stream, View, Writer};

/// Returns a stream with large objects, pages and two caches; two CPUs fill and empty the caches three times.
fn stream() -> Stream {
    let mut random = 1_u64;
    let mut next = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let mut writer = Writer::new("a trace".to_owned(), 2);
    let mut live = Vec::new();
    for at in 0..6000 {
        writer.begin(at);
        match at {
            0 => {
                writer.cache("first".to_owned(), Kind::Named, 512);
                writer.cache("second".to_owned(), Kind::Named, 2048);
                writer.cache("kmalloc-large".to_owned(), Kind::Large, 16384);
                writer.alloc(0, 2, 1 << 40, 16384);
            }
            10 => writer.alloc_pages(1, 77, 1, 1),
            2999 => writer.mark("SNAP after begin".to_owned()),
            _ => {}
        }
        let cpu = next(2) as u32;
        let grow = if at / 1000 % 2 == 0 { 7 } else { 3 };
        if next(10) < grow || live.is_empty() {
            writer.alloc(cpu, next(2) as u32, at + 1, 512);
            live.push(at + 1);
        } else {
            writer.free(cpu, live.swap_remove(next(live.len() as u64) as usize));
        }
    }
    writer.finish()
}

/// A test screen that plays a script of keys, and records the screen after each key.
struct Script {
    terminal: Terminal<TestBackend>,
    keys: VecDeque<KeyEvent>,
    /// The number of pictures to draw between two keys while the replay is playing.
    pictures: u64,
    seen: Vec<String>,
}

impl Script {
    fn new(width: u16, height: u16, keys: impl IntoIterator<Item = KeyCode>) -> Self {
        let terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let keys = keys.into_iter().map(|code| KeyEvent::new(code, KeyModifiers::NONE)).collect();
        Self { terminal, keys, pictures: 0, seen: Vec::new() }
    }
    fn text(&self) -> String {
        let buffer = self.terminal.backend().buffer();
        let rows = buffer.content().chunks(buffer.area.width.into());
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }
}

impl Screen for Script {
    fn draw(&mut self, picture: &dyn Fn(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.terminal.draw(|frame| picture(frame))?;
        self.seen.push(self.text());
        Ok(())
    }
    fn key(&mut self, within: Option<Duration>) -> anyhow::Result<Option<KeyEvent>> {
        match within {
            Some(Duration::ZERO) => Ok(None),
            Some(_) if self.pictures > 0 => {
                self.pictures -= 1;
                Ok(None)
            }
            _ => Ok(self.keys.pop_front().or(Some(KeyCode::Char('q').into()))),
        }
    }
}

fn specs(first: &str) -> Vec<Spec> {
    vec![first.parse().unwrap(), "slub".parse().unwrap()]
}
/// Runs a design up to an operation, presses some keys, and returns the screen after each key.
fn press_keys<'s>(
    stream: &'s Stream,
    design: &str,
    at: u64,
    keys: impl IntoIterator<Item = KeyCode>,
) -> (App<'s>, Vec<String>) {
    let specs = specs(design);
    let mut app = App::new(stream, specs.iter().map(ToString::to_string).collect(), at);
    let mut script = Script::new(80, 24, keys);
    watch(stream, &specs, &mut app, &mut script).unwrap();
    (app, script.seen)
}
fn letters(text: &str) -> impl Iterator<Item = KeyCode> + '_ {
    text.chars().map(KeyCode::Char)
}

/// A visitor that runs a new engine up to an operation and returns the view.
struct ViewAtOperation<'s>(&'s Stream, u64);

impl Visitor for ViewAtOperation<'_> {
    type Out = View;
    fn visit<D: Design>(self, design: D) -> View {
        let mut engine = Engine::new(design, self.0);
        let steps = engine.run_with_steps(self.1).unwrap();
        let shown: Vec<_> = (0..self.0.caches.len() as u32).collect();
        engine.view(steps, &shown)
    }
}
fn moment(stream: &Stream, design: &str, at: u64) -> View {
    design.parse::<Spec>().unwrap().on(stream, ViewAtOperation(stream, at)).unwrap()
}

/// Checks that a picture of 80 columns shows the numbers of a view.
#[track_caller]
fn shows(screen: &str, operations: u64, chosen: Option<u32>, view: &View) {
    let has = |what: &str| assert!(screen.contains(what), "expected `{what}` in\n{screen}");
    let at =
        format!("{} of {}  {:.6} s", grouped(view.operation), grouped(operations), view.time_ns as f64 / 1e9);
    assert!(screen.lines().next().unwrap().ends_with(&at), "{screen}");
    // The sentence may be broken into rows.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    let sentence: String = view.steps.iter().map(|step| &*step.sentence).collect::<Vec<_>>().join(" ");
    let beginning: String = words(&sentence).chars().take(150).collect();
    assert!(words(screen).contains(&beginning), "expected `{beginning}` in\n{screen}");
    if let Some(path) = view.steps.iter().filter_map(|step| step.path).max() {
        has(&format!("[{}]", path.name()));
    }
    let mut lanes = 0;
    for shown in &view.shown {
        let seen = &view.caches[shown.cache as usize];
        let counts = &seen.counts;
        let name: String = seen.name.chars().take(16).collect();
        let row = screen
            .lines()
            .find(|line| line.get(2..).is_some_and(|line| line.starts_with(&format!("{name:16} "))));
        let Some(row) = row else { continue };
        let cells: Vec<_> = row[1..].split_whitespace().skip(1).collect();
        let cached = grouped(counts.in_magazines + counts.in_depot);
        assert_eq!(cells[..2], [&*grouped(counts.used), &*cached], "{row}");
        let shared: u64 = shown.shared.iter().flatten().map(|level| u64::from(level.objects)).sum();
        let lists = format!("{}/{}/{}", grouped(counts.full), grouped(counts.partial), grouped(counts.empty));
        assert_eq!(cells[cells.len() - 2..], [&*grouped(shared), &*lists], "{row}");
        lanes += 1;
    }
    assert!(lanes > 0, "no lane in\n{screen}");
    let chosen = chosen.unwrap();
    let shown = view.shown.iter().find(|shown| shown.cache == chosen).unwrap();
    for (cpu, levels) in shown.cpus.iter().enumerate() {
        let levels: String =
            levels.iter().map(|level| format!(" {} {}/{}", level.name, level.objects, level.room)).collect();
        has(&format!("CPU {cpu}{levels}"));
    }
    for list in ["partial", "empty", "full"] {
        let slabs: Vec<_> = shown.slabs.iter().filter(|slab| slab.list == list).collect();
        let Some(first) = slabs.first() else { continue };
        has(&format!("{list} {} {}", slabs.len(), first.objects));
        // The screen has five rows for slabs, one of them for the touched object, so other lists may not be visible.
        break;
    }
    if let Some(step) = view.steps.iter().rev().find(|step| step.cache == Some(chosen))
        && let Some((page, index)) = step.object
    {
        has(&format!("touched {index} of page {page}, "));
    }
    let pages = &view.pages;
    has(&format!(
        "pages {} slabs, {} large, {} other, {} CPUs', {} free",
        grouped(pages.slab),
        grouped(pages.large),
        grouped(pages.blocks),
        grouped(pages.per_cpu),
        grouped(pages.free)
    ));
    for (order, types) in pages.orders.iter().enumerate() {
        has(&format!(" {order}:{}", types.iter().sum::<u32>()));
    }
}

#[test]
fn watch_screen_shows_the_engine_view() {
    let stream = stream();
    for design in ["uslab", "slub", "sheaves"] {
        for at in [1, 2, 1000, 2500, 6000] {
            let (app, seen) = press_keys(&stream, design, at, []);
            shows(seen.last().unwrap(), app.about.operations, app.chosen, &moment(&stream, design, at));
        }
    }
    let bundled = replay::page_stream(None, &replay::Options::default(), &Progress::new()).unwrap();
    // The operation at which the page begins, and the operation after `n`.
    let at = bundled.operations * 3 / 10;
    let (app, seen) = press_keys(&bundled, "uslab", at, letters("n"));
    assert!(app.view.operation > at);
    let (before, _) = press_keys(&bundled, "uslab", at, []);
    shows(&seen[0], bundled.operations, before.chosen, &moment(&bundled, "uslab", at));
    shows(
        seen.last().unwrap(),
        app.about.operations,
        app.chosen,
        &moment(&bundled, "uslab", app.view.operation),
    );
    // The book shows this picture.
    let rows = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    let mut blocks = include_str!("../../../slab/book/src/study.md")
        .split("```text\n")
        .filter_map(|block| block.split("```").next());
    let picture = blocks.find(|block| block.starts_with("uslab watch")).unwrap();
    let last = seen.last().unwrap();
    assert!(rows(picture) == rows(last), "what slab/book/src/study.md shows, and what is drawn:\n{last}");
}

#[test]
fn watch_labels_an_empty_machine() {
    let stream = stream();
    let (_, seen) = press_keys(&stream, "uslab", 0, []);
    assert!(seen[0].contains("[begin] No operation has run yet"), "{}", seen[0]);
    assert!(seen[0].contains("not used yet") && seen[0].contains("|after"), "{}", seen[0]);
}

#[test]
fn slow_key_jumps_to_the_next_slow_operation() {
    let stream = stream();
    let from = 1500;
    let (app, _) = press_keys(&stream, "uslab", from, letters("n"));
    let expected =
        (from + 1..=6000).find(|at| moment(&stream, "uslab", *at).steps.iter().any(is_slow_step)).unwrap();
    assert_eq!(app.view.operation, expected);
    let step = app.view.steps.iter().find(|step| is_slow_step(step)).unwrap();
    assert_eq!(app.chosen, step.cache);
}

struct SearchFromOperation<'s>(&'s Stream, Until, u64);

impl Visitor for SearchFromOperation<'_> {
    type Out = Option<Found>;
    fn visit<D: Design>(self, design: D) -> Option<Found> {
        let mut engine = Engine::new(design, self.0);
        engine.run(self.2).unwrap();
        engine.run_until(&self.1, self.0.operations).unwrap()
    }
}

#[test]
fn watch_stops_where_the_engine_finds_the_condition() {
    let stream = stream();
    let from = (1500..).find(|at| moment(&stream, "uslab", *at).steps[0].object.is_some()).unwrap();
    let mut found = 0;
    for condition in 0..6 {
        let keys = letters("f").chain(letters(&"UUUUU"[..condition])).chain(letters("u"));
        let (app, seen) = press_keys(&stream, "uslab", from, keys);
        let Place { cache, page, index } = app.followed.unwrap();
        let until = [
            Until::Miss { cache },
            Until::DepotEmpty { cache },
            Until::SlabBorn { cache },
            Until::SlabDies { cache },
            Until::Commit,
            Until::Object { cache, page, index },
        ][condition];
        let runs =
            "uslab".parse::<Spec>().unwrap().on(&stream, SearchFromOperation(&stream, until, from)).unwrap();
        assert_eq!(app.view.operation, runs.map_or(from, |found| found.operation), "{until:?}");
        let last = seen.last().unwrap();
        assert_eq!(last.contains("No later operation meets the condition"), runs.is_none(), "{last}");
        shows(last, app.about.operations, app.chosen, &moment(&stream, "uslab", app.view.operation));
        found += usize::from(runs.is_some());
    }
    assert!(found >= 3, "only {found} of the events happen");
    let (app, _) = press_keys(&stream, "uslab", from, letters("UUUUUu"));
    assert!(app.problem.is_empty() && app.view.operation == from, "no object is followed");
}

struct FindAllMatches<'s>(&'s Stream, Until);

impl Visitor for FindAllMatches<'_> {
    type Out = Vec<Found>;
    fn visit<D: Design>(self, design: D) -> Vec<Found> {
        let mut engine = Engine::new(design, self.0);
        std::iter::from_fn(|| engine.run_until(&self.1, self.0.operations).unwrap()).collect()
    }
}

#[test]
fn watch_object_history_equals_the_engine_history() {
    let stream = stream();
    let from = (1500..).find(|at| moment(&stream, "uslab", *at).steps[0].object.is_some()).unwrap();
    let (app, seen) = press_keys(&stream, "uslab", from, letters("fl"));
    let Place { cache, page, index } = app.followed.unwrap();
    let until = Until::Object { cache, page, index };
    let life = "uslab".parse::<Spec>().unwrap().on(&stream, FindAllMatches(&stream, until)).unwrap();
    assert!(life.len() > 3 && life == app.life && app.view.operation == from, "{life:?}");
    // The last `q` closes the panel first.
    let last = &seen[seen.len() - 2];
    assert!(last.contains(&format!("{index} of page {page}: {} events", life.len())), "{last}");
    // The touching operation is among the events, and is selected.
    let here = last.lines().find(|line| line.contains("> operation")).unwrap();
    assert!(here.contains(&format!("{} ", grouped(from))), "{here}");
    let (app, seen) = press_keys(&stream, "uslab", from, letters("fll"));
    assert!(app.over == Overlay::Nothing && !seen.last().unwrap().contains("events in the whole run"));
    // The events are dropped with the followed object, and with the design.
    let (app, _) = press_keys(&stream, "uslab", from, letters("flf"));
    assert!(app.life.is_empty() && app.over == Overlay::Nothing);
    let (app, _) = press_keys(&stream, "uslab", from, letters("fld"));
    assert!(app.life.is_empty() && app.over == Overlay::Nothing);
    let (_, seen) = press_keys(&stream, "uslab", from, letters("l"));
    assert!(seen.last().unwrap().contains("No object is followed"));
}

struct Map<'s>(&'s Stream, u64);

impl Visitor for Map<'_> {
    type Out = Vec<u8>;
    fn visit<D: Design>(self, design: D) -> Vec<u8> {
        let mut engine = Engine::new(design, self.0);
        engine.run(self.1).unwrap();
        let mut map = vec![];
        engine.map(&mut map);
        map
    }
}

#[test]
fn memory_page_map_follows_the_snapshot() {
    let stream = stream();
    let map = |at| "uslab".parse::<Spec>().unwrap().on(&stream, Map(&stream, at)).unwrap();
    let (app, seen) = press_keys(&stream, "uslab", 100, letters("m").chain([KeyCode::PageDown]));
    assert_eq!(app.view.operation, 1100);
    assert!(app.map == map(1100) && app.map != map(100));
    let last = &seen[seen.len() - 2];
    assert!(last.contains("s slabs, o other, c CPUs', . free") && last.contains("ss"), "{last}");
    // The map contains every page: its characters, times the pages of each, cover all.
    let rows = last.lines().skip(8).take_while(|line| line.starts_with('│'));
    let places = rows.map(|row| row.trim_matches(['│', ' ']).chars().count()).sum::<usize>();
    let each = map(1100).len().div_ceil(78 * 14);
    assert_eq!(places, map(1100).len().div_ceil(each), "{last}");
    let (app, _) = press_keys(&stream, "uslab", 1000, letters("mm"));
    assert_eq!(app.over, Overlay::Nothing);
    // Escape closes the map and does not quit.
    let (app, _) = press_keys(&stream, "uslab", 1000, [KeyCode::Char('m'), KeyCode::Esc, KeyCode::Right]);
    assert_eq!((app.over, app.view.operation), (Overlay::Nothing, 1001));
}

#[test]
fn stepping_back_and_forward_restores_the_screen() {
    let stream = stream();
    use KeyCode::{End, Home, Left, PageDown, PageUp, Right};
    let there = [Right, Right, PageDown, Right];
    let back = [Left, PageUp, Left, Left];
    let (app, seen) = press_keys(&stream, "uslab", 3001, there.into_iter().chain(back));
    assert_eq!((app.view.operation, seen.len()), (3001, 9));
    for (one, other) in seen.iter().zip(seen.iter().rev()) {
        assert_eq!(one, other);
    }
    assert!(seen.windows(2).all(|two| two[0] != two[1]), "each search finds another operation");
    let (app, seen) = press_keys(&stream, "uslab", 3000, [Home, Left, End, Right]);
    assert_eq!(app.view.operation, 6000);
    assert!(seen[1] == seen[2] && seen[3] == seen[4] && seen[1] != seen[3]);
    // The keys switch to another design and back.
    let (app, seen) = press_keys(&stream, "uslab", 3000, letters("dd"));
    assert_eq!((app.design, &seen[0] == seen.last().unwrap()), (0, true));
    assert!(seen[1].contains("design slub") && seen[1].contains("current slab"), "{}", seen[1]);
}

#[test]
fn playback_runs_at_the_shown_speed() {
    let stream = stream();
    for (faster, speed) in [("", 1000), (">", 10_000), ("<", 100)] {
        let mut app = App::new(&stream, vec!["uslab".to_owned()], 100);
        let mut script = Script::new(80, 24, letters(faster).chain(letters(" ")));
        script.pictures = FRAMES_PER_SECOND;
        watch(&stream, &specs("uslab"), &mut app, &mut script).unwrap();
        assert_eq!(app.view.operation, (100 + speed).min(6000), "{speed} a second");
        let said = format!("> {} a second", grouped(speed));
        assert!(script.seen.iter().any(|seen| seen.contains(&said)));
        assert!(!app.playing);
    }
}

#[test]
fn watch_draws_each_design_at_any_size() {
    let stream = stream();
    for (name, _) in all::<NoPolicy>() {
        let specs = specs(name);
        let mut app = App::new(&stream, specs.iter().map(ToString::to_string).collect(), 2000);
        let keys = letters("f++?").chain([KeyCode::Down, KeyCode::Down, KeyCode::Up, KeyCode::End]);
        let mut script = Script::new(200, 60, keys);
        watch(&stream, &specs, &mut app, &mut script).unwrap();
        for (width, height) in [(80, 24), (60, 20), (200, 60), (81, 3), (20, 5), (1, 1)] {
            for over in [Overlay::Nothing, Overlay::Help, Overlay::Life, Overlay::Map] {
                app.over = over;
                let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
                terminal.draw(|frame| draw(&app, frame)).unwrap();
            }
        }
        // The last row has the keys at any size.
        let rows: Vec<_> = script.seen[0].lines().map(str::to_owned).collect();
        assert!(rows[59].starts_with("? keys  q quit"), "{name}: {}", script.seen[0]);
        assert!(rows[58].starts_with("no memory yet"), "{name}: {}", script.seen[0]);
        assert!(script.seen.iter().any(|seen| seen.contains("next slow path")), "{name}: help");
    }
}

#[test]
fn disabled_colours_are_not_written() {
    let stream = stream();
    for wanted in [true, false] {
        let mut app = App::new(&stream, vec!["uslab".to_owned()], 2000);
        app.colour = wanted;
        let mut script = Script::new(80, 24, []);
        watch(&stream, &specs("uslab"), &mut app, &mut script).unwrap();
        let cells = script.terminal.backend().buffer().content();
        let coloured = cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(coloured, wanted);
    }
}
