//! How a stream becomes a client of the gateway: by a socket of its own, without a network between.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tidegate_config::{Config, Host, Secret, Stream, UserSecret, stream::Target};

/// Opens a connection to the gateway.
#[derive(Clone)]
pub enum Door {
    /// To the gateway of this process, as if a client had connected to its unix socket.
    Inside(Arc<dyn Fn() -> io::Result<UnixStream> + Send + Sync>),
    /// To one that runs somewhere, at one of these.
    Outside(Vec<Host>),
}

/// What streams have to know of the gateway.
#[derive(Clone)]
pub struct Doors {
    /// How to reach it; `None` if there is none.
    pub door: Option<Door>,
    passwords: Arc<BTreeMap<String, Secret>>,
}

impl Doors {
    /// The gateway of this configuration, to be reached by that door.
    #[must_use]
    pub fn new(door: Door, config: &Config) -> Self {
        let plain = |(name, user): (&String, &tidegate_config::User)| match &user.secret {
            Some(UserSecret::Plain(password)) => Some((name.clone(), password.clone())),
            _ => None,
        };
        Self { door: Some(door), passwords: Arc::new(config.users.iter().filter_map(plain).collect()) }
    }

    /// No gateway at all.
    #[must_use]
    pub fn none() -> Self {
        Self { door: None, passwords: Arc::default() }
    }

    /// The gateway of a configuration as other processes reach it: at its unix socket, or at its addresses.
    #[must_use]
    pub fn outside(config: &Config) -> Self {
        let listen = &config.listen;
        let port = listen.addresses.first().map_or(tidegate_config::DEFAULT_PORT, std::net::SocketAddr::port);
        let socket = listen.unix_socket().map(|_| {
            let port = if listen.unix_socket_port == 0 { port } else { listen.unix_socket_port };
            Host::Unix { dir: listen.unix_socket_dir.clone(), port }
        });
        let reachable = |address: &std::net::SocketAddr| match address.ip() {
            ip if ip.is_unspecified() && ip.is_ipv4() => "127.0.0.1".to_owned(),
            ip if ip.is_unspecified() => "::1".to_owned(),
            ip => ip.to_string(),
        };
        let tcp = listen.addresses.iter().map(|address| Host::Tcp { name: reachable(address), port: address.port() });
        Self::new(Door::Outside(socket.into_iter().chain(tcp).collect()), config)
    }

    /// Whether a stream logs in with the same password by either.
    pub(super) fn lets_in_like(&self, other: &Self, stream: &Stream) -> bool {
        match &stream.keys.to {
            Target::Gateway(target) => self.password(&target.user) == other.password(&target.user),
            _ => true,
        }
    }

    /// The password of a user of `[users]`, if it is kept as it is.
    #[must_use]
    pub fn password(&self, user: &str) -> Option<&Secret> {
        self.passwords.get(user)
    }
}

impl std::fmt::Debug for Doors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doors").field("is_there", &self.door.is_some()).finish_non_exhaustive()
    }
}
