//! Makes a graph of the imports between the files of a crate; the graph contains only shipping sources.
//!
//! The graph follows the `mod` items from the root module of the crate, as the compiler does. The graph leaves out code
//! that a shipping build does not compile: tests, models, schedules, and code for checkers only. An edge of the graph
//! comes from a `use`, or from a path in an expression, a type or a macro's arguments. An edge leads to the file that
//! *defines* the named item, so re-exports are followed to the definition. A facade, which is a module that re-exports
//! items of its child modules without using them, has no edges to them. Inline modules belong to the file that contains
//! them.
//!
//! A method call makes no edge, because a call such as `core.free()` names no module. If the methods of a type are in
//! another file than the type, the `impl` makes an edge.

use crate::source;
use anyhow::{Context, anyhow, ensure};
use proc_macro2::{TokenStream, TokenTree};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// The segments of a path as written in the source.
type PathSegments = Vec<String>;

#[derive(Debug, Default)]
struct Module {
    /// The path of the module, from the root of the crate.
    path: PathSegments,
    parent: usize,
    file: usize,
    /// Child modules by name; if a `cfg` selects between modules, several have the same name.
    children: BTreeMap<String, Vec<usize>>,
    /// The names of items that the module defines.
    items: BTreeSet<String>,
    /// The imports, indexed by the name that they have in this module.
    names: BTreeMap<String, PathSegments>,
    globs: Vec<PathSegments>,
    /// The imports; a re-export also has its exported name.
    uses: Vec<(PathSegments, Option<String>)>,
    /// The paths that have more than one segment, without imports.
    paths: BTreeSet<PathSegments>,
    /// The first segments of all paths, without imports.
    mentioned: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Module(usize),
    /// An item that the module defines.
    Item(usize),
}

/// The graph of a crate: its files, and the imports between them.
#[derive(Debug, Default)]
pub struct Imports {
    modules: Vec<Module>,
    /// Each file of the crate, with the path of its module.
    files: Vec<(PathBuf, PathSegments)>,
    /// For each pair of importing and imported file, the imported names.
    arrows: BTreeMap<(usize, usize), BTreeSet<String>>,
}

/// An edge of the graph: an importing file, an imported file, and the imported names.
#[derive(Clone, Debug)]
pub struct ImportArrow<'i> {
    /// The importing file.
    pub from: &'i Path,
    /// The file that defines the imported items.
    pub to: &'i Path,
    /// The imported names.
    pub names: Vec<&'i str>,
    /// The first path segment of the importing and the imported module; empty for the root module.
    pub rooms: [&'i str; 2],
}

impl fmt::Display for ImportArrow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} imports {} from {}", self.from.display(), self.names.join(", "), self.to.display())
    }
}

impl Imports {
    /// Makes the graph of the crate with the root module `root`.
    ///
    /// # Errors
    /// Fails if a file cannot be read or parsed, or if a module has no file.
    pub fn draw(root: &Path) -> anyhow::Result<Self> {
        let mut imports = Self::default();
        let top = imports.module(Vec::new(), 0, 0);
        imports.file(root, top, root.with_file_name(""))?;
        imports.connect();
        Ok(imports)
    }

    fn module(&mut self, path: PathSegments, parent: usize, file: usize) -> usize {
        self.modules.push(Module { path, parent, file, ..Module::default() });
        self.modules.len() - 1
    }

