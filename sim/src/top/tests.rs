//! Tests readings from files, and the screens made from two readings.

use super::reading::{Rates, Reading, Sort};
use super::source::{Source, SourceUpdate};
use std::time::{Duration, SystemTime};

/// Returns the dump file of a program with three caches, whose operation counts are multiplied by `times`.
fn dump(times: u64) -> String {
    let cache = |name: &str, size: u64, order: u8, slabs: u64, used: u64| {
        let per_slab = (4096 << order) / size;
        let objects = slabs * per_slab;
        serde_json::json!({
            "name": name, "object_size": size, "slab_size": size, "objs_per_slab": per_slab, "order": order, "slabs": slabs,
            "pages": slabs << order, "objects": objects, "used": used, "in_magazines": 3, "in_depot": 2,
            "free_in_slabs": objects.saturating_sub(used + 5), "allocs": 1000 * times + used, "frees": 1000 * times,
            "depot_exchanges": 10 * times, "slabs_made": slabs + times, "slabs_released": times,
        })
    };
    let never = serde_json::json!({
        "name": "never", "object_size": 8, "slab_size": 8, "objs_per_slab": 512, "order": 0, "slabs": 0, "pages": 0, "objects": 0,
        "used": 0, "in_magazines": 0, "in_depot": 0, "free_in_slabs": 0, "allocs": 0, "frees": 0, "depot_exchanges": 0,
        "slabs_made": 0, "slabs_released": 0,
    });
    let caches = [
        cache("malloc-64", 64, 0, 3, 100),
        cache("session", 1024, 3, 2, 50),
        cache("a", 256, 1, 3, 30),
        never,
    ];
    serde_json::json!({
        "caches": caches, "kmalloc_large": { "pages": 16 }, "huge": { "pages": 1024 },
        "pages": { "zones": [{ "managed": 5000, "uncommitted": 4000 }, { "managed": 10, "uncommitted": 0 }] },
    })
    .to_string()
}
fn reading(times: u64, seconds: u64) -> Reading {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    Reading::new("a program".to_owned(), None, at, dump(times).as_bytes()).unwrap()
}

#[test]
fn top_shows_sums_and_rates_of_the_files() {
    let now = reading(3, 100);
    let totals = serde_json::to_value(&now.totals).unwrap();
    assert_eq!(
        totals,
        serde_json::json!({
            "objects": 192 + 64 + 96, "used": 180, "slabs": 8, "slab_bytes": (3 + 16 + 6) << 12, "large_bytes": 16 << 12,
            "huge_bytes": 4 << 20, "committed_bytes": 1010 << 12, "allocs": 9180, "frees": 9000,
        })
    );
    let rates = reading(1, 96).rates(&now.caches[0], now.at);
    assert_eq!(
        rates,
        Rates { allocs: 500.0, frees: 500.0, depot: 5.0, slabs_made: 0.5, slabs_released: 0.5 }
    );
    assert_eq!(now.rates(&now.caches[0], now.at), Rates::default());
}

/// Regression test: if two caches had the same name, both were compared with the earlier numbers of the larger one.
#[test]
fn caches_with_equal_names_have_separate_rates() {
    let reading = |times: [u64; 2], seconds: u64| {
        let mut dump: serde_json::Value = serde_json::from_str(&dump(1)).unwrap();
        let of = |n: usize| {
            let mut cache = dump["caches"][n].clone();
            (cache["name"], cache["allocs"]) = ("twice".into(), times[n].into());
            cache
        };
        dump["caches"] = serde_json::json!([of(0), of(1)]);
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        Reading::new("a program".to_owned(), None, at, dump.to_string().as_bytes()).unwrap()
    };
    let now = reading([1000, 90_000], 10);
    let rates = |cache| reading([0, 50_000], 0).rates(cache, now.at).allocs;
    let mut rates: Vec<_> = now.caches.iter().map(rates).collect();
    rates.sort_by(f64::total_cmp);
    assert_eq!(rates, [100.0, 4000.0]);
}

