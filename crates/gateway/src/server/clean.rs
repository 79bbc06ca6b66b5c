//! Gives a server back its first state before another client gets it.

use std::io;

use tidegate_wire::{
    backend::{self, TxStatus},
    frame::HEADER,
    frontend,
    scan::{Step, Want},
};

use super::Server;

/// Why a server could not be cleaned; it is then closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CleanError {
    /// Its connection broke.
    #[error("the connection broke while the session was reset")]
    Link(#[from] io::Error),
    /// It sent what is no message.
    #[error("the server sent an invalid message: {0}")]
    Decode(#[from] tidegate_wire::DecodeError),
    /// It refused the reset.
    #[error("the server refused the reset of its session")]
    Refused,
}

/// Ends an open transaction and runs `reset` (nothing if empty), after all cancel requests are through.
///
/// # Errors
/// Any of [`CleanError`]: the server must not be used again.
///
/// # Cancel safety
/// Not safe: the server's state is unknown when the future is dropped.
pub async fn clean(server: &mut Server, in_transaction: bool, reset: &str) -> Result<(), CleanError> {
    server.cancels.opened().await;
    let mut out = Vec::new();
    let mut owed = 1;
    if in_transaction {
        frontend::query(b"ROLLBACK", &mut out);
        owed += 1;
    }
    if !reset.is_empty() {
        frontend::query(reset.as_bytes(), &mut out);
        owed += 1;
    }
    // A reply to this proves that a late signal has found nothing to cancel, or this.
    frontend::sync(&mut out);
    server.link().write(out);
    server.link().flush().await?;
    while owed > 0 {
        let chunk = server.link().read().await?;
        if chunk.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        owed -= ready_count(server, &chunk)?.min(owed);
    }
    if server.status != TxStatus::Idle {
        return Err(CleanError::Refused);
    }
    if !reset.is_empty() {
        server.statements.clear();
        server.settings.silent = crate::params::Settings::default();
    }
    server.unnamed = None;
    server.adopted = None;
    server.tainted = false;
    Ok(())
}

/// Runs statements on a fresh server, whose rows nobody wants.
///
/// # Errors
/// Any of [`CleanError`]: the server must not be used.
///
/// # Cancel safety
/// As [`clean`].
pub async fn run(server: &mut Server, sql: &str) -> Result<(), CleanError> {
    let mut out = Vec::new();
    frontend::query(sql.as_bytes(), &mut out);
    server.link().write(out);
    server.link().flush().await?;
    loop {
        let chunk = server.link().read().await?;
        if chunk.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if ready_count(server, &chunk)? > 0 {
            break;
        }
    }
    if server.status == TxStatus::Idle { Ok(()) } else { Err(CleanError::Refused) }
}

/// How many times `chunk` says ReadyForQuery.
fn ready_count(server: &mut Server, chunk: &[u8]) -> Result<usize, CleanError> {
    let (mut at, mut count) = (0, 0);
    loop {
        let (tag, body, end) = match server.scanner.step(chunk, at, |_| Want::Whole)? {
            Step::Message { tag, end } => (tag, chunk[at + HEADER..end].to_vec(), end),
            Step::Carried { tag, end } => (tag, server.scanner.take_carry()[HEADER..].to_vec(), end),
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
                    server.settings.report(name, status.value);
                }
            }
            backend::ERROR_RESPONSE => {
                // A late cancel may hit the reset; whatever it was, the session is not what it should be.
                return Err(CleanError::Refused);
            }
            _ => {}
        }
        at = end;
    }
}
