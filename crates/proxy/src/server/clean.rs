//! Restores a server's initial session state before another client gets it.

use std::io;

use tidegate_wire::{
    backend::{self, ErrorFields, TxStatus},
    frame::HEADER,
    frontend,
    scan::{Delivery, ScanStep},
};

use super::{Cleaning, ResetNeed, Server};
use tidegate_session_state::params::{RoleOrder, Settings};

/// Reason why a server could not be cleaned; the server is then closed.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The connection broke.
    #[error("the connection broke while the session was reset")]
    Link(#[from] io::Error),
    /// The server sent an invalid message.
    #[error("the server sent an invalid message: {0}")]
    Decode(#[from] tidegate_wire::DecodeError),
    /// The server refused a statement, with this reason.
    #[error("the server refused a statement: {0}")]
    Refused(String),
    /// The server refused the settings of a client, with this ErrorResponse.
    #[error("the server refused the settings of a client")]
    Settings(Box<[u8]>),
    /// A cancel request of the last client may still hit the server.
    #[error("outcome of a cancel request is unknown")]
    Cancelled,
    /// A transaction is open or has failed that should have ended.
    #[error("the server is in a transaction")]
    Busy,
}

/// Statement that resets the whole session.
pub const DISCARD_ALL: &str = "DISCARD ALL";

/// Resets what a DO block or a procedure may have left: DISCARD ALL without DEALLOCATE ALL and DISCARD PLANS, which would
/// drop the prepared statements of every client of the server.
pub const RESET_CODE: &str = "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;CLOSE ALL;UNLISTEN *;\
                              SELECT pg_catalog.pg_advisory_unlock_all();DISCARD TEMP;DISCARD SEQUENCES";

/// Ends the transaction or pipeline given by `cleaning`, then runs each of `resets`. Waits first for all cancel requests in
/// flight.
///
/// # Errors
/// Any of [`CleanError`]: the server must not be used again.
///
/// # Cancel safety
/// Not cancel-safe: a dropped future leaves the server in an unknown state.
pub async fn clean(server: &mut Server, cleaning: Cleaning, resets: &[&str]) -> Result<(), CleanError> {
    server.cancels.opened().await;
    if server.cancels.has_lost() {
        return Err(CleanError::Cancelled);
    }
    let mut out = Vec::new();
    let mut expected = 1;
    if cleaning.unsynced {
        // After an error the server skips everything up to this Sync.
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
    // The reply proves that a late signal has found nothing to cancel, or has hit this Sync.
    frontend::sync(&mut out);
    server.link().write(out);
    server.link().flush().await?;
    // A late cancel may hit any of the resets; the session is then not in its initial state.
    read_until_ready(server, expected, message_of).await?;
    resets.iter().for_each(|reset| note_reset(server, reset));
    server.note_statements();
    server.unnamed = None;
    server.synced_params = None;
    server.reset_need = ResetNeed::Nothing;
    Ok(())
}

/// Updates the tracked state after a reset, whose SQL is user-defined.
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

/// Returns whether `sql` contains the statement `words`, ignoring case.
fn has_statement(sql: &str, words: &str) -> bool {
    let is_same = |statement: &str| {
        let upper = statement.split_ascii_whitespace().map(str::to_ascii_uppercase);
        upper.eq(words.split(' '))
    };
    sql.split(';').any(is_same)
}

/// Runs statements on a new server and discards their rows.
///
/// # Errors
/// Any of [`CleanError`]. The server stays usable only after a refused statement. The reason of the refusal omits the values
/// of `sql`, as it goes to the log and to clients without access to them.
///
/// # Cancel safety
/// As [`clean`].
pub async fn run(server: &mut Server, sql: &str) -> Result<(), CleanError> {
    let mut out = Vec::new();
    frontend::query(sql.as_bytes(), &mut out);
    // A simple query drops the unnamed statement.
    server.unnamed = None;
    server.link().write(out);
    server.link().flush().await?;
    let reason = |fields: &ErrorFields<'_>| tidegate_sql::error_values::error_without_values(fields, sql.as_bytes());
    read_until_ready(server, 1, reason).await
}

/// Makes an idle server report changes of its configuration, which it does before its next ReadyForQuery.
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
    read_until_ready(server, 1, message_of).await?;
    server.synced_params = None;
    Ok(())
}

/// Applies the settings of a client that logs in. Returns them as the server normalizes them.
///
/// # Errors
/// [`CleanError::Settings`] if the server refuses the settings; a transaction is then open. After any other error the server
/// must not be used again.
///
/// # Cancel safety
/// As [`clean`].
pub async fn adopt(server: &mut Server, settings: &Settings, turn: RoleOrder) -> Result<Settings, CleanError> {
    let queries = server.settings.sync_queries(settings, turn);
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
    Ok(server.settings.finish_sync(settings))
}

fn message_of(fields: &ErrorFields<'_>) -> String {
    fields.message().map(|text| text.into_owned()).unwrap_or_default()
}

/// Reads until the `expected`-th ReadyForQuery. `reason` formats the reason of a refusal.
async fn read_until_ready(
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

/// Reads until the `expected`-th ReadyForQuery. Returns the error of a refused statement. With `is_own`, reported parameters
/// are the server's own values, otherwise those of a client.
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

/// Number of ReadyForQuery messages in `chunk`.
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
    fn reset_statement_is_matched_ignoring_case() {
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
