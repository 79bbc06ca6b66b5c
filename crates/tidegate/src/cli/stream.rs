//! `tidegate stream`: the keys of `[[streams]]` as flags, or a file with streams.

use std::path::{Path, PathBuf};

use clap::Args;

use super::key_values;
use tidegate_config as config;
use tidegate_config::{
    Config, ConfigErrors, LogConfig, LogFormat, LogLevel, pgpass,
    stream::{
        BatchBy, ChangeEnvelope, ChangeOrder, ChangesLostAction, FlagValue, KeyChangeAction, KeylessOrder, OnExhausted,
        RecordForm, SchemaChangeAction, SnapshotMode, SpoolFullAction, StartOffset, WalFullAction,
    },
};

const EXAMPLES: &str = "\
Without any server:
  tidegate stream --from orders.ndjson --key /customer --to -
  tail -F app.log.json | tidegate stream --from - --key /user \\
      --to 'command:./handle.py'  # reads a line per record; answers ok, failed
                                  # or rejected for each

To a web service, at most 200 requests at a time, in order per customer:
  tidegate stream --name ship --from kafka://localhost:9092/orders \\
      --key /customer --to https://example.org/orders --concurrency 200 \\
      --dead-letter dead.ndjson

To Postgres (the password comes from PGPASSWORD or ~/.pgpass; on the command
line, all users could see it):
  tidegate stream --name store --from kafka://localhost:9092/orders \\
      --to postgres://app@localhost/shop --param /id --param value \\
      --sql 'insert into orders values ($1, $2::jsonb) on conflict do nothing'

The changes of a Postgres database, in order per row, after a copy of the
tables:
  tidegate stream --from 'postgres://cdc@localhost/shop?publication=orders' \\
      --tables public.orders --create --to -

Streams of a file, without the gateway (`tidegate run` includes them):
  tidegate stream -c tidegate.toml orders

Records of one key are delivered sequentially, of different keys concurrently,
and each at least once: nothing is committed before the sink has acknowledged
it. Ctrl-C stops reading and delivers what was read; a second one stops now.

Exit status: 0 all records were done, or a regular stop,
             1 an error, or a second stop signal,
             2 an invalid command line,
             3 as 0, but some records were skipped or dead-lettered.

The manual page tidegate.toml(5) describes every key of [[streams]]: the flags
have the same names; those of lists and tables may be repeated. The guide is
docs/src/guide/streams.md in the repository.";

/// `tidegate stream`.
#[derive(Debug, Clone, Args, Default)]
#[command(after_help = EXAMPLES)]
pub struct StreamArgs {
    /// Configuration file with the streams to run.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["from", "to"])]
    pub config: Option<PathBuf>,

    /// Names of the file's streams to run [default: all].
    #[arg(value_name = "NAME", requires = "config")]
    pub names: Vec<String>,

    /// Source: a file with a JSON value per line, `-` for standard input, kafka://BROKER:9092/TOPIC,TOPIC, or
    /// postgres://USER@HOST/DATABASE?publication=NAME for changes.
    #[arg(long, value_name = "SOURCE", required_unless_present = "config")]
    pub from: Option<String>,

    /// Sink: `-`, command:PROGRAM, http(s)://..., postgres://..., or kafka://BROKER:9092/TOPIC.
    #[arg(long, value_name = "SINK", required_unless_present = "config")]
    pub to: Option<String>,

    /// Ordering key: a JSON pointer such as /customer/id [default: the record's key].
    #[arg(long, value_name = "POINTER")]
    pub key: Option<String>,

    /// Order of records without a key.
    #[arg(long, value_name = "ORDER", value_parser = key_values::<KeylessOrder>(KeylessOrder::WORDS))]
    pub keyless: Option<KeylessOrder>,

    /// Name in logs, and in the default name of the consumer group [default: stream].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Kafka consumer group [default: tidegate-NAME].
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,

    /// Start position of a consumer group without commits.
    #[arg(long, value_name = "WHERE", value_parser = key_values::<StartOffset>(StartOffset::WORDS))]
    pub start: Option<StartOffset>,

    /// Time such as 2026-01-31T12:00:00Z at which such a group starts, in place of --start.
    #[arg(long, value_name = "TIME")]
    pub start_time: Option<String>,

