//! SHOW SOCKETS and SHOW ACTIVE_SOCKETS: clients and servers in one table, with what PgBouncer's buffers hold.

use super::super::table::{Column, Value, int4};
use super::{Figures, clients, servers};

/// Those of SHOW SERVERS, and seven numbers of buffers. An idle connection owns no buffer here, so all of those are 0.
pub(super) const COLUMNS: &[Column] = &with_buffers();

/// What PgBouncer's buffers hold.
const BUFFERS: [&str; 7] = ["recv_pos", "pkt_pos", "pkt_remain", "send_pos", "send_remain", "pkt_avail", "send_avail"];

const fn with_buffers() -> [Column; servers::COLUMNS.len() + BUFFERS.len()] {
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

/// The column that says what a connection is doing.
const STATE: usize = 4;

/// The word for a connection that has somebody at the other end of the gateway.
const ACTIVE: &str = "active";

pub(super) async fn rows(figures: &Figures) -> Vec<Vec<Value>> {
    of(figures, |_| true).await
}

/// The rows of both tables whose state is wanted. PgBouncer says here which of the two a state is of: `cl_idle`, `sv_idle`.
async fn of(figures: &Figures, is_wanted: impl Fn(&str) -> bool) -> Vec<Vec<Value>> {
    let clients = clients::rows(figures).await.into_iter().map(|row| ("cl", row));
    let servers = servers::rows(figures).await.into_iter().map(|row| ("sv", row));
    let mut rows = Vec::new();
    for (side, mut row) in clients.chain(servers) {
        let Value::Text(state) = &row[STATE] else { continue };
        if is_wanted(state) {
            row[STATE] = Value::from(format!("{side}_{state}"));
            row.truncate(servers::COLUMNS.len());
            row.resize(COLUMNS.len(), Value::Number(0));
            rows.push(row);
        }
    }
    rows
}

/// Those that have somebody at the other end of the gateway.
pub(super) async fn active(figures: &Figures) -> Vec<Vec<Value>> {
    of(figures, |state| state == ACTIVE).await
}
