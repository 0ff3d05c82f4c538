//! The prices of a machine's operations, in nanoseconds.

use serde::{Deserialize, Serialize};

/// A price in nanoseconds, and how it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The price in nanoseconds.
    pub ns: f64,
    /// The range in nanoseconds that contains most measurements of the price.
    pub spread: [f64; 2],
    /// The source of the price: what was measured, how, and on which machine.
    pub source: String,
}

/// A group of neighbouring CPUs. Two CPUs are in the same group if their numbers, divided by `cpus`, have the same
/// quotient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// The number of CPUs in a group; 0 if one group contains all CPUs.
    pub cpus: u32,
    /// The time to move a cache line between two CPUs of the group, after one of them has written the line.
    pub line: Price,
}

/// The prices of one machine's locks, cache lines and allocator steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The machine's name.
    pub name: String,
    /// The largest number of CPUs on which predictions from the profile were compared with measurements; 0 if they were
    /// never compared.
    pub validated_cpus: u32,
    /// The price of an allocation or free that the CPU's own layer serves.
    pub own: Price,
    /// The price of taking and releasing an uncontended lock whose cache line is already on the CPU.
    pub lock: Price,
    /// The price of the work under a depot's lock.
    pub exchange: Price,
    /// The price of moving one object out of a slab or into a slab, while the list lock is held.
    pub object: Price,
    /// The price of moving each further object while the list lock stays held.
    pub batched: Price,
    /// The price of moving a slab from one list to another.
    pub relist: Price,
    /// The price of creating or freeing a slab, with its pages and metadata.
    pub slab: Price,
    /// The distances between CPUs, nearest groups first; the last level contains all CPUs.
    pub levels: Vec<Level>,
}

/// The error for a text that is not a valid profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadProfile(String);

/// The built-in profiles, in JSON.
const BUILT_IN_PROFILES: [&str; 2] =
    [include_str!("profiles/vm2.json"), include_str!("profiles/milan2s.json")];

impl Profile {
    /// Returns the built-in profiles.
    pub fn built_in() -> impl Iterator<Item = Self> {
        BUILT_IN_PROFILES.iter().filter_map(|text| Self::parse(text).ok())
    }
    /// Returns a machine on which every price is 0.
    pub fn free() -> Self {
        let free_price = Price { ns: 0.0, spread: [0.0; 2], source: "nothing costs anything".to_owned() };
        let price = || free_price.clone();
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
    /// Parses a profile from JSON.
    ///
    /// # Errors
    /// Fails if the text is not a profile, or if a price is missing or invalid.
    pub fn parse(text: &str) -> Result<Self, BadProfile> {
        let profile: Self = serde_json::from_str(text).map_err(|error| BadProfile(error.to_string()))?;
        for (name, price) in profile.prices() {
            let [min, max] = price.spread;
            if !(price.ns >= 0.0 && min <= price.ns && price.ns <= max) {
                let Price { ns, .. } = price;
                return Err(BadProfile(format!(
                    "{name}: {ns} ns with a spread of {min} to {max}; expected a price of at least 0 that is inside its spread"
                )));
            }
        }
        match profile.levels.last() {
            Some(Level { cpus: 0, .. }) => Ok(profile),
            _ => Err(BadProfile("levels: expected a last level of all CPUs, with `cpus` 0".to_owned())),
        }
    }
    /// Returns the machine with each price at one end of its spread: `end` 0 means the lower end, 1 the upper end.
    #[must_use]
    pub fn with_prices_at_end(&self, end: usize) -> Self {
        let mut profile = self.clone();
        let Self { own, lock, exchange, object, batched, relist, slab, levels, .. } = &mut profile;
        let prices = [own, lock, exchange, object, batched, relist, slab].into_iter();
        prices
            .chain(levels.iter_mut().map(|level| &mut level.line))
            .for_each(|price| price.ns = price.spread[end]);
        profile
    }
    /// Returns every price with its name.
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
    /// Returns the nanoseconds for moving `n` objects out of slabs or into slabs while the list lock stays held.
    pub fn move_objects_ns(&self, n: u32) -> f64 {
        n.checked_sub(1)
            .map_or(0.0, |further_objects| self.object.ns + f64::from(further_objects) * self.batched.ns)
    }
    /// Returns the nanoseconds for moving a cache line that CPU `from` has written to CPU `to`.
    pub fn cache_line_move_ns(&self, from: u32, to: u32) -> f64 {
        let is_shared_level = |level: &&Level| level.cpus == 0 || from / level.cpus == to / level.cpus;
        self.levels.iter().find(is_shared_level).map_or(0.0, |level| level.line.ns)
    }
}