    /// A property of librdkafka, such as security.protocol=sasl_plaintext; may be repeated.
    #[arg(long = "kafka", visible_alias = "kafka-properties", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub kafka_properties: Vec<(String, String)>,

    /// The same for the client of --to, in place of --kafka: for another cluster.
    #[arg(long = "sink-kafka", visible_alias = "sink-kafka-properties", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub sink_kafka_properties: Vec<(String, String)>,

    /// The same for the client of --dead-letter, in place of --kafka.
    #[arg(
        long = "dead-letter-kafka",
        visible_alias = "dead-letter-kafka-properties",
        value_name = "NAME=VALUE",
        value_parser = parse_pair
    )]
    pub dead_letter_kafka_properties: Vec<(String, String)>,

    /// Deliver the records of dead letters again: --from is a file of dead letters.
    #[arg(long)]
    pub redrive: bool,
    /// Publication whose changes are read.
    #[arg(long, value_name = "NAME")]
    pub publication: Option<String>,

    /// Replication slot [default: tidegate_NAME].
    #[arg(long, value_name = "NAME")]
    pub slot: Option<String>,

    /// Whether the published tables are copied at the first start [default: initial with --state or --create, none without].
    #[arg(long, value_name = "MODE", value_parser = key_values::<SnapshotMode>(SnapshotMode::WORDS))]
    pub snapshot: Option<SnapshotMode>,

    /// A table that has to be published and is copied, as SCHEMA.NAME; may be repeated [default: all of the publication].
    #[arg(long, value_name = "TABLE")]
    pub tables: Vec<String>,

    /// Limit of rows that are read from a table at a time [default: 50000].
    #[arg(long, value_name = "N")]
    pub snapshot_chunk_rows: Option<u64>,

    /// Connections that read tables at the same time [default: 2].
    #[arg(long, value_name = "N")]
    pub snapshot_parallel: Option<u64>,

    /// Create the publication and the slot at the first start, if they are missing.
    #[arg(long)]
    pub create: bool,

    /// Synchronise the slot that --create makes to standbys (Postgres 17).
    #[arg(long)]
    pub failover: bool,

    /// Action when the slot is lost, so that changes are missing [default: stop].
    #[arg(long, value_name = "WHAT", value_parser = key_values::<ChangesLostAction>(ChangesLostAction::WORDS))]
    pub changes_lost: Option<ChangesLostAction>,

    /// Announce the begin and the end of each transaction.
    #[arg(long)]
    pub tx_markers: bool,

    /// Order of the changes of Postgres [default: key].
    #[arg(long, value_name = "ORDER", value_parser = key_values::<ChangeOrder>(ChangeOrder::WORDS))]
    pub order: Option<ChangeOrder>,

    /// Whether an update of a key waits for all changes before it [default: barrier].
    #[arg(long, value_name = "HOW", value_parser = key_values::<KeyChangeAction>(KeyChangeAction::WORDS))]
    pub key_change: Option<KeyChangeAction>,

    /// Value of the records of changes [default: change].
    #[arg(long, value_name = "FORM", value_parser = key_values::<ChangeEnvelope>(ChangeEnvelope::WORDS))]
    pub envelope: Option<ChangeEnvelope>,

    /// Action for a new definition of a table [default: send].
    #[arg(long, value_name = "WHAT", value_parser = key_values::<SchemaChangeAction>(SchemaChangeAction::WORDS))]
    pub schema_change: Option<SchemaChangeAction>,

    /// Folder for the spool of a Postgres source.
    #[arg(long, value_name = "FOLDER")]
    pub state: Option<String>,

    /// Size of the spool [default: 10737418240].
    #[arg(long, value_name = "BYTES")]
    pub spool_bytes: Option<u64>,

    /// Action when the spool is full [default: hold].
    #[arg(long, value_name = "WHAT", value_parser = key_values::<SpoolFullAction>(SpoolFullAction::WORDS))]
    pub spool_full: Option<SpoolFullAction>,

    /// Memory for large unfinished transactions; more goes to the spool's folder [default: 67108864].
    #[arg(long, value_name = "BYTES")]
    pub tx_memory: Option<u64>,

    /// Bound for the WAL that the slot makes Postgres keep [default: none].
    #[arg(long, value_name = "BYTES")]
    pub wal_max: Option<u64>,

    /// Action when the slot holds more than --wal-max; drop_slot loses changes [default: alarm].
    #[arg(long, value_name = "WHAT", value_parser = key_values::<WalFullAction>(WalFullAction::WORDS))]
    pub wal_full: Option<WalFullAction>,

    /// Interval of status updates to a Postgres source [default: 10s].
    #[arg(long, value_name = "TIME")]
    pub status_interval: Option<String>,

    /// Interval of messages in an idle Postgres source; 0 for none [default: 30s].
    #[arg(long, value_name = "TIME")]
    pub heartbeat: Option<String>,

    /// File for the position in --from; the next run continues there.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<String>,

    /// Wait for more data at the end of the file, also after a rotation.
    #[arg(long)]
    pub follow: bool,

    /// Statement for Postgres.
    #[arg(long, value_name = "STATEMENT")]
    pub sql: Option<String>,

    /// A parameter of the statement, in order: key, value, topic, partition, position, timestamp, header:NAME,
    /// unchanged:COLUMN, or a JSON pointer; may be repeated.
    #[arg(long = "param", visible_alias = "params", value_name = "PART")]
    pub params: Vec<String>,

    /// Connections to Postgres [default: 4].
    #[arg(long, value_name = "N")]
    pub connections: Option<u64>,

    /// Processes of the command [default: one per core].
    #[arg(long, value_name = "N")]
    pub processes: Option<u64>,

    /// A header of each HTTP request; may be repeated.
    #[arg(long = "header", visible_alias = "headers", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub headers: Vec<(String, String)>,

    /// A header of the record that becomes a header of its HTTP request, or * for all; may be repeated.
    #[arg(long = "record-header", visible_alias = "record-headers", value_name = "NAME")]
    pub record_headers: Vec<String>,

    /// File with a client certificate for HTTPS.
    #[arg(long, value_name = "FILE")]
    pub http_cert_file: Option<String>,

    /// File with the key of this certificate.
    #[arg(long, value_name = "FILE")]
    pub http_key_file: Option<String>,

    /// File with the authorities of HTTPS servers [default: those of the system].
    #[arg(long, value_name = "FILE")]
    pub http_ca_file: Option<String>,

    /// Whether to write only the value, or an envelope with key, position and headers.
    #[arg(long, value_name = "FORM", value_parser = key_values::<RecordForm>(RecordForm::WORDS))]
    pub form: Option<RecordForm>,

    /// Limit of pending records that are delivered together [default: 1].
    #[arg(long, value_name = "N")]
    pub batch: Option<u64>,

    /// Whether they have one key, or any keys of one partition or file [default: key].
    #[arg(long, value_name = "WHAT", value_parser = key_values::<BatchBy>(BatchBy::WORDS))]
    pub batch_by: Option<BatchBy>,

    /// Timeout of one attempt [default: 30s].
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,

    /// Limit of concurrent deliveries [default: 100; 10000 to Kafka and standard output].
    #[arg(long, value_name = "N")]
    pub concurrency: Option<u64>,

    /// Limit of deliveries started per second [default: unlimited].
    #[arg(long, value_name = "N")]
    pub rate: Option<u64>,

    /// Limit of records of one key per --quota-window [default: unlimited].
    #[arg(long, value_name = "N")]
    pub quota: Option<u64>,

    /// See --quota [default: 1s].
    #[arg(long, value_name = "TIME")]
    pub quota_window: Option<String>,

    /// Deliver only the newest of a key's pending records.
    #[arg(long)]
    pub compact: bool,

    /// Limit of attempts per record, at most 65,535; 0 means unlimited [default: 10].
    #[arg(long, value_name = "N")]
    pub attempts: Option<u64>,

    /// Age of a record since it was read, beyond which it is not retried [default: unlimited].
    #[arg(long, value_name = "TIME")]
    pub age_max: Option<String>,

    /// Delay after a failed attempt; doubles with each failure [default: 100ms].
    #[arg(long, value_name = "TIME")]
    pub retry_wait: Option<String>,

    /// Limit of this delay [default: 30s].
    #[arg(long, value_name = "TIME")]
    pub retry_wait_max: Option<String>,

    /// Action for a record whose attempts are used up [default: stop].
    #[arg(long, value_name = "WHAT", value_parser = key_values::<OnExhausted>(OnExhausted::WORDS))]
    pub exhausted: Option<OnExhausted>,

    /// Dead-letter queue: a file, or kafka://BROKER:9092/TOPIC.
    #[arg(long, value_name = "WHERE")]
    pub dead_letter: Option<String>,

    /// Limit of records read and not done [default: 100000; 20000 from Postgres].
    #[arg(long, value_name = "N")]
    pub records_max: Option<u64>,

    /// Limit of their bytes, including data read ahead [default: 268435456].
    #[arg(long, value_name = "BYTES")]
    pub bytes_max: Option<u64>,

    /// Limit of records of one partition from the oldest to the newest that is not done [default: 1000000].
    #[arg(long, value_name = "N")]
    pub span_max: Option<u64>,

    /// Interval of commits [default: 200ms].
    #[arg(long, value_name = "TIME")]
    pub commit_every: Option<String>,

    /// Time to deliver records that were read after Ctrl-C [default: 30s].
    #[arg(long, value_name = "TIME")]
    pub drain: Option<String>,

    /// No progress; log only warnings and errors.
    #[arg(short, long)]
    pub quiet: bool,

    /// Format of log lines; auto is text, with colour on a terminal.
    #[arg(long, value_name = "FORM", value_parser = key_values::<LogFormat>(LogFormat::WORDS))]
    pub log_format: Option<LogFormat>,

    /// Least important event that is logged.
    #[arg(long, value_name = "LEVEL", value_parser = key_values::<LogLevel>(LogLevel::WORDS))]
    pub log_level: Option<LogLevel>,
}

