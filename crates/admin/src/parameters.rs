//! Session parameters that drivers query and set. The console has no parameters: it returns the values of a server with the same
//! greeting, and accepts every new value.

use super::lexer::CommandWord;

/// Names as in Postgres, and values.
const ANSWERS: &[(&str, &str)] = &[
    ("application_name", ""),
    ("bytea_output", "hex"),
    ("client_encoding", "UTF8"),
    ("datestyle", "ISO, MDY"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("extra_float_digits", "1"),
    ("in_hot_standby", "off"),
    ("integer_datetimes", "on"),
    ("intervalstyle", "postgres"),
    ("is_superuser", "on"),
    ("max_identifier_length", "63"),
    ("search_path", "public"),
    ("server_encoding", "UTF8"),
    ("server_version", concat!(env!("CARGO_PKG_VERSION"), "/tidegate")),
    ("standard_conforming_strings", "on"),
    ("timezone", "UTC"),
    ("transaction_isolation", "read committed"),
    ("transaction_read_only", "off"),
];

/// Other parameters that drivers set.
const SETTABLE: &[&str] = &[
    "check_function_bodies",
    "client_min_messages",
    "escape_string_warning",
    "idle_in_transaction_session_timeout",
    "jit",
    "lock_timeout",
    "names",
    "role",
    "row_security",
    "session",
    "statement_timeout",
    "synchronize_seqscans",
    "time",
    "transaction",
];

/// The answer to `SHOW` with these words: name and value.
pub(super) fn answer(words: &[CommandWord]) -> Option<(&'static str, &'static str)> {
    let spelled: Vec<_> = words.iter().map(|word| word.text.to_ascii_lowercase()).collect();
    let spelled: Vec<_> = spelled.iter().map(String::as_str).collect();
    let name = match spelled[..] {
        ["transaction", "isolation", "level"] => "transaction_isolation",
        ["time", "zone"] => "timezone",
        [name] => name,
        _ => return None,
    };
    ANSWERS.iter().find(|(known, _)| *known == name).copied()
}

/// Whether `SET` with these words concerns the session, not the gateway.
pub(super) fn is_session_parameter(words: &[CommandWord]) -> bool {
    let scoped = words.first().is_some_and(|word| word.is("local") || word.is("session"));
    // `session` is a part of the name in SET SESSION CHARACTERISTICS and SET SESSION AUTHORIZATION.
    let name = words.get(usize::from(scoped && words.len() > 2)).map(|word| word.text.to_ascii_lowercase());
    name.is_some_and(|name| {
        ANSWERS.iter().any(|(known, _)| *known == name)
            || SETTABLE.contains(&name.as_str())
            || ["characteristics", "authorization"].contains(&name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::statements;

    fn words(text: &str) -> Vec<CommandWord> {
        statements(text).unwrap().remove(0)
    }

    #[test]
    fn parameters_are_found_in_every_spelling() {
        assert_eq!(answer(&words("Client_Encoding")), Some(("client_encoding", "UTF8")));
        assert_eq!(answer(&words("TRANSACTION ISOLATION LEVEL")).map(|(_, value)| value), Some("read committed"));
        assert_eq!(answer(&words("pool_size")), None);
    }

    #[test]
    fn session_parameters_differ_from_settings() {
        for text in [
            "extra_float_digits = 3",
            "SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            "client_encoding TO 'UTF8'",
            "TIME ZONE 'UTC'",
            "LOCAL statement_timeout = 0",
            "SESSION datestyle = 'ISO'",
            "DateStyle='ISO'",
        ] {
            assert!(is_session_parameter(&words(text)), "{text}");
        }
        for text in ["pool.size = 3", "default_pool_size=5", "max_clients TO 1"] {
            assert!(!is_session_parameter(&words(text)), "{text}");
        }
    }
}
