//! SHOW CLIENTS: who is connected, and what they do.

use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::{Instant, SystemTime},
};

use rustc_hash::FxHashMap;
use tidegate_link::Address;

use super::super::table::{Column, Value, int4, row, text};
use super::{on_the_wall, timestamp, wait};
use crate::plane::{Card, ClientState, Gateway, PoolKey, Worker};

pub(super) const COLUMNS: &[Column] = &[
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
    text("pinned"),
];

/// A client as its thread saw it.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) id: u64,
    pub(super) key: PoolKey,
    pub(super) user: Arc<str>,
    pub(super) state: ClientState,
    peer: Address,
    connected_at: SystemTime,
    pub(super) request_at: Option<Instant>,
    pub(super) server: Option<u64>,
    tls: Option<String>,
    pub(super) application_name: Option<String>,
    prepared: u32,
    pinned: String,
}

/// The clients of all threads, in the order they came.
pub(super) async fn all(gateway: &Gateway) -> Vec<Client> {
    let mut clients: Vec<_> = gateway.ask_all(of_thread).await.into_iter().flatten().collect();
    clients.sort_unstable_by_key(|client| client.id);
    clients
}

fn of_thread(worker: &Rc<Worker>) -> Vec<Client> {
    worker.roster.cards().iter().map(|card| of_card(card)).collect()
}

fn of_card(card: &Card) -> Client {
    Client {
        id: card.id,
        key: card.key.clone(),
        user: card.user.clone(),
        state: card.state.get(),
        peer: card.peer,
        connected_at: card.connected_at,
        request_at: card.request_at.get(),
        server: card.linked().map(|linked| linked.identity.id),
        tls: card.tls.as_deref().map(str::to_owned),
        application_name: card.application_name(),
        prepared: card.prepared.get(),
        pinned: card.pins.get().to_string(),
    }
}

/// In what clients are alike for a scraper.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::admin) struct Kin {
    pub(in crate::admin) application_name: String,
    pub(in crate::admin) database: Arc<str>,
    pub(in crate::admin) state: &'static str,
    pub(in crate::admin) user: Arc<str>,
}

/// How many clients are alike: counted on their threads, so that nothing is made of each of them.
pub(in crate::admin) async fn alike(gateway: &Gateway) -> BTreeMap<Kin, u64> {
    let mut all = BTreeMap::new();
    for (kin, count) in gateway.ask_all(alike_of_thread).await.into_iter().flatten() {
        *all.entry(kin).or_default() += count;
    }
    all
}

fn alike_of_thread(worker: &Rc<Worker>) -> FxHashMap<Kin, u64> {
    let mut alike = FxHashMap::default();
    for card in worker.roster.cards() {
        let kin = Kin {
            application_name: card.application_name().unwrap_or_default(),
            database: card.key.database.clone(),
            state: card.state.get().as_str(),
            user: card.user.clone(),
        };
        *alike.entry(kin).or_default() += 1;
    }
    alike
}

pub(super) async fn rows(gateway: &Arc<Gateway>) -> Vec<Vec<Value>> {
    all(gateway).await.into_iter().map(row_of).collect()
}

fn row_of(client: Client) -> Vec<Value> {
    let waiting = match client.state {
        ClientState::Waiting(since) => Some(since),
        ClientState::Idle | ClientState::Active => None,
    };
    let (addr, port) = match client.peer {
        Address::Tcp(address) => (address.ip().to_string(), address.port()),
        Address::Unix => ("unix".to_owned(), 0),
    };
    let (wait, wait_us) = wait(waiting);
    row![
        "C",
        &client.user,
        &client.key.database,
        "none",
        client.state.as_str(),
        addr,
        port,
        // Nobody has asked the socket; the addresses that are listened on are in SHOW CONFIG.
        None::<String>,
        None::<u16>,
        timestamp(client.connected_at),
        client.request_at.map(|at| timestamp(on_the_wall(at))),
        wait,
        wait_us,
        0_u32,
        format!("c{}", client.id),
        client.server.map_or_else(String::new, |id| format!("s{id}")),
        0_u32,
        client.tls.unwrap_or_default(),
        client.application_name.unwrap_or_default(),
        client.prepared,
        client.id,
        client.pinned,
    ]
}
