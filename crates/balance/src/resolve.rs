//! From a name to a set of addresses, again and again, without ever losing a set that was good.
//!
//! An error, a time-out, a name that does not exist and an empty answer say something of the name service, not of the
//! endpoints: who is connected stays so. Only a set that was really answered replaces another.

#[cfg(feature = "dns")]
mod dns;
mod follow;
#[cfg(feature = "dns")]
mod hosts;
mod schedule;

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::address::Resolved;
use crate::endpoint::Cause;

#[cfg(feature = "dns")]
pub use self::dns::Dns;
pub use self::{
    follow::{Follow, ResolveEvent, ResolveNow},
    schedule::ResolveRules,
};

/// What a resolver found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// All endpoints that there are.
    pub found: Vec<Resolved>,
    /// For how long that is true; `None`: it does not say.
    pub ttl: Option<Duration>,
}

/// A resolution under way.
pub type Resolving<'a> = Pin<Box<dyn Future<Output = Result<Resolution, ResolveError>> + Send + 'a>>;

/// A source of sets of addresses.
pub trait Resolve: Send + 'static {
    /// Looks once. It may be dropped before its end, by a time-out or a close. A panic is an error, after which the
    /// resolver is made anew.
    fn resolve(&mut self) -> Resolving<'_>;
}

/// Makes a resolver: the first one, and another when one panicked.
pub type MakeResolver = Box<dyn FnMut() -> Result<Box<dyn Resolve>, ResolveError> + Send>;

/// Why there is no new set.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The name service did not answer, or with an error.
    #[error("cannot resolve {name}: {cause}; what was known before is kept")]
    Lookup {
        /// What was asked for.
        name: String,
        /// What went wrong.
        cause: Cause,
    },
    /// The name does not exist, or has no addresses.
    #[error("{name} has no addresses; check the name, what was known before is kept")]
    NoAddresses {
        /// What was asked for.
        name: String,
    },
    /// It took longer than [`ResolveRules::timeout`].
    #[error("resolving took longer than {0:?}; what was known before is kept")]
    TimedOut(Duration),
    /// The resolver panicked, and is made anew.
    #[error("the resolver panicked, which is a defect in it; it is started again")]
    Panicked,
    /// The resolver could not be made.
    #[error("cannot start the resolver: {0}; it is tried again")]
    Start(Cause),
}

impl ResolveError {
    /// For resolvers of one's own.
    pub fn lookup(name: &str, cause: impl Error + Send + Sync + 'static) -> Self {
        Self::Lookup { name: name.to_owned(), cause: std::sync::Arc::new(cause) }
    }
}
