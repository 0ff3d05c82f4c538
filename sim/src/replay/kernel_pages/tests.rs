//! Some tests compare scripts with results that were worked out by hand. Other tests compare random scripts
//! with a simple allocator that merges its blocks one order at a time.

use super::*;
use crate::trace::{Recording, Source};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Cursor;
use std::path::Path;

/// A trace for tests that is built line by line. Each event is one microsecond later than the previous event,
/// unless [`line`](Self::line) sets the time.
#[derive(Default)]
struct Script {
    text: String,
    /// The time of the next event.
    next: u32,
}

impl Script {
    fn line(&mut self, cpu: u32, time: u32, event: &str) -> &mut Self {
        self.next = self.next.max(time + 1);
        writeln!(self.text, "  sh-1 [{cpu:03}] ..... 1.{time:06}: {event}").expect("a string");
        self
    }
    fn now(&mut self, event: &str) -> &mut Self {
        self.line(0, self.next, event)
    }
    fn take_pages(&mut self, pfn: u64, order: u8) -> &mut Self {
        let percpu = u8::from(order <= 3);
        self.now(&format!(
            "mm_page_alloc_zone_locked: page=0 pfn={pfn:#x} order={order} migratetype=0 percpu_refill={percpu}"
        ))
    }
    fn drained(&mut self, pfn: u64, order: u8) -> &mut Self {
        self.now(&format!("mm_page_pcpu_drain: page=0 pfn={pfn:#x} order={order} migratetype=0"))
    }
    fn alloc(&mut self, pfn: u64, order: u8) -> &mut Self {
        self.now(&format!(
            "mm_page_alloc: page=1 pfn={pfn:#x} order={order} migratetype=0 gfp_flags=GFP_KERNEL"
        ))
    }
    fn freed(&mut self, pfn: u64, order: u8) -> &mut Self {
        self.now(&format!("mm_page_free: page=0 pfn={pfn:#x} order={order}"))
    }
    fn fallback(&mut self, pfn: u64, order: u8) -> &mut Self {
        self.now(&format!(
            "mm_page_alloc_extfrag: page=0 pfn={pfn:#x} alloc_order={order} fallback_order=10 pageblock_order=9 \
             alloc_migratetype=0 fallback_migratetype=1 fragmenting=0 change_ownership=1"
        ))
    }
    /// Adds the marks of a snapshot, between which the recorder reads the kernel's tables.
    fn add_snapshot_marks(&mut self, moment: &str) -> &mut Self {
        self.now(&format!("tracing_mark_write: SNAP {moment} begin"))
            .now(&format!("tracing_mark_write: SNAP {moment} slabinfo done"))
            .now(&format!("tracing_mark_write: SNAP {moment} buddyinfo done"))
    }

    /// Returns the rebuilt lists in the snapshot `after`, given the blocks in the kernel's tables `before`
    /// and `after`.
    fn run(&self, before: &[u64], after: &[u64]) -> SnapshotPages {
        let row = |blocks: &[u64]| {
            let full = blocks.iter().copied().chain(std::iter::repeat(0)).take(11);
            format!("Node 0, zone DMA {}\n", full.map(|n| n.to_string()).collect::<Vec<_>>().join(" "))
        };
        let zoneinfo = "Node 0, zone DMA\n  spanned 4096\n  start_pfn: 4\n".to_owned();
        self.run_beside(&[
            ("before.buddyinfo", row(before)),
            ("after.buddyinfo", row(after)),
            ("before.zoneinfo", zoneinfo),
        ])
        .remove("after")
        .expect("the trace must have tables")
    }

