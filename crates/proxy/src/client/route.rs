//! Selects the server of a transaction in a database with several servers.
//!
//! The route is decided before the transaction begins: from the configuration of the database or user, the client's startup
//! parameters, and, if enabled, BEGIN READ ONLY. Then a server that fits is picked, and the client waits for one of its
//! connections.
//!
//! No message of the transaction is sent before a connection is found, so every failure is retried on another server: a
//! failed connect, a role change during the wait, a lost primary. `failover_wait` limits the retries.

use std::{
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};
use tidegate_balance::CallOutcome;
use tidegate_pool::{CheckoutError, Lease};
use tidegate_wire::{
    backend::ErrorReply,
    frame::{HEADER, MessageHeader},
    frontend::{self, Bind, Parse, Query},
    sqlstate,
};
use tokio::sync::watch;

use self::wait_queues::WaitQueues;
use super::session::checkout_error;
use tidegate_config::{Route, SessionAttrs};
use tidegate_pg_client::ConnectError;
use tidegate_session_state::{
    params::{ParameterValue, Settings},
    statements::ClientStatements,
};
use tidegate_topology::ClusterNode;

use crate::{
    plane::{Placed, ReplicaSet, Worker, WorkerPool},
    server::Server,
};

mod wait_queues;

/// A server connection, and the routing decision if there were several servers.
pub(super) type Found = (Option<Placed>, Lease<Server>);

/// Why no server was found.
pub(super) enum CheckoutFailure {
    /// Error of the pool.
    Checkout(CheckoutError<ConnectError>),
    /// No server fits, or no server that fits accepts connections.
    NoHost(ErrorReply),
}

impl CheckoutFailure {
    /// Error message for the client.
    pub(super) fn message(&self) -> Vec<u8> {
        match self {
            Self::Checkout(error) => checkout_error(error),
            Self::NoHost(refusal) => refusal.fatal(),
        }
    }
}

/// Delay before failed servers are retried; a topology change ends it early.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Waits up to `failover_wait` for a server that serves the route and for a connection to it. `placed` is the server that was
/// picked already.
///
/// # Cancel safety
/// Dropping the future leaves the wait queue.
pub(super) async fn find_server(
    worker: &Rc<Worker>,
    home: &Rc<WorkerPool>,
    route: Route,
    mut placed: Option<Placed>,
) -> Result<Found, CheckoutFailure> {
    let mut search = Search { worker, home, route, tried: Vec::new(), error: None, since: None };
    loop {
        let Some(replica_set) = search.replica_set() else {
            // A reload has reduced the database to one server, or to none.
            let checkout = home.local.checkout(worker.reactor.now());
            return checkout.await.map(|lease| (None, lease)).map_err(CheckoutFailure::Checkout);
        };
        // Subscribe before the check, so that no later change is missed.
        let mut changes = replica_set.cluster.subscribe();
        if replica_set.cluster.is_closed() {
            continue;
        }
        let now = worker.reactor.now();
        let chosen = placed.take().or_else(|| replica_set.pick(worker, home, route, &search.tried, now));
        let Some(chosen) = chosen else {
            search.wait(&replica_set, &mut changes).await?;
            continue;
        };
        let queues = search.join(&replica_set, chosen, now);
        if let Some(found) = search.wait_in_queues(&replica_set, queues, &mut changes).await? {
            return Ok(found);
        }
    }
}

/// Route for another server after the chosen one had no idle connection: full replicas do not send clients to the primary.
pub(super) fn narrowed(route: Route, chosen: &ClusterNode) -> Route {
    if route == Route::PreferReplica && chosen.serves(Route::Replica) { Route::Replica } else { route }
}

struct Search<'a> {
    worker: &'a Rc<Worker>,
    home: &'a Rc<WorkerPool>,
    route: Route,
    /// Nodes that failed in this attempt.
    tried: Vec<Arc<ClusterNode>>,
    error: Option<CheckoutError<ConnectError>>,
    /// Start of the time without a usable server.
    since: Option<Instant>,
}

