//! Writes the TypeScript types of the JSON that web pages read. The generated files are `sim/web/src/views.ts`,
//! `scenes.ts` (the lab's demos), `course.ts`, and `scale/outcome.ts` (a run in virtual time).

use crate::clock::{self, Film, LockCounts, LockHold, LockKind, Outcome, Price, Profile, TimedOperation};
use crate::course::{Answer, Code, Expects, Failure, Lab, Question, Sheet, Strip, Work};
use crate::design::CacheCounts;
use crate::designs::{NoPolicy, all, knobs};
use crate::step::{Step, What};
use crate::stream::Mark;
use crate::until::{Found, Until};
use crate::view::{About, Level, Pages, SeenCache, ShownCache, ShownSlab, View};
use std::fmt::Write as _;
use ts_rs::{Config, TS};
use uslab_lab::allocators::allocator::Holes;
use uslab_lab::demos::{self, Race};
use uslab_magazine::Path;

/// The TypeScript declarations of one generated file.
struct File(String);

impl File {
    fn new() -> Self {
        let first = "// Generated from Rust: `WRITE=1 cargo test -p uslab-engine typescript` writes it.\n\n";
        Self(first.to_owned())
    }
    fn add(&mut self, docs: Option<String>, declaration: &str) {
        write!(self.0, "{}export {declaration}\n\n", docs.unwrap_or_default())
            .expect("writing to a String must succeed");
    }
    fn text(self) -> String {
        let text = self.0.replace("/**\n * ", "/** ").replace("\n */\n", " */\n").replace(" \n", "\n");
        text.replace("\n * ", " ").trim_end().to_owned() + "\n"
    }
}

macro_rules! types {
    ($file:expr; $($type:ty),*) => {{
        let config = Config::default().with_large_int("number");
        $($file.add(<$type as TS>::docs(), &<$type as TS>::decl(&config));)*
    }};
}

fn views() -> String {
    let mut file = File::new();
    types!(
        file;
        About<'_>,
        Mark,
        View,
        SeenCache,
        CacheCounts,
        Pages,
        Step,
        What,
        ShownCache,
        ShownSlab,
        Level,
        Until,
        Found
    );
    let paths = Path::ALL.map(|path| format!("{:?}", path.name())).join(" | ");
    file.add(None, &format!("type Path = {paths};"));
    let designs = all::<NoPolicy>().map(|(name, description)| {
        let knobs =
            knobs::<NoPolicy>(name).iter().map(|knob| format!("[{:?}, {:?}]", knob.name, knob.to_string()));
        format!("  [{name:?}, {description:?}, [{}]],\n", knobs.collect::<Vec<_>>().join(", "))
    });
    file.add(
        None,
        &format!(
            "const DESIGNS: readonly (readonly [name: string, about: string, knobs: readonly (readonly [name: string, means: string])[]])[] = [\n{}];",
            designs.collect::<String>()
        ),
    );
    file.text()
}

fn scenes() -> String {
    let mut file = File::new();
    types!(file; demos::About, demos::Claim, demos::Name, demos::Scene, demos::Part, demos::Is, Holes, Race);
    types!(file; demos::Structure, demos::Shape, demos::Row, demos::Cell, demos::Chunk, demos::FreeBlock, demos::Mark);
    types!(file; demos::Named, demos::Slot, demos::Lane, demos::Line, demos::Lines, demos::Step, demos::On);
    file.text()
}

fn course() -> String {
    let mut file = File::new();
    file.0 += "import type { Scene } from './scenes.ts';\nimport type { View } from './views.ts';\n\n";
    types!(file; Lab, Work, Code, Question, Expects, Answer, Strip, Sheet, Failure);
    file.text()
}

fn outcome() -> String {
    let mut file = File::new();
    file.0 += "import type { Path, View } from '../views.ts';\n\n";
    types!(file; Outcome, LockCounts, Profile, Price, clock::Level, Film, TimedOperation, LockHold, LockKind);
    let workloads =
        clock::Workload::ALL.map(|(name, meaning)| format!("  [{name:?}, {meaning:?}],\n")).concat();
    file.add(
        Some("/** Workloads, each with its description; the default N is in brackets. */\n".to_owned()),
        &format!("const WORKLOADS: readonly (readonly [name: string, does: string])[] = [\n{workloads}];"),
    );
    file.text()
}

#[test]
fn generated_typescript_is_current() {
    for (name, text) in
        [("views", views()), ("scenes", scenes()), ("course", course()), ("scale/outcome", outcome())]
    {
        let file = format!("{}/../web/src/{name}.ts", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("WRITE").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let old_text = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            old_text == text,
            "sim/web/src/{name}.ts: `WRITE=1 cargo test -p uslab-engine typescript` writes it"
        );
    }
}
