//! The wire protocol over raw bytes, against Postgres 14 and 18: startup packets, pipelines, COPY, portals, cancel requests,
//! replication, and clients that disconnect in the middle.
//!
//! The cases of `docs/src/internals/tested-cases.md` have their number in the doc comment of their tests. A test of
//! [`Fixture::on_both_targets`](tidegate_testkit::Fixture::on_both_targets) runs its script against Postgres and against the
//! gateway, with the same expectations.

mod cancel;
mod copy;
mod disconnects;
mod early_copy_errors;
mod partial_io;
mod pipelining;
mod portals;
mod replication;
mod startup;