/// Dump files of earlier versions contain neither accounts nor waits.
#[test]
fn accounts_and_waits_are_shown_above_the_table() {
    assert_eq!(reading(1, 1).header_lines().len(), 2);
    let mut dump: serde_json::Value = serde_json::from_str(&dump(1)).unwrap();
    dump["accounts"] = serde_json::json!([
        { "name": "tenant-7", "limit": 4 << 20, "charged": 3 << 20, "peak": 4 << 20, "refusals": 1200, "waiting": 2 },
    ]);
    let session = &mut dump["caches"][1];
    (session["limit"], session["waiting"]) = (8.into(), 2.into());
    (session["waits"], session["waited_ns"]) = (5.into(), 1_250_000_000_u64.into());
    let at = SystemTime::UNIX_EPOCH;
    let now = Reading::new("a program".to_owned(), None, at, dump.to_string().as_bytes()).unwrap();
    assert_eq!(
        now.header_lines()[2..],
        [
            "tenant-7: charged 3072 KiB, limit 4096 KiB; 1,200 slabs refused, 2 callers waiting",
            "session: at most 8 slabs, 2 callers waiting, 5 waited 1.250 s in total"
        ]
    );
    assert!(now.text(Sort::Bytes).contains("\ntenant-7: "));
}

/// Regression test: a zone with more uncommitted pages than pages was counted as a huge amount of memory.
#[test]
fn zone_with_too_many_uncommitted_pages_is_refused() {
    let of = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut dump = serde_json::from_str(&dump(1)).unwrap();
        change(&mut dump);
        Reading::new("a program".to_owned(), None, SystemTime::UNIX_EPOCH, dump.to_string().as_bytes())
    };
    let error = of(&|dump| dump["pages"]["zones"][0]["uncommitted"] = u64::MAX.into()).unwrap_err();
    assert!(error.to_string().contains("more pages `uncommitted` than `managed`"), "{error}");
    let large = of(&|dump| {
        for (cache, field) in [(0, "pages"), (1, "pages"), (0, "used"), (1, "used")] {
            dump["caches"][cache][field] = u64::MAX.into();
        }
        dump["caches"][0]["order"] = 255.into();
    });
    let text = large.unwrap().text(Sort::PagesPerSlab);
    assert!(text.contains("18,446,744,073,709,551,615 of 352 objects in use"), "{text}");
}

#[test]
fn top_rows_are_sorted_by_the_requested_column() {
    let now = reading(1, 1);
    for (sort, names) in [
        (Sort::Bytes, ["session", "a", "malloc-64"]),
        (Sort::Used, ["malloc-64", "session", "a"]),
        (Sort::PerSlab, ["malloc-64", "a", "session"]),
        (Sort::Slabs, ["a", "malloc-64", "session"]),
        (Sort::Name, ["a", "malloc-64", "session"]),
        (Sort::Objects, ["malloc-64", "a", "session"]),
        (Sort::PagesPerSlab, ["session", "a", "malloc-64"]),
        (Sort::Size, ["session", "a", "malloc-64"]),
        (Sort::InUse, ["session", "malloc-64", "a"]),
    ] {
        let rows = sort.rows(&now.caches, None, now.at);
        assert_eq!(rows.iter().map(|(cache, _)| &*cache.name).collect::<Vec<_>>(), names, "{sort:?}");
    }
    assert_eq!(
        Sort::ALL.map(|(letter, ..)| Sort::parse(&letter.to_string())),
        Sort::ALL.map(|(_, sort, _)| Ok(sort))
    );
    assert!(Sort::parse("cc").unwrap_err().starts_with("expected one of a (in use), b (objects per slab), "));
    let text = now.text(Sort::Bytes);
    assert!(text.starts_with("a program\n180 of 352 objects in use, 8 slabs of 3 caches\n"), "{text}");
    assert!(text.contains("\nsession    1,024        32       64      50  78"), "{text}");
}

#[test]
fn top_reads_a_replaced_file_again() {
    let dir = tempfile::tempdir().unwrap();
    let (file, new) = (dir.path().join("app.json"), dir.path().join("new"));
    let name = file.to_str().unwrap();
    assert!(
        Source::open(name).unwrap().wait_for_reading().unwrap_err().to_string().starts_with(name),
        "the file must not exist"
    );
    std::fs::write(&file, "{}").unwrap();
    let said = format!("{:#}", Source::open(name).unwrap().wait_for_reading().unwrap_err());
    assert!(said.starts_with(&format!("{name}: expected a dump file of libuslab.so")), "{said}");
    std::fs::write(&file, dump(1)).unwrap();
    let mut source = Source::open(name).unwrap();
    assert_eq!(source.wait_for_reading().unwrap().totals, reading(1, 0).totals);
    assert!(matches!(source.look().unwrap(), SourceUpdate::Nothing));
    std::fs::write(&new, dump(2)).unwrap();
    std::fs::rename(&new, &file).unwrap();
    let SourceUpdate::New(next) = source.look().unwrap() else { panic!("no new numbers were written") };
    assert_eq!(next.totals, reading(2, 0).totals);
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(source.look().unwrap(), SourceUpdate::Ended));
}

