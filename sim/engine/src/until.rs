//! Runs a stream until a condition is met.

use crate::design::Design;
use crate::engine::{Engine, EngineError};
use crate::stream::Action;
use serde::{Deserialize, Serialize};
use uslab_magazine::{Path, Paths};

/// The condition at which a run stops. A condition names a cache by its number in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "until", rename_all = "kebab-case")]
pub enum Until {
    /// The shared level of the cache has become empty.
    DepotEmpty {
        /// The cache's number.
        cache: u32,
    },
    /// A slab was added to the cache.
    SlabBorn {
        /// The cache's number.
        cache: u32,
    },
    /// A slab of the cache was freed.
    SlabDies {
        /// The cache's number.
        cache: u32,
    },
    /// The CPU's own layer could not serve an operation on the cache.
    Miss {
        /// The cache's number.
        cache: u32,
    },
    /// Memory is committed.
    Commit,
    /// An object was allocated or freed, or moved between slab, magazines and depot.
    Object {
        /// The number of the object's cache.
        cache: u32,
        /// The first page of the object's slab.
        page: u32,
        /// The object's index in its slab.
        index: u16,
    },
}

/// The operation at which a run stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Found {
    /// The number of operations that have run so far.
    pub operation: u64,
    /// The CPU of the last operation.
    pub cpu: u32,
    /// `true` if the last operation allocated or freed the object itself.
    pub touched: bool,
    /// The new holder of the object, as a character of [`ShownSlab::objects`](crate::view::ShownSlab::objects). The
    /// value is `None` if the object's slab was freed.
    pub holder: Option<char>,
}

impl<D: Design> Engine<'_, D> {
    /// Runs until the condition is met or operation `end` has run; returns `None` if the condition was not met.
    ///
    /// # Errors
    /// Returns an [`EngineError`].
    pub fn run_until(&mut self, until: &Until, end: u64) -> Result<Option<Found>, EngineError> {
        let mut old_counts = self.watched(until);
        let mut holder = self.holder(until);
        while self.operations() < end.min(self.stream.operations) {
            let (mut missed, mut touched) = (false, false);
            self.operation(|engine, action| {
                let subject = engine.subject(action);
                match *until {
                    Until::Miss { cache }
                        if subject.is_some_and(|(subject_cache, _)| subject_cache == cache) =>
                    {
                        let before = engine.design.paths();
                        engine.act(action)?;
                        missed |=
                            slow_operation_count(&engine.design.paths()) > slow_operation_count(&before);
                    }
                    Until::Object { cache, page, index } => {
                        engine.act(action)?;
                        let place = match action {
                            Action::Alloc { .. } => engine.youngest(),
                            _ => subject.and_then(|(_, place)| place),
                        };
                        touched |= subject.is_some_and(|(subject_cache, _)| subject_cache == cache)
                            && place == Some((page, index));
                    }
                    _ => {
                        engine.act(action)?;
                    }
                }
                Some(())
            })?;
            let new_counts = self.watched(until);
            let is_met = match until {
                Until::DepotEmpty { .. } => old_counts[0] > 0 && new_counts[0] == 0,
                Until::SlabBorn { .. } | Until::SlabDies { .. } => new_counts[0] > old_counts[0],
                Until::Miss { .. } => missed,
                Until::Commit => new_counts[0] < old_counts[0],
                Until::Object { .. } => {
                    let old_holder = holder;
                    if touched || new_counts != old_counts {
                        holder = self.holder(until);
                    }
                    touched || holder != old_holder
                }
            };
            if is_met {
                return Ok(Some(Found { operation: self.operations(), cpu: self.cpu(), touched, holder }));
            }
            old_counts = new_counts;
        }
        Ok(None)
    }

    /// Returns the counts on which the condition depends. The condition cannot be met while all of its counts stay the
    /// same.
    fn watched(&self, until: &Until) -> [u64; 3] {
        match *until {
            Until::DepotEmpty { cache } => [self.design.counts(cache).in_depot, 0, 0],
            Until::SlabBorn { cache } => [self.design.counts(cache).slabs_made, 0, 0],
            Until::SlabDies { cache } => {
                let counts = self.design.counts(cache);
                [counts.slabs_made - counts.slabs(), 0, 0]
            }
            Until::Miss { .. } => [0; 3],
            Until::Commit => {
                let zones = self.design.pages().info().zones;
                [zones.iter().map(|zone| u64::from(zone.uncommitted)).sum(), 0, 0]
            }
            // An operation within a CPU's own layer leaves these counts unchanged, and all other moves of objects are
            // slow operations. Without any layer, no object moves.
            Until::Object { cache, .. } => {
                let counts = self.design.counts(cache);
                let slabs = 2 * counts.slabs_made - counts.slabs();
                match counts.in_magazines + counts.in_depot {
                    0 => [slabs, 0, 0],
                    _ => [
                        slabs,
                        counts.used + counts.in_magazines,
                        counts.in_depot | slow_operation_count(&self.design.paths()) << 32,
                    ],
                }
            }
        }
    }

    /// Returns the current holder of the object that the condition names.
    fn holder(&self, until: &Until) -> Option<char> {
        let Until::Object { cache, page, index } = *until else { return None };
        let shown_cache = self.design.show(cache)?;
        let slab = shown_cache.slabs.iter().find(|slab| slab.page == page)?;
        slab.objects.as_bytes().get(usize::from(index)).copied().map(char::from)
    }
}

