//! SHOW SOCKETS and SHOW ACTIVE_SOCKETS: clients and servers in one table, with the columns of PgBouncer's buffers.

use super::super::table::{TableCell, TableColumn, int4};
use super::{MetricsSnapshot, clients, servers};

/// The columns of SHOW SERVERS and seven buffer positions, which are 0: idle connections have no buffer here.
pub(super) const COLUMNS: &[TableColumn] = &with_buffers();

/// Positions in PgBouncer's buffers.
const BUFFERS: [&str; 7] = ["recv_pos", "pkt_pos", "pkt_remain", "send_pos", "send_remain", "pkt_avail", "send_avail"];

const fn with_buffers() -> [TableColumn; servers::COLUMNS.len() + BUFFERS.len()] {
    let mut columns = [int4(""); servers::COLUMNS.len() + BUFFERS.len()];
    let (shared, own) = columns.split_at_mut(servers::COLUMNS.len());
    shared.copy_from_slice(servers::COLUMNS);
    let mut at = 0;
    while at < BUFFERS.len() {
        own[at] = int4(BUFFERS[at]);
        at += 1;
    }
    columns
}

/// Index of the column `state`.
const STATE: usize = 4;

/// State of a connection that has a counterpart on the other side.
const ACTIVE: &str = "active";

pub(super) async fn rows(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    rows_with_state(snapshot, |_| true).await
}

/// Rows of both tables with matching states. PgBouncer prefixes states with the table: `cl_idle`, `sv_idle`.
async fn rows_with_state(snapshot: &MetricsSnapshot, matches: impl Fn(&str) -> bool) -> Vec<Vec<TableCell>> {
    let clients = clients::rows(snapshot).await.into_iter().map(|row| ("cl", row));
    let servers = servers::rows(snapshot).await.into_iter().map(|row| ("sv", row));
    let mut rows = Vec::new();
    for (side, mut row) in clients.chain(servers) {
        let TableCell::Text(state) = &row[STATE] else { continue };
        if matches(state) {
            row[STATE] = TableCell::from(format!("{side}_{state}"));
            row.resize(COLUMNS.len(), TableCell::Number(0));
            rows.push(row);
        }
    }
    rows
}

/// Connections that have a counterpart on the other side.
pub(super) async fn active(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    rows_with_state(snapshot, |state| state == ACTIVE).await
}
