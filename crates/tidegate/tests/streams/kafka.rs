//! Kafka on either side, with a real broker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Headers as _;
use rdkafka::{Offset, TopicPartitionList};
use rustix::process::Signal;
use tidegate_sandbox::kafka::Broker;

use crate::ledger::Ledger;
use crate::process::{Folder, LIMIT, Stream, assert_each_once_in_order, eventually, number, numbers, random};
use crate::web::{Answer, Seen, Web};

/// Topics and a group that no other test knows.
struct World {
    broker: &'static Broker,
    name: String,
}

impl World {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { broker: Broker::shared(), name: format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    /// Makes a topic; its URL.
    fn topic(&self, what: &str, partitions: u16) -> String {
        let topic = format!("{}-{what}", self.name);
        self.broker.create_topic(&topic, partitions, &[]).unwrap();
        format!("kafka://{}/{topic}", self.broker.bootstrap())
    }

    /// Fills a topic with records whose key is that of their number.
    fn fill(&self, what: &str, range: std::ops::Range<u64>, keys: u64) {
        self.fill_with(what, range, keys, |line| number(line).0);
    }

    fn fill_with(&self, what: &str, range: std::ops::Range<u64>, keys: u64, key: fn(&str) -> String) {
        let lines = numbers(range, keys);
        let records = lines.lines().map(|line| (key(line), line.to_owned()));
        self.broker.fill(&format!("{}-{what}", self.name), records).unwrap();
    }

    /// So many records of a topic: key, payload, names of headers.
    fn read(&self, what: &str, count: usize) -> Vec<(String, String, Vec<String>)> {
        let mut config = self.broker.client_config();
        config.set("group.id", "reader").set("enable.auto.commit", "false");
        let reader: BaseConsumer = config.create().unwrap();
        let topic = format!("{}-{what}", self.name);
        let metadata = reader.fetch_metadata(Some(&topic), LIMIT).unwrap();
        let mut all = TopicPartitionList::new();
        for partition in metadata.topics()[0].partitions() {
            all.add_partition_offset(&topic, partition.id(), Offset::Beginning).unwrap();
        }
        reader.assign(&all).unwrap();
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        let (mut records, deadline) = (Vec::new(), Instant::now() + LIMIT);
        while records.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} records", records.len());
            let Some(Ok(message)) = reader.poll(Duration::from_millis(100)) else { continue };
            let headers = message.headers().map(|headers| headers.iter().map(|header| header.key.to_owned()).collect());
            records.push((text(message.key()), text(message.payload()), headers.unwrap_or_default()));
        }
        records
    }

    /// The sum of the group's committed offsets.
    fn committed(&self, what: &str, partitions: i32) -> i64 {
        let mut config = self.broker.client_config();
        let asking: BaseConsumer = config.set("group.id", self.group()).create().unwrap();
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(&format!("{}-{what}", self.name), 0, partitions - 1);
        let ask = || asking.committed_offsets(asked.clone(), LIMIT);
        let answer = std::iter::repeat_with(ask).take(100).find_map(Result::ok).unwrap();
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
        answer.elements().iter().map(|at| offset(at.offset())).sum()
    }

    /// Where the partitions of a topic end.
    fn ends(&self, what: &str, partitions: i32) -> Vec<i64> {
        let asking: BaseConsumer = self.broker.client_config().create().unwrap();
        let topic = format!("{}-{what}", self.name);
        let end = |number| asking.fetch_watermarks(&topic, number, LIMIT).unwrap().1;
        (0..partitions).map(end).collect()
    }

    /// Gives a topic more partitions.
    fn grow(&self, what: &str, partitions: usize) {
        let admin: AdminClient<DefaultClientContext> = self.broker.client_config().create().unwrap();
        let topic = format!("{}-{what}", self.name);
        let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
        let more = [NewPartitions::new(&topic, partitions)];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(admin.create_partitions(&more, &options)).unwrap().remove(0).unwrap();
        let asking: BaseConsumer = self.broker.client_config().create().unwrap();
        eventually("the partitions are led", || {
            let metadata = asking.fetch_metadata(Some(&topic), LIMIT).unwrap();
            let led = metadata.topics()[0].partitions().iter().filter(|partition| partition.leader() >= 0);
            led.count() == partitions
        });
    }

    /// Removes what stands before this offset of the first partition, as retention does.
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

    /// Flags for a source; a member of that name takes the place of an earlier one of the same name at once.
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
fn from_topic_to_topic_in_order_per_key() {
    let world = World::new();
    let (from, to) = (world.topic("in", 1), world.topic("out", 2));
    // The keys that order them here are inside of the values.
    world.fill_with("in", 0..3_000, 30, |line| number(line).1.to_string());
    let stream = Stream::start(with(world.from(&from), ["--key", "/k", "--to", &to]));
    let records = world.read("out", 3_000);
    eventually("all is committed", || world.committed("in", 1) == 3_000);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    let values: Vec<String> = records.iter().map(|(_, value, _)| value.clone()).collect();
    assert_each_once_in_order(&values, 0..3_000);
    assert!(records.iter().all(|(key, value, _)| *key == number(value).0));
}

