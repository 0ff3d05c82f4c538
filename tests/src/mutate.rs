//! Makes mutants by rule: a mutant is a small change of a program's meaning. One source text contains all mutants, and
//! a number enables one of them.
//!
//! Each rule walks over the syntax tree of a file, and inserts its mutants next to the original code. For example, `a <
//! b` becomes `(if on(7) { a <= b } else { a < b })`. Mutants are inserted within lines, so line numbers and messages
//! of the file stay the same. [`SWITCH`] is the module that knows which mutant is enabled.
//!
//! | rule | its mutants |
//! |---|---|
//! | `compare`, `arithmetic`, `logic`, `negation` | another operator, or none |
//! | `condition` | an `if`, `while` or guard that is always true, or always false |
//! | `arm` | an arm that is never taken, if a later one matches everything |
//! | `else` | an `else` block that does nothing |
//! | `statement` | a statement is left out: a store, a fence, a rollback |
//! | `swap` | an atomic access trades places with the next one |
//! | `unlock` | a lock is released between two statements, and taken again |
//! | `first` | a loop skips its first iteration: one of two lists, one of several CPUs |
//! | `value` | a function returns a simple value immediately |
//! | `return` | a function returns before a statement |
//!
//! Only shipping code is mutated; tests, constants and macro arguments are not. Some mutants do not compile; the caller
//! detects them in a build and omits them.

use crate::source::{has_code, ships};
use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Pat, ReturnType, Stmt, Type, UnOp};

/// The text that is added to the root module of a crate. The function `on` returns `true` for only one mutant, which
/// the variable `MUTANT` names. If the variable `MUTANT_REACHED` names a file, `on` writes each mutant for which it is
/// called to this file, but only once. If `MUTANT` is [`MUTANT_ABSENT`], the process aborts immediately, because the
/// variable requires a build without mutants.
pub const SWITCH: &str = r#"
#[doc(hidden)]
#[allow(warnings, clippy::all)]
pub mod mutant_switch {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    const UNKNOWN: u32 = u32::MAX;
    const NONE: u32 = u32::MAX - 1;
    const REACHED_MUTANT: u32 = u32::MAX - 2;
    const SEEN_MUTANT_SLOTS: usize = 1 << 16;
    static ACTIVE_MUTANT: AtomicU32 = AtomicU32::new(UNKNOWN);
    static SEEN_MUTANTS: [AtomicBool; SEEN_MUTANT_SLOTS] = [const { AtomicBool::new(false) }; SEEN_MUTANT_SLOTS];

    pub fn on(mutant: u32) -> bool {
        let active = ACTIVE_MUTANT.load(Relaxed);
        active < REACHED_MUTANT && active == mutant || active >= REACHED_MUTANT && active != NONE && asked(mutant)
    }
    // Nothing here calls the heap: tests watch it, and what is changed may lie below it.
    unsafe extern "C" {
        fn getenv(name: *const std::ffi::c_char) -> *const std::ffi::c_char;
        fn write(file: i32, text: *const u8, bytes: usize) -> isize;
    }
    fn variable(name: &'static std::ffi::CStr) -> Option<&'static std::ffi::CStr> {
        // SAFETY: both end with a zero, and no test changes these variables.
        unsafe { getenv(name.as_ptr()).as_ref().map(|text| std::ffi::CStr::from_ptr(text)) }
    }
    #[cold]
    fn asked(mutant: u32) -> bool {
        if ACTIVE_MUTANT.load(Relaxed) == UNKNOWN {
            let named = variable(c"MUTANT").map(|text| text.to_str().ok());
            if named.flatten() == Some("absent") {
                let text = "this program is built from the copy of the sources with mutants in it, and not from the sources\n";
                // SAFETY: so many bytes of text.
                unsafe { write(2, text.as_ptr(), text.len()) };
                std::process::abort();
            }
            let named = named.map(|text| text.and_then(|text| text.parse().ok()));
            let noted = named.is_none() && variable(c"MUTANT_REACHED").is_some();
            ACTIVE_MUTANT.store(if noted { REACHED_MUTANT } else { named.flatten().unwrap_or(NONE) }, Relaxed);
            return on(mutant);
        }
        if !SEEN_MUTANTS[mutant as usize % SEEN_MUTANT_SLOTS].swap(true, Relaxed) {
            note(mutant);
        }
        false
    }
    // At once: the child of a fork ends without `atexit`, and what is killed does as well.
    fn note(mutant: u32) {
        use std::io::Write;
        use std::os::unix::ffi::OsStrExt;
        let Some(name) = variable(c"MUTANT_REACHED") else { return };
        let name = std::ffi::OsStr::from_bytes(name.to_bytes());
        let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(name) else { return };
        // A line at once: other threads and processes append to the file, too.
        let mut line = [0; 8];
        let mut rest = &mut line[..];
        let _ = writeln!(rest, "{mutant}");
        let left = rest.len();
        let _ = file.write_all(&line[..line.len() - left]);
    }
}
"#;

/// The value of `MUTANT` for programs that must be built from the original sources; with it, a program from a mutated
/// copy aborts.
pub const MUTANT_ABSENT: &str = "absent";

/// The names of all mutation rules; the module documentation describes the rules.
pub const RULES: [&str; 13] = [
    "compare",
    "arithmetic",
    "logic",
    "negation",
    "condition",
    "arm",
    "else",
    "statement",
    "swap",
    "unlock",
    "first",
    "value",
    "return",
];

/// A small change of the meaning of a program.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Mutant {
    /// The number that enables the mutant.
    pub number: u32,
    /// The file that contains the mutant, relative to the root of the workspace.
    pub file: String,
    /// The line of the mutant; the first line is 1.
    pub line: usize,
    /// The column of the mutant in bytes; the first column is 1.
    pub column: usize,
    /// The function that contains the mutant.
    pub function: String,
    /// The rule that made the mutant; the module documentation describes the rules.
    pub rule: String,
    /// The change of the source text, as `old -> new`.
    pub change: String,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, function, rule, change, .. } = self;
        write!(f, "{file}:{line}:{column} {function}: {rule}: {change}")
    }
}

