//! Events that interrupt an exchange.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use tidegate_config::{PoolMode, PoolPlan};
use tidegate_link::Deadline;
use tidegate_supervise::Ctx;
use tidegate_wire::{backend::ErrorReply, sqlstate};

use super::{ServedOutcome, SessionEnd};
use crate::{
    error::Cause,
    exchange::{Activity, Exchange},
    plane::{Gateway, Phase, RegisteredClient, SharedPool, Signal, Worker},
};

/// Conditions that interrupt an exchange.
pub(super) struct Interrupts<'a> {
    pub(super) deadline: &'a mut Deadline,
    pub(super) entry: &'a RegisteredClient,
    pub(super) plan: &'a PoolPlan,
    pub(super) gateway: &'a Gateway,
    /// Pool and generation of the server in session mode: with `pool.fast_close`, the session ends when the pool replaces its
    /// servers.
    pub(super) kept: Option<(Arc<SharedPool>, u64)>,
}

impl Interrupts<'_> {
    pub(super) fn poll(
        &mut self,
        exchange: &Exchange<'_>,
        now: Instant,
        ctx: &Ctx,
        cx: &mut Context<'_>,
    ) -> Poll<SessionEnd> {
        let activity = exchange.activity();
        self.entry.client_info.pins.set(exchange.pins());
        match self.entry.client_info.peek_signal() {
            Some(Signal::Kill) => return Poll::Ready(SessionEnd::cause(Cause::Killed, self.gateway)),
            Some(Signal::Deposed) => return Poll::Ready(server_deposed()),
            Some(Signal::Removed) if matches!(activity, Activity::Idle(_)) => {
                return Poll::Ready(SessionEnd::cause(Cause::Removed, self.gateway));
            }
            _ => {}
        }
        // A shutdown waits for open transactions unless it is immediate; a server that is held without a transaction does not
        // delay it. PgBouncer also waits for clients of session mode.
        let is_idle = matches!(activity, Activity::Idle(_));
        let is_cut = is_idle && self.plan.pool.mode != PoolMode::Session && self.gateway.lifecycle.is_draining();
        if is_cut || ctx.poll_cancelled(cx).is_ready() && (is_idle || self.gateway.lifecycle.phase() == Phase::Stopping)
        {
            return Poll::Ready(SessionEnd::cause(Cause::ShuttingDown, self.gateway));
        }
        if let (Some((pool, generation)), Activity::Idle(_)) = (&self.kept, activity)
            && (pool.pool.generation() != *generation || self.entry.client_info.is_pool_replaced.get())
            && pool.plan().pool.fast_close
        {
            return Poll::Ready(SessionEnd::cause(Cause::Outdated, self.gateway));
        }
        let Some((at, cause)) = self.next_deadline(activity, exchange.transaction_since()) else {
            self.deadline.set(None);
            return Poll::Pending;
        };
        self.deadline.set(Some(at));
        self.deadline.poll(now, cx).map(|()| SessionEnd::cause(cause, self.gateway))
    }

    /// While the gateway is suspended: flushes pending bytes and reads nothing.
    pub(super) fn poll_held(
        &self,
        worker: &Worker,
        exchange: &mut Exchange<'_>,
        ctx: &Ctx,
        cx: &mut Context<'_>,
    ) -> Poll<ServedOutcome> {
        let disconnect_cause = match self.entry.client_info.peek_signal() {
            Some(Signal::Kill) => Some(Cause::Killed),
            Some(Signal::SuspendTimeout) => Some(Cause::Suspend),
            _ => None,
        };
        if let Some(cause) = disconnect_cause {
            return Poll::Ready(ServedOutcome::Interrupted(SessionEnd::cause(cause, self.gateway)));
        }
        if ctx.poll_cancelled(cx).is_ready() && self.gateway.lifecycle.phase() == Phase::Stopping {
            return Poll::Ready(ServedOutcome::Interrupted(SessionEnd::cause(Cause::ShuttingDown, self.gateway)));
        }
        match exchange.flush(cx) {
            Ok(is_sent) => {
                worker.hold(&self.entry.client_info, is_sent);
                Poll::Pending
            }
            Err(end) => Poll::Ready(ServedOutcome::Exchange(end)),
        }
    }

    fn next_deadline(&self, activity: Activity, transaction: Option<Instant>) -> Option<(Instant, Cause)> {
        let times = &self.plan.timeouts;
        let (since, limit, cause) = match activity {
            Activity::Query(since) => (since, times.query, Cause::Query),
            Activity::IdleInTransaction(since) => (since, times.idle_in_transaction, Cause::IdleInTransaction),
            Activity::Idle(since) => (since, times.client_idle, Cause::ClientIdle),
        };
        let own = (!limit.is_zero()).then(|| (since + limit, cause));
        let whole = transaction
            .filter(|_| !times.transaction.is_zero() && !matches!(activity, Activity::Idle(_)))
            .map(|since| (since + times.transaction, Cause::Transaction));
        own.into_iter().chain(whole).min_by_key(|(at, _)| *at)
    }
}

fn server_deposed() -> SessionEnd {
    let refusal = ErrorReply::new(sqlstate::CONNECTION_FAILURE, "the server is not the primary any more")
        .hint("Another one is. It is not known whether the last statement was carried out.");
    SessionEnd::refusal(&refusal, "server deposed")
}