#[test]
fn from_a_topic_to_postgres_with_the_place_of_each_record() {
    let (world, ledger) = (World::new(), Ledger::new());
    let from = world.topic("in", 3);
    world.fill("in", 0..1_000, 25);
    let table = ledger.fixture.own_table("p int, o bigint, k text, v jsonb, primary key (p, o)");
    let sql = format!("insert into {table} values ($1, $2, $3, $4)");
    let url = ledger.url();
    let params = ["partition", "position", "key", "value"].into_iter().flat_map(|part| ["--param", part]);
    let stream = Stream::start(with(world.from(&from), ["--to", &url, "--sql", &sql].into_iter().chain(params)));
    let count = || ledger.fixture.server.value(&format!("select count(*) from {table} where v ->> 'k' = k"));
    eventually("all rows are there", || count() == "1000");
    eventually("all is committed", || world.committed("in", 3) == 1_000);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
}

#[test]
fn what_cannot_be_done_is_in_the_dead_letter_topic_before_it_is_committed() {
    let world = World::new();
    let (from, dead) = (world.topic("in", 1), world.topic("dead", 1));
    world.fill("in", 0..10, 2);
    let web = Web::start(|seen| if number(&seen.body).1 == 4 { Answer::Status(400) } else { Answer::Status(200) });
    let url = web.url("/");
    // Ordered by another key than their own, which is what the letter has.
    let stream = Stream::start(with(world.from(&from), ["--key", "/n", "--to", &url, "--dead-letter", &dead]));
    let letters = world.read("dead", 1);
    eventually("all is committed", || world.committed("in", 1) == 10);
    stream.signal(Signal::INT);
    stream.wait().expect(3);
    let (key, value, headers) = &letters[0];
    assert_eq!((key.as_str(), number(value).1), ("k0", 4));
    assert!(headers.iter().any(|header| header == "tidegate-error"), "{headers:?}");
}

#[test]
fn a_signal_lets_what_runs_end_and_the_next_run_repeats_nothing() {
    let world = World::new();
    let from = world.topic("in", 2);
    let web = Web::start(|_| Answer::Status(200));
    let url = web.url("/");
    let flags = || with(world.from(&from), ["--to", &url, "--concurrency", "10"]);
    for part in 0..3 {
        world.fill("in", part * 1_000..(part + 1) * 1_000, 20);
        let (stream, before) = (Stream::start(flags()), web.seen().len());
        eventually("some arrive", || web.seen().len() >= before + 30);
        stream.signal(Signal::TERM);
        stream.wait().expect(0);
    }
    let stream = Stream::start(flags());
    eventually("all arrive", || web.seen().len() >= 3_000);
    eventually("all is committed", || world.committed("in", 2) == 3_000);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    assert_each_once_in_order(&web.bodies(), 0..3_000);
}