/// The streams to run.
#[derive(Debug)]
pub struct SelectedStreams {
    /// The streams.
    pub streams: Vec<config::stream::StreamConfig>,
    /// The file of the streams.
    pub config: Option<Config>,
    /// Settings of the log.
    pub log: LogConfig,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    if name.trim().is_empty() {
        return Err("the name before = is missing".to_owned());
    }
    Ok((name.trim().to_owned(), value.to_owned()))
}

impl StreamArgs {
    /// Returns the streams of the file, or the stream of the flags.
    ///
    /// # Errors
    /// All errors, as a text for users.
    pub fn streams(&self) -> Result<SelectedStreams, String> {
        let describe = |errors: ConfigErrors| format!("the stream cannot be run\n\n{errors}");
        let (streams, config) = match &self.config {
            Some(file) => {
                let config = config::toml::load(file).map_err(describe)?;
                (self.select(&config, file)?, Some(config))
            }
            None => {
                self.check_group_name()?;
                (vec![Config::stream_from_flags(&self.flags()).map_err(describe)?], None)
            }
        };
        let mut log = config.as_ref().map(|config| config.log.clone()).unwrap_or_default();
        log.format = self.log_format.unwrap_or(log.format);
        log.level = self.log_level.unwrap_or(if self.quiet { LogLevel::Warn } else { log.level });
        Ok(SelectedStreams { streams, config, log })
    }

