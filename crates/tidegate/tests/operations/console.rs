//! The admin console: permissions, tables and commands, over both query protocols.

use tidegate_testkit::{FaultyServer, Frames, Gateway, RawClient, eventually, gateway_for, on_each_postgres};

pub(crate) fn gateway_with_stats_user(fixture: &tidegate_testkit::Fixture) -> Gateway {
    fixture.gateway("size = 2\n[admin]\nusers = [\"postgres\"]\nstats_users = [\"watcher\"]\n")
}

/// A gateway whose user may have one server. A client of database `one` holds it in a transaction, and a client of
/// `two` waits.
fn one_server_for_two_databases(fixture: &tidegate_testkit::Fixture) -> (Gateway, RawClient, RawClient) {
    let limit = "[pool]\nmax_per_user = 1\n[timeouts]\ncheckout = \"60s\"\n";
    let gateway = fixture.gateway_to(&[("one", "postgres"), ("two", "postgres")], limit);
    let mut waiting = gateway.client("two");
    let mut busy = gateway.client("one");
    busy.ok("begin");
    waiting.send(&Frames::new().query("select 1"));
    eventually("the pool requests a server", || gateway.pool_count("two", "sv_login") == 1);
    (gateway, busy, waiting)
}

const COMMANDS: &[&str] = &[
    "PAUSE",
    "PAUSE postgres",
    "RESUME",
    "RECONNECT",
    "RELOAD",
    "KILL postgres",
    "SHUTDOWN",
    "KILL_CLIENT 1",
    "STREAM STOP",
];

