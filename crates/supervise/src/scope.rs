//! A named set of children, and its place in the tree.

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

use crate::child::{Child, Ctx, Held, Seat, Supervised};
use crate::hub::Hub;
use crate::limit::{Limit, Ticket};
use crate::node::{Node, ShardSet};
use crate::restart::{OverBudget, ScopeBudget};
use crate::restarting::{Class, Kept};
use crate::runtime::Timer;
use crate::shard::{Birth, ChildInfo, Counts, Denied, Mode};
use crate::span::ChildSpan;
use crate::stop::{self, Report};
use crate::{Completion, Observe, Refused};

/// What a type must be to name children.
pub trait Key: Eq + Hash + Clone + Debug + Send + Sync + 'static {}
impl<K: Eq + Hash + Clone + Debug + Send + Sync + 'static> Key for K {}

/// The key type of a scope whose children have no keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unkeyed {}

/// A named set of children, keyed by `K`. Clones are handles to the same scope.
///
/// When the last handle to a root scope is gone, its children are told to stop. A scope below another lives on in its
/// parent until its children have ended, and stops with it.
pub struct Scope<K = Unkeyed>(Arc<Inner<K>>);

struct Inner<K> {
    node: Arc<Node>,
    set: Arc<ShardSet<K>>,
}

impl<K> Drop for Inner<K> {
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

/// What [`Scope::wrap_if_absent`] found or made.
#[derive(Debug)]
pub enum Presence<T> {
    /// The caller made the child.
    New(T),
    /// There is one already.
    Existing(Child),
}

impl<T> Presence<T> {
    /// The child, if the caller made it.
    pub fn made(self) -> Option<T> {
        match self {
            Self::New(child) => Some(child),
            Self::Existing(_) => None,
        }
    }
}

/// A scope about to be made.
#[must_use = "a builder makes nothing until `build`"]
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
    /// How many shards the children are spread over; rounded up to a power of two, at most 1,024.
    ///
    /// Default: four times the cores. The environment variable [`SHARDS_VARIABLE`] beats it. The number of children
    /// does not matter: see the crate's documentation.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// How many children may live at once. Default: any number.
    pub fn max_children(mut self, max: usize) -> Self {
        self.max_children = Some(max);
        self
    }

    /// When this scope stops among its siblings: lower phases first, equal ones together. Default 0.
    pub fn phase(mut self, phase: u8) -> Self {
        self.phase = phase;
        self
    }

    /// How often the scope's children may be started again, all together, and what happens beyond that. Default: only
    /// the children's own budgets.
    pub fn restart_budget(mut self, budget: Budget, over_budget: OverBudget) -> Self {
        self.restarts = Some((budget, over_budget));
        self
    }

    /// Who hears of starts and exits. Default: the parent's observer, or nobody.
    pub fn observer(mut self, observer: Arc<dyn Observe>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Makes the scope.
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
            parent.adopt(Arc::clone(&node));
        }
        Scope(Arc::new(Inner { node, set }))
    }
}

/// Environment before option before four for every core; a power of two, so that a mask picks the shard.
fn shard_count(variable: Option<&str>, option: Option<usize>, cores: usize) -> usize {
    let variable = variable.and_then(|text| text.trim().parse().ok());
    let shards: usize = variable.or(option).unwrap_or(SHARDS_PER_WORKER * cores);
    shards.clamp(1, SHARDS_MAX).next_power_of_two()
}

impl Scope {
    /// Begins a tree of scopes at a root of this name.
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

    /// A root scope with defaults.
    pub fn root<K: Key>(name: impl Into<String>) -> Scope<K> {
        Self::builder(name).build()
    }
}

impl<K: Key> Scope<K> {
    /// A scope below this one, with defaults.
    pub fn child<K2: Key>(&self, name: &str) -> Scope<K2> {
        self.child_builder(name).build()
    }

    /// A scope below this one. It stops before this scope's own children do.
    pub fn child_builder(&self, name: &str) -> ScopeBuilder {
        let path = format!("{}/{name}", self.path());
        ScopeBuilder { parent: Some(Arc::clone(&self.0.node)), ..Scope::builder(path) }
    }

    /// Makes a child without a key out of the future that `future` returns. The caller spawns it.
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children.
    #[track_caller]
    pub fn wrap<F: Future>(&self, future: impl FnOnce(Ctx) -> F) -> Result<Supervised<F>, Refused> {
        self.admit(None, 0).map(|seat| start(seat, future)).map_err(Refused::from)
    }

