//! Rules that need the syntax: the length of a function, and the documentation of a crate root.

use std::path::Path;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, SourceFile};

/// A function longer than a screen is two functions.
const FUNCTION_LINES_MAX: usize = 80;

pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    let syntax = match syn::parse_file(&file.text) {
        Ok(syntax) => syntax,
        Err(error) => return vec![Finding::new(&file.path, error.span().start().line, format!("not Rust: {error}"))],
    };
    let mut walk = Walk { file: &file.path, findings: Vec::new() };
    if is_crate_root(&file.path) && !syntax.attrs.iter().any(is_doc) {
        walk.findings.push(Finding::new(&file.path, 1, "begin the crate with its purpose in a //! line"));
    }
    walk.visit_file(&syntax);
    walk.findings
}

/// `src/lib.rs`, `src/main.rs`.
fn is_crate_root(path: &Path) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs")
}

fn is_doc(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("doc")
}

/// Visits the syntax of a file.
struct Walk<'a> {
    file: &'a Path,
    findings: Vec<Finding>,
}

impl Walk<'_> {
    fn check_length(&mut self, name: &syn::Ident, whole: Span) {
        let lines = whole.end().line - whole.start().line + 1;
        if lines > FUNCTION_LINES_MAX {
            let advice =
                format!("`{name}` has {lines} lines; find the second function in it ({FUNCTION_LINES_MAX} at most)");
            self.findings.push(Finding::new(self.file, name.span().start().line, advice));
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile { path: path.into(), text: text.to_owned() };
        check(&file).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_function_longer_than_a_screen_is_found() {
        let long = format!("fn long() {{\n{}}}\n", "    call();\n".repeat(FUNCTION_LINES_MAX));
        assert_eq!(findings("crates/pool/src/lease.rs", &long), [1]);
    }

    #[test]
    fn a_crate_root_without_documentation_is_found() {
        assert_eq!(findings("crates/pool/src/lib.rs", "pub mod lease;"), [1]);
        assert!(findings("crates/pool/src/lib.rs", "//! Leases.\npub mod lease;").is_empty());
    }
}
