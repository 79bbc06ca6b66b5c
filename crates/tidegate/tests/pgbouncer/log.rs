//! The log: syslog, lines in the format of PgBouncer, the configuration file and message limits.

use std::os::unix::net::UnixDatagram;

use tidegate_testkit::{Frames, Signal, eventually};

use crate::ini_gateway::{IniGateway, Setup, output, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres\n";

#[test]
fn syslog_gets_every_line_with_its_priority() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let daemon = UnixDatagram::bind(&path).expect("a socket");
    daemon.set_read_timeout(Some(tidegate_testkit::TIMEOUT)).expect("a socket");
    let pg = server().address();
    let gateway = IniGateway::with_toml(|port| {
        format!(
            "[listen]\naddresses = [\"127.0.0.1:{port}\"]\ndialect = \"pgbouncer\"\n[auth]\nmethod = \"trust\"\n\
             [log]\nsyslog = \"{}\"\nsyslog_ident = \"pooler\"\nsyslog_facility = \"local1\"\n\
             [databases.shop]\nhost = \"{}\"\nport = {}\ndbname = \"postgres\"\n",
            path.display(),
            pg.ip(),
            pg.port()
        )
    });
    drop(gateway.client("shop"));
    let mut datagram = [0; 8192];
    let mut lines = Vec::new();
    while !lines.iter().any(|line: &String| line.contains("closing because")) {
        let length = daemon.recv(&mut datagram).expect("a line arrives");
        lines.push(String::from_utf8_lossy(&datagram[..length]).into_owned());
    }
    // Facility 17, levels 6 and 4: local1.info and local1.warning.
    assert!(lines.iter().any(|line| line.starts_with("<142>pooler[") && line.contains("]: listening")), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains('\n') && !line.contains("INFO")), "{lines:?}");
    assert!(gateway.log().contains("listening"), "standard error has no lines");
}

/// The log can be moved without a restart.
#[test]
fn syslog_follows_reload_and_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let daemon = |name: &str| {
        let daemon = UnixDatagram::bind(path(name)).expect("a socket");
        daemon.set_read_timeout(Some(tidegate_testkit::TIMEOUT)).expect("a socket");
        daemon
    };
    let expect_line = |daemon: &UnixDatagram, start: &str, text: &str| {
        let mut datagram = [0; 8192];
        loop {
            let length = daemon.recv(&mut datagram).expect("a line arrives");
            let line = String::from_utf8_lossy(&datagram[..length]).into_owned();
            assert!(line.starts_with(start), "{line}");
            if line.contains(text) {
                return;
            }
        }
    };
    let (first, second) = (daemon("first"), daemon("second"));
    let toml = |port: u16, more: &str| {
        let (host, pg) = (server().address().ip(), server().port());
        format!(
            "[listen]\naddresses = [\"127.0.0.1:{port}\"]\n[admin]\nusers = [\"postgres\"]\nset_files = true\n\
             [auth]\nmethod = \"trust\"\n[log]\n{more}\n[databases.shop]\nhost = \"{host}\"\nport = {pg}\ndbname = \"postgres\"\n"
        )
    };
    let gateway = IniGateway::with_toml(|port| toml(port, ""));
    let reload = |lines: &str| {
        std::fs::write(gateway.file("tidegate.toml"), toml(gateway.port(), lines)).expect("the file can be written");
        gateway.console().ok("RELOAD");
    };
    let syslog_line = |name: &str| format!("syslog = \"{}\"", path(name).display());
    reload(&format!("{}\nsyslog_ident = \"pooler\"\nsyslog_facility = \"local1\"", syslog_line("first")));
    expect_line(&first, "<142>pooler[", "configuration reloaded");
    gateway.console().ok("SET log.syslog_ident = 'other'");
    expect_line(&first, "<142>", "client disconnected");
    gateway.console().ok(&format!("SET log.syslog = '{}'", path("second").display()));
    drop(gateway.client("shop"));
    expect_line(&second, "<142>other[", "shop");
    reload("");
    assert_eq!(gateway.setting("syslog"), "0");
    // No line arrives any more: this datagram must be the last.
    UnixDatagram::unbound()
        .expect("a socket")
        .send_to(b"<142>other[0]: the end", path("second"))
        .expect("the datagram is sent");
    drop(gateway.client("shop"));
    gateway.console();
    expect_line(&second, "<142>other[", "the end");
    second.set_nonblocking(true).expect("a socket");
    assert!(second.recv(&mut [0; 100]).is_err(), "a line arrived after syslog was disabled");
    // The key of PgBouncer enables the default socket.
    gateway.console().ok("SET syslog = 1");
    assert_eq!(gateway.setting("log.syslog"), "/dev/log");
}

