//! SHOW HOSTS: the servers of each database with role, state and lag.

use std::{collections::BTreeMap, sync::Arc};

use super::super::table::{TableCell, TableColumn, int4, int8, row, text};
use super::snapshot::database_names;
use tidegate_config::{AdminConfig, Host, PoolPlan, Route};
use tidegate_proxy::plane::{Configuration, Pools};
use tidegate_topology::{Cluster, HostRole, HostState, HostStatus};

pub(super) const COLUMNS: &[TableColumn] = &[
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
type OpenConnections = BTreeMap<(Arc<str>, Arc<str>), usize>;

pub(super) fn rows(config: &Configuration, pools: &Pools) -> Vec<Vec<TableCell>> {
    let mut open = OpenConnections::new();
    let mut single: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    let mut clusters: BTreeMap<Arc<str>, Arc<Cluster>> = BTreeMap::new();
    for pool in pools.all() {
        let database = pool.key.database.clone();
        let count = pool.pool.counts().open;
        match (&pool.key.host, pool.cluster()) {
            (Some(host), _) => *open.entry((database, host.clone())).or_default() += count,
            (None, Some(cluster)) => drop(clusters.insert(database, cluster)),
            (None, None) => *single.entry(database).or_default() += count,
        }
    }
    let setup = config.setup();
    let mut rows = Vec::new();
    // A database `*` has a plan for the name of the console as well.
    let names = database_names(config, pools).into_iter().filter(|name| name != AdminConfig::DISPLAY_NAME);
    for name in names {
        match (clusters.get(name.as_str()), setup.config.pool_for(&name, "")) {
            (Some(cluster), _) => {
                rows.extend(cluster.host_statuses().iter().map(|status| row_of_status(&name, status, &open)));
            }
            (None, Some(plan)) => {
                let servers = single.get(name.as_str()).copied().unwrap_or_default();
                rows.extend(rows_of_plan(&name, &plan, servers));
            }
            (None, None) => {}
        }
    }
    rows
}

/// Routes of the databases with a choice of servers.
pub(crate) fn routes(config: &Configuration, pools: &Pools) -> Vec<(String, Route)> {
    let setup = config.setup();
    let route = |name: String| {
        let plan = setup.config.pool_for(&name, "").filter(|plan| plan.choice.is_some())?;
        Some((name, plan.route.route))
    };
    database_names(config, pools).into_iter().filter_map(route).collect()
}

fn row_of_status(database: &str, status: &HostStatus, open: &OpenConnections) -> Vec<TableCell> {
    let (node, view) = (&status.node, &status.view);
    let (host, port) = host_and_port(&node.host);
    let host = node.address.map_or(host, |address| address.ip().to_string());
    let servers = open.get(&(database.into(), node.name.clone())).copied().unwrap_or_default();
    let millis = |lag: std::time::Duration| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
    row![
        database.to_owned(),
        host,
        port,
        view.role.as_str(),
        if status.is_ejected && view.state == HostState::Up { "ejected" } else { view.state.as_str() },
        view.lag_bytes,
        view.lag.map(millis),
        status.in_flight,
        servers,
        status.ejections,
        view.error.clone(),
    ]
}

/// Servers that are not probed: there is only one, or no client has connected yet.
fn rows_of_plan(database: &str, plan: &PoolPlan, servers: usize) -> Vec<Vec<TableCell>> {
    let state = if plan.choice.is_some() { "new" } else { "unwatched" };
    let row = |host: &Host| {
        let (name, port) = host_and_port(host);
        row![
            database.to_owned(),
            name,
            port,
            HostRole::Unknown.as_str(),
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

fn host_and_port(host: &Host) -> (String, u16) {
    match host {
        Host::Tcp { name, port } => (name.clone(), *port),
        Host::Unix { dir, port } => (dir.display().to_string(), *port),
    }
}
