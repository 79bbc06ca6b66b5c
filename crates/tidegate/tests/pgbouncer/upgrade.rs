//! Live upgrade: sessions between transactions move to the process that takes over.

use std::{
    io::Write as _,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use tidegate_handover::{
    FrameReader, HELLO_BYTES, HandoverFrame, STATE_VERSION, SessionRecord, hello, receive_with_descriptor, send_frame,
    version_of,
};
use tidegate_testkit::{Authority, Frames, RawClient, Signal, Startup, TlsMode, eventually};

use crate::{
    ini_gateway::{IniGateway, Setup, output, server},
    metrics::get,
    tls::tls_keys,
};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=4\n";

/// A gateway with this kind of I/O.
fn start(io: &str, more: &str) -> IniGateway {
    let ini = format!(
        "{SHOP}[pgbouncer]\nmax_prepared_statements = 100\nlog_connections = 0\n\
         server_tls_sslmode = disable\n{more}"
    );
    IniGateway::with(&Setup { ini: &ini, options: &["--io", io], ..Setup::default() })
}

/// Starts a process that takes over from the process of `old`'s files.
fn take_over(old: &IniGateway, io: &str) -> IniGateway {
    let new = old.second_process(&["-R", "--io", io]);
    new.wait_for_log("took over");
    new
}

const KINDS: [&str; 2] = ["auto", "epoll"];

/// Sets what a session carries.
fn fill(client: &mut RawClient) {
    client.ok("set timezone to 'Asia/Tokyo'");
    client.ok("set application_name to 'mover'");
    client.send(&Frames::new().parse_typed("add", "select $1 + 1", &[23]).describe_statement("add").sync());
    client.until_ready();
    client.send(&Frames::new().parse("", "select 'unnamed'").sync());
    client.until_ready();
}

/// Checks the unnamed statement of [`fill`], which the next simple query drops.
fn check_unnamed(client: &mut RawClient) {
    client.send(&Frames::new().bind("", &[]).execute().sync());
    client.expect("2 D:unnamed C:SELECT_1 Z:I");
}

/// Checks what else [`fill`] has set.
fn check(client: &mut RawClient) {
    assert_eq!(client.value("show timezone"), "Asia/Tokyo");
    assert_eq!(client.value("show application_name"), "mover");
    client.send(&Frames::new().run("add").sync());
    assert_eq!(client.until_ready().code(), "08P01", "the statement has a parameter");
    client.send(&Frames::new().bind("add", &["41"]).execute().sync());
    client.expect("2 D:42 C:SELECT_1 Z:I");
}

/// Checks that a cancel request reaches a query of the client.
fn check_cancel(client: &mut RawClient) {
    client.send(&Frames::new().query("select pg_sleep(1000)"));
    let (startup, key) = (client.startup().clone(), client.key.clone());
    // The query may not have started.
    eventually("the query is cancelled", || {
        startup.cancel(&key);
        client.has_input()
    });
    assert_eq!(client.until_ready().code(), "57014");
}

/// OP-53.
#[test]
fn idle_sessions_move_with_their_state() {
    for (old_io, new_io) in [(KINDS[0], KINDS[1]), (KINDS[1], KINDS[0])] {
        let mut old = start(old_io, "");
        let mut clients = [old.client("shop"), old.unix("postgres", "shop").connect()];
        clients.iter_mut().for_each(fill);
        let keys: Vec<u32> = clients.iter().map(|client| client.key.process).collect();
        let new = take_over(&old, new_io);
        assert!(old.wait().success(), "no client is left");
        clients.iter_mut().for_each(check_unnamed);
        clients.iter_mut().for_each(check);
        clients.iter_mut().for_each(check_cancel);
        let rows = new.show("CLIENTS");
        assert_eq!(rows.iter().filter(|row| row["application_name"] == "mover").count(), 2, "{rows:?}");
        // New clients have other process ids.
        let others: Vec<_> = (0..8).map(|_| new.client("shop")).collect();
        assert!(others.iter().all(|other| !keys.contains(&other.key.process)));
        // The second move has everything that the first one had.
        let mut new = new;
        let newest = {
            let newest = old.second_process(&["-R", "--io", old_io]);
            newest.wait_for_log("took over");
            newest
        };
        drop(others);
        assert!(new.wait().success());
        clients.iter_mut().for_each(check);
        clients.iter_mut().for_each(check_cancel);
        drop(newest);
    }
}

/// OP-54.
#[test]
fn open_transaction_stays_until_it_ends() {
    for io in KINDS {
        let mut old = start(io, "");
        let mut open = old.client("shop");
        open.ok("begin");
        let mut pinned = old.client("shop");
        pinned.ok("begin");
        pinned.ok("listen news");
        let mut running = old.client("shop");
        running.send(&Frames::new().query("select pg_sleep(1000)"));
        old.wait_for_pool("shop", "sv_active", 3);
        let new = take_over(&old, io);
        old.wait_for_log("sessions move to the new process");
        // The cancel request arrives at the new process.
        running.cancel();
        assert_eq!(running.until_ready().code(), "57014");
        assert_eq!(open.ok("select 1").status, 'T');
        open.ok("commit");
        new.wait_for_pool("shop", "cl_active", 2);
        open.ok("select 1");
        running.ok("select 1");
        assert!(old.is_running());
        pinned.ok("commit");
        assert!(old.wait().success());
        pinned.ok("unlisten *");
        open.ok("select 1");
    }
}

/// Sets what pins a client to its server, and returns the process id of the server.
fn pin(client: &mut RawClient, name: &str) -> String {
    client.ok("set timezone to 'Asia/Tokyo'");
    client.ok("listen news");
    client.ok(&format!("create temporary table {name} as select 'kept' as word"));
    client.ok(&format!("prepare {name} as select word from {name}"));
    client.ok("declare held cursor with hold for select generate_series(1, 10)");
    assert_eq!(client.value("fetch held"), "1");
    client.send(&Frames::new().parse_typed("add", "select $1 + 1", &[23]).describe_statement("add").sync());
    client.until_ready();
    client.send(&Frames::new().parse("", "select 'unnamed'").sync());
    client.until_ready();
    client.value("select pg_backend_pid()")
}

/// Checks everything of [`pin`] after `fetched` rows of the cursor.
fn check_pinned(client: &mut RawClient, name: &str, fetched: u32) {
    assert_eq!(client.value("show timezone"), "Asia/Tokyo");
    assert_eq!(client.value(&format!("execute {name}")), "kept");
    assert_eq!(client.value("fetch held"), (fetched + 1).to_string());
    client.send(&Frames::new().bind("add", &["41"]).execute().sync());
    client.expect("2 D:42 C:SELECT_1 Z:I");
}

/// A pinned client moves together with its server, over two take-overs, and keeps everything that only that server has.
#[test]
fn pinned_sessions_move_with_their_server() {
    let socket_dir = server().socket_dir();
    for (first_io, second_io) in [(KINDS[0], KINDS[1]), (KINDS[1], KINDS[0])] {
        let ini = format!(
            "{SHOP}local = host={} port={} dbname=postgres user=postgres\n[pgbouncer]\nmax_prepared_statements = 100\n\
             server_tls_sslmode = disable\n",
            socket_dir.display(),
            server().port()
        );
        let setup = Setup { ini: &ini, options: &["--io", first_io], ..Setup::default() };
        let mut old = IniGateway::with(&setup);
        let mut clients = [old.client("shop"), old.unix("postgres", "local").connect()];
        let names = ["pinned_tcp", "pinned_unix"];
        let backends: Vec<String> = clients.iter_mut().zip(names).map(|(client, name)| pin(client, name)).collect();
        let mut first = take_over(&old, second_io);
        assert!(old.wait().success(), "no client is left: {}", old.log());
        for (client, name) in clients.iter_mut().zip(names) {
            check_pinned(client, name, 1);
            check_cancel(client);
        }
        let second = take_over(&old, first_io);
        assert!(first.wait().success(), "no client is left: {}", first.log());
        server().client().ok("notify news, 'after two take-overs'");
        for ((client, name), backend) in clients.iter_mut().zip(names).zip(&backends) {
            let (_, channel, payload) = client.recv().notification();
            assert_eq!((channel.as_str(), payload.as_str()), ("news", "after two take-overs"));
            check_pinned(client, name, 2);
            assert_eq!(client.value("select pg_backend_pid()"), *backend);
            let pins = second.show("PINS");
            assert!(pins.iter().any(|row| row.values().any(|value| value.contains("listen"))), "{pins:?}");
            check_cancel(client);
            client.ok("discard all");
            client.ok("select 1");
        }
        second.wait_for_pool("shop", "sv_active", 0);
        second.wait_for_pool("local", "sv_idle", 1);
    }
}

/// Each notification arrives once and in order while processes take over.
#[test]
fn notifications_arrive_during_take_overs() {
    for io in KINDS {
        let mut old = start(io, "");
        let mut client = old.client("shop");
        client.ok("listen ticks");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let (mut direct, mut sent) = (server().client(), 0_u32);
                while !stop.load(Ordering::SeqCst) {
                    direct.ok(&format!("notify ticks, '{sent}'"));
                    sent += 1;
                }
                direct.ok("notify ticks, 'last'");
                sent
            });
            let reader = scope.spawn(|| {
                let mut expected = 0_u32;
                loop {
                    let (_, _, payload) = client.recv().notification();
                    if payload == "last" {
                        client.ok("select 1");
                        return expected;
                    }
                    assert_eq!(payload, expected.to_string());
                    expected += 1;
                }
            });
            let mut first = take_over(&old, io);
            assert!(old.wait().success(), "the client has moved: {}", old.log());
            let second = take_over(&old, io);
            assert!(first.wait().success(), "the client has moved: {}", first.log());
            stop.store(true, Ordering::SeqCst);
            let sent = sender.join().expect("no notification fails");
            assert_eq!(reader.join().expect("no notification is lost or doubled"), sent);
            drop(second);
        });
    }
}

