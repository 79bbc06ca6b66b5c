//! SHOW CLIENTS: connected clients and their state.

use std::{
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Instant, SystemTime},
};

use tidegate_link::PeerAddress;

use super::super::table::{TableCell, TableColumn, int4, row, text};
use super::{MetricsSnapshot, timestamp, wait, wall_clock};
use tidegate_proxy::plane::{ClientInfo, ClientState, PoolKey, Replication, Worker, Workers};

pub(super) const COLUMNS: &[TableColumn] = &[
    text("type"),
    text("user"),
    text("database"),
    text("replication"),
    text("state"),
    text("addr"),
    int4("port"),
    text("local_addr"),
    int4("local_port"),
    text("connect_time"),
    text("request_time"),
    int4("wait"),
    int4("wait_us"),
    int4("close_needed"),
    text("ptr"),
    text("link"),
    int4("remote_pid"),
    text("tls"),
    text("application_name"),
    int4("prepared_statements"),
    int4("id"),
];

/// Clients that keep their server beyond the transaction. A table of its own: PgBouncer's SHOW CLIENTS has no such column.
pub(super) const PINS: &[TableColumn] = &[
    int4("id"),
    text("user"),
    text("database"),
    text("application_name"),
    text("state"),
    text("link"),
    text("pinned"),
];

/// A client as its thread sees it.
#[derive(Clone, Debug)]
pub(super) struct ClientEntry {
    pub(super) id: u64,
    pub(super) key: PoolKey,
    pub(super) user: Arc<str>,
    pub(super) state: ClientState,
    peer: PeerAddress,
    local: Option<SocketAddr>,
    process: u32,
    connected_at: SystemTime,
    pub(super) request_at: Option<Instant>,
    pub(super) server: Option<u64>,
    tls: Option<String>,
    pub(super) application_name: Option<String>,
    prepared: u32,
    pinned: String,
}

/// The clients of all threads, in the order of their connections.
pub(super) async fn all(workers: &Workers) -> Vec<ClientEntry> {
    let mut clients: Vec<_> = workers.ask_all(clients_of_worker).await.into_iter().flatten().collect();
    clients.sort_unstable_by_key(|client| client.id);
    clients
}

fn clients_of_worker(worker: &Rc<Worker>) -> Vec<ClientEntry> {
    worker.registry.client_infos().iter().map(|client_info| client_entry(worker, client_info)).collect()
}

fn client_entry(worker: &Worker, client_info: &ClientInfo) -> ClientEntry {
    ClientEntry {
        id: client_info.id,
        key: client_info.key(),
        user: client_info.user.clone(),
        state: client_info.state.get(),
        peer: client_info.peer,
        local: worker.registry.local_of(client_info),
        process: client_info.process,
        connected_at: client_info.connected_at,
        request_at: client_info.request_at.get(),
        server: client_info.server_handle().map(|server| server.identity.id),
        tls: client_info.tls.as_deref().map(str::to_owned),
        application_name: client_info.application_name(),
        prepared: client_info.prepared.get(),
        pinned: client_info.pins.get().to_string(),
    }
}

pub(super) async fn rows(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let unix_port = snapshot.gateway().config.setup().config.listen.unix_port();
    snapshot.clients().await.iter().map(|client| row_of(client, unix_port)).collect()
}

/// Address and port as PgBouncer shows them: for a unix socket, the port that clients use.
pub(super) fn endpoint(address: Option<SocketAddr>, unix_port: u16) -> (String, u16) {
    match address {
        Some(address) => (address.ip().to_string(), address.port()),
        None => ("unix".to_owned(), unix_port),
    }
}

/// The replication mode of a client; of a server, that of its client.
pub(super) fn replication(state: Option<ClientState>) -> &'static str {
    match state {
        Some(ClientState::Replicating(Replication::Physical)) => "physical",
        Some(ClientState::Replicating(Replication::Logical)) => "logical",
        _ => "none",
    }
}

fn row_of(client: &ClientEntry, unix_port: u16) -> Vec<TableCell> {
    let waiting = match client.state {
        ClientState::Waiting(since) => Some(since),
        ClientState::Idle | ClientState::Active | ClientState::Replicating(_) => None,
    };
    let peer = match client.peer {
        PeerAddress::Tcp(address) => Some(address),
        PeerAddress::Unix => None,
    };
    let (addr, port) = endpoint(peer, unix_port);
    let (local_addr, local_port) = match (peer, client.local) {
        // The listener accepts connections to many addresses.
        (Some(_), None) => (None, None),
        (_, local) => {
            let (addr, port) = endpoint(local, unix_port);
            (Some(addr), Some(port))
        }
    };
    let (wait, wait_us) = wait(waiting);
    row![
        "C",
        &client.user,
        &client.key.database,
        replication(Some(client.state)),
        client.state.as_str(),
        addr,
        port,
        local_addr,
        local_port,
        timestamp(client.connected_at),
        client.request_at.map(|at| timestamp(wall_clock(at))),
        wait,
        wait_us,
        0_u32,
        format!("c{}", client.id),
        client.server.map_or_else(String::new, |id| format!("s{id}")),
        client.process,
        client.tls.clone().unwrap_or_default(),
        client.application_name.clone().unwrap_or_default(),
        client.prepared,
        client.id,
    ]
}

pub(super) async fn pins(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let row = |client: &ClientEntry| {
        row![
            client.id,
            &client.user,
            &client.key.database,
            client.application_name.clone().unwrap_or_default(),
            client.state.as_str(),
            client.server.map_or_else(String::new, |id| format!("s{id}")),
            client.pinned.clone(),
        ]
    };
    snapshot.clients().await.iter().filter(|client| !client.pinned.is_empty()).map(row).collect()
}
