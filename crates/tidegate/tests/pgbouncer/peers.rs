//! Several processes behind one address: a cancel request is forwarded to the process of its client.

use tidegate_testkit::{CancelKey, Frames, RawClient, eventually};

use crate::ini_gateway::{IniGateway, Setup, free_port, server};

/// Two processes that are peers of each other; a third peer id has the address of the first.
fn pair() -> [IniGateway; 2] {
    for _ in 0..5 {
        let ports = [free_port(), free_port()];
        if ports[0] == ports[1] {
            continue;
        }
        let [first, second] = ports;
        let start = |id: usize| {
            let ini = format!(
                "[databases]\nshop = $PG dbname=postgres pool_size=1\n[peers]\n1 = host=127.0.0.1 port={first}\n\
                 2 = host=127.0.0.1 port={second} pool_size=7\n3 = host=127.0.0.1 port={first}\n\
                 [pgbouncer]\npeer_id = {id}\n"
            );
            IniGateway::spawn(&Setup { ini: &ini, ..Setup::default() }, ports[id - 1])
        };
        let mut both = [start(1), start(2)];
        if both.iter_mut().all(|gateway| gateway.accepts()) {
            return both;
        }
    }
    panic!("no free ports found");
}

/// Sends a query that runs until it is cancelled, and waits until the server executes it.
fn sleep_forever(client: &mut RawClient, mark: &str) {
    client.send(&Frames::new().query(&format!("select pg_sleep(600) /* {mark} */")));
    let running = format!(
        "select count(*) from pg_stat_activity where query like 'select pg_sleep%{mark} */' and state = 'active'"
    );
    eventually("the query runs", || server().value(&running) == "1");
}

/// EDGE-36.
#[test]
fn cancel_request_is_forwarded_to_the_right_process() {
    let [own, other] = pair();
    for minor in [0, 2] {
        let mut client = own.startup("shop").protocol(3, minor).connect();
        assert_eq!(client.key.secret.len(), if minor == 0 { 4 } else { 32 });
        for receiver in [&other, &own] {
            sleep_forever(&mut client, &format!("peers {minor} {}", receiver.port()));
            receiver.startup("shop").cancel(&client.key.clone());
            assert_eq!(client.until_ready().code(), "57014", "3.{minor}");
        }
        // A waiting client has no server that the request could be sent to.
        let mut waiting = other.startup("shop").protocol(3, minor).connect();
        let mut holder = other.client("shop");
        holder.ok("begin");
        waiting.send(&Frames::new().query("select 1"));
        other.wait_for_pool("shop", "cl_waiting", 1);
        own.startup("shop").cancel(&waiting.key.clone());
        assert_eq!(waiting.until_ready().code(), "57014", "3.{minor}");
        client.ok("select 1");
    }
}

/// EDGE-36.
#[test]
fn cancel_request_with_an_unknown_key_is_ignored() {
    let [own, other] = pair();
    let mut client = own.client("shop");
    sleep_forever(&mut client, "unknown key");
    // A wrong secret, an unknown peer, and a peer whose address leads in a circle.
    let wrong = CancelKey { secret: client.key.secret.iter().map(|byte| byte ^ 0xf0).collect(), ..client.key.clone() };
    let key = |peer: u32| CancelKey { process: ((peer + 32) << 17) + 1, secret: vec![1, 2, 3, 3] };
    for key in [wrong, key(77), key(3), key(0)] {
        other.startup("shop").cancel(&key);
        own.startup("shop").cancel(&key);
    }
    other.startup("shop").cancel(&client.key.clone());
    assert_eq!(client.until_ready().code(), "57014", "the query was still running");
}

#[test]
fn show_peers_lists_the_peers() {
    let [own, other] = pair();
    let peers = own.console().ok("SHOW PEERS").rows;
    let expected = |id: &str, port: u16, size: &str| {
        vec![id.to_owned(), "127.0.0.1".to_owned(), port.to_string(), size.to_owned()]
    };
    assert_eq!(
        peers,
        [expected("1", own.port(), "20"), expected("2", other.port(), "7"), expected("3", own.port(), "20")]
    );
    let pools = own.console().ok("SHOW PEER_POOLS").rows;
    assert_eq!(pools[1], ["2", "0", "0", "0", "0"]);
    let lists = own.show("LISTS");
    assert!(lists.iter().any(|row| row["list"] == "peers" && row["items"] == "3"), "{lists:?}");
    assert_eq!(other.setting("peer_id"), "2");
}
