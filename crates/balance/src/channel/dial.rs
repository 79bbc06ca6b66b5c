//! Keeps one connection to a backend: opens it, waits for its end, opens it again.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connect::Connect;
use super::node::Node;
use crate::balancer::Balancer;
use crate::endpoint::{Cause, Endpoint};
use crate::moment::after;
use crate::resolve::ResolveNow;

/// A connection that lived at least so long is opened again at once; so is the first that did not, but no second one.
const LIVED: Duration = Duration::from_secs(1);

/// One of the connections to a backend.
pub(super) struct Dial {
    pub(super) endpoint: Arc<Endpoint<Node>>,
    pub(super) balancer: Balancer<Node>,
    pub(super) connect: Arc<Connect>,
    pub(super) resolve_now: ResolveNow,
    /// Before a connection that ended too soon is opened again.
    pub(super) pause: Duration,
}

impl Dial {
    /// Runs until it is dropped.
    pub(super) async fn keep(self) {
        let mut short_lives = 0;
        loop {
            self.endpoint.value().remove(None, |others| {
                if !others {
                    self.balancer.connecting(self.endpoint.id());
                }
            });
            let began = Instant::now();
            let (number, cause) = self.live().await;
            let due = self.ended(number, cause);
            // Who is lost may have moved.
            self.resolve_now.ask();
            short_lives = if number.is_some() && began.elapsed() < LIVED { short_lives + 1 } else { 0 };
            if number.is_none() || short_lives > 1 {
                tokio::time::sleep_until(due.into()).await;
            }
        }
    }

    /// Opens the connection and runs it to its end: its number, if it came about, and how it ended.
    async fn live(&self) -> (Option<u64>, Cause) {
        let node = self.endpoint.value();
        let (sender, running) = match self.connect.connect(node.address().clone(), node.stop()).await {
            Ok(connected) => connected,
            Err(error) => return (None, Arc::new(named(node, &error))),
        };
        let number = node.add(sender, || self.balancer.ready(self.endpoint.id(), Instant::now()));
        match running.await {
            Ok(()) => (number, Arc::new(named(node, &io::Error::other("the server ended the connection")))),
            Err(error) => (number, Arc::new(named(node, &io::Error::other(error)))),
        }
    }

    /// Tells the balancer, unless there are other connections; when to try again.
    fn ended(&self, number: Option<u64>, cause: Cause) -> Instant {
        let (now, id) = (Instant::now(), self.endpoint.id());
        let due = self.endpoint.value().remove(number, |others| match number {
            _ if others => None,
            // It was connected, and may be again in a moment.
            Some(_) => {
                self.balancer.lost(id, cause);
                None
            }
            None => self.balancer.failed(id, now, cause),
        });
        due.unwrap_or_else(|| after(now, self.pause))
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