    fn run_beside(&self, tables: &[(&str, String)]) -> FxHashMap<String, SnapshotPages> {
        self.read(tables).0
    }
    /// Returns the rebuilt lists, and the zones of the machine.
    fn read(&self, tables: &[(&str, String)]) -> (FxHashMap<String, SnapshotPages>, Vec<(ZoneKind, u32)>) {
        let text = |path: &Path| tables.iter().find(|(name, _)| path.ends_with(name)).map(|(_, text)| text);
        let tables = Tables::of(Path::new("a"), |path| Ok(text(path))).expect("tables");
        let stream = Box::new(Cursor::new(self.text.clone()));
        let mut recording = Recording::read(Source::from_reader("test", stream, None).expect("text"), |_| {})
            .expect("a trace");
        assert_eq!(recording.counts().not_understood, 0, "{}", self.text);
        let moves = recording.page_moves().expect("moves");
        let mut resolver = recording.resolve(None).expect("a trace");
        let ops: Vec<_> = std::iter::from_fn(|| resolver.next_op().expect("a trace")).collect();
        let mark = |mark| resolver.mark(mark);
        (rebuild(&ops, &moves, mark, &tables, resolver.counts()), machine_zones(&ops, mark, &tables))
    }

    /// Checks that the lists rebuilt from the events equal the kernel's table.
    #[track_caller]
    fn assert_list_counts(&self, before: &[u64], after: &[u64]) {
        let at = self.run(before, after);
        assert_eq!((&at.error.causes[..], at.error.pages), (&[][..], 0), "{at:?}\n{}", self.text);
    }
}

#[test]
fn drained_pages_merge_up_to_order_three() {
    // Eight pages are drained one by one, so that blocks of each order merge. 8 + 9 -> 8/1; 11 is alone; 10 merges with
    // it and with 8/1 to 8/2; 14 + 15 -> 14/1; 12 is alone; the last one, 13, merges all to 8/3.
    let script = |pages: &[u64]| {
        let mut script = Script::default();
        for pfn in 8..16 {
            script.take_pages(pfn, 0);
        }
        script.add_snapshot_marks("before");
        for &pfn in pages {
            script.drained(pfn, 0);
        }
        script.add_snapshot_marks("after");
        script
    };
    script(&[8]).assert_list_counts(&[], &[1]);
    script(&[8, 11]).assert_list_counts(&[], &[2]);
    script(&[8, 11, 9]).assert_list_counts(&[], &[1, 1]);
    script(&[8, 11, 9, 10]).assert_list_counts(&[], &[0, 0, 1]);
    script(&[8, 11, 9, 10, 14, 12]).assert_list_counts(&[], &[2, 0, 1]);
    script(&[8, 11, 9, 10, 14, 12, 15]).assert_list_counts(&[], &[1, 1, 1]);
    script(&[8, 11, 9, 10, 14, 12, 15, 13]).assert_list_counts(&[], &[0, 0, 0, 1]);
    // Neighbours that are not buddies do not merge.
    script(&[9, 10]).assert_list_counts(&[], &[2]);
}

#[test]
fn block_is_split_for_a_smaller_allocation() {
    // From page 16 on, 16 pages are freed and merge. One page is taken from the front: 17/0, 18/1, 20/2 and 24/3
    // remain.
    let mut script = Script::default();
    script.freed(16, 4).add_snapshot_marks("before").take_pages(16, 0).add_snapshot_marks("after");
    script.assert_list_counts(&[0, 0, 0, 0, 1], &[1, 1, 1, 1]);
    // A block of order 1 is taken from the middle of the rest.
    let mut script = Script::default();
    script
        .freed(16, 4)
        .add_snapshot_marks("before")
        .take_pages(16, 0)
        .take_pages(20, 1)
        .add_snapshot_marks("after");
    script.assert_list_counts(&[0, 0, 0, 0, 1], &[1, 2, 0, 1]);
}

