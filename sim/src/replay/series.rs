//! Writes a run as rows of CSV with a hundred points: each point has the state of every cache and CPU, and the number
//! of free blocks of each order.

use std::fmt::Write;
use uslab_engine::{Design, Engine, EngineError};

/// The number of points in the series of one run, not counting the run's end.
const POINTS: u64 = 100;

/// Rows of CSV: `operation,time_ns,design,kind,name,metric,value`.
#[derive(Debug)]
pub struct Series {
    csv: String,
}

impl Default for Series {
    fn default() -> Self {
        Self { csv: "operation,time_ns,design,kind,name,metric,value\n".to_owned() }
    }
}

impl Series {
    /// Returns the rows as CSV.
    pub fn into_csv(self) -> String {
        self.csv
    }

    /// Returns the length of the CSV text in bytes.
    pub(super) fn len(&self) -> usize {
        self.csv.len()
    }

    /// Truncates the CSV text to `len` bytes, so that a repeated run can write the later rows again.
    pub(super) fn truncate(&mut self, len: usize) {
        self.csv.truncate(len);
    }

    /// Runs an engine up to a given operation, and records the points of the series up to there.
    pub(super) fn follow<D: Design>(
        &mut self,
        design: &str,
        engine: &mut Engine<'_, D>,
        until: u64,
    ) -> Result<(), EngineError> {
        let all = engine.stream().operations;
        let point = |n: u64| n * all / POINTS;
        let first = (0..=POINTS).find(|n| point(*n) > engine.operations()).unwrap_or(POINTS + 1);
        for operation in (first..=POINTS).map(point).take_while(|at| *at <= until) {
            engine.run(operation)?;
            self.note(design, engine);
        }
        Ok(())
    }

    fn note<D: Design>(&mut self, design: &str, engine: &Engine<'_, D>) {
        let all: Vec<u32> = (0..engine.caches() as u32).collect();
        let view = engine.view(vec![], &all);
        let mut row = |kind: &str, name: &str, metric: &str, value: u64| {
            // Names of caches come from a trace and may contain any character.
            let name = name.replace([',', '"', '\n'], "_");
            let _ = writeln!(
                self.csv,
                "{},{},{design},{kind},{name},{metric},{value}",
                view.operation, view.time_ns
            );
        };
        for cache in &view.caches {
            let counts = &cache.counts;
            for (metric, value) in [
                ("slabs", counts.slabs()),
                ("used", counts.used),
                ("active_objs", counts.active_objs()),
                ("in_magazines", counts.in_magazines),
                ("in_depot", counts.in_depot),
            ] {
                row("cache", &cache.name, metric, value);
            }
        }
        for cpu in 0..engine.stream().cpus as usize {
            let held = view.shown.iter().filter_map(|cache| cache.cpus.get(cpu));
            let objects = held.flatten().map(|level| u64::from(level.objects));
            row("cpu", &cpu.to_string(), "objects", objects.sum());
            let blocks = view.pages.cpus.get(cpu).into_iter().flatten().zip(0..);
            row("cpu", &cpu.to_string(), "pages", blocks.map(|(n, order)| u64::from(*n) << order).sum());
        }
        for (order, blocks) in view.pages.orders.iter().enumerate() {
            row("order", &order.to_string(), "free_blocks", blocks.iter().map(|n| u64::from(*n)).sum());
        }
    }
}
