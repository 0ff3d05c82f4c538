//! What a crate shows its users: the public paths of its documentation, without what is hidden there.
//!
//! A path is counted for each module, type, trait, function, method, constant, static, macro and alias; what is re-exported
//! is counted once. Fields, variants and implementations of traits belong to their type.

use crate::{cargo, workspace};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;

/// The public paths of a crate of this workspace, sorted.
///
/// Cost: its documentation is made, some seconds.
///
/// # Errors
/// It cannot be made, or is not in the format of `rustdoc` that this reads.
pub fn paths(package: &str) -> Result<Vec<String>> {
    // The format is unstable. Only rustdoc is told that this is fine: cargo would build all that the crate depends on again.
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
    ensure!(made.success(), "{package}: its documentation cannot be made");
    let file = target.join("doc").join(package.replace('-', "_")).with_extension("json");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let docs = serde_json::from_str::<Value>(&text)?;
    let mut surface = Surface { index: &docs["index"], known: HashSet::new(), paths: Vec::new() };
    let root = docs["root"].to_string();
    let name = docs["index"][&root]["name"].as_str().context("a crate has a name")?;
    surface.known.insert(root.clone());
    surface.inside(&root, name);
    ensure!(!surface.paths.is_empty(), "{package}: no public path in {}", file.display());
    surface.paths.sort_unstable();
    Ok(surface.paths)
}

struct Surface<'a> {
    index: &'a Value,
    /// What a path leads to already.
    known: HashSet<String>,
    paths: Vec<String>,
}

impl Surface<'_> {
    /// Adds an item with what it holds, by `parent::name`.
    fn add(&mut self, id: &Value, parent: &str) {
        let id = id.to_string();
        let item = &self.index[&id];
        // Hidden, or of another crate; items of traits have the visibility of their trait.
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
            self.paths.push(path.clone());
            self.inside(&target, &path);
        }
    }

    /// Adds what an item holds.
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
