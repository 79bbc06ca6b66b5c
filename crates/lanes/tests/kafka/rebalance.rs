//! Rebalances: members that stay are not disturbed, and no record is lost.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::producer::{BaseRecord, Producer};
use tidegate_lanes::source::kafka::{KafkaSource, KafkaSourceBuilder};
use tidegate_lanes::{AsyncTasks, Bounds, Epoch, SubscriptionBuilder};
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::fixtures::{KafkaFixture, LIMIT, share, until};
use crate::member::GroupMember;

const PARTITIONS: u16 = 6;

/// Members join and leave while records are processed, each after it has received records.
async fn storm(fixture: &KafkaFixture, settings: impl Fn() -> KafkaSourceBuilder, audit: &Arc<Audit>) -> u64 {
    const RECORDS: u64 = 24_000;
    const ROUNDS: usize = 4;
    // Lanes are committed only when they are revoked.
    let rarely =
        |builder: SubscriptionBuilder<KafkaSource, AsyncTasks>| builder.commit_every(Duration::from_secs(3600));
    let start =
        |number| GroupMember::audited_as(settings().build().unwrap(), rarely, number, audit, Duration::from_millis(1));
    let staying = start(0);
    let feeding = {
        let (broker, topic) = (fixture.broker, fixture.topic.clone());
        tokio::task::spawn_blocking(move || {
            let slowly = (0..RECORDS).inspect(|n| {
                if n % 400 == 0 {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            broker.fill(&topic, slowly.map(|n| (format!("key-{}", n % 97), n.to_string()))).unwrap();
        })
    };
    let mut abandoned = 0;
    for round in 0..ROUNDS {
        let guests = [start(2 * round + 1), start(2 * round + 2)];
        for guest in &guests {
            until("guest has records", || guest.metrics().counters.done > 20 || audit.count() == RECORDS).await;
        }
        for guest in guests {
            abandoned += guest.stop().await.abandoned;
        }
    }
    feeding.await.unwrap();
    until("all finished", || audit.count() == RECORDS).await;
    abandoned += staying.stop().await.abandoned;
    assert_eq!(abandoned, 0, "a lane was revoked before it had drained");
    RECORDS
}

async fn storm_without_loss(fixture: KafkaFixture, settings: impl Fn() -> KafkaSourceBuilder) {
    let audit = Audit::new();
    let records = storm(&fixture, settings, &audit).await;
    audit.assert_all(0..records);
    // Only records finished beyond an unfinished one at the time of a revocation.
    let duplicates = audit.duplicates();
    assert!(duplicates <= records / 10, "{duplicates} of {records} were processed again");
    let committed = fixture.committed(i32::from(PARTITIONS));
    audit.assert_committed(&fixture.topic, &committed);
    assert_eq!(committed.iter().map(|offset| offset.unwrap_or(0)).sum::<i64>(), records as i64);
}

/// LA-27: cooperative rebalances lose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn cooperative_rebalances_lose_nothing() {
    let fixture = KafkaFixture::new("storm-cooperative", PARTITIONS);
    let settings = fixture.settings();
    storm_without_loss(fixture, move || settings.clone()).await;
}

/// LA-27: eager rebalances lose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn eager_rebalances_lose_nothing() {
    let fixture = KafkaFixture::new("storm-eager", PARTITIONS);
    let settings = fixture.settings().property("partition.assignment.strategy", "range");
    storm_without_loss(fixture, move || settings.clone()).await;
}

/// LA-35: broker managed rebalances lose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn broker_managed_rebalances_lose_nothing() {
    let fixture = KafkaFixture::new("storm-led", PARTITIONS);
    let settings = led(&fixture);
    storm_without_loss(fixture, move || settings.clone()).await;
}

/// The settings of a member of a broker-managed group (KIP-848).
fn led(fixture: &KafkaFixture) -> KafkaSourceBuilder {
    KafkaSource::builder(&fixture.broker.bootstrap(), &fixture.group)
        .topic(&fixture.topic)
        .property("group.protocol", "consumer")
        .property("fetch.wait.max.ms", "10")
}

