//! Kafka as the source and as the sink, with a real broker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Headers as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use rustix::process::Signal;
use tidegate_sandbox::kafka::Broker;

use crate::delivery_table::DeliveryTable;
use crate::http_server::{HttpServer, ReceivedRequest, Reply};
use crate::process::{Stream, TIMEOUT, TempFolder, assert_each_once_in_order, eventually, number, numbers, random};

/// Topics and a consumer group that no other test uses.
struct KafkaFixture {
    broker: &'static Broker,
    name: String,
}

impl KafkaFixture {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { broker: Broker::shared(), name: format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    /// Creates a topic and returns its URL.
    fn topic(&self, what: &str, partitions: u16) -> String {
        let topic = format!("{}-{what}", self.name);
        self.broker.create_topic(&topic, partitions, &[]).unwrap();
        format!("kafka://{}/{topic}", self.broker.bootstrap())
    }

    /// Fills a topic with records whose key is the one of their number.
    fn fill(&self, what: &str, range: std::ops::Range<u64>, keys: u64) {
        self.fill_with(what, range, keys, |line| number(line).0);
    }

    fn fill_with(&self, what: &str, range: std::ops::Range<u64>, keys: u64, key: fn(&str) -> String) {
        let lines = numbers(range, keys);
        let records = lines.lines().map(|line| (key(line), line.to_owned()));
        self.broker.fill(&format!("{}-{what}", self.name), records).unwrap();
    }

    /// Reads this number of records of a topic: key, payload and header names.
    fn read(&self, what: &str, count: usize) -> Vec<(String, String, Vec<String>)> {
        let mut config = self.broker.client_config();
        config.set("group.id", "reader").set("enable.auto.commit", "false");
        let reader: BaseConsumer = config.create().unwrap();
        let topic = format!("{}-{what}", self.name);
        let metadata = reader.fetch_metadata(Some(&topic), TIMEOUT).unwrap();
        let mut all = TopicPartitionList::new();
        for partition in metadata.topics()[0].partitions() {
            all.add_partition_offset(&topic, partition.id(), Offset::Beginning).unwrap();
        }
        reader.assign(&all).unwrap();
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        let (mut records, deadline) = (Vec::new(), Instant::now() + TIMEOUT);
        while records.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} records", records.len());
            let Some(Ok(message)) = reader.poll(Duration::from_millis(100)) else { continue };
            let headers = message.headers().map(|headers| headers.iter().map(|header| header.key.to_owned()).collect());
            records.push((text(message.key()), text(message.payload()), headers.unwrap_or_default()));
        }
        records
    }

    /// The sum of the committed offsets of the group.
    fn committed(&self, what: &str, partitions: i32) -> i64 {
        let mut config = self.broker.client_config();
        let client: BaseConsumer = config.set("group.id", self.group()).create().unwrap();
        let mut partitions_of_topic = TopicPartitionList::new();
        partitions_of_topic.add_partition_range(&format!("{}-{what}", self.name), 0, partitions - 1);
        let fetch = || client.committed_offsets(partitions_of_topic.clone(), TIMEOUT);
        let offsets = std::iter::repeat_with(fetch).take(100).find_map(Result::ok).unwrap();
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
        offsets.elements().iter().map(|at| offset(at.offset())).sum()
    }

    /// The end offset of each partition of a topic.
    fn ends(&self, what: &str, partitions: i32) -> Vec<i64> {
        let client: BaseConsumer = self.broker.client_config().create().unwrap();
        let topic = format!("{}-{what}", self.name);
        let end = |number| client.fetch_watermarks(&topic, number, TIMEOUT).unwrap().1;
        (0..partitions).map(end).collect()
    }

    /// Increases the number of partitions of a topic.
    fn grow(&self, what: &str, partitions: usize) {
        let admin: AdminClient<DefaultClientContext> = self.broker.client_config().create().unwrap();
        let topic = format!("{}-{what}", self.name);
        let options = AdminOptions::new().operation_timeout(Some(TIMEOUT)).request_timeout(Some(TIMEOUT));
        let more = [NewPartitions::new(&topic, partitions)];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(admin.create_partitions(&more, &options)).unwrap().remove(0).unwrap();
        let client: BaseConsumer = self.broker.client_config().create().unwrap();
        eventually("the partitions have leaders", || {
            let metadata = client.fetch_metadata(Some(&topic), TIMEOUT).unwrap();
            let with_leader = metadata.topics()[0].partitions().iter().filter(|partition| partition.leader() >= 0);
            with_leader.count() == partitions
        });
    }

    /// Deletes the records before this offset of the first partition, as retention does.
    fn cut(&self, what: &str, before: i64) {
        let admin: AdminClient<DefaultClientContext> = self.broker.client_config().create().unwrap();
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&format!("{}-{what}", self.name), 0, Offset::Offset(before)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(admin.delete_records(&offsets, &AdminOptions::new())).unwrap();
    }

    fn group(&self) -> String {
        format!("group-{}", self.name)
    }

    /// Options of a source. The static membership lets a new process replace an earlier one immediately.
    fn from(&self, url: &str) -> Vec<String> {
        let group = self.group();
        ["--from", url, "--group", &group, "--kafka", "group.instance.id=one", "--kafka", "fetch.wait.max.ms=10"]
            .map(str::to_owned)
            .into()
    }
}

