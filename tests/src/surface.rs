//! Lists the public surface of a crate: its public items that are documented and not hidden.
//!
//! The list has modules, types, traits, functions, methods, constants, statics, macros and aliases; a re-exported item
//! counts once. Fields, variants and trait implementations are not listed, because they are parts of their type.

use crate::{cargo, workspace};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;

/// An item that users of a crate can name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// The path of the item, such as `uslab::error::Busy`.
    pub path: String,
    /// `true` if the item is a struct, an enum, a union or a trait, and this crate defines it.
    pub is_type: bool,
    /// `true` if the documentation of the item itself has a runnable example.
    pub has_example: bool,
}

/// The attributes of a code block that a documentation test compiles and runs.
const RUNS: [&str; 3] = ["", "rust", "should_panic"];

/// Returns `true` if the documentation contains a code block that runs as a test.
fn has_example(docs: &str) -> bool {
    let fences = docs.lines().filter_map(|line| line.trim_start().strip_prefix("```"));
    // Every second fence ends a block.
    fences.step_by(2).any(|begin| RUNS.contains(&begin.trim_end()))
}

/// Returns the public items of a crate of this workspace, sorted by path.
///
/// The function builds the documentation of the crate, which takes some seconds.
///
/// # Errors
/// Fails if the build fails, or if rustdoc's JSON has an unsupported format version.
pub fn items(package: &str) -> Result<Vec<Item>> {
    // The format of rustdoc's JSON is unstable. Only rustdoc is allowed to use the unstable format; otherwise cargo
    // would rebuild all dependencies.
    let wrapper = workspace().join("target/rustdoc-json");
    let script = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\" -Zunstable-options --output-format json --cap-lints allow\n";
    std::fs::create_dir_all(workspace().join("target"))?;
    std::fs::write(&wrapper, script)?;
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755))?;
    let target = workspace().join("target/surface");
    let made = cargo()
        .args(["doc", "--quiet", "--no-deps", "--lib", "--package", package, "--target-dir"])
        .arg(&target)
        .env("RUSTDOC", &wrapper)
        .status()?;
    ensure!(made.success(), "{package}: cannot build its documentation");
    let file = target.join("doc").join(package.replace('-', "_")).with_extension("json");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let docs = serde_json::from_str::<Value>(&text)?;
    let mut surface = SurfaceReader { index: &docs["index"], known: HashSet::new(), items: Vec::new() };
    let root = docs["root"].to_string();
    let name = docs["index"][&root]["name"].as_str().context("the crate has no name")?;
    surface.known.insert(root.clone());
    surface.inside(&root, name);
    ensure!(surface.items.iter().any(|item| item.is_type), "{package}: no public type in {}", file.display());
    surface.items.sort_unstable();
    Ok(surface.items)
}

struct SurfaceReader<'a> {
    index: &'a Value,
    /// The paths that were already added to the list.
    known: HashSet<String>,
    items: Vec<Item>,
}

impl SurfaceReader<'_> {
    /// Adds an item called `parent::name`, and its children.
    fn add(&mut self, id: &Value, parent: &str) {
        let id = id.to_string();
        let item = &self.index[&id];
        // The item is hidden, or from another crate; items of traits have their trait's visibility.
        if !matches!(item["visibility"].as_str(), Some("public" | "default")) {
            return;
        }
        let re_export = &item["inner"]["use"];
        let name = item["name"].as_str().or(re_export["name"].as_str()).unwrap_or("_");
        let path = format!("{parent}::{name}");
        let target = if re_export.is_null() { id } else { re_export["id"].to_string() };
        if re_export["is_glob"] == true {
            return self.inside(&target, parent);
        }
        if self.known.insert(target.clone()) {
            let item = &self.index[&target];
            let is_type =
                ["struct", "enum", "union", "trait"].iter().any(|kind| !item["inner"][kind].is_null());
            let has_example = item["docs"].as_str().is_some_and(has_example);
            self.items.push(Item { path: path.clone(), is_type, has_example });
            self.inside(&target, &path);
        }
    }

    /// Adds the children of an item.
    fn inside(&mut self, id: &str, path: &str) {
        let inner = &self.index[id]["inner"];
        let held = ["module", "trait"].iter().find_map(|kind| inner[kind]["items"].as_array());
        held.into_iter().flatten().for_each(|id| self.add(id, path));
        let kinds = ["struct", "enum", "union"];
        let implementations = kinds.iter().find_map(|kind| inner[kind]["impls"].as_array());
        for id in implementations.into_iter().flatten() {
            let implementation = &self.index[id.to_string()]["inner"]["impl"];
            if implementation["trait"].is_null() {
                implementation["items"].as_array().into_iter().flatten().for_each(|id| self.add(id, path));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_blocks_are_not_counted_as_doc_examples() {
        for begin in ["text", "ignore", "no_run", "compile_fail,E0277", "console"] {
            let docs = format!("A cache.\n\n```{begin}\nlet cache = 1;\n```\n\nMore.");
            assert!(!has_example(&docs), "{docs}");
            assert!(has_example(&format!("{docs}\n```\nlet cache = 2;\n```")), "{docs}");
        }
        assert!(!has_example("None."));
        assert!(has_example("```rust\n```"));
    }
}
