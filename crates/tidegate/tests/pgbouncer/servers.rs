//! What servers are asked before they are used, in what order they are, and what sockets are like.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::MetadataExt as _,
};

use rustix::process::{getegid, geteuid};
use tidegate_testkit::{Frames, NameServer, eventually};

use crate::bouncer::{Bouncer, Setup, server};

#[test]
fn a_server_that_fails_its_check_is_replaced_before_a_query_is_lost_on_it() {
    server().sql("create table pgbouncer_checks as select 1 as n");
    let bouncer = Bouncer::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\nserver_check_delay = 0\n\
         server_check_query = select 1 / count(*) from pgbouncer_checks\n",
    );
    let mut client = bouncer.client("shop");
    let first = client.backend();
    assert_eq!(client.backend(), first, "it has passed");
    server().sql("delete from pgbouncer_checks");
    let second = client.backend();
    assert_ne!(second, first, "one that is fresh is not checked, or there would be no end");
    bouncer.wait_for_log("server_check failed");
    server().sql("drop table pgbouncer_checks");
    assert_eq!(bouncer.setting("pool.server_check_after"), "0");
    let usual = Bouncer::start("[databases]\nshop = $PG dbname=postgres\n");
    assert_eq!(
        (usual.setting("pool.server_check").as_str(), usual.setting("server_check_delay").as_str()),
        (";", "30")
    );
    let none = Bouncer::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nserver_check_query =\n");
    assert_eq!(none.setting("pool.server_check"), "");
}

#[test]
fn a_client_is_heard_while_its_server_is_checked() {
    let bouncer = Bouncer::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\nserver_check_delay = 0\n\
         server_check_query = select pg_advisory_xact_lock(719)\n",
    );
    let mut client = bouncer.client("shop");
    client.ok("select 1");
    let mut holder = server().client();
    let checks = "select count(*) from pg_stat_activity where wait_event = 'advisory' and query like '%lock(719)%'";
    for leaves in [false, true] {
        holder.ok("select pg_advisory_lock(719)");
        client.send(&Frames::new().query("select 2"));
        eventually("the check is under way", || server().value(checks) == "1");
        let waiting = || bouncer.show("CLIENTS").iter().filter(|row| row["state"] == "waiting").count();
        assert_eq!(waiting(), 1);
        if leaves {
            drop(client);
            client = bouncer.client("shop");
        } else {
            client.cancel();
            let outcome = client.until_ready();
            assert_eq!((outcome.code().as_str(), outcome.rows.len()), ("57014", 0));
        }
        eventually("nobody waits", || waiting() == 0);
        holder.ok("select pg_advisory_unlock(719)");
        assert_eq!(client.value("select 3"), "3", "what it asks next is not cancelled");
    }
}

#[test]
fn an_empty_check_passes() {
    let bouncer =
        Bouncer::start("[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\nserver_check_delay = 0\n");
    let mut client = bouncer.client("shop");
    let first = client.backend();
    client.ok("create temporary table checked (n int); drop table checked");
    client.ok("begin");
    client.ok("commit");
    assert_eq!(client.backend(), first);
    assert!(!bouncer.log().contains("server_check failed"), "{}", bouncer.log());
}

#[test]
fn servers_are_used_in_turn_with_round_robin() {
    let used = |round_robin: u8| {
        let ini = format!(
            "[databases]\nshop = $PG dbname=postgres pool_size=3\n[pgbouncer]\nserver_round_robin = {round_robin}\n"
        );
        // The order is that of each thread.
        let bouncer = Bouncer::with(&Setup { ini: &ini, options: &["--workers", "1"], ..Setup::default() });
        let mut clients = [bouncer.client("shop"), bouncer.client("shop"), bouncer.client("shop")];
        clients.iter_mut().for_each(|client| drop(client.ok("begin")));
        clients.iter_mut().for_each(|client| drop(client.ok("commit")));
        let [client, ..] = &mut clients;
        (0..6).map(|_| client.backend()).collect::<Vec<_>>()
    };
    let turns = used(1);
    assert_eq!(turns[..3].iter().collect::<BTreeSet<_>>().len(), 3, "{turns:?}");
    assert_eq!(turns[..3], turns[3..]);
    let one = used(0);
    assert_eq!(one.iter().collect::<BTreeSet<_>>().len(), 1, "{one:?}");
}

/// Of the statements that clients name, a server keeps so many; the rest is prepared again when it is used.
#[test]
fn a_server_keeps_as_many_prepared_statements_as_the_file_says() {
    let bouncer = Bouncer::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\npool_mode = transaction\n\
         max_prepared_statements = 3\n",
    );
    let mut client = bouncer.client("shop");
    for number in 0..10 {
        let name = format!("s{number}");
        client.send(&Frames::new().parse(&name, &format!("select {number}")).sync());
        client.until_ready();
    }
    for number in [0, 9, 4] {
        client.send(&Frames::new().bind(&format!("s{number}"), &[]).execute().sync());
        assert_eq!(client.until_ready().value(), number.to_string());
    }
    let servers = bouncer.show("SERVERS");
    assert_eq!(servers[0]["prepared_statements"], "3", "{servers:?}");
    let kept: u32 = client.value("select count(*) from pg_prepared_statements").parse().expect("a number");
    assert!((1..=3).contains(&kept), "{kept}");
}

/// A name that Postgres cuts, as with the host behind it: whoever gives it is told when it does so itself, not by each server.
#[test]
fn what_a_server_remarks_on_settings_of_before_is_not_for_the_client() {
    let bouncer =
        Bouncer::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\napplication_name_add_host = 1\n");
    let mut client = bouncer.startup("shop").parameter("application_name", &"x".repeat(60)).connect();
    client.send(&Frames::new().query("select 1"));
    client.expect("S* T D:1 C:SELECT_1 Z:I");
    client.send(&Frames::new().query(&format!("set application_name = '{}'", "y".repeat(70))));
    client.expect("N C:SET S* Z:I");
}

