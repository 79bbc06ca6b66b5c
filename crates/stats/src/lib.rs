//! Counters and duration histograms of one thread, summed over threads on demand.
//!
//! Counting is on the path of every query, so a counter is a plain [`Cell`] of its thread: no atomic, no lock. Another thread
//! reads them by running a function on the owner. With the feature `uncounted` nothing is counted, which shows what counting
//! costs.
//!
//! ```
//! let stats = tidegate_stats::PoolStats::default();
//! stats.query_count.add(2);
//! assert_eq!(stats.totals().query_count, 2);
//! ```

mod histogram;
mod load;

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

pub use histogram::{Distribution, Histogram, SCHEMA};
pub use load::{LoadRates, LoadSample};

/// A number that only goes up.
#[derive(Debug, Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    /// Adds to it.
    #[inline]
    pub fn add(&self, count: u64) {
        if cfg!(feature = "uncounted") {
            return;
        }
        self.0.set(self.0.get().wrapping_add(count));
    }

    /// Adds a time, in microseconds.
    #[inline]
    pub fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one thread for one pool. Durations are in microseconds.
        #[derive(Debug, Default)]
        pub struct PoolStats {
            $($(#[$doc])* pub $name: Counter,)*
            /// How the times are distributed.
            pub durations: Durations,
        }

        /// The counters of several threads, or of several pools, added up.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct PoolTotals { $($(#[$doc])* pub $name: u64),* }

        impl PoolStats {
            /// The values at this moment.
            #[must_use]
            pub fn totals(&self) -> PoolTotals {
                PoolTotals { $($name: self.$name.get()),* }
            }
        }

        impl PoolTotals {
            /// Adds another set.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }

            /// Every counter changed in the same way.
            fn each(&self, change: impl Fn(u64) -> u64) -> Self {
                Self { $($name: change(self.$name)),* }
            }

            /// The difference to an earlier value.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name)),* }
            }
        }
    };
}

counters! {
    /// Servers given to clients.
    server_assignment_count,
    /// Transactions ended.
    xact_count,
    /// Queries and executions.
    query_count,
    /// Bytes from clients.
    received_bytes,
    /// Bytes to clients.
    sent_bytes,
    /// Time that transactions were open.
    xact_time,
    /// Time that servers worked.
    query_time,
    /// Time that clients waited for a server.
    wait_time,
    /// Statements that clients prepared.
    client_parse_count,
    /// Statements that servers were taught.
    server_parse_count,
    /// Portals bound.
    bind_count,
    /// Clients that logged in.
    client_login_count,
    /// Clients that got no server in time.
    checkout_timeout_count,
    /// Logins to servers that failed.
    server_login_error_count,
}

/// How the times are distributed that [`PoolStats`] adds up.
#[derive(Debug, Default)]
pub struct Durations {
    /// Wait of each request for a server connection; most are zero.
    pub wait: Histogram,
    /// Duration of queries. A pipeline counts as one until its last reply.
    pub query: Histogram,
    /// Duration of transactions.
    pub transaction: Histogram,
}

/// The distributions of several threads, or of several pools, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Waits for a server connection.
    pub wait: Distribution,
    /// Duration of queries.
    pub query: Distribution,
    /// Duration of transactions.
    pub transaction: Distribution,
}

impl Spread {
    /// Adds another set.
    pub fn add(&mut self, other: &Self) {
        self.wait.add(&other.wait);
        self.query.add(&other.query);
        self.transaction.add(&other.transaction);
    }
}

impl PoolStats {
    /// The distributions at this moment.
    #[must_use]
    pub fn spread(&self) -> Spread {
        let Durations { wait, query, transaction } = &self.durations;
        Spread {
            wait: wait.distribution(self.wait_time.get()),
            query: query.distribution(self.query_time.get()),
            transaction: transaction.distribution(self.xact_time.get()),
        }
    }
}

/// Counters by database.
pub type Totals = BTreeMap<Arc<str>, PoolTotals>;

