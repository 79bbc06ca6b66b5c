//! The way of a session to the process that replaces this one.

use std::{
    future::poll_fn,
    os::fd::AsFd as _,
    task::Context,
    time::{SystemTime, UNIX_EPOCH},
};

use tidegate_config::PoolMode;
use tidegate_handover::{MoveOutcome, MovePermit, SessionRecord};
use tidegate_link::PeerAddress;

use super::Session;

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

impl Session {
    /// Permission to move now: the client is between transactions, and nothing ties it to this process. It may have to wait for
    /// bytes that it is sent.
    pub(super) fn try_depart(&mut self, cx: &Context<'_>) -> Option<MovePermit> {
        let is_own = self.entry.client_info.process == std::process::id();
        if self.mobility == Mobility::Deferred {
            self.mobility = Mobility::Possible;
            return None;
        }
        if self.mobility == Mobility::Refused
            || is_own
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
            Ok(fd) => departures.depart(permit, fd, self.record(&unread).encode()).await,
            Err(_) => MoveOutcome::NotSent,
        };
        if outcome != MoveOutcome::Moved {
            self.front.link.unread(unread.into());
            // Otherwise, attempts without a wait between them would keep the thread busy.
            self.mobility = Mobility::Deferred;
            if let MoveOutcome::Refused(reason) = outcome {
                self.mobility = Mobility::Refused;
                gateway.moves.count_refusal();
                let client_info = &self.entry.client_info;
                let (client, database, user) = (client_info.id, &client_info.database, &client_info.user);
                tracing::info!(client, %database, %user, reason, "session stays with this process");
            }
            return false;
        }
        gateway.moves.count_departure();
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