/// A session that cannot move keeps the old process for at most `timeouts.take_over`.
#[test]
fn take_over_timeout_ends_what_cannot_move() {
    let folder = tempfile::tempdir().expect("a folder");
    let (pg, dir) = (server().address(), folder.path().display());
    let mut old = IniGateway::with_toml(|port| {
        format!(
            "[listen]\naddresses = [\"127.0.0.1:{port}\"]\nunix_socket_dir = \"{dir}\"\n[auth]\nmethod = \"trust\"\n\
             [timeouts]\ntake_over = \"300ms\"\n\
             [databases.shop]\nhost = \"{}\"\nport = {}\ndbname = \"postgres\"\n",
            pg.ip(),
            pg.port()
        )
    });
    let [mut open, mut idle] = std::array::from_fn(|_| old.client("shop"));
    open.ok("begin");
    idle.ok("select 1");
    let new = old.take_over_with_toml();
    new.wait_for_log("took over");
    open.expect_fatal("57P01");
    assert!(old.wait().success());
    assert!(old.log().contains("timeouts.take_over has passed"), "{}", old.log());
    idle.ok("select 1");
    drop(new);
}

/// The configuration of the first minute: one TCP address, no directory for a unix socket.
#[test]
fn take_over_needs_no_unix_socket() {
    let pg = server().address();
    let mut old = IniGateway::with_toml(|port| {
        format!(
            "[listen]\naddresses = [\"127.0.0.1:{port}\"]\n[auth]\nmethod = \"trust\"\n\
             [databases.shop]\nhost = \"{}\"\nport = {}\ndbname = \"postgres\"\n",
            pg.ip(),
            pg.port()
        )
    });
    let mut client = old.client("shop");
    client.ok("set application_name = 'moved'");
    let mut first = old.take_over_with_toml();
    assert!(old.wait().success());
    assert_eq!(client.value("show application_name"), "moved");
    let second = old.take_over_with_toml();
    assert!(first.wait().success());
    assert_eq!(client.value("show application_name"), "moved");
    drop(second);
}

