//! The web console: one embedded page, and the JSON that it shows.
//!
//! The page loads nothing from elsewhere and runs under a strict Content-Security-Policy. Its users are those of the console
//! that have a password in `[users]`; a login is a cookie that scripts cannot read. Requests that change the gateway are POSTs
//! with a JSON body from the page's own origin, by a user of `admin.users`. Pages are updated by server-sent events: a table is
//! computed once a second for all viewers, and only while a page shows it.

mod actions;
mod assets;
mod feed;
mod guard;
mod history;
mod login;
mod queries;
mod sessions;
mod tables;

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr, TcpListener as Bound},
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderValue},
};
use serde_json::{Value, json};
use tidegate_http_listener::{
    ConnectionSlot, HttpConnection, HttpServer, HttpService, ListenerOptions, RequestStage, serve as serve_sockets,
};
use tidegate_supervise::{ChildClass, Ctx, Restart, Scope, Supervisor, Tokio};
use tokio::sync::Semaphore;

use self::{
    feed::TableFeed,
    guard::Refusal,
    sessions::{Sessions, Viewer},
};
use crate::context::AdminContext;
use tidegate_tasks as tasks;

/// Limit for the body of a request.
const BODY_LIMIT: Duration = Duration::from_secs(10);
/// Limit of the body of a request, in bytes.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Limit of pages that follow a table at a time.
const FOLLOWERS_MAX: usize = 32;

/// Body of a response: complete, or a stream of events.
type Body = UnsyncBoxBody<Bytes, Infallible>;

/// State of the web console.
struct WebConsole {
    context: Arc<AdminContext>,
    sessions: Sessions,
    feed: TableFeed,
    followers: AtomicUsize,
    /// Permits for password checks.
    checks: Semaphore,
}

/// Serves the web console on the sockets until the scope is stopped.
///
/// # Errors
/// If a socket cannot be registered.
pub fn serve(context: &Arc<AdminContext>, sockets: Vec<Bound>) -> anyhow::Result<Scope<SocketAddr>> {
    let gateway = &context.gateway;
    let scope: Supervisor<Tokio, SocketAddr> =
        tasks::observed_scope(&gateway.lifecycle.scope, "web").build().on(Tokio::current());
    if sockets.is_empty() {
        return Ok(scope.scope().clone());
    }
    let connections: Supervisor<Tokio, HttpConnection> = scope.child("connections");
    let feeds: Supervisor<Tokio, &'static str> = scope.child("feed");
    let web = Arc::new(WebConsole {
        context: context.clone(),
        sessions: Sessions::default(),
        feed: TableFeed::new(),
        followers: AtomicUsize::new(0),
        checks: Semaphore::new(login::CHECKS_MAX),
    });
    let tls = gateway.config.setup().web_tls.is_some();
    let owner = gateway.clone();
    let server = HttpServer {
        options: ListenerOptions::DEFAULT,
        tls: Arc::new(move || owner.config.setup().web_tls.clone()),
        service: WebService(web.clone()),
    };
    for address in serve_sockets(&scope, &connections, sockets, server)? {
        tracing::info!(%address, tls, "serving the web console");
    }
    let class = ChildClass::new(tasks::unlimited_restarts(Restart::Permanent), move |_: &&'static str, ctx: Ctx| {
        let web = web.clone();
        async move {
            tokio::select! {
                () = ctx.cancelled() => {}
                () = TableFeed::run(&web) => {}
            }
        }
    });
    let _ = feeds.spawn_kept("samples", &class);
    Ok(scope.scope().clone())
}

#[derive(Clone)]
struct WebService(Arc<WebConsole>);

impl HttpService for WebService {
    type Body = Body;

    async fn answer(self, request: Request<Incoming>, slot: Arc<ConnectionSlot>) -> Response<Body> {
        let response = self.0.answer(request, slot.peer().ip(), &slot).await;
        let is_stream = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == feed::EVENT_STREAM);
        // A page that follows a table keeps its connection; the number of followers has a limit of its own.
        slot.set(if is_stream { RequestStage::Page } else { RequestStage::Reply });
        response
    }
}

