//! Targets of clients, as text: `dns:///orders:50051`, `srv:///_grpc._tcp.orders`, `10.0.0.1:80`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::address::EndpointAddress;

/// Target of a client.
///
/// | Text | Meaning |
/// | --- | --- |
/// | `dns:///orders:50051`, `orders:50051` | the A and AAAA records of a name |
/// | `dns://10.0.0.53:53/orders:50051` | the same, from that name server |
/// | `http://orders`, `https://orders` | the same with port 80, or 443; `https` is for users with TLS |
/// | `srv:///_grpc._tcp.orders` | the SRV records of a name, with priorities and weights |
/// | `ipv4:10.0.0.1:80,10.0.0.2:80`, `ipv6:[::1]:80`, `10.0.0.1:80` | these addresses, without a lookup |
/// | `unix:/run/orders.sock`, `unix:///run/orders.sock` | that Unix socket |
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Known addresses.
    Static(Vec<EndpointAddress>),
    /// Name with A and AAAA records.
    Name {
        /// Name server, if not the system's.
        server: Option<SocketAddr>,
        /// The name.
        host: String,
        /// The port of each address.
        port: u16,
    },
    /// Name with SRV records.
    Srv {
        /// Name server, if not the system's.
        server: Option<SocketAddr>,
        /// The name, such as `_grpc._tcp.orders`.
        name: String,
    },
}

/// A text that is parsed into the same target; of Unix sockets, if there is one only.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = |server: &Option<SocketAddr>| server.map_or_else(String::new, |server| server.to_string());
        match self {
            Self::Static(addresses) => {
                let is_unix = |address: &EndpointAddress| matches!(address, EndpointAddress::Unix(_));
                let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                write!(f, "{}{}", if addresses.iter().any(is_unix) { "" } else { "ipv4:" }, texts.join(","))
            }
            Self::Name { server: from, host, port } => write!(f, "dns://{}/{host}:{port}", server(from)),
            Self::Srv { server: from, name } => write!(f, "srv://{}/{name}", server(from)),
        }
    }
}

/// Why a text is not a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a target: {reason}")]
pub struct TargetError {
    text: String,
    reason: &'static str,
}

const PORT_HTTP: u16 = 80;
const PORT_HTTPS: u16 = 443;

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        parse(text).map_err(|reason| TargetError { text: text.to_owned(), reason })
    }
}

impl Target {
    /// Returns the expected host name of a server, for TLS and for `:authority`.
    pub fn authority(&self) -> String {
        match self {
            Self::Static(addresses) => match addresses.first() {
                Some(EndpointAddress::Socket(address)) => address.to_string(),
                Some(EndpointAddress::Unix(_)) | None => "localhost".to_owned(),
            },
            Self::Name { host, port, .. } => format!("{host}:{port}"),
            Self::Srv { name, .. } => {
                // The service and the protocol are not part of the host.
                name.split('.').skip_while(|label| label.starts_with('_')).collect::<Vec<_>>().join(".")
            }
        }
    }
}

fn parse(text: &str) -> Result<Target, &'static str> {
    let Some((scheme, rest)) = text.split_once(':') else { return host_and_port(text, None, None) };
    match scheme {
        "dns" => {
            let (server, host) = authority_and_path(rest)?;
            host_and_port(host, server, None)
        }
        "srv" => {
            let (server, name) = authority_and_path(rest)?;
            let name = name.to_owned();
            if name.is_empty() { Err("a name is missing after `srv:///`") } else { Ok(Target::Srv { server, name }) }
        }
        "http" => host_and_port(in_url(rest)?, None, Some(PORT_HTTP)),
        "https" => host_and_port(in_url(rest)?, None, Some(PORT_HTTPS)),
        "ipv4" | "ipv6" => addresses(rest),
        "unix" if rest.is_empty() => Err("a path is missing after `unix:`"),
        "unix" => Ok(Target::Static(vec![EndpointAddress::Unix(rest.strip_prefix("//").unwrap_or(rest).into())])),
        _ if rest.starts_with("//") => Err("the scheme is none of dns, srv, http, https, ipv4, ipv6, unix"),
        _ => host_and_port(text, None, None),
    }
}