/// A piece of text that is inserted into the source for a mutant.
#[derive(Debug)]
struct Insertion {
    at: usize,
    /// `true` if the text closes a syntax element that an earlier insertion opened.
    closes: bool,
    text: String,
    mutant: u32,
}

/// A source file with its mutants.
#[derive(Debug)]
pub struct MutatedSource {
    text: String,
    /// The mutants of the file, in the order of their numbers.
    pub mutants: Vec<Mutant>,
    inserts: Vec<Insertion>,
    /// The byte range of each function in the file.
    functions: Vec<Range<usize>>,
    /// Insertions that are independent of the selected mutants, such as `mut` for guards that are assigned.
    always: Vec<usize>,
}

/// A source text in which mutants were inserted.
#[derive(Debug)]
pub struct SwitchedSource {
    /// The source with all mutants, each behind a switch.
    pub text: String,
    /// The ranges of the inserted text, each with the number of its mutant.
    inserted: Vec<(Range<usize>, u32)>,
    /// The range of each mutant, from its first insertion to its last insertion.
    whole: Vec<(Range<usize>, u32)>,
    functions: Vec<Range<usize>>,
}

impl MutatedSource {
    /// Makes all mutants of `text`, the contents of `file`, numbered from `first`. The parameter `switch` is the path
    /// of the function `on` in [`SWITCH`].
    ///
    /// # Errors
    /// Fails if the text is not valid Rust.
    pub fn new(file: &str, text: &str, first: u32, switch: &str) -> anyhow::Result<Self> {
        let tree = syn::parse_file(text).map_err(|error| anyhow!("{file}: not Rust: {error}"))?;
        let mut walk =
            Walk { file, text, first, switch, function: vec![], unit: false, made: Self::empty(text) };
        walk.visit_file(&tree);
        Ok(walk.made)
    }

    fn empty(text: &str) -> Self {
        Self { text: text.to_owned(), mutants: vec![], inserts: vec![], functions: vec![], always: vec![] }
    }

    /// Returns the source text with only the mutants for which `chosen` returns `true`.
    pub fn with_mutant_switches(&self, chosen: impl Fn(u32) -> bool) -> SwitchedSource {
        // At one offset, closing insertions come before opening ones; inner ones close first, outer ones open first.
        let mut order: Vec<(usize, i64, usize)> = vec![];
        for (i, insert) in self.inserts.iter().enumerate().filter(|(_, insert)| chosen(insert.mutant)) {
            let i_signed = i64::try_from(i).unwrap_or(i64::MAX);
            order.push((insert.at, if insert.closes { -1 - i_signed } else { 1 + i_signed }, i));
        }
        let always = self.always.iter().map(|at| (*at, i64::MAX, usize::MAX));
        order.extend(always);
        order.sort_unstable();
        let (mut text, mut from) = (String::with_capacity(self.text.len() * 4), 0);
        let (mut inserted, mut begun) = (vec![], Vec::<(u32, usize)>::new());
        let mut whole = vec![];
        // The list maps offsets of the old text to the new one.
        let mut places = vec![(0, 0)];
        for (at, _, i) in order {
            text.push_str(&self.text[from..at]);
            from = at;
            let start = text.len();
            match self.inserts.get(i) {
                None => text.push_str("mut "),
                Some(Insertion { text: own, mutant, closes, .. }) => {
                    text.push_str(own);
                    inserted.push((start..text.len(), *mutant));
                    match (closes, begun.iter().rposition(|(open, _)| open == mutant)) {
                        (true, Some(open)) => whole.push((begun.remove(open).1..text.len(), *mutant)),
                        _ => begun.push((*mutant, start)),
                    }
                }
            }
            places.push((at, text.len() - at));
        }
        text.push_str(&self.text[from..]);
        let place = |at: usize| {
            let known = places.partition_point(|(from, _)| *from <= at) - 1;
            at + places[known].1
        };
        let functions = self.functions.iter().map(|range| place(range.start)..place(range.end)).collect();
        SwitchedSource { text, inserted, whole, functions }
    }
}

