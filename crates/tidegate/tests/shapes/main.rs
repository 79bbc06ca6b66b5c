//! `tidegate shapes`: random transactions, and clients whose rows equal those of a query, through `kill -9`.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod follower;
mod gateway;
mod nginx;
mod oracle;
mod process;
mod take_over;
mod transactions;
