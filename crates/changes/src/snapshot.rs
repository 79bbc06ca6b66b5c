//! Copies tables while their changes are streamed: chunks by key, between marks in the stream.
//!
//! A task writes a mark into the WAL, reads a chunk of a table, and writes a second mark. When the stream arrives at the second
//! mark, rows of the chunk are delivered unless a transaction between the marks has changed them. Several chunks are read at
//! the same time, of different tables or of one: the last key of a chunk is looked up before its rows are read, and the next
//! chunk begins there.
//!
//! The state is the last key of each table, so a copy goes on after a restart. The method needs no second slot, no long
//! transaction, and holds little WAL.

mod chunk;
mod exported;
mod pipeline;
mod plan;
mod table_run;
mod window;

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use chunk::{ChunkEnd, ChunkOutcome, ChunkPlan, KeyChunk, key_texts, run_chunk};
use pipeline::{Pipeline, PipelineItem, ReadChunk};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use tidegate_wire::{
    backend::DataRow,
    replication::{Lsn, pgoutput::ColumnValue},
};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};

use crate::{
    client::{ConnectOptions, PgConnection, ReplicationMode},
    error::{ChangeStreamError, ErrorClass},
    event::ChangeEvent,
    options::ChangeOptions,
    relation::{Relation, RelationColumn},
    stream::ChangeStream,
};
pub use exported::{ExportedRows, ExportedSnapshot};
use table_run::{NextChunk, TableRun};
pub use window::PgSnapshot;
use window::{ChunkVerdict, TableWindow, row_key};

/// How tables are copied.
#[derive(Clone, Debug)]
pub struct SnapshotOptions {
    /// Only these tables, as `schema.name`; empty for all of the publications.
    pub tables: Vec<String>,
    /// Whether published tables that the state does not have are copied. Otherwise, only copies that the state has begun go on.
    pub new_tables: bool,
    /// Most rows of a chunk.
    pub chunk_rows: u32,
    /// Bytes of a chunk, about: rows beyond twice as many are left to the next chunk.
    pub chunk_bytes: usize,
    /// Chunks that are read at the same time, each by a connection of its own: of different tables, or of one if fewer tables are
    /// left.
    pub parallel: usize,
    /// Bytes of changes that are held back while chunks are read. Beyond it the chunks are read again, and are smaller.
    pub held_bytes_max: usize,
    /// Consecutive failures of a chunk after which the stream ends.
    pub attempts_max: u32,
}