#[test]
fn a_topic_whose_reader_is_killed_again_and_again_is_done_at_least_once() {
    let mut random = random();
    let (world, ledger) = (World::new(), Ledger::new());
    let from = world.topic("in", 3);
    world.fill("in", 0..3_000, 30);
    let (url, sql) = (ledger.url(), ledger.sql());
    let flags = || with(world.from(&from), ["--to", &url, "--sql", &sql, "--param", "/k", "--param", "/n"]);
    for _ in 0..4 {
        let (stream, until) = (Stream::start(flags()), ledger.distinct() + random.u64(1..700));
        eventually("some more arrive", || ledger.distinct() >= until.min(3_000));
        stream.kill9();
    }
    let stream = Stream::start(flags());
    eventually("all arrive", || ledger.distinct() == 3_000);
    eventually("all is committed", || world.committed("in", 3) == 3_000);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    ledger.audit(0..3_000);
}

/// The same command on another machine: partitions are shared out, nothing is lost, and keys stay in order.
#[test]
fn a_second_process_takes_its_part_and_gives_it_back() {
    let world = World::new();
    let from = world.topic("in", 4);
    let web = Web::start(|_| Answer::Status(200));
    let (url, group) = (web.url("/"), world.group());
    let start = |who: &str| {
        let who = format!("who={who}");
        let flags = ["--from", &from, "--group", &group, "--to", &url, "--header", &who, "--concurrency", "4"];
        let kafka = ["--kafka", "fetch.wait.max.ms=10", "--kafka", "session.timeout.ms=6000"];
        Stream::start(flags.iter().chain(&kafka))
    };
    let seen_of = |who: &str| web.seen().iter().filter(|seen| seen.header("who") == who).count();
    let first = start("first");
    world.fill("in", 0..400, 40);
    eventually("the first has all", || world.committed("in", 4) == 400);
    assert_eq!(seen_of("first"), 400);
    let second = start("second");
    let mut filled = 400;
    eventually("the second has a part", || {
        world.fill("in", filled..filled + 40, 40);
        filled += 40;
        seen_of("second") > 0
    });
    let before = seen_of("second");
    world.fill("in", filled..filled + 400, 40);
    filled += 400;
    eventually("both are done", || world.committed("in", 4) == filled as i64);
    assert!(seen_of("second") > before && seen_of("first") > 400, "both have a part");
    first.signal(Signal::TERM);
    first.wait().expect(0);
    world.fill("in", filled..filled + 400, 40);
    filled += 400;
    eventually("the second has all", || world.committed("in", 4) == filled as i64);
    second.signal(Signal::TERM);
    second.wait().expect(0);
    // In order, and nothing twice: lanes that left had come to rest and were committed.
    assert_each_once_in_order(&web.bodies(), 0..filled);
}

/// Also while it joins its group, or is about to get its partitions: the client waited for ever then, now and then.
#[test]
fn a_signal_at_any_moment_ends_the_stream() {
    let mut random = random();
    let (world, web) = (World::new(), Web::start(|_| Answer::Status(200)));
    let (from, url) = (world.topic("in", 2), web.url("/"));
    world.fill("in", 0..100, 20);
    for _ in 0..20 {
        let stream = Stream::start(with(world.from(&from), ["--to", &url]));
        std::thread::sleep(Duration::from_millis(random.u64(..600)));
        stream.signal(Signal::TERM);
        stream.wait();
    }
    let stream = Stream::start(with(world.from(&from), ["--to", &url]));
    eventually("all is committed", || world.committed("in", 2) == 100);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
}

#[test]
fn a_topic_that_is_not_there_ends_the_stream_with_its_reason() {
    let world = World::new();
    let folder = Folder::new();
    let from = format!("kafka://{}/no-such-topic", world.broker.bootstrap());
    let ended = Stream::run(with(world.from(&from), ["--to", "-", "--dead-letter", &folder.path("dead")])).expect(1);
    assert!(ended.errors.contains("a topic does not exist"), "{}", ended.errors);
}

#[test]
fn a_topic_that_is_not_there_is_named_by_the_stream_that_was_to_fill_it() {
    let (world, folder) = (World::new(), Folder::new());
    let from = folder.write("in.ndjson", &numbers(0..1, 1));
    let to = format!("kafka://{}/{}-nowhere", world.broker.bootstrap(), world.name);
    let ended = Stream::run(["--from", &from, "--to", &to, "--attempts", "1"]).expect(1);
    assert!(ended.errors.contains("-nowhere does not exist"), "{}", ended.errors);
}

