//! One of those to choose from: its identity, the caller's value for it, and its load.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use crate::balancer::Shared;
use crate::load::Load;
use crate::slot::Drained;

/// Why an endpoint cannot be used, shared by everybody who is told.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// What an endpoint is known by: two with the same key are the same. Usually `address:port`; another port is another
/// endpoint, and so is another scope of a link-local address.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// A key of any text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<SocketAddr> for Key {
    fn from(address: SocketAddr) -> Self {
        Self(address.to_string().into())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A name for an endpoint within its balancer, never used twice: an endpoint that is removed and added again later has
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub(crate) u64);

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the caller says of an endpoint when it [updates](crate::Balancer::update) the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its identity.
    pub key: Key,
    /// Its share, for policies that know weights. Zero: only if all others are zero, too.
    pub weight: u32,
    /// The lowest tier that has a usable endpoint serves alone, but for picks that none of it may serve: priorities of
    /// SRV records, zones.
    pub tier: u16,
}

impl Spec {
    /// Weight 1, tier 0.
    pub fn new(key: impl Into<Key>) -> Self {
        Self { key: key.into(), weight: 1, tier: 0 }
    }

    /// With another weight.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// With another tier.
    #[must_use]
    pub fn tier(mut self, tier: u16) -> Self {
        self.tier = tier;
        self
    }
}

/// One of those to choose from.
pub struct Endpoint<T> {
    pub(crate) id: EndpointId,
    pub(crate) key: Key,
    pub(crate) value: T,
    pub(crate) load: Load,
    /// Who ejects it when it fails too often in a row.
    pub(crate) owner: Weak<Shared<T>>,
}

impl<T> Endpoint<T> {
    /// Its name within the balancer.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Its identity.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What the caller made for it.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Its counters.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Waits until a removed endpoint may be closed.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again. Only one future at a time is woken.
    pub async fn drained(&self) -> Drained {
        std::future::poll_fn(|cx| self.poll_drained(cx)).await
    }

    /// Like [`drained`](Self::drained), for callers that poll.
    pub fn poll_drained(&self, cx: &Context<'_>) -> Poll<Drained> {
        self.load.slot.poll_drained(cx)
    }

    /// Ends a drain that takes too long: who still holds a lease is on its own, and the endpoint cannot be revived. If it
    /// was revived already, nothing happens.
    pub fn abandon(&self) -> Drained {
        self.load.slot.force()
    }
}

impl<T> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("id", &self.id.0).field("key", &self.key).finish_non_exhaustive()
    }
}
