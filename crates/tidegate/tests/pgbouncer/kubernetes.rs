//! The poolers of CloudNativePG and of Zalando's operator, with the gateway in place of PgBouncer: each test does what the
//! operator does to the process.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::Command,
};

use tidegate_testkit::{Authority, Process, Signal, Startup, TIMEOUT, TlsMode, eventually};

use crate::ini_gateway::{IniGateway, Setup, binary, free_port, server};

/// The keys that CloudNativePG forces, and its defaults (`pkg/management/pgbouncer/config` of cloudnative-pg).
const CNPG: &str = "[databases]\n* = $PG\n[pgbouncer]\nlisten_addr = *\nunix_socket_dir = $DIR/run\npool_mode = session\n\
                    auth_type = hba\nauth_hba_file = $DIR/pg_hba.conf\nauth_file = $DIR/userlist.txt\nadmin_users = pgbouncer\n\
                    auth_user = cnpg_pooler_pgbouncer\nauth_query = SELECT usename, passwd FROM user_search($1)\n\
                    log_stats = 0\nignore_startup_parameters = extra_float_digits,options\nserver_tls_sslmode = prefer\n\
                    client_tls_sslmode = prefer\nclient_tls_cert_file = $DIR/tls.crt\nclient_tls_key_file = $DIR/tls.key\n";
const CNPG_HBA: &str = "local pgbouncer pgbouncer peer\n\nhost all all 0.0.0.0/0 md5\nhost all all ::/0 md5\n";

/// A gateway with the files of CloudNativePG's manager.
struct Pooler(IniGateway);

impl Pooler {
    fn start(authority: &Authority) -> Self {
        for _ in 0..5 {
            let identity = authority.issue(&["localhost"]);
            let read = |path: &std::path::Path| fs::read_to_string(path).expect("the file exists");
            let (cert, key) = (read(&identity.cert), read(&identity.key));
            let files = [
                ("pg_hba.conf", CNPG_HBA),
                ("userlist.txt", "\"cnpg_pooler_pgbouncer\" \"md5d75bb2be2d7086c6148944261a00f605\"\n"),
                ("tls.crt", &cert),
                ("tls.key", &key),
            ];
            let setup = Setup { ini: CNPG, files: &files, starter: STARTER, ..Setup::default() };
            let mut gateway = IniGateway::spawn(&setup, free_port());
            if gateway.accepts() {
                return Self(gateway);
            }
        }
        panic!("no free port found");
    }

