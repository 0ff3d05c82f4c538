//! Property tests that compare the allocator with its [shadow model](crate::shadow). The property tests cover all
//! orders, migrate types, zones and nodes, and splits, bulk allocations, migrations, drains and injected faults.
//!
//! The environment variable `PROPTEST_CASES` sets the number of test cases.

use crate::shadow::{self, Op};
use crate::{Backend, Gfp, Order, PageConfig, ZoneKind};
use proptest::prelude::*;
use uslab_magazine::Cpus;

const CASES: u32 = 10_000;

fn gfp() -> impl Strategy<Value = Gfp> {
    let zone = prop_oneof![6 => Just(Gfp::KERNEL), 1 => Just(Gfp::DMA), 1 => Just(Gfp::DMA32)];
    let kind = prop_oneof![3 => Just(Gfp::KERNEL), 3 => Just(Gfp::MOVABLE), 2 => Just(Gfp::RECLAIMABLE)];
    let base_flags = prop_oneof![
        4 => Just(Gfp::KERNEL), 2 => Just(Gfp::MEMALLOC), 1 => Just(Gfp::HIGH), 1 => Just(Gfp::ATOMIC),
        1 => Just(Gfp::NORETRY), 1 => Just(Gfp::ZERO),
    ];
    let more = prop_oneof![4 => Just(Gfp::KERNEL), 1 => Just(Gfp::THIS_NODE), 1 => Just(Gfp::COMP)];
    (zone, kind, base_flags, more).prop_map(|(zone, kind, base_flags, more)| zone | kind | base_flags | more)
}

fn op() -> impl Strategy<Value = Op> {
    let node = || proptest::option::of(0..4_u32);
    let order = prop_oneof![4 => Just(0_u8), 4 => 1..=3_u8, 2 => 4..=10_u8];
    let order = order.prop_map(|order| Order::new(order).unwrap());
    prop_oneof![
        12 => (order, gfp(), node()).prop_map(|(order, gfp, node)| Op::Alloc { order, gfp, node }),
        9 => any::<u16>().prop_map(Op::Free),
        2 => (any::<u16>(), 1..=3_u8).prop_map(|(block, down)| Op::Split(block, down)),
        1 => (gfp(), node(), 0..100_u8).prop_map(|(gfp, node, max)| Op::Bulk { gfp, node, max }),
        3 => (0..4_u8).prop_map(Op::Cpu),
        1 => (0..4_u8, 0..5_u8).prop_map(|(a, b)| Op::Drain(a.min(b), b)),
        1 => Just(Op::Reap),
        1 => Just(Op::Release),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let refuse = (0..6_u8, 0..9_u8, proptest::option::of(1..4_u8))
        .prop_map(|(point, nth, times)| Op::Refuse { point, nth, times });
    // Half of the cases have no refusals, so that the shadow model knows which allocations must succeed.
    prop_oneof![
        prop::collection::vec(op(), 1..60),
        prop::collection::vec(prop_oneof![20 => op(), 1 => refuse, 1 => Just(Op::Grant)], 1..60),
    ]
}

fn config() -> impl Strategy<Value = PageConfig> {
    let zones = proptest::sample::subsequence(ZoneKind::ALL.to_vec(), 1..=3);
    let node = (zones, prop::collection::vec(1..700_u32, 3))
        .prop_map(|(kinds, pages)| kinds.into_iter().zip(pages).collect::<Vec<_>>());
    let geometry =
        prop_oneof![Just((10, 9)), Just((10, 4)), (1..=6_u8).prop_flat_map(|max| (Just(max), 0..=max))];
    let free_kib = prop_oneof![Just(Some(0)), Just(None), (0..512_u32).prop_map(Some)];
    let cpus = (1..=4_u32).prop_flat_map(|cpus| (Just(cpus), 1..=cpus));
    // The bound is absent, zero, or in the middle of the sizes.
    let keep_free = prop_oneof![Just(None), Just(Some(0)), (0..2_usize << 20).prop_map(Some)];
    let own = (any::<bool>(), 0..20_u8, keep_free);
    (prop::collection::vec(node, 1..=3), geometry, free_kib, cpus, own).prop_map(
        |(
            mut nodes,
            (max, pageblock),
            min_free_kib,
            (cpus, cpu_nodes),
            (per_cpu_pages, backend, keep_free),
        )| {
            nodes.resize(nodes.len().max(cpu_nodes as usize), Vec::new());
            PageConfig {
                max_order: Order::new(max).unwrap(),
                pageblock_order: Order::new(pageblock).unwrap(),
                min_free_kib,
                per_cpu_pages,
                keep_free,
                // Only some cases use real memory, because system calls are slow.
                backend: if backend == 0 { Backend::Os } else { Backend::Heap },
                ..PageConfig::with_nodes(Cpus::simulated(cpus, cpu_nodes).unwrap(), nodes)
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES),
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_requests_agree_with_the_shadow_model(
        config in config(),
        ops in ops(),
    ) {
        shadow::run(config, &ops);
    }
}

/// Replays the inputs that earlier fuzzer runs saved.
#[test]
fn fuzzing_corpus_agrees_with_the_reference_model() {
    let files =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fuzz/corpus/pages")).unwrap();
    let replayed = files.map(|file| {
        let path = file.unwrap().path();
        println!("{}", path.display());
        shadow::fuzz(&std::fs::read(path).unwrap());
    });
    assert!(replayed.count() > 0);
}
