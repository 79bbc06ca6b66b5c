//! SHOW HOSTS, and databases with several servers in the other tables.

use tidegate_testkit::Signal;
use toml::Value;

use crate::cluster::{
    connect, database, eventually, gateway, host_column, hosts, servers_of, shared_cluster, wait_for, wait_until_all_up,
};

#[test]
fn show_hosts_lists_the_state_of_each_server() {
    let (cluster, _) = shared_cluster();
    let single = format!(
        "[databases.single]\nhost = \"127.0.0.1\"\nport = {}\ndbname = \"postgres\"\n",
        cluster.server(0).port()
    );
    let gateway = gateway(&[database(cluster, "app", "route = \"any\""), database(cluster, "unused", ""), single]);
    let mut client = connect(&gateway, "app");
    wait_until_all_up(&gateway, cluster, "app");
    for index in 0..3 {
        assert_eq!(host_column(&gateway, cluster, "unused", index, "state"), "new", "no client has connected");
    }
    servers_of(cluster, &mut client, 6);
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
        assert_eq!(host_column(&gateway, cluster, "app", index, "in_flight"), "0");
        assert_eq!(host_column(&gateway, cluster, "app", index, "ejections"), "0");
    }
    client.ok("begin");
    let total = || -> u32 {
        (0..3)
            .map(|index| host_column(&gateway, cluster, "app", index, "in_flight").parse::<u32>().expect("a number"))
            .sum()
    };
    assert_eq!(total(), 1);
    client.ok("commit");
    eventually("nothing is in flight", || total() == 0);
    for index in [1, 2] {
        wait_for(&gateway, cluster, "app", index, "lag_bytes", "0");
    }
    let rows = gateway.show("HOSTS");
    let single: Vec<_> = rows.iter().filter(|row| row["database"] == "single").collect();
    assert_eq!((single.len(), single[0]["state"].as_str()), (1, "unwatched"));
}

#[test]
fn show_pools_has_one_row_for_all_servers() {
    let (cluster, _) = shared_cluster();
    let gateway = gateway(&[database(cluster, "app", "route = \"any\"")]);
    let mut client = connect(&gateway, "app");
    wait_until_all_up(&gateway, cluster, "app");
    servers_of(cluster, &mut client, 6);
    let mut pools = gateway.show("POOLS");
    pools.retain(|row| row["database"] == "app");
    assert_eq!(pools.len(), 1, "{pools:?}");
    assert_eq!(pools[0]["load_balance_hosts"], "round-robin");
    gateway.wait_for_pool("app", "sv_idle", 3);
    let mut console = gateway.console();
    console.ok("PAUSE app");
    gateway.wait_for_pool("app", "sv_idle", 0);
    console.ok("RESUME app");
    client.ok("select 1");
}

#[test]
fn reload_adds_and_removes_servers() {
    let (cluster, _) = shared_cluster();
    let mut gateway = gateway(&[database(cluster, "app", "route = \"replica\"")]);
    let mut client = connect(&gateway, "app");
    wait_until_all_up(&gateway, cluster, "app");
    for servers in [&[0, 1][..], &[0, 1, 2], &[0, 2]] {
        gateway.set_config("databases.app.hosts", Value::from(hosts(cluster, servers)));
        gateway.signal(Signal::HUP);
        let replicas = || servers.iter().copied().filter(|index| *index > 0);
        eventually("the new list is used", || servers_of(cluster, &mut client, 4).into_iter().eq(replicas()));
        for index in 0..3 {
            assert_eq!(host_column(&gateway, cluster, "app", index, "state") == "gone", !servers.contains(&index));
        }
    }
}

#[test]
fn reload_changes_between_one_and_several_servers() {
    let (cluster, _) = shared_cluster();
    let mut gateway = gateway(&[database(cluster, "app", "")]);
    let mut client = connect(&gateway, "app");
    wait_until_all_up(&gateway, cluster, "app");
    client.ok("select 1");
    gateway.set_config("databases.app.hosts", Value::from(hosts(cluster, &[2])));
    gateway.signal(Signal::HUP);
    eventually("the only server is used, whatever its role", || {
        servers_of(cluster, &mut client, 3).into_iter().eq([2])
    });
    assert_eq!(host_column(&gateway, cluster, "app", 2, "state"), "unwatched");
    gateway.set_config("databases.app.hosts", Value::from(hosts(cluster, &[0, 1, 2])));
    gateway.signal(Signal::HUP);
    eventually("the primary is used", || servers_of(cluster, &mut client, 3).into_iter().eq([0]));
    wait_until_all_up(&gateway, cluster, "app");
}
