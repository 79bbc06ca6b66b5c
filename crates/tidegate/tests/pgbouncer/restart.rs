//! Restarts without refused connections: takeover by a new process, systemd sockets, and a shared port.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::process::{Pid, Signal as RawSignal, kill_process};
use tidegate_testkit::{Frames, Signal, Startup, eventually};

use crate::{
    ini_gateway::{IniGateway, Setup, binary, free_port, server},
    metrics::get,
};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=2\n";

/// Stops the clients when the test ends, also by a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn takeover_refuses_no_connection() {
    let mut old = IniGateway::start(&format!("{SHOP}[pgbouncer]\npidfile = $DIR/pid\nlog_connections = 0\n"));
    let mut client = old.client("shop");
    client.ok("select 1");
    let tcp = old.startup("shop");
    let unix = old.unix("postgres", "shop");
    let (file, pid_file) = (old.file(&format!(".s.PGSQL.{}", old.port())), old.file("pid"));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = StopOnDrop(&stop);
        let stop = &stop;
        let connect_repeatedly = |startup: Startup| {
            scope.spawn(move || {
                let mut connects = 0_u32;
                while !stop.load(Ordering::SeqCst) {
                    // Both calls panic if the client is refused or loses its connection.
                    startup.connect().ok("select 1");
                    connects += 1;
                }
                connects
            })
        };
        let threads =
            [connect_repeatedly(tcp.clone()), connect_repeatedly(tcp.clone()), connect_repeatedly(unix.clone())];
        let mut new = old.second_process(&["-R"]);
        new.wait_for_log("took over");
        old.wait_for_log("no longer listening");
        client.ok("select 1");
        drop(client);
        assert!(old.wait().success());
        tcp.connect().ok("select 1");
        unix.connect().ok("select 1");
        // The second takeover is from a process that has taken over itself.
        let mut newest = old.second_process(&["-R"]);
        newest.wait_for_log("took over");
        assert!(new.wait().success());
        tcp.connect().ok("select 1");
        unix.connect().ok("select 1");
        drop(end);
        for thread in threads {
            assert!(thread.join().expect("no client was refused") > 0);
        }
        assert!(pid_file.exists() && file.exists());
        newest.signal(Signal::QUIT);
        assert!(newest.wait().success());
        assert!(!pid_file.exists() && !file.exists());
    });
}

/// An abstract socket cannot be replaced by another one of its name: it is passed on, together with the takeover
/// socket.
#[test]
fn abstract_unix_sockets_are_passed_on_repeatedly() {
    let name = format!("tidegate-passed-on-{}", std::process::id());
    let mut first = IniGateway::start(&format!("{SHOP}[pgbouncer]\nunix_socket_dir = @{name}\n"));
    let unix = Startup::unix(format!("@{name}/.s.PGSQL.{}", first.port()), "postgres", "shop");
    eventually("the socket accepts", || unix.try_open().is_ok());
    let mut client = unix.connect();
    client.ok("select 1");
    let mut second = first.second_process(&["-R"]);
    second.wait_for_log("took over");
    client.ok("select 1");
    drop(client);
    assert!(first.wait().success());
    unix.connect().ok("select 1");
    let third = first.second_process(&["-R"]);
    third.wait_for_log("took over");
    assert!(second.wait().success());
    unix.connect().ok("select 1");
}

/// The new process is not paused, and RESUME would reach only that process.
#[test]
fn paused_clients_are_served_after_a_takeover() {
    let mut old = IniGateway::start(SHOP);
    let mut waiting = old.client("shop");
    waiting.ok("select 1");
    old.console().ok("PAUSE");
    waiting.send(&Frames::new().query("select 'served'"));
    let waiting_clients = || old.show("CLIENTS").iter().filter(|row| row["state"] == "waiting").count();
    eventually("the client waits", || waiting_clients() == 1);
    let mut new = old.second_process(&["-R"]);
    new.wait_for_log("took over");
    waiting.expect("T D:served C:SELECT_1 Z:I");
    drop(waiting);
    assert!(old.wait().success());
    new.signal(Signal::QUIT);
    assert!(new.wait().success());
}

#[test]
fn failed_takeover_changes_nothing() {
    let old = IniGateway::start(SHOP);
    let mut client = old.client("shop");
    let broken = old.file("broken.ini");
    let text = std::fs::read_to_string(old.file("pgbouncer.ini")).expect("the file exists");
    // The sockets have been passed when the metrics address fails.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let metrics = listener.local_addr().expect("an address").to_string();
    std::fs::write(&broken, text).expect("the folder can be written");
    let arguments = ["-R", "--metrics", &metrics, &broken.display().to_string()];
    let ended = crate::ini_gateway::output(&arguments);
    assert!(!ended.status.success() && String::from_utf8_lossy(&ended.stderr).contains(&metrics), "{ended:?}");
    old.wait_for_log("hand-over failed; this process continues");
    client.ok("select 1");
    old.client("shop").ok("select 1");
    old.unix("postgres", "shop").connect().ok("select 1");
}

#[test]
fn takeover_without_an_old_process_is_a_normal_start() {
    let gateway = IniGateway::with(&Setup { ini: SHOP, options: &["-R"], ..Setup::default() });
    gateway.client("shop").ok("select 1");
    assert!(gateway.log().contains("starting normally"), "{}", gateway.log());
}

