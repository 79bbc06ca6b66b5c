//! Policies: how a pick chooses among the ready endpoints.

mod least_request;
mod peak_ewma;
mod pick_first;
mod pick_table;
mod ring_hash;
mod round_robin;
mod weighted;

pub use self::{
    least_request::LeastRequest,
    peak_ewma::PeakEwma,
    pick_first::PickFirst,
    pick_table::{Candidates, ConnectStrategy, PickState, PickTable, Policy, PolicyMember, RAMP_FULL},
    ring_hash::{RingHash, hash_bytes},
    round_robin::{ExactRoundRobin, RoundRobin},
    weighted::WeightedRoundRobin,
};

pub(crate) use self::pick_table::CandidateSource;
