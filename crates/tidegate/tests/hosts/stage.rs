//! The clusters that the tests share, and gateways before them.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tidegate_sandbox::{Cluster, Postgres};
use tidegate_testkit::{Authority, Gateway, RawClient, Startup};

/// How long anything may take on a machine that is busy with other things. It bounds a hang, and measures nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Polls a condition until it holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A client that waits as long as the test does.
#[track_caller]
pub(crate) fn connect(gateway: &Gateway, database: &str) -> RawClient {
    patient(gateway.startup(database).open(), database)
}

/// Logs in, however long the servers take to be known.
#[track_caller]
fn patient(mut client: RawClient, database: &str) -> RawClient {
    client.set_patience(PATIENCE);
    client.send_bytes(&client.startup().packet());
    client.log_in(None).unwrap_or_else(|lost| panic!("login to {database} failed: {lost}"));
    client
}

/// The same with another login.
#[track_caller]
pub(crate) fn log_in(startup: &Startup) -> RawClient {
    patient(startup.open(), "a database")
}

/// What makes a test quick, and how long a gateway may need: generous, since a machine may be busy.
pub(crate) const QUICK: &str = "probe_interval = \"50ms\"\nprobe_timeout = \"15s\"\nfailover_wait = \"120s\"\n\
                     connect_retry = \"50ms\"\neject_time = \"1s\"\nsslmode = \"disable\"\n";

/// Three servers that stay as they are. The authority has signed their certificate.
pub(crate) fn steady() -> &'static (Cluster, Authority) {
    static STEADY: OnceLock<(Cluster, Authority)> = OnceLock::new();
    STEADY.get_or_init(|| {
        let authority = Authority::new();
        let identity = authority.issue(&["localhost", "127.0.0.1"]);
        let read = |path| std::fs::read_to_string(path).expect("the authority wrote it");
        let builder = builder().tls(&read(&identity.cert), &read(&identity.key));
        (start(&builder), authority)
    })
}

/// Three servers to be stopped, killed and held back, by one test at a time. Each test leaves server 0 the primary and
/// all of them running.
pub(crate) fn ours() -> MutexGuard<'static, Cluster> {
    static OURS: OnceLock<Mutex<Cluster>> = OnceLock::new();
    OURS.get_or_init(|| Mutex::new(start(&builder()))).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Three servers of one test alone, and what the primary confirms is with one of the replicas at least.
pub(crate) fn replicating() -> Cluster {
    start(&builder().setting("synchronous_commit", "on").setting("synchronous_standby_names", "ANY 1 (*)"))
}

/// Three servers of one test alone.
pub(crate) fn fresh() -> Cluster {
    start(&builder())
}

fn builder() -> tidegate_sandbox::PostgresBuilder {
    Postgres::builder()
        .setting("max_connections", "200")
        .setting("autovacuum", "off")
        // A replica that lost its primary looks again at once.
        .setting("wal_retrieve_retry_interval", "50ms")
        .setting("shared_buffers", "16MB")
        // Several places of this machine, for names with several addresses.
        .setting("listen_addresses", "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4")
        .hba("local all all trust\nhost all all 127.0.0.0/8 trust")
}

fn start(builder: &tidegate_sandbox::PostgresBuilder) -> Cluster {
    let cluster = Cluster::start(builder, 2).unwrap_or_else(|error| panic!("the cluster does not start: {error}"));
    sql(cluster.primary(), "create table t (n bigint generated always as identity, v text)");
    sql(cluster.primary(), "create role report login; grant all on t to report");
    for index in [1, 2] {
        cluster.catch_up(index).expect("replicas stream");
    }
    cluster
}

pub(crate) fn sql(postgres: &Postgres, text: &str) {
    postgres.simple_query(text).unwrap_or_else(|error| panic!("{text}: {error}"));
}

pub(crate) fn value(postgres: &Postgres, text: &str) -> String {
    let rows = postgres.simple_query(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    rows[0][0].clone().unwrap_or_default()
}

/// `"127.0.0.1:PORT"` of these servers.
pub(crate) fn hosts(cluster: &Cluster, which: &[usize]) -> Vec<String> {
    which.iter().map(|index| format!("127.0.0.1:{}", cluster.server(*index).port())).collect()
}

/// The section of a database on all three servers.
pub(crate) fn database(cluster: &Cluster, name: &str, keys: &str) -> String {
    let hosts = hosts(cluster, &[0, 1, 2]);
    format!("[databases.{name}]\nhosts = {hosts:?}\ndbname = \"postgres\"\n{QUICK}{keys}\n")
}

/// A gateway with these sections, which lets everybody in.
pub(crate) fn gateway(sections: &[String]) -> Gateway {
    let config = format!("[auth]\nmethod = \"trust\"\n{}", sections.concat());
    Gateway::start(env!("CARGO_BIN_EXE_tidegate"), &config)
}

/// The number of the server that runs a statement.
pub(crate) fn whereabouts(cluster: &Cluster, client: &mut RawClient) -> usize {
    let port = client.value("select inet_server_port()");
    index_of(cluster, &port)
}

pub(crate) fn index_of(cluster: &Cluster, port: &str) -> usize {
    let found = cluster.servers().position(|server| server.port().to_string() == port);
    found.unwrap_or_else(|| panic!("no server has port {port}"))
}

/// The servers that so many statements run on.
pub(crate) fn servers_of(cluster: &Cluster, client: &mut RawClient, statements: usize) -> BTreeSet<usize> {
    (0..statements).map(|_| whereabouts(cluster, client)).collect()
}

/// A column of SHOW HOSTS for a server.
pub(crate) fn shown(gateway: &Gateway, cluster: &Cluster, database: &str, index: usize, column: &str) -> String {
    let port = cluster.server(index).port().to_string();
    let rows = gateway.show("HOSTS");
    let row = rows.iter().find(|row| row["database"] == database && row["port"] == port);
    row.map_or_else(|| "gone".to_owned(), |row| row[column].clone())
}

/// Waits until SHOW HOSTS says so.
#[track_caller]
pub(crate) fn wait_for(gateway: &Gateway, cluster: &Cluster, database: &str, index: usize, column: &str, wanted: &str) {
    eventually(&format!("{column} of server {index} becomes {wanted}"), || {
        shown(gateway, cluster, database, index, column) == wanted
    });
}

/// Waits until every server of a database is known and up.
#[track_caller]
pub(crate) fn wait_until_settled(gateway: &Gateway, cluster: &Cluster, database: &str) {
    for (index, role) in [(0, "primary"), (1, "replica"), (2, "replica")] {
        wait_for(gateway, cluster, database, index, "role", role);
        wait_for(gateway, cluster, database, index, "state", "up");
    }
}
