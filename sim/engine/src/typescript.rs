//! The types of what a page reads, for TypeScript: `sim/web/src/views.ts`.

use crate::design::CacheCounts;
use crate::designs::{NoPolicy, all};
use crate::step::{Step, What};
use crate::stream::Mark;
use crate::until::{Found, Until};
use crate::view::{About, Level, Pages, SeenCache, ShownCache, ShownSlab, View};
use std::fmt::Write as _;
use ts_rs::{Config, TS};
use uslab_magazine::Path;

fn views() -> String {
    let config = Config::default().with_large_int("number");
    let quoted = |names: &mut dyn Iterator<Item = &'static str>| {
        names.map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" | ")
    };
    let mut text =
        "// Generated from sim/engine: `WRITE=1 cargo test -p uslab-engine typescript` writes it.\n\n"
            .to_owned();
    let mut add = |docs: Option<String>, declaration: String| {
        write!(text, "{}export {declaration}\n\n", docs.unwrap_or_default()).expect("a String takes it");
    };
    macro_rules! types {
        ($($type:ty),*) => { $(add(<$type as TS>::docs(), <$type as TS>::decl(&config));)* };
    }
    types!(
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
    add(None, format!("type Path = {};", quoted(&mut Path::ALL.into_iter().map(Path::name))));
    let designs =
        all::<NoPolicy>().map(|design| format!("  {design:?},\n").replace('(', "[").replace(')', "]"));
    add(
        None,
        format!(
            "const DESIGNS: readonly (readonly [name: string, about: string])[] = [\n{}];",
            designs.collect::<String>()
        ),
    );
    let text = text
        .replace("/**\n * ", "/** ")
        .replace("\n */\n", " */\n")
        .replace(" \n", "\n")
        .replace("\n * ", " ");
    text.trim_end().to_owned() + "\n"
}

#[test]
fn typescript_has_the_types_as_they_are() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../web/src/views.ts");
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(file, views()).unwrap();
    }
    let found = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        found == views(),
        "sim/web/src/views.ts: `WRITE=1 cargo test -p uslab-engine typescript` writes it"
    );
}
