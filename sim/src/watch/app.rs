//! The state of the screen of `uslab watch`, and the effect of each key. The module `app` does not depend on the
//! terminal or on the engine.

use super::keys::Key;
use std::ops::Range;
use uslab_engine::until::{Found, Until};
use uslab_engine::view::{About, SUMS, View};
use uslab_engine::{Path, Step, Stream};

/// The number of caches that the screen shows at a time.
pub(super) const VISIBLE_LANES: usize = 8;
/// The available playing speeds, in operations per second.
const PLAYING_SPEEDS: [u64; 6] = [1, 10, 100, 1000, 10_000, 100_000];
/// The number of pictures drawn per second.
pub(super) const FRAMES_PER_SECOND: u64 = 20;
/// The smallest number of operations that the time line can show.
const MIN_TIMELINE_OPERATIONS: u64 = 20;

/// The location of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) cache: u32,
    pub(super) page: u32,
    pub(super) index: u16,
}

/// A request that the screen makes to the simulation engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EngineRequest {
    Nothing,
    /// Show the state after this number of operations.
    At(u64),
    /// Show the present state again, but with another selection of caches.
    Look,
    Slow,
    Until(Until),
    /// Show all events of the followed object in the whole run.
    Life,
    /// Show another design's state after the same number of operations.
    Design,
    Quit,
}

/// The panel that covers a part of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlay {
    Nothing,
    Help,
    Life,
    Map,
}

/// The values at a point of the time line.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: u64,
    /// The values from [`Engine::sample`](uslab_engine::Engine::sample).
    pub(super) values: Vec<f64>,
}

const FOLLOW_HINT: &str = "No object is followed; f follows the object of this operation.";

/// The number of kinds of events at which the key `u` can stop; the kinds are in the order of the web page.
const CONDITIONS: usize = 6;

#[derive(Debug)]
pub(super) struct App<'s> {
    pub(super) about: About<'s>,
    pub(super) designs: Vec<String>,
    pub(super) design: usize,
    pub(super) view: View,
    /// The points of the time line for the design's whole run; empty until the design has run.
    pub(super) samples: Vec<Sample>,
    /// The caches that the stream uses, busiest first.
    pub(super) busy: Vec<u32>,
    pub(super) chosen: Option<u32>,
    pub(super) followed: Option<Place>,
    /// The range of operations that the time line shows.
    pub(super) range: Range<u64>,
    pub(super) wish: EngineRequest,
    /// A pressed key that is handled after the engine has served the current request.
    pub(super) next: Option<Key>,
    pub(super) playing: bool,
    speed: usize,
    /// The number of operations still to be played, in units of 1/[`FRAMES_PER_SECOND`] operation.
    owed: u64,
    condition: usize,
    pub(super) over: Overlay,
    /// The events of the followed object, if the user requested them.
    pub(super) life: Vec<Found>,
    /// The kind of each page, as one byte: see [`PageKind`](uslab_engine::view::PageKind).
    pub(super) map: Vec<u8>,
    /// A message for the user.
    pub(super) problem: String,
    pub(super) colour: bool,
}

