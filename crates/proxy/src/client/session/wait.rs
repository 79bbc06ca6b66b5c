//! Waits of a client: for a server, or for a server check. The client connection is polled meanwhile.

use std::{
    pin::pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tidegate_link::Chunk;
use tidegate_pool::{Lease, ReleaseAction};
use tidegate_supervise::Ctx;
use tidegate_wire::{
    backend::{self, ErrorReply, ErrorReport, Severity},
    sqlstate,
};

use super::{Session, SessionEnd, bad_client};
use tidegate_config::{Dialect, PoolPlan, TimeoutConfig};
use tidegate_query_log::writer::{self, QueryTracker};

use crate::{
    client::{
        check,
        checkout_timeout::{checkout_timeout, wait_limit},
        log,
        route::{CheckoutFailure, Found, find_server},
    },
    error::Cause,
    plane::{ClientState, Signal},
    server::Server,
};

/// Reason of a disconnect during a wait.
const CLIENT_LEFT: &str = "client left while waiting";

/// How a wait ended.
enum Waited<T> {
    /// The awaited future is ready.
    Done(T),
    /// A reload has assigned another pool to the client.
    PoolReplaced,
    Cancelled,
    SessionEnd(SessionEnd),
}

impl Session {
    /// Waits for a server. Returns `None` if the client cancelled the wait, or must request a server from another pool.
    pub(super) async fn wait_for_server(
        &mut self,
        request: Chunk,
        ctx: &Ctx,
    ) -> Result<Option<(Lease<Server>, Chunk)>, SessionEnd> {
        let now = self.worker.reactor.now();
        let mut request = request.park();
        self.entry.client_info.state.set(ClientState::Waiting(now));
        self.notified = false;
        self.deadline.set(self.first_deadline(&self.home.plan().timeouts, now));
        let search = self.search(&request);
        let waited = self.wait_for(search, ctx).await;
        self.deadline.set(None);
        self.entry.client_info.state.set(ClientState::Idle);
        let waited_for = self.worker.reactor.now() - now;
        self.pool.stats.wait_time.add_time(waited_for);
        self.pool.stats.durations.wait.record(waited_for);
        match waited {
            Waited::Done(Ok((placed, lease))) => {
                self.pool = placed.as_ref().map_or(&self.home, |placed| &placed.pool).clone();
                self.placed = placed;
                Ok(Some((lease, request)))
            }
            Waited::Done(Err(error)) => {
                let session_end = SessionEnd::Terminated(error.message(), log::NO_SERVER);
                self.ended_wait = Some(waited_for);
                self.record_unserved(&request, &session_end);
                Err(session_end)
            }
            Waited::SessionEnd(session_end) => {
                self.ended_wait = Some(waited_for);
                self.record_unserved(&request, &session_end);
                Err(session_end)
            }
            Waited::Cancelled => self.cancel_wait(std::mem::replace(&mut request, Chunk::empty())).map(|()| None),
            Waited::PoolReplaced => {
                // The request is read again and goes to the new pool.
                self.front.link.unread_before(request);
                Ok(None)
            }
        }
    }

    /// Waits for a server check. Returns `None` if the check fails or the client cancels the wait; the session goes on, and a
    /// request that was not cancelled is retried.
    pub(super) async fn wait_for_check(
        &mut self,
        mut lease: Lease<Server>,
        request: Chunk,
        plan: &PoolPlan,
        ctx: &Ctx,
    ) -> Result<Option<(Lease<Server>, Chunk)>, SessionEnd> {
        let worker = self.worker.clone();
        let request = request.park();
        self.entry.client_info.state.set(ClientState::Waiting(worker.reactor.now()));
        let waited = self.wait_for(check::passes(&worker.reactor, &mut lease, plan), ctx).await;
        self.entry.client_info.state.set(ClientState::Idle);
        if matches!(waited, Waited::Done(true)) {
            return Ok(Some((lease, request)));
        }
        // The check query got no reply or a wrong one.
        lease.release(ReleaseAction::Close, worker.reactor.now());
        self.placed = None;
        match waited {
            Waited::Done(_) | Waited::PoolReplaced => self.front.link.unread_before(request),
            Waited::Cancelled => self.cancel_wait(request)?,
            Waited::SessionEnd(session_end) => {
                self.record_unserved(&request, &session_end);
                return Err(session_end);
            }
        }
        Ok(None)
    }

    /// Waits for `work` and for the events that end any wait of the client.
    async fn wait_for<T>(&mut self, work: impl Future<Output = T>, ctx: &Ctx) -> Waited<T> {
        let mut work = pin!(work);
        let mut reads = true;
        std::future::poll_fn(|cx| {
            // Checked first, so that a cancel does not outlive the wait that it belongs to.
            if self.entry.client_info.peek_signal() == Some(Signal::CancelWait) {
                return Poll::Ready(Waited::Cancelled);
            }
            if self.entry.client_info.is_pool_replaced.get() {
                return Poll::Ready(Waited::PoolReplaced);
            }
            match work.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Waited::Done(outcome)),
                Poll::Pending => self.poll_waiting(&mut reads, ctx, cx),
            }
        })
        .await
    }

    /// Sends the error for a wait that the client cancelled.
    fn cancel_wait(&mut self, request: Chunk) -> Result<(), SessionEnd> {
        self.entry.client_info.clear_signal();
        let refusal = ErrorReply::new(sqlstate::QUERY_CANCELED, "canceling statement due to user request");
        self.refuse_cancelled(request, &refusal.error())
    }

    /// Refuses a request that was cancelled before a server received it.
    pub(super) fn refuse_cancelled(&mut self, request: Chunk, error: &[u8]) -> Result<(), SessionEnd> {
        self.record_cancelled(&request);
        let mut out = Vec::new();
        let refused = self.idle.refuse(request, error, &mut out);
        self.front.link.write(out);
        let rest = refused.map_err(|error| bad_client(&error))?;
        // Bytes behind the refused pipeline are read before those that arrived later.
        self.front.link.unread_before(rest);
        Ok(())
    }

    /// Waits for a server: in the wait queue of the client's pool, or of any server that serves the route.
    fn search(&mut self, request: &[u8]) -> impl Future<Output = Result<Found, CheckoutFailure>> + use<> {
        let (worker, home, placed) = (self.worker.clone(), self.home.clone(), self.placed.take());
        let route = self.route(request);
        let now = self.worker.reactor.now();
        // Enqueue now: the queue position is that of this moment.
        let checkout = home.replica_set().is_none().then(|| home.local.checkout(now));
        async move {
            match checkout {
                Some(checkout) => checkout.await.map(|lease| (None, lease)).map_err(CheckoutFailure::Checkout),
                // Boxed: otherwise each waiter of a single pool would hold space for this state.
                None => Box::pin(find_server(&worker, &home, route, placed)).await,
            }
        }
    }

    /// Records the request of a client that was disconnected before it got a server.
    fn record_unserved(&self, request: &[u8], session_end: &SessionEnd) {
        self.record_refused(request, session_end.sqlstate(), session_end.reason());
    }

    fn record_cancelled(&self, request: &[u8]) {
        let pending_replies = writer::messages_until_ready(request);
        self.record_refused(
            pending_replies,
            sqlstate::QUERY_CANCELED.as_str().as_bytes(),
            "cancelled while it waited for a server",
        );
    }

    fn record_refused(&self, request: &[u8], sqlstate: &[u8], reason: &str) {
        let Some(session_log) = &self.session_log else { return };
        let now = self.worker.reactor.now();
        let tracker =
            QueryTracker::new(session_log, &self.front.settings, self.entry.client_info.request_at.get(), now);
        let statements = self.front.statements.as_deref();
        let known = |name: &[u8]| statements.and_then(|known| known.get(name)).map(|known| known.statement);
        tracker.reject(request, known, (sqlstate, reason), now);
    }

    fn poll_waiting<T>(&mut self, reads: &mut bool, ctx: &Ctx, cx: &mut Context<'_>) -> Poll<Waited<T>> {
        if let Some(session_end) = self.poll_interrupt(ctx, cx) {
            return Poll::Ready(Waited::SessionEnd(session_end));
        }
        if self.worker.gateway.lifecycle.is_draining() {
            return Poll::Ready(Waited::SessionEnd(SessionEnd::cause(Cause::ShuttingDown, &self.worker.gateway)));
        }
        // A disconnected client leaves the wait queue immediately. Bytes of a connected one are processed after the wait.
        while *reads {
            match self.front.link.poll_read(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(chunk)) if !chunk.is_empty() => {
                    self.front.link.unread(chunk);
                    *reads = false;
                }
                Poll::Ready(_) => return Poll::Ready(Waited::SessionEnd(SessionEnd::Gone(CLIENT_LEFT))),
            }
        }
        if !*reads && self.front.link.poll_peer_closed(cx).is_ready() {
            return Poll::Ready(Waited::SessionEnd(SessionEnd::Gone(CLIENT_LEFT)));
        }
        if let Poll::Ready(Err(_)) = self.front.link.poll_flush(cx) {
            return Poll::Ready(Waited::SessionEnd(SessionEnd::Gone("connection lost")));
        }
        let now = self.worker.reactor.now();
        if self.worker.is_suspended() || self.deadline.poll(now, cx).is_pending() {
            return Poll::Pending;
        }
        let plan = self.home.plan();
        let (times, dialect) = (&plan.timeouts, self.dialect());
        if let Some(rest) = self.notify_of_wait(times, now) {
            // The deadline must be polled again to register the waker.
            self.deadline.set(rest);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let route = self.asked.unwrap_or(plan.route.route);
        let refusal = checkout_timeout(&self.worker, &self.home, route, dialect);
        let is_checkout = wait_limit(times, dialect) == times.checkout;
        let reason = if is_checkout { "checkout timeout" } else { "query_timeout" };
        self.home.stats.checkout_timeout_count.add(1);
        Poll::Ready(Waited::SessionEnd(SessionEnd::refusal(&refusal, reason)))
    }

    /// Sends the wait notice. Returns the end of the wait (`Some(None)`: no limit), or `None` if the wait ends now.
    fn notify_of_wait(&mut self, times: &TimeoutConfig, now: Instant) -> Option<Option<Instant>> {
        let ClientState::Waiting(since) = self.entry.client_info.state.get() else { return None };
        let limit = wait_limit(times, self.dialect());
        let end = (!limit.is_zero()).then(|| since + limit);
        if self.notified || times.checkout_notice.is_zero() || end.is_some_and(|end| end <= now) {
            return None;
        }
        self.notified = true;
        let text = "No server connection available in postgres backend, client being queued";
        let mut out = Vec::new();
        let report = ErrorReport::new(Severity::Notice, sqlstate::SUCCESSFUL_COMPLETION, text);
        backend::notice_response(&report, &mut out);
        self.front.link.write(out);
        Some(end)
    }

    /// Earliest deadline of a waiter: the notice or the end of the wait.
    fn first_deadline(&self, times: &TimeoutConfig, now: Instant) -> Option<Instant> {
        let of = |time: Duration| (!time.is_zero()).then(|| now + time);
        of(wait_limit(times, self.dialect())).into_iter().chain(of(times.checkout_notice)).min()
    }

    fn dialect(&self) -> Dialect {
        self.worker.gateway.config.setup().config.listen.dialect
    }
}
