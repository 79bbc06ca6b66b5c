//! SHOW SOCKETS and SHOW ACTIVE_SOCKETS: clients and servers in one table, with what PgBouncer's buffers hold.

use std::sync::Arc;

use super::super::table::{Column, Value, int4, int8, text};
use super::{clients, servers};
use crate::plane::Gateway;

/// Those of SHOW SERVERS, and seven numbers of buffers. An idle connection owns no buffer here, so all of those are 0.
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
    int8("id"),
    int4("recv_pos"),
    int4("pkt_pos"),
    int4("pkt_remain"),
    int4("send_pos"),
    int4("send_remain"),
    int4("pkt_avail"),
    int4("send_avail"),
];

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