    /// Reads the file of `module`; the files of its child modules are in `below`.
    fn file(&mut self, file: &Path, module: usize, below: PathBuf) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let parsed = syn::parse_file(&text).map_err(|error| anyhow!("{}: {error}", file.display()))?;
        self.files.push((file.to_owned(), self.modules[module].path.clone()));
        self.modules[module].file = self.files.len() - 1;
        self.items(&parsed.items, module, &below)
    }

    fn items(&mut self, items: &[Item], module: usize, below: &Path) -> anyhow::Result<()> {
        for item in items {
            match item {
                Item::Mod(declared) if ships(&declared.attrs) => {
                    let name = declared.ident.to_string();
                    let mut path = self.modules[module].path.clone();
                    path.push(name.clone());
                    let child = self.module(path, module, self.modules[module].file);
                    self.modules[module].children.entry(name.clone()).or_default().push(child);
                    let below = below.join(&name);
                    if let Some((_, items)) = &declared.content {
                        self.items(items, child, &below)?;
                        continue;
                    }
                    // The path is relative to the file that declares the module.
                    let here = &self.files[self.modules[module].file].0;
                    let other = path_attribute(&declared.attrs).map(|file| here.with_file_name(file));
                    let files = other.into_iter().chain([below.with_extension("rs"), below.join("mod.rs")]);
                    let file = files.clone().find(|file| file.is_file());
                    let file = file.with_context(|| format!("{}.rs: no such file", below.display()))?;
                    self.file(&file, child, below)?;
                }
                Item::Mod(_) => {}
                item => Reader { module: &mut self.modules[module] }.visit_item(item),
            }
        }
        Ok(())
    }

    /// Returns the items and modules that `name` can mean inside `module`.
    fn find(&self, module: usize, name: &str, steps: usize) -> Vec<Target> {
        let here = &self.modules[module];
        if let Some(children) = here.children.get(name) {
            return children.iter().copied().map(Target::Module).collect();
        }
        if here.items.contains(name) {
            return vec![Target::Item(module)];
        }
        // Imports may refer to themselves, and globs to each other, so the number of steps is limited.
        let Some(steps) = steps.checked_sub(1) else { return Vec::new() };
        if let Some(path) = here.names.get(name) {
            return self.resolve(module, path, steps);
        }
        let globs = here.globs.iter().flat_map(|glob| self.resolve(module, glob, steps));
        let found = globs.flat_map(|glob| match glob {
            Target::Module(other) if other != module => self.find(other, name, steps),
            _ => Vec::new(),
        });
        found.collect()
    }

    /// Returns the items and modules to which a path in `module` leads; the list is empty if the path leads out of the
    /// crate.
    fn resolve(&self, module: usize, path: &[String], steps: usize) -> Vec<Target> {
        let mut base = module;
        let mut rest = path;
        while let [first, others @ ..] = rest {
            base = match first.as_str() {
                "crate" => 0,
                "self" => base,
                "super" => self.modules[base].parent,
                _ => break,
            };
            rest = others;
        }
        if self.modules[module].names.get(&path[0]).is_some_and(|own| own == path) {
            // `use serde;`
            return Vec::new();
        }
        rest.iter().fold(vec![Target::Module(base)], |found, name| {
            let next = found.into_iter().flat_map(|target| match target {
                Target::Module(module) => self.find(module, name, steps),
                // In `Type::function`, the type is imported.
                item @ Target::Item(_) => vec![item],
            });
            next.collect()
        })
    }

    fn connect(&mut self) {
        const STEPS: usize = 8;
        let mut arrows: BTreeMap<(usize, usize), BTreeSet<String>> = BTreeMap::new();
        // The crate's root is a facade.
        for (at, module) in self.modules.iter().enumerate() {
            let uses = module.uses.iter().map(|(path, name)| (path, name.as_ref()));
            for (path, reexported) in uses.chain(module.paths.iter().map(|path| (path, None))) {
                for end in self.resolve(at, path, STEPS) {
                    let (Target::Module(to) | Target::Item(to)) = end;
                    let (to, from) = (&self.modules[to], module);
                    let facade = reexported.is_some_and(|name| !module.mentioned.contains(name))
                        && to.path.starts_with(&from.path);
                    if to.file != from.file && !facade {
                        let name = path.iter().rev().find(|name| match end {
                            Target::Module(_) => true,
                            Target::Item(_) => to.items.contains(*name),
                        });
                        let name = name.or(path.last()).cloned().unwrap_or_default();
                        arrows.entry((from.file, to.file)).or_default().insert(name);
                    }
                }
            }
        }
        self.arrows = arrows;
    }

    /// Returns the number of files in the graph.
    pub fn files(&self) -> usize {
        self.files.len()
    }
    /// Returns the paths of all files in the graph.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| &**path)
    }

    fn arrow(&self, ends: (usize, usize)) -> ImportArrow<'_> {
        let room = |file: usize| self.files[file].1.first().map_or("", String::as_str);
        ImportArrow {
            from: &self.files[ends.0].0,
            to: &self.files[ends.1].0,
            names: self.arrows[&ends].iter().map(String::as_str).collect(),
            rooms: [room(ends.0), room(ends.1)],
        }
    }

    /// Returns all arrows.
    pub fn arrows(&self) -> impl Iterator<Item = ImportArrow<'_>> {
        self.arrows.keys().map(|ends| self.arrow(*ends))
    }

    /// Returns the import cycles, largest first; in a cycle, all files import from each other, directly or indirectly.
    pub fn circles(&self) -> Vec<ImportCycle<'_>> {
        // The crate has few files, so the transitive closure is computed by squaring.
        let mut reach: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.files.len()];
        for (from, to) in self.arrows.keys() {
            reach[*from].insert(*to);
        }
        loop {
            let next: Vec<BTreeSet<usize>> = reach
                .iter()
                .map(|near| near.iter().flat_map(|file| &reach[*file]).chain(near).copied().collect())
                .collect();
            if next == reach {
                break;
            }
            reach = next;
        }
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for file in 0..self.files.len() {
            let with: BTreeSet<usize> =
                reach[file].iter().copied().filter(|other| reach[*other].contains(&file)).collect();
            if with.len() > 1 && seen.insert(with.clone()) {
                let inside = |(from, to): &&(usize, usize)| with.contains(from) && with.contains(to);
                let arrows = self.arrows.keys().filter(inside).map(|ends| self.arrow(*ends)).collect();
                circles.push(ImportCycle { files: with.len(), arrows });
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.files));
        circles
    }
}

/// An import cycle: files that import from each other.
#[derive(Clone, Debug)]
pub struct ImportCycle<'i> {
    /// The number of files in the cycle.
    pub files: usize,
    /// The edges between the files of the cycle.
    pub arrows: Vec<ImportArrow<'i>>,
}

