//! The memory bound: bytes over all producers, for any number of them and any state of the disk.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use tempfile::TempDir;
use tidegate_journal::{Ack, ClassConfig, Journal, JournalConfig, LossCause, OverloadPolicy};

use crate::{BLOCK, LONG, faults::FaultyDisk, new_record, payloads, rounds, small};

/// JO-18: ten thousand producers wait for a hanging disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_producers_wait_for_a_hanging_disk() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let config = JournalConfig { bytes_max: 256 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    disk.stall();
    let done = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for number in 0..10_000 {
        let (producer, done) = (journal.producer(), Arc::clone(&done));
        tasks.push(tokio::spawn(async move {
            producer.append(new_record(format!("{number:>200}").as_bytes())).await.unwrap();
            done.fetch_add(1, SeqCst);
        }));
    }
    while done.load(SeqCst) + journal.stats().blocked < 10_000 {
        tokio::task::yield_now().await;
    }
    let stats = journal.stats();
    assert!(stats.reserved_bytes_max <= 256 << 10 && stats.blocked > 8_000, "{stats:?}");
    disk.resume();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(journal.stats().reserved_bytes_max <= 256 << 10);
    let closing = tokio::task::spawn_blocking(move || journal.close(LONG));
    assert!(closing.await.unwrap().is_complete());
    assert_eq!(payloads(folder.path()).len(), 10_000);
}

/// JO-21: waiting producers are served in order.
#[test]
fn waiting_producers_are_served_in_order() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    let mut filled = 0;
    while producer.offer(new_record(&[b'x'; 500])).is_ok() {
        filled += 1;
    }
    // Polled in this order, and then in reverse.
    let texts: Vec<String> = (0..500).map(|number| format!("{number:>500}")).collect();
    let mut waiting: Vec<_> = texts.iter().map(|text| Box::pin(producer.append(new_record(text.as_bytes())))).collect();
    let mut context = Context::from_waker(Waker::noop());
    for future in &mut waiting {
        assert!(future.as_mut().poll(&mut context).is_pending());
    }
    // A later producer does not overtake them.
    assert!(producer.offer(new_record(b"late")).is_err());
    disk.resume();
    let mut left = waiting.len();
    while left > 0 {
        let before = left;
        let served = waiting.iter_mut().take(left).rev().map(|future| future.as_mut().poll(&mut context).is_ready());
        let served: Vec<bool> = served.collect();
        let first = served.iter().rev().position(|ready| !ready).unwrap_or(left);
        assert!(served.iter().rev().skip(first).all(|ready| !ready), "a waiter was overtaken: {served:?}");
        waiting.drain(..first);
        left = waiting.len();
        if left == before {
            std::thread::yield_now();
        }
    }
    drop(waiting);
    assert!(journal.close(LONG).is_complete());
    assert_eq!(payloads(folder.path()).len(), filled + 500);
}

