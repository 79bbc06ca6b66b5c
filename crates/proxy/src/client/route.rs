//! Which server a transaction gets, where there is a choice.
//!
//! The route is decided from what is known before the transaction begins: the database or user as it was configured, what
//! the client said at its login, and, if the configuration allows it, a BEGIN READ ONLY. Then one of the servers that fit
//! is picked, and one of its connections waited for.
//!
//! Until a connection is found nothing of the transaction has been sent, so everything that goes wrong is tried again
//! elsewhere: a server that cannot be connected, one that changes its role while its line is waited in, a primary that
//! is gone. `failover_wait` bounds it.

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

use self::lines::Lines;
use super::session::checkout_words;
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

mod lines;

/// A connection, and the choice of its server, where there was one.
pub(super) type Found = (Option<Placed>, Lease<Server>);

/// Why there is no server.
pub(super) enum CheckoutFailure {
    /// What the pool says.
    Checkout(CheckoutError<ConnectError>),
    /// No server fits, or none of those that fit can be connected.
    NoHost(ErrorReply),
}

impl CheckoutFailure {
    /// What the client is told.
    pub(super) fn words(&self) -> Vec<u8> {
        match self {
            Self::Checkout(error) => checkout_words(error),
            Self::NoHost(refusal) => refusal.fatal(),
        }
    }
}

/// Servers that could not be connected are tried again after so long, or when anything changes.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// Waits for a server that serves the route and for a connection to it, as long as `failover_wait` says. `placed` is the
/// server that was chosen already.
///
/// # Cancel safety
/// Dropped, it leaves the line.
pub(super) async fn find_server(
    worker: &Rc<Worker>,
    home: &Rc<WorkerPool>,
    route: Route,
    mut placed: Option<Placed>,
) -> Result<Found, CheckoutFailure> {
    let mut search = Search { worker, home, route, tried: Vec::new(), error: None, began: None };
    loop {
        let Some(replica_set) = search.replica_set() else {
            // A reload has left one server, or none.
            let checkout = home.local.checkout(worker.reactor.now());
            return checkout.await.map(|lease| (None, lease)).map_err(CheckoutFailure::Checkout);
        };
        // Before the look: what is published after it is seen.
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
        if let Some(found) = search.in_lines(&replica_set, chosen, &mut changes).await? {
            return Ok(found);
        }
    }
}

/// The route of those who look for another server for lack of room alone: because no replica has a connection free, nobody
/// goes to the primary.
pub(super) fn narrowed(route: Route, chosen: &ClusterNode) -> Route {
    if route == Route::PreferReplica && chosen.serves(Route::Replica) { Route::Replica } else { route }
}

struct Search<'a> {
    worker: &'a Rc<Worker>,
    home: &'a Rc<WorkerPool>,
    route: Route,
    /// Failed just now.
    tried: Vec<Arc<ClusterNode>>,
    error: Option<CheckoutError<ConnectError>>,
    /// When nobody served first.
    began: Option<Instant>,
}

