//! Log lines for connecting and disconnecting clients, in the wording of the configured dialect.

use tidegate_config::Dialect;
use tidegate_link::PeerAddress;
use tidegate_wire::{backend::ErrorFields, frame::HEADER};

use crate::{
    error::pgbouncer_reason,
    plane::{ClientInfo, Gateway},
};

/// End reason of a client that got no server; the error sent to the client has the details.
pub(super) const NO_SERVER: &str = "no server";

/// Logs an admitted client. The PgBouncer dialect logs the login attempt instead.
pub(super) fn arrived(gateway: &Gateway, client_info: &ClientInfo) {
    let setup = gateway.config.setup();
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
    pub(super) fn log(&self, gateway: &Gateway) {
        let setup = gateway.config.setup();
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

/// Logs a disconnect. `error` was sent to the client: empty if the server sent its own, `None` if the client left.
pub(super) fn left(gateway: &Gateway, client_info: &ClientInfo, reason: &str, error: Option<&[u8]>) {
    let setup = gateway.config.setup();
    let log = &setup.config.log;
    if setup.config.listen.dialect == Dialect::Postgres {
        if log.disconnections {
            tracing::info!(client = client_info.id, reason, "client disconnected");
        }
        return;
    }
    let fields = error.and_then(|fields| ErrorFields::decode(fields.get(HEADER..)?).ok());
    let message = fields.as_ref().filter(|_| reason == NO_SERVER).and_then(ErrorFields::message);
    let reason = message.as_deref().unwrap_or_else(|| pgbouncer_reason(reason));
    let age = client_info.connected_at.elapsed().map_or(0, |age| age.as_secs());
    let peer = place(client_info.peer, client_info.process, setup.config.listen.unix_port());
    let client = format!("C-{}: {}/{}@{peer}", client_info.id, client_info.database, client_info.user);
    if log.disconnections {
        tracing::info!("{client} closing because: {reason} (age={age}s)");
    }
    if error.is_some() && log.refusals {
        tracing::warn!("{client} pooler error: {reason}");
    }
}
