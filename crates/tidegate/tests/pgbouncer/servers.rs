//! Server checks, the order in which servers are used, DNS and sockets.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::MetadataExt as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::process::{getegid, geteuid};
use tidegate_testkit::{Frames, NameServer, eventually};

use crate::ini_gateway::{IniGateway, Setup, server};

#[test]
fn server_that_fails_its_check_is_replaced() {
    server().sql("create table pgbouncer_checks as select 1 as n");
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\nserver_check_delay = 0\n\
         server_check_query = select 1 / count(*) from pgbouncer_checks\n",
    );
    let mut client = gateway.client("shop");
    let first = client.backend();
    assert_eq!(client.backend(), first, "the check has passed");
    server().sql("delete from pgbouncer_checks");
    let second = client.backend();
    assert_ne!(second, first, "a new server is not checked");
    gateway.wait_for_log("server_check failed");
    server().sql("drop table pgbouncer_checks");
    assert_eq!(gateway.setting("pool.server_check_after"), "0");
    let default = IniGateway::start("[databases]\nshop = $PG dbname=postgres\n");
    assert_eq!(
        (default.setting("pool.server_check").as_str(), default.setting("server_check_delay").as_str()),
        (";", "30")
    );
    let none = IniGateway::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nserver_check_query =\n");
    assert_eq!(none.setting("pool.server_check"), "");
}

#[test]
fn client_can_cancel_or_leave_during_a_check() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\nserver_check_delay = 0\n\
         server_check_query = select pg_advisory_xact_lock(719)\n",
    );
    let mut client = gateway.client("shop");
    client.ok("select 1");
    let mut holder = server().client();
    let checks = "select count(*) from pg_stat_activity where wait_event = 'advisory' and query like '%lock(719)%'";
    for disconnects in [false, true] {
        holder.ok("select pg_advisory_lock(719)");
        client.send(&Frames::new().query("select 2"));
        eventually("the check is running", || server().value(checks) == "1");
        let waiting = || gateway.show("CLIENTS").iter().filter(|row| row["state"] == "waiting").count();
        assert_eq!(waiting(), 1);
        if disconnects {
            drop(client);
            client = gateway.client("shop");
        } else {
            client.cancel();
            let outcome = client.until_ready();
            assert_eq!((outcome.code().as_str(), outcome.rows.len()), ("57014", 0));
        }
        eventually("no client waits", || waiting() == 0);
        holder.ok("select pg_advisory_unlock(719)");
        assert_eq!(client.value("select 3"), "3", "the next query is not cancelled");
    }
}

#[test]
fn empty_check_passes() {
    let gateway =
        IniGateway::start("[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\nserver_check_delay = 0\n");
    let mut client = gateway.client("shop");
    let first = client.backend();
    client.ok("create temporary table checked (n int); drop table checked");
    client.ok("begin");
    client.ok("commit");
    assert_eq!(client.backend(), first);
    assert!(!gateway.log().contains("server_check failed"), "{}", gateway.log());
}

#[test]
fn server_round_robin_uses_servers_in_turn() {
    let used = |round_robin: u8| {
        let ini = format!(
            "[databases]\nshop = $PG dbname=postgres pool_size=3\n[pgbouncer]\nserver_round_robin = {round_robin}\n"
        );
        // Each thread has an order of its own.
        let gateway = IniGateway::with(&Setup { ini: &ini, options: &["--workers", "1"], ..Setup::default() });
        let mut clients = [gateway.client("shop"), gateway.client("shop"), gateway.client("shop")];
        clients.iter_mut().for_each(|client| drop(client.ok("begin")));
        clients.iter_mut().for_each(|client| drop(client.ok("commit")));
        let [client, ..] = &mut clients;
        (0..6).map(|_| client.backend()).collect::<Vec<_>>()
    };
    let sequence = used(1);
    assert_eq!(sequence[..3].iter().collect::<BTreeSet<_>>().len(), 3, "{sequence:?}");
    assert_eq!(sequence[..3], sequence[3..]);
    let one = used(0);
    assert_eq!(one.iter().collect::<BTreeSet<_>>().len(), 1, "{one:?}");
}

