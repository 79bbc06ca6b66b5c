//! Topics that are deleted while they are read, and made again.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use tidegate_lanes::source::kafka::Settings;

use crate::audit::Audit;
use crate::member::Member;
use crate::world::{LIMIT, World, key, settings, until};

async fn delete(world: &World, topic: &str) {
    let admin: AdminClient<DefaultClientContext> = world.broker.client_config().create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
    admin.delete_topics(&[topic], &options).await.unwrap().remove(0).unwrap();
}

/// By itself the client believes for 30 s after its start that a topic is about to come.
fn disbelieving(settings: Settings) -> Settings {
    settings.property("topic.metadata.propagation.max.ms", "1")
}

/// Of all lanes together.
fn epochs(member: &Member) -> u32 {
    member.metrics().lanes.iter().map(|lane| lane.epoch.0).sum()
}

/// The first 100 records of the new one have the positions of those that were done.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_made_again_with_more_records_than_were_done_is_read_from_its_beginning() {
    let world = World::new("longer", 1);
    world.fill(0..100, 10);
    let audit = Audit::new();
    let member = Member::audited(disbelieving(world.settings()).build().unwrap(), 0, &audit, Duration::ZERO);
    until("all are done", || audit.count() == 100).await;
    until("all is committed", || world.committed(1) == [Some(100)]).await;
    delete(&world, &world.topic).await;
    until("its end is noticed", || epochs(&member) == 2).await;
    world.broker.create_topic(&world.topic, 1, &[]).unwrap();
    world.fill(100..400, 10);
    until("all of the new one are done", || audit.count() == 400).await;
    member.stop().await;
    audit.assert_all(0..400);
    assert_eq!((audit.duplicates(), world.committed(1)), (0, vec![Some(300)]));
}

/// Each commit is a record of `__consumer_offsets`, which would be committed, and so on for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_means_no_topic_of_kafkas_own() {
    let world = World::new("all", 1);
    world.fill(0..10, 10);
    // Of the shared broker's topics, this one and Kafka's own.
    let pattern = format!("^({}|__.*)$", world.topic);
    let source = settings(&world.broker.bootstrap(), &world.group).topic(&pattern).build().unwrap();
    let audit = Audit::new();
    let member = Member::audited(source, 0, &audit, Duration::ZERO);
    until("all is committed", || world.committed(1) == [Some(10)]).await;
    assert_eq!((member.lanes(), audit.count()), (vec![format!("{}/0", world.topic)], 10));
    member.stop().await;
}

/// Of several topics that a pattern means, one is deleted: the others go on, and all that was done is committed at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_outlives_a_topic() {
    let world = World::new("pattern", 1);
    let other = format!("{}-too", world.topic);
    world.broker.create_topic(&other, 1, &[]).unwrap();
    let fill = |topic: &str, numbers: std::ops::Range<u64>| {
        world.broker.fill(topic, numbers.map(|n| (key(n, 10), n.to_string()))).unwrap();
    };
    fill(&world.topic, 0..100);
    fill(&other, 100..200);
    let audit = Audit::new();
    let pattern = format!("^{}.*", world.topic);
    let source = disbelieving(settings(&world.broker.bootstrap(), &world.group)).topic(&pattern).build().unwrap();
    let member = Member::audited(source, 0, &audit, Duration::ZERO);
    until("all are done", || audit.count() == 200).await;
    delete(&world, &other).await;
    until("its end is noticed", || epochs(&member) == 3).await;
    fill(&world.topic, 200..300);
    until("the other one goes on", || audit.count() == 300).await;
    member.stop().await;
    assert_eq!(world.committed(1), [Some(200)]);
}
