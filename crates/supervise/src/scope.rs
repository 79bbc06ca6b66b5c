//! A named set of children, and its place in the tree of scopes.

use std::cell::Cell;
use std::fmt::{self, Debug};
use std::future::Future;
use std::hash::Hash;
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::available_parallelism;
use std::time::Duration;

use tidegate_backoff::Budget;

use crate::child::{Child, ChildGuard, Ctx, HeldChild, Supervised};
use crate::hub::Hub;
use crate::limit::{Limit, Ticket};
use crate::node::{Node, ShardSet};
use crate::restart::{OverBudget, ScopeBudget};
use crate::restarting::{ChildClass, RestartLoop};
use crate::runtime::Timer;
use crate::shard::{ChildInfo, Counts, Denied, Mode, NewChild};
use crate::span::ChildSpan;
use crate::stop::{self, Report};
use crate::{ChildOutput, Observe, Refused};

/// Bounds of a key type.
pub trait Key: Eq + Hash + Clone + Debug + Send + Sync + 'static {}
impl<K: Eq + Hash + Clone + Debug + Send + Sync + 'static> Key for K {}

/// The key type of a scope whose children have no keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unkeyed {}

/// A named set of children, keyed by `K`. Clones are handles to the same scope.
///
/// Dropping the last handle of a root scope signals its children to stop. A child scope stays in its parent until its
/// children have ended, and stops with the parent.
pub struct Scope<K = Unkeyed>(Arc<ScopeInner<K>>);

struct ScopeInner<K> {
    node: Arc<Node>,
    set: Arc<ShardSet<K>>,
}

impl<K> Drop for ScopeInner<K> {
    fn drop(&mut self) {
        self.node.orphan();
    }
}

impl<K> Clone for Scope<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Debug for Scope<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("path", &self.path()).field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The environment variable that overrides every scope's number of shards.
pub const SHARDS_VARIABLE: &str = "TIDEGATE_SUPERVISE_SHARDS";
const SHARDS_MAX: usize = 1024;
const SHARDS_PER_WORKER: usize = 4;

/// Result of [`Scope::wrap_if_absent`].
#[derive(Debug)]
pub enum SpawnOutcome<T> {
    /// The caller created the child.
    New(T),
    /// The child already exists.
    Existing(Child),
}

impl<T> SpawnOutcome<T> {
    /// Returns the child if the caller created it.
    pub fn made(self) -> Option<T> {
        match self {
            Self::New(child) => Some(child),
            Self::Existing(_) => None,
        }
    }
}

/// Builder of a scope.
#[must_use = "a builder does nothing until `build`"]
pub struct ScopeBuilder {
    parent: Option<Arc<Node>>,
    path: String,
    shards: Option<usize>,
    max_children: Option<usize>,
    restarts: Option<(Budget, OverBudget)>,
    phase: u8,
    observer: Option<Arc<dyn Observe>>,
}

impl Debug for ScopeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeBuilder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ScopeBuilder {
    /// Number of shards; rounded up to a power of two, at most 1,024.
    ///
    /// Default: four per core. The environment variable [`SHARDS_VARIABLE`] takes precedence. The number of children is
    /// irrelevant: see the crate documentation.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Maximum number of live children. Default: unlimited.
    pub fn max_children(mut self, max: usize) -> Self {
        self.max_children = Some(max);
        self
    }

    /// Order of the stop among sibling scopes: lower phases first, equal phases together. Default 0.
    pub fn phase(mut self, phase: u8) -> Self {
        self.phase = phase;
        self
    }

    /// Limits the restarts of all children of the scope together; `over_budget` selects the action beyond the limit. Default:
    /// only the children's own budgets apply.
    pub fn restart_budget(mut self, budget: Budget, over_budget: OverBudget) -> Self {
        self.restarts = Some((budget, over_budget));
        self
    }

    /// Observer of starts and exits. Default: the parent's observer, if any.
    pub fn observer(mut self, observer: Arc<dyn Observe>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Creates the scope.
    pub fn build<K: Key>(self) -> Scope<K> {
        let observer = self.observer.or_else(|| self.parent.as_ref().and_then(|node| node.hub.observer.clone()));
        let mut hub = Hub::new(self.path.into(), observer);
        hub.limit = self.max_children.map(Limit::new);
        hub.restarts = self.restarts.map(|(budget, over_budget)| ScopeBudget::new(budget, over_budget));
        let hub = Arc::new(hub);
        let variable = std::env::var(SHARDS_VARIABLE).ok();
        let cores = available_parallelism().map_or(2, usize::from);
        let shards = shard_count(variable.as_deref(), self.shards, cores);
        let set = Arc::new(ShardSet::<K>::new(&hub, shards));
        let node = Node::new(hub, self.phase, Arc::<ShardSet<K>>::clone(&set));
        if let Some(parent) = self.parent {
            parent.add_child(Arc::clone(&node));
        }
        Scope(Arc::new(ScopeInner { node, set }))
    }
}

/// Precedence: environment, option, four per core. The result is a power of two, so that a mask selects the shard.
fn shard_count(variable: Option<&str>, option: Option<usize>, cores: usize) -> usize {
    let variable = variable.and_then(|text| text.trim().parse().ok());
    let shards: usize = variable.or(option).unwrap_or(SHARDS_PER_WORKER * cores);
    shards.clamp(1, SHARDS_MAX).next_power_of_two()
}

impl Scope {
    /// Builder of a root scope with this name.
    pub fn builder(name: impl Into<String>) -> ScopeBuilder {
        ScopeBuilder {
            parent: None,
            path: name.into(),
            shards: None,
            max_children: None,
            restarts: None,
            phase: 0,
            observer: None,
        }
    }

