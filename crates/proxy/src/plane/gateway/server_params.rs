//! Parameters that the servers of a pool report, for the greeting of new clients.

use std::{sync::Arc, time::SystemTime};

use super::{SharedPool, lock};
use tidegate_session_state::params::{ServerSettings, Settings};

use tidegate_session_state::greetings::{Answers, ReportedParams};

/// The parameters reported by the servers of a pool.
#[derive(Debug, Default)]
pub(super) struct ServerParams {
    settings: Option<Arc<ServerSettings>>,
    /// Responses of servers to startup parameters of clients.
    answers: Answers,
    /// Connections were lost or replaced since; other servers may report other values.
    is_outdated: bool,
}

impl SharedPool {
    /// Whether any server of the pool was connected since the start.
    #[must_use]
    pub fn has_server_params(&self) -> bool {
        lock(&self.server_params).settings.is_some()
    }

    /// The values reported to a client without settings; `None` if a server has to be asked first.
    #[must_use]
    pub fn server_params(&self) -> Option<Arc<ServerSettings>> {
        let server_params = lock(&self.server_params);
        // While the pool is paused, or no server can be connected, clients are admitted with the last known values; also if
        // one of several servers has failed.
        let cannot_ask = || self.pool.is_paused() || self.fails() || self.cluster().is_some();
        let holds = !server_params.is_outdated || cannot_ask();
        server_params.settings.clone().filter(|_| holds)
    }

    /// Stores the report of a server connected at that time. Returns the parameters for new clients.
    pub fn set_server_params(&self, server: &ServerSettings, connected_at: SystemTime) -> Arc<ServerSettings> {
        let is_old = self.is_outdated(connected_at);
        let mut server_params = lock(&self.server_params);
        let mut server = server.clone();
        if let Some(known) = server_params.settings.as_ref().filter(|_| !server_params.is_outdated) {
            server.update_masked_defaults(known);
        }
        match server_params.settings.clone() {
            Some(known) if is_old || known.defaults() == server.defaults() => {
                server_params.is_outdated &= is_old;
                known
            }
            _ => {
                let new = Arc::new(server);
                *server_params = ServerParams { settings: Some(new.clone()), ..ServerParams::default() };
                new
            }
        }
    }

    /// Stores changed defaults of a connected server.
    pub fn renew_server_params(&self, news: &Settings) {
        let mut server_params = lock(&self.server_params);
        let Some(known) = &server_params.settings else { return };
        let mut renewed = ServerSettings::clone(known);
        if renewed.update_defaults(news) {
            server_params.settings = Some(Arc::new(renewed));
            server_params.answers = Answers::default();
        }
    }

    /// The response of a server to these startup parameters, if one is cached for the current report.
    #[must_use]
    pub fn answer(&self, asked: &Settings) -> Option<ReportedParams> {
        lock(&self.server_params).answers.get(asked)
    }

    /// Caches the response of a server to startup parameters.
    pub fn keep_answer(&self, server_params: &Arc<ServerSettings>, asked: Settings, announced: ReportedParams) {
        let mut known = lock(&self.server_params);
        let is_current = known.settings.as_ref().is_some_and(|settings| Arc::ptr_eq(settings, server_params));
        if is_current && known.answers.put(asked, announced) {
            // Composed greetings are cached by this address.
            known.settings = Some(Arc::new(ServerSettings::clone(server_params)));
        }
    }

    /// Marks the values as possibly outdated after connections were lost or replaced.
    pub fn outdate_server_params(&self) {
        lock(&self.server_params).is_outdated = true;
    }
}
