//! Certificates of clients, SCRAM that is bound to that of the gateway, ciphers: the keys and rules around TLS.

use tidegate_sandbox::Postgres;
use tidegate_testkit::{Authority, Bound, Frames, Startup, TlsMode, eventually};

use crate::bouncer::{Bouncer, Setup, output, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres user=postgres\n";

/// Whether the server is spoken to over TLS.
const ENCRYPTED: &str = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";

/// The keys of a gateway with a certificate for localhost that knows clients by the same authority.
fn tls_keys(authority: &Authority, mode: &str) -> String {
    let own = authority.issue(&["localhost"]);
    format!(
        "client_tls_sslmode = {mode}\nclient_tls_cert_file = {}\nclient_tls_key_file = {}\nclient_tls_ca_file = {}\n",
        own.cert.display(),
        own.key.display(),
        authority.ca().display(),
    )
}

/// A login over TLS as this user, with a certificate of this name if there is one.
fn login(bouncer: &Bouncer, authority: &Authority, user: &str, name: Option<&str>) -> Startup {
    let ca = authority.ca();
    let tls = match name {
        Some(name) => TlsMode::Identified { ca, identity: authority.issue(&[name]) },
        None => TlsMode::Request(ca),
    };
    bouncer.startup("shop").user(user).tls(tls)
}

/// What all are told whose certificate does not do.
const REFUSED: &str = "certificate authentication failed";

#[test]
fn a_certificate_is_proof_enough() {
    let authority = Authority::new();
    let ini =
        format!("{SHOP}[pgbouncer]\nauth_type = cert\nauth_file = $DIR/users\n{}", tls_keys(&authority, "verify-full"));
    let users = "\"app\" \"\"\n\"other\" \"\"\n";
    let bouncer = Bouncer::with(&Setup { ini: &ini, files: &[("users", users)], ..Setup::default() });
    let login = |user, name| login(&bouncer, &authority, user, name);
    assert_eq!(login("app", Some("app")).connect().value("select current_user"), "postgres");
    assert_eq!(login("other", Some("app")).refused().message, REFUSED);
    assert_eq!(login("stranger", Some("stranger")).refused().message, REFUSED);
    assert!(login("app", None).try_connect().is_err(), "without a certificate there is no TLS");
    let another = Authority::new();
    let unknown = TlsMode::Identified { ca: authority.ca(), identity: another.issue(&["app"]) };
    assert!(bouncer.startup("shop").user("app").tls(unknown).try_connect().is_err(), "of an unknown authority");
    assert_eq!(bouncer.startup("shop").user("app").refused().severity, "FATAL");
    // Over the unix socket there is no certificate.
    assert_eq!(bouncer.unix("app", "shop").refused().message, REFUSED);
    // What was wrong is for the log alone.
    for (who, what) in [("other@127.0.0.1:", "TLS certificate name mismatch"), ("app@unix(", "TLS connection required")]
    {
        let is_told = |line: &str| line.contains(" ERROR C-") && line.contains(who) && line.ends_with(what);
        eventually(what, || bouncer.log().lines().any(is_told));
    }
}

/// As PgBouncer: the name of the certificate has to be one that `auth_file` or `auth_query` has.
#[test]
fn a_certificate_of_a_user_with_only_settings_is_refused() {
    let authority = Authority::new();
    let keys = tls_keys(&authority, "verify-full");
    for method in ["auth_type = cert\n", "auth_type = hba\nauth_hba_file = $DIR/hba\n"] {
        let ini = format!(
            "{SHOP}[users]\nlimited = max_user_connections=5\napp = pool_size=2\n\
             [pgbouncer]\n{method}auth_file = $DIR/users\n{keys}"
        );
        let files = [("users", "\"app\" \"\"\n"), ("hba", "hostssl all all all cert\n")];
        let bouncer = Bouncer::with(&Setup { ini: &ini, files: &files, ..Setup::default() });
        login(&bouncer, &authority, "app", Some("app")).connect().ok("select 1");
        assert_eq!(login(&bouncer, &authority, "limited", Some("limited")).refused().message, REFUSED, "{method}");
    }
}

#[test]
fn rules_ask_for_certificates_beside_passwords() {
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
    let bouncer = Bouncer::with(&Setup { ini: &ini, files, ..Setup::default() });
    let login = |user, name| login(&bouncer, &authority, user, name).password("secret");
    login("mapped", Some("mapped.example.com")).connect().ok("select 1");
    assert_eq!(login("mapped", Some("other.example.com")).refused().message, REFUSED);
    assert_eq!(login("mapped", Some("mapped")).refused().message, REFUSED);
    assert_eq!(login("mapped", None).refused().message, REFUSED);
    // Its whole name is not that of the user.
    assert_eq!(login("named", Some("named")).refused().message, REFUSED);
    login("both", Some("both")).connect().ok("select 1");
    assert_eq!(login("both", Some("both")).password("wrong").refused().code, "28P01");
    assert_eq!(login("both", Some("any")).refused().message, REFUSED);
    login("any", Some("whatever")).connect().ok("select 1");
    assert_eq!(login("any", None).refused().message, REFUSED);
    // No rule asks this one for anything but its password, with TLS or without.
    login("plain", None).connect().ok("select 1");
    login("plain", None).bound(Bound::ToCertificate).connect().ok("select 1");
    bouncer.startup("shop").user("plain").password("secret").connect().ok("select 1");
}

#[test]
fn verifiers_have_as_many_iterations_as_they_are_told_to() {
    let ini =
        format!("{SHOP}[pgbouncer]\nauth_type = scram-sha-256\nauth_file = $DIR/users\nscram_iterations = 5000\n");
    let bouncer = Bouncer::with(&Setup { ini: &ini, files: &[("users", "\"app\" \"secret\"\n")], ..Setup::default() });
    bouncer.startup("shop").user("app").password("secret").connect().ok("select 1");
    for user in ["app", "nobody_here"] {
        let startup = bouncer.startup("shop").user(user);
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
fn lists_of_ciphers_choose_among_those_that_there_are() {
    let authority = Authority::new();
    let keys = tls_keys(&authority, "require");
    let ini = format!(
        "{SHOP}[pgbouncer]\n{keys}client_tls_protocols = tlsv1.2\nclient_tls_ecdhcurve = secp384r1\n\
         client_tls_ciphers = DHE-RSA-AES256-SHA:ECDHE+AESGCM:!AES256\n\
         server_tls_sslmode = require\nserver_tls13_ciphers = TLS_AES_128_GCM_SHA256\n"
    );
    let bouncer = Bouncer::start(&ini);
    let mut client = login(&bouncer, &authority, "app", None).connect();
    let towards = "select version || '/' || cipher from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(client.value(towards), "TLSv1.3/TLS_AES_128_GCM_SHA256");
    let console = login(&bouncer, &authority, "postgres", None).database("pgbouncer");
    let clients = console.connect().show("CLIENTS");
    let suite = "TLSv1.2/ECDHE-ECDSA-AES128-GCM-SHA256";
    assert!(clients.iter().any(|row| row["user"] == "app" && row["tls"] == suite), "{clients:?}");
    assert!(bouncer.log().contains("there is no DHE-RSA-AES256-SHA here"), "{}", bouncer.log());
}

#[test]
fn what_leaves_nothing_is_told_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgbouncer.ini");
    for (line, said) in [
        ("client_tls_ciphers = AES128-SHA:RC4", "leaves no cipher suite"),
        ("client_tls13_ciphers = TLS_AES_128_CCM_SHA256", "leaves no cipher suite"),
        ("client_tls_protocols = tlsv1.1", "only TLS 1.2 and 1.3"),
        ("client_tls_ecdhcurve = none", "no curve"),
        ("server_tls_ciphers = !ALL", "leaves no cipher suite"),
        ("auth_type = cert", "needs certificates of clients"),
        ("client_tls_sslmode = verify-full", "needs the authorities of clients"),
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
        assert!(!checked.status.success() && out.contains("pgbouncer.ini:4:") && out.contains(said), "{line}: {out}");
    }
}

/// As PgBouncer, which looks at the authorities in modes that verify, and there alone.
#[test]
fn authorities_that_are_out_of_date_do_no_harm_where_nothing_is_verified() {
    let stale = Authority::new();
    for (mode, connects) in [("require", true), ("prefer", true), ("verify-ca", false)] {
        let bouncer = Bouncer::start(&format!(
            "{SHOP}[pgbouncer]\nserver_tls_sslmode = {mode}\nserver_tls_ca_file = {}\nquery_wait_timeout = 1\n",
            stale.ca().display()
        ));
        match connects {
            true => assert_eq!(bouncer.client("shop").value(ENCRYPTED), "t", "{mode}"),
            false => assert!(bouncer.startup("shop").try_connect().is_err(), "{mode}"),
        }
    }
}

/// What `openssl req -x509` makes: no alternative names, and the certificate that clients are given is the server's own.
#[test]
fn a_certificate_that_is_its_own_authority_is_trusted_by_whoever_names_it() {
    let folder = Authority::new();
    let local = folder.own_authority("localhost");
    let read = |path: &std::path::Path| std::fs::read_to_string(path).expect("it was written");
    let postgres = Postgres::builder().tls(&read(&local.cert), &read(&local.key)).start().expect("it starts");
    let other = folder.own_authority("other");
    for (host, mode, ca, is_good) in [
        ("localhost", "verify-full", &local, true),
        ("127.0.0.1", "verify-ca", &local, true),
        ("127.0.0.1", "verify-full", &local, false),
        ("localhost", "verify-ca", &other, false),
    ] {
        let bouncer = Bouncer::start(&format!(
            "[databases]\nshop = host={host} port={} dbname=postgres user=postgres\n[pgbouncer]\n\
             server_tls_sslmode = {mode}\nserver_tls_ca_file = {}\n",
            postgres.port(),
            ca.cert.display()
        ));
        match is_good {
            true => assert_eq!(bouncer.client("shop").value(ENCRYPTED), "t", "{host} {mode}"),
            false => assert!(bouncer.startup("shop").try_connect().is_err(), "{host} {mode}"),
        }
    }
}

#[test]
fn a_common_name_counts_where_there_is_no_other() {
    let authority = Authority::new();
    let read = |path: &std::path::Path| std::fs::read_to_string(path).expect("it was written");
    for (identity, is_good) in
        [(authority.issue_common_name("localhost"), true), (authority.issue_common_name("elsewhere"), false)]
    {
        let postgres = Postgres::builder().tls(&read(&identity.cert), &read(&identity.key)).start().expect("it starts");
        let bouncer = Bouncer::start(&format!(
            "[databases]\nshop = host=localhost port={} dbname=postgres user=postgres\n[pgbouncer]\n\
             server_tls_sslmode = verify-full\nserver_tls_ca_file = {}\n",
            postgres.port(),
            authority.ca().display()
        ));
        match is_good {
            true => assert_eq!(bouncer.client("shop").value(ENCRYPTED), "t"),
            false => assert!(bouncer.startup("shop").try_connect().is_err(), "of another host"),
        }
    }
}

#[test]
fn the_gateway_shows_servers_a_certificate() {
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
    assert_eq!(Bouncer::start(&shown).client("shop").value("select current_user"), role);
    let without = Bouncer::start(&format!("{shop}query_wait_timeout = 1\n"));
    assert!(without.startup("shop").try_connect().is_err());
}

/// Certificates of keys that the testkit cannot make: of OpenSSL, for localhost, for a hundred years.
macro_rules! pem {
    ($name:literal) => {
        include_str!(concat!("certificates/", $name))
    };
}

/// As in libpq, `prefer` falls back to clear text where TLS fails. The log says so, and names the reason.
#[test]
fn a_fallback_to_clear_text_is_logged_with_its_reason() {
    let (cert, key, kind) = (pem!("rsa-1024.pem"), pem!("rsa-1024.key"), "RSA of 1024 bits");
    let postgres = Postgres::builder().tls(cert, key).start().expect("it starts");
    let ini = |mode: &str| {
        format!(
            "[databases]\nshop = host=localhost port={} dbname=postgres user=postgres\n[pgbouncer]\n\
             server_tls_sslmode = {mode}\nquery_wait_timeout = 1\n",
            postgres.port()
        )
    };
    let bouncer = Bouncer::start(&ini("prefer"));
    assert_eq!(bouncer.client("shop").value(ENCRYPTED), "f", "{kind}");
    bouncer.unix("pgbouncer", "pgbouncer").connect().ok("RECONNECT");
    bouncer.client("shop").ok("select 1");
    let log = bouncer.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("clear text") && line.contains(kind)).collect();
    assert!(told.len() == 1 && told[0].contains("WARNING"), "{log}");
    let refused = Bouncer::start(&ini("require")).startup("shop").refused();
    assert!(refused.message.contains(kind), "{refused:?}");
}

/// Keys that rustls does not verify by itself: for RSASSA-PSS alone, and over P-521, a server's own and an authority's.
#[test]
fn a_server_may_have_a_key_for_rsassa_pss_or_over_p521() {
    let folder = tempfile::tempdir().expect("a folder");
    for (cert, key, authority) in [
        (pem!("rsa-pss.pem"), pem!("rsa-pss.key"), pem!("rsa-pss.pem")),
        (pem!("p521.pem"), pem!("p521.key"), pem!("p521.pem")),
        (pem!("by-p521.pem"), pem!("by-p521.key"), pem!("ca-p521.pem")),
    ] {
        let postgres = Postgres::builder().tls(cert, key).start().expect("Postgres starts with it");
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, authority).expect("the folder can be written");
        for mode in ["prefer", "require", "verify-full"] {
            let bouncer = Bouncer::start(&format!(
                "[databases]\nshop = host=localhost port={} dbname=postgres user=postgres\n[pgbouncer]\n\
                 server_tls_sslmode = {mode}\nserver_tls_ca_file = {}\n",
                postgres.port(),
                ca.display()
            ));
            assert_eq!(bouncer.client("shop").value(ENCRYPTED), "t", "{mode}");
            assert!(!bouncer.log().contains("clear text"), "{}", bouncer.log());
        }
    }
}

