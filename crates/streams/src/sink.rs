//! The sink of a stream: takes records of one key, and says when it has them.

mod command;
mod hands;
mod http;
#[cfg(feature = "kafka")]
mod kafka;
mod postgres;
mod stdout;

use std::time::Duration;

use tidegate_lanes::{Batch, Record, RecordFailure};

use super::door::Doors;
use super::error::StreamError;
use super::place::Places;
use super::text::Texts;
use tidegate_config::{Stream, stream::Target};

/// Where records go.
pub(super) enum Sink {
    Command(command::Command),
    Http(Box<http::Http>),
    #[cfg(feature = "kafka")]
    Kafka(kafka::Topic),
    Postgres(Box<postgres::Postgres>),
    Stdout(stdout::Stdout),
}

const GRACE: Duration = Duration::from_secs(5);

impl Sink {
    /// Opens the sink that the keys name.
    pub(super) async fn open(stream: &Stream, places: &Places, doors: &Doors) -> Result<Self, StreamError> {
        let keys = &stream.keys;
        let texts = Texts { form: keys.form, places: places.clone() };
        match &keys.to {
            Target::Unset => unreachable!("a checked stream has a sink"),
            Target::Stdout => stdout::Stdout::start(texts).map(Self::Stdout),
            Target::Command(line) => Ok(Self::Command(command::Command::new(line, keys, texts))),
            Target::Http(target) => http::Http::new(&target.url, keys, texts).map(Box::new).map(Self::Http),
            Target::Postgres(_) | Target::Gateway(_) => {
                let sink = postgres::Postgres::open(stream, places, doors).await?;
                Ok(Self::Postgres(Box::new(sink)))
            }
            #[cfg(feature = "kafka")]
            Target::Kafka(topics) => kafka::Topic::new(topics, keys).map(Self::Kafka),
            #[cfg(not(feature = "kafka"))]
            Target::Kafka(_) => Err(StreamError::NoKafka),
        }
    }

    /// Whether many deliveries at a time cost it nothing.
    pub(super) fn is_wide(&self) -> bool {
        match self {
            Self::Stdout(_) => true,
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => true,
            _ => false,
        }
    }

    /// How many deliveries it has hands for; any number if `None`. More would wait for a hand while their time runs.
    pub(super) fn hands(&self) -> Option<usize> {
        match self {
            Self::Command(command) => Some(command.hands.max),
            Self::Postgres(postgres) => Some(postgres.hands.max),
            _ => None,
        }
    }

    /// Whether it answers by itself, however late.
    pub(super) fn is_patient(&self) -> bool {
        matches!(self, Self::Stdout(_))
    }

    /// Delivers, and ends the completion as the answer says.
    pub(super) async fn take(&self, batch: Batch, limit: Duration) {
        if let Self::Stdout(stdout) = self {
            return stdout.put(batch);
        }
        let Batch { records, completion, .. } = batch;
        let delivered = if limit.is_zero() {
            self.deliver(&records).await
        } else {
            let patience = self.patience(limit);
            let timely = tokio::time::timeout(patience, self.deliver(&records)).await;
            timely.unwrap_or_else(|_| Err(RecordFailure::new(format!("no answer within {patience:?}"))))
        };
        match delivered {
            Ok(()) => completion.finish(),
            Err(failure) => completion.fail(failure),
        }
    }

    /// Longer than the limit where the other side keeps the limit itself: what it was told to give up must not happen
    /// behind our back.
    fn patience(&self, limit: Duration) -> Duration {
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

    /// Completes when it will take nothing any more, with the reason; most never do.
    pub(super) async fn gone(&self) -> String {
        match self {
            Self::Stdout(stdout) => stdout.gone().await,
            _ => std::future::pending().await,
        }
    }

    /// Lets go of what it holds.
    pub(super) async fn close(&self, within: Duration) {
        match self {
            Self::Command(command) => command.close(within).await,
            Self::Stdout(stdout) => stdout.close(),
            _ => {}
        }
    }
}
