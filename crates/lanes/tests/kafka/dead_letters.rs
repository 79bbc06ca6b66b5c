//! The dead-letter topic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, OwnedMessage};
use rdkafka::producer::{BaseRecord, Producer as _};
use tidegate_lanes::source::kafka::DeadLetterTopic;
use tidegate_lanes::{Delivery, ExhaustedAction, RecordFailure, RecordRetryPolicy};

use crate::fixtures::{KafkaFixture, LIMIT, share, until};
use crate::member::GroupMember;

/// The first `count` messages of a topic.
fn letters(fixture: &KafkaFixture, topic: &str, count: usize) -> Vec<OwnedMessage> {
    let mut config = fixture.broker.client_config();
    config.set("group.id", format!("letters-of-{topic}")).set("auto.offset.reset", "earliest");
    let reader: BaseConsumer = config.create().unwrap();
    reader.subscribe(&[topic]).unwrap();
    let polls = std::iter::repeat_with(|| reader.poll(Duration::from_secs(1))).take(60 + count);
    polls.flatten().map(|message| message.unwrap().detach()).take(count).collect()
}

fn headers(message: &OwnedMessage) -> BTreeMap<String, String> {
    let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
    message.headers().unwrap().iter().map(|header| (header.key.to_owned(), text(header.value))).collect()
}

fn twice() -> RecordRetryPolicy {
    RecordRetryPolicy { attempts_max: Some(2), wait_min: Duration::from_millis(1), ..RecordRetryPolicy::default() }
}

