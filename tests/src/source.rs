//! Finds the memory orderings and planted bugs in the sources, even if no model reaches them.
//!
//! The scan follows the modules of a crate from `lib.rs`; it reads *tokens* instead of a syntax tree. Because it reads
//! tokens, an ordering in a macro's arguments (`debug_assert!(x.load(Relaxed) == 0)`) is a site like any other;
//! comments and strings contain no sites. The position of a site is the position of the operation's name, as in
//! `Location::caller`, so that it can be compared with positions that the hook of `uslab-sync` reports.
//!
//! Invariant of the scan: it misses no ordering site. An ordering is an error if it is neither in a `use` nor an
//! argument of an atomic operation (a constant, for example), because its use is then unknown. A planted bug is an
//! error unless its name is a literal in a `planted!` statement.
//!
//! For each site, [`Build`] states which builds compile the site, according to its `cfg`. In a `cfg`, only the names in
//! `cfg_value` are evaluated. All other names (such as the target's) count as true, so in case of doubt a model must
//! reach the site.

use anyhow::{Context, anyhow, ensure};
use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// The directory of the facade `uslab-sync`, through which all other files use the checker. Orderings in the facade
/// belong to statistics, which use `std`'s atomics in every build; they must be `Relaxed`.
const SYNC_FACADE_FOLDER: &str = "magazine/sync/src/";
/// The directory of files that use the facade in the same way as any other code.
const FACADE_USERS_FOLDER: &str = "magazine/sync/src/observers";
/// The loom backend of the facade, which handles orderings as values.
const LOOM_FACADE_FILE: &str = "magazine/sync/src/loom.rs";
/// Files that loom compiles because other code refers to them, although no model runs their lines. The command `cargo
/// check-reach` shows which lines other tools reach.
const FILES_WITHOUT_MODEL_RUNS: [&str; 3] =
    ["slab/src/debug/stacks.rs", "slab/src/debug/tracks.rs", "slab/src/reclaim/reaper/background.rs"];

/// A memory ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Ordering {
    /// The weakest ordering; a fence with `Relaxed` has no effect.
    Relaxed,
    /// The acquire ordering, for loads.
    Acquire,
    /// The release ordering, for stores.
    Release,
    /// The ordering of read-modify-write operations, which both load and store.
    AcqRel,
    /// Like `AcqRel`, but all `SeqCst` operations also have a single total order.
    SeqCst,
}
use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

impl Ordering {
    /// Returns the ordering with this name, or `None` if no ordering has this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Relaxed, Acquire, Release, AcqRel, SeqCst]
            .into_iter()
            .find(|ordering| format!("{ordering:?}") == name)
    }
}

impl fmt::Display for Ordering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The kind of atomic operation that takes an ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// An atomic load.
    Load,
    /// An atomic store.
    Store,
    /// A read-modify-write: a swap, an addition, or a successful compare-and-exchange.
    ReadModifyWrite,
    /// A failed compare-and-exchange.
    Failure,
    /// A standalone fence.
    Fence,
}

impl Operation {
    /// Returns the operation that uses the given argument of a call of `name`, or `None` if the argument is not an
    /// ordering.
    fn of(name: &str, argument: u32) -> Option<Self> {
        Some(match name {
            "load" => Self::Load,
            "store" => Self::Store,
            "fence" => Self::Fence,
            "compare_exchange" | "compare_exchange_weak" if argument == 3 => Self::Failure,
            "compare_exchange" | "compare_exchange_weak" | "swap" => Self::ReadModifyWrite,
            _ if name.starts_with("fetch_") => Self::ReadModifyWrite,
            _ => return None,
        })
    }
    /// Returns all orderings that are valid for the operation and weaker than `own`.
    pub fn weaker(self, own: Ordering) -> &'static [Ordering] {
        match (self, own) {
            (_, Relaxed) => &[],
            (_, Acquire | Release) => &[Relaxed],
            (_, AcqRel) => &[Acquire, Release, Relaxed],
            (Self::Load | Self::Failure, SeqCst) => &[Acquire, Relaxed],
            (Self::Store, SeqCst) => &[Release, Relaxed],
            (Self::ReadModifyWrite | Self::Fence, SeqCst) => &[AcqRel, Acquire, Release, Relaxed],
        }
    }
}

