//! Copies tables while their changes are streamed: chunks by key, between marks in the stream.
//!
//! A round writes a mark into the WAL, reads the next chunk of several tables, and writes a second mark. When the stream
//! arrives at the second mark, rows of the chunks are delivered unless a transaction between the marks has changed them.
//! The state is the last key of each table, so a copy goes on after a restart. The method needs no second slot, no long
//! transaction, and holds little WAL.

mod exported;
mod plan;
mod round;
mod window;

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use tidegate_wire::{
    backend::DataRow,
    replication::{Lsn, pgoutput::ColumnValue},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::{
    change::ChangeKind,
    client::{ConnectOptions, PgConnection, ReplicationMode},
    error::{ChangeStreamError, ErrorClass},
    event::ChangeEvent,
    options::ChangeOptions,
    relation::{Relation, RelationColumn},
    stream::ChangeStream,
};
pub use exported::{ExportedRows, ExportedSnapshot};
use round::{ChunkRequest, KeyChunk, MARK_PREFIX, RoundOutcome, RoundPlan, key_texts, run_round};
pub use window::PgSnapshot;
use window::{ChunkVerdict, DeliveredTransactions, TableWindow, Window, row_key};

/// How tables are copied.
#[derive(Clone, Debug)]
pub struct SnapshotOptions {
    /// Only these tables, as `schema.name`; empty for all of the publications.
    pub tables: Vec<String>,
    /// Whether published tables that the state does not have are copied. Otherwise, only copies that the state has begun go on.
    pub new_tables: bool,
    /// Most rows of a chunk.
    pub chunk_rows: u32,
    /// Bytes after which a chunk ends.
    pub chunk_bytes: usize,
    /// Tables that are read at the same time, each by a connection of its own.
    pub parallel: usize,
    /// Bytes of changes that are held back between the marks of a round. Beyond it the round is repeated with smaller chunks.
    pub held_bytes_max: usize,
    /// Consecutive failures of a round after which the stream ends.
    pub attempts_max: u32,
}

impl Default for SnapshotOptions {
    /// Chunks of 50,000 rows or 4 MiB, two tables at a time, 16 MiB held back, 20 attempts.
    fn default() -> Self {
        Self {
            tables: Vec::new(),
            new_tables: true,
            chunk_rows: 50_000,
            chunk_bytes: 4 << 20,
            parallel: 2,
            held_bytes_max: 16 << 20,
            attempts_max: 20,
        }
    }
}

/// How far the copy of a table is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableProgress {
    /// OID of the table.
    pub oid: u32,
    /// Schema of the table.
    pub schema: String,
    /// Name of the table.
    pub name: String,
    /// The key of the last row that was read, as text; `None` before the first.
    pub last_key: Option<Vec<String>>,
    /// Rows that were read.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
    /// Rows of the table, by the statistics of the server.
    pub rows_estimated: u64,
    /// Whether the copy is complete.
    pub is_done: bool,
    /// Names this copy of the table; a later copy has another name.
    #[serde(default)]
    pub copy: String,
    /// The LSN of the exported snapshot that the table was copied from. Of the transactions that committed before, the copy holds
    /// all, or those that `snapshot` shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exported_at: Option<u64>,
    /// The exported snapshot as `pg_current_snapshot()` shows it; `None` for the snapshot of a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Whether the consumer may have rows of an earlier copy, which it has to remove before the first row of this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaces: bool,
}

impl TableProgress {
    fn new((schema, name, oid): (String, String, u32), rows_estimated: u64) -> Result<Self, ChangeStreamError> {
        Ok(Self { oid, schema, name, rows_estimated, copy: random_name()?, ..Self::default() })
    }

    /// Schema and name, with a dot.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }
}