/// LA-10: dead letters are stored before the commit.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_stored_before_the_commit() {
    let fixture = KafkaFixture::new("letters", 1);
    let dead = KafkaFixture::new("dead", 1);
    fixture.fill(0..20, 20);
    let source = fixture.source();
    let topic = DeadLetterTopic::new(&fixture.broker.bootstrap(), &dead.topic, source.partition_map()).unwrap();
    let build = |builder: tidegate_lanes::SubscriptionBuilder<_, _>| {
        builder.retry(twice()).exhausted(ExhaustedAction::DeadLetter).dead_letter_queue(topic)
    };
    let member = GroupMember::with(source, build, |delivery, _| async {
        match delivery.record.position().0 {
            7 | 13 => delivery.fail(RecordFailure::new("rejected")),
            _ => delivery.finish(),
        }
    });
    until("all committed", || fixture.committed(1) == [Some(20)]).await;
    let counters = member.stop().await;
    assert_eq!((counters.done, counters.dead_lettered), (18, 2));
    for letter in letters(&dead, &dead.topic, 2) {
        let headers = headers(&letter);
        assert_eq!(headers["tidegate-topic"], fixture.topic);
        assert_eq!(headers["tidegate-partition"], "0");
        assert_eq!(Some(headers["tidegate-offset"].as_bytes()), letter.payload());
        assert_eq!(letter.key().unwrap(), format!("key-{}", headers["tidegate-offset"]).as_bytes());
        assert_eq!((&*headers["tidegate-attempts"], &*headers["tidegate-cause"]), ("2", "handler"));
        assert_eq!((&*headers["tidegate-error"], &*headers["tidegate-subscription"]), ("rejected", "test"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readable_record_is_not_too_large_for_a_letter() {
    let fixture = KafkaFixture::new("large", 1);
    let dead = KafkaFixture::new("dead", 1);
    // A broker accepts 1,048,588 bytes by default, and a client sends 1,000,000.
    let producer = fixture.producer(&[("message.max.bytes", "2000000")]);
    let payload = "x".repeat(1_030_000);
    let record = BaseRecord::to(&fixture.topic).key("large").payload(&payload);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(LIMIT).unwrap();
    let source = fixture.source();
    let topic = DeadLetterTopic::new(&fixture.broker.bootstrap(), &dead.topic, source.partition_map()).unwrap();
    let build = |builder: tidegate_lanes::SubscriptionBuilder<_, _>| {
        builder.retry(twice()).exhausted(ExhaustedAction::DeadLetter).dead_letter_queue(topic)
    };
    let refuse = |delivery: Delivery, _| async { delivery.fail(RecordFailure::permanent("rejected")) };
    let member = GroupMember::with(source, build, refuse);
    until("letter stored", || fixture.committed(1) == [Some(1)]).await;
    assert_eq!(member.stop().await.dead_lettered, 1);
    assert_eq!(letters(&dead, &dead.topic, 1)[0].payload(), Some(payload.as_bytes()));
}

/// LA-11: record is not committed while its letter fails.
#[tokio::test(flavor = "multi_thread")]
async fn record_is_not_committed_while_its_letter_fails() {
    let fixture = KafkaFixture::new("refused", 1);
    fixture.fill(0..10, 10);
    let source = fixture.source();
    // The producer reports a missing topic soon, and the subscription retries.
    let properties = [("message.timeout.ms", "200"), ("topic.metadata.propagation.max.ms", "100")];
    let missing = format!("{}-of-the-dead", fixture.topic);
    let topic =
        DeadLetterTopic::with_properties(&fixture.broker.bootstrap(), &missing, source.partition_map(), properties)
            .unwrap();
    let build = |builder: tidegate_lanes::SubscriptionBuilder<_, _>| {
        builder.retry(twice()).exhausted(ExhaustedAction::DeadLetter).dead_letter_queue(topic)
    };
    let member = GroupMember::with(source, build, |delivery, _| async {
        match delivery.record.position().0 {
            4 => delivery.fail(RecordFailure::permanent("never")),
            _ => delivery.finish(),
        }
    });
    until("letter refused twice", || member.metrics().counters.dead_letter_failures >= 2).await;
    until("others committed", || fixture.committed(1) == [Some(4)]).await;
    fixture.broker.create_topic(&missing, 1, &[]).unwrap();
    until("all committed", || fixture.committed(1) == [Some(10)]).await;
    member.stop().await;
    assert_eq!(headers(&letters(&fixture, &missing, 1)[0])["tidegate-offset"], "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_topic_keeps_the_origin_of_records() {
    let fixture = KafkaFixture::new("origin", 1);
    let later = KafkaFixture::new("later", 1);
    fixture.fill(0..5, 5);
    let source = fixture.source();
    let topic = DeadLetterTopic::new(&fixture.broker.bootstrap(), &later.topic, source.partition_map()).unwrap();
    let first = GroupMember::with(
        source,
        |builder| {
            builder.retry(RecordRetryPolicy::never()).exhausted(ExhaustedAction::DeadLetter).dead_letter_queue(topic)
        },
        |delivery, _| async { delivery.fail(RecordFailure::new("transient")) },
    );
    // The second subscription fails as well and sends to its own topic, until the third attempt.
    let source = later.source();
    let topic = DeadLetterTopic::new(&fixture.broker.bootstrap(), &later.topic, source.partition_map()).unwrap();
    let tries = Arc::new(AtomicU64::new(0));
    let counted = share(&tries);
    let second = GroupMember::with(
        source,
        |builder| {
            builder.retry(RecordRetryPolicy::never()).exhausted(ExhaustedAction::DeadLetter).dead_letter_queue(topic)
        },
        move |delivery, _| {
            let count = counted.fetch_add(1, Ordering::Relaxed);
            async move { if count < 5 { delivery.fail(RecordFailure::new("transient")) } else { delivery.finish() } }
        },
    );
    until("all returned and finished", || later.committed(1) == [Some(10)]).await;
    first.stop().await;
    assert_eq!(second.stop().await.done, 5);
    for letter in letters(&later, &later.topic, 10) {
        let headers = headers(&letter);
        assert_eq!((&headers["tidegate-topic"], letter.headers().unwrap().count()), (&fixture.topic, 8));
        assert_eq!(Some(headers["tidegate-offset"].as_bytes()), letter.payload());
    }
}

/// The limit of the topic leaves no room for the headers of a letter, or not even for the record.
#[tokio::test(flavor = "multi_thread")]
async fn letter_above_the_limit_of_its_topic_ends() {
    let fixture = KafkaFixture::new("tight", 1);
    let dead = KafkaFixture::with("dead", 1, &[("max.message.bytes", "2000")]);
    let payloads = ["x".repeat(1_900), "x".repeat(3_000), "small".to_owned()];
    fixture.produce_all(0, payloads.iter().enumerate().map(|(key, payload)| (Some(key.to_string()), Some(payload))));
    let source = fixture.source();
    let topic = DeadLetterTopic::new(&fixture.broker.bootstrap(), &dead.topic, source.partition_map()).unwrap();
    let build = |builder: tidegate_lanes::SubscriptionBuilder<_, _>| {
        builder.retry(twice()).exhausted(ExhaustedAction::DeadLetter).dead_letter_queue(topic)
    };
    let refuse = |delivery: Delivery, _| async { delivery.fail(RecordFailure::permanent("rejected")) };
    let member = GroupMember::with(source, build, refuse);
    until("one key is parked", || {
        let counters = member.handle.metrics().counters;
        (counters.dead_lettered, counters.keys_parked) == (2, 1)
    })
    .await;
    until("committed before the parked record", || fixture.committed(1) == [Some(1)]).await;
    assert_eq!(member.stop().await.dead_lettered, 2);
    let letters = letters(&dead, &dead.topic, 2);
    let bare = letters.iter().find(|letter| letter.payload() == Some(payloads[0].as_bytes())).expect("the long one");
    assert!(bare.headers().is_none_or(|headers| headers.count() == 0), "{:?}", bare.headers());
    assert!(letters.iter().any(|letter| letter.headers().is_some_and(|headers| headers.count() > 5)));
}
