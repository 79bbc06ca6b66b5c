//! Sinks of streams: deliver records of one key and report the result.

pub(super) mod away;
mod command;
mod http;
#[cfg(feature = "kafka")]
mod kafka;
mod postgres;
mod stdout;
mod worker_pool;

use std::time::Duration;

use tidegate_lanes::{Batch, Record, RecordFailure};

use super::encoding::RecordEncoder;
use super::error::StreamError;
use super::gateway_access::GatewayAccess;
use super::lane_names::LaneNames;
use tidegate_config::{StreamConfig, stream::StreamSink};

pub(super) use postgres::CopyTable;

/// An open sink.
pub(super) enum Sink {
    Command(command::CommandSink),
    Http(Box<http::HttpSink>),
    #[cfg(feature = "kafka")]
    Kafka(kafka::KafkaSink),
    Postgres(Box<postgres::PostgresSink>),
    Stdout(stdout::StdoutSink),
}

const GRACE: Duration = Duration::from_secs(5);

impl Sink {
    /// Opens the configured sink.
    pub(super) async fn open(
        stream: &StreamConfig,
        lanes: &LaneNames,
        access: &GatewayAccess,
    ) -> Result<Self, StreamError> {
        let (keys, workers) = (&stream.keys, stream.workers().unwrap_or(1));
        let encoder = RecordEncoder { form: keys.form, lanes: lanes.clone() };
        match &keys.to {
            StreamSink::Unset => unreachable!("a checked stream has a sink"),
            StreamSink::Stdout => stdout::StdoutSink::start(encoder).map(Self::Stdout),
            StreamSink::Command(line) => Ok(Self::Command(command::CommandSink::new(line, workers, encoder))),
            StreamSink::Http(target) => http::HttpSink::new(&target.url, keys, encoder).map(Box::new).map(Self::Http),
            StreamSink::Postgres(_) | StreamSink::Gateway(_) => {
                let sink = postgres::PostgresSink::open(stream, lanes, access).await?;
                Ok(Self::Postgres(Box::new(sink)))
            }
            #[cfg(feature = "kafka")]
            StreamSink::Kafka(topics) => kafka::KafkaSink::new(topics, keys).map(Self::Kafka),
            #[cfg(not(feature = "kafka"))]
            StreamSink::Kafka(_) => Err(StreamError::NoKafka),
        }
    }

    /// Whether the sink reports every result itself, however late.
    pub(super) fn is_never_overdue(&self) -> bool {
        matches!(self, Self::Stdout(_))
    }

    /// Delivers a batch and completes it with the result.
    pub(super) async fn deliver_batch(&self, batch: Batch, limit: Duration) {
        if let Self::Stdout(stdout) = self {
            return stdout.enqueue(batch);
        }
        let Batch { records, completion, .. } = batch;
        let delivered = if limit.is_zero() {
            self.deliver(&records).await
        } else {
            let limit = self.hard_limit(limit);
            let timely = tokio::time::timeout(limit, self.deliver(&records)).await;
            timely.unwrap_or_else(|_| Err(self.timed_out(limit)))
        };
        match delivered {
            Ok(()) => completion.finish(),
            Err(failure) => completion.fail(failure),
        }
    }

    fn timed_out(&self, limit: Duration) -> RecordFailure {
        let failure = RecordFailure::new(format!("no answer within {limit:?}"));
        // A record that makes a command hang is found by running the records of the batch one by one.
        if let Self::Command(_) = self { failure } else { failure.keep_batch() }
    }

    /// Longer than the timeout if the other side enforces the timeout itself: a delivery that was given up must not be applied
    /// later.
    fn hard_limit(&self, limit: Duration) -> Duration {
        match self {
            Self::Postgres(_) => limit * 2 + GRACE,
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => limit + GRACE,
            _ => limit,
        }
    }

    async fn deliver(&self, records: &[Record]) -> Result<(), RecordFailure> {
        match self {
            Self::Command(command) => command.deliver(records).await,
            Self::Http(http) => http.deliver(records).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(topic) => topic.deliver(records).await,
            Self::Postgres(postgres) => postgres.deliver(records).await,
            Self::Stdout(_) => Ok(()),
        }
    }

    /// Completes with the reason when the sink accepts nothing any more; pending forever for most sinks.
    pub(super) async fn failed(&self) -> String {
        match self {
            Self::Stdout(stdout) => stdout.failed().await,
            _ => std::future::pending().await,
        }
    }

    /// Releases the resources of the sink.
    pub(super) async fn close(&self, within: Duration) {
        match self {
            Self::Command(command) => command.close(within).await,
            Self::Stdout(stdout) => stdout.close(),
            _ => {}
        }
    }
}
