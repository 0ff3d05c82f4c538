//! Compares two snapshots of a kernel's tables, and shows which caches grew, by objects in use or by holes.

use super::{Report, merged, percent};
use crate::output::{self, grouped, signed, size};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The difference between two snapshots of a kernel's tables.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The name of the earlier snapshot.
    pub from: String,
    /// The name of the later snapshot.
    pub to: String,
    /// The change of the total size of all slabs, in bytes.
    pub bytes: i64,
    /// The change of the memory of objects in use, in bytes.
    pub in_use: i64,
    /// The change of the memory in holes, in bytes.
    pub holes: i64,
    /// The caches that differ; the cache with the largest difference comes first.
    pub caches: Vec<CacheChange>,
}

/// The change of one cache between two snapshots.
#[derive(Clone, Debug, Serialize)]
pub struct CacheChange {
    /// The name of the cache.
    pub name: String,
    /// The names of caches that the kernel merged with this cache, which then includes their objects.
    pub aliases: Vec<String>,
    /// The change of the number of slabs.
    pub slabs: i64,
    /// The change of the total size of the slabs, in bytes.
    pub bytes: i64,
    /// The change of the number of objects in use.
    pub objects: i64,
    /// The change of the memory in holes, in bytes.
    pub holes: i64,
    /// The name of the snapshot that contains the cache; `None` if both snapshots contain it.
    pub only: Option<&'static str>,
}

fn minus(later: u64, earlier: u64) -> i64 {
    later as i64 - earlier as i64
}

impl Change {
    /// Computes the change from the report `earlier` to the report `later`.
    pub fn new(earlier: &Report, later: &Report) -> Self {
        let before: BTreeMap<_, _> = earlier.caches.iter().map(|row| (&row.name, row)).collect();
        let after: BTreeMap<_, _> = later.caches.iter().map(|row| (&row.name, row)).collect();
        let mut names: Vec<_> = before.keys().chain(after.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let caches = names.into_iter().map(|name| {
            let (old, new) = (before.get(*name), after.get(*name));
            let of = |field: fn(&super::Row) -> u64| {
                minus(new.map_or(0, |row| field(row)), old.map_or(0, |row| field(row)))
            };
            CacheChange {
                name: (*name).clone(),
                aliases: new.or(old).map_or(vec![], |row| row.aliases.clone()),
                slabs: of(|row| row.slabs),
                bytes: of(|row| row.bytes),
                objects: of(|row| row.in_use),
                holes: of(|row| row.hole_bytes),
                only: match (old, new) {
                    (None, Some(_)) => Some("later"),
                    (Some(_), None) => Some("earlier"),
                    _ => None,
                },
            }
        });
        let mut caches: Vec<_> =
            caches.filter(|change| change.slabs != 0 || change.objects != 0 || change.holes != 0).collect();
        caches.sort_by_key(|change| Reverse((change.bytes.unsigned_abs(), change.objects.unsigned_abs())));
        Self {
            from: earlier.place.clone(),
            to: later.place.clone(),
            bytes: minus(later.bytes, earlier.bytes),
            in_use: minus(later.in_use, earlier.in_use),
            holes: minus(later.holes, earlier.holes),
            caches,
        }
    }

    /// Formats the change as text, with at most `rows` caches.
    pub fn text(&self, rows: usize) -> String {
        let mut text = format!(
            "From {} to {}: slabs {}, objects in use {}, holes {}.\n",
            self.from,
            self.to,
            difference(self.bytes),
            difference(self.in_use),
            difference(self.holes)
        );
        for change in self.caches.iter().take(rows.min(3)) {
            let _ = writeln!(text, "{}", change.sentence(self.bytes));
        }
        if self.caches.is_empty() {
            return text;
        }
        let mut table = output::table(&["cache", "bytes", "slabs", "objects in use", "holes"]);
        for change in self.caches.iter().take(rows) {
            table.add_row([
                change.name.clone(),
                difference(change.bytes),
                signed(change.slabs),
                signed(change.objects),
                difference(change.holes),
            ]);
        }
        let _ = writeln!(text, "\n{}", output::text(&table));
        text
    }
}

impl CacheChange {
    fn sentence(&self, all: i64) -> String {
        let verb = if self.bytes >= 0 { "grew" } else { "shrank" };
        let mut text = format!("{} {verb} by {}", self.name, size(self.bytes.unsigned_abs()));
        if all != 0 && (self.bytes > 0) == (all > 0) {
            text += &format!(" ({} of all)", percent(self.bytes.unsigned_abs(), all.unsigned_abs()));
        }
        text += &match self.objects {
            0 => "; the number of its objects in use did not change".to_owned(),
            objects => {
                let (count, direction) =
                    (grouped(objects.unsigned_abs()), if objects > 0 { "more" } else { "fewer" });
                let holes = match self.holes {
                    0 => "its holes did not change".to_owned(),
                    holes => format!("its holes changed by {}", difference(holes)),
                };
                format!("; {count} {direction} objects are in use, and {holes}")
            }
        };
        text + &merged(&self.aliases) + "."
    }
}

/// Formats a number of bytes with its sign.
pub(super) fn difference(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}
