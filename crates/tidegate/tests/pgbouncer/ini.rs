//! The file: valid and invalid lines, keys without effect, and reloads.

use std::collections::BTreeSet;

use tidegate_sandbox::Postgres;
use tidegate_testkit::{Frames, Signal, eventually};

use crate::ini_gateway::{IniGateway, Setup, output, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres\n";

#[test]
fn complete_file_works() {
    let gateway = IniGateway::with(&Setup {
        ini: "%include $DIR/databases.ini\n[users]\npostgres = pool_mode=Session\n[pgbouncer]\nauth_type = MD5\n\
              auth_file = $DIR/userlist.txt\n",
        files: &[
            ("databases.ini", "[databases]\n\"my shop\" = $PG dbname=postgres user=postgres pool_size=3\n* = $PG\n"),
            ("userlist.txt", "\"app\" \"sec\"\"ret\"\n\"postgres\" \"pw\"\n"),
        ],
        ..Setup::default()
    });
    let login = |database: &str| gateway.startup(database).user("app").password("sec\"ret");
    assert_eq!(login("my shop").connect().value("select current_user"), "postgres");
    assert_eq!(gateway.startup("postgres").password("pw").connect().value("select current_database()"), "postgres");
    assert_eq!(login("my shop").password("wrong").refused().code, "28P01");
    let mut console = gateway.startup("pgbouncer").password("pw").connect();
    let databases = console.ok("SHOW DATABASES").rows;
    let shop = databases.iter().find(|row| row[0] == "my shop").expect("the row exists");
    assert_eq!((shop[3].as_str(), shop[4].as_str(), shop[5].as_str()), ("postgres", "postgres", "3"));
    let pools = console.ok("SHOW POOLS").rows;
    assert!(pools.iter().any(|row| row[0] == "my shop" && row[15] == "session"), "{pools:?}");
}

#[test]
fn unknown_key_is_reported_with_line_and_suggestion() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgbouncer.ini");
    std::fs::write(&file, "[databases]\nx = host=db poolsize=3\n[pgbouncer]\nlisten_adr = *\n").expect("a file");
    let file = file.display().to_string();
    let started = output(&[&file]);
    assert!(!started.status.success());
    let stderr = String::from_utf8_lossy(&started.stderr).into_owned();
    for text in ["pgbouncer.ini:4:1", "`listen_addr`", "pgbouncer.ini:2:", "`pool_size`"] {
        assert!(stderr.contains(text), "{text} is not in\n{stderr}");
    }
    let checked = output(&["check", &file]);
    assert!(!checked.status.success() && String::from_utf8_lossy(&checked.stdout).contains("2 errors"));
}

#[test]
fn key_without_effect_is_reported_once() {
    let without_effect = [
        "client_tls_dheparams = auto",
        "conffile = /nowhere",
        "job_name = x",
        "pkt_buf = 8192",
        "pool_idle_timeout = 5",
        "sbuf_loopcnt = 3",
        "service_name = x",
        "tcp_defer_accept = 0",
    ];
    let gateway =
        IniGateway::start(&format!("{SHOP}[pgbouncer]\n{}\nmax_client_conn = 50\n", without_effect.join("\n")));
    gateway.client("shop").ok("select 1");
    let log = gateway.log();
    for line in without_effect {
        let key = line.split(' ').next().unwrap_or_default();
        assert_eq!(log.matches(&format!("`{key}` has no effect")).count(), 1, "{key}: {log}");
    }
    assert!(!log.contains("`max_client_conn` has no effect"), "{log}");
    assert_eq!(gateway.setting("max_client_conn"), "50");
}

#[test]
fn defaults_are_those_of_pgbouncer() {
    let gateway = IniGateway::start(SHOP);
    for (key, value) in [
        ("max_client_conn", "100"),
        ("default_pool_size", "20"),
        ("max_prepared_statements", "200"),
        ("query_wait_timeout", "120"),
        ("query_wait_notify", "5"),
        ("server_login_retry", "15"),
        // The delay does not grow.
        ("timeouts.connect_retry_max", "0"),
        ("server_reset_query", "DISCARD ALL"),
    ] {
        assert_eq!(gateway.setting(key), value, "{key}");
    }
}

