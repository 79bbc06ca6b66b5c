//! TLS: bytes arrive, refusals are reported, and ends are detected.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
};

use rustls::{
    AlertDescription, ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    pki_types::{PrivateKeyDer, ServerName},
};
use tidegate_link::{Chunk, Link, Reactor, TlsInfo, TlsSide};

use crate::stage::{each_mode, pattern, read_exactly, read_to_end, with_peer};

/// The blocking side, as a client.
type Peer = StreamOwned<ClientConnection, TcpStream>;

/// The configuration of a server, and that of a client that trusts it.
pub(crate) fn certificate() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a root");
    let server = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    (Arc::new(server.expect("a key that fits")), Arc::new(client))
}

fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name")
}

pub(crate) fn tls_peer(stream: TcpStream, config: Arc<ClientConfig>) -> Peer {
    StreamOwned::new(ClientConnection::new(config, name()).expect("a valid configuration"), stream)
}

/// Starts TLS as a server on a new link.
async fn secure(reactor: &Reactor, link: &mut Link, config: Arc<ServerConfig>) -> io::Result<TlsInfo> {
    link.start_tls(reactor, TlsSide::Server(config), Chunk::empty())?;
    link.handshake().await
}

#[test]
fn mebibyte_is_echoed() {
    const BYTES: usize = 1 << 20;
    each_mode(|config| {
        let (server, client) = certificate();
        let peer = move |stream: TcpStream| {
            let mut peer = tls_peer(stream, client);
            peer.write_all(&pattern(BYTES)).expect("an open link");
            let mut back = vec![0; BYTES];
            peer.read_exact(&mut back).expect("an echo");
            assert!(back == pattern(BYTES), "the echo differs");
            peer.conn.send_close_notify();
            peer.flush().expect("an open link");
        };
        with_peer(config, peer, |reactor, mut link| async move {
            let info = secure(&reactor, &mut link, server).await.expect("a handshake");
            assert_eq!(info.version, "TLSv1.3");
            assert!(link.is_tls());
            let words = read_exactly(&mut link, BYTES).await;
            link.write(words);
            link.flush().await.expect("an open peer");
            assert!(link.read().await.expect("close_notify").is_empty());
        });
    });
}

#[test]
fn link_as_tls_client() {
    each_mode(|config| {
        let (server, client) = certificate();
        let peer = move |stream: TcpStream| {
            let connection = ServerConnection::new(server).expect("a valid configuration");
            let mut peer = StreamOwned::new(connection, stream);
            let mut words = [0; 5];
            peer.read_exact(&mut words).expect("a client request");
            peer.write_all(&words).expect("an open client");
            peer.conn.send_close_notify();
            peer.flush().expect("an open client");
        };
        with_peer(config, peer, |reactor, mut link| async move {
            link.start_tls(&reactor, TlsSide::Client(client, name()), Chunk::empty()).expect("a valid configuration");
            let info = link.handshake().await.expect("a handshake");
            assert_eq!(info.peer_certificates.len(), 1);
            link.write(&b"hello"[..]);
            link.flush().await.expect("an open peer");
            assert_eq!(read_to_end(&mut link).await, b"hello");
        });
    });
}

#[test]
fn handshake_continues_from_bytes_already_read() {
    each_mode(|config| {
        let (server, client) = certificate();
        let peer = move |stream: TcpStream| {
            let mut peer = tls_peer(stream, client);
            peer.write_all(b"hello").expect("an open link");
            peer.conn.send_close_notify();
            peer.flush().expect("an open link");
        };
        with_peer(config, peer, |reactor, mut link| async move {
            let early = link.read().await.expect("a first record");
            link.start_tls(&reactor, TlsSide::Server(server), early).expect("a valid configuration");
            link.handshake().await.expect("a handshake");
            assert_eq!(read_to_end(&mut link).await, b"hello");
        });
    });
}

#[test]
fn untrusted_certificate_is_an_error() {
    each_mode(|config| {
        let (server, _) = certificate();
        let (_, stranger) = certificate();
        let peer = move |stream: TcpStream| {
            let error = tls_peer(stream, stranger).write_all(b"hello").expect_err("an untrusted certificate");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        };
        with_peer(config, peer, |reactor, mut link| async move {
            secure(&reactor, &mut link, server).await.map(drop).expect_err("a peer that does not trust us");
        });
    });
}