    /// Makes a child without a key that listings and reports call by `number`; 0 is no number.
    ///
    /// A number is kept where a start writes anyway, so it costs neither time nor memory, for as many children as there
    /// are. In return it is only shown: there is no look-up by number, and two children may have the same.
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children.
    #[track_caller]
    pub fn wrap_numbered<F: Future>(
        &self,
        number: u64,
        future: impl FnOnce(Ctx) -> F,
    ) -> Result<Supervised<F>, Refused> {
        self.admit(None, number).map(|seat| start(seat, future)).map_err(Refused::from)
    }

    /// Counts something among the children that has no task: a connection that rests in a pool, a session in a table. It
    /// lives until what this returns is dropped, is listed and reported like the others, and a stop waits for it.
    ///
    /// Nobody can end it but its owner, who may ask [`Held::ctx`] whether it is to go; an abort does nothing to it. So let
    /// something that the stop reaches earlier, such as a task in a scope of a lower [phase](ScopeBuilder::phase), have
    /// its owner let go of it; what is left at the deadline is reported as stuck. `number` as for
    /// [`wrap_numbered`](Self::wrap_numbered).
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children.
    #[track_caller]
    pub fn hold(&self, number: u64) -> Result<Held, Refused> {
        self.admit(None, number).map(Held::new).map_err(Refused::from)
    }

    /// Makes a child that is known as `key` from now until it has ended.
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children, or has one of this key.
    #[track_caller]
    pub fn wrap_as<F: Future>(&self, key: K, future: impl FnOnce(Ctx) -> F) -> Result<Supervised<F>, Refused> {
        self.admit(Some(key), 0).map(|seat| start(seat, future)).map_err(Refused::from)
    }

    /// Makes a child of this key unless one lives. Of any number of callers at once, one makes it.
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children.
    #[track_caller]
    pub fn wrap_if_absent<F: Future>(
        &self,
        key: K,
        future: impl FnOnce(Ctx) -> F,
    ) -> Result<Presence<Supervised<F>>, Refused> {
        if let Some(child) = self.get(&key) {
            return Ok(Presence::Existing(child));
        }
        match self.admit(Some(key), 0) {
            Ok(seat) => Ok(Presence::New(start(seat, future))),
            Err(Denied::Exists(child)) => Ok(Presence::Existing(child.handle())),
            Err(Denied::Refused(refused)) => Err(refused),
        }
    }

    /// Makes a child of a class that restarts. Its factory gets the key and runs once for every life.
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children, or has one of this key.
    #[track_caller]
    pub fn wrap_kept<M, F, T>(
        &self,
        key: K,
        class: &Class<M>,
        timer: T,
    ) -> Result<Supervised<Kept<K, M, F, T>>, Refused>
    where
        M: Fn(&K, Ctx) -> F,
        F: Future<Output: Completion>,
        T: Timer,
    {
        self.wrap_as(key.clone(), |ctx| Kept::new(key, class.clone(), ctx, timer))
    }

    #[track_caller]
    fn admit(&self, key: Option<K>, number: u64) -> Result<Seat, Denied> {
        let birth = Birth { key, number, spawned_at: Location::caller() };
        let limit = self.0.node.hub.limit.as_ref();
        if let Some(limit) = limit.filter(|limit| !limit.try_take()) {
            return Err(self.refusal().unwrap_or(Refused::Full { max: limit.max() }).into());
        }
        self.seat(birth)
    }

