//! Broker failures, with librdkafka's mock cluster and with a real broker that is killed.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use tidegate_lanes::source::kafka::{self, DeadLetterTopic, KafkaSource, PartitionMap};
use tidegate_lanes::{
    AsyncTasks, DeadLetter, DeadLetterQueue as _, Epoch, Lane, Position, Record, RecordFailure, RunError,
    SubscriptionBuilder,
};
use tidegate_sandbox::kafka::Broker;

use crate::audit::Audit;
use crate::fixtures::{LIMIT, key, settings, until};
use crate::member::GroupMember;

const TOPIC: &str = "orders";
const GROUP: &str = "group";

struct Mock {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl Mock {
    fn new(brokers: i32, partitions: i32) -> Self {
        let cluster = MockCluster::new(brokers).unwrap();
        cluster.create_topic(TOPIC, partitions, brokers).unwrap();
        Self { cluster }
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.cluster.bootstrap_servers());
        config
    }

    fn source(&self) -> KafkaSource {
        let settings = settings(&self.cluster.bootstrap_servers(), GROUP).topic(TOPIC);
        settings.property("retry.backoff.ms", "50").build().unwrap()
    }

    fn fill(&self, numbers: std::ops::Range<u64>) {
        let producer: BaseProducer = self.config().create().unwrap();
        for number in numbers {
            let (key, payload) = (key(number, 20), number.to_string());
            producer.send(BaseRecord::to(TOPIC).key(&key).payload(&payload)).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(LIMIT).unwrap();
    }

    /// The sum of the committed offsets.
    fn committed(&self, partitions: i32) -> i64 {
        let asking: BaseConsumer = self.config().set("group.id", GROUP).create().unwrap();
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(TOPIC, 0, partitions - 1);
        let answer = asking.committed_offsets(asked, LIMIT).unwrap();
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
        answer.elements().iter().map(|at| offset(at.offset())).sum()
    }
}

/// Runs a member through a fault: records sent before and after it are finished and committed.
async fn survives(mock: &Mock, partitions: i32, fault: impl FnOnce(&Mock)) -> (Arc<Audit>, u64) {
    mock.fill(0..200);
    let audit = Audit::new();
    let member = GroupMember::audited(mock.source(), 0, &audit, Duration::ZERO);
    until("started", || audit.count() == 200).await;
    fault(mock);
    mock.fill(200..400);
    until("all finished", || audit.count() == 400).await;
    until("all committed", || mock.committed(partitions) == 400).await;
    let failed = member.metrics().commits_failed;
    member.stop().await;
    audit.assert_all(0..400);
    (audit, failed)
}

/// LA-31: transient commit failure is retried.
#[tokio::test(flavor = "multi_thread")]
async fn transient_commit_failure_is_retried() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS as LOADING,
        RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS as REBALANCING, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT as TIMED_OUT,
    };
    let mock = Mock::new(1, 2);
    let errors = [REBALANCING, TIMED_OUT, LOADING, REBALANCING];
    let (audit, _) = survives(&mock, 2, |mock| mock.cluster.request_errors(RDKafkaApiKey::OffsetCommit, &errors)).await;
    assert_eq!(audit.duplicates(), 0);
}

/// LA-31: rejected commit is reported and retried.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_commit_is_reported_and_retried() {
    use RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED as REFUSED;
    let mock = Mock::new(1, 2);
    let errors = [REFUSED; 3];
    let (audit, failed) =
        survives(&mock, 2, |mock| mock.cluster.request_errors(RDKafkaApiKey::OffsetCommit, &errors)).await;
    assert!(failed > 0, "failure was not counted");
    assert_eq!(audit.duplicates(), 0);
}

