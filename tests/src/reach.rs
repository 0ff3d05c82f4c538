//! Finds the lines of the allocator that run. A copy of the sources has a probe before each statement; the probes
//! record the lines that run, and a table shows them.
//!
//! The probes do not use the compiler's coverage tool; each probe is a store to a mapped file. Probes therefore work
//! the same under loom, under shuttle, in a signal handler, in a process that forks or is killed, and inside a malloc.
//! The probes do not depend on the compiler version.
//!
//! A *line* is a line of shipping code at which a statement or the body of a match arm begins; tests,
//! constants and code for checkers do not count.

use crate::claims::UnreachedFiles;
use crate::imports::{Imports, crates};
use crate::source::{has_code, ships};
use crate::workspace;
use anyhow::{Context, anyhow, ensure};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, Stmt};

/// The crates that make up the allocator, by directory.
pub const CRATES: [&str; 7] =
    ["magazine", "buddy", "slab", "slab/pool", "slab/handle", "slab/libuslab", "slab/libuslab/cache"];

/// The size in bytes of a file of reached lines, which has one byte for each line.
pub const REACHED_LINES_FILE_BYTES: usize = 1 << 16;

/// The text that is added to a crate's root module; its function `on` records a line in the file that `USLAB_REACHED`
/// names.
pub const SWITCH: &str = r#"
#[doc(hidden)]
#[allow(warnings, clippy::all)]
pub mod reach_switch {
    use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::Relaxed};

    const MAX_PROBED_LINES: usize = 1 << 16;
    static DISCARDED_LINES: [AtomicU8; MAX_PROBED_LINES] = [const { AtomicU8::new(0) }; MAX_PROBED_LINES];
    static LINES: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

    unsafe extern "C" {
        fn getenv(name: *const i8) -> *const i8;
        fn open(path: *const i8, flags: i32, ...) -> i32;
        fn close(file: i32) -> i32;
        fn mmap(at: *mut u8, len: usize, protection: i32, flags: i32, file: i32, from: i64) -> *mut AtomicU8;
    }
    #[inline(always)]
    pub fn on(line: u32) {
        let mut lines = LINES.load(Relaxed);
        if lines.is_null() {
            lines = map();
        }
        // SAFETY: `MAX_PROBED_LINES` lines are mapped, or are in `DISCARDED_LINES`, and no number of a line is as high.
        unsafe { (*lines.add(line as usize)).store(1, Relaxed) }
    }
    // Allocates nothing: this is also asked from inside a malloc.
    #[cold]
    #[inline(never)]
    fn map() -> *mut AtomicU8 {
        const READ_WRITE: i32 = 3;
        const SHARED: i32 = 1;
        const CLOSE_ON_EXEC: i32 = 0x80000;
        let mut lines = DISCARDED_LINES.as_ptr().cast_mut();
        // SAFETY: as getenv(3), open(2) and mmap(2) have it: names that end in 0, and a file that is `MAX_PROBED_LINES`
        // bytes long.
        unsafe {
            let name = getenv(c"USLAB_REACHED".as_ptr());
            let file = if name.is_null() { -1 } else { open(name, 2 | CLOSE_ON_EXEC) };
            if file >= 0 {
                let mapped = mmap(std::ptr::null_mut(), MAX_PROBED_LINES, READ_WRITE, SHARED, file, 0);
                close(file);
                if mapped.addr() != usize::MAX {
                    lines = mapped;
                }
            }
        }
        LINES.store(lines, Relaxed);
        lines
    }
}
"#;

/// A tool whose reached lines are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The title of the tool's column in the table.
    pub name: &'static str,
    /// A description of what the tool does.
    pub what: &'static str,
    /// `true` if the tool controls the interleaving of threads.
    pub concurrent: bool,
}

