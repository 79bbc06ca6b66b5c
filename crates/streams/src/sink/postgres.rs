//! Postgres as a sink: a statement per record, with parts of the record as parameters; a delivery is a transaction.
//!
//! Deliveries leave nothing behind in the session: behind a transaction pooler, other clients get the same session. The time
//! limit is `SET LOCAL`, and statements are unnamed.

mod connect;
mod copy_table;
mod position;
mod statement_fields;

use std::future::{Future as _, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use bytes::BytesMut;
use tidegate_lanes::{Record, RecordFailure};
use tokio_postgres::types::{Format, IsNull, ToSql, Type};
use tokio_postgres::{Client, Error as PgError};

use super::worker_pool::SinkWorkerPool;
use tidegate_config::{
    StreamConfig,
    stream::{ChangeOrder, RecordField},
};

use crate::{
    change::{OP, TABLE, header},
    error::StreamError,
    gateway_access::GatewayAccess,
    lane_names::LaneNames,
    parameters,
};
use connect::{Connected, PostgresLogin};
pub(crate) use copy_table::CopyTable;
use position::PositionOwner;
use statement_fields::{StatementFields, StatementVerdict};

pub(crate) struct PostgresSink {
    stream: String,
    login: PostgresLogin,
    sql: String,
    /// The server cancels longer statements, so that none overlaps the next attempt; 0 means no limit.
    statement_ms: u128,
    fields: Vec<RecordField>,
    /// Decides which records of changes the statement takes.
    statement: StatementFields,
    /// Records that the statement did not take.
    skipped: AtomicU64,
    lanes: LaneNames,
    /// The position of this stream is stored with its records: each is applied exactly once.
    position: Option<PositionOwner>,
    pub(super) workers: SinkWorkerPool<Connected>,
}

/// The parameters of one record.
type Row = Vec<Option<String>>;

/// Statements that are sent before the first result is awaited.
const PIPELINE_MAX: usize = 256;

impl PostgresSink {
    /// Connects once and prepares the statement, so that errors are reported before the first record.
    pub(super) async fn open(
        stream: &StreamConfig,
        lanes: &LaneNames,
        access: &GatewayAccess,
    ) -> Result<Self, StreamError> {
        let keys = &stream.keys;
        // Commit order: one position covers all that was delivered.
        let position = match lanes {
            LaneNames::Changes { stream, slot, .. } if keys.order == ChangeOrder::Commit => {
                Some(PositionOwner { stream: stream.to_string(), slot: slot.to_string() })
            }
            _ => None,
        };
        let sink = Self {
            stream: keys.name.clone(),
            login: PostgresLogin::new(stream, access)?,
            sql: keys.sql.clone(),
            statement_ms: keys.timeout.as_millis(),
            fields: keys.params.0.clone(),
            statement: StatementFields::of(&keys.params.0),
            skipped: AtomicU64::new(0),
            lanes: lanes.clone(),
            position,
            workers: SinkWorkerPool::new(stream.workers().unwrap_or(1)),
        };
        let connected = sink.login.connect().await?;
        let counted = parameter_count(&connected.client, &sink.sql).await;
        let (expected, given) = (counted.map_err(|error| open_error(&error))?, sink.fields.len());
        if expected != given {
            let text = format!(
                "the statement has {expected} parameters, but params lists {given}: list one for each, in order"
            );
            return Err(StreamError::Sink(text));
        }
        if sink.position.is_some() {
            let prepared = position::prepare(&connected.client).await;
            let prepared = prepared.and(copy_table::prepare(&connected.client).await);
            prepared.map_err(|error| open_error(&error))?;
        }
        sink.workers.put_back(connected);
        Ok(sink)
    }

    pub(super) async fn deliver(&self, records: &[Record]) -> Result<(), RecordFailure> {
        let rows = records.iter().map(|record| self.row(record)).collect::<Result<Vec<_>, _>>()?;
        if self.position.is_none() && rows.iter().all(Option::is_none) {
            return Ok(());
        }
        let (_permit, idle) = self.workers.acquire(|connected| !connected.client.is_closed()).await?;
        let connected = match idle {
            Some(connected) => connected,
            None => self.connect().await?,
        };
        // If it is dropped before it is returned (a timeout), the connection is closed.
        let result = match &self.position {
            Some(owner) => self.execute_once(&connected.client, owner, records, &rows).await?,
            None => {
                let rows: Vec<Row> = rows.into_iter().flatten().collect();
                self.execute(&connected.client, &rows).await
            }
        };
        if result.as_ref().is_err_and(is_outdated_connection) {
            // Other connections lead to the same server or are as outdated.
            drop(self.workers.take_all());
        } else if !connected.client.is_closed() {
            self.workers.put_back(connected);
        }
        let name = change_name(records);
        result.map_err(|error| failure(&error, &name))
    }

    /// The parameters of a record; `None` if the statement does not take it.
    fn row(&self, record: &Record) -> Result<Option<Row>, RecordFailure> {
        let value = parameters::parsed_value(&self.fields, record)?;
        match self.statement.judge(record, value.as_ref()) {
            StatementVerdict::Execute => {
                parameters::parameters_of(&self.fields, record, value.as_ref(), &self.lanes).map(Some)
            }
            StatementVerdict::Skip => {
                self.log_skipped(record);
                Ok(None)
            }
            StatementVerdict::Refuse(reason) => Err(RecordFailure::permanent(reason)),
        }
    }

    /// Definitions are rare, and sql may need a change; messages may be many.
    fn log_skipped(&self, record: &Record) {
        let (stream, operation, table) = (&self.stream, header(record, OP), header(record, TABLE));
        let skipped = self.skipped.fetch_add(1, Ordering::Relaxed) + 1;
        if operation == Some("schema") {
            tracing::info!(stream, operation, table, skipped, "record without a row is not given to sql");
        } else {
            tracing::debug!(stream, operation, table, skipped, "record without a row is not given to sql");
        }
    }

    async fn connect(&self) -> Result<Connected, RecordFailure> {
        let connected = self.login.connect().await;
        connected.map_err(|reason| RecordFailure::new(format!("cannot connect: {reason}")).keep_batch())
    }

    /// Executes the statement for each row: all of them, or none.
    async fn execute(&self, client: &Client, rows: &[Row]) -> Result<(), PgError> {
        let Some(begin) = self.begin(rows.len()) else {
            return execute(client, &self.sql, rows).await;
        };
        if let [_] = rows {
            // A single round trip. After an error, COMMIT rolls back.
            let (begun, executed, ended) = tokio::join!(
                client.batch_execute(&begin),
                execute(client, &self.sql, rows),
                client.batch_execute("COMMIT")
            );
            return begun.and(executed).and(ended);
        }
        // The rows must not be sent outside of a transaction.
        client.batch_execute(&begin).await?;
        for part in rows.chunks(PIPELINE_MAX) {
            if let Err(error) = execute(client, &self.sql, part).await {
                client.batch_execute("ROLLBACK").await?;
                return Err(error);
            }
        }
        client.batch_execute("COMMIT").await
    }

    /// Executes the statement for the records that the stored position does not cover, and stores the new position in the
    /// same transaction. The outer error is a failure of the records that another connection does not avoid.
    async fn execute_once(
        &self,
        client: &Client,
        owner: &PositionOwner,
        records: &[Record],
        rows: &[Option<Row>],
    ) -> Result<Result<(), PgError>, RecordFailure> {
        let begin = self.begin(rows.len()).unwrap_or_else(|| "BEGIN".to_owned());
        if let Err(error) = client.batch_execute(&begin).await {
            return Ok(Err(error));
        }
        let applied = self.apply_once(client, owner, records, rows).await;
        let is_applied = matches!(applied, Ok(Ok(())));
        let ended = client.batch_execute(if is_applied { "COMMIT" } else { "ROLLBACK" }).await;
        if is_applied { Ok(ended) } else { applied }
    }

    async fn apply_once<'r>(
        &self,
        client: &Client,
        owner: &PositionOwner,
        records: &'r [Record],
        rows: &'r [Option<Row>],
    ) -> Result<Result<(), PgError>, RecordFailure> {
        let stored = match owner.read(client).await {
            Ok(stored) => stored,
            Err(error) => return Ok(Err(error)),
        };
        let stored = stored.map(|stored| stored.of(owner)).transpose()?;
        // A record without a value reports only how far the copy of a table is.
        let row = |(record, row): (&'r Record, &'r Option<Row>)| {
            Some((record, row.as_ref()?)).filter(|(record, _)| record.payload().is_some())
        };
        let rows: Vec<_> = records.iter().zip(rows).filter_map(row).collect();
        let places = rows.iter().map(|(record, _)| position::place_of(record)).collect::<Result<Vec<_>, _>>()?;
        let is_new = |place: &position::Place| stored.is_none_or(|stored| *place > stored);
        let fresh: Vec<Row> =
            places.iter().zip(rows).filter(|(place, _)| is_new(place)).map(|(_, (_, row))| row.clone()).collect();
        for part in fresh.chunks(PIPELINE_MAX) {
            if let Err(error) = execute(client, &self.sql, part).await {
                return Ok(Err(error));
            }
        }
        if let Err(error) = copy_table::advance(client, &owner.stream, records).await {
            return Ok(Err(error));
        }
        Ok(match places.last().filter(|place| is_new(place)) {
            Some(last) => owner.store(client, *last).await,
            None => Ok(()),
        })
    }

    /// The start of a transaction; `None` for a single statement without a time limit, because Postgres may refuse the statement
    /// in a transaction.
    fn begin(&self, rows: usize) -> Option<String> {
        match (self.statement_ms.min(i32::MAX as u128), rows) {
            (0, 1) => None,
            (0, _) => Some("BEGIN".to_owned()),
            (limit, _) => Some(format!("BEGIN; SET LOCAL statement_timeout = {limit}")),
        }
    }
}

