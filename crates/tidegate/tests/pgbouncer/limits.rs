//! Limits of clients and servers per database and per user, and the errors above the limit.

use std::net::TcpStream;

use tidegate_testkit::{Frames, RawClient, eventually};

use crate::ini_gateway::{IniGateway, Setup, server};

/// Logs in this number of clients. The probe connections of the start may still be open.
fn fill(gateway: &IniGateway, database: &str, count: usize) -> Vec<RawClient> {
    let mut clients = Vec::new();
    eventually("the clients are connected", || {
        clients.extend(gateway.startup(database).try_connect().ok());
        clients.len() == count
    });
    clients
}

#[test]
fn max_client_conn_error_is_that_of_pgbouncer() {
    let gateway =
        IniGateway::start("[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\nmax_client_conn = 2\n");
    let mut clients = fill(&gateway, "shop", 2);
    let refused = gateway.startup("shop").refused();
    assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("08P01", "FATAL"));
    assert_eq!(refused.message, "no more connections allowed (max_client_conn)");
    gateway.console().ok("SHOW POOLS");
    gateway.wait_for_log("closing because: no more connections allowed (max_client_conn)");
    clients.pop();
    eventually("a new client is accepted", || gateway.startup("shop").try_connect().is_ok());
}

/// A client above the file limit would wait without any error.
#[test]
fn client_limit_above_the_file_limit_logs_a_warning() {
    let start = |max: &str| {
        let ini = format!("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nmax_client_conn = {max}\n");
        let starter = &["sh", "-c", "ulimit -n 400; exec \"$0\" \"$@\""];
        IniGateway::with(&Setup { ini: &ini, starter, ..Setup::default() })
    };
    let is_logged = |gateway: &IniGateway| gateway.log().contains("the limit of open files is lower than");
    assert!(is_logged(&start("400")) && !is_logged(&start("300")));
    assert!(is_logged(&start("379")), "servers need file descriptors, too");
}

#[test]
fn exhausted_file_limit_is_logged_with_its_source() {
    let starter = &["sh", "-c", "ulimit -n 100; exec \"$0\" \"$@\""];
    let gateway =
        IniGateway::with(&Setup { ini: "[databases]\nshop = $PG dbname=postgres\n", starter, ..Setup::default() });
    let address = gateway.address();
    let _silent: Vec<_> = (0..150).map(|_| TcpStream::connect(address).expect("the kernel has room")).collect();
    gateway.wait_for_log("the limit of the gateway's process is 100 (ulimit -n, LimitNOFILE=)");
}

#[test]
fn clients_per_database_and_per_user_are_limited() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres max_db_client_connections=1\nother = $PG dbname=postgres\n\
         [users]\npostgres = max_user_client_connections=2\n",
    );
    let shop = gateway.client("shop");
    let refused = gateway.startup("shop").refused();
    assert_eq!(refused.message, "client connections exceeded (max_db_client_connections)");
    let _other = gateway.client("other");
    let refused = gateway.startup("other").refused();
    assert_eq!(refused.message, "client connections exceeded (max_user_client_connections)");
    assert_eq!(refused.code, "08P01");
    drop(shop);
    eventually("a new client is accepted", || gateway.startup("other").try_connect().is_ok());
}

#[test]
fn reserve_serves_clients_that_wait_long() {
    for (databases, users, general) in [
        ("", "", "reserve_pool_size = 1\n"),
        ("reserve_pool_size=1", "", ""),
        ("reserve_pool=1", "", ""),
        ("", "[users]\npostgres = reserve_pool_size=1\n", ""),
    ] {
        let gateway = IniGateway::start(&format!(
            "[databases]\nshop = $PG dbname=postgres pool_size=1 {databases}\n{users}[pgbouncer]\n\
             reserve_pool_timeout = 0.2\n{general}"
        ));
        let mut owner = gateway.client("shop");
        owner.ok("begin");
        gateway.client("shop").ok("select 'from the reserve'");
        gateway.wait_for_pool("shop", "sv_active", 1);
    }
}