/// A random name of 16 hexadecimal digits.
fn random_name() -> Result<String, ChangeStreamError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| ChangeStreamError::Refused(error.to_string()))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The state of a copy, to be stored with the rows that it covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotState {
    /// The tables.
    pub tables: Vec<TableProgress>,
    /// Copies that began because changes were lost.
    #[serde(default)]
    pub repeats: u32,
}

impl SnapshotState {
    /// Whether every table is complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.tables.iter().all(|table| table.is_done)
    }

    /// Replaces the progress of a table.
    pub fn update(&mut self, progress: TableProgress) {
        match self.tables.iter_mut().find(|table| table.oid == progress.oid) {
            Some(table) => *table = progress,
            None => self.tables.push(progress),
        }
    }

    /// Adds the published tables that the state does not have, and removes unfinished tables that are not published any more.
    /// Returns the unfinished tables without a key, which cannot be copied in chunks.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses a query.
    pub async fn list_tables(
        &mut self,
        connect: &ConnectOptions,
        publications: &[String],
        options: &SnapshotOptions,
    ) -> Result<Vec<TableProgress>, ChangeStreamError> {
        let listed = list_tables(self, connect, publications, options).await?;
        let is_keyless = |table: &&TableProgress| !table.is_done && !listed.contains_key(&table.oid);
        Ok(self.tables.iter().filter(is_keyless).cloned().collect())
    }
}

/// The names of the key columns of a table.
type KeyColumns = FxHashMap<u32, Vec<String>>;

/// Brings the state up to date; returns the keys of the unfinished tables that have one.
async fn list_tables(
    state: &mut SnapshotState,
    connect: &ConnectOptions,
    publications: &[String],
    options: &SnapshotOptions,
) -> Result<KeyColumns, ChangeStreamError> {
    let mut keys = KeyColumns::default();
    if !options.new_tables && state.is_done() {
        return Ok(keys);
    }
    let mut connection = PgConnection::connect(connect, ReplicationMode::Off).await?;
    let published = plan::published_tables(&mut connection, publications).await?;
    state.tables.retain(|table| {
        let stays = table.is_done || published.iter().any(|(_, _, oid)| *oid == table.oid);
        if !stays {
            tracing::warn!(table = table.full_name(), "the table is not published any more, and its copy ends");
        }
        stays
    });
    let is_open = |(schema, name, oid): &(String, String, u32)| {
        let full = format!("{schema}.{name}");
        let is_selected = options.new_tables && (options.tables.is_empty() || options.tables.contains(&full));
        state.tables.iter().find(|table| table.oid == *oid).map_or(is_selected, |table| !table.is_done)
    };
    let open: Vec<_> = published.into_iter().filter(is_open).collect();
    let oids: Vec<u32> = open.iter().map(|(_, _, oid)| *oid).collect();
    let mut definitions = plan::definitions(&mut connection, &oids, publications).await?;
    for table in open {
        let oid = table.2;
        let definition = definitions.remove(&oid).ok_or_else(|| plan::not_published(oid))?;
        if state.tables.iter().all(|known| known.oid != oid) {
            state.tables.push(TableProgress::new(table, definition.rows_estimated)?);
        }
        if !definition.key.is_empty() {
            keys.insert(oid, definition.key_names());
        }
    }
    connection.close().await;
    Ok(keys)
}

/// A row that was read from a table.
#[derive(Clone, Debug)]
pub struct SnapshotRow {
    body: Bytes,
}

impl SnapshotRow {
    /// The values, in the order of the columns of the relation.
    pub fn values(&self) -> impl Iterator<Item = ColumnValue<'_>> {
        // The body was decoded when it was received.
        let values = DataRow::decode(&self.body).ok().into_iter().flatten();
        values.map(|value| value.map_or(ColumnValue::Null, ColumnValue::Text))
    }
}

