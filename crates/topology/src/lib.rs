//! Roles, lag and usability of the servers of a database: the primary, the replicas, and which of them may serve a transaction.
//!
//! With several hosts per database, a pooler has to know the role of each server and react to promotions, crashes and lag. Each
//! [`Cluster`] has a controller, a task of the control plane ([`spawn_controller`]). Host names are resolved to addresses; a
//! probe ([`run_probe`]) on a thread of the data plane queries each server; [`Topology`] derives the primary, the usable replicas
//! and the unusable servers, without I/O or clock. The result is published as three sets to pick from ([`HostGroup`]), immutable
//! snapshots of `tidegate-balance`: a transaction picks from its thread's copy without a lock.
//!
//! ```
//! use std::time::Instant;
//! use tidegate_topology::{LagLimits, Observation, ProbeReport, ServerOrigin, Topology};
//!
//! let mut topology = Topology::new(LagLimits::default());
//! topology.set_hosts(["a", "b"].map(Into::into));
//! let origin = ServerOrigin { system: 7, started: 1 };
//! let primary = Observation { in_recovery: false, lsn: 100, timeline: 1, origin };
//! topology.on_report("a", ProbeReport::Answer(primary), Instant::now());
//! assert_eq!(topology.routing().primary.as_deref(), Some("a"));
//! ```

mod cluster;
mod control;
mod core;
mod observation;
mod probe;

pub use cluster::{Cluster, ClusterNode, ClusterSpec, HostGroup, HostStatus};
pub use control::{ClusterEvent, ClusterHooks, spawn_controller};
pub use core::{ClusterRouting, HostRole, HostState, HostView, LagLimits, Topology};
pub use observation::{Observation, ProbeReport, ServerOrigin};
pub use probe::{ReportSender, run_probe};
