//! Imports between the files of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use super::SourceFile;

/// Re-exports that are followed for one path.
const REEXPORTS_MAX: usize = 8;

/// The path of a module from the root of its crate.
type ModulePath = Vec<String>;

/// The modules of a crate that have a file.
#[derive(Debug)]
pub(super) struct CrateModules {
    modules: BTreeMap<ModulePath, Module>,
}

#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    /// Items that the file defines.
    items: BTreeSet<String>,
    /// Names that `use` brings into the module, with their paths.
    uses: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Paths in the code that may lead to another file of the crate.
    paths: Vec<Vec<String>>,
    /// Modules that are compiled for tests only.
    tests: Vec<String>,
}

impl CrateModules {
    /// Reads the modules of the crate at `source`, its folder `src`.
    pub(super) fn new(source: &Path, files: &[&SourceFile]) -> Self {
        let mut modules = BTreeMap::new();
        for file in files {
            let Some(path) = module_path(source, &file.path) else { continue };
            let Ok(syntax) = syn::parse_file(&file.text) else { continue };
            let mut walk = Walk { module: Module { file: file.path.clone(), ..Module::default() }, inline: Vec::new() };
            walk.visit_file(&syntax);
            // A library's root wins over the root of a binary beside it.
            if !modules.contains_key(&path) || file.path.ends_with("lib.rs") {
                modules.insert(path, walk.module);
            }
        }
        let is_test = |path: &ModulePath| {
            let ancestors = (1..=path.len()).map(|length| (&path[..length - 1], &path[length - 1]));
            ancestors
                .into_iter()
                .any(|(parent, name)| modules.get(parent).is_some_and(|parent| parent.tests.contains(name)))
        };
        let tests: Vec<ModulePath> = modules.keys().filter(|path| is_test(path)).cloned().collect();
        modules.retain(|path, _| !tests.contains(path));
        Self { modules }
    }

    /// The files that each file imports from, without its child modules.
    pub(super) fn imports(&self) -> BTreeMap<PathBuf, Vec<PathBuf>> {
        let edges = self.modules.iter().map(|(path, module)| {
            let reached = module.paths.iter().filter_map(|used| self.resolve(path, used, REEXPORTS_MAX));
            let others: BTreeSet<&ModulePath> = reached.filter(|other| !other.starts_with(path)).collect();
            (module.file.clone(), others.into_iter().map(|other| self.modules[other].file.clone()).collect())
        });
        edges.collect()
    }

    /// The module whose file defines what `used` names in the module `from`; `None` outside the crate.
    fn resolve(&self, from: &[String], used: &[String], reexports: usize) -> Option<&ModulePath> {
        let first = used.first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            _ => [from, std::slice::from_ref(first)].concat(),
        };
        let (mut at, _) = self.modules.get_key_value(&std::mem::take(&mut at))?;
        for (index, segment) in used.iter().enumerate().skip(1) {
            let module = &self.modules[at];
            let child = match segment.as_str() {
                "self" | "*" => return Some(at),
                "super" => at[..at.len().checked_sub(1)?].to_vec(),
                name => [at.as_slice(), &[name.to_owned()]].concat(),
            };
            if let Some((child, _)) = self.modules.get_key_value(&child) {
                at = child;
                continue;
            }
            if module.items.contains(segment) || reexports == 0 {
                return Some(at);
            }
            let rest = &used[index + 1..];
            let reexport = module.uses.get(segment).map(|path| [path.as_slice(), rest].concat());
            let globs = module.globs.iter().map(|path| [&path[..path.len() - 1], &used[index..]].concat());
            let found = reexport.into_iter().chain(globs).find_map(|path| self.resolve_item(at, &path, reexports - 1));
            return Some(found.unwrap_or(at));
        }
        Some(at)
    }

    /// Like [`resolve`](Self::resolve), but only finds the module that defines the item.
    fn resolve_item(&self, from: &[String], used: &[String], reexports: usize) -> Option<&ModulePath> {
        let found = self.resolve(from, used, reexports)?;
        let item = used.last()?;
        let is_module = found.last() == Some(item);
        (is_module || self.modules[found].items.contains(item)).then_some(found)
    }
}

/// `src/lib.rs` is the root, `src/a/b.rs` is `a::b`; other binaries are crates of their own.
fn module_path(source: &Path, file: &Path) -> Option<ModulePath> {
    let inside = file.strip_prefix(source).ok()?.with_extension("");
    let parts: ModulePath = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    match parts.as_slice() {
        [root] if root == "lib" || root == "main" => Some(Vec::new()),
        [first, ..] if first == "bin" => None,
        _ => Some(parts),
    }
}

/// Visits the syntax of a file.
struct Walk {
    module: Module,
    /// Inline modules that enclose the visited item.
    inline: Vec<String>,
}

impl Walk {
    /// Adds a path, made relative to the module of the file. Returns `None` if it stays in the file.
    fn path(&mut self, mut path: Vec<String>) -> Option<Vec<String>> {
        if path.first().is_some_and(|first| first == "self") && !self.inline.is_empty() {
            return None;
        }
        let ups = path.iter().take_while(|segment| *segment == "super").count();
        if ups > 0 && !self.inline.is_empty() {
            if ups < self.inline.len() {
                return None;
            }
            path.drain(..self.inline.len());
            if ups == self.inline.len() {
                path.insert(0, "self".to_owned());
            }
        }
        self.module.paths.push(path.clone());
        Some(path)
    }

    fn use_tree(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.use_tree(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.use_tree(item, before)),
            syn::UseTree::Name(name) => self.use_leaf(before, &name.ident, &name.ident),
            syn::UseTree::Rename(rename) => self.use_leaf(before, &rename.ident, &rename.rename),
            syn::UseTree::Glob(_) => {
                let path = self.path([before.as_slice(), &["*".to_owned()]].concat());
                self.module.globs.extend(path);
            }
        }
    }

    fn use_leaf(&mut self, before: &[String], leaf: &syn::Ident, name: &syn::Ident) {
        let path = self.path([before, &[leaf.to_string()]].concat());
        if let Some(path) = path.filter(|_| self.inline.is_empty()) {
            self.module.uses.insert(name.to_string(), path);
        }
    }

    fn define(&mut self, name: &syn::Ident) {
        self.module.items.insert(name.to_string());
    }
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(attributes(item)) {
            if let syn::Item::Mod(module) = item {
                self.module.tests.push(module.ident.to_string());
            }
            return;
        }
        match item {
            syn::Item::Const(item) => self.define(&item.ident),
            syn::Item::Enum(item) => self.define(&item.ident),
            syn::Item::Fn(item) => self.define(&item.sig.ident),
            syn::Item::Macro(item) => item.ident.iter().for_each(|ident| self.define(ident)),
            syn::Item::Static(item) => self.define(&item.ident),
            syn::Item::Struct(item) => self.define(&item.ident),
            syn::Item::Trait(item) => self.define(&item.ident),
            syn::Item::Type(item) => self.define(&item.ident),
            syn::Item::Union(item) => self.define(&item.ident),
            syn::Item::Mod(item) if item.content.is_some() => self.define(&item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.use_tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 && path.leading_colon.is_none() {
            self.path(segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.inline.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.inline.pop();
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]`, also with other conditions.
pub(in super::super) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let condition = list.tokens.to_string();
        let names = |word: &str| condition.split(|char: char| !char.is_alphanumeric()).any(|part| part == word);
        list.path.is_ident("cfg") && names("test") && !names("not")
    })
}
