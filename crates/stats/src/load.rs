//! Load between two samples of the counters: what the web console and `tidegate top` show.

use std::time::Duration;

use crate::PoolTotals;

/// Counters of all databases at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSample {
    /// Sum over the databases, without the console.
    pub totals: PoolTotals,
    /// Refused logins.
    pub refused: u64,
}

/// Load per second, and mean times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadRates {
    /// Transactions per second.
    pub transactions: f64,
    /// Queries per second.
    pub queries: f64,
    /// Mean duration of a query, in milliseconds; 0 without one.
    pub query_ms: f64,
    /// Mean wait for a server per assignment, in milliseconds; 0 without one.
    pub wait_ms: f64,
    /// Checkout timeouts and refused logins per second.
    pub errors: f64,
    /// Bytes from clients per second.
    pub received_bytes: f64,
    /// Bytes to clients per second.
    pub sent_bytes: f64,
}

impl LoadRates {
    /// The load between two samples. Counters that went back, because the gateway was restarted, count as unchanged.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_stats::{LoadRates, LoadSample, PoolTotals};
    ///
    /// let later = LoadSample {
    ///     totals: PoolTotals { query_count: 10, query_time: 5_000, ..PoolTotals::default() },
    ///     refused: 4,
    /// };
    /// let rates = LoadRates::between(&LoadSample::default(), &later, Duration::from_secs(2));
    /// assert_eq!((rates.queries, rates.query_ms, rates.errors), (5.0, 0.5, 2.0));
    /// ```
    #[must_use]
    pub fn between(earlier: &LoadSample, later: &LoadSample, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let since = later.totals.since(&earlier.totals);
        let rate = |count: u64| count as f64 / seconds;
        let mean_ms = |time: u64, count: u64| if count == 0 { 0.0 } else { time as f64 / count as f64 / 1e3 };
        Self {
            transactions: rate(since.xact_count),
            queries: rate(since.query_count),
            query_ms: mean_ms(since.query_time, since.query_count),
            wait_ms: mean_ms(since.wait_time, since.server_assignment_count),
            errors: rate(since.checkout_timeout_count + later.refused.saturating_sub(earlier.refused)),
            received_bytes: rate(since.received_bytes),
            sent_bytes: rate(since.sent_bytes),
        }
    }
}
