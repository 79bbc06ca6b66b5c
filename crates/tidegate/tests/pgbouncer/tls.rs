//! The keys and rules for TLS: client certificates, channel binding and ciphers.

use tidegate_sandbox::Postgres;
use tidegate_testkit::{Authority, ChannelBinding, Frames, Startup, TlsMode, eventually};

use crate::ini_gateway::{IniGateway, Setup, output, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres user=postgres\n";

/// A query that returns whether the server connection uses TLS.
pub(crate) const ENCRYPTED: &str = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";

/// The keys of a gateway with a certificate for localhost, which checks client certificates with the same authority.
pub(crate) fn tls_keys(authority: &Authority, mode: &str) -> String {
    let identity = authority.issue(&["localhost"]);
    format!(
        "client_tls_sslmode = {mode}\nclient_tls_cert_file = {}\nclient_tls_key_file = {}\nclient_tls_ca_file = {}\n",
        identity.cert.display(),
        identity.key.display(),
        authority.ca().display(),
    )
}

/// A startup over TLS as this user, optionally with a client certificate of this name.
fn login(gateway: &IniGateway, authority: &Authority, user: &str, name: Option<&str>) -> Startup {
    let ca = authority.ca();
    let tls = match name {
        Some(name) => TlsMode::Identified { ca, identity: authority.issue(&[name]) },
        None => TlsMode::Request(ca),
    };
    gateway.startup("shop").user(user).tls(tls)
}

/// The error for every rejected certificate.
const REJECTED: &str = "certificate authentication failed";

#[test]
fn certificate_authenticates_a_client() {
    let authority = Authority::new();
    let ini =
        format!("{SHOP}[pgbouncer]\nauth_type = cert\nauth_file = $DIR/users\n{}", tls_keys(&authority, "verify-full"));
    let users = "\"app\" \"\"\n\"other\" \"\"\n";
    let gateway = IniGateway::with(&Setup { ini: &ini, files: &[("users", users)], ..Setup::default() });
    let login = |user, name| login(&gateway, &authority, user, name);
    assert_eq!(login("app", Some("app")).connect().value("select current_user"), "postgres");
    assert_eq!(login("other", Some("app")).refused().message, REJECTED);
    assert_eq!(login("unlisted", Some("unlisted")).refused().message, REJECTED);
    assert!(login("app", None).try_connect().is_err(), "TLS without a certificate was accepted");
    let other = Authority::new();
    let unknown = TlsMode::Identified { ca: authority.ca(), identity: other.issue(&["app"]) };
    assert!(
        gateway.startup("shop").user("app").tls(unknown).try_connect().is_err(),
        "a certificate of an unknown authority was accepted"
    );
    assert_eq!(gateway.startup("shop").user("app").refused().severity, "FATAL");
    // A unix socket has no certificate.
    assert_eq!(gateway.unix("app", "shop").refused().message, REJECTED);
    // The reason is only in the log.
    for (client, reason) in
        [("other@127.0.0.1:", "TLS certificate name mismatch"), ("app@unix(", "TLS connection required")]
    {
        let is_logged = |line: &str| line.contains(" ERROR C-") && line.contains(client) && line.ends_with(reason);
        eventually(reason, || gateway.log().lines().any(is_logged));
    }
}

/// Like in PgBouncer, the name of the certificate must be in `auth_file` or found by `auth_query`.
#[test]
fn certificate_of_an_unlisted_user_is_rejected() {
    let authority = Authority::new();
    let keys = tls_keys(&authority, "verify-full");
    for method in ["auth_type = cert\n", "auth_type = hba\nauth_hba_file = $DIR/hba\n"] {
        let ini = format!(
            "{SHOP}[users]\nlimited = max_user_connections=5\napp = pool_size=2\n\
             [pgbouncer]\n{method}auth_file = $DIR/users\n{keys}"
        );
        let files = [("users", "\"app\" \"\"\n"), ("hba", "host all all all cert\n")];
        let gateway = IniGateway::with(&Setup { ini: &ini, files: &files, ..Setup::default() });
        login(&gateway, &authority, "app", Some("app")).connect().ok("select 1");
        assert_eq!(login(&gateway, &authority, "limited", Some("limited")).refused().message, REJECTED, "{method}");
    }
}

#[test]
fn hba_rules_require_certificates_and_passwords() {
    let authority = Authority::new();
    let ini = format!(
        "{SHOP}[pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\nauth_ident_file = $DIR/ident\n\
         auth_file = $DIR/users\n{}",
        tls_keys(&authority, "allow")
    );
    let hba = "hostssl all mapped all cert map=m\nhostssl all named all cert clientname=DN\n\
               hostssl all both all scram-sha-256 clientcert=verify-full\n\
               hostssl all any all scram-sha-256 clientcert=verify-ca\nhost all all all scram-sha-256\n";
    let users = ["mapped", "named", "both", "any", "plain"].map(|user| format!("\"{user}\" \"secret\"\n")).concat();
    let ident = "m /^(.*)\\.example\\.com$ \\1\n";
    let files: &[(&str, &str)] = &[("hba", hba), ("ident", ident), ("users", &users)];
    let gateway = IniGateway::with(&Setup { ini: &ini, files, ..Setup::default() });
    let login = |user, name| login(&gateway, &authority, user, name).password("secret");
    login("mapped", Some("mapped.example.com")).connect().ok("select 1");
    assert_eq!(login("mapped", Some("other.example.com")).refused().message, REJECTED);
    assert_eq!(login("mapped", Some("mapped")).refused().message, REJECTED);
    assert_eq!(login("mapped", None).refused().message, REJECTED);
    // The distinguished name differs from the name of the user.
    assert_eq!(login("named", Some("named")).refused().message, REJECTED);
    login("both", Some("both")).connect().ok("select 1");
    assert_eq!(login("both", Some("both")).password("wrong").refused().code, "28P01");
    assert_eq!(login("both", Some("any")).refused().message, REJECTED);
    login("any", Some("whatever")).connect().ok("select 1");
    assert_eq!(login("any", None).refused().message, REJECTED);
    // The rule of this user requires only the password, with TLS or without.
    login("plain", None).connect().ok("select 1");
    login("plain", None).channel_binding(ChannelBinding::Certificate).connect().ok("select 1");
    gateway.startup("shop").user("plain").password("secret").connect().ok("select 1");
}

#[test]
fn scram_iterations_apply_to_verifiers() {
    let ini =
        format!("{SHOP}[pgbouncer]\nauth_type = scram-sha-256\nauth_file = $DIR/users\nscram_iterations = 5000\n");
    let gateway =
        IniGateway::with(&Setup { ini: &ini, files: &[("users", "\"app\" \"secret\"\n")], ..Setup::default() });
    gateway.startup("shop").user("app").password("secret").connect().ok("select 1");
    for user in ["app", "no_such_user"] {
        let startup = gateway.startup("shop").user(user);
        let mut client = startup.open();
        client.send_bytes(&startup.packet());
        client.expect("R");
        let first = b"SCRAM-SHA-256\0\0\0\0\x0bn,,n=,r=abc";
        client.send(&Frames::new().message(b'p', first));
        let challenge = client.recv();
        assert!(challenge.body.ends_with(b",i=5000"), "{challenge:?}");
    }
}

#[test]
fn cipher_lists_select_supported_suites() {
    let authority = Authority::new();
    let keys = tls_keys(&authority, "require");
    let ini = format!(
        "{SHOP}[pgbouncer]\n{keys}client_tls_protocols = tlsv1.2\nclient_tls_ecdhcurve = secp384r1\n\
         client_tls_ciphers = DHE-RSA-AES256-SHA:ECDHE+AESGCM:!AES256\n\
         server_tls_sslmode = require\nserver_tls13_ciphers = TLS_AES_128_GCM_SHA256\n"
    );
    let gateway = IniGateway::start(&ini);
    let mut client = login(&gateway, &authority, "app", None).connect();
    let server_suite = "select version || '/' || cipher from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(client.value(server_suite), "TLSv1.3/TLS_AES_128_GCM_SHA256");
    let console = login(&gateway, &authority, "postgres", None).database("pgbouncer");
    let clients = console.connect().show("CLIENTS");
    let suite = "TLSv1.2/ECDHE-ECDSA-AES128-GCM-SHA256";
    assert!(clients.iter().any(|row| row["user"] == "app" && row["tls"] == suite), "{clients:?}");
    assert!(gateway.log().contains("DHE-RSA-AES256-SHA is not supported"), "{}", gateway.log());
}

/// PgBouncer starts with such a file; OpenSSL decides whether a handshake succeeds.
#[test]
fn protocols_before_tls_1_2_are_raised() {
    let with = |protocols: &str| {
        format!("{SHOP}[pgbouncer]\nserver_tls_sslmode = require\nserver_tls_protocols = {protocols}\n")
    };
    let gateway = IniGateway::start(&with("tlsv1.0, tlsv1.1"));
    gateway.wait_for_log("names only versions before TLS 1.2; TLS 1.2 is used");
    let mut client = gateway.client("shop");
    let version = "select version from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(client.value(version), "TLSv1.2");
    gateway.set_config(&with("secure"));
    gateway.console().ok("RELOAD");
    eventually("servers are connected with the new protocols", || client.value(version) == "TLSv1.3");
}

#[test]
fn empty_cipher_list_is_reported_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgbouncer.ini");
    for (line, expected) in [
        ("client_tls_ciphers = AES128-SHA:RC4", "no suite of the list is supported"),
        ("client_tls13_ciphers = TLS_AES_128_CCM_SHA256", "no suite of the list is supported"),
        ("client_tls_protocols = !tlsv1", "only TLS 1.2 and 1.3"),
        ("client_tls_ecdhcurve = none", "not a supported curve"),
        ("server_tls_ciphers = !ALL", "no suite of the list is supported"),
        ("auth_type = cert", "needs client certificates"),
        ("client_tls_sslmode = verify-full", "needs client_tls_ca_file"),
        #[cfg(feature = "ldap")]
        ("auth_type = ldap", "ldap needs ldapserver or ldapurl"),
        #[cfg(not(feature = "ldap"))]
        ("auth_type = ldap", "--features ldap"),
        #[cfg(not(feature = "pam"))]
        ("auth_type = pam", "--features pam"),
    ] {
        let text = format!("[databases]\nx = host=db\n[pgbouncer]\n{line}\n");
        let tls =
            if line.starts_with("client") && !line.contains("sslmode") { "client_tls_sslmode = require\n" } else { "" };
        std::fs::write(&file, format!("{text}{tls}")).expect("the folder can be written");
        let checked = output(&["check", &file.display().to_string()]);
        let out = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(
            !checked.status.success() && out.contains("pgbouncer.ini:4:") && out.contains(expected),
            "{line}: {out}"
        );
    }
}

