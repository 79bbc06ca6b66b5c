//! What a channel may be told before it begins.

use std::future::Future;
use std::io;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use http::uri::{Authority, Scheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::connect::{Connect, Http2, Opener, boxed};
use super::driver::{ChannelDriver, Members};
use super::{Calls, Channel, Shared};
use crate::address::Address;
use crate::backoff::Backoff;
use crate::balancer::Balancer;
use crate::outlier::Outlier;
use crate::policy::{PickFirst, Policy};
use crate::resolve::{Dns, Follow, MakeResolver, ResolveNow, ResolveRules};
use crate::service_config::{ServiceConfig, ServiceConfigError};
use crate::settings::{Settings, Start};
use crate::target::{Target, TargetError, is_https};

/// Builds a [`Channel`].
#[must_use = "a builder does nothing until it builds"]
pub struct ChannelBuilder {
    target: String,
    resolver: Option<MakeResolver>,
    dns: Option<Dns>,
    rules: ResolveRules,
    policy: Arc<dyn Policy>,
    service_config: Option<String>,
    settings: Settings,
    http2: Http2,
    opener: Option<Opener>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<tokio_rustls::rustls::ClientConfig>>,
    authority: Option<String>,
    connections: usize,
    drain_within: Duration,
    timeout: Option<Duration>,
    wait_for_ready: bool,
    replay_bytes_max: usize,
    seed: u64,
}

/// Why a channel cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The target is none.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The service config is invalid.
    #[error(transparent)]
    ServiceConfig(#[from] ServiceConfigError),
    /// Neither the target nor [`ChannelBuilder::authority`] tells a name for the servers.
    #[error("`{0}` cannot be the authority of a request: set one with `authority`")]
    Authority(String),
    /// The target is `https`, and there is no TLS: calls would go out for everybody to read.
    #[error("`{0}` asks for TLS: set it with `tls` (feature `tls`), or write `http` if none is wanted")]
    NoTls(String),
}

impl ChannelBuilder {
    pub(super) fn new(target: &str) -> Self {
        Self {
            target: target.to_owned(),
            resolver: None,
            dns: None,
            rules: ResolveRules::default(),
            policy: Arc::new(PickFirst::default()),
            service_config: None,
            settings: Settings::default(),
            http2: Http2::default(),
            opener: None,
            #[cfg(feature = "tls")]
            tls: None,
            authority: None,
            connections: 1,
            drain_within: Duration::from_secs(30),
            timeout: None,
            wait_for_ready: false,
            replay_bytes_max: 256 * 1024,
            seed: fastrand::u64(..),
        }
    }

    /// How to choose, unless the service config says; pick first by default, as in gRPC.
    pub fn policy(mut self, policy: impl Policy) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// gRPC's service config in JSON.
    pub fn service_config(mut self, json: &str) -> Self {
        self.service_config = Some(json.to_owned());
        self
    }

    /// When to look the target up again.
    pub fn resolve(mut self, rules: ResolveRules) -> Self {
        self.rules = rules;
        self
    }

    /// Whom to ask for names; the system's name servers by default. Channels that share one share its bound on look-ups
    /// under way.
    pub fn dns(mut self, dns: Dns) -> Self {
        self.dns = Some(dns);
        self
    }

    /// Finds addresses in a way of one's own. The target is only the authority then.
    pub fn resolver(mut self, make: MakeResolver) -> Self {
        self.resolver = Some(make);
        self
    }

    /// Opens connections in a way of one's own. A panic is an error like others.
    pub fn connector<F, R, S>(mut self, open: F) -> Self
    where
        F: Fn(Address) -> R + Send + Sync + 'static,
        R: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.opener = Some(boxed(open));
        self
    }

    /// TLS, whatever the target's scheme; a target that begins with `https` is refused without it. The name that is
    /// checked is the authority's host, not an address. ALPN is set to `h2`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, mut config: tokio_rustls::rustls::ClientConfig) -> Self {
        config.alpn_protocols = vec![b"h2".into()];
        self.tls = Some(Arc::new(config));
        self
    }

    /// The `:authority` of requests, and the name that TLS checks; the target's by default.
    pub fn authority(mut self, authority: &str) -> Self {
        self.authority = Some(authority.to_owned());
        self
    }

    /// So many connections to each backend; 1 by default. One connection is one lock and one congestion window.
    pub fn connections_per_endpoint(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// A connection that is not there within this time has failed; 20 s by default.
    pub fn connect_timeout(mut self, within: Duration) -> Self {
        self.http2.connect_within = within;
        self
    }

    /// Pings a connection that is silent for `interval`, and ends it when `timeout` passes without an answer. Off by
    /// default, because servers may close connections that ping too often; without it, a backend that vanished without
    /// a word is noticed only by the operating system, after many minutes.
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.http2.keep_alive = Some((interval, timeout));
        self
    }

    /// Pauses between attempts to connect.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// When backends that fail calls are ejected for a while, unless the service config says.
    pub fn outlier(mut self, rules: Outlier) -> Self {
        self.settings.outlier = Some(rules);
        self
    }

    /// See [`Settings::panic_threshold`].
    pub fn panic_threshold(mut self, share: f64) -> Self {
        self.settings.panic_threshold = share;
        self
    }

    /// See [`Settings::slow_start`].
    pub fn slow_start(mut self, within: Duration) -> Self {
        self.settings.slow_start = within;
        self
    }

    /// Calls of a removed backend may take so long to end; 30 s by default.
    pub fn drain_timeout(mut self, within: Duration) -> Self {
        self.drain_within = within;
        self
    }

    /// A call's answer must begin within this time, unless the service config says otherwise for its method. The time of
    /// a method, or of a call (`grpc-timeout`), covers all of the answer, and servers are told what is left of it.
    pub fn timeout(mut self, within: Duration) -> Self {
        self.timeout = Some(within);
        self
    }

    /// Calls wait for a backend, however many attempts to connect failed, unless the service config says otherwise.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = wait;
        self
    }

    /// So many bytes of a request are kept to be sent again; 256 KiB by default. A longer one is sent once.
    pub fn replay_bytes_max(mut self, bytes: usize) -> Self {
        self.replay_bytes_max = bytes;
        self
    }

    /// Makes random decisions repeatable.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The channel, and its driver, which somebody must run: it resolves, connects, drains. Nothing has happened yet.
    ///
    /// # Errors
    ///
    /// When the target or the service config is invalid, or the target is `https` and there is no TLS.
    pub fn build(mut self) -> Result<(Channel, ChannelDriver), BuildError> {
        let config = self.service_config.take().map(|json| ServiceConfig::from_json(&json)).transpose()?;
        let config = config.unwrap_or_default();
        let target: Option<Target> = match &self.resolver {
            Some(_) => None,
            None => Some(self.target.parse()?),
        };
        let origin = self.origin(target.as_ref())?;
        let connect = Connect {
            opener: self.opener.take(),
            http2: self.http2,
            #[cfg(feature = "tls")]
            tls: self.tls.take().map(|tls| (tls, origin.1.host().to_owned())),
        };
        let settings =
            Settings { start: Start::Idle, outlier: config.outlier.or(self.settings.outlier), ..self.settings.clone() };
        let policy = config.policy.clone().unwrap_or_else(|| Arc::clone(&self.policy));
        let balancer = Balancer::with_policy(policy, settings, self.seed, Instant::now());
        let resolve_now = ResolveNow::default();
        let members = self.members(target, &resolve_now);
        let (alive, dropped) = watch::channel(());
        let driver = ChannelDriver::new(balancer.clone(), connect, members, resolve_now.clone(), dropped).with(
            self.connections,
            self.drain_within,
            self.settings.backoff,
        );
        let shared = Shared {
            balancer,
            calls: RwLock::new(Arc::new(Calls::new(config))),
            policy: self.policy,
            outlier: self.settings.outlier,
            resolve_now,
            origin,
            timeout: self.timeout,
            wait_for_ready: self.wait_for_ready,
            replay_bytes_max: self.replay_bytes_max,
            alive,
        };
        Ok((Channel(Arc::new(shared)), driver))
    }

    fn origin(&self, target: Option<&Target>) -> Result<(Scheme, Authority), BuildError> {
        #[cfg(feature = "tls")]
        let scheme = if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        #[cfg(not(feature = "tls"))]
        let scheme = Scheme::HTTP;
        if scheme == Scheme::HTTP && is_https(&self.target) {
            return Err(BuildError::NoTls(self.target.clone()));
        }
        let of_target = || target.map_or_else(|| self.target.clone(), Target::authority);
        let text = self.authority.clone().unwrap_or_else(of_target);
        let authority = text.parse().map_err(|_| BuildError::Authority(text))?;
        Ok((scheme, authority))
    }

    fn members(&mut self, target: Option<Target>, resolve_now: &ResolveNow) -> Members {
        let dns = |own: &Option<Dns>, server: Option<std::net::SocketAddr>| match (server, own) {
            (Some(server), _) => Dns::from_servers([server]),
            (None, Some(own)) => own.clone(),
            (None, None) => Dns::system(),
        };
        let make: MakeResolver = match (self.resolver.take(), target) {
            (Some(make), _) => make,
            (None, Some(Target::Static(addresses))) => return Members::Static(addresses),
            (None, Some(Target::Name { server, host, port })) => {
                let dns = dns(&self.dns, server);
                Box::new(move || Ok(dns.name(&host, port)))
            }
            (None, Some(Target::Srv { server, name })) => {
                let dns = dns(&self.dns, server);
                Box::new(move || Ok(dns.srv(&name)))
            }
            // Without a resolver there is a target: `build` parsed it.
            (None, None) => return Members::Static(Vec::new()),
        };
        let follow = Follow::new(make, self.rules.clone(), resolve_now.clone(), self.seed ^ 1);
        Members::Followed(Box::new(follow))
    }
}

impl std::fmt::Debug for ChannelBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelBuilder").field("target", &self.target).finish_non_exhaustive()
    }
}