#[test]
fn reserve_pool_timeout_0_disables_the_reserve() {
    for (database, user) in [("reserve_pool_size=5", ""), ("", "[users]\npostgres = reserve_pool_size=5\n")] {
        let gateway = IniGateway::start(&format!(
            "[databases]\nshop = $PG dbname=postgres pool_size=1 {database}\n{user}[pgbouncer]\n\
             reserve_pool_timeout = 0\nquery_wait_timeout = 0.5\n"
        ));
        assert_eq!(gateway.setting("reserve_pool_timeout"), "0");
        let mut owner = gateway.client("shop");
        owner.ok("begin");
        let mut waiting = gateway.client("shop");
        waiting.send(&Frames::new().query("select 1"));
        assert_eq!(waiting.expect_fatal("08P01").message, "query_wait_timeout");
        // The reserve is checked once per second.
        gateway.console().ok("SET query_wait_timeout = 60");
        gateway.console().ok("SET reserve_pool_timeout = 0.1");
        gateway.client("shop").ok("select 'from the reserve'");
    }
}

/// The dedicated server of a replication connection counts towards the limit of the database.
#[test]
fn replication_connection_counts_and_can_be_killed() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres max_db_connections=1\n");
    let startup = gateway.startup("shop").parameter("replication", "database");
    let mut replica = startup.connect();
    replica.ok("IDENTIFY_SYSTEM");
    let row = gateway.show("CLIENTS").into_iter().find(|row| row["database"] == "shop").expect("the row exists");
    assert_eq!((row["replication"].as_str(), row["state"].as_str()), ("logical", "active"));
    let mut client = gateway.startup("shop").open();
    client.send_bytes(&gateway.startup("shop").packet());
    // The replication connection has the only server of the database.
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    gateway.console().ok(&format!("KILL_CLIENT {}", row["id"]));
    replica.expect_eof();
    client.log_in(None).expect("the limit allows a server");
    client.ok("select 1");
    let log = gateway.log();
    assert!(log.contains("login attempt: db=shop user=postgres tls=no replication=yes"), "{log}");
}

/// PAUSE must also close replication, so that the database can be renamed or Postgres restarted.
#[test]
fn pause_waits_for_replication_and_holds_new_logins() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres\n");
    let startup = gateway.startup("shop").parameter("replication", "database");
    let mut first = startup.connect();
    first.ok("IDENTIFY_SYSTEM");
    let servers = gateway.show("SERVERS");
    let shown: Vec<_> = servers.iter().map(|row| (row["replication"].as_str(), row["state"].as_str())).collect();
    assert_eq!(shown, [("logical", "active")]);
    gateway.wait_for_pool("shop", "sv_active", 1);
    let mut pausing = gateway.console();
    pausing.send(&Frames::new().query("PAUSE shop"));
    let paused = || gateway.show("DATABASES").iter().any(|row| row["name"] == "shop" && row["paused"] == "1");
    eventually("the database is paused", paused);
    let mut second = startup.open();
    second.send_bytes(&startup.packet());
    eventually("the client is listed", || {
        gateway.show("CLIENTS").iter().filter(|row| row["database"] == "shop").count() == 2
    });
    assert_eq!(gateway.pool_count("shop", "sv_active"), 1, "the new login got a server");
    drop(first);
    assert_eq!(pausing.until_ready().tags, ["PAUSE"]);
    assert_eq!(gateway.pool_count("shop", "sv_active"), 0);
    gateway.console().ok("RESUME shop");
    second.log_in(None).expect("the login succeeds");
    second.ok("IDENTIFY_SYSTEM");
}