/// Like in PgBouncer, the authorities are used only in modes that verify.
#[test]
fn ca_file_is_ignored_without_verification() {
    let stale = Authority::new();
    for (mode, connects) in [("require", true), ("prefer", true), ("verify-ca", false)] {
        let gateway = IniGateway::start(&format!(
            "{SHOP}[pgbouncer]\nserver_tls_sslmode = {mode}\nserver_tls_ca_file = {}\nquery_wait_timeout = 1\n",
            stale.ca().display()
        ));
        match connects {
            true => assert_eq!(gateway.client("shop").value(ENCRYPTED), "t", "{mode}"),
            false => assert!(gateway.startup("shop").try_connect().is_err(), "{mode}"),
        }
    }
}

/// `openssl req -x509` makes such certificates: without alternative names, and used by the server directly.
#[test]
fn self_signed_certificate_is_trusted_as_ca() {
    let folder = Authority::new();
    let local = folder.self_signed("localhost");
    let read = |path: &std::path::Path| std::fs::read_to_string(path).expect("the file was written");
    let postgres = Postgres::builder().tls(&read(&local.cert), &read(&local.key)).start().expect("Postgres starts");
    let other = folder.self_signed("other");
    for (host, mode, ca, is_good) in [
        ("localhost", "verify-full", &local, true),
        ("127.0.0.1", "verify-ca", &local, true),
        ("127.0.0.1", "verify-full", &local, false),
        ("localhost", "verify-ca", &other, false),
    ] {
        let gateway = IniGateway::start(&format!(
            "[databases]\nshop = host={host} port={} dbname=postgres user=postgres\n[pgbouncer]\n\
             server_tls_sslmode = {mode}\nserver_tls_ca_file = {}\nquery_wait_timeout = 1\n",
            postgres.port(),
            ca.cert.display()
        ));
        match is_good {
            true => assert_eq!(gateway.client("shop").value(ENCRYPTED), "t", "{host} {mode}"),
            false => assert!(gateway.startup("shop").try_connect().is_err(), "{host} {mode}"),
        }
    }
}

