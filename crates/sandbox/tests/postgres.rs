//! The life cycle of real Postgres servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_sandbox::{Cluster, Error, Major, Postgres, ShutdownMode};

fn one(postgres: &Postgres, sql: &str) -> String {
    postgres.simple_query(sql).unwrap()[0][0].clone().unwrap()
}

#[test]
fn starts_with_settings_and_removes_its_folder() {
    for major in [14, 18] {
        let postgres = Postgres::builder().version(Major(major)).setting("max_connections", "37").start().unwrap();
        assert_eq!(one(&postgres, "SHOW max_connections"), "37");
        assert!(one(&postgres, "SHOW server_version").starts_with(&major.to_string()));
        let (pid, home) = (postgres.pid(), postgres.socket_dir().to_owned());
        postgres.stop().unwrap();
        assert!(!home.exists());
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}

#[test]
fn data_survive_restart_and_kill() {
    let mut postgres = Postgres::builder().start().unwrap();
    let port = postgres.port();
    postgres.simple_query("CREATE TABLE kept AS SELECT 7 AS n; CHECKPOINT").unwrap();
    postgres.restart().unwrap();
    assert_eq!(one(&postgres, "SELECT n FROM kept"), "7");
    postgres.kill9().unwrap();
    assert!(postgres.simple_query("SELECT 1").is_err());
    postgres.restart().unwrap();
    assert_eq!(one(&postgres, "SELECT n FROM kept"), "7");
    assert_eq!(postgres.port(), port);
}

#[test]
fn ensure_creates_once_and_updates_passwords() {
    let postgres = Postgres::builder().start().unwrap();
    for password in ["first", "it's second"] {
        postgres.ensure_role("o\"hara", password).unwrap();
        postgres.ensure_database("app", "o\"hara").unwrap();
    }
    assert_eq!(postgres.simple_query_in("app", "SELECT current_database()").unwrap()[0][0].as_deref(), Some("app"));
}

#[test]
fn server_error_keeps_its_sqlstate() {
    let postgres = Postgres::builder().start().unwrap();
    let Err(Error::Query { sqlstate, .. }) = postgres.simple_query("SELECT 1; SELECT 1/0") else {
        panic!("division by zero is an error");
    };
    assert_eq!(sqlstate, "22012");
}

#[test]
fn refused_setting_is_reported_with_the_log() {
    let failed = Postgres::builder().setting("no_such_setting", "1").start();
    let Err(Error::Start { log, .. }) = failed else {
        panic!("Postgres accepts no unknown setting");
    };
    assert!(log.contains("no_such_setting"), "{log}");
}

#[test]
fn suspended_server_keeps_connections() {
    let postgres = Postgres::builder().start().unwrap();
    postgres.suspend();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", postgres.pid())).unwrap();
    // The signal has been sent; a process on another core stops a moment later.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !state().contains(") T ") {
        assert!(Instant::now() < deadline, "{}", state());
        std::thread::yield_now();
    }
    postgres.resume();
    assert_eq!(one(&postgres, "SELECT 1"), "1");
}

#[test]
fn replicas_stream_and_follow_a_promotion() {
    let mut cluster = Cluster::start(&Postgres::builder(), 2).unwrap();
    cluster.primary().simple_query("CREATE TABLE kept AS SELECT 7 AS n").unwrap();
    for index in [1, 2] {
        cluster.catch_up(index).unwrap();
        assert_eq!(one(cluster.server(index), "SELECT n FROM kept"), "7");
        assert_eq!(one(cluster.server(index), "SELECT pg_is_in_recovery()"), "t");
    }
    cluster.server(0).begin_shutdown(ShutdownMode::Fast);
    cluster.server_mut(0).wait_for_shutdown().unwrap();
    cluster.promote(1).unwrap();
    for index in [0, 2] {
        cluster.follow(index).unwrap();
    }
    cluster.primary().simple_query("UPDATE kept SET n = 8").unwrap();
    for index in [0, 2] {
        cluster.catch_up(index).unwrap();
        assert_eq!(one(cluster.server(index), "SELECT n FROM kept"), "8");
    }
}

/// Set in the copy of this test that plays the killed owner.
const OWNER: &str = "TIDEGATE_SANDBOX_TEST_OWNER";

#[test]
fn server_stops_when_its_owner_is_killed() {
    if std::env::var_os(OWNER).is_some() {
        play_a_killed_owner();
    }
    let test = std::env::current_exe().unwrap();
    let copy = Command::new(test)
        .args(["--exact", "server_stops_when_its_owner_is_killed", "--nocapture"])
        .env(OWNER, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&copy.stdout).into_owned();
    let value = |name: &str| output.lines().find_map(|line| line.split_once(name)).expect(&output).1.to_owned();
    let (home, registered) = (value("home="), value("registered="));
    while Path::new(&home).exists() || Path::new(&format!("/proc/{registered}")).exists() {
        std::thread::yield_now();
    }
}

fn play_a_killed_owner() -> ! {
    let postgres = Postgres::builder().start().unwrap();
    let log = postgres.socket_dir().join("log");
    let reader = Command::new("tail").arg("-f").arg(log).stdout(Stdio::null()).spawn().unwrap();
    postgres.register_process(reader.id()).unwrap();
    println!("\nhome={}\nregistered={}", postgres.socket_dir().display(), reader.id());
    std::process::abort();
}
