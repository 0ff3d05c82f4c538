//! Wrong code that tests must detect, described as text changes to the sources, and copies of the workspace that
//! contain it.
//!
//! A *planted bug* is a wrong statement that some model must catch. The file `planted.toml` next to the models of a
//! crate lists its planted bugs, with their file and function. A copy of the workspace contains every planted bug as a
//! `planted!` statement. A single build therefore contains all planted bugs, and a test selects one of them at run
//! time. A *control* is a deliberately broken build of the restartable sequences, or of the table that they use. The
//! file `tests/controls.toml` lists the controls with their name, file and function.
//!
//! A change is made next to an *anchor*: a text that must occur exactly once in its function, although white space may
//! differ. The change does not alter the line numbers of the file. The workspace's own sources contain neither planted
//! bugs nor controls.
//!
//! A copy has its own compiler wrapper, so cargo distinguishes the crates of the copy from the crates of the workspace.
//! The dependencies of the copy and of the workspace are the same, so they are built only once.

use crate::models::MODELLED;
use crate::share::tracked_files;
use crate::source::Sources;
use crate::tree::mirror;
use crate::{cargo_command_in, workspace};
use anyhow::{Context, anyhow, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A change of a source file, in the format of the TOML files.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    before: Option<String>,
    after: Option<String>,
    replace: Option<String>,
    wrong: String,
}

/// A piece of wrong code, and the location at which it is inserted.
#[derive(Debug)]
pub struct Change {
    /// The name of the planted bug or of the control.
    pub name: String,
    /// The file to change, relative to the root of the workspace.
    pub file: String,
    function: String,
    entry: Entry,
}

/// Reads the planted bugs of all crates with models.
///
/// # Errors
/// Fails if a file cannot be read, if two bugs have the same name, or if a bug is not a statement.
pub fn bugs() -> anyhow::Result<Vec<Change>> {
    let (mut bugs, mut crates) = (vec![], BTreeMap::new());
    for of in MODELLED {
        let folder = Path::new(of.lib).parent().unwrap_or(Path::new(""));
        let all: BTreeMap<String, BTreeMap<String, BTreeMap<String, Entry>>> = read(of.planted)?;
        for (file, functions) in all {
            let file = folder.join(file).display().to_string();
            for (function, entries) in functions {
                for (name, mut entry) in entries {
                    let other = crates.insert(name.clone(), of.package).filter(|other| *other != of.package);
                    ensure!(
                        other.is_none(),
                        "planted bug {name:?}: {} has it, too",
                        other.unwrap_or_default()
                    );
                    entry.wrong = statement(of.facade, &name, &entry.wrong)
                        .with_context(|| format!("planted bug {name:?} in {}", of.planted))?;
                    bugs.push(Change { name, file: file.clone(), function: function.clone(), entry });
                }
            }
        }
    }
    Ok(bugs)
}

/// Reads the controls with the given names, which are joined with `+`.
///
/// # Errors
/// Fails if the file cannot be read, or does not contain one of the controls.
pub fn controls(names: &str) -> anyhow::Result<Vec<Change>> {
    type Functions = BTreeMap<String, Vec<Entry>>;
    let mut all: BTreeMap<String, BTreeMap<String, Functions>> = read(CONTROLS_FILE)?;
    let known = all.keys().cloned().collect::<Vec<_>>().join(", ");
    let mut changes = vec![];
    for name in names.split('+') {
        let files = all.remove(name).with_context(|| format!("unknown control {name:?} (known: {known})"))?;
        for (file, functions) in files {
            for (function, entries) in functions {
                let change = |entry| {
                    let (name, file, function) = (name.to_owned(), file.clone(), function.clone());
                    Change { name, file, function, entry }
                };
                changes.extend(entries.into_iter().map(change));
            }
        }
    }
    Ok(changes)
}

const CONTROLS_FILE: &str = "tests/controls.toml";

fn read<T: for<'de> Deserialize<'de>>(name: &str) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(workspace().join(name)).with_context(|| name.to_owned())?;
    toml::from_str(&text).with_context(|| name.to_owned())
}

/// Returns the `planted!` statement that inserts a bug, on one line.
fn statement(facade: &str, name: &str, wrong: &str) -> anyhow::Result<String> {
    ensure!(!wrong.contains("//"), "a comment would end the line");
    let wrong = join_lines(wrong);
    let block: syn::Block = syn::parse_str(&format!("{{ {wrong}; }}")).context("not a statement")?;
    let shadows = matches!(&block.stmts[..], [syn::Stmt::Local(_)]);
    let wrong = if shadows { wrong } else { format!("{{ {wrong} }}") };
    Ok(format!("{facade}::planted!({name:?} => {wrong});"))
}