#[test]
fn common_name_is_used_without_alternative_names() {
    let authority = Authority::new();
    let read = |path: &std::path::Path| std::fs::read_to_string(path).expect("the file was written");
    for (identity, is_good) in
        [(authority.issue_common_name("localhost"), true), (authority.issue_common_name("elsewhere"), false)]
    {
        let postgres =
            Postgres::builder().tls(&read(&identity.cert), &read(&identity.key)).start().expect("Postgres starts");
        let gateway = IniGateway::start(&format!(
            "[databases]\nshop = host=localhost port={} dbname=postgres user=postgres\n[pgbouncer]\n\
             server_tls_sslmode = verify-full\nserver_tls_ca_file = {}\nquery_wait_timeout = 1\n",
            postgres.port(),
            authority.ca().display()
        ));
        match is_good {
            true => assert_eq!(gateway.client("shop").value(ENCRYPTED), "t"),
            false => {
                assert!(gateway.startup("shop").try_connect().is_err(), "the certificate of another host was accepted");
            }
        }
    }
}

#[test]
fn gateway_authenticates_with_a_certificate() {
    let role = "pgb_certified";
    server().sql(&format!("create role {role} login in role cert_login"));
    let identity = server().authority().issue(&[role]);
    let keys =
        format!("server_tls_sslmode = verify-full\nserver_tls_ca_file = {}\n", server().authority().ca().display());
    let port = server().port();
    let shop =
        format!("[databases]\nshop = host=localhost port={port} dbname=postgres user={role}\n[pgbouncer]\n{keys}");
    let shown = format!(
        "{shop}server_tls_cert_file = {}\nserver_tls_key_file = {}\n",
        identity.cert.display(),
        identity.key.display()
    );
    assert_eq!(IniGateway::start(&shown).client("shop").value("select current_user"), role);
    let without = IniGateway::start(&format!("{shop}query_wait_timeout = 1\n"));
    assert!(without.startup("shop").try_connect().is_err());
}

