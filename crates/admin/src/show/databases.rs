//! SHOW DATABASES: where each database is, and what its limits are.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::super::table::{Column, Value, int4, row, text};
use super::{Figures, pools::load_balance};
use tidegate_config::{Admin, Config, Host, Mode, PoolPlan};
use tidegate_proxy::plane::Gateway;

pub(super) const COLUMNS: &[Column] = &[
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

/// The databases of the configuration, those that clients have found under `*`, and the console. What stands under `*` is
/// no database.
pub(super) fn names(gateway: &Gateway) -> BTreeSet<String> {
    let setup = gateway.config.setup();
    let configured = setup.config.databases.keys().cloned();
    let found = gateway.pools.all().into_iter().map(|pool| pool.key.database.to_string());
    let all = configured.chain(found).chain([Admin::SHOWN.to_owned()]);
    all.filter(|name| name != "*").collect()
}

pub(super) async fn rows(figures: &Figures) -> Vec<Vec<Value>> {
    let gateway = figures.gateway();
    let connected = figures.crowd().await.by(|kin| Some(kin.key.database.clone()));
    let mut open: HashMap<Arc<str>, usize> = HashMap::new();
    for shared in gateway.pools.all() {
        *open.entry(shared.key.database.clone()).or_default() += shared.open();
    }
    let of = |counts: &HashMap<Arc<str>, usize>, name: &str| counts.get(name).copied().unwrap_or_default();
    let setup = gateway.config.setup();
    let row = |name: &String| match name.as_str() {
        Admin::SHOWN => Some(console(gateway, &setup.config)),
        name => row_of(gateway, &setup.config, name, of(&open, name), of(&connected, name)),
    };
    names(gateway).iter().filter_map(row).collect()
}

/// The console as PgBouncer shows its own: somewhere in this process, with limits that mean nothing to it.
fn console(gateway: &Gateway, config: &Config) -> Vec<Value> {
    row![
        Admin::SHOWN,
        None::<String>,
        config.listen.unix_port(),
        Admin::SHOWN,
        Admin::SHOWN,
        2_u32,
        0_u32,
        0_u32,
        config.timeouts.server_lifetime.as_secs(),
        Mode::Statement.as_str(),
        None::<String>,
        config.pool.max_per_database,
        0_u32,
        config.pool.max_clients_per_database,
        gateway.statistics.console.clients(),
        false,
        false,
    ]
}

fn row_of(gateway: &Gateway, config: &Config, name: &str, servers: usize, clients: usize) -> Option<Vec<Value>> {
    // No user is nameless: what is shown holds for those of whom nothing else is said.
    let plan = config.pool_for(name, "")?;
    let (host, port) = place(&plan);
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
        plan.timeouts.server_lifetime.as_secs(),
        own_mode.map(Mode::as_str),
        load_balance(&plan),
        plan.shared.database_servers,
        servers,
        plan.shared.database_clients,
        clients,
        gateway.lifecycle.is_paused(name),
        gateway.lifecycle.is_disabled(name),
    ])
}

/// All hosts, as libpq lists them, and the port of the first.
fn place(plan: &PoolPlan) -> (String, u16) {
    let name = |host: &Host| match host {
        Host::Tcp { name, .. } => name.clone(),
        Host::Unix { dir, .. } => dir.display().to_string(),
    };
    let (Host::Tcp { port, .. } | Host::Unix { port, .. }) = &plan.hosts[0];
    (plan.hosts.iter().map(name).collect::<Vec<_>>().join(","), *port)
}