impl Default for SnapshotOptions {
    /// Chunks of 50,000 rows or 4 MiB, two at a time, 16 MiB held back, 20 attempts.
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
    /// The server cannot be reached, or refuses a query; a table of the options is not published.
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
    check_selection(state, &published, options)?;
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

/// Refuses a table of the options that is neither published nor copied. The copy would be complete without it.
fn check_selection(
    state: &SnapshotState,
    published: &[(String, String, u32)],
    options: &SnapshotOptions,
) -> Result<(), ChangeStreamError> {
    let is_known = |selected: &&String| {
        published.iter().any(|(schema, name, _)| format!("{schema}.{name}") == **selected)
            || state.tables.iter().any(|table| table.full_name() == **selected)
    };
    match options.tables.iter().filter(|_| options.new_tables).find(|selected| !is_known(selected)) {
        None => Ok(()),
        Some(unknown) => Err(ChangeStreamError::Refused(format!(
            "table {unknown} is not published: write `schema.name`, and add the table to a publication of the stream"
        ))),
    }
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
    pipeline: Pipeline,
    /// Tables that are not complete, by OID.
    runs: FxHashMap<u32, TableRun>,
    /// The number of the last chunk.
    chunks: u64,
    tasks: ChunkTasks,
    /// The last keys of chunks, from their tasks.
    ends: (mpsc::UnboundedSender<ChunkEnd>, mpsc::UnboundedReceiver<ChunkEnd>),
    /// Connections without a chunk.
    connections: Vec<PgConnection>,
    ready: VecDeque<SnapshotEvent>,
    /// Whether sessions that wait for a standby have been waited for.
    is_first_over: bool,
    /// Whether the end of the copy is still to be announced.
    is_copying: bool,
    /// Chunks are this many times smaller, after too much was held back.
    shrink: u32,
}

/// The tasks that read chunks. They end with the stream.
type ChunkTasks = JoinSet<EndedChunk>;

/// The number of a chunk, and its rows.
type EndedChunk = (u64, Result<ChunkOutcome, ChangeStreamError>);

impl std::fmt::Debug for SnapshotStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotStream")
            .field("stream", &self.stream)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

enum Next {
    Batch(Option<Vec<ChangeEvent>>),
    End(ChunkEnd),
    Task(Box<Result<EndedChunk, JoinError>>),
    Start,
}

impl SnapshotStream {
    /// Starts the stream, and the copy of the tables that `state` does not call complete. The stream runs before the first
    /// chunk is read (CH-61).
    ///
    /// # Errors
    /// The tables cannot be listed, one of the options is not published, or some have no key by which they can be read in chunks.
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
            pipeline: Pipeline::default(),
            runs: FxHashMap::default(),
            chunks: 0,
            tasks: JoinSet::new(),
            ends: mpsc::unbounded_channel(),
            connections: Vec::new(),
            ready: VecDeque::new(),
            is_first_over: false,
            is_copying: false,
            shrink: 1,
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
            for table in self.state.tables.iter().filter(|table| !table.is_done) {
                let key = listed.get(&table.oid).cloned().unwrap_or_default();
                self.runs.entry(table.oid).or_insert_with(|| TableRun::new(key, table.last_key.clone()));
            }
            self.runs.retain(|oid, _| self.state.tables.iter().any(|table| table.oid == *oid && !table.is_done));
            self.is_copying = true;
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

    /// Waits for the stream, for a chunk, or for the time of the next attempt. `false` at the end of the stream. Cancel-safe.
    async fn advance(&mut self) -> Result<bool, ChangeStreamError> {
        let start = self.start_chunks();
        if !self.ready.is_empty() {
            return Ok(true);
        }
        let has_tasks = !self.tasks.is_empty();
        let next = tokio::select! {
            batch = self.stream.next_batch() => Next::Batch(batch?),
            Some(end) = self.ends.1.recv() => Next::End(end),
            Some(ended) = self.tasks.join_next(), if has_tasks => Next::Task(Box::new(ended)),
            () = sleep_until(start.unwrap_or_else(Instant::now)), if start.is_some() => Next::Start,
        };
        match next {
            Next::Batch(None) => return Ok(false),
            Next::Batch(Some(batch)) => {
                for event in batch {
                    self.on_event(event)?;
                }
            }
            Next::End(end) => self.on_end(end),
            Next::Task(ended) => match *ended {
                Ok((_, Ok(outcome))) => self.on_outcome(outcome)?,
                Ok((number, Err(error))) => self.on_failure(number, error)?,
                Err(_) => return Err(ChangeStreamError::Ended),
            },
            Next::Start => {}
        }
        Ok(true)
    }

    fn on_event(&mut self, event: ChangeEvent) -> Result<(), ChangeStreamError> {
        if let Some(event) = self.pipeline.on_event(event) {
            self.ready.push_back(SnapshotEvent::Change(event));
            return Ok(());
        }
        self.deliver_known()?;
        self.discard_overflow()
    }

    /// Starts as many chunks as may be read at the same time. Returns the time of the next attempt, if tables wait for one.
    fn start_chunks(&mut self) -> Option<Instant> {
        if !self.is_copying {
            return None;
        }
        if self.runs.is_empty() {
            self.is_copying = false;
            self.connections.clear();
            self.ready.push_back(SnapshotEvent::Complete(self.state.clone()));
            return None;
        }
        while self.tasks.len() + self.pipeline.waiting() < self.options.parallel.max(1) {
            match self.next_table(Instant::now()) {
                Ok(oid) => self.start_chunk(oid),
                Err(wait) => return wait,
            }
        }
        None
    }