    /// Root scope with defaults.
    pub fn root<K: Key>(name: impl Into<String>) -> Scope<K> {
        Self::builder(name).build()
    }
}

impl<K: Key> Scope<K> {
    /// Child scope with defaults.
    pub fn child<K2: Key>(&self, name: &str) -> Scope<K2> {
        self.child_builder(name).build()
    }

    /// Builder of a child scope. The child scope stops before this scope's own children.
    pub fn child_builder(&self, name: &str) -> ScopeBuilder {
        let path = format!("{}/{name}", self.path());
        ScopeBuilder { parent: Some(Arc::clone(&self.0.node)), ..Scope::builder(path) }
    }

    /// Creates a child without a key from the future that `future` returns. The caller spawns it.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children.
    #[track_caller]
    pub fn wrap<F: Future>(&self, future: impl FnOnce(Ctx) -> F) -> Result<Supervised<F>, Refused> {
        self.admit(None, 0).map(|guard| start(guard, future)).map_err(Refused::from)
    }

    /// Creates a child without a key that listings and reports identify by `number`; 0 is no number.
    ///
    /// The number is stored in a cache line that a start writes anyway, so it costs neither time nor memory. It is for
    /// display only: there is no look-up by number, and two children may have the same.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children.
    #[track_caller]
    pub fn wrap_numbered<F: Future>(
        &self,
        number: u64,
        future: impl FnOnce(Ctx) -> F,
    ) -> Result<Supervised<F>, Refused> {
        self.admit(None, number).map(|guard| start(guard, future)).map_err(Refused::from)
    }

    /// Registers a child without a task, such as an idle connection in a pool or a session in a table. The child lives until
    /// the returned guard is dropped; listings and reports include it, and a stop waits for it.
    ///
    /// Only its owner can end it; an abort has no effect. The owner checks [`HeldChild::ctx`] for a stop. Let a task that stops
    /// earlier, such as one in a scope of a lower [phase](ScopeBuilder::phase), make the owner drop the guard; a guard that
    /// remains at the deadline is reported as stuck. `number` as for [`wrap_numbered`](Self::wrap_numbered).
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children.
    #[track_caller]
    pub fn hold(&self, number: u64) -> Result<HeldChild, Refused> {
        self.admit(None, number).map(HeldChild::new).map_err(Refused::from)
    }

    /// Creates a child that `key` identifies from now until it has ended.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children, or has a live child with this key.
    #[track_caller]
    pub fn wrap_as<F: Future>(&self, key: K, future: impl FnOnce(Ctx) -> F) -> Result<Supervised<F>, Refused> {
        self.admit(Some(key), 0).map(|guard| start(guard, future)).map_err(Refused::from)
    }

    /// Creates a child with this key unless one is live. Of concurrent callers, exactly one creates it.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children.
    #[track_caller]
    pub fn wrap_if_absent<F: Future>(
        &self,
        key: K,
        future: impl FnOnce(Ctx) -> F,
    ) -> Result<SpawnOutcome<Supervised<F>>, Refused> {
        if let Some(child) = self.get(&key) {
            return Ok(SpawnOutcome::Existing(child));
        }
        match self.admit(Some(key), 0) {
            Ok(guard) => Ok(SpawnOutcome::New(start(guard, future))),
            Err(Denied::Exists(child)) => Ok(SpawnOutcome::Existing(child.handle())),
            Err(Denied::Refused(refused)) => Err(refused),
        }
    }

    /// Creates a child of a class that restarts. The factory gets the key and is called for every run.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children, or has a live child with this key.
    #[track_caller]
    pub fn wrap_kept<M, F, T>(
        &self,
        key: K,
        class: &ChildClass<M>,
        timer: T,
    ) -> Result<Supervised<RestartLoop<K, M, F, T>>, Refused>
    where
        M: Fn(&K, Ctx) -> F,
        F: Future<Output: ChildOutput>,
        T: Timer,
    {
        self.wrap_as(key.clone(), |ctx| RestartLoop::new(key, class.clone(), ctx, timer))
    }

