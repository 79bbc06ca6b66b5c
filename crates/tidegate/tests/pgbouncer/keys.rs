//! The keys of a file: each one takes effect under its name and in its unit. Some are tested here in detail because no
//! other test covers them.

use tidegate_testkit::{Authority, Frames, Signal, eventually};

use crate::ini_gateway::{IniGateway, server};

/// Keys with a value other than the default. Keys that need files, users or certificates are tested elsewhere.
const KEYS: &[(&str, &str)] = &[
    ("admin_users", "postgres,boss"),
    ("application_name_add_host", "1"),
    ("auth_dbname", "shop"),
    ("auth_query", "select 1, 2"),
    ("auth_user", "postgres"),
    ("autodb_idle_timeout", "93"),
    ("cancel_wait_timeout", "3"),
    ("client_idle_timeout", "91"),
    ("client_login_timeout", "92"),
    ("default_pool_size", "11"),
    ("dns_max_ttl", "44"),
    ("dns_nxdomain_ttl", "33"),
    ("dns_zone_check_period", "55"),
    ("idle_transaction_timeout", "94"),
    ("ignore_startup_parameters", "extra_float_digits,options"),
    ("listen_backlog", "77"),
    ("log_connections", "0"),
    ("log_disconnections", "0"),
    ("log_pooler_errors", "0"),
    ("log_stats", "0"),
    ("login_notify_message", "hello"),
    ("max_client_conn", "88"),
    ("max_db_client_connections", "32"),
    ("max_db_connections", "31"),
    ("max_packet_size", "100000"),
    ("max_prepared_statements", "35"),
    ("max_user_client_connections", "34"),
    ("max_user_connections", "33"),
    ("min_pool_size", "2"),
    ("peer_id", "9"),
    ("pool_mode", "session"),
    ("query_timeout", "95"),
    ("query_wait_notify", "7"),
    ("query_wait_timeout", "96"),
    ("reserve_pool_size", "3"),
    ("reserve_pool_timeout", "2.5"),
    ("resolv_conf", "/etc/resolv.conf"),
    ("scram_iterations", "5000"),
    ("server_check_delay", "12"),
    ("server_check_query", "select 2"),
    ("server_connect_timeout", "4"),
    ("server_fast_close", "1"),
    ("server_idle_timeout", "70"),
    ("server_lifetime", "90"),
    ("server_login_retry", "6"),
    ("server_reset_query", "RESET ALL"),
    ("server_reset_query_always", "1"),
    ("server_round_robin", "1"),
    ("so_reuseport", "1"),
    ("stats_period", "45"),
    ("stats_users", "eye"),
    ("suspend_timeout", "8"),
    ("syslog_facility", "local3"),
    ("syslog_ident", "x"),
    ("tcp_keepalive", "0"),
    ("tcp_keepcnt", "4"),
    ("tcp_keepidle", "50"),
    ("tcp_keepintvl", "9"),
    ("tcp_socket_buffer", "8192"),
    ("tcp_user_timeout", "1500"),
    ("transaction_timeout", "97"),
    ("unix_socket_mode", "0700"),
    ("verbose", "1"),
];

#[test]
fn every_key_of_the_file_takes_effect() {
    let lines: String = KEYS.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    let gateway = IniGateway::start(&format!("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\n{lines}"));
    let shown = gateway.show("CONFIG");
    let value = |key: &str| shown.iter().find(|row| row["key"] == key).map(|row| row["value"].as_str());
    let wrong: Vec<_> = KEYS.iter().filter(|(key, given)| value(key) != Some(given)).collect();
    assert!(wrong.is_empty(), "{:?}", wrong.iter().map(|(key, given)| (key, given, value(key))).collect::<Vec<_>>());
    // The gateway serves clients with all of these keys.
    gateway.client("shop").ok("select 1");
}

#[test]
fn auth_dbname_selects_the_database_of_auth_query() {
    // The query finds no user in another database.
    let query = "select $1::text, case current_database() when 'template1' then 'right' end";
    let auth = format!("auth_type = md5\nauth_user = postgres\nauth_query = {query}\n");
    for (own, general) in [("", "auth_dbname = side\n"), ("auth_dbname=side", "")] {
        let gateway = IniGateway::start(&format!(
            "[databases]\nshop = $PG dbname=postgres user=postgres {own}\nside = $PG dbname=template1\n[pgbouncer]\n\
             {auth}{general}"
        ));
        let login = |password: &str| gateway.startup("shop").user("unlisted").password(password);
        login("right").connect().ok("select 1");
        assert_eq!(login("wrong").refused().severity, "FATAL");
    }
    let without_key =
        IniGateway::start(&format!("[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\n{auth}"));
    assert_eq!(without_key.startup("shop").user("unlisted").password("right").refused().severity, "FATAL");
}

