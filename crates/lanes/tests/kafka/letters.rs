//! Records that could not be done, in a topic of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, OwnedMessage};
use rdkafka::producer::{BaseRecord, Producer as _};
use tidegate_lanes::source::kafka::LetterTopic;
use tidegate_lanes::{Delivery, Exhausted, Failure, Retry};

use crate::member::Member;
use crate::world::{LIMIT, World, share, until};

/// The first `count` messages of a topic.
fn letters(world: &World, topic: &str, count: usize) -> Vec<OwnedMessage> {
    let mut config = world.broker.client_config();
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

fn twice() -> Retry {
    Retry { attempts: Some(2), first_wait: Duration::from_millis(1), ..Retry::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn la_10_letters_are_in_their_topic_before_their_records_are_committed() {
    let world = World::new("letters", 1);
    let dead = World::new("dead", 1);
    world.fill(0..20, 20);
    let source = world.source();
    let topic = LetterTopic::new(&world.broker.bootstrap(), &dead.topic, source.roster()).unwrap();
    let build = |builder: tidegate_lanes::Builder<_, _>| {
        builder.retry(twice()).exhausted(Exhausted::DeadLetter).dead_letter(topic)
    };
    let member = Member::with(source, build, |delivery, _| async {
        match delivery.record.position().0 {
            7 | 13 => delivery.fail(Failure::new("this will not do")),
            _ => delivery.finish(),
        }
    });
    until("all is committed", || world.committed(1) == [Some(20)]).await;
    let tally = member.stop().await;
    assert_eq!((tally.done, tally.dead_lettered), (18, 2));
    for letter in letters(&dead, &dead.topic, 2) {
        let headers = headers(&letter);
        assert_eq!(headers["tidegate-topic"], world.topic);
        assert_eq!(headers["tidegate-partition"], "0");
        assert_eq!(Some(headers["tidegate-offset"].as_bytes()), letter.payload());
        assert_eq!(letter.key().unwrap(), format!("key-{}", headers["tidegate-offset"]).as_bytes());
        assert_eq!((&*headers["tidegate-attempts"], &*headers["tidegate-cause"]), ("2", "handler"));
        assert_eq!((&*headers["tidegate-error"], &*headers["tidegate-subscription"]), ("this will not do", "test"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_its_topic_took_is_not_too_large_for_a_letter() {
    let world = World::new("large", 1);
    let dead = World::new("dead", 1);
    // By default a broker takes 1,048,588 bytes, and a client sends 1,000,000.
    let producer = world.producer(&[("message.max.bytes", "2000000")]);
    let payload = "x".repeat(1_030_000);
    let record = BaseRecord::to(&world.topic).key("large").payload(&payload);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(LIMIT).unwrap();
    let source = world.source();
    let topic = LetterTopic::new(&world.broker.bootstrap(), &dead.topic, source.roster()).unwrap();
    let build = |builder: tidegate_lanes::Builder<_, _>| {
        builder.retry(twice()).exhausted(Exhausted::DeadLetter).dead_letter(topic)
    };
    let refuse = |delivery: Delivery, _| async { delivery.fail(Failure::permanent("this will not do")) };
    let member = Member::with(source, build, refuse);
    until("the letter is kept", || world.committed(1) == [Some(1)]).await;
    assert_eq!(member.stop().await.dead_lettered, 1);
    assert_eq!(letters(&dead, &dead.topic, 1)[0].payload(), Some(payload.as_bytes()));
}

#[tokio::test(flavor = "multi_thread")]
async fn la_11_while_the_topic_does_not_take_the_letter_its_record_is_not_committed() {
    let world = World::new("refused", 1);
    world.fill(0..10, 10);
    let source = world.source();
    // The producer gives up on a topic that is not there soon, and is asked again.
    let properties = [("message.timeout.ms", "200"), ("topic.metadata.propagation.max.ms", "100")];
    let missing = format!("{}-of-the-dead", world.topic);
    let topic = LetterTopic::with_properties(&world.broker.bootstrap(), &missing, source.roster(), properties).unwrap();
    let build = |builder: tidegate_lanes::Builder<_, _>| {
        builder.retry(twice()).exhausted(Exhausted::DeadLetter).dead_letter(topic)
    };
    let member = Member::with(source, build, |delivery, _| async {
        match delivery.record.position().0 {
            4 => delivery.fail(Failure::permanent("never")),
            _ => delivery.finish(),
        }
    });
    until("the letter was refused twice", || member.metrics().tally.not_dead_lettered >= 2).await;
    until("the others are committed", || world.committed(1) == [Some(4)]).await;
    world.broker.create_topic(&missing, 1, &[]).unwrap();
    until("all is committed", || world.committed(1) == [Some(10)]).await;
    member.stop().await;
    assert_eq!(headers(&letters(&world, &missing, 1)[0])["tidegate-offset"], "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_topic_brings_records_back_and_keeps_where_they_were_first() {
    let world = World::new("origin", 1);
    let later = World::new("later", 1);
    world.fill(0..5, 5);
    let source = world.source();
    let topic = LetterTopic::new(&world.broker.bootstrap(), &later.topic, source.roster()).unwrap();
    let first = Member::with(
        source,
        |builder| builder.retry(Retry::never()).exhausted(Exhausted::DeadLetter).dead_letter(topic),
        |delivery, _| async { delivery.fail(Failure::new("not now")) },
    );
    // The second subscription fails as well, back into its own topic, until the third time.
    let source = later.source();
    let topic = LetterTopic::new(&world.broker.bootstrap(), &later.topic, source.roster()).unwrap();
    let tries = Arc::new(AtomicU64::new(0));
    let counted = share(&tries);
    let second = Member::with(
        source,
        |builder| builder.retry(Retry::never()).exhausted(Exhausted::DeadLetter).dead_letter(topic),
        move |delivery, _| {
            let count = counted.fetch_add(1, Ordering::Relaxed);
            async move { if count < 5 { delivery.fail(Failure::new("not yet")) } else { delivery.finish() } }
        },
    );
    until("all came back and are done", || later.committed(1) == [Some(10)]).await;
    first.stop().await;
    assert_eq!(second.stop().await.done, 5);
    for letter in letters(&later, &later.topic, 10) {
        let headers = headers(&letter);
        assert_eq!((&headers["tidegate-topic"], letter.headers().unwrap().count()), (&world.topic, 8));
        assert_eq!(Some(headers["tidegate-offset"].as_bytes()), letter.payload());
    }
}
