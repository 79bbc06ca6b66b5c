//! Contents of records, prefetch limits, and independence of lanes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer};
use tidegate_lanes::{Bounds, Record};
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::fixtures::{KafkaFixture, LIMIT, share, until};
use crate::member::GroupMember;

/// Reads `count` records of the topic.
async fn read(fixture: &KafkaFixture, count: usize) -> Vec<Record> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = share(&seen);
    let member = GroupMember::with(
        fixture.source(),
        |builder| builder,
        move |delivery, _| {
            theirs.lock().unwrap().push(delivery.record.clone());
            async { delivery.finish() }
        },
    );
    until("all records read", || seen.lock().unwrap().len() >= count).await;
    member.stop().await;
    Arc::into_inner(seen).map(|seen| seen.into_inner().unwrap()).unwrap_or_default()
}

/// LA-01: records are processed once in order and committed.
#[tokio::test(flavor = "multi_thread")]
async fn records_are_processed_once_in_order_and_committed() {
    let fixture = KafkaFixture::new("order", 3);
    fixture.fill(0..20_000, 500);
    let audit = Audit::new();
    let member = GroupMember::audited(fixture.source(), 0, &audit, Duration::ZERO);
    until("all finished", || audit.count() == 20_000).await;
    member.stop().await;
    audit.assert_all(0..20_000);
    assert_eq!(audit.duplicates(), 0);
    let committed = fixture.committed(3);
    audit.assert_committed(&fixture.topic, &committed);
    assert_eq!(committed.iter().map(|offset| offset.unwrap_or(0)).sum::<i64>(), 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn record_keeps_all_fields_and_tombstones() {
    let fixture = KafkaFixture::new("shape", 1);
    let producer = fixture.producer(&[]);
    let headers = OwnedHeaders::new()
        .insert(Header { key: "trace", value: Some("a") })
        .insert(Header { key: "trace", value: Some("b") })
        .insert(Header { key: "empty", value: None::<&str> });
    let full = BaseRecord::to(&fixture.topic).key("k").payload("p").timestamp(1_700_000_000_123).headers(headers);
    producer.send(full).map_err(|(error, _)| error).unwrap();
    producer.flush(LIMIT).unwrap();
    fixture.produce(0, Some("k"), None);
    fixture.produce(0, None, Some(""));
    let mut records = read(&fixture, 3).await;
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
async fn all_compression_types_are_read() {
    let fixture = KafkaFixture::new("packed", 1);
    let codecs = ["none", "gzip", "snappy", "lz4", "zstd"];
    for codec in codecs {
        let producer = fixture.producer(&[("compression.type", codec)]);
        producer
            .send(BaseRecord::to(&fixture.topic).key(codec).payload(&codec.repeat(1_000)))
            .map_err(|(e, _)| e)
            .unwrap();
        producer.flush(LIMIT).unwrap();
    }
    let records = read(&fixture, codecs.len()).await;
    for record in records {
        let codec = std::str::from_utf8(record.key().unwrap()).unwrap();
        assert_eq!(record.payload().unwrap(), codec.repeat(1_000).as_bytes());
    }
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// LA-20: large records stay within bytes max.
#[tokio::test(flavor = "multi_thread")]
async fn large_records_stay_within_bytes_max() {
    const RECORD: usize = 900_000;
    const COUNT: usize = 150;
    let fixture = KafkaFixture::new("large", 1);
    let payload = "x".repeat(RECORD);
    fixture.broker.fill(&fixture.topic, (0..COUNT).map(|n| (n.to_string(), payload.as_str()))).unwrap();
    let permits = Arc::new(Semaphore::new(0));
    let theirs = share(&permits);
    let before = resident_bytes();
    let bounds = Bounds { bytes_max: 16 << 20, ..Bounds::default() };
    let source = fixture.settings().prefetch_bytes(8 << 20).build().unwrap();
    let member = GroupMember::with(
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
    until("bound reached", || member.metrics().is_full).await;
    let pending = member.metrics().pending_bytes;
    assert!(pending <= (16 << 20) + RECORD, "{pending} bytes pending");
    permits.add_permits(COUNT / 2);
    until("half finished", || member.metrics().counters.done as usize == COUNT / 2).await;
    // 16 MiB of records, 8 MiB of prefetch and one fetch; the other 100 MB of the topic would exceed this.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "memory grew by {} MiB", grown >> 20);
    permits.add_permits(COUNT);
    until("all finished", || member.metrics().counters.done as usize == COUNT).await;
    member.stop().await;
}

/// LA-20: many partitions leave room for taken records.
#[tokio::test(flavor = "multi_thread")]
async fn many_partitions_leave_room_for_taken_records() {
    const PARTITIONS: u16 = 32;
    const EACH: usize = 800;
    let fixture = KafkaFixture::new("many", PARTITIONS);
    let payload = "x".repeat(1_000);
    for partition in 0..i32::from(PARTITIONS) {
        fixture.produce_all(partition, (0..EACH).map(|n| (Some(n.to_string()), Some(payload.as_str()))));
    }
    let permits = Arc::new(Semaphore::new(0));
    let theirs = share(&permits);
    let bounds = Bounds { bytes_max: 4 << 20, ready_max: usize::MAX, ..Bounds::default() };
    let source = fixture.settings().prefetch_bytes(2 << 20).build().unwrap();
    let member = GroupMember::with(
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
    until("all partitions assigned", || member.metrics().lanes.len() == usize::from(PARTITIONS)).await;
    let all = usize::from(PARTITIONS) * EACH;
    permits.add_permits(all / 2);
    until("half finished", || member.metrics().counters.done as usize == all / 2).await;
    // However much 32 partitions have prefetched, a quarter of the bound is left to taken records.
    until("many running", || member.metrics().is_full && member.metrics().pending_bytes > 900 << 10).await;
    let pending = member.metrics().pending_bytes;
    assert!(pending <= 4 << 20, "{pending} bytes pending");
    permits.add_permits(all);
    until("all finished", || member.metrics().counters.done as usize == all).await;
    member.stop().await;
}

/// LA-23: full lane does not block other lanes.
#[tokio::test(flavor = "multi_thread")]
async fn full_lane_does_not_block_other_lanes() {
    let fixture = KafkaFixture::new("slow-lane", 2);
    fixture.produce_all(0, (0..50).map(|n| (Some("slow"), Some(n.to_string()))));
    let gate = Arc::new(Semaphore::new(0));
    let theirs = share(&gate);
    let bounds = Bounds { lane_records_max: 10, ..Bounds::default() };
    let member = GroupMember::with(
        fixture.source(),
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
    let is_paused = |member: &GroupMember| member.metrics().lanes.iter().any(|lane| lane.is_paused);
    until("slow lane full", || is_paused(&member)).await;
    fixture.produce_all(1, (0..100).map(|n| (Some("quick"), Some(n.to_string()))));
    until("other lane finished", || member.metrics().counters.done == 100).await;
    assert!(is_paused(&member));
    gate.add_permits(50);
    until("slow lane finished", || member.metrics().counters.done == 150).await;
    member.stop().await;
    assert_eq!(fixture.committed(2), [Some(50), Some(100)]);
}
