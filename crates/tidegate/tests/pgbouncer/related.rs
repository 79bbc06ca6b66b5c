//! SET and RELOAD of keys that only make sense together: a certificate and its key, a mode and its files, users and their file.

use std::path::Path;

use tidegate_sandbox::Postgres;
use tidegate_testkit::{Authority, Identity, Startup, TlsMode};

use crate::{
    ini_gateway::{IniGateway, Setup},
    tls::ENCRYPTED,
};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres user=postgres\n";

const NOT_YET: &str = "TLS settings could not be applied, still using old configuration";

/// Runs a command of the console, and returns its notice.
#[track_caller]
fn notice(gateway: &IniGateway, command: &str) -> Option<String> {
    let outcome = gateway.console().ok(command);
    outcome.messages.iter().find(|message| message.tag == b'N').map(|message| message.error().message)
}

fn set(key: &str, file: &Path) -> String {
    format!("SET {key} = '{}'", file.display())
}

fn over_tls(gateway: &IniGateway, authority: &Authority) -> Startup {
    gateway.startup("shop").tls(TlsMode::Request(authority.ca()))
}

#[test]
fn tls_is_served_after_its_last_set() {
    let (first, second) = (Authority::new(), Authority::new());
    let (one, other): (Identity, Identity) = (first.issue(&["localhost"]), second.issue(&["localhost"]));
    let gateway = IniGateway::start(SHOP);
    assert_eq!(notice(&gateway, &set("client_tls_key_file", &one.key)), None);
    assert_eq!(gateway.setting("client_tls_key_file"), one.key.display().to_string());
    assert_eq!(notice(&gateway, "SET client_tls_sslmode = require").as_deref(), Some(NOT_YET));
    gateway.client("shop").ok("select 1");
    assert_eq!(notice(&gateway, &set("client_tls_cert_file", &one.cert)), None);
    over_tls(&gateway, &first).connect().ok("select 1");
    assert_eq!(gateway.startup("shop").refused().severity, "FATAL");
    // A key without its certificate leaves the old ones in force.
    let mut admin = gateway.startup("pgbouncer").tls(TlsMode::Request(first.ca())).connect();
    let outcome = admin.ok(&set("client_tls_key_file", &other.key));
    assert!(outcome.messages.iter().any(|message| message.tag == b'N' && message.error().message == NOT_YET));
    over_tls(&gateway, &first).connect().ok("select 1");
    let outcome = admin.ok(&set("client_tls_cert_file", &other.cert));
    assert!(outcome.messages.iter().all(|message| message.tag != b'N'), "{outcome:?}");
    over_tls(&gateway, &second).connect().ok("select 1");
    // The file has no settings of TLS.
    admin.ok("RELOAD");
    gateway.client("shop").ok("select 1");
}

#[test]
fn certificate_and_key_are_replaced_by_two_reloads() {
    let (first, second) = (Authority::new(), Authority::new());
    let (one, other) = (first.issue(&["localhost"]), second.issue(&["localhost"]));
    let ini = |key: &Identity, cert: &Identity| {
        format!(
            "{SHOP}[pgbouncer]\nclient_tls_sslmode = allow\nclient_tls_key_file = {}\nclient_tls_cert_file = {}\n\
             default_pool_size = 7\n",
            key.key.display(),
            cert.cert.display()
        )
    };
    let gateway = IniGateway::start(&ini(&one, &one));
    gateway.set_config(&ini(&other, &one).replace("= 7", "= 8"));
    assert_eq!(notice(&gateway, "RELOAD").as_deref(), Some(NOT_YET));
    assert_eq!(gateway.setting("default_pool_size"), "8", "the other changes are applied");
    over_tls(&gateway, &first).connect().ok("select 1");
    gateway.set_config(&ini(&other, &other));
    assert_eq!(notice(&gateway, "RELOAD"), None);
    over_tls(&gateway, &second).connect().ok("select 1");
}

#[test]
fn tls_to_servers_is_changed_by_set() {
    let authority = Authority::new();
    let identity = authority.issue(&["localhost"]);
    let text = |file: &Path| std::fs::read_to_string(file).expect("the file was written");
    let postgres =
        Postgres::builder().tls(&text(&identity.cert), &text(&identity.key)).start().expect("Postgres starts");
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = host=localhost port={} dbname=postgres user=postgres\n[pgbouncer]\n\
         server_tls_sslmode = disable\n",
        postgres.port()
    ));
    let mut client = gateway.client("shop");
    assert_eq!(client.value(ENCRYPTED), "f");
    let mut console = gateway.console();
    for (setting, encrypted) in [
        ("server_tls_sslmode = require".to_owned(), "t"),
        (format!("server_tls_ca_file = '{}'", authority.ca().display()), "t"),
        ("server_tls_sslmode = 'verify-full'".to_owned(), "t"),
        ("server_tls_sslmode = disable".to_owned(), "f"),
    ] {
        console.ok(&format!("SET {setting}"));
        console.ok("RECONNECT");
        assert_eq!(client.value(ENCRYPTED), encrypted, "{setting}");
    }
    assert_eq!(gateway.setting("server_tls_ca_file"), authority.ca().display().to_string());
    assert_eq!(console.query("SET server_tls_sslmode = banana").code(), "08P01");
    let settings = gateway.show("CONFIG");
    let is_changeable = |key: &str| settings.iter().any(|row| row["key"] == key && row["changeable"] == "yes");
    for key in ["server_tls_sslmode", "server_tls_ca_file", "client_tls_key_file", "auth_file", "auth_hba_file"] {
        assert!(is_changeable(key), "{key}");
    }
}

#[test]
fn auth_file_and_hba_file_are_changed_by_set() {
    let gateway = IniGateway::with(&Setup {
        ini: &format!("{SHOP}[pgbouncer]\nauth_type = md5\nauth_file = $DIR/users.txt\n"),
        files: &[
            ("users.txt", "\"postgres\" \"admin\"\n"),
            ("other.txt", "\"postgres\" \"admin\"\n\"new\" \"word\"\n"),
            ("broken.txt", "\"postgres\" \"c4nary\n"),
            ("hba.conf", "host all postgres all md5\nhost all all all reject\n"),
        ],
        ..Setup::default()
    });
    let file = |name: &str| gateway.file(name);
    let login = |user: &str, password: &str| gateway.startup("shop").user(user).password(password);
    let mut console = gateway.startup("pgbouncer").password("admin").connect();
    login("new", "word").refused();
    for name in ["broken.txt", "missing.txt"] {
        let error = console.query(&set("auth_file", &file(name))).error.expect("the file cannot be used");
        assert!(error.code == "08P01" && !format!("{error:?}").contains("c4nary"), "{error:?}");
    }
    console.ok(&set("auth_file", &file("other.txt")));
    login("new", "word").connect().ok("select 1");
    console.ok(&set("auth_hba_file", &file("hba.conf")));
    login("new", "word").connect().ok("select 1");
    console.ok("SET auth_type = hba");
    login("new", "word").refused();
    login("postgres", "admin").connect().ok("select 1");
    console.ok("RELOAD");
    let shown = console.show("CONFIG");
    let auth_type = shown.iter().find(|row| row["key"] == "auth_type").map(|row| row["value"].clone());
    assert_eq!(auth_type.as_deref(), Some("md5"));
    login("new", "word").refused();
}
