//! Logins that are bound to a certificate, new certificates, and the suites that TLS may use.

use tidegate_testkit::{Authority, Bound, Fixture, Gateway, Lost, TlsMode};

use crate::startup::{refusal, user_section, with_tls};

/// A gateway that asks for SCRAM and offers TLS with a certificate for localhost. `auth` are further keys of `[auth]`,
/// `rest` of the database, with sections behind them.
fn with_scram_over_tls(fixture: &Fixture, authority: &Authority, auth: &str, rest: &str) -> Gateway {
    let identity = authority.issue(&["localhost"]);
    let section = fixture.database_section("postgres", "postgres");
    let (cert, key) = (identity.cert.display(), identity.key.display());
    let listen = format!("[listen]\ntls = \"allow\"\ntls_cert = \"{cert}\"\ntls_key = \"{key}\"\n");
    fixture.start(&format!("{listen}[auth]\nmethod = \"scram-sha-256\"\n{auth}{section}size = 2\n{rest}"))
}

on_each_postgres! {
    /// What the gateway says to a client that is bound to its certificate, rightly or wrongly, is what Postgres says.
    fn edge_47_a_login_is_bound_to_the_certificate(fixture) {
        let role = fixture.own_role("secret", "scram_login");
        let authority = Authority::new();
        let gateway = with_scram_over_tls(fixture, &authority, "", &user_section(&role, "secret"));
        let doors = [
            (fixture.server.startup(), fixture.server.authority().ca()),
            (gateway.startup("postgres"), authority.ca()),
        ];
        for (startup, ca) in doors {
            let plain = startup.user(&role).password("secret");
            let startup = plain.clone().tls(TlsMode::Request(ca));
            startup.clone().bound(Bound::ToCertificate).connect().ok("select 1");
            startup.clone().bound(Bound::No).connect().ok("select 1");
            let wrong = startup.clone().bound(Bound::ToCertificate).password("wrong").refused();
            assert_eq!(wrong.code, "28P01");
            for (bound, code) in [(Bound::ToAnother, "28000"), (Bound::NotOffered, "28000"), (Bound::Misplaced, "08P01")] {
                let refused = startup.clone().bound(bound).refused();
                assert_eq!((refused.code.as_str(), refused.severity.as_str()), (code, "FATAL"), "{bound:?}");
            }
            // Without TLS it is not offered, and a client that would is right to say so.
            plain.clone().bound(Bound::NotOffered).connect().ok("select 1");
            assert!(matches!(plain.bound(Bound::ToCertificate).try_connect(), Err(Lost::Garbage(_))));
        }
        let off = with_scram_over_tls(fixture, &authority, "channel_binding = false\n", &user_section(&role, "secret"));
        let startup = off.startup("postgres").user(&role).password("secret").tls(TlsMode::Request(authority.ca()));
        startup.clone().bound(Bound::NotOffered).connect().ok("select 1");
        assert!(matches!(startup.bound(Bound::ToCertificate).try_connect(), Err(Lost::Garbage(_))));
    }

    /// `require` is answered by Postgres with a login only if the hash is that of its certificate.
    fn edge_50_the_login_to_the_server_is_bound_to_its_certificate(fixture) {
        let role = fixture.own_role("back", "scram_login");
        let section = fixture.database_section("postgres", "postgres");
        let login = format!("user = \"{role}\"\npassword = \"back\"\nsize = 1\nsslmode = \"require\"\n");
        for binding in ["disable", "prefer", "require"] {
            let keys = format!("{section}{login}channel_binding = \"{binding}\"\n");
            let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{keys}"));
            let mut client = gateway.client("postgres");
            assert_eq!(client.value("select current_user"), role, "{binding}");
            // The keys that were derived for the first login serve for a second one as well.
            let before = client.backend();
            fixture.server.kill_backend(&before);
            assert_ne!(client.backend(), before, "{binding}");
        }
    }

    fn edge_50_the_clients_keys_serve_in_a_bound_login(fixture) {
        let role = fixture.own_role("known to the client alone", "scram_login");
        let verifier = fixture.server.value(&format!("select rolpassword from pg_authid where rolname = '{role}'"));
        let authority = Authority::new();
        let bound = "sslmode = \"require\"\nchannel_binding = \"require\"\n";
        let rest = format!("{bound}{}", user_section(&role, &verifier));
        let gateway = with_scram_over_tls(fixture, &authority, "", &rest);
        let startup = gateway.startup("postgres").user(&role).password("known to the client alone");
        let startup = startup.tls(TlsMode::Request(authority.ca())).bound(Bound::ToCertificate);
        assert_eq!(startup.connect().value("select current_user"), role);
    }

    fn edge_50_a_login_that_cannot_be_bound_is_refused_if_it_has_to_be(fixture) {
        let section = fixture.database_section("postgres", "postgres");
        for (group, sslmode) in [("cleartext_login", "require"), ("scram_login", "allow")] {
            let role = fixture.own_role("back", group);
            let login = format!("user = \"{role}\"\npassword = \"back\"\nsize = 1\nsslmode = \"{sslmode}\"\n");
            let keys = format!("{section}{login}channel_binding = \"require\"\n");
            let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{keys}"));
            let refused = refusal(&gateway.startup("postgres"));
            assert!(refused.message.contains("channel_binding"), "{group}: {refused:?}");
        }
        // Who is let in without any proof is not bound either.
        let login = "user = \"postgres\"\nsize = 1\nsslmode = \"require\"\nchannel_binding = \"require\"\n";
        let gateway = fixture.start(&format!("[auth]\nmethod = \"trust\"\n{section}{login}"));
        assert!(refusal(&gateway.startup("postgres")).message.contains("channel_binding"));
    }

    fn edge_54_a_reload_shows_a_new_certificate_and_drops_nobody(fixture) {
        let (old, new) = (Authority::new(), Authority::new());
        let gateway = with_tls(fixture, &old, "size = 1\n");
        let by = |authority: &Authority| gateway.startup("postgres").tls(TlsMode::Request(authority.ca()));
        let mut client = by(&old).connect();
        let before = client.backend();
        let (here, there) = (new.issue(&["localhost"]), old.issue(&["localhost"]));
        for (from, to) in [(here.cert, there.cert), (here.key, there.key)] {
            std::fs::copy(from, to).expect("the folder can be written");
        }
        gateway.console().ok("RELOAD");
        by(&new).connect().ok("select 1");
        assert!(by(&old).try_connect().is_err(), "the old certificate is shown no more");
        assert_eq!(client.backend(), before);
    }

    fn edge_54_tls_is_narrowed_to_the_suites_that_are_listed(fixture) {
        let authority = Authority::new();
        let suites = "tls_ciphers = [\"ECDHE-ECDSA-AES128-GCM-SHA256\"]\ntls_groups = [\"prime256v1\"]\n";
        let identity = authority.issue(&["localhost"]);
        let (cert, key) = (identity.cert.display(), identity.key.display());
        let listen = format!("[listen]\ntls = \"allow\"\ntls_cert = \"{cert}\"\ntls_key = \"{key}\"\n{suites}");
        let section = fixture.database_section("postgres", "postgres");
        let server = "size = 1\nsslmode = \"require\"\nsslciphers = [\"TLS_AES_128_GCM_SHA256\"]\n";
        let gateway = fixture.start(&format!("{listen}[auth]\nmethod = \"trust\"\n{section}{server}"));
        let mut client = gateway.startup("postgres").tls(TlsMode::Request(authority.ca())).connect();
        let towards = "select version || '/' || cipher from pg_stat_ssl where pid = pg_backend_pid()";
        assert_eq!(client.value(towards), "TLSv1.3/TLS_AES_128_GCM_SHA256");
        let clients = gateway.show("CLIENTS");
        let suite = "TLSv1.2/ECDHE-ECDSA-AES128-GCM-SHA256";
        assert!(clients.iter().any(|client| client["tls"] == suite), "{clients:?}");
    }
}
