//! To the one whose answers come soonest, of a few drawn at random.

use std::error::Error;

use super::least_request::weights;
use super::{Local, Member, Policy, Table, View, best_of};

/// To the endpoint with the least of (latency x (outstanding + 1) / weight), of two drawn at random.
///
/// The latency is a moving average that follows a rise at once and a fall slowly (peak EWMA, from Finagle). Who has
/// answered nothing yet counts as fast, one request after the other. A failure counts as a slow answer, the next one as one
/// twice as slow.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakEwma;

impl Policy for PeakEwma {
    fn name(&self) -> &'static str {
        "peak_ewma"
    }

    fn table(&self, members: &[Member], _: Option<&dyn Table>) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Soonest { weights: weights(members) }))
    }
}

struct Soonest {
    weights: Box<[u64]>,
}

/// In place of the latency of an endpoint that has answered nothing yet and is busy: it is not flooded meanwhile.
const UNKNOWN_US: f32 = 1e9;

impl Table for Soonest {
    fn pick(&self, view: &View<'_>, local: &mut Local) -> Option<usize> {
        best_of(view, local, 2, &self.weights, |one, other| self.cost(view, one) < self.cost(view, other))
    }
}

impl Soonest {
    fn cost(&self, view: &View<'_>, index: usize) -> f32 {
        let load = view.load(index);
        let outstanding = load.outstanding() as f32;
        let known_us = load.latency_us(view.wants.now);
        let latency_us = if known_us > 0.0 || outstanding == 0.0 { known_us } else { UNKNOWN_US };
        match self.weights.get(index) {
            Some(0) => f32::INFINITY,
            weight => latency_us * (outstanding + 1.0) / weight.map_or(1.0, |&weight| weight as f32),
        }
    }
}
