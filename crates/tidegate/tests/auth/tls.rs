//! TLS towards clients and servers: channel binding, certificates, cipher suites and records.

use tidegate_testkit::{
    Authority, ChannelBinding, ClientError, Fixture, Gateway, TlsMode, on_each_postgres, tls_section,
};

use crate::logins::user_section;

/// A gateway with SCRAM authentication that offers TLS with a certificate for localhost. `auth` holds further keys of
/// `[auth]`, `rest` those of the database, with sections behind them.
fn with_scram_over_tls(fixture: &Fixture, authority: &Authority, auth: &str, rest: &str) -> Gateway {
    let section = fixture.database_section("postgres", "postgres");
    let listen = tls_section(authority);
    fixture.start(&format!("{listen}[auth]\nmethod = \"scram-sha-256\"\n{auth}{section}size = 2\n{rest}"))
}

on_each_postgres! {
    /// EDGE-47: The gateway answers valid and invalid channel bindings as Postgres does.
    fn scram_login_uses_channel_binding(fixture) {
        let role = fixture.create_role("secret", "scram_login");
        let authority = Authority::new();
        let gateway = with_scram_over_tls(fixture, &authority, "", &user_section(&role, "secret"));
        let targets = [
            (fixture.server.startup(), fixture.server.authority().ca()),
            (gateway.startup("postgres"), authority.ca()),
        ];
        for (startup, ca) in targets {
            let plain = startup.user(&role).password("secret");
            let startup = plain.clone().tls(TlsMode::Request(ca));
            startup.clone().channel_binding(ChannelBinding::Certificate).connect().ok("select 1");
            startup.clone().channel_binding(ChannelBinding::None).connect().ok("select 1");
            let wrong = startup.clone().channel_binding(ChannelBinding::Certificate).password("wrong").refused();
            assert_eq!(wrong.code, "28P01");
            for (binding, code) in [
                (ChannelBinding::OtherCertificate, "28000"),
                (ChannelBinding::NotOffered, "28000"),
                (ChannelBinding::WithoutPlus, "08P01"),
            ] {
                let refused = startup.clone().channel_binding(binding).refused();
                assert_eq!((refused.code.as_str(), refused.severity.as_str()), (code, "FATAL"), "{binding:?}");
            }
            // SCRAM-SHA-256-PLUS is not offered without TLS, and the flag `y` of a client that supports it is correct.
            plain.clone().channel_binding(ChannelBinding::NotOffered).connect().ok("select 1");
            assert!(matches!(plain.channel_binding(ChannelBinding::Certificate).try_connect(), Err(ClientError::Garbage(_))));
        }
        let off = with_scram_over_tls(fixture, &authority, "channel_binding = false\n", &user_section(&role, "secret"));
        let startup = off.startup("postgres").user(&role).password("secret").tls(TlsMode::Request(authority.ca()));
        startup.clone().channel_binding(ChannelBinding::NotOffered).connect().ok("select 1");
        assert!(matches!(startup.channel_binding(ChannelBinding::Certificate).try_connect(), Err(ClientError::Garbage(_))));
    }

    /// EDGE-50: With `require`, Postgres accepts the login only if the hash is that of its certificate.
    fn server_login_uses_channel_binding(fixture) {
        let role = fixture.create_role("back", "scram_login");
        let section = fixture.database_section("postgres", "postgres");
        let login = format!("user = \"{role}\"\npassword = \"back\"\nsize = 1\nsslmode = \"require\"\n");
        for binding in ["disable", "prefer", "require"] {
            let keys = format!("{section}{login}channel_binding = \"{binding}\"\n");
            let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{keys}"));
            let mut client = gateway.client("postgres");
            assert_eq!(client.value("select current_user"), role, "{binding}");
            // The keys derived for the first login are used for a second one.
            let before = client.backend();
            fixture.server.kill_backend(&before);
            assert_ne!(client.backend(), before, "{binding}");
        }
    }

    /// EDGE-50.
    fn keys_of_the_client_work_with_channel_binding(fixture) {
        let role = fixture.create_role("only the client has it", "scram_login");
        let verifier = fixture.server.value(&format!("select rolpassword from pg_authid where rolname = '{role}'"));
        let authority = Authority::new();
        let bound = "sslmode = \"require\"\nchannel_binding = \"require\"\n";
        let rest = format!("{bound}{}", user_section(&role, &verifier));
        let gateway = with_scram_over_tls(fixture, &authority, "", &rest);
        let startup = gateway.startup("postgres").user(&role).password("only the client has it");
        let startup = startup.tls(TlsMode::Request(authority.ca())).channel_binding(ChannelBinding::Certificate);
        assert_eq!(startup.connect().value("select current_user"), role);
    }

    /// EDGE-50.
    fn required_channel_binding_without_support_fails(fixture) {
        let section = fixture.database_section("postgres", "postgres");
        for (group, sslmode) in [("cleartext_login", "require"), ("scram_login", "allow")] {
            let role = fixture.create_role("back", group);
            let login = format!("user = \"{role}\"\npassword = \"back\"\nsize = 1\nsslmode = \"{sslmode}\"\n");
            let keys = format!("{section}{login}channel_binding = \"require\"\n");
            let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{keys}"));
            let refused = gateway.startup("postgres").first_error();
            assert!(refused.message.contains("channel_binding"), "{group}: {refused:?}");
        }
        // A login without authentication has no channel binding either.
        let login = "user = \"postgres\"\nsize = 1\nsslmode = \"require\"\nchannel_binding = \"require\"\n";
        let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{section}{login}"));
        assert!(gateway.startup("postgres").first_error().message.contains("channel_binding"));
    }

    /// EDGE-54.
    fn reload_of_a_certificate_keeps_connections(fixture) {
        let (old, new) = (Authority::new(), Authority::new());
        let gateway = fixture.gateway_with_tls(&old, "size = 1\n");
        let startup_with = |authority: &Authority| gateway.startup("postgres").tls(TlsMode::Request(authority.ca()));
        let mut client = startup_with(&old).connect();
        let before = client.backend();
        let (new_identity, old_identity) = (new.issue(&["localhost"]), old.issue(&["localhost"]));
        for (from, to) in [(new_identity.cert, old_identity.cert), (new_identity.key, old_identity.key)] {
            std::fs::copy(from, to).expect("the folder can be written");
        }
        gateway.console().ok("RELOAD");
        startup_with(&new).connect().ok("select 1");
        assert!(startup_with(&old).try_connect().is_err(), "the old certificate is still used");
        assert_eq!(client.backend(), before);
    }

    /// EDGE-54.
    fn tls_uses_only_the_configured_suites(fixture) {
        let authority = Authority::new();
        let suites = "tls_ciphers = [\"ECDHE-ECDSA-AES128-GCM-SHA256\"]\ntls_groups = [\"prime256v1\"]\n";
        let listen = format!("{}{suites}", tls_section(&authority));
        let section = fixture.database_section("postgres", "postgres");
        let server = "size = 1\nsslmode = \"require\"\nsslciphers = [\"TLS_AES_128_GCM_SHA256\"]\n";
        let gateway = fixture.start(&format!("{listen}[auth]\nmethod = \"trust\"\n{section}{server}"));
        let mut client = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        let server_suite = "select version || '/' || cipher from pg_stat_ssl where pid = pg_backend_pid()";
        assert_eq!(client.value(server_suite), "TLSv1.3/TLS_AES_128_GCM_SHA256");
        let clients = gateway.show("CLIENTS");
        let suite = "TLSv1.2/ECDHE-ECDSA-AES128-GCM-SHA256";
        assert!(clients.iter().any(|client| client["tls"] == suite), "{clients:?}");
    }

    /// EDGE-41.
    fn direct_tls_requires_alpn(fixture) {
        let authority = Authority::new();
        let gateway = fixture.gateway_with_tls(&authority, "size = 1\n");
        let direct = |alpn| gateway.startup("postgres").tls(TlsMode::Direct { ca: authority.ca(), alpn });
        assert_eq!(direct(true).connect().value("select 'direct'"), "direct");
        assert!(direct(false).try_connect().is_err(), "direct TLS without ALPN could be another protocol");
    }

    /// EDGE-51.
    fn tls_end_without_close_notify_logs_no_warning(fixture) {
        let authority = Authority::new();
        let gateway = fixture.gateway_with_tls(&authority, "size = 1\n");
        for reset in [false, true] {
            let startup = gateway.startup("postgres").tls(TlsMode::Request(authority.ca()));
            let mut client = startup.connect();
            client.ok("select 1");
            client.disconnect(reset);
        }
        gateway.wait_for_pool("postgres", "cl_active", 0);
        assert_eq!(gateway.warnings(), Vec::<String>::new());
    }

    /// EDGE-52.
    fn tls_records_fit_the_buffer_of_libpq(fixture) {
        let authority = Authority::new();
        let gateway = fixture.gateway_with_tls(&authority, "size = 1\n");
        let mut client = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        client.ok("select repeat('x', 100) from generate_series(1, 5000)");
        // 8 KB and the overhead of a TLS record.
        assert!(client.tls_record_bytes_max() <= 8_192 + 256, "{} bytes", client.tls_record_bytes_max());
    }

    /// EDGE-53.
    fn row_of_40_mb_over_tls_on_both_sides(fixture) {
        let authority = Authority::new();
        let gateway = fixture.gateway_with_tls(&authority, "size = 1\nsslmode = \"require\"\n");
        let mut client = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        let outcome = client.ok("select repeat('0123456789', 4000000)");
        let row = outcome.value();
        assert_eq!(row.len(), 40_000_000);
        assert!(row.as_bytes().chunks(10).all(|chunk| chunk == b"0123456789"));
        assert_eq!(client.value("select 'next'"), "next");
    }

    /// EDGE-54.
    fn reload_without_a_change_keeps_tls_connections(fixture) {
        let authority = Authority::new();
        let gateway = fixture.gateway_with_tls(&authority, "size = 1\nsslmode = \"require\"\n");
        let mut client = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        let before = client.backend();
        for _ in 0..3 {
            gateway.console().ok("RELOAD");
        }
        assert_eq!(client.backend(), before);
    }

    /// EDGE-54.
    fn every_sslmode_towards_the_server(fixture) {
        let role = fixture.create_role("x", "tls_only");
        let ca = fixture.server.authority().ca();
        let modes = ["allow", "prefer", "require", "verify-ca", "verify-full"];
        for mode in modes {
            let tls = format!("user = \"{role}\"\nsize = 1\nsslmode = \"{mode}\"\nsslrootcert = \"{}\"\n", ca.display());
            let gateway = fixture.gateway(&tls);
            let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
            assert_eq!(gateway.client("postgres").value(encrypted), "t", "{mode}");
        }
        let plain = fixture.gateway(&format!("user = \"{role}\"\nsize = 1\nsslmode = \"disable\"\n"));
        assert_eq!(plain.startup("postgres").first_error().code, "28000");
    }

    /// EDGE-54.
    fn server_of_another_authority_is_not_trusted(fixture) {
        let other = Authority::new();
        let tls = format!("sslmode = \"verify-ca\"\nsslrootcert = \"{}\"\nsize = 1\n", other.ca().display());
        let gateway = fixture.gateway(&tls);
        let refused = gateway.startup("postgres").first_error();
        assert_eq!(refused.severity, "FATAL");
    }
}
