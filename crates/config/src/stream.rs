//! `[[streams]]`: ordered records from a source to a sink, one at a time per key.

mod endpoint;
mod limits;
mod record_field;
mod start_time;
mod url_template;

use std::path::PathBuf;
use std::time::Duration;

use super::raw::{RawTable, RawValue, SourceSpan, SourceText, SpannedValue};
use super::secret::MASK;
use super::section::section;
use super::setting::{Setting, ValueClass, ValueError, words};
use super::{ServerTls, SessionAttrs};

pub use endpoint::{ChangesOrigin, DeadLetterSink, GatewayTarget, HttpTarget, KafkaTopics, StreamSink, StreamSource};
pub use record_field::{OrderingKey, RecordField, RecordFields, field_name};
pub use start_time::StartTime;
pub use url_template::{UrlPart, UrlTemplate};

words! {
    /// Order of records without a key.
    pub enum KeylessOrder {
        /// Unordered.
        Unordered = "unordered",
        /// Ordered within the partition or file.
        Lane = "lane",
    }

    /// Where a consumer group without committed offsets starts.
    pub enum StartOffset {
        /// Oldest record.
        Earliest = "earliest",
        /// Next record.
        Latest = "latest",
        /// No start: the stream ends with an error.
        Fail = "fail",
    }

    /// Action for a record whose attempts are used up.
    pub enum OnExhausted {
        /// The stream drains, commits finished records, and ends with an error.
        Stop = "stop",
        /// No further deliveries of its partition or file start.
        HaltLane = "halt_lane",
        /// The record waits, and the later records of its key with it.
        Park = "park",
        /// The record is logged, counted and treated as done.
        Skip = "skip",
        /// The record is written to the dead letter, and is then done.
        DeadLetter = "dead_letter",
    }

    /// Records of one delivery.
    pub enum BatchBy {
        /// Waiting records of one key.
        Key = "key",
        /// Waiting records of any keys of one partition or file.
        Lane = "lane",
    }

    /// Order of the changes of Postgres.
    pub enum ChangeOrder {
        /// Ordered per row; rows are concurrent.
        Key = "key",
        /// Ordered per table; tables are concurrent.
        Table = "table",
        /// Ordered by commit, one after another.
        Commit = "commit",
    }

    /// Delivery of an update that changes the key of a row, as a delete and an insert.
    pub enum KeyChangeAction {
        /// Each waits for all changes before it.
        Barrier = "barrier",
        /// The old key and the new one are concurrent.
        Split = "split",
    }

    /// Value of the records of Postgres changes.
    pub enum ChangeEnvelope {
        /// Tidegate's own form.
        Change = "change",
        /// The JSON of Debezium without schemas.
        Debezium = "debezium",
        /// A CloudEvent with `change` as its data.
        CloudEvents = "cloudevents",
    }

    /// Copy of the published tables at the first start.
    pub enum SnapshotMode {
        /// The tables are copied, and changes follow.
        Initial = "initial",
        /// The tables are copied, and the stream ends.
        InitialOnly = "initial_only",
        /// Changes only.
        None = "none",
    }

    /// Action when changes can never be delivered: the slot is lost, or belongs to another server.
    pub enum ChangesLostAction {
        /// The stream ends with an error.
        Stop = "stop",
        /// The slot is created again, and the tables are copied again.
        Resnapshot = "resnapshot",
        /// The stream goes on with the next changes.
        Skip = "skip",
    }

    /// Action at the bound of the spool.
    pub enum SpoolFullAction {
        /// The stream stops reading the slot until there is room; Postgres keeps the WAL.
        Hold = "hold",
        /// The stream ends with an error.
        Stop = "stop",
    }

    /// Action when a slot holds more WAL than its bound.
    pub enum WalFullAction {
        /// An error is logged.
        Alarm = "alarm",
        /// The stream ends with an error; the slot stays.
        Stop = "stop",
        /// The slot is dropped, so that Postgres frees the WAL, and the stream ends. Changes are lost.
        DropSlot = "drop_slot",
    }

    /// Action for a new definition of a table.
    pub enum SchemaChangeAction {
        /// A record with the new columns precedes the first row that has them.
        Send = "send",
        /// The stream ends with an error before the first row that has them.
        Stop = "stop",
    }

    /// Content that is sent to HTTP, a command or standard output.
    pub enum RecordForm {
        /// The value of the record.
        Value = "value",
        /// A JSON object with value, key, position, time and headers.
        Envelope = "envelope",
    }
}

