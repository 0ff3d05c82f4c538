//! A model in parts, each explored where it likes: the executions of all parts are those of the whole, each once.
//!
//! loom explores a tree. An execution is a *path* of choices: which thread runs next, which value a load sees. Its search (DPOR) goes
//! depth first, and an execution that shows that another choice matters *asks* for that choice at a place that it came through. So
//! the tree is not known beforehand; but what lies below a place follows from the choices up to there, and from nothing else.
//!
//! **The parts.** A part is all that lies below its first choices. There is one at first, the whole tree. Each part's first execution
//! is run, which shows where other choices are asked for, and so roughly how large the part is. As long as there are fewer parts than
//! wanted, the largest one becomes as many as choices were asked for at its first place with more than one. All shares do this
//! alike, and each runs every so many of the parts, the larger ones first.
//!
//! **A part alone.** loom is given the first choices as a path that it goes on with. A choice there that is another part's counts as
//! visited, so that the search does not go there.
//!
//! **Choices that are asked for late.** A choice at a place in front of a part may be asked for by an execution deep in it, and be no
//! part yet. Who notices that runs it, too: it is a part without a number. Several shares may notice the same one; each tells its
//! name, so that who joins the shares counts it once. So no choice that was asked for is left out, none is run that the
//! whole would not run, and the counts add up to the whole's.

use crate::check::LIMIT;
use crate::replay::{Failure, Run};
use crate::shard::Shard;
use core::fmt;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Executions of a part between two looks at whether it has ended: few at first, because the last ones are run twice.
const LEAST_BETWEEN: u64 = 16;
const MOST_BETWEEN: u64 = 512;

/// More pre-emptions than this are taken for this many, where the sizes of parts are compared.
const MOST_LEFT: u64 = 4;

/// A choice at each place from the first one on.
type Choices = Vec<u8>;

/// A part that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its place among the parts that all shares know, and how many there are; `None`: it was asked for late.
    pub(crate) number: Option<[usize; 2]>,
    /// Its first choices.
    pub(crate) name: String,
    pub(crate) executions: u64,
}

/// A place where something is chosen.
#[derive(Debug)]
struct Place {
    /// As loom writes it.
    entry: Value,
    /// The choices that are in some part.
    known: BTreeSet<u8>,
}

/// All places in front of parts, by the choices that lead there; and the parts.
#[derive(Debug)]
struct Tree {
    /// A path as loom writes it, without its places.
    frame: Value,
    places: BTreeMap<Choices, Place>,
    parts: BTreeMap<Choices, Probed>,
}

/// What the first execution of a part has shown.
#[derive(Debug)]
struct Probed {
    /// The path behind it, if there is one in the part.
    next: Option<String>,
    /// Roughly how large the part is, for comparison.
    size: f64,
}

/// What loom calls a thread that is not to run next, or will, or has.
const STATES: [&str; 4] = ["Active", "Pending", "Visited", "Skip"];

/// The choice that a path makes at a place.
fn chosen(entry: &Value) -> u8 {
    let number =
        |value: &Value| value.as_u64().and_then(|number| u8::try_from(number).ok()).unwrap_or(u8::MAX);
    if let Some(threads) = entry["Schedule"]["threads"].as_array() {
        // None is active where all have ended.
        let active = threads.iter().position(|state| state == STATES[0]);
        return active.map_or(u8::MAX, |thread| thread as u8);
    }
    match entry["Spurious"]["spur"].as_bool() {
        Some(spurious) => u8::from(spurious),
        None => number(&entry["Load"]["pos"]),
    }
}

/// All choices at a place that were asked for.
fn asked(entry: &Value) -> BTreeSet<u8> {
    if let Some(threads) = entry["Schedule"]["threads"].as_array() {
        let asked = |state: &Value| state.as_str().is_some_and(|state| STATES[..3].contains(&state));
        let asked: BTreeSet<u8> =
            (0..).zip(threads).filter(|(_, state)| asked(state)).map(|(i, _)| i).collect();
        return if asked.is_empty() { [u8::MAX].into() } else { asked };
    }
    let (of, all) = match &entry["Load"] {
        Value::Null => (&entry["Spurious"], 2),
        load => (load, load["len"].as_u64().unwrap_or(1) as u8),
    };
    if of["exploring"] == true { (0..all).collect() } else { [chosen(entry)].into() }
}

