//! Clusters that the tests share, and gateways in front of them.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tidegate_sandbox::{Cluster, Postgres};
use tidegate_testkit::{Authority, Gateway, RawClient, Startup, poll};

/// The deadline of every wait. It is generous, because the machine may be busy: it bounds a hang and measures nothing.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Polls a condition until it holds; the deadline fails the test.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl FnMut() -> bool) {
    assert!(poll(TIMEOUT, holds), "not in time: {what}");
}

/// Connects a client with the deadline of the tests.
#[track_caller]
pub(crate) fn connect(gateway: &Gateway, database: &str) -> RawClient {
    log_in_within_timeout(gateway.startup(database).open(), database)
}

/// Logs in, however long the gateway needs to find its servers.
#[track_caller]
fn log_in_within_timeout(mut client: RawClient, database: &str) -> RawClient {
    client.set_timeout(TIMEOUT);
    client.send_bytes(&client.startup().packet());
    client.log_in(None).unwrap_or_else(|lost| panic!("login to {database} failed: {lost}"));
    client
}

/// Connects a client with this startup packet.
#[track_caller]
pub(crate) fn log_in(startup: &Startup) -> RawClient {
    log_in_within_timeout(startup.open(), "a database")
}

/// Short intervals that make a test fast, and long timeouts for a busy machine.
pub(crate) const FAST_PROBES: &str = "probe_interval = \"50ms\"\nprobe_timeout = \"15s\"\nfailover_wait = \"120s\"\n\
                     connect_retry = \"50ms\"\neject_time = \"1s\"\nsslmode = \"disable\"\n";

/// Three servers that no test changes, and the authority that signed their certificate.
pub(crate) fn shared_cluster() -> &'static (Cluster, Authority) {
    static CLUSTER: OnceLock<(Cluster, Authority)> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let authority = Authority::new();
        let identity = authority.issue(&["localhost", "127.0.0.1"]);
        let read = |path| std::fs::read_to_string(path).expect("the authority wrote the file");
        let builder = builder().tls(&read(&identity.cert), &read(&identity.key));
        (start(&builder), authority)
    })
}

/// Three servers that one test at a time may stop, kill and pause. Each test leaves server 0 as the primary and all of
/// them running.
pub(crate) fn exclusive_cluster() -> MutexGuard<'static, Cluster> {
    static CLUSTER: OnceLock<Mutex<Cluster>> = OnceLock::new();
    CLUSTER.get_or_init(|| Mutex::new(start(&builder()))).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Three servers of one test. The primary confirms a commit when one of the replicas has it.
pub(crate) fn synchronous_cluster() -> Cluster {
    start(&builder().setting("synchronous_commit", "on").setting("synchronous_standby_names", "ANY 1 (*)"))
}

/// Three servers of one test.
pub(crate) fn new_cluster() -> Cluster {
    start(&builder())
}

fn builder() -> tidegate_sandbox::PostgresBuilder {
    Postgres::builder()
        .setting("max_connections", "200")
        .setting("autovacuum", "off")
        // A replica reconnects to its primary without a delay.
        .setting("wal_retrieve_retry_interval", "50ms")
        .setting("shared_buffers", "16MB")
        // Several addresses, for names that resolve to more than one.
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

/// The addresses `127.0.0.1:PORT` of these servers.
pub(crate) fn hosts(cluster: &Cluster, which: &[usize]) -> Vec<String> {
    which.iter().map(|index| format!("127.0.0.1:{}", cluster.server(*index).port())).collect()
}

/// The section of a database on all three servers.
pub(crate) fn database(cluster: &Cluster, name: &str, keys: &str) -> String {
    let hosts = hosts(cluster, &[0, 1, 2]);
    format!("[databases.{name}]\nhosts = {hosts:?}\ndbname = \"postgres\"\n{FAST_PROBES}{keys}\n")
}

/// A gateway in trust mode with these sections.
pub(crate) fn gateway(sections: &[String]) -> Gateway {
    let config = format!("[auth]\nmethod = \"trust\"\n{}", sections.concat());
    Gateway::start(env!("CARGO_BIN_EXE_tidegate"), &config)
}

/// The index of the server that runs the next statement of the client.
pub(crate) fn current_server(cluster: &Cluster, client: &mut RawClient) -> usize {
    let port = client.value("select inet_server_port()");
    index_of_port(cluster, &port)
}

pub(crate) fn index_of_port(cluster: &Cluster, port: &str) -> usize {
    let found = cluster.servers().position(|server| server.port().to_string() == port);
    found.unwrap_or_else(|| panic!("no server has port {port}"))
}

/// The servers that run this number of statements.
pub(crate) fn servers_of(cluster: &Cluster, client: &mut RawClient, statements: usize) -> BTreeSet<usize> {
    (0..statements).map(|_| current_server(cluster, client)).collect()
}

/// A column of SHOW HOSTS for a server; `gone` if the server is not listed.
pub(crate) fn host_column(gateway: &Gateway, cluster: &Cluster, database: &str, index: usize, column: &str) -> String {
    let port = cluster.server(index).port().to_string();
    let rows = gateway.show("HOSTS");
    let row = rows.iter().find(|row| row["database"] == database && row["port"] == port);
    row.map_or_else(|| "gone".to_owned(), |row| row[column].clone())
}

/// Waits until a column of SHOW HOSTS has this value.
#[track_caller]
pub(crate) fn wait_for(
    gateway: &Gateway,
    cluster: &Cluster,
    database: &str,
    index: usize,
    column: &str,
    expected: &str,
) {
    eventually(&format!("{column} of server {index} becomes {expected}"), || {
        host_column(gateway, cluster, database, index, column) == expected
    });
}

/// Waits until every server of a database has its role and is up.
#[track_caller]
pub(crate) fn wait_until_all_up(gateway: &Gateway, cluster: &Cluster, database: &str) {
    for (index, role) in [(0, "primary"), (1, "replica"), (2, "replica")] {
        wait_for(gateway, cluster, database, index, "role", role);
        wait_for(gateway, cluster, database, index, "state", "up");
    }
}
