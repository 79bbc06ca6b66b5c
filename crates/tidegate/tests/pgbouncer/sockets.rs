//! What the kernel is told of connections.

use std::{io, net::TcpStream, time::Duration};

use socket2::Socket;
use tidegate_testkit::{Frames, Signal, Startup, eventually};

use crate::bouncer::{Bouncer, output, server};

/// A client and a server connection of a gateway with these lines, as the kernel has them.
fn connections(lines: &str) -> Option<Vec<Socket>> {
    let ini = format!("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\n{lines}");
    let bouncer = Bouncer::start(&ini);
    let mut client = bouncer.client("shop");
    client.ok("select 1");
    match bouncer.connections() {
        Ok(connections) => {
            // Postgres is reached over TCP or over a unix socket.
            assert!(!connections.is_empty(), "the client at least");
            Some(connections)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            eprintln!("tcp_* is not tested: this machine lets nobody look into a child: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn tcp_keys_are_in_force_on_both_sides() {
    let lines = "tcp_keepalive = 1\ntcp_keepidle = 50\ntcp_keepintvl = 7\ntcp_keepcnt = 3\ntcp_user_timeout = 1500\n\
                 tcp_socket_buffer = 65536\n";
    for socket in connections(lines).into_iter().flatten() {
        assert!(socket.keepalive().expect("it can be asked"), "{socket:?}");
        assert_eq!(socket.tcp_keepalive_time().expect("it can be asked"), Duration::from_secs(50));
        assert_eq!(socket.tcp_keepalive_interval().expect("it can be asked"), Duration::from_secs(7));
        assert_eq!(socket.tcp_keepalive_retries().expect("it can be asked"), 3);
        assert_eq!(socket.tcp_user_timeout().expect("it can be asked"), Some(Duration::from_millis(1500)));
        // Linux doubles what it is asked for.
        assert_eq!(socket.recv_buffer_size().expect("it can be asked"), 131_072);
        assert_eq!(socket.send_buffer_size().expect("it can be asked"), 131_072);
    }
}

/// A gateway that does not get to accept: what comes meanwhile waits with the kernel, as far as it was asked to keep it.
#[test]
fn so_many_wait_to_be_accepted() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(10);
    let clients = 20 * cores;
    let waiting = |lines: &str| {
        let bouncer = Bouncer::start(&format!("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\n{lines}"));
        bouncer.signal(Signal::STOP);
        let connect = || TcpStream::connect_timeout(&bouncer.address(), Duration::from_millis(50));
        let kept = std::iter::repeat_with(connect).take(clients).filter_map(Result::ok).collect::<Vec<_>>();
        bouncer.signal(Signal::CONT);
        kept.len()
    };
    let few = waiting("listen_backlog = 2\n");
    // The kernel keeps one more than it was asked to for each socket, and some were accepted before all threads stood still.
    assert!(few < clients / 2 || cores == 10, "{few} of {clients}");
    assert_eq!(waiting("listen_backlog = 250\n"), clients);
}

#[test]
fn tcp_keepalive_can_be_off() {
    for socket in connections("tcp_keepalive = 0\n").into_iter().flatten() {
        assert!(!socket.keepalive().expect("it can be asked"), "{socket:?}");
    }
}

/// Libpq and PgBouncer name them with an `@` before what would be the folder.
#[test]
fn sockets_without_a_file_are_listened_on_and_connected_to() {
    let name = format!("@tidegate-{}", std::process::id());
    let behind = Bouncer::start(&format!(
        "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nunix_socket_dir = {name}\nunix_socket_mode = 0700\n"
    ));
    behind.wait_for_log("`unix_socket_mode` has no effect: everybody on this machine can reach");
    let port = behind.port();
    // A database without a host is behind the folder of the own socket.
    let bouncer = Bouncer::start(&format!(
        "[databases]\nnamed = host={name} port={port} dbname=shop\nunnamed = port={port} dbname=shop\n[pgbouncer]\n\
         unix_socket_dir = {name}\n"
    ));
    let unix =
        |user: &str, database: &str| Startup::unix(format!("{name}/.s.PGSQL.{}", bouncer.port()), user, database);
    eventually("the socket accepts", || unix("postgres", "named").try_open().is_ok());
    for database in ["named", "unnamed"] {
        let mut client = unix("postgres", database).connect();
        client.ok("begin");
        client.send(&Frames::new().query("select pg_sleep(600)"));
        let running = "select count(*) from pg_stat_activity where query = 'select pg_sleep(600)' and state = 'active'";
        eventually("the query runs", || server().value(running) != "0");
        client.cancel();
        client.expect("T* E:57014 Z:E");
    }
    // The process at the other end is known.
    let databases = unix("pgbouncer", "pgbouncer").connect().show("DATABASES");
    assert!(databases.iter().any(|row| row["name"] == "named" && row["host"] == name), "{databases:?}");
    let servers = bouncer.show("SERVERS");
    assert!(servers.iter().all(|row| row["addr"] == "unix" && row["port"] == port.to_string()), "{servers:?}");
    let converted = output(&["convert", &bouncer.file("pgbouncer.ini").display().to_string()]);
    let toml = String::from_utf8_lossy(&converted.stdout).into_owned();
    for line in [format!("unix_socket_dir = \"{name}\""), format!("host = \"{name}\"")] {
        assert!(toml.lines().any(|known| known == line), "{line} is not in\n{toml}");
    }
}
