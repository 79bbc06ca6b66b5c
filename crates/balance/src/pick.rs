//! Requirements of one call.

use std::fmt;
use std::time::Instant;

use crate::endpoint::{Endpoint, EndpointId};

/// Returns whether an endpoint may serve this call.
pub type EndpointFilter<'a, T> = &'a (dyn Fn(&Endpoint<T>) -> bool + Sync);

/// Requirements of one call. Created for each call; holds only references.
pub struct Pick<'a, T> {
    pub(crate) hints: PickHints,
    pub(crate) tried: &'a [EndpointId],
    pub(crate) filter: Option<EndpointFilter<'a, T>>,
}

/// The part of a pick that policies can see.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PickHints {
    pub(crate) now: Option<Instant>,
    pub(crate) hash: Option<u64>,
}

impl<'a, T> Pick<'a, T> {
    /// Any endpoint.
    pub fn new() -> Self {
        Self { hints: PickHints::default(), tried: &[], filter: None }
    }

    /// Sets the time. Without it a lease measures no latency, and latencies do not decay. One clock read may serve a batch of
    /// calls.
    #[must_use]
    pub fn at(mut self, now: Instant) -> Self {
        self.hints.now = Some(now);
        self
    }

    /// Sets the hash for [`RingHash`](crate::RingHash), which picks at random without it. See
    /// [`hash_bytes`](crate::hash_bytes).
    #[must_use]
    pub fn hash(mut self, hash: u64) -> Self {
        self.hints.hash = Some(hash);
        self
    }

    /// Excludes endpoints that this call has tried already, unless no other endpoint of any
    /// [tier](crate::EndpointSpec::tier) is left.
    #[must_use]
    pub fn tried(mut self, tried: &'a [EndpointId]) -> Self {
        self.tried = tried;
        self
    }

    /// Restricts the pick to the endpoints that `filter` allows, such as those of a role. Unlike `tried`, it always holds. If it
    /// allows no endpoint of the serving [tier](crate::EndpointSpec::tier), the next tiers are used. Calls with different
    /// filters are spread most evenly if each filter has its own [`Picker`](crate::Picker).
    #[must_use]
    pub fn filter(mut self, filter: EndpointFilter<'a, T>) -> Self {
        self.filter = Some(filter);
        self
    }

    #[inline]
    pub(crate) fn is_restricted(&self) -> bool {
        !self.tried.is_empty() || self.filter.is_some()
    }

    pub(crate) fn allows(&self, endpoint: &Endpoint<T>) -> bool {
        !self.tried.contains(&endpoint.id) && self.filter.is_none_or(|filter| filter(endpoint))
    }

    /// The same pick, with tried endpoints allowed.
    pub(crate) fn without_tried(&self) -> Self {
        Pick { tried: &[], ..*self }
    }
}

impl<T> Default for Pick<'_, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for Pick<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pick<'_, T> {}

impl<T> fmt::Debug for Pick<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pick").field("hash", &self.hints.hash).field("tried", &self.tried).finish_non_exhaustive()
    }
}