/// The place as it is on the path of a part that chooses `choice` there, when `known` are in some part.
fn fixed(entry: &Value, choice: u8, known: &BTreeSet<u8>) -> Value {
    let mut entry = entry.clone();
    if let Some(Value::Array(threads)) = entry.pointer_mut("/Schedule/threads") {
        for (thread, state) in (0..).zip(threads) {
            if state.as_str().is_some_and(|state| STATES.contains(&state)) {
                let is = if thread == choice {
                    0
                } else if known.contains(&thread) {
                    2
                } else {
                    3
                };
                *state = STATES[is].into();
            }
        }
    } else if entry["Load"].is_object() {
        entry["Load"]["pos"] = choice.into();
        entry["Load"]["exploring"] = false.into();
    } else {
        entry["Spurious"]["spur"] = (choice == 1).into();
        entry["Spurious"]["exploring"] = false.into();
    }
    entry
}

/// The places of a path.
fn entries(path: &Value) -> &[Value] {
    path["branches"]["entries"].as_array().map_or(&[], Vec::as_slice)
}

/// Whether a path begins with these choices.
fn within(path: &Value, choices: &[u8]) -> bool {
    let entries = entries(path);
    entries.len() >= choices.len()
        && entries.iter().zip(choices).all(|(entry, choice)| chosen(entry) == *choice)
}

/// The path without any other choice in front of a part.
fn closed(mut path: Value, part: &[u8]) -> Value {
    if let Some(Value::Array(entries)) = path.pointer_mut("/branches/entries") {
        for entry in entries.iter_mut().take(part.len()) {
            for kind in ["/Schedule/exploring", "/Load/exploring", "/Spurious/exploring"] {
                if let Some(exploring) = entry.pointer_mut(kind) {
                    *exploring = false.into();
                }
            }
        }
    }
    path
}

/// Choices in few words: `0*31.2` is thread 0, or the newest value, 31 times, then 2.
fn named(choices: &[u8]) -> String {
    let runs = choices.chunk_by(|a, b| a == b);
    let named = |run: &[u8]| match run {
        [one] => one.to_string(),
        many => format!("{}*{}", many[0], many.len()),
    };
    runs.map(named).collect::<Vec<_>>().join(".")
}

impl Tree {
    /// The path with which a part begins.
    fn path(&self, part: &[u8]) -> Option<String> {
        if part.is_empty() {
            return None;
        }
        let place = |i: usize| {
            let place = &self.places[&part[..i]];
            fixed(&place.entry, part[i], &place.known)
        };
        let mut path = self.frame.clone();
        path["branches"]["entries"] = (0..part.len()).map(place).collect();
        Some(path.to_string())
    }

    /// What a path that left `part`, or is in it still, asks for in front of it and nobody knows yet.
    fn late(&mut self, part: &[u8], path: &Value) -> Vec<Choices> {
        let mut late = vec![];
        for (i, entry) in entries(path).iter().enumerate().take(part.len()) {
            let Some(place) = self.places.get_mut(&part[..i]) else { break };
            // The values of a load are all known at once.
            if entry["Schedule"].is_object() {
                let asked = asked(entry);
                let new: Vec<u8> =
                    asked.difference(&place.known).copied().filter(|new| *new != u8::MAX).collect();
                place.known.extend(&new);
                late.extend(new.into_iter().map(|choice| [&part[..i], &[choice]].concat()));
            }
            if chosen(entry) != part[i] {
                break;
            }
        }
        late
    }

    /// Makes several parts of one, after an execution of it; `path` is that of the next. The new ones.
    fn split(&mut self, part: &[u8], path: &Value) -> Vec<Choices> {
        let entries = entries(path);
        let at = (part.len()..entries.len()).find(|at| asked(&entries[*at]).len() > 1);
        let Some(at) = at else { return vec![] };
        self.parts.remove(part);
        let mut choices = part.to_vec();
        for entry in &entries[part.len()..at] {
            let choice = chosen(entry);
            self.places.insert(choices.clone(), Place { entry: entry.clone(), known: [choice].into() });
            choices.push(choice);
        }
        let known = asked(&entries[at]);
        let new = known.iter().map(|choice| [&choices[..], &[*choice]].concat()).collect();
        self.places.insert(choices, Place { entry: entries[at].clone(), known });
        new
    }

