//! Prepared statements whose tables, types, functions or roles change, through the gateway or over another connection.
//!
//! Clients share the analysis of a text on a server, so that a change may reach a client later than over a direct
//! connection. A client must get neither rows in another form than described to it, nor an analysis from before its own
//! Parse.

use tidegate_testkit::{Fixture, Frames, Gateway, Outcome, RawClient, on_each_postgres};

/// The connection that makes a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangedBy {
    /// Another client of the gateway.
    Gateway,
    /// A direct connection to Postgres.
    Postgres,
}

const CHANGED_BY: [ChangedBy; 2] = [ChangedBy::Gateway, ChangedBy::Postgres];

fn change(at: ChangedBy, fixture: &Fixture, gateway: &Gateway, sql: &str) {
    match at {
        ChangedBy::Gateway => _ = gateway.client("postgres").ok(sql),
        ChangedBy::Postgres => fixture.server.sql(sql),
    }
}

/// Prepares and describes a statement, like drivers that decode rows by the description.
fn describe(client: &mut RawClient, name: &str, sql: &str) -> Outcome {
    client.send(&Frames::new().parse(name, sql).describe_statement(name).sync());
    client.until_ready()
}

fn bind(client: &mut RawClient, name: &str, values: &[&str]) -> Outcome {
    client.send(&Frames::new().bind(name, values).execute().sync());
    client.until_ready()
}

/// A new client prepares, binds and executes in one flight.
fn run_with_new_client(gateway: &Gateway, sql: &str) -> Outcome {
    let mut client = gateway.client("postgres");
    client.send(&Frames::new().parse("s", sql).bind("s", &[]).execute().sync());
    client.until_ready()
}

