//! Limits on clients and servers: pool size, wait queue, reserve, minimum size and connects in flight.

use std::thread;

use tidegate_testkit::{FaultyServer, Frames, Gateway, eventually, gateway_for, on_each_postgres, reply};

on_each_postgres! {
    /// EDGE-63.
    fn disconnected_client_leaves_the_wait_queue(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        owner.ok("begin");
        for reset in [false, true] {
            let mut waiting = gateway.client("postgres");
            waiting.send(&Frames::new().query(&format!("insert into {table} values (1)")));
            gateway.wait_for_pool("postgres", "cl_waiting", 1);
            waiting.disconnect(reset);
            gateway.wait_for_pool("postgres", "cl_waiting", 0);
        }
        owner.ok("commit");
        assert_eq!(owner.value(&format!("select count(*) from {table}")), "0");
    }

    /// EDGE-63.
    fn disconnect_with_more_data_leaves_the_wait_queue(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for (hold, release) in [("begin", "commit"), ("PAUSE", "RESUME")] {
            let mut holder = if hold == "PAUSE" { gateway.console() } else { gateway.client("postgres") };
            holder.ok(hold);
            for (reset, more) in [(false, "select 1"), (true, "select 1"), (false, &" ".repeat(100_000))] {
                let mut waiting = gateway.client("postgres");
                waiting.send(&Frames::new().query("select 1"));
                gateway.wait_for_pool("postgres", "cl_waiting", 1);
                waiting.send(&Frames::new().query(more));
                waiting.disconnect(reset);
                gateway.wait_for_pool("postgres", "cl_waiting", 0);
            }
            holder.ok(release);
        }
        gateway.client("postgres").ok("select 1");
    }

    /// EDGE-63.
    fn wait_queue_is_first_in_first_out(fixture) {
        let table = fixture.create_table("n serial, client int");
        let gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        owner.ok("begin");
        let mut waiting: Vec<_> = (0..8).map(|_| gateway.client("postgres")).collect();
        for (number, client) in waiting.iter_mut().enumerate() {
            client.send(&Frames::new().query(&format!("insert into {table} (client) values ({number})")));
            gateway.wait_for_pool("postgres", "cl_waiting", number as u64 + 1);
        }
        owner.ok("commit");
        waiting.iter_mut().for_each(|client| drop(client.until_ready()));
        let order = owner.value(&format!("select string_agg(client::text, ' ' order by n) from {table}"));
        let places: Vec<i32> = order.split(' ').filter_map(|place| place.parse().ok()).collect();
        // The order across cores holds within 2 ms, in which a few clients may have queued.
        for (place, client) in places.iter().enumerate() {
            assert!((place as i32 - client).abs() <= 4, "served in the order {order}");
        }
    }

    /// EDGE-63.
    fn checkout_timeout_returns_an_error(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        owner.ok("begin");
        // Set by a reload, because the first connect may take longer than that on a busy machine.
        gateway.set_config("timeouts.checkout", "200ms");
        gateway.console().ok("RELOAD");
        waiting.send(&Frames::new().query("select 1"));
        waiting.expect_fatal("53300");
        gateway.set_config("timeouts.checkout", "60s");
        gateway.console().ok("RELOAD");
        assert_eq!(owner.value("select 'undisturbed'"), "undisturbed");
        owner.ok("commit");
        gateway.client("postgres").ok("select 1");
    }

    /// EDGE-63.
    fn clients_above_max_clients_are_rejected(fixture) {
        let section = fixture.database_section("postgres", "postgres");
        let gateway = fixture.start(&format!("[listen]\nmax_clients = 3\n[auth]\nmethod = \"trust\"\n{section}"));
        // The probe connections of the start may still be open.
        let mut clients = Vec::new();
        eventually("three clients are connected", || {
            clients.extend(gateway.startup("postgres").try_connect().ok());
            clients.len() == 3
        });
        let refused = gateway.startup("postgres").refused();
        assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("53300", "FATAL"));
        clients[0].ok("select 1");
        clients.pop();
        eventually("a new client is accepted", || gateway.startup("postgres").try_connect().is_ok());
    }

    /// EDGE-63.
    fn pool_never_exceeds_its_size(fixture) {
        let role = fixture.create_role("x", "");
        let gateway = fixture.gateway(&format!("user = \"{role}\"\nsize = 3\n"));
        let clients: Vec<_> = (0..12).map(|_| {
            let startup = gateway.startup("postgres");
            thread::spawn(move || {
                let mut client = startup.connect();
                (0..20).map(|_| client.value("select count(*) from pg_stat_activity where usename = current_user")).max()
            })
        }).collect();
        for client in clients {
            let seen = client.join().expect("the client is served").unwrap_or_default();
            assert!(["1", "2", "3"].contains(&seen.as_str()), "{seen} servers");
        }
    }

    /// EDGE-63.
    fn reserve_serves_a_waiting_client(fixture) {
        let gateway = fixture.gateway("size = 1\nreserve_size = 1\nreserve_after = \"100ms\"\n");
        let mut owner = gateway.client("postgres");
        owner.ok("begin");
        assert_eq!(gateway.client("postgres").value("select 'reserve'"), "reserve");
    }

    /// EDGE-66.
    fn minimum_size_is_kept_idle(fixture) {
        let gateway = fixture.gateway("size = 4\nmin_size = 2\n");
        gateway.client("postgres").ok("select 1");
        gateway.wait_for_pool("postgres", "sv_idle", 2);
    }
}