/// The tools, which are the columns of the table of reached lines.
pub const REACH_TOOLS: [Tool; 10] = [
    Tool { name: "models", what: "loom, every interleaving up to a bound", concurrent: true },
    Tool { name: "schedules", what: "shuttle, random and PCT schedules", concurrent: true },
    Tool {
        name: "simulation",
        what: "the whole subsystem under shuttle, as seeds draw it",
        concurrent: true,
    },
    Tool {
        name: "stepper",
        what: "restartable sequences interrupted at each instruction, and what interrupts them",
        concurrent: true,
    },
    Tool { name: "protocol", what: "the code in step with the model of the protocol", concurrent: true },
    Tool {
        name: "histories",
        what: "threads on real CPUs, checked for linearizability; those of schedules count as schedules",
        concurrent: false,
    },
    Tool { name: "fuzz", what: "the fuzzers' corpus, replayed", concurrent: false },
    Tool { name: "stress", what: "threads on real CPUs, which sample", concurrent: false },
    Tool { name: "units", what: "unit and property tests of the crates", concurrent: false },
    Tool { name: "whole", what: "integration tests and real programs", concurrent: false },
];

/// Returns all shipping files of the allocator with probes inserted, by their path relative to the workspace.
///
/// # Errors
/// Fails if a source cannot be read, or if the allocator has too many lines.
pub fn probed_files() -> anyhow::Result<BTreeMap<String, ProbedFile>> {
    let (mut all, mut first) = (BTreeMap::new(), 0);
    for file in files()? {
        let text = std::fs::read_to_string(workspace().join(&file)).with_context(|| file.clone())?;
        let probed = ProbedFile::new(&file, &text, first)?;
        first += u32::try_from(probed.len())?;
        all.insert(file, probed);
    }
    ensure!(
        (first as usize) < REACHED_LINES_FILE_BYTES,
        "{first} lines; expected at most {REACHED_LINES_FILE_BYTES}"
    );
    Ok(all)
}

/// Returns all shipping files of the allocator.
fn files() -> anyhow::Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for member in crates(workspace())? {
        if !CRATES.iter().any(|known| member.directory == Path::new(known)) {
            continue;
        }
        let roots = member.root_files().map(|root| workspace().join(root)).filter(|root| root.is_file());
        for root in roots {
            let drawing = Imports::draw(&root)?;
            let own = drawing.paths().filter(|file| !file.iter().any(|step| step == ".."));
            for file in own {
                all.insert(file.strip_prefix(workspace())?.display().to_string());
            }
        }
    }
    Ok(all)
}

/// A source file with probes.
#[derive(Clone, Debug)]
pub struct ProbedFile {
    text: String,
    /// The probes by line number; each probe has a number, and the texts to insert with their offsets.
    probes: BTreeMap<usize, (u32, Vec<(usize, String)>)>,
}

impl ProbedFile {
    /// Inserts a probe at each line of `text`, the contents of `file`; the first probe has the number `first`.
    ///
    /// Fails if the text is not valid Rust.
    pub fn new(file: &str, text: &str, first: u32) -> anyhow::Result<Self> {
        let tree = syn::parse_file(text).map_err(|error| anyhow!("{file}: not Rust: {error}"))?;
        let mut walk = Walk { text, first, probes: BTreeMap::new() };
        if tree.attrs.iter().all(ships) {
            walk.visit_file(&tree);
        }
        Ok(Self { text: text.to_owned(), probes: walk.probes })
    }
    /// Returns the number of lines with a probe.
    pub fn len(&self) -> usize {
        self.probes.len()
    }
    /// Returns `true` if the file has no probes.
    pub fn is_empty(&self) -> bool {
        self.probes.is_empty()
    }
    /// Removes the probes of the given lines, and returns the lines that had a probe.
    pub fn remove_probes(&mut self, lines: &Range<usize>) -> Vec<usize> {
        let (gone, kept) =
            std::mem::take(&mut self.probes).into_iter().partition(|(line, _)| lines.contains(line));
        self.probes = kept;
        let gone: BTreeMap<usize, _> = gone;
        gone.into_keys().collect()
    }
    /// Returns the numbers of the lines with probes.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.probes.values().map(|(number, _)| *number)
    }
    /// Returns the text with its probes.
    pub fn text(&self) -> String {
        let mut inserts: Vec<(usize, usize, &str)> = vec![];
        for (_, all) in self.probes.values() {
            inserts.extend(all.iter().enumerate().map(|(i, (at, text))| (*at, i, &**text)));
        }
        // At one offset, closing insertions come first.
        inserts.sort_by_key(|(at, i, text)| (*at, *text != " }", *i));
        let (mut out, mut from) = (String::new(), 0);
        for (at, _, text) in inserts {
            out.push_str(&self.text[from..at]);
            out.push_str(text);
            from = at;
        }
        out + &self.text[from..]
    }
}

