//! Servers die, networks stop, operators send signals.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tidegate_testkit::{FaultyServer, Frames, Gateway, Lost, Process, Server, Signal, Startup, eventually, reply};

use crate::gateway_before;

on_each_postgres! {
    fn edge_65_a_server_killed_in_a_transaction_says_so_in_its_own_words(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let backend = client.backend();
        fixture.server.kill_backend(&backend);
        let fields = client.expect_fatal("57P01");
        assert_eq!(fields.message, "terminating connection due to administrator command");
        gateway.client("postgres").ok("select 1");
    }

    fn edge_65_a_server_killed_in_a_query(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        let backend = client.backend();
        client.send(&Frames::new().query("select pg_sleep(600)"));
        let mut observer = fixture.server.client();
        eventually("the query runs", || {
            observer.value(&format!("select count(*) from pg_stat_activity where pid = {backend} and state = 'active'")) == "1"
        });
        observer.ok(&format!("select pg_terminate_backend({backend})"));
        client.expect("T*");
        client.expect_fatal("57P01");
        gateway.client("postgres").ok("select 1");
    }

    fn edge_65_a_server_killed_while_idle_is_not_noticed(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut clients: Vec<_> = (0..3).map(|_| gateway.client("postgres")).collect();
        for round in 0..10 {
            let backend = clients[round % 3].backend();
            fixture.server.kill_backend(&backend);
            // The gateway may learn of it only when it lends the server out.
            for client in &mut clients {
                client.ok("select 1");
            }
        }
    }

    fn edge_65_a_prepared_statement_survives_its_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().parse("s", "select pg_backend_pid()").run("s").sync());
        let first = client.expect("1 2 D C:SELECT_1 Z:I")[2].texts().remove(0);
        fixture.server.kill_backend(&first);
        client.send(&Frames::new().run("s").sync());
        assert_ne!(client.expect("2 D C:SELECT_1 Z:I")[1].texts()[0], first);
    }

    fn edge_65_a_restarted_postgres_serves_the_same_clients(fixture) {
        let mut own = Server::start(fixture.server.major());
        let gateway = tidegate_testkit::Gateway::before(
            env!("CARGO_BIN_EXE_tidegate"),
            own.address(),
            "size = 2\n[timeouts]\nconnect_retry = \"50ms\"\n",
        );
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        own.postgres().restart().expect("the server restarts");
        // Nobody asked for anything while it was down, so nobody noticed.
        client.ok("select 1");
    }

    /// Who reads the log sees that the trouble is over.
    fn edge_65_the_log_tells_that_a_server_is_back(fixture) {
        let mut own = Server::start(fixture.server.major());
        let gateway = tidegate_testkit::Gateway::before(
            env!("CARGO_BIN_EXE_tidegate"),
            own.address(),
            "size = 2\n[log]\nlevel = \"info\"\n[timeouts]\nconnect_retry = \"50ms\"\n",
        );
        let asks = || gateway.startup("postgres").try_connect().and_then(|mut client| client.try_query("select 1"));
        let is_served = || asks().is_ok_and(|outcome| outcome.error.is_none());
        assert!(is_served());
        own.postgres().kill9().expect("the server ends");
        // The first one may still have been given a connection that was open, which then broke.
        eventually("it is missed", || !is_served() && gateway.log().contains("server connection failed"));
        assert!(!gateway.log().contains("work again"));
        own.postgres().restart().expect("the server starts");
        eventually("it serves again", is_served);
        eventually("the log says so", || gateway.log().matches("server connections work again").count() == 1);
    }

    fn edge_67_probes_that_say_nothing_make_no_noise(fixture) {
        let gateway = fixture.gateway("size = 1\n[log]\nlevel = \"info\"\n");
        let quiet = gateway.log();
        for bytes in [&b""[..], b"\0", b"\0\0\0\x08", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01"] {
            let mut probe = TcpStream::connect(gateway.address()).expect("the port is open");
            probe.write_all(bytes).expect("bytes are taken");
        }
        gateway.client("postgres").ok("select 1");
        let noise: Vec<_> = gateway.complaints();
        assert_eq!(noise, Vec::<String>::new());
        assert!(gateway.log().len() < quiet.len() + 2_000, "{}", gateway.log());
    }

    fn edge_67_an_http_request_is_closed_cleanly(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for request in [&b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"POST / HTTP/1.0\r\n\r\n"] {
            let mut client = gateway.startup("postgres").open();
            client.send_bytes(request);
            match client.try_recv() {
                Err(Lost::Closed | Lost::Garbage(_)) => {}
                Ok(message) if message.tag == b'E' => client.expect_eof(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn edge_68_sigterm_waits_for_clients_and_a_second_one_does_not(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.signal(Signal::TERM);
        eventually("no new clients are taken", || gateway.startup("postgres").try_connect().is_err());
        client.ok("select 1");
        client.ok("commit");
        client.ok("select 'a client may stay and go on'");
        assert!(gateway.is_running());
        gateway.signal(Signal::TERM);
        gateway.wait();
        assert!(client.try_query("select 1").is_err());
    }

    fn edge_68_sigterm_ends_when_the_last_client_leaves(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        gateway.signal(Signal::TERM);
        eventually("no new clients are taken", || gateway.startup("postgres").try_connect().is_err());
        client.ok("select 1");
        client.send(&Frames::new().terminate());
        assert!(gateway.wait().success());
    }

    fn edge_68_sigint_waits_for_transactions(fixture) {
        let mut gateway = fixture.gateway("size = 2\n");
        let mut idle = gateway.client("postgres");
        idle.ok("select 1");
        let mut busy = gateway.client("postgres");
        busy.ok("begin");
        gateway.signal(Signal::INT);
        match idle.try_recv() {
            Ok(message) if message.tag == b'E' => idle.expect_eof(),
            Err(Lost::Closed) => {}
            other => panic!("an idle client is told, and closed: {other:?}"),
        }
        assert_eq!(busy.ok("select 1").status, 'T');
        busy.ok("commit");
        assert!(gateway.wait().success());
    }

    fn edge_68_other_signals_while_stopping_do_no_harm(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.signal(Signal::TERM);
        gateway.signal(Signal::HUP);
        client.ok("select 1");
        client.ok("commit");
        client.send(&Frames::new().terminate());
        assert!(gateway.wait().success());
    }

    fn edge_68_shutdown_has_a_limit(fixture) {
        let mut gateway = fixture.gateway("size = 1\n[timeouts]\nshutdown = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.signal(Signal::TERM);
        gateway.wait();
        assert!(client.try_query("select 1").is_err());
    }

    /// Whatever happens during the stop, a reload or another command, does not let it begin anew.
    fn edge_68_reloads_do_not_prolong_a_shutdown(fixture) {
        let mut gateway = fixture.gateway("size = 1\n[timeouts]\nshutdown = \"1s\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.signal(Signal::TERM);
        eventually("it ends", || {
            if gateway.is_running() {
                gateway.signal(Signal::HUP);
            }
            !gateway.is_running()
        });
    }

    /// Its databases are held still, which has to be seen and can be ended.
    fn edge_68_a_pause_outlives_a_sigterm_until_it_is_resumed(fixture) {
        for by_signal in [false, true] {
            let mut gateway = fixture.gateway("size = 1\n[admin]\nusers = [\"postgres\"]\n");
            let mut console = gateway.console();
            let mut client = gateway.client("postgres");
            client.ok("select 1");
            console.ok("PAUSE");
            client.send(&Frames::new().query("select 'resumed'"));
            gateway.wait_for_pool("postgres", "cl_waiting", 1);
            gateway.signal(Signal::TERM);
            eventually("no new clients are taken", || gateway.startup("postgres").try_connect().is_err());
            let state = console.show("STATE");
            let of = |key: &str| state.iter().find(|row| row["key"] == key).map(|row| row["value"].clone());
            assert_eq!(of("paused").as_deref(), Some("yes"), "{state:?}");
            assert_eq!(of("stopping").as_deref(), Some("waits for clients"), "{state:?}");
            assert!(console.show("DATABASES").iter().any(|row| row["name"] == "postgres" && row["paused"] == "1"));
            if by_signal {
                gateway.signal(Signal::USR2);
            } else {
                console.ok("RESUME");
            }
            client.expect("T D:resumed C:SELECT_1 Z:I");
            client.send(&Frames::new().terminate());
            assert!(gateway.wait().success());
        }
    }

    fn edge_68_a_reload_of_a_bad_file_keeps_the_old_configuration(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.rewrite("pool.no_such_key", 1);
        gateway.signal(Signal::HUP);
        eventually("the reason is logged", || gateway.log().contains("no_such_key"));
        client.ok("commit");
        gateway.client("postgres").ok("select 1");
        assert!(gateway.is_running());
    }

    fn edge_69_the_second_host_serves_when_the_first_does_not(fixture) {
        for dead in ["no-such-host.invalid", "127.0.0.99", "/no/such/folder"] {
            let section = format!(
                "[databases.postgres]\nhost = \"{dead},127.0.0.1\"\nport = {}\ndbname = \"postgres\"\nsize = 1\n",
                fixture.server.port()
            );
            let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{section}"));
            assert_eq!(gateway.client("postgres").value("select 'second'"), "second", "{dead}");
        }
    }

    fn edge_69_unix_sockets_on_both_sides(fixture) {
        let folder = std::env::temp_dir().join(fixture.name(&format!("tidegate-unix-{}", std::process::id())));
        std::fs::create_dir_all(&folder).expect("a folder");
        let section = format!(
            "[databases.postgres]\nhost = \"{}\"\nport = {}\nsize = 1\n",
            fixture.server.socket_dir().display(),
            fixture.server.port()
        );
        let listen = format!("[listen]\nunix_socket_dir = \"{}\"\n", folder.display());
        let gateway = fixture.start(&format!("{listen}[auth]\nmethod = \"trust\"\n{section}"));
        let socket = folder.join(format!(".s.PGSQL.{}", gateway.address().port()));
        // It accepts after the port does, which is what a gateway is waited for.
        eventually("the socket accepts", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        let mut client = Startup::unix(&socket, "postgres", "postgres").connect();
        assert_eq!(client.value("select coalesce(inet_server_addr()::text, 'unix')"), "unix");
        gateway.client("postgres").ok("select 1");
        drop(gateway);
        drop(std::fs::remove_dir_all(&folder));
    }

    fn edge_70_a_replication_login_has_a_server_of_its_own(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut normal = gateway.client("postgres");
        let backend = normal.backend();
        let mut logical = gateway.startup("postgres").parameter("replication", "database").connect();
        logical.ok("IDENTIFY_SYSTEM");
        let own = logical.backend();
        assert_ne!(own, backend);
        assert_eq!(logical.backend(), own);
        assert_eq!(normal.backend(), backend);
        logical.send(&Frames::new().terminate());
        let mut observer = fixture.server.client();
        eventually("its server is closed, not shared", || {
            observer.value(&format!("select count(*) from pg_stat_activity where pid = {own}")) == "0"
        });
    }

    /// Until it has a server of its own it is heard as any client that waits.
    fn edge_70_a_replication_login_that_waits_for_room_can_leave_and_be_sent_away(fixture) {
        let gateway = fixture.gateway("size = 2\n[pool]\nmax_per_user = 1\n[timeouts]\ncheckout = \"60s\"\n");
        let mut busy = gateway.client("postgres");
        busy.ok("begin");
        let login = gateway.startup("postgres").parameter("replication", "database");
        let listed = || {
            let clients = gateway.show("CLIENTS");
            clients.into_iter().find(|row| row["replication"] == "logical").map(|row| row["id"].clone())
        };
        for is_sent_away in [false, true] {
            let mut waiting = login.open();
            waiting.send_bytes(&login.packet());
            eventually("it waits", || listed().is_some());
            if is_sent_away {
                gateway.console().ok(&format!("KILL_CLIENT {}", listed().expect("it waits")));
                waiting.expect_eof();
            } else {
                waiting.vanish(false);
            }
            eventually("it is gone", || listed().is_none());
        }
        busy.ok("commit");
    }

    /// A stream of changes has no transaction, and no end.
    fn edge_70_a_stop_that_waits_for_transactions_ends_a_replication(fixture) {
        let mut gateway = fixture.gateway("size = 2\n");
        let mut busy = gateway.client("postgres");
        busy.ok("begin");
        let mut replica = gateway.startup("postgres").parameter("replication", "database").connect();
        replica.ok("IDENTIFY_SYSTEM");
        gateway.signal(Signal::INT);
        replica.expect_eof();
        busy.ok("commit");
        gateway.wait();
    }

    fn edge_71_a_slow_reader_with_a_tiny_window_gets_everything(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut slow = gateway.startup("postgres").receive_buffer_bytes(2_048).connect();
        slow.send(&Frames::new().query("select repeat(n::text, 20000) from generate_series(1000, 1199) n"));
        // The server is stuck behind this client; others are served meanwhile.
        let mut other = gateway.client("postgres");
        assert_eq!(other.value("select 'meanwhile'"), "meanwhile");
        slow.expect("T");
        for number in 1000..1200 {
            let row = slow.recv();
            assert_eq!(row.values()[0].as_deref(), Some(number.to_string().repeat(20_000).as_bytes()));
        }
        slow.expect("C:SELECT_200 Z:I");
    }

    fn edge_71_a_slow_writer_gets_everything_through(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        let value = "abcdefghij".repeat(30_000);
        let frames = Frames::new().parse("", "select md5($1), length($1)").bind("", &[&value]).execute().sync();
        let mut step = fastrand::Rng::with_seed(71);
        let mut rest = frames.bytes();
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(step.usize(1..5_000).min(rest.len()));
            client.send_bytes(piece);
            rest = tail;
        }
        let outcome = client.until_ready();
        assert_eq!(outcome.rows[0][1], "300000");
    }

    fn edge_71_a_big_result_arrives_byte_for_byte(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let sums = client.ok("select repeat(md5(n::text), n % 300) from generate_series(1, 5000) n");
            assert_eq!(sums.rows.len(), 5_000);
            assert_eq!(sums.rows[298][0].len(), 32 * 299);
            let total: usize = sums.rows.iter().map(|row| row[0].len()).sum();
            let expected: usize = (1..=5_000).map(|n| 32 * (n % 300)).sum();
            assert_eq!(total, expected);
        });
    }

    fn edge_72_a_function_call(fixture) {
        // int4pl(3, 4), arguments and result in binary.
        let mut call = 177_u32.to_be_bytes().to_vec();
        call.extend([0, 1, 0, 1, 0, 2, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 4, 0, 1]);
        let unknown = [&1_u32.to_be_bytes()[..], &[0, 0, 0, 0, 0, 0]].concat();
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            for _ in 0..2 {
                client.send(&Frames::new().message(b'F', &call));
                let answer = client.expect("V Z:I");
                assert_eq!(answer[0].body, [0, 0, 0, 4, 0, 0, 0, 7]);
            }
            client.send(&Frames::new().message(b'F', &unknown));
            client.expect("E Z:I");
            client.ok("begin");
            client.send(&Frames::new().message(b'F', &call));
            client.expect("V Z:T");
            client.ok("rollback");
        });
    }

    fn edge_72_an_empty_query(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            for empty in ["", " ", ";", "-- nothing"] {
                client.send(&Frames::new().query(empty));
                client.expect("I Z:I");
                client.send(&Frames::new().parse("", empty).bind("", &[]).describe_portal("").execute().sync());
                client.expect("1 2 n I Z:I");
            }
        });
    }

    fn edge_72_a_portal_is_read_in_pieces_and_lives_until_sync(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let portal = Frames::new().parse("", "select generate_series(1, 5)").bind_portal("p", "", &[]);
            client.send(&portal.execute_portal("p", 2).flush());
            client.expect("1 2 D:1 D:2 s");
            client.send(&Frames::new().execute_portal("p", 2).flush());
            client.expect("D:3 D:4 s");
            client.send(&Frames::new().execute_portal("p", 2).execute_portal("p", 2).sync());
            client.expect("D:5 C:SELECT_1 C:SELECT_0 Z:I");
            client.send(&Frames::new().execute_portal("p", 2).sync());
            client.expect("E:34000 Z:I");
        });
    }

    fn edge_72_a_suspended_portal_in_a_transaction_outlives_sync(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.ok("begin");
            let portal = Frames::new().parse("", "select generate_series(1, 4)").bind_portal("p", "", &[]);
            client.send(&portal.execute_portal("p", 2).sync());
            client.expect("1 2 D:1 D:2 s Z:T");
            client.send(&Frames::new().execute_portal("p", 0).close_portal("p").sync());
            client.expect("D:3 D:4 C:SELECT_2 3 Z:T");
            client.ok("commit");
        });
    }
}

