//! The keys of a file, one by one: that each is in force, under its own name and in its own unit, and what a few of them do
//! that no other test of this target looks at.

use tidegate_testkit::{Authority, Frames, Signal, eventually};

use crate::bouncer::{Bouncer, server};

/// Keys with a value that is not the default. What needs files, users or certificates is tested elsewhere.
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
fn every_key_of_the_file_is_in_force() {
    let lines: String = KEYS.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    let bouncer = Bouncer::start(&format!("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\n{lines}"));
    let shown = bouncer.show("CONFIG");
    let value = |key: &str| shown.iter().find(|row| row["key"] == key).map(|row| row["value"].as_str());
    let wrong: Vec<_> = KEYS.iter().filter(|(key, given)| value(key) != Some(given)).collect();
    assert!(wrong.is_empty(), "{:?}", wrong.iter().map(|(key, given)| (key, given, value(key))).collect::<Vec<_>>());
    // And with all of that it serves.
    bouncer.client("shop").ok("select 1");
}

#[test]
fn users_are_looked_up_in_the_database_that_is_named() {
    // Whoever looks in another database finds nobody.
    let query = "select $1::text, case current_database() when 'template1' then 'right' end";
    let auth = format!("auth_type = md5\nauth_user = postgres\nauth_query = {query}\n");
    for (own, general) in [("", "auth_dbname = side\n"), ("auth_dbname=side", "")] {
        let bouncer = Bouncer::start(&format!(
            "[databases]\nshop = $PG dbname=postgres user=postgres {own}\nside = $PG dbname=template1\n[pgbouncer]\n\
             {auth}{general}"
        ));
        let login = |password: &str| bouncer.startup("shop").user("whoever").password(password);
        login("right").connect().ok("select 1");
        assert_eq!(login("wrong").refused().severity, "FATAL");
    }
    let nowhere =
        Bouncer::start(&format!("[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\n{auth}"));
    assert_eq!(nowhere.startup("shop").user("whoever").password("right").refused().severity, "FATAL");
}

#[test]
fn what_the_log_is_not_to_tell_it_does_not_tell() {
    let shop = "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\n";
    let quiet = "log_connections = 0\nlog_disconnections = 0\nlog_pooler_errors = 0\n";
    for (lines, tells) in [("", true), (quiet, false)] {
        let bouncer = Bouncer::start(&format!("{shop}{lines}"));
        drop(bouncer.client("shop"));
        let refused = bouncer.startup("nowhere").refused();
        assert_eq!(refused.message, "no such database: nowhere");
        eventually("the client is gone", || bouncer.show("CLIENTS").iter().all(|row| row["database"] != "shop"));
        // What comes last is in the log when all the rest is.
        bouncer.signal(Signal::HUP);
        bouncer.wait_for_log("configuration reloaded");
        let log = bouncer.log();
        for words in ["login attempt: db=shop", "closing because: ", "pooler error: no such database"] {
            assert_eq!(log.contains(words), tells, "{words}: {log}");
        }
    }
}

#[test]
fn another_period_of_the_log_holds_at_once() {
    let bouncer = Bouncer::start("[databases]\nshop = $PG dbname=postgres\n");
    bouncer.console().ok("SET stats_period = 1");
    assert_eq!(bouncer.setting("stats_period"), "1");
    bouncer.wait_for_log("stats: 0 xacts/s");
}

#[test]
fn servers_have_to_show_a_certificate_of_the_authority_that_is_named() {
    let stranger = Authority::new();
    let own = server().authority().ca();
    for (mode, ca, is_good) in
        [("verify-full", own.clone(), true), ("verify-ca", own, true), ("verify-ca", stranger.ca(), false)]
    {
        let bouncer = Bouncer::start(&format!(
            "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nserver_tls_sslmode = {mode}\nserver_tls_ca_file = {}\n",
            ca.display()
        ));
        if is_good {
            let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
            assert_eq!(bouncer.client("shop").value(encrypted), "t", "{mode}");
        } else {
            assert_eq!(bouncer.startup("shop").refused().severity, "FATAL");
        }
    }
}

/// What a reload takes out is gone for all, each at the end of its transaction.
#[test]
fn clients_of_a_database_that_is_taken_out_are_told() {
    let ini = "[databases]\nshop = $PG dbname=postgres\n";
    for mode in ["transaction", "session"] {
        let more = format!("{ini}gone = $PG dbname=postgres pool_size=1\n[pgbouncer]\npool_mode = {mode}\n");
        let bouncer = Bouncer::start(&more);
        let mut idle = bouncer.client("gone");
        let mut busy = bouncer.client("gone");
        if mode == "transaction" {
            idle.ok("select 1");
        }
        busy.ok("begin");
        let mut waiting = bouncer.client("gone");
        waiting.send(&Frames::new().query("select 1"));
        bouncer.wait_for_pool("gone", "cl_waiting", 1);
        bouncer.rewrite(&format!("{ini}[pgbouncer]\npool_mode = {mode}\n"));
        bouncer.console().ok("RELOAD");
        for client in [&mut idle, &mut waiting] {
            assert_eq!(client.expect_fatal("08P01").message, "database removed", "{mode}");
        }
        busy.ok("select 1");
        busy.send(&Frames::new().query("commit"));
        assert!(busy.until_ready().error.is_none());
        assert_eq!(busy.expect_fatal("08P01").message, "database removed", "{mode}");
        for words in ["closing because: database removed (age=", "pooler error: database removed"] {
            bouncer.wait_for_log(words);
        }
        assert_eq!(bouncer.startup("gone").refused().message, "no such database: gone");
    }
}

/// What a reload cannot change is shown as it is.
#[test]
fn a_key_that_needs_a_restart_is_shown_as_it_holds() {
    let ini = "[databases]\nshop = $PG dbname=postgres\n";
    let bouncer = Bouncer::start(ini);
    let mut console = bouncer.console();
    let port = bouncer.port().to_string();
    bouncer.rewrite(&format!("{ini}[pgbouncer]\nlisten_port = 1\nlisten_backlog = 7\nmax_client_conn = 55\n"));
    console.ok("RELOAD");
    for (key, value) in [("listen_port", port.as_str()), ("listen_backlog", "128"), ("max_client_conn", "55")] {
        assert_eq!(Bouncer::setting_by(&mut console, key), value, "{key}");
    }
    assert!(bouncer.log().contains("this change needs a restart key=listen.backlog"), "{}", bouncer.log());
}