section! {
    /// `[[streams]]`: records from `from` to `to`, concurrent across keys and in order within a key.
    pub struct StreamKeys, raw RawStream {
        /// Name in logs, in `SHOW STREAMS` and for `tidegate stream -c FILE NAME`.
        name: String = String::new() => Live Process;
        /// Source: a file with one JSON value per line, `-` for standard input, `kafka://BROKER:9092/TOPIC`, or
        /// `postgres://USER@HOST/DATABASE` for the changes of a database.
        from: StreamSource = StreamSource::Unset => Live Process;
        /// Sink: `http://...` (in which `{key}` and the like stand for parts of the record), `postgres://...`, `gateway://USER@DATABASE`, `kafka://BROKER:9092/TOPIC`, `command:...`, or
        /// `-`.
        to: StreamSink = StreamSink::Unset => Live Process;
        /// `record` for the key of the record, or a JSON pointer into its value such as `/customer/id`.
        key: OrderingKey = OrderingKey::Record => Live Process;
        /// `unordered` or `lane` (ordered within the partition or file): how records without a key are ordered.
        keyless: KeylessOrder = KeylessOrder::Unordered => Live Process;
        /// Kafka consumer group; empty for `tidegate-NAME`.
        group: String = String::new() => Live Process;
        /// `earliest`, `latest` or `fail`: where a consumer group without committed offsets starts.
        start: StartOffset = StartOffset::Earliest => Live Process;
        /// Time such as `2026-01-31T12:00:00Z` at which a consumer group without committed offsets starts, in place of `start`.
        start_time: StartTime = StartTime::default() => Live Process;
        /// Table of librdkafka properties for every Kafka client of the stream.
        kafka_properties: Properties = Properties::default() => Live Process;
        /// The same for the client of `to`, in place of `kafka_properties`: for another cluster.
        sink_kafka_properties: Properties = Properties::default() => Live Process;
        /// The same for the client of `dead_letter`, in place of `kafka_properties`.
        dead_letter_kafka_properties: Properties = Properties::default() => Live Process;
        /// Whether `from` is a file of dead letters: their records are delivered again, with their keys, headers and times.
        redrive: bool = false => Live Process;
        /// Publication whose changes are read; also in the URL of `from` as `?publication=NAME`.
        publication: String = String::new() => Live Process;
        /// Replication slot; empty for `tidegate_NAME`. Also in the URL of `from` as `slot=NAME`.
        slot: String = String::new() => Live Process;
        /// `initial`, `initial_only` or `none`: whether the published tables are copied at the first start, before or without
        /// their changes. Also in the URL of `from` as `snapshot=initial`. The default is `none` without `state` and `create`.
        snapshot: SnapshotMode = SnapshotMode::Initial => Live Process;
        /// Tables that have to be published, and that are copied, as `SCHEMA.NAME`; empty for all of the publication.
        tables: Vec<String> = Vec::new() => Live Process;
        /// Maximum number of rows that are read at a time, between two marks in the stream.
        snapshot_chunk_rows: u32 = 50_000, in 1..=10_000_000 => Live Process;
        /// Connections that read at the same time: different tables, or parts of one if fewer tables are left.
        snapshot_parallel: u32 = 2, in 1..=64 => Live Process;
        /// Whether a missing publication and a missing slot are created at the first start: for `tables`, or for all tables.
        create: bool = false => Live Process;
        /// Whether the slot that `create` makes is synchronised to standbys (Postgres 17).
        failover: bool = false => Live Process;
        /// `stop`, `resnapshot` (a new slot, and a new copy of the tables) or `skip` (a new slot): what happens when the slot is
        /// lost or invalid, or the server is another one, so that changes can never be delivered.
        changes_lost: ChangesLostAction = ChangesLostAction::Stop => Live Process;
        /// Whether records announce the begin and the end of each transaction.
        tx_markers: bool = false => Live Process;
        /// `key` (per row), `table` or `commit` (all in the order of commits): which changes of Postgres keep their order.
        order: ChangeOrder = ChangeOrder::Key => Live Process;
        /// `barrier` or `split`: whether an update that changes a key waits for all changes before it, with `order = "key"`.
        key_change: KeyChangeAction = KeyChangeAction::Barrier => Live Process;
        /// `change`, `debezium` or `cloudevents`: the value of the records of Postgres changes.
        envelope: ChangeEnvelope = ChangeEnvelope::Change => Live Process;
        /// `send` or `stop`: what a new definition of a table causes. A statement for rows does not get the record.
        schema_change: SchemaChangeAction = SchemaChangeAction::Send => Live Process;
        /// Folder for the spool of a Postgres source; empty for none. The slot is then confirmed when the sink has the records.
        state: PathBuf = PathBuf::new() => Live Process;
        /// Maximum size in bytes of the spool in `state`.
        spool_bytes: u64 = 10 << 30, in 16_777_216..=1_125_899_906_842_624 => Live Process;
        /// `hold` or `stop`: what happens when the spool is full.
        spool_full: SpoolFullAction = SpoolFullAction::Hold => Live Process;
        /// Size in bytes of large unfinished transactions that are kept in memory; the rest, and each that takes a quarter of it,
        /// goes to files in `state`. 0: the server keeps them, on its disk if necessary.
        tx_memory: u64 = 64 << 20, in 0..=1_099_511_627_776 => Live Process;
        /// Maximum size in bytes of the WAL that the slot makes Postgres keep, before `wal_full` applies; 0 for none.
        wal_max: u64 = 0, in 0..=1_125_899_906_842_624 => Live Process;
        /// `alarm`, `stop` or `drop_slot`: what happens when the slot holds more than `wal_max`. `drop_slot` loses changes.
        wal_full: WalFullAction = WalFullAction::Alarm => Live Process;
        /// Interval of status updates to a Postgres source; a third of its `wal_sender_timeout` if that is shorter.
        status_interval: Duration = Duration::from_secs(10) => Live Process;
        /// Interval of messages that a Postgres source writes while only unpublished tables change; 0 for none.
        heartbeat: Duration = Duration::from_secs(30) => Live Process;
        /// File that stores the position in `from`, where the next run continues; empty for none.
        checkpoint: PathBuf = PathBuf::new() => Live Process;
        /// Whether to wait for more records at the end of the file, also after a rotation, as `tail -F` does.
        follow: bool = false => Live Process;
        /// Statement for Postgres, such as `insert into orders values ($1, $2) on conflict do nothing`.
        sql: String = String::new() => Live Process;
        /// Parameters of `sql`: `key`, `value`, `topic`, `partition`, `position`, `timestamp`, `header:NAME`,
        /// `unchanged:COLUMN` (whether Postgres did not send the value of a column), or JSON pointers.
        params: RecordFields = RecordFields::default() => Live Process;
        /// Connections to Postgres.
        connections: u32 = 4, in 1..=10_000 => Live Process;
        /// Processes of a command, each with one batch at a time; 0 for one per core.
        processes: u32 = 0, in 0..=10_000 => Live Process;
        /// Table of headers for each HTTP request.
        headers: Properties = Properties::default() => Live Process;
        /// Names of record headers that become headers of the HTTP request; `*` for all.
        record_headers: Vec<String> = Vec::new() => Live Process;
        /// PEM file with a client certificate for HTTPS, and the intermediate certificates after it; empty for none.
        http_cert_file: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the private key of `http_cert_file`.
        http_key_file: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the authorities of HTTPS servers; empty for those of the system.
        http_ca_file: PathBuf = PathBuf::new() => Live Process;
        /// `value` or `envelope`: what is sent to HTTP, a command or standard output.
        form: RecordForm = RecordForm::Value => Live Process;
        /// Maximum number of waiting records in one delivery. Standard output without `rate` and `quota` takes 512 at least.
        batch: u32 = 1, in 1..=100_000 => Live Process;
        /// `key` or `lane`: whether a delivery has records of one key, or of any keys of one partition or file.
        batch_by: BatchBy = BatchBy::Key => Live Process;
        /// Timeout of one attempt; 0 for none.
        timeout: Duration = Duration::from_secs(30) => Live Process;
        /// Maximum number of concurrent deliveries; to Postgres and to a command at most `connections` and `processes`. Unset, it
        /// is 10,000 to Kafka and to standard output, and 8 with `batch_by = "lane"`.
        concurrency: u32 = 100, in 1..=1_000_000 => Live Process;
        /// Maximum number of deliveries started per second; 0 is no limit.
        rate: u32 = 0, in 0..=100_000_000 => Live Process;
        /// Maximum number of records of one key started per `quota_window`; 0 is no limit.
        quota: u16 = 0 => Live Process;
        /// Window of `quota`.
        quota_window: Duration = Duration::from_secs(1) => Live Process;
        /// Whether only the newest waiting record of each key is delivered; for values that hold the whole state.
        compact: bool = false => Live Process;
        /// Maximum number of attempts per record, up to 65,535; 0 is no limit.
        attempts: u32 = 10, in 0..=65_535 => Live Process;
        /// Time since a record was read after which it is not retried; 0 is no limit.
        age_max: Duration = Duration::ZERO => Live Process;
        /// Wait after a failed attempt; doubles, with jitter. Only the key of the record waits.
        retry_wait: Duration = Duration::from_millis(100) => Live Process;
        /// Maximum wait between attempts.
        retry_wait_max: Duration = Duration::from_secs(30) => Live Process;
        /// `stop`, `halt_lane`, `park`, `skip` or `dead_letter`: what happens to a record whose attempts are used up. The
        /// default is `dead_letter` if a `dead_letter` is named.
        exhausted: OnExhausted = OnExhausted::Stop => Live Process;
        /// Destination of records that cannot be delivered: a file, or `kafka://BROKER:9092/TOPIC`; empty for none.
        dead_letter: DeadLetterSink = DeadLetterSink::None => Live Process;
        /// Maximum number of records that are read and not done, over all partitions. Unset, it is 20,000 for changes of
        /// Postgres.
        records_max: u32 = 100_000, in 1..=100_000_000 => Live Process;
        /// Maximum size in bytes of these records, including read-ahead: from Kafka at most 8 MiB, and at most half of this
        /// value.
        bytes_max: u64 = 256 << 20, in 65_536..=1_099_511_627_776 => Live Process;
        /// Maximum distance in records of one partition from the oldest unfinished record to the newest read one.
        span_max: u32 = 1_000_000, in 1..=1_000_000_000 => Live Process;
        /// Maximum time until finished records are committed.
        commit_every: Duration = Duration::from_millis(200) => Live Process;
        /// How long read records may be delivered after a stop is requested.
        drain: Duration = Duration::from_secs(30) => Live Process;
    }
}

