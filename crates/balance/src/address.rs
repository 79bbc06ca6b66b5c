//! Addresses of endpoints, as resolvers return them.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::endpoint::{EndpointKey, EndpointSpec};

/// Address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointAddress {
    /// TCP address.
    Socket(SocketAddr),
    /// Unix socket.
    Unix(PathBuf),
}

impl EndpointAddress {
    /// Returns the identity: `ip:port`, or `unix:path`.
    pub fn key(&self) -> EndpointKey {
        EndpointKey::new(&self.to_string())
    }

    /// Parses a key that [`key`](Self::key) returned.
    pub fn from_key(key: &EndpointKey) -> Option<Self> {
        match key.as_str().strip_prefix("unix:") {
            Some(path) => Some(Self::Unix(path.into())),
            None => key.as_str().parse().ok().map(Self::Socket),
        }
    }
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An address with its weight and tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address.
    pub address: EndpointAddress,
    /// See [`EndpointSpec::weight`].
    pub weight: u32,
    /// See [`EndpointSpec::tier`].
    pub tier: u16,
}

impl ResolvedAddress {
    /// Weight 1, tier 0.
    pub fn new(address: EndpointAddress) -> Self {
        Self { address, weight: 1, tier: 0 }
    }

    /// Returns the spec for [`Balancer::update`](crate::Balancer::update).
    pub fn spec(&self) -> EndpointSpec {
        EndpointSpec { key: self.address.key(), weight: self.weight, tier: self.tier }
    }
}

/// Alternates the address families, starting with the family of the first address (RFC 8305, section 4). A client that connects
/// in this order tries both families soon.
#[cfg(feature = "dns")]
pub(crate) fn interleave(found: Vec<ResolvedAddress>) -> Vec<ResolvedAddress> {
    let is_v6 = |resolved: &ResolvedAddress| matches!(resolved.address, EndpointAddress::Socket(SocketAddr::V6(_)));
    let first_is_v6 = found.first().is_some_and(is_v6);
    let (one, other): (Vec<_>, Vec<_>) = found.into_iter().partition(|resolved| is_v6(resolved) == first_is_v6);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut mixed = Vec::new();
    loop {
        let before = mixed.len();
        mixed.extend(one.next());
        mixed.extend(other.next());
        if mixed.len() == before {
            return mixed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BA-16.
    #[cfg(feature = "dns")]
    #[test]
    fn address_families_alternate() {
        let found = ["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1", "10.0.0.2:1"];
        let found = found.map(|text| ResolvedAddress::new(EndpointAddress::Socket(text.parse().unwrap())));
        let mixed: Vec<String> = interleave(found.to_vec()).iter().map(|found| found.address.to_string()).collect();
        assert_eq!(mixed, ["[::1]:1", "10.0.0.1:1", "[::2]:1", "10.0.0.2:1", "[::3]:1"]);
    }

    #[test]
    fn key_parses_to_its_address() {
        for address in
            [EndpointAddress::Socket("[fe80::1%3]:80".parse().unwrap()), EndpointAddress::Unix("/run/a b".into())]
        {
            assert_eq!(EndpointAddress::from_key(&address.key()), Some(address));
        }
        assert_eq!(EndpointAddress::from_key(&EndpointKey::new("orders")), None);
    }
}