    /// Kafka needs a name: commands that share a consumer group by accident would each get a part of the records.
    fn check_group_name(&self) -> Result<(), String> {
        let is_kafka = self.from.as_ref().is_some_and(|from| from.starts_with("kafka:"));
        if is_kafka && self.name.is_none() && self.group.is_none() {
            return Err(
                "the Kafka consumer group needs a name, so that the next run continues where this one ended\n  \
                        help: add --name orders (its group is tidegate-orders), or --group GROUP"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn select(&self, config: &Config, file: &Path) -> Result<Vec<config::stream::StreamConfig>, String> {
        let is_written = |key: &str| key != "name" || self.name.is_some();
        if let Some((key, _)) = self.flags().into_iter().find(|(key, _)| is_written(key)) {
            return Err(format!("`{key}` is a key of the streams in the file: remove it from the command line"));
        }
        let known: Vec<&str> = config.streams.iter().map(|stream| stream.keys.name.as_str()).collect();
        if known.is_empty() {
            return Err(format!("{} has no streams: add one with [[streams]]", file.display()));
        }
        if let Some(unknown) = self.names.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("{} has no stream `{unknown}`; it has {}", file.display(), known.join(", ")));
        }
        let is_selected = |name: &String| self.names.is_empty() || self.names.contains(name);
        Ok(config.streams.iter().filter(|stream| is_selected(&stream.keys.name)).cloned().collect())
    }

    /// The given flags as keys of `[[streams]]`.
    fn flags(&self) -> Vec<(&'static str, FlagValue)> {
        let mut flags = vec![("name", FlagValue::Text(self.name.clone().unwrap_or_else(|| "stream".to_owned())))];
        let word = |word: Option<&'static str>| word.map(str::to_owned);
        let texts = [
            ("from", self.from.as_deref().map(|from| pgpass::with_password(from, &super::environment))),
            ("publication", self.publication.clone()),
            ("slot", self.slot.clone()),
            ("snapshot", word(self.snapshot.map(SnapshotMode::as_str))),
            ("changes_lost", word(self.changes_lost.map(ChangesLostAction::as_str))),
            ("state", self.state.clone()),
            ("status_interval", self.status_interval.clone()),
            ("heartbeat", self.heartbeat.clone()),
            ("spool_full", word(self.spool_full.map(SpoolFullAction::as_str))),
            ("wal_full", word(self.wal_full.map(WalFullAction::as_str))),
            ("order", word(self.order.map(ChangeOrder::as_str))),
            ("key_change", word(self.key_change.map(KeyChangeAction::as_str))),
            ("envelope", word(self.envelope.map(ChangeEnvelope::as_str))),
            ("schema_change", word(self.schema_change.map(SchemaChangeAction::as_str))),
            ("to", self.to.as_deref().map(|to| pgpass::with_password(to, &super::environment))),
            ("key", self.key.clone()),
            ("keyless", word(self.keyless.map(KeylessOrder::as_str))),
            ("group", self.group.clone()),
            ("start", word(self.start.map(StartOffset::as_str))),
            ("start_time", self.start_time.clone()),
            ("batch_by", word(self.batch_by.map(BatchBy::as_str))),
            ("http_cert_file", self.http_cert_file.clone()),
            ("http_key_file", self.http_key_file.clone()),
            ("http_ca_file", self.http_ca_file.clone()),
            ("checkpoint", self.checkpoint.clone()),
            ("sql", self.sql.clone()),
            ("form", word(self.form.map(RecordForm::as_str))),
            ("timeout", self.timeout.clone()),
            ("quota_window", self.quota_window.clone()),
            ("age_max", self.age_max.clone()),
            ("retry_wait", self.retry_wait.clone()),
            ("retry_wait_max", self.retry_wait_max.clone()),
            ("commit_every", self.commit_every.clone()),
            ("exhausted", word(self.exhausted.map(OnExhausted::as_str))),
            ("dead_letter", self.dead_letter.clone()),
            ("drain", self.drain.clone()),
        ];
        flags.extend(texts.into_iter().filter_map(|(key, text)| Some((key, FlagValue::Text(text?)))));
        let numbers = self.number_flags();
        flags.extend(numbers.into_iter().filter_map(|(key, number)| Some((key, FlagValue::Number(number?)))));
        let switches = [
            ("follow", self.follow),
            ("compact", self.compact),
            ("redrive", self.redrive),
            ("create", self.create),
            ("failover", self.failover),
            ("tx_markers", self.tx_markers),
        ];
        flags.extend(switches.into_iter().filter(|(_, is_on)| *is_on).map(|(key, _)| (key, FlagValue::Yes)));
        let lists = [("tables", &self.tables), ("params", &self.params), ("record_headers", &self.record_headers)];
        let written = lists.into_iter().filter(|(_, list)| !list.is_empty());
        flags.extend(written.map(|(key, list)| (key, FlagValue::List(list.clone()))));
        let tables = [
            ("headers", &self.headers),
            ("kafka_properties", &self.kafka_properties),
            ("sink_kafka_properties", &self.sink_kafka_properties),
            ("dead_letter_kafka_properties", &self.dead_letter_kafka_properties),
        ];
        let written = tables.into_iter().filter(|(_, pairs)| !pairs.is_empty());
        flags.extend(written.map(|(key, pairs)| (key, FlagValue::Table(pairs.clone()))));
        flags
    }

    fn number_flags(&self) -> [(&'static str, Option<u64>); 15] {
        [
            ("snapshot_chunk_rows", self.snapshot_chunk_rows),
            ("snapshot_parallel", self.snapshot_parallel),
            ("spool_bytes", self.spool_bytes),
            ("tx_memory", self.tx_memory),
            ("wal_max", self.wal_max),
            ("connections", self.connections),
            ("processes", self.processes),
            ("batch", self.batch),
            ("concurrency", self.concurrency),
            ("rate", self.rate),
            ("quota", self.quota),
            ("attempts", self.attempts),
            ("records_max", self.records_max),
            ("bytes_max", self.bytes_max),
            ("span_max", self.span_max),
        ]
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use tidegate_config::stream::StreamKeys;

    use crate::cli::{Cli, Command};

    fn stream(arguments: &[&str]) -> StreamArgs {
        let all = ["tidegate", "stream"].iter().chain(arguments);
        match Cli::try_parse_from(all).expect("a command line").command {
            Command::Stream(stream) => *stream,
            other => panic!("not stream: {other:?}"),
        }
    }

    #[test]
    fn flags_become_keys_of_a_stream() {
        let flags = [
            "--from",
            "-",
            "--to",
            "postgres://db/shop",
            "--sql",
            "select $1",
            "--param",
            "/id",
            "--batch",
            "7",
            "--timeout",
            "5s",
            "--dead-letter",
            "dead.ndjson",
            "--kafka",
            "a=b",
            "--follow",
        ];
        let streams = stream(&flags).streams().expect("a stream").streams;
        let keys = &streams[0].keys;
        assert_eq!((keys.name.as_str(), keys.batch, keys.timeout.as_secs()), ("stream", 7, 5));
        assert_eq!((keys.exhausted, keys.follow), (OnExhausted::DeadLetter, true));
        assert_eq!(keys.kafka_properties.0, [("a".to_owned(), "b".to_owned())]);
    }

    #[test]
    fn invalid_flag_gets_the_error_of_the_key() {
        let errors = stream(&["--from", "a", "--to", "htp://x"]).streams().expect_err("no such sink");
        assert!(errors.contains("the command line") && errors.contains("did you mean http://?"), "{errors}");
    }

    #[test]
    fn every_key_of_a_stream_is_a_flag() {
        let help = <Cli as clap::CommandFactory>::command();
        let stream = help.find_subcommand("stream").expect("a command");
        let flags: Vec<String> = stream.get_arguments().filter_map(|flag| flag.get_long()).map(str::to_owned).collect();
        for key in StreamKeys::KEYS {
            let flag = match key.name {
                "kafka_properties" => "kafka".to_owned(),
                "sink_kafka_properties" => "sink-kafka".to_owned(),
                "dead_letter_kafka_properties" => "dead-letter-kafka".to_owned(),
                "record_headers" => "record-header".to_owned(),
                "params" => "param".to_owned(),
                "headers" => "header".to_owned(),
                key => key.replace('_', "-"),
            };
            assert!(flags.contains(&flag), "--{flag} is missing");
        }
    }

    #[test]
    fn kafka_group_needs_a_name() {
        let ends = ["--from", "kafka://localhost:9092/orders", "--to", "-"];
        let errors = stream(&ends).streams().expect_err("no name");
        assert!(errors.contains("add --name orders"), "{errors}");
        for more in [["--name", "orders"], ["--group", "orders"]] {
            assert!(stream(&[ends.as_slice(), &more].concat()).streams().is_ok(), "{more:?}");
        }
    }

    #[test]
    fn file_or_source_and_sink_are_required() {
        for arguments in [&["--from", "-"][..], &[], &["-c", "a.toml", "--from", "-", "--to", "-"], &["orders"]] {
            let all = ["tidegate", "stream"].iter().chain(arguments);
            assert!(Cli::try_parse_from(all).is_err(), "{arguments:?}");
        }
    }
}
