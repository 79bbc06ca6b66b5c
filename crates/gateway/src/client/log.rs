//! What the log says of clients that come and go, for those who come from PgBouncer in its words.

use crate::{
    config::Dialect,
    error::pgbouncer_reason,
    plane::{Card, ClientState, Gateway},
};

/// A client was let in.
pub(super) fn arrived(gateway: &Gateway, card: &Card) {
    let setup = gateway.setup();
    if !setup.config.log.connections {
        return;
    }
    let (database, user, peer) = (&card.key.database, &card.user, card.peer);
    if setup.config.listen.dialect == Dialect::Postgres {
        let tls = card.tls.as_deref().unwrap_or("none");
        tracing::info!(client = card.id, %peer, %database, %user, tls, "client connected");
        return;
    }
    let replication = if matches!(card.state.get(), ClientState::Replicating(_)) { "yes" } else { "no" };
    let (id, tls) = (card.id, card.tls.as_deref().unwrap_or("no"));
    tracing::info!(
        "C-{id}: {database}/{user}@{peer} login attempt: db={database} user={user} tls={tls} replication={replication}"
    );
}

/// A client has left, or was sent away; `told` if it was told why.
pub(super) fn left(gateway: &Gateway, card: &Card, reason: &str, told: bool) {
    let setup = gateway.setup();
    let log = &setup.config.log;
    if setup.config.listen.dialect == Dialect::Postgres {
        if log.disconnections {
            tracing::info!(client = card.id, reason, "client disconnected");
        }
        return;
    }
    let (reason, age) = (pgbouncer_reason(reason), card.connected_at.elapsed().map_or(0, |age| age.as_secs()));
    let who = format!("C-{}: {}/{}@{}", card.id, card.key.database, card.user, card.peer);
    if log.disconnections {
        tracing::info!("{who} closing because: {reason} (age={age}s)");
    }
    if told && log.refusals {
        tracing::warn!("{who} pooler error: {reason}");
    }
}
