//! What the log says of clients that come and go, for those who come from PgBouncer in its words.

use tidegate_config::Dialect;
use tidegate_link::PeerAddress;
use tidegate_wire::{backend::ErrorFields, frame::HEADER};

use crate::{
    error::pgbouncer_reason,
    plane::{ClientInfo, Gateway},
};

/// Why a client leaves that got no server: what it is told says more.
pub(super) const NO_SERVER: &str = "no server";

/// A client was let in. In PgBouncer's words it was told of when it had said who it is.
pub(super) fn arrived(gateway: &Gateway, client_info: &ClientInfo) {
    let setup = gateway.config.setup();
    if !setup.config.log.connections || setup.config.listen.dialect != Dialect::Postgres {
        return;
    }
    let (database, user, peer) = (&client_info.database, &client_info.user, client_info.peer);
    let tls = client_info.tls.as_deref().unwrap_or("none");
    tracing::info!(client = client_info.id, %peer, %database, %user, tls, "client connected");
}

/// A client has said who it is, and is not let in yet.
pub(super) struct LoginAttempt<'a> {
    /// The client's number.
    pub(super) id: u64,
    pub(super) peer: PeerAddress,
    /// The process at the other end of a unix socket; else 0.
    pub(super) process: u32,
    pub(super) database: &'a str,
    pub(super) user: &'a str,
    /// Version and cipher.
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

/// Where a client comes from, as PgBouncer has it: address and port, or the process and the port that its socket is named after.
pub(super) fn place(peer: PeerAddress, process: u32, unix_port: u16) -> String {
    match peer {
        PeerAddress::Tcp(address) => address.to_string(),
        PeerAddress::Unix => format!("unix({process}):{unix_port}"),
    }
}

/// A client has left, or was sent away and `told` why: in these words, or in none if the server has told it.
pub(super) fn left(gateway: &Gateway, client_info: &ClientInfo, reason: &str, told: Option<&[u8]>) {
    let setup = gateway.config.setup();
    let log = &setup.config.log;
    if setup.config.listen.dialect == Dialect::Postgres {
        if log.disconnections {
            tracing::info!(client = client_info.id, reason, "client disconnected");
        }
        return;
    }
    let words = told.and_then(|words| ErrorFields::decode(words.get(HEADER..)?).ok());
    let message = words.as_ref().filter(|_| reason == NO_SERVER).and_then(ErrorFields::message);
    let reason = message.as_deref().unwrap_or_else(|| pgbouncer_reason(reason));
    let age = client_info.connected_at.elapsed().map_or(0, |age| age.as_secs());
    let peer = place(client_info.peer, client_info.process, setup.config.listen.unix_port());
    let who = format!("C-{}: {}/{}@{peer}", client_info.id, client_info.database, client_info.user);
    if log.disconnections {
        tracing::info!("{who} closing because: {reason} (age={age}s)");
    }
    if told.is_some() && log.refusals {
        tracing::warn!("{who} pooler error: {reason}");
    }
}
