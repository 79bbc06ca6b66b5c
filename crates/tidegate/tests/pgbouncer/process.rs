//! The process: daemon mode, pid file, signals, log file, readiness and a shared port.

use std::{os::unix::net::UnixDatagram, process::Command};

use rustix::process::{Pid, Signal as RawSignal, kill_process, test_kill_process};
use tidegate_testkit::{Frames, Signal, Startup, TIMEOUT, eventually};

use crate::ini_gateway::{IniGateway, Setup, binary, free_port, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=2\n";

#[test]
fn sigusr1_pauses_and_sigusr2_resumes() {
    let gateway = IniGateway::start(SHOP);
    let mut client = gateway.client("shop");
    client.ok("select 1");
    gateway.signal(Signal::USR1);
    let paused = || gateway.show("STATE").iter().any(|row| row["key"] == "paused" && row["value"] == "yes");
    eventually("the gateway is paused", paused);
    gateway.wait_for_log("got SIGUSR1, pausing all activity");
    client.send(&Frames::new().query("select 'resumed'"));
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    gateway.signal(Signal::USR2);
    assert_eq!(client.until_ready().value(), "resumed");
    gateway.wait_for_log("got SIGUSR2, continuing from PAUSE");
    gateway.signal(Signal::HUP);
    gateway.wait_for_log("got SIGHUP, re-reading config");
    gateway.signal(Signal::TERM);
    gateway.wait_for_log("got SIGTERM, shutting down, waiting for all clients disconnect");
}

#[test]
fn sigquit_ends_the_process_immediately() {
    let mut gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\npidfile = $DIR/pid\n"));
    let mut client = gateway.client("shop");
    client.ok("begin");
    let pid = std::fs::read_to_string(gateway.file("pid")).expect("the file exists");
    assert!(pid.trim().parse::<u32>().is_ok(), "{pid}");
    gateway.signal(Signal::QUIT);
    assert!(gateway.wait().success());
    assert!(!gateway.file("pid").exists());
}

#[test]
fn log_file_is_reopened_after_a_rotation() {
    let ini = format!("{SHOP}[pgbouncer]\nlogfile = $DIR/pgbouncer.log\n");
    let gateway = IniGateway::with(&Setup { ini: &ini, options: &["-q"], ..Setup::default() });
    let text = |name: &str| std::fs::read_to_string(gateway.file(name)).unwrap_or_default();
    eventually("the log is written", || text("pgbouncer.log").contains("listening"));
    std::fs::rename(gateway.file("pgbouncer.log"), gateway.file("pgbouncer.log.1")).expect("the folder can be written");
    gateway.signal(Signal::HUP);
    eventually("the new file is written", || text("pgbouncer.log").contains("configuration reloaded"));
    std::fs::rename(gateway.file("pgbouncer.log"), gateway.file("pgbouncer.log.2")).expect("the folder can be written");
    gateway.console().ok("RELOAD");
    assert!(text("pgbouncer.log").contains("configuration reloaded"), "RELOAD does not reopen the log");
    gateway.set_config(&format!("{SHOP}[pgbouncer]\nlogfile = {}\n", gateway.file("other.log").display()));
    gateway.console().ok("RELOAD");
    assert!(text("other.log").contains("configuration reloaded"), "the log is not in the new file");
    gateway.console().ok("SET logfile = '/nowhere/at/all.log'");
    assert!(text("other.log").contains("the log cannot be opened again"), "the old file is not kept");
    assert_eq!(gateway.log(), "", "standard error is not empty");
}

#[test]
fn two_processes_share_a_port() {
    let ini = format!("{SHOP}[pgbouncer]\nso_reuseport = 1\n");
    let setup = Setup { ini: &ini, ..Setup::default() };
    for _ in 0..5 {
        let port = free_port();
        let both = [IniGateway::spawn(&setup, port), IniGateway::spawn(&setup, port)];
        let has_started =
            |gateway: &IniGateway| gateway.log().contains("listening") || gateway.log().contains("in use");
        eventually("both have started", || both.iter().all(has_started));
        if both.iter().any(|gateway| gateway.log().contains("in use")) {
            // Another process has taken the port meanwhile.
            continue;
        }
        for gateway in &both {
            let startup = gateway.unix("postgres", "shop");
            eventually("each process accepts", || startup.try_connect().is_ok());
        }
        Startup::tcp(([127, 0, 0, 1], port).into(), "postgres", "shop").connect().ok("select 1");
        return;
    }
    panic!("no port was free");
}

#[test]
fn readiness_is_notified_to_systemd() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    let file = folder.path().join("pgbouncer.ini");
    let (host, pg) = (server().address().ip(), server().port());
    let dir = folder.path().display();
    let text =
        format!("[databases]\n* = host={host} port={pg}\n[pgbouncer]\nunix_socket_dir = {dir}\nauth_type = any\n");
    std::fs::write(&file, text).expect("the folder can be written");
    let mut child =
        Command::new(binary()).arg(&file).env("NOTIFY_SOCKET", &path).spawn().expect("the binary can be started");
    let mut message = [0; 64];
    let length = socket.recv(&mut message).expect("a message arrives");
    assert!(message[..length].starts_with(b"READY=1\n"), "{}", String::from_utf8_lossy(&message[..length]));
    Startup::unix(folder.path().join(".s.PGSQL.6432"), "postgres", "postgres").connect().ok("select 1");
    child.kill().expect("the process runs");
    child.wait().expect("the process ends");
}

#[test]
fn daemon_mode_starts_a_background_process() {
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
    let start = || Command::new(binary()).arg("-d").arg(&file).output().expect("the binary can be started");
    let mut started = start();
    // Another process may have taken the port meanwhile.
    for _ in 0..5 {
        if started.status.success() {
            break;
        }
        port = free_port();
        write(port);
        started = start();
    }
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    let pid =
        std::fs::read_to_string(folder.path().join("pid")).expect("the pid file is written before the start returns");
    let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
    Startup::tcp(([127, 0, 0, 1], port).into(), "postgres", "postgres").connect().ok("select 1");
    let again = start();
    assert!(
        !again.status.success() && String::from_utf8_lossy(&again.stderr).contains("which is running"),
        "{again:?}"
    );
    kill_process(pid, RawSignal::QUIT).expect("the process runs");
    eventually("the process has ended", || test_kill_process(pid).is_err() || !folder.path().join("pid").exists());
}
