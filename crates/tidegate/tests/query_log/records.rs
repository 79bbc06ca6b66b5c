//! Records of every form of the protocol: each query once, with its text, tag, rows and error.

use tidegate_query_log::record::RecordKind;
use tidegate_testkit::{Frames, eventually, on_each_postgres};

use crate::logging_gateway::{LoggingGateway, expected, outcomes, queries};

on_each_postgres! {
    fn simple_query_is_one_record(fixture) {
        let table = fixture.create_table("n int");
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.client("postgres");
        client.ok("select 1 as \"one\"");
        client.ok(&format!("insert into {table} values (1), (2); select n from {table}; delete from {table}"));
        client.ok("");
        assert_eq!(client.query("select 1/0").code(), "22012");
        drop(client);
        let insert = format!("insert into {table} values (1), (2); select n from {table}; delete from {table}");
        let entries = logged.end();
        assert_eq!(outcomes(&entries), expected(&[
            ("select 1 as \"one\"", "SELECT 1", Some(1), ""),
            (&insert, "INSERT 0 2; SELECT 2; DELETE 2", Some(6), ""),
            ("", "", None, ""),
            ("select 1/0", "", None, "22012"),
        ]));
        let first = queries(&entries)[0];
        assert_eq!((first.user.as_deref(), first.database.as_deref()), (Some("postgres"), Some("postgres")));
        assert!(first.server.is_some() && first.server_pid.is_some() && first.fingerprint.is_some());
        // A Query message is a header, the text and a zero byte.
        assert_eq!(first.bytes_in, Some(5 + 17 + 1));
        assert!(first.bytes_out > Some(30) && first.total_us >= first.server_us);
        assert_eq!(queries(&entries)[3].message.as_deref(), Some("division by zero"));
        let transactions: Vec<_> = queries(&entries).iter().map(|entry| entry.transaction).collect();
        assert_eq!(transactions, [Some(1), Some(2), Some(3), Some(4)]);
    }

    fn prepared_statement_is_logged_with_name_and_text(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.client("postgres");
        client.send(&Frames::new().parse("twice", "select 2 * $1::int").sync());
        client.expect("1 Z:I");
        for value in ["3", "4"] {
            client.send(&Frames::new().bind("twice", &[value]).execute().sync());
            client.expect("2 D C:SELECT_1 Z:I");
        }
        client.send(&Frames::new().once("select 'unnamed'").sync());
        client.expect("1 2 D C:SELECT_1 Z:I");
        // The unnamed statement survives its pipeline and its server.
        client.send(&Frames::new().bind("", &[]).execute().sync());
        client.expect("2 D C:SELECT_1 Z:I");
        drop(client);
        let entries = logged.end();
        assert_eq!(outcomes(&entries), expected(&[
            ("select 2 * $1::int", "SELECT 1", Some(1), ""),
            ("select 2 * $1::int", "SELECT 1", Some(1), ""),
            ("select 'unnamed'", "SELECT 1", Some(1), ""),
            ("select 'unnamed'", "SELECT 1", Some(1), ""),
        ]));
        let prepared: Vec<_> = queries(&entries).iter().map(|entry| entry.prepared.as_deref()).collect();
        assert_eq!(prepared, [Some("twice"), Some("twice"), None, None]);
    }

    fn prepared_statement_in_session_mode_is_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\nmode = \"session\"\n", "");
        let mut client = logged.gateway.client("postgres");
        client.send(&Frames::new().parse("a", "select 'a'").sync());
        client.expect("1 Z:I");
        client.ok("select 'between'");
        client.send(&Frames::new().bind("a", &[]).execute().sync());
        client.expect("2 D C:SELECT_1 Z:I");
        drop(client);
        let entries = logged.end();
        assert_eq!(outcomes(&entries), expected(&[
            ("select 'between'", "SELECT 1", Some(1), ""),
            ("select 'a'", "SELECT 1", Some(1), ""),
        ]));
    }

    /// The gateway answers DEALLOCATE itself and logs each one, also several in one write.
    fn deallocate_by_name_is_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.client("postgres");
        client.send(&Frames::new().parse("a", "select 1").parse("b", "select 2").sync());
        client.expect("1 1 Z:I");
        client.send(&Frames::new().query("deallocate a").query("deallocate b").query("deallocate b"));
        client.expect("C:DEALLOCATE Z:I C:DEALLOCATE Z:I E:26000 Z:I");
        drop(client);
        let entries = logged.end();
        assert_eq!(outcomes(&entries), expected(&[
            ("deallocate a", "DEALLOCATE", None, ""),
            ("deallocate b", "DEALLOCATE", None, ""),
            ("deallocate b", "", None, "26000"),
        ]));
        for entry in &queries(&entries)[..2] {
            // A Query message; CommandComplete with the tag, and ReadyForQuery.
            assert_eq!((entry.bytes_in, entry.bytes_out), (Some(5 + 12 + 1), Some(5 + 10 + 1 + 6)));
        }
    }

    fn executes_of_several_portals_are_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.client("postgres");
        let both = Frames::new().parse("s1", "select generate_series(1, 3)").parse("s2", "select 'two'");
        let bound = both.bind_portal("p1", "s1", &[]).bind_portal("p2", "s2", &[]);
        client.send(&bound.execute_portal("p2", 0).execute_portal("p1", 2).execute_portal("p1", 2).sync());
        client.expect("1 1 2 2 D C:SELECT_1 D D s D C:SELECT_1 Z:I");
        drop(client);
        assert_eq!(outcomes(&logged.end()), expected(&[
            ("select 'two'", "SELECT 1", Some(1), ""),
            ("select generate_series(1, 3)", "", None, ""),
            ("select generate_series(1, 3)", "SELECT 1", Some(1), ""),
        ]));
    }

    fn skipped_statements_of_a_pipeline_are_not_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.client("postgres");
        let segment = Frames::new().once("select 1").once("select 1/0").once("select 'skipped'").sync();
        client.send(&segment.once("select 2").sync().query("select 3"));
        client.expect("1 2 D C:SELECT_1 1 E:22012 Z:I 1 2 D C:SELECT_1 Z:I T D C:SELECT_1 Z:I");
        drop(client);
        assert_eq!(outcomes(&logged.end()), expected(&[
            ("select 1", "SELECT 1", Some(1), ""),
            ("select 1/0", "", None, "22012"),
            ("select 2", "SELECT 1", Some(1), ""),
            ("select 3", "SELECT 1", Some(1), ""),
        ]));
    }

    fn errors_of_parse_and_bind_are_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.client("postgres");
        client.send(&Frames::new().parse("bad", "selekt 1").sync());
        client.expect("E:42601 Z:I");
        client.send(&Frames::new().once("select * from nowhere").sync());
        client.expect("E:42P01 Z:I");
        client.send(&Frames::new().parse("n", "select $1::int").bind("n", &["x"]).execute().sync());
        client.expect("1 E:22P02 Z:I");
        client.ok("select 'after'");
        drop(client);
        assert_eq!(outcomes(&logged.end()), expected(&[
            ("selekt 1", "", None, "42601"),
            ("select * from nowhere", "", None, "42P01"),
            ("select $1::int", "", None, "22P02"),
            ("select 'after'", "SELECT 1", Some(1), ""),
        ]));
    }

    fn commit_that_fails_at_sync_is_logged(fixture) {
        let table = fixture.create_table("n int unique deferrable initially deferred");
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.client("postgres");
        let sql = format!("insert into {table} values (1), (1)");
        client.send(&Frames::new().once(&sql).sync());
        client.expect("1 2 C:INSERT_0_2 E:23505 Z:I");
        drop(client);
        assert_eq!(outcomes(&logged.end()), expected(&[(&sql, "INSERT 0 2", Some(2), "23505")]));
    }

    fn copy_in_copy_out_and_copy_fail_are_logged(fixture) {
        let table = fixture.create_table("n int");
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.client("postgres");
        let (to, from) = (format!("copy {table} from stdin"), format!("copy {table} to stdout"));
        let data = vec![b'1'; 5000];
        client.send(&Frames::new().query(&to));
        client.expect("G");
        client.send(&Frames::new().copy_data(b"1\n2\n").copy_done());
        client.expect("C:COPY_2 Z:I");
        client.send(&Frames::new().once(&from).sync());
        client.expect("1 2 H d d c C:COPY_2 Z:I");
        client.send(&Frames::new().query(&to));
        client.expect("G");
        client.send(&Frames::new().copy_data(&data).copy_fail("enough"));
        client.expect("E:57014 Z:I");
        drop(client);
        let entries = logged.end();
        assert_eq!(outcomes(&entries), expected(&[
            (&to, "COPY 2", Some(2), ""),
            (&from, "COPY 2", Some(2), ""),
            (&to, "", None, "57014"),
        ]));
        assert!(queries(&entries)[2].bytes_in > Some(5000), "the data is counted");
    }

    fn cancelled_query_is_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.client("postgres");
        client.send(&Frames::new().query("select pg_sleep(600)"));
        eventually("the query runs", || logged.gateway.pool_count("postgres", "sv_active") == 1);
        eventually("the query is cancelled", || { client.cancel(); client.has_input() });
        assert_eq!(client.until_ready().code(), "57014");
        drop(client);
        assert_eq!(outcomes(&logged.end()), expected(&[("select pg_sleep(600)", "", None, "57014")]));
    }

    fn queries_of_disconnected_clients_are_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut first = logged.gateway.client("postgres");
        first.send(&Frames::new().query("select pg_sleep(600)"));
        eventually("the query runs", || logged.gateway.pool_count("postgres", "cl_active") == 1);
        let mut second = logged.gateway.client("postgres");
        second.send(&Frames::new().query("select 'waits'"));
        logged.gateway.wait_for_pool("postgres", "cl_waiting", 1);
        second.disconnect(true);
        logged.gateway.wait_for_pool("postgres", "cl_waiting", 0);
        first.disconnect(true);
        logged.gateway.wait_for_pool("postgres", "cl_active", 0);
        let entries = logged.end();
        let reasons: Vec<_> = queries(&entries).iter().map(|entry| entry.reason.clone().unwrap_or_default()).collect();
        assert_eq!(outcomes(&entries), expected(&[
            ("select 'waits'", "", None, ""),
            ("select pg_sleep(600)", "", None, ""),
        ]));
        assert!(reasons.iter().all(|reason| !reason.is_empty()), "{reasons:?}");
    }

    fn checkout_timeout_is_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\ncheckout = \"100ms\"\n", "");
        let mut holder = logged.gateway.client("postgres");
        holder.ok("begin");
        let mut late = logged.gateway.client("postgres");
        late.send(&Frames::new().once("select 'late'").sync());
        late.expect_fatal("53300");
        holder.ok("rollback");
        drop((holder, late));
        assert_eq!(outcomes(&logged.end()), expected(&[
            ("begin", "BEGIN", None, ""),
            ("select 'late'", "", None, "53300"),
            ("rollback", "ROLLBACK", None, ""),
        ]));
    }

    fn transaction_as_one_record(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "per = \"transaction\"");
        let mut client = logged.gateway.client("postgres");
        for sql in ["begin", "select 1", "select 2", "commit", "select 'alone'"] {
            client.ok(sql);
        }
        client.ok("begin");
        assert_eq!(client.query("select 1/0").code(), "22012");
        client.ok("rollback");
        client.ok("begin");
        client.ok("select 'open'");
        drop(client);
        let entries = logged.end();
        assert_eq!(outcomes(&entries), expected(&[
            ("begin; select 1; select 2; commit", "BEGIN; SELECT 1; SELECT 1; COMMIT", Some(2), ""),
            ("select 'alone'", "SELECT 1", Some(1), ""),
            ("begin; select 1/0; rollback", "BEGIN; ROLLBACK", None, "22012"),
            ("begin; select 'open'", "BEGIN; SELECT 1", Some(1), ""),
        ]));
        let transactions = queries(&entries);
        assert!(transactions.iter().all(|entry| entry.kind == RecordKind::Transaction));
        assert_eq!(transactions.iter().map(|entry| entry.queries).collect::<Vec<_>>(), [Some(4), Some(1), Some(3), Some(2)]);
        assert!(transactions[3].reason.is_some() && transactions[2].reason.is_none());
    }

    fn queries_of_concurrent_clients_are_logged_once(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 4\n", "");
        let gateway = &logged.gateway;
        std::thread::scope(|scope| {
            for client in 0..8 {
                scope.spawn(move || {
                    let mut connection = gateway.client("postgres");
                    for query in 0..50 {
                        connection.ok(&format!("select {client} as client, {query} as query"));
                    }
                });
            }
        });
        let entries = logged.end();
        let mut texts: Vec<_> = outcomes(&entries).into_iter().map(|(text, ..)| text).collect();
        texts.sort();
        let all = (0..8).flat_map(|client| (0..50).map(move |query| format!("select {client} as client, {query} as query")));
        let mut all: Vec<_> = all.collect();
        all.sort();
        assert_eq!(texts, all);
        let fingerprints: std::collections::BTreeSet<_> =
            queries(&entries).iter().map(|entry| entry.fingerprint.clone()).collect();
        assert_eq!(fingerprints.len(), 1, "the statements differ only in literals");
    }
}
