//! Links of Markdown files: every relative link leads to a file, and every fragment to a heading.
//!
//! A page of the book links to pages of the book only, because mdBook copies nothing else. A file that the book includes
//! holds no relative link, because its folder in the repository and its folder in the book differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::repository;

const BOOK: &str = "docs/src";
const INCLUDE: &str = "{{#include ";

/// A Markdown file, read once.
#[derive(Debug, Default)]
struct Page {
    anchors: BTreeSet<String>,
    /// Line and target.
    links: Vec<(usize, String)>,
    includes: Vec<PathBuf>,
}

/// Every Markdown file of the repository, by its path.
type Pages = BTreeMap<PathBuf, Page>;

/// Prints each broken link.
///
/// # Errors
/// A link is broken, or a file cannot be read.
pub(super) fn check() -> Result<()> {
    let mut pages = Pages::new();
    for path in repository::files()?.into_iter().filter(|path| path.extension().is_some_and(|it| it == "md")) {
        let text = fs::read_to_string(repository::root().join(&path)).with_context(|| path.display().to_string())?;
        let page = Page::of(&path, &text);
        pages.insert(path, page);
    }
    let findings = findings(&pages, &|path| repository::root().join(path).exists());
    findings.iter().for_each(|finding| println!("{finding}"));
    if !findings.is_empty() {
        bail!("{} broken links", findings.len());
    }
    println!("docs: the links of {} Markdown files are sound", pages.len());
    Ok(())
}

impl Page {
    fn of(path: &Path, text: &str) -> Self {
        let mut page = Self::default();
        let mut inside_fence = false;
        for (at, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                inside_fence = !inside_fence;
            } else if !inside_fence {
                page.read_line(path, at + 1, line);
            }
        }
        page
    }

    fn read_line(&mut self, path: &Path, number: usize, line: &str) {
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            let anchor = anchor(heading);
            let repeated = (1..).map(|count| format!("{anchor}-{count}"));
            let free = std::iter::once(anchor.clone()).chain(repeated).find(|name| !self.anchors.contains(name));
            self.anchors.extend(free);
        }
        if let Some((_, rest)) = line.split_once(INCLUDE)
            && let Some((file, _)) = rest.split_once("}}")
        {
            self.includes.push(resolve(path, file));
        }
        self.links.extend(targets(&without_code(line)).into_iter().map(|target| (number, target)));
    }
}

/// A line for each broken link, missing include and page that the summary does not list.
fn findings(pages: &Pages, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let included: BTreeSet<&PathBuf> = pages.values().flat_map(|page| &page.includes).collect();
    let mut findings = Vec::new();
    for (path, page) in pages {
        for (line, target) in page.links.iter().filter(|(_, target)| !is_external(target)) {
            let fault = fault(pages, path, target, exists).or_else(|| {
                let leaves = included.contains(path) && !target.starts_with('#');
                leaves.then(|| "the book includes this file: write the path as code".to_owned())
            });
            findings.extend(fault.map(|fault| format!("{}:{line}: `{target}`: {fault}", path.display())));
        }
        for file in page.includes.iter().filter(|file| !exists(file)) {
            findings.push(format!("{}: includes {}, which does not exist", path.display(), file.display()));
        }
    }
    findings.extend(unlisted(pages));
    findings
}

/// The fault of a relative link.
fn fault(pages: &Pages, from: &Path, target: &str, exists: &dyn Fn(&Path) -> bool) -> Option<String> {
    let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
    let to = if file.is_empty() { from.to_path_buf() } else { resolve(from, file) };
    if !exists(&to) {
        return Some(format!("{} does not exist", to.display()));
    }
    if from.starts_with(BOOK) && !to.starts_with(BOOK) {
        return Some(format!("mdBook copies {BOOK} only: link to a page there, or write the path as code"));
    }
    let page = pages.get(&to).filter(|_| !fragment.is_empty())?;
    let includes = page.includes.iter().filter_map(|file| pages.get(file));
    let is_there = std::iter::once(page).chain(includes).any(|page| page.anchors.contains(fragment));
    (!is_there).then(|| format!("{} has no such heading", to.display()))
}

