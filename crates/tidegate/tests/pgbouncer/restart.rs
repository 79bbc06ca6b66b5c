//! One process after another: nobody who connects meanwhile is refused.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::process::{Pid, Signal as Raw, kill_process};
use tidegate_testkit::{Frames, Signal, Startup, eventually};

use crate::{
    bouncer::{Bouncer, Setup, binary, free_port, server},
    metrics::get,
};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=2\n";

/// Ends the load of a test, however the test ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn nobody_is_refused_while_a_process_takes_over_from_another() {
    let mut old = Bouncer::start(&format!("{SHOP}[pgbouncer]\npidfile = $DIR/pid\nlog_connections = 0\n"));
    let mut resident = old.client("shop");
    resident.ok("select 1");
    let tcp = old.startup("shop");
    let unix = old.unix("postgres", "shop");
    let (file, pid_file) = (old.file(&format!(".s.PGSQL.{}", old.port())), old.file("pid"));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = Over(&over);
        let over = &over;
        let visit = |startup: Startup| {
            scope.spawn(move || {
                let mut visits = 0_u32;
                while !over.load(Ordering::SeqCst) {
                    // Both panic, should the client be refused or lost.
                    startup.connect().ok("select 1");
                    visits += 1;
                }
                visits
            })
        };
        let visitors = [visit(tcp.clone()), visit(tcp.clone()), visit(unix.clone())];
        let mut new = old.beside(&["-R"]);
        new.wait_for_log("took over");
        old.wait_for_log("no longer listening");
        resident.ok("select 1");
        drop(resident);
        assert!(old.wait().success());
        tcp.connect().ok("select 1");
        unix.connect().ok("select 1");
        // And once more, from one that has taken over itself.
        let mut newest = old.beside(&["-R"]);
        newest.wait_for_log("took over");
        assert!(new.wait().success());
        tcp.connect().ok("select 1");
        unix.connect().ok("select 1");
        drop(end);
        for visitor in visitors {
            assert!(visitor.join().expect("nobody was refused") > 0);
        }
        assert!(pid_file.exists() && file.exists());
        newest.signal(Signal::QUIT);
        assert!(newest.wait().success());
        assert!(!pid_file.exists() && !file.exists());
    });
}

/// A socket without a file cannot be replaced by another of its name: it is passed on, and so is the way to it.
#[test]
fn sockets_without_a_file_are_passed_on_again_and_again() {
    let name = format!("tidegate-passed-on-{}", std::process::id());
    let mut first = Bouncer::start(&format!("{SHOP}[pgbouncer]\nunix_socket_dir = @{name}\n"));
    let unix = Startup::unix(format!("@{name}/.s.PGSQL.{}", first.port()), "postgres", "shop");
    eventually("the socket accepts", || unix.try_open().is_ok());
    let mut resident = unix.connect();
    resident.ok("select 1");
    let mut second = first.beside(&["-R"]);
    second.wait_for_log("took over");
    resident.ok("select 1");
    drop(resident);
    assert!(first.wait().success());
    unix.connect().ok("select 1");
    let third = first.beside(&["-R"]);
    third.wait_for_log("took over");
    assert!(second.wait().success());
    unix.connect().ok("select 1");
}

/// A RESUME reaches the new process only, which knows of no pause.
#[test]
fn clients_that_wait_in_a_pause_are_served_when_another_process_takes_over() {
    let mut old = Bouncer::start(SHOP);
    let mut waiting = old.client("shop");
    waiting.ok("select 1");
    old.console().ok("PAUSE");
    waiting.send(&Frames::new().query("select 'served'"));
    let waits = || old.show("CLIENTS").iter().filter(|row| row["state"] == "waiting").count();
    eventually("it waits", || waits() == 1);
    let mut new = old.beside(&["-R"]);
    new.wait_for_log("took over");
    waiting.expect("T D:served C:SELECT_1 Z:I");
    drop(waiting);
    assert!(old.wait().success());
    new.signal(Signal::QUIT);
    assert!(new.wait().success());
}

#[test]
fn a_process_that_cannot_take_over_leaves_everything_as_it_is() {
    let old = Bouncer::start(SHOP);
    let mut resident = old.client("shop");
    let broken = old.file("broken.ini");
    let text = std::fs::read_to_string(old.file("pgbouncer.ini")).expect("the file is there");
    // Its sockets are passed by then.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let metrics = taken.local_addr().expect("an address").to_string();
    std::fs::write(&broken, text).expect("the folder can be written");
    let arguments = ["-R", "--metrics", &metrics, &broken.display().to_string()];
    let ended = crate::bouncer::output(&arguments);
    assert!(!ended.status.success() && String::from_utf8_lossy(&ended.stderr).contains(&metrics), "{ended:?}");
    old.wait_for_log("another process has not taken over");
    resident.ok("select 1");
    old.client("shop").ok("select 1");
    old.unix("postgres", "shop").connect().ok("select 1");
}

