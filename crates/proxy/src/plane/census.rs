//! Counters of all threads, added up.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use tidegate_config::AdminConfig;
use tidegate_stats::{Sample, Spread, Totals};

use super::{ConsoleCounts, Statistics, Worker, Workers};

impl Workers {
    /// Counters since the start, by database, with those of the console.
    pub async fn totals(&self, console: &ConsoleCounts) -> Totals {
        let mut totals = Totals::new();
        for (database, counted) in self.ask_all(Worker::totals).await.into_iter().flatten() {
            totals.entry(database).or_default().add(&counted);
        }
        totals.insert(AdminConfig::DISPLAY_NAME.into(), console.totals());
        totals
    }

    /// Durations since the start, by database.
    pub async fn spreads(&self) -> BTreeMap<Arc<str>, Spread> {
        let mut spreads = BTreeMap::<_, Spread>::new();
        for (database, counted) in self.ask_all(Worker::spreads).await.into_iter().flatten() {
            spreads.entry(database).or_default().add(&counted);
        }
        spreads
    }

    /// Stores the current totals for averages.
    pub async fn sample(&self, statistics: &Statistics) {
        let totals = self.totals(&statistics.console).await;
        statistics.push(Sample { at: Instant::now(), totals });
    }
}