/// The server of the new process is another one, so the pinned client stays.
#[test]
fn pinned_session_stays_if_its_server_is_gone() {
    let mut old = start("auto", "");
    let mut client = old.client("shop");
    client.ok("listen news");
    old.set_config(&SHOP.replace("dbname=postgres", "dbname=template1"));
    let new = take_over(&old, "auto");
    old.wait_for_log("its server is not the one of the new process");
    client.ok("notify news");
    drop(client);
    assert!(old.wait().success());
    drop(new);
}

/// OP-55, OP-57: A process that ends at any step leaves the sessions where they are.
#[test]
fn successor_that_fails_takes_no_session() {
    for io in KINDS {
        for step in [Step::Listeners, Step::Ready, Step::OtherVersion, Step::Hello, Step::Received] {
            let mut old = start(io, "");
            let mut client = old.client("shop");
            fill(&mut client);
            Successor::run(&old, step);
            check(&mut client);
            client.ok("begin");
            client.ok("commit");
            if step == Step::OtherVersion {
                old.wait_for_log("different versions of their state");
            }
            assert!(old.is_running());
        }
    }
}

/// A session that was acknowledged belongs to the other process, even if it ends immediately afterwards.
#[test]
fn acknowledged_session_is_left_alone() {
    let mut old = start("auto", "");
    let mut client = old.client("shop");
    fill(&mut client);
    let (record, fd) = Successor::run(&old, Step::Accepted).expect("a session");
    assert!(old.wait().success(), "no client is left");
    assert_eq!((record.database.as_str(), record.user.as_str()), ("shop", "postgres"));
    let mut socket = std::net::TcpStream::from(fd);
    socket.set_nonblocking(false).expect("a socket");
    socket.write_all(b"Z\0\0\0\x05I").expect("an open client");
    client.expect("Z:I");
    drop(socket);
    client.expect_eof();
}

