//! The console: tables with the columns of PgBouncer, commands, and the queries of exporters.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_testkit::{Frames, Message, Signal, eventually};

use crate::ini_gateway::{IniGateway, Setup, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=2\n";

/// The columns of PgBouncer 1.25 in order. Exporters count them: CloudNativePG takes 23 columns of STATS for 1.24 and 1.25.
const TABLES: &[(&str, &str)] = &[
    (
        "STATS",
        "database total_server_assignment_count total_xact_count total_query_count total_received total_sent \
         total_xact_time total_query_time total_wait_time total_client_parse_count total_server_parse_count \
         total_bind_count avg_server_assignment_count avg_xact_count avg_query_count avg_recv avg_sent avg_xact_time \
         avg_query_time avg_wait_time avg_client_parse_count avg_server_parse_count avg_bind_count",
    ),
    (
        "CLIENTS",
        "type user database replication state addr port local_addr local_port connect_time request_time wait wait_us \
         close_needed ptr link remote_pid tls application_name prepared_statements id",
    ),
    (
        "SERVERS",
        "type user database replication state addr port local_addr local_port connect_time request_time wait wait_us \
         close_needed ptr link remote_pid tls application_name prepared_statements id",
    ),
    (
        "POOLS",
        "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active sv_active_cancel \
         sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us pool_mode load_balance_hosts",
    ),
    (
        "DATABASES",
        "name host port database force_user pool_size min_pool_size reserve_pool_size server_lifetime pool_mode \
         load_balance_hosts max_connections current_connections max_client_connections current_client_connections \
         paused disabled",
    ),
    ("STATE", "key value"),
    ("VERSION", "version"),
    (
        "STATS_TOTALS",
        "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time wait_time \
         client_parse_count server_parse_count bind_count",
    ),
    (
        "STATS_AVERAGES",
        "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time wait_time \
         avg_client_parse_count avg_server_parse_count avg_bind_count",
    ),
    ("TOTALS", "name value"),
    ("PEERS", "peer_id host port pool_size"),
    ("PEER_POOLS", "peer_id cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_login"),
    (
        "SOCKETS",
        "type user database replication state addr port local_addr local_port connect_time request_time wait wait_us \
         close_needed ptr link remote_pid tls application_name prepared_statements id recv_pos pkt_pos pkt_remain \
         send_pos send_remain pkt_avail send_avail",
    ),
    (
        "ACTIVE_SOCKETS",
        "type user database replication state addr port local_addr local_port connect_time request_time wait wait_us \
         close_needed ptr link remote_pid tls application_name prepared_statements id recv_pos pkt_pos pkt_remain \
         send_pos send_remain pkt_avail send_avail",
    ),
    (
        "USERS",
        "name pool_size reserve_pool_size pool_mode max_user_connections current_connections \
         max_user_client_connections current_client_connections",
    ),
    ("LISTS", "list items"),
    ("MEM", "name size used free memtotal"),
    (
        "FDS",
        "fd task user database addr port cancel link client_encoding std_strings datestyle timezone password \
         scram_client_key scram_server_key",
    ),
    ("DNS_HOSTS", "hostname ttl addrs"),
    ("DNS_ZONES", "zonename serial count"),
    ("CONFIG", "key value default changeable"),
];

#[test]
fn every_table_has_the_columns_of_pgbouncer() {
    let gateway = IniGateway::start(SHOP);
    let mut client = gateway.client("shop");
    client.ok("begin");
    let mut console = gateway.console();
    for (table, columns) in TABLES {
        let outcome = console.ok(&format!("SHOW {table}"));
        let actual =
            outcome.messages.iter().find(|message| message.tag == b'T').map(Message::columns).unwrap_or_default();
        let expected: Vec<_> = columns.split_whitespace().collect();
        assert!(actual.len() >= expected.len() && actual[..expected.len()] == expected[..], "SHOW {table}: {actual:?}");
    }
    let active = gateway.show("ACTIVE_SOCKETS");
    let states: Vec<_> =
        active.iter().filter(|row| row["database"] == "shop").map(|row| row["state"].clone()).collect();
    assert_eq!(states, ["cl_active", "sv_active"]);
}

/// Scripts and dashboards depend on the values of these rows.
#[test]
fn rows_have_the_values_of_pgbouncer() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres\nown = $PG pool_mode=session\n* = $PG\n[pgbouncer]\nverbose = 1\n\
         auth_hba_file = $DIR/hba\nclient_tls_sslmode = disable\ntcp_user_timeout = 2500\n\
         server_tls_sslmode = require\nserver_tls_protocols = tlsv1.2\n",
    );
    let mut console = gateway.console();
    let databases = console.show("DATABASES");
    let modes: Vec<_> = databases.iter().map(|row| (row["name"].as_str(), row["pool_mode"].as_str())).collect();
    let expected = [("own", "session"), ("pgbouncer", "statement"), ("shop", "\\N")];
    assert_eq!(modes, expected, "`*` is no row, and an unset mode is NULL");
    assert!(databases.iter().all(|row| row["load_balance_hosts"] == "\\N"), "a single host has no policy");
    let clients = console.show("CLIENTS");
    assert_eq!(clients[0]["database"], "pgbouncer", "the name that the client used");
    let users = console.show("USERS");
    assert!(users.iter().any(|row| row["name"] == "pgbouncer"), "{users:?}");
    let totals = console.show("TOTALS");
    assert!(totals.iter().any(|row| row["name"] == "total_ps_client_parse_count"), "{totals:?}");
    let port = gateway.port().to_string();
    for (key, value) in [
        ("auth_type", "any"),
        ("client_tls_sslmode", "disable"),
        ("disable_pqexec", "0"),
        ("listen_addr", "127.0.0.1"),
        ("listen_port", port.as_str()),
        ("client_tls_ciphers", "default"),
        ("client_tls_protocols", "secure"),
        ("pkt_buf", "4096"),
        ("server_check_query", "<empty>"),
        ("server_tls_ciphers", "default"),
        ("server_tls_protocols", "tlsv1.2"),
        ("server_tls_sslmode", "require"),
        ("syslog", "0"),
        ("tcp_user_timeout", "2500"),
        ("track_extra_parameters", "IntervalStyle"),
        ("verbose", "1"),
    ] {
        assert_eq!(IniGateway::setting_by(&mut console, key), value, "{key}");
    }
}