/// Rows of a table. They belong between two transactions of the stream.
#[derive(Clone, Debug)]
pub struct SnapshotRows {
    /// The table. Its version is 0: it is read from the catalog, and not from the stream.
    pub relation: Arc<Relation>,
    /// Whether rows of the table that the consumer has are to be removed before these rows: they are from an earlier copy. The
    /// number of this step is the one before `first_seq`.
    pub clears: bool,
    /// The rows, in the order of the key.
    pub rows: Vec<SnapshotRow>,
    /// Bytes of the rows that were read.
    pub bytes: u64,
    /// The position of the rows in the stream: after the transactions that commit before it, before those that commit later.
    /// No transaction with changes has this position.
    pub lsn: Lsn,
    /// The number of the first row among the rows at this position; with `lsn` it identifies a row.
    pub first_seq: u64,
    key: Arc<[usize]>,
    /// How far the copy is with these rows: the state to store when they are durable.
    pub progress: TableProgress,
}

impl SnapshotRows {
    /// The columns and values of a row.
    pub fn columns<'a>(&'a self, row: &'a SnapshotRow) -> impl Iterator<Item = (&'a RelationColumn, ColumnValue<'a>)> {
        self.relation.columns.iter().zip(row.values())
    }

    /// The progress of the table after this row; `None` if the table has no key.
    #[must_use]
    pub fn progress_at(&self, row: &SnapshotRow) -> Option<TableProgress> {
        let last_key = key_texts(&row.body, &self.key).filter(|key| !key.is_empty())?;
        Some(TableProgress { last_key: Some(last_key), is_done: false, ..self.progress.clone() })
    }
}

/// An event of a stream that copies tables.
#[derive(Clone, Debug)]
pub enum SnapshotEvent {
    /// An event of the stream.
    Change(ChangeEvent),
    /// Rows of a table.
    Rows(SnapshotRows),
    /// All tables are copied; only changes follow.
    Complete(SnapshotState),
}

/// A stream of changes that copies the published tables first, or later.
///
/// Transactions of the marks are part of the stream: they hold one message with the prefix `tidegate`, and are acknowledged
/// like others.
pub struct SnapshotStream {
    stream: ChangeStream,
    connect: ConnectOptions,
    publications: Vec<String>,
    options: SnapshotOptions,
    state: SnapshotState,
    /// Distinguishes the marks from those of other streams and earlier runs.
    id: String,
    rounds: u64,
    round: Option<Round>,
    connections: Vec<PgConnection>,
    delivered: DeliveredTransactions,
    ready: VecDeque<SnapshotEvent>,
    failures: u32,
    next_round: Option<Instant>,
    /// Chunks are this many times smaller, after rounds that held back too much.
    shrink: u32,
    keys: KeyColumns,
}

impl std::fmt::Debug for SnapshotStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotStream")
            .field("stream", &self.stream)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkState {
    BeforeLow,
    /// The transaction of the low mark is open.
    Low,
    /// The stream is between the marks: events are held back.
    Open,
    /// The transaction of the high mark has begun.
    High,
}

struct Round {
    low: String,
    high: String,
    requests: Vec<ChunkRequest>,
    task: RoundTask,
    outcome: Option<RoundOutcome>,
    marks: MarkState,
    /// The position of the low mark.
    low_lsn: Lsn,
    window: Window,
    held: Vec<ChangeEvent>,
    held_bytes: usize,
    /// Too much was held back.
    is_spoiled: bool,
    /// Transactions that were delivered before the low mark.
    delivered_before: DeliveredTransactions,
}

/// The task of a round, which ends with it.
struct RoundTask(JoinHandle<Result<RoundOutcome, ChangeStreamError>>);

impl Drop for RoundTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

enum Next {
    Batch(Option<Vec<ChangeEvent>>),
    Round(Result<RoundOutcome, ChangeStreamError>),
    Start,
}

