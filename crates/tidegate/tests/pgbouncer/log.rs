//! Where lines go, which file is read, and how long a message may be.

use std::os::unix::net::UnixDatagram;

use tidegate_testkit::{Frames, eventually};

use crate::bouncer::{Bouncer, Setup, output, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres\n";

#[test]
fn the_systems_log_gets_every_line_with_its_weight() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let daemon = UnixDatagram::bind(&path).expect("a socket");
    daemon.set_read_timeout(Some(tidegate_testkit::PATIENCE)).expect("a socket");
    let pg = server().address();
    let bouncer = Bouncer::with_toml(|port| {
        format!(
            "[listen]\naddresses = [\"127.0.0.1:{port}\"]\ndialect = \"pgbouncer\"\n[auth]\nmethod = \"trust\"\n\
             [log]\nsyslog = \"{}\"\nsyslog_ident = \"pooler\"\nsyslog_facility = \"local1\"\n\
             [databases.shop]\nhost = \"{}\"\nport = {}\ndbname = \"postgres\"\n",
            path.display(),
            pg.ip(),
            pg.port()
        )
    });
    drop(bouncer.client("shop"));
    let mut datagram = [0; 8192];
    let mut lines = Vec::new();
    while !lines.iter().any(|line: &String| line.contains("closing because")) {
        let length = daemon.recv(&mut datagram).expect("lines come");
        lines.push(String::from_utf8_lossy(&datagram[..length]).into_owned());
    }
    // Facility 17, levels 6 and 4: local1.info and local1.warning.
    assert!(lines.iter().any(|line| line.starts_with("<142>pooler[") && line.contains("]: listening")), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains('\n') && !line.contains("INFO")), "{lines:?}");
    assert!(bouncer.log().contains("listening"), "standard error has them too");
}

/// Who moves the log elsewhere need not send all clients away for it.
#[test]
fn the_systems_log_follows_a_reload_and_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let daemon = |name: &str| {
        let daemon = UnixDatagram::bind(path(name)).expect("a socket");
        daemon.set_read_timeout(Some(tidegate_testkit::PATIENCE)).expect("a socket");
        daemon
    };
    let hears = |daemon: &UnixDatagram, start: &str, text: &str| {
        let mut datagram = [0; 8192];
        loop {
            let length = daemon.recv(&mut datagram).expect("lines come");
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
    let bouncer = Bouncer::with_toml(|port| toml(port, ""));
    let reload = |lines: &str| {
        std::fs::write(bouncer.file("tidegate.toml"), toml(bouncer.port(), lines)).expect("it can be written");
        bouncer.console().ok("RELOAD");
    };
    let place = |name: &str| format!("syslog = \"{}\"", path(name).display());
    reload(&format!("{}\nsyslog_ident = \"pooler\"\nsyslog_facility = \"local1\"", place("first")));
    hears(&first, "<142>pooler[", "configuration reloaded");
    bouncer.console().ok("SET log.syslog_ident = 'other'");
    hears(&first, "<142>", "client disconnected");
    bouncer.console().ok(&format!("SET log.syslog = '{}'", path("second").display()));
    drop(bouncer.client("shop"));
    hears(&second, "<142>other[", "shop");
    reload("");
    assert_eq!(bouncer.setting("syslog"), "0");
    // Nothing comes any more: what is sent now is the last.
    UnixDatagram::unbound().expect("a socket").send_to(b"<142>other[0]: the end", path("second")).expect("it is sent");
    drop(bouncer.client("shop"));
    bouncer.console();
    hears(&second, "<142>other[", "the end");
    second.set_nonblocking(true).expect("a socket");
    assert!(second.recv(&mut [0; 100]).is_err(), "it is off");
    // As PgBouncer's key.
    bouncer.console().ok("SET syslog = 1");
    assert_eq!(bouncer.setting("log.syslog"), "/dev/log");
}

#[test]
fn keys_of_syslog_are_those_of_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgbouncer.ini");
    let lines = "syslog = 1\nsyslog_ident = front\nsyslog_facility = local5\nmax_packet_size = 9000\n";
    std::fs::write(&file, format!("[databases]\nx = host=db\n[pgbouncer]\n{lines}")).expect("it can be written");
    let converted = output(&["convert", &file.display().to_string()]);
    let toml = String::from_utf8_lossy(&converted.stdout).into_owned();
    for line in
        ["syslog = \"/dev/log\"", "syslog_ident = \"front\"", "syslog_facility = \"local5\"", "message_max = 9000"]
    {
        assert!(toml.lines().any(|known| known == line), "{line} is not in\n{toml}");
    }
}

