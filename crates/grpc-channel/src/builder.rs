//! Options of a channel.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use http::uri::{Authority, Scheme};
use tidegate_backoff::DURATION_MAX;
use tidegate_balance::{
    Backoff, Balancer, BalancerSettings, DnsClient, EndpointAddress, InitialState, NameWatcher, OutlierDetection,
    PickFirst, Policy, ResolveNow, ResolveSettings, ResolverFactory, Target, TargetError,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::channel::Channel;
use crate::connector::{ChannelConnector, ConnectFn, ConnectionSettings, boxed};
use crate::driver::{ChannelDriver, EndpointSource};
use crate::service_config::{ServiceConfig, ServiceConfigError};
use crate::state::{CallConfig, ChannelState};

/// Maximum number of connections to a backend.
const CONNECTIONS_MAX: usize = 1_000;

/// Builds a [`Channel`].
#[must_use = "a builder does nothing until `build`"]
pub struct ChannelBuilder {
    target: String,
    resolver: Option<ResolverFactory>,
    dns: Option<DnsClient>,
    resolve: ResolveSettings,
    policy: Arc<dyn Policy>,
    service_config: Option<String>,
    settings: BalancerSettings,
    connection: ConnectionSettings,
    connect_fn: Option<ConnectFn>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<tokio_rustls::rustls::ClientConfig>>,
    authority: Option<String>,
    connections: usize,
    drain_timeout: Duration,
    timeout: Option<Duration>,
    wait_for_ready: bool,
    replay_bytes_max: usize,
    seed: u64,
}

/// Why a channel cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelBuildError {
    /// The target is invalid.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The service config is invalid.
    #[error(transparent)]
    ServiceConfig(#[from] ServiceConfigError),
    /// Neither the target nor [`ChannelBuilder::authority`] is a valid authority.
    #[error("`{0}` cannot be the authority of a request: set one with `authority`")]
    Authority(String),
    /// The target is `https` without TLS: calls would be sent unencrypted.
    #[error("`{0}` asks for TLS: set it with `tls` (feature `tls`), or write `http` for connections without TLS")]
    NoTls(String),
}

impl ChannelBuilder {
    pub(crate) fn new(target: &str) -> Self {
        Self {
            target: target.to_owned(),
            resolver: None,
            dns: None,
            resolve: ResolveSettings::default(),
            policy: Arc::new(PickFirst::default()),
            service_config: None,
            settings: BalancerSettings::default(),
            connection: ConnectionSettings::default(),
            connect_fn: None,
            #[cfg(feature = "tls")]
            tls: None,
            authority: None,
            connections: 1,
            drain_timeout: Duration::from_secs(30),
            timeout: None,
            wait_for_ready: false,
            replay_bytes_max: 256 * 1024,
            seed: fastrand::u64(..),
        }
    }

    /// Sets the policy for a service config without one. Default: [`PickFirst`], as in gRPC.
    pub fn policy(mut self, policy: impl Policy) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// Sets gRPC's service config, in JSON.
    pub fn service_config(mut self, json: &str) -> Self {
        self.service_config = Some(json.to_owned());
        self
    }

    /// Sets when the target is resolved again.
    pub fn resolve(mut self, settings: ResolveSettings) -> Self {
        self.resolve = settings;
        self
    }

    /// Sets the DNS client. Default: the system's name servers. Channels with the same client share its limit on concurrent
    /// lookups.
    pub fn dns(mut self, dns: DnsClient) -> Self {
        self.dns = Some(dns);
        self
    }

    /// Sets a custom resolver. The target is then only the authority.
    pub fn resolver(mut self, factory: ResolverFactory) -> Self {
        self.resolver = Some(factory);
        self
    }

    /// Sets a custom function that connects to an address. A panic in it is a failed connect.
    pub fn connector<F, R, S>(mut self, connect: F) -> Self
    where
        F: Fn(EndpointAddress) -> R + Send + Sync + 'static,
        R: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.connect_fn = Some(boxed(connect));
        self
    }

    /// Sets TLS, for any scheme of the target. A target that starts with `https` is refused without it. The verified name is the
    /// host of the authority. Sets ALPN to `h2`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, mut config: tokio_rustls::rustls::ClientConfig) -> Self {
        config.alpn_protocols = vec![b"h2".into()];
        self.tls = Some(Arc::new(config));
        self
    }

    /// Sets the `:authority` of requests, and the name that TLS verifies. Default: the authority of the target.
    pub fn authority(mut self, authority: &str) -> Self {
        self.authority = Some(authority.to_owned());
        self
    }

    /// Sets the number of connections to each backend, from 1 to 1,000. Default: 1. A connection has one lock and one congestion
    /// window.
    pub fn connections_per_endpoint(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(1, CONNECTIONS_MAX);
        self
    }

    /// Sets the time limit of a connect. Default: 20 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connection.connect_timeout = timeout;
        self
    }

    /// Sets the limit of the head of a response, in bytes as HTTP/2 counts them: names, values, and 32 bytes for each. Default:
    /// 16 KiB. A response above it ends with `INTERNAL`, is not retried, and does not count against its backend. Of trailers
    /// above it, the last fields are missing.
    pub fn response_head_bytes_max(mut self, bytes: u32) -> Self {
        self.connection.response_head_bytes_max = bytes;
        self
    }

    /// Pings a connection that is silent for `interval`, and closes it after `timeout` without an answer.
    ///
    /// Off by default, because servers may close connections that ping too often. Without it, only the operating system detects a
    /// backend that disappeared, after many minutes.
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        // hyper adds both to the clock.
        self.connection.keep_alive = Some((interval.min(DURATION_MAX), timeout.min(DURATION_MAX)));
        self
    }

    /// Sets the delay between connects.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Sets the outlier detection for a service config without one.
    pub fn outlier_detection(mut self, rules: OutlierDetection) -> Self {
        self.settings.outlier_detection = Some(rules);
        self
    }

    /// See [`BalancerSettings::panic_threshold`].
    pub fn panic_threshold(mut self, share: f64) -> Self {
        self.settings.panic_threshold = share;
        self
    }

    /// See [`BalancerSettings::slow_start`].
    pub fn slow_start(mut self, duration: Duration) -> Self {
        self.settings.slow_start = duration;
        self
    }

    /// Sets how long calls of a removed backend may take to end. Default: 30 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets the time limit for the start of a response, for methods without a timeout in the service config. The timeout of a
    /// method, or of a call (`grpc-timeout`), covers the whole response, and the server gets the remaining time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets whether calls wait for a backend regardless of failed connects, for methods without this setting in the service
    /// config.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = wait;
        self
    }

    /// Sets how many bytes of a request are kept for a retry. Default: 256 KiB. A longer request is sent once.
    pub fn replay_bytes_max(mut self, bytes: usize) -> Self {
        self.replay_bytes_max = bytes;
        self
    }

    /// Makes random decisions repeatable.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Builds the channel and its driver. The channel does nothing until the driver [runs](ChannelDriver::run).
    ///
    /// # Errors
    ///
    /// If the target or the service config is invalid, or if the target is `https` without TLS.
    pub fn build(mut self) -> Result<(Channel, ChannelDriver), ChannelBuildError> {
        let config = self.service_config.take().map(|json| ServiceConfig::from_json(&json)).transpose()?;
        let config = config.unwrap_or_default();
        let target: Option<Target> = match &self.resolver {
            Some(_) => None,
            None => Some(self.target.parse()?),
        };
        let origin = self.origin(target.as_ref())?;
        let connector = ChannelConnector {
            connect_fn: self.connect_fn.take(),
            settings: self.connection,
            #[cfg(feature = "tls")]
            tls: self.tls.take().map(|tls| (tls, origin.1.host().to_owned())),
        };
        let settings = BalancerSettings {
            initial_state: InitialState::Idle,
            outlier_detection: config.outlier_detection.or(self.settings.outlier_detection),
            ..self.settings.clone()
        };
        let policy = config.policy.clone().unwrap_or_else(|| Arc::clone(&self.policy));
        let balancer = Balancer::with_policy(policy, settings, self.seed, Instant::now());
        let resolve_now = ResolveNow::default();
        let source = self.source(target, &resolve_now);
        let (alive, dropped) = watch::channel(());
        let driver = ChannelDriver::new(balancer.clone(), connector, source, resolve_now.clone(), dropped).with(
            self.connections,
            self.drain_timeout,
            self.settings.backoff,
        );
        let state = ChannelState {
            balancer,
            config: RwLock::new(Arc::new(CallConfig::new(config))),
            policy: self.policy,
            outlier_detection: self.settings.outlier_detection,
            resolve_now,
            origin,
            timeout: self.timeout,
            wait_for_ready: self.wait_for_ready,
            replay_bytes_max: self.replay_bytes_max,
            alive,
        };
        Ok((Channel(Arc::new(state)), driver))
    }

    fn origin(&self, target: Option<&Target>) -> Result<(Scheme, Authority), ChannelBuildError> {
        #[cfg(feature = "tls")]
        let scheme = if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        #[cfg(not(feature = "tls"))]
        let scheme = Scheme::HTTP;
        if scheme == Scheme::HTTP && is_https(&self.target) {
            return Err(ChannelBuildError::NoTls(self.target.clone()));
        }
        let of_target = || target.map_or_else(|| self.target.clone(), Target::authority);
        let text = self.authority.clone().unwrap_or_else(of_target);
        let authority = text.parse().map_err(|_| ChannelBuildError::Authority(text))?;
        Ok((scheme, authority))
    }

    fn source(&mut self, target: Option<Target>, resolve_now: &ResolveNow) -> EndpointSource {
        let dns = |own: &Option<DnsClient>, server: Option<SocketAddr>| match (server, own) {
            (Some(server), _) => DnsClient::from_servers([server]),
            (None, Some(own)) => own.clone(),
            (None, None) => DnsClient::system(),
        };
        let factory: ResolverFactory = match (self.resolver.take(), target) {
            (Some(factory), _) => factory,
            (None, Some(Target::Static(addresses))) => return EndpointSource::Static(addresses),
            (None, Some(Target::Name { server, host, port })) => {
                let dns = dns(&self.dns, server);
                Box::new(move || Ok(dns.host(&host, port)))
            }
            (None, Some(Target::Srv { server, name })) => {
                let dns = dns(&self.dns, server);
                Box::new(move || Ok(dns.srv(&name)))
            }
            // `build` parses a target if there is no resolver.
            (None, None) => return EndpointSource::Static(Vec::new()),
        };
        let watcher = NameWatcher::new(factory, self.resolve.clone(), resolve_now.clone(), self.seed ^ 1);
        EndpointSource::Resolved(Box::new(watcher))
    }
}

/// Returns whether a target asks for TLS: a parsed [`Target`] has no scheme.
fn is_https(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("https"))
}

impl std::fmt::Debug for ChannelBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelBuilder").field("target", &self.target).finish_non_exhaustive()
    }
}
