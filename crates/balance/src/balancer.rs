//! The balancer: its owner changes the set, and any thread picks from it.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Instant;

use tidegate_backoff::instant_after;

use crate::endpoint::{Endpoint, EndpointId, EndpointKey, EndpointSpec, FailureObserver, SharedError};
use crate::endpoint_record::{ConnectivityState, EndpointStatus};
use crate::error::PickError;
use crate::lease::EndpointLease;
use crate::membership::{SnapshotChange, UpdateSummary};
use crate::outlier::OutlierDetection;
use crate::pick::Pick;
use crate::policy::Policy;
use crate::published::Published;
use crate::settings::BalancerSettings;
use crate::shared::BalancerShared;
use crate::snapshot::Snapshot;
use crate::sync::lock;
use crate::thread_cache::{self, ThreadCaches};
use crate::waiters::Waiters;

/// A set of endpoints to pick from, each with a value `T` of the caller. Cloning is cheap; all clones share the set.
///
/// One owner changes the set: [`update`](Self::update), [`mark_ready`](Self::mark_ready), [`mark_failed`](Self::mark_failed),
/// [`tick`](Self::tick), [`take_departed`](Self::take_departed). These methods take a short lock and do not wait. All other
/// users pick.
pub struct Balancer<T: Send + Sync + 'static>(Arc<BalancerInner<T>>);

/// Aligned away from the counts of its `Arc`, which every clone and drop of a balancer writes.
#[repr(align(128))]
struct BalancerInner<T: Send + Sync + 'static> {
    shared: Arc<BalancerShared<T>>,
    caches: ThreadCaches<T>,
}

/// How long a pick without an endpoint waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// Waits for the first result: while the set is unknown, or the first connects are in progress. An empty set is an error.
    #[default]
    FailFast,
    /// Waits until an endpoint is ready, regardless of failures.
    WaitForReady,
}

/// Counters of a balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalancerCounters {
    /// Number of published snapshots. An update without changes publishes none.
    pub publications: u64,
    /// Number of tables that a policy failed to build, or panicked over. The previous table stayed in use.
    pub policy_failures: u64,
    /// Number of callers that wait for an endpoint.
    pub waiting: usize,
}

