//! A reload while clients are connected: each transaction runs as the user, in the database and on the server that the
//! configuration names when it begins.

use tidegate_testkit::{Fixture, Frames, Gateway, RawClient, eventually};

const WHO: &str = "select current_user || ' ' || session_user || ' ' || current_database()";

/// A gateway whose database `postgres` has these keys.
fn with_keys(fixture: &Fixture, keys: &str) -> Gateway {
    fixture.gateway(&format!("size = 2\n{keys}"))
}

/// What a client sees as its user, with the session's user and the database.
#[track_caller]
fn seen(client: &mut RawClient) -> String {
    client.value(WHO)
}

on_each_postgres! {
    fn a_removed_forced_user_is_gone_at_the_next_transaction(fixture) {
        let role = fixture.own_role("x", "");
        for is_shared in [true, false] {
            let keys = format!("user = \"postgres\"\nshared_pool = {is_shared}\n");
            let mut gateway = with_keys(fixture, &keys);
            let mut client = gateway.startup("postgres").user(&role).connect();
            let mut busy = gateway.startup("postgres").user(&role).connect();
            assert_eq!(seen(&mut client), "postgres postgres postgres");
            busy.ok("begin");
            gateway.remove("databases.postgres.user");
            gateway.console().ok("RELOAD");
            let own = format!("{role} {role} postgres");
            assert_eq!(seen(&mut client), own, "shared_pool = {is_shared}");
            // A transaction that has begun stays where it is.
            assert_eq!(seen(&mut busy), "postgres postgres postgres");
            busy.ok("commit");
            assert_eq!(seen(&mut busy), own);
            assert_eq!(gateway.startup("postgres").user(&role).connect().value(WHO), own);
        }
    }

    fn a_new_forced_user_holds_at_the_next_transaction(fixture) {
        let (role, forced, other) = (fixture.own_role("x", ""), fixture.own_role("x", ""), fixture.own_role("x", ""));
        let mut gateway = with_keys(fixture, "shared_pool = true\n");
        let mut client = gateway.startup("postgres").user(&role).connect();
        assert_eq!(seen(&mut client), format!("{role} {role} postgres"));
        for user in [&forced, &other] {
            gateway.rewrite("databases.postgres.user", user.as_str());
            gateway.console().ok("RELOAD");
            assert_eq!(seen(&mut client), format!("{user} {user} postgres"));
        }
        // All share one pool: the client of before the reload, too.
        let mut newcomer = gateway.startup("postgres").connect();
        client.ok("begin");
        newcomer.ok("begin");
        let pools = gateway.show("POOLS");
        let shared = pools.iter().find(|pool| pool["database"] == "postgres" && pool["user"] == other);
        assert!(shared.is_some_and(|pool| pool["sv_active"] == "2"), "{pools:?}");
        let clients = gateway.show("CLIENTS");
        assert!(clients.iter().any(|row| row["user"] == role), "a client keeps its own name: {clients:?}");
    }

    fn sharing_a_pool_begins_and_ends_with_a_reload(fixture) {
        let (role, forced) = (fixture.own_role("x", ""), fixture.own_role("x", ""));
        let mut gateway = with_keys(fixture, &format!("user = \"{forced}\"\n"));
        let mut client = gateway.startup("postgres").user(&role).connect();
        let expected = format!("{forced} {forced} postgres");
        assert_eq!(seen(&mut client), expected);
        for is_shared in [true, false, true] {
            gateway.rewrite("databases.postgres.shared_pool", is_shared);
            gateway.console().ok("RELOAD");
            assert_eq!(seen(&mut client), expected, "shared_pool = {is_shared}");
            let pools = gateway.show("POOLS");
            let used = pools.iter().find(|pool| pool["database"] == "postgres" && pool["cl_active"] == "1");
            let user = if is_shared { &forced } else { &role };
            assert!(used.is_some_and(|pool| pool["user"] == *user), "{pools:?}");
        }
    }

    fn a_client_in_line_follows_a_reload(fixture) {
        let role = fixture.own_role("x", "");
        let mut gateway = fixture.gateway("user = \"postgres\"\nshared_pool = true\nsize = 1\n");
        let mut owner = gateway.client("postgres");
        let mut waiting = gateway.startup("postgres").user(&role).connect();
        owner.ok("begin");
        waiting.send(&Frames::new().query(WHO));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        gateway.remove("databases.postgres.user");
        gateway.console().ok("RELOAD");
        // It does not wait for the server of the other pool any more.
        assert_eq!(waiting.until_ready().value(), format!("{role} {role} postgres"));
        owner.ok("commit");
    }

    fn a_cancel_finds_a_client_that_a_reload_has_moved(fixture) {
        let role = fixture.own_role("x", "");
        let mut gateway = with_keys(fixture, "user = \"postgres\"\nshared_pool = true\n");
        let mut client = gateway.startup("postgres").user(&role).connect();
        client.ok("select 1");
        gateway.remove("databases.postgres.user");
        gateway.console().ok("RELOAD");
        client.ok("select 1");
        client.send(&Frames::new().query("select pg_sleep(60)"));
        let running = format!("select count(*) from pg_stat_activity where usename = '{role}' and state = 'active'");
        eventually("the query runs", || fixture.server.value(&running) == "1");
        client.cancel();
        assert_eq!(client.until_ready().code(), "57014");
    }

    fn a_session_keeps_its_server_over_a_reload(fixture) {
        let role = fixture.own_role("x", "");
        for fast_close in [false, true] {
            let keys = format!("user = \"postgres\"\nshared_pool = true\nmode = \"session\"\nfast_close = {fast_close}\n");
            let mut gateway = with_keys(fixture, &keys);
            let mut used = gateway.startup("postgres").user(&role).connect();
            let mut unused = gateway.startup("postgres").user(&role).connect();
            assert_eq!(seen(&mut used), "postgres postgres postgres");
            gateway.remove("databases.postgres.user");
            gateway.console().ok("RELOAD");
            assert_eq!(seen(&mut unused), format!("{role} {role} postgres"));
            if fast_close {
                used.expect_fatal("57P01");
            } else {
                assert_eq!(seen(&mut used), "postgres postgres postgres");
            }
        }
    }

    fn another_database_or_password_holds_after_a_reload(fixture) {
        let (role, database) = (fixture.own_role("first", "scram_login"), fixture.own_database());
        let mut gateway = with_keys(fixture, &format!("user = \"{role}\"\npassword = \"first\"\n"));
        let mut client = gateway.client("postgres");
        assert_eq!(seen(&mut client), format!("{role} {role} postgres"));
        fixture.server.sql(&format!("alter role {role} password 'second'"));
        gateway.rewrite("databases.postgres.password", "second");
        gateway.rewrite("databases.postgres.dbname", database.as_str());
        gateway.console().ok("RELOAD");
        assert_eq!(seen(&mut client), format!("{role} {role} {database}"));
    }
}