fn with<'a>(flags: Vec<String>, more: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    flags.into_iter().chain(more.into_iter().map(str::to_owned)).collect()
}

#[test]
fn topic_to_topic_in_order_per_key() {
    let kafka = KafkaFixture::new();
    let (from, to) = (kafka.topic("in", 1), kafka.topic("out", 2));
    // The key of the order is in the value.
    kafka.fill_with("in", 0..3_000, 30, |line| number(line).1.to_string());
    let stream = Stream::start(with(kafka.from(&from), ["--key", "/k", "--to", &to]));
    let records = kafka.read("out", 3_000);
    eventually("all is committed", || kafka.committed("in", 1) == 3_000);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    let values: Vec<String> = records.iter().map(|(_, value, _)| value.clone()).collect();
    assert_each_once_in_order(&values, 0..3_000);
    assert!(records.iter().all(|(key, value, _)| *key == number(value).0));
}

#[test]
fn topic_to_postgres_with_partition_and_offset() {
    let (kafka, deliveries) = (KafkaFixture::new(), DeliveryTable::new());
    let from = kafka.topic("in", 3);
    kafka.fill("in", 0..1_000, 25);
    let table = deliveries.fixture.create_table("p int, o bigint, k text, v jsonb, primary key (p, o)");
    let sql = format!("insert into {table} values ($1, $2, $3, $4)");
    let url = deliveries.url();
    let params = ["partition", "position", "key", "value"].into_iter().flat_map(|part| ["--param", part]);
    let stream = Stream::start(with(kafka.from(&from), ["--to", &url, "--sql", &sql].into_iter().chain(params)));
    let count = || deliveries.fixture.server.value(&format!("select count(*) from {table} where v ->> 'k' = k"));
    eventually("all rows arrive", || count() == "1000");
    eventually("all is committed", || kafka.committed("in", 3) == 1_000);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
}

#[test]
fn dead_letter_is_written_before_the_commit() {
    let kafka = KafkaFixture::new();
    let (from, dead) = (kafka.topic("in", 1), kafka.topic("dead", 1));
    kafka.fill("in", 0..10, 2);
    let server =
        HttpServer::start(|request| if number(&request.body).1 == 4 { Reply::Status(400) } else { Reply::Status(200) });
    let url = server.url("/");
    // The order uses another key than the one of the record, which the dead letter has.
    let stream = Stream::start(with(kafka.from(&from), ["--key", "/n", "--to", &url, "--dead-letter", &dead]));
    let letters = kafka.read("dead", 1);
    eventually("all is committed", || kafka.committed("in", 1) == 10);
    stream.signal(Signal::INT);
    stream.wait().expect(3);
    let (key, value, headers) = &letters[0];
    assert_eq!((key.as_str(), number(value).1), ("k0", 4));
    assert!(headers.iter().any(|header| header == "tidegate-error"), "{headers:?}");
}