/// A stop refuses to connect for whoever waits still.
#[test]
fn edge_68_a_stop_while_clients_wait_for_a_server_that_may_be_tried_at_once() {
    let server = FaultyServer::start(tidegate_testkit::FaultyConnection::stay_silent);
    let mut gateway = gateway_before(&server, "size = 2\n[timeouts]\nconnect_retry = \"0s\"\n");
    let mut waiting: Vec<_> = (0..20).map(|_| gateway.startup("postgres").open()).collect();
    for client in &mut waiting {
        client.send_bytes(&gateway.startup("postgres").packet());
    }
    gateway.wait_for_pool("postgres", "cl_waiting", 20);
    gateway.signal(Signal::QUIT);
    assert!(gateway.wait().success(), "{}", gateway.log());
}

/// The next is tried at once; a client hears of it all the same.
#[test]
fn edge_69_nobody_listens_and_the_pause_between_connects_is_none() {
    let nobody = tidegate_testkit::free_address(20_000..30_000);
    let pool = "size = 2\n[timeouts]\nconnect_retry = \"0s\"\n";
    let gateway = Gateway::before(env!("CARGO_BIN_EXE_tidegate"), nobody, pool);
    for _ in 0..3 {
        assert_eq!(gateway.startup("postgres").refused().code, "08006");
    }
}