/// Certificates of key types that the testkit cannot create: made by OpenSSL, for localhost, for a hundred years.
macro_rules! pem {
    ($name:literal) => {
        include_str!(concat!("certificates/", $name))
    };
}

/// Like in libpq, `prefer` falls back to clear text when TLS fails. The log has the reason.
#[test]
fn fallback_to_clear_text_is_logged_with_its_reason() {
    let (cert, key, kind) = (pem!("rsa-1024.pem"), pem!("rsa-1024.key"), "RSA of 1024 bits");
    let postgres = Postgres::builder().tls(cert, key).start().expect("Postgres starts");
    let ini = |mode: &str| {
        format!(
            "[databases]\nshop = host=localhost port={} dbname=postgres user=postgres\n[pgbouncer]\n\
             server_tls_sslmode = {mode}\nquery_wait_timeout = 1\n",
            postgres.port()
        )
    };
    let gateway = IniGateway::start(&ini("prefer"));
    assert_eq!(gateway.client("shop").value(ENCRYPTED), "f", "{kind}");
    gateway.unix("pgbouncer", "pgbouncer").connect().ok("RECONNECT");
    gateway.client("shop").ok("select 1");
    let log = gateway.log();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("clear text") && line.contains(kind)).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("WARNING"), "{log}");
    let refused = IniGateway::start(&ini("require")).startup("shop").refused();
    assert!(refused.message.contains(kind), "{refused:?}");
}

/// Key types that rustls does not verify by itself: RSASSA-PSS, and P-521 for servers and authorities.
#[test]
fn server_key_may_be_rsassa_pss_or_p521() {
    let folder = tempfile::tempdir().expect("a folder");
    for (cert, key, authority) in [
        (pem!("rsa-pss.pem"), pem!("rsa-pss.key"), pem!("rsa-pss.pem")),
        (pem!("p521.pem"), pem!("p521.key"), pem!("p521.pem")),
        (pem!("by-p521.pem"), pem!("by-p521.key"), pem!("ca-p521.pem")),
    ] {
        let postgres = Postgres::builder().tls(cert, key).start().expect("Postgres starts with the key");
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, authority).expect("the folder can be written");
        for mode in ["prefer", "require", "verify-full"] {
            let gateway = IniGateway::start(&format!(
                "[databases]\nshop = host=localhost port={} dbname=postgres user=postgres\n[pgbouncer]\n\
                 server_tls_sslmode = {mode}\nserver_tls_ca_file = {}\n",
                postgres.port(),
                ca.display()
            ));
            assert_eq!(gateway.client("shop").value(ENCRYPTED), "t", "{mode}");
            assert!(!gateway.log().contains("clear text"), "{}", gateway.log());
        }
    }
}