impl SnapshotStream {
    /// Starts the stream, and the copy of the tables that `state` does not call complete. The stream runs before the first
    /// chunk is read (CH-61).
    ///
    /// # Errors
    /// The tables cannot be listed, or some have no key by which they can be read in chunks.
    pub async fn start(
        mut changes: ChangeOptions,
        options: SnapshotOptions,
        state: SnapshotState,
    ) -> Result<Self, ChangeStreamError> {
        // Marks are messages, and keys are compared as text.
        (changes.messages, changes.binary) = (true, false);
        let (connect, publications) = (changes.connect.clone(), changes.publications.clone());
        Self::over(ChangeStream::start(changes), connect, publications, options, state).await
    }

    /// Copies tables beside a stream that runs already. The stream has to deliver messages, and values as text.
    ///
    /// # Errors
    /// As [`SnapshotStream::start`].
    pub async fn over(
        stream: ChangeStream,
        connect: ConnectOptions,
        publications: Vec<String>,
        options: SnapshotOptions,
        state: SnapshotState,
    ) -> Result<Self, ChangeStreamError> {
        let mut stream = Self {
            stream,
            connect,
            publications,
            options,
            state,
            id: random_name()?,
            rounds: 0,
            round: None,
            connections: Vec::new(),
            delivered: DeliveredTransactions::default(),
            ready: VecDeque::new(),
            failures: 0,
            next_round: None,
            shrink: 1,
            keys: KeyColumns::default(),
        };
        stream.list_tables().await?;
        let has_begun = |table: &TableProgress| table.is_done || table.last_key.is_some();
        for table in stream.state.tables.iter_mut().filter(|table| table.replaces && !has_begun(table)) {
            // Rows are removed again, so rows that come again are not repetitions.
            table.copy = random_name()?;
        }
        Ok(stream)
    }

    /// Copies a table again, while its changes are streamed on. Returns its progress, to be stored before the next events.
    ///
    /// # Errors
    /// The table is not published, or has no key.
    pub async fn backfill(&mut self, schema: &str, name: &str) -> Result<TableProgress, ChangeStreamError> {
        let is_table = |table: &TableProgress| table.schema == schema && table.name == name;
        if let Some(table) = self.state.tables.iter().find(|table| is_table(table) && !table.is_done) {
            return Ok(table.clone());
        }
        let before = self.state.clone();
        self.state.tables.retain(|table| !is_table(table));
        let options = SnapshotOptions { tables: vec![format!("{schema}.{name}")], ..self.options.clone() };
        let options = std::mem::replace(&mut self.options, SnapshotOptions { new_tables: true, ..options });
        let listed = self.list_tables().await;
        self.options = options;
        let refusal = match listed {
            Ok(()) => match self.state.tables.iter().find(|table| is_table(table)) {
                Some(table) => return Ok(table.clone()),
                None => ChangeStreamError::Refused(format!("table {schema}.{name} is not published")),
            },
            Err(error) => error,
        };
        self.state = before;
        Err(refusal)
    }

    async fn list_tables(&mut self) -> Result<(), ChangeStreamError> {
        if !self.options.new_tables && self.state.is_done() {
            return Ok(());
        }
        let listed = list_tables(&mut self.state, &self.connect, &self.publications, &self.options).await?;
        let is_keyless = |table: &&TableProgress| !table.is_done && !listed.contains_key(&table.oid);
        let keyless: Vec<_> = self.state.tables.iter().filter(is_keyless).map(TableProgress::full_name).collect();
        if keyless.is_empty() {
            self.keys.extend(listed);
            self.next_round.get_or_insert_with(Instant::now);
            return Ok(());
        }
        Err(ChangeStreamError::Refused(format!(
            "tables without a key cannot be copied in chunks: {}; add a primary key, or leave them out of the snapshot",
            keyless.join(", ")
        )))
    }

    /// The stream of changes, for acknowledgements and the status.
    #[must_use]
    pub const fn stream(&self) -> &ChangeStream {
        &self.stream
    }

    /// Declares everything up to this position durable.
    pub fn acknowledge(&self, lsn: Lsn) {
        self.stream.acknowledge(lsn);
    }

