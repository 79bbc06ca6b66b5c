//! From the first byte to the first ReadyForQuery: versions, TLS, parameters, passwords.

use std::collections::BTreeMap;

use tidegate_testkit::{Authority, FaultyServer, Fixture, Frames, Gateway, Lost, Startup, TlsMode, eventually, reply};

use crate::gateway_before;

const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
const GSS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];

/// A gateway that offers TLS with a certificate for localhost.
pub(crate) fn with_tls(fixture: &Fixture, authority: &Authority, pool: &str) -> Gateway {
    let identity = authority.issue(&["localhost"]);
    let section = fixture.database_section("postgres", "postgres");
    let (cert, key) = (identity.cert.display(), identity.key.display());
    let listen = format!("[listen]\ntls = \"allow\"\ntls_cert = \"{cert}\"\ntls_key = \"{key}\"\n");
    fixture.start(&format!("{listen}[auth]\nmethod = \"trust\"\n{section}{pool}"))
}

/// A gateway that asks for passwords by this method; `users` holds the `[users.*]` sections.
fn with_passwords(fixture: &Fixture, method: &str, users: &str) -> Gateway {
    let section = fixture.database_section("postgres", "postgres");
    fixture.start(&format!("[auth]\nmethod = \"{method}\"\n{section}size = 2\n{users}"))
}

pub(crate) fn user_section(name: &str, password: &str) -> String {
    format!("[users.{name}]\npassword = \"{password}\"\n")
}

