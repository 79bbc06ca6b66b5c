//! Metrics of the query journal.

use tidegate_journal::{JournalStats, LossCause};
use tidegate_query_log::spans::SpanCounts;

use super::{
    MetricsPage,
    family::{MetricSample, MetricType},
};

impl MetricsPage {
    pub(super) fn spans(&mut self, counts: &SpanCounts) {
        let outcomes =
            [("exported", counts.exported), ("queue_full", counts.dropped_full), ("failed", counts.dropped_failed)];
        let samples = outcomes
            .map(|(outcome, count)| MetricSample::number(MetricType::Counter, &[("outcome", outcome)], count as f64));
        self.family("traces_spans_total", "Spans by outcome", MetricType::Counter, samples.to_vec());
        let failed = MetricSample::number(MetricType::Counter, &[], counts.failed_requests as f64);
        self.family(
            "traces_failed_requests_total",
            "Failed requests to the collector",
            MetricType::Counter,
            vec![failed],
        );
        self.one("traces_queued_bytes", "Size of the spans that wait to be sent", &[], counts.queued_bytes as f64);
    }

    pub(super) fn journal(&mut self, stats: &JournalStats) {
        self.one("journal_state", "1 for the current state of the journal", &[("state", stats.state.name())], 1.0);
        let gauges = [
            ("journal_disk_bytes", "Size of the files", stats.disk_bytes as f64),
            ("journal_segments", "Number of files", stats.segments as f64),
            ("journal_queued_bytes", "Size of the records that wait to be written", stats.queued_bytes as f64),
            ("journal_lag_seconds", "Age of the oldest record that waits to be written", stats.lag.as_secs_f64()),
        ];
        for (name, help, value) in gauges {
            self.one(name, help, &[], value);
        }
        let counters = [
            ("journal_written_total", "Records written", stats.written),
            ("journal_written_bytes_total", "Bytes written", stats.written_bytes),
            ("journal_poisoned_total", "Files abandoned after an error", stats.segments_abandoned),
        ];
        for (name, help, value) in counters {
            self.family(
                name,
                help,
                MetricType::Counter,
                vec![MetricSample::number(MetricType::Counter, &[], value as f64)],
            );
        }
        let lost = stats.classes.iter().flat_map(|class| LossCause::ALL.map(|cause| (class, cause)));
        let samples = lost.map(|(class, cause)| {
            let labels = [("class", class.name.as_str()), ("cause", cause.name())];
            MetricSample::number(MetricType::Counter, &labels, class.lost(cause) as f64)
        });
        let samples = samples.collect();
        self.family("journal_lost_total", "Lost records", MetricType::Counter, samples);
    }
}
