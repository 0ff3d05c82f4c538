//! One reading of a program's cache statistics, and the table that shows it.

use crate::output::{grouped, size, table, text};
use serde::de::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::SystemTime;
use uslab_buddy::PAGE_SIZE;

/// A cache, as the library's dump file describes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(super) struct Cache {
    pub(super) name: String,
    /// The cache's position among the caches with the same name, in the order of the file.
    #[serde(skip)]
    nth: usize,
    /// The object size in bytes that the cache's user requested.
    pub(super) object_size: u64,
    /// The distance from one object to the next, in bytes.
    pub(super) slab_size: u64,
    pub(super) objs_per_slab: u64,
    pub(super) order: u8,
    pub(super) slabs: u64,
    /// The pages of all slabs, and the bytes that objects are known to hold outside their slabs.
    pub(super) pages: u64,
    #[serde(default)]
    held_bytes: u64,
    pub(super) objects: u64,
    /// The number of objects in use; this field and the next three (on CPUs' stacks, in depots, free in slabs) sum up
    /// to `objects`.
    pub(super) used: u64,
    pub(super) in_magazines: u64,
    pub(super) in_depot: u64,
    pub(super) free_in_slabs: u64,
    pub(super) allocs: u64,
    pub(super) frees: u64,
    pub(super) depot_exchanges: u64,
    pub(super) slabs_made: u64,
    pub(super) slabs_released: u64,
    /// The largest number of slabs that the cache may have; `None` means no limit.
    #[serde(default)]
    limit: Option<u64>,
    /// The number of threads that wait for an object; the next two fields are the number of finished waits and their
    /// nanoseconds.
    #[serde(default)]
    waiting: u64,
    #[serde(default)]
    waits: u64,
    #[serde(default)]
    waited_ns: u64,
}

/// An account, which limits the bytes of several caches together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(super) struct Account {
    name: String,
    charged: u64,
    limit: u64,
    refusals: u64,
    waiting: u64,
}

impl Cache {
    pub(super) fn bytes(&self) -> u64 {
        bytes(self.pages) + self.held_bytes
    }
    /// Returns the percentage of the cache's objects that are in use.
    pub(super) fn in_use(&self) -> u64 {
        self.used.saturating_mul(100) / self.objects.max(1)
    }
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_SIZE as u64)
}
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// The fields of the library's dump file that this program reads.
#[derive(Debug, Deserialize)]
struct Dump {
    caches: Vec<Cache>,
    #[serde(default)]
    accounts: Vec<Account>,
    kmalloc_large: Blocks,
    huge: Blocks,
    pages: Buddy,
}
#[derive(Debug, Deserialize)]
struct Blocks {
    pages: u64,
}
#[derive(Debug, Deserialize)]
struct Buddy {
    zones: Vec<Zone>,
}
#[derive(Debug, Deserialize)]
struct Zone {
    managed: u64,
    uncommitted: u64,
}

/// One reading of a program's cache statistics.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Reading {
    /// The name of the program, or of its dump file.
    pub(super) of: String,
    pid: Option<i32>,
    /// The time at which the dump file was written.
    #[serde(skip)]
    pub(super) at: SystemTime,
    pub(super) totals: Totals,
    /// The caches that ever had a slab; the largest cache comes first.
    pub(super) caches: Vec<Cache>,
    pub(super) accounts: Vec<Account>,
}

/// The sums over all caches.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Totals {
    pub(super) objects: u64,
    pub(super) used: u64,
    pub(super) slabs: u64,
    pub(super) slab_bytes: u64,
    /// The size in bytes of all blocks that are larger than the largest object.
    pub(super) large_bytes: u64,
    /// The size in bytes of all mappings that are larger than the largest block.
    pub(super) huge_bytes: u64,
    /// The bytes that the system has provided for slabs and large blocks, whether in use or not.
    pub(super) committed_bytes: u64,
    pub(super) allocs: u64,
    pub(super) frees: u64,
}