#[test]
fn converted_file_has_the_same_settings() {
    let gateway = IniGateway::with(&Setup {
        ini: "[databases]\n\"my shop\" = $PG dbname=postgres pool_size=3 connect_query='select ''a b''' timezone=UTC\n\
              * = $PG reserve_pool=2 max_db_connections=9\n[users]\napp = query_timeout=2.5 max_user_connections=4\n\
              [pgbouncer]\nauth_type = scram-sha-256\nauth_file = $DIR/userlist.txt\nserver_lifetime = 0\n\
              ignore_startup_parameters = extra_float_digits, options\nmin_pool_size = 1\nlog_stats = 0\n\
              scram_iterations = 5000\nserver_tls_ciphers = ECDHE+AESGCM\nserver_tls_protocols = tlsv1.2\n",
        files: &[("userlist.txt", "\"app\" \"secret\"\n\"postgres\" \"p\\w\"\n")],
        ..Setup::default()
    });
    let show = |gateway: &IniGateway| {
        let mut console = gateway.startup("pgbouncer").password("p\\w").connect();
        let mut rows = console.ok("SHOW CONFIG").rows;
        // These keys name the files, which differ.
        rows.retain(|row| row.first().is_none_or(|key| key != "conffile" && key != "auth_file"));
        // A tidegate.toml sets TLS to servers per database, so that SET cannot change it.
        for row in rows.iter_mut().filter(|row| row[0].starts_with("server_tls") || row[0].starts_with("auth_")) {
            row.truncate(3);
        }
        rows
    };
    let before = show(&gateway);
    let converted = output(&["convert", &gateway.file("pgbouncer.ini").display().to_string()]);
    assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
    let converted = String::from_utf8(converted.stdout).expect("TOML is text");
    let other = |port: u16| converted.replace(&gateway.port().to_string(), &port.to_string());
    let second = IniGateway::with_toml(other);
    let mut after = show(&second);
    // The two gateways have different ports.
    for value in after.iter_mut().flatten() {
        *value = value.replace(&second.port().to_string(), &gateway.port().to_string());
    }
    let different: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
    assert!(different.is_empty() && before.len() == after.len(), "{different:#?}");
}

/// A later line with the same name replaces the earlier one completely, for example in a file that overrides an
/// included one.
#[test]
fn later_line_of_the_same_name_replaces_the_earlier() {
    let gateway = IniGateway::with(&Setup {
        ini: "%include $DIR/base.ini\n[databases]\nshop = $PG dbname=postgres\n\
              [users]\npostgres = max_user_connections=7\n",
        files: &[(
            "base.ini",
            "[databases]\nshop = $PG dbname=template1 pool_size=3 connect_query='select 1/0'\n\
             [users]\npostgres = pool_mode=transaction\n",
        )],
        ..Setup::default()
    });
    gateway.client("shop").ok("select 1");
    let mut console = gateway.console();
    let databases = console.ok("SHOW DATABASES").rows;
    let shop = databases.iter().find(|row| row[0] == "shop").expect("the row exists");
    assert_eq!((shop[3].as_str(), shop[5].as_str()), ("postgres", "20"));
    let users = console.ok("SHOW USERS").rows;
    let user = users.iter().find(|row| row[0] == "postgres").expect("the row exists");
    assert_eq!((user[3].as_str(), user[4].as_str()), ("\\N", "7"), "{user:?}");
}

