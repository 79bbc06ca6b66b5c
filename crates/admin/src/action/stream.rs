//! Commands for streams.

use std::{fmt, sync::Arc};

use tidegate_wire::sqlstate;

use super::{POLL_INTERVAL, not_ready};
use tidegate_proxy::plane::Worker;
use tidegate_streams::{StatusTable, StreamStatus};

use crate::error::ConsoleError;

/// A command for one stream, or for all of them without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamAction {
    Pause(Option<String>),
    Resume(Option<String>),
    Stop(Option<String>),
    Start(Option<String>),
    /// Stream, and key; all keys without one.
    Unpark(String, Option<String>),
    /// Stream, and table as `schema.name`, or a name in the schema `public`.
    Backfill(String, String),
}

/// The command in the syntax of the console.
impl fmt::Display for StreamAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, name, key) = match self {
            Self::Pause(name) => ("PAUSE", name.as_deref(), None),
            Self::Resume(name) => ("RESUME", name.as_deref(), None),
            Self::Stop(name) => ("STOP", name.as_deref(), None),
            Self::Start(name) => ("START", name.as_deref(), None),
            Self::Unpark(name, key) => ("UNPARK", Some(&**name), key.as_deref()),
            Self::Backfill(name, table) => ("BACKFILL", Some(&**name), Some(&**table)),
        };
        write!(f, "STREAM {verb}")?;
        [name, key].into_iter().flatten().try_for_each(|word| write!(f, " {word}"))
    }
}

impl StreamAction {
    /// Executes the command.
    ///
    /// # Errors
    /// Why the command cannot be executed or was not completed.
    ///
    /// # Cancel safety
    /// Dropping the future undoes nothing: a pause stays.
    pub(super) async fn execute(&self, running: Option<&StatusTable>, worker: &Worker) -> Result<(), ConsoleError> {
        match self {
            Self::Pause(name) => pause(worker, &streams(running, name.as_deref())?).await,
            Self::Resume(name) => {
                streams(running, name.as_deref())?.iter().for_each(|stream| stream.resume());
                Ok(())
            }
            Self::Stop(name) => stop(worker, &streams(running, name.as_deref())?).await,
            Self::Start(name) => {
                let streams = streams(running, name.as_deref())?;
                super::reject_if_stopping(&worker.gateway.lifecycle)?;
                streams.iter().for_each(|stream| stream.start());
                Ok(())
            }
            Self::Unpark(name, key) => unpark(&streams(running, Some(name))?, key.as_deref()),
            Self::Backfill(name, table) => backfill(worker, &streams(running, Some(name))?, table).await,
        }
    }
}

/// Returns the stream of this name, or all.
fn streams(running: Option<&StatusTable>, name: Option<&str>) -> Result<Vec<Arc<StreamStatus>>, ConsoleError> {
    let mut streams = running.map(StatusTable::streams).unwrap_or_default();
    let Some(name) = name else { return Ok(streams) };
    streams.retain(|stream| stream.name() == name);
    if streams.is_empty() {
        let error = ConsoleError::new(sqlstate::UNDEFINED_OBJECT, format!("stream \"{name}\" does not exist"));
        return Err(error.hint("SHOW STREAMS lists all streams."));
    }
    Ok(streams)
}

/// Returns when no delivery is in flight.
async fn pause(worker: &Worker, streams: &[Arc<StreamStatus>]) -> Result<(), ConsoleError> {
    streams.iter().for_each(|stream| stream.pause());
    while streams.iter().any(|stream| stream.in_flight() > 0) {
        if streams.iter().any(|stream| !stream.is_paused()) {
            return Err(not_ready("resumed before all deliveries had ended"));
        }
        worker.reactor.sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Returns when the streams have ended.
async fn stop(worker: &Worker, streams: &[Arc<StreamStatus>]) -> Result<(), ConsoleError> {
    streams.iter().for_each(|stream| stream.stop());
    while streams.iter().any(|stream| !stream.state().is_over()) {
        if streams.iter().any(|stream| stream.is_requested()) {
            return Err(not_ready("started again before it had ended"));
        }
        worker.reactor.sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Returns when the copy has begun.
async fn backfill(worker: &Worker, streams: &[Arc<StreamStatus>], table: &str) -> Result<(), ConsoleError> {
    let (schema, table) = table.split_once('.').unwrap_or(("public", table));
    for stream in streams {
        let Some(mut reply) = stream.backfill(schema, table) else {
            return Err(not_ready("the stream does not read changes of Postgres at present")
                .hint("SHOW STREAMS shows its state; STREAM START starts it."));
        };
        let begun = loop {
            match reply.poll() {
                Some(begun) => break begun,
                None => worker.reactor.sleep(POLL_INTERVAL).await,
            }
        };
        begun.map_err(not_ready)?;
    }
    Ok(())
}

fn unpark(streams: &[Arc<StreamStatus>], key: Option<&str>) -> Result<(), ConsoleError> {
    // A stopped stream has no parked records; they are delivered again.
    if streams.iter().any(|stream| !stream.unpark(key)) {
        return Err(not_ready("the stream is not running")
            .hint("STREAM START starts it; its parked records are delivered again."));
    }
    Ok(())
}