/// A checked stream.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamConfig {
    /// All keys.
    pub keys: StreamKeys,
    /// TLS to the Postgres of `to`.
    pub tls: ServerTls,
    /// Role of the server that takes the records: any, or the one for writes.
    pub server: SessionAttrs,
    pub(crate) written: RawStream,
}

/// Names and texts, in file order.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Properties(pub Vec<(String, String)>);

impl std::fmt::Debug for Properties {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.show())
    }
}

impl Setting for Properties {
    const CLASS: ValueClass = ValueClass::Secret;

    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let RawValue::Table(table) = value else {
            let help = "write names and texts in braces: { name = \"text\" }";
            return Err(ValueError::new(format!("expected a table, found {}", value.kind()), help));
        };
        let property = |entry: &super::raw::RawEntry| {
            let text = match &entry.node.value {
                RawValue::Integer(number) => number.to_string(),
                RawValue::Boolean(value) => value.to_string(),
                other => {
                    String::read(other).map_err(|error| ValueError { at: Some(entry.node.at.clone()), ..error })?
                }
            };
            Ok((entry.key.clone(), text))
        };
        table.entries.iter().map(property).collect::<Result<_, _>>().map(Self)
    }

    /// The names only: a value may be a password.
    fn show(&self) -> String {
        self.0.iter().map(|(name, _)| format!("{name}={MASK}")).collect::<Vec<_>>().join(", ")
    }
}