/// The number of parameters of the statement. Preparing it reports errors before the first record; in a transaction, the prepared
/// statement is closed on the server that has it.
async fn parameter_count(client: &Client, sql: &str) -> Result<usize, PgError> {
    client.batch_execute("BEGIN").await?;
    let count = client.prepare(sql).await?.params().len();
    client.batch_execute("ROLLBACK").await?;
    Ok(count)
}

/// Sends the statements in order and then awaits them in order. Returns the first error: without it, the others had not failed.
async fn execute(client: &Client, sql: &str, rows: &[Row]) -> Result<(), PgError> {
    let mut sent: Vec<_> = rows.iter().map(|row| Box::pin(execute_one(client, sql, row))).collect();
    let mut results: Vec<Option<Result<(), PgError>>> = Vec::with_capacity(sent.len());
    poll_fn(|cx| {
        // The first poll sends.
        results.extend(sent.iter_mut().map(|statement| match statement.as_mut().poll(cx) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }));
        Poll::Ready(())
    })
    .await;
    let mut first_error = Ok(());
    for (statement, result) in sent.into_iter().zip(results) {
        let result = match result {
            Some(result) => result,
            None => statement.await,
        };
        first_error = first_error.and(result);
    }
    first_error
}

async fn execute_one(client: &Client, sql: &str, row: &Row) -> Result<(), PgError> {
    let texts: Vec<TextParameter<'_>> = row.iter().map(|text| TextParameter(text.as_deref())).collect();
    // The server derives the types.
    let parameters: Vec<_> = texts.iter().map(|text| (text as &(dyn ToSql + Sync), Type::UNKNOWN)).collect();
    client.execute_typed(sql, &parameters).await.map(drop)
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

/// The operation and the table of a single change, as the beginning of a reason. The records of a batch that fails are delivered
/// one by one.
fn change_name(records: &[Record]) -> String {
    let [record] = records else { return String::new() };
    match (header(record, OP), header(record, TABLE)) {
        (Some(operation), Some(table)) => format!("{operation} of {table}: "),
        _ => String::new(),
    }
}

/// An error before the first record: the server is away, or the statement is wrong.
fn open_error(error: &PgError) -> StreamError {
    let text = failure(error, "").to_string();
    // The connection has ended if there is no report.
    let is_away = error.as_db_error().is_none_or(|reported| is_of_the_server(reported.code().code()));
    if is_away { StreamError::SinkAway(text) } else { StreamError::Sink(text) }
}

/// Maps an error to a failure. Errors about the data (class 22, such as an invalid number or date) are permanent. A batch is kept
/// unless the error may be one of a single record. The reason begins with the name of the change.
fn failure(error: &PgError, name: &str) -> RecordFailure {
    let Some(reported) = error.as_db_error() else {
        return RecordFailure::new(crate::error::error_chain(error)).keep_batch();
    };
    let code = reported.code().code();
    let detail = reported.detail().map_or_else(String::new, |detail| format!(" ({detail})"));
    let reason = format!("{name}{code}: {}{detail}", reported.message());
    if code.starts_with("22") {
        RecordFailure::permanent(reason)
    } else if is_of_the_server(code) {
        RecordFailure::new(reason).keep_batch()
    } else {
        RecordFailure::new(reason)
    }
}

/// Whether the state of the server is the cause: connection (08), authorisation (28), read-only (25006), serialisation and
/// deadlock (40), resources (53), locks (55P03), intervention and time limit (57), system (58).
fn is_of_the_server(code: &str) -> bool {
    matches!(code, "25006" | "55P03")
        || ["08", "28", "40", "53", "57", "58"].iter().any(|class| code.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_states_keep_a_batch() {
        for code in ["08006", "25006", "40P01", "53300", "57014", "57P01"] {
            assert!(is_of_the_server(code), "{code}");
        }
        for code in ["22P02", "23505", "42P01", "P0001"] {
            assert!(!is_of_the_server(code), "{code}");
        }
    }
}
