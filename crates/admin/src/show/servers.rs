//! SHOW SERVERS: the connections to Postgres, and who has them.

use std::{collections::HashMap, sync::atomic::Ordering};

use super::super::table::{Column, Value, row};
use super::clients::{self, Client, end};
use super::{Figures, on_the_wall, timestamp};
use tidegate_config::Host;
use tidegate_pg_client::Identity;
use tidegate_proxy::plane::{ServerEntry, Worker};

/// Those of PgBouncer's SHOW CLIENTS, which has the same for servers.
pub(super) const COLUMNS: &[Column] = clients::COLUMNS.split_at(clients::COLUMNS.len() - 1).0;

pub(super) async fn rows(figures: &Figures) -> Vec<Vec<Value>> {
    let (gateway, clients) = (figures.gateway(), figures.clients().await);
    let holders: HashMap<u64, &Client> = clients.iter().filter_map(|client| Some((client.server?, client))).collect();
    let cleaning: HashMap<u64, bool> =
        gateway.ask_all(|worker| Worker::cleaning(worker)).await.into_iter().flatten().collect();
    let unchecked = figures.unchecked().await;
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
        row_of(server, holders.get(&id).copied(), without_client, unix_port)
    };
    servers.iter().map(row).collect()
}

fn row_of(server: &ServerEntry, holder: Option<&Client>, without_client: &'static str, unix_port: u16) -> Vec<Value> {
    let identity = &server.identity;
    let state = holder.map_or(without_client, |_| "active");
    let (addr, port) = place(identity);
    let (local_addr, local_port) = end(identity.local, unix_port);
    row![
        "S",
        &server.key.user,
        &server.key.database,
        clients::replication(holder.map(|client| client.state)),
        state,
        addr,
        port,
        local_addr,
        local_port,
        timestamp(identity.connected_at),
        holder.and_then(|client| client.request_at).map(|at| timestamp(on_the_wall(at))),
        0_u32,
        0_u32,
        server.outdated,
        format!("s{}", identity.id),
        holder.map_or_else(String::new, |client| format!("c{}", client.id)),
        identity.pid,
        identity.tls.clone().unwrap_or_default(),
        holder.and_then(|client| client.application_name.clone()).unwrap_or_default(),
        identity.prepared.load(Ordering::Relaxed),
        identity.id,
    ]
}

fn place(identity: &Identity) -> (String, u16) {
    let (Host::Unix { port, .. } | Host::Tcp { port, .. }) = &identity.address.host;
    end(identity.address.address.as_socket(), *port)
}