/// LA-31: member unknown to the group rejoins.
#[tokio::test(flavor = "multi_thread")]
async fn member_unknown_to_the_group_rejoins() {
    use RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID as UNKNOWN;
    let mock = Mock::new(1, 2);
    survives(&mock, 2, |mock| {
        mock.cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[UNKNOWN]);
        mock.cluster.request_errors(RDKafkaApiKey::Heartbeat, &[UNKNOWN]);
    })
    .await;
}

/// LA-32: brokers return after an outage.
#[tokio::test(flavor = "multi_thread")]
async fn brokers_return_after_an_outage() {
    let mock = Mock::new(3, 3);
    survives(&mock, 3, |mock| {
        for broker in 1..=3 {
            mock.cluster.broker_down(broker).unwrap();
        }
        for broker in 1..=3 {
            mock.cluster.broker_up(broker).unwrap();
        }
    })
    .await;
}

/// LA-32: coordinator moves to another broker.
#[tokio::test(flavor = "multi_thread")]
async fn coordinator_moves_to_another_broker() {
    let mock = Mock::new(3, 3);
    mock.cluster.coordinator(MockCoordinator::Group(GROUP.to_owned()), 1).unwrap();
    survives(&mock, 3, |mock| {
        mock.cluster.coordinator(MockCoordinator::Group(GROUP.to_owned()), 2).unwrap();
    })
    .await;
}

/// LA-32: requests take two seconds.
#[tokio::test(flavor = "multi_thread")]
async fn requests_take_two_seconds() {
    let mock = Mock::new(1, 2);
    mock.fill(0..200);
    let audit = Audit::new();
    let member = GroupMember::audited(mock.source(), 0, &audit, Duration::ZERO);
    until("started", || audit.count() == 200).await;
    mock.fill(200..400);
    mock.cluster.broker_round_trip_time(1, Duration::from_secs(2)).unwrap();
    until("all finished", || audit.count() == 400).await;
    // The last commit may take longer than the drain time, up to its own timeout.
    member.stop_within(Duration::from_millis(100)).await.unwrap();
    mock.cluster.broker_round_trip_time(1, Duration::ZERO).unwrap();
    assert_eq!(mock.committed(2), 400);
    audit.assert_all(0..400);
}

