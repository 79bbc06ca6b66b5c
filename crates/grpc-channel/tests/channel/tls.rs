//! TLS and custom connectors.

use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tidegate_balance::EndpointAddress;
use tidegate_grpc_channel::Channel;
use tokio::net::{TcpListener, TcpStream};

use crate::test_server::{TestServer, call, drive};

/// Starts a TLS proxy before a server. Returns its address and the root of its certificate.
async fn terminate(server: &TestServer, alpn: &[u8]) -> (std::net::SocketAddr, RootCertStore) {
    let signed = rcgen::generate_simple_self_signed(["orders.test".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der()));
    let mut config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![signed.cert.der().clone()], key).unwrap();
    config.alpn_protocols = vec![alpn.into()];
    let mut roots = RootCertStore::empty();
    roots.add(signed.cert.der().clone()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, behind) = (listener.local_addr().unwrap(), server.address);
    tokio::spawn(async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut secure) = acceptor.accept(stream).await else { return };
                let Ok(mut plain) = TcpStream::connect(behind).await else { return };
                let _ = tokio::io::copy_bidirectional(&mut secure, &mut plain).await;
            });
        }
    });
    (address, roots)
}

fn client(roots: RootCertStore) -> ClientConfig {
    ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

#[tokio::test]
async fn verified_name_is_the_authority() {
    let server = TestServer::start().await;
    let (address, roots) = terminate(&server, b"h2").await;
    let to =
        |authority: &str| drive(Channel::builder(&address.to_string()).authority(authority).tls(client(roots.clone())));
    assert_eq!(call(&to("orders.test").channel, "/t/Echo").await.unwrap(), "hello");
    let error = call(&to("other.test").channel, "/t/Echo").await.unwrap_err();
    assert!(error.message().contains("certificate"), "{error}");
}

#[tokio::test]
async fn server_without_http2_is_an_error() {
    let server = TestServer::start().await;
    let (address, roots) = terminate(&server, b"http/1.1").await;
    let driven = drive(Channel::builder(&address.to_string()).authority("orders.test").tls(client(roots)));
    let error = call(&driven.channel, "/t/Echo").await.unwrap_err();
    assert!(error.message().contains("ApplicationProtocol") || error.message().contains("ALPN"), "{error}");
}

#[tokio::test]
async fn custom_connector_opens_connections() {
    let server = TestServer::start().await;
    let behind = server.address;
    let builder = Channel::builder("unix:/nowhere").authority("orders").connector(move |address| async move {
        assert_eq!(address, EndpointAddress::Unix("/nowhere".into()));
        TcpStream::connect(behind).await
    });
    assert_eq!(call(&drive(builder).channel, "/t/Echo").await.unwrap(), "hello");
}

#[tokio::test]
async fn https_target_without_tls_is_refused() {
    let server = TestServer::start().await;
    let (address, roots) = terminate(&server, b"h2").await;
    for target in ["https://orders.test", "https://orders.test:8443/path", "https://10.0.0.1", "https://[::1]:1"] {
        let refused = Channel::builder(target).build().expect_err(target).to_string();
        assert!(refused.contains("TLS") && refused.contains(target), "{refused}");
    }
    // An authority or a custom connector does not replace TLS.
    let custom = Channel::builder("https://orders.test").authority("orders");
    assert!(custom.connector(|_| TcpStream::connect("127.0.0.1:1")).build().is_err());
    let builder = Channel::builder(&format!("https://{address}")).authority("orders.test").tls(client(roots));
    assert_eq!(call(&drive(builder).channel, "/t/Echo").await.unwrap(), "hello");
    assert!(Channel::builder("http://orders.test").build().is_ok());
}
