//! SHOW POOLS: how many connections each database and user has, in what state.

use std::{collections::HashMap, sync::Arc};

use super::super::table::{Column, Value, int4, row, text};
use super::{clients, wait};
use crate::plane::{ClientState, Gateway, PoolKey, SharedPool};

pub(super) const COLUMNS: &[Column] = &[
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

/// Hosts are tried in order; none is chosen for its load.
pub(super) const LOAD_BALANCE: &str = "disable";

pub(super) async fn rows(gateway: &Arc<Gateway>) -> Vec<Vec<Value>> {
    // As in PgBouncer, a client that asks for nothing counts as active: it is served, and does not wait.
    let mut served: HashMap<PoolKey, usize> = HashMap::new();
    for client in clients::all(gateway).await {
        if !matches!(client.state, ClientState::Waiting(_)) {
            *served.entry(client.key).or_default() += 1;
        }
    }
    let row = |pool: &Arc<SharedPool>| row_of(pool, served.get(&pool.key).copied().unwrap_or_default());
    gateway.pools().iter().map(row).collect()
}

fn row_of(shared: &SharedPool, served: usize) -> Vec<Value> {
    let counts = shared.pool.counts();
    let (maxwait, maxwait_us) = wait(counts.oldest_wait);
    row![
        &shared.key.database,
        &shared.key.user,
        served,
        counts.waiting,
        0_u32,
        0_u32,
        counts.active,
        0_u32,
        0_u32,
        counts.idle + counts.moving,
        0_u32,
        counts.cleaning,
        counts.connecting,
        maxwait,
        maxwait_us,
        shared.plan().pool.mode.as_str(),
        LOAD_BALANCE,
    ]
}