struct Walk<'t> {
    text: &'t str,
    first: u32,
    probes: BTreeMap<usize, (u32, Vec<(usize, String)>)>,
}

impl Walk<'_> {
    /// Adds a probe to the statement at `at`: before the statement, or around it.
    fn probe(&mut self, at: Range<usize>, around: bool) {
        let line = self.text[..at.start].matches('\n').count() + 1;
        let next = self.first + u32::try_from(self.probes.len()).unwrap_or(u32::MAX);
        let (number, inserts) = self.probes.entry(line).or_insert((next, vec![]));
        let open = if around { "{ " } else { "" };
        inserts.push((at.start, format!("{open}crate::reach_switch::on({number}); ")));
        if around {
            inserts.push((at.end, " }".to_owned()));
        }
    }
}

/// Macros whose arguments are not compiled into a shipping build.
const CHECKER_MACROS: [&str; 3] = ["planted", "tell", "debug_assert"];

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if has_code(item) {
            visit::visit_item(self, item);
        }
    }
    fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
        // The body of a naked function is one block of assembly, and nothing may precede it.
        let naked = f.attrs.iter().any(|attribute| {
            attribute
                .meta
                .require_list()
                .is_ok_and(|of| of.path.is_ident("unsafe") && of.tokens.to_string() == "naked")
        });
        if f.sig.constness.is_none() && !naked {
            self.visit_block(&f.block);
        }
    }
    fn visit_impl_item_fn(&mut self, f: &'ast syn::ImplItemFn) {
        if f.sig.constness.is_none() && f.attrs.iter().all(ships) {
            self.visit_block(&f.block);
        }
    }
    fn visit_trait_item_fn(&mut self, f: &'ast syn::TraitItemFn) {
        if let Some(block) =
            f.default.as_ref().filter(|_| f.sig.constness.is_none() && f.attrs.iter().all(ships))
        {
            self.visit_block(block);
        }
    }
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        let attrs = match stmt {
            Stmt::Local(local) => &local.attrs[..],
            Stmt::Expr(expr, _) => crate::mutate::attributes(expr),
            Stmt::Macro(of) => &of.attrs[..],
            Stmt::Item(_) => return visit::visit_stmt(self, stmt),
        };
        if !attrs.iter().all(ships) {
            return;
        }
        let checkers = |of: &syn::Macro| CHECKER_MACROS.iter().any(|name| of.path.is_ident(name));
        let ships = match stmt {
            Stmt::Macro(of) => !checkers(&of.mac),
            Stmt::Expr(Expr::Macro(of), _) => !checkers(&of.mac),
            Stmt::Expr(expr, _) => !expr.span().byte_range().is_empty(),
            _ => true,
        };
        // A statement with a `cfg` may be absent.
        let at = stmt.span().byte_range();
        if ships && !self.text[at.clone()].starts_with('#') {
            self.probe(at, false);
        }
        visit::visit_stmt(self, stmt);
    }
    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !arm.attrs.iter().all(ships) {
            return;
        }
        if !matches!(&*arm.body, Expr::Block(_)) {
            self.probe(arm.body.span().byte_range(), true);
        }
        self.visit_expr(&arm.body);
    }
}