impl fmt::Display for ImportCycle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a cycle of {} files:", self.files)?;
        self.arrows.iter().try_for_each(|arrow| write!(f, "\n    {arrow}"))
    }
}

/// Returns `true` if a shipping build can contain an item with these attributes.
fn ships(attributes: &[Attribute]) -> bool {
    attributes.iter().all(source::ships)
}

/// Returns the file that a `#[path]` attribute names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find(|attribute| attribute.path().is_ident("path")).and_then(|attribute| {
        let text = attribute.meta.require_name_value().ok()?;
        match &text.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(file), .. }) => Some(file.value()),
            _ => None,
        }
    })
}

/// A visitor that collects the imports and paths of a module.
struct Reader<'m> {
    module: &'m mut Module,
}

impl Reader<'_> {
    fn import(&mut self, tree: &UseTree, mut path: PathSegments, reexport: bool) {
        let reexported = |name: &str| reexport.then(|| name.to_owned());
        let (end, name) = match tree {
            UseTree::Path(step) => {
                path.push(step.ident.to_string());
                return self.import(&step.tree, path, reexport);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, path.clone(), reexport));
            }
            UseTree::Glob(_) => {
                self.module.globs.push(path.clone());
                return self.module.uses.push((path, reexported("*")));
            }
            UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(rename) => (rename.ident.to_string(), rename.rename.to_string()),
        };
        let name = if end == "self" { path.last().cloned().unwrap_or(name) } else { name };
        if end != "self" {
            path.push(end);
        }
        self.module.uses.push((path.clone(), reexported(&name)));
        self.module.names.insert(name, path);
    }

    /// Collects paths from tokens that are not parsed, such as the arguments of macros.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_colon =
            |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(colon)) if colon.as_char() == ':');
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let mut path = vec![first.to_string()];
                    while is_colon(at + 1)
                        && is_colon(at + 2)
                        && let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    self.path(path);
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn path(&mut self, path: PathSegments) {
        self.module.mentioned.extend(path.first().cloned());
        if path.len() > 1 {
            self.module.paths.insert(path);
        }
    }
}

/// Skips each syntax node whose attributes exclude it from a shipping build.
macro_rules! where_it_ships {
    ($($visit:ident: $node:ident),* $(,)?) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            if ships(&node.attrs) {
                visit::$visit(self, node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = match item {
            Item::Use(import) => {
                if ships(&import.attrs) {
                    self.import(&import.tree, Vec::new(), !matches!(import.vis, Visibility::Inherited));
                }
                return;
            }
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            Item::Mod(item) => (&item.attrs, None),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Union(item) => (&item.attrs, Some(&item.ident)),
            item => return visit::visit_item(self, item),
        };
        if ships(attributes) {
            self.module.items.extend(name.map(ToString::to_string));
            visit::visit_item(self, item);
        }
    }
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    where_it_ships! {
        visit_arm: Arm,
        visit_expr_block: ExprBlock,
        visit_expr_unsafe: ExprUnsafe,
        visit_field: Field,
        visit_field_value: FieldValue,
        visit_impl_item_const: ImplItemConst,
        visit_impl_item_fn: ImplItemFn,
        visit_local: Local,
        visit_stmt_macro: StmtMacro,
        visit_trait_item_fn: TraitItemFn,
        visit_variant: Variant,
    }
}

/// The sections of a manifest that list dependencies.
#[derive(Deserialize)]
struct Manifest {
    workspace: Option<Workspace>,
    #[serde(default)]
    dependencies: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
struct Workspace {
    members: Vec<PathBuf>,
    dependencies: BTreeMap<String, toml::Value>,
}

/// A crate of the workspace.
#[derive(Clone, Debug)]
pub struct Crate {
    /// The directory of the crate, relative to the workspace.
    pub directory: PathBuf,
    /// The directories of the crates on which the crate depends.
    pub dependencies: Vec<PathBuf>,
}

impl Crate {
    /// Returns the root files of the crate's library and of its program.
    pub fn root_files(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let src = self.directory.join("src");
        ["lib.rs", "main.rs"].into_iter().map(move |root| src.join(root))
    }
}

/// Returns all crates of the workspace at `root`.
///
/// # Errors
/// Fails if a manifest cannot be read.
pub fn crates(root: &Path) -> anyhow::Result<Vec<Crate>> {
    let manifest = |directory: &Path| -> anyhow::Result<Manifest> {
        let path = root.join(directory).join("Cargo.toml");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    };
    let workspace = manifest(Path::new(""))?.workspace.context("Cargo.toml: no workspace")?;
    let directory = |name: &String| {
        let dependency = workspace.dependencies.get(name)?;
        dependency.get("path").and_then(toml::Value::as_str).map(PathBuf::from)
    };
    let crates = workspace.members.iter().map(|member| {
        let dependencies = manifest(member)?.dependencies.keys().filter_map(directory).collect();
        Ok(Crate { directory: member.clone(), dependencies })
    });
    let crates: Vec<_> = crates.collect::<anyhow::Result<_>>()?;
    ensure!(!crates.is_empty(), "Cargo.toml: no members");
    Ok(crates)
}
