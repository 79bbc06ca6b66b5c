//! A web server that answers as a test says.

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

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// How many with this body came before.
    pub(crate) earlier: usize,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// What is answered.
pub(crate) enum Answer {
    Status(u16),
    With(u16, &'static [(&'static str, &'static str)], &'static str),
    /// Nothing, ever.
    Silence,
}

type Script = dyn Fn(&Seen) -> Answer + Send + Sync;

pub(crate) struct Web {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    _runtime: tokio::runtime::Runtime,
}

struct Shared {
    script: Box<Script>,
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
}

impl Web {
    pub(crate) fn start(script: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_with(None, script)
    }

    /// With this certificate.
    pub(crate) fn start_tls(identity: &Identity, script: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let chain = CertificateDer::pem_file_iter(&identity.cert).unwrap().collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = builder.with_single_cert(chain, key).unwrap();
        Self::start_with(Some(TlsAcceptor::from(Arc::new(config))), script)
    }

    fn start_with(tls: Option<TlsAcceptor>, script: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared =
            Arc::new(Shared { script: Box::new(script), seen: Mutex::default(), connections: AtomicUsize::new(0) });
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

    /// In the order in which they came.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.body).collect()
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
    let seen = {
        let mut all = shared.seen.lock().unwrap();
        let seen = Seen {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            earlier: all.iter().filter(|earlier| earlier.body == body).count(),
            body,
        };
        all.push(seen.clone());
        seen
    };
    let (status, headers, body) = match (shared.script)(&seen) {
        Answer::Status(status) => (status, &[][..], ""),
        Answer::With(status, headers, body) => (status, headers, body),
        Answer::Silence => std::future::pending().await,
    };
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Ok(response.body(Full::new(Bytes::from(body))).unwrap())
}
