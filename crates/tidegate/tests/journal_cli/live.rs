//! While it is being written.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use tidegate_journal::{Config, Format};
use tidegate_testkit::{Fixture, Signal, eventually};

use crate::{
    bad, command, good, run,
    written::{LONG, Written},
};

/// A command that goes on, and its lines as they come.
struct Following {
    child: Child,
    lines: Receiver<String>,
}

impl Following {
    fn start(arguments: &[&str]) -> Self {
        Self::of(command(arguments).stdout(Stdio::piped()).spawn().expect("the binary starts"))
    }

    fn of(mut child: Child) -> Self {
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let (tell, lines) = channel();
        // Ends with the child.
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, lines }
    }

    #[track_caller]
    fn next(&self) -> serde_json::Value {
        let line = self.lines.recv_timeout(LONG).expect("a line comes");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn tail_follows_across_segments_packed_or_not() {
    for mut written in [Written::new(), Written::packed(), Written::json()] {
        written.queries(0..20);
        let path = written.path();
        let following = Following::start(&["tail", path.to_str().expect("UTF-8"), "-f", "-n", "2", "--json"]);
        // It stands where it shall before more is written.
        assert_eq!((&following.next()["transaction"], &following.next()["transaction"]), (&18.into(), &19.into()));
        written.queries(20..600);
        for number in 20..600_u64 {
            assert_eq!(following.next()["transaction"], number);
        }
        assert!(written.files().len() > 4, "it has rotated meanwhile");
        written.close();
    }
}

#[test]
fn tail_of_what_is_to_come_shows_only_what_was_asked_for() {
    let written = Written::new();
    written.queries(0..20);
    let path = written.path();
    let following =
        Following::start(&["tail", path.to_str().expect("UTF-8"), "-f", "-n", "1", "--json", "--grep", "select 1?9,"]);
    assert_eq!(following.next()["transaction"], 19);
    written.queries(20..40);
    written.queries(119..120);
    written.queries(9..10);
    assert_eq!(following.next()["transaction"], 9);
}

#[test]
fn tail_ends_when_the_time_that_was_asked_for_is_over() {
    let written = Written::new();
    written.queries(0..3);
    let said = good(["tail".into(), "-f".into(), "--until".into(), "1min".into(), written.path()]);
    assert_eq!(said.lines().len(), 3);
}

#[test]
fn tail_waits_for_a_folder_that_is_not_there_yet() {
    let forms: [fn(Config) -> Config; 2] = [|config| config, |config| Config { format: Format::Json, ..config }];
    for form in forms {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("journal");
        assert!(bad(["tail".into(), path.clone()]).contains("cannot read"), "there is nothing to show now");
        let mut tail = command(["tail", "-F", "--json"]);
        let mut child =
            tail.arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
        let following = Following::of(child);
        assert!(said.next().expect("a line").ends_with("journal is not there yet; waiting for it"));
        let mut written = Written::within(folder, form);
        written.queries(0..2);
        assert!(said.next().expect("a line").ends_with("journal is there now"));
        assert_eq!((&following.next()["transaction"], &following.next()["transaction"]), (&0.into(), &1.into()));
        written.close();
    }
}

#[test]
fn a_pipe_that_is_closed_ends_it_quietly() {
    let mut written = Written::new();
    written.queries(0..1000);
    written.close();
    let path = written.path();
    for view in [&["cat", "--json"][..], &["export", "--csv"], &["cat"]] {
        let mut child =
            command(view).arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut line = String::new();
        // More than a pipe holds is never read.
        BufReader::with_capacity(16, child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        let mut errors = String::new();
        child.stderr.take().expect("it is piped").read_to_string(&mut errors).expect("text");
        let status = child.wait().expect("it ends");
        assert!(status.success() && errors.is_empty(), "{view:?}: {status} {errors}");
    }
}

#[test]
fn tail_ends_when_nobody_reads_its_pipe_any_more() {
    let mut written = Written::new();
    written.queries(0..20);
    written.close();
    let path = written.path();
    let mut child =
        command(["tail", "-f", "-n", "3"]).arg(&path).stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut reader = BufReader::new(child.stdout.take().expect("it is piped"));
    reader.read_line(&mut String::new()).expect("a line");
    // Nothing more is written: it has to look.
    drop(reader);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn the_journal_of_a_gateway_while_it_runs_and_afterwards() {
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
        let found = |sieve: &[&str]| good(["cat", "-c", config, "--json"].iter().chain(sieve)).json();
        eventually("the last query is written", || found(&["--errors"]).len() == 1);
        assert_eq!(found(&["--kind", "query"]).len(), 21);
        assert_eq!(found(&["--application", "till*", "--contains", "1 as"])[0]["tag"], "SELECT 1");
        assert_eq!(found(&["--errors"])[0]["sqlstate"], "22012");
        assert_eq!(found(&["--since", "1h", "--kind", "login"]).len(), 1);
        let top = good(["top", "-c", config, "--json", "--by", "calls"]).json();
        assert_eq!((&top[0]["calls"], &top[0]["statement"]), (&20.into(), &"select ? as price".into()));
        assert!(good(["tail", "-c", config, "-n", "1"]).out.contains("ERROR 22012"));
        assert!(!run(["repair", "-c", config]).good, "it is in use");
        drop(client);
        gateway.signal(Signal::INT);
        gateway.wait();
        assert!(good(["verify", "-c", config]).out.contains(": good: "));
        assert_eq!(found(&["--kind", "disconnect"]).len(), 1);
        assert!(good(["stats", "-c", config]).out.contains("not open"));
    }
}
