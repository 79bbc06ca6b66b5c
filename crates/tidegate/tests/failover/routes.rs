//! Routing of transactions to the primary and to replicas.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tidegate_testkit::{Frames, RawClient, free_address};

use crate::cluster::{
    connect, current_server, database, gateway, hosts, log_in, servers_of, shared_cluster, wait_until_all_up,
};

fn set(members: &[usize]) -> BTreeSet<usize> {
    members.iter().copied().collect()
}

#[test]
fn every_alias_has_its_route() {
    let (cluster, _) = shared_cluster();
    let aliases = [
        ("app", "", set(&[0])),
        ("app_ro", "route = \"replica\"", set(&[1, 2])),
        ("app_prefer", "route = \"prefer-replica\"", set(&[1, 2])),
        ("app_any", "route = \"any\"", set(&[0, 1, 2])),
        ("app_first", "route = \"any\"\npolicy = \"pick_first\"", set(&[0])),
        ("app_libpq", "target_session_attrs = \"read-only\"", set(&[1, 2])),
    ];
    let sections = aliases.each_ref().map(|(name, keys, _)| database(cluster, name, keys));
    let gateway = gateway(&sections);
    for (name, _, expected) in &aliases {
        // The first server may be up before the others.
        connect(&gateway, name).ok("select 1");
        wait_until_all_up(&gateway, cluster, name);
        assert_eq!(servers_of(cluster, &mut connect(&gateway, name), 9), *expected, "{name}");
    }
    connect(&gateway, "app").ok("insert into t (v) values ('by alias')");
    assert_eq!(connect(&gateway, "app_ro").query("insert into t (v) values ('x')").code(), "25006");
}

/// Each server has a pool of its own: the alerts about full pools compare with the sum.
#[test]
fn pool_size_covers_all_servers_in_use() {
    let (cluster, _) = shared_cluster();
    let http = free_address(15_000..16_000);
    let metrics = format!("[metrics]\naddresses = [\"{http}\"]\n");
    let gateway = gateway(&[database(cluster, "any", "route = \"any\"\nsize = 4"), metrics]);
    let mut client = connect(&gateway, "any");
    wait_until_all_up(&gateway, cluster, "any");
    assert_eq!(servers_of(cluster, &mut client, 9).len(), 3);
    let mut socket = TcpStream::connect(http).expect("the endpoint accepts");
    write!(socket, "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").expect("the request is sent");
    let mut page = String::new();
    socket.read_to_string(&mut page).expect("the endpoint answers");
    for line in [
        "tidegate_pool_size{database=\"any\",user=\"postgres\"} 12",
        "tidegate_database_route{database=\"any\",route=\"any\"} 1",
    ] {
        assert!(page.lines().any(|known| known == line), "no {line}:\n{page}");
    }
}

#[test]
fn transaction_stays_on_its_server() {
    let (cluster, _) = shared_cluster();
    let gateway = gateway(&[database(cluster, "any", "route = \"any\"")]);
    let mut client = connect(&gateway, "any");
    wait_until_all_up(&gateway, cluster, "any");
    for _ in 0..6 {
        client.ok("begin");
        let servers = servers_of(cluster, &mut client, 4);
        assert_eq!(servers.len(), 1, "{servers:?}");
        client.ok("commit");
    }
}

#[test]
fn user_has_its_route() {
    let (cluster, _) = shared_cluster();
    let gateway = gateway(&[database(cluster, "app", ""), "[users.report]\nroute = \"replica\"\n".to_owned()]);
    let mut report = log_in(&gateway.startup("app").user("report"));
    wait_until_all_up(&gateway, cluster, "app");
    assert_eq!(servers_of(cluster, &mut report, 6), set(&[1, 2]));
    assert_eq!(servers_of(cluster, &mut connect(&gateway, "app"), 3), set(&[0]));
}

