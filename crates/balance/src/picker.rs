//! A reader of a balancer for one event loop.

use std::fmt;

use crate::balancer::Balancer;
use crate::cached_snapshot::CachedSnapshot;
use crate::endpoint::Endpoint;
use crate::error::PickError;
use crate::lease::EndpointLease;
use crate::pick::Pick;

/// A reader of a [`Balancer`], with its own copy of the snapshot and its own state between picks. For event loops that keep their
/// state themselves. Tasks on any thread pick through the [`Balancer`], which keeps such a copy for each thread.
pub struct Picker<T: Send + Sync + 'static> {
    balancer: Balancer<T>,
    cached: CachedSnapshot<T>,
}

impl<T: Send + Sync + 'static> Picker<T> {
    /// Creates a reader. `seed` is for its random decisions.
    pub fn new(balancer: &Balancer<T>, seed: u64) -> Self {
        let cached = CachedSnapshot::new(balancer.published(), seed);
        Self { balancer: balancer.clone(), cached }
    }

    /// Picks an endpoint and calls `f` with it, without a lock, a write to shared memory, or a reference count. The call does not
    /// count as in flight.
    ///
    /// # Errors
    ///
    /// [`PickError`], if there is no endpoint to pick.
    #[inline]
    pub fn pick_with<R>(&mut self, pick: &Pick<'_, T>, f: impl FnOnce(&Endpoint<T>) -> R) -> Result<R, PickError> {
        self.cached.refresh(self.balancer.published());
        if let Some(endpoint) = self.cached.pick_in_turn(pick) {
            return Ok(f(endpoint));
        }
        match self.cached.pick_by_table(pick) {
            Ok(endpoint) => Ok(f(endpoint)),
            Err(error) => Err(error),
        }
    }

    /// Picks an endpoint, and owns it until the lease ends.
    ///
    /// # Errors
    ///
    /// [`PickError`], if there is no endpoint to pick.
    #[inline]
    pub fn pick(&mut self, pick: &Pick<'_, T>) -> Result<EndpointLease<T>, PickError> {
        self.cached.lease(self.balancer.published(), pick)
    }

    /// The balancer of this reader.
    pub fn balancer(&self) -> &Balancer<T> {
        &self.balancer
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Picker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picker").field("version", &self.cached.version).finish_non_exhaustive()
    }
}