on_each_postgres! {
    fn edge_40_tls_and_gss_are_declined_in_either_order(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for requests in [[SSL_REQUEST, GSS_REQUEST], [GSS_REQUEST, SSL_REQUEST]] {
            let startup = gateway.startup("postgres");
            let mut client = startup.open();
            for request in requests {
                client.send_bytes(&request);
                assert_eq!(client.recv_byte(), b'N');
            }
            client.send_bytes(&startup.packet());
            client.log_in(None).expect("the login goes on in plain text");
            client.ok("select 1");
        }
    }

    fn edge_40_tls_is_accepted_after_gss_was_declined(fixture) {
        let authority = Authority::new();
        let gateway = with_tls(fixture, &authority, "size = 1\n");
        let mut client = gateway.startup("postgres").open();
        client.send_bytes(&GSS_REQUEST);
        assert_eq!(client.recv_byte(), b'N');
        client.send_bytes(&SSL_REQUEST);
        assert_eq!(client.recv_byte(), b'S');
        let mut encrypted = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        encrypted.ok("select 1");
    }

    /// Whoever sits between could have put them there before the handshake (CVE-2021-3935).
    fn edge_40_plain_bytes_behind_the_ssl_request_are_refused(fixture) {
        let authority = Authority::new();
        for gateway in [with_tls(fixture, &authority, "size = 1\n"), fixture.gateway("size = 1\n")] {
            let startup = gateway.startup("postgres");
            let mut client = startup.open();
            client.send_bytes(&[&SSL_REQUEST[..], &startup.packet(), Frames::new().query("select 1").bytes()].concat());
            // The answer to the request may come first; nothing of the plain login may be answered.
            let mut first = client.recv_byte();
            if b"SN".contains(&first) {
                first = client.recv_byte();
            }
            assert_eq!(char::from(first), 'E');
            client.unread_byte(first);
            client.expect_fatal("08P01");
        }
    }

    fn edge_41_direct_tls_with_alpn(fixture) {
        let authority = Authority::new();
        let gateway = with_tls(fixture, &authority, "size = 1\n");
        let direct = |alpn| gateway.startup("postgres").tls(TlsMode::Direct { ca: authority.ca(), alpn });
        assert_eq!(direct(true).connect().value("select 'direct'"), "direct");
        assert!(direct(false).try_connect().is_err(), "direct TLS needs ALPN, or it could be another protocol");
    }

    fn edge_42_protocol_3_2_is_spoken_and_a_later_minor_negotiated(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut two = gateway.startup("postgres").protocol(3, 2).connect();
        assert_eq!(two.negotiated, None);
        two.ok("select 1");
        let mut later = gateway.startup("postgres").protocol(3, 9).connect();
        assert_eq!(later.negotiated, Some((196_610, Vec::new())));
        later.ok("select 1");
    }

    fn edge_42_unknown_protocol_options_are_listed_and_ignored(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let unknown = gateway.startup("postgres").parameter("_pq_.fast_lane", "1").parameter("_pq_.second", "x");
        for minor in [0, 2] {
            let mut client = unknown.clone().protocol(3, minor).connect();
            let (_, options) = client.negotiated.clone().expect("NegotiateProtocolVersion");
            assert_eq!(options, ["_pq_.fast_lane", "_pq_.second"]);
            client.ok("select 1");
        }
    }

    fn edge_42_another_major_version_is_refused(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for startup in [fixture.server.startup(), gateway.startup("postgres")] {
            assert_eq!(startup.clone().protocol(4, 0).refused().code, "0A000");
            // Answered in the form of that time.
            assert!(startup.protocol(2, 0).try_connect().is_err());
        }
    }

    fn edge_43_a_parameter_goes_before_what_the_options_say(fixture) {
        fixture.at_both_doors(|door| {
            let (options, own) = (("options", "-c work_mem=70kB -c DateStyle=German"), ("work_mem", "80kB"));
            for (first, second) in [(options, own), (own, options)] {
                let startup = door.startup().parameter(first.0, first.1).parameter(second.0, second.1);
                let mut client = startup.connect();
                assert_eq!(client.value("show work_mem"), "80kB");
                assert_eq!(client.value("show datestyle"), "German, DMY");
            }
            // Of options that come twice the last ones count.
            let twice = door.startup().parameter("options", "-c work_mem=70kB").parameter("options", "-c DateStyle=German");
            assert_eq!(twice.connect().value("show work_mem"), door.client().value("show work_mem"));
        });
    }

    fn edge_43_options_are_parsed_with_their_escapes(fixture) {
        let options = r"-c datestyle=German -capplication_name=two\ words --intervalstyle=iso_8601";
        fixture.at_both_doors(|door| {
            let mut client = door.startup().parameter("options", options).connect();
            assert_eq!(client.value("show datestyle"), "German, DMY");
            assert_eq!(client.value("show application_name"), "two words");
            assert_eq!(client.value("show intervalstyle"), "iso_8601");
        });
    }

    fn edge_43_an_unknown_parameter_is_refused_and_a_known_one_works(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.startup().parameter("extra_float_digits", "0").connect();
            assert_eq!(client.value("show extra_float_digits"), "0");
            let refused = refusal(&door.startup().parameter("no_such_setting", "1"));
            assert!(refused.message.contains("no_such_setting"), "{refused:?}");
        });
    }

    fn edge_44_a_startup_packet_of_8_kb_in_fragments(fixture) {
        fixture.at_both_doors(|door| {
            let startup = door.startup().parameter("options", &" ".repeat(8_000));
            let mut client = startup.open();
            for piece in startup.packet().chunks(999) {
                client.send_bytes(piece);
            }
            client.log_in(None).expect("a long packet is no error");
            let startup = door.startup();
            let mut client = startup.open();
            for byte in startup.packet() {
                client.send_bytes(&[byte]);
            }
            client.log_in(None).expect("a slow packet is no error");
            client.ok("select 1");
        });
    }

    fn edge_44_a_startup_packet_of_impossible_length_is_refused(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for length in [0_i32, 3, 4, 7, -1, i32::MIN, 100_000, i32::MAX] {
            let mut client = gateway.startup("postgres").open();
            client.send_bytes(&[&length.to_be_bytes()[..], &[0, 3, 0, 0]].concat());
            // An error may be said first.
            match client.try_recv() {
                Err(Lost::Closed) => {}
                Ok(message) if message.tag == b'E' => client.expect_eof(),
                other => panic!("length {length}: {other:?}"),
            }
        }
        gateway.client("postgres").ok("select 1");
    }

    /// node-postgres sends Terminate in place of the packet where `end()` follows `connect()`.
    fn a_first_packet_of_impossible_length_is_met_with_silence(fixture) {
        fixture.at_both_doors(|door| {
            let packet = |length: i32| [&length.to_be_bytes()[..], &[0, 3, 0, 0]].concat();
            let lengths = [0, 3, 4, 7, -1, i32::MIN, 100_000, i32::MAX].map(packet);
            for bytes in lengths.into_iter().chain([b"X\0\0\0\x04".to_vec(), b"HELO there\r\n".to_vec()]) {
                let mut client = door.startup().open();
                client.send_bytes(&bytes);
                client.expect_eof();
            }
            door.client().ok("select 1");
        });
    }

    fn a_refused_login_is_tried_again_at_once(fixture) {
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

    /// A client waits for the servers of other clients, and gets a new one as soon as the server accepts the login again.
    fn a_refused_login_beside_open_servers_is_retried(fixture) {
        let role = fixture.name("role");
        fixture.server.sql(&format!("create role {role} login"));
        let gateway = fixture.gateway("size = 2\n[timeouts]\nconnect_retry = \"60s\"\n");
        let mut holder = gateway.startup("postgres").user(&role).connect();
        holder.ok("begin; select 1");
        fixture.server.sql(&format!("alter role {role} nologin"));
        let mut waiting = gateway.startup("postgres").user(&role).connect();
        waiting.send(&Frames::new().query("select current_user"));
        let is_refused = |row: &BTreeMap<String, String>| row["total_server_login_error_count"] != "0";
        eventually("the login is refused", || gateway.show("STATS").iter().any(is_refused));
        fixture.server.sql(&format!("alter role {role} login"));
        assert_eq!(waiting.until_ready().value(), role);
        holder.ok("commit");
    }

    fn edge_44_a_startup_packet_without_an_end_or_a_user_is_refused(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let broken: [&[u8]; 4] = [b"", b"user", b"user\0postgres\0database", b"database\0postgres\0\0"];
        for parameters in broken {
            let mut client = gateway.startup("postgres").open();
            let length = u32::try_from(8 + parameters.len()).expect("short");
            client.send_bytes(&[&length.to_be_bytes()[..], &[0, 3, 0, 0], parameters].concat());
            let refusal = client.recv();
            assert_eq!(refusal.tag, b'E', "{parameters:?}: {refusal:?}");
            client.expect_eof();
        }
    }

    fn edge_45_an_empty_application_name_is_a_value(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let named = gateway.startup("postgres").parameter("application_name", "named");
        let mut named = named.connect();
        let mut empty = gateway.startup("postgres").parameter("application_name", "").connect();
        for _ in 0..2 {
            assert_eq!(named.value("show application_name"), "named");
            assert_eq!(empty.value("show application_name"), "");
        }
    }

    fn edge_45_values_spelled_otherwise_are_the_same(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let startup = gateway.startup("postgres").parameter("client_encoding", "utf-8").parameter("datestyle", "iso");
        let mut client = startup.parameter("TIMEZONE", "utc").connect();
        for _ in 0..3 {
            assert_eq!(client.value("show client_encoding"), "UTF8");
            assert_eq!(client.value("show datestyle"), "ISO, MDY");
            assert_eq!(client.value("show timezone").to_lowercase(), "utc");
        }
    }

    fn edge_46_a_login_refused_by_the_server_is_told_in_its_words(fixture) {
        let role = fixture.name("nologin");
        fixture.server.sql(&format!("create role {role} nologin"));
        let gateway = fixture.gateway("size = 1\n");
        let direct = fixture.server.startup().user(&role).refused();
        let through = gateway.startup("postgres").user(&role);
        assert_eq!(refusal(&through), direct);
    }

    /// Whoever can log in by any name cannot fill the memory with names.
    fn edge_46_users_whom_no_server_lets_in_are_forgotten(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        let stem = fixture.name("nobody");
        for number in 0..300 {
            let refused = gateway.startup("postgres").user(&format!("{stem}_{number}")).refused();
            assert_eq!(refused.code, "28000");
        }
        eventually("most of them are forgotten", || gateway.show("POOLS").len() < 100);
        client.ok("select 1");
    }

    fn edge_46_a_database_that_the_server_does_not_know(fixture) {
        let gateway = fixture.gateway_to(&[("ghost", "no_such_database")], "size = 1\n");
        let refused = refusal(&gateway.startup("ghost"));
        assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("3D000", "FATAL"));
        assert!(refused.message.contains("no_such_database"), "{refused:?}");
    }

    fn edge_46_a_database_that_the_gateway_does_not_know(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let refused = gateway.startup("unknown_here").refused();
        assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("3D000", "FATAL"));
    }

    fn edge_47_passwords_by_every_method(fixture) {
        let role = fixture.own_role("open sesame", "");
        for method in ["password", "md5", "scram-sha-256"] {
            let gateway = with_passwords(fixture, method, &user_section(&role, "open sesame"));
            let startup = gateway.startup("postgres").user(&role);
            let mut client = startup.clone().password("open sesame").connect();
            assert_eq!(client.value("select current_user"), role, "{method}");
            for wrong in ["open", "open sesame ", ""] {
                let refused = startup.clone().password(wrong).refused();
                assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("28P01", "FATAL"), "{method}");
            }
            let nobody = gateway.startup("postgres").user("nobody_here").password("open sesame").refused();
            assert_eq!(nobody.code, "28P01", "{method}");
        }
    }

    fn edge_47_broken_scram_messages_are_refused(fixture) {
        let gateway = with_passwords(fixture, "scram-sha-256", &user_section("postgres", "secret"));
        let mechanism = b"SCRAM-SHA-256\0";
        let initial = |length: i32, text: &str| [&mechanism[..], &length.to_be_bytes(), text.as_bytes()].concat();
        let broken = [
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
        for message in broken {
            let startup = gateway.startup("postgres");
            let mut client = startup.open();
            client.send_bytes(&startup.packet());
            client.expect("R");
            client.send(&Frames::new().message(b'p', &message));
            let refusal = client.recv();
            assert_eq!(refusal.tag, b'E', "{message:?}: {refusal:?}");
            client.expect_eof();
        }
        gateway.startup("postgres").password("secret").connect().ok("select 1");
    }

    fn edge_49_a_changed_server_password_is_taken_over_by_a_reload(fixture) {
        let role = fixture.own_role("old", "scram_login");
        let section = fixture.database_section("postgres", "postgres");
        let login = format!("user = \"{role}\"\npassword = \"old\"\nsize = 1\n");
        let mut gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{section}{login}"));
        let mut client = gateway.client("postgres");
        let before = client.backend();
        fixture.server.sql(&format!("alter role {role} password 'new'"));
        gateway.rewrite("databases.postgres.password", "new");
        gateway.console().ok("RELOAD");
        fixture.server.kill_backend(&before);
        let mut after = String::new();
        eventually("the new password serves", || {
            after = client.backend();
            after != before
        });
    }

    fn edge_50_the_clients_scram_keys_serve_towards_the_server(fixture) {
        let role = fixture.own_role("known to the client alone", "scram_login");
        let verifier = fixture.server.value(&format!("select rolpassword from pg_authid where rolname = '{role}'"));
        let gateway = with_passwords(fixture, "scram-sha-256", &user_section(&role, &verifier));
        let startup = gateway.startup("postgres").user(&role).password("known to the client alone");
        let mut client = startup.connect();
        let before = client.backend();
        fixture.server.kill_backend(&before);
        assert_ne!(client.backend(), before);
        assert_eq!(startup.connect().value("select current_user"), role);
    }

    fn edge_50_a_forced_server_user_with_scram_on_both_sides(fixture) {
        let front = fixture.own_role("front", "");
        let back = fixture.own_role("back", "scram_login");
        let section = fixture.database_section("postgres", "postgres");
        let login = format!("user = \"{back}\"\npassword = \"back\"\nsize = 1\n");
        let users = user_section(&front, "front");
        let gateway = fixture.start(&format!("[auth]\nmethod = \"scram-sha-256\"\n{section}{login}{users}"));
        let mut client = gateway.startup("postgres").user(&front).password("front").connect();
        assert_eq!(client.value("select current_user"), back);
    }

    fn edge_50_every_method_towards_the_server(fixture) {
        for group in ["md5_login", "cleartext_login", "scram_login"] {
            let role = fixture.own_role("back", group);
            let section = fixture.database_section("postgres", "postgres");
            let login = format!("user = \"{role}\"\npassword = \"back\"\nsize = 1\n");
            let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{section}{login}"));
            assert_eq!(gateway.client("postgres").value("select current_user"), role);
        }
    }

    fn edge_51_tls_closed_without_notice_is_an_ordinary_end(fixture) {
        let authority = Authority::new();
        let gateway = with_tls(fixture, &authority, "size = 1\n");
        for reset in [false, true] {
            let startup = gateway.startup("postgres").tls(TlsMode::Request(authority.ca()));
            let mut client = startup.connect();
            client.ok("select 1");
            client.vanish(reset);
        }
        gateway.wait_for_pool("postgres", "cl_active", 0);
        assert_eq!(gateway.complaints(), Vec::<String>::new());
    }

    fn edge_52_tls_records_stay_small_enough_for_libpq(fixture) {
        let authority = Authority::new();
        let gateway = with_tls(fixture, &authority, "size = 1\n");
        let mut client = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        client.ok("select repeat('x', 100) from generate_series(1, 5000)");
        // 8 KB and what TLS adds to a record.
        assert!(client.tls_record_bytes_max() <= 8_192 + 256, "{} bytes", client.tls_record_bytes_max());
    }

    fn edge_53_a_row_of_40_mb_over_tls_on_both_sides(fixture) {
        let authority = Authority::new();
        let gateway = with_tls(fixture, &authority, "size = 1\nsslmode = \"require\"\n");
        let mut client = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        let outcome = client.ok("select repeat('0123456789', 4000000)");
        let row = outcome.value();
        assert_eq!(row.len(), 40_000_000);
        assert!(row.as_bytes().chunks(10).all(|chunk| chunk == b"0123456789"));
        assert_eq!(client.value("select 'next'"), "next");
    }

    fn edge_54_a_reload_without_a_change_keeps_tls_servers_and_clients(fixture) {
        let authority = Authority::new();
        let gateway = with_tls(fixture, &authority, "size = 1\nsslmode = \"require\"\n");
        let mut client = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        let before = client.backend();
        for _ in 0..3 {
            gateway.console().ok("RELOAD");
        }
        assert_eq!(client.backend(), before);
    }

    /// A table of settings sets limits for whoever has that name, and is none of the users that may log in.
    fn settings_of_a_user_admit_nobody_to_trust(fixture) {
        let section = fixture.database_section("postgres", "postgres");
        let users = "[users.limited]\nmax_clients = 5\n[users.declared]\n\
                     [users.empty]\npassword = \"\"\nmode = \"session\"\n[users.known]\npassword = \"x\"\n";
        for (strangers, admitted) in [(false, &["declared", "empty", "known"][..]), (true, &["limited", "nobody"])] {
            let auth = format!("[auth]\nmethod = \"trust\"\nstrangers = {strangers}\n");
            let gateway = fixture.start(&format!("{auth}{section}user = \"postgres\"\n{users}"));
            for user in admitted {
                gateway.startup("postgres").user(user).connect().ok("select 1");
            }
            if !strangers {
                for user in ["limited", "nobody"] {
                    assert_eq!(gateway.startup("postgres").user(user).refused().code, "28000", "{user}");
                }
            }
        }
    }

    fn edge_54_every_sslmode_towards_the_server(fixture) {
        let role = fixture.own_role("x", "tls_only");
        let ca = fixture.server.authority().ca();
        let modes = ["allow", "prefer", "require", "verify-ca", "verify-full"];
        for mode in modes {
            let tls = format!("user = \"{role}\"\nsize = 1\nsslmode = \"{mode}\"\nsslrootcert = \"{}\"\n", ca.display());
            let gateway = fixture.gateway(&tls);
            let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
            assert_eq!(gateway.client("postgres").value(encrypted), "t", "{mode}");
        }
        let plain = fixture.gateway(&format!("user = \"{role}\"\nsize = 1\nsslmode = \"disable\"\n"));
        assert_eq!(refusal(&plain.startup("postgres")).code, "28000");
    }

    fn edge_54_a_server_of_another_authority_is_not_trusted(fixture) {
        let stranger = Authority::new();
        let tls = format!("sslmode = \"verify-ca\"\nsslrootcert = \"{}\"\nsize = 1\n", stranger.ca().display());
        let gateway = fixture.gateway(&tls);
        let refused = refusal(&gateway.startup("postgres"));
        assert_eq!(refused.severity, "FATAL");
    }
}

