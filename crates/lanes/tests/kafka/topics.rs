//! Topics that are deleted and recreated while they are read.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use tidegate_lanes::source::kafka::KafkaSourceBuilder;

use crate::audit::Audit;
use crate::fixtures::{KafkaFixture, LIMIT, key, settings, until};
use crate::member::GroupMember;

async fn delete(fixture: &KafkaFixture, topic: &str) {
    let admin: AdminClient<DefaultClientContext> = fixture.broker.client_config().create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
    admin.delete_topics(&[topic], &options).await.unwrap().remove(0).unwrap();
}

/// librdkafka assumes by default for 30 s after its start that a missing topic will appear.
fn disbelieving(settings: KafkaSourceBuilder) -> KafkaSourceBuilder {
    settings.property("topic.metadata.propagation.max.ms", "1")
}

/// The sum of the epochs of all lanes.
fn epochs(member: &GroupMember) -> u32 {
    member.metrics().lanes.iter().map(|lane| lane.epoch.0).sum()
}

/// The first 100 records of the new topic have the offsets of the finished records of the old one.
#[tokio::test(flavor = "multi_thread")]
async fn recreated_topic_is_read_from_its_start() {
    let fixture = KafkaFixture::new("longer", 1);
    fixture.fill(0..100, 10);
    let audit = Audit::new();
    let member = GroupMember::audited(disbelieving(fixture.settings()).build().unwrap(), 0, &audit, Duration::ZERO);
    until("all finished", || audit.count() == 100).await;
    until("all committed", || fixture.committed(1) == [Some(100)]).await;
    delete(&fixture, &fixture.topic).await;
    until("deletion noticed", || epochs(&member) == 2).await;
    fixture.broker.create_topic(&fixture.topic, 1, &[]).unwrap();
    fixture.fill(100..400, 10);
    until("all of the new topic finished", || audit.count() == 400).await;
    member.stop().await;
    audit.assert_all(0..400);
    assert_eq!((audit.duplicates(), fixture.committed(1)), (0, vec![Some(300)]));
}

/// Each commit is a record of `__consumer_offsets`, which would be committed in turn, without end.
#[tokio::test(flavor = "multi_thread")]
async fn pattern_matches_no_internal_topic() {
    let fixture = KafkaFixture::new("all", 1);
    fixture.fill(0..10, 10);
    // Matches this topic and Kafka's internal topics.
    let pattern = format!("^({}|__.*)$", fixture.topic);
    let source = settings(&fixture.broker.bootstrap(), &fixture.group).topic(&pattern).build().unwrap();
    let audit = Audit::new();
    let member = GroupMember::audited(source, 0, &audit, Duration::ZERO);
    until("all committed", || fixture.committed(1) == [Some(10)]).await;
    assert_eq!((member.lanes(), audit.count()), (vec![format!("{}/0", fixture.topic)], 10));
    member.stop().await;
}

/// A topic that matches a pattern is deleted. The others continue, and all progress is committed at the end.
#[tokio::test(flavor = "multi_thread")]
async fn pattern_survives_a_deleted_topic() {
    let fixture = KafkaFixture::new("pattern", 1);
    let other = format!("{}-too", fixture.topic);
    fixture.broker.create_topic(&other, 1, &[]).unwrap();
    let fill = |topic: &str, numbers: std::ops::Range<u64>| {
        fixture.broker.fill(topic, numbers.map(|n| (key(n, 10), n.to_string()))).unwrap();
    };
    fill(&fixture.topic, 0..100);
    fill(&other, 100..200);
    let audit = Audit::new();
    let pattern = format!("^{}.*", fixture.topic);
    let source = disbelieving(settings(&fixture.broker.bootstrap(), &fixture.group)).topic(&pattern).build().unwrap();
    let member = GroupMember::audited(source, 0, &audit, Duration::ZERO);
    until("all finished", || audit.count() == 200).await;
    delete(&fixture, &other).await;
    until("deletion noticed", || epochs(&member) == 3).await;
    fill(&fixture.topic, 200..300);
    until("other topic continues", || audit.count() == 300).await;
    member.stop().await;
    assert_eq!(fixture.committed(1), [Some(200)]);
}
