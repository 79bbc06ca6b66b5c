//! Why a session ends, and the last message, log line and record of it.

use tidegate_handover::MovePermit;
use tidegate_wire::{
    backend::{ErrorFields, ErrorReply},
    frame::HEADER,
};

use super::{
    super::{close_with, log},
    PinnedServer, Session, departure,
};
use crate::{error::Cause, plane::Gateway};

/// Why a session ends.
pub(super) enum SessionEnd {
    /// Another process may take the session over.
    Departs(MovePermit),
    /// Another process may take the session over with the server that the client is pinned to.
    DepartsWithServer(MovePermit, Box<PinnedServer>),
    /// The client disconnected, or its link broke: no error can be sent.
    Gone(&'static str),
    /// The gateway closes the connection after sending these bytes.
    Terminated(Vec<u8>, &'static str),
}

impl SessionEnd {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Gone(reason) | Self::Terminated(_, reason) => reason,
            Self::Departs(_) | Self::DepartsWithServer(..) => departure::MOVED,
        }
    }

    /// SQLSTATE of the error sent to the client; empty without an error.
    pub(super) fn sqlstate(&self) -> &[u8] {
        let Self::Terminated(words, _) = self else { return &[] };
        let fields = words.get(HEADER..).and_then(|body| ErrorFields::decode(body).ok());
        fields.and_then(|fields| fields.get(b'C')).unwrap_or_default()
    }

    pub(super) fn log_fields(&self) -> (&[u8], &'static str) {
        (self.sqlstate(), self.reason())
    }

    pub(super) fn refusal(refusal: &ErrorReply, reason: &'static str) -> Self {
        Self::Terminated(refusal.fatal(), reason)
    }

    pub(super) fn cause(cause: Cause, gateway: &Gateway) -> Self {
        if cause == Cause::ShuttingDown && gateway.exits_like_pgbouncer() {
            return Self::Gone(cause.reason());
        }
        Self::refusal(&cause.refusal(gateway.config.setup().config.listen.dialect), cause.reason())
    }
}

impl Session {
    /// Closes the client's link and logs why.
    pub(super) async fn leave(&mut self, session_end: SessionEnd) {
        self.release_reserved();
        self.entry.client_info.link(None);
        self.worker.registry.leave(&self.entry);
        let error = match &session_end {
            SessionEnd::Terminated(words, _) => Some(words.as_slice()),
            SessionEnd::Gone(_) | SessionEnd::Departs(_) | SessionEnd::DepartsWithServer(..) => None,
        };
        let departure = log::Departure::of(session_end.reason()).with(error, self.ended_wait);
        let gateway = &self.worker.gateway;
        log::left(&gateway.config, &gateway.clients.outcomes, &self.entry.client_info, &departure);
        let reason = match session_end {
            // The link closes on drop and discards pending bytes.
            SessionEnd::Gone(reason) => reason,
            SessionEnd::Departs(_) | SessionEnd::DepartsWithServer(..) => departure::MOVED,
            SessionEnd::Terminated(words, reason) => {
                close_with(&self.worker, &mut self.front.link, words).await;
                reason
            }
        };
        if let Some(session_log) = &self.session_log {
            session_log.log_disconnect(reason, self.worker.reactor.now());
        }
    }
}