/// EDGE-66: A minimum above the size would make the pool connect and evict for ever. The configuration is
/// rejected.
#[test]
fn minimum_above_the_size_is_rejected() {
    let folder = std::env::temp_dir().join(format!("tidegate-edge-66-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("tidegate.toml");
    std::fs::write(&file, "[databases.postgres]\nhost = \"127.0.0.1\"\nsize = 2\nmin_size = 5\n").expect("a file");
    let binary = Gateway::binary(env!("CARGO_BIN_EXE_tidegate"));
    let check = std::process::Command::new(binary).arg("check").arg(&file).output().expect("the binary runs");
    drop(std::fs::remove_dir_all(&folder));
    let output = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
    assert!(!check.status.success() && output.contains("min_size"), "{output}");
}

/// EDGE-66.
#[test]
fn pool_does_not_connect_and_evict_repeatedly() {
    let server = FaultyServer::answering();
    let gateway = gateway_for!(&server, "size = 2\nmin_size = 2\n");
    let mut client = gateway.client("postgres");
    for _ in 0..50 {
        client.ok("select 1");
    }
    assert!(server.connections() <= 2, "{} connections for a pool of 2", server.connections());
}

/// EDGE-66.
#[test]
fn connects_in_flight_are_limited() {
    let (logins, waiting) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let server = FaultyServer::start(move |connection| {
        if !is_first.swap(false, std::sync::atomic::Ordering::Relaxed) {
            logins.send(()).map_err(std::io::Error::other)?;
            drop(released.lock().map(|released| released.recv()));
        }
        connection.send(&reply::login(connection.process()))?;
        connection.answer_all()
    });
    let gateway = gateway_for!(&server, "size = 10\nconnects_in_flight = 3\n");
    // Logins to an empty pool share one connection.
    let mut first = gateway.startup("postgres").connect();
    first.ok("begin");
    let clients: Vec<_> = (0..9)
        .map(|_| {
            let startup = gateway.startup("postgres");
            thread::spawn(move || {
                let mut client = startup.connect();
                client.ok("begin");
            })
        })
        .collect();
    for _ in 0..3 {
        waiting.recv().expect("a connect");
    }
    assert!(waiting.recv_timeout(std::time::Duration::from_millis(300)).is_err(), "a fourth connect in flight");
    drop(release);
    for client in clients {
        client.join().expect("every client is served");
    }
}
