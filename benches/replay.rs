//! How fast a whole trace is read, and read and replayed: events a second on one thread.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::path::Path;
use uslab_sim::output::Progress;
use uslab_sim::replay::{self, Options};
use uslab_sim::trace::Recording;

fn whole_trace(c: &mut Criterion) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/data/files-6.1.trace.zst");
    let mut group = c.benchmark_group("replay");
    group.sample_size(10).throughput(Throughput::Elements(721_538));
    group.bench_function("read", |b| b.iter(|| Recording::open(&path).expect("the bundled trace")));
    let whole = |options: &Options| {
        let report = replay::run(Some(&path), options, &Progress::new()).expect("the bundled trace");
        assert_eq!((report.events_total, report.conservation.violated), (721_538, 0));
    };
    group.bench_function("read_and_replay", |b| b.iter(|| whole(&Options::default())));
    let off = Options { magazines: uslab::Magazines::Off, ..Options::default() };
    group.bench_function("read_and_replay/without_magazines", |b| b.iter(|| whole(&off)));
    group.finish();
}

criterion_group!(benches, whole_trace);
criterion_main!(benches);