    #[track_caller]
    fn admit(&self, key: Option<K>, number: u64) -> Result<ChildGuard, Denied> {
        let new_child = NewChild { key, number, spawned_at: Location::caller() };
        let limit = self.0.node.hub.limit.as_ref();
        if let Some(limit) = limit.filter(|limit| !limit.try_take()) {
            return Err(self.refusal().unwrap_or(Refused::Full { max: limit.max() }).into());
        }
        self.admit_reserved(new_child)
    }

    /// Admits a child that already holds a permit of the limit.
    fn admit_reserved(&self, new_child: NewChild<K>) -> Result<ChildGuard, Denied> {
        let set = &self.0.set;
        let shard = match &new_child.key {
            Some(key) => set.of_key(key),
            None => &set.shards[next_shard() & (set.shards.len() - 1)],
        };
        let label = ChildSpan::label(new_child.key.as_ref());
        shard.admit(new_child).map(|member| ChildGuard::new(member, label.as_ref())).inspect_err(|_| {
            if let Some(limit) = &self.0.node.hub.limit {
                limit.give_back();
            }
        })
    }

    fn refusal(&self) -> Option<Refused> {
        match self.0.node.mode() {
            Mode::Open => None,
            Mode::Draining => Some(Refused::Draining),
            Mode::Stopping => Some(Refused::Stopping),
        }
    }

    /// Waits for a permit under `max_children`, in first-in, first-out order.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children.
    ///
    /// # Cancel safety
    /// When dropped, the waiter leaves the queue and returns a permit that it was just granted.
    pub async fn reserve(&self) -> Result<Permit<K>, Refused> {
        let mut waiter = Waiter { scope: self, ticket: Some(Arc::default()) };
        std::future::poll_fn(|cx| waiter.poll(cx)).await
    }

    /// Returns the live child with this key.
    pub fn get(&self, key: &K) -> Option<Child> {
        self.0.set.of_key(key).find(key).map(|member| member.handle())
    }

    /// Lists the live children of this scope alone. Each shard is read page by page under short locks, so the listing is not
    /// a snapshot, but contains every child that lives throughout the call exactly once.
    pub fn list(&self) -> impl Iterator<Item = ChildInfo<K>> + '_ {
        self.0.set.list()
    }

    /// Stops the tree: signals all children, level by level, and waits up to `grace`; then aborts the remaining children,
    /// waits up to `abort`, and reports. Returns as soon as all children have ended. The scopes refuse new children from the
    /// call on.
    ///
    /// If a level does not end within `grace`, the levels above it are signalled when the abort starts, and aborted after
    /// `grace` or half of `abort`, whichever is shorter.
    ///
    /// A child that awaits this call waits for its own end, that is, its abort after `grace`.
    ///
    /// # Cancel safety
    /// When dropped, signalled children continue to end; a further call resumes the stop.
    pub fn stop<T: Timer>(
        &self,
        timer: T,
        grace: Duration,
        abort: Duration,
    ) -> impl Future<Output = Report> + use<T, K> {
        self.close();
        stop::stop(&self.0.node, timer, grace, abort)
    }

    /// Refuses new children from the call on, and waits until all have ended or `deadline` has passed. Does not signal
    /// children.
    ///
    /// # Cancel safety
    /// When dropped, the scopes continue to refuse children.
    pub fn drain<T: Timer>(&self, timer: T, deadline: Duration) -> impl Future<Output = Report> + use<T, K> {
        self.0.node.advance(Mode::Draining);
        stop::drain(&self.0.node, timer, deadline)
    }
}

impl<K> Scope<K> {
    /// Scope names from the root to this scope, joined by `/`.
    pub fn path(&self) -> &str {
        &self.0.node.hub.path
    }

    /// Number of live children of this scope alone.
    pub fn len(&self) -> usize {
        self.0.node.members.live()
    }

    /// Returns whether this scope alone has no live child.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.0.node.hub
    }

    /// Counts of this scope alone.
    pub fn counts(&self) -> Counts {
        self.0.node.members.counts()
    }

    /// Paths and own counts of this scope and all scopes below it, parents first.
    pub fn tree(&self) -> Vec<(Arc<str>, Counts)> {
        let mut rows = Vec::new();
        rows_of(&self.0.node, &mut rows);
        rows
    }

    /// Refuses new children in the whole tree, without signalling the live ones.
    pub fn close(&self) {
        self.0.node.advance(Mode::Stopping);
    }

    /// Returns whether the scope is stopping or has stopped.
    pub fn is_stopping(&self) -> bool {
        self.0.node.mode() == Mode::Stopping
    }

    /// Ready when a scope that accepts no more children has no live child.
    pub fn poll_empty(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.node.poll_empty(cx)
    }
}