/// Monitoring tools count their own connections by this row.
#[test]
fn console_has_a_row_in_the_tables() {
    let gateway = IniGateway::start(&format!(
        "{SHOP}[pgbouncer]\nmin_pool_size = 3\nreserve_pool_size = 5\nmax_db_connections = 70\n\
         max_db_client_connections = 60\nserver_lifetime = 100\n"
    ));
    let port = gateway.port().to_string();
    let mut console = gateway.console();
    let _second = gateway.client("tidegate");
    let is_console = |row: &BTreeMap<String, String>| {
        let name = row.get("name").or_else(|| row.get("database"));
        name.is_some_and(|name| name == "pgbouncer")
    };
    let mut row = |table: &str| console.show(table).into_iter().find(is_console).expect("the console has a row");
    for (table, expected) in [
        (
            "DATABASES",
            "host=\\N port=$PORT database=pgbouncer force_user=pgbouncer pool_size=2 min_pool_size=0 reserve_pool_size=0 \
             server_lifetime=100 pool_mode=statement load_balance_hosts=\\N max_connections=70 current_connections=0 \
             max_client_connections=60 current_client_connections=2 paused=0 disabled=0",
        ),
        ("POOLS", "user=pgbouncer cl_active=2 cl_waiting=0 sv_active=0 sv_idle=0 maxwait=0 pool_mode=statement"),
        ("STATS_TOTALS", "xact_count=3 query_count=3 bytes_received=0 query_time=0"),
        ("STATS_LOGINS", "client_login_count=2 server_login_error_count=0"),
        ("STATS", "total_xact_count=5 total_query_count=5 total_sent=0"),
    ] {
        let row = row(table);
        for pair in expected.replace("$PORT", &port).split_whitespace() {
            let (column, value) = pair.split_once('=').expect("a column and its value");
            assert_eq!(row[column], value, "{column} of {table}: {row:?}");
        }
    }
    // Commands on the console database are rejected.
    for command in ["PAUSE pgbouncer", "DISABLE tidegate", "KILL pgbouncer", "RECONNECT pgbouncer"] {
        assert_eq!(console.query(command).code(), "08P01", "{command}");
    }
    console.ok("PAUSE");
    console.ok("RESUME");
    let lists = console.show("LISTS");
    let items = |list: &str| lists.iter().find(|row| row["list"] == list).expect("the row exists")["items"].clone();
    assert_eq!((items("databases").as_str(), items("pools").as_str(), items("used_clients").as_str()), ("2", "1", "2"));
}

