//! The driver of a channel: resolves its target, connects, and drains.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_backoff::Backoff;
use tidegate_balance::{
    Balancer, ConnectStrategy, ConnectivityState, DrainOutcome, Endpoint, EndpointAddress, EndpointId, EndpointSpec,
    NameWatcher, Pick, ResolveEvent, ResolveNow, ResolvedAddress,
};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{sleep_until, timeout};

use crate::backend::Backend;
use crate::connector::ChannelConnector;
use crate::reconnect::Reconnect;

/// How long the next address waits while one is being tried (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Longest time between two checks for due work.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Source of the set of endpoints.
pub(crate) enum EndpointSource {
    Static(Vec<EndpointAddress>),
    Resolved(Box<NameWatcher>),
}

/// Runs a [`Channel`](crate::Channel): resolves, connects, drains. All its tasks and connections end with it.
#[must_use = "a channel connects only while its driver runs: spawn `run`"]
pub struct ChannelDriver {
    balancer: Balancer<Backend>,
    connector: Arc<ChannelConnector>,
    source: Option<EndpointSource>,
    resolve_now: ResolveNow,
    /// Changes when the last channel is dropped.
    channels: watch::Receiver<()>,
    connections: usize,
    drain_timeout: Duration,
    backoff: Backoff,
    tasks: JoinSet<TaskOutput>,
    connected: HashMap<EndpointId, ConnectedBackend>,
    /// Number of removed backends with calls in flight.
    draining: usize,
}

/// A backend that is connected or being connected.
struct ConnectedBackend {
    endpoint: Arc<Endpoint<Backend>>,
    began: Instant,
    tasks: Vec<AbortHandle>,
}

enum TaskOutput {
    /// A resolver or a connection ended.
    Service,
    Drained(Arc<Endpoint<Backend>>, DrainOutcome),
}

impl ConnectedBackend {
    fn end(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.endpoint.value().end();
    }
}

impl ChannelDriver {
    pub(crate) fn new(
        balancer: Balancer<Backend>,
        connector: ChannelConnector,
        source: EndpointSource,
        resolve_now: ResolveNow,
        channels: watch::Receiver<()>,
    ) -> Self {
        Self {
            balancer,
            connector: Arc::new(connector),
            source: Some(source),
            resolve_now,
            channels,
            connections: 1,
            drain_timeout: Duration::ZERO,
            backoff: Backoff::grpc(),
            tasks: JoinSet::new(),
            connected: HashMap::new(),
            draining: 0,
        }
    }

    pub(crate) fn with(mut self, connections: usize, drain_timeout: Duration, backoff: Backoff) -> Self {
        (self.connections, self.drain_timeout, self.backoff) = (connections, drain_timeout, backoff);
        self
    }

