//! SHOW PEERS and SHOW PEER_POOLS: other gateways behind the same address, and the cancel requests forwarded to them.

use super::super::table::{TableCell, TableColumn, int4, row, text};
use tidegate_config::Host;
use tidegate_proxy::plane::{Configuration, PeerCounts, Peers};

pub(super) const COLUMNS: &[TableColumn] = &[int4("peer_id"), text("host"), int4("port"), int4("pool_size")];

pub(super) const POOLS: &[TableColumn] = &[
    int4("peer_id"),
    int4("cl_active_cancel_req"),
    int4("cl_waiting_cancel_req"),
    int4("sv_active_cancel"),
    int4("sv_login"),
];

pub(super) fn rows(config: &Configuration) -> Vec<Vec<TableCell>> {
    let setup = config.setup();
    let row = |(id, peer): (&u16, &tidegate_config::PeerKeys)| {
        let host = match peer.host() {
            Host::Tcp { name, .. } => name,
            Host::Unix { dir, .. } => dir.display().to_string(),
        };
        row![*id, host, peer.port, peer.size]
    };
    setup.config.peers.iter().map(row).collect()
}

pub(super) fn pools(config: &Configuration, peers: &Peers) -> Vec<Vec<TableCell>> {
    let setup = config.setup();
    let row = |id: &u16| {
        let PeerCounts { waiting, connecting, sent } = peers.counts(*id);
        row![*id, connecting + sent, waiting, sent, connecting]
    };
    setup.config.peers.keys().map(row).collect()
}
