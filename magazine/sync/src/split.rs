//! Splits the executions of a loom model into parts that can run on different machines. Together, the parts run each
//! execution of the model exactly once.
//!
//! **The tree.** Loom explores a tree of executions. An execution is a *path* in the tree, a sequence of choices: which
//! thread runs next, and which value a load reads. Loom searches the tree depth-first (DPOR). While it runs, an
//! execution may reveal that another choice at an earlier place could have a different result. An execution *requests*
//! a choice if it reveals that the choice could have a different result. The whole tree is therefore not known before
//! the search ends. However, the subtree below a place depends only on the choices above this place.
//!
//! **The parts.** A part is the subtree below a given sequence of first choices. At first, the whole tree is the only
//! part. The first execution of a part requests some choices, and their number gives an estimate of the part's size. As
//! long as there are too few parts, the largest part is split at its first place with several requested choices. Each
//! requested choice becomes a new part. Every shard computes the same division into parts. Each of `n` shards runs
//! every `n`-th part of this division, beginning with the largest part.
//!
//! **Running one part.** Loom starts from a path that consists of the part's first choices. On this path, choices that
//! belong to other parts are marked as visited, so that loom skips them.
//!
//! **Late requests.** An execution in a part may request a choice that is above the part and belongs to no part yet.
//! The shard that detects a late request runs the requested choice as a new part without a number. Several shards may
//! detect the same late request. All shards that detect the same late request report the same name for the new part, so
//! that the join counts the part only once. The joined counts are therefore the same as for a model that is not split.

use crate::check::MODEL_TIME_LIMIT;
use crate::replay::{Failure, Run};
use crate::shard::Shard;
use core::fmt;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Minimum number of executions between two checks for the end of a part. The number is small, because the executions
/// after the last check run twice.
const MIN_CHECK_INTERVAL: u64 = 16;
const MAX_CHECK_INTERVAL: u64 = 512;

/// Maximum number of remaining pre-emptions that the estimate of a part's size takes into account.
const MAX_REMAINING_PREEMPTIONS: u64 = 4;

/// A path as a sequence of choices, from the first place on.
type Choices = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The number of this part and the number of all parts; `None` for a part that comes from a late request.
    pub(crate) number: Option<[usize; 2]>,
    pub(crate) name: String,
    pub(crate) executions: u64,
}

/// A place in the tree, at which an execution makes one of several choices.
#[derive(Debug)]
struct ChoicePoint {
    /// The place, in loom's checkpoint format.
    entry: Value,
    /// The choices at this place that already belong to a part.
    known: BTreeSet<u8>,
}

/// All parts, and all places above them. Parts and places are indexed by the choices that lead to them.
#[derive(Debug)]
struct Tree {
    /// The fields of a path in loom's checkpoint format, except its places.
    frame: Value,
    places: BTreeMap<Choices, ChoicePoint>,
    parts: BTreeMap<Choices, ProbedPart>,
}

/// What the first execution of a part has shown.
#[derive(Debug)]
struct ProbedPart {
    /// The path of the part's second execution; `None` if the part has only one execution.
    next: Option<String>,
    /// An estimate of the part's size, which is only compared with other estimates.
    size: f64,
}

/// Loom's names of the states of a thread at a place: it runs next, it was requested, it was already explored, or it is
/// skipped.
const LOOM_THREAD_STATES: [&str; 4] = ["Active", "Pending", "Visited", "Skip"];

/// Returns the choice that an execution makes at a place of its path.
fn choice_at(entry: &Value) -> u8 {
    let number =
        |value: &Value| value.as_u64().and_then(|number| u8::try_from(number).ok()).unwrap_or(u8::MAX);
    if let Some(threads) = entry["Schedule"]["threads"].as_array() {
        // No thread is active after all threads have ended.
        let active = threads.iter().position(|state| state == LOOM_THREAD_STATES[0]);
        return active.map_or(u8::MAX, |thread| thread as u8);
    }
    match entry["Spurious"]["spur"].as_bool() {
        Some(spurious) => u8::from(spurious),
        None => number(&entry["Load"]["pos"]),
    }
}