/// The build that compiles an ordering site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Build {
    /// The build for loom compiles the site, so models must reach it.
    Loom,
    /// The shipping build compiles the site, and the build for loom does not.
    Shipping,
    /// Neither the shipping build nor the build for loom compiles the site: it is in a test, or in code for shuttle.
    Tests,
}

/// An ordering site, which is an ordering argument of an atomic operation.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Site {
    /// The file of the site, relative to the root of the workspace.
    pub file: String,
    /// The line of the site; the first line is 1.
    pub line: usize,
    /// The column in characters at which the name of the operation begins; the first column is 1.
    pub column: usize,
    /// The index of the argument in the call; the first argument has index 0.
    pub argument: u32,
    /// The operation that takes the ordering.
    pub operation: Operation,
    /// The ordering that the source has.
    pub ordering: Ordering,
    /// The function that contains the site.
    pub function: String,
    /// The source line of the site, trimmed.
    pub text: String,
    /// The build that compiles the site.
    pub build: Build,
}

impl Site {
    /// Returns the name that the hook reports for the site: `file:line:column:argument`.
    pub fn id(&self) -> String {
        format!("{}:{}:{}:{}", self.file, self.line, self.column, self.argument)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, function, .. } = self;
        let failure = if self.operation == Operation::Failure { " (failure)" } else { "" };
        write!(f, "{file}:{line}:{column} {function}: {}{failure}", self.ordering)
    }
}

/// The sites and planted bugs that a scan of the sources has found.
#[derive(Debug, Default)]
pub struct Sources {
    /// All ordering sites, in the order of the modules.
    pub sites: Vec<Site>,
    /// The names of all statements that plant bugs, including bugs in models; the flag is `true` if a shipping build
    /// may compile the statement.
    pub planted: BTreeMap<String, bool>,
    /// The names of all planted bugs in tables of scenarios.
    pub named: BTreeSet<String>,
}

impl Sources {
    /// Scans several crates; each is given by the path of its `lib.rs`, relative to `root`.
    ///
    /// # Errors
    /// Fails if a file cannot be read or parsed, or if an ordering or a planted bug breaks the
    /// [module's](self) invariant.
    pub fn scan<P: AsRef<Path>>(root: &Path, crates: &[P]) -> anyhow::Result<Self> {
        let mut sources = Self::default();
        for lib in crates {
            sources.file(root, lib.as_ref(), Guard::USED_IN_EVERY_BUILD, false)?;
        }
        Ok(sources)
    }

    /// Scans a file; the files of its child modules are in a subdirectory, or next to the file.
    fn file(&mut self, root: &Path, path: &Path, guard: Guard, beside: bool) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(root.join(path)).with_context(|| path.display().to_string())?;
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow!("{}: not Rust: {error}", path.display()))?;
        let not_run = FILES_WITHOUT_MODEL_RUNS.iter().any(|file| path == Path::new(file));
        let guard = if not_run { Guard { loom: false, ..guard } } else { guard };
        let modules = if beside { path.with_extension("") } else { path.with_file_name("") };
        let mut scan = Scan { sources: self, root, path, lines: text.lines().collect() };
        scan.level(tokens, SourcePosition { guard, function: String::new(), modules })
    }
}

/// Returns the number of lines that a shipping build may compile: lines with at least one token outside comments and
/// outside code for tests or checkers.
///
/// # Errors
/// Fails if the text is not valid Rust.
pub fn shipping_lines(text: &str) -> anyhow::Result<usize> {
    let tokens: TokenStream = text.parse().map_err(|error| anyhow!("not Rust: {error}"))?;
    let mut lines = BTreeSet::new();
    mark_shipping_lines(&tokens.into_iter().collect::<Vec<_>>(), &mut lines);
    Ok(lines.len())
}

fn mark_shipping_lines(tokens: &[TokenTree], lines: &mut BTreeSet<usize>) {
    let mark = |lines: &mut BTreeSet<usize>, span: Span| lines.extend(span.start().line..=span.end().line);
    let mut at = 0;
    while at < tokens.len() {
        if let Some(attribute) = Attribute::at(tokens, at) {
            at += attribute.length;
            if attribute.cfg().is_some_and(|guard| !guard.shipping) {
                // The attribute applies to the next item, with its other attributes; or to everything on this level.
                at = if attribute.inner { tokens.len() } else { at + item_length(&tokens[at..]) };
            } else if !is_ident(attribute.parts.first(), "doc") {
                mark(lines, attribute.span);
            }
            continue;
        }
        match &tokens[at] {
            TokenTree::Group(group) => {
                mark(lines, group.span_open());
                mark(lines, group.span_close());
                mark_shipping_lines(&group.stream().into_iter().collect::<Vec<_>>(), lines);
            }
            token => mark(lines, token.span()),
        }
        at += 1;
    }
}

