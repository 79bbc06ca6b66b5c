//! Owns what a channel runs: the follower of its name, its connections, its drains.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{sleep_until, timeout};

use super::connect::Connect;
use super::dial::Dial;
use super::node::Node;
use crate::address::{Address, Resolved};
use crate::backoff::Backoff;
use crate::balancer::Balancer;
use crate::endpoint::{Endpoint, EndpointId, Spec};
use crate::pick::Pick;
use crate::policy::Dials;
use crate::resolve::{Follow, ResolveEvent, ResolveNow};
use crate::roster::State;
use crate::slot::Drained;

/// How long the next address waits while one is being tried (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Without anything else to do, it looks whether something is due so often.
const IDLE: Duration = Duration::from_secs(3600);

/// Where the set comes from.
pub(super) enum Members {
    Static(Vec<Address>),
    Followed(Box<Follow>),
}

/// Runs a [`Channel`](super::Channel): resolves, connects, drains. Everything it starts ends with it.
#[must_use = "without its driver a channel connects to nothing: spawn `run`"]
pub struct ChannelDriver {
    balancer: Balancer<Node>,
    connect: Arc<Connect>,
    members: Option<Members>,
    resolve_now: ResolveNow,
    /// Ends when the last channel is dropped.
    channels: watch::Receiver<()>,
    connections: usize,
    drain_within: Duration,
    backoff: Backoff,
    tasks: JoinSet<Done>,
    kept: HashMap<EndpointId, Kept>,
    /// Backends that were removed and are waited for.
    draining: usize,
}

/// A backend that is being connected, or is.
struct Kept {
    endpoint: Arc<Endpoint<Node>>,
    began: Instant,
    dials: Vec<AbortHandle>,
}

/// What a task was for.
enum Done {
    /// Following, or keeping a connection: ends only with the driver.
    Service,
    Drained(Arc<Endpoint<Node>>, Drained),
}

impl Kept {
    fn end(&self) {
        self.dials.iter().for_each(AbortHandle::abort);
        self.endpoint.value().end();
    }
}

impl ChannelDriver {
    pub(super) fn new(
        balancer: Balancer<Node>,
        connect: Connect,
        members: Members,
        resolve_now: ResolveNow,
        channels: watch::Receiver<()>,
    ) -> Self {
        Self {
            balancer,
            connect: Arc::new(connect),
            members: Some(members),
            resolve_now,
            channels,
            connections: 1,
            drain_within: Duration::ZERO,
            backoff: Backoff::default(),
            tasks: JoinSet::new(),
            kept: HashMap::new(),
            draining: 0,
        }
    }

    pub(super) fn with(mut self, connections: usize, drain_within: Duration, backoff: Backoff) -> Self {
        (self.connections, self.drain_within, self.backoff) = (connections, drain_within, backoff);
        self
    }

    /// Runs until the channel is closed, or its last clone dropped, and all calls have ended or their time is over.
    ///
    /// # Cancel safety
    ///
    /// Dropped, everything ends at once: connections are cut, calls in flight fail.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O and time.
    pub async fn run(mut self) {
        self.begin();
        let mut channels = self.channels.clone();
        loop {
            let seen = self.balancer.version();
            let due = self.balancer.tick(Instant::now());
            self.drain_departed();
            let dial_due = self.dial();
            if self.is_over() {
                return;
            }
            let due = [due, dial_due].into_iter().flatten().min().unwrap_or_else(|| Instant::now() + IDLE);
            tokio::select! {
                _ = self.balancer.changed(seen) => (),
                Some(done) = self.tasks.join_next() => self.finish(&done),
                () = sleep_until(due.into()) => (),
                _ = channels.changed(), if !self.balancer.is_closed() => self.balancer.close(),
            }
        }
    }

    fn begin(&mut self) {
        match self.members.take() {
            Some(Members::Static(addresses)) => {
                let found = addresses.into_iter().map(Resolved::new).collect();
                tell(&self.balancer, ResolveEvent::Set(found));
            }
            Some(Members::Followed(follow)) => {
                let balancer = self.balancer.clone();
                self.tasks.spawn(async move {
                    follow.run(|event| tell(&balancer, event)).await;
                    Done::Service
                });
            }
            None => (),
        }
    }

    /// Closed, and nothing is left.
    fn is_over(&self) -> bool {
        self.balancer.is_closed() && self.kept.is_empty() && self.draining == 0
    }

    /// Starts to connect whom the policy wants connected; when to look again.
    fn dial(&mut self) -> Option<Instant> {
        let order = self.balancer.dial_order();
        match self.balancer.policy().dials() {
            Dials::All => {
                let missing: Vec<_> =
                    order.iter().map(|(id, _)| *id).filter(|id| !self.kept.contains_key(id)).collect();
                self.keep(&missing);
                None
            }
            Dials::First => self.dial_next(&order),
        }
    }

