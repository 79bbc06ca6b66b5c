//! Offsets: gaps, committed offsets, and logs that no longer hold them.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use tidegate_lanes::RunError;
use tidegate_lanes::source::kafka::{self, StartOffset};
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::fixtures::{KafkaFixture, LIMIT, share, until};
use crate::member::GroupMember;

/// Commits an offset of partition 0, like a foreign tool.
fn commit_as_a_stranger(fixture: &KafkaFixture, offset: i64, metadata: &str) {
    let mut config = fixture.broker.client_config();
    let stranger: BaseConsumer = config.set("group.id", &fixture.group).create().unwrap();
    let mut offsets = TopicPartitionList::new();
    let mut entry = offsets.add_partition(&fixture.topic, 0);
    entry.set_offset(Offset::Offset(offset)).unwrap();
    entry.set_metadata(metadata);
    stranger.commit(&offsets, CommitMode::Sync).unwrap();
}

/// Deletes all records of partition 0 before the offset.
async fn cut(fixture: &KafkaFixture, before: i64) {
    let admin: AdminClient<DefaultClientContext> = fixture.broker.client_config().create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&fixture.topic, 0, Offset::Offset(before)).unwrap();
    admin.delete_records(&offsets, &AdminOptions::new()).await.unwrap();
}

/// Sends records in a transaction and commits or aborts it.
fn transact(fixture: &KafkaFixture, numbers: std::ops::Range<u64>, commits: bool) {
    let id = format!("{}-{}", fixture.topic, numbers.start);
    let producer = fixture.producer(&[("transactional.id", &id)]);
    producer.init_transactions(LIMIT).unwrap();
    producer.begin_transaction().unwrap();
    for number in numbers {
        let payload = number.to_string();
        let record = BaseRecord::to(&fixture.topic).partition(0).key("key").payload(&payload);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(LIMIT).unwrap();
    if commits { producer.commit_transaction(LIMIT) } else { producer.abort_transaction(LIMIT) }.unwrap();
}

/// The end offset of partition 0.
fn end(fixture: &KafkaFixture) -> i64 {
    let asking: BaseConsumer = fixture.broker.client_config().create().unwrap();
    asking.fetch_watermarks(&fixture.topic, 0, LIMIT).unwrap().1
}

/// LA-04: control records and aborted transactions are gaps.
#[tokio::test(flavor = "multi_thread")]
async fn control_records_and_aborted_transactions_are_gaps() {
    let fixture = KafkaFixture::new("markers", 1);
    transact(&fixture, 0..10, true);
    transact(&fixture, 100..110, false);
    transact(&fixture, 10..20, true);
    transact(&fixture, 110..120, false);
    let audit = Audit::new();
    let member = GroupMember::audited(fixture.source(), 0, &audit, Duration::ZERO);
    until("committed records finished", || audit.count() == 20).await;
    // 20 records, 20 aborted records, 4 control records: the group has no lag.
    assert_eq!(end(&fixture), 44);
    until("end committed", || fixture.committed(1) == [Some(44)]).await;
    fixture.produce(0, Some("key"), Some("20"));
    until("later record finished", || audit.count() == 21).await;
    member.stop().await;
    audit.assert_all(0..21);
    assert_eq!((audit.duplicates(), fixture.committed(1)), (0, vec![Some(45)]));
}

/// LA-04: compacted records are gaps.
#[tokio::test(flavor = "multi_thread")]
async fn compacted_records_are_gaps() {
    let settings = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("max.compaction.lag.ms", "100"),
    ];
    let fixture = KafkaFixture::with("compacted", 1, &settings);
    for round in 0..5 {
        fixture.produce_all(0, (0..10).map(|n| (Some(format!("key-{n}")), Some((round * 10 + n).to_string()))));
    }
    let first = || {
        let mut config = fixture.broker.client_config();
        let reader: BaseConsumer =
            config.set("group.id", "none").set("auto.offset.reset", "earliest").create().unwrap();
        let mut at = TopicPartitionList::new();
        at.add_partition_offset(&fixture.topic, 0, Offset::Beginning).unwrap();
        reader.assign(&at).unwrap();
        let read = (0..20).find_map(|_| reader.poll(Duration::from_millis(500)));
        read.map(|message| rdkafka::Message::offset(&message.unwrap()))
    };
    until("log compacted", || first().is_some_and(|offset| offset > 0)).await;
    let audit = Audit::new();
    let member = GroupMember::audited(fixture.source(), 0, &audit, Duration::ZERO);
    until("end committed", || fixture.committed(1) == [Some(50)]).await;
    member.stop().await;
    audit.assert_all(40..50);
    assert!(audit.count() < 50, "log was not compacted");
}

/// LA-34: deleted offset starts at the oldest record.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_offset_starts_at_the_oldest_record() {
    let fixture = KafkaFixture::new("cut", 1);
    fixture.fill(0..100, 10);
    commit_as_a_stranger(&fixture, 5, "");
    cut(&fixture, 60).await;
    let audit = Audit::new();
    let member = GroupMember::audited(fixture.source(), 0, &audit, Duration::ZERO);
    until("rest finished", || audit.count() == 40).await;
    member.stop().await;
    audit.assert_all(60..100);
    assert_eq!(fixture.committed(1), [Some(100)]);
}

/// LA-34: offset beyond the end starts at the oldest.
#[tokio::test(flavor = "multi_thread")]
async fn offset_beyond_the_end_starts_at_the_oldest() {
    let fixture = KafkaFixture::new("beyond", 1);
    fixture.fill(0..30, 10);
    commit_as_a_stranger(&fixture, 1_000, "");
    let audit = Audit::new();
    let member = GroupMember::audited(fixture.source(), 0, &audit, Duration::ZERO);
    until("all finished", || audit.count() == 30).await;
    member.stop().await;
    audit.assert_all(0..30);
    assert_eq!(fixture.committed(1), [Some(30)]);
}

