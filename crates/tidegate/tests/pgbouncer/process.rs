//! The process: background, pid file, signals, log file, readiness, a port for several.

use std::{os::unix::net::UnixDatagram, process::Command};

use rustix::process::{Pid, Signal as Raw, kill_process, test_kill_process};
use tidegate_testkit::{Frames, PATIENCE, Signal, Startup, eventually};

use crate::bouncer::{Bouncer, Setup, binary, free_port, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=2\n";

#[test]
fn usr1_pauses_and_usr2_resumes() {
    let bouncer = Bouncer::start(SHOP);
    let mut client = bouncer.client("shop");
    client.ok("select 1");
    bouncer.signal(Signal::USR1);
    let paused = || bouncer.show("STATE").iter().any(|row| row["key"] == "paused" && row["value"] == "yes");
    eventually("it is paused", paused);
    bouncer.wait_for_log("got SIGUSR1, pausing all activity");
    client.send(&Frames::new().query("select 'resumed'"));
    bouncer.wait_for_pool("shop", "cl_waiting", 1);
    bouncer.signal(Signal::USR2);
    assert_eq!(client.until_ready().value(), "resumed");
    bouncer.wait_for_log("got SIGUSR2, continuing from PAUSE");
    bouncer.signal(Signal::HUP);
    bouncer.wait_for_log("got SIGHUP, re-reading config");
    bouncer.signal(Signal::TERM);
    bouncer.wait_for_log("got SIGTERM, shutting down, waiting for all clients disconnect");
}

#[test]
fn quit_ends_it_at_once() {
    let mut bouncer = Bouncer::start(&format!("{SHOP}[pgbouncer]\npidfile = $DIR/pid\n"));
    let mut client = bouncer.client("shop");
    client.ok("begin");
    let pid = std::fs::read_to_string(bouncer.file("pid")).expect("the file is there");
    assert!(pid.trim().parse::<u32>().is_ok(), "{pid}");
    bouncer.signal(Signal::QUIT);
    assert!(bouncer.wait().success());
    assert!(!bouncer.file("pid").exists());
}

#[test]
fn a_log_file_goes_on_after_a_rotation() {
    let ini = format!("{SHOP}[pgbouncer]\nlogfile = $DIR/pgbouncer.log\n");
    let bouncer = Bouncer::with(&Setup { ini: &ini, options: &["-q"], ..Setup::default() });
    let text = |name: &str| std::fs::read_to_string(bouncer.file(name)).unwrap_or_default();
    eventually("it logs", || text("pgbouncer.log").contains("listening"));
    std::fs::rename(bouncer.file("pgbouncer.log"), bouncer.file("pgbouncer.log.1")).expect("the folder can be written");
    bouncer.signal(Signal::HUP);
    eventually("it logs anew", || text("pgbouncer.log").contains("configuration reloaded"));
    std::fs::rename(bouncer.file("pgbouncer.log"), bouncer.file("pgbouncer.log.2")).expect("the folder can be written");
    bouncer.console().ok("RELOAD");
    assert!(text("pgbouncer.log").contains("configuration reloaded"), "as after a signal");
    bouncer.rewrite(&format!("{SHOP}[pgbouncer]\nlogfile = {}\n", bouncer.file("other.log").display()));
    bouncer.console().ok("RELOAD");
    assert!(text("other.log").contains("configuration reloaded"), "in another file");
    bouncer.console().ok("SET logfile = '/nowhere/at/all.log'");
    assert!(text("other.log").contains("the log cannot be opened again"), "it goes on where it was");
    assert_eq!(bouncer.log(), "", "nothing is said on standard error");
}

#[test]
fn two_processes_share_a_port() {
    let ini = format!("{SHOP}[pgbouncer]\nso_reuseport = 1\n");
    let setup = Setup { ini: &ini, ..Setup::default() };
    for _ in 0..5 {
        let port = free_port();
        let both = [Bouncer::spawn(&setup, port), Bouncer::spawn(&setup, port)];
        let is_decided = |bouncer: &Bouncer| bouncer.log().contains("listening") || bouncer.log().contains("in use");
        eventually("both have started", || both.iter().all(is_decided));
        if both.iter().any(|bouncer| bouncer.log().contains("in use")) {
            // Somebody else has taken the port meanwhile.
            continue;
        }
        for bouncer in &both {
            let startup = bouncer.unix("postgres", "shop");
            eventually("each serves", || startup.try_connect().is_ok());
        }
        Startup::tcp(([127, 0, 0, 1], port).into(), "postgres", "shop").connect().ok("select 1");
        return;
    }
    panic!("no port was free");
}

#[test]
fn systemd_is_told_when_clients_can_come() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let file = folder.path().join("pgbouncer.ini");
    let (host, pg) = (server().address().ip(), server().port());
    let dir = folder.path().display();
    let text =
        format!("[databases]\n* = host={host} port={pg}\n[pgbouncer]\nunix_socket_dir = {dir}\nauth_type = any\n");
    std::fs::write(&file, text).expect("the folder can be written");
    let mut child = Command::new(binary()).arg(&file).env("NOTIFY_SOCKET", &path).spawn().expect("it can be started");
    let mut said = [0; 64];
    let length = socket.recv(&mut said).expect("it says something");
    assert_eq!(&said[..length], b"READY=1");
    Startup::unix(folder.path().join(".s.PGSQL.6432"), "postgres", "postgres").connect().ok("select 1");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn it_lives_on_in_the_background() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgbouncer.ini");
    let (host, pg) = (server().address().ip(), server().port());
    let dir = folder.path().display();
    let write = |port: u16| {
        let text = format!(
            "[databases]\n* = host={host} port={pg}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npidfile = {dir}/pid\nlogfile = {dir}/log\n"
        );
        std::fs::write(&file, text).expect("the folder can be written");
    };
    let mut port = free_port();
    write(port);
    let start = || Command::new(binary()).arg("-d").arg(&file).output().expect("it can be started");
    let mut started = start();
    // The port may have been taken meanwhile.
    for _ in 0..5 {
        if started.status.success() {
            break;
        }
        port = free_port();
        write(port);
        started = start();
    }
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    let pid = std::fs::read_to_string(folder.path().join("pid")).expect("the file is there by now");
    let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
    Startup::tcp(([127, 0, 0, 1], port).into(), "postgres", "postgres").connect().ok("select 1");
    let again = start();
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("alive"), "{again:?}");
    kill_process(pid, Raw::QUIT).expect("it runs");
    eventually("it has ended", || test_kill_process(pid).is_err() || !folder.path().join("pid").exists());
}