/// Returns the name and the number of lines (see [`shipping_lines`]) of the longest function in a shipping build;
/// `None` if there is no function.
///
/// # Errors
/// Fails if the text is not valid Rust.
pub fn longest_function(text: &str) -> anyhow::Result<Option<(usize, String)>> {
    let tokens: TokenStream = text.parse().map_err(|error| anyhow!("not Rust: {error}"))?;
    let mut longest = None;
    measure_functions(&tokens.into_iter().collect::<Vec<_>>(), &mut longest);
    Ok(longest)
}

fn measure_functions(tokens: &[TokenTree], longest: &mut Option<(usize, String)>) {
    let mut at = 0;
    while at < tokens.len() {
        if let Some(attribute) = Attribute::at(tokens, at) {
            at += attribute.length;
            if attribute.cfg().is_some_and(|guard| !guard.shipping) {
                at = if attribute.inner { tokens.len() } else { at + item_length(&tokens[at..]) };
            }
            continue;
        }
        match (&tokens[at], tokens.get(at + 1)) {
            (TokenTree::Ident(word), Some(TokenTree::Ident(name))) if word == "fn" => {
                let ends = |token: &TokenTree| match token {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    token => is_punct(Some(token), ';'),
                };
                let length = tokens[at..].iter().position(ends).map_or(tokens.len() - at, |last| last + 1);
                let mut lines = BTreeSet::new();
                mark_shipping_lines(&tokens[at..at + length], &mut lines);
                *longest = longest.take().max(Some((lines.len(), name.to_string())));
                at += 1;
            }
            (TokenTree::Group(group), _) => {
                measure_functions(&group.stream().into_iter().collect::<Vec<_>>(), longest);
            }
            _ => {}
        }
        at += 1;
    }
}

/// Returns the number of lines that contain a checker's `cfg`.
pub fn checker_cfgs(text: &str) -> usize {
    let names_checker = |line: &&str| {
        let cfg = line.find("cfg(").or_else(|| line.find("cfg_attr(")).or_else(|| line.find("cfg!("));
        cfg.is_some_and(|at| {
            let words = line[at..].split(|c: char| !c.is_alphanumeric() && c != '_');
            words.take_while(|word| *word != "//").any(|word| word == "loom" || word == "shuttle")
        })
    };
    text.lines().filter(|line| !line.trim_start().starts_with("//")).filter(names_checker).count()
}

/// The set of builds that compile a piece of source code.
#[derive(Clone, Copy, Debug)]
struct Guard {
    loom: bool,
    shipping: bool,
}

impl Guard {
    const USED_IN_EVERY_BUILD: Self = Self { loom: true, shipping: true };

    fn and(self, other: Self) -> Self {
        Self { loom: self.loom && other.loom, shipping: self.shipping && other.shipping }
    }
    fn build(self) -> Build {
        match self {
            Self { loom: true, .. } => Build::Loom,
            Self { shipping: true, .. } => Build::Shipping,
            _ => Build::Tests,
        }
    }
    /// Returns the builds that may contain an item with this `cfg`.
    fn of(predicate: TokenStream) -> Self {
        let predicate: Vec<TokenTree> = predicate.into_iter().collect();
        let holds = |loom| value(&predicate, loom) != Some(false);
        Self { loom: holds(true), shipping: holds(false) }
    }
}

/// Returns `true` if a shipping build may compile an item that has this attribute.
pub fn ships(attribute: &syn::Attribute) -> bool {
    match &attribute.meta {
        syn::Meta::List(cfg) if cfg.path.is_ident("cfg") => Guard::of(cfg.tokens.clone()).shipping,
        _ => true,
    }
}

/// Returns `true` if the item has statements that a shipping build may compile.
pub fn has_code(item: &syn::Item) -> bool {
    use syn::Item::{Fn, Impl, Mod, Trait};
    let attributes = match item {
        Fn(f) => &f.attrs,
        Impl(i) => &i.attrs,
        Mod(m) => &m.attrs,
        Trait(t) => &t.attrs,
        _ => return false,
    };
    attributes.iter().all(ships)
}

