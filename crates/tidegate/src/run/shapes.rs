//! Servers of shapes: the process of `tidegate shapes`, and `[shapes]` of a gateway.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tidegate_config::stream::GatewayTarget;
use tidegate_config::{Config, ShapesConfig, UserSecret, pgpass};
use tidegate_http_listener::TlsSource;
use tidegate_logging as log;
use tidegate_proxy::plane::Gateway;
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

/// Pause between attempts to start, while the previous process of a take-over still has the folder and the address.
const START_PAUSE: Duration = Duration::from_secs(1);

/// The server of `[shapes]`, on threads of its own. Ends when dropped.
pub(super) struct RunningShapes(Option<Runtime>);

impl Drop for RunningShapes {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // The logs survive: unwritten changes are sent again by Postgres.
            runtime.shutdown_background();
        }
    }
}

/// Starts the configured server; `None` without one.
///
/// # Errors
/// If the URL is malformed, or the name cannot be that of a slot.
pub(super) fn start(gateway: &Arc<Gateway>) -> anyhow::Result<Option<RunningShapes>> {
    let setup = gateway.config.setup();
    let config = &setup.config.shapes;
    if config.database.is_empty() {
        return Ok(None);
    }
    crate::cli::slot_suffix(&config.name).map_err(|text| anyhow::anyhow!("shapes.name: {text}"))?;
    let url = pgpass::with_password(config.database.reveal(), &crate::cli::environment);
    let login = match config.pool.reveal() {
        "" => DatabaseLogin::from_url(&url).context("shapes.database")?,
        pool => {
            let target = GatewayTarget::from_url(pool);
            // The value may have a password.
            let target = target.map_err(|_| anyhow::anyhow!("shapes.pool: write gateway://USER@DATABASE"))?;
            DatabaseLogin::through_gateway(gateway_socket(gateway), &with_password(target, &setup.config))
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let (config, scope) = (config.clone(), gateway.lifecycle.scope.child::<Unkeyed>("shapes"));
    let gateway = gateway.clone();
    runtime.spawn(async move {
        loop {
            let attempt = scope.child::<Unkeyed>("server");
            let Err(error) = start_on(&gateway, &config, &login, &url, &attempt) else { return };
            tracing::error!(error = format!("{error:#}"), "cannot serve shapes; trying again in {START_PAUSE:?}");
            // Tasks that were started keep the folder from the next attempt.
            let _ = attempt.stop(tokio::time::sleep, GRACE, ABORT).await;
            tokio::time::sleep(START_PAUSE).await;
        }
    });
    Ok(Some(RunningShapes(Some(runtime))))
}

/// The target with the password of its user in `[users]`, unless it has one.
fn with_password(mut target: GatewayTarget, config: &Config) -> GatewayTarget {
    if target.password.is_empty()
        && let Some(UserSecret::Plain(password)) = config.users.get(&target.user).and_then(|user| user.secret.as_ref())
    {
        target.password = password.clone();
    }
    target
}

fn start_on(
    gateway: &Arc<Gateway>,
    config: &ShapesConfig,
    login: &DatabaseLogin,
    url: &str,
    scope: &Scope,
) -> anyhow::Result<()> {
    let bind = |address| tidegate_shapes::bind(address).with_context(|| format!("cannot listen on {address}"));
    let sockets = config.addresses.iter().copied().map(bind).collect::<anyhow::Result<Vec<_>>>()?;
    let feed = SlotFeed::from_url(url).map_err(|text| anyhow::anyhow!("{text}"))?;
    let server = tidegate_shapes::start(options(config), login.clone(), Arc::new(feed), scope)?;
    let owner = gateway.clone();
    let tls = Arc::new(move || owner.config.setup().shapes_tls.clone());
    tidegate_shapes::serve(&server, sockets, tls, scope).context("cannot serve")?;
    // A weak reference: the folder is free as soon as the tasks have ended. Set once, because the loop ends here.
    let _ = gateway.shapes.set(Arc::downgrade(&server));
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
