//! Counters of the console's own clients, and samples for averages.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use super::lock;
use tidegate_stats::{History, PoolTotals, Sample, Totals};

/// Statistics that no thread owns.
pub struct Statistics {
    /// Clients of the console.
    pub console: ConsoleCounts,
    history: Mutex<History>,
}

impl Statistics {
    pub(super) fn new(now: Instant) -> Self {
        Self { console: ConsoleCounts::default(), history: Mutex::new(History::new(now)) }
    }

    pub(in crate::plane) fn push(&self, sample: Sample) {
        lock(&self.history).push(sample);
    }

    /// Averages of the last full period, or since the start before the first period has ended; `now` is the present sample.
    #[must_use]
    pub fn averages(&self, now: &Sample) -> Totals {
        lock(&self.history).averages(now)
    }

    /// The same averages over all databases.
    #[must_use]
    pub fn averages_of_all(&self, now: &Sample) -> PoolTotals {
        lock(&self.history).averages_of_all(now)
    }
}

/// Counters of the console's own clients. They are few, so all threads share them.
#[derive(Debug, Default)]
pub struct ConsoleCounts {
    clients: AtomicUsize,
    logins: AtomicU64,
    queries: AtomicU64,
}

impl ConsoleCounts {
    /// Counts a login.
    pub fn enter(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
        self.logins.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a session.
    pub fn leave(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a query, valid or not.
    pub fn note_query(&self) {
        self.queries.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of clients of the console; they are also counted as [clients](super::Clients).
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// As in PgBouncer, each query is a transaction; bytes and times are not counted.
    pub(in crate::plane) fn totals(&self) -> PoolTotals {
        let queries = self.queries.load(Ordering::Relaxed);
        PoolTotals {
            xact_count: queries,
            query_count: queries,
            client_login_count: self.logins.load(Ordering::Relaxed),
            ..PoolTotals::default()
        }
    }
}
