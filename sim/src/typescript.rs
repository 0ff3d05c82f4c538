//! Writes the TypeScript types of the data that web pages read. The types are written to
//! `sim/web/src/story/story.ts` and `sim/web/src/scale/report.ts`.

use crate::scale::{Curve, ScaleReport};
use crate::story::{Change, Step, Story, Waiting};
use ts_rs::{Config, TS};

macro_rules! types {
    ($($type:ty),*) => {{
        let config = Config::default().with_large_int("number");
        [$((<$type as TS>::docs(), <$type as TS>::decl(&config))),*]
    }};
}

fn text(imports: &str, types: &[(Option<String>, String)]) -> String {
    let types = types.iter().map(|(docs, declaration)| {
        format!("\n{}export {declaration}\n", docs.as_deref().unwrap_or_default().replace(" \n", "\n"))
    });
    format!(
        "// Generated from sim/src: `WRITE=1 cargo test -p uslab-sim typescript` writes it.\n{imports}{}",
        types.collect::<String>().replace(" \n", "\n")
    )
}

#[test]
fn generated_typescript_is_current() {
    let report =
        text("\nimport type { Outcome, Profile } from './outcome.ts';\n", &types!(ScaleReport, Curve));
    let story = text("", &types!(Story, Step, Change, Waiting));
    for (name, text) in [("story/story.ts", story), ("scale/report.ts", report)] {
        let file = format!("{}/web/src/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("WRITE").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(found == text, "sim/web/src/{name}: `WRITE=1 cargo test -p uslab-sim typescript` writes it");
    }
}