#[test]
fn replication_login_waits_for_an_idle_server() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres max_db_connections=1\n[pgbouncer]\nquery_wait_timeout = 1\n",
    );
    let startup = gateway.startup("shop").parameter("replication", "database");
    let mut client = gateway.client("shop");
    client.ok("begin");
    assert_eq!(startup.refused().message, "query_wait_timeout");
    gateway.console().ok("SET query_wait_timeout = 600");
    let mut leaving = startup.open();
    leaving.send_bytes(&startup.packet());
    let clients = || gateway.show("CLIENTS").iter().filter(|row| row["database"] == "shop").count();
    eventually("the client is listed", || clients() == 2);
    drop(leaving);
    eventually("the disconnected client is removed", || clients() == 1);
    let mut killed = startup.open();
    killed.send_bytes(&startup.packet());
    eventually("the client is listed", || clients() == 2);
    let shown = gateway.show("CLIENTS");
    let waiting = shown.iter().find(|row| row["database"] == "shop" && row["replication"] == "logical");
    gateway.console().ok(&format!("KILL_CLIENT {}", waiting.expect("the client is listed")["id"]));
    killed.expect_eof();
    client.ok("commit");
    gateway.wait_for_pool("shop", "sv_idle", 1);
    startup.connect().ok("IDENTIFY_SYSTEM");
}

#[test]
fn min_pool_size_connects_before_the_first_client() {
    let ini = |min: u32| {
        format!(
            "[databases]\nshop = $PG dbname=postgres user=postgres min_pool_size={min}\nother = $PG dbname=postgres\n\
             [pgbouncer]\nmin_pool_size = 3\n"
        )
    };
    let gateway = IniGateway::start(&ini(2));
    gateway.wait_for_pool("shop", "sv_idle", 2);
    assert!(gateway.show("POOLS").iter().all(|row| row["database"] != "other"), "a pool without a user was created");
    gateway.set_config(&ini(4));
    gateway.console().ok("RELOAD");
    gateway.wait_for_pool("shop", "sv_idle", 4);
    assert_eq!(gateway.startup("shop").user("other").connect().value("select current_user"), "postgres");
}

#[test]
fn pool_size_of_a_user_applies() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres\n[users]\npostgres = pool_size=1\n");
    let mut owner = gateway.client("shop");
    owner.ok("begin");
    let mut waiting = gateway.client("shop");
    waiting.send(&Frames::new().query("select 'served'"));
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    owner.ok("commit");
    assert_eq!(waiting.until_ready().value(), "served");
}

/// A pool that has all connections of its database gives up an idle one for another pool.
#[test]
fn full_database_evicts_an_idle_server() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres max_db_connections=1\n");
    let role = server_role("evicted");
    let mut first = gateway.client("shop");
    let backend = first.backend();
    assert_eq!(gateway.startup("shop").user(&role).connect().value("select current_user"), role);
    let count = format!("select count(*) from pg_stat_activity where pid = {backend}");
    eventually("the first server is gone", || server().value(&count) == "0");
    assert_ne!(first.backend(), backend);
}

/// A server in use is not evicted: the other client waits.
#[test]
fn full_database_waits_for_a_busy_server() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres max_db_connections=1\n");
    let role = server_role("waiting");
    let mut busy = gateway.client("shop");
    busy.ok("begin");
    let startup = gateway.startup("shop").user(&role);
    let waiting = std::thread::spawn(move || startup.connect().value("select current_user"));
    eventually("the client waits", || {
        let pools = gateway.show("POOLS");
        pools.iter().any(|pool| pool["user"] == role && pool["cl_waiting"] == "1")
    });
    busy.ok("commit");
    assert_eq!(waiting.join().expect("the client is served"), role);
}

#[test]
fn full_user_evicts_an_idle_server() {
    let gateway = IniGateway::start(
        "[databases]\none = $PG dbname=postgres\ntwo = $PG dbname=template1\n[users]\npostgres = max_user_connections=1\n",
    );
    let mut one = gateway.client("one");
    assert_eq!(one.value("select current_database()"), "postgres");
    assert_eq!(gateway.client("two").value("select current_database()"), "template1");
    assert_eq!(one.value("select current_database()"), "postgres");
    let users = gateway.show("USERS");
    let row = users.iter().find(|row| row["name"] == "postgres").expect("the row exists");
    assert_eq!((row["max_user_connections"].as_str(), row["current_connections"].as_str()), ("1", "1"));
}

