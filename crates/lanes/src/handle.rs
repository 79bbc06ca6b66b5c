//! Controls and observes a running subscription.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::bounds::Bounds;
use crate::messages::{IntakeCommand, ShardCommand};
use crate::metrics::SubscriptionMetrics;
use crate::thread_executor;
use crate::worker::SubscriptionContext;

/// Controls a running subscription. Clones control the same subscription; calls after its end have no effect.
#[derive(Clone)]
pub struct SubscriptionHandle {
    context: Arc<SubscriptionContext>,
}

impl SubscriptionHandle {
    pub(crate) fn new(context: Arc<SubscriptionContext>) -> Self {
        Self { context }
    }

    /// Stops the subscription: running handlers have `within` to end, then finished records are committed. A queued
    /// record still starts only if it precedes a started record of its lane, and only during the first half of that time;
    /// later records could not be committed. Among several stops and lane revocations, the earliest deadline applies.
    pub fn stop(&self, within: Duration) {
        self.send_to_intake(IntakeCommand::Stop(within));
    }

    /// Stops the subscription as if its source had ended: no more records are taken, all taken records are processed, and
    /// [`run`](crate::Subscription::run) returns the same result. A later [`stop`](Self::stop) sets a deadline.
    ///
    /// A `stop` alone drops queued records.
    pub fn finish(&self) {
        self.send_to_intake(IntakeCommand::Finish);
    }

    /// Changes the bounds. Records above a lowered bound are still processed.
    pub fn set_bounds(&self, bounds: Bounds) {
        self.send_to_intake(IntakeCommand::SetBounds(bounds));
    }

    /// Changes how many handlers may run at a time. With [`BlockingThreads`](crate::BlockingThreads) the number of
    /// threads is a further limit.
    pub fn set_concurrency(&self, concurrency: usize) {
        let permits = thread_executor::permits_for(concurrency, self.context.threads);
        self.context.limiter.set_limit(permits, |shard| self.context.notify_shard(shard));
    }

    /// Changes how many handler calls may start per second; 0 pauses the subscription, `None` removes the limit.
    /// A negative number and NaN count as 0.
    pub fn set_rate(&self, per_second: Option<f64>) {
        let now = self.context.clock.now();
        self.context.limiter.set_rate(per_second, now, |shard| self.context.notify_shard(shard));
    }

    /// Resumes the parked keys with this value, in all lanes. Their first record gets all of its attempts again.
    pub fn unpark(&self, key: &[u8]) {
        self.send_to_shards(|| ShardCommand::Unpark(Some(key.into())));
    }

    /// Resumes all parked keys.
    pub fn unpark_all(&self) {
        self.send_to_shards(|| ShardCommand::Unpark(None));
    }

    /// Returns counters and gauges as of the last turn of each component.
    #[must_use]
    pub fn metrics(&self) -> SubscriptionMetrics {
        self.context.metrics.read(self.context.clock.now(), self.context.limiter.in_use())
    }

    fn send_to_intake(&self, command: IntakeCommand) {
        self.context.intake.post(|mail| mail.commands.push(command));
    }

    fn send_to_shards(&self, command: impl Fn() -> ShardCommand) {
        for shard in &self.context.shards {
            shard.post(|mail| mail.commands.push(command()));
        }
    }
}

impl fmt::Debug for SubscriptionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriptionHandle")
            .field("subscription", &self.context.policy.subscription)
            .finish_non_exhaustive()
    }
}