#[test]
fn only_small_blocks_are_freed_to_per_cpu_lists() {
    let mut script = Script::default();
    script.take_pages(16, 4).alloc(16, 4).take_pages(32, 3).alloc(32, 3).add_snapshot_marks("before");
    script.freed(32, 3).freed(16, 4).add_snapshot_marks("after");
    script.assert_list_counts(&[], &[0, 0, 0, 0, 1]);
    // The event of the drain shows that the block was on a per-CPU list, and puts it on the free list.
    script.drained(32, 3).add_snapshot_marks("after");
    script.assert_list_counts(&[], &[0, 0, 0, 1, 1]);
    // The next event, which takes the block from a free list, shows that the block never was on a per-CPU list.
    let mut script = Script::default();
    script
        .take_pages(32, 3)
        .alloc(32, 3)
        .add_snapshot_marks("before")
        .freed(32, 3)
        .add_snapshot_marks("after")
        .take_pages(32, 3);
    script.assert_list_counts(&[], &[0, 0, 0, 1]);
}

#[test]
fn per_cpu_list_orders_follow_kernel_events() {
    // A huge page is taken from a per-CPU list and freed to it.
    let refill = "mm_page_alloc_zone_locked: page=0 pfn=0x400 order=9 migratetype=1 percpu_refill=1";
    let mut script = Script::default();
    script
        .freed(0x400, 10)
        .add_snapshot_marks("before")
        .now(refill)
        .alloc(0x400, 9)
        .freed(0x400, 9)
        .add_snapshot_marks("after");
    let huge = |n, block| [0, 0, 0, 0, 0, 0, 0, 0, 0, n, block];
    script.assert_list_counts(&huge(0, 1), &huge(1, 0));
    script.drained(0x400, 9).add_snapshot_marks("after");
    script.assert_list_counts(&huge(0, 1), &huge(0, 1));
    // Before 5.13 per-CPU lists held single pages only.
    let direct = "mm_page_alloc_zone_locked: page=0 pfn=0x8 order=1 migratetype=0 percpu_refill=0";
    let mut script = Script::default();
    script.now(direct).alloc(8, 1).add_snapshot_marks("before").freed(8, 1).add_snapshot_marks("after");
    script.assert_list_counts(&[], &[0, 1]);
}

#[test]
fn adjacent_pages_without_events_move_together() {
    // The event that takes the last page decides for the run of pages without earlier events.
    let mut script = Script::default();
    script
        .freed(8, 0)
        .freed(9, 0)
        .freed(10, 0)
        .freed(11, 0)
        .add_snapshot_marks("before")
        .take_pages(11, 0)
        .add_snapshot_marks("after");
    script.assert_list_counts(&[0, 0, 1], &[1, 1]);
    // The pages moved to a per-CPU list, as the next event of the first page shows.
    let mut script = Script::default();
    script
        .take_pages(4, 0)
        .freed(8, 0)
        .freed(9, 0)
        .alloc(8, 0)
        .add_snapshot_marks("before")
        .add_snapshot_marks("after");
    script.assert_list_counts(&[], &[]);
}

#[test]
fn fallback_events_of_old_and_new_kernels_are_replayed() {
    // One kernel writes the fallback's event first, and then takes a page of the block.
    let mut script = Script::default();
    script.freed(16, 4).freed(32, 4).add_snapshot_marks("before");
    script.fallback(16, 0).take_pages(16, 0).fallback(32, 0).take_pages(35, 0).add_snapshot_marks("after");
    script.assert_list_counts(&[0, 0, 0, 0, 2], &[2, 2, 2, 2]);
    // The other kernel takes two pages and writes no other event.
    let mut script = Script::default();
    script
        .freed(16, 4)
        .add_snapshot_marks("before")
        .fallback(16, 1)
        .take_pages(18, 0)
        .add_snapshot_marks("after")
        .alloc(16, 1);
    script.assert_list_counts(&[0, 0, 0, 0, 1], &[1, 0, 1, 1]);
}

