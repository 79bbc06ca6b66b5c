//! Language rules on a Rust file: comments, string literals, identifiers, names of functions.

use proc_macro2::{Delimiter, Ident, Literal, Span, TokenStream, TokenTree};

use super::vocabulary::FOREIGN;
use super::{Fault, prose};

/// A longer name of a test or another function is a sentence.
const FUNCTION_NAME_CHARS: usize = 50;

pub(super) fn faults(source: &str) -> Vec<Fault> {
    let Ok(tokens) = source.parse::<TokenStream>() else {
        // The rules on syntax report it.
        return Vec::new();
    };
    let mut walk = Walk { code: source.as_bytes().to_vec(), faults: Vec::new() };
    walk.stream(tokens);
    let Walk { code, mut faults } = walk;
    // Comments and white space remain.
    let comments = String::from_utf8_lossy(&code).into_owned();
    faults.extend(Comment::all(&comments).iter().flat_map(Comment::faults));
    faults
}

/// Visits the tokens of a file. Blanks each token in `code`, so that only comments are left.
struct Walk {
    code: Vec<u8>,
    faults: Vec<Fault>,
}

impl Walk {
    fn stream(&mut self, tokens: TokenStream) {
        let mut is_function = false;
        for token in tokens {
            match token {
                TokenTree::Group(group) => {
                    self.stream(group.stream());
                    if group.delimiter() != Delimiter::None && !self.is_comment(group.span()) {
                        self.blank(group.span_open());
                        self.blank(group.span_close());
                    }
                }
                TokenTree::Ident(ident) => {
                    if is_function {
                        self.function(&ident);
                    }
                    is_function = ident == "fn";
                    self.identifier(&ident);
                    self.blank(ident.span());
                }
                TokenTree::Punct(punct) => self.blank(punct.span()),
                TokenTree::Literal(literal) => {
                    self.literal(&literal);
                    self.blank(literal.span());
                }
            }
        }
    }

    fn function(&mut self, name: &Ident) {
        let chars = name.to_string().chars().count();
        if chars > FUNCTION_NAME_CHARS {
            let advice = format!("`{name}` has {chars} characters: name the behaviour ({FUNCTION_NAME_CHARS} at most)");
            self.faults.push(Fault::new(name.span().start().line, advice));
        }
    }

    fn identifier(&mut self, ident: &Ident) {
        let name = ident.to_string();
        if FOREIGN.contains(&name.as_str()) {
            return;
        }
        for part in parts_of(&name) {
            if let Some(instead) = prose::replacement(&part) {
                self.faults
                    .push(Fault::new(ident.span().start().line, format!("`{part}` in `{name}`: write {instead}")));
            }
        }
    }

    fn literal(&mut self, literal: &Literal) {
        let text = literal.to_string();
        // Doc comments are among the literals, with the text of the comment in the source.
        if text.contains('"') && !FOREIGN.contains(&text.as_str()) && !self.is_comment(literal.span()) {
            let lines: Vec<&str> = text.lines().collect();
            self.faults.extend(prose::vocabulary(literal.span().start().line, &lines));
        }
    }

    fn is_comment(&self, span: Span) -> bool {
        let text = &self.code[span.byte_range()];
        text.starts_with(b"//") || text.starts_with(b"/*")
    }

    fn blank(&mut self, span: Span) {
        if !self.is_comment(span) {
            let newline = |byte: u8| byte == b'\n';
            self.code[span.byte_range()].iter_mut().filter(|byte| !newline(**byte)).for_each(|byte| *byte = b' ');
        }
    }
}

/// `was_told`, `WasTold` and `WAS_TOLD` are `was` and `told`.
fn parts_of(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut after_lower = false;
    for part in name.split('_') {
        let mut starts = true;
        for char in part.chars() {
            starts |= after_lower && char.is_uppercase();
            match parts.last_mut() {
                Some(last) if !starts => last.push(char.to_ascii_lowercase()),
                _ => parts.push(char.to_ascii_lowercase().to_string()),
            }
            starts = false;
            after_lower = char.is_lowercase();
        }
    }
    parts
}

/// Consecutive lines of one kind of comment.
#[derive(Debug)]
struct Comment<'t> {
    kind: &'static str,
    first: usize,
    lines: Vec<&'t str>,
}