/// Auditors look for those above all.
#[test]
fn a_login_to_the_console_is_in_the_log() {
    let bouncer = Bouncer::start(SHOP);
    drop(bouncer.console());
    eventually("its end is logged", || bouncer.log().contains("pgbouncer/postgres@127.0.0.1:"));
    let has =
        |what: &str| bouncer.log().lines().any(|line| line.contains("pgbouncer/postgres@") && line.contains(what));
    assert!(has("login attempt: db=pgbouncer user=postgres tls=no replication=no"), "{}", bouncer.log());
    eventually("its end is logged", || has("closing because: client unexpected eof"));
    bouncer.console().send(&Frames::new().terminate());
    eventually("its end is logged", || has("closing because: client close request"));
}

/// Who counts logins that failed counts attempts, and knows them by the number of the client.
#[test]
fn a_login_that_fails_is_in_the_log_with_its_attempt() {
    let bouncer = Bouncer::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres\nlost = $PG dbname=pgb_no_such_database\n[pgbouncer]\n\
              auth_type = md5\nauth_file = $DIR/users\n",
        files: &[("users", "\"postgres\" \"secret\"\n")],
        ..Setup::default()
    });
    for (database, password, why) in [
        ("shop", "wrong", "password authentication failed"),
        ("lost", "secret", "database \"pgb_no_such_database\" does not exist"),
    ] {
        bouncer.startup(database).password(password).refused();
        let who = format!(": {database}/postgres@127.0.0.1:");
        let is_of = |line: &&str| line.contains(" LOG C-") && line.contains(&who);
        let ended = |line: &str| line.contains("closing because: ") && line.contains(why);
        eventually("it is told", || bouncer.log().lines().filter(is_of).any(ended));
        let log = bouncer.log();
        let number =
            |line: &str| line.split(": ").next().and_then(|start| start.split(' ').next_back()).map(str::to_owned);
        let attempt = log.lines().filter(is_of).find(|line| line.contains("login attempt: db=")).map(number);
        let end = log.lines().filter(is_of).find(|line| ended(line)).map(number);
        assert!(attempt.is_some() && attempt == end, "{log}");
        bouncer.wait_for_log(&format!("pooler error: {why}"));
    }
}

#[test]
fn a_server_that_is_closed_is_in_the_log_with_the_reason() {
    let closed = |lines: &str, why: &str, end: &dyn Fn(&str)| {
        let bouncer = Bouncer::start(&format!("{SHOP}[pgbouncer]\n{lines}\n"));
        let backend = bouncer.client("shop").backend();
        end(&backend);
        is_said(&bouncer, why);
    };
    closed("server_idle_timeout = 0.1", "server idle timeout", &|_| {});
    closed("server_lifetime = 0.1", "server lifetime over", &|_| {});
    closed("", "server conn crashed?", &|backend| server().kill_backend(backend));
}

/// A line tells of a server that was closed for this reason.
#[track_caller]
fn is_said(bouncer: &Bouncer, why: &str) {
    let said = format!("closing because: {why} (age=");
    let is_said = |line: &str| line.contains(" S-") && line.contains("shop/postgres@") && line.contains(&said);
    eventually(why, || bouncer.log().lines().any(is_said));
}

#[test]
fn a_server_that_a_client_could_not_leave_as_it_was_is_in_the_log_with_the_reason() {
    let bouncer = |lines: &str| Bouncer::start(&format!("{SHOP}[pgbouncer]\n{lines}\n"));
    for (key, why) in [("query_timeout", "query timeout"), ("transaction_timeout", "transaction timeout")] {
        let bouncer = bouncer(&format!("{key} = 1"));
        bouncer.client("shop").send(&Frames::new().query("begin; select pg_sleep(600)"));
        is_said(&bouncer, "client disconnect while server was not ready");
        let mut client = bouncer.client("shop");
        client.send(&Frames::new().query("begin; select pg_sleep(600)"));
        is_said(&bouncer, why);
    }
    let bouncer = bouncer("");
    let mut client = bouncer.client("shop");
    let backend = client.backend();
    client.ok("begin");
    server().sql(&format!("select pg_terminate_backend({backend})"));
    client.try_query("select 1").expect_err("its server is gone");
    is_said(&bouncer, "server conn crashed?");
    bouncer.wait_for_log("pooler error: server conn crashed?");
}

