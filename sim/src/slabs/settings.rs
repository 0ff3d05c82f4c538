//! Estimates the effect of other kernel options: the memory that they save or add, in total and for each cache.
//!
//! The estimate comes from the layout of slabs and the limits of CPUs and nodes; it does not include the cost in time.
//! Other effects of an option are described in words.

use super::estimate::{Bounds, Layers, Machine};
use super::source::{Cache, Snapshot};
use crate::output::{grouped, size};
use anyhow::bail;
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::{self, Display};
use std::str::FromStr;
use uslab::{Geometry, OrderRule};
pub use uslab_engine::models::sheaves::Capacity;

/// Size of an empty sheaf in bytes, without its pointers to objects.
const EMPTY_SHEAF_BYTES: u64 = 32;
const WORD: u64 = 8;
/// The letters of the kernel option `slab_debug=` that change the layout of a cache or its code paths.
const LETTERS: &str = "FZPU";

/// The estimated effect of a change of one kernel option.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The option in the form of the kernel's command line, or the attribute of a cache.
    pub setting: String,
    /// The bytes without the changed option; an upper bound if the tables do not count objects that CPUs hold.
    pub now: u64,
    /// The bytes with the changed option.
    pub then: Bounds,
    /// The change in bytes that the option causes.
    pub change: Difference,
    /// The direction of the change in words: falls or grows.
    pub direction: String,
    /// A description of the memory that the bytes measure.
    pub about: String,
    /// Other quantities that the option makes smaller or less frequent.
    pub decreases: Vec<String>,
    /// Other quantities that the option makes larger or more frequent.
    pub increases: Vec<String>,
    /// The facts that the tables lack, and how their absence widens the bounds.
    pub missing: Option<String>,
    /// The caches whose memory changes; the largest change comes first.
    pub caches: Vec<CacheSetting>,
}

/// The effect of a changed kernel option on one cache.
#[derive(Clone, Debug, Serialize)]
pub struct CacheSetting {
    /// Name of the cache.
    pub name: String,
    /// The present distance from one object to the next, in bytes.
    pub object_size: u64,
    /// The distance from one object to the next with the option, in bytes.
    pub object_size_then: Bounds,
    /// The present memory of the cache, in bytes.
    pub now: u64,
    /// The memory of the cache with the option, in bytes.
    pub then: Bounds,
    /// The change of the cache's memory in bytes.
    pub change: Difference,
}

/// Bounds of a change in bytes; negative values mean a decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The lower bound of the change.
    pub least: i64,
    /// The upper bound of the change.
    pub most: i64,
}

impl std::ops::AddAssign for Difference {
    fn add_assign(&mut self, other: Self) {
        self.least += other.least;
        self.most += other.most;
    }
}

impl Difference {
    fn new(now: u64, then: Bounds) -> Self {
        Self { least: then.least as i64 - now as i64, most: then.most as i64 - now as i64 }
    }

    /// Returns the larger of the absolute values of both bounds.
    fn size(self) -> u64 {
        self.least.unsigned_abs().max(self.most.unsigned_abs())
    }
}

/// Formats the change in words: `falls by 12 KiB`, `grows by 1 KiB to 3 KiB`.
impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: i64| size(bytes.unsigned_abs());
        let between = |verb: &str, near: i64, far: i64| match (near, far) {
            (near, far) if near == far => format!("{verb} by {}", bytes(far)),
            (0, far) => format!("{verb} by up to {}", bytes(far)),
            (near, far) => format!("{verb} by {} to {}", bytes(near), bytes(far)),
        };
        f.write_str(&match (self.least, self.most) {
            (0, 0) => "does not change".to_owned(),
            (least, most) if most <= 0 => between("falls", most, least),
            (least, most) if least >= 0 => between("grows", least, most),
            (least, most) => format!("falls by up to {} or grows by up to {}", bytes(least), bytes(most)),
        })
    }
}

/// A kernel option whose effect the report estimates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The smallest order of slabs.
    MinOrder(u8),
    /// The largest order of slabs.
    MaxOrder(u8),
    /// The number of objects that a slab should have.
    MinObjects(u32),
    /// The number of free objects that a CPU keeps in partial slabs.
    CpuPartial(u64),
    /// The number of objects in a full sheaf.
    SheafCapacity(Capacity),
    /// The kernel does not merge caches.
    NoMerge,
    /// Debugging of caches.
    Debug(Debug),
}

