//! Checks that the project's documents describe the project correctly. Links must have targets, named files and
//! commands must exist, the book must have the chapters in its summary, and ARCHITECTURE.md must state the right
//! numbers of lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use uslab_tests::imports::{Imports, crates};
use uslab_tests::source::{checker_cfgs, longest_function, shipping_lines};
use uslab_tests::workspace;

const BOOK_FOLDER: &str = "slab/book/src";

/// The crates that make up the allocator.
const CORE_CRATES: [&str; 3] = ["magazine", "buddy", "slab"];
/// Parts of these crates with separate rows in the table: separate products, and code that finds mistakes and runs only
/// if enabled. Each part is listed with the name of its row in the table. Two files that find mistakes belong to higher
/// modules than this part, because they import caches.
const PARTS_WITH_SEPARATE_ROWS: [(&str, &str); 10] = [
    ("slab/src/debug", "slab/src/debug"),
    ("slab/src/profile.rs", "slab/src/debug"),
    ("slab/src/profile", "slab/src/debug"),
    ("slab/src/harden.rs", "slab/src/debug"),
    ("slab/src/harden", "slab/src/debug"),
    ("slab/src/guard.rs", "slab/src/debug"),
    ("slab/src/guard", "slab/src/debug"),
    ("slab/src/cache/debugged.rs", "slab/src/debug"),
    ("slab/src/report/leaks.rs", "slab/src/debug"),
    ("slab/src/handle", "slab/src/handle"),
];
/// The error in lines at which a row of ARCHITECTURE.md's table must be rewritten.
const OFF: usize = 100;

/// Documents in which every named file must exist.
const CHECKED_PAGES: [&str; 12] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "STUDY.md",
    "slab/book/src/study.md",
    "slab/book/src/questions.md",
    "slab/book/src/sweep.md",
    "slab/book/src/check.md",
    "slab/book/src/embed.md",
    "slab/book/src/recipes.md",
    "slab/book/src/operate.md",
    "slab/book/src/c.md",
];

/// The subcommands that `cargo` has built in.
const CARGO: [&str; 10] =
    ["bench", "build", "check", "clippy", "doc", "fmt", "install", "publish", "run", "test"];

/// Collects all files below a folder, except build output, hidden files and symbolic links.
fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_symlink() || ["target", ".git", "node_modules"].iter().any(|other| name == *other) {
            continue;
        }
        if path.is_dir() { files(&path, out) } else { out.push(path) }
    }
}

fn pages() -> BTreeMap<PathBuf, String> {
    let mut all = Vec::new();
    files(workspace(), &mut all);
    let pages = all.into_iter().filter(|file| file.extension().is_some_and(|end| end == "md"));
    pages.map(|page| (page.clone(), std::fs::read_to_string(page).unwrap())).collect()
}

/// Returns a path relative to the folder of the workspace, for messages.
fn shown(path: &Path) -> String {
    path.strip_prefix(workspace()).unwrap_or(path).display().to_string()
}

/// Returns the lines of a page, each with its number and a flag, which is `true` between code fences.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut fenced = false;
    (1..).zip(text.lines()).map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (number, line, fenced || fence)
    })
}

/// Returns either the code spans of a line, or the text outside them.
fn parts(line: &str, code: bool) -> impl Iterator<Item = &str> {
    line.split('`').skip(usize::from(code)).step_by(2)
}

/// Returns the targets of all links in a line.
fn links(line: &str) -> Vec<&str> {
    // Code may contain the characters of a link, so it is skipped; a link's own text may be code.
    let inline =
        line.match_indices("](").filter(|(at, _)| line[..*at].matches('`').count().is_multiple_of(2));
    let mut links: Vec<&str> = inline.filter_map(|(at, _)| line[at + 2..].split(')').next()).collect();
    if line.starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        links.push(target);
    }
    links.into_iter().filter_map(|link| link.split_whitespace().next()).collect()
}

/// Returns the anchor of a heading in a page.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = lines(text).filter(|(_, line, code)| !code && line.starts_with('#'));
    headings.map(|(_, line, _)| anchor(line.trim_start_matches('#'))).collect()
}