#[test]
fn a_key_that_cannot_be_used_is_named() {
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
        (pem!("p521.pem"), pem!("p521.key"), "its kind, ECDSA over P-521, cannot be used"),
        (pem!("rsa-1024.pem"), pem!("rsa-1024.key"), "its kind, RSA of 1024 bits, cannot be used"),
        (pem!("rsa-pss.pem"), pem!("rsa-pss.key"), "its kind, RSASSA-PSS, cannot be used"),
        (pem!("rsa-2048.pem"), pem!("encrypted.key"), "the key is encrypted"),
        (pem!("rsa-2048.pem"), pem!("rsa-2048.pem"), "holds a certificate, and no key"),
    ] {
        let (is_good, said) = check(cert.as_bytes(), key.as_bytes());
        assert!(!is_good && said.contains(reason), "{reason}: {said}");
    }
    let authority = Authority::new();
    let another = authority.issue(&["localhost"]);
    let another = std::fs::read(&another.key).expect("it was written");
    let (is_good, said) = check(good.0, &another);
    assert!(!is_good && said.contains("it is not the key of the certificate"), "{said}");
    let marked = |text: &[u8]| [b"\xef\xbb\xbf", text].concat();
    assert!(check(&marked(good.0), &marked(good.1)).0, "a byte order mark is no part of the file");
}