/// Of the address that a database had before, nobody is told anything any more.
#[test]
fn edge_69_a_reload_does_not_wait_for_an_old_place_that_does_not_answer() {
    let (old, new) = (FaultyServer::start(tidegate_testkit::FaultyConnection::stay_silent), FaultyServer::obliging());
    let mut gateway = gateway_before(&old, "size = 1\n[timeouts]\nconnect = \"600s\"\n");
    let mut client = gateway.startup("postgres").open();
    client.send_bytes(&gateway.startup("postgres").packet());
    eventually("it is being connected", || old.connections() == 1);
    gateway.rewrite("databases.postgres.port", i64::from(new.address().port()));
    gateway.console().ok("RELOAD");
    client.log_in(None).expect("the new place has answered");
    client.ok("select 1");
}

/// Deaths that Postgres does not announce.
#[test]
fn edge_65_a_server_that_dies_within_a_message_harms_one_client() {
    let answers: [Vec<u8>; 5] = [
        Vec::new(),
        reply::text_column("value")[..7].to_vec(),
        [reply::text_column("value"), reply::row("x")].concat(),
        b"D\0".to_vec(),
        [reply::text_column("value"), vec![b'D', 0, 0, 0, 50, 0, 1]].concat(),
    ];
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            match message.text().strip_prefix("die ").and_then(|number| number.parse::<usize>().ok()) {
                Some(number) => return connection.send(&answers[number]),
                None => connection.answer(&message)?,
            }
        }
    });
    let gateway = gateway_before(&server, "size = 1\n");
    for number in 0..5 {
        let mut client = gateway.client("postgres");
        let mut other = gateway.client("postgres");
        client.send(&Frames::new().query(&format!("die {number}")));
        let mut received = String::new();
        let lost = loop {
            match client.try_recv() {
                Ok(message) => received.push(char::from(message.tag)),
                Err(lost) => break lost,
            }
        };
        assert!(matches!(lost, Lost::Closed), "case {number}: {lost}");
        // Where the client has got a part of a message, nothing may follow: it would be read as a part of it. A header
        // that came in pieces was not passed on yet.
        assert_eq!(received, ["E", "", "TDE", "E", "T"][number], "case {number}");
        other.ok("select 1");
    }
}