/// Splits `//server/name`, `///name` or `name`.
fn authority_and_path(rest: &str) -> Result<(Option<SocketAddr>, &str), &'static str> {
    let Some(rest) = rest.strip_prefix("//") else { return Ok((None, rest)) };
    let (server, path) = rest.split_once('/').ok_or("three slashes are required, as in `dns:///orders:50051`")?;
    if server.is_empty() {
        return Ok((None, path));
    }
    let with_port = server.parse().ok();
    let plain = || server.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, 53));
    let server = with_port.or_else(plain).ok_or("the name server must be an address, such as 10.0.0.53:53")?;
    Ok((Some(server), path))
}

/// Returns the host and port of a URL; its path and query are ignored.
fn in_url(rest: &str) -> Result<&str, &'static str> {
    let rest = rest.strip_prefix("//").ok_or("a URL has two slashes after its scheme")?;
    Ok(rest.split(['/', '?', '#']).next().unwrap_or(rest))
}

fn host_and_port(text: &str, server: Option<SocketAddr>, default: Option<u16>) -> Result<Target, &'static str> {
    let text = text.trim();
    if let Ok(address) = text.parse() {
        return Ok(Target::Static(vec![EndpointAddress::Socket(address)]));
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let (Ok(address), Some(port)) = (bare.parse::<IpAddr>(), default) {
        return Ok(Target::Static(vec![EndpointAddress::Socket(SocketAddr::new(address, port))]));
    }
    let (host, port) = match (text.rsplit_once(':'), default) {
        (Some((host, port)), _) => (host, port.parse().map_err(|_| "the port is not a number from 0 to 65535")?),
        (None, Some(port)) => (text, port),
        (None, None) => return Err("a port is missing, as in `orders:50051`"),
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || matches!(c, ':' | '/' | '[' | ']')) {
        return Err("the host is not a name");
    }
    Ok(Target::Name { server, host: host.to_owned(), port })
}

fn addresses(list: &str) -> Result<Target, &'static str> {
    let parse =
        |text: &str| text.trim().parse().map(EndpointAddress::Socket).map_err(|_| "an address must be `ip:port`");
    list.split(',').map(parse).collect::<Result<_, _>>().map(Target::Static)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(host: &str, port: u16) -> Target {
        Target::Name { server: None, host: host.to_owned(), port }
    }

    fn fixed(addresses: &[&str]) -> Target {
        Target::Static(addresses.iter().map(|text| EndpointAddress::Socket(text.parse().unwrap())).collect())
    }

    #[test]
    fn every_form_is_parsed() {
        let server = Some("10.0.0.53:53".parse().unwrap());
        let cases = [
            ("dns:///orders:50051", name("orders", 50051)),
            ("dns:orders:50051", name("orders", 50051)),
            ("orders.prod:50051", name("orders.prod", 50051)),
            ("http://orders", name("orders", 80)),
            ("https://orders/path?x", name("orders", 443)),
            ("https://[::1]", fixed(&["[::1]:443"])),
            ("dns://10.0.0.53/orders:1", Target::Name { server, host: "orders".to_owned(), port: 1 }),
            ("srv:///_grpc._tcp.orders", Target::Srv { server: None, name: "_grpc._tcp.orders".to_owned() }),
            ("ipv4:10.0.0.1:80,10.0.0.2:81", fixed(&["10.0.0.1:80", "10.0.0.2:81"])),
            ("ipv6:[fe80::1%2]:80", fixed(&["[fe80::1%2]:80"])),
            ("10.0.0.1:80", fixed(&["10.0.0.1:80"])),
            ("[::1]:80", fixed(&["[::1]:80"])),
            ("dns:///10.0.0.1:80", fixed(&["10.0.0.1:80"])),
            ("unix:/run/x", Target::Static(vec![EndpointAddress::Unix("/run/x".into())])),
            ("unix:///run/x", Target::Static(vec![EndpointAddress::Unix("/run/x".into())])),
        ];
        for (text, expected) in cases {
            assert_eq!(expected.to_string().parse(), Ok(expected.clone()), "{expected}");
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_target_is_refused_with_a_reason() {
        for text in
            ["", "orders", "xds:///orders", "dns://x/y:1", "orders:99999", "ipv4:orders:80", "::1", "a b:1", "unix:"]
        {
            let error = text.parse::<Target>().expect_err(text).to_string();
            assert!(error.contains("is not a target: "), "{error}");
        }
    }
}
