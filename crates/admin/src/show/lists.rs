//! SHOW LISTS: numbers of databases, users, pools, clients and servers.

use super::super::table::{TableCell, TableColumn, int4, row, text};
use super::{MetricsSnapshot, snapshot::database_names, users};

pub(super) const COLUMNS: &[TableColumn] = &[text("list"), int4("items")];

pub(super) async fn rows(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let (gateway, clients) = (snapshot.gateway(), snapshot.client_groups().await.len());
    let peers = gateway.config.setup().config.peers.len();
    let servers: usize = gateway.pools.all().iter().map(|shared| shared.open()).sum();
    [
        ("databases", database_names(&gateway.config, &gateway.pools).len()),
        ("users", users::names(&gateway.config, &gateway.pools).len()),
        ("peers", peers),
        // The console has a pool in PgBouncer.
        ("pools", gateway.pools.all().iter().filter(|pool| pool.key.host.is_none()).count() + 1),
        ("peer_pools", peers),
        // PgBouncer reuses the memory of closed clients; here it is freed.
        ("free_clients", 0),
        ("used_clients", clients),
        ("login_clients", gateway.clients.count().saturating_sub(clients)),
        ("free_servers", 0),
        ("used_servers", servers),
        ("dns_names", gateway.pools.connector.resolver.cached_names().len()),
        ("dns_zones", 0),
        ("dns_queries", 0),
        ("dns_pending", 0),
    ]
    .into_iter()
    .map(|(list, items)| row![list, items])
    .collect()
}
