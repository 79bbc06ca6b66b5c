//! State of a balancer: the membership behind a lock, and the snapshot published from it.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use crate::endpoint::{EndpointId, FailureObserver};
use crate::membership::{Membership, SnapshotChange};
use crate::policy::{Candidates, PickState, PickTable, Policy};
use crate::published::Published;
use crate::selection::SelectedTier;
use crate::settings::BalancerSettings;
use crate::snapshot::{EndpointList, Snapshot, SnapshotTier};
use crate::sync::{Mutex, lock};
use crate::waiters::Waiters;

pub(crate) struct BalancerShared<T> {
    pub(crate) published: Published<Snapshot<T>>,
    /// Number of consecutive failures that ejects an endpoint; 0: none does.
    pub(crate) failure_streak_max: AtomicU32,
    /// Locked by the owner for each change, and by a caller whose endpoint failed too often in a row. Policies build tables under
    /// the lock; values are dropped outside of it.
    pub(crate) membership: Mutex<Membership<T>>,
    /// Callers that wait for an endpoint.
    pub(crate) waiters: Waiters,
    /// Callers that wait for a publication.
    pub(crate) watchers: Waiters,
    pub(crate) publications: AtomicU64,
    pub(crate) policy_failures: AtomicU64,
}

/// Versions of snapshots: one sequence for the process.
static NEXT_VERSION: AtomicU64 = AtomicU64::new(1);

fn next_version() -> u64 {
    NEXT_VERSION.fetch_add(1, Ordering::Relaxed)
}

impl<T> BalancerShared<T> {
    pub(crate) fn new(policy: Arc<dyn Policy>, settings: BalancerSettings, seed: u64, now: Instant) -> Self {
        let empty = Snapshot {
            ready: Arc::default(),
            round_robin: Arc::default(),
            table: Box::new(EmptyTable),
            lower_tiers: Box::default(),
            known: 0,
            cause: None,
            closed: false,
        };
        let failure_streak_max = settings.outlier_detection.map_or(0, |rules| rules.consecutive_failures);
        Self {
            published: Published::new(next_version(), Arc::new(empty)),
            failure_streak_max: AtomicU32::new(failure_streak_max),
            waiters: Waiters::new(settings.waiters_max),
            watchers: Waiters::new(usize::MAX),
            membership: Mutex::new(Membership::new(policy, settings, seed, now)),
            publications: AtomicU64::new(0),
            policy_failures: AtomicU64::new(0),
        }
    }

    /// Changes the membership, and publishes a snapshot if the change affects picks.
    pub(crate) fn change<R>(
        &self,
        now: Option<Instant>,
        change: impl FnOnce(&mut Membership<T>) -> (R, SnapshotChange),
    ) -> R {
        let mut membership = lock(&self.membership);
        if let Some(now) = now {
            membership.set_now(now);
        }
        let (result, change) = change(&mut membership);
        let previous = if change == SnapshotChange::Publish { self.publish(&mut membership) } else { None };
        let over = membership.take_over();
        drop(membership);
        if previous.is_some() {
            self.waiters.wake_all();
            self.watchers.wake_all();
        }
        // Each can hold the last reference to a value, whose drop is foreign code: dropped outside the lock.
        drop((previous, over));
        result
    }

    /// Publishes the current membership; removed endpoints depart only afterwards. Returns the previous snapshot; `None` if the
    /// policy failed.
    fn publish(&self, membership: &mut Membership<T>) -> Option<Arc<Snapshot<T>>> {
        let (_, previous) = self.published.read();
        membership.update_ramps();
        let selection = membership.select();
        // A closed balancer is published even if the policy fails.
        let built = if membership.closed {
            Some(empty_tiers())
        } else {
            build_tiers(&*membership.policy, selection.tiers, &previous)
        };
        let Some((is_round_robin, serving, lower_tiers)) = built else {
            self.policy_failures.fetch_add(1, Ordering::Relaxed);
            membership.publication_failed();
            return None;
        };
        let SnapshotTier { ready, table } = serving;
        let next = Snapshot {
            round_robin: if is_round_robin { Arc::clone(&ready) } else { Arc::default() },
            ready,
            table,
            lower_tiers,
            known: selection.known,
            cause: selection.cause,
            closed: membership.closed,
        };
        membership.published();
        let previous = self.published.publish(next_version(), Arc::new(next));
        self.publications.fetch_add(1, Ordering::Relaxed);
        membership.depart();
        Some(previous)
    }
}

impl<T: Send + Sync> FailureObserver for BalancerShared<T> {
    fn on_failure_streak(&self, id: EndpointId, streak: u32, now: Option<Instant>) {
        let limit = self.failure_streak_max.load(Ordering::Relaxed);
        // Every `limit`-th failure takes the lock: the endpoint may not be ejectable now, but later.
        if limit > 0 && streak.is_multiple_of(limit) {
            self.change(now, |membership| ((), membership.eject(id)));
        }
    }
}

/// Tiers with their tables: whether the serving tier is round robin, the serving tier, the lower tiers.
type BuiltTiers<T> = (bool, SnapshotTier<T>, Box<[SnapshotTier<T>]>);

/// Calls the policy for the tables of all tiers. `None`: it failed or panicked.
fn build_tiers<T>(policy: &dyn Policy, tiers: Vec<SelectedTier<T>>, previous: &Snapshot<T>) -> Option<BuiltTiers<T>> {
    let previous = std::iter::once(&previous.table).chain(previous.lower_tiers.iter().map(|tier| &tier.table));
    let previous = previous.map(|table| Some(&**table)).chain(std::iter::repeat(None));
    let tables = || {
        let tables = tiers.iter().zip(previous).map(|(tier, previous)| policy.table(&tier.members, previous));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        Ok::<_, Box<dyn Error + Send + Sync>>((tables.first().is_some_and(|table| table.is_round_robin()), tables))
    };
    let (is_round_robin, tables) = catch_unwind(AssertUnwindSafe(tables)).ok()?.ok()?;
    let ready = tiers.into_iter().map(|tier| EndpointList::from(tier.ready));
    let mut built = ready.zip(tables).map(|(ready, table)| SnapshotTier { ready, table });
    let serving = built.next()?;
    Some((is_round_robin, serving, built.collect()))
}

fn empty_tiers<T>() -> BuiltTiers<T> {
    (false, SnapshotTier { ready: Arc::default(), table: Box::new(EmptyTable) }, Box::default())
}

/// The table of an unknown or closed set.
struct EmptyTable;

impl PickTable for EmptyTable {
    fn pick(&self, _: &Candidates<'_>, _: &mut PickState) -> Option<usize> {
        None
    }
}
