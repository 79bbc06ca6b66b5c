//! TLS, and connections of one's own.

use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tidegate_balance::{Address, Channel};
use tokio::net::{TcpListener, TcpStream};

use crate::backend::{Backend, call, drive};

/// Ends TLS before a backend; the root that signed its certificate.
async fn terminate(backend: &Backend, alpn: &[u8]) -> (std::net::SocketAddr, RootCertStore) {
    let signed = rcgen::generate_simple_self_signed(["orders.test".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der()));
    let mut config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![signed.cert.der().clone()], key).unwrap();
    config.alpn_protocols = vec![alpn.into()];
    let mut roots = RootCertStore::empty();
    roots.add(signed.cert.der().clone()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, behind) = (listener.local_addr().unwrap(), backend.address);
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
async fn the_name_that_is_checked_is_the_authority_s() {
    let backend = Backend::start().await;
    let (address, roots) = terminate(&backend, b"h2").await;
    let to =
        |authority: &str| drive(Channel::builder(&address.to_string()).authority(authority).tls(client(roots.clone())));
    assert_eq!(call(&to("orders.test").channel, "/t/Echo").await.unwrap(), "hello");
    let refused = call(&to("other.test").channel, "/t/Echo").await.unwrap_err();
    assert!(refused.message().contains("certificate"), "{refused}");
}

#[tokio::test]
async fn a_server_that_does_not_speak_http2_is_told_by_name() {
    let backend = Backend::start().await;
    let (address, roots) = terminate(&backend, b"http/1.1").await;
    let driven = drive(Channel::builder(&address.to_string()).authority("orders.test").tls(client(roots)));
    let refused = call(&driven.channel, "/t/Echo").await.unwrap_err();
    assert!(refused.message().contains("ApplicationProtocol") || refused.message().contains("ALPN"), "{refused}");
}

#[tokio::test]
async fn connections_may_be_opened_in_a_way_of_one_s_own() {
    let backend = Backend::start().await;
    let behind = backend.address;
    let builder = Channel::builder("unix:/nowhere").authority("orders").connector(move |address| async move {
        assert_eq!(address, Address::Unix("/nowhere".into()));
        TcpStream::connect(behind).await
    });
    assert_eq!(call(&drive(builder).channel, "/t/Echo").await.unwrap(), "hello");
}

#[tokio::test]
async fn https_without_tls_is_refused_before_anything_is_sent() {
    let backend = Backend::start().await;
    let (address, roots) = terminate(&backend, b"h2").await;
    for target in ["https://orders.test", "https://orders.test:8443/path", "https://10.0.0.1", "https://[::1]:1"] {
        let refused = Channel::builder(target).build().expect_err(target).to_string();
        assert!(refused.contains("TLS") && refused.contains(target), "{refused}");
    }
    // Neither a name nor connections of one's own make them secure.
    let of_ones_own = Channel::builder("https://orders.test").authority("orders");
    assert!(of_ones_own.connector(|_| TcpStream::connect("127.0.0.1:1")).build().is_err());
    let builder = Channel::builder(&format!("https://{address}")).authority("orders.test").tls(client(roots));
    assert_eq!(call(&drive(builder).channel, "/t/Echo").await.unwrap(), "hello");
    assert!(Channel::builder("http://orders.test").build().is_ok());
}
