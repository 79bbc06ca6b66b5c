//! SHOW POOLS: connections of each database and user by state.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tidegate_pool::PoolCounts;

use super::super::table::{TableCell, TableColumn, int4, row, text};
use super::{MetricsSnapshot, wait};
use tidegate_config::{AdminConfig, PoolMode, PoolPlan, RoutePolicy};
use tidegate_proxy::plane::{CancelStage, PoolKey, Pools, SharedPool};

pub(super) const COLUMNS: &[TableColumn] = &[
    text("database"),
    text("user"),
    int4("cl_active"),
    int4("cl_waiting"),
    int4("cl_active_cancel_req"),
    int4("cl_waiting_cancel_req"),
    int4("sv_active"),
    int4("sv_active_cancel"),
    int4("sv_being_canceled"),
    int4("sv_idle"),
    int4("sv_used"),
    int4("sv_tested"),
    int4("sv_login"),
    int4("maxwait"),
    int4("maxwait_us"),
    text("pool_mode"),
    text("load_balance_hosts"),
];

/// How PgBouncer would name the choice of a host; `None` with only one host.
pub(super) fn load_balance(plan: &PoolPlan) -> Option<&'static str> {
    // PgBouncer supports the list in order, and round robin.
    let in_order = plan.choice.is_none() || plan.route.policy == RoutePolicy::PickFirst;
    (plan.hosts.len() > 1).then_some(if in_order { "disable" } else { "round-robin" })
}

/// Server connections that may be open for each pair of database and user, over all of its servers.
pub(crate) fn sizes(pools: &Pools) -> BTreeMap<(Arc<str>, Arc<str>), u32> {
    let mut sizes = BTreeMap::new();
    // Where several servers can be chosen, each has a pool of its own, and the pool of the clients opens nothing.
    for pool in pools.all().iter().filter(|pool| pool.plan().choice.is_none() && !pool.key.looks_up) {
        *sizes.entry((pool.key.database.clone(), pool.key.user.clone())).or_insert(0) += pool.plan().pool.size;
    }
    sizes
}

pub(super) async fn rows(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    // As in PgBouncer, an idle client counts as active: it does not wait for a server.
    let served = snapshot.client_groups().await.count_by(|group| (!group.is_waiting).then(|| group.key.clone()));
    // The pools of one database and user are adjacent; the first one is that of the clients.
    let pools = snapshot.gateway().pools.all();
    let groups = pools.chunk_by(|one, next| (&one.key.database, &one.key.user) == (&next.key.database, &next.key.user));
    let mut unchecked = HashMap::<PoolKey, usize>::new();
    snapshot.unchecked().await.values().for_each(|key| *unchecked.entry(clients_pool_key(key)).or_default() += 1);
    let row = |group: &[Arc<SharedPool>]| {
        let of = |counts: &HashMap<PoolKey, usize>| {
            counts.get(&clients_pool_key(&group[0].key)).copied().unwrap_or_default()
        };
        row_of(group, of(&served), of(&unchecked))
    };
    let mut rows: Vec<_> = groups.map(row).collect();
    let at =
        pools.iter().filter(|pool| pool.key.host.is_none() && &*pool.key.database < AdminConfig::DISPLAY_NAME).count();
    rows.insert(at.min(rows.len()), console(snapshot.gateway().statistics.console.clients()));
    rows
}

/// The clients of the console, which never wait for a server.
fn console(clients: usize) -> Vec<TableCell> {
    let mut row = row![AdminConfig::DISPLAY_NAME, AdminConfig::DISPLAY_NAME, clients];
    row.resize(COLUMNS.len() - 2, TableCell::Number(0));
    row.extend(row![PoolMode::Statement.as_str(), None::<String>]);
    row
}

/// The key of the clients' pool.
fn clients_pool_key(key: &PoolKey) -> PoolKey {
    PoolKey { host: None, ..key.clone() }
}

/// Sums the counters of several pools.
fn sum(group: &[Arc<SharedPool>]) -> PoolCounts {
    group.iter().map(|shared| shared.pool.counts()).fold(PoolCounts::default(), |sum, one| PoolCounts {
        active: sum.active + one.active,
        idle: sum.idle + one.idle,
        connecting: sum.connecting + one.connecting,
        cleaning: sum.cleaning + one.cleaning,
        moving: sum.moving + one.moving,
        waiting: sum.waiting + one.waiting,
        oldest_wait: sum.oldest_wait.into_iter().chain(one.oldest_wait).min(),
        open: sum.open + one.open,
    })
}

fn row_of(group: &[Arc<SharedPool>], served: usize, unchecked: usize) -> Vec<TableCell> {
    let (shared, counts) = (&group[0], sum(group));
    let plan = shared.plan();
    let (maxwait, maxwait_us) = wait(counts.oldest_wait);
    // Not atomic: clients come and go meanwhile.
    let spare_places: usize = group.iter().map(|shared| shared.spare_places()).sum();
    let waiting_logins: usize = group.iter().map(|shared| shared.waiting_logins()).sum();
    let replicating: usize = group.iter().map(|shared| shared.replicating()).sum();
    let cancels = |stage: CancelStage| group.iter().map(|shared| shared.cancels(stage)).sum::<usize>();
    let (free, held_up) = (counts.idle + counts.moving, cancels(CancelStage::HeldUp));
    row![
        &shared.key.database,
        &shared.key.user,
        served,
        counts.waiting.saturating_sub(spare_places) + waiting_logins,
        cancels(CancelStage::Sent),
        cancels(CancelStage::Coming),
        counts.active + replicating,
        cancels(CancelStage::Carried),
        held_up,
        free.saturating_sub(unchecked),
        unchecked.min(free),
        counts.cleaning.saturating_sub(held_up),
        counts.connecting,
        maxwait,
        maxwait_us,
        plan.pool.mode.as_str(),
        load_balance(&plan),
    ]
}
