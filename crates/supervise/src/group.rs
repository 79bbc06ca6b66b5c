//! A few children that stand and fall together.
//!
//! The members of a group are listed once, in the order in which they start; later members depend on earlier ones. When
//! one ends and is to be started again, its [`Strategy`] says who goes down with it. They go down last to first, each
//! waited for, and come up first to last. A member that comes up again is a restart of its scope: counted, told to the
//! observer, and held against the scope's own budget. One that panics before it has a future has ended by that panic.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tidegate_backoff::{Backoff, Budget, RetryPolicy, RetryState};

use crate::child::{Child, Ctx, Ended, Supervised};
use crate::restart::Restart;
use crate::runtime::{Spawn, Timer};
use crate::scope::Scope;
use crate::{Completion, Exit};

/// Who is started again together with a member that ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Strategy {
    /// That member alone.
    #[default]
    OneForOne,
    /// Every member.
    OneForAll,
    /// That member and all listed after it.
    RestForOne,
}

/// Why a group ended without being told to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupEnd {
    /// The restart budget of the group is used up.
    #[error("member {member} ended ({exit}) once too often")]
    GaveUp {
        /// The member that ended last.
        member: &'static str,
        /// How it ended.
        exit: Exit,
    },
    /// A member did not go down, although it was aborted, so its group could not be started again.
    #[error("member {member} does not end")]
    Stuck {
        /// The member that blocks its thread.
        member: &'static str,
    },
}

/// A static group. `B` is the boxed future of its members, `Send` or not, as the runtime needs.
#[must_use = "a group does nothing until it runs"]
pub struct Group<B> {
    strategy: Strategy,
    retry: RetryPolicy,
    grace: Duration,
    members: Vec<Member<B>>,
}

struct Member<B> {
    name: &'static str,
    restart: Restart,
    make: Box<dyn Fn(Ctx) -> B + Send + Sync>,
}

impl<B> Debug for Group<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.members.iter().map(|member| member.name).collect();
        f.debug_struct("Group").field("strategy", &self.strategy).field("members", &names).finish_non_exhaustive()
    }
}

/// A member while the group runs.
struct Running {
    child: Child,
    ended: Ended,
}

impl<B> Group<B> {
    /// An empty group with the default budget and back-off, and 5 s of grace for a member that goes down with another.
    pub fn new(strategy: Strategy) -> Self {
        Self { strategy, retry: RetryPolicy::default(), grace: Duration::from_secs(5), members: Vec::new() }
    }

    /// How often the group may recover, whoever fell.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.retry.budget = budget;
        self
    }

    /// The wait before members come up again.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.retry.backoff = backoff;
        self
    }

    /// How long a member that goes down with another may take before it is aborted, and again after that.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Adds a member after those listed so far. Names must differ.
    pub fn member(
        mut self,
        name: &'static str,
        restart: Restart,
        make: impl Fn(Ctx) -> B + Send + Sync + 'static,
    ) -> Self {
        self.members.push(Member { name, restart, make: Box::new(make) });
        self
    }

    /// Starts the members as children of `scope` and keeps them up, until the scope stops or no member is left.
    ///
    /// The future is to be a child itself, of a scope above `scope`, so that the members stop before it; `ctx` is that
    /// child's.
    ///
    /// # Errors
    /// [`GroupEnd`] if the group gave up. Its other members have been taken down then.
    ///
    /// # Cancel safety
    /// Dropped, the members run on without a keeper; stop the scope.
    pub async fn run<R>(self, ctx: Ctx, scope: Scope<&'static str>, runtime: R) -> Result<(), GroupEnd>
    where
        B: Future<Output: Completion>,
        R: Timer + Spawn<Supervised<B>>,
    {
        let running = self.members.iter().map(|_| None).collect();
        let retries = self.retry.start();
        let unborn = VecDeque::new();
        let mut keeper = Keeper { retries, running, unborn, group: &self, scope, runtime, ctx };
        keeper.start(|_| true, |_| {});
        keeper.keep().await
    }

    fn falls_with(&self, fallen: usize, other: usize) -> bool {
        match self.strategy {
            Strategy::OneForOne => other == fallen,
            Strategy::OneForAll => true,
            Strategy::RestForOne => other >= fallen,
        }
    }
}

