//! COPY FROM STDIN that fails before it has read its data, or behind a Sync that it may have ignored.

use tidegate_testkit::{Door, Fixture, Frames};

/// Runs a script at Postgres itself, then at a gateway in each mode, with one connection to Postgres.
fn at_each_door(fixture: &Fixture, script: impl Fn(&Door)) {
    script(&fixture.direct());
    for mode in ["transaction", "session"] {
        script(&Door::through(fixture.gateway(&format!("mode = \"{mode}\"\nsize = 1\n"))));
    }
}

/// A table whose statement trigger refuses every insert, after it has run `first`.
fn refusing_table(fixture: &Fixture, first: &str) -> String {
    let table = fixture.own_table("n int");
    let body = format!("begin {first} raise exception 'refused'; end");
    fixture.server.sql(&format!("create function refuse_{table}() returns trigger language plpgsql as $${body}$$"));
    let function = format!("execute function refuse_{table}()");
    fixture.server.sql(&format!("create trigger refuse before insert on {table} for each statement {function}"));
    table
}

fn copy(table: &str) -> Frames {
    Frames::new().once(&format!("copy {table} from stdin"))
}

/// The server serves this client and others.
#[track_caller]
fn is_alive(door: &Door, client: &mut tidegate_testkit::RawClient) {
    let is_shared = |pool: &std::collections::BTreeMap<String, String>| pool["pool_mode"] == "transaction";
    if door.gateway.as_ref().is_some_and(|gateway| gateway.show("POOLS").iter().any(is_shared)) {
        assert_eq!(door.client().value("select 'another'"), "another");
    }
    client.send(&Frames::new().once("select 'alive'").sync());
    client.expect("1 2 D:alive C:SELECT_1 Z:I");
}

