//! SHOW TOP_CLIENTS: the clients that matter most, bounded, for programs that poll: the web console and `tidegate top`.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use tidegate_link::PeerAddress;
use tidegate_proxy::plane::{ClientInfo, ClientState, Worker, Workers};

use super::super::table::{TableCell, TableColumn, TableRow, int4, int8, row, text};

pub(super) const COLUMNS: &[TableColumn] = &[
    int8("id"),
    text("database"),
    text("user"),
    text("application"),
    text("address"),
    text("state"),
    int8("wait_ms"),
    text("pinned"),
    int8("server"),
    int8("request_age_ms"),
    int8("age_s"),
    int4("prepared"),
    text("tls"),
];

/// Maximum number of rows.
const ROWS_MAX: usize = 500;

/// Order of rows: clients that wait, longest first, then those with a server, then the others.
type Rank = (u8, u64);

pub(super) async fn rows(workers: &Workers) -> Vec<Vec<TableCell>> {
    let mut ranked: Vec<(Rank, TableRow)> = workers.ask_all(top_of_worker).await.into_iter().flatten().collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.truncate(ROWS_MAX);
    ranked.into_iter().map(|(_, row)| row).collect()
}

fn top_of_worker(worker: &Rc<Worker>) -> Vec<(Rank, TableRow)> {
    let infos = worker.registry.client_infos();
    let now = Instant::now();
    let rank = |state: ClientState| match state {
        ClientState::Waiting(since) => (0, u64::MAX - millis(now.saturating_duration_since(since))),
        ClientState::Active | ClientState::Replicating(_) => (1, 0),
        ClientState::Idle => (2, 0),
    };
    let mut ranked: Vec<_> = infos.iter().map(|info| (rank(info.state.get()), info)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().take(ROWS_MAX).map(|(rank, info)| (rank, row_of(info, now))).collect()
}

fn row_of(info: &ClientInfo, now: Instant) -> TableRow {
    let (state, wait_ms) = match info.state.get() {
        ClientState::Waiting(since) => ("waiting", Some(millis(now.saturating_duration_since(since)))),
        ClientState::Active => ("active", None),
        ClientState::Idle => ("idle", None),
        ClientState::Replicating(_) => ("replication", None),
    };
    let address = match info.peer {
        PeerAddress::Tcp(address) => address.to_string(),
        PeerAddress::Unix => "unix".to_owned(),
    };
    row![
        info.id,
        &info.database,
        &info.user,
        info.application_name(),
        address,
        state,
        wait_ms,
        info.pins.get().to_string(),
        info.server_handle().map(|server| server.identity.id),
        info.request_at.get().map(|at| millis(now.saturating_duration_since(at))),
        info.connected_at.elapsed().unwrap_or_default().as_secs(),
        info.prepared.get(),
        info.tls.as_deref().map(str::to_owned),
    ]
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