/// How far a successor goes before it ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Step {
    Listeners,
    Ready,
    OtherVersion,
    Hello,
    Received,
    Accepted,
}

/// A process that takes over and fails: the test itself.
struct Successor(UnixStream);

impl Successor {
    fn run(old: &IniGateway, step: Step) -> Option<(SessionRecord, OwnedFd)> {
        let path: PathBuf = old.file(&format!(".s.PGSQL.{}.handover", old.port()));
        let mut successor = Self(UnixStream::connect(path).expect("a hand-over socket"));
        // The sockets are closed with this function, so that the old process has its own only.
        let _listeners = successor.take_listeners();
        if step == Step::Listeners {
            return None;
        }
        successor.0.write_all(b"ready").expect("an open socket");
        if step == Step::Ready {
            drop(successor);
            old.wait_for_log("another process has taken over");
            return None;
        }
        let version = if step == Step::OtherVersion { STATE_VERSION + 1 } else { STATE_VERSION };
        successor.0.write_all(&hello(version)).expect("an open socket");
        let mut other = [0; HELLO_BYTES];
        std::io::Read::read_exact(&mut successor.0, &mut other).expect("a hello");
        assert_eq!(version_of(other), Some(STATE_VERSION));
        if step <= Step::Hello {
            return None;
        }
        successor.receive_one(step == Step::Accepted)
    }

    fn take_listeners(&mut self) -> Vec<OwnedFd> {
        let mut listeners = Vec::new();
        loop {
            let (mut message, mut received) = ([0; 256], 0);
            while received < message.len() {
                let (more, fd) = receive_with_descriptor(&self.0, &mut message[received..]).expect("a message");
                assert!(more > 0, "the old process has closed the connection");
                received += more;
                listeners.extend(fd);
            }
            if message.starts_with(b"end\0") {
                return listeners;
            }
        }
    }