/// The value of a command-line flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlagValue {
    /// A text, a duration or a word.
    Text(String),
    /// A number.
    Number(u64),
    /// A flag without a value.
    Yes,
    /// A flag that may be repeated.
    List(Vec<String>),
    /// A flag `name=text` that may be repeated.
    Table(Vec<(String, String)>),
}

/// The flags as the text of a file, so that diagnostics point at the command line.
pub(crate) fn document(flags: &[(&str, FlagValue)]) -> (SourceText, RawTable) {
    let mut source = SourceText::new("the command line", "tidegate stream");
    let mut table = RawTable::default();
    for (key, flag) in flags {
        source.text.push_str(&format!(" --{} ", key.replace('_', "-")));
        let start = source.text.len();
        source.text.push_str(&flag.redacted());
        let at = start..source.text.len();
        table.push(key, flag.value(&at), at);
    }
    (source, table)
}

impl FlagValue {
    fn redacted(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Yes => String::new(),
            Self::List(texts) => texts.join(" "),
            Self::Table(pairs) => pairs.iter().map(|(name, _)| format!("{name}={MASK}")).collect::<Vec<_>>().join(" "),
        }
    }

    fn value(&self, at: &SourceSpan) -> RawValue {
        let node = |text: &String| SpannedValue { value: RawValue::Text(text.clone()), at: at.clone() };
        match self {
            Self::Text(text) => RawValue::Text(text.clone()),
            Self::Number(number) => {
                i64::try_from(*number).map_or(RawValue::Other("a number too large"), RawValue::Integer)
            }
            Self::Yes => RawValue::Boolean(true),
            Self::List(texts) => RawValue::List(texts.iter().map(node).collect()),
            Self::Table(pairs) => {
                let mut table = RawTable::default();
                for (name, text) in pairs {
                    table.push_text(name, text, at.clone());
                }
                RawValue::Table(table)
            }
        }
    }
}

impl StreamConfig {
    /// Source and sink, without secrets.
    pub fn endpoints(&self) -> (String, String) {
        (self.keys.from.show(), self.keys.to.show())
    }
}
