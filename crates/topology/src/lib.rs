//! Several servers for one database: what each of them is, and which of them may serve a transaction.
//!
//! A [`Cluster`] is watched by one task of the control plane ([`own`]), its owner. Names are followed to addresses,
//! each server has a [`probe`](watch) on a thread of the data plane that asks it what it is, and [`Topology`] decides,
//! without I/O or clock, who is primary, who is a replica that is fresh enough, and who is neither. The result is
//! published as three sets to choose from ([`Group`]), each an immutable snapshot of `tidegate-balance`: a transaction
//! picks from its thread's copy, without a lock.

mod cluster;
mod control;
mod core;
mod observation;
mod probe;

pub use cluster::{Cluster, ClusterSpec, Group, Node, Sight};
pub use control::{Event, Ground, own};
pub use core::{HostState, HostView, Role, Rules, Topology, Verdict};
pub use observation::{Observation, Origin, Report};
pub use probe::{Sink, watch};
