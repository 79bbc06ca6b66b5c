//! A server's own settings, which its configuration may change, and what a client sets: each client gets what a direct
//! connection would give it.

use std::collections::BTreeMap;

use tidegate_sandbox::{Cluster, Major, Postgres};
use tidegate_testkit::{Frames, Gateway, RawClient, Server, eventually};

const MODES: [&str; 2] = ["transaction", "session"];

/// A gateway before a server of this test alone, whose configuration it may change.
fn gateway_of(server: &Server, pool: &str) -> Gateway {
    Gateway::before(env!("CARGO_BIN_EXE_tidegate"), server.address(), pool)
}

/// Loads a configuration with these settings, and waits until new sessions have them.
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

/// What a client was told, without what names the connection.
fn told(client: &RawClient) -> BTreeMap<String, String> {
    client.parameters.clone()
}

#[track_caller]
fn insert(client: &mut RawClient) -> String {
    client.query("insert into kept values (1)").code()
}

on_each_postgres! {
    fn reloaded_default_holds_for_every_client(fixture) {
        let server = Server::start(fixture.server.major());
        server.sql("create table kept (n int)");
        let gateway = gateway_of(&server, "size = 1\n");
        let mut clients: Vec<_> = (0..3).map(|_| gateway.client("postgres")).collect();
        let mut writer = gateway.client("postgres");
        writer.ok("set default_transaction_read_only = off");
        for client in &mut clients {
            assert_eq!(insert(client), "");
        }
        reload_with(&server, &[
            ("default_transaction_read_only", "on"), ("TimeZone", "Asia/Tokyo"), ("DateStyle", "German, DMY"),
        ]);
        eventually("the server has loaded it", || insert(&mut clients[1]) == "25006");
        for client in &mut clients {
            assert_eq!(insert(client), "25006");
            let values = "select current_setting('TimeZone') || current_setting('DateStyle')";
            assert_eq!(client.value(values), "Asia/TokyoGerman, DMY");
            assert_eq!(client.parameters["default_transaction_read_only"], "on");
            assert_eq!(client.parameters["TimeZone"], "Asia/Tokyo");
        }
        assert_eq!(insert(&mut writer), "", "it has said itself that it writes");
        assert_eq!(writer.value("show timezone"), "Asia/Tokyo");
        let mut newcomer = gateway.client("postgres");
        assert_eq!(newcomer.parameters["default_transaction_read_only"], "on");
        assert_eq!(newcomer.parameters["TimeZone"], "Asia/Tokyo");
        assert_eq!(insert(&mut newcomer), "25006");
        reload_with(&server, &[("default_transaction_read_only", "off")]);
        for client in &mut clients {
            eventually("it may write again", || insert(client).is_empty());
            client.ok("select 1");
            assert_eq!(client.parameters["default_transaction_read_only"], "off");
        }
    }

    /// The session asks its server whose the new value is. Its unnamed statement stays.
    fn reload_seen_by_a_session_is_told_at_logins(fixture) {
        let server = Server::start(fixture.server.major());
        server.sql(
            "create function zone(text) returns text language plpgsql as
             $$ begin return set_config('TimeZone', $1, false); end $$",
        );
        let gateway = gateway_of(&server, "mode = \"session\"\nsize = 2\n");
        let mut clients = [gateway.client("postgres"), gateway.client("postgres")];
        clients.iter_mut().for_each(|client| drop(client.ok("select 1")));
        reload_with(&server, &[("TimeZone", "Asia/Tokyo")]);
        let [first, second] = &mut clients;
        eventually("the session is told", || {
            first.send(&Frames::new().parse("", "select 40 + 2").sync());
            first.until_ready();
            first.parameters["TimeZone"] == "Asia/Tokyo"
        });
        first.send(&Frames::new().run("").sync());
        assert_eq!(first.until_ready().value(), "42");
        eventually("logins are told", || gateway.client("postgres").parameters["TimeZone"] == "Asia/Tokyo");
        let setting = Frames::new().run("").sync();
        second.send(&Frames::new().parse("", "select zone('Europe/Rome')").then(&setting));
        assert_eq!(second.until_ready().code(), "");
        second.send(&setting);
        assert_eq!(second.until_ready().value(), "Europe/Rome", "the unnamed statement has stayed");
        assert_eq!(second.parameters["TimeZone"], "Europe/Rome");
        assert_eq!(second.value("show timezone"), "Europe/Rome");
        assert_eq!(gateway.client("postgres").parameters["TimeZone"], "Asia/Tokyo", "it is the client's own");
    }

    /// The server does not report the new value, as what the client has set hides it.
    fn default_reloaded_behind_a_set_is_seen_by_others(fixture) {
        let server = Server::start(fixture.server.major());
        let gateway = gateway_of(&server, "size = 1\n");
        let (mut mine, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        other.ok("select 1");
        mine.ok("set timezone = 'Europe/Paris'");
        reload_with(&server, &[("TimeZone", "Asia/Tokyo")]);
        for _ in 0..2 {
            assert_eq!(mine.value("show timezone"), "Europe/Paris");
            eventually("the server has loaded it", || other.value("show timezone") == "Asia/Tokyo");
            assert_eq!(other.parameters["TimeZone"], "Asia/Tokyo");
        }
        mine.ok("reset timezone");
        assert_eq!(mine.value("show timezone"), "Asia/Tokyo");
        assert_eq!(mine.parameters["TimeZone"], "Asia/Tokyo");
        assert_eq!(gateway.client("postgres").parameters["TimeZone"], "Asia/Tokyo");
    }

    /// The pool was idle since.
    fn newcomer_of_an_idle_pool_is_told_reloaded_defaults(fixture) {
        let server = Server::start(fixture.server.major());
        let gateway = gateway_of(&server, "size = 1\n");
        gateway.client("postgres").ok("select 1");
        reload_with(&server, &[("TimeZone", "Asia/Tokyo")]);
        eventually("it is told", || gateway.client("postgres").parameters["TimeZone"] == "Asia/Tokyo");
    }

    fn new_defaults_of_a_database_hold_after_reconnect(fixture) {
        for mode in MODES {
            let database = fixture.own_database();
            let gateway = fixture.gateway_to(&[("postgres", &database)], &format!("size = 1\nmode = \"{mode}\"\n"));
            let mut old = Some(gateway.client("postgres"));
            old.iter_mut().for_each(|old| drop(old.ok("create table kept (n int)")));
            if mode == "session" {
                // It keeps its session, which has the old values, as a direct one does.
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
            assert_eq!(told(&first), told(&direct), "{mode}");
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

    fn promoted_standby_is_announced(fixture) {
        let builder = Postgres::builder().version(Major(fixture.server.major().try_into().expect("small")));
        let mut cluster = Cluster::start(&builder, 1).expect("a cluster starts");
        let address = ([127, 0, 0, 1], cluster.server(1).port()).into();
        let gateway = Gateway::before(env!("CARGO_BIN_EXE_tidegate"), address, "size = 1\n");
        let mut old = gateway.client("postgres");
        old.ok("select 1");
        assert_eq!(old.parameters["in_hot_standby"], "on");
        cluster.promote(1).expect("it is promoted");
        eventually("it is told", || gateway.client("postgres").parameters["in_hot_standby"] == "off");
        old.ok("select 1");
        assert_eq!(old.parameters["in_hot_standby"], "off");
        gateway.client("postgres").ok("create table kept (n int)");
    }

    fn login_parameters_are_announced_as_the_server_reports_them(fixture) {
        let spelled: [&[(&str, &str)]; 7] = [
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
            // A second time they are known.
            for parameters in spelled.iter().chain(&spelled) {
                let with = |startup: tidegate_testkit::Startup| {
                    parameters.iter().fold(startup, |startup, (name, value)| startup.parameter(name, value)).connect()
                };
                let (mut direct, mut client) = (with(fixture.server.startup()), with(gateway.startup("postgres")));
                assert_eq!(told(&client), told(&direct), "{mode}, {parameters:?}");
                for name in ["client_encoding", "TimeZone", "DateStyle", "work_mem", "application_name", "search_path"] {
                    let show = format!("show {name}");
                    assert_eq!(client.value(&show), direct.value(&show), "{mode}, {parameters:?}");
                }
                assert_eq!(told(&client), told(&direct), "{mode}, {parameters:?}");
            }
        }
    }

    fn login_parameter_that_the_server_refuses_ends_the_login(fixture) {
        for mode in MODES {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n"));
            let refused: [(&str, &str); 4] =
                [("statement_timeout", "abc"), ("no_such_setting", "1"), ("timezone", "Nowhere/Land"), ("role", "nobody_here")];
            for (name, value) in refused.iter().chain(&refused) {
                let refused = |startup: tidegate_testkit::Startup| startup.parameter(name, value).refused();
                let (direct, through) = (refused(fixture.server.startup()), refused(gateway.startup("postgres")));
                assert_eq!(through, direct, "{mode}, {name}");
                gateway.client("postgres").ok("select 1");
            }
        }
    }

    fn login_asks_the_server_once_for_the_same_parameters(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let connect = |number: u32| {
            let startup = gateway.startup("postgres").parameter("TimeZone", "asia/tokyo");
            startup.parameter("application_name", &format!("worker {number}")).connect()
        };
        connect(0);
        // Its only server is taken.
        let mut holder = connect(1);
        holder.ok("begin");
        for number in 2..5 {
            let client = connect(number);
            assert_eq!(client.parameters["TimeZone"], "Asia/Tokyo");
            assert_eq!(client.parameters["application_name"], format!("worker {number}"));
        }
    }

    fn set_of_a_function_stays_with_its_client(fixture) {
        let function = fixture.name("zone");
        fixture.server.sql(&format!(
            "create function {function}(text) returns void language plpgsql as
             $$ begin perform set_config('TimeZone', $1, false); end $$"
        ));
        let gateway = fixture.gateway("size = 1\n");
        let (mut mine, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let zone = other.value("show timezone");
        for (call, expected) in [
            (format!("select {function}('Asia/Tokyo')"), "Asia/Tokyo"),
            (format!("begin; select {function}('Europe/Paris'); commit"), "Europe/Paris"),
            (format!("begin; select {function}('Europe/Rome'); rollback"), "Europe/Paris"),
            ("reset timezone".to_owned(), zone.as_str()),
        ] {
            mine.ok(&call);
            assert_eq!(mine.parameters["TimeZone"], expected, "{call}");
            for _ in 0..2 {
                assert_eq!(other.value("show timezone"), zone, "{call}");
                assert_eq!(other.parameters["TimeZone"], zone, "{call}");
                assert_eq!(mine.value("show timezone"), expected, "{call}");
                assert_eq!(gateway.client("postgres").parameters["TimeZone"], zone, "{call}");
            }
        }
    }

    fn connect_query_sets_for_all_that_set_nothing(fixture) {
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

    fn role_of_another_oid_is_not_taken_for_the_one_of_its_name(fixture) {
        let table = fixture.own_table("n int");
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
            // On the server that the first client has left with the role of before.
            assert_eq!(second.value("select current_user"), role);
            assert_eq!(second.query(&format!("select * from {table}")).code(), "42501");
        }
    }

    fn role_of_the_login_follows_its_client(fixture) {
        let role = fixture.own_role("", "");
        for mode in MODES {
            let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n"));
            let with_role = || gateway.startup("postgres").parameter("options", &format!("-c role={role}")).connect();
            let direct = fixture.server.startup().parameter("options", &format!("-c role={role}")).connect();
            for _ in 0..2 {
                let mut mine = with_role();
                assert_eq!(mine.parameters["is_superuser"], direct.parameters["is_superuser"]);
                assert_eq!(mine.value("select current_user"), role, "{mode}");
                if mode == "session" {
                    drop(mine);
                }
                let mut other = gateway.client("postgres");
                assert_eq!(other.parameters["is_superuser"], "on", "{mode}");
                assert_eq!(other.value("select current_user"), "postgres", "{mode}");
            }
        }
    }

    fn set_in_a_block_or_a_procedure_reaches_no_other_client(fixture) {
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
            let (mut mine, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            let left = "select current_setting('work_mem') || current_user || coalesce(to_regclass('scratch')::text, '')";
            let is_block = call.starts_with("begin");
            let frames = [
                Some(Frames::new().query(&call)),
                (!is_block).then(|| Frames::new().once(&call).sync()),
                (!is_block).then(|| Frames::new().parse("s", &call).run("s").sync()),
            ];
            for frames in frames.into_iter().flatten() {
                mine.send(&frames);
                assert_eq!(mine.until_ready().code(), "", "{call}");
                assert_eq!(other.value(left), "4MBpostgres", "{call}");
                assert_eq!(mine.value("select current_user"), "postgres", "{call}");
            }
        }
    }

    fn block_that_sets_nothing_costs_no_reset(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().parse("s", "select 1").run("s").sync());
        client.until_ready();
        client.ok(&format!("do $$ begin insert into {table} values (1); end $$"));
        client.ok(&format!("do $$ begin update {table} set n = 2; end $$"));
        let prepared = "select count(*) from pg_prepared_statements";
        assert_eq!(client.value(prepared), "1", "a reset after a block leaves prepared statements alone");
    }

    fn replication_origin_reaches_no_other_client(fixture) {
        for mode in MODES {
            let origin = fixture.name("origin");
            fixture.server.sql(&format!("select pg_replication_origin_create('{origin}')"));
            let setup = format!("select pg_replication_origin_session_setup('{origin}')");
            let named = Frames::new().parse("s", &setup).run("s").sync();
            for frames in [Frames::new().query(&setup), Frames::new().once(&setup).sync(), named] {
                let gateway = fixture.gateway(&format!("size = 1\nmode = \"{mode}\"\n"));
                let mut mine = gateway.client("postgres");
                mine.send(&frames);
                assert_eq!(mine.until_ready().code(), "");
                let is_set = "select pg_replication_origin_session_is_setup()";
                assert_eq!(mine.value(is_set), "t", "{mode}");
                mine.ok("discard all");
                assert_eq!(mine.value(is_set), "t", "{mode}");
                drop(mine);
                assert_eq!(gateway.client("postgres").value(is_set), "f", "{mode}");
            }
        }
    }

    fn reset_in_a_named_statement_restores_the_startup_value(fixture) {
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
