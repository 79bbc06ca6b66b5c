//! A server connection in a record for another process.

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::{Duration, Instant, UNIX_EPOCH},
};

use tidegate_config::{Host, PoolPlan};
use tidegate_handover::ServerRecord;
use tidegate_link::{Link, unix_address};
use tidegate_pg_client::{ServerAddress, ServerIdentity};
use tidegate_session_state::statements::CatalogChanges;

use super::{Health, LinkState, ResetNeed, Server};

impl Server {
    /// Whether nothing but the link ties the connection to this process. No reply may be pending.
    #[must_use]
    pub fn is_portable(&mut self) -> bool {
        self.health == Health::Clean
            && self.cancels.is_open()
            && !self.cancels.has_lost()
            && !self.changes_catalog
            && self.scanner.is_between_messages()
            && !self.link().is_tls()
    }

    /// The record of a connection that the client with this id is pinned to. `unread` are bytes that the client has yet to get.
    #[must_use]
    pub fn export(&self, client: u64, plan: &PoolPlan, changes: &CatalogChanges, unread: Vec<u8>) -> ServerRecord {
        let identity = &self.identity;
        let text = |address: Option<std::net::SocketAddr>| address.map_or_else(String::new, |known| known.to_string());
        let since_epoch = identity.connected_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut record = ServerRecord {
            host: identity.address.host.to_string(),
            address: text(identity.address.address.as_socket()),
            local: text(identity.local),
            dbname: plan.dbname.clone(),
            user: plan.user.clone(),
            pid: identity.pid,
            cancel_key: identity.cancel_key.to_vec(),
            connected_at_us: u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX),
            unnamed: self.unnamed.filter(|(owner, _)| *owner == client).map(|(_, stamp)| stamp),
            reset_need: self.reset_need as u32,
            unread,
            ..ServerRecord::default()
        };
        record.set_settings(&self.settings);
        record.set_statements(&self.statements, changes);
        record
    }

    /// Creates the server of a record, for the client with this id.
    #[must_use]
    pub fn restore(
        mut link: Link,
        record: &ServerRecord,
        identity: ServerIdentity,
        client: u64,
        changes: &CatalogChanges,
    ) -> Self {
        link.unread(record.unread.clone().into());
        let (settings, statements) = (record.settings(client), record.statements(changes));
        let mut server = Self::at(LinkState::Registered(link), settings, statements, Arc::new(identity));
        server.unnamed = record.unnamed.map(|stamp| (client, stamp));
        server.reset_need = match record.reset_need {
            0 => ResetNeed::Nothing,
            1 => ResetNeed::Code,
            2 => ResetNeed::Session,
            _ => ResetNeed::Connection,
        };
        server
    }

    /// Removes the socket from the event loop. The session on the server goes on: another process has the socket.
    pub fn hand_over(&mut self) {
        if let LinkState::Registered(link) = std::mem::replace(&mut self.link_state, LinkState::Missing) {
            drop(link.park());
        }
    }
}

/// The identity of a server in the pool with this plan, as connection `id` of this process.
///
/// # Errors
/// If the pool has other servers.
pub fn identity_of(record: &ServerRecord, plan: &PoolPlan, id: u64) -> Result<ServerIdentity, String> {
    let is_login = record.dbname == plan.dbname && record.user == plan.user;
    let host = plan.hosts.iter().find(|host| host.to_string() == record.host).filter(|_| is_login);
    let host = host.ok_or("its server is not the one of the new process")?;
    let address = match (record.address.parse::<std::net::SocketAddr>(), host) {
        (Ok(address), Host::Tcp { .. }) => address.into(),
        (_, Host::Unix { .. }) => {
            unix_address(&host.socket_path().unwrap_or_default()).map_err(|error| error.to_string())?
        }
        (Err(_), Host::Tcp { .. }) => return Err("the address of its server is missing".to_owned()),
    };
    Ok(ServerIdentity {
        id,
        address: ServerAddress { host: host.clone(), address, tls: None },
        local: record.local.parse().ok(),
        pid: record.pid,
        cancel_key: record.cancel_key.as_slice().into(),
        connected_at: UNIX_EPOCH + Duration::from_micros(record.connected_at_us),
        tls: None,
        prepared: AtomicU32::new(0),
    })
}

/// When a connection of this age was opened.
#[must_use]
pub fn opened_at(record: &ServerRecord, now: Instant) -> Instant {
    now.checked_sub(Duration::from_nanos(record.age_ns)).unwrap_or(now)
}
