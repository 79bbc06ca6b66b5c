//! The tables of the page, as JSON. They are those of the console where it has them.
//!
//! Names of users, databases and applications are text of clients: the page shows them as text only.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tidegate_proxy::plane::{Gateway, Phase, lock};
use tidegate_shapes::{ServerStatus, ShapeServer};

use super::{
    Body,
    feed::Topic,
    history::{WebHistory, now_ms},
    reply,
    sessions::Viewer,
};
use crate::{
    show::{MetricsSnapshot, ShowTopic, pools, shapes},
    table::{ResultTable, TableCell},
};

/// Maximum number of rows of a table on a page; the total is reported with them.
const ROWS_MAX: usize = 500;

/// The event of a topic.
pub(super) async fn event(topic: Topic, snapshot: &MetricsSnapshot, history: &Mutex<WebHistory>) -> Value {
    match topic {
        Topic::Overview => overview(snapshot, history).await,
        Topic::Pools => pools(snapshot).await,
        Topic::Clients => clients(snapshot).await,
        Topic::Servers => shown(&ShowTopic::Servers.table(snapshot).await),
        Topic::Hosts => {
            let table = shown(&hosts(snapshot).await);
            json!({ "table": table, "changes": lock(history).changes() })
        }
        Topic::Journal => shown(&ShowTopic::Journal.table(snapshot).await),
        Topic::Streams => shown(&ShowTopic::Streams.table(snapshot).await),
        Topic::Shapes => live_queries(snapshot.context().shapes().as_deref()),
    }
}

/// SHOW SHAPES, and the state of the server; without one, `server` is null.
fn live_queries(server: Option<&ShapeServer>) -> Value {
    let (table, count) = shapes::table(server, "");
    let mut shown = shown(&table);
    shown["total"] = count.into();
    let server = server.map(|server| {
        let state = server.snapshot();
        let (status, reason) = match state.status {
            ServerStatus::Active => ("active", String::new()),
            ServerStatus::Starting(reason) => ("starting", reason),
            ServerStatus::Waiting(reason) => ("waiting", reason),
            ServerStatus::Failed(reason) => ("failed", reason),
        };
        json!({
            "status": status,
            "reason": reason,
            "shapes": state.shapes,
            "waiting": state.totals.waiting,
            "disk_bytes": state.disk_bytes,
            "slot_lag_bytes": state.totals.slot_lag_bytes,
            "changes": state.totals.changes,
        })
    });
    json!({ "table": shown, "server": server })
}

/// SHOW HOSTS.
pub(super) async fn hosts(snapshot: &MetricsSnapshot) -> ResultTable {
    ShowTopic::Hosts.table(snapshot).await
}

/// A table as JSON.
fn shown(table: &ResultTable) -> Value {
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
    let rows: Vec<Vec<Value>> = table.rows.iter().take(ROWS_MAX).map(|row| row.iter().map(value).collect()).collect();
    json!({ "columns": columns, "rows": rows, "total": table.rows.len() })
}

fn value(cell: &TableCell) -> Value {
    match cell {
        TableCell::Null => Value::Null,
        TableCell::Text(text) => Value::String(text.to_string()),
        TableCell::Number(number) => (*number).into(),
    }
}

const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Active => "active",
        Phase::Paused => "paused",
        Phase::Suspended => "suspended",
        Phase::WaitingForClients | Phase::WaitingForTransactions | Phase::Stopping => "shutting down",
    }
}

async fn overview(snapshot: &MetricsSnapshot, history: &Mutex<WebHistory>) -> Value {
    let gateway = snapshot.gateway();
    let setup = gateway.config.setup();
    let timeouts: u64 = snapshot.sample().await.totals.values().map(|totals| totals.checkout_timeout_count).sum();
    let uptime = gateway.lifecycle.started_at.elapsed().unwrap_or_default();
    let reload = gateway.config.last_reload();
    let point = lock(history).last_point().cloned();
    json!({
        "at": now_ms(),
        "phase": phase_name(gateway.lifecycle.phase()),
        "uptime_s": uptime.as_secs(),
        "clients": gateway.clients.count(),
        "clients_max": setup.config.listen.max_clients,
        "reload_is_success": reload.is_success,
        "reloaded_at": millis_since_1970(reload.succeeded_at),
        "checkout_timeouts": timeouts,
        "failed_logins": gateway.clients.failed_logins.counts().failed,
        "disconnects": gateway.clients.outcomes.disconnects(),
        "refusals": gateway.clients.outcomes.refusals(),
        "point": point,
        "pools": pools(snapshot).await,
    })
}

