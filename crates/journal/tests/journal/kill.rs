//! Crashes of real processes. The child process is this test program, started with a role in its environment.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use tempfile::TempDir;
use tidegate_journal::{Ack, Journal, JournalConfig, OpenError, SegmentPolicy};

use crate::{
    LONG,
    checker::{DurabilityChecker, name},
    new_record, payloads, rounds, seed, small,
};

const FOLDER: &str = "TIDEGATE_JOURNAL_CHILD_FOLDER";
const ROLE: &str = "TIDEGATE_JOURNAL_CHILD_ROLE";

fn config(folder: &Path) -> JournalConfig {
    let mut config = small(folder);
    config.bytes_max = 256 << 10;
    config.segment_bytes = 256 << 10;
    config
}

/// Starts this program as a child with a role.
fn child(folder: &Path, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kill::child_process", "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder).env(ROLE, role);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// The body of the child process; does nothing in a normal test run.
#[test]
fn child_process() {
    let (Ok(folder), Ok(role)) = (std::env::var(FOLDER), std::env::var(ROLE)) else { return };
    let (journal, _) = Journal::open(config(folder.as_ref())).unwrap();
    match role.as_str() {
        "commit" => commit_forever(&journal),
        "own" => {
            print_line("owns");
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
            (0..100).for_each(|number| assert!(producer.offer(new_record(name(0, number).as_bytes())).is_ok()));
            // The hook aborts, so nothing can close the journal.
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                hook(panic);
                std::process::abort();
            }));
            panic!("test panic");
        }
        other => panic!("unknown role: {other}"),
    }
}

/// Prints a line with a mark. The test harness may have printed to the same line.
fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n>{text}\n").as_bytes()).unwrap();
}

fn append_some(journal: &Journal) {
    let producer = journal.producer();
    for number in 0..100 {
        let record = name(0, number);
        let ack = [Ack::Accepted, Ack::Written, Ack::Durable][number % 3];
        producer.commit_blocking(new_record(record.as_bytes()).ack(ack)).unwrap();
        print_line(&format!("{record} {ack:?}"));
    }
}

fn commit_forever(journal: &Journal) {
    thread::scope(|scope| {
        for index in 0..3 {
            let producer = journal.producer();
            scope.spawn(move || {
                for number in 0.. {
                    let record = name(index, number);
                    let ack = [Ack::Written, Ack::Durable, Ack::Accepted][(index + number) % 3];
                    producer.commit_blocking(new_record(record.as_bytes()).ack(ack)).unwrap();
                    print_line(&format!("{record} {ack:?}"));
                }
            });
        }
    });
}

/// Collects the marked lines of a child.
fn collect_lines(child: &mut Child) -> (thread::JoinHandle<()>, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (collected, out) = (Arc::clone(&lines), BufReader::new(child.stdout.take().unwrap()));
    let collector = thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            collected.lock().unwrap().extend(line.strip_prefix('>').map(str::to_owned));
        }
    });
    (collector, lines)
}

/// Parses the acknowledgements that a child printed. The number of records that it offered is unknown.
fn parse_lines(lines: &[String]) -> DurabilityChecker {
    let mut checker = DurabilityChecker::default();
    for producer in 0..3 {
        (0..200_000).for_each(|number| checker.offer(&name(producer, number)));
    }
    // The last line may be truncated.
    for line in lines {
        let Some((record, ack)) = line.split_once(' ') else { continue };
        match ack {
            "Written" => checker.acked(record, Ack::Written),
            "Durable" => checker.acked(record, Ack::Durable),
            _ => {}
        }
    }
    checker
}

/// JO-01: killed process loses nothing written.
#[test]
fn killed_process_loses_nothing_written() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = TempDir::new().unwrap();
    let mut acked = 0;
    for round in 0..rounds("TIDEGATE_JOURNAL_KILLS", 8) {
        let life = folder.path().join(round.to_string());
        let mut child = child(&life, "commit");
        let (collector, lines) = collect_lines(&mut child);
        let enough = random.usize(1..400);
        crate::until("the child commits records", || lines.lock().unwrap().len() >= enough);
        child.kill().unwrap();
        child.wait().unwrap();
        collector.join().unwrap();
        let checker = parse_lines(&lines.lock().unwrap());
        acked += checker.acked_total();
        let check = |when: &str| {
            checker
                .check(&payloads(&life), Ack::Written)
                .unwrap_or_else(|error| panic!("{when}, round {round}: {error}"));
        };
        check("before recovery");
        let (journal, recovery) = Journal::open(config(&life)).unwrap();
        assert!(recovery.damage.is_empty(), "{recovery:?}");
        drop(journal);
        check("after");
    }
    assert!(acked > 0);
}

/// JO-36: folder has one owner across processes.
#[test]
fn folder_has_one_owner_across_processes() {
    let folder = TempDir::new().unwrap();
    let mut child = child(folder.path(), "own");
    let (collector, lines) = collect_lines(&mut child);
    crate::until("the child owns the folder", || !lines.lock().unwrap().is_empty());
    let error = Journal::open(config(folder.path())).unwrap_err();
    assert!(matches!(&error, OpenError::InUse(path) if path == folder.path()), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    collector.join().unwrap();
    let (_journal, _) = Journal::open(config(folder.path())).unwrap();
    assert!(
        matches!(Journal::open(config(folder.path())), Err(OpenError::InUse(_))),
        "a second journal of one process"
    );
}

/// JO-38: written records survive exit and abort.
#[test]
fn written_records_survive_exit_and_abort() {
    for role in ["exit", "abort"] {
        let folder = TempDir::new().unwrap();
        let mut child = child(folder.path(), role);
        let (collector, lines) = collect_lines(&mut child);
        child.wait().unwrap();
        collector.join().unwrap();
        let checker = parse_lines(&lines.lock().unwrap());
        assert_eq!(checker.acked_total(), 66, "{role}");
        checker.check(&payloads(folder.path()), Ack::Written).unwrap();
    }
}

/// JO-38: panic hook writes accepted records.
#[test]
fn panic_hook_writes_accepted_records() {
    let folder = TempDir::new().unwrap();
    let mut child = child(folder.path(), "panic");
    let (collector, _) = collect_lines(&mut child);
    child.wait().unwrap();
    collector.join().unwrap();
    assert_eq!(payloads(folder.path()).len(), 100);
}

/// JO-37: child process inherits no folder or file.
#[test]
fn child_process_inherits_no_folder_or_file() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(config(folder.path())).unwrap();
    journal.producer().commit_blocking(new_record(b"a").ack(Ack::Written)).unwrap();
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    drop(journal);
    let again = Journal::open(JournalConfig { segment_policy: SegmentPolicy::default(), ..config(folder.path()) });
    let handles = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let inherited = handles.filter_map(|handle| std::fs::read_link(handle.unwrap().path()).ok());
    let inherited_own: Vec<_> = inherited.filter(|path| path.starts_with(folder.path())).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(again.is_ok() && inherited_own.is_empty(), "{again:?} {inherited_own:?}");
}
