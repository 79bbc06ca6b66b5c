//! Logins of clients and logins to servers: methods, SCRAM, and errors of the server.

use std::collections::BTreeMap;

use tidegate_testkit::{FaultyServer, Fixture, Frames, Gateway, eventually, gateway_for, on_each_postgres, reply};

/// A gateway with this authentication method; `users` holds the `[users.*]` sections.
fn with_passwords(fixture: &Fixture, method: &str, users: &str) -> Gateway {
    let section = fixture.database_section("postgres", "postgres");
    fixture.start(&format!("[auth]\nmethod = \"{method}\"\n{section}size = 2\n{users}"))
}

pub(crate) fn user_section(name: &str, password: &str) -> String {
    format!("[users.{name}]\npassword = \"{password}\"\n")
}

on_each_postgres! {
    fn login_after_a_rejected_login_is_not_delayed(fixture) {
        for (mode, min_size) in [("transaction", 0), ("session", 0), ("transaction", 1), ("session", 2)] {
            let late = fixture.name("late");
            let pool = format!("mode = \"{mode}\"\nsize = 2\nmin_size = {min_size}\n");
            let keys = format!("{pool}[timeouts]\nconnect_retry = \"60s\"\n");
            let gateway = fixture.gateway_to(&[("late", &late)], &keys);
            for _ in 0..3 {
                assert_eq!(gateway.startup("late").refused().code, "3D000");
            }
            fixture.server.sql(&format!("create database {late}"));
            gateway.client("late").ok("select 1");
            let role = fixture.name("role");
            for _ in 0..3 {
                assert_eq!(gateway.startup("late").user(&role).refused().code, "28000");
            }
            fixture.server.sql(&format!("create role {role} login"));
            assert_eq!(gateway.startup("late").user(&role).connect().value("select current_user"), role);
        }
    }

    /// The second client waits for the server of the first, and gets its own as soon as the server accepts the login.
    fn rejected_login_is_retried_while_servers_are_open(fixture) {
        let role = fixture.name("role");
        fixture.server.sql(&format!("create role {role} login"));
        let gateway = fixture.gateway("size = 2\n[timeouts]\nconnect_retry = \"60s\"\n");
        let mut holder = gateway.startup("postgres").user(&role).connect();
        holder.ok("begin; select 1");
        fixture.server.sql(&format!("alter role {role} nologin"));
        let mut waiting = gateway.startup("postgres").user(&role).connect();
        waiting.send(&Frames::new().query("select current_user"));
        let is_rejected = |row: &BTreeMap<String, String>| row["server_login_error_count"] != "0";
        eventually("the login is rejected", || gateway.show("STATS_LOGINS").iter().any(is_rejected));
        fixture.server.sql(&format!("alter role {role} login"));
        assert_eq!(waiting.until_ready().value(), role);
        holder.ok("commit");
    }

    /// EDGE-46.
    fn client_gets_the_login_error_of_the_server(fixture) {
        let role = fixture.name("nologin");
        fixture.server.sql(&format!("create role {role} nologin"));
        let gateway = fixture.gateway("size = 1\n");
        let direct = fixture.server.startup().user(&role).refused();
        let through = gateway.startup("postgres").user(&role);
        assert_eq!(through.first_error(), direct);
    }

    /// EDGE-46: Clients that may log in under any name cannot fill the memory with names.
    fn pools_of_users_without_a_server_login_are_removed(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        let stem = fixture.name("unknown");
        for number in 0..300 {
            let refused = gateway.startup("postgres").user(&format!("{stem}_{number}")).refused();
            assert_eq!(refused.code, "28000");
        }
        eventually("most of the pools are removed", || gateway.show("POOLS").len() < 100);
        client.ok("select 1");
    }

    /// EDGE-46.
    fn database_unknown_to_the_server_is_an_error(fixture) {
        let gateway = fixture.gateway_to(&[("ghost", "no_such_database")], "size = 1\n");
        let refused = gateway.startup("ghost").first_error();
        assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("3D000", "FATAL"));
        assert!(refused.message.contains("no_such_database"), "{refused:?}");
    }

    /// EDGE-46.
    fn database_unknown_to_the_gateway_is_an_error(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let refused = gateway.startup("unknown_here").refused();
        assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("3D000", "FATAL"));
    }

    /// EDGE-47.
    fn every_password_method_works(fixture) {
        let role = fixture.create_role("open sesame", "");
        for method in ["password", "md5", "scram-sha-256"] {
            let gateway = with_passwords(fixture, method, &user_section(&role, "open sesame"));
            let startup = gateway.startup("postgres").user(&role);
            let mut client = startup.clone().password("open sesame").connect();
            assert_eq!(client.value("select current_user"), role, "{method}");
            for wrong in ["open", "open sesame ", ""] {
                let refused = startup.clone().password(wrong).refused();
                assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("28P01", "FATAL"), "{method}");
            }
            let unknown = gateway.startup("postgres").user("no_such_user").password("open sesame").refused();
            assert_eq!(unknown.code, "28P01", "{method}");
        }
    }

    /// EDGE-47.
    fn malformed_scram_messages_of_a_client_are_rejected(fixture) {
        let gateway = with_passwords(fixture, "scram-sha-256", &user_section("postgres", "secret"));
        let mechanism = b"SCRAM-SHA-256\0";
        let initial = |length: i32, text: &str| [&mechanism[..], &length.to_be_bytes(), text.as_bytes()].concat();
        let malformed = [
            Vec::new(),
            b"SCRAM-SHA-256".to_vec(),
            b"PLAIN\0\0\0\0\x01x".to_vec(),
            initial(-2, "n,,n=,r=abc"),
            initial(i32::MAX, "n,,n=,r=abc"),
            initial(500, "n,,n=,r=abc"),
            initial(3, "n,,"),
            initial(8, "n,,n=,r="),
            initial(14, "p=nothing,,n=,r=abc"),
            initial(11, "y,,r=abc,n="),
            initial(4, "\u{1}\u{2}\u{3}\u{4}"),
        ];
        for message in malformed {
            let startup = gateway.startup("postgres");
            let mut client = startup.open();
            client.send_bytes(&startup.packet());
            client.expect("R");
            client.send(&Frames::new().message(b'p', &message));
            let reply = client.recv();
            assert_eq!(reply.tag, b'E', "{message:?}: {reply:?}");
            client.expect_eof();
        }
        gateway.startup("postgres").password("secret").connect().ok("select 1");
    }

    /// EDGE-49.
    fn reload_applies_a_changed_server_password(fixture) {
        let role = fixture.create_role("old", "scram_login");
        let section = fixture.database_section("postgres", "postgres");
        let login = format!("user = \"{role}\"\npassword = \"old\"\nsize = 1\n");
        let mut gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{section}{login}"));
        let mut client = gateway.client("postgres");
        let before = client.backend();
        fixture.server.sql(&format!("alter role {role} password 'new'"));
        gateway.set_config("databases.postgres.password", "new");
        gateway.console().ok("RELOAD");
        fixture.server.kill_backend(&before);
        let mut after = String::new();
        eventually("the new password is used", || {
            after = client.backend();
            after != before
        });
    }

    /// EDGE-50.
    fn scram_keys_of_the_client_log_in_to_the_server(fixture) {
        let role = fixture.create_role("only the client has it", "scram_login");
        let verifier = fixture.server.value(&format!("select rolpassword from pg_authid where rolname = '{role}'"));
        let gateway = with_passwords(fixture, "scram-sha-256", &user_section(&role, &verifier));
        let startup = gateway.startup("postgres").user(&role).password("only the client has it");
        let mut client = startup.connect();
        let before = client.backend();
        fixture.server.kill_backend(&before);
        assert_ne!(client.backend(), before);
        assert_eq!(startup.connect().value("select current_user"), role);
    }

    /// EDGE-50.
    fn forced_user_with_scram_on_both_sides(fixture) {
        let front = fixture.create_role("front", "");
        let back = fixture.create_role("back", "scram_login");
        let section = fixture.database_section("postgres", "postgres");
        let login = format!("user = \"{back}\"\npassword = \"back\"\nsize = 1\n");
        let users = user_section(&front, "front");
        let gateway = fixture.start(&format!("[auth]\nmethod = \"scram-sha-256\"\n{section}{login}{users}"));
        let mut client = gateway.startup("postgres").user(&front).password("front").connect();
        assert_eq!(client.value("select current_user"), back);
    }

    /// EDGE-50.
    fn every_method_logs_in_to_the_server(fixture) {
        for group in ["md5_login", "cleartext_login", "scram_login"] {
            let role = fixture.create_role("back", group);
            let section = fixture.database_section("postgres", "postgres");
            let login = format!("user = \"{role}\"\npassword = \"back\"\nsize = 1\n");
            let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{section}{login}"));
            assert_eq!(gateway.client("postgres").value("select current_user"), role);
        }
    }

    /// A table `[users.NAME]` without a password sets limits for that name, and does not make it a user that may log
    /// in.
    fn user_section_without_password_admits_no_login(fixture) {
        let section = fixture.database_section("postgres", "postgres");
        let users = "[users.limited]\nmax_clients = 5\n[users.declared]\n\
                     [users.empty]\npassword = \"\"\nmode = \"session\"\n[users.known]\npassword = \"x\"\n";
        for (accepts_unknown, admitted) in [(false, &["declared", "empty", "known"][..]), (true, &["limited", "unknown"])] {
            let auth = format!("[auth]\nmethod = \"trust\"\nstrangers = {accepts_unknown}\n");
            let gateway = fixture.start(&format!("{auth}{section}user = \"postgres\"\n{users}"));
            for user in admitted {
                gateway.startup("postgres").user(user).connect().ok("select 1");
            }
            if !accepts_unknown {
                for user in ["limited", "unknown"] {
                    assert_eq!(gateway.startup("postgres").user(user).refused().code, "28000", "{user}");
                }
            }
        }
    }
}

