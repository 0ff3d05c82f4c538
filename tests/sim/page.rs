//! Tests `uslab replay --html`. The page's engine works only on addresses; in WebAssembly and in native code, it must
//! agree with the replay about memory. After a seek to an operation, the web page must show the same state as after a
//! run to this operation.

use crate::all_traces::trace_folders_in;
use crate::cli::refused;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use uslab_engine::designs::{NoPolicy, Spec, Visitor, all};
use uslab_engine::policy::Level;
use uslab_engine::view::SeenCache;
use uslab_engine::{Design, Engine, Machine, Shipping, Stream, View, hash};
use uslab_sim::output::Progress;
use uslab_sim::replay;
use uslab_tests::workspace;

fn bundled() -> (uslab_sim::report::Report, Stream) {
    let (report, stream) = replay::run_to_stream(None, &replay::Options::default(), &Progress::new())
        .expect("the bundled trace must be readable");
    (report, Stream::read(&stream.write()).expect("the written page must be readable"))
}

fn uslab(arguments: &[&str]) -> Output {
    Command::new(uslab_tests::uslab()).args(arguments).stdin(Stdio::null()).output().expect("uslab must run")
}

/// Returns the view of the replay in the JSON form that a page receives.
fn text(view: &View) -> String {
    serde_json::to_string(view).expect("the report must be serialisable")
}

#[test]
fn web_page_engine_counts_agree_with_the_replay() {
    let (report, stream) = bundled();
    let machine = Machine::new(&stream).unwrap();
    let mut engine = Engine::new(Shipping::on(&machine), &stream);
    for tenth in 1..=10 {
        engine.run(stream.operations * tenth / 10).unwrap();
        engine.check().unwrap();
    }
    assert_eq!(engine.failed(), 0);
    let view = engine.view(Vec::new(), &[]);
    assert_eq!(view.operation, stream.operations);
    let report = serde_json::to_value(&report).unwrap();
    let rows = report["caches"].as_array().expect("the report must have caches");
    let mut compared = 0;
    for cache in view.caches.iter().filter(|cache| cache.counts.size > 0) {
        let row = rows
            .iter()
            .find(|row| row["name"] == cache.name.as_str())
            .unwrap_or_else(|| panic!("the report must have {}", cache.name));
        let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key} of {row}"));
        // Events that the trace does not have are inferred for the stream only: allocations in bulk, and frees of
        // vectors of accounted slabs.
        if ["maple_node", "?key_alloc:256"].contains(&&*cache.name) {
            assert_ne!(cache.counts.used, number("used"), "{}", cache.name);
            continue;
        }
        assert_eq!(cache.counts.used, number("used"), "{}", cache.name);
        compared += 1;
    }
    assert!(compared > 50, "{compared} caches");
}

#[test]
fn slab_view_shows_the_state_of_each_object() {
    let (_, stream) = bundled();
    let machine = Machine::new(&stream).unwrap();
    let mut engine = Engine::new(Shipping::on(&machine), &stream);
    let steps = engine.run_with_steps(stream.operations / 3).unwrap();
    let shown: Vec<u32> = (0..stream.caches.len() as u32).collect();
    let view = engine.view(steps, &shown);
    assert!(view.shown.len() > 50 && !view.steps.is_empty());
    for shown in &view.shown {
        let cache = &view.caches[shown.cache as usize];
        let (name, counts) = (&cache.name, &cache.counts);
        let objects = || shown.slabs.iter().flat_map(|slab| slab.objects.bytes());
        let count = |which: fn(&u8) -> bool| objects().filter(which).count() as u64;
        assert_eq!(count(|b| *b == b'u'), counts.used, "{name}");
        assert_eq!(count(|b| *b == b'.'), counts.free_in_slabs, "{name}");
        assert_eq!(count(|b| *b == b'd'), counts.in_depot, "{name}");
        assert_eq!(count(|b| !matches!(b, b'u' | b'.' | b'd')), counts.in_magazines, "{name}");
        let held =
            |levels: &[Vec<Level>]| levels.iter().flatten().map(|own| u64::from(own.objects)).sum::<u64>();
        assert_eq!(held(&shown.cpus), counts.in_magazines, "{name}");
        assert_eq!(held(&shown.shared), counts.in_depot, "{name}");
    }
    let pages = &view.pages;
    let sum = pages.slab + pages.large + pages.blocks + pages.per_cpu + pages.free + pages.uncommitted;
    assert_eq!(sum, pages.managed);
}