    /// How far the copy is, with all rows that were returned.
    #[must_use]
    pub const fn state(&self) -> &SnapshotState {
        &self.state
    }

    /// Stops the stream. The copy goes on from the stored state on the next start.
    pub async fn stop(self) -> crate::status::ChangeStreamStatus {
        self.stream.stop().await
    }

    /// Returns the next event; `None` after the end of a stream that was stopped.
    ///
    /// # Errors
    /// The stream has ended by an error, or the copy has failed as often as the options allow.
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<Option<SnapshotEvent>, ChangeStreamError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if !self.advance().await? {
                return Ok(None);
            }
        }
    }

    /// Returns the next events, at least one; `None` after the end of a stream that was stopped.
    ///
    /// # Errors
    /// As [`SnapshotStream::next`].
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub async fn next_batch(&mut self) -> Result<Option<Vec<SnapshotEvent>>, ChangeStreamError> {
        while self.ready.is_empty() {
            if !self.advance().await? {
                return Ok(None);
            }
        }
        Ok(Some(std::mem::take(&mut self.ready).into()))
    }

    /// Waits for the stream, the running round or the time of the next one. `false` at the end of the stream. Cancel-safe.
    async fn advance(&mut self) -> Result<bool, ChangeStreamError> {
        let start = self.next_round.filter(|_| self.round.is_none());
        let task = self.round.as_mut().filter(|round| round.outcome.is_none()).map(|round| &mut round.task.0);
        let (has_task, has_start) = (task.is_some(), start.is_some());
        let next = tokio::select! {
            batch = self.stream.next_batch() => Next::Batch(batch?),
            outcome = wait_for(task), if has_task => Next::Round(outcome),
            () = sleep_until(start.unwrap_or_else(Instant::now)), if has_start => Next::Start,
        };
        match next {
            Next::Batch(None) => return Ok(false),
            Next::Batch(Some(batch)) => {
                for event in batch {
                    self.event(event)?;
                }
            }
            Next::Round(Ok(outcome)) => self.round_ended(outcome)?,
            Next::Round(Err(error)) => self.failed(error)?,
            Next::Start => self.start_round(),
        }
        Ok(true)
    }

    fn start_round(&mut self) {
        self.next_round = None;
        let bytes_max = (self.options.chunk_bytes / self.shrink as usize).max(1);
        let rows_max = (self.options.chunk_rows / self.shrink).max(1);
        let open = self.state.tables.iter().filter(|table| !table.is_done).take(self.options.parallel.max(1));
        let request =
            |table: &TableProgress| ChunkRequest { oid: table.oid, after: table.last_key.clone(), rows_max, bytes_max };
        let requests: Vec<_> = open.map(request).collect();
        if requests.is_empty() {
            self.connections.clear();
            self.ready.push_back(SnapshotEvent::Complete(self.state.clone()));
            return;
        }
        self.rounds += 1;
        let (low, high) = (format!("{}:{}:low", self.id, self.rounds), format!("{}:{}:high", self.id, self.rounds));
        let keys = requests.iter().filter_map(|request| self.keys.get_key_value(&request.oid));
        let keys = keys.map(|(oid, names)| (*oid, names.clone())).collect();
        let plan = RoundPlan {
            is_first: self.rounds == 1,
            connect: self.connect.clone(),
            publications: self.publications.clone(),
            low: low.clone(),
            high: high.clone(),
            requests: requests.clone(),
        };
        let task = RoundTask(tokio::spawn(run_round(plan, std::mem::take(&mut self.connections))));
        self.round = Some(Round {
            low,
            high,
            requests,
            task,
            outcome: None,
            marks: MarkState::BeforeLow,
            low_lsn: Lsn::ZERO,
            window: Window::new(keys),
            held: Vec::new(),
            held_bytes: 0,
            is_spoiled: false,
            delivered_before: DeliveredTransactions::default(),
        });
    }

    /// Handles an event of the stream: delivers it, or holds it back.
    fn event(&mut self, event: ChangeEvent) -> Result<(), ChangeStreamError> {
        if let ChangeEvent::Begin(begin) = &event {
            self.delivered.push(begin.xid);
        }
        let Some(round) = &mut self.round else {
            self.ready.push_back(SnapshotEvent::Change(event));
            return Ok(());
        };
        let ends_transaction = matches!(event, ChangeEvent::Commit(_));
        round.note(&event);
        if let Some(event) = round.hold(event, self.options.held_bytes_max, &mut self.ready) {
            self.ready.push_back(SnapshotEvent::Change(event));
        }
        match round.marks {
            MarkState::Low if ends_transaction => {
                round.marks = MarkState::Open;
                round.delivered_before = std::mem::take(&mut self.delivered);
                Ok(())
            }
            MarkState::High if ends_transaction => self.finish_round(),
            _ => Ok(()),
        }
    }

    fn round_ended(&mut self, outcome: RoundOutcome) -> Result<(), ChangeStreamError> {
        let Some(round) = &mut self.round else { return Ok(()) };
        round.outcome = Some(outcome);
        // The stream may have been faster than the answer to the high mark.
        if round.marks == MarkState::High { self.finish_round() } else { Ok(()) }
    }

    /// The stream has passed the high mark: delivers the chunks, and what was held back.
    fn finish_round(&mut self) -> Result<(), ChangeStreamError> {
        let Some(round) = self.round.take_if(|round| round.outcome.is_some()) else { return Ok(()) };
        let Round { outcome, held, mut window, is_spoiled, mut delivered_before, requests, low_lsn, .. } = round;
        let RoundOutcome { chunks, connections } =
            outcome.unwrap_or_else(|| RoundOutcome { chunks: Vec::new(), connections: Vec::new() });
        self.connections = connections;
        let mut repeated = is_spoiled;
        // The message of the mark has the number 0.
        let mut place = (low_lsn, 1);
        for (request, chunk) in requests.iter().zip(chunks) {
            let table = window.table(request.oid);
            let missing = delivered_before.missing_in(&chunk.snapshot);
            delivered_before.forget_shown(&chunk.snapshot);
            if let Some(xid) = missing {
                tracing::debug!(xid, "a delivered transaction is not visible yet; the chunk is read again");
            }
            if is_spoiled || missing.is_some() || table.verdict() == ChunkVerdict::ReadAgain {
                repeated = true;
                continue;
            }
            self.deliver(request.oid, &chunk, &mut place, &table);
        }
        self.ready.extend(held.into_iter().map(SnapshotEvent::Change));
        // Transactions that this round did not show may be missing in the next one, too.
        delivered_before.append(&mut self.delivered);
        self.delivered = delivered_before;
        self.shrink = if is_spoiled { self.shrink.saturating_mul(2) } else { (self.shrink / 2).max(1) };
        if repeated {
            let text = "a chunk could not be delivered: its rows changed while it was read".to_owned();
            return self.retry(ChangeStreamError::NotReady(text));
        }
        self.failures = 0;
        self.next_round = Some(Instant::now());
        Ok(())
    }

    fn deliver(&mut self, oid: u32, chunk: &KeyChunk, (lsn, next_seq): &mut (Lsn, u64), window: &TableWindow) {
        let Some(progress) = self.state.tables.iter_mut().find(|table| table.oid == oid) else { return };
        let key = &chunk.definition.key;
        let clears = progress.replaces && progress.last_key.is_none();
        *next_seq += u64::from(clears);
        if let Some(last) = chunk.rows.last().and_then(|row| key_texts(row, key)) {
            progress.last_key = Some(last);
        }
        progress.rows += chunk.rows.len() as u64;
        progress.bytes += chunk.bytes as u64;
        progress.is_done = chunk.is_last;
        let is_kept = |row: &&Bytes| window.is_quiet() || window.keeps(chunk_key(row, key).as_ref());
        let rows: Vec<_> = chunk.rows.iter().filter(is_kept).map(|body| SnapshotRow { body: body.clone() }).collect();
        let first_seq = *next_seq;
        *next_seq += rows.len() as u64;
        self.ready.push_back(SnapshotEvent::Rows(SnapshotRows {
            relation: Arc::clone(&chunk.definition.relation),
            clears,
            rows,
            bytes: chunk.bytes as u64,
            lsn: *lsn,
            first_seq,
            key: key.as_slice().into(),
            progress: progress.clone(),
        }));
    }

    /// The round has failed before its high mark.
    fn failed(&mut self, error: ChangeStreamError) -> Result<(), ChangeStreamError> {
        if let Some(round) = self.round.take() {
            self.ready.extend(round.held.into_iter().map(SnapshotEvent::Change));
            let mut delivered = round.delivered_before;
            delivered.append(&mut self.delivered);
            self.delivered = delivered;
        }
        // After other errors a new attempt has the same result.
        if error.class() == ErrorClass::Retry { self.retry(error) } else { Err(error) }
    }

    fn retry(&mut self, error: ChangeStreamError) -> Result<(), ChangeStreamError> {
        self.failures += 1;
        if self.failures >= self.options.attempts_max {
            return Err(ChangeStreamError::GaveUp { attempts: self.failures, last: Box::new(error) });
        }
        tracing::debug!(%error, failures = self.failures, "a round of the snapshot is repeated");
        let delay = tidegate_backoff::Backoff::default().delay(self.failures, fastrand::f64());
        self.next_round = Some(Instant::now() + delay);
        Ok(())
    }
}