#[test]
fn edge_65_a_server_that_talks_nonsense_harms_one_client() {
    let nonsense: [&[u8]; 4] =
        [b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0; 64], &[b'D', 0, 0, 0, 1], &[b'Z', 0xff, 0xff, 0xff, 0xff]];
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            match message.text().strip_prefix("talk ").and_then(|number| number.parse::<usize>().ok()) {
                Some(number) => {
                    connection.send(nonsense[number])?;
                    return connection.stay_silent();
                }
                None => connection.answer(&message)?,
            }
        }
    });
    let gateway = gateway_before(&server, "size = 1\n");
    for number in 0..4 {
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().query(&format!("talk {number}")));
        let lost = loop {
            if let Err(lost) = client.try_recv() {
                break lost;
            }
        };
        assert!(matches!(lost, Lost::Closed | Lost::Garbage(_)), "case {number}: {lost}");
        gateway.client("postgres").ok("select 1");
    }
}

/// A reply that comes drop by drop is the same reply.
#[test]
fn edge_71_a_server_that_sends_byte_by_byte() {
    let server = FaultyServer::start(|connection| {
        drip(connection, &reply::login(1))?;
        loop {
            let message = connection.read()?;
            if message.tag == b'Q' {
                drip(connection, &reply::one_value("drop by drop"))?;
            } else {
                connection.answer(&message)?;
            }
        }
    });
    let gateway = gateway_before(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    for _ in 0..2 {
        client.send(&Frames::new().query("select 1"));
        client.expect("T:value D:drop_by_drop C:SELECT_1 Z:I");
    }
}

/// What the server said last is half there when it goes to a client of another thread.
#[test]
fn edge_71_a_server_changes_threads_in_the_middle_of_a_notice() {
    let notice = reply::notice(&[(b'S', "NOTICE"), (b'V', "NOTICE"), (b'C', "00000"), (b'M', "heard by nobody")]);
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        let (begin, end) = notice.split_at(9);
        let mut owed = &b""[..];
        loop {
            let message = connection.read_until(b"QX")?;
            if message.tag == b'X' {
                return Ok(());
            }
            connection.send(&[owed, &reply::one_value(&message.text()), begin].concat())?;
            owed = end;
        }
    });
    let gateway = gateway_before(&server, "size = 1\n");
    let clients: Vec<_> = (0..8).map(|number| (number, gateway.client("postgres"))).collect();
    let ask = |(number, mut client): (u32, tidegate_testkit::RawClient)| {
        (0..40).for_each(|round| {
            let question = format!("{number}, {round}");
            assert_eq!(client.value(&question), question);
        });
    };
    let asking: Vec<_> = clients.into_iter().map(|client| thread::spawn(move || ask(client))).collect();
    asking.into_iter().for_each(|client| client.join().expect("a client that is answered"));
}

