//! Reads samples on a connection of its own, and connects again when it is lost.

use std::time::{Duration, Instant};

use tidegate_backoff::Backoff;
use tidegate_changes::{ClientError, ConnectOptions, PgConnection, ReplicationMode};
use tokio::sync::{mpsc, watch};

use crate::{
    sample::{self, GatewaySample},
    screen::Screen,
};

/// Pauses between attempts to connect.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Shortest time between two reads of the query log, which may take the gateway seconds.
const QUERIES_INTERVAL: Duration = Duration::from_secs(10);
/// Limit for the answer to a command that changes something.
const ACTION_LIMIT: Duration = Duration::from_secs(10);

/// The tables that the sampler should read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SampleRequest {
    pub(crate) screen: Screen,
    pub(crate) interval: Duration,
    pub(crate) is_paused: bool,
    /// Period of slow queries.
    pub(crate) minutes: u16,
}

/// Report of the sampler.
#[derive(Debug)]
pub(crate) enum SamplerReport {
    Sample(Box<GatewaySample>),
    /// Connected again.
    Connected,
    /// The connection is lost, or an attempt to connect has failed.
    Lost(String),
    /// Outcome of a command.
    Notice(String),
}

/// Reads samples for a user interface.
pub(crate) struct GatewaySampler {
    pub(crate) options: ConnectOptions,
    pub(crate) requests: watch::Receiver<SampleRequest>,
    /// Clients to disconnect.
    pub(crate) kills: mpsc::Receiver<u64>,
    pub(crate) reports: mpsc::Sender<SamplerReport>,
}

/// Connects to the console.
///
/// # Errors
/// The gateway cannot be reached, or refuses the login.
pub(crate) async fn connect(options: &ConnectOptions) -> Result<PgConnection, ClientError> {
    PgConnection::connect(options, ReplicationMode::Off).await
}

impl GatewaySampler {
    /// Reads samples until the user interface has ended.
    pub(crate) async fn run(mut self, mut connection: PgConnection) {
        while let Err(error) = self.serve(&mut connection).await {
            // The old socket is closed before another connection is opened.
            drop(connection);
            if self.reports.send(SamplerReport::Lost(error.to_string())).await.is_err() {
                return;
            }
            match self.reconnect().await {
                Some(new) => connection = new,
                None => return,
            }
        }
    }

    async fn reconnect(&mut self) -> Option<PgConnection> {
        let (first, max) = RECONNECT;
        let backoff = Backoff::new(first, max);
        for failures in 1_u32.. {
            tokio::time::sleep(backoff.delay(failures, fastrand::f64())).await;
            match connect(&self.options).await {
                Ok(connection) => {
                    self.reports.send(SamplerReport::Connected).await.ok()?;
                    return Some(connection);
                }
                Err(error) => self.reports.send(SamplerReport::Lost(error.to_string())).await.ok()?,
            }
        }
        None
    }

    /// Reads samples on one connection. Returns when the user interface has ended.
    async fn serve(&mut self, connection: &mut PgConnection) -> Result<(), ClientError> {
        let mut queries_read: Option<(Instant, u16)> = None;
        loop {
            let request = self.requests.borrow_and_update().clone();
            if !request.is_paused {
                let is_fresh = queries_read
                    .is_some_and(|(at, minutes)| at.elapsed() < QUERIES_INTERVAL && minutes == request.minutes);
                let sample = sample::read(connection, request.screen, request.minutes, is_fresh).await?;
                if matches!(&sample.table, Some((Screen::Queries, _))) {
                    queries_read = Some((Instant::now(), request.minutes));
                }
                if self.reports.send(SamplerReport::Sample(Box::new(sample))).await.is_err() {
                    return Ok(());
                }
            }
            // Both receivers are cancel-safe, and so is the timer.
            tokio::select! {
                changed = self.requests.changed() => if changed.is_err() { return Ok(()) },
                kill = self.kills.recv() => match kill {
                    Some(client) => self.kill(connection, client).await?,
                    None => return Ok(()),
                },
                () = tokio::time::sleep(request.interval), if !request.is_paused => {}
            }
        }
    }

    async fn kill(&mut self, connection: &mut PgConnection, client: u64) -> Result<(), ClientError> {
        let notice = match connection.query_within(&format!("KILL_CLIENT {client}"), ACTION_LIMIT).await {
            Ok(_) => format!("client {client} was disconnected"),
            Err(ClientError::Server(report)) if report.severity == "ERROR" => report.message,
            Err(error) => return Err(error),
        };
        // The user interface may have ended.
        drop(self.reports.send(SamplerReport::Notice(notice)).await);
        Ok(())
    }
}
