//! Tests the Prometheus text format of the statistics.

use crate::common::config;
use crate::exposition::{read, read_labels};
use prometheus_client::{encoding::text::encode, registry::Registry};
use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;
use uslab::cache::Account;
use uslab::prometheus::{Exposition, Heaps};
use uslab::{Gfp, Harden, KmemCache, Limit, Magazines, Subsystem};
use uslab_magazine::on_cpu;

/// Returns the value of the series with this name and these labels; the labels may be in any order.
fn value(series: &BTreeMap<String, f64>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let expected_labels: BTreeMap<_, _> =
        labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let matching_series = series.iter().find(|(key, _)| {
        key.split('{').next() == Some(name)
            && key.find('{').map_or_else(BTreeMap::new, |brace| read_labels(&key[brace..]).unwrap())
                == expected_labels
    });
    *matching_series.unwrap_or_else(|| panic!("no {name} {labels:?}")).1
}

#[test]
fn prometheus_text_passes_a_strict_parser() {
    let subsystem = Subsystem::new(config(2, 2, 32 << 20)).unwrap();
    let cache = KmemCache::builder("inode", 1000).build_in(&subsystem).unwrap();
    on_cpu(1);
    let mut blocks = cache.alloc_blocks(Gfp::KERNEL, 100).unwrap();
    blocks.truncate(30);
    let large_block = subsystem.kmalloc().alloc_block(20_000, Gfp::KERNEL).unwrap();
    let info = subsystem.info();
    let series = read(&info.prometheus().to_string()).unwrap();
    let inode = info.caches.iter().find(|cache| cache.name == "inode").unwrap();
    let objects = |place| value(&series, "uslab_cache_objects", &[("cache", "inode"), ("place", place)]);
    let places = ["used", "magazines", "depot", "slabs"].map(objects);
    assert_eq!((places[0], places.iter().sum::<f64>()), (30.0, inode.objects as f64));
    let of_inode = |name| value(&series, name, &[("cache", "inode")]);
    assert_eq!(of_inode("uslab_cache_bytes"), (inode.pages * 4096) as f64);
    assert_eq!(of_inode("uslab_cache_used_bytes"), 30_000.0);
    assert_eq!((of_inode("uslab_cache_allocs_total"), of_inode("uslab_cache_frees_total")), (100.0, 70.0));
    let paths = ["cpu", "depot", "slab", "pages", "commit"]
        .map(|path| value(&series, "uslab_cache_operations_total", &[("cache", "inode"), ("path", path)]));
    assert_eq!((paths[0], paths.iter().sum::<f64>()), (inode.paths.cpu as f64, 170.0));
    let zones: f64 = ["allocated", "per_cpu", "free", "discarded", "uncommitted"]
        .iter()
        .map(|state| {
            value(&series, "uslab_zone_bytes", &[("node", "1"), ("zone", "Normal"), ("state", state)])
        })
        .sum();
    assert_eq!(zones, (16 << 20) as f64, "the states of a node's pages");
    assert_eq!(value(&series, "uslab_beyond_caches_bytes", &[("kind", "large")]), 32768.0);
    assert_eq!(value(&series, "uslab_page_failures_total", &[]), 0.0);
    drop((blocks, large_block));
}

/// Regression test: objects in quarantine were not counted, so the counts by location had a sum below the number of
/// objects.
#[test]
fn metrics_include_quarantined_objects() {
    let subsystem = Subsystem::new(config(1, 1, 16 << 20)).unwrap();
    let harden = Harden { quarantine: 4096, ..Harden::OFF };
    let cache = KmemCache::builder("inode", 1000).harden(harden).build_in(&subsystem).unwrap();
    on_cpu(0);
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    let series = read(&subsystem.info().prometheus().to_string()).unwrap();
    let objects = |place| value(&series, "uslab_cache_objects", &[("cache", "inode"), ("place", place)]);
    let places = ["quarantine", "used", "magazines", "depot", "slabs"].map(objects);
    assert_eq!((places[0], places.iter().sum::<f64>()), (1.0, cache.info().objects as f64));
}