fn rows_of(node: &Arc<Node>, rows: &mut Vec<(Arc<str>, Counts)>) {
    rows.push((Arc::clone(&node.hub.path), node.members.counts()));
    for child in node.children() {
        rows_of(&child, rows);
    }
}

/// The guard exists before the closure runs: if the closure panics, dropping the guard frees the slot.
fn start<F>(guard: ChildGuard, future: impl FnOnce(Ctx) -> F) -> Supervised<F> {
    let ctx = guard.member().ctx();
    Supervised::new(guard, future(ctx))
}

/// Distributes children without a key: a thread fills a chunk of one shard, then moves on to the next shard.
fn next_shard() -> usize {
    const RUN: usize = 1024;
    thread_local!(static TURN: Cell<usize> = Cell::new(fastrand::usize(..1 << 16) * RUN));
    TURN.with(|turn| turn.replace(turn.get().wrapping_add(1)) / RUN)
}

/// A permit under `max_children`, for one child. Dropping the permit returns it.
#[derive(Debug)]
#[must_use = "a dropped permit goes to the oldest waiter"]
pub struct Permit<K: Key>(Option<Scope<K>>);

impl<K: Key> Permit<K> {
    /// Like [`Scope::wrap`], with this permit.
    ///
    /// # Errors
    /// [`Refused`] if the scope no longer accepts children.
    #[track_caller]
    pub fn wrap<F: Future>(self, future: impl FnOnce(Ctx) -> F) -> Result<Supervised<F>, Refused> {
        self.use_for(None).map(|guard| start(guard, future))
    }

    /// Like [`Scope::wrap_as`], with this permit.
    ///
    /// # Errors
    /// [`Refused`] if the scope no longer accepts children, or has a live child with this key.
    #[track_caller]
    pub fn wrap_as<F: Future>(self, key: K, future: impl FnOnce(Ctx) -> F) -> Result<Supervised<F>, Refused> {
        self.use_for(Some(key)).map(|guard| start(guard, future))
    }

    #[track_caller]
    fn use_for(mut self, key: Option<K>) -> Result<ChildGuard, Refused> {
        let new_child = NewChild { key, number: 0, spawned_at: Location::caller() };
        let scope = self.0.take().expect("a permit is used once");
        scope.admit_reserved(new_child).map_err(Refused::from)
    }
}

impl<K: Key> Drop for Permit<K> {
    fn drop(&mut self) {
        if let Some(limit) = self.0.as_ref().and_then(|scope| scope.0.node.hub.limit.as_ref()) {
            limit.give_back();
        }
    }
}

struct Waiter<'a, K: Key> {
    scope: &'a Scope<K>,
    ticket: Option<Arc<Ticket>>,
}

impl<K: Key> Waiter<'_, K> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit<K>, Refused>> {
        if let Some(refused) = self.scope.refusal() {
            return Poll::Ready(Err(refused));
        }
        let limit = self.scope.0.node.hub.limit.as_ref();
        if let (Some(limit), Some(ticket)) = (limit, &self.ticket)
            && limit.poll_take(ticket, cx).is_pending()
        {
            // A stop between the two checks has woken only waiters that were queued by then.
            return match self.scope.refusal() {
                Some(refused) => Poll::Ready(Err(refused)),
                None => Poll::Pending,
            };
        }
        self.ticket = None;
        Poll::Ready(Ok(Permit(Some(self.scope.clone()))))
    }
}

impl<K: Key> Drop for Waiter<'_, K> {
    fn drop(&mut self) {
        if let (Some(limit), Some(ticket)) = (self.scope.0.node.hub.limit.as_ref(), &self.ticket) {
            limit.leave(ticket);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shard_count_prefers_environment_then_option() {
        let table = [
            ((Some("16"), Some(4), 8), 16),
            ((None, Some(4), 8), 4),
            ((None, None, 8), 32),
            ((None, None, 3), 16),
            ((Some("0"), None, 8), 1),
            ((Some("many"), None, 2), 8),
            ((None, Some(100_000), 2), 1024),
        ];
        for ((variable, option, cores), shards) in table {
            assert_eq!(shard_count(variable, option, cores), shards, "{variable:?} {option:?} {cores}");
        }
    }

    #[test]
    fn list_reads_one_page_of_32_per_lock() {
        let scope: Scope<u32> = Scope::builder("root").shards(1).build();
        let children: Vec<_> = (0..100).map(|id| scope.wrap_as(id, |_| std::future::pending::<()>())).collect();
        let mut page = Vec::new();
        assert!(scope.0.set.shards[0].list(0, &mut page), "there are further pages");
        assert_eq!(page.len(), crate::slot::CHUNK_SLOTS);
        assert_eq!((scope.list().count(), children.len()), (100, 100));
    }
}
