//! Questions to all threads at once.

use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use super::{Gateway, lock};
use tidegate_config::Admin;

use crate::{
    plane::Worker,
    stats::{PoolTotals, Sample, Spread, Totals},
};

/// What the console counts of its own clients. They are few, so all threads count in one place.
#[derive(Debug, Default)]
pub struct ConsoleCounts {
    clients: AtomicUsize,
    logins: AtomicU64,
    queries: AtomicU64,
}

impl ConsoleCounts {
    /// A client has logged in.
    pub fn enter(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
        self.logins.fetch_add(1, Ordering::Relaxed);
    }

    /// A client has left.
    pub fn leave(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// A client has asked for something, if only for what there is not.
    pub fn note_query(&self) {
        self.queries.fetch_add(1, Ordering::Relaxed);
    }

    /// Its clients, who count among [`Gateway::clients`].
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// As in PgBouncer, each query is a transaction, and its bytes and its time are not counted.
    fn totals(&self) -> PoolTotals {
        let queries = self.queries.load(Ordering::Relaxed);
        PoolTotals {
            xact_count: queries,
            query_count: queries,
            client_login_count: self.logins.load(Ordering::Relaxed),
            ..PoolTotals::default()
        }
    }
}

impl Gateway {
    /// Asks every thread the same question, between two of its tasks. Threads that have ended do not answer.
    ///
    /// # Cancel safety
    /// Safe: the answers are dropped.
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

    /// What was counted since the start, by database; the console is one.
    pub async fn totals(&self) -> Totals {
        let mut totals = Totals::new();
        for (database, counted) in self.ask_all(Worker::totals).await.into_iter().flatten() {
            totals.entry(database).or_default().add(&counted);
        }
        totals.insert(Admin::SHOWN.into(), self.console.totals());
        totals
    }

    /// How long things took since the start, by database.
    pub async fn spreads(&self) -> BTreeMap<Arc<str>, Spread> {
        let mut spreads = BTreeMap::<_, Spread>::new();
        for (database, counted) in self.ask_all(Worker::spreads).await.into_iter().flatten() {
            spreads.entry(database).or_default().add(&counted);
        }
        spreads
    }

    /// Keeps the totals of this moment, for averages.
    pub async fn sample(&self) {
        let sample = Sample { at: Instant::now(), totals: self.totals().await };
        lock(&self.history).push(sample);
    }

    /// The averages of the last full period, or since the start before there is one; `now` is the present moment.
    #[must_use]
    pub fn averages(&self, now: &Sample) -> Totals {
        lock(&self.history).averages(now)
    }

    /// The same for all databases together.
    #[must_use]
    pub fn averages_of_all(&self, now: &Sample) -> PoolTotals {
        lock(&self.history).averages_of_all(now)
    }
}