on_each_postgres! {
    /// EDGE-73: CVE-2026-6667: stats users could run a command.
    fn stats_user_can_only_read(fixture) {
        let mut gateway = gateway_with_stats_user(fixture);
        let mut watcher = gateway.startup("pgbouncer").user("watcher").connect();
        watcher.ok("SHOW POOLS");
        for command in COMMANDS {
            for sql in [(*command).to_owned(), command.to_lowercase(), format!("  {command} ;")] {
                assert_eq!(watcher.query(&sql).code(), "42501", "{sql}");
            }
            watcher.send(&Frames::new().once(command).sync());
            assert_eq!(watcher.until_ready().code(), "42501", "{command}");
        }
        gateway.client("postgres").ok("select 1");
        assert!(gateway.is_running());
    }

    /// EDGE-73.
    fn other_users_cannot_log_in_to_the_console(fixture) {
        let gateway = gateway_with_stats_user(fixture);
        for database in ["tidegate", "pgbouncer"] {
            let refused = gateway.startup(database).user("other").refused();
            assert_eq!(refused.severity, "FATAL");
            assert!(["28000", "42501", "28P01"].contains(&refused.code.as_str()), "{refused:?}");
        }
    }

    /// EDGE-73.
    fn console_answers_both_names_and_both_protocols(fixture) {
        let gateway = gateway_with_stats_user(fixture);
        gateway.client("postgres").ok("select 1");
        for database in ["tidegate", "pgbouncer"] {
            let mut console = gateway.client(database);
            for table in ["CLIENTS", "SERVERS", "POOLS", "DATABASES", "STATS", "CONFIG", "STATE", "VERSION"] {
                let simple = console.ok(&format!("SHOW {table}"));
                assert!(!simple.rows.is_empty(), "SHOW {table}");
                assert_eq!(simple.tags, ["SHOW"]);
                let show = Frames::new().parse("", &format!("show {}", table.to_lowercase()));
                console.send(&show.describe_statement("").bind("", &[]).describe_portal("").execute().sync());
                let extended = console.until_ready();
                let columns = |outcome: &tidegate_testkit::Outcome| {
                    let description = outcome.messages.iter().find(|message| message.tag == b'T');
                    description.map(tidegate_testkit::Message::columns)
                };
                assert_eq!(columns(&extended), columns(&simple), "SHOW {table}");
                assert!(extended.error.is_none(), "SHOW {table}: {:?}", extended.error);
            }
            console.query("SHOW HELP");
            let unknown = console.query("SHOW NONSENSE");
            assert_eq!(unknown.status, 'I');
            assert!(unknown.error.is_some());
            console.ok("SHOW VERSION");
        }
    }

    /// EDGE-73: Exporters and dashboards select these columns by name.
    fn tables_have_the_columns_of_pgbouncer(fixture) {
        let gateway = gateway_with_stats_user(fixture);
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let columns = [
            ("POOLS", "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active \
                sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us pool_mode"),
            ("CLIENTS", "type user database state addr port local_addr local_port connect_time request_time wait \
                wait_us close_needed ptr link remote_pid tls application_name prepared_statements id"),
            ("SERVERS", "type user database state addr port local_addr local_port connect_time request_time wait \
                wait_us close_needed ptr link remote_pid tls application_name prepared_statements id"),
            ("DATABASES", "name host port database force_user pool_size min_pool_size reserve_pool_size pool_mode \
                max_connections current_connections paused disabled"),
            ("STATS", "database total_xact_count total_query_count total_received total_sent total_xact_time \
                total_query_time total_wait_time avg_xact_count avg_query_count avg_recv avg_sent avg_xact_time \
                avg_query_time avg_wait_time"),
            ("CONFIG", "key value default changeable"),
            ("STATE", "key value"),
            ("VERSION", "version"),
        ];
        for (table, expected) in columns {
            let rows = gateway.show(table);
            for column in expected.split_whitespace() {
                assert!(rows[0].contains_key(column), "SHOW {table} has no {column}: {:?}", rows[0].keys());
            }
        }
    }

    /// EDGE-73.
    fn pool_counts_follow_the_clients(fixture) {
        let gateway = gateway_with_stats_user(fixture);
        let mut busy: Vec<_> = (0..2).map(|_| gateway.client("postgres")).collect();
        busy.iter_mut().for_each(|client| drop(client.ok("begin")));
        let mut waiting = gateway.client("postgres");
        waiting.send(&Frames::new().query("select 1"));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        gateway.wait_for_pool("postgres", "sv_active", 2);
        let clients = gateway.show("CLIENTS");
        let states = |state: &str| {
            clients.iter().filter(|row| row["database"] == "postgres" && row["state"] == state).count()
        };
        assert_eq!(states("waiting"), 1, "{clients:?}");
        assert_eq!(states("active"), 2, "{clients:?}");
        busy.iter_mut().for_each(|client| drop(client.ok("commit")));
        waiting.until_ready();
        gateway.wait_for_pool("postgres", "cl_waiting", 0);
        gateway.wait_for_pool("postgres", "sv_active", 0);
    }

    /// EDGE-73.
    fn transactions_of_a_pipeline_are_counted(fixture) {
        for mode in ["transaction", "session"] {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n[admin]\nusers = [\"postgres\"]\n"));
            let mut client = gateway.client("postgres");
            let several = |one: Frames| (0..10).fold(Frames::new(), |all, _| all.then(&one));
            let block = Frames::new().query("begin").query("select 1").once("commit").sync();
            let flights = several(Frames::new().once("select 1").sync()).then(&several(Frames::new().query("select 1")));
            client.send(&flights.then(&several(block)).query("select 'the end'"));
            while client.until_ready().rows.last().is_none_or(|row| row[0] != "the end") {}
            let stats = gateway.show("STATS").into_iter().find(|row| row["database"] == "postgres");
            let stats = stats.expect("the database was used");
            let counts = (&*stats["total_xact_count"], &*stats["total_query_count"]);
            assert_eq!(counts, ("31", "51"), "{mode}: {stats:?}");
        }
    }

    /// EDGE-73.
    fn pinned_clients_are_shown(fixture) {
        let gateway = gateway_with_stats_user(fixture);
        let mut pinned = gateway.client("postgres");
        pinned.ok("listen visible");
        let _other = gateway.client("postgres");
        let pins = gateway.show("PINS");
        let clients = gateway.show("CLIENTS");
        let [row] = &pins[..] else { panic!("one client is pinned: {pins:?}") };
        assert_eq!((row["database"].as_str(), row["pinned"].as_str()), ("postgres", "listen"), "{row:?}");
        assert!(clients.iter().any(|client| client["id"] == row["id"] && client["link"] == row["link"]), "{clients:?}");
    }

    /// EDGE-73: The connect waits for a server of the other database.
    fn pause_does_not_wait_for_a_blocked_connect(fixture) {
        let (gateway, _busy, waiting) = one_server_for_two_databases(fixture);
        gateway.console().ok("PAUSE two");
        assert_eq!(gateway.pool_count("two", "sv_login"), 0);
        gateway.console().ok("RESUME two");
        eventually("the pool requests a server again", || gateway.pool_count("two", "sv_login") == 1);
        drop(waiting);
    }

    /// EDGE-73: Neither SET nor RELOAD reverts the change of the other session.
    fn concurrent_set_and_reload_keep_both_changes(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let value_of = |gateway: &Gateway, key: &str| {
            let rows = gateway.show("CONFIG");
            rows.iter().find(|row| row["key"] == key).expect("the key exists")["value"].clone()
        };
        let (mut one, mut two) = (gateway.console(), gateway.console());
        for seconds in 100..160 {
            let set = |key: &str| Frames::new().query(&format!("SET {key} = '{seconds}s'"));
            one.send(&set("timeouts.connect"));
            two.send(&set("timeouts.checkout"));
            assert!(one.until_ready().error.is_none() && two.until_ready().error.is_none());
            for key in ["timeouts.connect", "timeouts.checkout"] {
                assert_eq!(value_of(&gateway, key), format!("{seconds}s"), "{key}");
            }
            gateway.set_config("timeouts.login", format!("{seconds}s"));
            one.send(&set("timeouts.connect"));
            two.send(&Frames::new().query("RELOAD"));
            assert!(one.until_ready().error.is_none() && two.until_ready().error.is_none());
            assert_eq!(value_of(&gateway, "timeouts.login"), format!("{seconds}s"));
        }
    }

    /// EDGE-73.
    fn no_connect_for_disconnected_clients(fixture) {
        let (gateway, mut busy, waiting) = one_server_for_two_databases(fixture);
        waiting.disconnect(false);
        gateway.wait_for_pool("two", "sv_login", 0);
        busy.ok("commit");
        // The next client is served.
        gateway.client("two").ok("select 1");
    }

    /// EDGE-73.
    fn no_connect_for_a_removed_database(fixture) {
        let (mut gateway, mut busy, mut waiting) = one_server_for_two_databases(fixture);
        let connects = |gateway: &Gateway| {
            let rows = gateway.show("TASKS");
            let connect_tasks = rows.iter().filter(|row| row["path"].starts_with("tidegate/chores"));
            connect_tasks.map(|row| row["live"].parse::<u32>().expect("a count")).sum::<u32>()
        };
        assert_eq!(connects(&gateway), 1);
        gateway.remove_config("databases.two");
        gateway.console().ok("RELOAD");
        waiting.expect_fatal("57P01");
        eventually("the connect is cancelled", || connects(&gateway) == 0);
        busy.ok("commit");
    }

    /// EDGE-73.
    fn kill_closes_the_clients_of_a_database(fixture) {
        let gateway = fixture.gateway_to(&[("other", "postgres"), ("postgres", "postgres")], "size = 1\n");
        let mut killed = gateway.client("postgres");
        killed.ok("select 1");
        let mut other = gateway.client("other");
        other.ok("select 1");
        gateway.console().ok("KILL postgres");
        assert!(killed.try_query("select 2").is_err());
        other.ok("select 1");
        gateway.console().ok("RESUME postgres");
        eventually("the database accepts clients again", || {
            gateway.startup("postgres").try_connect().is_ok_and(|mut client| client.try_query("select 1").is_ok())
        });
    }

    /// EDGE-73: Every activity of the gateway is a task of the tree, and the counts of its ends add up.
    fn show_tasks_counts_live_and_ended_tasks(fixture) {
        let gateway = gateway_with_stats_user(fixture);
        let clients: Vec<_> = (0..3).map(|_| gateway.client("postgres")).collect();
        let number = |row: &std::collections::BTreeMap<String, String>, column: &str| -> u64 {
            row[column].parse().expect("a count")
        };
        let sum = |scope: &str, column: &str| -> u64 {
            let rows = gateway.show("TASKS");
            rows.iter().filter(|row| row["path"].starts_with(scope)).map(|row| number(row, column)).sum()
        };
        assert!(sum("tidegate/clients", "live") > clients.len() as u64, "the console is a client as well");
        assert!(sum("tidegate/listen", "live") > 0);
        for (scope, least) in [("tidegate/control", 3), ("tidegate/sweeps", 1), ("tidegate/look-ups", 0)] {
            assert!(sum(scope, "live") >= least && !gateway.show("TASKS").is_empty(), "{scope}");
        }
        let mut busy = gateway.client("postgres");
        busy.ok("begin");
        assert_eq!(sum("tidegate/servers", "live"), 1, "a server in use");
        busy.ok("commit");
        assert_eq!(sum("tidegate/servers", "live"), 1, "an idle server");
        gateway.console().ok("RECONNECT");
        eventually("the server is closed", || sum("tidegate/servers", "returned") == 1);
        busy.ok("select 1");
        drop(busy);
        drop(clients);
        eventually("the clients have ended", || sum("tidegate/clients", "returned") >= 3);
        let balances = |row: &std::collections::BTreeMap<String, String>| {
            let outcomes = ["returned", "failed", "panicked", "aborted", "dropped"];
            let ended: u64 = outcomes.into_iter().map(|outcome| number(row, outcome)).sum();
            number(row, "started") == number(row, "live") + ended
        };
        // A task may end while its row is written.
        eventually("the counts add up", || gateway.show("TASKS").iter().all(balances));
        for row in gateway.show("TASKS") {
            assert_eq!((number(&row, "panicked"), number(&row, "restarts")), (0, 0), "{row:?}");
        }
    }

    /// EDGE-12.
    fn pause_waits_for_open_transactions(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut client = gateway.client("postgres");
        let mut other = gateway.client("postgres");
        let mut console = gateway.console();
        client.ok("begin");
        console.send(&Frames::new().query("PAUSE postgres"));
        eventually("new queries wait", || gateway.show("DATABASES").iter().any(|row| {
            row["name"] == "postgres" && row["paused"] == "1"
        }));
        other.send(&Frames::new().query("select 'other'"));
        assert_eq!(client.value("select 1"), "1");
        assert!(!console.has_input());
        assert!(!other.has_input());
        client.ok("commit");
        console.expect("C:PAUSE Z:I");
        assert!(!other.has_input());
        console.ok("RESUME postgres");
        other.expect("T D:other C:SELECT_1 Z:I");
    }

    /// EDGE-12.
    fn reconnect_waits_for_open_transactions(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let before = client.backend();
        gateway.console().ok("RECONNECT postgres");
        assert_eq!(client.backend(), before);
        client.ok("commit");
        assert_ne!(client.backend(), before);
    }

    /// EDGE-12.
    fn reload_does_not_affect_open_transactions(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let before = client.backend();
        gateway.set_config("databases.postgres.size", 2);
        gateway.console().ok("RELOAD");
        assert_eq!(client.backend(), before);
        assert_eq!(client.ok("commit").status, 'I');
        let mut others: Vec<_> = (0..2).map(|_| gateway.client("postgres")).collect();
        others.iter_mut().for_each(|other| drop(other.ok("begin")));
    }
}

