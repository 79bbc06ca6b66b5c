//! SHOW STATE and SHOW VERSION.

use super::super::table::{TableCell, TableColumn, row, text};
use super::timestamp;
use tidegate_config::{Dialect, pgbouncer};
use tidegate_proxy::plane::{Configuration, Lifecycle, Phase, SessionMoves};

pub(super) const COLUMNS: &[TableColumn] = &[text("key"), text("value")];
pub(super) const VERSION: &[TableColumn] = &[text("version")];

/// PgBouncer's three rows, then our own.
pub(super) fn rows(lifecycle: &Lifecycle, moves: &SessionMoves) -> Vec<Vec<TableCell>> {
    let phase = lifecycle.phase();
    let is = |expected: Phase| if phase == expected { "yes" } else { "no" };
    // A shutdown that waits for clients does not end a pause.
    let paused = lifecycle.holds_all() && phase != Phase::Suspended;
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
        row!["started_at", timestamp(lifecycle.started_at)],
        row!["uptime_s", lifecycle.started_at.elapsed().unwrap_or_default().as_secs().to_string()],
        row!["sessions_arrived", moves.arrived().to_string()],
        row!["sessions_departed", moves.departed().to_string()],
        row!["sessions_refused", moves.refused().to_string()],
    ]
}

pub(super) fn version(config: &Configuration) -> Vec<Vec<TableCell>> {
    let version = match config.setup().config.listen.dialect {
        Dialect::Pgbouncer => pgbouncer::FULL_VERSION,
        Dialect::Postgres => concat!("Tidegate ", env!("CARGO_PKG_VERSION")),
    };
    vec![row![version]]
}
