//! Refused logins: the error for the client, the log and the query log.

use std::rc::Rc;
use tidegate_wire::{
    backend::{ErrorFields, ErrorReply},
    frame::HEADER,
    sqlstate,
};

use super::{Arriving, LoginError};
use tidegate_config::Dialect;
use tidegate_query_log::writer::{PeerInfo, SessionLog};

use crate::{
    client::{close_with, log},
    error::Cause,
    plane::Setup,
};

impl Arriving {
    /// Sends the refusal to the client, and returns the error for the log.
    pub(in crate::client) async fn refuse(&mut self, error: LoginError) -> LoginError {
        let words = match &error {
            LoginError::Refused(refusal)
            | LoginError::Denied(refusal)
            | LoginError::Limited(_, refusal)
            | LoginError::NoDatabase(refusal)
            | LoginError::CheckoutTimeout(refusal) => refusal.fatal(),
            LoginError::Server(message) => message.clone(),
            LoginError::Timeout => Cause::Login.refusal(self.dialect()).fatal(),
            // Postgres closes without an error (`ProcessStartupPacket` in `src/backend/tcop/backend_startup.c`).
            // node-postgres sends Terminate in place of the packet where `end()` follows `connect()`, and expects no message.
            LoginError::Length(fault) if self.dialect() == Dialect::Pgbouncer && !self.looks_like_http() => {
                ErrorReply::protocol(format!("invalid start-up packet: {fault}")).fatal()
            }
            LoginError::Decode(fault) => ErrorReply::protocol(format!("invalid start-up packet: {fault}")).fatal(),
            _ => {
                self.link.shutdown();
                return error;
            }
        };
        self.log_refusal(&error, &words);
        self.record_refusal(&words);
        close_with(&self.worker, &mut self.link, words).await;
        error
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.worker.gateway.config.setup().config.listen.dialect
    }

    pub(super) fn cause(&self, cause: Cause) -> LoginError {
        LoginError::Limited(cause, cause.refusal(self.dialect()))
    }

    /// Refusal for a client certificate. PgBouncer logs the detail and does not send it.
    pub(super) fn certificate_refused(&self, cause: Cause) -> LoginError {
        let setup = self.worker.gateway.config.setup();
        if let (Dialect::Pgbouncer, Some(detail)) = (setup.config.listen.dialect, cause.detail()) {
            tracing::error!("{} {detail}", self.log_name(&setup));
        }
        self.denied(cause)
    }

    /// Refusal for failed authentication.
    pub(super) fn denied(&self, cause: Cause) -> LoginError {
        LoginError::Denied(cause.refusal(self.dialect()))
    }

    /// The client in the format of PgBouncer's log.
    fn log_name(&self, setup: &Setup) -> String {
        let (user, database) = self.asked.clone().unwrap_or_else(|| ("(nouser)".into(), "(nodb)".into()));
        let peer = log::place(self.peer, self.process_number(), setup.config.listen.unix_port());
        format!("C-{}: {database}/{user}@{peer}", self.id)
    }

    fn log_refusal(&self, error: &LoginError, words: &[u8]) {
        let setup = self.worker.gateway.config.setup();
        let fields = words.get(HEADER..).and_then(|body| ErrorFields::decode(body).ok());
        let sqlstate = fields.as_ref().and_then(ErrorFields::code).unwrap_or(sqlstate::CONNECTION_FAILURE);
        let sent = match error {
            LoginError::Timeout => Cause::Login.reason().to_owned(),
            _ => fields.as_ref().and_then(ErrorFields::message).unwrap_or_default().into_owned(),
        };
        let reason = error.reason();
        self.worker.gateway.clients.outcomes.count_refusal(reason);
        let age = self.worker.reactor.now() - self.since;
        if setup.config.listen.dialect == Dialect::Postgres {
            if setup.config.log.refusals {
                let (user, database) = self.asked.clone().unwrap_or_default();
                let (duration_ms, wait_ms) = (log::millis(age), self.waited.map(log::millis));
                let (client, peer) = (self.id, self.peer);
                tracing::warn!(
                    client, %peer, database, user, duration_ms, wait_ms, %sqlstate, reason, error = sent, "login refused"
                );
            }
            return;
        }
        let log_name = self.log_name(&setup);
        if setup.config.log.disconnections {
            tracing::info!("{log_name} closing because: {sent} (age={}s)", age.as_secs());
        }
        if setup.config.log.refusals {
            tracing::warn!("{log_name} pooler error: {sent}");
        }
    }

    fn peer_info(&self) -> PeerInfo {
        let (user, database) = self.asked.clone().unwrap_or_default();
        PeerInfo { client: self.peer.to_string(), user, database, application: self.application.clone() }
    }

    fn record_refusal(&self, words: &[u8]) {
        let Some(recorder) = &self.worker.recorder else { return };
        let fields = words.get(HEADER..).and_then(|body| ErrorFields::decode(body).ok());
        let field = |code| fields.as_ref().and_then(|fields| fields.get(code)).unwrap_or_default();
        recorder.log_failed_login(&self.peer_info(), field(b'C'), field(b'M'), self.worker.reactor.now());
    }

    pub(in crate::client) fn replication_session_log(&self) -> Option<Rc<SessionLog>> {
        let recorder = self.worker.recorder.as_ref()?;
        Some(SessionLog::new(recorder, self.peer_info(), self.id, None, self.worker.reactor.now()))
    }

    /// An HTTP health check or a browser: closed without an error.
    fn looks_like_http(&self) -> bool {
        [&b"GET "[..], b"HEAD", b"POST", b"PUT ", b"OPTI"].iter().any(|verb| self.bytes.starts_with(verb))
    }
}

impl LoginError {
    /// Whether the client gets an error message, which is logged as a refusal.
    pub(in crate::client) const fn has_reply(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::Denied(_)
                | Self::Limited(..)
                | Self::NoDatabase(_)
                | Self::CheckoutTimeout(_)
                | Self::Server(_)
        )
    }

    /// The reason in the log and in the metric of refused logins.
    const fn reason(&self) -> &'static str {
        match self {
            Self::Limited(cause, _) => cause.refusal_reason(),
            Self::Denied(_) => "authentication failed",
            Self::NoDatabase(_) => "no such database",
            Self::CheckoutTimeout(_) => "checkout timeout",
            Self::Server(_) => "no server",
            Self::Timeout => "login timeout",
            Self::Length(_) | Self::Decode(_) => "client broke the protocol",
            Self::Refused(_) | Self::Gone | Self::Link(_) => "request refused",
        }
    }
}
