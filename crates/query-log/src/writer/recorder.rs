//! The writer of one thread: clock, buffers and recording policy.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};
use tidegate_sql::{
    cache::{Lookup, NormalizeCache},
    redact::without_passwords,
};

use rustc_hash::FxHashMap;
use tidegate_journal::{Class, Producer, ProducerRecord, Timestamp as JournalTimestamp};

use super::{
    peer::PeerInfo,
    pipeline::PipelineTracker,
    query_log::{CONNECTIONS, QUERIES, QueryLog},
    rules::may_record_parameters,
    tracked_query::{ErrorRedaction, ParameterCapture, TrackedQuery, truncate_utf8},
};
use crate::record::{RecordDraft, RecordKind, RecordTimestamp, TimestampEncoder, write_server_fields};
use tidegate_config as config;
use tidegate_config::{ParameterForm, StatementForm};

/// The writer of one thread. It never waits: the journal counts records that find no space.
pub struct Recorder {
    producer: Producer,
    policy: RefCell<Rc<RecordingPolicy>>,
    /// An instant of the thread's clock and the wall-clock time at that instant.
    anchor: Cell<(Instant, JournalTimestamp)>,
    buffers: RefCell<RecordBuffers>,
    /// Released pipeline trackers, for reuse.
    #[allow(clippy::vec_box, reason = "a tracker holds the box itself")]
    spare_pipelines: RefCell<Vec<Box<PipelineTracker>>>,
    /// Completed queries, for reuse.
    #[allow(clippy::vec_box, reason = "trackers and the recorder exchange the boxes")]
    spare_queries: RefCell<Vec<Box<TrackedQuery>>>,
    /// Server fields by the number of the server connection.
    servers: RefCell<FxHashMap<u64, Rc<[u8]>>>,
}

/// Identity of the server connection of a query.
#[derive(Clone, Copy)]
pub struct QueryServer<'a> {
    /// Unique number of the connection.
    pub id: u64,
    /// Address of the server.
    pub address: &'a dyn std::fmt::Display,
    /// Process ID of the server connection.
    pub pid: u32,
}

/// A completed query and the other values of its record.
#[derive(Clone, Copy)]
pub(super) struct CompletedQuery<'a> {
    pub(super) query: &'a TrackedQuery,
    pub(super) session_fields: &'a [u8],
    pub(super) server: Option<&'a [u8]>,
    pub(super) transaction: u64,
    pub(super) policy: &'a RecordingPolicy,
    pub(super) parameters: ParameterForm,
    pub(super) reason: &'a str,
}

/// Configuration of the query log and values derived from it.
#[derive(Debug)]
pub(super) struct RecordingPolicy {
    pub(super) journal: config::QueryLogConfig,
    pub(super) capture: ParameterCapture,
    pub(super) redaction: ErrorRedaction,
    /// Whether a rule tests the statement class.
    pub(super) uses_statement_classes: bool,
}

impl RecordingPolicy {
    fn new(journal: &config::QueryLogConfig) -> Rc<Self> {
        let (values, redacted) = (
            may_record_parameters(journal, ParameterForm::On),
            may_record_parameters(journal, ParameterForm::Redacted),
        );
        let redaction = ErrorRedaction {
            literals: journal.statement != StatementForm::Text,
            // Holds if the records of at least one rule need it.
            parameters: journal.parameters != ParameterForm::On
                || journal.rules.0.iter().any(|rule| rule.parameters.is_some_and(|form| form != ParameterForm::On)),
        };
        let uses_statement_classes = journal.rules.0.iter().any(|rule| !rule.statements.is_empty());
        Rc::new(Self {
            journal: journal.clone(),
            capture: ParameterCapture { values, redacted },
            redaction,
            uses_statement_classes,
        })
    }
}

/// Buffers that are reused for each record.
#[derive(Default)]
pub(super) struct RecordBuffers {
    pub(super) normalize_cache: NormalizeCache,
    encoder: RecordEncoder,
}

/// Encodes records into a reused buffer.
#[derive(Default)]
struct RecordEncoder {
    timestamps: TimestampEncoder,
    out: Vec<u8>,
}

