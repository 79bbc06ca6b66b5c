//! Functions that run on all threads.

use std::{collections::BTreeMap, rc::Rc, sync::Arc, time::Instant};

use super::Gateway;
use tidegate_config::AdminConfig;

use crate::plane::Worker;
use tidegate_stats::{Sample, Spread, Totals};

impl Gateway {
    /// Runs a function on every thread between two of its tasks. Threads that have ended are left out.
    ///
    /// # Cancel safety
    /// Safe: results are dropped.
    pub async fn ask_all<T: Send + 'static>(
        &self,
        question: impl Fn(&Rc<Worker>) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let asked: Vec<_> = self.workers().iter().map(|worker| worker.ask(question.clone())).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.extend(answer.await);
        }
        answers
    }

    /// Counters since the start, by database, the console included.
    pub async fn totals(&self) -> Totals {
        let mut totals = Totals::new();
        for (database, counted) in self.ask_all(Worker::totals).await.into_iter().flatten() {
            totals.entry(database).or_default().add(&counted);
        }
        totals.insert(AdminConfig::DISPLAY_NAME.into(), self.statistics.console.totals());
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
    pub async fn sample(&self) {
        let sample = Sample { at: Instant::now(), totals: self.totals().await };
        self.statistics.push(sample);
    }
}