/// A login that a server refuses later than its client came in.
#[test]
fn why_there_is_no_server_is_in_the_log() {
    let name = format!("pgb_soon_gone_{}", std::process::id());
    server().sql(&format!("create database {name}"));
    let bouncer = Bouncer::start(&format!("[databases]\nshop = $PG dbname={name}\n"));
    let mut client = bouncer.client("shop");
    client.ok("select 1");
    bouncer.console().ok("RECONNECT shop");
    is_said(&bouncer, "database configuration changed");
    server().sql(&format!("drop database {name} with (force)"));
    client.send(&Frames::new().query("select 1"));
    client.expect_fatal("3D000");
    let why = format!("database \"{name}\" does not exist");
    for words in [format!("closing because: {why} (age="), format!("pooler error: {why}")] {
        bouncer.wait_for_log(&words);
    }
    assert!(!bouncer.log().contains("no server"), "{}", bouncer.log());
}

/// As PgBouncer's: an address and a port, or the port of a unix socket, that log readers take apart.
#[test]
fn a_server_is_in_the_log_where_it_is() {
    let (folder, port) = (server().socket_dir().display().to_string(), server().port());
    let bouncer = Bouncer::start(&format!(
        "[databases]\nshop = host=localhost port={port} dbname=postgres\nnear = host={folder} port={port} dbname=postgres\n"
    ));
    for (database, place) in [("shop", "127.0.0.1"), ("near", "unix")] {
        bouncer.client(database).ok("select 1");
        bouncer.wait_for_log(&format!(": {database}/postgres@{place}:{port} new connection to server"));
    }
    bouncer.console().ok("RECONNECT");
    for (database, place) in [("shop", "127.0.0.1"), ("near", "unix")] {
        bouncer.wait_for_log(&format!(": {database}/postgres@{place}:{port} closing because: database"));
    }
}

/// Whoever changes what goes on is in the log, in words that are looked for.
#[test]
fn orders_of_the_console_are_in_the_log_in_the_words_of_pgbouncer() {
    let bouncer = Bouncer::start(SHOP);
    let mut console = bouncer.console();
    bouncer.client("shop").ok("select 1");
    console.ok("RECONNECT shop");
    is_said(&bouncer, "database configuration changed");
    bouncer.client("shop").ok("select 1");
    for order in ["PAUSE", "RESUME", "PAUSE shop", "RESUME shop", "DISABLE shop", "ENABLE shop", "RELOAD", "SUSPEND"] {
        console.ok(order);
        let words = match order.split_once(' ') {
            Some((order, database)) => format!("{order} '{database}' command issued"),
            None => format!("{order} command issued"),
        };
        assert!(bouncer.log().contains(&words), "{words}");
    }
    is_said(&bouncer, "pause mode");
    let closed = bouncer.log().matches("closing because: database configuration changed").count();
    assert_eq!(closed, 1, "{}", bouncer.log());
}

#[test]
fn figures_are_in_the_log_when_they_are_asked_for() {
    let bouncer = Bouncer::start(&format!("{SHOP}[pgbouncer]\nlog_stats = 0\nstats_period = 1\n"));
    // Time in which they would be told.
    bouncer.client("shop").ok("select pg_sleep(2.5)");
    assert!(!bouncer.log().contains("stats: "), "{}", bouncer.log());
    bouncer.console().ok("SET log_stats = 1");
    bouncer.wait_for_log("stats: ");
}

/// As PgBouncer, which says so and goes on.
#[test]
fn a_connect_query_that_fails_is_told_and_does_no_harm() {
    let bouncer = Bouncer::start("[databases]\nshop = $PG dbname=postgres connect_query='select no_such_column'\n");
    bouncer.client("shop").ok("select 1");
    assert!(bouncer.log().contains("connect_query failed"), "{}", bouncer.log());
}

