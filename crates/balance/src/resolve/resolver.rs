//! The contract of a resolver.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::address::ResolvedAddress;
use crate::endpoint::SharedError;

/// Answer of a resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// All addresses.
    pub addresses: Vec<ResolvedAddress>,
    /// How long the answer is valid, if the name service returns it.
    pub ttl: Option<Duration>,
}

/// A lookup in progress.
pub type ResolveFuture<'a> = Pin<Box<dyn Future<Output = Result<Resolution, ResolveError>> + Send + 'a>>;

/// A source of sets of addresses.
pub trait Resolve: Send + 'static {
    /// Looks up once. A timeout or a close can drop the future before its end. A panic is an error, after which the resolver is
    /// created again.
    fn resolve(&mut self) -> ResolveFuture<'_>;
}

/// Creates a resolver: the first one, and a new one after a panic.
pub type ResolverFactory = Box<dyn FnMut() -> Result<Box<dyn Resolve>, ResolveError> + Send>;

/// Why there is no new set.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The name service did not answer, or answered with an error.
    #[error("cannot resolve {name}: {cause}; the previous addresses are kept")]
    Lookup {
        /// The name.
        name: String,
        /// The error of the name service.
        #[source]
        cause: SharedError,
    },
    /// The name does not exist, or has no addresses.
    #[error("{name} has no addresses; check the name; the previous addresses are kept")]
    NoAddresses {
        /// The name.
        name: String,
    },
    /// The lookup took longer than [`ResolveSettings::timeout`](crate::ResolveSettings::timeout).
    #[error("resolving took longer than {0:?}; the previous addresses are kept")]
    TimedOut(Duration),
    /// The resolver panicked, and is created again.
    #[error("the resolver panicked, which is a bug in it; it is started again")]
    Panicked,
    /// The resolver could not be created.
    #[error("cannot start the resolver: {0}; the start is retried")]
    Start(#[source] SharedError),
}

impl ResolveError {
    /// Creates a [`Lookup`](Self::Lookup) error, for custom resolvers.
    pub fn lookup(name: &str, cause: impl Error + Send + Sync + 'static) -> Self {
        Self::Lookup { name: name.to_owned(), cause: Arc::new(cause) }
    }
}
