//! The set, for those who change it and for those who pick from it.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Instant;

use crate::endpoint::{Cause, Endpoint, EndpointId, Key, Spec};
use crate::error::PickError;
use crate::lease::Lease;
use crate::moment::after;
use crate::outlier::Outlier;
use crate::pick::Pick;
use crate::picker::Picker;
use crate::policy::{Local, Policy, Table, View};
use crate::published::Published;
use crate::roster::{Change, Equals, Roster, State, Status, Update};
use crate::settings::Settings;
use crate::snapshot::{Endpoints, Snapshot, Tier};
use crate::sync::{Mutex, lock};
use crate::thread::{self, Places};
use crate::wait::Waiters;

/// A set of endpoints to choose from, each with a value `T` of the caller's. Cheap to clone; all clones are one.
///
/// One owner changes the set: [`update`](Self::update), [`ready`](Self::ready), [`failed`](Self::failed),
/// [`tick`](Self::tick), [`departed`](Self::departed). These take a short lock and never wait. Everybody else picks.
pub struct Balancer<T: Send + Sync + 'static>(Arc<Whole<T>>);

/// Apart from the counts of its `Arc`, which are written whenever a balancer is cloned or dropped.
#[repr(align(128))]
struct Whole<T: Send + Sync + 'static> {
    shared: Arc<Shared<T>>,
    /// What threads keep of it.
    places: Places<T>,
}

pub(crate) struct Shared<T> {
    pub(crate) published: Published<Snapshot<T>>,
    /// Failures in a row that eject; 0: none do.
    streak_max: AtomicU32,
    /// Taken by the owner for each change, and by a caller whose endpoint failed too often in a row. Policies build
    /// tables under it, values are dropped outside of it.
    roster: Mutex<Roster<T>>,
    waiters: Waiters,
    watchers: Waiters,
    counters: Counts,
}

#[derive(Default)]
struct Counts {
    publications: AtomicU64,
    policy_failures: AtomicU64,
}

/// What a caller without an endpoint waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// Until it is known whether there is one: while nothing is known yet, or the first attempts to connect are under
    /// way. A set that is said to be empty has none.
    #[default]
    FailFast,
    /// Until there is one, whatever failed so far.
    WaitForReady,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Snapshots that were published. Updates that change nothing publish nothing.
    pub publications: u64,
    /// Tables that a policy failed to build, or panicked over; the one before stayed in use.
    pub policy_failures: u64,
    /// Callers that wait for an endpoint now.
    pub waiting: usize,
}

/// Numbers of snapshots, one sequence for the whole process.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