/// Maximum number of pipeline trackers kept for reuse; a typical thread has fewer exchanges at the same time.
const PIPELINES_KEPT_MAX: usize = 256;
/// Maximum number of completed queries kept for reuse.
const QUERIES_KEPT_MAX: usize = 256;
/// Maximum number of servers with cached fields. At the limit the cache is cleared, because closed connections are not
/// removed from it.
const SERVERS_MAX: usize = 1024;
/// Capacity above which an output buffer is released.
const OUT_BYTES_KEPT: usize = 256 << 10;

impl Recorder {
    /// Creates the recorder of a thread; `None` if the query log is closed.
    #[must_use]
    pub fn new(query_log: &QueryLog, core: usize, settings: &config::QueryLogConfig, now: Instant) -> Option<Rc<Self>> {
        let recorder = Self {
            producer: query_log.producer(core)?,
            policy: RefCell::new(RecordingPolicy::new(settings)),
            anchor: Cell::new((now, JournalTimestamp::now())),
            buffers: RefCell::default(),
            spare_pipelines: RefCell::default(),
            spare_queries: RefCell::default(),
            servers: RefCell::default(),
        };
        Some(Rc::new(recorder))
    }

    /// Applies a reloaded configuration. Open transactions keep the old one.
    pub fn reload(&self, settings: &config::QueryLogConfig) {
        *self.policy.borrow_mut() = RecordingPolicy::new(settings);
    }

    /// Reads the wall clock. Called about once per second, because the system may adjust it at any time.
    pub fn set_clock(&self, now: Instant) {
        self.anchor.set((now, JournalTimestamp::now()));
    }

    #[cfg(test)]
    pub(super) fn set_clock_to(&self, now: Instant, unix_seconds: u64) {
        self.anchor.set((now, JournalTimestamp::from_unix_nanos(unix_seconds * 1_000_000_000)));
    }

    /// Records a refused login.
    pub fn log_failed_login(&self, peer: &PeerInfo, sqlstate: &[u8], message: &[u8], now: Instant) {
        let mut session_fields = Vec::new();
        peer.write_fields(&peer.application, None, &mut session_fields);
        self.connection(
            RecordDraft {
                kind: Some(RecordKind::LoginFailed),
                session_fields: &session_fields,
                sqlstate,
                message,
                ..RecordDraft::default()
            },
            now,
        );
    }

    pub(super) fn policy(&self) -> Rc<RecordingPolicy> {
        self.policy.borrow().clone()
    }

    /// Updates a policy to the current configuration.
    pub(super) fn refresh_policy(&self, policy: &mut Rc<RecordingPolicy>) {
        let now = self.policy.borrow();
        if !Rc::ptr_eq(policy, &now) {
            *policy = now.clone();
        }
    }

    /// The server fields of a record.
    pub(super) fn server_fields(&self, server: &QueryServer<'_>) -> Rc<[u8]> {
        if let Some(known) = self.servers.borrow().get(&server.id) {
            return known.clone();
        }
        let (address, mut out) = (server.address.to_string(), Vec::new());
        write_server_fields(address.as_bytes(), u64::from(server.pid), &mut out);
        let made = Rc::<[u8]>::from(out);
        let mut servers = self.servers.borrow_mut();
        if servers.len() >= SERVERS_MAX {
            servers.clear();
        }
        servers.insert(server.id, made.clone());
        made
    }

    pub(super) fn buffers(&self) -> &RefCell<RecordBuffers> {
        &self.buffers
    }

    /// Records a login, a refused login or a disconnect.
    pub(super) fn connection(&self, mut draft: RecordDraft<'_>, now: Instant) {
        if self.policy.borrow().journal.connections {
            self.append(&mut self.buffers.borrow_mut().encoder, CONNECTIONS, &mut draft, now);
        }
    }