#[test]
fn partitions_that_a_topic_gets_are_read_too() {
    let (world, web) = (World::new(), Web::start(|_| Answer::Status(200)));
    let from = world.topic("in", 1);
    world.fill("in", 0..100, 20);
    let url = web.url("/");
    // The client looks at its topics every five minutes, unless it is told otherwise.
    let often = "topic.metadata.refresh.interval.ms=200";
    let stream = Stream::start(with(world.from(&from), ["--to", &url, "--kafka", often]));
    eventually("the first partition is read", || web.seen().len() == 100);
    world.grow("in", 4);
    world.fill("in", 100..400, 60);
    let ends = world.ends("in", 4);
    assert!(ends[1..].iter().all(|end| *end > 0), "{ends:?}");
    eventually("all are read", || web.seen().len() >= 400);
    eventually("all is committed", || world.committed("in", 4) == 400);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    let all: std::collections::BTreeSet<u64> = web.bodies().iter().map(|body| number(body).1).collect();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), (0..400).collect::<Vec<_>>());
}

/// As by SIGSTOP, a debugger, or a machine that is moved: for longer than its session lasts.
#[test]
fn a_process_that_was_halted_comes_back_and_commits_nothing_of_what_others_have_meanwhile() {
    let world = World::new();
    let from = world.topic("in", 4);
    world.fill("in", 0..1_200, 40);
    let web = Web::start(|_| Answer::Status(200));
    let (url, group) = (web.url("/"), world.group());
    let start = |who: &str| {
        let who = format!("who={who}");
        let flags = ["--from", &from, "--group", &group, "--to", &url, "--header", &who, "--rate", "100"];
        let limits = ["session.timeout.ms=6000", "max.poll.interval.ms=6000", "heartbeat.interval.ms=500"];
        Stream::start(flags.into_iter().chain(limits.into_iter().flat_map(|limit| ["--kafka", limit])))
    };
    let seen_of = |who: &str| web.seen().iter().filter(|seen| seen.header("who") == who).count();
    let (first, second) = (start("first"), start("second"));
    eventually("both have a part", || seen_of("first") > 20 && seen_of("second") > 20);
    let before = world.committed("in", 4);
    first.signal(Signal::STOP);
    // What the first had comes to the second when the session is over.
    eventually("the second has all", || world.committed("in", 4) == 1_200);
    assert!(before < 1_200, "there was nothing to take over");
    first.signal(Signal::CONT);
    eventually("it is told", || first.errors().contains("Consumer group session timed out"));
    eventually("and what follows", || first.errors().contains("what was done since the last commit comes again"));
    let mut filled = 1_200;
    let is_new = |seen: &Seen| seen.header("who") == "first" && number(&seen.body).1 >= 1_200;
    eventually("it has a part again", || {
        world.fill("in", filled..filled + 1, 40);
        filled += 1;
        web.seen().iter().any(is_new)
    });
    eventually("all is committed", || world.committed("in", 4) == filled as i64);
    first.signal(Signal::TERM);
    first.wait().expect(0);
    assert_eq!(
        world.committed("in", 4),
        filled as i64,
        "what it had done before was not committed over what came later"
    );
    second.signal(Signal::TERM);
    second.wait().expect(0);
    let all: std::collections::BTreeSet<u64> = web.bodies().iter().map(|body| number(body).1).collect();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), (0..filled).collect::<Vec<_>>());
    assert_first_deliveries_in_order(&web.bodies());
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

/// By retention, or by whoever deletes records: the log says how many, wherever the stream goes on.
#[test]
fn records_that_were_removed_before_they_were_read_are_counted() {
    for (start, skipped, done) in [("earliest", 50, 40), ("latest", 90, 0)] {
        let world = World::new();
        let from = world.topic("in", 1);
        let flags = || with(world.from(&from), ["--to", "-", "--start", start]);
        let first = Stream::start(with(world.from(&from), ["--to", "-"]));
        world.fill("in", 0..10, 1);
        eventually("the first are committed", || world.committed("in", 1) == 10);
        first.signal(Signal::TERM);
        first.wait().expect(0);
        world.fill("in", 10..100, 1);
        world.cut("in", 60);
        let stream = Stream::start(flags());
        let line = format!("from=10 to={} skipped={skipped}", 10 + skipped);
        eventually("it is told", || stream.errors().contains(&line));
        world.fill("in", 100..110, 1);
        eventually("the rest is done", || world.committed("in", 1) == 110);
        stream.signal(Signal::TERM);
        assert_each_once_in_order(&stream.wait().expect(0).lines, 100 - done..110);
    }
}