#[test]
fn client_selects_its_route_at_login() {
    let (cluster, _) = shared_cluster();
    let gateway = gateway(&[database(cluster, "app", "")]);
    connect(&gateway, "app").ok("select 1");
    wait_until_all_up(&gateway, cluster, "app");
    let startup = gateway.startup("app");
    for startup in [
        startup.clone().parameter("target_session_attrs", "standby"),
        startup.clone().parameter("tidegate.target_session_attrs", "prefer-standby"),
        startup.clone().parameter("options", "-c target_session_attrs=read-only"),
    ] {
        assert_eq!(servers_of(cluster, &mut log_in(&startup), 6), set(&[1, 2]));
    }
    assert_eq!(startup.clone().parameter("target_session_attrs", "secondary").refused().code, "22023");
    // Drivers that select a replica among several addresses use this parameter.
    let replica = log_in(&startup.clone().parameter("target_session_attrs", "standby"));
    assert_eq!(replica.parameters["in_hot_standby"], "on");
    assert_eq!(log_in(&startup).parameters["in_hot_standby"], "off");
}

#[test]
fn read_only_transaction_goes_to_a_replica() {
    let (cluster, _) = shared_cluster();
    let sections = [database(cluster, "app", "read_only_to_replica = true"), database(cluster, "strict", "")];
    let gateway = gateway(&sections);
    let reading = |client: &mut RawClient, begin: &str| {
        client.ok(begin);
        let server = current_server(cluster, client);
        client.ok("commit");
        server
    };
    let mut client = connect(&gateway, "app");
    wait_until_all_up(&gateway, cluster, "app");
    assert_ne!(reading(&mut client, "begin read only"), 0);
    assert_ne!(reading(&mut client, "start transaction isolation level repeatable read, read only"), 0);
    assert_eq!(reading(&mut client, "begin"), 0);
    assert_eq!(current_server(cluster, &mut client), 0);
    let mut extended = |frames: Frames| {
        client.send(&frames);
        client.until_ready();
        let server = current_server(cluster, &mut client);
        client.ok("commit");
        server
    };
    assert_ne!(extended(Frames::new().parse("b", "begin read only").run("b").sync()), 0);
    assert_ne!(extended(Frames::new().run("b").sync()), 0, "a named prepared statement");
    assert_eq!(reading(&mut connect(&gateway, "strict"), "begin read only"), 0);
}

#[test]
fn serializable_transaction_goes_to_the_primary() {
    let (cluster, _) = shared_cluster();
    let keys = "read_only_to_replica = true";
    let session_keys = format!("{keys}\nmode = \"session\"");
    let gateway = gateway(&[database(cluster, "app", keys), database(cluster, "session", &session_keys)]);
    let mut client = connect(&gateway, "app");
    wait_until_all_up(&gateway, cluster, "app");
    let reads = |client: &mut RawClient, begin: &str| {
        client.ok(begin);
        client.ok("select count(*) from t");
        client.ok("commit");
    };
    reads(&mut client, "begin isolation level serializable read only");
    let mut serializable =
        log_in(&gateway.startup("app").parameter("options", "-c default_transaction_isolation=serializable"));
    reads(&mut serializable, "begin read only");
    client.ok("set default_transaction_isolation = 'serializable'");
    reads(&mut client, "begin read only");
    // Session mode would pin the replica for later writes.
    let mut session = connect(&gateway, "session");
    wait_until_all_up(&gateway, cluster, "session");
    reads(&mut session, "begin read only");
    session.ok("insert into t (v) values ('after reading')");
}

#[test]
fn zero_failover_wait_still_waits_for_discovery() {
    let (cluster, _) = shared_cluster();
    for _ in 0..5 {
        let section = database(cluster, "app", "");
        let gateway = gateway(&[section.replace("failover_wait = \"120s\"", "failover_wait = 0")]);
        connect(&gateway, "app").ok("select 1");
    }
}

#[test]
fn session_state_follows_a_client_across_servers() {
    let (cluster, _) = shared_cluster();
    let gateway = gateway(&[database(cluster, "any", "route = \"any\"")]);
    let mut client = connect(&gateway, "any");
    wait_until_all_up(&gateway, cluster, "any");
    client.ok("set statement_timeout = '77s'");
    client.send(
        &Frames::new().parse("s", "select inet_server_port()::text || current_setting('statement_timeout')").sync(),
    );
    client.expect("1 Z:I");
    let mut rows = BTreeSet::new();
    for _ in 0..9 {
        client.send(&Frames::new().run("s").sync());
        let row = client.expect("2 D C:SELECT_1 Z:I")[1].texts().remove(0);
        assert!(row.ends_with("77s") || row.ends_with("1min 17s"), "{row}");
        rows.insert(row);
    }
    assert_eq!(rows.len(), 3, "{rows:?}");
}