impl WebConsole {
    /// Answers a request; every response has the security headers.
    async fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        peer: IpAddr,
        slot: &ConnectionSlot,
    ) -> Response<Body> {
        let is_tls = self.context.gateway.config.setup().web_tls.is_some();
        let mut response =
            match guard::check_host(&request, &self.context.gateway.config.setup().config.admin_http.hosts) {
                Ok(()) => self.route(request, peer, slot).await.unwrap_or_else(|refusal| refusal.response()),
                Err(refusal) => refusal.response(),
            };
        guard::add_headers(response.headers_mut(), is_tls);
        response
    }

    async fn route(
        self: &Arc<Self>,
        request: Request<Incoming>,
        peer: IpAddr,
        slot: &ConnectionSlot,
    ) -> Result<Response<Body>, Refusal> {
        let path = request.uri().path().to_owned();
        let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
        if let Some(asset) = assets::find(&path) {
            return if is_get { Ok(asset.response()) } else { Err(Refusal::Method) };
        }
        match path.as_str() {
            "/api/login" | "/api/logout" | "/api/action" => {
                guard::check_change(&request)?;
                let viewer = self.viewer(&request);
                let token = guard::cookie(request.headers()).map(str::to_owned);
                let body = read_body(request).await?;
                // The request depends on the gateway only.
                slot.set(RequestStage::Page);
                match path.as_str() {
                    "/api/login" => self.log_in(&body, peer).await,
                    "/api/logout" => Ok(self.log_out(token.as_deref())),
                    _ => actions::run(self, &viewer.ok_or(Refusal::LoggedOut)?, &body, peer).await,
                }
            }
            "/api/session" | "/api/events" | "/api/history" | "/api/queries" | "/api/records" | "/api/config" => {
                if !is_get {
                    return Err(Refusal::Method);
                }
                let viewer = self.viewer(&request);
                if path == "/api/session" {
                    // The page asks before the login, too; an error would appear in the log of the browser.
                    let shown = viewer.map_or_else(|| json!({ "user": null }), |viewer| self.describe(&viewer));
                    return Ok(reply(StatusCode::OK, &shown));
                }
                slot.set(RequestStage::Page);
                let query = request.uri().query().unwrap_or_default();
                self.read(&path, query, &viewer.ok_or(Refusal::LoggedOut)?).await
            }
            _ => Err(Refusal::NotFound),
        }
    }

    /// Answers a request that changes nothing.
    async fn read(self: &Arc<Self>, path: &str, query: &str, viewer: &Viewer) -> Result<Response<Body>, Refusal> {
        let pairs = || query.split('&').filter_map(|pair| pair.split_once('='));
        let value = |name: &str| pairs().find(|(key, _)| *key == name).map(|(_, value)| value);
        match path {
            "/api/history" => Ok(reply(StatusCode::OK, &self.feed.history())),
            "/api/events" => self.feed.follow(self, value("topic").unwrap_or_default()),
            "/api/queries" => queries::slow(self, value("minutes"), viewer).await,
            "/api/records" => queries::latest(self, value("minutes"), value("only"), viewer).await,
            _ => Ok(tables::configuration(&self.context.gateway, viewer).await),
        }
    }

    /// The user of a request; `None` without a valid login, or if the user is no longer a user of the console.
    fn viewer(&self, request: &Request<Incoming>) -> Option<Viewer> {
        let setup = self.context.gateway.config.setup();
        let user = self.sessions.find(guard::cookie(request.headers())?, setup.config.admin_http.session_idle)?;
        Viewer::of(&setup.config.admin, user)
    }

    /// The user and the gateway, for the page.
    fn describe(&self, viewer: &Viewer) -> Value {
        json!({
            "user": viewer.user,
            "may_change": viewer.may_change,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "has_query_log": self.context.gateway.query_log.as_ref().is_some_and(|query_log| query_log.folder().is_some()),
        })
    }
}

async fn read_body(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let body = tidegate_http_listener::read_body(request.into_body(), BODY_BYTES_MAX, BODY_LIMIT).await;
    body.map_err(|_| Refusal::Body)
}

fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed_unsync()
}

/// A response with a JSON body.
fn reply(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(full(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