/// EDGE-73: The first client of a pool waits in its login for the first server.
#[test]
fn kill_closes_clients_that_wait_in_their_login() {
    let silent = FaultyServer::start(tidegate_testkit::FaultyConnection::discard_input);
    let gateway = gateway_for!(&silent, "size = 1\n[timeouts]\nconnect = \"600s\"\n");
    let startup = gateway.startup("postgres");
    let mut client = startup.open();
    client.send_bytes(&startup.packet());
    let waits =
        |row: &std::collections::BTreeMap<String, String>| row["database"] == "postgres" && row["state"] == "waiting";
    eventually("the client waits", || gateway.show("CLIENTS").iter().any(waits));
    gateway.console().ok("KILL postgres");
    let reply = client.recv();
    assert_eq!((reply.tag, &*reply.error().code), (b'E', "57P01"));
    eventually("the client is gone", || !gateway.show("CLIENTS").iter().any(|row| row["database"] == "postgres"));
    assert_eq!(gateway.pool_count("postgres", "cl_waiting"), 0);
}

/// The console has no servers, also if `*` would have them.
#[test]
fn console_is_no_database_of_show_hosts() {
    let server = FaultyServer::answering();
    let config = format!(
        "[auth]\nmethod = \"trust\"\n[databases.\"*\"]\nhost = \"127.0.0.1\"\nport = {}\n",
        server.address().port()
    );
    let gateway = Gateway::start(env!("CARGO_BIN_EXE_tidegate"), &config);
    drop(gateway.client("shop"));
    let hosts = gateway.show("HOSTS");
    assert_eq!(hosts.iter().map(|row| row["database"].as_str()).collect::<Vec<_>>(), ["shop"]);
}

/// EDGE-73.
#[test]
fn pause_does_not_wait_for_a_silent_server() {
    let silent = FaultyServer::start(tidegate_testkit::FaultyConnection::discard_input);
    let gateway = gateway_for!(&silent, "size = 1\n[timeouts]\nconnect = \"600s\"\n");
    for replication in [false, true] {
        let before = silent.connections();
        let mut startup = gateway.startup("postgres");
        if replication {
            startup = startup.parameter("replication", "database");
        }
        let mut client = startup.open();
        client.send_bytes(&startup.packet());
        eventually("the gateway connects", || silent.connections() == before + 1);
        gateway.console().ok("PAUSE postgres");
        assert_eq!(gateway.pool_count("postgres", "sv_login"), 0);
        gateway.console().ok("RESUME postgres");
        eventually("the gateway connects again", || silent.connections() == before + 2);
        client.disconnect(false);
        gateway.console().ok("PAUSE");
        gateway.console().ok("RESUME");
    }
}
