//! Speed of reading and replaying a whole trace, in events or operations per second. `README.md` describes each row.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::fs::File;
use std::path::Path;
use uslab_engine::designs::{self, NoPolicy, Spec, Visitor};
use uslab_engine::{Design, Engine, Machine, Shipping, Stream};
use uslab_sim::output::Progress;
use uslab_sim::replay::{self, Options};
use uslab_sim::trace::Recording;

const EVENTS: u64 = 721_538;
const TEXT: u64 = 125_320_776;

fn bench_whole_trace(c: &mut Criterion) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/data/files-6.1.trace.zst");
    let mut group = c.benchmark_group("replay");
    group.sample_size(10).throughput(Throughput::Elements(EVENTS));
    group.bench_function("unpack", |b| {
        b.iter(|| {
            let file = File::open(&path).expect("the bundled trace must be readable");
            let mut text = zstd::Decoder::new(file).expect("a decoder");
            assert_eq!(std::io::copy(&mut text, &mut std::io::sink()).expect("whole"), TEXT);
        });
    });
    group.bench_function("read", |b| {
        b.iter(|| Recording::open(&path).expect("the bundled trace must be readable"))
    });
    let replay_all = |options: &Options| {
        let report =
            replay::run(Some(&path), options, &Progress::new()).expect("the bundled trace must be readable");
        assert_eq!((report.events_total, report.conservation.violated), (EVENTS, 0));
    };
    group.bench_function("read_and_replay", |b| b.iter(|| replay_all(&Options::default())));
    let without_magazines = Options { magazines: uslab::Magazines::Off, ..Options::default() };
    group.bench_function("read_and_replay/without_magazines", |b| b.iter(|| replay_all(&without_magazines)));

    let stream = replay::read_stream(Some(&path), &Options::default(), &Progress::new());
    let stream = stream.expect("the bundled trace must be readable");
    group.throughput(Throughput::Elements(stream.operations));
    for (name, _) in designs::all::<NoPolicy>() {
        let spec: Spec = name.parse().expect("a design");
        group.bench_function(format!("parsed/{name}"), |b| {
            b.iter(|| spec.on(&stream, WholeStream(&stream)).expect("a machine"));
        });
    }
    group.bench_function("parsed/uslab/with_bytes", |b| {
        b.iter(|| {
            WholeStream(&stream).visit(Shipping::on(&Machine::with_bytes(&stream).expect("a machine")))
        });
    });
    group.finish();
}

struct WholeStream<'s>(&'s Stream);

impl Visitor for WholeStream<'_> {
    type Out = ();
    fn visit<D: Design>(self, design: D) {
        let mut engine = Engine::new(design, self.0);
        engine.run(u64::MAX).expect("the stream must replay completely");
        assert_eq!((engine.operations(), engine.failed()), (self.0.operations, 0));
    }
}

criterion_group!(benches, bench_whole_trace);
criterion_main!(benches);
