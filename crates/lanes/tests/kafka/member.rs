//! A running subscription as a group member.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_lanes::source::kafka::{KafkaSource, PartitionMap};
use tidegate_lanes::{
    AsyncTasks, Delivery, RunError, Subscription, SubscriptionBuilder, SubscriptionCounters, SubscriptionHandle,
    SubscriptionMetrics,
};
use tokio::task::JoinHandle;

use crate::audit::{Audit, MemberNumber};
use crate::fixtures::LIMIT;

pub(crate) struct GroupMember {
    pub(crate) handle: SubscriptionHandle,
    task: JoinHandle<Result<SubscriptionCounters, RunError>>,
}

impl GroupMember {
    /// A member with its own handler, which also receives the partition map.
    pub(crate) fn with<H, F>(
        source: KafkaSource,
        build: impl FnOnce(SubscriptionBuilder<KafkaSource, AsyncTasks>) -> SubscriptionBuilder<KafkaSource, AsyncTasks>,
        handler: H,
    ) -> Self
    where
        H: Fn(Delivery, PartitionMap) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let theirs = source.partition_map();
        let builder = Subscription::builder("test").source(source).commit_every(Duration::from_millis(20));
        let subscription = build(builder).handler(move |delivery| handler(delivery, theirs.clone())).unwrap();
        let handle = subscription.handle();
        Self { handle, task: tokio::spawn(subscription.run()) }
    }

    /// A member that reports to the audit and works for a while per record.
    pub(crate) fn audited(source: KafkaSource, number: MemberNumber, audit: &Arc<Audit>, work: Duration) -> Self {
        Self::audited_as(source, |builder| builder, number, audit, work)
    }

    /// Like [`audited`](Self::audited), with further settings.
    pub(crate) fn audited_as(
        source: KafkaSource,
        build: impl FnOnce(SubscriptionBuilder<KafkaSource, AsyncTasks>) -> SubscriptionBuilder<KafkaSource, AsyncTasks>,
        number: MemberNumber,
        audit: &Arc<Audit>,
        work: Duration,
    ) -> Self {
        let audit = Arc::clone(audit);
        Self::with(source, build, move |delivery, partition_map| {
            let audit = Arc::clone(&audit);
            async move {
                audit.begin(number, &delivery.record);
                if !work.is_zero() {
                    tokio::time::sleep(work).await;
                }
                audit.end(number, &delivery.record, &partition_map, true);
                delivery.finish();
            }
        })
    }

    pub(crate) fn metrics(&self) -> SubscriptionMetrics {
        self.handle.metrics()
    }

    /// The names of the assigned lanes.
    pub(crate) fn lanes(&self) -> Vec<String> {
        self.metrics().lanes.into_iter().map(|lane| lane.name).collect()
    }

    /// Stops the member.
    pub(crate) async fn stop(self) -> SubscriptionCounters {
        self.stop_within(Duration::from_secs(20)).await.unwrap()
    }

    pub(crate) async fn stop_within(self, within: Duration) -> Result<SubscriptionCounters, RunError> {
        self.handle.stop(within);
        self.ended().await
    }

    /// Waits until the member ends by itself.
    pub(crate) async fn ended(self) -> Result<SubscriptionCounters, RunError> {
        tokio::time::timeout(LIMIT, self.task).await.expect("member did not end").unwrap()
    }
}
