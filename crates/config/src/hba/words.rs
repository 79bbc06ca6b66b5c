//! Lines of such a file: fields between spaces, a field a list of words between commas, a word maybe in double quotes.

use super::Wrong;

/// What stands for bytes that are no UTF-8.
const FOREIGN: char = char::REPLACEMENT_CHARACTER;

/// A word of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// It stood in quotes, so that it is no keyword.
    pub(super) quoted: bool,
}

/// A line that says something, and its number from 1.
type Line = (usize, Vec<Vec<Word>>);

/// The lines that say something. A backslash at the end of a line joins the next to it.
///
/// # Errors
/// The first line of which something beside its comment was in another encoding.
pub(super) fn lines(text: &str) -> Result<Vec<Line>, Wrong> {
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
    let is_foreign = |(_, fields): &&Line| fields.iter().flatten().any(|word| word.text.contains(FOREIGN));
    match lines.iter().find(is_foreign) {
        Some((number, _)) => Err((*number, "it is not in UTF-8".to_owned())),
        None => Ok(lines),
    }
}

fn fields(line: &str) -> Vec<Vec<Word>> {
    let mut fields: Vec<Vec<Word>> = Vec::new();
    let mut rest = line.chars().peekable();
    // Behind a comma, the next word belongs to the same field.
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

fn word(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Word {
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
    Word { text, quoted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_lists_of_words() {
        let found = lines("# \u{fffd} nothing\n\nhost a, \"b c\",d  all # rest\nlocal \\\nall\n").expect("lines");
        let texts = |fields: &Vec<Vec<Word>>| {
            fields
                .iter()
                .map(|field| field.iter().map(|word| word.text.clone()).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(texts(&found[0].1), [vec!["host"], vec!["a", "b c", "d"], vec!["all"]]);
        assert_eq!(texts(&found[1].1), [["local"], ["all"]]);
        assert!(found[0].1[1][1].quoted && !found[0].1[1][0].quoted);
        assert_eq!(lines("local\nhost a\u{fffd} all\n").expect_err("nobody knows whom it means").0, 2);
    }
}
