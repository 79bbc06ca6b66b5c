//! COPY FROM STDIN that fails before it has read its data, or behind a Sync that it may have ignored.

use tidegate_testkit::{Fixture, Frames, Target, on_each_postgres};

/// Runs a script against Postgres, then against a gateway in each mode with one connection to Postgres.
fn on_each_target(fixture: &Fixture, script: impl Fn(&Target)) {
    script(&fixture.direct());
    for mode in ["transaction", "session"] {
        script(&Target::through(fixture.gateway(&format!("mode = \"{mode}\"\nsize = 1\n"))));
    }
}

/// A table whose statement trigger runs `first` and then rejects every insert.
fn rejecting_table(fixture: &Fixture, first: &str) -> String {
    let table = fixture.create_table("n int");
    let body = format!("begin {first} raise exception 'refused'; end");
    fixture.server.sql(&format!("create function refuse_{table}() returns trigger language plpgsql as $${body}$$"));
    let function = format!("execute function refuse_{table}()");
    fixture.server.sql(&format!("create trigger refuse before insert on {table} for each statement {function}"));
    table
}

fn copy(table: &str) -> Frames {
    Frames::new().once(&format!("copy {table} from stdin"))
}

/// Asserts that the server serves this client and, unless the session is pinned, another one.
#[track_caller]
fn assert_usable(target: &Target, client: &mut tidegate_testkit::RawClient) {
    let is_shared = |pool: &std::collections::BTreeMap<String, String>| pool["pool_mode"] == "transaction";
    if target.gateway.as_ref().is_some_and(|gateway| gateway.show("POOLS").iter().any(is_shared)) {
        assert_eq!(target.client().value("select 'another'"), "another");
    }
    client.send(&Frames::new().once("select 'alive'").sync());
    client.expect("1 2 D:alive C:SELECT_1 Z:I");
}