#[test]
fn simultaneous_events_of_two_cpus_replay_in_any_order() {
    // CPU 1 took page 8, then CPU 0 freed it.
    let taken =
        |pfn| format!("mm_page_alloc_zone_locked: page=0 pfn={pfn} order=0 migratetype=0 percpu_refill=1");
    let alloc = "mm_page_alloc: page=1 pfn=0x8 order=0 migratetype=0 gfp_flags=GFP_KERNEL";
    let mut script = Script::default();
    script.add_snapshot_marks("before").line(0, 9, "mm_page_free: page=0 pfn=0x8 order=0").line(
        1,
        9,
        &taken("0x8"),
    );
    script.line(1, 9, alloc).add_snapshot_marks("after");
    script.assert_list_counts(&[1], &[]);
    // Events of one CPU are in the right order: the page was freed to the free lists.
    let mut script = Script::default();
    script
        .add_snapshot_marks("before")
        .line(1, 9, "mm_page_free: page=0 pfn=0x8 order=0")
        .add_snapshot_marks("after");
    script.line(1, 9, &taken("0x8")).assert_list_counts(&[], &[1]);
    // CPU 0 drained page 9, then CPU 1 took it.
    let mut script = Script::default();
    script.take_pages(9, 0).alloc(9, 0).add_snapshot_marks("before").freed(9, 0).line(1, 9, &taken("0x9"));
    script.line(0, 9, "mm_page_pcpu_drain: page=0 pfn=0x9 order=0 migratetype=0").add_snapshot_marks("after");
    script.assert_list_counts(&[], &[]);
}

#[test]
fn state_of_an_untraced_page_follows_from_its_neighbours() {
    // Before the trace, 8/3 was free, and so was one block of order 3 that has no event. A page of block 8/3 is taken.
    let mut script = Script::default();
    script.add_snapshot_marks("before").take_pages(8, 0).add_snapshot_marks("after");
    script.assert_list_counts(&[0, 0, 0, 2], &[1, 1, 1, 1]);
    // The free block is the second half of a larger one, whose first half was taken.
    let mut script = Script::default();
    script.take_pages(8, 2).add_snapshot_marks("before").drained(8, 2).add_snapshot_marks("after");
    script.assert_list_counts(&[0, 0, 1], &[0, 0, 0, 1]);
    // A block whose first taken page is in the middle was not free: only page 10 was.
    let mut script = Script::default();
    script.add_snapshot_marks("before").take_pages(10, 0).add_snapshot_marks("after");
    script.assert_list_counts(&[1, 0, 0, 1], &[0, 0, 0, 1]);
    // A page in use excludes every block around it.
    let mut script = Script::default();
    script.add_snapshot_marks("before").take_pages(8, 0).freed(12, 0).add_snapshot_marks("after");
    script.assert_list_counts(&[0, 0, 1, 1], &[1, 1, 0, 1]);
}

#[test]
fn blocks_do_not_merge_across_a_zone_end() {
    let mut script = Script::default();
    script.take_pages(1024, 9).take_pages(1536, 9).alloc(1024, 9).alloc(1536, 9).add_snapshot_marks("before");
    script.freed(1024, 9).freed(1536, 9).add_snapshot_marks("after");
    let zoneinfo = "Node 0, zone DMA\n spanned 1536\n start_pfn: 0\nNode 0, zone DMA32\n spanned 2560\n start_pfn: 1536\n";
    let rows = |free: u64| {
        let row = format!("0 0 0 0 0 0 0 0 0 {free} 0");
        format!("Node 0, zone DMA {row}\nNode 0, zone DMA32 {row}\n")
    };
    let mut beside = vec![("before.buddyinfo", rows(0)), ("after.buddyinfo", rows(1))];
    beside.push(("before.zoneinfo", zoneinfo.to_owned()));
    let after = &script.run_beside(&beside)["after"];
    assert_eq!((after.error.pages, after.rebuilt[9], after.zones.len()), (0, 2, 2), "{after:?}");
    // Without zoneinfo, all memory is one zone.
    beside.pop();
    let after = &script.run_beside(&beside)["after"];
    assert_eq!((after.rebuilt[9], after.rebuilt[10], after.kernel[9]), (0, 1, 2));
    assert_eq!(after.error.pages, 2 * 512 + 1024);
}

