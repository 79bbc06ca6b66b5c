//! A channel for gRPC clients: a pick for every call, connections that are kept, calls that are tried again elsewhere.

mod body;
mod builder;
mod call;
mod connect;
mod deadline;
mod dial;
mod driver;
mod line;
mod node;
mod replay;
mod retry;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::{Authority, Scheme};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::{Code, Status};
use tower_service::Service;

use crate::balancer::{Balancer, Patience};
use crate::error::PickError;
use crate::outlier::Outlier;
use crate::pick::Pick;
use crate::policy::Policy;
use crate::resolve::ResolveNow;
use crate::service_config::{ServiceConfig, ServiceConfigError};

pub use self::{
    builder::{BuildError, ChannelBuilder},
    driver::ChannelDriver,
    node::Node,
};
use self::{call::Call, retry::Throttle};

/// A gRPC channel over many backends. Cheap to clone; generated clients take it in place of `tonic::transport::Channel`.
///
/// Every call picks a backend that is connected. A call that a backend did not begin, because the connection ended first,
/// is sent to another; a call that failed is tried again if the service config's `retryPolicy` says so, on a backend
/// that was not tried. Errors are [`tonic::Status`].
///
/// When the last clone is dropped, connections end after the calls in flight, however long these take: a call is in
/// flight until its answer was read to the end, or dropped.
#[derive(Clone)]
pub struct Channel(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) balancer: Balancer<Node>,
    /// Read by each call, written by [`Channel::set_service_config`].
    pub(crate) calls: RwLock<Arc<Calls>>,
    /// The policy, if the service config names none.
    pub(crate) policy: Arc<dyn Policy>,
    /// The rules of ejection, if the service config has none.
    pub(crate) outlier: Option<Outlier>,
    pub(crate) resolve_now: ResolveNow,
    pub(crate) origin: (Scheme, Authority),
    pub(crate) timeout: Option<Duration>,
    pub(crate) wait_for_ready: bool,
    pub(crate) replay_bytes_max: usize,
    /// The driver stops when this is dropped.
    #[expect(dead_code, reason = "its end is the message")]
    pub(crate) alive: watch::Sender<()>,
}

/// What holds for calls, replaced whole.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) config: ServiceConfig,
    pub(crate) throttle: Option<Throttle>,
}

impl Calls {
    pub(crate) fn new(config: ServiceConfig) -> Self {
        let throttle = config.throttling.map(Throttle::new);
        Self { config, throttle }
    }
}

impl Channel {
    /// Begins a channel to a [target](crate::Target), such as `dns:///orders:50051`.
    pub fn builder(target: &str) -> ChannelBuilder {
        ChannelBuilder::new(target)
    }

    /// Waits until a backend is ready, or until the time is over.
    ///
    /// # Errors
    ///
    /// `DEADLINE_EXCEEDED` with the last cause, or `UNAVAILABLE` when the channel was closed.
    ///
    /// # Cancel safety
    ///
    /// May be dropped.
    pub async fn connected(&self, within: Duration) -> Result<(), Status> {
        let pick = Pick::new();
        let waited = tokio::time::timeout(within, self.0.balancer.pick_ready(&pick, Patience::WaitForReady)).await;
        match waited {
            Ok(lease) => lease.map(drop).map_err(|error| refused(&error)),
            Err(_) => {
                let cause = self.0.balancer.pick(&pick).err().map_or_else(String::new, |error| error.to_string());
                Err(Status::deadline_exceeded(format!("not ready within {within:?}: {cause}")))
            }
        }
    }

    /// Looks the target up again soon.
    pub fn resolve_now(&self) {
        self.0.resolve_now.ask();
    }

    /// Takes another service config over. Calls that are under way go on under the old one.
    ///
    /// # Errors
    ///
    /// When it is invalid; the old one stays.
    pub fn set_service_config(&self, json: &str) -> Result<(), ServiceConfigError> {
        let config = ServiceConfig::from_json(json)?;
        self.0.balancer.set_policy(config.policy.clone().unwrap_or_else(|| Arc::clone(&self.0.policy)));
        self.0.balancer.set_outlier(config.outlier.or(self.0.outlier));
        *self.0.calls.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Calls::new(config));
        Ok(())
    }

    /// The backends, for those who want to watch or steer them.
    pub fn balancer(&self) -> &Balancer<Node> {
        &self.0.balancer
    }

    /// Ends the channel: new calls fail, calls in flight go on until the driver's drain time is over.
    pub fn close(&self) {
        self.0.balancer.close();
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    /// Always: a call waits for a backend itself.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(Call::new(Arc::clone(&self.0), request).run())
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("origin", &self.0.origin.1).finish_non_exhaustive()
    }
}

/// What a caller is told when there is no backend.
fn refused(error: &PickError) -> Status {
    let code = if matches!(error, PickError::Crowded { .. }) { Code::ResourceExhausted } else { Code::Unavailable };
    let mut status = Status::new(code, error.to_string());
    status.set_source(Arc::new(error.clone()));
    status
}
