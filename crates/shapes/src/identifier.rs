//! Names of tables and columns as clients write them.

/// Postgres truncates longer names (`NAMEDATALEN` - 1); a truncated name would name another table.
const NAME_BYTES_MAX: usize = 63;

/// A schema and a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct TableName {
    /// The schema.
    pub schema: String,
    /// The table.
    pub table: String,
}

impl TableName {
    /// Parses `table` or `schema.table`; the default schema is `public`.
    ///
    /// # Errors
    /// The reason, for the client.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = split(text, '.');
        match parts.as_slice() {
            [table] => Ok(Self { schema: "public".to_owned(), table: name(table)? }),
            [schema, table] => Ok(Self { schema: name(schema)?, table: name(table)? }),
            _ => Err("Invalid relation specification: expected table or schema.table".to_owned()),
        }
    }

    /// The name for SQL, quoted.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("{}.{}", quote(&self.schema), quote(&self.table))
    }
}

/// Parses a comma-separated list of column names.
///
/// # Errors
/// The reason, for the client.
pub(crate) fn column_list(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Err("Invalid zero-length delimited identifier".to_owned());
    }
    split(text, ',').into_iter().map(|part| name(part.trim())).collect()
}

/// The name for SQL, in double quotes.
#[must_use]
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Splits outside of double quotes.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut is_quoted = false;
    text.split(|character| {
        is_quoted ^= character == '"';
        character == separator && !is_quoted
    })
    .collect()
}

/// A name is folded to lower case unless it is quoted, as in SQL.
fn name(text: &str) -> Result<String, String> {
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let name = match inner {
        Some(inner) if inner.replace("\"\"", "").contains('"') => {
            return Err(format!("Invalid identifier with unescaped quote: {inner}"));
        }
        Some(inner) => inner.replace("\"\"", "\""),
        None if !text.is_empty() && !is_plain(text) => {
            return Err(format!("Invalid unquoted identifier contains special characters: {text}"));
        }
        None => text.to_ascii_lowercase(),
    };
    match name.len() {
        0 => Err("Invalid zero-length delimited identifier".to_owned()),
        len if len > NAME_BYTES_MAX => Err(format!("Identifier is too long (max length is {NAME_BYTES_MAX}): {name}")),
        _ if name.contains('\0') => Err("Invalid identifier contains a zero byte".to_owned()),
        _ => Ok(name),
    }
}

/// The characters of an unquoted identifier (`ident_start` and `ident_cont` in `src/backend/parser/scan.l`).
fn is_plain(text: &str) -> bool {
    let is_start = |character: char| character.is_ascii_alphabetic() || character == '_' || !character.is_ascii();
    text.starts_with(is_start)
        && text.chars().all(|character| is_start(character) || character.is_ascii_digit() || character == '$')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_follow_the_rules_of_sql() {
        let cases = [
            ("items", Ok(("public", "items"))),
            ("Items", Ok(("public", "items"))),
            ("\"Items\"", Ok(("public", "Items"))),
            ("app.\"a.b\"", Ok(("app", "a.b"))),
            ("\"a\"\"b\".c", Ok(("a\"b", "c"))),
            ("_val1d_schëmaΦ$.Φtàble", Ok(("_val1d_schëmaΦ$", "Φtàble"))),
            (".invalid_shape", Err("Invalid zero-length delimited identifier")),
            ("", Err("Invalid zero-length delimited identifier")),
            ("\"\"", Err("Invalid zero-length delimited identifier")),
            ("foob@r", Err("Invalid unquoted identifier contains special characters: foob@r")),
            ("1a", Err("Invalid unquoted identifier contains special characters: 1a")),
            ("\"a\"b\"", Err("Invalid identifier with unescaped quote: a\"b")),
            ("a.b.c", Err("Invalid relation specification: expected table or schema.table")),
        ];
        for (text, expected) in cases {
            let parsed = TableName::parse(text);
            let parsed = parsed.as_ref().map(|name| (name.schema.as_str(), name.table.as_str()));
            assert_eq!(parsed.map_err(String::as_str), expected, "{text}");
        }
        assert!(TableName::parse(&"é".repeat(32)).is_err(), "64 bytes");
        assert!(TableName::parse(&format!("a{}", "é".repeat(31))).is_ok(), "63 bytes");
    }

    #[test]
    fn column_lists_may_quote_commas() {
        assert_eq!(column_list("id, Name,\"a,b\",\"C\""), Ok(["id", "name", "a,b", "C"].map(String::from).to_vec()));
        assert!(column_list("id,,b").is_err());
        assert!(column_list("").is_err());
    }

    #[test]
    fn quoted_names_survive_a_round_trip() {
        for name in ["a", "A\"B", "a.b", "a/b", "\"", "é"] {
            let table = TableName { schema: name.to_owned(), table: "T".to_owned() };
            assert_eq!(TableName::parse(&table.quoted()), Ok(table));
        }
    }
}
