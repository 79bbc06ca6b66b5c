//! One stream: what is wanted of it, what it does, and what it has done.
//!
//! Operators and the configuration say what is wanted, at any time and from any thread. The task of the stream looks at
//! that between two runs, and is told when the run that it has is to end; so orders may come in any order and as often as
//! somebody likes, and the last one holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_lanes::{SubscriptionCounters, SubscriptionHandle};
use tokio::sync::watch;

use super::board::{Snapshot, State};
use super::limits::{Limits, Width, differ_in_limits_only};
use super::plan::Plan;
use tidegate_config::Stream;

/// What a stream is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// To run, by the plan that there is.
    Run,
    /// To come to its end, and to wait for another goal.
    Rest,
    /// To come to its end for good.
    End,
}

/// What a stream is to do, and the how many-eth time: a run that is of another turn is out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    goal: Goal,
    turn: u64,
}

/// One stream, as its operators and its own task see it.
pub struct Status {
    name: String,
    // Locked for a change of state or of plan, and by those who look. A wish changes only while it is.
    inner: Mutex<Inner>,
    wish: watch::Sender<Wish>,
    rate: AtomicU64,
    lag: AtomicU64,
    restarts: AtomicU64,
    last_error: Mutex<String>,
}

struct Inner {
    plan: Plan,
    state: State,
    is_paused: bool,
    /// The configuration does not name it any more.
    is_removed: bool,
    run: Option<(SubscriptionHandle, Width)>,
    /// Of runs that are over.
    past: Sum,
}

/// The counters that outlive a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) done: u64,
    pub(super) retried: u64,
    pub(super) dead_lettered: u64,
    pub(super) skipped: u64,
}

impl Sum {
    fn with(self, counters: &SubscriptionCounters) -> Self {
        Self {
            done: self.done + counters.done + counters.compacted,
            retried: self.retried + counters.retried,
            dead_lettered: self.dead_lettered + counters.dead_lettered,
            skipped: self.skipped + counters.skipped,
        }
    }
}

/// How a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// In order.
    Done,
    /// With an error that may pass, so that another run is tried.
    Passing,
    /// With an error.
    Failed,
}

const UNKNOWN: u64 = u64::MAX;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Puts the limits of the plan in force in the run that there is.
    fn apply_limits(&self) {
        if let Some((handle, width)) = &self.run {
            // What comes to its end is not held up by a pause.
            let is_paused = self.is_paused && self.state != State::Draining;
            Limits::of(&self.plan.stream, *width).apply(handle, is_paused);
        }
    }

    /// What runs is to end, and what waits has ended.
    fn note_end(&mut self) {
        self.state = match self.state {
            State::Running | State::Paused => State::Draining,
            State::Waiting => State::Stopped,
            other => other,
        };
    }
}

/// What operators do.
impl Status {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    #[must_use]
    pub fn state(&self) -> State {
        lock(&self.inner).state
    }

    /// Begins no delivery any more, in this run and in later ones. What was begun goes on.
    pub fn pause(&self) {
        let mut inner = lock(&self.inner);
        inner.is_paused = true;
        if inner.state == State::Running {
            inner.state = State::Paused;
        }
        inner.apply_limits();
    }

    /// Undoes [`Self::pause`].
    pub fn resume(&self) {
        let mut inner = lock(&self.inner);
        inner.is_paused = false;
        if inner.state == State::Paused {
            inner.state = State::Running;
        }
        inner.apply_limits();
    }

