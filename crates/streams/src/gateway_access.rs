//! Access to the gateway for streams whose sink is `gateway://`.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tidegate_config::{Config, Host, Secret, StreamConfig, UserSecret, stream::StreamSink};

/// Opens connections to the gateway.
#[derive(Clone)]
pub enum GatewayConnector {
    /// Connects to the gateway in this process, as if a client had connected to its unix socket.
    InProcess(Arc<dyn Fn() -> io::Result<UnixStream> + Send + Sync>),
    /// Connects to another process, at one of these addresses.
    Hosts(Vec<Host>),
}

/// Access of streams to the gateway.
#[derive(Clone)]
pub struct GatewayAccess {
    /// How to connect; `None` without a gateway.
    pub connector: Option<GatewayConnector>,
    passwords: Arc<BTreeMap<String, Secret>>,
}

impl GatewayAccess {
    /// Access to the gateway of this configuration through `connector`.
    #[must_use]
    pub fn new(connector: GatewayConnector, config: &Config) -> Self {
        let plain = |(name, user): (&String, &tidegate_config::User)| match &user.secret {
            Some(UserSecret::Plain(password)) => Some((name.clone(), password.clone())),
            _ => None,
        };
        Self { connector: Some(connector), passwords: Arc::new(config.users.iter().filter_map(plain).collect()) }
    }

    /// No gateway.
    #[must_use]
    pub fn none() -> Self {
        Self { connector: None, passwords: Arc::default() }
    }

    /// Access to a gateway in another process, at the unix socket or the addresses of its configuration.
    #[must_use]
    pub fn remote(config: &Config) -> Self {
        let listen = &config.listen;
        let port = listen.addresses.first().map_or(tidegate_config::DEFAULT_PORT, std::net::SocketAddr::port);
        let socket = listen.unix_socket().map(|_| {
            let port = if listen.unix_socket_port == 0 { port } else { listen.unix_socket_port };
            Host::Unix { dir: listen.unix_socket_dir.clone(), port }
        });
        let local_name = |address: &std::net::SocketAddr| match address.ip() {
            ip if ip.is_unspecified() && ip.is_ipv4() => "127.0.0.1".to_owned(),
            ip if ip.is_unspecified() => "::1".to_owned(),
            ip => ip.to_string(),
        };
        let tcp = listen.addresses.iter().map(|address| Host::Tcp { name: local_name(address), port: address.port() });
        Self::new(GatewayConnector::Hosts(socket.into_iter().chain(tcp).collect()), config)
    }

    /// Whether a stream logs in with the same password.
    pub(super) fn has_same_login(&self, other: &Self, stream: &StreamConfig) -> bool {
        match &stream.keys.to {
            StreamSink::Gateway(target) => self.password(&target.user) == other.password(&target.user),
            _ => true,
        }
    }

    /// The password of a user in `[users]`, if it is stored in plain text.
    #[must_use]
    pub fn password(&self, user: &str) -> Option<&Secret> {
        self.passwords.get(user)
    }
}

impl std::fmt::Debug for GatewayAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewayAccess").field("is_available", &self.connector.is_some()).finish_non_exhaustive()
    }
}