/// The rates per second of one cache, or of all caches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) allocs: f64,
    pub(super) frees: f64,
    pub(super) depot: f64,
    pub(super) slabs_made: f64,
    pub(super) slabs_released: f64,
}

/// The order in which the table's rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Used,
    PerSlab,
    Bytes,
    Slabs,
    Name,
    Objects,
    PagesPerSlab,
    Rate,
    Size,
    InUse,
}

impl Sort {
    /// The letters that select an order of the rows: the letters of slabtop, and `r`.
    pub(super) const ALL: [(char, Self, &'static str); 10] = [
        ('a', Self::Used, "in use"),
        ('b', Self::PerSlab, "objects per slab"),
        ('c', Self::Bytes, "bytes"),
        ('l', Self::Slabs, "slabs"),
        ('n', Self::Name, "name"),
        ('o', Self::Objects, "objects"),
        ('p', Self::PagesPerSlab, "pages per slab"),
        ('r', Self::Rate, "operations a second"),
        ('s', Self::Size, "size"),
        ('u', Self::InUse, "share in use"),
    ];

    /// Returns the order of the rows that a letter selects.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(letter, ..)| text.chars().eq([*letter]));
        known.map(|(_, sort, _)| *sort).ok_or_else(|| {
            let letters = Self::ALL.map(|(letter, _, name)| format!("{letter} ({name})"));
            format!("expected one of {}", letters.join(", "))
        })
    }
    /// Returns the rows of the table in this order, each with its rates. Numbers are sorted from the largest
    /// down, and names alphabetically.
    pub(super) fn rows<'r>(
        self,
        caches: &'r [Cache],
        before: Option<&Reading>,
        at: SystemTime,
    ) -> Vec<(&'r Cache, Rates)> {
        let rates = |cache: &Cache| before.map_or_else(Rates::default, |before| before.rates(cache, at));
        let mut rows: Vec<_> = caches.iter().map(|cache| (cache, rates(cache))).collect();
        let number = |(cache, rates): &(&Cache, Rates)| match self {
            Self::Used => cache.used,
            Self::PerSlab => cache.objs_per_slab,
            Self::Bytes => cache.bytes(),
            Self::Slabs => cache.slabs,
            Self::Name => 0,
            Self::Objects => cache.objects,
            Self::PagesPerSlab => u64::from(cache.order),
            Self::Rate => (rates.allocs + rates.frees) as u64,
            Self::Size => cache.object_size,
            Self::InUse => cache.in_use(),
        };
        rows.sort_by(|a, b| number(b).cmp(&number(a)).then_with(|| a.0.name.cmp(&b.0.name)));
        rows
    }
}

