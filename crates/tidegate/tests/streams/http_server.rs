//! An HTTP server whose replies are scripted.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_testkit::Identity;
use tokio_rustls::TlsAcceptor;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// The number of earlier requests with the same body.
    pub(crate) earlier: usize,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// The reply to a request.
pub(crate) enum Reply {
    Status(u16),
    With(u16, &'static [(&'static str, &'static str)], &'static str),
    /// No reply.
    Silence,
}

type Script = dyn Fn(&ReceivedRequest) -> Reply + Send + Sync;

pub(crate) struct HttpServer {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    _runtime: tokio::runtime::Runtime,
}

struct Shared {
    script: Box<Script>,
    requests: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
}

impl HttpServer {
    pub(crate) fn start(script: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(None, script)
    }

    /// Starts a server that uses TLS with this certificate.
    pub(crate) fn start_tls(
        identity: &Identity,
        script: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let chain = CertificateDer::pem_file_iter(&identity.cert).unwrap().collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = builder.with_single_cert(chain, key).unwrap();
        Self::start_with(Some(TlsAcceptor::from(Arc::new(config))), script)
    }

    /// Starts a server that uses TLS and requires certificates of an authority.
    pub(crate) fn start_tls_for_clients(
        identity: &Identity,
        authority: &std::path::Path,
        script: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let chain = CertificateDer::pem_file_iter(&identity.cert).unwrap().collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        CertificateDer::pem_file_iter(authority).unwrap().for_each(|root| roots.add(root.unwrap()).unwrap());
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = builder.with_client_cert_verifier(verifier.build().unwrap()).with_single_cert(chain, key).unwrap();
        Self::start_with(Some(TlsAcceptor::from(Arc::new(config))), script)
    }

    fn start_with(
        tls: Option<TlsAcceptor>,
        script: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared =
            Arc::new(Shared { script: Box::new(script), requests: Mutex::default(), connections: AtomicUsize::new(0) });
        let owner = Arc::clone(&shared);
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                owner.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&owner);
                let service = service_fn(move |request| answer(Arc::clone(&shared), request));
                let http = hyper::server::conn::http1::Builder::new();
                match tls.clone() {
                    None => drop(tokio::spawn(http.serve_connection(TokioIo::new(socket), service))),
                    Some(tls) => drop(tokio::spawn(async move {
                        if let Ok(socket) = tls.accept(socket).await {
                            drop(http.serve_connection(TokioIo::new(socket), service).await);
                        }
                    })),
                }
            }
        });
        Self { port, shared, _runtime: runtime }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The received requests in order.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.requests.lock().unwrap().clone()
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.body).collect()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let body = String::from_utf8_lossy(&body).into_owned();
    let received = {
        let mut all = shared.requests.lock().unwrap();
        let received = ReceivedRequest {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            earlier: all.iter().filter(|earlier| earlier.body == body).count(),
            body,
        };
        all.push(received.clone());
        received
    };
    let (status, headers, body) = match (shared.script)(&received) {
        Reply::Status(status) => (status, &[][..], ""),
        Reply::With(status, headers, body) => (status, headers, body),
        Reply::Silence => std::future::pending().await,
    };
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Ok(response.body(Full::new(Bytes::from(body))).unwrap())
}
