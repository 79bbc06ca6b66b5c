//! Settings of a session, which follow their client from server to server.

use tidegate_testkit::{
    FaultyServer, Frames, Gateway, Message, RawClient, eventually, gateway_for, on_each_postgres, reply,
};

/// Occupies the server that this client used last, so that its next transaction runs on another one.
#[track_caller]
fn occupy_server_of(gateway: &Gateway, client: &mut RawClient) -> RawClient {
    let last = client.backend();
    let mut holders: Vec<RawClient> = Vec::new();
    loop {
        let mut holder = gateway.client("postgres");
        holder.ok("begin");
        if holder.backend() == last {
            // Dropping the other holders frees their servers.
            return holder;
        }
        holders.push(holder);
    }
}

on_each_postgres! {
    /// EDGE-55.
    fn parameter_follows_its_client_to_every_server(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut client = gateway.client("postgres");
        let settings = [
            ("application_name", "follows"),
            ("datestyle", "SQL, DMY"),
            ("timezone", "Asia/Tokyo"),
            ("intervalstyle", "iso_8601"),
            ("client_encoding", "LATIN1"),
            ("standard_conforming_strings", "off"),
            ("default_transaction_read_only", "on"),
        ];
        for (name, value) in settings {
            client.ok(&format!("set {name} = {}", if name == "datestyle" { value.to_owned() } else { format!("'{value}'") }));
        }
        let holder = occupy_server_of(&gateway, &mut client);
        for (name, value) in settings {
            assert_eq!(client.value(&format!("show {name}")), value, "{name}");
        }
        drop(holder);
    }

    /// EDGE-55.
    fn parameter_status_is_reported_as_by_postgres(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().query("set application_name = 'one'"));
            client.expect("C:SET S:application_name=one Z:I");
            client.send(&Frames::new().once("set application_name = 'two'").sync());
            client.expect("1 2 C:SET S:application_name=two Z:I");
            client.send(&Frames::new().query("select 1; set application_name = 'three'; select 2"));
            client.expect("T D:1 C:SELECT_1 C:SET T D:2 C:SELECT_1 S:application_name=three Z:I");
            client.send(&Frames::new().query("set application_name = 'three'"));
            client.expect("C:SET Z:I");
        });
    }

    /// EDGE-55: Two clients with different settings share one server. Neither gets a report that a setting of the
    /// other caused.
    fn parameter_sync_sends_no_parameter_status(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients: Vec<_> = ["left", "right"]
            .map(|name| gateway.startup("postgres").parameter("application_name", name).connect())
            .into();
        for _ in 0..3 {
            for client in &mut clients {
                client.send(&Frames::new().query("select 1"));
                client.expect("T D:1 C:SELECT_1 Z:I");
                client.send(&Frames::new().once("select 2").sync());
                client.expect("1 2 D:2 C:SELECT_1 Z:I");
            }
        }
        assert_eq!(clients[0].value("show application_name"), "left");
        assert_eq!(clients[1].value("show application_name"), "right");
    }

    /// EDGE-56.
    fn rolled_back_set_is_reverted(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut client = gateway.client("postgres");
        client.ok("set application_name = 'before'");
        client.ok("begin");
        client.ok("set application_name = 'inner'");
        client.send(&Frames::new().query("rollback"));
        client.expect("C:ROLLBACK S:application_name=before Z:I");
        let holder = occupy_server_of(&gateway, &mut client);
        assert_eq!(client.value("show application_name"), "before");
        drop(holder);
    }

    /// EDGE-56.
    fn set_survives_rollback_of_the_chained_transaction(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut client = gateway.client("postgres");
        for sql in ["begin", "set work_mem = '7MB'", "commit and chain", "rollback"] {
            client.ok(sql);
        }
        let holder = occupy_server_of(&gateway, &mut client);
        assert_eq!(client.value("show work_mem"), "7MB");
        drop(holder);
    }

    /// EDGE-56.
    fn set_local_ends_with_its_transaction(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut client = gateway.client("postgres");
        client.ok("set application_name = 'before'");
        client.ok("begin; set local application_name = 'inner'");
        assert_eq!(client.value("show application_name"), "inner");
        client.ok("commit");
        let holder = occupy_server_of(&gateway, &mut client);
        assert_eq!(client.value("show application_name"), "before");
        drop(holder);
    }

    /// EDGE-56.
    fn failed_set_has_no_effect(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut client = gateway.client("postgres");
        assert_eq!(client.query("set timezone = 'Nowhere/Land'").code(), "22023");
        assert_eq!(client.query("set application_name = 'x'; select 1/0").code(), "22012");
        assert_eq!(client.value("show application_name"), "");
        assert_eq!(gateway.client("postgres").value("show application_name"), "");
    }

    /// EDGE-57.
    fn reset_all_restores_startup_values(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut other = gateway.startup("postgres").parameter("application_name", "other").connect();
        other.ok("select 1");
        let startup = gateway.startup("postgres").parameter("application_name", "boot");
        let mut client = startup.parameter("timezone", "Asia/Tokyo").connect();
        for reset in ["reset all", "discard all"] {
            client.ok("set application_name = 'changed'");
            client.ok("set timezone = 'Europe/Paris'");
            other.ok("select 2");
            client.ok(reset);
            assert_eq!(client.value("show application_name"), "boot", "{reset}");
            assert_eq!(client.value("show timezone"), "Asia/Tokyo", "{reset}");
            assert_eq!(other.value("show application_name"), "other", "{reset}");
            assert_eq!(client.value("show application_name"), "boot", "{reset}");
        }
    }

    /// EDGE-57: No statement behind the RESET in a pipeline runs under the values of the server, in any mode.
    fn statements_after_a_reset_use_startup_values(fixture) {
        for (mode, pinned) in [("transaction", false), ("transaction", true), ("session", false)] {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n"));
            let startup = gateway.startup("postgres").parameter("TimeZone", "Asia/Tokyo").parameter("work_mem", "77kB");
            let mut client = startup.connect();
            if pinned {
                client.ok("listen channel");
            }
            for reset in ["reset all", "reset work_mem", "reset timezone", "discard all"] {
                let work_mem = if reset == "reset timezone" { "99kB" } else { "77kB" };
                for begin in [Frames::new().query(reset), Frames::new().once(reset).sync()] {
                    client.ok("set work_mem = '99kB'");
                    client.ok("set timezone = 'Asia/Tokyo'");
                    let next = Frames::new().query("show work_mem").once("show timezone").sync().query("select 'the end'");
                    client.send(&begin.then(&next));
                    let (mut rows, mut reported) = (Vec::new(), "Asia/Tokyo".to_owned());
                    while rows.last().is_none_or(|last| last != "the end") {
                        let outcome = client.until_ready();
                        assert!(outcome.error.is_none(), "{outcome:?}");
                        rows.extend(outcome.rows.into_iter().flatten());
                        let reports = outcome.messages.iter().filter(|message| message.tag == b'S').map(Message::parameter);
                        reports.filter(|(name, _)| name == "TimeZone").for_each(|(_, value)| reported = value);
                    }
                    assert_eq!(reported, "Asia/Tokyo", "the reported time zone");
                    assert_eq!(rows, [work_mem, "Asia/Tokyo", "the end"], "{mode}, {reset}");
                }
            }
            client.ok("set work_mem = '99kB'");
            client.ok("reset timezone");
            assert_eq!(client.value("show work_mem"), "99kB");
            client.ok("reset work_mem");
            assert_eq!(client.value("show work_mem"), "77kB");
        }
    }

    /// EDGE-57: A FunctionCall may be long, and is forwarded in fragments.
    fn function_call_after_a_reset_uses_startup_values(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.startup("postgres").parameter("work_mem", "77kB").connect();
        // current_setting('work_mem'), both as text.
        let call = [&2077_u32.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0, 0, 8], b"work_mem", &[0, 0]].concat();
        for begin in [Frames::new().query("reset work_mem"), Frames::new().once("reset all").sync()] {
            client.ok("set work_mem = '99kB'");
            let frames = begin.message(b'F', &call);
            let (beginning, rest) = frames.bytes().split_at(frames.bytes().len() - 3);
            client.send_bytes(beginning);
            assert!(client.until_ready().error.is_none());
            client.send_bytes(rest);
            let outcome = client.until_ready();
            let value = outcome.messages.iter().find(|message| message.tag == b'V').expect("a value");
            assert_eq!(value.body[4..], *b"77kB");
        }
    }

    /// EDGE-57.
    fn reset_of_one_setting_restores_its_startup_value(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        gateway.startup("postgres").parameter("application_name", "other").connect().ok("select 1");
        let mut client = gateway.startup("postgres").parameter("application_name", "boot").connect();
        client.ok("set application_name = 'changed'");
        client.ok("reset application_name");
        assert_eq!(client.value("show application_name"), "boot");
    }

    /// EDGE-57: Connection pools of drivers (asyncpg) send it when a connection is released. It must not pin the
    /// server.
    fn reset_among_other_statements(fixture) {
        let pool_reset = "select pg_advisory_unlock_all();\nclose all;\nunlisten *;\nreset all;";
        for mode in ["transaction", "session"] {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\npin = false\n"));
            let mut client = gateway.startup("postgres").parameter("work_mem", "77kB").connect();
            for several in [pool_reset, "reset work_mem; select 1", "select 1; set work_mem to default;;"] {
                client.ok("set work_mem = '99kB'");
                client.ok(several);
                assert_eq!(client.value("show work_mem"), "77kB", "{mode}, {several}");
                client.ok("set work_mem = '99kB'");
                let failing = format!("{}; select 1/0", several.trim_end_matches(';'));
                assert_eq!(client.query(&failing).code(), "22012", "{mode}, {several}");
                assert_eq!(client.value("show work_mem"), "99kB", "{mode}, {several}");
                client.ok("begin");
                client.ok(several);
                client.ok("rollback");
                assert_eq!(client.value("show work_mem"), "99kB", "{mode}, {several}");
                if mode == "transaction" {
                    assert_eq!(gateway.client("postgres").value("show work_mem"), "4MB", "{several}");
                }
            }
        }
    }

    /// EDGE-58.
    fn settings_do_not_leak_to_other_clients(fixture) {
        let role = fixture.create_role("x", "");
        let schema = fixture.name("s");
        fixture.server.sql(&format!("create schema {schema}"));
        let leaks = [
            ("default_transaction_read_only", "set default_transaction_read_only = on".to_owned(), "off"),
            ("search_path", format!("set search_path = {schema}"), "\"$user\", public"),
            ("search_path", format!("select set_config('search_path', '{schema}', false)"), "\"$user\", public"),
            ("search_path", "SELECT pg_catalog.set_config('search_path', '', false)".to_owned(), "\"$user\", public"),
            ("role", format!("set role {role}"), "none"),
            ("session_authorization", format!("set session authorization {role}"), "postgres"),
            (
                "transaction_isolation",
                "set session characteristics as transaction isolation level serializable".to_owned(),
                "read committed",
            ),
            ("work_mem", "set work_mem = '17MB'".to_owned(), "4MB"),
            ("statement_timeout", "set session statement_timeout = '77s'".to_owned(), "0"),
            ("row_security", "set row_security = off".to_owned(), "on"),
            ("timezone", "set time zone 'Asia/Tokyo'".to_owned(), "GMT"),
        ];
        let since_16 = ("scram_iterations", "set scram_iterations = 5000".to_owned(), "4096");
        let leaks = leaks.into_iter().chain((fixture.server.major() >= 16).then_some(since_16));
        for (name, sql, default) in leaks {
            let gateway = fixture.gateway("size = 1\n");
            let mut other = gateway.client("postgres");
            let default = if name == "timezone" { other.value("show timezone") } else { default.to_owned() };
            let mut changed = gateway.client("postgres");
            for extended in [false, true] {
                if extended {
                    changed.send(&Frames::new().once(&sql).sync());
                    changed.until_ready();
                } else {
                    changed.ok(&sql);
                }
                if name == "role" || name == "session_authorization" || name == "work_mem" {
                    // Postgres does not report these, so that the client may keep its server until it leaves.
                    changed.send(&Frames::new().terminate());
                    changed.expect_eof();
                    changed = gateway.client("postgres");
                }
                other.send(&Frames::new().query(&format!("show {name}")));
                eventually("the other client is served, or waits", || {
                    other.has_input() || gateway.pool_count("postgres", "cl_waiting") == 1
                });
                if other.has_input() {
                    assert_eq!(other.until_ready().value(), default, "{sql}");
                    continue;
                }
                drop(changed);
                assert_eq!(other.until_ready().value(), default, "{sql}");
                changed = gateway.client("postgres");
            }
        }
    }

    /// EDGE-58: Sequelize begins each connection with such a query.
    fn several_sets_in_one_query_do_not_pin(fixture) {
        let gateway = fixture.gateway("size = 1\npin = false\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let zone = other.value("show timezone");
        client.ok("set standard_conforming_strings=on;set client_min_messages to error;\
                 set time zone interval '+03:00' hour to minute;");
        let zone_of_mine = client.value("show timezone");
        assert_ne!(zone_of_mine, zone);
        for _ in 0..2 {
            assert_eq!(other.value("show timezone"), zone);
            assert_eq!(other.value("show client_min_messages"), "notice");
            assert_eq!(client.value("show timezone"), zone_of_mine);
            assert_eq!(client.value("show client_min_messages"), "error");
        }
        let failing = "set work_mem = '7MB'; set client_min_messages to log; select 1/0";
        assert_eq!(client.query(failing).code(), "22012");
        client.ok("begin");
        client.ok("set work_mem = '7MB'; select 1; set client_min_messages to log");
        assert_eq!(client.value("show work_mem"), "7MB");
        client.ok("rollback");
        client.ok("begin");
        client.ok("savepoint s");
        client.ok("set work_mem = '7MB'; set client_min_messages to log");
        client.ok("rollback to s");
        client.ok("rollback");
        for client in [&mut other, &mut client] {
            assert_eq!(client.value("show work_mem"), "4MB");
        }
        assert_eq!(client.value("show client_min_messages"), "error");
        assert_eq!(other.value("show client_min_messages"), "notice");
        client.ok("set work_mem = '7MB'; select 1; set work_mem = '9MB'");
        assert_eq!(other.value("show work_mem"), "4MB");
        assert_eq!(client.value("show work_mem"), "9MB");
    }

    /// EDGE-58: Npgsql sends these statements when its pool takes a connection back.
    fn reset_of_npgsql_does_not_pin(fixture) {
        let gateway = fixture.gateway("size = 1\npin = false\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        for _ in 0..2 {
            client.ok("set work_mem = '7MB'");
            assert_eq!(other.value("show work_mem"), "4MB");
            assert_eq!(client.value("show work_mem"), "7MB");
            client.ok(
                "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;CLOSE ALL;UNLISTEN *;SELECT pg_advisory_unlock_all();\
                 DISCARD SEQUENCES;DISCARD TEMP",
            );
            assert_eq!(client.value("show work_mem"), "4MB");
        }
    }

    /// EDGE-58: A role ends with the session user. The next client of the server must get its own role all the
    /// same.
    fn reset_session_authorization_resets_the_role(fixture) {
        let role = fixture.create_role("", "");
        let gateway = fixture.gateway("size = 1\n");
        let mut other = gateway.client("postgres");
        other.ok(&format!("set role {role}"));
        for back in ["reset session authorization", "reset session_authorization", "set session authorization default"] {
            for within in [false, true] {
                let mut client = gateway.client("postgres");
                if within {
                    client.ok("begin");
                }
                client.ok(&format!("set role {role}"));
                client.ok(back);
                assert_eq!(client.value("select current_user"), "postgres", "{back}");
                if within {
                    client.ok("commit");
                }
                drop(client);
                assert_eq!(other.value("select current_user"), role, "{back}");
            }
        }
    }

    /// EDGE-58.
    fn more_settings_than_tracked_pin_the_server(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let mut sets = Frames::new();
        for number in 0..300 {
            sets = sets.query(&format!("set many.p{number} = {number}"));
        }
        client.send(&sets);
        (0..300).for_each(|_| drop(client.until_ready()));
        let holder = gateway.client("postgres");
        for number in [0, 299] {
            assert_eq!(client.value(&format!("show many.p{number}")), number.to_string());
            assert_eq!(other.value(&format!("select current_setting('many.p{number}', true) is null")), "t");
        }
        drop(client);
        drop(holder);
        assert_eq!(other.value("select current_setting('many.p299', true) is null"), "t");
    }

    /// EDGE-58: Django sets the time zone so, pgjdbc the isolation level, and PostgREST the values of a request.
    fn other_forms_of_set_do_not_pin(fixture) {
        let gateway = fixture.gateway("size = 1\npin = false\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let zone = other.value("show timezone");
        client.ok("select set_config('TimeZone', 'Asia/Tokyo', false)");
        client.ok("set session characteristics as transaction isolation level repeatable read");
        client.ok("set session characteristics as transaction read only");
        for _ in 0..2 {
            assert_eq!(other.value("show timezone"), zone);
            assert_eq!(other.value("show transaction_isolation"), "read committed");
            assert_eq!(other.value("show transaction_read_only"), "off");
            assert_eq!(client.value("show timezone"), "Asia/Tokyo");
            assert_eq!(client.value("show transaction_isolation"), "repeatable read");
            assert_eq!(client.value("show transaction_read_only"), "on");
        }
        client.ok("begin; select set_config('TimeZone', 'Europe/Paris', false)");
        client.ok("rollback");
        assert_eq!(other.value("show timezone"), zone);
        assert_eq!(client.value("show timezone"), "Asia/Tokyo");
        client.ok("begin");
        let two = "select set_config('app.user', 'ann', true), set_config('work_mem', '7MB', true)";
        client.send(&Frames::new().once(two).sync());
        client.until_ready();
        assert_eq!(client.value("select current_setting('app.user') || current_setting('work_mem')"), "ann7MB");
        client.ok("commit");
        for client in [&mut client, &mut other] {
            assert_eq!(client.value("select current_setting('app.user', true) || current_setting('work_mem')"), "4MB");
        }
    }

    fn set_config_with_literals_follows_its_client(fixture) {
        let gateway = fixture.gateway("size = 1\npin = false\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let asyncpg_query = "SELECT current_setting('jit') AS cur, set_config('jit', 'off', false) AS new";
        let back = "select set_config('jit', $1, false)";
        let binary = [&c_strings(&["", "s"])[..], &[0, 1, 0, 1, 0, 1, 0, 0, 0, 2], b"on", &[0, 0]].concat();
        let cases: [(&str, Frames, &str); 8] = [
            ("work_mem", Frames::new().query("select set_config('work_mem', '7MB', false)"), "7MB"),
            ("work_mem", Frames::new().once("select pg_catalog.set_config('work_mem', '8MB', false)").sync(), "8MB"),
            ("jit", Frames::new().once(asyncpg_query).sync(), "off"),
            ("jit", Frames::new().parse("s", back).message(b'B', &binary).execute().sync(), "on"),
            ("jit", Frames::new().bind("s", &["off"]).execute_portal("", 1).sync(), "off"),
            (
                "a.b",
                Frames::new().parse("", "select set_config('a.b', $1::text, false)").bind("", &["it's \\"]).execute().sync(),
                "it's \\",
            ),
            ("search_path", Frames::new().query("select set_config('search_path', 'a, \"b c\"', false)"), "a, \"b c\""),
            ("work_mem", Frames::new().query("begin; set work_mem = '9MB'; select set_config('a.b', 'x', false); commit"), "9MB"),
        ];
        for (name, frames, value) in cases {
            let show = format!("select coalesce(current_setting('{name}', true), '')");
            let default = other.value(&show);
            client.send(&frames);
            let outcome = client.until_ready();
            assert!(outcome.error.is_none(), "{name} to {value}: {outcome:?}");
            for _ in 0..2 {
                assert_eq!(other.value(&show), default, "{name} to {value}");
                assert_eq!(client.value(&show), value, "{name} to {value}");
            }
        }
        assert_eq!(client.value("show a.b"), "x");
        client.ok("reset all");
        assert_eq!(client.value("show work_mem"), other.value("show work_mem"));
    }

    fn rolled_back_set_config_has_no_effect(fixture) {
        let gateway = fixture.gateway("size = 1\npin = false\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let before = client.value("show work_mem");
        let set = "select set_config('work_mem', '7MB', false)";
        client.ok("begin");
        client.ok(set);
        client.ok("rollback");
        client.ok("begin");
        client.ok("savepoint s");
        client.send(&Frames::new().once(set).sync());
        client.until_ready();
        client.ok("rollback to s");
        client.ok("commit");
        for sql in [
            "select set_config('no_such_parameter', '7MB', false)",
            "select set_config('work_mem', 'much', false)",
            &format!("begin; {set}; select 1 / 0; commit"),
            &format!("{set}; select 1 / 0"),
        ] {
            let outcome = client.query(sql);
            assert!(outcome.error.is_some(), "{sql}");
            if outcome.status != 'I' {
                client.ok("rollback");
            }
        }
        for client in [&mut other, &mut client] {
            assert_eq!(client.value("show work_mem"), before);
        }
    }

    /// NULL, computed values, and a query that may not execute the call pin the client to its server.
    fn untracked_set_config_pins_the_server(fixture) {
        let gateway = fixture.gateway("size = 3\n");
        let null = [&c_strings(&["", ""])[..], &[0, 0, 0, 1, 255, 255, 255, 255, 0, 0]].concat();
        for frames in [
            Frames::new().parse("", "select set_config('work_mem', $1, false)").message(b'B', &null).execute().sync(),
            Frames::new().query("select set_config('work_mem', '7MB', false) where 1 = 1"),
            Frames::new().query("select set_config('work_mem', '7' || 'MB', false)"),
        ] {
            let mut client = gateway.client("postgres");
            client.send(&frames);
            assert!(client.until_ready().error.is_none());
            let backend = client.backend();
            let mut other = gateway.client("postgres");
            assert_ne!(other.backend(), backend);
            assert_eq!(client.backend(), backend);
        }
    }

    /// The outer gateway sets the parameters of its clients in one query, which the inner gateway tracks.
    fn chained_gateways_share_servers(fixture) {
        let inner = fixture.gateway("size = 1\n");
        for mode in ["transaction", "session"] {
            let keys = format!("mode = \"{mode}\"\nsize = 3\n");
            let outer = gateway_for!(inner, &keys);
            let mut clients: Vec<_> = (0..3)
                .map(|number| {
                    let startup = outer.startup("postgres").parameter("application_name", &format!("client {number}"));
                    let startup = startup.parameter("search_path", &format!("\"s {number}\", public"));
                    let mut client = startup.parameter("my.var", &format!("it's {number}")).connect();
                    if number == 1 {
                        client.ok("set work_mem = '7MB'");
                    }
                    client
                })
                .collect();
            let mut direct = inner.client("postgres");
            for _ in 0..3 {
                for (number, client) in clients.iter_mut().enumerate() {
                    let show = "select current_setting('application_name') || ', ' || current_setting('search_path')
                        || ', ' || current_setting('my.var') || ', ' || current_setting('work_mem')";
                    let work_mem = if number == 1 { "7MB" } else { "4MB" };
                    let expected = format!("client {number}, \"s {number}\", public, it's {number}, {work_mem}");
                    assert_eq!(client.value(show), expected, "{mode}");
                    assert_eq!(direct.value("show work_mem"), "4MB", "{mode}");
                }
            }
        }
    }

    /// EDGE-58.
    fn role_stays_with_its_client(fixture) {
        let role = fixture.create_role("x", "");
        let gateway = fixture.gateway("size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        for sql in [format!("set role {role}"), format!("set role = '{role}'"), format!("set role \"{role}\"")] {
            client.ok(&sql);
            assert_eq!(other.value("select current_user"), "postgres", "{sql}");
            assert_eq!(client.value("select current_user"), role, "{sql}");
            assert_eq!(other.value("select current_user"), "postgres", "{sql}");
            client.ok("reset role");
            assert_eq!(other.value("select 1"), "1");
            assert_eq!(client.value("select current_user"), "postgres", "{sql}");
        }
        client.ok(&format!("set role {role}"));
        client.ok("set role none");
        assert_eq!(other.value("select 1"), "1");
        assert_eq!(client.value("select current_user"), "postgres");
    }

    /// EDGE-58: No statement runs under the settings of the previous client of the server.
    fn client_with_rejected_settings_executes_nothing(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut other = gateway.client("postgres");
        other.ok("set work_mem = '7MB'");
        let role = fixture.name("gone");
        let refused = || {
            let mut client = gateway.client("postgres");
            fixture.server.sql(&format!("create role {role}"));
            client.ok(&format!("set role {role}"));
            fixture.server.sql(&format!("drop role {role}"));
            client
        };
        let query = "select current_setting('work_mem')";
        for frames in [
            Frames::new().query(&format!("commit; {query}")),
            Frames::new().query("commit").query(query),
            Frames::new().query("rollback").query(query),
            Frames::new().once("commit").sync().once(query).sync(),
            Frames::new().query(query),
        ] {
            let mut client = refused();
            assert_eq!(other.value("show work_mem"), "7MB");
            client.send(&frames);
            let error = client.expect_fatal("22023");
            assert!(error.message.contains(&role), "{}", error.message);
        }
        assert_eq!(other.value("show work_mem"), "7MB");
    }

    /// EDGE-58.
    fn settings_are_decoded_in_the_client_encoding(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut other = gateway.client("postgres");
        let mut latin = gateway.startup("postgres").parameter("client_encoding", "LATIN1").connect();
        let mut set = b"set application_name = 'caf".to_vec();
        set.extend_from_slice(b"\xe9'\0");
        latin.send(&Frames::new().message(b'Q', &set));
        latin.until_ready();
        latin.ok("set search_path = pg_catalog");
        for _ in 0..2 {
            assert_ne!(other.value("show client_encoding"), "LATIN1");
            assert_eq!(latin.value("show search_path"), "pg_catalog");
            assert_eq!(latin.value("select length('\u{e9}')"), "2", "each byte is a character");
        }
    }

    /// EDGE-58.
    fn set_by_a_portal_that_is_not_the_last_one(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let two = |first: &str, second: &str| {
            let frames = Frames::new().parse("", first).bind_portal("p1", "", &[]);
            frames.parse("", second).bind_portal("p2", "", &[])
        };
        client.send(&two("set statement_timeout = 12345", "select 1").execute_portal("p1", 0).execute_portal("p2", 0).sync());
        client.until_ready();
        assert_eq!(other.value("show statement_timeout"), "0");
        assert_eq!(client.value("show statement_timeout"), "12345ms");
        // A portal that is bound and not executed has no effect.
        client.send(&two("select 1", "set statement_timeout = 1").execute_portal("p1", 0).sync());
        client.until_ready();
        assert_eq!(other.value("show statement_timeout"), "0");
        assert_eq!(client.value("show statement_timeout"), "12345ms");
    }

    /// EDGE-58.
    fn literal_is_parsed_under_its_own_settings(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let client = |zone: &str| {
            let mut client = gateway.client("postgres");
            client.ok(&format!("set timezone = '{zone}'"));
            client.send(&Frames::new().parse("s", "select extract(epoch from '2020-01-01 00:00'::timestamptz)::bigint").sync());
            client.until_ready();
            client
        };
        let (mut utc, mut west) = (client("UTC"), client("Etc/GMT+5"));
        for _ in 0..2 {
            for (client, epoch) in [(&mut utc, "1577836800"), (&mut west, "1577854800")] {
                client.send(&Frames::new().bind("s", &[]).execute().sync());
                assert_eq!(client.until_ready().value(), epoch);
            }
        }
    }

    /// EDGE-58: The comment must not hide the end of the block in which the gateway sets the value.
    fn comment_after_a_set_opens_no_transaction(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut client = gateway.client("postgres");
        client.ok("set work_mem = '7MB' -- enough for a sort");
        let holder = occupy_server_of(&gateway, &mut client);
        client.send(&Frames::new().query("show work_mem"));
        client.expect("T D:7MB C:SHOW Z:I");
        drop(holder);
    }

    /// EDGE-58.
    fn session_user_stays_with_its_client(fixture) {
        let role = fixture.create_role("", "");
        for set in ["set session_authorization", "set session session_authorization", "set \"session_authorization\""] {
            let gateway = fixture.gateway("size = 2\n");
            let mut client = gateway.client("postgres");
            client.ok(&format!("{set} = {role}"));
            let mut other = gateway.client("postgres");
            assert_eq!(other.value("select session_user"), "postgres", "{set}");
            assert_eq!(client.value("select session_user"), role);
        }
    }

    /// EDGE-58.
    fn role_does_not_restrict_other_clients(fixture) {
        let role = fixture.create_role("", "");
        let gateway = fixture.gateway("size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        client.ok(&format!("set role {role}"));
        other.ok("set log_duration = on");
        let mut third = gateway.startup("postgres").parameter("log_duration", "on").connect();
        for _ in 0..2 {
            assert_eq!(client.value("select current_user"), role);
            assert_eq!(third.value("select current_user || current_setting('log_duration')"), "postgreson");
        }
    }

    /// EDGE-58: One role grants a privilege and the other lacks it. Each client moves between servers.
    fn role_and_privileged_setting_are_both_restored(fixture) {
        let (low, high) = (fixture.create_role("", ""), fixture.create_role("", ""));
        fixture.server.sql(&format!("alter role {high} superuser; grant {high} to {low}"));
        let gateway = fixture.gateway("size = 2\n");
        for (login, role) in [(low.as_str(), high.as_str()), ("postgres", low.as_str())] {
            let mut client = gateway.startup("postgres").user(login).connect();
            if login == "postgres" {
                client.ok("set log_duration = on");
            }
            client.ok(&format!("set role {role}"));
            if login != "postgres" {
                client.ok("set log_duration = on");
            }
            let mut other = gateway.startup("postgres").user(login).connect();
            let mut holder = gateway.startup("postgres").user(login).connect();
            for _ in 0..2 {
                assert_eq!(client.value("select current_user || current_setting('log_duration')"), format!("{role}on"));
                assert_eq!(other.value("select current_user || current_setting('log_duration')"), format!("{login}off"));
                holder.ok("begin");
                assert_eq!(client.value("select current_user || current_setting('log_duration')"), format!("{role}on"));
                assert_eq!(other.value("select current_user || current_setting('log_duration')"), format!("{login}off"));
                holder.ok("rollback");
            }
        }
    }

    /// EDGE-58.
    fn transaction_settings_end_with_the_transaction(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let sets = [
            "transaction_isolation = 'serializable'",
            "transaction_read_only = on",
            "transaction_deferrable = on",
            "seed = 0.5",
        ];
        for set in sets {
            client.ok(&format!("set {set}"));
            assert_eq!(other.value("select 1"), "1", "{set}");
            client.ok("begin");
            client.ok(&format!("set {set}"));
            client.ok("commit");
            assert_eq!(other.value("select 2"), "2", "{set}");
            assert_eq!(client.value("show transaction_isolation"), "read committed");
        }
    }

    /// EDGE-58.
    fn role_survives_reset_all(fixture) {
        let role = fixture.create_role("x", "");
        let gateway = fixture.gateway("size = 1\n");
        let (mut owner, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        owner.ok(&format!("set role {role}"));
        owner.ok("set work_mem = '7MB'");
        owner.ok("reset all");
        assert_eq!(other.value("select current_user"), "postgres");
        assert_eq!(owner.value("select current_user"), role);
        assert_eq!(owner.value("show work_mem"), "4MB");
        owner.ok("discard all");
        assert_eq!(owner.value("select current_user"), "postgres");
        assert_eq!(other.value("select current_user"), "postgres");
    }

    /// EDGE-58.
    fn session_user_of_the_login_stays_with_its_client(fixture) {
        let role = fixture.create_role("x", "");
        let gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.startup("postgres").parameter("session_authorization", &role).connect();
        assert_eq!(owner.value("select session_user"), role);
        drop(owner);
        let mut other = gateway.client("postgres");
        assert_eq!(other.value("select session_user"), "postgres");
    }
}

/// EDGE-55.
#[test]
fn parameter_status_within_a_result_is_forwarded() {
    let server = FaultyServer::start(|connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            if message.text() == "report" {
                let reports = [
                    reply::text_column("value"),
                    reply::parameter("in_hot_standby", "on"),
                    reply::row("x"),
                    reply::parameter("invented_by_a_later_version", "1"),
                    reply::complete("SELECT 1"),
                    reply::ready(b'I'),
                ];
                connection.send(&reports.concat())?;
            } else {
                connection.answer(&message)?;
            }
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    client.send(&Frames::new().query("report"));
    client.expect("T S:in_hot_standby=on D:x S:invented_by_a_later_version=1 C:SELECT_1 Z:I");
    client.ok("select 1");
}

/// EDGE-55: A quadratic implementation would copy all previous reports for each one.
#[test]
fn many_parameter_reports_are_linear() {
    const REPORTS: usize = 50_000;
    let server = FaultyServer::start(|connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            if message.text() == "report" {
                let reports: Vec<u8> =
                    (0..REPORTS).flat_map(|number| reply::parameter(&format!("p{number}"), "x")).collect();
                connection.send(&reports)?;
            }
            connection.answer(&message)?;
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    client.send(&Frames::new().query("report"));
    let reports = client.until_ready().messages.iter().filter(|message| message.tag == b'S').count();
    assert_eq!(reports, REPORTS);
    client.ok("select 1");
}

/// EDGE-58: A quadratic implementation would copy all previous settings for each SET at the end of the
/// transaction.
#[test]
fn many_sets_in_a_transaction_are_linear() {
    let server = FaultyServer::start(|connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            match message.text() {
                text if text.starts_with("set") => {
                    connection.send(&[reply::complete("SET"), reply::ready(b'T')].concat())?;
                }
                _ => connection.answer(&message)?,
            }
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    for query in 0..1000 {
        let sets: String = (0..60).map(|set| format!("set a.p{query}_{set} = 1;")).collect();
        client.send(&Frames::new().query(&sets));
        client.expect("C:SET Z:T");
    }
    client.ok("commit");
    client.ok("select 1");
}

fn c_strings(texts: &[&str]) -> Vec<u8> {
    texts.iter().flat_map(|text| text.bytes().chain([0])).collect()
}
