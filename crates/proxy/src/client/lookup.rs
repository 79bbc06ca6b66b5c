//! Looks up a user on a server (`auth_query`) if the configuration does not have the user.
//!
//! The query runs on a connection of the lookup pool after a session reset: settings of previous clients, above all
//! `search_path`, must not change its meaning.

use std::rc::Rc;
use tidegate_pool::{Lease, ReleaseAction};
use tidegate_wire::{
    backend::{self, DataRow, ErrorFields, ErrorReply},
    frame::HEADER,
    frontend::{self, BindMessage},
    scan::{Delivery, ScanStep},
    sqlstate,
};

use super::{
    checkout_timeout::{checkout_timeout, wait_limit},
    handshake::{LoginError, no_database},
    route::find_server,
};
use tidegate_config::{AdminConfig, Dialect, Secret, UserLookup, UserSecret};

use crate::{
    plane::{Lifecycle, Worker, within},
    server::{Cleaning, Server, clean},
};

/// PgBouncer's error for a client; the log has the reason.
const CONFIG_ERROR: &str = "bouncer config error";

/// Result of a user lookup.
pub(super) enum Known {
    /// The user does not exist.
    Missing,
    /// The user exists; without a secret if that is missing, invalid or expired.
    User(Option<UserSecret>),
}

