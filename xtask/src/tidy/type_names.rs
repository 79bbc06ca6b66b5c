//! Repeated names of types: a search for the name of a public or crate-visible type finds its definition.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use super::cycles::is_for_tests;
use super::{Finding, SourceFile, crates};

/// How often a name may be defined in the workspace.
const DEFINITIONS_MAX: usize = 2;

/// Names that mean the same in every crate or command.
const IDIOMS: &[&str] = &["Arguments", "Error"];

pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut definitions: BTreeMap<String, Vec<(&SourceFile, usize)>> = BTreeMap::new();
    for file in files.iter().filter(|file| crates::package_of(&file.path).is_some()) {
        let Ok(syntax) = syn::parse_file(&file.text) else { continue };
        let mut walk = Walk::default();
        walk.visit_file(&syntax);
        for (name, line) in walk.types {
            definitions.entry(name).or_default().push((file, line));
        }
    }
    definitions.retain(|name, places| places.len() > DEFINITIONS_MAX && !IDIOMS.contains(&name.as_str()));
    let findings = definitions.into_iter().flat_map(|(name, places)| {
        let count = places.len();
        let advice =
            format!("`{name}` is defined {count} times ({DEFINITIONS_MAX} at most): add the noun, as in `Pool{name}`");
        places.into_iter().map(move |(file, line)| Finding::new(&file.path, line, advice.clone()))
    });
    findings.collect()
}

/// Types that other files of the crate can name, with their lines.
#[derive(Default)]
struct Walk {
    types: Vec<(String, usize)>,
}

impl Walk {
    fn define(&mut self, visibility: &syn::Visibility, name: &syn::Ident) {
        let visible = match visibility {
            syn::Visibility::Public(_) => true,
            syn::Visibility::Restricted(restricted) => restricted.path.is_ident("crate"),
            syn::Visibility::Inherited => false,
        };
        if visible {
            self.types.push((name.to_string(), name.span().start().line));
        }
    }
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.define(&item.vis, &item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.define(&item.vis, &item.ident);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.define(&item.vis, &item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.define(&item.vis, &item.ident);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.define(&item.vis, &item.ident);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn a_name_defined_too_often_is_found_in_each_place() {
        let text = "pub struct A;\npub(crate) enum B {}\n";
        let mut files: Vec<SourceFile> =
            (0..DEFINITIONS_MAX).map(|crate_| file(&format!("crates/{crate_}/src/lib.rs"), text)).collect();
        assert!(check(&files).is_empty());
        files.push(file("xtask/src/main.rs", "pub(crate) type A = u8;\n"));
        assert_eq!(check(&files).len(), DEFINITIONS_MAX + 1);
    }

    #[test]
    fn private_types_and_tests_do_not_count() {
        let text = "struct A;\npub(super) struct A;\n#[cfg(test)]\nmod tests {\n    pub struct A;\n}\n"
            .repeat(DEFINITIONS_MAX);
        assert!(check(&[file("crates/a/src/lib.rs", &text), file("crates/a/tests/a.rs", "pub struct A;")]).is_empty());
    }
}
