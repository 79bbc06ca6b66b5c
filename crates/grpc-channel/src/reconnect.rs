//! Keeps one connection to a backend open.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_backoff::{Backoff, instant_after};
use tidegate_balance::{Balancer, Endpoint, ResolveNow, SharedError};

use crate::backend::Backend;
use crate::connector::ChannelConnector;
use crate::controlled_stream::StreamControl;

/// A connection that lived at least this long is reopened without a delay. So is the first shorter one, but not the second.
/// Shorter connections without a response count as failed connects.
const LIFETIME_MIN: Duration = Duration::from_secs(1);

/// Keeps one of the connections to a backend open.
pub(crate) struct Reconnect {
    pub(crate) endpoint: Arc<Endpoint<Backend>>,
    pub(crate) balancer: Balancer<Backend>,
    pub(crate) connector: Arc<ChannelConnector>,
    pub(crate) resolve_now: ResolveNow,
    /// Delay after a connection that ended too soon.
    pub(crate) backoff: Backoff,
    /// Generation of the backend's connections: this task ends with it.
    pub(crate) generation: u64,
}

/// Consecutive connections that ended too soon.
#[derive(Default)]
struct ShortConnections {
    count: u32,
    /// Consecutive ones without a response.
    without_response: u32,
}

impl Reconnect {
    /// Runs until it is dropped, or until the channel stops connecting to the backend.
    pub(crate) async fn run(self) {
        let mut short = ShortConnections::default();
        while self.mark_connecting() {
            let (began, control) = (Instant::now(), self.endpoint.value().control());
            let (number, cause) = self.connect_once(Arc::clone(&control)).await;
            short = short.then(number.is_some() && began.elapsed() < LIFETIME_MIN, control.has_responded());
            let Some(due) = self.on_end(number, cause, &short) else { return };
            // The backend may have a new address.
            self.resolve_now.hint();
            if number.is_none() || short.count > 1 {
                tokio::time::sleep_until(due.into()).await;
            }
        }
    }

    /// Marks the endpoint as connecting, unless it has other connections. Returns false if the generation is over.
    fn mark_connecting(&self) -> bool {
        let mark = |others: bool| {
            if !others {
                self.balancer.mark_connecting(self.endpoint.id());
            }
        };
        self.endpoint.value().remove(None, self.generation, mark).is_some()
    }

    /// Opens the connection and runs it to its end. Returns its number, if it was added, and why it ended.
    async fn connect_once(&self, control: Arc<StreamControl>) -> (Option<u64>, SharedError) {
        let backend = self.endpoint.value();
        let (sender, connection) = match self.connector.connect(backend.address().clone(), control).await {
            Ok(connected) => connected,
            Err(error) => return (None, Arc::new(with_address(backend, &error))),
        };
        let on_added = || self.balancer.mark_ready(self.endpoint.id(), Instant::now());
        let number = backend.add(sender, self.generation, on_added);
        match connection.await {
            Ok(()) => {
                let error = io::Error::other("the server closed the connection");
                (number, Arc::new(with_address(backend, &error)))
            }
            Err(error) => (number, Arc::new(with_address(backend, &io::Error::other(error)))),
        }
    }

    /// Marks the endpoint as lost or failed, unless it has other connections. Returns when to connect again; `None` if the
    /// generation is over.
    fn on_end(&self, number: Option<u64>, cause: SharedError, short: &ShortConnections) -> Option<Instant> {
        let (now, id) = (Instant::now(), self.endpoint.id());
        let failures = short.without_response.saturating_sub(1);
        let due = self.endpoint.value().remove(number, self.generation, |others| match number {
            _ if others => None,
            // The endpoint was connected, and a new connect starts.
            Some(_) if failures == 0 => {
                self.balancer.mark_lost(id, cause);
                None
            }
            // Connections that repeatedly end without a response are failed connects.
            _ => self.balancer.mark_failed_repeatedly(id, now, cause, failures),
        })?;
        Some(due.unwrap_or_else(|| instant_after(now, self.backoff.delay(failures.max(1), fastrand::f64()))))
    }
}

impl ShortConnections {
    fn then(self, is_short: bool, has_responded: bool) -> Self {
        if !is_short {
            return Self::default();
        }
        let without_response = if has_responded { 0 } else { self.without_response + 1 };
        Self { count: self.count + 1, without_response }
    }
}

/// The error with the address of the backend and the texts of its sources.
fn with_address(backend: &Backend, error: &io::Error) -> io::Error {
    let mut text = format!("{}: {error}", backend.address());
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    io::Error::new(error.kind(), text)
}
