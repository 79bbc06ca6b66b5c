//! Admin console clients: logging around the console session.

use std::rc::Rc;

use tidegate_query_log::writer::SessionLog;

use super::log;
use crate::plane::{ConsoleClient, QuotaGuard, Worker};

/// A client that was admitted to the console.
pub(super) struct ConsoleLogin {
    pub(super) worker: Rc<Worker>,
    pub(super) client: ConsoleClient,
    pub(super) session_log: Option<Rc<SessionLog>>,
    /// Counts the client in the limits of its user.
    pub(super) _quota: Option<QuotaGuard>,
}

impl ConsoleLogin {
    /// Serves the client until it disconnects.
    pub(super) async fn serve(self) {
        let Self { worker, client, session_log, _quota } = self;
        let client_info = client.entry.client_info.clone();
        let gateway = worker.gateway.clone();
        log::arrived(&gateway.config, &client_info);
        let reason = (worker.console)(worker.clone(), client).await;
        log::left(&gateway.config, &gateway.clients.outcomes, &client_info, &log::Departure::of(reason));
        if let Some(session_log) = session_log {
            session_log.log_disconnect(reason, worker.reactor.now());
        }
    }
}
