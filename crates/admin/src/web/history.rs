//! The last minutes of the gateway: load for the charts, and the roles and states of servers for the failover timeline.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tidegate_config::AdminConfig;
use tidegate_proxy::plane::{Clients, Pools};
use tidegate_stats::{LoadRates, LoadSample, Totals};

use crate::table::{ResultTable, TableCell};

/// Samples in the charts: ten minutes.
const POINTS_MAX: usize = 600;
/// Changes of servers in the timeline.
const CHANGES_MAX: usize = 200;

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Identity of a server: database, host and port.
type HostKey = [String; 3];

/// Role and state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostStanding {
    role: String,
    state: String,
}

/// Samples and changes, bounded.
#[derive(Default)]
pub(super) struct WebHistory {
    last: Option<(Instant, LoadSample)>,
    points: VecDeque<Value>,
    hosts: BTreeMap<HostKey, HostStanding>,
    changes: VecDeque<Value>,
}

impl WebHistory {
    /// Adds a sample.
    pub(super) fn add(&mut self, clients: &Clients, pools: &Pools, totals: &Totals, hosts: &ResultTable) {
        let mut sample = LoadSample { refused: clients.outcomes.refusals().values().sum(), ..Default::default() };
        let databases = totals.iter().filter(|(name, _)| ***name != *AdminConfig::DISPLAY_NAME);
        databases.for_each(|(_, of)| sample.totals.add(of));
        let now = Instant::now();
        if let Some((before, earlier)) = self.last.replace((now, sample)) {
            let rates = LoadRates::between(&earlier, &sample, now.saturating_duration_since(before));
            let (mut active, mut idle, mut waiting) = (0, 0, 0);
            for pool in pools.all() {
                let counts = pool.pool.counts();
                active += counts.active;
                idle += counts.idle;
                waiting += counts.waiting + pool.waiting_logins();
            }
            push(
                &mut self.points,
                POINTS_MAX,
                json!({
                    "at": now_ms(),
                    "transactions": rates.transactions,
                    "queries": rates.queries,
                    "query_ms": rates.query_ms,
                    "wait_ms": rates.wait_ms,
                    "waiting": waiting,
                    "servers_active": active,
                    "servers_idle": idle,
                    "clients": clients.count(),
                    "errors": rates.errors,
                }),
            );
        }
        self.follow_hosts(hosts);
    }

    /// Records changed roles and states of servers.
    fn follow_hosts(&mut self, table: &ResultTable) {
        let mut found = BTreeMap::new();
        for row in &table.rows {
            let text = |name: &str| {
                let at = table.columns.iter().position(|column| column.name == name);
                match at.and_then(|at| row.get(at)) {
                    Some(TableCell::Text(text)) => text.to_string(),
                    Some(TableCell::Number(number)) => number.to_string(),
                    Some(TableCell::Null) | None => String::new(),
                }
            };
            let standing = HostStanding { role: text("role"), state: text("state") };
            found.insert([text("database"), text("host"), text("port")], standing);
        }
        for (key, now) in &found {
            let before = self.hosts.get(key);
            // Servers of one host are not watched, and have no history.
            if before != Some(now) && now.state != "unwatched" && (before.is_some() || now.state != "new") {
                let before = before.map(|before| json!({ "role": before.role, "state": before.state }));
                let [database, host, port] = key;
                push(
                    &mut self.changes,
                    CHANGES_MAX,
                    json!({
                        "at": now_ms(), "database": database, "host": host, "port": port,
                        "before": before, "role": now.role, "state": now.state,
                    }),
                );
            }
        }
        self.hosts = found;
    }

    /// The samples, oldest first.
    pub(super) fn points(&self) -> Value {
        json!({ "points": self.points })
    }

    /// The newest sample.
    pub(super) fn last_point(&self) -> Option<&Value> {
        self.points.back()
    }

    /// The changes of servers, oldest first.
    pub(super) fn changes(&self) -> Value {
        json!(self.changes)
    }
}

fn push(values: &mut VecDeque<Value>, max: usize, value: Value) {
    if values.len() >= max {
        values.pop_front();
    }
    values.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{TableColumn, row, text};

    const COLUMNS: &[TableColumn] = &[text("database"), text("host"), text("port"), text("role"), text("state")];

    fn hosts(states: &[(&'static str, &'static str, &'static str)]) -> ResultTable {
        let rows = states.iter().map(|(host, role, state)| row!["shop", *host, 5432_u16, *role, *state]).collect();
        ResultTable::new(COLUMNS, rows)
    }

    /// OP-46.
    #[test]
    fn failover_is_on_the_timeline() {
        let mut history = WebHistory::default();
        history.follow_hosts(&hosts(&[("a", "unknown", "new"), ("b", "unknown", "new")]));
        assert!(history.changes.is_empty(), "nothing is known yet");
        history.follow_hosts(&hosts(&[("a", "primary", "up"), ("b", "replica", "up")]));
        history.follow_hosts(&hosts(&[("a", "primary", "down"), ("b", "replica", "up")]));
        history.follow_hosts(&hosts(&[("a", "primary", "down"), ("b", "primary", "up")]));
        history.follow_hosts(&hosts(&[("a", "primary", "down"), ("b", "primary", "up")]));
        let shown: Vec<_> = history
            .changes
            .iter()
            .map(|change| format!("{} {} {}", change["host"], change["role"], change["state"]).replace('"', ""))
            .collect();
        assert_eq!(shown, ["a primary up", "b replica up", "a primary down", "b primary up"]);
        assert_eq!(history.changes[3]["before"]["role"], "replica");
    }

    #[test]
    fn timeline_is_bounded() {
        let mut history = WebHistory::default();
        for _ in 0..CHANGES_MAX {
            history.follow_hosts(&hosts(&[("a", "primary", "up")]));
            history.follow_hosts(&hosts(&[("a", "primary", "down")]));
        }
        assert_eq!(history.changes.len(), CHANGES_MAX);
    }
}