impl SwitchedSource {
    /// Returns the mutants that cause a compiler error at the given positions, of which the first is the main position.
    /// Returns an empty list if no mutant causes the error.
    pub fn mutants_at_places(&self, places: &[Range<usize>]) -> Vec<u32> {
        let inside = |place: &Range<usize>| {
            let of = self
                .inserted
                .iter()
                .filter(|(range, _)| range.start <= place.start && place.end <= range.end);
            of.map(|(_, mutant)| *mutant).next()
        };
        if let Some(mutant) = places.iter().find_map(inside) {
            return vec![mutant];
        }
        let Some(place) = places.first() else { return vec![] };
        let around =
            self.whole.iter().filter(|(range, _)| range.start <= place.start && place.end <= range.end);
        if let Some((_, mutant)) = around.min_by_key(|(range, _)| range.len()) {
            return vec![*mutant];
        }
        // The result is the mutants inserted within the range; or all mutants of the function.
        let within = |outer: &Range<usize>| -> Vec<u32> {
            let of = self
                .inserted
                .iter()
                .filter(|(range, _)| outer.start <= range.start && range.end <= outer.end);
            of.map(|(_, mutant)| *mutant).collect()
        };
        let mut blamed = within(place);
        if blamed.is_empty() {
            let around = self.functions.iter().filter(|f| f.start <= place.start && place.end <= f.end);
            blamed = around.min_by_key(|f| f.len()).map(within).unwrap_or_default();
        }
        blamed
    }
}

struct Walk<'t> {
    file: &'t str,
    text: &'t str,
    first: u32,
    switch: &'t str,
    /// The functions and modules that enclose the current expression.
    function: Vec<String>,
    /// `true` if the enclosing function returns nothing.
    unit: bool,
    made: MutatedSource,
}

fn range(of: &impl Spanned) -> Range<usize> {
    of.span().byte_range()
}

/// Returns `true` if execution never continues after the expression `expr`.
fn leaves(expr: &Expr) -> bool {
    matches!(expr, Expr::Return(_) | Expr::Break(_) | Expr::Continue(_))
}

/// Returns `true` if the expression has no effect and reads nothing that a lock may guard: it consists only of
/// literals, and of names other than `guard`.
fn is_without_side_effect(expr: &Expr, guard: &str) -> bool {
    let all = |mut of: syn::punctuated::Iter<'_, Expr>| of.all(|expr| is_without_side_effect(expr, guard));
    match expr {
        Expr::Lit(_) => true,
        Expr::Path(of) => !of.path.is_ident(guard),
        Expr::Paren(of) => is_without_side_effect(&of.expr, guard),
        Expr::Return(of) => of.expr.as_ref().is_none_or(|expr| is_without_side_effect(expr, guard)),
        Expr::Tuple(of) => all(of.elems.iter()),
        // `Some(1)`, but no call of a function.
        Expr::Call(of) => {
            let Expr::Path(callee) = &*of.func else { return false };
            let name = callee.path.segments.last().map(|last| last.ident.to_string());
            name.is_some_and(|name| name.starts_with(char::is_uppercase)) && all(of.args.iter())
        }
        _ => false,
    }
}

/// Returns the attributes of an expression that is used as a statement.
pub(crate) fn attributes(expr: &Expr) -> &[syn::Attribute] {
    match expr {
        Expr::Assign(of) => &of.attrs,
        Expr::Binary(of) => &of.attrs,
        Expr::Block(of) => &of.attrs,
        Expr::Call(of) => &of.attrs,
        Expr::ForLoop(of) => &of.attrs,
        Expr::If(of) => &of.attrs,
        Expr::Loop(of) => &of.attrs,
        Expr::Macro(of) => &of.attrs,
        Expr::Match(of) => &of.attrs,
        Expr::MethodCall(of) => &of.attrs,
        Expr::Return(of) => &of.attrs,
        Expr::Unsafe(of) => &of.attrs,
        Expr::While(of) => &of.attrs,
        _ => &[],
    }
}

/// Returns `true` if a condition binds a variable.
fn binds_variable(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(both) => binds_variable(&both.left) || binds_variable(&both.right),
        Expr::Paren(inner) => binds_variable(&inner.expr),
        _ => false,
    }
}

/// Returns `true` if the statement has a memory ordering, so that other CPUs may observe when it runs; swapping other
/// statements usually changes nothing.
fn is_order_observable(text: &str) -> bool {
    ["Relaxed)", "Acquire)", "Release)", "AcqRel)", "SeqCst)"].iter().any(|ordering| text.contains(ordering))
}