/// Debugging of all caches or of some caches, by the letters of the kernel option `slab_debug=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debug {
    letters: String,
    /// Names of caches; a `*` at the end of a name matches any suffix. The list is empty if the option applies to all
    /// caches.
    caches: Vec<String>,
}

impl FromStr for Request {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let number = |most: u64| -> anyhow::Result<u64> {
            let number = value.and_then(|value| value.parse().ok()).filter(|number| *number <= most);
            number.ok_or_else(|| anyhow::anyhow!("expected {name}=N, with N up to {most}"))
        };
        // Until 6.6 the options began with `slub`.
        Ok(match name.replacen("slub_", "slab_", 1).as_str() {
            "slab_min_order" => Self::MinOrder(number(10)? as u8),
            "slab_max_order" => Self::MaxOrder(number(10)? as u8),
            "slab_min_objects" => Self::MinObjects(number(1 << 15)? as u32),
            "cpu_partial" => Self::CpuPartial(number(1 << 20)?),
            "sheaf_capacity" => Self::SheafCapacity(
                value
                    .unwrap_or_default()
                    .parse()
                    .map_err(|error| anyhow::anyhow!("expected sheaf_capacity={error}"))?,
            ),
            "slab_nomerge" if value.is_none() => Self::NoMerge,
            "slab_debug" => {
                let mut parts = value.unwrap_or(LETTERS).split(',');
                let letters = parts.next().filter(|letters| !letters.is_empty()).unwrap_or(LETTERS);
                let letters = letters.to_ascii_uppercase();
                if !letters.chars().all(|letter| LETTERS.contains(letter)) {
                    bail!("expected slab_debug=LETTERS (of {LETTERS}), then cache names after commas");
                }
                let caches = parts.filter(|name| !name.is_empty()).map(str::to_owned).collect();
                Self::Debug(Debug { letters, caches })
            }
            _ => bail!(
                "expected slab_min_order=N, slab_max_order=N, slab_min_objects=N, cpu_partial=N, sheaf_capacity=N or P%, slab_nomerge, or \
                 slab_debug=LETTERS,CACHE"
            ),
        })
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MinOrder(order) => write!(f, "slab_min_order={order}"),
            Self::MaxOrder(order) => write!(f, "slab_max_order={order}"),
            Self::MinObjects(objects) => write!(f, "slab_min_objects={objects}"),
            Self::CpuPartial(objects) => write!(f, "cpu_partial={objects}"),
            Self::SheafCapacity(capacity) => write!(f, "sheaf_capacity={capacity}"),
            Self::NoMerge => f.write_str("slab_nomerge"),
            Self::Debug(Debug { letters, caches }) => {
                write!(f, "slab_debug={letters}")?;
                caches.iter().try_for_each(|cache| write!(f, ",{cache}"))
            }
        }
    }
}

impl Debug {
    /// Returns the option that debugs all caches.
    fn from_flag_letters(letters: &str) -> Self {
        Self { letters: letters.to_owned(), caches: vec![] }
    }

    fn has_flag(&self, letter: char) -> bool {
        self.letters.contains(letter)
    }

