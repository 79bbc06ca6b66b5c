//! The console: who may do what, over both protocols.

use tidegate_testkit::{FaultyServer, Frames, Gateway, RawClient, Signal, eventually};

use crate::gateway_before;

fn console_for_all(fixture: &tidegate_testkit::Fixture) -> Gateway {
    fixture.gateway("size = 2\n[admin]\nusers = [\"postgres\"]\nstats_users = [\"watcher\"]\n")
}

/// A gateway whose user may have one server, with a client of the database `one` that has it in a transaction, and one of
/// `two` that waits for it.
fn one_server_for_two(fixture: &tidegate_testkit::Fixture) -> (Gateway, RawClient, RawClient) {
    let limit = "[pool]\nmax_per_user = 1\n[timeouts]\ncheckout = \"60s\"\n";
    let gateway = fixture.gateway_to(&[("one", "postgres"), ("two", "postgres")], limit);
    let mut waiting = gateway.client("two");
    let mut busy = gateway.client("one");
    busy.ok("begin");
    waiting.send(&Frames::new().query("select 1"));
    eventually("it asks for a server", || gateway.pool_count("two", "sv_login") == 1);
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
    /// CVE-2026-6667: a command that any stats user could give.
    fn edge_73_a_stats_user_reads_and_changes_nothing(fixture) {
        let mut gateway = console_for_all(fixture);
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

    fn edge_73_a_stranger_does_not_get_in(fixture) {
        let gateway = console_for_all(fixture);
        for database in ["tidegate", "pgbouncer"] {
            let refused = gateway.startup(database).user("stranger").refused();
            assert_eq!(refused.severity, "FATAL");
            assert!(["28000", "42501", "28P01"].contains(&refused.code.as_str()), "{refused:?}");
        }
    }

    fn edge_73_both_names_and_both_protocols_answer(fixture) {
        let gateway = console_for_all(fixture);
        gateway.client("postgres").ok("select 1");
        for database in ["tidegate", "pgbouncer"] {
            let mut console = gateway.client(database);
            for what in ["CLIENTS", "SERVERS", "POOLS", "DATABASES", "STATS", "CONFIG", "STATE", "VERSION"] {
                let simple = console.ok(&format!("SHOW {what}"));
                assert!(!simple.rows.is_empty(), "SHOW {what}");
                assert_eq!(simple.tags, ["SHOW"]);
                let show = Frames::new().parse("", &format!("show {}", what.to_lowercase()));
                console.send(&show.describe_statement("").bind("", &[]).describe_portal("").execute().sync());
                let extended = console.until_ready();
                let columns = |outcome: &tidegate_testkit::Outcome| {
                    let description = outcome.messages.iter().find(|message| message.tag == b'T');
                    description.map(tidegate_testkit::Message::columns)
                };
                assert_eq!(columns(&extended), columns(&simple), "SHOW {what}");
                assert!(extended.error.is_none(), "SHOW {what}: {:?}", extended.error);
            }
            console.query("SHOW HELP");
            let unknown = console.query("SHOW NONSENSE");
            assert_eq!(unknown.status, 'I');
            assert!(unknown.error.is_some());
            console.ok("SHOW VERSION");
        }
    }

    /// Exporters and dashboards read these columns by name.
    fn edge_73_the_tables_have_the_columns_of_pgbouncer(fixture) {
        let gateway = console_for_all(fixture);
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
        for (table, wanted) in columns {
            let rows = gateway.show(table);
            for column in wanted.split_whitespace() {
                assert!(rows[0].contains_key(column), "SHOW {table} has no {column}: {:?}", rows[0].keys());
            }
        }
    }

    fn edge_73_the_counts_follow_the_clients(fixture) {
        let gateway = console_for_all(fixture);
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

    fn edge_73_the_transactions_of_a_pipeline_count_one_by_one(fixture) {
        for mode in ["transaction", "session"] {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n[admin]\nusers = [\"postgres\"]\n"));
            let mut client = gateway.client("postgres");
            let several = |one: Frames| (0..10).fold(Frames::new(), |all, _| all.then(&one));
            let block = Frames::new().query("begin").query("select 1").once("commit").sync();
            let flights = several(Frames::new().once("select 1").sync()).then(&several(Frames::new().query("select 1")));
            client.send(&flights.then(&several(block)).query("select 'the end'"));
            while client.until_ready().rows.last().is_none_or(|row| row[0] != "the end") {}
            let stats = gateway.show("STATS").into_iter().find(|row| row["database"] == "postgres").expect("it was used");
            let counts = (&*stats["total_xact_count"], &*stats["total_query_count"]);
            assert_eq!(counts, ("31", "51"), "{mode}: {stats:?}");
        }
    }

    fn edge_73_pinned_clients_are_visible(fixture) {
        let gateway = console_for_all(fixture);
        let mut pinned = gateway.client("postgres");
        pinned.ok("listen visible");
        let clients = gateway.show("CLIENTS");
        let own = clients.iter().find(|row| row["database"] == "postgres").expect("the client is listed");
        let told = own.values().any(|value| value.to_lowercase().contains("listen"))
            || own.iter().any(|(name, value)| name.contains("pin") && !["", "0", "no", "false"].contains(&value.as_str()));
        assert!(told, "{own:?}");
    }

    /// What it waits for is the other databases' to give.
    fn edge_73_a_pause_does_not_wait_for_a_connect_that_waits_for_room(fixture) {
        let (gateway, _busy, waiting) = one_server_for_two(fixture);
        gateway.console().ok("PAUSE two");
        assert_eq!(gateway.pool_count("two", "sv_login"), 0);
        gateway.console().ok("RESUME two");
        eventually("it asks for a server again", || gateway.pool_count("two", "sv_login") == 1);
        drop(waiting);
    }

    /// Neither undoes what the other has done.
    fn edge_73_two_operators_at_a_time(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let of = |gateway: &Gateway, key: &str| {
            let rows = gateway.show("CONFIG");
            rows.iter().find(|row| row["key"] == key).expect("it is a key")["value"].clone()
        };
        let (mut one, mut two) = (gateway.console(), gateway.console());
        for seconds in 100..160 {
            let order = |key: &str| Frames::new().query(&format!("SET {key} = '{seconds}s'"));
            one.send(&order("timeouts.connect"));
            two.send(&order("timeouts.checkout"));
            assert!(one.until_ready().error.is_none() && two.until_ready().error.is_none());
            for key in ["timeouts.connect", "timeouts.checkout"] {
                assert_eq!(of(&gateway, key), format!("{seconds}s"), "{key}");
            }
            gateway.rewrite("timeouts.login", format!("{seconds}s"));
            one.send(&order("timeouts.connect"));
            two.send(&Frames::new().query("RELOAD"));
            assert!(one.until_ready().error.is_none() && two.until_ready().error.is_none());
            assert_eq!(of(&gateway, "timeouts.login"), format!("{seconds}s"));
        }
    }

    fn edge_73_nothing_is_connected_for_clients_that_have_left(fixture) {
        let (gateway, mut busy, waiting) = one_server_for_two(fixture);
        waiting.vanish(false);
        gateway.wait_for_pool("two", "sv_login", 0);
        busy.ok("commit");
        // And nothing is held against those who come next.
        gateway.client("two").ok("select 1");
    }

    fn edge_73_nothing_is_connected_for_a_database_that_was_taken_out(fixture) {
        let (mut gateway, mut busy, mut waiting) = one_server_for_two(fixture);
        let connects = |gateway: &Gateway| {
            let rows = gateway.show("TASKS");
            let chores = rows.iter().filter(|row| row["path"].starts_with("tidegate/chores"));
            chores.map(|row| row["live"].parse::<u32>().expect("a count")).sum::<u32>()
        };
        assert_eq!(connects(&gateway), 1);
        gateway.remove("databases.two");
        gateway.console().ok("RELOAD");
        waiting.expect_fatal("57P01");
        eventually("the connect is given up", || connects(&gateway) == 0);
        busy.ok("commit");
    }

    fn edge_73_kill_closes_the_clients_of_a_database(fixture) {
        let gateway = fixture.gateway_to(&[("other", "postgres"), ("postgres", "postgres")], "size = 1\n");
        let mut doomed = gateway.client("postgres");
        doomed.ok("select 1");
        let mut spared = gateway.client("other");
        spared.ok("select 1");
        gateway.console().ok("KILL postgres");
        assert!(doomed.try_query("select 2").is_err());
        spared.ok("select 1");
        gateway.console().ok("RESUME postgres");
        eventually("the database is open again", || {
            gateway.startup("postgres").try_connect().is_ok_and(|mut client| client.try_query("select 1").is_ok())
        });
    }

    /// Whatever the gateway does is a task of the tree, and none is lost from its books.
    fn edge_73_the_tree_of_tasks_lists_clients_and_how_tasks_ended(fixture) {
        let gateway = console_for_all(fixture);
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
        assert_eq!(sum("tidegate/servers", "live"), 1, "a server that a client has");
        busy.ok("commit");
        assert_eq!(sum("tidegate/servers", "live"), 1, "a server that lies idle");
        gateway.console().ok("RECONNECT");
        eventually("the server is closed", || sum("tidegate/servers", "returned") == 1);
        busy.ok("select 1");
        drop(busy);
        drop(clients);
        eventually("the clients have returned", || sum("tidegate/clients", "returned") >= 3);
        let balances = |row: &std::collections::BTreeMap<String, String>| {
            let hows = ["returned", "failed", "panicked", "aborted", "dropped"];
            let ended: u64 = hows.into_iter().map(|how| number(row, how)).sum();
            number(row, "started") == number(row, "live") + ended
        };
        // A task may end while its line is written.
        eventually("the books balance", || gateway.show("TASKS").iter().all(balances));
        for row in gateway.show("TASKS") {
            assert_eq!((number(&row, "panicked"), number(&row, "restarts")), (0, 0), "{row:?}");
        }
    }

    fn edge_73_a_shutdown_logs_how_all_tasks_ended(fixture) {
        let mut gateway = console_for_all(fixture);
        let mut idle = gateway.client("postgres");
        // Its server lies idle in the pool, and has to go as well.
        idle.ok("select 1");
        gateway.console().send(&Frames::new().query("SHUTDOWN"));
        gateway.wait();
        drop(idle);
        let log = gateway.log();
        let report = log.lines().find(|line| line.contains("tasks ended")).expect("the stop is reported");
        for part in ["clean=", "aborted=0", "panicked=0", "stuck=0"] {
            assert!(report.contains(part), "{report}");
        }
    }

    /// They are told to leave before all else is stopped.
    fn edge_73_clients_that_a_signal_sends_away_are_in_the_report(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let clients: Vec<_> = (0..40).map(|_| gateway.client("postgres")).collect();
        gateway.signal(Signal::INT);
        gateway.wait();
        drop(clients);
        let log = gateway.log();
        let report = log.lines().find(|line| line.contains("tasks ended")).expect("the stop is reported");
        let clean = report.split("clean=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
        assert!(clean.is_some_and(|clean| clean >= 40), "{report}");
    }

    /// Reading a file may hang, as on a server that is away; nobody can take the thread away from that.
    fn edge_73_a_shutdown_names_the_task_that_hangs(fixture) {
        let mut gateway = fixture.gateway("size = 2\n[admin]\nusers = [\"postgres\"]\nset_files = true\n");
        let pipe = gateway.config_file().with_file_name("hba.fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).expect("a pipe");
        let mut console = gateway.console();
        console.ok(&format!("SET auth.hba_file = '{}'", pipe.display()));
        console.send(&Frames::new().query("SET auth.method = 'hba'"));
        let hangs = || {
            let rows = gateway.show("TASKS");
            rows.iter().any(|row| row["path"] == "tidegate/look-ups" && row["live"] == "1")
        };
        eventually("it reads the pipe", hangs);
        gateway.console().send(&Frames::new().query("SHUTDOWN"));
        gateway.wait();
        let log = gateway.log();
        assert!(log.lines().any(|line| line.contains("tasks ended") && line.contains("stuck=1")), "{log}");
        let named = |line: &str| line.contains("a task did not end: look-ups") && line.contains("the files of a setting");
        assert!(log.lines().any(named), "{log}");
    }

    fn edge_73_shutdown_ends_the_process(fixture) {
        let mut gateway = console_for_all(fixture);
        let mut console = gateway.console();
        console.send(&Frames::new().query("SHUTDOWN"));
        gateway.wait();
    }
}

/// The first client of a pool waits for the first server before it is let in.
#[test]
fn edge_73_kill_sends_those_away_whose_login_waits_for_a_server() {
    let silent = FaultyServer::start(tidegate_testkit::FaultyConnection::stay_silent);
    let gateway = gateway_before(&silent, "size = 1\n[timeouts]\nconnect = \"600s\"\n");
    let startup = gateway.startup("postgres");
    let mut client = startup.open();
    client.send_bytes(&startup.packet());
    let waits =
        |row: &std::collections::BTreeMap<String, String>| row["database"] == "postgres" && row["state"] == "waiting";
    eventually("it is seen to wait", || gateway.show("CLIENTS").iter().any(waits));
    gateway.console().ok("KILL postgres");
    let told = client.recv();
    assert_eq!((told.tag, &*told.error().code), (b'E', "57P01"));
    eventually("it is gone", || !gateway.show("CLIENTS").iter().any(|row| row["database"] == "postgres"));
    assert_eq!(gateway.pool_count("postgres", "cl_waiting"), 0);
}

#[test]
fn edge_73_a_pause_does_not_wait_for_a_server_that_does_not_answer() {
    let silent = FaultyServer::start(tidegate_testkit::FaultyConnection::stay_silent);
    let gateway = gateway_before(&silent, "size = 1\n[timeouts]\nconnect = \"600s\"\n");
    for replication in [false, true] {
        let before = silent.connections();
        let mut startup = gateway.startup("postgres");
        if replication {
            startup = startup.parameter("replication", "database");
        }
        let mut client = startup.open();
        client.send_bytes(&startup.packet());
        eventually("it is being connected", || silent.connections() == before + 1);
        gateway.console().ok("PAUSE postgres");
        assert_eq!(gateway.pool_count("postgres", "sv_login"), 0);
        gateway.console().ok("RESUME postgres");
        eventually("it is being connected again", || silent.connections() == before + 2);
        client.vanish(false);
        gateway.console().ok("PAUSE");
        gateway.console().ok("RESUME");
    }
}
