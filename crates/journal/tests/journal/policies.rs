//! Every answer to overload, and that its books balance.

use std::{collections::BTreeMap, time::Duration};

use tempfile::TempDir;
use tidegate_journal::{Ack, Cause, Class, ClassConfig, Config, Journal, Lost, Note, Overload, Refused, verify};

use crate::{LONG, faults::Faulty, payloads, small};

const SIZE: usize = 500;

/// Offers many records while the disk hangs, lets it go, and balances the books.
fn overload(folder: &TempDir, classes: Vec<ClassConfig>, records: usize) -> Journal {
    let disk = Faulty::sound();
    let config = Config { classes, ..small(folder.path()) };
    let count = config.classes.len();
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    producer.offer(Note::new(Class::new(0), b"the one that hangs")).unwrap();
    disk.wait_for_stall();
    for number in 0..records {
        let class = Class::new(u8::try_from(number % count).unwrap());
        let payload = format!("{number:>SIZE$}");
        let _ = producer.offer(Note::new(class, payload.as_bytes()));
    }
    disk.go();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let stats = journal.stats();
    let offered: u64 = stats.classes.iter().map(|class| class.offered()).sum();
    assert_eq!(offered, records as u64 + 1, "{stats:?}");
    assert_eq!((stats.queued_bytes, stats.reserved_bytes), (0, 0));
    balance(&journal, folder);
    journal
}

/// What counters say, what gaps say and what is there are the same.
fn balance(journal: &Journal, folder: &TempDir) {
    let (stats, verdict) = (journal.stats(), verify(folder.path()).unwrap());
    assert!(verdict.is_whole(), "{verdict:?}");
    let accepted: u64 = stats.classes.iter().map(|class| class.accepted).sum();
    let displaced: u64 = stats.classes.iter().map(|class| class.lost(Cause::Oldest)).sum();
    assert_eq!((verdict.records, verdict.missing), (accepted - displaced, displaced), "{stats:?} {verdict:?}");
    let mut told = BTreeMap::new();
    for gap in &verdict.gaps {
        *told.entry((gap.class, gap.cause)).or_insert((0, 0)) = (gap.records, gap.bytes);
        assert!(gap.first <= gap.last);
    }
    for (index, class) in (0..).zip(&stats.classes) {
        for cause in Cause::ALL {
            let gap = told.remove(&(Class::new(index), cause)).unwrap_or_default();
            assert_eq!((class.lost(cause), class.lost_bytes(cause)), gap, "{} {cause:?}", class.name);
        }
    }
    assert!(told.is_empty());
}

#[test]
fn jo_19_dropping_the_newest_keeps_the_oldest() {
    let folder = TempDir::new().unwrap();
    let journal = overload(&folder, vec![ClassConfig::new("a").overload(Overload::DropNewest)], 500);
    assert!(journal.stats().classes[0].lost(Cause::Newest) > 300);
    let numbers: Vec<usize> = numbers(&folder);
    assert!(numbers.iter().copied().eq(0..numbers.len()), "{numbers:?}");
}

#[test]
fn jo_19_dropping_the_oldest_keeps_the_newest() {
    let folder = TempDir::new().unwrap();
    let journal = overload(&folder, vec![ClassConfig::new("a").overload(Overload::DropOldest)], 500);
    assert!(journal.stats().classes[0].lost(Cause::Oldest) > 300);
    let numbers = numbers(&folder);
    assert_eq!(numbers.last(), Some(&499));
    assert!(numbers.is_sorted());
}

#[test]
fn jo_19_a_sampled_class_keeps_one_of_so_many_once_it_is_half_full() {
    let folder = TempDir::new().unwrap();
    let journal = overload(&folder, vec![ClassConfig::new("a").overload(Overload::Sample { one_in: 10 })], 300);
    let class = &journal.stats().classes[0];
    let (sampled, newest) = (class.lost(Cause::Sampled), class.lost(Cause::Newest));
    assert!(sampled > 150 && newest == 0, "{class:?}");
    let numbers = numbers(&folder);
    let sparse = numbers.windows(2).filter(|pair| pair[1] - pair[0] == 10).count();
    assert!(sparse > 10, "{numbers:?}");
}

#[test]
fn jo_19_a_class_that_blocks_gives_up_at_once_where_nobody_may_wait() {
    let folder = TempDir::new().unwrap();
    let journal = overload(&folder, vec![ClassConfig::new("a")], 500);
    assert!(journal.stats().classes[0].lost(Cause::Newest) > 300);
}

#[test]
fn jo_19_classes_are_answered_each_in_its_way() {
    let folder = TempDir::new().unwrap();
    let classes = vec![
        ClassConfig::new("audit"),
        ClassConfig::new("queries").overload(Overload::DropOldest),
        ClassConfig::new("chatter").overload(Overload::Sample { one_in: 7 }),
        ClassConfig::new("debug").overload(Overload::DropNewest),
    ];
    let journal = overload(&folder, classes, 1000);
    let classes = journal.stats().classes;
    assert_eq!(classes[0].lost(Cause::Oldest), 0, "only what says so is displaced");
    assert!(classes[1].lost(Cause::Oldest) > 0);
}