#[test]
fn small_buffers_of_the_kernel_are_enough() {
    let bouncer = Bouncer::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\ntcp_socket_buffer = 65536\n");
    assert_eq!(bouncer.setting("tcp.socket_buffer"), "65536");
    let mut client = bouncer.client("shop");
    assert_eq!(client.value("select repeat('x', 3000000)").len(), 3_000_000);
    let long = format!("select length('{}')", "y".repeat(1_000_000));
    assert_eq!(client.value(&long), "1000000");
}

#[test]
fn the_file_of_the_unix_socket_has_the_group_that_is_named() {
    // Only root may give a file to a group that it is not in.
    let group = if geteuid().is_root() { 1 } else { getegid().as_raw() };
    let bouncer = Bouncer::start(&format!(
        "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nunix_socket_group = {group}\nunix_socket_mode = 0770\n"
    ));
    bouncer.unix("postgres", "shop").connect().ok("select 1");
    let found = std::fs::metadata(bouncer.file(&format!(".s.PGSQL.{}", bouncer.port()))).expect("the file is there");
    assert_eq!((found.gid(), found.mode() & 0o777), (group, 0o770));
}

#[test]
fn names_are_kept_for_a_while() {
    let port = server().port();
    let bouncer = Bouncer::start(&format!(
        "[databases]\nshop = host=localhost port={port} dbname=postgres\ngone = host=nowhere.invalid\n[pgbouncer]\n\
         dns_max_ttl = 500\ndns_zone_check_period = 100\nquery_wait_timeout = 0.5\n"
    ));
    assert!(bouncer.show("DNS_HOSTS").is_empty());
    bouncer.client("shop").ok("select 1");
    let refused = bouncer.startup("gone").refused();
    assert_eq!(refused.message, "query_wait_timeout");
    bouncer.wait_for_log("closing because: server DNS lookup failed (age=0s)");
    let names = bouncer.show("DNS_HOSTS");
    let names: Vec<_> = names.iter().map(|row| (row["hostname"].as_str(), row["addrs"].as_str())).collect();
    assert!(names.len() == 2 && names[0].0 == "localhost" && names[0].1.contains("127.0.0.1"), "{names:?}");
    assert_eq!(names[1], ("nowhere.invalid", ""));
    let lists = bouncer.show("LISTS");
    assert!(lists.iter().any(|row| row["list"] == "dns_names" && row["items"] == "2"), "{lists:?}");
    assert_eq!(
        (bouncer.setting("dns_max_ttl").as_str(), bouncer.setting("dns.check_period").as_str()),
        ("500", "100s")
    );
}

#[test]
fn names_are_asked_of_the_servers_of_the_file_that_is_named() {
    // Such a file names no port, and the usual one is for those alone who have the privilege.
    let [a, b] = (std::process::id() as u16).to_be_bytes();
    let address = SocketAddr::from((Ipv4Addr::new(127, 77, a, b), 53));
    let Ok(names) = NameServer::start_at(address) else { return };
    names.addresses("db.test", &[Ipv4Addr::LOCALHOST]);
    let file = std::env::temp_dir().join(format!("tidegate-resolv-{}.conf", std::process::id()));
    std::fs::write(&file, format!("nameserver {}\n", address.ip())).expect("a file");
    let bouncer = Bouncer::start(&format!(
        "[databases]\nshop = host=db.test port={} dbname=postgres\n[pgbouncer]\nresolv_conf = {}\n",
        server().port(),
        file.display()
    ));
    bouncer.client("shop").ok("select 1");
    assert!(names.asked() > 0);
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn with_fast_close_a_session_ends_with_its_server() {
    let ini = "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\npool_mode = session\nserver_fast_close = 1\n";
    let bouncer = Bouncer::start(ini);
    let (mut idle, mut busy) = (bouncer.client("shop"), bouncer.client("shop"));
    idle.ok("select 1");
    busy.ok("begin");
    bouncer.console().ok("RECONNECT shop");
    assert_eq!(idle.expect_fatal("08P01").message, "database configuration changed");
    busy.ok("select 1");
    // The answer comes first.
    assert!(busy.try_query("commit").is_ok());
    assert_eq!(busy.expect_fatal("08P01").message, "database configuration changed");
    bouncer.client("shop").ok("select 1");
    let patient = Bouncer::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\npool_mode = session\n");
    let mut client = patient.client("shop");
    let backend = client.backend();
    patient.console().ok("RECONNECT shop");
    assert_eq!(client.backend(), backend, "a session keeps its server to its end");
}

#[test]
fn a_database_of_the_star_is_forgotten_when_nobody_uses_it() {
    let bouncer = Bouncer::start(
        "[databases]\nshop = $PG dbname=postgres\n* = $PG\n[pgbouncer]\nmin_pool_size = 2\nautodb_idle_timeout = 0.1\n",
    );
    let names = || bouncer.show("POOLS").into_iter().map(|row| row["database"].clone()).collect::<BTreeSet<_>>();
    let mut stays = bouncer.client("shop");
    stays.ok("select 1");
    for _ in 0..2 {
        let mut client = bouncer.client("postgres");
        client.ok("select 1");
        eventually("it has what it keeps", || bouncer.pool_count("postgres", "sv_idle") == 2);
        assert!(names().contains("postgres"), "it has a client still");
        client.ok("select 1");
        drop(client);
        eventually("it is forgotten", || !names().contains("postgres"));
    }
    assert!(names().contains("shop"), "that has a name of its own");
    stays.ok("select 1");
}
