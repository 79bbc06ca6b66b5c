//! Language rules on a Markdown page, outside code blocks and code spans.

use super::{Fault, prose};

pub(super) fn faults(page: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for block in blocks(page) {
        let text: Vec<String> = block.text().lines().map(str::to_owned).collect();
        let lines: Vec<&str> = text.iter().map(String::as_str).collect();
        faults.extend(prose::vocabulary(block.first, &lines));
        if block.kind == BlockKind::Table {
            continue;
        }
        faults.extend(prose::long_sentences(block.first, &text.join(" ")));
        if block.kind == BlockKind::Paragraph {
            faults.extend(prose::opening(block.first, block.lines[0]));
        }
    }
    faults
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    Heading,
    Paragraph,
    ListItem,
    Table,
}

#[derive(Debug)]
struct Block<'t> {
    kind: BlockKind,
    first: usize,
    lines: Vec<&'t str>,
}

impl Block<'_> {
    /// The prose of the block; a code span may cross lines.
    fn text(&self) -> String {
        let mut inside = false;
        let blank = |char: char| {
            let code = inside;
            match char {
                '`' => inside = !inside,
                '\n' => return '\n',
                _ if code => return 'x',
                _ => return char,
            }
            ' '
        };
        self.lines.join("\n").chars().map(blank).collect()
    }
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let (mut in_code, mut open) = (false, false);
    for (index, line) in page.lines().enumerate() {
        let start = line.trim_start();
        if start.starts_with("```") {
            in_code = !in_code;
            open = false;
            continue;
        }
        if in_code || start.is_empty() {
            open = false;
            continue;
        }
        let kind = kind_of(start);
        // A line without a mark continues the block above it.
        match (kind, blocks.last_mut()) {
            (BlockKind::Paragraph, Some(block)) if open => block.lines.push(line),
            _ => blocks.push(Block { kind, first: index + 1, lines: vec![line] }),
        }
        open = !matches!(kind, BlockKind::Heading | BlockKind::Table);
    }
    blocks
}

fn kind_of(line: &str) -> BlockKind {
    match line.as_bytes()[0] {
        b'#' => BlockKind::Heading,
        b'|' | b'<' => BlockKind::Table,
        _ if prose::is_list_item(line) => BlockKind::ListItem,
        _ => BlockKind::Paragraph,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(page: &str) -> Vec<usize> {
        faults(page).into_iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn a_listed_word_is_found_outside_code() {
        assert_eq!(lines("# Told\n\nA told `told` line.\n\n```\ntold\n```\n- x\n  told\n| told |"), [1, 3, 9, 10]);
    }

    #[test]
    fn a_code_span_may_cross_lines() {
        assert_eq!(lines("A `told\ntold` line\ntold"), [3]);
    }

    #[test]
    fn an_opening_is_found_in_paragraphs_only() {
        assert_eq!(lines("Of the pool.\nIn a second line.\n\n- in a list\n\n## Of the pool\n"), [1]);
    }

    #[test]
    fn a_long_sentence_is_found_across_lines() {
        let half = "word ".repeat(prose::SENTENCE_WORDS_MAX / 2);
        assert_eq!(lines(&format!("# x\n\n{half}\n{half}\nmore\n")), [3]);
        assert!(lines(&format!("- {half}\n- {half}\n- more\n")).is_empty());
    }
}