    fn receive_one(self, accepts: bool) -> Option<(SessionRecord, OwnedFd)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            self.0.set_nonblocking(true).expect("a socket");
            let stream = tokio::net::UnixStream::from_std(self.0).expect("a socket");
            let mut reader = FrameReader::default();
            let (number, record, fd) = loop {
                // The old process also reports the end of its streams.
                if let (HandoverFrame::Session { number, record }, fd) =
                    reader.next(&stream).await.expect("a frame").expect("a frame")
                {
                    break (number, record, fd);
                }
            };
            let record = SessionRecord::decode(&record).expect("a record");
            if accepts {
                send_frame(&stream, &HandoverFrame::Accepted(number).encode(), None).await.expect("an open socket");
            }
            Some((record, fd.expect("the socket of the client")))
        })
    }
}

/// OP-59 is for kernels with kTLS; without it, a session over TLS stays.
#[test]
fn tls_session_drains_in_the_old_process() {
    let authority = Authority::new();
    let mut old = start("auto", &tls_keys(&authority, "allow"));
    let mut client = old.startup("shop").tls(TlsMode::Request(authority.ca())).connect();
    let mut plain = old.client("shop");
    client.ok("select 1");
    let new = take_over(&old, "auto");
    old.wait_for_log("sessions moved to the new process");
    client.ok("select 1");
    plain.ok("select 1");
    assert!(old.is_running());
    drop(client);
    assert!(old.wait().success());
    plain.ok("select 1");
    drop(new);
}

/// The database is gone from the configuration of the new process.
#[test]
fn refused_session_stays_with_the_old_process() {
    let mut old = start("auto", "");
    let mut client = old.client("shop");
    client.ok("select 1");
    old.set_config("[databases]\nother = $PG dbname=postgres\n");
    let new = take_over(&old, "auto");
    old.wait_for_log("session stays with this process");
    client.ok("select 1");
    assert!(old.log().contains("does not exist"), "{}", old.log());
    drop(client);
    assert!(old.wait().success());
    drop(new);
}

/// Sets a flag when it is dropped.
struct SetOnDrop<'f>(&'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// OP-56: Queries are sent without waiting for replies, in pieces of any length, while two processes take over.
#[test]
fn bytes_of_a_moving_client_arrive_once() {
    let seed = fastrand::u64(..);
    eprintln!("seed: {seed}");
    for io in KINDS {
        let mut old = start(io, "");
        let mut clients: Vec<_> = (0..3).map(|_| old.client("shop")).collect();
        let stop = AtomicBool::new(false);
        let received: Vec<_> = clients.iter().map(|_| AtomicU32::new(0)).collect();
        thread::scope(|scope| {
            let mut readers = Vec::new();
            for (number, client) in clients.iter_mut().enumerate() {
                let (mut writer, stop, received) = (client.writer(), &stop, &received[number]);
                let sender = scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed + number as u64);
                    let mut sent = 0_u32;
                    while !stop.load(Ordering::SeqCst) {
                        let mut frames = Frames::new();
                        for _ in 0..random.u32(1..4) {
                            frames = frames.query(&format!("select {sent}"));
                            sent += 1;
                        }
                        let (first, second) = frames.bytes().split_at(random.usize(..frames.bytes().len()));
                        writer.write_all(first).expect("an open connection");
                        thread::yield_now();
                        writer.write_all(second).expect("an open connection");
                        // Sometimes the pipeline is empty, so that the session can move.
                        let waits = random.u32(..4) == 0;
                        while waits && !stop.load(Ordering::SeqCst) && received.load(Ordering::SeqCst) < sent {
                            thread::yield_now();
                        }
                    }
                    writer.write_all(Frames::new().query("select 'last'").bytes()).expect("an open connection");
                });
                readers.push(scope.spawn(move || {
                    let mut expected = 0_u32;
                    loop {
                        let value = client.until_ready().value();
                        if value == "last" {
                            sender.join().expect("the sender");
                            return expected;
                        }
                        assert_eq!(value, expected.to_string());
                        expected += 1;
                        received.store(expected, Ordering::SeqCst);
                    }
                }));
            }
            // Also after a failure: the scope waits for the senders.
            let stops = SetOnDrop(&stop);
            let mut first = take_over(&old, io);
            assert!(old.wait().success(), "all clients have moved");
            let second = old.second_process(&["-R", "--io", io]);
            second.wait_for_log("took over");
            assert!(first.wait().success(), "all clients have moved again");
            drop(stops);
            for reader in readers {
                assert!(reader.join().expect("no byte is lost or doubled") > 0);
            }
            drop(second);
        });
    }
}

