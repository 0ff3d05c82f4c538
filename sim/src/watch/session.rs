//! Runs simulation engines to serve the user's requests.

use super::app::{App, EngineRequest, FRAMES_PER_SECOND, Overlay, Place, Sample, is_slow_step};
use super::draw::draw;
use super::keys::{Key, key};
use super::terminal::Screen;
use std::time::Duration;
use uslab_engine::designs::{Spec, Visitor};
use uslab_engine::until::Until;
use uslab_engine::{Design, Engine, EngineError, Policy, Step, Stream};

/// The number of points of the time line.
const SAMPLES: u64 = 480;
/// The number of operations between two checks for a key.
const OPERATIONS_PER_KEY_CHECK: u64 = 20_000;

/// Shows the stream on the screen until the user quits.
pub(super) fn watch<P: Policy>(
    stream: &Stream,
    specs: &[Spec<P>],
    app: &mut App<'_>,
    screen: &mut dyn Screen,
) -> anyhow::Result<()> {
    while app.wish != EngineRequest::Quit {
        let spec = &specs[app.design];
        let ran = spec.on(stream, Session { stream, app, screen }).map_err(anyhow::Error::from);
        ran.and_then(|ran| ran).map_err(|error| error.context(format!("--design {spec}")))?;
    }
    Ok(())
}

/// Serves requests with one engine until a request needs a state that this engine has already passed.
struct Session<'a, 's> {
    stream: &'a Stream,
    app: &'a mut App<'s>,
    screen: &'a mut dyn Screen,
}

impl Visitor for Session<'_, '_> {
    type Out = anyhow::Result<()>;

    fn visit<D: Design>(mut self, design: D) -> anyhow::Result<()> {
        let mut engine = Engine::new(design, self.stream);
        if self.app.samples.is_empty() {
            self.app.ran(samples(&mut engine)?);
            return Ok(());
        }
        while self.done(&mut engine)? {
            self.ask()?;
        }
        Ok(())
    }
}

impl Session<'_, '_> {
    /// Serves the current request; returns `false` if the engine has already passed the requested state or runs another
    /// design.
    fn done<D: Design>(&mut self, engine: &mut Engine<'_, D>) -> anyhow::Result<bool> {
        let from = self.app.view.operation;
        match self.app.wish {
            EngineRequest::Nothing => {}
            EngineRequest::Quit => return Ok(false),
            EngineRequest::Design => {
                self.app.samples.clear();
                self.app.forget();
                self.app.go(from);
                return Ok(false);
            }
            EngineRequest::Look if engine.operations() == from => {
                let steps = self.app.view.steps.clone();
                self.show(engine, steps);
            }
            EngineRequest::Look => {
                self.app.go(from);
                return self.done(engine);
            }
            EngineRequest::At(at) => {
                if !run_until_operation(engine, at.saturating_sub(1))? || (at == 0 && engine.operations() > 0)
                {
                    return Ok(false);
                }
                let steps = engine.run_with_steps(at)?;
                self.show(engine, steps);
            }
            EngineRequest::Slow => {
                if !run_until_operation(engine, from)? {
                    return Ok(false);
                }
                while engine.operations() < self.stream.operations {
                    let steps = engine.run_with_steps(engine.operations() + 1)?;
                    let found = steps.iter().any(is_slow_step);
                    if found || engine.operations() == self.stream.operations {
                        self.app.choose_slow_operation_cache(&steps, |cache| {
                            engine.design().counts(cache).size > 0
                        });
                        self.show(engine, steps);
                        break;
                    }
                    if engine.operations().is_multiple_of(OPERATIONS_PER_KEY_CHECK)
                        && self.stopped(engine.operations())?
                    {
                        return self.back(from);
                    }
                }
            }
            EngineRequest::Life => {
                let Some(Place { cache, page, index }) = self.app.followed else { return self.back(from) };
                if engine.operations() > 0 {
                    return Ok(false);
                }
                let mut life = Vec::new();
                while engine.operations() < self.stream.operations {
                    let end = engine.operations() + OPERATIONS_PER_KEY_CHECK;
                    match engine.run_until(&Until::Object { cache, page, index }, end)? {
                        Some(found) => life.push(found),
                        None if self.stopped(engine.operations())? => return self.back(from),
                        None => {}
                    }
                }
                (self.app.life, self.app.over) = (life, Overlay::Life);
                return self.back(from);
            }
            EngineRequest::Until(until) => {
                if !run_until_operation(engine, from)? {
                    return Ok(false);
                }
                let mut found = None;
                while found.is_none() && engine.operations() < self.stream.operations {
                    found = engine.run_until(&until, engine.operations() + OPERATIONS_PER_KEY_CHECK)?;
                    if found.is_none() && self.stopped(engine.operations())? {
                        return self.back(from);
                    }
                }
                self.app.show_search_result(found, from);
                return self.done(engine);
            }
        }
        self.app.wish = EngineRequest::Nothing;
        Ok(true)
    }
    fn show<D: Design>(&mut self, engine: &Engine<'_, D>, steps: Vec<Step>) {
        if self.app.over == Overlay::Map {
            engine.map(&mut self.app.map);
        }
        self.app.show(engine.view(steps, &self.app.shown()));
    }

    /// Requests a state that the engine has already passed.
    fn back(&mut self, to: u64) -> anyhow::Result<bool> {
        self.app.go(to);
        Ok(false)
    }
    /// Shows the progress of a search; returns `true` if the user pressed a key.
    fn stopped(&mut self, at: u64) -> anyhow::Result<bool> {
        self.app.problem = format!("Searching: operation {}. Any key stops.", crate::output::grouped(at));
        self.screen.draw(&|frame| draw(self.app, frame))?;
        let stopped = self.screen.key(Some(Duration::ZERO))?.is_some();
        self.app.problem.clear();
        Ok(stopped)
    }

    /// Shows the current state, and waits for the user's next command.
    fn ask(&mut self) -> anyhow::Result<()> {
        if let Some(key) = self.app.next.take() {
            self.app.handle_key(key);
            return Ok(());
        }
        self.screen.draw(&|frame| draw(self.app, frame))?;
        let picture = Duration::from_millis(1000 / FRAMES_PER_SECOND);
        let event = self.screen.key(self.app.playing.then_some(picture))?;
        match event.and_then(key) {
            Some(key) => self.app.handle_key(key),
            None if event.is_none() && self.app.playing => self.app.tick(),
            None => {}
        }
        // If an arrow key is held down, its repetitions are added up, without drawing each state.
        while matches!(self.app.wish, EngineRequest::At(_)) && self.app.next.is_none() {
            let Some(event) = self.screen.key(Some(Duration::ZERO))? else { break };
            match key(event) {
                Some(by @ Key::By(_)) => self.app.handle_key(by),
                other => self.app.next = other,
            }
        }
        Ok(())
    }
}

/// Runs up to an operation; returns `false` if the engine had already passed the operation.
fn run_until_operation<D: Design>(engine: &mut Engine<'_, D>, at: u64) -> Result<bool, EngineError> {
    engine.run(at)?;
    Ok(engine.operations() <= at)
}

/// Runs the engine to the end, and returns the values at the points of the time line.
fn samples<D: Design>(engine: &mut Engine<'_, D>) -> Result<Vec<Sample>, EngineError> {
    let operations = engine.stream().operations;
    let mut samples = Vec::new();
    for point in 0..=SAMPLES {
        engine.run(operations * point / SAMPLES)?;
        let mut values = Vec::new();
        engine.sample(&mut values);
        samples.push(Sample { at: engine.operations(), values });
    }
    Ok(samples)
}