fn drip(connection: &mut tidegate_testkit::FaultyConnection, bytes: &[u8]) -> io::Result<()> {
    bytes.iter().try_for_each(|byte| {
        connection.send(&[*byte])?;
        // Lets the byte travel alone; correctness does not depend on it.
        thread::sleep(Duration::from_micros(50));
        Ok(())
    })
}

/// A back-end of an older version is met with the version it knows.
#[test]
fn edge_42_a_server_that_negotiates_down() {
    let server = FaultyServer::start(|connection| {
        connection.send(&reply::negotiate(0))?;
        connection.log_in()?;
        connection.oblige()
    });
    let gateway = gateway_before(&server, "size = 1\n");
    gateway.startup("postgres").protocol(3, 2).connect().ok("select 1");
    gateway.client("postgres").ok("select 1");
}

/// Whoever waits for it waits in vain, and a gateway that ends does not.
#[test]
fn edge_73_a_shutdown_does_not_wait_for_a_server_that_says_nothing() {
    let server = FaultyServer::start(|connection| connection.stay_silent());
    let mut gateway = gateway_before(&server, "size = 1\n");
    let startup = gateway.startup("postgres");
    // One has not said yet who it is.
    let (mut mute, mut client) = (startup.open(), startup.open());
    client.send_bytes(&startup.packet());
    eventually("the gateway logs in", || server.connections() == 1);
    gateway.signal(Signal::INT);
    for client in [&mut mute, &mut client] {
        assert_eq!(client.expect_fatal("57P03").message, "the gateway is shutting down");
    }
    gateway.wait();
    let log = gateway.log();
    let report = log.lines().find(|line| line.contains("tasks ended")).expect("the stop is reported");
    assert!(report.contains("aborted=0") && report.contains("stuck=0"), "{report}");
}