/// OP-58.
#[test]
fn cancel_request_is_forwarded_to_the_old_process() {
    let old = start("auto", "");
    let mut client = old.client("shop");
    client.ok("begin");
    client.send(&Frames::new().query("select pg_sleep(1000)"));
    old.wait_for_pool("shop", "sv_active", 1);
    let new = take_over(&old, "auto");
    client.cancel();
    assert_eq!(client.until_ready().code(), "57014");
    // A key that no process has is ignored.
    let mut unknown = client.key.clone();
    unknown.secret[0] ^= 1;
    client.startup().cancel(&unknown);
    client.ok("rollback");
    drop((client, new));
}

/// The counts of moved sessions are in the metrics of both processes.
#[test]
fn moved_sessions_are_counted() {
    let port = crate::ini_gateway::free_port();
    let metrics = format!("127.0.0.1:{port}");
    let ini = format!("{SHOP}[pgbouncer]\nlog_connections = 0\n");
    let options = ["--metrics", metrics.as_str()];
    let mut old = IniGateway::with(&Setup { ini: &ini, options: &options, ..Setup::default() });
    let mut client = old.client("shop");
    client.ok("select 1");
    let new = old.second_process(&["-R", "--metrics", &metrics]);
    new.wait_for_log("took over");
    assert!(old.wait().success());
    let page = get(port, "/metrics");
    let line = "tidegate_sessions_moved_total{direction=\"in\"} 1";
    assert!(page.lines().any(|found| found == line), "{page}");
    let state = new.show("STATE");
    assert!(state.iter().any(|row| row["key"] == "sessions_arrived" && row["value"] == "1"), "{state:?}");
    client.ok("select 1");
    assert_eq!(new.pool_count("shop", "cl_active"), 1);
    new.signal(Signal::QUIT);
}

/// A login over the same socket path works while a session moves.
#[test]
fn sessions_move_while_clients_connect() {
    let mut old = start("auto", "");
    let startup: Startup = old.startup("shop");
    let mut clients: Vec<_> = (0..80).map(|_| startup.connect()).collect();
    clients.iter_mut().for_each(|client| drop(client.ok("select 1")));
    let new = take_over(&old, "auto");
    clients.extend((0..10).map(|_| startup.connect()));
    assert!(old.wait().success(), "all 80 idle clients have moved");
    for client in &mut clients {
        client.ok("select 1");
    }
    drop(new);
}

/// A second process takes over while the first one still drains: sessions and cancel requests pass through the process between.
#[test]
fn three_processes_share_the_sessions() {
    for io in KINDS {
        let mut old = start(io, "");
        let [mut idle, mut open, mut pinned, mut running] = std::array::from_fn(|_| old.client("shop"));
        fill(&mut idle);
        fill(&mut open);
        open.ok("begin");
        pinned.ok("listen news");
        running.send(&Frames::new().query("select pg_sleep(1000)"));
        old.wait_for_pool("shop", "sv_active", 3);
        let mut first = take_over(&old, io);
        first.wait_for_pool("shop", "cl_active", 2);
        let mut between = first.client("shop");
        between.ok("begin");
        let second = take_over(&old, io);
        second.wait_for_pool("shop", "cl_active", 2);
        check(&mut idle);
        check_cancel(&mut idle);
        // Both processes before the newest one have clients still; their requests arrive at the newest one.
        running.cancel();
        assert_eq!(running.until_ready().code(), "57014");
        check_cancel(&mut between);
        between.ok("rollback");
        second.wait_for_pool("shop", "cl_active", 4);
        assert!(first.is_running(), "the oldest process has sessions that pass through");
        open.ok("commit");
        pinned.ok("notify news");
        drop(pinned);
        assert!(old.wait().success() && first.wait().success(), "{}\n{}", old.log(), first.log());
        second.wait_for_pool("shop", "cl_active", 4);
        check(&mut open);
        check_cancel(&mut open);
        for client in [&mut idle, &mut running, &mut between] {
            client.ok("select 1");
        }
        assert!(first.log().contains("the previous process has ended"), "{}", first.log());
    }
}