#[test]
fn weights_and_zones_select_among_eligible_servers() {
    let (cluster, _) = shared_cluster();
    let [a, b, c] = [0, 1, 2].map(|index| cluster.server(index).port());
    let list = format!(
        "hosts = [{{ host = \"127.0.0.1\", port = {a} }}, {{ host = \"127.0.0.1:{b}\", weight = 3, zone = \"x\" }}, \
         {{ host = \"127.0.0.1:{c}\", zone = \"y\" }}]"
    );
    let section = |name: &str, keys: &str| {
        let plain = format!("hosts = {:?}", hosts(cluster, &[0, 1, 2]));
        database(cluster, name, &format!("route = \"replica\"\n{keys}")).replace(&plain, &list)
    };
    let gateway = gateway(&[section("heavy", ""), section("near", "zone = \"y\"")]);
    let mut heavy = connect(&gateway, "heavy");
    wait_until_all_up(&gateway, cluster, "heavy");
    let mut counts = [0; 3];
    (0..12).for_each(|_| counts[current_server(cluster, &mut heavy)] += 1);
    assert_eq!(counts, [0, 9, 3]);
    let mut near = connect(&gateway, "near");
    wait_until_all_up(&gateway, cluster, "near");
    assert_eq!(servers_of(cluster, &mut near, 6), set(&[2]));
}

#[test]
fn servers_are_reached_by_tls_and_unix_sockets() {
    let (cluster, authority) = shared_cluster();
    let ca = authority.ca();
    let tls = format!("route = \"any\"\nsslrootcert = {:?}", ca.display().to_string());
    let tls = database(cluster, "tls", &tls).replace("sslmode = \"disable\"", "sslmode = \"verify-full\"");
    let sockets: Vec<String> = cluster
        .servers()
        .map(|server| format!("{{ host = {:?}, port = {} }}", server.socket_dir().display().to_string(), server.port()))
        .collect();
    let plain = format!("hosts = {:?}", hosts(cluster, &[0, 1, 2]));
    let unix =
        database(cluster, "unix", "route = \"any\"").replace(&plain, &format!("hosts = [{}]", sockets.join(", ")));
    let gateway = gateway(&[tls, unix]);
    for (name, sql) in [
        ("tls", "select ssl::text from pg_stat_ssl where pid = pg_backend_pid()"),
        ("unix", "select (inet_server_addr() is null)::text"),
    ] {
        let mut client = connect(&gateway, name);
        wait_until_all_up(&gateway, cluster, name);
        for _ in 0..6 {
            assert_eq!(client.value(sql), "true", "{name}");
        }
        let ports: BTreeSet<String> = (0..6).map(|_| client.value("show port")).collect();
        assert_eq!(ports.len(), 3, "{name}: {ports:?}");
    }
}

#[test]
fn host_name_resolves_to_its_addresses() {
    let (cluster, _) = shared_cluster();
    let port = cluster.server(0).port();
    let plain = format!("hosts = {:?}", hosts(cluster, &[0, 1, 2]));
    let section =
        database(cluster, "named", "").replace(&plain, &format!("hosts = [\"localhost:{port}\"]\nroute = \"primary\""));
    let gateway = gateway(&[section]);
    // The name may also resolve to ::1, where no server listens.
    connect(&gateway, "named").ok("insert into t (v) values ('by name')");
    let rows = gateway.show("HOSTS");
    assert!(rows.iter().any(|row| row["host"] == "127.0.0.1" && row["role"] == "primary"), "{rows:?}");
}

#[test]
fn replication_client_follows_its_route() {
    let (cluster, _) = shared_cluster();
    let gateway = gateway(&[database(cluster, "app", "")]);
    connect(&gateway, "app").ok("select 1");
    let mut client = log_in(&gateway.startup("app").parameter("replication", "database"));
    assert_eq!(current_server(cluster, &mut client), 0);
}