/// In pieces that the kernel has no room for at once, so that some of it waits when the server has closed already.
#[test]
fn edge_70_a_slow_client_gets_the_last_words_of_a_replication() {
    const PIECE: usize = 10_000;
    let server = FaultyServer::start(|connection| {
        connection.log_in()?;
        let pieces: usize = connection.read()?.text().parse().map_err(io::Error::other)?;
        (0..pieces).try_for_each(|_| connection.send(&reply::message(b'd', &[b'x'; PIECE])))
    });
    let gateway = gateway_before(&server, "size = 1\n");
    let slow = gateway.startup("postgres").parameter("replication", "database").receive_buffer_bytes(4_096);
    for pieces in (20..400).step_by(20) {
        let mut client = slow.connect();
        client.send(&Frames::new().query(&pieces.to_string()));
        let mut got = 0;
        while let Ok(message) = client.try_recv() {
            got += usize::from(message.body.len() == PIECE);
        }
        assert_eq!(got, pieces, "of so many pieces");
    }
}

/// As those of a subscriber that confirms what it has got as it leaves.
#[test]
fn edge_70_a_slow_server_gets_the_last_words_of_a_replication_client() {
    let left = Arc::new(AtomicUsize::new(0));
    let has_left = Arc::clone(&left);
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        let pieces: usize = connection.read()?.text().parse().map_err(io::Error::other)?;
        eventually("the client has left", || has_left.load(Ordering::SeqCst) == pieces);
        connection.read_until(b"X").map(drop)
    });
    let gateway = gateway_before(&server, "size = 1\n");
    let mut sent = 0;
    for pieces in (20..400).step_by(20) {
        let mut client = gateway.startup("postgres").parameter("replication", "database").connect();
        client.send(&Frames::new().query(&pieces.to_string()));
        let words = (0..pieces).fold(Frames::new(), |frames, _| frames.copy_data(&[b'x'; 10_000]));
        client.send(&words.terminate());
        client.vanish(false);
        left.store(pieces, Ordering::SeqCst);
        sent += pieces;
        eventually("all of it has come", || server.count(b'd') == sent);
    }
}