#[test]
fn syslog_keys_are_converted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgbouncer.ini");
    let lines = "syslog = 1\nsyslog_ident = front\nsyslog_facility = local5\nmax_packet_size = 9000\n";
    std::fs::write(&file, format!("[databases]\nx = host=db\n[pgbouncer]\n{lines}")).expect("the file can be written");
    let converted = output(&["convert", &file.display().to_string()]);
    let toml = String::from_utf8_lossy(&converted.stdout).into_owned();
    for line in
        ["syslog = \"/dev/log\"", "syslog_ident = \"front\"", "syslog_facility = \"local5\"", "message_max = 9000"]
    {
        assert!(toml.lines().any(|known| known == line), "{line} is not in\n{toml}");
    }
}

/// Audits need these lines.
#[test]
fn console_logins_are_logged() {
    let gateway = IniGateway::start(SHOP);
    drop(gateway.console());
    eventually("the disconnect is logged", || gateway.log().contains("pgbouncer/postgres@127.0.0.1:"));
    let has =
        |text: &str| gateway.log().lines().any(|line| line.contains("pgbouncer/postgres@") && line.contains(text));
    assert!(has("login attempt: db=pgbouncer user=postgres tls=no replication=no"), "{}", gateway.log());
    eventually("the disconnect is logged", || has("closing because: client unexpected eof"));
    gateway.console().send(&Frames::new().terminate());
    eventually("the disconnect is logged", || has("closing because: client close request"));
}

/// Tools that count failed logins match the attempt and the failure by the number of the client.
#[test]
fn failed_login_is_logged_with_its_attempt() {
    let gateway = IniGateway::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres\nlost = $PG dbname=pgb_no_such_database\n[pgbouncer]\n\
              auth_type = md5\nauth_file = $DIR/users\n",
        files: &[("users", "\"postgres\" \"secret\"\n")],
        ..Setup::default()
    });
    for (database, password, reason) in [
        ("shop", "wrong", "password authentication failed"),
        ("lost", "secret", "database \"pgb_no_such_database\" does not exist"),
    ] {
        gateway.startup(database).password(password).refused();
        let client = format!(": {database}/postgres@127.0.0.1:");
        let is_of = |line: &&str| line.contains(" LOG C-") && line.contains(&client);
        let ended = |line: &str| line.contains("closing because: ") && line.contains(reason);
        eventually("the failure is logged", || gateway.log().lines().filter(is_of).any(ended));
        let log = gateway.log();
        let number =
            |line: &str| line.split(": ").next().and_then(|start| start.split(' ').next_back()).map(str::to_owned);
        let attempt = log.lines().filter(is_of).find(|line| line.contains("login attempt: db=")).map(number);
        let end = log.lines().filter(is_of).find(|line| ended(line)).map(number);
        assert!(attempt.is_some() && attempt == end, "{log}");
        gateway.wait_for_log(&format!("pooler error: {reason}"));
    }
}

#[test]
fn closed_server_is_logged_with_the_reason() {
    let closed = |lines: &str, reason: &str, end: &dyn Fn(&str)| {
        let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\n{lines}\n"));
        let backend = gateway.client("shop").backend();
        end(&backend);
        wait_for_close_reason(&gateway, reason);
    };
    closed("server_idle_timeout = 0.1", "server idle timeout", &|_| {});
    closed("server_lifetime = 0.1", "server lifetime over", &|_| {});
    closed("", "server conn crashed?", &|backend| server().kill_backend(backend));
}

/// Waits until the log has a server that was closed for this reason.
#[track_caller]
fn wait_for_close_reason(gateway: &IniGateway, reason: &str) {
    let text = format!("closing because: {reason} (age=");
    let is_logged = |line: &str| line.contains(" S-") && line.contains("shop/postgres@") && line.contains(&text);
    eventually(reason, || gateway.log().lines().any(is_logged));
}

#[test]
fn server_closed_by_a_timeout_is_logged() {
    let gateway = |lines: &str| IniGateway::start(&format!("{SHOP}[pgbouncer]\n{lines}\n"));
    for (key, reason) in [("query_timeout", "query timeout"), ("transaction_timeout", "transaction timeout")] {
        let gateway = gateway(&format!("{key} = 1"));
        gateway.client("shop").send(&Frames::new().query("begin; select pg_sleep(600)"));
        wait_for_close_reason(&gateway, "client disconnect while server was not ready");
        let mut client = gateway.client("shop");
        client.send(&Frames::new().query("begin; select pg_sleep(600)"));
        wait_for_close_reason(&gateway, reason);
    }
    let gateway = gateway("");
    let mut client = gateway.client("shop");
    let backend = client.backend();
    client.ok("begin");
    server().sql(&format!("select pg_terminate_backend({backend})"));
    client.try_query("select 1").expect_err("the server is gone");
    wait_for_close_reason(&gateway, "server conn crashed?");
    gateway.wait_for_log("pooler error: server conn crashed?");
}