/// Regression test: ARCHITECTURE.md contained merge conflict markers, and all other checks passed.
#[test]
fn no_document_has_merge_conflict_markers() {
    for (page, text) in pages() {
        let mark = text.lines().find(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "));
        assert_eq!(mark, None, "{}", shown(&page));
    }
}

#[test]
fn relative_links_in_documents_have_targets() {
    let pages = pages();
    let (mut wrong, mut count) = (String::new(), 0);
    for (page, text) in &pages {
        for (number, line, code) in lines(text) {
            for link in if code { Vec::new() } else { links(line) } {
                if link.contains("://") {
                    continue;
                }
                count += 1;
                let (path, section) = link.split_once('#').unwrap_or((link, ""));
                let target = if path.is_empty() { page.clone() } else { page.with_file_name(path) };
                let Ok(target) = target.canonicalize() else {
                    writeln!(wrong, "{}:{number}: {link} does not exist", shown(page)).unwrap();
                    continue;
                };
                let has = |text: &String| anchors(text).contains(section);
                if !section.is_empty() && !pages.get(&target).is_some_and(has) {
                    writeln!(wrong, "{}:{number}: {} has no heading #{section}", shown(page), shown(&target))
                        .unwrap();
                }
                let book = workspace().join(BOOK_FOLDER);
                if page.starts_with(&book) && !target.starts_with(&book) {
                    writeln!(
                        wrong,
                        "{}:{number}: {link} is outside the book; name the file instead of linking to it",
                        shown(page)
                    )
                    .unwrap();
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 10, "found only {count} links");
}

#[test]
fn summary_of_the_book_lists_each_page() {
    let book = workspace().join(BOOK_FOLDER);
    let summary = std::fs::read_to_string(book.join("SUMMARY.md")).unwrap();
    let mut named: BTreeSet<PathBuf> = summary.lines().flat_map(links).map(|page| book.join(page)).collect();
    assert!(named.len() >= 4, "{named:?}");
    named.insert(book.join("SUMMARY.md"));
    let there: BTreeSet<PathBuf> = pages().into_keys().filter(|page| page.starts_with(&book)).collect();
    assert_eq!(named, there, "SUMMARY.md must name exactly the existing pages");
}

/// Expands a name such as `a/{b,c}.rs` to the names of the two files.
fn expand_braces(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else { return vec![name.to_owned()] };
    let Some((inside, after)) = rest.split_once('}') else { return vec![name.to_owned()] };
    inside.split(',').flat_map(|part| expand_braces(&format!("{before}{part}{after}"))).collect()
}

/// Returns `true` if a code span in a page names a file or folder.
fn is_path(code: &str) -> bool {
    let plain = code.chars().all(|c| c.is_ascii_alphanumeric() || "/._-{},*".contains(c));
    let known = ["rs", "js", "toml", "md", "html", "wasm", "sh", "h", "c", "png", "sources"];
    let ends = Path::new(code).extension().is_some_and(|end| known.iter().any(|known| end == *known));
    plain
        && code.contains('/')
        && !code.starts_with('/')
        && !code.starts_with("target/")
        && (ends || code.ends_with('/'))
}

#[test]
fn each_file_named_in_architecture_maps_exists() {
    let mut all = Vec::new();
    files(workspace(), &mut all);
    let all: Vec<String> = all.iter().map(|file| format!("/{}", shown(file))).collect();
    let exists = |name: &str| {
        // The second file in a table's row may be named relative to the first one's folder; `*` is any folder.
        let end = format!("/{}", name.trim_start_matches("*/"));
        workspace().join(name).exists() || all.iter().any(|file| file.ends_with(&end))
    };
    let (mut wrong, mut count) = (String::new(), 0);
    for map in CHECKED_PAGES {
        let text = std::fs::read_to_string(workspace().join(map)).unwrap();
        for (number, line, _) in lines(&text).filter(|(_, _, code)| !code) {
            for name in parts(line, true).filter(|code| is_path(code)).flat_map(expand_braces) {
                count += 1;
                if !exists(&name) {
                    writeln!(wrong, "{map}:{number}: {name} does not exist").unwrap();
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 60, "found only {count} files");
}

/// In CONTRIBUTING.md, a list item that begins with a file name describes what to change in the file.
#[test]
fn identifiers_named_in_contributing_md_exist() {
    let text = std::fs::read_to_string(workspace().join("CONTRIBUTING.md")).unwrap();
    let (mut wrong, mut count) = (String::new(), 0);
    for point in text.split("\n- `").skip(1) {
        let end = ["\n\n", "\n- "].iter().filter_map(|next| point.find(next)).min().unwrap_or(point.len());
        let Some((file, rest)) = point[..end].split_once('`') else { continue };
        let Ok(source) = std::fs::read_to_string(workspace().join(file)) else { continue };
        let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
        for name in parts(rest, true).filter(is_name) {
            count += 1;
            if !source.contains(name.rsplit("::").next().unwrap_or(name)) {
                writeln!(wrong, "CONTRIBUTING.md: {file} has no {name}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 8, "found only {count} names");
}

#[test]
fn each_documented_cargo_command_exists() {
    let config = std::fs::read_to_string(workspace().join(".cargo/config.toml")).unwrap();
    let config: toml::Table = config.parse().unwrap();
    let aliases = config["alias"].as_table().unwrap();
    let (mut wrong, mut seen) = (String::new(), BTreeSet::new());
    for (page, text) in pages() {
        for (number, line, code) in lines(&text) {
            let commands: Vec<&str> = if code {
                line.trim_start().strip_prefix("$ ").into_iter().collect()
            } else {
                parts(line, true).filter(|code| code.starts_with("cargo ")).collect()
            };
            for command in commands {
                let mut words = command.split_whitespace().skip_while(|word| *word != "cargo").skip(1);
                let Some(verb) = words.next() else { continue };
                if !CARGO.contains(&verb) && !aliases.contains_key(verb) {
                    writeln!(wrong, "{}:{number}: `cargo {verb}` does not exist", shown(&page)).unwrap();
                }
                seen.insert(verb.to_owned());
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let unsaid: Vec<&String> = aliases.keys().filter(|alias| !seen.contains(*alias)).collect();
    assert!(unsaid.is_empty(), "a page must name each of {unsaid:?}");
}

/// CI must run the first two commands of README.md.
#[test]
fn ci_runs_the_first_two_commands_of_the_readme() {
    let readme = std::fs::read_to_string(workspace().join("README.md")).unwrap();
    let ci = std::fs::read_to_string(workspace().join(".ci/run")).unwrap();
    let commands = readme.lines().filter_map(|line| line.strip_prefix("$ "));
    let first: Vec<&str> = commands.map(|line| line.split('#').next().unwrap_or("").trim()).take(2).collect();
    assert_eq!(first, ["cargo uslab", "cargo check-all"]);
    for command in first {
        assert!(ci.lines().any(|line| line == command), ".ci/run does not run `{command}`");
    }
}

/// If a `--skip` in a script matches no test name, the test that it should skip is run.
#[test]
fn each_skip_option_in_scripts_matches_a_test() {
    let mut sources = Vec::new();
    for folder in ["magazine", "buddy", "slab", "sim", "tests"] {
        files(&workspace().join(folder), &mut sources);
    }
    let is_source = |file: &&PathBuf| file.extension().is_some_and(|kind| kind == "rs");
    let sources: Vec<_> =
        sources.iter().filter(is_source).map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let mut skips = 0;
    for script in std::fs::read_dir(workspace().join(".ci")).unwrap() {
        let script = script.unwrap().path();
        let text = std::fs::read_to_string(&script).unwrap();
        for skip in text.split("--skip ").skip(1) {
            let skip = skip.split([' ', '\n', '"']).next().unwrap().trim_end_matches("::");
            let name = skip.rsplit("::").next().unwrap();
            let is_named = |line: &str| {
                let item = line.split_once("fn ").or_else(|| line.split_once("mod "));
                item.is_some_and(|(_, rest)| rest.contains(name))
            };
            assert!(
                sources.iter().any(|source| source.lines().any(is_named)),
                "{}: a test must have `{skip}` in its name",
                shown(&script)
            );
            skips += 1;
        }
    }
    assert!(skips > 10, "{skips}");
}

#[test]
fn document_links_are_parsed_outside_code_blocks() {
    assert_eq!(links("[a](b.md) and [`c`](d.md#e \"f\"), `[g](h)`"), ["b.md", "d.md#e"]);
    assert_eq!(links("[loom]: ../x.md"), ["../x.md"]);
    assert_eq!(anchor(" Who's `first`, and why?"), "whos-first-and-why");
    assert_eq!(expand_braces("a/{b,c/}d.rs"), ["a/bd.rs", "a/c/d.rs"]);
    assert!(is_path("slab/src/lib.rs") && is_path("magazine/src/cpu/"));
    assert!(!is_path("/proc/slabinfo") && !is_path("lib.rs") && !is_path("a / b.rs") && !is_path("GPL/MIT"));
    let page = "`a`\n```console\n# b\n```\n# c\n";
    assert_eq!(lines(page).filter(|(_, _, code)| !code).map(|(n, ..)| n).collect::<Vec<_>>(), [1, 5]);
    assert_eq!(anchors(page), BTreeSet::from(["c".to_owned()]));
}

/// Counts the shipping lines of each crate for ARCHITECTURE.md's first table: without comments, docs, tests, and code
/// that only checkers compile. Examples and benchmarks do not count as shipping code. For the allocator's crates,
/// ARCHITECTURE.md's second table limits two numbers: lines with a checker's `cfg` per 1,000 shipping lines, and lines
/// in the longest function. With `WRITE=1`, the test writes both tables; a limit in the second table can only become
/// lower.
#[test]
fn shipping_line_counts_equal_the_documented_numbers() {
    let mut table: BTreeMap<String, usize> = BTreeMap::new();
    let mut numbers: BTreeMap<String, CrateNumbers> = BTreeMap::new();
    let mut core = 0;
    for member in crates(workspace()).unwrap() {
        let directory = member.directory.display().to_string();
        if directory == "tests" || directory == "benches" {
            continue;
        }
        let roots = member.root_files().map(|root| workspace().join(root)).filter(|root| root.is_file());
        let drawings: Vec<_> = roots.map(|root| Imports::draw(&root).unwrap()).collect();
        // A path that starts with `..` belongs to another crate.
        let own = |file: &&Path| !file.iter().any(|step| step == "..");
        let files: BTreeSet<&Path> = drawings.iter().flat_map(Imports::paths).filter(own).collect();
        for file in files {
            let text = std::fs::read_to_string(file).unwrap();
            let lines = shipping_lines(&text).unwrap();
            let apart = PARTS_WITH_SEPARATE_ROWS
                .into_iter()
                .find(|(place, _)| file.starts_with(workspace().join(place)));
            let apart = apart.map(|(_, row)| row);
            if CORE_CRATES.contains(&&*directory) {
                core += if apart.is_none() { lines } else { 0 };
                numbers.entry(format!("`{directory}/src`")).or_default().add(&text, lines);
            }
            *table.entry(apart.map_or_else(|| directory.clone(), str::to_owned)).or_default() += lines;
        }
    }
    let all = table.values().sum();
    table.extend([("the allocator".to_owned(), core), ("all".to_owned(), all)]);
    let page = workspace().join("ARCHITECTURE.md");
    let mut text = std::fs::read_to_string(&page).unwrap();
    let mut wrong = String::new();
    let row_of = |text: &str, name: &str| {
        let begin = format!("| {name} | ");
        let row = text.lines().find_map(|row| row.strip_prefix(&begin)).map(str::to_owned);
        (row.unwrap_or_else(|| panic!("ARCHITECTURE.md has no row {begin}")), begin)
    };
    for (name, lines) in &table {
        println!("LINES | {name} | {lines}");
        let (row, begin) = row_of(&text, name);
        let said: usize = row.trim_end_matches(" |").parse().unwrap_or(0);
        if said.abs_diff(*lines) > OFF {
            writeln!(wrong, "ARCHITECTURE.md has {begin}{row}, but there are {lines} lines").unwrap();
        }
        text = text.replace(&format!("{begin}{row}"), &format!("{begin}{lines} |"));
    }
    if std::env::var_os("WRITE").is_some() {
        wrong.clear();
    }
    for (name, now) in &numbers {
        let (row, begin) = row_of(&text, name);
        let said: Vec<f64> = row.split('|').map_while(|cell| cell.trim().parse().ok()).collect();
        let now = [now.cfgs_per_1000_lines(), now.longest.0 as f64];
        println!("NUMBERS | {name} | {:.1} | {} `{}`", now[0], now[1], numbers[name].longest.1);
        for (what, (now, most)) in
            ["lines with a checker's `cfg` for 1,000 lines", "lines of the longest function"]
                .into_iter()
                .zip(now.into_iter().zip(said.iter().copied().chain([f64::INFINITY; 2])))
        {
            // The number is printed with one digit.
            if now > most + 0.05 {
                writeln!(wrong, "{name}: {now:.1} {what} (`{}`), at most {most}", numbers[name].longest.1)
                    .unwrap();
            }
        }
        let [cfgs, longest] = [0, 1].map(|n| now[n].min(said.get(n).copied().unwrap_or(f64::INFINITY)));
        text = text.replace(&format!("{begin}{row}"), &format!("{begin}{cfgs:.1} | {longest} |"));
    }
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(&page, text).unwrap();
    }
    assert!(
        wrong.is_empty(),
        "{wrong}`WRITE=1 cargo test -p uslab-tests --test project shipping` writes the tables"
    );
}

/// Counts of one crate, for the tables of ARCHITECTURE.md.
#[derive(Default)]
struct CrateNumbers {
    lines: usize,
    cfgs: usize,
    /// The length of the longest function in lines, and its name.
    longest: (usize, String),
}

impl CrateNumbers {
    fn add(&mut self, text: &str, lines: usize) {
        self.lines += lines;
        if lines > 0 {
            self.cfgs += checker_cfgs(text);
            self.longest =
                std::mem::take(&mut self.longest).max(longest_function(text).unwrap().unwrap_or_default());
        }
    }
    fn cfgs_per_1000_lines(&self) -> f64 {
        1000.0 * self.cfgs as f64 / self.lines as f64
    }
}
