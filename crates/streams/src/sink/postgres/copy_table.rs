//! How far the copy of each table is, stored with the rows that it covers, so that each is applied exactly once.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_config::stream::{ChangeOrder, StreamSink, StreamSource};
use tidegate_lanes::Record;
use tokio_postgres::{Client, Error as PgError, types::Type};

use super::{
    connect::{Connected, PostgresLogin},
    open_error, position,
};
use crate::{
    change::{COPY_PROGRESS, header},
    error::StreamError,
    plan::StreamPlan,
};

const TABLE_EXISTS: &str = "select to_regclass('tidegate_copies') is not null";
/// The row with the OID 0 shows that the copy has begun, with the number of copies that began because changes were lost.
const CREATE_TABLE: &str = "create table if not exists tidegate_copies (stream text, table_oid bigint, progress text not null, \
                            primary key (stream, table_oid))";
const BEGUN: &str = "begun";
/// The lock waits for the last transaction of a process that was killed.
const READ: &str = "select table_oid, progress from tidegate_copies where stream = $1 order by table_oid for update";
const READ_POSITION: &str = "select 1 from tidegate_positions where stream = $1";
const STORE: &str = "insert into tidegate_copies (stream, table_oid, progress) values ($1, $2, $3) \
                     on conflict (stream, table_oid) do update set progress = excluded.progress";
const FORGET: [&str; 2] =
    ["delete from tidegate_copies where stream = $1", "delete from tidegate_positions where stream = $1"];

/// The tables `tidegate_copies` and `tidegate_positions` of a sink.
pub(crate) struct CopyTable {
    login: PostgresLogin,
    stream: String,
}

/// The part of a progress that this module reads.
#[derive(Deserialize)]
struct ProgressOid {
    oid: u32,
}

impl CopyTable {
    /// The table of a stream that applies each change exactly once.
    pub(crate) fn of(plan: &StreamPlan) -> Result<Option<Self>, StreamError> {
        let keys = &plan.stream.keys;
        let is_once = keys.order == ChangeOrder::Commit
            && matches!(keys.from, StreamSource::Postgres(_))
            && matches!(keys.to, StreamSink::Postgres(_) | StreamSink::Gateway(_));
        if !is_once {
            return Ok(None);
        }
        let login = PostgresLogin::new(&plan.stream, &plan.access)?;
        Ok(Some(Self { login, stream: keys.name.clone() }))
    }

    async fn connect(&self) -> Result<Connected, StreamError> {
        let connected = self.login.connect().await?;
        let prepared = position::prepare(&connected.client).await.and(prepare(&connected.client).await);
        prepared.map_err(|error| open_error(&error))?;
        Ok(connected)
    }

    /// The stored progress of each table, and the number of copies that began because changes were lost; `None` before a copy has
    /// begun.
    pub(crate) async fn load(&self) -> Result<Option<(Vec<String>, u32)>, StreamError> {
        let connected = self.connect().await?;
        let rows = connected
            .client
            .query_typed(READ, &[(&self.stream, Type::TEXT)])
            .await
            .map_err(|error| open_error(&error))?;
        if rows.is_empty() {
            return Ok(None);
        }
        let mut repeats = 0;
        let mut tables = Vec::new();
        for row in &rows {
            let (oid, text): (i64, String) = (row.get(0), row.get(1));
            match (oid, text.strip_prefix(BEGUN)) {
                (0, Some(number)) => repeats = number.trim().parse().unwrap_or(0),
                (0, None) => {}
                _ => tables.push(text),
            }
        }
        Ok(Some((tables, repeats)))
    }

    /// Whether a position of the stream is stored.
    pub(crate) async fn has_position(&self) -> Result<bool, StreamError> {
        let connected = self.connect().await?;
        let found = connected.client.query_typed(READ_POSITION, &[(&self.stream, Type::TEXT)]).await;
        Ok(!found.map_err(|error| open_error(&error))?.is_empty())
    }

    /// Stores the progress of tables, and the number of copies that began because changes were lost, in one transaction.
    pub(crate) async fn save(&self, tables: &[(u32, String)], repeats: u32) -> Result<(), StreamError> {
        let connected = self.connect().await?;
        let work = async {
            connected.client.batch_execute("BEGIN").await?;
            store(&connected.client, &self.stream, 0, &format!("{BEGUN} {repeats}")).await?;
            for (oid, progress) in tables {
                store(&connected.client, &self.stream, *oid, progress).await?;
            }
            connected.client.batch_execute("COMMIT").await
        };
        work.await.map_err(|error| open_error(&error))
    }

    /// Removes the progress and the position of the stream, and stores the number of the copy that begins, in one transaction:
    /// without the number, the next start would not replace the rows of the earlier copy.
    pub(crate) async fn restart(&self, repeats: u32) -> Result<(), StreamError> {
        let connected = self.connect().await?;
        let work = async {
            connected.client.batch_execute("BEGIN").await?;
            for sql in FORGET {
                super::execute_one(&connected.client, sql, &vec![Some(self.stream.clone())]).await?;
            }
            store(&connected.client, &self.stream, 0, &format!("{BEGUN} {repeats}")).await?;
            connected.client.batch_execute("COMMIT").await
        };
        work.await.map_err(|error| open_error(&error))
    }
}

/// Creates the table if it is missing.
pub(super) async fn prepare(client: &Client) -> Result<(), PgError> {
    let rows = client.query_typed(TABLE_EXISTS, &[]).await?;
    if rows.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    client.batch_execute(CREATE_TABLE).await
}

async fn store(client: &Client, stream: &str, oid: u32, progress: &str) -> Result<(), PgError> {
    let row = [stream.to_owned(), oid.to_string(), progress.to_owned()].map(Some);
    super::execute_one(client, STORE, &row.to_vec()).await
}

/// Stores how far the copies of tables are with these records.
pub(super) async fn advance(client: &Client, stream: &str, records: &[Record]) -> Result<(), PgError> {
    let mut newest = BTreeMap::new();
    for progress in records.iter().filter_map(|record| header(record, COPY_PROGRESS)) {
        if let Ok(ProgressOid { oid }) = serde_json::from_str(progress) {
            newest.insert(oid, progress);
        }
    }
    for (oid, progress) in newest {
        store(client, stream, oid, progress).await?;
    }
    Ok(())
}