/// The test runs the engine of `sim/web` in Node.js, with forward steps and with random seeks.
#[test]
fn webassembly_snapshots_equal_native_snapshots() {
    if !has_nodejs() {
        return;
    }
    let (_, stream) = bundled();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("stream"), stream.write()).unwrap();
    // The operations are the first and the last, both sides of a checkpoint, and 20 random ones.
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % stream.operations
    };
    let mut moments = vec![0, 1, stream.operations, 30_000, 30_001, 29_999];
    moments.extend((0..20).map(|_| random()));
    let shown: Vec<u32> = (0..12).collect();

    let machine = Machine::new(&stream).unwrap();
    let mut engine = Engine::new(Shipping::on(&machine), &stream);
    let mut ascending = moments.clone();
    ascending.sort_unstable();
    let mut expected = std::collections::BTreeMap::new();
    for at in ascending {
        let steps = engine.run_with_steps(at).unwrap();
        expected
            .entry(at)
            .or_insert_with(|| format!("{:016x}", hash(text(&engine.view(steps, &shown)).as_bytes())));
    }
    let wanted: Vec<_> = moments.iter().map(|at| serde_json::json!([at, expected[at]])).collect();
    // The engine has memory for all checkpoints, and then for a quarter of them.
    for (most, checkpoints) in [(1 << 30, 44), (36 << 20, 11)] {
        let wanted = serde_json::json!({
            "design": "uslab", "shown": shown, "every": 15_000, "most": most, "moments": wanted,
        });
        let said = run_check_script_in_node(&folder.path().join("stream"), &wanted);
        assert_eq!(said.trim_end(), format!("26 moments, {checkpoints} checkpoints"));
    }
}

/// Returns the output of `sim/web/check.js` after the operations with the given numbers.
fn run_check_script_in_node(stream: &Path, wanted: &serde_json::Value) -> String {
    let web = workspace().join("sim/web");
    // The arguments are larger than a command line may be, so they are in a file.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wanted");
    std::fs::write(&file, wanted.to_string()).unwrap();
    let arguments = [&web.join("check.js"), &web.join("engine.wasm"), stream, &file];
    let output = Command::new("node").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// The hashes of a web page's view after every `every` operations.
struct ViewHashes<'s> {
    stream: &'s Stream,
    shown: &'s [u32],
    every: usize,
}

impl Visitor for ViewHashes<'_> {
    type Out = Vec<(u64, String)>;

    fn visit<D: Design>(self, design: D) -> Self::Out {
        let Self { stream, shown, every } = self;
        let mut engine = Engine::new(design, stream);
        let moments = (0..stream.operations).step_by(every).chain([stream.operations]);
        let hashes = moments.map(|at| {
            let steps = engine.run_with_steps(at).unwrap();
            let view = engine.view(steps, shown);
            check_held_objects_in_counts_and_pictures(&view);
            (at, format!("{:016x}", hash(text(&view).as_bytes())))
        });
        let hashes = hashes.collect();
        engine.check().unwrap();
        hashes
    }
}

/// Checks for every design that its levels count all held objects, and that the drawn slabs show the same number.
/// Regression test: for a slab that a CPU owns, the levels and the drawn slabs showed different numbers.
fn check_held_objects_in_counts_and_pictures(view: &View) {
    for shown in &view.shown {
        let SeenCache { name, counts, .. } = &view.caches[shown.cache as usize];
        let levels = shown.cpus.iter().chain(&shown.shared).flatten();
        let held: u64 = levels.map(|level| u64::from(level.objects)).sum();
        let cached = counts.in_magazines + counts.in_depot;
        assert_eq!(held, cached, "{name} after operation {}: levels", view.operation);
        if shown.slabs.len() as u64 == counts.slabs() {
            let objects = shown.slabs.iter().flat_map(|slab| slab.objects.bytes());
            let (used, free) = objects.fold((0, 0), |(used, free), object| {
                (used + u64::from(object == b'u'), free + u64::from(object == b'.'))
            });
            assert_eq!((used, free), (counts.used, counts.free_in_slabs), "{name} after {}", view.operation);
        }
    }
}