    /// Runs until the channel is closed or its last clone is dropped, and all calls have ended or the drain timeout is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping it cuts all connections; calls in flight fail.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn run(mut self) {
        self.start_source();
        let mut channels = self.channels.clone();
        loop {
            let seen = self.balancer.version();
            let tick_due = self.balancer.tick(Instant::now());
            self.drain_departed();
            let connect_due = self.connect();
            if self.is_over() {
                return;
            }
            let due = [tick_due, connect_due].into_iter().flatten().min();
            let due = due.unwrap_or_else(|| Instant::now() + CHECK_INTERVAL_MAX);
            tokio::select! {
                _ = self.balancer.changed(seen) => (),
                Some(output) = self.tasks.join_next() => self.on_task_end(&output),
                () = sleep_until(due.into()) => (),
                _ = channels.changed(), if !self.balancer.is_closed() => self.balancer.close(),
            }
        }
    }

    fn start_source(&mut self) {
        match self.source.take() {
            Some(EndpointSource::Static(addresses)) => {
                let addresses = addresses.into_iter().map(ResolvedAddress::new).collect();
                apply(&self.balancer, ResolveEvent::Set(addresses));
            }
            Some(EndpointSource::Resolved(watcher)) => {
                let balancer = self.balancer.clone();
                self.tasks.spawn(async move {
                    watcher.run(|event| apply(&balancer, event)).await;
                    TaskOutput::Service
                });
            }
            None => (),
        }
    }

    /// The channel is closed, and all connections and drains have ended.
    fn is_over(&self) -> bool {
        self.balancer.is_closed() && self.connected.is_empty() && self.draining == 0
    }

    /// Starts connects by the policy's strategy. Returns when to call it again.
    fn connect(&mut self) -> Option<Instant> {
        let order = self.balancer.connect_order();
        match self.balancer.policy().connect_strategy() {
            ConnectStrategy::All => {
                let missing: Vec<_> =
                    order.iter().map(|(id, _)| *id).filter(|id| !self.connected.contains_key(id)).collect();
                self.start(&missing);
                None
            }
            ConnectStrategy::First => self.connect_next(&order),
        }
    }

    /// Connects to one endpoint after the other until one is ready, and then stops connecting to the others.
    fn connect_next(&mut self, order: &[(EndpointId, ConnectivityState)]) -> Option<Instant> {
        if let Some(chosen) = self.chosen(order) {
            order.iter().filter(|(id, _)| *id != chosen).for_each(|(id, _)| self.stop_connecting(*id));
            return None;
        }
        let (next, _) = order.iter().find(|(id, _)| !self.connected.contains_key(id))?;
        let all_failed = order
            .iter()
            .filter(|(id, _)| self.connected.contains_key(id))
            .all(|(_, state)| matches!(state, ConnectivityState::Failed { .. }));
        let due = self.connected.values().map(|connected| connected.began + HEAD_START).max();
        if let Some(due) = due.filter(|due| !all_failed && *due > Instant::now()) {
            return Some(due);
        }
        self.start(&[*next]);
        Some(Instant::now() + HEAD_START)
    }

    /// The ready endpoint that picks use. Several can be ready: two that were tried at the same time, or all after a change of
    /// the policy.
    fn chosen(&self, order: &[(EndpointId, ConnectivityState)]) -> Option<EndpointId> {
        let mut ready = order.iter().filter(|(_, state)| *state == ConnectivityState::Ready).map(|(id, _)| *id);
        let picked = self.balancer.pick_with(&Pick::new(), |endpoint| endpoint.id()).ok();
        ready.clone().find(|id| Some(*id) == picked).or_else(|| ready.next())
    }

    /// Stops connecting to an endpoint. Calls on an open connection run to their end.
    fn stop_connecting(&mut self, id: EndpointId) {
        let Some(connected) = self.connected.remove(&id) else { return };
        let was_connected = connected.endpoint.value().release_connections(|| self.balancer.mark_idle(id));
        if !was_connected {
            connected.tasks.iter().for_each(AbortHandle::abort);
        }
    }

    fn start(&mut self, ids: &[EndpointId]) {
        if ids.is_empty() {
            return;
        }
        let endpoints = self.balancer.endpoints();
        for endpoint in endpoints.into_iter().filter(|endpoint| ids.contains(&endpoint.id())) {
            // Before the task runs: the next `connect` must see that this endpoint is being tried.
            self.balancer.mark_connecting(endpoint.id());
            let tasks = (0..self.connections).map(|_| self.spawn_reconnect(&endpoint)).collect();
            self.connected.insert(endpoint.id(), ConnectedBackend { began: Instant::now(), tasks, endpoint });
        }
    }

    fn spawn_reconnect(&mut self, endpoint: &Arc<Endpoint<Backend>>) -> AbortHandle {
        let reconnect = Reconnect {
            endpoint: Arc::clone(endpoint),
            balancer: self.balancer.clone(),
            connector: Arc::clone(&self.connector),
            resolve_now: self.resolve_now.clone(),
            backoff: self.backoff,
            generation: endpoint.value().generation(),
        };
        self.tasks.spawn(async {
            reconnect.run().await;
            TaskOutput::Service
        })
    }

    fn drain_departed(&mut self) {
        for endpoint in self.balancer.take_departed() {
            let drain_timeout = self.drain_timeout;
            self.draining += 1;
            self.tasks.spawn(async move {
                let drained = timeout(drain_timeout, endpoint.drained()).await;
                let outcome = drained.unwrap_or_else(|_| endpoint.abandon_drain());
                TaskOutput::Drained(endpoint, outcome)
            });
        }
    }

    fn on_task_end(&mut self, output: &Result<TaskOutput, JoinError>) {
        let Ok(TaskOutput::Drained(endpoint, outcome)) = output else { return };
        self.draining -= 1;
        if *outcome == DrainOutcome::Empty {
            // Also ends connections that were released and still finish their calls.
            endpoint.value().end();
            self.connected.remove(&endpoint.id()).iter().for_each(ConnectedBackend::end);
        }
    }
}

/// Applies an event of the name watcher to the balancer.
fn apply(balancer: &Balancer<Backend>, event: ResolveEvent) {
    let backend = |spec: &EndpointSpec, _| {
        Backend::new(EndpointAddress::from_key(&spec.key).unwrap_or_else(|| EndpointAddress::Unix("".into())))
    };
    match event {
        ResolveEvent::Set(addresses) => {
            drop(balancer.update(Instant::now(), addresses.iter().map(ResolvedAddress::spec), backend));
        }
        ResolveEvent::Failed(error) => balancer.resolve_failed(Arc::new(error)),
        ResolveEvent::Stale => balancer.discard_set(Instant::now()),
    }
}

impl Drop for ChannelDriver {
    fn drop(&mut self) {
        self.balancer.close();
        self.connected.values().for_each(ConnectedBackend::end);
    }
}

impl fmt::Debug for ChannelDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelDriver").field("connected", &self.connected.len()).finish_non_exhaustive()
    }
}