    /// Records a query in the configured form.
    pub(super) fn query(&self, completed: CompletedQuery<'_>) {
        let CompletedQuery { query, session_fields, server, transaction, policy, parameters, reason } = completed;
        let (journal, RecordBuffers { normalize_cache, encoder }) = (&policy.journal, &mut *self.buffers.borrow_mut());
        let form = journal.statement;
        let found = (form != StatementForm::Off && !query.text().is_empty()).then(|| query.normalized(normalize_cache));
        let prefix = if form == StatementForm::Normalised { query.normalized_prefix() } else { None };
        let text = match &found {
            Some(found) if form == StatementForm::Text && found.may_hide() => without_passwords(query.text()),
            _ => Cow::Borrowed(query.text()),
        };
        let statement = match (form, &found, &prefix) {
            (StatementForm::Text, ..) => &*text,
            (StatementForm::Normalised, _, Some((prefix_text, _))) => prefix_text,
            (StatementForm::Normalised, Some(found), _) => found.text(),
            _ => &[],
        };
        let mut draft = query.draft(server);
        draft.kind = Some(RecordKind::Query);
        draft.session_fields = session_fields;
        draft.transaction = Some(transaction);
        // The normalised text may be longer than the original.
        let (statement, is_truncated) = truncate_utf8(statement, journal.statement_bytes as usize);
        draft.statement = statement;
        let is_partial = prefix.as_ref().is_some_and(|(_, is_partial)| *is_partial);
        draft.is_truncated = !statement.is_empty() && (is_truncated || is_partial || query.is_truncated());
        draft.fingerprint = found.as_ref().map(Lookup::fingerprint);
        if let Some(logged) = &query.statement {
            draft.prepared = &logged.name;
            draft.parameters = match parameters {
                ParameterForm::On => &logged.parameters,
                ParameterForm::Redacted => &logged.redacted,
                ParameterForm::Off => &[],
            };
        }
        if let Some(error) = query
            .error
            .as_ref()
            .filter(|error| parameters == ParameterForm::On && !error.message_with_values.is_empty())
        {
            draft.message = &error.message_with_values;
        }
        draft.reason = reason.as_bytes();
        self.append(encoder, QUERIES, &mut draft, query.ended());
    }

    /// Records a transaction, whose statements already have the configured form.
    pub(super) fn transaction(&self, mut draft: RecordDraft<'_>, ended: Instant) {
        self.append(&mut self.buffers.borrow_mut().encoder, QUERIES, &mut draft, ended);
    }

    fn append(&self, encoder: &mut RecordEncoder, class: Class, draft: &mut RecordDraft<'_>, ended: Instant) {
        let time = self.time(ended);
        draft.time = RecordTimestamp::from_micros(time.unix_nanos() / 1000);
        encoder.out.clear();
        draft.write(&mut encoder.timestamps, &mut encoder.out);
        // The journal counts a loss, and writes a gap as soon as there is space.
        let _ = self.producer.offer(ProducerRecord::new(class, &encoder.out).at(time));
        if encoder.out.capacity() > OUT_BYTES_KEPT {
            encoder.out = Vec::new();
        }
    }

    fn time(&self, at: Instant) -> JournalTimestamp {
        let (instant, wall) = self.anchor.get();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        JournalTimestamp::from_unix_nanos(match at.checked_duration_since(instant) {
            Some(later) => wall.unix_nanos().saturating_add(nanos(later)),
            None => wall.unix_nanos().saturating_sub(nanos(instant.saturating_duration_since(at))),
        })
    }

    pub(super) fn take_pipeline(&self) -> Box<PipelineTracker> {
        self.spare_pipelines.borrow_mut().pop().unwrap_or_default()
    }

    pub(super) fn recycle_pipeline(&self, pipeline: Box<PipelineTracker>) {
        let mut spare_pipelines = self.spare_pipelines.borrow_mut();
        if spare_pipelines.len() < PIPELINES_KEPT_MAX {
            spare_pipelines.push(pipeline);
        }
    }

    /// A query that starts now.
    pub(super) fn take_query(&self, now: Instant) -> Box<TrackedQuery> {
        match self.spare_queries.borrow_mut().pop() {
            Some(mut query) => {
                query.reset(now);
                query
            }
            None => Box::new(TrackedQuery::new(now)),
        }
    }

    pub(super) fn recycle_query(&self, mut query: Box<TrackedQuery>) {
        query.release_statement();
        let mut spare_queries = self.spare_queries.borrow_mut();
        if spare_queries.len() < QUERIES_KEPT_MAX {
            spare_queries.push(query);
        }
    }
}