    /// Whether it was paused and not resumed.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        lock(&self.inner).is_paused
    }

    /// Whether it is to run: it was not stopped, or was started since.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wish.borrow().goal == Goal::Run
    }

    /// Deliveries under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        lock(&self.inner).run.as_ref().map_or(0, |(handle, _)| handle.metrics().in_flight)
    }

    /// Lets its run come to an end, within `drain`, and starts no other until it is told to.
    pub fn stop(&self) {
        self.wish_for(Goal::Rest);
    }

    /// Starts a stream that was stopped, that has ended or failed, or that waits to be started again. One that runs goes on;
    /// one that is just ending is started when it has.
    pub fn start(&self) {
        let mut inner = lock(&self.inner);
        let is_over = inner.state.is_over();
        let is_begun_anew = self.wish.send_if_modified(|wish| {
            let is_new = wish.goal == Goal::Rest || (wish.goal == Goal::Run && is_over);
            if is_new {
                *wish = Wish { goal: Goal::Run, turn: wish.turn + 1 };
            }
            is_new
        });
        if is_begun_anew && is_over {
            inner.state = State::Starting;
        }
    }

    /// Lets the parked keys of this name go on, or all. `false` if it does not run, so that nothing is parked.
    #[must_use]
    pub fn unpark(&self, key: Option<&str>) -> bool {
        let inner = lock(&self.inner);
        let Some((handle, _)) = &inner.run else { return false };
        match key {
            Some(key) => handle.unpark(key.as_bytes()),
            None => handle.unpark_all(),
        }
        true
    }
}

/// What the configuration does.
impl Status {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            name: plan.stream.keys.name.clone(),
            inner: Mutex::new(Inner {
                plan,
                state: State::Starting,
                is_paused: false,
                is_removed: false,
                run: None,
                past: Sum::default(),
            }),
            wish: watch::Sender::new(Wish { goal: Goal::Run, turn: 0 }),
            rate: AtomicU64::new(0),
            lag: AtomicU64::new(UNKNOWN),
            restarts: AtomicU64::new(0),
            last_error: Mutex::default(),
        }
    }

    /// It is to run by this plan from now on. Where only limits differ, they change while it runs; else the run comes to its
    /// end and another one begins. One that was stopped stays so.
    pub(super) fn adopt(&self, plan: Plan) {
        let mut inner = lock(&self.inner);
        let is_back = std::mem::replace(&mut inner.is_removed, false);
        let is_same = inner.plan.runs_like(&plan);
        inner.plan = plan;
        if is_same && !is_back {
            return inner.apply_limits();
        }
        let is_begun_anew = self.wish.send_if_modified(|wish| {
            let is_wanted = wish.goal == Goal::Run || (is_back && wish.goal == Goal::Rest);
            if is_wanted {
                *wish = Wish { goal: Goal::Run, turn: wish.turn + 1 };
            }
            is_wanted
        });
        // What waits to be started again is woken by its new turn.
        if is_begun_anew && inner.state != State::Waiting {
            inner.note_end();
        }
    }

    /// The limits of this stream are its limits from now on.
    pub(super) fn limit(&self, stream: &Stream) {
        let mut inner = lock(&self.inner);
        if differ_in_limits_only(&inner.plan.stream.keys, &stream.keys) {
            inner.plan.stream = stream.clone();
            inner.apply_limits();
        }
    }

    /// The configuration does not name it any more: it comes to its end, and is forgotten then.
    pub(super) fn remove(&self) {
        lock(&self.inner).is_removed = true;
        self.wish_for(Goal::Rest);
    }

    /// It comes to its end for good.
    pub(super) fn end_for_good(&self) {
        self.wish_for(Goal::End);
    }

    fn wish_for(&self, goal: Goal) {
        let mut inner = lock(&self.inner);
        self.wish.send_modify(|wish| {
            if wish.goal != Goal::End {
                wish.goal = goal;
            }
        });
        inner.note_end();
    }

    /// Whether nobody has to know of it any more.
    pub(super) fn is_forgotten(&self) -> bool {
        let inner = lock(&self.inner);
        inner.is_removed && inner.state.is_over()
    }
}