impl Search<'_> {
    fn replica_set(&self) -> Option<Rc<ReplicaSet>> {
        let replica_set = self.home.replica_set()?;
        if !replica_set.cluster.is_closed() {
            return Some(replica_set);
        }
        // The message that tells this thread of a reload is still on its way.
        self.home.follow_cluster();
        self.home.replica_set().filter(|replica_set| !replica_set.cluster.is_closed())
    }

    /// Nobody serves now: waits until that may have changed.
    async fn wait(
        &mut self,
        replica_set: &ReplicaSet,
        changes: &mut watch::Receiver<u64>,
    ) -> Result<(), CheckoutFailure> {
        let now = self.worker.reactor.now();
        let rules = self.home.plan().route.clone();
        let mute = replica_set.cluster.login_refusal();
        let mut limit = rules.failover_wait;
        if mute.is_some() {
            // Time enough for the probes to try the login of this client, too.
            limit = limit.min(rules.probe_interval * 3);
        } else if replica_set.cluster.has_unprobed() {
            // Who waits for nobody still has to know who is there.
            limit = limit.max(rules.probe_timeout);
        }
        if self.began.is_none() {
            self.began = Some(now);
            if mute.is_some() {
                replica_set.cluster.nodes().iter().for_each(|node| node.request_probe());
            }
        }
        let began = self.began.unwrap_or(now);
        let mut rest = (began + limit).saturating_duration_since(now);
        if rest.is_zero() {
            // An operator who pauses a database wants nobody to be sent away.
            if !self.worker.gateway.lifecycle.is_paused(&self.home.shared.key.database) {
                return Err(self.give_up(replica_set, limit, mute));
            }
            self.began = Some(now);
            rest = limit.max(TRY_AGAIN);
        }
        let pause = if self.tried.is_empty() { rest } else { rest.min(TRY_AGAIN) };
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

    fn give_up(&mut self, replica_set: &ReplicaSet, limit: Duration, mute: Option<String>) -> CheckoutFailure {
        // Where nobody serves any more, what one of them said of its end tells nothing of the others.
        let serves = replica_set.cluster.nodes().iter().any(|node| node.serves(self.route));
        if let Some(error) = self.error.take().filter(|_| serves) {
            return CheckoutFailure::Checkout(error);
        }
        if let Some(error) = mute {
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
        CheckoutFailure::NoHost(refusal.hint("SHOW HOSTS in the admin console tells what is known of each server."))
    }

    /// Waits in the line of the chosen server, and of others if that one has nothing to give. `None` if none of them
    /// serves any more.
    async fn in_lines(
        &mut self,
        replica_set: &ReplicaSet,
        chosen: Placed,
        changes: &mut watch::Receiver<u64>,
    ) -> Result<Option<Found>, CheckoutFailure> {
        let mut lines = Lines::of(chosen, self.worker, self.home, replica_set, self.route);
        while !lines.is_empty() {
            lines.spread(&self.tried);
            let mut changed = pin!(changes.changed());
            let answered = std::future::poll_fn(|cx| match lines.poll(cx) {
                Poll::Ready(answered) => Poll::Ready(Some(answered)),
                Poll::Pending => changed.as_mut().poll(cx).map(|_| None),
            });
            match answered.await {
                Some((placed, Ok(lease))) => return Ok(Some((Some(placed), lease))),
                Some((placed, Err(error))) => self.failed(replica_set, placed, error, lines.is_empty())?,
                // Roles have changed, or who is there.
                None => lines.leave_unfit(),
            }
        }
        Ok(None)
    }

    /// A server could not be connected, or may let nobody wait: another one is tried, unless it would say the same.
    /// `is_last` says whether no other line is waited in.
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
            // Taken out by a reload.
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

    /// Whether there is a server besides this one that has not failed just now.
    fn has_others(&self, replica_set: &ReplicaSet, node: &Arc<ClusterNode>) -> bool {
        let is_other = |other: &Arc<ClusterNode>| {
            !Arc::ptr_eq(other, node) && !self.tried.iter().any(|tried| Arc::ptr_eq(tried, other))
        };
        replica_set.cluster.nodes().iter().any(|other| is_other(other) && other.serves(self.route))
    }
}

/// What a client may say at its login, by one of two names: libpq keeps the first for itself, unless it is written into
/// `options`.
const PARAMETERS: [&str; 2] = ["target_session_attrs", "tidegate.target_session_attrs"];

/// Takes the route that a client asks for at its login out of its parameters.
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

/// Whether the transaction that these messages begin says that it only reads, and a replica can run it.
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

/// The isolation level that only a primary has.
const SERIALIZABLE: &[u8] = b"serializable";

/// Whether all transactions of a client with these settings are serializable, unless they say something else.
pub(super) fn is_serializable(settings: &Settings) -> bool {
    let is_edge = |byte: &u8| *byte == b'\'' || byte.is_ascii_whitespace();
    let level = settings.get("default_transaction_isolation").map(ParameterValue::bytes);
    // As a text, or as it stood in a SET.
    level.is_some_and(|level| {
        let inner = level.iter().skip_while(|byte| is_edge(byte)).take_while(|byte| !is_edge(byte));
        inner.map(u8::to_ascii_lowercase).eq(SERIALIZABLE.iter().copied())
    })
}

/// `BEGIN ... READ ONLY`, `START TRANSACTION ... READ ONLY`, alone or as the first of several statements. A serializable one
/// is none: replicas refuse those.
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
    fn a_transaction_says_that_it_only_reads() {
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
    fn a_simple_query_and_a_parse_are_looked_at() {
        let mut query = Vec::new();
        frontend::query(b"BEGIN READ ONLY", &mut query);
        assert!(begins_read_only(&query, None));
        assert!(!begins_read_only(&query[..query.len() - 1], None), "it has not arrived whole");
        let mut parse = Vec::new();
        frontend::parse(b"", b"begin read only", &[], &mut parse);
        assert!(begins_read_only(&parse, None));
    }

    #[test]
    fn a_route_is_taken_out_of_the_parameters() {
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
