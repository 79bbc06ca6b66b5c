//! The parameters that a login reports: each parameter as a server reports it under the client's settings.
//!
//! Postgres normalizes values (`UTF8` for `utf-8`), refuses invalid ones, and has defaults for all others. Therefore each set
//! of parameters is applied to a server once, as long as the servers of the pool report the same defaults. `application_name`
//! is part of the set only if Postgres would change it, as each client may have another.

use std::{rc::Rc, sync::Arc, time::Duration};
use tidegate_pool::{Lease, ReleaseAction};
use tidegate_wire::{
    backend::{self, ErrorReply, TxStatus},
    sqlstate,
};

use super::{Arriving, LoginError, packet::Request};
use tidegate_config::Route;
use tidegate_session_state::params::{IN_HOT_STANDBY, ParameterValue, ROLE, RoleOrder, ServerSettings, Settings};

use crate::{
    client::{
        passthrough::unless_killed,
        route::{self, find_server},
        session::as_fatal,
    },
    error::Cause,
    plane::{
        ClientInfo, ClientState, FirstLogin, Greeting, ReportedParams, SharedPool, Worker, WorkerPool, is_refresh_due,
        refresh, within,
    },
    server::{
        Cleaning, ResetNeed, Server, SyncedParams,
        clean::{self, CleanError},
    },
};

const APPLICATION_NAME: &str = "application_name";

/// The parameters of a login.
struct Parameters {
    /// All parameters.
    all: Settings,
    /// The parameters whose values only a server can report.
    asked: Settings,
    /// `application_name`, if every server accepts it unchanged.
    application: Option<ParameterValue>,
}

impl Parameters {
    fn of(request: &Request) -> Self {
        let mut all = Settings::default();
        for (name, value) in &request.params {
            all.set(name, ParameterValue::text(value));
        }
        let is_plain = |name: &&[u8]| name.iter().all(|byte| (b' '..=b'~').contains(byte));
        let application = all.text(APPLICATION_NAME).filter(is_plain).map(ParameterValue::text);
        let mut asked = all.clone();
        if application.is_some() {
            asked.remove(APPLICATION_NAME);
        }
        Self { all, asked, application }
    }

    /// The values that a server of the pool with `server_params` reports, if they can be derived without it.
    fn known(&self, pool: &SharedPool, server_params: &ServerSettings) -> Option<ReportedParams> {
        let is_own = |(name, value): (&str, &ParameterValue)| server_params.defaults().get(name) == Some(value);
        if !self.asked.iter().all(is_own) {
            return pool.answer(&self.asked);
        }
        Some(ReportedParams { settings: self.asked.clone(), reported: server_params.defaults().clone() })
    }

    /// The same values without this client's `application_name`.
    fn without_application(&self, announced: &ReportedParams, server_params: &ServerSettings) -> ReportedParams {
        let mut announced = announced.clone();
        if self.application.is_some() {
            announced.settings.remove(APPLICATION_NAME);
            if let Some(own) = server_params.defaults().get(APPLICATION_NAME) {
                announced.reported.set(APPLICATION_NAME, own.clone());
            }
        }
        announced
    }

    /// Whether the parameters can change the current user of a server session.
    fn change_user(&self) -> bool {
        ["role", "session_authorization"].iter().any(|name| self.asked.get(name).is_some())
    }
}

/// Maximum number of lost connections before a client is refused.
const ATTEMPTS_MAX: usize = 3;

impl Arriving {
    /// Returns the login reply for `request`. The first client of a pool, and the first with these parameters, wait for a
    /// server.
    pub(super) async fn greeting(
        &mut self,
        pool: &Rc<WorkerPool>,
        request: &Request,
        client_info: &ClientInfo,
    ) -> Result<Greeting, LoginError> {
        let has_choice = pool.replica_set().is_some();
        if !has_choice && is_refresh_due(&self.worker, pool) {
            Box::pin(refresh(&self.worker, pool)).await;
        }
        let route = has_choice.then(|| request.route.unwrap_or(pool.plan().route.route));
        let server_params = pool.shared.server_params();
        let kept = server_params
            .as_ref()
            .and_then(|server_params| self.worker.greetings.get(server_params, &request.params, route));
        if let Some(greeting) = kept {
            return Ok(greeting);
        }
        let parameters = Parameters::of(request);
        let known = server_params.and_then(|server_params| {
            let known = parameters.known(&pool.shared, &server_params);
            known.map(|announced| (server_params, announced))
        });
        let Some((server_params, announced)) = known else {
            let announced = Box::pin(self.ask_server(pool, request, &parameters, client_info)).await?;
            return Ok(self.compose(announced, parameters.application, route));
        };
        let greeting = self.compose(announced, parameters.application, route);
        if parameters.all.get(ROLE).is_none() {
            // The role belongs to this client alone.
            self.worker.greetings.put(server_params, request.params.clone(), route, greeting.clone());
        }
        Ok(greeting)
    }