on_each_postgres! {
    fn copy_that_fails_early_answers_every_sync(fixture) {
        let table = refusing_table(fixture, "");
        let end = Frames::new().copy_data(b"1\n").copy_done().sync();
        at_each_door(fixture, |door| {
            let mut client = door.client();
            let described = Frames::new().parse("", &format!("copy {table} from stdin")).bind("", &[]).describe_portal("");
            client.send(&described.execute().sync());
            client.expect("1 2 n G E:P0001 Z:I");
            client.send(&end);
            client.expect("Z:I");
            is_alive(door, &mut client);
        });
    }

    fn copy_freeze_that_fails_early_answers_every_sync(fixture) {
        let table = fixture.own_table("n int");
        at_each_door(fixture, |door| {
            let mut client = door.client();
            client.send(&Frames::new().once(&format!("copy {table} from stdin (freeze)")).sync());
            client.expect("1 2 G E:55000 Z:I");
            client.send(&Frames::new().copy_done().sync());
            client.expect("Z:I");
            is_alive(door, &mut client);
        });
    }

    fn copy_that_fails_early_with_its_data_in_one_write(fixture) {
        let table = refusing_table(fixture, "");
        at_each_door(fixture, |door| {
            let mut client = door.client();
            for behind in [Frames::new(), Frames::new().flush()] {
                let whole = copy(&table).sync().then(&behind).copy_data(b"1\n").copy_done().sync();
                client.send(&whole.once("select 'next'").sync());
                client.expect("1 2 G E:P0001 Z:I Z:I 1 2 D:next C:SELECT_1 Z:I");
                is_alive(door, &mut client);
            }
        });
    }

    fn copy_that_fails_early_while_its_data_arrives(fixture) {
        let table = refusing_table(fixture, "perform pg_sleep(0.2);");
        at_each_door(fixture, |door| {
            let mut client = door.client();
            client.send(&copy(&table).sync());
            client.expect("1 2 G");
            client.send(&Frames::new().sync().copy_data(b"1\n"));
            client.expect("E:P0001 Z:I Z:I");
            client.send(&Frames::new().copy_done().sync());
            client.expect("Z:I");
            is_alive(door, &mut client);
        });
    }

    fn copy_that_fails_early_without_a_sync(fixture) {
        let table = refusing_table(fixture, "");
        at_each_door(fixture, |door| {
            let mut client = door.client();
            client.send(&copy(&table).flush());
            client.expect("1 2 G E:P0001");
            client.send(&Frames::new().copy_data(b"1\n").copy_done().query("select 'discarded'").sync());
            client.expect("Z:I");
            is_alive(door, &mut client);
        });
    }

    fn simple_copy_that_fails_early_answers_every_sync(fixture) {
        let table = refusing_table(fixture, "");
        at_each_door(fixture, |door| {
            let mut client = door.client();
            let query = Frames::new().query(&format!("copy {table} from stdin"));
            client.send(&query.clone().sync());
            client.expect("G E:P0001 Z:I Z:I");
            client.send(&Frames::new().copy_data(b"1\n").copy_done().sync());
            client.expect("Z:I");
            client.send(&query.sync().copy_data(b"1\n").sync().copy_done().query("select 'next'"));
            client.expect("G E:P0001 Z:I Z:I Z:I T D:next C:SELECT_1 Z:I");
            is_alive(door, &mut client);
        });
    }

    fn copy_that_fails_early_in_a_transaction(fixture) {
        let table = refusing_table(fixture, "");
        at_each_door(fixture, |door| {
            let mut client = door.client();
            client.ok("begin");
            client.send(&copy(&table).sync().copy_data(b"1\n").copy_done().sync());
            client.expect("1 2 G E:P0001 Z:E Z:E");
            assert_eq!(client.query("select 1").code(), "25P02");
            assert_eq!(client.ok("rollback").status, 'I');
            is_alive(door, &mut client);
        });
    }

    /// The copy has ignored those Syncs that came before the line that it refuses.
    fn bad_data_behind_ignored_syncs_frees_the_server(fixture) {
        let table = fixture.own_table("n int unique");
        at_each_door(fixture, |door| {
            let mut client = door.client();
            for (data, ready) in [
                (Frames::new().sync().copy_data(b"x\n").copy_done().sync(), "Z:I"),
                (Frames::new().sync().copy_data(b"1\n").sync().copy_data(b"x\n").sync().copy_done().sync(), "Z:I Z:I"),
                // The second line is refused at the end of the copy.
                (Frames::new().sync().copy_data(b"1\n").sync().copy_data(b"1\n").sync().copy_done().sync(), "Z:I"),
            ] {
                client.send(&copy(&table).then(&data));
                let outcome = client.expect(&format!("1 2 G E {ready}"));
                assert!(["22P02", "23505"].contains(&&*outcome[3].error().code), "{outcome:?}");
                is_alive(door, &mut client);
                client.send(&copy(&table).then(&data).once("select 'next'").sync());
                client.expect(&format!("1 2 G E {ready} 1 2 D:next C:SELECT_1 Z:I"));
                is_alive(door, &mut client);
            }
        });
    }

    /// What stands between CopyDone and Sync is executed if the copy has failed before it read the first Sync, else skipped.
    fn a_request_behind_copy_data_waits_for_the_copy(fixture) {
        let (refusing, plain) = (refusing_table(fixture, ""), fixture.own_table("n int"));
        at_each_door(fixture, |door| {
            let mut client = door.client();
            for (table, data, answer) in [
                (&refusing, "1\n", "1 2 G E:P0001 Z:I 1 2 D:next C:SELECT_1 Z:I"),
                (&plain, "x\n", "1 2 G E:22P02 Z:I"),
                (&plain, "1\n", "1 2 G C:COPY_1 1 2 D:next C:SELECT_1 Z:I"),
            ] {
                let data = copy(table).sync().copy_data(data.as_bytes()).copy_done();
                client.send(&data.once("select 'next'").sync());
                client.expect(answer);
                is_alive(door, &mut client);
            }
        });
    }

    fn an_error_behind_a_good_copy_frees_the_server(fixture) {
        let table = fixture.own_table("n int");
        at_each_door(fixture, |door| {
            let mut client = door.client();
            let query = Frames::new().query(&format!("copy {table} from stdin; select 1 / 0"));
            client.send(&query.sync().copy_data(b"1\n").copy_done());
            client.expect("G C:COPY_1 E:22012 Z:I");
            is_alive(door, &mut client);
        });
    }
}