/// The streams of the newest process wait for those of the oldest one.
#[test]
fn stream_of_the_third_process_waits_for_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = format!("upgrade_third_{}", std::process::id());
    let mut direct = Startup::tcp(server().address(), "postgres", "postgres").connect();
    direct.ok(&format!("create table {table} (n int)"));
    let lines = |numbers: std::ops::Range<u32>| -> String {
        numbers.map(|n| format!("{{\"k\":\"{n}\",\"n\":{n}}}\n")).collect()
    };
    let input = folder.path().join("in.ndjson");
    std::fs::write(&input, lines(0..1)).expect("space on the disk");
    let mut old = start_with_log_and_stream(folder.path(), &table);
    let count = format!("select count(distinct n) from {table}");
    eventually("the stream delivers", || direct.value(&count) == "1");
    // Deliveries of the first process do not end.
    direct.ok(&format!("begin; lock table {table}"));
    let mut file = std::fs::File::options().append(true).open(&input).expect("a file");
    file.write_all(lines(1..100).as_bytes()).expect("space on the disk");
    eventually("deliveries wait for the lock", || old.show("STREAMS").iter().any(|row| row["in_flight"] != "0"));
    let mut first = old.take_over_with_toml();
    first.wait_for_log("took over");
    let second = old.take_over_with_toml();
    second.wait_for_log("took over");
    first.wait_for_log("no longer listening");
    let starts = |log: String| log.contains("stream starts");
    assert!(!starts(first.log()) && !starts(second.log()), "{}\n{}", first.log(), second.log());
    direct.ok("commit");
    assert!(old.wait().success() && first.wait().success());
    second.wait_for_log("stream starts");
    eventually("all records have arrived", || direct.value(&count) == "100");
    assert!(!starts(first.log()), "{}", first.log());
    second.signal(Signal::QUIT);
    direct.ok(&format!("drop table {table}"));
}

/// A gateway with a query log and a stream from a file into a table.
fn start_with_log_and_stream(folder: &Path, table: &str) -> IniGateway {
    let pg = server().address();
    let (host, pg_port, dir) = (pg.ip(), pg.port(), folder.display());
    IniGateway::with_toml(|port| {
        format!(
            "[listen]\naddresses = [\"127.0.0.1:{port}\"]\nunix_socket_dir = \"{dir}\"\n[auth]\nmethod = \"trust\"\n\
             [journal]\nfolder = \"{dir}/journal\"\n[admin]\nusers = [\"postgres\"]\n\
             [databases.shop]\nhost = \"{host}\"\nport = {pg_port}\ndbname = \"postgres\"\n\
             [[streams]]\nname = \"orders\"\nfrom = \"{dir}/in.ndjson\"\nto = \"gateway://postgres@shop\"\n\
             key = \"/k\"\nfollow = true\nsql = \"insert into {table} values ($1)\"\nparams = [\"/n\"]\n"
        )
    })
}

