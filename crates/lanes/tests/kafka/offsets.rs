//! Positions: gaps, the group's committed offsets, and logs that do not hold them any more.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use tidegate_lanes::RunError;
use tidegate_lanes::source::kafka::{self, Start};
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::member::Member;
use crate::world::{LIMIT, World, share, until};

/// Commits an offset of partition 0 as somebody else would.
fn commit_as_a_stranger(world: &World, offset: i64, metadata: &str) {
    let mut config = world.broker.client_config();
    let stranger: BaseConsumer = config.set("group.id", &world.group).create().unwrap();
    let mut offsets = TopicPartitionList::new();
    let mut entry = offsets.add_partition(&world.topic, 0);
    entry.set_offset(Offset::Offset(offset)).unwrap();
    entry.set_metadata(metadata);
    stranger.commit(&offsets, CommitMode::Sync).unwrap();
}

/// Cuts everything before the offset off partition 0.
async fn cut(world: &World, before: i64) {
    let admin: AdminClient<DefaultClientContext> = world.broker.client_config().create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&world.topic, 0, Offset::Offset(before)).unwrap();
    admin.delete_records(&offsets, &AdminOptions::new()).await.unwrap();
}

/// Sends records in a transaction, and ends it as told.
fn transact(world: &World, numbers: std::ops::Range<u64>, commits: bool) {
    let id = format!("{}-{}", world.topic, numbers.start);
    let producer = world.producer(&[("transactional.id", &id)]);
    producer.init_transactions(LIMIT).unwrap();
    producer.begin_transaction().unwrap();
    for number in numbers {
        let payload = number.to_string();
        let record = BaseRecord::to(&world.topic).partition(0).key("key").payload(&payload);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(LIMIT).unwrap();
    if commits { producer.commit_transaction(LIMIT) } else { producer.abort_transaction(LIMIT) }.unwrap();
}

/// The offset behind the last thing in partition 0.
fn end(world: &World) -> i64 {
    let asking: BaseConsumer = world.broker.client_config().create().unwrap();
    asking.fetch_watermarks(&world.topic, 0, LIMIT).unwrap().1
}

#[tokio::test(flavor = "multi_thread")]
async fn la_04_markers_and_aborted_transactions_are_passed_also_at_the_end() {
    let world = World::new("markers", 1);
    transact(&world, 0..10, true);
    transact(&world, 100..110, false);
    transact(&world, 10..20, true);
    transact(&world, 110..120, false);
    let audit = Audit::new();
    let member = Member::audited(world.source(), 0, &audit, Duration::ZERO);
    until("the committed ones are done", || audit.count() == 20).await;
    // 20 records, 20 aborted ones, 4 markers: the group has no lag.
    assert_eq!(end(&world), 44);
    until("the end is committed", || world.committed(1) == [Some(44)]).await;
    world.produce(0, Some("key"), Some("20"));
    until("what comes later is done", || audit.count() == 21).await;
    member.stop().await;
    audit.assert_all(0..21);
    assert_eq!((audit.duplicates(), world.committed(1)), (0, vec![Some(45)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn la_04_compacted_records_are_gaps() {
    let settings = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("max.compaction.lag.ms", "100"),
    ];
    let world = World::with("compacted", 1, &settings);
    for round in 0..5 {
        world.produce_all(0, (0..10).map(|n| (Some(format!("key-{n}")), Some((round * 10 + n).to_string()))));
    }
    let first = || {
        let mut config = world.broker.client_config();
        let reader: BaseConsumer =
            config.set("group.id", "none").set("auto.offset.reset", "earliest").create().unwrap();
        let mut at = TopicPartitionList::new();
        at.add_partition_offset(&world.topic, 0, Offset::Beginning).unwrap();
        reader.assign(&at).unwrap();
        let read = (0..20).find_map(|_| reader.poll(Duration::from_millis(500)));
        read.map(|message| rdkafka::Message::offset(&message.unwrap()))
    };
    until("the log is compacted", || first().is_some_and(|offset| offset > 0)).await;
    let audit = Audit::new();
    let member = Member::audited(world.source(), 0, &audit, Duration::ZERO);
    until("the end is committed", || world.committed(1) == [Some(50)]).await;
    member.stop().await;
    audit.assert_all(40..50);
    assert!(audit.count() < 50, "nothing was compacted");
}

#[tokio::test(flavor = "multi_thread")]
async fn la_34_a_committed_offset_that_was_cut_off_starts_at_the_oldest_record() {
    let world = World::new("cut", 1);
    world.fill(0..100, 10);
    commit_as_a_stranger(&world, 5, "");
    cut(&world, 60).await;
    let audit = Audit::new();
    let member = Member::audited(world.source(), 0, &audit, Duration::ZERO);
    until("the rest is done", || audit.count() == 40).await;
    member.stop().await;
    audit.assert_all(60..100);
    assert_eq!(world.committed(1), [Some(100)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_34_a_committed_offset_beyond_the_end_starts_at_the_oldest_record() {
    let world = World::new("beyond", 1);
    world.fill(0..30, 10);
    commit_as_a_stranger(&world, 1_000, "");
    let audit = Audit::new();
    let member = Member::audited(world.source(), 0, &audit, Duration::ZERO);
    until("all are done", || audit.count() == 30).await;
    member.stop().await;
    audit.assert_all(0..30);
    assert_eq!(world.committed(1), [Some(30)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_34_whoever_wants_no_gap_is_told_of_it() {
    let world = World::new("no-gap", 1);
    world.fill(0..100, 10);
    commit_as_a_stranger(&world, 5, "");
    cut(&world, 60).await;
    let source = world.settings().start(Start::Fail).build().unwrap();
    let member = Member::audited(source, 0, &Audit::new(), Duration::ZERO);
    let Err(RunError::Source(error)) = member.ended().await else { panic!("records are lost, and nobody says so") };
    let error = error.downcast_ref::<kafka::Error>().unwrap();
    assert!(matches!(error, kafka::Error::OutOfRange { lane } if *lane == format!("{}/0", world.topic)), "{error}");
    assert_eq!(world.committed(1), [Some(5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_38_what_a_stranger_wrote_beside_the_offset_is_ignored_and_replaced() {
    let world = World::new("stranger", 1);
    world.fill(0..30, 10);
    commit_as_a_stranger(&world, 10, "\u{1}b64:!!not ours!!{\"x\":");
    let source = world.settings().metadata("written by a test").build().unwrap();
    let audit = Audit::new();
    let member = Member::audited(source, 0, &audit, Duration::ZERO);
    until("the rest is done", || audit.count() == 20).await;
    member.stop().await;
    audit.assert_all(10..30);
    assert_eq!(world.committed_with_metadata(1), [(Some(30), "written by a test".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_37_a_shutdown_that_runs_out_of_time_commits_the_finished_prefix_and_no_more() {
    let world = World::new("shutdown", 1);
    world.fill(0..100, 100);
    let audit = Audit::new();
    let (theirs, stuck) = (share(&audit), Arc::new(Semaphore::new(0)));
    let member = Member::with(
        world.source(),
        |builder| builder,
        move |delivery, roster| {
            let (audit, stuck) = (share(&theirs), share(&stuck));
            async move {
                audit.begin(0, &delivery.record);
                if delivery.record.position().0 == 42 {
                    stuck.acquire().await.unwrap().forget();
                }
                audit.end(0, &delivery.record, &roster, true);
                delivery.finish();
            }
        },
    );
    until("all but one are done", || audit.count() == 99).await;
    let tally = member.stop_within(Duration::from_millis(200)).await.unwrap();
    assert_eq!((tally.done, tally.abandoned), (99, 1));
    let committed = world.committed(1);
    assert_eq!(committed, [Some(42)]);
    audit.assert_committed(&world.topic, &committed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_exist_is_named_as_the_reason() {
    let world = World::new("there", 1);
    let source = world.settings().topic("not-there").build().unwrap();
    let member = Member::audited(source, 0, &Audit::new(), Duration::ZERO);
    let Err(RunError::Source(error)) = member.ended().await else { panic!("nobody says that the topic is missing") };
    assert!(matches!(error.downcast_ref(), Some(kafka::Error::NoTopic(_))), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_group_refuses_is_named_as_the_reason() {
    let world = World::new("refusing", 1);
    let source = world.settings().property("session.timeout.ms", "1000").build().unwrap();
    let member = Member::audited(source, 0, &Audit::new(), Duration::ZERO);
    let Err(RunError::Source(error)) = member.ended().await else { panic!("nobody says what is wrong") };
    assert!(matches!(error.downcast_ref(), Some(kafka::Error::Refused(_))), "{error}");
}
