//! Timeouts of queries, transactions, clients, logins and servers.

use tidegate_testkit::{FaultyServer, Frames, gateway_for, on_each_postgres};

on_each_postgres! {
    /// EDGE-64.
    fn query_timeout(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nquery = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().query("select pg_sleep(600)"));
        client.expect("T*");
        client.expect_fatal("57014");
        gateway.client("postgres").ok("select 1");
    }

    /// EDGE-64: The timer measures one query, not the time between queries.
    fn query_timer_does_not_run_between_queries(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nquery = \"400ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        for _ in 0..3 {
            // The workload runs on the clock of the server: three times 300 ms exceed the limit, one does not.
            client.ok("select pg_sleep(0.3)");
        }
        fixture.server.sql("select pg_sleep(0.6)");
        client.ok("commit");
        fixture.server.sql("select pg_sleep(0.6)");
        client.ok("select 1");
    }

    /// EDGE-64: The server is busy all the time, but with no query or transaction that exceeds its limit.
    fn timeouts_apply_to_each_request_of_a_pipeline(fixture) {
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
                client.send(&Frames::new().query("select 'the end'"));
                while client.until_ready().rows.last().is_none_or(|row| row[0] != "the end") {}
            }
        }
    }

    /// EDGE-64.
    fn idle_in_transaction_timeout(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n[timeouts]\nidle_in_transaction = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok(&format!("begin; insert into {table} values (1)"));
        client.expect_fatal("25P03");
        assert_eq!(gateway.client("postgres").value(&format!("select count(*) from {table}")), "0");
        let mut idle = gateway.client("postgres");
        fixture.server.sql("select pg_sleep(0.6)");
        idle.ok("select 1");
    }

    /// EDGE-64.
    fn transaction_timeout(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\ntransaction = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        client.send(&Frames::new().query("select pg_sleep(600)"));
        client.expect("T*");
        client.expect_fatal("25P04");
        let mut idle = gateway.client("postgres");
        idle.ok("begin");
        idle.expect_fatal("25P04");
        gateway.client("postgres").ok("select 1");
    }

    /// EDGE-64.
    fn idle_client_timeout(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nclient_idle = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        let mut busy = gateway.client("postgres");
        busy.ok("begin");
        busy.ok("select pg_sleep(0.8)");
        client.expect_fatal("57P05");
    }

    /// EDGE-64.
    fn login_timeout(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nlogin = \"300ms\"\n");
        let startup = gateway.startup("postgres");
        let mut silent = startup.open();
        let mut halfway = startup.open();
        halfway.send_bytes(&startup.packet()[..10]);
        for client in [&mut silent, &mut halfway] {
            match client.try_recv() {
                Err(tidegate_testkit::ClientError::Closed) => {}
                Ok(message) if message.tag == b'E' => client.expect_eof(),
                other => panic!("{other:?}"),
            }
        }
    }

    /// EDGE-64.
    fn server_lifetime_replaces_servers(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\nserver_lifetime = \"200ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let first = client.backend();
        fixture.server.sql("select pg_sleep(0.5)");
        assert_eq!(client.backend(), first, "the lifetime does not end a transaction");
        client.ok("commit");
        assert_ne!(client.backend(), first);
    }

    /// EDGE-64.
    fn idle_servers_are_closed(fixture) {
        let gateway = fixture.gateway("size = 2\n[timeouts]\nserver_idle = \"200ms\"\n");
        gateway.client("postgres").ok("select 1");
        gateway.wait_for_pool("postgres", "sv_idle", 0);
    }
}

/// EDGE-64: The connect times out, and the client gets an error.
#[test]
fn server_login_timeout() {
    let server = FaultyServer::start(tidegate_testkit::FaultyConnection::discard_input);
    let gateway = gateway_for!(&server, "size = 1\n[timeouts]\nconnect = \"200ms\"\ncheckout = \"2s\"\n");
    let refused = match gateway.startup("postgres").try_connect() {
        Err(tidegate_testkit::ClientError::Refused(fields)) => fields.code,
        Err(error) => panic!("{error}"),
        Ok(mut client) => {
            client.send(&Frames::new().query("select 1"));
            client.recv().error().code
        }
    };
    assert!(["08001", "08006", "53300", "57P03"].contains(&refused.as_str()), "{refused}");
}
