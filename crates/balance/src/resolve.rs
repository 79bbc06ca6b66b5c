//! Name resolution: from a name to a set of addresses, repeated, without losing a set that was valid.
//!
//! An error, a timeout, a name that does not exist and an empty answer are facts about the name service, not about the endpoints:
//! connected endpoints stay. Only a non-empty answer replaces a set.

#[cfg(feature = "dns")]
mod dns;
#[cfg(feature = "dns")]
mod hosts_file;
mod name_watcher;
mod resolver;
mod schedule;

#[cfg(feature = "dns")]
pub use self::dns::DnsClient;
pub use self::{
    name_watcher::{NameWatcher, ResolveEvent, ResolveNow},
    resolver::{Resolution, Resolve, ResolveError, ResolveFuture, ResolverFactory},
    schedule::ResolveSettings,
};