    /// Roughly how many executions a part has after the first one, when `path` is that of the next: each pre-emption that is left may
    /// come at each place where there is another choice.
    fn size(part: &[u8], path: &Value) -> f64 {
        let entries = entries(path);
        let others: usize = entries[part.len()..].iter().map(|entry| asked(entry).len() - 1).sum();
        let left = path["preemption_bound"].as_u64().map_or(MOST_LEFT, |bound| {
            let last = entries[..part.len()].iter().rev().find(|entry| entry["Schedule"].is_object());
            let spent = last.map_or(0, |entry| entry["Schedule"]["preemptions"].as_u64().unwrap_or(0));
            bound.saturating_sub(spent).min(MOST_LEFT)
        });
        (1.0 + others as f64).powi(1 + left as i32)
    }
}

impl<S: Clone + Send + Sync + fmt::Debug + 'static, F: Fn(S) + Send + Sync + 'static> Run<S, F> {
    /// Runs the parts of a share, of `wanted` parts or about as many. What is not to be split is one share's, and no other looks at it.
    ///
    /// # Panics
    /// There was no time for all.
    pub(crate) fn explore_share(&self, mut shard: Shard, wanted: usize) -> Result<Vec<Part>, Failure> {
        if wanted == 1 {
            if !shard.has_named(&format!("{} {}", self.model, self.index)) {
                return Ok(vec![]);
            }
            shard = Shard::WHOLE;
        }
        let begun = Instant::now();
        let mut tree = Tree { frame: Value::Null, places: BTreeMap::new(), parts: BTreeMap::new() };
        let mut new = vec![vec![]];
        loop {
            while let Some(part) = new.pop() {
                let next = self.explore_from(tree.path(&part), 1)?.1;
                let mut probed = Probed { next: None, size: 0.0 };
                if let Some(text) = next {
                    let mut path = self.parsed(&text);
                    new.extend(tree.late(&part, &path));
                    if within(&path, &part) {
                        probed = Probed { next: Some(text), size: Tree::size(&part, &path) };
                    }
                    path["branches"]["entries"] = Value::Null;
                    tree.frame = path;
                }
                tree.parts.insert(part, probed);
            }
            if tree.parts.len() >= wanted {
                break;
            }
            let several = tree.parts.iter().filter(|(_, probed)| probed.next.is_some());
            let largest = several.max_by(|(_, a), (_, b)| a.size.total_cmp(&b.size));
            let Some((part, Probed { next: Some(next), .. })) = largest else { break };
            let (part, path) = (part.clone(), self.parsed(next));
            new = tree.split(&part, &path);
        }
        let mut parts: Vec<_> = std::mem::take(&mut tree.parts).into_iter().collect();
        parts.sort_by(|(_, a), (_, b)| b.size.total_cmp(&a.size));
        let mut done = vec![];
        // The largest part of each model is another share's.
        let first = Shard::number(&self.model);
        let ours = |(number, _): &(usize, _)| shard.has(first + *number as u64);
        for (number, (part, _)) in parts.iter().enumerate().filter(ours) {
            let (mut part, mut from, mut number) =
                (part.clone(), tree.path(part), Some([number, parts.len()]));
            loop {
                let (executions, next) = self.explore_part(&part, from)?;
                done.push(Part { number: number.take(), name: named(&part), executions });
                assert!(
                    begun.elapsed() < LIMIT,
                    "{}: cut after {LIMIT:?}, not ended by exhaustion",
                    self.model
                );
                let Some(next) = next else { break };
                // It went on with what was asked for late, in front of the part.
                let path = self.parsed(&next);
                let entries = entries(&path);
                let at = (0..part.len()).find(|at| chosen(&entries[*at]) != part[*at]);
                let at = at.unwrap_or_else(|| panic!("{}: a part that ended goes on", self.model));
                let choice = chosen(&entries[at]);
                tree.late(&part, &path);
                part.truncate(at);
                part.push(choice);
                from = Some(next);
            }
        }
        Ok(done)
    }

