//! Runs a recorded stream without idle times: each CPU runs its own operations as fast as possible.
//!
//! The run keeps the order of each CPU's operations. A free of an object that another CPU allocates waits until the
//! allocation is done. The run omits marks, shrink operations, pages that belong to no cache, and objects from before
//! the recording.

use super::source::{Next, Source};
use crate::stream::{Action, Reader, Stream};

/// The operations of all CPUs in a recorded stream, and the objects that these operations use.
pub(super) struct Trace<O> {
    cpus: Vec<Vec<Step>>,
    /// The index of each CPU's next operation.
    positions: Vec<usize>,
    objects: Vec<Slot<O>>,
}

/// The birth number that all objects from before the stream share.
const BORN_BEFORE_STREAM: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc { cache: u32, bytes: u64, object: u32 },
    Free { cache: u32, object: u32 },
}

enum Slot<O> {
    /// The object is not allocated yet.
    Unborn,
    /// The object is not allocated yet, and the given CPU sleeps until the allocation.
    Awaited(u32),
    /// The object was allocated at the given time.
    Allocated(f64, O),
    Freed,
}

impl<O> Trace<O> {
    /// Reads the operations of a stream; returns `None` if the stream is damaged.
    pub(super) fn new(stream: &Stream) -> Option<Self> {
        let mut cpus = vec![vec![]; stream.cpus as usize];
        let (mut reader, mut objects) = (Reader::default(), 0);
        // The object's number and cache, for each allocation.
        let mut births: Vec<Option<(u32, u32)>> = vec![];
        for _ in 0..stream.operations {
            reader.begin(stream)?;
            loop {
                let action = reader.action(stream)?;
                let steps: &mut Vec<_> = cpus.get_mut(reader.cpu() as usize)?;
                match action {
                    Action::Alloc { cache, bytes } | Action::Pass { cache, bytes } => {
                        let object = objects;
                        objects += 1;
                        steps.push(Step::Alloc { cache, bytes, object });
                        match action {
                            Action::Pass { .. } => steps.push(Step::Free { cache, object }),
                            _ => births.push(Some((object, cache))),
                        }
                    }
                    Action::Free { age } => {
                        let number = (births.len() as u64).checked_sub(age.checked_add(1)?)?;
                        let (object, cache) = births[number as usize].take()?;
                        if object != BORN_BEFORE_STREAM {
                            steps.push(Step::Free { cache, object });
                        }
                    }
                    Action::Start { cache, used, .. } => {
                        births.extend((0..used).map(|_| Some((BORN_BEFORE_STREAM, cache))));
                    }
                    _ => {}
                }
                if !reader.has_more_actions(stream) {
                    break;
                }
            }
        }
        let objects = (0..objects).map(|_| Slot::Unborn).collect();
        Some(Self { positions: vec![0; cpus.len()], cpus, objects })
    }
    /// The number of allocations and frees.
    pub(super) fn operations(&self) -> u64 {
        self.cpus.iter().map(|steps| steps.len() as u64).sum()
    }
}

impl<O> Source<O> for Trace<O> {
    fn next(&mut self, cpu: u32, now: f64) -> Next<O> {
        let position = &mut self.positions[cpu as usize];
        match self.cpus[cpu as usize].get(*position) {
            None => Next::Done,
            Some(&Step::Alloc { cache, bytes, .. }) => {
                *position += 1;
                Next::Alloc { cache, bytes }
            }
            Some(&Step::Free { cache, object }) => {
                let slot = &mut self.objects[object as usize];
                match core::mem::replace(slot, Slot::Freed) {
                    Slot::Allocated(time, object) if time <= now => {
                        *position += 1;
                        Next::Free { cache, object }
                    }
                    Slot::Allocated(time, object) => {
                        *slot = Slot::Allocated(time, object);
                        Next::IdleUntil(time)
                    }
                    Slot::Unborn | Slot::Awaited(_) => {
                        *slot = Slot::Awaited(cpu);
                        Next::SleepUntilWoken
                    }
                    Slot::Freed => unreachable!("a stream frees an object once"),
                }
            }
        }
    }
    fn allocated(&mut self, cpu: u32, time: f64, object: O) -> Option<u32> {
        let last = self.positions[cpu as usize].checked_sub(1).map(|at| self.cpus[cpu as usize][at]);
        let Some(Step::Alloc { object: number, .. }) = last else { unreachable!("the object was allocated") };
        match core::mem::replace(&mut self.objects[number as usize], Slot::Allocated(time, object)) {
            Slot::Awaited(sleeper) => Some(sleeper),
            _ => None,
        }
    }
    fn objects_in_use(&self) -> u64 {
        self.objects.iter().filter(|slot| matches!(slot, Slot::Allocated(..))).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ClockError, Outcome, Profile, run_stream};
    use crate::models::bonwick94::{self, Bonwick94};
    use crate::models::magazines01::Magazines01;
    use crate::models::slub::Slub;
    use crate::models::uslab::Uslab;
    use crate::stream::{Kind, Writer};
    use crate::{Pages, Policy};
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    fn outcome<P: Policy>(stream: &Stream) -> Result<Outcome, ClockError> {
        let profile = Profile::built_in().next().expect("a profile must be built in");
        run_stream::<P>(&Pages::of(stream).unwrap(), P::Knobs::default(), stream, &profile)
    }

