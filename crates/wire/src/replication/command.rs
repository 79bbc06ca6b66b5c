//! Texts of replication commands.
//!
//! Commands are parsed by the walsender's own grammar (`src/backend/replication/repl_gram.y`), which quotes like SQL.

use super::Lsn;

/// Bytes of a slot name: `NAMEDATALEN - 1`.
const SLOT_NAME_MAX: usize = 63;

/// A name that Postgres does not accept for a replication slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("replication slot name \"{0}\" is invalid: use 1 to 63 of the characters a-z, 0-9 and _")]
pub struct SlotNameError(pub String);

/// Checks a slot name: `[a-z0-9_]`, 1 to 63 bytes.
///
/// # Errors
/// The name is empty, too long, or has other characters.
pub fn check_slot_name(name: &str) -> Result<(), SlotNameError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if (1..=SLOT_NAME_MAX).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(SlotNameError(name.to_owned()))
}

/// Quotes an identifier. A zero byte, which no identifier has, is left out.
#[must_use]
pub fn quote_ident(name: &str) -> String {
    quote(name, '"')
}

/// Quotes a literal for a session with `standard_conforming_strings`, the default since Postgres 9.1.
///
/// A backslash makes the literal an escape string, so that the result has one meaning under both settings.
#[must_use]
pub fn quote_literal(text: &str) -> String {
    if text.contains('\\') {
        return format!(" E{}", quote(&text.replace('\\', "\\\\"), '\''));
    }
    quote(text, '\'')
}

fn quote(text: &str, mark: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(mark);
    for letter in text.chars().filter(|letter| *letter != '\0') {
        if letter == mark {
            out.push(mark);
        }
        out.push(letter);
    }
    out.push(mark);
    out
}

/// The value of `publication_names`: quoted identifiers, separated by commas.
#[must_use]
pub fn publication_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(quote_ident).collect::<Vec<_>>().join(",")
}

/// An option of the output plugin: a name and a value.
pub type PluginOption<'a> = (&'a str, &'a str);

/// The command `START_REPLICATION SLOT name LOGICAL lsn (option 'value', ...)`.
#[must_use]
pub fn start_replication(slot: &str, lsn: Lsn, options: &[PluginOption<'_>]) -> String {
    // The grammar of the walsender has no escape strings, so quote_literal does not apply.
    let options: Vec<_> =
        options.iter().map(|(name, value)| format!("{} {}", quote_ident(name), quote(value, '\''))).collect();
    format!("START_REPLICATION SLOT {} LOGICAL {lsn} ({})", quote_ident(slot), options.join(", "))
}

/// Use of the snapshot that a new slot is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotSnapshot {
    /// Other sessions can import the snapshot until the next command on this connection.
    Export,
    /// The current transaction uses the snapshot; the command must be its first.
    Use,
    /// No snapshot.
    Nothing,
}

/// The command `CREATE_REPLICATION_SLOT`, for the plugin `pgoutput`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateSlot<'a> {
    /// Name of the slot.
    pub name: &'a str,
    /// Whether the slot is dropped with its connection.
    pub temporary: bool,
    /// The snapshot.
    pub snapshot: SlotSnapshot,
    /// Whether the slot is synchronised to standbys (Postgres 17).
    pub failover: bool,
}

impl CreateSlot<'_> {
    /// The text of the command for a server of this major version. Versions below 15 take words without parentheses.
    #[must_use]
    pub fn command(&self, major: u32) -> String {
        let temporary = if self.temporary { " TEMPORARY" } else { "" };
        let head = format!("CREATE_REPLICATION_SLOT {}{temporary} LOGICAL pgoutput", quote_ident(self.name));
        let (word, value) = match self.snapshot {
            SlotSnapshot::Export => ("EXPORT_SNAPSHOT", "export"),
            SlotSnapshot::Use => ("USE_SNAPSHOT", "use"),
            SlotSnapshot::Nothing => ("NOEXPORT_SNAPSHOT", "nothing"),
        };
        let failover = if self.failover { ", FAILOVER true" } else { "" };
        if major < 15 { format!("{head} {word}") } else { format!("{head} (SNAPSHOT '{value}'{failover})") }
    }
}

/// The command `DROP_REPLICATION_SLOT`. With `wait` it waits until the slot is inactive.
#[must_use]
pub fn drop_slot(name: &str, wait: bool) -> String {
    format!("DROP_REPLICATION_SLOT {}{}", quote_ident(name), if wait { " WAIT" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_quote_names_and_values() {
        let options = [("proto_version", "4"), ("publication_names", "\"it's\"")];
        assert_eq!(
            start_replication("s", Lsn(0x1_0000_0010), &options),
            r#"START_REPLICATION SLOT "s" LOGICAL 1/10 ("proto_version" '4', "publication_names" '"it''s"')"#
        );
        assert_eq!(publication_list(["a", "b\"c"]), r#""a","b""c""#);
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal(r"a\'b"), r" E'a\\''b'");
        assert_eq!(quote_ident("a\0b"), "\"ab\"");
    }

    #[test]
    fn slot_options_follow_the_server_version() {
        let slot = CreateSlot { name: "s", temporary: false, snapshot: SlotSnapshot::Nothing, failover: true };
        assert_eq!(slot.command(14), r#"CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput NOEXPORT_SNAPSHOT"#);
        assert_eq!(
            slot.command(17),
            r#"CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT 'nothing', FAILOVER true)"#
        );
        let exported = CreateSlot { temporary: true, snapshot: SlotSnapshot::Export, failover: false, ..slot };
        assert_eq!(
            exported.command(15),
            r#"CREATE_REPLICATION_SLOT "s" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"#
        );
        assert_eq!(drop_slot("s", true), r#"DROP_REPLICATION_SLOT "s" WAIT"#);
    }

    #[test]
    fn slot_names_are_those_of_postgres() {
        for (name, valid) in [("a_1", true), ("", false), ("A", false), ("a-b", false), ("é", false)] {
            assert_eq!(check_slot_name(name).is_ok(), valid, "{name}");
        }
        assert!(check_slot_name(&"a".repeat(63)).is_ok());
        assert!(check_slot_name(&"a".repeat(64)).is_err());
    }
}