    /// Returns `true` if the option debugs the cache or any cache that was merged with it.
    fn applies_to(&self, cache: &Cache) -> bool {
        let matches = |name: &String| {
            self.caches.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => name == pattern,
            })
        };
        self.caches.is_empty() || matches(&cache.row.name) || cache.aliases.iter().any(matches)
    }

    /// Returns the distance between objects with debugging, in bytes. The distance is known only within bounds if no
    /// table shows the cache's alignment and constructor. Parts of the layout that the tables do not show are assumed
    /// to be the same with debugging.
    fn stride(&self, cache: &Cache, version: Option<(u32, u32)>) -> Bounds {
        let now = cache.row.object_size;
        let plain = Self::from_flag_letters("");
        let of =
            |shape: ObjectShape| now + self.object_stride(shape).saturating_sub(plain.object_stride(shape));
        match ObjectShape::of(cache, version) {
            Some(shape) => exactly(of(shape)),
            None => {
                let shapes = ObjectShape::possible(now).filter(|shape| plain.object_stride(*shape) == now);
                let strides = shapes.map(of);
                let all = strides.fold(None, |all: Option<Bounds>, stride| {
                    let all = all.unwrap_or(exactly(stride));
                    Some(Bounds { least: all.least.min(stride), most: all.most.max(stride) })
                });
                all.unwrap_or(exactly(now))
            }
        }
    }

    /// Returns the distance between objects, computed like the kernel's `calculate_sizes`.
    fn object_stride(&self, shape: ObjectShape) -> u64 {
        let ObjectShape { object, align, outside, is_kmalloc } = shape;
        let mut size = object.next_multiple_of(WORD);
        if self.has_flag('Z') && size == object {
            size += WORD;
        }
        let asked_size = is_kmalloc && self.has_flag('U');
        if outside || self.has_flag('P') || self.has_flag('Z') && (object < WORD || asked_size) {
            size += WORD;
        }
        if self.has_flag('U') {
            size += 64 + if is_kmalloc { WORD } else { 0 };
        }
        if self.has_flag('Z') {
            size += WORD + WORD.next_multiple_of(align);
        }
        size.next_multiple_of(align)
    }
}

/// The properties of a cache that determine the layout of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ObjectShape {
    /// The size of the object in bytes.
    object: u64,
    align: u64,
    /// `true` if the free pointer is behind the object, because the cache has a constructor or its freed objects stay
    /// readable for a grace period.
    outside: bool,
    is_kmalloc: bool,
}

impl ObjectShape {
    /// Returns the properties that determine the objects' layout; `None` if the tables lack one of them. For a kmalloc
    /// cache, the name alone is sufficient.
    fn of(cache: &Cache, version: Option<(u32, u32)>) -> Option<Self> {
        let size = cache.row.object_size;
        let is_kmalloc = cache.row.name.contains("kmalloc-");
        if let Some(attributes) = &cache.attributes
            && let Some(align) = attributes.align
        {
            return Some(Self {
                object: cache.object_size(),
                align: Some(align).filter(|align| align.is_power_of_two()).unwrap_or(WORD).max(WORD),
                outside: attributes.ctor || attributes.destroy_by_rcu.is_some_and(|by_rcu| by_rcu > 0),
                is_kmalloc,
            });
        }
        // A power of two is aligned to itself. Since 6.12 other sizes are aligned to the largest power of two that
        // divides them.
        let natural = 1 << size.trailing_zeros();
        let align = match version {
            _ if size.is_power_of_two() => natural,
            Some(version) if version < (6, 12) => WORD,
            _ => natural,
        };
        is_kmalloc.then(|| Self { object: size, align: align.max(WORD), outside: false, is_kmalloc })
    }

    /// Returns the possible layouts of a cache's objects, if only the distance between objects is known.
    fn possible(stride: u64) -> impl Iterator<Item = Self> {
        let aligns =
            [8, 16, 32, 64, 128, 256, 512].into_iter().filter(move |align| stride.is_multiple_of(*align));
        aligns.flat_map(move |align| {
            // The rest of its place is smaller than its alignment and a pointer.
            let objects = stride.saturating_sub(align + WORD).max(1)..=stride;
            objects.flat_map(move |object| {
                [false, true].map(|outside| Self { object, align, outside, is_kmalloc: false })
            })
        })
    }
}

/// Returns the bytes and the number of the fewest slabs that can hold the objects in use.
fn packed(cache: &Cache, stride: u64, rule: &OrderRule) -> Option<(u64, u64)> {
    let geometry = Geometry::new(stride as usize, 0, rule).ok()?;
    let slabs = cache.row.active_objects.div_ceil(geometry.objects() as u64);
    Some((slabs * geometry.order().bytes() as u64, slabs))
}

/// Returns the size of the smallest kmalloc object that holds `bytes` bytes.
fn bucket(bytes: u64) -> u64 {
    match bytes {
        65..=96 => 96,
        129..=192 => 192,
        _ => bytes.max(8).next_power_of_two(),
    }
}

fn exactly(bytes: u64) -> Bounds {
    Bounds { least: bytes, most: bytes }
}

