//! The parameters that a login reports: each parameter as a server reports it under the client's settings.
//!
//! Postgres spells values in its own way (`UTF8` for `utf-8`), refuses what it does not know, and has values of its own for
//! all that a client does not set. So a server is asked: once for each set of parameters, as long as the servers of the pool
//! report the same of themselves. The name that a client gives itself takes part in this only if Postgres would spell it
//! otherwise, as each client may have another.

use std::rc::Rc;
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
    plane::{ClientInfo, ClientState, Greeting, ReportedParams, Worker, WorkerPool, is_refresh_due, refresh, within},
    server::{
        Cleaning, ResetNeed, Server, SyncedParams,
        clean::{self, CleanError},
    },
};

const APPLICATION_NAME: &str = "application_name";

/// The parameters of a login.
struct Parameters {
    /// All of them.
    all: Settings,
    /// The parameters that a server has to be asked about.
    asked: Settings,
    /// The name of the client, if every server takes it as it is.
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

    /// What a server would answer that reports `server_params` of itself, as far as that can be told without it.
    fn known(&self, server_params: &ServerSettings) -> Option<ReportedParams> {
        let is_own = |(name, value): (&str, &ParameterValue)| server_params.defaults().get(name) == Some(value);
        let is_known = self.asked.iter().all(is_own);
        is_known.then(|| ReportedParams { settings: self.asked.clone(), reported: server_params.defaults().clone() })
    }

    /// The same answer without the name of this client.
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

    /// Whether a server that was given them may have another user than that of its login.
    fn change_user(&self) -> bool {
        ["role", "session_authorization"].iter().any(|name| self.asked.get(name).is_some())
    }
}

/// Connections that may be lost before a client is refused.
const ATTEMPTS_MAX: usize = 3;

impl Arriving {
    /// What the client of `request` is told. The first client of a pool, and the first with these parameters, wait for a
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
            let known = parameters.known(&server_params).or_else(|| pool.shared.answer(&parameters.asked));
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
            let mut attempts = 0;
            loop {
                let found = match pool.replica_set() {
                    None => {
                        let checkout = pool.local.checkout(worker.reactor.now());
                        checkout.await.map(|lease| (None, lease)).map_err(route::CheckoutFailure::Checkout)
                    }
                    Some(_) => find_server(&worker, pool, route, None).await,
                };
                let (placed, lease) = found.map_err(|unserved| LoginError::Server(unserved.words()))?;
                // It counts a transaction as under way on its server.
                let chosen = placed.as_ref().map_or(pool, |placed| &placed.pool).clone();
                attempts += 1;
                match ask(&worker, &chosen, lease, parameters).await {
                    Asked::Answered(announced) => return Ok(announced),
                    Asked::Refused(error) => return Err(LoginError::Server(as_fatal(&error))),
                    Asked::Lost if attempts < ATTEMPTS_MAX => {}
                    Asked::Lost => return Err(self_lost()),
                }
            }
        };
        let announced = self.in_line(pool, unless_killed(client_info, asking)).await?;
        client_info.state.set(ClientState::Idle);
        announced.unwrap_or_else(|| Err(self.cause(Cause::Killed)))
    }

    /// The greeting of a client, given the answer of a server.
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
        Greeting { settings: interned.intern(settings), told: interned.intern(reported), words: words.into() }
    }
}

fn self_lost() -> LoginError {
    let refusal = ErrorReply::new(sqlstate::CONNECTION_FAILURE, "the server closed the connection during the login");
    LoginError::Refused(refusal)
}

/// The outcome of asking a server.
enum Asked {
    Answered(ReportedParams),
    /// The server refuses a parameter, with this ErrorResponse.
    Refused(Box<[u8]>),
    /// The connection broke, or the server does not answer.
    Lost,
}

/// Asks a server what it makes of the parameters of a login, and gives it back.
async fn ask(worker: &Worker, pool: &WorkerPool, mut lease: Lease<Server>, parameters: &Parameters) -> Asked {
    let reactor = &worker.reactor;
    let limit = pool.plan().timeouts.connect;
    let answer = match lease.settle(reactor) {
        Ok(()) => within(reactor, limit, adopt(&mut lease, parameters)).await.unwrap_or(Err(CleanError::Cancelled)),
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

/// The end of a transaction that a refused setting has left open.
fn roll_back(server: &Server) -> Cleaning {
    Cleaning { in_transaction: server.status != TxStatus::Idle, ..Cleaning::default() }
}

/// Gives a server the parameters of a login. What another client has left there may be why they are refused, or their own
/// role, which is then taken first.
async fn adopt(server: &mut Server, parameters: &Parameters) -> Result<Settings, CleanError> {
    let takes_role = parameters.all.get(ROLE).is_some();
    let may_be_due_to_others = server.settings.has_client_settings() || takes_role;
    match clean::adopt(server, &parameters.all, RoleOrder::Last).await {
        Err(CleanError::Settings(_)) if may_be_due_to_others => {
            clean::clean(server, roll_back(server), &[clean::DISCARD_ALL]).await?;
            let turn = if takes_role { RoleOrder::First } else { RoleOrder::Last };
            clean::adopt(server, &parameters.all, turn).await
        }
        outcome => outcome,
    }
}

/// What a server on that route would have said where it differs from others: drivers look at it to tell a primary from a
/// replica.
fn set_routed(reported: &mut Settings, route: Route) {
    let value: &[u8] = match route {
        Route::Primary => b"off",
        Route::Replica => b"on",
        Route::PreferReplica | Route::Any => return,
    };
    // Servers of before Postgres 14 do not report it.
    if reported.get(IN_HOT_STANDBY).is_some() {
        reported.set(IN_HOT_STANDBY, ParameterValue::text(value));
    }
}