fn next_number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl<T: Send + Sync + 'static> Balancer<T> {
    /// An empty set. `seed` makes its random decisions repeatable.
    pub fn new(policy: impl Policy, settings: Settings, seed: u64, now: Instant) -> Self {
        Self::with_policy(Arc::new(policy), settings, seed, now)
    }

    /// Like [`new`](Self::new), with a policy that is chosen at run time.
    pub fn with_policy(policy: Arc<dyn Policy>, settings: Settings, seed: u64, now: Instant) -> Self {
        let empty = Snapshot {
            ready: Arc::default(),
            turning: Arc::default(),
            table: Box::new(Nobody),
            further: Box::default(),
            known: 0,
            cause: None,
            closed: false,
        };
        let shared = Arc::new(Shared {
            published: Published::new(next_number(), Arc::new(empty)),
            streak_max: AtomicU32::new(settings.outlier.map_or(0, |rules| rules.consecutive)),
            waiters: Waiters::new(settings.waiters_max),
            watchers: Waiters::new(usize::MAX),
            roster: Mutex::new(Roster::new(policy, settings, seed, now)),
            counters: Counts::default(),
        });
        Self(Arc::new(Whole { shared, places: Places::new() }))
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared<T> {
        &self.0.shared
    }

    /// Replaces the set. `make` makes the value of an endpoint that was not in it. Who is in it with the same key stays
    /// as it is; who is no longer in it leaves: if others are ready, at once, else when they are, or after
    /// [`Settings::replace_within`]. Of doubles the first counts. The same set again changes nothing. An empty set is one
    /// like others: all leave at once. Whoever could not find out what there is says [`unknown`](Self::unknown) instead.
    ///
    /// `make` runs while the set is locked: it must not ask the balancer for anything but picks.
    pub fn update(
        &self,
        now: Instant,
        set: impl IntoIterator<Item = Spec>,
        make: impl FnMut(&Spec, EndpointId) -> T,
    ) -> Update<T> {
        let specs = set.into_iter().collect();
        let owner = Arc::downgrade(&self.0.shared);
        self.shared().change(Some(now), |roster| roster.update(specs, &owner, make))
    }

    /// Somebody tries to connect to it.
    pub fn connecting(&self, id: EndpointId) {
        self.shared().change(None, |roster| ((), roster.set_state(id, State::Connecting)));
    }

    /// It can be chosen from now on.
    pub fn ready(&self, id: EndpointId, now: Instant) {
        self.shared().change(Some(now), |roster| ((), roster.set_state(id, State::Ready)));
    }

    /// It is not connected, and nobody tries: neither chosen nor failed.
    pub fn idle(&self, id: EndpointId) {
        self.shared().change(None, |roster| ((), roster.set_state(id, State::Idle)));
    }

    /// It was connected and is no more; somebody connects again. It is not chosen from the next pick on, but nothing
    /// failed yet: who fails fast still waits for it.
    pub fn lost(&self, id: EndpointId, cause: Cause) {
        self.shared().change(None, |roster| ((), roster.lose(id, cause)));
    }

    /// Like [`lost`](Self::lost), from a caller that may be late: what its owner has said since stands.
    #[cfg(feature = "tonic")]
    pub(crate) fn lost_if_ready(&self, id: EndpointId, cause: Cause) {
        self.shared().change(None, |roster| {
            let is_ready = roster.find(id).is_some_and(|entry| entry.is_ready());
            ((), if is_ready { roster.lose(id, cause) } else { Change::None })
        });
    }

    /// It could not be connected, or must not be used: it is not chosen from the next pick on. Returns when it is to be
    /// tried again, or `None` if it is not known any more.
    pub fn failed(&self, id: EndpointId, now: Instant, cause: Cause) -> Option<Instant> {
        self.shared().change(Some(now), |roster| roster.fail(id, cause, 1))
    }

    /// Like [`failed`](Self::failed), of one that failed so often in a row, at least, although it was ready in between.
    #[cfg(feature = "tonic")]
    pub(crate) fn failed_often(&self, id: EndpointId, now: Instant, cause: Cause, times: u32) -> Option<Instant> {
        self.shared().change(Some(now), |roster| roster.fail(id, cause, times))
    }

    /// The set is too old to be used, and no other is known.
    #[cfg(feature = "tonic")]
    pub(crate) fn forget(&self, now: Instant) {
        self.shared().change(Some(now), |roster| ((), roster.forget()));
    }

    /// Changes a weight between updates.
    pub fn set_weight(&self, key: &Key, weight: u32) {
        self.shared().change(None, |roster| ((), roster.set_weight(key, weight)));
    }

    /// The set cannot be learnt. Whoever fails fast is told so, while nothing is known; what is known stays.
    pub fn unknown(&self, cause: Cause) {
        self.shared().change(None, |roster| {
            roster.unknown = Some(cause);
            ((), Change::when(roster.present.is_empty()))
        });
    }

    /// Chooses in another way from now on. No pick is lost, nothing in flight is forgotten.
    pub fn set_policy(&self, policy: Arc<dyn Policy>) {
        let old = self.shared().change(None, |roster| (std::mem::replace(&mut roster.policy, policy), Change::Publish));
        drop(old);
    }

    /// Ejects by other rules from now on, or no more.
    pub fn set_outlier(&self, rules: Option<Outlier>) {
        self.shared().streak_max.store(rules.map_or(0, |rules| rules.consecutive), Ordering::Relaxed);
        self.shared().change(None, |roster| {
            roster.outlier = rules;
            roster.interval_ends = after(roster.now, rules.unwrap_or_default().every());
            // Whoever ticks has to hear of the new interval.
            ((), Change::Publish)
        });
    }

    /// Does what is due by time alone, and returns when to call it again; `None`: after the next
    /// [change](Self::changed).
    pub fn tick(&self, now: Instant) -> Option<Instant> {
        self.shared().change(Some(now), |roster| ((), roster.tick()));
        lock(&self.shared().roster).next_tick()
    }

    /// Those who are out of use since the last call: wait until each is [drained](Endpoint::drained), then close it.
    /// To be called after every change. Dropped instead, an endpoint is forgotten: added again it is a new one.
    pub fn departed(&self) -> Vec<Arc<Endpoint<T>>> {
        lock(&self.shared().roster).take_departed()
    }

    /// Picks fail from now on; all endpoints [depart](Self::departed).
    pub fn close(&self) {
        self.shared().change(None, |roster| {
            roster.close();
            ((), Change::Publish)
        });
    }

    /// Was it closed?
    pub fn is_closed(&self) -> bool {
        lock(&self.shared().roster).closed
    }

    /// Chooses an endpoint and calls `f` with it, from any thread: no lock, no write to shared memory, no reference
    /// count. A pick within `f` works, but does not continue this thread's turn.
    ///
    /// # Errors
    ///
    /// When there is nothing to choose; see [`PickError`].
    #[inline]
    pub fn pick_with<R>(&self, pick: &Pick<'_, T>, f: impl FnOnce(&Endpoint<T>) -> R) -> Result<R, PickError> {
        let (shared, places) = (self.shared(), &self.0.places);
        let Some(mut held) = thread::held(places) else {
            return thread::begin(shared, places, |held| held.choose(pick).cloned()).map(|endpoint| f(&endpoint));
        };
        held.follow(shared);
        if let Some(endpoint) = held.turn(pick) {
            let result = f(endpoint);
            // Given back before the result is wrapped: else that goes through memory, where an error's place would be.
            drop(held);
            return Ok(result);
        }
        match held.ask(pick) {
            Ok(endpoint) => Ok(f(endpoint)),
            Err(error) => Err(error),
        }
    }

    /// Chooses an endpoint, and owns it until the lease ends. From any thread.
    ///
    /// # Errors
    ///
    /// When there is nothing to choose; see [`PickError`].
    #[inline]
    pub fn pick(&self, pick: &Pick<'_, T>) -> Result<Lease<T>, PickError> {
        let (shared, places) = (self.shared(), &self.0.places);
        match thread::held(places) {
            Some(mut held) => held.lease(shared, pick),
            None => thread::begin(shared, places, |held| held.lease(shared, pick)),
        }
    }

    /// Waits until there is an endpoint to choose. Without an end of its own: the caller sets the deadline.
    ///
    /// # Errors
    ///
    /// [`PickError::Closed`], [`PickError::Crowded`] when [`Settings::waiters_max`] wait already, and what the patience
    /// does not bear.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves the list of those who wait.
    pub async fn pick_ready(&self, pick: &Pick<'_, T>, patience: Patience) -> Result<Lease<T>, PickError> {
        let mut place = Place { waiters: &self.shared().waiters, ticket: None };
        poll_fn(|cx| {
            if let Some(result) = self.pick_patiently(pick, patience) {
                return Poll::Ready(result);
            }
            if let Err(waiting) = place.waiters.join(&mut place.ticket, cx.waker()) {
                return Poll::Ready(Err(PickError::Crowded { waiting }));
            }
            // Join first, look again after: what is published in between finds the waker or is seen.
            self.pick_patiently(pick, patience).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// `None`: it is worth waiting.
    fn pick_patiently(&self, pick: &Pick<'_, T>, patience: Patience) -> Option<Result<Lease<T>, PickError>> {
        match (self.pick(pick), patience) {
            (Err(PickError::Empty), Patience::FailFast) if self.is_known_empty() => Some(Err(PickError::Empty)),
            (Err(PickError::Empty | PickError::NotReady { cause: None, .. }), _) => None,
            (Err(PickError::NotReady { .. } | PickError::NoMatch { .. }), Patience::WaitForReady) => None,
            (result, _) => Some(result),
        }
    }

    /// What was picked from may be older than what is known by now, so this is asked of the latter.
    fn is_known_empty(&self) -> bool {
        let roster = lock(&self.shared().roster);
        roster.learnt && roster.present.is_empty()
    }

    /// The number of the current snapshot. It grows with every publication, not by one.
    pub fn version(&self) -> u64 {
        self.shared().published.version()
    }

    /// Waits until the version is not `seen` any more, and returns it.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub async fn changed(&self, seen: u64) -> u64 {
        let mut place = Place { waiters: &self.shared().watchers, ticket: None };
        poll_fn(|cx| {
            // The list has no limit that could be reached.
            let _ = place.waiters.join(&mut place.ticket, cx.waker());
            let version = self.version();
            if version == seen { Poll::Pending } else { Poll::Ready(version) }
        })
        .await
    }

    /// A handle for one event loop.
    pub fn picker(&self, seed: u64) -> Picker<T> {
        Picker::new(self.clone(), seed)
    }

    /// Every endpoint that is known, those included that leave.
    pub fn status(&self) -> Vec<Status> {
        let roster = lock(&self.shared().roster);
        let present = roster.present.iter().map(|entry| entry.status(false));
        // Who is closed is kept until something changes, and is nobody's concern.
        let departing = roster.departing.iter().filter(|entry| !entry.is_over());
        present.chain(departing.map(|entry| entry.status(true))).collect()
    }

    /// Every endpoint that is in the set.
    pub fn endpoints(&self) -> Vec<Arc<Endpoint<T>>> {
        let roster = lock(&self.shared().roster);
        let present = roster.present.iter().filter(|entry| entry.leaving.is_none());
        present.map(|entry| Arc::clone(&entry.endpoint)).collect()
    }

    /// Endpoints in the set in the order of the policy, with their states: whom to dial first.
    pub fn dial_order(&self) -> Vec<(EndpointId, State)> {
        let roster = lock(&self.shared().roster);
        let mut entries: Vec<_> = roster.present.iter().filter(|entry| entry.leaving.is_none()).collect();
        entries.sort_by_key(|entry| (entry.tier, entry.rank));
        entries.into_iter().map(|entry| (entry.endpoint.id, entry.state)).collect()
    }

    /// The policy in use.
    pub fn policy(&self) -> Arc<dyn Policy> {
        Arc::clone(&lock(&self.shared().roster).policy)
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        Counters {
            publications: self.shared().counters.publications.load(Ordering::Relaxed),
            policy_failures: self.shared().counters.policy_failures.load(Ordering::Relaxed),
            waiting: self.shared().waiters.len(),
        }
    }

    /// A handle that does not keep it alive.
    pub fn downgrade(&self) -> WeakBalancer<T> {
        WeakBalancer(Arc::downgrade(&self.0))
    }
}

/// A [`Balancer`] that may be gone.
pub struct WeakBalancer<T: Send + Sync + 'static>(Weak<Whole<T>>);

impl<T: Send + Sync + 'static> WeakBalancer<T> {
    /// The balancer, if somebody still has it.
    pub fn upgrade(&self) -> Option<Balancer<T>> {
        self.0.upgrade().map(Balancer)
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for WeakBalancer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakBalancer")
    }
}

impl<T> Shared<T> {
    /// Changes the roster and publishes, if the change concerns those who pick.
    fn change<R>(&self, now: Option<Instant>, change: impl FnOnce(&mut Roster<T>) -> (R, Change)) -> R {
        let mut roster = lock(&self.roster);
        if let Some(now) = now {
            roster.pass(now);
        }
        let (result, change) = change(&mut roster);
        let old = if change == Change::Publish { self.publish(&mut roster) } else { None };
        let over = roster.take_over();
        drop(roster);
        if old.is_some() {
            self.waiters.wake_all();
            self.watchers.wake_all();
        }
        // Each may be the last to hold a value, whose end is foreign code: not under the lock.
        drop((old, over));
        result
    }

    /// Publishes what the roster says now; those who leave depart only afterwards. The snapshot before, unless the
    /// policy failed.
    fn publish(&self, roster: &mut Roster<T>) -> Option<Arc<Snapshot<T>>> {
        let (_, before) = self.published.read();
        roster.grow_shares();
        let chosen = roster.choose();
        // Who ends it is heard, whatever becomes of the policy.
        let built = if roster.closed { Some(nobody()) } else { build(&*roster.policy, chosen.tiers, &before) };
        let Some((takes_turns, first, further)) = built else {
            self.counters.policy_failures.fetch_add(1, Ordering::Relaxed);
            roster.retry_publication();
            return None;
        };
        let Tier { ready, table } = first;
        let next = Snapshot {
            turning: if takes_turns { Arc::clone(&ready) } else { Arc::default() },
            ready,
            table,
            further,
            known: chosen.known,
            cause: chosen.cause,
            closed: roster.closed,
        };
        roster.published();
        let old = self.published.publish(next_number(), Arc::new(next));
        self.counters.publications.fetch_add(1, Ordering::Relaxed);
        roster.depart();
        Some(old)
    }

    /// Called by the lease whose failure made a run so long.
    pub(crate) fn failed_in_a_row(&self, id: EndpointId, streak: u32, now: Option<Instant>) {
        let limit = self.streak_max.load(Ordering::Relaxed);
        // Only every `limit`-th takes the lock, in case the endpoint may not be ejected now.
        if limit > 0 && streak.is_multiple_of(limit) {
            self.change(now, |roster| ((), roster.eject(id)));
        }
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

/// A place in a list of those who wait, left when it is dropped.
struct Place<'a> {
    waiters: &'a Waiters,
    ticket: Option<u64>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.waiters.leave(ticket);
        }
    }
}

