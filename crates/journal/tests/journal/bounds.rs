//! The one bound: bytes over all producers, however many there are and whatever the disk does.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use tempfile::TempDir;
use tidegate_journal::{Ack, Cause, ClassConfig, Config, Journal, Overload};

use crate::{BLOCK, LONG, faults::Faulty, note, payloads, rounds, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jo_18_ten_thousand_producers_before_a_disk_that_hangs() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let config = Config { bytes_max: 256 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    disk.stall();
    let done = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for number in 0..10_000 {
        let (producer, done) = (journal.producer(), Arc::clone(&done));
        tasks.push(tokio::spawn(async move {
            producer.append(note(format!("{number:>200}").as_bytes())).await.unwrap();
            done.fetch_add(1, SeqCst);
        }));
    }
    while done.load(SeqCst) + journal.stats().blocked < 10_000 {
        tokio::task::yield_now().await;
    }
    let stats = journal.stats();
    assert!(stats.reserved_bytes_max <= 256 << 10 && stats.blocked > 8_000, "{stats:?}");
    disk.go();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(journal.stats().reserved_bytes_max <= 256 << 10);
    let closing = tokio::task::spawn_blocking(move || journal.close(LONG));
    assert!(closing.await.unwrap().is_complete());
    assert_eq!(payloads(folder.path()).len(), 10_000);
}

#[test]
fn jo_21_producers_in_line_are_served_in_their_order() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    let mut filled = 0;
    while producer.offer(note(&[b'x'; 500])).is_ok() {
        filled += 1;
    }
    // Polled in this order, and then in the opposite one.
    let texts: Vec<String> = (0..500).map(|number| format!("{number:>500}")).collect();
    let mut waiting: Vec<_> = texts.iter().map(|text| Box::pin(producer.append(note(text.as_bytes())))).collect();
    let mut context = Context::from_waker(Waker::noop());
    for future in &mut waiting {
        assert!(future.as_mut().poll(&mut context).is_pending());
    }
    // Nobody who comes later overtakes them.
    assert!(producer.offer(note(b"late")).is_err());
    disk.go();
    let mut left = waiting.len();
    while left > 0 {
        let before = left;
        let served = waiting.iter_mut().take(left).rev().map(|future| future.as_mut().poll(&mut context).is_ready());
        let served: Vec<bool> = served.collect();
        let first = served.iter().rev().position(|ready| !ready).unwrap_or(left);
        assert!(served.iter().rev().skip(first).all(|ready| !ready), "somebody was overtaken: {served:?}");
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

#[test]
fn jo_21_room_that_was_promised_is_there_whoever_else_comes_meanwhile() {
    let folder = TempDir::new().unwrap();
    let (blocks, drops) = (ClassConfig::new("blocks").overload(BLOCK), ClassConfig::new("drops"));
    let classes = vec![blocks, drops.overload(Overload::DropNewest)];
    let config = Config { stripes: 2, bytes_max: 128 << 10, classes, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let mut random = fastrand::Rng::with_seed(crate::seed());
    let producers = [journal.producer_for(0), journal.producer_for(1)];
    let sizes: Vec<usize> = (0..2000).map(|_| random.usize(1..4000)).collect();
    let payload = [b'x'; 4000];
    let mut context = Context::from_waker(Waker::noop());
    let append = |size: &usize| Box::pin(producers[size % 2].append(note(&payload[..*size])));
    let mut waiting: Vec<_> = sizes.iter().map(append).collect();
    waiting.retain_mut(|future| future.as_mut().poll(&mut context).is_pending());
    // In line by now, and then polled from its end, while somebody who waits in no line takes what is free.
    let thief = journal.producer_for(0);
    while !waiting.is_empty() {
        let mut ready = Vec::new();
        for (number, future) in waiting.iter_mut().rev().enumerate() {
            ready.push(future.as_mut().poll(&mut context).is_ready());
            if number % 10 == 0 {
                let _ = thief.offer(tidegate_journal::Note::new(tidegate_journal::Class::new(1), &payload[..300]));
            }
        }
        let first = ready.iter().rev().position(|ready| !ready).unwrap_or(ready.len());
        assert!(ready.iter().rev().skip(first).all(|ready| !ready), "somebody was overtaken");
        waiting.drain(..first);
        std::thread::yield_now();
    }
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let stats = journal.stats();
    assert_eq!((stats.reserved_bytes, stats.blocked, stats.classes[0].accepted), (0, 0, 2000), "{stats:?}");
    assert!(stats.reserved_bytes_max <= 128 << 10);
}

/// Some come back at once and are polled far more often than others: whoever is in line is passed by each of the others
/// once at most, by what that one was promised before.
#[test]
fn jo_21_no_producer_starves() {
    const PRODUCERS: usize = 8;
    let folder = TempDir::new().unwrap();
    let (disk, mut random) = (Faulty::sound(), fastrand::Rng::with_seed(crate::seed()));
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    let payload = [b'x'; 500];
    let append = || Box::pin(producer.append(note(&payload)));
    let mut waiting: Vec<_> = (0..PRODUCERS).map(|_| append()).collect();
    // How often each got in; and how often all had when one joined the line.
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
            assert!(passed <= Some(1), "{number} was passed {passed:?} times by one of the others");
        }
    };
    for _ in 0..50 {
        disk.stall();
        while journal.stats().blocked < PRODUCERS {
            (0..PRODUCERS).for_each(|number| poll(number, &mut counts));
        }
        disk.go();
        let before = counts;
        crate::until("all of them get in", || {
            let number = if random.bool() { 0 } else { random.usize(0..PRODUCERS) };
            poll(number, &mut counts);
            counts.iter().zip(before).all(|(now, then)| *now > then)
        });
    }
    drop(waiting);
    assert!(journal.close(LONG).is_complete());
}

#[test]
fn jo_22_a_deadline_beyond_all_time_is_none() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let forever = Overload::Block { deadline: std::time::Duration::MAX };
    let config = Config { classes: vec![ClassConfig::new("one").overload(forever)], ..small(folder.path()) };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    crate::fill(&disk, &producer);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| producer.append_blocking(note(&[b'x'; 500])).is_ok());
        // Seldom there is room for one more: what the journal makes ready in the background counts before it is there.
        crate::until("it waits", || journal.stats().blocked == 1 || waiting.is_finished());
        disk.go();
        assert!(waiting.join().unwrap());
    });
    assert!(journal.flush(Ack::Written, std::time::Duration::MAX).unwrap());
    assert!(journal.close(std::time::Duration::MAX).is_complete());
}