#[test]
fn blocks_merge_up_to_the_kernels_largest_order() {
    let mut script = Script::default();
    script
        .take_pages(8, 3)
        .alloc(8, 3)
        .add_snapshot_marks("before")
        .drained(8, 3)
        .add_snapshot_marks("after");
    let table = |large: u64| format!("Node 0, zone DMA 0 0 {large}\n");
    let zoneinfo = "Node 0, zone DMA\n  spanned 4096\n  start_pfn: 0\n".to_owned();
    let beside =
        [("before.buddyinfo", table(0)), ("after.buddyinfo", table(2)), ("before.zoneinfo", zoneinfo)];
    let after = &script.run_beside(&beside)["after"];
    assert_eq!((&after.rebuilt[..], after.error.pages), (&[0, 0, 2][..], 0));
}

#[test]
fn missing_page_events_are_reported_by_cause() {
    let causes = |at: &SnapshotPages| at.error.causes.iter().map(|c| (c.cause, c.count)).collect::<Vec<_>>();
    // Compaction takes 16/4 from its list without an event. The kernel's table shows the change; the trace shows it
    // only when a page is freed.
    let mut script = Script::default();
    script
        .freed(16, 4)
        .take_pages(4, 0)
        .add_snapshot_marks("before")
        .freed(17, 0)
        .add_snapshot_marks("after");
    let at = script.run(&[0, 0, 0, 0, 1], &[]);
    assert_eq!((causes(&at), at.error.pages), (vec![(PageCauseKind::LeftWithoutEvent, 1)], 15));
    assert_eq!(at.rebuilt[..4], [1, 1, 1, 1]);
    // One of two blocks without events is taken. The other block could be the rest of the block of page 4.
    let mut script = Script::default();
    script.take_pages(4, 0).add_snapshot_marks("before").add_snapshot_marks("after");
    let at = script.run(&[0, 0, 0, 2], &[0, 0, 0, 1]);
    assert_eq!((causes(&at), at.error.pages, at.rebuilt[3]), (vec![(PageCauseKind::PlaceUnknown, 8)], 8, 2));
    // The cause is unknown. Contradictions earlier than `before` do not count, because the table includes their effect.
    let mut script = Script::default();
    script.take_pages(4, 0).take_pages(4, 0).add_snapshot_marks("before").add_snapshot_marks("after");
    assert_eq!(causes(&script.run(&[], &[1])), [(PageCauseKind::Unknown, 1)]);
    // A page enters the lists while the table is read.
    let mut script = Script::default();
    script
        .take_pages(4, 0)
        .add_snapshot_marks("before")
        .now("tracing_mark_write: SNAP after slabinfo done")
        .drained(4, 0);
    script.now("tracing_mark_write: SNAP after buddyinfo done");
    assert_eq!(causes(&script.run(&[], &[])), [(PageCauseKind::MovedWhileRead, 1)]);
    // The header counts more events than the trace has.
    let mut script = Script::default();
    script.text.push_str("# entries-in-buffer/entries-written: 7/20   #P:4\n");
    script.take_pages(4, 0).add_snapshot_marks("before").add_snapshot_marks("after");
    assert_eq!(causes(&script.run(&[], &[1])), [(PageCauseKind::LostEvents, 13)]);
}

#[test]
fn trace_without_page_events_rebuilds_no_free_list() {
    let mut script = Script::default();
    script.alloc(8, 0).add_snapshot_marks("before").add_snapshot_marks("after");
    let rows = "Node 0, zone DMA 1\n".to_owned();
    assert!(
        script
            .run_beside(&[("before.buddyinfo", rows.clone()), ("after.buddyinfo", rows.clone())])
            .is_empty()
    );
    script.take_pages(8, 0);
    assert!(script.run_beside(&[("after.buddyinfo", rows)]).is_empty());
}

/// Free lists that work as in Linux: blocks by order, merged one order at a time.
#[derive(Default)]
struct Lists([BTreeSet<u64>; 11]);