struct Keeper<'a, B, R> {
    group: &'a Group<B>,
    scope: Scope<&'static str>,
    runtime: R,
    ctx: Ctx,
    running: Vec<Option<Running>>,
    /// Members whose factory has panicked.
    unborn: VecDeque<usize>,
    retries: RetryState,
}

impl<B, R> Keeper<'_, B, R>
where
    B: Future<Output: Completion>,
    R: Timer + Spawn<Supervised<B>>,
{
    async fn keep(&mut self) -> Result<(), GroupEnd> {
        let mut began = self.runtime.now();
        while let Some((fallen, exit)) = self.next_end().await {
            let member = &self.group.members[fallen];
            if self.scope.is_stopping() || !member.restart.applies_to(exit) {
                continue;
            }
            let now = self.runtime.now();
            let ran = now.saturating_duration_since(began);
            let delay = self.retries.next_delay(&self.group.retry, now, ran, fastrand::f64());
            let turn = delay.and_then(|delay| Some(delay.max(self.scope.hub().restart_turn(now)?)));
            let falls = |other| if turn.is_some() { self.group.falls_with(fallen, other) } else { true };
            self.take_down(falls).await?;
            let Some(wait) = turn else {
                self.scope.hub().observe(|observer, scope| observer.gave_up(scope, &member.name, exit));
                return Err(GroupEnd::GaveUp { member: member.name, exit });
            };
            self.scope.hub().observe(|observer, scope| observer.restarting(scope, &member.name, exit, None, wait));
            self.pause(wait).await;
            let group = self.group;
            let rises =
                |other: usize| group.falls_with(fallen, other) && group.members[other].restart != Restart::Temporary;
            self.start(rises, Ctx::replaces);
            began = self.runtime.now();
        }
        Ok(())
    }

    /// The next member to end; `None` when none is up. A scope that stops ends all of them.
    async fn next_end(&mut self) -> Option<(usize, Exit)> {
        if let Some(index) = self.unborn.pop_front() {
            return Some((index, Exit::Panicked));
        }
        poll_fn(|cx| {
            let mut up = 0;
            for (index, place) in self.running.iter_mut().enumerate() {
                let Some(running) = place else { continue };
                match Pin::new(&mut running.ended).poll(cx) {
                    Poll::Ready(exit) => {
                        *place = None;
                        return Poll::Ready(Some((index, exit.unwrap_or(Exit::Dropped))));
                    }
                    Poll::Pending => up += 1,
                }
            }
            if up == 0 { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Waits, but not while its own end is asked for.
    async fn pause(&self, wait: Duration) {
        let mut sleep = pin!(self.runtime.sleep(wait));
        poll_fn(|cx| match self.ctx.poll_cancelled(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => sleep.as_mut().poll(cx),
        })
        .await;
    }

    fn start(&mut self, comes_up: impl Fn(usize) -> bool, note: impl Fn(&Ctx)) {
        for (index, member) in self.group.members.iter().enumerate() {
            if self.running[index].is_some() || !comes_up(index) {
                continue;
            }
            let make = |ctx: Ctx| {
                note(&ctx);
                (member.make)(ctx)
            };
            let Ok(wrapped) = catch_unwind(AssertUnwindSafe(|| self.scope.wrap_as(member.name, make))) else {
                self.unborn.push_back(index);
                continue;
            };
            // A scope that stops refuses; then nobody comes up, and the keeper ends.
            let Ok(supervised) = wrapped else { return };
            let child = supervised.child();
            self.running[index] = Some(Running { ended: child.ended(), child });
            self.runtime.spawn(supervised);
        }
    }

    async fn take_down(&mut self, falls: impl Fn(usize) -> bool) -> Result<(), GroupEnd> {
        for index in (0..self.running.len()).rev().filter(|index| falls(*index)) {
            let Some(mut running) = self.running[index].take() else { continue };
            running.child.stop();
            if self.within_grace(&mut running.ended).await {
                continue;
            }
            running.child.abort();
            if !self.within_grace(&mut running.ended).await {
                return Err(GroupEnd::Stuck { member: self.group.members[index].name });
            }
        }
        Ok(())
    }

    async fn within_grace(&self, ended: &mut Ended) -> bool {
        let mut grace = pin!(self.runtime.sleep(self.group.grace));
        poll_fn(|cx| match Pin::new(&mut *ended).poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending => grace.as_mut().poll(cx).map(|()| false),
        })
        .await
    }
}