/// The server rejects a login after the client has logged in.
#[test]
fn reason_for_a_missing_server_is_logged() {
    let name = format!("pgb_dropped_{}", std::process::id());
    server().sql(&format!("create database {name}"));
    let gateway = IniGateway::start(&format!("[databases]\nshop = $PG dbname={name}\n"));
    let mut client = gateway.client("shop");
    client.ok("select 1");
    gateway.console().ok("RECONNECT shop");
    wait_for_close_reason(&gateway, "database configuration changed");
    server().sql(&format!("drop database {name} with (force)"));
    client.send(&Frames::new().query("select 1"));
    client.expect_fatal("3D000");
    let reason = format!("database \"{name}\" does not exist");
    for text in [format!("closing because: {reason} (age="), format!("pooler error: {reason}")] {
        gateway.wait_for_log(&text);
    }
    assert!(!gateway.log().contains("no server"), "{}", gateway.log());
}

/// Log readers parse the server as in PgBouncer: an address and a port, or the port of a unix socket.
#[test]
fn server_address_is_logged() {
    let (folder, port) = (server().socket_dir().display().to_string(), server().port());
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = host=localhost port={port} dbname=postgres\nnear = host={folder} port={port} dbname=postgres\n"
    ));
    for (database, syslog_line) in [("shop", "127.0.0.1"), ("near", "unix")] {
        gateway.client(database).ok("select 1");
        gateway.wait_for_log(&format!(": {database}/postgres@{syslog_line}:{port} new connection to server"));
    }
    gateway.console().ok("RECONNECT");
    for (database, syslog_line) in [("shop", "127.0.0.1"), ("near", "unix")] {
        gateway.wait_for_log(&format!(": {database}/postgres@{syslog_line}:{port} closing because: database"));
    }
}

/// Commands that change state are logged with the text that tools search for.
#[test]
fn console_commands_are_logged_like_in_pgbouncer() {
    let gateway = IniGateway::start(SHOP);
    let mut console = gateway.console();
    gateway.client("shop").ok("select 1");
    console.ok("RECONNECT shop");
    wait_for_close_reason(&gateway, "database configuration changed");
    gateway.client("shop").ok("select 1");
    for command in ["PAUSE", "RESUME", "PAUSE shop", "RESUME shop", "DISABLE shop", "ENABLE shop", "RELOAD", "SUSPEND"]
    {
        console.ok(command);
        let text = match command.split_once(' ') {
            Some((command, database)) => format!("{command} '{database}' command issued"),
            None => format!("{command} command issued"),
        };
        assert!(gateway.log().contains(&text), "{text}");
    }
    wait_for_close_reason(&gateway, "pause mode");
    let closed = gateway.log().matches("closing because: database configuration changed").count();
    assert_eq!(closed, 1, "{}", gateway.log());
}

#[test]
fn log_stats_controls_the_statistics_line() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\nlog_stats = 0\nstats_period = 1\n"));
    // The workload is the time: it exceeds two periods, in which a line would be written.
    gateway.client("shop").ok("select pg_sleep(2.5)");
    assert!(!gateway.log().contains("stats: "), "{}", gateway.log());
    gateway.console().ok("SET log_stats = 1");
    gateway.wait_for_log("stats: ");
}

/// Like PgBouncer, the gateway logs the error and continues.
#[test]
fn failed_connect_query_is_logged_and_ignored() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres connect_query='select no_such_column'\n");
    gateway.client("shop").ok("select 1");
    assert!(gateway.log().contains("connect_query failed"), "{}", gateway.log());
}

#[test]
fn message_above_max_packet_size_is_an_error() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\nmax_packet_size = 2000\n"));
    let query = |bytes: usize| format!("select length('{}')", "x".repeat(bytes));
    let mut client = gateway.client("shop");
    client.ok(&query(1900));
    // The message comes in one write or in fragments, with and without a transaction.
    for before in [None, Some("begin")] {
        for bytes in [2000, 300_000] {
            let mut client = gateway.client("shop");
            before.map(|sql| client.ok(sql));
            client.send(&Frames::new().query(&query(bytes)));
            let fatal = client.expect_fatal("08P01");
            assert!(fatal.message.starts_with("bad packet header"), "{fatal:?}");
        }
    }
    gateway.wait_for_log("closing because: bad packet header");
    gateway.wait_for_log("pooler error: bad packet header");
    // The limit applies to messages of clients, but not to COPY data and not to replies.
    assert_eq!(client.value("select repeat('x', 100000)").len(), 100_000);
    gateway.console().ok("SET max_packet_size = 1000000");
    assert_eq!(gateway.setting("max_packet_size"), "1000000");
    eventually("the limit applies to connected clients", || {
        gateway.client("shop").query(&query(100_000)).error.is_none()
    });
    assert_eq!(client.value(&query(100_000)), "100000");
}