#[test]
fn sigterm_finishes_and_commits_records_in_flight() {
    let kafka = KafkaFixture::new();
    let from = kafka.topic("in", 2);
    let server = HttpServer::start(|_| Reply::Status(200));
    let url = server.url("/");
    let flags = || with(kafka.from(&from), ["--to", &url, "--concurrency", "10"]);
    for part in 0..3 {
        kafka.fill("in", part * 1_000..(part + 1) * 1_000, 20);
        let (stream, before) = (Stream::start(flags()), server.requests().len());
        eventually("some records arrive", || server.requests().len() >= before + 30);
        stream.signal(Signal::TERM);
        stream.wait().expect(0);
    }
    let stream = Stream::start(flags());
    eventually("all arrive", || server.requests().len() >= 3_000);
    eventually("all is committed", || kafka.committed("in", 2) == 3_000);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    assert_each_once_in_order(&server.bodies(), 0..3_000);
}

#[test]
fn topic_is_delivered_at_least_once_despite_kills() {
    let mut random = random();
    let (kafka, deliveries) = (KafkaFixture::new(), DeliveryTable::new());
    let from = kafka.topic("in", 3);
    kafka.fill("in", 0..3_000, 30);
    let (url, sql) = (deliveries.url(), deliveries.sql());
    let flags = || with(kafka.from(&from), ["--to", &url, "--sql", &sql, "--param", "/k", "--param", "/n"]);
    for _ in 0..4 {
        let (stream, until) = (Stream::start(flags()), deliveries.distinct() + random.u64(1..700));
        eventually("more records arrive", || deliveries.distinct() >= until.min(3_000));
        stream.kill9();
    }
    let stream = Stream::start(flags());
    eventually("all arrive", || deliveries.distinct() == 3_000);
    eventually("all is committed", || kafka.committed("in", 3) == 3_000);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    deliveries.check(0..3_000);
}

/// A second process with the same command: partitions are rebalanced, no record is lost, and keys stay in order.
#[test]
fn second_process_shares_and_returns_partitions() {
    let kafka = KafkaFixture::new();
    let from = kafka.topic("in", 4);
    let server = HttpServer::start(|_| Reply::Status(200));
    let (url, group) = (server.url("/"), kafka.group());
    let start = |instance: &str| {
        let instance = format!("instance={instance}");
        let flags = ["--from", &from, "--group", &group, "--to", &url, "--header", &instance, "--concurrency", "4"];
        let kafka = ["--kafka", "fetch.wait.max.ms=10", "--kafka", "session.timeout.ms=6000"];
        Stream::start(flags.iter().chain(&kafka))
    };
    let seen_of =
        |instance: &str| server.requests().iter().filter(|request| request.header("instance") == instance).count();
    let first = start("first");
    kafka.fill("in", 0..400, 40);
    eventually("the first process has all records", || kafka.committed("in", 4) == 400);
    assert_eq!(seen_of("first"), 400);
    let second = start("second");
    let mut filled = 400;
    eventually("the second process has a partition", || {
        kafka.fill("in", filled..filled + 40, 40);
        filled += 40;
        seen_of("second") > 0
    });
    let before = seen_of("second");
    kafka.fill("in", filled..filled + 400, 40);
    filled += 400;
    eventually("both processes are done", || kafka.committed("in", 4) == filled as i64);
    assert!(seen_of("second") > before && seen_of("first") > 400, "both processes have a partition");
    first.signal(Signal::TERM);
    first.wait().expect(0);
    kafka.fill("in", filled..filled + 400, 40);
    filled += 400;
    eventually("the second process has all records", || kafka.committed("in", 4) == filled as i64);
    second.signal(Signal::TERM);
    second.wait().expect(0);
    // The order is kept and no record is repeated, because revoked lanes were finished and committed.
    assert_each_once_in_order(&server.bodies(), 0..filled);
}