/// The counters of one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When they were read.
    pub at: Instant,
    /// The totals at that time.
    pub totals: Totals,
}

/// The last two samples, between which averages are taken.
#[derive(Debug)]
pub struct History {
    older: Sample,
    newer: Option<Sample>,
}

impl History {
    /// Begins at a moment when nothing was counted.
    #[must_use]
    pub fn new(at: Instant) -> Self {
        Self { older: Sample { at, totals: Totals::new() }, newer: None }
    }

    /// Ends a period.
    pub fn push(&mut self, sample: Sample) {
        if let Some(newer) = self.newer.replace(sample) {
            self.older = newer;
        }
    }

    /// The averages of the last full period; before the first has ended, of the time up to `now`.
    #[must_use]
    pub fn averages(&self, now: &Sample) -> Totals {
        let (end, elapsed) = self.end(now);
        let averages = end.totals.iter().map(|(database, totals)| {
            let before = self.older.totals.get(database).copied().unwrap_or_default();
            (database.clone(), totals.since(&before).averages(elapsed))
        });
        averages.collect()
    }

    /// The same for all databases together: a database counts for as much as was done in it.
    #[must_use]
    pub fn averages_of_all(&self, now: &Sample) -> PoolTotals {
        let (end, elapsed) = self.end(now);
        sum(&end.totals).since(&sum(&self.older.totals)).averages(elapsed)
    }

    /// The sample that ends the period, and the length of the period.
    fn end<'a>(&'a self, now: &'a Sample) -> (&'a Sample, Duration) {
        let end = self.newer.as_ref().unwrap_or(now);
        (end, end.at.saturating_duration_since(self.older.at))
    }
}

/// The counters of all databases together.
#[must_use]
pub fn sum(totals: &Totals) -> PoolTotals {
    let mut all = PoolTotals::default();
    totals.values().for_each(|counted| all.add(counted));
    all
}

impl PoolTotals {
    /// Counts and the wait per second; the times of transactions and queries per transaction and query.
    fn averages(&self, elapsed: Duration) -> Self {
        let micros = elapsed.as_micros().max(1);
        let per_second = self.each(|count| {
            let rate = u128::from(count) * 1_000_000 / micros;
            u64::try_from(rate).unwrap_or(u64::MAX)
        });
        Self {
            xact_time: self.xact_time / self.xact_count.max(1),
            query_time: self.query_time / self.query_count.max(1),
            ..per_second
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(start: Instant, seconds: u64, xact_count: u64) -> Sample {
        let counted = PoolTotals {
            xact_count,
            xact_time: xact_count * 250,
            wait_time: seconds * 1000,
            received_bytes: xact_count * 10,
            ..PoolTotals::default()
        };
        Sample { at: start + Duration::from_secs(seconds), totals: [("shop".into(), counted)].into() }
    }

    #[test]
    fn averages_cover_the_last_full_period() {
        let start = Instant::now();
        let mut history = History::new(start);
        let average = |history: &History, now: &Sample| history.averages(now)["shop"];
        let first = average(&history, &sample(start, 10, 1000));
        assert_eq!((first.xact_count, first.xact_time, first.received_bytes), (100, 250, 1000));
        history.push(sample(start, 60, 12_000));
        assert_eq!(average(&history, &sample(start, 70, 999_000)).xact_count, 200);
        history.push(sample(start, 120, 18_000));
        assert_eq!(
            history.averages_of_all(&sample(start, 130, 999_000)),
            history.averages(&sample(start, 130, 0))["shop"]
        );
        let last = average(&history, &sample(start, 130, 999_000));
        assert_eq!((last.xact_count, last.wait_time), (100, 1000));
    }

    #[test]
    fn nothing_counted_in_no_time_is_zero() {
        let start = Instant::now();
        let history = History::new(start);
        assert_eq!(history.averages(&sample(start, 0, 0))["shop"], PoolTotals::default());
    }
}
