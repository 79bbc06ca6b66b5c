//! Peak EWMA: the endpoint with the lowest expected latency, of two random ones.

use std::error::Error;

use super::pick_table::{Candidates, PickState, PickTable, Policy, PolicyMember, best_of, ramped_weights};

/// Picks the endpoint with the lowest (latency x (outstanding + 1) / weight), of two random ones.
///
/// The latency is a moving average that follows a rise immediately and a fall slowly (peak EWMA, from Finagle). An endpoint
/// without answers counts as fast while it has no outstanding request. A failure counts as a slow answer, and each further
/// one as twice as slow.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakEwma;

impl Policy for PeakEwma {
    fn name(&self) -> &'static str {
        "peak_ewma"
    }

    fn table(
        &self,
        members: &[PolicyMember],
        _: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(PeakEwmaTable { weights: ramped_weights(members) }))
    }
}

struct PeakEwmaTable {
    weights: Box<[u64]>,
}

/// Latency of a busy endpoint without answers: it gets no second request before its first answer.
const UNKNOWN_US: f32 = 1e9;

impl PickTable for PeakEwmaTable {
    fn pick(&self, candidates: &Candidates<'_>, state: &mut PickState) -> Option<usize> {
        best_of(candidates, state, 2, &self.weights, |one, other| {
            self.cost(candidates, one) < self.cost(candidates, other)
        })
    }
}

impl PeakEwmaTable {
    fn cost(&self, candidates: &Candidates<'_>, index: usize) -> f32 {
        let load = candidates.load(index);
        let outstanding = load.outstanding() as f32;
        let known_us = load.latency_us(candidates.now());
        let latency_us = if known_us > 0.0 || outstanding == 0.0 { known_us } else { UNKNOWN_US };
        match self.weights.get(index) {
            Some(0) => f32::INFINITY,
            weight => latency_us * (outstanding + 1.0) / weight.map_or(1.0, |&weight| weight as f32),
        }
    }
}
