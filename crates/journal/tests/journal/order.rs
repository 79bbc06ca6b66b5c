//! Order and acknowledgements.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, Journal, JournalConfig, JournalEntry, JournalReader, ProducerRecord, ReadFrom, Timestamp,
};

use crate::{
    LONG, ONE,
    checker::{DurabilityChecker, name},
    new_record, payloads, small,
};

/// JO-25: order survives task migration.
#[test]
fn order_survives_task_migration() {
    let folder = TempDir::new().unwrap();
    let config = JournalConfig { stripes: 3, bytes_max: 256 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let mut checker = DurabilityChecker::default();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for producer in 0..50 {
            let handle = journal.producer();
            (0..200).for_each(|number| checker.offer(&name(producer, number)));
            tasks.push(tokio::spawn(async move {
                for number in 0..200 {
                    handle.append(new_record(name(producer, number).as_bytes())).await.unwrap();
                    // Any worker may continue the task.
                    tokio::task::yield_now().await;
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert!(journal.close(LONG).is_complete());
    let found = payloads(folder.path());
    assert_eq!(found.len(), 50 * 200);
    checker.check(&found, Ack::Accepted).unwrap();
}

/// JO-26: stripes are merged in time order.
#[test]
fn stripes_are_merged_in_time_order() {
    let folder = TempDir::new().unwrap();
    let config = JournalConfig { stripes: 4, bytes_max: 256 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let now = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (producer, now) = (journal.producer(), &now);
            scope.spawn(move || {
                for _ in 0..500 {
                    let tick = now.fetch_add(1, SeqCst);
                    let record = tick.to_string();
                    let record = ProducerRecord::new(ONE, record.as_bytes()).at(Timestamp::from_unix_nanos(tick));
                    producer.append_blocking(record).unwrap();
                }
            });
        }
    });
    assert!(journal.close(LONG).is_complete());
    let ticks: Vec<u64> =
        payloads(folder.path()).iter().map(|record| std::str::from_utf8(record).unwrap().parse().unwrap()).collect();
    assert!(ticks.iter().copied().eq(1..=2000), "{ticks:?}");
}

/// JO-27: written records can be read.
#[test]
fn written_records_can_be_read() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow).unwrap();
    for number in 0..500 {
        let record = number.to_string();
        producer.commit_blocking(new_record(record.as_bytes()).ack(Ack::Written)).unwrap();
        match reader.read().unwrap() {
            Some(JournalEntry::Record(found)) => assert_eq!(found.payload, record.as_bytes()),
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(reader.read().unwrap(), None);
}

/// JO-43: clock going back keeps the order.
#[test]
fn clock_going_back_keeps_the_order() {
    let folder = TempDir::new().unwrap();
    let config = JournalConfig { stripes: 2, bytes_max: 128 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let (first, second) = (journal.producer(), journal.producer());
    // The same hour twice, as in autumn; the other stripe goes back at another time.
    let clock = [100, 200, 300, 150, 250, 350];
    for (number, nanos) in clock.into_iter().enumerate() {
        let at = |producer, text: String| {
            let record = ProducerRecord::new(ONE, text.as_bytes()).at(Timestamp::from_unix_nanos(nanos));
            tidegate_journal::Producer::append_blocking(producer, record).unwrap();
        };
        at(&first, name(0, number));
        at(&second, name(1, number));
    }
    assert!(journal.close(LONG).is_complete());
    let (mut checker, found) = (DurabilityChecker::default(), payloads(folder.path()));
    (0..12).for_each(|number| checker.offer(&name(number / 6, number % 6)));
    checker.check(&found, Ack::Accepted).unwrap();
    assert_eq!(found.len(), 12);
    let from = ReadFrom::Timestamp(Timestamp::from_unix_nanos(250));
    let mut reader = JournalReader::open(folder.path(), &from, AtEnd::Stop).unwrap();
    let mut later = 0;
    while let Some(entry) = reader.read().unwrap() {
        assert!(matches!(entry, JournalEntry::Record(record) if record.time.unix_nanos() >= 250));
        later += 1;
    }
    assert_eq!(later, 6, "by the timestamp of each record, not by its place");
}