/// The stream may be joining its group or waiting for its assignment, where the client used to hang occasionally.
#[test]
fn sigterm_at_a_random_time_ends_the_stream() {
    let mut random = random();
    let (kafka, server) = (KafkaFixture::new(), HttpServer::start(|_| Reply::Status(200)));
    let (from, url) = (kafka.topic("in", 2), server.url("/"));
    kafka.fill("in", 0..100, 20);
    for _ in 0..20 {
        let stream = Stream::start(with(kafka.from(&from), ["--to", &url]));
        // The pause is the workload: the signal arrives at a random time.
        std::thread::sleep(Duration::from_millis(random.u64(..600)));
        stream.signal(Signal::TERM);
        stream.wait();
    }
    let stream = Stream::start(with(kafka.from(&from), ["--to", &url]));
    eventually("all is committed", || kafka.committed("in", 2) == 100);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
}

#[test]
fn missing_source_topic_is_an_error() {
    let kafka = KafkaFixture::new();
    let folder = TempFolder::new();
    let from = format!("kafka://{}/no-such-topic", kafka.broker.bootstrap());
    let ended = Stream::run(with(kafka.from(&from), ["--to", "-", "--dead-letter", &folder.path("dead")])).expect(1);
    assert!(ended.errors.contains("topic does not exist"), "{}", ended.errors);
}

#[test]
fn missing_sink_topic_is_an_error() {
    let (kafka, folder) = (KafkaFixture::new(), TempFolder::new());
    let from = folder.write("in.ndjson", &numbers(0..1, 1));
    let to = format!("kafka://{}/{}-missing", kafka.broker.bootstrap(), kafka.name);
    let ended = Stream::run(["--from", &from, "--to", &to, "--attempts", "1"]).expect(1);
    assert!(ended.errors.contains("-missing does not exist"), "{}", ended.errors);
}

#[test]
fn added_partitions_are_read() {
    let (kafka, server) = (KafkaFixture::new(), HttpServer::start(|_| Reply::Status(200)));
    let from = kafka.topic("in", 1);
    kafka.fill("in", 0..100, 20);
    let url = server.url("/");
    // The client refreshes its metadata every five minutes by default.
    let refresh = "topic.metadata.refresh.interval.ms=200";
    let stream = Stream::start(with(kafka.from(&from), ["--to", &url, "--kafka", refresh]));
    eventually("the first partition is read", || server.requests().len() == 100);
    kafka.grow("in", 4);
    kafka.fill("in", 100..400, 60);
    let ends = kafka.ends("in", 4);
    assert!(ends[1..].iter().all(|end| *end > 0), "{ends:?}");
    eventually("all records are read", || server.requests().len() >= 400);
    eventually("all is committed", || kafka.committed("in", 4) == 400);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    let all: std::collections::BTreeSet<u64> = server.bodies().iter().map(|body| number(body).1).collect();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), (0..400).collect::<Vec<_>>());
}

/// The process stops for longer than its session, for example by SIGSTOP, a debugger or a live migration.
#[test]
fn stalled_process_commits_nothing_of_other_members() {
    let kafka = KafkaFixture::new();
    let from = kafka.topic("in", 4);
    kafka.fill("in", 0..1_200, 40);
    let server = HttpServer::start(|_| Reply::Status(200));
    let (url, group) = (server.url("/"), kafka.group());
    let start = |instance: &str| {
        let instance = format!("instance={instance}");
        let flags = ["--from", &from, "--group", &group, "--to", &url, "--header", &instance, "--rate", "100"];
        let limits = ["session.timeout.ms=6000", "max.poll.interval.ms=6000", "heartbeat.interval.ms=500"];
        Stream::start(flags.into_iter().chain(limits.into_iter().flat_map(|limit| ["--kafka", limit])))
    };
    let seen_of =
        |instance: &str| server.requests().iter().filter(|request| request.header("instance") == instance).count();
    let (first, second) = (start("first"), start("second"));
    eventually("both processes have a partition", || seen_of("first") > 20 && seen_of("second") > 20);
    let before = kafka.committed("in", 4);
    first.signal(Signal::STOP);
    // The partitions of the first move to the second when the session ends.
    eventually("the second process has all records", || kafka.committed("in", 4) == 1_200);
    assert!(before < 1_200, "the first process had no records left");
    first.signal(Signal::CONT);
    eventually("the session timeout is logged", || first.errors().contains("Consumer group session timed out"));
    eventually("the consequence is logged", || {
        first.errors().contains("records since the last commit will be processed again")
    });
    let mut filled = 1_200;
    let is_new = |request: &ReceivedRequest| request.header("instance") == "first" && number(&request.body).1 >= 1_200;
    eventually("the first process has a partition again", || {
        kafka.fill("in", filled..filled + 1, 40);
        filled += 1;
        server.requests().iter().any(is_new)
    });
    eventually("all is committed", || kafka.committed("in", 4) == filled as i64);
    first.signal(Signal::TERM);
    first.wait().expect(0);
    assert_eq!(kafka.committed("in", 4), filled as i64, "a stale commit was accepted");
    second.signal(Signal::TERM);
    second.wait().expect(0);
    let all: std::collections::BTreeSet<u64> = server.bodies().iter().map(|body| number(body).1).collect();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), (0..filled).collect::<Vec<_>>());
    assert_first_deliveries_in_order(&server.bodies());
}