impl<T: Send + Sync + 'static> Balancer<T> {
    /// Creates a balancer with an unknown set. `seed` is for its random decisions.
    pub fn new(policy: impl Policy, settings: BalancerSettings, seed: u64, now: Instant) -> Self {
        Self::with_policy(Arc::new(policy), settings, seed, now)
    }

    /// Like [`new`](Self::new), with a policy that is chosen at run time.
    pub fn with_policy(policy: Arc<dyn Policy>, settings: BalancerSettings, seed: u64, now: Instant) -> Self {
        let shared = Arc::new(BalancerShared::new(policy, settings, seed, now));
        Self(Arc::new(BalancerInner { shared, caches: ThreadCaches::new() }))
    }

    #[inline]
    fn shared(&self) -> &BalancerShared<T> {
        &self.0.shared
    }

    #[inline]
    pub(crate) fn published(&self) -> &Published<Snapshot<T>> {
        &self.0.shared.published
    }

    /// Replaces the set.
    ///
    /// `make` creates the value of each new endpoint. An endpoint whose key is in both sets keeps its value and state. An
    /// endpoint that is not in the new set is removed as soon as others are ready, or after
    /// [`BalancerSettings::replace_timeout`]. The first of duplicate keys counts. The same set again changes nothing. An empty
    /// set removes all endpoints; if the set could not be resolved, call [`resolve_failed`](Self::resolve_failed) instead.
    ///
    /// `make` runs under the lock of the set: of this balancer, it may only pick.
    pub fn update(
        &self,
        now: Instant,
        set: impl IntoIterator<Item = EndpointSpec>,
        make: impl FnMut(&EndpointSpec, EndpointId) -> T,
    ) -> UpdateSummary<T> {
        let specs = set.into_iter().collect();
        let shared: Weak<BalancerShared<T>> = Arc::downgrade(&self.0.shared);
        let observer: Weak<dyn FailureObserver> = shared;
        self.shared().change(Some(now), |membership| membership.update(specs, &observer, make))
    }

    /// A connect to the endpoint is in progress.
    pub fn mark_connecting(&self, id: EndpointId) {
        self.shared().change(None, |membership| ((), membership.set_state(id, ConnectivityState::Connecting)));
    }

    /// The endpoint can be picked from now on.
    pub fn mark_ready(&self, id: EndpointId, now: Instant) {
        self.shared().change(Some(now), |membership| ((), membership.set_state(id, ConnectivityState::Ready)));
    }

    /// The endpoint is not connected and no connect is in progress: it is neither picked nor counted as failed.
    pub fn mark_idle(&self, id: EndpointId) {
        self.shared().change(None, |membership| ((), membership.set_state(id, ConnectivityState::Idle)));
    }

    /// The connection was lost and a new connect is in progress. The endpoint is not picked any more, but it has not failed yet:
    /// [`WaitMode::FailFast`] waits for it.
    pub fn mark_lost(&self, id: EndpointId, cause: SharedError) {
        self.shared().change(None, |membership| ((), membership.mark_lost(id, cause)));
    }

    /// Like [`mark_lost`](Self::mark_lost), if the endpoint is ready. For callers whose information can be older than the
    /// owner's.
    pub fn mark_lost_if_ready(&self, id: EndpointId, cause: SharedError) {
        self.shared().change(None, |membership| {
            let is_ready = membership.find(id).is_some_and(|record| record.is_ready());
            ((), if is_ready { membership.mark_lost(id, cause) } else { SnapshotChange::None })
        });
    }

    /// The connect failed, or the endpoint must not be used: it is not picked any more. Returns when the next connect is due;
    /// `None` if the endpoint is not in the set.
    pub fn mark_failed(&self, id: EndpointId, now: Instant, cause: SharedError) -> Option<Instant> {
        self.shared().change(Some(now), |membership| membership.mark_failed(id, cause, 1))
    }

    /// Like [`mark_failed`](Self::mark_failed), for an endpoint that has failed at least `failures` times in a row although it
    /// was ready in between.
    pub fn mark_failed_repeatedly(
        &self,
        id: EndpointId,
        now: Instant,
        cause: SharedError,
        failures: u32,
    ) -> Option<Instant> {
        self.shared().change(Some(now), |membership| membership.mark_failed(id, cause, failures))
    }

    /// Changes the weight of an endpoint between updates.
    pub fn set_weight(&self, key: &EndpointKey, weight: u32) {
        self.shared().change(None, |membership| ((), membership.set_weight(key, weight)));
    }

    /// The set could not be resolved. A known set stays in use. While it is unknown, [`WaitMode::FailFast`] returns this error.
    pub fn resolve_failed(&self, cause: SharedError) {
        self.shared().change(None, |membership| {
            membership.resolve_error = Some(cause);
            ((), SnapshotChange::when(membership.present.is_empty()))
        });
    }

    /// Removes all endpoints: the set is too old to be used, and no newer one is known.
    pub fn discard_set(&self, now: Instant) {
        self.shared().change(Some(now), |membership| ((), membership.discard()));
    }

    /// Replaces the policy. Picks and leases in progress are not affected.
    pub fn set_policy(&self, policy: Arc<dyn Policy>) {
        let previous = self
            .shared()
            .change(None, |membership| (std::mem::replace(&mut membership.policy, policy), SnapshotChange::Publish));
        drop(previous);
    }

    /// Replaces the rules of outlier detection; `None` disables it.
    pub fn set_outlier_detection(&self, rules: Option<OutlierDetection>) {
        let failure_streak_max = rules.map_or(0, |rules| rules.consecutive_failures);
        self.shared().failure_streak_max.store(failure_streak_max, Ordering::Relaxed);
        self.shared().change(None, |membership| {
            membership.outlier_detection = rules;
            membership.interval_ends = instant_after(membership.now, rules.unwrap_or_default().interval_bounded());
            // A publication, so that the caller of `tick` learns the new interval.
            ((), SnapshotChange::Publish)
        });
    }

    /// Applies changes that are due by time. Returns when to call it again; `None`: after the next [change](Self::changed).
    pub fn tick(&self, now: Instant) -> Option<Instant> {
        self.shared().change(Some(now), |membership| ((), membership.tick()));
        lock(&self.shared().membership).next_tick()
    }

    /// Returns the endpoints that went out of use since the last call. Wait until each is [drained](Endpoint::drained), then
    /// close it. Must be called after every change. An endpoint that is dropped instead is new when it is added again.
    pub fn take_departed(&self) -> Vec<Arc<Endpoint<T>>> {
        lock(&self.shared().membership).take_departed()
    }

    /// Closes the balancer: picks fail from now on, and all endpoints [depart](Self::take_departed).
    pub fn close(&self) {
        self.shared().change(None, |membership| {
            membership.close();
            ((), SnapshotChange::Publish)
        });
    }

    /// Returns whether the balancer was closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.shared().membership).closed
    }

    /// Picks an endpoint and calls `f` with it, on any thread, without a lock, a write to shared memory, or a reference count. A
    /// pick inside `f` works, but does not continue the turn of this thread.
    ///
    /// # Errors
    ///
    /// [`PickError`], if there is no endpoint to pick.
    #[inline]
    pub fn pick_with<R>(&self, pick: &Pick<'_, T>, f: impl FnOnce(&Endpoint<T>) -> R) -> Result<R, PickError> {
        let (published, caches) = (self.published(), &self.0.caches);
        let Some(mut cached) = thread_cache::of_this_thread(caches) else {
            let picked = thread_cache::create_or_temporary(published, caches, |cached| cached.pick(pick).cloned());
            return picked.map(|endpoint| f(&endpoint));
        };
        cached.refresh(published);
        if let Some(endpoint) = cached.pick_in_turn(pick) {
            let result = f(endpoint);
            // Before the result is wrapped, which would otherwise be copied through memory as large as an error.
            drop(cached);
            return Ok(result);
        }
        match cached.pick_by_table(pick) {
            Ok(endpoint) => Ok(f(endpoint)),
            Err(error) => Err(error),
        }
    }

    /// Picks an endpoint on any thread, and owns it until the lease ends.
    ///
    /// # Errors
    ///
    /// [`PickError`], if there is no endpoint to pick.
    #[inline]
    pub fn pick(&self, pick: &Pick<'_, T>) -> Result<EndpointLease<T>, PickError> {
        let (published, caches) = (self.published(), &self.0.caches);
        match thread_cache::of_this_thread(caches) {
            Some(mut cached) => cached.lease(published, pick),
            None => thread_cache::create_or_temporary(published, caches, |cached| cached.lease(published, pick)),
        }
    }

    /// Waits for an endpoint to pick. It has no timeout: the caller sets a deadline.
    ///
    /// # Errors
    ///
    /// - [`PickError::Closed`], if the balancer is closed.
    /// - [`PickError::TooManyWaiters`], if [`BalancerSettings::waiters_max`] callers wait already.
    /// - With [`WaitMode::FailFast`]: [`PickError::Empty`], [`PickError::NotReady`] or [`PickError::NoMatch`].
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping it leaves the list of waiting callers.
    pub async fn pick_ready(&self, pick: &Pick<'_, T>, mode: WaitMode) -> Result<EndpointLease<T>, PickError> {
        let mut guard = WaiterGuard { waiters: &self.shared().waiters, ticket: None };
        poll_fn(|cx| {
            if let Some(result) = self.pick_or_wait(pick, mode) {
                return Poll::Ready(result);
            }
            if let Err(waiting) = guard.waiters.join(&mut guard.ticket, cx.waker()) {
                return Poll::Ready(Err(PickError::TooManyWaiters { waiting }));
            }
            // Joined first and checked again: a publication in between finds the waker, or is seen here.
            self.pick_or_wait(pick, mode).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// `None`: the caller must wait.
    fn pick_or_wait(&self, pick: &Pick<'_, T>, mode: WaitMode) -> Option<Result<EndpointLease<T>, PickError>> {
        match (self.pick(pick), mode) {
            (Err(PickError::Empty), WaitMode::FailFast) if self.is_known_empty() => Some(Err(PickError::Empty)),
            (Err(PickError::Empty | PickError::NotReady { cause: None, .. }), _) => None,
            (Err(PickError::NotReady { .. } | PickError::NoMatch { .. }), WaitMode::WaitForReady) => None,
            (result, _) => Some(result),
        }
    }

    /// Asks the membership, because the snapshot of the pick can be older.
    fn is_known_empty(&self) -> bool {
        let membership = lock(&self.shared().membership);
        membership.known && membership.present.is_empty()
    }

    /// Version of the current snapshot. It grows with every publication, by one or more.
    pub fn version(&self) -> u64 {
        self.published().version()
    }

    /// Waits until the version differs from `seen`, and returns it.
    ///
    /// # Cancel safety
    ///
    /// Safe: it can be dropped and called again.
    pub async fn changed(&self, seen: u64) -> u64 {
        let mut guard = WaiterGuard { waiters: &self.shared().watchers, ticket: None };
        poll_fn(|cx| {
            // Never fails: this list has no limit.
            let _ = guard.waiters.join(&mut guard.ticket, cx.waker());
            let version = self.version();
            if version == seen { Poll::Pending } else { Poll::Ready(version) }
        })
        .await
    }

    /// State of every endpoint, removed ones included until they are closed.
    pub fn status(&self) -> Vec<EndpointStatus> {
        let membership = lock(&self.shared().membership);
        let present = membership.present.iter().map(|record| record.status(false));
        // Closed endpoints stay in the list until the next change.
        let departing = membership.departing.iter().filter(|record| !record.is_over());
        present.chain(departing.map(|record| record.status(true))).collect()
    }

    /// Every endpoint of the set.
    pub fn endpoints(&self) -> Vec<Arc<Endpoint<T>>> {
        let membership = lock(&self.shared().membership);
        let present = membership.present.iter().filter(|record| record.leaving.is_none());
        present.map(|record| Arc::clone(&record.endpoint)).collect()
    }

    /// Endpoints of the set with their states, in the order in which to connect to them.
    pub fn connect_order(&self) -> Vec<(EndpointId, ConnectivityState)> {
        let membership = lock(&self.shared().membership);
        let mut records: Vec<_> = membership.present.iter().filter(|record| record.leaving.is_none()).collect();
        records.sort_by_key(|record| (record.tier, record.rank));
        records.into_iter().map(|record| (record.endpoint.id, record.state)).collect()
    }

    /// The policy in use.
    pub fn policy(&self) -> Arc<dyn Policy> {
        Arc::clone(&lock(&self.shared().membership).policy)
    }

    /// Counters.
    pub fn counters(&self) -> BalancerCounters {
        BalancerCounters {
            publications: self.shared().publications.load(Ordering::Relaxed),
            policy_failures: self.shared().policy_failures.load(Ordering::Relaxed),
            waiting: self.shared().waiters.len(),
        }
    }

    /// Creates a handle that does not keep the balancer alive.
    pub fn downgrade(&self) -> WeakBalancer<T> {
        WeakBalancer(Arc::downgrade(&self.0))
    }
}

/// A handle to a [`Balancer`] that does not keep it alive.
pub struct WeakBalancer<T: Send + Sync + 'static>(Weak<BalancerInner<T>>);

impl<T: Send + Sync + 'static> WeakBalancer<T> {
    /// Returns the balancer, if it is alive.
    pub fn upgrade(&self) -> Option<Balancer<T>> {
        self.0.upgrade().map(Balancer)
    }
}

impl<T: Send + Sync + 'static> Clone for WeakBalancer<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for WeakBalancer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakBalancer")
    }
}

impl<T: Send + Sync + 'static> Clone for Balancer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Balancer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balancer").field("version", &self.version()).finish_non_exhaustive()
    }
}

/// Leaves a list of waiters when it is dropped.
struct WaiterGuard<'a> {
    waiters: &'a Waiters,
    ticket: Option<u64>,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.waiters.leave(ticket);
        }
    }
}