#[test]
fn a_message_that_is_too_long_ends_its_client() {
    let bouncer = Bouncer::start(&format!("{SHOP}[pgbouncer]\nmax_packet_size = 2000\n"));
    let query = |bytes: usize| format!("select length('{}')", "x".repeat(bytes));
    let mut client = bouncer.client("shop");
    client.ok(&query(1900));
    // In one piece, in pieces, and in the middle of a transaction.
    for before in [None, Some("begin")] {
        for bytes in [2000, 300_000] {
            let mut client = bouncer.client("shop");
            before.map(|sql| client.ok(sql));
            client.send(&Frames::new().query(&query(bytes)));
            let fatal = client.expect_fatal("08P01");
            assert!(fatal.message.starts_with("bad packet header"), "{fatal:?}");
        }
    }
    bouncer.wait_for_log("closing because: bad packet header");
    bouncer.wait_for_log("pooler error: bad packet header");
    // It is for what clients send: what comes back may be longer, and so may data of a copy.
    assert_eq!(client.value("select repeat('x', 100000)").len(), 100_000);
    bouncer.console().ok("SET max_packet_size = 1000000");
    assert_eq!(bouncer.setting("max_packet_size"), "1000000");
    eventually("it holds for clients that are there", || bouncer.client("shop").query(&query(100_000)).error.is_none());
    assert_eq!(client.value(&query(100_000)), "100000");
}

#[test]
fn an_operator_says_which_file_a_reload_reads() {
    let bouncer = Bouncer::start(SHOP);
    let own = bouncer.file("pgbouncer.ini").display().to_string();
    assert_eq!(bouncer.setting("conffile"), own);
    let other = bouncer.file("more.ini");
    let text = std::fs::read_to_string(&own).expect("the file is there");
    std::fs::write(&other, text.replace("shop =", "another = host=127.0.0.1\nshop =")).expect("it can be written");
    let mut console = bouncer.console();
    console.ok(&format!("SET conffile = '{}'", other.display()));
    assert_eq!(Bouncer::setting_by(&mut console, "conffile"), other.display().to_string());
    let knows = |name: &str| bouncer.show("DATABASES").iter().any(|row| row["name"] == name);
    assert!(!knows("another"), "until it is read");
    console.ok("RELOAD");
    assert!(knows("another"));
    // One that is not there changes nothing.
    console.ok("SET conffile = '/nowhere/at/all.ini'");
    assert_eq!(console.query("RELOAD").code(), "F0000");
    assert!(knows("another"));
    console.ok(&format!("SET conffile = '{own}'"));
    console.ok("RELOAD");
    assert!(!knows("another"));
}

/// They were drawings of several lines, with their line breaks spelled out.
#[test]
fn what_is_wrong_with_a_file_is_a_line_each() {
    let bouncer = Bouncer::start("[databases]\nshop = host=db:5433\n[pgbouncer]\ndefault_pool_size = 3\n");
    let line_of = |text: &str| bouncer.log().lines().find(|line| line.contains(text)).unwrap_or_default().to_owned();
    // Where the file has this line.
    let place_of = |text: &str| {
        let ini = std::fs::read_to_string(bouncer.file("pgbouncer.ini")).expect("it is there");
        let before = ini.lines().take_while(|line| !line.starts_with(text)).count();
        format!("pgbouncer.ini:{} ", before + 1)
    };
    let warning = line_of("no server can have this name");
    assert!(warning.contains("WARNING configuration: ") && warning.contains(&place_of("shop")), "{warning}");
    assert!(!warning.contains("\\n") && !warning.contains("^^"), "{warning}");
    bouncer.rewrite("[databases]\nshop = host=db\n[pgbouncer]\ndefault_pool_siz = 3\npool_mode = x\n");
    let told = bouncer.console().query("RELOAD").error.expect("an error");
    assert!(told.message.contains("default_pool_siz") && told.message.contains("pool_mode"), "{told:?}");
    for (text, key) in [("unknown key", "default_pool_siz"), ("`x` is not known here", "pool_mode = x")] {
        let error = line_of(text);
        assert!(error.contains(" ERROR configuration: ") && error.contains(&place_of(key)), "{error}");
        assert!(!error.contains("\\n"), "{error}");
    }
    bouncer.wait_for_log("reload failed, the old configuration stays in force");
}
