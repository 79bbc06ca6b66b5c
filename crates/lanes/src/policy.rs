//! What a subscription was told about order, failure and time, as the shards read it.

use std::sync::Arc;
use std::time::Duration;

use crate::failure::{Exhausted, Overdue, Retry};

/// How records without a key are ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Keyless {
    /// Not at all: each runs as soon as it may. The default, since it is what no key means to a broker.
    #[default]
    Unordered,
    /// As if all of a lane had one key.
    InLane,
}

/// How many records of one key may start within a window of time; more wait, and no other key with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Starts in one window, from 1.
    pub records: u16,
    /// The window begins with a start, and the next one with the first start after it.
    pub window: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) subscription: Arc<str>,
    pub(crate) retry: Retry,
    pub(crate) exhausted: Exhausted,
    pub(crate) deadline: Duration,
    pub(crate) overdue: Overdue,
    pub(crate) keyless: Keyless,
    pub(crate) quota: Option<Quota>,
    pub(crate) compact: bool,
    pub(crate) batch_max: usize,
}

impl Policy {
    pub(crate) fn new(subscription: &str) -> Self {
        Self {
            subscription: subscription.into(),
            retry: Retry::default(),
            exhausted: Exhausted::default(),
            deadline: Duration::from_secs(300),
            overdue: Overdue::default(),
            keyless: Keyless::default(),
            quota: None,
            compact: false,
            batch_max: 1,
        }
    }

    /// Nothing is gained by many waiting records of one key.
    pub(crate) fn wants_pace(&self) -> bool {
        self.batch_max == 1 && !self.compact
    }
}