fn join_lines(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

impl Change {
    /// Returns the range of text that a change replaces, and the text that replaces it.
    fn edit(
        &self,
        text: &str,
        functions: &[(String, Range<usize>)],
    ) -> anyhow::Result<(Range<usize>, String)> {
        let Self { name, file, function, entry } = self;
        let place = || format!("planted {name:?}: {file}, function `{function}`");
        let anchors = [&entry.before, &entry.after, &entry.replace];
        let given: Vec<&String> = anchors.into_iter().flatten().collect();
        let [anchor] = given[..] else {
            return Err(anyhow!("{}: expected one of before, after and replace", place()));
        };
        // Builds may have separate functions of this name.
        let bodies: Vec<_> =
            functions.iter().filter(|(of, _)| of == function).map(|(_, body)| body).collect();
        ensure!(!bodies.is_empty(), "{}: no function has this name", place());
        let within = |body: &&Range<usize>| occurrences(text, (*body).clone(), anchor);
        let found: Vec<_> = bodies.iter().flat_map(within).collect();
        let [Range { start, end }] = found[..] else {
            return Err(anyhow!("{}: {anchor:?} occurs {} times; expected once", place(), found.len()));
        };
        let wrong = join_lines(&entry.wrong);
        Ok(match anchors {
            [Some(_), ..] => (start..start, format!("{wrong} ")),
            [_, Some(_), _] => (end..end, format!(" {wrong}")),
            // The lines of the replaced text stay.
            _ => (start..end, wrong + &"\n".repeat(text[start..end].matches('\n').count())),
        })
    }
}

/// Returns the occurrences of `anchor` in a range of `text`; differences in white space are ignored.
fn occurrences(text: &str, within: Range<usize>, anchor: &str) -> Vec<Range<usize>> {
    let (text, words) = (&text[..within.end], anchor.split_whitespace().collect::<Vec<_>>());
    let [first, others @ ..] = &words[..] else { return vec![] };
    let whole = |(at, _)| {
        let start: usize = within.start + at;
        let mut end = start + first.len();
        for word in others {
            end = text.len() - text[end..].trim_start().strip_prefix(word)?.len();
        }
        Some(start..end)
    };
    text[within.start..].match_indices(first).filter_map(whole).collect()
}

/// Returns the name and the body of each function and of each macro; the name of a macro ends with `!`. The name of a
/// method is `Type::method`.
fn functions(text: &str) -> syn::Result<Vec<(String, Range<usize>)>> {
    #[derive(Default)]
    struct Functions {
        of: Vec<String>,
        found: Vec<(String, Range<usize>)>,
    }
    impl Functions {
        fn visit_inside_item(&mut self, of: String, visit: impl FnOnce(&mut Self)) {
            self.of.push(of);
            visit(self);
            self.of.pop();
        }
        fn method(&mut self, name: &syn::Ident, body: &syn::Block) {
            let of = self.of.last().map_or(String::new(), |of| format!("{of}::"));
            self.found.push((format!("{of}{name}"), body.span().byte_range()));
        }
    }
    impl<'ast> Visit<'ast> for Functions {
        fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
            self.found.push((f.sig.ident.to_string(), f.block.span().byte_range()));
            visit::visit_item_fn(self, f);
        }
        fn visit_item_impl(&mut self, of: &'ast syn::ItemImpl) {
            let name = match &*of.self_ty {
                syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
                _ => None,
            };
            self.visit_inside_item(name.unwrap_or_default(), |walk| visit::visit_item_impl(walk, of));
        }
        fn visit_item_trait(&mut self, of: &'ast syn::ItemTrait) {
            self.visit_inside_item(of.ident.to_string(), |walk| visit::visit_item_trait(walk, of));
        }
        fn visit_impl_item_fn(&mut self, f: &'ast syn::ImplItemFn) {
            self.method(&f.sig.ident, &f.block);
            visit::visit_impl_item_fn(self, f);
        }
        fn visit_trait_item_fn(&mut self, f: &'ast syn::TraitItemFn) {
            f.default.iter().for_each(|body| self.method(&f.sig.ident, body));
            visit::visit_trait_item_fn(self, f);
        }
        fn visit_item_macro(&mut self, of: &'ast syn::ItemMacro) {
            let name = of.ident.iter().map(|name| (format!("{name}!"), of.span().byte_range()));
            self.found.extend(name);
        }
    }
    let mut walk = Functions::default();
    walk.visit_file(&syn::parse_file(text)?);
    Ok(walk.found)
}

