//! `[shapes]` of a gateway: its console, its metrics and its certificate.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use tidegate_sandbox::{Major, Postgres};
use tidegate_testkit::{Gateway, eventually};

use crate::process::{LIMIT, ShapesProcess};

pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

struct ShapesGateway {
    gateway: Gateway,
    shapes: SocketAddr,
    metrics: SocketAddr,
    folder: tempfile::TempDir,
    // Dropped last.
    postgres: Postgres,
}

impl ShapesGateway {
    fn start(more: impl FnOnce(&std::path::Path) -> String) -> Self {
        let postgres = Postgres::builder().version(Major(18)).setting("wal_level", "logical").start().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (shapes, metrics) = (free_address(), free_address());
        let config = format!(
            "[metrics]\naddresses = [\"{metrics}\"]\n[shapes]\ndatabase = \"{}\"\naddresses = [\"{shapes}\"]\n\
             storage = \"{}\"\n{}",
            postgres.url(),
            folder.path().join("logs").display(),
            more(folder.path()),
        );
        let server = SocketAddr::from(([127, 0, 0, 1], postgres.port()));
        let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server, &config);
        Self { gateway, shapes, metrics, folder, postgres }
    }

    fn sql(&self, text: &str) {
        self.postgres.simple_query(text).unwrap();
    }
}

pub(crate) fn get(address: SocketAddr, target: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {target} HTTP/1.0\r\nhost: a\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn console_and_metrics_show_shapes() {
    let started = ShapesGateway::start(|_| String::new());
    eventually("the server follows the database", || get(started.shapes, "/v1/health").contains("\"active\""));
    assert!(started.gateway.show("SHAPES").is_empty());
    started.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text); INSERT INTO items VALUES (1, 'a'), (2, 'b')");
    let predicate = "id%20IN%20(1,%202,%203,%204,%205,%206,%207,%208)";
    for query in ["table=items&offset=-1", &format!("table=items&where={predicate}&offset=-1")] {
        assert!(get(started.shapes, &format!("/v1/shape?{query}")).starts_with("HTTP/1.0 200"));
    }
    assert!(get(started.shapes, "/v1/shape?table=missing&offset=-1").starts_with("HTTP/1.0 400"));
    eventually("both snapshots are complete", || {
        started.gateway.show("SHAPES").iter().filter(|row| row["state"] == "active").count() == 2
    });
    let rows = started.gateway.show("SHAPES");
    for row in &rows {
        assert_eq!((row["table"].as_str(), row["rows"].as_str(), row["wait"].as_str()), ("items", "2", "0"), "{row:?}");
        assert!(row["bytes"].parse::<u64>().unwrap() > 0 && row["where"].chars().count() <= 24, "{row:?}");
    }
    let handle = &rows[0]["handle"];
    assert_eq!(started.gateway.show(&format!("SHAPES '{handle}'")).len(), 1);
    let full = started.gateway.show("SHAPES 'id'");
    assert!(full.len() == 1 && full[0]["where"].ends_with(')'), "a filter shows the whole predicate: {full:?}");
    assert!(started.gateway.show("SHAPES 'none of them'").is_empty());
    let page = || get(started.metrics, "/metrics");
    let has = |line: &str| page().lines().any(|found| found == line);
    for line in [
        "tidegate_shapes 2",
        "tidegate_shapes_active 1",
        "tidegate_shapes_waiting_clients 0",
        "tidegate_shapes_snapshots_running 0",
        "tidegate_shapes_snapshots_total{result=\"complete\"} 2",
        "tidegate_shapes_requests_total{status=\"400\"} 1",
    ] {
        assert!(has(line), "{line}\n{}", page());
    }
    started.sql("INSERT INTO items VALUES (3, 'c')");
    eventually("the change is counted", || has("tidegate_shapes_changes_total 1"));
    eventually("the console counts the row", || started.gateway.show("SHAPES").iter().any(|row| row["rows"] == "3"));
    eventually("the lag of the slot is known", || page().contains("tidegate_shapes_slot_lag_bytes "));
    let log = started.gateway.log();
    assert!(log.contains("following the changes of the database") && log.contains("answering GET /v1/shape"), "{log}");
    // The first request has published the table, and its rows were read.
    assert!(!log.contains("rows from before are not in the stream"), "{log}");
}

