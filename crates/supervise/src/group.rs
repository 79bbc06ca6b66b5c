//! A group of children that restart together.
//!
//! Members are listed once, in start order; later members depend on earlier ones. When a member ends and must restart, the
//! [`Strategy`] selects the members that restart with it. These stop last to first, one at a time, and start first to last.
//! The restart of a member is a restart of its scope: counted, reported to the observer, and charged to the scope's own
//! budget. A member whose factory panics ends as [`Exit::Panicked`].

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
use crate::{ChildOutput, Exit, Refused};

/// Members that restart together with a member that ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Strategy {
    /// Only the member that ended.
    #[default]
    OneForOne,
    /// Every member.
    OneForAll,
    /// The member that ended and all listed after it.
    RestForOne,
}

/// Error of a group that ended without a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupEnd {
    /// The restart budget of the group is used up.
    #[error("member {member} {exit}: restart budget is used up")]
    GaveUp {
        /// The member that ended last.
        member: &'static str,
        /// Exit of that member.
        exit: Exit,
    },
    /// The scope refused a member: two members have this name, another child of the scope has it, or the scope has its
    /// maximum of children.
    #[error("member {member} did not start")]
    Refused {
        /// The member.
        member: &'static str,
        /// The reason.
        #[source]
        refused: Refused,
    },
    /// A member did not end after its abort, so the group could not restart.
    #[error("member {member} did not end after its abort")]
    Stuck {
        /// The member that blocks its thread.
        member: &'static str,
    },
}

/// A static group. `B` is the boxed future of its members, `Send` or not, as the runtime requires.
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

/// A running member.
struct Running {
    child: Child,
    ended: Ended,
}

impl<B> Group<B> {
    /// Creates an empty group with the default budget and backoff, and a grace period of 5 s.
    pub fn new(strategy: Strategy) -> Self {
        Self { strategy, retry: RetryPolicy::default(), grace: Duration::from_secs(5), members: Vec::new() }
    }

    /// Sets the restart budget of the group, shared by all members.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.retry.budget = budget;
        self
    }

    /// Sets the delay before members restart.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.retry.backoff = backoff;
        self
    }

    /// Sets how long a member that stops with another may take before it is aborted, and how long the abort may take.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Adds a member after the members listed so far. Names must differ: otherwise [`run`](Self::run) returns
    /// [`GroupEnd::Refused`].
    pub fn member(
        mut self,
        name: &'static str,
        restart: Restart,
        make: impl Fn(Ctx) -> B + Send + Sync + 'static,
    ) -> Self {
        self.members.push(Member { name, restart, make: Box::new(make) });
        self
    }

    /// Starts the members as children of `scope` and restarts them, until the scope stops or no member is left.
    ///
    /// Spawn the returned future as a child of a scope above `scope`, so that the members stop first; `ctx` is the context of
    /// that child.
    ///
    /// # Errors
    /// [`GroupEnd`] if the group gave up, or if the scope refused a member. The other members have been stopped.
    ///
    /// # Cancel safety
    /// When dropped, the members continue without restarts; stop the scope to end them.
    pub async fn run<R>(self, ctx: Ctx, scope: Scope<&'static str>, runtime: R) -> Result<(), GroupEnd>
    where
        B: Future<Output: ChildOutput>,
        R: Timer + Spawn<Supervised<B>>,
    {
        let running = self.members.iter().map(|_| None).collect();
        let retries = self.retry.start();
        let panicked = VecDeque::new();
        let mut keeper = Keeper { retries, running, panicked, group: &self, scope, runtime, ctx };
        keeper.start(|_| true, |_| {}).await?;
        keeper.keep().await
    }

    fn restarts_with(&self, index: usize, other: usize) -> bool {
        match self.strategy {
            Strategy::OneForOne => other == index,
            Strategy::OneForAll => true,
            Strategy::RestForOne => other >= index,
        }
    }
}

struct Keeper<'a, B, R> {
    group: &'a Group<B>,
    scope: Scope<&'static str>,
    runtime: R,
    ctx: Ctx,
    running: Vec<Option<Running>>,
    /// Members whose factory panicked.
    panicked: VecDeque<usize>,
    retries: RetryState,
}

impl<B, R> Keeper<'_, B, R>
where
    B: Future<Output: ChildOutput>,
    R: Timer + Spawn<Supervised<B>>,
{
    async fn keep(&mut self) -> Result<(), GroupEnd> {
        let mut began = self.runtime.now();
        while let Some((index, exit)) = self.next_end().await {
            let member = &self.group.members[index];
            if self.scope.is_stopping() || !member.restart.applies_to(exit) {
                continue;
            }
            let now = self.runtime.now();
            let ran = now.saturating_duration_since(began);
            let delay = self.retries.next_delay(&self.group.retry, now, ran, fastrand::f64());
            let turn = delay.and_then(|delay| Some(delay.max(self.scope.hub().restart_turn(now)?)));
            let stops = |other| if turn.is_some() { self.group.restarts_with(index, other) } else { true };
            self.stop_members(stops).await?;
            let Some(wait) = turn else {
                self.scope.hub().observe(|observer, scope| observer.gave_up(scope, &member.name, exit));
                return Err(GroupEnd::GaveUp { member: member.name, exit });
            };
            self.scope.hub().observe(|observer, scope| observer.restarting(scope, &member.name, exit, None, wait));
            self.pause(wait).await;
            let group = self.group;
            let restarts =
                |other: usize| group.restarts_with(index, other) && group.members[other].restart != Restart::Temporary;
            self.start(restarts, Ctx::record_replacement).await?;
            began = self.runtime.now();
        }
        Ok(())
    }

    /// Returns the next member that ends; `None` if no member runs. A stop of the scope ends all members.
    async fn next_end(&mut self) -> Option<(usize, Exit)> {
        if let Some(index) = self.panicked.pop_front() {
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

    /// Sleeps, but returns early when the group must stop.
    async fn pause(&self, wait: Duration) {
        let mut sleep = pin!(self.runtime.sleep(wait));
        poll_fn(|cx| match self.ctx.poll_cancelled(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => sleep.as_mut().poll(cx),
        })
        .await;
    }

    async fn start(&mut self, filter: impl Fn(usize) -> bool, prepare: impl Fn(&Ctx)) -> Result<(), GroupEnd> {
        for (index, member) in self.group.members.iter().enumerate() {
            if self.running[index].is_some() || !filter(index) {
                continue;
            }
            let make = |ctx: Ctx| {
                prepare(&ctx);
                (member.make)(ctx)
            };
            let Ok(wrapped) = catch_unwind(AssertUnwindSafe(|| self.scope.wrap_as(member.name, make))) else {
                self.panicked.push_back(index);
                continue;
            };
            let supervised = match wrapped {
                Ok(supervised) => supervised,
                // No member starts, and the keeper ends with those that run.
                Err(Refused::Stopping | Refused::Draining) => return Ok(()),
                Err(refused) => {
                    self.stop_members(|_| true).await?;
                    return Err(GroupEnd::Refused { member: member.name, refused });
                }
            };
            let child = supervised.child();
            self.running[index] = Some(Running { ended: child.ended(), child });
            self.runtime.spawn(supervised);
        }
        Ok(())
    }

    async fn stop_members(&mut self, stops: impl Fn(usize) -> bool) -> Result<(), GroupEnd> {
        for index in (0..self.running.len()).rev().filter(|index| stops(*index)) {
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