/// Returns the files of the workspace in `root` that `changes` change, with their new texts.
///
/// Fails if a file cannot be read, or if the anchor of a change does not occur exactly once.
pub fn apply(root: &Path, changes: &[Change]) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut by_file: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
    for change in changes {
        by_file.entry(&change.file).or_default().push(change);
    }
    let mut changed = BTreeMap::new();
    for (file, changes) in by_file {
        let name =
            || changes.iter().map(|change| format!("{:?}", change.name)).collect::<Vec<_>>().join(", ");
        let text =
            std::fs::read_to_string(root.join(file)).with_context(|| format!("{file} of {}", name()))?;
        let functions = functions(&text).with_context(|| file.to_owned())?;
        let edits = changes.iter().map(|change| change.edit(&text, &functions));
        let mut edits = edits.collect::<anyhow::Result<Vec<_>>>()?;
        edits.sort_by_key(|(range, _)| (range.start, range.end));
        let (mut made, mut from) = (String::with_capacity(2 * text.len()), 0);
        for (range, instead) in edits {
            ensure!(range.start >= from, "{file}: two changes overlap, of {}", name());
            made += &text[from..range.start];
            made += &instead;
            from = range.end;
        }
        made += &text[from..];
        changed.insert(file.into(), made);
    }
    Ok(changed)
}

/// Returns the names of all planted bugs: the bugs that [`bugs`] reads, and the bugs that are written as statements in
/// models.
///
/// # Errors
/// Fails if a file cannot be read.
pub fn names() -> anyhow::Result<BTreeSet<String>> {
    let statements = Sources::scan(workspace(), &MODELLED.map(|of| of.lib))?.planted;
    Ok(bugs()?.into_iter().map(|bug| bug.name).chain(statements.into_keys()).collect())
}

/// A copy of the workspace whose sources were changed.
#[derive(Debug)]
pub struct WorkspaceCopy {
    folder: PathBuf,
    wrapper: PathBuf,
}

impl WorkspaceCopy {
    /// Writes a copy with all planted bugs; its crates are compiled with `cfg(uslab_planted)`.
    ///
    /// # Errors
    /// Fails if the anchor of a bug is not found, or if a file cannot be read or written.
    pub fn planted() -> anyhow::Result<Self> {
        Self::write("bugs", " --cfg uslab_planted", &bugs()?)
    }

    /// Writes a copy that contains the named [`controls`].
    ///
    /// # Errors
    /// Fails in the same cases as [`planted`](Self::planted).
    pub fn broken(names: &str) -> anyhow::Result<Self> {
        Self::write("controls", "", &controls(names)?)
    }

    fn write(name: &str, options: &str, changes: &[Change]) -> anyhow::Result<Self> {
        let folder = workspace().join("target/planted").join(name);
        let mut all = BTreeMap::new();
        for path in tracked_files(workspace())? {
            // Deleted files are still listed.
            let Ok(text) = std::fs::read(workspace().join(&path)) else { continue };
            all.insert(path.into(), text);
        }
        all.extend(apply(workspace(), changes)?.into_iter().map(|(path, text)| (path, text.into_bytes())));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        // Another shard may write the same copy.
        let lock = File::create(folder.with_extension("lock")).context("the lock of the copy")?;
        lock.lock().context("the lock of the copy")?;
        mirror(&folder, &all)?;
        let (wrapper, script) =
            (folder.with_extension("rustc"), format!("#!/bin/sh\nexec \"$@\"{options}\n"));
        if !std::fs::read_to_string(&wrapper).is_ok_and(|old| old == script) {
            let written = std::fs::write(&wrapper, script);
            let written =
                written.and_then(|()| std::fs::set_permissions(&wrapper, Permissions::from_mode(0o755)));
            written.with_context(|| wrapper.display().to_string())?;
        }
        Ok(Self { folder, wrapper })
    }

    /// Returns a command that runs in the root of the copy. If the command runs cargo, cargo uses the target directory
    /// of the workspace.
    pub fn command(&self, mut command: Command) -> Command {
        command.current_dir(&self.folder).env("RUSTC_WORKSPACE_WRAPPER", &self.wrapper);
        if std::env::var_os("CARGO_TARGET_DIR").is_none() {
            command.env("CARGO_TARGET_DIR", workspace().join("target"));
        }
        command
    }