/// With `USLAB_VIEWS=full`, the test also checks all traces in `USLAB_TRACES`, after every thousand
/// operations.
#[test]
fn each_design_is_deterministic_natively_and_in_webassembly() {
    let full = std::env::var_os("USLAB_VIEWS").is_some_and(|views| views == "full");
    let node = has_nodejs();
    let traces =
        std::env::var_os("USLAB_TRACES").filter(|_| full).map(|folder| trace_folders_in(folder.as_ref()));
    let files = traces.iter().flatten().map(|folder| Some(folder.join("trace.txt.zst")));
    for file in [None].into_iter().chain(files) {
        let options = replay::Options::default();
        let (_, stream) = replay::run_to_stream(file.as_deref(), &options, &Progress::new()).unwrap();
        check_every_design(&stream, if full { 1000 } else { 60_000 }, node);
    }
}

fn check_every_design(stream: &Stream, every: usize, node: bool) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stream");
    std::fs::write(&file, stream.write()).unwrap();
    let shown: Vec<u32> = (0..6).collect();
    let mut last = Vec::new();
    for (design, _) in all::<NoPolicy>() {
        let spec: Spec = design.parse().unwrap();
        let run = || spec.on(stream, ViewHashes { stream, shown: &shown, every }).unwrap();
        let hashes = run();
        assert_eq!(hashes, run(), "{design}");
        if node {
            let wanted =
                serde_json::json!({ "design": design, "shown": shown, "every": 0, "moments": hashes });
            let said = run_check_script_in_node(&file, &wanted);
            assert!(said.starts_with(&format!("{} moments", hashes.len())), "{design}: {said}");
        }
        last.push(hashes[hashes.len() - 1].1.clone());
    }
    println!(
        "{}: {} designs, {} moments of each",
        stream.title,
        last.len(),
        stream.operations / every as u64 + 1
    );
    last.sort_unstable();
    last.dedup();
    assert_eq!(last.len(), all::<NoPolicy>().count(), "all designs must end in different states");
}

fn has_nodejs() -> bool {
    let has = Command::new("node").arg("--version").output().is_ok();
    if !has {
        eprintln!("SKIPPED: node is not installed");
    }
    has
}