    /// Seats a child whose place under the limit is taken already.
    fn seat(&self, birth: Birth<K>) -> Result<Seat, Denied> {
        let set = &self.0.set;
        let shard = match &birth.key {
            Some(key) => set.of_key(key),
            None => &set.shards[next_shard() & (set.shards.len() - 1)],
        };
        let label = ChildSpan::label(birth.key.as_ref());
        shard.admit(birth).map(|member| Seat::new(member, label.as_ref())).inspect_err(|_| {
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

    /// Waits for a place under `max_children`, first come, first served.
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children.
    ///
    /// # Cancel safety
    /// Dropped, the waiter leaves the line and gives back a place it was just granted.
    pub async fn reserve(&self) -> Result<Permit<K>, Refused> {
        let mut waiter = Waiter { scope: self, ticket: Some(Arc::default()) };
        std::future::poll_fn(|cx| waiter.poll(cx)).await
    }

    /// The living child of this key.
    pub fn get(&self, key: &K) -> Option<Child> {
        self.0.set.of_key(key).find(key).map(|member| member.handle())
    }

    /// The living children of this very scope. Each shard is read page by page under short locks, so the listing is no
    /// snapshot of one moment, but shows every child that lives throughout it exactly once.
    pub fn list(&self) -> impl Iterator<Item = ChildInfo<K>> + '_ {
        self.0.set.list()
    }

    /// Stops the tree: tells all children, level by level, and waits `grace`; then aborts what is left, and waits
    /// `abort`; then reports. Returns as soon as all are gone. The scopes refuse new children from the call on.
    ///
    /// Levels that were not told within `grace`, because one below them did not end, are told from then on, and aborted
    /// after `grace` or half of `abort`, whichever is shorter.
    ///
    /// A child that calls this waits for its own end, which is its abort after `grace`.
    ///
    /// # Cancel safety
    /// Dropped, children that were told go on ending; a further call takes up where this one left.
    pub fn stop<T: Timer>(
        &self,
        timer: T,
        grace: Duration,
        abort: Duration,
    ) -> impl Future<Output = Report> + use<T, K> {
        self.close();
        stop::stop(&self.0.node, timer, grace, abort)
    }

    /// Refuses new children from the call on, and waits until all are gone or `deadline` is over. Tells nobody to stop.
    ///
    /// # Cancel safety
    /// Dropped, the scopes go on refusing children.
    pub fn drain<T: Timer>(&self, timer: T, deadline: Duration) -> impl Future<Output = Report> + use<T, K> {
        self.0.node.advance(Mode::Draining);
        stop::drain(&self.0.node, timer, deadline)
    }
}

impl<K> Scope<K> {
    /// The names from the root to this scope, joined by `/`.
    pub fn path(&self) -> &str {
        &self.0.node.hub.path
    }

    /// Living children of this very scope.
    pub fn len(&self) -> usize {
        self.0.node.members.live()
    }

    /// Whether no child of this very scope lives.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.0.node.hub
    }

    /// Counts of this very scope.
    pub fn counts(&self) -> Counts {
        self.0.node.members.counts()
    }

    /// This scope and all below it, parents first, with their own counts.
    pub fn tree(&self) -> Vec<(Arc<str>, Counts)> {
        let mut rows = Vec::new();
        rows_of(&self.0.node, &mut rows);
        rows
    }

    /// Refuses new children in the whole tree, without telling anybody to stop.
    pub fn close(&self) {
        self.0.node.advance(Mode::Stopping);
    }

    /// Whether the scope stops or has stopped.
    pub fn is_stopping(&self) -> bool {
        self.0.node.mode() == Mode::Stopping
    }

    /// Ready when a scope that takes no more children has none.
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

/// The seat is taken before the closure runs: should it panic, the seat's drop gives it back.
fn start<F>(seat: Seat, future: impl FnOnce(Ctx) -> F) -> Supervised<F> {
    let ctx = seat.member().ctx();
    Supervised::new(seat, future(ctx))
}

/// Spreads children without a key: a thread fills a chunk of one shard, then goes on to the next shard.
fn next_shard() -> usize {
    const RUN: usize = 1024;
    thread_local!(static TURN: Cell<usize> = Cell::new(fastrand::usize(..1 << 16) * RUN));
    TURN.with(|turn| turn.replace(turn.get().wrapping_add(1)) / RUN)
}

/// A place under `max_children`, for one child. Dropped, it is given back.
#[derive(Debug)]
#[must_use = "a permit that is dropped gives its place to the next in line"]
pub struct Permit<K: Key>(Option<Scope<K>>);

impl<K: Key> Permit<K> {
    /// As [`Scope::wrap`], in the reserved place.
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children by now.
    #[track_caller]
    pub fn wrap<F: Future>(self, future: impl FnOnce(Ctx) -> F) -> Result<Supervised<F>, Refused> {
        self.use_for(None).map(|seat| start(seat, future))
    }

    /// As [`Scope::wrap_as`], in the reserved place.
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children by now, or has one of this key.
    #[track_caller]
    pub fn wrap_as<F: Future>(self, key: K, future: impl FnOnce(Ctx) -> F) -> Result<Supervised<F>, Refused> {
        self.use_for(Some(key)).map(|seat| start(seat, future))
    }

    #[track_caller]
    fn use_for(mut self, key: Option<K>) -> Result<Seat, Refused> {
        let birth = Birth { key, number: 0, spawned_at: Location::caller() };
        let scope = self.0.take().expect("a permit is used once");
        scope.seat(birth).map_err(Refused::from)
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
            // A stop between the two looks has woken only those who were in line by then.
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
    fn the_environment_beats_the_option_and_the_option_the_cores() {
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
    fn a_listing_reads_a_page_of_32_under_each_lock() {
        let scope: Scope<u32> = Scope::builder("root").shards(1).build();
        let children: Vec<_> = (0..100).map(|id| scope.wrap_as(id, |_| std::future::pending::<()>())).collect();
        let mut page = Vec::new();
        assert!(scope.0.set.shards[0].list(0, &mut page), "there is more");
        assert_eq!(page.len(), crate::slot::CHUNK_SLOTS);
        assert_eq!((scope.list().count(), children.len()), (100, 100));
    }
}