/// Returns the options that a report estimates if the user requested none.
fn default_requests(machine: &Machine, has_sheaves: bool) -> Vec<Request> {
    let mut requests = vec![];
    if machine.rule().is_some() {
        requests.extend([0, 1, 5].map(Request::MaxOrder));
        requests.extend(
            ["F", "Z", "P", "U", LETTERS].map(|letters| Request::Debug(Debug::from_flag_letters(letters))),
        );
    }
    requests.push(Request::CpuPartial(0));
    if has_sheaves {
        requests.extend([50, 200].map(|percent| Request::SheafCapacity(Capacity::Percent(percent))));
    }
    requests.push(Request::NoMerge);
    requests
}

/// The caches of a machine, with the facts that an estimate of an option needs.
struct SettingContext<'s> {
    machine: &'s Machine,
    caches: Vec<(&'s Cache, Layers)>,
}

/// Estimates the effects of the requested options, or of a usual selection.
///
/// # Errors
/// Fails if the tables show no effect of a requested option.
pub(super) fn estimate_settings(
    snapshot: &Snapshot,
    machine: &Machine,
    requests: &[Request],
) -> anyhow::Result<Vec<Setting>> {
    let caches = snapshot.caches.iter().filter(|cache| cache.row.object_size > 0);
    let desk =
        SettingContext { machine, caches: caches.map(|cache| (cache, cache.layers(machine))).collect() };
    if requests.is_empty() {
        let has_sheaves = desk.caches.iter().any(|(_, layers)| layers.sheaf_capacity > 0);
        let usual = default_requests(machine, has_sheaves);
        return Ok(usual.iter().filter_map(|request| desk.estimate(request).ok()).collect());
    }
    let estimate =
        |request| desk.estimate(request).map_err(|why| anyhow::anyhow!("--setting {request}: {why}"));
    requests.iter().map(estimate).collect()
}