/// A server keeps this number of named statements; others are prepared again when they are used.
#[test]
fn max_prepared_statements_limits_each_server() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\npool_mode = transaction\n\
         max_prepared_statements = 3\n",
    );
    let mut client = gateway.client("shop");
    for number in 0..10 {
        let name = format!("s{number}");
        client.send(&Frames::new().parse(&name, &format!("select {number}")).sync());
        client.until_ready();
    }
    for number in [0, 9, 4] {
        client.send(&Frames::new().bind(&format!("s{number}"), &[]).execute().sync());
        assert_eq!(client.until_ready().value(), number.to_string());
    }
    let servers = gateway.show("SERVERS");
    assert_eq!(servers[0]["prepared_statements"], "3", "{servers:?}");
    let count: u32 = client.value("select count(*) from pg_prepared_statements").parse().expect("a number");
    assert!((1..=3).contains(&count), "{count}");
}

/// Postgres truncates the name with the added host and sends a notice. The notice is for a SET of the client, not for
/// the parameter sync of each server.
#[test]
fn notices_of_the_parameter_sync_are_not_forwarded() {
    let gateway =
        IniGateway::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\napplication_name_add_host = 1\n");
    let mut client = gateway.startup("shop").parameter("application_name", &"x".repeat(60)).connect();
    client.send(&Frames::new().query("select 1"));
    client.expect("S* T D:1 C:SELECT_1 Z:I");
    client.send(&Frames::new().query(&format!("set application_name = '{}'", "y".repeat(70))));
    client.expect("N C:SET S* Z:I");
}

/// A window of less than a segment made 4 kB per round of delayed acknowledgements, 22 s for a megabyte. The watchdog of the test
/// would end a run with such windows: 30 MB in each direction.
#[test]
fn small_socket_buffers_work() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\ntcp_socket_buffer = 4096\n");
    assert_eq!(gateway.setting("tcp.socket_buffer"), "4096");
    let mut client = gateway.client("shop");
    for _ in 0..10 {
        assert_eq!(client.value("select repeat('x', 3000000)").len(), 3_000_000);
        let long = format!("select length('{}')", "y".repeat(3_000_000));
        assert_eq!(client.value(&long), "3000000");
    }
    gateway.console().ok("SET tcp_socket_buffer = 8192");
    let mut client = gateway.client("shop");
    assert_eq!(client.value("select repeat('x', 3000000)").len(), 3_000_000);
}

#[test]
fn unix_socket_file_has_the_configured_group() {
    // Only root may assign a group that it is not a member of.
    let group = if geteuid().is_root() { 1 } else { getegid().as_raw() };
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nunix_socket_group = {group}\nunix_socket_mode = 0770\n"
    ));
    gateway.unix("postgres", "shop").connect().ok("select 1");
    let found = std::fs::metadata(gateway.file(&format!(".s.PGSQL.{}", gateway.port()))).expect("the file exists");
    assert_eq!((found.gid(), found.mode() & 0o777), (group, 0o770));
}

#[test]
fn host_names_are_cached() {
    let port = server().port();
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = host=localhost port={port} dbname=postgres\ngone = host=unknown.invalid\n[pgbouncer]\n\
         dns_max_ttl = 500\ndns_zone_check_period = 100\nquery_wait_timeout = 0.5\n"
    ));
    assert!(gateway.show("DNS_HOSTS").is_empty());
    gateway.client("shop").ok("select 1");
    let refused = gateway.startup("gone").refused();
    assert_eq!(refused.message, "query_wait_timeout");
    gateway.wait_for_log("closing because: server DNS lookup failed (age=0s)");
    let names = gateway.show("DNS_HOSTS");
    let names: Vec<_> = names.iter().map(|row| (row["hostname"].as_str(), row["addrs"].as_str())).collect();
    assert!(names.len() == 2 && names[0].0 == "localhost" && names[0].1.contains("127.0.0.1"), "{names:?}");
    assert_eq!(names[1], ("unknown.invalid", ""));
    let lists = gateway.show("LISTS");
    assert!(lists.iter().any(|row| row["list"] == "dns_names" && row["items"] == "2"), "{lists:?}");
    assert_eq!(
        (gateway.setting("dns_max_ttl").as_str(), gateway.setting("dns.check_period").as_str()),
        ("500", "100s")
    );
}

#[test]
fn resolv_conf_selects_the_name_servers() {
    // The file has no port, and port 53 needs a privilege.
    let [a, b] = (std::process::id() as u16).to_be_bytes();
    let address = SocketAddr::from((Ipv4Addr::new(127, 77, a, b), 53));
    let Ok(names) = NameServer::start_at(address) else { return };
    names.set_addresses("db.test", &[Ipv4Addr::LOCALHOST]);
    let file = std::env::temp_dir().join(format!("tidegate-resolv-{}.conf", std::process::id()));
    std::fs::write(&file, format!("nameserver {}\n", address.ip())).expect("a file");
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = host=db.test port={} dbname=postgres\n[pgbouncer]\nresolv_conf = {}\n",
        server().port(),
        file.display()
    ));
    gateway.client("shop").ok("select 1");
    assert!(names.queries() > 0);
    std::fs::remove_file(&file).expect("the file exists");
}

