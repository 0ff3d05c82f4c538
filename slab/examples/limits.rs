//! A cache of parsed pages: a memory limit returns errors, and a shrinker frees pages to prevent the errors.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use uslab::sync::Mutex;
use uslab::{AllocError, Gfp, Limit, ObjectCache, OwnedBox, Reaper, Shrinker};

/// A parsed page is expensive to make, but can be made again.
struct ParsedPage {
    page: u64,
    text: [u8; 2000],
}

/// The parsed pages in the order of age, oldest first. A thread holds the lock only briefly, and never during an
/// allocation.
#[derive(Default)]
struct Pages(Mutex<VecDeque<OwnedBox<ParsedPage>>>);

impl Shrinker for Pages {
    fn count(&self) -> usize {
        self.0.lock().len()
    }
    fn scan(&self, objects: usize, _gfp: Gfp) -> usize {
        // The pages are dropped after the lock is released.
        let oldest: Vec<_> = {
            let mut pages = self.0.lock();
            let n = objects.min(pages.len());
            pages.drain(..n).collect()
        };
        oldest.len()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let cache = ObjectCache::builder("parsed")
        .ctor(|| ParsedPage { page: 0, text: [0; 2000] })
        .limit(Limit::Bytes(1 << 20))
        .build()?;

    // Without a shrinker, an allocation beyond the limit fails, and the error names the limit.
    let mut held = vec![];
    let error = loop {
        match cache.alloc() {
            Ok(page) => held.push(page),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AllocError::CacheLimit { .. }));
    println!("{} pages were allocated; the next allocation failed: {error}", held.len());
    drop(held);

    // With a shrinker, the oldest pages are freed to make room.
    let pages = Arc::new(Pages::default());
    let registered = cache.register_shrinker(pages.clone());
    for number in 0..10_000 {
        let mut page = cache.alloc_owned()?;
        page.page = number;
        page.text[0] = number as u8;
        pages.0.lock().push_back(page);
    }
    let (oldest, newest) = {
        let pages = pages.0.lock();
        (pages.front().map(|page| page.page), pages.back().map(|page| page.page))
    };
    println!(
        "10000 pages were allocated under a limit of 1 MiB; kept: pages {:?} to {:?}",
        oldest.unwrap_or(0),
        newest.unwrap_or(0)
    );

    // A reaper later frees the unused memory.
    drop(registered);
    let remaining_pages = std::mem::take(&mut *pages.0.lock());
    drop(remaining_pages);
    let subsystem = uslab::Subsystem::global()?;
    let before = cache.info().slabs;
    let reaper = Reaper::builder(std::time::Duration::from_millis(5)).start(subsystem)?;
    while cache.info().slabs > 0 {
        std::thread::yield_now();
    }
    println!("{before} slabs were freed after {} intervals", reaper.intervals().max(1));
    Ok(())
}