/// An attribute in the token stream of a file.
struct Attribute {
    /// The number of the attribute's tokens.
    length: usize,
    /// `true` if the attribute applies to the enclosing item, as in `#![...]`.
    inner: bool,
    /// The tokens inside the attribute's brackets.
    parts: Vec<TokenTree>,
    /// The position of the tokens that are inside the brackets.
    span: Span,
}

impl Attribute {
    /// Returns the attribute that begins at the token with index `at`.
    fn at(tokens: &[TokenTree], at: usize) -> Option<Self> {
        let inner = is_punct(tokens.get(at + 1), '!');
        let before = 1 + usize::from(inner);
        let TokenTree::Group(brackets) = tokens.get(at + before)? else { return None };
        is_punct(tokens.get(at), '#').then(|| Self {
            length: before + 1,
            inner,
            parts: brackets.stream().into_iter().collect(),
            span: brackets.span(),
        })
    }
    /// If the attribute is a `cfg`, returns the builds that compile its item.
    fn cfg(&self) -> Option<Guard> {
        match &self.parts[..] {
            [TokenTree::Ident(name), TokenTree::Group(predicate)] if name == "cfg" => {
                Some(Guard::of(predicate.stream()))
            }
            _ => None,
        }
    }
    /// Returns the file that `cfg_attr(PREDICATE, path = "...")` gives a module, the builds that use it, and the builds
    /// that do not.
    fn conditional_path_attribute(&self) -> Option<(String, [Guard; 2])> {
        let [TokenTree::Ident(name), TokenTree::Group(content)] = &self.parts[..] else { return None };
        let content: Vec<TokenTree> = content.stream().into_iter().collect();
        let mut arguments = arguments(&content);
        let (predicate, [TokenTree::Ident(path), _, file]) = (arguments.next()?, arguments.next()?) else {
            return None;
        };
        let holds = |loom, value_of| value(predicate, loom) != Some(value_of);
        let builds = [false, true].map(|not| Guard { loom: holds(true, not), shipping: holds(false, not) });
        (name == "cfg_attr" && path == "path").then_some((string(file)?, builds))
    }
}

/// Returns the value of a name in a `cfg` if the value depends only on the build.
fn cfg_value(name: &str, loom: bool) -> Option<bool> {
    match name {
        "loom" => Some(loom),
        "test" | "doctest" | "shuttle" | "miri" | "uslab_models" | "uslab_planted" | "uslab_fuzz"
        | "uslab_tsan" => Some(false),
        _ => None,
    }
}

/// Returns the value of a `cfg` predicate; `None` if it is not known.
fn value(predicate: &[TokenTree], loom: bool) -> Option<bool> {
    let [TokenTree::Ident(name), rest @ ..] = predicate else { return None };
    let [TokenTree::Group(operands), ..] = rest else { return cfg_value(&name.to_string(), loom) };
    let operands: Vec<TokenTree> = operands.stream().into_iter().collect();
    let mut values = arguments(&operands).map(|operand| value(operand, loom));
    // The value that decides `any` or `all` alone.
    let decisive = match name.to_string().as_str() {
        "not" => return values.next().flatten().map(|value| !value),
        "any" => true,
        "all" => false,
        _ => return None,
    };
    let values: Vec<_> = values.collect();
    if values.contains(&Some(decisive)) {
        Some(decisive)
    } else {
        values.iter().all(Option::is_some).then_some(!decisive)
    }
}

/// Splits tokens at commas, and returns the parts that are not empty.
fn arguments(tokens: &[TokenTree]) -> impl Iterator<Item = &[TokenTree]> {
    tokens.split(|token| is_punct(Some(token), ',')).filter(|argument| !argument.is_empty())
}

fn is_punct(token: Option<&TokenTree>, punct: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == punct)
}

fn is_ident(token: Option<&TokenTree>, name: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == name)
}

/// Returns the content of a plain string literal.
fn string(token: &TokenTree) -> Option<String> {
    let literal = token.to_string();
    let content = literal.strip_prefix('"')?.strip_suffix('"')?;
    (!content.contains('\\')).then(|| content.to_owned())
}