/// The number of lines that each tool has reached; `None` if the tool did not run.
type ReachedCounts = [Option<usize>; REACH_TOOLS.len()];

/// The table: for each file, the number of its lines, and how many of them each tool has reached. In a table that was
/// parsed from text, the numbers of reached lines are percentages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(pub BTreeMap<String, (usize, ReachedCounts)>);

impl Table {
    /// Builds the table from the numbers of the lines that each tool has reached.
    pub fn new(
        files: &BTreeMap<String, ProbedFile>,
        reached: &[Option<HashSet<u32>>; REACH_TOOLS.len()],
    ) -> Self {
        let row = |file: &ProbedFile| {
            let of =
                |reached: &HashSet<u32>| file.numbers().filter(|number| reached.contains(number)).count();
            (file.len(), reached.each_ref().map(|reached| reached.as_ref().map(of)))
        };
        let some = files.iter().filter(|(_, file)| !file.is_empty());
        Self(some.map(|(name, file)| (name.clone(), row(file))).collect())
    }

    /// Returns the table as Markdown.
    pub fn text(&self) -> String {
        let mut out = String::from(HEAD);
        for Tool { name, what, concurrent } in REACH_TOOLS {
            _ = writeln!(
                out,
                "- *{name}*: {what}{}",
                if concurrent { ". It decides who runs when" } else { "" }
            );
        }
        out += REACH_PAGE_FOOTER;
        let names = REACH_TOOLS.map(|tool| tool.name);
        _ = writeln!(out, "| file | lines | {} |", names.join(" | "));
        _ = writeln!(out, "|---|--:|{}", "--:|".repeat(REACH_TOOLS.len()));
        let mut sums: BTreeMap<&str, (usize, ReachedCounts)> = BTreeMap::new();
        for (file, (lines, reached)) in &self.0 {
            row(&mut out, file, *lines, reached);
            let of = CRATES.iter().filter(|of| file.starts_with(&format!("{of}/")));
            let sum = sums
                .entry(of.max_by_key(|of| of.len()).unwrap_or(&""))
                .or_insert((0, reached.map(|reached| reached.map(|_| 0))));
            sum.0 += lines;
            sum.1
                .iter_mut()
                .zip(reached)
                .for_each(|(sum, reached)| *sum = sum.zip(*reached).map(|(a, b)| a + b));
        }
        for (of, (lines, reached)) in sums {
            row(&mut out, &format!("**{of}**"), lines, &reached);
        }
        out
    }

    /// Returns two lists: files that no concurrent checker reaches and that have no reason, and reasons for files that
    /// a checker does reach.
    pub fn mismatched_reasons(&self, reasons: &[UnreachedFiles]) -> Vec<String> {
        let reasoned: BTreeSet<&str> = reasons.iter().flat_map(|of| &of.files).map(|name| &**name).collect();
        let unreached = self.unreached();
        let told = |of: &BTreeSet<&str>, but: &BTreeSet<&str>, what: &str| -> Vec<String> {
            of.difference(but).map(|file| format!("{file}: {what}")).collect()
        };
        let without = "no concurrent checker reaches it, and tests/claims.toml gives no reason";
        let needless = "tests/claims.toml gives a reason why no concurrent checker reaches it, and one does";
        [told(&unreached, &reasoned, without), told(&reasoned, &unreached, needless)].concat()
    }

    /// Returns the files in which no concurrent checker reaches any line.
    pub fn unreached(&self) -> BTreeSet<&str> {
        let reached = |reached: &ReachedCounts| {
            REACH_TOOLS.iter().zip(reached).any(|(tool, lines)| tool.concurrent && *lines > Some(0))
        };
        self.0.iter().filter(|(_, (_, lines))| !reached(lines)).map(|(file, _)| &**file).collect()
    }
}