/// The time must not be quadratic in the number of entries, because signals are not handled meanwhile.
#[test]
fn many_users_and_databases_are_read() {
    const MANY: usize = 40_000;
    let folder = tempfile::tempdir().expect("a folder");
    let (ini, list) = (folder.path().join("pgbouncer.ini"), folder.path().join("userlist.txt"));
    let users: String = (0..MANY).map(|number| format!("\"user{number:05}\" \"secret\"\n")).collect();
    let databases: String = (0..MANY / 2).map(|number| format!("db{number:05} = host=10.0.0.1\n")).collect();
    std::fs::write(&list, users).expect("a file");
    let text = format!("[databases]\n{databases}[pgbouncer]\nauth_file = {}\n", list.display());
    std::fs::write(&ini, text).expect("a file");
    let checked = output(&["check", &ini.display().to_string()]);
    let report = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(report.contains("good: 20000 databases, 40000 users"), "{report}");
}

/// A limit of 16 MiB on the file would reject lists of some hundred thousand users.
#[test]
fn large_userlist_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ini, list) = (folder.path().join("pgbouncer.ini"), folder.path().join("userlist.txt"));
    let remark = format!("; {}\n", "x".repeat(1 << 20)).repeat(20);
    tidegate_testkit::write_private(&list, &format!("{remark}\"app\" \"secret\"\n"));
    let text = format!("[databases]\nshop = host=127.0.0.1\n[pgbouncer]\nauth_file = {}\n", list.display());
    std::fs::write(&ini, text).expect("a file");
    let checked = output(&["check", &ini.display().to_string()]);
    let report = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(report.contains("good: 1 database, 1 user, 0 warnings"), "{report}");
}

#[test]
fn reload_reads_the_file_again() {
    let gateway = IniGateway::start(SHOP);
    let mut client = gateway.client("shop");
    client.ok("select 1");
    gateway.set_config(&format!("{SHOP}other = $PG dbname=postgres\n[pgbouncer]\ndefault_pool_size = 7\n"));
    gateway.signal(Signal::HUP);
    eventually("the new size is used", || gateway.setting("default_pool_size") == "7");
    gateway.client("other").ok("select 1");
    gateway.set_config(&format!("{SHOP}[pgbouncer]\ndefault_pool_siz = 8\n"));
    assert_eq!(gateway.console().query("RELOAD").code(), "08P01");
    assert_eq!(gateway.setting("default_pool_size"), "7");
    client.ok("select 1");
}

/// Reading a large userlist takes seconds. The test uses a pipe, which blocks until its writer is done.
#[test]
fn signals_are_handled_while_a_reload_reads_files() {
    let gateway = IniGateway::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\nauth_type = md5\nauth_file = $DIR/users.txt\n",
        files: &[("users.txt", "\"app\" \"old\"\n")],
        ..Setup::default()
    });
    let login = |password| gateway.startup("shop").user("app").password(password);
    login("old").connect().ok("select 1");
    let list = gateway.file("users.txt");
    std::fs::remove_file(&list).expect("the list exists");
    let made = std::process::Command::new("mkfifo").arg(&list).status().expect("mkfifo is installed");
    assert!(made.success());
    gateway.signal(Signal::HUP);
    gateway.wait_for_log("re-reading config");
    gateway.signal(Signal::USR1);
    gateway.wait_for_log("paused by a signal");
    gateway.signal(Signal::USR2);
    gateway.wait_for_log("resumed by a signal");
    login("old").connect().ok("select 1");
    std::fs::write(&list, "\"app\" \"new\"\n").expect("the reload reads the pipe");
    gateway.wait_for_log("configuration reloaded");
    login("new").connect().ok("select 1");
}

/// The file of the Debian package has neither databases nor users. The gateway runs, and a reload adds them.
#[test]
fn file_without_databases_or_users_is_valid() {
    let auth = "[pgbouncer]\nauth_type = md5\nauth_file = $DIR/users.txt\n";
    let gateway = IniGateway::start(&format!("[databases]\n[users]\n{auth}"));
    gateway.wait_for_log("there is no database");
    gateway.wait_for_log("auth_file: cannot read");
    assert!(gateway.startup("shop").user("app").password("secret").try_connect().is_err());
    std::fs::write(gateway.file("users.txt"), "\"app\" \"secret\"\n").expect("the folder can be written");
    gateway.set_config(&format!("[databases]\nshop = $PG dbname=postgres user=postgres\n{auth}"));
    gateway.signal(Signal::HUP);
    let login = || gateway.startup("shop").user("app").password("secret");
    eventually("the reload is done", || login().try_connect().is_ok());
    // The file may be missing for a moment while it is replaced, which must not lock users out.
    std::fs::remove_file(gateway.file("users.txt")).expect("the list exists");
    gateway.signal(Signal::HUP);
    gateway.wait_for_log("all known users would be locked out");
    login().connect().ok("select 1");
}

