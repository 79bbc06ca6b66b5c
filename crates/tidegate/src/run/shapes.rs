//! Servers of shapes: the process of `tidegate shapes`, and `[shapes]` of a gateway.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tidegate_admin::AdminContext;
use tidegate_config::stream::GatewayTarget;
use tidegate_config::{Config, Secret, ShapesConfig, UserSecret, pgpass};
use tidegate_http_listener::TlsSource;
use tidegate_logging as log;
use tidegate_shapes::{DatabaseLogin, PublicationMode, ShapesOptions, SlotFeed};
use tidegate_supervise::{Scope, Unkeyed};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::streams::gateway_socket;
use crate::cli::ShapesArgs;

/// How long requests and the stream have to end.
const GRACE: Duration = Duration::from_secs(10);
const ABORT: Duration = Duration::from_secs(2);

/// Runs `tidegate shapes` until a signal stops it.
///
/// # Errors
/// If the URL, the address or the folder cannot be used.
pub(super) fn run(arguments: &ShapesArgs) -> anyhow::Result<()> {
    log::init(&arguments.log())?;
    let login = arguments.login().map_err(|text| anyhow::anyhow!("{text}"))?;
    let feed = SlotFeed::from_url(&arguments.url()).map_err(|text| anyhow::anyhow!("{text}"))?;
    let bind = |address| tidegate_shapes::bind(address).with_context(|| format!("cannot listen on {address}"));
    let socket = bind(arguments.listen)?;
    let metrics = arguments.metrics.map(bind).transpose()?;
    let certificate = arguments.tls()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Install the handlers before the process becomes visible to others.
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let scope: Scope = Scope::root("shapes");
        let server = tidegate_shapes::start(arguments.options(), login, Arc::new(feed), &scope)?;
        let tls: TlsSource = Arc::new(move || certificate.clone());
        tidegate_shapes::serve(&server, vec![socket], Arc::clone(&tls), &scope).context("cannot serve")?;
        if let Some(socket) = metrics {
            tidegate_admin::http::serve_shapes(&server, socket, tls, &scope)?;
        }
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("stopping");
        let report = scope.stop(tokio::time::sleep, GRACE, ABORT).await;
        tracing::info!(%report, "stopped");
        Ok(())
    })
}

/// Pause between attempts to start.
const START_PAUSE: Duration = Duration::from_secs(1);
/// Pause between attempts while the previous process of a take-over still has the folder.
const HANDOVER_PAUSE: Duration = Duration::from_millis(20);
/// How long the previous process may keep the folder before the failed attempts are logged as errors.
const HANDOVER_LIMIT: Duration = Duration::from_secs(15);
/// How long the requests and the stream have to end in a gateway.
const STOP_GRACE: Duration = Duration::from_secs(3);
const STOP_ABORT: Duration = Duration::from_secs(1);

/// The server of `[shapes]`, on threads of its own.
pub(super) struct RunningShapes {
    runtime: Option<Runtime>,
    scope: Scope,
    context: Arc<AdminContext>,
}

impl RunningShapes {
    /// Answers the waiting requests, ends the stream and closes the logs. The next process can serve on the folder then.
    pub(super) async fn stop(mut self) {
        if let Some(server) = self.context.shapes() {
            server.end_waits();
        }
        let report = self.scope.stop(tokio::time::sleep, STOP_GRACE, STOP_ABORT).await;
        tracing::info!(%report, "live queries ended");
        if let Some(runtime) = self.runtime.take() {
            // Here, because the task that starts the server is not in the scope.
            runtime.shutdown_background();
        }
    }
}

impl Drop for RunningShapes {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The logs survive: unwritten changes are sent again by Postgres.
            runtime.shutdown_background();
        }
    }
}