impl Walk<'_> {
    fn text(&self, of: &Range<usize>) -> &str {
        &self.text[of.clone()]
    }

    /// Adds a mutant, and returns its number.
    fn mutant(&mut self, at: usize, rule: &'static str, change: String) -> u32 {
        let number = self.first + u32::try_from(self.made.mutants.len()).unwrap_or(u32::MAX);
        let line = self.text[..at].matches('\n').count() + 1;
        let column = at - self.text[..at].rfind('\n').map_or(0, |end| end + 1) + 1;
        let change: Vec<&str> = change.split_whitespace().collect();
        let mut change = change.join(" ");
        if let Some((cut, _)) = change.char_indices().nth(100) {
            change.truncate(cut);
            change.push_str("...");
        }
        // If the description is cut, several mutants may look alike.
        let alike = |of: &&Mutant| {
            (of.line, of.column, &*of.rule) == (line, column, rule) && of.change.starts_with(&change)
        };
        let before = self.made.mutants.iter().filter(alike).count();
        if before > 0 {
            change = format!("{change} ({})", before + 1);
        }
        let function = self.function.last().cloned().unwrap_or_default();
        self.made.mutants.push(Mutant {
            number,
            file: self.file.to_owned(),
            line,
            column,
            function,
            rule: rule.to_owned(),
            change,
        });
        number
    }
    fn insert(&mut self, at: usize, closes: bool, text: String, mutant: u32) {
        self.made.inserts.push(Insertion { at, closes, text, mutant });
    }
    fn wrap_in_switch(&mut self, of: &Range<usize>, mutant: u32, before: String, after: &str) {
        self.insert(of.start, false, before, mutant);
        self.insert(of.end, true, after.to_owned(), mutant);
    }
    /// Adds a mutant that replaces the expression at `of` with `instead`.
    fn replace(&mut self, of: &Range<usize>, rule: &'static str, instead: &str) {
        let mutant = self.mutant(of.start, rule, format!("{} -> {instead}", self.text(of)));
        let before = format!("(if {}({mutant}) {{ {instead} }} else {{ ", self.switch);
        self.wrap_in_switch(of, mutant, before, " })");
    }
    /// Adds a mutant that skips the statements at `of`.
    fn add_skip_mutant(&mut self, of: &Range<usize>, rule: &'static str, change: String) {
        let mutant = self.mutant(of.start, rule, change);
        self.wrap_in_switch(of, mutant, format!("if !{}({mutant}) {{ ", self.switch), " }");
    }
    /// Adds a mutant whose condition is always false; if `holds` is set, also adds a mutant whose condition is always
    /// true.
    fn condition(&mut self, condition: &Expr, holds: bool) {
        let of = range(condition);
        let on = self.switch;
        if binds_variable(condition) {
            let mutant = self.mutant(of.start, "condition", format!("{} -> false", self.text(&of)));
            self.insert(of.start, false, format!("!{on}({mutant}) && "), mutant);
            return;
        }
        if holds {
            let mutant = self.mutant(of.start, "condition", format!("{} -> true", self.text(&of)));
            self.wrap_in_switch(&of, mutant, format!("({on}({mutant}) || ("), "))");
        }
        let mutant = self.mutant(of.start, "condition", format!("{} -> false", self.text(&of)));
        self.wrap_in_switch(&of, mutant, format!("(!{on}({mutant}) && ("), "))");
    }

    /// Mutates the body of a function that returns `output`.
    fn body(&mut self, name: String, whole: Range<usize>, output: &ReturnType, block: &Block) {
        let outer = std::mem::replace(&mut self.unit, matches!(output, ReturnType::Default));
        self.function.push(name);
        self.made.functions.push(whole);
        let start = block.brace_token.span.open().byte_range().end;
        let own = self.text(&(start..range(block).end - 1)).trim().to_owned();
        for value in values(output).iter().filter(|value| **value != own) {
            let mutant = self.mutant(start, "value", if value.is_empty() { "()" } else { value }.to_owned());
            self.insert(
                start,
                false,
                format!(" if {}({mutant}) {{ return {value}; }} ", self.switch),
                mutant,
            );
        }
        if self.unit {
            for stmt in
                block.stmts.iter().skip(1).filter(|stmt| !matches!(stmt, Stmt::Item(_) | Stmt::Macro(_)))
            {
                let at = range(stmt);
                let mutant = self.mutant(at.start, "return", format!("before {}", self.text(&at)));
                self.insert(at.start, false, format!("if {}({mutant}) {{ return; }} ", self.switch), mutant);
            }
        }
        self.visit_block(block);
        self.function.pop();
        self.unit = outer;
    }

    /// Adds mutants that release a lock and acquire it again, one mutant before each later statement.
    fn unlock(&mut self, stmts: &[Stmt]) {
        for (i, stmt) in stmts.iter().enumerate() {
            let Stmt::Local(local) = stmt else { continue };
            let (Pat::Ident(guard), Some(init)) = (&local.pat, &local.init) else { continue };
            let Expr::MethodCall(lock) = &*init.expr else { continue };
            if init.diverge.is_some() || !lock.method.to_string().starts_with("lock") {
                continue;
            }
            let (name, taken) = (guard.ident.to_string(), self.text(&range(&init.expr)).to_owned());
            // Only a planted bug releases the lock as well, and that does not ship.
            let stays = |stmt: &&Stmt| {
                matches!(stmt, Stmt::Macro(_)) || !self.text(&range(*stmt)).contains(&format!("drop({name})"))
            };
            let rest = stmts[i + 1..].iter().take_while(stays);
            // Before statements that do nothing the mutant would change nothing.
            let done =
                |stmt: &&Stmt| matches!(stmt, Stmt::Expr(expr, _) if is_without_side_effect(expr, &name));
            let end = stmts.last().filter(done).map_or(self.text.len(), |last| range(last).start);
            let rest: Vec<_> = rest.skip(1).map(range).filter(|at| at.start < end).collect();
            if !rest.is_empty() && guard.mutability.is_none() {
                self.made.always.push(range(&guard.ident).start);
            }
            for at in rest {
                let mutant = self.mutant(at.start, "unlock", format!("{name} before {}", self.text(&at)));
                let text = format!("if {}({mutant}) {{ drop({name}); {name} = {taken}; }} ", self.switch);
                self.insert(at.start, false, text, mutant);
            }
        }
    }
}