/// Returns the number of operations that the CPU's own layer could not serve.
fn slow_operation_count(paths: &Paths) -> u64 {
    paths.operations() - paths.of(Path::Cpu)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::designs::{NoPolicy, Spec, Visitor, all};
    use crate::stream::Kind;
    use crate::view::View;
    use crate::{Stream, Writer};
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    /// A test stream with some pages and two caches; two CPUs fill and empty the caches three times.
    pub(crate) fn stream() -> Stream {
        let mut random = SmallRng::seed_from_u64(1);
        let mut writer = Writer::new("a trace".to_owned(), 2);
        let mut objects = Vec::new();
        for step_number in 0_u64..6000 {
            writer.begin(step_number);
            if step_number == 0 {
                writer.cache("a".to_owned(), Kind::Named, 512);
                writer.cache("b".to_owned(), Kind::Named, 2048);
            }
            let cpu = random.random_range(0..2);
            let growing = step_number / 1000 % 2 == 0;
            if random.random_ratio(if growing { 7 } else { 3 }, 10) || objects.is_empty() {
                let cache = random.random_range(0..2);
                writer.alloc(cpu, cache, step_number + 1, 512);
                objects.push(step_number + 1);
            } else {
                let index = random.random_range(0..objects.len());
                writer.free(cpu, objects.swap_remove(index));
            }
        }
        writer.finish()
    }

    /// Determines from the views before and after each operation if the condition was met.
    fn is_reached(until: &Until, old_counts: &View, new_counts: &View) -> bool {
        let counts = |view: &View, cache: u32| {
            view.caches.get(cache as usize).map(|cache_view| cache_view.counts.clone()).unwrap_or_default()
        };
        match *until {
            Until::DepotEmpty { cache } => {
                counts(old_counts, cache).in_depot > 0 && counts(new_counts, cache).in_depot == 0
            }
            Until::SlabBorn { cache } => {
                counts(new_counts, cache).slabs_made > counts(old_counts, cache).slabs_made
            }
            Until::SlabDies { cache } => {
                let slabs_freed = |view| counts(view, cache).slabs_made - counts(view, cache).slabs();
                slabs_freed(new_counts) > slabs_freed(old_counts)
            }
            Until::Miss { cache } => new_counts
                .steps
                .iter()
                .any(|step| step.cache == Some(cache) && step.path.is_some_and(|path| path > Path::Cpu)),
            Until::Commit => new_counts.pages.uncommitted < old_counts.pages.uncommitted,
            Until::Object { cache, page, index } => {
                let holder = |view: &View| {
                    let shown_cache = view.shown.iter().find(|shown_cache| shown_cache.cache == cache)?;
                    let slab = shown_cache.slabs.iter().find(|slab| slab.page == page)?;
                    Some(slab.objects.as_bytes()[usize::from(index)])
                };
                let touched =
                    |step: &crate::Step| step.cache == Some(cache) && step.object == Some((page, index));
                holder(new_counts) != holder(old_counts) || new_counts.steps.iter().any(touched)
            }
        }
    }

    struct Views<'s>(&'s Stream);

    impl Visitor for Views<'_> {
        type Out = Vec<View>;
        fn visit<D: Design>(self, design: D) -> Vec<View> {
            let mut engine = Engine::new(design, self.0);
            let view = |step_number| {
                let steps = engine.run_with_steps(step_number).unwrap();
                engine.view(steps, &[0, 1])
            };
            (0..=self.0.operations).map(view).collect()
        }
    }

    struct StopFinder<'s>(&'s Stream, Until);

    impl Visitor for StopFinder<'_> {
        type Out = Vec<u64>;
        fn visit<D: Design>(self, design: D) -> Vec<u64> {
            let mut engine = Engine::new(design, self.0);
            let mut stop_operations = Vec::new();
            // The stream runs in pieces, as a web page runs it.
            for end in (0..=self.0.operations).step_by(250) {
                while let Some(stop) = engine.run_until(&self.1, end).unwrap() {
                    stop_operations.push(stop.operation);
                }
                assert_eq!(engine.operations(), end);
            }
            stop_operations
        }
    }
    #[test]
    fn run_until_stops_when_a_view_meets_the_condition() {
        let stream = stream();
        for (design, _) in all::<NoPolicy>() {
            let spec: Spec = design.parse().unwrap();
            let views = spec.on(&stream, Views(&stream)).unwrap();
            let page = views[900].shown[0].slabs[0].page;
            let mut stop_count = 0;
            for until in [
                Until::DepotEmpty { cache: 0 },
                Until::SlabBorn { cache: 1 },
                Until::SlabDies { cache: 1 },
                Until::Miss { cache: 0 },
                Until::Commit,
                Until::Object { cache: 0, page, index: 3 },
            ] {
                let expected: Vec<_> = views
                    .windows(2)
                    .filter(|pair| is_reached(&until, &pair[0], &pair[1]))
                    .map(|pair| pair[1].operation)
                    .collect();
                assert_eq!(
                    spec.on(&stream, StopFinder(&stream, until)).unwrap(),
                    expected,
                    "{design}: {until:?}"
                );
                stop_count += usize::from(!expected.is_empty());
            }
            assert!(stop_count >= 4, "{design}: only {stop_count} of the events happen");
        }
    }
}