fn millis_since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// SHOW POOLS with the size of each pool and whether it is paused.
async fn pools(snapshot: &MetricsSnapshot) -> Value {
    let table = ShowTopic::Pools.table(snapshot).await;
    let gateway = snapshot.gateway();
    let sizes = pools::sizes(&gateway.pools);
    let at = |name: &str| table.columns.iter().position(|column| column.name == name);
    let (database, user) = (at("database"), at("user"));
    let mut rows = Vec::new();
    for row in table.rows.iter().take(ROWS_MAX) {
        let text = |at: Option<usize>| match at.and_then(|at| row.get(at)) {
            Some(TableCell::Text(text)) => text.to_string(),
            _ => String::new(),
        };
        let (database, user) = (text(database), text(user));
        let size = sizes.get(&(database.as_str().into(), user.as_str().into())).copied();
        let mut values: Vec<Value> = row.iter().map(value).collect();
        values.extend([json!(size), json!(gateway.lifecycle.is_paused(&database))]);
        rows.push(values);
    }
    let columns = table.columns.iter().map(|column| column.name).chain(["pool_size", "paused"]);
    json!({ "columns": columns.collect::<Vec<_>>(), "rows": rows, "total": table.rows.len() })
}

/// SHOW TOP_CLIENTS, with the number of all clients.
async fn clients(snapshot: &MetricsSnapshot) -> Value {
    let mut table = shown(&ShowTopic::TopClients.table(snapshot).await);
    table["total"] = json!(snapshot.client_groups().await.len());
    table
}

/// The settings in force, and how the file differs from them.
pub(super) async fn configuration(gateway: &Arc<Gateway>, viewer: &Viewer) -> Response<Body> {
    let setup = gateway.config.setup();
    let rows = setup.config.setting_rows();
    let settings: Vec<Value> = rows
        .iter()
        .map(|row| {
            let changes = if row.reloadable { "reload" } else { "restart" };
            json!([row.key, row.value, row.default, changes])
        })
        .collect();
    let owner = gateway.clone();
    let read = gateway.pools.connector.resolver.offload("the configuration", move || owner.config.read_file()).await;
    let (diff, error) = match read.flatten() {
        Some(Ok(file)) => {
            let known: BTreeMap<&str, &str> = rows.iter().map(|row| (&*row.key, &*row.value)).collect();
            let new_rows = file.setting_rows();
            let new: BTreeMap<&str, &str> = new_rows.iter().map(|row| (&*row.key, &*row.value)).collect();
            let changed = new_rows.iter().filter(|row| known.get(&*row.key) != Some(&&*row.value)).map(|row| {
                let changes = if row.reloadable { "reload" } else { "restart" };
                json!([row.key, known.get(&*row.key), row.value, changes])
            });
            let removed = rows.iter().filter(|row| !new.contains_key(&*row.key));
            let removed = removed.map(|row| json!([row.key, row.value, null, "reload"]));
            (changed.chain(removed).collect::<Vec<Value>>(), None)
        }
        Some(Err(outline)) => (Vec::new(), Some(outline)),
        None => (Vec::new(), None),
    };
    let reload = gateway.config.last_reload();
    let file = gateway.config.file().filter(|_| viewer.may_change).map(|file| file.display().to_string());
    reply(
        StatusCode::OK,
        &json!({
            "file": file,
            "columns": ["key", "value", "default", "applied by"],
            "rows": settings,
            "diff_columns": ["key", "in force", "in the file", "applied by"],
            "diff": diff,
            "error": error,
            "reload_is_success": reload.is_success,
            "reloaded_at": millis_since_1970(reload.succeeded_at),
        }),
    )
}
