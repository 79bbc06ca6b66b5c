//! What a record looks like, how much is read ahead, and who waits for whom.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer};
use tidegate_lanes::{Bounds, Record};
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::member::Member;
use crate::world::{LIMIT, World, share, until};

/// Reads `count` records of the topic.
async fn read(world: &World, count: usize) -> Vec<Record> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = share(&seen);
    let member = Member::with(
        world.source(),
        |builder| builder,
        move |delivery, _| {
            theirs.lock().unwrap().push(delivery.record.clone());
            async { delivery.finish() }
        },
    );
    until("all records are read", || seen.lock().unwrap().len() >= count).await;
    member.stop().await;
    Arc::into_inner(seen).map(|seen| seen.into_inner().unwrap()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn la_01_every_record_once_in_order_per_key_and_all_is_committed() {
    let world = World::new("order", 3);
    world.fill(0..20_000, 500);
    let audit = Audit::new();
    let member = Member::audited(world.source(), 0, &audit, Duration::ZERO);
    until("all are done", || audit.count() == 20_000).await;
    member.stop().await;
    audit.assert_all(0..20_000);
    assert_eq!(audit.duplicates(), 0);
    let committed = world.committed(3);
    audit.assert_committed(&world.topic, &committed);
    assert_eq!(committed.iter().map(|offset| offset.unwrap_or(0)).sum::<i64>(), 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_keeps_key_payload_headers_and_time_and_a_tombstone_is_no_empty_payload() {
    let world = World::new("shape", 1);
    let producer = world.producer(&[]);
    let headers = OwnedHeaders::new()
        .insert(Header { key: "trace", value: Some("a") })
        .insert(Header { key: "trace", value: Some("b") })
        .insert(Header { key: "empty", value: None::<&str> });
    let full = BaseRecord::to(&world.topic).key("k").payload("p").timestamp(1_700_000_000_123).headers(headers);
    producer.send(full).map_err(|(error, _)| error).unwrap();
    producer.flush(LIMIT).unwrap();
    world.produce(0, Some("k"), None);
    world.produce(0, None, Some(""));
    let mut records = read(&world, 3).await;
    records.sort_by_key(Record::position);
    assert_eq!((records[0].key(), records[0].payload()), (Some(&b"k"[..]), Some(&b"p"[..])));
    assert_eq!(records[0].timestamp_ms(), 1_700_000_000_123);
    let headers: Vec<(&str, Option<&[u8]>)> =
        records[0].headers().iter().map(|header| (&*header.name, header.value.as_deref())).collect();
    assert_eq!(headers, [("trace", Some(&b"a"[..])), ("trace", Some(b"b")), ("empty", None)]);
    assert_eq!((records[1].key(), records[1].payload()), (Some(&b"k"[..]), None));
    assert_eq!((records[2].key(), records[2].payload()), (None, Some(&b""[..])));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_compression_can_be_read() {
    let world = World::new("packed", 1);
    let codecs = ["none", "gzip", "snappy", "lz4", "zstd"];
    for codec in codecs {
        let producer = world.producer(&[("compression.type", codec)]);
        producer
            .send(BaseRecord::to(&world.topic).key(codec).payload(&codec.repeat(1_000)))
            .map_err(|(e, _)| e)
            .unwrap();
        producer.flush(LIMIT).unwrap();
    }
    let records = read(&world, codecs.len()).await;
    for record in records {
        let codec = std::str::from_utf8(record.key().unwrap()).unwrap();
        assert_eq!(record.payload().unwrap(), codec.repeat(1_000).as_bytes());
    }
}

/// Bytes of memory that are this process's own.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn la_20_large_records_stay_within_the_bounds_with_what_the_client_reads_ahead() {
    const RECORD: usize = 900_000;
    const COUNT: usize = 150;
    let world = World::new("large", 1);
    let payload = "x".repeat(RECORD);
    world.broker.fill(&world.topic, (0..COUNT).map(|n| (n.to_string(), payload.as_str()))).unwrap();
    let permits = Arc::new(Semaphore::new(0));
    let theirs = share(&permits);
    let before = resident_bytes();
    let bounds = Bounds { bytes_max: 16 << 20, ..Bounds::default() };
    let source = world.settings().prefetch_bytes(8 << 20).build().unwrap();
    let member = Member::with(
        source,
        |builder| builder.bounds(bounds),
        move |delivery, _| {
            let permits = share(&theirs);
            async move {
                permits.acquire().await.unwrap().forget();
                delivery.finish();
            }
        },
    );
    until("the bound is reached", || member.metrics().is_full).await;
    let pending = member.metrics().pending_bytes;
    assert!(pending <= (16 << 20) + RECORD, "{pending} bytes pending");
    permits.add_permits(COUNT / 2);
    until("half is done", || member.metrics().tally.done as usize == COUNT / 2).await;
    // 16 MiB ours, 8 MiB and a fetch of the client's; the other 100 MB of the topic would not fit below this.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "grown by {} MiB", grown >> 20);
    permits.add_permits(COUNT);
    until("all is done", || member.metrics().tally.done as usize == COUNT).await;
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn la_20_many_partitions_do_not_leave_one_record_at_a_time() {
    const PARTITIONS: u16 = 32;
    const EACH: usize = 800;
    let world = World::new("many", PARTITIONS);
    let payload = "x".repeat(1_000);
    for partition in 0..i32::from(PARTITIONS) {
        world.produce_all(partition, (0..EACH).map(|n| (Some(n.to_string()), Some(payload.as_str()))));
    }
    let permits = Arc::new(Semaphore::new(0));
    let theirs = share(&permits);
    let bounds = Bounds { bytes_max: 4 << 20, ready_max: usize::MAX, ..Bounds::default() };
    let source = world.settings().prefetch_bytes(2 << 20).build().unwrap();
    let member = Member::with(
        source,
        |builder| builder.bounds(bounds),
        move |delivery, _| {
            let permits = share(&theirs);
            async move {
                permits.acquire().await.unwrap().forget();
                delivery.finish();
            }
        },
    );
    until("all partitions are here", || member.metrics().lanes.len() == usize::from(PARTITIONS)).await;
    let all = usize::from(PARTITIONS) * EACH;
    permits.add_permits(all / 2);
    until("half is done", || member.metrics().tally.done as usize == all / 2).await;
    // Whatever lies ahead in 32 partitions: a quarter of the bound is for what was taken.
    until("many run", || member.metrics().is_full && member.metrics().pending_bytes > 900 << 10).await;
    let pending = member.metrics().pending_bytes;
    assert!(pending <= 4 << 20, "{pending} bytes pending");
    permits.add_permits(all);
    until("all is done", || member.metrics().tally.done as usize == all).await;
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn la_23_a_lane_that_is_full_holds_up_no_other() {
    let world = World::new("slow-lane", 2);
    world.produce_all(0, (0..50).map(|n| (Some("slow"), Some(n.to_string()))));
    let gate = Arc::new(Semaphore::new(0));
    let theirs = share(&gate);
    let bounds = Bounds { lane_records_max: 10, ..Bounds::default() };
    let member = Member::with(
        world.source(),
        |builder| builder.bounds(bounds),
        move |delivery, _| {
            let gate = share(&theirs);
            async move {
                if delivery.record.key() == Some(b"slow") {
                    gate.acquire().await.unwrap().forget();
                }
                delivery.finish();
            }
        },
    );
    let is_paused = |member: &Member| member.metrics().lanes.iter().any(|lane| lane.is_paused);
    until("the slow lane is full", || is_paused(&member)).await;
    world.produce_all(1, (0..100).map(|n| (Some("quick"), Some(n.to_string()))));
    until("the other lane is done", || member.metrics().tally.done == 100).await;
    assert!(is_paused(&member));
    gate.add_permits(50);
    until("the slow lane is done", || member.metrics().tally.done == 150).await;
    member.stop().await;
    assert_eq!(world.committed(2), [Some(50), Some(100)]);
}
