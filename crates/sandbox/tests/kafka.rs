//! The life cycle of a real Kafka broker.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use tidegate_sandbox::kafka::{Broker, Error};

/// The payloads of the first `count` records of the topic, by key.
fn read(broker: &Broker, topic: &str, count: usize) -> BTreeMap<String, Vec<String>> {
    let mut config = broker.client_config();
    config.set("group.id", "reader").set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let mut read: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
    // A poll also returns nothing after a rebalance.
    let mut polls = std::iter::repeat_with(|| consumer.poll(Duration::from_secs(1))).take(60 + count).flatten();
    for _ in 0..count {
        let message = polls.next().unwrap().unwrap();
        read.entry(text(message.key())).or_default().push(text(message.payload()));
    }
    read
}

#[test]
fn filled_records_are_read_and_folder_is_removed() {
    let broker = Broker::builder().start().unwrap();
    broker.create_topic("orders", 3, &[]).unwrap();
    broker.fill("orders", (0..100).map(|n| (format!("key-{}", n % 5), n.to_string()))).unwrap();
    let read = read(&broker, "orders", 100);
    for (key, payloads) in read {
        let expected: Vec<String> =
            (0..100).filter(|n| format!("key-{}", n % 5) == key).map(|n| n.to_string()).collect();
        assert_eq!(payloads, expected);
    }
    let (pid, home) = (broker.pid(), broker.home().to_owned());
    broker.stop().unwrap();
    assert!(!home.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn records_survive_a_kill() {
    let mut broker = Broker::builder().start().unwrap();
    broker.create_topic("kept", 1, &[]).unwrap();
    broker.fill("kept", [("a", "1"), ("a", "2")]).unwrap();
    let bootstrap = broker.bootstrap();
    broker.kill9().unwrap();
    broker.restart().unwrap();
    assert_eq!(broker.bootstrap(), bootstrap);
    assert_eq!(read(&broker, "kept", 2)["a"], ["1", "2"]);
}

#[test]
fn broker_errors_are_reported() {
    let failed = Broker::builder().setting("log.segment.bytes", "many").start();
    let Err(Error::Format { output }) = failed else {
        panic!("Kafka accepts only numbers");
    };
    assert!(output.contains("log.segment.bytes"), "{output}");
    let broker = Broker::shared();
    broker.create_topic("twice", 1, &[]).unwrap();
    let Err(Error::Topic { topic, .. }) = broker.create_topic("twice", 1, &[]) else {
        panic!("the topic exists");
    };
    assert_eq!(topic, "twice");
}

/// Set in the copy of this test that plays the killed owner.
const OWNER: &str = "TIDEGATE_SANDBOX_TEST_OWNER";

#[test]
fn broker_stops_when_its_owner_is_killed() {
    if std::env::var_os(OWNER).is_some() {
        let broker = Broker::builder().start().unwrap();
        println!("\nhome={}\npid={}", broker.home().display(), broker.pid());
        std::process::abort();
    }
    let test = std::env::current_exe().unwrap();
    let copy = Command::new(test)
        .args(["--exact", "broker_stops_when_its_owner_is_killed", "--nocapture"])
        .env(OWNER, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&copy.stdout).into_owned();
    let value = |name: &str| output.lines().find_map(|line| line.split_once(name)).expect(&output).1.to_owned();
    let (home, pid) = (value("home="), value("pid="));
    while Path::new(&home).exists() || is_kafka(&pid) {
        std::thread::yield_now();
    }
}

/// Whether the process runs and is not a zombie, which has no command line.
fn is_kafka(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("kafka.Kafka"))
}
