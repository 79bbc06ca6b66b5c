//! An endpoint: its identity, the caller's value for it, and its load.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use crate::in_flight::DrainOutcome;
use crate::load::EndpointLoad;

/// Why an endpoint or a set is not available, shared by all callers that get it.
pub type SharedError = Arc<dyn Error + Send + Sync>;

/// Identity of an endpoint: two endpoints with the same key are one. Usually `address:port`. Another port, or another scope
/// of a link-local address, is another endpoint.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointKey(Arc<str>);

impl EndpointKey {
    /// Creates a key from any text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for EndpointKey {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<SocketAddr> for EndpointKey {
    fn from(address: SocketAddr) -> Self {
        Self(address.to_string().into())
    }
}

impl fmt::Display for EndpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EndpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Number of an endpoint within its balancer. Numbers are not reused: an endpoint that was closed and is added again gets a
/// new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub(crate) u64);

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An endpoint in an [update](crate::Balancer::update).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    /// Identity.
    pub key: EndpointKey,
    /// Share of the picks, for weighted policies. An endpoint of weight 0 is picked only if all weights are 0.
    pub weight: u32,
    /// Priority, as of SRV records or zones: 0 is the highest. The first tier with a usable endpoint serves all picks that it
    /// allows.
    pub tier: u16,
}

impl EndpointSpec {
    /// Weight 1, tier 0.
    pub fn new(key: impl Into<EndpointKey>) -> Self {
        Self { key: key.into(), weight: 1, tier: 0 }
    }

    /// Sets the weight.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the tier.
    #[must_use]
    pub fn tier(mut self, tier: u16) -> Self {
        self.tier = tier;
        self
    }
}

/// Gets the runs of failures of an endpoint. A trait, so that endpoints do not depend on the balancer.
pub(crate) trait FailureObserver: Send + Sync {
    /// `streak` calls in a row have failed.
    fn on_failure_streak(&self, id: EndpointId, streak: u32, now: Option<Instant>);
}

/// An endpoint of a balancer.
pub struct Endpoint<T> {
    pub(crate) id: EndpointId,
    pub(crate) key: EndpointKey,
    pub(crate) value: T,
    pub(crate) load: EndpointLoad,
    /// Ejects the endpoint after too many consecutive failures.
    pub(crate) observer: Weak<dyn FailureObserver>,
}

impl<T> Endpoint<T> {
    /// Number within the balancer.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Identity.
    pub fn key(&self) -> &EndpointKey {
        &self.key
    }

    /// The value that the caller created for this endpoint.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Counters.
    pub fn load(&self) -> &EndpointLoad {
        &self.load
    }

    /// Waits until a removed endpoint can be closed.
    ///
    /// # Cancel safety
    ///
    /// Safe: it can be dropped and called again. Only the last caller is woken.
    pub async fn drained(&self) -> DrainOutcome {
        std::future::poll_fn(|cx| self.poll_drained(cx)).await
    }

    /// Like [`drained`](Self::drained), for callers that poll.
    pub fn poll_drained(&self, cx: &Context<'_>) -> Poll<DrainOutcome> {
        self.load.in_flight.poll_drained(cx)
    }

    /// Ends a drain before its leases have ended. The endpoint cannot be revived afterwards. Does nothing if it was revived
    /// already.
    pub fn abandon_drain(&self) -> DrainOutcome {
        self.load.in_flight.force_close()
    }
}

impl<T> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("id", &self.id.0).field("key", &self.key).finish_non_exhaustive()
    }
}