/// The error that a client meets when no server can be had: at its login or at its first query.
#[track_caller]
pub(crate) fn refusal(startup: &Startup) -> tidegate_testkit::ErrorFields {
    match startup.try_connect() {
        Err(Lost::Refused(fields)) => fields,
        Err(lost) => panic!("no reason was given: {lost}"),
        Ok(mut client) => {
            client.send(&Frames::new().query("select 1"));
            let message = client.recv();
            assert_eq!(message.tag, b'E', "{message:?}");
            message.error()
        }
    }
}

#[test]
fn edge_45_an_equal_parameter_does_not_make_the_gateway_set_it_again_and_again() {
    let server = FaultyServer::obliging();
    let gateway = gateway_before(&server, "size = 1\n");
    let startup = gateway.startup("postgres").parameter("client_encoding", "utf8").parameter("datestyle", "iso, mdy");
    let mut client = startup.connect();
    for _ in 0..5 {
        client.ok("select 1");
    }
    let asked: Vec<_> = server.messages().into_iter().filter(|(_, message)| message.tag == b'Q').collect();
    assert!(asked.len() <= 6, "{asked:?}");
}

/// Whoever waits in line learns the reason at once; nobody waits for the end of the checkout deadline.
#[test]
fn edge_46_clients_in_line_get_the_servers_refusal() {
    let server = FaultyServer::start(|connection| connection.send(&reply::fatal("53300", "the house is full")));
    let gateway = gateway_before(&server, "size = 1\n");
    let clients: Vec<_> = (0..5)
        .map(|_| {
            let startup = gateway.startup("postgres");
            std::thread::spawn(move || refusal(&startup))
        })
        .collect();
    for client in clients {
        let refused = client.join().expect("every client is refused with an error");
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("53300", "the house is full"));
    }
}