/// Returns the values that mutants of a function return immediately.
fn values(output: &ReturnType) -> &'static [&'static str] {
    let ReturnType::Type(_, of) = output else { return &[""] };
    let Type::Path(path) = &**of else { return &[] };
    let Some(last) = path.path.segments.last() else { return &[] };
    match last.ident.to_string().as_str() {
        "bool" => &["true", "false"],
        "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "isize" => &["0", "1"],
        "Option" => &["None"],
        "Result" => &["Ok(())"],
        "Vec" => &["Vec::new()"],
        _ => &[],
    }
}

fn other(op: &BinOp) -> (&'static str, &'static [&'static str]) {
    match op {
        BinOp::Lt(_) => ("compare", &["<=", ">"]),
        BinOp::Le(_) => ("compare", &["<", ">"]),
        BinOp::Gt(_) => ("compare", &[">=", "<"]),
        BinOp::Ge(_) => ("compare", &[">", "<"]),
        BinOp::Eq(_) => ("compare", &["!="]),
        BinOp::Ne(_) => ("compare", &["=="]),
        BinOp::Add(_) => ("arithmetic", &["-"]),
        BinOp::Sub(_) => ("arithmetic", &["+"]),
        BinOp::Mul(_) | BinOp::Rem(_) => ("arithmetic", &["/"]),
        BinOp::Div(_) => ("arithmetic", &["*"]),
        BinOp::Shl(_) => ("arithmetic", &[">>"]),
        BinOp::Shr(_) => ("arithmetic", &["<<"]),
        BinOp::BitAnd(_) => ("logic", &["|"]),
        BinOp::BitOr(_) | BinOp::BitXor(_) => ("logic", &["&"]),
        BinOp::And(_) => ("logic", &["||"]),
        BinOp::Or(_) => ("logic", &["&&"]),
        BinOp::AddAssign(_) => ("arithmetic", &["-="]),
        BinOp::SubAssign(_) => ("arithmetic", &["+="]),
        BinOp::BitAndAssign(_) => ("logic", &["|="]),
        BinOp::BitOrAssign(_) | BinOp::BitXorAssign(_) => ("logic", &["&="]),
        _ => ("", &[]),
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if has_code(item) {
            visit::visit_item(self, item);
        }
    }
    fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
        if f.sig.constness.is_none() {
            self.body(f.sig.ident.to_string(), range(f), &f.sig.output, &f.block);
        }
    }
    fn visit_impl_item_fn(&mut self, f: &'ast syn::ImplItemFn) {
        if f.sig.constness.is_none() && f.attrs.iter().all(ships) && f.sig.ident != "fmt" {
            self.body(f.sig.ident.to_string(), range(f), &f.sig.output, &f.block);
        }
    }
    fn visit_trait_item_fn(&mut self, f: &'ast syn::TraitItemFn) {
        if let Some(block) =
            f.default.as_ref().filter(|_| f.sig.constness.is_none() && f.attrs.iter().all(ships))
        {
            self.body(f.sig.ident.to_string(), range(f), &f.sig.output, block);
        }
    }
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if field.attrs.iter().all(ships) {
            visit::visit_field_value(self, field);
        }
    }
    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_block(&mut self, block: &'ast Block) {
        self.unlock(&block.stmts);
        let alone = |stmt: &Stmt| match stmt {
            Stmt::Expr(expr, semicolon) => {
                let structure = matches!(
                    expr,
                    Expr::If(_)
                        | Expr::ForLoop(_)
                        | Expr::While(_)
                        | Expr::Loop(_)
                        | Expr::Match(_)
                        | Expr::Unsafe(_)
                );
                (semicolon.is_some() || structure) && !leaves(expr) && !range(expr).is_empty()
            }
            _ => false,
        };
        for (i, stmt) in block.stmts.iter().enumerate() {
            let attrs = match stmt {
                Stmt::Local(local) => &local.attrs[..],
                Stmt::Expr(expr, _) => attributes(expr),
                _ => &[],
            };
            if !attrs.iter().all(ships) {
                continue;
            }
            if !attrs.is_empty() || !alone(stmt) {
                self.visit_stmt(stmt);
                continue;
            }
            let of = range(stmt);
            let next = block.stmts.get(i + 1).filter(|next| alone(next)).map(range);
            if let Some(next) = next
                .filter(|next| is_order_observable(self.text(&of)) && is_order_observable(self.text(next)))
            {
                let (this, moved) = (self.text(&of).to_owned(), self.text(&next).to_owned());
                let mutant = self.mutant(of.start, "swap", format!("{this} <-> {moved}"));
                self.insert(of.start, false, format!("if {}({mutant}) {{ {moved} }} ", self.switch), mutant);
                self.wrap_in_switch(&next, mutant, format!("if !{}({mutant}) {{ ", self.switch), " }");
            }
            let last = i + 1 == block.stmts.len();
            if !last || self.unit || self.text(&of).ends_with(';') {
                self.add_skip_mutant(&of, "statement", format!("{} -> nothing", self.text(&of)));
            }
            self.visit_stmt(stmt);
        }
    }

    fn visit_expr_if(&mut self, of: &'ast syn::ExprIf) {
        self.condition(&of.cond, true);
        if let Some((_, otherwise)) = &of.else_branch
            && let Expr::Block(block) = &**otherwise
            && let (Some(first), Some(last)) = (block.block.stmts.first(), block.block.stmts.last())
            && !matches!(last, Stmt::Expr(expr, None) if !matches!(expr, Expr::If(_) | Expr::ForLoop(_) | Expr::While(_)))
        {
            let all = range(first).start..range(last).end;
            self.add_skip_mutant(&all, "else", format!("else {} -> nothing", self.text(&all)));
        }
        visit::visit_expr_if(self, of);
    }
    fn visit_expr_while(&mut self, of: &'ast syn::ExprWhile) {
        self.condition(&of.cond, false);
        visit::visit_expr_while(self, of);
    }
    fn visit_expr_for_loop(&mut self, of: &'ast syn::ExprForLoop) {
        let rounds = range(&of.expr);
        let mutant = self.mutant(rounds.start, "first", format!("{} without its first", self.text(&rounds)));
        let skip = format!(").into_iter().skip(usize::from({}({mutant})))", self.switch);
        self.insert(rounds.start, false, "(".to_owned(), mutant);
        self.insert(rounds.end, true, skip, mutant);
        visit::visit_expr_for_loop(self, of);
    }
    fn visit_expr_match(&mut self, of: &'ast syn::ExprMatch) {
        // A name like `None` is a variant or a constant.
        let is_variable = |name: String| !name.starts_with(char::is_uppercase);
        let takes_all = |arm: &syn::Arm| match &arm.pat {
            Pat::Wild(_) => true,
            Pat::Ident(of) => is_variable(of.ident.to_string()),
            _ => false,
        };
        let last = of.arms.iter().rposition(takes_all).unwrap_or(0);
        self.visit_expr(&of.expr);
        for (i, arm) in of.arms.iter().enumerate().filter(|(_, arm)| arm.attrs.iter().all(ships)) {
            if let Pat::Guard(guarded) = &arm.pat {
                self.condition(&guarded.guard, true);
                self.visit_expr(&guarded.guard);
            } else if i < last {
                let at = range(&arm.pat);
                let mutant = self.mutant(at.start, "arm", format!("{} is never taken", self.text(&at)));
                self.insert(at.end, true, format!(" if !{}({mutant})", self.switch), mutant);
            }
            self.visit_expr(&arm.body);
        }
    }
    fn visit_expr_binary(&mut self, of: &'ast syn::ExprBinary) {
        let (rule, operators) = other(&of.op);
        if !binds_variable(&of.left) && !binds_variable(&of.right) {
            let (left, right, whole) = (range(&of.left), range(&of.right), range(of));
            for operator in operators {
                let instead = format!("{} {operator} {}", self.text(&left), self.text(&right));
                self.replace(&whole, rule, &instead);
            }
        }
        visit::visit_expr_binary(self, of);
    }
    fn visit_expr_unary(&mut self, of: &'ast syn::ExprUnary) {
        if matches!(of.op, UnOp::Not(_) | UnOp::Neg(_)) && !matches!(&*of.expr, Expr::Lit(_)) {
            let instead = self.text(&range(&of.expr)).to_owned();
            self.replace(&range(of), "negation", &instead);
        }
        visit::visit_expr_unary(self, of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Returns the text with each single mutant enabled, by rule and change; the test evaluates the switch itself.
    fn mutants(text: &str) -> Vec<String> {
        let made = MutatedSource::new("a.rs", text, 5, "on").unwrap();
        assert_eq!(made.with_mutant_switches(|_| false).text.replace("mut ", ""), text.replace("mut ", ""));
        let all = made.with_mutant_switches(|_| true);
        assert!(syn::parse_file(&all.text).is_ok(), "{}", all.text);
        assert_eq!(all.text.matches('\n').count(), text.matches('\n').count());
        made.mutants
            .iter()
            .map(|mutant| format!("{} {}: {}", mutant.function, mutant.rule, mutant.change))
            .collect()
    }

    #[test]
    fn each_mutation_rule_finds_its_mutants() {
        assert_eq!(
            mutants("fn f(a: u32) -> bool { a < 2 }"),
            ["f value: true", "f value: false", "f compare: a < 2 -> a <= 2", "f compare: a < 2 -> a > 2"]
        );
        assert_eq!(
            mutants("fn f() { x.store(1, Relaxed); y.store(2, Release); z.set(3); }"),
            [
                "f value: ()",
                "f return: before y.store(2, Release);",
                "f return: before z.set(3);",
                "f swap: x.store(1, Relaxed); <-> y.store(2, Release);",
                "f statement: x.store(1, Relaxed); -> nothing",
                "f statement: y.store(2, Release); -> nothing",
                "f statement: z.set(3); -> nothing",
            ]
        );
        assert_eq!(
            mutants("fn f() -> S { let g = s.lock(); g.a(); for n in nodes { g.b(n); } S }"),
            [
                "f unlock: g before for n in nodes { g.b(n); }",
                "f statement: g.a(); -> nothing",
                "f statement: for n in nodes { g.b(n); } -> nothing",
                "f first: nodes without its first",
                "f statement: g.b(n); -> nothing",
            ]
        );
        assert_eq!(
            mutants("fn f() -> S { let g = s.lock(); a; planted!(b => drop(g)); g.c; drop(g); S }"),
            [
                "f unlock: g before planted!(b => drop(g));",
                "f unlock: g before g.c;",
                "f statement: a; -> nothing",
                "f statement: g.c; -> nothing",
                "f statement: drop(g); -> nothing",
            ]
        );
        assert_eq!(
            mutants("fn f() -> S { match a { 1 => b, n if n > 2 => c, _ => !d } }"),
            [
                "f arm: 1 is never taken",
                "f condition: n > 2 -> true",
                "f condition: n > 2 -> false",
                "f compare: n > 2 -> n >= 2",
                "f compare: n > 2 -> n < 2",
                "f negation: !d -> d",
            ]
        );
        assert_eq!(mutants("fn f() -> S { match a { Some(b) => b, None => c } }"), [""; 0]);
        assert_eq!(
            mutants("fn f() -> S { if let Some(a) = b && c { d } else { e(); } }"),
            [
                "f condition: let Some(a) = b && c -> false",
                "f else: else e(); -> nothing",
                "f statement: e(); -> nothing"
            ]
        );
    }

    /// Without remaining work under the lock, this mutant would change nothing.
    #[test]
    fn unlock_mutation_skips_tail_expressions_without_guarded_data() {
        let unlocked = |last: &str| {
            let text = format!("fn f() -> S {{ let g = s.lock(); let a = g.a; {last} }}");
            mutants(&text).iter().filter(|mutant| mutant.contains("unlock")).count()
        };
        for last in
            ["1", "true", "a", "A::B", "()", "(a, 1)", "(a)", "None", "Ok(())", "Some(1)", "Err(E::F(a))"]
        {
            assert_eq!(unlocked(last), 0, "{last}");
            assert_eq!(unlocked(&format!("return {last};")), 0, "return {last}");
            assert_eq!(unlocked(&format!("h(); {last}")), 1, "{last} must follow the statement");
        }
        // The expression reads guarded data, calls a function, or keeps the lock.
        for last in
            ["g", "Some(g)", "g.b", "*g", "s.b", "Some(g.b)", "h(1)", "S::h()", "Ok(h())", "a + 1", "m!(g)"]
        {
            assert_eq!(unlocked(last), 1, "{last}");
        }
    }

    #[test]
    fn mutation_rules_skip_constants_and_test_code() {
        let text = "const A: u32 = 1 + 2; const fn f() -> u32 { 1 + 2 } #[cfg(test)] mod t { fn g() { h(); } }
            #[cfg(loom)] fn g() { h(); } impl S { #[cfg(test)] fn g() { h(); } fn nothing() {} } fn k() -> S { #[cfg(test)] h(); #[cfg(loom)] for a in b { h(); } let s = S { #[cfg(loom)] a: !b }; S::<{ 1 + 2 }>([0; 1 + 2]) }";
        assert_eq!(mutants(text), [""; 0]);
    }

    /// Regression test: to read its variable, the switch called a function that allocates, so a test that observes the
    /// heap failed.
    #[test]
    fn switching_to_a_mutant_does_not_call_the_heap() {
        const PROGRAM: &str = r#"
            use std::alloc::{GlobalAlloc, Layout, System};
            struct Watched;
            static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
            unsafe impl GlobalAlloc for Watched {
                unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
                    CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    // SAFETY: passed on.
                    unsafe { System.alloc(layout) }
                }
                unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
                    // SAFETY: passed on.
                    unsafe { System.dealloc(memory, layout) }
                }
            }
            #[global_allocator]
            static HEAP: Watched = Watched;
            unsafe extern "C" {
                fn fork() -> i32;
                fn wait(status: *mut i32) -> i32;
                fn _exit(status: i32) -> !;
            }
            fn main() {
                let calls = || CALLS.load(std::sync::atomic::Ordering::Relaxed);
                let before = calls();
                let on = [mutant_switch::on(12), mutant_switch::on(345), mutant_switch::on(12)];
                assert_eq!(calls(), before, "the switch calls the heap");
                // A test's child ends so.
                // SAFETY: there is no other thread.
                if unsafe { fork() } == 0 {
                    let failed = mutant_switch::on(678) || calls() != before;
                    // SAFETY: ends the child at once.
                    unsafe { _exit(failed.into()) };
                }
                let mut status = 0;
                // SAFETY: writes the status.
                unsafe { wait(&mut status) };
                assert_eq!(status, 0);
                println!("{on:?}");
            }
        "#;
        let folder = tempfile::tempdir().unwrap();
        let (source, built, noted) =
            (folder.path().join("main.rs"), folder.path().join("main"), folder.path().join("noted"));
        std::fs::write(&source, format!("{PROGRAM}{SWITCH}")).unwrap();
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let rustc =
            Command::new(rustc).args(["--edition=2024", "-o"]).args([&built, &source]).output().unwrap();
        assert!(rustc.status.success(), "{}", String::from_utf8_lossy(&rustc.stderr));
        let output = |variables: &[(&str, &str)]| {
            let mut program = Command::new(&built);
            program.env_remove("MUTANT").env_remove("MUTANT_REACHED").envs(variables.iter().copied());
            program.output().unwrap()
        };
        // Regression test: models ran that were built from the mutated copy, with no mutant enabled.
        let ran = output(&[("MUTANT", MUTANT_ABSENT)]);
        assert!(!ran.status.success() && ran.stdout.is_empty(), "{ran:?}");
        assert!(
            String::from_utf8_lossy(&ran.stderr).starts_with("this program is built from the copy"),
            "{ran:?}"
        );
        let run = |variables: &[(&str, &str)]| {
            let ran = output(variables);
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            String::from_utf8(ran.stdout).unwrap()
        };
        let noted_name = noted.to_str().unwrap();
        assert_eq!(run(&[]), "[false, false, false]\n");
        assert_eq!(run(&[("MUTANT", "345"), ("MUTANT_REACHED", noted_name)]), "[false, true, false]\n");
        assert_eq!(run(&[("MUTANT", "none")]), "[false, false, false]\n");
        assert!(!noted.exists());
        for noted_by in ["12\n345\n678\n", "12\n345\n678\n12\n345\n678\n"] {
            assert_eq!(run(&[("MUTANT_REACHED", noted_name)]), "[false, false, false]\n");
            assert_eq!(std::fs::read_to_string(&noted).unwrap(), noted_by);
        }
    }

    #[test]
    fn mutants_have_distinct_descriptions() {
        let all = (0..30).map(|i| format!("is_{i}()")).collect::<Vec<_>>().join(" && ");
        let made = MutatedSource::new("a.rs", &format!("fn f() {{ if {all} {{ g() }} }}"), 0, "on").unwrap();
        let shown: std::collections::BTreeSet<_> = made.mutants.iter().map(ToString::to_string).collect();
        assert!(shown.len() > 30 && shown.len() == made.mutants.len());
    }

    #[test]
    fn compile_error_is_attributed_to_its_mutant() {
        let text = "fn f() -> S { a(b + c); d }";
        let made = MutatedSource::new("a.rs", text, 0, "on").unwrap();
        assert_eq!(made.mutants.len(), 2, "{:?}", made.mutants);
        let all = made.with_mutant_switches(|_| true);
        let at = |piece: &str| {
            let start = all.text.find(piece).unwrap();
            start..start + piece.len()
        };
        assert_eq!(all.mutants_at_places(&[at("b - c")]), [1], "{}", all.text);
        assert_eq!(all.mutants_at_places(&[at("b + c")]), [1], "the switch surrounds the expression");
        assert_eq!(all.mutants_at_places(&[at("a(")]), [0], "{}", all.text);
        assert_eq!(
            all.mutants_at_places(&[at("d }")]),
            [0, 1, 1, 0],
            "the positions of the mutants in the function"
        );
    }
}