/// As a stream that is about to join its group, or whose topic is not there: the console would say that nothing is left.
#[test]
fn a_stream_that_has_no_partition_has_no_lag_that_is_known() {
    let world = World::new();
    let base = "[auth]\nmethod = \"trust\"\n[admin]\nusers = [\"postgres\"]\n\
                [databases.none]\nhost = \"127.0.0.1\"\nport = 1\n";
    let (broker, name) = (world.broker.bootstrap(), &world.name);
    let stream =
        format!("[[streams]]\nname = \"a\"\nfrom = \"kafka://{broker}/{name}-nowhere\"\nto = \"command:cat\"\n");
    let gateway = tidegate_testkit::Gateway::start(env!("CARGO_BIN_EXE_tidegate"), &format!("{base}{stream}"));
    eventually("it was tried again", || gateway.show("STREAMS")[0]["restarts"] != "0");
    assert_eq!(gateway.show("STREAMS")[0]["lag"], "\\N");
}

#[test]
fn a_halted_partition_holds_up_no_other() {
    let world = World::new();
    let from = world.topic("in", 3);
    world.fill("in", 0..300, 30);
    let ends = world.ends("in", 3);
    assert!(ends.iter().all(|end| *end > 0), "{ends:?}");
    // The first record of the first key cannot be done.
    let web = Web::start(|seen| Answer::Status(if envelope(&seen.body).0 == 0 { 422 } else { 200 }));
    let url = web.url("/");
    let stream =
        Stream::start(with(world.from(&from), ["--to", &url, "--form", "envelope", "--exhausted", "halt_lane"]));
    eventually("it is refused", || stream.errors().contains("its lane is halted"));
    let poisoned = web.bodies().iter().map(|body| envelope(body)).find(|(n, ..)| *n == 0).unwrap();
    let of_others: i64 = ends.iter().sum::<i64>() - ends[poisoned.1];
    let seen_of_others = || web.bodies().iter().filter(|body| envelope(body).1 != poisoned.1).count();
    eventually("the others go on", || seen_of_others() as i64 == of_others);
    // Of its own partition, what stands before it is committed, and no more.
    eventually("the others are committed", || world.committed("in", 3) == of_others + poisoned.2);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    assert_eq!(world.committed("in", 3), of_others + poisoned.2);
}

/// The number, the partition and the position that an envelope holds.
fn envelope(body: &str) -> (u64, usize, i64) {
    let value: serde_json::Value = serde_json::from_str(body).unwrap();
    let of = |name: &str| value[name].as_u64().unwrap();
    (value["value"]["n"].as_u64().unwrap(), of("partition") as usize, of("position") as i64)
}

#[test]
fn a_value_without_the_key_that_orders_goes_to_the_dead_letter_as_it_came() {
    let (world, folder) = (World::new(), Folder::new());
    let from = world.topic("in", 1);
    world.fill("in", 0..10, 2);
    world.broker.fill(&format!("{}-in", world.name), [("k", "no json")]).unwrap();
    world.fill("in", 10..20, 2);
    let dead = folder.path("dead");
    let stream = Stream::start(with(world.from(&from), ["--key", "/k", "--to", "-", "--dead-letter", &dead]));
    eventually("all is committed", || world.committed("in", 1) == 21);
    stream.signal(Signal::TERM);
    let ended = stream.wait().expect(3);
    assert_each_once_in_order(&ended.lines, 0..20);
    let letter: serde_json::Value = serde_json::from_str(folder.read("dead").trim()).unwrap();
    assert_eq!((&letter["cause"], &letter["value"]), (&"undecodable".into(), &"no json".into()));
    assert_eq!((&letter["position"], &letter["key"]), (&10.into(), &"k".into()));
}