    /// One after the other, until one is ready; then the rest rests.
    fn dial_next(&mut self, order: &[(EndpointId, State)]) -> Option<Instant> {
        if let Some(chosen) = self.chosen(order) {
            order.iter().filter(|(id, _)| *id != chosen).for_each(|(id, _)| self.rest(*id));
            return None;
        }
        let (next, _) = order.iter().find(|(id, _)| !self.kept.contains_key(id))?;
        let all_failed = order
            .iter()
            .filter(|(id, _)| self.kept.contains_key(id))
            .all(|(_, state)| matches!(state, State::Failed { .. }));
        let due = self.kept.values().map(|kept| kept.began + HEAD_START).max();
        if let Some(due) = due.filter(|due| !all_failed && *due > Instant::now()) {
            return Some(due);
        }
        self.keep(&[*next]);
        Some(Instant::now() + HEAD_START)
    }

    /// Of those that are ready, the one that calls go to. Several may be: of two that were tried at the same time, or since the
    /// policy before kept all connected.
    fn chosen(&self, order: &[(EndpointId, State)]) -> Option<EndpointId> {
        let mut ready = order.iter().filter(|(_, state)| *state == State::Ready).map(|(id, _)| *id);
        let picked = self.balancer.pick_with(&Pick::new(), |endpoint| endpoint.id()).ok();
        ready.clone().find(|id| Some(*id) == picked).or_else(|| ready.next())
    }

    /// Gives up connecting to it. If it is connected, its calls go on to their end.
    fn rest(&mut self, id: EndpointId) {
        let Some(kept) = self.kept.remove(&id) else { return };
        let was_connected = kept.endpoint.value().rest(|| self.balancer.idle(id));
        if !was_connected {
            kept.dials.iter().for_each(AbortHandle::abort);
        }
    }

    fn keep(&mut self, ids: &[EndpointId]) {
        if ids.is_empty() {
            return;
        }
        let endpoints = self.balancer.endpoints();
        for endpoint in endpoints.into_iter().filter(|endpoint| ids.contains(&endpoint.id())) {
            // Before the task runs, so that it counts as being tried at once.
            self.balancer.connecting(endpoint.id());
            let dials = (0..self.connections).map(|_| self.spawn_dial(&endpoint)).collect();
            self.kept.insert(endpoint.id(), Kept { began: Instant::now(), dials, endpoint });
        }
    }

    fn spawn_dial(&mut self, endpoint: &Arc<Endpoint<Node>>) -> AbortHandle {
        let dial = Dial {
            endpoint: Arc::clone(endpoint),
            balancer: self.balancer.clone(),
            connect: Arc::clone(&self.connect),
            resolve_now: self.resolve_now.clone(),
            backoff: self.backoff,
            life: endpoint.value().life(),
        };
        self.tasks.spawn(async {
            dial.keep().await;
            Done::Service
        })
    }

    fn drain_departed(&mut self) {
        for endpoint in self.balancer.departed() {
            let within = self.drain_within;
            self.draining += 1;
            self.tasks.spawn(async move {
                let drained = timeout(within, endpoint.drained()).await;
                let drained = drained.unwrap_or_else(|_| endpoint.abandon());
                Done::Drained(endpoint, drained)
            });
        }
    }

    fn finish(&mut self, done: &Result<Done, JoinError>) {
        let Ok(Done::Drained(endpoint, drained)) = done else { return };
        self.draining -= 1;
        if *drained == Drained::Empty {
            // Also one that was put to rest may still finish calls.
            endpoint.value().end();
            self.kept.remove(&endpoint.id()).iter().for_each(Kept::end);
        }
    }
}

/// Brings the balancer in line with what the name service said.
fn tell(balancer: &Balancer<Node>, event: ResolveEvent) {
    let node = |spec: &Spec, _| Node::new(Address::from_key(&spec.key).unwrap_or_else(|| Address::Unix("".into())));
    match event {
        ResolveEvent::Set(found) => drop(balancer.update(Instant::now(), found.iter().map(Resolved::spec), node)),
        ResolveEvent::Failed(error) => balancer.unknown(Arc::new(error)),
        ResolveEvent::Stale => balancer.forget(Instant::now()),
    }
}

impl Drop for ChannelDriver {
    fn drop(&mut self) {
        self.balancer.close();
        self.kept.values().for_each(Kept::end);
    }
}

impl fmt::Debug for ChannelDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelDriver").field("kept", &self.kept.len()).finish_non_exhaustive()
    }
}