impl Reading {
    /// Parses the text of the library's dump file.
    ///
    /// # Errors
    /// Fails if the text is not a dump file, or if a zone has more uncommitted pages than pages.
    pub(super) fn new(of: String, pid: Option<i32>, at: SystemTime, text: &[u8]) -> serde_json::Result<Self> {
        let Dump { caches, accounts, kmalloc_large, huge, pages } = serde_json::from_slice(text)?;
        let mut caches = caches;
        let mut seen = BTreeMap::new();
        for cache in &mut caches {
            let before = seen.entry(cache.name.clone()).or_default();
            cache.nth = *before;
            *before += 1;
        }
        caches.retain(|cache| cache.slabs_made > 0);
        let sum_of = |of: fn(&Cache) -> u64| sum(caches.iter().map(of));
        let committed = pages.zones.iter().map(|zone| zone.managed.checked_sub(zone.uncommitted));
        let committed = committed
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| serde_json::Error::custom("a zone has more pages `uncommitted` than `managed`"))?;
        let totals = Totals {
            objects: sum_of(|cache| cache.objects),
            used: sum_of(|cache| cache.used),
            slabs: sum_of(|cache| cache.slabs),
            slab_bytes: sum_of(Cache::bytes),
            large_bytes: bytes(kmalloc_large.pages),
            huge_bytes: bytes(huge.pages),
            committed_bytes: bytes(sum(committed.into_iter())),
            allocs: sum_of(|cache| cache.allocs),
            frees: sum_of(|cache| cache.frees),
        };
        let rows = Sort::Bytes.rows(&caches, None, at);
        let caches = rows.into_iter().map(|(cache, _)| cache.clone()).collect();
        Ok(Self { of, pid, at, totals, caches, accounts })
    }

    /// Returns the rates of a cache from this reading to a later reading.
    pub(super) fn rates(&self, later: &Cache, at: SystemTime) -> Rates {
        let none = Cache::default();
        let is_same = |cache: &&Cache| (&cache.name, cache.nth) == (&later.name, later.nth);
        let before = self.caches.iter().find(is_same).unwrap_or(&none);
        let seconds = at.duration_since(self.at).unwrap_or_default().as_secs_f64();
        let rate = |of: fn(&Cache) -> u64| {
            if seconds > 0.0 { of(later).saturating_sub(of(before)) as f64 / seconds } else { 0.0 }
        };
        Rates {
            allocs: rate(|cache| cache.allocs),
            frees: rate(|cache| cache.frees),
            depot: rate(|cache| cache.depot_exchanges),
            slabs_made: rate(|cache| cache.slabs_made),
            slabs_released: rate(|cache| cache.slabs_released),
        }
    }

    /// Returns the lines above the table: sums of objects, slabs and bytes; the accounts; and the caches whose limit
    /// makes or made threads wait.
    pub(super) fn header_lines(&self) -> Vec<String> {
        let Totals { objects, used, slabs, slab_bytes, large_bytes, huge_bytes, committed_bytes, .. } =
            self.totals;
        let mut heads = vec![
            format!(
                "{} of {} objects in use, {} slabs of {} caches",
                grouped(used),
                grouped(objects),
                grouped(slabs),
                self.caches.len()
            ),
            format!(
                "{} in slabs, {} in large blocks, of {} committed; {} mapped",
                size(slab_bytes),
                size(large_bytes),
                size(committed_bytes),
                size(huge_bytes)
            ),
        ];
        heads.extend(self.accounts.iter().map(|account| {
            let Account { name, charged, limit, refusals, waiting } = account;
            format!(
                "{name}: charged {}, limit {}; {} slabs refused, {waiting} callers waiting",
                size(*charged),
                size(*limit),
                grouped(*refusals)
            )
        }));
        let waited = |cache: &&Cache| cache.waiting + cache.waits > 0;
        heads.extend(self.caches.iter().filter(waited).map(|cache| {
            let of = cache.limit.map_or(String::new(), |limit| format!("at most {} slabs, ", grouped(limit)));
            let seconds = cache.waited_ns as f64 / 1e9;
            format!(
                "{}: {of}{} callers waiting, {} waited {seconds:.3} s in total",
                cache.name,
                cache.waiting,
                grouped(cache.waits)
            )
        }));
        heads
    }

    /// Formats the whole reading as a table.
    pub(super) fn text(&self, sort: Sort) -> String {
        let mut rows = table(&[
            "cache", "size", "per slab", "objects", "in use", "%", "CPUs'", "shared", "slabs", "bytes",
        ]);
        for (cache, _) in sort.rows(&self.caches, None, self.at) {
            rows.add_row([
                cache.name.clone(),
                grouped(cache.object_size),
                cache.objs_per_slab.to_string(),
                grouped(cache.objects),
                grouped(cache.used),
                cache.in_use().to_string(),
                grouped(cache.in_magazines),
                grouped(cache.in_depot),
                grouped(cache.slabs),
                size(cache.bytes()),
            ]);
        }
        let mut page = format!("{}\n", self.of);
        self.header_lines().iter().for_each(|line| {
            let _ = writeln!(page, "{line}");
        });
        page + "\n" + &text(&rows)
    }
}