fn assert_first_deliveries_in_order(bodies: &[String]) {
    let mut seen = std::collections::BTreeSet::new();
    let mut newest = std::collections::BTreeMap::<String, u64>::new();
    for (key, n) in bodies.iter().map(|body| number(body)) {
        if seen.insert(n) {
            let before = newest.insert(key.clone(), n);
            assert!(before.is_none_or(|before| before < n), "{key}: {n} first came after {before:?}");
        }
    }
}

/// Records may be removed by retention or by DeleteRecords. The log reports how many, wherever the stream continues.
#[test]
fn records_removed_before_the_read_are_counted() {
    for (start, skipped, done) in [("earliest", 50, 40), ("latest", 90, 0)] {
        let kafka = KafkaFixture::new();
        let from = kafka.topic("in", 1);
        let flags = || with(kafka.from(&from), ["--to", "-", "--start", start]);
        let first = Stream::start(with(kafka.from(&from), ["--to", "-"]));
        kafka.fill("in", 0..10, 1);
        eventually("the first records are committed", || kafka.committed("in", 1) == 10);
        first.signal(Signal::TERM);
        first.wait().expect(0);
        kafka.fill("in", 10..100, 1);
        kafka.cut("in", 60);
        let stream = Stream::start(flags());
        let line = format!("from=10 to={} skipped={skipped}", 10 + skipped);
        eventually("the gap is logged", || stream.errors().contains(&line));
        kafka.fill("in", 100..110, 1);
        eventually("the other records are done", || kafka.committed("in", 1) == 110);
        stream.signal(Signal::TERM);
        assert_each_once_in_order(&stream.wait().expect(0).lines, 100 - done..110);
    }
}

/// The stream is joining its group, or its topic does not exist. A lag of zero would look complete.
#[test]
fn lag_without_a_partition_is_null() {
    let kafka = KafkaFixture::new();
    let base = "[auth]\nmethod = \"trust\"\n[admin]\nusers = [\"postgres\"]\n\
                [databases.none]\nhost = \"127.0.0.1\"\nport = 1\n";
    let (broker, name) = (kafka.broker.bootstrap(), &kafka.name);
    let stream =
        format!("[[streams]]\nname = \"a\"\nfrom = \"kafka://{broker}/{name}-missing\"\nto = \"command:cat\"\n");
    let gateway = tidegate_testkit::Gateway::start(env!("CARGO_BIN_EXE_tidegate"), &format!("{base}{stream}"));
    eventually("the stream was restarted", || gateway.show("STREAMS")[0]["restarts"] != "0");
    assert_eq!(gateway.show("STREAMS")[0]["lag"], "\\N");
}

