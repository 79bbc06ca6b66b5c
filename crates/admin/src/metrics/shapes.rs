//! Metrics of live queries.

use tidegate_shapes::{ServerStatus, ShapesSnapshot};

use super::{
    MetricsPage,
    family::{MetricSample, MetricType},
};

impl MetricsPage {
    /// Adds the state and the counters of the server of `[shapes]`.
    pub(super) fn shapes(&mut self, server: &ShapesSnapshot) {
        let totals = &server.totals;
        let is_active = f64::from(u8::from(server.status == ServerStatus::Active));
        let gauges = [
            ("shapes", "Live queries", server.shapes as f64),
            ("shapes_active", "1 while changes arrive from the database", is_active),
            ("shapes_waiting_clients", "Requests that wait for a change", totals.waiting as f64),
            ("shapes_disk_bytes", "Bytes of the logs on disk", server.disk_bytes as f64),
            ("shapes_snapshots_running", "Snapshots that are taken or wait for it", totals.snapshots_running as f64),
        ];
        for (name, help, value) in gauges {
            self.one(name, help, &[], value);
        }
        if let Some(bytes) = totals.slot_lag_bytes {
            self.one("shapes_slot_lag_bytes", "WAL that the database keeps for the slot", &[], bytes as f64);
        }
        let counters = [
            ("shapes_changes_total", "Changed rows received", totals.changes),
            ("shapes_transactions_total", "Transactions received", totals.transactions),
            ("shapes_removed_total", "Shapes removed, whose clients load them again", totals.removed),
            ("shapes_faults_total", "Tasks of single shapes that panicked", totals.faults),
            ("shapes_reconnects_total", "Replication connections that were lost", totals.reconnects),
        ];
        for (name, help, value) in counters {
            let sample = MetricSample::number(MetricType::Counter, &[], value as f64);
            self.family(name, help, MetricType::Counter, vec![sample]);
        }
        let ended = [("complete", totals.snapshots_complete), ("failed", totals.snapshots_failed)];
        let labelled = |label: &str, value: &str, count: u64| {
            MetricSample::number(MetricType::Counter, &[(label, value)], count as f64)
        };
        let samples = ended.map(|(result, count)| labelled("result", result, count)).to_vec();
        self.family("shapes_snapshots_total", "Snapshots by their end", MetricType::Counter, samples);
        let samples = totals.answers.iter().map(|(status, count)| {
            let status = if *status == 0 { "other".to_owned() } else { status.to_string() };
            labelled("status", &status, *count)
        });
        let samples = samples.collect();
        let help = "Answers by status; 409 is must-refetch";
        self.family("shapes_requests_total", help, MetricType::Counter, samples);
    }
}
