//! Where transactions come from.

use std::future::Future;
use std::pin::Pin;

use tidegate_changes::{
    ChangeOptions, ChangeStream, ChangeStreamError, ClientError, ConnectOptions, ErrorClass, IdleAck, Lsn,
    PgConnection, ReplicationMode, SlotIdentity, StreamPosition, classify,
    slots::{self, NewSlot},
};

/// The publication, slot and position to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedStart {
    /// The publication.
    pub publication: String,
    /// The replication slot.
    pub slot: String,
    /// All transactions before this position are stored; `None` if there is nothing that a new slot would invalidate.
    pub resume: Option<StreamPosition>,
    /// The slot cannot deliver its changes: it is dropped and created again.
    pub discards_slot: bool,
}

/// No stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// Changes after the position are lost: the logs end, and a new slot begins.
    #[error("{0}")]
    Gap(String),
    /// As [`Self::Gap`], and the slot does not deliver later changes either.
    #[error("{0}")]
    SlotUnusable(String),
    /// A later attempt may succeed.
    #[error("{0}")]
    Retry(String),
    /// Another process reads the slot.
    #[error("{0}")]
    Busy(String),
}

/// A stream, and what its positions belong to.
#[derive(Debug)]
pub struct OpenedFeed {
    /// The changes.
    pub stream: ChangeStream,
    /// Server, timeline and slot.
    pub identity: SlotIdentity,
    /// The position after which the stream has all changes.
    pub begins_at: Lsn,
}

/// A stream that is being opened.
pub type OpeningFeed<'a> = Pin<Box<dyn Future<Output = Result<OpenedFeed, FeedError>> + Send + 'a>>;

/// Opens streams.
pub trait Feed: Send + Sync + 'static {
    /// Opens the stream after a position. Creates the slot if it does not exist and there is no position.
    fn open<'a>(&'a self, start: &'a FeedStart) -> OpeningFeed<'a>;
}

/// Opens the stream of a replication slot.
#[derive(Debug)]
pub struct SlotFeed {
    connect: ConnectOptions,
}

impl SlotFeed {
    /// The feed of a database.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn from_url(url: &str) -> Result<Self, String> {
        ConnectOptions::from_url(url).map(|connect| Self { connect }).map_err(|error| error.to_string())
    }

    async fn start(&self, start: &FeedStart) -> Result<OpenedFeed, FeedError> {
        let retry = |error: ClientError| FeedError::Retry(client_error(&error));
        let mut connection = PgConnection::connect(&self.connect, ReplicationMode::Database).await.map_err(retry)?;
        let server = slots::server_state(&mut connection).await.map_err(retry)?;
        let found = slots::list_slots(&mut connection, Some(&start.slot)).await.map_err(retry)?;
        let is_lost = found.first().is_some_and(|slot| {
            start.discards_slot || slot.invalidation_reason.is_some() || slot.wal_status.as_deref() == Some("lost")
        });
        match (found.is_empty(), &start.resume) {
            (true, Some(_)) => return Err(FeedError::Gap(format!("the replication slot {} is gone", start.slot))),
            (false, Some(_)) if is_lost => {
                return Err(FeedError::Gap(format!("the server has invalidated the replication slot {}", start.slot)));
            }
            (false, None) if is_lost => {
                slots::drop_slot(&mut connection, &start.slot, false).await.map_err(|error| stream_error(&error))?;
                slots::create_slot(&mut connection, &NewSlot::new(&start.slot))
                    .await
                    .map_err(|error| stream_error(&error))?;
            }
            (true, None) => {
                slots::create_slot(&mut connection, &NewSlot::new(&start.slot))
                    .await
                    .map_err(|error| stream_error(&error))?;
            }
            (false, _) => {}
        }
        let begins_at = match &start.resume {
            Some(resume) => resume.lsn,
            None => {
                let found = slots::list_slots(&mut connection, Some(&start.slot)).await.map_err(retry)?;
                found.first().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default()
            }
        };
        connection.close().await;
        let identity = SlotIdentity {
            system_id: server.system_id,
            timeline: server.timeline,
            database: server.database,
            slot: start.slot.clone(),
        };
        let options = ChangeOptions {
            resume: start.resume.clone(),
            // The first request for a table publishes it, and the shape reads its rows.
            publishes_tables: true,
            // The position of the logs must not fall behind the slot.
            idle_ack: IdleAck::Consumer,
            ..ChangeOptions::new(self.connect.clone(), start.slot.as_str(), start.publication.as_str())
        };
        Ok(OpenedFeed { stream: ChangeStream::start(options), identity, begins_at })
    }
}

impl Feed for SlotFeed {
    fn open<'a>(&'a self, start: &'a FeedStart) -> OpeningFeed<'a> {
        Box::pin(self.start(start))
    }
}

/// Classifies an error of the stream.
pub(crate) fn stream_error(error: &ChangeStreamError) -> FeedError {
    if error.is_slot_busy() {
        return FeedError::Busy(error.to_string());
    }
    match (error, error.class()) {
        (ChangeStreamError::Server { report, .. }, _) if error.needs_new_slot() => {
            FeedError::SlotUnusable(format!("{report}; the replication slot is created again"))
        }
        (_, ErrorClass::Gap) => FeedError::Gap(error.to_string()),
        (ChangeStreamError::Client(error), _) => FeedError::Retry(client_error(error)),
        (_, ErrorClass::Retry | ErrorClass::Stop) => FeedError::Retry(error.to_string()),
    }
}

/// The error of a connection, with the remedy if the server reports it.
fn client_error(error: &ClientError) -> String {
    match error {
        ClientError::Server(report) => format!("{report}; {}", classify(report).1),
        other => other.to_string(),
    }
}
