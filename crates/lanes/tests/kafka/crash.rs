//! Kills consumers at random times and checks a ledger afterwards.
//!
//! The consumer is this test binary in a process of its own. For each record it appends a line to the ledger, which
//! survives a kill, and then finishes the record.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::producer::{BaseRecord, Producer};

use crate::fixtures::{KafkaFixture, LIMIT, key, settings, until};
use crate::member::GroupMember;

/// The settings of the consumer: brokers, group, topic, and the path of the ledger.
const CONSUMER: &str = "TIDEGATE_LANES_TEST_CONSUMER";
/// The number of kills. Default: 3.
const ROUNDS: &str = "TIDEGATE_LANES_KILL_ROUNDS";

const RECORDS: u64 = 6_000;
const KEYS: u64 = 60;
const PARTITIONS: u16 = 3;

/// LA-36: killed consumers lose no record and no order.
#[tokio::test(flavor = "multi_thread")]
async fn killed_consumers_lose_no_record_and_no_order() {
    if let Ok(task) = std::env::var(CONSUMER) {
        return consume(&task).await;
    }
    let rounds: u32 = std::env::var(ROUNDS).ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let fixture = KafkaFixture::new("killed", PARTITIONS);
    fixture.fill(0..RECORDS, KEYS);
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger");
    File::create(&ledger).unwrap();
    for _ in 0..rounds {
        let lines = lines(&ledger);
        let more = random.u64(1..(RECORDS - lines as u64 / 2).max(200) / 4);
        let mut consumer = start(&fixture, &ledger);
        until("some progress", || self::lines(&ledger) >= lines + more as usize || is_complete(&ledger)).await;
        consumer.kill().unwrap();
        consumer.wait().unwrap();
    }
    let committed = fixture.committed(i32::from(PARTITIONS));
    audit(&ledger, &committed);
    let mut last = start(&fixture, &ledger);
    until("all finished", || is_complete(&ledger)).await;
    let all = |fixture: &KafkaFixture| {
        fixture.committed(i32::from(PARTITIONS)).iter().flatten().sum::<i64>() == RECORDS as i64
    };
    until("all committed", || all(&fixture)).await;
    last.kill().unwrap();
    last.wait().unwrap();
    audit(&ledger, &fixture.committed(i32::from(PARTITIONS)));
}

fn start(fixture: &KafkaFixture, ledger: &Path) -> Child {
    let task = [&fixture.broker.bootstrap(), &fixture.group, &fixture.topic, ledger.to_str().unwrap()].join("\n");
    let name = "crash::killed_consumers_lose_no_record_and_no_order";
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CONSUMER, task)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The consumer. Runs until it is killed or its parent has gone.
async fn consume(task: &str) {
    let [brokers, group, topic, ledger] = task.split('\n').collect::<Vec<_>>()[..] else { panic!("four settings") };
    let ledger = Arc::new(Mutex::new(File::options().append(true).open(ledger).unwrap()));
    // A static member takes over immediately instead of after the session timeout.
    let settings = settings(brokers, group).topic(topic).property("group.instance.id", "the-one");
    let member = GroupMember::with(
        settings.build().unwrap(),
        |builder| builder,
        move |delivery, partition_map| {
            let ledger = Arc::clone(&ledger);
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let record = &delivery.record;
                let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
                let partition = partition_map.partition(record.lane()).unwrap().number;
                let line =
                    format!("{} {} {partition} {}\n", text(record.key()), text(record.payload()), record.position());
                ledger.lock().unwrap().write_all(line.as_bytes()).unwrap();
                delivery.finish();
            }
        },
    );
    let gone = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    gone.await.unwrap().unwrap();
    drop(member);
    std::process::exit(1);
}

fn lines(ledger: &Path) -> usize {
    fs::read(ledger).unwrap().iter().filter(|byte| **byte == b'\n').count()
}

fn is_complete(ledger: &Path) -> bool {
    lines(ledger) as u64 >= RECORDS
        && entries(ledger).iter().map(|entry| entry.number).collect::<HashSet<_>>().len() as u64 == RECORDS
}

struct Entry {
    key: String,
    number: u64,
    partition: i32,
    offset: i64,
}

fn entries(ledger: &Path) -> Vec<Entry> {
    let entry = |line: String| {
        let words: Vec<&str> = line.split(' ').collect();
        let &[key, number, partition, offset] = &words[..] else { panic!("incomplete line: {line}") };
        let key = key.to_owned();
        Entry {
            key,
            number: number.parse().unwrap(),
            partition: partition.parse().unwrap(),
            offset: offset.parse().unwrap(),
        }
    };
    BufReader::new(File::open(ledger).unwrap()).lines().map(|line| entry(line.unwrap())).collect()
}

/// Checks that first deliveries of each key are in order and that committed offsets are in the ledger.
fn audit(ledger: &Path, committed: &[Option<i64>]) {
    let mut next: HashMap<String, u64> = HashMap::new();
    let mut done: HashSet<(i32, i64)> = HashSet::new();
    for entry in entries(ledger) {
        let first = entry.key.strip_prefix("key-").unwrap().parse().unwrap();
        let next = next.entry(entry.key.clone()).or_insert(first);
        assert!(entry.number <= *next, "{} of {} before {next}", entry.number, entry.key);
        assert_eq!(entry.key, key(entry.number, KEYS));
        if entry.number == *next {
            *next += KEYS;
        }
        done.insert((entry.partition, entry.offset));
    }
    for (partition, committed) in committed.iter().enumerate() {
        let partition = i32::try_from(partition).unwrap();
        let open = (0..committed.unwrap_or(0)).find(|offset| !done.contains(&(partition, *offset)));
        assert_eq!(open, None, "committed {committed:?} of partition {partition}");
    }
}

/// LA-39: records of an open transaction of a killed producer are not delivered; records of its successor are delivered
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn aborted_transaction_is_not_delivered() {
    let fixture = KafkaFixture::new("cut-off", 1);
    let properties = [("transactional.id", fixture.topic.as_str()), ("transaction.timeout.ms", "5000")];
    let send = |producer: &rdkafka::producer::BaseProducer, numbers: std::ops::Range<u64>| {
        for number in numbers {
            let payload = number.to_string();
            producer
                .send(BaseRecord::to(&fixture.topic).key("key").payload(&payload))
                .map_err(|(error, _)| error)
                .unwrap();
        }
    };
    // Fenced by the next producer with the same transactional id, in the middle of a transaction.
    let cut_off = fixture.producer(&properties);
    cut_off.init_transactions(LIMIT).unwrap();
    cut_off.begin_transaction().unwrap();
    send(&cut_off, 0..10);
    cut_off.flush(LIMIT).unwrap();
    let next = fixture.producer(&properties);
    next.init_transactions(LIMIT).unwrap();
    next.begin_transaction().unwrap();
    send(&next, 0..20);
    next.commit_transaction(LIMIT).unwrap();
    let audit = crate::audit::Audit::new();
    let member = GroupMember::audited(fixture.source(), 0, &audit, Duration::ZERO);
    until("all finished", || audit.count() == 20).await;
    // 10 aborted records, 20 committed ones, and a control record behind each.
    until("end committed", || fixture.committed(1) == [Some(32)]).await;
    member.stop().await;
    audit.assert_all(0..20);
    assert_eq!(audit.duplicates(), 0);
}