#[test]
fn connection_keys_take_effect() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1 connect_query='set statement_timeout = 54321' \
         application_name=gate timezone=Asia/Tokyo datestyle=German client_encoding=LATIN1\n\
         [pgbouncer]\napplication_name_add_host = 1\nignore_startup_parameters = extra_float_digits, made_up\n\
         server_reset_query = select 1\n",
    );
    let startup = gateway.startup("shop").parameter("application_name", "psql").parameter("made_up", "1");
    let mut client = startup.connect();
    assert_eq!(client.value("show statement_timeout"), "54321ms");
    assert_eq!(client.value("show timezone"), "Asia/Tokyo");
    assert_eq!(client.value("show datestyle"), "German, DMY");
    assert_eq!(client.value("show client_encoding"), "LATIN1");
    let name = client.value("show application_name");
    assert!(name.starts_with("psql - 127.0.0.1:"), "{name}");
}

/// Parameters that PgBouncer does not track are ignored.
#[test]
fn ignored_options_keep_tracked_parameters() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\nignore_startup_parameters = options\n"));
    let options = "-c TimeZone=Asia/Tokyo --datestyle=German -c statement_timeout=54321 -c made_up=1";
    let mut client = gateway.startup("shop").parameter("options", options).connect();
    assert_eq!(client.value("show timezone"), "Asia/Tokyo");
    assert_eq!(client.value("show datestyle"), "German, DMY");
    assert_eq!(client.value("show statement_timeout"), "0");
    gateway.startup("shop").parameter("options", "-E --").connect().ok("select 1");
}

#[test]
fn console_cannot_be_the_auth_dbname() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgbouncer.ini");
    std::fs::write(&file, "[databases]\nx = host=db\n[pgbouncer]\nauth_dbname = pgbouncer\n").expect("a file");
    let checked = output(&["check", &file.display().to_string()]);
    let report = String::from_utf8_lossy(&checked.stdout).into_owned();
    let text = "cannot use the reserved \"pgbouncer\" database as an auth_dbname";
    assert!(!checked.status.success() && report.contains(text), "{report}");
}

#[test]
fn login_notify_message_is_sent_as_a_notice() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\nlogin_notify_message = you are pooled\n"));
    for database in ["shop", "pgbouncer"] {
        let startup = gateway.startup(database);
        let mut client = startup.open();
        client.send_bytes(&startup.packet());
        let login = client.until_ready();
        let notice = login.messages.iter().find(|message| message.tag == b'N').expect("a notice");
        assert_eq!(notice.error().message, "you are pooled", "{database}");
    }
}

#[test]
fn server_reset_query_always_runs_in_transaction_mode() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1\n\
         [pgbouncer]\nserver_reset_query = reset all; set work_mem = '7MB'\nserver_reset_query_always = 1\n",
    );
    let mut client = gateway.client("shop");
    client.ok("select 1");
    eventually("the reset has run", || {
        client.value("select setting from pg_settings where name = 'work_mem'") == "7168"
    });
}

#[test]
fn disable_pqexec_rejects_simple_queries() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\ndisable_pqexec = 1\n"));
    let mut client = gateway.client("shop");
    client.send(&Frames::new().once("select 'extended'").sync());
    assert_eq!(client.until_ready().value(), "extended");
    client.send(&Frames::new().query("select 1"));
    assert_eq!(client.expect_fatal("08P01").message, "PQexec disallowed");
}

