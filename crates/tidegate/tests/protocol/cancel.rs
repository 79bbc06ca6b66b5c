//! Cancel requests: each reaches the query of its own client and no other.

use std::io;
use std::sync::{Mutex, mpsc};

use tidegate_testkit::{
    Authority, CancelKey, FaultyServer, Fixture, Frames, RawClient, TlsMode, eventually, gateway_for, on_each_postgres,
    reply,
};

/// Sends a query that runs until it is cancelled, and waits until the server executes it.
#[track_caller]
fn sleep_forever(fixture: &Fixture, client: &mut RawClient, mark: &str) {
    client.send(&Frames::new().query(&format!("select pg_sleep(600) /* {mark} */")));
    let mut observer = fixture.server.client();
    eventually("the query runs", || {
        let running = format!(
            "select count(*) from pg_stat_activity where query like 'select pg_sleep%{mark} */' and state = 'active'"
        );
        observer.value(&running) == "1"
    });
}

on_each_postgres! {
    /// EDGE-31.
    fn late_cancel_does_not_reach_the_next_client(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut cancelled = gateway.client("postgres");
        let mut next = gateway.client("postgres");
        for round in 0..100 {
            cancelled.send(&Frames::new().query("select 1"));
            let key = cancelled.key.clone();
            let startup = cancelled.startup().clone();
            let canceller = std::thread::spawn(move || startup.cancel(&key));
            next.send(&Frames::new().query(&format!("select {round}, pg_sleep(0.001)")));
            let outcome = cancelled.until_ready();
            assert!(outcome.error.is_none() || outcome.code() == "57014", "{outcome:?}");
            next.expect(&format!("T D:{round}, C:SELECT_1 Z:I"));
            canceller.join().expect("the cancel request was accepted");
        }
    }

    /// EDGE-31.
    fn cancel_of_an_idle_client_has_no_effect(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut idle = gateway.client("postgres");
        let mut busy = gateway.client("postgres");
        idle.ok("select 1");
        for _ in 0..10 {
            busy.send(&Frames::new().query("select pg_sleep(0.02)"));
            idle.cancel();
            busy.expect("T D C:SELECT_1 Z:I");
        }
        idle.ok("select 2");
    }

    /// EDGE-31.
    fn connection_is_usable_after_a_cancelled_query(fixture) {
        let mark = fixture.name("usable");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        for _ in 0..3 {
            sleep_forever(fixture, &mut client, &mark);
            client.cancel();
            client.expect("T* E:57014 Z:I");
            assert_eq!(client.value("select 'alive'"), "alive");
        }
    }

    /// EDGE-32.
    fn cancel_works_when_every_server_is_busy(fixture) {
        let mark = fixture.name("busy");
        let gateway = fixture.gateway("size = 2\n");
        let mut clients: Vec<_> = (0..2).map(|_| gateway.client("postgres")).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            sleep_forever(fixture, client, &format!("{mark} {number}"));
        }
        for client in &mut clients {
            client.cancel();
            client.expect("T* E:57014 Z:I");
        }
    }

    /// EDGE-33.
    fn cancel_removes_a_waiting_client_from_the_queue(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        owner.ok("begin");
        waiting.send(&Frames::new().query(&format!("insert into {table} values (1)")));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        waiting.cancel();
        waiting.expect("E:57014 Z:I");
        gateway.wait_for_pool("postgres", "cl_waiting", 0);
        owner.ok("commit");
        assert_eq!(waiting.value(&format!("select count(*) from {table}")), "0");
    }

    /// EDGE-33.
    fn cancel_of_a_waiting_pipeline_discards_up_to_sync(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        owner.ok("begin");
        waiting.send(&Frames::new().parse("s", "select 1").run("s").sync());
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        waiting.cancel();
        waiting.expect("E:57014 Z:I");
        owner.ok("commit");
        waiting.send(&Frames::new().run("s").sync());
        waiting.expect("E:26000 Z:I");
        waiting.send(&Frames::new().parse("s", "select 2").run("s").sync());
        waiting.expect("1 2 D:2 C:SELECT_1 Z:I");
    }

    /// EDGE-34.
    fn wrong_cancel_key_is_ignored(fixture) {
        let mark = fixture.name("secret");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        sleep_forever(fixture, &mut client, &mark);
        let mut wrong = client.key.clone();
        wrong.secret[0] ^= 1;
        let unknown = CancelKey { process: client.key.process ^ 0x55, secret: client.key.secret.clone() };
        let short = CancelKey { process: client.key.process, secret: Vec::new() };
        let long = CancelKey { process: client.key.process, secret: vec![0; 300] };
        for key in [wrong, unknown, short, long] {
            client.startup().cancel(&key);
        }
        assert!(!client.has_input());
        client.cancel();
        client.expect("T* E:57014 Z:I");
    }

    /// EDGE-35.
    fn cancel_key_works_in_protocol_3_0_and_3_2(fixture) {
        let mark = fixture.name("versions");
        let gateway = fixture.gateway("size = 1\n");
        for minor in [0, 2] {
            let mut client = gateway.startup("postgres").protocol(3, minor).connect();
            let length = client.key.secret.len();
            assert!(if minor == 0 { length == 4 } else { (4..=256).contains(&length) }, "{length} bytes in 3.{minor}");
            sleep_forever(fixture, &mut client, &format!("{mark} {minor}"));
            client.cancel();
            client.expect("T* E:57014 Z:I");
        }
    }

    /// EDGE-37.
    fn cancel_over_tls(fixture) {
        let mark = fixture.name("tls");
        let authority = Authority::new();
        let gateway = fixture.gateway_with_tls(&authority, "size = 2\n");
        let modes = [TlsMode::Request(authority.ca()), TlsMode::Direct { ca: authority.ca(), alpn: true }, TlsMode::Off];
        for (number, mode) in modes.into_iter().enumerate() {
            let mut client = gateway.client("postgres");
            sleep_forever(fixture, &mut client, &format!("{mark} {number}"));
            client.startup().clone().tls(mode).cancel(&client.key);
            client.expect("T* E:57014 Z:I");
        }
    }

    fn session_mode_reports_the_backend_process_id(fixture) {
        let mark = fixture.name("announced");
        let gateway = fixture.gateway("mode = \"session\"\nsize = 2\n");
        let mut clients: Vec<_> = (0..2).map(|_| gateway.client("postgres")).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.backend(), client.key.process.to_string());
            let channel = format!("{mark}_{number}");
            client.send(&Frames::new().query(&format!("listen {channel}; notify {channel}")));
            let received = client.expect(&format!("C:LISTEN C:NOTIFY A:{channel} Z:I"));
            assert_eq!(received[2].notification().0, client.key.process);
            sleep_forever(fixture, client, &mark);
            let wrong = CancelKey { process: client.key.process, secret: vec![1, 2, 3, 4] };
            client.startup().cancel(&wrong);
            assert!(!client.has_input());
            client.cancel();
            client.expect("T* E:57014 Z:I");
        }
        // All servers are in use, so that the login waits and gets a process id of the gateway.
        let mut waiting = gateway.client("postgres");
        assert!(waiting.key.process > 4_194_304, "{}", waiting.key.process);
        fixture.server.sql(&format!("select pg_terminate_backend({})", clients[0].key.process));
        clients.remove(0).expect_fatal("57P01");
        assert_eq!(waiting.value("select 'served'"), "served");
        sleep_forever(fixture, &mut waiting, &mark);
        waiting.cancel();
        waiting.expect("T* E:57014 Z:I");
    }

    fn session_killed_before_first_query_gets_the_error(fixture) {
        let script = |mut client: RawClient| {
            fixture.server.kill_backend(&client.key.process.to_string());
            // The write may already fail.
            let _ = client.try_send(Frames::new().query("select 1").bytes());
            client.expect_fatal("57P01");
        };
        script(fixture.server.client());
        let gateway = fixture.gateway("mode = \"session\"\nsize = 1\n");
        for _ in 0..3 {
            script(gateway.client("postgres"));
        }
    }

    fn killed_session_ends_without_a_request(fixture) {
        let script = |mut client: RawClient| {
            fixture.server.kill_backend(&client.key.process.to_string());
            client.expect_fatal("57P01");
        };
        script(fixture.server.client());
        let gateway = fixture.gateway("mode = \"session\"\nsize = 1\n");
        for _ in 0..3 {
            script(gateway.client("postgres"));
            let mut used = gateway.client("postgres");
            assert_eq!(used.value("select 'used'"), "used");
            script(used);
        }
    }

    fn reconnect_gives_a_session_another_server(fixture) {
        let gateway = fixture.gateway("mode = \"session\"\nsize = 1\n");
        let mut client = gateway.client("postgres");
        gateway.console().ok("RECONNECT postgres");
        assert_ne!(client.backend(), client.key.process.to_string());
    }

    fn session_without_queries_returns_its_server(fixture) {
        let gateway = fixture.gateway("mode = \"session\"\nsize = 1\n");
        let mut client = gateway.client("postgres");
        let announced = client.key.process;
        client.send(&Frames::new().terminate());
        client.expect_eof();
        assert_eq!(gateway.client("postgres").backend(), announced.to_string());
    }

    fn other_modes_report_no_real_process_id(fixture) {
        for mode in ["transaction", "statement"] {
            let gateway = fixture.gateway(&format!("mode = \"{mode}\"\nsize = 2\n"));
            for _ in 0..3 {
                let client = gateway.client("postgres");
                assert!(client.key.process > 4_194_304 && i32::try_from(client.key.process).is_ok());
            }
            assert!(gateway.console().key.process > 4_194_304);
        }
    }

    /// EDGE-38: The gateway runs the reset. A late cancel must not interrupt it.
    fn cancel_does_not_interrupt_the_server_reset(fixture) {
        let reset = "server_reset = \"select pg_sleep(0.2)\"\n";
        let gateway = fixture.gateway(&format!("mode = \"session\"\nsize = 1\n{reset}"));
        let mut leaving = gateway.client("postgres");
        let backend = leaving.backend();
        let (startup, key) = (leaving.startup().clone(), leaving.key.clone());
        leaving.send(&Frames::new().terminate());
        leaving.expect_eof();
        for _ in 0..5 {
            startup.cancel(&key);
        }
        let mut next = gateway.client("postgres");
        assert_eq!(next.backend(), backend, "the reset was interrupted and the server closed");
    }
}