/// A process started like by systemd socket activation, with one or two sockets.
struct Activated(Child);

impl Activated {
    fn start(file: &Path, names: &str, [first, second]: [&TcpListener; 2]) -> Self {
        let passed = |socket: &TcpListener| OwnedFd::from(socket.try_clone().expect("a descriptor"));
        // LISTEN_PID must be set before the program starts.
        let script = "export LISTEN_FDS=$1 LISTEN_PID=$$ LISTEN_FDNAMES=$2; shift 2; \
                      exec 3<&0 4<&1 </dev/null >/dev/null; exec \"$@\"";
        let mut command = Command::new("sh");
        let count = names.split(':').count().to_string();
        command.args(["-c", script, "sh", &count, names]).arg(binary()).args(["--workers", "2"]).arg(file);
        command.stdin(Stdio::from(passed(first))).stdout(Stdio::from(passed(second)));
        Self(command.spawn().expect("the shell can be started"))
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.0), RawSignal::TERM).expect("the process runs");
        assert!(self.0.wait().expect("the process is a child").success());
    }
}

impl Drop for Activated {
    fn drop(&mut self) {
        // The process may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A configuration file for socket activation, whose addresses must not be used.
fn file_in(folder: &Path) -> PathBuf {
    let file = folder.join("pgbouncer.ini");
    let (host, pg) = (server().address().ip(), server().port());
    let text = format!(
        "[databases]\n* = host={host} port={pg}\n[pgbouncer]\nauth_type = any\nunix_socket_dir =\n\
         listen_addr = 127.0.0.1\nlisten_port = {}\n",
        free_port()
    );
    std::fs::write(&file, text).expect("the folder can be written");
    file
}

fn listener() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

#[test]
fn systemd_socket_queues_clients_across_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = file_in(folder.path());
    let (socket, address) = listener();
    let startup = Startup::tcp(address, "postgres", "postgres");
    let first = Activated::start(&file, "clients", [&socket, &socket]);
    startup.connect().ok("select 1");
    first.end();
    let waiting = thread::spawn(move || startup.connect().value("select 'served'"));
    let second = Activated::start(&file, "clients", [&socket, &socket]);
    assert_eq!(waiting.join().expect("the client was not refused"), "served");
    second.end();
}

#[test]
fn systemd_socket_named_metrics_serves_metrics() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = file_in(folder.path());
    let ((clients, address), (metrics, scraped)) = (listener(), listener());
    for (names, sockets) in [("clients:metrics", [&clients, &metrics]), ("metrics:clients", [&metrics, &clients])] {
        let process = Activated::start(&file, names, sockets);
        Startup::tcp(address, "postgres", "postgres").connect().ok("select 1");
        let page = get(scraped.port(), "/metrics");
        let logins = "pgbouncer_stats_totals_client_logins_total{database=\"postgres\"} 1";
        assert!(page.lines().any(|line| line == logins), "{names}: {page}");
        process.end();
    }
}

#[test]
fn stop_on_a_shared_port_fails_no_transaction() {
    let mut first = IniGateway::start(&format!("{SHOP}[pgbouncer]\nso_reuseport = 1\nlog_connections = 0\n"));
    let mut client = first.client("shop");
    client.ok("begin");
    let startup = first.startup("shop");
    let second = first.second_process(&[]);
    second.wait_for_log("listening");
    // The last process to start owns the file of the unix socket.
    let console = first.unix("postgres", "pgbouncer");
    let done = || console.connect().show("STATS_LOGINS");
    let served = |rows: Vec<BTreeMap<String, String>>| {
        let row = rows.into_iter().find(|row| row["database"] == "shop");
        row.map_or(0, |row| row["client_login_count"].parse::<u64>().unwrap_or(0))
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = StopOnDrop(&stop);
        let (stop, startup) = (&stop, &startup);
        let connect_repeatedly = || {
            scope.spawn(move || {
                let (mut connects, mut reset) = (0_u32, 0_u32);
                while !stop.load(Ordering::SeqCst) {
                    match startup.try_connect() {
                        // The call panics if a transaction fails.
                        Ok(mut client) => ["begin", "select 1", "commit"].iter().for_each(|sql| drop(client.ok(sql))),
                        Err(lost) => {
                            assert!(!format!("{lost:?}").contains("Refused"), "{lost:?}");
                            reset += 1;
                        }
                    }
                    connects += 1;
                }
                (connects, reset)
            })
        };
        let threads = [connect_repeatedly(), connect_repeatedly(), connect_repeatedly(), connect_repeatedly()];
        eventually("clients are served", || served(done()) >= 20);
        first.signal(Signal::TERM);
        first.wait_for_log("no longer listening");
        let before = served(done());
        eventually("the other process serves all clients", || served(done()) >= before + 50);
        client.ok("select 1");
        client.ok("commit");
        drop(client);
        assert!(first.wait().success());
        let before = served(done());
        eventually("the other process continues", || served(done()) >= before + 20);
        drop(end);
        let (mut connects, mut reset) = (0, 0);
        for thread in threads {
            let (connected, lost) = thread.join().expect("no client was refused, and no transaction failed");
            (connects, reset) = (connects + connected, reset + lost);
        }
        // The kernel moves or resets connections that were not accepted yet.
        let moves = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req").is_ok_and(|text| text.trim() == "1");
        assert!(reset == 0 || !moves, "{reset} of {connects} were reset before they were accepted");
    });
}
