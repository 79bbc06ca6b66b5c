//! Tokens of a file: fields are separated by whitespace, words in a field by commas; words may be quoted.

use super::HbaLineError;

/// Replacement for bytes that are not UTF-8.
const INVALID_UTF8: char = char::REPLACEMENT_CHARACTER;

/// A word of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HbaToken {
    pub(super) text: String,
    /// A quoted word is never a keyword.
    pub(super) quoted: bool,
}

/// A line with fields, and its number from 1.
type HbaLine = (usize, Vec<Vec<HbaToken>>);

/// Lines with fields. A backslash at the end of a line continues it.
///
/// # Errors
/// The first line that is not UTF-8 outside of its comment.
pub(super) fn lines(text: &str) -> Result<Vec<HbaLine>, HbaLineError> {
    let mut lines = Vec::new();
    let mut joined: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let (start, mut whole) = joined.take().unwrap_or((number + 1, String::new()));
        if let Some(part) = line.strip_suffix('\\') {
            whole.push_str(part);
            joined = Some((start, whole));
            continue;
        }
        whole.push_str(line);
        lines.push((start, fields(&whole)));
    }
    lines.extend(joined.map(|(start, whole)| (start, fields(&whole))));
    lines.retain(|(_, fields)| !fields.is_empty());
    let is_invalid = |(_, fields): &&HbaLine| fields.iter().flatten().any(|word| word.text.contains(INVALID_UTF8));
    match lines.iter().find(is_invalid) {
        Some((number, _)) => Err((*number, "the line is not UTF-8".to_owned())),
        None => Ok(lines),
    }
}

fn fields(line: &str) -> Vec<Vec<HbaToken>> {
    let mut fields: Vec<Vec<HbaToken>> = Vec::new();
    let mut rest = line.chars().peekable();
    // After a comma, the next word belongs to the same field.
    let mut continues = false;
    while let Some(&c) = rest.peek() {
        match c {
            '#' => break,
            ',' => {
                rest.next();
                continues = true;
            }
            c if c.is_whitespace() => drop(rest.next()),
            _ => {
                let word = word(&mut rest);
                match fields.last_mut().filter(|_| continues) {
                    Some(field) => field.push(word),
                    None => fields.push(vec![word]),
                }
                continues = false;
            }
        }
    }
    fields
}

fn word(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> HbaToken {
    let (mut text, mut quoted, mut inside) = (String::new(), false, false);
    while let Some(&c) = rest.peek() {
        if c == '"' {
            (quoted, inside) = (true, !inside);
        } else if !inside && (c.is_whitespace() || c == ',' || c == '#') {
            break;
        } else {
            text.push(c);
        }
        rest.next();
    }
    HbaToken { text, quoted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_lists_of_words() {
        let found = lines("# \u{fffd} nothing\n\nhost a, \"b c\",d  all # rest\nlocal \\\nall\n").expect("lines");
        let texts = |fields: &Vec<Vec<HbaToken>>| {
            fields
                .iter()
                .map(|field| field.iter().map(|word| word.text.clone()).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(texts(&found[0].1), [vec!["host"], vec!["a", "b c", "d"], vec!["all"]]);
        assert_eq!(texts(&found[1].1), [["local"], ["all"]]);
        assert!(found[0].1[1][1].quoted && !found[0].1[1][0].quoted);
        assert_eq!(lines("local\nhost a\u{fffd} all\n").expect_err("invalid UTF-8").0, 2);
    }
}
