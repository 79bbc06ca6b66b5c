//! Servers that die, restart, are unreachable, or break the protocol.

use tidegate_testkit::{
    ClientError, FaultyServer, Frames, Gateway, Server, Startup, eventually, gateway_for, on_each_postgres, reply,
};

on_each_postgres! {
    /// EDGE-65.
    fn client_gets_the_fatal_error_of_its_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let backend = client.backend();
        fixture.server.kill_backend(&backend);
        let fields = client.expect_fatal("57P01");
        assert_eq!(fields.message, "terminating connection due to administrator command");
        gateway.client("postgres").ok("select 1");
    }

    /// EDGE-65.
    fn server_killed_in_a_query(fixture) {
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

    /// EDGE-65.
    fn server_killed_while_idle_is_replaced(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut clients: Vec<_> = (0..3).map(|_| gateway.client("postgres")).collect();
        for round in 0..10 {
            let backend = clients[round % 3].backend();
            fixture.server.kill_backend(&backend);
            // The gateway may detect it only at the next checkout.
            for client in &mut clients {
                client.ok("select 1");
            }
        }
    }

    /// EDGE-65.
    fn prepared_statement_survives_its_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().parse("s", "select pg_backend_pid()").run("s").sync());
        let first = client.expect("1 2 D C:SELECT_1 Z:I")[2].texts().remove(0);
        fixture.server.kill_backend(&first);
        client.send(&Frames::new().run("s").sync());
        assert_ne!(client.expect("2 D C:SELECT_1 Z:I")[1].texts()[0], first);
    }

    /// EDGE-65.
    fn clients_survive_a_restart_of_postgres(fixture) {
        let mut server = Server::start(fixture.server.major());
        let gateway = gateway_for!(
            server,
            "size = 2\n[timeouts]\nconnect_retry = \"50ms\"\n",
        );
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        server.postgres().restart().expect("the server restarts");
        // No client sent a query during the restart, so that none gets an error.
        client.ok("select 1");
    }

    /// EDGE-65: The log has a line when connections succeed again.
    fn recovery_of_a_server_is_logged(fixture) {
        let mut server = Server::start(fixture.server.major());
        let gateway = gateway_for!(
            server,
            "size = 2\n[log]\nlevel = \"info\"\n[timeouts]\nconnect_retry = \"50ms\"\n",
        );
        let query = || gateway.startup("postgres").try_connect().and_then(|mut client| client.try_query("select 1"));
        let is_served = || query().is_ok_and(|outcome| outcome.error.is_none());
        assert!(is_served());
        server.postgres().kill9().expect("the server ends");
        // The first client may get a connection that is open and then breaks.
        eventually("the failure is logged", || !is_served() && gateway.log().contains("server connection failed"));
        assert!(!gateway.log().contains("work again"));
        server.postgres().restart().expect("the server starts");
        eventually("queries succeed again", is_served);
        eventually("the recovery is logged", || gateway.log().matches("server connections work again").count() == 1);
    }

    /// EDGE-69.
    fn second_host_is_used_when_the_first_fails(fixture) {
        for failed in ["no-such-host.invalid", "127.0.0.99", "/no/such/folder"] {
            let section = format!(
                "[databases.postgres]\nhost = \"{failed},127.0.0.1\"\nport = {}\ndbname = \"postgres\"\nsize = 1\n",
                fixture.server.port()
            );
            let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{section}"));
            assert_eq!(gateway.client("postgres").value("select 'second'"), "second", "{failed}");
        }
    }

    /// EDGE-69.
    fn unix_sockets_on_both_sides(fixture) {
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
        // The start waits for the TCP port, which accepts before the unix socket does.
        eventually("the socket accepts", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        let mut client = Startup::unix(&socket, "postgres", "postgres").connect();
        assert_eq!(client.value("select coalesce(inet_server_addr()::text, 'unix')"), "unix");
        gateway.client("postgres").ok("select 1");
        drop(gateway);
        drop(std::fs::remove_dir_all(&folder));
    }
}

/// EDGE-69: The pool connects again without a pause, and clients still get the error.
#[test]
fn connect_error_without_retry_delay_reaches_clients() {
    let unused = tidegate_testkit::free_address(20_000..30_000);
    let pool = "size = 2\n[timeouts]\nconnect_retry = \"0s\"\n";
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), unused, pool);
    for _ in 0..3 {
        assert_eq!(gateway.startup("postgres").refused().code, "08006");
    }
}

/// The hint of a checkout timeout names its cause: a server that cannot be reached is not a pool that is too small.
#[test]
fn checkout_timeout_names_the_connect_error() {
    let unused = tidegate_testkit::free_address(20_000..30_000);
    let pool = "size = 2\nwait_for_server = true\n[timeouts]\ncheckout = \"300ms\"\n";
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), unused, pool);
    let refusal = gateway.startup("postgres").refused();
    assert_eq!(refusal.code, "53300");
    assert!(refusal.hint.contains("Connection refused") && !refusal.hint.contains("pool.size"), "{refusal:?}");
}

