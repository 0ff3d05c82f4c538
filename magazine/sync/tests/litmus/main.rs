//! Compares two sets of outcomes of litmus tests: the outcomes that loom explores, and the outcomes that the memory
//! model RC11 allows.
//!
//! The file `shapes.txt` contains the litmus tests and their published outcomes. The published outcomes are used to
//! check the RC11 enumerator in `rc11.rs`. The file `outcomes.txt` contains the outcomes that loom explores, with and
//! without the repairs of `uslab_sync`. The file `limits.txt` explains each difference from RC11. The tests check that
//! all three files agree with the actual outcomes. `LITMUS_WRITE=1` rewrites `outcomes.txt`.
#![allow(clippy::disallowed_methods, reason = "uslab_magazine is not a dependency here")]
#![allow(missing_docs, unreachable_pub, reason = "a test")]

mod program;
mod rc11;
#[cfg(loom)]
mod run;

#[cfg(loom)]
use program::RACE;
use program::Shape;
use rc11::{Model, RC11, allowed};
use std::collections::BTreeSet;

fn all_shapes() -> Vec<Shape> {
    Shape::parse_all(include_str!("shapes.txt"))
}

/// Returns `true` if `outcome` contains all values of the published outcome `published`.
fn is_published_outcome(outcome: &str, published: &[String]) -> bool {
    let parts: Vec<&str> = outcome.split(' ').collect();
    published.iter().all(|wanted| parts.contains(&wanted.as_str()))
}

/// Returns the published claims that contradict the memory model `model`.
fn disagreements(shapes: &[Shape], model: Model) -> Vec<String> {
    let mut wrong = Vec::new();
    for shape in shapes {
        let found = allowed(shape, model).outcomes;
        let says = |outcome: &[String]| found.iter().any(|found| is_published_outcome(found, outcome));
        let contradicting =
            shape.published.iter().filter(|published| says(&published.outcome) != published.allowed);
        wrong.extend(contradicting.map(|published| format!("{}: {published:?}: {found:?}", shape.name)));
    }
    wrong
}

#[test]
fn litmus_enumerator_agrees_with_published_outcomes() {
    let shapes = all_shapes();
    let wrong = disagreements(&shapes, RC11);
    assert!(wrong.is_empty(), "{wrong:#?}");
    let published: Vec<_> = shapes.iter().flat_map(|shape| &shape.published).collect();
    println!("RC11 | {} shapes | {} published outcomes agree", shapes.len(), published.len());
    assert!(shapes.len() >= 100 && published.len() >= 100);
    // Each published outcome is from a source that the head of `shapes.txt` names.
    let head = include_str!("shapes.txt").lines().take_while(|line| line.starts_with('#'));
    let sources: Vec<&str> =
        head.filter_map(|line| line[2..].split_once("  ")).map(|(name, _)| name).collect();
    for published in published {
        assert!(published.source.split("; ").all(|source| sources.contains(&source)), "{published:?}");
    }
}

#[test]
fn dropping_any_litmus_axiom_contradicts_published_outcomes() {
    let shapes = all_shapes();
    for model in [
        Model { own_stores_continue: false, ..RC11 },
        Model { sc_accesses: false, ..RC11 },
        Model { coherence: false, ..RC11 },
        Model { atomicity: false, ..RC11 },
        Model { sc: false, ..RC11 },
        Model { no_thin_air: false, ..RC11 },
    ] {
        assert!(!disagreements(&shapes, model).is_empty(), "{model:?} agrees with all published outcomes");
    }
}

/// Returns the name and the explanation of each known limitation of loom, from `limits.txt`.
fn limits() -> Vec<(&'static str, String)> {
    let mut limits: Vec<(&str, String)> = Vec::new();
    for line in include_str!("limits.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix("  "), limits.last_mut()) {
            (Some(words), Some((_, text))) => *text += words,
            _ => limits.push((line, String::new())),
        }
    }
    limits
}

