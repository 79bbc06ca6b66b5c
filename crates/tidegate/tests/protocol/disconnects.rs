//! Clients that disconnect without Terminate in a query or a transaction.

use tidegate_testkit::{Frames, eventually, on_each_postgres};

on_each_postgres! {
    fn disconnect_after_parse_keeps_the_server(fixture) {
        for mode in ["transaction", "session"] {
            let gateway = fixture.gateway(&format!("mode = \"{mode}\"\nsize = 1\n"));
            let backend = gateway.client("postgres").backend();
            for (begins, text, answer) in
                [(false, "select 1", "1 t T"), (true, "select 1", "1 t T"), (false, "selec", "E"), (true, "selec", "E")]
            {
                let mut leaving = gateway.client("postgres");
                if begins {
                    leaving.ok("begin");
                }
                leaving.send(&Frames::new().parse("", text).describe_statement("").flush());
                leaving.expect(answer);
                leaving.disconnect(false);
                let mut next = gateway.client("postgres");
                assert_eq!(next.backend(), backend, "{mode}: {text} in a transaction: {begins}");
            }
        }
    }

    /// EDGE-62.
    fn disconnect_in_a_transaction_rolls_it_back(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        for reset in [false, true] {
            for state in ["select 1", "select 1/0"] {
                let mut client = gateway.client("postgres");
                client.ok(&format!("begin; insert into {table} values (1)"));
                client.query(state);
                client.disconnect(reset);
                let mut next = gateway.client("postgres");
                let outcome = next.ok(&format!("select count(*) from {table}"));
                assert_eq!((outcome.value().as_str(), outcome.status), ("0", 'I'));
            }
        }
    }

    /// EDGE-62.
    fn disconnect_in_a_query_frees_the_server(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().query(&format!("insert into {table} select 1 from pg_sleep(600)")));
        let mut observer = fixture.server.client();
        let running = format!(
            "select count(*) from pg_stat_activity where query like 'insert into {table} %' and state = 'active'"
        );
        eventually("the query runs", || observer.value(&running) == "1");
        client.disconnect(false);
        assert_eq!(gateway.client("postgres").value("select 'served'"), "served");
        eventually("the query has ended", || observer.value(&running) == "0");
    }

    /// EDGE-62: The gateway reads no more than it can forward, and detects the disconnect all the same.
    fn disconnect_with_queued_messages_frees_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut observer = fixture.server.client();
        for (reset, more) in [(false, 0), (true, 0), (false, 100_000)] {
            let name = fixture.name("waits");
            let mut client = gateway.client("postgres");
            // The reply to Parse is still missing, so that the gateway holds the Bind back.
            let sleep = Frames::new().once(&format!("select pg_sleep(600) as {name}")).parse("s", "select 1").sync();
            client.send(&sleep.run("s").sync().query(&" ".repeat(more)));
            let running = format!("select count(*) from pg_stat_activity where query like '% {name}' and state = 'active'");
            eventually("the query runs", || observer.value(&running) == "1");
            client.disconnect(reset);
            assert_eq!(gateway.client("postgres").value("select 'served'"), "served");
            eventually("the query has ended", || observer.value(&running) == "0");
        }
    }
}
