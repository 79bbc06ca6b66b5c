//! A subscription that runs, as one member of a group.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_lanes::source::kafka::{Kafka, Roster};
use tidegate_lanes::{Builder, Delivery, Handle, Metrics, RunError, Subscription, Tally, Tasks};
use tokio::task::JoinHandle;

use crate::audit::{Audit, MemberNumber};
use crate::world::LIMIT;

pub(crate) struct Member {
    pub(crate) handle: Handle,
    task: JoinHandle<Result<Tally, RunError>>,
}

impl Member {
    /// With a handler of its own; it gets the roster besides.
    pub(crate) fn with<H, F>(
        source: Kafka,
        build: impl FnOnce(Builder<Kafka, Tasks>) -> Builder<Kafka, Tasks>,
        handler: H,
    ) -> Self
    where
        H: Fn(Delivery, Roster) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let theirs = source.roster();
        let builder = Subscription::builder("test").source(source).commit_every(Duration::from_millis(20));
        let subscription = build(builder).handler(move |delivery| handler(delivery, theirs.clone())).unwrap();
        let handle = subscription.handle();
        Self { handle, task: tokio::spawn(subscription.run()) }
    }

    /// Tells the audit, and takes so long for each record.
    pub(crate) fn audited(source: Kafka, number: MemberNumber, audit: &Arc<Audit>, work: Duration) -> Self {
        Self::audited_as(source, |builder| builder, number, audit, work)
    }

    /// The same, built with more.
    pub(crate) fn audited_as(
        source: Kafka,
        build: impl FnOnce(Builder<Kafka, Tasks>) -> Builder<Kafka, Tasks>,
        number: MemberNumber,
        audit: &Arc<Audit>,
        work: Duration,
    ) -> Self {
        let audit = Arc::clone(audit);
        Self::with(source, build, move |delivery, roster| {
            let audit = Arc::clone(&audit);
            async move {
                audit.begin(number, &delivery.record);
                if !work.is_zero() {
                    tokio::time::sleep(work).await;
                }
                audit.end(number, &delivery.record, &roster, true);
                delivery.finish();
            }
        })
    }

    pub(crate) fn metrics(&self) -> Metrics {
        self.handle.metrics()
    }

    /// The names of the lanes that are its own.
    pub(crate) fn lanes(&self) -> Vec<String> {
        self.metrics().lanes.into_iter().map(|lane| lane.name).collect()
    }

    /// Ends it in order.
    pub(crate) async fn stop(self) -> Tally {
        self.stop_within(Duration::from_secs(20)).await.unwrap()
    }

    pub(crate) async fn stop_within(self, within: Duration) -> Result<Tally, RunError> {
        self.handle.stop(within);
        self.ended().await
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(self) -> Result<Tally, RunError> {
        tokio::time::timeout(LIMIT, self.task).await.expect("a member ends in time").unwrap()
    }
}