/// An operator cancels a PAUSE that does not complete.
#[test]
fn cancel_of_a_global_pause_ends_the_pause() {
    let gateway = IniGateway::start(SHOP);
    let mut client = gateway.client("shop");
    client.ok("begin");
    for (command, stays) in [("PAUSE", false), ("PAUSE shop", true)] {
        let mut console = gateway.console();
        console.send(&Frames::new().query(command));
        let is_paused = || {
            let all = gateway.show("STATE").iter().any(|row| row["key"] == "active" && row["value"] == "no");
            all || gateway.show("DATABASES").iter().any(|row| row["name"] == "shop" && row["paused"] == "1")
        };
        eventually("the pause has begun", is_paused);
        console.cancel();
        assert_eq!(console.until_ready().code(), "57014", "{command}");
        assert_eq!(is_paused(), stays, "{command}");
    }
    gateway.console().ok("RESUME shop");
    client.ok("commit");
}

#[test]
fn both_ends_of_each_connection_are_shown() {
    let folder = server().socket_dir().display().to_string();
    let (ip, port) = (server().address().ip(), server().port());
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = $PG dbname=postgres\nnear = host={folder} port={port} dbname=postgres\n"
    ));
    let own_port = gateway.port().to_string();
    let mut far = gateway.client("shop");
    let mut near = gateway.unix("postgres", "near").connect();
    far.ok("begin");
    near.ok("begin");
    let ends = |row: &BTreeMap<String, String>| {
        ["addr", "port", "local_addr", "local_port", "remote_pid"].map(|column| row[column].clone())
    };
    for table in ["CLIENTS", "SOCKETS", "ACTIVE_SOCKETS"] {
        let rows = gateway.show(table);
        let client = |database: &str| rows.iter().find(|row| row["database"] == database && row["type"] == "C");
        let [addr, peer, local, local_port, pid] = ends(client("shop").expect("the row exists"));
        assert_eq!((addr.as_str(), local.as_str(), pid.as_str()), ("127.0.0.1", "127.0.0.1", "0"));
        assert_eq!((peer == "0", &local_port), (false, &own_port), "{table}");
        let pid = std::process::id().to_string();
        assert_eq!(
            ends(client("near").expect("the row exists")),
            ["unix", &own_port, "unix", &own_port, &pid],
            "{table}"
        );
    }
    for table in ["SERVERS", "SOCKETS", "ACTIVE_SOCKETS"] {
        let rows = gateway.show(table);
        let server = |database: &str| rows.iter().find(|row| row["database"] == database && row["type"] == "S");
        let [addr, peer, local, local_port, _] = ends(server("shop").expect("the row exists"));
        let from_postgres = far.value("select host(inet_client_addr()) || ' ' || inet_client_port()");
        assert_eq!((addr, peer), (ip.to_string(), port.to_string()));
        assert_eq!(format!("{local} {local_port}"), from_postgres, "the address that Postgres has");
        let [addr, peer, local, local_port, _] = ends(server("near").expect("the row exists"));
        assert_eq!([addr, peer, local, local_port], ["unix", &port.to_string(), "unix", &own_port], "{table}");
    }
}

