//! Least request: the endpoint with the fewest outstanding requests, of a few random ones.

use std::error::Error;

use super::pick_table::{Candidates, PickState, PickTable, Policy, PolicyMember, best_of, ramped_weights};

/// Picks the endpoint with the fewest outstanding requests for its weight, of `choices` random ones.
///
/// Two choices are nearly as good as comparing all (Mitzenmacher, "The Power of Two Choices", 2001), and threads that pick
/// at the same time do not all pick the same endpoint.
#[derive(Clone, Copy, Debug)]
pub struct LeastRequest {
    choices: usize,
}

impl LeastRequest {
    /// Compares `choices` endpoints, at least 2.
    pub fn new(choices: usize) -> Self {
        Self { choices: choices.max(2) }
    }
}

impl Default for LeastRequest {
    /// 2 choices.
    fn default() -> Self {
        Self::new(2)
    }
}

impl Policy for LeastRequest {
    fn name(&self) -> &'static str {
        "least_request"
    }

    fn table(
        &self,
        members: &[PolicyMember],
        _: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(LeastRequestTable { choices: self.choices, weights: ramped_weights(members) }))
    }
}

struct LeastRequestTable {
    choices: usize,
    weights: Box<[u64]>,
}

impl PickTable for LeastRequestTable {
    fn pick(&self, candidates: &Candidates<'_>, state: &mut PickState) -> Option<usize> {
        let cost = |index: usize| u128::from(candidates.load(index).outstanding()) + 1;
        let weight = |index: usize| u128::from(self.weights.get(index).copied().unwrap_or(1));
        // Fractions are compared by cross-multiplication; a weight of zero is an infinite cost.
        best_of(candidates, state, self.choices, &self.weights, |one, other| {
            cost(one) * weight(other) < cost(other) * weight(one)
        })
    }
}
