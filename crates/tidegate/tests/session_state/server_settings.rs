//! Defaults of a server, which its configuration may change, and settings of a client: each client gets the values of a
//! direct connection.

use std::collections::BTreeMap;

use tidegate_sandbox::{Cluster, Major, Postgres};
use tidegate_testkit::{Frames, Gateway, RawClient, Server, eventually, gateway_for, on_each_postgres};

const MODES: [&str; 2] = ["transaction", "session"];

/// Reloads the configuration of the server with these settings, and waits until new sessions have them.
fn reload_with(server: &Server, settings: &[(&str, &str)]) {
    let mut direct = server.client();
    for (name, value) in settings {
        direct.ok(&format!("alter system set {name} = '{value}'"));
    }
    direct.ok("select pg_reload_conf()");
    for (name, value) in settings {
        eventually("the configuration is loaded", || server.client().value(&format!("show {name}")) == *value);
    }
}

/// The parameters that were reported to a client.
fn reported(client: &RawClient) -> BTreeMap<String, String> {
    client.parameters.clone()
}

#[track_caller]
fn insert(client: &mut RawClient) -> String {
    client.query("insert into kept values (1)").code()
}

on_each_postgres! {
    fn reloaded_default_reaches_every_client(fixture) {
        let server = Server::start(fixture.server.major());
        server.sql("create table kept (n int)");
        let gateway = gateway_for!(&server, "size = 1\n");
        let mut clients: Vec<_> = (0..3).map(|_| gateway.client("postgres")).collect();
        let mut writer = gateway.client("postgres");
        writer.ok("set default_transaction_read_only = off");
        for client in &mut clients {
            assert_eq!(insert(client), "");
        }
        reload_with(&server, &[
            ("default_transaction_read_only", "on"), ("TimeZone", "Asia/Tokyo"), ("DateStyle", "German, DMY"),
        ]);
        eventually("the server has reloaded", || insert(&mut clients[1]) == "25006");
        for client in &mut clients {
            assert_eq!(insert(client), "25006");
            let values = "select current_setting('TimeZone') || current_setting('DateStyle')";
            assert_eq!(client.value(values), "Asia/TokyoGerman, DMY");
            assert_eq!(client.parameters["default_transaction_read_only"], "on");
            assert_eq!(client.parameters["TimeZone"], "Asia/Tokyo");
        }
        assert_eq!(insert(&mut writer), "", "the client has set the value itself");
        assert_eq!(writer.value("show timezone"), "Asia/Tokyo");
        let mut later = gateway.client("postgres");
        assert_eq!(later.parameters["default_transaction_read_only"], "on");
        assert_eq!(later.parameters["TimeZone"], "Asia/Tokyo");
        assert_eq!(insert(&mut later), "25006");
        reload_with(&server, &[("default_transaction_read_only", "off")]);
        for client in &mut clients {
            eventually("the client may write again", || insert(client).is_empty());
            client.ok("select 1");
            assert_eq!(client.parameters["default_transaction_read_only"], "off");
        }
    }

    /// The gateway asks the server of the session whether the new value is a default. The unnamed statement is kept.
    fn default_found_by_a_session_is_reported_at_login(fixture) {
        let server = Server::start(fixture.server.major());
        server.sql(
            "create function zone(text) returns text language plpgsql as
             $$ begin return set_config('TimeZone', $1, false); end $$",
        );
        let gateway = gateway_for!(&server, "mode = \"session\"\nsize = 2\n");
        let mut clients = [gateway.client("postgres"), gateway.client("postgres")];
        clients.iter_mut().for_each(|client| drop(client.ok("select 1")));
        reload_with(&server, &[("TimeZone", "Asia/Tokyo")]);
        let [first, second] = &mut clients;
        eventually("the session reports the new default", || {
            first.send(&Frames::new().parse("", "select 40 + 2").sync());
            first.until_ready();
            first.parameters["TimeZone"] == "Asia/Tokyo"
        });
        first.send(&Frames::new().run("").sync());
        assert_eq!(first.until_ready().value(), "42");
        eventually("logins report the new default", || {
            gateway.client("postgres").parameters["TimeZone"] == "Asia/Tokyo"
        });
        let set_zone = Frames::new().run("").sync();
        second.send(&Frames::new().parse("", "select zone('Europe/Rome')").then(&set_zone));
        assert_eq!(second.until_ready().code(), "");
        second.send(&set_zone);
        assert_eq!(second.until_ready().value(), "Europe/Rome", "the unnamed statement is kept");
        assert_eq!(second.parameters["TimeZone"], "Europe/Rome");
        assert_eq!(second.value("show timezone"), "Europe/Rome");
        assert_eq!(gateway.client("postgres").parameters["TimeZone"], "Asia/Tokyo", "the value of a client is not shared");
    }

    /// The server does not report the new default, because the SET of the client hides it.
    fn default_reloaded_during_a_set_reaches_others(fixture) {
        let server = Server::start(fixture.server.major());
        let gateway = gateway_for!(&server, "size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        other.ok("select 1");
        client.ok("set timezone = 'Europe/Paris'");
        reload_with(&server, &[("TimeZone", "Asia/Tokyo")]);
        for _ in 0..2 {
            assert_eq!(client.value("show timezone"), "Europe/Paris");
            eventually("the server has reloaded", || other.value("show timezone") == "Asia/Tokyo");
            assert_eq!(other.parameters["TimeZone"], "Asia/Tokyo");
        }
        client.ok("reset timezone");
        assert_eq!(client.value("show timezone"), "Asia/Tokyo");
        assert_eq!(client.parameters["TimeZone"], "Asia/Tokyo");
        assert_eq!(gateway.client("postgres").parameters["TimeZone"], "Asia/Tokyo");
    }

    /// The pool was idle during the reload.
    fn new_client_of_an_idle_pool_gets_reloaded_defaults(fixture) {
        let server = Server::start(fixture.server.major());
        let gateway = gateway_for!(&server, "size = 1\n");
        gateway.client("postgres").ok("select 1");
        reload_with(&server, &[("TimeZone", "Asia/Tokyo")]);
        eventually("the new value is reported", || gateway.client("postgres").parameters["TimeZone"] == "Asia/Tokyo");
    }

    fn database_defaults_apply_after_reconnect(fixture) {
        for mode in MODES {
            let database = fixture.create_database();
            let gateway = fixture.gateway_to(&[("postgres", &database)], &format!("size = 1\nmode = \"{mode}\"\n"));
            let mut old = Some(gateway.client("postgres"));
            old.iter_mut().for_each(|old| drop(old.ok("create table kept (n int)")));
            if mode == "session" {
                // A client in session mode keeps its session with the old values, like a direct one.
                old = None;
            }
            for (name, value) in [
                ("default_transaction_read_only", "on"), ("TimeZone", "Asia/Tokyo"), ("search_path", "pg_catalog, public"),
            ] {
                let alter = format!("alter database {database} set {name} = {value}");
                fixture.server.sql(&alter.replace("Asia/Tokyo", "'Asia/Tokyo'"));
            }
            gateway.console().ok("RECONNECT");
            let mut first = gateway.client("postgres");
            let mut direct = fixture.server.startup().database(&database).connect();
            direct.ok("select 1");
            assert_eq!(reported(&first), reported(&direct), "{mode}");
            assert_eq!(insert(&mut first), "25006", "{mode}");
            assert_eq!(first.value("show search_path"), "pg_catalog, public");
            drop(first);
            if let Some(mut old) = old {
                assert_eq!(insert(&mut old), "25006", "{mode}");
                old.ok("select 1");
                assert_eq!(old.parameters["default_transaction_read_only"], "on", "{mode}");
            }
        }
    }

    fn promotion_of_a_standby_is_reported(fixture) {
        let builder = Postgres::builder().version(Major(fixture.server.major().try_into().expect("small")));
        let mut cluster = Cluster::start(&builder, 1).expect("a cluster starts");
        let address = ([127, 0, 0, 1], cluster.server(1).port()).into();
        let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), address, "size = 1\n");
        let mut old = gateway.client("postgres");
        old.ok("select 1");
        assert_eq!(old.parameters["in_hot_standby"], "on");
        cluster.promote(1).expect("the standby is promoted");
        eventually("the promotion is reported", || gateway.client("postgres").parameters["in_hot_standby"] == "off");
        old.ok("select 1");
        assert_eq!(old.parameters["in_hot_standby"], "off");
        gateway.client("postgres").ok("create table kept (n int)");
    }

    fn startup_parameters_are_reported_as_by_the_server(fixture) {
        let spellings: [&[(&str, &str)]; 7] = [
            &[],
            &[("client_encoding", "euc-jp"), ("TimeZone", "europe/berlin"), ("datestyle", "sql")],
            &[("client_encoding", "sql-ascii"), ("standard_conforming_strings", "true")],
            &[("standard_conforming_strings", "1"), ("intervalstyle", "ISO_8601")],
            &[("standard_conforming_strings", "no"), ("application_name", "caf\u{e9}")],
            &[("options", "-c DateStyle=German -c default_transaction_read_only=yes"), ("application_name", "x")],
            &[("options", "-c search_path=pg_catalog,public -c work_mem=8192"), ("timezone", "utc")],
        ];
        for mode in MODES {
            let gateway = fixture.gateway(&format!("size = 2\nmode = \"{mode}\"\n"));
            // The gateway has seen the parameters the second time.
            for parameters in spellings.iter().chain(&spellings) {
                let with = |startup: tidegate_testkit::Startup| {
                    parameters.iter().fold(startup, |startup, (name, value)| startup.parameter(name, value)).connect()
                };
                let (mut direct, mut client) = (with(fixture.server.startup()), with(gateway.startup("postgres")));
                assert_eq!(reported(&client), reported(&direct), "{mode}, {parameters:?}");
                for name in ["client_encoding", "TimeZone", "DateStyle", "work_mem", "application_name", "search_path"] {
                    let show = format!("show {name}");
                    assert_eq!(client.value(&show), direct.value(&show), "{mode}, {parameters:?}");
                }
                assert_eq!(reported(&client), reported(&direct), "{mode}, {parameters:?}");
            }
        }
    }

    fn startup_parameter_rejected_by_server_fails_login(fixture) {
        for mode in MODES {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n"));
            let refused: [(&str, &str); 4] =
                [("statement_timeout", "abc"), ("no_such_setting", "1"), ("timezone", "Nowhere/Land"), ("role", "no_such_role")];
            for (name, value) in refused.iter().chain(&refused) {
                let refused = |startup: tidegate_testkit::Startup| startup.parameter(name, value).refused();
                let (direct, pooled) = (refused(fixture.server.startup()), refused(gateway.startup("postgres")));
                assert_eq!(pooled, direct, "{mode}, {name}");
                gateway.client("postgres").ok("select 1");
            }
        }
    }

    fn same_startup_parameters_need_one_server_query(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let connect = |number: u32| {
            let startup = gateway.startup("postgres").parameter("TimeZone", "asia/tokyo");
            startup.parameter("application_name", &format!("worker {number}")).connect()
        };
        connect(0);
        // The only server is in use from here on.
        let mut holder = connect(1);
        holder.ok("begin");
        for number in 2..5 {
            let client = connect(number);
            assert_eq!(client.parameters["TimeZone"], "Asia/Tokyo");
            assert_eq!(client.parameters["application_name"], format!("worker {number}"));
        }
    }

    fn set_in_a_function_stays_with_its_client(fixture) {
        let function = fixture.name("zone");
        fixture.server.sql(&format!(
            "create function {function}(text) returns void language plpgsql as
             $$ begin perform set_config('TimeZone', $1, false); end $$"
        ));
        let gateway = fixture.gateway("size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let zone = other.value("show timezone");
        for (call, expected) in [
            (format!("select {function}('Asia/Tokyo')"), "Asia/Tokyo"),
            (format!("begin; select {function}('Europe/Paris'); commit"), "Europe/Paris"),
            (format!("begin; select {function}('Europe/Rome'); rollback"), "Europe/Paris"),
            ("reset timezone".to_owned(), zone.as_str()),
        ] {
            client.ok(&call);
            assert_eq!(client.parameters["TimeZone"], expected, "{call}");
            for _ in 0..2 {
                assert_eq!(other.value("show timezone"), zone, "{call}");
                assert_eq!(other.parameters["TimeZone"], zone, "{call}");
                assert_eq!(client.value("show timezone"), expected, "{call}");
                assert_eq!(gateway.client("postgres").parameters["TimeZone"], zone, "{call}");
            }
        }
    }

    fn connect_query_sets_defaults_of_all_clients(fixture) {
        let query = "connect_query = \"set timezone to 'Asia/Tokyo'; set work_mem to '7MB'\"";
        for mode in MODES {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n{query}\n"));
            let show = "select current_setting('TimeZone') || current_setting('work_mem')";
            for _ in 0..2 {
                let mut first = gateway.client("postgres");
                assert_eq!(first.parameters["TimeZone"], "Asia/Tokyo", "{mode}");
                assert_eq!(first.value(show), "Asia/Tokyo7MB", "{mode}");
                first.ok("set timezone to 'Europe/Paris'; set work_mem to '9MB'");
                assert_eq!(first.value(show), "Europe/Paris9MB", "{mode}");
                if mode == "session" {
                    drop(first);
                }
                assert_eq!(gateway.client("postgres").value(show), "Asia/Tokyo7MB", "{mode}");
            }
        }
    }

    fn recreated_role_is_not_mistaken_for_the_old_one(fixture) {
        let table = fixture.create_table("n int");
        let drop_role = |role: &str| format!("revoke all on {table} from {role}; drop role {role}; create role {role}");
        let rename = |role: &str| format!("alter role {role} rename to {role}_renamed; create role {role}");
        let ddl: [&dyn Fn(&str) -> String; 2] = [&drop_role, &rename];
        for (ddl, is_extended) in ddl.into_iter().zip([false, true]) {
            let role = fixture.name("r");
            fixture.server.sql(&format!("create role {role}; grant select on {table} to {role}"));
            let gateway = fixture.gateway("size = 2\n");
            let [mut first, mut second, mut holder] = [(); 3].map(|()| gateway.client("postgres"));
            let set = format!("set role {role}");
            first.ok(&set);
            fixture.server.sql(&ddl(&role));
            first.ok("begin");
            second.send(&if is_extended { Frames::new().once(&set).sync() } else { Frames::new().query(&set) });
            assert_eq!(second.until_ready().code(), "");
            holder.ok("begin");
            first.ok("commit");
            // Runs on the server where the first client has used the old role.
            assert_eq!(second.value("select current_user"), role);
            assert_eq!(second.query(&format!("select * from {table}")).code(), "42501");
        }
    }

    fn role_of_the_startup_packet_follows_its_client(fixture) {
        let role = fixture.create_role("", "");
        for mode in MODES {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n"));
            let with_role = || gateway.startup("postgres").parameter("options", &format!("-c role={role}")).connect();
            let direct = fixture.server.startup().parameter("options", &format!("-c role={role}")).connect();
            for _ in 0..2 {
                let mut client = with_role();
                assert_eq!(client.parameters["is_superuser"], direct.parameters["is_superuser"]);
                assert_eq!(client.value("select current_user"), role, "{mode}");
                if mode == "session" {
                    drop(client);
                }
                let mut other = gateway.client("postgres");
                assert_eq!(other.parameters["is_superuser"], "on", "{mode}");
                assert_eq!(other.value("select current_user"), "postgres", "{mode}");
            }
        }
    }

    fn set_in_do_or_procedure_reaches_no_other_client(fixture) {
        let procedure = fixture.name("p");
        fixture.server.sql(&format!("create procedure {procedure}() language plpgsql as
            $$ begin set work_mem = '17MB'; set role pg_monitor; create temporary table scratch (); end $$"));
        let calls = [
            "do $$ begin set work_mem = '17MB'; end $$".to_owned(),
            "do $$ begin execute 'set work_mem = ''17MB'''; end $$".to_owned(),
            "do $$ begin set role pg_monitor; end $$".to_owned(),
            format!("call {procedure}()"),
            format!("begin; call {procedure}(); commit"),
            format!("do $$ begin call {procedure}(); end $$"),
        ];
        for call in calls {
            let gateway = fixture.gateway("size = 1\n");
            let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            let session_state =
                "select current_setting('work_mem') || current_user || coalesce(to_regclass('scratch')::text, '')";
            let is_block = call.starts_with("begin");
            let frames = [
                Some(Frames::new().query(&call)),
                (!is_block).then(|| Frames::new().once(&call).sync()),
                (!is_block).then(|| Frames::new().parse("s", &call).run("s").sync()),
            ];
            for frames in frames.into_iter().flatten() {
                client.send(&frames);
                assert_eq!(client.until_ready().code(), "", "{call}");
                assert_eq!(other.value(session_state), "4MBpostgres", "{call}");
                assert_eq!(client.value("select current_user"), "postgres", "{call}");
            }
        }
    }

    fn do_block_without_set_needs_no_reset(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().parse("s", "select 1").run("s").sync());
        client.until_ready();
        client.ok(&format!("do $$ begin insert into {table} values (1); end $$"));
        client.ok(&format!("do $$ begin update {table} set n = 2; end $$"));
        let prepared = "select count(*) from pg_prepared_statements";
        assert_eq!(client.value(prepared), "1", "the statements of the server were dropped");
    }

    fn replication_origin_reaches_no_other_client(fixture) {
        for mode in MODES {
            let origin = fixture.name("origin");
            fixture.server.sql(&format!("select pg_replication_origin_create('{origin}')"));
            let setup = format!("select pg_replication_origin_session_setup('{origin}')");
            let named = Frames::new().parse("s", &setup).run("s").sync();
            for frames in [Frames::new().query(&setup), Frames::new().once(&setup).sync(), named] {
                let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n"));
                let mut client = gateway.client("postgres");
                client.send(&frames);
                assert_eq!(client.until_ready().code(), "");
                let is_set = "select pg_replication_origin_session_is_setup()";
                assert_eq!(client.value(is_set), "t", "{mode}");
                client.ok("discard all");
                assert_eq!(client.value(is_set), "t", "{mode}");
                drop(client);
                assert_eq!(gateway.client("postgres").value(is_set), "f", "{mode}");
            }
        }
    }

    fn reset_in_a_named_statement_restores_startup_value(fixture) {
        for mode in MODES {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n"));
            let startup = gateway.startup("postgres").parameter("work_mem", "77kB").parameter("TimeZone", "asia/tokyo");
            let mut client = startup.connect();
            let frames = Frames::new().parse("mem", "reset work_mem").parse("zone", "reset timezone");
            client.send(&frames.parse("all", "reset all").sync());
            client.until_ready();
            for statements in [&["mem", "zone"][..], &["all"]] {
                client.ok("set work_mem = '99kB'");
                client.ok("set timezone = 'Europe/Paris'");
                for statement in statements {
                    client.send(&Frames::new().run(statement).sync());
                    assert_eq!(client.until_ready().code(), "");
                }
                assert_eq!(client.value("show work_mem"), "77kB", "{mode}, {statements:?}");
                assert_eq!(client.value("show timezone"), "Asia/Tokyo", "{mode}, {statements:?}");
                assert_eq!(client.parameters["TimeZone"], "Asia/Tokyo", "{mode}, {statements:?}");
            }
        }
    }
}