    async fn ask_server(
        &mut self,
        pool: &Rc<WorkerPool>,
        request: &Request,
        parameters: &Parameters,
        client_info: &ClientInfo,
    ) -> Result<ReportedParams, LoginError> {
        let worker = self.worker.clone();
        let route = request.route.unwrap_or(pool.plan().route.route);
        client_info.state.set(ClientState::Waiting(worker.reactor.now()));
        let asking = async {
            let first_login = match FirstStep::of(&pool.shared, parameters).await? {
                FirstStep::Known(announced) => return Ok(announced),
                FirstStep::Ask(first_login) => first_login,
            };
            if first_login.is_some() {
                await_first_probes(&worker, pool).await;
            }
            let asked = ask_any(&worker, pool, route, parameters).await;
            if let (Some(first_login), Err(error)) = (first_login, &asked) {
                error.pass_on(first_login);
            }
            asked.map_err(LoginError::from)
        };
        let announced = self.bounded_wait(pool, unless_killed(client_info, asking)).await?;
        client_info.state.set(ClientState::Idle);
        announced.unwrap_or_else(|| Err(self.cause(Cause::Killed)))
    }

    /// Builds the login reply of a client from the reported values.
    pub(super) fn compose(
        &self,
        announced: ReportedParams,
        application: Option<ParameterValue>,
        route: Option<Route>,
    ) -> Greeting {
        let ReportedParams { mut settings, mut reported } = announced;
        if let Some(name) = application {
            if reported.get(APPLICATION_NAME).is_some() {
                reported.set(APPLICATION_NAME, name.clone());
            }
            settings.set(APPLICATION_NAME, name);
        }
        if let Some(role) = settings.get(ROLE).cloned() {
            settings.set(ROLE, ParameterValue::Owned(Box::new(role), (self.id, 0)));
        }
        if let Some(route) = route {
            set_routed(&mut reported, route);
        }
        let mut words = Vec::with_capacity(512);
        backend::authentication_ok(&mut words);
        for (name, value) in reported.iter() {
            backend::parameter_status(name.as_bytes(), value.bytes(), &mut words);
        }
        let interned = &self.worker.interned;
        Greeting { settings: interned.intern(settings), reported: interned.intern(reported), words: words.into() }
    }
}

fn server_lost() -> ErrorReply {
    ErrorReply::new(sqlstate::CONNECTION_FAILURE, "the server closed the connection during the login")
}

/// First step of a login whose reply is unknown.
enum FirstStep {
    /// Another login has asked a server meanwhile.
    Known(ReportedParams),
    /// The login asks a server, and other logins of the pool may wait for it.
    Ask(Option<FirstLogin>),
}

impl FirstStep {
    /// Waits while another login asks the first server of the pool.
    async fn of(pool: &Arc<SharedPool>, parameters: &Parameters) -> Result<Self, LoginError> {
        loop {
            if let Some(server_params) = pool.server_params() {
                let known = parameters.known(pool, &server_params);
                return Ok(known.map_or(Self::Ask(None), Self::Known));
            }
            match pool.begin_first_login() {
                Ok(first_login) => return Ok(Self::Ask(Some(first_login))),
                Err(wait) => {
                    if let Some(message) = wait.ended().await {
                        return Err(LoginError::Server(message.to_vec()));
                    }
                }
            }
        }
    }
}

/// Why no server has answered.
enum AskError {
    /// No server could be connected or became free: this error message.
    NoServer(Vec<u8>),
    /// A server refuses a parameter, with this ErrorResponse.
    Refused(Box<[u8]>),
    /// The connections broke.
    Lost,
}

impl AskError {
    /// Ends the first login of a pool. The others get the error too, unless it is about the parameters of this client.
    fn pass_on(&self, first_login: FirstLogin) {
        match self {
            Self::NoServer(message) => first_login.fail(message),
            Self::Lost => first_login.fail(&server_lost().fatal()),
            Self::Refused(_) => drop(first_login),
        }
    }
}

impl From<AskError> for LoginError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::NoServer(message) => Self::Server(message),
            AskError::Refused(error) => Self::Server(as_fatal(&error)),
            AskError::Lost => Self::Refused(server_lost()),
        }
    }
}

/// Maximum wait of the first login for the first probes of all servers.
const FIRST_PROBES_LIMIT: Duration = Duration::from_millis(500);

/// Waits until each server of the database has been probed once. Otherwise, all first clients would use the server whose probe
/// is the first. A server that does not answer delays only the first login.
async fn await_first_probes(worker: &Worker, pool: &WorkerPool) {
    let Some(replica_set) = pool.replica_set() else { return };
    let cluster = &replica_set.cluster;
    // Subscribe before the check, so that no later change is missed.
    let mut changes = cluster.subscribe();
    let probed = async { while cluster.has_unprobed() && changes.changed().await.is_ok() {} };
    // After the limit, the login uses the servers that are known.
    let _ = within(&worker.reactor, FIRST_PROBES_LIMIT, probed).await;
}