#[test]
fn without_a_process_to_take_over_from_it_starts_as_usual() {
    let bouncer = Bouncer::with(&Setup { ini: SHOP, options: &["-R"], ..Setup::default() });
    bouncer.client("shop").ok("select 1");
    assert!(bouncer.log().contains("starting as usual"), "{}", bouncer.log());
}

/// A process that was started as systemd does it, with one or two sockets.
struct Activated(Child);

impl Activated {
    fn start(file: &Path, names: &str, [first, second]: [&TcpListener; 2]) -> Self {
        let passed = |socket: &TcpListener| OwnedFd::from(socket.try_clone().expect("a descriptor"));
        // The number of the process has to be known before the program begins.
        let script = "export LISTEN_FDS=$1 LISTEN_PID=$$ LISTEN_FDNAMES=$2; shift 2; \
                      exec 3<&0 4<&1 </dev/null >/dev/null; exec \"$@\"";
        let mut command = Command::new("sh");
        let count = names.split(':').count().to_string();
        command.args(["-c", script, "sh", &count, names]).arg(binary()).args(["--workers", "2"]).arg(file);
        command.stdin(Stdio::from(passed(first))).stdout(Stdio::from(passed(second)));
        Self(command.spawn().expect("it can be started"))
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Raw::TERM).expect("it runs");
        assert!(self.0.wait().expect("it is a child").success());
    }
}

impl Drop for Activated {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A file for starts by systemd; what it says of addresses is for others.
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
fn clients_wait_at_the_socket_of_systemd_for_the_next_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = file_in(folder.path());
    let (socket, address) = listener();
    let startup = Startup::tcp(address, "postgres", "postgres");
    let first = Activated::start(&file, "clients", [&socket, &socket]);
    startup.connect().ok("select 1");
    first.end();
    let waiting = thread::spawn(move || startup.connect().value("select 'served'"));
    let second = Activated::start(&file, "clients", [&socket, &socket]);
    assert_eq!(waiting.join().expect("it was not refused"), "served");
    second.end();
}

#[test]
fn a_socket_of_systemd_that_is_named_metrics_answers_scrapes() {
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
fn nobody_is_refused_and_no_transaction_fails_when_one_of_two_on_a_port_stops() {
    let mut first = Bouncer::start(&format!("{SHOP}[pgbouncer]\nso_reuseport = 1\nlog_connections = 0\n"));
    let mut resident = first.client("shop");
    resident.ok("begin");
    let startup = first.startup("shop");
    let second = first.beside(&[]);
    second.wait_for_log("listening");
    // The file of the unix socket is that of the last one to start.
    let console = first.unix("postgres", "pgbouncer");
    let done = || console.connect().show("STATS_TOTALS");
    let served = |rows: Vec<BTreeMap<String, String>>| {
        let row = rows.into_iter().find(|row| row["database"] == "shop");
        row.map_or(0, |row| row["client_login_count"].parse::<u64>().unwrap_or(0))
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = Over(&over);
        let (over, startup) = (&over, &startup);
        let visit = || {
            scope.spawn(move || {
                let (mut visits, mut reset) = (0_u32, 0_u32);
                while !over.load(Ordering::SeqCst) {
                    match startup.try_connect() {
                        // It panics, should a transaction fail.
                        Ok(mut client) => ["begin", "select 1", "commit"].iter().for_each(|sql| drop(client.ok(sql))),
                        Err(lost) => {
                            assert!(!format!("{lost:?}").contains("Refused"), "{lost:?}");
                            reset += 1;
                        }
                    }
                    visits += 1;
                }
                (visits, reset)
            })
        };
        let visitors = [visit(), visit(), visit(), visit()];
        eventually("both serve", || served(done()) >= 20);
        first.signal(Signal::TERM);
        first.wait_for_log("no longer listening");
        let before = served(done());
        eventually("the other one serves all", || served(done()) >= before + 50);
        resident.ok("select 1");
        resident.ok("commit");
        drop(resident);
        assert!(first.wait().success());
        let before = served(done());
        eventually("the other one goes on", || served(done()) >= before + 20);
        drop(end);
        let (mut visits, mut reset) = (0, 0);
        for visitor in visitors {
            let (visited, lost) = visitor.join().expect("nobody was refused, and no transaction failed");
            (visits, reset) = (visits + visited, reset + lost);
        }
        // What the kernel had not handed out yet is its own to move or to reset.
        let moves = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req").is_ok_and(|text| text.trim() == "1");
        assert!(reset == 0 || !moves, "{reset} of {visits} were reset before they were heard");
    });
}
