//! Socket options of connections, and abstract unix sockets.

use std::{io, net::TcpStream, time::Duration};

use socket2::Socket;
use tidegate_testkit::{Frames, Signal, Startup, eventually};

use crate::ini_gateway::{IniGateway, output, server};

/// The client and server connections of a gateway with these lines, as duplicated sockets. `None` where the machine
/// does not allow it.
fn connections(lines: &str) -> Option<Vec<Socket>> {
    let ini = format!("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\n{lines}");
    let gateway = IniGateway::start(&ini);
    let mut client = gateway.client("shop");
    client.ok("select 1");
    match gateway.connections() {
        Ok(connections) => {
            // The server connection may use a unix socket.
            assert!(!connections.is_empty(), "no client connection");
            Some(connections)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            eprintln!("skipped: this machine does not allow access to the sockets of a child: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn tcp_keys_apply_to_clients_and_servers() {
    let lines = "tcp_keepalive = 1\ntcp_keepidle = 50\ntcp_keepintvl = 7\ntcp_keepcnt = 3\ntcp_user_timeout = 1500\n\
                 tcp_socket_buffer = 65536\n";
    for socket in connections(lines).into_iter().flatten() {
        assert!(socket.keepalive().expect("the option can be read"), "{socket:?}");
        assert_eq!(socket.tcp_keepalive_time().expect("the option can be read"), Duration::from_secs(50));
        assert_eq!(socket.tcp_keepalive_interval().expect("the option can be read"), Duration::from_secs(7));
        assert_eq!(socket.tcp_keepalive_retries().expect("the option can be read"), 3);
        assert_eq!(socket.tcp_user_timeout().expect("the option can be read"), Some(Duration::from_millis(1500)));
        // Linux doubles the requested size.
        assert_eq!(socket.recv_buffer_size().expect("the option can be read"), 131_072);
        assert_eq!(socket.send_buffer_size().expect("the option can be read"), 131_072);
    }
}

/// A stopped gateway does not accept: the kernel queues as many connections as the backlog allows.
#[test]
fn listen_backlog_limits_queued_connections() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(10);
    let clients = 20 * cores;
    let waiting = |lines: &str| {
        let gateway = IniGateway::start(&format!("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\n{lines}"));
        gateway.signal(Signal::STOP);
        let connect = || TcpStream::connect_timeout(&gateway.address(), Duration::from_millis(50));
        let queued = std::iter::repeat_with(connect).take(clients).filter_map(Result::ok).collect::<Vec<_>>();
        gateway.signal(Signal::CONT);
        queued.len()
    };
    let few = waiting("listen_backlog = 2\n");
    // The kernel queues one more than requested for each socket, and some were accepted before all threads stopped.
    assert!(few < clients / 2 || cores == 10, "{few} of {clients}");
    assert_eq!(waiting("listen_backlog = 250\n"), clients);
}

#[test]
fn tcp_keepalive_can_be_disabled() {
    for socket in connections("tcp_keepalive = 0\n").into_iter().flatten() {
        assert!(!socket.keepalive().expect("the option can be read"), "{socket:?}");
    }
}

/// libpq and PgBouncer write abstract sockets with an `@` in place of the folder.
#[test]
fn abstract_unix_sockets_on_both_sides() {
    let name = format!("@tidegate-{}", std::process::id());
    let server_gateway = IniGateway::start(&format!(
        "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nunix_socket_dir = {name}\nunix_socket_mode = 0700\n"
    ));
    server_gateway.wait_for_log("`unix_socket_mode` has no effect: every user of this machine can reach");
    let port = server_gateway.port();
    // A database without a host uses the folder of the own socket.
    let gateway = IniGateway::start(&format!(
        "[databases]\nnamed = host={name} port={port} dbname=shop\nunnamed = port={port} dbname=shop\n[pgbouncer]\n\
         unix_socket_dir = {name}\n"
    ));
    let unix =
        |user: &str, database: &str| Startup::unix(format!("{name}/.s.PGSQL.{}", gateway.port()), user, database);
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
    // The peer credentials of the client are available.
    let databases = unix("pgbouncer", "pgbouncer").connect().show("DATABASES");
    assert!(databases.iter().any(|row| row["name"] == "named" && row["host"] == name), "{databases:?}");
    let servers = gateway.show("SERVERS");
    assert!(servers.iter().all(|row| row["addr"] == "unix" && row["port"] == port.to_string()), "{servers:?}");
    let converted = output(&["convert", &gateway.file("pgbouncer.ini").display().to_string()]);
    let toml = String::from_utf8_lossy(&converted.stdout).into_owned();
    for line in [format!("unix_socket_dir = \"{name}\""), format!("host = \"{name}\"")] {
        assert!(toml.lines().any(|known| known == line), "{line} is not in\n{toml}");
    }
}

/// The same holds for a `tidegate.toml` and a pgbouncer.ini.
#[test]
fn star_listens_on_both_address_families() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let pg = server().address();
    let toml = |port: u16| {
        format!(
            "[listen]\naddresses = [\"*:{port}\"]\n[auth]\nmethod = \"trust\"\n[admin]\nusers = [\"postgres\"]\n\
             [databases.shop]\nhost = \"{}\"\nport = {}\ndbname = \"postgres\"\n",
            pg.ip(),
            pg.port()
        )
    };
    let ini = "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nlisten_addr = *\n";
    for gateway in [IniGateway::with_toml(toml), IniGateway::start(ini)] {
        let clients = ["127.0.0.1", "::1"].map(|ip| {
            let address = (ip.parse::<std::net::IpAddr>().expect("an address"), gateway.port()).into();
            Startup::tcp(address, "postgres", "shop").connect()
        });
        let rows = gateway.show("CLIENTS");
        let mut shown: Vec<_> = rows.iter().filter(|row| row["database"] == "shop").map(|row| &row["addr"]).collect();
        shown.sort();
        assert_eq!(shown, ["127.0.0.1", "::1"]);
        drop(clients);
    }
}