/// EDGE-69: The login waits for the new address, not for the old one.
#[test]
fn reload_abandons_a_connect_to_the_old_address() {
    let (old, new) =
        (FaultyServer::start(tidegate_testkit::FaultyConnection::discard_input), FaultyServer::answering());
    let mut gateway = gateway_for!(&old, "size = 1\n[timeouts]\nconnect = \"600s\"\n");
    let mut client = gateway.startup("postgres").open();
    client.send_bytes(&gateway.startup("postgres").packet());
    eventually("the gateway connects to the old address", || old.connections() == 1);
    gateway.set_config("databases.postgres.port", i64::from(new.address().port()));
    gateway.console().ok("RELOAD");
    client.log_in(None).expect("the new server answers");
    client.ok("select 1");
}

/// EDGE-65: The server closes without an ErrorResponse.
#[test]
fn server_that_closes_in_a_message_fails_one_client() {
    let replies: [Vec<u8>; 5] = [
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
            match message.text().strip_prefix("close ").and_then(|number| number.parse::<usize>().ok()) {
                Some(number) => return connection.send(&replies[number]),
                None => connection.answer(&message)?,
            }
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    for number in 0..5 {
        let mut client = gateway.client("postgres");
        let mut other = gateway.client("postgres");
        client.send(&Frames::new().query(&format!("close {number}")));
        let mut received = String::new();
        let error = loop {
            match client.try_recv() {
                Ok(message) => received.push(char::from(message.tag)),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ClientError::Closed), "case {number}: {error}");
        // A partial message must be the last: the client would read any further byte as the rest of it. The gateway has
        // not forwarded a partial header.
        assert_eq!(received, ["E", "", "TDE", "E", "T"][number], "case {number}");
        other.ok("select 1");
    }
}

/// EDGE-65.
#[test]
fn server_that_sends_garbage_fails_one_client() {
    let garbage: [&[u8]; 4] =
        [b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0; 64], &[b'D', 0, 0, 0, 1], &[b'Z', 0xff, 0xff, 0xff, 0xff]];
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            match message.text().strip_prefix("send ").and_then(|number| number.parse::<usize>().ok()) {
                Some(number) => {
                    connection.send(garbage[number])?;
                    return connection.discard_input();
                }
                None => connection.answer(&message)?,
            }
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    for number in 0..4 {
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().query(&format!("send {number}")));
        let error = loop {
            if let Err(error) = client.try_recv() {
                break error;
            }
        };
        assert!(matches!(error, ClientError::Closed | ClientError::Garbage(_)), "case {number}: {error}");
        gateway.client("postgres").ok("select 1");
    }
}

/// EDGE-47.
#[test]
fn error_without_sqlstate_is_forwarded() {
    let server = FaultyServer::start(|connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            if message.text() == "fail" {
                connection.send(&reply::error(&[(b'M', "no code at all")]))?;
                connection.send(&reply::error(&[]))?;
                connection.send(&reply::ready(b'I'))?;
            } else {
                connection.answer(&message)?;
            }
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    client.send(&Frames::new().query("fail"));
    client.expect("E E Z:I");
    client.ok("select 1");
}

/// EDGE-61: Asynchronous messages of an idle server are accepted. Any other message means that it is out of sync.
#[test]
fn idle_server_may_send_only_asynchronous_messages() {
    let cases: [(Vec<u8>, bool); 6] = [
        (reply::parameter("in_hot_standby", "on"), true),
        (reply::notice(&[(b'S', "WARNING"), (b'C', "01000"), (b'M', "by the way")]), true),
        (reply::notification(1, "channel", ""), true),
        (reply::row("unsolicited"), false),
        (reply::ready(b'I'), false),
        (reply::fatal("57P01", "terminating connection due to administrator command"), false),
    ];
    for (unsolicited, kept) in cases {
        let sent = unsolicited.clone();
        let (sent_signal, is_sent) = std::sync::mpsc::channel();
        let server = FaultyServer::start(move |connection| {
            connection.log_in()?;
            let message = connection.read_until(b"Q")?;
            connection.answer(&message)?;
            if connection.number() == 0 {
                connection.send(&sent)?;
                sent_signal.send(()).map_err(std::io::Error::other)?;
            }
            connection.answer_all()
        });
        let gateway = gateway_for!(&server, "size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        // The gateway may detect it only at the next checkout.
        is_sent.recv().expect("the server sends the message");
        if kept {
            for _ in 0..3 {
                client.ok("select 2");
            }
            assert_eq!(server.connections(), 1, "{:?}", char::from(unsolicited[0]));
        } else {
            client.ok("select 2");
            assert_eq!(server.connections(), 2, "{:?}", char::from(unsolicited[0]));
        }
    }
}