on_each_postgres! {
    fn early_error_of_copy_answers_every_sync(fixture) {
        let table = rejecting_table(fixture, "");
        let end = Frames::new().copy_data(b"1\n").copy_done().sync();
        on_each_target(fixture, |target| {
            let mut client = target.client();
            let described = Frames::new().parse("", &format!("copy {table} from stdin")).bind("", &[]).describe_portal("");
            client.send(&described.execute().sync());
            client.expect("1 2 n G E:P0001 Z:I");
            client.send(&end);
            client.expect("Z:I");
            assert_usable(target, &mut client);
        });
    }

    fn early_error_of_copy_freeze_answers_every_sync(fixture) {
        let table = fixture.create_table("n int");
        on_each_target(fixture, |target| {
            let mut client = target.client();
            client.send(&Frames::new().once(&format!("copy {table} from stdin (freeze)")).sync());
            client.expect("1 2 G E:55000 Z:I");
            client.send(&Frames::new().copy_done().sync());
            client.expect("Z:I");
            assert_usable(target, &mut client);
        });
    }

    fn early_error_with_copy_data_in_the_same_write(fixture) {
        let table = rejecting_table(fixture, "");
        on_each_target(fixture, |target| {
            let mut client = target.client();
            for behind in [Frames::new(), Frames::new().flush()] {
                let whole = copy(&table).sync().then(&behind).copy_data(b"1\n").copy_done().sync();
                client.send(&whole.once("select 'next'").sync());
                client.expect("1 2 G E:P0001 Z:I Z:I 1 2 D:next C:SELECT_1 Z:I");
                assert_usable(target, &mut client);
            }
        });
    }

    fn early_error_while_copy_data_arrives(fixture) {
        let table = rejecting_table(fixture, "perform pg_sleep(0.2);");
        on_each_target(fixture, |target| {
            let mut client = target.client();
            client.send(&copy(&table).sync());
            client.expect("1 2 G");
            client.send(&Frames::new().sync().copy_data(b"1\n"));
            client.expect("E:P0001 Z:I Z:I");
            client.send(&Frames::new().copy_done().sync());
            client.expect("Z:I");
            assert_usable(target, &mut client);
        });
    }

    fn early_error_without_sync(fixture) {
        let table = rejecting_table(fixture, "");
        on_each_target(fixture, |target| {
            let mut client = target.client();
            client.send(&copy(&table).flush());
            client.expect("1 2 G E:P0001");
            client.send(&Frames::new().copy_data(b"1\n").copy_done().query("select 'discarded'").sync());
            client.expect("Z:I");
            assert_usable(target, &mut client);
        });
    }

    fn early_error_of_simple_copy_answers_every_sync(fixture) {
        let table = rejecting_table(fixture, "");
        on_each_target(fixture, |target| {
            let mut client = target.client();
            let query = Frames::new().query(&format!("copy {table} from stdin"));
            client.send(&query.clone().sync());
            client.expect("G E:P0001 Z:I Z:I");
            client.send(&Frames::new().copy_data(b"1\n").copy_done().sync());
            client.expect("Z:I");
            client.send(&query.sync().copy_data(b"1\n").sync().copy_done().query("select 'next'"));
            client.expect("G E:P0001 Z:I Z:I Z:I T D:next C:SELECT_1 Z:I");
            assert_usable(target, &mut client);
        });
    }

    fn early_error_in_a_transaction(fixture) {
        let table = rejecting_table(fixture, "");
        on_each_target(fixture, |target| {
            let mut client = target.client();
            client.ok("begin");
            client.send(&copy(&table).sync().copy_data(b"1\n").copy_done().sync());
            client.expect("1 2 G E:P0001 Z:E Z:E");
            assert_eq!(client.query("select 1").code(), "25P02");
            assert_eq!(client.ok("rollback").status, 'I');
            assert_usable(target, &mut client);
        });
    }

    /// COPY ignores the Syncs before the line that it rejects.
    fn bad_data_after_ignored_syncs_frees_the_server(fixture) {
        let table = fixture.create_table("n int unique");
        on_each_target(fixture, |target| {
            let mut client = target.client();
            for (data, ready) in [
                (Frames::new().sync().copy_data(b"x\n").copy_done().sync(), "Z:I"),
                (Frames::new().sync().copy_data(b"1\n").sync().copy_data(b"x\n").sync().copy_done().sync(), "Z:I Z:I"),
                // The unique violation is raised at the end of the copy.
                (Frames::new().sync().copy_data(b"1\n").sync().copy_data(b"1\n").sync().copy_done().sync(), "Z:I"),
            ] {
                client.send(&copy(&table).then(&data));
                let outcome = client.expect(&format!("1 2 G E {ready}"));
                assert!(["22P02", "23505"].contains(&&*outcome[3].error().code), "{outcome:?}");
                assert_usable(target, &mut client);
                client.send(&copy(&table).then(&data).once("select 'next'").sync());
                client.expect(&format!("1 2 G E {ready} 1 2 D:next C:SELECT_1 Z:I"));
                assert_usable(target, &mut client);
            }
        });
    }

    /// A message between CopyDone and Sync is executed if COPY failed before it read the first Sync, and skipped
    /// otherwise.
    fn request_after_copy_data_waits_for_the_copy(fixture) {
        let (rejecting, plain) = (rejecting_table(fixture, ""), fixture.create_table("n int"));
        on_each_target(fixture, |target| {
            let mut client = target.client();
            for (table, data, answer) in [
                (&rejecting, "1\n", "1 2 G E:P0001 Z:I 1 2 D:next C:SELECT_1 Z:I"),
                (&plain, "x\n", "1 2 G E:22P02 Z:I"),
                (&plain, "1\n", "1 2 G C:COPY_1 1 2 D:next C:SELECT_1 Z:I"),
            ] {
                let data = copy(table).sync().copy_data(data.as_bytes()).copy_done();
                client.send(&data.once("select 'next'").sync());
                client.expect(answer);
                assert_usable(target, &mut client);
            }
        });
    }

    fn error_after_a_completed_copy_frees_the_server(fixture) {
        let table = fixture.create_table("n int");
        on_each_target(fixture, |target| {
            let mut client = target.client();
            let query = Frames::new().query(&format!("copy {table} from stdin; select 1 / 0"));
            client.send(&query.sync().copy_data(b"1\n").copy_done());
            client.expect("G C:COPY_1 E:22012 Z:I");
            assert_usable(target, &mut client);
        });
    }
}