#[test]
fn set_applies_until_the_next_reload() {
    let gateway = IniGateway::start(SHOP);
    let mut console = gateway.console();
    console.ok("SET default_pool_size = 3");
    console.ok("SET query_wait_timeout TO 7.5");
    console.ok("SET timeouts.query = '9s'");
    assert_eq!(gateway.setting("pool.size"), "3");
    assert_eq!(gateway.setting("query_wait_timeout"), "7.5");
    assert_eq!(gateway.setting("query_timeout"), "9");
    // A key without effect is accepted as in a file, with a notice.
    let outcome = console.ok("SET pkt_buf = 1");
    let notices: Vec<_> = outcome.messages.iter().filter(|message| message.tag == b'N').collect();
    assert!(notices[0].error().message.contains("pkt_buf has no effect"), "{notices:?}");
    console.ok("SET transaction_timeout = 11");
    assert_eq!(
        gateway.setting("transaction_timeout"),
        "11",
        "SET changes the setting of the gateway, not of the session"
    );
    assert_eq!(console.query("SET default_pool_siz = 1").code(), "08P01");
    assert_eq!(console.query("SET listen_port = 1").code(), "08P01");
    console.ok("RELOAD");
    assert_eq!(gateway.setting("default_pool_size"), "20");
}

/// Special values have the same meaning as in the file.
#[test]
fn set_parses_values_like_the_file() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\nserver_check_delay = 0\n"));
    let mut console = gateway.console();
    let mut client = gateway.client("shop");
    for (key, value, shown) in [
        ("server_check_query", "'<empty>'", "<empty>"),
        ("default_pool_size", "0", "100000"),
        ("max_packet_size", "2147483647", "1073741824"),
        ("tcp_keepidle", "77", "77"),
        ("auth_type", "'any'", "any"),
        ("server_login_retry", "3", "3"),
    ] {
        console.ok(&format!("SET {key} = {value}"));
        assert_eq!(gateway.setting(key), shown, "{key}");
        client.ok("select 1");
    }
    assert_eq!(gateway.startup("shop").user("unlisted").refused().message, "role \"unlisted\" does not exist");
    // A connection with a lifetime of 0 is used once.
    console.ok("SET server_lifetime = 0");
    assert_ne!(client.backend(), client.backend());
    console.ok("SET disable_pqexec = 1");
    client.send(&Frames::new().query("select 1"));
    client.expect_fatal("08P01");
    let debugs = || gateway.log().matches("client did not log in").count();
    let come_and_go = || drop(gateway.startup("shop").open());
    console.ok("SET verbose = 1");
    eventually("debug lines are logged", || {
        come_and_go();
        debugs() > 0
    });
    console.ok("SET verbose = 0");
    assert_eq!(gateway.setting("verbose"), "0");
    for refused in ["SET verbose = 'loud'", "SET listen_addr = '*'", "SET auth_type = 'nothing'"] {
        assert_eq!(console.query(refused).code(), "08P01", "{refused}");
    }
}

#[test]
fn disable_kill_client_and_wait_close() {
    let gateway = IniGateway::start(SHOP);
    let mut client = gateway.client("shop");
    client.ok("select 1");
    let mut console = gateway.console();
    console.ok("DISABLE shop");
    assert_eq!(gateway.startup("shop").refused().code, "08P01");
    client.ok("select 1");
    console.ok("ENABLE shop");
    console.ok("RECONNECT shop");
    console.ok("WAIT_CLOSE shop");
    let clients = gateway.show("CLIENTS");
    let id = &clients.iter().find(|row| row["database"] == "shop").expect("the row exists")["id"];
    for (absent, message) in [("1000000", "client not found"), ("x", "invalid client pointer supplied")] {
        let error = console.query(&format!("KILL_CLIENT {absent}")).error.expect("there is no such client");
        assert!(error.code == "08P01" && error.message.starts_with(message), "{error:?}");
    }
    console.ok(&format!("KILL_CLIENT {id}"));
    assert_eq!(client.expect_fatal("08P01").message, "admin forced disconnect");
}

#[test]
fn shutdown_waits_for_servers() {
    let mut gateway = IniGateway::start(SHOP);
    let mut client = gateway.client("shop");
    client.ok("begin");
    let mut idle = gateway.client("shop");
    gateway.console().ok("SHUTDOWN WAIT_FOR_SERVERS");
    idle.send(&Frames::new().query("select 1"));
    assert_eq!(idle.expect_fatal("08P01").message, "server shutting down");
    client.ok("commit");
    assert!(gateway.wait().success());
}

