//! `tidegate journal` on a log that is being written.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use tidegate_journal::{JournalConfig, SegmentFormat};
use tidegate_testkit::{Fixture, Signal, eventually};

use super::{
    command, run, run_err, run_ok,
    sample_log::{SampleLog, TIMEOUT},
};

/// A running `tail`, and its lines as they arrive.
struct TailCommand {
    child: Child,
    lines: Receiver<String>,
}

impl TailCommand {
    fn start(arguments: &[&str]) -> Self {
        Self::of(command(arguments).stdout(Stdio::piped()).spawn().expect("the binary starts"))
    }

    fn of(mut child: Child) -> Self {
        let out = BufReader::new(child.stdout.take().expect("the stream is piped"));
        let (sender, lines) = channel();
        // The thread ends with the child.
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    #[track_caller]
    fn next(&self) -> serde_json::Value {
        let line = self.lines.recv_timeout(TIMEOUT).expect("a line arrives");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

impl Drop for TailCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn tail_follows_across_segments() {
    for mut log in [SampleLog::new(), SampleLog::packed(), SampleLog::json()] {
        log.queries(0..20);
        let path = log.path();
        let tail = TailCommand::start(&["tail", path.to_str().expect("UTF-8"), "-f", "-n", "2", "--json"]);
        // The tail has reached the end before more is written.
        assert_eq!((&tail.next()["transaction"], &tail.next()["transaction"]), (&18.into(), &19.into()));
        log.queries(20..600);
        for number in 20..600_u64 {
            assert_eq!(tail.next()["transaction"], number);
        }
        assert!(log.files().len() > 4, "the log has rotated");
        log.close();
    }
}

#[test]
fn tail_applies_filters_to_new_records() {
    let log = SampleLog::new();
    log.queries(0..20);
    let path = log.path();
    let tail = TailCommand::start(&[
        "tail",
        path.to_str().expect("UTF-8"),
        "-f",
        "-n",
        "1",
        "--json",
        "--grep",
        "select 1?9,",
    ]);
    assert_eq!(tail.next()["transaction"], 19);
    log.queries(20..40);
    log.queries(119..120);
    log.queries(9..10);
    assert_eq!(tail.next()["transaction"], 9);
}

#[test]
fn tail_ends_at_until() {
    let log = SampleLog::new();
    log.queries(0..3);
    let output = run_ok(["tail".into(), "-f".into(), "--until".into(), "1min".into(), log.path()]);
    assert_eq!(output.lines().len(), 3);
}

#[test]
fn tail_waits_for_a_missing_folder() {
    let formats: [fn(JournalConfig) -> JournalConfig; 2] =
        [|config| config, |config| JournalConfig { format: SegmentFormat::Json, ..config }];
    for format in formats {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("journal");
        assert!(
            run_err(["tail".into(), path.clone()]).contains("cannot read"),
            "without -F, a missing folder is an error"
        );
        let mut tail = command(["tail", "-F", "--json"]);
        let mut child =
            tail.arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut output =
            BufReader::new(child.stderr.take().expect("the stream is piped")).lines().map_while(Result::ok);
        let tail = TailCommand::of(child);
        assert!(output.next().expect("a line").ends_with("journal does not exist yet; waiting for it"));
        let mut log = SampleLog::within(folder, format);
        log.queries(0..2);
        assert!(output.next().expect("a line").ends_with("journal exists now"));
        assert_eq!((&tail.next()["transaction"], &tail.next()["transaction"]), (&0.into(), &1.into()));
        log.close();
    }
}

#[test]
fn closed_pipe_ends_the_command_without_an_error() {
    let mut log = SampleLog::new();
    log.queries(0..1000);
    log.close();
    let path = log.path();
    for view in [&["cat", "--json"][..], &["export", "--csv"], &["cat"]] {
        let mut child =
            command(view).arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut line = String::new();
        // The rest exceeds the buffer of a pipe, and is never read.
        BufReader::with_capacity(16, child.stdout.take().expect("the stream is piped"))
            .read_line(&mut line)
            .expect("a line");
        let mut errors = String::new();
        child.stderr.take().expect("the stream is piped").read_to_string(&mut errors).expect("text");
        let status = child.wait().expect("the command ends");
        assert!(status.success() && errors.is_empty(), "{view:?}: {status} {errors}");
    }
}

#[test]
fn tail_ends_when_its_pipe_is_closed() {
    let mut log = SampleLog::new();
    log.queries(0..20);
    log.close();
    let path = log.path();
    let mut child =
        command(["tail", "-f", "-n", "3"]).arg(&path).stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut reader = BufReader::new(child.stdout.take().expect("the stream is piped"));
    reader.read_line(&mut String::new()).expect("a line");
    // No record arrives after that, so that tail has to detect the closed pipe itself.
    drop(reader);
    assert!(child.wait().expect("the command ends").success());
}

#[test]
fn log_of_a_running_and_of_a_stopped_gateway() {
    for format in ["framed", "json"] {
        let fixture = Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18);
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("journal");
        let keys = format!("size = 1\n[journal]\nfolder = \"{}\"\nformat = \"{format}\"\n", path.display());
        let mut gateway = fixture.gateway(&keys);
        let mut client = gateway.startup("postgres").parameter("application_name", "till 4").connect();
        for number in 0..20 {
            client.ok(&format!("select {number} as price"));
        }
        assert_eq!(client.query("select 1/0").code(), "22012");
        let config = gateway.config_file();
        let config = config.to_str().expect("UTF-8");
        let found = |filter: &[&str]| run_ok(["cat", "-c", config, "--json"].iter().chain(filter)).json();
        eventually("the last query is written", || found(&["--errors"]).len() == 1);
        assert_eq!(found(&["--kind", "query"]).len(), 21);
        assert_eq!(found(&["--application", "till*", "--contains", "1 as"])[0]["tag"], "SELECT 1");
        assert_eq!(found(&["--errors"])[0]["sqlstate"], "22012");
        assert_eq!(found(&["--since", "1h", "--kind", "login"]).len(), 1);
        let top = run_ok(["top", "-c", config, "--json", "--by", "calls"]).json();
        assert_eq!((&top[0]["calls"], &top[0]["statement"]), (&20.into(), &"select ? as price".into()));
        assert!(run_ok(["tail", "-c", config, "-n", "1"]).stdout.contains("ERROR 22012"));
        assert!(!run(["repair", "-c", config]).success, "the log is in use");
        drop(client);
        gateway.signal(Signal::INT);
        gateway.wait();
        assert!(run_ok(["verify", "-c", config]).stdout.contains(": good: "));
        assert_eq!(found(&["--kind", "disconnect"]).len(), 1);
        assert!(run_ok(["stats", "-c", config]).stdout.contains("not open"));
    }
}
