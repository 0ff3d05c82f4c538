//! Memory used by a million small objects, and memory left after most or all of them are freed.

use rand::seq::SliceRandom;
use std::time::Duration;
use uslab_benches::resident::resident;
use uslab_benches::work::{Places, random};
use uslab_benches::{Bench, Column, Kind, LazySubject, Subject, ThreadAccess, Work, contenders};

const BYTES: usize = 64;

#[derive(Clone)]
struct MillionObjectsWorkload {
    objects: usize,
    /// Time between two memory readings after all objects were freed.
    pause: Duration,
}

impl Work for MillionObjectsWorkload {
    fn live(&self) -> usize {
        self.objects
    }
    fn suits<S: Subject>(&self) -> bool {
        S::KIND != Kind::Floor && !S::LINEAR
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let mut order: Box<[u32]> = (0..self.objects as u32).collect();
        order.shuffle(&mut random());
        // The harness's memory is written before the baseline is measured.
        let mut places = Places::new(self.objects);
        let (kept_places, freed) = order.split_at(self.objects / 10);
        let live = (self.objects * BYTES) as f64;
        let baseline = resident();

        let mut local = lazy_subject.get().local();
        for place in 0..self.objects {
            places.put(place, local.alloc(place as u64));
        }
        let full_bytes = resident() - baseline;
        free::<S, _>(&mut local, &mut places, freed);
        let tenth = resident() - baseline;
        local.give_back();
        let tenth_reaped = resident() - baseline;
        free::<S, _>(&mut local, &mut places, kept_places);
        let empty = resident() - baseline;
        std::thread::sleep(self.pause);
        let empty_bytes_later = resident() - baseline;
        local.reap();
        local.reap();
        let empty_idle = resident() - baseline;
        local.give_back();
        let empty_reaped = resident() - baseline;
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let live_now = (kept_places.len() * BYTES) as f64;
        vec![
            full_bytes / live,
            tenth / live_now,
            tenth_reaped / live_now,
            mib(empty),
            mib(empty_bytes_later),
            mib(empty_idle),
            mib(empty_reaped),
        ]
    }
}

/// Frees the objects at the indices in `positions`. Each index in `positions` must occur only once, and its slot must
/// hold an object.
pub(crate) fn free<S: Subject, L: ThreadAccess>(
    local: &mut L,
    places: &mut Places<L::Object>,
    positions: &[u32],
) {
    for &place in positions {
        // SAFETY: `positions` is a part of one permutation of the places, all of which are filled.
        let object = unsafe { places.take(place as usize) };
        let is_same_stamp = !S::HAS_DISJOINT_OBJECTS || local.stamp(&object) == u64::from(place);
        assert!(is_same_stamp, "{}: an object holds the stamp of another object", S::NAME);
        local.free(object);
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row("memory", "resident memory of 1,000,000 live objects of 64 B, divided by the bytes of the objects, and the memory that stays resident after frees; one process per contender");
    let columns = [
        Column::lower("all live", "times"),
        Column::lower("90 % freed at random", "times").exclude_from_summary(),
        Column::lower("90 % freed at random and returned", "times").exclude_from_summary(),
        Column::lower("all freed", "MiB").exclude_from_summary(),
        Column::lower("all freed, 1 s later", "MiB").exclude_from_summary(),
        Column::lower("all freed and two reaping intervals ended", "MiB").exclude_from_summary(),
        Column::lower("all freed and returned", "MiB").exclude_from_summary(),
    ];
    let pause = Duration::from_millis(bench.scale(1000) as u64);
    let million = MillionObjectsWorkload { objects: bench.scale(1_000_000), pause };
    bench.isolated_group("", columns, contenders::<8>(&million));
}