/// `openssl x509 -req` makes certificates of X.509 version 1 if it gets no file of extensions.
#[test]
fn server_certificate_may_have_x509_version_1() {
    let folder = tempfile::tempdir().expect("a folder");
    let postgres =
        Postgres::builder().tls(pem!("v1-server.pem"), pem!("v1-server.key")).start().expect("Postgres starts");
    let ca = folder.path().join("ca.pem");
    let gateway = |mode: &str, host: &str, authority: &str| {
        std::fs::write(&ca, authority).expect("the folder can be written");
        IniGateway::start(&format!(
            "[databases]\nshop = host={host} port={} dbname=postgres user=postgres\n[pgbouncer]\n\
             server_tls_sslmode = {mode}\nserver_tls_ca_file = {}\nquery_wait_timeout = 1\n",
            postgres.port(),
            ca.display()
        ))
    };
    for mode in ["prefer", "require", "verify-ca", "verify-full"] {
        let gateway = gateway(mode, "localhost", pem!("v1-ca.pem"));
        assert_eq!(gateway.client("shop").value(ENCRYPTED), "t", "{mode}");
        assert!(!gateway.log().contains("clear text"), "{}", gateway.log());
    }
    // Another authority, and another name than the certificate's.
    for (host, authority) in [("localhost", pem!("v1-root.pem")), ("127.0.0.1", pem!("v1-ca.pem"))] {
        let gateway = gateway("verify-full", host, authority);
        assert_eq!(gateway.startup("shop").refused().message, "query_wait_timeout");
        gateway.wait_for_log("certificate verify failed");
    }
}

/// Certificate of the gateway, of its client and of the authority; the client is another gateway.
#[test]
fn client_certificate_may_have_x509_version_1() {
    let files = [
        ("users.txt", "\"client\" \"\"\n\"localhost\" \"\"\n"),
        ("ca.pem", pem!("v1-ca.pem")),
        ("server.pem", pem!("v1-server.pem")),
        ("server.key", pem!("v1-server.key")),
        ("client.pem", pem!("v1-client.pem")),
        ("client.key", pem!("v1-client.key")),
    ];
    let served = IniGateway::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\nauth_type = cert\n\
              auth_file = $DIR/users.txt\nclient_tls_sslmode = verify-full\nclient_tls_ca_file = $DIR/ca.pem\n\
              client_tls_cert_file = $DIR/server.pem\nclient_tls_key_file = $DIR/server.key\n",
        files: &files,
        ..Setup::default()
    });
    let login = |user: &str, identity: &str| {
        let ini = format!(
            "[databases]\nshop = host=localhost port={} user={user}\n[pgbouncer]\nserver_tls_sslmode = verify-full\n\
             server_tls_ca_file = $DIR/ca.pem\nserver_tls_cert_file = $DIR/{identity}.pem\n\
             server_tls_key_file = $DIR/{identity}.key\n",
            served.port()
        );
        let gateway = IniGateway::with(&Setup { ini: &ini, files: &files, ..Setup::default() });
        let outcome = gateway.startup("shop").try_connect().map(|mut client| client.value("select 42"));
        outcome.map_err(|error| error.to_string())
    };
    assert_eq!(login("client", "client"), Ok("42".to_owned()));
    assert_eq!(login("localhost", "server"), Ok("42".to_owned()));
    assert!(login("client", "server").is_err(), "the name of the certificate is another one");
}

#[test]
fn unusable_key_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &[u8]| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("the folder can be written");
        file.display().to_string()
    };
    let check = |cert: &[u8], key: &[u8]| {
        let (cert, key) = (write("cert.pem", cert), write("key.pem", key));
        let listen = format!("[listen]\ntls = \"allow\"\ntls_cert = \"{cert}\"\ntls_key = \"{key}\"\n");
        let file = write("tidegate.toml", format!("{listen}[databases.shop]\nhost = \"db\"\n").as_bytes());
        let checked = output(&["check", &file]);
        (checked.status.success(), String::from_utf8_lossy(&checked.stdout).into_owned())
    };
    let good = (pem!("rsa-2048.pem").as_bytes(), pem!("rsa-2048.key").as_bytes());
    for (cert, key, reason) in [
        (pem!("p521.pem"), pem!("p521.key"), "a key of kind ECDSA over P-521 is not supported"),
        (pem!("rsa-1024.pem"), pem!("rsa-1024.key"), "a key of kind RSA of 1024 bits is not supported"),
        (pem!("rsa-pss.pem"), pem!("rsa-pss.key"), "a key of kind RSASSA-PSS is not supported"),
        (pem!("rsa-2048.pem"), pem!("encrypted.key"), "the key is encrypted"),
        (pem!("rsa-2048.pem"), pem!("rsa-2048.pem"), "holds a certificate and no key"),
    ] {
        let (is_good, report) = check(cert.as_bytes(), key.as_bytes());
        assert!(!is_good && report.contains(reason), "{reason}: {report}");
    }
    let authority = Authority::new();
    let other = authority.issue(&["localhost"]);
    let other = std::fs::read(&other.key).expect("the file was written");
    let (is_good, report) = check(good.0, &other);
    assert!(!is_good && report.contains("it is not the key of the certificate"), "{report}");
    let marked = |text: &[u8]| [b"\xef\xbb\xbf", text].concat();
    assert!(check(&marked(good.0), &marked(good.1)).0, "a byte order mark was rejected");
}
