//! Brokers that fail: the client's mock cluster, told when and how, and a real broker that is killed.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use tidegate_lanes::source::kafka::{self, Kafka, LetterTopic, Roster};
use tidegate_lanes::{Builder, DeadLetter as _, Epoch, Failure, Lane, Letter, Position, Record, RunError, Tasks};
use tidegate_sandbox::kafka::Broker;

use crate::audit::Audit;
use crate::member::Member;
use crate::world::{LIMIT, key, settings, until};

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

    fn source(&self) -> Kafka {
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

/// Runs a member through a fault: what is in the topic before and after is done, and committed at the end.
async fn survives(mock: &Mock, partitions: i32, fault: impl FnOnce(&Mock)) -> (Arc<Audit>, u64) {
    mock.fill(0..200);
    let audit = Audit::new();
    let member = Member::audited(mock.source(), 0, &audit, Duration::ZERO);
    until("it has begun", || audit.count() == 200).await;
    fault(mock);
    mock.fill(200..400);
    until("all are done", || audit.count() == 400).await;
    until("all is committed", || mock.committed(partitions) == 400).await;
    let failed = member.metrics().commits_failed;
    member.stop().await;
    audit.assert_all(0..400);
    (audit, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn la_31_a_commit_that_fails_in_passing_is_repeated() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS as LOADING,
        RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS as REBALANCING, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT as TIMED_OUT,
    };
    let mock = Mock::new(1, 2);
    let errors = [REBALANCING, TIMED_OUT, LOADING, REBALANCING];
    let (audit, _) = survives(&mock, 2, |mock| mock.cluster.request_errors(RDKafkaApiKey::OffsetCommit, &errors)).await;
    assert_eq!(audit.duplicates(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_31_a_commit_that_is_refused_is_told_and_repeated() {
    use RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED as REFUSED;
    let mock = Mock::new(1, 2);
    let errors = [REFUSED; 3];
    let (audit, failed) =
        survives(&mock, 2, |mock| mock.cluster.request_errors(RDKafkaApiKey::OffsetCommit, &errors)).await;
    assert!(failed > 0, "nobody was told");
    assert_eq!(audit.duplicates(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_31_a_member_that_the_group_does_not_know_any_more_joins_again() {
    use RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID as UNKNOWN;
    let mock = Mock::new(1, 2);
    survives(&mock, 2, |mock| {
        mock.cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[UNKNOWN]);
        mock.cluster.request_errors(RDKafkaApiKey::Heartbeat, &[UNKNOWN]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn la_32_brokers_go_and_come_back() {
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

#[tokio::test(flavor = "multi_thread")]
async fn la_32_the_coordinator_moves() {
    let mock = Mock::new(3, 3);
    mock.cluster.coordinator(MockCoordinator::Group(GROUP.to_owned()), 1).unwrap();
    survives(&mock, 3, |mock| {
        mock.cluster.coordinator(MockCoordinator::Group(GROUP.to_owned()), 2).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn la_32_answers_take_two_seconds() {
    let mock = Mock::new(1, 2);
    mock.fill(0..200);
    let audit = Audit::new();
    let member = Member::audited(mock.source(), 0, &audit, Duration::ZERO);
    until("it has begun", || audit.count() == 200).await;
    mock.fill(200..400);
    mock.cluster.broker_round_trip_time(1, Duration::from_secs(2)).unwrap();
    until("all are done", || audit.count() == 400).await;
    // The last commit takes longer than a stop that is in a hurry waits for handlers, but not longer than for itself.
    member.stop_within(Duration::from_millis(100)).await.unwrap();
    mock.cluster.broker_round_trip_time(1, Duration::ZERO).unwrap();
    assert_eq!(mock.committed(2), 400);
    audit.assert_all(0..400);
}

/// A member that commits when it is stopped, and not before.
fn commits_last(source: Kafka, audit: &Arc<Audit>) -> Member {
    let audit = Arc::clone(audit);
    Member::with(
        source,
        |builder| builder.commit_every(LIMIT),
        move |delivery, roster| {
            audit.begin(0, &delivery.record);
            audit.end(0, &delivery.record, &roster, true);
            delivery.finish();
            async {}
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_commit_that_nobody_answers_is_an_error_after_its_time() {
    let mock = Mock::new(1, 1);
    mock.fill(0..10);
    let audit = Audit::new();
    let settings = settings(&mock.cluster.bootstrap_servers(), GROUP).topic(TOPIC).close(Duration::from_millis(300));
    let source = settings.build().unwrap();
    let member = commits_last(source, &audit);
    until("all are done", || audit.count() == 10).await;
    mock.cluster.broker_down(1).unwrap();
    let Err(RunError::Source(error)) = member.stop_within(Duration::from_secs(5)).await else {
        panic!("nobody says that the commit is missing");
    };
    assert!(matches!(error.downcast_ref(), Some(kafka::Error::NotCommitted(_))), "{error}");
    mock.cluster.broker_up(1).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_commit_of_a_member_that_the_group_has_forgotten_is_an_error() {
    let mock = Mock::new(1, 1);
    mock.fill(0..10);
    let audit = Audit::new();
    let member = commits_last(mock.source(), &audit);
    until("all are done", || audit.count() == 10).await;
    // However often it commits until it hears, by its next heartbeat, that it is no member any more.
    let forgotten = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID; 500];
    mock.cluster.request_errors(RDKafkaApiKey::OffsetCommit, &forgotten);
    mock.cluster.request_errors(RDKafkaApiKey::Heartbeat, &forgotten[..1]);
    let Err(RunError::Source(error)) = member.stop_within(Duration::from_secs(5)).await else {
        panic!("nobody says that the records come again");
    };
    assert!(matches!(error.downcast_ref(), Some(kafka::Error::NotCommitted(_))), "{error}");
    assert_eq!(mock.committed(1), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_32_a_broker_that_is_killed_and_started_again_is_found_again() {
    let mut broker = tokio::task::spawn_blocking(|| Broker::builder().start().unwrap()).await.unwrap();
    broker.create_topic(TOPIC, 2, &[]).unwrap();
    let fill = |broker: &Broker, numbers: std::ops::Range<u64>| {
        broker.fill(TOPIC, numbers.map(|n| (key(n, 20), n.to_string()))).unwrap();
    };
    fill(&broker, 0..200);
    let audit = Audit::new();
    let source = settings(&broker.bootstrap(), GROUP).topic(TOPIC).build().unwrap();
    let member = Member::audited(source, 0, &audit, Duration::ZERO);
    until("it has begun", || audit.count() == 200).await;
    let broker = tokio::task::spawn_blocking(move || {
        broker.kill9().unwrap();
        broker.restart().unwrap();
        broker
    });
    let broker = broker.await.unwrap();
    fill(&broker, 200..400);
    until("all are done", || audit.count() == 400).await;
    member.stop().await;
    audit.assert_all(0..400);
}

/// Again and again, while records are read, done and committed.
#[tokio::test(flavor = "multi_thread")]
async fn la_32_a_broker_that_is_killed_amid_reading_and_commits_costs_no_record() {
    const RECORDS: u64 = 3_000;
    let mut broker = tokio::task::spawn_blocking(|| Broker::builder().start().unwrap()).await.unwrap();
    broker.create_topic(TOPIC, 3, &[]).unwrap();
    broker.fill(TOPIC, (0..RECORDS).map(|n| (key(n, 20), n.to_string()))).unwrap();
    let audit = Audit::new();
    let source = settings(&broker.bootstrap(), GROUP).topic(TOPIC).build().unwrap();
    let often = |builder: Builder<Kafka, Tasks>| builder.concurrency(4).commit_every(Duration::from_millis(1));
    let member = Member::audited_as(source, often, 0, &audit, Duration::from_millis(2));
    for round in 1..=3 {
        until("it has got some way", || audit.count() >= round * RECORDS / 5).await;
        let again = tokio::task::spawn_blocking(move || {
            broker.kill9().unwrap();
            broker.restart().unwrap();
            broker
        });
        broker = again.await.unwrap();
    }
    until("all are done", || audit.count() == RECORDS).await;
    // Its session may have ended with the broker: then it joins again, and what was not committed comes again.
    let committed = || {
        let asking: BaseConsumer = broker.client_config().set("group.id", GROUP).create().unwrap();
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(TOPIC, 0, 2);
        let answer = asking.committed_offsets(asked, LIMIT).unwrap_or_default();
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
        answer.elements().iter().map(|at| offset(at.offset())).sum::<i64>()
    };
    until("all is committed", || committed() == RECORDS as i64).await;
    member.stop().await;
    audit.assert_all(0..RECORDS);
}

/// As where a broker has lost what it had confirmed: the producer of letters takes nothing more, and is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn letters_are_taken_though_their_producer_has_lost_track_of_its_broker() {
    let mock = Mock::new(1, 1);
    let topic = LetterTopic::new(&mock.cluster.bootstrap_servers(), TOPIC, Roster::default()).unwrap();
    let send = || {
        let record = Record::new(Lane(0), Epoch(1), Position(1), Some(b"k"), Some(b"v"));
        topic.send(Letter { record, failure: Failure::new("no"), attempts: 1, subscription: "test".into() })
    };
    send().await.unwrap();
    let lost = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[lost]);
    send().await.unwrap_err();
    send().await.unwrap();
}