impl<'a> Search<'a> {
    fn replica_set(&self) -> Option<Rc<ReplicaSet>> {
        let replica_set = self.home.replica_set()?;
        if !replica_set.cluster.is_closed() {
            return Some(replica_set);
        }
        // The reload message to this thread is still in transit.
        self.home.follow_cluster();
        self.home.replica_set().filter(|replica_set| !replica_set.cluster.is_closed())
    }

    /// No server is available: waits until that may have changed.
    async fn wait(
        &mut self,
        replica_set: &ReplicaSet,
        changes: &mut watch::Receiver<u64>,
    ) -> Result<(), CheckoutFailure> {
        let now = self.worker.reactor.now();
        let rules = self.home.plan().route.clone();
        let login_error = replica_set.cluster.login_refusal();
        let mut limit = rules.failover_wait;
        if login_error.is_some() {
            // Allows the probes to try this client's login, too.
            limit = limit.min(rules.probe_interval * 3);
        } else if replica_set.cluster.has_unprobed() {
            // Even without `failover_wait`, the first probe of each server must finish.
            limit = limit.max(rules.probe_timeout);
        }
        if self.since.is_none() {
            self.since = Some(now);
            if login_error.is_some() {
                replica_set.cluster.nodes().iter().for_each(|node| node.request_probe());
            }
        }
        let since = self.since.unwrap_or(now);
        let mut rest = (since + limit).saturating_duration_since(now);
        if rest.is_zero() {
            // PAUSE holds clients instead of failing them.
            if !self.worker.gateway.lifecycle.is_paused(&self.home.shared.key.database) {
                return Err(self.no_host_error(replica_set, limit, login_error));
            }
            self.since = Some(now);
            rest = limit.max(RETRY_DELAY);
        }
        let pause = if self.tried.is_empty() { rest } else { rest.min(RETRY_DELAY) };
        let mut sleep = pin!(self.worker.reactor.sleep(pause));
        let mut changed = pin!(changes.changed());
        std::future::poll_fn(|cx| {
            if changed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            sleep.as_mut().poll(cx)
        })
        .await;
        self.tried.clear();
        Ok(())
    }

    fn no_host_error(
        &mut self,
        replica_set: &ReplicaSet,
        limit: Duration,
        login_error: Option<String>,
    ) -> CheckoutFailure {
        // If no server serves the route, the connect error of one does not describe the others.
        let serves = replica_set.cluster.nodes().iter().any(|node| node.serves(self.route));
        if let Some(error) = self.error.take().filter(|_| serves) {
            return CheckoutFailure::Checkout(error);
        }
        if let Some(error) = login_error {
            return CheckoutFailure::NoHost(ErrorReply::new(sqlstate::CONNECTION_FAILURE, error));
        }
        let lack = match self.route {
            Route::Primary => "is a primary",
            Route::Replica => "is a replica that is fresh enough",
            Route::PreferReplica | Route::Any => "can be used",
        };
        let database = &self.home.shared.key.database;
        let message = format!("no server of database \"{database}\" {lack}; waited {limit:?} (failover_wait)");
        let refusal = ErrorReply::new(sqlstate::CANNOT_CONNECT_NOW, message);
        CheckoutFailure::NoHost(refusal.hint("SHOW HOSTS in the admin console lists the state of each server."))
    }