/// Issue 36: snapshots are transactions of an ordinary client, which the console shows and the pool limits.
#[test]
fn snapshots_use_the_pool_of_the_gateway() {
    let started = ShapesGateway::start(|_| "pool = \"gateway://postgres@postgres\"\n".to_owned());
    eventually("the server follows the database", || get(started.shapes, "/v1/health").contains("\"active\""));
    started.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text); INSERT INTO items VALUES (1, 'a')");
    let load = || get(started.shapes, "/v1/shape?table=items&offset=-1");
    assert!(load().contains("\"name\":\"a\""), "{}\n{}", load(), started.gateway.log());
    let clients = started.gateway.show("CLIENTS");
    let own = clients.iter().filter(|row| row["application_name"] == "tidegate shapes").count();
    assert!((1..=16).contains(&own), "{clients:?}");
    let sql =
        "SELECT FROM pg_stat_activity WHERE application_name = 'tidegate shapes' AND backend_type = 'client backend'";
    let servers = started.postgres.simple_query(sql).unwrap().len();
    let pools = started.gateway.show("POOLS");
    let pooled: usize = pools.iter().map(|row| row["sv_idle"].parse::<usize>().unwrap()).sum();
    assert!(pooled >= 1 && servers <= pooled, "{pools:?}");
    started.sql("INSERT INTO items VALUES (2, 'b')");
    eventually("the change is in the log", || started.gateway.show("SHAPES").iter().any(|row| row["rows"] == "2"));
}

#[test]
fn server_without_a_gateway_has_metrics() {
    let postgres = Postgres::builder().version(Major(18)).setting("wal_level", "logical").start().unwrap();
    let metrics = free_address();
    let server = ShapesProcess::start_with(&postgres, &["--metrics", &metrics.to_string()]);
    eventually("the server follows the database", || get(metrics, "/metrics").contains("\ntidegate_shapes_active 1\n"));
    postgres.simple_query("CREATE TABLE items (id int8 PRIMARY KEY)").unwrap();
    assert!(get(server.address, "/v1/shape?table=items&offset=-1").starts_with("HTTP/1.0 200"), "{}", server.log());
    let page = get(metrics, "/metrics");
    assert!(page.contains("\ntidegate_shapes 1\n") && page.contains("process_resident_memory_bytes"), "{page}");
    assert!(get(metrics, "/").starts_with("HTTP/1.0 404"));
}

#[test]
fn console_without_shapes_has_no_rows() {
    let server = tidegate_testkit::FaultyServer::answering();
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server.address(), "");
    assert!(gateway.show("SHAPES").is_empty());
}

/// Another certificate is shown after a reload, without a restart.
#[test]
fn certificate_of_shapes_is_replaced_by_a_reload() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("curl is not installed: TLS of shapes is not tested with it");
        return;
    }
    let certificate = |folder: &std::path::Path| {
        let identity = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(folder.join("cert.pem"), identity.cert.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), identity.signing_key.serialize_pem()).unwrap();
    };
    let started = ShapesGateway::start(|folder| {
        certificate(folder);
        format!("tls_cert = \"{0}/cert.pem\"\ntls_key = \"{0}/key.pem\"\n", folder.display())
    });
    let health = |trusted: &std::path::Path| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "30", "--cacert"]).arg(trusted);
        curl.arg(format!("https://localhost:{}/v1/health", started.shapes.port()));
        String::from_utf8_lossy(&curl.output().unwrap().stdout).into_owned()
    };
    let cert = started.folder.path().join("cert.pem");
    eventually("the server follows the database", || health(&cert).contains("\"active\""));
    let old = started.folder.path().join("old.pem");
    std::fs::copy(&cert, &old).unwrap();
    certificate(started.folder.path());
    started.gateway.console().ok("RELOAD");
    assert!(health(&cert).contains("\"active\""), "{}", started.gateway.log());
    assert_eq!(health(&old), "", "the old certificate is not shown any more");
}