/// What its own task does.
impl Status {
    /// Waits until there is to be a run, of another turn than the one that is over. Its turn and its plan; `None` if there
    /// will be no more.
    ///
    /// # Cancel safety
    /// Dropped, it changes nothing.
    pub(super) async fn next_run(&self, over: Option<u64>) -> Option<(u64, Plan)> {
        let mut wishes = self.wish.subscribe();
        let is_awaited = |wish: &Wish| wish.goal == Goal::End || (wish.goal == Goal::Run && over != Some(wish.turn));
        wishes.wait_for(is_awaited).await.ok()?;
        let mut inner = lock(&self.inner);
        let wish = *self.wish.borrow();
        if wish.goal == Goal::End {
            return None;
        }
        inner.state = State::Starting;
        Some((wish.turn, inner.plan.clone()))
    }

    /// Completes when the run of this turn is to come to its end.
    ///
    /// # Cancel safety
    /// Dropped, it changes nothing.
    pub(super) async fn told_to_end(&self, turn: u64) {
        // The sender is ours, so there is always another wish to wait for.
        let _ = self.wish.subscribe().wait_for(|wish| wish.goal != Goal::Run || wish.turn != turn).await;
    }

    /// Whether the run of this turn is to come to its end.
    pub(super) fn is_to_end(&self, turn: u64) -> bool {
        let wish = self.wish.borrow();
        wish.goal != Goal::Run || wish.turn != turn
    }

    /// Records flow.
    pub(super) fn begin(&self, turn: u64, handle: SubscriptionHandle, width: Width) {
        let mut inner = lock(&self.inner);
        inner.state = match (self.is_to_end(turn), inner.is_paused) {
            (true, _) => State::Draining,
            (false, true) => State::Paused,
            (false, false) => State::Running,
        };
        inner.run = Some((handle, width));
        // They may have changed since the plan was read.
        inner.apply_limits();
    }

    /// The run of this turn is over.
    pub(super) fn end(&self, turn: u64, outcome: Outcome) {
        let mut inner = lock(&self.inner);
        if let Some((handle, _)) = inner.run.take() {
            inner.past = inner.past.with(&handle.metrics().counters);
        }
        let wish = *self.wish.borrow();
        inner.state = match (wish.goal, outcome) {
            (Goal::Run, _) if wish.turn != turn => State::Starting,
            (Goal::Run | Goal::End, Outcome::Done) => State::Ended,
            (Goal::Run, Outcome::Passing) => State::Waiting,
            (Goal::Rest, Outcome::Done | Outcome::Passing) => State::Stopped,
            (Goal::End, Outcome::Passing) | (_, Outcome::Failed) => State::Failed,
        };
        self.rate.store(0, Ordering::Relaxed);
    }

    pub(super) fn note_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_rate(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    pub(super) fn note_lag(&self, lag: Option<u64>) {
        self.lag.store(lag.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    pub(super) fn note_error(&self, reason: String) {
        *lock(&self.last_error) = reason;
    }

    pub(super) fn last_error(&self) -> String {
        lock(&self.last_error).clone()
    }

    /// What was done in all runs.
    pub(super) fn sum(&self) -> Sum {
        let inner = lock(&self.inner);
        inner.run.as_ref().map_or(inner.past, |(handle, _)| inner.past.with(&handle.metrics().counters))
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let inner = lock(&self.inner);
        let metrics = inner.run.as_ref().map(|(handle, _)| handle.metrics()).unwrap_or_default();
        let sum = inner.past.with(&metrics.counters);
        let lag = self.lag.load(Ordering::Relaxed);
        let (from, to) = inner.plan.stream.ends();
        Snapshot {
            name: self.name.clone(),
            from,
            to,
            state: inner.state,
            done: sum.done,
            rate: self.rate.load(Ordering::Relaxed),
            lag: (lag != UNKNOWN).then_some(lag),
            pending: metrics.pending,
            in_flight: metrics.in_flight,
            oldest: metrics.oldest_age,
            retried: sum.retried,
            dead_lettered: sum.dead_lettered,
            skipped: sum.skipped,
            parked: metrics.counters.records_parked,
            restarts: self.restarts.load(Ordering::Relaxed),
            last_error: self.last_error(),
        }
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Status").field("name", &self.name).finish_non_exhaustive()
    }
}