/// Returns the number of tokens of the item, statement, field or match arm at the start of `tokens`.
fn item_length(tokens: &[TokenTree]) -> usize {
    // After these keywords a block is part of the element and does not end it.
    let goes_on = ["let", "return", "use", "static", "type", "break"];
    let constant = |at: usize| {
        is_ident(tokens.get(at), "const")
            && !["fn", "unsafe", "extern"].iter().any(|f| is_ident(tokens.get(at + 1), f))
    };
    let (mut angles, mut block_ends) = (0, true);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if constant(at) || goes_on.iter().any(|w| word == w) => block_ends = false,
            TokenTree::Punct(p) => match p.as_char() {
                '<' => angles += 1,
                '>' if !matches!(tokens.get(at.wrapping_sub(1)), Some(TokenTree::Punct(p)) if "-=".contains(p.as_char())) =>
                {
                    angles -= 1;
                }
                ';' => return at + 1,
                ',' if angles <= 0 => return at + 1,
                _ => {}
            },
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Brace
                    && block_ends
                    && !is_ident(tokens.get(at + 1), "else") =>
            {
                return at + 1;
            }
            _ => {}
        }
    }
    tokens.len()
}

/// The location of a sequence of tokens in the crate.
#[derive(Clone, Debug)]
struct SourcePosition {
    guard: Guard,
    function: String,
    /// The directory that contains modules declared at this position.
    modules: PathBuf,
}

/// The state of the scan of one file.
struct Scan<'a> {
    sources: &'a mut Sources,
    root: &'a Path,
    path: &'a Path,
    lines: Vec<&'a str>,
}