impl Lists {
    fn free(&mut self, mut pfn: u64, mut order: usize) {
        while order < 10 && self.0[order].remove(&(pfn ^ 1 << order)) {
            pfn &= !(1 << order);
            order += 1;
        }
        self.0[order].insert(pfn);
    }
    /// Takes the lower part of the smallest block that is large enough, and puts the upper part back on the
    /// lists.
    fn take(&mut self, order: usize, which: usize) -> Option<u64> {
        let from = (order..11).find(|&order| !self.0[order].is_empty())?;
        let pfn = *self.0[from].iter().nth(which % self.0[from].len())?;
        self.0[from].remove(&pfn);
        (order..from).for_each(|half| _ = self.0[half].insert(pfn + (1 << half)));
        Some(pfn)
    }
    fn counts(&self) -> Vec<u64> {
        self.0.iter().map(|blocks| blocks.len() as u64).collect()
    }
}

proptest! {
    /// The trace begins while the allocator is running, so only the kernel's table shows which pages are free at the
    /// start.
    #[test]
    fn rebuilt_lists_equal_the_lists_of_a_reference_allocator(
        ops in prop::collection::vec((0..3_u8, 0..5_usize, 0..64_usize), 1..300),
        begin in prop_oneof![Just(0), 1..150_usize],
    ) {
        let (mut lists, mut out, mut cached) = (Lists::default(), Vec::new(), Vec::new());
        (1..4).for_each(|block| lists.free(block * 1024, 10));
        let mut script = Script::default();
        let mut before = None;
        for (at, &(what, order, which)) in ops.iter().enumerate() {
            if at == begin.min(ops.len() - 1) {
                before = Some(lists.counts());
                script = Script::default();
                // Some pages have events before the first table, so that the lists have something to rebuild.
                script.add_snapshot_marks("before");
            }
            match what {
                0 => if let Some(pfn) = lists.take(order, which) {
                    script.take_pages(pfn, order as u8).alloc(pfn, order as u8);
                    out.push((pfn, order));
                },
                1 if !out.is_empty() => {
                    let (pfn, order) = out.swap_remove(which % out.len());
                    script.freed(pfn, order as u8);
                    if order > 3 { lists.free(pfn, order) } else { cached.push((pfn, order)) }
                }
                _ if !cached.is_empty() => {
                    let (pfn, order) = cached.swap_remove(which % cached.len());
                    script.drained(pfn, order as u8);
                    lists.free(pfn, order);
                }
                _ => {}
            }
        }
        script.take_pages(0, 0).add_snapshot_marks("after");
        let (before, after) = (before.expect("a moment"), lists.counts());
        let at = script.run(&before, &after);
        // The place of blocks without events is a guess, but their number is exact.
        let rebuilt: i64 = (0..).zip(&at.rebuilt).map(|(order, count)| count << order).sum();
        prop_assert_eq!(rebuilt as u64, pages_of(&after), "{}", script.text);
        if begin == 0 {
            prop_assert_eq!(at.error.pages, 0, "{:?}\n{}", at, script.text);
        }
    }
}

/// Of 1,100 pages, 700 are free in the table `before`, ten are on per-CPU lists, and four were allocated in
/// the trace. The other 386 pages were allocated before the trace.
#[test]
fn machine_zones_exclude_pages_allocated_before_the_trace() {
    let mut script = Script::default();
    script.alloc(8, 2).alloc(4, 0).freed(4, 0).add_snapshot_marks("before").alloc(16, 4);
    let zones = |node: u32| {
        let of = |zone, pages, rest| {
            format!(
                "Node {node}, zone {zone}\n managed {pages}\n pagesets\n cpu: 0\n count: {rest}\n start_pfn: 4\n"
            )
        };
        script
            .read(&[
                ("before.buddyinfo", format!("Node {node}, zone DMA 60 0 160\n")),
                ("before.zoneinfo", of("DMA", 100, 3) + &of("DMA32", 1000, 7)),
            ])
            .1
    };
    assert_eq!(zones(0), [(ZoneKind::Dma, 100), (ZoneKind::Dma32, 614)]);
    assert_eq!(zones(1), [], "only the first node is rebuilt");
    assert_eq!(script.read(&[]).1, []);
}