/// Sends one fast record to each partition.
fn send_quick(producer: &rdkafka::producer::BaseProducer, topic: &str, partitions: i32) {
    for partition in 0..partitions {
        let record: BaseRecord<'_, str, str> = BaseRecord::to(topic).partition(partition).key("quick").payload("");
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(LIMIT).unwrap();
}

/// LA-28: lanes that stay continue during a drain.
#[tokio::test(flavor = "multi_thread")]
async fn lanes_that_stay_continue_during_a_drain() {
    let fixture = KafkaFixture::new("staying", 2);
    let quick: Arc<Mutex<[u64; 2]>> = Arc::default();
    let gate = Arc::new(Semaphore::new(0));
    let (seen, waiting) = (share(&quick), share(&gate));
    let source = fixture.settings().drain(Duration::from_secs(50)).build().unwrap();
    let member = GroupMember::with(
        source,
        |builder| builder,
        move |delivery, partition_map| {
            let (seen, gate) = (share(&seen), share(&waiting));
            async move {
                if delivery.record.key() == Some(b"slow") {
                    gate.acquire().await.unwrap().forget();
                } else {
                    let partition = partition_map.partition(delivery.record.lane()).unwrap();
                    seen.lock().unwrap()[partition.number as usize] += 1;
                }
                delivery.finish();
            }
        },
    );
    fixture.produce(0, Some("slow"), Some(""));
    fixture.produce(1, Some("slow"), Some(""));
    until("both lanes busy", || member.metrics().in_flight == 2).await;
    let guest = GroupMember::with(fixture.source(), |builder| builder, |delivery, _| async { delivery.finish() });
    // A lane is revoked and starts nothing more, the other continues. The group decides which.
    let producer = fixture.producer(&[]);
    until("one lane continues", || {
        send_quick(&producer, &fixture.topic, 2);
        let [left, right] = *quick.lock().unwrap();
        left.abs_diff(right) > 50
    })
    .await;
    assert_eq!(guest.metrics().counters.done, 0, "lane was reassigned before it had drained");
    assert_eq!(member.metrics().in_flight, 2);
    gate.add_permits(2);
    until("guest has its lane", || guest.metrics().counters.done > 0).await;
    let kept = member.metrics().lanes;
    assert_eq!((kept.len(), kept[0].epoch), (1, Epoch(1)), "remaining lane was revoked");
    member.stop().await;
    guest.stop().await;
}

/// LA-29: handler past the drain time loses its lane.
#[tokio::test(flavor = "multi_thread")]
async fn handler_past_the_drain_time_loses_its_lane() {
    let fixture = KafkaFixture::new("drain", 1);
    fixture.produce(0, Some("stuck"), Some("0"));
    let gate = Arc::new(Semaphore::new(0));
    let waiting = share(&gate);
    let source = fixture.settings().drain(Duration::from_millis(300)).build().unwrap();
    let member = GroupMember::with(
        source,
        |builder| builder,
        move |delivery, _| {
            let gate = share(&waiting);
            async move {
                let completion = delivery.completion;
                // Moved out of the handler, so that it outlives it.
                tokio::spawn(async move {
                    gate.acquire().await.unwrap().forget();
                    completion.finish();
                });
            }
        },
    );
    until("handler stuck", || member.metrics().in_flight == 1).await;
    let stopping = tokio::spawn(member.stop_within(Duration::from_millis(300)));
    let counters = stopping.await.unwrap().unwrap();
    assert_eq!((counters.done, counters.abandoned), (0, 1));
    assert_eq!(fixture.committed(1), [None], "unfinished record was committed");
    gate.add_permits(1);
    let audit = Audit::new();
    let next = GroupMember::audited(fixture.source(), 1, &audit, Duration::ZERO);
    until("delivered again", || audit.count() == 1).await;
    next.stop().await;
    assert_eq!(fixture.committed(1), [Some(1)]);
}

/// LA-30: late completion of an old epoch is ignored.
#[tokio::test(flavor = "multi_thread")]
async fn late_completion_of_an_old_epoch_is_ignored() {
    // Eager protocol: every join revokes all lanes, and most are assigned again immediately.
    let fixture = KafkaFixture::new("back", 2);
    fixture.produce(0, Some("stuck"), Some("0"));
    fixture.produce(1, Some("stuck"), Some("1"));
    let epochs: Arc<Mutex<BTreeSet<(u32, u32)>>> = Arc::default();
    let late = Arc::new(Semaphore::new(0));
    let is_first = Arc::new(AtomicBool::new(true));
    let (seen, gate, first) = (share(&epochs), share(&late), share(&is_first));
    let eager = || {
        let settings = fixture.settings().property("partition.assignment.strategy", "range");
        settings.drain(Duration::from_millis(200)).build().unwrap()
    };
    let member = GroupMember::with(
        eager(),
        |builder| builder,
        move |delivery, _| {
            let (gate, is_stuck) = (share(&gate), first.load(Ordering::Relaxed));
            seen.lock().unwrap().insert((delivery.record.lane().0, delivery.record.epoch().0));
            async move {
                if !is_stuck {
                    return delivery.finish();
                }
                let completion = delivery.completion;
                tokio::spawn(async move {
                    gate.acquire().await.unwrap().forget();
                    completion.finish();
                });
            }
        },
    );
    until("both lanes stuck", || member.metrics().in_flight == 2).await;
    is_first.store(false, Ordering::Relaxed);
    let guest = GroupMember::with(eager(), |builder| builder, |delivery, _| async { delivery.finish() });
    until("one lane is back", || member.metrics().counters.done == 1 && guest.metrics().counters.done == 1).await;
    // A shard may process the revocation after the guest.
    until("both abandoned", || member.metrics().counters.abandoned == 2).await;
    late.add_permits(2);
    until("late completions ignored", || member.metrics().counters.late == 2).await;
    assert_eq!(member.metrics().counters.done, 1);
    let epochs: Vec<u32> = epochs.lock().unwrap().iter().map(|(_, epoch)| *epoch).collect();
    assert_eq!(epochs.iter().filter(|epoch| **epoch == 2).count(), 1, "{epochs:?}");
    member.stop().await;
    guest.stop().await;
    assert_eq!(fixture.committed(2), [Some(1), Some(1)]);
}

/// LA-33: full subscription stays a member.
#[tokio::test(flavor = "multi_thread")]
async fn full_subscription_stays_a_member() {
    let fixture = KafkaFixture::new("full", 2);
    fixture.fill(0..200, 200);
    let audit = Audit::new();
    let gate = Arc::new(Semaphore::new(0));
    let (theirs, waiting) = (share(&audit), share(&gate));
    let source = fixture.settings().property("max.poll.interval.ms", "6000").build().unwrap();
    let bounds = Bounds { records_max: 20, ..Bounds::default() };
    let member = GroupMember::with(
        source,
        |builder| builder.bounds(bounds),
        move |delivery, partition_map| {
            let (audit, gate) = (share(&theirs), share(&waiting));
            async move {
                gate.acquire().await.unwrap().forget();
                audit.begin(0, &delivery.record);
                audit.end(0, &delivery.record, &partition_map, true);
                delivery.finish();
            }
        },
    );
    until("full", || member.metrics().is_full).await;
    // The test needs this time to pass.
    tokio::time::sleep(Duration::from_millis(7_500)).await;
    gate.add_permits(200);
    until("all finished", || audit.count() == 200).await;
    assert!(member.metrics().lanes.iter().all(|lane| lane.epoch == Epoch(1)), "lanes were revoked");
    member.stop().await;
    audit.assert_all(0..200);
    assert_eq!(audit.duplicates(), 0);
}

/// LA-35: static member gets its lanes back.
#[tokio::test(flavor = "multi_thread")]
async fn static_member_gets_its_lanes_back() {
    let fixture = KafkaFixture::new("static", 2);
    fixture.fill(0..50, 50);
    let named = |name: &str| fixture.settings().property("group.instance.id", name).build().unwrap();
    let audit = Audit::new();
    let staying = GroupMember::audited(named("a"), 0, &audit, Duration::ZERO);
    let leaving = GroupMember::audited(named("b"), 1, &audit, Duration::ZERO);
    until("one lane each", || staying.lanes().len() == 1 && leaving.lanes().len() == 1).await;
    let (kept, lanes) = (staying.lanes(), leaving.lanes());
    let epoch = staying.metrics().lanes[0].epoch;
    leaving.stop().await;
    let back = GroupMember::audited(named("b"), 2, &audit, Duration::ZERO);
    until("member is back", || back.lanes() == lanes).await;
    fixture.fill(50..100, 50);
    until("all finished", || audit.count() == 100).await;
    assert_eq!((staying.lanes(), staying.metrics().lanes[0].epoch), (kept, epoch), "other member was disturbed");
    staying.stop().await;
    back.stop().await;
    audit.assert_all(0..100);
    assert_eq!(audit.duplicates(), 0);
}