/// What takes the place of a set: does the first of the tiers take turns, that one, and the others.
type Built<T> = (bool, Tier<T>, Box<[Tier<T>]>);

/// Has the policy build the tables of all tiers. `None`: it failed, or panicked.
fn build<T>(policy: &dyn Policy, tiers: Vec<Equals<T>>, before: &Snapshot<T>) -> Option<Built<T>> {
    let former = std::iter::once(&before.table).chain(before.further.iter().map(|tier| &tier.table));
    let former = former.map(|table| Some(&**table)).chain(std::iter::repeat(None));
    let tables = || {
        let tables = tiers.iter().zip(former).map(|(tier, before)| policy.table(&tier.members, before));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        Ok::<_, Box<dyn Error + Send + Sync>>((tables.first().is_some_and(|table| table.takes_turns()), tables))
    };
    let (takes_turns, tables) = catch_unwind(AssertUnwindSafe(tables)).ok()?.ok()?;
    let ready = tiers.into_iter().map(|tier| Endpoints::from(tier.ready));
    let mut built = ready.zip(tables).map(|(ready, table)| Tier { ready, table });
    let first = built.next()?;
    Some((takes_turns, first, built.collect()))
}

/// The end of a set.
fn nobody<T>() -> Built<T> {
    (false, Tier { ready: Arc::default(), table: Box::new(Nobody) }, Box::default())
}

/// The table before the first, and after the last.
struct Nobody;

impl Table for Nobody {
    fn pick(&self, _: &View<'_>, _: &mut Local) -> Option<usize> {
        None
    }
}
