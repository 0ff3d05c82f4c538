//! The prices of a machine.

use serde::{Deserialize, Serialize};

/// A price, with its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Nanoseconds.
    pub ns: f64,
    /// The range of most measurements, in nanoseconds.
    pub spread: [f64; 2],
    /// The source: what was measured, how and on which machine.
    pub source: String,
}

/// A group of CPUs that are near each other: CPUs whose numbers are equal when divided by `cpus`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// The number of CPUs in a group; 0 means all.
    pub cpus: u32,
    /// The time to move a line that one CPU has written to another CPU of the group.
    pub line: Price,
}

/// The prices of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The machine's name.
    pub name: String,
    /// The most CPUs for which predictions with this profile were compared with measurements; 0 if none were.
    pub validated_cpus: u32,
    /// An allocation or free that its CPU's own layer serves.
    pub own: Price,
    /// Taking and releasing a lock that no other CPU wants and whose line is here.
    pub lock: Price,
    /// The work under a depot's lock.
    pub exchange: Price,
    /// Moving one object out of a slab or into it, under the lists' lock.
    pub object: Price,
    /// Each further object that is moved in the same way under one hold of that lock.
    pub batched: Price,
    /// Moving a slab from one list to another.
    pub relist: Price,
    /// Creating or freeing a slab: its pages, and its metadata.
    pub slab: Price,
    /// Distances, nearest first; the last one applies to all CPUs.
    pub levels: Vec<Level>,
}

/// A text that is not a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadProfile(String);

/// Profiles that are part of this crate.
const OWN: [&str; 2] = [include_str!("profiles/vm2.json"), include_str!("profiles/milan2s.json")];

impl Profile {
    /// All profiles that are part of this crate.
    pub fn own() -> impl Iterator<Item = Self> {
        OWN.iter().filter_map(|text| Self::parse(text).ok())
    }
    /// A machine on which all prices are 0.
    pub fn free() -> Self {
        let nothing = Price { ns: 0.0, spread: [0.0; 2], source: "nothing costs anything".to_owned() };
        let price = || nothing.clone();
        Self {
            name: "free".to_owned(),
            validated_cpus: 0,
            own: price(),
            lock: price(),
            exchange: price(),
            object: price(),
            batched: price(),
            relist: price(),
            slab: price(),
            levels: vec![Level { cpus: 0, line: price() }],
        }
    }
    /// Parses JSON.
    ///
    /// # Errors
    /// The text is not a profile, or one of its numbers is missing or invalid.
    pub fn parse(text: &str) -> Result<Self, BadProfile> {
        let profile: Self = serde_json::from_str(text).map_err(|error| BadProfile(error.to_string()))?;
        for (name, price) in profile.prices() {
            let [least, most] = price.spread;
            if !(price.ns >= 0.0 && least <= price.ns && price.ns <= most) {
                let Price { ns, .. } = price;
                return Err(BadProfile(format!(
                    "{name}: {ns} ns of {least} to {most}: expected a number from 0 in its spread"
                )));
            }
        }
        match profile.levels.last() {
            Some(Level { cpus: 0, .. }) => Ok(profile),
            _ => Err(BadProfile(
                "levels: the last one is expected to be of all CPUs, with `cpus` 0".to_owned(),
            )),
        }
    }
    /// The same machine with each price at an end of its spread: 0 is the lower one, 1 the upper one.
    #[must_use]
    pub fn at_end(&self, end: usize) -> Self {
        let mut profile = self.clone();
        let Self { own, lock, exchange, object, batched, relist, slab, levels, .. } = &mut profile;
        let prices = [own, lock, exchange, object, batched, relist, slab].into_iter();
        prices
            .chain(levels.iter_mut().map(|level| &mut level.line))
            .for_each(|price| price.ns = price.spread[end]);
        profile
    }
    /// Every price with its name.
    pub fn prices(&self) -> impl Iterator<Item = (String, &Price)> {
        let all = [
            ("own", &self.own),
            ("lock", &self.lock),
            ("exchange", &self.exchange),
            ("object", &self.object),
            ("batched", &self.batched),
            ("relist", &self.relist),
            ("slab", &self.slab),
        ];
        let lines = self.levels.iter().map(|level| {
            let group = if level.cpus == 0 { "all".to_owned() } else { level.cpus.to_string() };
            (format!("line among {group} CPUs"), &level.line)
        });
        all.into_iter().map(|(name, price)| (name.to_owned(), price)).chain(lines)
    }
    /// Nanoseconds for moving `n` objects out of slabs or into them, under one hold of the lists' lock.
    pub fn objects_ns(&self, n: u32) -> f64 {
        n.checked_sub(1).map_or(0.0, |more| self.object.ns + f64::from(more) * self.batched.ns)
    }
    /// The time to move a line that one CPU has written to another.
    pub fn distance_ns(&self, from: u32, to: u32) -> f64 {
        let near = |level: &&Level| level.cpus == 0 || from / level.cpus == to / level.cpus;
        self.levels.iter().find(near).map_or(0.0, |level| level.line.ns)
    }
}
