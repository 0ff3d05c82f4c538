//! The engine's interface for web pages.

use crate::View;
use crate::design::Design;
use crate::engine::{Engine, EngineError};
use crate::stream::Stream;
use crate::until::{Found, Until};

/// An engine that hides the type of its design.
pub(crate) trait Play {
    fn stream(&self) -> &'static Stream;
    fn run(&mut self, until: u64) -> Result<(), EngineError>;
    fn view(&mut self, until: u64, shown: &[u32]) -> Result<View, EngineError>;
    fn run_until(&mut self, until: &Until, end: u64) -> Result<Option<Found>, EngineError>;
    fn map(&self, buffer: &mut Vec<u8>);
    fn sample(&self, buffer: &mut Vec<f64>);
    fn check(&self) -> Result<(), String>;
}

impl<D: Design> Play for Engine<'static, D> {
    fn stream(&self) -> &'static Stream {
        self.stream
    }
    fn run(&mut self, until: u64) -> Result<(), EngineError> {
        self.run(until)
    }
    fn view(&mut self, until: u64, shown: &[u32]) -> Result<View, EngineError> {
        let steps = self.run_with_steps(until)?;
        Ok(Engine::view(self, steps, shown))
    }
    fn run_until(&mut self, until: &Until, end: u64) -> Result<Option<Found>, EngineError> {
        self.run_until(until, end)
    }
    fn map(&self, buffer: &mut Vec<u8>) {
        self.map(buffer);
    }
    fn sample(&self, buffer: &mut Vec<f64>) {
        self.sample(buffer);
    }
    fn check(&self) -> Result<(), String> {
        self.check()
    }
}
