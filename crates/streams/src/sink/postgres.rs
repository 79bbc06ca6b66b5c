//! Postgres as a sink: a statement per record, with parts of the record as parameters; a batch is a transaction.

mod connect;

use bytes::BytesMut;
use tidegate_lanes::{Record, RecordFailure};
use tokio_postgres::types::{Format, IsNull, ToSql, Type};
use tokio_postgres::{Client, Statement};

use super::worker_pool::WorkerPool;
use tidegate_config::{StreamConfig, stream::RecordField};

use crate::{error::StreamError, gateway_access::GatewayAccess, lane_names::LaneNames, parameters};
use connect::{Connected, PostgresLogin};

pub(crate) struct PostgresSink {
    login: PostgresLogin,
    sql: String,
    /// The server cancels longer statements, so that none overlaps the next attempt; 0 means no limit.
    statement_ms: u128,
    fields: Vec<RecordField>,
    lanes: LaneNames,
    pub(super) workers: WorkerPool<PostgresSession>,
}

/// A connection with its prepared statement.
pub(super) struct PostgresSession {
    connected: Connected,
    statement: Statement,
}

impl PostgresSink {
    /// Connects once and prepares the statement, so that errors are reported before the first record.
    pub(super) async fn open(
        stream: &StreamConfig,
        lanes: &LaneNames,
        access: &GatewayAccess,
    ) -> Result<Self, StreamError> {
        let keys = &stream.keys;
        let sink = Self {
            login: PostgresLogin::new(stream, access)?,
            sql: keys.sql.clone(),
            statement_ms: keys.timeout.as_millis(),
            fields: keys.params.0.clone(),
            lanes: lanes.clone(),
            workers: WorkerPool::new(keys.connections as usize),
        };
        let session = sink.connect().await.map_err(|failure| StreamError::Sink(failure.to_string()))?;
        let (expected, given) = (session.statement.params().len(), sink.fields.len());
        if expected != given {
            let text = format!(
                "the statement has {expected} parameters, but params lists {given}: list one for each, in order"
            );
            return Err(StreamError::Sink(text));
        }
        sink.workers.put_back(session);
        Ok(sink)
    }

    pub(super) async fn deliver(&self, records: &[Record]) -> Result<(), RecordFailure> {
        let parameters = |record| parameters::parameters(&self.fields, record, &self.lanes);
        let rows = records.iter().map(parameters).collect::<Result<Vec<_>, _>>()?;
        let (_permit, idle) = self.workers.acquire(|session| !session.connected.client.is_closed()).await?;
        let mut session = match idle {
            Some(session) => session,
            None => self.connect().await?,
        };
        // If it is dropped before it is returned (a timeout), the connection is closed.
        let result = session.execute(&rows).await;
        if result.as_ref().is_err_and(is_outdated_connection) {
            // Other connections lead to the same server or are as outdated.
            drop(self.workers.take_all());
        } else if !session.connected.client.is_closed() {
            self.workers.put_back(session);
        }
        result.map_err(|error| failure(&error))
    }

    async fn connect(&self) -> Result<PostgresSession, RecordFailure> {
        let connected = self.login.connect().await;
        let connected = connected.map_err(|reason| RecordFailure::new(format!("cannot connect: {reason}")))?;
        let limit = format!("SET statement_timeout = {}", self.statement_ms.min(i32::MAX as u128));
        connected.client.batch_execute(&limit).await.map_err(|error| failure(&error))?;
        let statement = connected.client.prepare(&self.sql).await.map_err(|error| failure(&error))?;
        Ok(PostgresSession { connected, statement })
    }
}

impl PostgresSession {
    async fn execute(&mut self, rows: &[Vec<Option<String>>]) -> Result<(), tokio_postgres::Error> {
        let Self { connected: Connected { client, .. }, statement } = self;
        if let [row] = rows {
            return execute(client, statement, row).await;
        }
        client.batch_execute("BEGIN").await?;
        let mut result = Ok(());
        for row in rows {
            result = execute(client, statement, row).await;
            if result.is_err() {
                break;
            }
        }
        client.batch_execute(if result.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
        result
    }
}

async fn execute(client: &Client, statement: &Statement, row: &[Option<String>]) -> Result<(), tokio_postgres::Error> {
    let texts: Vec<TextParameter<'_>> = row.iter().map(|text| TextParameter(text.as_deref())).collect();
    let parameters: Vec<&(dyn ToSql + Sync)> = texts.iter().map(|text| text as &(dyn ToSql + Sync)).collect();
    client.execute(statement, &parameters).await.map(drop)
}

/// A parameter in text format, whatever its type.
#[derive(Debug)]
struct TextParameter<'a>(Option<&'a str>);

impl ToSql for TextParameter<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(text) = self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    tokio_postgres::types::to_sql_checked!();
}

/// Whether the server, or its knowledge of the statement, has changed: it accepts no writes any more, is shutting down, or the
/// table has changed. Another connection may succeed.
fn is_outdated_connection(error: &tokio_postgres::Error) -> bool {
    let code = error.as_db_error().map_or("", |reported| reported.code().code());
    code == "25006" || code == "0A000" || code == "26000" || code.starts_with("57P") || code.starts_with("08")
}

/// Maps an error to a failure. Errors about the data (class 22, such as an invalid number or date) are permanent.
fn failure(error: &tokio_postgres::Error) -> RecordFailure {
    let Some(reported) = error.as_db_error() else {
        return RecordFailure::new(crate::error::error_chain(error));
    };
    let code = reported.code().code();
    let detail = reported.detail().map_or_else(String::new, |detail| format!(" ({detail})"));
    let reason = format!("{code}: {}{detail}", reported.message());
    if code.starts_with("22") { RecordFailure::permanent(reason) } else { RecordFailure::new(reason) }
}