    #[test]
    fn remote_free_waits_for_the_allocation() {
        let mut writer = Writer::new("two".to_owned(), 2);
        writer.begin(0);
        writer.cache("a".to_owned(), Kind::Named, 64);
        writer.alloc(0, 0, 0x1000, 64);
        writer.begin(1);
        writer.free(1, 0x1000);
        let mut trace = Trace::new(&writer.finish()).unwrap();
        assert!(matches!(trace.next(1, 0.0), Next::SleepUntilWoken));
        assert!(matches!(trace.next(0, 0.0), Next::Alloc { cache: 0, .. }));
        assert_eq!((trace.allocated(0, 5.0, 'x'), trace.objects_in_use()), (Some(1), 1));
        assert!(matches!(trace.next(1, 4.0), Next::IdleUntil(5.0)));
        assert!(matches!(trace.next(1, 5.0), Next::Free { cache: 0, object: 'x' }));
        assert!([0, 1].into_iter().all(|cpu| matches!(trace.next(cpu, 6.0), Next::Done)));
        assert_eq!(trace.objects_in_use(), 0);
    }

    /// Generates objects of three caches and of large kmalloc; each object may be freed by any of four CPUs.
    fn random(seed: u64) -> (Stream, u64) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut writer = Writer::new("random".to_owned(), 4);
        let (mut live, mut operations) = (vec![], 0);
        for step in 0..4000 {
            writer.begin(step);
            if step == 0 {
                for size in [64, 192, 1024] {
                    writer.cache(format!("of-{size}"), Kind::Named, size);
                }
                writer.cache("large".to_owned(), Kind::Large, 0);
            }
            let cpu = rng.random_range(0..4);
            match rng.random_range(0..live.len() + 20) {
                n if n < live.len() => _ = writer.free(cpu, live.swap_remove(n)),
                n if n % 9 == 0 => {
                    writer.pass(cpu, 0, 64);
                    operations += 1;
                }
                n if n % 9 == 1 => {
                    writer.alloc_pages(cpu, step * 8, 1, 0);
                    operations -= 1;
                }
                _ => {
                    let cache = rng.random_range(0..4);
                    writer.alloc(cpu, cache, 0x10_0000 + step * 0x4000, 9000);
                    live.push(0x10_0000 + step * 0x4000);
                }
            }
            operations += 1;
        }
        (writer.finish(), operations)
    }

    #[test]
    fn stream_runs_each_operation_once() {
        fn check<P: Policy>() {
            let (stream, operations) = random(7);
            let first = outcome::<P>(&stream).unwrap();
            assert_eq!((first.operations, first.cpus), (operations, 4), "{}", P::NAME);
            assert!(first.paths.operations() < operations, "large blocks have no class");
            assert_eq!(first, outcome::<P>(&stream).unwrap());
            assert_ne!(first, outcome::<P>(&random(8).0).unwrap());
        }
        check::<Bonwick94>();
        check::<Magazines01>();
        check::<Slub>();
        check::<Uslab>();
    }

    /// Compares two CPUs that use separate caches with two CPUs that share one cache.
    #[test]
    fn caches_of_a_trace_run_independently() {
        let run = |caches: u32| {
            let mut writer = Writer::new("pairs".to_owned(), 2);
            for step in 0..2000 {
                writer.begin(step);
                if writer.caches() == 0 {
                    (0..2).for_each(|cache| writer.cache(format!("c{cache}"), Kind::Named, 64));
                }
                let cpu = (step % 2) as u32;
                match step % 4 < 2 {
                    true => writer.alloc(cpu, cpu % caches, 0x1000 + u64::from(cpu), 64),
                    false => assert!(writer.free(cpu, 0x1000 + u64::from(cpu))),
                }
            }
            outcome::<Bonwick94>(&writer.finish()).unwrap()
        };
        let (single_run, double_run) = (run(1), run(2));
        assert!(single_run.lists.contended > 100, "{single_run:?}");
        assert_eq!(
            (double_run.lists.contended, double_run.lists.taken),
            (0, single_run.lists.taken),
            "{double_run:?}"
        );
        assert!(double_run.operations_per_us > 2.0 * single_run.operations_per_us);
    }

    #[test]
    fn damaged_streams_are_errors() {
        let (stream, _) = random(7);
        let mut bytes = stream.write();
        let knobs = bonwick94::Knobs::default;
        let pages = Pages::new(4).unwrap();
        let profile = Profile::built_in().next().expect("a profile must be built in");
        // A changed byte gives an error or a runnable stream, never a panic.
        let mut damaged_streams = 0;
        for at in (20..bytes.len()).step_by(97) {
            bytes[at] ^= 1;
            if let Ok(stream) = Stream::read(&bytes)
                && stream.cpus == 4
            {
                let result = run_stream::<Bonwick94>(&pages, knobs(), &stream, &profile);
                damaged_streams += u32::from(matches!(result, Err(ClockError::Damaged)));
            }
            bytes[at] ^= 1;
        }
        assert!(damaged_streams > 10, "{damaged_streams}");
    }
}