    /// The manager's connection: the user of the console over the Unix socket, without a password.
    fn manager(&self) -> Startup {
        let socket = self.0.folder().join("run").join(format!(".s.PGSQL.{}", self.0.port()));
        eventually("the socket accepts", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        Startup::unix(socket, "pgbouncer", "pgbouncer")
    }
}

/// Makes the folder of the socket, which the operator's volume has.
const STARTER: &[&str] = &["/bin/sh", "-c", "mkdir $DIR/run && exec \"$@\"", "start"];

/// OP-24.
#[test]
fn cnpg_manager_pauses_reloads_and_stops() {
    let authority = Authority::new();
    let mut pooler = Pooler::start(&authority);
    let mut manager = pooler.manager().connect();
    for command in ["PAUSE", "RESUME", "RELOAD", "PAUSE", "RESUME"] {
        manager.ok(command);
    }
    // Each scrape of its collector, by the simple protocol.
    let pools = manager.show("POOLS");
    let lists = manager.show("LISTS");
    assert!(!pools.is_empty() && lists.iter().any(|row| row["list"] == "databases"), "{pools:?} {lists:?}");
    for pool in &pools {
        assert_eq!(pool.len(), 17, "its collector accepts 16 or 17 columns: {pool:?}");
        // Read as an integer or NULL.
        let hosts = &pool["load_balance_hosts"];
        assert!(hosts == "\\N" || hosts.parse::<i64>().is_ok(), "{pool:?}");
    }
    drop(manager);
    // The manager parses each line of the log: time, zone, process, level.
    let log = pooler.0.log();
    for line in log.lines().filter(|line| !line.starts_with('\t')) {
        let (before, after) = line.split_once("] ").unwrap_or_else(|| panic!("no process in `{line}`"));
        assert!(before.contains(&format!(" [{}", pooler.0.id())), "{line}");
        let level = after.split_whitespace().next().unwrap_or_default();
        assert!(["DEBUG", "LOG", "INFO", "WARNING", "ERROR", "FATAL"].contains(&level), "{line}");
    }
    // TERM to the pod becomes INT here; the manager reports any other status than 0.
    pooler.0.signal(Signal::INT);
    assert_eq!(pooler.0.wait().code(), Some(0));
}

/// OP-26.
#[test]
fn cnpg_certificates_rotate_without_disconnects() {
    let (authority, renewed) = (Authority::new(), Authority::new());
    let pooler = Pooler::start(&authority);
    let console = |authority: &Authority| {
        let startup = Startup::tcp(pooler.0.address(), "cnpg_pooler_pgbouncer", "postgres");
        startup.password("x").tls(TlsMode::Request(authority.ca()))
    };
    // The handshake succeeds; the password is wrong.
    assert_eq!(console(&authority).refused().code, "28P01");
    let mut manager = pooler.manager().connect();
    let identity = renewed.issue(&["localhost"]);
    for (name, from) in [("tls.crt", &identity.cert), ("tls.key", &identity.key)] {
        let written = pooler.0.file("new");
        fs::copy(from, &written).expect("the folder can be written");
        fs::set_permissions(&written, fs::Permissions::from_mode(0o600)).expect("one's own file");
        fs::rename(&written, pooler.0.file(name)).expect("the folder can be written");
    }
    manager.ok("RELOAD");
    assert_eq!(console(&renewed).refused().code, "28P01");
    assert!(console(&authority).try_connect().is_err(), "the old certificate is still presented");
    manager.ok("SHOW VERSION");
}

/// The root file system of both operators is read-only, so the process may write nowhere but into the folder of its socket.
#[test]
fn no_file_is_written_beside_the_socket() {
    let pooler = Pooler::start(&Authority::new());
    pooler.manager().connect().ok("SHOW VERSION");
    let mut names: Vec<String> = fs::read_dir(pooler.0.folder())
        .expect("the folder exists")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    // `log` is the test's.
    assert_eq!(names, ["log", "pg_hba.conf", "pgbouncer.ini", "run", "tls.crt", "tls.key", "userlist.txt"]);
}

/// OP-27.
#[test]
fn zalando_variables_give_a_pooler_with_look_ups() {
    server().sql(
        "CREATE ROLE zalando_app LOGIN PASSWORD 'app'; CREATE ROLE zalando_pooler SUPERUSER LOGIN PASSWORD 'pooler'",
    );
    server().sql(
        "CREATE SCHEMA pooler; CREATE FUNCTION pooler.user_lookup(IN i_username text, OUT uname text, OUT phash text) \
         RETURNS record LANGUAGE sql SECURITY DEFINER AS \
         'SELECT usename::text, passwd::text FROM pg_catalog.pg_shadow WHERE usename = i_username'",
    );
    let authority = Authority::new();
    let identity = authority.issue(&["localhost"]);
    let (cert, key) = (identity.cert.display().to_string(), identity.key.display().to_string());
    let mounted = [("CONNECTION_POOLER_CLIENT_TLS_CRT", &*cert), ("CONNECTION_POOLER_CLIENT_TLS_KEY", &*key)];
    let mut pooler = zalando(&mounted);
    let login = Startup::tcp(pooler.address(), "zalando_app", "postgres");
    let over_tls = |password: &str| login.clone().password(password).tls(TlsMode::Request(authority.ca()));
    assert_eq!(over_tls("app").connect().value("select current_user"), "zalando_app");
    assert_eq!(over_tls("wrong").refused().code, "28P01");
    assert!(login.clone().password("app").try_connect().is_err(), "a client without TLS is accepted");
    assert!(!pooler.log().contains("password="), "{}", pooler.log());
    pooler.signal(Signal::TERM);
    assert_eq!(pooler.wait().code(), Some(0));
}

/// OP-27: as long as no certificate is mounted, one is made.
#[test]
fn zalando_pooler_without_a_certificate_has_tls() {
    let pooler = zalando(&[]);
    let mut socket = TcpStream::connect(pooler.address()).expect("the pooler accepts");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    socket.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).expect("the pooler reads");
    let mut reply = [0];
    socket.read_exact(&mut reply).expect("the pooler answers an SSLRequest");
    assert_eq!(reply, *b"S", "{}", pooler.log());
}

/// A container with the variables of Zalando's operator.
fn zalando(further: &[(&str, &str)]) -> Process {
    let address = server().address();
    let (host, pg) = (address.ip().to_string(), address.port().to_string());
    for _ in 0..5 {
        let port = free_port();
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(binary());
        command.arg("container").env_clear().current_dir(folder.path());
        command.envs([("PGHOST", &*host), ("PGPORT", &*pg), ("PGUSER", "zalando_pooler"), ("PGPASSWORD", "pooler")]);
        command.envs([("PGSCHEMA", "pooler"), ("CONNECTION_POOLER_PORT", &*port.to_string())]);
        command.envs([("CONNECTION_POOLER_MODE", "transaction"), ("CONNECTION_POOLER_DEFAULT_SIZE", "2")]);
        command.envs([("CONNECTION_POOLER_MAX_CLIENT_CONN", "100"), ("CONNECTION_POOLER_MAX_DB_CONN", "4")]);
        command.envs(further.iter().copied());
        let mut pooler = Process::spawn(command, (Ipv4Addr::LOCALHOST, port).into(), folder);
        if pooler.accepts() {
            return pooler;
        }
    }
    panic!("no free port found");
}