/// SIGINT is the same. A client of session mode has its server until it leaves: it may have a temporary table there.
#[test]
fn shutdown_waits_for_idle_clients_of_session_mode() {
    let mut gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\npool_mode = session\n"));
    let mut client = gateway.client("shop");
    client.ok("create temporary table notes as select 7 as note");
    gateway.signal(Signal::INT);
    eventually("new clients are rejected", || gateway.startup("shop").try_connect().is_err());
    // The console is reached over the unix socket; other clients are refused.
    let mut console = gateway.unix("postgres", "pgbouncer").connect();
    assert_eq!(console.show("POOLS").iter().filter(|row| row["sv_active"] == "1").count(), 1);
    assert_eq!(gateway.unix("postgres", "shop").refused().message, "server shutting down");
    assert_eq!(client.value("select note from notes"), "7");
    let refused = console.query("RESUME").error.expect("RESUME is refused");
    assert_eq!((refused.code.as_str(), refused.message.as_str()), ("08P01", "pooler is shutting down"));
    assert_eq!(client.value("select note from notes"), "7");
    drop(client);
    assert!(gateway.wait().success());
}

#[test]
fn shutdown_waits_for_clients() {
    let mut gateway = IniGateway::start(SHOP);
    let mut client = gateway.client("shop");
    gateway.console().ok("SHUTDOWN WAIT_FOR_CLIENTS");
    eventually("new clients are rejected", || gateway.startup("shop").try_connect().is_err());
    gateway.unix("postgres", "shop").connect().ok("select 1");
    client.ok("select 1");
    // The console is reached over the unix socket.
    let mut console = gateway.unix("postgres", "pgbouncer").connect();
    let refused = console.query("RESUME").error.expect("RESUME is refused");
    assert_eq!(refused.message, "pooler is shutting down");
    drop(console);
    gateway.signal(Signal::USR2);
    gateway.wait_for_log("got SIGUSR2 while shutting down, ignoring");
    assert!(gateway.is_running());
    drop(client);
    assert!(gateway.wait().success());
}

/// pgbouncer_exporter reads these settings and rows.
#[test]
fn console_has_the_rows_of_pgbouncer_exporter() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\nmax_client_conn = 77\nmax_user_connections = 5\n"));
    assert_eq!(gateway.setting("max_client_conn"), "77");
    assert_eq!(gateway.setting("max_user_connections"), "5");
    let lists = gateway.show("LISTS");
    let names: Vec<_> = lists.iter().map(|row| row["list"].as_str()).collect();
    assert_eq!(
        names,
        [
            "databases",
            "users",
            "peers",
            "pools",
            "peer_pools",
            "free_clients",
            "used_clients",
            "login_clients",
            "free_servers",
            "used_servers",
            "dns_names",
            "dns_zones",
            "dns_queries",
            "dns_pending"
        ]
    );
    gateway.signal(Signal::HUP);
    eventually("clients are accepted", || gateway.startup("shop").try_connect().is_ok());
}

#[test]
fn large_table_does_not_block_its_thread() {
    let many = |count: u32, line: fn(u32) -> String| (0..count).map(line).collect::<String>();
    let databases = many(3000, |at| format!("db_{at} = host=127.0.0.1 pool_size=3\n"));
    let users = many(20_000, |at| format!("user_{at} = pool_size=3 max_user_connections=7\n"));
    let ini = format!("[databases]\n{databases}[users]\n{users}");
    let gateway = IniGateway::with(&Setup { ini: &ini, options: &["--workers", "1"], ..Setup::default() });
    let (mut reader, mut other) = (gateway.console(), gateway.console());
    for table in ["CONFIG", "USERS"] {
        reader.send(&Frames::new().query(&format!("SHOW {table}")));
        let mut replies = 0;
        while !reader.has_input() {
            other.ok("SHOW VERSION");
            replies += 1;
        }
        // Some replies may come before the first row.
        assert!(replies > 3, "SHOW {table}: {replies} replies meanwhile");
        assert!(reader.until_ready().rows.len() > 20_000);
    }
}