impl SettingContext<'_> {
    fn estimate(&self, request: &Request) -> Result<Setting, String> {
        let rule = || {
            self.machine.rule().ok_or_else(|| {
                "the known rule for slab orders does not apply: expected SLUB with pages of 4 KiB".to_owned()
            })
        };
        let mut setting = match request {
            Request::MinOrder(order) => {
                let rule = rule()?;
                let max_order = rule.max_order.max(*order);
                self.orders(rule, OrderRule { min_order: *order, max_order, ..rule })
            }
            Request::MaxOrder(order) => {
                let rule = rule()?;
                self.orders(rule, OrderRule { max_order: *order, ..rule })
            }
            Request::MinObjects(objects) => {
                let rule = rule()?;
                self.orders(rule, OrderRule { min_objects: *objects, ..rule })
            }
            Request::Debug(debug) => self.debug(&rule()?, debug)?,
            Request::CpuPartial(objects) => self.cpu_partial(*objects)?,
            Request::SheafCapacity(capacity) => self.sheaves(*capacity)?,
            Request::NoMerge => self.estimate_no_merge()?,
        };
        setting.setting = request.to_string();
        Ok(setting)
    }

    fn bytes(&self, cache: &Cache) -> u64 {
        cache.slab_bytes(self.machine.page_size)
    }

    /// Builds the estimate for an option from its effects on caches: the sums, and the direction of the change in
    /// words.
    fn setting(&self, about: String, mut caches: Vec<CacheSetting>) -> Setting {
        let (mut now, mut then, mut change) = (0, Bounds::default(), Difference::default());
        for cache in &caches {
            now += cache.now;
            then += cache.then;
            change += cache.change;
        }
        caches.retain(|cache| cache.change != Difference::default());
        caches.sort_by_key(|cache| Reverse(cache.change.size()));
        Setting {
            setting: String::new(),
            now,
            then,
            change,
            direction: change.to_string(),
            about,
            decreases: vec![],
            increases: vec![],
            missing: None,
            caches,
        }
    }

    fn orders(&self, rule: OrderRule, other: OrderRule) -> Setting {
        let mut slabs = [0, 0];
        let caches = self.caches.iter().filter_map(|(cache, _)| {
            let stride = cache.row.object_size;
            let [(now, few), (then, many)] = [packed(cache, stride, &rule)?, packed(cache, stride, &other)?];
            slabs = [slabs[0] + few, slabs[1] + many];
            Some(cache_setting(cache, exactly(stride), now, exactly(then)))
        });
        let caches = caches.collect();
        let mut setting = self.setting("objects in use without holes".to_owned(), caches);
        let used = || self.caches.iter().filter(|(cache, _)| cache.row.slabs > 0);
        let layouts = |rule: &OrderRule| -> Vec<Geometry> {
            used()
                .filter_map(|(cache, _)| Geometry::new(cache.row.object_size as usize, 0, rule).ok())
                .collect()
        };
        let [now, then] = [layouts(&rule), layouts(&other)];
        let of_cpus = |layouts: &[Geometry]| {
            self.machine.cpus * layouts.iter().map(|layout| layout.order().bytes() as u64).sum::<u64>()
        };
        let order =
            |layouts: &[Geometry]| layouts.iter().map(|layout| layout.order().get()).max().unwrap_or(0);
        setting.changes("one slab for each CPU and cache", [of_cpus(&now), of_cpus(&then)], size);
        setting.changes("the largest requested order", [order(&now), order(&then)].map(u64::from), grouped);
        setting.changes("slabs, each of which is allocated and listed under a lock", slabs, grouped);
        setting
    }

    fn debug(&self, rule: &OrderRule, debug: &Debug) -> Result<Setting, String> {
        let mut held = 0;
        let concerned: Vec<_> = self.caches.iter().filter(|(cache, _)| debug.applies_to(cache)).collect();
        if concerned.is_empty() {
            return Err(format!("no cache has any of these names: {}", debug.caches.join(", ")));
        }
        let caches = concerned.iter().filter_map(|(cache, layers)| {
            held += layers.cpu_slabs * self.bytes(cache) + layers.parked * cache.row.object_size;
            let stride = debug.stride(cache, self.machine.version);
            let (now, _) = packed(cache, cache.row.object_size, rule)?;
            let [a, b] = [stride.least, stride.most].map(|stride| packed(cache, stride, rule));
            let (a, b) = (a?.0, b?.0);
            Some(cache_setting(cache, stride, now, Bounds { least: a.min(b), most: a.max(b) }))
        });
        let caches = caches.collect();
        let about = match debug.letters.as_str() {
            "F" => "objects in use without holes; checks need no memory",
            "Z" => "objects in use without holes, with red zones around each",
            "P" => "objects in use without holes; the free pointer moves behind the object",
            "U" => {
                "objects in use without holes, with 64 bytes of tracks each; call stacks need additional memory"
            }
            _ => "objects in use without holes, with all that these letters add",
        };
        let mut setting = self.setting(about.to_owned(), caches);
        let layouts_change = debug.letters != "F";
        let unknown = concerned
            .iter()
            .filter(|(cache, _)| ObjectShape::of(cache, self.machine.version).is_none())
            .count();
        if unknown > 0 && layouts_change {
            setting.missing = Some(format!(
                "sysfs: slabinfo does not show the alignment, the constructor and the merged caches of {} caches; the bounds allow for \
                 alignments of 8 to 512 bytes",
                grouped(unknown as u64)
            ));
        }
        if held > 0 {
            setting.decreases.push(format!("memory held by CPUs: none, instead of up to {}", size(held)));
        }
        setting
            .increases
            .push("time: each allocation and free takes its node's lock, and is checked".to_owned());
        let merged: usize = concerned.iter().map(|(cache, _)| cache.aliases.len()).sum();
        if merged > 0 && layouts_change {
            setting.increases.push(format!(
                "caches: {} more, because caches with debugging are not merged",
                grouped(merged as u64)
            ));
        }
        Ok(setting)
    }

    fn cpu_partial(&self, objects: u64) -> Result<Setting, String> {
        if self.machine.is_slab || self.machine.version.is_some_and(|version| version >= (7, 0)) {
            return Err("this kernel has no per-CPU partial slabs (SLUB has them up to 6.19)".to_owned());
        }
        let cpus = self.machine.cpus;
        let caches = self.caches.iter().map(|(cache, layers)| {
            let partial = match objects {
                0 => 0,
                // The least that a slab on the list has, and the rule of 5.16 and later.
                _ if self.machine.version.is_some_and(|version| version < (5, 16)) => objects,
                _ => (2 * objects).div_ceil(cache.row.objects_per_slab.max(1)),
            };
            let most = (cpus * (1 + partial)).min(cache.row.slabs);
            // A lower limit leaves no more than there is now.
            let usual = cache.usual_cpu_partial(self.machine.version);
            let is_lower = partial <= usual;
            let most = if is_lower { most.min(layers.cpu_slabs) } else { most };
            let (now, then) = (layers.cpu_slabs * self.bytes(cache), most * self.bytes(cache));
            let mut row =
                cache_setting(cache, exactly(cache.row.object_size), now, Bounds { least: 0, most: then });
            row.change = match is_lower {
                true => Difference { least: -(now as i64), most: 0 },
                false => Difference { least: 0, most: then.saturating_sub(now) as i64 },
            };
            row
        });
        let caches: Vec<_> = caches.collect();
        if caches.iter().all(|cache| cache.now == 0) {
            return Err("no CPU holds a slab".to_owned());
        }
        let falls = caches.iter().all(|cache| cache.change.most == 0);
        let mut setting = self.setting("slabs that CPUs hold, at most".to_owned(), caches);
        let lock = "operations that take a node's lock: each free to a full slab, and some allocations";
        let list = if falls { &mut setting.increases } else { &mut setting.decreases };
        list.push(lock.to_owned());
        Ok(setting)
    }

    fn sheaves(&self, capacity: Capacity) -> Result<Setting, String> {
        let cpus = self.machine.cpus;
        let of: Vec<_> = self.caches.iter().filter(|(_, layers)| layers.sheaf_capacity > 0).collect();
        if of.is_empty() {
            return Err(
                "no cache has sheaves (two caches have them since 6.18, nearly all since 7.0)".to_owned()
            );
        }
        let mut arrays = [0, 0];
        let mut sums = [0, 0];
        let caches = of.iter().map(|(cache, layers)| {
            let capacities = [layers.sheaf_capacity, capacity.of(layers.sheaf_capacity)];
            // Without sheaves there is no array.
            let array = |capacity: u64| {
                if capacity == 0 { 0 } else { cpus * bucket(EMPTY_SHEAF_BYTES + WORD * capacity) }
            };
            let held = |capacity: u64| {
                let held = (capacity * self.machine.sheaves()).min(cache.row.active_objects);
                held * cache.row.object_size
            };
            let [now, then] = capacities.map(array);
            let [most_now, most_then] = capacities.map(held);
            for at in 0..2 {
                arrays[at] += [now, then][at];
                sums[at] += capacities[at];
            }
            let bounds = Bounds { least: then, most: then + most_then };
            let mut row = cache_setting(cache, exactly(cache.row.object_size), now + most_now, bounds);
            // Sheaves that are empty, and full ones.
            let empty = then as i64 - now as i64;
            let full = empty + most_then as i64 - most_now as i64;
            row.change = Difference { least: empty.min(full), most: empty.max(full) };
            row
        });
        let caches = caches.collect();
        let about = format!(
            "main sheaves of {} caches (now {}, then {}), plus the objects that sheaves can hold",
            of.len(),
            size(arrays[0]),
            size(arrays[1])
        );
        let mut setting = self.setting(about, caches);
        let raised =
            of.iter().filter(|(_, layers)| capacity.of(layers.sheaf_capacity) > layers.sheaf_capacity);
        if raised.clone().count() > 0 {
            setting.increases.push(format!(
                "sheaf capacity: larger in {} of {} caches",
                raised.count(),
                of.len()
            ));
        }
        let trips = "trips to barns and slabs, each under a lock";
        let per_mille = |part: u64, all: u64| (1000 * part + all / 2) / all.max(1);
        match (sums[0], sums[1]) {
            (now, 0) => setting
                .increases
                .push(format!("{trips}: every operation instead of one in about {}", now / of.len() as u64)),
            (now, then) if then < now => {
                setting.increases.push(format!(
                    "{trips}: about {:.1} times as many as now",
                    per_mille(now, then) as f64 / 1000.0
                ));
            }
            (now, then) if then > now => {
                setting.decreases.push(format!(
                    "{trips}: {:.2} times as many as now",
                    per_mille(now, then) as f64 / 1000.0
                ));
            }
            _ => {}
        }
        Ok(setting)
    }

    fn estimate_no_merge(&self) -> Result<Setting, String> {
        let merged: Vec<_> = self.caches.iter().filter(|(cache, _)| !cache.aliases.is_empty()).collect();
        if merged.is_empty() {
            return Err(
                "the tables do not show merged caches; expected the sysfs tables, whose links show them"
                    .to_owned(),
            );
        }
        let Machine { cpus, nodes, version, .. } = *self.machine;
        let caches = merged.iter().map(|(cache, layers)| {
            // Partial slabs that a node keeps, and what CPUs hold.
            let own = match layers.sheaf_capacity {
                0 => (5 * nodes + cpus * (1 + cache.usual_cpu_partial(version))) * self.bytes(cache),
                capacity => {
                    5 * nodes * self.bytes(cache) + cpus * bucket(EMPTY_SHEAF_BYTES + WORD * capacity)
                }
            };
            let now = cache.row.slabs * self.bytes(cache);
            let most = now + cache.aliases.len() as u64 * own;
            cache_setting(cache, exactly(cache.row.object_size), now, Bounds { least: now, most })
        });
        let caches = caches.collect();
        let about = "slabs of the merged caches; each used cache has separate partial and per-CPU slabs";
        let mut setting = self.setting(about.to_owned(), caches);
        let more: u64 = merged.iter().map(|(cache, _)| cache.aliases.len() as u64).sum();
        setting.increases.push(format!("caches: {} more", grouped(more)));
        setting
            .decreases
            .push("kinds of objects in one slab: a leak or an overflow affects only one cache".to_owned());
        Ok(setting)
    }
}