/// EDGE-35: Keys of protocol 3.2 have 4 to 256 bytes. The server must get back its own key.
#[test]
fn server_key_of_any_length_is_sent_back() {
    for length in [4_u8, 5, 32, 255] {
        let secret: Vec<u8> = (0..length).collect();
        let expected = CancelKey { process: 77, secret: secret.clone() };
        let (running, is_running) = mpsc::channel();
        let server = FaultyServer::start(move |connection| {
            connection.send(&reply::message(b'R', &[0, 0, 0, 0]))?;
            connection.send(&reply::key(77, &secret))?;
            connection.send(&reply::ready(b'I'))?;
            loop {
                let message = connection.read()?;
                if message.text().contains("until cancelled") {
                    running.send(()).map_err(io::Error::other)?;
                    return connection.discard_input();
                }
                connection.answer(&message)?;
            }
        });
        let gateway = gateway_for!(&server, "size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().query("until cancelled"));
        is_running.recv().expect("the query reaches the server");
        client.cancel();
        eventually("the cancel reaches the server", || server.cancels() == [expected.clone()]);
    }
}

/// EDGE-38: The gateway sets the parameters of a client on its server. A cancel meanwhile concerns the client, not
/// the server.
#[test]
fn cancel_during_parameter_sync_keeps_pool_working() {
    let server = FaultyServer::start(|connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            connection.answer(&message)?;
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    for round in 0..20 {
        let name = format!("app{round}");
        let mut client = gateway.startup("postgres").parameter("application_name", &name).connect();
        client.send(&Frames::new().query("select 1"));
        client.cancel();
        client.until_ready();
    }
    let mut next = gateway.client("postgres");
    next.ok("select 2");
}

/// EDGE-38: The query of the client is cancelled, and the client stays connected.
#[test]
fn cancel_during_parameter_sync_cancels_the_query() {
    let (setting, is_setting) = mpsc::channel();
    let (resume, resumed) = mpsc::channel();
    let resumed = Mutex::new(resumed);
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            if message.text().contains("TO '1MB'") && connection.number() == 0 {
                setting.send(()).map_err(io::Error::other)?;
                resumed.lock().map_err(|_| io::ErrorKind::Other)?.recv().map_err(io::Error::other)?;
                let text = "canceling statement due to user request";
                connection.send(&reply::error(&[(b'S', "ERROR"), (b'V', "ERROR"), (b'C', "57014"), (b'M', text)]))?;
                connection.send(&reply::ready(b'E'))?;
                return connection.answer_all();
            }
            connection.answer(&message)?;
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
    client.ok("set work_mem = '1MB'");
    other.ok("select 1");
    client.send(&Frames::new().once("insert 1").sync().query("select 'behind it'"));
    is_setting.recv().expect("the settings reach the server");
    client.cancel();
    resume.send(()).expect("the server waits to resume");
    client.expect("E:57014 Z:I C:SELECT_0 Z:I");
    client.ok("select 2");
    assert!(!server.messages().iter().any(|(_, message)| message.text().contains("insert")));
}

/// EDGE-39: Until the deadline, no other client gets the server, because the cancel could reach that client. After
/// it, the server is closed, because the request may still arrive.
#[test]
fn unanswered_cancel_request_times_out() {
    let (running, is_running) = mpsc::channel();
    let (resume, resumed) = mpsc::channel();
    let resumed = Mutex::new(resumed);
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            if message.text().contains("until cancelled") {
                running.send(()).map_err(io::Error::other)?;
                let resumed = resumed.lock().map_err(|_| io::ErrorKind::Other)?;
                resumed.recv().map_err(io::Error::other)?;
            }
            connection.answer(&message)?;
        }
    });
    server.ignore_cancels();
    let gateway = gateway_for!(&server, "size = 1\n[timeouts]\ncancel = \"200ms\"\n");
    let mut client = gateway.client("postgres");
    client.send(&Frames::new().query("until cancelled"));
    is_running.recv().expect("the query reaches the server");
    client.cancel();
    eventually("the cancel reaches the server", || server.cancels().len() == 1);
    resume.send(()).expect("the server waits to resume");
    client.until_ready();
    let mut other = gateway.client("postgres");
    other.ok("select 1");
    assert_eq!(server.connections(), 2, "the other client has another server");
}
