//! Order and acknowledgements.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tempfile::TempDir;
use tidegate_journal::{Ack, AtEnd, Config, Entry, Journal, Note, Reader, Start, Time};

use crate::{
    LONG, ONE,
    checker::{Promises, name},
    note, payloads, small,
};

#[test]
fn jo_25_a_producers_order_survives_that_its_task_moves() {
    let folder = TempDir::new().unwrap();
    let config = Config { stripes: 3, bytes_max: 256 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let mut promises = Promises::default();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for producer in 0..50 {
            let handle = journal.producer();
            (0..200).for_each(|number| promises.offer(&name(producer, number)));
            tasks.push(tokio::spawn(async move {
                for number in 0..200 {
                    handle.append(note(name(producer, number).as_bytes())).await.unwrap();
                    // Whoever is free takes it on.
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
    promises.check(&found, Ack::Accepted).unwrap();
}

#[test]
fn jo_26_stripes_are_merged_into_the_order_in_which_things_happened() {
    let folder = TempDir::new().unwrap();
    let config = Config { stripes: 4, bytes_max: 256 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let now = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (producer, now) = (journal.producer(), &now);
            scope.spawn(move || {
                for _ in 0..500 {
                    let tick = now.fetch_add(1, SeqCst);
                    let record = tick.to_string();
                    let note = Note::new(ONE, record.as_bytes()).at(Time::from_unix_nanos(tick));
                    producer.append_blocking(note).unwrap();
                }
            });
        }
    });
    assert!(journal.close(LONG).is_complete());
    let ticks: Vec<u64> =
        payloads(folder.path()).iter().map(|record| std::str::from_utf8(record).unwrap().parse().unwrap()).collect();
    assert!(ticks.iter().copied().eq(1..=2000), "{ticks:?}");
}

#[test]
fn jo_27_what_is_written_can_be_read() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let mut reader = Reader::open(folder.path(), &Start::Beginning, AtEnd::Follow).unwrap();
    for number in 0..500 {
        let record = number.to_string();
        producer.commit_blocking(note(record.as_bytes()).ack(Ack::Written)).unwrap();
        match reader.read().unwrap() {
            Some(Entry::Record(found)) => assert_eq!(found.payload, record.as_bytes()),
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(reader.read().unwrap(), None);
}

#[test]
fn jo_43_a_clock_that_goes_back_changes_no_order() {
    let folder = TempDir::new().unwrap();
    let config = Config { stripes: 2, bytes_max: 128 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let (first, second) = (journal.producer(), journal.producer());
    // An hour twice, as in autumn; the other stripe has a leap of its own.
    let clock = [100, 200, 300, 150, 250, 350];
    for (number, nanos) in clock.into_iter().enumerate() {
        let at = |producer, text: String| {
            let note = Note::new(ONE, text.as_bytes()).at(Time::from_unix_nanos(nanos));
            tidegate_journal::Producer::append_blocking(producer, note).unwrap();
        };
        at(&first, name(0, number));
        at(&second, name(1, number));
    }
    assert!(journal.close(LONG).is_complete());
    let (mut promises, found) = (Promises::default(), payloads(folder.path()));
    (0..12).for_each(|number| promises.offer(&name(number / 6, number % 6)));
    promises.check(&found, Ack::Accepted).unwrap();
    assert_eq!(found.len(), 12);
    let from = Start::Time(Time::from_unix_nanos(250));
    let mut reader = Reader::open(folder.path(), &from, AtEnd::Stop).unwrap();
    let mut later = 0;
    while let Some(entry) = reader.read().unwrap() {
        assert!(matches!(entry, Entry::Record(record) if record.time.unix_nanos() >= 250));
        later += 1;
    }
    assert_eq!(later, 6, "by what each record says, not by where it stands");
}