#[test]
fn jo_23_a_blocked_append_that_is_dropped_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    let filled = crate::fill(&disk, &producer);
    let mut context = Context::from_waker(Waker::noop());
    // As large as those before, so that no rest of a chunk has room for it.
    let waiting = |_what: &str| producer.append(note(&[b'x'; 500]));
    {
        let mut dropped = Box::pin(waiting("dropped while it waits"));
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        assert_eq!(journal.stats().blocked, 1);
    }
    assert_eq!(journal.stats().blocked, 0);
    // One that was promised room and is dropped passes it on.
    let mut first = Box::pin(waiting("dropped when it was promised room"));
    let mut second = pin!(waiting("the second"));
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    disk.go();
    crate::until("both are promised room", || journal.stats().blocked == 0);
    drop(first);
    crate::until("the second gets in", || matches!(second.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let stats = journal.stats();
    assert_eq!((stats.reserved_bytes, stats.blocked), (0, 0));
    assert_eq!(stats.classes[0].lost_in_all(), 1, "what was given up by its producer was not lost by the journal");
    assert_eq!(payloads(folder.path()).len(), filled + 1);
}

#[test]
fn jo_24_no_credit_leaks_in_many_appends() {
    let folder = TempDir::new().unwrap();
    let mut config = small(folder.path());
    let lossy = [Overload::DropNewest, Overload::DropOldest, Overload::Sample { one_in: 3 }, BLOCK];
    config.classes = lossy.map(|overload| ClassConfig::new("any").overload(overload)).into();
    config.segment_bytes = 1 << 20;
    config.space = tidegate_journal::Space::Ring { segments: 2 };
    let (journal, _) = Journal::open(config).unwrap();
    let appends = rounds("TIDEGATE_JOURNAL_APPENDS", 400_000);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let producer = journal.producer();
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(u64::from(thread));
                for _ in 0..appends / 4 {
                    let class = tidegate_journal::Class::new(random.u8(..4));
                    let _ = producer.offer(tidegate_journal::Note::new(class, &[b'x'; 300][..random.usize(..300)]));
                }
            });
        }
    });
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let stats = journal.stats();
    assert_eq!((stats.reserved_bytes, stats.queued_bytes, stats.blocked), (0, 0, 0), "{stats:?}");
    assert!(stats.classes.iter().all(|class| class.lost(Cause::TooLarge) == 0));
    let offered: u64 = stats.classes.iter().map(|class| class.offered()).sum();
    assert_eq!(offered, appends as u64 / 4 * 4);
}