    /// The table whose next chunk is read: the tables in turn, before a second chunk of one. Otherwise the time of the next
    /// attempt.
    fn next_table(&self, now: Instant) -> Result<u32, Option<Instant>> {
        let (mut best, mut wait) = (None, None);
        for oid in self.state.tables.iter().filter(|table| !table.is_done).map(|table| table.oid) {
            let Some(run) = self.runs.get(&oid).filter(|run| run.can_start()) else { continue };
            if let Some(at) = run.not_before.filter(|at| *at > now) {
                wait = Some(wait.map_or(at, |wait: Instant| wait.min(at)));
                continue;
            }
            let pending = self.pipeline.of_table(oid);
            if pending == 0 {
                return Ok(oid);
            }
            best = best.min(Some((pending, oid))).or(Some((pending, oid)));
        }
        best.map(|(_, oid)| oid).ok_or(wait)
    }

    fn start_chunk(&mut self, oid: u32) {
        let parallel = self.options.parallel.max(1);
        let is_open = |run: &&TableRun| !matches!(run.next, NextChunk::None);
        // Several connections read one table if there are fewer tables than connections.
        let finds_end = self.runs.values().filter(is_open).take(parallel).count() < parallel;
        let Some(run) = self.runs.get_mut(&oid) else { return };
        let bytes = (self.options.chunk_bytes / self.shrink as usize).max(1);
        let rows = (self.options.chunk_rows / self.shrink).max(1);
        let Some(request) = run.request(oid, (rows, bytes), finds_end) else { return };
        self.chunks += 1;
        let number = self.chunks;
        let (low, high) = (format!("{}:{number}:low", self.id), format!("{}:{number}:high", self.id));
        self.pipeline.start(number, request.clone(), run.key.clone(), (low.clone(), high.clone()));
        let plan = ChunkPlan {
            number,
            is_first: !self.is_first_over,
            connect: self.connect.clone(),
            publications: self.publications.clone(),
            low,
            high,
            request,
        };
        let task = run_chunk(plan, self.connections.pop(), self.ends.0.clone());
        self.tasks.spawn(async move { (number, task.await) });
    }

    /// The next chunk of a table can begin.
    fn on_end(&mut self, end: ChunkEnd) {
        // The chunk may have been discarded, or its rows may be known already.
        let Some(oid) = self.pipeline.request(end.number).map(|request| request.oid) else { return };
        if self.pipeline.newest(oid) == Some(end.number)
            && let Some(run) = self.runs.get_mut(&oid).filter(|run| run.next == NextChunk::Unknown)
        {
            run.next = NextChunk::After(Some(end.key));
        }
    }

    /// The rows of a chunk were read.
    fn on_outcome(&mut self, outcome: ChunkOutcome) -> Result<(), ChangeStreamError> {
        let ChunkOutcome { number, chunk, connection } = outcome;
        self.is_first_over = true;
        self.connections.push(connection);
        // The chunk may have been discarded.
        let Some(request) = self.pipeline.request(number) else { return Ok(()) };
        let (oid, requested) = (request.oid, request.rows_max);
        if chunk.is_cut {
            self.pipeline.discard(oid, number + 1);
        }
        let is_newest = self.pipeline.newest(oid) == Some(number);
        if let Some(run) = self.runs.get_mut(&oid) {
            run.on_size(&chunk, requested);
            if is_newest {
                run.on_newest(&chunk);
            }
        }
        self.pipeline.on_chunk(number, chunk);
        self.deliver_known()
    }

    /// Delivers events and rows up to those that wait for a chunk.
    fn deliver_known(&mut self) -> Result<(), ChangeStreamError> {
        while let Some(item) = self.pipeline.next() {
            match item {
                PipelineItem::Event(event) => self.ready.push_back(SnapshotEvent::Change(event)),
                PipelineItem::Chunk(read) => self.finish(*read)?,
            }
        }
        Ok(())
    }

