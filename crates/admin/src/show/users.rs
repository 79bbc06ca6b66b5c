//! SHOW USERS: users and their limits.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::super::table::{TableCell, TableColumn, int4, row, text};
use super::MetricsSnapshot;
use tidegate_config::{AdminConfig, Database, User};
use tidegate_proxy::plane::{Configuration, Pools};

pub(super) const COLUMNS: &[TableColumn] = &[
    text("name"),
    text("pool_size"),
    text("reserve_pool_size"),
    text("pool_mode"),
    int4("max_user_connections"),
    int4("current_connections"),
    int4("max_user_client_connections"),
    int4("current_client_connections"),
];

/// The configured users, the shared users of databases, users of existing pools, and the console's user.
pub(super) fn names(config: &Configuration, pools: &Pools) -> BTreeSet<String> {
    let setup = config.setup();
    let configured = setup.config.users.keys().cloned();
    let seen = pools.all().into_iter().map(|pool| pool.key.user.to_string());
    let named = setup.config.databases.values().filter_map(Database::shared_user);
    let named = named.map(str::to_owned).chain([AdminConfig::DISPLAY_NAME.to_owned()]);
    configured.chain(named).chain(seen).collect()
}

pub(super) async fn rows(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let gateway = snapshot.gateway();
    let connected = snapshot.client_groups().await.count_by(|group| Some(group.user.clone()));
    let mut open: HashMap<Arc<str>, usize> = HashMap::new();
    for shared in gateway.pools.all() {
        *open.entry(shared.key.user.clone()).or_default() += shared.open();
    }
    let setup = gateway.config.setup();
    let config = &setup.config;
    let row = |name: String| {
        let user = config.users.get(&name);
        // Empty if the database decides.
        let written = user.map(User::own_pool).unwrap_or_default();
        let own = |key: &str| written.iter().find(|(known, _)| *known == key).map(|(_, value)| value.clone());
        let number = |key: &str| own(key).and_then(|value| value.parse::<u32>().ok());
        row![
            name.clone(),
            number("size"),
            number("reserve_size"),
            own("mode"),
            user.and_then(|user| user.max_servers).unwrap_or(config.pool.max_per_user),
            open.get(name.as_str()).copied().unwrap_or_default(),
            user.and_then(|user| user.max_clients).unwrap_or(config.pool.max_clients_per_user),
            connected.get(name.as_str()).copied().unwrap_or_default(),
        ]
    };
    names(&gateway.config, &gateway.pools).into_iter().map(row).collect()
}
