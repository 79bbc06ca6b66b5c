//! A reload while clients are connected: each transaction uses the user, the database and the server of the
//! configuration that is current when it begins.

use tidegate_testkit::{Fixture, Frames, Gateway, RawClient, Signal, eventually, on_each_postgres};

const IDENTITY: &str = "select current_user || ' ' || session_user || ' ' || current_database()";

fn with_keys(fixture: &Fixture, keys: &str) -> Gateway {
    fixture.gateway(&format!("size = 2\n{keys}"))
}

/// The user, the session user and the database of a client.
#[track_caller]
fn identity(client: &mut RawClient) -> String {
    client.value(IDENTITY)
}

on_each_postgres! {
    fn removed_forced_user_ends_with_the_transaction(fixture) {
        let role = fixture.create_role("x", "");
        for is_shared in [true, false] {
            let keys = format!("user = \"postgres\"\nshared_pool = {is_shared}\n");
            let mut gateway = with_keys(fixture, &keys);
            let mut client = gateway.startup("postgres").user(&role).connect();
            let mut busy = gateway.startup("postgres").user(&role).connect();
            assert_eq!(identity(&mut client), "postgres postgres postgres");
            busy.ok("begin");
            gateway.remove_config("databases.postgres.user");
            gateway.console().ok("RELOAD");
            let role_identity = format!("{role} {role} postgres");
            assert_eq!(identity(&mut client), role_identity, "shared_pool = {is_shared}");
            // An open transaction keeps its server.
            assert_eq!(identity(&mut busy), "postgres postgres postgres");
            busy.ok("commit");
            assert_eq!(identity(&mut busy), role_identity);
            assert_eq!(gateway.startup("postgres").user(&role).connect().value(IDENTITY), role_identity);
        }
    }

    fn new_forced_user_applies_to_the_next_transaction(fixture) {
        let (role, forced, other) = (fixture.create_role("x", ""), fixture.create_role("x", ""), fixture.create_role("x", ""));
        let mut gateway = with_keys(fixture, "shared_pool = true\n");
        let mut client = gateway.startup("postgres").user(&role).connect();
        assert_eq!(identity(&mut client), format!("{role} {role} postgres"));
        for user in [&forced, &other] {
            gateway.set_config("databases.postgres.user", user.as_str());
            gateway.console().ok("RELOAD");
            assert_eq!(identity(&mut client), format!("{user} {user} postgres"));
        }
        // All clients share one pool, also the client from before the reload.
        let mut later = gateway.startup("postgres").connect();
        client.ok("begin");
        later.ok("begin");
        let pools = gateway.show("POOLS");
        let shared = pools.iter().find(|pool| pool["database"] == "postgres" && pool["user"] == other);
        assert!(shared.is_some_and(|pool| pool["sv_active"] == "2"), "{pools:?}");
        let clients = gateway.show("CLIENTS");
        assert!(clients.iter().any(|row| row["user"] == role), "SHOW CLIENTS has the name of the login: {clients:?}");
    }

    fn reload_changes_shared_pool(fixture) {
        let (role, forced) = (fixture.create_role("x", ""), fixture.create_role("x", ""));
        let mut gateway = with_keys(fixture, &format!("user = \"{forced}\"\n"));
        let mut client = gateway.startup("postgres").user(&role).connect();
        let expected = format!("{forced} {forced} postgres");
        assert_eq!(identity(&mut client), expected);
        for is_shared in [true, false, true] {
            gateway.set_config("databases.postgres.shared_pool", is_shared);
            gateway.console().ok("RELOAD");
            assert_eq!(identity(&mut client), expected, "shared_pool = {is_shared}");
            let pools = gateway.show("POOLS");
            let used = pools.iter().find(|pool| pool["database"] == "postgres" && pool["cl_active"] == "1");
            let user = if is_shared { &forced } else { &role };
            assert!(used.is_some_and(|pool| pool["user"] == *user), "{pools:?}");
        }
    }

    fn waiting_client_follows_a_reload(fixture) {
        let role = fixture.create_role("x", "");
        let mut gateway = fixture.gateway("user = \"postgres\"\nshared_pool = true\nsize = 1\n");
        let mut owner = gateway.client("postgres");
        let mut waiting = gateway.startup("postgres").user(&role).connect();
        owner.ok("begin");
        waiting.send(&Frames::new().query(IDENTITY));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        gateway.remove_config("databases.postgres.user");
        gateway.console().ok("RELOAD");
        // The client no longer waits for the server of the other pool.
        assert_eq!(waiting.until_ready().value(), format!("{role} {role} postgres"));
        owner.ok("commit");
    }

    fn cancel_reaches_a_client_moved_by_a_reload(fixture) {
        let role = fixture.create_role("x", "");
        let mut gateway = with_keys(fixture, "user = \"postgres\"\nshared_pool = true\n");
        let mut client = gateway.startup("postgres").user(&role).connect();
        client.ok("select 1");
        gateway.remove_config("databases.postgres.user");
        gateway.console().ok("RELOAD");
        client.ok("select 1");
        client.send(&Frames::new().query("select pg_sleep(60)"));
        let running = format!("select count(*) from pg_stat_activity where usename = '{role}' and state = 'active'");
        eventually("the query runs", || fixture.server.value(&running) == "1");
        client.cancel();
        assert_eq!(client.until_ready().code(), "57014");
    }

    fn session_keeps_its_server_across_a_reload(fixture) {
        let role = fixture.create_role("x", "");
        for fast_close in [false, true] {
            let keys = format!("user = \"postgres\"\nshared_pool = true\nmode = \"session\"\nfast_close = {fast_close}\n");
            let mut gateway = with_keys(fixture, &keys);
            let mut used = gateway.startup("postgres").user(&role).connect();
            let mut unused = gateway.startup("postgres").user(&role).connect();
            assert_eq!(identity(&mut used), "postgres postgres postgres");
            gateway.remove_config("databases.postgres.user");
            gateway.console().ok("RELOAD");
            assert_eq!(identity(&mut unused), format!("{role} {role} postgres"));
            if fast_close {
                used.expect_fatal("57P01");
            } else {
                assert_eq!(identity(&mut used), "postgres postgres postgres");
            }
        }
    }

    fn changed_database_or_password_applies_after_reload(fixture) {
        let (role, database) = (fixture.create_role("first", "scram_login"), fixture.create_database());
        let mut gateway = with_keys(fixture, &format!("user = \"{role}\"\npassword = \"first\"\n"));
        let mut client = gateway.client("postgres");
        assert_eq!(identity(&mut client), format!("{role} {role} postgres"));
        fixture.server.sql(&format!("alter role {role} password 'second'"));
        gateway.set_config("databases.postgres.password", "second");
        gateway.set_config("databases.postgres.dbname", database.as_str());
        gateway.console().ok("RELOAD");
        assert_eq!(identity(&mut client), format!("{role} {role} {database}"));
    }

    /// EDGE-68.
    fn reload_of_an_invalid_file_keeps_the_configuration(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.set_config("pool.no_such_key", 1);
        gateway.signal(Signal::HUP);
        eventually("the reason is logged", || gateway.log().contains("no_such_key"));
        client.ok("commit");
        gateway.client("postgres").ok("select 1");
        assert!(gateway.is_running());
    }
}