/// Returns the JSON that `uslab replay` prints with these arguments.
fn json(arguments: &[&str]) -> serde_json::Value {
    let output = uslab(&[&["replay"], arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn snapshot_json_equals_the_engine_view() {
    let (_, stream) = bundled();
    let shown: Vec<u32> = (0..stream.caches.len() as u32).collect();
    struct ViewsAtOperations<'s>(&'s Stream, &'s [u32]);
    impl Visitor for ViewsAtOperations<'_> {
        type Out = Vec<serde_json::Value>;
        fn visit<D: Design>(self, design: D) -> Self::Out {
            let mut engine = Engine::new(design, self.0);
            let view = |at| {
                let steps = engine.run_with_steps(at).unwrap();
                serde_json::to_value(engine.view(steps, self.1)).unwrap()
            };
            [0, 70_000, 70_001].map(view).into()
        }
    }
    for design in ["uslab", "slub:cpu_partial=0"] {
        let spec: Spec = design.parse().unwrap();
        let views = spec.on(&stream, ViewsAtOperations(&stream, &shown)).unwrap();
        let found = json(&["--design", design, "--at", "70001,0,70000,70001"]);
        let expected = [&views[2], &views[0], &views[1], &views[2]];
        assert_eq!(found["design"], design);
        assert_eq!(found["operations"], stream.operations);
        let moments = found["moments"].as_array().expect("moments");
        assert_eq!(moments.len(), expected.len());
        for (found, expected) in moments.iter().zip(expected) {
            assert!(found == expected, "{design}, operation {}", expected["operation"]);
        }
    }
}

#[test]
fn snapshot_of_a_converted_trace_equals_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.ops");
    let (_, stream) = bundled();
    std::fs::write(&file, stream.write()).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(json(&[file, "--at", "5000"])["moments"], json(&["--at", "5000"])["moments"]);
    let page = folder.path().join("page.html");
    for option in ["--strict", "--all", "--callers", "--snapshot-every=9", "--page-size=4k"] {
        let arguments = ["replay", file, "--html", page.to_str().unwrap(), option];
        refused(&arguments, &[option.split('=').next().unwrap(), file, "is a converted trace"]);
    }
    assert!(!page.exists());
}

#[test]
fn snapshot_after_the_last_event_is_refused() {
    for (arguments, said) in [
        (&["--at", "999999999", "--json"][..], "--at 999999999: expected 0 to 672020"),
        (&["--at", "x", "--json"], "'x'"),
        (&["--at", "-1", "--json"], "-1"),
        (&["--at", "5"], "--at: expected --json"),
        (&["--at", "5", "--json", "--design", "slub,slab"], "--at: expected one design, got 2"),
        (&["--at", "5", "--json", "--design", "slob"], "unknown design `slob`"),
        (&["--at", "5", "--json", "--nodes", "2"], "--nodes"),
    ] {
        let output = uslab(&[&["replay"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}

#[test]
fn failed_web_page_write_leaves_no_partial_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (arguments, said) in [
        (vec!["replay", "--html", &at("no/page.html")], "does not exist"),
        (vec!["replay", "--html", folder.path().to_str().unwrap()], "is a directory"),
        (vec!["replay", "--html", &at("one"), "--json", &at("one")], "are the same file"),
        (vec!["replay", "--html", &at("page.html"), "--nodes", "2"], "--nodes"),
        (vec!["replay", "--html", &at("page.html"), &at("nosuch.trace")], "nosuch.trace"),
    ] {
        let output = uslab(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    let full = uslab(&["replay", "--html", "/dev/full"]);
    assert_eq!(full.status.code(), Some(2));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "no file must remain");

    let page = at("page.html");
    let output = uslab(&["replay", "--html", &page]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let written = std::fs::read_to_string(page).unwrap();
    assert!(written.starts_with("<!DOCTYPE html>") && written.trim_end().ends_with("</html>"));
    assert!(written.len() < 1_500_000, "{} bytes", written.len());
}

#[test]
fn demo_web_pages_refuse_a_file_as_output_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let output = uslab(&["page", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("file: expected a folder"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
#[ignore = "runs all demos: `.ci/full page` does it"]
fn demo_web_pages_are_written_to_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let output = uslab(&["page", &at("new/pages"), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let written: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let written = written.as_array().unwrap();
    assert_eq!(written.len(), 4);
    for (page, name) in written.iter().zip(["index.html", "replay.html", "scale.html", "story.html"]) {
        let text = std::fs::read_to_string(at(&format!("new/pages/{name}"))).unwrap();
        assert_eq!(page["bytes"], text.len());
        assert!(text.starts_with("<!DOCTYPE html>") && text.trim_end().ends_with("</html>"));
        for place in ["{engine}", "{stream}", "{report}", "{story}"] {
            assert!(!text.contains(place), "{place} in {name}");
        }
        assert!(
            text.contains("<nav id=\"nav\" aria-label=\"Pages\"></nav>"),
            "{name} must link to the other pages"
        );
        for request in ["http://", "https://", "src=", "@import", "fetch(", "XMLHttpRequest", "import("] {
            // The namespace of SVG is only a name: no request is sent.
            assert!(
                !text.replace("http://www.w3.org/2000/svg", "").contains(request),
                "`{request}` in {name}"
            );
        }
    }
}
