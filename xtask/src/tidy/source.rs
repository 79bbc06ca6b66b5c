//! Rules that need the syntax: how long a function is, whom a room imports, and that a crate says what it is.

use std::path::{Component, Path, PathBuf};

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, SourceFile, rooms};

/// A function longer than a screen is two functions.
const FUNCTION_LINES: usize = 80;

pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    let syntax = match syn::parse_file(&file.text) {
        Ok(syntax) => syntax,
        Err(error) => return vec![Finding::new(&file.path, error.span().start().line, format!("not Rust: {error}"))],
    };
    let mut walk = Walk { file: &file.path, room: rooms::room_of(&file.path), modules: Vec::new(), found: Vec::new() };
    if is_crate_root(&file.path) && !syntax.attrs.iter().any(is_doc) {
        walk.found.push(Finding::new(&file.path, 1, "begin the crate with its idea in a //! line"));
    }
    walk.visit_file(&syntax);
    walk.found
}

/// `src/lib.rs`, `src/main.rs`.
fn is_crate_root(path: &Path) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs")
}

fn is_doc(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("doc")
}

/// One pass over the syntax of a file.
struct Walk<'a> {
    file: &'a Path,
    room: Option<String>,
    /// Names of the inline modules around the place.
    modules: Vec<String>,
    found: Vec<Finding>,
}

impl Walk<'_> {
    fn check_length(&mut self, name: &syn::Ident, whole: Span) {
        let lines = whole.end().line - whole.start().line + 1;
        if lines > FUNCTION_LINES {
            let advice =
                format!("`{name}` has {lines} lines; find the second function in it ({FUNCTION_LINES} at most)");
            self.found.push(Finding::new(self.file, name.span().start().line, advice));
        }
    }

    /// A path such as `crate::route::Target` or `super::super::route::Target`.
    fn check_path(&mut self, segments: &[String], line: usize) {
        let Some(room) = &self.room else { return };
        let Some(other) = self.room_entered(segments) else {
            return;
        };
        if let Some(advice) = rooms::refuse(room, &other) {
            self.found.push(Finding::new(self.file, line, advice));
        }
    }

    /// The room whose name follows the way to the root of the crate.
    fn room_entered(&self, segments: &[String]) -> Option<String> {
        let (root, rest) = match segments.first()?.as_str() {
            "crate" => (true, &segments[1..]),
            "super" => {
                let ups = segments.iter().take_while(|segment| *segment == "super").count();
                (ups == self.depth(), &segments[ups..])
            }
            _ => return None,
        };
        let name = rest.first().filter(|_| root)?;
        // Modules are in lower case; `crate::Thing` is re-exported by the root and belongs to no room.
        let is_module = !name.starts_with(char::is_uppercase) && (rest.len() > 1);
        is_module.then(|| name.clone())
    }

    /// How many `super` lead from here to the root of the crate.
    fn depth(&self) -> usize {
        let inside = self.file.components().skip_while(|part| *part != Component::Normal("src".as_ref())).skip(1);
        let path: PathBuf = inside.collect();
        let is_root = is_crate_root(self.file);
        path.components().count() - usize::from(is_root) + self.modules.len()
    }

    fn check_use(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.check_use(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.check_use(item, before)),
            syn::UseTree::Name(name) => self.check_leaf(&name.ident, before),
            syn::UseTree::Rename(rename) => self.check_leaf(&rename.ident, before),
            syn::UseTree::Glob(glob) => {
                let mut segments = before.clone();
                segments.push("*".to_owned());
                self.check_path(&segments, glob.span().start().line);
            }
        }
    }

    fn check_leaf(&mut self, leaf: &syn::Ident, before: &[String]) {
        let mut segments = before.to_vec();
        segments.push(leaf.to_string());
        // `use crate::route;` enters the room as `use crate::route::Target;` does.
        segments.push("self".to_owned());
        self.check_path(&segments, leaf.span().start().line);
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check_length(&function.sig.ident, function.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.check_length(&function.sig.ident, function.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.check_use(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.check_path(&segments, path.span().start().line);
        visit::visit_path(self, path);
    }

    /// Tests may look into every room; their functions are still bounded.
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let is_test = module.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "test")
        });
        let room = if is_test { self.room.take() } else { None };
        self.modules.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.modules.pop();
        self.room = room.or_else(|| self.room.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile { path: PathBuf::from(path), text: text.to_owned() };
        check(&file).into_iter().map(|finding| finding.line).collect()
    }

    const EXCHANGE: &str = "crates/gateway/src/exchange.rs";

    #[test]
    fn an_import_upward_is_found_however_it_is_written() {
        for import in [
            "use crate::client::Session;",
            "use crate::client;",
            "use crate::{error::Error, client::{self, auth}};",
            "use super::client::Session;",
            "fn f() { crate::client::run() }",
        ] {
            assert!(!findings(EXCHANGE, import).is_empty(), "{import}");
        }
    }

    #[test]
    fn imports_downward_and_of_leaves_are_fine() {
        assert!(findings(EXCHANGE, "use crate::server::Server;\nuse crate::error::{Error, Origin};").is_empty());
        assert!(findings(EXCHANGE, "use crate::Shared;").is_empty());
    }

    #[test]
    fn super_of_a_nested_file_is_its_own_room() {
        let session = "crates/gateway/src/client/session.rs";
        assert!(findings(session, "use super::auth::Proof;").is_empty());
        assert_eq!(findings(session, "use super::super::listen::Accept;"), [1]);
    }

    #[test]
    fn tests_may_enter_every_room() {
        let text = "#[cfg(test)]\nmod tests {\n    use crate::client::Session;\n}\nuse crate::listen::Accept;";
        assert_eq!(findings(EXCHANGE, text), [5]);
    }

    #[test]
    fn a_function_longer_than_a_screen_is_found() {
        let long = format!("fn long() {{\n{}}}\n", "    call();\n".repeat(FUNCTION_LINES));
        assert_eq!(findings("crates/pool/src/lease.rs", &long), [1]);
    }

    #[test]
    fn a_crate_root_says_its_idea() {
        assert_eq!(findings("crates/pool/src/lib.rs", "pub mod lease;"), [1]);
        assert!(findings("crates/pool/src/lib.rs", "//! Leases.\npub mod lease;").is_empty());
    }
}
