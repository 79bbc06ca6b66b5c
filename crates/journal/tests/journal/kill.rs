//! Real processes that die for real. The process is this test program again, told by its environment to be one.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use tempfile::TempDir;
use tidegate_journal::{Ack, Config, Journal, OpenError, Space};

use crate::{
    LONG,
    checker::{Promises, name},
    note, payloads, rounds, seed, small,
};

const FOLDER: &str = "TIDEGATE_JOURNAL_CHILD_FOLDER";
const PART: &str = "TIDEGATE_JOURNAL_CHILD_PART";

fn config(folder: &Path) -> Config {
    let mut config = small(folder);
    config.bytes_max = 256 << 10;
    config.segment_bytes = 256 << 10;
    config
}

/// This program as a child that plays a part.
fn child(folder: &Path, part: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kill::the_part_of_the_child", "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder).env(PART, part);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Does nothing unless this program was started as a child.
#[test]
fn the_part_of_the_child() {
    let (Ok(folder), Ok(part)) = (std::env::var(FOLDER), std::env::var(PART)) else { return };
    let (journal, _) = Journal::open(config(folder.as_ref())).unwrap();
    match part.as_str() {
        "commit" => commit_for_ever(&journal),
        "own" => {
            say("owns");
            thread::park();
        }
        "exit" => {
            append_some(&journal);
            std::process::exit(0);
        }
        "abort" => {
            append_some(&journal);
            std::process::abort();
        }
        "panic" => {
            journal.flush_on_panic(LONG);
            let producer = journal.producer();
            (0..100).for_each(|number| assert!(producer.offer(note(name(0, number).as_bytes())).is_ok()));
            // Whoever panics here has no time to close anything.
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                hook(panic);
                std::process::abort();
            }));
            panic!("on purpose");
        }
        other => panic!("no such part: {other}"),
    }
}

/// The runner's own words stand on the same line.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n>{text}\n").as_bytes()).unwrap();
}

fn append_some(journal: &Journal) {
    let producer = journal.producer();
    for number in 0..100 {
        let record = name(0, number);
        let ack = [Ack::Accepted, Ack::Written, Ack::Durable][number % 3];
        producer.commit_blocking(note(record.as_bytes()).ack(ack)).unwrap();
        say(&format!("{record} {ack:?}"));
    }
}

fn commit_for_ever(journal: &Journal) {
    thread::scope(|scope| {
        for index in 0..3 {
            let producer = journal.producer();
            scope.spawn(move || {
                for number in 0.. {
                    let record = name(index, number);
                    let ack = [Ack::Written, Ack::Durable, Ack::Accepted][(index + number) % 3];
                    producer.commit_blocking(note(record.as_bytes()).ack(ack)).unwrap();
                    say(&format!("{record} {ack:?}"));
                }
            });
        }
    });
}

/// Collects what a child says.
fn listen(child: &mut Child) -> (thread::JoinHandle<()>, Arc<Mutex<Vec<String>>>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let (hears, out) = (Arc::clone(&said), BufReader::new(child.stdout.take().unwrap()));
    let listener = thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            hears.lock().unwrap().extend(line.strip_prefix('>').map(str::to_owned));
        }
    });
    (listener, said)
}

/// What a child that died had said, of records that it had handed in in any number.
fn promises(said: &[String]) -> Promises {
    let mut promises = Promises::default();
    for producer in 0..3 {
        (0..200_000).for_each(|number| promises.offer(&name(producer, number)));
    }
    // The last line may be cut short.
    for line in said {
        let Some((record, ack)) = line.split_once(' ') else { continue };
        match ack {
            "Written" => promises.tell(record, Ack::Written),
            "Durable" => promises.tell(record, Ack::Durable),
            _ => {}
        }
    }
    promises
}

#[test]
fn jo_01_a_process_killed_at_any_time_loses_nothing_written() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = TempDir::new().unwrap();
    let mut told = 0;
    for round in 0..rounds("TIDEGATE_JOURNAL_KILLS", 8) {
        let life = folder.path().join(round.to_string());
        let mut child = child(&life, "commit");
        let (listener, said) = listen(&mut child);
        let enough = random.usize(1..400);
        crate::until("the child works", || said.lock().unwrap().len() >= enough);
        child.kill().unwrap();
        child.wait().unwrap();
        listener.join().unwrap();
        let promises = promises(&said.lock().unwrap());
        told += promises.told();
        let check = |when: &str| {
            promises
                .check(&payloads(&life), Ack::Written)
                .unwrap_or_else(|error| panic!("{when}, round {round}: {error}"));
        };
        check("before it was opened again");
        let (journal, recovery) = Journal::open(config(&life)).unwrap();
        assert!(recovery.damage.is_empty(), "{recovery:?}");
        drop(journal);
        check("after");
    }
    assert!(told > 0);
}

#[test]
fn jo_36_a_folder_has_one_owner_in_all_processes() {
    let folder = TempDir::new().unwrap();
    let mut child = child(folder.path(), "own");
    let (listener, said) = listen(&mut child);
    crate::until("the child owns it", || !said.lock().unwrap().is_empty());
    let error = Journal::open(config(folder.path())).unwrap_err();
    assert!(matches!(&error, OpenError::Owned(path) if path == folder.path()), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    listener.join().unwrap();
    let (_journal, _) = Journal::open(config(folder.path())).unwrap();
    assert!(matches!(Journal::open(config(folder.path())), Err(OpenError::Owned(_))), "nor in one process");
}

#[test]
fn jo_38_however_a_process_ends_what_was_written_stays() {
    for part in ["exit", "abort"] {
        let folder = TempDir::new().unwrap();
        let mut child = child(folder.path(), part);
        let (listener, said) = listen(&mut child);
        child.wait().unwrap();
        listener.join().unwrap();
        let promises = promises(&said.lock().unwrap());
        assert_eq!(promises.told(), 66, "{part}");
        promises.check(&payloads(folder.path()), Ack::Written).unwrap();
    }
}

#[test]
fn jo_38_a_panic_writes_what_was_accepted_before_the_process_dies() {
    let folder = TempDir::new().unwrap();
    let mut child = child(folder.path(), "panic");
    let (listener, _) = listen(&mut child);
    child.wait().unwrap();
    listener.join().unwrap();
    assert_eq!(payloads(folder.path()).len(), 100);
}

#[test]
fn jo_37_a_child_process_inherits_neither_the_folder_nor_its_files() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(config(folder.path())).unwrap();
    journal.producer().commit_blocking(note(b"a").ack(Ack::Written)).unwrap();
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    drop(journal);
    let again = Journal::open(Config { space: Space::default(), ..config(folder.path()) });
    let handles = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let inherited = handles.filter_map(|handle| std::fs::read_link(handle.unwrap().path()).ok());
    let ours: Vec<_> = inherited.filter(|path| path.starts_with(folder.path())).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(again.is_ok() && ours.is_empty(), "{again:?} {ours:?}");
}