/// JO-21: granted room is kept for its waiter.
#[test]
fn granted_room_is_kept_for_its_waiter() {
    let folder = TempDir::new().unwrap();
    let (blocks, drops) = (ClassConfig::new("blocks").overload(BLOCK), ClassConfig::new("drops"));
    let classes = vec![blocks, drops.overload(OverloadPolicy::DropNewest)];
    let config = JournalConfig { stripes: 2, bytes_max: 128 << 10, classes, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let mut random = fastrand::Rng::with_seed(crate::seed());
    let producers = [journal.producer_for(0), journal.producer_for(1)];
    let sizes: Vec<usize> = (0..2000).map(|_| random.usize(1..4000)).collect();
    let payload = [b'x'; 4000];
    let mut context = Context::from_waker(Waker::noop());
    let append = |size: &usize| Box::pin(producers[size % 2].append(new_record(&payload[..*size])));
    let mut waiting: Vec<_> = sizes.iter().map(append).collect();
    waiting.retain_mut(|future| future.as_mut().poll(&mut context).is_pending());
    // The waiters are polled from the end of the queue, while a producer that never waits takes free room.
    let thief = journal.producer_for(0);
    while !waiting.is_empty() {
        let mut ready = Vec::new();
        for (number, future) in waiting.iter_mut().rev().enumerate() {
            ready.push(future.as_mut().poll(&mut context).is_ready());
            if number % 10 == 0 {
                let _ = thief
                    .offer(tidegate_journal::ProducerRecord::new(tidegate_journal::Class::new(1), &payload[..300]));
            }
        }
        let first = ready.iter().rev().position(|ready| !ready).unwrap_or(ready.len());
        assert!(ready.iter().rev().skip(first).all(|ready| !ready), "a waiter was overtaken");
        waiting.drain(..first);
        std::thread::yield_now();
    }
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let stats = journal.stats();
    assert_eq!((stats.reserved_bytes, stats.blocked, stats.classes[0].accepted), (0, 0, 2000), "{stats:?}");
    assert!(stats.reserved_bytes_max <= 128 << 10);
}

/// JO-21: no producer starves. Some append again immediately and are polled far more often than others: a waiter is
/// passed by each other producer at most once, with room that was granted earlier.
#[test]
fn no_producer_starves() {
    const PRODUCERS: usize = 8;
    let folder = TempDir::new().unwrap();
    let (disk, mut random) = (FaultyDisk::healthy(), fastrand::Rng::with_seed(crate::seed()));
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    let payload = [b'x'; 500];
    let append = || Box::pin(producer.append(new_record(&payload)));
    let mut waiting: Vec<_> = (0..PRODUCERS).map(|_| append()).collect();
    // The number of appends of each producer, now and when a producer joined the queue.
    let mut counts = [0_usize; PRODUCERS];
    let mut joined: [Option<[usize; PRODUCERS]>; PRODUCERS] = [None; PRODUCERS];
    let mut context = Context::from_waker(Waker::noop());
    let mut poll = |number: usize, counts: &mut [usize; PRODUCERS]| {
        if waiting[number].as_mut().poll(&mut context).is_ready() {
            counts[number] += 1;
            joined[number] = None;
            waiting[number] = append();
        } else {
            let before = *joined[number].get_or_insert(*counts);
            let passed = counts.iter().zip(before).map(|(now, then)| now - then).max();
            assert!(passed <= Some(1), "{number} was passed {passed:?} times by another producer");
        }
    };
    for _ in 0..50 {
        disk.stall();
        while journal.stats().blocked < PRODUCERS {
            (0..PRODUCERS).for_each(|number| poll(number, &mut counts));
        }
        disk.resume();
        let before = counts;
        crate::until("all producers append", || {
            let number = if random.bool() { 0 } else { random.usize(0..PRODUCERS) };
            poll(number, &mut counts);
            counts.iter().zip(before).all(|(now, then)| *now > then)
        });
    }
    drop(waiting);
    assert!(journal.close(LONG).is_complete());
}

/// JO-22: deadline beyond the clock means no deadline.
#[test]
fn deadline_beyond_the_clock_means_no_deadline() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let forever = OverloadPolicy::Block { deadline: std::time::Duration::MAX };
    let config = JournalConfig { classes: vec![ClassConfig::new("one").overload(forever)], ..small(folder.path()) };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    crate::fill(&disk, &journal);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| producer.append_blocking(new_record(&[b'x'; 500])).is_ok());
        crate::until("the append waits", || journal.stats().blocked == 1);
        disk.resume();
        assert!(waiting.join().unwrap());
    });
    assert!(journal.flush(Ack::Written, std::time::Duration::MAX).unwrap());
    assert!(journal.close(std::time::Duration::MAX).is_complete());
}

/// JO-23: dropped append releases its room.
#[test]
fn dropped_append_releases_its_room() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    let filled = crate::fill(&disk, &journal);
    let mut context = Context::from_waker(Waker::noop());
    // The size of the records before, so that no chunk has room for it.
    let waiting = |_what: &str| producer.append(new_record(&[b'x'; 500]));
    {
        let mut dropped = Box::pin(waiting("dropped while waiting"));
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        assert_eq!(journal.stats().blocked, 1);
    }
    assert_eq!(journal.stats().blocked, 0);
    // An append that is dropped after it was granted room passes the room on.
    let mut first = Box::pin(waiting("dropped after it was granted room"));
    let mut second = pin!(waiting("the second"));
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    disk.resume();
    crate::until("both are granted room", || journal.stats().blocked == 0);
    drop(first);
    crate::until("the second append completes", || matches!(second.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let stats = journal.stats();
    assert_eq!((stats.reserved_bytes, stats.blocked), (0, 0));
    assert_eq!(stats.classes[0].lost_total(), 1, "a cancelled append is not a loss");
    assert_eq!(payloads(folder.path()).len(), filled + 1);
}

/// JO-24: reservations do not leak over many appends.
#[test]
fn reservations_do_not_leak_over_many_appends() {
    let folder = TempDir::new().unwrap();
    let mut config = small(folder.path());
    let lossy = [OverloadPolicy::DropNewest, OverloadPolicy::DropOldest, OverloadPolicy::Sample { one_in: 3 }, BLOCK];
    config.classes = lossy.map(|overload| ClassConfig::new("any").overload(overload)).into();
    config.segment_bytes = 1 << 20;
    config.segment_policy = tidegate_journal::SegmentPolicy::Ring { segments: 2 };
    let (journal, _) = Journal::open(config).unwrap();
    let appends = rounds("TIDEGATE_JOURNAL_APPENDS", 400_000);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let producer = journal.producer();
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(u64::from(thread));
                for _ in 0..appends / 4 {
                    let class = tidegate_journal::Class::new(random.u8(..4));
                    let _ = producer
                        .offer(tidegate_journal::ProducerRecord::new(class, &[b'x'; 300][..random.usize(..300)]));
                }
            });
        }
    });
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let stats = journal.stats();
    assert_eq!((stats.reserved_bytes, stats.queued_bytes, stats.blocked), (0, 0, 0), "{stats:?}");
    assert!(stats.classes.iter().all(|class| class.lost(LossCause::TooLarge) == 0));
    let offered: u64 = stats.classes.iter().map(|class| class.offered()).sum();
    assert_eq!(offered, appends as u64 / 4 * 4);
}