/// A member that commits only when it is stopped.
fn commits_last(source: KafkaSource, audit: &Arc<Audit>) -> GroupMember {
    let audit = Arc::clone(audit);
    GroupMember::with(
        source,
        |builder| builder.commit_every(LIMIT),
        move |delivery, partition_map| {
            audit.begin(0, &delivery.record);
            audit.end(0, &delivery.record, &partition_map, true);
            delivery.finish();
            async {}
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_last_commit_is_an_error() {
    let mock = Mock::new(1, 1);
    mock.fill(0..10);
    let audit = Audit::new();
    let settings = settings(&mock.cluster.bootstrap_servers(), GROUP).topic(TOPIC).close(Duration::from_millis(300));
    let source = settings.build().unwrap();
    let member = commits_last(source, &audit);
    until("all finished", || audit.count() == 10).await;
    mock.cluster.broker_down(1).unwrap();
    let Err(RunError::Source(error)) = member.stop_within(Duration::from_secs(5)).await else {
        panic!("missing commit was not reported");
    };
    assert!(matches!(error.downcast_ref(), Some(kafka::KafkaSourceError::NotCommitted(_))), "{error}");
    mock.cluster.broker_up(1).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn last_commit_of_a_forgotten_member_is_an_error() {
    let mock = Mock::new(1, 1);
    mock.fill(0..10);
    let audit = Audit::new();
    let member = commits_last(mock.source(), &audit);
    until("all finished", || audit.count() == 10).await;
    // All commits until its next heartbeat reports that it is not a member any more.
    let forgotten = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID; 500];
    mock.cluster.request_errors(RDKafkaApiKey::OffsetCommit, &forgotten);
    mock.cluster.request_errors(RDKafkaApiKey::Heartbeat, &forgotten[..1]);
    let Err(RunError::Source(error)) = member.stop_within(Duration::from_secs(5)).await else {
        panic!("failed commit was not reported");
    };
    assert!(matches!(error.downcast_ref(), Some(kafka::KafkaSourceError::NotCommitted(_))), "{error}");
    assert_eq!(mock.committed(1), 0);
}

/// LA-32: restarted broker is found again.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_broker_is_found_again() {
    let mut broker = tokio::task::spawn_blocking(|| Broker::builder().start().unwrap()).await.unwrap();
    broker.create_topic(TOPIC, 2, &[]).unwrap();
    let fill = |broker: &Broker, numbers: std::ops::Range<u64>| {
        broker.fill(TOPIC, numbers.map(|n| (key(n, 20), n.to_string()))).unwrap();
    };
    fill(&broker, 0..200);
    let audit = Audit::new();
    let source = settings(&broker.bootstrap(), GROUP).topic(TOPIC).build().unwrap();
    let member = GroupMember::audited(source, 0, &audit, Duration::ZERO);
    until("started", || audit.count() == 200).await;
    let broker = tokio::task::spawn_blocking(move || {
        broker.kill9().unwrap();
        broker.restart().unwrap();
        broker
    });
    let broker = broker.await.unwrap();
    fill(&broker, 200..400);
    until("all finished", || audit.count() == 400).await;
    member.stop().await;
    audit.assert_all(0..400);
}

/// LA-32: repeatedly, while records are read, finished and committed.
#[tokio::test(flavor = "multi_thread")]
async fn killed_broker_loses_no_record() {
    const RECORDS: u64 = 3_000;
    let mut broker = tokio::task::spawn_blocking(|| Broker::builder().start().unwrap()).await.unwrap();
    broker.create_topic(TOPIC, 3, &[]).unwrap();
    broker.fill(TOPIC, (0..RECORDS).map(|n| (key(n, 20), n.to_string()))).unwrap();
    let audit = Audit::new();
    let source = settings(&broker.bootstrap(), GROUP).topic(TOPIC).build().unwrap();
    let often = |builder: SubscriptionBuilder<KafkaSource, AsyncTasks>| {
        builder.concurrency(4).commit_every(Duration::from_millis(1))
    };
    let member = GroupMember::audited_as(source, often, 0, &audit, Duration::from_millis(2));
    for round in 1..=3 {
        until("some progress", || audit.count() >= round * RECORDS / 5).await;
        let again = tokio::task::spawn_blocking(move || {
            broker.kill9().unwrap();
            broker.restart().unwrap();
            broker
        });
        broker = again.await.unwrap();
    }
    until("all finished", || audit.count() == RECORDS).await;
    // The session may have ended with the broker; the member then rejoins, and uncommitted records are delivered again.
    let committed = || {
        let asking: BaseConsumer = broker.client_config().set("group.id", GROUP).create().unwrap();
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(TOPIC, 0, 2);
        let answer = asking.committed_offsets(asked, LIMIT).unwrap_or_default();
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
        answer.elements().iter().map(|at| offset(at.offset())).sum::<i64>()
    };
    until("all committed", || committed() == RECORDS as i64).await;
    member.stop().await;
    audit.assert_all(0..RECORDS);
}

/// After a broker lost confirmed data, the idempotent producer fails fatally and is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letter_producer_is_replaced_after_data_loss() {
    let mock = Mock::new(1, 1);
    let topic = DeadLetterTopic::new(&mock.cluster.bootstrap_servers(), TOPIC, PartitionMap::default()).unwrap();
    let send = || {
        let record = Record::new(Lane(0), Epoch(1), Position(1), Some(b"k"), Some(b"v"));
        topic.send(DeadLetter { record, failure: RecordFailure::new("no"), attempts: 1, subscription: "test".into() })
    };
    send().await.unwrap();
    let lost = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[lost]);
    send().await.unwrap_err();
    send().await.unwrap();
}
