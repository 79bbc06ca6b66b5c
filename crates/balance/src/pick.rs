//! What one call wants of a pick.

use std::fmt;
use std::time::Instant;

use crate::endpoint::{Endpoint, EndpointId};

/// May an endpoint serve this call?
pub type Filter<'a, T> = &'a (dyn Fn(&Endpoint<T>) -> bool + Sync);

/// What one call wants of a pick. Made anew for each; holds nothing but references.
pub struct Pick<'a, T> {
    pub(crate) wants: Wants,
    pub(crate) tried: &'a [EndpointId],
    pub(crate) filter: Option<Filter<'a, T>>,
}

/// What a policy may look at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wants {
    pub(crate) now: Option<Instant>,
    pub(crate) hash: Option<u64>,
}

impl<'a, T> Pick<'a, T> {
    /// Any endpoint.
    pub fn new() -> Self {
        Self { wants: Wants::default(), tried: &[], filter: None }
    }

    /// The time. Without it a lease measures no latency, and the decay of latencies stands still. A time that was read
    /// once for a batch of calls will do.
    #[must_use]
    pub fn at(mut self, now: Instant) -> Self {
        self.wants.now = Some(now);
        self
    }

    /// What [`RingHash`](crate::RingHash) chooses by; without it, at random. See [`hash_of`](crate::hash_of).
    #[must_use]
    pub fn hash(mut self, hash: u64) -> Self {
        self.wants.hash = Some(hash);
        self
    }

    /// Endpoints that this call has tried already. They are chosen only if there is no other, of whatever
    /// [tier](crate::Spec::tier).
    #[must_use]
    pub fn tried(mut self, tried: &'a [EndpointId]) -> Self {
        self.tried = tried;
        self
    }

    /// Endpoints that may serve this call; a role, a bound on lag. Unlike `tried`, it is never overruled. If it allows
    /// nobody of the [tier](crate::Spec::tier) that serves, the next tiers are asked. Picks with different filters are
    /// spread most evenly from [`Picker`](crate::Picker)s of their own.
    #[must_use]
    pub fn filter(mut self, filter: Filter<'a, T>) -> Self {
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

    /// The same, but who was tried may be tried again.
    pub(crate) fn retry(&self) -> Self {
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
        f.debug_struct("Pick").field("hash", &self.wants.hash).field("tried", &self.tried).finish_non_exhaustive()
    }
}
