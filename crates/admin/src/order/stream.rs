//! Orders for the streams that run beside the queries.

use std::{fmt, sync::Arc};

use tidegate_wire::sqlstate;

use super::{LOOK_EVERY, not_now};
use tidegate_proxy::plane::{Gateway, Worker};
use tidegate_streams::Status;

use crate::fault::Fault;

/// What is to become of a stream. Without a name it is for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamOrder {
    Pause(Option<String>),
    Resume(Option<String>),
    Stop(Option<String>),
    Start(Option<String>),
    /// The stream, and the key; all keys without one.
    Unpark(String, Option<String>),
}

/// As an operator would write it.
impl fmt::Display for StreamOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, name, key) = match self {
            Self::Pause(name) => ("PAUSE", name.as_deref(), None),
            Self::Resume(name) => ("RESUME", name.as_deref(), None),
            Self::Stop(name) => ("STOP", name.as_deref(), None),
            Self::Start(name) => ("START", name.as_deref(), None),
            Self::Unpark(name, key) => ("UNPARK", Some(&**name), key.as_deref()),
        };
        write!(f, "STREAM {verb}")?;
        [name, key].into_iter().flatten().try_for_each(|word| write!(f, " {word}"))
    }
}

impl StreamOrder {
    /// Does it.
    ///
    /// # Errors
    /// Why it cannot be done, or what kept it from being completed.
    ///
    /// # Cancel safety
    /// Dropped, it takes nothing back: what is paused stays paused.
    pub(super) async fn carry_out(&self, worker: &Worker) -> Result<(), Fault> {
        let gateway = &worker.gateway;
        match self {
            Self::Pause(name) => pause(worker, &streams(gateway, name.as_deref())?).await,
            Self::Resume(name) => {
                streams(gateway, name.as_deref())?.iter().for_each(|stream| stream.resume());
                Ok(())
            }
            Self::Stop(name) => stop(worker, &streams(gateway, name.as_deref())?).await,
            Self::Start(name) => {
                let streams = streams(gateway, name.as_deref())?;
                super::must_not_be_stopping(gateway)?;
                streams.iter().for_each(|stream| stream.start());
                Ok(())
            }
            Self::Unpark(name, key) => unpark(&streams(gateway, Some(name))?, key.as_deref()),
        }
    }
}

/// The stream of this name, or all.
fn streams(gateway: &Gateway, name: Option<&str>) -> Result<Vec<Arc<Status>>, Fault> {
    let mut streams = gateway.streams.get().map(tidegate_streams::Board::streams).unwrap_or_default();
    let Some(name) = name else { return Ok(streams) };
    streams.retain(|stream| stream.name() == name);
    if streams.is_empty() {
        let fault = Fault::new(sqlstate::UNDEFINED_OBJECT, format!("stream \"{name}\" does not exist"));
        return Err(fault.hint("SHOW STREAMS lists those there are."));
    }
    Ok(streams)
}

/// Returns when no delivery is under way.
async fn pause(worker: &Worker, streams: &[Arc<Status>]) -> Result<(), Fault> {
    streams.iter().for_each(|stream| stream.pause());
    while streams.iter().any(|stream| stream.in_flight() > 0) {
        if streams.iter().any(|stream| !stream.is_paused()) {
            return Err(not_now("resumed before all deliveries had ended"));
        }
        worker.reactor.sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Returns when they have ended.
async fn stop(worker: &Worker, streams: &[Arc<Status>]) -> Result<(), Fault> {
    streams.iter().for_each(|stream| stream.stop());
    while streams.iter().any(|stream| !stream.state().is_over()) {
        if streams.iter().any(|stream| stream.is_wanted()) {
            return Err(not_now("started before it had ended"));
        }
        worker.reactor.sleep(LOOK_EVERY).await;
    }
    Ok(())
}

fn unpark(streams: &[Arc<Status>], key: Option<&str>) -> Result<(), Fault> {
    // Nothing is parked in a stream that does not run: its records come again.
    if streams.iter().any(|stream| !stream.unpark(key)) {
        return Err(not_now("the stream does not run").hint("STREAM START starts it; its parked records come again."));
    }
    Ok(())
}
