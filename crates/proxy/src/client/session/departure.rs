//! The way of a session to the process that replaces this one.

use std::{
    future::poll_fn,
    os::fd::AsFd as _,
    task::{Context, Poll},
    time::{SystemTime, UNIX_EPOCH},
};

use tidegate_config::PoolMode;
use tidegate_handover::{MoveOutcome, MovePermit, SessionRecord, SessionSockets};
use tidegate_link::PeerAddress;
use tidegate_pool::ReleaseAction;

use super::{PinnedServer, Session};
use crate::{exchange::Exchange, plane::Worker};

/// Reason for the end of a session that moves.
pub(super) const MOVED: &str = "moved to another process";

/// Whether a session may move to another process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mobility {
    /// When it is between transactions.
    Possible,
    /// Not at the next opportunity: the last attempt came at a bad time.
    Deferred,
    /// The other process has refused it.
    Refused,
}

impl Mobility {
    /// Whether this opportunity may be used.
    fn take_turn(&mut self) -> bool {
        if *self == Self::Deferred {
            *self = Self::Possible;
            return false;
        }
        *self == Self::Possible
    }
}

/// Permission to move now for a client that is pinned to its server: both are between two transactions.
pub(super) fn permit_of(
    worker: &Worker,
    mobility: &mut Mobility,
    exchange: &mut Exchange<'_>,
    cx: &Context<'_>,
) -> Option<MovePermit> {
    let is_ready = exchange.is_portable(cx) && mobility.take_turn();
    if is_ready { worker.gateway.moves.departures()?.try_permit() } else { None }
}

impl Session {
    /// Whether the session may move while it has a server, as clients do that are pinned. A server of a database with several
    /// stays: the other process may not know it yet.
    pub(super) fn may_depart_with_server(&self, is_session_mode: bool) -> bool {
        let is_own = self.entry.client_info.process == std::process::id();
        !is_session_mode && !is_own && self.placed.is_none() && self.pool.shared.key.host.is_none()
    }

    /// Permission to move now: the client is between transactions, and nothing ties it to this process. It may have to wait for
    /// bytes that it is sent.
    pub(super) fn try_depart(&mut self, cx: &Context<'_>) -> Option<MovePermit> {
        let is_own = self.entry.client_info.process == std::process::id();
        if !self.mobility.take_turn()
            || is_own
            || !self.front.pins.is_empty()
            || !self.front.is_portable()
            || self.home.plan().pool.mode == PoolMode::Session
        {
            return None;
        }
        let is_sent = self.front.link.poll_sent(cx).is_ready();
        if is_sent { self.worker.gateway.moves.departures()?.try_permit() } else { None }
    }

    /// Sends the session to the other process. Returns true if that process serves it from now on. Otherwise, it goes on here as
    /// before.
    pub(super) async fn depart(&mut self, permit: MovePermit) -> bool {
        let gateway = self.worker.gateway.clone();
        let Some(departures) = gateway.moves.departures() else { return false };
        // No receive may be in flight when the other process reads.
        poll_fn(|cx| self.front.link.poll_quiesce(cx)).await;
        let unread = self.front.link.take_unread();
        let outcome = match self.front.link.as_fd().try_clone_to_owned() {
            Ok(client) => {
                let sockets = SessionSockets { client, server: None };
                departures.depart(permit, sockets, self.record(&unread).encode()).await
            }
            Err(_) => MoveOutcome::NotSent,
        };
        let has_moved = self.settle(outcome);
        if !has_moved {
            self.front.link.unread(unread.into());
        }
        has_moved
    }

    /// As [`Self::depart`], for a client that is pinned to this server, which goes on in the other process as well. Returns the
    /// server if the session stays.
    pub(super) async fn depart_with(
        &mut self,
        permit: MovePermit,
        mut pinned: Box<PinnedServer>,
    ) -> Option<Box<PinnedServer>> {
        let gateway = self.worker.gateway.clone();
        let Some(departures) = gateway.moves.departures() else { return Some(pinned) };
        let server = &mut pinned.lease;
        poll_fn(|cx| match (self.front.link.poll_quiesce(cx), server.link().poll_quiesce(cx)) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(()),
            _ => Poll::Pending,
        })
        .await;
        let (unread, of_server) = (self.front.link.take_unread(), server.link().take_unread());
        let sockets = self.front.link.as_fd().try_clone_to_owned().and_then(|client| {
            let server = server.link().as_fd().try_clone_to_owned()?;
            Ok(SessionSockets { client, server: Some(server) })
        });
        let outcome = match sockets {
            Ok(sockets) => {
                let mut record = self.record(&unread);
                let (client, changes) = (self.front.id, self.worker.catalog.changes());
                let age = self.worker.reactor.now().saturating_duration_since(server.opened_at());
                let mut exported = server.export(client, &self.pool.plan(), changes, of_server.clone());
                exported.age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
                record.pins = self.front.pins.to_bits().into();
                record.server = Some(exported);
                departures.depart(permit, sockets, record.encode()).await
            }
            Err(_) => MoveOutcome::NotSent,
        };
        if !self.settle(outcome) {
            self.front.link.unread(unread.into());
            server.link().unread(of_server.into());
            return Some(pinned);
        }
        server.hand_over();
        server.fault = Some(MOVED);
        pinned.lease.release(ReleaseAction::Close, self.worker.reactor.now());
        None
    }

    /// Records the outcome of a move. Returns whether another process serves the session.
    fn settle(&mut self, outcome: MoveOutcome) -> bool {
        let moves = &self.worker.gateway.moves;
        if outcome != MoveOutcome::Moved {
            // Otherwise, attempts without a wait between them would keep the thread busy.
            self.mobility = Mobility::Deferred;
            if let MoveOutcome::Refused(reason) = outcome {
                self.mobility = Mobility::Refused;
                moves.count_refusal();
                let client_info = &self.entry.client_info;
                let (client, database, user) = (client_info.id, &client_info.database, &client_info.user);
                tracing::info!(client, %database, %user, reason, "session stays with this process");
            }
            return false;
        }
        moves.count_departure();
        self.entry.client_info.link(None);
        self.worker.registry.leave(&self.entry);
        if let Some(session_log) = &self.session_log {
            session_log.log_disconnect(MOVED, self.worker.reactor.now());
        }
        true
    }

    fn record(&self, unread: &[u8]) -> SessionRecord {
        let (worker, client_info) = (&self.worker, &self.entry.client_info);
        let peer = if let PeerAddress::Tcp(address) = client_info.peer { address.to_string() } else { String::new() };
        let local = worker.registry.local_of(client_info).map(|local| local.to_string());
        let mut record = SessionRecord {
            database: client_info.database.to_string(),
            user: client_info.user.to_string(),
            peer,
            local: local.unwrap_or_default(),
            process: client_info.process,
            connected_at_us: micros(client_info.connected_at),
            pid: worker.pid_of(&self.entry),
            secret: client_info.secret().to_vec(),
            route: self.asked.map_or_else(String::new, |route| route.to_string()),
            unread: unread.to_vec(),
            ..SessionRecord::default()
        };
        self.front.export(&worker.catalog, &mut record);
        self.idle.export(&mut record);
        record.set_login(worker.gateway.pools.connector.secrets.export(&self.home.plan()));
        record
    }
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
