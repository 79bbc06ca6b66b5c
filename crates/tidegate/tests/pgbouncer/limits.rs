//! Limits of clients and servers, per database and per user, and the words for who is one too many.

use std::net::TcpStream;

use tidegate_testkit::{Frames, RawClient, eventually};

use crate::bouncer::{Bouncer, Setup, server};

/// Logs clients in until there are so many; those with which the start was awaited may still be leaving.
fn fill(bouncer: &Bouncer, database: &str, count: usize) -> Vec<RawClient> {
    let mut clients = Vec::new();
    eventually("the clients are in", || {
        clients.extend(bouncer.startup(database).try_connect().ok());
        clients.len() == count
    });
    clients
}

#[test]
fn max_client_conn_refuses_in_the_words_of_pgbouncer() {
    let bouncer =
        Bouncer::start("[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\nmax_client_conn = 2\n");
    let mut clients = fill(&bouncer, "shop", 2);
    let refused = bouncer.startup("shop").refused();
    assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("08P01", "FATAL"));
    assert_eq!(refused.message, "no more connections allowed (max_client_conn)");
    bouncer.console().ok("SHOW POOLS");
    bouncer.wait_for_log("closing because: no more connections allowed (max_client_conn)");
    clients.pop();
    eventually("the free place can be taken", || bouncer.startup("shop").try_connect().is_ok());
}

/// Who comes when no file can be opened any more waits, and nobody would know why.
#[test]
fn more_clients_than_files_are_told_at_the_start() {
    let start = |max: &str| {
        let ini = format!("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nmax_client_conn = {max}\n");
        let starter = &["sh", "-c", "ulimit -n 400; exec \"$0\" \"$@\""];
        Bouncer::with(&Setup { ini: &ini, starter, ..Setup::default() })
    };
    let is_told = |bouncer: &Bouncer| bouncer.log().contains("more clients may come than files may be open");
    assert!(is_told(&start("400")) && !is_told(&start("300")));
    assert!(is_told(&start("379")), "its servers want files too");
}

#[test]
fn when_no_file_can_be_opened_the_log_says_whose_limit_it_is() {
    let starter = &["sh", "-c", "ulimit -n 100; exec \"$0\" \"$@\""];
    let bouncer =
        Bouncer::with(&Setup { ini: "[databases]\nshop = $PG dbname=postgres\n", starter, ..Setup::default() });
    let address = bouncer.address();
    let _silent: Vec<_> = (0..150).map(|_| TcpStream::connect(address).expect("the kernel has room")).collect();
    bouncer.wait_for_log("the limit of the gateway's process is 100 (ulimit -n, LimitNOFILE=)");
}

#[test]
fn clients_of_a_database_and_of_a_user_have_limits() {
    let bouncer = Bouncer::start(
        "[databases]\nshop = $PG dbname=postgres max_db_client_connections=1\nother = $PG dbname=postgres\n\
         [users]\npostgres = max_user_client_connections=2\n",
    );
    let shop = bouncer.client("shop");
    let refused = bouncer.startup("shop").refused();
    assert_eq!(refused.message, "client connections exceeded (max_db_client_connections)");
    let _other = bouncer.client("other");
    let refused = bouncer.startup("other").refused();
    assert_eq!(refused.message, "client connections exceeded (max_user_client_connections)");
    assert_eq!(refused.code, "08P01");
    drop(shop);
    eventually("the free place can be taken", || bouncer.startup("other").try_connect().is_ok());
}

#[test]
fn the_reserve_is_for_those_who_wait_long() {
    for (databases, users, general) in [
        ("", "", "reserve_pool_size = 1\n"),
        ("reserve_pool_size=1", "", ""),
        ("reserve_pool=1", "", ""),
        ("", "[users]\npostgres = reserve_pool_size=1\n", ""),
    ] {
        let bouncer = Bouncer::start(&format!(
            "[databases]\nshop = $PG dbname=postgres pool_size=1 {databases}\n{users}[pgbouncer]\n\
             reserve_pool_timeout = 0.2\n{general}"
        ));
        let mut owner = bouncer.client("shop");
        owner.ok("begin");
        bouncer.client("shop").ok("select 'from the reserve'");
        bouncer.wait_for_pool("shop", "sv_active", 1);
    }
}