fn requested_choices(entry: &Value) -> BTreeSet<u8> {
    if let Some(threads) = entry["Schedule"]["threads"].as_array() {
        let asked =
            |state: &Value| state.as_str().is_some_and(|state| LOOM_THREAD_STATES[..3].contains(&state));
        let asked: BTreeSet<u8> =
            (0..).zip(threads).filter(|(_, state)| asked(state)).map(|(i, _)| i).collect();
        return if asked.is_empty() { [u8::MAX].into() } else { asked };
    }
    let (of, all) = match &entry["Load"] {
        Value::Null => (&entry["Spurious"], 2),
        load => (load, load["len"].as_u64().unwrap_or(1) as u8),
    };
    if of["exploring"] == true { (0..all).collect() } else { [choice_at(entry)].into() }
}

/// Returns a place for the start path of a part, at which the execution makes `choice` and explores no other choice.
/// Choices in `known` already belong to a part.
fn entry_with_fixed_choice(entry: &Value, choice: u8, known: &BTreeSet<u8>) -> Value {
    let mut entry = entry.clone();
    if let Some(Value::Array(threads)) = entry.pointer_mut("/Schedule/threads") {
        for (thread, state) in (0..).zip(threads) {
            if state.as_str().is_some_and(|state| LOOM_THREAD_STATES.contains(&state)) {
                let is = if thread == choice {
                    0
                } else if known.contains(&thread) {
                    2
                } else {
                    3
                };
                *state = LOOM_THREAD_STATES[is].into();
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

fn entries(path: &Value) -> &[Value] {
    path["branches"]["entries"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns `true` if the execution path `path` begins with the choices `choices`.
fn path_begins_with(path: &Value, choices: &[u8]) -> bool {
    let entries = entries(path);
    entries.len() >= choices.len()
        && entries.iter().zip(choices).all(|(entry, choice)| choice_at(entry) == *choice)
}

/// Returns the path with all places above the part marked as explored.
fn path_without_unexplored(mut path: Value, part: &[u8]) -> Value {
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

/// Returns choices in a compact form: `0*31.2` means that choice 0 is made 31 times, and then choice 2.
fn compact_choices(choices: &[u8]) -> String {
    let runs = choices.chunk_by(|a, b| a == b);
    let named = |run: &[u8]| match run {
        [one] => one.to_string(),
        many => format!("{}*{}", many[0], many.len()),
    };
    runs.map(named).collect::<Vec<_>>().join(".")
}

impl Tree {
    fn path(&self, part: &[u8]) -> Option<String> {
        if part.is_empty() {
            return None;
        }
        let place = |i: usize| {
            let place = &self.places[&part[..i]];
            entry_with_fixed_choice(&place.entry, part[i], &place.known)
        };
        let mut path = self.frame.clone();
        path["branches"]["entries"] = (0..part.len()).map(place).collect();
        Some(path.to_string())
    }

    /// Returns the late requests of an execution: the requested choices above `part` that belong to no part yet.
    fn parts_from_late_requests(&mut self, part: &[u8], path: &Value) -> Vec<Choices> {
        let mut late = vec![];
        for (i, entry) in entries(path).iter().enumerate().take(part.len()) {
            let Some(place) = self.places.get_mut(&part[..i]) else { break };
            // loom knows all values of a load from the start.
            if entry["Schedule"].is_object() {
                let asked = requested_choices(entry);
                let new: Vec<u8> =
                    asked.difference(&place.known).copied().filter(|new| *new != u8::MAX).collect();
                place.known.extend(&new);
                late.extend(new.into_iter().map(|choice| [&part[..i], &[choice]].concat()));
            }
            if choice_at(entry) != part[i] {
                break;
            }
        }
        late
    }

    /// Splits a part whose first execution has run, and returns the new parts. The argument `path` is the path of the
    /// part's next execution.
    fn split(&mut self, part: &[u8], path: &Value) -> Vec<Choices> {
        let entries = entries(path);
        let at = (part.len()..entries.len()).find(|at| requested_choices(&entries[*at]).len() > 1);
        let Some(at) = at else { return vec![] };
        self.parts.remove(part);
        let mut choices = part.to_vec();
        for entry in &entries[part.len()..at] {
            let choice = choice_at(entry);
            self.places.insert(choices.clone(), ChoicePoint { entry: entry.clone(), known: [choice].into() });
            choices.push(choice);
        }
        let known = requested_choices(&entries[at]);
        let new = known.iter().map(|choice| [&choices[..], &[*choice]].concat()).collect();
        self.places.insert(choices, ChoicePoint { entry: entries[at].clone(), known });
        new
    }

    /// Estimates the number of executions of a part whose first execution has run. The argument `path` is the path of
    /// the part's next execution. The estimate assumes that each remaining pre-emption may happen at every place with
    /// another choice.
    fn estimated_size(part: &[u8], path: &Value) -> f64 {
        let entries = entries(path);
        let others: usize =
            entries[part.len()..].iter().map(|entry| requested_choices(entry).len() - 1).sum();
        let left = path["preemption_bound"].as_u64().map_or(MAX_REMAINING_PREEMPTIONS, |bound| {
            let last = entries[..part.len()].iter().rev().find(|entry| entry["Schedule"].is_object());
            let spent = last.map_or(0, |entry| entry["Schedule"]["preemptions"].as_u64().unwrap_or(0));
            bound.saturating_sub(spent).min(MAX_REMAINING_PREEMPTIONS)
        });
        (1.0 + others as f64).powi(1 + left as i32)
    }
}

impl<S: Clone + Send + Sync + fmt::Debug + 'static, F: Fn(S) + Send + Sync + 'static> Run<S, F> {
    /// Splits the script's executions into about `wanted` parts, and runs the parts that belong to `shard`. If `wanted`
    /// is 1, the model is not split, and a single shard runs it.
    ///
    /// # Panics
    /// Panics if the run reaches the time limit.
    pub(crate) fn explore_share(&self, mut shard: Shard, wanted: usize) -> Result<Vec<Part>, Failure> {
        if wanted == 1 {
            if !shard.contains_item(&format!("{} {}", self.model, self.index)) {
                return Ok(vec![]);
            }
            shard = Shard::WHOLE_SHARD;
        }
        let start = Instant::now();
        let mut tree = Tree { frame: Value::Null, places: BTreeMap::new(), parts: BTreeMap::new() };
        let mut new = vec![vec![]];
        loop {
            while let Some(part) = new.pop() {
                let next = self.explore_from_path(tree.path(&part), 1)?.1;
                let mut probed = ProbedPart { next: None, size: 0.0 };
                if let Some(text) = next {
                    let mut path = self.parse(&text);
                    new.extend(tree.parts_from_late_requests(&part, &path));
                    if path_begins_with(&path, &part) {
                        probed = ProbedPart { next: Some(text), size: Tree::estimated_size(&part, &path) };
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
            let Some((part, ProbedPart { next: Some(next), .. })) = largest else { break };
            let (part, path) = (part.clone(), self.parse(next));
            new = tree.split(&part, &path);
        }
        let mut parts: Vec<_> = std::mem::take(&mut tree.parts).into_iter().collect();
        parts.sort_by(|(_, a), (_, b)| b.size.total_cmp(&a.size));
        let mut done = vec![];
        // The name of the model selects the first shard, so that no shard gets the largest part of every model.
        let first = Shard::name_hash(&self.model);
        let ours = |(number, _): &(usize, _)| shard.has(first + *number as u64);
        for (number, (part, _)) in parts.iter().enumerate().filter(ours) {
            let (mut part, mut from, mut number) =
                (part.clone(), tree.path(part), Some([number, parts.len()]));
            loop {
                let (executions, next) = self.explore_part(&part, from)?;
                done.push(Part { number: number.take(), name: compact_choices(&part), executions });
                assert!(
                    start.elapsed() < MODEL_TIME_LIMIT,
                    "{}: stopped after {MODEL_TIME_LIMIT:?}, before all executions were explored",
                    self.model
                );
                let Some(next) = next else { break };
                // loom continued with a late request, above the part.
                let path = self.parse(&next);
                let entries = entries(&path);
                let at = (0..part.len()).find(|at| choice_at(&entries[*at]) != part[*at]);
                let at = at.unwrap_or_else(|| panic!("{}: loom continues a part that ended", self.model));
                let choice = choice_at(&entries[at]);
                tree.parts_from_late_requests(&part, &path);
                part.truncate(at);
                part.push(choice);
                from = Some(next);
            }
        }
        Ok(done)
    }

    /// Runs all executions of one part. Returns the number of executions, and the path of the execution that follows
    /// the part, if any.
    fn explore_part(&self, part: &[u8], mut from: Option<String>) -> Result<(u64, Option<String>), Failure> {
        let (mut executions, mut stretch) = (0, MIN_CHECK_INTERVAL);
        loop {
            let (ran, next) = self.explore_from_path(from.clone(), stretch)?;
            match next {
                Some(next) if path_begins_with(&self.parse(&next), part) => {
                    (executions, from) = (executions + ran, Some(next));
                    stretch = (stretch * 2).min(MAX_CHECK_INTERVAL);
                }
                // The part ended, or loom continued with a late request. The last executions run again without requests
                // above the part, so that loom stops at the part's end.
                next => {
                    let closed =
                        from.as_ref().map(|from| path_without_unexplored(self.parse(from), part).to_string());
                    let own = self.explore_from_path(closed, u64::MAX >> 1)?.0;
                    let next = if own == ran { next } else { self.explore_from_path(from, own)?.1 };
                    return Ok((executions + own, next));
                }
            }
        }
    }

    fn parse(&self, path: &str) -> Value {
        serde_json::from_str(path).unwrap_or_else(|error| panic!("{}: loom's path: {error}", self.model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Bound;
    use crate::{Arc, AtomicUsize, Mutex, Ordering::Relaxed, thread};

    /// A model of three threads with two atomics and a lock. With at most 1, 2 and 3 pre-emptions, the model has 23,
    /// 166 and 746 executions.
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

    /// Regression: a script that was not split ran only if two different hashes selected the same shard.
    #[test]
    fn unsplit_script_runs_in_one_shard() {
        for index in 0..20 {
            let f = std::sync::Arc::new(three);
            let run = Run { model: "three".to_owned(), bound: Bound::Preemptions(1), index, script: 5, f };
            let shares = [0, 1, 2].map(|share| run.explore_share(format!("{share}/3").parse().unwrap(), 1));
            let parts: Vec<Part> = shares
                .into_iter()
                .flat_map(|share| share.unwrap_or_else(|_| panic!("no execution may fail")))
                .collect();
            assert_eq!(parts.len(), 1, "script {index}: {parts:?}");
            assert_eq!((parts[0].number, parts[0].executions), (Some([0, 1]), 23));
        }
    }

    #[test]
    fn executions_of_all_parts_add_up_to_the_unsplit_model() {
        let mut late = 0;
        for bound in [1, 2, 3].map(Bound::Preemptions) {
            let run =
                Run { model: "three".to_owned(), bound, index: 0, script: 5, f: std::sync::Arc::new(three) };
            let Ok(whole) = run.explore() else { panic!("no execution may fail") };
            for (wanted, count) in [(1, 1), (2, 1), (5, 2), (40, 3)] {
                let mut parts = BTreeMap::new();
                for index in 0..count {
                    let shard = format!("{index}/{count}").parse().unwrap();
                    let Ok(share) = run.explore_share(shard, wanted) else { panic!("no execution may fail") };
                    for Part { number, name, executions } in share {
                        late += usize::from(number.is_none());
                        assert_eq!(*parts.entry(name).or_insert(executions), executions);
                    }
                }
                assert!(parts.len() >= wanted.min(whole as usize / 10), "{} parts of {wanted}", parts.len());
                assert_eq!(parts.values().sum::<u64>(), whole, "{bound:?}, {wanted} parts, {count} shares");
            }
        }
        println!("{late} parts come from late requests");
        assert!(late > 0, "no part comes from a late request, so that case was not tested");
    }
}
