//! SHOW SERVERS: server connections and their clients.

use std::{collections::HashMap, sync::atomic::Ordering};

use super::super::table::{TableCell, TableColumn, row};
use super::clients::{self, ClientEntry, endpoint};
use super::{MetricsSnapshot, timestamp, wall_clock};
use tidegate_config::Host;
use tidegate_pg_client::ServerIdentity;
use tidegate_proxy::plane::{ServerEntry, Worker};

/// The columns of PgBouncer's SHOW CLIENTS, which are the same for servers.
pub(super) const COLUMNS: &[TableColumn] = clients::COLUMNS;

pub(super) async fn rows(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let (gateway, clients) = (snapshot.gateway(), snapshot.clients().await);
    let clients_by_server: HashMap<u64, &ClientEntry> =
        clients.iter().filter_map(|client| Some((client.server?, client))).collect();
    let cleaning: HashMap<u64, bool> =
        snapshot.context().workers.ask_all(|worker| Worker::cleaning(worker)).await.into_iter().flatten().collect();
    let unchecked = snapshot.unchecked().await;
    let unix_port = gateway.config.setup().config.listen.unix_port();
    let mut servers = gateway.pools.servers();
    servers.sort_by(|a, b| (&a.key, a.identity.id).cmp(&(&b.key, b.identity.id)));
    let row = |server: &ServerEntry| {
        let id = server.identity.id;
        let without_client = match cleaning.get(&id) {
            Some(true) => "being_canceled",
            Some(false) => "tested",
            None if unchecked.contains_key(&id) => "used",
            None => "idle",
        };
        row_of(server, clients_by_server.get(&id).copied(), without_client, unix_port)
    };
    servers.iter().map(row).collect()
}

fn row_of(
    server: &ServerEntry,
    client_of_server: Option<&ClientEntry>,
    without_client: &'static str,
    unix_port: u16,
) -> Vec<TableCell> {
    let identity = &server.identity;
    let state = client_of_server.map_or(without_client, |_| "active");
    let (addr, port) = address_and_port(identity);
    let (local_addr, local_port) = endpoint(identity.local, unix_port);
    row![
        "S",
        &server.key.user,
        &server.key.database,
        clients::replication(client_of_server.map(|client| client.state)),
        state,
        addr,
        port,
        local_addr,
        local_port,
        timestamp(identity.connected_at),
        client_of_server.and_then(|client| client.request_at).map(|at| timestamp(wall_clock(at))),
        0_u32,
        0_u32,
        server.outdated,
        format!("s{}", identity.id),
        client_of_server.map_or_else(String::new, |client| format!("c{}", client.id)),
        identity.pid,
        identity.tls.clone().unwrap_or_default(),
        client_of_server.and_then(|client| client.application_name.clone()).unwrap_or_default(),
        identity.prepared.load(Ordering::Relaxed),
        identity.id,
    ]
}

fn address_and_port(identity: &ServerIdentity) -> (String, u16) {
    let (Host::Unix { port, .. } | Host::Tcp { port, .. }) = &identity.address.host;
    endpoint(identity.address.address.as_socket(), *port)
}