fn cache_setting(cache: &Cache, stride: Bounds, now: u64, then: Bounds) -> CacheSetting {
    CacheSetting {
        name: cache.row.name.clone(),
        object_size: cache.row.object_size,
        object_size_then: stride,
        now,
        then,
        change: Difference::new(now, then),
    }
}

impl Setting {
    /// Adds a sentence about a quantity that falls or grows.
    fn changes(&mut self, what: &str, [now, then]: [u64; 2], shown: impl Fn(u64) -> String) {
        let to = match now.cmp(&then) {
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Greater => &mut self.decreases,
            std::cmp::Ordering::Less => &mut self.increases,
        };
        to.push(format!("{what}: {} instead of {}", shown(then), shown(now)));
    }

    /// Describes, in words, which other quantities change.
    pub(super) fn describe_other_changes(&self) -> String {
        let list = |verb: &str, things: &[String]| match things {
            [] => None,
            things => Some(format!("{verb}: {}", things.join("; "))),
        };
        let missing = self.missing.as_ref().map(|missing| format!("Missing: {missing}"));
        let parts = [list("Falls", &self.decreases), list("Grows", &self.increases), missing];
        parts.into_iter().flatten().map(|part| part + ".").collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slabs::attributes::Attributes;
    use crate::trace::Tunables;
    use uslab::info::Row;

    fn cache(name: &str, size: u64, attributes: Option<Attributes>) -> Cache {
        let row = Row {
            name: name.to_owned(),
            active_objects: 640,
            objects: 640,
            object_size: size,
            objects_per_slab: 16,
            pages_per_slab: 1,
            active_slabs: 40,
            slabs: 40,
        };
        Cache { row, tunables: Tunables::default(), attributes, aliases: vec![] }
    }

    fn attributes_with_shape(size: u64, align: u64) -> Option<Attributes> {
        Some(Attributes { object_size: Some(size), align: Some(align), ..Attributes::default() })
    }

    #[test]
    fn debug_layout_of_objects_equals_the_kernel_layout() {
        let of = |name: &str, size: u64, letters: &str| {
            let align = if name.starts_with("kmalloc") { size } else { 8 };
            Debug::from_flag_letters(letters)
                .stride(&cache(name, size, attributes_with_shape(size, align)), None)
        };
        assert_eq!(of("kmalloc-64", 64, "FZPU"), exactly(256));
        assert_eq!(of("plain", 64, "FZPU"), exactly(160));
        assert_eq!(["F", "U", "P"].map(|letters| of("plain", 64, letters).most), [64, 128, 72]);
    }

    /// Regression test: without sysfs, all alignments were assumed to be 8 bytes, so the estimate was a third of the
    /// real cost.
    #[test]
    fn debug_layout_without_sysfs_is_exact_only_for_kmalloc() {
        let debug = Debug::from_flag_letters("FZPU");
        for size in [8, 64, 4096] {
            let name = format!("kmalloc-cg-{size}");
            let known = debug.stride(&cache(&name, size, attributes_with_shape(size, size)), None);
            assert_eq!(debug.stride(&cache(&name, size, None), None), known, "{name}");
        }
        for (size, object, align, ctor) in [(192, 192, 64, false), (64, 56, 8, true), (136, 130, 8, false)] {
            let attributes = Attributes { ctor, ..attributes_with_shape(object, align).unwrap_or_default() };
            let known = debug.stride(&cache("plain", size, Some(attributes)), None).least;
            let bounds = debug.stride(&cache("plain", size, None), None);
            assert!(bounds.least <= known && known <= bounds.most, "{size}: {known} in {bounds:?}");
        }
    }

    #[test]
    fn invalid_option_request_error_lists_the_accepted_values() {
        for text in [
            "slab_min_order=1",
            "slab_max_order=0",
            "slab_min_objects=8",
            "cpu_partial=6",
            "sheaf_capacity=28",
            "sheaf_capacity=50%",
            "slab_nomerge",
            "slab_debug=ZU,dentry,kmalloc-*",
        ] {
            assert_eq!(text.parse::<Request>().expect(text).to_string(), text);
        }
        assert_eq!(
            "slub_debug".parse::<Request>().expect("all letters must be accepted").to_string(),
            "slab_debug=FZPU"
        );
        assert_eq!(
            "slub_max_order=2".parse::<Request>().expect("the order must be accepted"),
            Request::MaxOrder(2)
        );
        for (text, expected) in [
            ("slab_max_order=11", "N up to 10"),
            ("sheaf_capacity=half", "such as 50%"),
            ("sheaf_capacity=x%", "0 to 10000"),
            ("slab_debug=Q", "LETTERS (of FZPU)"),
            ("other=1", "expected slab_min_order=N"),
            ("slab_nomerge=1", "expected slab_min_order=N"),
        ] {
            let error = text.parse::<Request>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn change_is_described_as_a_fall_or_growth() {
        let words = |least, most| Difference { least, most }.to_string();
        assert_eq!(words(0, 0), "does not change");
        assert_eq!(words(-2048, -2048), "falls by 2048 B");
        assert_eq!(words(-2048, 0), "falls by up to 2048 B");
        assert_eq!(words(1, 2), "grows by 1 B to 2 B");
        assert_eq!(words(-1, 2), "falls by up to 1 B or grows by up to 2 B");
    }

    /// Regression test: the estimate for half of the sheaf capacity had the wrong sign.
    #[test]
    fn smaller_sheaves_hold_fewer_objects_and_refill_more_often() {
        let attributes = Attributes { sheaf_capacity: Some(60), ..Attributes::default() };
        let mut cache = cache("inode", 256, Some(attributes));
        cache.row.active_objects = 100_000;
        let machine = Machine {
            cpus: 4,
            cpus_guessed: false,
            nodes: 1,
            page_size: 4096,
            version: Some((7, 2)),
            is_slab: false,
        };
        let desk = SettingContext { machine: &machine, caches: vec![(&cache, cache.layers(&machine))] };
        let of = |capacity| desk.sheaves(capacity).expect("sheaves");
        let half = of(Capacity::Percent(50));
        // Of 22 sheaves: three of each CPU, and ten of the barn. The arrays of 60 and 30 have 512 bytes.
        assert_eq!((half.now, half.then.most), (4 * 512 + 22 * 60 * 256, 4 * 512 + 22 * 30 * 256));
        assert_eq!(half.change, Difference { least: -(22 * 30 * 256), most: 0 });
        assert!(half.direction.starts_with("falls by up to") && half.decreases.is_empty(), "{half:?}");
        assert_eq!(
            half.increases,
            ["trips to barns and slabs, each under a lock: about 2.0 times as many as now"]
        );
        let double = of(Capacity::Percent(200));
        assert!(
            double.change.least > 0 && double.increases == ["sheaf capacity: larger in 1 of 1 caches"],
            "{double:?}"
        );
        assert_eq!(of(Capacity::Objects(60)).change, Difference::default());
        let none = of(Capacity::Objects(0));
        assert_eq!((none.then, none.change.most), (Bounds::default(), -4 * 512));
    }
}
