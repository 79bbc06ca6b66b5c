//! SHOW HOSTS: the servers of each database, what they are and how far behind.

use std::{collections::BTreeMap, sync::Arc};

use super::super::table::{Column, Value, int4, int8, row, text};
use super::databases;
use tidegate_config::{Host, PoolPlan};
use tidegate_proxy::plane::Gateway;
use tidegate_topology::{Cluster, HostState, Role, Sight};

pub(super) const COLUMNS: &[Column] = &[
    text("database"),
    text("host"),
    int4("port"),
    text("role"),
    text("state"),
    int8("lag_bytes"),
    int8("lag_ms"),
    int4("in_flight"),
    int4("servers"),
    int8("ejections"),
    text("last_error"),
];

/// Server connections by database and name of the server.
type Open = BTreeMap<(Arc<str>, Arc<str>), usize>;

pub(super) fn rows(gateway: &Arc<Gateway>) -> Vec<Vec<Value>> {
    let mut open = Open::new();
    let mut single: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    let mut clusters: BTreeMap<Arc<str>, Arc<Cluster>> = BTreeMap::new();
    for pool in gateway.pools.all() {
        let database = pool.key.database.clone();
        let count = pool.pool.counts().open;
        match (&pool.key.host, pool.cluster()) {
            (Some(host), _) => *open.entry((database, host.clone())).or_default() += count,
            (None, Some(cluster)) => drop(clusters.insert(database, cluster)),
            (None, None) => *single.entry(database).or_default() += count,
        }
    }
    let setup = gateway.config.setup();
    let mut rows = Vec::new();
    for name in databases::names(gateway) {
        match (clusters.get(name.as_str()), setup.config.pool_for(&name, "")) {
            (Some(cluster), _) => rows.extend(cluster.sights().iter().map(|sight| of_sight(&name, sight, &open))),
            (None, Some(plan)) => {
                let servers = single.get(name.as_str()).copied().unwrap_or_default();
                rows.extend(of_plan(&name, &plan, servers));
            }
            (None, None) => {}
        }
    }
    rows
}

fn of_sight(database: &str, sight: &Sight, open: &Open) -> Vec<Value> {
    let (node, view) = (&sight.node, &sight.view);
    let (host, port) = place(&node.host);
    let host = node.address.map_or(host, |address| address.ip().to_string());
    let servers = open.get(&(database.into(), node.name.clone())).copied().unwrap_or_default();
    let millis = |lag: std::time::Duration| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
    row![
        database.to_owned(),
        host,
        port,
        view.role.as_str(),
        if sight.is_ejected && view.state == HostState::Up { "ejected" } else { view.state.as_str() },
        view.lag_bytes,
        view.lag.map(millis),
        sight.in_flight,
        servers,
        sight.ejections,
        view.error.clone(),
    ]
}

/// Servers of which nothing is asked: there is no choice, or nobody has come yet.
fn of_plan(database: &str, plan: &PoolPlan, servers: usize) -> Vec<Vec<Value>> {
    let state = if plan.choice.is_some() { "new" } else { "unwatched" };
    let row = |host: &Host| {
        let (name, port) = place(host);
        row![
            database.to_owned(),
            name,
            port,
            Role::Unknown.as_str(),
            state,
            None::<u64>,
            None::<u64>,
            0_u32,
            servers,
            0_u32,
            None::<String>,
        ]
    };
    plan.hosts.iter().map(row).collect()
}

fn place(host: &Host) -> (String, u16) {
    match host {
        Host::Tcp { name, port } => (name.clone(), *port),
        Host::Unix { dir, port } => (dir.display().to_string(), *port),
    }
}