#[test]
fn a_reserve_without_a_time_is_none() {
    for (database, user) in [("reserve_pool_size=5", ""), ("", "[users]\npostgres = reserve_pool_size=5\n")] {
        let bouncer = Bouncer::start(&format!(
            "[databases]\nshop = $PG dbname=postgres pool_size=1 {database}\n{user}[pgbouncer]\n\
             reserve_pool_timeout = 0\nquery_wait_timeout = 0.5\n"
        ));
        assert_eq!(bouncer.setting("reserve_pool_timeout"), "0");
        let mut owner = bouncer.client("shop");
        owner.ok("begin");
        let mut waiting = bouncer.client("shop");
        waiting.send(&Frames::new().query("select 1"));
        assert_eq!(waiting.expect_fatal("08P01").message, "query_wait_timeout");
        // The reserve is looked at once a second.
        bouncer.console().ok("SET query_wait_timeout = 60");
        bouncer.console().ok("SET reserve_pool_timeout = 0.1");
        bouncer.client("shop").ok("select 'from the reserve'");
    }
}

/// It has a server of its own, which counts for the database.
#[test]
fn a_replication_connection_counts_and_can_be_killed() {
    let bouncer = Bouncer::start("[databases]\nshop = $PG dbname=postgres max_db_connections=1\n");
    let startup = bouncer.startup("shop").parameter("replication", "database");
    let mut replica = startup.connect();
    replica.ok("IDENTIFY_SYSTEM");
    let row = bouncer.show("CLIENTS").into_iter().find(|row| row["database"] == "shop").expect("it is listed");
    assert_eq!((row["replication"].as_str(), row["state"].as_str()), ("logical", "active"));
    let mut client = bouncer.startup("shop").open();
    client.send_bytes(&bouncer.startup("shop").packet());
    // The only server of the database is the other's.
    bouncer.wait_for_pool("shop", "cl_waiting", 1);
    bouncer.console().ok(&format!("KILL_CLIENT {}", row["id"]));
    replica.expect_eof();
    client.log_in(None).expect("there is room");
    client.ok("select 1");
    let log = bouncer.log();
    assert!(log.contains("login attempt: db=shop user=postgres tls=no replication=yes"), "{log}");
}

/// A database whose servers are all gone can be renamed, or Postgres started again: replication is no exception.
#[test]
fn a_pause_waits_for_replication_and_holds_what_comes() {
    let bouncer = Bouncer::start("[databases]\nshop = $PG dbname=postgres\n");
    let startup = bouncer.startup("shop").parameter("replication", "database");
    let mut first = startup.connect();
    first.ok("IDENTIFY_SYSTEM");
    let servers = bouncer.show("SERVERS");
    let shown: Vec<_> = servers.iter().map(|row| (row["replication"].as_str(), row["state"].as_str())).collect();
    assert_eq!(shown, [("logical", "active")]);
    bouncer.wait_for_pool("shop", "sv_active", 1);
    let mut pausing = bouncer.console();
    pausing.send(&Frames::new().query("PAUSE shop"));
    let paused = || bouncer.show("DATABASES").iter().any(|row| row["name"] == "shop" && row["paused"] == "1");
    eventually("it is paused", paused);
    let mut second = startup.open();
    second.send_bytes(&startup.packet());
    eventually("it has come", || bouncer.show("CLIENTS").iter().filter(|row| row["database"] == "shop").count() == 2);
    assert_eq!(bouncer.pool_count("shop", "sv_active"), 1, "and waits");
    drop(first);
    assert_eq!(pausing.until_ready().tags, ["PAUSE"]);
    assert_eq!(bouncer.pool_count("shop", "sv_active"), 0);
    bouncer.console().ok("RESUME shop");
    second.log_in(None).expect("it is let in");
    second.ok("IDENTIFY_SYSTEM");
}

#[test]
fn replication_waits_in_line_for_room_and_an_idle_server_makes_it() {
    let bouncer = Bouncer::start(
        "[databases]\nshop = $PG dbname=postgres max_db_connections=1\n[pgbouncer]\nquery_wait_timeout = 1\n",
    );
    let startup = bouncer.startup("shop").parameter("replication", "database");
    let mut client = bouncer.client("shop");
    client.ok("begin");
    assert_eq!(startup.refused().message, "query_wait_timeout");
    bouncer.console().ok("SET query_wait_timeout = 600");
    let mut leaving = startup.open();
    leaving.send_bytes(&startup.packet());
    let clients = || bouncer.show("CLIENTS").iter().filter(|row| row["database"] == "shop").count();
    eventually("it has come", || clients() == 2);
    drop(leaving);
    eventually("nobody waits for whom has left", || clients() == 1);
    let mut killed = startup.open();
    killed.send_bytes(&startup.packet());
    eventually("it has come", || clients() == 2);
    let shown = bouncer.show("CLIENTS");
    let waiting = shown.iter().find(|row| row["database"] == "shop" && row["replication"] == "logical");
    bouncer.console().ok(&format!("KILL_CLIENT {}", waiting.expect("it is listed")["id"]));
    killed.expect_eof();
    client.ok("commit");
    bouncer.wait_for_pool("shop", "sv_idle", 1);
    startup.connect().ok("IDENTIFY_SYSTEM");
}