async fn wait_for(
    task: Option<&mut JoinHandle<Result<RoundOutcome, ChangeStreamError>>>,
) -> Result<RoundOutcome, ChangeStreamError> {
    match task {
        Some(task) => task.await.unwrap_or(Err(ChangeStreamError::Ended)),
        None => std::future::pending().await,
    }
}

fn chunk_key(row: &Bytes, key: &[usize]) -> Option<window::RowKey> {
    let values: Vec<_> = DataRow::decode(row).ok()?.collect();
    row_key(key.iter().map(|at| values.get(*at).copied().flatten().map(ColumnValue::Text)))
}

impl Round {
    /// Looks for the marks, and notes changes between them.
    fn note(&mut self, event: &ChangeEvent) {
        let ChangeEvent::Change(change) = event else { return };
        if self.marks == MarkState::Open {
            self.window.change(change);
        }
        if let ChangeKind::Message(message) = &change.kind
            && message.prefix == MARK_PREFIX.as_bytes()
        {
            match self.marks {
                MarkState::BeforeLow if message.content == self.low.as_bytes() => {
                    (self.marks, self.low_lsn) = (MarkState::Low, change.id.commit_lsn);
                }
                MarkState::Open if message.content == self.high.as_bytes() => self.marks = MarkState::High,
                _ => {}
            }
        }
    }

    /// Holds an event back between the marks. Returns an event to deliver immediately.
    fn hold(
        &mut self,
        event: ChangeEvent,
        bytes_max: usize,
        ready: &mut VecDeque<SnapshotEvent>,
    ) -> Option<ChangeEvent> {
        if self.is_spoiled || !matches!(self.marks, MarkState::Open | MarkState::High) {
            return Some(event);
        }
        self.held_bytes += size_of::<ChangeEvent>();
        if let ChangeEvent::Change(change) = &event {
            self.held_bytes += change.frame().len();
        }
        self.held.push(event);
        if self.held_bytes > bytes_max {
            self.is_spoiled = true;
            ready.extend(self.held.drain(..).map(SnapshotEvent::Change));
        }
        None
    }
}
