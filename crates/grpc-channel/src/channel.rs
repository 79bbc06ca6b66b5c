//! The channel.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_balance::{Balancer, Pick, WaitMode};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use crate::backend::Backend;
use crate::builder::ChannelBuilder;
use crate::call::Call;
use crate::service_config::{ServiceConfig, ServiceConfigError};
use crate::state::{CallConfig, ChannelState, no_backend};

/// A gRPC channel over many backends. Cloning is cheap; generated clients take it in place of `tonic::transport::Channel`.
///
/// Every call picks a connected backend. A call that no backend began is sent to another one. A failed call is retried on a
/// backend that it has not tried, if the service config has a `retryPolicy`. Errors are [`tonic::Status`].
///
/// After the last clone is dropped, connections end with the calls in flight, however long these take. A call is in flight
/// until its response is read to the end, or dropped.
#[derive(Clone)]
pub struct Channel(pub(crate) Arc<ChannelState>);

impl Channel {
    /// Starts to build a channel to a [target](tidegate_balance::Target), such as `dns:///orders:50051`.
    pub fn builder(target: &str) -> ChannelBuilder {
        ChannelBuilder::new(target)
    }

    /// Waits until a backend is ready, at most `timeout`.
    ///
    /// # Errors
    ///
    /// `DEADLINE_EXCEEDED` with the last cause, or `UNAVAILABLE` if the channel was closed.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn connected(&self, timeout: Duration) -> Result<(), Status> {
        let pick = Pick::new();
        let waited = tokio::time::timeout(timeout, self.0.balancer.pick_ready(&pick, WaitMode::WaitForReady)).await;
        match waited {
            Ok(lease) => lease.map(drop).map_err(|error| no_backend(&error)),
            Err(_) => {
                let cause = self.0.balancer.pick(&pick).err().map_or_else(String::new, |error| error.to_string());
                Err(Status::deadline_exceeded(format!("not ready within {timeout:?}: {cause}")))
            }
        }
    }

    /// Requests a lookup of the target.
    pub fn resolve_now(&self) {
        self.0.resolve_now.request();
    }

    /// Replaces the service config. Calls in progress keep the previous one.
    ///
    /// # Errors
    ///
    /// If it is invalid; the previous one stays.
    pub fn set_service_config(&self, json: &str) -> Result<(), ServiceConfigError> {
        let config = ServiceConfig::from_json(json)?;
        self.0.balancer.set_policy(config.policy.clone().unwrap_or_else(|| Arc::clone(&self.0.policy)));
        self.0.balancer.set_outlier_detection(config.outlier_detection.or(self.0.outlier_detection));
        *self.0.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(CallConfig::new(config));
        Ok(())
    }

    /// The balancer of the backends, for display and control.
    pub fn balancer(&self) -> &Balancer<Backend> {
        &self.0.balancer
    }

    /// Closes the channel: new calls fail, calls in flight go on until the drain timeout of the driver.
    pub fn close(&self) {
        self.0.balancer.close();
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    /// Always ready: the call itself waits for a backend.
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
