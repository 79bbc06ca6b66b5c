//! A gRPC channel for tonic clients: a pick on every call, retries on other backends, service config, TLS.
//!
//! # Problem
//!
//! `tonic::transport::Channel` connects to one address, or to a list that the caller keeps up to date. It does not resolve names
//! again, does not read gRPC's service config, and reports a call as failed when its connection ends before the server began
//! the call.
//!
//! # Contract
//!
//! - **A pick on every call.** Each call picks a connected backend from a [`Balancer`](tidegate_balance::Balancer). The policy
//!   and the outlier detection come from the service config or from the [`ChannelBuilder`].
//! - **No call is lost when a backend is drained.** A call that no server began (a refused stream, or GOAWAY with a lower stream
//!   id) is sent to another backend, without a retry policy.
//! - **Retries.** Failed calls are retried on a backend that they have not tried, by `retryPolicy` and `retryThrottling` of
//!   the service config (gRPC proposal A6). The request body is kept up to a limit of bytes.
//! - **Deadlines.** The timeout of a method or of a call (`grpc-timeout`) covers the whole response; the server gets the
//!   remaining time.
//! - **An owner.** [`ChannelDriver::run`] resolves, connects and drains. Dropping it cuts all connections. No task outlives it.
//!
//! # Example
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate_grpc_channel::Channel;
//!
//! # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
//! let config = r#"{"loadBalancingConfig": [{"round_robin": {}}]}"#;
//! let (channel, driver) = Channel::builder("dns:///orders:50051").service_config(config).build()?;
//! tokio::spawn(driver.run());
//! channel.connected(Duration::from_secs(5)).await?;
//! // A generated client takes the channel: `OrdersClient::new(channel)`.
//! # Ok(())
//! # }
//! ```
//!
//! `examples/grpc_client.rs` is a complete program.

mod backend;
mod builder;
mod call;
mod channel;
mod connector;
mod controlled_stream;
mod deadline;
mod driver;
mod reconnect;
mod replay_body;
mod response_body;
mod retry;
mod service_config;
mod state;
mod stream_failure;

pub use self::{
    backend::Backend,
    builder::{ChannelBuildError, ChannelBuilder},
    channel::Channel,
    driver::ChannelDriver,
    service_config::{ServiceConfig, ServiceConfigError},
};

/// The crate of the types that the builder takes: policies, resolvers, settings.
pub use tidegate_balance;
