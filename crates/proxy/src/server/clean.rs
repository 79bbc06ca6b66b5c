//! Gives a server back its first state before another client gets it.

use std::io;

use tidegate_wire::{
    backend::{self, ErrorFields, TxStatus},
    frame::HEADER,
    frontend,
    scan::{Delivery, ScanStep},
};

use super::{Cleaning, ResetNeed, Server};
use tidegate_session_state::params::{RoleOrder, Settings};

/// Why a server could not be cleaned; it is then closed.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// Its connection broke.
    #[error("the connection broke while the session was reset")]
    Link(#[from] io::Error),
    /// It sent what is no message.
    #[error("the server sent an invalid message: {0}")]
    Decode(#[from] tidegate_wire::DecodeError),
    /// It refused a statement: why.
    #[error("the server says: {0}")]
    Refused(String),
    /// It refused the settings of a client, with this ErrorResponse.
    #[error("the server refused the settings of a client")]
    Settings(Box<[u8]>),
    /// It may be hit by a cancel request of its last client.
    #[error("nobody knows what became of a cancel request")]
    Cancelled,
    /// A transaction is open, or has failed, that should have ended.
    #[error("the server is in a transaction")]
    Busy,
}

/// What takes everything back that a session has.
pub const DISCARD_ALL: &str = "DISCARD ALL";

/// What a DO block or a procedure may have left behind: DISCARD ALL without DEALLOCATE ALL and DISCARD PLANS, which would cost
/// every client of the server its prepared statements.
pub const RESET_CODE: &str = "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;CLOSE ALL;UNLISTEN *;\
                              SELECT pg_catalog.pg_advisory_unlock_all();DISCARD TEMP;DISCARD SEQUENCES";

/// Ends what `cleaning` says is open and runs each of `resets`, after all cancel requests are through.
///
/// # Errors
/// Any of [`CleanError`]: the server must not be used again.
///
/// # Cancel safety
/// Not safe: the server's state is unknown when the future is dropped.
pub async fn clean(server: &mut Server, cleaning: Cleaning, resets: &[&str]) -> Result<(), CleanError> {
    server.cancels.opened().await;
    if server.cancels.has_lost() {
        return Err(CleanError::Cancelled);
    }
    let mut out = Vec::new();
    let mut expected = 1;
    if cleaning.unsynced {
        // After an error the server skips everything before it.
        frontend::sync(&mut out);
        expected += 1;
    }
    if cleaning.in_transaction {
        frontend::query(b"ROLLBACK", &mut out);
        expected += 1;
    }
    for reset in resets {
        frontend::query(reset.as_bytes(), &mut out);
        expected += 1;
    }
    // A reply to this proves that a late signal has found nothing to cancel, or this.
    frontend::sync(&mut out);
    server.link().write(out);
    server.link().flush().await?;
    // A late cancel may hit the reset; whatever it was, the session is not what it should be.
    on_message(server, expected, message_of).await?;
    resets.iter().for_each(|reset| note_reset(server, reset));
    server.note_statements();
    server.unnamed = None;
    server.synced_params = None;
    server.reset_need = ResetNeed::Nothing;
    Ok(())
}

/// What the server has left after a reset, of which the user may have made anything.
fn note_reset(server: &mut Server, reset: &str) {
    if has_statement(reset, DISCARD_ALL) {
        server.statements.clear();
        server.settings.discard_all();
        return;
    }
    if reset == RESET_CODE {
        server.settings.discard_all();
        return;
    }
    server.statements.mark_all_stale();
    if has_statement(reset, "RESET ALL") {
        server.settings.finish_reset_all();
    } else {
        server.settings.mark_all_unknown();
    }
}

/// Whether one of the statements of `sql` is that, in whatever case.
fn has_statement(sql: &str, words: &str) -> bool {
    let is_same = |statement: &str| {
        let said = statement.split_ascii_whitespace().map(str::to_ascii_uppercase);
        said.eq(words.split(' '))
    };
    sql.split(';').any(is_same)
}

/// Runs statements on a fresh server, whose rows nobody wants.
///
/// # Errors
/// Any of [`CleanError`]: the server must not be used, unless it has but refused one. What it says of that comes without
/// the values of `sql`: the reason goes to the log and to clients, who may not know them.
///
/// # Cancel safety
/// As [`clean`].
pub async fn run(server: &mut Server, sql: &str) -> Result<(), CleanError> {
    let mut out = Vec::new();
    frontend::query(sql.as_bytes(), &mut out);
    // A simple query makes an end of the unnamed statement.
    server.unnamed = None;
    server.link().write(out);
    server.link().flush().await?;
    let reason = |fields: &ErrorFields<'_>| tidegate_sql::error_values::error_without_values(fields, sql.as_bytes());
    on_message(server, 1, reason).await
}

/// Lets a server at rest report what has changed in its configuration, which it does before its next ReadyForQuery.
///
/// # Errors
/// Any of [`CleanError`]: the server must not be used again.
///
/// # Cancel safety
/// As [`clean`].
pub async fn refresh(server: &mut Server) -> Result<(), CleanError> {
    let mut out = Vec::new();
    frontend::sync(&mut out);
    server.link().write(out);
    server.link().flush().await?;
    on_message(server, 1, message_of).await?;
    server.synced_params = None;
    Ok(())
}

/// Gives a server the settings of a client that logs in. Returns them as the server spells them.
///
/// # Errors
/// [`CleanError::Settings`] if the server does not take them; a transaction is then open. Otherwise the server must not be
/// used again.
///
/// # Cancel safety
/// As [`clean`].
pub async fn adopt(server: &mut Server, wanted: &Settings, turn: RoleOrder) -> Result<Settings, CleanError> {
    let queries = server.settings.sync_queries(wanted, turn);
    if !queries.is_empty() {
        let mut out = Vec::new();
        queries.iter().for_each(|sql| frontend::query(sql, &mut out));
        server.unnamed = None;
        server.synced_params = None;
        server.link().write(out);
        server.link().flush().await?;
        if let Some(error) = read_answers(server, queries.len(), false).await? {
            return Err(CleanError::Settings(error));
        }
    }
    Ok(server.settings.finish_sync(wanted))
}

fn message_of(fields: &ErrorFields<'_>) -> String {
    fields.message().map(|text| text.into_owned()).unwrap_or_default()
}

/// Reads until the server is ready for the `expected`-th time. `reason` makes the reason of a refusal.
async fn on_message(
    server: &mut Server,
    expected: usize,
    reason: impl Fn(&ErrorFields<'_>) -> String,
) -> Result<(), CleanError> {
    match read_answers(server, expected, true).await? {
        Some(error) => Err(CleanError::Refused(reason(&ErrorFields::decode(&error)?))),
        None if server.status != TxStatus::Idle => Err(CleanError::Busy),
        None => Ok(()),
    }
}

/// The same; the error of a statement that was refused. `is_own` says whether what the server reports is its own, or that of a
/// client.
async fn read_answers(server: &mut Server, expected: usize, is_own: bool) -> Result<Option<Box<[u8]>>, CleanError> {
    let (mut ready, mut refused) = (0, None);
    while ready < expected {
        let chunk = server.link().read().await?;
        if chunk.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        ready += ready_count(server, &chunk, is_own, &mut refused)?;
    }
    Ok(refused)
}

/// How many times `chunk` says ReadyForQuery.
fn ready_count(
    server: &mut Server,
    chunk: &[u8],
    is_own: bool,
    refused: &mut Option<Box<[u8]>>,
) -> Result<usize, CleanError> {
    let (mut at, mut count) = (0, 0);
    loop {
        let (tag, body, end) = match server.scanner.step(chunk, at, |_| Delivery::Whole)? {
            ScanStep::Message { tag, end } => (tag, chunk[at + HEADER..end].to_vec(), end),
            ScanStep::Carried { tag, end } => (tag, server.scanner.take_carry()[HEADER..].to_vec(), end),
            _ => return Ok(count),
        };
        match tag {
            backend::READY_FOR_QUERY => {
                server.status = backend::ready_for_query_status(&body)?;
                count += 1;
            }
            backend::PARAMETER_STATUS => {
                let status = backend::ParameterStatus::decode(&body)?;
                if let Ok(name) = str::from_utf8(status.name) {
                    match is_own {
                        true => server.settings.report_default(name, status.value),
                        false => server.settings.report(name, status.value),
                    };
                }
            }
            backend::ERROR_RESPONSE => {
                ErrorFields::decode(&body)?;
                refused.get_or_insert(body.into());
            }
            _ => {}
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_read_in_whatever_case() {
        for (sql, discards) in [
            ("DISCARD ALL", true),
            (" discard\nall ;", true),
            ("select 1; Discard All", true),
            ("DISCARD TEMP", false),
            ("RESET ALL", false),
            ("", false),
        ] {
            assert_eq!(has_statement(sql, DISCARD_ALL), discards, "{sql}");
        }
    }
}
