//! The primary moves.

use tidegate_sandbox::Shutdown;

use crate::load::{Load, Work};
use crate::stage::{
    connect, database, eventually, fresh, gateway, log_in, shown, value, wait_for, wait_until_settled, whereabouts,
};

#[test]
fn a_clean_switch_over_and_then_a_crash() {
    let mut cluster = fresh();
    let gateway = gateway(&[database(&cluster, "app", ""), database(&cluster, "ro", "route = \"replica\"")]);
    let startup = gateway.startup("app");
    log_in(&startup).ok("select 1");
    wait_until_settled(&gateway, &cluster, "app");

    // Clean: the primary lets nobody in any more and ends when all have left; what it wrote reaches the replicas.
    let load = Load::start(&startup, 6, Work::Write);
    let mut idle: Vec<_> = (0..10).map(|_| log_in(&startup)).collect();
    cluster.server(0).close(Shutdown::Smart);
    cluster.server_mut(0).wait_closed().expect("the gateway lets go of it");
    cluster.promote(1).expect("a replica can be promoted");
    load.goes_on();
    wait_for(&gateway, &cluster, "app", 1, "role", "primary");
    for client in &mut idle {
        assert_eq!(whereabouts(&cluster, client), 1);
    }
    let (rows, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(value(cluster.primary(), "select count(*) from t"), rows.to_string(), "confirmed rows, each once");
    for index in [0, 2] {
        cluster.follow(index).expect("it follows the new primary");
        cluster.catch_up(index).expect("it catches up");
        wait_for(&gateway, &cluster, "app", index, "role", "replica");
        wait_for(&gateway, &cluster, "app", index, "state", "up");
    }

    // A crash: whoever was between transactions waits, and goes on at the next primary.
    cluster.server_mut(1).kill9().expect("it can be killed");
    wait_for(&gateway, &cluster, "app", 1, "state", "down");
    let mut waits = log_in(&startup);
    let waiting =
        std::thread::spawn(move || waits.value("insert into t (v) values ('waited') returning inet_server_port()"));
    cluster.promote(2).expect("a replica can be promoted");
    let served = waiting.join().expect("the client goes on");
    assert_eq!(served, cluster.server(2).port().to_string());
    for client in &mut idle {
        client.ok("insert into t (v) values ('idle')");
        assert_eq!(whereabouts(&cluster, client), 2);
    }
}

#[test]
fn of_two_primaries_the_one_that_was_promoted_last_is_believed() {
    let mut cluster = fresh();
    let gateway = gateway(&[database(&cluster, "app", "")]);
    let mut here = connect(&gateway, "app");
    wait_until_settled(&gateway, &cluster, "app");
    assert_eq!(whereabouts(&cluster, &mut here), 0);
    // Nobody has stopped the old one.
    cluster.promote(1).expect("a replica can be promoted");
    wait_for(&gateway, &cluster, "app", 0, "state", "deposed");
    eventually("the new one takes the writes", || whereabouts(&cluster, &mut here) == 1);
    here.ok("insert into t (v) values ('new')");
    assert!(gateway.log().contains("two primaries"), "{}", gateway.log());
    let left = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() \
                and application_name <> 'tidegate probe'";
    eventually("connections to the old one are closed", || value(cluster.server(0), left) == "0");
    // It is not believed either when the new one is gone: what it took would be lost.
    cluster.server_mut(1).kill9().expect("it can be killed");
    wait_for(&gateway, &cluster, "app", 1, "state", "down");
    assert_eq!(shown(&gateway, &cluster, "app", 0, "state"), "deposed");
}
