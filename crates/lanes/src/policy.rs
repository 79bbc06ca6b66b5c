//! Ordering, retry and deadline policies of a subscription, as the shards read them.

use std::sync::Arc;
use std::time::Duration;

use crate::failure::{ExhaustedAction, OverdueAction, RecordRetryPolicy};

/// The order of records without a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum KeylessOrder {
    /// Unordered: each record starts as soon as a permit is free. The default, as keyless records have no order in Kafka.
    #[default]
    Unordered,
    /// All keyless records of a lane are processed in order, as if they had one key.
    PerLane,
}

/// How many records of one key may start within a time window. Further records of that key wait; other keys do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Starts per window, at least 1.
    pub records: u16,
    /// The length of a window. A window opens with a start, and the next window with the first start after it.
    pub window: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct SubscriptionPolicy {
    pub(crate) subscription: Arc<str>,
    pub(crate) retry: RecordRetryPolicy,
    pub(crate) exhausted: ExhaustedAction,
    pub(crate) deadline: Duration,
    pub(crate) overdue: OverdueAction,
    pub(crate) keyless: KeylessOrder,
    pub(crate) quota: Option<Quota>,
    pub(crate) compact: bool,
    pub(crate) batch_max: usize,
    /// Whether a batch may have records of several keys of a lane.
    pub(crate) batches_across_keys: bool,
}

impl SubscriptionPolicy {
    pub(crate) fn new(subscription: &str) -> Self {
        Self {
            subscription: subscription.into(),
            retry: RecordRetryPolicy::default(),
            exhausted: ExhaustedAction::default(),
            deadline: Duration::from_secs(300),
            overdue: OverdueAction::default(),
            keyless: KeylessOrder::default(),
            quota: None,
            compact: false,
            batch_max: 1,
            batches_across_keys: false,
        }
    }

    /// Whether [`Bounds::ready_max`](crate::Bounds::ready_max) applies. Batches and compaction need many queued records
    /// per key.
    pub(crate) fn limits_ready_keys(&self) -> bool {
        self.batch_max == 1 && !self.compact
    }
}
