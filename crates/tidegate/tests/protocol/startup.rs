//! Connection startup: SSLRequest and GSSENCRequest, protocol versions, startup parameters, malformed packets and probes.

use std::io::Write as _;
use std::net::TcpStream;

use tidegate_testkit::{Authority, ClientError, FaultyServer, Frames, TlsMode, gateway_for, on_each_postgres, reply};

const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

const GSS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];

on_each_postgres! {
    /// EDGE-40.
    fn ssl_and_gss_requests_are_declined_in_any_order(fixture) {
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

    /// EDGE-40.
    fn tls_is_accepted_after_gss_was_declined(fixture) {
        let authority = Authority::new();
        let gateway = fixture.gateway_with_tls(&authority, "size = 1\n");
        let mut client = gateway.startup("postgres").open();
        client.send_bytes(&GSS_REQUEST);
        assert_eq!(client.recv_byte(), b'N');
        client.send_bytes(&SSL_REQUEST);
        assert_eq!(client.recv_byte(), b'S');
        let mut encrypted = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        encrypted.ok("select 1");
    }

    /// EDGE-40: A man in the middle can put them there before the handshake (CVE-2021-3935).
    fn plain_bytes_after_ssl_request_are_rejected(fixture) {
        let authority = Authority::new();
        for gateway in [fixture.gateway_with_tls(&authority, "size = 1\n"), fixture.gateway("size = 1\n")] {
            let startup = gateway.startup("postgres");
            let mut client = startup.open();
            client.send_bytes(&[&SSL_REQUEST[..], &startup.packet(), Frames::new().query("select 1").bytes()].concat());
            // The reply to SSLRequest may come first. No message of the plain-text login may be answered.
            let mut first = client.recv_byte();
            if b"SN".contains(&first) {
                first = client.recv_byte();
            }
            assert_eq!(char::from(first), 'E');
            client.unread_byte(first);
            client.expect_fatal("08P01");
        }
    }

    /// EDGE-42.
    fn protocol_3_2_works_and_later_minor_is_negotiated(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut current = gateway.startup("postgres").protocol(3, 2).connect();
        assert_eq!(current.negotiated, None);
        current.ok("select 1");
        let mut later = gateway.startup("postgres").protocol(3, 9).connect();
        assert_eq!(later.negotiated, Some((196_610, Vec::new())));
        later.ok("select 1");
    }

    /// EDGE-42.
    fn unknown_protocol_options_are_listed_and_ignored(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let unknown = gateway.startup("postgres").parameter("_pq_.first", "1").parameter("_pq_.second", "x");
        for minor in [0, 2] {
            let mut client = unknown.clone().protocol(3, minor).connect();
            let (_, options) = client.negotiated.clone().expect("NegotiateProtocolVersion");
            assert_eq!(options, ["_pq_.first", "_pq_.second"]);
            client.ok("select 1");
        }
    }

    /// EDGE-42.
    fn other_major_versions_are_rejected(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for startup in [fixture.server.startup(), gateway.startup("postgres")] {
            assert_eq!(startup.clone().protocol(4, 0).refused().code, "0A000");
            // The error has the format of protocol 2.0.
            assert!(startup.protocol(2, 0).try_connect().is_err());
        }
    }

    /// EDGE-43.
    fn startup_parameter_takes_precedence_over_options(fixture) {
        fixture.on_both_targets(|target| {
            let (options, own) = (("options", "-c work_mem=70kB -c DateStyle=German"), ("work_mem", "80kB"));
            for (first, second) in [(options, own), (own, options)] {
                let startup = target.startup().parameter(first.0, first.1).parameter(second.0, second.1);
                let mut client = startup.connect();
                assert_eq!(client.value("show work_mem"), "80kB");
                assert_eq!(client.value("show datestyle"), "German, DMY");
            }
            // The last `options` parameter counts.
            let twice = target.startup().parameter("options", "-c work_mem=70kB").parameter("options", "-c DateStyle=German");
            assert_eq!(twice.connect().value("show work_mem"), target.client().value("show work_mem"));
        });
    }

    /// EDGE-43.
    fn options_are_parsed_with_escapes(fixture) {
        let options = r"-c datestyle=German -capplication_name=two\ words --intervalstyle=iso_8601";
        fixture.on_both_targets(|target| {
            let mut client = target.startup().parameter("options", options).connect();
            assert_eq!(client.value("show datestyle"), "German, DMY");
            assert_eq!(client.value("show application_name"), "two words");
            assert_eq!(client.value("show intervalstyle"), "iso_8601");
        });
    }

    /// EDGE-43.
    fn unknown_startup_parameter_is_rejected(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.startup().parameter("extra_float_digits", "0").connect();
            assert_eq!(client.value("show extra_float_digits"), "0");
            let refused = target.startup().parameter("no_such_setting", "1").first_error();
            assert!(refused.message.contains("no_such_setting"), "{refused:?}");
        });
    }

    /// EDGE-44.
    fn startup_packet_of_8_kb_arrives_in_fragments(fixture) {
        fixture.on_both_targets(|target| {
            let startup = target.startup().parameter("options", &" ".repeat(8_000));
            let mut client = startup.open();
            for piece in startup.packet().chunks(999) {
                client.send_bytes(piece);
            }
            client.log_in(None).expect("a long packet is no error");
            let startup = target.startup();
            let mut client = startup.open();
            for byte in startup.packet() {
                client.send_bytes(&[byte]);
            }
            client.log_in(None).expect("a slow packet is no error");
            client.ok("select 1");
        });
    }

    /// EDGE-44.
    fn startup_packet_of_invalid_length_is_rejected(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for length in [0_i32, 3, 4, 7, -1, i32::MIN, 100_000, i32::MAX] {
            let mut client = gateway.startup("postgres").open();
            client.send_bytes(&[&length.to_be_bytes()[..], &[0, 3, 0, 0]].concat());
            // An ErrorResponse may come first.
            match client.try_recv() {
                Err(ClientError::Closed) => {}
                Ok(message) if message.tag == b'E' => client.expect_eof(),
                other => panic!("length {length}: {other:?}"),
            }
        }
        gateway.client("postgres").ok("select 1");
    }

    /// node-postgres sends Terminate instead of a startup packet when `end()` follows `connect()`.
    fn invalid_first_packet_closes_without_a_reply(fixture) {
        fixture.on_both_targets(|target| {
            let packet = |length: i32| [&length.to_be_bytes()[..], &[0, 3, 0, 0]].concat();
            let lengths = [0, 3, 4, 7, -1, i32::MIN, 100_000, i32::MAX].map(packet);
            for bytes in lengths.into_iter().chain([b"X\0\0\0\x04".to_vec(), b"HELO there\r\n".to_vec()]) {
                let mut client = target.startup().open();
                client.send_bytes(&bytes);
                client.expect_eof();
            }
            target.client().ok("select 1");
        });
    }

    /// EDGE-44.
    fn startup_packet_without_end_or_user_is_rejected(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let broken: [&[u8]; 4] = [b"", b"user", b"user\0postgres\0database", b"database\0postgres\0\0"];
        for parameters in broken {
            let mut client = gateway.startup("postgres").open();
            let length = u32::try_from(8 + parameters.len()).expect("short");
            client.send_bytes(&[&length.to_be_bytes()[..], &[0, 3, 0, 0], parameters].concat());
            let reply = client.recv();
            assert_eq!(reply.tag, b'E', "{parameters:?}: {reply:?}");
            client.expect_eof();
        }
    }

    /// EDGE-45.
    fn empty_application_name_is_applied(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let named = gateway.startup("postgres").parameter("application_name", "named");
        let mut named = named.connect();
        let mut empty = gateway.startup("postgres").parameter("application_name", "").connect();
        for _ in 0..2 {
            assert_eq!(named.value("show application_name"), "named");
            assert_eq!(empty.value("show application_name"), "");
        }
    }

    /// EDGE-45.
    fn other_spellings_of_a_value_are_accepted(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let startup = gateway.startup("postgres").parameter("client_encoding", "utf-8").parameter("datestyle", "iso");
        let mut client = startup.parameter("TIMEZONE", "utc").connect();
        for _ in 0..3 {
            assert_eq!(client.value("show client_encoding"), "UTF8");
            assert_eq!(client.value("show datestyle"), "ISO, MDY");
            assert_eq!(client.value("show timezone").to_lowercase(), "utc");
        }
    }

    /// EDGE-67.
    fn tcp_probes_log_no_warnings(fixture) {
        let gateway = fixture.gateway("size = 1\n[log]\nlevel = \"info\"\n");
        let log_before = gateway.log();
        for bytes in [&b""[..], b"\0", b"\0\0\0\x08", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01"] {
            let mut probe = TcpStream::connect(gateway.address()).expect("the port is open");
            probe.write_all(bytes).expect("bytes are taken");
        }
        gateway.client("postgres").ok("select 1");
        let warnings: Vec<_> = gateway.warnings();
        assert_eq!(warnings, Vec::<String>::new());
        assert!(gateway.log().len() < log_before.len() + 2_000, "{}", gateway.log());
    }

    /// EDGE-67.
    fn http_request_is_closed_cleanly(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for request in [&b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"POST / HTTP/1.0\r\n\r\n"] {
            let mut client = gateway.startup("postgres").open();
            client.send_bytes(request);
            match client.try_recv() {
                Err(ClientError::Closed | ClientError::Garbage(_)) => {}
                Ok(message) if message.tag == b'E' => client.expect_eof(),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// EDGE-45.
#[test]
fn equal_parameter_is_not_set_again() {
    let server = FaultyServer::answering();
    let gateway = gateway_for!(&server, "size = 1\n");
    let startup = gateway.startup("postgres").parameter("client_encoding", "utf8").parameter("datestyle", "iso, mdy");
    let mut client = startup.connect();
    for _ in 0..5 {
        client.ok("select 1");
    }
    let queries: Vec<_> = server.messages().into_iter().filter(|(_, message)| message.tag == b'Q').collect();
    assert!(queries.len() <= 6, "{queries:?}");
}

/// EDGE-42: The gateway uses the version that an older server offers.
#[test]
fn server_negotiates_protocol_down() {
    let server = FaultyServer::start(|connection| {
        connection.send(&reply::negotiate(0))?;
        connection.log_in()?;
        connection.answer_all()
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    gateway.startup("postgres").protocol(3, 2).connect().ok("select 1");
    gateway.client("postgres").ok("select 1");
}