#[test]
fn users_of_a_forced_user_share_one_pool() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres user=postgres pool_size=1\n");
    let mut first = gateway.startup("shop").user("first").connect();
    let mut second = gateway.startup("shop").user("second").connect();
    assert_eq!(first.backend(), second.backend());
    let pools = gateway.show("POOLS");
    let users: Vec<_> =
        pools.iter().filter(|pool| pool["database"] == "shop").map(|pool| pool["user"].as_str()).collect();
    assert_eq!(users, ["postgres"]);
    let clients = gateway.show("CLIENTS");
    assert!(clients.iter().any(|client| client["user"] == "second"), "{clients:?}");
}

#[test]
fn database_without_a_host_uses_the_unix_socket() {
    let folder = server().socket_dir().display().to_string();
    let port = server().port();
    let gateway = IniGateway::start(&format!("[databases]\npostgres = host={folder} port={port}\n"));
    assert_eq!(gateway.client("postgres").value("select inet_server_addr() is null"), "t");
}

#[test]
fn load_balance_hosts_selects_turn_or_order() {
    let (ip, folder, port) = (server().address().ip(), server().socket_dir().display().to_string(), server().port());
    let hosts = format!("host={ip},{folder} port={port} dbname=postgres");
    let gateway = IniGateway::start(&format!(
        "[databases]\nturn = {hosts}\norder = {hosts} load_balance_hosts=disable\n\
         one = $PG dbname=postgres load_balance_hosts=disable\n"
    ));
    let shown = gateway.show("DATABASES");
    let word = |name: &str| {
        let row = shown.iter().find(|row| row["name"] == name).expect("the row exists");
        row["load_balance_hosts"].clone()
    };
    assert_eq!((word("turn").as_str(), word("order").as_str()), ("round-robin", "disable"));
    // Both addresses lead to the same server.
    let mut turn = gateway.client("turn");
    eventually("both addresses are used", || {
        let addresses: BTreeSet<_> = (0..4).map(|_| turn.value("select (inet_server_addr() is null)::text")).collect();
        addresses.len() == 2
    });
    for database in ["turn", "order", "one"] {
        assert_eq!(gateway.client(database).value("select 1"), "1", "{database}");
        let listed = gateway.show("HOSTS").iter().filter(|row| row["database"] == database).count();
        assert_eq!(listed, if database == "one" { 1 } else { 2 }, "{database}");
    }
    let converted = output(&["convert", &gateway.file("pgbouncer.ini").display().to_string()]);
    let converted = String::from_utf8(converted.stdout).expect("TOML is text");
    assert_eq!(converted.matches("route = \"any\"").count(), 2, "{converted}");
    assert_eq!(converted.matches("policy = \"pick_first\"").count(), 1, "{converted}");
}

#[test]
fn unrelated_hosts_all_get_writes_in_turn() {
    let (ip, port) = (server().address().ip(), server().port());
    let other = Postgres::builder().port(port).setting("listen_addresses", "127.0.0.2");
    let other = other.hba("local all all trust\nhost all all 127.0.0.0/8 trust").start().expect("a Postgres starts");
    server().sql("create table by_turns (n int)");
    other.simple_query("create table by_turns (n int)").expect("a table can be made");
    let gateway = IniGateway::start(&format!("[databases]\nboth = host={ip},127.0.0.2 port={port} dbname=postgres\n"));
    let mut client = gateway.client("both");
    let mut addresses = |count: usize| {
        let insert = "insert into by_turns values (1) returning host(inet_server_addr())";
        let addresses: BTreeSet<_> = (0..count).map(|_| client.value(insert)).collect();
        addresses
    };
    eventually("both are used", || addresses(4).len() == 2);
    let rows = gateway.show("HOSTS");
    let states: Vec<_> = rows.iter().map(|row| (row["role"].as_str(), row["state"].as_str())).collect();
    assert_eq!(states, [("primary", "up"); 2], "{rows:?}");
    assert_ne!(
        other.simple_query("select count(*) from by_turns").expect("the server answers")[0][0].as_deref(),
        Some("0")
    );
}