/// A server that speaks no SQLSTATE crashed a pooler (CVE-2026-6666).
#[test]
fn edge_47_a_refusal_without_an_sqlstate_is_forwarded() {
    let server =
        FaultyServer::start(|connection| connection.send(&reply::error(&[(b'S', "FATAL"), (b'M', "not today")])));
    let gateway = gateway_before(&server, "size = 1\n[timeouts]\nconnect_retry = \"50ms\"\n");
    assert!(refusal(&gateway.startup("postgres")).message.contains("not today"));
    assert!(refusal(&gateway.startup("postgres")).message.contains("not today"));
}

#[test]
fn edge_47_an_error_without_an_sqlstate_is_forwarded() {
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
    let gateway = gateway_before(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    client.send(&Frames::new().query("fail"));
    client.expect("E E Z:I");
    client.ok("select 1");
}

#[test]
fn edge_47_broken_scram_messages_of_a_server_are_an_error_for_the_client() {
    const BROKEN: [&[u8]; 7] = [
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
        let broken = BROKEN[connection.number() % BROKEN.len()];
        connection.send(&reply::message(b'R', &[&[0, 0, 0, 11], broken].concat()))?;
        connection.stay_silent()
    });
    let login = "user = \"back\"\npassword = \"back\"\nsize = 1\n";
    let gateway = gateway_before(&server, &format!("{login}[timeouts]\nconnect_retry = \"10ms\"\n"));
    for _ in BROKEN {
        assert!(
            ["08P01", "28000", "28P01", "08006", "08001"]
                .contains(&refusal(&gateway.startup("postgres")).code.as_str())
        );
    }
    assert!(server.connections() > 0);
}
