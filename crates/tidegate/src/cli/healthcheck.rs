//! `tidegate healthcheck`: asks a running gateway for a reply, for containers and scripts that have no psql.
//!
//! The check sends an SSLRequest, which every gateway answers with one byte before any login, so it needs no user. A thread of
//! the data plane has to accept and answer it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use socket2::{Domain, Socket, Type};
use tidegate_config::{Config, parse_listen_address};
use tidegate_link::unix_address;

/// `tidegate healthcheck`.
#[derive(Debug, Clone, Args)]
pub struct HealthcheckArgs {
    /// Configuration of the gateway; by default the configuration of `tidegate container`, or tidegate.toml.
    #[arg(short, long, value_name = "FILE", conflicts_with = "address")]
    pub config: Option<PathBuf>,

    /// Address of the gateway, instead of the configured addresses.
    #[arg(short, long, value_name = "IP:PORT", value_parser = parse_listen_address)]
    pub address: Option<SocketAddr>,

    /// Limit for the reply, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=300))]
    pub timeout: u16,
}

/// Where a gateway listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HealthEndpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl HealthEndpoint {
    /// The endpoint of a configuration that is checked: the Unix socket, which no firewall and no TLS setting affects, or the
    /// first address.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let unix = config.listen.unix_socket().map(Self::Unix);
        unix.or_else(|| config.listen.addresses.first().map(|address| Self::Tcp(reachable(*address))))
    }
}

/// The address at which a listener can be reached from this machine.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    address
}

/// SSLRequest: its length, 8, and its code, 80877103.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

impl HealthcheckArgs {
    /// Checks the gateway; prints nothing if it answers. `config` reads the configuration if no address is given.
    ///
    /// # Errors
    /// Why the gateway does not answer.
    pub fn run(&self, config: impl FnOnce() -> anyhow::Result<Config>) -> anyhow::Result<()> {
        let endpoint = match self.address {
            Some(address) => HealthEndpoint::Tcp(reachable(address)),
            None => HealthEndpoint::of(&config()?).context("the configuration has no address to check")?,
        };
        let limit = Duration::from_secs(self.timeout.into());
        let reply = match &endpoint {
            HealthEndpoint::Tcp(address) => TcpStream::connect_timeout(address, limit).and_then(|socket| {
                socket.set_read_timeout(Some(limit))?;
                socket.set_write_timeout(Some(limit))?;
                ask(socket)
            }),
            HealthEndpoint::Unix(path) => connect_unix(path, limit).and_then(ask),
        };
        let shown = match &endpoint {
            HealthEndpoint::Tcp(address) => address.to_string(),
            HealthEndpoint::Unix(path) => path.display().to_string(),
        };
        match reply.with_context(|| format!("no reply from {shown}"))? {
            b'S' | b'N' => Ok(()),
            other => bail!("unexpected reply from {shown}: {other:#04x}; is another program listening there?"),
        }
    }
}

fn connect_unix(path: &Path, limit: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_read_timeout(Some(limit))?;
    socket.set_write_timeout(Some(limit))?;
    socket.connect(&unix_address(path)?)?;
    Ok(socket)
}

fn ask(mut socket: impl Read + Write) -> io::Result<u8> {
    socket.write_all(&SSL_REQUEST)?;
    let mut reply = [0];
    socket.read_exact(&mut reply)?;
    Ok(reply[0])
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn check(address: SocketAddr) -> anyhow::Result<()> {
        let args = HealthcheckArgs { config: None, address: Some(address), timeout: 5 };
        args.run(|| bail!("no configuration is read"))
    }

    #[test]
    fn gateway_is_healthy_if_it_answers() {
        for (reply, healthy) in [(b'N', true), (b'S', true), (b'H', false)] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let server = std::thread::spawn(move || {
                let (mut client, _) = listener.accept().expect("a client");
                let mut request = [0; 8];
                client.read_exact(&mut request).expect("a request");
                client.write_all(&[reply]).expect("a reply");
                request
            });
            assert_eq!(check(address).is_ok(), healthy, "{}", char::from(reply));
            assert_eq!(server.join().expect("no panic"), SSL_REQUEST);
        }
    }

    #[test]
    fn closed_port_is_unhealthy() {
        let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let error = check(closed).expect_err("the port is closed");
        assert!(error.to_string().contains(&closed.to_string()), "{error:#}");
    }

    #[test]
    fn wildcard_addresses_are_checked_on_loopback() {
        assert_eq!(reachable("0.0.0.0:6432".parse().expect("an address")).to_string(), "127.0.0.1:6432");
        assert_eq!(reachable("[::]:6432".parse().expect("an address")).to_string(), "[::1]:6432");
        assert_eq!(reachable("10.0.0.7:6432".parse().expect("an address")).to_string(), "10.0.0.7:6432");
    }
}
