//! Postgres: a statement per record, with parts of the record as its parameters; a batch is a transaction.

mod connect;

use bytes::BytesMut;
use tidegate_lanes::{Record, RecordFailure};
use tokio_postgres::types::{Format, IsNull, ToSql, Type};
use tokio_postgres::{Client, Statement};

use super::hands::Hands;
use tidegate_config::{Stream, stream::Field};

use crate::{door::Doors, error::StreamError, field, place::Places};
use connect::{Connected, Login};

pub(crate) struct Postgres {
    login: Login,
    sql: String,
    /// The server ends a statement that takes longer, so that none runs on beside the next attempt; 0 for any time.
    statement_ms: u128,
    fields: Vec<Field>,
    places: Places,
    pub(super) hands: Hands<Session>,
}

/// A connection with its statement prepared.
pub(super) struct Session {
    connected: Connected,
    statement: Statement,
}

impl Postgres {
    /// Connects once and prepares the statement, so that what is wrong with it is said before the first record.
    pub(super) async fn open(stream: &Stream, places: &Places, doors: &Doors) -> Result<Self, StreamError> {
        let keys = &stream.keys;
        let sink = Self {
            login: Login::new(stream, doors)?,
            sql: keys.sql.clone(),
            statement_ms: keys.timeout.as_millis(),
            fields: keys.params.0.clone(),
            places: places.clone(),
            hands: Hands::new(keys.connections as usize),
        };
        let session = sink.connect().await.map_err(|failure| StreamError::Sink(failure.to_string()))?;
        let (wanted, given) = (session.statement.params().len(), sink.fields.len());
        if wanted != given {
            let text =
                format!("the statement has {wanted} parameters, and params names {given}: name one for each, in order");
            return Err(StreamError::Sink(text));
        }
        sink.hands.put_back(session);
        Ok(sink)
    }

    pub(super) async fn deliver(&self, records: &[Record]) -> Result<(), RecordFailure> {
        let parameters = |record| field::texts(&self.fields, record, &self.places);
        let rows = records.iter().map(parameters).collect::<Result<Vec<_>, _>>()?;
        let (_permit, idle) = self.hands.take(|session| !session.connected.client.is_closed()).await?;
        let mut session = match idle {
            Some(session) => session,
            None => self.connect().await?,
        };
        // Dropped before it is put back (its time is over), a connection is closed.
        let result = session.execute(&rows).await;
        if result.as_ref().is_err_and(is_of_the_server) {
            // The others lead to the same one, or are as old.
            drop(self.hands.take_all());
        } else if !session.connected.client.is_closed() {
            self.hands.put_back(session);
        }
        result.map_err(|error| failure(&error))
    }

    async fn connect(&self) -> Result<Session, RecordFailure> {
        let connected = self.login.connect().await;
        let connected = connected.map_err(|reason| RecordFailure::new(format!("cannot connect: {reason}")))?;
        let limit = format!("SET statement_timeout = {}", self.statement_ms.min(i32::MAX as u128));
        connected.client.batch_execute(&limit).await.map_err(|error| failure(&error))?;
        let statement = connected.client.prepare(&self.sql).await.map_err(|error| failure(&error))?;
        Ok(Session { connected, statement })
    }
}

impl Session {
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
    let texts: Vec<Text<'_>> = row.iter().map(|text| Text(text.as_deref())).collect();
    let parameters: Vec<&(dyn ToSql + Sync)> = texts.iter().map(|text| text as &(dyn ToSql + Sync)).collect();
    client.execute(statement, &parameters).await.map(drop)
}

/// A parameter in its text form, which the server reads as whatever the parameter is.
#[derive(Debug)]
struct Text<'a>(Option<&'a str>);

impl ToSql for Text<'_> {
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

/// The server, or what it knows of the statement, is not what it was: it takes no writes any more, is shutting down, or the
/// table has changed. Another connection may do better.
fn is_of_the_server(error: &tokio_postgres::Error) -> bool {
    let code = error.as_db_error().map_or("", |said| said.code().code());
    code == "25006" || code == "0A000" || code == "26000" || code.starts_with("57P") || code.starts_with("08")
}

/// What the server says of the data itself (class 22: no such number, no such date) it would say again.
fn failure(error: &tokio_postgres::Error) -> RecordFailure {
    let Some(said) = error.as_db_error() else {
        return RecordFailure::new(crate::error::whole(error));
    };
    let code = said.code().code();
    let detail = said.detail().map_or_else(String::new, |detail| format!(" ({detail})"));
    let reason = format!("{code}: {}{detail}", said.message());
    if code.starts_with("22") { RecordFailure::permanent(reason) } else { RecordFailure::new(reason) }
}