/// Pages of the book that the summary does not list: mdBook leaves them out.
fn unlisted(pages: &Pages) -> Vec<String> {
    let path = Path::new(BOOK).join("SUMMARY.md");
    let Some(summary) = pages.get(&path) else { return vec![format!("{} is missing", path.display())] };
    let listed: BTreeSet<PathBuf> = summary.links.iter().map(|(_, target)| resolve(&path, target)).collect();
    let is_left_out = |page: &&PathBuf| page.starts_with(BOOK) && **page != path && !listed.contains(*page);
    pages.keys().filter(is_left_out).map(|page| format!("{}: list it in {}", page.display(), path.display())).collect()
}

fn is_external(target: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

/// The path of a link that stands in the file `from`, relative to the root of the repository.
fn resolve(from: &Path, target: &str) -> PathBuf {
    let mut path = from.parent().map(Path::to_path_buf).unwrap_or_default();
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// The fragment that mdBook and GitHub give to a heading.
fn anchor(heading: &str) -> String {
    let text: String = heading.trim().to_lowercase().chars().filter(|c| *c != '`').collect();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ' '));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The line without the contents of code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Targets of `[text](target)` and of the attributes `href`, `src` and `srcset`.
fn targets(line: &str) -> Vec<String> {
    const MARKS: [(&str, char); 4] = [("](", ')'), ("href=\"", '"'), ("src=\"", '"'), ("srcset=\"", '"')];
    let after =
        |(start, end): (&'static str, char)| line.split(start).skip(1).filter_map(move |part| part.split(end).next());
    MARKS.into_iter().flat_map(after).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every finding of a repository that has these files and no other.
    fn findings_of(files: &[(&str, &str)]) -> Vec<String> {
        let pages: Pages = files.iter().map(|(path, text)| (path.into(), Page::of(Path::new(path), text))).collect();
        findings(&pages, &|path| pages.contains_key(path))
    }

    const SUMMARY: (&str, &str) = ("docs/src/SUMMARY.md", "- [A](guide/a.md)");

    #[test]
    fn sound_links_are_accepted() {
        let page =
            "# One key: `a.b`\n[x](#one-key-ab) [y](https://example.org/z) `[code](none.md)`\n```\n[x](none.md)\n```";
        let root = "[a](docs/src/guide/a.md#one-key-ab)\n<img src=\"docs/src/guide/a.md\">";
        assert_eq!(findings_of(&[SUMMARY, ("docs/src/guide/a.md", page), ("README.md", root)]), Vec::<String>::new());
    }

    #[test]
    fn each_kind_of_broken_link_is_found() {
        let page = "# A\n[x](b.md)\n[x](#b)\n[x](../../../README.md)\n{{#include ../../../NONE.md}}";
        let found = findings_of(&[SUMMARY, ("docs/src/guide/a.md", page), ("README.md", "# A"), ("docs/src/c.md", "")]);
        let expected = ["b.md does not exist", "no such heading", "mdBook copies", "NONE.md, which", "list it in"];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(found, expected)| found.contains(expected)), "{found:?}");
    }

    #[test]
    fn included_files_have_no_relative_links() {
        let page = "{{#include ../../../ARCHITECTURE.md}}";
        let found = findings_of(&[
            SUMMARY,
            ("docs/src/guide/a.md", page),
            ("ARCHITECTURE.md", "[x](README.md)"),
            ("README.md", ""),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("write the path as code"), "{found:?}");
    }

    #[test]
    fn repeated_headings_are_numbered() {
        let page = Page::of(Path::new("a.md"), "# A b\n## A b\n");
        assert_eq!(page.anchors.iter().collect::<Vec<_>>(), ["a-b", "a-b-1"]);
    }
}
