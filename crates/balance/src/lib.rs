//! Client-side load balancing: a pick on every call from a snapshot of membership, health and load.
//!
//! # Problem
//!
//! A client that spreads calls over backends must pick a backend for each call while the set of backends changes. A pick that
//! is kept for a while sends calls to backends that are gone. A pick that asks a worker task, takes a lock, or increments a
//! shared counter makes all cores wait for one cache line. A set that is edited in place shows readers partial updates. A set
//! that is cleared when a name fails to resolve closes working connections.
//!
//! # Contract
//!
//! - **A pick on every call.** A pick compares a version with its thread's copy of the snapshot, and uses the
//!   [policy](Policy)'s table: no lock, no allocation, no write to shared memory ([`pick_with`](Balancer::pick_with)). An
//!   [`EndpointLease`] also owns the endpoint: the call counts as in flight, and a drain waits for it.
//! - **Current.** A change ([`mark_failed`](Balancer::mark_failed), [`update`](Balancer::update)) applies to the next pick of
//!   every thread. A pick sees one snapshot, never a mix of two.
//! - **Identity.** An endpoint is identified by its [`EndpointKey`]. Its value, counters and state survive updates; so does each
//!   thread's position in a round robin.
//! - **Make before break.** A removed endpoint stays in use until its replacements are ready, then drains, and is then closed by
//!   its owner. Added again before that, it is the same endpoint.
//! - **Health.** Backoff with jitter ([`Backoff`]); outlier detection that ejects at most a share of the endpoints
//!   ([`OutlierDetection`]); a panic threshold ([`BalancerSettings::panic_threshold`]); slow start. A retry excludes endpoints
//!   that the call has [tried](Pick::tried). A saturated endpoint is [not unhealthy](CallOutcome::Neutral).
//! - **No runtime.** The core reads no clock, spawns no task and does no I/O: `now` is an argument, and the owner of the set
//!   calls [`tick`](Balancer::tick). It works with any executor, or none.
//!
//! # Example
//!
//! ```
//! use std::time::Instant;
//! use tidegate_balance::{Balancer, BalancerSettings, CallOutcome, EndpointSpec, InitialState, Pick, RoundRobin};
//!
//! # fn main() -> Result<(), tidegate_balance::PickError> {
//! let now = Instant::now();
//! let settings = BalancerSettings { initial_state: InitialState::Ready, ..BalancerSettings::default() };
//! let balancer = Balancer::new(RoundRobin, settings, 42, now);
//! let set = ["10.0.0.1:5432", "10.0.0.2:5432"].map(EndpointSpec::new);
//! balancer.update(now, set, |spec, _id| format!("pool of {}", spec.key));
//!
//! // On any thread. An event loop uses a `Picker` of its own instead.
//! let name = balancer.pick_with(&Pick::new(), |endpoint| endpoint.value().clone())?;
//! assert!(name.starts_with("pool of 10.0.0."));
//!
//! // A call that fails, and is retried on another endpoint.
//! let first = balancer.pick(&Pick::new().at(now))?;
//! let tried = [first.endpoint().id()];
//! first.finish(Some(Instant::now()), CallOutcome::Failure);
//! let second = balancer.pick(&Pick::new().at(now).tried(&tried))?;
//! assert_ne!(second.endpoint().id(), tried[0]);
//!
//! // One endpoint is removed: it is not picked any more, and can be closed when its last lease ends.
//! balancer.update(now, [EndpointSpec::new("10.0.0.2:5432")], |spec, _id| spec.key.to_string());
//! assert_eq!(balancer.take_departed().len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to start
//!
//! - To pick among values of your own: [`Balancer`], with a policy such as [`RoundRobin`] or [`LeastRequest`], and [`Pick`] for
//!   the requirements of one call. `examples/pick.rs` is a complete program.
//! - To resolve names again and again, with the feature `tokio` or `dns`: `NameWatcher` and `DnsClient`; their sets go to
//!   [`Balancer::update`].
//! - For gRPC: the crate `tidegate-grpc-channel`.

mod address;
mod balancer;
mod cached_snapshot;
mod ejections;
mod endpoint;
mod endpoint_record;
mod error;
mod in_flight;
mod latency;
mod lease;
mod load;
#[cfg(all(test, loom))]
mod loom_tests;
mod membership;
mod outlier;
mod pick;
mod picker;
mod policy;
mod published;
#[cfg(feature = "tokio")]
mod resolve;
mod selection;
mod settings;
mod shared;
mod snapshot;
mod sync;
mod target;
mod thread_cache;
mod waiters;

pub use self::{
    address::{EndpointAddress, ResolvedAddress},
    balancer::{Balancer, BalancerCounters, WaitMode, WeakBalancer},
    endpoint::{Endpoint, EndpointId, EndpointKey, EndpointSpec, SharedError},
    endpoint_record::{ConnectivityState, EndpointStatus},
    error::PickError,
    in_flight::DrainOutcome,
    lease::{CallOutcome, EndpointLease},
    load::EndpointLoad,
    membership::UpdateSummary,
    outlier::{FailurePercentageEjection, OutlierDetection, SuccessRateEjection},
    pick::{EndpointFilter, Pick},
    picker::Picker,
    policy::{
        Candidates, ConnectStrategy, ExactRoundRobin, LeastRequest, PeakEwma, PickFirst, PickState, PickTable, Policy,
        PolicyMember, RAMP_FULL, RingHash, RoundRobin, WeightedRoundRobin, hash_bytes,
    },
    settings::{BalancerSettings, InitialState},
    target::{Target, TargetError},
};
pub use tidegate_backoff::{Backoff, Jitter};

#[cfg(feature = "dns")]
pub use self::resolve::DnsClient;
#[cfg(feature = "tokio")]
pub use self::resolve::{
    NameWatcher, Resolution, Resolve, ResolveError, ResolveEvent, ResolveFuture, ResolveNow, ResolveSettings,
    ResolverFactory,
};