    /// Runs one part to its end. How many executions it had; and the path of what comes behind it.
    fn explore_part(&self, part: &[u8], mut from: Option<String>) -> Result<(u64, Option<String>), Failure> {
        let (mut executions, mut stretch) = (0, LEAST_BETWEEN);
        loop {
            let (ran, next) = self.explore_from(from.clone(), stretch)?;
            match next {
                Some(next) if within(&self.parsed(&next), part) => {
                    (executions, from) = (executions + ran, Some(next));
                    stretch = (stretch * 2).min(MOST_BETWEEN);
                }
                // It ended here, or before it went on with what was asked for late. Where nothing in front can be asked for, it ends.
                next => {
                    let closed = from.as_ref().map(|from| closed(self.parsed(from), part).to_string());
                    let own = self.explore_from(closed, u64::MAX >> 1)?.0;
                    let next = if own == ran { next } else { self.explore_from(from, own)?.1 };
                    return Ok((executions + own, next));
                }
            }
        }
    }

    fn parsed(&self, path: &str) -> Value {
        serde_json::from_str(path).unwrap_or_else(|error| panic!("{}: loom's path: {error}", self.model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Bound;
    use crate::{Arc, AtomicUsize, Mutex, Ordering::Relaxed, thread};

    /// Three threads, two atomics and a lock: 23, 166 and 746 executions within 1, 2 and 3 pre-emptions.
    fn three(seed: usize) {
        let shared = Arc::new((AtomicUsize::new(seed), AtomicUsize::new(0), Mutex::new(0)));
        let start = |deeds: fn(&(AtomicUsize, AtomicUsize, Mutex<usize>))| {
            let shared = shared.clone();
            thread::spawn(move || deeds(&shared))
        };
        let first = start(|(a, b, _)| {
            b.store(a.load(Relaxed), Relaxed);
        });
        let second = start(|(a, _, lock)| {
            let mut sum = lock.lock();
            *sum += a.fetch_add(1, Relaxed);
        });
        if shared.1.load(Relaxed) == seed {
            *shared.2.lock() += 1;
        }
        first.join().unwrap();
        second.join().unwrap();
    }

    /// Two hashes said whose such a script is, and it was run only where they agreed.
    #[test]
    fn a_script_that_is_not_split_is_run_by_one_share() {
        for index in 0..20 {
            let f = std::sync::Arc::new(three);
            let run = Run { model: "three".to_owned(), bound: Bound::Preemptions(1), index, script: 5, f };
            let shares = [0, 1, 2].map(|share| run.explore_share(format!("{share}/3").parse().unwrap(), 1));
            let parts: Vec<Part> =
                shares.into_iter().flat_map(|share| share.unwrap_or_else(|_| panic!("it passes"))).collect();
            assert_eq!(parts.len(), 1, "script {index}: {parts:?}");
            assert_eq!((parts[0].number, parts[0].executions), (Some([0, 1]), 23));
        }
    }

    #[test]
    fn parts_add_up_to_the_whole_however_many_there_are() {
        let mut late = 0;
        for bound in [1, 2, 3].map(Bound::Preemptions) {
            let run =
                Run { model: "three".to_owned(), bound, index: 0, script: 5, f: std::sync::Arc::new(three) };
            let Ok(whole) = run.explore() else { panic!("it passes") };
            for (wanted, count) in [(1, 1), (2, 1), (5, 2), (40, 3)] {
                let mut parts = BTreeMap::new();
                for index in 0..count {
                    let shard = format!("{index}/{count}").parse().unwrap();
                    let Ok(share) = run.explore_share(shard, wanted) else { panic!("it passes") };
                    for Part { number, name, executions } in share {
                        late += usize::from(number.is_none());
                        assert_eq!(*parts.entry(name).or_insert(executions), executions);
                    }
                }
                assert!(parts.len() >= wanted.min(whole as usize / 10), "{} parts of {wanted}", parts.len());
                assert_eq!(parts.values().sum::<u64>(), whole, "{bound:?}, {wanted} parts, {count} shares");
            }
        }
        println!("{late} parts were asked for late");
        assert!(late > 0, "no part was asked for late: that is not tried here");
    }
}