/// Like in PgBouncer, an administrator may choose files, but the console does not print their contents.
#[test]
fn errors_about_files_do_not_print_their_contents() {
    const CANARY: &str = "c4naryKq7w";
    let gateway = IniGateway::start(SHOP);
    let ini_file = gateway.file("pgbouncer.ini");
    let text = std::fs::read_to_string(&ini_file).expect("the file exists");
    let secret = gateway.file("secret");
    std::fs::write(&secret, format!("{CANARY}\n{CANARY} {CANARY}\n\"{CANARY}\"\n")).expect("the file can be written");
    let mut console = gateway.console();
    let reloaded = |console: &mut tidegate_testkit::RawClient| {
        let error = console.query("RELOAD").error.expect("the file is rejected");
        assert!(!format!("{error:?}").contains(CANARY), "{error:?}");
        error.message
    };
    console.ok(&format!("SET conffile = '{}'", secret.display()));
    assert!(reloaded(&mut console).contains("secret:1: syntax error"));
    console.ok(&format!("SET conffile = '{}'", ini_file.display()));
    for (lines, expected) in [
        (format!("[{CANARY}]\nx = 1\n"), "unknown key or section"),
        (format!("[pgbouncer]\n{CANARY} = 1\n"), "unknown key or section"),
        (format!("[pgbouncer]\npool_mode = {CANARY}\n"), "pool_mode: invalid setting"),
        (format!("[databases]\ny = host=a password=b {CANARY}\n"), "invalid setting"),
        (format!("[databases]\ny = host=a password=b {CANARY}=x\n"), "unknown key"),
        (format!("%include {CANARY}\n"), "the file cannot be used"),
        (format!("[pgbouncer]\nauth_type = hba\nauth_hba_file = {}\n", secret.display()), "secret:1: invalid rule"),
        (format!("[pgbouncer]\nauth_type = md5\nauth_file = {}\n", secret.display()), "auth_file: invalid setting"),
    ] {
        std::fs::write(&ini_file, format!("{text}{lines}")).expect("the file can be written");
        let message = reloaded(&mut console);
        assert!(message.contains(expected), "{lines}: {message}");
    }
    let files = format!("client_tls_key_file = {0}\nclient_tls_cert_file = {0}\n", secret.display());
    let lines = format!("{text}[pgbouncer]\nclient_tls_sslmode = allow\n{files}");
    std::fs::write(&ini_file, lines).expect("the file can be written");
    let outcome = console.ok("RELOAD");
    assert!(!format!("{outcome:?}").contains(CANARY), "{outcome:?}");
}

/// A reader of the log may read the files, but must not find passwords in the log.
#[test]
fn log_of_an_invalid_file_has_no_passwords() {
    const CANARY: &str = "c4naryKq7w";
    let gateway = IniGateway::start(SHOP);
    for lines in [
        format!("[databases]\ny = host=a password=b {CANARY}\n"),
        format!("[databases]\ny = host=a password='b {CANARY}\n"),
        format!("[databases]\ny = host=a user=b password={CANARY} pool_mode=x\n"),
        format!("[pgbouncer]\nauth_ldap_options = ldapbindpasswd=a {CANARY}\nauth_type = ldap\n"),
    ] {
        gateway.set_config(&lines);
        assert_eq!(gateway.console().query("RELOAD").code(), "08P01", "{lines}");
    }
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains(CANARY));
    assert_eq!(line, None);
}

/// PgBouncer sends each of these to a server; here most are answered without one.
#[test]
fn parse_and_sync_without_a_server_are_counted() {
    let gateway = IniGateway::start(SHOP);
    let (mut first, mut second) = (gateway.client("shop"), gateway.client("shop"));
    let parse = |name: &str| Frames::new().parse(name, "select 1").sync();
    first.send(&parse("a"));
    first.expect("1 Z:I");
    second.send(&parse("b"));
    second.expect("1 Z:I");
    second.send(&Frames::new().sync());
    second.expect("Z:I");
    second.send(&Frames::new().close_statement("b").sync());
    second.expect("3 Z:I");
    let rows = gateway.show("STATS_TOTALS");
    let row = rows.iter().find(|row| row["database"] == "shop").expect("the row exists");
    let of = |column: &str| row[column].as_str();
    assert_eq!([of("server_assignment_count"), of("xact_count"), of("query_count")], ["4", "4", "4"]);
    assert_eq!(of("client_parse_count"), "2");
    // The second client may get another server connection.
    assert!(["1", "2"].contains(&of("server_parse_count")), "{row:?}");
}