on_each_postgres! {
    /// A float decoded as an integer would be a wrong value without an error.
    fn changed_columns_fail_before_any_row(fixture) {
        for (at, size) in CHANGED_BY.into_iter().flat_map(|at| [(at, 1), (at, 2)]) {
            let table = fixture.create_table("id int, amount int");
            fixture.server.sql(&format!("insert into {table} values (1, 42)"));
            let gateway = fixture.gateway(&format!("size = {size}\n"));
            let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            describe(&mut client, "s", &format!("select amount from {table} where id = $1"));
            assert_eq!(bind(&mut client, "s", &["1"]).value(), "42");
            change(at, fixture, &gateway, &format!("alter table {table} alter amount type real"));
            if size == 2 {
                // Occupies the server that the client used.
                other.ok("begin");
            }
            let refused = bind(&mut client, "s", &["1"]);
            let error = refused.error.expect("an error");
            let received = (error.code.as_str(), error.message.as_str());
            assert_eq!(received, ("0A000", "cached plan must not change result type"), "{at:?}, size {size}");
            assert!(refused.rows.is_empty());
            assert_eq!(bind(&mut client, "s", &["1"]).code(), "0A000", "the client has the old description");
            client.send(&Frames::new().describe_statement("s").sync());
            client.expect("t T Z");
            assert_eq!(bind(&mut client, "s", &["1"]).value(), "42", "the client has the new description");
        }
    }

    /// The error concerns a value, not the statement.
    fn failed_bind_keeps_the_described_columns(fixture) {
        for (at, described) in CHANGED_BY.into_iter().flat_map(|at| [(at, "statement"), (at, "portal")]) {
            let table = fixture.create_table("id int, amount int");
            fixture.server.sql(&format!("insert into {table} values (1, 42)"));
            let gateway = fixture.gateway("size = 2\n");
            let mut client = gateway.client("postgres");
            let sql = format!("select amount from {table} where id = $1");
            if described == "statement" {
                describe(&mut client, "s", &sql);
            } else {
                client.send(&Frames::new().parse("s", &sql).bind("s", &["1"]).describe_portal("").execute().sync());
                assert_eq!(client.until_ready().value(), "42");
            }
            assert_eq!(bind(&mut client, "s", &["one"]).code(), "22P02");
            change(at, fixture, &gateway, &format!("alter table {table} alter amount type real"));
            assert_eq!(bind(&mut client, "s", &["1"]).code(), "0A000", "{at:?}, {described}");
            client.send(&Frames::new().close_statement("s").parse("s", &sql).sync());
            client.until_ready();
            assert_eq!(bind(&mut client, "s", &["1"]).value(), "42");
        }
    }

    /// libpq and Npgsql describe the portal.
    fn described_portal_fixes_the_columns(fixture) {
        let table = fixture.create_table("amount int");
        fixture.server.sql(&format!("insert into {table} values (42)"));
        let gateway = fixture.gateway("size = 2\n");
        let sql = format!("select amount from {table}");
        let once = |portal: &str| {
            Frames::new().parse("", &sql).bind_portal(portal, "", &[]).describe_portal(portal).execute_portal(portal, 0)
        };
        let run = Frames::new().bind("", &[]).describe_portal("").execute().sync();
        let flights = [
            vec![once("").sync()],
            vec![once("p").sync()],
            vec![Frames::new().parse("", &sql).bind("", &[]).describe_portal("").sync()],
            vec![Frames::new().parse("", &sql).sync(), run.clone()],
            vec![once("").sync(), run],
        ];
        for (number, flight) in flights.into_iter().enumerate() {
            fixture.server.sql(&format!("alter table {table} alter amount type int"));
            let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            flight.iter().for_each(|frames| client.send(frames));
            flight.iter().for_each(|_| assert_eq!(client.until_ready().code(), ""));
            fixture.server.sql(&format!("alter table {table} alter amount type real"));
            // Occupies the server that the client used.
            other.ok("begin");
            for _ in 0..2 {
                assert_eq!(bind(&mut client, "", &[]).code(), "0A000", "flight {number}");
            }
            other.ok("rollback");
            assert_eq!(bind(&mut client, "", &[]).code(), "0A000", "flight {number}");
            client.send(&Frames::new().once(&sql).sync());
            assert_eq!(client.until_ready().value(), "42");
            assert_eq!(bind(&mut client, "", &[]).value(), "42");
        }
    }

    /// A portal without rows, and a portal that is described in another format than its statement.
    fn unchanged_portal_columns_are_accepted(fixture) {
        let table = fixture.create_table("id int, amount int");
        fixture.server.sql(&format!("insert into {table} values (1, 42)"));
        let gateway = fixture.gateway("size = 2\n");
        for sql in [format!("select amount from {table}"), format!("update {table} set amount = 42")] {
            let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            client.send(&Frames::new().parse("", &sql).bind("", &[]).describe_portal("").execute().sync());
            assert_eq!(client.until_ready().code(), "");
            fixture.server.sql(&format!("alter table {table} alter id type bigint"));
            other.ok("begin");
            assert_eq!(bind(&mut client, "", &[]).code(), "", "{sql}");
        }
    }

    /// Postgres does not compare the columns of FETCH: the cursor may not exist when the statement is described.
    fn fetch_prepared_before_its_cursor_succeeds(fixture) {
        for size in [1, 2] {
            let gateway = fixture.gateway(&format!("size = {size}\n"));
            let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            describe(&mut client, "f", "fetch all in c");
            if size == 2 {
                // Occupies the server that the client used.
                other.ok("begin");
            }
            for column in ["42", "43::text"] {
                client.ok("begin");
                client.ok(&format!("declare c cursor for select {column}"));
                assert_eq!(bind(&mut client, "f", &[]).value(), column[..2], "size {size}");
                client.ok("commit");
            }
        }
    }

    /// Postgres counts parameters modulo 65536 in ParameterDescription, and only Bind is limited.
    fn statement_with_65536_parameters_is_described(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let values: Vec<_> = (1..=65_536).map(|number| format!("(${number}::int)")).collect();
        let sql = format!("values {}", values.join(","));
        let mut client = gateway.client("postgres");
        for name in ["s", ""] {
            assert_eq!(describe(&mut client, name, &sql).code(), "");
            assert_eq!(bind(&mut client, name, &["1"]).code(), "08P01");
            assert_eq!(client.value("select 'in step'"), "in step");
        }
    }

    fn changed_columns_fail_in_every_pipeline(fixture) {
        let table = fixture.create_table("id int, amount int");
        fixture.server.sql(&format!("insert into {table} values (1, 42)"));
        let gateway = fixture.gateway("size = 2\n");
        let sql = format!("select amount from {table}");
        let flights: [fn(Frames) -> Frames; 4] = [
            |frames| frames.once("select 1").run("s").sync(),
            |frames| frames.run("s").flush().sync(),
            |frames| frames.bind_portal("p", "s", &[]).bind_portal("q", "s", &[]).execute_portal("p", 0).sync(),
            |frames| frames.once("select 1").sync().run("s").sync(),
        ];
        for flight in flights {
            fixture.server.sql(&format!("alter table {table} alter amount type int"));
            let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            describe(&mut client, "s", &sql);
            fixture.server.sql(&format!("alter table {table} alter amount type real"));
            other.ok("begin");
            let frames = flight(Frames::new());
            let syncs = frames.bytes().windows(5).filter(|window| *window == b"S\0\0\0\x04").count();
            client.send(&frames);
            let mut outcomes: Vec<_> = (0..syncs).map(|_| client.until_ready()).collect();
            assert_eq!(outcomes.pop().expect("a Sync").code(), "0A000");
            other.ok("rollback");
            assert_eq!(client.value("select 'in step'"), "in step");
        }
    }

    /// pgx describes the unnamed statement and binds it behind a Sync.
    fn unnamed_statement_keeps_its_described_columns(fixture) {
        let table = fixture.create_table("amount int");
        fixture.server.sql(&format!("insert into {table} values (42)"));
        let gateway = fixture.gateway("size = 2\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        describe(&mut client, "", &format!("select amount from {table}"));
        fixture.server.sql(&format!("alter table {table} alter amount type real"));
        // Occupies the server that the client used.
        other.ok("begin");
        assert_eq!(bind(&mut client, "", &[]).code(), "0A000");
        assert_eq!(client.value("select 'in step'"), "in step");
    }

    fn new_client_gets_current_parameter_types(fixture) {
        for (at, (before, after, value)) in CHANGED_BY.into_iter().flat_map(|at| {
            let uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
            let types = [("int", "bigint", "3000000000"), ("text", "int", "7"), ("text", "uuid", uuid)];
            types.map(|types| (at, types))
        }) {
            let table = fixture.create_table(&format!("id {before}"));
            let gateway = fixture.gateway("size = 2\n");
            let sql = format!("select count(*) from {table} where id = $1");
            let mut first = gateway.client("postgres");
            describe(&mut first, "s", &sql);
            drop(first);
            change(at, fixture, &gateway, &format!("alter table {table} alter id type {after} using null"));
            let mut client = gateway.client("postgres");
            for round in 0..3 {
                describe(&mut client, "s", &sql);
                assert_eq!(bind(&mut client, "s", &[value]).code(), "", "{at:?}, {before} to {after}, round {round}");
                client.send(&Frames::new().close_statement("s").sync());
                client.expect("3 Z:I");
            }
            for _ in 0..5 {
                let mut fresh = gateway.client("postgres");
                describe(&mut fresh, "other", &sql);
                assert_eq!(bind(&mut fresh, "other", &[value]).code(), "", "{at:?}, {before} to {after}");
            }
        }
    }

    fn parse_uses_a_recreated_object(fixture) {
        for at in CHANGED_BY {
            let gateway = fixture.gateway("size = 2\n");
            let name = fixture.name("o");
            let cases = [
                (
                    format!("create type {name} as enum ('a')"),
                    format!("select 'a'::{name}::text"),
                    format!("drop type {name}; create type {name} as enum ('a')"),
                    "a",
                ),
                (
                    format!("create domain {name}_d as int default 3; create table {name}_t (n {name}_d)"),
                    format!("insert into {name}_t default values returning n"),
                    format!("alter domain {name}_d set default 42"),
                    "42",
                ),
                (
                    format!("create function {name}_f() returns int language sql as 'select 1'"),
                    format!("select proname from pg_proc where oid = '{name}_f'::regproc"),
                    format!("drop function {name}_f; create function {name}_f() returns int language sql as 'select 2'"),
                    &format!("{name}_f"),
                ),
                (
                    format!("create function {name}_g() returns int immutable language sql as 'select 1'"),
                    format!("select {name}_g()"),
                    format!("create or replace function {name}_g() returns int immutable language sql as 'select 2'"),
                    "2",
                ),
            ];
            for (create, sql, recreate, expected) in cases {
                fixture.server.sql(&create);
                for _ in 0..3 {
                    assert_eq!(run_with_new_client(&gateway, &sql).code(), "", "{sql}");
                }
                change(at, fixture, &gateway, &recreate);
                for _ in 0..3 {
                    assert_eq!(run_with_new_client(&gateway, &sql).value(), expected, "{at:?}: {sql}");
                }
            }
        }
    }

    /// The gateway may answer a Parse without a server if another client has the statement.
    fn parse_without_execute_uses_a_recreated_object(fixture) {
        let name = fixture.name("d");
        fixture.server.sql(&format!("create domain {name} as int default 3; create table {name}_t (n {name})"));
        let gateway = fixture.gateway("size = 1\n");
        let sql = format!("insert into {name}_t default values returning n");
        let mut keeper = gateway.client("postgres");
        describe(&mut keeper, "kept", &sql);
        for default in ["4", "5", "6"] {
            assert_eq!(bind(&mut keeper, "kept", &[]).code(), "");
            fixture.server.sql(&format!("alter domain {name} set default {default}"));
            let mut client = gateway.client("postgres");
            client.send(&Frames::new().parse("s", &sql).sync());
            client.expect("1 Z:I");
            assert_eq!(bind(&mut client, "s", &[]).value(), default);
        }
    }

    /// A plan may contain the folded result of an immutable function.
    fn role_without_privilege_gets_no_folded_value(fixture) {
        let (name, role) = (fixture.name("f"), fixture.create_role("x", ""));
        fixture.server.sql(&format!(
            "create function {name}() returns int immutable language plpgsql as 'begin return 7; end'; \
             revoke execute on function {name} from public"
        ));
        let gateway = fixture.gateway("size = 1\n");
        let sql = format!("select {name}()");
        let (mut owner, mut client) = (gateway.client("postgres"), gateway.client("postgres"));
        describe(&mut owner, "s", &sql);
        (0..7).for_each(|_| assert_eq!(bind(&mut owner, "s", &[]).value(), "7"));
        client.ok(&format!("set role {role}"));
        client.send(&Frames::new().parse("s", &sql).run("s").sync());
        assert_eq!(client.until_ready().code(), "42501");
        assert_eq!(bind(&mut owner, "s", &[]).value(), "7");
    }

    fn literal_now_is_evaluated_at_each_parse(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut times: Vec<_> = (0..3).map(|_| run_with_new_client(&gateway, "select 'now'::timestamptz").value()).collect();
        times.dedup();
        assert_eq!(times.len(), 3, "{times:?}");
    }

    fn rolled_back_change_has_no_effect(fixture) {
        let name = fixture.name("d");
        fixture.server.sql(&format!("create domain {name} as int default 3; create table {name}_t (n {name})"));
        let gateway = fixture.gateway("size = 1\n");
        let sql = format!("insert into {name}_t default values returning n");
        let mut client = gateway.client("postgres");
        describe(&mut client, "s", &sql);
        for disconnects in [false, true] {
            let mut other = gateway.client("postgres");
            other.ok("begin");
            other.ok(&format!("alter domain {name} set default 42"));
            assert_eq!(describe(&mut other, "same", &sql).code(), "");
            assert_eq!(bind(&mut other, "same", &[]).value(), "42");
            if !disconnects {
                other.ok("rollback");
            }
            drop(other);
            assert_eq!(bind(&mut client, "s", &[]).value(), "3", "disconnects: {disconnects}");
        }
    }

    /// A Bind that fails because the analysis on the server is old succeeds the next time.
    fn bind_after_a_stale_analysis_succeeds(fixture) {
        let table = fixture.create_table("id int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().parse("s", &format!("select count(*) from {table} where id = $1")).sync());
        client.expect("1 Z:I");
        assert_eq!(bind(&mut client, "s", &["1"]).code(), "");
        fixture.server.sql(&format!("alter table {table} alter id type bigint"));
        assert_eq!(bind(&mut client, "s", &["3000000000"]).code(), "22003");
        let again = bind(&mut client, "s", &["3000000000"]);
        assert_eq!(again.code(), "");
    }

    /// The client has prepared the statement after the change, and the second server has it from before.
    fn older_analysis_on_another_server_is_replaced(fixture) {
        let table = fixture.create_table("amount int");
        fixture.server.sql(&format!("insert into {table} values (42)"));
        let gateway = fixture.gateway("size = 2\nprepared_statement_max_age = \"1h\"\n");
        let sql = format!("select amount from {table}");
        let mut clients: Vec<_> = (0..3).map(|_| gateway.client("postgres")).collect();
        for client in &mut clients[..2] {
            client.ok("begin");
            describe(client, "s", &sql);
        }
        clients[0].ok("commit");
        clients[1].ok("commit");
        fixture.server.sql(&format!("alter table {table} alter amount type real"));
        let [one, two, late] = &mut clients[..] else { unreachable!() };
        one.ok("begin");
        describe(late, "s", &sql);
        assert_eq!(bind(late, "s", &[]).value(), "42");
        one.ok("rollback");
        two.ok("begin");
        late.ok("select 1");
        assert_eq!(bind(late, "s", &[]).value(), "42");
    }
}