#[test]
fn a_pool_whose_user_is_known_has_its_connections_before_a_client_comes() {
    let ini = |min: u32| {
        format!(
            "[databases]\nshop = $PG dbname=postgres user=postgres min_pool_size={min}\nother = $PG dbname=postgres\n\
             [pgbouncer]\nmin_pool_size = 3\n"
        )
    };
    let bouncer = Bouncer::start(&ini(2));
    bouncer.wait_for_pool("shop", "sv_idle", 2);
    assert!(bouncer.show("POOLS").iter().all(|row| row["database"] != "other"), "its users are not known yet");
    bouncer.rewrite(&ini(4));
    bouncer.console().ok("RELOAD");
    bouncer.wait_for_pool("shop", "sv_idle", 4);
    assert_eq!(bouncer.startup("shop").user("somebody").connect().value("select current_user"), "postgres");
}

#[test]
fn a_user_has_pools_of_a_size_of_its_own() {
    let bouncer = Bouncer::start("[databases]\nshop = $PG dbname=postgres\n[users]\npostgres = pool_size=1\n");
    let mut owner = bouncer.client("shop");
    owner.ok("begin");
    let mut waiting = bouncer.client("shop");
    waiting.send(&Frames::new().query("select 'served'"));
    bouncer.wait_for_pool("shop", "cl_waiting", 1);
    owner.ok("commit");
    assert_eq!(waiting.until_ready().value(), "served");
}

/// A pool that has all the connections of its database gives an idle one to a pool that needs one.
#[test]
fn a_full_database_evicts_an_idle_server() {
    let bouncer = Bouncer::start("[databases]\nshop = $PG dbname=postgres max_db_connections=1\n");
    let role = server_role("evicted");
    let mut first = bouncer.client("shop");
    let backend = first.backend();
    assert_eq!(bouncer.startup("shop").user(&role).connect().value("select current_user"), role);
    let gone = format!("select count(*) from pg_stat_activity where pid = {backend}");
    eventually("the first server is gone", || server().value(&gone) == "0");
    assert_ne!(first.backend(), backend);
}

/// A server in use is not taken away: whoever needs its place waits for it.
#[test]
fn a_full_database_waits_for_a_busy_server() {
    let bouncer = Bouncer::start("[databases]\nshop = $PG dbname=postgres max_db_connections=1\n");
    let role = server_role("waiting");
    let mut busy = bouncer.client("shop");
    busy.ok("begin");
    let startup = bouncer.startup("shop").user(&role);
    let waiting = std::thread::spawn(move || startup.connect().value("select current_user"));
    eventually("it waits", || {
        let pools = bouncer.show("POOLS");
        pools.iter().any(|pool| pool["user"] == role && pool["cl_waiting"] == "1")
    });
    busy.ok("commit");
    assert_eq!(waiting.join().expect("it is served"), role);
}

#[test]
fn a_full_user_evicts_an_idle_server() {
    let bouncer = Bouncer::start(
        "[databases]\none = $PG dbname=postgres\ntwo = $PG dbname=template1\n[users]\npostgres = max_user_connections=1\n",
    );
    let mut one = bouncer.client("one");
    assert_eq!(one.value("select current_database()"), "postgres");
    assert_eq!(bouncer.client("two").value("select current_database()"), "template1");
    assert_eq!(one.value("select current_database()"), "postgres");
    let users = bouncer.show("USERS");
    let row = users.iter().find(|row| row["name"] == "postgres").expect("it is listed");
    assert_eq!((row["max_user_connections"].as_str(), row["current_connections"].as_str()), ("1", "1"));
}

/// A minimum that the limit does not allow opens what it may, and no pool takes from another for it.
#[test]
fn edge_66_a_minimum_above_the_limit_does_not_fight() {
    let bouncer =
        Bouncer::start("[databases]\nshop = $PG dbname=postgres min_pool_size=5 max_db_connections=2 user=postgres\n");
    let mut client = bouncer.client("shop");
    let backend = client.backend();
    let open = || {
        bouncer
            .show("DATABASES")
            .into_iter()
            .find(|row| row["name"] == "shop")
            .map(|row| row["current_connections"].clone())
    };
    eventually("connects are under way", || open().is_some_and(|open| open != "1"));
    // There is no room for more, and nothing is being connected that waits for some.
    bouncer.wait_for_pool("shop", "sv_login", 0);
    client.ok("begin");
    assert_eq!(client.backend(), client.backend());
    client.ok("commit");
    let own = format!("select count(*) from pg_stat_activity where pid = {backend}");
    assert_eq!(server().value(&own), "1", "an idle server of the pool itself stays");
}

fn server_role(stem: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("pgb_{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    server().sql(&format!("create role {name} login"));
    name
}