/// The text and a metrics registry must contain the same values, even for several heaps.
#[test]
fn metrics_registry_and_metrics_text_have_equal_series() {
    let subsystems = [1, 2].map(|cpus| Subsystem::new(config(cpus, 1, 16 << 20)).unwrap());
    let caches = subsystems.each_ref().map(|s| KmemCache::builder("quo\"te", 64).build_in(s).unwrap());
    on_cpu(0);
    let blocks = caches.each_ref().map(|cache| cache.alloc_block(Gfp::KERNEL).unwrap());
    let infos = subsystems.map(|s| s.info());
    let heaps = [("a", &infos[0]), ("b", &infos[1])];
    let text = Exposition::of(heaps).to_string();
    let series = read(&text).unwrap();
    let used_labels = [("heap", "b"), ("cache", "quo\"te"), ("place", "used")];
    assert_eq!(value(&series, "uslab_cache_objects", &used_labels), 1.0);
    let failures = value(&series, "uslab_page_failures_total", &[("heap", "a")]);
    assert_eq!(failures, 0.0);

    let mut registry = Registry::default();
    registry.register_collector(Box::new(Heaps::new({
        let infos = infos.clone();
        move || vec![("a", infos[0].clone()), ("b", infos[1].clone())]
    })));
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    let samples = |text: &str| {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(samples(&page), samples(&text));
    drop(blocks);
}

#[test]
fn metrics_include_accounts_limits_and_waits() {
    let subsystem = Subsystem::new(config(1, 1, 16 << 20)).unwrap();
    on_cpu(0);
    let tenant = Account::new_in(&subsystem, 64 << 10).named("tenant-7");
    let build = |name| KmemCache::builder(name, 4096).magazines(Magazines::Off);
    let requests = build("request").account(&tenant).build_in(&subsystem).unwrap();
    let pages = build("page").limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let blocks: Vec<_> = std::iter::from_fn(|| requests.alloc_block(Gfp::KERNEL).ok()).collect();
    let page_blocks: Vec<_> = std::iter::from_fn(|| pages.alloc_block(Gfp::KERNEL).ok()).collect();
    assert!(pages.acquire_timeout(Gfp::KERNEL, Duration::from_millis(2)).is_err());
    let waits = |cache: &KmemCache| -> bool {
        let mut acquire = pin!(cache.acquire(Gfp::KERNEL));
        let poll_result = Future::poll(acquire.as_mut(), &mut Context::from_waker(Waker::noop()));
        assert!(poll_result.is_pending() && cache.info().waiting == 1);
        let info = subsystem.info();
        let text = info.prometheus().to_string();
        let series = read(&text).unwrap();
        let account = |name| value(&series, name, &[("account", "tenant-7")]);
        let value_of = |name, cache| value(&series, name, &[("cache", cache)]);
        let numbers = &info.accounts[0];
        assert_eq!((info.accounts.len(), &*numbers.name), (1, "tenant-7"));
        assert_eq!(account("uslab_account_charged_bytes"), tenant.charged() as f64);
        assert_eq!(account("uslab_account_peak_bytes"), tenant.peak() as f64);
        assert_eq!(account("uslab_account_limit_bytes"), 65536.0);
        assert!(numbers.refusals > 0);
        assert_eq!(account("uslab_account_refusals_total"), numbers.refusals as f64);
        let is_request_cache = cache.name() == "request";
        assert_eq!(account("uslab_account_waiting"), f64::from(is_request_cache));
        assert_eq!(value_of("uslab_cache_waiting", "page"), f64::from(!is_request_cache));
        let slab = (4096 << pages.geometry().order().get()) as f64;
        assert_eq!(value_of("uslab_cache_limit_bytes", "page"), slab);
        assert_eq!(value_of("uslab_cache_limit_bytes", "request"), 0.0, "the cache has no limit");
        let page = info.caches.iter().find(|cache| cache.name == "page").unwrap();
        assert_eq!(value_of("uslab_cache_waits_total", "page"), page.waits as f64);
        let seconds = value_of("uslab_cache_waited_seconds_total", "page");
        assert_eq!((seconds * 1e9).round(), page.waited_ns as f64);
        assert!(page.waits > 0 && seconds > 0.0, "one caller has already waited");
        let json = serde_json::to_value(&info).unwrap();
        assert_eq!(json["accounts"][0]["name"], "tenant-7");
        assert_eq!(json["accounts"][0]["refusals"], numbers.refusals);
        assert!(json["caches"].as_array().unwrap().iter().any(|cache| cache["waited_ns"] == page.waited_ns));
        true
    };
    assert!(waits(&requests) && waits(&pages));
    assert_eq!(requests.info().waits + pages.info().waits, 3);
    drop((blocks, page_blocks));
}

#[test]
fn prometheus_labels_are_escaped() {
    let subsystem = Subsystem::new(config(1, 1, 16 << 20)).unwrap();
    let names = ["same", "same", "quo\"te", "back\\slash\\", "ünïcode"];
    let caches = names.map(|name| KmemCache::builder(name, 64).build_in(&subsystem).unwrap());
    let blocks = caches.each_ref().map(|cache| cache.alloc_block(Gfp::KERNEL).unwrap());
    let mut info = subsystem.info();
    // A cache cannot have a name with a line break, but a label can.
    info.caches.iter_mut().find(|cache| cache.name == "ünïcode").unwrap().name = "two\nlines".into();
    let series = read(&info.prometheus().to_string()).unwrap();
    let used_objects = |name| value(&series, "uslab_cache_objects", &[("cache", name), ("place", "used")]);
    assert_eq!(
        ["same", "quo\"te", "back\\slash\\", "two\nlines"].map(used_objects),
        [2.0, 1.0, 1.0, 1.0],
        "two caches are named `same`"
    );
    drop(blocks);
}

#[test]
fn metrics_text_reader_rejects_invalid_text() {
    let valid_text = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"c\"} 1\n";
    assert_eq!(read(valid_text).unwrap().len(), 1);
    for (original, replacement) in [
        ("# HELP a_total A.\n", ""),
        ("# TYPE a_total counter\n", ""),
        ("counter", "gauge"),
        ("counter", "untyped"),
        ("a_total{", "b_total{"),
        ("\"c\"}", "\"c\""),
        ("b=\"c\"", "b=\"c\",b=\"d\""),
        ("b=\"c\"", "b=\"c\\d\""),
        ("b=\"c\"", "1b=\"c\""),
        ("} 1", "} one"),
        ("} 1\n", "} 1"),
        ("} 1\n", "} 1\na_total{b=\"c\"} 2\n"),
        ("a_total{b=\"c\"} 1\n", ""),
    ] {
        read(&valid_text.replace(original, replacement))
            .expect_err(&format!("{original:?} -> {replacement:?}"));
    }
}

/// Regression test: the sum of several limits overflowed, so the code panicked, or a tenant without a limit appeared
/// far above its limit.
#[test]
fn summed_account_limits_do_not_overflow() {
    let subsystem = Subsystem::new(config(1, 1, 16 << 20)).unwrap();
    let accounts = [usize::MAX, 64 << 10].map(|limit| Account::new_in(&subsystem, limit));
    let build = |account| KmemCache::builder("request", 4096).account(account).build_in(&subsystem).unwrap();
    let _caches = accounts.each_ref().map(build);
    let series = read(&subsystem.info().prometheus().to_string()).unwrap();
    let limit = value(&series, "uslab_account_limit_bytes", &[("account", "account")]);
    assert_eq!(limit, u64::MAX as f64);
}