/// The old process keeps its query log until its last client leaves, and its stream ends before that of the new one starts.
#[test]
fn query_log_and_stream_go_on_in_the_new_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = format!("upgrade_{}", std::process::id());
    let mut direct = Startup::tcp(server().address(), "postgres", "postgres").connect();
    direct.ok(&format!("create table {table} (n int)"));
    let input = folder.path().join("in.ndjson");
    let write = |numbers: std::ops::Range<u32>| {
        let lines: String = numbers.map(|n| format!("{{\"k\":\"{}\",\"n\":{n}}}\n", n % 10)).collect();
        let mut file = std::fs::File::options().create(true).append(true).open(&input).expect("a file");
        file.write_all(lines.as_bytes()).expect("space on the disk");
    };
    write(0..200);
    let mut old = start_with_log_and_stream(folder.path(), &table);
    let mut moved = old.client("shop");
    let mut open = old.client("shop");
    moved.ok("select 'before'");
    open.ok("begin");
    let new = old.take_over_with_toml();
    new.wait_for_log("took over");
    write(200..400);
    old.wait_for_log("sessions moved to the new process");
    moved.ok("select 'after'");
    open.ok("select 'meanwhile'");
    open.ok("commit");
    assert!(old.wait().success());
    // A file is read from its beginning.
    let count = format!("select count(distinct n) from {table}");
    eventually("all records have arrived", || direct.value(&count) == "400");
    assert!(old.log().contains("stream ended") && new.log().contains("stream starts"), "{}", new.log());
    drop((moved, open));
    new.signal(Signal::TERM);
    let mut new = new;
    assert!(new.wait().success());
    direct.ok(&format!("drop table {table}"));
    let log = output(&["journal", "cat", &folder.path().join("journal").display().to_string()]);
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    for word in ["before", "after", "meanwhile"] {
        assert_eq!(log.matches(&format!("select '{word}'")).count(), 1, "{word}: {log}");
    }
}

/// A client of tokio-postgres that works until it is stopped. Returns the number of its queries.
async fn work(address: std::net::SocketAddr, number: i32, stop: &AtomicBool) -> Result<u32, tokio_postgres::Error> {
    let options = format!("host={} port={} user=postgres dbname=shop", address.ip(), address.port());
    let (client, connection) = tokio_postgres::connect(&options, tokio_postgres::NoTls).await?;
    let driver = tokio::spawn(connection);
    client.batch_execute(&format!("set application_name to 'driver {number}'")).await?;
    let sum = client.prepare("select $1::int4 + $2::int4, current_setting('application_name')").await?;
    let mut queries = 0;
    while !stop.load(Ordering::SeqCst) {
        let row = client.query_one(&sum, &[&number, &1000]).await?;
        assert_eq!(row.get::<_, i32>(0), number + 1000);
        assert_eq!(row.get::<_, String>(1), format!("driver {number}"));
        queries += 1;
    }
    // The cancel key is that of the first process.
    let canceller = client.cancel_token();
    let cancelled = {
        let mut query = std::pin::pin!(client.batch_execute("select pg_sleep(1000)"));
        loop {
            // The first request may come before the query.
            tokio::select! {
                ended = &mut query => break ended,
                sent = canceller.cancel_query(tokio_postgres::NoTls) => sent?,
            }
        }
    };
    let code = cancelled.expect_err("the query does not end by itself").code().cloned();
    assert_eq!(code, Some(tokio_postgres::error::SqlState::QUERY_CANCELED));
    drop(client);
    driver.await.expect("the connection is not aborted")?;
    Ok(queries)
}

/// OP-52: Prepared statements, settings and cancel keys of a real driver under load, through three upgrades, while the first
/// process has a client that cannot move.
#[test]
fn driver_notices_no_upgrade_under_load() {
    let mut old = start("auto", "");
    let (address, stop) = (old.address(), Arc::new(AtomicBool::new(false)));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    // Keeps the first process until the end of the test.
    let mut open = old.client("shop");
    open.ok("begin");
    let clients: Vec<_> = (0..12)
        .map(|number| {
            let stop = stop.clone();
            runtime.spawn(async move { work(address, number, &stop).await })
        })
        .collect();
    eventually("all clients work", || old.show("CLIENTS").len() > 13);
    let mut generations = vec![take_over(&old, "epoll")];
    for io in ["auto", "epoll"] {
        generations.push(take_over(&old, io));
        let newest = generations.last().expect("just started");
        eventually("all clients have moved", || newest.show("CLIENTS").len() > 12);
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        let queries = runtime.block_on(client).expect("no assertion fails").expect("no query fails");
        assert!(queries > 0);
    }
    open.ok("select 1");
    drop(open);
    assert!(old.wait().success());
    let newest = generations.pop();
    assert!(generations.iter_mut().all(|process| process.wait().success()), "each passes its clients on");
    drop(newest);
}