    /// Delivers the rows of a chunk, or reads it again.
    fn finish(&mut self, read: ReadChunk) -> Result<(), ChangeStreamError> {
        if let Some(xid) = read.missing {
            tracing::debug!(xid, "a delivered transaction is not visible yet; the chunk is read again");
        }
        let oid = read.request.oid;
        if read.verdict() == ChunkVerdict::ReadAgain {
            self.pipeline.discard(oid, read.number);
            let text = "a chunk could not be delivered: its rows changed while it was read".to_owned();
            return self.retry(oid, read.request.after, ChangeStreamError::NotReady(text));
        }
        self.shrink = (self.shrink / 2).max(1);
        let is_last = read.chunk.is_last;
        self.deliver(oid, read.chunk, read.lsn, &read.window);
        if is_last {
            self.runs.remove(&oid);
        } else if let Some(run) = self.runs.get_mut(&oid) {
            run.failures = 0;
        }
        Ok(())
    }

    fn deliver(&mut self, oid: u32, chunk: KeyChunk, lsn: Lsn, window: &TableWindow) {
        let Some(progress) = self.state.tables.iter_mut().find(|table| table.oid == oid) else { return };
        let clears = progress.replaces && progress.last_key.is_none();
        progress.last_key = chunk.last_key().or_else(|| progress.last_key.take());
        progress.rows += chunk.rows.len() as u64;
        progress.bytes += chunk.bytes as u64;
        progress.is_done = chunk.is_last;
        let key: Arc<[usize]> = chunk.definition.key.into();
        let is_kept = |row: &Bytes| window.is_quiet() || window.keeps(chunk_key(row, &key).as_ref());
        let rows = chunk.rows.into_iter().filter(is_kept).map(|body| SnapshotRow { body }).collect();
        self.ready.push_back(SnapshotEvent::Rows(SnapshotRows {
            relation: chunk.definition.relation,
            clears,
            rows,
            bytes: chunk.bytes as u64,
            lsn,
            // The message of the mark has the number 0.
            first_seq: 1 + u64::from(clears),
            key,
            progress: progress.clone(),
        }));
    }

    /// Reads the chunks again that hold back too much. Smaller ones are read faster.
    fn discard_overflow(&mut self) -> Result<(), ChangeStreamError> {
        let found = self.pipeline.overflow(self.options.held_bytes_max);
        if found.is_empty() {
            return Ok(());
        }
        self.shrink = self.shrink.saturating_mul(2);
        for (oid, number) in found {
            let after = self.pipeline.request(number).and_then(|request| request.after.clone());
            self.pipeline.discard(oid, number);
            let text = "a chunk could not be delivered: too many changes came while it was read".to_owned();
            self.retry(oid, after, ChangeStreamError::NotReady(text))?;
        }
        self.deliver_known()
    }

    /// The task of a chunk has failed.
    fn on_failure(&mut self, number: u64, error: ChangeStreamError) -> Result<(), ChangeStreamError> {
        // The server may have closed the other connections, too.
        self.connections.clear();
        let Some(request) = self.pipeline.request(number) else { return Ok(()) };
        let (oid, after) = (request.oid, request.after.clone());
        self.pipeline.discard(oid, number);
        self.deliver_known()?;
        // After other errors a new attempt has the same result.
        if error.class() == ErrorClass::Retry { self.retry(oid, after, error) } else { Err(error) }
    }

    /// Reads a table again from a key on, after a delay.
    fn retry(
        &mut self,
        oid: u32,
        after: Option<Vec<String>>,
        error: ChangeStreamError,
    ) -> Result<(), ChangeStreamError> {
        let Some(run) = self.runs.get_mut(&oid) else { return Ok(()) };
        run.failures += 1;
        if run.failures >= self.options.attempts_max {
            return Err(ChangeStreamError::GaveUp { attempts: run.failures, last: Box::new(error) });
        }
        tracing::debug!(%error, failures = run.failures, "a chunk of the snapshot is read again");
        let delay = tidegate_backoff::Backoff::default().delay(run.failures, fastrand::f64());
        (run.next, run.not_before) = (NextChunk::After(after), Some(Instant::now() + delay));
        Ok(())
    }
}

fn chunk_key(row: &Bytes, key: &[usize]) -> Option<window::RowKey> {
    let values: Vec<_> = DataRow::decode(row).ok()?.collect();
    row_key(key.iter().map(|at| values.get(*at).copied().flatten().map(ColumnValue::Text)))
}