/// EDGE-66: A minimum above the limit connects as many servers as allowed, and no pool evicts for it.
#[test]
fn minimum_above_the_limit_does_not_evict() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres min_pool_size=5 max_db_connections=2 user=postgres\n",
    );
    let mut client = gateway.client("shop");
    let backend = client.backend();
    let open = || {
        gateway
            .show("DATABASES")
            .into_iter()
            .find(|row| row["name"] == "shop")
            .map(|row| row["current_connections"].clone())
    };
    eventually("servers are being connected", || open().is_some_and(|open| open != "1"));
    // The limit is reached, and no connect waits for it.
    gateway.wait_for_pool("shop", "sv_login", 0);
    client.ok("begin");
    assert_eq!(client.backend(), client.backend());
    client.ok("commit");
    let count = format!("select count(*) from pg_stat_activity where pid = {backend}");
    assert_eq!(server().value(&count), "1", "an idle server of the pool itself stays");
}

fn server_role(stem: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("pgb_{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    server().sql(&format!("create role {name} login"));
    name
}

/// Administrators of the console are exempt, users who may only read it are not.
#[test]
fn client_limits_hold_for_stats_users() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nstats_users = watcher, other\n\
         max_user_client_connections = 1\n",
    );
    let console = |user: &str| gateway.startup("pgbouncer").user(user);
    let first = console("watcher").connect();
    let text = "client connections exceeded (max_user_client_connections)";
    assert_eq!(console("watcher").refused().message, text);
    let _other = console("other").connect();
    let _admins = [console("postgres").connect(), console("postgres").connect()];
    drop(first);
    eventually("the place is free", || console("watcher").try_connect().is_ok());
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nstats_users = watcher, other\n\
         max_db_client_connections = 1\n",
    );
    let _first = gateway.startup("pgbouncer").user("watcher").connect();
    let text = "client connections exceeded (max_db_client_connections)";
    assert_eq!(gateway.startup("pgbouncer").user("other").refused().message, text);
    gateway.console().ok("SHOW VERSION");
}

/// Otherwise they would fail with "number of requested standby connections exceeds max_wal_senders".
#[test]
fn replication_clients_wait_within_the_pool_size() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres pool_size=1\n");
    let startup = gateway.startup("shop").parameter("replication", "database");
    let mut first = startup.connect();
    first.ok("IDENTIFY_SYSTEM");
    let mut second = startup.open();
    second.send_bytes(&startup.packet());
    let replicating = || gateway.show("CLIENTS").iter().filter(|row| row["replication"] == "logical").count();
    eventually("the second client waits", || replicating() == 2);
    let servers = gateway.show("SERVERS");
    assert_eq!(servers.iter().filter(|row| row["replication"] == "logical").count(), 1, "{servers:?}");
    first.send(&Frames::new().terminate());
    second.until_ready();
    second.ok("IDENTIFY_SYSTEM");
}

#[test]
fn replication_client_evicts_an_idle_server() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres pool_size=1\n");
    gateway.client("shop").ok("select 1");
    let mut standby = gateway.startup("shop").parameter("replication", "database").connect();
    gateway.wait_for_log("closing because: evicted");
    standby.ok("IDENTIFY_SYSTEM");
}

#[test]
fn password_may_have_65530_bytes() {
    let password = "x".repeat(65_530);
    let gateway = IniGateway::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\nauth_type = plain\n\
              auth_file = $DIR/users.txt\n",
        files: &[("users.txt", &format!("\"app\" \"{password}\"\n"))],
        ..Setup::default()
    });
    let login = |password: &str| gateway.startup("shop").user("app").password(password);
    login(&password).connect().ok("select 1");
    login(&password[1..]).refused();
    assert!(login(&format!("{password}x")).try_connect().is_err());
}
