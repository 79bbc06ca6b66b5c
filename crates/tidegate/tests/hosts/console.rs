//! SHOW HOSTS, and what the other tables make of several servers.

use tidegate_testkit::Signal;
use toml::Value;

use crate::stage::{
    connect, database, eventually, gateway, hosts, servers_of, shown, steady, wait_for, wait_until_settled,
};

#[test]
fn show_hosts_tells_what_each_server_is() {
    let (cluster, _) = steady();
    let single = format!(
        "[databases.single]\nhost = \"127.0.0.1\"\nport = {}\ndbname = \"postgres\"\n",
        cluster.server(0).port()
    );
    let gateway = gateway(&[database(cluster, "app", "route = \"any\""), database(cluster, "quiet", ""), single]);
    let mut here = connect(&gateway, "app");
    wait_until_settled(&gateway, cluster, "app");
    for index in 0..3 {
        assert_eq!(shown(&gateway, cluster, "quiet", index, "state"), "new", "nobody has come yet");
    }
    servers_of(cluster, &mut here, 6);
    let columns: Vec<String> = gateway.show("HOSTS")[0].keys().cloned().collect();
    let mut expected = [
        "database",
        "host",
        "port",
        "role",
        "state",
        "lag_bytes",
        "lag_ms",
        "in_flight",
        "servers",
        "ejections",
        "last_error",
    ];
    expected.sort_unstable();
    assert_eq!(columns, expected);
    for index in 0..3 {
        wait_for(&gateway, cluster, "app", index, "servers", "1");
        assert_eq!(shown(&gateway, cluster, "app", index, "in_flight"), "0");
        assert_eq!(shown(&gateway, cluster, "app", index, "ejections"), "0");
    }
    here.ok("begin");
    let total = || -> u32 {
        (0..3).map(|index| shown(&gateway, cluster, "app", index, "in_flight").parse::<u32>().expect("a number")).sum()
    };
    assert_eq!(total(), 1);
    here.ok("commit");
    eventually("nothing is in flight", || total() == 0);
    for index in [1, 2] {
        wait_for(&gateway, cluster, "app", index, "lag_bytes", "0");
    }
    let rows = gateway.show("HOSTS");
    let single: Vec<_> = rows.iter().filter(|row| row["database"] == "single").collect();
    assert_eq!((single.len(), single[0]["state"].as_str()), (1, "unwatched"));
}

#[test]
fn pools_of_servers_are_one_row_of_show_pools() {
    let (cluster, _) = steady();
    let gateway = gateway(&[database(cluster, "app", "route = \"any\"")]);
    let mut here = connect(&gateway, "app");
    wait_until_settled(&gateway, cluster, "app");
    servers_of(cluster, &mut here, 6);
    let mut pools = gateway.show("POOLS");
    pools.retain(|row| row["database"] == "app");
    assert_eq!(pools.len(), 1, "{pools:?}");
    assert_eq!(pools[0]["load_balance_hosts"], "round-robin");
    gateway.wait_for_pool("app", "sv_idle", 3);
    let mut console = gateway.console();
    console.ok("PAUSE app");
    gateway.wait_for_pool("app", "sv_idle", 0);
    console.ok("RESUME app");
    here.ok("select 1");
}

#[test]
fn a_reload_adds_and_removes_servers() {
    let (cluster, _) = steady();
    let mut gateway = gateway(&[database(cluster, "app", "route = \"replica\"")]);
    let mut here = connect(&gateway, "app");
    wait_until_settled(&gateway, cluster, "app");
    for which in [&[0, 1][..], &[0, 1, 2], &[0, 2]] {
        gateway.rewrite("databases.app.hosts", Value::from(hosts(cluster, which)));
        gateway.signal(Signal::HUP);
        let replicas = || which.iter().copied().filter(|index| *index > 0);
        eventually("the new list is in force", || servers_of(cluster, &mut here, 4).into_iter().eq(replicas()));
        for index in 0..3 {
            assert_eq!(shown(&gateway, cluster, "app", index, "state") == "gone", !which.contains(&index));
        }
    }
}

#[test]
fn a_reload_makes_one_server_of_several_and_back() {
    let (cluster, _) = steady();
    let mut gateway = gateway(&[database(cluster, "app", "")]);
    let mut here = connect(&gateway, "app");
    wait_until_settled(&gateway, cluster, "app");
    here.ok("select 1");
    gateway.rewrite("databases.app.hosts", Value::from(hosts(cluster, &[2])));
    gateway.signal(Signal::HUP);
    eventually("the one server serves, whatever it is", || servers_of(cluster, &mut here, 3).into_iter().eq([2]));
    assert_eq!(shown(&gateway, cluster, "app", 2, "state"), "unwatched");
    gateway.rewrite("databases.app.hosts", Value::from(hosts(cluster, &[0, 1, 2])));
    gateway.signal(Signal::HUP);
    eventually("the primary serves", || servers_of(cluster, &mut here, 3).into_iter().eq([0]));
    wait_until_settled(&gateway, cluster, "app");
}