/// Starts the configured server; `None` without one. Addresses without a socket are bound as soon as they are free. A process
/// that takes over waits for the previous one: clients wait in the sockets meanwhile.
///
/// # Errors
/// If the URL is malformed, or the name cannot be that of a slot.
pub(super) fn start(
    context: &Arc<AdminContext>,
    sockets: Vec<TcpListener>,
    is_successor: bool,
) -> anyhow::Result<Option<RunningShapes>> {
    let gateway = &context.gateway;
    let setup = gateway.config.setup();
    let config = &setup.config.shapes;
    if config.database.is_empty() {
        return Ok(None);
    }
    crate::cli::slot_suffix(&config.name).map_err(|text| anyhow::anyhow!("shapes.name: {text}"))?;
    let password = |user: &str| password_of(user, &setup.config).cloned();
    let url = pgpass::with_password_or(config.database.reveal(), &crate::cli::environment, password);
    let login = match config.pool.reveal() {
        "" => DatabaseLogin::from_url(&url).context("shapes.database")?,
        pool => {
            let target = GatewayTarget::from_url(pool);
            // The value may have a password.
            let target = target.map_err(|_| anyhow::anyhow!("shapes.pool: write gateway://USER@DATABASE"))?;
            DatabaseLogin::through_gateway(
                gateway_socket(gateway, &context.workers),
                &with_password(target, &setup.config),
            )
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let (config, scope) = (config.clone(), gateway.lifecycle.scope.child::<Unkeyed>("shapes"));
    let (shown_by, tasks) = (context.clone(), scope.clone());
    runtime.spawn(async move {
        let begun = Instant::now();
        loop {
            let attempt = tasks.child::<Unkeyed>("server");
            let Err(error) = start_on(&shown_by, &config, &login, &url, &sockets, &attempt) else { return };
            let is_taking_over = is_successor && begun.elapsed() < HANDOVER_LIMIT;
            if is_taking_over {
                tracing::debug!(error = format!("{error:#}"), "live queries wait for the previous process");
            } else {
                tracing::error!(error = format!("{error:#}"), "cannot serve shapes; trying again in {START_PAUSE:?}");
            }
            // Tasks that were started keep the folder from the next attempt.
            let _ = attempt.stop(tokio::time::sleep, GRACE, ABORT).await;
            tokio::time::sleep(if is_taking_over { HANDOVER_PAUSE } else { START_PAUSE }).await;
        }
    });
    Ok(Some(RunningShapes { runtime: Some(runtime), scope, context: context.clone() }))
}

/// The socket of an address: a copy, because the start may fail later.
fn socket_at(address: SocketAddr, sockets: &[TcpListener]) -> anyhow::Result<TcpListener> {
    let found = sockets.iter().find(|socket| socket.local_addr().ok() == Some(address));
    let socket = found.map_or_else(|| tidegate_shapes::bind(address), TcpListener::try_clone);
    socket.with_context(|| format!("cannot listen on {address}"))
}

/// The target with the password of its user in `[users]`, unless it has one.
fn with_password(mut target: GatewayTarget, config: &Config) -> GatewayTarget {
    if target.password.is_empty()
        && let Some(password) = password_of(&target.user, config)
    {
        target.password = password.clone();
    }
    target
}

/// The password of a user in `[users]`.
fn password_of<'c>(user: &str, config: &'c Config) -> Option<&'c Secret> {
    match config.users.get(user)?.secret.as_ref()? {
        UserSecret::Plain(password) => Some(password),
        _ => None,
    }
}

fn start_on(
    context: &AdminContext,
    config: &ShapesConfig,
    login: &DatabaseLogin,
    url: &str,
    sockets: &[TcpListener],
    scope: &Scope,
) -> anyhow::Result<()> {
    let sockets = config.addresses.iter().map(|address| socket_at(*address, sockets));
    let sockets = sockets.collect::<anyhow::Result<Vec<_>>>()?;
    let feed = SlotFeed::from_url(url).map_err(|text| anyhow::anyhow!("{text}"))?;
    let server = tidegate_shapes::start(options(config), login.clone(), Arc::new(feed), scope)?;
    let gateway = context.gateway.clone();
    let tls = Arc::new(move || gateway.config.setup().shapes_tls.clone());
    tidegate_shapes::serve(&server, sockets, tls, scope).context("cannot serve")?;
    context.set_shapes(&server);
    Ok(())
}

fn options(config: &ShapesConfig) -> ShapesOptions {
    let mut options = ShapesOptions::new(config.storage.clone());
    options.name.clone_from(&config.name);
    if !config.manage_publication {
        options.publication = PublicationMode::Manual;
    }
    options.secret = Some(config.secret.reveal().to_owned()).filter(|secret| !secret.is_empty());
    options.allow_deletion = config.allow_deletion;
    options.chunk_bytes = config.chunk_bytes.into();
    options.storage_bytes_max = config.storage_bytes_max;
    options.shapes_max = usize::try_from(config.shapes_max).unwrap_or(usize::MAX);
    options.requests_max = usize::try_from(config.requests_max).unwrap_or(usize::MAX);
    options.request_rate_max = config.request_rate_max;
    options.connections_max = usize::try_from(config.connections_max).unwrap_or(usize::MAX);
    options
}