    /// Joins the queue of the chosen server, or of one like it with fewer connections.
    fn join(&self, replica_set: &'a ReplicaSet, chosen: Placed, now: Instant) -> WaitQueues<'a> {
        let (worker, home) = (self.worker, self.home);
        let like = narrowed(self.route, chosen.node());
        // Held from the comparison to the connect, so that two threads do not choose the same server.
        let spreading = (!chosen.pool.local.is_exhausted()).then(|| home.shared.hold_spreading());
        let chosen = replica_set.spread_connects(worker, home, like, (chosen, &self.tried), now);
        let queues = WaitQueues::of(chosen, worker, home, replica_set, self.route);
        drop(spreading);
        queues
    }

    /// Waits in these queues, and in those of other servers if no connection is free. Returns `None` if none of them serves the
    /// route any more.
    async fn wait_in_queues(
        &mut self,
        replica_set: &ReplicaSet,
        mut queues: WaitQueues<'_>,
        changes: &mut watch::Receiver<u64>,
    ) -> Result<Option<Found>, CheckoutFailure> {
        while !queues.is_empty() {
            queues.spread(&self.tried);
            let mut changed = pin!(changes.changed());
            let ready = std::future::poll_fn(|cx| match queues.poll(cx) {
                Poll::Ready(ready) => Poll::Ready(Some(ready)),
                Poll::Pending => changed.as_mut().poll(cx).map(|_| None),
            });
            match ready.await {
                Some((placed, Ok(lease))) => return Ok(Some((Some(placed), lease))),
                Some((placed, Err(error))) => self.failed(replica_set, placed, error, queues.is_empty())?,
                // The topology has changed.
                None => queues.leave_unfit(),
            }
        }
        Ok(None)
    }

    /// Handles a failed checkout: another server is tried, unless it would fail the same way. `is_last`: no other wait queue
    /// is joined.
    fn failed(
        &mut self,
        replica_set: &ReplicaSet,
        chosen: Placed,
        error: CheckoutError<ConnectError>,
        is_last: bool,
    ) -> Result<(), CheckoutFailure> {
        let node = chosen.node().clone();
        let outcome = match &error {
            CheckoutError::Connect(cause) if cause.is_server_fault() => CallOutcome::Failure,
            CheckoutError::Connect(cause)
                if cause.is_out_of_resources() && (!is_last || self.has_others(replica_set, &node)) =>
            {
                CallOutcome::Neutral
            }
            // Removed by a reload.
            CheckoutError::Closed(_) => {
                replica_set.forget(&node);
                CallOutcome::Neutral
            }
            CheckoutError::QueueFull if !is_last => CallOutcome::Neutral,
            _ => return Err(CheckoutFailure::Checkout(error)),
        };
        chosen.finish(self.worker.reactor.now(), outcome);
        if outcome == CallOutcome::Failure {
            self.error = Some(error);
        }
        self.tried.push(node);
        Ok(())
    }

    /// Whether another server serves the route and has not failed in this attempt.
    fn has_others(&self, replica_set: &ReplicaSet, node: &Arc<ClusterNode>) -> bool {
        let is_other = |other: &Arc<ClusterNode>| {
            !Arc::ptr_eq(other, node) && !self.tried.iter().any(|tried| Arc::ptr_eq(tried, other))
        };
        replica_set.cluster.nodes().iter().any(|other| is_other(other) && other.serves(self.route))
    }
}

/// Startup parameters that set the route: libpq consumes the first one itself, unless it is part of `options`.
const PARAMETERS: [&str; 2] = ["target_session_attrs", "tidegate.target_session_attrs"];

/// Removes the requested route from the startup parameters.
pub(super) fn asked_for(params: &mut Vec<(String, Vec<u8>)>) -> Result<Option<Route>, ErrorReply> {
    let is_route = |(name, _): &mut (String, Vec<u8>)| PARAMETERS.iter().any(|known| name.eq_ignore_ascii_case(known));
    let Some((name, value)) = params.extract_if(.., is_route).last() else { return Ok(None) };
    let word = String::from_utf8_lossy(&value);
    let route = word.parse().map(SessionAttrs::route).or_else(|_| word.parse::<Route>());
    route.map(Some).map_err(|_| {
        let known = SessionAttrs::WORDS.join(", ");
        let message = format!("invalid value for parameter \"{name}\": \"{word}\" (it can be {known})");
        ErrorReply::new(sqlstate::INVALID_PARAMETER_VALUE, message)
    })
}

/// Whether the transaction that these messages begin is declared read-only and can run on a replica.
pub(super) fn begins_read_only(request: &[u8], statements: Option<&ClientStatements>) -> bool {
    let Ok(Some(header)) = MessageHeader::peek(request) else { return false };
    let Some(body) = request.get(HEADER..header.total()) else { return false };
    match header.tag {
        frontend::QUERY => Query::decode(body).is_ok_and(|query| is_begin_read_only(query.text)),
        frontend::PARSE => Parse::decode(body).is_ok_and(|parse| is_begin_read_only(parse.query)),
        frontend::BIND => {
            let known = Bind::decode(body).ok().and_then(|bind| statements?.get(bind.statement));
            let message = known.as_ref().map(|known| known.statement.parse_message());
            let text = message.and_then(|message| Parse::decode(message.get(HEADER..)?).ok());
            text.is_some_and(|parse| is_begin_read_only(parse.query))
        }
        _ => false,
    }
}

/// The isolation level that only a primary supports.
const SERIALIZABLE: &[u8] = b"serializable";

/// Whether transactions under these settings are serializable by default.
pub(super) fn is_serializable(settings: &Settings) -> bool {
    let is_edge = |byte: &u8| *byte == b'\'' || byte.is_ascii_whitespace();
    let level = settings.get("default_transaction_isolation").map(ParameterValue::bytes);
    // Quoted or not, as in SET.
    level.is_some_and(|level| {
        let inner = level.iter().skip_while(|byte| is_edge(byte)).take_while(|byte| !is_edge(byte));
        inner.map(u8::to_ascii_lowercase).eq(SERIALIZABLE.iter().copied())
    })
}

/// Matches `BEGIN ... READ ONLY` and `START TRANSACTION ... READ ONLY`, alone or as the first of several statements.
/// Serializable transactions do not match: replicas refuse them.
fn is_begin_read_only(text: &[u8]) -> bool {
    let first = text.split(|byte| *byte == b';').next().unwrap_or_default();
    let mut words = first.split(|byte| byte.is_ascii_whitespace() || *byte == b',').filter(|word| !word.is_empty());
    let begins = match words.next() {
        Some(word) if word.eq_ignore_ascii_case(b"BEGIN") => true,
        Some(word) if word.eq_ignore_ascii_case(b"START") => {
            words.next().is_some_and(|word| word.eq_ignore_ascii_case(b"TRANSACTION"))
        }
        _ => false,
    };
    if !begins {
        return false;
    }
    let (mut reads, mut only) = (false, false);
    for word in words {
        if word.eq_ignore_ascii_case(SERIALIZABLE) {
            return false;
        }
        if reads {
            only = word.eq_ignore_ascii_case(b"ONLY");
        }
        reads = word.eq_ignore_ascii_case(b"READ");
    }
    only
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_transaction_is_detected() {
        for text in [
            "BEGIN READ ONLY",
            "begin isolation level repeatable read, read only",
            "  START TRANSACTION READ WRITE, READ ONLY; select 1",
            "begin transaction read only deferrable",
        ] {
            assert!(is_begin_read_only(text.as_bytes()), "{text}");
        }
        for text in [
            "BEGIN",
            "begin read write",
            "begin read only, read write",
            "begin; select 'read only'",
            "begin isolation level read committed",
            "begin isolation level Serializable read only deferrable",
            "start read only",
            "select 1",
            "",
        ] {
            assert!(!is_begin_read_only(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn read_only_begin_is_found_in_query_and_parse() {
        let mut query = Vec::new();
        frontend::query(b"BEGIN READ ONLY", &mut query);
        assert!(begins_read_only(&query, None));
        assert!(!begins_read_only(&query[..query.len() - 1], None), "it has not arrived whole");
        let mut parse = Vec::new();
        frontend::parse(b"", b"begin read only", &[], &mut parse);
        assert!(begins_read_only(&parse, None));
    }

    #[test]
    fn requested_route_is_removed_from_parameters() {
        let param = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let mut params = vec![param("application_name", "x"), param("Target_Session_Attrs", "prefer-standby")];
        assert_eq!(asked_for(&mut params), Ok(Some(Route::PreferReplica)));
        assert_eq!(params, [param("application_name", "x")]);
        assert_eq!(asked_for(&mut params), Ok(None));
        assert_eq!(asked_for(&mut vec![param(PARAMETERS[1], "replica")]), Ok(Some(Route::Replica)));
        let refused = asked_for(&mut vec![param(PARAMETERS[0], "slave")]).unwrap_err();
        assert_eq!(refused.sqlstate, sqlstate::INVALID_PARAMETER_VALUE);
    }
}