#[test]
fn server_fast_close_ends_the_session() {
    let ini = "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\npool_mode = session\nserver_fast_close = 1\n";
    let gateway = IniGateway::start(ini);
    let (mut idle, mut busy) = (gateway.client("shop"), gateway.client("shop"));
    idle.ok("select 1");
    busy.ok("begin");
    gateway.console().ok("RECONNECT shop");
    assert_eq!(idle.expect_fatal("08P01").message, "database configuration changed");
    busy.ok("select 1");
    // The reply to COMMIT comes first.
    assert!(busy.try_query("commit").is_ok());
    assert_eq!(busy.expect_fatal("08P01").message, "database configuration changed");
    gateway.client("shop").ok("select 1");
    let default = IniGateway::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\npool_mode = session\n");
    let mut client = default.client("shop");
    let backend = client.backend();
    default.console().ok("RECONNECT shop");
    assert_eq!(client.backend(), backend, "a session keeps its server to its end");
    // The setting holds for sessions that have a server already.
    let mut console = default.console();
    console.ok("SET server_fast_close = 1");
    console.ok("RECONNECT shop");
    assert_eq!(client.expect_fatal("08P01").message, "database configuration changed");
}

#[test]
fn unused_autodb_is_removed() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres\n* = $PG\n[pgbouncer]\nmin_pool_size = 2\nautodb_idle_timeout = 0.1\n",
    );
    let names = || gateway.show("POOLS").into_iter().map(|row| row["database"].clone()).collect::<BTreeSet<_>>();
    let mut named = gateway.client("shop");
    named.ok("select 1");
    for _ in 0..2 {
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        eventually("the minimum pool size is connected", || gateway.pool_count("postgres", "sv_idle") == 2);
        assert!(names().contains("postgres"), "the database still has a client");
        client.ok("select 1");
        drop(client);
        eventually("the database is removed", || !names().contains("postgres"));
    }
    assert!(names().contains("shop"), "a configured database is kept");
    named.ok("select 1");
}

/// The servers that RECONNECT has replaced are closed when they are released, so that no waiter can get them.
#[test]
fn waiters_get_a_refused_login_beside_a_stale_server() {
    let role = "stale_server";
    let pg = server();
    pg.sql(&format!("drop role if exists {role}; create role {role} login"));
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = $PG dbname=postgres user={role} pool_size=4\n[pgbouncer]\nserver_login_retry = 600\n"
    ));
    let mut holder = gateway.client("shop");
    holder.ok("begin");
    let mut waiters = [gateway.client("shop"), gateway.client("shop"), gateway.client("shop")];
    pg.sql(&format!("alter role {role} nologin"));
    gateway.console().ok("RECONNECT");
    for waiter in &mut waiters {
        waiter.send(&Frames::new().query("select 1"));
    }
    for waiter in &mut waiters {
        let message = waiter.expect_fatal("28000").message;
        assert!(message.contains("is not permitted to log in"), "{message}");
    }
    gateway.wait_for_log(&format!("server login failed: FATAL role \"{role}\" is not permitted to log in"));
    holder.ok("commit");
}

/// A server without TLS answers N, and refuses the login in clear text: a second attempt would be the same.
#[test]
fn refused_login_is_not_repeated_without_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let connects = Arc::new(AtomicUsize::new(0));
    let count = connects.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            count.fetch_add(1, Ordering::SeqCst);
            let mut request = [0; 8];
            stream.read_exact(&mut request).expect("a request for TLS");
            stream.write_all(b"N").expect("the client reads");
            let _ = stream.read(&mut [0; 1024]);
            let fields = b"SFATAL\0VFATAL\0C28P01\0Mnot today\0\0";
            let length = u32::try_from(fields.len() + 4).expect("a short message").to_be_bytes();
            stream.write_all(&[&b"E"[..], &length, fields].concat()).expect("the client reads");
        }
    });
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = host=127.0.0.1 port={port}\n[pgbouncer]\nserver_login_retry = 600\n"
    ));
    assert_eq!(gateway.startup("shop").refused().message, "not today");
    assert_eq!(connects.load(Ordering::SeqCst), 1);
}