/// EDGE-46: Waiting clients get the error immediately, not at the checkout deadline.
#[test]
fn waiting_clients_get_the_login_error() {
    let server =
        FaultyServer::start(|connection| connection.send(&reply::fatal("53300", "sorry, too many clients already")));
    let gateway = gateway_for!(&server, "size = 1\n");
    let clients: Vec<_> = (0..5)
        .map(|_| {
            let startup = gateway.startup("postgres");
            std::thread::spawn(move || startup.first_error())
        })
        .collect();
    for client in clients {
        let refused = client.join().expect("every client is refused with an error");
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("53300", "sorry, too many clients already"));
    }
}

/// EDGE-47: A server error without an SQLSTATE crashed a pooler (CVE-2026-6666).
#[test]
fn login_error_without_sqlstate_is_forwarded() {
    let server =
        FaultyServer::start(|connection| connection.send(&reply::error(&[(b'S', "FATAL"), (b'M', "not today")])));
    let gateway = gateway_for!(&server, "size = 1\n[timeouts]\nconnect_retry = \"50ms\"\n");
    assert!(gateway.startup("postgres").first_error().message.contains("not today"));
    assert!(gateway.startup("postgres").first_error().message.contains("not today"));
}

/// EDGE-47.
#[test]
fn malformed_scram_messages_of_a_server_fail_login() {
    const MALFORMED: [&[u8]; 7] = [
        b"",
        b"r=",
        b"r=short,s=,i=0",
        b"r=other-nonce,s=c2FsdA==,i=4096",
        b"r=!,s=not base64 at all,i=4096",
        b"r=x,s=c2FsdA==,i=99999999999999999999",
        b"\xff\xfe\0\0",
    ];
    let server = FaultyServer::start(|connection| {
        let sasl = [&[0, 0, 0, 10][..], b"SCRAM-SHA-256\0\0"].concat();
        connection.send(&reply::message(b'R', &sasl))?;
        connection.read()?;
        let malformed = MALFORMED[connection.number() % MALFORMED.len()];
        connection.send(&reply::message(b'R', &[&[0, 0, 0, 11], malformed].concat()))?;
        connection.discard_input()
    });
    let login = "user = \"back\"\npassword = \"back\"\nsize = 1\n";
    let gateway = gateway_for!(&server, &format!("{login}[timeouts]\nconnect_retry = \"10ms\"\n"));
    for _ in MALFORMED {
        assert!(
            ["08P01", "28000", "28P01", "08006", "08001"]
                .contains(&gateway.startup("postgres").first_error().code.as_str())
        );
    }
    assert!(server.connections() > 0);
}