#[test]
fn jo_19_records_that_are_waited_for_are_not_displaced() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let config = Config { classes: vec![ClassConfig::new("a").overload(Overload::DropOldest)], ..small(folder.path()) };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    producer.offer(Note::new(Class::new(0), b"the one that hangs")).unwrap();
    disk.wait_for_stall();
    let ticket = producer.offer(Note::new(Class::new(0), b"audited").ack(Ack::Written)).unwrap();
    for _ in 0..1000 {
        let _ = producer.offer(Note::new(Class::new(0), &[b'x'; SIZE]));
    }
    disk.go();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(crate::block_on(producer.wait(ticket, Ack::Written)), Ok(()));
    assert!(payloads(folder.path()).contains(&b"audited".to_vec()));
    balance(&journal, &folder);
}

#[test]
fn jo_19_who_waits_for_a_record_that_was_displaced_is_told_so() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let config = Config { classes: vec![ClassConfig::new("a").overload(Overload::DropOldest)], ..small(folder.path()) };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    let offer = || producer.offer(Note::new(Class::new(0), &[b'x'; SIZE])).unwrap();
    let hangs = offer();
    disk.wait_for_stall();
    let tickets: Vec<_> = (0..1000).map(|_| offer()).collect();
    disk.go();
    let wait = |ticket| crate::block_on(producer.wait(ticket, Ack::Written));
    assert_eq!((wait(hangs), wait(tickets[0]), wait(tickets[999])), (Ok(()), Err(Lost), Ok(())));
    let lost = tickets.iter().filter(|ticket| wait(**ticket) == Err(Lost)).count() as u64;
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(lost, journal.stats().classes[0].lost(Cause::Oldest));
    balance(&journal, &folder);
    let report = journal.close(LONG);
    // The gap is numbered, too.
    assert_eq!((report.numbered, report.written, report.lost), (1002, 1002 - lost, lost), "{report:?}");
}

/// Those that had to go for younger ones were never written; what was written before stays so.
#[test]
fn jo_19_what_is_written_stays_written_while_others_are_displaced() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let config = Config { classes: vec![ClassConfig::new("a").overload(Overload::DropOldest)], ..small(folder.path()) };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for _ in 0..10 {
        producer.commit_blocking(Note::new(Class::new(0), b"safe").ack(Ack::Written)).unwrap();
    }
    disk.stall();
    producer.offer(Note::new(Class::new(0), b"the one that hangs")).unwrap();
    disk.wait_for_stall();
    for _ in 0..500 {
        producer.offer(Note::new(Class::new(0), &[b'x'; SIZE])).unwrap();
    }
    let stats = journal.stats();
    let displaced = stats.classes[0].lost(Cause::Oldest);
    assert!(displaced > 300 && stats.written == 10, "{stats:?}");
    let report = journal.close(Duration::from_millis(1));
    assert_eq!((report.numbered, report.written, report.lost), (511, 10, displaced), "{report:?}");
    assert_eq!(report.unwritten, 511 - 10 - displaced, "{report:?}");
    disk.go();
}

#[test]
fn jo_20_a_record_that_is_too_large_is_refused_counted_and_told() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let large = vec![b'x'; (4 << 10) + 1];
    let note = Note::new(Class::new(0), &large);
    assert_eq!(producer.offer(note), Err(Refused::TooLarge { bytes: 4097, max: 4096 }));
    assert_eq!(producer.append_blocking(note), Err(Refused::TooLarge { bytes: 4097, max: 4096 }));
    producer.append_blocking(Note::new(Class::new(0), &large[1..])).unwrap();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().classes[0].lost(Cause::TooLarge), 2);
    balance(&journal, &folder);
}

#[test]
fn jo_20_a_record_may_be_as_large_as_a_quarter_of_the_memory() {
    let folder = TempDir::new().unwrap();
    let config = Config { record_bytes_max: (16 << 10) - 24, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let (producer, large) = (journal.producer(), vec![b'y'; (16 << 10) - 24]);
    for _ in 0..20 {
        producer.append_blocking(Note::new(Class::new(0), &large)).unwrap();
        producer.append_blocking(Note::new(Class::new(0), b"small")).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    assert_eq!(payloads(folder.path()).len(), 40);
}

#[test]
fn jo_22_a_blocked_producer_waits_as_long_as_its_class_says_and_not_for_ever() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let deadline = Duration::from_millis(60);
    let classes = vec![ClassConfig::new("a").overload(Overload::Block { deadline })];
    let (journal, _) = Journal::open_with(Config { classes, ..small(folder.path()) }, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    while producer.offer(Note::new(Class::new(0), &[b'x'; SIZE])).is_ok() {}
    let late = Note::new(Class::new(0), &[b'x'; SIZE]);
    let begun = std::time::Instant::now();
    assert_eq!(producer.append_blocking(late), Err(Refused::TimedOut));
    assert!(begun.elapsed() >= deadline, "not sooner");
    let begun = std::time::Instant::now();
    let async_way = crate::block_on(producer.append(late));
    assert_eq!(async_way, Err(Refused::TimedOut));
    assert!(begun.elapsed() >= deadline, "not sooner");
    disk.go();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().classes[0].lost(Cause::TimedOut), 2);
    balance(&journal, &folder);
}

fn numbers(folder: &TempDir) -> Vec<usize> {
    let records = payloads(folder.path());
    records.iter().filter_map(|record| std::str::from_utf8(record).unwrap().trim().parse().ok()).collect()
}
