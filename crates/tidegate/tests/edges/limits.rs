//! Full pools, full houses, and clocks that run out.

use std::thread;

use tidegate_testkit::{FaultyServer, Frames, Gateway, eventually, reply};

use crate::gateway_before;

on_each_postgres! {
    fn edge_63_a_client_that_vanishes_in_line_is_taken_out_at_once(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        owner.ok("begin");
        for reset in [false, true] {
            let mut waiting = gateway.client("postgres");
            waiting.send(&Frames::new().query(&format!("insert into {table} values (1)")));
            gateway.wait_for_pool("postgres", "cl_waiting", 1);
            waiting.vanish(reset);
            gateway.wait_for_pool("postgres", "cl_waiting", 0);
        }
        owner.ok("commit");
        assert_eq!(owner.value(&format!("select count(*) from {table}")), "0");
    }

    fn edge_63_a_client_that_has_said_more_in_line_is_taken_out_at_once_too(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for (hold, let_go) in [("begin", "commit"), ("PAUSE", "RESUME")] {
            let mut holder = if hold == "PAUSE" { gateway.console() } else { gateway.client("postgres") };
            holder.ok(hold);
            for (reset, more) in [(false, "select 1"), (true, "select 1"), (false, &" ".repeat(100_000))] {
                let mut waiting = gateway.client("postgres");
                waiting.send(&Frames::new().query("select 1"));
                gateway.wait_for_pool("postgres", "cl_waiting", 1);
                waiting.send(&Frames::new().query(more));
                waiting.vanish(reset);
                gateway.wait_for_pool("postgres", "cl_waiting", 0);
            }
            holder.ok(let_go);
        }
        gateway.client("postgres").ok("select 1");
    }

    fn edge_63_the_line_is_served_first_in_first_out(fixture) {
        let table = fixture.own_table("n serial, who int");
        let gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        owner.ok("begin");
        let mut waiting: Vec<_> = (0..8).map(|_| gateway.client("postgres")).collect();
        for (number, client) in waiting.iter_mut().enumerate() {
            client.send(&Frames::new().query(&format!("insert into {table} (who) values ({number})")));
            gateway.wait_for_pool("postgres", "cl_waiting", number as u64 + 1);
        }
        owner.ok("commit");
        waiting.iter_mut().for_each(|client| drop(client.until_ready()));
        let order = owner.value(&format!("select string_agg(who::text, ' ' order by n) from {table}"));
        let places: Vec<i32> = order.split(' ').filter_map(|place| place.parse().ok()).collect();
        // Over several cores the order holds within a bound of 2 ms, in which a few clients may have queued.
        for (place, who) in places.iter().enumerate() {
            assert!((place as i32 - who).abs() <= 4, "served in the order {order}");
        }
    }

    fn edge_63_whoever_waits_too_long_is_told(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        owner.ok("begin");
        // Not from the start: to connect to a server takes longer than that on a busy machine.
        gateway.rewrite("timeouts.checkout", "200ms");
        gateway.console().ok("RELOAD");
        waiting.send(&Frames::new().query("select 1"));
        waiting.expect_fatal("53300");
        gateway.rewrite("timeouts.checkout", "60s");
        gateway.console().ok("RELOAD");
        assert_eq!(owner.value("select 'undisturbed'"), "undisturbed");
        owner.ok("commit");
        gateway.client("postgres").ok("select 1");
    }

    fn edge_63_more_clients_than_allowed_are_refused(fixture) {
        let section = fixture.database_section("postgres", "postgres");
        let gateway = fixture.start(&format!("[listen]\nmax_clients = 3\n[auth]\nmethod = \"trust\"\n{section}"));
        // The clients with which the start was awaited may still be leaving.
        let mut clients = Vec::new();
        eventually("three clients are in", || {
            clients.extend(gateway.startup("postgres").try_connect().ok());
            clients.len() == 3
        });
        let refused = gateway.startup("postgres").refused();
        assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("53300", "FATAL"));
        clients[0].ok("select 1");
        clients.pop();
        eventually("the free place can be taken", || gateway.startup("postgres").try_connect().is_ok());
    }

    fn edge_63_never_more_servers_than_the_size(fixture) {
        let role = fixture.own_role("x", "");
        let gateway = fixture.gateway(&format!("user = \"{role}\"\nsize = 3\n"));
        let clients: Vec<_> = (0..12).map(|_| {
            let startup = gateway.startup("postgres");
            thread::spawn(move || {
                let mut client = startup.connect();
                (0..20).map(|_| client.value("select count(*) from pg_stat_activity where usename = current_user")).max()
            })
        }).collect();
        for client in clients {
            let seen = client.join().expect("the client is served").unwrap_or_default();
            assert!(["1", "2", "3"].contains(&seen.as_str()), "{seen} servers");
        }
    }

    fn edge_63_the_reserve_serves_whoever_waited(fixture) {
        let gateway = fixture.gateway("size = 1\nreserve_size = 1\nreserve_after = \"100ms\"\n");
        let mut owner = gateway.client("postgres");
        owner.ok("begin");
        assert_eq!(gateway.client("postgres").value("select 'reserve'"), "reserve");
    }

    fn edge_64_a_query_that_runs_too_long(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nquery = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().query("select pg_sleep(600)"));
        client.expect("T*");
        client.expect_fatal("57014");
        gateway.client("postgres").ok("select 1");
    }

    /// The timer belongs to a query, not to a client that has one now and then.
    fn edge_64_the_query_timer_does_not_run_between_queries(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nquery = \"400ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        for _ in 0..3 {
            // Another clock, not this test's: three times 300 ms exceed the limit, each alone does not.
            client.ok("select pg_sleep(0.3)");
        }
        fixture.server.sql("select pg_sleep(0.6)");
        client.ok("commit");
        fixture.server.sql("select pg_sleep(0.6)");
        client.ok("select 1");
    }

    /// Something is under way all the time, but nothing for long.
    fn edge_64_a_pipeline_that_never_runs_dry_is_neither_one_query_nor_one_transaction(fixture) {
        let once = || Frames::new().once("select pg_sleep(0.2)");
        let several = |one: &Frames| (0..6).fold(Frames::new(), |all, _| all.then(one));
        let simple = several(&Frames::new().query("select pg_sleep(0.2)"));
        let each_with_sync = several(&once().sync());
        let one_sync = several(&once().flush()).sync();
        let all = [&simple, &each_with_sync, &one_sync];
        for (limit, pipelines) in [("query", &all[..]), ("transaction", &all[..2])] {
            let gateway = fixture.gateway(&format!("size = 1\n[timeouts]\n{limit} = \"700ms\"\n"));
            let mut client = gateway.client("postgres");
            for pipeline in pipelines {
                client.send(pipeline);
                client.send(&Frames::new().query("select 'all of it'"));
                while client.until_ready().rows.last().is_none_or(|row| row[0] != "all of it") {}
            }
        }
    }

    fn edge_64_an_idle_transaction(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("size = 1\n[timeouts]\nidle_in_transaction = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok(&format!("begin; insert into {table} values (1)"));
        client.expect_fatal("25P03");
        assert_eq!(gateway.client("postgres").value(&format!("select count(*) from {table}")), "0");
        let mut idle = gateway.client("postgres");
        fixture.server.sql("select pg_sleep(0.6)");
        idle.ok("select 1");
    }

    fn edge_64_a_transaction_that_lasts_too_long(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\ntransaction = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        client.send(&Frames::new().query("select pg_sleep(600)"));
        client.expect("T*");
        client.expect_fatal("25P04");
        let mut idle_in_it = gateway.client("postgres");
        idle_in_it.ok("begin");
        idle_in_it.expect_fatal("25P04");
        gateway.client("postgres").ok("select 1");
    }

    fn edge_64_an_idle_client(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nclient_idle = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        let mut busy = gateway.client("postgres");
        busy.ok("begin");
        busy.ok("select pg_sleep(0.8)");
        client.expect_fatal("57P05");
    }

    fn edge_64_a_login_that_never_ends(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nlogin = \"300ms\"\n");
        let startup = gateway.startup("postgres");
        let mut silent = startup.open();
        let mut halfway = startup.open();
        halfway.send_bytes(&startup.packet()[..10]);
        for client in [&mut silent, &mut halfway] {
            match client.try_recv() {
                Err(tidegate_testkit::Lost::Closed) => {}
                Ok(message) if message.tag == b'E' => client.expect_eof(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn edge_64_servers_grow_old(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nserver_lifetime = \"200ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let first = client.backend();
        fixture.server.sql("select pg_sleep(0.5)");
        assert_eq!(client.backend(), first, "a transaction is not cut short");
        client.ok("commit");
        assert_ne!(client.backend(), first);
    }

    fn edge_64_idle_servers_leave(fixture) {
        let gateway = fixture.gateway("size = 2\n[timeouts]\nserver_idle = \"200ms\"\n");
        gateway.client("postgres").ok("select 1");
        gateway.wait_for_pool("postgres", "sv_idle", 0);
    }

    fn edge_66_the_minimum_is_kept_ready(fixture) {
        let gateway = fixture.gateway("size = 4\nmin_size = 2\n");
        gateway.client("postgres").ok("select 1");
        gateway.wait_for_pool("postgres", "sv_idle", 2);
    }
}

/// A minimum that the size does not allow would make the pool connect and evict for ever; it is refused beforehand.
#[test]
fn edge_66_a_minimum_above_the_size_is_no_configuration() {
    let folder = std::env::temp_dir().join(format!("tidegate-edge-66-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("tidegate.toml");
    std::fs::write(&file, "[databases.postgres]\nhost = \"127.0.0.1\"\nsize = 2\nmin_size = 5\n").expect("a file");
    let binary = Gateway::binary(env!("CARGO_BIN_EXE_tidegate"));
    let check = std::process::Command::new(binary).arg("check").arg(&file).output().expect("the binary runs");
    drop(std::fs::remove_dir_all(&folder));
    let said = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
    assert!(!check.status.success() && said.contains("min_size"), "{said}");
}

#[test]
fn edge_66_a_pool_does_not_connect_and_evict_for_ever() {
    let server = FaultyServer::obliging();
    let gateway = gateway_before(&server, "size = 2\nmin_size = 2\n");
    let mut client = gateway.client("postgres");
    for _ in 0..50 {
        client.ok("select 1");
    }
    assert!(server.connections() <= 2, "{} connections for a pool of 2", server.connections());
}

/// A server that never answers the login is given up, and the client is told.
#[test]
fn edge_64_a_server_that_never_answers_the_login() {
    let server = FaultyServer::start(tidegate_testkit::FaultyConnection::stay_silent);
    let gateway = gateway_before(&server, "size = 1\n[timeouts]\nconnect = \"200ms\"\ncheckout = \"2s\"\n");
    let refused = match gateway.startup("postgres").try_connect() {
        Err(tidegate_testkit::Lost::Refused(fields)) => fields.code,
        Err(lost) => panic!("{lost}"),
        Ok(mut client) => {
            client.send(&Frames::new().query("select 1"));
            client.recv().error().code
        }
    };
    assert!(["08001", "08006", "53300", "57P03"].contains(&refused.as_str()), "{refused}");
}

/// Several connects may be under way, but not more than the limit.
#[test]
fn edge_66_connects_in_flight_are_bounded() {
    let (logins, waiting) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let server = FaultyServer::start(move |connection| {
        logins.send(()).map_err(std::io::Error::other)?;
        drop(gone.lock().map(|gone| gone.recv()));
        connection.send(&reply::login(connection.process()))?;
        connection.oblige()
    });
    let gateway = gateway_before(&server, "size = 10\nconnects_in_flight = 3\n");
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let startup = gateway.startup("postgres");
            thread::spawn(move || {
                let mut client = startup.connect();
                client.ok("begin");
            })
        })
        .collect();
    for _ in 0..3 {
        waiting.recv().expect("a connect");
    }
    assert!(waiting.recv_timeout(std::time::Duration::from_millis(300)).is_err(), "a fourth connect at once");
    drop(go);
    for client in clients {
        client.join().expect("every client is served");
    }
}
