//! SHOW SOCKETS and SHOW ACTIVE_SOCKETS: clients and servers in one table, with what PgBouncer's buffers hold.

use std::sync::Arc;

use super::super::table::{Column, Value, int4};
use super::{clients, servers};
use crate::plane::Gateway;

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

pub(super) async fn rows(gateway: &Arc<Gateway>) -> Vec<Vec<Value>> {
    let shared = servers::COLUMNS.len();
    let clients = clients::rows(gateway).await;
    let all = clients.into_iter().chain(servers::rows(gateway).await);
    all.map(|mut row| {
        row.truncate(shared);
        row.resize(COLUMNS.len(), Value::Number(0));
        row
    })
    .collect()
}

/// Those that have somebody at the other end of the gateway.
pub(super) async fn active(gateway: &Arc<Gateway>) -> Vec<Vec<Value>> {
    let mut rows = rows(gateway).await;
    rows.retain(|row| row[STATE] == Value::from("active"));
    rows
}