/// The link is dropped right after the refusal, and has sent its alert.
#[test]
fn failed_handshake_sends_an_alert() {
    each_mode(|config| {
        let (server, client) = certificate();
        let mut old = ServerConfig::clone(&server);
        old.alpn_protocols = vec![b"postgresql".to_vec()];
        let mut other = ClientConfig::clone(&client);
        other.alpn_protocols = vec![b"http/1.1".to_vec()];
        let peer = move |stream: TcpStream| {
            let error = tls_peer(stream, Arc::new(other)).write_all(b"hello").expect_err("another protocol");
            let alert = rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol);
            let reported = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            assert_eq!(reported, Some(&alert), "{error}");
        };
        with_peer(config, peer, |reactor, mut link| async move {
            let error = secure(&reactor, &mut link, Arc::new(old)).await.map(drop).expect_err("another protocol");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        });
    });
}

#[test]
fn bytes_other_than_tls_are_an_error() {
    each_mode(|config| {
        let (server, _) = certificate();
        let peer = |mut stream: TcpStream| {
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("an open stream");
            let _ = stream.read_to_end(&mut Vec::new());
        };
        with_peer(config, peer, |reactor, mut link| async move {
            let error = secure(&reactor, &mut link, server).await.map(drop).expect_err("no TLS");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        });
    });
}

#[test]
fn end_during_the_handshake_is_an_error() {
    each_mode(|config| {
        let (server, _) = certificate();
        with_peer(config, drop, |reactor, mut link| async move {
            let error = secure(&reactor, &mut link, server).await.map(drop).expect_err("an end");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        });
    });
}

#[test]
fn close_without_close_notify_ends_the_stream() {
    each_mode(|config| {
        let (server, client) = certificate();
        let peer = move |stream: TcpStream| {
            let mut peer = tls_peer(stream, client);
            peer.write_all(b"last words").expect("an open link");
            peer.sock.shutdown(Shutdown::Write).expect("an open stream");
            let _ = peer.sock.read_to_end(&mut Vec::new());
        };
        with_peer(config, peer, |reactor, mut link| async move {
            secure(&reactor, &mut link, server).await.expect("a handshake");
            assert_eq!(read_to_end(&mut link).await, b"last words");
            assert!(link.read().await.expect("an end, again").is_empty());
        });
    });
}

#[test]
fn close_notify_reaches_the_peer() {
    each_mode(|config| {
        let (server, client) = certificate();
        let peer = move |stream: TcpStream| {
            let mut peer = tls_peer(stream, client);
            let mut received = String::new();
            // An end without close_notify would be an error here.
            peer.read_to_string(&mut received).expect("a clean end");
            assert_eq!(received, "the end");
        };
        with_peer(config, peer, |reactor, mut link| async move {
            secure(&reactor, &mut link, server).await.expect("a handshake");
            link.write(&b"the end"[..]);
            link.write_close_notify();
            link.flush().await.expect("an open peer");
            link.shutdown();
        });
    });
}

#[test]
fn damaged_record_is_an_error() {
    each_mode(|config| {
        let (server, client) = certificate();
        let peer = move |stream: TcpStream| {
            let mut peer = tls_peer(stream, client);
            peer.write_all(b"whole").expect("an open link");
            peer.read_exact(&mut [0; 2]).expect("an answer");
            peer.sock.write_all(&[&[23, 3, 3, 0, 20][..], &[9; 20]].concat()).expect("an open stream");
            let _ = peer.sock.read_to_end(&mut Vec::new());
        };
        with_peer(config, peer, |reactor, mut link| async move {
            secure(&reactor, &mut link, server).await.expect("a handshake");
            assert_eq!(read_exactly(&mut link, 5).await, b"whole");
            link.write(&b"ok"[..]);
            link.flush().await.expect("an open peer");
            let error = link.read().await.map(drop).expect_err("a damaged record");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        });
    });
}
