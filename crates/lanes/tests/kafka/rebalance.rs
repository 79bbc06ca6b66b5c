//! Members that come and go: what the others notice of it, and what is lost, which is nothing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::producer::{BaseRecord, Producer};
use tidegate_lanes::source::kafka::{Kafka, Settings};
use tidegate_lanes::{Bounds, Builder, Epoch, Tasks};
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::member::Member;
use crate::world::{LIMIT, World, share, until};

const PARTITIONS: u16 = 6;

/// Members join and leave while records flow, each after it has got a share of the work.
async fn storm(world: &World, settings: impl Fn() -> Settings, audit: &Arc<Audit>) -> u64 {
    const RECORDS: u64 = 24_000;
    const ROUNDS: usize = 4;
    // Lanes are committed when they leave, and at no other time.
    let rarely = |builder: Builder<Kafka, Tasks>| builder.commit_every(Duration::from_secs(3600));
    let start =
        |number| Member::audited_as(settings().build().unwrap(), rarely, number, audit, Duration::from_millis(1));
    let staying = start(0);
    let feeding = {
        let (broker, topic) = (world.broker, world.topic.clone());
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
            until("a guest has a share", || guest.metrics().tally.done > 20 || audit.count() == RECORDS).await;
        }
        for guest in guests {
            abandoned += guest.stop().await.abandoned;
        }
    }
    feeding.await.unwrap();
    until("all are done", || audit.count() == RECORDS).await;
    abandoned += staying.stop().await.abandoned;
    assert_eq!(abandoned, 0, "every lane came to rest before it went to somebody else");
    RECORDS
}

