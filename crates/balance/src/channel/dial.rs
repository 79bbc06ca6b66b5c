//! Keeps one connection to a backend: opens it, waits for its end, opens it again.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connect::Connect;
use super::line::Stop;
use super::node::Node;
use crate::backoff::Backoff;
use crate::balancer::Balancer;
use crate::endpoint::{Cause, Endpoint};
use crate::moment::after;
use crate::resolve::ResolveNow;

/// A connection that lived at least so long is opened again at once; so is the first that did not, but no second one. If
/// none of them answered a call, it counts as a failure to connect.
const LIVED: Duration = Duration::from_secs(1);

/// One of the connections to a backend.
pub(super) struct Dial {
    pub(super) endpoint: Arc<Endpoint<Node>>,
    pub(super) balancer: Balancer<Node>,
    pub(super) connect: Arc<Connect>,
    pub(super) resolve_now: ResolveNow,
    /// Before a connection that ended too soon is opened again.
    pub(super) backoff: Backoff,
    /// Of the backend: when it is over, this ends.
    pub(super) life: u64,
}

/// How the connections before went, one after the other.
#[derive(Default)]
struct Past {
    /// So many lived too short a time.
    short: u32,
    /// So many of those answered nothing.
    fruitless: u32,
}

impl Dial {
    /// Runs until it is dropped, or the backend is put to rest.
    pub(super) async fn keep(self) {
        let mut past = Past::default();
        while self.is_begun() {
            let (began, stop) = (Instant::now(), self.endpoint.value().stop());
            let (number, cause) = self.live(Arc::clone(&stop)).await;
            past = past.then(number.is_some() && began.elapsed() < LIVED, stop.has_answered());
            let Some(due) = self.ended(number, cause, &past) else { return };
            // Who is lost may have moved.
            self.resolve_now.hint();
            if number.is_none() || past.short > 1 {
                tokio::time::sleep_until(due.into()).await;
            }
        }
    }

    /// Tells the balancer, unless there are other connections. `false` if the backend is to rest.
    fn is_begun(&self) -> bool {
        let told = |others: bool| {
            if !others {
                self.balancer.connecting(self.endpoint.id());
            }
        };
        self.endpoint.value().remove(None, self.life, told).is_some()
    }

    /// Opens the connection and runs it to its end: its number, if it came about, and how it ended.
    async fn live(&self, stop: Arc<Stop>) -> (Option<u64>, Cause) {
        let node = self.endpoint.value();
        let (sender, running) = match self.connect.connect(node.address().clone(), stop).await {
            Ok(connected) => connected,
            Err(error) => return (None, Arc::new(named(node, &error))),
        };
        let number = node.add(sender, self.life, || self.balancer.ready(self.endpoint.id(), Instant::now()));
        match running.await {
            Ok(()) => (number, Arc::new(named(node, &io::Error::other("the server ended the connection")))),
            Err(error) => (number, Arc::new(named(node, &io::Error::other(error)))),
        }
    }

    /// Tells the balancer, unless there are other connections; when to try again. `None` if the backend is to rest.
    fn ended(&self, number: Option<u64>, cause: Cause, past: &Past) -> Option<Instant> {
        let (now, id) = (Instant::now(), self.endpoint.id());
        let failures = past.fruitless.saturating_sub(1);
        let due = self.endpoint.value().remove(number, self.life, |others| match number {
            _ if others => None,
            // It was connected, and may be again in a moment.
            Some(_) if failures == 0 => {
                self.balancer.lost(id, cause);
                None
            }
            // A connection that comes about and ends at once, again and again, is as good as none.
            _ => self.balancer.failed_often(id, now, cause, failures),
        })?;
        Some(due.unwrap_or_else(|| after(now, self.backoff.pause(failures.max(1), fastrand::f64()))))
    }
}

impl Past {
    fn then(self, is_short: bool, has_answered: bool) -> Self {
        if !is_short {
            return Self::default();
        }
        Self { short: self.short + 1, fruitless: if has_answered { 0 } else { self.fruitless + 1 } }
    }
}

fn named(node: &Node, error: &io::Error) -> io::Error {
    let mut text = format!("{}: {error}", node.address());
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    io::Error::new(error.kind(), text)
}