const HEAD: &str = "\
# What reaches which lines

A line is one on which a statement or the body of an arm begins, of what ships. A share is of a
file's lines, rounded up; - is none of them, ? that the tool has not run. Files in which nothing runs (types, constants) are not named.

";
const REACH_PAGE_FOOTER: &str = "
Files that no concurrent checker reaches are named in [CLAIMS.md](CLAIMS.md), each with the reason.

";

fn row(out: &mut String, name: &str, lines: usize, reached: &ReachedCounts) {
    let share = |reached: &Option<usize>| match reached.map(|reached| (100 * reached).div_ceil(lines.max(1)))
    {
        None => "?".to_owned(),
        Some(0) => "-".to_owned(),
        // 100 % is shown only if every line was reached.
        Some(100) if *reached < Some(lines) => "99 %".to_owned(),
        Some(share) => format!("{share} %"),
    };
    let shares: Vec<String> = reached.iter().map(share).collect();
    _ = writeln!(out, "| {name} | {lines} | {} |", shares.join(" | "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shipping_statement_has_a_reach_probe() {
        let text = "\
fn f(a: u32) -> u32 {
    let b = match a { 1 => 2,
        _ => { g(); 3 }
    };
    planted!(\"no\" => 1);
    #[cfg(loom)]
    h();
    if b > 1 { return 1 } else {
        2
    }
}
#[cfg(test)]
mod t { fn g() { h(); } }
const A: u32 = { 1 };
const fn k() -> u32 { 1 }
#[unsafe(naked)]
fn l() {
    naked_asm!()
}
";
        let probed = ProbedFile::new("a.rs", text, 7).unwrap();
        assert_eq!(probed.probes.keys().copied().collect::<Vec<_>>(), [2, 3, 8, 9]);
        assert_eq!(probed.numbers().collect::<Vec<_>>(), [7, 8, 9, 10]);
        let with = probed.text();
        assert_eq!(with.matches("reach_switch::on(7)").count(), 2, "{with}");
        assert!(with.contains("1 => { crate::reach_switch::on(7); 2 },"), "{with}");
        assert!(syn::parse_file(&with).is_ok() && with.lines().count() == text.lines().count(), "{with}");
        let mut less = probed.clone();
        assert_eq!(less.remove_probes(&(2..4)), [2, 3]);
        assert_eq!((less.len(), less.remove_probes(&(2..4))), (2, vec![]));
    }

    #[test]
    fn reach_table_names_the_unreached_files() {
        let probed = ProbedFile::new("a.rs", "fn f() {\n g();\n h();\n k(); }", 0).unwrap();
        let files = BTreeMap::from([("slab/pool/src/a.rs".to_owned(), probed)]);
        let mut reached = [(); REACH_TOOLS.len()].map(|()| Some(HashSet::new()));
        reached[1] = None;
        reached[5] = Some(HashSet::from([0, 2]));
        reached[9] = Some(HashSet::from([0, 1, 2, 9]));
        let table = Table::new(&files, &reached);
        let text = table.text();
        assert!(
            text.contains("| slab/pool/src/a.rs | 3 | - | ? | - | - | - | 67 % | - | - | - | 100 % |\n"),
            "{text}"
        );
        assert!(text.contains("| **slab/pool** | 3 |"), "{text}");
        assert_eq!(table.unreached(), BTreeSet::from(["slab/pool/src/a.rs"]));
        let reasons = |file: &str| [UnreachedFiles { files: vec![file.to_owned()], reason: String::new() }];
        assert!(table.mismatched_reasons(&reasons("slab/pool/src/a.rs")).is_empty());
        let said = table.mismatched_reasons(&reasons("slab/src/b.rs")).join("\n");
        for expected in
            ["slab/pool/src/a.rs: no concurrent checker", "slab/src/b.rs: tests/claims.toml gives a reason"]
        {
            assert!(said.contains(expected), "{said}");
        }
    }
}