/// Waits for a server that serves the route, and asks it; another one if the connection breaks.
async fn ask_any(
    worker: &Rc<Worker>,
    pool: &Rc<WorkerPool>,
    route: Route,
    parameters: &Parameters,
) -> Result<ReportedParams, AskError> {
    for _ in 0..ATTEMPTS_MAX {
        let found = match pool.replica_set() {
            None => {
                let checkout = pool.local.checkout(worker.reactor.now());
                checkout.await.map(|lease| (None, lease)).map_err(route::CheckoutFailure::Checkout)
            }
            Some(_) => find_server(worker, pool, route, None).await,
        };
        let (placed, lease) = found.map_err(|unserved| AskError::NoServer(unserved.message()))?;
        // `placed` counts a transaction in progress on its server.
        let chosen = placed.as_ref().map_or(pool, |placed| &placed.pool).clone();
        match ask(worker, &chosen, lease, parameters).await {
            Asked::Answered(announced) => return Ok(announced),
            Asked::Refused(error) => return Err(AskError::Refused(error)),
            Asked::Lost => {}
        }
    }
    Err(AskError::Lost)
}

/// The outcome of asking a server.
enum Asked {
    Answered(ReportedParams),
    /// The server refuses a parameter, with this ErrorResponse.
    Refused(Box<[u8]>),
    /// The connection broke, or the server does not reply.
    Lost,
}

/// Applies the parameters of a login to a server, and returns the server to its pool.
async fn ask(worker: &Worker, pool: &WorkerPool, mut lease: Lease<Server>, parameters: &Parameters) -> Asked {
    let reactor = &worker.reactor;
    let limit = pool.plan().timeouts.connect;
    let answer = match lease.settle(reactor) {
        Ok(()) => {
            within(reactor, limit, sync_params(&mut lease, parameters)).await.unwrap_or(Err(CleanError::Cancelled))
        }
        Err(error) => Err(error.into()),
    };
    pool.publish_news(&mut lease);
    let now = reactor.now();
    match answer {
        Ok(settings) => {
            let connected_at = lease.identity.connected_at;
            let server_params = pool.shared.set_server_params(&lease.settings, connected_at);
            let announced = ReportedParams { settings, reported: lease.settings.reported().clone() };
            if !parameters.asked.is_empty() {
                let kept = parameters.without_application(&announced, &server_params);
                pool.shared.keep_answer(&server_params, parameters.asked.clone(), kept);
            }
            lease.synced_params = Some(SyncedParams {
                settings: worker.interned.intern(announced.settings.clone()),
                reported: worker.interned.intern(announced.reported.clone()),
            });
            let is_own = !parameters.change_user();
            if !is_own {
                lease.needs_reset(ResetNeed::Session);
            }
            lease.release(if is_own { ReleaseAction::Reuse } else { ReleaseAction::Clean }, now);
            Asked::Answered(announced)
        }
        Err(CleanError::Settings(error)) => {
            lease.cleaning = roll_back(&lease);
            lease.release(ReleaseAction::Clean, now);
            Asked::Refused(error)
        }
        Err(_) => {
            lease.release(ReleaseAction::Close, now);
            Asked::Lost
        }
    }
}

/// Cleaning that ends a transaction left open by a refused setting.
fn roll_back(server: &Server) -> Cleaning {
    Cleaning { in_transaction: server.status != TxStatus::Idle, ..Cleaning::default() }
}

/// Applies the parameters of a login. A refusal may be caused by state of another client, or by the role of this one: the
/// second attempt discards that state and sets the role first.
async fn sync_params(server: &mut Server, parameters: &Parameters) -> Result<Settings, CleanError> {
    let takes_role = parameters.all.get(ROLE).is_some();
    let may_depend_on_state = server.settings.has_client_settings() || takes_role;
    match clean::adopt(server, &parameters.all, RoleOrder::Last).await {
        Err(CleanError::Settings(_)) if may_depend_on_state => {
            clean::clean(server, roll_back(server), &[clean::DISCARD_ALL]).await?;
            let turn = if takes_role { RoleOrder::First } else { RoleOrder::Last };
            clean::adopt(server, &parameters.all, turn).await
        }
        outcome => outcome,
    }
}

/// Sets `in_hot_standby` to the value of a server on this route: drivers use it to distinguish primary and replica.
fn set_routed(reported: &mut Settings, route: Route) {
    let value: &[u8] = match route {
        Route::Primary => b"off",
        Route::Replica => b"on",
        Route::PreferReplica | Route::Any => return,
    };
    // Servers before Postgres 14 do not report `in_hot_standby`.
    if reported.get(IN_HOT_STANDBY).is_some() {
        reported.set(IN_HOT_STANDBY, ParameterValue::text(value));
    }
}
