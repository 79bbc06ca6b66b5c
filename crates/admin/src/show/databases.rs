//! SHOW DATABASES: servers and limits of each database.

use std::{collections::HashMap, sync::Arc};

use super::super::table::{TableCell, TableColumn, int4, row, text};
use super::{MetricsSnapshot, pools::load_balance, snapshot::database_names};
use tidegate_config::{AdminConfig, Config, Host, PoolMode, PoolPlan};
use tidegate_proxy::plane::Lifecycle;

pub(super) const COLUMNS: &[TableColumn] = &[
    text("name"),
    text("host"),
    int4("port"),
    text("database"),
    text("force_user"),
    int4("pool_size"),
    int4("min_pool_size"),
    int4("reserve_pool_size"),
    int4("server_lifetime"),
    text("pool_mode"),
    text("load_balance_hosts"),
    int4("max_connections"),
    int4("current_connections"),
    int4("max_client_connections"),
    int4("current_client_connections"),
    int4("paused"),
    int4("disabled"),
];

pub(super) async fn rows(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let gateway = snapshot.gateway();
    let connected = snapshot.client_groups().await.count_by(|group| Some(group.key.database.clone()));
    let mut open: HashMap<Arc<str>, usize> = HashMap::new();
    for shared in gateway.pools.all() {
        *open.entry(shared.key.database.clone()).or_default() += shared.open();
    }
    let of = |counts: &HashMap<Arc<str>, usize>, name: &str| counts.get(name).copied().unwrap_or_default();
    let setup = gateway.config.setup();
    let row = |name: &String| match name.as_str() {
        AdminConfig::DISPLAY_NAME => Some(console(&setup.config, gateway.statistics.console.clients())),
        name => row_of(&gateway.lifecycle, &setup.config, name, of(&open, name), of(&connected, name)),
    };
    database_names(&gateway.config, &gateway.pools).iter().filter_map(row).collect()
}

/// The console as PgBouncer shows it: in this process, with meaningless limits.
fn console(config: &Config, clients: usize) -> Vec<TableCell> {
    row![
        AdminConfig::DISPLAY_NAME,
        None::<String>,
        config.listen.unix_port(),
        AdminConfig::DISPLAY_NAME,
        AdminConfig::DISPLAY_NAME,
        2_u32,
        0_u32,
        0_u32,
        config.timeouts.server_lifetime.age().unwrap_or_default().as_secs(),
        PoolMode::Statement.as_str(),
        None::<String>,
        config.pool.max_per_database,
        0_u32,
        config.pool.max_clients_per_database,
        clients,
        false,
        false,
    ]
}

fn row_of(
    lifecycle: &Lifecycle,
    config: &Config,
    name: &str,
    servers: usize,
    clients: usize,
) -> Option<Vec<TableCell>> {
    // The empty user name selects the limits of users without settings of their own.
    let plan = config.pool_for(name, "")?;
    let (host, port) = hosts_and_port(&plan);
    let own_mode = config.database(name).and_then(|(_, found)| found.own_mode());
    Some(row![
        name.to_owned(),
        host,
        port,
        plan.dbname.clone(),
        plan.forced_user.then(|| plan.user.clone()),
        plan.pool.size,
        plan.pool.min_size,
        plan.pool.reserve_size,
        plan.timeouts.server_lifetime.age().unwrap_or_default().as_secs(),
        own_mode.map(PoolMode::as_str),
        load_balance(&plan),
        plan.shared.database_servers,
        servers,
        plan.shared.database_clients,
        clients,
        lifecycle.is_paused(name),
        lifecycle.is_disabled(name),
    ])
}

/// All hosts, in libpq's list syntax, and the port of the first.
fn hosts_and_port(plan: &PoolPlan) -> (String, u16) {
    let name = |host: &Host| match host {
        Host::Tcp { name, .. } => name.clone(),
        Host::Unix { dir, .. } => dir.display().to_string(),
    };
    let (Host::Tcp { port, .. } | Host::Unix { port, .. }) = &plan.hosts[0];
    (plan.hosts.iter().map(name).collect::<Vec<_>>().join(","), *port)
}