/// Why a user lookup failed.
#[derive(Debug, thiserror::Error)]
enum LookupFault {
    #[error(transparent)]
    Link(#[from] std::io::Error),
    #[error(transparent)]
    Decode(#[from] tidegate_wire::DecodeError),
    #[error(transparent)]
    Clean(#[from] clean::CleanError),
    #[error("server error: {0}")]
    Refused(String),
    #[error("the query gave {0} columns in place of two, name and password")]
    Columns(usize),
}

/// Looks up a user for a client of `database`.
///
/// # Errors
/// Fails if the server is not available or does not reply.
pub(super) async fn look_up(
    worker: &Rc<Worker>,
    lookup: &UserLookup,
    database: &str,
    user: &str,
) -> Result<Known, LoginError> {
    let at = if lookup.database.is_empty() { database } else { &lookup.database };
    let dialect = worker.gateway.config.setup().config.listen.dialect;
    let is_console = dialect == Dialect::Pgbouncer && AdminConfig::CONSOLE_DATABASES.contains(&at);
    let shared = worker.gateway.lookup_pool(at, &lookup.user).filter(|_| !is_console);
    let Some(shared) = shared else {
        return Err(LoginError::Refused(unavailable(&worker.gateway.lifecycle, dialect, at, database)));
    };
    let pool = worker.pool(&shared);
    let plan = pool.plan();
    let limit = wait_limit(&plan.timeouts, dialect);
    let found = find_server(worker, &pool, pool.plan().route.route, None);
    let (_placed, mut lease) = match within(&worker.reactor, limit, found).await {
        Some(Ok(found)) => found,
        Some(Err(unserved)) => return Err(LoginError::Server(unserved.message())),
        None => {
            pool.stats.checkout_timeout_count.add(1);
            return Err(LoginError::CheckoutTimeout(checkout_timeout(worker, &pool, plan.route.route, dialect)));
        }
    };
    let looked_up = query_user(worker, &mut lease, &lookup.query, user).await;
    let release_action = if looked_up.is_ok() { ReleaseAction::Reuse } else { ReleaseAction::Close };
    lease.release(release_action, worker.reactor.now());
    looked_up.map_err(|error| {
        let text = if dialect == Dialect::Pgbouncer {
            tracing::warn!(user, "auth_query in \"{at}\" failed: {error}");
            CONFIG_ERROR
        } else {
            tracing::warn!(user, database = at, %error, "the look-up of a user failed");
            "the look-up of the user failed"
        };
        LoginError::Refused(ErrorReply::new(sqlstate::PROTOCOL_VIOLATION, text))
    })
}

/// Error for a client of `database` whose lookup database cannot be used. If both are the same database, configured users get
/// the same error.
fn unavailable(lifecycle: &Lifecycle, dialect: Dialect, at: &str, database: &str) -> ErrorReply {
    let is_disabled = lifecycle.is_disabled(at);
    if dialect == Dialect::Pgbouncer && AdminConfig::CONSOLE_DATABASES.contains(&at) {
        tracing::error!("cannot use the reserved \"{at}\" database as an auth_dbname");
        return ErrorReply::protocol(CONFIG_ERROR);
    }
    if at == database {
        return no_database(lifecycle, dialect, database);
    }
    let fault =
        format!("authentication database \"{at}\" {}", if is_disabled { "is disabled" } else { "is not configured" });
    match dialect {
        Dialect::Postgres => ErrorReply::new(sqlstate::INVALID_CATALOG_NAME, fault),
        Dialect::Pgbouncer if is_disabled => ErrorReply::protocol(fault),
        Dialect::Pgbouncer => {
            tracing::error!("{fault}");
            ErrorReply::protocol(CONFIG_ERROR)
        }
    }
}

async fn query_user(worker: &Worker, lease: &mut Lease<Server>, query: &str, user: &str) -> Result<Known, LookupFault> {
    lease.settle(&worker.reactor)?;
    clean::clean(lease, Cleaning::default(), &[clean::DISCARD_ALL]).await?;
    let mut out = Vec::new();
    frontend::parse(b"", query.as_bytes(), &[], &mut out);
    frontend::bind(&BindMessage { values: &[Some(user.as_bytes())], ..BindMessage::default() }, &mut out);
    frontend::execute(b"", 0, &mut out);
    frontend::sync(&mut out);
    lease.link().write(out);
    lease.link().flush().await?;
    let mut answer = Answer { known: Known::Missing, refused: None };
    loop {
        let chunk = lease.link().read().await?;
        if chunk.is_empty() {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        if answer.on_message(lease, &chunk)? {
            return answer.refused.map_or(Ok(answer.known), |text| Err(LookupFault::Refused(text)));
        }
    }
}

struct Answer {
    known: Known,
    refused: Option<String>,
}

impl Answer {
    /// Processes messages; returns whether ReadyForQuery was among them.
    fn on_message(&mut self, server: &mut Server, chunk: &[u8]) -> Result<bool, LookupFault> {
        let mut at = 0;
        loop {
            let (tag, body, end) = match server.scanner.step(chunk, at, |_| Delivery::Whole)? {
                ScanStep::Message { tag, end } => (tag, chunk[at + HEADER..end].to_vec(), end),
                ScanStep::Carried { tag, end } => (tag, server.scanner.take_carry()[HEADER..].to_vec(), end),
                _ => return Ok(false),
            };
            match tag {
                backend::DATA_ROW => self.known = row(&body)?,
                backend::ERROR_RESPONSE => {
                    let fields = ErrorFields::decode(&body)?;
                    self.refused = Some(fields.message().map(|text| text.into_owned()).unwrap_or_default());
                }
                backend::READY_FOR_QUERY => return Ok(true),
                _ => {}
            }
            at = end;
        }
    }
}

fn row(body: &[u8]) -> Result<Known, LookupFault> {
    let columns: Vec<_> = DataRow::decode(body)?.collect();
    let [name, password] = columns[..] else { return Err(LookupFault::Columns(columns.len())) };
    // A function with OUT parameters, such as `pgbouncer.user_lookup`, returns a row of NULLs for an unknown user.
    if name.is_none() {
        return Ok(Known::Missing);
    }
    let text = password.map(|text| String::from_utf8_lossy(text).into_owned());
    // An invalid verifier matches no password.
    let secret = text.filter(|text| !text.is_empty()).and_then(|text| UserSecret::parse(&text).ok());
    // A truncated hash must not be accepted as a plain password.
    let secret = secret.filter(|secret| !matches!(secret, UserSecret::Plain(text) if is_broken_hash(text)));
    Ok(Known::User(secret))
}

fn is_broken_hash(text: &Secret) -> bool {
    text.reveal() == "md5"
}
