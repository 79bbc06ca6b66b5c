//! Health checks, the drain after SIGTERM, and HTTPS with a token on the metrics endpoint.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tidegate_testkit::{Authority, FaultyServer, Gateway, Signal, TIMEOUT, eventually, free_address, on_each_postgres};

/// Ports of the endpoints of this file.
fn endpoint() -> SocketAddr {
    free_address(11_000..12_000)
}

/// Sends a request to the endpoint; returns the status and the whole response.
fn request(stream: &mut (impl Read + Write), path: &str, headers: &str) -> (u16, String) {
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n{headers}connection: close\r\n\r\n")
        .expect("the request is sent");
    let mut response = Vec::new();
    // A server that ends a TLS session without a notice is an error of the transport, not of HTTP.
    let _ = stream.read_to_end(&mut response);
    let response = String::from_utf8(response).expect("the response is text");
    let status = response.get(9..12).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {response}")), response)
}

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the endpoint accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    request(&mut stream, path, "")
}

fn status(address: SocketAddr, path: &str) -> u16 {
    get(address, path).0
}

on_each_postgres! {
    /// OP-22, OP-23.
    fn listener_accepts_while_the_drain_begins(fixture) {
        let http = endpoint();
        let mut gateway = fixture.gateway(&format!(
            "size = 1\n[timeouts]\nshutdown_delay = \"1h\"\nshutdown = \"2h\"\n[metrics]\naddresses = [\"{http}\"]\n"
        ));
        eventually("the gateway is ready", || status(http, "/ready") == 200);
        gateway.signal(Signal::TERM);
        eventually("it is not ready", || status(http, "/ready") == 503);
        assert_eq!(status(http, "/live"), 200);
        // Load balancers still send clients.
        gateway.client("postgres").ok("select 1");
        assert!(get(http, "/metrics").1.contains("\ntidegate_ready 0\n"));
        gateway.set_config("timeouts.shutdown_delay", "0s");
        gateway.signal(Signal::HUP);
        eventually("the delay follows a reload", || gateway.startup("postgres").try_connect().is_err());
        assert!(gateway.wait().success());
    }

    /// OP-22: A pause keeps clients waiting; a suspended gateway is about to be replaced.
    fn paused_gateway_is_ready_and_suspended_is_not(fixture) {
        let http = endpoint();
        let gateway = fixture.gateway(&format!(
            "size = 1\n[admin]\nusers = [\"postgres\"]\n[metrics]\naddresses = [\"{http}\"]\n"
        ));
        let mut console = gateway.console();
        console.ok("PAUSE");
        assert_eq!(status(http, "/ready"), 200);
        console.ok("RESUME");
        console.ok("SUSPEND");
        assert_eq!((status(http, "/ready"), status(http, "/live")), (503, 200));
        console.ok("RESUME");
        assert_eq!(status(http, "/ready"), 200);
    }
}

/// OP-22: A restart of the gateway would not repair Postgres.
#[test]
fn gateway_without_a_server_is_ready() {
    let http = endpoint();
    let closed = free_address(12_000..13_000);
    let gateway = Gateway::for_server(
        env!("CARGO_BIN_EXE_tidegate"),
        closed,
        &format!("size = 1\n[metrics]\naddresses = [\"{http}\"]\n"),
    );
    assert_eq!((status(http, "/live"), status(http, "/ready")), (200, 200));
    drop(gateway);
}

/// The connections exceed the limit, at every stage of a request.
#[test]
fn idle_connections_do_not_block_health_checks() {
    let server = FaultyServer::answering();
    let http = endpoint();
    let pool = format!("size = 1\n[metrics]\naddresses = [\"{http}\"]\n");
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server.address(), &pool);
    for sent in ["", "GET /ready HTTP/1.1\r\n", "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let connect = |_| {
            let mut stream = TcpStream::connect(http).expect("the endpoint accepts");
            stream.write_all(sent.as_bytes()).expect("the bytes are sent");
            stream
        };
        let silent: Vec<_> = (0..200).map(connect).collect();
        assert_eq!((status(http, "/ready"), status(http, "/live")), (200, 200), "{sent:?}");
        drop(silent);
    }
    drop(gateway);
}

/// A client of the endpoint that trusts this authority.
fn tls_client(authority: &Authority) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(builder.expect("the versions are supported").with_root_certificates(roots).with_no_client_auth())
}

fn get_over_tls(address: SocketAddr, client: &Arc<ClientConfig>, path: &str, headers: &str) -> (u16, String) {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(client.clone(), name).expect("a connection");
    let stream = TcpStream::connect(address).expect("the endpoint accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    request(&mut rustls::StreamOwned::new(connection, stream), path, headers)
}

#[test]
fn metrics_need_the_token_over_https() {
    let server = FaultyServer::answering();
    let authority = Authority::new();
    let identity = authority.issue(&["localhost"]);
    let http = endpoint();
    let pool = format!(
        "size = 1\n[metrics]\naddresses = [\"{http}\"]\ntls_cert = \"{}\"\ntls_key = \"{}\"\ntoken = \"s3cr3t\"\n",
        identity.cert.display(),
        identity.key.display(),
    );
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server.address(), &pool);
    let client = tls_client(&authority);
    let metrics = |headers: &str| get_over_tls(http, &client, "/metrics", headers);
    let (refused, response) = metrics("");
    assert!(refused == 401 && response.contains("www-authenticate: Bearer"), "{response}");
    for wrong in ["authorization: Bearer s3cr3\r\n", "authorization: Basic s3cr3t\r\n"] {
        assert_eq!(metrics(wrong).0, 401, "{wrong}");
    }
    let (found, page) = metrics("authorization: Bearer s3cr3t\r\n");
    assert_eq!(found, 200, "{page}");
    let expiry = page.lines().find(|line| line.starts_with("tidegate_certificate_expiry_timestamp_seconds{"));
    assert!(expiry.is_some_and(|line| line.contains("shown_to=\"metrics\"")), "{page}");
    // Probes of orchestrators have no token.
    assert_eq!(get_over_tls(http, &client, "/ready", "").0, 200);
    assert!(!gateway.log().contains("s3cr3t") && !page.contains("s3cr3t"));
}

/// OP-22: SIGTERM has a deadline of its own, before that of Kubernetes.
#[test]
fn sigterm_has_a_default_deadline() {
    let server = FaultyServer::answering();
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server.address(), "size = 1\n");
    let config = gateway.client("tidegate").show("CONFIG");
    let row = config.iter().find(|row| row["key"] == "timeouts.shutdown").expect("a row");
    assert_eq!(row["value"], "25s");
}