#[test]
fn set_conffile_selects_the_file_of_a_reload() {
    let gateway = IniGateway::start(SHOP);
    let first = gateway.file("pgbouncer.ini").display().to_string();
    assert_eq!(gateway.setting("conffile"), first);
    let other = gateway.file("more.ini");
    let text = std::fs::read_to_string(&first).expect("the file exists");
    std::fs::write(&other, text.replace("shop =", "another = host=127.0.0.1\nshop ="))
        .expect("the file can be written");
    let mut console = gateway.console();
    console.ok(&format!("SET conffile = '{}'", other.display()));
    assert_eq!(IniGateway::setting_by(&mut console, "conffile"), other.display().to_string());
    let has_database = |name: &str| gateway.show("DATABASES").iter().any(|row| row["name"] == name);
    assert!(!has_database("another"), "the file was read before RELOAD");
    console.ok("RELOAD");
    assert!(has_database("another"));
    // A missing file makes the reload fail.
    console.ok("SET conffile = '/nowhere/at/all.ini'");
    assert_eq!(console.query("RELOAD").code(), "08P01");
    assert!(has_database("another"));
    console.ok(&format!("SET conffile = '{first}'"));
    console.ok("RELOAD");
    assert!(!has_database("another"));
}

/// Findings must be single lines, without escaped line breaks.
#[test]
fn findings_in_a_file_are_one_line_each() {
    let gateway = IniGateway::start("[databases]\nshop = host=db:5433\n[pgbouncer]\ndefault_pool_size = 3\n");
    let line_of = |text: &str| gateway.log().lines().find(|line| line.contains(text)).unwrap_or_default().to_owned();
    // The position of this line in the file.
    let position_of = |text: &str| {
        let ini = std::fs::read_to_string(gateway.file("pgbouncer.ini")).expect("the file exists");
        let before = ini.lines().take_while(|line| !line.starts_with(text)).count();
        format!("pgbouncer.ini:{} ", before + 1)
    };
    let warning = line_of("no server can have this name");
    assert!(warning.contains("WARNING configuration: ") && warning.contains(&position_of("shop")), "{warning}");
    assert!(!warning.contains("\\n") && !warning.contains("^^"), "{warning}");
    gateway.set_config("[databases]\nshop = host=db\n[pgbouncer]\ndefault_pool_siz = 3\npool_mode = x\n");
    let error = gateway.console().query("RELOAD").error.expect("an error");
    assert!(error.message.contains("default_pool_siz") && error.message.contains("pool_mode"), "{error:?}");
    for (text, key) in [("unknown key", "default_pool_siz"), ("`x` is not a valid value", "pool_mode = x")] {
        let error = line_of(text);
        assert!(error.contains(" ERROR configuration: ") && error.contains(&position_of(key)), "{error}");
        assert!(!error.contains("\\n"), "{error}");
    }
    gateway.wait_for_log("reload failed, the old configuration stays in force");
}

/// Alerts search the log for these words.
#[test]
fn log_has_the_words_of_alerts() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres user=postgres pool_size=1 reserve_pool=1\nlost = host=no-such-host.invalid\n\
         * = $PG user=postgres\n[pgbouncer]\nreserve_pool_timeout = 0.1\nquery_wait_timeout = 1\n",
    );
    let refused = gateway.startup("no_such_database").refused();
    assert_eq!(refused.message, "database \"no_such_database\" does not exist");
    gateway.startup("lost").refused();
    let mut holder = gateway.client("shop");
    holder.ok("begin");
    gateway.client("shop").ok("select 1");
    for words in [
        "registered new auto-database: no_such_database",
        "WARNING server login failed: FATAL database \"no_such_database\" does not exist",
        "server DNS lookup failed",
        "taking connection from reserve_pool",
    ] {
        gateway.wait_for_log(words);
    }
    assert_eq!(gateway.log().matches("registered new auto-database").count(), 1);
    holder.ok("commit");
    gateway.signal(Signal::USR1);
    gateway.wait_for_log("got SIGUSR1, pausing all activity");
    gateway.signal(Signal::USR1);
    gateway.wait_for_log("got SIGUSR1, but already paused/suspended");
    let version = gateway.console().ok("SHOW VERSION").value();
    assert!(version.starts_with("PgBouncer 1.25.0 (Tidegate "), "{version}");
}