/// Over io_uring the kernel closes the sockets of a process that was killed when its supervisor knows already that it has ended.
#[test]
fn edge_68_a_start_waits_for_an_address_that_is_in_use_for_a_moment_yet() {
    let server = FaultyServer::obliging();
    let socket = tempfile::tempdir().expect("a folder");
    for unix in [false, true] {
        let address = tidegate_testkit::free_address(10_000..20_000);
        let file = socket.path().join(format!(".s.PGSQL.{}", address.port()));
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("tidegate.toml");
        let (host, port) = (server.address().ip(), server.address().port());
        let text = format!(
            "[listen]\naddresses = [\"{address}\"]\nunix_socket_dir = \"{}\"\n[auth]\nmethod = \"trust\"\n\
             [databases.postgres]\nhost = \"{host}\"\nport = {port}\n",
            socket.path().display()
        );
        std::fs::write(&config, text).expect("the folder can be written");
        let holder: Box<dyn std::any::Any> = match unix {
            true => Box::new(UnixListener::bind(&file).expect("nobody has it")),
            false => Box::new(TcpListener::bind(address).expect("nobody has it")),
        };
        let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
        command.args(["run", "-c"]).arg(&config);
        let gateway = Process::spawn(command, address, folder);
        eventually("it says so", || gateway.log().contains("in use"));
        drop(holder);
        eventually("it listens", || Startup::tcp(address, "postgres", "postgres").try_connect().is_ok());
    }
}