#[test]
fn each_known_loom_limit_explains_a_litmus_test() {
    let limits = limits();
    let shapes = all_shapes();
    let used: BTreeSet<&str> = shapes.iter().flat_map(|shape| &shape.limits).map(String::as_str).collect();
    let known: BTreeSet<&str> = limits.iter().map(|(name, _)| *name).collect();
    assert_eq!(used, known);
    assert!(limits.iter().all(|(_, text)| !text.is_empty()));
}

#[cfg(loom)]
mod compared {
    use super::*;
    use run::{ExploredOutcomes, Facade, Stock, explore};
    use std::fmt::Write as _;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use uslab_sync::check::record;

    /// Returns RC11 with one limitation of loom, or `None` if a change of an axiom cannot express the limitation.
    fn model_with_limit(limit: &str) -> Option<Model> {
        match limit {
            "sc-accesses" => Some(Model { sc_accesses: false, ..RC11 }),
            "own-store-sequence" => Some(Model { own_stores_continue: false, ..RC11 }),
            _ => None,
        }
    }

    /// Runs `f` once for each litmus test, on two threads.
    fn run_on_two_threads<T: Send>(shapes: &[Shape], f: impl Fn(&Shape) -> T + Sync) -> Vec<T> {
        let next = AtomicUsize::new(0);
        let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
            let work = || {
                let ours =
                    std::iter::from_fn(|| shapes.get(next.load(Relaxed)).map(|_| next.fetch_add(1, Relaxed)));
                ours.filter_map(|at| Some((at, f(shapes.get(at)?)))).collect::<Vec<_>>()
            };
            let workers = [scope.spawn(work), scope.spawn(work)];
            workers
                .into_iter()
                .flat_map(|worker| worker.join().expect("the shape must have an assertion"))
                .collect()
        });
        done.sort_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// Describes the difference between the outcomes that loom explored and the outcomes that RC11 allows.
    fn difference(allowed: &BTreeSet<String>, explored: &ExploredOutcomes) -> String {
        if let Some(failure) = &explored.failure {
            return format!("fails: {failure}");
        }
        let list = |name: &str, of: &BTreeSet<String>, without: &BTreeSet<String>| {
            let outcomes: Vec<&str> = of.difference(without).map(String::as_str).collect();
            if outcomes.is_empty() { String::new() } else { format!("{name} {}", outcomes.join(", ")) }
        };
        // loom stops its search at a data race, so further outcomes stay unknown.
        let has_race = explored.outcomes.contains(RACE);
        let misses = if has_race { String::new() } else { list("misses", allowed, &explored.outcomes) };
        let parts = [misses, list("adds", &explored.outcomes, allowed)];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if parts.is_empty() { "equal".to_owned() } else { parts.join("; ") }
    }

    const TABLE_HEADER: &str = "\
# For each shape the outcomes that RC11 allows, and how those differ that loom reaches: `facade`, as uslab-sync repairs it, and
# `stock`, loom 0.7.2 as it is. Made by this test: `LITMUS_WRITE=1` writes it anew. `bound` is that of pre-emptions, behind it
# are the executions of both.
";

    #[test]
    fn loom_reaches_the_documented_litmus_outcomes() {
        let start = std::time::Instant::now();
        // Litmus tests with a data race panic, as expected.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let shapes = all_shapes();
        let results = run_on_two_threads(&shapes, |shape| {
            (allowed(shape, RC11).outcomes, explore::<Facade>(shape), explore::<Stock>(shape))
        });
        std::panic::set_hook(hook);
        let (mut table, mut wrong, mut executions) = (TABLE_HEADER.to_owned(), Vec::new(), 0);
        let (mut equal, mut misses, mut misses_of_stock) = (0, 0, 0);
        for (shape, (allowed_, facade, stock)) in shapes.iter().zip(&results) {
            let (differs, stock_differs) = (difference(allowed_, facade), difference(allowed_, stock));
            executions += facade.executions;
            equal += u32::from(differs == "equal");
            misses += u32::from(differs.contains("misses"));
            misses_of_stock += u32::from(stock_differs.contains("misses"));
            if (differs == "equal") != shape.limits.is_empty() {
                wrong.push(format!("{}: {differs}, but its limits are {:?}", shape.name, shape.limits));
            }
            let bound = run::bound(shape).map_or("none".to_owned(), |bound| bound.to_string());
            let outcomes: Vec<&str> = allowed_.iter().map(String::as_str).collect();
            _ = writeln!(
                table,
                "\n{}\n  rc11   {}\n  facade {differs}\n  stock  {stock_differs}\n  bound  {bound}, {} and {} executions",
                shape.name,
                outcomes.join(", "),
                facade.executions,
                stock.executions,
            );
            if let [limit] = &shape.limits[..]
                && let Some(model) = model_with_limit(limit)
                && allowed(shape, model).outcomes != facade.outcomes
            {
                wrong.push(format!("{}: {limit} does not explain {differs}", shape.name));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        if std::env::var_os("LITMUS_WRITE").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/litmus/outcomes.txt");
            std::fs::write(path, &table).unwrap();
        } else {
            let committed = include_str!("outcomes.txt");
            let pair = table.lines().zip(committed.lines()).find(|(now, then)| now != then);
            assert!(table == committed, "LITMUS_WRITE=1 writes outcomes.txt anew; it differs: {pair:#?}");
        }
        println!(
            "LITMUS {} shapes | facade: {equal} equal, {misses} miss outcomes | loom: {misses_of_stock} miss outcomes",
            shapes.len()
        );
        // The README quotes the printed numbers.
        let words = include_str!("../../README.md").split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            format!("{} litmus shapes", shapes.len()),
            format!("{equal} are equal with the facade"),
            format!("{misses} miss outcomes"),
            format!("By itself loom misses outcomes of {misses_of_stock}"),
        ] {
            assert!(words.contains(&said), "README.md must contain {said:?}");
        }
        let name = "K1: litmus shapes compared with RC11";
        record(name, 4, "2 and 3 and none", shapes.len(), executions, start.elapsed());
    }

    /// Without the repairs of `uslab_sync`, loom misses some outcomes of these litmus tests.
    #[test]
    fn planted() {
        let bug = "a store skips the shadow copy";
        let names = ["RMW+lost-update", "CAS+load-loop", "CAS+aba"];
        let all_lost = std::thread::spawn(move || {
            uslab_sync::check::plant(bug);
            let shapes = all_shapes();
            let lost = |name: &&str| {
                let shape = shapes.iter().find(|shape| shape.name == *name).expect("a shape");
                difference(&allowed(shape, RC11).outcomes, &explore::<Facade>(shape)).contains("misses")
            };
            names.iter().all(lost)
        });
        assert!(all_lost.join().unwrap(), "{bug}: each of {names:?} must miss an outcome");
        println!("CAUGHT {bug} | property K1 | execution 1 | misses outcomes");
    }

    /// Tests the outcomes that loom misses even with `loom-0.7.2.patch`. The script `.ci/loom` runs this test.
    #[test]
    #[ignore = "for a patched loom"]
    fn patched() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let shapes = all_shapes();
        let results = run_on_two_threads(&shapes, |shape| {
            let explored = explore::<Stock>(shape);
            (difference(&allowed(shape, RC11).outcomes, &explored), explored.executions)
        });
        std::panic::set_hook(hook);
        let mut failures = Vec::new();
        for (shape, (differs, _)) in shapes.iter().zip(&results) {
            assert!(!differs.starts_with("fails"), "{}: {differs}", shape.name);
            if differs.contains("misses") {
                failures.push(shape.name.as_str());
            }
        }
        let executions: u64 = results.iter().map(|(_, executions)| executions).sum();
        println!(
            "LITMUS patched loom: {} of {} miss outcomes, {executions} executions",
            failures.len(),
            shapes.len()
        );
        // Two limits of the patched loom remain: spurious failures, and SeqCst loads of overwritten values.
        let expected = [
            "SB+both-read-by-rmw",
            "RMW+overwritten",
            "WEAK+one",
            "WEAK+two",
            "WEAK+retry",
            "SC+stale-load",
            "SC+fences-do-not-synchronise",
            "OLD+eight",
        ];
        assert_eq!(failures, expected);
    }
}