/// LA-34: start fail reports a deleted offset.
#[tokio::test(flavor = "multi_thread")]
async fn start_fail_reports_a_deleted_offset() {
    let fixture = KafkaFixture::new("no-gap", 1);
    fixture.fill(0..100, 10);
    commit_as_a_stranger(&fixture, 5, "");
    cut(&fixture, 60).await;
    let source = fixture.settings().start(StartOffset::Fail).build().unwrap();
    let member = GroupMember::audited(source, 0, &Audit::new(), Duration::ZERO);
    let Err(RunError::Source(error)) = member.ended().await else { panic!("deleted records were not reported") };
    let error = error.downcast_ref::<kafka::KafkaSourceError>().unwrap();
    assert!(
        matches!(error, kafka::KafkaSourceError::OutOfRange { lane } if *lane == format!("{}/0", fixture.topic)),
        "{error}"
    );
    assert_eq!(fixture.committed(1), [Some(5)]);
}

/// LA-38: foreign offset metadata is ignored and replaced.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_offset_metadata_is_ignored_and_replaced() {
    let fixture = KafkaFixture::new("stranger", 1);
    fixture.fill(0..30, 10);
    commit_as_a_stranger(&fixture, 10, "\u{1}b64:!!not ours!!{\"x\":");
    let source = fixture.settings().metadata("written by a test").build().unwrap();
    let audit = Audit::new();
    let member = GroupMember::audited(source, 0, &audit, Duration::ZERO);
    until("rest finished", || audit.count() == 20).await;
    member.stop().await;
    audit.assert_all(10..30);
    assert_eq!(fixture.committed_with_metadata(1), [(Some(30), "written by a test".to_owned())]);
}

/// LA-37: stop past its deadline commits the prefix.
#[tokio::test(flavor = "multi_thread")]
async fn stop_past_its_deadline_commits_the_prefix() {
    let fixture = KafkaFixture::new("shutdown", 1);
    fixture.fill(0..100, 100);
    let audit = Audit::new();
    let (theirs, stuck) = (share(&audit), Arc::new(Semaphore::new(0)));
    let member = GroupMember::with(
        fixture.source(),
        |builder| builder,
        move |delivery, partition_map| {
            let (audit, stuck) = (share(&theirs), share(&stuck));
            async move {
                audit.begin(0, &delivery.record);
                if delivery.record.position().0 == 42 {
                    stuck.acquire().await.unwrap().forget();
                }
                audit.end(0, &delivery.record, &partition_map, true);
                delivery.finish();
            }
        },
    );
    until("all but one finished", || audit.count() == 99).await;
    let counters = member.stop_within(Duration::from_millis(200)).await.unwrap();
    assert_eq!((counters.done, counters.abandoned), (99, 1));
    let committed = fixture.committed(1);
    assert_eq!(committed, [Some(42)]);
    audit.assert_committed(&fixture.topic, &committed);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_topic_is_the_reason() {
    let fixture = KafkaFixture::new("there", 1);
    let source = fixture.settings().topic("not-there").build().unwrap();
    let member = GroupMember::audited(source, 0, &Audit::new(), Duration::ZERO);
    let Err(RunError::Source(error)) = member.ended().await else { panic!("missing topic was not reported") };
    assert!(matches!(error.downcast_ref(), Some(kafka::KafkaSourceError::NoTopic(_))), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_by_the_group_is_the_reason() {
    let fixture = KafkaFixture::new("refusing", 1);
    let source = fixture.settings().property("session.timeout.ms", "1000").build().unwrap();
    let member = GroupMember::audited(source, 0, &Audit::new(), Duration::ZERO);
    let Err(RunError::Source(error)) = member.ended().await else { panic!("rejection was not reported") };
    assert!(matches!(error.downcast_ref(), Some(kafka::KafkaSourceError::Refused(_))), "{error}");
}

/// Partitions without a committed offset start at the time; others continue at their offset.
#[tokio::test(flavor = "multi_thread")]
async fn group_without_offsets_starts_at_a_time() {
    let fixture = KafkaFixture::new("times", 2);
    let producer = fixture.producer(&[]);
    let begin = 1_700_000_000_000_i64;
    for (partition, at) in (0..2).flat_map(|partition| (0..10).map(move |at| (partition, at))) {
        let payload = format!("{partition}-{at}");
        let record = BaseRecord::to(&fixture.topic).partition(partition).key("k").payload(&payload);
        let record = record.timestamp(begin + 1_000 * i64::from(at));
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(LIMIT).unwrap();
    commit_as_a_stranger(&fixture, 2, "");
    let run = async |start: i64, expected: usize| {
        let seen: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
        let source = fixture.settings().start(StartOffset::Timestamp(start)).build().unwrap();
        let noted = share(&seen);
        let member = GroupMember::with(
            source,
            |builder| builder,
            move |delivery, _| {
                noted.lock().unwrap().push(String::from_utf8_lossy(delivery.record.payload().unwrap()).into_owned());
                async { delivery.finish() }
            },
        );
        until("the records arrive", || seen.lock().unwrap().len() >= expected).await;
        member.stop().await;
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_unstable();
        seen
    };
    let seen = run(begin + 6_500, 8 + 3).await;
    let expected: Vec<String> =
        (2..10).map(|at| format!("0-{at}")).chain((7..10).map(|at| format!("1-{at}"))).collect();
    assert_eq!(seen, expected);
}
