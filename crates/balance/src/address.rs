//! Where an endpoint is, and what a resolver says of it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::endpoint::{Key, Spec};

/// Where an endpoint is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// TCP.
    Socket(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Address {
    /// Its identity: `ip:port`, or `unix:path`.
    pub fn key(&self) -> Key {
        Key::new(&self.to_string())
    }

    /// The address that a key was made of.
    pub fn from_key(key: &Key) -> Option<Self> {
        match key.as_str().strip_prefix("unix:") {
            Some(path) => Some(Self::Unix(path.into())),
            None => key.as_str().parse().ok().map(Self::Socket),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An address, and its place among others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Where.
    pub address: Address,
    /// Its share; see [`Spec::weight`].
    pub weight: u32,
    /// See [`Spec::tier`].
    pub tier: u16,
}

impl Resolved {
    /// Weight 1, tier 0.
    pub fn new(address: Address) -> Self {
        Self { address, weight: 1, tier: 0 }
    }

    /// What a [`Balancer`](crate::Balancer) is told.
    pub fn spec(&self) -> Spec {
        Spec { key: self.address.key(), weight: self.weight, tier: self.tier }
    }
}

/// Families in turn, each in its order, beginning with the first one's (RFC 8305, section 4): who connects to one after
/// the other meets both soon.
#[cfg(feature = "dns")]
pub(crate) fn interleave(found: Vec<Resolved>) -> Vec<Resolved> {
    let is_v6 = |resolved: &Resolved| matches!(resolved.address, Address::Socket(SocketAddr::V6(_)));
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

    #[cfg(feature = "dns")]
    #[test]
    fn t16_families_take_turns() {
        let found = ["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1", "10.0.0.2:1"];
        let found = found.map(|text| Resolved::new(Address::Socket(text.parse().unwrap())));
        let mixed: Vec<String> = interleave(found.to_vec()).iter().map(|found| found.address.to_string()).collect();
        assert_eq!(mixed, ["[::1]:1", "10.0.0.1:1", "[::2]:1", "10.0.0.2:1", "[::3]:1"]);
    }

    #[test]
    fn a_key_tells_its_address() {
        for address in [Address::Socket("[fe80::1%3]:80".parse().unwrap()), Address::Unix("/run/a b".into())] {
            assert_eq!(Address::from_key(&address.key()), Some(address));
        }
        assert_eq!(Address::from_key(&Key::new("orders")), None);
    }
}