/// Records behind it are delivered when the transaction has ended, and count until then.
#[test]
fn records_behind_an_open_transaction_are_lag() {
    let kafka = KafkaFixture::new();
    let from = kafka.topic("in", 1);
    let topic = format!("{}-in", kafka.name);
    let mut config = kafka.broker.client_config();
    let producer: BaseProducer = config.set("transactional.id", &topic).create().unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::<str, str>::to(&topic).payload("{}")).map_err(|(error, _)| error).unwrap();
    producer.flush(TIMEOUT).unwrap();
    kafka.fill("in", 0..2, 1);
    let base = "[auth]\nmethod = \"trust\"\n[admin]\nusers = [\"postgres\"]\n\
                [databases.none]\nhost = \"127.0.0.1\"\nport = 1\n";
    let stream =
        format!("[[streams]]\nname = \"a\"\nfrom = \"{from}\"\nto = \"command:while read -r _; do echo ok; done\"\n");
    let gateway = tidegate_testkit::Gateway::start(env!("CARGO_BIN_EXE_tidegate"), &format!("{base}{stream}"));
    eventually("three records wait", || gateway.show("STREAMS")[0]["lag"] == "3");
    producer.commit_transaction(TIMEOUT).unwrap();
    eventually("all records are delivered", || gateway.show("STREAMS")[0]["done"] == "3");
    eventually("the commit marker is passed", || gateway.show("STREAMS")[0]["lag"] == "0");
}

#[test]
fn halted_partition_does_not_block_others() {
    let kafka = KafkaFixture::new();
    let from = kafka.topic("in", 3);
    kafka.fill("in", 0..300, 30);
    let ends = kafka.ends("in", 3);
    assert!(ends.iter().all(|end| *end > 0), "{ends:?}");
    // The first record of the first key is rejected.
    let server = HttpServer::start(|request| Reply::Status(if envelope(&request.body).0 == 0 { 422 } else { 200 }));
    let url = server.url("/");
    let stream =
        Stream::start(with(kafka.from(&from), ["--to", &url, "--form", "envelope", "--exhausted", "halt_lane"]));
    eventually("the record is rejected", || stream.errors().contains("lane halted"));
    let rejected = server.bodies().iter().map(|body| envelope(body)).find(|(n, ..)| *n == 0).unwrap();
    let records_of_others: i64 = ends.iter().sum::<i64>() - ends[rejected.1];
    let seen_of_others = || server.bodies().iter().filter(|body| envelope(body).1 != rejected.1).count();
    eventually("the other partitions are delivered", || seen_of_others() as i64 == records_of_others);
    // Only the records before the rejected one are committed in its partition.
    eventually("the other partitions are committed", || kafka.committed("in", 3) == records_of_others + rejected.2);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    assert_eq!(kafka.committed("in", 3), records_of_others + rejected.2);
}

/// The number, the partition and the position in an envelope.
fn envelope(body: &str) -> (u64, usize, i64) {
    let value: serde_json::Value = serde_json::from_str(body).unwrap();
    let number = |name: &str| value[name].as_u64().unwrap();
    (value["value"]["n"].as_u64().unwrap(), number("partition") as usize, number("position") as i64)
}

#[test]
fn undecodable_value_is_dead_lettered_unchanged() {
    let (kafka, folder) = (KafkaFixture::new(), TempFolder::new());
    let from = kafka.topic("in", 1);
    kafka.fill("in", 0..10, 2);
    kafka.broker.fill(&format!("{}-in", kafka.name), [("k", "no json")]).unwrap();
    kafka.fill("in", 10..20, 2);
    let dead = folder.path("dead");
    let stream = Stream::start(with(kafka.from(&from), ["--key", "/k", "--to", "-", "--dead-letter", &dead]));
    eventually("all is committed", || kafka.committed("in", 1) == 21);
    stream.signal(Signal::TERM);
    let ended = stream.wait().expect(3);
    assert_each_once_in_order(&ended.lines, 0..20);
    let letter: serde_json::Value = serde_json::from_str(folder.read("dead").trim()).unwrap();
    assert_eq!((&letter["cause"], &letter["value"]), (&"undecodable".into(), &"no json".into()));
    assert_eq!((&letter["position"], &letter["key"]), (&10.into(), &"k".into()));
}