impl<'s> App<'s> {
    pub(super) fn new(stream: &'s Stream, designs: Vec<String>, at: u64) -> Self {
        let pages = uslab_engine::view::Pages {
            managed: 0,
            slab: 0,
            large: 0,
            blocks: 0,
            per_cpu: 0,
            free: 0,
            uncommitted: 0,
            orders: Vec::new(),
            uncommitted_orders: Vec::new(),
            cpus: Vec::new(),
            depot: Vec::new(),
        };
        let (steps, caches, shown) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            about: About::from(stream),
            designs,
            design: 0,
            view: View { operation: 0, time_ns: 0, steps, failed: 0, caches, shown, pages },
            samples: Vec::new(),
            busy: Vec::new(),
            chosen: None,
            followed: None,
            range: 0..stream.operations,
            wish: EngineRequest::At(at),
            next: None,
            playing: false,
            speed: 3,
            owed: 0,
            condition: 0,
            over: Overlay::Nothing,
            life: Vec::new(),
            map: Vec::new(),
            problem: String::new(),
            colour: true,
        }
    }

    /// Chooses the cache with the given name; returns `false` if no cache has this name.
    pub(super) fn choose_cache_by_name(&mut self, name: &str) -> bool {
        let found = self.about.caches.iter().position(|cache| *cache == name);
        self.chosen = found.map(|cache| cache as u32);
        found.is_some()
    }

    /// Stores the points of the time line after a design's whole run.
    pub(super) fn ran(&mut self, samples: Vec<Sample>) {
        self.samples = samples;
        let Some(last) = self.samples.last() else { return };
        let of = |cache: u32, place: usize| last.values[SUMS + 3 * cache as usize + place];
        let served = |cache: &u32| of(*cache, 2);
        self.busy = (0..self.about.caches.len() as u32).filter(|cache| served(cache) > 0.0).collect();
        self.busy.sort_by(|a, b| served(b).total_cmp(&served(a)));
        // The difference between the most objects in use and the objects in use at the end: slabs of such a cache fill
        // and empty.
        let lost = |cache: u32| {
            let used = self.samples.iter().map(|sample| sample.values[SUMS + 3 * cache as usize]);
            used.fold(0.0, f64::max) - of(cache, 0)
        };
        let most = self
            .busy
            .iter()
            .take(VISIBLE_LANES)
            .copied()
            .reduce(|best, cache| if lost(cache) > lost(best) { cache } else { best });
        self.chosen = self.chosen.or(most);
    }

    /// Returns the caches in the overview: as many busy caches as fit on the screen; the chosen cache is included if
    /// the stream uses it.
    pub(super) fn lanes(&self) -> &[u32] {
        let at = self.busy.iter().position(|cache| Some(*cache) == self.chosen).unwrap_or(0);
        self.busy.chunks(VISIBLE_LANES).nth(at / VISIBLE_LANES).unwrap_or_default()
    }
    /// Returns the caches that a view must show slab by slab.
    pub(super) fn shown(&self) -> Vec<u32> {
        let also = self.chosen.filter(|chosen| !self.lanes().contains(chosen));
        self.lanes().iter().copied().chain(also).collect()
    }
    /// Returns the operation number of the requested view; without a request, of the present view.
    fn at(&self) -> u64 {
        if let EngineRequest::At(at) = self.wish { at } else { self.view.operation }
    }
    pub(super) fn speed(&self) -> u64 {
        PLAYING_SPEEDS[self.speed]
    }
    pub(super) fn name(&self, cache: u32) -> &'s str {
        self.about.caches[cache as usize]
    }

    pub(super) fn handle_key(&mut self, key: Key) {
        self.problem.clear();
        if self.over == Overlay::Help {
            self.over = Overlay::Nothing;
            return;
        }
        let playing = std::mem::take(&mut self.playing);
        match key {
            Key::Play => {
                self.playing = !playing;
                self.owed = 0;
                if self.playing && self.view.operation == self.about.operations {
                    self.go(0);
                }
            }
            Key::By(by) => self.go(self.at().saturating_add_signed(by)),
            Key::Home => self.go(0),
            Key::End => self.go(self.about.operations),
            Key::Slow => self.wish = EngineRequest::Slow,
            Key::Condition => self.condition = (self.condition + 1) % CONDITIONS,
            Key::Until => match self.search_condition() {
                Some(until) => self.wish = EngineRequest::Until(until),
                None if self.chosen.is_none() => self.problem = "No cache of the trace is used.".to_owned(),
                None => self.problem = FOLLOW_HINT.to_owned(),
            },
            Key::Follow => self.follow(),
            Key::Life if self.over == Overlay::Life => self.over = Overlay::Nothing,
            Key::Life if self.followed.is_some() => self.wish = EngineRequest::Life,
            Key::Life => self.problem = FOLLOW_HINT.to_owned(),
            Key::Map if self.over == Overlay::Map => self.over = Overlay::Nothing,
            Key::Map => {
                self.over = Overlay::Map;
                self.wish = EngineRequest::Look;
            }
            Key::Cache(by) => {
                let at = self.busy.iter().position(|cache| Some(*cache) == self.chosen).unwrap_or(0);
                let to = at.saturating_add_signed(by as isize).min(self.busy.len().saturating_sub(1));
                self.choose(self.busy.get(to).copied());
                self.playing = playing;
            }
            Key::Design => {
                self.design = (self.design + 1) % self.designs.len();
                self.wish = EngineRequest::Design;
            }
            Key::Closer => self.zoom(self.range.end - self.range.start, 2),
            Key::Farther => self.zoom((self.range.end - self.range.start) * 4, 2),
            Key::Whole => self.range = 0..self.about.operations,
            Key::Faster | Key::Slower => {
                let by = if key == Key::Faster { 1 } else { -1 };
                self.speed = self.speed.saturating_add_signed(by).min(PLAYING_SPEEDS.len() - 1);
                self.playing = playing;
            }
            Key::Help => self.over = Overlay::Help,
            Key::Quit if self.over != Overlay::Nothing => self.over = Overlay::Nothing,
            Key::Quit => self.wish = EngineRequest::Quit,
        }
    }

    /// Advances the playback by the time of one picture.
    pub(super) fn tick(&mut self) {
        self.owed += self.speed();
        let whole = self.owed / FRAMES_PER_SECOND;
        self.owed %= FRAMES_PER_SECOND;
        if whole > 0 {
            self.go(self.at() + whole);
        }
    }

    pub(super) fn go(&mut self, to: u64) {
        self.wish = EngineRequest::At(to.min(self.about.operations));
    }
    fn choose(&mut self, cache: Option<u32>) {
        if self.followed.is_some_and(|place| Some(place.cache) != cache) {
            self.forget();
        }
        self.chosen = cache;
        if self.wish == EngineRequest::Nothing {
            self.wish = EngineRequest::Look;
        }
    }
    fn follow(&mut self) {
        let touched = |step: &Step| {
            step.cache.zip(step.object).map(|(cache, (page, index))| Place { cache, page, index })
        };
        match self.view.steps.iter().find_map(touched) {
            Some(place) if self.followed == Some(place) => self.forget(),
            Some(place) => {
                self.forget();
                self.choose(Some(place.cache));
                self.followed = Some(place);
            }
            None => self.problem = "This operation touched no object of a slab.".to_owned(),
        }
    }
    /// Stops following an object.
    pub(super) fn forget(&mut self) {
        self.followed = None;
        self.life.clear();
        if self.over == Overlay::Life {
            self.over = Overlay::Nothing;
        }
    }
    fn zoom(&mut self, length: u64, by: u64) {
        let length = (length / by).max(MIN_TIMELINE_OPERATIONS).min(self.about.operations);
        let begin = self.view.operation.saturating_sub(length / 2).min(self.about.operations - length);
        self.range = begin..begin + length;
    }

    /// Replaces the shown state by the requested view.
    pub(super) fn show(&mut self, view: View) {
        self.view = view;
        if self.view.operation == self.about.operations {
            self.playing = false;
        }
    }
    /// Chooses the cache of an operation that its CPU alone did not serve, if the cache has slabs.
    pub(super) fn choose_slow_operation_cache(&mut self, steps: &[Step], has_slabs: impl Fn(u32) -> bool) {
        if let Some(cache) = steps.iter().find(|step| is_slow_step(step)).and_then(|step| step.cache)
            && has_slabs(cache)
        {
            self.choose(Some(cache));
        }
    }

    fn search_condition(&self) -> Option<Until> {
        let cache = self.chosen?;
        Some(match self.condition {
            0 => Until::Miss { cache },
            1 => Until::DepotEmpty { cache },
            2 => Until::SlabBorn { cache },
            3 => Until::SlabDies { cache },
            4 => Until::Commit,
            _ => {
                let Place { cache, page, index } = self.followed?;
                Until::Object { cache, page, index }
            }
        })
    }
    /// Describes the event at which the key `u` stops.
    pub(super) fn condition(&self) -> String {
        let name = self.chosen.map_or("a cache", |cache| self.name(cache));
        match self.condition {
            0 => format!("{name} misses on its CPU"),
            1 => format!("the shared depot of {name} is empty"),
            2 => format!("{name} gets a slab"),
            3 => format!("{name} loses a slab"),
            4 => "memory is committed".to_owned(),
            _ => "the followed object moves".to_owned(),
        }
    }
    /// Handles the result of a search: moves to the found event, or shows a message that there is no further event.
    pub(super) fn show_search_result(&mut self, found: Option<Found>, from: u64) {
        match found {
            Some(found) => self.go(found.operation),
            None => {
                self.problem = "No later operation meets the condition.".to_owned();
                self.go(from);
            }
        }
    }
}

/// Returns `true` if the CPU alone did not serve the operation.
pub(super) fn is_slow_step(step: &Step) -> bool {
    step.path.is_some_and(|path| path > Path::Cpu)
}
