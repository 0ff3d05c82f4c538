//! Tests observers, which a subsystem notifies of its operations.

use crate::common::subsystem;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use uslab::magazine::tracepoints::MAX_OBSERVERS;
use uslab::magazine::{Mechanism, Path, on_cpu};
use uslab::observe::{Counts, OperationKind, Step};
use uslab::{Config, Gfp, KmemCache, Subsystem};
use uslab_magazine::sync::{Counter, Mutex};

/// Allocates all objects of `slabs` slabs of a cache, and frees them again.
fn churn(subsystem: &Subsystem, name: &str, slabs: u64) -> KmemCache {
    let cache = KmemCache::builder(name, 512).build_in(subsystem).unwrap();
    let per_slab = cache.info().objs_per_slab;
    let blocks: Vec<_> = (0..slabs * per_slab).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    drop(blocks);
    cache
}

/// The test compares the counters with the observed operations, both by path and by created and freed slabs.
#[test]
fn observed_operations_add_up_to_the_counters() {
    let s = subsystem(1);
    on_cpu(0);
    let (sender, seen_events) = channel();
    let observer = s
        .observe(move |o| {
            let steps = o.steps.to_vec();
            sender.send((o.name.to_owned(), o.what, o.path, steps, o.more)).unwrap();
        })
        .unwrap();
    let cache = churn(&s, "inode", 20);
    let counted_paths = cache.info().paths;
    cache.shrink();
    assert_eq!(observer.counts(), Counts::default());
    drop(observer);
    let (mut paths, mut slabs) = (BTreeMap::new(), 0_i64);
    for (name, operation, path, steps, has_details) in seen_events {
        for step in &steps {
            match step {
                Step::SlabAdded { .. } => slabs += 1,
                Step::SlabReleased { .. } => slabs -= 1,
                _ => {}
            }
        }
        if name == "inode" && operation != OperationKind::Reclaim && !has_details {
            *paths.entry(path).or_insert(0_u64) += 1;
        }
    }
    for path in Path::ALL.into_iter().skip(1) {
        let observed = paths.get(&path).copied().unwrap_or(0);
        assert_eq!(observed, counted_paths.of(path), "{} of {paths:?}", path.name());
    }
    let info = cache.info();
    assert_eq!(slabs as u64, info.full + info.partial + info.empty);
}

/// A thread's first operations on each CPU take slow paths, which the observer sees.
#[test]
fn fast_path_operations_are_not_observed() {
    let s = Subsystem::new(Config { check_frees: false, ..Config::default() }).unwrap();
    if s.cpus().mechanism() != Mechanism::Rseq {
        return;
    }
    let (cache, kmalloc) = (KmemCache::builder("inode", 64).build_in(&s).unwrap(), s.kmalloc());
    let event_counts = [(); 2].map(|()| Arc::new(Counter::new(0)));
    let [inodes, other_counts] = event_counts.clone();
    let observer =
        s.observe(move |o| if o.name == "inode" { inodes.add(1) } else { other_counts.add(1) }).unwrap();
    for _ in 0..1000 {
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let object = kmalloc.alloc(64, Gfp::KERNEL).unwrap();
        // SAFETY: the object was allocated just now, and is freed once.
        unsafe { kmalloc.free(object) };
    }
    drop(observer);
    let event_counts = event_counts.map(|event_counts| event_counts.get());
    assert!(event_counts.iter().all(|event_counts| (1..500).contains(event_counts)), "{event_counts:?}");
}

/// The observer runs without held locks, so it may allocate from the observed cache, and create and drop caches.
#[test]
fn observer_can_use_caches_of_its_subsystem() {
    let s = Arc::new(subsystem(1));
    on_cpu(0);
    let kept_cache = KmemCache::builder("dropped", 64).build_in(&s).unwrap();
    let (own_subsystem, to_drop, calls) =
        (s.clone(), Arc::new(Mutex::new(Some(kept_cache))), Arc::new(Counter::new(0)));
    let count = calls.clone();
    let observer = s
        .observe(move |o| {
            count.add(1);
            drop(to_drop.lock().take());
            let block = own_subsystem.kmalloc().alloc_block(100, Gfp::KERNEL).unwrap();
            drop(churn(&own_subsystem, "made", 2));
            drop(block);
            own_subsystem.shrink();
            assert!(!o.steps.is_empty());
        })
        .unwrap();
    drop(churn(&s, "inode", 8));
    assert!(calls.get() > 8, "{}", calls.get());
    let Counts { suppressed, panics, .. } = observer.counts();
    assert!(suppressed > calls.get() && panics == 0, "{suppressed} {panics}");
    drop(observer);
    s.shrink();
    assert_eq!(s.check().unwrap().objects, 0);
}

#[test]
fn observers_receive_only_events_of_their_subsystem() {
    let (first_subsystem, second) = (subsystem(1), subsystem(1));
    on_cpu(0);
    let observers: Vec<_> =
        (0..MAX_OBSERVERS).map(|_| first_subsystem.observe(|_| unreachable!()).unwrap()).collect();
    assert!(first_subsystem.observe(|_| ()).is_err() && second.observe(|_| ()).is_ok());
    drop(churn(&second, "inode", 3));
    assert_eq!(observers[0].counts(), Counts::default());
}

/// The events that a `tracing` subscriber has received.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<(tracing::Level, String)>>>);

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "uslab"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        unreachable!("only events must be observed")
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().push((*event.metadata().level(), fields.0));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn slow_operations_emit_tracing_events() {
    let s = subsystem(1);
    on_cpu(0);
    let observer = s.observe(uslab::observe::event).unwrap();
    let events = Events::default();
    let cache = tracing::subscriber::with_default(events.clone(), || churn(&s, "inode", 20));
    drop(observer);
    let paths = cache.info().paths;
    // The events are only the cache's own operations, without operations on its pages and without reclaim.
    let mut events = events.0.lock();
    events.retain(|(_, message)| message.contains("name=\"inode\"") && !message.contains("what=Reclaim"));
    let has_event = |level, path: &str| {
        events.iter().filter(|(has_event, message)| *has_event == level && message.contains(path)).count()
            as u64
    };
    assert_eq!(has_event(tracing::Level::DEBUG, "path="), paths.pages + paths.commit);
    assert_eq!(has_event(tracing::Level::TRACE, "path=Slab"), paths.slab);
    assert_eq!(has_event(tracing::Level::TRACE, "path=Depot"), paths.depot);
    let (_, first) = events.first().unwrap();
    for message in ["message=misses, ", "adds slab ", "what=Alloc ", "cpu=0 ", "name=\"inode\" "] {
        assert!(first.contains(message), "no `{message}`: {first}");
    }
}