mod screens {
    use super::*;
    use crate::top::screen::{Top, follow};
    use crate::watch::terminal::Screen;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use ratatui::{Frame, Terminal};

    fn picture(top: &Top, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| top.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content();
        cells
            .chunks(width.into())
            .map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n")
            .collect()
    }

    #[test]
    fn top_shows_rates_between_two_readings() {
        let mut top = Top::new("a program".to_owned(), reading(1, 96), Duration::from_secs(4));
        assert!(picture(&top, 80, 24).contains("\nper second: 0 allocations, 0 frees, 0 depot"));
        top.take(reading(3, 100));
        let seen = picture(&top, 80, 24);
        assert!(
            seen.contains("\nper second: 1500 allocations, 1500 frees, 15 depot exchanges, slabs +2 -2 "),
            "{seen}"
        );
        let row = seen.lines().find(|line| line.starts_with("session ")).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells, ["session", "50", "78", "3", "2", "1024", "2", "64K", "500", "500", "5"], "{seen}");
        let order =
            |top: &Top| picture(top, 80, 24).lines().nth(5).unwrap().split(' ').next().unwrap().to_owned();
        assert_eq!(order(&top), "session");
        assert!(top.handle_key(KeyCode::Char('n').into()) && order(&top) == "a");
        assert!(!top.handle_key(KeyCode::Char('q').into()));
        for (width, height) in [(60, 20), (200, 60), (81, 3), (1, 1)] {
            picture(&top, width, height);
        }
        assert!(picture(&top, 200, 24).contains("PER SLAB"));
    }

    /// A test screen that removes a file after three pictures.
    struct FileRemovingScreen(std::path::PathBuf, u64);

    impl Screen for FileRemovingScreen {
        fn draw(&mut self, _: &dyn Fn(&mut Frame<'_>)) -> anyhow::Result<()> {
            self.1 += 1;
            if self.1 == 3 {
                std::fs::remove_file(&self.0)?;
            }
            Ok(())
        }
        fn key(&mut self, within: Option<Duration>) -> anyhow::Result<Option<KeyEvent>> {
            assert!(within.is_some(), "the screen would wait forever");
            std::thread::sleep(Duration::from_millis(1));
            Ok(None)
        }
    }

    #[test]
    fn ended_source_is_reported_below_its_last_table() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("app.json");
        std::fs::write(&file, dump(1)).unwrap();
        let mut source = Source::open(file.to_str().unwrap()).unwrap();
        let mut top =
            Top::new("a file".to_owned(), source.wait_for_reading().unwrap(), Duration::from_millis(1));
        assert!(follow(&mut top, &mut source, &mut FileRemovingScreen(file, 0)).unwrap());
        assert_eq!(top.reading.totals, reading(1, 0).totals);
    }

    /// A test screen that reports a press of `q` immediately, and records how long the caller was ready to wait for a
    /// key.
    struct QuittingScreen(Option<Duration>);

    impl Screen for QuittingScreen {
        fn draw(&mut self, _: &dyn Fn(&mut Frame<'_>)) -> anyhow::Result<()> {
            Ok(())
        }
        fn key(&mut self, within: Option<Duration>) -> anyhow::Result<Option<KeyEvent>> {
            self.0 = within;
            Ok(Some(KeyCode::Char('q').into()))
        }
    }

    #[test]
    fn age_of_a_reading_is_updated_between_readings() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("app.json");
        std::fs::write(&file, dump(1)).unwrap();
        let mut source = Source::open(file.to_str().unwrap()).unwrap();
        let mut top =
            Top::new("a file".to_owned(), source.wait_for_reading().unwrap(), Duration::from_secs(3600));
        let mut screen = QuittingScreen(None);
        assert!(!follow(&mut top, &mut source, &mut screen).unwrap());
        assert_eq!(screen.0, Some(Duration::from_secs(1)), "the screen is drawn again");
    }
}