#[test]
fn untracked_statements_are_not_counted() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\nmax_prepared_statements = 0\n"));
    gateway.client("shop").ok("select 1");
    let mut client = gateway.client("shop");
    client.send(&Frames::new().parse("", "select 1").bind("", &[]).execute().sync());
    client.until_ready();
    client.send(&Frames::new().parse("", "select 1").sync());
    client.expect("1 Z:I");
    let rows = gateway.show("STATS_TOTALS");
    let row = rows.iter().find(|row| row["database"] == "shop").expect("the row exists");
    for (column, count) in
        [("query_count", "3"), ("client_parse_count", "0"), ("server_parse_count", "0"), ("bind_count", "0")]
    {
        assert_eq!(row[column], count, "{column}");
    }
}

/// The names of clients reach the servers, also those that were tracked until then.
#[test]
fn max_prepared_statements_0_switches_tracking_off() {
    let gateway = IniGateway::start(SHOP);
    let mut console = gateway.console();
    let mut client = gateway.client("shop");
    client.send(&Frames::new().parse("a", "select 'tracked'").sync());
    client.expect("1 Z:I");
    let bind = Frames::new().bind("a", &[]).execute().sync();
    let describe = Frames::new().describe_statement("a").sync();
    console.ok("SET max_prepared_statements = 0");
    for request in [&bind, &describe] {
        client.send(request);
        assert_eq!(client.until_ready().code(), "26000");
    }
    console.ok("SET max_prepared_statements = 200");
    client.send(&bind);
    assert_eq!(client.until_ready().value(), "tracked");
}

#[test]
fn clients_and_servers_have_different_ids() {
    let gateway = IniGateway::start(SHOP);
    let mut clients: Vec<_> = (0..3).map(|_| gateway.client("shop")).collect();
    for client in &mut clients {
        client.ok("select 1");
    }
    let rows = gateway.show("SOCKETS");
    let ids: BTreeSet<&str> = rows.iter().map(|row| row["id"].as_str()).collect();
    assert!(rows.len() >= 5 && ids.len() == rows.len(), "{rows:?}");
}

/// SQLAlchemy parses the version of Postgres; psqlODBC looks for the type `lo`, and psycopg for `hstore`.
#[test]
fn console_answers_what_tools_ask_at_connect() {
    let gateway = IniGateway::start(SHOP);
    let mut console = gateway.console();
    let version = console.ok("select pg_catalog.version()").value();
    assert!(version.starts_with("PostgreSQL 14.0 (Tidegate "), "{version}");
    for query in [
        "select oid, typbasetype from pg_type where typname = 'lo'",
        "SELECT t.oid, NULL FROM pg_type t JOIN pg_namespace ns ON typnamespace = ns.oid WHERE typname = 'hstore';",
        "SELECT typname AS name, oid::regtype::text AS regtype FROM pg_type t WHERE t.oid = to_regtype('hstore')",
    ] {
        let outcome = console.ok(query);
        assert_eq!((outcome.rows.len(), outcome.tags.as_slice()), (0, &["SELECT 0".to_owned()][..]), "{query}");
        let columns = outcome.messages.iter().find(|message| message.tag == b'T').map(Message::columns);
        assert_eq!(columns.map(|columns| columns.len()), Some(2), "{query}");
    }
    assert_eq!(console.query("select relname from pg_class").code(), "08P01");
    // psycopg passes the name of the type.
    let sql = "SELECT typname AS name, oid, typarray AS array_oid FROM pg_type t WHERE t.oid = to_regtype($1::text)";
    console.send(&Frames::new().parse("", sql).describe_statement("").bind("", &["hstore"]).execute().sync());
    let outcome = console.until_ready();
    assert!(outcome.error.is_none() && outcome.rows.is_empty(), "{outcome:?}");
    console.send(&Frames::new().parse("", sql).bind("", &[]).sync());
    assert_eq!(console.until_ready().code(), "08P01", "a value is missing");
}
