//! A reader's copy of the snapshot, and its state between picks.

use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::error::PickError;
use crate::lease::EndpointLease;
use crate::pick::Pick;
use crate::policy::PickState;
use crate::published::Published;
use crate::snapshot::{EndpointList, Snapshot};

/// A reader's copy of the snapshot, and its state between picks. One for each [`Picker`](crate::Picker), and one for each thread
/// that picks through a [`Balancer`](crate::Balancer).
pub(crate) struct CachedSnapshot<T> {
    pub(crate) version: u64,
    /// See [`Snapshot::round_robin`].
    round_robin: EndpointList<T>,
    snapshot: Arc<Snapshot<T>>,
    state: PickState,
}

impl<T: Send + Sync + 'static> CachedSnapshot<T> {
    pub(crate) fn new(published: &Published<Snapshot<T>>, seed: u64) -> Self {
        let (version, snapshot) = published.read();
        let mut state = PickState::new(seed);
        state.cursor = random_cursor(&snapshot, &mut state);
        Self { version, round_robin: snapshot.round_robin.clone(), snapshot, state }
    }

    /// Copies the current snapshot, if there is a new one.
    #[inline]
    pub(crate) fn refresh(&mut self, published: &Published<Snapshot<T>>) {
        if self.version != published.version() {
            self.copy(published);
        }
    }

    #[cold]
    #[inline(never)]
    fn copy(&mut self, published: &Published<Snapshot<T>>) {
        let (version, snapshot) = published.read();
        let carried = snapshot.carry_cursor(&self.snapshot, self.state.cursor);
        self.state.cursor = carried.unwrap_or_else(|| random_cursor(&snapshot, &mut self.state));
        self.round_robin = snapshot.round_robin.clone();
        (self.version, self.snapshot) = (version, snapshot);
    }

    /// Fast path: picks in turn without a call to the table, whose arguments cost more than the pick. `None`: use
    /// [`pick_by_table`](Self::pick_by_table).
    #[inline]
    pub(crate) fn pick_in_turn(&mut self, pick: &Pick<'_, T>) -> Option<&Arc<Endpoint<T>>> {
        if pick.is_restricted() { None } else { self.state.next(&self.round_robin) }
    }

    #[inline]
    pub(crate) fn pick_by_table(&mut self, pick: &Pick<'_, T>) -> Result<&Arc<Endpoint<T>>, PickError> {
        self.snapshot.pick(pick, &mut self.state)
    }

    #[inline]
    pub(crate) fn pick(&mut self, pick: &Pick<'_, T>) -> Result<&Arc<Endpoint<T>>, PickError> {
        if !pick.is_restricted()
            && let Some(endpoint) = self.state.next(&self.round_robin)
        {
            return Ok(endpoint);
        }
        self.snapshot.pick(pick, &mut self.state)
    }

    /// Picks and leases an endpoint. A picked endpoint can begin to drain before the lease enters it; then the pick is repeated.
    /// The drain started after a snapshot without the endpoint was published, so one repetition is enough, unless the next
    /// endpoint drains as well.
    pub(crate) fn lease(
        &mut self,
        published: &Published<Snapshot<T>>,
        pick: &Pick<'_, T>,
    ) -> Result<EndpointLease<T>, PickError> {
        const ATTEMPTS: usize = 64;
        for _ in 0..ATTEMPTS {
            self.refresh(published);
            if let Some(lease) = EndpointLease::enter(self.pick(pick)?, pick.hints.now) {
                return Ok(lease);
            }
        }
        // Reached only if a failing policy keeps a snapshot in use whose endpoints mostly drain.
        self.lease_any(pick)
    }

    #[cold]
    fn lease_any(&self, pick: &Pick<'_, T>) -> Result<EndpointLease<T>, PickError> {
        let mut allowed = self.snapshot.all().filter(|endpoint| pick.without_tried().allows(endpoint));
        let lease = allowed.find_map(|endpoint| EndpointLease::enter(endpoint, pick.hints.now));
        lease.ok_or_else(|| PickError::NotReady { known: self.snapshot.known, cause: self.snapshot.cause.clone() })
    }
}

/// A new reader starts at a random endpoint: short-lived threads would otherwise use only the first one.
fn random_cursor<T>(snapshot: &Snapshot<T>, state: &mut PickState) -> usize {
    state.random.usize(..snapshot.ready.len().max(1))
}
