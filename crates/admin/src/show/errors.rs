//! SHOW ERRORS: counts of failed logins, refusals, checkout timeouts and ends of sessions since the start, by reason.

use super::super::table::{TableCell, TableColumn, int8, row, text};
use super::MetricsSnapshot;

pub(super) const COLUMNS: &[TableColumn] = &[text("event"), text("reason"), int8("count")];

pub(super) async fn rows(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let gateway = snapshot.gateway();
    let sum = tidegate_stats::sum(&snapshot.sample().await.totals);
    let mut rows = vec![
        row!["checkout timeout", None::<String>, sum.checkout_timeout_count],
        row!["failed login", None::<String>, gateway.clients.failed_logins.counts().failed],
        row!["failed server login", None::<String>, sum.server_login_error_count],
    ];
    let outcomes = &gateway.clients.outcomes;
    rows.extend(outcomes.refusals().into_iter().map(|(reason, count)| row!["refused login", reason, count]));
    rows.extend(outcomes.disconnects().into_iter().map(|(reason, count)| row!["disconnect", reason, count]));
    rows
}