    /// Returns a command for cargo in the root of the copy.
    pub fn cargo(&self) -> Command {
        self.command(cargo_command_in(&self.folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_planted_bug_fits_one_place_and_has_a_model() {
        let bugs = bugs().unwrap();
        apply(workspace(), &bugs).unwrap();
        let sources = Sources::scan(workspace(), &MODELLED.map(|of| of.lib)).unwrap();
        let shipping: Vec<_> = sources.planted.iter().filter(|(_, ships)| **ships).collect();
        assert!(shipping.is_empty(), "these planted bugs belong in a file planted.toml: {shipping:?}");
        let unnamed: Vec<_> = bugs.iter().filter(|bug| !sources.named.contains(&bug.name)).collect();
        assert!(unnamed.is_empty(), "no model names these planted bugs: {unnamed:?}");
        let names = names().unwrap();
        let unknown: Vec<_> = sources.named.difference(&names).collect();
        assert!(bugs.len() > 100 && unknown.is_empty(), "no statement plants these bugs: {unknown:?}");
    }

    #[test]
    fn each_control_fits_exactly_one_place() {
        let text = std::fs::read_to_string(workspace().join(CONTROLS_FILE)).unwrap();
        let names: Vec<String> = toml::from_str::<toml::Table>(&text).unwrap().keys().cloned().collect();
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            apply(workspace(), &controls(&name).unwrap()).unwrap();
        }
        let error = controls("wide+narrow").unwrap_err().to_string();
        assert!(error.starts_with("unknown control \"narrow\" (known: capempty, "), "{error}");
    }

    fn apply_changes(text: &str, changes: &[(&str, &str)]) -> anyhow::Result<String> {
        let root = tempfile::tempdir()?;
        std::fs::write(root.path().join("a.rs"), text)?;
        let change = |(function, entry): &(&str, &str)| {
            let (name, file, function) = ("it forgets".to_owned(), "a.rs".to_owned(), (*function).to_owned());
            Ok(Change { name, file, function, entry: toml::from_str(entry)? })
        };
        let changes: Vec<Change> = changes.iter().map(change).collect::<anyhow::Result<_>>()?;
        Ok(apply(root.path(), &changes)?.into_values().collect())
    }

    #[test]
    fn planted_changes_keep_the_line_numbers() {
        let text = "impl<T> A<T> {\n  fn f() {\n    a(b,\n      c);\n    d\n  }\n}\nfn f() { d }\nmacro_rules! m { () => { d } }\n";
        let changes = [
            ("A::f", "before = 'd'\nwrong = '''\n{\n  x;\n}\n'''"),
            ("A::f", "after = 'a(b, c);'\nwrong = 'y;'"),
            ("f", "replace = 'd'\nwrong = 'z'"),
            ("m!", "after = 'd'\nwrong = 'w'"),
        ];
        let expected = "impl<T> A<T> {\n  fn f() {\n    a(b,\n      c); y;\n    { x; } d\n  }\n}\nfn f() { z }\nmacro_rules! m { () => { d w } }\n";
        assert_eq!(apply_changes(text, &changes).unwrap(), expected);
    }

    #[test]
    fn ambiguous_anchor_error_names_bug_file_and_function() {
        let error = |function, entry| {
            apply_changes("fn f() { a; a; }", &[(function, entry)]).unwrap_err().to_string()
        };
        let place = "planted \"it forgets\": a.rs, function ";
        assert_eq!(
            error("f", "before = 'a;'\nwrong = ''"),
            format!("{place}`f`: \"a;\" occurs 2 times; expected once")
        );
        assert_eq!(
            error("f", "before = 'b'\nwrong = ''"),
            format!("{place}`f`: \"b\" occurs 0 times; expected once")
        );
        assert_eq!(error("g", "before = 'b'\nwrong = ''"), format!("{place}`g`: no function has this name"));
        assert!(error("f", "wrong = ''").ends_with("expected one of before, after and replace"));
    }

    #[test]
    fn planted_let_statement_is_not_wrapped_in_a_block() {
        let of = |wrong| statement("sync", "it forgets", wrong);
        assert_eq!(of("let n = 0").unwrap(), "sync::planted!(\"it forgets\" => let n = 0);");
        let block = of("let n = 0;\n    return n").unwrap();
        assert_eq!(block, "sync::planted!(\"it forgets\" => { let n = 0; return n });");
        assert!(of("return // soon").is_err() && of("return )").is_err());
    }
}
