//! SHOW STATE and SHOW VERSION.

use super::super::table::{Column, Value, row, text};
use super::timestamp;
use tidegate_proxy::plane::{Gateway, Phase};

pub(super) const COLUMNS: &[Column] = &[text("key"), text("value")];
pub(super) const VERSION: &[Column] = &[text("version")];

/// PgBouncer's three rows, then our own.
pub(super) fn rows(gateway: &Gateway) -> Vec<Vec<Value>> {
    let phase = gateway.lifecycle.phase();
    let is = |wanted: Phase| if phase == wanted { "yes" } else { "no" };
    // A stop that waits for clients does not end a pause.
    let paused = gateway.lifecycle.holds_all() && phase != Phase::Suspended;
    let stopping = match phase {
        Phase::Active | Phase::Paused | Phase::Suspended => "no",
        Phase::WaitingForClients => "waits for clients",
        Phase::WaitingForTransactions => "waits for transactions",
        Phase::Stopping => "yes",
    };
    vec![
        row!["active", is(Phase::Active)],
        row!["paused", if paused { "yes" } else { "no" }],
        row!["suspended", is(Phase::Suspended)],
        row!["stopping", stopping],
        row!["started_at", timestamp(gateway.lifecycle.started_at)],
    ]
}

pub(super) fn version() -> Vec<Vec<Value>> {
    vec![row![concat!("Tidegate ", env!("CARGO_PKG_VERSION"))]]
}
