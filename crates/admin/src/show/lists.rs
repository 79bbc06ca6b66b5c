//! SHOW LISTS: how many there are of what.

use super::super::table::{Column, Value, int4, row, text};
use super::{Figures, databases, users};

pub(super) const COLUMNS: &[Column] = &[text("list"), int4("items")];

pub(super) async fn rows(figures: &Figures) -> Vec<Vec<Value>> {
    let (gateway, clients) = (figures.gateway(), figures.crowd().await.len());
    let peers = gateway.config.setup().config.peers.len();
    let servers: usize = gateway.pools.all().iter().map(|shared| shared.open()).sum();
    [
        ("databases", databases::names(gateway).len()),
        ("users", users::names(gateway).len()),
        ("peers", peers),
        // The console has one too.
        ("pools", gateway.pools.all().iter().filter(|pool| pool.key.host.is_none()).count() + 1),
        ("peer_pools", peers),
        // PgBouncer keeps the memory of those who left; here it is given back.
        ("free_clients", 0),
        ("used_clients", clients),
        ("login_clients", gateway.clients.count().saturating_sub(clients)),
        ("free_servers", 0),
        ("used_servers", servers),
        ("dns_names", gateway.pools.connector.resolver.known_names().len()),
        ("dns_zones", 0),
        ("dns_queries", 0),
        ("dns_pending", 0),
    ]
    .into_iter()
    .map(|(list, items)| row![list, items])
    .collect()
}
