//! Log lines for connecting and disconnecting clients, in the wording of the configured dialect.

use std::time::Duration;

use tidegate_config::Dialect;
use tidegate_link::PeerAddress;
use tidegate_wire::{backend::ErrorFields, frame::HEADER};

use crate::{
    error::pgbouncer_reason,
    plane::{ClientInfo, ClientOutcomes, Configuration},
};

/// End reason of a client that got no server; the error sent to the client has the details.
pub(super) const NO_SERVER: &str = "no server";

/// Logs an admitted client. The PgBouncer dialect logs the login attempt instead.
pub(super) fn arrived(config: &Configuration, client_info: &ClientInfo) {
    let setup = config.setup();
    if !setup.config.log.connections || setup.config.listen.dialect != Dialect::Postgres {
        return;
    }
    let (database, user, peer) = (&client_info.database, &client_info.user, client_info.peer);
    let tls = client_info.tls.as_deref().unwrap_or("none");
    tracing::info!(client = client_info.id, %peer, %database, %user, tls, "client connected");
}

/// A client whose startup packet was read and that is not admitted yet.
pub(super) struct LoginAttempt<'a> {
    /// Client id.
    pub(super) id: u64,
    pub(super) peer: PeerAddress,
    /// Peer process id for a unix socket; otherwise 0.
    pub(super) process: u32,
    pub(super) database: &'a str,
    pub(super) user: &'a str,
    /// TLS version and cipher.
    pub(super) tls: Option<String>,
    pub(super) replicates: bool,
}

impl LoginAttempt<'_> {
    pub(super) fn log(&self, config: &Configuration) {
        let setup = config.setup();
        if !setup.config.log.connections || setup.config.listen.dialect != Dialect::Pgbouncer {
            return;
        }
        let Self { id, database, user, .. } = self;
        let peer = place(self.peer, self.process, setup.config.listen.unix_port());
        let (tls, replication) = (self.tls.as_deref().unwrap_or("no"), if self.replicates { "yes" } else { "no" });
        tracing::info!(
            "C-{id}: {database}/{user}@{peer} login attempt: db={database} user={user} tls={tls} replication={replication}"
        );
    }
}

/// Client address in PgBouncer's format: address and port, or the peer process id and the port of the unix socket.
pub(super) fn place(peer: PeerAddress, process: u32, unix_port: u16) -> String {
    match peer {
        PeerAddress::Tcp(address) => address.to_string(),
        PeerAddress::Unix => format!("unix({process}):{unix_port}"),
    }
}

/// Why and how a session ended.
pub(super) struct Departure<'a> {
    /// A constant phrase; also the label of the metric.
    reason: &'static str,
    /// The error that was sent to the client: empty if the server sent its own, `None` if the client left.
    error: Option<&'a [u8]>,
    /// The wait for a server that the session ended with.
    waited: Option<Duration>,
}

impl<'a> Departure<'a> {
    /// The client left, or its session ended without an error.
    pub(super) const fn of(reason: &'static str) -> Self {
        Self { reason, error: None, waited: None }
    }

    pub(super) const fn with(self, error: Option<&'a [u8]>, waited: Option<Duration>) -> Self {
        Self { error, waited, ..self }
    }
}

/// A duration for the log, in milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Logs and counts a disconnect.
pub(super) fn left(
    config: &Configuration,
    outcomes: &ClientOutcomes,
    client_info: &ClientInfo,
    departure: &Departure<'_>,
) {
    let Departure { reason, error, waited } = *departure;
    outcomes.count_disconnect(reason);
    let setup = config.setup();
    let log = &setup.config.log;
    let age = client_info.connected_at.elapsed().unwrap_or_default();
    let fields = error.and_then(|fields| ErrorFields::decode(fields.get(HEADER..)?).ok());
    if setup.config.listen.dialect == Dialect::Postgres {
        let (database, user, peer) = (&client_info.database, &client_info.user, client_info.peer);
        let (client, duration_ms, wait_ms) = (client_info.id, millis(age), waited.map(millis));
        // Each disconnect is a single line: a warning if the gateway itself caused it.
        match &fields {
            Some(fields) if log.refusals => {
                let sqlstate = fields.code().map(tracing::field::display);
                let error = fields.message();
                let error = error.as_deref();
                tracing::warn!(
                    client, %peer, %database, %user, duration_ms, wait_ms, sqlstate, reason, error, "client disconnected"
                );
            }
            _ if log.disconnections => {
                tracing::info!(client, %peer, %database, %user, duration_ms, wait_ms, reason, "client disconnected");
            }
            _ => {}
        }
        return;
    }
    let message = fields.as_ref().filter(|_| reason == NO_SERVER).and_then(ErrorFields::message);
    let reason = message.as_deref().unwrap_or_else(|| pgbouncer_reason(reason));
    let age = age.as_secs();
    let peer = place(client_info.peer, client_info.process, setup.config.listen.unix_port());
    let client = format!("C-{}: {}/{}@{peer}", client_info.id, client_info.database, client_info.user);
    if log.disconnections {
        tracing::info!("{client} closing because: {reason} (age={age}s)");
    }
    if error.is_some() && log.refusals {
        tracing::warn!("{client} pooler error: {reason}");
    }
}