impl Scan<'_> {
    fn at(&self, span: Span) -> String {
        format!("{}:{}", self.path.display(), span.start().line)
    }

    fn level(&mut self, tokens: TokenStream, place: SourcePosition) -> anyhow::Result<()> {
        self.run(&tokens.into_iter().collect::<Vec<_>>(), place, None)
    }

    /// Scans a sequence of tokens that have the same nesting level. The parameter `file` is the `path` attribute of the
    /// first module declared in the sequence.
    fn run(
        &mut self,
        tokens: &[TokenTree],
        mut place: SourcePosition,
        file: Option<&str>,
    ) -> anyhow::Result<()> {
        // The guard and the path are from the attributes before the next element.
        let (mut guard, mut path): (Option<Guard>, Option<String>) = (None, None);
        let mut by_build: Option<(String, [Guard; 2])> = None;
        let mut at = 0;
        while at < tokens.len() {
            if let Some(attribute) = Attribute::at(tokens, at) {
                at += attribute.length;
                if let Some(of) = attribute.cfg() {
                    if attribute.inner {
                        place.guard = place.guard.and(of);
                    } else {
                        guard = Some(guard.unwrap_or(Guard::USED_IN_EVERY_BUILD).and(of));
                    }
                } else if let [TokenTree::Ident(name), _, value] = &attribute.parts[..]
                    && name == "path"
                {
                    path = string(value);
                } else if by_build.is_none() {
                    by_build = attribute.conditional_path_attribute();
                }
            } else if let Some((file, [these, others])) = by_build.take() {
                let end = at + item_length(&tokens[at..]);
                let guard = place.guard.and(guard.take().unwrap_or(Guard::USED_IN_EVERY_BUILD));
                for (of, file) in [(these, Some(&*file)), (others, None)] {
                    self.run(
                        &tokens[at..end],
                        SourcePosition { guard: guard.and(of), ..place.clone() },
                        file,
                    )?;
                }
                at = end;
            } else if guard.is_some() || path.is_some() {
                let end = at + item_length(&tokens[at..]);
                let guard = place.guard.and(guard.take().unwrap_or(Guard::USED_IN_EVERY_BUILD));
                self.run(
                    &tokens[at..end],
                    SourcePosition { guard, ..place.clone() },
                    path.take().as_deref(),
                )?;
                at = end;
            } else {
                at += self.element(tokens, at, &mut place, file)?;
            }
        }
        Ok(())
    }

    /// Scans the syntax element at the token with index `at`, and returns its number of tokens.
    fn element(
        &mut self,
        tokens: &[TokenTree],
        at: usize,
        place: &mut SourcePosition,
        file: Option<&str>,
    ) -> anyhow::Result<usize> {
        let word = match &tokens[at] {
            TokenTree::Ident(word) => word,
            TokenTree::Group(group) => {
                self.level(group.stream(), place.clone())?;
                return Ok(1);
            }
            _ => return Ok(1),
        };
        let name = word.to_string();
        let declared = at > 0 && is_ident(tokens.get(at - 1), "fn");
        let called = !declared
            && matches!(tokens.get(at + 1), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis);
        match (name.as_str(), tokens.get(at + 1)) {
            ("use", next) if !is_punct(next, '<') => {
                let rest = tokens[at..].iter().position(|token| is_punct(Some(token), ';'));
                return Ok(rest.map_or(tokens.len() - at, |semicolon| semicolon + 1));
            }
            ("fn", Some(TokenTree::Ident(function))) => place.function = function.to_string(),
            ("mod", Some(TokenTree::Ident(module))) => {
                self.module(module, tokens.get(at + 2), place, file)?;
                return Ok(3);
            }
            ("planted", next) if is_punct(next, '!') => {
                // The body of a planted bug is scanned like the code around it.
                if let Some(TokenTree::Group(group)) = tokens.get(at + 2) {
                    let bug = group.stream().into_iter().next();
                    let hides =
                        || anyhow!("{}: the name of a planted bug must be a literal", self.at(word.span()));
                    let bug = bug.as_ref().and_then(string).ok_or_else(hides)?;
                    *self.sources.planted.entry(bug).or_default() |= place.guard.shipping;
                }
            }
            ("scenarios", next) if is_punct(next, '!') => {
                if let Some(TokenTree::Group(table)) = tokens.get(at + 2) {
                    self.scenarios(table.stream());
                }
            }
            ("is_planted", _) => ensure!(
                !called || self.path.starts_with(SYNC_FACADE_FOLDER),
                "{}: a planted bug is a statement: write planted!(\"name\" => ...)",
                self.at(word.span())
            ),
            (_, Some(TokenTree::Group(group)))
                if called
                    && Operation::of(&name, 0).is_some()
                    && (name == "fence" || at > 0 && is_punct(tokens.get(at - 1), '.')) =>
            {
                let path = tokens[..at].iter().rev().take_while(|token| {
                    name == "fence" && (is_punct(Some(token), ':') || matches!(token, TokenTree::Ident(_)))
                });
                let begin = path.last().unwrap_or(&tokens[at]).span();
                self.call(&name, begin, group, place)?;
                return Ok(2);
            }
            _ => ensure!(
                Ordering::from_name(&name).is_none()
                    || place.guard.build() == Build::Tests
                    || self.path == Path::new(LOOM_FACADE_FILE),
                "{}: {name} must be an argument of an atomic operation",
                self.at(word.span())
            ),
        }
        Ok(1)
    }

    /// Finds the planted bugs in a table of scenarios; each bug is the first argument in a line after the runs of a
    /// scenario.
    fn scenarios(&mut self, table: TokenStream) {
        let groups = |tokens: TokenStream, wanted| {
            let tokens: Vec<TokenTree> = tokens.into_iter().collect();
            let group = |pair: &[TokenTree]| match pair {
                [TokenTree::Ident(name), TokenTree::Group(group)] if group.delimiter() == wanted => {
                    Some((name.to_string(), group.stream()))
                }
                _ => None,
            };
            tokens.windows(2).filter_map(group).collect::<Vec<_>>()
        };
        for (_, scenario) in groups(table, Delimiter::Brace) {
            for (line, arguments) in groups(scenario, Delimiter::Parenthesis) {
                if line != "loom" && line != "shuttle" {
                    self.sources.named.extend(arguments.into_iter().next().as_ref().and_then(string));
                }
            }
        }
    }

    fn module(
        &mut self,
        name: &Ident,
        next: Option<&TokenTree>,
        place: &SourcePosition,
        file: Option<&str>,
    ) -> anyhow::Result<()> {
        let name = name.to_string();
        let modules = place.modules.join(&name);
        match next {
            Some(TokenTree::Group(content)) => {
                return self.level(content.stream(), SourcePosition { modules, ..place.clone() });
            }
            _ if let Some(file) = file => {
                // The path is relative to the declaring file; child modules are next to the module's own file.
                let path = self.path.with_file_name(file);
                return self.sources.file(self.root, &path, place.guard, false);
            }
            _ => {}
        }
        let (beside, inside) = (modules.with_extension("rs"), modules.join("mod.rs"));
        if self.root.join(&inside).exists() {
            self.sources.file(self.root, &inside, place.guard, false)
        } else {
            self.sources.file(self.root, &beside, place.guard, true)
        }
    }

    /// Scans a call that may be an atomic operation; each ordering argument of the call is a site.
    fn call(&mut self, name: &str, begin: Span, group: &Group, place: &SourcePosition) -> anyhow::Result<()> {
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        for (argument, value) in (0..).zip(arguments(&tokens)) {
            let path =
                value.iter().all(|token| matches!(token, TokenTree::Ident(_)) || is_punct(Some(token), ':'));
            let ordering = value.last().and_then(|last| Ordering::from_name(&last.to_string()));
            let (true, Some(ordering), Some(operation)) = (path, ordering, Operation::of(name, argument))
            else {
                self.run(value, place.clone(), None)?;
                continue;
            };
            let build = place.guard.build();
            let file = self.path.display().to_string();
            if file.starts_with(SYNC_FACADE_FOLDER)
                && !file.starts_with(FACADE_USERS_FOLDER)
                && build != Build::Tests
            {
                ensure!(
                    ordering == Relaxed,
                    "{}: the facade's own orderings must be Relaxed",
                    self.at(begin)
                );
                continue;
            }
            let start = begin.start();
            self.sources.sites.push(Site {
                file,
                line: start.line,
                column: start.column + 1,
                argument,
                operation,
                ordering,
                function: place.function.clone(),
                text: self.lines.get(start.line - 1).map_or_else(String::new, |line| line.trim().to_owned()),
                build,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scans a crate that consists of one file, and returns its sites as `line:column:argument ordering build`.
    fn scan(text: &str) -> anyhow::Result<Vec<String>> {
        let root = tempfile::tempdir()?;
        std::fs::write(root.path().join("lib.rs"), text)?;
        let sources = Sources::scan(root.path(), &["lib.rs"])?;
        let show = |s: &Site| format!("{}:{}:{} {} {:?}", s.line, s.column, s.argument, s.ordering, s.build);
        Ok(sources.sites.iter().map(show).collect())
    }

    #[test]
    fn scanned_call_sites_equal_the_compiler_locations() {
        // Returns the position of a call that the hook sees, for the same text.
        #[track_caller]
        fn load(_: &(), _: Ordering) -> (u32, u32) {
            let at = core::panic::Location::caller();
            (at.line(), at.column())
        }
        trait Load {
            #[track_caller]
            fn load(&self, ordering: Ordering) -> (u32, u32);
        }
        impl Load for () {
            #[track_caller]
            fn load(&self, ordering: Ordering) -> (u32, u32) {
                load(self, ordering)
            }
        }
        let seen = ().load(Acquire);
        let own =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/source.rs")).unwrap();
        let line = own.lines().nth(seen.0 as usize - 1).unwrap();
        assert_eq!(scan(line).unwrap(), [format!("1:{}:0 Acquire Loom", seen.1)]);
    }

    #[test]
    fn atomic_operations_in_macros_are_counted() {
        let text = r#"
            // x.load(Acquire)
            fn f() { debug_assert_eq!(x.load(Acquire), "x.load(Acquire)"); }
            fn g() { x.store(y.load(Relaxed), core::sync::atomic::Ordering::Release) }
            fn h() { sync::fence(SeqCst); v.swap(1, 2); x.compare_exchange(0, 1, AcqRel, Acquire).ok(); }
        "#;
        let expected = [
            "3:41:0 Acquire Loom",
            "4:32:0 Relaxed Loom",
            "4:24:1 Release Loom",
            "5:22:0 SeqCst Loom",
            "5:59:2 AcqRel Loom",
            "5:59:3 Acquire Loom",
        ];
        assert_eq!(scan(text).unwrap(), expected);
    }

    #[test]
    fn cfg_attributes_determine_the_build_of_each_site() {
        let text = r#"
            #[cfg(loom)] fn a() { x.load(Relaxed) }
            #[cfg(not(any(loom, shuttle)))] fn b() { x.load(Relaxed) }
            #[cfg(all(test, not(loom)))] mod c { fn f() { x.load(Relaxed) } }
            #[cfg(all(target_os = "linux", not(any(loom, miri))))] const D: u32 = { x.load(Relaxed) }.y.load(Relaxed);
            fn e() { #[cfg(not(loom))] return { 1 } + x.load(Relaxed); x.load(Relaxed) }
            struct F { #[cfg(loom)] a: B<C, D>, b: E }
            fn g() { x.load(Relaxed) }
        "#;
        let found = scan(text).unwrap();
        let builds: Vec<&str> = found.iter().map(|site| site.rsplit(' ').next().unwrap()).collect();
        assert_eq!(
            builds,
            ["Loom", "Shipping", "Tests", "Shipping", "Shipping", "Shipping", "Loom", "Loom"],
            "{found:?}"
        );
    }

    #[test]
    fn shipping_lines_exclude_comments_and_tests() {
        let text = r#"
            //! Docs.

            #![allow(dead_code)]
            /// Docs.
            #[inline]
            fn f(
                a: u32, // why
            ) -> u32 {
                /* a
                   comment */
                #[cfg(test)]
                SEEN.add(1);
                a

            }
            #[cfg(any(test, loom))]
            #[derive(Debug)]
            struct World {
                a: u32,
            }
            #[cfg(not(loom))]
            const TEXT: &str = "two
                lines";
        "#;
        // The lines of: allow; inline, fn, a, the return type, a, the end; cfg, const, lines.
        assert_eq!(shipping_lines(text).unwrap(), 10);
        assert_eq!(shipping_lines("#![cfg(test)]\nfn f() {}").unwrap(), 0);
    }

    #[test]
    fn memory_ordering_outside_an_atomic_call_is_an_error() {
        for text in ["const O: Ordering = Ordering::Acquire;", "fn f() { let o = SeqCst; x.load(o) }"] {
            let error = scan(text).unwrap_err().to_string();
            assert!(error.contains("must be an argument of an atomic operation"), "{error}");
        }
        assert_eq!(scan("use core::sync::atomic::Ordering::{Acquire, Relaxed};").unwrap(), [""; 0]);
    }

    #[test]
    fn source_scan_finds_module_files_used_only_by_checkers() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).unwrap();
        write("lib.rs", "#[cfg_attr(any(loom, shuttle), path = \"cells.rs\")] mod layout;");
        write("cells.rs", "fn f() { x.load(Relaxed) }");
        write("layout.rs", "fn g() { x.load(Relaxed) }");
        let sources = Sources::scan(root.path(), &["lib.rs"]).unwrap();
        let found: Vec<_> = sources.sites.iter().map(|site| (&*site.file, site.build)).collect();
        assert_eq!(found, [("cells.rs", Build::Loom), ("layout.rs", Build::Shipping)]);
    }

    /// `check-all` fails if the scan finds a planted bug that no model has caught.
    #[test]
    fn source_scan_finds_each_planted_bug() {
        let text = r#"
            fn f() {
                planted!("first" => return);
                g(|x| { sync::planted! { "second" => let x = x.load(Relaxed) } x });
                // planted!("no code" => return);
                tell!("planted!(\"text\" => return)");
            }
            #[cfg(loom)] mod models { fn g() { planted!("third" => { planted!("fourth" => return); }); } }
            #[cfg(test)] mod tests { fn g() { planted!("first" => return); } }
            sync::scenarios! { a { loom("no bug", ONE, a); #[cfg(loom)] bug("fifth", "P1", "no bug"); } }
        "#;
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("lib.rs"), text).unwrap();
        let sources = Sources::scan(root.path(), &["lib.rs"]).unwrap();
        let ships: Vec<_> = sources.planted.iter().map(|(bug, ships)| (&**bug, *ships)).collect();
        assert_eq!(ships, [("first", true), ("fourth", false), ("second", true), ("third", false)]);
        assert_eq!(sources.named.iter().collect::<Vec<_>>(), ["fifth"]);
        // The body of a planted bug also has orderings.
        assert_eq!(sources.sites.len(), 1);
    }

    #[test]
    fn planted_bug_without_a_literal_name_is_an_error() {
        let error = |text| scan(text).unwrap_err().to_string();
        assert!(error("fn f() { planted!(BUG => return); }").contains("literal"));
        assert!(error(r#"fn f() { if sync::is_planted("x") {} }"#).contains("a planted bug is a statement"));
        assert!(scan(r#"fn planted(bug: &str) { planted("x") }"#).is_ok());
    }

    #[test]
    fn weaker_orderings_are_legal_for_each_operation() {
        assert_eq!(Operation::Load.weaker(SeqCst), [Acquire, Relaxed]);
        assert_eq!(Operation::Fence.weaker(SeqCst), [AcqRel, Acquire, Release, Relaxed]);
        assert_eq!(Operation::ReadModifyWrite.weaker(AcqRel), [Acquire, Release, Relaxed]);
        assert_eq!(Operation::Store.weaker(Release), [Relaxed]);
        assert!(Operation::Failure.weaker(Relaxed).is_empty());
    }
}