impl<'t> Comment<'t> {
    /// All comments of a text without code.
    fn all(text: &'t str) -> Vec<Self> {
        let mut comments: Vec<Self> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let Some(kind) = ["///", "//!", "//", "/*", "*"].into_iter().find(|mark| line.starts_with(mark)) else {
                continue;
            };
            let content = &line[kind.len()..];
            match comments.last_mut() {
                Some(last) if last.kind == kind && last.first + last.lines.len() == index + 1 => {
                    last.lines.push(content);
                }
                _ => comments.push(Self { kind, first: index + 1, lines: vec![content] }),
            }
        }
        comments
    }

    fn faults(&self) -> Vec<Fault> {
        let lines: Vec<String> = self.lines.iter().map(|line| prose::without_code_spans(line)).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let mut faults = prose::vocabulary(self.first, &lines);
        faults.extend(prose::opening(self.first, self.lines[0]));
        for (line, paragraph) in self.paragraphs() {
            faults.extend(prose::long_sentences(line, &prose::without_code_spans(&paragraph)));
        }
        faults
    }

    /// Paragraphs and items of lists, without code blocks and tables.
    fn paragraphs(&self) -> Vec<(usize, String)> {
        let mut paragraphs: Vec<(usize, String)> = Vec::new();
        let (mut in_code, mut open) = (false, false);
        for (index, line) in self.lines.iter().enumerate() {
            let line = line.trim();
            if line.starts_with("```") {
                in_code = !in_code;
            }
            if in_code || line.is_empty() || line.starts_with("```") || line.starts_with('|') || line.starts_with('#') {
                open = false;
                continue;
            }
            let is_item = prose::is_list_item(line);
            match paragraphs.last_mut() {
                Some((_, text)) if open && !is_item => {
                    text.push(' ');
                    text.push_str(line);
                }
                _ => paragraphs.push((self.first + index, line.to_owned())),
            }
            open = true;
        }
        paragraphs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(source: &str) -> Vec<usize> {
        let mut lines: Vec<usize> = faults(source).into_iter().map(|fault| fault.line).collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn a_listed_word_is_found_in_every_kind_of_comment() {
        let source =
            "//! Is told.\n\n/// Is told.\nfn f() {\n    // Is told.\n    g(); // is told\n    /* is told */\n}\n";
        assert_eq!(lines(source), [1, 3, 5, 6, 7]);
    }

    #[test]
    fn a_listed_word_is_found_in_literals_and_identifiers() {
        let source = "fn f() {\n    log(\"told\");\n    was_told();\n    WasTold::WAS_TOLD;\n    \"é told\";\n}\n";
        assert_eq!(lines(source), [2, 3, 4, 4, 5]);
    }

    #[test]
    fn names_of_other_projects_are_allowed() {
        assert!(lines("fn f() {\n    user(\"nobody\");\n}\n").is_empty());
        assert!(lines("fn f() {\n    tls.wants_read();\n    // Calls `wants_read`.\n}\n").is_empty());
    }

    #[test]
    fn a_comment_in_a_literal_is_no_comment() {
        assert!(lines("fn f() {\n    // The é of\n    \"// Of the pool.\"\n}\n").is_empty());
    }

    #[test]
    fn an_opening_is_found_per_comment() {
        assert_eq!(
            lines("/// Of the pool.\n/// Of the pool.\nstruct A;\n\n// For tests.\n\n/// Names of it.\n"),
            [1, 5]
        );
    }

    #[test]
    fn a_long_sentence_is_found_outside_code() {
        let long = "word ".repeat(prose::SENTENCE_WORDS_MAX + 1);
        assert_eq!(lines(&format!("//! A.\n//!\n//! {long}\n")), [3]);
        assert!(lines(&format!("//! A.\n//!\n//! ```\n//! {long}\n//! ```\n")).is_empty());
    }

    #[test]
    fn a_function_name_over_the_limit_is_found() {
        let name = "n".repeat(FUNCTION_NAME_CHARS);
        assert_eq!(lines(&format!("fn {name}() {{}}\n#[test]\nfn {name}n() {{}}\n")), [3]);
    }
}
