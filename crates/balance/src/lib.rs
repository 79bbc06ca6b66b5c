//! Choose one of N on every call, from a snapshot of membership, health and load that changes underneath.
//!
//! # The problem
//!
//! Whoever spreads calls over backends must choose again for every call, while the set of backends changes. A choice
//! that is kept for a while goes on to backends that are gone. A choice that asks a worker task, takes a lock, or counts
//! in a shared number makes all cores wait for one cache line. A set that is edited in place shows readers halves of
//! it, and one that is torn down when a name fails to resolve takes working connections with it.
//!
//! # The contract
//!
//! - **A pick on every call.** A pick compares a version with its thread's copy of the snapshot, and asks the
//!   [policy](Policy)'s table: no lock, no allocation, no write to shared memory ([`pick_with`](Balancer::pick_with)).
//!   A [`Lease`] owns the endpoint besides: it counts as in flight, and a drain waits for it.
//! - **Never late.** What is published ([`failed`](Balancer::failed), [`update`](Balancer::update)) holds for the next
//!   pick of every thread. A snapshot is seen whole or not at all.
//! - **Identity.** An endpoint is its [`Key`]. Its value, counters and state survive updates; so does every thread's
//!   place in the round.
//! - **Make before break.** A removed endpoint leaves the rotation when its replacements are ready, then drains, then is
//!   closed by its owner; added again before that, it is the same endpoint as before.
//! - **Health.** Back-off with jitter ([`Backoff`]); ejection of who fails more than others, with a maximum share
//!   ([`Outlier`]); when too few are left, all are used ([`Settings::panic_threshold`]); slow start. A call that says
//!   which endpoints it [tried](Pick::tried) gets another. [Saturated](Outcome::Neutral) is not unhealthy.
//! - **Quiet.** The core reads no clock, spawns nothing, does no I/O: `now` is an argument, and who owns the set calls
//!   [`tick`](Balancer::tick). It runs under any executor, or none.
//!
//! # Example
//!
//! ```
//! use std::time::Instant;
//! use tidegate_balance::{Balancer, Outcome, Pick, RoundRobin, Settings, Spec, Start};
//!
//! # fn main() -> Result<(), tidegate_balance::PickError> {
//! let now = Instant::now();
//! let settings = Settings { start: Start::Ready, ..Settings::default() };
//! let balancer = Balancer::new(RoundRobin, settings, 42, now);
//! balancer.update(now, [Spec::new("10.0.0.1:5432"), Spec::new("10.0.0.2:5432")], |spec, _id| format!("pool of {}", spec.key));
//!
//! // From any thread; an event loop keeps a `balancer.picker(seed)` of its own instead.
//! let name = balancer.pick_with(&Pick::new(), |endpoint| endpoint.value().clone())?;
//! assert!(name.starts_with("pool of 10.0.0."));
//!
//! // A call that may fail, and is then tried elsewhere.
//! let first = balancer.pick(&Pick::new().at(now))?;
//! let tried = [first.endpoint().id()];
//! first.finish(Some(Instant::now()), Outcome::Failure);
//! let second = balancer.pick(&Pick::new().at(now).tried(&tried))?;
//! assert_ne!(second.endpoint().id(), tried[0]);
//!
//! // One endpoint less: it is out of the rotation now, and may be closed once nobody uses it.
//! balancer.update(now, [Spec::new("10.0.0.2:5432")], |spec, _id| spec.key.to_string());
//! assert_eq!(balancer.departed().len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to begin
//!
//! - To choose among things of your own: [`Balancer`], with a policy such as [`RoundRobin`] or [`LeastRequest`], and
//!   [`Pick`] for what one call wants. `examples/pick.rs` is a whole program.
//! - To follow names, with the feature `tokio` or `dns`: `Follow` and `Dns`, whose sets go to [`Balancer::update`].
//! - For gRPC, with the feature `tonic`: `Channel::builder("dns:///orders:50051")`, which does all of it.
//!   `examples/grpc_client.rs` is a whole program.

mod address;
mod backoff;
mod balancer;
#[cfg(feature = "tokio")]
mod caught;
#[cfg(feature = "tonic")]
mod channel;
mod endpoint;
mod error;
#[cfg(all(test, loom))]
mod interleavings;
mod latency;
mod lease;
mod load;
mod moment;
mod outlier;
mod pick;
mod picker;
mod policy;
mod published;
#[cfg(feature = "tokio")]
mod resolve;
mod roster;
#[cfg(feature = "tonic")]
mod service_config;
mod settings;
mod slot;
mod snapshot;
mod sync;
mod target;
mod thread;
mod wait;

pub use self::{
    address::{Address, Resolved},
    backoff::Backoff,
    balancer::{Balancer, Counters, Patience, WeakBalancer},
    endpoint::{Cause, Endpoint, EndpointId, Key, Spec},
    error::PickError,
    lease::{Lease, Outcome},
    load::Load,
    outlier::{FailureShare, Outlier, SuccessRate},
    pick::{Filter, Pick},
    picker::Picker,
    policy::{
        Dials, Exact, LeastRequest, Local, Member, PeakEwma, PickFirst, Policy, RAMP_FULL, RingHash, RoundRobin, Table,
        View, WeightedRoundRobin, hash_of,
    },
    roster::{State, Status, Update},
    settings::{Settings, Start},
    slot::Drained,
    target::{Target, TargetError},
};

#[cfg(feature = "dns")]
pub use self::resolve::Dns;
#[cfg(feature = "tokio")]
pub use self::resolve::{
    Follow, MakeResolver, Resolution, Resolve, ResolveError, ResolveEvent, ResolveNow, ResolveRules, Resolving,
};
#[cfg(feature = "tonic")]
pub use self::{
    channel::{BuildError, Channel, ChannelBuilder, ChannelDriver, Node},
    service_config::{ServiceConfig, ServiceConfigError},
};
