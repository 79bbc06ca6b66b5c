//! The order of a subset: columns, ASC or DESC, NULLS FIRST or LAST, and nothing else (SH-34).

use crate::identifier::{column_list, quote};

/// Limit of columns.
const COLUMNS_MAX: usize = 32;

/// Parses an order and formats it for SQL. `is_known` checks whether a column may be used.
///
/// # Errors
/// The text for the client.
pub(crate) fn parse(text: &str, is_known: impl Fn(&str) -> bool) -> Result<String, String> {
    let parts = split(text);
    if parts.len() > COLUMNS_MAX {
        return Err(format!("has more than {COLUMNS_MAX} columns"));
    }
    let parts: Result<Vec<String>, String> = parts.iter().map(|part| column(part.trim(), &is_known)).collect();
    Ok(parts?.join(", "))
}

/// Splits at commas outside of quotes.
fn split(text: &str) -> Vec<&str> {
    let mut is_quoted = false;
    text.split(|character| {
        is_quoted ^= character == '"';
        character == ',' && !is_quoted
    })
    .collect()
}

fn column(part: &str, is_known: &impl Fn(&str) -> bool) -> Result<String, String> {
    let name_len = match part.strip_prefix('"') {
        // The quote that ends the name is not doubled.
        Some(rest) => {
            let mut quotes =
                rest.char_indices().filter(|(_, character)| *character == '"').map(|(at, _)| at + 1).peekable();
            let mut end = part.len();
            while let Some(at) = quotes.next() {
                if quotes.peek() == Some(&(at + 1)) {
                    quotes.next();
                } else {
                    end = at + 1;
                    break;
                }
            }
            end
        }
        None => part.find(char::is_whitespace).unwrap_or(part.len()),
    };
    let (name, rest) = part.split_at(name_len);
    let names = column_list(name)?;
    let [name] = names.as_slice() else { return Err(format!("is not an order of columns: {part}")) };
    if !is_known(name) {
        return Err(format!("column {name} does not exist or cannot be queried"));
    }
    let words: Vec<String> = rest.split_whitespace().map(str::to_ascii_lowercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (direction, nulls) = match words.as_slice() {
        [direction @ ("asc" | "desc"), nulls @ ..] => (*direction, nulls),
        nulls => ("asc", nulls),
    };
    let nulls = match nulls {
        [] => "",
        ["nulls", "first"] => " NULLS FIRST",
        ["nulls", "last"] => " NULLS LAST",
        _ => return Err(format!("expects columns with ASC, DESC, NULLS FIRST or NULLS LAST: {part}")),
    };
    Ok(format!("{} {}{nulls}", quote(name), direction.to_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_formatted_from_its_parts() {
        let known = |name: &str| ["id", "a b", "q\"x", "name"].contains(&name);
        let cases = [
            ("id", "\"id\" ASC"),
            ("ID desc, name ASC nulls last", "\"id\" DESC, \"name\" ASC NULLS LAST"),
            ("\"a b\" NULLS FIRST", "\"a b\" ASC NULLS FIRST"),
            ("\"q\"\"x\" desc", "\"q\"\"x\" DESC"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text, known).as_deref(), Ok(expected), "{text}");
        }
    }

    /// SH-34.
    #[test]
    fn anything_but_columns_is_refused() {
        let texts = [
            "",
            "id,",
            "id; DROP TABLE x",
            "id desc asc",
            "(SELECT 1)",
            "id::text",
            "random()",
            "1",
            "secret",
            "id USING >",
            "id nulls",
            "\"id",
            "id--",
            "id COLLATE \"C\"",
            "\"id\"\"",
            "\"id\" \"name\"",
        ];
        for text in texts {
            assert!(parse(text, |name| name == "id" || name == "name").is_err(), "{text}");
        }
    }
}