async fn storm_without_loss(world: World, settings: impl Fn() -> Settings) {
    let audit = Audit::new();
    let records = storm(&world, settings, &audit).await;
    audit.assert_all(0..records);
    // Only what was done beyond a record that had not begun when its lane was taken away.
    let duplicates = audit.duplicates();
    assert!(duplicates <= records / 10, "{duplicates} of {records} were done again");
    let committed = world.committed(i32::from(PARTITIONS));
    audit.assert_committed(&world.topic, &committed);
    assert_eq!(committed.iter().map(|offset| offset.unwrap_or(0)).sum::<i64>(), records as i64);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_27_a_storm_of_cooperative_rebalances_loses_nothing() {
    let world = World::new("storm-cooperative", PARTITIONS);
    let settings = world.settings();
    storm_without_loss(world, move || settings.clone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn la_27_a_storm_of_eager_rebalances_loses_nothing() {
    let world = World::new("storm-eager", PARTITIONS);
    let settings = world.settings().property("partition.assignment.strategy", "range");
    storm_without_loss(world, move || settings.clone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn la_35_a_storm_in_a_group_that_the_broker_leads_loses_nothing() {
    let world = World::new("storm-led", PARTITIONS);
    let settings = led(&world);
    storm_without_loss(world, move || settings.clone()).await;
}

/// Settings of a member of a group of KIP-848.
fn led(world: &World) -> Settings {
    Kafka::builder(&world.broker.bootstrap(), &world.group)
        .topic(&world.topic)
        .property("group.protocol", "consumer")
        .property("fetch.wait.max.ms", "10")
}

/// Sends one quick record to each of the partitions.
fn send_quick(producer: &rdkafka::producer::BaseProducer, topic: &str, partitions: i32) {
    for partition in 0..partitions {
        let record: BaseRecord<'_, str, str> = BaseRecord::to(topic).partition(partition).key("quick").payload("");
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(LIMIT).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn la_28_lanes_that_stay_go_on_while_others_come_to_rest() {
    let world = World::new("staying", 2);
    let quick: Arc<Mutex<[u64; 2]>> = Arc::default();
    let gate = Arc::new(Semaphore::new(0));
    let (seen, waiting) = (share(&quick), share(&gate));
    let source = world.settings().drain(Duration::from_secs(50)).build().unwrap();
    let member = Member::with(
        source,
        |builder| builder,
        move |delivery, roster| {
            let (seen, gate) = (share(&seen), share(&waiting));
            async move {
                if delivery.record.key() == Some(b"slow") {
                    gate.acquire().await.unwrap().forget();
                } else {
                    let partition = roster.partition(delivery.record.lane()).unwrap();
                    seen.lock().unwrap()[partition.number as usize] += 1;
                }
                delivery.finish();
            }
        },
    );
    world.produce(0, Some("slow"), Some(""));
    world.produce(1, Some("slow"), Some(""));
    until("both lanes are busy", || member.metrics().in_flight == 2).await;
    let guest = Member::with(world.source(), |builder| builder, |delivery, _| async { delivery.finish() });
    // One lane is to leave and starts nothing any more; the other one goes on. Which, the group decides.
    let producer = world.producer(&[]);
    until("one lane goes on while the other does not", || {
        send_quick(&producer, &world.topic, 2);
        let [left, right] = *quick.lock().unwrap();
        left.abs_diff(right) > 50
    })
    .await;
    assert_eq!(guest.metrics().tally.done, 0, "the lane is not given away before it is at rest");
    assert_eq!(member.metrics().in_flight, 2);
    gate.add_permits(2);
    until("the guest has its lane", || guest.metrics().tally.done > 0).await;
    let kept = member.metrics().lanes;
    assert_eq!((kept.len(), kept[0].epoch), (1, Epoch(1)), "the lane that stayed was never taken away");
    member.stop().await;
    guest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn la_29_a_handler_that_does_not_end_in_time_loses_its_lane_and_its_record_comes_again() {
    let world = World::new("drain", 1);
    world.produce(0, Some("stuck"), Some("0"));
    let gate = Arc::new(Semaphore::new(0));
    let waiting = share(&gate);
    let source = world.settings().drain(Duration::from_millis(300)).build().unwrap();
    let member = Member::with(
        source,
        |builder| builder,
        move |delivery, _| {
            let gate = share(&waiting);
            async move {
                let completion = delivery.completion;
                // Moved away, so that it outlives its handler.
                tokio::spawn(async move {
                    gate.acquire().await.unwrap().forget();
                    completion.finish();
                });
            }
        },
    );
    until("the handler is stuck", || member.metrics().in_flight == 1).await;
    let stopping = tokio::spawn(member.stop_within(Duration::from_millis(300)));
    let tally = stopping.await.unwrap().unwrap();
    assert_eq!((tally.done, tally.abandoned), (0, 1));
    assert_eq!(world.committed(1), [None], "what is not done is not committed");
    gate.add_permits(1);
    let audit = Audit::new();
    let next = Member::audited(world.source(), 1, &audit, Duration::ZERO);
    until("it comes again", || audit.count() == 1).await;
    next.stop().await;
    assert_eq!(world.committed(1), [Some(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_30_a_lane_that_comes_back_has_another_epoch_and_what_is_late_does_nothing() {
    // Eager: every lane is taken away whenever somebody joins, and most come back at once.
    let world = World::new("back", 2);
    world.produce(0, Some("stuck"), Some("0"));
    world.produce(1, Some("stuck"), Some("1"));
    let epochs: Arc<Mutex<BTreeSet<(u32, u32)>>> = Arc::default();
    let late = Arc::new(Semaphore::new(0));
    let is_first = Arc::new(AtomicBool::new(true));
    let (seen, gate, first) = (share(&epochs), share(&late), share(&is_first));
    let eager = || {
        let settings = world.settings().property("partition.assignment.strategy", "range");
        settings.drain(Duration::from_millis(200)).build().unwrap()
    };
    let member = Member::with(
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
    until("both lanes are stuck", || member.metrics().in_flight == 2).await;
    is_first.store(false, Ordering::Relaxed);
    let guest = Member::with(eager(), |builder| builder, |delivery, _| async { delivery.finish() });
    until("one lane is back", || member.metrics().tally.done == 1 && guest.metrics().tally.done == 1).await;
    // A shard may hear of it behind the guest.
    until("both are given up", || member.metrics().tally.abandoned == 2).await;
    late.add_permits(2);
    until("the late ones are ignored", || member.metrics().tally.late == 2).await;
    assert_eq!(member.metrics().tally.done, 1);
    let epochs: Vec<u32> = epochs.lock().unwrap().iter().map(|(_, epoch)| *epoch).collect();
    assert_eq!(epochs.iter().filter(|epoch| **epoch == 2).count(), 1, "{epochs:?}");
    member.stop().await;
    guest.stop().await;
    assert_eq!(world.committed(2), [Some(1), Some(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_33_a_subscription_that_is_full_for_longer_than_max_poll_interval_stays_a_member() {
    let world = World::new("full", 2);
    world.fill(0..200, 200);
    let audit = Audit::new();
    let gate = Arc::new(Semaphore::new(0));
    let (theirs, waiting) = (share(&audit), share(&gate));
    let source = world.settings().property("max.poll.interval.ms", "6000").build().unwrap();
    let bounds = Bounds { records_max: 20, ..Bounds::default() };
    let member = Member::with(
        source,
        |builder| builder.bounds(bounds),
        move |delivery, roster| {
            let (audit, gate) = (share(&theirs), share(&waiting));
            async move {
                gate.acquire().await.unwrap().forget();
                audit.begin(0, &delivery.record);
                audit.end(0, &delivery.record, &roster, true);
                delivery.finish();
            }
        },
    );
    until("it is full", || member.metrics().is_full).await;
    // What is tested is that this time passes.
    tokio::time::sleep(Duration::from_millis(7_500)).await;
    gate.add_permits(200);
    until("all are done", || audit.count() == 200).await;
    assert!(member.metrics().lanes.iter().all(|lane| lane.epoch == Epoch(1)), "its lanes were taken away");
    member.stop().await;
    audit.assert_all(0..200);
    assert_eq!(audit.duplicates(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn la_35_a_static_member_that_comes_back_finds_its_lanes_as_they_were() {
    let world = World::new("static", 2);
    world.fill(0..50, 50);
    let named = |name: &str| world.settings().property("group.instance.id", name).build().unwrap();
    let audit = Audit::new();
    let staying = Member::audited(named("a"), 0, &audit, Duration::ZERO);
    let leaving = Member::audited(named("b"), 1, &audit, Duration::ZERO);
    until("each has a lane", || staying.lanes().len() == 1 && leaving.lanes().len() == 1).await;
    let (kept, lanes) = (staying.lanes(), leaving.lanes());
    let epoch = staying.metrics().lanes[0].epoch;
    leaving.stop().await;
    let back = Member::audited(named("b"), 2, &audit, Duration::ZERO);
    until("it is back", || back.lanes() == lanes).await;
    world.fill(50..100, 50);
    until("all are done", || audit.count() == 100).await;
    assert_eq!((staying.lanes(), staying.metrics().lanes[0].epoch), (kept, epoch), "nobody else noticed");
    staying.stop().await;
    back.stop().await;
    audit.assert_all(0..100);
    assert_eq!(audit.duplicates(), 0);
}