#[test]
fn log_keys_disable_log_lines() {
    let shop = "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\n";
    let disabled = "log_connections = 0\nlog_disconnections = 0\nlog_pooler_errors = 0\n";
    for (lines, is_logged) in [("", true), (disabled, false)] {
        let gateway = IniGateway::start(&format!("{shop}{lines}"));
        drop(gateway.client("shop"));
        let refused = gateway.startup("no_such_db").refused();
        assert_eq!(refused.message, "no such database: no_such_db");
        eventually("the client is gone", || gateway.show("CLIENTS").iter().all(|row| row["database"] != "shop"));
        // The line of the reload comes last, so that all other lines have been written.
        gateway.signal(Signal::HUP);
        gateway.wait_for_log("configuration reloaded");
        let log = gateway.log();
        for text in ["login attempt: db=shop", "closing because: ", "pooler error: no such database"] {
            assert_eq!(log.contains(text), is_logged, "{text}: {log}");
        }
    }
}

#[test]
fn set_stats_period_takes_effect_immediately() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres\n");
    gateway.console().ok("SET stats_period = 1");
    assert_eq!(gateway.setting("stats_period"), "1");
    gateway.wait_for_log("stats: 0 xacts/s");
}

#[test]
fn server_certificate_is_checked_with_the_ca_file() {
    let other = Authority::new();
    let server_ca = server().authority().ca();
    for (mode, ca, is_good) in
        [("verify-full", server_ca.clone(), true), ("verify-ca", server_ca, true), ("verify-ca", other.ca(), false)]
    {
        let gateway = IniGateway::start(&format!(
            "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nserver_tls_sslmode = {mode}\nserver_tls_ca_file = {}\n\
             query_wait_timeout = 1\n",
            ca.display()
        ));
        if is_good {
            let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
            assert_eq!(gateway.client("shop").value(encrypted), "t", "{mode}");
        } else {
            // Clients wait until the certificate is right, as in PgBouncer.
            assert!(gateway.startup("shop").refused().message.contains("query_wait_timeout"));
        }
    }
}

/// A database removed by a reload is closed for every client at the end of its transaction.
#[test]
fn clients_of_a_removed_database_get_an_error() {
    let ini = "[databases]\nshop = $PG dbname=postgres\n";
    for mode in ["transaction", "session"] {
        let more = format!("{ini}gone = $PG dbname=postgres pool_size=1\n[pgbouncer]\npool_mode = {mode}\n");
        let gateway = IniGateway::start(&more);
        let mut idle = gateway.client("gone");
        let mut busy = gateway.client("gone");
        if mode == "transaction" {
            idle.ok("select 1");
        }
        busy.ok("begin");
        let mut waiting = gateway.client("gone");
        waiting.send(&Frames::new().query("select 1"));
        gateway.wait_for_pool("gone", "cl_waiting", 1);
        gateway.set_config(&format!("{ini}[pgbouncer]\npool_mode = {mode}\n"));
        gateway.console().ok("RELOAD");
        for client in [&mut idle, &mut waiting] {
            assert_eq!(client.expect_fatal("08P01").message, "database removed", "{mode}");
        }
        busy.ok("select 1");
        busy.send(&Frames::new().query("commit"));
        assert!(busy.until_ready().error.is_none());
        assert_eq!(busy.expect_fatal("08P01").message, "database removed", "{mode}");
        for text in ["closing because: database removed (age=", "pooler error: database removed"] {
            gateway.wait_for_log(text);
        }
        assert_eq!(gateway.startup("gone").refused().message, "no such database: gone");
    }
}

/// SHOW CONFIG has the effective value of a key that a reload cannot change.
#[test]
fn key_that_needs_a_restart_shows_the_current_value() {
    let ini = "[databases]\nshop = $PG dbname=postgres\n";
    let gateway = IniGateway::start(ini);
    let mut console = gateway.console();
    let port = gateway.port().to_string();
    gateway.set_config(&format!("{ini}[pgbouncer]\nlisten_port = 1\nlisten_backlog = 7\nmax_client_conn = 55\n"));
    console.ok("RELOAD");
    for (key, value) in [("listen_port", port.as_str()), ("listen_backlog", "128"), ("max_client_conn", "55")] {
        assert_eq!(IniGateway::setting_by(&mut console, key), value, "{key}");
    }
    assert!(gateway.log().contains("this change needs a restart key=listen.backlog"), "{}", gateway.log());
}
